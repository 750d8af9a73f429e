//! Tests of the checker of clusters' histories: good histories pass, and each kind of bad one is detected.

use super::testing::{at, version};
use super::{Class, Copies, History, Outcome, Read, Saw, What, Write};
use std::collections::BTreeMap;

const DEFAULT: Class = Class::default(2, 3);
/// Neither reads nor writes of this class overlap with any others.
const LOOSE: Class = Class::new("loose", (1, 3), (1, 3));
/// Reads overlap with writes, but not with reads.
const WRITE_ALL: Class = Class::new("write-all", (3, 3), (1, 3));

fn write(id: u64, what: What, begun: u64, ended: u64, outcome: Outcome) -> Write {
    let (begun, ended) = (at(begun), at(ended));
    let key = b"k".to_vec();
    Write { id, key, class: DEFAULT, node: 0, what, begun, ended, outcome, dead_by: u64::MAX }
}

/// A PUT that lasted from `begun` to `ended` and got the version of `begun`.
fn put(id: u64, begun: u64, ended: u64) -> Write {
    write(id, What::PUT, begun, ended, Outcome::Acked(version(begun)))
}

fn put_as(id: u64, millis: u64, begun: u64, ended: u64) -> Write {
    write(id, What::PUT, begun, ended, Outcome::Acked(version(millis)))
}

fn delete(id: u64, begun: u64, ended: u64) -> Write {
    write(id, What::Delete, begun, ended, Outcome::Acked(version(begun)))
}

fn unknown(id: u64, what: What, begun: u64) -> Write {
    write(id, what, begun, begun + 1, Outcome::Unknown)
}

/// A read that saw write `id` with the version of `millis`.
fn saw(id: u64, millis: u64, begun: u64, ended: u64) -> Read {
    let saw = Saw::Value { id: Some(id), version: version(millis), expires: None };
    Read { saw, ..nothing(begun, ended) }
}

fn nothing(begun: u64, ended: u64) -> Read {
    let (begun, ended) = (at(begun), at(ended));
    Read { key: b"k".to_vec(), class: DEFAULT, node: 0, begun, ended, saw: Saw::Absent }
}

/// Checks one history of keys of `class`: `expect` is a part of the expected violation, or empty for none.
#[track_caller]
fn check_as(class: Class, expect: &str, writes: &[Write], reads: &[Read]) {
    let writes = writes.iter().map(|write| Write { class, ..write.clone() }).collect();
    let reads = reads.iter().map(|read| Read { class, ..read.clone() }).collect();
    let violations = History { writes, reads, ..History::default() }.violations();
    if expect.is_empty() {
        assert!(violations.is_empty(), "{violations:#?}");
    } else {
        assert!(violations.iter().any(|violation| violation.contains(expect)), "{expect}: {violations:#?}");
    }
}

#[track_caller]
fn check(expect: &str, writes: &[Write], reads: &[Read]) {
    check_as(DEFAULT, expect, writes, reads);
}

/// Histories that a correct cluster may show.
#[test]
fn good_histories_pass() {
    check("", &[], &[nothing(1, 2)]);
    check("", &[put(1, 10, 20)], &[nothing(1, 15), saw(1, 10, 12, 16), saw(1, 10, 30, 31)]);
    check("", &[put(1, 10, 20), put(2, 30, 40)], &[saw(1, 10, 35, 39), saw(2, 30, 36, 45)]);
    check("", &[put(1, 10, 20), delete(2, 30, 40)], &[saw(1, 10, 25, 35), nothing(32, 36), nothing(50, 60)]);
    check("", &[put(1, 10, 20), delete(2, 30, 40), put(3, 50, 60)], &[nothing(45, 46), saw(3, 50, 70, 71)]);
    // Unknown outcomes: never seen, seen, seen late.
    let writes = [put(1, 10, 20), unknown(2, What::PUT, 30)];
    check("", &writes, &[saw(1, 10, 95, 96)]);
    check("", &writes, &[saw(1, 10, 40, 41), saw(2, 30, 900, 901), saw(2, 30, 950, 960)]);
    check("", &[put(1, 10, 20), unknown(2, What::Delete, 30)], &[saw(1, 10, 40, 41), nothing(600, 601)]);
    // Stamped again: seen with the first stamp, acknowledged with the last.
    check("", &[put_as(1, 15, 10, 20)], &[saw(1, 10, 11, 12), saw(1, 15, 13, 14)]);
}

#[test]
fn lost_writes_are_found() {
    check("lost", &[put(1, 10, 20)], &[nothing(30, 31)]);
    check("lost", &[put(1, 10, 20), delete(2, 30, 40), put(3, 50, 60)], &[nothing(70, 71)]);
    // A value that a read has shown counts as acknowledged.
    check("lost", &[unknown(1, What::PUT, 10)], &[saw(1, 10, 20, 21), nothing(30, 31)]);
    // A delete that was superseded, refused, or not yet begun explains no absence.
    check("lost", &[delete(1, 5, 8), put(2, 10, 20)], &[nothing(30, 31)]);
    let refused = write(2, What::Delete, 25, 26, Outcome::Refused);
    check("lost", &[put(1, 10, 20), refused], &[nothing(30, 31)]);
    check("lost", &[put(1, 10, 20), delete(2, 40, 50)], &[nothing(30, 31)]);
}

#[test]
fn reads_that_go_back_are_found() {
    check("went back", &[put(1, 10, 20), put(2, 30, 40)], &[saw(1, 10, 50, 51)]);
    let writes = [put(1, 10, 20), unknown(2, What::PUT, 30)];
    check("went back", &writes, &[saw(2, 30, 40, 41), saw(1, 10, 50, 51)]);
    // Concurrent reads may see either value.
    check("", &writes, &[saw(2, 30, 40, 55), saw(1, 10, 50, 60)]);
}

#[test]
fn resurrected_keys_are_found() {
    check("went back", &[put(1, 10, 20), delete(2, 30, 40)], &[saw(1, 10, 50, 51)]);
    let writes = [put(1, 10, 20), unknown(2, What::Delete, 30)];
    check("came back", &writes, &[saw(1, 10, 25, 26), nothing(40, 41), saw(1, 10, 50, 51)]);
}

/// A write that was stamped twice must not be seen both before and after another one.
#[test]
fn effects_that_come_twice_are_found() {
    let writes = [put_as(1, 16, 10, 60), put_as(2, 13, 9, 70)];
    let twice = [saw(1, 10, 20, 21), saw(2, 13, 30, 31), saw(1, 16, 40, 41)];
    check("took effect twice", &writes, &twice);
    check("took effect twice", &writes, &[twice[0].clone(), nothing(30, 31), twice[2].clone()]);
    // If the other read overlaps in time with one of the two, it may have been before or after.
    check("", &writes, &[twice[0].clone(), saw(2, 13, 20, 31), twice[2].clone()]);
}

#[test]
fn wrong_values_are_found() {
    check("nobody wrote", &[put(1, 10, 20)], &[saw(7, 10, 30, 31)]);
    let saw_other = Saw::Value { id: None, version: version(10), expires: None };
    let read = Read { saw: saw_other, ..nothing(30, 31) };
    check("nobody wrote", &[put(1, 10, 20)], &[read]);
    check("not written", &[write(1, What::PUT, 10, 20, Outcome::Refused)], &[saw(1, 10, 30, 31)]);
    check("not written", &[put(1, 10, 20)], &[saw(1, 10, 5, 9)]);
    check("not written", &[delete(1, 10, 20)], &[saw(1, 10, 30, 31)]);
    check("a later version", &[put(1, 10, 20)], &[saw(1, 11, 30, 31)]);
    check("one version for two", &[unknown(1, What::PUT, 10), put(2, 11, 20)], &[saw(1, 11, 30, 31)]);
}

#[test]
fn versions_that_do_not_rise_are_found() {
    check("does not rise", &[put_as(1, 50, 10, 20), put_as(2, 49, 30, 40)], &[]);
    check("", &[put_as(1, 50, 10, 35), put_as(2, 49, 30, 40)], &[]);
    check("one version for two", &[put_as(1, 50, 10, 35), put_as(2, 50, 30, 40)], &[]);
    // A value that a read has shown counts as well.
    let writes = [unknown(1, What::PUT, 10), put_as(2, 50, 30, 40)];
    check("does not rise", &writes, &[saw(1, 60, 20, 21)]);
    check("", &writes, &[saw(1, 60, 20, 35)]);
}

/// Quorums that do not overlap promise only that values are what some write wrote.
#[test]
fn only_overlapping_quorums_promise() {
    let writes = [put_as(1, 50, 10, 20), put_as(2, 40, 30, 40)];
    check_as(LOOSE, "", &writes, &[nothing(50, 51), saw(1, 50, 60, 61), saw(2, 40, 70, 71)]);
    check_as(LOOSE, "nobody wrote", &writes, &[saw(7, 10, 30, 31)]);
    check_as(WRITE_ALL, "lost", &[put(1, 10, 20)], &[nothing(30, 31)]);
    check_as(WRITE_ALL, "does not rise", &writes, &[]);
    // A 3/3 write of unknown outcome is at some replicas only, and 1/3 reads ask one.
    let writes = [put(1, 10, 20), unknown(2, What::PUT, 30)];
    check_as(WRITE_ALL, "", &writes, &[saw(2, 30, 40, 41), saw(1, 10, 50, 51)]);
}

/// Judges the copies of one key, given as (node, version, write): how many keys are equal, unsure,
/// unrepaired, wrong.
#[track_caller]
fn judge(
    writes: &[Write],
    kills: &[(usize, u64)],
    copies: &[(usize, u64, u64)],
    expect: (usize, usize, usize, usize),
) {
    let copies = copies.iter().map(|(node, millis, id)| (*node, (version(*millis), Some(*id))));
    let copies: Copies = [(b"k".to_vec(), copies.collect::<BTreeMap<_, _>>())].into();
    let history = History { writes: writes.to_vec(), kills: kills.to_vec(), ..History::default() };
    let repair = history.judge(&copies);
    let found = (repair.equal, repair.unsure, repair.unrepaired, repair.wrong.len());
    assert_eq!(found, expect, "{repair:#?}");
}

/// Copies that differ, are missing or are too many are detected; those that a kill may have caused are
/// counted separately.
#[test]
fn copies_are_judged() {
    let three = [(0, 10, 1), (1, 10, 1), (2, 10, 1)];
    judge(&[put(1, 10, 20)], &[], &three, (1, 0, 0, 0));
    judge(&[put(1, 10, 20)], &[], &three[1..], (0, 0, 0, 1));
    judge(&[put(1, 10, 20)], &[], &[], (0, 0, 0, 1));
    judge(&[put(1, 10, 20)], &[], &[three[0], three[1], (2, 9, 2)], (0, 0, 0, 1));
    judge(&[put(1, 10, 20)], &[], &[three[0], three[1], three[2], (3, 10, 1)], (0, 0, 0, 2));
    judge(&[put(1, 10, 20), delete(2, 30, 40)], &[], &[], (1, 0, 0, 0));
    judge(&[put(1, 10, 20), delete(2, 30, 40)], &[], &three, (0, 0, 0, 1));
    judge(&[put(1, 10, 20), put(2, 30, 40)], &[], &three, (0, 0, 0, 1));
    // The coordinator was killed while it wrote, or soon after it had answered; a kill of another node is no
    // excuse.
    judge(&[put(1, 10, 20)], &[(0, 15)], &three[1..], (0, 1, 1, 1));
    judge(&[put(1, 10, 20)], &[(0, 1_000_000_000)], &three, (0, 1, 0, 0));
    judge(&[put(1, 10, 20)], &[(1, 15)], &three[1..], (0, 0, 0, 1));
    judge(&[put(1, 10, 20), unknown(2, What::PUT, 30)], &[], &three[1..], (0, 1, 1, 1));
    // A write that is acknowledged long after covers it.
    let later = 9_000_000_000;
    let copies = [(0, later, 3), (1, later, 3), (2, later, 3)];
    let writes = [put(1, 10, 20), unknown(2, What::PUT, 30), put(3, later, later + 9)];
    judge(&writes, &[(0, 15)], &copies, (1, 0, 0, 0));
    judge(&writes, &[(0, 15)], &copies[1..], (0, 0, 0, 1));
}
