//! Bulk sync: brings here most of what another node holds, in one walk through its store.
//!
//! A partition's keys lie all over the store, which is in key order. Syncing partition by partition reads each record at a
//! place of its own, from a block of its own where the store is larger than memory. That is right for a few differences.
//! Where this node lacks most of what a comparison looks at, it asks the peer to walk through its store in key order, for
//! many partitions at a time: the peer reads sequentially, and this node writes sequentially.
//!
//! Bulk sync only brings records early, under the same rules as syncing a partition. The partitions are compared afterwards
//! like any others, so a walk that is cut short, or meets damage, costs time and nothing else. When it is worth its while,
//! and what was refused: `docs/decisions/0019-what-most-is-lacking-of-goes-over-in-order-of-keys.md`.

use super::{Comparisons, Puller};
use crate::background::anti_entropy::sync::{BATCH_BYTES_MAX, CALL_TIMEOUT};
use crate::canary::{self, Canary};
use crate::coordinator::calls::{Calls, Cause};
use crate::peer::{Reply, Request, StretchRow, Timestamp};
use crate::replica::{Floor, ReplicaError, Row};
use kvorum_core::{Key, Record, Slot, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A bulk sync must cover at least one in this many of the non-empty partitions: it reads all the others for nothing.
const WORTH: usize = 8;
/// Records of a batch, at most: each batch costs a sync to disk.
const BATCH_LEN_MAX: usize = 256;
/// Batches under way at a time.
const IN_FLIGHT_MAX: usize = 2;
/// Records that are collected until they fill a batch, at most.
const PILED_MAX: usize = 8 * BATCH_LEN_MAX;

/// When bulk sync is used, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferring {
    /// Partitions that are synced before it is judged whether this node lacks most.
    pub probed_min: u64,
    /// Bytes read in one part of the walk.
    pub stretch_bytes: u32,
    /// The mean size of rows, in bytes, above which a walk costs more than looking up the wanted rows: it also reads
    /// the rows in between.
    pub row_bytes_max: u64,
}

impl Default for Transferring {
    fn default() -> Self {
        Self { probed_min: 8, stretch_bytes: 256 << 10, row_bytes_max: 1 << 10 }
    }
}

/// What this node lacked of the partitions that were synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// Records that the peer holds and this node ought to.
    pub(crate) listed: u64,
    /// Those of them that this side did not hold, or held in an older version.
    pub(crate) lacked: u64,
}

impl Lacking {
    pub(crate) fn add(&mut self, other: Self) {
        self.listed += other.listed;
        self.lacked += other.lacked;
    }

    pub(crate) fn is_most(self) -> bool {
        self.lacked > 0 && self.lacked * 2 >= self.listed
    }
}

/// Whether one is worth its while for `chosen` partitions, where `held` hold anything.
pub(crate) fn is_worth(chosen: usize, held: usize) -> bool {
    chosen > 0 && chosen >= held / WORTH
}

/// The records that one part of a walk found for a node.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) records: Vec<StretchRow>,
    /// The last key that was read; `None` at the end of the store.
    pub(crate) last: Option<Key>,
    /// Whether rows are so large that looking up the wanted ones is cheaper.
    pub(crate) is_large: bool,
}

impl Puller {
    /// Pulls what the peer holds of `partitions`, ascending, as far as it belongs here. Ends early where records
    /// are so large that syncing partition by partition is cheaper.
    ///
    /// # Cancel safety
    /// Dropping the future ends it between two batches; what came stays.
    pub(super) async fn bulk_sync(&self, partitions: Vec<u16>) -> Result<(), Cause> {
        let shared = &self.own.shared;
        shared.background.anti_entropy.progress.bulk_syncs.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(
            node = shared.cluster.url_of(self.index),
            partitions = partitions.len(),
            "bulk sync: this node lacks most of what the other one holds"
        );
        let (mut piles, mut after) = (Piles::default(), None);
        let mut calls: Calls<Result<(), Cause>> = Calls::new();
        loop {
            let part = self.part(&partitions, after).await?;
            let is_end = part.last.is_none();
            part.records.into_iter().for_each(|row| piles.add(row.agreed.0, row.key, row.record));
            while let Some((agreed, records)) = piles.take(is_end) {
                let puller = self.clone();
                calls.push(self.index, async move { puller.take_records(agreed, records).await });
                if calls.nodes().count() >= IN_FLIGHT_MAX
                    && let Some((_, outcome)) = calls.next().await
                {
                    outcome?;
                }
            }
            if is_end || part.is_large {
                break;
            }
            after = part.last;
        }
        while let Some((_, outcome)) = calls.next().await {
            outcome?;
        }
        Ok(())
    }

    /// The next part of a walk through the peer's store.
    async fn part(&self, partitions: &[u16], after: Option<Key>) -> Result<Part, Cause> {
        let bytes = self.own.shared.background.anti_entropy.transferring.stretch_bytes;
        let Some(link) = self.own.link(self.index) else { return Err(Cause::Unreachable) };
        let request = Request::Stretch { partitions: partitions.to_vec(), after: after.clone(), bytes };
        match link.call(&request, CALL_TIMEOUT).await {
            // The walk must advance.
            Ok(Reply::Stretched { last, .. }) if last.is_some() && last <= after => Err(Cause::OffTopic),
            Ok(Reply::Stretched { last, is_large, records }) => Ok(Part { records, last, is_large }),
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => {
                self.own.shared.peering.count_failure(self.index);
                Err(Cause::Call(error))
            }
        }
    }
}

impl Comparisons {
    /// Reads about `bytes` of the store after `after`, and returns the records of `partitions`, ascending, for the node
    /// at `index`.
    pub(crate) async fn part_for(
        &self,
        index: Slot,
        partitions: &[u16],
        after: Option<Key>,
        bytes: u32,
    ) -> Result<Part, ReplicaError> {
        // Read the floors before the records: they are then at least as recent.
        let floors = self.replica.believed_floors().unwrap_or_default();
        let (view, timestamps) = (self.cluster.view(), Arc::clone(&self.timestamps));
        let wanted = partitions.to_vec();
        let pick = move |key: &Key, row: Row<'_>| {
            let partition = view.partition_of(key);
            if wanted.binary_search(&partition.0).is_err() {
                return Ok(None);
            }
            let record = row.record()?;
            let floor = floors.get(usize::from(partition.0)).copied().unwrap_or_default();
            let rank = view.rank_of(partition, index).unwrap_or(u16::MAX);
            let is_wanted = belongs(&record, rank) && !is_purged(&record, floor);
            let is_believed = timestamps.check(record.version.clock()).is_ok();
            let row = || StretchRow { agreed: Timestamp(floor.agreed), key: key.clone(), record };
            Ok((is_wanted && is_believed).then(row))
        };
        let stretch = self.replica.stretch(after, bytes.into(), pick).await?;
        let row_bytes_max = self.transferring.row_bytes_max;
        let is_large = stretch.bytes > stretch.rows.saturating_mul(row_bytes_max);
        Ok(Part { records: stretch.picked, last: stretch.last, is_large })
    }
}

/// Whether `record` belongs on rank `rank`.
fn belongs(record: &Record, rank: u16) -> bool {
    record.from > rank || canary::is(Canary::TransferIgnoresFrom)
}

/// Whether the other node may have purged `record`.
fn is_purged(record: &Record, floor: Floor) -> bool {
    record.value == Value::Tombstone && record.version.clock() <= floor.purged
}

/// Records that wait for a batch, by the timestamp up to which their partitions had agreed: a batch has one for all.
#[derive(Default)]
struct Piles {
    piles: BTreeMap<u64, Vec<(Key, Record)>>,
    count: usize,
}

impl Piles {
    fn add(&mut self, agreed: u64, key: Key, record: Record) {
        self.piles.entry(agreed).or_default().push((key, record));
        self.count += 1;
    }

    /// Takes a batch if one is full, if too many records wait, or, at the end (`is_end`), if any record waits.
    fn take(&mut self, is_end: bool) -> Option<(u64, Vec<(Key, Record)>)> {
        let (agreed, pile) = self.piles.iter_mut().max_by_key(|(_, pile)| pile.len())?;
        let (agreed, mut bytes, mut length) = (*agreed, 0, 0);
        while length < pile.len().min(BATCH_LEN_MAX) && bytes < BATCH_BYTES_MAX as usize {
            bytes += pile.get(length).map_or(0, |(key, record)| key.as_ref().len() + record.value_bytes());
            length += 1;
        }
        let is_batch = length == BATCH_LEN_MAX || bytes >= BATCH_BYTES_MAX as usize;
        if !is_batch && !is_end && self.count <= PILED_MAX {
            return None;
        }
        let rest = pile.split_off(length);
        let batch = std::mem::replace(pile, rest);
        if pile.is_empty() {
            self.piles.remove(&agreed);
        }
        self.count -= batch.len();
        Some((agreed, batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{NodeId, Version};
    use std::collections::BTreeSet;

    /// Bulk sync is due where most of what was looked at was lacking, and most of the store is meant.
    #[test]
    fn bulk_sync_is_due_where_most_is_lacking() {
        let is_most = |listed, lacked| Lacking { listed, lacked }.is_most();
        assert!(is_most(800, 400) && is_most(1, 1));
        assert!(!is_most(800, 392) && !is_most(0, 0) && !is_most(800, 0));
        assert!(is_worth(100, 800) && !is_worth(99, 800) && !is_worth(0, 0));
    }

    /// Goal: each batch has one timestamp and stays within its bounds, and no record is lost or waits without bound.
    /// Method: records of several timestamps and sizes in turns; compare the records that come out with those that went
    /// in.
    #[test]
    fn batches_are_of_one_word() {
        let record = |number: u64, bytes: usize| Record {
            version: Version::from_words(number, NodeId(1).0),
            from: 3,
            expires: None,
            value: Value::Present(bytes::Bytes::from(vec![7; bytes])),
            conditional: None,
        };
        let mut piles = Piles::default();
        let (mut came, mut added) = (BTreeSet::new(), 0u64);
        let mut take = |piles: &mut Piles, is_end| {
            while let Some((agreed, records)) = piles.take(is_end) {
                assert!(!records.is_empty() && records.len() <= BATCH_LEN_MAX);
                let bytes: usize = records.iter().map(|(_, record)| record.value_bytes()).sum();
                assert!(records.len() == 1 || bytes < 2 * BATCH_BYTES_MAX as usize, "{bytes}");
                for (key, record) in records {
                    assert_eq!(record.version.clock() % 40, agreed);
                    assert!(came.insert(key));
                }
            }
        };
        for part in 0..50 {
            for _ in 0..100 {
                let bytes = if part == 20 { 100 << 10 } else { 100 };
                piles.add(added % 40, Key::new(added.to_be_bytes().to_vec()).unwrap(), record(added, bytes));
                added += 1;
            }
            take(&mut piles, false);
            assert!(piles.count <= PILED_MAX);
        }
        take(&mut piles, true);
        assert_eq!((came.len() as u64, piles.count, piles.piles.len()), (added, 0, 0));
    }
}
