//! Ballots: a record is judged and replaced in one step that no other write comes between.
//!
//! A ballot has three uses. A conditional write builds a record because its condition holds. A plain write that met a ballot
//! between its replicas goes on as one without a condition. A read, and repair, that a promise keeps from writing back find
//! out what became of the record, and accept the newest one anew.
//!
//! The decisions are in [`kvorum_core::conditional`]; this file asks the replicas and waits. Conditional writes of one key
//! that meet on a thread share a ballot ([`super::group`]).

use super::calls::{Calls, Cause, Write};
use super::confirm::Unconfirmed;
use super::edit::{Change, Edit, is_live, shown};
use super::{Coordinator, CoordinatorError, Missing};
use crate::canary::{self, Canary};
use crate::cluster::{Era, View};
use crate::peer::{ApplyKind, BallotReply, Held, Request};
use crate::replica::ReplicaError;
use crate::slow;
use bytes::Bytes;
use kvorum_core::condition::{self, ApplyError};
use kvorum_core::conditional::EARLIER_LEN_MAX;
use kvorum_core::configuration::{PerList, Route};
use kvorum_core::{
    AcceptTally, AcceptVerdict, Condition, Conditional, ConditionalOutcome, Fate, Key, Lineage, Next,
    PrepareTally, PrepareVerdict, Prepared, Promise, Quorum, Record, Slot, UnixMillis, Value, Version,
};
use std::num::NonZeroU128;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Ballots that one operation may try. Under rivals a ballot fails when a newer one overtakes it; the pause between two
/// tries grows.
const BALLOTS_MAX: u32 = 64;
/// The share of the request timeout that a ballot waits for further replicas once enough have promised, where they hold
/// different records.
const PATIENCE_SHARE: u32 = 8;
/// The pause after the first ballot that was overtaken: about a round trip. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// What a ballot is to do.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Write, if the condition holds; a plain write has none.
    Write { change: Change, condition: Option<Condition>, operation: Option<NonZeroU128> },
    /// Find the newest record that stays.
    Read,
    /// Accept the newest record anew on all replicas, so that no promise is left above it.
    Recover,
}

impl Purpose {
    /// Whether it can share a ballot: not where its record must show which operation has made it.
    pub(super) fn can_share(&self) -> bool {
        matches!(self, Self::Write { operation: None, .. }) && self.origin().is_none()
    }

    /// The `ETag` of the record that it makes, if that is not its version.
    fn origin(&self) -> Option<Version> {
        match self {
            Self::Write { change, .. } => change.origin(),
            Self::Read | Self::Recover => None,
        }
    }

    fn edit(&self) -> Option<&Edit> {
        match self {
            Self::Write { change, .. } => change.edit(),
            Self::Read | Self::Recover => None,
        }
    }

    /// The time that the operation may take beyond the request timeout.
    fn allowance(&self) -> Duration {
        match self {
            Self::Write { change, .. } => change.allowance(),
            Self::Read | Self::Recover => Duration::ZERO,
        }
    }
}

/// How a ballot ended for an operation.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// The write took effect. `number` is the answer to an edit that has one.
    Done { version: Version, confirmed: u16, number: Option<Bytes> },
    /// Nothing was written: the condition did not hold when it was judged. `current` is the `ETag` that the value had then; none
    /// where there was no value. It may have expired since.
    Failed { current: Option<Version> },
    /// Nothing was to be written; this record is the newest.
    Kept(Option<Record>),
    /// Nothing was written: the edit cannot be done on the newest record.
    Unfit(ApplyError),
}

pub(super) type Outcome = Result<End, CoordinatorError>;

/// At least a majority: any two quorums of a ballot must share a replica.
pub(super) fn majority(quorum: Quorum) -> Quorum {
    let majority = Quorum::majority_of(quorum.from());
    if quorum.ack() >= majority.ack() { quorum } else { majority }
}

impl Coordinator {
    /// Decides a conditional write on a task of its own, so that it goes on if the client goes. Its ballots are above
    /// `above`.
    pub(super) async fn decide_apart(
        self: &Rc<Self>,
        key: Key,
        purpose: Purpose,
        quorum: Quorum,
        above: Version,
    ) -> Outcome {
        // Check the clock after reading it: a clock that is set in between is not trusted either.
        if self.shared.timestamps.stands_down() {
            return Err(self.clock_off());
        }
        let begun = Instant::now();
        let deadline = begun + self.shared.settings.request_timeout + purpose.allowance();
        self.writes.set(self.writes.get() + 1);
        self.shared.background.pace.note_request();
        let (report, outcome) = oneshot::channel();
        let coordinator = Rc::clone(self);
        let deciding = async move {
            let ballot = Ballot { above, ..Ballot::new(&coordinator, key, quorum, begun, deadline) };
            let decided = coordinator.decide(ballot, purpose).await;
            coordinator.count_decided(&decided);
            // The client may have gone.
            let _ = report.send(decided);
            coordinator.writes.set(coordinator.writes.get().saturating_sub(1));
        };
        match slow::current() {
            Some(trace) => drop(tokio::task::spawn_local(slow::within(trace, deciding))),
            None => drop(tokio::task::spawn_local(deciding)),
        }
        outcome.await.unwrap_or(Err(CoordinatorError::Stopped))
    }

    fn count_decided(&self, decided: &Outcome) {
        let metrics = &self.shared.metrics;
        let count = match decided {
            Ok(End::Done { .. }) => &metrics.conditional_done,
            Ok(End::Failed { .. } | End::Kept(_) | End::Unfit(_)) => &metrics.conditional_failed,
            Err(_) => &metrics.conditional_unknown,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a promise that keeps repair from bringing in a record of `key`: its newest record is accepted anew by the
    /// first `from` replicas. If that fails, the next comparison tries again.
    pub(crate) async fn end_promise(self: &Rc<Self>, key: &Key, from: u16) {
        let begun = Instant::now();
        let deadline = begun + self.shared.settings.request_timeout;
        let quorum = Quorum::majority_of(from.min(self.nodes()));
        let mut ballot = Ballot::new(self, key.clone(), quorum, begun, deadline);
        self.shared.metrics.ballots_recovered.fetch_add(1, Ordering::Relaxed);
        let _ = ballot.run(&Purpose::Recover).await;
    }
}

/// An operation that goes on by ballots, or several that share them.
pub(super) struct Ballot {
    pub(super) coordinator: Rc<Coordinator>,
    /// The view of the present try.
    view: Arc<View>,
    pub(super) key: Key,
    pub(super) quorum: Quorum,
    /// The FROM that a record of it is stored with: that of the moment at which it began.
    pub(super) from: u16,
    begun: Instant,
    pub(super) deadline: Instant,
    /// Every later ballot is above this version.
    pub(super) above: Version,
    /// Versions under which the operation's record may have been taken, and when the first of them was sent.
    pub(super) earlier: Vec<Version>,
    pub(super) sent_at: Option<Duration>,
    /// When it was sent first.
    pub(super) sent_in: Option<Era>,
    /// By earlier version, the answers if it took effect.
    pub(super) sent: Vec<(Version, Vec<End>)>,
}

/// Enough promises, with the newest record among them.
pub(super) struct Base {
    pub(super) prepared: Prepared,
    /// The newest record, and the replica that has it.
    pub(super) held: Option<(Slot, Held)>,
}

/// What a ballot's first part has led to.
enum Asked {
    Ready(Base),
    Again,
}

/// The newest record, with its value as far as that is needed.
pub(super) struct Whole(pub(super) Option<(Slot, Held)>);

/// What a ballot's second part has led to.
enum Accepted {
    Taken(u16),
    Again { is_nowhere: bool },
}

impl Ballot {
    pub(super) fn new(
        coordinator: &Rc<Coordinator>,
        key: Key,
        quorum: Quorum,
        begun: Instant,
        deadline: Instant,
    ) -> Self {
        let (above, earlier, sent_at) = (Version::ZERO, Vec::new(), None);
        let (view, coordinator, sent) = (coordinator.view(), Rc::clone(coordinator), Vec::new());
        let from = coordinator.shared.settings.stored_from(quorum, coordinator.shared.cluster.node_count());
        Self {
            coordinator,
            view,
            key,
            quorum,
            from,
            begun,
            deadline,
            above,
            earlier,
            sent_at,
            sent_in: None,
            sent,
        }
    }

    /// A plain write of this quorum that goes on by ballots.
    pub(super) fn of_plain(
        coordinator: &Rc<Coordinator>,
        key: Key,
        quorum: Quorum,
        begun: Instant,
        deadline: Instant,
    ) -> Self {
        Self::new(coordinator, key, majority(quorum), begun, deadline)
    }

    /// Tries ballots until one decides the operation.
    pub(super) async fn run(&mut self, purpose: &Purpose) -> Outcome {
        self.run_all(slice::from_ref(purpose)).await?.pop().ok_or(CoordinatorError::Stopped)
    }

    /// Tries ballots until one decides all of the operations, in their order. Several are writes without a name.
    pub(super) async fn run_all(&mut self, purposes: &[Purpose]) -> Result<Vec<End>, CoordinatorError> {
        let origin = if let [purpose] = purposes { purpose.origin() } else { None };
        for round in 0..BALLOTS_MAX {
            if round > 0 {
                self.pause(round).await;
                self.view = self.coordinator.view();
            }
            match self.coordinator.confirm_epoch(&self.view, self.quorum, self.deadline).await {
                Ok(()) => {}
                Err(Unconfirmed::Moved) => continue,
                Err(Unconfirmed::By(_)) => break,
            }
            self.coordinator.shared.metrics.ballots.fetch_add(1, Ordering::Relaxed);
            let stamping = self.stamps(purposes.len());
            let versions = match tokio::time::timeout_at(self.deadline, stamping).await {
                Ok(Ok(versions)) => versions,
                // The record of an earlier ballot was sent: its outcome is unknown, whatever this error says.
                Ok(Err(error)) if self.earlier.is_empty() => return Err(error),
                Ok(Err(_)) | Err(_) => break,
            };
            let Some(&ballot) = versions.last() else { break };
            // Where nothing is sent under the ballot, its promises have no use.
            let base = match self.prepare(ballot).await {
                Ok(Asked::Ready(base)) => base,
                Ok(Asked::Again) => continue,
                Err(error) => {
                    self.release(ballot);
                    return Err(error);
                }
            };
            let judged = match purposes {
                [purpose] => {
                    self.judge(purpose, ballot, base).await?.map(|(record, end)| (record, vec![end]))
                }
                _ => self.judge_group(purposes, &versions, base).await?,
            };
            let Some((record, ends)) = judged else { continue };
            let Some(record) = record else {
                self.release(ballot);
                return Ok(ends);
            };
            let is_own = record.etag() == origin.unwrap_or(ballot);
            match self.accept(&record).await? {
                Accepted::Taken(confirmed) => {
                    let told = |end| match end {
                        End::Done { version, number, .. } => End::Done { version, confirmed, number },
                        other @ (End::Failed { .. } | End::Kept(_) | End::Unfit(_)) => other,
                    };
                    return Ok(ends.into_iter().map(told).collect());
                }
                Accepted::Again { is_nowhere } => {
                    // A base that is accepted anew is not the operation's own record.
                    if is_own && !is_nowhere {
                        // What is built on it, or accepted anew from it, names its `ETag`.
                        let names = origin.filter(|origin| !self.earlier.contains(origin));
                        let names = [Some(ballot), names];
                        if self.earlier.len() + names.iter().flatten().count() > EARLIER_LEN_MAX {
                            break;
                        }
                        self.earlier.extend(names.into_iter().flatten());
                        self.sent.push((ballot, ends));
                    }
                }
            }
        }
        Err(self.unknown())
    }

    /// Makes so many versions, ascending, above all that this operation has met. The last is the ballot: its promise keeps
    /// out the others, so no other write ever has one of them.
    async fn stamps(&self, count: usize) -> Result<Vec<Version>, CoordinatorError> {
        let mut versions = Vec::with_capacity(count);
        for _ in 0..count {
            versions.push(self.coordinator.shared.stamps.next(self.above).await?);
        }
        Ok(versions)
    }

    /// Takes back the promises of `ballot` in the background. Nobody waits for that, and it need not succeed.
    fn release(&self, ballot: Version) {
        let coordinator = Rc::clone(&self.coordinator);
        let (key, quorum) = (self.key.clone(), self.quorum);
        tokio::task::spawn_local(async move {
            let shared = &coordinator.shared;
            let timeout = shared.settings.request_timeout;
            let mut calls = Calls::new();
            for node in coordinator.view().plan(&key, quorum).route.targets() {
                let (replica, key) = (shared.replica.clone(), key.clone());
                match coordinator.link(node).cloned() {
                    Some(link) => calls.push(node, async move {
                        let _ = link.call(&Request::Release { key, ballot }, timeout).await;
                    }),
                    None if coordinator.is_me(node) => calls.push(node, async move {
                        let _ = replica.release(key, ballot).await;
                    }),
                    None => {}
                }
            }
            while calls.next().await.is_some() {}
        });
    }

    /// Waits a random time before the next ballot, so that rivals get out of each other's way.
    async fn pause(&self, round: u32) {
        let most = PAUSE_MIN.saturating_mul(1 << round.min(16)).min(PAUSE_MAX);
        let mut random = [0; 4];
        self.coordinator.shared.rng.fill(&mut random);
        let share = f64::from(u32::from_be_bytes(random)) / f64::from(u32::MAX);
        let until = Instant::now() + most.mul_f64(share);
        tokio::time::sleep_until(until.min(self.deadline)).await;
    }

    /// Asks all replicas to promise `ballot`, until enough have, or too few can.
    async fn prepare(&mut self, ballot: Version) -> Result<Asked, CoordinatorError> {
        let coordinator = &self.coordinator;
        let shared = &coordinator.shared;
        let view = Arc::clone(&self.view);
        let plan = view.plan(&self.key, self.quorum);
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        let mut calls = Calls::new();
        for node in plan.route.targets() {
            let when = (plan.epoch, timeout);
            let call = coordinator.ask_prepare(node, &self.key, ballot, &self.earlier, when);
            calls.push(node, call);
        }
        let route =
            if canary::is(Canary::PromisesOneList) { Route::single(plan.replicas) } else { plan.route };
        let mut tally = PerList::of_promises(route, self.quorum, &self.earlier);
        if self.sent_in.is_some_and(|era| era != shared.cluster.era(plan.epoch)) {
            tally.sent_earlier();
        }
        let mut held: Vec<(Slot, Held)> = Vec::new();
        let mut missing = Vec::new();
        let patient_until = Instant::now() + shared.settings.request_timeout / PATIENCE_SHARE;
        let mut is_patient = true;
        loop {
            match tally.verdict() {
                PrepareVerdict::Ready(prepared) if prepared.is_uniform || !is_patient || calls.is_empty() => {
                    let version = prepared.base.version;
                    let held = held.into_iter().find(|(_, held)| held.version() == version);
                    return Ok(Asked::Ready(Base { prepared, held }));
                }
                PrepareVerdict::Again { above } => {
                    self.above = self.above.max(above);
                    return Ok(Asked::Again);
                }
                // A base that is accepted anew supersedes everything below the ballot. A record that does not overlap with
                // this quorum may be on the other replicas alone: meet it if they answer soon.
                // Where too few can promise: the error says which replicas did not.
                PrepareVerdict::Ready(_) | PrepareVerdict::Unreachable | PrepareVerdict::Pending => {}
            }
            let is_ready = matches!(tally.verdict(), PrepareVerdict::Ready(_));
            let until = if is_ready { patient_until.min(self.deadline) } else { self.deadline };
            match tokio::time::timeout_at(until, calls.next()).await {
                Err(_) if is_ready => is_patient = false,
                Ok(Some((
                    node,
                    Ok(BallotReply::Promised { held: record, has_held, has_built, memory_millis }),
                ))) => {
                    // What was before this memory may have been anything.
                    let memory = Duration::from_millis(memory_millis.into());
                    let age = self.sent_at.map(|at| shared.clock.mono().saturating_sub(at));
                    let is_forgotten = age.is_some_and(|age| age > memory);
                    let version = record.as_ref().map_or(Version::ZERO, Held::version);
                    let conditional = record.as_ref().and_then(Held::conditional);
                    let lineage = conditional.map_or(Promise::plain(version).lineage, |found| found.lineage);
                    let may_have_held = has_held || is_forgotten;
                    let may_have_built = has_built || is_forgotten;
                    let promise = Promise { version, lineage, may_have_held, may_have_built };
                    tally.count(node, |tally| tally.promised(promise));
                    held.extend(record.map(|record| (node, record)));
                }
                Ok(Some((node, Ok(BallotReply::Denied { by })))) => {
                    tally.count(node, |tally| tally.denied(by));
                }
                Ok(Some((_, Err(cause)))) if cause.is_moved() => return Ok(Asked::Again),
                Ok(Some((node, Err(cause)))) if cause.is_too_early() => {
                    let (key, earlier, when) = (&self.key, &self.earlier, (plan.epoch, self.deadline));
                    calls.push(node, coordinator.ask_prepare_later(node, key, ballot, earlier, when));
                }
                Ok(Some((node, Err(cause)))) => {
                    missing.push((node, cause));
                    tally.count(node, PrepareTally::missing);
                }
                Ok(None) | Err(_) => {
                    missing.extend(calls.nodes().map(|node| (node, Cause::Late)));
                    return Err(self.not_enough(missing, tally.promises(), !self.earlier.is_empty()));
                }
            }
        }
    }

    /// Decides on the base: the record to send under the ballot, if one is to be sent, and how the operation then ends.
    /// None: the base has changed meanwhile, and another ballot is needed.
    async fn judge(
        &self,
        purpose: &Purpose,
        ballot: Version,
        base: Base,
    ) -> Result<Option<(Option<Record>, End)>, CoordinatorError> {
        let Base { mut prepared, held } = base;
        let now = self.coordinator.shared.timestamps.expiry_clock();
        let Some(held) = self.whole_for(purpose, held, now).await? else { return Ok(None) };
        let Whole(held) = held;
        let found = held.as_ref().map(|(_, held)| held);
        let noted = found.and_then(Held::conditional).copied();
        let is_live = found.is_some_and(|held| is_live(held, now));
        let current = is_live.then_some(prepared.base.lineage.origin);
        let edited = purpose.edit().map(|edit| edit.apply_to(found.filter(|_| is_live)));
        let mut unfit = None;
        let holds = match purpose {
            Purpose::Write { condition, operation, .. } => {
                let is_done = noted.is_some_and(|noted| operation.is_some() && noted.operation == *operation);
                if is_done && prepared.fate == Fate::Open {
                    prepared.fate = Fate::TookEffect(prepared.base.lineage.origin);
                }
                let holds = condition.as_ref().is_none_or(|condition| condition.holds(current));
                // A value that cannot be edited is told like a condition that does not hold: it must be one that stays.
                unfit = edited.as_ref().and_then(|edited| edited.as_ref().err().copied()).filter(|_| holds);
                holds && unfit.is_none()
            }
            Purpose::Read | Purpose::Recover => false,
        };
        let next = match prepared.next(holds) {
            Next::End(outcome) if matches!(purpose, Purpose::Recover) => Next::Secure(outcome),
            Next::Secure(outcome) if canary::is(Canary::EarlyRefusal) => Next::End(outcome),
            next => next,
        };
        let outcome = match next {
            Next::Unknown => return Err(self.unknown()),
            Next::Build => {
                let Purpose::Write { change, operation, .. } = purpose else { return Ok(None) };
                let value = edited.and_then(Result::ok);
                let current = found.filter(|_| is_live);
                let record = change.record(ballot, self.from, value.as_ref(), current);
                let Some(record) = record else { return Ok(None) };
                let version = change.origin().unwrap_or(ballot);
                let lineage = Lineage { origin: version, base: prepared.base.lineage.origin };
                let conditional = Conditional { lineage, operation: *operation };
                let record = Record { conditional: Some(Box::new(conditional)), ..record };
                let number = change.edit().zip(value).and_then(|(edit, value)| edit.answer(&value));
                return Ok(Some((Some(record), End::Done { version, confirmed: 0, number })));
            }
            Next::Secure(outcome) | Next::End(outcome) => outcome,
        };
        let is_whole_needed = matches!(next, Next::Secure(_)) || matches!(purpose, Purpose::Read);
        let record = match held {
            Some((_, Held::Whole(record))) => Some(record),
            Some((node, Held::HeaderOnly { version, .. })) if is_whole_needed => {
                match self.fetch(node, version).await? {
                    Some(record) => Some(record),
                    None => return Ok(None),
                }
            }
            // Only its head is needed: an edit of a long value has read it whole.
            Some((_, held)) => Some(shown(held)),
            None => None,
        };
        let end = match (outcome, unfit) {
            (ConditionalOutcome::Done(version), _) => {
                match self.number_of(purpose, version, record.as_ref()) {
                    Ok(number) => End::Done { version, confirmed: self.quorum.ack(), number },
                    Err(error) => End::Unfit(error),
                }
            }
            (ConditionalOutcome::Failed, Some(error)) => End::Unfit(error),
            (ConditionalOutcome::Failed, None) if matches!(purpose, Purpose::Write { .. }) => {
                End::Failed { current }
            }
            (ConditionalOutcome::Failed, None) => End::Kept(record.clone()),
        };
        let secured = match (next, record) {
            (Next::Secure(_), Some(record)) => Some(self.anew(record, ballot)),
            _ => None,
        };
        Ok(Some((secured, end)))
    }

    /// The record `base`, accepted anew under `ballot`.
    pub(super) fn anew(&self, base: Record, ballot: Version) -> Record {
        let lineage = base.lineage();
        let operation = base.conditional.as_ref().and_then(|noted| noted.operation);
        // It becomes a record of this operation too, and may need more copies.
        let from = base.from.max(self.from);
        let conditional = Some(Box::new(Conditional { lineage, operation }));
        Record { version: ballot, from, conditional, ..base }
    }

    /// The answer of an edit that an earlier try has done as `version`.
    ///
    /// # Errors
    /// The name of the operation was used for a write of something else.
    fn number_of(
        &self,
        purpose: &Purpose,
        version: Version,
        record: Option<&Record>,
    ) -> Result<Option<Bytes>, ApplyError> {
        let Some(Edit::Add { .. }) = purpose.edit() else { return Ok(None) };
        // Another write may have been built on it since: the record then shows another number.
        let sent = self.sent.iter().find(|(sent, _)| *sent == version).and_then(|(_, ends)| ends.first());
        if let Some(End::Done { number: Some(number), .. }) = sent {
            return Ok(Some(number.clone()));
        }
        // By its name, the newest record is that of the earlier try. It may have expired since.
        match record.filter(|record| record.etag() == version).map(|record| &record.value) {
            Some(Value::Present(value)) => condition::add(Some(value), 0).map(|_| Some(value.clone())),
            _ => Err(ApplyError::NotANumber),
        }
    }

    /// The newest record as an edit needs it: with its value where the edit depends on that. None: it was overwritten
    /// before its value could be read.
    pub(super) async fn whole_for(
        &self,
        purpose: &Purpose,
        held: Option<(Slot, Held)>,
        now: UnixMillis,
    ) -> Result<Option<Whole>, CoordinatorError> {
        let (node, version) = match &held {
            Some((node, long @ Held::HeaderOnly { version, value_bytes, .. }))
                if is_live(long, now)
                    && purpose.edit().is_some_and(|edit| edit.refuses_long(*value_bytes).is_none()) =>
            {
                (*node, *version)
            }
            _ => return Ok(Some(Whole(held))),
        };
        let record = self.fetch(node, version).await?;
        Ok(record.map(|record| Whole(Some((node, Held::Whole(record))))))
    }

    /// The whole record of `version`, whose value is long; none when it has been overwritten meanwhile.
    pub(super) async fn fetch(
        &self,
        node: Slot,
        version: Version,
    ) -> Result<Option<Record>, CoordinatorError> {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        match self.coordinator.ask_get(node, &self.key, u32::MAX, (self.view.placed_since(), timeout)).await {
            Ok(Some(Held::Whole(record))) if record.version == version => Ok(Some(record)),
            Ok(_) => Ok(None),
            Err(cause) if cause.is_moved() => Ok(None),
            Err(cause) => Err(self.not_enough(vec![(node, cause)], 0, !self.earlier.is_empty())),
        }
    }

    /// Sends a ballot's record to all replicas, until enough have taken it, or too few can.
    async fn accept(&mut self, record: &Record) -> Result<Accepted, CoordinatorError> {
        let shared = &self.coordinator.shared;
        self.sent_at.get_or_insert_with(|| shared.clock.mono());
        let view = Arc::clone(&self.view);
        let plan = view.plan(&self.key, self.quorum);
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        let mut calls = Calls::new();
        for node in plan.route.targets() {
            let when = (plan.epoch, timeout);
            let call = self.coordinator.ask_apply(node, &self.key, record, ApplyKind::Ballot, when);
            calls.push(node, call);
        }
        let era = shared.cluster.era(plan.epoch);
        self.sent_in.get_or_insert(era);
        let route =
            if canary::is(Canary::PromisesOneList) { Route::single(plan.replicas) } else { plan.route };
        let mut tally = PerList::of_ballot(route, self.quorum);
        let (mut failed, mut missing, mut is_sent) = (Vec::new(), Vec::new(), false);
        loop {
            // Another ballot decides.
            if shared.cluster.era(plan.epoch) != era {
                return Ok(Accepted::Again { is_nowhere: false });
            }
            match tally.verdict() {
                AcceptVerdict::Taken => {
                    self.complete(record.clone(), calls, failed);
                    return Ok(Accepted::Taken(tally.accepted()));
                }
                AcceptVerdict::Again { above, is_nowhere } => {
                    self.above = self.above.max(above);
                    return Ok(Accepted::Again { is_nowhere });
                }
                // Wait for the others too: the error says which replicas did not take it.
                AcceptVerdict::Unreachable | AcceptVerdict::Pending => {}
            }
            let answered = tokio::time::timeout_at(self.deadline, calls.next()).await;
            let Ok(Some((node, answer))) = answered else {
                is_sent |= !calls.is_empty() || tally.accepted() > 0 || !self.earlier.is_empty();
                missing.extend(calls.nodes().map(|node| (node, Cause::Late)));
                if canary::is(Canary::HintsBeforeTaken) {
                    self.complete(record.clone(), calls, failed);
                }
                return Err(self.not_enough(missing, tally.accepted(), is_sent));
            };
            let (cause, is_unknown) = match answer {
                Write::Stored => {
                    tally.count(node, AcceptTally::taken);
                    continue;
                }
                Write::Contested(by) | Write::Superseded { by, .. } | Write::TooLate(by) => {
                    tally.count(node, |tally| tally.denied(by));
                    continue;
                }
                Write::Uncounted => {
                    tally.count(node, AcceptTally::unknown);
                    is_sent = true;
                    missing.push((node, Cause::NotVoting));
                    continue;
                }
                // Another ballot decides, among the replicas of now.
                Write::Moved => return Ok(Accepted::Again { is_nowhere: false }),
                Write::Refused(cause) => (cause, false),
                Write::Unknown(cause) => (cause, true),
            };
            tally.count(node, if is_unknown { AcceptTally::unknown } else { AcceptTally::refused });
            is_sent |= is_unknown;
            failed.push(node);
            missing.push((node, cause));
        }
    }

    /// Waits in the background for the replicas that have not answered, and keeps hints for those that failed. Only of a
    /// record that enough replicas have taken: a fence does not stop hints.
    fn complete(&self, record: Record, mut calls: Calls<Write>, mut failed: Vec<Slot>) {
        if calls.is_empty() && failed.is_empty() {
            return;
        }
        let (coordinator, key) = (Rc::clone(&self.coordinator), self.key.clone());
        coordinator.writes.set(coordinator.writes.get() + 1);
        tokio::task::spawn_local(async move {
            while let Some((node, answer)) = calls.next().await {
                if matches!(answer, Write::Refused(_) | Write::Unknown(_) | Write::Moved) {
                    failed.push(node);
                }
            }
            let partition = coordinator.shared.cluster.partition_of(&key);
            for node in failed {
                coordinator.keep_hint(node, partition, &key, &record).await;
            }
            coordinator.writes.set(coordinator.writes.get().saturating_sub(1));
        });
    }

    /// The error of an operation whose outcome cannot be told.
    pub(super) fn unknown(&self) -> CoordinatorError {
        self.not_enough(Vec::new(), 0, true)
    }

    /// The error of an operation that found too few replicas. `is_sent`: a replica may have taken its record.
    fn not_enough(&self, missing: Vec<(Slot, Cause)>, confirmed: u16, is_sent: bool) -> CoordinatorError {
        let shared = &self.coordinator.shared;
        if !is_sent && !missing.is_empty() && missing.iter().all(|(_, cause)| cause.is_disk_full()) {
            return CoordinatorError::Replica(ReplicaError::DiskFull);
        }
        if !is_sent && missing.iter().any(|(_, cause)| cause.is_overload()) {
            return CoordinatorError::Replica(ReplicaError::Overloaded);
        }
        let missing = missing.into_iter().map(|(node, cause)| Missing::of(shared, node, &cause)).collect();
        let waited = self.begun.elapsed();
        CoordinatorError::NotEnoughReplicas { quorum: self.quorum, confirmed, missing, waited }
    }
}
