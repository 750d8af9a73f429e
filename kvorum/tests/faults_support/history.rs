//! The operations of clients and their results, and the checker that decides whether they keep the contract.
//!
//! Every write has a number of its own, which its value carries, so a read says which write it saw. The
//! checker works key by key with the versions that the node showed, in O(n log n):
//!
//! - the state of a key only rises: a write or read that begins after another write was acknowledged, or
//!   after another read saw a value, has or sees a higher version (the *floor*), or at least that one for
//!   reads;
//! - a read sees the value of some write, with that write's version and expiry, and never after that expiry;
//! - a read that sees nothing has a cause: a delete or an expiry that may be above the floor;
//! - a value that such a read saw gone does not come back;
//! - a write of unknown outcome may have taken effect at any time until its process was killed, or never; a
//!   refused one has not.

use kvorum_core::Version;
use std::collections::{BTreeMap, HashMap};
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
        Self { mono, wall: crate::support::unix_millis() }
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

/// A write as its client saw it.
#[derive(Debug, Clone)]
pub struct Write {
    /// Its number.
    pub id: u64,
    /// The key.
    pub key: String,
    /// Its effect.
    pub what: What,
    /// An instant before the request was sent.
    pub begun: Moment,
    /// An instant after the answer had arrived.
    pub ended: Moment,
    /// Its result.
    pub outcome: Outcome,
    /// From when on it can no longer take effect; for unknown outcomes.
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
    pub key: String,
    /// An instant before the request was sent.
    pub begun: Moment,
    /// An instant after the answer had arrived.
    pub ended: Moment,
    /// Its result.
    pub saw: Saw,
}

/// All operations of the clients.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Writes.
    pub writes: Vec<Write>,
    /// Reads that were answered with a value or with none.
    pub reads: Vec<Read>,
    /// Answers by method and status; 0 stands for a cut connection.
    pub statuses: BTreeMap<(&'static str, u16), u64>,
    /// Results that break the contract by themselves.
    pub faults: Vec<String>,
    /// How often the node was killed.
    pub kills: u32,
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
    let mut random = super::Random::new(id);
    let mut value = format!("{id:016x}{bytes:08x}").into_bytes();
    while value.len() < bytes {
        // Eight bytes from '0' to 'o' in one step, because large values are made by the thousand.
        let piece = (random.next() & 0x3f3f_3f3f_3f3f_3f3f) + 0x3030_3030_3030_3030;
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
        self.faults.extend(other.faults);
        self.kills += other.kills;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
    }

    /// Records that the node was killed and has ended: a write that has not taken effect by now never will.
    pub fn killed(&mut self) {
        self.kills += 1;
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
    pub fn count(&self, method: &'static str, status: u16) -> u64 {
        self.statuses.get(&(method, status)).copied().unwrap_or(0)
    }

    /// Keys with an acknowledged write.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.writes.iter().map(|write| write.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
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
             read; {} kills; answers",
            self.reads.len() - absent,
            self.kills
        );
        for ((method, status), count) in &self.statuses {
            let _ = write!(text, " {method}:{status}={count}");
        }
        text
    }

    /// Prints the counts and fails on any violation.
    #[track_caller]
    pub fn assert_holds(&self, test: &str) {
        println!("{test}: {}", self.summary());
        let violations = self.violations();
        let first: Vec<&String> = violations.iter().take(12).collect();
        assert!(violations.is_empty(), "{test}: {} violations, the first: {first:#?}", violations.len());
    }

    /// Everything that breaks the contract.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = self.faults.clone();
        for (key, (writes, reads)) in self.by_key() {
            KeyCheck::new(key, &writes, &mut violations).check(&writes, &reads);
        }
        violations
    }

    /// The weaker check, for a node that may have lost its latest writes: every read returned the value of
    /// some write to that key, with its version.
    pub fn wrong_values(&self) -> Vec<String> {
        let mut violations = self.faults.clone();
        for (key, (writes, reads)) in self.by_key() {
            KeyCheck::new(key, &writes, &mut violations).bind(&reads);
        }
        violations
    }

    fn by_key(&self) -> BTreeMap<&str, (Vec<&Write>, Vec<&Read>)> {
        let mut keys: BTreeMap<&str, (Vec<&Write>, Vec<&Read>)> = BTreeMap::new();
        for write in &self.writes {
            keys.entry(&write.key).or_default().0.push(write);
        }
        for read in &self.reads {
            keys.entry(&read.key).or_default().1.push(read);
        }
        keys
    }
}

/// The highest version known as of each instant.
#[derive(Debug, Default)]
struct Floor {
    /// (Instant, version); after [`Floor::sorted`] versions rise with instants.
    facts: Vec<(u64, Version)>,
}

impl Floor {
    fn sorted(mut facts: Vec<(u64, Version)>) -> Self {
        facts.sort_unstable();
        let mut highest = Version::ZERO;
        for (_, version) in &mut facts {
            highest = highest.max(*version);
            *version = highest;
        }
        Self { facts }
    }

    /// The highest version of the facts that were complete before `begun`.
    fn before(&self, begun: u64) -> Option<Version> {
        let count = self.facts.partition_point(|(at, _)| *at < begun);
        Some(self.facts[count.checked_sub(1)?].1)
    }
}

/// The check of one key.
struct KeyCheck<'a> {
    key: &'a str,
    by_id: HashMap<u64, &'a Write>,
    /// Versions of writes: those of acknowledgements, and those that a read has shown.
    versions: HashMap<u64, Version>,
    violations: &'a mut Vec<String>,
}

impl<'a> KeyCheck<'a> {
    fn new(key: &'a str, writes: &[&'a Write], violations: &'a mut Vec<String>) -> Self {
        let by_id = writes.iter().map(|write| (write.id, *write)).collect();
        let versions = writes
            .iter()
            .filter_map(|write| match write.outcome {
                Outcome::Acked(version) => Some((write.id, version)),
                _ => None,
            })
            .collect();
        Self { key, by_id, versions, violations }
    }

    fn violation(&mut self, text: &str) {
        self.violations.push(format!("key {}: {text}", self.key));
    }

    fn check(mut self, writes: &[&'a Write], reads: &[&Read]) {
        self.bind(reads);
        let mut by_version: BTreeMap<Version, &Write> = BTreeMap::new();
        for (id, version) in &self.versions.clone() {
            let write = self.by_id[id];
            if let Some(other) = by_version.insert(*version, write) {
                self.violation(&format!("one version for two writes: {other:?} and {write:?}"));
            }
        }
        let floor = self.floor(writes, reads);
        for (version, write) in &by_version {
            if let Some(floor) = floor.before(write.begun.mono).filter(|floor| floor >= version) {
                self.violation(&format!(
                    "the version does not rise: {floor} was known before {write:?}, which has {version}"
                ));
            }
        }
        let gone: Vec<(u64, Version)> = reads
            .iter()
            .filter(|read| read.saw == Saw::Absent)
            .filter_map(|read| Some((read.ended.mono, floor.before(read.begun.mono)?)))
            .collect();
        let gone = Floor::sorted(gone);
        for read in reads {
            let Some(known) = floor.before(read.begun.mono) else { continue };
            match read.saw {
                Saw::Value { version, .. } => {
                    if version < known {
                        let newest = by_version.get(&known);
                        self.violation(&format!("went back: {read:?}; known before: {newest:?} {known}"));
                    }
                    if gone.before(read.begun.mono).is_some_and(|gone| version <= gone) {
                        self.violation(&format!("came back after it had been seen to be gone: {read:?}"));
                    }
                }
                Saw::Absent => {
                    let newest = by_version[&known];
                    if !writes.iter().any(|write| self.may_hide(write, newest, known, read)) {
                        self.violation(&format!("lost: {read:?} does not see {newest:?} ({known})"));
                    }
                }
            }
        }
    }

    /// Finds the write of each value that was read, and so learns the versions of writes of unknown outcome.
    fn bind(&mut self, reads: &[&Read]) {
        for read in reads {
            let Saw::Value { id, version, expires } = read.saw else { continue };
            let Some(write) = id.and_then(|id| self.by_id.get(&id).copied()) else {
                self.violation(&format!("a value that nobody wrote: {read:?}"));
                continue;
            };
            if write.outcome == Outcome::Refused || write.begun.mono >= read.ended.mono {
                self.violation(&format!("a value that was not written: {read:?} of {write:?}"));
            }
            let bound = *self.versions.entry(write.id).or_insert(version);
            if bound != version {
                self.violation(&format!("another version than {bound}: {read:?} of {write:?}"));
            }
            let What::Put { ttl } = write.what else {
                self.violation(&format!("the value of a delete: {read:?} of {write:?}"));
                continue;
            };
            if !is_expiry_of(write, ttl, expires) {
                self.violation(&format!("another expiry than its time and TTL give: {read:?} of {write:?}"));
            }
            if expires.is_some_and(|at| read.begun.wall >= at) {
                self.violation(&format!("served after its expiry: {read:?} of {write:?}"));
            }
        }
    }

    /// The known versions of the key, each with the instant from which on it is known.
    fn floor(&self, writes: &[&Write], reads: &[&Read]) -> Floor {
        let mut facts = Vec::with_capacity(writes.len() + reads.len());
        for write in writes {
            match (write.outcome, self.versions.get(&write.id)) {
                (Outcome::Acked(version), _) => facts.push((write.ended.mono, version)),
                // It was seen, so it has taken effect: at the latest when its process ended.
                (_, Some(version)) => facts.push((write.dead_by, *version)),
                _ => {}
            }
        }
        for read in reads {
            if let Saw::Value { version, .. } = read.saw {
                facts.push((read.ended.mono, version));
            }
        }
        Floor::sorted(facts)
    }

    /// Whether `write` explains that `read` saw nothing although `newest`, of version `known`, was known before.
    fn may_hide(&self, write: &Write, newest: &Write, known: Version, read: &Read) -> bool {
        if write.outcome == Outcome::Refused || write.begun.mono >= read.ended.mono {
            return false;
        }
        let version = self.versions.get(&write.id);
        let may_be_newest = match version {
            Some(version) => *version >= known,
            // It was stamped before its process ended, and `newest` after that.
            None => newest.begun.mono <= write.dead_by,
        };
        let hides = match write.what {
            What::Delete => true,
            What::Put { ttl: None } => false,
            What::Put { ttl: Some(ttl) } => write.begun.wall + ttl <= read.ended.wall,
        };
        may_be_newest && hides
    }
}

/// Whether a record of `write` may expire at `expires`: its TTL after the node's clock at the time of the
/// write. That time is between the request and its answer; for a write without an answer, at some time after
/// the request.
fn is_expiry_of(write: &Write, ttl: Option<u64>, expires: Option<u64>) -> bool {
    match (ttl, expires) {
        (None, None) => true,
        (Some(ttl), Some(at)) => {
            let is_answered = matches!(write.outcome, Outcome::Acked(_));
            at >= write.begun.wall + ttl && (!is_answered || at <= write.ended.wall + ttl)
        }
        _ => false,
    }
}
