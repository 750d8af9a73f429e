//! Floors met: what follows when another node has sealed further than this store has settled.
//!
//! A node seals only what all nodes have settled. So a store that has not settled as far as another has sealed is not the
//! one that confirmed it: it is older (a restored backup), or new. What it holds below may be what was purged everywhere
//! else, or all that is left of an acknowledged write, and a word cannot tell which. So the store does not vote from then on,
//! takes nothing below but by repair, and is compared with all nodes ([`super::heal`]). A row goes once another
//! node was compared that must hold it, has sealed past it, and does not have it. A row about which no such node decides
//! stays.

use super::calls::Cause;
use super::{Coordinator, Shared};
use crate::canary::{self, Canary};
use crate::cluster::VotesVerdict;
use crate::peer::{Reply, Request};
use crate::replica::{Floor, FloorStep, ReplicaError, SealedWord, Vote};
use kvorum_core::{NodeIndex, Partition};
use std::rc::Rc;
use std::sync::atomic::Ordering;
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

    /// Asks the node at `index` how far it has sealed, and notes what that puts in doubt.
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
        let ahead =
            (0u16..).zip(ours.iter().zip(theirs)).filter(|(_, (ours, sealed))| *sealed > ours.settled);
        let words = ahead.map(|(partition, (_, sealed))| (Partition(partition), sealed)).collect();
        self.shared.doubt(index, words).await.map_err(Cause::Replica)?;
        self.shared.cluster.note_floors_met(index);
        self.shared.record_disk();
        Ok(())
    }
}

impl Shared {
    /// Takes in how far a partition's past is finished at the node at `index`, which was asked at its own address. What
    /// somebody says in a request is not taken in: who it was cannot be known.
    pub(super) async fn meet_floor(
        &self,
        index: NodeIndex,
        partition: Partition,
        theirs: Floor,
    ) -> Result<(), ReplicaError> {
        let ours = self.replica.floor(partition);
        let partitions: Arc<[u16]> = Arc::from([partition.0]);
        if theirs.sealed > ours.settled {
            return self.doubt(index, vec![(partition, theirs.sealed)]).await;
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

    /// Takes in that the node at `index` has sealed further than this store has settled.
    async fn doubt(&self, index: NodeIndex, words: Vec<(Partition, u64)>) -> Result<(), ReplicaError> {
        let word = |(partition, upto)| {
            let rank = self.rank_of(index, partition);
            SealedWord { partition: partition.0, rank, upto }
        };
        let words = self.replica.unheard_of(words.into_iter().map(word).collect());
        if words.is_empty() {
            return Ok(());
        }
        if canary::is(Canary::OlderStoreMerges) {
            let floors = words.iter().map(|word| (word.partition, word.upto)).collect();
            return self.replica.step(FloorStep::Adopt { floors }).await.map(drop);
        }
        if self.cluster.roster().verdict() != VotesVerdict::Lacks {
            tracing::warn!(
                partitions = words.len(),
                node = self.cluster.url_of(index),
                "another node has purged what this store has not heard of: this store is older than the one that it \
                 knew, so it does not vote until it has been compared with all nodes"
            );
            // From now on, whatever the disk says of it.
            self.cluster.roster().lose();
            self.replica.store_votes(Vote::No).await?;
        }
        // A comparison that ends between the two was begun without this doubt, and must not count with it. See
        // `compared_with`, which reads the doubts first.
        self.forget_refill();
        for SealedWord { partition, rank, upto } in &words {
            tracing::debug!(
                partition,
                rank,
                upto,
                "another node has sealed further than this store has settled"
            );
        }
        self.replica.step(FloorStep::Doubt { words: words.into() }).await?;
        self.forget_refill();
        #[cfg(feature = "canaries")]
        if canary::is(Canary::OlderStoreDrops) {
            let floors = self.replica.doubts();
            for (partition, _) in &floors {
                self.replica.drop_all_doubted(Partition(*partition)).await?;
            }
            self.replica.step(FloorStep::Adopt { floors: floors.into() }).await?;
        }
        Ok(())
    }

    /// Ends the doubts of a store that has been compared with all nodes since they began: what is dead is gone, what is alive is
    /// here. `doubts` are the partitions, and up to where.
    pub(super) async fn adopt(&self, doubts: Vec<(u16, u64)>) -> Result<(), ReplicaError> {
        let (mut records, mut partitions) = (0, 0);
        for (partition, upto) in &doubts {
            let kept = self.replica.kept_in_doubt(Partition(*partition), *upto).await?;
            records += kept;
            partitions += u64::from(kept > 0);
        }
        if !doubts.is_empty() {
            self.replica.step(FloorStep::Adopt { floors: doubts.into() }).await?;
        }
        if records > 0 {
            self.metrics.kept_in_doubt.fetch_add(records, Ordering::Relaxed);
            tracing::warn!(
                records,
                partitions,
                "nodes that do not hold these records had purged past them, and all replicas that hold them are older \
                 copies: the records were kept, and some that were deleted since may be back"
            );
        }
        Ok(())
    }

    /// Makes every comparison of a refill begin anew.
    fn forget_refill(&self) {
        self.mending.begin_again();
        self.refilled_from.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
