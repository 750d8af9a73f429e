//! Workers: what the node does without a client, each with a name, a state, a rate, and a pause that ends by itself.
//!
//! A worker asks [`Worker::turn`] before each piece of work and waits there while it is paused; a piece that was begun is
//! finished, unless it may take long: then [`Worker::until_paused`] cuts it short. What is somebody else's (the engine's
//! compactions, the store's sweeper and reclaimer) is listed from its own figures.

use super::Shared;
use crate::clock::Clock;
use kvorum_core::NodeIndex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause: a worker that is forgotten goes on the day after.
pub const PAUSE_MAX: Duration = Duration::from_hours(24);
/// A pause where nobody says how long.
pub const PAUSE_DEFAULT: Duration = Duration::from_mins(10);
/// How often a paused worker looks whether it may go on.
const PAUSED_LOOK: Duration = Duration::from_millis(100);
/// Over how long a rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// These are the node's workers.
#[derive(Debug)]
pub struct Workers {
    hints: Vec<Worker>,
    repair: Vec<Worker>,
    /// Heals what is damaged.
    pub mend: Worker,
    /// Looks for damage.
    pub scrub: Worker,
    listed: Listed,
    me: NodeIndex,
}

/// This is one worker of the coordinator's.
#[derive(Debug, Default)]
pub struct Worker {
    done: AtomicU64,
    // Guards what is shown; held for a few words.
    life: Mutex<Life>,
}

#[derive(Debug, Default)]
struct Life {
    doing: &'static str,
    paused_until: Option<Duration>,
    begun_at: Option<Duration>,
    window: Window,
}

/// The latest time over which a rate was measured.
#[derive(Debug, Default)]
struct Window {
    from: Duration,
    done: u64,
    rate: f64,
}

/// The rates of workers that are somebody else's.
#[derive(Debug, Default)]
struct Listed {
    // Guards what is shown; held for a few words.
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

impl Listed {
    fn rate(&self, name: &'static str, now: Duration, done: u64) -> f64 {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(name).or_default().rate(now, done)
    }
}

/// This is a worker as an operator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStatus {
    /// Its name, in paths too.
    pub name: String,
    /// What it does.
    pub purpose: String,
    /// `running`, `idle`, `paused` or `waiting`.
    pub state: &'static str,
    /// What it is doing or waiting for, where there is more to say.
    pub detail: String,
    /// How long it stays paused.
    pub paused_for: Option<Duration>,
    /// How long ago it last began.
    pub begun_ago: Option<Duration>,
    /// What it has done since the node started, and in a second.
    pub done: u64,
    /// In a second, over about ten.
    pub rate: f64,
    /// What waits for it.
    pub backlog: u64,
    /// What the counts count.
    pub unit: &'static str,
    /// Whether it can be paused.
    pub can_pause: bool,
}

/// This says why a worker was not paused or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerError {
    /// There is none of this name.
    Unknown,
    /// It goes on whatever anybody says.
    NotPausable,
}

impl Worker {
    /// Waits while the worker is paused, then notes that it begins a piece of work.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing but what is shown.
    pub(super) async fn turn(&self, clock: &dyn Clock, doing: &'static str) {
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
    pub(super) async fn until_paused(&self, clock: &dyn Clock) {
        while self.pause_left(clock.mono()).is_none() {
            tokio::time::sleep(PAUSED_LOOK).await;
        }
    }

    /// Notes that there is nothing to do.
    pub(super) fn rest(&self) {
        self.lock().doing = "";
    }

    /// Notes that `count` more are done.
    pub(super) fn count(&self, count: u64) {
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
    /// What was done in a second: over the time since the window began, which begins anew every [`RATE_SPAN`].
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
    pub(super) fn new(nodes: u16, me: NodeIndex) -> Self {
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

    /// Who delivers hints to the node at `index`.
    pub(super) fn hints(&self, index: NodeIndex) -> &Worker {
        self.hints.get(usize::from(index.0)).unwrap_or(&self.mend)
    }

    /// Who compares with the node at `index`.
    pub(super) fn repair(&self, index: NodeIndex) -> &Worker {
        self.repair.get(usize::from(index.0)).unwrap_or(&self.mend)
    }

    /// The worker of the coordinator's called `name`.
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
    /// Every worker of the node.
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

    /// A worker that is somebody else's, as idle.
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

    /// Pauses the worker `name` for `time`, at most [`PAUSE_MAX`], or lets it go on at once (`None`).
    ///
    /// What was begun is finished first if it is short; a comparison of replicas is cut short between two batches, and made
    /// anew afterwards. The pause ends by itself, and with the node.
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

    /// A paused worker does nothing until it is resumed or the pause is over, and says which it is.
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

    /// Names lead to workers; this node itself has none for itself.
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

    /// A rate is what was done in a second of the latest ten.
    #[test]
    fn rates_are_of_late() {
        let mut window = Window::default();
        let at = Duration::from_secs;
        let rates = [(5, 500), (10, 1000), (14, 1000)].map(|(now, done)| window.rate(at(now), done).round());
        assert_eq!(rates.map(|rate| rate.to_string()), ["100", "100", "0"]);
    }
}
