//! Transfers: what one of two nodes lacks in most of its partitions goes over in one walk through the other's store.
//!
//! A partition's keys lie all over the store, which is in order of keys: healing partition by partition reads each record
//! at a place of its own, from a block of its own where the store is larger than memory. That is right for a few
//! differences. Where a comparison finds that a side lacks most of what it looks at, it goes on with a walk in order of
//! keys, for many partitions at a time: reading is sequential, and so is writing on the other side. Either side may be the
//! one that compares: it sends what the peer lacks, or takes what it lacks itself.
//!
//! A transfer only brings records early, under the same rules as healing does; the partitions are compared afterwards like
//! any others. So one that is cut short, or meets damage, costs time and nothing else. When, by whom, and what was refused:
//! `docs/decisions/0019-what-most-is-lacking-of-goes-over-in-order-of-keys.md`.

use super::calls::{Calls, Cause};
use super::heal::{BATCH_BYTES_MAX, CALL_TIMEOUT};
use super::{Coordinator, Shared};
use crate::canary::{self, Canary};
use crate::peer::{Reply, Request};
use crate::replica::{Floor, ReplicaError, Row};
use kvorum_core::{Key, NodeIndex, Partition, Record, Value};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A transfer is for one in this many of the partitions that hold anything, at least: what it does not send, it reads for
/// nothing.
const WORTH: usize = 8;
/// Records of a batch, at most: each batch costs a sync.
const BATCH_LEN_MAX: usize = 256;
/// Batches on their way at a time.
const IN_FLIGHT_MAX: usize = 2;
/// Records that are kept until there is a batch of them, at most.
const PILED_MAX: usize = 8 * BATCH_LEN_MAX;

/// This says when transfers are made, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferring {
    /// Partitions that are healed before it is judged what either side lacks.
    pub probed_min: u64,
    /// Bytes read at a time.
    pub stretch_bytes: u32,
    /// The mean size of rows above which reading others in between costs more than looking up those that are wanted.
    pub row_bytes_max: u64,
}

impl Default for Transferring {
    fn default() -> Self {
        Self { probed_min: 8, stretch_bytes: 256 << 10, row_bytes_max: 1 << 10 }
    }
}

/// This is what one side of a comparison was found to lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lacking {
    /// Records that the other side holds and this one ought to.
    pub(super) listed: u64,
    /// Those of them that it did not, or in an older version.
    pub(super) lacked: u64,
}

impl Lacking {
    fn add(&mut self, other: Self) {
        self.listed += other.listed;
        self.lacked += other.lacked;
    }

    fn is_most(self) -> bool {
        self.lacked > 0 && self.lacked * 2 >= self.listed
    }
}

/// This is what both sides were found to lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// This node.
    pub(super) here: Lacking,
    /// The peer.
    pub(super) there: Lacking,
}

/// This says which way records go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the peer.
    Send,
    /// From it.
    Take,
}

/// This judges whether a comparison makes a transfer: one at most.
#[derive(Debug, Default)]
pub(super) struct Probe {
    seen: Found,
    probed: u64,
    was_used: bool,
}

impl Probe {
    /// Takes in what healing a partition found.
    pub(super) fn note(&mut self, found: Found) {
        self.seen.here.add(found.here);
        self.seen.there.add(found.there);
        self.probed += 1;
    }

    /// Which way one is due: where a side lacks most of what was looked at. It is judged once.
    pub(super) fn is_due(&mut self, probed_min: u64) -> Option<Way> {
        if self.was_used || self.probed < probed_min {
            return None;
        }
        let way = match self.seen {
            Found { here, .. } if here.is_most() => Way::Take,
            Found { there, .. } if there.is_most() => Way::Send,
            _ => return None,
        };
        self.was_used = true;
        Some(way)
    }
}

/// Whether one is worth its while for `chosen` partitions, where `held` hold anything.
pub(super) fn is_worth(chosen: usize, held: usize) -> bool {
    chosen > 0 && chosen >= held / WORTH
}

/// This is what a stretch of a walk found for a node.
#[derive(Debug)]
pub(super) struct Part {
    /// Each behind how far this store had settled in its partition before it was read.
    pub(super) records: Vec<(u64, Key, Record)>,
    /// The last key that was read; none at the end of the store.
    pub(super) last: Option<Key>,
    /// Whether records are so large that looking up those that are wanted is cheaper.
    pub(super) is_large: bool,
}

impl Coordinator {
    /// Whether a partition's records are for the node at `index` to send, if the records go this `way`: of all that answer,
    /// the one that comes first in the preference list does it, the one that lacks them left aside.
    pub(super) fn is_transferred(&self, index: NodeIndex, way: Way, partition: Partition) -> bool {
        let cluster = &self.shared.cluster;
        let rank = |node| self.shared.rank_of(node, partition);
        let (sender, taker) = match way {
            Way::Send => (cluster.me(), index),
            Way::Take => (index, cluster.me()),
        };
        let mut others =
            cluster.others().filter(|other| ![sender, taker].contains(other) && self.is_ready(*other));
        others.all(|other| rank(other) > rank(sender))
    }

    /// Has what one side holds of `partitions`, ascending, go over to the other, as far as it belongs there. Ends early
    /// where records are so large that healing is cheaper, and, unless it `is_urgent`, when another node heals there.
    ///
    /// # Cancel safety
    /// Dropping the future ends it between two batches; what went over stays.
    pub(super) async fn transfer(
        self: Rc<Self>,
        index: NodeIndex,
        way: Way,
        partitions: Vec<u16>,
        is_urgent: bool,
    ) -> Result<(), Cause> {
        let shared = &self.shared;
        let node: &str = shared.cluster.url_of(index);
        shared.metrics.repair_transfers.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(
            node,
            ?way,
            partitions = partitions.len(),
            "one side lacks most of what it ought to hold"
        );
        let (mut piles, mut after) = (Piles::default(), None);
        let mut calls: Calls<Result<(), Cause>> = Calls::new();
        loop {
            let part = self.part(index, way, &partitions, after).await?;
            let is_end = part.last.is_none();
            part.records.into_iter().for_each(|(settled, key, record)| piles.add(settled, key, record));
            while let Some((settled, records)) = piles.take(is_end) {
                let coordinator = Rc::clone(&self);
                calls.push(index, async move {
                    match way {
                        // Of what is superseded there, the partition's own comparison takes the newer.
                        Way::Send => coordinator.push_records(index, settled, records).await.map(drop),
                        Way::Take => coordinator.take_records(index, settled, records).await,
                    }
                });
                if calls.nodes().count() >= IN_FLIGHT_MAX
                    && let Some((_, outcome)) = calls.next().await
                {
                    outcome?;
                }
            }
            if is_end || part.is_large || !is_urgent && shared.gives_way(index, true) {
                break;
            }
            after = part.last;
        }
        while let Some((_, outcome)) = calls.next().await {
            outcome?;
        }
        Ok(())
    }

    /// The next part of a walk, through this store or the peer's.
    async fn part(
        &self,
        index: NodeIndex,
        way: Way,
        partitions: &[u16],
        after: Option<Key>,
    ) -> Result<Part, Cause> {
        let bytes = self.shared.settings.upkeep.transferring.stretch_bytes;
        if way == Way::Send {
            return self.shared.part_for(index, partitions, after, bytes).await.map_err(Cause::Replica);
        }
        let Some(link) = self.link(index) else { return Err(Cause::Unreachable) };
        let request = Request::Stretch { partitions: partitions.to_vec(), after: after.clone(), bytes };
        match link.call(&request, CALL_TIMEOUT).await {
            // It must go on.
            Ok(Reply::Stretched { last, .. }) if last.is_some() && last <= after => Err(Cause::OffTopic),
            Ok(Reply::Stretched { last, is_large, records }) => Ok(Part { records, last, is_large }),
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => {
                self.shared.count_failure(index);
                Err(Cause::Call(error))
            }
        }
    }
}

impl Shared {
    /// What a stretch of about `bytes` behind `after` holds of `partitions`, ascending, for the node at `index`.
    pub(super) async fn part_for(
        self: &Arc<Self>,
        index: NodeIndex,
        partitions: &[u16],
        after: Option<Key>,
        bytes: u32,
    ) -> Result<Part, ReplicaError> {
        // Read first: what is read from the store afterwards is at least as settled.
        let floors = self.replica.believed_floors().unwrap_or_default();
        let (wanted, shared) = (partitions.to_vec(), Arc::clone(self));
        let pick = move |key: &Key, row: Row<'_>| {
            let partition = shared.cluster.partition_of(key);
            if wanted.binary_search(&partition.0).is_err() {
                return Ok(None);
            }
            let record = row.record()?;
            let floor = floors.get(usize::from(partition.0)).copied().unwrap_or_default();
            let is_for = shared.is_for(index, partition, &record, floor);
            Ok(is_for.then(|| (floor.settled, key.clone(), record)))
        };
        let stretch = self.replica.stretch(after, bytes.into(), pick).await?;
        let row_bytes_max = self.settings.upkeep.transferring.row_bytes_max;
        let is_large = stretch.bytes > stretch.rows.saturating_mul(row_bytes_max);
        Ok(Part { records: stretch.picked, last: stretch.last, is_large })
    }

    /// Whether `record` belongs on the node at `index`, and is nothing that it may have purged or would not believe.
    fn is_for(&self, index: NodeIndex, partition: Partition, record: &Record, floor: Floor) -> bool {
        let is_purged = record.value == Value::Tombstone && record.version.clock() <= floor.purged;
        let belongs = record.from > self.rank_of(index, partition) || canary::is(Canary::TransferIgnoresFrom);
        belongs && !is_purged && self.timestamps.check(record.version.clock()).is_ok()
    }
}

/// Records that wait for a batch, by how far the store had settled in their partitions: a batch has one word for all.
#[derive(Default)]
struct Piles {
    piles: BTreeMap<u64, Vec<(Key, Record)>>,
    count: usize,
}

impl Piles {
    fn add(&mut self, settled: u64, key: Key, record: Record) {
        self.piles.entry(settled).or_default().push((key, record));
        self.count += 1;
    }

    /// A batch, if there is one, if more wait than may, or if it `is_end` and any do.
    fn take(&mut self, is_end: bool) -> Option<(u64, Vec<(Key, Record)>)> {
        let (settled, pile) = self.piles.iter_mut().max_by_key(|(_, pile)| pile.len())?;
        let (settled, mut bytes, mut length) = (*settled, 0, 0);
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
            self.piles.remove(&settled);
        }
        self.count -= batch.len();
        Some((settled, batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{NodeId, Version};
    use std::collections::BTreeSet;

    fn probe(probed: u64, here: (u64, u64), there: (u64, u64)) -> Probe {
        let mut probe = Probe::default();
        let lacking =
            |(listed, lacked): (u64, u64)| Lacking { listed: listed / probed, lacked: lacked / probed };
        (0..probed).for_each(|_| probe.note(Found { here: lacking(here), there: lacking(there) }));
        probe
    }

    /// A transfer is due once enough was looked at and most of it was lacking, the way that it was; and once.
    #[test]
    fn one_transfer_is_due_where_most_is_lacking() {
        let (all, none, alike) = ((700, 700), (0, 0), (800, 0));
        assert_eq!(probe(7, none, all).is_due(8), None, "too few were looked at");
        assert_eq!(probe(8, alike, (800, 392)).is_due(8), None, "most is there");
        assert_eq!(probe(8, none, none).is_due(8), None, "nothing was there to look at");
        let mut lacks_most = probe(8, alike, (800, 400));
        assert_eq!(lacks_most.is_due(8), Some(Way::Send));
        assert_eq!(lacks_most.is_due(8), None, "the second");
        assert_eq!(probe(8, (800, 400), alike).is_due(8), Some(Way::Take));
        assert!(is_worth(100, 800) && !is_worth(99, 800) && !is_worth(0, 0));
    }

    /// Goal: batches have one word each, no more records and bytes than they may, and none is lost or waits without bound.
    /// Method: records of several words and sizes in turns; what comes out beside what went in.
    #[test]
    fn batches_are_of_one_word() {
        let record = |number: u64, bytes: usize| Record {
            version: Version::from_words(number, NodeId(1).0),
            from: 3,
            expires: None,
            value: Value::Present(bytes::Bytes::from(vec![7; bytes])),
        };
        let mut piles = Piles::default();
        let (mut came, mut added) = (BTreeSet::new(), 0u64);
        let mut take = |piles: &mut Piles, is_end| {
            while let Some((settled, records)) = piles.take(is_end) {
                assert!(!records.is_empty() && records.len() <= BATCH_LEN_MAX);
                let bytes: usize = records.iter().map(|(_, record)| record.value_bytes()).sum();
                assert!(records.len() == 1 || bytes < 2 * BATCH_BYTES_MAX as usize, "{bytes}");
                for (key, record) in records {
                    assert_eq!(record.version.clock() % 40, settled);
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
