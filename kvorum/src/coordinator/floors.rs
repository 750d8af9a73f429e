//! Floors met: what follows when another node's floor is ahead of this one's.
//!
//! A node seals only what all nodes have settled. So a store that has not settled as far as another has sealed is not the
//! one that confirmed it: it is older (a restored backup), or new. What it holds below may be what was purged
//! everywhere else. It does not vote from then on, drops what others hold as well, and is refilled.

use super::calls::Cause;
use super::{Coordinator, Shared};
use crate::canary::{self, Canary};
use crate::cluster::VotesVerdict;
use crate::peer::{Reply, Request};
use crate::replica::{Floor, FloorStep, ReplicaError, Vote};
use kvorum_core::{NodeIndex, Partition};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a list of floors may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether a node that has not been met answers by now.
const MEET_LOOK: Duration = Duration::from_millis(100);
/// The same while this node waits to vote.
const MEET_LOOK_UNDECIDED: Duration = Duration::from_millis(20);

impl Coordinator {
    /// Meets the node at `index`, once in this node's life, as soon as the two can talk. It cannot be paused: this store
    /// does not vote before.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service; what was met stays met.
    pub(super) async fn meet_once(self: Rc<Self>, index: NodeIndex) {
        let cluster = &self.shared.cluster;
        loop {
            // Slept first: a node that starts meets those that answer at once before it takes their hints.
            tokio::time::sleep(if cluster.is_undecided() { MEET_LOOK_UNDECIDED } else { MEET_LOOK }).await;
            if cluster.has_met_floors_of(index) {
                return;
            }
            if self.is_ready(index)
                && let Err(cause) = self.meet_floors(index).await
            {
                let node = cluster.url_of(index);
                tracing::debug!(node, %cause, "a node did not say how far it has sealed");
            }
        }
    }

    /// Asks the node at `index` how far it has sealed, and adopts what this store lacks.
    pub(super) async fn meet_floors(&self, index: NodeIndex) -> Result<(), Cause> {
        let Some(link) = self.link(index) else { return Err(Cause::Unreachable) };
        let theirs = match link.call(&Request::Floors, LIST_TIMEOUT).await {
            Ok(Reply::FloorList(words)) => words,
            Ok(_) => return Err(Cause::OffTopic),
            Err(error) => return Err(Cause::Call(error)),
        };
        let Some(ours) = self.shared.replica.believed_floors() else { return Ok(()) };
        if theirs.len() != ours.len() {
            return Err(Cause::OffTopic);
        }
        let lacking: Vec<(u16, u64)> = (0u16..)
            .zip(ours.iter().zip(theirs))
            .filter(|(_, (ours, sealed))| *sealed > ours.settled)
            .map(|(partition, (_, sealed))| (partition, sealed))
            .collect();
        if !lacking.is_empty() {
            self.shared.adopt(lacking).await.map_err(Cause::Replica)?;
        }
        self.shared.cluster.note_floors_met(index);
        self.shared.record_disk();
        Ok(())
    }
}

impl Shared {
    /// Takes in how far a partition's past is finished at another node.
    pub(super) async fn meet_floor(&self, partition: Partition, theirs: Floor) -> Result<(), ReplicaError> {
        let ours = self.replica.floor(partition);
        let partitions: Arc<[u16]> = Arc::from([partition.0]);
        if theirs.sealed > ours.settled {
            return self.adopt(vec![(partition.0, theirs.sealed)]).await;
        }
        // All have settled that far, this store among them: it may follow by itself.
        if theirs.sealed > ours.sealed {
            let step = FloorStep::Seal { upto: theirs.sealed, partitions: Arc::clone(&partitions) };
            self.replica.step(step).await?;
        }
        if theirs.purged > ours.purged {
            self.replica.step(FloorStep::Release { upto: theirs.purged, partitions }).await?;
        }
        // The two differ: by what one has removed already, perhaps.
        let has_dead = self.replica.digests().is_some_and(|digests| digests.counts(partition).1 > 0);
        if theirs.purged.max(ours.purged) > 0 && has_dead {
            self.settling.purge_soon([partition.0]);
        }
        Ok(())
    }

    /// Takes up floors that this store should have had.
    async fn adopt(&self, floors: Vec<(u16, u64)>) -> Result<(), ReplicaError> {
        if canary::is(Canary::OlderStoreMerges) {
            return self.replica.step(FloorStep::Adopt { floors: floors.into() }).await.map(|_| ());
        }
        if self.cluster.roster().verdict() != VotesVerdict::Lacks {
            tracing::warn!(
                partitions = floors.len(),
                "other nodes have purged what this store has not heard of: it is older than the one that they knew, \
                 so it does not vote until it has been refilled"
            );
            // From now on, whatever the disk says of it.
            self.cluster.roster().lose();
            self.replica.store_votes(Vote::No).await?;
        }
        // What was compared before is dropped now; what is compared meanwhile may be.
        self.forget_refill();
        let adopted = self.replica.adopt(floors.into()).await;
        self.forget_refill();
        adopted
    }

    /// Makes every comparison of a refill begin anew.
    fn forget_refill(&self) {
        self.mending.begin_again();
        self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
