//! The judgement of a request: what it adds to its group, and how it is answered if the group is stored.

use super::{Addressed, Committer, Purge};
use crate::canary::{self, Canary};
use crate::replica::answer::{Answer, Applied, Judged};
use crate::replica::floor::{self, FloorStep};
use crate::replica::promise::{PROMISES_LEN_MAX, Promised};
use crate::replica::queue::{DueRow, Observed, Removal, Request, Source};
use crate::replica::stage::{Stage, mark_of};
use crate::replica::{ReplicaError, StoreState, stored_mark};
use crate::storage::format::Mark;
use crate::storage::{EngineError, Keyspace, format};
use kvorum_core::{Acceptance, Key, KeyState, Partition, Record, Value, Version};
use std::cmp::Ordering;
use std::sync::atomic::Ordering as Memory;

/// How much later the sweeper looks again at a due row whose record could not be read.
const DUE_AGAIN_MILLIS: u64 = 5_000;

impl Committer {
    /// Decides what one request adds to the stage, and its answer if the stage is stored.
    pub(super) fn judge(&mut self, stage: &mut Stage, request: Request) -> Addressed {
        match request {
            Request::Apply { key, record, source, observed, done, completions, times: _ } => {
                let outcome = self.judge_record(stage, key, record, source, observed);
                (completions, Answer::Apply { outcome, done })
            }
            Request::ApplyMany { records, source, done, completions } => {
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
                (completions, Answer::ApplyMany { outcome, done })
            }
            Request::Prepare { key, ballot, earlier, observed, done, completions, times: _ } => {
                let outcome = self.judge_ballot(stage, key, ballot, &earlier, observed);
                (completions, Answer::Prepare { outcome, done })
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
            Request::Cut { step, done } => (None, Answer::Cut { outcome: Ok(self.has_cut(step)), done }),
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

    /// Ends the promises that partitions have agreed past: only repair brings in older records there, and all nodes held
    /// the same of those.
    fn end_promises(&self, stage: &mut Stage) {
        let (Some(digests), false) = (&self.digests, stage.floors.is_empty()) else { return };
        let is_over = |key: &Key, ballot: Version| {
            let floor = stage.floors.get(&digests.partition_of(key).0);
            floor.is_some_and(|floor| ballot.clock() <= floor.agreed)
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
            barred: barred.max(self.floor).max(self.cuts.closed()),
        }
    }

    pub(super) fn promised(&self, stage: &Stage, key: &Key) -> Version {
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
        if let Some(answer) = self.cut_off(stage, &key, &record, stored, has_accepted(), source) {
            return self.believed(answer);
        }
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
}
