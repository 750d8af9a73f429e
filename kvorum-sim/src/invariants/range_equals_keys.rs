//! Ranges equal keys: a range shows every live key once, in order, as a read of each key would.
//!
//! Checked for whole answers: an answer that was cut is not judged. Each key of the range counts as one read
//! that lasted as long as the range did, with the range's quorum. So a missing key needs a cause, and a stale
//! key is a violation. With a limit, keys after the last one shown were not read.

use super::floor::{Floor, Writes};
use super::{Facts, Violation};
use crate::history::{AckFrom, Entry, History, Operation, Outcome, Request};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let by_key = history.by_key();
    let known: BTreeMap<&Bytes, (Floor<'_>, Writes<'_>)> = by_key
        .iter()
        .map(|(key, operations)| (*key, (Floor::of_writes(operations, facts), Writes::of(operations))))
        .collect();
    for range in history.operations() {
        let (Request::Range { end, limit }, Outcome::Range(entries)) = (&range.request, &range.outcome)
        else {
            continue;
        };
        let is_within = |key: &Bytes| *key >= range.key && end.as_ref().is_none_or(|end| key < end);
        if let Some(explanation) = malformed(range, entries, *limit, is_within) {
            return Err(Violation::on_key("range_equals_keys", &range.key, explanation, &[range]));
        }
        let is_cut = limit.is_some_and(|limit| entries.len() as u64 >= limit);
        let last = entries.last().map(|entry| &entry.key).filter(|_| is_cut);
        let shown: BTreeMap<&Bytes, &Entry> = entries.iter().map(|entry| (&entry.key, entry)).collect();
        let was_read = |key: &Bytes| is_within(key) && last.is_none_or(|last| key <= last);
        for (key, (floor, writes)) in known.iter().filter(|(key, _)| was_read(key)) {
            let operations = by_key.get(*key).map_or(&[][..], |of_key| of_key.as_slice());
            if let Some(explanation) = unlike_a_read(range, shown.get(*key).copied(), floor, writes, facts) {
                let mut operations = operations.to_vec();
                operations.push(range);
                return Err(Violation::on_key("range_equals_keys", key, explanation, &operations));
            }
        }
        if let Some(entry) = entries.iter().find(|entry| !known.contains_key(&entry.key)) {
            let explanation = format!("the range #{} shows a key that was never written", range.id);
            return Err(Violation::on_key("range_equals_keys", &entry.key, explanation, &[range]));
        }
    }
    Ok(())
}

fn malformed(
    range: &Operation,
    entries: &[Entry],
    limit: Option<u64>,
    is_within: impl Fn(&Bytes) -> bool,
) -> Option<String> {
    let wrong = if !entries.is_sorted_by(|a, b| a.key < b.key) {
        "is not in order, or shows a key twice"
    } else if entries.iter().any(|entry| !is_within(&entry.key)) {
        "shows a key outside its bounds"
    } else if limit.is_some_and(|limit| entries.len() as u64 > limit) {
        "shows more than its limit"
    } else {
        return None;
    };
    Some(format!("the range #{} {wrong}", range.id))
}

fn unlike_a_read(
    range: &Operation,
    entry: Option<&Entry>,
    floor: &Floor<'_>,
    writes: &Writes<'_>,
    facts: &Facts,
) -> Option<String> {
    if let Some(entry) = entry {
        // A range writes nothing back, so it may show a record that no quorum held.
        let write = entry.write.and_then(|write| writes.get(write).or_else(|| writes.failed(write)));
        if write.is_none_or(|write| write.request == Request::Delete || write.invoked > range.returned) {
            return Some(format!("the range #{} shows a value that nobody wrote to this key", range.id));
        }
    }
    let known = floor.before(range.invoked, |replicas: AckFrom, _| replicas.overlaps(range.replicas))?;
    if writes.are_copies_lost(known.version, known.operation.replicas.from, range, facts) {
        return None;
    }
    match entry {
        Some(entry) if entry.version < known.version => Some(format!(
            "the range #{} shows {}, older than the write #{} ({}), which was acknowledged before it began",
            range.id, entry.version, known.operation.id, known.operation.outcome
        )),
        None if writes.hider(known.version, range, facts).is_none()
            && !writes.may_hide_by_failing(known.operation, range) =>
        {
            Some(format!(
                "the range #{} misses the key; the write #{} ({}) was acknowledged before it began",
                range.id, known.operation.id, known.operation.outcome
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn entry(key: &'static str, write: u64, at: u64) -> Entry {
        Entry { key: Bytes::from_static(key.as_bytes()), write: Some(write), version: version(at) }
    }

    fn run(entries: Vec<Entry>) -> Result<(), Violation> {
        let other = Operation { key: Bytes::from_static(b"l"), ..put(3, 0, 10, 7) };
        let operations = [put(1, 0, 10, 1), put(2, 20, 30, 2), other, range(9, 31, 40, entries)];
        check(&history(operations), &facts())
    }

    /// Missing, stale, foreign, doubled and unordered keys are detected.
    #[test]
    fn wrong_ranges_are_found() {
        assert_eq!(run(vec![entry("k", 2, 2), entry("l", 3, 7)]), Ok(()));
        assert!(run(vec![entry("l", 3, 7)]).is_err());
        assert!(run(vec![entry("k", 1, 1), entry("l", 3, 7)]).is_err());
        assert!(run(vec![entry("k", 3, 7), entry("l", 3, 7)]).is_err());
        assert!(run(vec![entry("l", 3, 7), entry("k", 2, 2)]).is_err());
        assert!(run(vec![entry("k", 2, 2), entry("k", 2, 2), entry("l", 3, 7)]).is_err());
        assert!(run(vec![entry("k", 2, 2), entry("l", 3, 7), entry("m", 3, 7)]).is_err());
    }

    /// With a limit, keys after the last one were not read; all before it were.
    #[test]
    fn limit_ends_a_range() {
        let limited = |entries| {
            let request = Request::Range { end: None, limit: Some(1) };
            let range = Operation { request, ..range(9, 31, 40, entries) };
            let other = Operation { key: Bytes::from_static(b"l"), ..put(3, 0, 10, 7) };
            check(&history([put(1, 0, 10, 1), other, range]), &facts())
        };
        assert_eq!(limited(vec![entry("k", 1, 1)]), Ok(()));
        assert!(limited(vec![entry("l", 3, 7)]).is_err());
        assert!(limited(vec![entry("k", 1, 1), entry("l", 3, 7)]).is_err());
    }

    /// A key deleted while the range ran, or after an unknown delete, may be missing.
    #[test]
    fn concurrent_deletes_may_hide() {
        let run = |other| check(&history([put(1, 0, 10, 1), other, range(9, 31, 40, Vec::new())]), &facts());
        assert_eq!(run(delete(2, 35, 50, 36)), Ok(()));
        assert_eq!(run(unknown(delete(2, 11, 20, 0))), Ok(()));
        assert!(run(delete(2, 41, 50, 42)).is_err());
        assert_eq!(run(failed(Some(1), delete(2, 35, 50, 36))), Ok(()));
        assert!(run(failed(Some(1), delete(2, 41, 50, 42))).is_err());
    }
}
