//! The operations of a cluster's clients and their results, and the checker that decides whether they keep
//! the contract.
//!
//! Every write has a number of its own, which its value carries. A key's requests all have the quorums of its
//! [`Class`], so it is known per key which of them overlap. The checker works key by key with the versions
//! that nodes showed, in about O(n log n):
//!
//! - a read that begins after an overlapping write was acknowledged, or after an overlapping read saw a
//!   value, sees that or a newer value; a write that is acknowledged and began after them has a higher
//!   version;
//! - a read sees the value of some write that had begun; a version belongs to one write; no version of an
//!   acknowledged write (it may have been stamped again) is above the one it was acknowledged with;
//! - a read that sees nothing has a cause: a delete that may be above all known versions;
//! - a value that such a read saw gone does not come back;
//! - a write takes effect once: overlapping reads, one after another, never see it, then another value, then
//!   it;
//! - a write of unknown outcome may take effect at any later time, or never; a refused one has not.

use crate::faults_support::history::{Moment, Outcome};
use kvorum_core::Version;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

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
    /// All requests with the node's default of `ack`/`from`.
    pub const fn default(ack: u16, from: u16) -> Self {
        Self { name: "default", write: (ack, from), read: (ack, from), also: &[], is_default: true }
    }

    /// Writes with one quorum, reads with another.
    pub const fn new(name: &'static str, write: (u16, u16), read: (u16, u16)) -> Self {
        Self { name, write, read, also: &[], is_default: false }
    }

    /// The same class with further quorums.
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
    Put,
    /// Delete.
    Delete,
}

/// A write as its client saw it. Instants are monotonic nanoseconds.
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
    pub begun: u64,
    /// An instant after the answer had arrived, or the client had given up.
    pub ended: u64,
    /// Its result.
    pub outcome: Outcome,
}

/// The result of a read: the number of the write (`None` for bytes that no client sent) with its version, or
/// no value.
pub type Saw = Option<(Option<u64>, Version)>;

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
    pub begun: u64,
    /// An instant after the answer had arrived.
    pub ended: u64,
    /// Its result.
    pub saw: Saw,
}

/// Any request, for statistics.
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
    /// The status; 0 for a cut connection, 1 for none, 2 for no answer in time.
    pub status: u16,
}

impl Asked {
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

/// How long after an answer its coordinator may still be busy with slow replicas: the request time-out and a
/// margin. A coordinator that is killed within that time may leave a replica without the write and without a
/// hint.
const BUSY_NANOS: u64 = 1_500_000_000;
/// How far a version may be ahead of a machine's clock if the nodes' clocks agree: a lease, and as much
/// again.
const AHEAD_NANOS: u64 = 2_000_000_000;

/// Copies by key and node: version and write.
pub type Copies = BTreeMap<Vec<u8>, BTreeMap<usize, (Version, Option<u64>)>>;

/// The verdict on the copies of all keys.
#[derive(Debug, Default)]
pub struct Repair {
    /// Keys that must be equal everywhere and are.
    pub equal: usize,
    /// Keys that need not be equal: the write that may have left them unequal was in flight when its
    /// coordinator was killed, or is of unknown outcome.
    pub unsure: usize,
    /// The keys among the unsure ones that are not equal.
    pub unrepaired: usize,
    /// The violations.
    pub wrong: Vec<String>,
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

    /// Records that a node was killed just now.
    pub fn killed(&mut self, node: usize) {
        self.kills.push((node, Moment::now().mono));
    }

    /// Keys with their quorums.
    pub fn keys(&self) -> BTreeMap<Vec<u8>, Class> {
        self.writes.iter().map(|write| (write.key.clone(), write.class)).collect()
    }

    /// Counts, as text.
    pub fn summary(&self) -> String {
        let acked = self.writes.iter().filter(|write| matches!(write.outcome, Outcome::Acked(_))).count();
        let refused = self.writes.iter().filter(|write| write.outcome == Outcome::Refused).count();
        let unknown = self.writes.len() - acked - refused;
        let absent = self.reads.iter().filter(|read| read.saw.is_none()).count();
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

    /// Everything that breaks the contract.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = self.complaints.clone();
        let mut keys: BTreeMap<&[u8], (Vec<&Write>, Vec<&Read>)> = BTreeMap::new();
        for write in &self.writes {
            keys.entry(&write.key).or_default().0.push(write);
        }
        for read in &self.reads {
            keys.entry(&read.key).or_default().1.push(read);
        }
        for (key, (writes, reads)) in keys {
            KeyCheck::new(key, &writes, &reads, &mut violations).check();
        }
        violations
    }

    /// Judges the copies that are left of every key when all nodes are well. The copies of a key are the
    /// same: as many as its `from` if the newest write was a PUT, none if it was a DELETE, and never more
    /// than `from`.
    pub fn judge(&self, copies: &Copies) -> Repair {
        let mut repair = Repair::default();
        let mut keys: BTreeMap<&[u8], Vec<&Write>> = BTreeMap::new();
        for write in &self.writes {
            keys.entry(&write.key).or_default().push(write);
        }
        let none = BTreeMap::new();
        for (key, writes) in keys {
            let copies = copies.get(key).unwrap_or(&none);
            let name = key.escape_ascii();
            let from = usize::from(writes[0].class.write.1);
            if copies.len() > from {
                repair.wrong.push(format!("key {name}: more than {from} copies: {copies:?}"));
            }
            let acked = |write: &&&Write| match write.outcome {
                Outcome::Acked(version) => Some((version, write.what, write.begun)),
                _ => None,
            };
            let newest = writes.iter().filter_map(|write| acked(&write)).max_by_key(|(version, ..)| *version);
            let expected = match newest {
                Some((_, What::Put, _)) => from,
                _ => 0,
            };
            let mut versions: Vec<Version> = copies.values().map(|(version, _)| *version).collect();
            versions.dedup();
            let is_equal = versions.len() <= 1 && (copies.len() == from || copies.is_empty());
            let since = newest.map_or(0, |(_, _, begun)| begun);
            if writes.iter().any(|write| self.may_leave_unequal(write, since)) {
                // The winning write is not known, but the copies must be equal in the end all the same.
                repair.unsure += 1;
                if !is_equal {
                    repair.unrepaired += 1;
                    repair.wrong.push(format!("key {name}: its copies differ: {copies:?}"));
                }
            } else if !is_equal || copies.len() != expected {
                repair
                    .wrong
                    .push(format!("key {name}: {expected} equal copies are due: {copies:?} {newest:?}"));
            } else if copies
                .values()
                .any(|(version, _)| Some(*version) != newest.map(|(version, ..)| version))
            {
                repair.wrong.push(format!("key {name}: not the newest: {copies:?} {newest:?}"));
            } else {
                repair.equal += 1;
            }
        }
        repair
    }

    /// Whether `write` may have left the key's copies unequal although another write began at `since`.
    fn may_leave_unequal(&self, write: &Write, since: u64) -> bool {
        let is_unsure = match write.outcome {
            Outcome::Refused => false,
            Outcome::Unknown => true,
            Outcome::Acked(_) => self.kills.iter().any(|(node, at)| {
                *node == write.node && (write.begun..write.ended + BUSY_NANOS).contains(at)
            }),
        };
        is_unsure && since < write.ended + BUSY_NANOS + AHEAD_NANOS
    }
}

/// The highest version known as of each instant.
#[derive(Debug, Default)]
struct Floor {
    /// (Instant, version); versions rise with instants.
    facts: Vec<(u64, Version)>,
}

impl Floor {
    fn of(facts: impl Iterator<Item = (u64, Version)>) -> Self {
        let mut facts: Vec<_> = facts.collect();
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
    key: &'a [u8],
    class: Class,
    writes: &'a [&'a Write],
    reads: &'a [&'a Read],
    by_id: HashMap<u64, &'a Write>,
    by_version: BTreeMap<Version, u64>,
    violations: &'a mut Vec<String>,
}

impl<'a> KeyCheck<'a> {
    fn new(
        key: &'a [u8],
        writes: &'a [&'a Write],
        reads: &'a [&'a Read],
        violations: &'a mut Vec<String>,
    ) -> Self {
        let class = writes.first().map(|write| write.class).or_else(|| reads.first().map(|read| read.class));
        let by_id = writes.iter().map(|write| (write.id, *write)).collect();
        Self { key, class: class.unwrap(), writes, reads, by_id, by_version: BTreeMap::new(), violations }
    }

    fn violation(&mut self, text: &str) {
        self.violations.push(format!("key {} ({}): {text}", self.key.escape_ascii(), self.class.name));
    }

    fn check(mut self) {
        self.bind();
        let acked: Vec<(&Write, Version)> = self.writes.iter().filter_map(|write| acked(write)).collect();
        let seen = |read: &&Read| read.saw.map(|(_, version)| (read.ended, version));
        let seen: Vec<(u64, Version)> = self.reads.iter().filter_map(seen).collect();
        let facts = |of_writes: bool, of_reads: bool| {
            let writes = acked.iter().filter(|_| of_writes).map(|(write, version)| (write.ended, *version));
            Floor::of(writes.chain(seen.iter().filter(|_| of_reads).copied()))
        };
        let Class { write, read, .. } = self.class;
        let over_reads = Class::overlap(read, read);
        let reads_floor = facts(Class::overlap(write, read), over_reads);
        let writes_floor = facts(Class::overlap(write, write), Class::overlap(write, read));
        for (write, version) in &acked {
            if let Some(floor) = writes_floor.before(write.begun).filter(|floor| floor >= version) {
                let known = self.named(floor);
                self.violation(&format!("the version does not rise: {known} was known before {write:?}"));
            }
        }
        let gone = self.reads.iter().filter(|read| over_reads && read.saw.is_none());
        let gone = gone.filter_map(|read| Some((read.ended, reads_floor.before(read.begun)?)));
        let gone = Floor::of(gone.collect::<Vec<_>>().into_iter());
        for read in self.reads {
            let Some(known) = reads_floor.before(read.begun) else { continue };
            match read.saw {
                Some((_, version)) => {
                    if version < known {
                        let newest = self.named(known);
                        self.violation(&format!("went back: {read:?}; known before: {newest}"));
                    }
                    if gone.before(read.begun).is_some_and(|gone| version <= gone) {
                        self.violation(&format!("came back after it had been seen to be gone: {read:?}"));
                    }
                }
                None => {
                    if !self.writes.iter().any(|write| may_hide(write, known, read)) {
                        let newest = self.named(known);
                        self.violation(&format!("lost: {read:?} does not see {newest}"));
                    }
                }
            }
        }
        if over_reads {
            self.check_once();
        }
    }

    fn named(&self, version: Version) -> String {
        let write = self.by_version.get(&version).and_then(|id| self.by_id.get(id));
        write.map_or_else(|| version.to_string(), |write| format!("{version} of {write:?}"))
    }

    /// Finds the write of each version.
    fn bind(&mut self) {
        let acked: Vec<(u64, Version)> =
            self.writes.iter().filter_map(|write| acked(write)).map(|(write, at)| (write.id, at)).collect();
        for (id, version) in acked {
            if let Some(other) = self.by_version.insert(version, id) {
                self.violation(&format!("one version for two writes: {version} of {other} and {id}"));
            }
        }
        for read in self.reads {
            let Some((id, version)) = read.saw else { continue };
            let Some(write) = id.and_then(|id| self.by_id.get(&id).copied()) else {
                self.violation(&format!("a value that nobody wrote: {read:?}"));
                continue;
            };
            if write.outcome == Outcome::Refused || write.begun >= read.ended || write.what == What::Delete {
                self.violation(&format!("a value that was not written: {read:?} of {write:?}"));
            }
            if acked_version(write).is_some_and(|acked| version > acked) {
                self.violation(&format!("a later version than was acknowledged: {read:?} of {write:?}"));
            }
            let other = *self.by_version.entry(version).or_insert(write.id);
            if other != write.id {
                self.violation(&format!("one version for two writes: {other} and {read:?} of {write:?}"));
            }
        }
    }

    /// Checks that a write is not seen again once another value was seen after it.
    fn check_once(&mut self) {
        let mut spans: HashMap<u64, (u64, u64)> = HashMap::new();
        for read in self.reads {
            if let Some((Some(id), _)) = read.saw {
                let span = spans.entry(id).or_insert((u64::MAX, 0));
                *span = (span.0.min(read.ended), span.1.max(read.begun));
            }
        }
        let mut reads: Vec<&Read> = self.reads.to_vec();
        reads.sort_unstable_by_key(|read| read.begun);
        for (id, (first_ended, last_begun)) in spans {
            let behind = reads.partition_point(|read| read.begun <= first_ended);
            let between = reads[behind..].iter().take_while(|read| read.begun < last_begun);
            let is_other =
                |read: &&&Read| read.saw.and_then(|(id, _)| id) != Some(id) && read.ended < last_begun;
            if let Some(other) = between.filter(is_other).min_by_key(|read| read.begun) {
                let all = self.reads.iter().filter(|read| read.saw.and_then(|(id, _)| id) == Some(id));
                let mut versions: Vec<Version> = all.filter_map(|read| Some(read.saw?.1)).collect();
                versions.sort_unstable();
                versions.dedup();
                let write = self.by_id.get(&id);
                self.violation(&format!("took effect twice, as {versions:?}: {write:?}; between: {other:?}"));
            }
        }
    }
}

fn acked_version(write: &Write) -> Option<Version> {
    match write.outcome {
        Outcome::Acked(version) => Some(version),
        _ => None,
    }
}

fn acked<'a>(write: &&'a Write) -> Option<(&'a Write, Version)> {
    Some((*write, acked_version(write)?))
}

/// Whether `write` explains that `read` saw nothing although version `known` was known before.
fn may_hide(write: &Write, known: Version, read: &Read) -> bool {
    let may_be_newest = acked_version(write).is_none_or(|version| version >= known);
    write.what == What::Delete
        && write.outcome != Outcome::Refused
        && write.begun < read.ended
        && may_be_newest
}
