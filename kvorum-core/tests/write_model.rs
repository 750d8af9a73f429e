//! A model of reads and writes to one key, explored in full: a write takes effect once.
//!
//! Goal: with the rules of `kvorum_core::write`, no order of messages shows a register that is not
//! linearizable where all quorums overlap, nor a later operation below an earlier write where those two
//! overlap. Each weaker rule is detected. Method: replicas, writers with different clocks and readers that
//! write back. Every interleaving of their messages is explored, with refused requests, and requests that
//! arrive after their coordinator gave up on them. The writers decide by the code of the crate itself.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a model: a mistake here must stop the test"
)]

use kvorum_core::{Quorum, Stamp, Version, WriteTally, WriteVerdict};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

/// Which rule the writers follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The rules of the crate.
    Right,
    /// The rule before: never ask, and stamp again while fewer than the write's own `ack` hold the record.
    OwnAck,
    /// Never ask, and count superseded answers.
    CountUnasked,
    /// Ask first, and stamp above fewer answers than `ack`.
    AskOne,
    /// Forget which versions were held before a newer one came.
    ForgetHeld,
    /// Forget them too, and report it: as correct as the crate's own rule.
    ForgetAndSaySo,
}

/// The operations of one client.
#[derive(Debug, Clone, Copy)]
enum Script {
    /// Writes once. `clock` is the time of its coordinator's clock; `away` says that a replica is known not
    /// to answer.
    Write { quorum: (u16, u16), clock: u64, away: bool },
    /// Reads `times` times, one after the other.
    Read { quorum: (u16, u16), times: usize },
}

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    rule: Rule,
    replicas: usize,
    scripts: Vec<Script>,
    /// How many requests may be refused or left without an answer.
    failures_max: usize,
}

/// A version: clock, then the client that stamped it. Zero is the beginning.
type Stamped = (u64, usize);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Replica {
    newest: Stamped,
    held: BTreeSet<Stamped>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Answer {
    Stored,
    Superseded(Stamped),
    Refused,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Waiting,
    Asking { answered: BTreeSet<usize>, newest: Stamped },
    Writing { version: Stamped, stamp: Stamp, answers: Vec<Option<Answer>> },
    Reading { seen: BTreeSet<(usize, Stamped)>, rounds: usize },
    WritingBack { version: Stamped, holders: BTreeSet<usize>, rounds: usize },
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Begun(usize),
    /// A write was acknowledged under this version, or a read returned it.
    Ended(usize, Stamped),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    replicas: Vec<Replica>,
    clients: Vec<Phase>,
    reads_left: Vec<usize>,
    /// Requests that no coordinator waits for any more and that may still arrive.
    late: BTreeSet<(usize, Stamped)>,
    failures: usize,
    events: Vec<Event>,
}

impl State {
    /// The same state with its replicas sorted by what is known of them: states that differ only in the names
    /// of the replicas become equal.
    fn canonical(self) -> Self {
        let known = |at: usize| {
            let of_client = |phase: &Phase| match phase {
                Phase::Asking { answered, .. } => (answered.contains(&at), None, None),
                Phase::Writing { answers, .. } => (false, answers[at], None),
                Phase::Reading { seen, .. } => {
                    (false, None, seen.iter().find(|(known, _)| *known == at).map(|(_, version)| *version))
                }
                Phase::WritingBack { holders, .. } => (holders.contains(&at), None, None),
                Phase::Waiting | Phase::Done => (false, None, None),
            };
            let late: Vec<Stamped> =
                self.late.iter().filter(|(known, _)| *known == at).map(|(_, version)| *version).collect();
            (&self.replicas[at], self.clients.iter().map(of_client).collect::<Vec<_>>(), late)
        };
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        order.sort_by_cached_key(|at| known(*at));
        let mut place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new;
        }
        let moved = |set: &BTreeSet<usize>| set.iter().map(|at| place[*at]).collect();
        let moved_pairs = |set: &BTreeSet<(usize, Stamped)>| {
            set.iter().map(|(at, version)| (place[*at], *version)).collect()
        };
        let clients = self.clients.iter().map(|phase| match phase.clone() {
            Phase::Asking { answered, newest } => Phase::Asking { answered: moved(&answered), newest },
            Phase::Writing { version, stamp, answers } => {
                Phase::Writing { version, stamp, answers: order.iter().map(|old| answers[*old]).collect() }
            }
            Phase::Reading { seen, rounds } => Phase::Reading { seen: moved_pairs(&seen), rounds },
            Phase::WritingBack { version, holders, rounds } => {
                Phase::WritingBack { version, holders: moved(&holders), rounds }
            }
            phase @ (Phase::Waiting | Phase::Done) => phase,
        });
        let clients = clients.collect();
        let late = moved_pairs(&self.late);
        let replicas = order.iter().map(|old| self.replicas[*old].clone()).collect();
        Self { replicas, clients, late, ..self }
    }
}

/// A step: the client, and the replica where it needs one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Begin(usize),
    /// A replica tells a writer or a reader what it holds.
    Tell(usize, usize),
    /// A replica takes a writer's request.
    Deliver(usize, usize),
    Refuse(usize, usize),
    GiveUp(usize, usize),
    WriteBack(usize, usize),
    DeliverLate(usize, Stamped),
}

impl Case {
    fn quorum(&self, client: usize) -> Quorum {
        let (Script::Write { quorum, .. } | Script::Read { quorum, .. }) = self.scripts[client];
        Quorum::new(quorum.0, quorum.1, quorum.1).unwrap()
    }

    fn is_writer(&self, client: usize) -> bool {
        matches!(self.scripts[client], Script::Write { .. })
    }

    /// Whether the quorums of all clients overlap, also with themselves: then the register is linearizable.
    fn all_overlap(&self) -> bool {
        let clients = 0..self.scripts.len();
        clients.clone().all(|a| clients.clone().all(|b| self.quorum(a).overlaps(self.quorum(b))))
    }

    /// Whether all clients use all replicas, so that the replicas are interchangeable.
    fn is_symmetric(&self) -> bool {
        (0..self.scripts.len()).all(|client| usize::from(self.quorum(client).from()) == self.replicas)
    }

    fn first_stamp(&self, client: usize, away: bool) -> Stamp {
        match self.rule {
            Rule::OwnAck | Rule::CountUnasked => Stamp::Unasked,
            _ => Stamp::first_for(self.quorum(client), !away),
        }
    }

    fn tally(&self, client: usize, stamp: Stamp) -> WriteTally {
        let quorum = self.quorum(client);
        match self.rule {
            Rule::OwnAck => WriteTally::with_visible_from(quorum, Stamp::Unasked, quorum.ack()),
            Rule::CountUnasked => WriteTally::new(quorum, Stamp::Asked),
            _ => WriteTally::new(quorum, stamp),
        }
    }

    /// Applies a record to a replica, whichever client sends it.
    fn apply(&self, replica: &mut Replica, version: Stamped) -> Answer {
        if version >= replica.newest {
            replica.newest = version;
            replica.held.insert(version);
            Answer::Stored
        } else if replica.held.contains(&version)
            && !matches!(self.rule, Rule::ForgetHeld | Rule::ForgetAndSaySo)
        {
            Answer::Stored
        } else {
            Answer::Superseded(replica.newest)
        }
    }

    fn begin_writing(&self, state: &mut State, client: usize, version: Stamped, stamp: Stamp) {
        let answers = vec![None; usize::from(self.quorum(client).from())];
        state.clients[client] = Phase::Writing { version, stamp, answers };
    }

    /// Gives the writer the answer of the replica `at`, and does what its tally says.
    ///
    /// The writer gets an answer as soon as it is given. A later arrival would only end the write later: the
    /// answers decide the new stamp, and the requests of the new stamp are steps of their own.
    fn hear(&self, state: &mut State, client: usize, at: usize, answer: Answer) {
        let Phase::Writing { version, stamp, mut answers } = state.clients[client].clone() else { return };
        answers[at] = Some(answer);
        let mut tally = self.tally(client, stamp);
        for answer in answers.iter().flatten() {
            match answer {
                Answer::Stored => tally.stored(),
                Answer::Superseded(by) => {
                    let surely_never_held = self.rule != Rule::ForgetAndSaySo;
                    tally.superseded(Version::from_words(by.0, by.1 as u64), surely_never_held);
                }
                Answer::Refused => tally.refused(),
                Answer::Unknown => tally.unknown(),
            }
        }
        let verdict = tally.verdict();
        if verdict == WriteVerdict::Pending {
            state.clients[client] = Phase::Writing { version, stamp, answers };
            return;
        }
        // A request that has not arrived may still arrive, where it changes anything.
        for (at, answer) in answers.iter().enumerate() {
            if matches!(answer, None | Some(Answer::Unknown)) && state.replicas[at].newest < version {
                state.late.insert((at, version));
            }
        }
        state.clients[client] = Phase::Done;
        match verdict {
            WriteVerdict::Reached => state.events.push(Event::Ended(client, version)),
            WriteVerdict::StampAgain { above } if stamp == Stamp::Unasked => {
                self.begin_writing(state, client, (above.clock() + 1, client), Stamp::Asked);
            }
            _ => {}
        }
    }

    /// Ends a read once as many replicas as it asks hold the version that it returns.
    fn judge_read(&self, state: &mut State, client: usize) {
        let ack = usize::from(self.quorum(client).ack());
        if let Phase::Reading { seen, rounds } = &state.clients[client]
            && seen.len() == ack
        {
            let version = seen.iter().map(|(_, version)| *version).max().unwrap();
            let holders = seen.iter().filter(|(_, held)| *held == version).map(|(at, _)| *at).collect();
            state.clients[client] = Phase::WritingBack { version, holders, rounds: *rounds };
        }
        if let Phase::WritingBack { version, holders, .. } = &state.clients[client]
            && holders.len() >= ack
        {
            state.events.push(Event::Ended(client, *version));
            state.reads_left[client] -= 1;
            state.clients[client] = if state.reads_left[client] == 0 { Phase::Done } else { Phase::Waiting };
        }
    }

    fn begin(&self, state: &mut State, client: usize) {
        state.events.push(Event::Begun(client));
        match self.scripts[client] {
            Script::Read { .. } => {
                state.clients[client] = Phase::Reading { seen: BTreeSet::new(), rounds: 1 }
            }
            Script::Write { clock, away, .. } => match self.first_stamp(client, away) {
                Stamp::Unasked => self.begin_writing(state, client, (clock, client), Stamp::Unasked),
                Stamp::Asked => {
                    let (answered, newest) = (BTreeSet::new(), (clock, client));
                    state.clients[client] = Phase::Asking { answered, newest };
                }
            },
        }
    }

    fn tell(&self, state: &mut State, client: usize, at: usize) {
        let held = state.replicas[at].newest;
        let ack = if self.rule == Rule::AskOne { 1 } else { usize::from(self.quorum(client).ack()) };
        match &mut state.clients[client] {
            Phase::Asking { answered, newest } => {
                answered.insert(at);
                *newest = (*newest).max((held.0 + 1, client));
                if answered.len() == ack {
                    let version = *newest;
                    self.begin_writing(state, client, version, Stamp::Asked);
                }
            }
            Phase::Reading { seen, .. } => {
                seen.insert((at, held));
                self.judge_read(state, client);
            }
            _ => {}
        }
    }

    fn write_back(&self, state: &mut State, client: usize, at: usize) {
        let Phase::WritingBack { version, holders, rounds } = &mut state.clients[client] else { return };
        if *version < state.replicas[at].newest {
            // The read found a newer version: it begins again.
            let again = rounds.checked_sub(1).map(|rounds| Phase::Reading { seen: BTreeSet::new(), rounds });
            state.clients[client] = again.unwrap_or(Phase::Done);
        } else {
            holders.insert(at);
            let version = *version;
            self.apply(&mut state.replicas[at], version);
            self.judge_read(state, client);
        }
    }
}

impl Model for Case {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let reads = |script: &Script| match script {
            Script::Read { times, .. } => *times,
            Script::Write { .. } => 0,
        };
        vec![State {
            replicas: vec![Replica::default(); self.replicas],
            clients: vec![Phase::Waiting; self.scripts.len()],
            reads_left: self.scripts.iter().map(reads).collect(),
            late: BTreeSet::new(),
            failures: 0,
            events: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (client, phase) in state.clients.iter().enumerate() {
            let replicas = 0..usize::from(self.quorum(client).from());
            match phase {
                Phase::Waiting => steps.push(Step::Begin(client)),
                Phase::Asking { answered, .. } => {
                    steps.extend(
                        replicas.filter(|at| !answered.contains(at)).map(|at| Step::Tell(client, at)),
                    );
                }
                Phase::Writing { answers, .. } => {
                    for at in replicas.filter(|at| answers[*at].is_none()) {
                        steps.push(Step::Deliver(client, at));
                        if state.failures < self.failures_max {
                            steps.extend([Step::Refuse(client, at), Step::GiveUp(client, at)]);
                        }
                    }
                }
                Phase::Reading { seen, .. } => {
                    let is_new = |at: &usize| seen.iter().all(|(known, _)| known != at);
                    steps.extend(replicas.filter(is_new).map(|at| Step::Tell(client, at)));
                }
                Phase::WritingBack { holders, .. } => {
                    steps.extend(
                        replicas.filter(|at| !holders.contains(at)).map(|at| Step::WriteBack(client, at)),
                    );
                }
                Phase::Done => {}
            }
        }
        let changes = |(at, version): &&(usize, Stamped)| state.replicas[*at].newest < *version;
        steps.extend(state.late.iter().filter(changes).map(|(at, version)| Step::DeliverLate(*at, *version)));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Begin(client) => self.begin(&mut state, client),
            Step::Tell(client, at) => self.tell(&mut state, client, at),
            Step::WriteBack(client, at) => self.write_back(&mut state, client, at),
            Step::DeliverLate(at, version) => {
                state.late.remove(&(at, version));
                self.apply(&mut state.replicas[at], version);
            }
            Step::Deliver(client, at) => {
                let Phase::Writing { version, .. } = state.clients[client] else { return None };
                let answer = self.apply(&mut state.replicas[at], version);
                self.hear(&mut state, client, at, answer);
            }
            Step::Refuse(client, at) | Step::GiveUp(client, at) => {
                state.failures += 1;
                let is_refused = matches!(step, Step::Refuse(..));
                self.hear(&mut state, client, at, if is_refused { Answer::Refused } else { Answer::Unknown });
            }
        }
        Some(if self.is_symmetric() { state.canonical() } else { state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |case: &Case, state: &State| {
                !case.all_overlap() || is_linearizable(&operations(case, &state.events))
            }),
            Property::always("above what was acknowledged", |case: &Case, state: &State| {
                is_ordered(case, &operations(case, &state.events))
            }),
        ]
    }

    /// Without a failed request a write is always acknowledged, however many compete.
    fn within_boundary(&self, state: &State) -> bool {
        let ended = |client: usize| {
            state.events.iter().any(|event| matches!(event, Event::Ended(at, _) if *at == client))
        };
        let has_failed = |(client, phase): (usize, &Phase)| {
            self.is_writer(client) && *phase == Phase::Done && !ended(client)
        };
        let is_lost = self.rule == Rule::Right
            && state.failures == 0
            && state.clients.iter().enumerate().any(has_failed);
        assert!(!is_lost, "a write without a failed request was not acknowledged: {state:?}");
        true
    }
}

/// An operation of the history.
struct Operation {
    client: usize,
    writes: bool,
    /// The version that it was acknowledged under or returned; none for a write of unknown outcome.
    version: Option<Stamped>,
    begin: usize,
    end: usize,
}

fn operations(case: &Case, events: &[Event]) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Begun(client) => {
                let writes = case.is_writer(client);
                operations.push(Operation { client, writes, version: None, begin: at, end: usize::MAX });
            }
            Event::Ended(client, version) => {
                let operation = operations.iter_mut().rfind(|operation| operation.client == client).unwrap();
                (operation.version, operation.end) = (Some(version), at);
            }
        }
    }
    // A read that has not returned proves nothing.
    operations.retain(|operation| operation.writes || operation.version.is_some());
    operations
}

/// Guarantees 2 and 3: an operation that begins after a write was acknowledged, and overlaps with it, is above it.
fn is_ordered(case: &Case, operations: &[Operation]) -> bool {
    let writes = operations.iter().filter(|operation| operation.writes);
    writes.clone().all(|earlier| {
        let after = operations.iter().filter(|later| later.begin > earlier.end);
        after.clone().all(|later| {
            let overlaps = case.quorum(earlier.client).overlaps(case.quorum(later.client));
            let is_above =
                if later.writes { later.version > earlier.version } else { later.version >= earlier.version };
            !overlaps || later.version.is_none() || is_above
        })
    })
}

/// Whether some order of the operations explains the results. Values are told apart by their writers, so a
/// value that takes effect twice has no such order.
fn is_linearizable(operations: &[Operation]) -> bool {
    explain(operations, &mut vec![false; operations.len()], 0)
}

fn explain(operations: &[Operation], done: &mut Vec<bool>, value: usize) -> bool {
    let open =
        || operations.iter().zip(done.iter()).filter(|(_, done)| !**done).map(|(operation, _)| operation);
    if open().all(|operation| operation.version.is_none()) {
        return true;
    }
    let first_end = open().map(|operation| operation.end).min().unwrap_or(usize::MAX);
    for (at, operation) in operations.iter().enumerate() {
        let seen = operation.version.map_or(0, |version| version.1);
        if done[at] || operation.begin > first_end || (!operation.writes && seen != value) {
            continue;
        }
        done[at] = true;
        if explain(operations, done, if operation.writes { operation.client } else { value }) {
            return true;
        }
        done[at] = false;
    }
    false
}

fn write(quorum: (u16, u16), clock: u64) -> Script {
    Script::Write { quorum, clock, away: false }
}

fn read(quorum: (u16, u16), times: usize) -> Script {
    Script::Read { quorum, times }
}

/// A case with a reader first: client 0 is never a writer, so that 0 stands for "nothing written".
fn case(replicas: usize, failures_max: usize, reader: Script, writers: &[Script]) -> Case {
    let scripts = std::iter::once(reader).chain(writers.iter().copied()).collect();
    Case { rule: Rule::Right, replicas, scripts, failures_max }
}

/// Explores `case` in full, or until a property is broken. Returns the number of states, and the broken
/// properties.
fn explore(case: Case) -> (usize, Vec<&'static str>) {
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut broken: Vec<_> = checker.discoveries().into_keys().collect();
    broken.sort_unstable();
    (checker.unique_state_count(), broken)
}

fn holds(name: &str, case: Case) {
    let (states, broken) = explore(case);
    println!("figures: model of writes, {name}: {states} states");
    assert!(states > 1000, "{name}: {states} states explore next to nothing");
    assert_eq!(broken, Vec::<&str>::new(), "{name}");
}

/// The quorums of the history that first showed this violation with real processes.
fn all_beside_majorities() -> Case {
    case(3, 0, read((2, 3), 2), &[write((3, 3), 1), write((2, 3), 2)])
}

fn majorities(failures_max: usize, times: usize) -> Case {
    case(3, failures_max, read((2, 3), times), &[write((2, 3), 1), write((2, 3), 2)])
}

fn away() -> Case {
    let writer = |clock| Script::Write { quorum: (2, 3), clock, away: true };
    case(3, 1, read((2, 3), 1), &[writer(1), writer(2)])
}

#[test]
fn write_to_all_beside_majorities_takes_effect_once() {
    holds("3/3 beside 2/3", all_beside_majorities());
}

#[test]
fn writes_to_majorities_take_effect_once() {
    holds("2/3", majorities(0, 2));
    holds("2/3, a request fails", majorities(1, 1));
}

/// Replicas that remember none of their earlier versions, as on a key that is written very often. No replica
/// can have got a record that no replica took from its writer.
#[test]
fn writes_to_forgetful_replicas_take_effect_once() {
    let forgetful = |case| Case { rule: Rule::ForgetAndSaySo, ..case };
    holds("2/3, nothing remembered", forgetful(majorities(0, 3)));
    holds("2/3, nothing remembered, a request fails", forgetful(majorities(1, 1)));
    holds("3/3 beside 2/3, nothing remembered", forgetful(all_beside_majorities()));
}

/// A reader of one replica overlaps with writers to both replicas: it may have seen a record that only one
/// holds.
#[test]
fn writes_to_all_read_from_the_first_take_effect_once() {
    holds("2/2 and 1/1", case(2, 1, read((1, 1), 2), &[write((2, 2), 1), write((2, 2), 2)]));
}

#[test]
fn writes_of_five_replicas_take_effect_once() {
    holds("4/5 beside 3/5", case(5, 0, read((3, 5), 1), &[write((4, 5), 1), write((3, 5), 2)]));
}

/// A replica that is known to be away: writers ask first, so that superseded answers count.
#[test]
fn write_while_a_replica_is_away_takes_effect_once() {
    holds("2/3, one away", away());
}

/// A write to one replica overlaps with a write to all three, and the one that was acknowledged first stays
/// below.
#[test]
fn write_to_one_is_ordered_with_writes_to_all() {
    holds("1/3 beside 3/3", case(3, 0, read((3, 3), 1), &[write((3, 3), 2), write((1, 3), 1)]));
}

/// Each weaker rule is detected by one of the cases.
#[test]
fn weaker_rules_are_found() {
    let found = |rule, case: Case| {
        let (states, broken) = explore(Case { rule, ..case });
        println!("figures: model of writes, {rule:?}: {broken:?} after {states} states");
        assert!(!broken.is_empty(), "{rule:?}");
    };
    found(Rule::OwnAck, all_beside_majorities());
    found(Rule::CountUnasked, case(3, 0, read((2, 3), 1), &[write((2, 3), 2), write((2, 3), 1)]));
    found(Rule::AskOne, away());
    found(Rule::ForgetHeld, majorities(0, 3));
}
