//! Repair: replicas are kept alike in the background, whatever made them differ.
//!
//! For every other node one task compares digests of what the two have in common, partition by partition. Where they
//! differ, and go on differing although nothing is being written there, both sides' versions are merged in key order,
//! and what one side lacks goes over, both ways ([`super::heal`]). The cost follows what differs: a round over two
//! replicas that agree is one call with eight bytes per partition.
//!
//! Two replicas may differ for good: where a newer record was written for fewer replicas, the older copies on the others
//! stay. Such a partition is listed once and not again until a digest changes.
//!
//! A store that is known to lack what an earlier one held ([`crate::cluster`]) is refilled the same way, and votes again
//! once it has been compared with every other node from the first partition to the last.

use super::calls::{Calls, Cause};
use super::compare::Unlike;
use super::mend::Beginning;
use super::transfer::{Found, Probe, Way, is_worth};
use super::{Coordinator, Shared};
use crate::cluster::VotesVerdict;
use crate::replica::{Digests, Vote};
use kvorum_core::{NodeIndex, Partition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two comparisons with one node.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// Between two comparisons by the node of a pair that has the higher index.
const ROUND_EVERY_SECOND: Duration = Duration::from_secs(5);
/// How often it is looked whether a comparison is due; it always is while a store is being refilled.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Partitions that are healed with one node at a time.
const PARTITIONS_IN_FLIGHT_MAX: usize = 4;
/// How often it is looked whether a partition is still being healed with another node.
const CLAIM_LOOK: Duration = Duration::from_millis(5);
/// How long this node leaves the healing to a peer that has begun it.
const GIVE_WAY: Duration = Duration::from_secs(3);
/// Rounds after which a partition that is written all the time is healed although its digests change: no write is under way in
/// so many, and where there always is another the list of its versions is not much.
const RESTLESS_ROUNDS: u32 = 4;

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
        loop {
            let beginning = self.shared.mending.beginning();
            let begun = self.shared.clock.mono();
            let refills = self.shared.is_refilled();
            let is_first = self.shared.owes_comparison(index);
            let worker = self.shared.workers.repair(index);
            let doing = match (refills, is_first) {
                (true, _) => "refilling this store",
                (false, true) => "comparing after a life that did not end as it should",
                (false, false) => "comparing",
            };
            worker.turn(&*self.shared.clock, doing).await;
            let is_ready = self.is_ready(index);
            if is_ready {
                let compared = tokio::select! {
                    biased;
                    compared = self.compare_as_met(index, &mut differences, refills, is_first) => compared,
                    // It may have begun what takes hours.
                    () = worker.until_paused(&*self.shared.clock) => Err(Cause::Paused),
                };
                match compared {
                    Ok(()) if refills => self.shared.compared_with(index, beginning).await,
                    Ok(()) if is_first => self.shared.compared_after_start(index).await,
                    Ok(()) => {}
                    // Anew as soon as the pause is over.
                    Err(Cause::Paused) => continue,
                    Err(cause) => {
                        let node = self.shared.cluster.url_of(index);
                        tracing::debug!(node, %cause, "a comparison of replicas was cut short");
                    }
                }
            }
            worker.rest();
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                // A store may be found to lack something, and a peer to answer, at any time.
                let is_urgent = self.shared.is_refilled() || self.shared.owes_comparison(index) && !is_ready;
                if is_urgent || self.shared.clock.mono() >= begun + self.round_every(index) {
                    break;
                }
            }
        }
    }

    /// Meets the node at `index`, unless that was done, and compares with it.
    async fn compare_as_met(
        self: &Rc<Self>,
        index: NodeIndex,
        differences: &mut BTreeMap<u16, Difference>,
        refills: bool,
        is_first: bool,
    ) -> Result<(), Cause> {
        // What others have purged must be known before anything is taken or given.
        if refills || !self.shared.cluster.has_met_floors_of(index) {
            self.meet_floors(index).await?;
        }
        self.compare(index, differences, refills || is_first).await
    }

    /// Both nodes of a pair look, in case one of them cannot; one of them less often, because each heals both.
    fn round_every(&self, index: NodeIndex) -> Duration {
        if self.shared.cluster.me() < index { ROUND_EVERY } else { ROUND_EVERY_SECOND }
    }

    /// Compares all partitions with the node at `index` once, and heals all that differ.
    pub(super) async fn compare_once(self: &Rc<Self>, index: NodeIndex) -> Result<(), Cause> {
        self.compare(index, &mut BTreeMap::new(), true).await
    }

    /// Compares all partitions, and heals those that differ and are at rest, or are known to lack something; all that
    /// differ when `is_urgent`, without giving way.
    async fn compare(
        self: &Rc<Self>,
        index: NodeIndex,
        differences: &mut BTreeMap<u16, Difference>,
        is_urgent: bool,
    ) -> Result<(), Cause> {
        let unlike = self.unlike(index).await?;
        self.shared.metrics.repair_rounds.fetch_add(1, Ordering::Relaxed);
        let target = self.shared.cluster.id_of(index);
        let gaps = self.shared.hints.gaps_of(target);
        let differ = unlike.len() as u64;
        let mut work = VecDeque::new();
        differences.retain(|partition, _| unlike.contains_key(partition));
        for (partition, Unlike { ours, theirs }) in unlike {
            let known = differences.entry(partition).or_insert(Difference {
                ours: 0,
                theirs: 0,
                rounds: 0,
                is_compared: false,
            });
            let is_at_rest = known.ours == ours && known.theirs == theirs;
            known.rounds += 1;
            (known.ours, known.theirs) = (ours, theirs);
            if is_at_rest && known.is_compared && !is_urgent {
                continue;
            }
            known.is_compared = false;
            let is_gap = gaps.contains(&partition);
            if is_urgent || is_gap || is_at_rest || known.rounds >= RESTLESS_ROUNDS {
                known.rounds = 0;
                work.push_back((partition, is_at_rest));
            }
        }
        let first = self.shared.first_partition(index, self.shared.partition_count().into());
        put_in_order(&mut work, first, index < self.shared.cluster.me(), &gaps);
        let unhealed = self.heal_all(index, work, differences, is_urgent).await?;
        self.shared.metrics.repair_differing.store(differ, Ordering::Relaxed);
        if let Some(count) = self.shared.differing.get(usize::from(index.0)) {
            count.store(differ, Ordering::Relaxed);
        }
        unhealed.map_or(Ok(()), Err)
    }

    /// Heals partitions, [`PARTITIONS_IN_FLIGHT_MAX`] at a time, those last that are being healed with another node; many
    /// in one go where a side lacks most ([`super::transfer`]). Why one was left out, where one was.
    async fn heal_all(
        self: &Rc<Self>,
        index: NodeIndex,
        mut work: VecDeque<(u16, bool)>,
        differences: &mut BTreeMap<u16, Difference>,
        is_urgent: bool,
    ) -> Result<Option<Cause>, Cause> {
        let mut heals = Calls::new();
        let mut to_heal = ToHeal::new(&self.shared.metrics.repair_to_heal, work.len());
        if self.shared.is_refilled() {
            let now = self.shared.metrics.repair_to_heal.load(Ordering::Relaxed);
            self.shared.refill_most.fetch_max(now, Ordering::Relaxed);
        } else {
            self.shared.refill_most.store(0, Ordering::Relaxed);
        }
        let (mut probe, mut is_transferring) = (Probe::default(), false);
        let (mut unhealed, mut put_off) = (None, 0);
        let (mut has_begun, mut is_from_behind) = (false, false);
        loop {
            if !is_urgent && self.shared.gives_way(index, has_begun) {
                work.clear();
            }
            let probed_min = self.shared.settings.upkeep.transferring.probed_min;
            if let Some(way) = probe.is_due(probed_min) {
                let partitions = self.claim_for_transfer(index, way, differences);
                if !partitions.is_empty() {
                    is_transferring = true;
                    heals.push(index, Rc::clone(self).transfer_claimed(index, way, partitions, is_urgent));
                }
            }
            while !is_transferring && heals.nodes().count() < PARTITIONS_IN_FLIGHT_MAX && put_off < work.len()
            {
                let next = if is_from_behind { work.pop_back() } else { work.pop_front() };
                let Some((partition, is_at_rest)) = next else { break };
                let Some(claim) = Claim::take(&self.shared, partition) else {
                    if is_from_behind {
                        work.push_front((partition, is_at_rest));
                    } else {
                        work.push_back((partition, is_at_rest));
                    }
                    put_off += 1;
                    continue;
                };
                (put_off, has_begun) = (0, true);
                heals.push(index, Rc::clone(self).heal_claimed(index, claim, is_at_rest));
            }
            let Some((_, done)) = heals.next().await else {
                if work.is_empty() {
                    return Ok(unhealed);
                }
                tokio::time::sleep(CLAIM_LOOK).await;
                put_off = 0;
                continue;
            };
            put_off = 0;
            let outcome = match done {
                Done::Healed { partition, is_at_rest, outcome } => {
                    to_heal.are_done(1);
                    outcome.map(|found| {
                        if let Some(known) = differences.get_mut(&partition) {
                            known.is_compared = is_at_rest;
                        }
                        // Another node is at work here: side by side the two would bring the same.
                        is_from_behind ^= found.is_none();
                        if let Some(found) = found {
                            probe.note(found);
                        }
                    })
                }
                Done::Transferred(outcome) => {
                    is_transferring = false;
                    to_heal.are_done(self.drop_alike(index, &mut work).await?);
                    // Which partitions it keeps back is seen when they are healed.
                    outcome.or_else(|cause| if cause.is_damage() { Ok(()) } else { Err(cause) })
                }
            };
            match outcome {
                Ok(()) => {}
                // Tried again in the next round. A row that cannot be read keeps back its own partition only.
                Err(cause) if cause.is_damage() => unhealed = Some(cause),
                Err(cause) => return Err(cause),
            }
        }
    }

    async fn heal_claimed(self: Rc<Self>, index: NodeIndex, claim: Claim, is_at_rest: bool) -> Done {
        let outcome = self.heal_if_different(index, Partition(claim.partition)).await;
        Done::Healed { partition: claim.partition, is_at_rest, outcome }
    }

    /// The right to transfer those partitions of which the sender is to do that, ascending, and which are not being healed with
    /// another node; none where a transfer is not worth its while. All that differ are meant, also those that are written just
    /// now: keys are spread evenly, so where most is lacking in some it is in the others.
    fn claim_for_transfer(
        &self,
        index: NodeIndex,
        way: Way,
        differences: &BTreeMap<u16, Difference>,
    ) -> Vec<Claim> {
        let differing = to_be_healed(differences);
        // What this node holds says nothing where it is the one that lacks most: all that differs the peer holds, then.
        let held = match way {
            Way::Send => self.shared.replica.digests().map_or(0, Digests::held),
            Way::Take => differing.len(),
        };
        let is_chosen = |partition: &u16| self.is_transferred(index, way, Partition(*partition));
        let chosen: Vec<u16> = differing.into_iter().filter(is_chosen).collect();
        if !is_worth(chosen.len(), held) {
            return Vec::new();
        }
        chosen.into_iter().filter_map(|partition| Claim::take(&self.shared, partition)).collect()
    }

    async fn transfer_claimed(
        self: Rc<Self>,
        index: NodeIndex,
        way: Way,
        claims: Vec<Claim>,
        is_urgent: bool,
    ) -> Done {
        let partitions = claims.iter().map(|claim| claim.partition).collect();
        Done::Transferred(self.transfer(index, way, partitions, is_urgent).await)
    }

    /// Leaves of `work` what differs by now. How many do not any more.
    async fn drop_alike(&self, index: NodeIndex, work: &mut VecDeque<(u16, bool)>) -> Result<usize, Cause> {
        let unlike = self.unlike(index).await?;
        let before = work.len();
        work.retain(|(partition, _)| unlike.contains_key(partition));
        Ok(before - work.len())
    }

    /// Heals a partition unless it is alike by now: another comparison may have brought what was lacking. What either
    /// side lacked, if it was not.
    async fn heal_if_different(
        self: &Rc<Self>,
        index: NodeIndex,
        partition: Partition,
    ) -> Result<Option<Found>, Cause> {
        if self.is_alike(index, partition).await? {
            Ok(None)
        } else {
            self.heal(index, partition).await.map(Some)
        }
    }
}

/// What became of a piece of a comparison's work.
enum Done {
    /// A partition is healed: what either side lacked, unless the two were alike by now.
    Healed { partition: u16, is_at_rest: bool, outcome: Result<Option<Found>, Cause> },
    /// A transfer has ended.
    Transferred(Result<(), Cause>),
}

/// The partitions that differ, ascending, whether at rest or not, but for those that have been compared as they are: these
/// differ for good.
fn to_be_healed(differences: &BTreeMap<u16, Difference>) -> Vec<u16> {
    let unlike = differences.iter().filter(|(_, known)| !known.is_compared);
    unlike.map(|(partition, _)| *partition).collect()
}

/// Puts partitions, ascending, into the order in which they are healed: those in `gaps` first, because the other node is
/// known to lack something there. Comparisons with several nodes begin in different places, and the two nodes of a pair go
/// different ways from theirs, so that they do not bring the same.
fn put_in_order(work: &mut VecDeque<(u16, bool)>, first: u32, is_second: bool, gaps: &BTreeSet<u16>) {
    work.rotate_left(work.partition_point(|(partition, _)| u32::from(*partition) < first));
    let work = work.make_contiguous();
    if is_second {
        work.reverse();
    }
    work.sort_by_key(|(partition, _)| !gaps.contains(partition));
}

/// What a comparison has yet to heal, for whoever looks; nothing any more when it ends.
struct ToHeal<'a> {
    shown: &'a AtomicU64,
    left: u64,
}

impl<'a> ToHeal<'a> {
    fn new(shown: &'a AtomicU64, partitions: usize) -> Self {
        shown.fetch_add(partitions as u64, Ordering::Relaxed);
        Self { shown, left: partitions as u64 }
    }

    fn are_done(&mut self, partitions: usize) {
        self.shown.fetch_sub(partitions as u64, Ordering::Relaxed);
        self.left -= partitions as u64;
    }
}

impl Drop for ToHeal<'_> {
    fn drop(&mut self) {
        self.shown.fetch_sub(self.left, Ordering::Relaxed);
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
    /// Whether this store lacks what an earlier one held.
    fn is_refilled(&self) -> bool {
        self.cluster.roster().verdict() == VotesVerdict::Lacks
    }

    /// Whether this store may have lost what it confirmed, in the life before, and was not compared with the node at
    /// `index` since.
    fn owes_comparison(&self, index: NodeIndex) -> bool {
        let me = self.cluster.id_of(self.cluster.me());
        self.hints.waiting_for(me).gaps > 0 && !self.compared_since_start().contains(&index)
    }

    /// Notes that this store was compared with the node at `index`, wholly. Once it was with all, nothing is lacking that
    /// any of them has.
    async fn compared_after_start(&self, index: NodeIndex) {
        if !self.has_compared_all(&mut self.compared_since_start(), index) {
            return;
        }
        let me = self.cluster.id_of(self.cluster.me());
        match self.hints.forget_gaps(|target, _, _| target == me).await {
            Ok(()) => tracing::info!("what the life before may have lost was looked for on all other nodes"),
            Err(error) => tracing::warn!(%error, "marks of partitions that were compared cannot be removed"),
        }
    }

    /// Whether the node at `index` was the last of the others that was missing in `compared`.
    fn has_compared_all(&self, compared: &mut BTreeSet<NodeIndex>, index: NodeIndex) -> bool {
        compared.insert(index);
        self.cluster.others().all(|other| compared.contains(&other))
    }

    fn compared_since_start(&self) -> MutexGuard<'_, BTreeSet<NodeIndex>> {
        self.compared_since_start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the node at `index` heals what it and this one have in common.
    pub(super) fn note_healing(&self, index: NodeIndex) {
        if let Some(at) = self.healed_by.get(usize::from(index.0)) {
            at.store(self.millis(), Ordering::Relaxed);
        }
    }

    /// Notes that the node at `index` compares. One that does not vote heals what it finds at once.
    pub(super) fn note_comparing(&self, index: NodeIndex) {
        if !self.peer_votes(index) {
            self.note_healing(index);
        }
    }

    fn peer_votes(&self, index: NodeIndex) -> bool {
        self.cluster.peer(index).is_some_and(|peer| peer.votes.load(Ordering::Relaxed))
    }

    /// Whether the healing is left to the node at `index`, which is at it and would bring the same: by a node that has not
    /// begun, to one that comes first, and to one that is being refilled.
    pub(super) fn gives_way(&self, index: NodeIndex, has_begun: bool) -> bool {
        let at = self.healed_by.get(usize::from(index.0)).map_or(0, |at| at.load(Ordering::Relaxed));
        let heals = at > 0 && Duration::from_millis(self.millis() - at.min(self.millis())) < GIVE_WAY;
        heals && (!has_begun || index < self.cluster.me() || !self.peer_votes(index))
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

    /// How far a refill is, in percent of the partitions that it had to heal, and the nodes that it has not been compared
    /// with wholly.
    pub(super) fn refill_progress(&self) -> (u64, Vec<NodeIndex>) {
        let compared = self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<NodeIndex> = self.cluster.others().filter(|other| !compared.contains(other)).collect();
        let is_begun = !compared.is_empty();
        drop(compared);
        let to_heal = self.metrics.repair_to_heal.load(Ordering::Relaxed);
        let most = self.refill_most.load(Ordering::Relaxed).max(to_heal);
        let percent = match (100 * (most - to_heal)).checked_div(most) {
            Some(percent) => percent,
            None if is_begun => 100,
            None => 0,
        };
        (percent, left)
    }

    /// Notes that a store which is being refilled has been compared with the node at `index`, wholly.
    async fn compared_with(&self, index: NodeIndex, beginning: Beginning) {
        // Read first: whatever is put in doubt later makes this comparison one of an earlier beginning.
        let doubts = self.replica.doubts();
        let is_whole = {
            let mut compared = self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner);
            // Another store has begun since: what this comparison brought is set aside.
            if !self.mending.is_still(beginning) {
                return;
            }
            self.has_compared_all(&mut compared, index)
        };
        // Where no store votes, all have lost what they held at once: nobody can say what there was, and a person must.
        let somebody_votes = self.cluster.others().any(|other| self.peer_votes(other));
        if !is_whole || !somebody_votes {
            return;
        }
        if let Err(error) = self.adopt(doubts).await {
            tracing::warn!(%error, "this store has been compared with all nodes, which cannot be stored");
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

    /// A transfer is of the partitions that are being written as well: else a load keeps most of them back, each until a
    /// comparison of its own. Those that have been compared as they are it leaves out.
    #[test]
    fn transfers_are_of_partitions_that_are_written_too() {
        let known = |rounds, is_compared| Difference { ours: 1, theirs: 2, rounds, is_compared };
        let differences = BTreeMap::from([
            (9, known(1, false)),
            (3, known(0, false)),
            (5, known(0, true)),
            (7, known(4, false)),
        ]);
        assert_eq!(to_be_healed(&differences), [3, 7, 9]);
    }

    /// What the other node is known to lack comes first on both sides, and the two go different ways from one place.
    #[test]
    fn gaps_come_first_and_pairs_go_different_ways() {
        let order = |is_second| {
            let mut work: VecDeque<_> = (0..8).map(|partition| (partition, false)).collect();
            put_in_order(&mut work, 3, is_second, &BTreeSet::from([1, 6]));
            work.into_iter().map(|(partition, _)| partition).collect::<Vec<_>>()
        };
        assert_eq!(order(false), [6, 1, 3, 4, 5, 7, 0, 2]);
        assert_eq!(order(true), [1, 6, 2, 0, 7, 5, 4, 3]);
    }
}
