//! Repair: replicas are kept alike in the background, whatever made them differ.
//!
//! For every other node one task compares digests of what the two have in common, partition by partition. Where they
//! differ, and go on differing although nothing is being written there, both sides' versions are merged in key order,
//! and what one side lacks goes over, both ways ([`super::heal`]). The cost follows what differs: a round over two replicas that agree is one call with eight bytes per partition.
//!
//! Two replicas may differ for good: where a newer record was written for fewer replicas, the older copies on the others
//! stay. Such a partition is listed once and not again until a digest changes.
//!
//! A store that is known to lack what an earlier one held ([`crate::cluster`]) is refilled the same way, and votes again
//! once it has been compared with every other node from the first partition to the last.

use super::calls::{Calls, Cause};
use super::heal::CALL_TIMEOUT;
use super::mend::Beginning;
use super::{Coordinator, Shared};
use crate::cluster::VotesVerdict;
use crate::peer::{Reply, Request};
use crate::replica::Vote;
use kvorum_core::{NodeIndex, Partition};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Between two comparisons with one node.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// Between two comparisons by the node of a pair that has the higher index.
const ROUND_EVERY_SECOND: Duration = Duration::from_secs(5);
/// While a store is being refilled.
const ROUND_EVERY_REFILL: Duration = Duration::from_millis(100);
/// Partitions that are healed with one node at a time.
const PARTITIONS_IN_FLIGHT_MAX: usize = 4;
/// How often it is looked whether a partition is still being healed with another node.
const CLAIM_LOOK: Duration = Duration::from_millis(5);
/// How long this node leaves the healing to a peer that has begun it.
const GIVE_WAY: Duration = Duration::from_secs(3);
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

impl Coordinator {
    /// Keeps this node and the one at `index` alike, forever.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service between two batches.
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
        let (mut differ, mut lasting) = (0, 0);
        let mut work = VecDeque::new();
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
                work.push_back((partition, is_at_rest));
            }
        }
        // Comparisons with several nodes begin in different places, so that they do not bring the same.
        let first = self.shared.first_partition(index, partitions);
        work.rotate_left(work.partition_point(|(partition, _)| u32::from(*partition) < first));
        let unhealed = self.heal_all(index, work, differences, is_refill).await?;
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

    /// Heals partitions, [`PARTITIONS_IN_FLIGHT_MAX`] at a time, those last that are being healed with another node. Why
    /// one was left out, where one was.
    async fn heal_all(
        self: &Rc<Self>,
        index: NodeIndex,
        mut work: VecDeque<(u16, bool)>,
        differences: &mut BTreeMap<u16, Difference>,
        is_refill: bool,
    ) -> Result<Option<Cause>, Cause> {
        let mut heals = Calls::new();
        let (mut unhealed, mut put_off) = (None, 0);
        loop {
            while heals.nodes().count() < PARTITIONS_IN_FLIGHT_MAX && put_off < work.len() {
                if !is_refill && self.shared.gives_way(index) {
                    work.clear();
                    break;
                }
                let Some((partition, is_at_rest)) = work.pop_front() else { break };
                let Some(claim) = Claim::take(&self.shared, partition) else {
                    work.push_back((partition, is_at_rest));
                    put_off += 1;
                    continue;
                };
                put_off = 0;
                let coordinator = Rc::clone(self);
                heals.push(index, async move {
                    let _claim = claim;
                    (partition, is_at_rest, coordinator.heal_if_different(index, Partition(partition)).await)
                });
            }
            let Some((_, (partition, is_at_rest, outcome))) = heals.next().await else {
                if work.is_empty() {
                    return Ok(unhealed);
                }
                tokio::time::sleep(CLAIM_LOOK).await;
                put_off = 0;
                continue;
            };
            put_off = 0;
            match outcome {
                Ok(()) => {
                    if let Some(known) = differences.get_mut(&partition) {
                        known.is_compared = is_at_rest;
                    }
                }
                // Tried again in the next round. A row that cannot be read keeps back its own partition only.
                Err(cause) if cause.is_damage() => unhealed = Some(cause),
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Heals a partition unless it is alike by now: another comparison may have brought what was lacking.
    async fn heal_if_different(self: Rc<Self>, index: NodeIndex, partition: Partition) -> Result<(), Cause> {
        let Some(link) = self.link(index) else { return Err(Cause::Unreachable) };
        let request = Request::Digests { first_partition: partition.0, count: 1 };
        match link.call(&request, CALL_TIMEOUT).await {
            Ok(Reply::DigestList(theirs)) if theirs == self.shared.digests_with(index, partition.0, 1) => {
                Ok(())
            }
            Ok(Reply::DigestList(_)) => self.heal(index, partition).await,
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => Err(Cause::Call(error)),
        }
    }
}

/// The right to heal a partition: one comparison of this node's at a time has it, so that two do not bring the same.
struct Claim {
    shared: Arc<Shared>,
    partition: u16,
}

impl Claim {
    fn take(shared: &Arc<Shared>, partition: u16) -> Option<Self> {
        let is_free = shared.healing.lock().unwrap_or_else(PoisonError::into_inner).insert(partition);
        is_free.then(|| Self { shared: Arc::clone(shared), partition })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.healing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.partition);
    }
}

impl Shared {
    /// Notes that the node at `index` heals what it and this one have in common.
    pub(super) fn note_healing(&self, index: NodeIndex) {
        if let Some(at) = self.healed_by.get(usize::from(index.0)) {
            at.store(self.millis(), Ordering::Relaxed);
        }
    }

    /// Whether the healing is left to the node at `index`, which has begun it and would bring the same: to one that comes
    /// first, and to one that is being refilled.
    fn gives_way(&self, index: NodeIndex) -> bool {
        let at = self.healed_by.get(usize::from(index.0)).map_or(0, |at| at.load(Ordering::Relaxed));
        let begun = at > 0 && Duration::from_millis(self.millis() - at.min(self.millis())) < GIVE_WAY;
        let peer_votes = self.cluster.peer(index).is_some_and(|peer| peer.votes.load(Ordering::Relaxed));
        begun && (index < self.cluster.me() || !peer_votes)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.clock.mono().as_millis()).unwrap_or(u64::MAX)
    }

    /// Where among `partitions` the comparison with the node at `index` begins: in another place for each of a node's
    /// peers, and for each of a peer's.
    fn first_partition(&self, index: NodeIndex, partitions: u32) -> u32 {
        let nodes = u32::from(self.cluster.node_count()).max(1);
        let pair = (u32::from(index.0) + u32::from(self.cluster.me().0)) % nodes;
        partitions / nodes * pair
    }

    /// The rank of the node at `index` for `partition`.
    pub(super) fn rank_of(&self, index: NodeIndex, partition: Partition) -> u16 {
        self.cluster.rank_of(partition, index).unwrap_or(u16::MAX)
    }

    /// The higher of this node's rank and that of the one at `index`.
    pub(super) fn rank_max(&self, index: NodeIndex, partition: Partition) -> u16 {
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
