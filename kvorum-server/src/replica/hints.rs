//! Hints: writes kept for nodes that missed them, durable and separate from the records that are served.
//!
//! A hint lies under its target and version. So delivery follows the order of the writes, and the target's store gets
//! few superseded rows. The hints of one target are bounded in bytes and age. A hint dropped by a bound leaves a dirty
//! partition (*gap* in the code): a durable mark on a partition of a node that needs repair. A node marks all
//! its own partitions when it may have lost confirmed writes ([`super::opening`]).
//!
//! Hints are only kept here. The coordinator decides when and by whom they are delivered.

use super::{Replica, ReplicaError, StoreState};
use crate::crash::{self, Point};
use crate::storage::{Change, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Record, UnixMillis, Value, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much may be kept for one target.
#[derive(Debug, Clone, Copy)]
pub struct HintBounds {
    /// Bytes of keys and records.
    pub bytes_max: u64,
    /// Milliseconds from a write's version on.
    pub age_max_millis: u64,
}

/// The outcome of keeping a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The write is kept.
    Hint,
    /// A bound was reached: the partition is marked dirty.
    Gap,
}

/// A write that waits for its target.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The hint's key in the `hints` keyspace.
    row: Bytes,
    /// The key that was written.
    pub key: Key,
    /// The record that was written.
    pub record: Record,
}

/// The hints that wait for one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Number of hints.
    pub count: u64,
    /// Bytes of their keys and records.
    pub bytes: u64,
    /// Dirty partitions of the target: they need repair because a bound dropped a hint.
    pub gaps: u64,
}

/// The hints for keys of one partition.
struct Hinted {
    count: u64,
    oldest: u64,
}

#[derive(Default)]
struct Books {
    waiting: BTreeMap<NodeId, Waiting>,
    hinted: BTreeMap<u16, Hinted>,
    /// Dirty partitions by node, each with a timestamp that no missing write exceeds.
    gaps: BTreeMap<(NodeId, u16), u64>,
}

/// The hints in the node's store. Cheap to clone.
#[derive(Clone)]
pub struct Hints {
    replica: Replica,
    bounds: HintBounds,
    // Guards the counts. Held for a few additions.
    books: Arc<Mutex<Books>>,
    /// Number of dirty partitions: nearly always 0, and then no caller takes the lock.
    gap_count: Arc<AtomicU64>,
}

impl Hints {
    /// Loads the hints that the store holds. The previous run stamped nothing later than `lease`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn open(replica: Replica, bounds: HintBounds, lease: UnixMillis) -> Result<Self, ReplicaError> {
        let engine = &replica.shared.engine;
        let clock = Version::new(lease, u16::MAX, NodeId(0)).clock();
        let mut books = Books::default();
        for pair in engine.scan(Keyspace::Hints, &[], Bound::Unbounded)? {
            let (row, record) = pair?;
            let (target, key) = format::decode_hint_key(&row)?;
            if let Ok(key) = Key::new(key) {
                books.hint(replica.partition_of(&key).0, format::decode_hint_clock(&row)?);
            }
            books.waiting.entry(target).or_default().add(row.len() + record.len());
        }
        for pair in engine.scan(Keyspace::Meta, format::META_GAP, Bound::Unbounded)? {
            let (row, _) = pair?;
            if !row.starts_with(format::META_GAP) {
                break;
            }
            let (target, partition) = format::decode_gap_key(&row)?;
            books.mark(target, partition, clock);
        }
        let gap_count = Arc::new(AtomicU64::new(books.gaps.len() as u64));
        Ok(Self { replica, bounds, books: Arc::new(Mutex::new(books)), gap_count })
    }

    /// Keeps `record` for `target`, or marks the partition dirty when a bound is reached. `now` judges the age.
    ///
    /// # Errors
    /// When the row cannot be stored; then there is neither a hint nor a durable dirty mark.
    ///
    /// # Cancel safety
    /// Once begun, the row is stored whether or not the future is still polled; the counts may then miss it until
    /// the next start.
    pub async fn keep(
        &self,
        target: NodeId,
        partition: u16,
        key: &Key,
        record: &Record,
        now: UnixMillis,
    ) -> Result<Kept, ReplicaError> {
        let row = format::encode_hint_key(target, record.version, key.as_ref());
        let value = format::encode_record(record);
        let bytes = row.len() + value.len();
        let is_full = {
            let waiting = self.waiting_for(target);
            waiting.bytes + bytes as u64 > self.bounds.bytes_max
        };
        // The rest of a full disk is for deletions.
        let has_no_room = record.value != Value::Tombstone && self.replica.health() == StoreState::DiskFull;
        if is_full || has_no_room || self.is_too_old(record.version, now) {
            self.mark_gap(target, partition, record.version, now).await?;
            return Ok(Kept::Gap);
        }
        // Counted first: a hint that is delivered and dropped at once must not be subtracted before it is added.
        {
            let mut books = self.lock();
            books.waiting.entry(target).or_default().add(bytes);
            books.hint(partition, record.version.clock());
        }
        crash::point(Point::HintBefore);
        let kept = self.replica.store_side(vec![put(Keyspace::Hints, row, value)], false).await;
        if kept.is_err() {
            let mut books = self.lock();
            books.waiting.entry(target).or_default().sub(bytes);
            books.unhint(partition);
        } else {
            crash::point(Point::HintAfter);
        }
        kept.map(|()| Kept::Hint)
    }

    /// Marks `partition` of `target` dirty, durably: the target lacks the write of `version`.
    pub async fn mark_gap(
        &self,
        target: NodeId,
        partition: u16,
        version: Version,
        since: UnixMillis,
    ) -> Result<(), ReplicaError> {
        if self.lock().is_marked(target, partition, version.clock()) {
            return Ok(());
        }
        let row = put(Keyspace::Meta, format::encode_gap_key(target, partition), format::encode_lease(since));
        crash::point(Point::GapBefore);
        self.replica.store_side(vec![row], true).await?;
        crash::point(Point::GapAfter);
        let mut books = self.lock();
        books.mark(target, partition, version.clock());
        self.gap_count.store(books.gaps.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The dirty partitions of `target`.
    pub fn gaps_of(&self, target: NodeId) -> BTreeSet<u16> {
        let books = self.lock();
        books.gaps.range((target, 0)..=(target, u16::MAX)).map(|((_, partition), _)| *partition).collect()
    }

    /// Whether `partition` of `target` is dirty: the target is known to lack a write there.
    pub fn lacks(&self, target: NodeId, partition: u16) -> bool {
        self.gap_count.load(Ordering::Relaxed) > 0 && self.lock().gaps.contains_key(&(target, partition))
    }

    /// Removes the dirty marks for which `is_healed` returns true, because the target was found to hold all that it
    /// must. Its arguments: the target, the partition, and a timestamp that no missing write exceeds.
    pub async fn forget_gaps(
        &self,
        is_healed: impl Fn(NodeId, u16, u64) -> bool,
    ) -> Result<(), ReplicaError> {
        if self.gap_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut gaps = self.lock().gaps.clone();
        gaps.retain(|(target, partition), clock| is_healed(*target, *partition, *clock));
        if gaps.is_empty() {
            return Ok(());
        }
        let row = |(target, partition): &(NodeId, u16)| Change::Remove {
            keyspace: Keyspace::Meta,
            key: format::encode_gap_key(*target, *partition),
        };
        crash::point(Point::GapsRemoveBefore);
        self.replica.store_side(gaps.keys().map(row).collect(), false).await?;
        crash::point(Point::GapsRemoveAfter);
        // A hint dropped meanwhile found this mark and stored none: store its mark again.
        let mut newer = Vec::new();
        {
            let mut books = self.lock();
            for (place, clock) in gaps {
                let covered = books.gaps.get(&place).copied();
                if let Some(covered) = covered.filter(|covered| *covered > clock) {
                    newer.push((place, Version::from_words(covered, 0).millis()));
                } else if books.gaps.remove(&place).is_some() {
                    let waiting = books.waiting.entry(place.0).or_default();
                    waiting.gaps = waiting.gaps.saturating_sub(1);
                }
            }
            self.gap_count.store(books.gaps.len() as u64, Ordering::Relaxed);
        }
        if newer.is_empty() {
            return Ok(());
        }
        let rows = newer.into_iter().map(|((target, partition), since)| {
            put(Keyspace::Meta, format::encode_gap_key(target, partition), format::encode_lease(since))
        });
        self.replica.store_side(rows.collect(), true).await
    }

    /// The next hints for `target` after `after`, in order: at most `count_max`, about `bytes_max`. Reads the store in
    /// the background pool.
    pub async fn next(
        &self,
        target: NodeId,
        after: Option<&Hint>,
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hint>, ReplicaError> {
        let engine = Arc::clone(&self.replica.shared.engine);
        let mut start = after.map_or_else(|| target.0.to_be_bytes().to_vec(), |hint| hint.row.to_vec());
        if after.is_some() {
            start.push(0);
        }
        let read = move || {
            let mut hints = Vec::new();
            let mut bytes = 0;
            for pair in engine.scan(Keyspace::Hints, &start, Bound::Unbounded)? {
                let (row, value) = pair?;
                let (found, key) = format::decode_hint_key(&row)?;
                if found != target || hints.len() >= count_max || bytes >= bytes_max {
                    break;
                }
                bytes += row.len() + value.len();
                let record = format::decode_record(&value)?;
                // A row whose key is not valid was never written.
                let Ok(key) = Key::new(key) else { continue };
                hints.push(Hint { row, key, record });
            }
            Ok::<_, ReplicaError>(hints)
        };
        self.replica.shared.pools.background.run(read).await?
    }

    /// The partitions whose keys have hints, for any target, ascending. Each comes with a timestamp at or below that of
    /// its oldest hint: the lowest one since the partition last had no hints.
    pub fn oldest(&self) -> Vec<(u16, u64)> {
        self.lock().hinted.iter().map(|(partition, hinted)| (*partition, hinted.oldest)).collect()
    }

    /// Removes hints that were delivered.
    pub async fn remove(&self, target: NodeId, hints: Vec<Hint>) -> Result<(), ReplicaError> {
        let bytes: usize = hints.iter().map(|hint| hint.row.len() + format::record_bytes(&hint.record)).sum();
        let count = hints.len() as u64;
        let partitions: Vec<u16> = hints.iter().map(|hint| self.replica.partition_of(&hint.key).0).collect();
        let changes = hints
            .into_iter()
            .map(|hint| Change::Remove { keyspace: Keyspace::Hints, key: hint.row })
            .collect();
        crash::point(Point::HintsRemoveBefore);
        self.replica.store_side(changes, false).await?;
        crash::point(Point::HintsRemoveAfter);
        let mut books = self.lock();
        let waiting = books.waiting.entry(target).or_default();
        waiting.count = waiting.count.saturating_sub(count);
        waiting.bytes = waiting.bytes.saturating_sub(bytes as u64);
        for partition in partitions {
            books.unhint(partition);
        }
        Ok(())
    }

    /// Forgets all hints, because their store was set aside; dirty marks stay. Returns how many hints were lost.
    pub fn forget_all(&self) -> u64 {
        let mut books = self.lock();
        let lost = books.waiting.values().map(|waiting| waiting.count).sum();
        for waiting in books.waiting.values_mut() {
            (waiting.count, waiting.bytes) = (0, 0);
        }
        books.hinted.clear();
        lost
    }

    /// The counts of the hints for `target`.
    pub fn waiting_for(&self, target: NodeId) -> Waiting {
        self.lock().waiting.get(&target).copied().unwrap_or_default()
    }

    /// The counts of the hints, by target.
    pub fn waiting(&self) -> BTreeMap<NodeId, Waiting> {
        self.lock().waiting.clone()
    }

    /// Whether a write of `version` is too old to be kept or delivered as a hint. False while this node's clock may be
    /// wrong.
    pub fn is_too_old(&self, version: Version, now: UnixMillis) -> bool {
        version.millis().saturating_add(self.bounds.age_max_millis) < now
            && !self.replica.timestamps().stands_down()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }

    fn sub(&mut self, bytes: usize) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }
}

impl Books {
    fn hint(&mut self, partition: u16, clock: u64) {
        let hinted = self.hinted.entry(partition).or_insert(Hinted { count: 0, oldest: clock });
        hinted.count += 1;
        hinted.oldest = hinted.oldest.min(clock);
    }

    fn unhint(&mut self, partition: u16) {
        if let Some(hinted) = self.hinted.get_mut(&partition) {
            hinted.count = hinted.count.saturating_sub(1);
            if hinted.count == 0 {
                self.hinted.remove(&partition);
            }
        }
    }

    fn mark(&mut self, target: NodeId, partition: u16, clock: u64) {
        if !self.is_marked(target, partition, clock) {
            self.gaps.insert((target, partition), clock);
            self.waiting.entry(target).or_default().gaps += 1;
        }
    }

    /// Whether the partition is marked dirty; if so, the mark covers `clock` from now on.
    fn is_marked(&mut self, target: NodeId, partition: u16, clock: u64) -> bool {
        let Some(covered) = self.gaps.get_mut(&(target, partition)) else { return false };
        *covered = clock.max(*covered);
        true
    }
}

fn put(keyspace: Keyspace, key: Bytes, value: Bytes) -> Change {
    Change::Put { keyspace, key, value }
}
