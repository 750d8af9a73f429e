//! The cluster as this node sees it: who belongs, where keys belong, who is known to have which store, and whether
//! this node's own store votes.
//!
//! It decides and remembers; it sends nothing. The set of nodes is fixed while a node runs.

mod clock_offset;
mod contact;
mod votes;

pub use clock_offset::{ClockFilter, ClockOffset, Exchange};
pub use contact::{Contact, News};
pub use votes::{Heard, Roster, Verdict as VotesVerdict};

use crate::canary::{self, Canary};
use crate::peer::{HandshakeError, Hello, PROTOCOL};
use kvorum_core::{
    ClusterId, Key, NodeId, NodeIndex, Partition, Placement, Quorum, Token, Topology, UnixMillis,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// This is what all of a node's threads know of the cluster.
pub struct Cluster {
    name: String,
    id: OnceLock<ClusterId>,
    // Guards the nodes that have said in this run that they know no cluster id; held for an insertion.
    without_id: Mutex<BTreeSet<NodeIndex>>,
    topology: Topology,
    placement: Placement,
    me: NodeIndex,
    store_id: u128,
    peers: Vec<Peer>,
    // Guards who was seen with which store; held for a look-up or a merge of a few entries.
    roster: Mutex<Roster>,
    stands_down: AtomicBool,
    /// Whether as many other nodes have been heard of what they purged as make a majority with this one.
    has_met: AtomicBool,
}

/// What is known of one node of the cluster.
#[derive(Debug, Default)]
pub struct Peer {
    // Guards the exchanges that show its wall clock; held for a look at a few numbers.
    clock: Mutex<ClockFilter>,
    // Guards what the log has said of the contact with it; held for a look at a few numbers and texts.
    contact: Mutex<Contact>,
    // Guards why its store did not count when it said so last; held to read or write a text.
    not_voting: Mutex<String>,
    /// Whether its clock has been reported as too far off.
    pub is_clock_reported: AtomicBool,
    /// Calls to it that failed or were not answered in time.
    pub failures: AtomicU64,
    /// Hints delivered to it.
    pub hints_delivered: AtomicU64,
    /// Whether its latest sign of life said that its store votes.
    pub votes: AtomicBool,
    /// Whether this node has heard, in this life, how far it has sealed.
    pub floors_met: AtomicBool,
}

/// This is the plan of one request: fixed once made.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The key's partition.
    pub partition: Partition,
    /// The replicas, best first: as many as the quorum's `from`.
    pub replicas: &'a [NodeIndex],
    /// How many must confirm.
    pub quorum: Quorum,
}

impl Cluster {
    /// The cluster `name` of `topology`, seen from the node at `me` whose store is `store_id`; `id` is the cluster's id,
    /// where the store knows it.
    pub fn new(
        name: String,
        id: Option<ClusterId>,
        topology: Topology,
        me: NodeIndex,
        store_id: u128,
        roster: Roster,
    ) -> Self {
        let placement = Placement::initial(&topology);
        let peers = topology.members().iter().map(|_| Peer::default()).collect();
        let is_alone = topology.node_count() == 1;
        Self {
            name,
            id: id.map_or_else(OnceLock::new, OnceLock::from),
            without_id: Mutex::default(),
            topology,
            placement,
            me,
            store_id,
            peers,
            roster: Mutex::new(roster),
            stands_down: AtomicBool::new(false),
            has_met: AtomicBool::new(is_alone),
        }
    }

    /// The nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> u16 {
        self.topology.node_count()
    }

    /// This node's place among them.
    pub fn me(&self) -> NodeIndex {
        self.me
    }

    /// The id of the node at `index`.
    pub fn id_of(&self, index: NodeIndex) -> NodeId {
        self.topology.member(index).map_or(NodeId(0), |member| member.id)
    }

    /// The URL of the node at `index`.
    pub fn url_of(&self, index: NodeIndex) -> &str {
        self.topology.member(index).map_or("", |member| &member.url)
    }

    /// All nodes but this one.
    pub fn others(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.node_count()).map(NodeIndex).filter(|index| *index != self.me)
    }

    /// What is known of the node at `index`.
    pub fn peer(&self, index: NodeIndex) -> Option<&Peer> {
        self.peers.get(usize::from(index.0))
    }

    /// The partition of `key`.
    pub fn partition_of(&self, key: &Key) -> Partition {
        Token::of(key.as_ref()).partition(self.topology.partition_bits())
    }

    /// The nodes that hold keys of `partition`, best first: all of them, of which a request uses a prefix.
    pub fn preference_list(&self, partition: Partition) -> &[NodeIndex] {
        self.placement.preference_list(partition)
    }

    /// The rank of the node at `index` for `partition`.
    pub fn rank_of(&self, partition: Partition, index: NodeIndex) -> Option<u16> {
        self.placement.rank_of(partition, index)
    }

    /// Plans a request.
    pub fn plan(&self, key: &Key, quorum: Quorum) -> Plan<'_> {
        let partition = self.partition_of(key);
        Plan { partition, replicas: self.placement.replicas(partition, quorum.from()), quorum }
    }

    /// What this node says of itself when it meets another.
    pub fn hello(&self, clock: UnixMillis) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster: self.name.clone(),
            cluster_id: self.id(),
            node: self.id_of(self.me),
            topology: self.topology.hash(),
            store: self.store_id,
            run: self.roster().run(),
            members: self.topology.members().iter().map(|member| member.url.clone()).collect(),
            clock,
        }
    }

    /// Judges whether this node talks to the one that says `theirs`, of which `ours` is what it says itself.
    ///
    /// # Errors
    /// What differs, or whose store the other one has.
    pub fn admit(&self, ours: &Hello, theirs: &Hello) -> Result<(), HandshakeError> {
        ours.check(theirs)?;
        match self.roster().owner_of(theirs.store, theirs.node) {
            Some(owner) if !canary::is(Canary::StoreOfAnotherNode) => Err(HandshakeError::StoreOfAnother {
                theirs: theirs.name_of(theirs.node),
                store: theirs.store,
                owner: ours.name_of(owner),
            }),
            _ => Ok(()),
        }
    }

    /// The random id of the cluster; none while no node has made one.
    pub fn id(&self) -> Option<ClusterId> {
        self.id.get().copied()
    }

    /// Takes up the cluster's id, which has been stored durably. The first one stays.
    pub fn adopt_id(&self, id: ClusterId) {
        let _ = self.id.set(id);
    }

    /// Notes that the node at `index` has said that it knows no cluster id. True when this node is to make one: it is the
    /// first of the members, and all others have said so in this run.
    pub fn note_without_id(&self, index: NodeIndex) -> bool {
        let mut without = self.without_id.lock().unwrap_or_else(PoisonError::into_inner);
        without.insert(index);
        self.me == NodeIndex(0) && without.len() + 1 == usize::from(self.node_count())
    }

    /// Who was seen with which store, and what follows for this node's vote.
    pub fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node's store votes in reads. Until it has met a majority in this life it does not: it may be an older
    /// copy, and have been told nothing of what was purged since.
    pub fn votes(&self) -> bool {
        self.has_met()
            && !self.stands_down.load(Ordering::SeqCst)
            && self.roster().verdict() == VotesVerdict::Votes
    }

    /// Whether this node has met a majority in this life, itself among them.
    pub fn has_met(&self) -> bool {
        self.has_met.load(Ordering::SeqCst)
    }

    /// Whether it is still open if this node's store votes: it is new and not all others have said what they know of it, or
    /// it has not met a majority.
    pub fn is_undecided(&self) -> bool {
        match self.roster().verdict() {
            VotesVerdict::Unknown => true,
            VotesVerdict::Votes => !self.has_met(),
            VotesVerdict::Lacks => false,
        }
    }

    /// Spares the store from meeting a majority: somebody vouches that it is no older copy.
    pub fn trust_store(&self) {
        self.has_met.store(true, Ordering::SeqCst);
    }

    /// Notes that the node at `index` has said how far it has sealed, and that what follows for this store's vote has been
    /// drawn from it.
    pub fn note_floors_met(&self, index: NodeIndex) {
        if let Some(peer) = self.peer(index) {
            peer.floors_met.store(true, Ordering::SeqCst);
        }
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        if met >= usize::from(self.node_count() / 2) {
            self.has_met.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the node at `index` has said so in this life.
    pub fn has_met_floors_of(&self, index: NodeIndex) -> bool {
        self.peer(index).is_some_and(|peer| peer.floors_met.load(Ordering::SeqCst))
    }

    /// Makes this node's store not vote for a while, whatever it knows: it is about to be set aside.
    pub fn stand_down(&self, stands_down: bool) {
        self.stands_down.store(stands_down, Ordering::SeqCst);
    }

    /// Whether this node's store is known to lack what an earlier one held.
    pub fn lacks(&self) -> bool {
        self.roster().verdict() == VotesVerdict::Lacks
    }

    /// What is known of the contact with the node at `index`; `note` may change it.
    pub fn contact<T: Default>(&self, index: NodeIndex, note: impl FnOnce(&mut Contact) -> T) -> T {
        let Some(peer) = self.peer(index) else { return T::default() };
        note(&mut peer.contact.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes why the store of the node at `index` does not count, in its own words.
    pub fn note_not_voting(&self, index: NodeIndex, reason: String) {
        if let Some(peer) = self.peer(index) {
            *peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        }
    }

    /// Why the store of the node at `index` did not count when it said so last.
    pub fn not_voting(&self, index: NodeIndex) -> String {
        let reason = self
            .peer(index)
            .map(|peer| peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner).clone());
        reason.unwrap_or_default()
    }

    /// Other nodes that have said in this run what they purged, and as many as must have, this node among both.
    pub fn met_and_needed(&self) -> (usize, usize) {
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        (met + 1, usize::from(self.node_count() / 2) + 1)
    }

    /// Whether the store is about to be set aside.
    pub fn stands_down(&self) -> bool {
        self.stands_down.load(Ordering::SeqCst)
    }

    /// Takes in an exchange with the node at `index`, and says what it changes: whether its clock has come to be surely
    /// further than `bound_millis` from this node's, or surely no longer is.
    pub fn note_clock(&self, index: NodeIndex, exchange: Exchange, bound_millis: u64) -> Option<ClockNews> {
        let peer = self.peer(index)?;
        let mut clock = peer.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.note(exchange);
        let offset = clock.offset(exchange.answered, exchange.ours)?;
        drop(clock);
        let was_over = peer.is_clock_reported.load(Ordering::Relaxed);
        let is_over = if was_over {
            !offset.is_surely_within(bound_millis)
        } else {
            offset.is_surely_over(bound_millis)
        };
        peer.is_clock_reported.store(is_over, Ordering::Relaxed);
        match (was_over, is_over) {
            (false, true) => Some(ClockNews::Far(offset)),
            (true, false) => Some(ClockNews::Near(offset)),
            _ => None,
        }
    }

    /// How far the clock of the node at `index` is ahead of this node's, seen at the monotonic time `now` and the time of
    /// day `wall`; none without a recent exchange.
    pub fn clock_offset(&self, index: NodeIndex, now: Duration, wall: UnixMillis) -> Option<ClockOffset> {
        self.peer(index)?.clock.lock().unwrap_or_else(PoisonError::into_inner).offset(now, wall)
    }
}

/// What an exchange with a peer shows of its clock that was not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockNews {
    /// It is far from this node's.
    Far(ClockOffset),
    /// It is near it again.
    Near(ClockOffset),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Vote;
    use kvorum_core::{Run, StoreSeen};
    use std::collections::BTreeMap;

    /// Whatever was found out in an earlier life: a node votes once it has met as many others as make a majority with
    /// it, and each of them counts once.
    #[test]
    fn nodes_vote_once_they_have_met_a_majority() {
        for (nodes, needed) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3)] {
            let urls: Vec<String> = (0..nodes).map(|node| format!("http://n-{node}:1")).collect();
            let topology = Topology::of_urls(&urls).unwrap();
            let me = NodeId::of_url(&urls[0]);
            let own = StoreSeen { node: me, store: 11, run: Run::default() };
            let roster = Roster::new(own, nodes, BTreeMap::new(), Vote::Yes);
            let index = topology.index_of(me).unwrap();
            let cluster = Cluster::new("test".to_owned(), None, topology, index, 11, roster);
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
            cluster.roster().lose();
            assert!(!cluster.votes() && !cluster.is_undecided(), "{nodes}");
        }
    }
}
