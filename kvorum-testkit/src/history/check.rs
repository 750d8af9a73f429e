//! Decides whether the results of the clients' operations keep the contract.
//!
//! Works key by key with the versions that nodes showed, in about O(n log n):
//!
//! - a read that begins after an overlapping write was acknowledged, or after an overlapping read saw a
//!   value, sees that or a newer value (the *floor*); a write that is acknowledged and began after them has a higher
//!   version;
//! - a read sees the value of some write that had begun, with the expiry that its TTL gives, and never after that;
//!   a version belongs to one write; no version of an acknowledged write (it may have been stamped again) is above
//!   the one it was acknowledged with;
//! - a read that sees nothing has a cause: a delete or an expiry that may be above all known versions;
//! - a value that such a read saw gone does not come back;
//! - a write takes effect once: overlapping reads, one after another, never see it, then another value, then
//!   it;
//! - a write of unknown outcome may take effect at any later time until it is dead, or never; a refused one has not.
//!
//! Of the keys of a node without peers ([`Class::ALONE`]) more is known: a write is stamped once, so all reads show
//! the same version of it, and one that was seen rises above what was known before it as if it was acknowledged.

use super::{Class, History, Outcome, Read, Saw, What, Write};
use kvorum_core::Version;
use std::collections::{BTreeMap, HashMap};

impl History {
    /// Everything that breaks the contract.
    pub fn violations(&self) -> Vec<String> {
        self.check_each_key(|mut check| {
            check.bind();
            check.check_order();
        })
    }

    /// The weaker check, for a node that may have lost its latest writes: every read returned the value of
    /// some write to that key, with its version.
    pub fn wrong_values(&self) -> Vec<String> {
        self.check_each_key(|mut check| check.bind())
    }

    fn check_each_key(&self, check: impl Fn(KeyCheck<'_>)) -> Vec<String> {
        let mut violations = self.complaints.clone();
        let mut keys: BTreeMap<&[u8], (Vec<&Write>, Vec<&Read>)> = BTreeMap::new();
        for write in &self.writes {
            keys.entry(&write.key).or_default().0.push(write);
        }
        for read in &self.reads {
            keys.entry(&read.key).or_default().1.push(read);
        }
        for (key, (writes, reads)) in keys {
            check(KeyCheck::new(key, &writes, &reads, &mut violations));
        }
        violations
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
    /// The final versions of writes that are known: those of acknowledgements; where a write is stamped once, also
    /// those that a read has shown.
    versions: HashMap<u64, Version>,
    /// Every version that was shown, with its write.
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
        let versions = writes.iter().filter_map(|write| Some((write.id, write.outcome.acked()?))).collect();
        let by_version = BTreeMap::new();
        Self { key, class: class.unwrap(), writes, reads, by_id, versions, by_version, violations }
    }

    fn violation(&mut self, text: &str) {
        self.violations.push(format!("key {} ({}): {text}", self.key.escape_ascii(), self.class.name));
    }

    fn is_stamped_once(&self) -> bool {
        self.class == Class::ALONE
    }

    /// Checks what was seen in which order. The writes of all values that were read must be known.
    fn check_order(mut self) {
        self.name_versions();
        let Class { write, read, .. } = self.class;
        let (over_writes, over_both, over_reads) =
            (Class::overlap(write, write), Class::overlap(write, read), Class::overlap(read, read));
        let writes_floor = self.floor(over_writes, over_both);
        let reads_floor = self.floor(over_both, over_reads);
        self.check_rising(&writes_floor);
        let gone = self.reads.iter().filter(|read| over_reads && read.saw == Saw::Absent);
        let gone = gone.filter_map(|read| Some((read.ended.mono, reads_floor.before(read.begun.mono)?)));
        let gone = Floor::of(gone);
        for read in self.reads {
            let Some(known) = reads_floor.before(read.begun.mono) else { continue };
            if let Some((_, version)) = read.seen() {
                if version < known {
                    let newest = self.named(known);
                    self.violation(&format!("went back: {read:?}; known before: {newest}"));
                }
                if gone.before(read.begun.mono).is_some_and(|gone| version <= gone) {
                    self.violation(&format!("came back after it had been seen to be gone: {read:?}"));
                }
            } else if !self.writes.iter().any(|write| self.may_hide(write, known, read)) {
                let newest = self.named(known);
                self.violation(&format!("lost: {read:?} does not see {newest}"));
            }
        }
        if over_reads {
            self.check_once();
        }
    }

    /// The known versions of the key, each with the instant from which on it is known.
    fn floor(&self, of_writes: bool, of_reads: bool) -> Floor {
        let written = |write: &&Write| {
            let since = match write.outcome {
                Outcome::Acked(_) => write.ended.mono,
                // It was seen, so it has taken effect: at the latest when its process ended.
                _ => write.dead_by,
            };
            Some((since, *self.versions.get(&write.id)?))
        };
        let written = self.writes.iter().filter(|_| of_writes).filter_map(written);
        let seen = self.reads.iter().filter(|_| of_reads);
        let seen = seen.filter_map(|read| Some((read.ended.mono, read.seen()?.1)));
        Floor::of(written.chain(seen))
    }

    fn check_rising(&mut self, floor: &Floor) {
        for write in self.writes {
            let Some(version) = self.versions.get(&write.id).copied() else { continue };
            if let Some(known) = floor.before(write.begun.mono).filter(|known| *known >= version) {
                let known = self.named(known);
                self.violation(&format!(
                    "the version does not rise: {known} was known before {write:?}, which has {version}"
                ));
            }
        }
    }

    fn write_of(&self, version: Version) -> Option<&'a Write> {
        self.by_version.get(&version).and_then(|id| self.by_id.get(id)).copied()
    }

    fn named(&self, version: Version) -> String {
        self.write_of(version).map_or_else(|| version.to_string(), |write| format!("{version} of {write:?}"))
    }

    /// Finds the write of each value that was read.
    fn bind(&mut self) {
        for read in self.reads {
            let Saw::Value { id, version, expires } = read.saw else { continue };
            let Some(write) = id.and_then(|id| self.by_id.get(&id).copied()) else {
                self.violation(&format!("a value that nobody wrote: {read:?}"));
                continue;
            };
            if write.outcome == Outcome::Refused || write.begun.mono >= read.ended.mono {
                self.violation(&format!("a value that was not written: {read:?} of {write:?}"));
            }
            if self.is_stamped_once() {
                let bound = *self.versions.entry(write.id).or_insert(version);
                if bound != version {
                    self.violation(&format!("another version than {bound}: {read:?} of {write:?}"));
                }
            } else if write.outcome.acked().is_some_and(|acked| version > acked) {
                self.violation(&format!("a later version than was acknowledged: {read:?} of {write:?}"));
            }
            let What::Put { ttl } = write.what else {
                self.violation(&format!(
                    "the value of a delete, which was not written: {read:?} of {write:?}"
                ));
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

    /// Finds the write of each version. No two writes may have the same version.
    fn name_versions(&mut self) {
        let acked = self.writes.iter().filter_map(|write| Some((write.outcome.acked()?, write.id)));
        let seen = self.reads.iter().filter_map(|read| read.seen());
        let seen =
            seen.filter_map(|(id, version)| Some((version, id.filter(|id| self.by_id.contains_key(id))?)));
        for (version, id) in acked.chain(seen).collect::<Vec<_>>() {
            let other = *self.by_version.entry(version).or_insert(id);
            if other != id {
                let (other, write) = (self.by_id.get(&other), self.by_id.get(&id));
                let text = format!("one version for two writes: {version} of {other:?} and {write:?}");
                self.violation(&text);
            }
        }
    }

    /// Checks that a write is not seen again once another value was seen after it.
    fn check_once(&mut self) {
        let seen_id = |read: &Read| read.seen().and_then(|(id, _)| id);
        let mut spans: HashMap<u64, (u64, u64)> = HashMap::new();
        for read in self.reads {
            if let Some(id) = seen_id(read) {
                let span = spans.entry(id).or_insert((u64::MAX, 0));
                *span = (span.0.min(read.ended.mono), span.1.max(read.begun.mono));
            }
        }
        let mut reads: Vec<&Read> = self.reads.to_vec();
        reads.sort_unstable_by_key(|read| read.begun.mono);
        for (id, (first_ended, last_begun)) in spans {
            let behind = reads.partition_point(|read| read.begun.mono <= first_ended);
            let between = reads[behind..].iter().take_while(|read| read.begun.mono < last_begun);
            let is_other = |read: &&&Read| seen_id(read) != Some(id) && read.ended.mono < last_begun;
            if let Some(other) = between.filter(is_other).min_by_key(|read| read.begun.mono) {
                let all = self.reads.iter().filter(|read| seen_id(read) == Some(id));
                let mut versions: Vec<Version> = all.filter_map(|read| Some(read.seen()?.1)).collect();
                versions.sort_unstable();
                versions.dedup();
                let write = self.by_id.get(&id);
                self.violation(&format!("took effect twice, as {versions:?}: {write:?}; between: {other:?}"));
            }
        }
    }

    /// Whether `write` explains that `read` saw nothing although version `known` was known before.
    fn may_hide(&self, write: &Write, known: Version, read: &Read) -> bool {
        if write.outcome == Outcome::Refused || write.begun.mono >= read.ended.mono {
            return false;
        }
        let may_be_newest = match self.versions.get(&write.id) {
            Some(version) => *version >= known,
            // It was stamped before its process ended, and the newest one after that.
            None => self.write_of(known).is_none_or(|newest| newest.begun.mono <= write.dead_by),
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
