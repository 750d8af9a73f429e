//! Transfers: what a peer lacks in most of its partitions goes over in one walk through the store.
//!
//! A partition's keys lie all over the store, which is in order of keys: healing partition by partition reads each record
//! at a place of its own, from a block of its own where the store is larger than memory. That is right for a few
//! differences. Where a comparison finds that the peer lacks most of what it looks at, it goes on with a walk in order of
//! keys, for many partitions at a time: reading is sequential, and so is writing on the other side.
//!
//! A transfer only brings records early, by the same message and under the same rules as healing does; the partitions are
//! compared afterwards like any others. So one that is cut short, or meets damage, costs time and nothing else.

use super::calls::{Calls, Cause};
use super::heal::{BATCH_BYTES_MAX, BATCH_LEN_MAX};
use super::pace::charged_all;
use super::{Coordinator, Shared};
use crate::canary::{self, Canary};
use crate::replica::{Floor, Floors};
use kvorum_core::{Key, NodeIndex, Partition, Record, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A transfer is for one in this many of the partitions that hold anything, at least: what it does not send, it reads for
/// nothing.
const WORTH: usize = 8;
/// Batches on their way at a time.
const IN_FLIGHT_MAX: usize = 4;
/// Records that are kept until there is a batch of them, at most.
const PILED_MAX: usize = 8 * BATCH_LEN_MAX;

/// This says when transfers are made, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferring {
    /// Partitions that are healed before it is judged what the peer lacks.
    pub probed_min: u64,
    /// Bytes read at a time.
    pub stretch_bytes: u64,
    /// The mean size of rows above which reading others in between costs more than looking up those that are wanted.
    pub row_bytes_max: u64,
}

impl Default for Transferring {
    fn default() -> Self {
        Self { probed_min: 8, stretch_bytes: 256 << 10, row_bytes_max: 1 << 10 }
    }
}

/// This is what a comparison found a peer to lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lacking {
    /// Records that the peer ought to hold.
    pub(super) listed: u64,
    /// Those of them that it did not, or in an older version.
    pub(super) lacked: u64,
}

/// This judges whether a comparison makes a transfer: one at most.
#[derive(Debug, Default)]
pub(super) struct Probe {
    seen: Lacking,
    probed: u64,
    was_used: bool,
}

impl Probe {
    /// Takes in what healing a partition found.
    pub(super) fn note(&mut self, found: Lacking) {
        self.seen.listed += found.listed;
        self.seen.lacked += found.lacked;
        self.probed += 1;
    }

    /// Of the partitions `left` to heal those that are transferred: none unless the peer lacks most of what was looked at, and
    /// they are enough of the `held` ones, those that hold anything.
    pub(super) fn choose(
        &mut self,
        probed_min: u64,
        held: impl FnOnce() -> usize,
        left: impl Iterator<Item = u16>,
    ) -> Option<BTreeSet<u16>> {
        let lacks_most = self.probed >= probed_min && self.seen.lacked * 2 >= self.seen.listed.max(1);
        if !lacks_most || std::mem::replace(&mut self.was_used, true) {
            return None;
        }
        let left: BTreeSet<u16> = left.collect();
        (!left.is_empty() && left.len() >= held() / WORTH).then_some(left)
    }
}

impl Coordinator {
    /// Whether a partition's records are this node's to transfer to the node at `index`: of all that answer, the one that
    /// comes first in the preference list does it, that one left aside.
    pub(super) fn transfers(&self, index: NodeIndex, partition: Partition) -> bool {
        let shared = &self.shared;
        let mine = shared.rank_of(shared.cluster.me(), partition);
        let mut others = shared.cluster.others().filter(|other| *other != index && self.is_ready(*other));
        others.all(|other| shared.rank_of(other, partition) > mine)
    }

    /// Sends what this node holds of `partitions` to the node at `index`, as far as it belongs there. Ends early where rows
    /// are so large that healing is cheaper, and, unless it `is_urgent`, when another node heals there.
    ///
    /// # Cancel safety
    /// Dropping the future ends it between two batches; what was sent stays.
    pub(super) async fn transfer(
        self: Rc<Self>,
        index: NodeIndex,
        partitions: BTreeSet<u16>,
        is_urgent: bool,
    ) -> Result<(), Cause> {
        let shared = &self.shared;
        let Transferring { stretch_bytes, row_bytes_max, .. } = shared.settings.upkeep.transferring;
        let node: &str = shared.cluster.url_of(index);
        shared.metrics.repair_transfers.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(
            node,
            partitions = partitions.len(),
            "a node lacks most of what it ought to hold: a transfer begins"
        );
        let partitions = Arc::new(partitions);
        let mut piles = Piles::default();
        let mut calls: Calls<Result<Vec<Key>, Cause>> = Calls::new();
        let mut after = None;
        loop {
            // Read first: what is read from the store afterwards is at least as settled.
            let floors = shared.replica.floors().map(Floors::all).unwrap_or_default();
            let (wanted, known) = (Arc::clone(&partitions), Arc::clone(shared));
            let is_wanted = move |key: &Key| wanted.contains(&known.cluster.partition_of(key).0);
            let stretch = shared.replica.stretch(after, stretch_bytes, is_wanted).await;
            let stretch = stretch.map_err(Cause::Replica)?;
            for (key, record) in stretch.records {
                let partition = shared.cluster.partition_of(&key);
                let floor = floors.get(usize::from(partition.0)).copied().unwrap_or_default();
                if shared.is_for(index, partition, &record, floor) {
                    piles.add(floor.settled, key, record);
                }
            }
            let is_end = stretch.last.is_none();
            while let Some((settled, records)) = piles.take(is_end) {
                let coordinator = Rc::clone(&self);
                calls.push(index, async move { coordinator.push_records(index, settled, records).await });
                if calls.nodes().count() >= IN_FLIGHT_MAX
                    && let Some((_, outcome)) = calls.next().await
                {
                    outcome?;
                }
            }
            let gives_way = !is_urgent && shared.gives_way(index, true);
            let is_too_large = stretch.bytes > stretch.rows.saturating_mul(row_bytes_max);
            if is_end || is_too_large || gives_way {
                break;
            }
            after = stretch.last;
        }
        while let Some((_, outcome)) = calls.next().await {
            outcome?;
        }
        Ok(())
    }
}

impl Shared {
    /// Whether `record` belongs on the node at `index`, and is nothing that it may have purged.
    fn is_for(&self, index: NodeIndex, partition: Partition, record: &Record, floor: Floor) -> bool {
        let is_purged = record.value == Value::Tombstone && record.version.clock() <= floor.purged;
        let belongs = record.from > self.rank_of(index, partition) || canary::is(Canary::TransferIgnoresFrom);
        belongs && !is_purged
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
        let settled = *settled;
        let is_batch = pile.len() >= BATCH_LEN_MAX || charged_all(pile) >= BATCH_BYTES_MAX as usize;
        if !is_batch && !is_end && self.count <= PILED_MAX {
            return None;
        }
        let (mut bytes, mut length) = (0, 0);
        while length < pile.len().min(BATCH_LEN_MAX) && bytes < BATCH_BYTES_MAX as usize {
            bytes += pile.get(length).map_or(0, |(key, record)| key.as_ref().len() + record.value_bytes());
            length += 1;
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

    fn probe(probed: u64, listed: u64, lacked: u64) -> Probe {
        let mut probe = Probe::default();
        (0..probed).for_each(|_| probe.note(Lacking { listed: listed / probed, lacked: lacked / probed }));
        probe
    }

    /// A transfer is made once enough was looked at, most of it was lacking and many partitions are left; and once.
    #[test]
    fn one_transfer_is_made_where_most_is_lacking() {
        let choose = |probe: &mut Probe, left: u16| probe.choose(8, || 800, 0..left).map(|left| left.len());
        assert_eq!(choose(&mut probe(7, 700, 700), 800), None, "too few were looked at");
        assert_eq!(choose(&mut probe(8, 800, 392), 800), None, "most is there");
        assert_eq!(choose(&mut probe(8, 0, 0), 800), None, "nothing was there to look at");
        assert_eq!(choose(&mut probe(8, 800, 400), 99), None, "too few are left");
        let mut lacks_most = probe(8, 800, 400);
        assert_eq!(choose(&mut lacks_most, 100), Some(100));
        assert_eq!(choose(&mut lacks_most, 800), None, "the second");
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
