//! The delta: the newest rows of the index, in memory, until they are flushed  into its tree.
//!
//! Every write changes a row of [`Keyspace::Tokens`], at a position unrelated to those of the writes around it. In an
//! engine that is an insertion into a large skip list. It costs more than the record's own insertion, because its
//! search path is not in any cache. Here the rows of a batch go into buffers, one for each partition, and as *one* row
//! into a log ([`Keyspace::Delta`]) that the batch contains. Once there are enough rows, they are *flushed*: given to
//! the engine below as a sorted table ([`Engine::ingest`]). The next batches remove the flushed rows of the log. Reads
//! of the index read the buffers over the tree. This is a differential file (D. G. Severance and G. M. Lohman,
//! "Differential files: their application to the maintenance of large databases", ACM TODS 1(3), 1976), with a log, so
//! that a crash does not lose a day's changes.
//!
//! Why nothing is lost and nothing is invented, wherever a process or the power ends:
//! - A batch and its row of the log are stored together or not at all. [`Delta::open`] reads the log into the buffers
//!   in the order of its rows.
//! - A row of the log is removed only after the tree durably has its changes. The remaining rows are always an end of
//!   the log: if they name a row of the index at all, they name its latest value.
//! - A flush is durable at once, but the records that its rows index may not be: so everything committed is synced
//!   before it.

mod buffer;
#[cfg(test)]
mod tests;

use self::buffer::Layer;
use super::format::{self, DELTA_ROW_BYTES, DeltaWriter};
use super::{
    Batch, Change, CheckedFile, Durability, Engine, EngineError, EngineStats, Keyspace, Known, Room, Rows,
    Scan, Snapshot, is_empty, wait,
};
use crate::crash::{self, Point};
use crate::supervise::{Part, Supervisor, Thread};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How many times the bytes of the buffered rows the log may have: it contains a repeatedly written key once for each
/// write.
const LOG_FACTOR: usize = 2;
/// The most rows of the log that one batch removes. A batch adds one row, so the removal keeps ahead of the growth.
/// With 16 at a time, commits cost twice as much for most of a second after each flush, which clients noticed.
const TRIM_ROWS: u64 = 2;
/// While a flush is under way, the buffers may grow to this many times their normal size before commits wait for it.
const BEHIND: usize = 4;
/// The pause before a failed flush is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How many rows a flush writes between two pauses, and how long a pause is: other threads use the processor meanwhile.
const STRETCH_ROWS: usize = 512;
const STRETCH_REST: Duration = Duration::from_millis(1);

/// The thread that flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushing {
    /// A separate thread, while others write.
    Beside,
    /// The thread that commits, before the commit returns: for a simulation, which has one thread.
    Within,
}

/// An engine wrapper that buffers the index.
pub struct Delta {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Shared {
    inner: Arc<dyn Engine>,
    bytes_max: usize,
    flushing: Flushing,
    flushes: AtomicU64,
    // Held by a thread that flushes or exchanges the store below: locked before `log`.
    one: Mutex<()>,
    // Guards the log's numbers, and ensures a single writer; held for a commit. Locked before `layers`.
    log: Mutex<Log>,
    // Guards the buffers; held for a look-up, a copy of a range, or an insertion of a batch's rows. None while the
    // contents of the log are unknown.
    layers: RwLock<Option<Layers>>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

/// The rows of the log are `first..next`.
#[derive(Default)]
struct Log {
    first: u64,
    next: u64,
    /// Rows with lower numbers have been flushed.
    flushed: u64,
    /// Bytes of rows since the buffers were last frozen.
    bytes: usize,
}

#[derive(Default)]
struct Layers {
    active: Layer,
    frozen: Option<Arc<Frozen>>,
}

/// The rows that are being flushed: all rows of the log below `next`.
struct Frozen {
    layer: Layer,
    next: u64,
}

#[derive(Default)]
struct Wanted {
    is_flush: bool,
    is_end: bool,
}

impl Delta {
    /// Opens the wrapper on the log of `inner`. It uses about `bytes_max` bytes of memory, and twice as much during a
    /// flush.
    ///
    /// # Errors
    /// The errors of reading; [`EngineError::Corrupt`] for a row of the log that cannot be parsed.
    pub fn open(
        inner: Arc<dyn Engine>,
        bytes_max: usize,
        flushing: Flushing,
        supervisor: &Supervisor,
    ) -> Result<Self, EngineError> {
        let (log, layers) = load(&*inner)?;
        let shared = Arc::new(Shared {
            inner,
            bytes_max,
            flushing,
            flushes: AtomicU64::new(0),
            one: Mutex::default(),
            log: Mutex::new(log),
            layers: RwLock::new(Some(layers)),
            wanted: Mutex::default(),
            wake: Condvar::new(),
        });
        let thread = match flushing {
            Flushing::Within => None,
            Flushing::Beside => {
                let folder = Arc::clone(&shared);
                let thread = supervisor.thread(Part::IndexFlush, None, move || folder.run());
                let failed = |source| EngineError::of_io("start a thread of the store", source);
                Some(thread.map_err(failed)?)
            }
        };
        Ok(Self { shared, thread })
    }
}

impl Drop for Delta {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            thread.may_end();
        }
        lock(&self.shared.wanted).is_end = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the log into buffers.
fn load(inner: &dyn Engine) -> Result<(Log, Layers), EngineError> {
    let (mut log, mut active) = (Log::default(), Layer::default());
    let mut is_first = true;
    for pair in inner.scan(Keyspace::Delta, &[], Bound::Unbounded)? {
        let (key, value) = pair?;
        let number = format::decode_delta_key(&key).map_err(|error| damaged(error.to_string()))?;
        if std::mem::take(&mut is_first) {
            (log.first, log.flushed) = (number, number);
        }
        log.next = number.saturating_add(1);
        log.bytes += value.len();
        active.add(&value).map_err(|error| damaged(error.to_string()))?;
    }
    Ok((log, Layers { active, frozen: None }))
}

/// The bytes that a change adds to a row of the log.
fn delta_bytes(change: &Change) -> usize {
    match change {
        Change::Put { keyspace: Keyspace::Tokens, .. }
        | Change::Remove { keyspace: Keyspace::Tokens, .. } => change.bytes() + DELTA_ROW_BYTES,
        _ => 0,
    }
}

fn damaged(detail: String) -> EngineError {
    EngineError::Corrupt { attempted: "read the log of the index", detail, key: None }
}

impl Layers {
    fn get(&self, key: &[u8]) -> Known<Bytes> {
        let below = || self.frozen.as_ref().map_or(Known::Nothing, |frozen| frozen.layer.get(key));
        self.active.get(key).or_else(below)
    }
}

impl Shared {
    fn layers(&self) -> RwLockReadGuard<'_, Option<Layers>> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn layers_mut(&self) -> RwLockWriteGuard<'_, Option<Layers>> {
        self.layers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of the flushing thread.
    fn run(&self) {
        let mut has_failed = false;
        loop {
            {
                let mut wanted = lock(&self.wanted);
                while !wanted.is_flush && !wanted.is_end {
                    wanted = self.wake.wait(wanted).unwrap_or_else(PoisonError::into_inner);
                }
                if wanted.is_end {
                    return;
                }
                wanted.is_flush = false;
            }
            crash::step(Part::IndexFlush);
            match self.flush_rows() {
                Ok(()) => has_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "cannot flush rows of the index into its tree: this node tries again \
                                                every second");
                    }
                    let guard = lock(&self.wanted);
                    let again = self.wake.wait_timeout_while(guard, AGAIN, |wanted| !wanted.is_end);
                    again.unwrap_or_else(PoisonError::into_inner).0.is_flush = true;
                }
            }
        }
    }

    /// Freezes the buffers as the next rows to flush, unless a flush is under way. Returns whether there are rows to
    /// flush.
    fn freeze(&self, log: &mut Log) -> bool {
        let mut layers = self.layers_mut();
        let Some(layers) = layers.as_mut() else { return false };
        if layers.frozen.is_some() || layers.active.is_empty() {
            return layers.frozen.is_some();
        }
        let layer = std::mem::take(&mut layers.active);
        layers.frozen = Some(Arc::new(Frozen { layer, next: log.next }));
        log.bytes = 0;
        true
    }

    /// Folds the frozen rows.
    fn flush_rows(&self) -> Result<(), EngineError> {
        let _one = lock(&self.one);
        let frozen = self.layers().as_ref().and_then(|layers| layers.frozen.clone());
        let Some(frozen) = frozen else { return Ok(()) };
        self.inner.sync()?;
        crash::point(Point::IndexFlushBefore);
        let mut rows = frozen.layer.sorted().enumerate().map(|(index, row)| {
            if self.flushing == Flushing::Beside && index % STRETCH_ROWS == STRETCH_ROWS - 1 {
                wait::pause(STRETCH_REST);
            }
            row
        });
        self.inner.ingest(Keyspace::Tokens, &mut rows)?;
        crash::point(Point::IndexFlushAfter);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if let Some(layers) = self.layers_mut().as_mut() {
            layers.frozen = None;
        }
        lock(&self.log).flushed = frozen.next;
        Ok(())
    }

    /// Waits while the buffers are far beyond their normal size because a flush takes long.
    fn wait_for_fold(&self) -> Result<(), EngineError> {
        if self.flushing == Flushing::Within {
            return Ok(());
        }
        wait::until_caught_up(|| {
            let layers = self.layers();
            Ok(layers.as_ref().is_some_and(|layers| {
                layers.frozen.is_some() && layers.active.bytes() >= BEHIND.saturating_mul(self.bytes_max)
            }))
        })
    }

    /// Runs `act` on the store below, which may replace that store, and reads its log again.
    fn exchange(&self, act: impl FnOnce(&dyn Engine) -> Result<(), EngineError>) -> Result<(), EngineError> {
        let _one = lock(&self.one);
        let mut log = lock(&self.log);
        let outcome = act(&*self.inner);
        let loaded = load(&*self.inner);
        let (next, layers, loaded) = match loaded {
            Ok((log, layers)) => (log, Some(layers), Ok(())),
            Err(error) => (Log::default(), None, Err(error)),
        };
        *log = next;
        *self.layers_mut() = layers;
        outcome.and(loaded)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<bool, EngineError> {
        let mut log = lock(&self.log);
        self.wait_for_fold()?;
        let mut rows = DeltaWriter::with_capacity(batch.iter().map(delta_bytes).sum());
        let mut rest = Batch::with_capacity(batch.len() + 1);
        for change in batch {
            match change {
                Change::Put { keyspace: Keyspace::Tokens, key, value } => rows.put(&key, Some(&value)),
                Change::Remove { keyspace: Keyspace::Tokens, key } => rows.put(&key, None),
                other => rest.push(other),
            }
        }
        let rows = rows.finish();
        if rows.is_empty() {
            self.inner.commit(rest, durability)?;
            return Ok(false);
        }
        if self.layers().is_none() {
            return Err(EngineError::Closed);
        }
        let number = log.next;
        // The number is not used twice, whether or not the batch succeeds.
        log.next += 1;
        let (keyspace, key) = (Keyspace::Delta, format::encode_delta_key(number));
        rest.push(Change::Put { keyspace, key, value: rows.clone() });
        let first = log.flushed.min(log.first + TRIM_ROWS);
        rest.extend((log.first..first).map(|number| {
            let key = format::encode_delta_key(number);
            Change::Remove { keyspace: Keyspace::Delta, key }
        }));
        self.inner.commit(rest, durability)?;
        log.first = first;
        log.bytes += rows.len();
        let mut layers = self.layers_mut();
        let Some(active) = layers.as_mut().map(|layers| &mut layers.active) else { return Ok(false) };
        active.add(&rows).map_err(|error| damaged(error.to_string()))?;
        let is_full =
            active.bytes() >= self.bytes_max || log.bytes >= self.bytes_max.saturating_mul(LOG_FACTOR);
        drop(layers);
        Ok(is_full && self.freeze(&mut log))
    }
}

impl Engine for Delta {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if keyspace == Keyspace::Tokens {
            let known = self.shared.layers().as_ref().ok_or(EngineError::Closed)?.get(key);
            return known.or_find(|| self.shared.inner.get(keyspace, key));
        }
        self.shared.inner.get(keyspace, key)
    }

    fn at_hand(&self, keyspace: Keyspace, key: &[u8]) -> Known<Bytes> {
        match self.shared.layers().as_ref() {
            Some(layers) if keyspace == Keyspace::Tokens => layers.get(key),
            _ => Known::Nothing,
        }
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        if keyspace != Keyspace::Tokens || is_empty(start, end) {
            return self.shared.inner.scan(keyspace, start, end);
        }
        let mut rows = BTreeMap::new();
        {
            let layers = self.shared.layers();
            let layers = layers.as_ref().ok_or(EngineError::Closed)?;
            let layers_below = layers.frozen.as_ref().map(|frozen| &frozen.layer);
            for layer in layers_below.into_iter().chain([&layers.active]) {
                layer.copy(start, end, &mut rows);
            }
        }
        // The tree is scanned after the buffers were copied: rows flushed in between are in both, and none is missing
        // from both.
        let below = self.shared.inner.scan(keyspace, start, end)?;
        Ok(Box::new(Merged { above: rows.into_iter().peekable(), below: below.peekable() }))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.shared.inner.snapshot()
    }

    fn check_file(&self, keyspace: Keyspace, after: Option<u64>) -> Result<Option<CheckedFile>, EngineError> {
        self.shared.inner.check_file(keyspace, after)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        if self.shared.commit(batch, durability)? {
            match self.shared.flushing {
                Flushing::Beside => {
                    lock(&self.shared.wanted).is_flush = true;
                    self.shared.wake.notify_all();
                }
                Flushing::Within => {
                    // The batch has taken effect all the same; the next batch tries the flush again.
                    if let Err(error) = self.shared.flush_rows() {
                        tracing::warn!(%error, "cannot flush rows of the index into its tree");
                    }
                }
            }
        }
        Ok(())
    }

    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError> {
        self.shared.inner.ingest(keyspace, rows)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.inner.sync()
    }

    fn check(&self) -> Result<(), EngineError> {
        self.shared.inner.check()
    }

    fn retire(&self) -> Result<(), EngineError> {
        self.shared.exchange(Engine::retire)
    }

    fn reopen(&self) -> Result<(), EngineError> {
        self.shared.exchange(Engine::reopen)
    }

    fn set_aside(&self) -> Result<(), EngineError> {
        self.shared.exchange(Engine::set_aside)
    }

    /// Rows that the buffers mark as removed take space in the tree until they are flushed.
    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError> {
        // Once for a flush under way, and once for the rows that came since.
        for _ in 0..2 {
            let is_frozen = self.shared.freeze(&mut lock(&self.shared.log));
            if is_frozen {
                self.shared.flush_rows()?;
            }
        }
        self.shared.inner.reclaim(go_on)
    }

    fn has_begun_anew(&self) -> bool {
        self.shared.inner.has_begun_anew()
    }

    fn forget_beginning(&self) -> Result<(), EngineError> {
        self.shared.inner.forget_beginning()
    }

    fn open_reserve(&self) -> Result<bool, EngineError> {
        let mut was_there = false;
        self.shared.exchange(|inner| {
            was_there = inner.open_reserve()?;
            Ok(())
        })?;
        Ok(was_there)
    }

    fn keep_reserve(&self) {
        self.shared.inner.keep_reserve();
    }

    fn check_supplies(&self) -> Result<(), EngineError> {
        self.shared.inner.check_supplies()
    }

    fn room(&self) -> Room {
        self.shared.inner.room()
    }

    fn latency(&self) -> Duration {
        self.shared.inner.latency()
    }

    fn stats(&self) -> EngineStats {
        let mut stats = self.shared.inner.stats();
        if let Some(layers) = self.shared.layers().as_ref() {
            for layer in layers.frozen.iter().map(|frozen| &frozen.layer).chain([&layers.active]) {
                stats.unflushed_bytes += layer.bytes() as u64;
            }
        }
        stats.flushes = self.shared.flushes.load(Ordering::Relaxed);
        stats
    }
}

/// The rows of the tree with those of the buffers over them.
struct Merged {
    above: Peekable<std::collections::btree_map::IntoIter<Bytes, Option<Bytes>>>,
    below: Peekable<Scan>,
}

impl Iterator for Merged {
    type Item = Result<(Bytes, Bytes), EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((key, _)) = self.above.peek() else { return self.below.next() };
            match self.below.peek() {
                Some(Err(_)) => return self.below.next(),
                Some(Ok((below, _))) if below < key => return self.below.next(),
                Some(Ok((below, _))) if below == key => drop(self.below.next()),
                _ => {}
            }
            if let Some((key, Some(value))) = self.above.next() {
                return Some(Ok((key, value)));
            }
        }
    }
}
