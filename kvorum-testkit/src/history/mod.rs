//! The operations of clients and their results: what [`check`] decides from whether they keep the contract, and
//! [`repair`] whether the copies that are left do.
//!
//! Every write has a number of its own, which its value carries, so a read says which write it saw. A key's requests
//! all have the quorums of its [`Class`], so it is known per key which of them overlap.

mod check;
#[cfg(test)]
mod cluster_checker;
#[cfg(test)]
mod faults_checker;
mod repair;
#[cfg(test)]
mod testing;

pub use repair::{Copies, Repair};

use crate::Random;
use kvorum_core::Version;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An instant, on the clock that orders events and on the one that expiry is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Nanoseconds, monotonic.
    pub mono: u64,
    /// Unix milliseconds.
    pub wall: u64,
}

impl Moment {
    /// The current instant.
    pub fn now() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        let mono = u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap();
        Self { mono, wall: crate::unix_millis() }
    }
}

/// The quorums of all requests for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Its name, also the beginning of its keys.
    pub name: &'static str,
    /// ack/from of its writes.
    pub write: (u16, u16),
    /// ack/from of its reads.
    pub read: (u16, u16),
    /// Further ack/from that its writes and reads use in turn: with the same `from`, and no weaker than
    /// those.
    pub also: &'static [(u16, u16)],
    /// Whether requests leave the quorum to the node.
    pub is_default: bool,
}

impl Class {
    /// The keys of a node without peers. There is one copy of each, so a version is stamped once, and a write
    /// without an answer has taken effect, if ever, when its process ends.
    pub const ALONE: Self = Self::default(1, 1);

    /// All requests with the node's default of `ack`/`from`.
    pub const fn default(ack: u16, from: u16) -> Self {
        Self { name: "default", write: (ack, from), read: (ack, from), also: &[], is_default: true }
    }

    /// Writes with one quorum, reads with another.
    pub const fn new(name: &'static str, write: (u16, u16), read: (u16, u16)) -> Self {
        Self { name, write, read, also: &[], is_default: false }
    }

    /// The same class with further quorums.
    #[must_use]
    pub const fn and(self, also: &'static [(u16, u16)]) -> Self {
        Self { also, ..self }
    }

    /// The quorum of the request of this number, where the class has `weakest`.
    pub fn quorum_of(&self, weakest: (u16, u16), number: u64) -> (u16, u16) {
        let at = usize::try_from(number % (self.also.len() as u64 + 1)).unwrap();
        at.checked_sub(1).map_or(weakest, |at| self.also[at])
    }

    fn overlap(a: (u16, u16), b: (u16, u16)) -> bool {
        a.0 + b.0 > a.1.max(b.1)
    }
}

/// The effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Set the value that carries the write's number.
    Put {
        /// How long it lives, in milliseconds.
        ttl: Option<u64>,
    },
    /// Delete.
    Delete,
}

impl What {
    /// A PUT without an expiry.
    pub const PUT: Self = Self::Put { ttl: None };
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed with this version.
    Acked(Version),
    /// Refused with an answer that says that nothing was done.
    Refused,
    /// Anything else.
    Unknown,
}

impl Outcome {
    fn acked(self) -> Option<Version> {
        match self {
            Self::Acked(version) => Some(version),
            _ => None,
        }
    }
}

/// A write as its client saw it.
#[derive(Debug, Clone)]
pub struct Write {
    /// Its number.
    pub id: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The key's quorums.
    pub class: Class,
    /// The node that was asked.
    pub node: usize,
    /// Its effect.
    pub what: What,
    /// An instant before the request was sent.
    pub begun: Moment,
    /// An instant after the answer had arrived, or the client had given up.
    pub ended: Moment,
    /// Its result.
    pub outcome: Outcome,
    /// From when on it can no longer take effect, in monotonic nanoseconds; for unknown outcomes.
    pub dead_by: u64,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saw {
    /// A value.
    Value {
        /// The number of the write that it carries; `None` for bytes that no write sent.
        id: Option<u64>,
        /// Its version.
        version: Version,
        /// Its expiry.
        expires: Option<u64>,
    },
    /// No value.
    Absent,
}

/// A read that was answered.
#[derive(Debug, Clone)]
pub struct Read {
    /// The key.
    pub key: Vec<u8>,
    /// The key's quorums.
    pub class: Class,
    /// The node that was asked.
    pub node: usize,
    /// An instant before the request was sent.
    pub begun: Moment,
    /// An instant after the answer had arrived.
    pub ended: Moment,
    /// Its result.
    pub saw: Saw,
}

impl Read {
    /// The write that was seen, if any client sent it, and the version.
    fn seen(&self) -> Option<(Option<u64>, Version)> {
        match self.saw {
            Saw::Value { id, version, .. } => Some((id, version)),
            Saw::Absent => None,
        }
    }
}

/// Any request, for statistics. Instants are monotonic nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The node that was asked.
    pub node: usize,
    /// The quorums.
    pub class: Class,
    /// The method.
    pub method: &'static str,
    /// An instant before it was sent.
    pub begun: u64,
    /// An instant after the answer had arrived.
    pub ended: u64,
    /// The status, or why there is none: one of the constants of this type.
    pub status: u16,
}

impl Asked {
    /// The connection was cut.
    pub const CUT: u16 = 0;
    /// There was no connection: nothing was sent.
    pub const NOT_SENT: u16 = 1;
    /// There was no answer in time.
    pub const LATE: u16 = 2;

    /// Whether it was carried out.
    pub fn is_ok(&self) -> bool {
        matches!(self.status, 200..=299 | 404)
    }
}

/// All operations of the clients, and the faults of the nodes.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Writes.
    pub writes: Vec<Write>,
    /// Reads that were answered with a value or with none.
    pub reads: Vec<Read>,
    /// Every request.
    pub asked: Vec<Asked>,
    /// Results that break the contract by themselves.
    pub complaints: Vec<String>,
    /// Which node was killed, and when.
    pub kills: Vec<(usize, u64)>,
    /// The faults, counted by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// Returns a number that no other write has.
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Bytes at the beginning of a value: the number of its write and its length.
pub const VALUE_BYTES_MIN: usize = 24;

/// The value of write `id`, at least [`VALUE_BYTES_MIN`] long: printable, and in every part different from
/// all others.
pub fn value_of(id: u64, bytes: usize) -> Vec<u8> {
    let bytes = bytes.max(VALUE_BYTES_MIN);
    let mut random = Random::new(id);
    let mut value = format!("{id:016x}{bytes:08x}").into_bytes();
    while value.len() < bytes {
        // Eight bytes from '0' to 'o' in one step, because large values are made by the thousand.
        let piece = (random.next_word() & 0x3f3f_3f3f_3f3f_3f3f) + 0x3030_3030_3030_3030;
        value.extend_from_slice(&piece.to_le_bytes());
    }
    value.truncate(bytes);
    value
}

/// The write of this value, if the value is whole and unchanged.
pub fn id_of(value: &[u8]) -> Option<u64> {
    let id = u64::from_str_radix(std::str::from_utf8(value.get(..16)?).ok()?, 16).ok()?;
    (value == value_of(id, value.len())).then_some(id)
}

impl History {
    /// Adds another client's operations.
    pub fn absorb(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.reads.extend(other.reads);
        self.asked.extend(other.asked);
        self.complaints.extend(other.complaints);
        self.kills.extend(other.kills);
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }

    /// Counts a fault.
    pub fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// Records that a node of several was killed just now. Its writes may still be on their way to others.
    pub fn killed(&mut self, node: usize) {
        self.kills.push((node, Moment::now().mono));
    }

    /// Records that the only node was killed and has ended: a write that has not taken effect by now never will.
    pub fn killed_alone(&mut self) {
        self.killed(0);
        let now = Moment::now().mono;
        for write in &mut self.writes {
            write.dead_by = write.dead_by.min(now);
        }
    }

    /// Takes back the answers from `wall` on: confirmations become unknown, reads do not count.
    pub fn unhear_from(&mut self, wall: u64) {
        for write in self.writes.iter_mut().filter(|write| write.ended.wall >= wall) {
            if matches!(write.outcome, Outcome::Acked(_)) {
                write.outcome = Outcome::Unknown;
            }
        }
        self.reads.retain(|read| read.ended.wall < wall);
    }

    /// How many requests of `method` were answered with `status`.
    pub fn count(&self, method: &'static str, status: u16) -> usize {
        self.asked.iter().filter(|asked| asked.method == method && asked.status == status).count()
    }

    /// How many requests of `method` were sent and not answered.
    pub fn count_unanswered(&self, method: &'static str) -> usize {
        self.count(method, Asked::CUT) + self.count(method, Asked::LATE)
    }

    /// The keys of all writes with their quorums.
    pub fn keys(&self) -> BTreeMap<Vec<u8>, Class> {
        self.writes.iter().map(|write| (write.key.clone(), write.class)).collect()
    }

    /// The longest time that a client waited for the answer to a read.
    pub fn slowest_read(&self) -> Duration {
        let waits = self.reads.iter().map(|read| read.ended.mono - read.begun.mono);
        Duration::from_nanos(waits.max().unwrap_or(0))
    }

    /// Counts, as text.
    pub fn summary(&self) -> String {
        let acked = self.writes.iter().filter(|write| matches!(write.outcome, Outcome::Acked(_))).count();
        let refused = self.writes.iter().filter(|write| write.outcome == Outcome::Refused).count();
        let unknown = self.writes.len() - acked - refused;
        let absent = self.reads.iter().filter(|read| read.saw == Saw::Absent).count();
        let mut text = format!(
            "{acked} writes acknowledged, {unknown} unknown, {refused} refused; {} values and {absent} absences \
             read; {} kills; faults {:?}; answers",
            self.reads.len() - absent,
            self.kills.len(),
            self.faults
        );
        let mut statuses: BTreeMap<(&str, u16), u64> = BTreeMap::new();
        for asked in &self.asked {
            *statuses.entry((asked.method, asked.status)).or_default() += 1;
        }
        for ((method, status), count) in statuses {
            let _ = write!(text, " {method}:{status}={count}");
        }
        text
    }

    /// Prints the counts and fails on any violation.
    #[track_caller]
    pub fn assert_holds(&self, test: &str) {
        println!("counts: {test}: {}", self.summary());
        let violations = self.violations();
        let first: Vec<&String> = violations.iter().take(12).collect();
        assert!(violations.is_empty(), "{test}: {} violations, the first: {first:#?}", violations.len());
    }
}
