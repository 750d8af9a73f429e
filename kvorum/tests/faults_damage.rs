//! Damaged files: a torn end of the journal is forgiven, a flipped bit is found, and never is a wrong value served.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    missing_docs,
    unreachable_pub,
    reason = "a test"
)]

mod faults_support;
mod support;

use faults_support::disk::{flip_bit, newest_journal, record_files, written_bytes};
use faults_support::history::History;
use faults_support::load::Session;
use faults_support::node::Node;
use faults_support::{Random, seed};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use support::wait_until;
use tempfile::TempDir;

/// A store whose journal holds 12 keys, each overwritten several times, and the history of that. The first writes
/// are in a journal entry each, one after the other.
fn journal_of_overwrites() -> (TempDir, History) {
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut session = Session::new(node.address());
    for round in 0..5 {
        for key in 0..12 {
            assert_eq!(session.put(&format!("key-{key:02}"), 40 + round * 50, None), 201);
        }
    }
    assert_eq!(session.delete("key-11"), 202);
    node.kill9();
    let mut history = session.history;
    history.killed();
    (dir, history)
}

/// A copy of a store that was killed.
fn copy_of(store: &Path) -> TempDir {
    let copy = TempDir::with_prefix("kvorum-fault-").unwrap();
    let status = std::process::Command::new("cp")
        .args(["-r", "--sparse=always"])
        .args([store.join("."), copy.path().to_path_buf()])
        .status();
    assert!(status.unwrap().success());
    copy
}

/// The last bytes of the journal are missing, or are not what was written: as a crash of the machine leaves it. The
/// node opens; every acknowledged write but the last is there, and the last one is there or not.
#[test]
fn torn_end_of_the_journal_is_forgiven() {
    let (store, history) = journal_of_overwrites();
    let end = written_bytes(&newest_journal(store.path()));
    let mut random = Random::new(seed("torn journal"));
    let check = |name: &str, tear: &dyn Fn(&std::fs::File, u64), may_lose_last: bool| {
        let copy = copy_of(store.path());
        let journal = newest_journal(copy.path());
        assert_eq!(written_bytes(&journal), end);
        tear(&OpenOptions::new().write(true).open(journal).unwrap(), end);
        let mut history = history.clone();
        if may_lose_last {
            let last = history.writes.last_mut().unwrap();
            last.outcome = faults_support::history::Outcome::Unknown;
        }
        // Twice: the repair of the first start must hold.
        for _ in 0..2 {
            let node = Node::start(copy.path(), &[]);
            faults_support::load::read_all(node.address(), &mut history);
            let mut session = Session::new(node.address());
            assert_eq!(session.put("key-00", 50, None), 201, "{name}");
            node.kill9();
            history.absorb(session.history);
            history.killed();
        }
        history.assert_holds(name);
    };
    for cut in [1, 2, 5, 8, 11, 20] {
        check(&format!("journal cut {cut} bytes early"), &|file, end| file.set_len(end - cut).unwrap(), true);
        let zero =
            |file: &std::fs::File, end: u64| file.write_all_at(&vec![0; cut as usize], end - cut).unwrap();
        check(&format!("last {cut} bytes of the journal are zeros"), &zero, true);
    }
    let garbage: Vec<u8> = (0..200).map(|_| random.next() as u8).collect();
    check("garbage behind the journal's end", &|file, end| file.write_all_at(&garbage, end).unwrap(), false);
    check("the journal ends where it was written", &|file, end| file.set_len(end).unwrap(), false);
}

/// What came of one flipped bit.
#[derive(Debug, Default)]
struct Flips {
    refused: u32,
    asserted: u32,
    harmless: u32,
    wrong: Vec<String>,
}

/// Flips one bit at each of `offsets` of the journal in turn: the node refuses to start, in words, or what it serves
/// is what was acknowledged.
fn flip_in_journal(store: &Path, history: &History, offsets: &[(u64, u32)]) -> Flips {
    let mut flips = Flips::default();
    for (offset, bit) in offsets.iter().copied() {
        let copy = copy_of(store);
        flip_bit(&newest_journal(copy.path()), offset, bit);
        match Node::try_start(copy.path(), &[]) {
            // A build with debug assertions stops at one inside fjall where a release build goes on to the checksum.
            Err(ended)
                if cfg!(debug_assertions)
                    && ended.code == Some(101)
                    && ended.log.contains("journal/entry.rs") =>
            {
                flips.asserted += 1;
            }
            Err(refused) => {
                refused.expect_refusal(&["cannot be opened"]);
                flips.refused += 1;
            }
            Ok(node) => {
                let mut history = history.clone();
                faults_support::load::read_all(node.address(), &mut history);
                match history.violations().first() {
                    None => flips.harmless += 1,
                    Some(violation) => flips.wrong.push(format!("byte {offset} bit {bit}: {violation}")),
                }
            }
        }
    }
    flips
}

/// A bit flips somewhere in the journal.
#[test]
fn flipped_bit_in_the_journal_is_never_served() {
    let (store, history) = journal_of_overwrites();
    let end = written_bytes(&newest_journal(store.path()));
    let mut random = Random::new(seed("flipped journal"));
    let offsets: Vec<_> =
        (0..120).map(|_| (random.within(end / 20, end - end / 20), random.within(0, 8) as u32)).collect();
    let flips = flip_in_journal(store.path(), &history, &offsets);
    println!(
        "flipped bits in a journal of {end} bytes: {} refused, {} stopped by an assertion, {} harmless, {} wrong",
        flips.refused,
        flips.asserted,
        flips.harmless,
        flips.wrong.len()
    );
    assert!(flips.wrong.is_empty(), "{:#?}", flips.wrong);
    assert!(flips.refused > 0, "no flip was noticed");
}
