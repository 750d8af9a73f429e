//! Answers of the commit thread to its requests.

use super::ReplicaError;
use crate::storage::format::Mark;
use kvorum_core::Version;
use tokio::sync::oneshot;

/// The outcome of applying a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The record is stored, or was until a newer one overwrote it.
    Stored,
    /// A newer record is stored; this one is not.
    Superseded {
        /// The newer version.
        by: Version,
        /// How far back this replica remembers overwritten versions of the key, in milliseconds: this record was not
        /// among them.
        memory_millis: u32,
    },
    /// Nothing up to `upto` may come in any more. The store need not hold anything newer than the record.
    TooLate {
        /// The highest version that is barred.
        upto: Version,
    },
    /// A ballot of a conditional write keeps the record out, or came between it and the newer record that is stored. This
    /// confirms nothing, and the record may come in from a coordinator that finds it elsewhere.
    Contested {
        /// The ballot or the newer version.
        by: Version,
    },
}

/// The judgement on a ballot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is promised.
    Promised {
        /// The record that is stored, but for its value.
        mark: Option<Mark>,
        has_held: bool,
        has_built: bool,
        memory_millis: u32,
    },
    /// A version that is not below it is known.
    Denied { by: Version },
}

/// The channel that an answer goes to.
pub(super) type Outcome<T> = oneshot::Sender<Result<T, ReplicaError>>;

/// An answer to a request: the judgement at first, final once the group is stored.
pub(super) enum Answer {
    Apply { outcome: Result<Applied, ReplicaError>, done: Outcome<Applied> },
    ApplyMany { outcome: Result<Vec<Option<Applied>>, ReplicaError>, done: Outcome<Vec<Option<Applied>>> },
    Prepare { outcome: Result<Judged, ReplicaError>, done: Outcome<Judged> },
    Side { outcome: Result<(), ReplicaError>, done: Outcome<()> },
    Purge { outcome: Result<usize, ReplicaError>, done: Outcome<usize> },
    Floor { outcome: Result<bool, ReplicaError>, done: Outcome<bool> },
    Cut { outcome: Result<bool, ReplicaError>, done: Outcome<bool> },
}

impl Answer {
    /// Turns the answer into a refusal, because its group was not stored.
    pub(super) fn refuse(&mut self, error: ReplicaError) {
        match self {
            Self::Apply { outcome, .. } => *outcome = Err(error),
            Self::ApplyMany { outcome, .. } => *outcome = Err(error),
            Self::Prepare { outcome, .. } => *outcome = Err(error),
            Self::Side { outcome, .. } => *outcome = Err(error),
            Self::Purge { outcome, .. } => *outcome = Err(error),
            Self::Floor { outcome, .. } => *outcome = Err(error),
            // The turn that took the step was over before the group was stored.
            Self::Cut { .. } => {}
        }
    }

    /// Sends the answer; the requester may have gone.
    pub(super) fn give(self) {
        match self {
            Self::Apply { outcome, done } => drop(done.send(outcome)),
            Self::ApplyMany { outcome, done } => drop(done.send(outcome)),
            Self::Prepare { outcome, done } => drop(done.send(outcome)),
            Self::Side { outcome, done } => drop(done.send(outcome)),
            Self::Purge { outcome, done } => drop(done.send(outcome)),
            Self::Floor { outcome, done } | Self::Cut { outcome, done } => drop(done.send(outcome)),
        }
    }
}
