//! The committer: judges a group of queued writes, stores the winners in one batch, syncs once, answers all.
//!
//! It runs on the commit thread and is the only writer of the store, so merging needs no lock. It is driven with
//! groups and never waits for anything but the engine; the simulation drives the same code.
//!
//! It usually knows the stored version without reading the disk. The requesting side has looked the key up and passes
//! the number of groups committed by then ([`Observed`]). The committer remembers the keys of the latest groups
//! ([`Recent`]). It repeats a look-up that is older than its memory, which takes thousands of writes in between.

mod cutting;
mod failing;
mod judge;

use super::answer::Answer;
use super::completions::CompletionQueue;
use super::cut::Cuts;
use super::digest::Digests;
use super::floor::Floors;
use super::health::StoreHealth;
use super::promise::Promises;
use super::queue::Request;
use super::recent::Recent;
use super::stage::{Changed, Stage, Staged, mark_of};
use super::{ReplicaError, ReplicaParts, StoreState};
use crate::canary::{self, Canary};
use crate::clock::{Clock, TimestampBound};
use crate::crash::{self, Point};
use crate::log_limit::LogLimit;
use crate::metrics::StoreMetrics;
use crate::storage::shortage::Shortage;
use crate::storage::{Batch, Change, Durability, Engine, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{Record, UnixMillis, Value, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};
use std::time::Duration;

/// A commit that takes longer than this is logged at debug level, so that it stands beside the engine's lines.
const SLOW_COMMIT: Duration = Duration::from_millis(30);
/// The longest time that a group waits for more requests, however slow the disk.
const GATHER_MAX: Duration = Duration::from_micros(500);
/// How often the engine is asked whether its background has stopped, while nobody writes.
const IDLE_CHECK: Duration = Duration::from_secs(1);
/// How often a full disk is checked again, and the wait between two tries to open a store that met a shortage.
const DISK_RETRY: Duration = Duration::from_millis(500);
/// How long a tombstone of a sole replica is kept: longer than a write that was stamped before it can stay queued.
/// A later write is harmless (see [`Committer::floor`]); the wait only saves it a second stamp.
const TOMBSTONE_KEEP_MILLIS: u64 = 10_000;

/// What must be on disk before a write is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurabilityMode {
    /// The record itself, by fdatasync, shared with the group.
    Always,
    /// Nothing yet; everything is synced at least this often.
    Interval(Duration),
    /// Nothing; the operating system decides when to write.
    Os,
}

/// When a tombstone or an expired record may be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// There is only this replica: no other node can hold anything older.
    Sole,
    /// Other replicas may hold older records. An expired value is replaced by a tombstone, which gives back its bytes.
    /// The tombstone stays until tombstone GC has passed it on all nodes ([`super::floor`]).
    Keep,
}

pub(super) struct Committer {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    timestamps: Arc<TimestampBound>,
    metrics: Arc<StoreMetrics>,
    health: Arc<StoreHealth>,
    durability: DurabilityMode,
    purge: Purge,
    /// The digests that replicas compare; `None` for a sole replica.
    digests: Option<Arc<Digests>>,
    /// The floors: which records may not come in any more, and which may go; `None` for a sole replica.
    floors: Option<Arc<Floors>>,
    promises: Arc<Promises>,
    cuts: Arc<Cuts>,
    /// Number of groups committed; the requesting side reads it before each look-up.
    committed: Arc<AtomicU64>,
    recent: Recent,
    /// The epoch since which keys are placed as now, and the one that the memory is of: see [`Self::forget_held`].
    placed_since: Arc<AtomicU64>,
    remembers_of: u64,
    /// The highest version purged in this run. A record not above it, of a key that has no stored record, may be older
    /// than a purged one: it is answered `TooLate` and is stamped again.
    floor: Version,
    unsynced_since: Option<Duration>,
    /// The time that a group takes: a moving mean.
    usual: Duration,
    disk_looked_at: Option<Duration>,
    /// The shortage that stopped the engine, until it is reopened.
    stopped_by: Option<Shortage>,
    /// Whether the engine was opened with the disk space reserved for deletions.
    is_on_reserve: bool,
    /// The store is not reopened before this time.
    reopen_at: Duration,
    /// The times at which the engine's background ended without a known reason.
    revivals: Vec<Duration>,
    /// When opening a closed store for reading is tried next.
    read_at: Duration,
    /// Whether the reserve has been set up in this run.
    has_reserve: bool,
    shortages: LogLimit,
    /// The `meta` rows of a store that could not be set aside, until the new store has them.
    carried: BTreeMap<Bytes, Bytes>,
}

impl Committer {
    pub(super) fn new(
        parts: &ReplicaParts,
        digests: Option<Arc<Digests>>,
        floors: Option<Arc<Floors>>,
        promises: Arc<Promises>,
        committed: Arc<AtomicU64>,
        health: Arc<StoreHealth>,
    ) -> Self {
        let now = parts.clock.mono();
        Self {
            engine: Arc::clone(&parts.engine),
            clock: Arc::clone(&parts.clock),
            timestamps: Arc::clone(&parts.timestamps),
            metrics: Arc::clone(&parts.metrics),
            health,
            durability: parts.durability,
            purge: parts.purge,
            digests,
            floors,
            promises,
            cuts: Arc::default(),
            committed,
            recent: Recent::starting_at(0, now),
            placed_since: Arc::default(),
            remembers_of: 0,
            floor: Version::ZERO,
            unsynced_since: None,
            usual: Duration::ZERO,
            disk_looked_at: None,
            stopped_by: None,
            is_on_reserve: false,
            reopen_at: Duration::ZERO,
            revivals: Vec::new(),
            read_at: Duration::ZERO,
            has_reserve: false,
            shortages: LogLimit::new(4, Duration::from_mins(1)),
            carried: BTreeMap::new(),
        }
    }

    /// The same committer, with the replica's cuts.
    pub(super) fn with_cuts(self, cuts: Arc<Cuts>) -> Self {
        Self { cuts, ..self }
    }

    /// Judges by another timestamp bound from now on.
    #[cfg(test)]
    pub(super) fn set_timestamps(&mut self, timestamps: Arc<TimestampBound>) {
        self.timestamps = timestamps;
    }

    /// How long the commit thread may sleep before it must call [`Self::commit`], with an empty group if need be.
    pub(super) fn idle_wait(&self) -> Duration {
        let sync = match (self.durability, self.unsynced_since) {
            (DurabilityMode::Interval(every), Some(since)) if self.takes_writes() => {
                Some((since + every).saturating_sub(self.clock.mono()))
            }
            _ => None,
        };
        let disk =
            matches!(self.health.state(), StoreState::DiskFull | StoreState::Short(_)).then_some(DISK_RETRY);
        [sync, disk].into_iter().flatten().fold(IDLE_CHECK, Duration::min)
    }

    /// Whether the store would take a write now. If not, a due sync must wait: retrying it at once, for as long as the
    /// failure lasts, would keep a processor busy.
    fn takes_writes(&self) -> bool {
        self.stopped_by.is_none() && !matches!(self.health.state(), StoreState::Failed { .. })
    }

    /// How long a group may wait for the clients answered in the previous group: as long as a group usually takes.
    pub(super) fn gather_wait(&self) -> Duration {
        match self.durability {
            DurabilityMode::Always => self.usual.min(GATHER_MAX),
            DurabilityMode::Interval(_) | DurabilityMode::Os => Duration::ZERO,
        }
    }

    /// How long a modelled disk takes for the next group.
    pub(super) fn latency(&self) -> Duration {
        self.engine.latency()
    }

    /// Commits a group, possibly empty, and answers every request in it.
    pub(super) fn commit(&mut self, group: Vec<Request>) {
        let now = self.clock.mono();
        self.look_at_disk(now);
        self.sync_if_due(now);
        self.cut_first(&group, now);
        if group.is_empty() {
            self.check_engine();
            return;
        }
        let group = self.begin_anew_first(group);
        self.forget_held();
        let mut stage = Stage::default();
        let mut answers = Vec::with_capacity(group.len());
        let timed: Vec<_> = group.iter().filter_map(Request::times).cloned().collect();
        for times in &timed {
            times.note_taken();
        }
        for request in group {
            answers.push(self.judge(&mut stage, request));
        }
        let is_synced = stage.is_synced || self.durability == DurabilityMode::Always;
        let outcome = self.store(stage, now);
        for times in &timed {
            times.note_stored(is_synced);
        }
        if let Err(refusal) = &outcome {
            for (_, answer) in &mut answers {
                answer.refuse(refusal.error());
            }
        }
        give_all(answers);
        crash::point(Point::CommitAnswered);
    }

    /// Forgets which versions were held before newer ones, once keys are placed otherwise. A new owner may have held a
    /// record that a promise kept out elsewhere: said later, it would confirm a write between a condition and its record
    /// (decision 33.15).
    ///
    /// What is said of how far back it remembers stays: a record that was first sent in this epoch was held in no earlier one, and
    /// a coordinator knows if it sent one earlier.
    fn forget_held(&mut self) {
        let placed_since = self.placed_since.load(Memory::SeqCst);
        if placed_since != self.remembers_of {
            self.remembers_of = placed_since;
            let since = self.recent.remembers_since();
            let since = if canary::is(Canary::EpochShortensMemory) { self.clock.mono() } else { since };
            self.recent = Recent::starting_at(self.committed.load(Memory::Relaxed) + 1, since);
        }
    }

    /// The same, which reads there since when keys are placed as now.
    pub(super) fn placed_by(self, placed_since: Arc<AtomicU64>) -> Self {
        Self { placed_since, ..self }
    }

    /// Notices a failure of the engine's background although nobody writes.
    fn check_engine(&mut self) {
        if self.takes_writes()
            && let Err(error) = self.engine.check()
        {
            self.fail(&error);
        }
    }

    /// Syncs the writes that are not synced yet, and removes the unclean-shutdown mark; the committer's last call.
    pub(super) fn finish(&mut self) {
        crash::point(Point::CloseBeforeSync);
        if self.durability != DurabilityMode::Always && self.takes_writes() {
            // The removal follows every confirmed write and is synced with them: no write of this run can be lost any
            // more.
            let key = Bytes::from_static(format::META_UNSYNCED);
            let clean = vec![Change::Remove { keyspace: Keyspace::Meta, key }];
            if let Err(error) = self.engine.commit(clean, Durability::Synced) {
                tracing::error!(%error, "the last sync before the end failed: the latest writes may be lost if the \
                                         power fails");
            }
        }
        crash::point(Point::CloseAfterSync);
    }

    /// Writes the stage; afterwards readers see it and the committer remembers it.
    fn store(&mut self, mut stage: Stage, now: Duration) -> Result<(), Refusal> {
        if let Some(shortage) = self.stopped_by {
            return Err(Refusal::Short(shortage));
        }
        if let StoreState::Failed { reason } = self.health.state() {
            return Err(Refusal::Failed(reason));
        }
        let applied = stage.records.len();
        let is_synced = stage.is_synced;
        let overwritten = std::mem::take(&mut stage.overwritten);
        let floors = std::mem::take(&mut stage.floors);
        let (built, promises) = (std::mem::take(&mut stage.built), std::mem::take(&mut stage.promises));
        let noted = stage.noted;
        let (batch, changes) = self.batch(stage);
        if batch.is_empty() {
            return Ok(());
        }
        let is_synced = is_synced && !canary::is(Canary::AckBeforeSync);
        let waits_for_sync = self.durability == DurabilityMode::Always && !canary::is(Canary::AckBeforeSync);
        let durability = if waits_for_sync || is_synced { Durability::Synced } else { Durability::Buffered };
        crash::point(Point::CommitBeforeWrite);
        if let Err(error) = self.engine.commit(batch, durability) {
            return Err(self.fail(&error));
        }
        crash::point(Point::CommitBeforeAnswers);
        let took = self.clock.mono().saturating_sub(now);
        self.usual = (self.usual * 7 + took) / 8;
        self.metrics.committed(applied, took, durability == Durability::Synced);
        if took > SLOW_COMMIT {
            tracing::debug!(took_ms = took.as_millis(), records = applied, "a commit was slow");
        }
        if durability == Durability::Buffered && matches!(self.durability, DurabilityMode::Interval(_)) {
            self.unsynced_since.get_or_insert(now);
        }
        let group = self.committed.load(Memory::Relaxed) + 1;
        let removed = changes.iter().filter(|(_, _, after)| after.is_none()).count();
        self.metrics.removed.fetch_add(removed as u64, Memory::Relaxed);
        if let Some(digests) = &self.digests {
            digests.change(&changes);
        }
        if let Some(known) = &self.floors {
            known.moved(floors);
        }
        self.promises.moved(promises, noted);
        self.recent.remember(changes, overwritten, built, group, now);
        self.committed.store(group, Memory::Release);
        Ok(())
    }

    /// The batch of a stage, and the change of each key: its mark before and after.
    fn batch(&self, stage: Stage) -> (Batch, Vec<Changed>) {
        let mut batch = Batch::with_capacity(2 * stage.records.len() + stage.due.len() + stage.side.len());
        let mut changes = Vec::with_capacity(stage.records.len());
        let mut due = stage.due;
        for Staged { key, record, before } in stage.records {
            let after = record.as_ref().map(mark_of);
            if let Some(digests) = &self.digests {
                batch.push(digests.row(&key, after));
            }
            changes.push((key.clone(), before, after));
            let Some(record) = record else {
                batch.push(Change::Remove { keyspace: Keyspace::Records, key: key.into_bytes() });
                continue;
            };
            if let Some(at) = self.due_at(&record) {
                due.insert(
                    format::encode_due_key(at, key.as_ref()),
                    Some(format::encode_version(record.version)),
                );
            }
            let value = format::encode_record(&record);
            batch.push(Change::Put { keyspace: Keyspace::Records, key: key.as_bytes().clone(), value });
        }
        for (key, version) in due {
            batch.push(match version {
                Some(value) => Change::Put { keyspace: Keyspace::Due, key, value },
                None => Change::Remove { keyspace: Keyspace::Due, key },
            });
        }
        batch.extend(stage.side.into_iter().map(|((keyspace, key), value)| match value {
            Some(value) => Change::Put { keyspace, key, value },
            None => Change::Remove { keyspace, key },
        }));
        (batch, changes)
    }

    /// When the sweeper must look at a record that is stored now.
    fn due_at(&self, record: &Record) -> Option<UnixMillis> {
        match (&record.value, self.purge) {
            (Value::Present(_), Purge::Sole) => record.expires,
            (Value::Present(_), Purge::Keep) => record.expires.map(|at| self.timestamps.surely_passed_at(at)),
            (Value::Tombstone, Purge::Sole) => Some(self.clock.wall().saturating_add(TOMBSTONE_KEEP_MILLIS)),
            (Value::Tombstone, Purge::Keep) => canary::is(Canary::PurgeByAge)
                .then(|| self.clock.wall().saturating_add(TOMBSTONE_KEEP_MILLIS / 10)),
        }
    }

    fn sync_if_due(&mut self, now: Duration) {
        let (DurabilityMode::Interval(every), Some(since)) = (self.durability, self.unsynced_since) else {
            return;
        };
        if now < since + every || !self.takes_writes() {
            return;
        }
        crash::point(Point::IntervalBeforeSync);
        match self.engine.sync() {
            Ok(()) => {
                crash::point(Point::IntervalAfterSync);
                self.unsynced_since = None;
                self.metrics.synced(self.clock.mono().saturating_sub(now));
            }
            Err(error) => {
                self.fail(&error);
            }
        }
    }
}

/// Why a group was not stored.
enum Refusal {
    Overloaded,
    /// The write was not tried.
    Short(Shortage),
    /// The write was tried: parts of it may be on disk.
    Met(Shortage),
    Failed(String),
}

impl Refusal {
    fn error(&self) -> ReplicaError {
        match self {
            Self::Overloaded => ReplicaError::Overloaded,
            Self::Short(Shortage::Disk) => ReplicaError::DiskFull,
            Self::Met(Shortage::Disk) => ReplicaError::DiskFilledUp,
            Self::Short(shortage) => ReplicaError::Short { shortage: *shortage },
            Self::Met(shortage) => ReplicaError::ShortMet { shortage: *shortage },
            Self::Failed(reason) => ReplicaError::Failed { reason: reason.clone() },
        }
    }
}

/// An answer with the completion queue of the thread that asked.
type Addressed = (Option<Arc<CompletionQueue>>, Answer);

/// Sends a group's answers, bundled by the thread that asked.
fn give_all(answers: Vec<Addressed>) {
    let mut batches: Vec<(Arc<CompletionQueue>, Vec<Answer>)> = Vec::new();
    for (completions, answer) in answers {
        let Some(completions) = completions else {
            answer.give();
            continue;
        };
        // There are only as many completion queues as network threads: a linear search is quicker than a map.
        match batches.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &completions)) {
            Some((_, batch)) => batch.push(answer),
            None => batches.push((completions, vec![answer])),
        }
    }
    for (completions, batch) in batches {
        completions.bring(batch);
    }
}
