//! A disk of another cluster, made by copying a disk of this one: a copy of a cluster for tests with the same
//! host names has such disks. It belongs to the same node, has the same store id and was placed among the same
//! nodes. Only the cluster id tells the two disks apart: the other cluster got an id of its own, and took
//! writes of its own since.

use bytes::Bytes;
use kvorum_core::{ClusterId, NodeId, Record, Token, UnixMillis, Value, Version};
use kvorum_server::storage::delta::{Delta, Flushing};
use kvorum_server::storage::format::{self, Mark};
use kvorum_server::storage::memory::{DiskCopy, MemoryEngine};
use kvorum_server::storage::{Batch, Change, Durability, Engine, EngineError, Keyspace};
use kvorum_server::supervise::Supervisor;
use std::ops::Bound;
use std::sync::Arc;

/// The value of every record that was written in the other cluster. It is the value of no client's write.
const VALUE: &[u8] = b"written in another cluster";
/// More than the index of a store in the simulation takes, so that nothing is folded.
const INDEX_BYTES: usize = 1 << 20;

/// A disk of another cluster.
pub struct ForeignDisk {
    /// What is on it.
    pub disk: DiskCopy,
    /// The records that were written in the other cluster.
    pub written: Vec<(Bytes, Version)>,
}

/// Whether a store knows its cluster; `None` when it cannot be read.
pub fn knows_cluster(engine: &MemoryEngine) -> Option<bool> {
    engine.get(Keyspace::Meta, format::META_CLUSTER_ID).ok().map(|row| row.is_some())
}

/// Makes a disk of another cluster from a copy of the disk of `node`. `choice` decides the other cluster's id,
/// and which of the stored keys it wrote. It wrote at `wall`, with the version's highest counter: no write of
/// this cluster has that version.
///
/// # Errors
/// When a row cannot be read.
pub fn foreign(
    copy: DiskCopy,
    node: NodeId,
    partition_bits: u8,
    choice: u64,
    wall: UnixMillis,
) -> Result<ForeignDisk, EngineError> {
    // An engine of its own: on the machine's engine a fault may be active that makes writes fail.
    let engine = Arc::new(MemoryEngine::new());
    engine.put_back(copy);
    let version = Version::new(wall, u16::MAX, node);
    let mut batch = Batch::new();
    if knows_cluster(&engine) == Some(true) {
        let id = ClusterId::new(u128::from(choice) << 64 | 1).map(format::encode_cluster_id);
        batch.extend(id.map(|id| put(Keyspace::Meta, Bytes::from_static(format::META_CLUSTER_ID), id)));
    }
    let mut written = Vec::new();
    let rows = engine.scan(Keyspace::Records, b"", Bound::Unbounded)?.flatten();
    for (nth, (key, row)) in (0u32..).zip(rows) {
        let Ok(stored) = format::decode_record(&row) else { continue };
        let is_chosen = choice.rotate_right(nth) & 1 == 1;
        if !is_chosen || stored.version >= version {
            continue;
        }
        let value = Value::Present(Bytes::from_static(VALUE));
        let record = Record { version, from: stored.from, expires: None, value, conditional: None };
        let mark = Mark { version, from: record.from, is_tombstone: false };
        let token = format::encode_token_key(Token::of(&key).partition(partition_bits), &key);
        batch.push(put(Keyspace::Tokens, token, format::encode_mark(mark)));
        batch.push(put(Keyspace::Records, key.clone(), format::encode_record(&record)));
        written.push((key, version));
    }
    // The node wraps its engine in the same way: the rows of the index go to the log. Digests are not stored.
    let indexed =
        Delta::open(Arc::clone(&engine) as _, INDEX_BYTES, Flushing::Within, &Supervisor::default())?;
    indexed.commit(batch, Durability::Synced)?;
    Ok(ForeignDisk { disk: engine.copy_of_files(), written })
}

fn put(keyspace: Keyspace, key: Bytes, value: Bytes) -> Change {
    Change::Put { keyspace, key, value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::write_of;

    /// Goal: such a disk differs from the copied one in the cluster id and in some records, with their rows of
    /// the index. Method: a small disk, and a choice of every other key.
    #[test]
    fn foreign_disks_have_an_id_and_records_of_their_own() {
        let node = NodeId(7);
        let (past, wall, future) = (UnixMillis(1000), UnixMillis(2000), UnixMillis(3000));
        let ours = ClusterId::new(5).unwrap();
        let record = |at| {
            let value = Value::Present(Bytes::from_static(b"v"));
            Record { version: Version::new(at, 0, node), from: 3, expires: None, value, conditional: None }
        };
        let engine = MemoryEngine::new();
        let stored = [("a", past), ("b", past), ("c", future), ("d", past), ("e", past)];
        let mut batch: Batch = vec![put(
            Keyspace::Meta,
            Bytes::from_static(format::META_CLUSTER_ID),
            format::encode_cluster_id(ours),
        )];
        batch.extend(
            stored.map(|(key, at)| put(Keyspace::Records, key.into(), format::encode_record(&record(at)))),
        );
        engine.commit(batch, Durability::Synced).unwrap();
        let made = foreign(engine.copy_of_files(), node, 12, 0b10101, wall).unwrap();
        let keys: Vec<&[u8]> = made.written.iter().map(|(key, _)| &key[..]).collect();
        assert_eq!(keys, [b"a", b"e"], "a record that is newer stays");

        engine.put_back(made.disk);
        let id = engine.get(Keyspace::Meta, format::META_CLUSTER_ID).unwrap().unwrap();
        assert_ne!(format::decode_cluster_id(&id).unwrap(), Some(ours));
        let engine = Arc::new(engine);
        let indexed =
            Delta::open(Arc::clone(&engine) as _, INDEX_BYTES, Flushing::Within, &Supervisor::default())
                .unwrap();
        for (key, at) in stored {
            let row = engine.get(Keyspace::Records, key.as_bytes()).unwrap().unwrap();
            let found = format::decode_record(&row).unwrap();
            if made.written.iter().any(|(written, _)| written == key.as_bytes()) {
                let Value::Present(value) = &found.value else { panic!("a value was written") };
                assert_eq!((found.version.millis(), write_of(value)), (wall, None));
                let token = format::encode_token_key(Token::of(key.as_bytes()).partition(12), key.as_bytes());
                let mark = indexed.get(Keyspace::Tokens, &token).unwrap().unwrap();
                assert_eq!(format::decode_mark(&mark).unwrap().version, found.version);
            } else {
                assert_eq!(found, record(at));
            }
        }
    }

    /// A store that knows no cluster gets no id.
    #[test]
    fn store_without_a_cluster_gets_no_id() {
        let made = foreign(MemoryEngine::new().copy_of_files(), NodeId(7), 12, 1, UnixMillis(1)).unwrap();
        let engine = MemoryEngine::new();
        engine.put_back(made.disk);
        assert_eq!(knows_cluster(&engine), Some(false));
    }
}
