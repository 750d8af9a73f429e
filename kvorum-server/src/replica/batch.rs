//! Batches: many records read or applied at once, for callers that copy existing records.
//!
//! The look-ups of a batch cost one job of the background pool, whatever [`super::Execution`] is, so that they do not
//! block a network thread. The batch takes one place in the commit queue and gets one answer.

use super::answer::Applied;
use super::courier::Courier;
use super::queue::{Observed, Request, Source};
use super::{Replica, ReplicaError, stored_mark};
use crate::storage::format::Mark;
use crate::storage::{Engine, EngineError, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, Record};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Rows per record of a batch, and their bytes in total, that one scan reads at most; beyond that, look-ups are
/// cheaper. Two rows per record, because two peers that fill a node send it interleaved keys.
const BETWEEN_MAX: usize = 2;
const BETWEEN_BYTES_MAX: usize = 256 << 10;

/// The stored state of one key of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// The replica knows nothing of the key.
    Nothing,
    /// The record, tombstones and expired ones included.
    Record(Record),
    /// The record cannot be read; the damage is noted for the scrub.
    Damaged,
}

/// A record as it lies in the store, not decoded yet, because the caller may not need it.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a>(&'a Bytes);

impl Row<'_> {
    /// The record, a tombstone or an expired one included.
    ///
    /// # Errors
    /// [`ReplicaError::Format`] when the row is not a valid record.
    pub fn record(self) -> Result<Record, ReplicaError> {
        Ok(format::decode_record(self.0)?)
    }
}

/// One part of a walk over the records in key order.
#[derive(Debug)]
pub struct Stretch<T> {
    /// The picked values.
    pub picked: Vec<T>,
    /// Rows that were read, picked or not.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last key that was read; the next part starts after it. `None` at the end of the store.
    pub last: Option<Key>,
}

/// Reads the stored marks of the keys of `records` (all but the values) with one scan. The scan needs ascending keys
/// and few stored rows between the first and the last, as while a store is filled in key order.
///
/// Returns `None` when that does not hold or a row there cannot be read; the caller then looks up each key.
fn neighbours(engine: &dyn Engine, records: &[(Key, Record)]) -> Option<Vec<Option<Mark>>> {
    let [(first, _), .., (last, _)] = records else { return None };
    if !records.is_sorted_by(|(one, _), (next, _)| one < next) {
        return None;
    }
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for pair in engine.scan(Keyspace::Records, first.as_ref(), Bound::Included(last.as_ref())).ok()? {
        let (key, row) = pair.ok()?;
        bytes += row.len();
        if rows.len() == records.len() * BETWEEN_MAX || bytes > BETWEEN_BYTES_MAX {
            return None;
        }
        rows.push((key, format::decode_record_mark(&row).ok()?));
    }
    let mark_of = |(key, _): &(Key, Record)| {
        let at = rows.binary_search_by(|(row, _)| row.as_ref().cmp(key.as_ref())).ok()?;
        rows.get(at).map(|(_, mark)| *mark)
    };
    Some(records.iter().map(mark_of).collect())
}

impl Replica {
    /// Reads about `bytes_max` bytes of records after `after` and returns the results of `pick`, which runs on the
    /// thread that reads. No snapshot is held between two parts.
    ///
    /// # Errors
    /// Errors of reading, including [`EngineError::Corrupt`], because the end of the damage is unknown. Errors of
    /// `pick`.
    pub async fn stretch<T: Send + 'static>(
        &self,
        after: Option<Key>,
        bytes_max: u64,
        pick: impl Fn(&Key, Row<'_>) -> Result<Option<T>, ReplicaError> + Send + 'static,
    ) -> Result<Stretch<T>, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let read = move || {
            let mut start = after.map_or_else(Vec::new, |key| key.as_ref().to_vec());
            if !start.is_empty() {
                start.push(0);
            }
            let mut stretch = Stretch { picked: Vec::new(), rows: 0, bytes: 0, last: None };
            for pair in engine.scan(Keyspace::Records, &start, Bound::Unbounded)? {
                let (key, row) = pair?;
                stretch.rows += 1;
                stretch.bytes += (key.len() + row.len()) as u64;
                let Ok(key) = Key::new(key) else { continue };
                stretch.picked.extend(pick(&key, Row(&row))?);
                if stretch.bytes >= bytes_max {
                    stretch.last = Some(key);
                    break;
                }
            }
            Ok::<_, ReplicaError>(stretch)
        };
        self.shared.pools.background.run(read).await?
    }

    /// The stored records of `keys`, in their order. Stops after the key that brings the total to `bytes_max` bytes of
    /// keys and values; the first key is always answered. In a batch, a record from the future counts as damaged.
    ///
    /// # Errors
    /// An error of reading other than damage fails the batch.
    pub async fn get_many(&self, keys: Vec<Key>, bytes_max: usize) -> Result<Vec<Fetched>, ReplicaError> {
        let (engine, timestamps) = (Arc::clone(&self.shared.engine), Arc::clone(&self.shared.timestamps));
        let read = move || {
            let is_one = keys.len() == 1;
            let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
            for key in keys {
                bytes += key.as_ref().len();
                found.push(match engine.get(Keyspace::Records, key.as_ref()) {
                    Ok(None) => Fetched::Nothing,
                    Ok(Some(row)) => {
                        bytes += row.len();
                        let record = format::decode_record(&row)?;
                        match timestamps.check(record.version.clock()) {
                            Ok(()) => Fetched::Record(record),
                            // A caller that asks for one key gets the reason.
                            Err(error) if is_one => return Err(error.into()),
                            Err(_) => Fetched::Damaged,
                        }
                    }
                    Err(EngineError::Corrupt { .. }) => Fetched::Damaged,
                    Err(error) => return Err(error.into()),
                });
                if bytes >= bytes_max {
                    break;
                }
            }
            Ok::<_, ReplicaError>(found)
        };
        self.shared.pools.background.run(read).await?
    }

    /// Applies `records` in one group, each as [`Self::apply`] does. Returns the outcomes in the same order; `None` for
    /// a record that cannot be judged because the stored row of its key is damaged.
    ///
    /// Keys are copied: the store remembers them for a while, and a slice would keep the whole received buffer in
    /// memory.
    ///
    /// # Errors
    /// As for [`Self::apply`], for the whole batch. After any but a refusal it is unknown which records took effect.
    ///
    /// # Cancel safety
    /// Once queued, the records are applied whether or not the future is still polled.
    pub async fn apply_many(
        &self,
        records: Vec<(Key, Record)>,
        source: Source,
    ) -> Result<Vec<Option<Applied>>, ReplicaError> {
        records.iter().try_for_each(|(_, record)| self.admit(record, source))?;
        let shared = Arc::clone(&self.shared);
        let observe = move || {
            let (mut observed, mut places) = (Vec::with_capacity(records.len()), Vec::new());
            // Read before the look-up, as for one record.
            let begun = shared.groups.load(Ordering::Acquire);
            let mut marks = neighbours(&*shared.engine, &records).map(Vec::into_iter);
            let look_up = |key: &Key| {
                let as_of = shared.groups.load(Ordering::Acquire);
                // Prefer the index: its newest rows are in small buffers, while those of the store are in a large skip
                // list.
                let mark = match &shared.digests {
                    Some(digests) => digests.mark(&*shared.engine, key),
                    None => stored_mark(&*shared.engine, None, key),
                };
                (mark, as_of)
            };
            for (key, record) in records {
                let mark = marks.as_mut().and_then(Iterator::next);
                let (mark, as_of) = mark.map_or_else(|| look_up(&key), |mark| (Ok(mark), begun));
                match mark {
                    Ok(mark) => {
                        places.push(true);
                        let Ok(key) = Key::new(Bytes::copy_from_slice(key.as_ref())) else { continue };
                        observed.push((key, record, Observed { mark, as_of }));
                    }
                    Err(error) if error.is_damage() => places.push(false),
                    Err(error) => return Err(error),
                }
            }
            Ok((observed, places))
        };
        let (records, places) = self.shared.pools.background.run(observe).await??;
        let (done, outcome) = oneshot::channel();
        let courier = Courier::of_thread();
        self.shared.queue.submit(Request::ApplyMany { records, source, done, courier })?;
        let mut judged = outcome.await.map_err(|_| ReplicaError::Stopped)??.into_iter();
        Ok(places
            .into_iter()
            .map(|is_judged| if is_judged { judged.next().flatten() } else { None })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryEngine;
    use crate::storage::{Change, Durability};
    use kvorum_core::{NodeId, Value, Version};

    fn pair(number: u32, value_bytes: usize) -> (Key, Record) {
        let version = Version::from_words(number.into(), NodeId(1).0);
        let value = Value::Present(Bytes::from(vec![7; value_bytes]));
        (
            Key::new(number.to_be_bytes().to_vec()).unwrap(),
            Record { version, from: 3, expires: None, value, conditional: None },
        )
    }

    /// A store that holds every `each`-th key of 1,000.
    fn engine_with(each: usize, value_bytes: usize) -> MemoryEngine {
        let engine = MemoryEngine::new();
        let rows = (0..1_000).step_by(each).map(|number| {
            let (key, record) = pair(number, value_bytes);
            let (keyspace, key) = (Keyspace::Records, key.into_bytes());
            Change::Put { keyspace, key, value: format::encode_record(&record) }
        });
        engine.commit(rows.collect(), Durability::Buffered).unwrap();
        engine
    }

    fn batch(each: usize) -> Vec<(Key, Record)> {
        (100..900).step_by(each).map(|number| pair(number, 10)).collect()
    }

    /// Goal: one scan finds the same as looking up each key, and is used where the store has few rows in between.
    /// Method: stores and batches of all densities side by side.
    #[test]
    fn neighbours_are_as_looked_up() {
        let mut read = 0;
        for held in [1, 2, 3, 5, 40, 1_000] {
            let engine = engine_with(held, 10);
            for wanted in [1, 2, 3, 4, 5, 50] {
                let records = batch(wanted);
                let looked_up: Vec<_> =
                    records.iter().map(|(key, _)| stored_mark(&engine, None, key).unwrap()).collect();
                let found = neighbours(&engine, &records);
                let (first, last) = (100, 100 + (records.len() - 1) * wanted);
                let between = (first..=last).filter(|number| number % held == 0).count();
                assert_eq!(found.is_some(), between <= 2 * records.len(), "{held} {wanted}");
                if let Some(found) = found {
                    assert_eq!(found, looked_up, "{held} {wanted}");
                    read += 1;
                }
            }
        }
        assert!(read > 20, "{read}");
    }

    /// A batch that is out of order, too small, too large or damaged is looked up key by key.
    #[test]
    fn neighbours_are_not_guessed() {
        let engine = engine_with(2, 10);
        assert!(neighbours(&engine, &batch(1)).is_some());
        let mut turned = batch(1);
        turned.swap(100, 101);
        assert_eq!(neighbours(&engine, &turned), None);
        let mut twice = batch(1);
        twice.insert(100, twice[100].clone());
        assert_eq!(neighbours(&engine, &twice), None);
        assert_eq!(neighbours(&engine, &batch(1)[..1]), None);
        assert_eq!(neighbours(&engine, &[]), None);
        assert_eq!(neighbours(&engine_with(2, 1 << 10), &batch(1)), None);
        engine.flip(Keyspace::Records, 250).unwrap();
        assert_eq!(neighbours(&engine, &batch(1)), None);
    }
}
