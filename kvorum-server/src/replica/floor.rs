//! Floors: the timestamp up to which each partition's history is finished, so that dead rows can be dropped.
//!
//! All nodes together take a partition through three steps. All nodes must have confirmed a step before the next begins
//! (`background/tombstone_gc/mod.rs` leads the rounds):
//!
//! | timestamp | durable | holds from then on |
//! | --- | --- | --- |
//! | agreed | before it is confirmed | all nodes held the same up to here; only repair brings in records up to here |
//! | sealed | before it is confirmed | into an empty key, repair brings them only from a store that agreed as far |
//! | purged | some time | dead rows up to here may be removed |
//!
//! purged <= sealed <= agreed. Before *agreed* a partition is *closed*: the same promise, kept in memory only, while
//! the nodes compare their records. Versions are compared by timestamp; the floor is inclusive.
//!
//! A store that hears of a timestamp ahead of its own is older than the store that confirmed it. Some of its rows may
//! have been purged elsewhere: those rows are *in doubt*. The timestamp alone drops no row. A row in doubt is dropped
//! once a replica of its key that has sealed past it was compared and does not have it ([`Replica::drop_outlived`]).
//!
//! The rules and why they suffice: `docs/dev/tombstones.md`, `docs/decisions/0014-*`, `docs/decisions/0022-*`.

use super::queue::{Removal, Request, Source};
use super::{Applied, Replica, ReplicaError};
use crate::canary::{self, Canary};
use crate::crash::{self, Point};
use crate::storage::format::Mark;
use crate::storage::{Change, Engine, Keyspace, format};
use kvorum_core::{Key, Partition, Record, Value, Version};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Rows removed in one group: few enough that writes queued after it hardly wait.
const REMOVED_LEN_MAX: usize = 512;

/// How far a partition's history is finished on one store: timestamps, inclusive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor {
    /// All nodes held the same up to here.
    pub agreed: u64,
    /// All nodes have agreed up to here.
    pub sealed: u64,
    /// All nodes have sealed up to here.
    pub purged: u64,
}

impl Floor {
    /// The floor without the timestamps above `max`.
    fn within(self, max: u64) -> Self {
        let believed = |word| if word > max { 0 } else { word };
        let Self { agreed, sealed, purged } = self;
        Self { agreed: believed(agreed), sealed: believed(sealed), purged: believed(purged) }
    }
}

/// A step of a tombstone GC round, for some partitions.
#[derive(Debug, Clone)]
pub enum FloorStep {
    /// Only repair brings in records up to `upto`, until this process ends.
    Close {
        /// The number of the round.
        round: u64,
        /// The timestamp up to which the step goes, inclusive.
        upto: u64,
        /// The partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes held the same records up to the timestamp to which the round has closed.
    Agree {
        /// The number of the round: a store whose latest close was not by this round refuses the step.
        round: u64,
        /// The timestamp up to which the step goes, inclusive.
        upto: u64,
        /// The partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes have agreed.
    Seal {
        /// The timestamp up to which the step goes, inclusive.
        upto: u64,
        /// The partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes have sealed.
    Release {
        /// The timestamp up to which the step goes, inclusive.
        upto: u64,
        /// The partitions.
        partitions: Arc<[u16]>,
    },
    /// Other nodes have sealed further than this store has agreed: its rows there are in doubt.
    Doubt {
        /// The sealed timestamps, by partition and rank.
        words: Arc<[SealedWord]>,
    },
    /// Timestamps from the future are no longer valid, on an operator's order.
    Forget {
        /// The highest timestamp that stays valid.
        max: u64,
        /// The partition.
        partition: u16,
    },
    /// Agrees on and seals the partitions whose doubt has ended: this store has been compared with all nodes.
    Adopt {
        /// Timestamps by partition.
        floors: Arc<[(u16, u64)]>,
    },
}

/// A timestamp that another node has sealed, ahead of the one that this store has agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedWord {
    /// The partition.
    pub partition: u16,
    /// The node's rank there. The node is authoritative for records written for more replicas than its rank: it holds
    /// all of those, and no others.
    pub rank: u16,
    /// The sealed timestamp, inclusive.
    pub upto: u64,
}

/// The state of one partition.
#[derive(Debug, Clone, Default)]
struct Entry {
    floor: Floor,
    /// Only repair brings in records up to this timestamp, since round `round`.
    closed: u64,
    round: u64,
    /// Ranks of nodes that have sealed further than this store has agreed, and how far. Kept until a restart; the
    /// store then hears of them again.
    doubts: Vec<(u16, u64)>,
}

impl Entry {
    /// The timestamp up to which a record written for `from` replicas is in doubt here: the highest that was sealed by
    /// a node that must hold the record.
    fn doubted(&self, from: u16) -> u64 {
        let from = if canary::is(Canary::OlderStoreDrops) { u16::MAX } else { from };
        let words = self.doubts.iter().filter(|(rank, _)| *rank < from).map(|(_, upto)| *upto);
        words.max().unwrap_or_default()
    }

    /// The timestamp up to which only repair brings in records written for `from` replicas.
    fn barred(&self, from: u16) -> u64 {
        self.floor.agreed.max(self.closed).max(self.doubted(from))
    }
}

/// The floors of a store.
#[derive(Debug)]
pub struct Floors {
    /// The highest timestamp of all floors: a record above it meets no floor, which shows without the lock.
    highest: AtomicU64,
    // Guards the entries. Held for a look-up or for one step.
    entries: Mutex<Vec<Entry>>,
}

impl Floors {
    /// Reads the floors from `engine`.
    pub(super) fn open(engine: &dyn Engine, bits: u8) -> Result<Self, ReplicaError> {
        let mut entries = vec![Entry::default(); 1 << bits];
        let mut highest = 0;
        for pair in engine.scan(Keyspace::Meta, format::META_FLOOR, Bound::Unbounded)? {
            let (row, words) = pair?;
            if !row.starts_with(format::META_FLOOR) {
                break;
            }
            let partition = format::decode_floor_key(&row)?;
            let [agreed, sealed, purged] = format::decode_floor(&words)?;
            if let Some(entry) = entries.get_mut(usize::from(partition.0)) {
                entry.floor = Floor { agreed, sealed, purged };
                highest = highest.max(agreed);
            }
        }
        Ok(Self { highest: AtomicU64::new(highest), entries: Mutex::new(entries) })
    }

    /// The floor of `partition`.
    pub fn of(&self, partition: Partition) -> Floor {
        self.lock().get(usize::from(partition.0)).map_or_else(Floor::default, |entry| entry.floor)
    }

    /// The floors of all partitions, in order.
    pub fn all(&self) -> Vec<Floor> {
        self.lock().iter().map(|entry| entry.floor).collect()
    }

    /// Whether a record with this timestamp can meet a floor at all.
    pub(super) fn may_bar(&self, clock: u64) -> bool {
        clock <= self.highest.load(Ordering::Acquire)
    }

    /// Judges a record that would change the store: `None` when it may. `holds_nothing`: the key is empty here.
    /// `is_dead`: the record is a tombstone or has expired.
    pub(super) fn judge(
        &self,
        partition: Partition,
        record: &Record,
        source: Source,
        holds_nothing: bool,
        is_dead: bool,
    ) -> Option<Applied> {
        let entries = self.lock();
        let entry = entries.get(usize::from(partition.0))?;
        let sealed = entry.floor.sealed.max(entry.doubted(record.from));
        let (purged, barred) = (entry.floor.purged, entry.barred(record.from));
        let is_mortal = record.value == Value::Tombstone || record.expires.is_some();
        let clock = record.version.clock();
        let too_late = |upto| Some(Applied::TooLate { upto: Version::from_words(upto, u64::MAX) });
        match source {
            // A dead record need not be stored: nothing older can come in any more.
            Source::Repair { .. } if holds_nothing && clock <= purged && is_dead => Some(Applied::Stored),
            Source::Repair { agreed } if holds_nothing && clock <= sealed && agreed < sealed => {
                too_late(sealed)
            }
            Source::Copy | Source::Reader if holds_nothing && clock <= sealed && is_mortal => {
                Some(Applied::Stored)
            }
            Source::Writer | Source::Copy | Source::Reader if clock <= barred => too_late(barred),
            _ => None,
        }
    }

    /// The highest version that may not come into `partition` any more.
    pub(super) fn barred_upto(&self, partition: Partition) -> Version {
        let highest = self.lock().get(usize::from(partition.0)).map_or(0, |entry| entry.barred(u16::MAX));
        if highest == 0 { Version::ZERO } else { Version::from_words(highest, u64::MAX) }
    }

    /// Whether the row of `partition` with `mark` may be removed.
    pub(super) fn lets_go(&self, partition: Partition, mark: &Mark, which: Removal) -> bool {
        self.lock().get(usize::from(partition.0)).is_some_and(|entry| {
            mark.version.clock()
                <= match which {
                    Removal::Purged => entry.floor.purged,
                    Removal::Outlived => entry.doubted(mark.from),
                    // The floor does not decide on these.
                    Removal::TooFarAhead | Removal::Unowned => u64::MAX,
                }
        })
    }

    /// Those of `words` that put rows in doubt which are not in doubt yet.
    fn unheard_of(&self, words: Vec<SealedWord>) -> Vec<SealedWord> {
        let entries = self.lock();
        let is_new = |word: &SealedWord| {
            entries.get(usize::from(word.partition)).is_some_and(|entry| {
                let is_known = |(rank, upto): &(u16, u64)| *rank == word.rank && *upto >= word.upto;
                word.upto > entry.floor.agreed && !entry.doubts.iter().any(is_known)
            })
        };
        words.into_iter().filter(is_new).collect()
    }

    /// The partitions that are in doubt, each with the timestamp up to which it is, whatever the record.
    fn doubts(&self) -> Vec<(u16, u64)> {
        let entries = self.lock();
        let doubted = |(partition, entry): (u16, &Entry)| {
            (!entry.doubts.is_empty()).then(|| (partition, entry.doubted(u16::MAX)))
        };
        (0u16..).zip(entries.iter()).filter_map(doubted).collect()
    }

    /// Applies a step's changes in memory at once and returns the floors to store; `None` when the step cannot be
    /// taken. `staged` returns a floor as changed by earlier steps of the same group.
    pub(super) fn begin(
        &self,
        step: &FloorStep,
        staged: impl Fn(u16) -> Option<Floor>,
    ) -> Option<Vec<(u16, Floor)>> {
        let mut entries = self.lock();
        match step {
            FloorStep::Close { round, upto, partitions } => {
                for partition in &**partitions {
                    let entry = entries.get_mut(usize::from(*partition))?;
                    (entry.closed, entry.round) = (entry.closed.max(*upto), *round);
                }
                self.highest.fetch_max(*upto, Ordering::Release);
                return Some(Vec::new());
            }
            FloorStep::Doubt { words } => {
                for SealedWord { partition, rank, upto } in &**words {
                    let entry = entries.get_mut(usize::from(*partition))?;
                    entry.doubts.retain(|(known, _)| known != rank);
                    entry.doubts.push((*rank, *upto));
                    self.highest.fetch_max(*upto, Ordering::Release);
                }
                return Some(Vec::new());
            }
            FloorStep::Forget { max, partition } => {
                let entry = entries.get_mut(usize::from(*partition))?;
                entry.closed = if entry.closed > *max { 0 } else { entry.closed };
                entry.doubts.retain(|(_, upto)| upto <= max);
            }
            _ => {}
        }
        let mut moved = Vec::new();
        for (partition, upto) in step.words() {
            let entry = entries.get(usize::from(partition))?;
            let floor = staged(partition).unwrap_or(entry.floor);
            let next = match step {
                FloorStep::Agree { round, .. } => {
                    let is_closed = entry.round == *round && entry.closed >= upto && entry.doubts.is_empty();
                    is_closed.then(|| Floor { agreed: floor.agreed.max(upto), ..floor })
                }
                FloorStep::Seal { .. } => {
                    (floor.agreed >= upto).then(|| Floor { sealed: floor.sealed.max(upto), ..floor })
                }
                FloorStep::Release { .. } => {
                    (floor.sealed >= upto).then(|| Floor { purged: floor.purged.max(upto), ..floor })
                }
                FloorStep::Forget { max, .. } => Some(floor.within(*max)),
                FloorStep::Adopt { .. } => Some(Floor {
                    agreed: floor.agreed.max(upto),
                    sealed: floor.sealed.max(upto),
                    // Only a round in which all nodes have sealed sets `purged`.
                    ..floor
                }),
                FloorStep::Close { .. } | FloorStep::Doubt { .. } => None,
            }?;
            // Also where the floor does not move: storing it ends the doubt.
            if next != floor || matches!(step, FloorStep::Adopt { .. }) {
                moved.push((partition, next));
            }
        }
        Some(moved)
    }

    /// Takes over floors that have been stored.
    pub(super) fn moved(&self, floors: impl IntoIterator<Item = (u16, Floor)>) {
        let mut entries = self.lock();
        for (partition, floor) in floors {
            let Some(entry) = entries.get_mut(usize::from(partition)) else { continue };
            entry.floor = floor;
            entry.doubts.retain(|(_, upto)| *upto > floor.agreed);
            self.highest.fetch_max(floor.agreed, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FloorStep {
    /// The partitions of the step, each with its timestamp.
    fn words(&self) -> Vec<(u16, u64)> {
        match self {
            Self::Close { upto, partitions, .. }
            | Self::Agree { upto, partitions, .. }
            | Self::Seal { upto, partitions }
            | Self::Release { upto, partitions } => {
                partitions.iter().map(|partition| (*partition, *upto)).collect()
            }
            Self::Forget { max, partition } => vec![(*partition, *max)],
            Self::Doubt { words } => words.iter().map(|word| (word.partition, word.upto)).collect(),
            Self::Adopt { floors } => floors.to_vec(),
        }
    }

    /// Whether the step must be on disk before it is confirmed, whatever the durability of writes is. The sync also
    /// covers the records that it speaks of.
    pub(super) fn is_synced(&self) -> bool {
        matches!(self, Self::Agree { .. } | Self::Seal { .. } | Self::Adopt { .. } | Self::Forget { .. })
    }
}

impl FloorStep {
    /// Passes the crash points before and after the step is stored.
    fn passes(&self, is_stored: bool) {
        match (self, is_stored) {
            (Self::Close { .. } | Self::Doubt { .. } | Self::Forget { .. }, _) => {}
            (Self::Agree { .. }, false) => crash::point(Point::AgreeBefore),
            (Self::Agree { .. }, true) => crash::point(Point::AgreeAfter),
            (Self::Seal { .. }, false) => crash::point(Point::SealBefore),
            (Self::Seal { .. }, true) => crash::point(Point::SealAfter),
            (Self::Release { .. }, false) => crash::point(Point::ReleaseBefore),
            (Self::Release { .. }, true) => crash::point(Point::ReleaseAfter),
            (Self::Adopt { .. }, false) => crash::point(Point::AdoptBefore),
            (Self::Adopt { .. }, true) => crash::point(Point::AdoptAfter),
        }
    }
}

impl Removal {
    /// Passes the crash points before and after a batch of removals.
    fn passes(self, is_stored: bool) {
        match (self, is_stored) {
            (Self::Purged, false) => crash::point(Point::PurgeBefore),
            (Self::Purged, true) => crash::point(Point::PurgeAfter),
            (Self::Outlived, false) => crash::point(Point::DropBefore),
            (Self::Outlived, true) => crash::point(Point::DropAfter),
            (Self::Unowned, false) => crash::point(Point::UnownedBefore),
            (Self::Unowned, true) => crash::point(Point::UnownedAfter),
            (Self::TooFarAhead, _) => {}
        }
    }
}

/// The change of the store that stores a floor.
pub(super) fn row(partition: u16, floor: Floor) -> Change {
    Change::Put {
        keyspace: Keyspace::Meta,
        key: format::encode_floor_key(Partition(partition)),
        value: format::encode_floor([floor.agreed, floor.sealed, floor.purged]),
    }
}

impl Replica {
    /// How far each partition's history is finished here; `None` in a cluster of one.
    pub fn floors(&self) -> Option<&Floors> {
        self.shared.floors.as_deref()
    }

    /// The floor of `partition`, without timestamps from the future: no node is told of those.
    pub fn floor(&self, partition: Partition) -> Floor {
        let floor = self.floors().map_or_else(Floor::default, |floors| floors.of(partition));
        floor.within(self.timestamps().max())
    }

    /// The floors of all partitions, in order, without timestamps from the future; `None` in a cluster of one.
    pub fn believed_floors(&self) -> Option<Vec<Floor>> {
        let max = self.timestamps().max();
        Some(self.floors()?.all().into_iter().map(|floor| floor.within(max)).collect())
    }

    /// Takes a step; returns false when this store cannot.
    ///
    /// When it returns, the digests include everything applied before the step, and the records that the step bars stay
    /// out.
    pub async fn step(&self, step: FloorStep) -> Result<bool, ReplicaError> {
        let (done, outcome) = oneshot::channel();
        step.passes(false);
        self.shared.queue.submit(Request::Floor { step: step.clone(), done })?;
        let is_taken = outcome.await.map_err(|_| ReplicaError::Stopped)??;
        if is_taken {
            step.passes(true);
        }
        Ok(is_taken)
    }

    /// Those of `words`, sealed by other nodes, that put rows of this store in doubt which are not in doubt yet.
    pub fn unheard_of(&self, words: Vec<SealedWord>) -> Vec<SealedWord> {
        self.floors().map_or_else(Vec::new, |floors| floors.unheard_of(words))
    }

    /// The partitions in which rows of this store are in doubt, and the timestamp up to which they are.
    pub fn doubts(&self) -> Vec<(u16, u64)> {
        self.floors().map_or_else(Vec::new, Floors::doubts)
    }

    /// Counts the rows of `partition` with versions up to `upto` that are kept: no node that is authoritative for them
    /// has sealed past them, although another node has.
    pub async fn kept_in_doubt(&self, partition: Partition, upto: u64) -> Result<u64, ReplicaError> {
        let Some(floors) = self.floors() else { return Ok(0) };
        let (mut kept, mut after) = (0, None);
        loop {
            let (marks, is_last) = self.marks(partition, after.as_ref(), REMOVED_LEN_MAX * 64).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let is_kept = |(_, mark): &&(Key, Mark)| {
                let clock = mark.version.clock();
                let is_passed = clock <= upto && clock > floors.of(partition).agreed;
                is_passed && mark.from > 1 && !floors.lets_go(partition, mark, Removal::Outlived)
            };
            kept += marks.iter().filter(is_kept).count() as u64;
            if is_last {
                return Ok(kept);
            }
        }
    }

    /// Removes those of `rows` of `partition` that are in doubt and unchanged, and returns how many. A replica that has
    /// sealed past them was compared and has none of them.
    pub async fn drop_outlived(
        &self,
        partition: Partition,
        rows: Vec<(Key, Version)>,
    ) -> Result<usize, ReplicaError> {
        let mut removed = 0;
        for rows in rows.chunks(REMOVED_LEN_MAX) {
            removed += self.remove_rows(partition, rows.to_vec(), Removal::Outlived).await?;
        }
        Ok(removed)
    }

    /// Removes every row in doubt without a comparison: the behaviour of the canary `older-store-drops`.
    #[cfg(feature = "canaries")]
    pub async fn drop_all_doubted(&self, partition: Partition) -> Result<usize, ReplicaError> {
        self.remove(partition, Removal::Outlived).await
    }

    /// Removes the tombstones of `partition` that its floor lets go, and returns how many.
    pub async fn purge(&self, partition: Partition) -> Result<usize, ReplicaError> {
        self.remove(partition, Removal::Purged).await
    }

    /// Removes the records from the future that `partition` holds, and the timestamps from the future in its floor.
    /// Returns how many records. Their values are lost: only an operator orders this.
    pub async fn drop_too_far_ahead(&self, partition: Partition) -> Result<usize, ReplicaError> {
        if self.floors().is_some_and(|floors| floors.of(partition) != self.floor(partition)) {
            self.step(FloorStep::Forget { max: self.timestamps().max(), partition: partition.0 }).await?;
        }
        self.remove(partition, Removal::TooFarAhead).await
    }

    /// Removes the records of `partition` that do not belong on `rank`, and returns how many.
    pub async fn drop_unowned(&self, partition: Partition, rank: u16) -> Result<usize, ReplicaError> {
        self.remove_on(partition, rank, Removal::Unowned).await
    }

    async fn remove(&self, partition: Partition, which: Removal) -> Result<usize, ReplicaError> {
        self.remove_on(partition, 0, which).await
    }

    async fn remove_on(
        &self,
        partition: Partition,
        rank: u16,
        which: Removal,
    ) -> Result<usize, ReplicaError> {
        let Some(floors) = self.floors() else { return Ok(0) };
        let (mut removed, mut after) = (0, None);
        loop {
            let (marks, is_last) = self.marks(partition, after.as_ref(), REMOVED_LEN_MAX * 64).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let goes = |mark: &Mark| match which {
                Removal::Purged => mark.is_tombstone,
                Removal::Outlived => mark.from > 1,
                Removal::TooFarAhead => self.timestamps().check(mark.version.clock()).is_err(),
                Removal::Unowned => mark.from <= rank,
            };
            let rows: Vec<(Key, Version)> = marks
                .into_iter()
                .filter(|(_, mark)| goes(mark) && floors.lets_go(partition, mark, which))
                .map(|(key, mark)| (key, mark.version))
                .collect();
            for rows in rows.chunks(REMOVED_LEN_MAX) {
                removed += self.remove_rows(partition, rows.to_vec(), which).await?;
            }
            if is_last {
                return Ok(removed);
            }
        }
    }

    async fn remove_rows(
        &self,
        partition: Partition,
        rows: Vec<(Key, Version)>,
        which: Removal,
    ) -> Result<usize, ReplicaError> {
        let (done, outcome) = oneshot::channel();
        which.passes(false);
        self.shared.queue.submit(Request::Remove { partition, rows, which, done })?;
        let removed = outcome.await.map_err(|_| ReplicaError::Stopped)??;
        which.passes(true);
        Ok(removed)
    }
}
