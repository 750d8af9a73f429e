//! Dropping: removes the records that this node no longer owns, and the hints for nodes that are no members any more, once a
//! change of members has ended.
//!
//! A record belongs on the ranks below its `from`. In the epoch after the last joint one, its owners of now have what any
//! owner of before has: reads and writes of the joint epochs went to both. Digests are kept by `from`, so a look costs no
//! read of the store while there is nothing to drop.
//!
//! A batch must not outlive its epoch: in the next one this node may own the records again, and count as compared. So it takes
//! the turn of a comparison, and looks at the epoch under it (decision 33.4).

use super::worker::{Work, Worker};
use crate::canary::{self, Canary};
use crate::coordinator::Coordinator;
use crate::replica::ReplicaError;
use kvorum_core::agreement::Epoch;
use kvorum_core::{NodeId, Partition};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two looks whether there is something to drop.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The pause after each partition: requests come first.
const PARTITION_WAIT: Duration = Duration::from_millis(5);
/// The pause after a failure of the store.
const FAILED_WAIT: Duration = Duration::from_secs(5);

/// The task of this node.
pub(crate) struct DropUnowned {
    own: Rc<Coordinator>,
}

impl DropUnowned {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        Self { own }
    }
}

/// Hints dropped at a time, in number and bytes.
const HINTS_LEN_MAX: usize = 1024;
const HINTS_BYTES_MAX: usize = 4 << 20;

impl DropUnowned {
    /// Drops some hints for the node `target`, which nobody delivers any more. They would hold tombstone GC back for ever.
    async fn drop_hints(&self, target: NodeId) -> Result<Work, ReplicaError> {
        let hints = &self.own.shared().hints;
        let batch = hints.next(target, None, HINTS_LEN_MAX, HINTS_BYTES_MAX).await?;
        if batch.is_empty() {
            return Ok(Work::Throttled(FAILED_WAIT));
        }
        hints.remove(target, batch).await?;
        Ok(Work::Busy)
    }
}

impl Worker for DropUnowned {
    async fn work(&mut self) -> Work {
        let shared = Arc::clone(self.own.shared());
        let (view, me) = (self.own.view(), shared.cluster.me());
        let keeps_hints = canary::is(Canary::HintsOutliveNodes);
        if view.epoch() > Epoch(0) && !view.is_joint() && view.has(me) && !keeps_hints {
            let mut waiting = shared.hints.waiting().into_iter();
            let gone = waiting.find(|(node, waiting)| waiting.count > 0 && view.slot_of(*node).is_none());
            if let Some((node, _)) = gone {
                return self.drop_hints(node).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, %node, "hints for a removed node could not be dropped");
                    Work::Throttled(FAILED_WAIT)
                });
            }
        }
        let is_settled =
            view.placed_since() > Epoch(0) && !view.is_joint() && !view.is_any_lacking() && view.has(me);
        // A node that was removed keeps what it has: an operator may need it.
        let may_drop = is_settled && !shared.cluster.is_removed();
        let Some(digests) = shared.replica.digests().filter(|_| may_drop) else { return Work::Idle };
        let rank = |partition| view.rank_of(partition, me).unwrap_or(u16::MAX);
        let mut all = Partition::all(shared.cluster.partition_bits());
        let Some(partition) = all.find(|partition| digests.has_upto(*partition, rank(*partition))) else {
            return Work::Idle;
        };
        let progress = &shared.background.anti_entropy.progress;
        let _turn = progress.turn().await;
        let is_same = shared.cluster.placed_since() == view.placed_since();
        if !is_same && !canary::is(Canary::BatchOutlivesEpoch) {
            return Work::Busy;
        }
        match shared.replica.drop_unowned(partition, rank(partition)).await {
            Ok(count) => {
                progress.unowned_dropped.fetch_add(count as u64, Ordering::Relaxed);
                // Without this, a row that cannot be removed would keep the task busy.
                Work::Throttled(if count > 0 { PARTITION_WAIT } else { FAILED_WAIT })
            }
            Err(error) => {
                tracing::debug!(%error, partition = partition.0, "records of other nodes could not be dropped");
                Work::Throttled(FAILED_WAIT)
            }
        }
    }

    async fn wait_for_work(&mut self) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
