//! Handoff: delivers hints to nodes that have come back.
//!
//! One task per target, on one thread of the node. It delivers hints in the order of versions, [`IN_FLIGHT_MAX`] at a
//! time, and forgets each batch once it has been confirmed. The [rate limiter](super::rate_limit) keeps a node that comes
//! back from being swamped. A node that starts first asks its peers up to where they have sealed while it was away. It
//! then asks for its hints and waits for them before it serves.

use super::worker::{Control, Work, Worker};
use super::workers::WorkerId;
use crate::background::rate_limit::charged_hint;
use crate::cluster::{SlotTable, VotesVerdict};
use crate::coordinator::calls::{Calls, Write};
use crate::coordinator::{Coordinator, Shared};
use crate::log_limit::LogLimit;
use crate::peer::{ApplyKind, LinkState, Reply, Request};
use crate::replica::{Hint, ReplicaError};
use futures_util::{StreamExt, stream};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Slot, UnixMillis, Version};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;

/// Hints under way to one target at a time.
const IN_FLIGHT_MAX: usize = 128;
/// Hints read at a time, in number and bytes.
const BATCH_LEN_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How long one delivery may take.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the task checks for waiting hints without being called.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// The wait after a target did not take a hint.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// How long a starting node waits for a peer to answer.
const ANSWERS_AT_ONCE: Duration = Duration::from_millis(300);

/// Wakes the tasks that deliver hints.
#[derive(Debug)]
pub struct Handoff {
    calls: SlotTable<Notify>,
    /// Limits the log lines about lost hints.
    losses: LogLimit,
}

/// Log lines per period about hints that could not be kept: a store that takes none loses one for each write.
const LOSS_LINES_MAX: u32 = 4;
const LOSS_LINES_PERIOD: Duration = Duration::from_mins(1);

impl Default for Handoff {
    fn default() -> Self {
        Self { calls: SlotTable::default(), losses: LogLimit::new(LOSS_LINES_MAX, LOSS_LINES_PERIOD) }
    }
}

impl Handoff {
    /// Wakes the task that delivers the hints for the node at `index`.
    pub fn call(&self, index: Slot) {
        self.calls.at(index).notify_one();
    }

    /// Whether a lost hint may be logged at `now`, and how many lines were left out before it.
    pub(crate) fn tells_loss(&self, now: Duration) -> Option<u64> {
        self.losses.admit(now)
    }

    async fn called(&self, index: Slot) {
        self.calls.at(index).notified().await;
    }
}

/// Delivers hints to one peer: in passes over all that wait, batch by batch.
pub(crate) struct HintedHandoff {
    own: Rc<Coordinator>,
    index: Slot,
    control: Option<Arc<Control>>,
    pass: Pass,
}

/// A pass over the hints for a peer.
#[derive(Default)]
struct Pass {
    /// The last hint that was read.
    after: Option<Hint>,
    /// Whether the peer did not take some.
    has_failed: bool,
}

impl HintedHandoff {
    pub(crate) fn new(own: Rc<Coordinator>, index: Slot) -> Self {
        let control = own.shared.background.workers.control(WorkerId::Hints(index));
        Self { own, index, control, pass: Pass::default() }
    }

    fn has_work(&self) -> bool {
        let shared = &self.own.shared;
        shared.hints.waiting_for(shared.cluster.id_of(self.index)).count > 0 && self.own.is_ready(self.index)
    }

    /// Delivers the next batch of the pass.
    async fn deliver_next(&mut self) -> Result<Work, ReplicaError> {
        let shared = Arc::clone(&self.own.shared);
        let target = shared.cluster.id_of(self.index);
        let after = self.pass.after.as_ref();
        let hints = shared.hints.next(target, after, BATCH_LEN_MAX, BATCH_BYTES_MAX).await?;
        let Some(last) = hints.last() else {
            return Ok(match std::mem::take(&mut self.pass) {
                // The counted hints are not stored yet. The task that stores them calls again.
                Pass { after: None, .. } => Work::Idle,
                Pass { has_failed: true, .. } => Work::Throttled(RETRY_WAIT),
                Pass { .. } => Work::Busy,
            });
        };
        self.pass.after = Some(last.clone());
        let count = hints.len();
        let done = self.own.deliver_batch(self.index, hints).await?;
        self.pass.has_failed |= done.len() < count;
        shared.background.workers.count(WorkerId::Hints(self.index), done.len() as u64);
        if let Some(peer) = shared.cluster.peer(self.index) {
            peer.hints_delivered.fetch_add(done.len() as u64, Ordering::Relaxed);
        }
        shared.hints.remove(target, done).await?;
        shared.cluster.note_change();
        Ok(Work::Busy)
    }
}

impl Worker for HintedHandoff {
    fn control(&self) -> Option<Arc<Control>> {
        self.control.clone()
    }

    fn doing(&self) -> &'static str {
        if self.has_work() { "delivering" } else { "" }
    }

    /// Dropping the future between a delivery and its note has the hint delivered again.
    async fn work(&mut self) -> Work {
        if !self.has_work() {
            self.pass = Pass::default();
            return Work::Idle;
        }
        match self.deliver_next().await {
            Ok(work) => work,
            Err(error) => {
                let node = self.own.shared.cluster.url_of(self.index);
                tracing::warn!(%error, node, "cannot deliver hints: this node tries again");
                self.pass = Pass::default();
                Work::Throttled(IDLE_WAIT)
            }
        }
    }

    async fn wait_for_work(&mut self) {
        let called = self.own.shared.background.handoff.called(self.index);
        let _ = tokio::time::timeout(IDLE_WAIT, called).await;
    }
}

impl Coordinator {
    /// Delivers `hints` and returns those that may be forgotten.
    async fn deliver_batch(
        self: &Rc<Self>,
        index: Slot,
        hints: Vec<Hint>,
    ) -> Result<Vec<Hint>, ReplicaError> {
        let now = self.shared.clock.wall();
        let deliveries = hints.into_iter().map(async |hint| {
            let is_done = self.deliver_hint(index, &hint, now).await?;
            Ok::<_, ReplicaError>(is_done.then_some(hint))
        });
        let mut deliveries = pin!(stream::iter(deliveries).buffer_unordered(IN_FLIGHT_MAX));
        let mut done = Vec::new();
        while let Some(delivered) = deliveries.next().await {
            done.extend(delivered?);
        }
        Ok(done)
    }

    /// Delivers one hint; true when it may be forgotten.
    async fn deliver_hint(
        self: &Rc<Self>,
        index: Slot,
        hint: &Hint,
        now: UnixMillis,
    ) -> Result<bool, ReplicaError> {
        if self.shared.hints.is_too_old(hint.record.version, now) {
            let target = self.shared.cluster.id_of(index);
            let partition = self.shared.cluster.partition_of(&hint.key);
            self.shared.hints.mark_gap(target, partition.0, hint.record.version, now).await?;
            return Ok(true);
        }
        // Keys may be placed otherwise since the hint was kept: then the node holds no copy of it any more.
        let view = self.view();
        let rank = view.rank_of(view.partition_of(&hint.key), index);
        if rank.is_none_or(|rank| rank >= hint.record.from) && view.placed_since() > Epoch(0) {
            return Ok(true);
        }
        self.shared.wait_for_pace(charged_hint(&hint.key, &hint.record)).await;
        let when = (self.shared.cluster.placed_since(), DELIVERY_TIMEOUT);
        let call = self.ask_apply(index, &hint.key, &hint.record, ApplyKind::Hint, when);
        Ok(matches!(
            call.await,
            // Of a record that a promise keeps out, anti-entropy and a ballot decide.
            Write::Stored
                | Write::Uncounted
                | Write::Superseded { .. }
                | Write::TooLate(_)
                | Write::Contested(_)
        ))
    }
}

/// A peer that is being met. It is dropped once the peer was met or did not answer.
struct Meeting {
    own: Rc<Coordinator>,
    /// How many are being met.
    count: Rc<Cell<usize>>,
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
        self.own.shared.cluster.note_change();
    }
}

impl Coordinator {
    /// Meets the peers that answer at once, and takes the hints that each holds for this node, within the bound in the
    /// settings. Does not wait for peers that do not answer, and takes no hints while this node joins.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: other peers are met later, and the remaining hints are delivered later.
    pub async fn take_hints(self: &Rc<Self>) {
        let wait = self.shared.settings.hint_wait;
        let deadline = tokio::time::Instant::now() + wait;
        let mut calls = Calls::new();
        let meeting = Rc::new(Cell::new(self.shared.cluster.others().count()));
        for index in self.shared.cluster.others() {
            let meeting = Meeting { own: Rc::clone(self), count: Rc::clone(&meeting) };
            let Some(link) = self.link(index).cloned() else { continue };
            let coordinator = Rc::clone(self);
            calls.push(index, async move {
                let is_decided = || link.is_usable() || matches!(link.state(), LinkState::Down { .. });
                let decided = coordinator.shared.cluster.until(is_decided);
                let _ = tokio::time::timeout(ANSWERS_AT_ONCE, decided).await;
                if !link.is_usable() {
                    return None;
                }
                // Before any hint comes in, and before this store is eligible. A failure is retried in the background.
                coordinator.send_heartbeat(index).await;
                let _ = coordinator.meet_floors(index).await;
                drop(meeting);
                // The change fills a node that joins, which has missed nothing that it must have to serve.
                if coordinator.shared.cluster.joins() {
                    return None;
                }
                let left = deadline.saturating_duration_since(tokio::time::Instant::now());
                link.call(&Request::TakeHints, left).await.ok()
            });
        }
        let taken = self.take_from(calls, deadline);
        tokio::join!(taken, self.hear_of_store(&meeting, deadline));
    }

    async fn take_from(&self, mut calls: Calls<Option<Reply>>, deadline: tokio::time::Instant) {
        while let Ok(Some((index, answer))) = tokio::time::timeout_at(deadline, calls.next()).await {
            let Some(Reply::HintsTaken { delivered, left, met }) = answer else { continue };
            // A node that comes back with an older disk also has an older clock lease: continue above the versions that
            // others have met.
            self.shared.stamps.observe(Version::from_words(met.0, 0));
            if delivered + left > 0 {
                let node = self.shared.cluster.url_of(index);
                tracing::info!(
                    node,
                    delivered,
                    left,
                    "a peer delivered the hints that it held for this node"
                );
            }
        }
    }
}

impl Coordinator {
    /// Waits for a moment until it is decided whether this store is quorum-eligible. `meeting` counts the peers that
    /// are being met, until `deadline`.
    ///
    /// A disk that is known to be the one of the last run needs no majority. Its store is eligible once the peers that
    /// answer now had their chance to report a later run.
    async fn hear_of_store(&self, meeting: &Cell<usize>, deadline: tokio::time::Instant) {
        let cluster = &self.shared.cluster;
        if self.shared.background.membership.recognises_disk() {
            let met = cluster.until(|| meeting.get() == 0 || cluster.has_met());
            // A peer that takes longer counts as away.
            let _ = tokio::time::timeout_at(deadline, met).await;
            cluster.trust_store();
        }
        let heard = cluster.until(|| !cluster.is_undecided());
        if tokio::time::timeout(ANSWERS_AT_ONCE, heard).await.is_ok() {
            return;
        }
        self.shared.background.membership.note_undecided_told();
        let registry = self.shared.cluster.registry();
        if registry.verdict() == VotesVerdict::Unknown {
            let all = self.shared.cluster.others().map(|index| self.shared.cluster.id_of(index));
            let unheard: Vec<&str> = registry
                .unheard(all)
                .filter_map(|node| self.shared.index_of(node))
                .map(|index| self.shared.cluster.url_of(index))
                .collect();
            tracing::warn!(
                unheard = unheard.join(","),
                "new store: it answers no reads until every other node has confirmed that it knows no older store of \
                 this node; if the cluster is new and a node stays away, stop this node, run \"kvorum bootstrap \
                 DIR\" on its data directory, and start it again"
            );
        } else {
            tracing::warn!(
                "too few other nodes answer: this store is not quorum-eligible until a majority of the nodes, this \
                 one included, has said what was purged meanwhile; if the others stay away and this is the disk of \
                 the node's last run, stop it, run \"kvorum trust-store DIR\" on its data directory, and start it \
                 again"
            );
        }
    }
}

impl Shared {
    /// Waits until the hints for the node at `index` are delivered. Returns how many were delivered and how many are
    /// left.
    pub(crate) async fn drain_hints(&self, index: Slot, timeout: Duration) -> (u64, u64) {
        let target = self.cluster.id_of(index);
        let before = self.hints.waiting_for(target).count;
        self.background.handoff.call(index);
        let drained = self.cluster.until(|| self.hints.waiting_for(target).count == 0);
        let _ = tokio::time::timeout(timeout, drained).await;
        let left = self.hints.waiting_for(target).count;
        (before.saturating_sub(left), left)
    }
}
