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
//! The rules and why they suffice: `docs/dev/tombstones.md`, `docs/decisions/0014-*`.

use super::queue::{Removal, Request, Source};
use super::{Applied, Replica, ReplicaError};
use crate::crash::{self, Point};
use crate::storage::{Change, Engine, Keyspace, format};
use kvorum_core::{Key, Partition, Version};
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
    /// This store lacks a floor that others have: until it is adopted, nothing below comes in.
    Defend {
        /// Clock words by partition.
        floors: Arc<[(u16, u64)]>,
    },
    /// Words from the future do not hold any more, on an operator's order.
    Forget {
        /// The highest word that still holds.
        max: u64,
        /// The partition.
        partition: u16,
    },
    /// What lay below the floor is gone here: it holds.
    Adopt {
        /// Clock words by partition.
        floors: Arc<[(u16, u64)]>,
    },
}

/// What is known of one partition.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    floor: Floor,
    /// Nothing up to here comes in but by repair, since the round of this number.
    closed: u64,
    round: u64,
    /// A floor that is being adopted.
    defended: u64,
}

impl Entry {
    fn highest(&self) -> u64 {
        self.floor.settled.max(self.closed).max(self.defended)
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
    /// `is_mortal` that the record is a tombstone or has an expiry, `is_dead` that it is a tombstone or has expired.
    pub(super) fn judge(
        &self,
        partition: Partition,
        version: Version,
        source: Source,
        holds_nothing: bool,
        (is_mortal, is_dead): (bool, bool),
    ) -> Option<Applied> {
        let entry = self.lock().get(usize::from(partition.0)).copied()?;
        let sealed = entry.floor.sealed.max(entry.defended);
        let purged = entry.floor.purged.max(entry.defended);
        let clock = version.clock();
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
            Source::Writer | Source::Copy | Source::Reader if clock <= entry.highest() => {
                too_late(entry.highest())
            }
            _ => None,
        }
    }

    /// The highest version that may not come in any more, of `partition`.
    pub(super) fn barred_upto(&self, partition: Partition) -> Version {
        let highest = self.lock().get(usize::from(partition.0)).map_or(0, Entry::highest);
        if highest == 0 { Version::ZERO } else { Version::from_words(highest, u64::MAX) }
    }

    /// Whether the tombstone or outlived row `version` of `partition` may go.
    pub(super) fn lets_go(&self, partition: Partition, version: Version, which: Removal) -> bool {
        self.lock().get(usize::from(partition.0)).is_some_and(|entry| {
            version.clock()
                <= match which {
                    Removal::Purged => entry.floor.purged,
                    Removal::Outlived => entry.defended,
                    // That is not the floor's to say.
                    Removal::TooFarAhead => u64::MAX,
                }
        })
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
            FloorStep::Defend { floors } => {
                for (partition, upto) in &**floors {
                    let entry = entries.get_mut(usize::from(*partition))?;
                    entry.defended = entry.defended.max(*upto);
                    self.highest.fetch_max(*upto, Ordering::Release);
                }
                return Some(Vec::new());
            }
            FloorStep::Forget { max, partition } => {
                let entry = entries.get_mut(usize::from(*partition))?;
                let known = |word| if word > *max { 0 } else { word };
                (entry.closed, entry.defended) = (known(entry.closed), known(entry.defended));
            }
            _ => {}
        }
        let mut moved = Vec::new();
        for (partition, upto) in step.words() {
            let entry = entries.get(usize::from(partition))?;
            let floor = staged(partition).unwrap_or(entry.floor);
            let next = match step {
                FloorStep::Settle { round, .. } => {
                    let is_closed = entry.round == *round && entry.closed >= upto && entry.defended == 0;
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
                FloorStep::Close { .. } | FloorStep::Defend { .. } => None,
            }?;
            // Also where nothing moves: what was being adopted is not any more.
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
            if entry.defended <= floor.settled {
                entry.defended = 0;
            }
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
            Self::Defend { floors } | Self::Adopt { floors } => floors.to_vec(),
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
            (Self::Close { .. } | Self::Defend { .. } | Self::Forget { .. }, _) => {}
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

    /// Takes up floors that others have and this store has not: what it holds below them may be what was purged, so it
    /// is dropped here and must come from the others again. A record that was written for one replica stays: nobody
    /// else can know better.
    ///
    /// # Cancel safety
    /// Dropping the future leaves rows dropped and floors not adopted; it is begun again when they are met again.
    pub async fn adopt(&self, floors: Arc<[(u16, u64)]>) -> Result<(), ReplicaError> {
        self.step(FloorStep::Defend { floors: Arc::clone(&floors) }).await?;
        for (partition, _) in &*floors {
            self.remove(Partition(*partition), Removal::Outlived).await?;
        }
        self.step(FloorStep::Adopt { floors }).await.map(drop)
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
            let goes = |mark: &format::Mark| match which {
                Removal::Purged => mark.is_tombstone,
                Removal::Outlived => mark.from > 1,
                Removal::TooFarAhead => self.timestamps().check(mark.version.clock()).is_err(),
            };
            let rows: Vec<(Key, Version)> = marks
                .into_iter()
                .filter(|(_, mark)| goes(mark) && floors.lets_go(partition, mark.version, which))
                .map(|(key, mark)| (key, mark.version))
                .collect();
            for rows in rows.chunks(REMOVED_LEN_MAX) {
                let (done, outcome) = oneshot::channel();
                let rows = rows.to_vec();
                which.passes(false);
                self.shared.queue.submit(Request::Remove { partition, rows, which, done })?;
                removed += outcome.await.map_err(|_| ReplicaError::Stopped)??;
                which.passes(true);
            }
            if is_last {
                return Ok(removed);
            }
        }
    }
}
