//! The load driver: streams of operations offered to a node over HTTP/1.1, and their results.
//!
//! In an **open loop**, operation *n* of a stream is due at `start + n / rate`, whatever happened to those
//! before it. Its latency counts from that moment, not from when a connection was free to send it. So every
//! operation that falls into a stall of the node shows the stall (no coordinated omission). A **closed loop**
//! sends the next operation when the last one was answered. It finds the highest throughput, and its
//! latencies cannot be compared with other figures.
//!
//! A stream has its own rate, connections, keys and distribution; several run at once. Its connections are
//! spread over the plan's threads, each of them a runtime of its own with a share ("lane") of the schedule.
//! [`schedule`] decides when, [`keys`] and [`mix`] decide what, [`operation`] and [`connection`] perform it,
//! [`tally`] counts the results, and `worker` combines them. [`prefill()`] stores every key of a dataset
//! once. Start at [`Plan`] and [`run()`].

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::dataset::{Records, Sizes};
use crate::error::LabError;
use crate::histogram::{Latencies, PERCENTILES};
use crate::machine::StealWindow;

pub mod alarm;
pub mod connection;
pub mod headers;
pub mod keys;
pub mod mix;
pub mod operation;
mod prefill;
pub mod replicas;
pub mod schedule;
pub mod script;
pub mod tally;
pub mod template;
pub mod verified;
mod worker;

pub use connection::Target;
pub use headers::Header;
pub use keys::KeyOrder;
pub use mix::{Mix, Ycsb};
pub use operation::{Operation, Pacing, StreamPlan};
pub use prefill::{prefill, prefill_with};
pub use replicas::Replicas;
pub use schedule::Stage;
pub use tally::{Failure, Tally};
pub use template::Template;

use keys::Inserts;

/// From the call to the first due operation: time to start threads and open connections.
pub(crate) const LEAD: Duration = Duration::from_millis(200);

/// The operations beyond a percentile without which it is not judged.
const OPERATIONS_BEYOND_MIN: f64 = 10.0;

/// How long after its end a run still sends operations that were due before the end.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The nodes; connections are dealt to them in turn. Not empty.
    pub targets: Vec<Target>,
    /// Operating system threads of the driver; at least 1.
    pub threads: usize,
    /// From the first due operation to the last. Bounded streams ([`KeyOrder`]) may end earlier.
    pub duration: Duration,
    /// How long a connect, a PUT or a GET may take, and how long a scan may make no progress.
    pub timeout: Duration,
    /// The core to which the driver's threads are tied, if any.
    pub core: Option<usize>,
    /// The streams, all at once. Not empty.
    pub streams: Vec<StreamPlan>,
}

/// Options of a run beyond its plan; the defaults change nothing.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// How long operations are made, at the first rate of the plan, before any is counted.
    pub warm_up: Duration,
    /// Operations that become due within this time after the driver woke for one wait for its next waking.
    /// Zero: it wakes for each. Latency still counts from when they were due.
    pub coalesce: Duration,
    /// Sizes of keys, in place of the plan's.
    pub key_bytes: Option<Sizes>,
    /// Sizes of values, in place of the plan's.
    pub value_bytes: Option<Sizes>,
    /// The actions of the first stream's slots, in place of its operation.
    pub mix: Option<Mix>,
    /// The requests of a service that is not kvorum.
    pub template: Option<Arc<Template>>,
    /// Headers of every request, beside those that the driver writes.
    pub headers: Vec<Header>,
    /// The receiver of every lane's figures, each second.
    pub ticks: Option<Sender<Tick>>,
    /// Becomes true when the run should end early.
    pub stop: Option<watch::Receiver<bool>>,
}

impl RunOptions {
    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| *stop.borrow())
    }

    /// Waits until the run should end early.
    async fn stopped(&self) {
        if let Some(mut stop) = self.stop.clone()
            && stop.wait_for(|is_told| *is_told).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// The keys and values of the run.
    fn records(&self, stream: &StreamPlan) -> Records {
        Records { dataset: stream.dataset, key_bytes: self.key_bytes, value_bytes: self.value_bytes }
    }
}

/// The figures of one lane of one stream in one second.
#[derive(Debug, Clone)]
pub struct Tick {
    /// The stream's place in the plan.
    pub stream: usize,
    /// Which second of the measured part, from 0.
    pub second: u64,
    /// As [`Tally::latency`], of operations answered in this second.
    pub latency: Latencies,
    /// Operations that failed in this second.
    pub failed: u64,
}

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One for each stream of the plan, in its order.
    pub streams: Vec<StreamOutcome>,
    /// Cores of hypervisor steal, averaged over the run.
    pub steal_cores: f64,
    /// How much of its duration was measured, if the run was ended early.
    pub interrupted: Option<Duration>,
}

/// The results of one stream.
#[derive(Debug, Clone)]
pub struct StreamOutcome {
    /// The stream as planned.
    pub plan: StreamPlan,
    /// All counts, over all its connections.
    pub tally: Tally,
    /// The time that rates refer to. Open loop: the planned duration, or more if answers came later. Closed
    /// loop: the time to the last answer.
    pub elapsed: Duration,
}

impl StreamOutcome {
    /// Operations answered with the expected status, per second.
    pub fn rate(&self) -> f64 {
        crate::units::per_second(self.tally.succeeded, self.elapsed)
    }

    /// Operations that were due or begun and did not succeed, for any reason.
    pub fn failed(&self) -> u64 {
        self.tally.unexpected() + self.tally.failed_in_flight() + self.tally.unsent + self.tally.wrong_bodies
    }

    /// Whether an open loop could not keep its rate: then its latencies are those of an overloaded system.
    pub fn is_saturated(&self) -> bool {
        let wanted = self.plan.pacing.rate_per_second();
        wanted.is_some_and(|wanted| self.tally.unsent > 0 || self.rate() < 0.99 * wanted)
    }

    /// Whether every operation of an open loop got an answer or a failure at the plan's rate, expected or
    /// not.
    pub fn was_offered(&self) -> bool {
        let ended = self.tally.succeeded + self.failed();
        let rate = crate::units::per_second(ended, self.elapsed);
        let wanted = self.plan.pacing.rate_per_second();
        wanted.is_none_or(|wanted| self.tally.unsent == 0 && rate >= 0.99 * wanted)
    }

    /// The lowest percentile from which on the driver itself caused more than half of the latencies, and more than a
    /// millisecond: it did not get the CPU when operations were due. `None` if no percentile is like that.
    ///
    /// Percentiles that fewer than ten operations lie beyond are not judged, but the maximum is.
    pub fn driver_late_from(&self) -> Option<f64> {
        let (lag, latency) = (&self.tally.driver_lag, &self.tally.latency);
        let beyond = |percentile: f64| crate::units::float(latency.count()) * (100.0 - percentile) / 100.0;
        let is_late = |&percentile: &f64| {
            let late = lag.percentile(percentile);
            let is_judged = percentile >= 100.0 || beyond(percentile) >= OPERATIONS_BEYOND_MIN;
            is_judged && late > crate::units::nanos(tally::LATE) && late > latency.percentile(percentile) / 2
        };
        PERCENTILES.into_iter().find(is_late)
    }

    /// Whether the driver itself caused much of the latencies, at the 99.9th percentile or below: those are not
    /// the node's.
    pub fn is_driver_late(&self) -> bool {
        self.driver_late_from().is_some_and(|percentile| percentile <= 99.9)
    }
}

/// The moments that all lanes of a run share.
#[derive(Debug, Clone, Copy)]
struct Timetable {
    /// When slot 0 is due.
    start: Instant,
    /// Operations that were due before this are not counted.
    measured: Instant,
    /// No operation is due from here on.
    end: Instant,
    /// No operation of an open loop begins after this.
    send_end: Instant,
    /// All work is abandoned here.
    hard_end: Instant,
}

impl Timetable {
    fn new(plan: &Plan, warm_up: Duration, now: Instant) -> Self {
        let start = now + LEAD;
        let measured = start + warm_up;
        let end = measured + plan.duration;
        let send_end = end + plan.timeout.min(DRAIN_MAX);
        Self { start, measured, end, send_end, hard_end: send_end + plan.timeout + DRAIN_MAX }
    }
}

/// Makes the run that `plan` describes and returns when it has ended.
///
/// Blocks the calling thread for `plan.duration` (or less if every stream is bounded) and at most two
/// time-outs and two seconds more, also when the nodes are down: their failures are counts in the outcome.
///
/// # Errors
/// [`LabError::Usage`] for an impossible plan, [`LabError::Machine`] if threads or timers are not available.
pub fn run(plan: &Plan) -> Result<Outcome, LabError> {
    run_with(plan, &RunOptions::default())
}

/// As [`run()`], with `options`; the warm-up comes on top of its time.
///
/// # Errors
/// The errors of [`run()`].
pub fn run_with(plan: &Plan, options: &RunOptions) -> Result<Outcome, LabError> {
    if plan.targets.is_empty() || plan.streams.is_empty() || plan.threads == 0 {
        return Err(LabError::Usage("a run needs a target, a thread and a stream".into()));
    }
    if plan.streams.iter().any(|stream| stream.connections == 0 || stream.dataset.keys == 0) {
        return Err(LabError::Usage("a stream needs a connection and a key".into()));
    }
    for (stream, mix) in
        plan.streams.iter().zip(std::iter::once(options.mix.as_ref()).chain(std::iter::repeat(None)))
    {
        if let Some(template) = &options.template {
            template.check(stream.operation, mix, stream.replicas)?;
        }
    }
    let steal = StealWindow::begin()?;
    let plan = Arc::new(plan.clone());
    let inserts: Vec<_> =
        plan.streams.iter().map(|stream| Arc::new(Inserts::behind(stream.dataset.keys))).collect();
    let timetable = Timetable::new(&plan, options.warm_up, Instant::now());
    let threads: Vec<JoinHandle<_>> = (0..plan.threads)
        .map(|index| {
            let (plan, options, inserts) = (Arc::clone(&plan), options.clone(), inserts.clone());
            thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(move || worker::run_thread(&plan, &options, &inserts, index, timetable))
                .map_err(LabError::machine("start a load thread"))
        })
        .collect::<Result<_, _>>()?;
    let mut tallies = plan.streams.iter().map(|_| Tally::new()).collect::<Result<Vec<_>, _>>()?;
    for thread in threads {
        let seen = thread.join().map_err(|_| LabError::Subject("a load thread panicked".into()))??;
        for (total, part) in tallies.iter_mut().zip(&seen) {
            total.merge(part)?;
        }
    }
    let ended = Instant::now();
    let interrupted = (options.is_stopped() && ended < timetable.end)
        .then(|| ended.saturating_duration_since(timetable.measured));
    let planned = interrupted.unwrap_or(plan.duration);
    let streams = plan.streams.iter().zip(tallies).map(|(stream, tally)| {
        let answered =
            tally.last_answer.map_or(Duration::ZERO, |last| last.duration_since(timetable.measured));
        let elapsed = if stream.pacing.is_open() { answered.max(planned) } else { answered };
        StreamOutcome { plan: stream.clone(), tally, elapsed }
    });
    Ok(Outcome { streams: streams.collect(), steal_cores: steal.cores()?, interrupted })
}
