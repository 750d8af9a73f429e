//! The operations of the clients and their results: the only evidence that the oracle judges.
//!
//! Every write carries a number of its own in its value, so a read shows which write it saw, whatever version
//! it came with. Instants are simulated time since the run began. An operation without an end was still open
//! when the run ended, or its node was lost. Such a write may take effect, once, at any later time.

use crate::counters::{Counted, CounterOperation};
use bytes::Bytes;
use kvorum_core::Version;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The identity of a write: the number of its operation.
pub type WriteId = u64;

/// A request's `ACK/FROM`; the default's, if the request named none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AckFrom {
    /// How many replicas must confirm.
    pub ack: u16,
    /// How many hold the key.
    pub from: u16,
}

/// The request of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Read the value.
    Get,
    /// Read the version alone.
    Head,
    /// Write the value that carries the operation's number.
    Put {
        /// How long it lives.
        ttl: Option<Duration>,
    },
    /// Delete.
    Delete,
    /// Read a range that begins at the operation's key.
    Range {
        /// The key that ends it, itself not included.
        end: Option<Bytes>,
        /// The most records.
        limit: Option<u64>,
    },
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// None: a plain write.
    Any,
    /// There is no value.
    Absent,
    /// There is a value.
    Present,
    /// The value has this version.
    Match(Version),
}

/// One record of a range's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Bytes,
    /// The write that its value carries; `None` for bytes that no write sent.
    pub write: Option<WriteId>,
    /// Its version.
    pub version: Version,
}

/// Why an outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// An answer that does not tell the outcome: 500, 504.
    Status(u16),
    /// The client gave up waiting.
    Timeout,
    /// The connection was cut after the request was sent.
    Cut,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A write was confirmed.
    Acknowledged {
        /// Its version.
        version: Version,
    },
    /// A value was read.
    Value {
        /// The write that the value carries. `None` for a HEAD, and for bytes that no write sent: see
        /// `is_foreign`.
        write: Option<WriteId>,
        /// The version that came with it.
        version: Version,
        /// Whether the bytes are of no write.
        is_foreign: bool,
    },
    /// No value was found.
    Absent,
    /// A whole range was read.
    Range(Vec<Entry>),
    /// The condition of a write did not hold, and nothing was done.
    Failed {
        /// The version of the value; none where there is no value.
        current: Option<Version>,
    },
    /// Certainly nothing was done: 400, 503, 507, or no connection.
    Refused {
        /// The status; 0 where there was no connection.
        status: u16,
    },
    /// The result is not known. A read has seen nothing; a write may take effect once, at any later time.
    Unknown(Doubt),
}

/// One operation as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its number, which is unique; the identity of its value if it is a PUT.
    pub id: u64,
    /// The client.
    pub client: u16,
    /// The node that was asked.
    pub node: u16,
    /// The key; of a range, the first one.
    pub key: Bytes,
    /// The request.
    pub request: Request,
    /// Its condition, if it is a write.
    pub condition: Condition,
    /// The replicas that it asked for.
    pub replicas: AckFrom,
    /// An instant before the request was sent.
    pub invoked: Duration,
    /// An instant after the answer had arrived, or the client had given up.
    pub returned: Duration,
    /// Its result.
    pub outcome: Outcome,
}

/// All operations of the clients, in the order of their beginnings.
#[derive(Debug, Clone, Default)]
pub struct History {
    operations: Vec<Operation>,
    counters: Vec<CounterOperation>,
}

impl AckFrom {
    /// `ack` of `from`.
    pub const fn new(ack: u16, from: u16) -> Self {
        Self { ack, from }
    }

    /// Whether every quorum of `self` shares a replica with every one of `other`; replica sets are nested.
    pub fn overlaps(self, other: Self) -> bool {
        self.ack + other.ack > self.from.max(other.from)
    }
}

impl Operation {
    /// Whether it is a PUT or a DELETE.
    pub fn is_write(&self) -> bool {
        matches!(self.request, Request::Put { .. } | Request::Delete)
    }

    /// Whether it is a GET or a HEAD.
    pub fn is_read(&self) -> bool {
        matches!(self.request, Request::Get | Request::Head)
    }

    /// Whether it is a write that has or may have taken effect, or may still take effect.
    pub fn may_take_effect(&self) -> bool {
        self.is_write() && !matches!(self.outcome, Outcome::Refused { .. } | Outcome::Failed { .. })
    }

    /// The version of the acknowledgement.
    pub fn acknowledged(&self) -> Option<Version> {
        match self.outcome {
            Outcome::Acknowledged { version } if self.is_write() => Some(version),
            _ => None,
        }
    }

    /// Until when it may take effect: its end if it was acknowledged, otherwise without limit.
    pub fn effective_by(&self) -> Duration {
        if self.acknowledged().is_some() { self.returned } else { Duration::MAX }
    }

    /// Whether it may leave the key without a value: a delete at once, a value with a TTL later.
    pub fn may_hide(&self) -> bool {
        self.may_take_effect() && matches!(self.request, Request::Delete | Request::Put { ttl: Some(_) })
    }
}

impl History {
    /// A history of operations in any order.
    pub fn new(mut operations: Vec<Operation>) -> Self {
        operations.sort_by_key(|operation| (operation.invoked, operation.id));
        Self { operations, counters: Vec::new() }
    }

    /// The same with operations on counters.
    #[must_use]
    pub fn with_counters(self, counters: Vec<CounterOperation>) -> Self {
        Self { counters, ..self }
    }

    /// The operations on counters.
    pub fn counters(&self) -> &[CounterOperation] {
        &self.counters
    }

    /// All operations, in the order of their beginnings.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations of each key, ranges left out, in the order of their beginnings.
    pub fn by_key(&self) -> BTreeMap<&Bytes, Vec<&Operation>> {
        let mut keys: BTreeMap<&Bytes, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.operations {
            if !matches!(operation.request, Request::Range { .. }) {
                keys.entry(&operation.key).or_default().push(operation);
            }
        }
        keys
    }

    /// How many operations had each kind of outcome, for summaries.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for operation in &self.operations {
            *counts.entry(operation.outcome.name()).or_default() += 1;
        }
        for operation in &self.counters {
            let name = match operation.outcome {
                Counted::Number(_) if operation.digit.is_some() => "counted",
                Counted::Number(_) => "number",
                Counted::Refused { .. } | Counted::Wrong { .. } => "refused",
                Counted::Unknown => "unknown",
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
}

impl Outcome {
    /// The outcome's kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acknowledged { .. } => "acknowledged",
            Self::Value { .. } => "value",
            Self::Absent => "absent",
            Self::Range(_) => "range",
            Self::Failed { .. } => "condition failed",
            Self::Refused { .. } => "refused",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// The least bytes of a value: its write's number and its length, in hexadecimal.
pub const VALUE_BYTES_MIN: usize = 24;

/// The value of `write`, at least [`VALUE_BYTES_MIN`] long: printable, and in every part different from all
/// others.
pub fn value_of(write: WriteId, bytes: usize) -> Bytes {
    let bytes = bytes.max(VALUE_BYTES_MIN);
    let mut stream = crate::seed::Seed(write).stream("value");
    let mut value = format!("{write:016x}{bytes:08x}").into_bytes();
    while value.len() < bytes {
        let piece = (stream.word() & 0x3f3f_3f3f_3f3f_3f3f) + 0x3030_3030_3030_3030;
        value.extend_from_slice(&piece.to_le_bytes());
    }
    value.truncate(bytes);
    Bytes::from(value)
}

/// The write of this value, if the value is whole and unchanged.
pub fn write_of(value: &[u8]) -> Option<WriteId> {
    let write = u64::from_str_radix(std::str::from_utf8(value.get(..16)?).ok()?, 16).ok()?;
    (value == value_of(write, value.len())).then_some(write)
}

impl fmt::Display for AckFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ack, self.from)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get => f.write_str("GET"),
            Self::Head => f.write_str("HEAD"),
            Self::Put { ttl: None } => f.write_str("PUT"),
            Self::Put { ttl: Some(ttl) } => write!(f, "PUT ttl={}ms", ttl.as_millis()),
            Self::Delete => f.write_str("DELETE"),
            Self::Range { end, limit } => {
                write!(
                    f,
                    "RANGE to {}",
                    end.as_ref().map_or("the end".into(), |end| end.escape_ascii().to_string())
                )?;
                limit.map_or(Ok(()), |limit| write!(f, " limit {limit}"))
            }
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Absent => f.write_str(" if absent"),
            Self::Present => f.write_str(" if present"),
            Self::Match(version) => write!(f, " if {version}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acknowledged { version } => write!(f, "acknowledged {version}"),
            Self::Value { write: Some(write), version, .. } => write!(f, "value of #{write} {version}"),
            Self::Value { version, is_foreign: true, .. } => write!(f, "bytes that nobody wrote {version}"),
            Self::Value { version, .. } => write!(f, "found {version}"),
            Self::Absent => f.write_str("absent"),
            Self::Range(entries) => write!(f, "{} records", entries.len()),
            Self::Failed { current: Some(version) } => write!(f, "condition failed at {version}"),
            Self::Failed { current: None } => f.write_str("condition failed, absent"),
            Self::Refused { status: 0 } => f.write_str("no connection"),
            Self::Refused { status } => write!(f, "refused {status}"),
            Self::Unknown(Doubt::Status(status)) => write!(f, "unknown {status}"),
            Self::Unknown(Doubt::Timeout) => f.write_str("unknown, no answer"),
            Self::Unknown(Doubt::Cut) => f.write_str("unknown, cut"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>11.6} {:>11.6}  #{:<5} client {:<2} node {:<2} {:>5}  {:<22} {}",
            self.invoked.as_secs_f64(),
            self.returned.as_secs_f64(),
            self.id,
            self.client,
            self.node,
            self.replicas.to_string(),
            format!("{}{}", self.request, self.condition),
            self.outcome
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value names its write, at every size; with a changed byte it names none.
    #[test]
    fn values_name_their_write() {
        for bytes in [0, 24, 25, 100, 5000] {
            let value = value_of(77, bytes);
            assert_eq!(value.len(), bytes.max(VALUE_BYTES_MIN));
            assert_eq!(write_of(&value), Some(77));
            let mut changed = value.to_vec();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(write_of(&changed), None);
            assert_eq!(write_of(&value[..value.len() - 1]), None);
        }
        assert_eq!(write_of(b""), None);
    }

    /// The table of the contract: a + b > max(f, g).
    #[test]
    fn overlap_is_that_of_the_contract() {
        let check = |a: (u16, u16), b: (u16, u16), expect| {
            let (a, b) = (AckFrom::new(a.0, a.1), AckFrom::new(b.0, b.1));
            assert_eq!((a.overlaps(b), b.overlaps(a)), (expect, expect), "{a} {b}");
        };
        check((2, 3), (2, 3), true);
        check((1, 3), (2, 3), false);
        check((1, 3), (3, 3), true);
        check((2, 3), (2, 5), false);
        check((3, 5), (3, 3), true);
        check((1, 1), (1, 1), true);
        check((1, 1), (2, 3), false);
    }
}
