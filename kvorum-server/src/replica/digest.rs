//! Digests: one number for each partition, computed from the versions of the keys that this replica holds.
//!
//! Two replicas that hold the same have the same digests, so comparing them costs a few bytes per partition, however
//! much is stored. A digest is the exclusive or of a hash per key and version: every applied write updates it at the
//! cost of two hashes, in any order. The tombstone of an expired record has the record's version, so the digests of two
//! replicas agree even when they notice the expiry at different times.
//!
//! A record belongs only on ranks below its `from`, so two replicas have in common the records with a `from` above both
//! ranks. Digests are therefore kept apart by `from` and combined for each pair.
//!
//! The rows behind a digest lie in the `tokens` keyspace, by partition: the cost of listing differences follows the
//! size of the partition, not of the store.

use super::ReplicaError;
use crate::canary::{self, Canary};
use crate::crash::{self, Point};
use crate::storage::format::Mark;
use crate::storage::{Batch, Change, Durability, Engine, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Partition, Token, Version};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rows that are written in one batch when the index is rebuilt.
const REBUILD_ROWS: usize = 4096;

/// One partition's digest of the records with one `from`.
#[derive(Debug, Clone, Copy)]
struct Cell {
    from: u16,
    digest: u64,
    keys: u64,
    /// The tombstones among the keys.
    dead: u64,
}

/// The digests of a store.
#[derive(Debug)]
pub struct Digests {
    bits: u8,
    // Guards the cells. Held to apply one group's changes or to read one partition or list.
    partitions: Mutex<Vec<Vec<Cell>>>,
}

impl Digests {
    /// Digests of an empty store with 2^`bits` partitions.
    pub(super) fn new(bits: u8) -> Self {
        Self { bits, partitions: Mutex::new(vec![Vec::new(); 1 << bits]) }
    }

    /// Loads the digests of `engine`'s records. Builds the index first in a store that was written without it.
    pub(super) fn open(engine: &dyn Engine, bits: u8) -> Result<Self, ReplicaError> {
        let digests = Self::new(bits);
        if !Self::are_kept(engine)? {
            digests.index(engine)?;
        }
        digests.load(engine)?;
        Ok(digests)
    }

    /// Whether `engine`'s store has the index from which digests are counted.
    ///
    /// # Errors
    /// Its rows cannot be read.
    pub fn are_kept(engine: &dyn Engine) -> Result<bool, ReplicaError> {
        Ok(engine.get(Keyspace::Meta, format::META_INDEXED)?.is_some())
    }

    /// Resets all digests, because the store is empty now.
    pub(super) fn clear(&self) {
        self.lock().iter_mut().for_each(Vec::clear);
    }

    /// Recounts the digests from the index.
    pub(super) fn load(&self, engine: &dyn Engine) -> Result<(), ReplicaError> {
        self.clear();
        let mut changes = Vec::with_capacity(REBUILD_ROWS);
        for pair in engine.scan(Keyspace::Tokens, &[], Bound::Unbounded)? {
            let (row, mark) = pair?;
            let (_, key) = format::decode_token_key(&row)?;
            let Ok(key) = Key::new(key) else { continue };
            changes.push((key, None, Some(format::decode_mark(&mark)?)));
            if changes.len() >= REBUILD_ROWS {
                self.change(&std::mem::take(&mut changes));
            }
        }
        self.change(&changes);
        Ok(())
    }

    /// Builds the index of a store that has none.
    fn index(&self, engine: &dyn Engine) -> Result<(), ReplicaError> {
        let mut batch = Batch::new();
        for pair in engine.scan(Keyspace::Records, &[], Bound::Unbounded)? {
            let (key, row) = pair?;
            let (mark, Ok(key)) = (format::decode_record_mark(&row)?, Key::new(key)) else { continue };
            batch.push(self.row(&key, Some(mark)));
            if batch.len() >= REBUILD_ROWS {
                crash::point(Point::IndexBefore);
                engine.commit(std::mem::take(&mut batch), Durability::Buffered)?;
            }
        }
        batch.push(Change::Put {
            keyspace: Keyspace::Meta,
            key: Bytes::from_static(format::META_INDEXED),
            value: Bytes::from_static(&[1]),
        });
        crash::point(Point::IndexBefore);
        engine.commit(batch, Durability::Synced)?;
        crash::point(Point::IndexAfter);
        Ok(())
    }

    /// The partition of `key`.
    pub(super) fn partition_of(&self, key: &Key) -> Partition {
        Token::of(key.as_ref()).partition(self.bits)
    }

    /// The change of the index row that goes with a change of `key`'s record.
    pub(super) fn row(&self, key: &Key, mark: Option<Mark>) -> Change {
        let row = format::encode_token_key(self.partition_of(key), key.as_ref());
        match mark {
            Some(mark) => {
                Change::Put { keyspace: Keyspace::Tokens, key: row, value: format::encode_mark(mark) }
            }
            None => Change::Remove { keyspace: Keyspace::Tokens, key: row },
        }
    }

    /// Applies changes of keys: the mark before and the mark after.
    pub(super) fn change(&self, changes: &[(Key, Option<Mark>, Option<Mark>)]) {
        let mut partitions = self.lock();
        for (key, before, after) in changes {
            let Some(cells) = partitions.get_mut(usize::from(self.partition_of(key).0)) else { continue };
            if canary::is(Canary::DigestForgetsUpdate) && before.is_some() && after.is_some() {
                continue;
            }
            if let Some(mark) = before {
                let cell = cell(cells, mark.from);
                cell.digest ^= hash(key, mark.version);
                cell.keys = cell.keys.saturating_sub(1);
                cell.dead = cell.dead.saturating_sub(u64::from(mark.is_tombstone));
            }
            if let Some(mark) = after {
                let cell = cell(cells, mark.from);
                cell.digest ^= hash(key, mark.version);
                cell.keys += 1;
                cell.dead += u64::from(mark.is_tombstone);
            }
        }
    }

    /// The digest of `partition`'s records that were written for more than `rank_max` + 1 replicas. Two replicas have
    /// these in common when the higher of their ranks is `rank_max`.
    pub fn shared(&self, partition: Partition, rank_max: u16) -> u64 {
        let partitions = self.lock();
        let cells = partitions.get(usize::from(partition.0)).map_or(&[][..], |cells| cells);
        cells.iter().filter(|cell| cell.from > rank_max).fold(0, |digest, cell| digest ^ cell.digest)
    }

    /// Combines into one number all digests that the node of rank `rank` must share among `nodes`: with each lower
    /// rank, and with each higher rank. Two nodes compare `common` of the same `rank`: rank 0's number equals that of
    /// rank `rank` if each such pair agrees.
    pub fn common(&self, partition: Partition, rank: u16, nodes: u16) -> u64 {
        let partitions = self.lock();
        let cells = partitions.get(usize::from(partition.0)).map_or(&[][..], |cells| cells);
        fold_common(rank, nodes, |rank_max| {
            cells.iter().filter(|cell| cell.from > rank_max).fold(0, |digest, cell| digest ^ cell.digest)
        })
    }

    /// Whether there are records of `partition` that were written for at most `rank` replicas: they do not belong on it.
    pub fn has_upto(&self, partition: Partition, rank: u16) -> bool {
        let partitions = self.lock();
        let cells = partitions.get(usize::from(partition.0)).map_or(&[][..], |cells| cells);
        cells.iter().any(|cell| cell.from <= rank && cell.keys > 0)
    }

    /// For each partition one number for everything that this replica holds there, whatever it was written for.
    pub(super) fn totals(&self) -> Vec<u64> {
        let total = |cells: &Vec<Cell>| {
            cells.iter().filter(|cell| cell.keys > 0).fold(0, |total, cell| {
                let words = [cell.digest, cell.keys, u64::from(cell.from)].map(u64::to_be_bytes);
                total ^ xxhash_rust::xxh3::xxh3_64(words.as_flattened())
            })
        };
        self.lock().iter().map(total).collect()
    }

    /// Keys of `partition`, and how many of them are tombstones.
    pub fn counts(&self, partition: Partition) -> (u64, u64) {
        let partitions = self.lock();
        let cells = partitions.get(usize::from(partition.0)).map_or(&[][..], |cells| cells);
        cells.iter().fold((0, 0), |(keys, dead), cell| (keys + cell.keys, dead + cell.dead))
    }

    /// Partitions that hold anything.
    pub fn held(&self) -> usize {
        self.lock().iter().filter(|cells| cells.iter().any(|cell| cell.keys > 0)).count()
    }

    /// Keys that the store holds, tombstones included.
    pub fn keys(&self) -> u64 {
        self.lock().iter().flatten().map(|cell| cell.keys).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Cell>>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Folds the digests that the node of rank `rank` compares into one number. Each is named by the higher rank of its
/// pairs.
fn fold_common(rank: u16, nodes: u16, digest: impl Fn(u16) -> u64) -> u64 {
    (rank.max(1)..nodes).fold(0, |folded, rank_max| {
        xxhash_rust::xxh3::xxh3_64_with_seed(&digest(rank_max).to_be_bytes(), folded)
    })
}

/// Like [`Digests::common`], for records up to timestamp `upto`, by a scan of the partition's index.
pub(super) fn common_upto(
    engine: &dyn Engine,
    partition: Partition,
    rank: u16,
    nodes: u16,
    upto: u64,
) -> Result<u64, ReplicaError> {
    let mut cells: Vec<Cell> = Vec::new();
    let start = format::encode_token_key(partition, &[]);
    let end = format::token_end(partition);
    for pair in engine.scan(Keyspace::Tokens, &start, end.as_ref().map(AsRef::as_ref))? {
        let (row, mark) = pair?;
        let (_, key) = format::decode_token_key(&row)?;
        let mark = format::decode_mark(&mark)?;
        let Ok(key) = Key::new(key) else { continue };
        if mark.version.clock() <= upto {
            cell(&mut cells, mark.from).digest ^= hash(&key, mark.version);
        }
    }
    Ok(fold_common(rank, nodes, |rank_max| {
        cells.iter().filter(|cell| cell.from > rank_max).fold(0, |digest, cell| digest ^ cell.digest)
    }))
}

fn cell(cells: &mut Vec<Cell>, from: u16) -> &mut Cell {
    let at = cells.iter().position(|cell| cell.from == from).unwrap_or_else(|| {
        cells.push(Cell { from, digest: 0, keys: 0, dead: 0 });
        cells.len() - 1
    });
    #[expect(clippy::indexing_slicing, reason = "found or pushed above")]
    &mut cells[at]
}

/// The hash that one key and version adds to a digest: xxh3-64 of the key, seeded with the version's two words mixed.
fn hash(key: &Key, version: Version) -> u64 {
    let NodeId(node) = version.node();
    let seed = version.clock() ^ node.rotate_left(32);
    xxhash_rust::xxh3::xxh3_64_with_seed(key.as_ref(), seed)
}
