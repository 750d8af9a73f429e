//! Judges the copies that are left of every key when all nodes are well.

use super::{History, Outcome, What, Write};
use kvorum_core::Version;
use std::collections::BTreeMap;

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
                Outcome::Acked(version) => Some((version, write.what, write.begun.mono)),
                _ => None,
            };
            let newest = writes.iter().filter_map(|write| acked(&write)).max_by_key(|(version, ..)| *version);
            let expected = match newest {
                Some((_, What::Put { .. }, _)) => from,
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
                *node == write.node && (write.begun.mono..write.ended.mono + BUSY_NANOS).contains(at)
            }),
        };
        is_unsure && since < write.ended.mono + BUSY_NANOS + AHEAD_NANOS
    }
}
