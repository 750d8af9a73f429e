//! Writes: one stamp, all replicas at once, the answer when enough of them confirm it, hints for those that failed.
//!
//! The rules for a safe stamp without asking first, and for stamping a write again, are in [`kvorum_core::write`].
//!
//! A write runs as its own task, so that it is completed, and hints are kept, even if the client goes away.

use super::ballot::{Ballot, End, Purpose};
use super::calls::{Calls, Cause, Write};
use super::confirm::Unconfirmed;
use super::edit::Change;
use super::{Coordinator, CoordinatorError, Fanout, Missing, Mutation, Written};
use crate::canary::{self, Canary};
use crate::clock::ClockStanding;
use crate::cluster::{Era, Plan, View};
use crate::peer::{ApplyKind, LinkState};
use crate::replica::ReplicaError;
use crate::slow;
use kvorum_core::configuration::PerList;
use kvorum_core::{
    Key, Partition, Quorum, Record, Slot, Stamp, Tally, UnixMillis, Verdict, Version, WriteTally,
    WriteVerdict,
};
use kvorum_profiler::waits::{Since, Wait};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Stamps that one write may need. The second is above all that a quorum held, and a newer record then confirms it. A
/// further stamp is needed only if a tombstone GC watermark passes the write meanwhile.
const STAMPS_MAX: usize = 4;

type Outcome = Result<Written, CoordinatorError>;

impl Coordinator {
    /// Writes `mutation` to the replicas of `key` and returns the version of its record.
    ///
    /// Returns once `quorum.ack` replicas durably hold the record, or a newer one that was not acknowledged before this
    /// write began. The other replicas are written in the background; those that fail get a hint.
    ///
    /// # Errors
    /// [`CoordinatorError::NotEnoughReplicas`] leaves the write of unknown outcome, as does a failure in the replica
    /// other than a refusal.
    ///
    /// # Cancel safety
    /// A write that has begun goes on when the future is dropped; its outcome is then unknown.
    pub async fn write(self: &Rc<Self>, key: Key, mutation: Mutation, quorum: Quorum) -> Outcome {
        let expires = mutation.expires(self.shared.clock.wall());
        // Check the clock after reading it: a clock that is set in between is not trusted either.
        if self.shared.timestamps.stands_down() {
            return Err(self.clock_off());
        }
        let (report, outcome) = oneshot::channel();
        let (view, me) = (self.view(), self.shared.cluster.me());
        let is_local = view.plan(&key, quorum).route.targets().eq([me]);
        self.writes.set(self.writes.get() + 1);
        self.shared.background.pace.note_request();
        let begun = Instant::now();
        let (coordinator, report) = (Rc::clone(self), Some(report));
        let above = Version::ZERO;
        let writing = Writing {
            coordinator,
            view,
            key,
            mutation,
            expires,
            above,
            quorum,
            from: self.shared.settings.stored_from(quorum, self.shared.cluster.node_count()),
            begun,
            sent_in: None,
            report,
        };
        if is_local {
            // A queued record is applied even if no caller waits for it, so a task would protect nothing.
            writing.run().await;
        } else if let Some(trace) = slow::current() {
            tokio::task::spawn_local(slow::within(trace, writing.run()));
        } else {
            tokio::task::spawn_local(writing.run());
        }
        outcome.await.unwrap_or(Err(CoordinatorError::Stopped))
    }
}

impl Coordinator {
    pub(super) fn clock_off(&self) -> CoordinatorError {
        CoordinatorError::ClockOff { limit_millis: self.shared.timestamps.limit_millis() }
    }

    /// After a start, waits until this node's clock has been compared with another node's, as long as one may be
    /// reached. A node that reaches no other goes by its own clock: no other node could say that it is wrong.
    ///
    /// # Errors
    /// [`CoordinatorError::ClockOff`] when another node may be reached and no comparison was made before `deadline`.
    pub(super) async fn clock_asked(&self, deadline: Instant) -> Result<(), CoordinatorError> {
        let is_open =
            || self.shared.timestamps.standing() == ClockStanding::Unasked && self.may_reach_a_node();
        if !is_open() {
            return Ok(());
        }
        let decided = self.shared.cluster.until(|| !is_open());
        tokio::time::timeout_at(deadline, decided).await.map_err(|_| self.clock_off())
    }

    fn may_reach_a_node(&self) -> bool {
        self.links().any(|link| !matches!(link.state(), LinkState::Down { .. }))
    }
}

/// A write under way.
struct Writing {
    coordinator: Rc<Coordinator>,
    /// The view that it is planned in: another one, once keys are placed otherwise.
    view: Arc<View>,
    key: Key,
    mutation: Mutation,
    /// The same for every stamp of the write.
    expires: Option<UnixMillis>,
    /// The newest version that a replica said it holds: every later stamp is above it.
    above: Version,
    quorum: Quorum,
    /// The FROM that its record is stored with: that of the moment at which it began, however many nodes there are later.
    from: u16,
    begun: Instant,
    /// When its record was first sent.
    sent_in: Option<Era>,
    report: Option<oneshot::Sender<Outcome>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let writes = &self.coordinator.writes;
        writes.set(writes.get().saturating_sub(1));
    }
}

/// The outcome of one stamp.
enum Round {
    Reached(Unanswered),
    StampAgain,
    /// A ballot came between the replicas: the write goes on by ballots. Its first record was sent at this time.
    Ballot {
        sent_at: Duration,
    },
    NotEnough(Unanswered),
    /// Keys are placed otherwise since it began, or a member has lost its store: the same record goes to the replicas of now.
    Moved,
}

/// Replicas that have not answered yet, and those that failed.
struct Unanswered {
    record: Record,
    calls: Calls<Write>,
    failed: Vec<Slot>,
    unasked: Vec<Slot>,
    missing: Vec<(Slot, Cause)>,
    confirmed: u16,
    is_sent: bool,
}

impl Unanswered {
    /// Notes a replica's answer.
    fn note(&mut self, node: Slot, answer: Write) {
        let (cause, is_sent) = match answer {
            Write::Stored | Write::Superseded { .. } | Write::TooLate(_) | Write::Contested(_) => {
                self.is_sent = true;
                return;
            }
            Write::Uncounted => {
                self.is_sent = true;
                self.missing.push((node, Cause::NotVoting));
                return;
            }
            Write::Moved => (Cause::Moved, true),
            Write::Refused(cause) => (cause, false),
            Write::Unknown(cause) => (cause, true),
        };
        self.is_sent |= is_sent;
        self.failed.push(node);
        self.missing.push((node, cause));
    }
}

impl Writing {
    async fn run(mut self) {
        let deadline =
            self.begun + self.coordinator.shared.settings.request_timeout + self.mutation.allowance();
        if let Err(error) = slow::step("clock", None, self.coordinator.clock_asked(deadline)).await {
            return self.report(Err(error));
        }
        while let Err(unconfirmed) = self.coordinator.confirm_epoch(&self.view, self.quorum, deadline).await {
            match unconfirmed {
                Unconfirmed::Moved => self.view = self.coordinator.view(),
                Unconfirmed::By(missing) => {
                    let error = self.not_enough(missing, std::iter::empty(), 0, false);
                    return self.report(Err(error));
                }
            }
        }
        let mut stamp = self.first_stamp();
        if stamp == Stamp::Asked
            && let Err(error) = self.ask_first(deadline).await
        {
            return self.report(Err(error));
        }
        for round in 0..STAMPS_MAX {
            let stamping = self.coordinator.shared.stamps.next(self.above);
            let version = match slow::step("stamp", None, tokio::time::timeout_at(deadline, stamping)).await {
                Ok(Ok(version)) => version,
                Ok(Err(error)) if round == 0 => return self.report(Err(error)),
                // The record of an earlier stamp was sent: its outcome is unknown, whatever this error says.
                Ok(Err(_)) | Err(_) => break,
            };
            let (since, sent_at) = (Since::now(), self.coordinator.shared.clock.mono());
            let mut round = self.round((version, stamp), sent_at, deadline).await;
            while matches!(round, Round::Moved) {
                self.view = self.coordinator.view();
                round = self.round((version, stamp), sent_at, deadline).await;
            }
            since.end(Wait::WriteReplicas);
            match round {
                // Those were repeated.
                Round::Moved => break,
                Round::StampAgain => {
                    self.coordinator.shared.metrics.restamped.fetch_add(1, Ordering::Relaxed);
                    // The replicas' answers carry the versions that they hold, so asking them again would show nothing
                    // new.
                    stamp = Stamp::Asked;
                }
                Round::Ballot { sent_at } => return self.go_on_by_ballots(version, sent_at, deadline).await,
                Round::Reached(rest) => {
                    self.report(Ok(Written { version, confirmed: rest.confirmed }));
                    return self.complete(rest).await;
                }
                Round::NotEnough(mut rest) => {
                    let missing = std::mem::take(&mut rest.missing);
                    let error = self.not_enough(missing, rest.calls.nodes(), rest.confirmed, rest.is_sent);
                    self.report(Err(error));
                    return self.complete(rest).await;
                }
            }
        }
        let error = self.not_enough(Vec::new(), std::iter::empty(), 0, true);
        self.report(Err(error));
    }

    /// Goes on as a write without a condition, which names the version under which its record was sent.
    async fn go_on_by_ballots(mut self, sent: Version, sent_at: Duration, deadline: Instant) {
        let coordinator = Rc::clone(&self.coordinator);
        coordinator.shared.metrics.ballots_of_plain.fetch_add(1, Ordering::Relaxed);
        let mut ballot = Ballot::of_plain(&coordinator, self.key.clone(), self.quorum, self.begun, deadline);
        (ballot.above, ballot.earlier, ballot.sent_at) = (self.above, vec![sent], Some(sent_at));
        (ballot.sent_in, ballot.from) = (self.sent_in, self.from);
        let change = Change::Set { mutation: self.mutation.clone(), expires: self.expires };
        let purpose = Purpose::Write { change, condition: None, operation: None };
        let outcome = match ballot.run(&purpose).await {
            Ok(End::Done { version, confirmed, .. }) => Ok(Written { version, confirmed }),
            // A write without a condition does not fail; if it did, its first record would still be of unknown outcome.
            Ok(End::Failed { .. } | End::Kept(_) | End::Unfit(_)) => {
                Err(self.not_enough(Vec::new(), std::iter::empty(), 0, true))
            }
            Err(error) => Err(error),
        };
        self.report(outcome);
    }

    fn first_stamp(&self) -> Stamp {
        let coordinator = &self.coordinator;
        let plan = self.view.plan(&self.key, self.quorum);
        let all_answer = plan.route.targets().all(|node| coordinator.counts(node));
        if canary::is(Canary::RestampByOwnAck) || canary::is(Canary::SupersededUnasked) {
            return Stamp::Unasked;
        }
        Stamp::first_on(plan.route, self.quorum, all_answer)
    }

    /// Whether its record was sent in an era before: a replica may have it.
    fn was_sent(&self) -> bool {
        let now = self.coordinator.shared.cluster.era(self.view.placed_since());
        self.sent_in.is_some_and(|era| era != now)
    }

    fn tally<'r>(&self, plan: &Plan<'r>, stamp: Stamp) -> PerList<'r, WriteTally> {
        if canary::is(Canary::RestampByOwnAck) {
            let tally = WriteTally::with_visible_from(self.quorum, Stamp::Unasked, self.quorum.ack());
            return PerList::new(plan.route, tally);
        }
        let stamp = if canary::is(Canary::SupersededUnasked) { Stamp::Asked } else { stamp };
        let mut tally = PerList::of_write(plan.route, self.quorum, stamp);
        if self.was_sent() {
            tally.sent_earlier();
        }
        tally
    }

    /// Asks the replicas which version this write must exceed.
    ///
    /// # Errors
    /// As for [`Self::ask_newest`].
    async fn ask_first(&mut self, deadline: Instant) -> Result<(), CoordinatorError> {
        while !self.ask_newest(deadline).await? {
            self.view = self.coordinator.view();
        }
        Ok(())
    }

    /// Asks the replicas which version this write must exceed, until `ack` have answered: every later stamp exceeds it.
    /// Returns false if keys are placed otherwise meanwhile: then the replicas of now are to be asked.
    ///
    /// # Errors
    /// [`CoordinatorError::NotEnoughReplicas`] when fewer answer before `deadline`. Nothing was written.
    async fn ask_newest(&mut self, deadline: Instant) -> Result<bool, CoordinatorError> {
        let shared = &self.coordinator.shared;
        shared.metrics.asked_first.fetch_add(1, Ordering::Relaxed);
        let view = Arc::clone(&self.view);
        let plan = view.plan(&self.key, self.quorum);
        let timeout = deadline.saturating_duration_since(Instant::now());
        let mut calls = Calls::new();
        for node in plan.route.targets() {
            calls.push(node, self.coordinator.ask_newest(node, &self.key, (plan.epoch, timeout)));
        }
        let mut tally = PerList::of_quorum(plan.route, self.quorum);
        let mut missing = Vec::new();
        // Even if too few can still answer, wait for the others: the error says which replicas did not.
        while tally.verdict() != Verdict::Reached {
            match tokio::time::timeout_at(deadline, calls.next()).await {
                Ok(Some((node, Ok(newest)))) => {
                    self.above = self.above.max(newest);
                    tally.count(node, Tally::confirm);
                }
                Ok(Some((_, Err(cause)))) if cause.is_moved() => return Ok(false),
                Ok(Some((node, Err(cause)))) if cause.is_too_early() => {
                    calls.push(
                        node,
                        self.coordinator.ask_newest_later(node, &self.key, (plan.epoch, deadline)),
                    );
                }
                Ok(Some((node, Err(cause)))) => {
                    missing.push((node, cause));
                    tally.count(node, Tally::fail);
                }
                Ok(None) | Err(_) => break,
            }
        }
        if tally.verdict() == Verdict::Reached {
            return Ok(true);
        }
        Err(self.not_enough(missing, calls.nodes(), tally.confirmed(), false))
    }

    /// Writes under one stamp until its outcome is known.
    ///
    /// The record was first sent at `begun`, on the monotonic clock.
    async fn round(
        &mut self,
        (version, stamp): (Version, Stamp),
        begun: Duration,
        deadline: Instant,
    ) -> Round {
        let shared = &self.coordinator.shared;
        let view = Arc::clone(&self.view);
        let plan = view.plan(&self.key, self.quorum);
        let expires = match self.expires {
            Some(_) if canary::is(Canary::TtlFromVersion) => self.mutation.expires(version.millis()),
            expires => expires,
        };
        let record = self.mutation.record(version, self.from, expires);
        let mut unasked: Vec<Slot> =
            self.coordinator.by_readiness(plan.partition, &plan.route.targets().collect::<Vec<_>>());
        let at_once = match shared.settings.fanout {
            _ if plan.route.is_joint() => unasked.len(),
            Fanout::Parallel => unasked.len(),
            Fanout::Sequential => usize::from(self.quorum.ack()),
        };
        let mut rest = Unanswered {
            record,
            calls: Calls::new(),
            failed: Vec::new(),
            unasked: unasked.split_off(at_once.min(unasked.len())),
            missing: Vec::new(),
            confirmed: 0,
            is_sent: self.was_sent(),
        };
        let era = shared.cluster.era(plan.epoch);
        self.sent_in.get_or_insert(era);
        for node in unasked {
            self.ask(node, &mut rest, deadline);
        }
        let mut tally = self.tally(&plan, stamp);
        loop {
            rest.confirmed = tally.confirmed();
            if shared.cluster.era(plan.epoch) != era {
                return Round::Moved;
            }
            match tally.verdict() {
                WriteVerdict::Reached => return Round::Reached(rest),
                WriteVerdict::Ballot { above } => {
                    self.above = self.above.max(above);
                    return Round::Ballot { sent_at: begun };
                }
                // Wait for the other replicas too: the answer says which did not confirm.
                WriteVerdict::Unreachable if rest.calls.is_empty() => return Round::NotEnough(rest),
                WriteVerdict::StampAgain { above } => {
                    self.above = self.above.max(above);
                    return Round::StampAgain;
                }
                WriteVerdict::Unreachable | WriteVerdict::Pending => {}
            }
            let answer = tokio::time::timeout_at(deadline, rest.calls.next()).await;
            match answer {
                Err(_) => return Round::NotEnough(rest),
                Ok(Some((node, answer))) => {
                    let mut count = |answer: &dyn Fn(&mut WriteTally)| tally.count(node, answer);
                    match &answer {
                        Write::Stored => count(&WriteTally::stored),
                        // No replica can have held the record before this round began.
                        Write::Superseded { by, memory } => {
                            let age = shared.clock.mono().saturating_sub(begun);
                            count(&|tally| tally.superseded(*by, age <= *memory));
                        }
                        Write::TooLate(upto) => count(&|tally| tally.too_late(*upto)),
                        Write::Contested(by) if canary::is(Canary::RestampContested) => {
                            count(&|tally| tally.too_late(*by));
                        }
                        Write::Contested(by) => count(&|tally| tally.contested(*by)),
                        Write::Refused(_) | Write::Unknown(_) if canary::is(Canary::HintCountsAsAck) => {
                            count(&WriteTally::stored);
                        }
                        // It may have been sent the record in an earlier era.
                        Write::Refused(_) if self.was_sent() => count(&WriteTally::unknown),
                        Write::Refused(_) => count(&WriteTally::refused),
                        Write::Uncounted | Write::Unknown(_) => count(&WriteTally::unknown),
                        Write::Moved => return Round::Moved,
                    }
                    rest.note(node, answer);
                    if tally.verdict() == WriteVerdict::Pending && rest.calls.is_empty() {
                        let next = rest.unasked.pop();
                        if let Some(next) = next {
                            self.ask(next, &mut rest, deadline);
                        }
                    }
                }
                Ok(None) => match rest.unasked.pop().filter(|_| tally.verdict() == WriteVerdict::Pending) {
                    Some(next) => self.ask(next, &mut rest, deadline),
                    None => return Round::NotEnough(rest),
                },
            }
        }
    }

    fn ask(&self, node: Slot, rest: &mut Unanswered, deadline: Instant) {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let when = (self.view.placed_since(), timeout);
        let call = self.coordinator.ask_apply(node, &self.key, &rest.record, ApplyKind::Write, when);
        rest.calls.push(node, call);
    }

    /// Waits for the remaining replicas and keeps hints for those that failed.
    async fn complete(self, mut rest: Unanswered) {
        // Nothing was sent, and the client was told so: the write must not take effect any more.
        if !rest.is_sent && rest.calls.is_empty() {
            return;
        }
        // Replicas that have not been asked yet get the whole timeout.
        let deadline =
            Instant::now() + self.coordinator.shared.settings.request_timeout + self.mutation.allowance();
        for node in std::mem::take(&mut rest.unasked) {
            self.ask(node, &mut rest, deadline);
        }
        while let Some((node, answer)) = rest.calls.next().await {
            rest.note(node, answer);
        }
        // No replica took the record or may have taken it: there is nothing to complete.
        if !rest.is_sent {
            return;
        }
        let partition = self.coordinator.shared.cluster.partition_of(&self.key);
        for node in rest.failed {
            self.coordinator.keep_hint(node, partition, &self.key, &rest.record).await;
        }
    }

    fn report(&mut self, outcome: Outcome) {
        if outcome.is_err() {
            self.coordinator.shared.metrics.writes_failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(report) = self.report.take() {
            // The client may have gone.
            let _ = report.send(outcome);
        }
    }

    /// The error of a write that found too few replicas: `missing` failed, `silent` have not answered.
    fn not_enough(
        &self,
        mut missing: Vec<(Slot, Cause)>,
        silent: impl Iterator<Item = Slot>,
        confirmed: u16,
        is_sent: bool,
    ) -> CoordinatorError {
        let shared = &self.coordinator.shared;
        let mut silent = silent.peekable();
        let is_silent = silent.peek().is_none();
        // These two errors say "nothing was done": no replica took the record or may have taken it.
        let is_nothing_done = is_silent && !is_sent;
        let is_nothing_stored = is_nothing_done || is_silent && canary::is(Canary::DiskFullForgetsStored);
        if is_nothing_stored && !missing.is_empty() && missing.iter().all(|(_, cause)| cause.is_disk_full()) {
            return CoordinatorError::Replica(ReplicaError::DiskFull);
        }
        if is_nothing_done && missing.iter().any(|(_, cause)| cause.is_overload()) {
            return CoordinatorError::Replica(ReplicaError::Overloaded);
        }
        // A write that met a full disk midway is unknown, and no fault of the node: a 504 as with more replicas.
        if let ([(_, Cause::Replica(error))], 1) = (&*missing, self.quorum.from())
            && !matches!(error, ReplicaError::DiskFilledUp)
            && let Some((_, Cause::Replica(error))) = missing.pop()
        {
            return CoordinatorError::Replica(error);
        }
        missing.extend(silent.map(|node| (node, Cause::Late)));
        let missing = missing.into_iter().map(|(node, cause)| Missing::of(shared, node, &cause)).collect();
        let waited = self.begun.elapsed();
        CoordinatorError::NotEnoughReplicas { quorum: self.quorum, confirmed, missing, waited }
    }
}

impl Coordinator {
    /// Keeps `record` as a hint for a replica that missed it. If the hint cannot be kept, anti-entropy must find the
    /// difference.
    pub(super) async fn keep_hint(&self, node: Slot, partition: Partition, key: &Key, record: &Record) {
        let shared = &self.shared;
        if node == shared.cluster.me() {
            return;
        }
        let target = shared.cluster.id_of(node);
        let now = shared.clock.wall();
        match shared.hints.keep(target, partition.0, key, record, now).await {
            Ok(_) => shared.background.handoff.call(node),
            Err(error) => {
                shared.metrics.hints_lost.fetch_add(1, Ordering::Relaxed);
                if let Some(left_out) = shared.background.handoff.tells_loss(shared.clock.mono()) {
                    let node = shared.cluster.url_of(node);
                    tracing::warn!(%error, node, left_out, "a hint could not be stored: anti-entropy repairs the \
                                                            write that it held");
                }
            }
        }
    }
}
