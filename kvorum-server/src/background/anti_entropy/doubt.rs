//! Floors of other nodes: the consequences if another node has sealed further than this store has agreed.
//!
//! A node seals only up to where all nodes have agreed. So a store that has agreed less than another node has sealed
//! is not the store that confirmed it: it is older (a restored backup), or new. A row below that point may have been
//! purged everywhere else, or be all that is left of an acknowledged write; a timestamp cannot tell which.
//!
//! So from then on the store is not quorum-eligible, takes records below that point only by repair, and is
//! [compared](super::sync) with all nodes. A row is dropped once another node was compared that must hold it, has sealed past
//! it, and does not have it. A row on which no such node decides stays.

use super::Comparisons;
use crate::canary::{self, Canary};
use crate::cluster::VotesVerdict;
use crate::replica::{Floor, FloorStep, ReplicaError, SealedWord, Vote};
use kvorum_core::{Partition, Slot};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Comparisons {
    /// Processes a partition's floor on the node at `index`, which was asked at its own address. A floor in a request
    /// is never used this way: its sender cannot be verified.
    pub(crate) async fn meet_floor(
        &self,
        index: Slot,
        partition: Partition,
        theirs: Floor,
    ) -> Result<(), ReplicaError> {
        let ours = self.replica.floor(partition);
        let partitions: Arc<[u16]> = Arc::from([partition.0]);
        if theirs.sealed > ours.agreed {
            return self.doubt(index, vec![(partition, theirs.sealed)]).await;
        }
        // All nodes have agreed that far, including this store: it may follow by itself.
        if theirs.sealed > ours.sealed {
            let step = FloorStep::Seal { upto: theirs.sealed, partitions: Arc::clone(&partitions) };
            self.replica.step(step).await?;
        }
        if theirs.purged > ours.purged {
            self.replica.step(FloorStep::Release { upto: theirs.purged, partitions }).await?;
        }
        // The two replicas differ, perhaps by rows that one has purged already.
        let has_dead = self.replica.digests().is_some_and(|digests| digests.counts(partition).1 > 0);
        if theirs.purged.max(ours.purged) > 0 && has_dead {
            self.purges.add([partition.0]);
        }
        Ok(())
    }

    /// Notes that the node at `index` has sealed further than this store has agreed.
    pub(crate) async fn doubt(&self, index: Slot, words: Vec<(Partition, u64)>) -> Result<(), ReplicaError> {
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
        if self.cluster.registry().verdict() != VotesVerdict::Lacks {
            tracing::warn!(
                partitions = words.len(),
                node = self.cluster.url_of(index),
                "another node has purged records that this store never heard of: this store is new, or an older copy; it \
                 is not quorum-eligible until it has been compared with all nodes"
            );
            // From now on, even if the loss cannot be stored on disk.
            self.cluster.registry().lose();
            self.cluster.note_change();
            self.replica.store_votes(Vote::No).await?;
        }
        // A comparison that ends between the next two steps began without this doubt, and must not count for it. See
        // `compared_with`, which reads the doubts first.
        self.begin_again();
        for SealedWord { partition, rank, upto } in &words {
            tracing::debug!(
                partition,
                rank,
                upto,
                "another node has sealed further than this store has agreed"
            );
        }
        self.replica.step(FloorStep::Doubt { words: words.into() }).await?;
        self.begin_again();
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

    /// Ends the doubts of a store that has been compared with all nodes since they began: dead rows are gone, live ones
    /// are here. `doubts` are the partitions, each with the timestamp up to which it was in doubt.
    pub(crate) async fn adopt(&self, doubts: Vec<(u16, u64)>) -> Result<(), ReplicaError> {
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
            self.progress.kept_in_doubt.fetch_add(records, Ordering::Relaxed);
            tracing::warn!(
                records,
                partitions,
                "other nodes have purged beyond these records, and all replicas that hold them are older copies: the \
                 records are kept; some that were deleted may be back"
            );
        }
        Ok(())
    }

    /// Restarts all comparisons of a refill, because what they have shown no longer counts.
    fn begin_again(&self) {
        self.damage_repair.begin_again();
        self.progress.forget_refill();
    }
}
