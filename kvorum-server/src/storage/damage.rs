//! Damage: an engine wrapper that records the damage that the inner engine finds, for the repair.
//!
//! Bytes that differ from the written ones are never served: the engine reports them instead. [`Watched`] returns every
//! report to its caller and records it in [`Damage`], so that no caller can forget to. There are two kinds. A damaged
//! *row* could not be read; writing it again repairs it, where the engine can. Damage of the *store* stays whatever is
//! written: a scan that could not continue, or a damaged row of the store's own bookkeeping.

use super::{
    Batch, CheckedFile, Durability, Engine, EngineError, EngineStats, Keyspace, Known, Room, Rows, Scan,
    Snapshot,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most rows that are recorded at a time. Later reads find the others again.
const ROWS_MAX: usize = 4096;

/// The damage that was found and is not repaired yet. Cheap to query while there is none.
#[derive(Debug, Default)]
pub struct Damage {
    // Guards the records; held for an insertion or a copy of some keys.
    notes: Mutex<Notes>,
    reports: AtomicU64,
}

#[derive(Debug, Default)]
struct Notes {
    rows: BTreeSet<Bytes>,
    store: Option<String>,
}

impl Damage {
    /// Keys of damaged records after `after`, at most `count_max`.
    pub fn rows(&self, after: Option<&Bytes>, count_max: usize) -> Vec<Bytes> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.lock().rows.range::<Bytes, _>((after, Bound::Unbounded)).take(count_max).cloned().collect()
    }

    /// The number of damaged records that are not repaired yet.
    pub fn row_count(&self) -> usize {
        self.lock().rows.len()
    }

    /// Why the store itself is damaged; none if it is not.
    pub fn store(&self) -> Option<String> {
        self.lock().store.clone()
    }

    /// The number of reports so far, including repeated ones of the same damage.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Records that the store is damaged beyond single records.
    pub fn note_store(&self, reason: &str) {
        let mut notes = self.lock();
        if notes.store.is_none() {
            tracing::error!(reason, "the store is damaged");
            notes.store = Some(reason.to_owned());
        }
    }

    /// Forgets a record that can be read again, or no longer exists.
    pub fn forget_row(&self, key: &Bytes) {
        self.lock().rows.remove(key);
    }

    /// Forgets all damage, because the store was replaced.
    pub fn forget(&self) {
        *self.lock() = Notes::default();
    }

    /// Records the error of a read of `key` in `keyspace`, if it is damage.
    fn note_read(&self, keyspace: Keyspace, key: &[u8], error: &EngineError) {
        let EngineError::Corrupt { .. } = error else { return };
        self.reports.fetch_add(1, Ordering::Relaxed);
        if keyspace == Keyspace::Records {
            self.note_row(Bytes::copy_from_slice(key), error);
        } else {
            self.note_store(&error.to_string());
        }
    }

    /// Records the error of a scan of `keyspace`, if it is damage.
    fn note_scan(&self, keyspace: Keyspace, error: &EngineError) {
        let EngineError::Corrupt { key, .. } = error else { return };
        self.reports.fetch_add(1, Ordering::Relaxed);
        match key {
            Some(key) if keyspace == Keyspace::Records => self.note_row(key.clone(), error),
            _ => self.note_store(&error.to_string()),
        }
    }

    fn note_row(&self, key: Bytes, error: &EngineError) {
        let mut notes = self.lock();
        if notes.rows.len() < ROWS_MAX && notes.rows.insert(key) {
            tracing::error!(%error, "a record is damaged and not served: it is repaired if another node has it");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An engine wrapper that records its reports of damage.
pub struct Watched {
    inner: Arc<dyn Engine>,
    damage: Arc<Damage>,
}

impl Watched {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Engine>, damage: Arc<Damage>) -> Self {
        Self { inner, damage }
    }
}

/// A snapshot whose damage is recorded like the engine's.
struct WatchedSnapshot {
    inner: Arc<dyn Snapshot>,
    damage: Arc<Damage>,
}

impl Snapshot for WatchedSnapshot {
    fn scan(&self, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        watch(self.inner.scan(start, end), Keyspace::Records, &self.damage)
    }
}

/// Records the damage that a scan meets.
fn watch(
    scan: Result<Scan, EngineError>,
    keyspace: Keyspace,
    damage: &Arc<Damage>,
) -> Result<Scan, EngineError> {
    let scan = scan.inspect_err(|error| damage.note_scan(keyspace, error))?;
    let damage = Arc::clone(damage);
    Ok(Box::new(scan.inspect(move |pair| {
        if let Err(error) = pair {
            damage.note_scan(keyspace, error);
        }
    })))
}

impl Engine for Watched {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let found = self.inner.get(keyspace, key);
        if let Err(error) = &found {
            self.damage.note_read(keyspace, key, error);
        }
        found
    }

    fn at_hand(&self, keyspace: Keyspace, key: &[u8]) -> Known<Bytes> {
        self.inner.at_hand(keyspace, key)
    }

    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError> {
        watch(self.inner.scan(keyspace, start, end), keyspace, &self.damage)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        let (inner, damage) = (self.inner.snapshot()?, Arc::clone(&self.damage));
        Ok(Arc::new(WatchedSnapshot { inner, damage }))
    }

    fn check_file(&self, keyspace: Keyspace, after: Option<u64>) -> Result<Option<CheckedFile>, EngineError> {
        self.inner.check_file(keyspace, after).inspect_err(|error| self.damage.note_scan(keyspace, error))
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError> {
        self.inner.commit(batch, durability)
    }

    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError> {
        self.inner.ingest(keyspace, rows)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.inner.sync()
    }

    fn check(&self) -> Result<(), EngineError> {
        self.inner.check()
    }

    fn retire(&self) -> Result<(), EngineError> {
        self.inner.retire()
    }

    fn reopen(&self) -> Result<(), EngineError> {
        self.inner.reopen()
    }

    fn set_aside(&self) -> Result<(), EngineError> {
        self.inner.set_aside()?;
        self.damage.forget();
        Ok(())
    }

    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError> {
        let left = self.inner.reclaim(go_on);
        if let Err(error @ EngineError::Corrupt { .. }) = &left {
            self.damage.reports.fetch_add(1, Ordering::Relaxed);
            self.damage.note_store(&error.to_string());
        }
        left
    }

    fn has_begun_anew(&self) -> bool {
        self.inner.has_begun_anew()
    }

    fn forget_beginning(&self) -> Result<(), EngineError> {
        self.inner.forget_beginning()
    }

    fn open_reserve(&self) -> Result<bool, EngineError> {
        self.inner.open_reserve()
    }

    fn keep_reserve(&self) {
        self.inner.keep_reserve();
    }

    fn check_supplies(&self) -> Result<(), EngineError> {
        self.inner.check_supplies()
    }

    fn room(&self) -> Room {
        self.inner.room()
    }

    fn latency(&self) -> Duration {
        self.inner.latency()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Change;
    use crate::storage::memory::MemoryEngine;

    fn watched(keyspace: Keyspace) -> (Arc<MemoryEngine>, Watched, Arc<Damage>) {
        let (engine, damage) = (Arc::new(MemoryEngine::new()), Arc::new(Damage::default()));
        let watched = Watched::new(Arc::clone(&engine) as Arc<dyn Engine>, Arc::clone(&damage));
        let key = Bytes::from_static(b"k");
        watched
            .commit(vec![Change::Put { keyspace, key: key.clone(), value: key }], Durability::Synced)
            .unwrap();
        engine.flip(keyspace, 3).unwrap();
        (engine, watched, damage)
    }

    /// A damaged record is recorded by a read and by a scan, and forgotten on request.
    #[test]
    fn damaged_records_are_noted() {
        let (_, engine, damage) = watched(Keyspace::Records);
        assert_eq!(damage.row_count(), 0);
        assert!(engine.get(Keyspace::Records, b"k").is_err());
        assert_eq!(damage.rows(None, 10), [Bytes::from_static(b"k")]);
        damage.forget_row(&Bytes::from_static(b"k"));
        assert_eq!(damage.row_count(), 0);
        assert_eq!(engine.scan(Keyspace::Records, b"", Bound::Unbounded).unwrap().count(), 1);
        assert_eq!((damage.row_count(), damage.store(), damage.reports()), (1, None, 2));
    }

    /// Any other row is the store's own: only setting the store aside removes its damage.
    #[test]
    fn damaged_bookkeeping_is_the_stores() {
        for keyspace in [Keyspace::Meta, Keyspace::Tokens, Keyspace::Hints, Keyspace::Due, Keyspace::Delta] {
            let (memory, engine, damage) = watched(keyspace);
            assert!(engine.scan(keyspace, b"", Bound::Unbounded).unwrap().next().unwrap().is_err());
            assert!(damage.store().is_some(), "{keyspace:?}");
            engine.set_aside().unwrap();
            assert_eq!((damage.store(), memory.row_count(keyspace)), (None, 0));
        }
    }
}
