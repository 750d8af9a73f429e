//! Batches: many records read or applied at once, for callers that copy existing records.
//!
//! The look-ups of a batch cost one job of the background pool, whatever [`super::Execution`] is, so that they do not
//! block a network thread. The batch takes one place in the commit queue and gets one answer.

use super::answer::Applied;
use super::completions::CompletionQueue;
use super::queue::{Observed, Request, Source};
use super::{Replica, ReplicaError, stored_mark};
use crate::storage::{EngineError, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, Record};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

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
            for (key, record) in records {
                // Read before the look-up, as for one record.
                let as_of = shared.groups.load(Ordering::Acquire);
                // Prefer the index: its newest rows are in small buffers, while those of the store are in a large skip
                // list.
                let mark = match &shared.digests {
                    Some(digests) => digests.mark(&*shared.engine, &key),
                    None => stored_mark(&*shared.engine, None, &key),
                };
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
        let completions = CompletionQueue::of_thread();
        self.shared.queue.submit(Request::ApplyMany { records, source, done, completions })?;
        let mut judged = outcome.await.map_err(|_| ReplicaError::Stopped)??.into_iter();
        Ok(places
            .into_iter()
            .map(|is_judged| if is_judged { judged.next().flatten() } else { None })
            .collect())
    }
}
