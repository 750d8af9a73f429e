//! The delta: the newest rows of the index, in memory, until they are folded into its tree.
//!
//! Every write changes a row of [`Keyspace::Tokens`], at a place that has nothing to do with those of the writes around
//! it. In an engine that is an insertion into a large skip list, which costs more than the record's own, for its way
//! is in no cache. Here the rows of a batch go into small maps, one for each partition, and as *one* row into a log
//! ([`Keyspace::Delta`]) that the batch carries. Once there are enough, they are *folded*: given to the engine below as a
//! sorted table ([`Engine::ingest`]); the batches that come next remove their rows of the log. Whoever reads the index
//! reads the maps over the tree. This is a differential file (D. G. Severance and G. M. Lohman, "Differential files:
//! their application to the maintenance of large databases", ACM TODS 1(3), 1976), with a log in place of a lost day.
//!
//! Why nothing is lost, and nothing invented, wherever a process or the power ends:
//! - A batch and its row of the log are there together or not at all, and [`Delta::open`] reads the log into the maps in
//!   the order of its rows.
//! - Rows of the log go only once the tree has what they say, durably. What is left of them is always an end of the log:
//!   a row of the index that it names at all it names with its latest value.
//! - A fold is durable at once, and what it stands for may not be: so everything committed is synced before it.

use super::format::{self, DELTA_ROW_BYTES, DeltaRow, DeltaWriter, FormatError};
use super::{Batch, Change, Durability, Engine, EngineError, EngineStats, Keyspace, Scan};
use crate::crash::{self, Point};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The least that a partition's rows grow to before those that were replaced are dropped.
const PART_BYTES_MIN: usize = 512;
/// The log may have so many times the bytes of the rows in memory: keys that are written again and again are in it each time.
const LOG_FACTOR: usize = 2;
/// Rows of the log that a batch removes at most. It adds one, so the removal keeps ahead of the growth, and no more: with 16
/// at a time commits cost twice as much for most of a second after each fold, which clients felt.
const TRIM_ROWS: u64 = 2;
/// While a fold is under way, the maps may grow to this many times their size before commits wait for it.
const BEHIND: usize = 4;
/// How long a commit waits for a fold before it is refused.
const BEHIND_WAIT_MAX: Duration = Duration::from_secs(2);
const BEHIND_PAUSE: Duration = Duration::from_millis(1);
/// When a fold that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Rows that a fold writes between two rests, and how long it rests: whoever serves has the processor meanwhile.
const STRETCH_ROWS: usize = 512;
const STRETCH_REST: Duration = Duration::from_millis(1);
const THREAD: &str = "kvorum:fold";

/// This says who folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// A thread of its own, while others write.
    Beside,
    /// Whoever commits, before the commit returns: for a simulation, which has one thread.
    Within,
}

/// This is an engine whose index is written in this way.
pub struct Delta {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A row of the index: its key, and its value or that it is removed.
type Row = (Bytes, Option<Bytes>);

struct Shared {
    inner: Arc<dyn Engine>,
    bytes_max: usize,
    folding: Folding,
    folds: AtomicU64,
    // Held by whoever folds or exchanges the store below: locked before `log`.
    one: Mutex<()>,
    // Guards the log's numbers, and that there is one writer; held for a commit. Locked before `layers`.
    log: Mutex<Log>,
    // Guards the maps; held for a look-up, a copy of a range, or an insertion of a batch's rows. None while it is not known
    // what the log holds.
    layers: RwLock<Option<Layers>>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

/// The rows of the log are `first..next`.
#[derive(Default)]
struct Log {
    first: u64,
    next: u64,
    /// Rows below it have been folded.
    folded: u64,
    /// Bytes of rows since the maps were last frozen.
    bytes: usize,
}

#[derive(Default)]
struct Layers {
    active: Layer,
    frozen: Option<Arc<Frozen>>,
}

/// What is being folded: all that the log says below `next`.
struct Frozen {
    layer: Layer,
    next: u64,
}

/// Rows by the first two bytes of their keys, which name the partition.
#[derive(Default)]
struct Layer {
    parts: BTreeMap<[u8; 2], Part>,
    bytes: usize,
}

/// Rows as they came, one behind the other as in the log: the last of a key counts. Writing one is a copy of some forty
/// bytes, and reading one a walk over all. With 4,096 partitions that is a kilobyte or two.
#[derive(Default)]
struct Part {
    rows: Vec<u8>,
    /// Bytes that were left when rows that had been replaced were dropped last.
    dense: usize,
}

#[derive(Default)]
struct Wanted {
    is_fold: bool,
    is_end: bool,
}

impl Delta {
    /// Reads the log of `inner` and goes on with it; about `bytes_max` bytes of memory are used, and twice that while it folds.
    ///
    /// # Errors
    /// Those of reading; [`EngineError::Corrupt`] for a row of the log that is none.
    pub fn open(inner: Arc<dyn Engine>, bytes_max: usize, folding: Folding) -> Result<Self, EngineError> {
        let (log, layers) = load(&*inner)?;
        let shared = Arc::new(Shared {
            inner,
            bytes_max,
            folding,
            folds: AtomicU64::new(0),
            one: Mutex::default(),
            log: Mutex::new(log),
            layers: RwLock::new(Some(layers)),
            wanted: Mutex::default(),
            wake: Condvar::new(),
        });
        let thread = match folding {
            Folding::Within => None,
            Folding::Beside => {
                let folder = Arc::clone(&shared);
                #[expect(clippy::disallowed_methods, reason = "a thread of the storage")]
                let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || folder.run());
                let failed = |source| EngineError::Io { attempted: "start a thread of the store", source };
                Some(thread.map_err(failed)?)
            }
        };
        Ok(Self { shared, thread })
    }
}

impl Drop for Delta {
    fn drop(&mut self) {
        lock(&self.shared.wanted).is_end = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the log holds.
fn load(inner: &dyn Engine) -> Result<(Log, Layers), EngineError> {
    let (mut log, mut active) = (Log::default(), Layer::default());
    let mut is_first = true;
    for pair in inner.scan(Keyspace::Delta, &[], Bound::Unbounded)? {
        let (key, value) = pair?;
        let number = format::decode_delta_key(&key).map_err(|error| damaged(error.to_string()))?;
        if std::mem::take(&mut is_first) {
            (log.first, log.folded) = (number, number);
        }
        log.next = number.saturating_add(1);
        log.bytes += value.len();
        active.add(&value).map_err(|error| damaged(error.to_string()))?;
    }
    Ok((log, Layers { active, frozen: None }))
}

/// What a change adds to a row of the log.
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

impl Layer {
    /// Takes in rows of one batch, as the log has them.
    fn add(&mut self, rows: &[u8]) -> Result<(), FormatError> {
        for row in format::delta_rows(rows) {
            let row = row?;
            let part = self.parts.entry(part_of(row.key)).or_default();
            self.bytes += row.encoded.len();
            part.rows.extend_from_slice(row.encoded);
            if part.rows.len() >= part.dense.saturating_mul(2).max(PART_BYTES_MIN) {
                self.bytes -= part.rows.len();
                part.drop_replaced();
                self.bytes += part.rows.len();
            }
        }
        Ok(())
    }

    #[expect(clippy::option_option, reason = "not here and here as removed are two things")]
    fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let rows = self.parts.get(&part_of(key))?.read();
        let row = rows.filter(|row| row.key == key).last()?;
        Some(row.value.map(Bytes::copy_from_slice))
    }

    /// Copies the rows of a range, which must not end before it starts.
    fn copy(&self, start: &[u8], end: Bound<&[u8]>, to: &mut BTreeMap<Bytes, Option<Bytes>>) {
        let last = match end {
            Bound::Included(end) | Bound::Excluded(end) => part_of(end),
            Bound::Unbounded => [u8::MAX; 2],
        };
        let is_within = |key: &[u8]| match end {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        for (_, part) in self.parts.range(part_of(start)..=last) {
            let rows = part.read().filter(|row| row.key >= start && is_within(row.key));
            to.extend(rows.map(DeltaRow::to_owned));
        }
    }

    /// All rows, in order, each key once.
    fn sorted(&self) -> impl Iterator<Item = Row> + '_ {
        self.parts.values().flat_map(|part| part.latest().map(DeltaRow::to_owned))
    }
}

impl Part {
    /// What was put in by [`Layer::add`] can be read.
    fn read(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        format::delta_rows(&self.rows).map_while(Result::ok)
    }

    /// Its rows, in order, each key once.
    fn latest(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        let mut rows: Vec<_> = self.read().collect();
        // Stable: of one key the last stays last.
        rows.sort_by_key(|row| row.key);
        let mut rows = rows.into_iter().peekable();
        std::iter::from_fn(move || {
            let mut row = rows.next()?;
            while let Some(newer) = rows.next_if(|next| next.key == row.key) {
                row = newer;
            }
            Some(row)
        })
    }

    fn drop_replaced(&mut self) {
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in self.latest() {
            rows.extend_from_slice(row.encoded);
        }
        self.dense = rows.len();
        self.rows = rows;
    }
}

/// Keys in order have parts in order: what is missing at the end of a short one is least.
fn part_of(key: &[u8]) -> [u8; 2] {
    [key.first().copied().unwrap_or_default(), key.get(1).copied().unwrap_or_default()]
}

impl Layers {
    #[expect(clippy::option_option, reason = "not here and here as removed are two things")]
    fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.active.get(key).or_else(|| self.frozen.as_ref()?.layer.get(key))
    }
}

impl Shared {
    fn layers(&self) -> RwLockReadGuard<'_, Option<Layers>> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn layers_mut(&self) -> RwLockWriteGuard<'_, Option<Layers>> {
        self.layers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread that folds.
    fn run(&self) {
        let mut has_failed = false;
        loop {
            {
                let mut wanted = lock(&self.wanted);
                while !wanted.is_fold && !wanted.is_end {
                    wanted = self.wake.wait(wanted).unwrap_or_else(PoisonError::into_inner);
                }
                if wanted.is_end {
                    return;
                }
                wanted.is_fold = false;
            }
            match self.fold() {
                Ok(()) => has_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "rows of the index cannot be folded into its tree; tried again every second");
                    }
                    let guard = lock(&self.wanted);
                    let again = self.wake.wait_timeout_while(guard, AGAIN, |wanted| !wanted.is_end);
                    again.unwrap_or_else(PoisonError::into_inner).0.is_fold = true;
                }
            }
        }
    }

    /// Makes what is in the maps the next thing to fold, unless a fold is under way.
    fn freeze(&self, log: &mut Log) -> bool {
        let mut layers = self.layers_mut();
        let Some(layers) = layers.as_mut() else { return false };
        if layers.frozen.is_some() || layers.active.parts.is_empty() {
            return layers.frozen.is_some();
        }
        let layer = std::mem::take(&mut layers.active);
        layers.frozen = Some(Arc::new(Frozen { layer, next: log.next }));
        log.bytes = 0;
        true
    }

    /// Folds what is frozen.
    fn fold(&self) -> Result<(), EngineError> {
        let _one = lock(&self.one);
        let frozen = self.layers().as_ref().and_then(|layers| layers.frozen.clone());
        let Some(frozen) = frozen else { return Ok(()) };
        self.inner.sync()?;
        crash::point(Point::FoldBefore);
        let mut rows = frozen.layer.sorted().enumerate().map(|(index, row)| {
            if self.folding == Folding::Beside && index % STRETCH_ROWS == STRETCH_ROWS - 1 {
                pause(STRETCH_REST);
            }
            row
        });
        self.inner.ingest(Keyspace::Tokens, &mut rows)?;
        crash::point(Point::FoldAfter);
        self.folds.fetch_add(1, Ordering::Relaxed);
        if let Some(layers) = self.layers_mut().as_mut() {
            layers.frozen = None;
        }
        lock(&self.log).folded = frozen.next;
        Ok(())
    }

    /// Waits while the maps have grown far beyond their size because a fold takes long.
    fn wait_for_fold(&self) -> Result<(), EngineError> {
        let is_behind = || {
            let layers = self.layers();
            layers.as_ref().is_some_and(|layers| {
                layers.frozen.is_some() && layers.active.bytes >= BEHIND.saturating_mul(self.bytes_max)
            })
        };
        let mut waited = Duration::ZERO;
        while self.folding == Folding::Beside && is_behind() {
            if waited >= BEHIND_WAIT_MAX {
                return Err(EngineError::Busy);
            }
            pause(BEHIND_PAUSE);
            waited += BEHIND_PAUSE;
        }
        Ok(())
    }

    /// Does something to the store below after which another may be in its place, and reads its log.
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
        // Not used twice, whatever becomes of the batch.
        log.next += 1;
        let (keyspace, key) = (Keyspace::Delta, format::encode_delta_key(number));
        rest.push(Change::Put { keyspace, key, value: rows.clone() });
        let first = log.folded.min(log.first + TRIM_ROWS);
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
            active.bytes >= self.bytes_max || log.bytes >= self.bytes_max.saturating_mul(LOG_FACTOR);
        drop(layers);
        Ok(is_full && self.freeze(&mut log))
    }
}

impl Engine for Delta {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if keyspace == Keyspace::Tokens {
            let found = self.shared.layers().as_ref().ok_or(EngineError::Closed)?.get(key);
            if let Some(row) = found {
                return Ok(row);
            }
        }
        self.shared.inner.get(keyspace, key)
    }

    fn at_hand(&self, keyspace: Keyspace, key: &[u8]) -> Option<Option<Bytes>> {
        if keyspace == Keyspace::Tokens { self.shared.layers().as_ref()?.get(key) } else { None }
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        let is_empty = match end {
            Bound::Included(end) => end < start,
            Bound::Excluded(end) => end <= start,
            Bound::Unbounded => false,
        };
        if keyspace != Keyspace::Tokens || is_empty {
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
        // After the copy: what has been folded meanwhile is in both, and in neither nothing.
        let below = self.shared.inner.scan(keyspace, start, end)?;
        Ok(Box::new(Merged { above: rows.into_iter().peekable(), below: below.peekable() }))
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        if self.shared.commit(batch, durability)? {
            match self.shared.folding {
                Folding::Beside => {
                    lock(&self.shared.wanted).is_fold = true;
                    self.shared.wake.notify_all();
                }
                Folding::Within => {
                    // The batch has taken effect all the same; the next one tries again.
                    if let Err(error) = self.shared.fold() {
                        tracing::warn!(%error, "rows of the index cannot be folded into its tree");
                    }
                }
            }
        }
        Ok(())
    }

    fn ingest(
        &self,
        keyspace: Keyspace,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), EngineError> {
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

    /// Rows that the maps say are removed take space in the tree until they are folded.
    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError> {
        // What is under way, if anything is, and what came since.
        for _ in 0..2 {
            let is_frozen = self.shared.freeze(&mut lock(&self.shared.log));
            if is_frozen {
                self.shared.fold()?;
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

    fn is_short_of_space(&self) -> bool {
        self.shared.inner.is_short_of_space()
    }

    fn latency(&self) -> Duration {
        self.shared.inner.latency()
    }

    fn stats(&self) -> EngineStats {
        let mut stats = self.shared.inner.stats();
        if let Some(layers) = self.shared.layers().as_ref() {
            for layer in layers.frozen.iter().map(|frozen| &frozen.layer).chain([&layers.active]) {
                stats.unfolded_bytes += layer.bytes as u64;
            }
        }
        stats.folds = self.shared.folds.load(Ordering::Relaxed);
        stats
    }
}

/// The rows of the tree with those of the maps over them.
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

#[expect(
    clippy::disallowed_methods,
    reason = "the thread that folds serves nobody, and the one that commits waits for it"
)]
fn pause(time: Duration) {
    thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::lsm::{LsmConfig, LsmEngine};
    use crate::storage::memory::{Fault, MemoryEngine};
    use proptest::prelude::*;

    /// Few enough that parts fill up and rows are replaced.
    const KEYS: u8 = 40;

    fn key(index: u8) -> Bytes {
        // Three partitions, and keys of several lengths.
        Bytes::from([&[0, index % 3], &b"key-and-more"[..usize::from(index % 7)], &[index]].concat())
    }

    /// Changes a record and its row of the index, as a replica does.
    fn batch(changes: &BTreeMap<u8, Option<u8>>) -> Batch {
        let change = |(index, value): (&u8, &Option<u8>)| {
            [Keyspace::Records, Keyspace::Tokens].map(|keyspace| match value {
                Some(value) => {
                    Change::Put { keyspace, key: key(*index), value: Bytes::from(vec![*value; 19]) }
                }
                None => Change::Remove { keyspace, key: key(*index) },
            })
        };
        changes.iter().flat_map(change).collect()
    }

    fn rows(engine: &dyn Engine, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Vec<(Bytes, Bytes)> {
        engine.scan(keyspace, start, end).unwrap().map(Result::unwrap).collect()
    }

    /// The index says of every key what the record says.
    fn assert_alike(engine: &dyn Engine) {
        let all = Bound::Unbounded;
        assert_eq!(rows(engine, Keyspace::Tokens, &[], all), rows(engine, Keyspace::Records, &[], all));
        for index in 0..KEYS {
            let key = key(index);
            let record = engine.get(Keyspace::Records, &key).unwrap();
            assert_eq!(engine.get(Keyspace::Tokens, &key).unwrap(), record);
            if let Some(known) = engine.at_hand(Keyspace::Tokens, &key) {
                assert_eq!(known, record);
            }
            for end in
                [Bound::Excluded(&[0, 1][..]), Bound::Excluded(&[0, 2]), Bound::Included(&[0, 2, b'k'])]
            {
                let [tokens, records] =
                    [Keyspace::Tokens, Keyspace::Records].map(|keyspace| rows(engine, keyspace, &key, end));
                assert_eq!(tokens, records);
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Commit {
            changes: BTreeMap<u8, Option<u8>>,
            is_synced: bool,
        },
        /// The power fails; this many of the batches that were not synced survive.
        PowerLoss(usize),
        Kill,
        Reopen,
        Reclaim,
        Fault(Option<Fault>),
        SetAside,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let changes = prop::collection::btree_map(0..KEYS, prop::option::weighted(0.7, any::<u8>()), 1..6);
        let fault = prop_oneof![Just(Fault::DiskFull), Just(Fault::SyncError), Just(Fault::WriteError)];
        let step = prop_oneof![
            30 => (changes, any::<bool>()).prop_map(|(changes, is_synced)| Step::Commit { changes, is_synced }),
            2 => (0..8usize).prop_map(Step::PowerLoss),
            1 => Just(Step::Kill),
            2 => Just(Step::Reopen),
            2 => Just(Step::Reclaim),
            2 => prop::option::of(fault).prop_map(Step::Fault),
            1 => Just(Step::SetAside),
        ];
        prop::collection::vec(step, 1..120)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]

        /// Goal: whatever is committed, folded, lost with the power or opened again, the index says what the records say.
        /// Method: random steps over the modelled disk, which can lose any end of what was not synced, with so little memory
        /// that every few batches are folded.
        #[test]
        fn index_is_as_the_records_whatever_happens(steps in steps(), bytes_max in 1..2000usize) {
            let disk = Arc::new(MemoryEngine::new());
            let open = || Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, bytes_max, Folding::Within).unwrap();
            let mut delta = open();
            let mut folds = 0;
            for step in steps {
                match step {
                    Step::Commit { changes, is_synced } => {
                        let durability = if is_synced { Durability::Synced } else { Durability::Buffered };
                        if delta.commit(batch(&changes), durability).is_err() {
                            // What a replica does with a store that failed, once it can be opened again.
                            disk.set_fault(None);
                            delta.reopen().unwrap();
                        }
                    }
                    Step::PowerLoss(keep) => {
                        folds += delta.stats().folds;
                        disk.crash_keeping(keep);
                        delta = open();
                    }
                    Step::Kill => {
                        folds += delta.stats().folds;
                        disk.kill();
                        delta = open();
                    }
                    Step::Reopen => {
                        disk.set_fault(None);
                        delta.reopen().unwrap();
                    }
                    Step::Reclaim => drop(delta.reclaim(&mut || true)),
                    Step::Fault(fault) => disk.set_fault(fault),
                    Step::SetAside => delta.set_aside().unwrap(),
                }
                assert_alike(&delta);
            }
            disk.set_fault(None);
            delta.reopen().unwrap();
            delta.reclaim(&mut || true).unwrap();
            assert_alike(&delta);
            prop_assert_eq!(delta.stats().unfolded_bytes, 0);
            prop_assert!(folds + delta.stats().folds > 0 || disk.row_count(Keyspace::Tokens) == 0);
        }
    }

    /// Goal: the same over the engine on disk, with folds beside the writes, and the log does not grow for ever. Method: a
    /// thousand batches over few keys, with reads between them; closed and opened again now and then.
    #[test]
    fn lsm_engine_is_folded_beside_writes() {
        let dir = tempfile::tempdir().unwrap();
        let mut folds = 0;
        for life in 0..4u8 {
            let engine = LsmEngine::open(LsmConfig::new(dir.path().join("store"), 16 << 20)).unwrap();
            let delta = Delta::open(Arc::new(engine), 2000, Folding::Beside).unwrap();
            assert_alike(&delta);
            for round in 0..250u16 {
                let [low, _] = round.to_le_bytes();
                let change = |step: u8| {
                    let index = low.wrapping_mul(7).wrapping_add(step * 5) % KEYS;
                    (index, (!low.wrapping_add(step).is_multiple_of(5)).then_some(low ^ life))
                };
                delta.commit(batch(&(0..4).map(change).collect()), Durability::Buffered).unwrap();
                if round % 25 == 0 {
                    assert_alike(&delta);
                }
            }
            folds += delta.stats().folds;
            if life == 2 {
                delta.reclaim(&mut || true).unwrap();
                assert_eq!(delta.stats().unfolded_bytes, 0);
                // What was folded goes from the log with the batches that come next.
                for _ in 0..250 {
                    delta.commit(batch(&BTreeMap::from([(1, Some(life))])), Durability::Buffered).unwrap();
                }
                let left = delta.scan(Keyspace::Delta, &[], Bound::Unbounded).unwrap().count();
                assert!(left <= 250, "{left} rows of the log are left");
            }
        }
        assert!(folds > 4, "{folds} folds");
    }

    /// While the disk takes no tables, writes go on until memory is short, and then wait and are refused; nothing is lost.
    #[test]
    fn writes_are_refused_while_folds_fail_for_long() {
        let disk = Arc::new(MemoryEngine::new());
        let delta = Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, 500, Folding::Beside).unwrap();
        disk.refuse_tables(true);
        let mut written = 0;
        let refused = loop {
            let change = BTreeMap::from([(written % KEYS, Some(written))]);
            match delta.commit(batch(&change), Durability::Synced) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 250, "nothing is bounded");
        };
        assert!(matches!(refused, EngineError::Busy) && written > 40, "{refused} after {written}");
        assert_alike(&delta);
        disk.refuse_tables(false);
        while delta.stats().folds == 0 {
            pause(Duration::from_millis(10));
        }
        delta.commit(batch(&BTreeMap::from([(0, Some(9))])), Durability::Synced).unwrap();
        assert_alike(&delta);
    }

    /// A row of the log that is none is damage of the store.
    #[test]
    fn damaged_log_is_told() {
        let disk = Arc::new(MemoryEngine::new());
        let put = |key: Bytes, value: &'static [u8]| {
            let (keyspace, value) = (Keyspace::Delta, Bytes::from_static(value));
            disk.commit(vec![Change::Put { keyspace, key, value }], Durability::Synced).unwrap();
        };
        let open = || Delta::open(Arc::clone(&disk) as Arc<dyn Engine>, 500, Folding::Within);
        put(format::encode_delta_key(7), &[0, 3, 0, 1, 2, 0xff, 0xff]);
        assert!(open().is_ok());
        for (number, value) in [(8, &[0, 3, 0, 1][..]), (9, &[0xff, 0xff])] {
            put(format::encode_delta_key(number), value);
            assert!(matches!(open(), Err(EngineError::Corrupt { .. })), "{number}");
            disk.wipe();
        }
        put(Bytes::from_static(b"seven"), &[]);
        assert!(matches!(open(), Err(EngineError::Corrupt { .. })));
    }
}
