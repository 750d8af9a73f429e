//! The coordinator: serves a client's request by asking replicas.
//!
//! It plans a request (which replicas, how many must confirm, until when), stamps writes, asks this node's own replica
//! and its peers' replicas, and counts the answers by the rules of `kvorum-core`. It knows neither HTTP nor disks.
//!
//! A reader follows a request: [`write`], [`conditional`] and its [`ballot`], [`read`], [`range`]. They ask replicas by [`calls`]; this node's own is
//! [`LocalReplica`], which [`serve`] asks for peers. [`explain`] says which replica holds what of a key. Operators change the
//! members with [`Changes`]. Everything that a node does without a client is in [`crate::background`].
//!
//! There is one [`Coordinator`] per network thread, with its own [`links`] to every peer, so that a request and all its
//! calls stay on one thread. The threads share [`Shared`].

mod ballot;
pub(crate) mod calls;
mod changes;
mod conditional;
mod confirm;
mod edit;
mod explain;
mod gauges;
mod group;
mod links;
mod local_replica;
mod range;
mod read;
mod serve;
mod sign;
mod stamp;
#[cfg(test)]
mod tests;
mod write;

pub use calls::Cause;
pub use changes::{ApplyPlanError, Changes, PlanningError, ProposeError, Silent};
pub use conditional::{Decided, Edited};
pub use edit::{APPENDED_BYTES_MAX, Edit};
pub use explain::{Explained, Explanation, HeldPromise, HeldRecord};
pub use gauges::{Gauges, LinkGauge, PeerStatus, finds_default_quorum};
pub use links::Peering;
pub use local_replica::LocalReplica;
pub use range::ClusterRange;
pub use serve::PeerHandler;
pub use stamp::Stamps;

use crate::background::{self, Background, Transferring};
use crate::clock::{Clock, Rng, TimestampBound};
use crate::cluster::{Cluster, SlotTable, View};
use crate::membership::Configurations;
use crate::peer::{ApplyKind, Connector, Link, PeerAuth, PeerLimits};
use crate::replica::{Hints, RangeReader, Replica, ReplicaError};
use crate::supervise::Part;
use bytes::Bytes;
use kvorum_core::topology::NODES_MAX;
use kvorum_core::{Key, Partition, Quorum, Record, ReplicationFactor, Slot, UnixMillis, Value, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;

/// Extra reads that hedging may cost: one in twenty.
const HEDGE_SHARE: f32 = 0.05;
/// Hedges that may be saved up for a burst.
const HEDGES_SAVED_MAX: f32 = 20.0;

/// The change of a key that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the value, for ever or for `ttl_millis` milliseconds by the coordinator's wall clock.
    Put {
        /// The value.
        value: Bytes,
        /// How long the value lives, in milliseconds; `None` for ever.
        ttl_millis: Option<u64>,
    },
    /// Deletes the key.
    Delete,
}

/// The slowest rate at which a value may reach its replicas before its write counts as late, in bytes per second.
const WRITE_RATE_MIN: u64 = 4 << 20;

impl Mutation {
    /// The time that the write may take beyond the request timeout, because its value is large.
    fn allowance(&self) -> Duration {
        match self {
            Self::Put { value, .. } => allowance_for(value.len() as u64),
            Self::Delete => Duration::ZERO,
        }
    }

    /// When a value written at `now` expires, if it does. The version is never used for this: a clock that was once
    /// fast, here or on another node, must not lengthen the life of later values.
    fn expires(&self, now: UnixMillis) -> Option<UnixMillis> {
        match self {
            Self::Put { ttl_millis, .. } => ttl_millis.map(|ttl| now.saturating_add(ttl)),
            Self::Delete => None,
        }
    }

    fn record(&self, version: Version, from: u16, expires: Option<UnixMillis>) -> Record {
        match self {
            Self::Put { value, .. } => {
                Record { version, from, expires, value: Value::Present(value.clone()), conditional: None }
            }
            Self::Delete => {
                Record { version, from, expires: None, value: Value::Tombstone, conditional: None }
            }
        }
    }
}

/// The time that writing a value of `bytes` may take beyond the request timeout.
pub(crate) fn allowance_for(bytes: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / WRITE_RATE_MIN)
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The freshest record among the replies, if any replica has one.
    pub record: Option<Record>,
    /// The time at which expiry is judged.
    pub now: UnixMillis,
    /// The number of replicas that answered.
    pub answered: u16,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The version of the written record.
    pub version: Version,
    /// The number of replicas that held the record when the write was answered.
    pub confirmed: u16,
}

/// A replica that did not confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The URL of the node.
    pub url: String,
    /// Why the replica did not confirm.
    pub reason: String,
}

/// The order in which a write's replicas are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fanout {
    /// All at once: the least latency.
    Parallel,
    /// First as many as must confirm; the next only when one fails; the rest after the answer. The least work before
    /// the answer.
    Sequential,
}

/// The coordinator's settings.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Replicas of a key when the request does not say.
    pub factor: ReplicationFactor,
    /// The longest wait for replicas.
    pub request_timeout: Duration,
    /// The order in which replicas are asked.
    pub fanout: Fanout,
    /// How long a node that starts waits for the hints that its peers hold for it.
    pub hint_wait: Duration,
    /// The time between two rounds of tombstone GC, which find the timestamp up to which all nodes agree, and purge.
    pub tombstone_gc_every: Duration,
    /// How far a peer's clock may be from this node's before it is reported.
    pub clock_offset_max: Duration,
    /// The rates of background work.
    pub upkeep: Upkeep,
    /// Whether anybody who reaches the node's port could pass for another node, and the operator has not said that this is
    /// right (`--insecure yes`): a node that is alone takes nobody then.
    pub takes_any_peer: bool,
}

impl Settings {
    /// The quorum of a request that names none, of a cluster of `nodes`.
    pub fn default_quorum(&self, nodes: u16) -> Quorum {
        Quorum::default_for(self.factor, nodes)
    }

    /// The FROM that a record of a write to `quorum` is stored with, in a cluster of `nodes`.
    ///
    /// Where a key can have one replica only, 1/1 is a write to all nodes there are. Stored with FROM 1, its record would stay on one
    /// node when the cluster grows, and a default read of three nodes need not ask that one. So it is stored for as many replicas
    /// as a default write of a larger cluster.
    fn stored_from(&self, quorum: Quorum, nodes: u16) -> u16 {
        if quorum.from() > 1 || nodes > 1 {
            return quorum.from();
        }
        match self.factor {
            ReplicationFactor::Count(count) => count.max(1),
            ReplicationFactor::All => u16::try_from(NODES_MAX).unwrap_or(u16::MAX),
        }
    }
}

/// The rates of the work that the node does without a client.
#[derive(Debug, Clone, Copy)]
pub struct Upkeep {
    /// The time between two scrubs, which read the whole store to find damage.
    pub scrub_every: Duration,
    /// Bytes per second that a scrub reads.
    pub scrub_rate: u64,
    /// Bytes per second that repair and refill send and take at most.
    pub repair_rate: u64,
    /// When bulk sync is used: one walk that sends the records of many partitions in key order.
    pub transferring: Transferring,
    /// How long a member may say nothing before a change of members goes on without it: it is then marked as lacking records.
    /// Counted from when a node got to know it as a member, at the earliest.
    pub away_after: Duration,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub enum CoordinatorError {
    /// Fewer replicas confirmed than the request asks for. A write may still take effect: unknown, not undone.
    NotEnoughReplicas {
        /// The quorum that was asked for.
        quorum: Quorum,
        /// The number of replicas that confirmed.
        confirmed: u16,
        /// The replicas that did not confirm, as far as is known.
        missing: Vec<Missing>,
        /// How long the coordinator waited.
        waited: Duration,
    },
    /// The node's own replica could not carry out the request.
    Replica(ReplicaError),
    /// The node's clock has reached the highest version there can be.
    ClockExhausted,
    /// The node takes no writes, because its clock is wrong or has just been set. Nothing was done.
    ClockOff {
        /// `--clock-offset-limit`, in milliseconds.
        limit_millis: u64,
    },
    /// The node is shutting down.
    Stopped,
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnoughReplicas { quorum, confirmed, missing, waited } => {
                write!(
                    f,
                    "Not Enough Replicas: {confirmed} of the {} replicas that must confirm (of {}) did so in {} ms",
                    quorum.ack(),
                    quorum.from(),
                    millis(*waited),
                )?;
                missing.iter().try_for_each(|Missing { url, reason }| write!(f, "; {url}: {reason}"))
            }
            Self::Replica(error) => error.fmt(f),
            Self::ClockExhausted => f.write_str(
                "this node's clock has reached the highest possible version: no write can get a newer one",
            ),
            Self::ClockOff { limit_millis } => write!(
                f,
                "this node's clock is not confirmed to be within {limit_millis} ms (--clock-offset-limit) of the \
                 clocks of a majority of the nodes: it takes no writes until then; nothing was done, ask another \
                 node"
            ),
            Self::Stopped => f.write_str("the node is shutting down"),
        }
    }
}

/// Milliseconds for people: with a decimal below 10 ms.
fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.1}") } else { format!("{millis:.0}") }
}

impl std::error::Error for CoordinatorError {}

impl From<ReplicaError> for CoordinatorError {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}

/// The coordinator's counters, over all threads. Apart from `applied`, an undisturbed request updates none of them.
#[derive(Debug, Default)]
pub struct CoordinatorMetrics {
    /// Writes that found too few replicas.
    pub writes_failed: AtomicU64,
    /// Reads that found too few replicas.
    pub reads_failed: AtomicU64,
    /// Writes that were stamped again above a newer version.
    pub restamped: AtomicU64,
    /// Writes that first asked replicas for the newest version.
    pub asked_first: AtomicU64,
    /// Conditional writes whose condition held.
    pub conditional_done: AtomicU64,
    /// Conditional writes whose condition did not hold.
    pub conditional_failed: AtomicU64,
    /// Conditional writes that ended with an error.
    pub conditional_unknown: AtomicU64,
    /// The most conditional writes of one key that were under way at once on one thread, since the start.
    pub conditional_queue_max: AtomicU64,
    /// Ballots that were begun.
    pub ballots: AtomicU64,
    /// Reads and repairs that a promise kept from writing a record.
    pub ballots_recovered: AtomicU64,
    /// Plain writes that went on by ballots.
    pub ballots_of_plain: AtomicU64,
    /// Reads that asked one more replica.
    pub hedges: AtomicU64,
    /// Records written back before a read was answered.
    pub read_repairs: AtomicU64,
    /// Records sent to replicas that answered a read late with an older version.
    pub late_repairs: AtomicU64,
    /// Hints that could not be kept.
    pub hints_lost: AtomicU64,
    /// Requests of peers that were refused because they were of another epoch.
    pub epochs_refused: AtomicU64,
    /// Records that peers applied here, by cause: write, hint, read repair.
    pub applied: [AtomicU64; ApplyKind::COUNT],
}

impl CoordinatorMetrics {
    fn count_applied(&self, cause: ApplyKind) {
        if let Some(count) = self.applied.get(cause.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The parts of a node, which its threads share. Each has its own methods.
pub struct Shared {
    /// The nodes and the placement of keys.
    pub cluster: Arc<Cluster>,
    /// The node's clocks.
    pub clock: Arc<dyn Clock>,
    /// How far ahead of the clock a timestamp may be.
    pub timestamps: Arc<TimestampBound>,
    /// The source of randomness.
    pub rng: Arc<dyn Rng>,
    /// The node's own replica.
    pub replica: Replica,
    /// Writes kept for other nodes.
    pub hints: Hints,
    /// The source of versions.
    pub stamps: Arc<Stamps>,
    /// Settings.
    pub settings: Settings,
    /// Counters.
    pub metrics: CoordinatorMetrics,
    /// The configurations that the node has adopted, and its votes on the next one.
    pub configurations: Arc<Configurations>,
    /// The state of the background services.
    pub background: Background,
    /// What the threads' links share.
    pub peering: Peering,
    /// The node's own replica, as requests ask it.
    pub local: LocalReplica,
}

/// The coordinator of one network thread.
pub struct Coordinator {
    pub(crate) shared: Arc<Shared>,
    /// By node. A link ends with its node's membership, and stays here.
    links: SlotTable<Rc<Link>>,
    connector: Rc<dyn Connector>,
    /// This thread's copy of the view, and the number of the exchange that it is of.
    view: RefCell<(u64, Arc<View>)>,
    /// The tasks of this thread for each member.
    tasks: RefCell<BTreeMap<Slot, Vec<AbortHandle>>>,
    /// Whether this thread does the background work.
    does_background: Cell<bool>,
    pub(crate) hedges: Cell<f32>,
    pub(crate) writes: Cell<usize>,
    queues: group::Queues,
}

impl Coordinator {
    /// Starts a coordinator on the calling thread, which must run local tasks; it begins to connect to every peer.
    ///
    /// `thread` is the thread's number, for the gauges.
    pub fn start(shared: Arc<Shared>, connector: &Rc<dyn Connector>, thread: usize) -> Rc<Self> {
        let view = RefCell::new((shared.cluster.views(), shared.cluster.view()));
        let coordinator = Rc::new(Self {
            shared,
            links: SlotTable::default(),
            connector: Rc::clone(connector),
            view,
            tasks: RefCell::default(),
            does_background: Cell::new(false),
            hedges: Cell::new(0.0),
            writes: Cell::new(0),
            queues: group::Queues::default(),
        });
        coordinator.meet_members();
        coordinator.keep(Part::Gauges, None, move |own| own.keep_gauges(thread));
        coordinator.keep(Part::Members, None, Self::follow_members);
        coordinator
    }

    /// The state that the node's threads share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Changes of the configuration, proposed with the links of this thread.
    pub fn changes(&self) -> Changes<'_> {
        Changes::new(self)
    }

    /// The view of the epoch that the node works with now. A request takes it once, and keeps it.
    pub fn view(&self) -> Arc<View> {
        let views = self.shared.cluster.views();
        let mut known = self.view.borrow_mut();
        if known.0 != views {
            *known = (views, self.shared.cluster.view());
        }
        Arc::clone(&known.1)
    }

    /// How many replicas a key can have: the upper bound of `from`.
    pub fn nodes(&self) -> u16 {
        self.view().node_count()
    }

    /// How long a request waits for replicas. A write of a large value may wait longer.
    pub fn request_timeout(&self) -> Duration {
        self.shared.settings.request_timeout
    }

    /// The quorum of a request that names none.
    pub fn default_quorum(&self) -> Quorum {
        self.shared.settings.default_quorum(self.shared.cluster.node_count())
    }

    /// Reads the records of start <= key < end that this node stores, tombstones and expired ones included. Also
    /// returns the time at which expiry is to be judged.
    pub async fn scan_local(
        &self,
        start: Key,
        end: Option<Key>,
    ) -> Result<(RangeReader, UnixMillis), CoordinatorError> {
        let now = self.shared.clock.wall();
        Ok((self.shared.replica.scan(start, end).await?, now))
    }

    /// Whether the node at `index` is this one.
    pub(crate) fn is_me(&self, index: Slot) -> bool {
        index == self.shared.cluster.me()
    }

    /// Writes of this thread that are not complete: some may have been answered and still wait for replicas.
    pub fn writes_under_way(&self) -> usize {
        self.writes.get()
    }

    /// Whether the node at `index` answers, and its store is quorum-eligible.
    fn counts(&self, index: Slot) -> bool {
        match self.link(index) {
            _ if self.is_me(index) => self.shared.cluster.votes(),
            None => false,
            Some(link) => {
                link.is_usable()
                    && self.shared.cluster.peer(index).is_some_and(|peer| peer.votes.load(Ordering::Relaxed))
            }
        }
    }

    /// Sorts `replicas` of a partition into the order in which they should be asked. First this node, then the others
    /// by latency, then those whose `partition` is dirty, and last those that do not answer.
    fn by_readiness(&self, partition: Partition, replicas: &[Slot]) -> Vec<Slot> {
        let cluster = &self.shared.cluster;
        let lacks = |index| self.shared.hints.lacks(cluster.id_of(index), partition.0);
        let mut order: Vec<(u8, Duration, Slot)> = replicas
            .iter()
            .map(|index| match self.link(*index) {
                None if self.is_me(*index) && cluster.votes() => {
                    (if lacks(*index) { 2 } else { 0 }, Duration::ZERO, *index)
                }
                Some(link) if link.is_usable() => {
                    (if lacks(*index) { 2 } else { 1 }, link.latency().mean, *index)
                }
                _ => (3, Duration::ZERO, *index),
            })
            .collect();
        order.sort_by_key(|(class, latency, _)| (*class, *latency));
        order.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Adds the share of a hedge that one read earns.
    fn hedge_allowance(&self) {
        self.hedges.set((self.hedges.get() + HEDGE_SHARE).min(HEDGES_SAVED_MAX));
    }

    /// Takes a hedge, if one has been earned.
    fn take_hedge(&self) -> bool {
        let earned = self.hedges.get();
        if earned >= 1.0 {
            self.hedges.set(earned - 1.0);
        }
        earned >= 1.0
    }
}

impl Shared {
    /// Combines the parts of a node that its threads share.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a node, each named once where it is put together"
    )]
    pub fn new(
        cluster: Cluster,
        clock: Arc<dyn Clock>,
        peer_limits: Arc<PeerLimits>,
        peer_auth: Arc<PeerAuth>,
        rng: Arc<dyn Rng>,
        replica: Replica,
        hints: Hints,
        stamps: Stamps,
        settings: Settings,
    ) -> Arc<Self> {
        let (cluster, stamps) = (Arc::new(cluster), Arc::new(stamps));
        let configurations = Arc::new(Configurations::new(Arc::clone(&cluster), replica.clone()));
        let background = Background::new(&background::Parts {
            cluster: &cluster,
            clock: &clock,
            timestamps: &peer_limits.timestamps,
            rng: &rng,
            replica: &replica,
            hints: &hints,
            stamps: &stamps,
            configurations: &configurations,
            settings: &settings,
        });
        let progress = Arc::clone(&background.anti_entropy.progress);
        let local = LocalReplica::new(Arc::clone(&cluster), replica.clone(), Arc::clone(&stamps), progress);
        Arc::new(Self {
            timestamps: Arc::clone(&peer_limits.timestamps),
            peering: Peering::new(peer_limits, peer_auth, &cluster, &configurations),
            local,
            cluster,
            clock,
            rng,
            replica,
            hints,
            stamps,
            settings,
            metrics: CoordinatorMetrics::default(),
            configurations,
            background,
        })
    }
}
