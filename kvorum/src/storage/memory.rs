//! The in-memory engine: the model that the contract suite holds against the one on disk, and the one whose
//! failures tests can command.
//!
//! It models durability as far as a process can see it: [`MemoryEngine::crash`] forgets what was not synced.

use super::{Batch, Change, Durability, Engine, EngineError, EngineStats, Keyspace, Scan};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Map = BTreeMap<(Keyspace, Bytes), Bytes>;

/// This is the failure that the next writes meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Writes find no space until the fault is cleared and the engine reopened.
    DiskFull,
    /// Syncs report an I/O error.
    SyncError,
}

#[derive(Default)]
struct State {
    live: Map,
    synced: Map,
    fault: Option<Fault>,
    poisoned: bool,
}

/// This keeps keyspaces in memory.
#[derive(Default)]
pub struct MemoryEngine {
    // Guards all state; held for one call, which never waits.
    state: Mutex<State>,
}

impl MemoryEngine {
    /// An empty engine without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes writes fail from now on, or (`None`) succeed again once the engine has been reopened.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// Forgets what was not synced, as a power loss does.
    pub fn crash(&self) {
        let mut state = self.lock();
        state.live = state.synced.clone();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn admit(&mut self, attempted: &'static str, syncs: bool) -> Result<(), EngineError> {
        if self.poisoned {
            return Err(EngineError::Poisoned { attempted });
        }
        match self.fault {
            Some(Fault::DiskFull) => {
                self.poisoned = true;
                Err(EngineError::DiskFull { attempted })
            }
            Some(Fault::SyncError) if syncs => {
                self.poisoned = true;
                Err(EngineError::Io { attempted, source: std::io::Error::other("injected") })
            }
            _ => Ok(()),
        }
    }
}

impl Engine for MemoryEngine {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.lock().live.get(&(keyspace, Bytes::copy_from_slice(key))).cloned())
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        let within = |key: &Bytes| match end {
            Bound::Included(end) => key.as_ref() <= end,
            Bound::Excluded(end) => key.as_ref() < end,
            Bound::Unbounded => true,
        };
        let pairs: Vec<_> = self
            .lock()
            .live
            .range((keyspace, Bytes::copy_from_slice(start))..)
            .take_while(|((space, key), _)| *space == keyspace && within(key))
            .map(|((_, key), value)| Ok((key.clone(), value.clone())))
            .collect();
        Ok(Box::new(pairs.into_iter()))
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        let mut state = self.lock();
        state.admit("write a batch", durability == Durability::Synced)?;
        for change in batch {
            match change {
                Change::Put { keyspace, key, value } => state.live.insert((keyspace, key), value),
                Change::Remove { keyspace, key } => state.live.remove(&(keyspace, key)),
            };
        }
        if durability == Durability::Synced {
            state.synced = state.live.clone();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        let mut state = self.lock();
        state.admit("sync the journal", true)?;
        state.synced = state.live.clone();
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        if self.lock().poisoned { Err(EngineError::Poisoned { attempted: "go on" }) } else { Ok(()) }
    }

    fn retire(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reopen(&self) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.fault == Some(Fault::DiskFull) {
            return Err(EngineError::DiskFull { attempted: "open the store" });
        }
        state.poisoned = false;
        Ok(())
    }

    fn is_short_of_space(&self) -> bool {
        false
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
