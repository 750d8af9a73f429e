//! Storage: the data that one node keeps on its disk, as keyspaces of bytes.
//!
//! Storage knows no nodes, no quorums and no versions. It offers an [`Engine`]: point reads, ordered scans over a
//! snapshot, and atomic batches with an explicit durability. Two engines pass one contract suite: [`lsm`] on disk, and
//! [`memory`], which can be told to fail. [`delta`] buffers the index over either; [`damage`] records damage that was
//! found. Only [`format`] knows what the bytes of a record mean, and [`chain_format`] those of configurations. [`data_dir`] guards the directory against a second
//! process and a newer format; [`identity`] tells whether it is the directory of the last run; [`quarantine`] is where
//! damaged stores go.
//!
//! All calls block for as long as the disk takes. `replica` documents who may call them where.

pub mod chain_format;
pub mod damage;
pub mod data_dir;
pub mod delta;
mod fjall_workarounds;
pub mod format;
pub mod identity;
mod known;
pub mod lsm;
pub mod memory;
pub mod quarantine;
mod reserve;
pub mod shortage;
mod wait;

pub use known::Known;

#[cfg(test)]
mod contract;

use bytes::Bytes;
use shortage::Shortage;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// The name of one of the engine's ordered maps. A batch over several of them is atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keyspace {
    /// Key → record.
    Records,
    /// (Instant, key) → version: the sweeper checks the key when that instant has come.
    Due,
    /// Name → value: facts about the store itself.
    Meta,
    /// (Target node, version, key) → record: writes kept for nodes that missed them.
    Hints,
    /// (Partition, key) → version: the index that replicas compare.
    Tokens,
    /// Number of a batch → its changes in [`Keyspace::Tokens`], until they are stored there ([`delta`]).
    Delta,
}

/// The guarantee when a commit returns, from the engine's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The batch and everything committed before it survives a power loss.
    Synced,
    /// The batch has been given to the operating system; it survives the end of this process.
    Buffered,
}

/// A change in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a key's value.
    Put {
        /// The map to change.
        keyspace: Keyspace,
        /// The key in it.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Removes a key; nothing happens if it is not there.
    Remove {
        /// The map to change.
        keyspace: Keyspace,
        /// The key in it.
        key: Bytes,
    },
}

impl Change {
    /// The bytes of its key and value.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Remove { key, .. } => key.len(),
        }
    }
}

/// Changes that take effect together or not at all. A batch may contain each key of a keyspace only once.
pub type Batch = Vec<Change>;

/// An iterator over the pairs of a range, in key order, as of the instant it was made.
///
/// It may be sent to another thread. While it exists it holds back the engine's clean-up, so its lifetime must be
/// bounded.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes), EngineError>> + Send>;

/// The records of a store as of the instant at which this was made. It can be read any number of times.
///
/// While it exists the engine keeps every row that it shows, so its lifetime must be bounded, and it must be gone before
/// the store is reopened or set aside.
pub trait Snapshot: Send + Sync {
    /// All records with `start` <= key and key within `end`, in key order.
    ///
    /// # Errors
    /// Those of [`Engine::scan`].
    fn scan(&self, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError>;
}

/// Rows for [`Engine::ingest`]: keys, each with a value or none if it is removed.
pub type Rows<'a> = &'a mut dyn Iterator<Item = (Bytes, Option<Bytes>)>;

/// Whether no key can lie between `start`, included, and `end`.
fn is_empty(start: &[u8], end: Bound<&[u8]>) -> bool {
    match end {
        Bound::Included(end) => end < start,
        Bound::Excluded(end) => end <= start,
        Bound::Unbounded => false,
    }
}

/// The reason why an engine failed to do something.
#[derive(Debug)]
pub enum EngineError {
    /// No space is left on the disk. After [`Engine::reopen`] with space again, writes go on.
    DiskFull {
        /// What was attempted.
        attempted: &'static str,
    },
    /// The machine ran out of another resource that may come back. After [`Engine::reopen`] writes go on.
    Short {
        /// What was attempted.
        attempted: &'static str,
        /// The resource.
        shortage: Shortage,
    },
    /// The operating system reported an error; it is unknown what is on disk.
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// Bytes on disk differ from the written ones: a checksum or a structure is wrong.
    Corrupt {
        /// What was attempted.
        attempted: &'static str,
        /// What was wrong.
        detail: String,
        /// The damaged row, if writing that row again repairs the damage; none if more is damaged.
        key: Option<Bytes>,
    },
    /// An earlier failure stopped the engine; it refuses writes until it is reopened.
    Poisoned {
        /// What was attempted.
        attempted: &'static str,
    },
    /// The store could not be reopened after a failure, and serves nothing until it can.
    Closed,
    /// The engine's background work lags too far behind. Nothing was done; a retry can help.
    Busy,
    /// Another process has the store open.
    Locked,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiskFull { attempted } => {
                write!(f, "no space left on the disk while trying to {attempted}")
            }
            Self::Short { attempted, shortage } => write!(f, "{shortage} while trying to {attempted}"),
            Self::Io { attempted, source } => write!(f, "I/O error while trying to {attempted}: {source}"),
            Self::Corrupt { attempted, detail, key: _ } => {
                write!(f, "damaged bytes on disk found while trying to {attempted}: {detail}")
            }
            Self::Poisoned { attempted } => {
                write!(f, "refused to {attempted}: an earlier storage failure stopped the engine")
            }
            Self::Closed => f.write_str("the store is closed after a failure"),
            Self::Busy => f.write_str("flushes and compactions are too slow"),
            Self::Locked => f.write_str("another process has the store open"),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The space that is left on a disk, inodes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Almost none: the rest is for deletions.
    Least,
    /// Less than should stay free: only deletions, and values that a read must write back before it can answer.
    Low,
    /// Enough for all writes.
    Enough,
}

/// An engine's gauges, for `/metrics`.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineStats {
    /// Bytes in active and sealed memtables.
    pub memtable_bytes: u64,
    /// Bytes of all journals on disk.
    pub journal_bytes: u64,
    /// Journals on disk.
    pub journal_count: u64,
    /// Bytes of all tables and journals on disk.
    pub disk_bytes: u64,
    /// Tables on disk.
    pub table_count: u64,
    /// Rows of records, including removed ones that still take space and the markers of their removal.
    pub record_rows: u64,
    /// Records that were removed and still take space in tables.
    pub removed_rows: u64,
    /// Bytes in the block cache.
    pub cache_bytes: u64,
    /// Blocks served from the cache.
    pub cache_hits: u64,
    /// Blocks read from files.
    pub cache_misses: u64,
    /// Compactions running now.
    pub compactions_active: u64,
    /// Compactions completed since the store was opened.
    pub compactions_completed: u64,
    /// Time spent in compactions since the store was opened, in microseconds.
    pub compaction_micros: u64,
    /// Flushes of sealed memtables that wait or run.
    pub flushes_outstanding: u64,
    /// Bytes of rows of the index that are only in memory and in the log.
    pub unflushed_bytes: u64,
    /// How often such rows were flushed into their tree since the store was opened.
    pub flushes: u64,
}

/// A file that was checked and found as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedFile {
    /// Its number; those of newer files are greater.
    pub number: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of the newest file now. A walk that ends there cannot go on for ever, however much is written.
    pub newest: u64,
}

/// A store of bytes in ordered keyspaces.
///
/// One thread commits at a time (the commit thread); any number of threads may read meanwhile.
pub trait Engine: Send + Sync + 'static {
    /// The value of `key`, without a copy if the engine can.
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// What is known of a row without a look-up. Cheap.
    fn at_hand(&self, _keyspace: Keyspace, _key: &[u8]) -> Known<Bytes> {
        Known::Nothing
    }

    /// All pairs with `start` <= key and key within `end`, in key order, as of now.
    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError>;

    /// The records as of now, for as long as the snapshot is held.
    ///
    /// # Errors
    /// [`EngineError::Closed`] while the store is closed.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError>;

    /// Reads one file of `keyspace` from the disk, past every cache, and compares it with the checksum that it was
    /// written with: the one that follows the file `after`, or the first. Returns its number and its bytes, or `None`
    /// after the last. An engine whose reads never come from a cache has nothing to check.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] without a key if the file is not as it was written.
    fn check_file(
        &self,
        _keyspace: Keyspace,
        _after: Option<u64>,
    ) -> Result<Option<CheckedFile>, EngineError> {
        Ok(None)
    }

    /// Applies all changes of `batch` or none; reads that begin afterwards see them.
    ///
    /// # Errors
    /// [`EngineError::Busy`] means that nothing was done. After any other error it is unknown whether the batch took
    /// effect, and every later commit fails until [`Engine::reopen`] succeeds.
    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError>;

    /// Sets and removes rows of a keyspace that no batch changes, in rising order of their keys, and durably: all or
    /// none. Only one thread at a time may call it; it need not be the one that commits.
    ///
    /// # Errors
    /// After an error nothing was done, and commits go on.
    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError>;

    /// Makes everything committed so far survive a power loss. Its errors are those of [`Engine::commit`].
    fn sync(&self) -> Result<(), EngineError>;

    /// Checks whether the engine still accepts writes: a failure of its background work may have stopped it.
    fn check(&self) -> Result<(), EngineError>;

    /// Ends all background work after it has failed, until the engine is reopened; reads go on.
    fn retire(&self) -> Result<(), EngineError>;

    /// Reopens the store after a failed write. Synced data is there again; reads wait meanwhile.
    ///
    /// # Errors
    /// [`EngineError::DiskFull`] and [`EngineError::Short`]: the store may be closed until a later attempt succeeds.
    fn reopen(&self) -> Result<(), EngineError>;

    /// Reopens the store although the disk is full, gives up the reserve, and runs no background work: there is room
    /// for a few deletions. [`Engine::reopen`] ends that. Returns whether there was a reserve; if not, nothing is done.
    fn open_reserve(&self) -> Result<bool, EngineError>;

    /// Takes the reserve again, if it was given up and there is room for it.
    fn keep_reserve(&self);

    /// Checks whether the resources for opening the store are there now. Called before a store is closed to be
    /// reopened.
    fn check_supplies(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Sets the whole store aside and begins an empty one. The old data is kept for inspection by people if the engine
    /// can. Reads meanwhile fail with [`EngineError::Closed`].
    ///
    /// # Errors
    /// After an error the store is closed, or unchanged.
    fn set_aside(&self) -> Result<(), EngineError>;

    /// Reclaims the space that removed rows still take, if it is worth the work; what can be read stays the same.
    /// Returns how many removed records still take space, as far as the engine knows.
    ///
    /// It takes as long as rewriting the store, in pieces of some seconds. Before each piece `go_on` is called, which
    /// may wait; if it returns false, reclaiming stops. Only one thread at a time may call it.
    ///
    /// # Errors
    /// [`EngineError::DiskFull`] means that there is not enough space to rewrite tables; completed pieces stay done.
    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError>;

    /// Whether a store was set aside since [`Engine::forget_beginning`], also in an earlier run: the present one lacks
    /// its data. Durable from before the old store is gone.
    fn has_begun_anew(&self) -> bool;

    /// Records that the store after one that was set aside knows what it lacks. May be repeated.
    fn forget_beginning(&self) -> Result<(), EngineError>;

    /// The space that is left for writes. Cheap: one system call.
    fn room(&self) -> Room;

    /// Whether so little space is left that writes should be refused before they fail.
    fn is_short_of_space(&self) -> bool {
        self.room() != Room::Enough
    }

    /// How long the next commit is to take beyond the call itself. A modelled disk sets it; on a real disk the call
    /// itself takes the time.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    /// The gauges, cheap enough for every scrape.
    fn stats(&self) -> EngineStats;
}
