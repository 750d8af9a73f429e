//! Batches: many records read or applied in one go, for whoever copies what exists already.
//!
//! A batch costs one job of the background pool for its look-ups, whatever [`super::Execution`] says, so that no network
//! thread is kept by it; one place in the commit queue; and one answer.

use super::answer::Applied;
use super::courier::Courier;
use super::queue::{Observed, Request, Source};
use super::{Replica, ReplicaError, stored_mark};
use crate::sched::Courtesy;
use crate::storage::{EngineError, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, Record};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// This is what a replica holds of one key of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// It has never heard of it.
    Nothing,
    /// The record, tombstones and expired ones included.
    Record(Record),
    /// Something that cannot be read; it is noted for whoever heals it.
    Damaged,
}

/// This is a part of a walk over the records in the order of their keys.
#[derive(Debug)]
pub struct Stretch {
    /// Those that were wanted, tombstones and expired ones included.
    pub records: Vec<(Key, Record)>,
    /// Rows that were read, wanted or not.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last key that was read: the next part goes on behind it. None at the end of the store.
    pub last: Option<Key>,
}

impl Replica {
    /// Reads about `bytes_max` bytes of records from behind `after` on, and returns those whose keys are wanted. Nothing is
    /// held between two parts.
    ///
    /// # Errors
    /// Those of reading: also [`EngineError::Corrupt`], for it cannot be told where damage ends.
    pub async fn stretch(
        &self,
        after: Option<Key>,
        bytes_max: u64,
        is_wanted: impl Fn(&Key) -> bool + Send + 'static,
    ) -> Result<Stretch, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let read = move || {
            let mut start = after.map_or_else(Vec::new, |key| key.as_ref().to_vec());
            if !start.is_empty() {
                start.push(0);
            }
            let mut stretch = Stretch { records: Vec::new(), rows: 0, bytes: 0, last: None };
            let mut courtesy = Courtesy::of_rows();
            for pair in engine.scan(Keyspace::Records, &start, Bound::Unbounded)? {
                courtesy.step();
                let (key, row) = pair?;
                stretch.rows += 1;
                stretch.bytes += (key.len() + row.len()) as u64;
                let Ok(key) = Key::new(key) else { continue };
                let is_last = stretch.bytes >= bytes_max;
                if is_last {
                    stretch.last = Some(key.clone());
                }
                if is_wanted(&key) {
                    stretch.records.push((key, format::decode_record(&row)?));
                }
                if is_last {
                    break;
                }
            }
            Ok::<_, ReplicaError>(stretch)
        };
        self.shared.pools.background.run(read).await?
    }

    /// What is stored of `keys`, in their order: of the first at least, and of no more once there are `bytes_max` bytes
    /// of keys and values.
    ///
    /// # Errors
    /// What cannot be read for another reason than damage fails the batch.
    pub async fn get_many(&self, keys: Vec<Key>, bytes_max: usize) -> Result<Vec<Fetched>, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        let read = move || {
            let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
            let mut courtesy = Courtesy::of_look_ups();
            for key in keys {
                courtesy.step();
                bytes += key.as_ref().len();
                found.push(match engine.get(Keyspace::Records, key.as_ref()) {
                    Ok(None) => Fetched::Nothing,
                    Ok(Some(row)) => {
                        bytes += row.len();
                        Fetched::Record(format::decode_record(&row)?)
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

    /// Applies `records` as [`Self::apply`] does each of them, in one group. What became of each, in their order; none
    /// where what is stored of its key is damaged so that it cannot be judged.
    ///
    /// Keys are copied: the store remembers them for a while, and a slice would keep all that was read with it.
    ///
    /// # Errors
    /// As of [`Self::apply`], for the batch. After any but a refusal it is unknown which of them took effect.
    ///
    /// # Cancel safety
    /// Once queued, the records are applied whether or not the future is still polled.
    pub async fn apply_many(
        &self,
        records: Vec<(Key, Record)>,
        source: Source,
    ) -> Result<Vec<Option<Applied>>, ReplicaError> {
        records.iter().try_for_each(|(_, record)| self.shared.health.admit(record))?;
        let shared = Arc::clone(&self.shared);
        let observe = move || {
            let (mut observed, mut places) = (Vec::with_capacity(records.len()), Vec::new());
            let mut courtesy = Courtesy::of_look_ups();
            for (key, record) in records {
                courtesy.step();
                // Read before the look-up, as for one record.
                let as_of = shared.groups.load(Ordering::Acquire);
                // By the index, where there is one: its newest rows are in buffers, those of the store in a large skip list.
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
        let courier = Courier::of_thread();
        self.shared.queue.submit(Request::ApplyMany { records, source, done, courier })?;
        let mut judged = outcome.await.map_err(|_| ReplicaError::Stopped)??.into_iter();
        Ok(places
            .into_iter()
            .map(|is_judged| if is_judged { judged.next().flatten() } else { None })
            .collect())
    }
}
