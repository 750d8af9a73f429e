//! What can go wrong at the replica.

use super::chain::ChainError;
use crate::clock::TooFarAhead;
use crate::storage::shortage::Shortage;
use crate::storage::{EngineError, format};
use crate::worker::PoolFull;
use std::fmt;

/// Why a replica did not carry out a request.
#[derive(Debug)]
pub enum ReplicaError {
    /// A bounded queue is full. Nothing was done; a retry can help.
    Overloaded,
    /// The disk is full and the replica refused the request. Nothing was done.
    DiskFull,
    /// The disk filled up while the write was being stored. It is unknown whether it took effect.
    DiskFilledUp,
    /// The machine ran out of a resource while the write was being stored. It is unknown whether it took effect.
    ShortMet {
        /// The resource.
        shortage: Shortage,
    },
    /// The machine ran out of a resource. Nothing was done; the shortage passes, and a retry can help.
    Short {
        /// The resource.
        shortage: Shortage,
    },
    /// An earlier write failed and the store takes no more until the node is restarted.
    Failed {
        /// The cause, and when it happened.
        reason: String,
    },
    /// The engine failed this call. For a write it is unknown whether it took effect.
    Engine(EngineError),
    /// A stored row is not of a format that this release knows.
    Format(format::FormatError),
    /// A record's timestamp, given or stored, is too far ahead of this node's clock. Nothing was done.
    TooFarAhead(TooFarAhead),
    /// A record's value is longer than this node accepts. Nothing was done.
    ValueTooLong {
        /// The length of the value, in bytes.
        bytes: usize,
        /// The longest value that is accepted, in bytes (`--max-value-size`).
        bytes_max: u64,
    },
    /// The stored configurations cannot be used: the store does not know its epoch.
    Chain(Box<ChainError>),
    /// The replica is shutting down.
    Stopped,
}

impl fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overloaded => f.write_str("a queue of the store is full"),
            Self::DiskFull => f.write_str("the disk of this node is full"),
            Self::DiskFilledUp => {
                f.write_str("the disk of this node filled up while the write was being stored")
            }
            Self::ShortMet { shortage } => write!(f, "while the write was being stored: {shortage}"),
            Self::Short { shortage } => write!(f, "the store waits: {shortage}"),
            Self::Failed { reason } => write!(f, "the store takes no more writes: {reason}"),
            Self::Engine(error) => error.fmt(f),
            Self::Format(error) => write!(f, "a stored row cannot be read: {error}"),
            Self::TooFarAhead(error) => error.fmt(f),
            Self::ValueTooLong { bytes, bytes_max } => {
                write!(f, "a value of {bytes} bytes is longer than --max-value-size allows: {bytes_max}")
            }
            Self::Chain(error) => error.fmt(f),
            Self::Stopped => f.write_str("the store is shutting down"),
        }
    }
}

impl std::error::Error for ReplicaError {}

impl ReplicaError {
    /// Whether the replica surely did not take the record.
    pub(crate) fn is_nothing_done(&self) -> bool {
        self.is_shortage()
            || matches!(
                self,
                Self::Overloaded | Self::Stopped | Self::TooFarAhead(_) | Self::ValueTooLong { .. }
            )
    }

    /// Whether the request was refused because the machine ran out of a resource: nothing was done, and the shortage
    /// passes.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::DiskFull | Self::Short { .. })
    }

    /// Whether bytes on disk differ from those that were written.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => matches!(error, EngineError::Corrupt { .. }),
            Self::Format(error) => {
                matches!(error, format::FormatError::Truncated { .. } | format::FormatError::Contradiction)
            }
            Self::Chain(error) => error.is_damage(),
            _ => false,
        }
    }
}

impl From<ChainError> for ReplicaError {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Store(error) => error,
            error => Self::Chain(Box::new(error)),
        }
    }
}

impl From<TooFarAhead> for ReplicaError {
    fn from(error: TooFarAhead) -> Self {
        Self::TooFarAhead(error)
    }
}

impl From<EngineError> for ReplicaError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::DiskFull { .. } => Self::DiskFull,
            EngineError::Short { shortage, .. } => Self::Short { shortage },
            other => Self::Engine(other),
        }
    }
}

impl From<format::FormatError> for ReplicaError {
    fn from(error: format::FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<PoolFull> for ReplicaError {
    fn from(PoolFull: PoolFull) -> Self {
        Self::Overloaded
    }
}
