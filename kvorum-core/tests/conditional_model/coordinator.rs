//! The model's coordinators: they decide by `kvorum_core::{write, conditional}`.

use crate::change::{on, targets};
use crate::history::End;
use crate::replica::{Answer, Heard, Record};
use crate::{Case, Mistake, Phase, Script, Source, State, Step, quorum, writer_of};
use kvorum_core::configuration::{PerList, Route, Slot};
use kvorum_core::{
    AcceptVerdict, ConditionalOutcome, Lineage, Next, PrepareVerdict, Prepared, Stamp, Version, WriteTally,
    WriteVerdict,
};
use std::collections::BTreeSet;

const ACK: usize = 2;

/// No answers yet.
fn silent<T: Clone>(state: &State) -> Vec<Option<T>> {
    vec![None; state.replicas.len()]
}

fn slot(at: usize) -> Slot {
    Slot(u16::try_from(at).unwrap())
}

impl Case {
    /// The steps that `client` can take.
    pub(crate) fn client_steps(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        let may_fail = state.failures < self.failures_max;
        let me = &state.clients[client];
        let route = self.route(me.epoch);
        let serves = |at: &usize| state.replicas[*at].epoch == me.epoch;
        let votes = |at: &usize| serves(at) && state.replicas[*at].votes();
        match &me.phase {
            Phase::Waiting if matches!(self.scripts[client], Script::Read { times: 0 }) => {}
            Phase::Waiting => {
                let epochs = || state.replicas.iter().map(|replica| replica.epoch);
                let (oldest, newest) = (epochs().min().unwrap(), epochs().max().unwrap());
                steps.extend((oldest..=newest).map(|epoch| Step::Begin(client, epoch)));
            }
            Phase::Asking { answered, .. } => {
                let left = on(route.reads()).filter(|at| !answered.contains(at));
                steps.extend(left.filter(votes).map(|at| Step::Tell(client, at)));
            }
            Phase::Reading { seen, .. } => {
                let left = on(route.reads()).filter(|at| seen.iter().all(|(known, _)| known != at));
                steps.extend(left.filter(votes).map(|at| Step::Tell(client, at)));
            }
            Phase::Writing { answers, .. } => {
                for at in targets(route).filter(|at| answers[*at].is_none()) {
                    if serves(&at) {
                        steps.push(Step::Deliver(client, at));
                    }
                    if may_fail {
                        steps.extend([Step::Refuse(client, at), Step::GiveUp(client, at)]);
                    }
                }
            }
            Phase::WritingBack { holders, .. } => {
                let left = targets(route).filter(|at| !holders.contains(at));
                steps.extend(left.filter(votes).map(|at| Step::Deliver(client, at)));
            }
            Phase::Preparing { answers, .. } => {
                let left = targets(route).filter(|at| answers[*at].is_none());
                steps.extend(left.filter(votes).map(|at| Step::Deliver(client, at)));
                if may_fail {
                    steps.push(Step::Die(client));
                }
            }
            Phase::Accepting { answers, .. } => {
                for at in targets(route).filter(|at| answers[*at].is_none()) {
                    if serves(&at) {
                        steps.push(Step::Deliver(client, at));
                    }
                    if may_fail {
                        steps.push(Step::GiveUp(client, at));
                    }
                }
                if may_fail {
                    steps.push(Step::Die(client));
                }
            }
            Phase::Done => {}
        }
    }

    /// Begins its phase again, in `epoch`.
    pub(crate) fn begin_again(&self, state: &mut State, client: usize, epoch: usize) {
        let before = state.clients[client].clone();
        match &before.phase {
            Phase::Writing { version, answers, .. } => {
                self.leave(state, client, (Record::plain(*version), Source::Writer), answers, false);
                state.clients[client].was_sent = true;
            }
            Phase::Accepting { record, answers, .. } => {
                self.leave(state, client, (*record, Source::Ballot), answers, false);
                if record.lineage.origin == record.version {
                    state.clients[client].was_sent = true;
                }
            }
            _ => {}
        }
        let lists = silent(state);
        let me = &mut state.clients[client];
        me.epoch = epoch;
        me.was_earlier |= me.was_sent && self.mistake != Mistake::SentEarlierForgotten;
        match before.phase {
            Phase::Asking { newest, .. } => me.phase = Phase::Asking { answered: BTreeSet::new(), newest },
            Phase::Reading { rounds, .. } | Phase::WritingBack { rounds, .. } => {
                me.phase = Phase::Reading { seen: BTreeSet::new(), rounds };
            }
            Phase::Writing { version, stamp, .. } => {
                me.phase = Phase::Writing { version, stamp, answers: lists };
            }
            Phase::Accepting { record, base, outcome, .. } if self.mistake == Mistake::BallotOverEpochs => {
                me.phase = Phase::Accepting { record, base, outcome, answers: lists };
            }
            Phase::Preparing { ballot, .. } => self.prepare(state, client, ballot),
            Phase::Accepting { record, .. } => {
                if record.lineage.origin == record.version {
                    me.earlier.push(record.version);
                }
                self.prepare(state, client, record.version);
            }
            Phase::Waiting | Phase::Done => {}
        }
    }

    /// The lists on which the client counts the answers to its ballots.
    fn ballot_route(&self, state: &State, client: usize) -> Route<'static> {
        let route = self.route(state.clients[client].epoch);
        if self.mistake == Mistake::BallotReadListOnly { Route::single(route.reads()) } else { route }
    }

    fn stamp(state: &mut State, client: usize, above: Version) -> Version {
        let clock = &mut state.clients[client].clock;
        *clock = (*clock).max(above.clock() + 1);
        let version = Version::from_words(*clock, client as u64);
        *clock += 1;
        state.highest = state.highest.max(version.clock());
        version
    }

    fn write(state: &mut State, client: usize, above: Version, stamp: Stamp) {
        let version = Self::stamp(state, client, above);
        state.clients[client].phase = Phase::Writing { version, stamp, answers: silent(state) };
    }

    fn prepare(&self, state: &mut State, client: usize, above: Version) {
        if state.ballots == self.ballots_max {
            state.clients[client].phase = Phase::Done;
            return;
        }
        state.ballots += 1;
        let ballot = Self::stamp(state, client, above);
        state.clients[client].phase = Phase::Preparing { ballot, answers: silent(state) };
    }

    fn end(&self, state: &mut State, client: usize, end: End) {
        state.history.end(self, client, end);
        let client = &mut state.clients[client];
        client.reads_left = client.reads_left.saturating_sub(1);
        client.phase = if client.reads_left == 0 { Phase::Done } else { Phase::Waiting };
    }

    pub(crate) fn begin(&self, state: &mut State, client: usize, epoch: usize) {
        state.history.begin(client);
        state.clients[client].epoch = epoch;
        match self.scripts[client] {
            Script::Read { .. } => {
                state.clients[client].phase = Phase::Reading { seen: BTreeSet::new(), rounds: 1 };
            }
            Script::Write { asks: true, .. } => {
                state.clients[client].phase =
                    Phase::Asking { answered: BTreeSet::new(), newest: Version::ZERO };
            }
            Script::Write { .. } => Self::write(state, client, Version::ZERO, Stamp::Unasked),
            Script::Cas { .. } => self.prepare(state, client, Version::ZERO),
            Script::Left { .. } => {}
        }
    }

    pub(crate) fn tell(&self, state: &mut State, client: usize, at: usize) {
        let (record, held) = (state.replicas[at].stored, state.replicas[at].newest());
        match &mut state.clients[client].phase {
            Phase::Asking { answered, newest } => {
                answered.insert(at);
                *newest = (*newest).max(held);
                if answered.len() == ACK {
                    let above = *newest;
                    Self::write(state, client, above, Stamp::Asked);
                }
            }
            Phase::Reading { seen, rounds } => {
                seen.insert((at, record));
                if seen.len() == ACK {
                    let record = seen.iter().map(|(_, record)| *record).max().unwrap();
                    let holds = |(_, held): &&(usize, Record)| held.version == record.version;
                    let holders = seen.iter().filter(holds).map(|(at, _)| *at).collect();
                    state.clients[client].phase = Phase::WritingBack { record, holders, rounds: *rounds };
                    self.judge_write_back(state, client);
                }
            }
            _ => {}
        }
    }

    fn judge_write_back(&self, state: &mut State, client: usize) {
        let route = self.route(state.clients[client].epoch);
        if let Phase::WritingBack { record, holders, .. } = &state.clients[client].phase
            && route.writes().all(|list| on(list).filter(|at| holders.contains(at)).count() >= ACK)
        {
            let value = writer_of(record.lineage.origin);
            self.end(state, client, End::Saw(value));
        }
    }

    /// Delivers the client's request to a replica, whose answer the client gets at once. A later arrival would only end
    /// the operation later.
    pub(crate) fn deliver(&self, state: &mut State, client: usize, at: usize) {
        match state.clients[client].phase.clone() {
            Phase::Writing { version, .. } => {
                let answer = state.replicas[at].apply(Record::plain(version), Source::Writer, self.mistake);
                let answer = if state.replicas[at].votes() || answer != Answer::Stored {
                    answer
                } else {
                    Answer::Unknown
                };
                self.hear_write(state, client, at, answer);
            }
            Phase::Preparing { ballot, .. } => {
                let named = self.mistake != Mistake::ForgetEarlier;
                let earlier = if named { state.clients[client].earlier.clone() } else { Vec::new() };
                let mut heard = state.replicas[at].promise(ballot, &earlier, self.mistake);
                if let Heard::Promised(promise) = &mut heard
                    && state.clients[client].was_earlier
                {
                    (promise.may_have_held, promise.may_have_built) = (true, true);
                }
                self.hear_promise(state, client, at, heard);
            }
            Phase::Accepting { record, .. } => {
                let answer = state.replicas[at].apply(record, Source::Ballot, self.mistake);
                let answer = if state.replicas[at].votes() || answer != Answer::Stored {
                    answer
                } else {
                    Answer::Unknown
                };
                self.hear_accept(state, client, at, answer);
            }
            Phase::WritingBack { record, mut holders, rounds } => {
                match state.replicas[at].apply(record, Source::Reader, self.mistake) {
                    Answer::Stored => {
                        holders.insert(at);
                        state.clients[client].phase = Phase::WritingBack { record, holders, rounds };
                        self.judge_write_back(state, client);
                    }
                    // A promise keeps the record out: only a ballot can tell what becomes of it.
                    Answer::Contested(above) => self.prepare(state, client, above),
                    // The read found a newer version: it begins again.
                    _ => {
                        let again = |rounds| Phase::Reading { seen: BTreeSet::new(), rounds };
                        state.clients[client].phase = rounds.checked_sub(1).map_or(Phase::Done, again);
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn fail(&self, state: &mut State, client: usize, at: usize, is_refused: bool) {
        let answer = if is_refused { Answer::Refused } else { Answer::Unknown };
        match state.clients[client].phase {
            Phase::Writing { .. } => self.hear_write(state, client, at, answer),
            Phase::Accepting { .. } => self.hear_accept(state, client, at, answer),
            _ => {}
        }
    }

    pub(crate) fn die(&self, state: &mut State, client: usize) {
        if let Phase::Accepting { record, answers, .. } = state.clients[client].phase.clone() {
            self.leave(state, client, (record, Source::Ballot), &answers, false);
        }
        state.clients[client].phase = Phase::Done;
    }

    /// A request that has not arrived may still arrive. A hint brings the record to a replica that missed it; one of a
    /// ballot's record is kept only once the record is taken, for a fence does not stop hints.
    fn leave(
        &self,
        state: &mut State,
        client: usize,
        (record, source): (Record, Source),
        answers: &[Option<Answer>],
        is_taken: bool,
    ) {
        let keeps_hints = is_taken || source == Source::Writer || self.mistake == Mistake::HintsBeforeTaken;
        let epoch = state.clients[client].epoch;
        for at in targets(self.route(epoch)) {
            let answer = answers[at];
            if matches!(answer, None | Some(Answer::Unknown)) {
                state.late.insert((at, record, source, epoch));
            }
            if keeps_hints && matches!(answer, Some(Answer::Unknown | Answer::Refused)) {
                state.late.insert((at, record, Source::Hint, 0));
            }
        }
    }

    fn hear_write(&self, state: &mut State, client: usize, at: usize, answer: Answer) {
        let Phase::Writing { version, stamp, mut answers } = state.clients[client].phase.clone() else {
            return;
        };
        answers[at] = Some(answer);
        let me = &state.clients[client];
        let mut tally = PerList::of_write(self.route(me.epoch), quorum(), stamp);
        for (at, answer) in answers.iter().enumerate() {
            let Some(answer) = *answer else { continue };
            tally.count(slot(at), |tally| match answer {
                Answer::Stored => tally.stored(),
                // It does not remember the epoch before.
                Answer::Superseded { by, surely_never_held } => {
                    tally.superseded(by, surely_never_held && !me.was_earlier);
                }
                Answer::Contested(by) if self.mistake == Mistake::StampAgainContested => tally.too_late(by),
                Answer::Contested(by) => tally.contested(by),
                // It may have taken the record in the epoch before.
                Answer::Refused if !me.was_earlier => tally.refused(),
                Answer::Refused | Answer::Unknown => tally.unknown(),
            });
        }
        if me.was_earlier {
            tally.sent_earlier();
        }
        let verdict = self.write_verdict(&tally);
        if verdict == WriteVerdict::Pending {
            state.clients[client].phase = Phase::Writing { version, stamp, answers };
            return;
        }
        self.leave(
            state,
            client,
            (Record::plain(version), Source::Writer),
            &answers,
            verdict == WriteVerdict::Reached,
        );
        match verdict {
            WriteVerdict::Reached => self.end(state, client, End::Wrote),
            WriteVerdict::StampAgain { above } if stamp == Stamp::Unasked => {
                Self::write(state, client, above, Stamp::Asked);
            }
            WriteVerdict::Ballot { above } => {
                state.clients[client].was_sent = true;
                state.clients[client].earlier.push(version);
                self.prepare(state, client, above);
            }
            _ => state.clients[client].phase = Phase::Done,
        }
    }

    fn write_verdict(&self, tally: &PerList<'_, WriteTally>) -> WriteVerdict {
        let verdict = tally.verdict();
        let mut each = tally.tallies().map(WriteTally::verdict);
        let is_again = |verdict: &WriteVerdict| matches!(verdict, WriteVerdict::StampAgain { .. });
        let mistaken = if self.mistake == Mistake::StampAgainPerList { each.find(is_again) } else { None };
        mistaken.unwrap_or(verdict)
    }

    fn hear_promise(&self, state: &mut State, client: usize, at: usize, heard: Heard) {
        let Phase::Preparing { ballot, mut answers } = state.clients[client].phase.clone() else { return };
        answers[at] = Some(heard);
        let named = self.mistake != Mistake::ForgetEarlier;
        let earlier = if named { state.clients[client].earlier.clone() } else { Vec::new() };
        let mut tally = PerList::of_promises(self.ballot_route(state, client), quorum(), &earlier);
        for (at, heard) in answers.iter().enumerate() {
            let Some(heard) = *heard else { continue };
            tally.count(slot(at), |tally| match heard {
                Heard::Promised(promise) => tally.promised(promise),
                Heard::Denied(by) => tally.denied(by),
            });
        }
        if state.clients[client].was_earlier {
            tally.sent_earlier();
        }
        match tally.verdict() {
            PrepareVerdict::Ready(mut prepared) => {
                if self.mistake == Mistake::AnyBase
                    && let Heard::Promised(promise) = heard
                {
                    prepared.base = promise;
                }
                self.go_on(state, client, ballot, prepared);
            }
            PrepareVerdict::Again { above } => self.prepare(state, client, above),
            PrepareVerdict::Unreachable => state.clients[client].phase = Phase::Done,
            PrepareVerdict::Pending => state.clients[client].phase = Phase::Preparing { ballot, answers },
        }
    }

    fn go_on(&self, state: &mut State, client: usize, ballot: Version, prepared: Prepared) {
        let found = prepared.base;
        let base = Record { version: found.version, lineage: found.lineage, is_conditional: true };
        let holds = match self.scripts[client] {
            Script::Write { .. } => true,
            Script::Read { .. } | Script::Left { .. } => false,
            Script::Cas { expects, .. } => writer_of(base.lineage.origin) == expects,
        };
        let (record, outcome) = match prepared.next(holds) {
            Next::Secure(outcome) if self.mistake == Mistake::EarlyRefusal => {
                return self.end_conditional(state, client, base, outcome);
            }
            Next::Build => {
                let lineage = Lineage { origin: ballot, base: base.lineage.origin };
                let record = Record { version: ballot, lineage, is_conditional: true };
                (record, ConditionalOutcome::Done(ballot))
            }
            Next::Secure(outcome) => (Record { version: ballot, ..base }, outcome),
            Next::End(outcome) => {
                // Nothing is ever sent under this ballot: its promises have no use any more.
                for replica in &mut state.replicas {
                    replica.release(ballot, self.mistake);
                }
                return self.end_conditional(state, client, base, outcome);
            }
            Next::Unknown => {
                state.clients[client].phase = Phase::Done;
                return;
            }
        };
        let answers = silent(state);
        state.clients[client].phase = Phase::Accepting { record, base, outcome, answers };
    }

    fn end_conditional(&self, state: &mut State, client: usize, base: Record, outcome: ConditionalOutcome) {
        let end = match outcome {
            ConditionalOutcome::Done(_) => End::Wrote,
            ConditionalOutcome::Failed => End::Saw(writer_of(base.lineage.origin)),
        };
        self.end(state, client, end);
    }

    fn hear_accept(&self, state: &mut State, client: usize, at: usize, answer: Answer) {
        let Phase::Accepting { record, base, outcome, mut answers } = state.clients[client].phase.clone()
        else {
            return;
        };
        answers[at] = Some(answer);
        let mut tally = PerList::of_ballot(self.ballot_route(state, client), quorum());
        for (at, answer) in answers.iter().enumerate() {
            let Some(answer) = *answer else { continue };
            tally.count(slot(at), |tally| match answer {
                Answer::Stored => tally.taken(),
                Answer::Superseded { by, .. } | Answer::Contested(by) => tally.denied(by),
                Answer::Refused => tally.refused(),
                Answer::Unknown => tally.unknown(),
            });
        }
        let verdict = tally.verdict();
        if verdict == AcceptVerdict::Pending {
            state.clients[client].phase = Phase::Accepting { record, base, outcome, answers };
            return;
        }
        self.leave(state, client, (record, Source::Ballot), &answers, verdict == AcceptVerdict::Taken);
        match verdict {
            AcceptVerdict::Taken => self.end_conditional(state, client, base, outcome),
            AcceptVerdict::Again { above, is_nowhere } => {
                // A base that is accepted anew is not the write's own record.
                if record.lineage.origin == record.version && !is_nowhere {
                    state.clients[client].was_sent = true;
                    state.clients[client].earlier.push(record.version);
                }
                self.prepare(state, client, above);
            }
            _ => state.clients[client].phase = Phase::Done,
        }
    }
}
