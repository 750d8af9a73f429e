//! Scrub and repair of this node's disk: damage is repaired from the other nodes, without an operator.
//!
//! A damaged **record** is fetched from the other nodes and enters by [`crate::replica::Replica::apply`], which knows
//! its version from the index. An older record does not replace it, so no read goes back in time, and a damaged
//! tombstone still keeps older values out. Until then a read of it is an error on this replica, never an absence. If no
//! other node has the record or a newer one, it stays damaged and is counted.
//!
//! A **store** counts as damaged when the damage is in a block shared by several records, in a row of the store's own,
//! or has ended the background. The node sets such a store aside as a whole and begins again with an empty one. The new
//! store is refilled by [anti-entropy](super::anti_entropy) and is not quorum-eligible until then.
//!
//! Only one node at a time does that, and only while every other node answers and is eligible. To avoid two at once, a
//! node first stands down (its store does not count) and then asks the others. Of two nodes that do so at the same
//! time, at least one hears that the other does not count, and gives up.

use super::worker::{Control, Work, Worker};
use super::workers::WorkerId;
use crate::background::anti_entropy::sync;
use crate::coordinator::calls::Calls;
use crate::coordinator::{Coordinator, Shared};
use crate::peer::Reply;
use crate::replica::{Place, ReplicaError, Source, StoreState};
use bytes::Bytes;
use kvorum_core::{Key, Record};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the node checks for damage.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the node asks again for a record that no other node had.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Records repaired in one batch.
const ROWS_MAX: usize = 256;
/// How long a node may take to answer a fetch or a heartbeat.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a store is set aside in one run of the node: a disk that damages every store is no use for another.
const ASIDES_MAX: u64 = 3;
/// How often setting a store aside is retried after it failed: the disk was full, or failed.
const ASIDE_AGAIN: Duration = Duration::from_secs(5);
/// How long a node that met an ineligible node gives way to it, for each step of its own index.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// Bytes of one part of a walk.
const PART_BYTES: u64 = 256 << 10;

/// Counters of repaired damage and replaced stores.
#[derive(Debug, Default)]
pub struct DamageRepair {
    /// Records repaired from other nodes.
    pub rows_repaired: AtomicU64,
    /// Records that cannot be read and that no other node has.
    pub rows_lost: AtomicU64,
    /// Stores set aside in this run of the node.
    pub stores_set_aside: AtomicU64,
    /// Bytes read by walks that look for damage.
    pub bytes_walked: AtomicU64,
    /// Walks that reached the end of the store.
    pub walks: AtomicU64,
    /// Plus one when setting a store aside begins, and one when its successor is there. Plus two when the store hears
    /// that its rows are in doubt.
    beginnings: AtomicU64,
}

/// A number that tells apart the stores of one run of the node, and the time between two of them from both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beginning(u64);

impl DamageRepair {
    /// The number of the current store.
    pub(crate) fn beginning(&self) -> Beginning {
        Beginning(self.beginnings.load(Ordering::SeqCst))
    }

    /// Notes that comparisons made so far no longer count for this store.
    pub(crate) fn begin_again(&self) {
        self.beginnings.fetch_add(2, Ordering::SeqCst);
    }

    /// Whether a store is being set aside: its successor is not there yet.
    fn is_between(&self) -> bool {
        !self.is_still(self.beginning())
    }

    /// Whether the store of `then` is still the current one.
    pub(crate) fn is_still(&self, then: Beginning) -> bool {
        then.0.is_multiple_of(2) && self.beginning() == then
    }
}

/// The outcome of repairing a damaged record.
#[derive(Debug, PartialEq, Eq)]
enum RowRepair {
    /// The record can be read again.
    Repaired,
    /// No other node has the record, or a newer one that belongs here.
    NobodyHasIt,
    /// Some node could not be asked.
    Later,
}

/// Repairs damage on this node's disk.
pub(crate) struct RepairDamage {
    own: Rc<Coordinator>,
    control: Option<Arc<Control>>,
    /// When the other nodes were last asked for damaged records, on the monotonic clock.
    asked_at: Option<Duration>,
    /// Whether the store was walked since it failed.
    walked_failure: bool,
}

impl RepairDamage {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        let control = own.shared.background.workers.control(WorkerId::RepairDamage);
        Self { own, control, asked_at: None, walked_failure: false }
    }
}

impl Worker for RepairDamage {
    fn control(&self) -> Option<Arc<Control>> {
        self.control.clone()
    }

    fn doing(&self) -> &'static str {
        "looking"
    }

    /// Looks for damage, and repairs what it finds. A store that is being set aside is so on disk.
    async fn work(&mut self) -> Work {
        let shared = Arc::clone(&self.own.shared);
        let now = shared.clock.mono();
        let is_failed = matches!(shared.replica.health(), StoreState::Failed { .. });
        let is_alone = self.own.nodes() == 1;
        if is_failed && !self.walked_failure && !is_alone {
            // A walk shows whether the store failed because of damage.
            self.walked_failure = true;
            self.walk_all().await;
        }
        self.walked_failure &= is_failed;
        // A node that is alone has nothing to refill from.
        let damage_repair = &shared.background.damage_repair;
        let is_damaged = shared.replica.damage().store().is_some() || damage_repair.is_between();
        if is_damaged && !is_alone {
            self.begin_anew().await;
            return Work::Idle;
        }
        let is_due = self.asked_at.is_none_or(|at| now >= at + ASK_AGAIN);
        let lost = damage_repair.rows_lost.load(Ordering::Relaxed);
        if is_due || shared.replica.damage().row_count() as u64 > lost {
            self.asked_at = Some(now);
            self.repair_rows().await;
        }
        Work::Idle
    }

    async fn wait_for_work(&mut self) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Walks over the whole store at intervals, to find damage before somebody asks for the rows.
pub(crate) struct Scrub {
    own: Rc<Coordinator>,
    control: Option<Arc<Control>>,
    /// Where the walk goes on; none between two walks.
    place: Option<Place>,
}

impl Scrub {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        let control = own.shared.background.workers.control(WorkerId::Scrub);
        Self { own, control, place: None }
    }
}

impl Worker for Scrub {
    fn control(&self) -> Option<Arc<Control>> {
        self.control.clone()
    }

    fn doing(&self) -> &'static str {
        if self.place.is_some() { "reading" } else { "" }
    }

    async fn work(&mut self) -> Work {
        let Some(from) = self.place.take() else { return Work::Idle };
        let Some((next, bytes)) = walk(&self.own.shared, from).await else { return Work::Idle };
        self.place = next;
        let micros = bytes.saturating_mul(1_000_000) / self.own.shared.settings.upkeep.scrub_rate.max(1);
        Work::Throttled(Duration::from_micros(micros))
    }

    async fn wait_for_work(&mut self) {
        tokio::time::sleep(self.own.shared.settings.upkeep.scrub_every).await;
        self.place = Some(Place::default());
    }
}

impl RepairDamage {
    async fn walk_all(&self) {
        let mut place = Some(Place::default());
        while let Some(from) = place {
            place = walk(&self.own.shared, from).await.and_then(|(next, _)| next);
            tokio::task::yield_now().await;
        }
    }

    async fn repair_rows(&self) {
        let damage = self.own.shared.replica.damage();
        let (mut after, mut lost) = (None, 0);
        loop {
            let rows = damage.rows(after.as_ref(), ROWS_MAX);
            after = rows.last().cloned();
            for row in rows {
                match self.repair_row(&row).await {
                    Ok(RowRepair::NobodyHasIt) => lost += 1,
                    Ok(RowRepair::Repaired | RowRepair::Later) => {}
                    Err(error) => tracing::debug!(%error, "a damaged record cannot be healed now"),
                }
            }
            if after.is_none() {
                break;
            }
        }
        let before = self.own.shared.background.damage_repair.rows_lost.swap(lost, Ordering::Relaxed);
        if lost > before {
            tracing::error!(
                records = lost,
                "damaged records cannot be repaired, because no other node has them: reads of them fail until they \
                 are written again"
            );
        }
    }

    async fn repair_row(&self, row: &Bytes) -> Result<RowRepair, ReplicaError> {
        let shared = &self.own.shared;
        let damage = shared.replica.damage();
        let Ok(key) = Key::new(row.clone()) else {
            damage.note_store("the key of a row is malformed");
            return Ok(RowRepair::Later);
        };
        match shared.replica.get(&key).await {
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
            Ok(_) => return self.check_scans(row, &key).await,
        }
        let Some((version, from)) = shared.replica.indexed_version(&key)? else {
            damage.note_store("a damaged block holds no record");
            return Ok(RowRepair::Later);
        };
        let partition = shared.cluster.partition_of(&key);
        let my_rank = shared.cluster.view().rank_of(partition, shared.cluster.me()).unwrap_or(u16::MAX);
        let mut calls = Calls::new();
        for index in shared.cluster.others() {
            calls.push(index, sync::fetch(Rc::clone(&self.own), index, key.clone(), CALL_TIMEOUT));
        }
        let (mut best, mut is_whole): (Option<(u64, Record)>, bool) = (None, true);
        while let Some((_, answer)) = calls.next().await {
            match answer {
                Ok((agreed, Some(record))) if record.version >= version && record.from > my_rank => {
                    if best.as_ref().is_none_or(|(_, best)| record.newness(best).is_gt()) {
                        best = Some((agreed, record));
                    }
                }
                Ok(_) => {}
                // A copy that is damaged there as well is no copy.
                Err(cause) if cause.is_damage() => {}
                Err(_) => is_whole = false,
            }
        }
        let Some((agreed, record)) = best else {
            return Ok(if is_whole { RowRepair::NobodyHasIt } else { RowRepair::Later });
        };
        shared.stamps.observe(record.version);
        let healed = record.version;
        shared.replica.apply(key.clone(), record, Source::Repair { agreed }).await?;
        tracing::info!(key = %row.escape_ascii(), %version, %healed, from, "a damaged record was repaired from another node");
        shared.background.damage_repair.rows_repaired.fetch_add(1, Ordering::Relaxed);
        shared.background.workers.count(WorkerId::RepairDamage, 1);
        self.check_scans(row, &key).await
    }

    /// Forgets the damage of a record that can be read. If scans still meet damage there, marks the store as damaged.
    async fn check_scans(&self, row: &Bytes, key: &Key) -> Result<RowRepair, ReplicaError> {
        let is_sound = self.own.shared.replica.is_sound(key).await?;
        self.own.shared.replica.damage().forget_row(row);
        if !is_sound {
            self.own.shared.replica.damage().note_store("several records share the damaged block");
        }
        Ok(RowRepair::Repaired)
    }

    /// Sets the damaged store aside and begins with an empty one, if possible now. Resumes an attempt that began and
    /// failed.
    async fn begin_anew(&self) {
        let shared = &self.own.shared;
        let has_begun = shared.background.damage_repair.is_between();
        // While there is no space for a second store, the damaged one serves the rows that can be read.
        let is_full = shared.replica.health() == StoreState::DiskFull;
        let asides = shared.background.damage_repair.stores_set_aside.load(Ordering::Relaxed);
        if is_full && !has_begun || asides >= ASIDES_MAX {
            // The status continues to say that the store is damaged.
            return;
        }
        shared.cluster.stand_down(true);
        if !self.all_others_vote().await {
            shared.cluster.stand_down(false);
            // If several nodes are damaged, the one with the lowest index goes first.
            tokio::time::sleep(GIVE_WAY * u32::from(shared.cluster.me().0)).await;
            return;
        }
        // From here on, no comparison counts that began with the old store or ends before the new one is there. If
        // setting aside fails, that stays so until it succeeds.
        if !has_begun {
            shared.background.damage_repair.beginnings.fetch_add(1, Ordering::SeqCst);
        }
        shared.cluster.registry().lose();
        shared.cluster.note_change();
        shared.cluster.stand_down(false);
        let reason = shared.replica.damage().store().unwrap_or_default();
        match shared.configurations.set_aside(shared.stamps.lease()).await {
            Ok(()) => {
                self.remember_again().await;
                shared.cluster.note_loss();
                shared.background.anti_entropy.progress.forget_refill();
                shared.background.damage_repair.beginnings.fetch_add(1, Ordering::SeqCst);
                shared.background.damage_repair.stores_set_aside.fetch_add(1, Ordering::Relaxed);
                let lost = shared.hints.forget_all();
                shared.metrics.hints_lost.fetch_add(lost, Ordering::Relaxed);
                shared.background.damage_repair.rows_lost.store(0, Ordering::Relaxed);
                tracing::error!(
                    reason,
                    hints_lost = lost,
                    "the damaged store was quarantined: the node goes on with an empty store, which is refilled from \
                     the other nodes and is not quorum-eligible until then"
                );
            }
            Err(error) => {
                if has_begun {
                    tracing::debug!(%error, "the damaged store can still not be set aside");
                } else {
                    tracing::error!(
                        reason,
                        %error,
                        again_every_s = ASIDE_AGAIN.as_secs(),
                        "the damaged store cannot be quarantined now: until it is, this node takes no writes and is \
                         not quorum-eligible"
                    );
                }
                tokio::time::sleep(ASIDE_AGAIN).await;
            }
        }
    }

    /// Stores facts again that the old store may have failed to pass on to the new one.
    async fn remember_again(&self) {
        let shared = &self.own.shared;
        let (seen, run, past) = {
            let registry = shared.cluster.registry();
            (registry.stores(), registry.run(), registry.past().clone())
        };
        let id = shared.cluster.id();
        let stored = async {
            shared.replica.store_seen(&seen).await?;
            shared.replica.store_run(run, &past).await?;
            if let Some(id) = id {
                shared.replica.store_cluster_id(id).await?;
            }
            shared.stamps.store_lease().await
        };
        if let Err(error) = stored.await {
            tracing::warn!(%error, "cannot store the other nodes' stores in the new store: after a restart this node \
                                    asks again");
        }
    }

    /// Whether every other node answers now and says that its store is quorum-eligible.
    async fn all_others_vote(&self) -> bool {
        let (ping, when) = (
            self.own.shared.background.membership.ping(),
            (self.own.shared.cluster.placed_since(), CALL_TIMEOUT),
        );
        let Ok(mut calls) = self.own.ask_others(&ping, when) else {
            return false;
        };
        let mut all = true;
        while let Some((index, answer)) = calls.next().await {
            let votes = matches!(answer, Ok(Reply::Pong { votes: true, .. }));
            if !votes {
                let node: &str = self.own.shared.cluster.url_of(index);
                tracing::debug!(
                    node,
                    "a damaged store stays in use: this node does not answer or does not vote"
                );
            }
            all &= votes;
        }
        all
    }
}

/// Reads one part of a walk. Returns where it continues, and the bytes read; `None` when it cannot be read now.
async fn walk(shared: &Shared, from: Place) -> Option<(Option<Place>, u64)> {
    match shared.replica.walk(from, PART_BYTES).await {
        Ok(walked) => {
            let damage_repair = &shared.background.damage_repair;
            shared.background.workers.count(WorkerId::Scrub, walked.bytes);
            damage_repair.bytes_walked.fetch_add(walked.bytes, Ordering::Relaxed);
            damage_repair.walks.fetch_add(u64::from(walked.next.is_none()), Ordering::Relaxed);
            Some((walked.next, walked.bytes))
        }
        Err(error) => {
            tracing::debug!(%error, "a walk over the store was cut short");
            None
        }
    }
}
