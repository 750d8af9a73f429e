//! The cluster as this node sees it: the members, the placement of keys, the stores that nodes were seen with, and
//! whether this node's own store is quorum-eligible ("votes").
//!
//! It decides and remembers; it sends nothing. The members and the placement change with each configuration that the node
//! adopts ([`crate::membership`]): they are a [`View`], which a request takes once and keeps. A node is named by its slot,
//! which it keeps for life, so tables by node only grow and nothing is ever renumbered.

mod clock_offset;
mod contact;
mod eligible;
mod ids_said;
mod slots;
mod view;
mod votes;

pub use clock_offset::{ClockFilter, ClockOffset, Exchange};
pub use contact::{Contact, News};
pub(crate) use slots::SlotTable;
pub use view::{Plan, Pull, View};
pub use votes::{Heard, PeerRegistry, Verdict as VotesVerdict};

use crate::canary::{self, Canary};
use crate::peer::{HandshakeError, Hello, JOINING, PlaceSettings, Protocols};
use ids_said::IdsSaid;
use kvorum_core::agreement::{Epoch, Voter};
use kvorum_core::configuration::{Configuration, MemberState, RoutingError};
use kvorum_core::{ClusterId, Key, NodeId, Partition, Slot, Token, Topology, UnixMillis};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// For how long a replica's answer counts: until keys are placed otherwise, or a member loses its store.
///
/// A refill takes what the other members hold when they are compared with the store. That is after all of them were told of the
/// loss ([`Cluster::note_loss`]): what was confirmed until then is on another member, too, and the comparison finds it. A request
/// that counted the lost store's answer after that could be confirmed by one copy. So it asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Era {
    epoch: Epoch,
    losses: u64,
}

/// The state of the cluster that all of a node's threads share.
pub struct Cluster {
    name: String,
    id: OnceLock<ClusterId>,
    // Guards the cluster ids that the others have said in this run. Held for an insertion or a count.
    ids_said: Mutex<IdsSaid>,
    /// The list of nodes that the chain of configurations begins with: nodes compare it when they connect.
    genesis: Topology,
    me: Slot,
    id_of_me: NodeId,
    is_tls: bool,
    partition_bits: u8,
    store_id: u128,
    /// The versions of the protocol between nodes that this node speaks.
    protocols: Protocols,
    /// What this node's settings say of its place in the cluster.
    place: PlaceSettings,
    peers: SlotTable<Peer>,
    // Guards the nodes that wait to join. Held for a look-up or an insertion.
    applicants: Mutex<BTreeMap<NodeId, Applicant>>,
    // Guards the peer registry. Held for a look-up or a merge of a few entries.
    registry: Mutex<PeerRegistry>,
    stands_down: AtomicBool,
    /// Whether this node's store joins in the change under way.
    is_joining: AtomicBool,
    /// The first epoch in which this node with its store is no member any more; 0 while it is one.
    removed_in: AtomicU64,
    /// Whether this node has heard up to where a majority of the nodes, itself included, has sealed.
    has_met: AtomicBool,
    // Guards the view that this node works with. Held to copy or exchange a pointer.
    view: Mutex<Arc<View>>,
    /// How often the view was exchanged: threads keep a copy for as long as this stays.
    views: AtomicU64,
    /// Its epoch, and since when keys are placed as in it, for every request.
    epoch: AtomicU64,
    placed_since: Arc<AtomicU64>,
    /// How often a member was heard to have lost its store, this node included.
    losses: AtomicU64,
    /// Wakes the tasks in [`Self::until`], in the order in which they began to wait: a simulated run must be the same
    /// again, which a `watch` with several receivers is not.
    changes: Notify,
}

/// The state of one node of the cluster. It stays when the node is no member any more.
#[derive(Debug)]
pub struct Peer {
    id: NodeId,
    url: String,
    // Guards the exchanges that show its wall clock. Held to read or write a few numbers.
    clock: Mutex<ClockFilter>,
    // Guards the logged state of the contact with it. Held to read or write a few numbers and texts.
    contact: Mutex<Contact>,
    // Guards the reason why its store did not count, as it last said. Held to read or write a text.
    not_voting: Mutex<String>,
    // Guards its store, and what its settings say of its place, as it said in the last handshake. Held to read or write it.
    said: Mutex<(Option<u128>, PlaceSettings)>,
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

/// A node that waits to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applicant {
    /// Its URL.
    pub url: String,
    /// The identity of its store.
    pub store: u128,
    /// What its settings say of the place that it wants.
    pub place: PlaceSettings,
    /// When it was last heard, on the monotonic clock.
    pub at: Duration,
}

/// The most nodes that wait to join and are noted.
const APPLICANTS_LEN_MAX: usize = 64;

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

impl Peer {
    fn new(id: NodeId, url: String) -> Self {
        Self {
            id,
            url,
            clock: Mutex::default(),
            contact: Mutex::default(),
            not_voting: Mutex::default(),
            said: Mutex::default(),
            is_clock_reported: AtomicBool::default(),
            failures: AtomicU64::default(),
            hints_delivered: AtomicU64::default(),
            votes: AtomicBool::default(),
            floors_met: AtomicBool::default(),
        }
    }
}

impl Peer {
    fn said(&self) -> MutexGuard<'_, (Option<u128>, PlaceSettings)> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    /// The cluster `name`, whose chain of configurations begins with `genesis`, seen from the node at `me` whose store is
    /// `store_id`. `id` is the cluster's id, if the store knows it.
    pub fn new(
        name: String,
        id: Option<ClusterId>,
        genesis: Topology,
        me: Slot,
        store_id: u128,
        registry: PeerRegistry,
    ) -> Self {
        let view = View::genesis(id.unwrap_or(ClusterId::STAND_IN), &genesis);
        let peers = SlotTable::default();
        for (slot, member) in (0..).map(Slot).zip(genesis.members()) {
            peers.get_or_init(slot, || Peer::new(member.id, member.url.clone()));
        }
        let is_alone = genesis.node_count() == 1;
        let own = peers.get(me);
        Self {
            name,
            id: id.map_or_else(OnceLock::new, OnceLock::from),
            ids_said: Mutex::default(),
            me,
            id_of_me: registry.node(),
            is_tls: own.is_some_and(|own| own.url.starts_with("https://")),
            partition_bits: genesis.partition_bits(),
            genesis,
            store_id,
            protocols: Protocols::SPOKEN,
            place: PlaceSettings::default(),
            peers,
            applicants: Mutex::default(),
            registry: Mutex::new(registry),
            stands_down: AtomicBool::new(false),
            is_joining: AtomicBool::new(false),
            removed_in: AtomicU64::new(0),
            has_met: AtomicBool::new(is_alone),
            view: Mutex::new(Arc::new(view)),
            views: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            placed_since: Arc::default(),
            losses: AtomicU64::new(0),
            changes: Notify::new(),
        }
    }

    /// The same, seen from a node that speaks only these versions of the protocol.
    #[must_use]
    pub fn speaking(self, protocols: Protocols) -> Self {
        Self { protocols, ..self }
    }

    /// The same, seen from a node whose settings say this of its place.
    #[must_use]
    pub fn placed_as(self, place: PlaceSettings) -> Self {
        Self { place, ..self }
    }

    /// The same, seen from the node at `url`, which joined later.
    #[must_use]
    pub fn at(self, url: &str) -> Self {
        Self { is_tls: url.starts_with("https://"), ..self }
    }

    /// The same, which tells this node's replica since when keys are placed as they are: requests are judged by the same
    /// word.
    #[must_use]
    pub fn placing(self, placed_since: Arc<AtomicU64>) -> Self {
        Self { placed_since, ..self }
    }

    /// The view of the epoch that this node works with now.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often the view was exchanged.
    pub(crate) fn views(&self) -> u64 {
        self.views.load(Ordering::SeqCst)
    }

    /// How many bits of a token name its partition.
    pub fn partition_bits(&self) -> u8 {
        self.partition_bits
    }

    /// How many replicas a key can have now: the upper bound of `from`.
    pub fn node_count(&self) -> u16 {
        self.view().node_count()
    }

    /// How many members there are now, this node included.
    pub fn member_count(&self) -> u16 {
        self.view().member_count()
    }

    /// The slot of this node.
    pub fn me(&self) -> Slot {
        self.me
    }

    /// The id of the node at `slot`.
    pub fn id_of(&self, slot: Slot) -> NodeId {
        self.peer(slot).map_or(NodeId(0), |peer| peer.id)
    }

    /// The URL of the node at `slot`.
    pub fn url_of(&self, slot: Slot) -> &str {
        self.peer(slot).map_or("", |peer| &peer.url)
    }

    /// The slot of the member `id`.
    pub fn slot_of(&self, id: NodeId) -> Option<Slot> {
        self.view().slot_of(id)
    }

    /// All members but this node, by rising slot.
    pub fn others(&self) -> impl Iterator<Item = Slot> + use<> {
        let (view, me) = (self.view(), self.me);
        let count = view.slots().len();
        (0..count).filter_map(move |place| view.slots().get(place).copied()).filter(move |slot| *slot != me)
    }

    /// The state of the node at `slot`, a member now or before.
    pub fn peer(&self, slot: Slot) -> Option<&Peer> {
        self.peers.get(slot)
    }

    /// The partition of `key`.
    pub fn partition_of(&self, key: &Key) -> Partition {
        Token::of(key.as_ref()).partition(self.partition_bits)
    }

    /// The configuration that this node works with: the newest that it has adopted, or that of epoch 0. While
    /// [`Self::id`] is not known, its cluster is [`ClusterId::STAND_IN`], and its hash means nothing.
    pub fn configuration(&self) -> Arc<Configuration> {
        Arc::clone(self.view().configuration())
    }

    /// The epoch of [`Self::configuration`].
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// The epoch that requests to other nodes name: [`View::placed_since`].
    pub fn placed_since(&self) -> Epoch {
        Epoch(self.placed_since.load(Ordering::SeqCst))
    }

    /// The era of the answers that are asked for now, by a request that was planned in `epoch`.
    pub(crate) fn era(&self, epoch: Epoch) -> Era {
        Era { epoch, losses: self.losses.load(Ordering::SeqCst) }
    }

    /// Notes that a member has lost its store and is about to be refilled: what it answered before counts no more.
    pub(crate) fn note_loss(&self) {
        if !canary::is(Canary::LostAnswersCount) {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether keys are placed on this node as in `epoch`: then it carries out requests that name it.
    pub(crate) fn is_placed_as(&self, epoch: Epoch) -> bool {
        self.placed_since() == epoch || canary::is(Canary::ServesOldEpoch)
    }

    /// Works with `configuration` from now on. It follows this node's, has been decided, and was stored durably.
    ///
    /// # Errors
    /// [`View::next`]: nothing has changed.
    pub fn adopt(&self, configuration: Arc<Configuration>) -> Result<(), RoutingError> {
        let next = self.view().next(configuration)?;
        self.work_with(next);
        Ok(())
    }

    /// Works with `next` from now on, which was made from this node's view.
    pub(crate) fn work_with(&self, next: View) {
        for member in &next.configuration().members {
            // Configurations name nodes by http: whether this cluster's nodes encrypt is a matter of their settings.
            let url = || match member.url.strip_prefix("http://") {
                Some(authority) if self.is_tls => format!("https://{authority}"),
                _ => member.url.clone(),
            };
            self.peers.get_or_init(member.slot, || Peer::new(member.id, url()));
        }
        let members = next.configuration().members.iter().map(|member| member.id);
        self.registry().note_members(members);
        let own = next.configuration().members.iter().find(|member| member.slot == self.me);
        let is_joining = own.is_some_and(|own| {
            own.state == MemberState::Joining && own.store == Some(self.store_id) && !own.lacks
        });
        let is_named = |node: NodeId, store| {
            next.configuration().member(node).is_some_and(|member| member.store == Some(store))
        };
        self.applicants().retain(|node, applicant| !is_named(*node, applicant.store));
        let next = Arc::new(next);
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        *view = Arc::clone(&next);
        // First, so that a thread that sees the new epoch does not take its old copy for the view of now.
        self.views.fetch_add(1, Ordering::SeqCst);
        self.epoch.store(next.epoch().0, Ordering::SeqCst);
        self.placed_since.store(next.placed_since().0, Ordering::SeqCst);
        self.is_joining.store(is_joining, Ordering::SeqCst);
        // One that joined is in none of the first configurations: only a store that has been a member is retired.
        if next.configuration().is_retired(self.voter()) {
            let _ = self.removed_in.compare_exchange(0, next.epoch().0, Ordering::SeqCst, Ordering::SeqCst);
        }
        drop(view);
        self.note_change();
    }

    /// This node with its store, which votes on configurations.
    pub fn voter(&self) -> Voter {
        Voter { node: self.id_of_me, store: self.store_id }
    }

    /// The handshake message of this node.
    pub fn hello(&self, clock: UnixMillis) -> Hello {
        Hello {
            protocol: self.protocols.oldest(),
            protocols: Some(self.protocols),
            cluster: self.name.clone(),
            cluster_id: self.id(),
            node: self.id_of_me,
            topology: self.genesis.hash(),
            store: self.store_id,
            run: self.registry().run(),
            members: self.view().slots().iter().map(|slot| self.url_of(*slot).to_owned()).collect(),
            clock,
            place: self.place.clone(),
            remembers: None,
        }
    }

    /// The same for the node `peer`, which learns with what store and in what run it was seen.
    pub fn hello_to(&self, peer: NodeId, clock: UnixMillis) -> Hello {
        let remembers = self.registry().seen_of(peer);
        Hello { remembers, ..self.hello(clock) }
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
        let voter = Voter { node: theirs.node, store: theirs.store };
        if self.view().configuration().is_retired(voter) && !canary::is(Canary::RetiredStoreServes) {
            let (store, theirs) = (theirs.store, theirs.name_of(theirs.node));
            return Err(HandshakeError::Removed { theirs, store });
        }
        if theirs.topology == JOINING {
            return self.judge_applicant(theirs, proving, now);
        }
        if ours.cluster_id.is_none() {
            self.check_id_said(ours, theirs, proving, now)?;
        }
        match self.registry().owner_of(theirs.store, theirs.node) {
            Some(owner) if !canary::is(Canary::StoreOfAnotherNode) => Err(HandshakeError::StoreOfAnother {
                theirs: theirs.name_of(theirs.node),
                store: theirs.store,
                owner: ours.name_of(owner),
            }),
            _ => {
                if !proving {
                    self.note_said(theirs);
                }
                Ok(())
            }
        }
    }

    /// Notes the store of a member, and what its settings say of its place.
    fn note_said(&self, theirs: &Hello) {
        if let Some(peer) = self.slot_of(theirs.node).and_then(|slot| self.peer(slot)) {
            *peer.said() = (Some(theirs.store), theirs.place.clone());
            // It may have waited before, with another store.
            self.applicants().remove(&theirs.node);
        }
    }

    /// The store that the member at `slot` runs with, as it said last in this run: as a member, or as one that waits because
    /// its configurations are lost. None if it has not been met.
    pub fn store_of(&self, slot: Slot) -> Option<u128> {
        if slot == self.me {
            return Some(self.store_id);
        }
        let waiting = self.applicants().get(&self.id_of(slot)).map(|applicant| applicant.store);
        waiting.or_else(|| self.peer(slot).and_then(|peer| peer.said().0))
    }

    /// What the settings of the member at `slot` say of its place, as it last said.
    pub fn place_settings_of(&self, slot: Slot) -> PlaceSettings {
        if slot == self.me {
            return self.place.clone();
        }
        self.peer(slot).map(|peer| peer.said().1.clone()).unwrap_or_default()
    }

    /// Whether a node that waits to join may connect: to be noted, and to hear of the configuration that names it.
    fn judge_applicant(&self, theirs: &Hello, proving: bool, now: Duration) -> Result<(), HandshakeError> {
        // A member that waits with another store has lost its disk: a plan may name the new one.
        let is_named = self.view().configuration().member(theirs.node).and_then(|member| member.store)
            == Some(theirs.store);
        let has_place = {
            let applicants = self.applicants();
            applicants.len() < APPLICANTS_LEN_MAX || applicants.contains_key(&theirs.node)
        };
        if !is_named && !has_place {
            let (store, theirs) = (theirs.store, theirs.name_of(theirs.node));
            return Err(HandshakeError::NotJoining { theirs, store });
        }
        if !proving {
            self.note_applicant(theirs, now);
        }
        Ok(())
    }

    fn note_applicant(&self, theirs: &Hello, now: Duration) {
        let url = theirs.members.iter().find(|url| NodeId::of_url(url) == theirs.node);
        let named = self.view().configuration().member(theirs.node).and_then(|member| member.store);
        if let Some(url) = url
            && named != Some(theirs.store)
        {
            let (url, place) = (url.clone(), theirs.place.clone());
            let applicant = Applicant { url, store: theirs.store, place, at: now };
            let mut applicants = self.applicants();
            if applicants.len() < APPLICANTS_LEN_MAX || applicants.contains_key(&theirs.node) {
                applicants.insert(theirs.node, applicant);
            }
        }
    }

    /// The nodes that have said in this run that they wait to join.
    pub fn applicants(&self) -> MutexGuard<'_, BTreeMap<NodeId, Applicant>> {
        self.applicants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a peer has said that has proved since who it is.
    pub fn note_proven(&self, theirs: &Hello, now: Duration) {
        if theirs.topology == JOINING {
            return self.note_applicant(theirs, now);
        }
        if self.was_removed(theirs) {
            return;
        }
        self.note_said(theirs);
        if self.id().is_none()
            && let Some(index) = self.slot_of(theirs.node)
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
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever sees the id finds a configuration that names it.
        if self.id().is_none() {
            *view = Arc::new(view.of_cluster(id));
            self.views.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.id.set(id);
    }

    /// Notes the cluster id that the node at `index` has said at `now`, on the monotonic clock, and says what follows from it for a store without one.
    pub fn note_id_said(&self, index: Slot, id: Option<ClusterId>, now: Duration) -> IdVerdict {
        let mut said = self.ids_said();
        said.note(index, id, now);
        self.id_verdict(&said, index, now)
    }

    fn id_verdict(&self, said: &IdsSaid, index: Slot, now: Duration) -> IdVerdict {
        let others = usize::from(self.member_count()).saturating_sub(1);
        match said.adoptable(index, others, now) {
            Some(id) => IdVerdict::Adopt(id),
            None if self.me == Slot(0) && said.are_all_without(others) => IdVerdict::Make,
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
        let Some(index) = self.slot_of(theirs.node) else { return Ok(()) };
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
    pub fn registry(&self) -> MutexGuard<'_, PeerRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Runs `note` on the contact with the node at `index`, which `note` may change, and returns its result.
    pub fn contact<T: Default>(&self, index: Slot, note: impl FnOnce(&mut Contact) -> T) -> T {
        let Some(peer) = self.peer(index) else { return T::default() };
        note(&mut peer.contact.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds an exchange with the node at `index`. Returns a change if there is one: its clock is now surely more than
    /// `bound_millis` from this node's, or surely no longer is.
    pub fn note_clock(&self, index: Slot, exchange: Exchange, bound_millis: u64) -> Option<ClockNews> {
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
    pub fn clock_offset(&self, index: Slot, now: Duration, wall: UnixMillis) -> Option<ClockOffset> {
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
