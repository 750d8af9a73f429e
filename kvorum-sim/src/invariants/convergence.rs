//! Convergence: after all faults have ended and repair is done, the replicas of a key are equal, byte for
//! byte.
//!
//! Checked with background repair; without it, where hints suffice.
//! - If the newest record of a key is live, as many nodes as its `from` hold exactly it.
//! - If it is a tombstone or expired, the same applies while nothing is purged; later some nodes may have
//!   dropped it already. An expired value and the tombstone that it became are equal.
//! - Where members have changed, no more nodes than its `from` hold it: former owners have dropped their copies.
//! - In both cases, where stale copies are dropped, no node holds an older live record. Until that mechanism
//!   exists, nodes beyond the newest record's `from` may.
//! - With purge, no tombstone is left in the end in a partition whose replicas agree. Older copies in the
//!   partition, and clocks without a known error, may delay that.
//! - Where the clocks' error is not known, no record that expires is judged.
//! - A key with an unreadable row on a node is not judged if no other node has that record or a newer one to
//!   repair it from.

use super::facts::Dump;
use super::{Facts, Violation};
use crate::history::History;
use bytes::Bytes;
use kvorum_core::{Partition, Record, Token, UnixMillis, Value, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The width of partitions in clusters that are named by URLs alone.
const PARTITION_BITS: u8 = 12;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    if !(facts.mechanisms.repair || facts.hints_suffice) || facts.converged.is_none() {
        return Ok(());
    }
    let Some((key, explanation)) = check_disks(facts) else { return Ok(()) };
    let by_key = history.by_key();
    let operations = by_key.get(key).map_or(&[][..], |of_key| of_key.as_slice());
    Err(Violation::on_key("convergence", key, explanation, operations))
}

/// The first key that is missing or different on a node that must hold it, and the difference.
pub fn check_disks(facts: &Facts) -> Option<(&Bytes, String)> {
    let keys: BTreeSet<&Bytes> = facts.dumps.iter().flat_map(|dump| dump.records.keys()).collect();
    let is_judged =
        |key: &&Bytes| {
            facts.rotten.iter().filter(|(rotten, _, _)| rotten == *key).all(|(_, node, version)| {
                facts.mechanisms.heal_rot && has_another(key, *node, *version, facts)
            })
        };
    let differing = keys.iter().copied().filter(is_judged).find_map(|key| Some((key, differs(key, facts)?)));
    differing.or_else(|| lingers(&keys, facts))
}

/// The first tombstone that should have been purged.
fn lingers<'a>(keys: &BTreeSet<&'a Bytes>, facts: &'a Facts) -> Option<(&'a Bytes, String)> {
    // A row that no other node can repair, and a hint for it, block purging.
    let is_held_back = !facts.rotten.is_empty();
    if !facts.mechanisms.purge || facts.clock_error.is_none() || is_held_back {
        return None;
    }
    let partition = |key: &Bytes| Token::of(key).partition(PARTITION_BITS);
    let held_back: BTreeSet<Partition> =
        keys.iter().copied().filter(|key| has_older_copies(key, facts)).map(partition).collect();
    let dead = |key: &&&Bytes| !held_back.contains(&partition(key));
    keys.iter().filter(dead).find_map(|key| {
        let holds =
            |dump: &&Dump| dump.records.get(*key).is_some_and(|record| record.value == Value::Tombstone);
        let holders: Vec<u16> = facts.dumps.iter().filter(holds).map(|dump| dump.node).collect();
        (!holders.is_empty()).then(|| (*key, format!("the nodes {holders:?} still hold its tombstone")))
    })
}

fn has_older_copies(key: &Bytes, facts: &Facts) -> bool {
    let mut versions =
        facts.dumps.iter().filter_map(|dump| dump.records.get(key)).map(|record| record.version);
    versions.next().is_some_and(|first| versions.any(|version| version != first))
}

/// Whether a node other than `node` has `key` with this version or a newer one.
fn has_another(key: &Bytes, node: u16, version: Version, facts: &Facts) -> bool {
    let others = facts.dumps.iter().filter(|dump| dump.node != node);
    others.filter_map(|dump| dump.records.get(key)).any(|record| record.version >= version)
}

fn differs(key: &Bytes, facts: &Facts) -> Option<String> {
    let held: BTreeMap<u16, &Record> =
        facts.dumps.iter().filter_map(|dump| Some((dump.node, dump.records.get(key)?))).collect();
    let newest = *held.values().max_by(|a, b| a.newness(b))?;
    let now = facts.dumps.iter().map(|dump: &Dump| dump.wall).max().unwrap_or(UnixMillis(0));
    if newest.expires.is_some() && facts.clock_error.is_none() {
        return None;
    }
    let is_live = newest.live(now).is_some();
    // A cluster of one purges tombstones at once: no other node can hold an older record.
    let must_be_there = is_live || !facts.mechanisms.purge && facts.nodes > 1;
    let older: Vec<u16> = held
        .iter()
        .filter(|(_, record)| record.version < newest.version && record.live(now).is_some())
        .map(|(node, _)| *node)
        .collect();
    let holders: Vec<u16> =
        held.iter().filter(|(_, record)| record.version == newest.version).map(|(node, _)| *node).collect();
    let expected = usize::from(newest.from.min(facts.nodes));
    if must_be_there && holders.len() < expected {
        return Some(format!("{} should be on {expected} nodes and is on {holders:?}", newest.version));
    }
    // Where nothing has moved, `copies` judges it, for the whole time.
    if facts.has_moved && holders.len() > usize::from(newest.from) {
        return Some(format!(
            "{} was written for {} nodes and is on {holders:?}",
            newest.version, newest.from
        ));
    }
    if facts.mechanisms.drop_stale && !older.is_empty() {
        return Some(format!(
            "{} is the newest; the nodes {older:?} still hold something older",
            newest.version
        ));
    }
    let unlike =
        held.iter().find(|(_, record)| record.version == newest.version && is_live && **record != newest);
    unlike.map(|(node, record)| format!("node {node} holds {record:?} and another one {newest:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Mechanisms;
    use super::super::testing::*;
    use super::*;
    use crate::history::Operation;

    fn run(records: [Option<Record>; 3]) -> Result<(), Violation> {
        judge(records, true)
    }

    fn judge(records: [Option<Record>; 3], purge: bool) -> Result<(), Violation> {
        let dumps = (0..3)
            .zip(records)
            .map(|(node, record)| Dump {
                node,
                at: millis(10_000),
                wall: UnixMillis(facts().epoch.0 + 10_000),
                records: record.into_iter().map(|record| (Bytes::from_static(b"k"), record)).collect(),
            })
            .collect();
        let operations: [Operation; 1] = [put(1, 0, 10, 5)];
        let mechanisms = Mechanisms { purge, ..facts().mechanisms };
        check(&history(operations), &Facts { dumps, mechanisms, ..facts() })
    }

    /// A replica without the newest record, with an older one, or with other bytes is detected.
    #[test]
    fn differences_are_found() {
        let value = || Some(record(5, 3, Some("v")));
        assert_eq!(run([value(), value(), value()]), Ok(()));
        assert!(run([value(), value(), None]).is_err());
        assert!(run([value(), value(), Some(record(4, 3, Some("v")))]).is_err());
        assert!(run([value(), value(), Some(record(5, 3, Some("w")))]).is_err());
        assert!(run([Some(record(5, 1, Some("v"))), Some(record(4, 3, Some("v"))), None]).is_err());
        assert_eq!(run([Some(record(5, 1, Some("v"))), None, None]), Ok(()));
    }

    /// A row that could not be read must be repaired if another node has it, and need not be if none has.
    #[test]
    fn rot_is_healed_where_it_can_be() {
        let run = |records: [Option<Record>; 3], at: u64, heal_rot: bool| {
            let dumps = (0..3).zip(records).map(|(node, record)| Dump {
                node,
                records: record.into_iter().map(|record| (Bytes::from_static(b"k"), record)).collect(),
                ..Dump::default()
            });
            let rotten = vec![(Bytes::from_static(b"k"), 2, version(at))];
            let mechanisms = Mechanisms { heal_rot, ..facts().mechanisms };
            let operations: [Operation; 1] = [put(1, 0, 10, 5)];
            check(&history(operations), &Facts { dumps: dumps.collect(), mechanisms, rotten, ..facts() })
        };
        let value = || Some(record(5, 3, Some("v")));
        assert!(run([value(), value(), None], 5, true).is_err());
        assert_eq!(run([value(), value(), None], 6, true), Ok(()), "newer than any other");
        assert_eq!(run([value(), value(), None], 5, false), Ok(()));
        assert_eq!(run([value(), value(), value()], 5, true), Ok(()));
    }

    /// Tombstones may be purged on some nodes only; an expired value equals its tombstone; older values may
    /// not stay.
    #[test]
    fn the_dead_are_equal() {
        let run = |records| judge(records, true);
        let tombstone = || Some(record(5, 3, None));
        let expires = Some(UnixMillis(facts().epoch.0 + 100));
        let value = Record { expires, ..record(5, 3, Some("v")) };
        let dead = Record { expires, ..record(5, 3, None) };
        assert_eq!(run([Some(value.clone()), None, None]), Ok(()));
        // All agree, and some still hold a tombstone or an expired value: it should have been purged.
        assert!(run([tombstone(), None, tombstone()]).is_err());
        assert!(run([Some(value.clone()), Some(dead), None]).is_err());
        assert!(run([tombstone(), Some(record(4, 3, Some("v"))), None]).is_err());
        // Purge is off: a tombstone that is gone was lost.
        assert!(judge([tombstone(), None, tombstone()], false).is_err());
        assert_eq!(judge([tombstone(), tombstone(), tombstone()], false), Ok(()));
    }
}
