//! The cluster as this node sees it: the members, the placement of keys, the stores that nodes were seen with, and
//! whether this node's own store is quorum-eligible ("votes").
//!
//! It decides and remembers; it sends nothing. The set of nodes is fixed while a node runs.

mod clock_offset;
mod contact;
mod ids_said;
mod votes;

pub use clock_offset::{ClockFilter, ClockOffset, Exchange};
pub use contact::{Contact, News};
pub use votes::{Heard, Roster, Verdict as VotesVerdict};

use crate::canary::{self, Canary};
use crate::peer::{HandshakeError, Hello, PROTOCOL_OLDEST, Protocols};
use ids_said::IdsSaid;
use kvorum_core::configuration::Configuration;
use kvorum_core::{
    ClusterId, Key, NodeId, NodeIndex, Partition, Placement, Quorum, Token, Topology, UnixMillis,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The state of the cluster that all of a node's threads share.
pub struct Cluster {
    name: String,
    id: OnceLock<ClusterId>,
    // Guards the cluster ids that the others have said in this run. Held for an insertion or a count.
    ids_said: Mutex<IdsSaid>,
    topology: Topology,
    placement: Placement,
    me: NodeIndex,
    store_id: u128,
    peers: Vec<Peer>,
    // Guards the peer registry. Held for a look-up or a merge of a few entries.
    roster: Mutex<Roster>,
    stands_down: AtomicBool,
    /// Whether this node has heard up to where a majority of the nodes, itself included, has sealed.
    has_met: AtomicBool,
    /// Wakes the tasks in [`Self::until`], in the order in which they began to wait: a simulated run must be the same
    /// again, which a `watch` with several receivers is not.
    changes: Notify,
}

/// The state of one node of the cluster.
#[derive(Debug, Default)]
pub struct Peer {
    // Guards the exchanges that show its wall clock. Held to read or write a few numbers.
    clock: Mutex<ClockFilter>,
    // Guards the logged state of the contact with it. Held to read or write a few numbers and texts.
    contact: Mutex<Contact>,
    // Guards the reason why its store did not count, as it last said. Held to read or write a text.
    not_voting: Mutex<String>,
    /// Whether its clock has been reported as too far off.
    pub is_clock_reported: AtomicBool,
    /// Calls to it that failed or timed out.
    pub failures: AtomicU64,
    /// Hints delivered to it.
    pub hints_delivered: AtomicU64,
    /// Whether its store is quorum-eligible, as its latest answer to a heartbeat said.
    pub votes: AtomicBool,
    /// Whether this node has heard from it, in this run, up to where it has sealed.
    pub floors_met: AtomicBool,
}

/// What follows for a store without a cluster id from what the others have said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdVerdict {
    /// Enough of them say this one.
    Adopt(ClusterId),
    /// Nobody has one, and this node is the one that makes it: the first member, which has heard all others.
    Make,
    /// Not enough is known yet.
    Wait,
}

/// The plan of one request: fixed once made.
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
    /// The cluster `name` of `topology`, seen from the node at `me` whose store is `store_id`. `id` is the cluster's
    /// id, if the store knows it.
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
            ids_said: Mutex::default(),
            topology,
            placement,
            me,
            store_id,
            peers,
            roster: Mutex::new(roster),
            stands_down: AtomicBool::new(false),
            has_met: AtomicBool::new(is_alone),
            changes: Notify::new(),
        }
    }

    /// The nodes and the settings of the placement.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The number of nodes.
    pub fn node_count(&self) -> u16 {
        self.topology.node_count()
    }

    /// The index of this node among the nodes.
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

    /// The state of the node at `index`.
    pub fn peer(&self, index: NodeIndex) -> Option<&Peer> {
        self.peers.get(usize::from(index.0))
    }

    /// The partition of `key`.
    pub fn partition_of(&self, key: &Key) -> Partition {
        Token::of(key.as_ref()).partition(self.topology.partition_bits())
    }

    /// The nodes that hold keys of `partition`, best first: all nodes. A request uses a prefix of the list.
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

    /// The configuration that this node works with: that of epoch 0. While [`Self::id`] is not known, its cluster is
    /// [`ClusterId::STAND_IN`], and its hash means nothing.
    pub fn configuration(&self) -> Configuration {
        let id = self.id().unwrap_or(ClusterId::STAND_IN);
        Configuration::genesis(id, &self.topology, &self.placement)
    }

    /// The handshake message of this node.
    pub fn hello(&self, clock: UnixMillis) -> Hello {
        Hello {
            protocol: PROTOCOL_OLDEST,
            protocols: Some(Protocols::SPOKEN),
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

    /// Checks whether this node talks to a peer that sent `theirs`; `ours` is this node's own handshake message.
    ///
    /// `now` is the time on the monotonic clock.
    ///
    /// # Errors
    /// The difference between the two, or the node that owns the peer's store.
    pub fn admit(&self, ours: &Hello, theirs: &Hello, now: Duration) -> Result<(), HandshakeError> {
        self.judge(ours, theirs, false, now)
    }

    /// Like [`Self::admit`]. Where the peer is still `proving` who it is, nothing of what it says is noted:
    /// [`Self::note_proven`] does that once it has.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub fn judge(
        &self,
        ours: &Hello,
        theirs: &Hello,
        proving: bool,
        now: Duration,
    ) -> Result<(), HandshakeError> {
        ours.check(theirs)?;
        if ours.cluster_id.is_none() {
            self.check_id_said(ours, theirs, proving, now)?;
        }
        match self.roster().owner_of(theirs.store, theirs.node) {
            Some(owner) if !canary::is(Canary::StoreOfAnotherNode) => Err(HandshakeError::StoreOfAnother {
                theirs: theirs.name_of(theirs.node),
                store: theirs.store,
                owner: ours.name_of(owner),
            }),
            _ => Ok(()),
        }
    }

    /// Notes what a peer has said that has proved since who it is.
    pub fn note_proven(&self, theirs: &Hello, now: Duration) {
        if self.id().is_none()
            && let Some(index) = self.topology.index_of(theirs.node)
        {
            self.ids_said().note(index, theirs.cluster_id, now);
        }
    }

    /// The random id of the cluster; `None` while no node has made one.
    pub fn id(&self) -> Option<ClusterId> {
        self.id.get().copied()
    }

    /// Adopts the cluster's id, which has been stored durably. The first id stays.
    pub fn adopt_id(&self, id: ClusterId) {
        let _ = self.id.set(id);
    }

    /// Notes the cluster id that the node at `index` has said at `now`, on the monotonic clock, and says what follows from it for a store without one.
    pub fn note_id_said(&self, index: NodeIndex, id: Option<ClusterId>, now: Duration) -> IdVerdict {
        let mut said = self.ids_said();
        said.note(index, id, now);
        self.id_verdict(&said, index, now)
    }

    fn id_verdict(&self, said: &IdsSaid, index: NodeIndex, now: Duration) -> IdVerdict {
        let others = usize::from(self.node_count()).saturating_sub(1);
        match said.adoptable(index, others, now) {
            Some(id) => IdVerdict::Adopt(id),
            None if self.me == NodeIndex(0) && said.are_all_without(others) => IdVerdict::Make,
            None => IdVerdict::Wait,
        }
    }

    /// Whether this store, which knows no cluster id, may talk to a node that says `theirs`.
    fn check_id_said(
        &self,
        ours: &Hello,
        theirs: &Hello,
        proving: bool,
        now: Duration,
    ) -> Result<(), HandshakeError> {
        let Some(index) = self.topology.index_of(theirs.node) else { return Ok(()) };
        let verdict = if proving {
            let mut said = self.ids_said().clone();
            said.note(index, theirs.cluster_id, now);
            self.id_verdict(&said, index, now)
        } else {
            self.note_id_said(index, theirs.cluster_id, now)
        };
        let Some(their_id) = theirs.cluster_id.filter(|_| verdict == IdVerdict::Wait) else { return Ok(()) };
        let contradicts = self.ids_said().contradicts(their_id).map(|other| self.url_of(other).to_owned());
        let theirs = (theirs.name_of(theirs.node), their_id);
        Err(HandshakeError::ClusterIdOpen { ours: ours.name_of(ours.node), theirs, contradicts })
    }

    fn ids_said(&self) -> MutexGuard<'_, IdsSaid> {
        self.ids_said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer registry: the stores that nodes were seen with, and the eligibility of this node's store.
    pub fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node's store is quorum-eligible. It is not until it has met a majority in this run: it may be an
    /// older copy that has not heard of purges since.
    pub fn votes(&self) -> bool {
        self.has_met()
            && !self.stands_down.load(Ordering::SeqCst)
            && self.roster().verdict() == VotesVerdict::Votes
    }

    /// Whether this node has met a majority in this run, itself included.
    pub fn has_met(&self) -> bool {
        self.has_met.load(Ordering::SeqCst)
    }

    /// Whether the eligibility of this node's store is still open. It is while the store is new and some node has not
    /// said what it knows of an older one, or while this node has not met a majority.
    pub fn is_undecided(&self) -> bool {
        match self.roster().verdict() {
            VotesVerdict::Unknown => true,
            VotesVerdict::Votes => !self.has_met(),
            VotesVerdict::Lacks => false,
        }
    }

    /// Notes that something has changed that tasks may wait for: a link, what is known of a store or a clock, hints that were
    /// delivered.
    pub fn note_change(&self) {
        self.changes.notify_waiters();
    }

    /// Waits until `condition` holds, which is judged again after each [change](Self::note_change). A caller bounds the
    /// wait.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            // Made before the condition is judged: it misses no change from then on.
            let changed = self.changes.notified();
            if condition() {
                return;
            }
            changed.await;
        }
    }

    /// Makes the store eligible without meeting a majority: the caller vouches that it is no older copy.
    pub fn trust_store(&self) {
        self.has_met.store(true, Ordering::SeqCst);
        self.note_change();
    }

    /// Notes that the node at `index` has said up to where it has sealed, and that this store's eligibility already
    /// reflects it.
    pub fn note_floors_met(&self, index: NodeIndex) {
        if let Some(peer) = self.peer(index) {
            peer.floors_met.store(true, Ordering::SeqCst);
        }
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        if met >= usize::from(self.node_count() / 2) {
            self.has_met.store(true, Ordering::SeqCst);
        }
        self.note_change();
    }

    /// Whether the node at `index` has said, in this run, up to where it has sealed.
    pub fn has_met_floors_of(&self, index: NodeIndex) -> bool {
        self.peer(index).is_some_and(|peer| peer.floors_met.load(Ordering::SeqCst))
    }

    /// Sets whether this node's store is temporarily not eligible, whatever else is known: it is about to be set aside.
    pub fn stand_down(&self, stands_down: bool) {
        self.stands_down.store(stands_down, Ordering::SeqCst);
    }

    /// Whether this node's store is known to lack records that an earlier one held.
    pub fn lacks(&self) -> bool {
        self.roster().verdict() == VotesVerdict::Lacks
    }

    /// Runs `note` on the contact with the node at `index`, which `note` may change, and returns its result.
    pub fn contact<T: Default>(&self, index: NodeIndex, note: impl FnOnce(&mut Contact) -> T) -> T {
        let Some(peer) = self.peer(index) else { return T::default() };
        note(&mut peer.contact.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes why the store of the node at `index` does not count, as that node says.
    pub fn note_not_voting(&self, index: NodeIndex, reason: String) {
        if let Some(peer) = self.peer(index) {
            *peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        }
    }

    /// The reason why the store of the node at `index` did not count, as it last said.
    pub fn not_voting(&self, index: NodeIndex) -> String {
        let reason = self
            .peer(index)
            .map(|peer| peer.not_voting.lock().unwrap_or_else(PoisonError::into_inner).clone());
        reason.unwrap_or_default()
    }

    /// The number of nodes that have said in this run up to where they have sealed, and the majority that is needed.
    /// Both include this node.
    pub fn met_and_needed(&self) -> (usize, usize) {
        let met = self.others().filter(|index| self.has_met_floors_of(*index)).count();
        (met + 1, usize::from(self.node_count() / 2) + 1)
    }

    /// Whether the store is about to be set aside.
    pub fn stands_down(&self) -> bool {
        self.stands_down.load(Ordering::SeqCst)
    }

    /// Adds an exchange with the node at `index`. Returns a change if there is one: its clock is now surely more than
    /// `bound_millis` from this node's, or surely no longer is.
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

    /// How far the clock of the node at `index` is ahead of this node's, at the monotonic time `now` and the time of
    /// day `wall`; `None` without a recent exchange.
    pub fn clock_offset(&self, index: NodeIndex, now: Duration, wall: UnixMillis) -> Option<ClockOffset> {
        self.peer(index)?.clock.lock().unwrap_or_else(PoisonError::into_inner).offset(now, wall)
    }
}

/// A change of a peer's clock that an exchange shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockNews {
    /// Its clock is far from this node's.
    Far(ClockOffset),
    /// Its clock is near this node's again.
    Near(ClockOffset),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Vote;
    use kvorum_core::{Run, StoreSeen};
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
