//! Terms: the types that only messages have, and the errors of their encoding. Their bytes: [`super::fields`].

use super::fields::Tagged;
use bytes::TryGetError;
use kvorum_core::agreement::{Ballot, Instance, Voter};
use kvorum_core::configuration::Configuration;
use kvorum_core::{Conditional, Key, KeyError, Record, UnixMillis, Value, Version};
use std::fmt;

/// A timestamp of the hybrid logical clock, see [`Version::clock`]. This node refuses a message with a timestamp too far
/// ahead of its clock, so every timestamp in a message has this type or is in a [`Version`] or a
/// [`crate::replica::Floor`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

/// The cause of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyKind {
    /// A client's write.
    Write,
    /// The delivery of a hint.
    Hint,
    /// A read repair.
    ReadRepair,
    /// The record of a ballot: a conditional write, or the recovery of one.
    Ballot,
}

/// The direction in which floors are moved: see [`crate::replica::FloorStep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// All nodes hold the same records.
    Agree,
    /// All nodes have agreed.
    Seal,
    /// All nodes have sealed.
    Release,
}

/// The reason why a node holds the watermark back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBack {
    /// It does not answer.
    Away,
    /// Its store is not quorum-eligible.
    NotVoting,
    /// It keeps hints that others have not taken.
    Hints,
    /// Its records differ from the others'.
    Differs,
    /// It leads rounds, and this node has not heard from it since its own recent start.
    NotHeard,
}

/// The reason why a peer refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A bounded queue is full. Nothing was done; a retry can help.
    Overloaded,
    /// The disk is full. Nothing was done.
    DiskFull,
    /// The store failed, or its disk filled up during a write. It is unknown whether a write took effect.
    Failed,
    /// The peer's store is not quorum-eligible now.
    NotVoting,
    /// The peer's store is not quorum-eligible yet: it has just started and is meeting the others. A retry soon can
    /// help.
    NotVotingYet,
    /// The peer is shutting down.
    Stopped,
    /// The peer is not ready yet.
    Starting,
    /// The peer's copy is damaged and cannot be read; it is repaired if another node has it.
    Damaged,
    /// A code that this release does not know.
    Unknown,
    /// A timestamp, in the request or in the peer's store, is too far ahead of the peer's clock. Nothing was done.
    TooFarAhead,
    /// A value in the request, or the request itself, is longer than the peer accepts. Nothing was done.
    TooLong,
    /// The peer works with another epoch than the request, or did before the request was done. A record may have been stored,
    /// and does not count. A retry soon can help.
    Epoch,
}

/// A replica's record, with or without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The complete record.
    Whole(Record),
    /// The record without its value, which is longer than was wanted.
    HeaderOnly {
        /// The record's version.
        version: Version,
        /// The replica count that it was written with.
        from: u16,
        /// Its expiry instant.
        expires: Option<UnixMillis>,
        /// What a conditional write notes.
        conditional: Option<Box<Conditional>>,
        /// The value's length, in bytes.
        value_bytes: u32,
    },
}

/// A replica's answer to a ballot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BallotReply {
    /// From now on the replica takes nothing below the ballot.
    Promised {
        /// Its record of the key.
        held: Option<Held>,
        /// Whether one of the ballot's earlier versions was the newest here, as far back as is remembered.
        has_held: bool,
        /// Whether a record that was built on one of them was the newest here, as far back as is remembered.
        has_built: bool,
        /// How far back this replica remembers both, in milliseconds.
        memory_millis: u32,
    },
    /// The replica knows of `by`, which is not below the ballot.
    Denied {
        /// The version that a ballot must exceed here.
        by: Version,
    },
}

/// A store's answer in a decision about configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BallotVote {
    /// It accepts nothing below the ballot from now on.
    Promised {
        /// The store.
        voter: Voter,
        /// The configuration that it had accepted, with its ballot.
        accepted: Option<(Ballot, Configuration)>,
    },
    /// It has accepted the configuration.
    Accepted {
        /// The store.
        voter: Voter,
    },
    /// It never votes under this configuration.
    NotNamed {
        /// The store.
        voter: Voter,
    },
    /// It works with another configuration.
    OtherInstance {
        /// The configuration.
        ours: Instance,
    },
    /// It has promised a ballot that is not below.
    Outbid {
        /// The ballot.
        by: Ballot,
    },
    /// The configuration may not follow, or needs more than the store's node is able to do.
    Refused,
}

/// A key in a part of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRow {
    /// The key.
    pub key: Key,
    /// The replica's record of it.
    pub held: Held,
}

/// A record in a stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StretchRow {
    /// The timestamp up to which the record's partition had agreed (tombstone GC) at the sender before it read the record.
    pub agreed: Timestamp,
    /// The key.
    pub key: Key,
    /// The record.
    pub record: Record,
}

/// A key in a version list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// The key.
    pub key: Key,
    /// The version of the replica's record.
    pub version: Version,
    /// The replica count that it was written with.
    pub from: u16,
    /// Whether it is a tombstone.
    pub is_tombstone: bool,
}

/// An error in decoding bytes into a message, or in encoding a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageError {
    /// A kind byte of a message that is not expected here.
    UnknownKind {
        /// The byte.
        kind: u8,
    },
    /// A kind of message that the connection's version of the protocol does not have.
    NotSpoken {
        /// The kind byte.
        kind: u8,
        /// The first version that has it.
        since: u16,
        /// The version of the connection.
        protocol: u16,
    },
    /// A reply of the wrong kind for its request.
    WrongReply {
        /// The reply's kind byte.
        kind: u8,
    },
    /// The payload ends too early.
    Truncated,
    /// The payload is too long.
    Trailing {
        /// The surplus bytes.
        bytes: usize,
    },
    /// A key with a length that is not allowed.
    Key(KeyError),
    /// A flag, cause or boolean with an undefined value.
    UnknownValue {
        /// The byte.
        value: u8,
    },
    /// A record that contradicts itself: a tombstone with a value, or a `from` of 0.
    Contradiction,
    /// A list with more items than allowed.
    TooMany {
        /// How many.
        count: usize,
        /// The most that are allowed.
        count_max: usize,
    },
    /// A list of indexes that do not ascend.
    Unsorted,
    /// Text that is not UTF-8.
    Text,
    /// A configuration that contradicts itself, or whose form this release does not know.
    Configuration,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKind { kind } => {
                write!(f, "this release does not know messages of kind {kind:#04x}")
            }
            Self::NotSpoken { kind, since, protocol } => write!(
                f,
                "messages of kind {kind:#04x} need version {since} of the protocol, and the connection speaks {protocol}"
            ),
            Self::WrongReply { kind } => write!(f, "a reply of kind {kind:#04x} does not answer the request"),
            Self::Truncated => f.write_str("a message ends too early"),
            Self::Trailing { bytes } => write!(f, "a message has {bytes} bytes too many"),
            Self::Key(error) => write!(f, "a message has a bad key: {error}"),
            Self::UnknownValue { value } => write!(f, "a message has a byte {value:#04x} without meaning"),
            Self::Contradiction => f.write_str("a record in a message is inconsistent"),
            Self::TooMany { count, count_max } => {
                write!(f, "a message has a list of {count}, more than {count_max}")
            }
            Self::Unsorted => f.write_str("indexes in a message do not ascend"),
            Self::Text => f.write_str("a text in a message is not UTF-8"),
            Self::Configuration => f.write_str("a message has a configuration that cannot be one"),
        }
    }
}

impl std::error::Error for MessageError {}

impl From<TryGetError> for MessageError {
    fn from(_: TryGetError) -> Self {
        Self::Truncated
    }
}

impl From<KeyError> for MessageError {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
    }
}

impl ApplyKind {
    /// The number of causes.
    pub const COUNT: usize = 4;

    /// The index of this cause in lists by cause.
    pub fn index(self) -> usize {
        usize::from(self.tag())
    }
}

impl Held {
    /// Wraps `record`, without its value if that is longer than `value_bytes_max`.
    pub fn new(record: Record, value_bytes_max: u32) -> Self {
        match &record.value {
            Value::Present(value) if value.len() > value_bytes_max as usize => Self::HeaderOnly {
                version: record.version,
                from: record.from,
                expires: record.expires,
                conditional: record.conditional,
                value_bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
            },
            _ => Self::Whole(record),
        }
    }

    /// The record's version.
    pub fn version(&self) -> Version {
        match self {
            Self::Whole(record) => record.version,
            Self::HeaderOnly { version, .. } => *version,
        }
    }

    /// The record's expiry instant.
    pub fn expires(&self) -> Option<UnixMillis> {
        match self {
            Self::Whole(record) => record.expires,
            Self::HeaderOnly { expires, .. } => *expires,
        }
    }

    /// What a conditional write notes; none for a plain record.
    pub fn conditional(&self) -> Option<&Conditional> {
        match self {
            Self::Whole(record) => record.conditional.as_deref(),
            Self::HeaderOnly { conditional, .. } => conditional.as_deref(),
        }
    }
}
