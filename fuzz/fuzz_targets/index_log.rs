//! Goal: whatever the log of the index holds, opening it never panics and never invents a value. Either the
//! log is refused as damaged, or every key in it has the last value that the log gives it.
//! Method: the input is cut into rows of the log, two bytes of length before each; a model reads the same
//! rows in order.

#![no_main]

use bytes::Bytes;
use kvorum_server::storage::delta::{Delta, Flushing};
use kvorum_server::storage::memory::MemoryEngine;
use kvorum_server::storage::{Change, Durability, Engine, Keyspace, format};
use kvorum_server::supervise::Supervisor;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::sync::Arc;

fuzz_target!(|input: &[u8]| {
    let (mut rows, mut rest) = (Vec::new(), input);
    while let [a, b, behind @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*a, *b])).min(behind.len());
        let (row, left) = behind.split_at(length);
        rows.push(Bytes::copy_from_slice(row));
        rest = left;
    }
    let mut model = BTreeMap::new();
    let mut is_sound = true;
    for row in &rows {
        for change in format::delta_rows(row) {
            match change {
                Ok(change) => drop(model.insert(change.key.to_vec(), change.value.map(<[u8]>::to_vec))),
                Err(_) => is_sound = false,
            }
        }
    }
    let engine = Arc::new(MemoryEngine::new());
    let batch = (0u64..).zip(&rows).map(|(number, row)| Change::Put {
        keyspace: Keyspace::Delta,
        key: format::encode_delta_key(number),
        value: row.clone(),
    });
    assert!(engine.commit(batch.collect(), Durability::Synced).is_ok());
    let supervisor = Supervisor::default();
    let Ok(delta) = Delta::open(engine, 1 << 20, Flushing::Within, &supervisor) else {
        return assert!(!is_sound, "a sound log is refused");
    };
    assert!(is_sound, "a log that cannot be read is taken");
    for (key, value) in model {
        let found = delta.get(Keyspace::Tokens, &key);
        assert_eq!(found.ok().flatten().map(|found| found.to_vec()), value, "{key:02x?}");
    }
});
