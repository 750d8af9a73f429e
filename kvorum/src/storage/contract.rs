//! The engine contract: one suite that every engine must pass, and each engine's run of it.

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

/// Keyspaces are apart; a batch over several is visible as a whole; removal of what is not there is no error.
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

/// Scans are in byte order, start included, end as asked, bytes of every value allowed.
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

/// A scan sees the instant at which it was made, whatever is committed while it runs.
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

/// Large and empty values come back as they were.
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

/// Reopening keeps what was committed and goes on.
fn reopen_keeps_everything(engine: &dyn Engine) {
    engine.commit(vec![put(Keyspace::Records, b"kept", b"1")], Durability::Synced).unwrap();
    engine.reopen().unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"kept").unwrap().unwrap(), "1");
    engine.commit(vec![put(Keyspace::Records, b"kept", b"2")], Durability::Synced).unwrap();
    assert_eq!(engine.get(Keyspace::Records, b"kept").unwrap().unwrap(), "2");
}

fn suite(fresh: &dyn Fn() -> Box<dyn Engine>) {
    let cases: [fn(&dyn Engine); 5] = [
        batches_cover_keyspaces,
        scans_are_ordered_and_bounded,
        scans_are_snapshots,
        values_of_every_size,
        reopen_keeps_everything,
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
    let dirs: Vec<_> = (0..5).map(|_| tempfile::tempdir().unwrap()).collect();
    let next = std::cell::Cell::new(0);
    suite(&|| {
        next.set(next.get() + 1);
        Box::new(lsm(&dirs[next.get() - 1]))
    });
}

/// A failed write poisons until reopening; what was synced is still there, and so are reads meanwhile.
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

/// The model's crash loses what was not synced and nothing else: the test that it can lose at all.
#[test]
fn memory_engine_crash_loses_unsynced_only() {
    let engine = MemoryEngine::new();
    engine.commit(vec![put(Keyspace::Records, b"a", b"1")], Durability::Synced).unwrap();
    engine.commit(vec![put(Keyspace::Records, b"b", b"2")], Durability::Buffered).unwrap();
    engine.crash();
    assert!(engine.get(Keyspace::Records, b"a").unwrap().is_some());
    assert!(engine.get(Keyspace::Records, b"b").unwrap().is_none());
}

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<(u8, Option<u8>)>),
    Reopen,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Goal: the engine on disk does what a map does. Method: random batches and reopenings on both, then
    /// compare every key and the whole scan.
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
