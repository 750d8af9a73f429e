//! The replica: this node's copy of the data, and the one door through which it changes.
//!
//! Every write, whoever sends it, enters by [`Replica::apply`]: idempotent, order-independent, the newest version
//! wins. A replica never stamps a version and never calls another node.
//!
//! How a write becomes durable: the calling side looks up the stored version (that may read the disk), then queues
//! the record. The commit thread compares the versions, writes one batch with the winners of a group, syncs once, and
//! answers all ([`commit`]). Reads go to the engine directly. [`sweep`] removes expired and deleted records;
//! [`reclaim`] has the engine give their disk space back.

mod answer;
mod batch;
mod commit;
mod courier;
mod digest;
mod facts;
mod floor;
mod health;
mod hints;
mod key_hash;
mod mending;
mod queue;
mod recent;
mod reclaim;
mod stage;
mod sweep;
#[cfg(test)]
mod tests;

pub use crate::storage::EngineStats;
pub use answer::Applied;
pub use batch::{Fetched, Row, Stretch};
pub use commit::{DurabilityMode, Purge};
pub use digest::Digests;
pub use facts::{Facts, Home, Vote};
pub use floor::{Floor, FloorStep, Floors, SealedWord};
pub use health::{StoreHealth, StoreState};
pub use hints::{Hint, HintBounds, Hints, Kept, Waiting};
pub use mending::{Place, Walked};
pub use queue::{COMMIT_QUEUE_BYTES_MAX, COMMIT_QUEUE_LEN_MAX, Source};
pub use reclaim::ReclaimState;
pub use sweep::SweeperState;

use crate::clock::{Clock, Rng, TimestampBound, TooFarAhead};
use crate::crash::{self, Point};
use crate::metrics::StoreMetrics;
use crate::sched::{self, Turns};
use crate::storage::damage::{Damage, Watched};
use crate::storage::delta::{Delta, Folding};
use crate::storage::format::Mark;
use crate::storage::shortage::Shortage;
use crate::storage::{Batch, Change, Durability, Engine, EngineError, Keyspace, Known, Scan, format};
use crate::supervise::{Part, Supervisor, Thread};
use crate::worker::{PoolFull, Pools};
use bytes::Bytes;
use commit::Committer;
use courier::Courier;
use kvorum_core::hlc::LEASE_MILLIS;
use kvorum_core::{Key, NodeId, Partition, Record, Run, UnixMillis, Version};
use queue::{CommitQueue, Observed, Request};
use reclaim::Reclaimer;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};

/// How long the shutdown of the node waits for tables that are being rewritten.
const RECLAIM_END_MAX: Duration = Duration::from_secs(3);
const RECLAIM_END_LOOK: Duration = Duration::from_millis(10);
/// How often the replica opens a store before it reports the store as unusable.
const OPENINGS_MAX: u32 = 5;

/// Where the storage calls of a read or write run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// On the thread that serves the request.
    Inline,
    /// On the bounded worker pool.
    Pool,
}

/// Why a replica did not carry out a request.
#[derive(Debug)]
pub enum ReplicaError {
    /// A bounded queue is full. Nothing was done; a retry can help.
    Overloaded,
    /// The disk is full and the replica refused the request. Nothing was done.
    DiskFull,
    /// The disk filled up while the write was being stored. It is unknown whether it took effect.
    DiskFilledUp,
    /// The machine ran out of a resource while the write was being stored. It is unknown whether it took effect.
    ShortMet {
        /// The resource.
        shortage: Shortage,
    },
    /// The machine ran out of a resource. Nothing was done; the shortage passes, and a retry can help.
    Short {
        /// The resource.
        shortage: Shortage,
    },
    /// An earlier write failed and the store takes no more until the node is restarted.
    Failed {
        /// The cause, and when it happened.
        reason: String,
    },
    /// The engine failed this call. For a write it is unknown whether it took effect.
    Engine(EngineError),
    /// A stored row is not of a format that this release knows.
    Format(format::FormatError),
    /// A record's timestamp, given or stored, is too far ahead of this node's clock. Nothing was done.
    TooFarAhead(TooFarAhead),
    /// A record's value is longer than this node accepts. Nothing was done.
    ValueTooLong {
        /// The length of the value, in bytes.
        bytes: usize,
        /// The longest value that is accepted, in bytes (`--max-value-size`).
        bytes_max: u64,
    },
    /// The replica is shutting down.
    Stopped,
}

impl fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overloaded => f.write_str("a queue of the store is full"),
            Self::DiskFull => f.write_str("the disk of this node is full"),
            Self::DiskFilledUp => {
                f.write_str("the disk of this node filled up while the write was being stored")
            }
            Self::ShortMet { shortage } => write!(f, "while the write was being stored: {shortage}"),
            Self::Short { shortage } => write!(f, "the store waits: {shortage}"),
            Self::Failed { reason } => write!(f, "the store takes no more writes: {reason}"),
            Self::Engine(error) => error.fmt(f),
            Self::Format(error) => write!(f, "a stored row cannot be read: {error}"),
            Self::TooFarAhead(error) => error.fmt(f),
            Self::ValueTooLong { bytes, bytes_max } => {
                write!(f, "a value of {bytes} bytes is longer than --max-value-size allows: {bytes_max}")
            }
            Self::Stopped => f.write_str("the store is shutting down"),
        }
    }
}

impl std::error::Error for ReplicaError {}

impl ReplicaError {
    /// Whether the request was refused because the machine ran out of a resource: nothing was done, and the shortage
    /// passes.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::DiskFull | Self::Short { .. })
    }

    /// Whether bytes on disk differ from those that were written.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Engine(EngineError::Corrupt { .. })
                | Self::Format(format::FormatError::Truncated { .. } | format::FormatError::Contradiction)
        )
    }
}

impl From<TooFarAhead> for ReplicaError {
    fn from(error: TooFarAhead) -> Self {
        Self::TooFarAhead(error)
    }
}

impl From<EngineError> for ReplicaError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::DiskFull { .. } => Self::DiskFull,
            EngineError::Short { shortage, .. } => Self::Short { shortage },
            other => Self::Engine(other),
        }
    }
}

impl From<format::FormatError> for ReplicaError {
    fn from(error: format::FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<PoolFull> for ReplicaError {
    fn from(PoolFull: PoolFull) -> Self {
        Self::Overloaded
    }
}

/// The parts that a replica is made of.
pub struct ReplicaParts {
    /// Where rows are kept.
    pub engine: Arc<dyn Engine>,
    /// Measures the intervals between syncs and between the sweeper's steps.
    pub clock: Arc<dyn Clock>,
    /// How far ahead of the clock a timestamp may be.
    pub timestamps: Arc<TimestampBound>,
    /// The longest value that is accepted from a peer, in bytes.
    pub value_bytes_max: u64,
    /// Source of the store's identity, when the store is new.
    pub rng: Arc<dyn Rng>,
    /// Threads for calls that may wait for the disk.
    pub pools: Arc<Pools>,
    /// Counters of the store.
    pub metrics: Arc<StoreMetrics>,
    /// Where storage calls run.
    pub execution: Execution,
    /// What must be on disk before a write is confirmed.
    pub durability: DurabilityMode,
    /// When tombstones may be purged.
    pub purge: Purge,
    /// The node that owns the store.
    pub node: NodeId,
    /// The URL of the node that the store is bound to. `None` in a cluster of one: every key is placed there.
    pub bound_to: Option<Arc<str>>,
    /// Facts that a new store is created with.
    pub birth: Birth,
    /// How many of a token's bits name its partition.
    pub partition_bits: u8,
    /// Memory for the newest rows of the index, in bytes.
    pub index_bytes: usize,
    /// Where the committer and the sweeper run.
    pub workers: Workers,
    /// Notices when one of the replica's threads ends.
    pub supervisor: Supervisor,
}

/// Facts that a store is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// Whether its answers count in quorums at once.
    pub vote: Vote,
    /// The hash of the nodes among which keys are placed.
    pub topology: u64,
}

/// Where the replica's own work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// On threads of their own: a commit waits for the disk.
    Threads,
    /// As local tasks of the calling thread: for engines that never wait, in the simulation.
    Tasks,
}

/// The node's copy of the data. Cheap to clone.
#[derive(Clone)]
pub struct Replica {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<dyn Engine>,
    pools: Arc<Pools>,
    execution: Execution,
    timestamps: Arc<TimestampBound>,
    value_bytes_max: u64,
    queue: Arc<CommitQueue>,
    groups: Arc<AtomicU64>,
    health: Arc<StoreHealth>,
    digests: Option<Arc<Digests>>,
    damage: Arc<Damage>,
    floors: Option<Arc<Floors>>,
    sweeper: Arc<SweeperState>,
    reclaimer: Arc<ReclaimState>,
    store_id: u128,
    bound_to: Option<(NodeId, Arc<str>)>,
    run: Run,
    topology: u64,
    is_new: bool,
    workers: Workers,
    supervisor: Supervisor,
}

/// The replica's threads; dropping them commits the queued writes and ends the threads.
pub struct ReplicaThreads {
    queue: Arc<CommitQueue>,
    sweeper: Arc<SweeperState>,
    reclaimer: Arc<ReclaimState>,
    threads: Vec<Thread>,
    reclaims: Option<Thread>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Replica {
    /// Starts a replica over an open engine. Returns it with the clock lease that the previous run stored.
    ///
    /// # Errors
    /// When the store's own rows cannot be read or written, or a thread cannot be started.
    pub fn start(mut parts: ReplicaParts) -> Result<(Self, ReplicaThreads, UnixMillis), ReplicaError> {
        let damage = Arc::new(Damage::default());
        parts.engine = Arc::new(Watched::new(over_index(&parts)?, Arc::clone(&damage)));
        let lease = stored_lease(&parts)?;
        // Writes that the previous run did not sync are visible now: they must be durable before anybody reads them.
        crash::point(Point::StartBeforeSync);
        sync_first(&*parts.engine)?;
        crash::point(Point::StartAfterSync);
        let (store_id, is_new, run) = begin_run(&parts, lease)?;
        let queue = Arc::new(CommitQueue::new());
        let health = Arc::new(StoreHealth::default());
        let groups = Arc::new(AtomicU64::new(0));
        let sweeper = Arc::new(SweeperState::default());
        let state = Arc::new(ReclaimState::default());
        let (digests, floors) = match parts.purge {
            Purge::Keep => {
                let digests = Digests::open(&*parts.engine, parts.partition_bits)?;
                let floors = Floors::open(&*parts.engine, parts.partition_bits)?;
                (Some(Arc::new(digests)), Some(Arc::new(floors)))
            }
            Purge::Sole => (None, None),
        };
        let (known, counted) = (Arc::clone(&health), Arc::clone(&groups));
        let reclaimer = Reclaimer {
            engine: Arc::clone(&parts.engine),
            clock: Arc::clone(&parts.clock),
            health: Arc::clone(&health),
            digests: digests.clone(),
            metrics: Arc::clone(&parts.metrics),
            state: Arc::clone(&state),
        };
        let committer = Committer::new(&parts, digests.clone(), floors.clone(), counted, known);
        let replica = Self {
            shared: Arc::new(Shared {
                engine: parts.engine,
                pools: parts.pools,
                execution: parts.execution,
                timestamps: parts.timestamps,
                value_bytes_max: parts.value_bytes_max,
                queue: Arc::clone(&queue),
                groups,
                health,
                digests,
                damage,
                floors,
                sweeper: Arc::clone(&sweeper),
                reclaimer: Arc::clone(&state),
                store_id,
                bound_to: parts.bound_to.map(|url| (parts.node, url)),
                run,
                topology: parts.birth.topology,
                is_new,
                workers: parts.workers,
                supervisor: parts.supervisor.clone(),
            }),
        };
        let threads = ReplicaThreads {
            queue,
            sweeper,
            reclaimer: state,
            threads: Vec::new(),
            reclaims: None,
            tasks: Vec::new(),
        };
        let threads = threads.start(&replica, parts.clock, committer, reclaimer)?;
        Ok((replica, threads, lease))
    }

    /// Applies `record` to `key`: stores it unless the stored record is newer.
    ///
    /// Returns once the record is as durable as the mode asks. Applying the same record again changes nothing.
    ///
    /// # Errors
    /// [`ReplicaError::Overloaded`], [`ReplicaError::DiskFull`] and [`ReplicaError::Stopped`] mean that nothing was
    /// done. After any other error the write is of unknown outcome.
    ///
    /// # Cancel safety
    /// Once queued, the record is applied whether or not the future is still polled.
    pub async fn apply(&self, key: Key, record: Record, source: Source) -> Result<Applied, ReplicaError> {
        let admitted = self.admit(&record, source);
        let observed = match (admitted, self.observe(&key).await) {
            (Ok(()), observed) => observed?,
            (Err(refusal), Ok(Observed { mark: Some(mark), .. })) if refusal.is_shortage() => {
                return Self::held(mark, &record).ok_or(refusal);
            }
            (Err(refusal), _) => return Err(refusal),
        };
        let (done, outcome) = oneshot::channel();
        let courier = Courier::of_thread();
        self.shared.queue.submit(Request::Apply { key, record, source, observed, done, courier })?;
        // The commit thread answers every queued request before it ends. If it sends no answer it has died, perhaps
        // after it wrote the record.
        let died =
            || ReplicaError::Failed { reason: "the commit thread ended before it answered".to_owned() };
        outcome.await.map_err(|_| died())?
    }

    /// Refuses a record from the future, a value that is too long, and any record that the store's health rules out.
    fn admit(&self, record: &Record, source: Source) -> Result<(), ReplicaError> {
        let (bytes, bytes_max) = (record.value_bytes(), self.shared.value_bytes_max);
        if bytes as u64 > bytes_max {
            return Err(ReplicaError::ValueTooLong { bytes, bytes_max });
        }
        self.shared.timestamps.check(record.version.clock())?;
        self.shared.health.admit(record, source)
    }

    /// How far ahead of this node's clock a timestamp may be.
    pub fn timestamps(&self) -> &TimestampBound {
        &self.shared.timestamps
    }

    /// The answer to a record that was refused for a shortage but need not be stored: the replica holds it, or a newer
    /// one. `None` when it would have to be stored.
    fn held(mark: Mark, record: &Record) -> Option<Applied> {
        match mark.version.cmp(&record.version) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(Applied::Stored),
            std::cmp::Ordering::Greater => Some(Applied::Superseded { by: mark.version, memory_millis: 0 }),
        }
    }

    /// The version that a write to `key` must exceed to be the newest here: the stored version, or the highest version
    /// that may not come in any more. The stored version counts also when its record cannot be read.
    ///
    /// # Errors
    /// Errors of reading; [`ReplicaError::TooFarAhead`] for a record from the future: nobody may stamp above it.
    pub async fn newest(&self, key: &Key) -> Result<Version, ReplicaError> {
        let observed = self.observe(key).await?;
        let stored = observed.mark.map_or(Version::ZERO, |mark| mark.version);
        let barred = self.shared.digests.as_deref().zip(self.floors());
        let barred = barred.map(|(digests, floors)| floors.barred_upto(digests.partition_of(key)));
        let newest = stored.max(barred.unwrap_or(Version::ZERO));
        self.shared.timestamps.check(newest.clock())?;
        Ok(newest)
    }

    /// The stored record of `key`, tombstones and expired records included.
    ///
    /// # Errors
    /// Errors of reading; [`ReplicaError::TooFarAhead`] for a record from the future, which no quorum may count.
    pub async fn get(&self, key: &Key) -> Result<Option<Record>, ReplicaError> {
        let row = self.row(key).await?;
        let record = row.map(|row| format::decode_record(&row)).transpose()?;
        if let Some(record) = &record {
            self.shared.timestamps.check(record.version.clock())?;
        }
        Ok(record)
    }

    /// Reads the records of start <= key < end (all later ones without `end`), as of one instant.
    pub async fn scan(&self, start: Key, end: Option<Key>) -> Result<RangeReader, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let open = move || {
            let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_ref()));
            engine.scan(Keyspace::Records, start.as_ref(), end)
        };
        let scan = self.shared.pools.serving.run(open).await??;
        Ok(RangeReader { pools: Arc::clone(&self.shared.pools), scan: Some(scan) })
    }

    /// The digests of this replica's partitions, for comparison with another replica's; `None` in a cluster of one.
    pub fn digests(&self) -> Option<&Digests> {
        self.shared.digests.as_deref()
    }

    /// One number for the records up to timestamp `upto` that the node of rank `rank` among `nodes` must have in common
    /// with the others. Scans the partition's index in the background pool.
    pub async fn common_upto(
        &self,
        partition: Partition,
        rank: u16,
        nodes: u16,
        upto: u64,
    ) -> Result<u64, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let read = move || digest::common_upto(&*engine, partition, rank, nodes, upto);
        self.shared.pools.background.run(read).await?
    }

    /// The keys of `partition` after `after`, each with its stored record but for the value, in key order: about
    /// `bytes` of them. Also returns whether the partition ends there.
    pub async fn marks(
        &self,
        partition: Partition,
        after: Option<&Key>,
        bytes: usize,
    ) -> Result<(Vec<(Key, Mark)>, bool), ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let mut start = format::encode_token_key(partition, after.map_or(&[], |key| key.as_ref())).to_vec();
        if after.is_some() {
            start.push(0);
        }
        let read = move || {
            let mut marks = Vec::new();
            let mut read = 0;
            let end = format::token_end(partition);
            for pair in engine.scan(Keyspace::Tokens, &start, end.as_ref().map(AsRef::as_ref))? {
                let (row, mark) = pair?;
                let (_, key) = format::decode_token_key(&row)?;
                if read >= bytes {
                    return Ok((marks, false));
                }
                read += row.len() + mark.len();
                let Ok(key) = Key::new(key) else { continue };
                marks.push((key, format::decode_mark(&mark)?));
            }
            Ok::<_, ReplicaError>((marks, true))
        };
        self.shared.pools.background.run(read).await?
    }

    /// Begins to store a lease of the node's clock, durably whatever the durability of writes is. Leases are stored in
    /// the order of the calls. The caller may wait for the returned outcome or drop it.
    pub fn begin_lease(&self, until: UnixMillis) -> Result<LeaseStored, ReplicaError> {
        let key = Bytes::from_static(format::META_CLOCK_LEASE);
        let row = Change::Put { keyspace: Keyspace::Meta, key, value: format::encode_lease(until) };
        crash::point(Point::LeaseBefore);
        Ok(LeaseStored { until, outcome: self.begin_side(vec![row], true)? })
    }

    /// Stores rows that are no records, all or none; `is_synced` when they must survive a power loss whatever the
    /// durability of writes is.
    async fn store_side(&self, changes: Vec<Change>, is_synced: bool) -> Result<(), ReplicaError> {
        self.begin_side(changes, is_synced)?.await.map_err(|_| ReplicaError::Stopped)?
    }

    /// Like [`Self::store_side`], for a caller that does not wait for the outcome.
    fn begin_side(&self, changes: Vec<Change>, is_synced: bool) -> Result<SideStored, ReplicaError> {
        let (done, outcome) = oneshot::channel();
        self.shared.queue.submit(Request::Side { changes, is_synced, done })?;
        Ok(outcome)
    }

    /// Makes the calling thread's writes share their wake-ups, until the future is dropped. Each network thread runs
    /// it once; on a thread that does not, writes work the same and cost more.
    pub async fn share_wakeups(&self) {
        if self.shared.workers == Workers::Tasks {
            // In this mode one thread runs several nodes, and waking a task costs no system call.
            return;
        }
        Courier::serve(|| self.shared.queue.wake()).await;
    }

    /// Whether the store takes writes, and if not, why.
    pub fn health(&self) -> StoreState {
        self.shared.health.state()
    }

    /// The supervisor, which notices when a thread or task of the node ends.
    pub fn supervisor(&self) -> &Supervisor {
        &self.shared.supervisor
    }

    /// The random identity of this store, made when it was created.
    pub fn store_id(&self) -> u128 {
        self.shared.store_id
    }

    /// The run that this start of the store began.
    pub fn run(&self) -> Run {
        self.shared.run
    }

    /// Whether the store was created in this run of the node.
    pub fn is_new(&self) -> bool {
        self.shared.is_new
    }

    /// The state of the sweeper.
    pub fn sweeper(&self) -> &SweeperState {
        &self.shared.sweeper
    }

    /// The state of the reclaimer.
    pub fn reclaimer(&self) -> &ReclaimState {
        &self.shared.reclaimer
    }

    /// The partition of `key`; where there are no digests, in a cluster of one, always the first.
    fn partition_of(&self, key: &Key) -> Partition {
        self.shared.digests.as_ref().map_or(Partition(0), |digests| digests.partition_of(key))
    }

    /// Number of requests that wait for the commit thread.
    pub fn queue_len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Number of queued writes that clients wait for.
    pub fn awaited_len(&self) -> usize {
        self.shared.queue.awaited_len()
    }

    /// The engine's gauges.
    pub fn engine_stats(&self) -> EngineStats {
        self.shared.engine.stats()
    }

    /// The stored row of `key`, read on this thread or on the pool.
    async fn row(&self, key: &Key) -> Result<Option<Bytes>, ReplicaError> {
        match self.shared.execution {
            Execution::Inline => Ok(self.shared.engine.get(Keyspace::Records, key.as_ref())?),
            Execution::Pool => {
                let (engine, key) = (Arc::clone(&self.shared.engine), key.clone());
                Ok(self
                    .shared
                    .pools
                    .serving
                    .run(move || engine.get(Keyspace::Records, key.as_ref()))
                    .await??)
            }
        }
    }

    /// The stored version of `key`, and the number of groups committed before it was looked up. Runs where reads run.
    async fn observe(&self, key: &Key) -> Result<Observed, ReplicaError> {
        // Load the count before the look-up: the committer still remembers every group that the count leaves out.
        let as_of = self.shared.groups.load(Ordering::Acquire);
        if let Some(digests) = &self.shared.digests {
            match digests.mark_at_hand(&*self.shared.engine, key)? {
                Known::Nothing => {}
                Known::Removed => return Ok(Observed { mark: None, as_of }),
                Known::Stored(mark) => return Ok(Observed { mark: Some(mark), as_of }),
            }
        }
        let row = self.row(key).await;
        let mark = match row {
            Ok(row) => row.map(|row| format::decode_record_mark(&row)).transpose()?,
            Err(error) if error.is_damage() => self.indexed_mark(key, error)?,
            Err(error) => return Err(error),
        };
        Ok(Observed { mark, as_of })
    }
}

/// The outcome of storing rows that are no records.
type SideStored = oneshot::Receiver<Result<(), ReplicaError>>;

/// A lease that is being stored.
#[derive(Debug)]
pub struct LeaseStored {
    /// Until when the lease reaches.
    pub until: UnixMillis,
    outcome: SideStored,
}

impl LeaseStored {
    /// Waits until the lease is stored; returns until when it reaches.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the commit thread from storing the lease.
    pub async fn wait(mut self) -> Result<UnixMillis, ReplicaError> {
        let outcome = (&mut self.outcome).await;
        self.told(outcome.map_err(|_| ReplicaError::Stopped)?)
    }

    /// The outcome, once it is known; `None` before.
    pub fn poll(&mut self) -> Option<Result<UnixMillis, ReplicaError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(self.told(outcome)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(ReplicaError::Stopped)),
        }
    }

    fn told(&self, outcome: Result<(), ReplicaError>) -> Result<UnixMillis, ReplicaError> {
        outcome?;
        crash::point(Point::LeaseAfter);
        Ok(self.until)
    }
}

/// The lease that the previous run stored. Returns 0 when that lease is too far ahead to be believed: no version need
/// be stamped above it, and the versions of this run carry another writer id anyway.
fn stored_lease(parts: &ReplicaParts) -> Result<UnixMillis, ReplicaError> {
    let Some(row) = parts.engine.get(Keyspace::Meta, format::META_CLOCK_LEASE)? else {
        return Ok(UnixMillis(0));
    };
    let lease = format::decode_lease(&row)?;
    // Subtract one lease: the last stamped version may have been as far ahead as the bound allows.
    let begin = UnixMillis(lease.0.saturating_sub(LEASE_MILLIS));
    Ok(match parts.timestamps.check(Version::new(begin, 0, parts.node).clock()) {
        Ok(()) => lease,
        Err(error) => {
            tracing::warn!(%error, "the stored lease of this node's clock is implausible and ignored: versions \
                                    continue from the current time");
            UnixMillis(0)
        }
    })
}

/// The engine with the index's delta over it; a sole replica has no index.
fn over_index(parts: &ReplicaParts) -> Result<Arc<dyn Engine>, ReplicaError> {
    let engine = Arc::clone(&parts.engine);
    if parts.purge == Purge::Sole {
        return Ok(engine);
    }
    let folding = match parts.workers {
        Workers::Threads => Folding::Beside,
        Workers::Tasks => Folding::Within,
    };
    Ok(Arc::new(Delta::open(engine, parts.index_bytes, folding, &parts.supervisor)?))
}

/// Sets the unclean-shutdown mark when this run confirms writes before they are synced; a clean shutdown removes it.
///
/// If the previous run left the mark, it may have lost confirmed writes. Then every partition of this node is durably
/// marked as needing repair before anything is written.
fn mark_unclean(parts: &ReplicaParts, lease: UnixMillis) -> Result<(), ReplicaError> {
    let was_cut_short = parts.engine.get(Keyspace::Meta, format::META_UNSYNCED)?.is_some();
    let (keyspace, key) = (Keyspace::Meta, Bytes::from_static(format::META_UNSYNCED));
    let mut batch = Batch::new();
    if was_cut_short {
        tracing::warn!(
            "unclean shutdown with a --durability below always: acknowledged writes may be missing; this node \
             compares all partitions with the other nodes"
        );
        batch.extend(Partition::all(parts.partition_bits).map(|partition| Change::Put {
            keyspace,
            key: format::encode_gap_key(parts.node, partition.0),
            value: format::encode_lease(lease),
        }));
    }
    match (parts.durability == DurabilityMode::Always, was_cut_short) {
        (true, true) => batch.push(Change::Remove { keyspace, key }),
        (false, false) => batch.push(Change::Put { keyspace, key, value: Bytes::from_static(&[1]) }),
        (true, false) | (false, true) => {}
    }
    if !batch.is_empty() {
        crash::point(Point::UncleanBefore);
        parts.engine.commit(batch, Durability::Synced)?;
        crash::point(Point::UncleanAfter);
    }
    Ok(())
}

/// The store's identity, which is created and stored when there is none; and whether it was created now.
fn store_id(engine: &dyn Engine, rng: &dyn Rng, birth: Birth) -> Result<(u128, bool), ReplicaError> {
    if let Some(row) = engine.get(Keyspace::Meta, format::META_STORE_ID)? {
        return Ok((format::decode_store_id(&row)?, false));
    }
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    let id = u128::from_be_bytes(bytes);
    let row = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
    let home = if birth.vote == Vote::No { format::META_BEGUN_AMONG } else { format::META_TOPOLOGY };
    // In one batch: a store that does not know yet whether it is quorum-eligible must not forget that when it is
    // reopened.
    let batch = vec![
        row(format::META_STORE_ID, format::encode_store_id(id)),
        row(format::META_VOTES, Bytes::copy_from_slice(&[birth.vote.code()])),
        row(home, format::encode_lease(UnixMillis(birth.topology))),
    ];
    crash::point(Point::BirthBefore);
    engine.commit(batch, Durability::Synced)?;
    crash::point(Point::BirthAfter);
    Ok((id, true))
}

/// Stores the rows that a run begins with. Returns the store's identity, whether it was created now, and the run.
fn begin_run(parts: &ReplicaParts, lease: UnixMillis) -> Result<(u128, bool, Run), ReplicaError> {
    let (id, is_new) = store_id(&*parts.engine, &*parts.rng, parts.birth)?;
    let run = count_run(parts)?;
    if parts.purge == Purge::Keep {
        mark_unclean(parts, lease)?;
    }
    Ok((id, is_new, run))
}

/// Durably counts this start of the store before any other node hears of it. Other nodes remember the latest run that
/// they saw. So they recognise a copy of the store that is older, or that is used at the same time.
///
/// A store that is not bound to a node yet is bound to this one.
fn count_run(parts: &ReplicaParts) -> Result<Run, ReplicaError> {
    let (engine, rng) = (&*parts.engine, &*parts.rng);
    let before = engine.get(Keyspace::Meta, format::META_RUN)?;
    let before = before.map(|row| format::decode_run(&row)).transpose()?.unwrap_or_default();
    let mut nonce = [0; 8];
    rng.fill(&mut nonce);
    let run = Run { number: before.number.saturating_add(1), nonce: u64::from_be_bytes(nonce) };
    let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
    let mut batch = vec![put(format::META_RUN, format::encode_run(run))];
    if let Some(url) = &parts.bound_to
        && engine.get(Keyspace::Meta, format::META_NODE)?.is_none()
    {
        batch.push(put(format::META_NODE, format::encode_node(parts.node, url)));
    }
    let votes = engine.get(Keyspace::Meta, format::META_VOTES)?;
    if parts.birth.vote == Vote::Yes && votes.is_some_and(|row| row.first() == Some(&format::VOTES_UNKNOWN)) {
        // The store was created before the operator vouched that no older store exists.
        batch.push(put(format::META_VOTES, Bytes::from_static(&[format::VOTES_YES])));
    }
    crash::point(Point::RunBefore);
    match engine.commit(batch, Durability::Synced) {
        // The run is not counted, so no node is told of it: a store on a full disk must stay readable.
        Err(EngineError::DiskFull { .. }) => return Ok(before),
        outcome => outcome?,
    }
    crash::point(Point::RunAfter);
    Ok(run)
}

impl ReplicaThreads {
    /// Commits the queued writes and ends the replica's work, where it runs as tasks.
    ///
    /// # Cancel safety
    /// Dropping the future ends the work at once, as a crash would.
    pub async fn finish(mut self) {
        self.sweeper.stop();
        self.queue.close();
        for task in self.tasks.drain(..) {
            let _ = task.await;
        }
    }
}

impl ReplicaThreads {
    /// Starts the commit thread, the sweeper and the reclaimer, or the tasks in their place.
    fn start(
        mut self,
        replica: &Replica,
        clock: Arc<dyn Clock>,
        mut committer: Committer,
        reclaimer: Reclaimer,
    ) -> Result<Self, ReplicaError> {
        let (queue, sweeper, swept) = (Arc::clone(&self.queue), Arc::clone(&self.sweeper), replica.clone());
        let supervisor = replica.supervisor();
        let failed = |source| EngineError::of_io("start a thread of the store", source);
        match replica.shared.workers {
            Workers::Threads => {
                let commit = move || {
                    sched::take_own(Turns::Prompt);
                    while let Some(group) = queue.take(committer.idle_wait(), committer.gather_wait()) {
                        crash::step(Part::Commit);
                        committer.commit(group);
                    }
                    committer.finish();
                };
                self.threads.push(supervisor.thread(Part::Commit, None, commit).map_err(failed)?);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                let runtime = runtime.map_err(failed)?;
                let sweep = move || runtime.block_on(sweeper.run(&swept, &*clock));
                self.threads.push(supervisor.thread_again(Part::Sweep, sweep).map_err(failed)?);
                let reclaims = supervisor.thread_again(Part::Reclaim, move || reclaimer.run());
                self.reclaims = Some(reclaims.map_err(failed)?);
            }
            Workers::Tasks => {
                self.tasks.push(tokio::task::spawn_local(async move {
                    while let Some(group) = queue.take_async(committer.idle_wait()).await {
                        let latency = committer.latency();
                        if !latency.is_zero() {
                            tokio::time::sleep(latency).await;
                        }
                        committer.commit(group);
                    }
                    committer.finish();
                }));
                self.tasks.push(tokio::task::spawn_local(async move { sweeper.run(&swept, &*clock).await }));
            }
        }
        Ok(self)
    }

    /// Waits up to [`RECLAIM_END_MAX`] for the reclaimer's current piece of work. It need not finish: the engine does
    /// not use the new tables before it has, and keeps the old ones until then.
    fn end_reclaimer(&mut self) {
        let Some(thread) = self.reclaims.take() else { return };
        let mut waited = Duration::ZERO;
        while !thread.is_finished() && waited < RECLAIM_END_MAX {
            #[expect(clippy::disallowed_methods, reason = "the node ends, and this thread serves nobody")]
            thread::sleep(RECLAIM_END_LOOK);
            waited += RECLAIM_END_LOOK;
        }
        if thread.is_finished() {
            thread.join();
        } else {
            tracing::info!(
                "the rewrite of tables is stopped with the process: it begins again after a start"
            );
        }
    }
}

impl Drop for ReplicaThreads {
    fn drop(&mut self) {
        self.threads.iter().chain(&self.reclaims).for_each(Thread::may_end);
        self.sweeper.stop();
        self.reclaimer.stop();
        self.queue.close();
        self.threads.drain(..).for_each(Thread::join);
        self.end_reclaimer();
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

/// A reader of a range in parts, each read on the worker pool, so that no network thread waits for the disk.
pub struct RangeReader {
    pools: Arc<Pools>,
    scan: Option<Scan>,
}

impl RangeReader {
    /// The next records, about `bytes` of keys and values; none at the end of the range.
    ///
    /// # Errors
    /// After an error the range is at its end.
    pub async fn next(&mut self, bytes: usize) -> Result<Vec<(Bytes, Record)>, ReplicaError> {
        let Some(mut scan) = self.scan.take() else { return Ok(Vec::new()) };
        let read = move || {
            let mut part = Vec::new();
            let mut read = 0;
            while read < bytes {
                let Some(pair) = scan.next() else { return Ok((part, None)) };
                let (key, row) = pair?;
                read += key.len() + row.len();
                part.push((key, format::decode_record(&row)?));
            }
            Ok::<_, ReplicaError>((part, Some(scan)))
        };
        let (part, rest) = self.pools.serving.run(read).await??;
        self.scan = rest;
        Ok(part)
    }
}

/// Syncs a store that has just been opened. If its background met a full disk meanwhile, the engine has stopped and is
/// opened again. A store on a disk that stays full is opened all the same, so that it can be read.
fn sync_first(engine: &dyn Engine) -> Result<(), EngineError> {
    for _ in 1..OPENINGS_MAX {
        match engine.sync() {
            Err(EngineError::Poisoned { .. }) => engine.reopen()?,
            outcome => return outcome,
        }
    }
    engine.sync()
}

/// Reads the stored version of a key for the committer, without the value. For a record that cannot be read, the index
/// has the version.
fn stored_mark(
    engine: &dyn Engine,
    digests: Option<&Digests>,
    key: &Key,
) -> Result<Option<Mark>, ReplicaError> {
    match (engine.get(Keyspace::Records, key.as_ref()), digests) {
        (Ok(row), _) => Ok(row.map(|row| format::decode_record_mark(&row)).transpose()?),
        (Err(EngineError::Corrupt { .. }), Some(digests)) => digests.mark(engine, key),
        (Err(error), _) => Err(error.into()),
    }
}
