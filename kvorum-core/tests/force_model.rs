//! A model of forced configurations, explored in full: members that go on alone are of one branch.
//!
//! Goal: once a member has adopted a forced configuration, no member that it names adopts another one, unless an operator has
//! declared the first one lost as well; and each mistake is found. Method: the successor of one configuration. Operators force
//! at one or two members, with one list of lost members or two; the lost ones come back at any time, propose, and decide with
//! all that vote. A request may arrive at any time, again, or never; its answer is lost or not. Proposers die. Acceptors and
//! proposers are the code of the crate itself.

#![expect(clippy::indexing_slicing, reason = "a model: a mistake here must stop the test")]

use kvorum_core::NodeId;
use kvorum_core::agreement::{
    Acceptor, Ballot, Ballots, ConfigurationHash, Electorate, Epoch, Instance, Proposal, ProposalStep, Voter,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

/// What is wrong in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The member that forces does not ask the others that are left.
    SurvivorNotAsked,
    /// A member that has accepted a forced configuration votes for others: lost ones come back and decide with it.
    BoundVotes,
    /// A member that has accepted a forced configuration adopts another one that a lost member tells it.
    BoundAdopts,
    /// The member that forces adopts although it has promised a higher ballot since.
    AdoptsBelowPromise,
    /// A member accepts a forced configuration without a promise that was asked for before, whatever it has promised.
    AcceptsBelowPromise,
}

/// A configuration: the members that a forced one names as bits, or the ordinary one.
type Value = u8;
const ORDINARY: Value = 0x80;

/// The answer to a prepare, with what was accepted; none for that to an accept.
type Promised = Option<Option<(Ballot, Value)>>;

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    mistake: Mistake,
    /// Members of the configuration whose successor is decided.
    members: usize,
    /// The first of them do something.
    active: usize,
    /// The members at which an operator forces, and what.
    forces: Vec<(usize, Value)>,
    /// The members that propose an ordinary successor.
    ordinary: Vec<usize>,
    /// A lost member that has adopted an ordinary successor before: the lost ones are a majority.
    decided_at: Option<usize>,
    crashes_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    ballot: Ballot,
    /// The value to accept; with a forced one it is known from the beginning.
    value: Option<Value>,
    accepts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    ballots: Ballots<Value>,
    adopted: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    /// The turns under way, by the number of the order; then those of ordinary proposers.
    proposals: Vec<Option<Proposal<Value>>>,
    begun: Vec<bool>,
    /// Whether all others have accepted what an order forces.
    is_ready: Vec<bool>,
    sent: BTreeSet<Request>,
    crashes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// A turn begins: orders first, then ordinary proposers.
    Begin(usize),
    Deliver {
        at: usize,
        request: Request,
        is_answered: bool,
    },
    /// A member hears what another one has adopted.
    Learn {
        at: usize,
        from: usize,
    },
    /// The member that forces adopts.
    Finish(usize),
    Crash(usize),
}

fn is_forced(value: Value) -> bool {
    value != ORDINARY
}

fn names(value: Value, node: usize) -> bool {
    value & (1 << node) != 0
}

fn voter(node: usize) -> Voter {
    Voter { node: NodeId(node as u64), store: node as u128 + 100 }
}

const BEFORE: Instance = Instance { epoch: Epoch(1), hash: ConfigurationHash(1) };
const AFTER: Instance = Instance { epoch: Epoch(2), hash: ConfigurationHash(2) };

impl Case {
    /// The member that takes a turn, and what it wants.
    fn turn(&self, number: usize) -> (usize, Value) {
        match self.forces.get(number) {
            Some(force) => *force,
            None => (self.ordinary[number - self.forces.len()], ORDINARY),
        }
    }

    fn turns(&self) -> usize {
        self.forces.len() + self.ordinary.len()
    }

    fn acceptor(&self, node: &Node, at: usize) -> Acceptor<Value> {
        let all = Electorate::unanimous((0..self.members).map(voter));
        let instance = if node.adopted.is_some() { AFTER } else { BEFORE };
        let is_bound = self.mistake != Mistake::BoundVotes && bound_to(node).is_some();
        Acceptor::new(voter(at), instance, &all, node.ballots.clone()).bound(is_bound)
    }

    fn electorate(&self, at: usize, value: Value) -> Electorate {
        if !is_forced(value) {
            let store = |node| (voter(node).node, Some(voter(node).store));
            return Electorate::new((0..self.members).map(store));
        }
        let is_asked = |node: &usize| match self.mistake {
            Mistake::SurvivorNotAsked => *node == at,
            _ => names(value, *node),
        };
        Electorate::unanimous((0..self.active).filter(is_asked).map(voter))
    }

    fn deliver(&self, state: &mut State, at: usize, request: Request, is_answered: bool) -> Option<()> {
        let node = &mut state.nodes[at];
        let mut acceptor = self.acceptor(node, at);
        let Request { ballot, value, accepts } = request;
        let forced = value.filter(|value| is_forced(*value));
        // A member that a forced configuration does not name has no part in it.
        if forced.is_some_and(|value| !names(value, at)) {
            return None;
        }
        let answer = match (accepts, forced, value) {
            (false, ..) => Some(acceptor.prepare(BEFORE, ballot).ok()?),
            (true, Some(value), _) => {
                if self.mistake == Mistake::AcceptsBelowPromise {
                    let ballots = Ballots { promised: None, ..acceptor.ballots().clone() };
                    acceptor = self.acceptor(&Node { ballots, ..node.clone() }, at);
                }
                acceptor.accept_forced(BEFORE, ballot, value).ok()?;
                None
            }
            (true, None, value) => {
                acceptor.accept(BEFORE, ballot, value?).ok()?;
                None
            }
        };
        node.ballots = acceptor.ballots().clone();
        let of = (0..self.turns()).find(|number| {
            state.proposals[*number].as_ref().is_some_and(|proposal| proposal.ballot() == ballot)
        });
        if let Some(number) = of.filter(|_| is_answered) {
            self.take_answer(state, number, at, answer);
        }
        Some(())
    }

    fn take_answer(&self, state: &mut State, number: usize, from: usize, answer: Promised) {
        let (at, wanted) = self.turn(number);
        let Some(proposal) = &mut state.proposals[number] else { return };
        let step = match answer {
            // Whatever was accepted: if all promise, none of them has adopted it, and none will.
            Some(_) if is_forced(wanted) => proposal.promised(voter(from), None),
            Some(Some((_, found))) if is_forced(found) && self.mistake == Mistake::BoundVotes => {
                proposal.promised(voter(from), None)
            }
            // The promise of a bound member does not count for an ordinary proposer.
            Some(Some((_, found))) if is_forced(found) => return,
            Some(accepted) => proposal.promised(voter(from), accepted),
            None => proposal.accepted(voter(from)),
        };
        let (ballot, value) = (proposal.ballot(), proposal.value().copied());
        let ready = step == ProposalStep::SendAccept;
        if let Some(value) = value.filter(|_| ready) {
            state.sent.insert(Request { ballot, value: Some(value), accepts: true });
        }
        let Some(proposal) = &mut state.proposals[number] else { return };
        if is_forced(wanted) {
            // The member that forces accepts last, and adopts with it: another step.
            let is_last = proposal.clone().accepted(voter(at)) == ProposalStep::Decided;
            state.is_ready[number] |= is_last;
        } else if step == ProposalStep::Decided {
            state.proposals[number] = None;
            if bound_to(&state.nodes[at]).is_none() {
                let Some(value) = value else { return };
                adopt(state, at, value);
            }
        }
    }
}

fn bound_to(node: &Node) -> Option<Value> {
    node.ballots.accepted.map(|(_, value)| value).filter(|value| is_forced(*value))
}

fn adopt(state: &mut State, at: usize, value: Value) {
    let node = &mut state.nodes[at];
    if node.adopted.is_none() {
        *node = Node { ballots: Ballots::default(), adopted: Some(value) };
    }
}

impl Model for Case {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let adopted = |node: usize| self.decided_at.filter(|at| *at == node).map(|_| ORDINARY);
        let node = |node| Node { ballots: Ballots::default(), adopted: adopted(node) };
        vec![State {
            nodes: (0..self.active).map(node).collect(),
            proposals: vec![None; self.turns()],
            begun: vec![false; self.turns()],
            is_ready: vec![false; self.turns()],
            sent: BTreeSet::new(),
            crashes: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for number in 0..self.turns() {
            if !state.begun[number] && state.nodes[self.turn(number).0].adopted.is_none() {
                steps.push(Step::Begin(number));
            }
            if state.proposals[number].is_some() && state.is_ready[number] {
                steps.push(Step::Finish(number));
            }
            if state.proposals[number].is_some() && state.crashes < self.crashes_max {
                steps.push(Step::Crash(number));
            }
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for request in &state.sent {
                for is_answered in [true, false] {
                    steps.push(Step::Deliver { at, request: *request, is_answered });
                }
            }
            let others = (0..self.active).filter(|from| *from != at && state.nodes[*from].adopted.is_some());
            if node.adopted.is_none() {
                steps.extend(others.map(|from| Step::Learn { at, from }));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Begin(number) => {
                let (at, value) = self.turn(number);
                state.begun[number] = true;
                // The later order has the higher round, as it has seen the other's.
                let ballot = Ballot { round: 1 + number as u64, proposer: voter(at) };
                state.proposals[number] = Some(Proposal::new(ballot, self.electorate(at, value), value));
                let request =
                    Request { ballot, value: Some(value).filter(|value| is_forced(*value)), accepts: false };
                self.deliver(&mut state, at, request, true)?;
                state.sent.insert(request);
            }
            Step::Deliver { at, request, is_answered } => {
                self.deliver(&mut state, at, request, is_answered)?;
            }
            Step::Learn { at, from } => {
                let value = state.nodes[from].adopted?;
                let is_kept = bound_to(&state.nodes[at]).is_some_and(|bound| {
                    // A member that the forced configuration names has adopted another: it is never adopted any more.
                    bound != value && !names(bound, from)
                });
                if is_kept && self.mistake != Mistake::BoundAdopts {
                    return None;
                }
                adopt(&mut state, at, value);
            }
            Step::Finish(number) => {
                let (at, value) = self.turn(number);
                let ballot = state.proposals[number].take()?.ballot();
                let is_kept = state.nodes[at].ballots.promised == Some(ballot);
                if is_kept || self.mistake == Mistake::AdoptsBelowPromise {
                    adopt(&mut state, at, value);
                }
            }
            Step::Crash(number) => {
                state.crashes += 1;
                state.proposals[number] = None;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("members that go on alone are of one branch", |_: &Case, state: &State| {
                let adopted = |node: usize| state.nodes[node].adopted;
                let is_one = |one: usize, other: usize| match (adopted(one), adopted(other)) {
                    (Some(ours), Some(theirs)) if is_forced(ours) && names(ours, other) => {
                        let declared_lost = is_forced(theirs) && !names(theirs, one);
                        ours == theirs || declared_lost
                    }
                    _ => true,
                };
                let nodes = 0..state.nodes.len();
                nodes.clone().all(|one| nodes.clone().all(|other| is_one(one, other)))
            }),
            Property::sometimes("all that are left go on", |case: &Case, state: &State| {
                let forced = case.forces.iter().map(|(_, value)| *value);
                let is_whole = |value: Value| {
                    (0..case.active)
                        .all(|node| !names(value, node) || state.nodes[node].adopted == Some(value))
                };
                forced.clone().any(is_whole)
            }),
            Property::sometimes("the lost ones decide", |_: &Case, state: &State| {
                state.nodes.iter().any(|node| node.adopted == Some(ORDINARY))
            }),
        ]
    }
}

/// Nodes 0 and 1 of four are left; node 2 comes back.
fn one_operator() -> Case {
    Case {
        mistake: Mistake::None,
        members: 4,
        active: 4,
        forces: vec![(0, 0b0011)],
        ordinary: vec![2],
        decided_at: None,
        crashes_max: 1,
    }
}

/// Nodes 0 and 1 of five are left; the others have decided without them, and node 2 tells them.
fn the_lost_have_decided() -> Case {
    Case { members: 5, active: 3, ordinary: Vec::new(), decided_at: Some(2), ..one_operator() }
}

/// Two operators have two lists: two or three of six are left.
fn two_lists() -> Case {
    let forces = vec![(0, 0b011), (1, 0b111)];
    Case { members: 6, active: 3, forces, ordinary: Vec::new(), ..one_operator() }
}

/// Explores `case` in full, or until branches mix. Returns the number of states, whether they never do, and what comes to
/// pass at all.
fn explore(case: Case) -> (usize, bool, BTreeSet<&'static str>) {
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: BTreeSet<&'static str> = checker.discoveries().into_keys().collect();
    if let Some(path) = checker.discovery("members that go on alone are of one branch")
        && std::env::var_os("KVORUM_MODEL_PATH").is_some()
    {
        for (state, step) in path.into_vec() {
            println!("{state:#?}\n=> {step:?}");
        }
    }
    (checker.unique_state_count(), !found.contains("members that go on alone are of one branch"), found)
}

#[test]
fn branches_do_not_mix() {
    for (name, case, may_decide) in [
        ("the lost come back", one_operator(), true),
        ("a survivor proposes, too", Case { ordinary: vec![0], ..one_operator() }, true),
        ("the lost have decided", the_lost_have_decided(), true),
        ("two lists", two_lists(), false),
        (
            "each other is named lost",
            Case { forces: vec![(0, 0b0011), (1, 0b0010)], crashes_max: 0, ..one_operator() },
            true,
        ),
    ] {
        let (states, is_sound, found) = explore(case);
        println!("figures: model of forced configurations, {name}: {states} states");
        assert!(states > 20, "{name}: {states} states explore next to nothing");
        assert!(is_sound, "{name}");
        assert!(found.contains("all that are left go on"), "{name}: nobody ever goes on");
        assert_eq!(found.contains("the lost ones decide"), may_decide, "{name}");
    }
}

/// Each mistake is found by one of the cases.
#[test]
fn mistakes_are_found() {
    let mut missed = Vec::new();
    let mut found = |mistake, case: Case| {
        let (states, is_sound, _) = explore(Case { mistake, ..case });
        println!(
            "figures: model of forced configurations, {mistake:?}: {states} states, found: {}",
            !is_sound
        );
        if is_sound {
            missed.push(mistake);
        }
    };
    found(Mistake::SurvivorNotAsked, one_operator());
    found(Mistake::BoundVotes, one_operator());
    found(Mistake::BoundAdopts, the_lost_have_decided());
    found(Mistake::AdoptsBelowPromise, two_lists());
    found(Mistake::AcceptsBelowPromise, two_lists());
    assert_eq!(missed, []);
}
