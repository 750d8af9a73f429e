//! Clients: writes, reads and conditional writes of the one key, each by a coordinator in the epoch that it knows.

use crate::{Case, Mistake, State, Step, slot};
use kvorum_core::configuration::{PerList, Route};
use kvorum_core::{Acceptance, Quorum, Verdict, Version};

/// The version of the deletion, in cases that have one.
pub(crate) const TOMBSTONE: u64 = 2;

/// The operation of one client; its coordinator is the node `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// Writes the record of this version.
    Write {
        at: usize,
        version: u64,
    },
    Read {
        at: usize,
    },
    /// Writes under a ballot of its own if there is no record yet; `rounds` ballots at most.
    Create {
        at: usize,
        first: u64,
        rounds: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    Waiting,
    Writing,
    Reading { newest: u64 },
    WritingBack { record: u64 },
    Preparing { newest: u64 },
    Accepting,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    script: Script,
    turn: Turn,
    /// The epoch of its plan.
    epoch: usize,
    /// The replicas that answered in this turn and confirmed, a bit each.
    confirmed: u8,
    /// The record that it sends, or has sent.
    record: u64,
    /// The epochs in which its record was sent, a bit each.
    sent: u8,
    rounds: u64,
    /// What a read must not be older than.
    floor: u64,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    None,
    Won,
    Stale,
}

impl Client {
    pub(crate) fn new(script: Script) -> Self {
        let record = match script {
            Script::Write { version, .. } => version,
            Script::Create { first, .. } => first,
            Script::Read { .. } => 0,
        };
        Self {
            script,
            turn: Turn::Waiting,
            epoch: 0,
            confirmed: 0,
            record,
            sent: 0,
            rounds: 0,
            floor: 0,
            outcome: Outcome::None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.turn == Turn::Over
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.outcome == Outcome::Stale
    }

    pub(crate) fn has_won(&self) -> bool {
        self.outcome == Outcome::Won
    }

    /// Forgets requests that no node can take any more: all nodes are past `oldest`, and none holds less than `least`.
    pub(crate) fn forget_what_is_over(&mut self, oldest: usize, least: u64) {
        self.sent &= !0 << oldest;
        if self.record <= least {
            self.sent = 0;
        }
        if self.turn == Turn::Over {
            (self.epoch, self.confirmed, self.rounds, self.floor) = (0, 0, 0, 0);
            if self.sent == 0 {
                self.record = 0;
            }
        }
    }

    fn coordinator(&self) -> usize {
        match self.script {
            Script::Write { at, .. } | Script::Read { at } | Script::Create { at, .. } => at,
        }
    }
}

impl Case {
    fn quorum(&self) -> Quorum {
        Quorum::new(self.ack, 3, 4).unwrap()
    }

    /// The lists on which this turn counts.
    fn counted(&self, turn: &Turn, route: Route<'static>) -> Route<'static> {
        let is_read_list = match turn {
            Turn::Writing => self.mistake == Mistake::ReadListOnly,
            Turn::WritingBack { .. } => self.mistake == Mistake::WriteBackReadListOnly,
            Turn::Preparing { .. } | Turn::Accepting => self.mistake == Mistake::BallotReadListOnly,
            Turn::Reading { .. } => true,
            Turn::Waiting | Turn::Over => false,
        };
        if is_read_list { Route::single(route.reads()) } else { route }
    }

    fn is_reached(&self, state: &State, client: &Client) -> bool {
        let route = self.counted(&client.turn, state.route(client.epoch));
        let confirmed = (0..crate::NODES).filter(|at| client.confirmed & (1 << at) != 0);
        let confirmed: Vec<usize> = confirmed.filter(|at| self.counts(state, *at, client.epoch)).collect();
        if self.mistake == Mistake::OneTally {
            return confirmed.len() >= 2;
        }
        let mut tally = PerList::of_quorum(route, self.quorum());
        for at in confirmed {
            tally.count(slot(at), kvorum_core::Tally::confirm);
        }
        tally.verdict() == Verdict::Reached
    }

    pub(crate) fn client_steps(&self, state: &State, at: usize, steps: &mut Vec<Step>) {
        let client = &state.clients[at];
        let coordinator = client.coordinator();
        let known = state.nodes[coordinator].epoch;
        let may_begin = match client.turn {
            Turn::Waiting => true,
            // A plan is made anew once the coordinator has adopted a newer epoch.
            Turn::Over => false,
            _ => known > client.epoch,
        };
        if may_begin && self.is_member(state, coordinator, known) {
            steps.push(Step::Begin(at));
        }
        for node in 0..crate::NODES {
            let is_target = |epoch: usize| state.route(epoch).targets().any(|target| target == slot(node));
            let is_asked = match client.turn {
                Turn::Waiting | Turn::Over => false,
                Turn::Reading { .. } => state.route(client.epoch).reads().contains(&slot(node)),
                _ => is_target(client.epoch),
            };
            if is_asked && client.confirmed & (1 << node) == 0 && self.is_served(state, node, client.epoch) {
                steps.push(Step::Deliver(at, node));
            }
            let was_sent = |epoch: usize| {
                client.sent & (1 << epoch) != 0 && is_target(epoch) && self.is_served(state, node, epoch)
            };
            if state.nodes[node].record < client.record && (0..state.chain.len()).any(was_sent) {
                steps.push(Step::DeliverLate(at, node));
            }
        }
    }

    /// Begins the operation, or makes a new plan in a newer epoch.
    pub(crate) fn begin(state: &mut State, at: usize) -> Option<()> {
        let floor = if state.purged { 0 } else { state.floor };
        let known = state.nodes[state.clients[at].coordinator()].epoch;
        let client = &mut state.clients[at];
        let is_first = client.turn == Turn::Waiting;
        (client.epoch, client.confirmed) = (known, 0);
        match (client.script, &client.turn) {
            (Script::Write { .. }, _) => {
                client.turn = Turn::Writing;
                client.sent |= 1 << known;
            }
            (Script::Read { .. }, _) => {
                client.turn = Turn::Reading { newest: 0 };
                if is_first {
                    client.floor = floor;
                }
            }
            // Its record may be taken or not: unknown, as nobody remembers.
            (Script::Create { .. }, Turn::Accepting) => client.turn = Turn::Over,
            (Script::Create { first, rounds, .. }, _) => {
                if client.rounds == rounds {
                    return None;
                }
                client.record = first + 2 * client.rounds;
                client.rounds += 1;
                client.turn = Turn::Preparing { newest: 0 };
            }
        }
        Some(())
    }

    pub(crate) fn deliver(&self, state: &mut State, at: usize, node: usize) {
        let mut client = state.clients[at].clone();
        let replica = &mut state.nodes[node];
        let ballot = Version::from_words(client.record, 1);
        let confirms = match &mut client.turn {
            Turn::Writing => {
                // A replica with a newer record confirms; one whose history is closed does not.
                replica.take(client.record);
                client.record > replica.barred
            }
            Turn::Reading { newest } => {
                *newest = replica.record.max(*newest);
                true
            }
            Turn::WritingBack { record } => replica.take(*record),
            Turn::Preparing { newest } => {
                let is_promised = replica.key().promise(ballot).is_ok();
                if is_promised {
                    replica.promised = client.record;
                    *newest = replica.record.max(*newest);
                }
                is_promised
            }
            Turn::Accepting => match replica.key().accept(ballot) {
                Acceptance::Store => {
                    replica.record = client.record;
                    true
                }
                Acceptance::Same => true,
                Acceptance::Denied { .. } => false,
            },
            Turn::Waiting | Turn::Over => false,
        };
        client.confirmed |= u8::from(confirms && self.counts(state, node, client.epoch)) << node;
        if self.is_reached(state, &client) {
            self.advance(state, &mut client);
        }
        state.clients[at] = client;
    }

    fn advance(&self, state: &mut State, client: &mut Client) {
        match client.turn {
            Turn::Writing => {
                state.floor = state.floor.max(client.record);
                client.turn = Turn::Over;
            }
            Turn::Reading { newest } => {
                // Replicas that have the record need not get it.
                let has_it =
                    |at: usize| state.nodes[at].record >= newest && state.nodes[at].epoch == client.epoch;
                client.confirmed &= (0..crate::NODES).fold(0, |mask, at| mask | u8::from(has_it(at)) << at);
                client.turn = Turn::WritingBack { record: newest };
                if self.is_reached(state, client) {
                    self.advance(state, client);
                }
            }
            Turn::WritingBack { record } => {
                let is_stale = record < client.floor && !(state.purged && record == 0);
                client.outcome = if is_stale { Outcome::Stale } else { Outcome::None };
                state.floor = state.floor.max(record);
                client.turn = Turn::Over;
            }
            Turn::Preparing { newest: 0 } => {
                (client.turn, client.confirmed) = (Turn::Accepting, 0);
                client.sent |= 1 << client.epoch;
            }
            // The condition does not hold.
            Turn::Preparing { .. } => client.turn = Turn::Over,
            Turn::Accepting => {
                state.floor = state.floor.max(client.record);
                (client.turn, client.outcome) = (Turn::Over, Outcome::Won);
            }
            Turn::Waiting | Turn::Over => {}
        }
    }

    pub(crate) fn deliver_late(state: &mut State, at: usize, node: usize) {
        let client = &state.clients[at];
        let replica = &mut state.nodes[node];
        match client.script {
            Script::Create { .. } => {
                let ballot = Version::from_words(client.record, 1);
                if replica.key().accept(ballot) == Acceptance::Store {
                    replica.record = client.record;
                }
            }
            _ => {
                replica.take(client.record);
            }
        }
    }
}
