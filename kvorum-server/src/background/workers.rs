//! The list of workers: the node's background work, each part with a name, a state, a rate, and a pause that ends by
//! itself.
//!
//! The services of this room are run by [`worker`](super::worker). Workers of other rooms (the engine's compactions, the
//! store's sweeper and reclaimer) are listed from their own figures.

use super::Background;
use super::worker::Control;
use crate::pause::Pause;
use kvorum_core::Slot;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest pause: a worker that was forgotten resumes the next day.
pub const PAUSE_MAX: Duration = Duration::from_hours(24);
/// The length of a pause when the operator gives none.
pub const PAUSE_DEFAULT: Duration = Duration::from_mins(10);
/// The time over which a rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// A worker of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkerId {
    /// Delivers hints to a node.
    Hints(Slot),
    /// Compares with a node, and pulls from it.
    Repair(Slot),
    /// Repairs damage on this node's disk.
    RepairDamage,
    /// Reads the store to find damage.
    Scrub,
    /// The store's sweeper.
    Sweep,
    /// The store's reclaimer.
    Reclaim,
    /// The engine's compactions.
    Compaction,
}

/// The workers of the node.
#[derive(Debug, Default)]
pub struct Workers {
    // Guards the controls of this room's workers, which are made when they are first asked for. Held for a look-up.
    controls: Mutex<BTreeMap<WorkerId, Arc<Control>>>,
    // Guards the windows of all rates. Held to update one of them.
    windows: Mutex<BTreeMap<WorkerId, Window>>,
}

/// The latest window over which a rate was measured.
#[derive(Debug, Default)]
struct Window {
    from: Duration,
    done: u64,
    rate: f64,
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

/// What a worker does now.
struct Look {
    state: &'static str,
    detail: String,
    begun_at: Option<Duration>,
    done: u64,
    backlog: u64,
}

impl WorkerId {
    fn name(self) -> String {
        match self {
            Self::Hints(Slot(index)) => format!("hints-{index}"),
            Self::Repair(Slot(index)) => format!("repair-{index}"),
            Self::RepairDamage => "damage-repair".to_owned(),
            Self::Scrub => "scrub".to_owned(),
            Self::Sweep => "sweep".to_owned(),
            Self::Reclaim => "reclaim".to_owned(),
            Self::Compaction => "compaction".to_owned(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Scrub => "bytes",
            Self::Compaction => "runs",
            _ => "records",
        }
    }

    /// Whether it is a service of this room.
    fn is_service(self) -> bool {
        !matches!(self, Self::Sweep | Self::Reclaim | Self::Compaction)
    }
}

impl Window {
    /// Units done per second since the window began. A new window begins every [`RATE_SPAN`].
    fn rate(&mut self, now: Duration, done: u64) -> f64 {
        let span = now.saturating_sub(self.from);
        if span >= RATE_SPAN / 10 {
            // A store that was set aside has taken its count with it: its successor begins at zero.
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = done.saturating_sub(self.done) as f64 / span.as_secs_f64();
            self.rate = rate;
        }
        if span >= RATE_SPAN {
            (self.from, self.done) = (now, done);
        }
        self.rate
    }
}

impl Workers {
    /// All workers of a node whose other members are `others`, in the order in which they are shown.
    fn ids(others: &[Slot]) -> Vec<WorkerId> {
        use WorkerId::{Compaction, Hints, Reclaim, Repair, RepairDamage, Scrub, Sweep};
        let hints = others.iter().copied().map(Hints);
        let of_others = hints.chain(others.iter().copied().map(Repair));
        of_others.chain([RepairDamage, Scrub, Sweep, Reclaim, Compaction]).collect()
    }

    /// The control of a service; none of other workers.
    pub(crate) fn control(&self, id: WorkerId) -> Option<Arc<Control>> {
        let mut controls = self.controls.lock().unwrap_or_else(PoisonError::into_inner);
        id.is_service().then(|| Arc::clone(controls.entry(id).or_default()))
    }

    /// Adds `count` to the units that a service has done.
    pub(crate) fn count(&self, id: WorkerId, count: u64) {
        if let Some(control) = self.control(id) {
            control.count(count);
        }
    }

    fn rate(&self, id: WorkerId, now: Duration, done: u64) -> f64 {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(id).or_default().rate(now, done)
    }
}

impl Background {
    /// All workers of the node.
    pub fn list_workers(&self) -> Vec<WorkerStatus> {
        let now = self.clock.mono();
        let status = |id: &WorkerId| {
            let pause = self.pause_of(*id, |pause| pause.left(now));
            let paused_for = pause.flatten();
            let Look { mut state, mut detail, begun_at, done, backlog } = self.look_at(*id);
            if paused_for.is_some() {
                state = "paused";
                if !id.is_service() {
                    detail.clear();
                }
            }
            WorkerStatus {
                name: id.name(),
                purpose: self.purpose_of(*id),
                state,
                detail,
                paused_for,
                begun_ago: begun_at.map(|at| now.saturating_sub(at)),
                done,
                rate: self.workers.rate(*id, now, done),
                backlog,
                unit: id.unit(),
                can_pause: pause.is_some(),
            }
        };
        self.worker_ids().iter().map(status).collect()
    }

    fn purpose_of(&self, id: WorkerId) -> String {
        match id {
            WorkerId::Hints(index) => format!("delivers hints to {}", self.cluster.url_of(index)),
            WorkerId::Repair(index) => {
                format!("keeps this node in sync with {}, and refills it", self.cluster.url_of(index))
            }
            WorkerId::RepairDamage => "repairs damaged records and stores".to_owned(),
            WorkerId::Scrub => "scans the whole store for corruption".to_owned(),
            WorkerId::Sweep => "removes expired and deleted records".to_owned(),
            WorkerId::Reclaim => "reclaims the disk space of removed records".to_owned(),
            WorkerId::Compaction => "the engine's flushes and compactions".to_owned(),
        }
    }

    fn worker_ids(&self) -> Vec<WorkerId> {
        Workers::ids(&self.cluster.others().collect::<Vec<_>>())
    }

    /// Does something with the pause of a worker; none if it cannot be paused.
    fn pause_of<T>(&self, id: WorkerId, with: impl FnOnce(&Pause) -> T) -> Option<T> {
        match id {
            WorkerId::Sweep => Some(with(&self.replica.sweeper().pause)),
            WorkerId::Reclaim => Some(with(&self.replica.reclaimer().pause)),
            id => self.workers.control(id).map(|control| with(&control.pause)),
        }
    }

    fn look_at(&self, id: WorkerId) -> Look {
        let idle = |done| Look { state: "idle", detail: String::new(), begun_at: None, done, backlog: 0 };
        match id {
            WorkerId::Sweep => {
                let sweeper = self.replica.sweeper();
                let look = idle(sweeper.purged());
                match sweeper.name() {
                    "busy" => Look { state: "running", ..look },
                    "throttled" => {
                        Look { state: "waiting", detail: "waiting for the commit queue".to_owned(), ..look }
                    }
                    _ => look,
                }
            }
            WorkerId::Reclaim => {
                let reclaimer = self.replica.reclaimer();
                let look = Look { backlog: reclaimer.waiting(), ..idle(reclaimer.rows()) };
                match reclaimer.name() {
                    "busy" => {
                        let detail = format!("{} bytes reclaimed so far", reclaimer.bytes());
                        Look { state: "running", detail, ..look }
                    }
                    "waiting" => {
                        let detail = "waiting for space to rewrite tables".to_owned();
                        Look { state: "waiting", detail, ..look }
                    }
                    _ => look,
                }
            }
            WorkerId::Compaction => {
                let engine = self.replica.engine_stats();
                let is_running = engine.compactions_active + engine.flushes_outstanding > 0;
                let state = if is_running { "running" } else { "idle" };
                Look { state, backlog: engine.flushes_outstanding, ..idle(engine.compactions_completed) }
            }
            WorkerId::Hints(_) | WorkerId::Repair(_) | WorkerId::RepairDamage | WorkerId::Scrub => {
                let Some(control) = self.workers.control(id) else { return idle(0) };
                let shown = control.shown();
                let state = if shown.doing.is_empty() { "idle" } else { "running" };
                Look {
                    state,
                    detail: shown.doing.to_owned(),
                    begun_at: shown.begun_at,
                    done: control.done(),
                    backlog: self.backlog_of(id),
                }
            }
        }
    }

    fn backlog_of(&self, id: WorkerId) -> u64 {
        match id {
            WorkerId::Hints(index) => self.hints.waiting_for(self.cluster.id_of(index)).count,
            WorkerId::Repair(index) => self.anti_entropy.progress.differing_from(index),
            WorkerId::RepairDamage => self.replica.damage().row_count() as u64,
            _ => 0,
        }
    }

    /// Pauses the worker `name` for `time`, at most [`PAUSE_MAX`], or resumes it at once (`None`).
    ///
    /// A short piece of work is finished first. A comparison of replicas is cut short between two batches, and starts
    /// again after the pause. The pause ends by itself, and with the node.
    ///
    /// # Errors
    /// No worker has this name, or it cannot be paused.
    pub fn pause_worker(&self, name: &str, time: Option<Duration>) -> Result<(), WorkerError> {
        let until = time.map(|time| self.clock.mono() + time.min(PAUSE_MAX));
        let id = self.worker_ids().into_iter().find(|id| id.name() == name).ok_or(WorkerError::Unknown)?;
        self.pause_of(id, |pause| pause.set(until)).ok_or(WorkerError::NotPausable)?;
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

    /// Each worker has a name of its own; this node has none for itself. Those of this room have a control.
    #[test]
    fn names_are_distinct() {
        let (workers, ids) = (Workers::default(), Workers::ids(&[Slot(0), Slot(2)]));
        let names: Vec<String> = ids.iter().map(|id| id.name()).collect();
        let expect = [
            "hints-0",
            "hints-2",
            "repair-0",
            "repair-2",
            "damage-repair",
            "scrub",
            "sweep",
            "reclaim",
            "compaction",
        ];
        assert_eq!(names, expect);
        let with_control = ids.iter().filter(|id| workers.control(**id).is_some()).count();
        assert_eq!(with_control, 6);
    }

    /// A rate is the units done per second over the latest ten seconds.
    #[test]
    fn rates_are_of_late() {
        let mut window = Window::default();
        let at = Duration::from_secs;
        let rates = [(5, 500), (10, 1000), (14, 1000)].map(|(now, done)| window.rate(at(now), done).round());
        assert_eq!(rates.map(|rate| rate.to_string()), ["100", "100", "0"]);
    }

    /// A store that was set aside takes its counts with it: the rate of its successor is no panic. (It was, in a build with
    /// checks; elsewhere it was a huge number.)
    #[test]
    fn counts_may_begin_again() {
        let mut window = Window::default();
        let at = Duration::from_secs;
        let rates = [(10, 1000), (15, 5), (20, 10), (30, 1010)].map(|(now, done)| window.rate(at(now), done));
        assert_eq!(rates.map(|rate| rate.round().to_string()), ["100", "0", "0", "100"]);
    }
}
