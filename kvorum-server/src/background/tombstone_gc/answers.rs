//! What a node answers to the leaders of rounds, and what it finds out about itself for the rounds that it leads.

use super::{STEP_TIMEOUT, TombstoneGc, Watermark, close, same};
use crate::canary::{self, Canary};
use crate::peer::{HeldBack, Reply, StepKind, Timestamp};
use crate::replica::{FloorStep, ReplicaError};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Partition, Slot};
use std::collections::BTreeMap;
use std::sync::Arc;

impl TombstoneGc {
    /// The partitions that the node at `index` leads, ascending.
    pub(super) fn led_by(&self, index: Slot) -> Vec<u16> {
        let view = self.parts.cluster.view();
        Partition::all(self.parts.cluster.partition_bits())
            .filter(|partition| view.preference_list(*partition).first() == Some(&index))
            .map(|partition| partition.0)
            .collect()
    }

    /// Those of `partitions`, ascending, that have hints on this node, each with a timestamp at or below the oldest
    /// hint's.
    pub(super) fn hinted(&self, partitions: &[u16]) -> Vec<(u16, u64)> {
        let mut hinted = self.parts.hints.oldest();
        hinted.retain(|(partition, _)| partitions.binary_search(partition).is_ok());
        // Cap a hint from the future at the clock reading: it must hold back everything that is stamped from now on.
        let reading = self.reading();
        for (_, oldest) in &mut hinted {
            *oldest = reading.min(*oldest);
        }
        hinted
    }

    /// Removes the dirty marks of other nodes' partitions in which all nodes have since agreed past the missing writes.
    pub(super) async fn forget_repaired_gaps(&self) -> Result<(), ReplicaError> {
        let me = self.parts.cluster.id_of(self.parts.cluster.me());
        let is_past = |partition: u16, clock| {
            self.agreed().words.get(usize::from(partition)).is_some_and(|word| *word >= clock)
        };
        self.parts
            .hints
            .forget_gaps(|target, partition, clock| target != me && is_past(partition, clock))
            .await
    }

    /// A timestamp below every version that this node stamps from now on.
    pub(super) fn reading(&self) -> u64 {
        self.parts.stamps.reading()
    }

    /// The digests, for each of `partitions`, of the records here that the node at `index` must share with the others.
    pub(super) async fn commons(
        &self,
        partitions: &[u16],
        index: Slot,
        upto: Option<u64>,
    ) -> Result<Vec<u64>, ReplicaError> {
        let (view, nodes) = (self.parts.cluster.view(), self.parts.cluster.node_count());
        let mut words = Vec::with_capacity(partitions.len());
        for partition in partitions.iter().copied().map(Partition) {
            let rank = view.rank_of(partition, index).unwrap_or(u16::MAX);
            words.push(match (upto, self.parts.replica.digests()) {
                (Some(upto), _) => self.parts.replica.common_upto(partition, rank, nodes, upto).await?,
                (None, Some(digests)) => digests.common(partition, rank, nodes),
                (None, None) => 0,
            });
        }
        Ok(words)
    }

    /// [`Self::commons_now`] for each node.
    pub(super) fn commons_of_others(&self, partitions: &[u16]) -> BTreeMap<Slot, Vec<u64>> {
        let of = |index| (index, self.commons_now(partitions, index));
        self.parts.cluster.others().map(of).collect()
    }

    pub(super) fn commons_now(&self, partitions: &[u16], index: Slot) -> Vec<u64> {
        let Some(digests) = self.parts.replica.digests() else { return Vec::new() };
        let view = self.parts.cluster.view();
        let rank = |partition| view.rank_of(partition, index).unwrap_or(u16::MAX);
        let nodes = view.node_count();
        let common = |partition: &u16| {
            let partition = Partition(*partition);
            digests.common(partition, rank(partition), nodes)
        };
        partitions.iter().map(common).collect()
    }

    /// For each of `partitions`, whether the digest in `theirs` of the node at `index` equals this node's. Compares the
    /// digest from before the call and the current one: writes under way change either, and one match is enough.
    pub(super) fn agree(
        &self,
        partitions: &[u16],
        index: Slot,
        before: Option<&Vec<u64>>,
        theirs: &[u64],
    ) -> Vec<bool> {
        let before = same(before.map_or(&[][..], |words| words), theirs, partitions.len());
        let now = same(&self.commons_now(partitions, index), theirs, partitions.len());
        before.into_iter().zip(now).map(|(before, now)| before || now).collect()
    }

    /// Takes a step on this node.
    pub(super) async fn step(
        &self,
        kind: StepKind,
        round: u64,
        upto: u64,
        partitions: &[u16],
    ) -> Result<bool, ReplicaError> {
        let listed: Arc<[u16]> = partitions.into();
        let step = match kind {
            StepKind::Agree => FloorStep::Agree { round, upto, partitions: listed },
            StepKind::Seal => FloorStep::Seal { upto, partitions: listed },
            StepKind::Release => FloorStep::Release { upto, partitions: listed },
        };
        // A store that lacks records cannot confirm that it holds the same.
        if !self.parts.cluster.votes() {
            return Ok(false);
        }
        if kind == StepKind::Agree && self.holds_unowned(partitions) && !canary::is(Canary::UnownedIgnored) {
            tracing::debug!("records that this node no longer owns hold a round of tombstone GC back");
            return Ok(false);
        }
        let is_done = self.parts.replica.step(step).await?;
        if is_done && kind == StepKind::Release {
            self.purges.add(partitions.iter().copied());
        }
        Ok(is_done)
    }

    /// Whether this node holds records of `partitions` that it no longer owns. They are in no digest that is compared, and
    /// older than what the owners have: if the owners purged a tombstone above one, it would come back with this node's next
    /// turn as an owner.
    fn holds_unowned(&self, partitions: &[u16]) -> bool {
        let (view, me) = (self.parts.cluster.view(), self.parts.cluster.me());
        let Some(digests) = self.parts.replica.digests().filter(|_| view.placed_since() > Epoch(0)) else {
            return false;
        };
        let rank = |partition| view.rank_of(partition, me).unwrap_or(u16::MAX);
        partitions
            .iter()
            .copied()
            .map(Partition)
            .any(|partition| digests.has_upto(partition, rank(partition)))
    }

    /// Answers a survey by the node at `leader`.
    pub(crate) fn surveyed(
        &self,
        leader: Slot,
        agreed: Vec<Timestamp>,
        held_by: Option<(u16, HeldBack)>,
    ) -> Reply {
        let led = self.led_by(leader);
        {
            let mut known = self.agreed();
            known.hear(leader, held_by, self.parts.clock.mono());
            for (partition, Timestamp(said)) in led.iter().zip(agreed) {
                if let Some(word) = known.words.get_mut(usize::from(*partition)) {
                    *word = said.max(*word);
                }
            }
        }
        let hinted = self.hinted(&led).into_iter().map(|(partition, oldest)| (partition, Timestamp(oldest)));
        // Read the clock before the digests: every record in the digests was stamped before the reading, or above it.
        let (reading, votes) =
            (self.reading(), self.parts.cluster.votes() && !self.parts.timestamps.stands_down());
        let digests = self.commons_now(&led, self.parts.cluster.me());
        Reply::Surveyed { reading: Timestamp(reading), hinted: hinted.collect(), votes, digests }
    }

    /// Closes partitions here (except in round 0) and answers with their digests.
    pub(crate) async fn closed(
        &self,
        round: u64,
        upto: u64,
        by_scan: bool,
        partitions: &[u16],
    ) -> Result<Option<Reply>, ReplicaError> {
        if round != 0
            && (!self.parts.cluster.votes()
                || !self.parts.replica.step(close(round, upto, partitions)).await?)
        {
            return Ok(None);
        }
        let words = self.commons(partitions, self.parts.cluster.me(), by_scan.then_some(upto)).await?;
        Ok(Some(Reply::DigestList(words)))
    }

    /// Takes a step on the order of a leader.
    pub(crate) async fn stepped(
        &self,
        kind: StepKind,
        round: u64,
        upto: u64,
        partitions: &[u16],
    ) -> Result<Reply, ReplicaError> {
        Ok(Reply::Stepped(self.step(kind, round, upto, partitions).await?))
    }

    /// The lowest watermark of all partitions.
    pub fn oldest_watermark(&self) -> Option<Watermark> {
        self.watermarks().into_iter().min_by_key(|watermark| watermark.agreed)
    }

    /// The watermark of each partition, and the node that holds it back. A node that is alone agrees with itself.
    pub fn watermarks(&self) -> Vec<Watermark> {
        let view = self.parts.cluster.view();
        let is_alone = view.member_count() == 1;
        let reading = self.reading();
        let agreed = self.agreed();
        let now = self.parts.clock.mono();
        // Twice the time of a round, including the longest wait in it.
        let silent_after = 2 * (self.parts.interval + STEP_TIMEOUT);
        // Shortly after the start, a silent leader may not have had time for a round yet.
        let is_young = now <= self.begun + silent_after;
        let silence = if is_young { HeldBack::NotHeard } else { HeldBack::Away };
        Partition::all(self.parts.cluster.partition_bits())
            .map(|partition| {
                let leader = view.preference_list(partition).first().copied();
                let leader = leader.unwrap_or(self.parts.cluster.me());
                let of_leader = agreed.by_leader.get(&leader);
                let heard = of_leader.map(|(_, heard)| *heard);
                let is_silent = heard.is_none_or(|at| now > at + silent_after);
                let held_by = if is_alone {
                    None
                } else if is_silent && leader != self.parts.cluster.me() {
                    Some((leader, silence))
                } else {
                    let held_by = of_leader.and_then(|(held_by, _)| *held_by);
                    held_by.map(|(node, why)| (Slot(node), why))
                };
                let word = agreed.words.get(usize::from(partition.0)).copied().unwrap_or_default();
                let word = if is_alone { reading } else { word };
                Watermark { partition, agreed: word, leader, held_by }
            })
            .collect()
    }
}
