//! Repair: replicas are kept alike in the background, whatever made them differ.
//!
//! For every other node one task compares digests of what the two have in common, partition by partition. Where they
//! differ, and go on differing although nothing is being written there, both sides' versions are merged in key order,
//! and what one side lacks goes over, both ways, through [`crate::replica::Replica::apply`]. The cost follows what
//! differs: a round over two replicas that agree is one call with eight bytes per partition.
//!
//! Two replicas may differ for good: where a newer record was written for fewer replicas, the older copies on the others
//! stay. Such a partition is listed once and not again until a digest changes.
//!
//! A store that is known to lack what an earlier one held ([`crate::cluster`]) is refilled the same way, and votes again
//! once it has been compared with every other node from the first partition to the last.

use super::calls::{Calls, Cause, Write};
use super::mend::Beginning;
use super::{Coordinator, Shared};
use crate::cluster::VotesVerdict;
use crate::peer::{ApplyKind, Reply, Request, VersionRow};
use crate::replica::{Floor, ReplicaError, Source, Vote};
use kvorum_core::{Key, NodeIndex, Partition, Record};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two comparisons with one node.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// Between two comparisons by the node of a pair that has the higher index.
const ROUND_EVERY_SECOND: Duration = Duration::from_secs(5);
/// While a store is being refilled.
const ROUND_EVERY_REFILL: Duration = Duration::from_millis(100);
/// How long a list, or a record on its way, may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of versions listed at a time.
const LIST_BYTES: u32 = 64 << 10;
/// Records on their way at a time.
const IN_FLIGHT_MAX: usize = 32;
/// Rounds after which a partition that is written all the time is compared although its digests change.
const RESTLESS_ROUNDS: u32 = 15;

/// What is known of a partition that differed.
#[derive(Debug, Clone, Copy)]
struct Difference {
    ours: u64,
    theirs: u64,
    /// Rounds since it was compared.
    rounds: u32,
    /// Whether it has been compared as it is.
    is_compared: bool,
}

/// What one side has that the other has not.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Task {
    /// The peer has something newer.
    Pull(Key),
    /// This node has something newer.
    Push(Key),
}

/// One side's versions of a partition, as a stream.
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
}

impl Coordinator {
    /// Keeps this node and the one at `index` alike, forever.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service between two applied records.
    pub async fn keep_alike(self: Rc<Self>, index: NodeIndex) {
        let mut differences = BTreeMap::new();
        let mut has_met = false;
        loop {
            let beginning = self.shared.mending.beginning();
            let refills = self.shared.cluster.roster().verdict() == VotesVerdict::Lacks;
            let worker = self.shared.workers.repair(index);
            worker
                .turn(&*self.shared.clock, if refills { "refilling this store" } else { "comparing" })
                .await;
            if self.is_ready(index) {
                // What others have purged must be known before anything is taken or given.
                let met = if refills || !has_met { self.meet_floors(index).await } else { Ok(()) };
                has_met |= met.is_ok();
                let compared = match met {
                    Ok(()) => self.compare(index, &mut differences, refills).await,
                    Err(cause) => Err(cause),
                };
                match compared {
                    Ok(()) if refills => self.shared.compared_with(index, beginning).await,
                    Ok(()) => {}
                    Err(cause) => {
                        let node = self.shared.cluster.url_of(index);
                        tracing::debug!(node, %cause, "a comparison of replicas was cut short");
                    }
                }
            }
            worker.rest();
            // Both look, in case one of them cannot; one of them less often, because each heals both.
            let looks_first = self.shared.cluster.me() < index;
            tokio::time::sleep(match (refills, looks_first) {
                (true, _) => ROUND_EVERY_REFILL,
                (false, true) => ROUND_EVERY,
                (false, false) => ROUND_EVERY_SECOND,
            })
            .await;
        }
    }

    /// Takes in how far the node at `index` has sealed.
    pub(super) async fn meet_floors(&self, index: NodeIndex) -> Result<(), Cause> {
        let Some(link) = self.link(index).cloned() else { return Err(Cause::Unreachable) };
        self.shared.exchange_floors(&link).await
    }

    /// Compares all partitions with the node at `index` once, and heals all that differ.
    pub(super) async fn compare_once(self: &Rc<Self>, index: NodeIndex) -> Result<(), Cause> {
        self.compare(index, &mut BTreeMap::new(), true).await
    }

    /// Compares all partitions, and heals those that differ and are at rest; all that differ when `is_refill`.
    async fn compare(
        self: &Rc<Self>,
        index: NodeIndex,
        differences: &mut BTreeMap<u16, Difference>,
        is_refill: bool,
    ) -> Result<(), Cause> {
        let Some(link) = self.link(index).cloned() else { return Err(Cause::Unreachable) };
        let partitions = 1u32 << self.shared.cluster.topology().partition_bits();
        let count = u16::try_from(partitions).unwrap_or(u16::MAX);
        let request = Request::Digests { first_partition: 0, count };
        let theirs = match link.call(&request, CALL_TIMEOUT).await {
            Ok(Reply::DigestList(digests)) => digests,
            Ok(_) => return Err(Cause::OffTopic),
            Err(error) => return Err(Cause::Call(error)),
        };
        let ours = self.shared.digests_with(index, 0, count);
        self.shared.metrics.repair_rounds.fetch_add(1, Ordering::Relaxed);
        if theirs.len() != ours.len() {
            return Err(Cause::OffTopic);
        }
        let (mut differ, mut lasting, mut unhealed) = (0, 0, None);
        for (partition, (ours, theirs)) in (0u16..).zip(ours.into_iter().zip(theirs)) {
            if ours == theirs {
                differences.remove(&partition);
                continue;
            }
            differ += 1;
            let known = differences.entry(partition).or_insert(Difference {
                ours: 0,
                theirs: 0,
                rounds: 0,
                is_compared: false,
            });
            let is_at_rest = known.ours == ours && known.theirs == theirs;
            known.rounds += 1;
            (known.ours, known.theirs) = (ours, theirs);
            if is_at_rest && known.is_compared && !is_refill {
                lasting += 1;
                continue;
            }
            known.is_compared = false;
            if is_refill || is_at_rest || known.rounds >= RESTLESS_ROUNDS {
                known.rounds = 0;
                match self.heal(index, Partition(partition)).await {
                    Ok(()) => known.is_compared = is_at_rest,
                    // Tried again in the next round. A row that cannot be read keeps back its own partition only.
                    Err(cause) if cause.is_damage() => unhealed = Some(cause),
                    Err(cause) => return Err(cause),
                }
            }
        }
        self.shared.metrics.repair_differing.store(differ, Ordering::Relaxed);
        if let Some(count) = self.shared.differing.get(usize::from(index.0)) {
            count.store(differ, Ordering::Relaxed);
        }
        if let Some(cause) = unhealed {
            return Err(cause);
        }
        if differ == lasting {
            // Of partitions for which this node comes first, it holds all that the other must.
            let is_shared = |partition| {
                let me = self.shared.rank_of(self.shared.cluster.me(), Partition(partition));
                me < self.shared.rank_of(index, Partition(partition))
            };
            let target = self.shared.cluster.id_of(index);
            self.shared.hints.forget_gaps(target, is_shared).await.map_err(Cause::Replica)?;
        }
        Ok(())
    }

    /// Makes the two replicas of `partition` alike.
    pub(super) async fn heal(self: &Rc<Self>, index: NodeIndex, partition: Partition) -> Result<(), Cause> {
        let (mut ours, mut theirs) = (List::new(), List::new());
        let mut calls: Calls<Result<(), Cause>> = Calls::new();
        let mut floor = Floor::default();
        loop {
            // Theirs first: with it comes what they have purged.
            if theirs.needs_more() {
                let (rows, is_last, met) = self.ask_versions(index, partition, theirs.last.clone()).await?;
                theirs.extend(rows, is_last);
                floor = met;
                self.shared.meet_floor(partition, floor).await.map_err(Cause::Replica)?;
                continue;
            }
            if ours.needs_more() {
                let after = ours.last.clone();
                let listed = self.shared.versions_with(index, partition, after, LIST_BYTES, floor).await;
                let (rows, is_last) = listed.map_err(Cause::Replica)?;
                ours.extend(rows, is_last);
                continue;
            }
            let Some(task) = next_difference(&mut ours, &mut theirs) else {
                if ours.rows.is_empty() && theirs.rows.is_empty() && ours.is_last && theirs.is_last {
                    break;
                }
                continue;
            };
            self.repair_turn().await;
            calls.push(index, Rc::clone(self).carry_out_readable(index, partition, task));
            if calls.nodes().count() >= IN_FLIGHT_MAX
                && let Some((_, outcome)) = calls.next().await
            {
                outcome?;
            }
        }
        while let Some((_, outcome)) = calls.next().await {
            outcome?;
        }
        Ok(())
    }

    async fn ask_versions(
        &self,
        index: NodeIndex,
        partition: Partition,
        after: Option<Key>,
    ) -> Result<(Vec<VersionRow>, bool, Floor), Cause> {
        let Some(link) = self.link(index) else { return Err(Cause::Unreachable) };
        let floor = self.shared.replica.floor(partition);
        let request = Request::Versions { partition: partition.0, after, bytes: LIST_BYTES, floor };
        match link.call(&request, CALL_TIMEOUT).await {
            Ok(Reply::VersionList { rows, is_last, floor }) => Ok((rows, is_last, floor)),
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => Err(Cause::Call(error)),
        }
    }

    /// Brings one difference to an end. A record that cannot be read on the side that has it is left to the mender of that
    /// side: for this comparison it counts as lost with its disk.
    async fn carry_out_readable(
        self: Rc<Self>,
        index: NodeIndex,
        partition: Partition,
        task: Task,
    ) -> Result<(), Cause> {
        match self.carry_out(index, partition, task).await {
            Err(cause) if cause.is_damage() => Ok(()),
            outcome => outcome,
        }
    }

    /// Brings one difference to an end.
    async fn carry_out(
        self: Rc<Self>,
        index: NodeIndex,
        partition: Partition,
        task: Task,
    ) -> Result<(), Cause> {
        let shared = &self.shared;
        let key = match task {
            Task::Pull(key) => key,
            Task::Push(key) => {
                // Read first: what is read from the store afterwards is at least as settled.
                let settled = shared.replica.floor(partition).settled;
                let Some(record) = shared.replica.get(&key).await.map_err(Cause::Replica)? else {
                    return Ok(());
                };
                if record.from <= shared.rank_of(index, partition) {
                    return Ok(());
                }
                self.charge_repair(&key, &record);
                let kind = ApplyKind::AntiEntropy { settled };
                match self.ask_apply(index, &key, &record, kind, CALL_TIMEOUT).await {
                    Write::Stored | Write::Uncounted => {
                        shared.metrics.repair_pushed.fetch_add(1, Ordering::Relaxed);
                        shared.workers.repair(index).count(1);
                        return Ok(());
                    }
                    // The peer has something newer that was written for fewer replicas: it was not on its list.
                    Write::Superseded(_) => key,
                    Write::Refused(cause) | Write::Unknown(cause) => return Err(cause),
                }
            }
        };
        let (settled, fetched) = fetch(Rc::clone(&self), index, key.clone(), CALL_TIMEOUT).await?;
        let Some(theirs) = fetched else { return Ok(()) };
        // A newer record that belongs on fewer replicas does not come here. The older copy here stays: whoever wrote it
        // was promised that a read which overlaps with that write finds it or something newer.
        if shared.rank_of(shared.cluster.me(), partition) >= theirs.from {
            return Ok(());
        }
        self.charge_repair(&key, &theirs);
        shared.stamps.observe(theirs.version);
        let source = Source::Repair { settled };
        shared.replica.apply(key, theirs, source).await.map_err(Cause::Replica)?;
        shared.metrics.repair_pulled.fetch_add(1, Ordering::Relaxed);
        shared.workers.repair(index).count(1);
        Ok(())
    }
}

/// What the node at `index` holds of `key`, whether or not its store votes, and how far it had settled before.
pub(super) async fn fetch(
    coordinator: Rc<Coordinator>,
    index: NodeIndex,
    key: Key,
    timeout: Duration,
) -> Result<(u64, Option<Record>), Cause> {
    if index == coordinator.shared.cluster.me() {
        let settled = coordinator.shared.settled_of(&key);
        let record = coordinator.shared.replica.get(&key).await.map_err(Cause::Replica)?;
        return Ok((settled, record));
    }
    let Some(link) = coordinator.link(index) else { return Err(Cause::Unreachable) };
    match link.call(&Request::Fetch { key }, timeout).await {
        Ok(Reply::Fetched { settled, record }) => Ok((settled, record)),
        Ok(_) => Err(Cause::OffTopic),
        Err(error) => Err(Cause::Call(error)),
    }
}

/// The next key in which the two lists differ, as far as both have been read; both are advanced past it.
fn next_difference(ours: &mut List, theirs: &mut List) -> Option<Task> {
    loop {
        if ours.needs_more() || theirs.needs_more() {
            return None;
        }
        match (ours.rows.front(), theirs.rows.front()) {
            (None, None) => return None,
            (Some(a), Some(b)) if a.key == b.key => {
                let (a, b) = (ours.rows.pop_front()?, theirs.rows.pop_front()?);
                match a.version.cmp(&b.version) {
                    std::cmp::Ordering::Less => return Some(Task::Pull(a.key)),
                    std::cmp::Ordering::Greater => return Some(Task::Push(a.key)),
                    std::cmp::Ordering::Equal => {}
                }
            }
            (Some(a), b) if b.is_none_or(|b| a.key < b.key) => {
                return ours.rows.pop_front().map(|row| Task::Push(row.key));
            }
            _ => return theirs.rows.pop_front().map(|row| Task::Pull(row.key)),
        }
    }
}

impl Shared {
    /// How far the partition of `key` has settled here.
    pub(super) fn settled_of(&self, key: &Key) -> u64 {
        self.replica.floor(self.cluster.partition_of(key)).settled
    }

    /// The rank of the node at `index` for `partition`.
    fn rank_of(&self, index: NodeIndex, partition: Partition) -> u16 {
        self.cluster.rank_of(partition, index).unwrap_or(u16::MAX)
    }

    /// The higher of this node's rank and that of the one at `index`.
    fn rank_max(&self, index: NodeIndex, partition: Partition) -> u16 {
        self.rank_of(index, partition).max(self.rank_of(self.cluster.me(), partition))
    }

    /// Digests of what this node has in common with the one at `index`.
    pub(super) fn digests_with(&self, index: NodeIndex, first: u16, count: u16) -> Vec<u64> {
        let Some(digests) = self.replica.digests() else { return Vec::new() };
        let last = first.saturating_add(count);
        (first..last)
            .map(Partition)
            .map(|partition| digests.shared(partition, self.rank_max(index, partition)))
            .collect()
    }

    /// The versions that this node and the one at `index` ought to have in common, in order of the keys, and whether the
    /// partition ends there. Tombstones that go by this node's floor or by `theirs` are left out: the other side may have
    /// removed them already.
    pub(super) async fn versions_with(
        &self,
        index: NodeIndex,
        partition: Partition,
        mut after: Option<Key>,
        bytes: u32,
        theirs: Floor,
    ) -> Result<(Vec<VersionRow>, bool), ReplicaError> {
        let purged = self.replica.floor(partition).purged.max(theirs.purged);
        let rank_max = self.rank_max(index, partition);
        let bytes = usize::try_from(bytes.clamp(1, 1 << 20)).unwrap_or(1);
        loop {
            let (marks, is_last) = self.replica.marks(partition, after.as_ref(), bytes).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let rows: Vec<VersionRow> = marks
                .into_iter()
                .filter(|(_, mark)| mark.from > rank_max)
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

    /// Notes that a store which is being refilled has been compared with the node at `index`, wholly.
    async fn compared_with(&self, index: NodeIndex, beginning: Beginning) {
        let is_whole = {
            let mut compared = self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner);
            // Another store has begun since: what this comparison brought is set aside.
            if !self.mending.is_still(beginning) {
                return;
            }
            compared.insert(index);
            self.cluster.others().all(|other| compared.contains(&other))
        };
        // Where no store votes, all have lost what they held at once: nobody can say what there was, and a person must.
        let somebody_votes = self
            .cluster
            .others()
            .filter_map(|other| self.cluster.peer(other))
            .any(|peer| peer.votes.load(Ordering::Relaxed));
        if !is_whole || !somebody_votes {
            return;
        }
        match self.replica.store_votes(Vote::Yes).await {
            // It has been set aside meanwhile, and the one after it is told so.
            Ok(()) if !self.mending.is_still(beginning) => {}
            Ok(()) => {
                self.cluster.roster().refilled();
                tracing::info!(
                    "this store has been refilled from the other replicas: it votes in reads again"
                );
            }
            Err(error) => tracing::warn!(%error, "this store has been refilled, which cannot be stored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{NodeId, Version};
    use proptest::prelude::*;

    fn row(key: u8, clock: u64) -> VersionRow {
        let key = Key::new(vec![key]).unwrap();
        VersionRow { key, version: Version::from_words(clock, NodeId(1).0), from: 3, is_tombstone: false }
    }

    proptest! {
        /// Goal: the merge finds every difference and nothing else, however the lists are cut. Method: two random maps
        /// as lists in parts, against a comparison of the maps.
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
                        std::cmp::Ordering::Greater => Some(Task::Push(name)),
                        std::cmp::Ordering::Equal => None,
                    }
                })
                .collect();
            prop_assert_eq!(found, expect);
        }
    }
}
