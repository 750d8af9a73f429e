//! This node's replica as coordinators ask it: its own and, through [`super::serve`], those of other nodes.
//!
//! An answer counts only if keys are placed on this node as the request says, and if its store is quorum-eligible. Both may
//! change while the replica works, so they are judged afterwards, too.

use super::Stamps;
use crate::background::anti_entropy::Progress;
use crate::cluster::{Cluster, VotesVerdict};
use crate::peer::{ApplyKind, BallotReply, Held};
use crate::replica::{Applied, Prepared, RangeReader, Replica, ReplicaError, Source};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Key, Record, Slot, Version};
use std::sync::Arc;

/// This node's replica, and what decides whether its answers count.
pub struct LocalReplica {
    cluster: Arc<Cluster>,
    replica: Replica,
    stamps: Arc<Stamps>,
    /// How far a refill of the store has come.
    progress: Arc<Progress>,
}

/// Why an answer of this node's replica does not count.
#[derive(Debug)]
pub(crate) enum NotCounted {
    /// Keys are placed otherwise than when the request was planned. The replica may have taken the record.
    Moved,
    /// The store is not quorum-eligible. The replica may have taken the record.
    NotVoting,
    /// The replica failed.
    Replica(ReplicaError),
}

impl From<ReplicaError> for NotCounted {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}

impl LocalReplica {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        replica: Replica,
        stamps: Arc<Stamps>,
        progress: Arc<Progress>,
    ) -> Self {
        Self { cluster, replica, stamps, progress }
    }

    /// Applies `record` for a request that was planned in `epoch`, and that the caller has not seen to be over.
    ///
    /// A lost store cannot rule out that it had confirmed a newer record: it keeps this one, but does not count for the client.
    /// Nor does it prove anything by what it holds.
    pub(crate) async fn apply(
        &self,
        key: Key,
        record: Record,
        kind: ApplyKind,
        epoch: Epoch,
    ) -> Result<Applied, NotCounted> {
        let is_unread = self.is_unread(&key);
        let applied = self.replica.apply(key, record, source_of(kind)).await;
        // In the new epoch other nodes may be read.
        self.check_epoch(epoch)?;
        match applied? {
            Applied::Stored if is_own(kind) && !self.counts(is_unread) => Err(NotCounted::NotVoting),
            Applied::Superseded { by, .. } if is_own(kind) && !self.counts(is_unread) => {
                Ok(Applied::Contested { by })
            }
            applied => Ok(applied),
        }
    }

    /// The version that a write to `key` must exceed.
    pub(crate) async fn newest(&self, key: &Key, epoch: Epoch) -> Result<Version, NotCounted> {
        let is_unread = self.is_unread(key);
        self.check(epoch, is_unread)?;
        let newest = self.replica.newest(key).await;
        self.check(epoch, is_unread)?;
        Ok(newest?)
    }

    /// The record of `key`.
    pub(crate) async fn get(&self, key: &Key, epoch: Epoch) -> Result<Option<Record>, NotCounted> {
        self.check(epoch, false)?;
        let read = self.replica.get(key).await;
        // The store may have been set aside meanwhile, and the record read from its empty successor.
        self.check(epoch, false)?;
        Ok(read?)
    }

    /// A reader of start <= key < end. The store may be set aside while it reads.
    pub(crate) async fn scan(
        &self,
        start: Key,
        end: Option<Key>,
        epoch: Epoch,
    ) -> Result<RangeReader, NotCounted> {
        self.check(epoch, false)?;
        let reader = self.replica.scan(start, end).await;
        // The snapshot may be of the next epoch, in which other nodes hold the keys.
        self.check(epoch, false)?;
        Ok(reader?)
    }

    /// Promises `ballot`. Of a value over `value_bytes_max` only the header is returned.
    pub(crate) async fn prepare(
        &self,
        key: Key,
        ballot: Version,
        earlier: Vec<Version>,
        (value_bytes_max, epoch): (u32, Epoch),
    ) -> Result<BallotReply, NotCounted> {
        let is_unread = self.is_unread(&key);
        self.check(epoch, is_unread)?;
        let prepared = self.replica.prepare(key, ballot, earlier).await;
        // The store may have been set aside meanwhile, and its successor knows nothing.
        self.check(epoch, is_unread)?;
        Ok(match prepared? {
            Prepared::Denied { by } => {
                self.stamps.observe(by);
                BallotReply::Denied { by }
            }
            Prepared::Promised { held, has_held, has_built, memory_millis } => {
                let held = held.map(|record| Held::new(record, value_bytes_max));
                BallotReply::Promised { held, has_held, has_built, memory_millis }
            }
        })
    }

    /// Whether this replica's answer that it holds nothing newer counts for a write. It does not while the store lacks
    /// records that an earlier one confirmed. Nor does it while it is unknown whether there was an earlier one: the
    /// node that remembers it may be away. The same holds for a write to one replica, because an earlier write may have
    /// been for more. A store that joins counts for keys that it is not read for yet (`is_unread`).
    pub(crate) fn counts(&self, is_unread: bool) -> bool {
        self.cluster.votes() || is_unread && self.cluster.confirms_unread()
    }

    /// Whether this node's store joins, and `key` is not read from it yet.
    fn is_unread(&self, key: &Key) -> bool {
        self.cluster.confirms_unread() && self.cluster.view().is_unread(key, self.cluster.me())
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), NotCounted> {
        if self.cluster.is_placed_as(epoch) { Ok(()) } else { Err(NotCounted::Moved) }
    }

    fn check(&self, epoch: Epoch, is_unread: bool) -> Result<(), NotCounted> {
        self.check_epoch(epoch)?;
        if self.counts(is_unread) { Ok(()) } else { Err(NotCounted::NotVoting) }
    }

    /// Whether this node's store is quorum-eligible, as one word. It is `unknown` while the store is new or has met too
    /// few nodes since it started, and `lacks` when it is known to lack records of an earlier store; otherwise `yes`.
    pub fn eligibility(&self) -> &'static str {
        match self.cluster.registry().verdict() {
            VotesVerdict::Votes if self.cluster.has_met() => "yes",
            VotesVerdict::Votes | VotesVerdict::Unknown => "unknown",
            VotesVerdict::Lacks => "lacks",
        }
    }

    /// The reason why this node's store does not count, as other nodes and clients are told: measured, and only one.
    pub(crate) fn why_not_voting(&self) -> String {
        let cluster = &self.cluster;
        let urls = |nodes: Vec<Slot>| {
            nodes.into_iter().map(|index| cluster.url_of(index).to_owned()).collect::<Vec<_>>().join(", ")
        };
        if let Some(epoch) = cluster.removed_in() {
            return format!("it was removed from the cluster in epoch {epoch}");
        }
        if cluster.stands_down() {
            return "its damaged store is being quarantined".to_owned();
        }
        let verdict = cluster.registry().verdict();
        match verdict {
            VotesVerdict::Unknown => {
                let others = cluster.others().map(|index| cluster.id_of(index));
                let unheard: Vec<_> = cluster.registry().unheard(others).collect();
                let unheard = unheard.into_iter().filter_map(|node| self.cluster.slot_of(node)).collect();
                format!("new store: waiting to hear from {}", urls(unheard))
            }
            VotesVerdict::Lacks => {
                let (percent, left) = self.progress.of_refill(cluster.others());
                if cluster.joins() {
                    return format!("joins: filled from the other nodes ({percent} %)");
                }
                if percent == 100 && !left.is_empty() {
                    return format!("refilled after disk loss: waiting to compare with {}", urls(left));
                }
                format!("refilling after disk loss ({percent} %)")
            }
            VotesVerdict::Votes => {
                let (met, needed) = cluster.met_and_needed();
                format!("just started: waiting for a majority ({} of {needed})", met.min(needed))
            }
        }
    }
}

/// The source of a record that is applied as `kind`.
fn source_of(kind: ApplyKind) -> Source {
    match kind {
        ApplyKind::Write => Source::Writer,
        ApplyKind::Hint => Source::Copy,
        ApplyKind::ReadRepair => Source::Reader,
        ApplyKind::Ballot => Source::Ballot,
    }
}

/// Whether the record comes from the coordinator that made it.
///
/// A store that is not quorum-eligible may have lost ballots: that it holds something newer proves nothing then.
fn is_own(kind: ApplyKind) -> bool {
    matches!(kind, ApplyKind::Write | ApplyKind::Ballot)
}
