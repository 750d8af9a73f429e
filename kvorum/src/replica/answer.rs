//! Answers: what the commit thread tells those who asked.

use super::ReplicaError;
use kvorum_core::Version;
use tokio::sync::oneshot;

/// What became of an applied record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is stored, or was until something newer overwrote it.
    Stored,
    /// Something newer is stored; the record is not.
    Superseded {
        /// The newer version.
        by: Version,
        /// How far back this replica remembers what it held of the key: the record was not among it.
        memory_millis: u32,
    },
    /// Nothing up to `upto` may come in any more; nothing newer than the record need be stored.
    TooLate {
        /// The highest version that is barred.
        upto: Version,
    },
}

/// Where an answer goes.
pub(super) type Outcome<T> = oneshot::Sender<Result<T, ReplicaError>>;

/// An answer to a request: first that of the judgement, final once the group is stored.
pub(super) enum Answer {
    Apply { outcome: Result<Applied, ReplicaError>, done: Outcome<Applied> },
    ApplyMany { outcome: Result<Vec<Option<Applied>>, ReplicaError>, done: Outcome<Vec<Option<Applied>>> },
    Side { outcome: Result<(), ReplicaError>, done: Outcome<()> },
    Purge { outcome: Result<usize, ReplicaError>, done: Outcome<usize> },
    Floor { outcome: Result<bool, ReplicaError>, done: Outcome<bool> },
}

impl Answer {
    /// Turns the answer into a refusal, because its group was not stored.
    pub(super) fn refuse(&mut self, error: ReplicaError) {
        match self {
            Self::Apply { outcome, .. } => *outcome = Err(error),
            Self::ApplyMany { outcome, .. } => *outcome = Err(error),
            Self::Side { outcome, .. } => *outcome = Err(error),
            Self::Purge { outcome, .. } => *outcome = Err(error),
            Self::Floor { outcome, .. } => *outcome = Err(error),
        }
    }

    /// Gives the answer; whoever asked may have gone.
    pub(super) fn give(self) {
        match self {
            Self::Apply { outcome, done } => drop(done.send(outcome)),
            Self::ApplyMany { outcome, done } => drop(done.send(outcome)),
            Self::Side { outcome, done } => drop(done.send(outcome)),
            Self::Purge { outcome, done } => drop(done.send(outcome)),
            Self::Floor { outcome, done } => drop(done.send(outcome)),
        }
    }
}
