//! Storage: what one node keeps on its disk, as keyspaces of bytes.
//!
//! This room knows no nodes, no quorums and no versions. It offers an [`Engine`]: point reads, ordered scans over
//! a snapshot, and atomic batches with an explicit durability. Two engines pass one contract suite: [`lsm`] on
//! disk, and [`memory`], which can be told to fail. [`delta`] writes the index over either; [`damage`] notes what is found damaged. [`format`] alone knows
//! what the bytes of a record mean; [`data_dir`] guards the directory against a second process and a newer format; [`identity`] tells whether it is the directory of the last run; [`quarantine`] is where damaged stores go.
//!
//! All calls block for as long as the disk takes. Who may call them where is said in `replica`.

pub mod damage;
pub mod data_dir;
pub mod delta;
pub mod format;
pub mod identity;
mod inspect;
mod janitor;
pub mod lsm;
pub mod memory;
pub mod quarantine;
mod reclaim;
mod reserve;
pub mod shortage;
mod wait;
mod writeback;

#[cfg(test)]
mod contract;

use bytes::Bytes;
use shortage::Shortage;
use std::fmt;
use std::ops::Bound;
use std::time::Duration;

/// This names one of the engine's ordered maps. A batch over several of them is atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keyspace {
    /// Key → record.
    Records,
    /// (Instant, key) → version: what the sweeper looks at when that instant has come.
    Due,
    /// Name → value: facts about the store itself.
    Meta,
    /// (Target node, version, key) → record: writes kept for nodes that missed them.
    Hints,
    /// (Partition, key) → version: what replicas compare.
    Tokens,
    /// Number of a batch → what it changed in [`Keyspace::Tokens`], until that is there ([`delta`]).
    Delta,
}

/// This is the engine's view of what must be on disk when a commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The batch and everything committed before it survives a power loss.
    Synced,
    /// The batch has been given to the operating system; it survives the end of this process.
    Buffered,
}

/// This is one change in a batch.
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
    /// Bytes of its key and value.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Remove { key, .. } => key.len(),
        }
    }
}

/// These are changes that take effect together or not at all. No key of a keyspace may occur in it twice.
pub type Batch = Vec<Change>;

/// This yields the pairs of a range, in key order, as of the instant it was made.
///
/// It may be sent to another thread. While it lives it holds back the engine's clean-up: bound its life.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes), EngineError>> + Send>;

/// These are rows for [`Engine::ingest`]: keys, and values or that they are removed.
pub type Rows<'a> = &'a mut dyn Iterator<Item = (Bytes, Option<Bytes>)>;

/// Whether no key can be between `start`, included, and `end`.
fn is_empty(start: &[u8], end: Bound<&[u8]>) -> bool {
    match end {
        Bound::Included(end) => end < start,
        Bound::Excluded(end) => end <= start,
        Bound::Unbounded => false,
    }
}

/// This says what an engine could not do.
#[derive(Debug)]
pub enum EngineError {
    /// No space left on the disk. After [`Engine::reopen`] with space again, writes go on.
    DiskFull {
        /// What was attempted.
        attempted: &'static str,
    },
    /// The machine ran out of something else that may come back. After [`Engine::reopen`] writes go on.
    Short {
        /// What was attempted.
        attempted: &'static str,
        /// What it ran out of.
        shortage: Shortage,
    },
    /// The operating system reported an error; what is on disk is not known.
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// What it reported.
        source: std::io::Error,
    },
    /// Bytes on disk are not what was written: a checksum or a structure does not fit.
    Corrupt {
        /// What was attempted.
        attempted: &'static str,
        /// What did not fit.
        detail: String,
        /// The one row that it is about, where writing that row anew mends it; none where more is damaged.
        key: Option<Bytes>,
    },
    /// An earlier failure stopped the engine; it refuses writes until it is opened again.
    Poisoned {
        /// What was attempted.
        attempted: &'static str,
    },
    /// The store could not be opened again after a failure, and serves nothing until it can.
    Closed,
    /// The engine's background work is too far behind. Nothing was done; a retry can help.
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
            Self::Busy => f.write_str("flushes and compactions are too far behind"),
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
    /// Next to none: what is left is for deletions.
    Least,
    /// Less than what should stay free: deletions, and what a read must write back before it can answer.
    Low,
    /// Enough for everything.
    Enough,
}

/// These are an engine's gauges, for `/metrics`.
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
    /// Rows of records, those that were removed and take space among them, and what marks them as removed.
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
    /// Bytes of rows of the index that are in memory and in the log alone.
    pub unfolded_bytes: u64,
    /// Times that such rows were folded into their tree since the store was opened.
    pub folds: u64,
}

/// This keeps bytes in ordered keyspaces.
///
/// One thread commits at a time (the commit thread); any number may read meanwhile.
pub trait Engine: Send + Sync + 'static {
    /// The value of `key`, without a copy where the engine can.
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// What is known of a row without looking it up, where anything is: that it is not there, or its value. Cheap.
    fn at_hand(&self, _keyspace: Keyspace, _key: &[u8]) -> Option<Option<Bytes>> {
        None
    }

    /// All pairs with `start` <= key and key within `end`, in key order, as of now.
    fn scan(&self, keyspace: Keyspace, start: &[u8], end: Bound<&[u8]>) -> Result<Scan, EngineError>;

    /// Makes all changes of `batch` or none, visible to reads that begin afterwards.
    ///
    /// # Errors
    /// [`EngineError::Busy`] means that nothing was done. After any other error it is unknown whether the batch took effect, and every later commit fails until
    /// [`Engine::reopen`] succeeds.
    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), EngineError>;

    /// Sets and removes rows of a keyspace that no batch changes, in rising order of their keys, and durably: all or none.
    /// By one thread at a time, which may be another than the one that commits.
    ///
    /// # Errors
    /// Nothing was done then, and commits go on.
    fn ingest(&self, keyspace: Keyspace, rows: Rows<'_>) -> Result<(), EngineError>;

    /// Makes everything committed so far survive a power loss. Errors as for [`Engine::commit`].
    fn sync(&self) -> Result<(), EngineError>;

    /// Whether the engine still takes writes: its background work may have stopped it.
    fn check(&self) -> Result<(), EngineError>;

    /// Ends all background work after a failure of it, for good in this life of the engine; reads go on.
    fn retire(&self) -> Result<(), EngineError>;

    /// Opens the store again after a failed write. What was synced is there again; reads wait meanwhile.
    ///
    /// # Errors
    /// [`EngineError::DiskFull`] and [`EngineError::Short`]: the store may be closed until a later try succeeds.
    fn reopen(&self) -> Result<(), EngineError>;

    /// Opens the store again although the disk is full, with the reserve given up and without background work: there is
    /// room for a few deletions. [`Engine::reopen`] ends that. Says whether there was a reserve; where not, nothing is done.
    fn open_reserve(&self) -> Result<bool, EngineError>;

    /// Keeps the reserve again, where it was given up and there is room for it.
    fn keep_reserve(&self);

    /// Whether what an opening of the store needs is there now. Asked before a store is closed to be opened again.
    fn check_supplies(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Sets all that is stored aside and begins anew, empty. What was stored is kept for people where the engine can.
    /// Reads meanwhile fail with [`EngineError::Closed`].
    ///
    /// # Errors
    /// The store is then closed, or as it was.
    fn set_aside(&self) -> Result<(), EngineError>;

    /// Gives back the space that removed rows still take, where it is worth the work; what can be read stays the same.
    /// Returns how many removed records still take space, as far as the engine knows.
    ///
    /// It takes as long as rewriting the store, in pieces of some seconds. Before each `go_on` is called, which may wait,
    /// and ends it by false. By one thread at a time.
    ///
    /// # Errors
    /// [`EngineError::DiskFull`] means that there is not enough space to rewrite tables; what was done until then stays.
    fn reclaim(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64, EngineError>;

    /// Whether a store was set aside since [`Engine::forget_beginning`], also in an earlier life: this one lacks what was
    /// in it. Durable from before the old store is gone.
    fn has_begun_anew(&self) -> bool;

    /// Notes that the store after one that was set aside knows what it lacks. May be repeated.
    fn forget_beginning(&self) -> Result<(), EngineError>;

    /// How much space is left for writes. Cheap: one system call.
    fn room(&self) -> Room;

    /// Whether so little space is left that writes should be refused before they fail.
    fn is_short_of_space(&self) -> bool {
        self.room() != Room::Enough
    }

    /// How long the next commit is to take beyond what the call takes itself: a modelled disk says so, a real one
    /// just takes its time.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    /// The gauges, cheap enough for every scrape.
    fn stats(&self) -> EngineStats;
}
