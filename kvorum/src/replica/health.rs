//! The store's health: one word that every write looks at, and the reason behind it for people.

use super::ReplicaError;
use kvorum_core::{Record, Value};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// This says whether the store takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreState {
    /// It does.
    Ok,
    /// The disk is full or nearly so: writes of values are refused until there is space; reads go on.
    DiskFull,
    /// A write or sync failed: no more writes until the node is restarted; reads go on where they can.
    Failed {
        /// What went wrong.
        reason: String,
    },
}

const OK: u8 = 0;
const DISK_LOW: u8 = 1;
const DISK_FULL: u8 = 2;
const FAILED: u8 = 3;

/// This holds the state. The commit thread alone changes it; everybody reads it.
#[derive(Debug, Default)]
pub struct StoreHealth {
    word: AtomicU8,
    // Guards the reason of a failure; written once, read for people.
    reason: Mutex<String>,
}

impl StoreHealth {
    /// The state with its reason.
    pub fn state(&self) -> StoreState {
        match self.word.load(Ordering::Acquire) {
            OK => StoreState::Ok,
            DISK_LOW | DISK_FULL => StoreState::DiskFull,
            _ => {
                let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
                StoreState::Failed { reason }
            }
        }
    }

    /// Whether `record` may be queued. With little space left only tombstones are: they lead to more of it.
    pub(super) fn admit(&self, record: &Record) -> Result<(), ReplicaError> {
        match (self.word.load(Ordering::Acquire), &record.value) {
            (OK, _) | (DISK_LOW, Value::Tombstone) => Ok(()),
            (DISK_LOW | DISK_FULL, _) => Err(ReplicaError::DiskFull),
            _ => match self.state() {
                StoreState::Failed { reason } => Err(ReplicaError::Failed { reason }),
                // It has just changed for the better; the caller's retry will see it.
                _ => Err(ReplicaError::Overloaded),
            },
        }
    }

    pub(super) fn set_ok(&self) {
        self.change(OK, "the store takes writes again");
    }

    pub(super) fn set_disk_low(&self) {
        self.change(DISK_LOW, "the disk is nearly full: values are refused until there is space");
    }

    pub(super) fn set_disk_full(&self) {
        self.change(DISK_FULL, "the disk is full: writes are refused until there is space");
    }

    pub(super) fn set_failed(&self, reason: &str) {
        if self.word.load(Ordering::Relaxed) != FAILED {
            reason.clone_into(&mut self.reason.lock().unwrap_or_else(PoisonError::into_inner));
            self.word.store(FAILED, Ordering::Release);
            tracing::error!(reason, "the store failed and takes no more writes until the node is restarted");
        }
    }

    /// Notes that there is another store now, whatever became of the one before.
    pub(super) fn revive(&self) {
        self.word.store(OK, Ordering::Release);
    }

    fn change(&self, to: u8, news: &str) {
        let from = self.word.load(Ordering::Relaxed);
        // A failure is final in this life of the store.
        if from != to && from != FAILED {
            self.word.store(to, Ordering::Release);
            if to == OK { tracing::info!("{news}") } else { tracing::warn!("{news}") }
        }
    }
}
