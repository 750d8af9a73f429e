//! The replica's part of the scrub: the known damage, a walk that finds damage, and replacing the store with an empty
//! one.
//!
//! The coordinator decides from where missing records are fetched, and when a store may be set aside.

use super::queue::Request;
use super::{Digests, Replica, ReplicaError};
use crate::storage::damage::Damage;
use crate::storage::format::{self, Mark};
use crate::storage::{CheckedFile, Engine, EngineError, Keyspace, Known};
use bytes::Bytes;
use kvorum_core::{Key, UnixMillis, Version};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The keyspaces in the order in which a walk visits them.
const ROOMS: [Keyspace; 6] =
    [Keyspace::Meta, Keyspace::Due, Keyspace::Hints, Keyspace::Delta, Keyspace::Tokens, Keyspace::Records];

/// A position in a walk over the whole store. A keyspace's rows are read first: they tell which record is damaged. Then
/// its files are: they tell what the cache hid.
#[derive(Debug, Clone, Default)]
pub struct Place {
    room: usize,
    after: After,
}

/// What was read last of a keyspace.
#[derive(Debug, Clone)]
enum After {
    Row(Option<Bytes>),
    File(Option<Files>),
}

/// How far a keyspace's files were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Files {
    checked: u64,
    /// The newest file when the first one was checked: later ones are the next walk's.
    until: u64,
}

impl Files {
    fn and(before: Option<Self>, file: CheckedFile) -> Self {
        Self { checked: file.number, until: before.map_or(file.newest, |before| before.until) }
    }

    fn is_end(self) -> bool {
        self.checked >= self.until
    }
}

impl Default for After {
    fn default() -> Self {
        Self::Row(None)
    }
}

/// The result of one part of a walk.
#[derive(Debug)]
pub struct Walked {
    /// Where the walk continues; `None` at the end of the store.
    pub next: Option<Place>,
    /// Bytes of keys and values that were read.
    pub bytes: u64,
}

impl Replica {
    /// The damage that was found and is not repaired.
    pub fn damage(&self) -> &Damage {
        &self.shared.damage
    }

    /// The mark of `key` in the index: correct also when the record itself cannot be read.
    ///
    /// # Errors
    /// Returns `damaged` when there is no index.
    pub(super) fn indexed_mark(
        &self,
        key: &Key,
        damaged: ReplicaError,
    ) -> Result<Option<Mark>, ReplicaError> {
        match &self.shared.digests {
            Some(digests) => digests.mark(&*self.shared.engine, key),
            None => Err(damaged),
        }
    }

    /// The version of `key` in the index and the number of replicas it was written for; `None` when the index lacks the
    /// key.
    pub fn indexed_version(&self, key: &Key) -> Result<Option<(Version, u16)>, ReplicaError> {
        let mark = self.indexed_mark(key, ReplicaError::Stopped)?;
        Ok(mark.map(|mark| (mark.version, mark.from)))
    }

    /// Whether a scan can read `key`. When a whole block is damaged, single reads find the row that was rewritten, but
    /// scans still meet the block.
    pub async fn is_sound(&self, key: &Key) -> Result<bool, ReplicaError> {
        let (engine, key) = (Arc::clone(&self.shared.engine), key.clone());
        let read = move || {
            let scan = engine.scan(Keyspace::Records, key.as_ref(), Bound::Included(key.as_ref()))?;
            for pair in scan {
                match pair {
                    Err(EngineError::Corrupt { .. }) => return Ok(false),
                    other => drop(other?),
                }
            }
            Ok(true)
        };
        self.shared.pools.background.run(read).await?
    }

    /// Reads about `bytes` of the store from `from` on to find damage, and notes the damage in [`Replica::damage`].
    pub async fn walk(&self, from: Place, bytes: u64) -> Result<Walked, ReplicaError> {
        let engine = Arc::clone(&self.shared.engine);
        self.shared.pools.background.run(move || walk(&*engine, from, bytes)).await?
    }

    /// Sets the store aside and replaces it with an empty one, which is not quorum-eligible because it lacks the old
    /// records. The new store keeps the identity and the old store's own rows, as far as they can be read. No version
    /// stamped here is later than `lease`. `chain` has the rows of
    /// configurations and promises, which the old store may be unable to give.
    ///
    /// # Errors
    /// When the new store cannot be made. The old one then takes no more writes and may be gone; the caller must try
    /// again.
    pub async fn set_aside(&self, lease: UnixMillis, chain: Vec<(Bytes, Bytes)>) -> Result<(), ReplicaError> {
        let (done, outcome) = oneshot::channel();
        let mut rows = vec![
            (format::META_STORE_ID, format::encode_store_id(self.shared.store_id)),
            (format::META_RUN, format::encode_run(self.shared.run)),
            (format::META_BEGUN_AMONG, format::encode_lease(UnixMillis(self.shared.topology))),
            (format::META_CLOCK_LEASE, format::encode_lease(lease)),
            (format::META_INDEXED, Bytes::from_static(&[1])),
        ];
        if let Some((node, url)) = &self.shared.bound_to {
            rows.push((format::META_NODE, format::encode_node(*node, url)));
        }
        let own = rows.into_iter().map(|(key, value)| (Bytes::from_static(key), value));
        let rows = own.chain(chain).collect();
        self.shared.queue.submit(Request::SetAside { rows, done })?;
        outcome.await.map_err(|_| ReplicaError::Stopped)?
    }
}

impl Digests {
    /// The mark of `key` in the index.
    pub(super) fn mark(&self, engine: &dyn Engine, key: &Key) -> Result<Option<Mark>, ReplicaError> {
        let row = format::encode_token_key(self.partition_of(key), key.as_ref());
        let mark = engine.get(Keyspace::Tokens, &row)?;
        Ok(mark.map(|mark| format::decode_mark(&mark)).transpose()?)
    }

    /// Like [`Self::mark`], but only from memory.
    pub(super) fn mark_at_hand(&self, engine: &dyn Engine, key: &Key) -> Result<Known<Mark>, ReplicaError> {
        let row = format::encode_token_key(self.partition_of(key), key.as_ref());
        Ok(match engine.at_hand(Keyspace::Tokens, &row) {
            Known::Nothing => Known::Nothing,
            Known::Removed => Known::Removed,
            Known::Stored(mark) => Known::Stored(format::decode_mark(&mark)?),
        })
    }
}

fn walk(engine: &dyn Engine, from: Place, bytes_max: u64) -> Result<Walked, ReplicaError> {
    let mut bytes = 0;
    let Place { mut room, mut after } = from;
    while let Some(keyspace) = ROOMS.get(room) {
        let next = match after {
            After::Row(after) => match walk_rows(engine, *keyspace, after, bytes_max, &mut bytes)? {
                Some(last) => Some(After::Row(Some(last))),
                None => Some(After::File(None)),
            },
            After::File(Some(files)) if files.is_end() => None,
            After::File(before) => match engine.check_file(*keyspace, before.map(|files| files.checked)) {
                Ok(Some(file)) => {
                    bytes += file.bytes;
                    Some(After::File(Some(Files::and(before, file))))
                }
                // The whole store has been noted as damaged.
                Ok(None) | Err(EngineError::Corrupt { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        room += usize::from(next.is_none());
        after = next.unwrap_or_default();
        if bytes >= bytes_max {
            return Ok(Walked { next: Some(Place { room, after }), bytes });
        }
    }
    Ok(Walked { next: None, bytes })
}

/// Reads rows after `after` until `bytes`, to which theirs are added, reaches `bytes_max`. Returns the last key, or
/// none at the end of the keyspace.
fn walk_rows(
    engine: &dyn Engine,
    keyspace: Keyspace,
    after: Option<Bytes>,
    bytes_max: u64,
    bytes: &mut u64,
) -> Result<Option<Bytes>, ReplicaError> {
    let mut start = after.map_or_else(Vec::new, |after| after.to_vec());
    if !start.is_empty() {
        start.push(0);
    }
    for pair in engine.scan(keyspace, &start, Bound::Unbounded)? {
        let key = match pair {
            Ok((key, value)) => {
                *bytes += (key.len() + value.len()) as u64;
                key
            }
            Err(EngineError::Corrupt { key: Some(key), .. }) => key,
            // The end of the damage is unknown; the whole store has been noted as damaged.
            Err(EngineError::Corrupt { key: None, .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if *bytes >= bytes_max {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, SystemRng};
    use crate::metrics::StoreMetrics;
    use crate::replica::{
        Applied, Birth, DurabilityMode, Execution, Home, Purge, ReplicaParts, ReplicaThreads, Source, Vote,
        Workers,
    };
    use crate::storage::memory::{Fault, MemoryEngine};
    use crate::worker::Pools;
    use kvorum_core::{NodeId, Record, Run, StoreSeen, Value};

    const SEEN: StoreSeen = StoreSeen { node: NodeId(9), store: 99, run: Run { number: 4, nonce: 7 } };

    /// A walk over files ends at the newest that was there when it began, though newer ones come all the time.
    #[test]
    fn files_that_come_meanwhile_are_the_next_walks() {
        let (mut files, mut steps) = (None, 0);
        while !files.is_some_and(Files::is_end) {
            let number = files.map_or(1, |files: Files| files.checked + 1);
            files = Some(Files::and(files, CheckedFile { number, bytes: 1, newest: number + 5 }));
            steps += 1;
            assert!(steps <= 6, "{files:?}");
        }
        assert_eq!((steps, files), (6, Some(Files { checked: 6, until: 6 })));
    }

    fn replica(engine: &Arc<MemoryEngine>) -> (Replica, ReplicaThreads) {
        let parts = ReplicaParts {
            engine: Arc::clone(engine) as Arc<dyn Engine>,
            clock: ManualClock::at(1_000_000),
            timestamps: Arc::new(crate::clock::TimestampBound::alone(ManualClock::at(1_000_000))),
            value_bytes_max: 8 << 20,
            rng: Arc::new(SystemRng),
            pools: Arc::new(Pools::inline()),
            metrics: Arc::new(StoreMetrics::default()),
            execution: Execution::Inline,
            durability: DurabilityMode::Always,
            purge: Purge::Keep,
            node: NodeId(1),
            bound_to: None,
            birth: Birth { vote: Vote::Yes, topology: 7 },
            partition_bits: 4,
            index_bytes: 4 << 10,
            workers: Workers::Threads,
            supervisor: crate::supervise::Supervisor::default(),
        };
        let (replica, threads, _) = Replica::start(parts).unwrap();
        (replica, threads)
    }

    fn record(clock: u64, value: &'static str) -> Record {
        let value = Value::Present(Bytes::from_static(value.as_bytes()));
        Record {
            version: Version::from_words(clock << 16, NodeId(1).0),
            from: 3,
            expires: None,
            value,
            conditional: None,
        }
    }

    fn key() -> Key {
        Key::new("k").unwrap()
    }

    async fn damaged() -> (Arc<MemoryEngine>, Replica, ReplicaThreads) {
        let engine = Arc::new(MemoryEngine::new());
        let (replica, threads) = replica(&engine);
        replica.apply(key(), record(5, "five"), Source::Writer).await.unwrap();
        engine.flip(Keyspace::Records, 3).unwrap();
        assert!(replica.get(&key()).await.unwrap_err().is_damage());
        (engine, replica, threads)
    }

    /// A write older than a damaged record does not replace it: no read goes back in time, and a damaged tombstone
    /// keeps its key deleted. The same record or a newer one replaces it. The digests agree throughout.
    #[tokio::test]
    async fn damaged_record_keeps_its_version() {
        for (healing, expect) in [(record(5, "five"), "five"), (record(6, "six"), "six")] {
            let (_engine, replica, _threads) = damaged().await;
            let before = replica.digests().unwrap().keys();
            let older = replica.apply(key(), record(4, "four"), Source::Copy).await.unwrap();
            assert!(matches!(older, Applied::Superseded { by, .. } if by == record(5, "").version));
            assert!(replica.get(&key()).await.unwrap_err().is_damage());
            assert_eq!(replica.apply(key(), healing.clone(), Source::Copy).await.unwrap(), Applied::Stored);
            assert_eq!(
                replica.get(&key()).await.unwrap().unwrap(),
                record(healing.version.millis().0, expect)
            );
            assert_eq!(replica.digests().unwrap().keys(), before);
            assert!(replica.is_sound(&key()).await.unwrap());
        }
    }

    /// The same after a restart, when only the index knows the version of the damaged record.
    #[tokio::test]
    async fn damaged_record_keeps_its_version_over_a_restart() {
        let (engine, first, threads) = damaged().await;
        drop((first, threads));
        let (replica, _threads) = replica(&engine);
        let older = replica.apply(key(), record(4, "four"), Source::Copy).await.unwrap();
        assert!(matches!(older, Applied::Superseded { by, .. } if by == record(5, "").version));
        assert_eq!(replica.indexed_version(&key()).unwrap(), Some((record(5, "").version, 3)));
    }

    /// A walk finds a damaged row that nobody asked for, in any keyspace.
    #[tokio::test]
    async fn walks_find_damage() {
        for (room, is_record) in
            [(Keyspace::Records, true), (Keyspace::Delta, false), (Keyspace::Meta, false)]
        {
            let engine = Arc::new(MemoryEngine::new());
            let (replica, _threads) = replica(&engine);
            replica.apply(key(), record(5, "five"), Source::Writer).await.unwrap();
            engine.flip(room, 3).unwrap();
            let mut place = Some(Place::default());
            let mut parts = 0;
            while let Some(from) = place {
                place = replica.walk(from, 1).await.unwrap().next;
                parts += 1;
            }
            assert!(parts > 4, "in parts");
            assert_eq!(
                (replica.damage().row_count() == 1, replica.damage().store().is_some()),
                (is_record, !is_record)
            );
        }
    }

    /// Goal: a store that could not be set aside, because the disk failed, can be later, and none of the old store's
    /// own rows is lost.
    /// Method: the new store cannot be written at first; the old store's digests do not outlive it.
    #[tokio::test]
    async fn store_that_could_not_begin_anew_does_later() {
        let (engine, first, threads) = damaged().await;
        first.store_seen(&[SEEN]).await.unwrap();
        let id = first.store_id();
        engine.set_fault(Some(Fault::WriteError));
        first.set_aside(UnixMillis(123), Vec::new()).await.unwrap_err();
        assert_eq!(first.digests().unwrap().keys(), 0);
        first.apply(key(), record(6, "six"), Source::Copy).await.unwrap_err();
        engine.set_fault(None);
        first.apply(key(), record(6, "six"), Source::Copy).await.unwrap_err();
        first.set_aside(UnixMillis(123), Vec::new()).await.unwrap();
        assert_eq!(first.apply(key(), record(6, "six"), Source::Copy).await.unwrap(), Applied::Stored);
        drop((first, threads));
        let (again, _threads) = replica(&engine);
        let facts = again.facts().unwrap();
        assert_eq!(
            (again.store_id(), facts.votes, facts.seen.get(&NodeId(9))),
            (id, Vote::No, Some(&(99, SEEN.run)))
        );
    }

    /// A replacement store is empty, is not quorum-eligible, and takes writes, however the old one failed. It keeps its
    /// identity even if that row is damaged, and the rest of the old store's own rows as far as they can be read.
    #[tokio::test]
    async fn store_begins_anew() {
        for damages_meta in [false, true] {
            let (engine, first, threads) = damaged().await;
            first.store_seen(&[SEEN]).await.unwrap();
            let id = first.store_id();
            if damages_meta {
                (0..64).for_each(|choice| drop(engine.flip(Keyspace::Meta, choice)));
            }
            first.set_aside(UnixMillis(123), Vec::new()).await.unwrap();
            assert_eq!((first.get(&key()).await.unwrap(), first.digests().unwrap().keys()), (None, 0));
            assert_eq!(first.damage().row_count(), 0);
            // Older than the damaged record: the new store lacks that, and is not quorum-eligible.
            assert_eq!(first.apply(key(), record(4, "four"), Source::Copy).await.unwrap(), Applied::Stored);
            drop((first, threads));
            let (again, _threads) = replica(&engine);
            let facts = again.facts().unwrap();
            assert_eq!((again.store_id(), again.is_new(), facts.votes), (id, false, Vote::No));
            let home = || Home::of(&*engine).unwrap().unwrap();
            assert_eq!(home(), Home { node: None, topology: Some(7), is_provisional: true });
            again.store_votes(Vote::Yes).await.unwrap();
            assert_eq!(home(), Home { node: None, topology: Some(7), is_provisional: false });
            assert_eq!(facts.seen.contains_key(&NodeId(9)), !damages_meta);
            assert_eq!(again.get(&key()).await.unwrap(), Some(record(4, "four")));
        }
    }
}
