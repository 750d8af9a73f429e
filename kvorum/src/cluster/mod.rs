//! The cluster as this node sees it: who belongs, where keys belong, who is known to have which store, and whether
//! this node's own store votes.
//!
//! It decides and remembers; it sends nothing. The set of nodes is fixed while a node runs.

mod votes;

pub use votes::{Roster, Verdict as VotesVerdict};

use crate::peer::{Hello, PROTOCOL};
use kvorum_core::{Key, NodeId, NodeIndex, Partition, Placement, Quorum, Token, Topology, UnixMillis};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// This is what all of a node's threads know of the cluster.
pub struct Cluster {
    name: String,
    topology: Topology,
    placement: Placement,
    me: NodeIndex,
    store_id: u128,
    peers: Vec<Peer>,
    // Guards who was seen with which store; held for a look-up or a merge of a few entries.
    roster: Mutex<Roster>,
    stands_down: AtomicBool,
}

/// What is known of one node of the cluster.
#[derive(Debug, Default)]
pub struct Peer {
    /// How far its wall clock is ahead of this node's, in milliseconds.
    pub clock_offset_millis: AtomicI64,
    /// Whether that has been reported as too far.
    pub is_clock_reported: AtomicBool,
    /// Calls to it that failed or were not answered in time.
    pub failures: AtomicU64,
    /// Hints delivered to it.
    pub hints_delivered: AtomicU64,
    /// Whether its latest sign of life said that its store votes.
    pub votes: AtomicBool,
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
    /// The cluster `name` of `topology`, seen from the node at `me` whose store is `store_id`.
    pub fn new(name: String, topology: Topology, me: NodeIndex, store_id: u128, roster: Roster) -> Self {
        let placement = Placement::initial(&topology);
        let peers = topology.members().iter().map(|_| Peer::default()).collect();
        Self {
            name,
            topology,
            placement,
            me,
            store_id,
            peers,
            roster: Mutex::new(roster),
            stands_down: AtomicBool::new(false),
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
            node: self.id_of(self.me),
            topology: self.topology.hash(),
            store: self.store_id,
            clock,
        }
    }

    /// Who was seen with which store, and what follows for this node's vote.
    pub fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node's store votes in reads.
    pub fn votes(&self) -> bool {
        !self.stands_down.load(Ordering::SeqCst) && self.roster().verdict() == VotesVerdict::Votes
    }

    /// Makes this node's store not vote for a while, whatever it knows: it is about to be set aside.
    pub fn stand_down(&self, stands_down: bool) {
        self.stands_down.store(stands_down, Ordering::SeqCst);
    }

    /// Whether this node's store is known to lack what an earlier one held.
    pub fn lacks(&self) -> bool {
        self.roster().verdict() == VotesVerdict::Lacks
    }

    /// Notes the difference to a peer's clock; true when it has just come to exceed `bound_millis`.
    pub fn note_clock(&self, index: NodeIndex, offset_millis: i64, bound_millis: u64) -> bool {
        let Some(peer) = self.peer(index) else { return false };
        peer.clock_offset_millis.store(offset_millis, Ordering::Relaxed);
        let is_over = offset_millis.unsigned_abs() > bound_millis;
        let was_over = peer.is_clock_reported.swap(is_over, Ordering::Relaxed);
        is_over && !was_over
    }
}
