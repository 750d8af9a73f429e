//! Workers: the node's background work, each part with a name, a state, a rate, and a pause that ends by itself.
//!
//! A worker calls [`Worker::turn`] before each piece of work, which waits while the worker is paused. A piece under way
//! is finished, unless it may take long: then [`Worker::until_paused`] cuts it short. Workers of other modules (the
//! engine's compactions, the store's sweeper and reclaimer) are listed from their own figures.

use crate::clock::Clock;
use crate::coordinator::Shared;
use kvorum_core::NodeIndex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause: a worker that was forgotten resumes the next day.
pub const PAUSE_MAX: Duration = Duration::from_hours(24);
/// The length of a pause when the operator gives none.
pub const PAUSE_DEFAULT: Duration = Duration::from_mins(10);
/// How often a paused worker checks whether it may resume.
const PAUSED_LOOK: Duration = Duration::from_millis(100);
/// The time over which a rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// The workers of the node.
#[derive(Debug)]
pub struct Workers {
    hints: Vec<Worker>,
    repair: Vec<Worker>,
    /// Repairs damage on this node's disk.
    pub mend: Worker,
    /// Reads the store to find damage.
    pub scrub: Worker,
    listed: Listed,
    me: NodeIndex,
}

/// A worker of the coordinator.
#[derive(Debug, Default)]
pub struct Worker {
    done: AtomicU64,
    // Guards the state that is shown. Held to read or write a few fields.
    life: Mutex<Life>,
}

#[derive(Debug, Default)]
struct Life {
    doing: &'static str,
    paused_until: Option<Duration>,
    begun_at: Option<Duration>,
    window: Window,
}

/// The latest window over which a rate was measured.
#[derive(Debug, Default)]
struct Window {
    from: Duration,
    done: u64,
    rate: f64,
}

/// The rates of workers of other modules.
#[derive(Debug, Default)]
struct Listed {
    // Guards the windows. Held to update one of them.
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

impl Listed {
    fn rate(&self, name: &'static str, now: Duration, done: u64) -> f64 {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(name).or_default().rate(now, done)
    }
}

/// A worker as an operator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStatus {
    /// The worker's name, also in URL paths.
    pub name: String,
    /// The worker's purpose.
    pub purpose: String,
    /// `running`, `idle`, `paused` or `waiting`.
    pub state: &'static str,
    /// The work under way, or the reason for waiting; may be empty.
    pub detail: String,
    /// How long the worker stays paused.
    pub paused_for: Option<Duration>,
    /// How long ago it last began a piece of work.
    pub begun_ago: Option<Duration>,
    /// The number of units done since the node started.
    pub done: u64,
    /// Units per second, over about ten seconds.
    pub rate: f64,
    /// The number of units that wait for it.
    pub backlog: u64,
    /// The unit of `done`, `rate` and `backlog`.
    pub unit: &'static str,
    /// Whether the worker can be paused.
    pub can_pause: bool,
}

/// Why a worker was not paused or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerError {
    /// There is no worker with this name.
    Unknown,
    /// The worker cannot be paused.
    NotPausable,
}

impl Worker {
    /// Waits while the worker is paused, then notes that it begins a piece of work.
    ///
    /// # Cancel safety
    /// Dropping the future changes only the state that is shown.
    pub(crate) async fn turn(&self, clock: &dyn Clock, doing: &'static str) {
        while self.pause_left(clock.mono()).is_some() {
            tokio::time::sleep(PAUSED_LOOK).await;
        }
        let mut life = self.lock();
        (life.doing, life.begun_at) = (doing, Some(clock.mono()));
    }

    /// Waits until the worker is paused.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn until_paused(&self, clock: &dyn Clock) {
        while self.pause_left(clock.mono()).is_none() {
            tokio::time::sleep(PAUSED_LOOK).await;
        }
    }

    /// Notes that the worker has nothing to do.
    pub(crate) fn rest(&self) {
        self.lock().doing = "";
    }

    /// Adds `count` to the units done.
    pub(crate) fn count(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    fn set_pause(&self, until: Option<Duration>) {
        self.lock().paused_until = until;
    }

    fn pause_left(&self, now: Duration) -> Option<Duration> {
        self.lock().paused_until.and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero())
    }

    fn show(
        &self,
        now: Duration,
        name: String,
        purpose: String,
        unit: &'static str,
        backlog: u64,
    ) -> WorkerStatus {
        let paused_for = self.pause_left(now);
        let done = self.done.load(Ordering::Relaxed);
        let mut life = self.lock();
        let state = match (paused_for, life.doing) {
            (Some(_), _) => "paused",
            (None, "") => "idle",
            (None, doing) if doing.starts_with("waiting") => "waiting",
            (None, _) => "running",
        };
        WorkerStatus {
            name,
            purpose,
            state,
            detail: life.doing.to_owned(),
            paused_for,
            begun_ago: life.begun_at.map(|at| now.saturating_sub(at)),
            done,
            rate: life.window.rate(now, done),
            backlog,
            unit,
            can_pause: true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    /// Units done per second since the window began. A new window begins every [`RATE_SPAN`].
    fn rate(&mut self, now: Duration, done: u64) -> f64 {
        let span = now.saturating_sub(self.from);
        if span >= RATE_SPAN / 10 {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = (done - self.done) as f64 / span.as_secs_f64();
            self.rate = rate;
        }
        if span >= RATE_SPAN {
            (self.from, self.done) = (now, done);
        }
        self.rate
    }
}

impl Workers {
    pub(crate) fn new(nodes: u16, me: NodeIndex) -> Self {
        let each = || (0..nodes).map(|_| Worker::default()).collect();
        Self {
            hints: each(),
            repair: each(),
            mend: Worker::default(),
            scrub: Worker::default(),
            listed: Listed::default(),
            me,
        }
    }

    /// The worker that delivers hints to the node at `index`.
    pub(crate) fn hints(&self, index: NodeIndex) -> &Worker {
        self.hints.get(usize::from(index.0)).unwrap_or(&self.mend)
    }

    /// The worker that compares with the node at `index`.
    pub(crate) fn repair(&self, index: NodeIndex) -> &Worker {
        self.repair.get(usize::from(index.0)).unwrap_or(&self.mend)
    }

    /// The coordinator's worker called `name`.
    fn find(&self, name: &str) -> Option<&Worker> {
        let of = |prefix: &str, workers| -> Option<&Worker> {
            let workers: &[Worker] = workers;
            let index: u16 = name.strip_prefix(prefix)?.parse().ok()?;
            workers.get(usize::from(index)).filter(|_| index != self.me.0)
        };
        match name {
            "mend" => Some(&self.mend),
            "scrub" => Some(&self.scrub),
            _ => of("hints-", &self.hints).or_else(|| of("repair-", &self.repair)),
        }
    }
}

impl Shared {
    /// All workers of the node.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        let now = self.clock.mono();
        let mut all = Vec::new();
        for index in self.cluster.others() {
            let (number, url) = (index.0, self.cluster.url_of(index));
            let waiting = self.hints.waiting_for(self.cluster.id_of(index)).count;
            let purpose = format!("delivers hints to {url}");
            let worker = self.workers.hints(index);
            all.push(worker.show(now, format!("hints-{number}"), purpose, "records", waiting));
        }
        for index in self.cluster.others() {
            let (number, url) = (index.0, self.cluster.url_of(index));
            let differing = self.repair_backlog(index);
            let purpose = format!("keeps this node and {url} alike, and refills this one");
            let worker = self.workers.repair(index);
            all.push(worker.show(now, format!("repair-{number}"), purpose, "records", differing));
        }
        let damaged = self.replica.damage().row_count() as u64;
        let purpose = "heals what is damaged on the disk".to_owned();
        all.push(self.workers.mend.show(now, "mend".to_owned(), purpose, "records", damaged));
        let purpose = "reads everything stored to find damage".to_owned();
        all.push(self.workers.scrub.show(now, "scrub".to_owned(), purpose, "bytes", 0));
        let sweeper = self.replica.sweeper();
        let purpose = "removes what has expired or been deleted";
        let mut sweep = self.listed(now, "sweep", purpose, "records", sweeper.purged());
        sweep.paused_for = sweeper.pause.left(now);
        (sweep.state, sweep.detail) = match (sweep.paused_for, sweeper.name()) {
            (Some(_), _) => ("paused", String::new()),
            (None, "busy") => ("running", String::new()),
            (None, "throttled") => ("waiting", "waiting for the commit queue".to_owned()),
            (None, _) => ("idle", String::new()),
        };
        let reclaimer = self.replica.reclaimer();
        let purpose = "gives back the space of removed records";
        let mut reclaim = self.listed(now, "reclaim", purpose, "records", reclaimer.rows());
        reclaim.paused_for = reclaimer.pause.left(now);
        reclaim.backlog = reclaimer.waiting();
        (reclaim.state, reclaim.detail) = match (reclaim.paused_for, reclaimer.name()) {
            (Some(_), _) => ("paused", String::new()),
            (None, "busy") => ("running", format!("{} bytes given back so far", reclaimer.bytes())),
            (None, "waiting") => ("waiting", "waiting for space to rewrite tables".to_owned()),
            (None, _) => ("idle", String::new()),
        };
        let engine = self.replica.engine_stats();
        let purpose = "the engine's flushes and compactions";
        let mut compaction = self.listed(now, "compaction", purpose, "runs", engine.compactions_completed);
        compaction.can_pause = false;
        compaction.backlog = engine.flushes_outstanding;
        if engine.compactions_active + engine.flushes_outstanding > 0 {
            compaction.state = "running";
        }
        all.extend([sweep, reclaim, compaction]);
        all
    }

    /// The status of another module's worker, as idle.
    fn listed(
        &self,
        now: Duration,
        name: &'static str,
        purpose: &str,
        unit: &'static str,
        done: u64,
    ) -> WorkerStatus {
        WorkerStatus {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            state: "idle",
            detail: String::new(),
            paused_for: None,
            begun_ago: None,
            done,
            rate: self.workers.listed.rate(name, now, done),
            backlog: 0,
            unit,
            can_pause: true,
        }
    }

    /// Pauses the worker `name` for `time`, at most [`PAUSE_MAX`], or resumes it at once (`None`).
    ///
    /// A short piece of work is finished first. A comparison of replicas is cut short between two batches, and starts
    /// again after the pause. The pause ends by itself, and with the node.
    pub fn pause_worker(&self, name: &str, time: Option<Duration>) -> Result<(), WorkerError> {
        let until = time.map(|time| self.clock.mono() + time.min(PAUSE_MAX));
        match name {
            "compaction" => return Err(WorkerError::NotPausable),
            "sweep" => self.replica.sweeper().pause.set(until),
            "reclaim" => self.replica.reclaimer().pause.set(until),
            _ => self.workers.find(name).ok_or(WorkerError::Unknown)?.set_pause(until),
        }
        tracing::info!(
            worker = name,
            seconds = time.map(|time| time.as_secs()),
            "a worker was paused or resumed"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn show(worker: &Worker, now: Duration) -> WorkerStatus {
        worker.show(now, "w".to_owned(), String::new(), "records", 0)
    }

    /// A paused worker does nothing until it is resumed or the pause is over, and its status shows which state it is
    /// in.
    #[tokio::test(start_paused = true)]
    async fn pauses_end() {
        let (clock, worker) = (ManualClock::at(0), Worker::default());
        worker.turn(&*clock, "comparing").await;
        assert_eq!(
            (show(&worker, clock.mono()).state, &*show(&worker, clock.mono()).detail),
            ("running", "comparing")
        );
        worker.rest();
        assert_eq!(show(&worker, clock.mono()).state, "idle");
        worker.set_pause(Some(clock.mono() + Duration::from_mins(1)));
        let status = show(&worker, clock.mono());
        assert_eq!((status.state, status.paused_for), ("paused", Some(Duration::from_mins(1))));
        let turn = worker.turn(&*clock, "comparing");
        tokio::pin!(turn);
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut turn).await.is_err());
        clock.pass(60_000);
        tokio::time::timeout(Duration::from_secs(1), turn).await.unwrap();
        let paused = worker.until_paused(&*clock);
        tokio::pin!(paused);
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut paused).await.is_err());
        worker.set_pause(Some(clock.mono() + PAUSE_MAX));
        tokio::time::timeout(Duration::from_secs(1), paused).await.unwrap();
        worker.set_pause(None);
        tokio::time::timeout(Duration::from_secs(1), worker.turn(&*clock, "")).await.unwrap();
    }

    /// Workers are found by name; this node has none for itself.
    #[test]
    fn names_are_found() {
        let workers = Workers::new(3, NodeIndex(1));
        for (name, is_there) in [
            ("mend", true),
            ("scrub", true),
            ("hints-0", true),
            ("repair-2", true),
            ("repair-1", false),
            ("repair-3", false),
            ("hints-", false),
            ("", false),
        ] {
            assert_eq!(workers.find(name).is_some(), is_there, "{name}");
        }
    }

    /// A rate is the units done per second over the latest ten seconds.
    #[test]
    fn rates_are_of_late() {
        let mut window = Window::default();
        let at = Duration::from_secs;
        let rates = [(5, 500), (10, 1000), (14, 1000)].map(|(now, done)| window.rate(at(now), done).round());
        assert_eq!(rates.map(|rate| rate.to_string()), ["100", "100", "0"]);
    }
}
