//! The sweeper: gives back the space of what has expired or been deleted, without anyone asking.
//!
//! It walks the `due` keyspace in order of time, so its cost follows what has become due and not what is stored.
//! It only finds; the committer judges each find again and changes the store.

use super::pause::Pause;
use super::queue::{DueRow, Request};
use super::{Replica, ReplicaError};
use crate::clock::Clock;
use crate::crash::{self, Point};
use crate::storage::{Keyspace, format};
use crate::supervise::Part;
use kvorum_core::UnixMillis;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Rows judged in one group: few enough that writes behind it hardly wait.
const ROWS_MAX: usize = 128;
/// How often the sweeper looks when there was nothing to do.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How long it stands back when the commit queue is full.
const THROTTLED_WAIT: Duration = Duration::from_millis(200);
/// How long it waits for the committer's answer before it asks again.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How far behind the last look the next one begins: a record may become due at once, stamped by a clock that is a
/// little behind. Where clocks were further behind, the full walk at [`WALK_ALL_EVERY`] finds it.
const LOOK_BACK_MILLIS: u64 = 60_000;
/// Looks between two full walks: about an hour apart when idle.
const WALK_ALL_EVERY: u64 = 3600;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const THROTTLED: u8 = 2;

/// This shows what the sweeper does, and stops it.
#[derive(Debug, Default)]
pub struct SweeperState {
    state: AtomicU8,
    purged: AtomicU64,
    /// Its pause.
    pub pause: Pause,
    is_stopped: AtomicBool,
    stop: Notify,
}

impl SweeperState {
    /// `idle`, `busy` or `throttled`.
    pub fn name(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            IDLE => "idle",
            BUSY => "busy",
            _ => "throttled",
        }
    }

    /// Records purged since the node started.
    pub fn purged(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.stop.notify_one();
    }

    /// Sweeps until stopped.
    pub(super) async fn run(&self, replica: &Replica, clock: &dyn Clock) {
        let mut sweep = Sweep { looks: 0, from: UnixMillis(0) };
        while !self.is_stopped.load(Ordering::Relaxed) {
            crash::step(Part::Sweep);
            // By a clock that nobody confirms nothing is destroyed.
            if !replica.timestamps().may_destroy() || self.pause.left(clock.mono()).is_some() {
                self.state.store(IDLE, Ordering::Relaxed);
                let _ = tokio::time::timeout(IDLE_WAIT, self.stop.notified()).await;
                continue;
            }
            self.state.store(BUSY, Ordering::Relaxed);
            let (state, wait) = match sweep.step(replica, clock.wall()).await {
                Ok(Step::More { purged }) => {
                    self.purged.fetch_add(purged as u64, Ordering::Relaxed);
                    (BUSY, Duration::ZERO)
                }
                Ok(Step::Done) => (IDLE, IDLE_WAIT),
                Err(ReplicaError::Stopped) => return,
                Err(ReplicaError::Overloaded) => (THROTTLED, THROTTLED_WAIT),
                Err(error) => {
                    tracing::warn!(%error, "the sweeper found no way on; it tries again");
                    (THROTTLED, IDLE_WAIT)
                }
            };
            self.state.store(state, Ordering::Relaxed);
            if !wait.is_zero() {
                let _ = tokio::time::timeout(wait, self.stop.notified()).await;
            }
        }
    }
}

/// What one step came to.
enum Step {
    /// Rows were found; there may be more.
    More {
        /// Records whose space comes back.
        purged: usize,
    },
    /// Nothing is due.
    Done,
}

/// The walk over what is due.
struct Sweep {
    looks: u64,
    from: UnixMillis,
}

impl Sweep {
    async fn step(&mut self, replica: &Replica, now: UnixMillis) -> Result<Step, ReplicaError> {
        let start = format::encode_due_key(self.from, b"");
        let end = format::encode_due_key(now.saturating_add(1), b"");
        let scan = replica.shared.engine.scan(Keyspace::Due, &start, Bound::Excluded(&end))?;
        let mut rows = Vec::new();
        for pair in scan.take(ROWS_MAX) {
            let (row, version) = pair?;
            let (at, key) = format::decode_due_key(&row)?;
            let version = format::decode_due_version(&version)?;
            // Read here so that the committer finds it in memory. What cannot be read it notices, and goes on behind it.
            let _ = replica.shared.engine.get(Keyspace::Records, &key);
            rows.push(DueRow { at, key, version });
        }
        let Some(last) = rows.last() else {
            self.looks += 1;
            let all = self.looks.is_multiple_of(WALK_ALL_EVERY);
            self.from = if all { UnixMillis(0) } else { UnixMillis(now.0.saturating_sub(LOOK_BACK_MILLIS)) };
            return Ok(Step::Done);
        };
        let reached = last.at;
        crash::point(Point::SweepBefore);
        let (done, answer) = oneshot::channel();
        replica.shared.queue.submit(Request::Purge { rows, done })?;
        let answer = tokio::time::timeout(ANSWER_WAIT, answer).await.map_err(|_| ReplicaError::Overloaded)?;
        let purged = answer.map_err(|_| ReplicaError::Stopped)??;
        crash::point(Point::SweepAfter);
        self.from = self.from.max(reached);
        Ok(Step::More { purged })
    }
}
