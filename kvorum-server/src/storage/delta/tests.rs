//! The delta over the modelled disk, and over the real one.

use super::*;
use crate::storage::lsm::{LsmConfig, LsmEngine};
use crate::storage::memory::{Fault, MemoryEngine};
use proptest::prelude::*;

/// Few keys, so that parts fill up and rows are replaced.
const KEYS: u8 = 40;

fn key(index: u8) -> Bytes {
    // Three partitions, and keys of several lengths.
    Bytes::from([&[0, index % 3], &b"key-and-more"[..usize::from(index % 7)], &[index]].concat())
}

/// Changes a record and its row of the index, as a replica does.
fn batch(changes: &BTreeMap<u8, Option<u8>>) -> Batch {
    let change = |(index, value): (&u8, &Option<u8>)| {
        [Keyspace::Records, Keyspace::Tokens].map(|keyspace| match value {
            Some(value) => Change::Put { keyspace, key: key(*index), value: Bytes::from(vec![*value; 19]) },
            None => Change::Remove { keyspace, key: key(*index) },
        })
    };
    changes.iter().flat_map(change).collect()
}

fn rows(engine: &dyn Engine, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Vec<(Bytes, Bytes)> {
    engine.scan(keyspace, start, end).unwrap().map(Result::unwrap).collect()
}

/// Checks that the index matches the record of every key.
fn assert_in_sync(engine: &dyn Engine) {
    let all = Bound::Unbounded;
    assert_eq!(rows(engine, Keyspace::Tokens, &[], all), rows(engine, Keyspace::Records, &[], all));
    for index in 0..KEYS {
        let key = key(index);
        let record = engine.get(Keyspace::Records, &key).unwrap();
        assert_eq!(engine.get(Keyspace::Tokens, &key).unwrap(), record);
        let known = engine.at_hand(Keyspace::Tokens, &key);
        if known.is_known() {
            assert_eq!(known, Known::row(record));
        }
        for end in [Bound::Excluded(&[0, 1][..]), Bound::Excluded(&[0, 2]), Bound::Included(&[0, 2, b'k'])] {
            let [tokens, records] =
                [Keyspace::Tokens, Keyspace::Records].map(|keyspace| rows(engine, keyspace, &key, end));
            assert_eq!(tokens, records);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Commit {
        changes: BTreeMap<u8, Option<u8>>,
        is_synced: bool,
    },
    /// A power loss that this many of the unsynced batches survive.
    PowerLoss(usize),
    Kill,
    Reopen,
    Reclaim,
    Fault(Option<Fault>),
    SetAside,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let changes = prop::collection::btree_map(0..KEYS, prop::option::weighted(0.7, any::<u8>()), 1..6);
    let fault = prop_oneof![Just(Fault::DiskFull), Just(Fault::SyncError), Just(Fault::WriteError)];
    let step = prop_oneof![
        30 => (changes, any::<bool>()).prop_map(|(changes, is_synced)| Step::Commit { changes, is_synced }),
        2 => (0..8usize).prop_map(Step::PowerLoss),
        1 => Just(Step::Kill),
        2 => Just(Step::Reopen),
        2 => Just(Step::Reclaim),
        2 => prop::option::of(fault).prop_map(Step::Fault),
        1 => Just(Step::SetAside),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Goal: whatever is committed, flushed, lost with the power or reopened, the index matches the records. Method:
    /// random steps over the modelled disk, which can lose any end of the unsynced batches, with so little memory that
    /// every few batches are flushed.
    #[test]
    fn index_is_as_the_records_whatever_happens(steps in steps(), bytes_max in 1..2000usize) {
        let disk = Arc::new(MemoryEngine::new());
        let open = || Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, bytes_max, Flushing::Within, &Supervisor::default()).unwrap();
        let mut delta = open();
        let mut flushes = 0;
        for step in steps {
            match step {
                Step::Commit { changes, is_synced } => {
                    let durability = if is_synced { Durability::Synced } else { Durability::Buffered };
                    if delta.commit(batch(&changes), durability).is_err() {
                        // The steps by which a replica reopens a store that failed.
                        disk.set_fault(None);
                        delta.reopen().unwrap();
                    }
                }
                Step::PowerLoss(keep) => {
                    flushes += delta.stats().flushes;
                    disk.crash_keeping(keep);
                    delta = open();
                }
                Step::Kill => {
                    flushes += delta.stats().flushes;
                    disk.kill();
                    delta = open();
                }
                Step::Reopen => {
                    disk.set_fault(None);
                    delta.reopen().unwrap();
                }
                Step::Reclaim => drop(delta.reclaim(&mut || true)),
                Step::Fault(fault) => disk.set_fault(fault),
                Step::SetAside => delta.set_aside().unwrap(),
            }
            assert_in_sync(&delta);
        }
        disk.set_fault(None);
        delta.reopen().unwrap();
        delta.reclaim(&mut || true).unwrap();
        assert_in_sync(&delta);
        prop_assert_eq!(delta.stats().unflushed_bytes, 0);
        prop_assert!(flushes + delta.stats().flushes > 0 || disk.row_count(Keyspace::Tokens) == 0);
    }
}

/// Goal: the same over the engine on disk, with a flushing thread beside the writes, and the log does not grow forever.
/// Method: a thousand batches over few keys, with reads between them; closed and reopened now and then.
#[test]
fn lsm_engine_is_folded_beside_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut flushes = 0;
    for life in 0..4u8 {
        let engine = LsmEngine::open(LsmConfig::new(dir.path().join("store"), 16 << 20)).unwrap();
        let delta = Delta::open(Arc::new(engine), 2000, Flushing::Beside, &Supervisor::default()).unwrap();
        assert_in_sync(&delta);
        for round in 0..250u16 {
            let [low, _] = round.to_le_bytes();
            let change = |step: u8| {
                let index = low.wrapping_mul(7).wrapping_add(step * 5) % KEYS;
                (index, (!low.wrapping_add(step).is_multiple_of(5)).then_some(low ^ life))
            };
            delta.commit(batch(&(0..4).map(change).collect()), Durability::Buffered).unwrap();
            if round % 25 == 0 {
                assert_in_sync(&delta);
            }
        }
        flushes += delta.stats().flushes;
        if life == 2 {
            delta.reclaim(&mut || true).unwrap();
            assert_eq!(delta.stats().unflushed_bytes, 0);
            // The next batches remove the flushed rows from the log.
            for _ in 0..250 {
                delta.commit(batch(&BTreeMap::from([(1, Some(life))])), Durability::Buffered).unwrap();
            }
            let left = delta.scan(Keyspace::Delta, &[], Bound::Unbounded).unwrap().count();
            assert!(left <= 250, "{left} rows of the log are left");
        }
    }
    assert!(flushes > 4, "{flushes} flushes");
}

/// While the disk accepts no tables, writes go on until memory is short, and then wait and are refused; no write is
/// lost.
#[test]
fn writes_are_refused_while_folds_fail_for_long() {
    let disk = Arc::new(MemoryEngine::new());
    let delta =
        Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, 500, Flushing::Beside, &Supervisor::default())
            .unwrap();
    disk.refuse_tables(true);
    let mut written = 0;
    let refused = loop {
        let change = BTreeMap::from([(written % KEYS, Some(written))]);
        match delta.commit(batch(&change), Durability::Synced) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 250, "nothing is bounded");
    };
    assert!(matches!(refused, EngineError::Busy) && written > 40, "{refused} after {written}");
    assert_in_sync(&delta);
    disk.refuse_tables(false);
    while delta.stats().flushes == 0 {
        wait::pause(Duration::from_millis(10));
    }
    delta.commit(batch(&BTreeMap::from([(0, Some(9))])), Durability::Synced).unwrap();
    assert_in_sync(&delta);
}

/// A row of the log that cannot be parsed is damage of the store.
#[test]
fn damaged_log_is_told() {
    let disk = Arc::new(MemoryEngine::new());
    let put = |key: Bytes, value: &'static [u8]| {
        let (keyspace, value) = (Keyspace::Delta, Bytes::from_static(value));
        disk.commit(vec![Change::Put { keyspace, key, value }], Durability::Synced).unwrap();
    };
    let open =
        || Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, 500, Flushing::Within, &Supervisor::default());
    put(format::encode_delta_key(7), &[0, 3, 0, 1, 2, 0xff, 0xff]);
    assert!(open().is_ok());
    for (number, value) in [(8, &[0, 3, 0, 1][..]), (9, &[0xff, 0xff])] {
        put(format::encode_delta_key(number), value);
        assert!(matches!(open(), Err(EngineError::Corrupt { .. })), "{number}");
        disk.wipe();
    }
    put(Bytes::from_static(b"seven"), &[]);
    assert!(matches!(open(), Err(EngineError::Corrupt { .. })));
}
