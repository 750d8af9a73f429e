//! A model of conditional writes, plain writes and reads of one key, explored in full: together they are one
//! linearizable register.
//!
//! Goal: with the rules of `kvorum_core::{conditional, promise, write}`, no order of messages shows a history that no
//! order of the operations explains, conditions included. Each of the mistakes that were shipped in other stores, or
//! that were made on the way here, is detected. Method: three replicas; writers with different clocks, some with a
//! condition; readers that write back; coordinators that die; hints, late requests and repair, which copy records at
//! any time; a crash with loss of memory, and a lost disk that is refilled. Every interleaving is explored, of several
//! small cases, each for one danger. Coordinators and replicas decide by the code of the crate itself.
//!
//! In cases with a *change*, the last of the replicas changes: requests count on both lists of a joint epoch, replicas
//! serve requests of their own epoch only, and coordinators plan again when they meet a newer one.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a model: a mistake here must stop the test"
)]

mod cases;
mod change;
mod coordinator;
mod history;
mod replica;

use change::{Epoch, NO_CHANGE};
use history::History;
use kvorum_core::{ConditionalOutcome, Quorum, Stamp, Version};
use replica::{Answer, Heard, Record, Replica};
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// What is wrong in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A replica takes a ballot's record although it has promised a newer ballot.
    AcceptUnchecked,
    /// A condition is told to have failed although its base might still be undone.
    EarlyRefusal,
    /// A promise is lost in a crash.
    PromiseUnsynced,
    /// A promise is dropped before a record has reached it.
    PromiseDroppedEarly,
    WritesIgnorePromises,
    HintsIgnorePromises,
    WriteBacksIgnorePromises,
    RepairIgnoresPromises,
    /// A store is refilled without a fence for the promises that it has lost.
    RefillForgets,
    /// The others remember the fence until they are restarted.
    FenceLostAtRestart,
    /// A request counts what a replica said before it lost its disk, although that was refilled since.
    LostAnswersCount,
    /// A hint of a ballot's record is kept although too few replicas have taken it.
    HintsBeforeTaken,
    /// A plain write that is superseded by a conditional record counts that as if it came just before it.
    SupersededByConditional,
    /// A plain write is stamped again although a ballot may have gone on from its record.
    StampAgainContested,
    /// A ballot does not ask whether anything was built on its write's earlier versions.
    ForgetBuilt,
    /// Replicas do not know which versions they held before a newer one came.
    ForgetHeld,
    /// A ballot does not name its write's earlier versions.
    ForgetEarlier,
    /// A ballot goes on from the first promise's record.
    AnyBase,
    /// A promise is taken back although it stands for an earlier one as well.
    TakeBackAny,
    /// A plain write is stamped again as soon as one of two lists says so.
    StampAgainPerList,
    /// Promises and records of ballots count on the list that is read only.
    BallotReadListOnly,
    /// A write is judged by the replicas of its newest epoch, although its record was sent in one before.
    SentEarlierForgotten,
    /// A ballot goes on in the next epoch.
    BallotOverEpochs,
    /// A replica remembers from epochs before which versions it held.
    MemoryOverEpochs,
}

/// The operations of one client.
#[derive(Debug, Clone, Copy)]
enum Script {
    /// Writes once. `clock` is the time of its coordinator's clock; `asks` says that it asks for the newest version
    /// first, as it does when a replica is away.
    Write { clock: u64, asks: bool },
    /// Writes once, if the value is the one that client `expects` wrote.
    Cas { clock: u64, expects: usize },
    /// Reads `times` times, one after the other.
    Read { times: usize },
    /// Has written to some of the replicas when the case begins, and its coordinator has died.
    Left { clock: u64, on: &'static [usize] },
}

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    mistake: Mistake,
    scripts: Vec<Script>,
    /// How many requests may be left without an answer, or coordinators die.
    failures_max: usize,
    /// Whether records are copied from replica to replica.
    repairs: bool,
    crashes_max: usize,
    losses_max: usize,
    /// Ballots that all operations together may try.
    ballots_max: usize,
    /// The epochs, one after the other.
    epochs: &'static [Epoch],
}

/// The sender of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Source {
    Writer,
    Ballot,
    Reader,
    Hint,
    Repair,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Waiting,
    Asking { answered: BTreeSet<usize>, newest: Version },
    Writing { version: Version, stamp: Stamp, answers: Vec<Option<Answer>> },
    Reading { seen: BTreeSet<(usize, Record)>, rounds: usize },
    WritingBack { record: Record, holders: BTreeSet<usize>, rounds: usize },
    Preparing { ballot: Version, answers: Vec<Option<Heard>> },
    Accepting { record: Record, base: Record, outcome: ConditionalOutcome, answers: Vec<Option<Answer>> },
    Done,
}

impl Phase {
    /// Whether the phase goes by what the replica `at` said it has stored.
    fn has_answer_of(&self, at: usize) -> bool {
        match self {
            Self::Writing { answers, .. } | Self::Accepting { answers, .. } => answers[at].is_some(),
            Self::Reading { seen, .. } => seen.iter().any(|(known, _)| *known == at),
            Self::WritingBack { holders, .. } => holders.contains(&at),
            // Promises may be lost: that is what the fence is for.
            Self::Asking { .. } | Self::Preparing { .. } | Self::Waiting | Self::Done => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// Its coordinator's clock.
    clock: u64,
    reads_left: usize,
    /// The replica that has lost its disk since it answered in this phase.
    lost: Option<usize>,
    /// Versions under which its record may have been taken.
    earlier: Vec<Version>,
    /// The epoch of its plan.
    epoch: usize,
    /// Whether its record was sent.
    was_sent: bool,
    /// Whether its record was sent in an epoch before.
    was_earlier: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    replicas: Vec<Replica>,
    clients: Vec<Client>,
    /// Hints, and requests that no coordinator waits for any more, with their epochs.
    late: BTreeSet<Late>,
    /// The replicas that the new owner was compared with.
    compared: BTreeSet<usize>,
    ballots: usize,
    failures: usize,
    crashes: usize,
    losses: usize,
    /// The highest clock of all members.
    highest: u64,
    history: History,
}

/// A record on its way to a replica, in an epoch.
type Late = (usize, Record, Source, usize);

/// A step: the client, and the replica where it needs one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// The second is the epoch that the coordinator knows.
    Begin(usize, usize),
    /// A replica tells a writer or a reader what it holds.
    Tell(usize, usize),
    /// A replica takes a request of the client's present phase, and answers.
    Deliver(usize, usize),
    Refuse(usize, usize),
    GiveUp(usize, usize),
    /// The coordinator of a client ends. Its requests may still arrive.
    Die(usize),
    DeliverLate(usize, Record, Source, usize),
    Repair(usize, usize),
    Crash(usize),
    Lose(usize),
    Refill(usize, usize),
    DropPromise(usize),
    Adopt(usize),
    Compare(usize),
    /// A coordinator meets the next epoch, and goes on in it.
    Replan(usize),
    /// A coordinator is told that a replica has lost its disk since it answered.
    Told(usize),
}

fn quorum() -> Quorum {
    Quorum::new(2, 3, 4).unwrap()
}

fn writer_of(version: Version) -> usize {
    usize::try_from(version.node().0).unwrap()
}

impl State {
    /// The same state with its replicas sorted by what is known of them: states that differ only in the names of the
    /// replicas become equal.
    fn canonical(self) -> Self {
        let known = |at: usize| {
            let of_client = |client: &Client| match &client.phase {
                Phase::Asking { answered, .. } => (answered.contains(&at), None, None, None),
                Phase::Writing { answers, .. } | Phase::Accepting { answers, .. } => {
                    (false, answers[at], None, None)
                }
                Phase::Preparing { answers, .. } => (false, None, answers[at], None),
                Phase::Reading { seen, .. } => {
                    let seen = seen.iter().find(|(known, _)| *known == at).map(|(_, record)| *record);
                    (false, None, None, seen)
                }
                Phase::WritingBack { holders, .. } => (holders.contains(&at), None, None, None),
                Phase::Waiting | Phase::Done => (false, None, None, None),
            };
            let late: Vec<(Record, Source, usize)> = self
                .late
                .iter()
                .filter(|(known, ..)| *known == at)
                .map(|(_, record, source, epoch)| (*record, *source, *epoch))
                .collect();
            // In a change, the two that stay can be exchanged for each other.
            let kind = if self.replicas.len() == 3 { 0 } else { at.max(1) };
            let of_clients = self.clients.iter().map(of_client).collect::<Vec<_>>();
            (kind, &self.replicas[at], of_clients, late, self.compared.contains(&at))
        };
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        order.sort_by_cached_key(|at| known(*at));
        if order.is_sorted() {
            return self;
        }
        let mut place = vec![0; self.replicas.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new;
        }
        self.moved(&order, &place)
    }

    fn moved(self, order: &[usize], place: &[usize]) -> Self {
        let moved = |set: &BTreeSet<usize>| set.iter().map(|at| place[*at]).collect();
        let mut clients = self.clients;
        for client in &mut clients {
            client.lost = client.lost.map(|at| place[at]);
            match &mut client.phase {
                Phase::Asking { answered, .. } => *answered = moved(answered),
                Phase::Writing { answers, .. } | Phase::Accepting { answers, .. } => {
                    *answers = order.iter().map(|old| answers[*old]).collect();
                }
                Phase::Preparing { answers, .. } => {
                    *answers = order.iter().map(|old| answers[*old]).collect();
                }
                Phase::Reading { seen, .. } => {
                    *seen = seen.iter().map(|(at, record)| (place[*at], *record)).collect();
                }
                Phase::WritingBack { holders, .. } => *holders = moved(holders),
                Phase::Waiting | Phase::Done => {}
            }
        }
        let late = self
            .late
            .iter()
            .map(|(at, record, source, epoch)| (place[*at], *record, *source, *epoch))
            .collect();
        let compared = moved(&self.compared);
        let mut replicas: Vec<Replica> = order.iter().map(|old| self.replicas[*old].clone()).collect();
        for replica in &mut replicas {
            if let Some(sources) = &mut replica.filling_from {
                *sources = sources.iter().map(|at| place[*at]).collect();
            }
        }
        Self { replicas, clients, late, compared, ..self }
    }

    /// Forgets what can change nothing any more, so that more states become equal.
    fn forget_what_is_over(&mut self) {
        let replicas = &self.replicas;
        self.late.retain(|(at, record, source, epoch)| {
            let is_in_time = *source == Source::Hint || *epoch >= replicas[*at].epoch;
            is_in_time && replicas[*at].stored.version < record.version
        });
        for client in &mut self.clients {
            if client.phase == Phase::Done {
                (client.clock, client.reads_left, client.epoch) = (0, 0, 0);
                (client.was_earlier, client.was_sent) = (false, false);
                client.earlier.clear();
            }
        }
        let clients = &self.clients;
        let is_open = |version: &Version| clients[writer_of(*version)].phase != Phase::Done;
        for replica in &mut self.replicas {
            replica.remember_only(is_open);
        }
    }

    fn word(&self) -> Version {
        Version::from_words(self.highest, u64::MAX)
    }
}

impl Client {
    /// Whether it reads nothing: it stands for the beginning only.
    fn is_idle(&self) -> bool {
        self.phase == Phase::Waiting && self.reads_left == 0 && self.clock == 0
    }
}

impl Client {
    fn is_under_way(&self) -> bool {
        !matches!(self.phase, Phase::Waiting | Phase::Done)
    }
}

impl Case {
    /// Whether a read that asks two replicas right now, and finds the same record on a quorum of each list, is explained.
    fn reads_are_explained(&self, state: &State) -> bool {
        (0..self.epochs.len()).all(|epoch| {
            let serving = |list| {
                let all = change::on(list).map(|at| &state.replicas[at]);
                all.filter(|replica| replica.votes() && replica.epoch == epoch)
            };
            let route = self.route(epoch);
            serving(route.reads()).all(|replica| {
                let holds = |other: &&Replica| other.stored == replica.stored;
                let is_returned = route.writes().all(|list| serving(list).filter(holds).count() >= 2);
                let value = writer_of(replica.stored.lineage.origin);
                !is_returned || state.history.explains_read(self, value)
            })
        })
    }
}

impl Model for Case {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let client = |script: &Script| {
            let (clock, reads_left) = match *script {
                Script::Write { clock, .. } | Script::Cas { clock, .. } => (clock, 0),
                Script::Read { times } => (0, times),
                Script::Left { .. } => (0, 0),
            };
            let phase = if matches!(script, Script::Left { .. }) { Phase::Done } else { Phase::Waiting };
            Client {
                phase,
                clock,
                reads_left,
                lost: None,
                earlier: Vec::new(),
                epoch: 0,
                was_earlier: false,
                was_sent: false,
            }
        };
        let mut state = State {
            replicas: vec![Replica::new(); self.replicas()],
            clients: self.scripts.iter().map(client).collect(),
            late: BTreeSet::new(),
            compared: BTreeSet::new(),
            ballots: 0,
            failures: 0,
            crashes: 0,
            losses: 0,
            highest: 0,
            history: History::new(self.scripts.len()),
        };
        for (client, script) in self.scripts.iter().enumerate() {
            if let Script::Left { clock, on } = *script {
                state.history.begin(client);
                state.highest = state.highest.max(clock);
                let record = Record::plain(Version::from_words(clock, client as u64));
                for at in on {
                    state.replicas[*at].apply(record, Source::Writer, self.mistake);
                }
            }
        }
        vec![state.canonical()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let is_over = |client: &Client| client.phase == Phase::Done || client.is_idle();
        if state.clients.iter().all(is_over) {
            return;
        }
        for client in 0..self.scripts.len() {
            self.client_steps(state, client, steps);
        }
        let told = (0..self.scripts.len()).filter(|client| state.clients[*client].lost.is_some());
        steps.extend(told.map(Step::Told));
        self.change_steps(state, steps);
        let changes = |(at, record, source, epoch): &&Late| {
            let replica = &state.replicas[*at];
            let is_served = *source == Source::Hint || *epoch == replica.epoch;
            is_served && replica.stored.version < record.version
        };
        let late = |(at, record, source, epoch): &Late| Step::DeliverLate(*at, *record, *source, *epoch);
        steps.extend(state.late.iter().filter(changes).map(late));
        for (at, replica) in state.replicas.iter().enumerate() {
            let is_behind = |from: &usize| state.replicas[*from].stored.version > replica.stored.version;
            if let Some(sources) = &replica.filling_from {
                // A comparison counts once all coordinators know of the loss: what is confirmed without the lost answers is
                // elsewhere by then, and found.
                let is_early = state.clients.iter().any(|client| client.lost == Some(at));
                let voting = sources.iter().filter(|from| state.replicas[**from].votes() && !is_early);
                steps.extend(voting.map(|from| Step::Refill(*from, at)));
            } else if self.repairs {
                let voting = (0..state.replicas.len()).filter(|from| state.replicas[*from].votes());
                steps.extend(voting.filter(is_behind).map(|from| Step::Repair(from, at)));
            }
            if state.crashes < self.crashes_max {
                steps.push(Step::Crash(at));
            }
            if state.losses < self.losses_max {
                steps.push(Step::Lose(at));
            }
            if self.mistake == Mistake::PromiseDroppedEarly && replica.has_promised() {
                steps.push(Step::DropPromise(at));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Begin(client, epoch) => self.begin(&mut state, client, epoch),
            Step::Tell(client, at) => self.tell(&mut state, client, at),
            Step::Deliver(client, at) => self.deliver(&mut state, client, at),
            Step::Refuse(client, at) | Step::GiveUp(client, at) => {
                state.failures += 1;
                self.fail(&mut state, client, at, matches!(step, Step::Refuse(..)));
            }
            Step::Die(client) => {
                state.failures += 1;
                self.die(&mut state, client);
            }
            Step::DeliverLate(at, record, source, epoch) => {
                state.late.remove(&(at, record, source, epoch));
                state.replicas[at].apply(record, source, self.mistake);
            }
            Step::Repair(from, to) => {
                let record = state.replicas[from].stored;
                state.replicas[to].apply(record, Source::Repair, self.mistake);
            }
            Step::Crash(at) => {
                state.crashes += 1;
                let now = state.word();
                state.replicas[at].crash(now, self.mistake);
            }
            Step::Lose(at) => {
                state.losses += 1;
                for client in &mut state.clients {
                    client.lost = client.phase.has_answer_of(at).then_some(at);
                }
                state.replicas[at].lose((0..last.replicas.len()).filter(|other| *other != at).collect());
            }
            Step::Refill(from, to) => {
                let (record, word) = (state.replicas[from].stored, state.word());
                state.replicas[from].fence(word, self.mistake);
                state.replicas[to].apply(record, Source::Repair, self.mistake);
                let sources = state.replicas[to].filling_from.as_mut()?;
                sources.remove(&from);
                if sources.is_empty() {
                    state.replicas[to].vote(word, self.mistake);
                }
            }
            Step::DropPromise(at) => state.replicas[at].drop_promise(),
            Step::Adopt(at) => state.replicas[at].adopt(self.mistake),
            Step::Compare(from) => self.compare(&mut state, from),
            Step::Replan(client) => {
                let next = state.clients[client].epoch + 1;
                self.begin_again(&mut state, client, next);
            }
            Step::Told(client) => {
                state.clients[client].lost = None;
                let epoch = state.clients[client].epoch;
                if self.mistake != Mistake::LostAnswersCount {
                    self.begin_again(&mut state, client, epoch);
                }
            }
        }
        for (client, before) in state.clients.iter_mut().zip(&last.clients) {
            if std::mem::discriminant(&client.phase) != std::mem::discriminant(&before.phase) {
                client.lost = client.lost.filter(|at| client.phase.has_answer_of(*at));
            }
        }
        state.forget_what_is_over();
        if state == *last {
            return None;
        }
        Some(state.canonical())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |_, state: &State| state.history.is_explained()),
            Property::always("read at once", |case: &Case, state: &State| case.reads_are_explained(state)),
        ]
    }
}
