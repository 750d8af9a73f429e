//! A model of a change of members under load, explored in full: no acknowledged write is missed at any instant.
//!
//! Goal: with the rules of `kvorum_core::configuration`, no order of adoptions, comparisons, requests and decisions lets a
//! read miss a write that was acknowledged before, or an earlier read; nor lets two conditional writes of one condition
//! both succeed. Each canary of the design is found. Method: one partition, FROM 3 and ACK 2, whose last owner changes from
//! node 2 to node 3. The chain of configurations is decided as `tests/agreement_model.rs` shows: one successor each, any
//! that the rules allow, at any time. Nodes adopt epochs when they like, or never: a node that is away is one that does
//! nothing. Requests are served in their own epoch only, and may arrive at any time after they were sent, also when their
//! coordinator is gone. In every state, every read that a quorum could serve at that instant is judged, in every epoch.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a model: a mistake here must stop the test"
)]

mod cases;
mod chain;
mod clients;

use chain::{Decisions, LISTS, Link};
use clients::{Client, Script};
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{Progress, Route, Slot};
use kvorum_core::{KeyState, Version};
use stateright::{Model, Property};

const NODES: usize = 4;

/// What is wrong in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The new owner is read although it was not compared with every old one.
    ReadBeforeFilled,
    /// The old side is left although a member has not adopted the epoch that writes both: it was compared before.
    JointLeftEarly,
    /// The change ends although a member may still read the old side.
    EndedEarly,
    /// Writes count confirmations of all owners together.
    OneTally,
    /// Writes count confirmations of the list that is read.
    ReadListOnly,
    /// A read writes back to the list that it read only.
    WriteBackReadListOnly,
    /// Promises and acceptances of conditional writes count on the list that is read only.
    BallotReadListOnly,
    /// Comparisons of an earlier attempt count for a later one.
    ComparisonsKept,
    /// Records are dropped by a batch that was made in an epoch before.
    BatchOfAnotherEpoch,
    /// An owner of the old side drops its records while they are still read by others.
    DroppedEarly,
    /// A replica serves requests of epochs before its own.
    OldEpochServed,
    /// A node forgets in a crash that it has adopted an epoch.
    AdoptionUnsynced,
    /// Answers of stores that lack records count.
    LackingCounts,
    /// As many as a quorum may be marked as lacking.
    AnyNumberLacks,
    /// The mark is removed without a refill.
    MarkRemovedEarly,
    /// The mark is removed before the others have taken what the member alone has.
    MarkedKeepRecords,
    /// A member is marked that may not know of the change.
    MarksUnknowing,
    /// One replica answers in a joint epoch without asking whether it is the last one.
    MinorityUnconfirmed,
    /// A comparison counts although a promise kept a record out.
    PromiseHidesComparison,
    /// Tombstones are purged once the owners of the old side hold them, in a joint epoch.
    PurgedWhileJoint,
}

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    mistake: Mistake,
    /// Whether node 2 leaves and node 3 joins, or both stay and only their shares change.
    is_replacement: bool,
    scripts: Vec<Script>,
    /// How many configurations are decided, the first included.
    epochs_max: usize,
    /// Whether a change may turn back.
    cancels: bool,
    /// The nodes that may be marked as lacking, a bit each.
    may_lack: u8,
    /// The node that alone has the first record: a write that one replica was to confirm.
    alone: Option<usize>,
    /// How many of three replicas must confirm a write; if all, any one of them may be read.
    ack: u16,
    /// Whether the write of the highest version is a deletion, whose tombstone is purged.
    purges: bool,
    /// The answers of the crate's rules so far: many states ask the same.
    decisions: Decisions,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    /// The place in the chain of the configuration that it works with.
    epoch: usize,
    /// The version of its record.
    record: u64,
    /// The highest ballot that it has promised.
    promised: u64,
    /// The version up to which history is closed: a tombstone up to there was purged, and nothing older comes in.
    barred: u64,
    /// Whether a batch that drops its records is under way.
    has_batch: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    /// The decided configurations.
    chain: Vec<Link>,
    /// Progress in the epoch of the last one.
    progress: Progress,
    clients: Vec<Client>,
    /// The highest version that was acknowledged, or returned by a read that has ended.
    floor: u64,
    crashes: usize,
    purged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Decide(Link),
    Adopt(usize),
    /// The first takes what it lacks from the second.
    Compare(usize, usize),
    Begin(usize),
    Deliver(usize, usize),
    /// A request of an earlier turn of a client, or of one that has ended, arrives.
    DeliverLate(usize, usize),
    Drop(usize),
    BeginBatch(usize),
    Crash(usize),
    Purge,
}

impl Node {
    fn key(&self) -> KeyState {
        let version = |clock| if clock == 0 { Version::ZERO } else { Version::from_words(clock, 1) };
        KeyState { stored: version(self.record), promised: version(self.promised), ..KeyState::EMPTY }
    }

    /// Takes a record as repair does; returns whether the node has it, or a newer one.
    fn take(&mut self, record: u64) -> bool {
        if record <= self.barred {
            return false;
        }
        if record > self.record && !self.key().is_bound(Version::from_words(record, 1)) {
            self.record = record;
        }
        self.record >= record
    }
}

impl State {
    fn last(&self) -> usize {
        self.chain.len() - 1
    }

    /// Forgets what can change nothing any more, so that more states become equal.
    fn forget_what_is_over(&mut self, mistake: Mistake) {
        let keeps = matches!(mistake, Mistake::OldEpochServed | Mistake::AdoptionUnsynced);
        let oldest = self.nodes.iter().map(|node| node.epoch).min().unwrap_or(0);
        let least = self.nodes.iter().map(|node| node.record).min().unwrap_or(0);
        for client in &mut self.clients {
            client.forget_what_is_over(if keeps { 0 } else { oldest }, least);
        }
    }

    fn link(&self, epoch: usize) -> &Link {
        &self.chain[epoch]
    }

    fn route(&self, epoch: usize) -> Route<'static> {
        self.link(epoch).route()
    }
}

impl Case {
    /// Whether the replica `at` serves a request of `epoch`.
    fn is_served(&self, state: &State, at: usize, epoch: usize) -> bool {
        let node = &state.nodes[at];
        let is_epoch = match self.mistake {
            Mistake::OldEpochServed => epoch <= node.epoch,
            _ => epoch == node.epoch,
        };
        is_epoch && self.is_member(state, at, epoch)
    }

    fn is_member(&self, state: &State, at: usize, epoch: usize) -> bool {
        state.link(epoch).members(self.is_replacement).contains(&at)
    }

    /// Whether the answer of `at` counts in `epoch`.
    fn counts(&self, state: &State, at: usize, epoch: usize) -> bool {
        self.mistake == Mistake::LackingCounts || !state.link(epoch).lacks(at)
    }

    /// Whether no quorum could serve a read at this instant that misses what was acknowledged.
    fn reads_are_right(&self, state: &State) -> bool {
        (0..state.chain.len()).all(|epoch| {
            let asks = |at: &usize| state.nodes[*at].epoch == epoch && self.is_member(state, *at, epoch);
            if !(0..NODES).any(|at| asks(&at)) {
                return true;
            }
            let list = state.route(epoch).reads().iter().map(|slot| usize::from(slot.0));
            let served =
                list.filter(|at| self.is_served(state, *at, epoch) && self.counts(state, *at, epoch));
            let records: Vec<u64> = served.map(|at| state.nodes[at].record).collect();
            let mut pairs = records
                .iter()
                .enumerate()
                .flat_map(|(at, one)| records[..at].iter().map(move |other| *one.max(other)));
            pairs.all(|newest| Self::is_current(state, newest))
        })
    }

    /// Whether all that `next` newly marks have adopted an epoch of the change under way. A store that joins is in none before.
    fn know_of_change(&self, state: &State, next: &Link) -> bool {
        let before = state.link(state.last());
        let opened = state.chain.iter().rposition(Link::is_stable).map_or(0, |stable| stable + 1);
        let is_exempt = |at: usize| at == 3 && self.is_replacement || self.mistake == Mistake::MarksUnknowing;
        let marked = (0..NODES).filter(|at| next.lacks(*at) && !before.lacks(*at) && !is_exempt(*at));
        next.is_stable() && before.is_stable()
            || marked.map(|at| state.nodes[at].epoch).all(|epoch| epoch >= opened)
    }

    /// Whether each replica that may be the only one to answer a read gives the right answer. In a joint epoch it asks first
    /// whether that is the last one.
    fn single_reads_are_right(&self, state: &State) -> bool {
        (0..NODES).all(|at| {
            let epoch = state.nodes[at].epoch;
            let is_confirmed = epoch == state.last() || self.mistake == Mistake::MinorityUnconfirmed;
            let answers = self.is_member(state, at, epoch)
                && state.route(epoch).reads().contains(&slot(at))
                && self.counts(state, at, epoch)
                && (state.link(epoch).is_stable() || is_confirmed);
            !answers || Self::is_current(state, state.nodes[at].record)
        })
    }

    /// Whether a read that begins now may return `record`. A tombstone that was purged leaves nothing behind.
    fn is_current(state: &State, record: u64) -> bool {
        record >= state.floor || (state.purged && record == 0)
    }

    fn change_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.chain.len() < self.epochs_max {
            let decisions = self.decisions(state).into_iter();
            steps.extend(decisions.filter(|link| self.know_of_change(state, link)).map(Step::Decide));
        }
        let last = state.last();
        for (at, node) in state.nodes.iter().enumerate() {
            if node.epoch < last {
                steps.push(Step::Adopt(at));
            }
            let link = state.link(node.epoch);
            let is_owner = link.route().targets().any(|slot| usize::from(slot.0) == at);
            let may_drop = match self.mistake {
                Mistake::BatchOfAnotherEpoch => node.has_batch,
                Mistake::DroppedEarly => at == 2 && !link.is_stable(),
                _ => !is_owner && link.is_stable() && !link.is_any_lacking(),
            };
            if may_drop && node.record > 0 {
                steps.push(Step::Drop(at));
            }
            if self.mistake == Mistake::BatchOfAnotherEpoch && !is_owner && !node.has_batch && node.epoch > 0
            {
                steps.push(Step::BeginBatch(at));
            }
            if self.mistake == Mistake::AdoptionUnsynced && node.epoch > 0 && state.crashes == 0 {
                steps.push(Step::Crash(at));
            }
            let is_ready = |at: &usize| state.nodes[*at].epoch == last && self.is_member(state, *at, last);
            let has_more = |from: &usize| self.alone == Some(*from);
            let takes = |from: &usize| link.lacks(at) || at == 3 || has_more(from);
            if link.is_filling() || link.lacks(at) || link.is_any_lacking() && self.alone.is_some() {
                let is_source = |from: &usize| is_ready(from) || self.mistake == Mistake::JointLeftEarly;
                let sources = (0..NODES).filter(|from| *from != at && is_source(from));
                let sources = sources.filter(|from| !link.lacks(*from) || has_more(from));
                steps.extend(
                    sources.filter(|from| takes(from) && is_ready(&at)).map(|from| Step::Compare(at, from)),
                );
            }
        }
        if self.purges && !state.purged && self.may_purge(state) {
            steps.push(Step::Purge);
        }
    }

    /// Whether all members have settled on the tombstone, which is the highest record.
    fn may_purge(&self, state: &State) -> bool {
        let last = state.last();
        let highest = state.nodes.iter().map(|node| node.record).max().unwrap_or(0);
        let asked: Vec<usize> = match self.mistake {
            Mistake::PurgedWhileJoint => LISTS[0].iter().map(|slot| usize::from(slot.0)).collect(),
            _ => state.link(last).members(self.is_replacement),
        };
        let is_calm = state.link(last).is_stable() || self.mistake == Mistake::PurgedWhileJoint;
        let has_it = |at: &usize| state.nodes[*at].record == highest && state.nodes[*at].epoch == last;
        is_calm && highest == clients::TOMBSTONE && state.floor == highest && asked.iter().all(has_it)
    }
}

impl Model for Case {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let node = Node { epoch: 0, record: 0, promised: 0, barred: 0, has_batch: false };
        let nodes =
            (0..NODES).map(|at| Node { record: u64::from(self.alone == Some(at)), ..node.clone() }).collect();
        vec![State {
            nodes,
            chain: vec![Link::first()],
            progress: Progress::new(Epoch(1)),
            clients: self.scripts.iter().map(|script| Client::new(*script)).collect(),
            floor: 0,
            crashes: 0,
            purged: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.change_steps(state, steps);
        for client in 0..self.scripts.len() {
            self.client_steps(state, client, steps);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Decide(link) => {
                state.chain.push(link);
                state.progress = self.progress_after(last);
            }
            Step::Adopt(at) => {
                state.nodes[at].epoch += 1;
                let epoch = state.nodes[at].epoch;
                state.progress.adopt(chain::epoch_of(epoch), chain::id(at));
            }
            Step::Compare(at, from) => {
                let (record, barred) = (state.nodes[from].record, state.nodes[from].barred);
                let node = &mut state.nodes[at];
                // It adopts the watermark: what it holds of a closed history, and the other does not, was deleted.
                node.barred = node.barred.max(barred);
                if node.record <= node.barred && node.record != record {
                    node.record = 0;
                }
                let has_it = node.take(record) || record <= node.barred;
                if has_it || self.mistake == Mistake::PromiseHidesComparison {
                    let epoch = chain::epoch_of(state.last());
                    state.progress.compare(epoch, chain::id(at), chain::id(from));
                }
            }
            Step::Begin(client) => Self::begin(&mut state, client)?,
            Step::Deliver(client, at) => self.deliver(&mut state, client, at),
            Step::DeliverLate(client, at) => Self::deliver_late(&mut state, client, at),
            Step::Drop(at) => (state.nodes[at].record, state.nodes[at].has_batch) = (0, false),
            Step::BeginBatch(at) => state.nodes[at].has_batch = true,
            Step::Crash(at) => {
                state.crashes += 1;
                state.nodes[at].epoch -= 1;
            }
            Step::Purge => {
                state.purged = true;
                for node in state.nodes.iter_mut().filter(|node| node.record == clients::TOMBSTONE) {
                    (node.record, node.barred) = (0, clients::TOMBSTONE);
                }
            }
        }
        state.forget_what_is_over(self.mistake);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every read at any instant is right", |case: &Case, state: &State| {
                case.reads_are_right(state)
            }),
            Property::always("reads return nothing older", |_: &Case, state: &State| {
                state.clients.iter().all(|client| !client.is_stale())
            }),
            Property::always("one of two conditional writes succeeds", |_: &Case, state: &State| {
                state.clients.iter().filter(|client| client.has_won()).count() <= 1
            }),
            Property::always("every read of one replica is right", |case: &Case, state: &State| {
                case.ack < 3 || case.single_reads_are_right(state)
            }),
            Property::always(
                "a record that one replica confirmed is stored",
                |case: &Case, state: &State| {
                    case.alone.is_none() || state.nodes.iter().any(|node| node.record > 0)
                },
            ),
            Property::sometimes("the change ends", |_: &Case, state: &State| {
                state.nodes.iter().any(|node| state.link(node.epoch).is_changed())
                    && state.clients.iter().all(Client::is_over)
            }),
        ]
    }
}

/// The slots of the nodes, for requests.
fn slot(at: usize) -> Slot {
    Slot(u16::try_from(at).unwrap())
}
