//! The operations by name, and the options of each.

use crate::entry::Version;
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// The longest part of a key that [`Operation`] shows, in bytes: enough to recognise it in a line of a log.
const KEY_SHOWN_BYTES_MAX: usize = 64;

/// The kind of an operation, and its key or target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Reading a value.
    Get {
        /// The key that was read.
        key: Bytes,
    },
    /// Reading all but the value.
    Head {
        /// The key that was read.
        key: Bytes,
    },
    /// Writing a value.
    Put {
        /// The key that was written.
        key: Bytes,
    },
    /// Adding to a number.
    Add {
        /// The counter's key.
        key: Bytes,
    },
    /// Deleting a key.
    Delete {
        /// The key that was deleted.
        key: Bytes,
    },
    /// Reading a range of keys.
    Scan {
        /// The first key of the range.
        start: Bytes,
    },
    /// Asking which record every node holds of a key.
    Explain {
        /// The key.
        key: Bytes,
    },
    /// Carrying out many operations, one a line.
    Batch,
    /// Asking a node for its state.
    Status,
    /// Asking a node to compare itself with all others now.
    Repair,
    /// Reading a stream of lines of a node other than a scan.
    Lines {
        /// Its path and query.
        target: String,
    },
    /// Ordering a node to do something that is not about one key. Orders may be repeated.
    Order {
        /// Its path and query.
        target: String,
    },
    /// Reading a page of a node other than the operations.
    Page {
        /// Its path and query.
        target: String,
    },
}

impl Operation {
    /// Whether it changes a key when it succeeds.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Add { .. } | Self::Delete { .. } | Self::Batch)
    }

    /// Whether a second node may be asked while the first one has not answered.
    pub(crate) fn is_hedgeable(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Head { .. })
    }

    /// The key whose replicas should be asked, if there is one.
    pub(crate) fn placed_key(&self) -> Option<&Bytes> {
        match self {
            Self::Get { key }
            | Self::Head { key }
            | Self::Put { key }
            | Self::Add { key }
            | Self::Delete { key } => Some(key),
            Self::Scan { .. }
            | Self::Explain { .. }
            | Self::Batch
            | Self::Status
            | Self::Repair
            | Self::Lines { .. }
            | Self::Order { .. }
            | Self::Page { .. } => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, key) = match self {
            Self::Get { key } => ("GET", key),
            Self::Head { key } => ("HEAD", key),
            Self::Put { key } => ("PUT", key),
            Self::Add { key } => ("add to", key),
            Self::Delete { key } => ("DELETE", key),
            Self::Scan { start } => ("scan from", start),
            Self::Explain { key } => ("explain", key),
            Self::Batch => return f.write_str("batch"),
            Self::Status => return f.write_str("status"),
            Self::Repair => return f.write_str("repair"),
            Self::Lines { target } | Self::Page { target } => return write!(f, "GET {target}"),
            Self::Order { target } => return write!(f, "POST {target}"),
        };
        match key.get(..KEY_SHOWN_BYTES_MAX) {
            Some(shown) if key.len() > shown.len() => {
                write!(f, "{verb} \"{}…\" ({} bytes)", shown.escape_ascii(), key.len())
            }
            _ => write!(f, "{verb} \"{}\"", key.escape_ascii()),
        }
    }
}

/// How many replicas hold the key (`from`) and how many of them must confirm the operation (`ack`).
///
/// The cluster checks `1 <= ack <= from <= nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// How many replicas must confirm.
    pub ack: u32,
    /// How many replicas hold the key for this operation.
    pub from: u32,
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ack, self.from)
    }
}

/// The options of a GET or HEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// The quorum; without it, the client's ([`Builder::default_replicas`](crate::Builder::default_replicas)).
    pub replicas: Option<Replicas>,
    /// The time limit of this operation; without it, the client's ([`Builder::timeout`](crate::Builder::timeout)).
    pub timeout: Option<Duration>,
}

/// The options of a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PutOptions {
    /// How long readers see the record, rounded up to whole milliseconds; `None` for no expiry. At most 100
    /// years (36500 days). The cluster refuses zero.
    pub ttl: Option<Duration>,
    /// The quorum; without it, the client's ([`Builder::default_replicas`](crate::Builder::default_replicas)).
    pub replicas: Option<Replicas>,
    /// The time limit of this operation; without it, the client's ([`Builder::timeout`](crate::Builder::timeout)).
    pub timeout: Option<Duration>,
}

/// The options of a DELETE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// The quorum; without it, the client's ([`Builder::default_replicas`](crate::Builder::default_replicas)).
    pub replicas: Option<Replicas>,
    /// The time limit of this operation; without it, the client's ([`Builder::timeout`](crate::Builder::timeout)).
    pub timeout: Option<Duration>,
}

/// The condition of a write, judged by the cluster in one step with the write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// There is no value.
    Absent,
    /// There is a value.
    Present,
    /// The value has this version.
    Version(Version),
}

/// The options of an addition to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddOptions {
    /// The quorum; without it, the client's ([`Builder::default_replicas`](crate::Builder::default_replicas)).
    pub replicas: Option<Replicas>,
    /// The time limit of this operation; without it, the client's ([`Builder::timeout`](crate::Builder::timeout)).
    pub timeout: Option<Duration>,
}

/// The options of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanOptions {
    /// The most entries to read; without it, the whole range.
    pub limit: Option<u64>,
    /// Which records to read.
    pub scope: Scope,
    /// The time limit of the stream to begin, and then of each next entry; without it, the client's ([`Builder::timeout`](crate::Builder::timeout)).
    pub timeout: Option<Duration>,
}

/// Which records a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Every live key of the cluster once, its freshest record among a read quorum.
    #[default]
    Cluster,
    /// The records that the asked node stores, alone.
    Local,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_any_key_on_one_line() {
        let check = |key: &[u8], expect: &str| {
            assert_eq!(Operation::Get { key: Bytes::copy_from_slice(key) }.to_string(), expect);
        };
        check(b"plain", "GET \"plain\"");
        check(b"a\n\0\xff", "GET \"a\\n\\x00\\xff\"");
        check(&[b'k'; 64], &format!("GET \"{}\"", "k".repeat(64)));
        check(&[b'k'; 65], &format!("GET \"{}…\" (65 bytes)", "k".repeat(64)));
    }
}
