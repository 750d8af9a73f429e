//! Floors met: what follows when another node's floor is ahead of this one's.
//!
//! A node seals only what all nodes have settled. So a store that has not settled as far as another has sealed is not the
//! one that confirmed it: it is older (a restored backup), or new. What it holds below may be what was purged
//! everywhere else. It does not vote from then on, drops what others hold as well, and is refilled.

use super::Shared;
use super::calls::Cause;
use crate::canary::{self, Canary};
use crate::cluster::VotesVerdict;
use crate::peer::{Link, Reply, Request};
use crate::replica::{Floor, FloorStep, ReplicaError, Vote};
use kvorum_core::Partition;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a list of floors may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

impl Shared {
    /// Asks a peer how far it has sealed, and adopts what this store lacks.
    pub(super) async fn exchange_floors(&self, link: &Link) -> Result<(), Cause> {
        let theirs = match link.call(&Request::Floors, LIST_TIMEOUT).await {
            Ok(Reply::FloorList(words)) => words,
            Ok(_) => return Err(Cause::OffTopic),
            Err(error) => return Err(Cause::Call(error)),
        };
        let Some(ours) = self.replica.floors().map(crate::replica::Floors::all) else { return Ok(()) };
        let lacking: Vec<(u16, u64)> = (0u16..)
            .zip(ours.iter().zip(theirs))
            .filter(|(_, (ours, sealed))| *sealed > ours.settled)
            .map(|(partition, (_, sealed))| (partition, sealed))
            .collect();
        if lacking.is_empty() { Ok(()) } else { self.adopt(lacking).await.map_err(Cause::Replica) }
    }

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
