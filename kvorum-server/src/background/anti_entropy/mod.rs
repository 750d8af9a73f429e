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
pub(crate) mod doubt;
mod fence;
pub(crate) mod sync;

use crate::background::anti_entropy::bulk::{Lacking, Transferring, is_worth};
use crate::background::anti_entropy::compare::Unlike;
use crate::background::repair_damage::{Beginning, DamageRepair};
use crate::background::tombstone_gc::Purges;
use crate::background::tombstone_gc::meet_floors::meet_floors;
use crate::background::worker::{Control, Work, Worker};
use crate::background::workers::WorkerId;
use crate::canary::{self, Canary};
use crate::clock::TimestampBound;
use crate::cluster::{Cluster, SlotTable, VotesVerdict};
use crate::coordinator::calls::{Calls, Cause};
use crate::coordinator::{Coordinator, Shared};
use crate::crash::{self, Point};
use crate::replica::{Digests, Hints, Replica, Vote};
use kvorum_core::agreement::Epoch;
use kvorum_core::{NodeId, Partition, Slot};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two comparisons with one node.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// The least time between the end of one and the beginning of the next, which follows while the store is being refilled.
const URGENT_EVERY: Duration = Duration::from_millis(100);
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

/// Comparisons of this node with all others: what they have found and brought, and what this node answers to those of its
/// peers.
pub struct Comparisons {
    pub(super) cluster: Arc<Cluster>,
    pub(super) timestamps: Arc<TimestampBound>,
    pub(super) replica: Replica,
    pub(super) hints: Hints,
    pub(super) damage_repair: Arc<DamageRepair>,
    pub(super) purges: Arc<Purges>,
    pub(super) transferring: Transferring,
    /// What they have found and brought.
    pub progress: Arc<Progress>,
}

/// What comparisons have found and brought.
#[derive(Debug, Default)]
pub struct Progress {
    /// Comparisons of replicas with another node.
    pub rounds: AtomicU64,
    /// Partitions that differed in the latest comparison.
    pub differing: AtomicU64,
    /// Partitions that comparisons under way have yet to sync.
    pub to_sync: AtomicU64,
    /// Records that comparisons brought here.
    pub pulled: AtomicU64,
    /// Rows in doubt that were dropped: a replica that must have held them does not have them any more.
    pub outlived_dropped: AtomicU64,
    /// Records that were dropped because other nodes own them now.
    pub unowned_dropped: AtomicU64,
    /// Rows kept although nodes that do not hold them had purged past them: all their replicas are older copies.
    pub kept_in_doubt: AtomicU64,
    /// Walks through another node's store, because this one lacked most of what it ought to hold.
    pub bulk_syncs: AtomicU64,
    /// By node, the partitions that differed in the latest comparison.
    differing_from: SlotTable<AtomicU64>,
    // Guards the nodes that a store under refill has been compared with. Held for an insertion.
    refilled_from: Mutex<BTreeSet<Slot>>,
    /// The fence of a refill under way.
    fence: fence::RefillFence,
    // Guards the nodes that this store has been compared with since it was opened after an unclean shutdown. Held for
    // an insertion.
    compared_since_start: Mutex<BTreeSet<Slot>>,
    // Guards the nodes from which this store has taken all that it lacks in this epoch. Held for an insertion or a copy.
    compared_in: Mutex<(Epoch, BTreeSet<NodeId>)>,
    // Held by the comparison that is under way, for its whole length: one at a time fetches no record twice.
    comparing: tokio::sync::Mutex<()>,
    /// The most partitions that a refill under way has had to sync at any time.
    refill_most: AtomicU64,
}

impl Progress {
    /// How far a refill has come: percent of the partitions that it had to sync, and those of `others` that the store has not
    /// been compared with wholly.
    pub(crate) fn of_refill(&self, others: impl Iterator<Item = Slot>) -> (u64, Vec<Slot>) {
        let compared = self.refilled_from();
        let left: Vec<Slot> = others.filter(|other| !compared.contains(other)).collect();
        let is_begun = !compared.is_empty();
        drop(compared);
        let to_sync = self.to_sync.load(Ordering::Relaxed);
        let most = self.refill_most.load(Ordering::Relaxed).max(to_sync);
        let percent = match (100 * (most - to_sync)).checked_div(most) {
            Some(percent) => percent,
            None if is_begun => 100,
            None => 0,
        };
        (percent, left)
    }

    /// Partitions that differed in the latest comparison with the node at `index`.
    pub(crate) fn differing_from(&self, index: Slot) -> u64 {
        self.differing_from.get(index).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Notes that in `epoch`, from beginning to end, this store has taken all that it lacks from `node`.
    fn note_compared_in(&self, epoch: Epoch, node: NodeId) {
        let mut compared = self.compared_in.lock().unwrap_or_else(PoisonError::into_inner);
        if compared.0 != epoch {
            *compared = (epoch, BTreeSet::new());
        }
        compared.1.insert(node);
    }

    /// The nodes from which this store has taken all that it lacks in `epoch`.
    pub(crate) fn compared_in(&self, epoch: Epoch) -> BTreeSet<NodeId> {
        let compared = self.compared_in.lock().unwrap_or_else(PoisonError::into_inner);
        if compared.0 == epoch { compared.1.clone() } else { BTreeSet::new() }
    }

    /// Waits until no comparison is under way, and keeps others from beginning.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.comparing.lock().await
    }

    /// Restarts all comparisons of a refill.
    pub(crate) fn forget_refill(&self) {
        self.refilled_from().clear();
        self.fence.forget();
    }

    fn refilled_from(&self) -> MutexGuard<'_, BTreeSet<Slot>> {
        self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compared_since_start(&self) -> MutexGuard<'_, BTreeSet<Slot>> {
        self.compared_since_start.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a store that is not quorum-eligible is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    /// It lacks what an earlier store of its node held, promises too. It is compared with all others, behind a
    /// [fence].
    Refill,
    /// It joins. No promise of its node is left: ballots end with their epoch. The change does not wait for members that are
    /// marked, so neither does it.
    Joins,
}

/// One peer to pull from.
#[derive(Clone)]
pub(crate) struct Puller {
    own: Rc<Coordinator>,
    index: Slot,
    /// Whether a promise has kept a record out since the comparison began.
    has_kept_out: Rc<Cell<bool>>,
}

/// Keeps this node in sync with one peer.
pub(crate) struct AntiEntropy {
    puller: Puller,
    control: Option<Arc<Control>>,
    differences: BTreeMap<u16, Difference>,
    /// Whether the peer was away, or has not been compared with yet: this node may lack the writes of that time, and
    /// pulls them at once.
    was_away: bool,
    /// When the latest comparison began, on the monotonic clock, and whether the peer answered then.
    begun: Duration,
    was_ready: bool,
}

impl AntiEntropy {
    pub(crate) fn new(own: Rc<Coordinator>, index: Slot) -> Self {
        let control = own.shared.background.workers.control(WorkerId::Repair(index));
        let begun = own.shared.clock.mono();
        let puller = Puller { own, index, has_kept_out: Rc::default() };
        Self { puller, control, differences: BTreeMap::new(), was_away: true, begun, was_ready: false }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.puller.own.shared
    }

    fn state(&self) -> &Comparisons {
        &self.puller.own.shared.background.anti_entropy
    }

    /// Whether this node's store joins in the change under way, and is no older copy of itself.
    fn joins_anew(&self) -> bool {
        let shared = self.shared();
        shared.cluster.joins()
            && !shared.configurations.has_forgotten()
            && !canary::is(Canary::JoinerCountsLate)
    }

    /// Whether a change of members, or the refill of a marked member, waits for a comparison with the peer that can be
    /// made now.
    fn wants_comparison(&self) -> bool {
        let (shared, index) = (self.shared(), self.puller.index);
        let view = shared.cluster.view();
        if !view.is_joint() && !view.is_any_lacking() {
            return false;
        }
        let progress = &shared.background.anti_entropy.progress;
        let is_compared = progress.compared_in(view.epoch()).contains(&shared.cluster.id_of(index));
        let theirs = shared.configurations.said(index).adopted;
        !is_compared && theirs == Some(view.configuration().instance())
    }
}

impl Worker for AntiEntropy {
    /// A comparison may have begun what takes hours. It ends between two batches.
    const IS_CUT_BY_PAUSE: bool = true;

    fn control(&self) -> Option<Arc<Control>> {
        self.control.clone()
    }

    fn doing(&self) -> &'static str {
        match (self.state().is_refilled(), self.state().owes_comparison(self.puller.index)) {
            (true, _) => "refilling this store",
            (false, true) => "comparing after an unclean shutdown",
            (false, false) => "comparing",
        }
    }

    async fn work(&mut self) -> Work {
        let shared = Arc::clone(self.shared());
        let index = self.puller.index;
        let beginning = shared.background.damage_repair.beginning();
        self.begun = shared.clock.mono();
        self.was_ready = self.puller.own.is_ready(index);
        self.was_away |= !self.was_ready;
        if !self.was_ready {
            return Work::Idle;
        }
        let state = &shared.background.anti_entropy;
        let is_first = state.owes_comparison(index);
        let joins = self.joins_anew();
        let filling = state.is_refilled().then_some(if joins { Filling::Joins } else { Filling::Refill });
        // A change of members counts comparisons that both sides spent in its epoch.
        let epoch = self.wants_comparison().then(|| shared.cluster.epoch());
        let is_urgent = is_first || self.was_away || epoch.is_some();
        self.puller.has_kept_out.set(false);
        let is_fenced = filling == Some(Filling::Refill) && self.puller.fence().await;
        let compared = self.compare_in_turn(filling.is_some(), is_urgent).await;
        let is_ok = compared.is_ok();
        self.was_away &= !is_ok;
        let has_kept_out = self.puller.has_kept_out.get();
        // Without its fence a comparison brings records, but does not count.
        let counts = is_fenced || filling == Some(Filling::Joins) && !has_kept_out;
        match (compared, filling) {
            (Ok(()), Some(filling)) if counts => state.compared_with(index, beginning, filling).await,
            // Also where nothing is owed any more: the last node that was missing may have left.
            (Ok(()), None) if state.is_dirty() => state.compared_after_start(index).await,
            (Ok(()), _) => {}
            (Err(cause), _) => {
                let node = shared.cluster.url_of(index);
                tracing::debug!(node, %cause, "a comparison of replicas was cut short");
            }
        }
        // Last, because the change may go on at once: a store that joins is read in the next epoch, and must count by then.
        if let Some(epoch) = epoch
            && is_ok
            && !has_kept_out
            && epoch == shared.cluster.epoch()
        {
            crash::point(Point::ComparedBefore);
            state.progress.note_compared_in(epoch, shared.cluster.id_of(index));
            crash::point(Point::ComparedAfter);
            shared.cluster.note_change();
        }
        Work::Idle
    }

    async fn wait_for_work(&mut self) {
        // Between two comparisons, however long the first one took.
        tokio::time::sleep(URGENT_EVERY).await;
        let (shared, index) = (self.shared(), self.puller.index);
        // At any time, a store may be found to lack records, and a peer may begin to answer.
        let is_urgent = || {
            let state = self.state();
            let wants = state.is_refilled()
                || state.owes_comparison(index) && !self.was_ready
                || self.wants_comparison();
            wants && self.puller.own.is_ready(index)
        };
        let left = (self.begun + ROUND_EVERY).saturating_sub(shared.clock.mono());
        if !left.is_zero() {
            let _ = tokio::time::timeout(left, shared.cluster.until(is_urgent)).await;
        }
    }
}

impl AntiEntropy {
    /// Compares with the peer once no other comparison of this node is under way. Meets the peer first, unless that was
    /// done.
    async fn compare_in_turn(&mut self, refills: bool, is_urgent: bool) -> Result<(), Cause> {
        let (shared, index) = (Arc::clone(self.shared()), self.puller.index);
        let _turn = shared.background.anti_entropy.progress.comparing.lock().await;
        // What others have purged must be known before anything is taken.
        if refills || !shared.cluster.has_met_floors_of(index) {
            meet_floors(&self.puller.own, index).await?;
        }
        self.compare(refills || is_urgent).await
    }

    /// Pulls what the peer holds and this node lacks, in one partition or in all, whether at rest or not.
    pub(crate) async fn compare_once(&mut self, partition: Option<Partition>) -> Result<(), Cause> {
        let shared = Arc::clone(self.shared());
        let _turn = shared.background.anti_entropy.progress.comparing.lock().await;
        meet_floors(&self.puller.own, self.puller.index).await?;
        match partition {
            Some(partition) => self.puller.sync(partition).await.map(drop),
            None => self.compare(true).await,
        }
    }

    /// Compares all partitions, and syncs those that differ and are at rest; all that differ when `is_urgent`.
    async fn compare(&mut self, is_urgent: bool) -> Result<(), Cause> {
        let shared = Arc::clone(self.shared());
        let progress = &shared.background.anti_entropy.progress;
        let unlike = self.puller.unlike().await?;
        progress.rounds.fetch_add(1, Ordering::Relaxed);
        let differ = unlike.len() as u64;
        let mut work = Vec::new();
        self.differences.retain(|partition, _| unlike.contains_key(partition));
        for (partition, Unlike { ours, theirs }) in unlike {
            let known = self.differences.entry(partition).or_insert(Difference {
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
        let unsynced = self.sync_all(work).await?;
        progress.differing.store(differ, Ordering::Relaxed);
        progress.differing_from.at(self.puller.index).store(differ, Ordering::Relaxed);
        unsynced.map_or(Ok(()), Err)
    }

    /// Syncs partitions, a few of them first. If this node lacked most of their records, [`bulk`] sync fetches the others in
    /// one walk through the peer's store. Returns why a partition was left out, if one was.
    async fn sync_all(&mut self, mut work: Vec<(u16, bool)>) -> Result<Option<Cause>, Cause> {
        let shared = Arc::clone(self.shared());
        let progress = &shared.background.anti_entropy.progress;
        let mut to_sync = ToSync::new(&progress.to_sync, work.len());
        if shared.background.anti_entropy.is_refilled() {
            progress.refill_most.fetch_max(progress.to_sync.load(Ordering::Relaxed), Ordering::Relaxed);
        } else {
            progress.refill_most.store(0, Ordering::Relaxed);
        }
        let probed = usize::try_from(shared.background.anti_entropy.transferring.probed_min).unwrap_or(0);
        let mut rest = work.split_off(probed.min(work.len()));
        let mut unsynced = None;
        let lacking = self.sync_each(work, &mut to_sync, &mut unsynced).await?;
        // All that differ are meant, also those that are written just now: keys are spread evenly, so where this node lacks
        // most of some partitions it does of the others.
        let differing = to_be_synced(&self.differences);
        let held = shared.replica.digests().map_or(0, Digests::held).max(differing.len());
        if lacking.is_most() && !rest.is_empty() && is_worth(differing.len(), held) {
            // A partition that the walk leaves out, for damage say, shows when it is synced itself.
            match self.puller.bulk_sync(differing).await {
                Err(cause) if !cause.is_damage() => return Err(cause),
                _ => {}
            }
            let unlike = self.puller.unlike().await?;
            let before = rest.len();
            rest.retain(|(partition, _)| unlike.contains_key(partition));
            to_sync.are_done(before - rest.len());
        }
        self.sync_each(rest, &mut to_sync, &mut unsynced).await?;
        Ok(unsynced)
    }

    /// Syncs partitions, [`PARTITIONS_IN_FLIGHT_MAX`] at a time, and says what this node lacked of them. A partition with a
    /// record that cannot be read is left to the next round, and its cause to `unsynced`.
    async fn sync_each(
        &mut self,
        work: Vec<(u16, bool)>,
        to_sync: &mut ToSync<'_>,
        unsynced: &mut Option<Cause>,
    ) -> Result<Lacking, Cause> {
        let (mut work, mut syncs) = (work.into_iter(), Calls::new());
        let mut lacking = Lacking::default();
        loop {
            while syncs.nodes().count() < PARTITIONS_IN_FLIGHT_MAX {
                let Some((partition, is_at_rest)) = work.next() else { break };
                let puller = self.puller.clone();
                syncs.push(puller.index, async move {
                    (partition, is_at_rest, puller.sync(Partition(partition)).await)
                });
            }
            let Some((_, (partition, is_at_rest, outcome))) = syncs.next().await else { return Ok(lacking) };
            to_sync.are_done(1);
            match outcome {
                Ok(found) => {
                    lacking.add(found);
                    if let Some(known) = self.differences.get_mut(&partition) {
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
struct ToSync<'a> {
    shown: &'a AtomicU64,
    left: u64,
}

impl<'a> ToSync<'a> {
    fn new(shown: &'a AtomicU64, partitions: usize) -> Self {
        shown.fetch_add(partitions as u64, Ordering::Relaxed);
        Self { shown, left: partitions as u64 }
    }

    fn are_done(&mut self, partitions: usize) {
        self.shown.fetch_sub(partitions as u64, Ordering::Relaxed);
        self.left -= partitions as u64;
    }
}

impl Drop for ToSync<'_> {
    fn drop(&mut self) {
        self.shown.fetch_sub(self.left, Ordering::Relaxed);
    }
}

impl Comparisons {
    /// Whether this store lacks records that an earlier one held.
    pub(super) fn is_refilled(&self) -> bool {
        self.cluster.registry().verdict() == VotesVerdict::Lacks
    }

    /// Whether this store may have lost confirmed writes in the previous run, and has not been compared with the node
    /// at `index` since.
    pub(super) fn owes_comparison(&self, index: Slot) -> bool {
        self.is_dirty() && !self.progress.compared_since_start().contains(&index)
    }

    /// Whether this store may have lost confirmed writes in the previous run, as far as comparisons have shown.
    fn is_dirty(&self) -> bool {
        self.hints.waiting_for(self.cluster.id_of(self.cluster.me())).gaps > 0
    }

    /// Notes that this store was compared with the node at `index`, wholly. After a comparison with all nodes, it lacks
    /// no record that any of them has.
    async fn compared_after_start(&self, index: Slot) {
        if !self.has_compared_all(&mut self.progress.compared_since_start(), index, |_| false) {
            return;
        }
        let me = self.cluster.id_of(self.cluster.me());
        match self.hints.forget_gaps(|target, _, _| target == me).await {
            Ok(()) => tracing::info!(
                "comparison with all other nodes after an unclean shutdown is complete: this node lacks nothing that \
                 they have"
            ),
            Err(error) => {
                tracing::warn!(%error, "cannot remove the marks of compared partitions: they are compared again");
            }
        }
    }

    /// Adds the node at `index` to `compared`. Returns whether all other nodes are in it now, but for those that are left out.
    fn has_compared_all(
        &self,
        compared: &mut BTreeSet<Slot>,
        index: Slot,
        is_left_out: impl Fn(Slot) -> bool,
    ) -> bool {
        compared.insert(index);
        self.cluster.others().all(|other| compared.contains(&other) || is_left_out(other))
    }

    pub(super) fn peer_votes(&self, index: Slot) -> bool {
        self.cluster.peer(index).is_some_and(|peer| peer.votes.load(Ordering::Relaxed))
    }

    /// The rank of the node at `index` for `partition`.
    pub(crate) fn rank_of(&self, index: Slot, partition: Partition) -> u16 {
        self.cluster.view().rank_of(partition, index).unwrap_or(u16::MAX)
    }

    /// Notes that a store under refill has been compared with the node at `index`, wholly.
    async fn compared_with(&self, index: Slot, beginning: Beginning, filling: Filling) {
        // Read the doubts first: a later doubt changes the beginning, and this comparison then no longer counts.
        let doubts = self.replica.doubts();
        let is_whole = {
            let mut compared = self.progress.refilled_from();
            // The store was replaced meanwhile: the records that this comparison brought are set aside with the old
            // store.
            if !self.damage_repair.is_still(beginning) {
                return;
            }
            let view = self.cluster.view();
            let is_left_out = |other| filling == Filling::Joins && view.is_lacking(other);
            self.has_compared_all(&mut compared, index, is_left_out)
        };
        // If no store is eligible, all nodes have lost their records at once. No node can say what there was; a person
        // must.
        let somebody_votes = self.cluster.others().any(|other| self.peer_votes(other));
        if !is_whole || !somebody_votes {
            return;
        }
        if filling == Filling::Refill {
            let Some(word) = self.progress.fence.word() else { return };
            if let Err(error) = self.replica.fence(word).await {
                tracing::warn!(%error, "this store was refilled, but cannot store that it has lost its promises: it \
                                        is compared again");
                return;
            }
        }
        if let Err(error) = self.adopt(doubts).await {
            tracing::warn!(%error, "this store was compared with all nodes, but the result cannot be stored: after a \
                                    restart it is compared again");
            return;
        }
        match self.replica.store_votes(Vote::Yes).await {
            // The store was set aside meanwhile; the one that follows is marked as not eligible.
            Ok(()) if !self.damage_repair.is_still(beginning) => {}
            Ok(()) => {
                self.cluster.registry().refilled();
                self.cluster.note_change();
                tracing::info!(
                    "refill from the other replicas is complete: this store is quorum-eligible again"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "this store was refilled, but the result cannot be stored: after a restart it \
                                        is refilled again");
            }
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
