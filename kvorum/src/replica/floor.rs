//! Floors: up to which version each partition's past is finished, so that what is dead can be dropped.
//!
//! All nodes together bring a partition through three steps, each of which all must have confirmed before the next
//! begins (`coordinator/settle.rs` leads them):
//!
//! | word | durable | what holds from then on |
//! | --- | --- | --- |
//! | settled | before it is confirmed | all nodes held the same records up to here, and nothing up to here comes in but by repair |
//! | sealed | before it is confirmed | into an empty key, repair brings nothing up to here but from a store that has settled as far |
//! | purged | some time | dead rows up to here may go |
//!
//! purged <= sealed <= settled. Before *settled* a partition is *closed*: the same promise, kept in memory only, while
//! the nodes compare what they hold. Versions are compared by their clock word; the floor is inclusive.
//!
//! A store that hears of a word ahead of its own is older than the one that confirmed it, and some of what it holds may
//! have been purged: those rows are *in doubt*. Nothing is dropped for that word. A row in doubt goes once a replica of its
//! key that has sealed past it was compared and does not have it ([`Replica::drop_outlived`]).
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

/// Rows removed in one group: few enough that writes behind it hardly wait.
const REMOVED_LEN_MAX: usize = 512;

/// This is how far a partition's past is finished on one store: clock words, inclusive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor {
    /// All nodes held the same up to here.
    pub settled: u64,
    /// All nodes have settled up to here.
    pub sealed: u64,
    /// All nodes have sealed up to here.
    pub purged: u64,
}

impl Floor {
    /// Without the words above `max`.
    fn within(self, max: u64) -> Self {
        let believed = |word| if word > max { 0 } else { word };
        let Self { settled, sealed, purged } = self;
        Self { settled: believed(settled), sealed: believed(sealed), purged: believed(purged) }
    }
}

/// This is a step of a round, for some partitions.
#[derive(Debug, Clone)]
pub enum FloorStep {
    /// Nothing up to `upto` comes in any more but by repair, for as long as this process lives.
    Close {
        /// Names the round.
        round: u64,
        /// A clock word.
        upto: u64,
        /// Which partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes held the same up to where the round has closed.
    Settle {
        /// Names the round: a store that has not been closed by it since refuses.
        round: u64,
        /// A clock word.
        upto: u64,
        /// Which partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes have settled.
    Seal {
        /// A clock word.
        upto: u64,
        /// Which partitions.
        partitions: Arc<[u16]>,
    },
    /// All nodes have sealed.
    Release {
        /// A clock word.
        upto: u64,
        /// Which partitions.
        partitions: Arc<[u16]>,
    },
    /// Other nodes have sealed further than this store has settled: what it holds there is in doubt.
    Doubt {
        /// Which, and how far.
        words: Arc<[SealedWord]>,
    },
    /// Words from the future do not hold any more, on an operator's order.
    Forget {
        /// The highest word that still holds.
        max: u64,
        /// The partition.
        partition: u16,
    },
    /// This store has been compared with all nodes: what is in doubt no more is settled and sealed.
    Adopt {
        /// Clock words by partition.
        floors: Arc<[(u16, u64)]>,
    },
}

/// This is what another node has sealed, ahead of what this store has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedWord {
    /// The partition.
    pub partition: u16,
    /// The node's rank there. It has a say about records that were written for more replicas than its rank: of those, and
    /// no others, it holds what there is.
    pub rank: u16,
    /// A clock word.
    pub upto: u64,
}

/// What is known of one partition.
#[derive(Debug, Clone, Default)]
struct Entry {
    floor: Floor,
    /// Nothing up to here comes in but by repair, since the round of this number.
    closed: u64,
    round: u64,
    /// Ranks of nodes that have sealed further than is settled here, and how far. Until a restart; then they are met again.
    doubts: Vec<(u16, u64)>,
}

impl Entry {
    /// Up to where a record that was written for `from` replicas is in doubt here: as far as a node has sealed that must
    /// hold it.
    fn doubted(&self, from: u16) -> u64 {
        let from = if canary::is(Canary::OlderStoreDrops) { u16::MAX } else { from };
        let words = self.doubts.iter().filter(|(rank, _)| *rank < from).map(|(_, upto)| *upto);
        words.max().unwrap_or_default()
    }

    /// Up to where no record that was written for `from` replicas comes in but by repair.
    fn barred(&self, from: u16) -> u64 {
        self.floor.settled.max(self.closed).max(self.doubted(from))
    }
}

/// These are a store's floors.
#[derive(Debug)]
pub struct Floors {
    /// The highest word of all: a record above it meets no floor, which is told without the lock.
    highest: AtomicU64,
    // Guards the words; held for a look-up or for one step.
    entries: Mutex<Vec<Entry>>,
}

impl Floors {
    /// The floors that `engine` holds.
    pub(super) fn open(engine: &dyn Engine, bits: u8) -> Result<Self, ReplicaError> {
        let mut entries = vec![Entry::default(); 1 << bits];
        let mut highest = 0;
        for pair in engine.scan(Keyspace::Meta, format::META_FLOOR, Bound::Unbounded)? {
            let (row, words) = pair?;
            if !row.starts_with(format::META_FLOOR) {
                break;
            }
            let partition = format::decode_floor_key(&row)?;
            let [settled, sealed, purged] = format::decode_floor(&words)?;
            if let Some(entry) = entries.get_mut(usize::from(partition.0)) {
                entry.floor = Floor { settled, sealed, purged };
                highest = highest.max(settled);
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

    /// Whether a record of this clock word can meet a floor at all.
    pub(super) fn may_bar(&self, clock: u64) -> bool {
        clock <= self.highest.load(Ordering::Acquire)
    }

    /// Judges a record that would change the store: none when it may. `holds_nothing` says that the key is empty here,
    /// `is_dead` that the record is a tombstone or has expired.
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
            // What is dead is as good as held: nothing older can come in any more.
            Source::Repair { .. } if holds_nothing && clock <= purged && is_dead => Some(Applied::Stored),
            Source::Repair { settled } if holds_nothing && clock <= sealed && settled < sealed => {
                too_late(sealed)
            }
            Source::Copy | Source::Reader if holds_nothing && clock <= sealed && is_mortal => {
                Some(Applied::Stored)
            }
            Source::Writer | Source::Copy | Source::Reader if clock <= barred => too_late(barred),
            _ => None,
        }
    }

    /// The highest version that may not come in any more, of `partition`.
    pub(super) fn barred_upto(&self, partition: Partition) -> Version {
        let highest = self.lock().get(usize::from(partition.0)).map_or(0, |entry| entry.barred(u16::MAX));
        if highest == 0 { Version::ZERO } else { Version::from_words(highest, u64::MAX) }
    }

    /// Whether the row of `partition` with `mark` may go.
    pub(super) fn lets_go(&self, partition: Partition, mark: &Mark, which: Removal) -> bool {
        self.lock().get(usize::from(partition.0)).is_some_and(|entry| {
            mark.version.clock()
                <= match which {
                    Removal::Purged => entry.floor.purged,
                    Removal::Outlived => entry.doubted(mark.from),
                    // That is not the floor's to say.
                    Removal::TooFarAhead => u64::MAX,
                }
        })
    }

    /// Of `words`, those that put something in doubt which is not yet.
    fn unheard_of(&self, words: Vec<SealedWord>) -> Vec<SealedWord> {
        let entries = self.lock();
        let is_new = |word: &SealedWord| {
            entries.get(usize::from(word.partition)).is_some_and(|entry| {
                let is_known = |(rank, upto): &(u16, u64)| *rank == word.rank && *upto >= word.upto;
                word.upto > entry.floor.settled && !entry.doubts.iter().any(is_known)
            })
        };
        words.into_iter().filter(is_new).collect()
    }

    /// How far each partition is in doubt, whatever the record: those that are.
    fn doubts(&self) -> Vec<(u16, u64)> {
        let entries = self.lock();
        let doubted = |(partition, entry): (u16, &Entry)| {
            (!entry.doubts.is_empty()).then(|| (partition, entry.doubted(u16::MAX)))
        };
        (0u16..).zip(entries.iter()).filter_map(doubted).collect()
    }

    /// Takes what `step` changes in memory at once, and says what must be stored: none when it cannot be done.
    /// `staged` knows what the steps before in the same group make of a floor.
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
                FloorStep::Settle { round, .. } => {
                    let is_closed = entry.round == *round && entry.closed >= upto && entry.doubts.is_empty();
                    is_closed.then(|| Floor { settled: floor.settled.max(upto), ..floor })
                }
                FloorStep::Seal { .. } => {
                    (floor.settled >= upto).then(|| Floor { sealed: floor.sealed.max(upto), ..floor })
                }
                FloorStep::Release { .. } => {
                    (floor.sealed >= upto).then(|| Floor { purged: floor.purged.max(upto), ..floor })
                }
                FloorStep::Forget { max, .. } => Some(floor.within(*max)),
                FloorStep::Adopt { .. } => Some(Floor {
                    settled: floor.settled.max(upto),
                    sealed: floor.sealed.max(upto),
                    // Only a round in which all have sealed says what may go.
                    ..floor
                }),
                FloorStep::Close { .. } | FloorStep::Doubt { .. } => None,
            }?;
            // Also where nothing moves: what was in doubt is not any more.
            if next != floor || matches!(step, FloorStep::Adopt { .. }) {
                moved.push((partition, next));
            }
        }
        Some(moved)
    }

    /// Takes up floors that have been stored.
    pub(super) fn moved(&self, floors: impl IntoIterator<Item = (u16, Floor)>) {
        let mut entries = self.lock();
        for (partition, floor) in floors {
            let Some(entry) = entries.get_mut(usize::from(partition)) else { continue };
            entry.floor = floor;
            entry.doubts.retain(|(_, upto)| *upto > floor.settled);
            self.highest.fetch_max(floor.settled, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FloorStep {
    /// The partitions that it is about, each with its clock word.
    fn words(&self) -> Vec<(u16, u64)> {
        match self {
            Self::Close { upto, partitions, .. }
            | Self::Settle { upto, partitions, .. }
            | Self::Seal { upto, partitions }
            | Self::Release { upto, partitions } => {
                partitions.iter().map(|partition| (*partition, *upto)).collect()
            }
            Self::Forget { max, partition } => vec![(*partition, *max)],
            Self::Doubt { words } => words.iter().map(|word| (word.partition, word.upto)).collect(),
            Self::Adopt { floors } => floors.to_vec(),
        }
    }

    /// Whether it must be on disk before it is confirmed, whatever the durability of writes is. What it says of the
    /// records below is synced with it.
    pub(super) fn is_synced(&self) -> bool {
        matches!(self, Self::Settle { .. } | Self::Seal { .. } | Self::Adopt { .. } | Self::Forget { .. })
    }
}

impl FloorStep {
    /// Names the crash points before and after what is stored of it.
    fn passes(&self, is_stored: bool) {
        match (self, is_stored) {
            (Self::Close { .. } | Self::Doubt { .. } | Self::Forget { .. }, _) => {}
            (Self::Settle { .. }, false) => crash::point(Point::SettleBefore),
            (Self::Settle { .. }, true) => crash::point(Point::SettleAfter),
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
    /// Names the crash points before and after a batch of it.
    fn passes(self, is_stored: bool) {
        match (self, is_stored) {
            (Self::Purged, false) => crash::point(Point::PurgeBefore),
            (Self::Purged, true) => crash::point(Point::PurgeAfter),
            (Self::Outlived, false) => crash::point(Point::DropBefore),
            (Self::Outlived, true) => crash::point(Point::DropAfter),
            (Self::TooFarAhead, _) => {}
        }
    }
}

/// The change of the store that goes with a floor.
pub(super) fn row(partition: u16, floor: Floor) -> Change {
    Change::Put {
        keyspace: Keyspace::Meta,
        key: format::encode_floor_key(Partition(partition)),
        value: format::encode_floor([floor.settled, floor.sealed, floor.purged]),
    }
}

impl Replica {
    /// How far each partition's past is finished here; none in a cluster of one.
    pub fn floors(&self) -> Option<&Floors> {
        self.shared.floors.as_deref()
    }

    /// The floor of `partition`, as far as it is believed: nobody is told of a word from the future.
    pub fn floor(&self, partition: Partition) -> Floor {
        let floor = self.floors().map_or_else(Floor::default, |floors| floors.of(partition));
        floor.within(self.timestamps().max())
    }

    /// The floors of all partitions, in order, as far as they are believed; none in a cluster of one.
    pub fn believed_floors(&self) -> Option<Vec<Floor>> {
        let max = self.timestamps().max();
        Some(self.floors()?.all().into_iter().map(|floor| floor.within(max)).collect())
    }

    /// Takes a step; false when this store cannot.
    ///
    /// Once it returns, everything that was applied before the step is in the digests, and what the step keeps out stays
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

    /// Of what other nodes have sealed, what puts rows of this store in doubt that are not yet.
    pub fn unheard_of(&self, words: Vec<SealedWord>) -> Vec<SealedWord> {
        self.floors().map_or_else(Vec::new, |floors| floors.unheard_of(words))
    }

    /// The partitions in which rows of this store are in doubt, and up to where.
    pub fn doubts(&self) -> Vec<(u16, u64)> {
        self.floors().map_or_else(Vec::new, Floors::doubts)
    }

    /// How many rows of `partition` have versions up to `upto` that no node with a say about them has sealed: they stay,
    /// although a node without one has sealed past them.
    pub async fn kept_in_doubt(&self, partition: Partition, upto: u64) -> Result<u64, ReplicaError> {
        let Some(floors) = self.floors() else { return Ok(0) };
        let (mut kept, mut after) = (0, None);
        loop {
            let (marks, is_last) = self.marks(partition, after.as_ref(), REMOVED_LEN_MAX * 64).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let is_kept = |(_, mark): &&(Key, Mark)| {
                let clock = mark.version.clock();
                let is_passed = clock <= upto && clock > floors.of(partition).settled;
                is_passed && mark.from > 1 && !floors.lets_go(partition, mark, Removal::Outlived)
            };
            kept += marks.iter().filter(is_kept).count() as u64;
            if is_last {
                return Ok(kept);
            }
        }
    }

    /// Removes `rows` of `partition`, as far as they are in doubt and still as they were: a replica that has sealed past
    /// them was compared and has none of them. How many.
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

    /// Removes every row in doubt on the word of others alone, which is what the canary `older-store-drops` does.
    #[cfg(feature = "canaries")]
    pub async fn drop_all_doubted(&self, partition: Partition) -> Result<usize, ReplicaError> {
        self.remove(partition, Removal::Outlived).await
    }

    /// Removes the tombstones of `partition` that its floor lets go, and returns how many.
    pub async fn purge(&self, partition: Partition) -> Result<usize, ReplicaError> {
        self.remove(partition, Removal::Purged).await
    }

    /// Removes the records from the future that `partition` holds, and forgets the words of its floor that are; returns how
    /// many records. Their values are lost: for an operator to order.
    pub async fn drop_too_far_ahead(&self, partition: Partition) -> Result<usize, ReplicaError> {
        if self.floors().is_some_and(|floors| floors.of(partition) != self.floor(partition)) {
            self.step(FloorStep::Forget { max: self.timestamps().max(), partition: partition.0 }).await?;
        }
        self.remove(partition, Removal::TooFarAhead).await
    }

    async fn remove(&self, partition: Partition, which: Removal) -> Result<usize, ReplicaError> {
        let Some(floors) = self.floors() else { return Ok(0) };
        let (mut removed, mut after) = (0, None);
        loop {
            let (marks, is_last) = self.marks(partition, after.as_ref(), REMOVED_LEN_MAX * 64).await?;
            after = marks.last().map(|(key, _)| key.clone());
            let goes = |mark: &Mark| match which {
                Removal::Purged => mark.is_tombstone,
                Removal::Outlived => mark.from > 1,
                Removal::TooFarAhead => self.timestamps().check(mark.version.clock()).is_err(),
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
