//! The engine contract: one suite that every engine must pass, run on each engine.

use super::lsm::{LsmConfig, LsmEngine};
use super::memory::{Fault, MemoryEngine};
use super::{Batch, Change, Durability, Engine, EngineError, Keyspace};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

fn put(keyspace: Keyspace, key: &'static [u8], value: &'static [u8]) -> Change {
    Change::Put { keyspace, key: Bytes::from_static(key), value: Bytes::from_static(value) }
}

fn keys(engine: &dyn Engine, start: &[u8], end: Bound<&[u8]>) -> Vec<Bytes> {
    engine.scan(Keyspace::Records, start, end).unwrap().map(|pair| pair.unwrap().0).collect()
}

/// Keyspaces are separate; a batch over several becomes visible as a whole; removing a missing key is not an error.
fn batches_cover_keyspaces(engine: &dyn Engine) {
    let batch = vec![put(Keyspace::Records, b"k", b"record"), put(Keyspace::Meta, b"k", b"meta")];
    engine.commit(batch, Durability::Synced).unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"k").unwrap().unwrap(), "record");
    assert_eq!(engine.get(Keyspace::Meta, b"k").unwrap().unwrap(), "meta");
    assert_eq!(engine.get(Keyspace::Due, b"k").unwrap(), None);
    let removal = |keyspace| Change::Remove { keyspace, key: Bytes::from_static(b"k") };
    engine.commit(vec![removal(Keyspace::Records), removal(Keyspace::Due)], Durability::Buffered).unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"k").unwrap(), None);
    assert_eq!(engine.get(Keyspace::Meta, b"k").unwrap().unwrap(), "meta");
    engine.commit(Batch::new(), Durability::Synced).unwrap();
    engine.sync().unwrap();
}

/// Scans are in byte order, include the start, end as requested, and return values of any bytes.
fn scans_are_ordered_and_bounded(engine: &dyn Engine) {
    let names: [&[u8]; 6] = [b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff\xff"];
    let batch = names.iter().rev().map(|name| put(Keyspace::Records, name, b"")).collect();
    engine.commit(batch, Durability::Buffered).unwrap();
    assert_eq!(keys(engine, b"\x00", Bound::Unbounded), names);
    assert_eq!(keys(engine, b"a", Bound::Excluded(b"b")), names[1..4]);
    assert_eq!(keys(engine, b"a", Bound::Included(b"b")), names[1..5]);
    assert_eq!(keys(engine, b"aa", Bound::Unbounded), names[3..]);
    assert!(keys(engine, b"b", Bound::Excluded(b"b")).is_empty());
    assert!(keys(engine, b"c", Bound::Excluded(b"b")).is_empty());
}

/// A snapshot shows the state at which it was taken, as often as it is read, whatever is committed since.
fn snapshots_stay(engine: &dyn Engine) {
    let rows = vec![put(Keyspace::Records, b"1", b"old"), put(Keyspace::Records, b"2", b"old")];
    engine.commit(rows, Durability::Buffered).unwrap();
    let snapshot = engine.snapshot().unwrap();
    let removal = Change::Remove { keyspace: Keyspace::Records, key: Bytes::from_static(b"2") };
    let rows = vec![put(Keyspace::Records, b"1", b"new"), removal, put(Keyspace::Records, b"3", b"new")];
    engine.commit(rows, Durability::Buffered).unwrap();
    for _ in 0..2 {
        let shown: Vec<_> = snapshot.scan(b"0", Bound::Unbounded).unwrap().map(Result::unwrap).collect();
        let expected = ["1", "2"].map(|key| (Bytes::from(key), Bytes::from("old")));
        assert_eq!(shown, expected);
    }
    let part: Vec<_> = snapshot.scan(b"1", Bound::Excluded(b"2")).unwrap().map(Result::unwrap).collect();
    assert_eq!(part.len(), 1);
    assert_eq!(snapshot.scan(b"2", Bound::Excluded(b"1")).unwrap().count(), 0);
}

/// A scan shows the state at its start, whatever is committed while it runs.
fn scans_are_snapshots(engine: &dyn Engine) {
    engine
        .commit(
            vec![put(Keyspace::Records, b"1", b"old"), put(Keyspace::Records, b"2", b"old")],
            Durability::Buffered,
        )
        .unwrap();
    let mut scan = engine.scan(Keyspace::Records, b"0", Bound::Unbounded).unwrap();
    assert_eq!(scan.next().unwrap().unwrap().1, "old");
    engine
        .commit(
            vec![put(Keyspace::Records, b"2", b"new"), put(Keyspace::Records, b"3", b"new")],
            Durability::Buffered,
        )
        .unwrap();
    let rest: Vec<_> = scan.map(Result::unwrap).collect();
    assert_eq!(rest, [(Bytes::from_static(b"2"), Bytes::from_static(b"old"))]);
}

/// Large and empty values are read as they were written.
fn values_of_every_size(engine: &dyn Engine) {
    for size in [0usize, 1, 4095, 65_536, 1 << 20] {
        let value: Bytes = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let change = Change::Put {
            keyspace: Keyspace::Records,
            key: Bytes::from_static(b"sized"),
            value: value.clone(),
        };
        engine.commit(vec![change], Durability::Synced).unwrap();
        assert_eq!(engine.get(Keyspace::Records, b"sized").unwrap(), Some(value));
    }
}

/// A reopened store has all committed rows and takes further writes.
fn reopen_keeps_everything(engine: &dyn Engine) {
    engine.commit(vec![put(Keyspace::Records, b"kept", b"1")], Durability::Synced).unwrap();
    engine.reopen().unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"kept").unwrap().unwrap(), "1");
    engine.commit(vec![put(Keyspace::Records, b"kept", b"2")], Durability::Synced).unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"kept").unwrap().unwrap(), "2");
}

/// Reclaiming space changes nothing that can be read, whether it completes or is stopped, and writes go on.
fn reclaiming_changes_nothing(engine: &dyn Engine) {
    let row = |index: u32| Bytes::from(format!("{index:04}"));
    let put = |index| Change::Put { keyspace: Keyspace::Records, key: row(index), value: row(index) };
    let remove = |index| Change::Remove { keyspace: Keyspace::Records, key: row(index) };
    engine.commit((0..1000).map(put).collect(), Durability::Buffered).unwrap();
    engine
        .commit((0..1000).filter(|index| index % 7 > 0).map(remove).collect(), Durability::Buffered)
        .unwrap();
    let scan = engine.scan(Keyspace::Records, b"0", Bound::Unbounded).unwrap();
    let is_left = |from| (from..1000).filter(|index| index % 7 == 0).map(row).collect::<Vec<_>>();
    engine.reclaim(&mut || false).unwrap();
    assert_eq!(keys(engine, b"0", Bound::Unbounded), is_left(0));
    assert_eq!(engine.reclaim(&mut || true).unwrap(), engine.stats().removed_rows);
    assert_eq!(keys(engine, b"0", Bound::Unbounded), is_left(0));
    assert_eq!(scan.count(), is_left(0).len(), "a scan that began before");
    engine.commit(vec![remove(0), put(1)], Durability::Synced).unwrap();
    engine.reclaim(&mut || true).unwrap();
    engine.reopen().unwrap();
    assert_eq!(keys(engine, b"0", Bound::Unbounded), [vec![row(1)], is_left(1)].concat());
}

fn suite(fresh: &dyn Fn() -> Box<dyn Engine>) {
    let cases: [fn(&dyn Engine); 7] = [
        batches_cover_keyspaces,
        scans_are_ordered_and_bounded,
        scans_are_snapshots,
        snapshots_stay,
        values_of_every_size,
        reopen_keeps_everything,
        reclaiming_changes_nothing,
    ];
    for case in cases {
        case(&*fresh());
    }
}

fn lsm(dir: &tempfile::TempDir) -> LsmEngine {
    LsmEngine::open(LsmConfig::new(dir.path().join("store"), 16 << 20)).unwrap()
}

#[test]
fn memory_engine_keeps_the_contract() {
    suite(&|| Box::new(MemoryEngine::new()));
}

#[test]
fn lsm_engine_keeps_the_contract() {
    let dirs: Vec<_> = (0..7).map(|_| tempfile::tempdir().unwrap()).collect();
    let next = std::cell::Cell::new(0);
    suite(&|| {
        next.set(next.get() + 1);
        Box::new(lsm(&dirs[next.get() - 1]))
    });
}

/// Goal: a store that could not be set aside is set aside by the next attempt, and stays kept, however often the new
/// store could not be created. Method: a file occupies the target path; then a new store that nothing was written to is
/// set aside again and again.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test looks at the files themselves")]
fn lsm_engine_is_set_aside_by_the_next_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let engine = lsm(&dir);
    engine.commit(vec![put(Keyspace::Records, b"old", b"1")], Durability::Synced).unwrap();
    let quarantine = dir.path().join("quarantine");
    std::fs::write(&quarantine, b"in the way").unwrap();
    assert!(matches!(engine.set_aside(), Err(EngineError::Io { .. })));
    assert!(matches!(engine.get(Keyspace::Records, b"old"), Err(EngineError::Closed)));
    std::fs::remove_file(&quarantine).unwrap();
    for _ in 0..4 {
        engine.set_aside().unwrap();
        assert_eq!(engine.get(Keyspace::Records, b"old").unwrap(), None);
        assert_eq!(super::quarantine::count(dir.path()), 1, "the old store alone is worth keeping");
    }
    engine.commit(vec![put(Keyspace::Records, b"new", b"2")], Durability::Synced).unwrap();
    engine.set_aside().unwrap();
    assert_eq!(super::quarantine::count(dir.path()), 2);
}

/// Goal: a store takes writes after it is opened with less memory than its journal restores; all writes used to be
/// refused for good. Method: four megabytes in one memtable, of which the smaller budget allows two.
#[test]
fn lsm_engine_takes_writes_with_less_memory_than_before() {
    let dir = tempfile::tempdir().unwrap();
    let open = |bytes| LsmEngine::open(LsmConfig::new(dir.path().join("store"), bytes)).unwrap();
    let large = open(64 << 20);
    put_numbered(&large, 0..4_000);
    drop(large);
    let small = open(4 << 20);
    for first in [4_000, 8_000, 12_000] {
        put_numbered(&small, first..first + 4_000);
    }
    assert_eq!(keys(&small, b"", Bound::Unbounded).len(), 16_000);
}

/// Bytes of all files of tables that have a name. Journals are not counted: they come and go at any time.
fn table_bytes(dir: &std::path::Path) -> u64 {
    let bytes = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        if path.is_dir() { table_bytes(&path) } else { path.metadata().map_or(0, |file| file.len()) }
    };
    std::fs::read_dir(dir).unwrap().map(bytes).sum()
}

/// Writes incompressible values, one for each of `numbers`, under keys that sort by number.
fn put_numbered(engine: &dyn Engine, numbers: impl Iterator<Item = u64>) {
    let numbers: Vec<_> = numbers.collect();
    for part in numbers.chunks(500) {
        let put = |number: &u64| {
            let seed = |word| xxhash_rust::xxh3::xxh3_64_with_seed(&number.to_be_bytes(), word).to_be_bytes();
            let value: Vec<u8> = (0..128).flat_map(seed).collect();
            let key = Bytes::copy_from_slice(&number.to_be_bytes());
            Change::Put { keyspace: Keyspace::Records, key, value: value.into() }
        };
        engine.commit(part.iter().map(put).collect(), Durability::Buffered).unwrap();
    }
}

fn remove_numbered(engine: &dyn Engine, numbers: impl Iterator<Item = u64>) {
    let remove = |number: u64| {
        let key = Bytes::copy_from_slice(&number.to_be_bytes());
        Change::Remove { keyspace: Keyspace::Records, key }
    };
    engine.commit(numbers.map(remove).collect(), Durability::Buffered).unwrap();
}

/// Goal: the space of removed rows is reclaimed without a restart. That includes rows that fjall's strategy cannot push
/// down, because rows beyond either end of them were written since. It is not reclaimed while a scan reads the old
/// rows, nor for a few rows.
#[test]
fn lsm_engine_gives_back_the_space_of_removed_rows() {
    const ROWS: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let engine = lsm(&dir);
    let files = dir.path().join("store/keyspaces");
    let live = |rows: u64| rows * 1024..rows * 1024 * 11 / 10 + (1 << 20);
    put_numbered(&engine, 1..=ROWS);
    remove_numbered(&engine, 1..=ROWS / 100);
    assert!(engine.reclaim(&mut || true).unwrap() > 0, "a hundredth is not worth it");
    let full = table_bytes(&files);
    assert!(live(ROWS).contains(&full), "{full}");
    let mut scan = engine.scan(Keyspace::Records, b"", Bound::Unbounded).unwrap();
    assert!(scan.next().unwrap().is_ok());
    remove_numbered(&engine, ROWS / 100 + 1..=ROWS / 2);
    assert!(engine.reclaim(&mut || true).unwrap() > 0);
    assert!(table_bytes(&files) >= full, "the scan needs them");
    assert_eq!(scan.count() as u64, ROWS - ROWS / 100 - 1);
    assert_eq!(engine.reclaim(&mut || true).unwrap(), 0);
    assert!(live(ROWS / 2).contains(&table_bytes(&files)), "{}", table_bytes(&files));
    put_numbered(&engine, [0, ROWS + 1].into_iter());
    remove_numbered(&engine, ROWS / 2 + 1..=ROWS);
    assert_eq!(engine.reclaim(&mut || true).unwrap(), 0);
    assert!(live(2).contains(&table_bytes(&files)), "{}", table_bytes(&files));
    assert_eq!(keys(&engine, b"", Bound::Unbounded).len(), 2);
    engine.reopen().unwrap();
    assert_eq!(keys(&engine, b"", Bound::Unbounded).len(), 2);
}

/// A failed write poisons the engine until it is reopened; synced rows are still there, and can be read meanwhile.
#[test]
fn memory_engine_poisons_and_recovers() {
    let engine = MemoryEngine::new();
    engine.commit(vec![put(Keyspace::Records, b"a", b"1")], Durability::Synced).unwrap();
    engine.set_fault(Some(Fault::DiskFull));
    let write = || engine.commit(vec![put(Keyspace::Records, b"b", b"2")], Durability::Synced);
    assert!(matches!(write(), Err(EngineError::DiskFull { .. })));
    assert!(matches!(engine.reopen(), Err(EngineError::DiskFull { .. })));
    engine.set_fault(None);
    assert!(matches!(write(), Err(EngineError::Poisoned { .. })));
    assert_eq!(engine.get(Keyspace::Records, b"a").unwrap().unwrap(), "1");
    engine.reopen().unwrap();
    write().unwrap();
}

/// The model's crash loses unsynced batches and nothing else; this test shows that it can lose them at all.
#[test]
fn memory_engine_crash_loses_unsynced_only() {
    let engine = MemoryEngine::new();
    engine.commit(vec![put(Keyspace::Records, b"a", b"1")], Durability::Synced).unwrap();
    engine.commit(vec![put(Keyspace::Records, b"b", b"2")], Durability::Buffered).unwrap();
    engine.crash();
    assert!(engine.get(Keyspace::Records, b"a").unwrap().is_some());
    assert!(engine.get(Keyspace::Records, b"b").unwrap().is_none());
}

fn record(engine: &dyn Engine, key: &str) -> Option<Bytes> {
    engine.get(Keyspace::Records, key.as_bytes()).unwrap()
}

/// A power loss keeps a prefix of the unsynced batches, each whole; the next power loss keeps them, too.
#[test]
fn memory_engine_crash_keeps_a_prefix_of_whole_batches() {
    let engine = MemoryEngine::new();
    engine.commit(vec![put(Keyspace::Records, b"a", b"0")], Durability::Synced).unwrap();
    let pair = |value| vec![put(Keyspace::Records, b"a", value), put(Keyspace::Meta, b"a", value)];
    for value in [b"1", b"2", b"3"] {
        engine.commit(pair(value), Durability::Buffered).unwrap();
    }
    assert_eq!(engine.unsynced_len(), 3);
    assert_eq!(engine.crash_keeping(2), 1);
    assert_eq!(record(&engine, "a").unwrap(), "2");
    assert_eq!(engine.get(Keyspace::Meta, b"a").unwrap().unwrap(), "2");
    assert_eq!(engine.crash_keeping(0), 0);
    assert_eq!(record(&engine, "a").unwrap(), "2");
    let counters = engine.counters();
    assert_eq!((counters.crashes, counters.batches_lost, counters.batches_survived), (2, 1, 2));
}

/// A copy of the disk has the rows that were synced when it was taken. Putting it back replaces everything that came
/// later.
#[test]
fn memory_engine_goes_back_to_a_copy() {
    let engine = MemoryEngine::new();
    let write = |key, value, durability| {
        engine.commit(vec![put(Keyspace::Records, key, value)], durability).unwrap();
    };
    write(b"a", b"old", Durability::Synced);
    write(b"a", b"not safe", Durability::Buffered);
    write(b"b", b"not safe", Durability::Buffered);
    let copy = engine.copy_of_disk();
    assert_eq!(record(&engine, "a").unwrap(), "not safe");
    write(b"a", b"new", Durability::Synced);
    write(b"c", b"new", Durability::Synced);
    engine.put_back(copy);
    assert_eq!(
        ["a", "b", "c"].map(|key| record(&engine, key)),
        [Some(Bytes::from_static(b"old")), None, None]
    );
    assert_eq!((engine.used_bytes(), engine.unsynced_len()), (36, 0));
}

/// The end of the process loses nothing, but a later power loss can still take its unsynced writes.
#[test]
fn memory_engine_kill_loses_nothing_yet() {
    let engine = MemoryEngine::new();
    engine.commit(vec![put(Keyspace::Records, b"a", b"1")], Durability::Buffered).unwrap();
    engine.commit(vec![put(Keyspace::Records, b"b", b"2")], Durability::Buffered).unwrap();
    engine.kill();
    assert!(record(&engine, "b").is_some());
    engine.write_back(1);
    engine.crash();
    assert!(record(&engine, "a").is_some());
    assert!(record(&engine, "b").is_none());
}

/// A batch whose sync failed is not visible. Later it may be there or not: reopening finds it in the journal, a power
/// loss decides.
#[test]
fn memory_engine_failed_sync_is_in_doubt() {
    let failed = || {
        let engine = MemoryEngine::new();
        engine.set_fault(Some(Fault::SyncError));
        let write = engine.commit(vec![put(Keyspace::Records, b"a", b"1")], Durability::Synced);
        assert!(matches!(write, Err(EngineError::Io { .. })));
        assert!(matches!(engine.check(), Err(EngineError::Poisoned { .. })));
        assert!(record(&engine, "a").is_none());
        engine.set_fault(None);
        engine
    };
    let reopened = failed();
    reopened.reopen().unwrap();
    assert!(record(&reopened, "a").is_some());
    reopened.crash();
    assert!(record(&reopened, "a").is_none(), "found again is not yet synced");
    let kept = failed();
    kept.crash_keeping(1);
    assert!(record(&kept, "a").is_some());
    let lost = failed();
    assert_eq!(lost.crash_keeping(0), 1);
    assert!(record(&lost, "a").is_none());
}

/// On a disk with a bounded size, writes that do not fit fail, writes that free space succeed, and with more space all
/// writes go on.
#[test]
fn memory_engine_capacity_comes_back() {
    let engine = MemoryEngine::new();
    engine.set_capacity(Some(100));
    engine.commit(vec![put(Keyspace::Records, b"a", b"0123456789")], Durability::Synced).unwrap();
    assert_eq!(engine.used_bytes(), 43);
    engine.commit(vec![put(Keyspace::Records, b"b", b"0123456789")], Durability::Synced).unwrap();
    assert!(!engine.is_short_of_space());
    let third = || engine.commit(vec![put(Keyspace::Records, b"c", b"")], Durability::Synced);
    assert!(matches!(third(), Err(EngineError::DiskFull { .. })));
    engine.reopen().unwrap();
    let removal = Change::Remove { keyspace: Keyspace::Records, key: Bytes::from_static(b"b") };
    engine.commit(vec![removal], Durability::Synced).unwrap();
    assert_eq!(engine.used_bytes(), 43);
    third().unwrap();
    engine.set_capacity(Some(77));
    assert!(engine.is_short_of_space());
    let write = engine.commit(vec![put(Keyspace::Records, b"b", b"0123456789")], Durability::Synced);
    assert!(matches!(write, Err(EngineError::DiskFull { .. })));
    assert!(matches!(engine.reopen(), Err(EngineError::DiskFull { .. })));
    engine.set_capacity(None);
    engine.reopen().unwrap();
    assert_eq!(engine.counters().disk_full_errors, 2);
}

/// A flipped bit is never served: point reads and scans report that the row is damaged; writing it again repairs it.
#[test]
fn memory_engine_finds_flipped_bits() {
    for choice in 0..200u64 {
        let engine = MemoryEngine::new();
        engine
            .commit(
                vec![put(Keyspace::Records, b"a", b"some"), put(Keyspace::Records, b"b", b"")],
                Durability::Synced,
            )
            .unwrap();
        let key = engine.flip(Keyspace::Records, choice).unwrap();
        let other = if key == "a" { "b" } else { "a" };
        assert!(matches!(engine.get(Keyspace::Records, &key), Err(EngineError::Corrupt { .. })), "{choice}");
        assert!(record(&engine, other).is_some());
        let scanned: Vec<_> = engine.scan(Keyspace::Records, b"a", Bound::Unbounded).unwrap().collect();
        assert_eq!(scanned.iter().filter(|row| row.is_err()).count(), 1);
        assert_eq!(engine.counters().corrupt_reads, 1);
        engine
            .commit(
                vec![Change::Put { keyspace: Keyspace::Records, key: key.clone(), value: key.clone() }],
                Durability::Synced,
            )
            .unwrap();
        assert_eq!(engine.get(Keyspace::Records, &key).unwrap(), Some(key));
    }
    assert_eq!(MemoryEngine::new().flip(Keyspace::Records, 7), None);
}

/// Injected read errors affect only their key; a failed write changes nothing; a wipe removes everything.
#[test]
fn memory_engine_fails_as_ordered() {
    let engine = MemoryEngine::new();
    engine
        .commit(
            vec![put(Keyspace::Records, b"a", b"1"), put(Keyspace::Records, b"b", b"2")],
            Durability::Synced,
        )
        .unwrap();
    engine.set_unreadable(Keyspace::Records, b"a", true);
    assert!(matches!(engine.get(Keyspace::Records, b"a"), Err(EngineError::Io { .. })));
    assert!(record(&engine, "b").is_some());
    assert!(engine.scan(Keyspace::Records, b"a", Bound::Unbounded).unwrap().next().unwrap().is_err());
    engine.clear_unreadable();
    engine.set_fault(Some(Fault::WriteError));
    let write = engine.commit(vec![put(Keyspace::Records, b"a", b"3")], Durability::Buffered);
    assert!(matches!(write, Err(EngineError::Io { .. })));
    engine.set_fault(None);
    engine.reopen().unwrap();
    assert_eq!(record(&engine, "a").unwrap(), "1");
    engine.wipe();
    assert_eq!((engine.row_count(Keyspace::Records), engine.used_bytes()), (0, 0));
}

proptest! {
    /// Goal: a power loss gives exactly the state after some synced prefix plus the batches it kept. Method: a map
    /// copied at every batch, against the engine's undo log.
    #[test]
    fn memory_engine_crash_is_a_prefix(
        batches in prop::collection::vec(
            (prop::collection::btree_map(0..6u8, prop::option::of(any::<u8>()), 1..4), any::<bool>()), 1..20),
        keep in 0..20usize,
    ) {
        let engine = MemoryEngine::new();
        let mut states = vec![BTreeMap::new()];
        let mut synced = 0;
        for (changes, sync) in batches {
            let mut state: BTreeMap<Bytes, Bytes> = states.last().unwrap().clone();
            let batch = changes.into_iter().map(|(key, value)| {
                let key = Bytes::copy_from_slice(&[key]);
                let Some(value) = value.map(|value| Bytes::copy_from_slice(&[value])) else {
                    state.remove(&key);
                    return Change::Remove { keyspace: Keyspace::Records, key };
                };
                state.insert(key.clone(), value.clone());
                Change::Put { keyspace: Keyspace::Records, key, value }
            }).collect();
            engine.commit(batch, if sync { Durability::Synced } else { Durability::Buffered }).unwrap();
            states.push(state);
            if sync {
                synced = states.len() - 1;
            }
        }
        let unsynced = states.len() - 1 - synced;
        prop_assert_eq!(engine.unsynced_len(), unsynced);
        prop_assert_eq!(engine.crash_keeping(keep), unsynced.saturating_sub(keep));
        let scan = engine.scan(Keyspace::Records, b"", Bound::Unbounded).unwrap();
        let expect = &states[synced + keep.min(unsynced)];
        let bytes: usize = expect.iter().map(|(key, value)| key.len() + value.len() + 32).sum();
        prop_assert_eq!(&scan.map(Result::unwrap).collect::<BTreeMap<_, _>>(), expect);
        prop_assert_eq!(engine.used_bytes(), bytes as u64);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<(u8, Option<u8>)>),
    Reopen,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Goal: the engine on disk behaves like a map. Method: random batches and reopenings on both, then compare every
    /// key and the whole scan.
    #[test]
    fn lsm_engine_agrees_with_a_map(
        steps in prop::collection::vec(
            prop_oneof![
                8 => prop::collection::btree_map(any::<u8>(), prop::option::of(any::<u8>()), 1..20)
                    .prop_map(|m| Step::Commit(m.into_iter().collect())),
                1 => Just(Step::Reopen),
            ],
            1..40,
        )
    ) {
        let dir = tempfile::tempdir().unwrap();
        let engine = lsm(&dir);
        let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        for step in steps {
            let Step::Commit(changes) = step else {
                engine.reopen().unwrap();
                continue;
            };
            let mut batch = Batch::new();
            for (key, value) in changes {
                let key = Bytes::copy_from_slice(&[key]);
                if let Some(value) = value {
                    let value = Bytes::copy_from_slice(&[value]);
                    model.insert(key.clone(), value.clone());
                    batch.push(Change::Put { keyspace: Keyspace::Records, key, value });
                } else {
                    model.remove(&key);
                    batch.push(Change::Remove { keyspace: Keyspace::Records, key });
                }
            }
            engine.commit(batch, Durability::Buffered).unwrap();
        }
        for key in 0..=u8::MAX {
            prop_assert_eq!(engine.get(Keyspace::Records, &[key]).unwrap(), model.get(&[key][..]).cloned());
        }
        let scanned: Vec<_> = engine.scan(Keyspace::Records, &[0], Bound::Unbounded).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(scanned, model.into_iter().collect::<Vec<_>>());
    }
}
