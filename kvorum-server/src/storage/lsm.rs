//! The engine on disk: fjall, an embedded log-structured merge tree, behind [`Engine`].
//!
//! Decided here: how the memory budget is divided, how tables are sized and compressed, what counts as a full disk, and
//! how a poisoned database is reopened. Not decided here: when to sync (the commit thread passes that with each batch),
//! and how fjall's rotations are kept from stalling readers (see `fjall_workarounds`).
//!
//! fjall checksums its blocks and its journal; damage is reported as [`EngineError::Corrupt`], never served.

use super::fjall_workarounds::{HeldResources, inspect, reclaim, uncached, workers};
use super::{Batch, Change, CheckedFile, Durability, Engine, EngineError, EngineStats, Keyspace, Room, Rows};
use super::{Scan, Snapshot, is_empty, quarantine, reserve, wait};
use crate::crash::{self, Point};
use crate::supervise::Supervisor;
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::{
    AbstractTree, Database, KeyspaceCreateOptions, KvSeparationOptions, OwnedWriteBatch, PersistMode,
    Readable,
};
use kvorum_profiler::waits::{self, Wait};
use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Small tables make each unlink and each sync of a compaction short.
pub(super) const TABLE_BYTES: u64 = 16 << 20;
/// The number of runs in level 0 at which they are merged down.
const LEVEL0_RUNS: u8 = 4;
/// The size of the journal on disk; the most is about twice this. It bounds the time to reopen (8 s per GB were
/// measured). fjall's minimum is 64 MiB.
const JOURNAL_BYTES_MAX: u64 = 92 << 20;
/// The size from which values are stored apart from their keys, so that compaction does not copy them again and again.
const SEPARATE_VALUE_BYTES: u32 = 64 << 10;
/// Threads that flush and compact. The first of them takes no compactions: if it is given one, it puts it back and
/// takes it again, without a pause, until another thread takes it. With two threads that cost a core for as long as a
/// compaction ran; with four it happens only while three run at once.
const WORKERS: usize = 4;
/// The smallest memtables and journal of a node, in percent of the largest ([`LsmConfig::staggered`]).
const STAGGER_PERCENT_MIN: u64 = 70;
/// A commit waits from these numbers of level 0 runs and sealed memtables on, and from this multiple of the active
/// memtable's bound. fjall itself waits at 30 runs and 4 sealed memtables, but forever if its background threads have
/// died. It never waits for the active memtable, which grows while the threads that would seal it are busy.
const BEHIND_RUNS: usize = 24;
const BEHIND_SEALED: usize = 3;
const BEHIND_ACTIVE: u64 = 4;
/// How long to wait for snapshots of a store that is set aside: an abandoned scan ends after a minute.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(90);
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
/// The default bound for the bytes of damaged stores that are kept.
const QUARANTINE_BYTES_MAX: u64 = 16 << 30;
/// The most space that must stay free for a flush and a compaction under way.
const RESERVE_BYTES_MAX: u64 = 256 << 20;
/// The same as a fraction of the file system, for small ones: one byte in this many.
const RESERVE_FRACTION: u64 = 20;
/// The most inodes that must stay free: each table, blob file and journal needs one.
const RESERVE_INODES_MAX: u64 = 64;
/// Below this fraction of the space that must stay free, only deletions are accepted. The fraction is at most so many
/// bytes.
const LEAST_FRACTION: u64 = 4;
const LEAST_BYTES_MAX: u64 = 8 << 20;
const LEAST_INODES: u64 = 4;
/// The descriptors that opening the store needs at once: for its journals, lists of tables, and threads.
const OPENING_DESCRIPTORS: usize = 24;
/// The table descriptors that fjall keeps open: the most, and as a fraction of the process's limit.
const TABLE_DESCRIPTORS_MAX: u64 = 900;
const TABLE_DESCRIPTORS_FRACTION: u64 = 8;
/// The most descriptors that [`HeldResources`] holds. Further files are not held, and fjall frees them itself.
const HELD_DESCRIPTORS_MAX: u64 = 4096;
/// The descriptors that compactions use beyond those of the open tables.
const COMPACTION_DESCRIPTORS: u64 = 64;
/// Keyspaces that grow with writes and whose rows are removed: all but `meta`.
const GROWING: [Keyspace; 5] =
    [Keyspace::Records, Keyspace::Tokens, Keyspace::Due, Keyspace::Hints, Keyspace::Delta];

/// The location, memory and other settings of a store.
#[derive(Debug, Clone)]
pub struct LsmConfig {
    /// The directory of the engine's files; created if it does not exist.
    pub path: PathBuf,
    /// Bytes for block cache and memtables together; at least 4 MiB are used.
    pub memory_budget_bytes: u64,
    /// The most bytes of damaged stores that are kept; the newest one is kept whatever its size.
    pub quarantine_bytes_max: u64,
    /// Notices when one of the engine's threads ends.
    pub supervisor: Supervisor,
    /// Whether every batch is synced before the next is written, so that a hole in the journal is damage.
    pub is_synced: bool,
    /// Size of memtables and journal, in percent of the largest that the budget allows.
    buffer_percent: u64,
}

impl LsmConfig {
    /// A store at `path` that uses about `memory_budget_bytes` of memory.
    pub fn new(path: PathBuf, memory_budget_bytes: u64) -> Self {
        let quarantine_bytes_max = QUARANTINE_BYTES_MAX;
        let memory_budget_bytes = memory_budget_bytes.max(4 << 20);
        let supervisor = Supervisor::default();
        Self {
            path,
            memory_budget_bytes,
            quarantine_bytes_max,
            supervisor,
            is_synced: true,
            buffer_percent: 100,
        }
    }

    /// Sets the sizes of memtables and journal by the node's place among all nodes.
    ///
    /// Replicas receive the same records at the same time. With buffers of one size they would all flush at the same
    /// moment, and none could answer for the others meanwhile. Neighbouring places get distant sizes: multiples of the
    /// golden ratio, without their integer part, divide an interval evenly for any number of nodes.
    #[must_use]
    pub fn staggered(self, place: usize) -> Self {
        let step = place as u64 % 1000 * 618_034 % 1_000_000;
        let buffer_percent = 100 - (100 - STAGGER_PERCENT_MIN) * step / 1_000_000;
        Self { buffer_percent, ..self }
    }

    fn journal_bytes_max(&self) -> u64 {
        JOURNAL_BYTES_MAX * self.buffer_percent / 100
    }

    /// Half of the budget is the block cache. The other half is for memtables: a keyspace has one active memtable and,
    /// while the disk keeps up, one or two sealed ones.
    fn cache_bytes(&self) -> u64 {
        self.memory_budget_bytes / 2
    }

    fn records_memtable_bytes(&self) -> u64 {
        (self.memory_budget_bytes / 8).min(64 << 20) * self.buffer_percent / 100
    }

    /// The budget for [`super::delta`]: half of what the memtable of its tree would get, which stays empty. Half,
    /// because growing buffers may have allocated twice the bytes in them.
    pub fn index_bytes(&self) -> usize {
        usize::try_from(self.small_memtable_bytes() / 2).unwrap_or(usize::MAX)
    }

    fn small_memtable_bytes(&self) -> u64 {
        (self.memory_budget_bytes / 32).min(8 << 20) * self.buffer_percent / 100
    }
}

/// An engine that keeps keyspaces in a fjall database.
pub struct LsmEngine {
    config: LsmConfig,
    // Guards the handle against reopening, the only writer. Readers hold it for one engine call; it is a blocking lock
    // because engine calls block anyway. `None` after a failed reopening.
    open: RwLock<Option<Open>>,
    /// Whether the store was created in place of one that was set aside, and nothing has been written to it.
    is_unused: AtomicBool,
}

struct Open {
    // Dropped first: it holds handles of the trees, which must be gone before the database can close.
    _held: HeldResources,
    records: fjall::Keyspace,
    due: fjall::Keyspace,
    meta: fjall::Keyspace,
    hints: fjall::Keyspace,
    tokens: fjall::Keyspace,
    delta: fjall::Keyspace,
    database: Database,
    active_bytes_max: u64,
}

impl LsmEngine {
    /// Opens or creates the store.
    ///
    /// # Errors
    /// [`EngineError::Locked`] while another process has it, [`EngineError::Corrupt`] for a damaged journal or
    /// manifest, [`EngineError::DiskFull`], [`EngineError::Io`].
    pub fn open(config: LsmConfig) -> Result<Self, EngineError> {
        let open = Open::new(&config, WORKERS)?;
        Ok(Self { config, open: RwLock::new(Some(open)), is_unused: AtomicBool::new(false) })
    }

    /// Sets the damaged store of `config` aside, which must not be open in this process, and creates a new one.
    ///
    /// # Errors
    /// As [`LsmEngine::open`].
    pub fn open_anew(config: LsmConfig) -> Result<Self, EngineError> {
        set_aside_closed(&config)?;
        Self::open(config)
    }

    fn with_open<T>(&self, call: impl FnOnce(&Open) -> Result<T, EngineError>) -> Result<T, EngineError> {
        let open: RwLockReadGuard<'_, _> = self.open.read().unwrap_or_else(PoisonError::into_inner);
        call(open.as_ref().ok_or(EngineError::Closed)?)
    }
}

impl Open {
    /// Opens the database. A panic of fjall because of unexpected bytes is treated as damage.
    fn new(config: &LsmConfig, count: usize) -> Result<Self, EngineError> {
        let opened = workers::on_named_thread(|| Self::new_or_panic(config, count));
        let failed = |source| EngineError::of_io("start a thread of the store", source);
        opened.map_err(failed)?.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said =
                said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("for an unknown reason");
            let detail = format!("the engine panicked: {said}");
            Err(EngineError::Corrupt { attempted: "open the store", detail, key: None })
        })
    }

    fn new_or_panic(config: &LsmConfig, workers: usize) -> Result<Self, EngineError> {
        let attempted = "open the store";
        inspect(&config.path, config.is_synced)?;
        // A file that fjall lists and does not find is damage.
        let failed = |error| match translate(attempted, error) {
            EngineError::Io { attempted, source } if source.kind() == io::ErrorKind::NotFound => {
                EngineError::Corrupt { attempted, detail: format!("a file is missing: {source}"), key: None }
            }
            error => error,
        };
        let database = Database::builder(&config.path)
            .cache_size(config.cache_bytes())
            .max_cached_files(Some(
                usize::try_from(table_descriptors(descriptor_limit())).unwrap_or(usize::MAX),
            ))
            .max_journaling_size(config.journal_bytes_max())
            .worker_threads_unchecked(workers)
            .open()
            .map_err(failed)?;
        check_keyspaces(&database)?;
        let keyspace = |name: &str, options: &dyn Fn() -> KeyspaceCreateOptions| {
            database.keyspace(name, options).map_err(|error| translate(attempted, error))
        };
        let small = || {
            let compaction =
                Leveled::default().with_table_target_size(TABLE_BYTES).with_l0_threshold(LEVEL0_RUNS);
            KeyspaceCreateOptions::default()
                .compaction_strategy(Arc::new(compaction))
                .max_memtable_size(config.small_memtable_bytes())
        };
        let records = || {
            let separation = KvSeparationOptions::default().separation_threshold(SEPARATE_VALUE_BYTES);
            small().max_memtable_size(config.records_memtable_bytes()).with_kv_separation(Some(separation))
        };
        // The order matters: see `check_keyspaces`.
        let [records_name, due_name, meta_name, hints_name, tokens_name, delta_name] = NAMES;
        let records = keyspace(records_name, &records)?;
        let due = keyspace(due_name, &small)?;
        let meta = keyspace(meta_name, &small)?;
        let hints = keyspace(hints_name, &small)?;
        let tokens = keyspace(tokens_name, &small)?;
        let delta = keyspace(delta_name, &small)?;
        let held = HeldResources::start(
            &config.path,
            usize::try_from(held_descriptors(descriptor_limit())).unwrap_or(usize::MAX),
            database.clone(),
            [&records, &due, &meta, &hints, &tokens, &delta].map(Clone::clone),
            &config.supervisor,
        )
        .map_err(|source| EngineError::of_io("start the engine's helper threads", source))?;
        let active_bytes_max = BEHIND_ACTIVE * config.records_memtable_bytes();
        Ok(Self { _held: held, records, due, meta, hints, tokens, delta, database, active_bytes_max })
    }

    fn check(&self) -> Result<(), EngineError> {
        self.database.persist(PersistMode::Buffer).map_err(|error| translate("go on", error))
    }

    /// Waits until the background work has caught up enough for one more batch.
    ///
    /// If the background dies meanwhile, it gives no reason. If the disk was full at any time during the wait, that
    /// counts as the reason, even if there is space again by then.
    fn wait_for_background(&self, path: &Path) -> Result<(), EngineError> {
        let mut was_full = false;
        let mut is_sealed = false;
        wait::until_caught_up(|| {
            if !self.is_behind() {
                return Ok(false);
            }
            if !std::mem::replace(&mut is_sealed, true) {
                self.seal_large()?;
            }
            was_full |= is_short_of_space(path);
            self.check().map_err(|error| match error {
                EngineError::Poisoned { attempted } if was_full => EngineError::DiskFull { attempted },
                error => error,
            })?;
            Ok(true)
        })
    }

    /// Seals active memtables that are over the bound. fjall checks only after a write, against the size that the
    /// keyspace was created with. A memtable from the journal, or of a larger budget, would otherwise cause all writes
    /// to be refused for good.
    fn seal_large(&self) -> Result<(), EngineError> {
        for keyspace in self.that_grow() {
            let is_large = keyspace.tree.active_memtable().size() > self.active_bytes_max;
            if is_large && keyspace.tree.sealed_memtable_count() < BEHIND_SEALED {
                keyspace.rotate_memtable().map_err(|error| translate("seal a memtable", error))?;
            }
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        self.that_grow().any(|keyspace| {
            let tree = &keyspace.tree;
            tree.sealed_memtable_count() >= BEHIND_SEALED
                || tree.l0_run_count() >= BEHIND_RUNS
                || tree.active_memtable().size() > self.active_bytes_max
        })
    }

    fn that_grow(&self) -> impl Iterator<Item = &fjall::Keyspace> {
        GROWING.into_iter().map(|keyspace| self.keyspace(keyspace))
    }

    fn keyspace(&self, keyspace: Keyspace) -> &fjall::Keyspace {
        match keyspace {
            Keyspace::Records => &self.records,
            Keyspace::Due => &self.due,
            Keyspace::Meta => &self.meta,
            Keyspace::Hints => &self.hints,
            Keyspace::Tokens => &self.tokens,
            Keyspace::Delta => &self.delta,
        }
    }
}

/// The records of an [`LsmEngine`] at some instant. It keeps the database open.
struct LsmSnapshot {
    snapshot: fjall::Snapshot,
    records: fjall::Keyspace,
}

impl Snapshot for LsmSnapshot {
    fn scan(&self, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        if is_empty(start, end) {
            return Ok(Box::new(std::iter::empty()));
        }
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), end);
        Ok(scan_of(&self.snapshot, &self.records, range))
    }
}

/// The pairs of a range as of a snapshot, which lives as long as the scan.
fn scan_of(
    snapshot: &fjall::Snapshot,
    keyspace: &fjall::Keyspace,
    range: (Bound<&[u8]>, Bound<&[u8]>),
) -> Scan {
    Box::new(snapshot.range::<&[u8], _>(keyspace, range).map(|pair| {
        let (key, value) = pair.into_inner().map_err(|error| translate("read a range", error))?;
        Ok((Bytes::from(key), Bytes::from(value)))
    }))
}

impl Engine for LsmEngine {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.with_open(|open| {
            let value = open.keyspace(keyspace).get(key).map_err(|error| translate("read a key", error))?;
            Ok(value.map(Bytes::from))
        })
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        self.with_open(|open| {
            if is_empty(start, end) {
                return Ok(Box::new(std::iter::empty()) as Scan);
            }
            let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), end);
            Ok(scan_of(&open.database.snapshot(), open.keyspace(keyspace), range))
        })
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.with_open(|open| {
            let (snapshot, records) = (open.database.snapshot(), open.keyspace(Keyspace::Records).clone());
            Ok(Arc::new(LsmSnapshot { snapshot, records }) as Arc<dyn Snapshot>)
        })
    }

    fn check_file(&self, keyspace: Keyspace, after: Option<u64>) -> Result<Option<CheckedFile>, EngineError> {
        // Cloned, so that a reopening of the store stops no reader while a file is read.
        let keyspace = self.with_open(|open| Ok(open.keyspace(keyspace).clone()))?;
        uncached::check_table(&keyspace, after)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        self.with_open(|open| {
            waits::timed(Wait::StorageBackground, || open.wait_for_background(&self.config.path))?;
            // fjall writes and syncs in one call; a crash point between the two needs separate calls.
            let is_split = durability == Durability::Synced && crash::is_armed(Point::CommitBeforeSync);
            let mode = match durability {
                Durability::Synced if !is_split => PersistMode::SyncData,
                Durability::Synced | Durability::Buffered => PersistMode::Buffer,
            };
            let mut write =
                OwnedWriteBatch::with_capacity(open.database.clone(), batch.len()).durability(Some(mode));
            for change in batch {
                match change {
                    Change::Put { keyspace, key, value } => write.insert(open.keyspace(keyspace), key, value),
                    Change::Remove { keyspace, key } => write.remove(open.keyspace(keyspace), key),
                }
            }
            let commit = || write.commit().map_err(|error| translate("write a batch", error));
            waits::timed(Wait::StorageCommit, commit)?;
            if is_split {
                crash::point(Point::CommitBeforeSync);
                let synced = open.database.persist(PersistMode::SyncData);
                synced.map_err(|error| translate("sync the journal", error))?;
            }
            self.is_unused.store(false, Ordering::Relaxed);
            Ok(())
        })
    }

    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError> {
        self.with_open(|open| {
            let failed = |error| translate("write a table", error);
            let mut table = open.keyspace(keyspace).start_ingestion().map_err(failed)?;
            for (key, value) in rows {
                match value {
                    Some(value) => table.write(key, value).map_err(failed)?,
                    None => table.write_tombstone(key).map_err(failed)?,
                }
            }
            table.finish().map_err(failed)
        })
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.with_open(|open| {
            let persist = || open.database.persist(PersistMode::SyncData);
            waits::timed(Wait::StorageSync, persist).map_err(|error| translate("sync the journal", error))
        })
    }

    fn reopen(&self) -> Result<(), EngineError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // The database must be closed before it can be opened: it locks its directory. A compaction that reclaims space
        // may hold it for some more seconds.
        drop(open.take());
        wait_until_released(&self.config.path)?;
        *open = Some(Open::new(&self.config, WORKERS)?);
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        self.with_open(Open::check)
    }

    fn retire(&self) -> Result<(), EngineError> {
        // fjall's remaining worker hands the dead worker's task to itself forever, at the cost of a core. Without
        // workers the store can still be read.
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        drop(open.take());
        wait_until_released(&self.config.path)?;
        *open = Some(Open::new(&self.config, 0)?);
        Ok(())
    }

    fn set_aside(&self) -> Result<(), EngineError> {
        drop(self.open.write().unwrap_or_else(PoisonError::into_inner).take());
        // Not under the lock: readers get the error that the store is closed meanwhile. Scans still hold snapshots of
        // the store, and its workers end with the last of them; the new store must not take its place before.
        wait_until_released(&self.config.path)?;
        if self.is_unused.load(Ordering::Relaxed) {
            // A previous attempt got this far. The new store that it began holds nothing worth keeping.
            quarantine::forget(&self.config.path).map_err(failed_aside)?;
        } else {
            set_aside_closed(&self.config)?;
            self.is_unused.store(true, Ordering::Relaxed);
        }
        let open = Open::new(&self.config, WORKERS)?;
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(open);
        Ok(())
    }

    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError> {
        // The lock is held only for one piece of work at a time: a reopening waits for that.
        let handle = |keyspace| {
            move || self.with_open(|open| Ok((open.database.clone(), open.keyspace(keyspace).clone())))
        };
        // Including `meta`: a journal stays as long as any of its rows is nowhere else.
        for keyspace in GROWING.into_iter().chain([Keyspace::Meta]) {
            if !reclaim::flush(&handle(keyspace), go_on)? {
                return Ok(self.stats().removed_rows);
            }
        }
        // While an older snapshot is being read, no removed row could be dropped yet.
        if self.with_open(|open| Ok(reclaim::is_unread(&open.database)))? {
            for keyspace in GROWING {
                reclaim::keyspace(&self.config.path, &handle(keyspace), go_on)?;
            }
            let (database, meta) = handle(Keyspace::Meta)()?;
            let keyspaces =
                self.with_open(|open| Ok(GROWING.map(|keyspace| open.keyspace(keyspace).clone())))?;
            reclaim::release(&database, &meta, &keyspaces.each_ref())?;
        }
        Ok(self.stats().removed_rows)
    }

    fn has_begun_anew(&self) -> bool {
        quarantine::has_begun_anew(&self.config.path)
    }

    fn forget_beginning(&self) -> Result<(), EngineError> {
        quarantine::forget_beginning(&self.config.path)
            .map_err(|source| EngineError::of_io("remove the mark of a quarantined store", source))
    }

    fn open_reserve(&self) -> Result<bool, EngineError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if !reserve::give_up(&self.config.path) {
            return Ok(false);
        }
        drop(open.take());
        wait_until_released(&self.config.path)?;
        // Without workers: a flush or a compaction would use up the space for deletions, and fail.
        *open = Some(Open::new(&self.config, 0)?);
        Ok(true)
    }

    fn keep_reserve(&self) {
        let Ok(disk) = rustix::fs::statvfs(&self.config.path) else { return };
        let bytes = (reserve_bytes(&disk) / 2).min(reserve::BYTES_MAX);
        if let Err(error) = reserve::keep(&self.config.path, bytes) {
            tracing::debug!(%error, "no space could be kept for deletions on a full disk");
        }
    }

    fn check_supplies(&self) -> Result<(), EngineError> {
        let failed = |error| EngineError::of_io("open the store", error);
        let mut held = Vec::with_capacity(OPENING_DESCRIPTORS);
        for _ in 0..OPENING_DESCRIPTORS {
            #[expect(clippy::disallowed_methods, reason = "a descriptor is what is asked for")]
            held.push(std::fs::File::open(&self.config.path).map_err(failed)?);
        }
        Ok(())
    }

    fn room(&self) -> Room {
        room(&self.config.path)
    }

    fn stats(&self) -> EngineStats {
        let stats = self.with_open(|open| {
            let trees = [&open.records, &open.due, &open.meta, &open.hints, &open.tokens, &open.delta];
            let sum = |of: &dyn Fn(&fjall::Keyspace) -> usize| trees.iter().map(|tree| of(tree) as u64).sum();
            Ok(EngineStats {
                memtable_bytes: open.database.write_buffer_size(),
                journal_bytes: open.database.journal_disk_space().unwrap_or(0),
                journal_count: open.database.journal_count() as u64,
                disk_bytes: open.database.disk_space().unwrap_or(0),
                table_count: sum(&|tree| tree.table_count()),
                record_rows: open.records.approximate_len() as u64,
                removed_rows: open.records.tree.tombstone_count(),
                cache_bytes: open.database.cache_size(),
                cache_hits: sum(&|tree| tree.metrics().block_load_cached_count()),
                cache_misses: sum(&|tree| tree.metrics().block_load_io_count()),
                compactions_active: open.database.active_compactions() as u64,
                compactions_completed: open.database.compactions_completed() as u64,
                compaction_micros: u64::try_from(open.database.time_compacting().as_micros())
                    .unwrap_or(u64::MAX),
                flushes_outstanding: open.database.outstanding_flushes() as u64,
                unflushed_bytes: 0,
                flushes: 0,
            })
        });
        stats.unwrap_or_default()
    }
}

fn failed_aside(source: io::Error) -> EngineError {
    EngineError::of_io("quarantine the store", source)
}

/// Waits until nothing in this process uses the store any more: until then fjall holds a lock on this file.
fn wait_until_released(store: &Path) -> Result<(), EngineError> {
    let lock = OpenOptions::new().read(true).write(true).open(store.join("lock"));
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed_aside(error)),
    };
    let is_released = wait::wait_while(RELEASE_WAIT_MAX, RELEASE_PAUSE, || Ok(lock.try_lock().is_err()))?;
    if is_released { Ok(()) } else { Err(EngineError::Locked) }
}

fn set_aside_closed(config: &LsmConfig) -> Result<(), EngineError> {
    let set_aside = quarantine::set_aside(&config.path, config.quarantine_bytes_max);
    let kept = set_aside.map_err(failed_aside)?;
    tracing::error!(kept = %kept.display(), "a damaged store was quarantined: this node does not read it again");
    Ok(())
}

/// The keyspaces, in the order in which they are created.
const NAMES: [&str; 6] = ["records", "due", "meta", "hints", "tokens", "delta"];

/// Detects a lost keyspace: one that is missing although a later one exists. A crash while a store is created does not
/// cause that, and neither did releases with fewer keyspaces.
fn check_keyspaces(database: &Database) -> Result<(), EngineError> {
    let is_there = NAMES.map(|name| database.keyspace_exists(name));
    let lost = NAMES.iter().zip(is_there).skip_while(|(_, is_there)| *is_there).map(|(name, _)| name).next();
    let has_later = is_there.iter().skip_while(|is_there| **is_there).any(|is_there| *is_there);
    match lost {
        Some(lost) if has_later => Err(EngineError::Corrupt {
            attempted: "open the store",
            detail: format!("the keyspace {lost} is missing"),
            key: None,
        }),
        _ => Ok(()),
    }
}

/// The table descriptors that fjall may keep, if the process may have `limit`.
fn table_descriptors(limit: u64) -> u64 {
    (limit / TABLE_DESCRIPTORS_FRACTION).clamp(16, TABLE_DESCRIPTORS_MAX)
}

/// The descriptors that [`HeldResources`] may hold, likewise.
fn held_descriptors(limit: u64) -> u64 {
    (limit / TABLE_DESCRIPTORS_FRACTION).clamp(16, HELD_DESCRIPTORS_MAX)
}

/// The most descriptors that a store uses if its process may have `limit`: those that fjall and [`HeldResources`] keep, and
/// those of a compaction, which reads and writes many tables.
pub(crate) fn descriptors_max(limit: u64) -> u64 {
    table_descriptors(limit) + held_descriptors(limit) + COMPACTION_DESCRIPTORS + OPENING_DESCRIPTORS as u64
}

fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn is_short_of_space(path: &Path) -> bool {
    room(path) != Room::Enough
}

/// The space that is left, in bytes and in inodes; if the system does not report it, there is enough.
fn room(path: &Path) -> Room {
    let Ok(disk) = rustix::fs::statvfs(path) else { return Room::Enough };
    let (free, reserve) = (disk.f_bavail * disk.f_frsize, reserve_bytes(&disk));
    // Some file systems create inodes as they need them, and report 0 of 0.
    let inodes = if disk.f_files == 0 { u64::MAX } else { disk.f_favail };
    let reserve_inodes = (disk.f_files / RESERVE_FRACTION).min(RESERVE_INODES_MAX);
    if free < (reserve / LEAST_FRACTION).min(LEAST_BYTES_MAX) || inodes < LEAST_INODES {
        Room::Least
    } else if free < reserve || inodes < reserve_inodes {
        Room::Low
    } else {
        Room::Enough
    }
}

/// Bytes that can be written before [`is_short_of_space`]; none if the system does not report it.
pub(super) fn spare_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some((disk.f_bavail * disk.f_frsize).saturating_sub(reserve_bytes(&disk)))
}

fn reserve_bytes(disk: &rustix::fs::StatVfs) -> u64 {
    (disk.f_blocks * disk.f_frsize / RESERVE_FRACTION).min(RESERVE_BYTES_MAX)
}

/// Translates a fjall error for the layers above.
pub(super) fn translate(attempted: &'static str, error: fjall::Error) -> EngineError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            EngineError::of_io(attempted, source)
        }
        // Written by another release of fjall: not damaged, but not readable by this one.
        fjall::Error::InvalidVersion(Some(version)) => EngineError::Io {
            attempted,
            source: io::Error::other(format!(
                "the engine's files have version {version:?}, which this release does not know"
            )),
        },
        fjall::Error::Locked => EngineError::Locked,
        fjall::Error::Poisoned => EngineError::Poisoned { attempted },
        // A block holds several rows and stays until it is compacted, so no single row is named.
        other => EngineError::Corrupt { attempted, detail: other.to_string(), key: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// fjall's threads that yield, of all open stores.
    #[expect(clippy::disallowed_methods, reason = "what the kernel says of a thread is read from /proc")]
    fn yielding_workers() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        stats
            .filter(|stat| {
                let (named, after) = stat.rsplit_once(')').unwrap();
                let nice: i32 = after.split_whitespace().nth(16).unwrap().parse().unwrap();
                named.contains(workers::NAME) && nice >= 10
            })
            .count()
    }

    /// Goal: threads that flush and compact yield to those that serve, however busy the machine was when the store was
    /// opened; a worker that had not run yet used to be missed, because it had no name of its own yet. Method: existing
    /// stores, opened at once, while more threads spin than there are processors.
    #[test]
    fn workers_yield_however_busy_the_machine_is() {
        let directory = tempfile::tempdir().unwrap();
        let open = |index: usize| {
            let path = directory.path().join(index.to_string());
            LsmEngine::open(LsmConfig::new(path, 4 << 20)).unwrap()
        };
        let stores = 0..8;
        stores.clone().for_each(|index| drop(open(index)));
        let is_over = AtomicBool::new(false);
        let opened: Vec<_> = std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let opened = stores.map(|index| (open(index), yielding_workers())).collect();
            is_over.store(true, Ordering::Relaxed);
            opened
        });
        for (index, (_, yielding)) in opened.iter().enumerate() {
            // Workers of other tests may come and go.
            assert!(*yielding >= WORKERS * (index + 1), "store {index}: {yielding}");
        }
    }

    /// The buffers of neighbouring nodes differ by at least a tenth, all within the budget and above fjall's smallest
    /// journal.
    #[test]
    fn neighbours_flush_at_different_times() {
        let percent = |place| {
            let config = LsmConfig::new(PathBuf::new(), 256 << 20).staggered(place);
            assert!(config.journal_bytes_max() >= 64 << 20, "place {place}");
            config.buffer_percent
        };
        assert_eq!(percent(0), 100, "a node alone has what the budget gives");
        for place in 0..1000 {
            assert!(
                percent(place) <= 100 && percent(place).abs_diff(percent(place + 1)) >= 10,
                "place {place}"
            );
        }
        assert!(percent(0).abs_diff(percent(2)) >= 5, "three nodes have three sizes");
    }
}
