//! The committer: judges a group of queued writes, stores the winners in one batch, syncs once, answers all.
//!
//! It runs on the commit thread and is the only writer of the store, so merging needs no lock. It is driven with
//! groups and never waits for anything but the engine; the simulation drives the same code.
//!
//! It usually knows the stored version without reading the disk. The requesting side has looked the key up and passes
//! the number of groups committed by then ([`Observed`]). The committer remembers the keys of the latest groups
//! ([`Recent`]). It repeats a look-up that is older than its memory, which takes thousands of writes in between.

use super::answer::{Answer, Applied, Judged};
use super::courier::Courier;
use super::digest::Digests;
use super::floor::{self, FloorStep, Floors};
use super::health::StoreHealth;
use super::promise::{PROMISES_LEN_MAX, Promised, Promises};
use super::queue::{DueRow, Observed, Removal, Request, Source};
use super::recent::Recent;
use super::stage::{Changed, Stage, Staged, mark_of};
use super::{ReplicaError, ReplicaParts, StoreState, stored_mark};
use crate::canary::{self, Canary};
use crate::clock::{Clock, TimestampBound};
use crate::crash::{self, Point};
use crate::log_limit::LogLimit;
use crate::metrics::StoreMetrics;
use crate::storage::format::Mark;
use crate::storage::shortage::Shortage;
use crate::storage::{Batch, Change, Durability, Engine, EngineError, Keyspace, Room, format};
use bytes::Bytes;
use kvorum_core::{Acceptance, Key, KeyState, Partition, Record, UnixMillis, Value, Version};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};
use std::time::Duration;

/// A commit that takes longer than this is logged at debug level, so that it stands beside the engine's lines.
const SLOW_COMMIT: Duration = Duration::from_millis(30);
/// The longest time that a group waits for more requests, however slow the disk.
const GATHER_MAX: Duration = Duration::from_micros(500);
/// How often the free space is checked while writes come in.
const DISK_LOOK: Duration = Duration::from_millis(100);
/// How often the engine is asked whether its background has stopped, while nobody writes.
const IDLE_CHECK: Duration = Duration::from_secs(1);
/// How often a full disk is checked again, and the wait between two tries to open a store that met a shortage.
const DISK_RETRY: Duration = Duration::from_millis(500);
/// The wait between two tries to open a failed store for reading.
const READING_RETRY: Duration = Duration::from_secs(5);
/// How often, within the period below, a store is reopened whose background ended without a known reason: it may have
/// met a shortage that has passed. A lasting cause, such as damage, ends it again at once.
const REVIVALS_MAX: usize = 3;
const REVIVALS_PERIOD: Duration = Duration::from_mins(10);
/// How long a tombstone of a sole replica is kept: longer than a write that was stamped before it can stay queued.
/// A later write is harmless (see [`Committer::floor`]); the wait only saves it a second stamp.
const TOMBSTONE_KEEP_MILLIS: u64 = 10_000;

/// How much later the sweeper looks again at a due row whose record could not be read.
const DUE_AGAIN_MILLIS: u64 = 5_000;

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
    /// Number of groups committed; the requesting side reads it before each look-up.
    committed: Arc<AtomicU64>,
    recent: Recent,
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

    /// Decides what one request adds to the stage, and its answer if the stage is stored.
    fn judge(&mut self, stage: &mut Stage, request: Request) -> Addressed {
        match request {
            Request::Apply { key, record, source, observed, done, courier } => {
                let outcome = self.judge_record(stage, key, record, source, observed);
                (courier, Answer::Apply { outcome, done })
            }
            Request::ApplyMany { records, source, done, courier } => {
                let judge = |(key, record, observed)| {
                    match self.judge_record(stage, key, record, source, observed) {
                        Ok(applied) => Ok(Some(applied)),
                        // A record that cannot be judged does not fail the others.
                        Err(ReplicaError::TooFarAhead(_)) => Ok(None),
                        Err(error) if error.is_damage() => Ok(None),
                        Err(error) => Err(error),
                    }
                };
                let outcome = records.into_iter().map(judge).collect();
                (courier, Answer::ApplyMany { outcome, done })
            }
            Request::Prepare { key, ballot, earlier, observed, done, courier } => {
                let outcome = self.judge_ballot(stage, key, ballot, &earlier, observed);
                (courier, Answer::Prepare { outcome, done })
            }
            Request::Release { key, ballot, done } => {
                if self.promise_of(stage, &key) == (Promised { ballot, is_alone: true }) {
                    stage.promise(key, None);
                }
                (None, Answer::Side { outcome: Ok(()), done })
            }
            Request::Side { changes, is_synced, done } => {
                stage.is_synced |= is_synced;
                for change in changes {
                    stage.side(change);
                }
                (None, Answer::Side { outcome: Ok(()), done })
            }
            Request::SetAside { rows, done } => (None, Answer::Side { outcome: self.set_aside(rows), done }),
            // The reserve of a full disk is for deletions by clients.
            Request::Purge { done, .. } if self.is_on_reserve => {
                (None, Answer::Purge { outcome: Err(ReplicaError::DiskFull), done })
            }
            Request::Purge { rows, done } => {
                let mut purged = 0;
                for row in rows {
                    match self.judge_due(stage, &row) {
                        Ok(true) => purged += 1,
                        Ok(false) => {}
                        Err(error) => {
                            tracing::error!(%error, "cannot decide about an expired record: it stays");
                        }
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

    /// Stages the rows that a step changes. Returns whether the step can be taken.
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
        self.end_promises(stage);
        true
    }

    /// Stages the removal of rows that are unchanged since they were found. Returns how many.
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
            if stage.record(&key).is_known() {
                continue;
            }
            // By now the clock may have reached its timestamp.
            if which == Removal::TooFarAhead && self.timestamps.check(version.clock()).is_ok() {
                continue;
            }
            // Compare with the index, which is written with the record: this also removes a record that cannot be read
            // any more.
            let row = format::encode_token_key(partition, key.as_ref());
            let Some(mark) = self.engine.get(Keyspace::Tokens, &row)? else { continue };
            let mark = format::decode_mark(&mark)?;
            let is_as_found = mark.version == version && (which != Removal::Purged || mark.is_tombstone);
            if !is_as_found || !floors.lets_go(partition, &mark, which) {
                continue;
            }
            // A late write request for this version is answered as stored: it took effect.
            stage.overwritten.push(version);
            stage.set(key, None, Some(mark));
            removed += 1;
        }
        Ok(removed)
    }

    /// Whether the floor lets the row of an expired or deleted record go.
    fn lets_go(&self, key: &Key, mark: &format::Mark) -> bool {
        let (Some(floors), Some(digests)) = (&self.floors, &self.digests) else { return false };
        floors.lets_go(digests.partition_of(key), mark, Removal::Purged)
    }

    /// The answer to a record that comes too late for its partition; `None` when it may change the store.
    fn barred(&self, key: &Key, record: &Record, holds_nothing: bool, source: Source) -> Option<Applied> {
        let (floors, digests) = (self.floors.as_ref()?, self.digests.as_ref()?);
        if !floors.may_bar(record.version.clock()) {
            return None;
        }
        let has_expired = record.expires.is_some_and(|at| self.timestamps.has_surely_passed(at));
        let is_dead = record.value == Value::Tombstone || has_expired;
        floors.judge(digests.partition_of(key), record, source, holds_nothing, is_dead)
    }

    /// Ends the promises that partitions have settled past: only repair brings in older records there, and all nodes held
    /// the same of those.
    fn end_promises(&self, stage: &mut Stage) {
        let (Some(digests), false) = (&self.digests, stage.floors.is_empty()) else { return };
        let is_over = |key: &Key, ballot: Version| {
            let floor = stage.floors.get(&digests.partition_of(key).0);
            floor.is_some_and(|floor| ballot.clock() <= floor.settled)
        };
        for key in self.promises.over(is_over) {
            // A ballot of this group may have a newer promise.
            if !stage.promises.contains_key(&key) {
                stage.promise(key, None);
            }
        }
    }

    /// What decides which versions of `key` may come in, if `stored` is stored.
    fn key_state(&self, stage: &Stage, key: &Key, stored: Option<Mark>) -> KeyState {
        let barred = self.floors.as_ref().zip(self.digests.as_ref());
        let barred =
            barred.map_or(Version::ZERO, |(floors, digests)| floors.barred_upto(digests.partition_of(key)));
        KeyState {
            stored: stored.map_or(Version::ZERO, |stored| stored.version),
            promised: self.promised(stage, key),
            fenced: self.promises.fence(),
            barred: barred.max(self.floor),
        }
    }

    fn promised(&self, stage: &Stage, key: &Key) -> Version {
        self.promise_of(stage, key).ballot
    }

    fn promise_of(&self, stage: &Stage, key: &Key) -> Promised {
        match stage.promises.get(key) {
            Some(staged) => staged.unwrap_or(Promised::NONE),
            None => self.promises.promised(key),
        }
    }

    /// Stages the promise of a ballot, if nothing that is known forbids it.
    fn judge_ballot(
        &mut self,
        stage: &mut Stage,
        key: Key,
        ballot: Version,
        earlier: &[Version],
        observed: Observed,
    ) -> Result<Judged, ReplicaError> {
        if self.health.state() == StoreState::DiskFull {
            return Err(ReplicaError::DiskFull);
        }
        let mark = self.view(stage, &key, observed)?;
        let known = self.key_state(stage, &key, mark);
        if let Err(by) = known.promise(ballot) {
            self.timestamps.check(by.clock())?;
            return Ok(Judged::Denied { by });
        }
        if known.promised == Version::ZERO && self.promises.len() + stage.promises.len() >= PROMISES_LEN_MAX {
            return Err(ReplicaError::Overloaded);
        }
        if let Some(bound) = self.promises.meet(&key, ballot) {
            stage.note_ballots(bound);
        }
        let has_held = |version: &Version| {
            *version == known.stored || stage.has_accepted(*version) || self.recent.has_accepted(*version)
        };
        let has_built = |version: &Version| stage.built.contains(version) || self.recent.has_built(*version);
        let (has_held, has_built) = (earlier.iter().any(has_held), earlier.iter().any(has_built));
        let promised = Promised { ballot, is_alone: known.promised == Version::ZERO };
        if canary::is(Canary::PromiseUnsynced) {
            stage.promises.insert(key, Some(promised));
        } else {
            stage.promise(key, Some(promised));
        }
        stage.is_synced = true;
        Ok(Judged::Promised { mark, has_held, has_built, memory_millis: self.memory_millis() })
    }

    /// How far back it is remembered which versions were the newest.
    fn memory_millis(&self) -> u32 {
        let memory = self.clock.mono().saturating_sub(self.recent.remembers_since());
        u32::try_from(memory.as_millis()).unwrap_or(u32::MAX)
    }

    /// Stages `record`, which `before` does not keep out. It ends a promise that it reaches.
    fn put(&self, stage: &mut Stage, key: Key, record: Record, before: Option<Mark>) {
        let promised = self.promised(stage, &key);
        if promised > Version::ZERO && record.version >= promised {
            stage.promise(key.clone(), None);
        }
        if record.conditional.is_some() {
            let lineage = record.lineage();
            stage.built.push(lineage.base);
            if lineage.origin != record.version {
                stage.built.push(lineage.origin);
            }
            if let Some(bound) = self.promises.meet(&key, record.version) {
                stage.note_ballots(bound);
            }
        }
        stage.put(key, record, before);
    }

    /// The answer to a record that a promise, or for a ballot's record a fence, keeps out.
    fn contested(
        &self,
        stage: &Stage,
        key: &Key,
        record: &Record,
        stored: Option<Mark>,
        source: Source,
    ) -> Option<Applied> {
        let is_free = match source {
            Source::Writer => canary::is(Canary::WritesIgnorePromises),
            Source::Copy => canary::is(Canary::HintsIgnorePromises),
            Source::Reader => canary::is(Canary::WriteBacksIgnorePromises),
            Source::Repair { .. } => canary::is(Canary::RepairIgnoresPromises),
            Source::Ballot => canary::is(Canary::AcceptUnchecked),
        };
        if is_free {
            return None;
        }
        if source != Source::Ballot {
            let by = self.promised(stage, key);
            return (record.version < by).then_some(Applied::Contested { by });
        }
        match self.key_state(stage, key, stored).accept(record.version) {
            Acceptance::Denied { by } => Some(Applied::Contested { by }),
            Acceptance::Store | Acceptance::Same => None,
        }
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
            // The record was queued before the reserve was opened.
            self.health.admit(&record, source)?;
        }
        let stored = self.view(stage, &key, observed)?;
        // A record that was once the newest here took effect here, whatever was written since: see `Recent`.
        // While a store is refilled, it takes what a promise that it has lost would have kept out: behind a fence that does
        // not count.
        let has_accepted = || {
            matches!(source, Source::Writer | Source::Ballot)
                && record.version > self.promises.fence()
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
            if let Some(answer) = self.contested(stage, &key, &record, None, source) {
                return self.believed(answer);
            }
            self.put(stage, key, record, None);
            return Ok(Applied::Stored);
        };
        match record.version.cmp(&stored.version) {
            Ordering::Less if has_accepted() => {}
            Ordering::Less => {
                if let (Source::Ballot, Some(answer)) =
                    (source, self.contested(stage, &key, &record, Some(stored), source))
                {
                    return self.believed(answer);
                }
                let by = stored.version;
                // A ballot may have found this record elsewhere, and gone on from it.
                let may_be_built_on = source == Source::Writer
                    && self.promises.is_contested(&key, record.version)
                    && !canary::is(Canary::SupersededByBallot);
                return self.believed(if may_be_built_on {
                    Applied::Contested { by }
                } else {
                    Applied::Superseded { by, memory_millis: self.memory_millis() }
                });
            }
            Ordering::Greater => {
                if let Some(answer) = self.barred(&key, &record, false, source) {
                    return self.believed(answer);
                }
                if let Some(answer) = self.contested(stage, &key, &record, Some(stored), source) {
                    return self.believed(answer);
                }
                stage.overwritten.push(stored.version);
                self.put(stage, key, record, Some(stored));
            }
            // Nearly always the same record once more; if not, the written rule for ties decides.
            Ordering::Equal => {
                let read = || match self.engine.get(Keyspace::Records, key.as_ref()) {
                    Ok(row) => Ok::<_, ReplicaError>(row.map(|row| format::decode_record(&row)).transpose()?),
                    // The same record from a replica that can read it replaces the damaged one.
                    Err(EngineError::Corrupt { .. }) => Ok(None),
                    Err(error) => Err(error.into()),
                };
                let current = stage.record(&key).map(Record::clone).or_find(read)?;
                // The tombstone of an expired value counts as equal to the value.
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

    /// The mark of `key` as the group sees it: what it stages, else what the latest groups left, else what `observed` found
    /// before them, else the store.
    fn view(&self, stage: &Stage, key: &Key, observed: Observed) -> Result<Option<Mark>, ReplicaError> {
        let known = stage.record(key).map(mark_of).or_else(|| self.recent.mark(key));
        known.or_find(|| {
            if self.recent.covers(observed.as_of) {
                return Ok(observed.mark);
            }
            stored_mark(&*self.engine, self.digests.as_deref(), key)
        })
    }

    /// Returns `applied`, or an error if the superseding version is from the future: nobody may stamp above that.
    fn believed(&self, applied: Applied) -> Result<Applied, ReplicaError> {
        if let Applied::Superseded { by, .. } | Applied::TooLate { upto: by } | Applied::Contested { by } =
            applied
        {
            self.timestamps.check(by.clock())?;
        }
        Ok(applied)
    }

    /// Stages the end of a record that is due. Returns whether this frees space.
    fn judge_due(&mut self, stage: &mut Stage, row: &DueRow) -> Result<bool, ReplicaError> {
        stage.due.insert(format::encode_due_key(row.at, &row.key), None);
        let Ok(key) = Key::new(row.key.clone()) else { return Ok(false) };
        if stage.record(&key).is_known() {
            return Ok(false);
        }
        let current = match self.engine.get(Keyspace::Records, &row.key) {
            Ok(Some(current)) => format::decode_record(&current)?,
            Ok(None) => return Ok(false),
            // The record that repairs it brings a due row of its own.
            Err(error @ EngineError::Corrupt { .. }) => return Err(error.into()),
            Err(error) => {
                // A key that is written often has many due rows: the newest of them belongs to its record.
                let later = self.clock.wall().saturating_add(DUE_AGAIN_MILLIS);
                let version = Some(format::encode_version(row.version));
                let staged = stage.due.entry(format::encode_due_key(later, &row.key)).or_default();
                *staged = version.max(staged.take());
                return Err(error.into());
            }
        };
        // The record was overwritten since: the newer one has its own due row if it needs one.
        if current.version != row.version {
            return Ok(false);
        }
        let mark = Some(mark_of(&current));
        match (self.purge, &current.value) {
            (Purge::Sole, _) => {
                self.floor = self.floor.max(current.version);
                stage.set(key, None, mark);
            }
            // A value is hidden by one clock, but destroyed only once it has expired by all clocks that can be right.
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

    /// Takes the requests to set the store aside out of `group` and executes them first: the new store judges the rest.
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

    /// Sets the store aside and replaces it with an empty one of the same identity. The new store is known to lack the
    /// old store's records, so no other node has to report the loss.
    ///
    /// The readable `meta` rows are carried over; `known` has those that the node knows without reading them. A failed
    /// attempt may be repeated: the old store's rows are kept in memory until the new one has them.
    fn set_aside(&mut self, known: Vec<(&'static [u8], Bytes)>) -> Result<(), ReplicaError> {
        let mut rows: BTreeMap<Bytes, Bytes> =
            known.into_iter().map(|(key, value)| (Bytes::from_static(key), value)).collect();
        rows.append(&mut self.carried);
        match self.engine.scan(Keyspace::Meta, b"", std::ops::Bound::Unbounded) {
            Ok(scan) => rows.extend(scan.filter_map(Result::ok)),
            Err(error) => {
                tracing::warn!(%error, "the store's metadata cannot be read: this node goes on with the metadata in \
                                        memory");
            }
        }
        // A promise would keep out records that the old store had before it gave the promise. The fence stands for it.
        rows.retain(|row, _| !row.starts_with(format::META_PROMISE));
        rows.insert(Bytes::from_static(format::META_VOTES), Bytes::from_static(&[format::VOTES_NO]));
        // The new store has confirmed nothing, so it belongs to no set of nodes before it has been refilled.
        rows.remove(format::META_TOPOLOGY);
        if let Err(error) = self.begin_with(&rows) {
            self.carried = rows;
            self.health.set_failed(&error.to_string());
            return Err(error.into());
        }
        // Look-ups made before this group saw the old store.
        let group = self.committed.load(Memory::Relaxed) + 1;
        self.committed.store(group, Memory::Release);
        self.recent = Recent::starting_at(group + 1, self.clock.mono());
        self.promises.clear();
        (self.unsynced_since, self.stopped_by, self.is_on_reserve) = (None, None, false);
        self.health.revive();
        Ok(())
    }

    /// Replaces the store with an empty one that has `rows`.
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

    /// Handles a failed write. A shortage passes; any other failure is final until the node is restarted.
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
                    Shortage::Disk => "a write found the disk full",
                    _ => "a write found too few resources",
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
            tracing::error!(%error, "the failed store cannot be opened for reading either: this node tries again \
                                     every 5 s");
        }
        Refusal::Failed(error.to_string())
    }

    /// The shortage that stopped the engine's background, as far as can be told; `None` when it counts as a failure.
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
        // The cause has hardly passed yet, and the tries are few: wait first.
        self.reopen_at = self.reopen_at.max(now + DISK_RETRY);
        Some(Shortage::Unknown)
    }

    /// Checks the free space from time to time, and reopens the store once the shortage that it met has passed.
    fn look_at_disk(&mut self, now: Duration) {
        if self.disk_looked_at.is_some_and(|at| now < at + DISK_LOOK) {
            return;
        }
        self.disk_looked_at = Some(now);
        if matches!(self.health.state(), StoreState::Failed { .. }) {
            return self.read_again(now);
        }
        let room = self.engine.room();
        // The engine's background may have met the full disk after the last refused write; no write has shown it since.
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
            // Open the reserve before a deletion meets the end of the disk.
            (None, Room::Least) if !self.is_on_reserve => self.open_reserve(room, now),
            (None, room) => self.health.set_disk_low(room, now),
            (Some(Shortage::Disk), room) => self.open_reserve(room, now),
            (Some(_), _) => self.open_again(now),
        }
    }

    /// Reopens a store that a shortage stopped, if the shortage has passed.
    fn open_again(&mut self, now: Duration) {
        if now < self.reopen_at {
            return;
        }
        self.reopen_at = now + DISK_RETRY;
        // Check while the store is still open and readable.
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

    /// Reopens a store on a full disk with the reserve for deletions, if the reserve is still there.
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
                // Any error is treated as a full disk, so that opening is tried again.
                self.stopped_by = Some(Shortage::Disk);
                self.health.set_short(Shortage::Disk, now);
                tracing::debug!(%error, "a store on a full disk cannot be opened for deletions");
            }
        }
    }

    /// Updates the committer's state after the store was reopened. Returns whether the store can be used.
    fn has_opened(&mut self) -> bool {
        self.stopped_by = None;
        // Now it shows whether the failed write took effect: recount the digests.
        if let Some(digests) = &self.digests
            && let Err(error) = digests.load(&*self.engine)
        {
            self.health.set_failed(&error.to_string());
            return false;
        }
        crash::point(Point::ReopenCounted);
        self.recent = Recent::starting_at(self.committed.load(Memory::Relaxed) + 1, self.clock.mono());
        // Keep `unsynced_since`: writes confirmed before the reopening are in the store but still not synced.
        true
    }

    /// Opens for reading a store that takes no writes and is closed, if that works by now.
    fn read_again(&mut self, now: Duration) {
        if now < self.read_at {
            return;
        }
        self.read_at = now + READING_RETRY;
        if !matches!(self.engine.check(), Err(EngineError::Closed)) {
            return;
        }
        match self.engine.retire() {
            Ok(()) => {
                tracing::info!("the failed store can be read again; it takes no writes until a restart");
            }
            Err(error) => tracing::debug!(%error, "the store cannot be opened for reading"),
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

/// An answer with the courier of the thread that asked.
type Addressed = (Option<Arc<Courier>>, Answer);

/// Sends a group's answers, bundled by the thread that asked.
fn give_all(answers: Vec<Addressed>) {
    let mut batches: Vec<(Arc<Courier>, Vec<Answer>)> = Vec::new();
    for (courier, answer) in answers {
        let Some(courier) = courier else {
            answer.give();
            continue;
        };
        // There are only as many couriers as network threads: a linear search is quicker than a map.
        match batches.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &courier)) {
            Some((_, batch)) => batch.push(answer),
            None => batches.push((courier, vec![answer])),
        }
    }
    for (courier, batch) in batches {
        courier.bring(batch);
    }
}
