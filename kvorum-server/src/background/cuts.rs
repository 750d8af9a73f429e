//! The steps of a cut, as the program that makes a backup orders them of this node.

use crate::canary::{self, Canary};
use crate::clock::TimestampBound;
use crate::cluster::Cluster;
use crate::coordinator::Stamps;
use crate::replica::{CutStep, Replica, ReplicaError};
use kvorum_core::Version;
use std::sync::Arc;

/// Takes cuts of this node's store.
pub struct Cuts {
    pub(super) cluster: Arc<Cluster>,
    pub(super) timestamps: Arc<TimestampBound>,
    pub(super) stamps: Arc<Stamps>,
    pub(super) replica: Replica,
}

/// Why a step of a cut was not taken.
#[derive(Debug)]
pub enum CutError {
    /// A record at the timestamp or above may be here already.
    Reached,
    /// This node's clock may be wrong.
    ClockOff,
    /// The store is not quorum-eligible: its records are not complete.
    NotVoting,
    /// Another cut is kept.
    Busy,
    /// The cut is not here.
    Gone,
    /// The replica did not carry it out.
    Replica(ReplicaError),
}

impl From<ReplicaError> for CutError {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}

impl Cuts {
    /// A timestamp below every later stamp of this node; a cut must be above it.
    pub fn reading(&self) -> u64 {
        self.stamps.reading()
    }

    /// Takes a step of a cut.
    ///
    /// # Errors
    /// The step was not taken.
    pub async fn take(&self, step: CutStep) -> Result<(), CutError> {
        let is_drop = matches!(step, CutStep::Drop { .. });
        let is_trusted = !self.timestamps.stands_down() || canary::is(Canary::CutBelievesAnyTimestamp);
        if !is_drop && !is_trusted {
            return Err(CutError::ClockOff);
        }
        match step {
            CutStep::Arm { upto, .. } => {
                // A record at or below T may have been overwritten by one above it already.
                if self.stamps.reading() >= upto {
                    return Err(CutError::Reached);
                }
                self.timestamps.check(upto).map_err(ReplicaError::from)?;
                if !self.cluster.votes() {
                    return Err(CutError::NotVoting);
                }
            }
            // No later stamp of this node is refused by those that have closed.
            CutStep::Close { upto } => self.stamps.observe(Version::from_words(upto, u64::MAX)),
            CutStep::Drop { .. } => {}
        }
        match (self.replica.cut(step).await?, step) {
            (true, _) => Ok(()),
            (false, CutStep::Arm { .. }) => Err(CutError::Busy),
            (false, CutStep::Close { .. } | CutStep::Drop { .. }) => Err(CutError::Gone),
        }
    }
}
