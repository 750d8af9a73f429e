//! A model of agreement, explored in full: an epoch has one successor.
//!
//! Goal: with the rules of `kvorum_core::agreement`, no order of messages lets two proposers learn different successors
//! of one configuration, and each mistake is found. Method: three nodes. With the first decision one of them joins or
//! leaves, so the second decision has other acceptors. Two proposers, each with several ballots. A request that
//! was sent may arrive at any time, again, or never; its answer is lost or not. Proposers die and begin again; a node is restarted; a disk is
//! replaced by an empty one. Acceptors and proposers are the code of the crate itself.

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
    /// An acceptor takes a value below its promise.
    AcceptBelowPromise,
    /// An acceptor answers before its promise is synced, and restarts.
    PromiseUnsynced,
    /// An acceptor answers before its acceptance is synced, and restarts.
    AcceptanceUnsynced,
    /// A proposer sends its own value whatever was accepted before.
    OwnValueAlways,
    /// A proposer takes over any accepted value, not that of the highest ballot.
    AnyAccepted,
    /// A store that replaced a lost one votes in its place.
    ReplacedStoreVotes,
    /// In a configuration without named stores a majority decides.
    MajorityOfUnnamed,
    /// Half of the acceptors decide.
    HalfDecides,
    /// A proposer counts the acceptors of the configuration that it proposes.
    CountedInTheNext,
    /// An acceptor votes for an instance that is not its own, with the ballots of its own.
    OtherInstanceServed,
    /// A proposer begins again after a crash with the ballot that it had.
    BallotUsedTwice,
}

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    mistake: Mistake,
    /// Whether the first configuration names stores.
    named: bool,
    /// Ballots that each proposer may try.
    ballots_max: u64,
    /// How many successors are decided.
    epochs: usize,
    losses_max: usize,
    restarts_max: usize,
}

/// A configuration stands for its members: 0 has the nodes 0 to 2, 1 also node 3, 2 only node 1.
type Value = u8;

/// The answer to a prepare, with what was accepted; none for that to an accept.
type Promised = Option<Option<(Ballot, Value)>>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Prepare { instance: usize, ballot: Ballot },
    Accept { instance: usize, ballot: Ballot, value: Value },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    store: u128,
    /// The configurations that it has adopted after the first.
    chain: Vec<Value>,
    ballots: Ballots<Value>,
    /// What a restart leaves where something is not synced.
    synced: Ballots<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    /// Of nodes 0 and 1: the instance, and the proposal.
    proposals: Vec<Option<(usize, Proposal<Value>)>>,
    rounds: Vec<u64>,
    sent: BTreeSet<Request>,
    /// What proposers learnt as decided, by instance.
    decided: Vec<BTreeSet<Value>>,
    losses: usize,
    restarts: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Begin(usize),
    /// A node takes a request. Its answer comes at once, or never: an answer that comes later is like a request that
    /// does.
    Deliver {
        at: usize,
        request: Request,
        is_answered: bool,
    },
    Adopt(usize),
    Lose(usize),
    Restart(usize),
}

fn members(value: Value) -> std::ops::Range<usize> {
    match value {
        0 => 0..3,
        1 => 0..4,
        _ => 1..2,
    }
}

fn first_store(node: usize) -> u128 {
    node as u128 + 100
}

impl Case {
    fn electorate(&self, chain: &[Value]) -> Electorate {
        let members = members(chain.last().copied().unwrap_or(0));
        let is_named = self.named || !chain.is_empty() || self.mistake == Mistake::MajorityOfUnnamed;
        Electorate::new(members.map(|node| (NodeId(node as u64), is_named.then(|| first_store(node)))))
    }

    fn proposal(&self, state: &State, proposer: usize, ballot: Ballot) -> Proposal<Value> {
        // The proposers want different successors: one grows, one shrinks.
        let wanted = if proposer == 0 { 1 } else { 2 };
        let chain = &state.nodes[proposer].chain;
        let electorate = match self.mistake {
            Mistake::CountedInTheNext => {
                Electorate::new(members(wanted).map(|node| (NodeId(node as u64), Some(first_store(node)))))
            }
            // As many as half: the others are not asked.
            Mistake::HalfDecides => Electorate::new(
                (proposer..=proposer).map(|node| (NodeId(node as u64), Some(first_store(node)))),
            ),
            _ => self.electorate(chain),
        };
        Proposal::new(ballot, electorate, wanted)
    }

    /// The acceptor of a node, as it is after a start with what is stored.
    fn acceptor(&self, node: &Node, at: usize) -> Acceptor<Value> {
        let own = self.voter(node, at);
        Acceptor::new(own, instance(node.chain.len()), &self.electorate(&node.chain), node.ballots.clone())
    }

    fn deliver(&self, state: &mut State, at: usize, request: &Request, is_answered: bool) -> Option<()> {
        let node = &mut state.nodes[at];
        let mut acceptor = self.acceptor(node, at);
        let ours = acceptor.instance();
        let (Request::Prepare { instance: of, ballot } | Request::Accept { instance: of, ballot, .. }) =
            *request;
        let asked = if self.mistake == Mistake::OtherInstanceServed { ours } else { instance(of) };
        let promise: Promised = match *request {
            Request::Prepare { .. } => Some(acceptor.prepare(asked, ballot).ok()?),
            Request::Accept { value, .. } => {
                if self.mistake == Mistake::AcceptBelowPromise {
                    let ballots = Ballots { promised: None, ..acceptor.ballots().clone() };
                    let electorate = self.electorate(&node.chain);
                    acceptor = Acceptor::new(self.voter(node, at), ours, &electorate, ballots);
                }
                acceptor.accept(asked, ballot, value).ok()?;
                None
            }
        };
        node.ballots = acceptor.ballots().clone();
        let is_synced = match self.mistake {
            Mistake::PromiseUnsynced => promise.is_none(),
            Mistake::AcceptanceUnsynced => promise.is_some(),
            _ => true,
        };
        if is_synced {
            node.synced = node.ballots.clone();
        }
        let from = self.voter(node, at);
        for proposer in 0..2 {
            let is_its = |(instance, proposal): &(usize, Proposal<Value>)| {
                *instance == of && proposal.ballot() == ballot
            };
            if is_answered && state.proposals[proposer].as_ref().is_some_and(is_its) {
                self.take_answer(state, proposer, from, promise);
            }
        }
        Some(())
    }

    fn take_answer(&self, state: &mut State, proposer: usize, from: Voter, promise: Promised) {
        let Some((of, proposal)) = &mut state.proposals[proposer] else { return };
        let (instance, ballot) = (*of, proposal.ballot());
        let step = match (promise, self.mistake) {
            (Some(_), Mistake::OwnValueAlways) => proposal.promised(from, None),
            // All accepted values look as if they were of one ballot: the first one is taken.
            (Some(Some((_, value))), Mistake::AnyAccepted) => {
                let lowest = Voter { node: NodeId(0), store: 0 };
                proposal.promised(from, Some((Ballot { round: 0, proposer: lowest }, value)))
            }
            (Some(accepted), _) => proposal.promised(from, accepted),
            (None, _) => proposal.accepted(from),
        };
        match (step, proposal.value().copied()) {
            (ProposalStep::SendAccept, Some(value)) => {
                state.sent.insert(Request::Accept { instance, ballot, value });
            }
            (ProposalStep::Decided, Some(value)) => {
                state.decided[instance].insert(value);
                state.proposals[proposer] = None;
            }
            _ => {}
        }
    }

    /// The voter that the node at `at` claims to be.
    fn voter(&self, node: &Node, at: usize) -> Voter {
        let is_renamed = matches!(self.mistake, Mistake::ReplacedStoreVotes | Mistake::MajorityOfUnnamed);
        Voter { node: NodeId(at as u64), store: if is_renamed { first_store(at) } else { node.store } }
    }
}

/// The branch is the same in all cases: forks are what must not come to be.
fn instance(epochs: usize) -> Instance {
    Instance { epoch: Epoch(epochs as u64), hash: ConfigurationHash(epochs as u128) }
}

impl Model for Case {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let node = |at| Node {
            store: first_store(at),
            chain: Vec::new(),
            ballots: Ballots::default(),
            synced: Ballots::default(),
        };
        vec![State {
            nodes: (0..if self.epochs > 1 { 4 } else { 3 }).map(node).collect(),
            proposals: vec![None, None],
            rounds: vec![0, 0],
            sent: BTreeSet::new(),
            decided: vec![BTreeSet::new(); self.epochs],
            losses: 0,
            restarts: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for proposer in 0..2 {
            let is_left = state.nodes[proposer].chain.len() < self.epochs;
            if is_left && state.rounds[proposer] < self.ballots_max {
                steps.push(Step::Begin(proposer));
            }
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for request in &state.sent {
                for is_answered in [true, false] {
                    steps.push(Step::Deliver { at, request: request.clone(), is_answered });
                }
            }
            if state.decided.get(node.chain.len()).is_some_and(|decided| !decided.is_empty())
                && self.epochs > 1
            {
                steps.push(Step::Adopt(at));
            }
            if state.losses < self.losses_max {
                steps.push(Step::Lose(at));
            }
            if state.restarts < self.restarts_max && node.ballots != node.synced {
                steps.push(Step::Restart(at));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Begin(proposer) => {
                state.rounds[proposer] += 1;
                let of = state.nodes[proposer].chain.len();
                let own = Voter { node: NodeId(proposer as u64), store: state.nodes[proposer].store };
                let used_twice = self.mistake == Mistake::BallotUsedTwice;
                let round = if used_twice { 1 } else { state.rounds[proposer] };
                // The second proposer of a case in which ballots are used twice claims to be the first.
                let own = if used_twice { Voter { node: NodeId(0), store: first_store(0) } } else { own };
                let ballot = Ballot { round, proposer: own };
                state.proposals[proposer] = Some((of, self.proposal(&state, proposer, ballot)));
                let prepare = Request::Prepare { instance: of, ballot };
                // A proposer asks its own acceptor first, if it is one.
                let is_named = self.electorate(&state.nodes[proposer].chain).names(own);
                if is_named && !used_twice {
                    self.deliver(&mut state, proposer, &prepare, true)?;
                }
                state.sent.insert(prepare);
            }
            Step::Deliver { at, request, is_answered } => {
                self.deliver(&mut state, at, &request, is_answered)?;
            }
            Step::Adopt(at) => {
                let decided = state.decided[state.nodes[at].chain.len()].first().copied()?;
                let node = &mut state.nodes[at];
                node.chain.push(decided);
                (node.ballots, node.synced) = (Ballots::default(), Ballots::default());
                if let Some(proposal) = state.proposals.get_mut(at) {
                    *proposal = None;
                }
            }
            Step::Lose(at) => {
                state.losses += 1;
                let node = &mut state.nodes[at];
                node.store += 100;
                (node.ballots, node.synced) = (Ballots::default(), Ballots::default());
                // Its chain comes back from the others: at most what it knew is known elsewhere.
                if let Some(proposal) = state.proposals.get_mut(at) {
                    *proposal = None;
                }
            }
            Step::Restart(at) => {
                state.restarts += 1;
                let node = &mut state.nodes[at];
                node.ballots = node.synced.clone();
                if let Some(proposal) = state.proposals.get_mut(at) {
                    *proposal = None;
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("an epoch has one successor", |_: &Case, state: &State| {
                state.decided.iter().all(|decided| decided.len() <= 1)
            }),
            Property::sometimes("a successor is decided", |case: &Case, state: &State| {
                state.decided[case.epochs - 1].len() == 1
            }),
        ]
    }
}

fn case() -> Case {
    Case { mistake: Mistake::None, named: true, ballots_max: 1, epochs: 1, losses_max: 0, restarts_max: 0 }
}

/// Explores `case` in full, or until two successors are decided. Returns the number of states, and whether the property
/// holds; `is_live` says whether anything was decided at all.
fn explore(case: Case) -> (usize, bool, bool) {
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    if let Some(path) = checker.discovery("an epoch has one successor")
        && std::env::var_os("KVORUM_MODEL_PATH").is_some()
    {
        for (state, step) in path.into_vec() {
            println!("{state:#?}\n=> {step:?}");
        }
    }
    let is_sound = !found.contains_key("an epoch has one successor");
    (checker.unique_state_count(), is_sound, found.contains_key("a successor is decided"))
}

#[test]
fn an_epoch_has_one_successor() {
    for (name, case) in [
        ("2 proposers", Case { ballots_max: 2, ..case() }),
        ("2 proposers, a lost disk", Case { losses_max: 1, ..case() }),
        ("stores without names, a lost disk", Case { named: false, losses_max: 1, ..case() }),
        ("2 epochs", Case { epochs: 2, ballots_max: 2, ..case() }),
    ] {
        let (states, is_sound, is_live) = explore(case);
        println!("figures: model of agreement, {name}: {states} states");
        assert!(states > 1000, "{name}: {states} states explore next to nothing");
        assert!(is_live, "{name}: nothing was ever decided");
        assert!(is_sound, "{name}");
    }
}

/// Each mistake is found by one of the cases.
#[test]
fn mistakes_are_found() {
    let mut missed = Vec::new();
    let mut found = |mistake, case: Case| {
        let (states, is_sound, _) = explore(Case { mistake, ..case });
        println!("figures: model of agreement, {mistake:?}: {states} states, found: {}", !is_sound);
        if is_sound {
            missed.push(mistake);
        }
    };
    found(Mistake::AcceptBelowPromise, case());
    found(Mistake::PromiseUnsynced, Case { restarts_max: 1, ..case() });
    found(Mistake::AcceptanceUnsynced, Case { restarts_max: 1, ..case() });
    found(Mistake::OwnValueAlways, case());
    found(Mistake::AnyAccepted, Case { ballots_max: 2, ..case() });
    found(Mistake::ReplacedStoreVotes, Case { losses_max: 1, ..case() });
    found(Mistake::MajorityOfUnnamed, Case { named: false, losses_max: 1, ..case() });
    found(Mistake::HalfDecides, case());
    found(Mistake::CountedInTheNext, Case { epochs: 2, ballots_max: 2, ..case() });
    found(Mistake::OtherInstanceServed, Case { epochs: 2, ballots_max: 2, ..case() });
    found(Mistake::BallotUsedTwice, case());
    assert_eq!(missed, []);
}
