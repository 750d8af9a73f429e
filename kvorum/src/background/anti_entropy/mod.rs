//! Anti-entropy: each node pulls in the background what it lacks, whatever made replicas differ.
//!
//! For every other node one task compares the digests of what the two have in common, partition by partition. A partition
//! that differs is synced once no write is under way there: [`sync`] merges both version lists in key order and fetches the
//! newer records. A node pushes nothing, because the peer pulls from its side. The cost follows what differs: a round over
//! two replicas in sync is one call.
//!
//! A node compares with one peer at a time, so it never fetches a record twice.
//!
//! Two replicas may differ for ever: if a newer record was written for fewer replicas, the older copies on the others
//! stay. Such a partition is compared once, and not again until a digest changes.
//!
//! A store that lacks what an earlier one held ([`crate::cluster`]) is refilled the same way. It counts in quorums again
//! once it has been compared with every other node from the first partition to the last.

pub(crate) mod bulk;
pub(crate) mod compare;
pub(crate) mod sync;

use crate::background::anti_entropy::bulk::{Lacking, is_worth};
use crate::background::anti_entropy::compare::Unlike;
use crate::background::repair_damage::Beginning;
use crate::cluster::VotesVerdict;
use crate::coordinator::calls::{Calls, Cause};
use crate::coordinator::{Coordinator, Shared};
use crate::replica::{Digests, Vote};
use kvorum_core::{NodeIndex, Partition};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two comparisons with one node.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// How often the task checks whether a comparison is due. One is always due while the store is being refilled.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Partitions that are synced at a time.
const PARTITIONS_IN_FLIGHT_MAX: usize = 4;
/// Rounds after which a partition is synced although writes change its digests all the time. No write is under way for so
/// many rounds, and listing the versions of a busy partition this seldom costs little.
const RESTLESS_ROUNDS: u32 = 4;

/// The state of a partition that differed.
#[derive(Debug, Clone, Copy)]
struct Difference {
    ours: u64,
    theirs: u64,
    /// Rounds since the partition was last synced.
    rounds: u32,
    /// Whether the partition has been synced with its current digests.
    is_compared: bool,
}

impl Coordinator {
    /// Keeps this node and the node at `index` in sync, forever.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service between two batches.
    pub async fn keep_alike(self: Rc<Self>, index: NodeIndex) {
        let mut differences = BTreeMap::new();
        // A node that starts, or reaches a peer again, lacks the writes of that time and pulls them at once.
        let mut was_away = true;
        loop {
            let beginning = self.shared.mending.beginning();
            let begun = self.shared.clock.mono();
            let refills = self.shared.is_refilled();
            let is_first = self.shared.owes_comparison(index);
            let worker = self.shared.workers.repair(index);
            let doing = match (refills, is_first) {
                (true, _) => "refilling this store",
                (false, true) => "comparing after an unclean shutdown",
                (false, false) => "comparing",
            };
            worker.turn(&*self.shared.clock, doing).await;
            let is_ready = self.is_ready(index);
            was_away |= !is_ready;
            if is_ready {
                let is_urgent = is_first || was_away;
                let compared = tokio::select! {
                    biased;
                    compared = self.compare_in_turn(index, &mut differences, refills, is_urgent) => compared,
                    // It may have begun what takes hours.
                    () = worker.until_paused(&*self.shared.clock) => Err(Cause::Paused),
                };
                was_away &= compared.is_err();
                match compared {
                    Ok(()) if refills => self.shared.compared_with(index, beginning).await,
                    Ok(()) if is_first => self.shared.compared_after_start(index).await,
                    Ok(()) => {}
                    // Compare again as soon as the pause is over.
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
                // At any time, a store may be found to lack records, and a peer may begin to answer.
                let is_urgent = self.shared.is_refilled() || self.shared.owes_comparison(index) && !is_ready;
                if is_urgent || self.shared.clock.mono() >= begun + ROUND_EVERY {
                    break;
                }
            }
        }
    }

    /// Compares with the node at `index` once no other comparison of this node is under way. Meets the node first, unless
    /// that was done.
    async fn compare_in_turn(
        self: &Rc<Self>,
        index: NodeIndex,
        differences: &mut BTreeMap<u16, Difference>,
        refills: bool,
        is_urgent: bool,
    ) -> Result<(), Cause> {
        let _turn = self.shared.comparing.lock().await;
        // What others have purged must be known before anything is taken.
        if refills || !self.shared.cluster.has_met_floors_of(index) {
            self.meet_floors(index).await?;
        }
        self.compare(index, differences, refills || is_urgent).await
    }

    /// Pulls what the node at `index` holds and this one lacks, in one partition or in all, whether at rest or not.
    pub(crate) async fn compare_once(
        self: &Rc<Self>,
        index: NodeIndex,
        partition: Option<Partition>,
    ) -> Result<(), Cause> {
        let _turn = self.shared.comparing.lock().await;
        self.meet_floors(index).await?;
        match partition {
            Some(partition) => self.heal(index, partition).await.map(drop),
            None => self.compare(index, &mut BTreeMap::new(), true).await,
        }
    }

    /// Compares all partitions, and syncs those that differ and are at rest; all that differ when `is_urgent`.
    async fn compare(
        self: &Rc<Self>,
        index: NodeIndex,
        differences: &mut BTreeMap<u16, Difference>,
        is_urgent: bool,
    ) -> Result<(), Cause> {
        let unlike = self.unlike(index).await?;
        self.shared.metrics.repair_rounds.fetch_add(1, Ordering::Relaxed);
        let differ = unlike.len() as u64;
        let mut work = Vec::new();
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
            if is_urgent || is_at_rest || known.rounds >= RESTLESS_ROUNDS {
                known.rounds = 0;
                work.push((partition, is_at_rest));
            }
        }
        let unsynced = self.sync_all(index, work, differences).await?;
        self.shared.metrics.repair_differing.store(differ, Ordering::Relaxed);
        if let Some(count) = self.shared.differing.get(usize::from(index.0)) {
            count.store(differ, Ordering::Relaxed);
        }
        unsynced.map_or(Ok(()), Err)
    }

    /// Syncs partitions, a few of them first. If this node lacked most of their records, [`bulk`] sync fetches the others in
    /// one walk through the peer's store. Returns why a partition was left out, if one was.
    async fn sync_all(
        self: &Rc<Self>,
        index: NodeIndex,
        mut work: Vec<(u16, bool)>,
        differences: &mut BTreeMap<u16, Difference>,
    ) -> Result<Option<Cause>, Cause> {
        let mut to_heal = ToHeal::new(&self.shared.metrics.repair_to_heal, work.len());
        if self.shared.is_refilled() {
            let now = self.shared.metrics.repair_to_heal.load(Ordering::Relaxed);
            self.shared.refill_most.fetch_max(now, Ordering::Relaxed);
        } else {
            self.shared.refill_most.store(0, Ordering::Relaxed);
        }
        let probed = usize::try_from(self.shared.settings.upkeep.transferring.probed_min).unwrap_or(0);
        let mut rest = work.split_off(probed.min(work.len()));
        let mut unsynced = None;
        let lacking = self.sync_each(index, work, differences, &mut to_heal, &mut unsynced).await?;
        // All that differ are meant, also those that are written just now: keys are spread evenly, so where this node lacks
        // most of some partitions it does of the others.
        let differing = to_be_synced(differences);
        let held = self.shared.replica.digests().map_or(0, Digests::held).max(differing.len());
        if lacking.is_most() && !rest.is_empty() && is_worth(differing.len(), held) {
            // A partition that the walk leaves out, for damage say, shows when it is synced itself.
            match self.transfer(index, differing).await {
                Err(cause) if !cause.is_damage() => return Err(cause),
                _ => {}
            }
            let unlike = self.unlike(index).await?;
            let before = rest.len();
            rest.retain(|(partition, _)| unlike.contains_key(partition));
            to_heal.are_done(before - rest.len());
        }
        self.sync_each(index, rest, differences, &mut to_heal, &mut unsynced).await?;
        Ok(unsynced)
    }

    /// Syncs partitions, [`PARTITIONS_IN_FLIGHT_MAX`] at a time, and says what this node lacked of them. A partition with a
    /// record that cannot be read is left to the next round, and its cause to `unsynced`.
    async fn sync_each(
        self: &Rc<Self>,
        index: NodeIndex,
        work: Vec<(u16, bool)>,
        differences: &mut BTreeMap<u16, Difference>,
        to_heal: &mut ToHeal<'_>,
        unsynced: &mut Option<Cause>,
    ) -> Result<Lacking, Cause> {
        let (mut work, mut syncs) = (work.into_iter(), Calls::new());
        let mut lacking = Lacking::default();
        loop {
            while syncs.nodes().count() < PARTITIONS_IN_FLIGHT_MAX {
                let Some((partition, is_at_rest)) = work.next() else { break };
                let own = Rc::clone(self);
                syncs.push(index, async move {
                    (partition, is_at_rest, own.heal(index, Partition(partition)).await)
                });
            }
            let Some((_, (partition, is_at_rest, outcome))) = syncs.next().await else { return Ok(lacking) };
            to_heal.are_done(1);
            match outcome {
                Ok(found) => {
                    lacking.add(found);
                    if let Some(known) = differences.get_mut(&partition) {
                        known.is_compared = is_at_rest;
                    }
                }
                Err(cause) if cause.is_damage() => *unsynced = Some(cause),
                Err(cause) => return Err(cause),
            }
        }
    }
}

/// The partitions that differ, ascending, whether at rest or not, but for those that have been compared as they are: these
/// differ for good, or until the peer has pulled what it lacks.
fn to_be_synced(differences: &BTreeMap<u16, Difference>) -> Vec<u16> {
    let unlike = differences.iter().filter(|(_, known)| !known.is_compared);
    unlike.map(|(partition, _)| *partition).collect()
}

/// What a comparison has yet to sync, for whoever looks; nothing any more when it ends.
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

impl Shared {
    /// Whether this store lacks records that an earlier one held.
    fn is_refilled(&self) -> bool {
        self.cluster.roster().verdict() == VotesVerdict::Lacks
    }

    /// Whether this store may have lost confirmed writes in the previous run, and has not been compared with the node
    /// at `index` since.
    fn owes_comparison(&self, index: NodeIndex) -> bool {
        let me = self.cluster.id_of(self.cluster.me());
        self.hints.waiting_for(me).gaps > 0 && !self.compared_since_start().contains(&index)
    }

    /// Notes that this store was compared with the node at `index`, wholly. After a comparison with all nodes, it lacks
    /// no record that any of them has.
    async fn compared_after_start(&self, index: NodeIndex) {
        if !self.has_compared_all(&mut self.compared_since_start(), index) {
            return;
        }
        let me = self.cluster.id_of(self.cluster.me());
        match self.hints.forget_gaps(|target, _, _| target == me).await {
            Ok(()) => tracing::info!(
                "after an unclean shutdown this node was compared with all others: it has what they have"
            ),
            Err(error) => tracing::warn!(%error, "marks of partitions that were compared cannot be removed"),
        }
    }

    /// Adds the node at `index` to `compared`. Returns whether all other nodes are in it now.
    fn has_compared_all(&self, compared: &mut BTreeSet<NodeIndex>, index: NodeIndex) -> bool {
        compared.insert(index);
        self.cluster.others().all(|other| compared.contains(&other))
    }

    fn compared_since_start(&self) -> MutexGuard<'_, BTreeSet<NodeIndex>> {
        self.compared_since_start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_votes(&self, index: NodeIndex) -> bool {
        self.cluster.peer(index).is_some_and(|peer| peer.votes.load(Ordering::Relaxed))
    }

    /// The rank of the node at `index` for `partition`.
    pub(crate) fn rank_of(&self, index: NodeIndex, partition: Partition) -> u16 {
        self.cluster.rank_of(partition, index).unwrap_or(u16::MAX)
    }

    /// The higher of the ranks of this node and the node at `index` for `partition`.
    pub(crate) fn rank_max(&self, index: NodeIndex, partition: Partition) -> u16 {
        self.rank_of(index, partition).max(self.rank_of(self.cluster.me(), partition))
    }

    /// The progress of a refill, in percent of the partitions that it had to sync, and the nodes that it has not been
    /// compared with wholly.
    pub(crate) fn refill_progress(&self) -> (u64, Vec<NodeIndex>) {
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

    /// Notes that a store under refill has been compared with the node at `index`, wholly.
    async fn compared_with(&self, index: NodeIndex, beginning: Beginning) {
        // Read the doubts first: a later doubt changes the beginning, and this comparison then no longer counts.
        let doubts = self.replica.doubts();
        let is_whole = {
            let mut compared = self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner);
            // The store was replaced meanwhile: the records that this comparison brought are set aside with the old
            // store.
            if !self.mending.is_still(beginning) {
                return;
            }
            self.has_compared_all(&mut compared, index)
        };
        // If no store is eligible, all nodes have lost their records at once. No node can say what there was; a person
        // must.
        let somebody_votes = self.cluster.others().any(|other| self.peer_votes(other));
        if !is_whole || !somebody_votes {
            return;
        }
        if let Err(error) = self.adopt(doubts).await {
            tracing::warn!(%error, "this store has been compared with all nodes, which cannot be stored");
            return;
        }
        match self.replica.store_votes(Vote::Yes).await {
            // The store was set aside meanwhile; the one that follows is marked as not eligible.
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

    /// A bulk sync covers partitions that are being written as well. Otherwise load would keep most of them back, each
    /// until its own comparison. It leaves out those already synced with their current digests.
    #[test]
    fn transfers_are_of_partitions_that_are_written_too() {
        let known = |rounds, is_compared| Difference { ours: 1, theirs: 2, rounds, is_compared };
        let differences = BTreeMap::from([
            (9, known(1, false)),
            (3, known(0, false)),
            (5, known(0, true)),
            (7, known(4, false)),
        ]);
        assert_eq!(to_be_synced(&differences), [3, 7, 9]);
    }
}
