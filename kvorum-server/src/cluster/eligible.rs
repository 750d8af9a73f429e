//! Whether this node's store is quorum-eligible ("votes"), and what it is not asked for while it is not.
//!
//! The [registry](super::votes) knows what other nodes remember of its store. To that comes what this run has met, what the
//! configuration says of the store, and whether it is about to be set aside.

use super::{Cluster, VotesVerdict};
use crate::canary::{self, Canary};
use crate::peer::{Hello, JOINING};
use kvorum_core::agreement::{Epoch, Voter};
use kvorum_core::configuration::MemberState;
use kvorum_core::{NodeId, Slot};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Cluster {
    /// Whether this node's store is quorum-eligible. It is not until it has met a majority in this run: it may be an
    /// older copy that has not heard of purges since.
    pub fn votes(&self) -> bool {
        self.has_met()
            && !self.stands_down.load(Ordering::SeqCst)
            && !self.is_removed()
            && (!self.is_marked() || canary::is(Canary::MarkedStoreCounts))
            && self.registry().verdict() == VotesVerdict::Votes
    }

    /// Whether the node at `index` joins in the change under way.
    pub fn is_joining(&self, index: Slot) -> bool {
        let view = self.view();
        let mut members = view.configuration().members.iter();
        members.any(|member| member.slot == index && member.state == MemberState::Joining)
    }

    /// Whether this node's store joins, and confirms writes of keys that it is not read for yet, before it is
    /// quorum-eligible: see [`View::is_unread`].
    pub fn confirms_unread(&self) -> bool {
        self.joins() && self.has_met() && !self.stands_down() && !canary::is(Canary::JoinerConfirmsNothing)
    }

    /// Whether this node's store joins in the change under way, and is not marked as lacking records.
    pub fn joins(&self) -> bool {
        self.is_joining.load(Ordering::SeqCst)
    }

    /// Whether this node's store, which is not quorum-eligible, soon will be by itself: requests that need it ask again. A store
    /// that joins is read only once it was compared; from then on it counts in a moment.
    pub fn is_early(&self) -> bool {
        self.is_undecided() || self.joins() && self.view().is_read_anew()
    }

    /// Whether the configuration says that this node's store lacks records: a change did not wait for it.
    pub fn is_marked(&self) -> bool {
        let member = self.id_of(self.me);
        self.view().configuration().member(member).is_some_and(|member| member.lacks)
    }

    /// Whether this node was removed from the cluster, or its store was.
    pub fn is_removed(&self) -> bool {
        self.removed_in().is_some()
    }

    /// The epoch that removed this node, or its store, from the cluster.
    pub fn removed_in(&self) -> Option<Epoch> {
        Some(Epoch(self.removed_in.load(Ordering::SeqCst))).filter(|epoch| *epoch > Epoch(0))
    }

    /// Whether a store of `node` was removed from the cluster.
    pub fn was_member(&self, node: NodeId) -> bool {
        self.view().configuration().retired.iter().any(|voter| voter.node == node)
    }

    /// Whether the node with the handshake message `theirs` was removed with its store. It may ask for configurations, so that
    /// it learns of it, and nothing else.
    pub fn was_removed(&self, theirs: &Hello) -> bool {
        let voter = Voter { node: theirs.node, store: theirs.store };
        theirs.topology != JOINING && self.view().configuration().is_retired(voter)
    }

    /// Whether this node has met a majority in this run, itself included.
    pub fn has_met(&self) -> bool {
        self.has_met.load(Ordering::SeqCst)
    }

    /// Whether the eligibility of this node's store is still open. It is while the store is new and some node has not
    /// said what it knows of an older one, or while this node has not met a majority.
    pub fn is_undecided(&self) -> bool {
        match self.registry().verdict() {
            VotesVerdict::Unknown => true,
            VotesVerdict::Votes => !self.has_met(),
            // One that joins confirms what it is not read for, once it has met a majority.
            VotesVerdict::Lacks => self.joins() && !self.has_met(),
        }
    }

    /// Notes that the configurations of the store are known: a run that is alone need meet nobody, and one that began alone must,
    /// once others are there.
    pub(crate) fn begin_run(&self) {
        let is_alone = self.member_count() == 1;
        if is_alone || self.genesis.node_count() == 1 {
            self.has_met.store(is_alone, Ordering::SeqCst);
        }
    }

    /// Makes the store eligible without meeting a majority: the caller vouches that it is no older copy.
    pub fn trust_store(&self) {
        self.has_met.store(true, Ordering::SeqCst);
        self.note_change();
    }

    /// Notes that the node at `index` has said up to where it has sealed, and that this store's eligibility already
    /// reflects it.
    pub fn note_floors_met(&self, index: Slot) {
        if let Some(peer) = self.peer(index) {
            peer.floors_met.store(true, Ordering::SeqCst);
        }
        self.judge_met();
        self.note_change();
    }

    /// Judges whether this node has met a majority of the members of now: of fewer ones, after some have left. One that is
    /// left alone has.
    pub(crate) fn judge_met(&self) {
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        if !self.is_removed() && met >= usize::from(self.member_count() / 2) {
            self.has_met.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the node at `index` has said, in this run, up to where it has sealed.
    pub fn has_met_floors_of(&self, index: Slot) -> bool {
        self.peer(index).is_some_and(|peer| peer.floors_met.load(Ordering::SeqCst))
    }

    /// Sets whether this node's store is temporarily not eligible, whatever else is known: it is about to be set aside.
    pub fn stand_down(&self, stands_down: bool) {
        self.stands_down.store(stands_down, Ordering::SeqCst);
    }

    /// Whether this node's store is known to lack records that an earlier one held.
    pub fn lacks(&self) -> bool {
        self.registry().verdict() == VotesVerdict::Lacks
    }

    /// Notes why the store of the node at `index` does not count, as that node says.
    pub fn note_not_voting(&self, index: Slot, reason: String) {
        if let Some(peer) = self.peer(index) {
            *peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        }
    }

    /// The reason why the store of the node at `index` did not count, as it last said.
    pub fn not_voting(&self, index: Slot) -> String {
        let reason = self
            .peer(index)
            .map(|peer| peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner).clone());
        reason.unwrap_or_default()
    }

    /// The number of nodes that have said in this run up to where they have sealed, and the majority that is needed.
    /// Both include this node.
    pub fn met_and_needed(&self) -> (usize, usize) {
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        (met + 1, usize::from(self.member_count() / 2) + 1)
    }

    /// Whether the store is about to be set aside.
    pub fn stands_down(&self) -> bool {
        self.stands_down.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::PeerRegistry;
    use crate::replica::Vote;
    use kvorum_core::{Run, StoreSeen, Topology};
    use std::collections::BTreeMap;

    /// Whatever an earlier run found out: a node becomes eligible once it has met a majority, itself included. Each
    /// node counts once, however often it is met.
    #[test]
    fn nodes_vote_once_they_have_met_a_majority() {
        for (nodes, needed) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3)] {
            let urls: Vec<String> = (0..nodes).map(|node| format!("http://n-{node}:1")).collect();
            let topology = Topology::of_urls(&urls).unwrap();
            let me = NodeId::of_url(&urls[0]);
            let own = StoreSeen { node: me, store: 11, run: Run::default() };
            let registry = PeerRegistry::new(own, nodes, BTreeMap::new(), Vote::Yes);
            let index = Slot(topology.index_of(me).unwrap().0);
            let cluster = Cluster::new("test".to_owned(), None, topology, index, 11, registry);
            for (met, other) in cluster.others().enumerate() {
                assert_eq!(
                    (cluster.votes(), cluster.is_undecided()),
                    (met >= needed, met < needed),
                    "{nodes}"
                );
                cluster.note_floors_met(other);
                cluster.note_floors_met(other);
            }
            assert!(cluster.votes() && !cluster.is_undecided(), "{nodes}");
            cluster.registry().lose();
            assert!(!cluster.votes() && !cluster.is_undecided(), "{nodes}");
        }
    }
}
