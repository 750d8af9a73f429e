//! Tests of the checker of histories: good histories pass, and each kind of bad one is detected.
//!
//! The fault tests are only as good as this checker.

use super::testing::{at, version};
use super::{Class, History, Outcome, Read, Saw, What, Write, id_of, value_of};

/// A write of number `id` that lasted from `begun` to `ended`.
fn write(id: u64, what: What, begun: u64, ended: u64, outcome: Outcome) -> Write {
    let (begun, ended) = (at(begun), at(ended));
    let key = b"k".to_vec();
    Write { id, key, class: Class::ALONE, node: 0, what, begun, ended, outcome, dead_by: u64::MAX }
}

fn put(id: u64, begun: u64, ended: u64) -> Write {
    write(id, What::Put { ttl: None }, begun, ended, Outcome::Acked(version(begun)))
}

fn put_ttl(id: u64, ttl: u64, begun: u64, ended: u64) -> Write {
    write(id, What::Put { ttl: Some(ttl) }, begun, ended, Outcome::Acked(version(begun)))
}

fn delete(id: u64, begun: u64, ended: u64) -> Write {
    write(id, What::Delete, begun, ended, Outcome::Acked(version(begun)))
}

fn unknown(id: u64, what: What, begun: u64, dead_by: u64) -> Write {
    Write { dead_by, ..write(id, what, begun, begun + 1, Outcome::Unknown) }
}

/// A read from `begun` to `ended` that saw write `id` with the version of `millis`.
fn saw(id: u64, millis: u64, begun: u64, ended: u64) -> Read {
    let saw = Saw::Value { id: Some(id), version: version(millis), expires: None };
    Read { saw, ..saw_nothing(begun, ended) }
}

fn saw_expiring(id: u64, millis: u64, expires: u64, begun: u64, ended: u64) -> Read {
    let saw = Saw::Value { id: Some(id), version: version(millis), expires: Some(expires) };
    Read { saw, ..saw_nothing(begun, ended) }
}

fn saw_nothing(begun: u64, ended: u64) -> Read {
    let (begun, ended) = (at(begun), at(ended));
    Read { key: b"k".to_vec(), class: Class::ALONE, node: 0, begun, ended, saw: Saw::Absent }
}

const PUT: What = What::PUT;

/// Checks one history: `expect` is a part of the only kind of violation in it, or empty for none.
#[track_caller]
fn check(expect: &str, writes: &[Write], reads: &[Read]) {
    let history = History { writes: writes.to_vec(), reads: reads.to_vec(), ..History::default() };
    let violations = history.violations();
    if expect.is_empty() {
        assert!(violations.is_empty(), "{violations:#?}");
    } else {
        assert!(violations.iter().any(|violation| violation.contains(expect)), "{expect}: {violations:#?}");
    }
}

/// Histories that a correct node may show.
#[test]
fn good_histories_pass() {
    check("", &[], &[saw_nothing(1, 2)]);
    check("", &[put(1, 10, 20)], &[saw_nothing(1, 15), saw(1, 10, 12, 16), saw(1, 10, 30, 31)]);
    check(
        "",
        &[put(1, 10, 20), put(2, 30, 40)],
        &[saw(1, 10, 35, 39), saw(2, 30, 36, 45), saw(2, 30, 50, 51)],
    );
    check(
        "",
        &[put(1, 10, 20), delete(2, 30, 40)],
        &[saw(1, 10, 25, 35), saw_nothing(32, 36), saw_nothing(50, 60)],
    );
    check(
        "",
        &[put(1, 10, 20), delete(2, 30, 40), put(3, 50, 60)],
        &[saw_nothing(45, 46), saw(3, 50, 70, 71)],
    );
    check(
        "",
        &[put_ttl(1, 50, 10, 20)],
        &[saw_expiring(1, 10, 60, 50, 70), saw_nothing(55, 60), saw_nothing(80, 81)],
    );
    // Unknown outcomes: seen, never seen, seen late but within the process's run.
    check(
        "",
        &[put(1, 10, 20), unknown(2, PUT, 30, 90)],
        &[saw(1, 10, 40, 41), saw(2, 30, 60, 61), saw(2, 30, 95, 96)],
    );
    check("", &[put(1, 10, 20), unknown(2, PUT, 30, 90)], &[saw(1, 10, 95, 96)]);
    check(
        "",
        &[put(1, 10, 20), unknown(2, What::Delete, 30, 90)],
        &[saw(1, 10, 40, 41), saw_nothing(60, 61)],
    );
    check("", &[put(1, 10, 20), unknown(2, What::Put { ttl: Some(5) }, 30, 90)], &[saw_nothing(40, 41)]);
}

#[test]
fn lost_writes_are_found() {
    check("lost", &[put(1, 10, 20)], &[saw_nothing(30, 31)]);
    check("went back", &[put(1, 10, 20), put(2, 30, 40)], &[saw(1, 10, 50, 51)]);
    check("lost", &[put(1, 10, 20), delete(2, 30, 40), put(3, 50, 60)], &[saw_nothing(70, 71)]);
    // A value that a read has shown counts as acknowledged.
    check("lost", &[unknown(1, PUT, 10, 90)], &[saw(1, 10, 20, 21), saw_nothing(30, 31)]);
    // A delete that had been superseded, or refused, explains no absence.
    check("lost", &[delete(1, 5, 8), put(2, 10, 20)], &[saw_nothing(30, 31)]);
    check(
        "lost",
        &[put(1, 10, 20), write(2, What::Delete, 25, 26, Outcome::Refused)],
        &[saw_nothing(30, 31)],
    );
    // Nor does one of unknown outcome whose process had ended before the lost write began.
    check("lost", &[unknown(1, What::Delete, 5, 9), put(2, 10, 20)], &[saw_nothing(30, 31)]);
    // Gone before its time.
    check("lost", &[put_ttl(1, 50, 10, 20)], &[saw_nothing(30, 40)]);
    check("lost", &[put(1, 10, 20), unknown(2, What::Put { ttl: Some(50) }, 30, 90)], &[saw_nothing(60, 61)]);
}

#[test]
fn reads_that_go_back_are_found() {
    let writes = [put(1, 10, 20), unknown(2, PUT, 30, 90)];
    check("went back", &writes, &[saw(2, 30, 40, 41), saw(1, 10, 50, 51)]);
    // Concurrent reads may see either value; so may one that begins before the other ends.
    check("", &writes, &[saw(2, 30, 40, 55), saw(1, 10, 50, 60)]);
}

#[test]
fn resurrected_keys_are_found() {
    check("went back", &[put(1, 10, 20), delete(2, 30, 40)], &[saw(1, 10, 50, 51)]);
    // The delete's outcome is unknown, but a read saw it.
    let writes = [put(1, 10, 20), unknown(2, What::Delete, 30, 90)];
    check("came back", &writes, &[saw_nothing(40, 41), saw(1, 10, 50, 51)]);
    check("served after its expiry", &[put_ttl(1, 50, 10, 20)], &[saw_expiring(1, 10, 60, 60, 61)]);
}

#[test]
fn wrong_values_are_found() {
    check("nobody wrote", &[put(1, 10, 20)], &[saw(7, 10, 30, 31)]);
    check("not written", &[write(1, PUT, 10, 20, Outcome::Refused)], &[saw(1, 10, 30, 31)]);
    check("not written", &[put(1, 10, 20)], &[saw(1, 10, 5, 9)]);
    check("another version", &[put(1, 10, 20)], &[saw(1, 11, 30, 31)]);
    check("another version", &[unknown(1, PUT, 10, 90)], &[saw(1, 11, 30, 31), saw(1, 12, 30, 31)]);
    check("the value of a delete", &[delete(1, 10, 20)], &[saw(1, 10, 30, 31)]);
    check("another expiry", &[put_ttl(1, 50, 10, 20)], &[saw_expiring(1, 10, 59, 30, 31)]);
    check("another expiry", &[put_ttl(1, 50, 10, 20)], &[saw_expiring(1, 10, 71, 30, 31)]);
    check("another expiry", &[put_ttl(1, 50, 10, 20)], &[saw(1, 10, 30, 31)]);
}

#[test]
fn versions_that_do_not_rise_are_found() {
    let with = |millis, write: Write| Write { outcome: Outcome::Acked(version(millis)), ..write };
    check("does not rise", &[with(50, put(1, 10, 20)), with(49, put(2, 30, 40))], &[]);
    check("", &[with(50, put(1, 10, 35)), with(49, put(2, 30, 40))], &[]);
    check("one version for two", &[with(50, put(1, 10, 35)), with(50, put(2, 30, 40))], &[]);
    // A write that was seen after its process had ended was stamped before the next process's writes.
    let writes = [unknown(1, PUT, 10, 25), with(50, put(2, 30, 40))];
    check("does not rise", &writes, &[saw(1, 60, 28, 29)]);
    check("", &writes, &[saw(1, 15, 28, 29)]);
}

/// A value names its write only if every byte is there and unchanged.
#[test]
fn values_carry_their_write() {
    for bytes in [0, 24, 25, 100, 70_000] {
        let value = value_of(42, bytes);
        assert_eq!(id_of(&value), Some(42));
        assert_eq!(id_of(&value[..value.len() - 1]), None);
        for index in [0, 20, value.len() / 2, value.len() - 1] {
            let mut damaged = value.clone();
            damaged[index] ^= 1;
            assert_ne!(id_of(&damaged), Some(42), "byte {index} of {bytes}");
        }
    }
    assert_eq!(id_of(b""), None);
}
