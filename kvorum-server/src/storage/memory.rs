//! The in-memory engine: the model that the contract suite compares with the engine on disk. Tests and the simulation
//! can inject failures into it.
//!
//! It models durability as far as a process can observe it. Committed but unsynced batches have entries in an undo log,
//! so that a power loss ([`MemoryEngine::crash_keeping`]) can take back any suffix of them. A batch is atomic, as the
//! journal's checksum makes it, so a torn tail is a prefix of whole batches. Every row has a checksum, so that a
//! flipped bit ([`MemoryEngine::flip`]) is found when it is read. A sync costs nothing here, however much is stored.
//!
//! No call blocks: [`Engine::latency`] tells the caller how long a commit is to take. And there is no randomness: the
//! caller decides which batches survive and which bit flips.

use super::shortage::Shortage;
use super::{
    Batch, Change, Durability, Engine, EngineError, EngineStats, Keyspace, Room, Rows, Scan, Snapshot,
    is_empty,
};
use crate::crash::{self, Point};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// The bytes that a row takes on the modelled disk besides its key and value.
const ROW_BYTES: u64 = 32;
/// Writes are refused before the disk is full: when less than this fraction of the capacity is free. Below the second
/// fraction, all writes except deletions are refused.
const RESERVE_FRACTION: u64 = 16;
const LEAST_FRACTION: u64 = 64;
/// The reserve for deletions on a full disk, in bytes.
const RESERVE_BYTES: u64 = 32 << 10;

type Map = BTreeMap<Keyspace, BTreeMap<Bytes, Row>>;

/// An injected failure for the next writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Writes find no space except the reserve, until the fault is cleared and the engine reopened.
    DiskFull,
    /// Writes and reopenings find no descriptors until the fault is cleared and the engine reopened. Nothing is written.
    NoDescriptors,
    /// The background has ended without a reason, until the fault is cleared and the engine reopened.
    BackgroundEnded,
    /// Syncs report an I/O error. A batch that was to be synced is in the journal all the same: it is not visible now,
    /// but it may be there after the store is reopened.
    SyncError,
    /// Writes report an I/O error and change nothing; a reopening fails as well and leaves the store closed.
    WriteError,
}

/// Counters of an engine since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Batches that took effect.
    pub commits: u64,
    /// Successful syncs, including those of synced commits.
    pub syncs: u64,
    /// Power losses.
    pub crashes: u64,
    /// Batches that a power loss undid.
    pub batches_lost: u64,
    /// Unsynced batches that survived a power loss.
    pub batches_survived: u64,
    /// Writes that found no space.
    pub disk_full_errors: u64,
    /// Writes that found no descriptor.
    pub descriptor_errors: u64,
    /// Writes and syncs that reported an I/O error.
    pub write_errors: u64,
    /// Reads that reported an I/O error.
    pub read_errors: u64,
    /// Bits that were flipped.
    pub flips: u64,
    /// Point reads with a wrong checksum.
    pub corrupt_reads: u64,
    /// Disks that were emptied.
    pub wipes: u64,
    /// How often the store was set aside and begun anew; these also count as wipes.
    pub asides: u64,
}

/// An engine that keeps keyspaces in memory.
#[derive(Default)]
pub struct MemoryEngine {
    // Guards all state; held for one call, which never blocks.
    state: Mutex<State>,
    /// Whether its process has ended in the model, although it may still make calls.
    is_cut_off: AtomicBool,
    /// Whether the last reopening failed.
    is_closed: AtomicBool,
}

/// The durable contents of an engine's disk at some instant.
pub struct DiskCopy {
    rows: Map,
    has_begun_anew: bool,
}

/// A stored value and its checksum from when it was written.
#[derive(Clone)]
struct Row {
    value: Bytes,
    checksum: u64,
}

/// The rows that a batch replaced, in order.
type Undo = Vec<(Keyspace, Bytes, Option<Row>)>;

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "what a disk and a process are in, each by itself")]
struct State {
    live: Map,
    /// One entry for each visible unsynced batch, oldest first.
    unsynced: Vec<Undo>,
    /// The batch whose sync failed. The engine is poisoned from then on, so there is never a second one.
    in_doubt: Option<Batch>,
    used_bytes: u64,
    /// The mark beside the store that one was set aside.
    has_begun_anew: bool,
    capacity_bytes: Option<u64>,
    fault: Option<Fault>,
    refuses_tables: bool,
    latency: Duration,
    unreadable: BTreeSet<(Keyspace, Bytes)>,
    poisoned: bool,
    /// Whether the reserve was given up since [`Engine::keep_reserve`]; and how much of it is left while it is open.
    is_reserve_used: bool,
    open_reserve: Option<u64>,
    counters: MemoryCounters,
}

impl MemoryEngine {
    /// An empty engine without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes writes fail from now on, or (`None`) succeed again once the engine has been reopened.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// Sets how long each commit takes from now on; the caller waits that long.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Makes [`Engine::ingest`] alone fail for lack of space; or succeed again.
    pub fn refuse_tables(&self, are_refused: bool) {
        self.lock().refuses_tables = are_refused;
    }

    /// Makes reads of `key` report an I/O error, or succeed again.
    pub fn set_unreadable(&self, keyspace: Keyspace, key: &[u8], unreadable: bool) {
        let key = (keyspace, Bytes::copy_from_slice(key));
        let mut state = self.lock();
        if unreadable {
            state.unreadable.insert(key);
        } else {
            state.unreadable.remove(&key);
        }
    }

    /// Makes every read succeed again.
    pub fn clear_unreadable(&self) {
        self.lock().unreadable.clear();
    }

    /// Bounds the stored bytes, counting keys, values and 32 bytes for each row; `None` for no bound.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.lock().capacity_bytes = capacity_bytes;
    }

    /// Bytes in use, as [`MemoryEngine::set_capacity`] counts them.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes
    }

    /// Ignores all calls of the process from now on until [`MemoryEngine::crash_keeping`], [`MemoryEngine::kill`] or
    /// [`MemoryEngine::wipe`] decide how it ended: whatever the process still does comes too late. A batch that is
    /// written and not yet synced is in the journal.
    pub fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Relaxed);
    }

    fn connected(&self) -> Result<(), EngineError> {
        let is_closed = self.is_cut_off.load(Ordering::Relaxed) || self.is_closed.load(Ordering::Relaxed);
        if is_closed { Err(EngineError::Closed) } else { Ok(()) }
    }

    /// Loses all unsynced batches, as a power loss does.
    pub fn crash(&self) {
        self.crash_keeping(0);
    }

    /// Simulates a power loss that the first `keep` of the unsynced batches survive, whole (all, if there are fewer).
    /// The survivors are on disk from then on. The engine is as after a fresh opening. Returns how many batches were
    /// lost.
    pub fn crash_keeping(&self, keep: usize) -> usize {
        let mut state = self.lock();
        if keep > state.unsynced.len() {
            state.settle_doubt();
        }
        let mut lost = usize::from(state.in_doubt.take().is_some());
        while state.unsynced.len() > keep {
            let undo = state.unsynced.pop().unwrap_or_default();
            state.take_back(undo);
            lost += 1;
        }
        state.counters.crashes += 1;
        state.counters.batches_lost += lost as u64;
        state.counters.batches_survived += state.unsynced.len() as u64;
        state.unsynced.clear();
        state.open_anew();
        self.is_cut_off.store(false, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
        lost
    }

    /// Ends only the process: the operating system still has all written bytes, and a power loss may still lose them.
    /// The engine is as after a fresh opening.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.settle_doubt();
        state.open_anew();
        self.is_cut_off.store(false, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// The number of batches that a power loss now could undo.
    pub fn unsynced_len(&self) -> usize {
        let state = self.lock();
        state.unsynced.len() + usize::from(state.in_doubt.is_some())
    }

    /// Makes the first `count` unsynced batches durable, as the operating system may do at any time.
    pub fn write_back(&self, count: usize) {
        let mut state = self.lock();
        let count = count.min(state.unsynced.len());
        state.unsynced.drain(..count);
    }

    /// Empties the disk, including synced rows.
    pub fn wipe(&self) {
        let mut state = self.lock();
        state.live.clear();
        state.unsynced.clear();
        state.in_doubt = None;
        state.used_bytes = 0;
        state.has_begun_anew = false;
        state.open_anew();
        state.counters.wipes += 1;
        self.is_cut_off.store(false, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// A copy of the rows that would certainly survive a power loss now.
    pub fn copy_of_disk(&self) -> DiskCopy {
        let mut copy = self.copy_of_files();
        let state = self.lock();
        let rows = &mut copy.rows;
        for (keyspace, key, row) in state.unsynced.iter().rev().flat_map(|undo| undo.iter().rev()) {
            let rows = rows.entry(*keyspace).or_default();
            match row {
                Some(row) => rows.insert(key.clone(), row.clone()),
                None => rows.remove(key),
            };
        }
        drop(state);
        copy
    }

    /// The same plus the rows that only the operating system holds: the files after an orderly stop.
    pub fn copy_of_files(&self) -> DiskCopy {
        let state = self.lock();
        DiskCopy { rows: state.live.clone(), has_begun_anew: state.has_begun_anew }
    }

    /// Replaces everything stored with an older copy, like a restored backup. The engine is as after a fresh opening.
    pub fn put_back(&self, DiskCopy { rows, has_begun_anew }: DiskCopy) {
        let mut state = self.lock();
        state.has_begun_anew = has_begun_anew;
        let cost = |(key, row): (&Bytes, &Row)| row_bytes(key, &row.value);
        state.used_bytes = rows.values().flatten().map(cost).sum();
        state.live = rows;
        state.unsynced.clear();
        state.in_doubt = None;
        state.open_anew();
        self.is_cut_off.store(false, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// Exchanges everything stored with `other`, like two swapped disks. Both were stopped in order, so nothing is
    /// unsynced. The engines are as after a fresh opening.
    pub fn exchange(&self, other: &Self) {
        let (mut ours, mut theirs) = (self.lock(), other.lock());
        let (ours, theirs) = (&mut *ours, &mut *theirs);
        std::mem::swap(&mut ours.live, &mut theirs.live);
        std::mem::swap(&mut ours.used_bytes, &mut theirs.used_bytes);
        std::mem::swap(&mut ours.has_begun_anew, &mut theirs.has_begun_anew);
        for state in [ours, theirs] {
            state.unsynced.clear();
            state.in_doubt = None;
            state.poisoned = false;
        }
        for engine in [self, other] {
            engine.is_cut_off.store(false, Ordering::Relaxed);
        }
    }

    /// Flips one bit of one stored row, both chosen by `choice`. Returns the row's key; none if nothing is stored.
    pub fn flip(&self, keyspace: Keyspace, choice: u64) -> Option<Bytes> {
        let mut state = self.lock();
        let rows = state.live.get_mut(&keyspace)?;
        let count = u64::try_from(rows.len()).ok().filter(|count| *count > 0)?;
        let nth = usize::try_from(choice % count).ok()?;
        let (key, row) = rows.iter_mut().nth(nth)?;
        let bit = choice / count;
        let mut bytes = row.value.to_vec();
        match u64::try_from(bytes.len()).ok().filter(|len| *len > 0) {
            Some(len) => {
                let at = usize::try_from(bit / 8 % len).ok()?;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (bit % 8);
                }
                row.value = Bytes::from(bytes);
            }
            // A row with an empty value still has its checksum on disk.
            None => row.checksum ^= 1 << (bit % 64),
        }
        let key = key.clone();
        state.counters.flips += 1;
        Some(key)
    }

    /// The number of rows in a keyspace.
    pub fn row_count(&self, keyspace: Keyspace) -> usize {
        self.lock().live.get(&keyspace).map_or(0, BTreeMap::len)
    }

    /// The counters so far.
    pub fn counters(&self) -> MemoryCounters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    fn new(keyspace: Keyspace, key: &[u8], value: Bytes) -> Self {
        let checksum = checksum(keyspace, key, &value);
        Self { value, checksum }
    }

    /// The value, if its checksum is right.
    fn read(&self, keyspace: Keyspace, key: &[u8], attempted: &'static str) -> Result<Bytes, EngineError> {
        if checksum(keyspace, key, &self.value) == self.checksum {
            return Ok(self.value.clone());
        }
        let detail = format!("the checksum of {} in {keyspace:?} does not fit", key.escape_ascii());
        Err(EngineError::Corrupt { attempted, detail, key: Some(Bytes::copy_from_slice(key)) })
    }
}

fn checksum(keyspace: Keyspace, key: &[u8], value: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(keyspace as u64).to_le_bytes());
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    hash.digest()
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ROW_BYTES
}

fn injected(attempted: &'static str) -> EngineError {
    EngineError::Io { attempted, source: std::io::Error::other("injected") }
}

impl State {
    /// Checks whether a write may begin. A refusal poisons the engine.
    fn admit(&mut self, attempted: &'static str) -> Result<(), EngineError> {
        if self.poisoned {
            return Err(EngineError::Poisoned { attempted });
        }
        match self.fault {
            Some(Fault::DiskFull) if self.open_reserve.is_none() => Err(self.disk_full(attempted)),
            Some(Fault::NoDescriptors) => Err(self.no_descriptors(attempted)),
            Some(Fault::BackgroundEnded) => {
                self.poisoned = true;
                Err(EngineError::Poisoned { attempted })
            }
            Some(Fault::WriteError) => Err(self.write_error(attempted)),
            Some(Fault::SyncError | Fault::DiskFull) | None => Ok(()),
        }
    }

    fn disk_full(&mut self, attempted: &'static str) -> EngineError {
        self.poisoned = true;
        self.counters.disk_full_errors += 1;
        EngineError::DiskFull { attempted }
    }

    fn no_descriptors(&mut self, attempted: &'static str) -> EngineError {
        self.poisoned = true;
        self.counters.descriptor_errors += 1;
        EngineError::Short { attempted, shortage: Shortage::Descriptors }
    }

    /// Forgets the process's state of the open store.
    fn open_anew(&mut self) {
        self.poisoned = false;
        self.open_reserve = None;
    }

    fn write_error(&mut self, attempted: &'static str) -> EngineError {
        self.poisoned = true;
        self.counters.write_errors += 1;
        injected(attempted)
    }

    /// Bytes that `batch` adds; a batch that only replaces or removes adds none.
    fn growth(&self, batch: &Batch) -> u64 {
        let (mut added, mut given_back) = (0, 0);
        for change in batch {
            let (keyspace, key) = match change {
                Change::Put { keyspace, key, value } => {
                    added += row_bytes(key, value);
                    (keyspace, key)
                }
                Change::Remove { keyspace, key } => (keyspace, key),
            };
            if let Some(row) = self.row(*keyspace, key) {
                given_back += row_bytes(key, &row.value);
            }
        }
        added.saturating_sub(given_back)
    }

    fn row(&self, keyspace: Keyspace, key: &[u8]) -> Option<&Row> {
        self.live.get(&keyspace)?.get(key)
    }

    /// Makes `batch` visible and adds the replaced rows to the undo log.
    fn write(&mut self, batch: Batch) {
        let mut undo = Undo::with_capacity(batch.len());
        for change in batch {
            let (keyspace, key, row) = match change {
                Change::Put { keyspace, key, value } => {
                    let row = Row::new(keyspace, &key, value);
                    (keyspace, key, Some(row))
                }
                Change::Remove { keyspace, key } => (keyspace, key, None),
            };
            let before = self.set(keyspace, key.clone(), row);
            undo.push((keyspace, key, before));
        }
        self.unsynced.push(undo);
        self.counters.commits += 1;
    }

    /// Sets or removes a row; returns the previous one.
    fn set(&mut self, keyspace: Keyspace, key: Bytes, row: Option<Row>) -> Option<Row> {
        let bytes = key.len();
        let cost = |row: &Row| (bytes + row.value.len()) as u64 + ROW_BYTES;
        self.used_bytes += row.as_ref().map_or(0, cost);
        let rows = self.live.entry(keyspace).or_default();
        let before = match row {
            Some(row) => rows.insert(key, row),
            None => rows.remove(&key),
        };
        self.used_bytes -= before.as_ref().map_or(0, cost);
        before
    }

    fn take_back(&mut self, undo: Undo) {
        for (keyspace, key, row) in undo.into_iter().rev() {
            self.set(keyspace, key, row);
        }
    }

    /// Reads the journal again: the batch whose sync failed is there after all.
    fn settle_doubt(&mut self) {
        if let Some(batch) = self.in_doubt.take() {
            self.write(batch);
        }
    }

    fn sync(&mut self) {
        self.unsynced.clear();
        self.counters.syncs += 1;
    }

    fn room(&self) -> Room {
        if self.fault == Some(Fault::DiskFull) {
            let is_low = self.open_reserve.is_some_and(|left| left >= RESERVE_BYTES / 2);
            return if is_low { Room::Low } else { Room::Least };
        }
        let Some(capacity) = self.capacity_bytes else { return Room::Enough };
        let free = capacity.saturating_sub(self.used_bytes);
        if free < capacity / LEAST_FRACTION {
            Room::Least
        } else if free < capacity / RESERVE_FRACTION {
            Room::Low
        } else {
            Room::Enough
        }
    }
}

/// The records of a [`MemoryEngine`] at some instant: they share their bytes with it.
struct MemorySnapshot {
    rows: BTreeMap<Bytes, Row>,
}

impl Snapshot for MemorySnapshot {
    fn scan(&self, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        if is_empty(start, end) {
            return Ok(Box::new(std::iter::empty()));
        }
        let rows: Vec<(Bytes, Row)> = self
            .rows
            .range::<[u8], _>((Bound::Included(start), end))
            .map(|(key, row)| (key.clone(), row.clone()))
            .collect();
        Ok(Box::new(rows.into_iter().map(|(key, row)| {
            let value = row.read(Keyspace::Records, &key, "read a snapshot")?;
            Ok((key, value))
        })))
    }
}

impl Engine for MemoryEngine {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.connected()?;
        let mut state = self.lock();
        if !state.unreadable.is_empty() && state.unreadable.contains(&(keyspace, Bytes::copy_from_slice(key)))
        {
            state.counters.read_errors += 1;
            return Err(injected("read a key"));
        }
        let value = state.row(keyspace, key).map(|row| row.read(keyspace, key, "read a key")).transpose();
        state.counters.corrupt_reads += u64::from(value.is_err());
        value
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        self.connected()?;
        let state = self.lock();
        let Some(rows) = state.live.get(&keyspace).filter(|_| !is_empty(start, end)) else {
            return Ok(Box::new(std::iter::empty()));
        };
        // Rows share their bytes with the map, so the snapshot copies only pointers.
        let rows: Vec<(Bytes, Option<Row>)> = rows
            .range::<[u8], _>((Bound::Included(start), end))
            .map(|(key, row)| {
                let readable =
                    state.unreadable.is_empty() || !state.unreadable.contains(&(keyspace, key.clone()));
                (key.clone(), readable.then(|| row.clone()))
            })
            .collect();
        Ok(Box::new(rows.into_iter().map(move |(key, row)| {
            let row = row.ok_or_else(|| injected("read a range"))?;
            let value = row.read(keyspace, &key, "read a range")?;
            Ok((key, value))
        })))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.connected()?;
        let rows = self.lock().live.get(&Keyspace::Records).cloned().unwrap_or_default();
        Ok(Arc::new(MemorySnapshot { rows }))
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        const ATTEMPTED: &str = "write a batch";
        self.connected()?;
        let mut state = self.lock();
        state.admit(ATTEMPTED)?;
        let growth = state.growth(&batch);
        if growth > 0 && state.capacity_bytes.is_some_and(|capacity| state.used_bytes + growth > capacity) {
            return Err(state.disk_full(ATTEMPTED));
        }
        if state.fault == Some(Fault::DiskFull)
            && let Some(left) = state.open_reserve
        {
            let Some(left) = left.checked_sub(growth) else { return Err(state.disk_full(ATTEMPTED)) };
            state.open_reserve = Some(left);
        }
        if durability == Durability::Buffered {
            state.write(batch);
            return Ok(());
        }
        if state.fault == Some(Fault::SyncError) {
            state.in_doubt = Some(batch);
            return Err(state.write_error(ATTEMPTED));
        }
        crash::point(Point::CommitBeforeSync);
        if let Err(error) = self.connected() {
            state.in_doubt = Some(batch);
            return Err(error);
        }
        state.write(batch);
        state.sync();
        Ok(())
    }

    /// Tables are not in the journal, so a power loss undoes none of it.
    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError> {
        const ATTEMPTED: &str = "write a table";
        self.connected()?;
        let rows: Vec<_> = rows.collect();
        let mut state = self.lock();
        if state.poisoned {
            return Err(EngineError::Poisoned { attempted: ATTEMPTED });
        }
        match state.fault {
            Some(Fault::DiskFull) => return Err(EngineError::DiskFull { attempted: ATTEMPTED }),
            Some(Fault::NoDescriptors | Fault::BackgroundEnded) => {
                return Err(EngineError::Short { attempted: ATTEMPTED, shortage: Shortage::Descriptors });
            }
            Some(Fault::WriteError | Fault::SyncError) => return Err(injected(ATTEMPTED)),
            None if state.refuses_tables => return Err(EngineError::DiskFull { attempted: ATTEMPTED }),
            None => {}
        }
        for (key, value) in rows {
            let row = value.map(|value| Row::new(keyspace, &key, value));
            state.set(keyspace, key, row);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        const ATTEMPTED: &str = "sync the journal";
        self.connected()?;
        let mut state = self.lock();
        state.admit(ATTEMPTED)?;
        if state.fault == Some(Fault::SyncError) {
            return Err(state.write_error(ATTEMPTED));
        }
        state.sync();
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        self.connected()?;
        if self.lock().poisoned { Err(EngineError::Poisoned { attempted: "go on" }) } else { Ok(()) }
    }

    fn retire(&self) -> Result<(), EngineError> {
        if self.lock().fault == Some(Fault::WriteError) {
            return Err(injected("open the store"));
        }
        self.is_closed.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn reopen(&self) -> Result<(), EngineError> {
        self.connected()?;
        let mut state = self.lock();
        if state.fault == Some(Fault::WriteError) {
            self.is_closed.store(true, Ordering::Relaxed);
            return Err(injected("open the store"));
        }
        if state.room() != Room::Enough {
            return Err(EngineError::DiskFull { attempted: "open the store" });
        }
        if state.fault == Some(Fault::NoDescriptors) {
            return Err(EngineError::Short { attempted: "open the store", shortage: Shortage::Descriptors });
        }
        state.settle_doubt();
        state.open_anew();
        Ok(())
    }

    fn open_reserve(&self) -> Result<bool, EngineError> {
        self.connected()?;
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_reserve_used, true) {
            return Ok(false);
        }
        state.settle_doubt();
        state.poisoned = false;
        state.open_reserve = Some(RESERVE_BYTES);
        Ok(true)
    }

    fn keep_reserve(&self) {
        self.lock().is_reserve_used = false;
    }

    fn set_aside(&self) -> Result<(), EngineError> {
        self.connected()?;
        crash::point(Point::AsideBefore);
        self.connected()?;
        self.wipe();
        {
            let mut state = self.lock();
            state.has_begun_anew = true;
            state.counters.asides += 1;
        }
        crash::point(Point::AsideAfter);
        Ok(())
    }

    fn has_begun_anew(&self) -> bool {
        self.lock().has_begun_anew
    }

    fn forget_beginning(&self) -> Result<(), EngineError> {
        self.connected()?;
        self.lock().has_begun_anew = false;
        Ok(())
    }

    /// A removed row takes no space in this engine.
    fn reclaim(&self, _: &mut dyn FnMut() -> bool) -> Result<u64, EngineError> {
        self.connected()?;
        Ok(0)
    }

    fn room(&self) -> Room {
        self.lock().room()
    }

    fn latency(&self) -> Duration {
        self.lock().latency
    }

    fn stats(&self) -> EngineStats {
        EngineStats { disk_bytes: self.used_bytes(), ..EngineStats::default() }
    }
}
