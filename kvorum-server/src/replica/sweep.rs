//! The sweeper: frees the space of expired and deleted records, without an operator's order.
//!
//! It walks the `due` keyspace in order of time, so its cost follows the number of due records and not the size of the
//! store. The sweeper only finds due rows; the committer judges each again and changes the store.

use super::queue::{DueRow, Request};
use super::{Replica, ReplicaError};
use crate::clock::Clock;
use crate::crash::{self, Point};
use crate::pause::Pause;
use crate::storage::{Keyspace, format};
use crate::supervise::Part;
use kvorum_core::UnixMillis;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Rows judged in one group: few enough that writes queued after it hardly wait.
const ROWS_MAX: usize = 128;
/// How often the sweeper checks while nothing is due.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How long the sweeper waits when the commit queue is full.
const THROTTLED_WAIT: Duration = Duration::from_millis(200);
/// How long the sweeper waits for the committer's answer before it asks again.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How long before the last check the next walk begins: a record stamped by a slow clock may be due as soon as it is
/// stored. If a clock was slower than this, the full walk every [`WALK_ALL_EVERY`] checks finds the record.
const LOOK_BACK_MILLIS: u64 = 60_000;
/// Checks between two full walks: about an hour apart when idle.
const WALK_ALL_EVERY: u64 = 3600;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const THROTTLED: u8 = 2;

/// The state of the sweeper, with its pause and its stop.
#[derive(Debug, Default)]
pub struct SweeperState {
    state: AtomicU8,
    purged: AtomicU64,
    /// The sweeper's pause.
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
            // Nothing is destroyed by a clock that no majority confirms.
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
                    tracing::warn!(%error, "the sweep of expired and deleted records failed: this node tries again");
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

/// The result of one step.
enum Step {
    /// Rows were found; there may be more.
    More {
        /// Records whose space comes back.
        purged: usize,
    },
    /// Nothing is due.
    Done,
}

/// The walk over the due rows.
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
            // Read the record here so that the committer finds it in memory. The committer handles a record that cannot
            // be read.
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
