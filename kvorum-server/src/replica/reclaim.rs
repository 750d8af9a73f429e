//! The reclaimer: has the engine give back the disk space of removed records, without an operator's order.
//!
//! The engine keeps removed rows on disk until it rewrites their tables, which it does as more is written. Once the
//! removed records are a quarter of the remaining ones, and no more are being removed, the reclaimer starts a pass
//! ([`Engine::reclaim`]). It runs on its own thread and rests after each piece of work for as long as that took.
//!
//! The simulation does not run the reclaimer: in its engine removed rows take no space.

use super::StoreState;
use super::digest::Digests;
use super::health::StoreHealth;
use crate::clock::Clock;
use crate::crash;
use crate::metrics::StoreMetrics;
use crate::pause::Pause;
use crate::sched::{self, Turns};
use crate::storage::{Engine, EngineError};
use crate::supervise::Part;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A pass is due once one record was removed for so many remaining.
const DUE_ONE_IN: u64 = 4;
/// A backlog of so many removed records is worth a pass at once; a smaller one waits for [`FEW_WAIT`], so that a small
/// store is not rewritten all the time.
const MANY: u64 = 1_000;
const FEW_WAIT: Duration = Duration::from_mins(5);
/// How long removals must have stopped before a pass: a purge runs in batches, and waiting for its end pays.
const REST: Duration = Duration::from_secs(5);
/// The longest wait for removals to stop.
const REST_WAIT_MAX: Duration = Duration::from_mins(1);
/// The minimum time between two passes. It doubles after each pass that gave nothing back, up to a bound.
const AGAIN_WAIT: Duration = Duration::from_mins(1);
const AGAIN_WAIT_MAX: Duration = Duration::from_hours(1);
/// How often the thread checks whether a pass is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it checks the pause in the middle of a pass.
const PAUSED_LOOK: Duration = Duration::from_millis(200);
/// The longest rest after one piece of work.
const STEP_REST_MAX: Duration = Duration::from_secs(10);

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const WAITING: u8 = 2;

/// The state of the reclaimer, with its pause and its stop.
#[derive(Debug, Default)]
pub struct ReclaimState {
    state: AtomicU8,
    /// Removed records that still take space, as far as is known.
    waiting: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    passes: AtomicU64,
    /// The reclaimer's pause.
    pub pause: Pause,
    is_stopped: AtomicBool,
    // Guards nothing: it belongs to `stop`, which ends the thread's wait.
    sleep: Mutex<()>,
    stop: Condvar,
}

impl ReclaimState {
    /// `idle`, `busy`, or `waiting` for space on the disk or for the end of a pause.
    pub fn name(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            IDLE => "idle",
            BUSY => "busy",
            _ => "waiting",
        }
    }

    /// Removed records that still take space, as far as is known.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Removed records whose space came back in passes since the node started.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes that passes saved in the store's tables.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Passes since the node started.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.stop.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Waits for `time`, or until the reclaimer is stopped.
    fn wait(&self, time: Duration) {
        let guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_stopped() {
            let _ = self.stop.wait_timeout(guard, time);
        }
    }
}

/// The work of the reclaimer's thread.
pub(super) struct Reclaimer {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) health: Arc<StoreHealth>,
    pub(super) digests: Option<Arc<Digests>>,
    pub(super) metrics: Arc<StoreMetrics>,
    pub(super) state: Arc<ReclaimState>,
}

impl Reclaimer {
    /// Reclaims until it is stopped.
    pub(super) fn run(&self) {
        sched::take_own(Turns::Polite);
        let mut backlog = Backlog { before: self.engine.stats().removed_rows, ..Backlog::default() };
        while !self.state.is_stopped() {
            crash::step(Part::Reclaim);
            let (now, removed) = (self.clock.mono(), self.metrics.removed.load(Ordering::Relaxed));
            backlog.look(removed, now);
            self.state.waiting.store(backlog.rows(), Ordering::Relaxed);
            let is_paused = self.state.pause.left(now).is_some();
            if !is_paused && self.health.state() == StoreState::Ok && self.is_due(&mut backlog, now) {
                self.pass(&mut backlog, removed);
            } else {
                self.state.wait(LOOK_EVERY);
            }
        }
    }

    fn is_due(&self, backlog: &mut Backlog, now: Duration) -> bool {
        let removed = backlog.rows();
        // The remaining records, estimated without counting: to the engine a removed record is two rows or more.
        let left = || match &self.digests {
            Some(digests) => digests.keys(),
            None => self.engine.stats().record_rows.saturating_sub(2 * removed),
        };
        backlog.is_due(left, now)
    }

    fn pass(&self, backlog: &mut Backlog, removed: u64) {
        self.state.state.store(BUSY, Ordering::Relaxed);
        let (before, began) = (self.table_bytes(), self.clock.mono());
        let mut step_began = began;
        let reclaimed = self.engine.reclaim(&mut || {
            let now = self.clock.mono();
            self.state.wait((now.saturating_sub(step_began)).min(STEP_REST_MAX));
            while !self.state.is_stopped() && self.state.pause.left(self.clock.mono()).is_some() {
                self.state.state.store(WAITING, Ordering::Relaxed);
                self.state.wait(PAUSED_LOOK);
            }
            self.state.state.store(BUSY, Ordering::Relaxed);
            step_began = self.clock.mono();
            !self.state.is_stopped()
        });
        let now = self.clock.mono();
        let freed = before.saturating_sub(self.table_bytes());
        self.state.bytes.fetch_add(freed, Ordering::Relaxed);
        self.state.passes.fetch_add(1, Ordering::Relaxed);
        let waited_for = backlog.rows();
        match &reclaimed {
            Ok(left) => {
                backlog.passed(removed, *left, now);
                self.state.waiting.store(backlog.rows(), Ordering::Relaxed);
                let rows = waited_for.saturating_sub(*left);
                self.state.rows.fetch_add(rows, Ordering::Relaxed);
                self.state.state.store(IDLE, Ordering::Relaxed);
                let took_ms = now.saturating_sub(began).as_millis();
                if rows > 0 {
                    tracing::info!(
                        freed_bytes = freed,
                        rows,
                        left,
                        took_ms,
                        "the disk space of removed records was reclaimed"
                    );
                } else {
                    tracing::debug!(
                        left,
                        took_ms,
                        "the disk space of removed records was not reclaimed yet: this node tries again"
                    );
                }
            }
            Err(error) => {
                backlog.failed(now);
                self.state.state.store(WAITING, Ordering::Relaxed);
                let again_s = backlog.again_wait.as_secs();
                if matches!(error, EngineError::DiskFull { .. }) {
                    tracing::warn!(
                        again_s,
                        "the disk has too little space to rewrite tables: the space of removed records is reclaimed \
                         later"
                    );
                } else {
                    tracing::warn!(%error, again_s, "the disk space of removed records was not reclaimed yet: this \
                                                     node tries again");
                }
            }
        }
    }

    /// Bytes of tables, without journals, which come and go during a pass.
    fn table_bytes(&self) -> u64 {
        let stats = self.engine.stats();
        stats.disk_bytes.saturating_sub(stats.journal_bytes)
    }
}

/// The removed records that may still take space, and when they are worth a pass.
#[derive(Debug, Default)]
struct Backlog {
    /// Left by the previous pass, or by an earlier run.
    before: u64,
    /// The part of the count of removed records that passes have handled.
    done: u64,
    removed: u64,
    changed_at: Duration,
    due_since: Option<Duration>,
    passed_at: Option<Duration>,
    again_wait: Duration,
}

impl Backlog {
    fn look(&mut self, removed: u64, now: Duration) {
        if removed != self.removed {
            (self.removed, self.changed_at) = (removed, now);
        }
    }

    fn rows(&self) -> u64 {
        self.before + self.removed.saturating_sub(self.done)
    }

    /// Whether a pass is due, where `left` records are left.
    fn is_due(&mut self, left: impl FnOnce() -> u64, now: Duration) -> bool {
        let rows = self.rows();
        let since = |at: Duration| now.saturating_sub(at);
        let wait = if rows >= MANY { self.again_wait } else { self.again_wait.max(FEW_WAIT) };
        if rows == 0
            || since(self.passed_at.unwrap_or_default()) < wait
            || rows.saturating_mul(DUE_ONE_IN) < left()
        {
            self.due_since = None;
            return false;
        }
        let due_since = *self.due_since.get_or_insert(now);
        since(self.changed_at) >= REST || since(due_since) >= REST_WAIT_MAX
    }

    /// Notes a pass that began at the count `removed` and left `left` removed records.
    fn passed(&mut self, removed: u64, left: u64, now: Duration) {
        let is_of_use = left < self.rows();
        (self.before, self.done) = (left, removed);
        self.wait_again(is_of_use, now);
    }

    fn failed(&mut self, now: Duration) {
        self.wait_again(false, now);
    }

    fn wait_again(&mut self, is_of_use: bool, now: Duration) {
        (self.passed_at, self.due_since) = (Some(now), None);
        self.again_wait =
            if is_of_use { AGAIN_WAIT } else { (self.again_wait * 2).clamp(AGAIN_WAIT, AGAIN_WAIT_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A pass is due once a quarter of the remaining records was removed and removals have stopped, or after a minute.
    #[test]
    fn passes_wait_for_the_end_of_a_purge() {
        let mut backlog = Backlog::default();
        backlog.look(MANY, at(1000));
        assert!(!backlog.is_due(|| MANY * 4 + 1, at(1010)), "too few");
        assert!(!backlog.is_due(|| MANY * 4, at(1004)), "just removed");
        assert!(backlog.is_due(|| MANY * 4, at(1005)));
        for second in 1006..1070 {
            backlog.look(MANY + second, at(second));
            assert_eq!(backlog.is_due(|| 0, at(second)), second >= 1064, "{second}: due since 1004");
        }
    }

    /// Few removed records wait longer, also after the start; without any, a pass is never due.
    #[test]
    fn few_wait() {
        let mut backlog = Backlog::default();
        assert!(!backlog.is_due(|| 0, at(100_000)));
        backlog.look(1, at(10));
        assert!(!backlog.is_due(|| 0, at(299)));
        assert!(backlog.is_due(|| 0, at(300)));
    }

    /// Records that a pass left wait together with those removed since; the wait grows with each pass that freed
    /// nothing.
    #[test]
    fn what_is_left_waits() {
        let mut backlog = Backlog { before: MANY, ..Backlog::default() };
        backlog.look(MANY, at(1000));
        assert_eq!(backlog.rows(), 2 * MANY);
        backlog.look(MANY + 1, at(1001));
        backlog.passed(MANY, MANY - 1, at(1010));
        assert_eq!(backlog.rows(), MANY, "one was removed meanwhile");
        assert!(!backlog.is_due(|| 0, at(1069)));
        assert!(backlog.is_due(|| 0, at(1070)));
        backlog.failed(at(2000));
        assert!(!backlog.is_due(|| 0, at(2119)));
        assert!(backlog.is_due(|| 0, at(2120)));
        backlog.passed(MANY + 1, 0, at(3000));
        assert_eq!((backlog.rows(), backlog.again_wait), (0, AGAIN_WAIT));
    }
}
