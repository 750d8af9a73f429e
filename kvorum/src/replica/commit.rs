//! The committer: judges a group of queued writes, stores the winners in one batch, syncs once, answers all.
//!
//! It runs on the commit thread and is the only writer of the store, so merging needs no lock. It is driven with
//! groups and never waits for anything but the engine; the simulation drives the same code.
//!
//! How it knows what is stored without reading the disk: the requesting side looked the key up and says as of
//! which group ([`Observed`]); the committer remembers the keys of the latest groups ([`Recent`]). A look-up that
//! is older than what is remembered, which takes thousands of writes in between, is made again here.

use super::answer::{Answer, Applied};
use super::courier::Courier;
use super::digest::Digests;
use super::floor::{self, FloorStep, Floors};
use super::health::StoreHealth;
use super::queue::{DueRow, Observed, Removal, Request, Source};
use super::recent::Recent;
use super::stage::{Changed, Stage, Staged, mark_of};
use super::{ReplicaError, ReplicaParts, StoreState, stored_mark};
use crate::canary::{self, Canary};
use crate::clock::{Clock, TimestampBound};
use crate::crash::{self, Point};
use crate::log_limit::LogLimit;
use crate::metrics::StoreMetrics;
use crate::sched::Courtesy;
use crate::storage::shortage::Shortage;
use crate::storage::{Batch, Change, Durability, Engine, EngineError, Keyspace, Room, format};
use bytes::Bytes;
use kvorum_core::{Key, Partition, Record, UnixMillis, Value, Version};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};
use std::time::Duration;

/// From here on a commit is worth a line in the debug log: what the engine did meanwhile stands beside it.
const SLOW_COMMIT: Duration = Duration::from_millis(30);
/// The longest that a group waits for more, on a disk however slow.
const GATHER_MAX: Duration = Duration::from_micros(500);
/// How often the free space is looked at while writes come in.
const DISK_LOOK: Duration = Duration::from_millis(100);
/// How often the engine is asked whether its background has stopped it, while nobody writes.
const IDLE_CHECK: Duration = Duration::from_secs(1);
/// How often a full disk is looked at again, and between two tries to open a store that met a shortage.
const DISK_RETRY: Duration = Duration::from_millis(500);
/// Between two tries to open a failed store for reading.
const READING_RETRY: Duration = Duration::from_secs(5);
/// How often, and in what time, a store is opened again whose background ended without a reason: it may have met a shortage
/// that has passed. Something that lasts, as damage does, ends it again at once.
const REVIVALS_MAX: usize = 3;
const REVIVALS_PERIOD: Duration = Duration::from_mins(10);
/// How long a tombstone of a sole replica is kept: longer than any write that was stamped before it can be queued.
/// Being late is harmless (see [`Committer::floor`]); it only saves such a write a second stamp.
const TOMBSTONE_KEEP_MILLIS: u64 = 10_000;

/// When what is due is looked at again that could not be read.
const DUE_AGAIN_MILLIS: u64 = 5_000;

/// This says what must be on disk before a write is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurabilityMode {
    /// The record itself, by fdatasync, shared with the group.
    Always,
    /// Nothing yet; everything is synced at least this often.
    Interval(Duration),
    /// Nothing; the operating system writes when it likes.
    Os,
}

/// This says when a tombstone or an expired record may be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// This is the only replica there is: nobody else can hold anything older.
    Sole,
    /// Others may hold something older: an expired value gives back its bytes, its tombstone stays until all nodes have
    /// settled past it ([`super::floor`]).
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
    /// What replicas compare; none where there is no other.
    digests: Option<Arc<Digests>>,
    /// What may not come in any more, and what may go; none where there is no other replica.
    floors: Option<Arc<Floors>>,
    /// Groups committed; the requesting side reads it before each look-up.
    committed: Arc<AtomicU64>,
    recent: Recent,
    /// The highest version purged in this life. A record that is not above it, of a key that holds nothing, may be
    /// older than what was purged: it is told so and is stamped again.
    floor: Version,
    unsynced_since: Option<Duration>,
    /// What a group takes: a moving mean.
    usual: Duration,
    disk_looked_at: Option<Duration>,
    /// What the engine was stopped by, until it is opened again.
    stopped_by: Option<Shortage>,
    /// Whether the engine has been opened with the reserve of a full disk.
    is_on_reserve: bool,
    /// Before it nothing is opened again.
    reopen_at: Duration,
    /// When the background had ended without a reason.
    revivals: Vec<Duration>,
    /// When a store that is closed is tried to be read again.
    read_at: Duration,
    /// Whether the reserve has been kept in this life.
    has_reserve: bool,
    shortages: LogLimit,
    /// The `meta` rows of a store whose setting aside failed.
    carried: BTreeMap<Bytes, Bytes>,
}

impl Committer {
    pub(super) fn new(
        parts: &ReplicaParts,
        digests: Option<Arc<Digests>>,
        floors: Option<Arc<Floors>>,
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
            committed,
            recent: Recent::starting_at(0, now),
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

    /// Judges by another bound from now on.
    #[cfg(test)]
    pub(super) fn set_timestamps(&mut self, timestamps: Arc<TimestampBound>) {
        self.timestamps = timestamps;
    }

    /// How long the commit thread may sleep before [`Self::commit`] must be called with whatever there is.
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

    /// Whether the store would take a write now. Where not, what is due to be synced must wait: trying again at once,
    /// for as long as the failure lasts, would keep a processor busy.
    fn takes_writes(&self) -> bool {
        self.stopped_by.is_none() && !matches!(self.health.state(), StoreState::Failed { .. })
    }

    /// How long a group may wait for those who were answered in the one before: as long as a group usually takes.
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

    /// Commits a group, possibly empty, and answers everyone in it.
    pub(super) fn commit(&mut self, group: Vec<Request>) {
        let now = self.clock.mono();
        self.look_at_disk(now);
        self.sync_if_due(now);
        if group.is_empty() {
            self.check_engine();
            return;
        }
        let group = self.begin_anew_first(group);
        let mut stage = Stage::default();
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            answers.push(self.judge(&mut stage, request));
        }
        let outcome = self.store(stage, now);
        if let Err(refusal) = &outcome {
            for (_, answer) in &mut answers {
                answer.refuse(refusal.error());
            }
        }
        give_all(answers);
        crash::point(Point::CommitAnswered);
    }

    /// Notices a failure of the engine's background although nobody writes.
    fn check_engine(&mut self) {
        if self.takes_writes()
            && let Err(error) = self.engine.check()
        {
            self.fail(&error);
        }
    }

    /// Syncs what is not synced yet; the last call in the committer's life.
    pub(super) fn finish(&mut self) {
        crash::point(Point::CloseBeforeSync);
        if self.durability != DurabilityMode::Always && self.takes_writes() {
            // Behind everything that was confirmed, and synced with it: nothing of this life can be lost any more.
            let key = Bytes::from_static(format::META_UNSYNCED);
            let clean = vec![Change::Remove { keyspace: Keyspace::Meta, key }];
            if let Err(error) = self.engine.commit(clean, Durability::Synced) {
                tracing::error!(%error, "the last sync failed: the latest writes may be lost if the power fails");
            }
        }
        crash::point(Point::CloseAfterSync);
    }

    /// Decides what one request adds to the stage, and what its answer will be if the stage is stored.
    fn judge(&mut self, stage: &mut Stage, request: Request) -> Addressed {
        match request {
            Request::Apply { key, record, source, observed, done, courier } => {
                let outcome = self.judge_record(stage, key, record, source, observed);
                (courier, Answer::Apply { outcome, done })
            }
            Request::ApplyMany { records, source, done, courier } => {
                stage.courtesy = Courtesy::of_rows();
                let judge = |(key, record, observed)| {
                    stage.courtesy.step();
                    match self.judge_record(stage, key, record, source, observed) {
                        Ok(applied) => Ok(Some(applied)),
                        // It keeps back itself only.
                        Err(ReplicaError::TooFarAhead(_)) => Ok(None),
                        Err(error) if error.is_damage() => Ok(None),
                        Err(error) => Err(error),
                    }
                };
                let outcome = records.into_iter().map(judge).collect();
                (courier, Answer::ApplyMany { outcome, done })
            }
            Request::Side { changes, is_synced, done } => {
                stage.is_synced |= is_synced;
                for change in changes {
                    stage.side(change);
                }
                (None, Answer::Side { outcome: Ok(()), done })
            }
            Request::SetAside { rows, done } => (None, Answer::Side { outcome: self.set_aside(rows), done }),
            // The reserve of a full disk is for what clients delete.
            Request::Purge { done, .. } if self.is_on_reserve => {
                (None, Answer::Purge { outcome: Err(ReplicaError::DiskFull), done })
            }
            Request::Purge { rows, done } => {
                let mut purged = 0;
                for row in rows {
                    match self.judge_due(stage, &row) {
                        Ok(true) => purged += 1,
                        Ok(false) => {}
                        Err(error) => tracing::error!(%error, "cannot judge an expired record"),
                    }
                }
                (None, Answer::Purge { outcome: Ok(purged), done })
            }
            Request::Floor { step, done } => {
                let outcome = Ok(self.judge_step(stage, &step));
                (None, Answer::Floor { outcome, done })
            }
            Request::Remove { partition, rows, which, done } => {
                let outcome = self.judge_removal(stage, partition, rows, which);
                (None, Answer::Purge { outcome, done })
            }
        }
    }

    /// Stages what a step changes on disk. Says whether the step can be taken.
    fn judge_step(&mut self, stage: &mut Stage, step: &FloorStep) -> bool {
        let Some(floors) = &self.floors else { return false };
        let Some(moved) = floors.begin(step, |partition| stage.floors.get(&partition).copied()) else {
            return false;
        };
        for (partition, floor) in moved {
            stage.side(floor::row(partition, floor));
            stage.floors.insert(partition, floor);
            stage.is_synced |= step.is_synced();
        }
        true
    }

    /// Stages the removal of rows that are still as they were found. Says how many.
    fn judge_removal(
        &mut self,
        stage: &mut Stage,
        partition: Partition,
        rows: Vec<(Key, Version)>,
        which: Removal,
    ) -> Result<usize, ReplicaError> {
        let Some(floors) = &self.floors else { return Ok(0) };
        let mut removed = 0;
        for (key, version) in rows {
            if stage.record(&key).is_some() {
                continue;
            }
            // Its time may have come meanwhile.
            if which == Removal::TooFarAhead && self.timestamps.check(version.clock()).is_ok() {
                continue;
            }
            // By the index, which is written with the record: a record that cannot be read any more goes as well.
            let row = format::encode_token_key(partition, key.as_ref());
            let Some(mark) = self.engine.get(Keyspace::Tokens, &row)? else { continue };
            let mark = format::decode_mark(&mark)?;
            let is_as_found = mark.version == version && (which != Removal::Purged || mark.is_tombstone);
            if !is_as_found || !floors.lets_go(partition, &mark, which) {
                continue;
            }
            // Whoever wrote it and comes late is told that it took effect.
            stage.overwritten.push(version);
            stage.set(key, None, Some(mark));
            removed += 1;
        }
        Ok(removed)
    }

    /// Whether the floor lets a dead row go.
    fn lets_go(&self, key: &Key, mark: &format::Mark) -> bool {
        let (Some(floors), Some(digests)) = (&self.floors, &self.digests) else { return false };
        floors.lets_go(digests.partition_of(key), mark, Removal::Purged)
    }

    /// What a record is told that comes too late for its partition; none when it may change the store.
    fn barred(&self, key: &Key, record: &Record, holds_nothing: bool, source: Source) -> Option<Applied> {
        let (floors, digests) = (self.floors.as_ref()?, self.digests.as_ref()?);
        if !floors.may_bar(record.version.clock()) {
            return None;
        }
        let has_expired = record.expires.is_some_and(|at| self.timestamps.has_surely_passed(at));
        let is_dead = record.value == Value::Tombstone || has_expired;
        floors.judge(digests.partition_of(key), record, source, holds_nothing, is_dead)
    }

    fn judge_record(
        &mut self,
        stage: &mut Stage,
        key: Key,
        record: Record,
        source: Source,
        observed: Observed,
    ) -> Result<Applied, ReplicaError> {
        if self.is_on_reserve {
            // It was queued before that was known.
            self.health.admit(&record, source)?;
        }
        let known = stage.mark(&key).or_else(|| self.recent.mark(&key));
        let stored = match known {
            Some(mark) => mark,
            None if self.recent.covers(observed.as_of) => observed.mark,
            None => stored_mark(&*self.engine, self.digests.as_deref(), &key)?,
        };
        // A record that was newest here once took effect here, whatever came since: see `Recent`.
        let has_accepted = || {
            source == Source::Writer
                && (stage.has_accepted(record.version) || self.recent.has_accepted(record.version))
        };
        let Some(stored) = stored else {
            let is_below = record.version <= self.floor;
            if is_below || self.floors.is_some() {
                if has_accepted() {
                    return Ok(Applied::Stored);
                }
                if is_below {
                    return Ok(Applied::TooLate { upto: self.floor });
                }
                if let Some(answer) = self.barred(&key, &record, true, source) {
                    return self.believed(answer);
                }
            }
            stage.put(key, record, None);
            return Ok(Applied::Stored);
        };
        match record.version.cmp(&stored.version) {
            Ordering::Less if has_accepted() => {}
            Ordering::Less => {
                let memory = self.clock.mono().saturating_sub(self.recent.remembers_since());
                let memory_millis = u32::try_from(memory.as_millis()).unwrap_or(u32::MAX);
                return self.believed(Applied::Superseded { by: stored.version, memory_millis });
            }
            Ordering::Greater => {
                if let Some(answer) = self.barred(&key, &record, false, source) {
                    return self.believed(answer);
                }
                stage.overwritten.push(stored.version);
                stage.put(key, record, Some(stored));
            }
            // Nearly always the same record once more; if not, the written rule for ties decides.
            Ordering::Equal => {
                let current = match stage.record(&key) {
                    Some(staged) => staged.cloned(),
                    None => match self.engine.get(Keyspace::Records, key.as_ref()) {
                        Ok(row) => row.map(|row| format::decode_record(&row)).transpose()?,
                        // The same record from somebody who can read it: it takes the damaged one's place.
                        Err(EngineError::Corrupt { .. }) => None,
                        Err(error) => return Err(error.into()),
                    },
                };
                // What an expired value has left is as good as the value.
                let is_over = record.has_expired(self.timestamps.expiry_clock());
                let is_same = |current: &Record| {
                    let is_left = current.value == Value::Tombstone || record.value == Value::Tombstone;
                    *current == record || is_over && is_left
                };
                if current.as_ref().is_some_and(|current| !is_same(current)) {
                    self.metrics.conflicts.fetch_add(1, Memory::Relaxed);
                }
                let wins = |current: Record| !is_same(&current) && record.newness(&current).is_gt();
                if current.is_none_or(wins) {
                    stage.put(key, record, Some(stored));
                }
            }
        }
        Ok(Applied::Stored)
    }

    /// `applied`, unless what supersedes the record is from the future: nobody may stamp above that.
    fn believed(&self, applied: Applied) -> Result<Applied, ReplicaError> {
        if let Applied::Superseded { by, .. } | Applied::TooLate { upto: by } = applied {
            self.timestamps.check(by.clock())?;
        }
        Ok(applied)
    }

    /// Stages the end of a record whose time has come. Says whether space comes back.
    fn judge_due(&mut self, stage: &mut Stage, row: &DueRow) -> Result<bool, ReplicaError> {
        stage.due.insert(format::encode_due_key(row.at, &row.key), None);
        let Ok(key) = Key::new(row.key.clone()) else { return Ok(false) };
        if stage.record(&key).is_some() {
            return Ok(false);
        }
        let current = match self.engine.get(Keyspace::Records, &row.key) {
            Ok(Some(current)) => format::decode_record(&current)?,
            Ok(None) => return Ok(false),
            // The record that heals it brings a row of its own.
            Err(error @ EngineError::Corrupt { .. }) => return Err(error.into()),
            Err(error) => {
                // A key that is written often has many rows that are due: the newest of them is that of its record.
                let later = self.clock.wall().saturating_add(DUE_AGAIN_MILLIS);
                let version = Some(format::encode_version(row.version));
                let staged = stage.due.entry(format::encode_due_key(later, &row.key)).or_default();
                *staged = version.max(staged.take());
                return Err(error.into());
            }
        };
        // Overwritten since: the newer record has a row of its own if it needs one.
        if current.version != row.version {
            return Ok(false);
        }
        let mark = Some(mark_of(&current));
        match (self.purge, &current.value) {
            (Purge::Sole, _) => {
                self.floor = self.floor.max(current.version);
                stage.set(key, None, mark);
            }
            // By one clock a value is hidden; it is destroyed once it has expired by all clocks that can be right.
            (Purge::Keep, Value::Present(_))
                if !current.expires.is_some_and(|at| self.timestamps.has_surely_passed(at)) =>
            {
                let later = current.expires.map_or(row.at, |at| self.timestamps.surely_passed_at(at));
                let version = format::encode_version(row.version);
                stage.due.insert(format::encode_due_key(later, &row.key), Some(version));
                return Ok(false);
            }
            (Purge::Keep, Value::Present(_)) if self.lets_go(&key, &mark_of(&current)) => {
                stage.set(key, None, mark);
            }
            (Purge::Keep, Value::Present(_)) => {
                stage.put(key, Record { value: Value::Tombstone, ..current }, mark);
            }
            (Purge::Keep, Value::Tombstone) if canary::is(Canary::PurgeByAge) => stage.set(key, None, mark),
            (Purge::Keep, Value::Tombstone) => return Ok(false),
        }
        Ok(true)
    }

    /// Takes the order to begin anew out of `group` and follows it: everything else is judged by the new store.
    fn begin_anew_first(&mut self, group: Vec<Request>) -> Vec<Request> {
        if !group.iter().any(|request| matches!(request, Request::SetAside { .. })) {
            return group;
        }
        let (orders, others): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|request| matches!(request, Request::SetAside { .. }));
        for order in orders {
            let (_, answer) = self.judge(&mut Stage::default(), order);
            answer.give();
        }
        others
    }

    /// Sets the store aside and begins anew with an empty one that keeps its name: it is known to lack what was in the
    /// old one, so no other node has to say so.
    ///
    /// What `meta` rows can be read go over; `known` has what the node knows without them. Where it fails it may be tried
    /// again: what rows the old store had are kept until the new one has them.
    fn set_aside(&mut self, known: Vec<(&'static [u8], Bytes)>) -> Result<(), ReplicaError> {
        let mut rows: BTreeMap<Bytes, Bytes> =
            known.into_iter().map(|(key, value)| (Bytes::from_static(key), value)).collect();
        rows.append(&mut self.carried);
        match self.engine.scan(Keyspace::Meta, b"", std::ops::Bound::Unbounded) {
            Ok(scan) => rows.extend(scan.filter_map(Result::ok)),
            Err(error) => {
                tracing::warn!(%error, "the store's own rows cannot be read: what is known without them is kept");
            }
        }
        rows.insert(Bytes::from_static(format::META_VOTES), Bytes::from_static(&[format::VOTES_NO]));
        // It has confirmed nothing, so it belongs to nobody before it has been refilled.
        rows.remove(format::META_TOPOLOGY);
        if let Err(error) = self.begin_with(&rows) {
            self.carried = rows;
            self.health.set_failed(&error.to_string());
            return Err(error.into());
        }
        // Whoever looked a key up before this group saw the old store.
        let group = self.committed.load(Memory::Relaxed) + 1;
        self.committed.store(group, Memory::Release);
        self.recent = Recent::starting_at(group + 1, self.clock.mono());
        (self.unsynced_since, self.stopped_by, self.is_on_reserve) = (None, None, false);
        self.health.revive();
        Ok(())
    }

    /// Puts an empty store with `rows` in place of the one that there is.
    fn begin_with(&self, rows: &BTreeMap<Bytes, Bytes>) -> Result<(), EngineError> {
        self.engine.set_aside()?;
        if let Some(digests) = &self.digests {
            digests.clear();
        }
        let put = |(key, value): (&Bytes, &Bytes)| Change::Put {
            keyspace: Keyspace::Meta,
            key: key.clone(),
            value: value.clone(),
        };
        self.engine.commit(rows.iter().map(put).collect(), Durability::Synced)?;
        crash::point(Point::AsideBegun);
        Ok(())
    }

    /// Writes the stage; afterwards it is known to readers and remembered here.
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
        let mut courtesy = std::mem::take(&mut stage.courtesy);
        let (batch, changes) = self.batch(stage, &mut courtesy);
        if batch.is_empty() {
            return Ok(());
        }
        let is_synced = is_synced && !canary::is(Canary::AckBeforeSync);
        let waits_for_sync = self.durability == DurabilityMode::Always && !canary::is(Canary::AckBeforeSync);
        let durability = if waits_for_sync || is_synced { Durability::Synced } else { Durability::Buffered };
        crash::point(Point::CommitBeforeWrite);
        courtesy.pause();
        if let Err(error) = self.engine.commit(batch, durability) {
            return Err(self.fail(&error));
        }
        crash::point(Point::CommitBeforeAnswers);
        let took = self.clock.mono().saturating_sub(now);
        courtesy.pause();
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
        courtesy.pause();
        self.recent.remember(changes, overwritten, group, now);
        self.committed.store(group, Memory::Release);
        Ok(())
    }

    /// The batch of a stage, and what it changes: of each key what was there and what will be.
    fn batch(&self, stage: Stage, courtesy: &mut Courtesy) -> (Batch, Vec<Changed>) {
        let mut batch = Batch::with_capacity(2 * stage.records.len() + stage.due.len() + stage.side.len());
        let mut changes = Vec::with_capacity(stage.records.len());
        let mut due = stage.due;
        for Staged { key, record, before } in stage.records {
            courtesy.step();
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

    /// Notes a failed write. A shortage passes; anything else is final until the node is restarted.
    fn fail(&mut self, error: &EngineError) -> Refusal {
        if matches!(error, EngineError::Busy) {
            return Refusal::Overloaded;
        }
        let now = self.clock.mono();
        let shortage = match error {
            // A background flush that met a shortage shows here only as a poisoned engine.
            EngineError::Poisoned { .. } => self.what_stopped(now),
            error => error.shortage(),
        };
        if let Some(shortage) = shortage {
            if self.stopped_by.is_none()
                && let Some(left_out) = self.shortages.admit(now)
            {
                let news = match shortage {
                    Shortage::Disk => "a write met a full disk",
                    _ => "a write met a shortage",
                };
                tracing::warn!(%error, %shortage, left_out, "{news}");
            }
            self.stopped_by = Some(shortage);
            self.health.set_short(shortage, now);
            return Refusal::Met(shortage);
        }
        self.health.set_failed(&error.to_string());
        if matches!(error, EngineError::Poisoned { .. })
            && let Err(error) = self.engine.retire()
        {
            tracing::error!(%error, "the failed store cannot be opened for reading either: tried again every 5 s");
        }
        Refusal::Failed(error.to_string())
    }

    /// What the engine's background was stopped by, as far as can be told; none where it is to count as a failure.
    fn what_stopped(&mut self, now: Duration) -> Option<Shortage> {
        if self.engine.is_short_of_space() || self.health.state() == StoreState::DiskFull {
            return Some(Shortage::Disk);
        }
        if let Err(error) = self.engine.check_supplies() {
            return error.shortage();
        }
        if canary::is(Canary::ShortageIsFailure) {
            return None;
        }
        self.revivals.retain(|at| now < *at + REVIVALS_PERIOD);
        if self.revivals.len() >= REVIVALS_MAX {
            return None;
        }
        self.revivals.push(now);
        // Whatever it met has hardly passed yet, and the tries are few.
        self.reopen_at = self.reopen_at.max(now + DISK_RETRY);
        Some(Shortage::Unknown)
    }

    /// Looks at the free space now and then, and brings the store back once what it met has passed.
    fn look_at_disk(&mut self, now: Duration) {
        if self.disk_looked_at.is_some_and(|at| now < at + DISK_LOOK) {
            return;
        }
        self.disk_looked_at = Some(now);
        if matches!(self.health.state(), StoreState::Failed { .. }) {
            return self.read_again(now);
        }
        let room = self.engine.room();
        // The engine's background may have met the full disk after the last write was refused, and nobody has noticed yet.
        if room == Room::Enough
            && self.stopped_by.is_none()
            && self.health.state() == StoreState::DiskFull
            && self.engine.check().is_err()
        {
            self.stopped_by = Some(Shortage::Disk);
        }
        match (self.stopped_by, room) {
            (None, Room::Enough) if !self.is_on_reserve => {
                if self.health.state() != StoreState::Ok || !self.has_reserve {
                    self.engine.keep_reserve();
                    self.has_reserve = true;
                }
                self.health.set_ok(now);
            }
            (_, Room::Enough) => self.open_again(now),
            // Before a deletion meets the end of the disk.
            (None, Room::Least) if !self.is_on_reserve => self.open_reserve(room, now),
            (None, room) => self.health.set_disk_low(room, now),
            (Some(Shortage::Disk), room) => self.open_reserve(room, now),
            (Some(_), _) => self.open_again(now),
        }
    }

    /// Opens a store again that was stopped by a shortage, if that has passed.
    fn open_again(&mut self, now: Duration) {
        if now < self.reopen_at {
            return;
        }
        self.reopen_at = now + DISK_RETRY;
        // Asked while the store is open still, and can be read.
        if self.engine.check_supplies().is_err() {
            return;
        }
        crash::point(Point::ReopenBefore);
        match self.engine.reopen() {
            Ok(()) => {
                crash::point(Point::ReopenAfter);
                if self.has_opened() {
                    self.is_on_reserve = false;
                    self.engine.keep_reserve();
                    self.health.set_ok(now);
                }
            }
            Err(error) if error.shortage().is_some() => {
                self.stopped_by = error.shortage();
                if let Some(shortage) = self.stopped_by {
                    self.health.set_short(shortage, now);
                }
            }
            Err(error) => self.health.set_failed(&error.to_string()),
        }
    }

    /// Opens a store on a full disk with what is kept for deletions, if it is there still.
    fn open_reserve(&mut self, room: Room, now: Duration) {
        let is_writable = self.stopped_by.is_none();
        if is_writable {
            self.health.set_disk_low(room, now);
        }
        if now < self.reopen_at {
            return;
        }
        self.reopen_at = now + DISK_RETRY;
        crash::point(Point::ReopenBefore);
        match self.engine.open_reserve() {
            Ok(true) => {
                crash::point(Point::ReopenAfter);
                if self.has_opened() {
                    self.is_on_reserve = true;
                    self.health.set_disk_low(self.engine.room(), now);
                }
            }
            Ok(false) => self.read_again(now),
            Err(error) => {
                // Whatever it is, it is looked at again once there is space.
                self.stopped_by = Some(Shortage::Disk);
                self.health.set_short(Shortage::Disk, now);
                tracing::debug!(%error, "a store on a full disk cannot be opened for deletions");
            }
        }
    }

    /// Takes note that the store has been opened again. Whether it can be used.
    fn has_opened(&mut self) -> bool {
        self.stopped_by = None;
        // Whether the write that failed took effect is seen now.
        if let Some(digests) = &self.digests
            && let Err(error) = digests.load(&*self.engine)
        {
            self.health.set_failed(&error.to_string());
            return false;
        }
        crash::point(Point::ReopenCounted);
        self.recent = Recent::starting_at(self.committed.load(Memory::Relaxed) + 1, self.clock.mono());
        // What was confirmed before it was synced is in the store that was opened again, and still not synced.
        true
    }

    /// Opens a store for reading that takes no writes and could not be opened, if it can be by now.
    fn read_again(&mut self, now: Duration) {
        if now < self.read_at {
            return;
        }
        self.read_at = now + READING_RETRY;
        if !matches!(self.engine.check(), Err(EngineError::Closed)) {
            return;
        }
        match self.engine.retire() {
            Ok(()) => tracing::info!("the store that takes no writes can be read again"),
            Err(error) => tracing::debug!(%error, "the store cannot be opened for reading"),
        }
    }
}

/// Why a group was not stored.
enum Refusal {
    Overloaded,
    /// Nothing was tried.
    Short(Shortage),
    /// It was tried: some of it may be on disk.
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

/// An answer with the courier of the thread that asked.
type Addressed = (Option<Arc<Courier>>, Answer);

/// Gives a group's answers, those of one thread together.
fn give_all(answers: Vec<Addressed>) {
    let mut batches: Vec<(Arc<Courier>, Vec<Answer>)> = Vec::new();
    for (courier, answer) in answers {
        let Some(courier) = courier else {
            answer.give();
            continue;
        };
        // As many couriers as network threads: a walk is quicker than a map.
        match batches.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &courier)) {
            Some((_, batch)) => batch.push(answer),
            None => batches.push((courier, vec![answer])),
        }
    }
    for (courier, batch) in batches {
        courier.bring(batch);
    }
}
