//! Handoff: delivers hints to nodes that have come back.
//!
//! One task per target, on one thread of the node. It delivers hints in the order of versions, [`IN_FLIGHT_MAX`] at a
//! time, and forgets each batch once it has been confirmed. The [rate limiter](super::rate_limit) keeps a node that comes
//! back from being swamped.

use super::worker::{Control, Work, Worker};
use super::workers::WorkerId;
use crate::background::rate_limit::charged_hint;
use crate::cluster::{Cluster, SlotTable};
use crate::coordinator::Coordinator;
use crate::coordinator::calls::Write;
use crate::log_limit::LogLimit;
use crate::peer::ApplyKind;
use crate::replica::{Hint, Hints, ReplicaError};
use futures_util::{StreamExt, stream};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Slot, UnixMillis};
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

/// Wakes the tasks that deliver hints.
pub struct Handoff {
    cluster: Arc<Cluster>,
    hints: Hints,
    calls: SlotTable<Notify>,
    /// Limits the log lines about lost hints.
    losses: LogLimit,
}

/// Log lines per period about hints that could not be kept: a store that takes none loses one for each write.
const LOSS_LINES_MAX: u32 = 4;
const LOSS_LINES_PERIOD: Duration = Duration::from_mins(1);

impl Handoff {
    pub(crate) fn new(cluster: Arc<Cluster>, hints: Hints) -> Self {
        let losses = LogLimit::new(LOSS_LINES_MAX, LOSS_LINES_PERIOD);
        Self { cluster, hints, calls: SlotTable::default(), losses }
    }

    /// Wakes the task that delivers the hints for the node at `index`.
    pub fn call(&self, index: Slot) {
        self.calls.at(index).notify_one();
    }

    /// Whether a lost hint may be logged at `now`, and how many lines were left out before it.
    pub(crate) fn tells_loss(&self, now: Duration) -> Option<u64> {
        self.losses.admit(now)
    }

    /// Waits until the hints for the node at `index` are delivered. Returns how many were delivered and how many are
    /// left.
    pub(crate) async fn drain(&self, index: Slot, timeout: Duration) -> (u64, u64) {
        let target = self.cluster.id_of(index);
        let before = self.hints.waiting_for(target).count;
        self.call(index);
        let drained = self.cluster.until(|| self.hints.waiting_for(target).count == 0);
        let _ = tokio::time::timeout(timeout, drained).await;
        let left = self.hints.waiting_for(target).count;
        (before.saturating_sub(left), left)
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
        let done = self.deliver_batch(hints).await?;
        self.pass.has_failed |= done.len() < count;
        shared.background.workers.count(WorkerId::Hints(self.index), done.len() as u64);
        if let Some(peer) = shared.cluster.peer(self.index) {
            peer.hints_delivered.fetch_add(done.len() as u64, Ordering::Relaxed);
        }
        shared.hints.remove(target, done).await?;
        shared.cluster.note_change();
        Ok(Work::Busy)
    }

    /// Delivers `hints` and returns those that may be forgotten.
    async fn deliver_batch(&self, hints: Vec<Hint>) -> Result<Vec<Hint>, ReplicaError> {
        let now = self.own.shared.clock.wall();
        let deliveries = hints.into_iter().map(async |hint| {
            let is_done = self.deliver_hint(&hint, now).await?;
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
    async fn deliver_hint(&self, hint: &Hint, now: UnixMillis) -> Result<bool, ReplicaError> {
        if self.own.shared.hints.is_too_old(hint.record.version, now) {
            let target = self.own.shared.cluster.id_of(self.index);
            let partition = self.own.shared.cluster.partition_of(&hint.key);
            self.own.shared.hints.mark_gap(target, partition.0, hint.record.version, now).await?;
            return Ok(true);
        }
        // Keys may be placed otherwise since the hint was kept: then the node holds no copy of it any more.
        let view = self.own.view();
        let rank = view.rank_of(view.partition_of(&hint.key), self.index);
        if rank.is_none_or(|rank| rank >= hint.record.from) && view.placed_since() > Epoch(0) {
            return Ok(true);
        }
        self.own.shared.background.pace.wait(charged_hint(&hint.key, &hint.record)).await;
        let when = (self.own.shared.cluster.placed_since(), DELIVERY_TIMEOUT);
        let call = self.own.ask_apply(self.index, &hint.key, &hint.record, ApplyKind::Hint, when);
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
