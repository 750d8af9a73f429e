//! The store's health: one atomic byte that every write reads, and the reason behind it for people.

use super::ReplicaError;
use super::queue::Source;
use crate::log_limit::LogLimit;
use crate::storage::Room;
use crate::storage::shortage::Shortage;
use kvorum_core::{Record, Value};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The state of the store: whether it takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreState {
    /// It takes writes.
    Ok,
    /// The disk is full or nearly so. Values are refused until there is space; deletions are accepted as long as the
    /// reserve lasts; reads go on.
    DiskFull,
    /// The machine ran out of another resource. Writes are refused until it is available again; the node retries by
    /// itself.
    Short(Shortage),
    /// A write or sync failed: no more writes until the node is restarted; reads go on.
    Failed {
        /// The cause.
        reason: String,
    },
}

impl StoreState {
    /// The names of all states.
    pub const NAMES: [&'static str; 7] = [
        "ok",
        "disk-full",
        Shortage::Descriptors.name(),
        Shortage::Memory.name(),
        Shortage::Threads.name(),
        Shortage::Unknown.name(),
        "failed",
    ];

    /// The state's name on `/v0/status` and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::DiskFull => Shortage::Disk.name(),
            Self::Short(shortage) => shortage.name(),
            Self::Failed { .. } => "failed",
        }
    }
}

const OK: u8 = 0;
const DISK_LOW: u8 = 1;
const DISK_LEAST: u8 = 2;
const DISK_FULL: u8 = 3;
const FAILED: u8 = 4;
const NO_DESCRIPTORS: u8 = 5;
const NO_MEMORY: u8 = 6;
const NO_THREADS: u8 = 7;
const REOPENING: u8 = 8;

/// Log lines per period: a disk near its limit, or a shortage that comes and goes, changes the state again and again.
const NEWS_MAX: u32 = 6;
const NEWS_PERIOD: Duration = Duration::from_mins(1);

/// The shortage that `word` stands for, except a full disk.
fn shortage_of(word: u8) -> Option<Shortage> {
    match word {
        NO_DESCRIPTORS => Some(Shortage::Descriptors),
        NO_MEMORY => Some(Shortage::Memory),
        NO_THREADS => Some(Shortage::Threads),
        REOPENING => Some(Shortage::Unknown),
        _ => None,
    }
}

/// The health of the store. Only the commit thread changes it; every thread reads it.
#[derive(Debug)]
pub struct StoreHealth {
    word: AtomicU8,
    // Guards the reason of a failure. Written once, read for people.
    reason: Mutex<String>,
    news: LogLimit,
}

impl Default for StoreHealth {
    fn default() -> Self {
        let news = LogLimit::new(NEWS_MAX, NEWS_PERIOD);
        Self { word: AtomicU8::new(OK), reason: Mutex::default(), news }
    }
}

impl StoreHealth {
    /// The state with its reason.
    pub fn state(&self) -> StoreState {
        match self.word.load(Ordering::Acquire) {
            OK => StoreState::Ok,
            DISK_LOW | DISK_LEAST | DISK_FULL => StoreState::DiskFull,
            word => {
                if let Some(shortage) = shortage_of(word) {
                    return StoreState::Short(shortage);
                }
                let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
                StoreState::Failed { reason }
            }
        }
    }

    /// Whether `record` may be queued. With little space left, only tombstones are, because they free space, and
    /// records that a read must write back before it can answer.
    ///
    /// # Errors
    /// [`ReplicaError::DiskFull`] and [`ReplicaError::Short`]: nothing was done, and the shortage passes.
    pub(super) fn admit(&self, record: &Record, source: Source) -> Result<(), ReplicaError> {
        let word = self.word.load(Ordering::Acquire);
        match (word, &record.value) {
            (OK, _) | (DISK_LOW | DISK_LEAST, Value::Tombstone) => Ok(()),
            (DISK_LOW, _) if source == Source::Reader => Ok(()),
            (DISK_LOW | DISK_LEAST | DISK_FULL, _) => Err(ReplicaError::DiskFull),
            _ => match (shortage_of(word), self.state()) {
                (Some(shortage), _) => Err(ReplicaError::Short { shortage }),
                (None, StoreState::Failed { reason }) => Err(ReplicaError::Failed { reason }),
                // The state has just improved; the caller's retry will see it.
                _ => Err(ReplicaError::Overloaded),
            },
        }
    }

    pub(super) fn set_ok(&self, now: Duration) {
        self.change(OK, now, "the store takes writes again");
    }

    /// Notes that space is as low as `room` says while the engine still writes.
    pub(super) fn set_disk_low(&self, room: Room, now: Duration) {
        let word = if room == Room::Least { DISK_LEAST } else { DISK_LOW };
        self.change(
            word,
            now,
            "the disk is nearly full: values are refused until there is space, deletions are taken",
        );
    }

    /// Notes that a shortage has stopped the engine.
    pub(super) fn set_short(&self, shortage: Shortage, now: Duration) {
        let (word, news) = match shortage {
            Shortage::Disk => (DISK_FULL, "the disk is full: writes are refused until there is space"),
            Shortage::Descriptors => {
                (NO_DESCRIPTORS, "no file descriptors left: writes are refused until there are")
            }
            Shortage::Memory => (NO_MEMORY, "no memory left: writes are refused until there is"),
            Shortage::Threads => (NO_THREADS, "no threads can be started: writes are refused until they can"),
            Shortage::Unknown => (
                REOPENING,
                "the engine's background threads ended: writes are refused until the store is opened again",
            ),
        };
        self.change(word, now, news);
    }

    pub(super) fn set_failed(&self, reason: &str) {
        if self.word.load(Ordering::Relaxed) != FAILED {
            reason.clone_into(&mut self.reason.lock().unwrap_or_else(PoisonError::into_inner));
            self.word.store(FAILED, Ordering::Release);
            tracing::error!(reason, "the store failed: it takes no writes until the node is restarted");
        }
    }

    /// Notes that the store was replaced by another, whatever state the old one was in.
    pub(super) fn revive(&self) {
        self.word.store(OK, Ordering::Release);
    }

    fn change(&self, to: u8, now: Duration, news: &str) {
        let from = self.word.load(Ordering::Relaxed);
        // A failure is final until the store is replaced or the node restarts.
        if from == to || from == FAILED {
            return;
        }
        self.word.store(to, Ordering::Release);
        let are_both_low = |word| matches!(word, DISK_LOW | DISK_LEAST);
        if are_both_low(from) && are_both_low(to) {
            return;
        }
        let Some(left_out) = self.news.admit(now) else { return };
        if to == OK { tracing::info!(left_out, "{news}") } else { tracing::warn!(left_out, "{news}") }
    }
}
