//! Syncing: brings here what the replica of one partition on another node has newer.
//!
//! Both version lists are merged in key order; this node fetches the records that the peer has newer, in batches, and applies
//! them through [`crate::replica::Replica::apply_many`]. A list that is out of date does no harm: what was overwritten
//! meanwhile is superseded.

use super::{Comparisons, Puller};
use crate::background::anti_entropy::bulk::Lacking;
use crate::background::rate_limit::charged_all;
use crate::background::workers::WorkerId;
use crate::cluster::Pull;
use crate::coordinator::Coordinator;
use crate::coordinator::calls::{Calls, Cause};
use crate::peer::{Reply, Request, VersionRow};
use crate::replica::{Applied, Fetched, Floor, ReplicaError, Source};
use kvorum_core::{Key, Partition, Record, Slot, Version};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a call for a list or a batch of records may take.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of versions listed in one call.
const LIST_BYTES: u32 = 64 << 10;
/// Records of a batch, in number and bytes. They are few enough that a client's write after them in the commit queue
/// hardly waits, and enough to share the cost of a call and a sync.
pub(crate) const BATCH_LEN_MAX: usize = 128;
pub(crate) const BATCH_BYTES_MAX: u32 = 128 << 10;
/// Batches of one partition under way at a time.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// Promises that one batch ends at most; the next comparison goes on.
const PROMISES_ENDED_MAX: usize = 16;

/// A key in which the two replicas differ, and what this node has to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Task {
    /// The peer's version is newer.
    Pull(Key),
    /// The peer has nothing of a key that this node holds.
    Only(Key, Version),
}

/// The versions of a partition on one side, as a stream.
struct List {
    rows: VecDeque<VersionRow>,
    last: Option<Key>,
    is_last: bool,
}

impl List {
    fn new() -> Self {
        Self { rows: VecDeque::new(), last: None, is_last: false }
    }

    fn extend(&mut self, rows: Vec<VersionRow>, is_last: bool) {
        self.last = rows.last().map(|row| row.key.clone()).or_else(|| self.last.take());
        self.rows.extend(rows);
        self.is_last = is_last;
    }

    fn needs_more(&self) -> bool {
        self.rows.is_empty() && !self.is_last
    }

    fn is_at_end(&self) -> bool {
        self.rows.is_empty() && self.is_last
    }
}

/// Keys in which two replicas differ: those to fetch, and those that may be dead here.
#[derive(Debug, Default)]
struct Batch {
    pulls: Vec<Key>,
    drops: Vec<(Key, Version)>,
}

impl Batch {
    fn len(&self) -> usize {
        self.pulls.len() + self.drops.len()
    }
}

impl Puller {
    /// Pulls what the peer has newer of `partition`, and says what this node lacked.
    ///
    /// A record that cannot be read there is left to the repair of damage on that node: for this comparison it counts as lost with its
    /// disk.
    ///
    /// # Cancel safety
    /// Dropping the future ends it between two batches; what came stays.
    pub(super) async fn sync(&self, partition: Partition) -> Result<Lacking, Cause> {
        let (state, index) = (&self.own.shared.background.anti_entropy, self.index);
        let mut lacking = Lacking::default();
        let (mut ours, mut theirs) = (List::new(), List::new());
        let mut calls: Calls<Result<(), Cause>> = Calls::new();
        let (mut batch, mut floor) = (Batch::default(), Floor::default());
        loop {
            // The peer's list first: it carries the peer's floor.
            if theirs.needs_more() {
                let (rows, is_last, met) = self.ask_versions(partition, theirs.last.clone()).await?;
                lacking.listed += rows.len() as u64;
                theirs.extend(rows, is_last);
                floor = met;
                state.meet_floor(index, partition, floor).await.map_err(Cause::Replica)?;
                continue;
            }
            if ours.needs_more() {
                let after = ours.last.clone();
                // A partition in doubt is listed in full, so that its dead rows are dropped as well.
                let is_in_doubt = state.outlived_upto(partition, floor) > 0;
                let left_out = if is_in_doubt { Floor::default() } else { floor };
                let listed =
                    state.versions_for(state.pull_from(index), partition, after, LIST_BYTES, left_out).await;
                let (rows, is_last) = listed.map_err(Cause::Replica)?;
                ours.extend(rows, is_last);
                continue;
            }
            match next_difference(&mut ours, &mut theirs) {
                Some(Task::Pull(key)) => {
                    lacking.lacked += 1;
                    batch.pulls.push(key);
                }
                Some(Task::Only(key, version)) => {
                    // A node that gains the partition now never held its rows, whatever it has sealed before.
                    if version.clock() <= state.outlived_upto(partition, floor)
                        && !state.is_gained_by(index, partition)
                    {
                        batch.drops.push((key, version));
                    }
                }
                None if ours.is_at_end() && theirs.is_at_end() => break,
                None => continue,
            }
            if batch.len() >= BATCH_LEN_MAX {
                let full = std::mem::take(&mut batch);
                calls.push(index, self.clone().carry_out(partition, full));
            }
            if calls.nodes().count() >= BATCHES_IN_FLIGHT_MAX
                && let Some((_, outcome)) = calls.next().await
            {
                outcome?;
            }
        }
        calls.push(index, self.clone().carry_out(partition, batch));
        while let Some((_, outcome)) = calls.next().await {
            outcome?;
        }
        Ok(lacking)
    }

    async fn ask_versions(
        &self,
        partition: Partition,
        after: Option<Key>,
    ) -> Result<(Vec<VersionRow>, bool, Floor), Cause> {
        let Some(link) = self.own.link(self.index) else { return Err(Cause::Unreachable) };
        let floor = self.own.shared.replica.floor(partition);
        let request = Request::Versions { partition: partition.0, after, bytes: LIST_BYTES, floor };
        match link.call(&request, CALL_TIMEOUT).await {
            Ok(Reply::VersionList { rows, is_last, floor }) => Ok((rows, is_last, floor)),
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => Err(Cause::Call(error)),
        }
    }

    /// Fetches or drops the rows of a batch.
    async fn carry_out(self, partition: Partition, batch: Batch) -> Result<(), Cause> {
        let Batch { pulls, drops } = batch;
        let shared = &self.own.shared;
        let dropped = shared.replica.drop_outlived(partition, drops).await.map_err(Cause::Replica)?;
        shared.background.anti_entropy.progress.outlived_dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        if dropped > 0 {
            tracing::debug!(
                partition = partition.0,
                dropped,
                "rows that another node has purged were dropped"
            );
        }
        self.pull_all(partition, pulls).await
    }

    /// Takes what the peer has of `keys`.
    async fn pull_all(&self, partition: Partition, mut keys: Vec<Key>) -> Result<(), Cause> {
        let shared = &self.own.shared;
        let Some(link) = self.own.link(self.index) else { return Err(Cause::Unreachable) };
        let my_rank = shared.background.anti_entropy.rank_of(shared.cluster.me(), partition);
        while !keys.is_empty() {
            let request = Request::Fetch { keys: keys.clone(), bytes: BATCH_BYTES_MAX };
            let (agreed, found) = match link.call(&request, CALL_TIMEOUT).await {
                Ok(Reply::Fetched { agreed, records }) => (agreed.0, records),
                Ok(_) => return Err(Cause::OffTopic),
                Err(error) => {
                    shared.peering.count_failure(self.index);
                    return Err(Cause::Call(error));
                }
            };
            if found.is_empty() || found.len() > keys.len() {
                return Err(Cause::OffTopic);
            }
            let rest = keys.split_off(found.len());
            // A newer record that was written for fewer replicas does not belong here. The older copy stays here: its
            // writer was promised that an overlapping read finds it or a newer record.
            let records = belonging(std::mem::replace(&mut keys, rest), found, my_rank);
            self.take_records(agreed, records).await?;
        }
        Ok(())
    }

    /// Applies records that the peer read after their partitions had agreed there up to `agreed`.
    pub(super) async fn take_records(&self, agreed: u64, records: Vec<(Key, Record)>) -> Result<(), Cause> {
        let shared = &self.own.shared;
        let Some(newest) = records.iter().map(|(_, record)| record.version).max() else { return Ok(()) };
        shared.background.pace.wait(charged_all(&records)).await;
        shared.stamps.observe(newest);
        // Keys are copied only where a promise may keep one out.
        let places: Vec<(Key, u16)> = if shared.replica.promises().is_empty() {
            Vec::new()
        } else {
            records.iter().map(|(key, record)| (key.clone(), record.from)).collect()
        };
        let applied = shared.replica.apply_many(records, Source::Repair { agreed }).await;
        let applied = applied.map_err(Cause::Replica)?;
        let is_kept_out =
            |(_, applied): &(_, &Option<Applied>)| matches!(applied, Some(Applied::Contested { .. }));
        let has_kept_out = places.iter().zip(&applied).any(|pair| is_kept_out(&pair));
        self.has_kept_out.set(self.has_kept_out.get() || has_kept_out);
        for ((key, from), _) in places.iter().zip(&applied).filter(is_kept_out).take(PROMISES_ENDED_MAX) {
            self.own.end_promise(key, *from).await;
        }
        let count = applied.iter().flatten().count() as u64;
        shared.background.anti_entropy.progress.pulled.fetch_add(count, Ordering::Relaxed);
        shared.background.workers.count(WorkerId::Repair(self.index), count);
        Ok(())
    }
}

/// Those of the fetched records of `keys` that belong on rank `rank`.
fn belonging(keys: Vec<Key>, found: Vec<Fetched>, rank: u16) -> Vec<(Key, Record)> {
    let record = |(key, fetched)| match fetched {
        Fetched::Record(record) if record.from > rank => Some((key, record)),
        _ => None,
    };
    keys.into_iter().zip(found).filter_map(record).collect()
}

/// The record of `key` on the node at `index`, quorum-eligible or not, and the timestamp up to which the partition had
/// agreed there before.
pub(crate) async fn fetch(
    coordinator: Rc<Coordinator>,
    index: Slot,
    key: Key,
    timeout: Duration,
) -> Result<(u64, Option<Record>), Cause> {
    let (agreed, found) = if index == coordinator.shared.cluster.me() {
        let agreed = coordinator.shared.background.anti_entropy.agreed_of(std::slice::from_ref(&key));
        (agreed, coordinator.shared.replica.get_many(vec![key], 1).await.map_err(Cause::Replica)?)
    } else {
        let Some(link) = coordinator.link(index) else { return Err(Cause::Unreachable) };
        match link.call(&Request::Fetch { keys: vec![key], bytes: 1 }, timeout).await {
            Ok(Reply::Fetched { agreed, records }) => (agreed.0, records),
            Ok(_) => return Err(Cause::OffTopic),
            Err(error) => return Err(Cause::Call(error)),
        }
    };
    match found.into_iter().next() {
        Some(Fetched::Record(record)) => Ok((agreed, Some(record))),
        Some(Fetched::Nothing) => Ok((agreed, None)),
        Some(Fetched::Damaged) => Err(Cause::Damaged),
        None => Err(Cause::OffTopic),
    }
}

/// The next key in which the two lists differ, as far as both have been read; both lists are advanced past it.
fn next_difference(ours: &mut List, theirs: &mut List) -> Option<Task> {
    loop {
        if ours.needs_more() || theirs.needs_more() {
            return None;
        }
        match (ours.rows.front(), theirs.rows.front()) {
            (None, None) => return None,
            (Some(a), Some(b)) if a.key == b.key => {
                let (a, b) = (ours.rows.pop_front()?, theirs.rows.pop_front()?);
                // Of one version: perhaps a value that has not expired, and the tombstone of a wrong clock, see
                // `Record::newness`.
                let is_newer = (a.version, !a.is_tombstone) < (b.version, !b.is_tombstone);
                if is_newer {
                    return Some(Task::Pull(a.key));
                }
            }
            (Some(a), b) if b.is_none_or(|b| a.key < b.key) => {
                return ours.rows.pop_front().map(|row| Task::Only(row.key, row.version));
            }
            _ => return theirs.rows.pop_front().map(|row| Task::Pull(row.key)),
        }
    }
}

impl Comparisons {
    /// The timestamp up to which rows that only this node holds, and should share with a node whose floor is `theirs`,
    /// are dead. It is as far as that node has sealed, if this store has not agreed so far; otherwise 0. That node
    /// once held all such rows, so it has purged those that it lacks.
    fn outlived_upto(&self, partition: Partition, theirs: Floor) -> u64 {
        if theirs.sealed > self.replica.floor(partition).agreed { theirs.sealed } else { 0 }
    }

    /// Whether the node at `index` is nearer to the head of the list of `partition` than it was on the list that is read. Of a
    /// marked member that is assumed: it is compared in records that never belonged on it.
    fn is_gained_by(&self, index: Slot, partition: Partition) -> bool {
        let view = self.cluster.view();
        let read = view.preference_list(partition).iter().position(|slot| *slot == index);
        let written = view.rank_of(partition, index).map(usize::from);
        let is_nearer = written.unwrap_or(usize::MAX) < read.unwrap_or(usize::MAX);
        view.is_lacking(index) || view.is_joint() && is_nearer
    }

    /// The timestamp up to which all the partitions of `keys` have agreed here.
    pub(crate) fn agreed_of(&self, keys: &[Key]) -> u64 {
        let agreed = |key| self.replica.floor(self.cluster.partition_of(key)).agreed;
        keys.iter().map(agreed).min().unwrap_or_default()
    }

    /// The versions here that the nodes of `pull` are compared in, in key order, and whether the partition ends there. Leaves out
    /// tombstones that this node's floor or `theirs` lets go, because the other side may have removed them already.
    pub(crate) async fn versions_for(
        &self,
        pull: Pull,
        partition: Partition,
        mut after: Option<Key>,
        bytes: u32,
        theirs: Floor,
    ) -> Result<(Vec<VersionRow>, bool), ReplicaError> {
        let purged = self.replica.floor(partition).purged.max(theirs.purged);
        let rank_max = self.cluster.view().rank_max(partition, pull);
        let bytes = usize::try_from(bytes.clamp(1, 1 << 20)).unwrap_or(1);
        loop {
            let (marks, is_last) = self.replica.marks(partition, after.as_ref(), bytes).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let rows: Vec<VersionRow> = marks
                .into_iter()
                .filter(|(_, mark)| mark.from > rank_max)
                // The other side would refuse a version from the future, and the whole list with it.
                .filter(|(_, mark)| self.timestamps.check(mark.version.clock()).is_ok())
                .filter(|(_, mark)| !mark.is_tombstone || mark.version.clock() > purged)
                .map(|(key, mark)| VersionRow {
                    key,
                    version: mark.version,
                    from: mark.from,
                    is_tombstone: mark.is_tombstone,
                })
                .collect();
            if is_last || !rows.is_empty() {
                return Ok((rows, is_last));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::NodeId;
    use proptest::prelude::*;

    fn row(key: u8, clock: u64) -> VersionRow {
        let key = Key::new(vec![key]).unwrap();
        VersionRow { key, version: Version::from_words(clock, NodeId(1).0), from: 3, is_tombstone: false }
    }

    /// Of a value and the tombstone of its version the value is fetched, and the tombstone is not.
    #[test]
    fn values_are_fetched_over_tombstones_of_their_version() {
        let list = |is_tombstone| {
            let mut list = List::new();
            list.extend(vec![VersionRow { is_tombstone, ..row(1, 7) }], true);
            list
        };
        let key = || Key::new(vec![1]).unwrap();
        assert_eq!(next_difference(&mut list(true), &mut list(false)), Some(Task::Pull(key())));
        assert_eq!(next_difference(&mut list(false), &mut list(true)), None);
        assert_eq!(next_difference(&mut list(true), &mut list(true)), None);
    }

    proptest! {
        /// Goal: the merge finds every key that the peer has newer or does not have, and nothing else, however the lists are
        /// cut. Method: two random maps as lists in parts, against a comparison of the maps.
        #[test]
        fn every_difference_is_found(
            a in prop::collection::btree_map(0..20u8, 0..3u64, 0..15),
            b in prop::collection::btree_map(0..20u8, 0..3u64, 0..15),
            part in 1..5usize,
        ) {
            let mut sides = [&a, &b].map(|map| {
                map.iter().map(|(key, clock)| row(*key, *clock)).collect::<VecDeque<_>>()
            });
            let mut lists = [List::new(), List::new()];
            let mut found = Vec::new();
            loop {
                for (list, side) in lists.iter_mut().zip(&mut sides) {
                    if list.needs_more() {
                        let rows: Vec<_> = side.drain(..part.min(side.len())).collect();
                        list.extend(rows, side.is_empty());
                    }
                }
                let [ours, theirs] = &mut lists;
                match next_difference(ours, theirs) {
                    Some(task) => found.push(task),
                    None if lists.iter().all(|list| list.rows.is_empty() && list.is_last) => break,
                    None => {}
                }
            }
            let expect: Vec<Task> = (0..20u8)
                .filter_map(|key| {
                    let name = Key::new(vec![key]).unwrap();
                    match a.get(&key).cmp(&b.get(&key)) {
                        std::cmp::Ordering::Less => Some(Task::Pull(name)),
                        std::cmp::Ordering::Greater if b.contains_key(&key) => None,
                        std::cmp::Ordering::Greater => {
                            let clock = a.get(&key).copied().unwrap_or_default();
                            Some(Task::Only(name, Version::from_words(clock, NodeId(1).0)))
                        }
                        std::cmp::Ordering::Equal => None,
                    }
                })
                .collect();
            prop_assert_eq!(found, expect);
        }
    }
}
