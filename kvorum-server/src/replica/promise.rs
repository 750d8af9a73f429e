//! Promises: ballots for which this replica takes nothing older any more, until a record has reached them.
//!
//! A promise is on disk before it is answered, whatever the durability of writes is, and it survives restarts. It goes with
//! the record that reaches it, or once the partition was agreed past it: then nothing older can come in anyway. The rules
//! are in [`kvorum_core::promise`]; the commit thread ([`super::commit`]) judges by them.
//!
//! A write that a newer record supersedes must know whether a ballot came between, however long ago. So for each of some
//! buckets of keys the highest ballot is kept that was ever met here. It is in memory only. The store notes a bound that no
//! ballot which it has met exceeds; after a restart every version up to there counts as below a ballot.

use super::answer::Judged;
use super::completions::CompletionQueue;
use super::key_hash::KeyHash;
use super::queue::Request;
use super::{Replica, ReplicaError};
use crate::canary::{self, Canary};
use crate::slow::CommitTimes;
use crate::storage::{Change, Engine, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Key, Record, Token, UnixMillis, Version};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Promises that one store holds at a time; beyond it, ballots are refused as overload.
pub const PROMISES_LEN_MAX: usize = 65_536;
/// Buckets of keys that share the highest ballot that was met: 32 KiB.
const BUCKETS: usize = 4096;
/// How far above a ballot the noted bound is, as a clock word: a second, so that it is stored once a second at most.
const NOTED_AHEAD: u64 = 1000 << 16;

/// The promises of a store.
#[derive(Debug)]
pub struct Promises {
    /// How many there are: without any, no look-up takes the lock.
    count: AtomicUsize,
    /// The timestamp up to which no ballot is taken any more; 0 for none.
    fence: AtomicU64,
    /// The timestamp that no ballot which the store has met exceeds, as it is noted in the store; 0 if it met none.
    noted: AtomicU64,
    /// By bucket, the highest timestamp of a ballot that was met here.
    met: Box<[AtomicU64]>,
    // Guards the promises. Held for a look-up or for the changes of one group. The commit thread alone changes them.
    open: Mutex<HashMap<Key, Promised, KeyHash>>,
}

/// A promise that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promised {
    /// The ballot.
    pub(super) ballot: Version,
    /// Whether no earlier promise for the key was open when it was given. Only such a promise may be taken back: of an
    /// earlier one nothing else is left.
    pub(super) is_alone: bool,
}

impl Promised {
    /// No promise.
    pub(super) const NONE: Self = Self { ballot: Version::ZERO, is_alone: false };
}

/// The changes that a group makes to the promises: those that are given, and those that have ended.
pub(super) type Staged = HashMap<Key, Option<Promised>, KeyHash>;

impl Promises {
    /// Reads the promises from `engine`.
    pub(super) fn open(engine: &dyn Engine) -> Result<Self, ReplicaError> {
        let mut open = HashMap::default();
        for pair in engine.scan(Keyspace::Meta, format::META_PROMISE, Bound::Unbounded)? {
            let (row, ballot) = pair?;
            if !row.starts_with(format::META_PROMISE) {
                break;
            }
            let Ok(key) = Key::new(format::decode_promise_key(&row)?) else { continue };
            // Whether it stood for an earlier one is not known any more.
            let ballot = format::decode_due_version(&ballot)?;
            open.insert(key, Promised { ballot, is_alone: false });
        }
        let word = |key| {
            let row = engine.get(Keyspace::Meta, key)?;
            let word = row.map(|row| format::decode_lease(&row)).transpose()?;
            Ok::<_, ReplicaError>(word.map_or(0, |word| word.0))
        };
        let (fence, noted) = (word(format::META_FENCE)?, word(format::META_BALLOTS)?);
        Ok(Self {
            count: AtomicUsize::new(open.len()),
            fence: AtomicU64::new(fence),
            noted: AtomicU64::new(noted),
            met: (0..BUCKETS).map(|_| AtomicU64::new(noted)).collect(),
            open: Mutex::new(open),
        })
    }

    /// How many promises this store holds.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether this store holds no promise.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ballot that was promised for `key`; zero for none.
    pub fn of(&self, key: &Key) -> Version {
        self.promised(key).ballot
    }

    pub(super) fn promised(&self, key: &Key) -> Promised {
        if self.is_empty() {
            return Promised::NONE;
        }
        self.lock().get(key).copied().unwrap_or(Promised::NONE)
    }

    /// The highest version that is fenced; zero for none.
    pub fn fence(&self) -> Version {
        match self.fence.load(Ordering::Acquire) {
            0 => Version::ZERO,
            upto => Version::from_words(upto, u64::MAX),
        }
    }

    /// Whether a ballot above `version` may have been here. A fence stands for ballots that another store met.
    pub(super) fn is_contested(&self, key: &Key, version: Version) -> bool {
        let met = self.bucket(key).map_or(0, |met| met.load(Ordering::Acquire));
        version.clock() <= met || version <= self.fence()
    }

    /// Notes a ballot for `key`, promised or taken. Returns the bound that the store must note, if it has to be raised.
    pub(super) fn meet(&self, key: &Key, ballot: Version) -> Option<u64> {
        if let Some(met) = self.bucket(key) {
            met.fetch_max(ballot.clock(), Ordering::AcqRel);
        }
        let is_within = ballot.clock() <= self.noted.load(Ordering::Acquire);
        (!is_within).then(|| ballot.clock().saturating_add(NOTED_AHEAD))
    }

    /// Takes over the changes of a group that has been stored.
    pub(super) fn moved(&self, staged: Staged, noted: Option<u64>) {
        if let Some(noted) = noted {
            self.noted.fetch_max(noted, Ordering::Release);
        }
        if staged.is_empty() {
            return;
        }
        let mut open = self.lock();
        for (key, ballot) in staged {
            match ballot {
                Some(ballot) => open.insert(key, ballot),
                None => open.remove(&key),
            };
        }
        self.count.store(open.len(), Ordering::Release);
    }

    /// Forgets all promises: their store was set aside.
    pub(super) fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::Release);
    }

    /// The keys whose promise `is_over` says has no use any more.
    pub(super) fn over(&self, is_over: impl Fn(&Key, Version) -> bool) -> Vec<Key> {
        if self.is_empty() {
            return Vec::new();
        }
        let open = self.lock();
        open.iter()
            .filter(|(key, promised)| is_over(key, promised.ballot))
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn bucket(&self, key: &Key) -> Option<&AtomicU64> {
        // No hash with a random seed: keys that share a bucket would be others in each run of a simulated seed.
        let Token(token) = Token::of(key.as_ref());
        self.met.get(usize::try_from(token % BUCKETS as u64).unwrap_or(0))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Promised, KeyHash>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replica's answer to a ballot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prepared {
    /// From now on this replica takes nothing below the ballot.
    Promised {
        /// Its record.
        held: Option<Record>,
        /// Whether one of the earlier versions was once the newest here, as far back as is remembered.
        has_held: bool,
        /// Whether a record that was built on one of them was, as far back as is remembered.
        has_built: bool,
        /// How far back both are remembered, in milliseconds.
        memory_millis: u32,
    },
    /// The replica knows of a version that is not below the ballot.
    Denied {
        /// What a ballot must exceed here.
        by: Version,
    },
}

/// The rows that note a promise, or its end.
pub(super) fn row(key: &Key, ballot: Option<Version>) -> Change {
    let (keyspace, row) = (Keyspace::Meta, format::encode_promise_key(key.as_ref()));
    match ballot {
        Some(ballot) => Change::Put { keyspace, key: row, value: format::encode_version(ballot) },
        None => Change::Remove { keyspace, key: row },
    }
}

/// The row that notes the bound of the ballots that the store has met.
pub(super) fn noted(bound: u64) -> Change {
    let (keyspace, key) = (Keyspace::Meta, Bytes::from_static(format::META_BALLOTS));
    Change::Put { keyspace, key, value: format::encode_lease(UnixMillis(bound)) }
}

impl Replica {
    /// The promises of this store.
    pub fn promises(&self) -> &Promises {
        &self.shared.promises
    }

    /// Promises to take nothing of `key` below `ballot`, durably, and returns the record that is stored. `earlier` are
    /// versions under which the ballot's write may have been taken before.
    ///
    /// # Errors
    /// As for [`Self::apply`]. A promise may have been given all the same; that does no harm.
    ///
    /// # Cancel safety
    /// Once queued, the promise is given whether or not the future is still polled.
    pub async fn prepare(
        &self,
        key: Key,
        ballot: Version,
        earlier: Vec<Version>,
    ) -> Result<Prepared, ReplicaError> {
        self.shared.timestamps.check(ballot.clock())?;
        let observed = self.observe(&key).await?;
        let (done, outcome) = oneshot::channel();
        let completions = CompletionQueue::of_thread();
        let times = CommitTimes::wanted();
        let noted = times.clone();
        let request =
            Request::Prepare { key: key.clone(), ballot, earlier, observed, done, completions, times };
        self.shared.queue.submit(request)?;
        let judged = outcome.await.map_err(|_| ReplicaError::Stopped)?;
        if let Some(times) = noted {
            times.tell();
        }
        let (mark, has_held, has_built, memory_millis) = match judged? {
            Judged::Denied { by } => return Ok(Prepared::Denied { by }),
            Judged::Promised { mark, has_held, has_built, memory_millis } => {
                (mark, has_held, has_built, memory_millis)
            }
        };
        // Read on this side: the commit thread never waits for the disk. The promise keeps out everything below the ballot,
        // so a record of another version is newer than the ballot, or the one that was there has just been purged.
        let held = self.get(&key).await?;
        let version = |version: Option<Version>| version.unwrap_or(Version::ZERO);
        let (now, then) =
            (version(held.as_ref().map(|held| held.version)), version(mark.map(|mark| mark.version)));
        if now != then {
            return Ok(Prepared::Denied { by: now.max(ballot) });
        }
        Ok(Prepared::Promised { held, has_held, has_built, memory_millis })
    }

    /// Takes back the promise of `ballot`, under which nothing was sent, nor ever will be. It stays if it stands for an
    /// earlier promise as well, or if this request is lost: until a record reaches it.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    pub async fn release(&self, key: Key, ballot: Version) -> Result<(), ReplicaError> {
        if self.shared.promises.of(&key) != ballot {
            return Ok(());
        }
        let (done, outcome) = oneshot::channel();
        self.shared.queue.submit(Request::Release { key, ballot, done })?;
        outcome.await.map_err(|_| ReplicaError::Stopped)?
    }

    /// Takes no ballot up to `upto` any more, durably: a store of the cluster has lost its promises.
    pub async fn fence(&self, upto: u64) -> Result<(), ReplicaError> {
        if canary::is(Canary::RefillForgetsPromises) {
            return Ok(());
        }
        if upto == 0 {
            return Ok(());
        }
        self.shared.timestamps.check(upto)?;
        // At once for everything that is judged from now on. What was judged before is stored before the row.
        let fence = &self.shared.promises.fence;
        let upto = fence.fetch_max(upto, Ordering::AcqRel).max(upto);
        if canary::is(Canary::FenceUnsynced) {
            return Ok(());
        }
        let (keyspace, key) = (Keyspace::Meta, Bytes::from_static(format::META_FENCE));
        self.store_side(
            vec![Change::Put { keyspace, key, value: format::encode_lease(UnixMillis(upto)) }],
            true,
        )
        .await
    }
}
