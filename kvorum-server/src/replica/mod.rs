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
mod chain;
mod commit;
mod completions;
mod cut;
mod damaged_rows;
mod digest;
mod error;
mod facts;
mod floor;
mod health;
mod hints;
mod key_hash;
mod opening;
mod promise;
mod queue;
mod recent;
mod reclaim;
mod stage;
mod sweep;
#[cfg(test)]
mod tests;
mod threads;

pub use crate::storage::EngineStats;
pub use answer::Applied;
pub use batch::{Fetched, Row, Stretch};
pub use chain::{Chain, ChainError};
pub use commit::{DurabilityMode, Purge};
pub use cut::{CutReader, CutStep, CutView};
pub use damaged_rows::{Place, Walked};
pub use digest::Digests;
pub use error::ReplicaError;
pub use facts::{Facts, Home, Vote};
pub use floor::{Floor, FloorStep, Floors, SealedWord};
pub use health::{StoreHealth, StoreState};
pub use hints::{Hint, HintBounds, Hints, Kept, Waiting};
pub use promise::{PROMISES_LEN_MAX, Prepared, Promises};
pub use queue::{COMMIT_QUEUE_BYTES_MAX, COMMIT_QUEUE_LEN_MAX, Source};
pub use reclaim::ReclaimState;
pub use sweep::SweeperState;
pub use threads::ReplicaThreads;

use crate::clock::{Clock, Rng, TimestampBound};
use crate::crash::{self, Point};
use crate::metrics::StoreMetrics;
use crate::slow::CommitTimes;
use crate::storage::damage::{Damage, Watched};
use crate::storage::format::Mark;
use crate::storage::{Change, Engine, EngineError, Keyspace, Known, Scan, format};
use crate::supervise::Supervisor;
use crate::worker::Pools;
use bytes::Bytes;
use commit::Committer;
use completions::CompletionQueue;
use cut::Cuts;
use kvorum_core::{Key, NodeId, Partition, Record, Run, UnixMillis, Version};
use queue::{CommitQueue, Observed, Request};
use reclaim::Reclaimer;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot::{self, error::TryRecvError};

/// Where the storage calls of a read or write run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// On the thread that serves the request.
    Inline,
    /// On the bounded worker pool.
    Pool,
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
    promises: Arc<Promises>,
    cuts: Arc<Cuts>,
    /// The epoch since which keys are placed as now, which the cluster's view writes here.
    placed_since: Arc<AtomicU64>,
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

impl Replica {
    /// Starts a replica over an open engine. Returns it with the clock lease that the previous run stored.
    ///
    /// # Errors
    /// When the store's own rows cannot be read or written, or a thread cannot be started.
    pub fn start(mut parts: ReplicaParts) -> Result<(Self, ReplicaThreads, UnixMillis), ReplicaError> {
        let damage = Arc::new(Damage::default());
        parts.engine = Arc::new(Watched::new(opening::over_index(&parts)?, Arc::clone(&damage)));
        let lease = opening::stored_lease(&parts)?;
        // Writes that the previous run did not sync are visible now: they must be durable before anybody reads them.
        crash::point(Point::StartBeforeSync);
        opening::sync_first(&*parts.engine)?;
        crash::point(Point::StartAfterSync);
        let (store_id, is_new, run) = opening::begin_run(&parts, lease)?;
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
        let promises = Arc::new(Promises::open(&*parts.engine)?);
        let (cuts, placed_since) = (Arc::new(Cuts::default()), Arc::<AtomicU64>::default());
        let (known, counted) = (Arc::clone(&health), Arc::clone(&groups));
        let reclaimer = Reclaimer {
            engine: Arc::clone(&parts.engine),
            clock: Arc::clone(&parts.clock),
            health: Arc::clone(&health),
            digests: digests.clone(),
            metrics: Arc::clone(&parts.metrics),
            state: Arc::clone(&state),
        };
        let committer =
            Committer::new(&parts, digests.clone(), floors.clone(), Arc::clone(&promises), counted, known)
                .with_cuts(Arc::clone(&cuts))
                .placed_by(Arc::clone(&placed_since));
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
                promises,
                cuts,
                placed_since,
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

    /// Where the epoch is written since which keys are placed as now.
    pub fn placed_since(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.placed_since)
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
                return self.held(&key, mark, &record, source).ok_or(refusal);
            }
            (Err(refusal), _) => return Err(refusal),
        };
        let (done, outcome) = oneshot::channel();
        let completions = CompletionQueue::of_thread();
        let times = CommitTimes::wanted();
        let noted = times.clone();
        self.shared.queue.submit(Request::Apply {
            key,
            record,
            source,
            observed,
            done,
            completions,
            times,
        })?;
        // The commit thread answers every queued request before it ends. If it sends no answer it has died, perhaps
        // after it wrote the record.
        let died =
            || ReplicaError::Failed { reason: "the commit thread ended before it answered".to_owned() };
        let applied = outcome.await.map_err(|_| died())?;
        if let Some(times) = noted {
            times.tell();
        }
        applied
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
    fn held(&self, key: &Key, mark: Mark, record: &Record, source: Source) -> Option<Applied> {
        match mark.version.cmp(&record.version) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(Applied::Stored),
            std::cmp::Ordering::Greater
                if source == Source::Ballot
                    || source == Source::Writer && self.shared.promises.is_contested(key, record.version) =>
            {
                Some(Applied::Contested { by: mark.version })
            }
            std::cmp::Ordering::Greater => Some(Applied::Superseded { by: mark.version, memory_millis: 0 }),
        }
    }

    /// The version that a write to `key` must exceed to be the newest here: the stored version, or the highest version
    /// that may not come in any more, or the ballot that was promised. The stored version counts also when its record
    /// cannot be read.
    ///
    /// # Errors
    /// Errors of reading; [`ReplicaError::TooFarAhead`] for a record from the future: nobody may stamp above it.
    pub async fn newest(&self, key: &Key) -> Result<Version, ReplicaError> {
        let observed = self.observe(key).await?;
        let stored = observed.mark.map_or(Version::ZERO, |mark| mark.version);
        let barred = self.shared.digests.as_deref().zip(self.floors());
        let barred = barred.map(|(digests, floors)| floors.barred_upto(digests.partition_of(key)));
        let barred = barred.unwrap_or(Version::ZERO).max(self.shared.cuts.closed());
        let newest = stored.max(barred).max(self.shared.promises.of(key));
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
        CompletionQueue::serve(|| self.shared.queue.wake()).await;
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
