//! The identity of a machine's disk, as the node would read it from its files: the last run's record, while
//! it is the same disk.
//!
//! An older disk that was put back file by file does not match the record. A whole image brings its own
//! record along, and cannot be distinguished from the disk that it was taken of.

use kvorum_core::Run;
use kvorum_server::storage::identity::{DiskIdentity, Doubt};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The record of a run: the store's identity, and the number of the run.
pub type Record = Option<(u128, u64)>;

/// The identity of a machine's disk; it outlives processes.
#[derive(Debug, Default)]
pub struct SimIdentity(Mutex<Record>);

impl SimIdentity {
    /// The record on the disk.
    pub fn recorded(&self) -> Record {
        *self.lock()
    }

    /// Puts in another disk with its record; `None` for files that were copied to it.
    pub fn exchange(&self, record: Record) {
        *self.lock() = record;
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskIdentity for SimIdentity {
    fn verify(&self, store: u128, run: Run) -> Result<(), Doubt> {
        match self.recorded() {
            None => Err(Doubt::NoRecord),
            Some((recorded, number)) if recorded == store && number <= run.number => Ok(()),
            Some(_) => Err(Doubt::OtherStore),
        }
    }

    fn record(&self, store: u128, run: Run) -> io::Result<()> {
        *self.lock() = Some((store, run.number));
        Ok(())
    }

    fn forget(&self) -> io::Result<()> {
        *self.lock() = None;
        Ok(())
    }
}
