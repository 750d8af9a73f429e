//! Agreement: one decision of single-decree Paxos (Lamport, "Paxos Made Simple", 2001) for each epoch.
//!
//! The acceptors of an epoch's successor are exactly the stores that the epoch's configuration names
//! ([`crate::configuration`]). So the set of acceptors of one decision never changes while it is made, and epochs form a
//! chain. There is no log, leader, lease or timer, and no network: [`Acceptor`] and [`Proposal`] are plain values, and
//! the node sends, syncs and retries. `tests/agreement_model.rs` checks both.
//!
//! Three duties are the node's:
//! - it syncs [`Ballots`] before it answers a promise or an acceptance;
//! - a proposer asks its own acceptor first: a ballot that was used before a crash is refused there;
//! - a store that is empty again has another identity, so no configuration names it until one is decided.
//!
//! Where a majority of the acceptors is lost for good, an operator may *force* a successor. All acceptors that are left must
//! accept it ([`Electorate::unanimous`]); one that did is *bound*: it takes no part in any other decision about that
//! successor. `tests/force_model.rs` checks it.

use crate::version::NodeId;
use std::collections::BTreeMap;
use std::fmt;

/// The number of a configuration. It rises by one with each decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The hash of a configuration, over its bytes and so over all before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigurationHash(pub u128);

/// A node with one of its stores: this store promises, accepts and is retired, not the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Voter {
    /// The node.
    pub node: NodeId,
    /// The identity of its store.
    pub store: u128,
}

/// A decision: the successor of one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The epoch whose successor is decided.
    pub epoch: Epoch,
    /// The hash of that epoch's configuration: epochs of one number on two branches are two instances.
    pub hash: ConfigurationHash,
}

/// A proposer's turn. Higher ones win; no two proposers have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Compared first.
    pub round: u64,
    /// The proposer.
    pub proposer: Voter,
}

/// The durable state of an acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ballots<V> {
    /// The highest ballot that was promised.
    pub promised: Option<Ballot>,
    /// The highest ballot whose value was accepted, with the value.
    pub accepted: Option<(Ballot, V)>,
}

impl<V> Default for Ballots<V> {
    fn default() -> Self {
        Self { promised: None, accepted: None }
    }
}

/// The reason why an acceptor does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The configuration does not name this store: it never votes under it.
    NotNamed {
        /// The store.
        voter: Voter,
    },
    /// The acceptor is at another configuration: one of the two must catch up, or they are of two branches.
    OtherInstance {
        /// The acceptor's instance.
        ours: Instance,
    },
    /// A ballot at least as high was promised. A retry must exceed it.
    Outbid {
        /// That ballot.
        by: Ballot,
    },
    /// The acceptor has accepted a forced value: it accepts no other.
    Bound,
}

/// The acceptors of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Electorate {
    /// The store of each node; none where the configuration names no stores.
    stores: BTreeMap<NodeId, Option<u128>>,
    needed: usize,
}

impl Electorate {
    /// The acceptors of a configuration with these nodes and stores.
    ///
    /// A majority decides. Where a store is not named, as in epoch 0, nobody can tell a store that was replaced by an
    /// empty one, which has forgotten its promises. Then all must accept: one that forgot nothing is enough to show
    /// every later proposer the accepted value.
    pub fn new(stores: impl IntoIterator<Item = (NodeId, Option<u128>)>) -> Self {
        let stores: BTreeMap<_, _> = stores.into_iter().collect();
        let is_named = stores.values().all(Option::is_some);
        let needed = if is_named { stores.len() / 2 + 1 } else { stores.len() };
        // An electorate without nodes decides nothing.
        Self { needed: needed.max(1), stores }
    }

    /// The acceptors of a forced value: all of them must accept it.
    pub fn unanimous(voters: impl IntoIterator<Item = Voter>) -> Self {
        let stores: BTreeMap<_, _> =
            voters.into_iter().map(|voter| (voter.node, Some(voter.store))).collect();
        Self { needed: stores.len().max(1), stores }
    }

    /// Whether `voter` is one of the acceptors.
    pub fn names(&self, voter: Voter) -> bool {
        self.stores.get(&voter.node).is_some_and(|store| store.is_none_or(|store| store == voter.store))
    }

    /// How many of them decide.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// The nodes to ask.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.stores.keys().copied()
    }
}

/// A store's part in one decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acceptor<V> {
    own: Voter,
    instance: Instance,
    is_named: bool,
    /// Whether the accepted value is a forced one.
    is_bound: bool,
    ballots: Ballots<V>,
}

impl<V: Clone> Acceptor<V> {
    /// The acceptor of `own` for `instance`, with what it stored for this very instance before.
    pub fn new(own: Voter, instance: Instance, electorate: &Electorate, ballots: Ballots<V>) -> Self {
        Self { own, instance, is_named: electorate.names(own), is_bound: false, ballots }
    }

    /// The same; `is_bound` says whether the value that it has accepted is a forced one.
    #[must_use]
    pub fn bound(self, is_bound: bool) -> Self {
        Self { is_bound, ..self }
    }

    /// The state to sync before an answer is sent.
    pub fn ballots(&self) -> &Ballots<V> {
        &self.ballots
    }

    /// The instance that it decides.
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Promises to accept nothing below `ballot`, and returns the value that was accepted so far. A ballot is promised
    /// at most once.
    ///
    /// # Errors
    /// Nothing was done; see [`Denial`].
    pub fn prepare(&mut self, instance: Instance, ballot: Ballot) -> Result<Option<(Ballot, V)>, Denial> {
        self.check(instance)?;
        match self.ballots.promised {
            Some(by) if by >= ballot => Err(Denial::Outbid { by }),
            _ => {
                self.ballots.promised = Some(ballot);
                Ok(self.ballots.accepted.clone())
            }
        }
    }

    /// Accepts `value` under `ballot`, unless a higher one was promised. May be repeated.
    ///
    /// # Errors
    /// Nothing was done; see [`Denial`].
    pub fn accept(&mut self, instance: Instance, ballot: Ballot, value: V) -> Result<(), Denial> {
        self.check(instance)?;
        if self.is_bound {
            return Err(Denial::Bound);
        }
        self.take(ballot, value)
    }

    /// Accepts the forced `value` under `ballot`, in the place of any other, unless a higher ballot was promised. From then
    /// on it accepts forced values only.
    ///
    /// # Errors
    /// Nothing was done; see [`Denial`].
    pub fn accept_forced(&mut self, instance: Instance, ballot: Ballot, value: V) -> Result<(), Denial> {
        self.check(instance)?;
        self.take(ballot, value)?;
        self.is_bound = true;
        Ok(())
    }

    fn take(&mut self, ballot: Ballot, value: V) -> Result<(), Denial> {
        match self.ballots.promised {
            Some(by) if by > ballot => Err(Denial::Outbid { by }),
            _ => {
                self.ballots = Ballots { promised: Some(ballot), accepted: Some((ballot, value)) };
                Ok(())
            }
        }
    }

    fn check(&self, instance: Instance) -> Result<(), Denial> {
        if instance != self.instance {
            return Err(Denial::OtherInstance { ours: self.instance });
        }
        if self.is_named { Ok(()) } else { Err(Denial::NotNamed { voter: self.own }) }
    }
}

/// The next step of a proposer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalStep {
    /// Too few answers yet.
    Wait,
    /// Ask all acceptors to accept [`Proposal::value`].
    SendAccept,
    /// [`Proposal::value`] is decided, for ever.
    Decided,
}

/// One turn of a proposer. It ends when it decides, or when the proposer gives it up for a higher ballot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proposal<V> {
    ballot: Ballot,
    electorate: Electorate,
    /// The accepted value of the highest ballot among the promises.
    found: Option<(Ballot, V)>,
    wanted: V,
    promised: BTreeMap<NodeId, u128>,
    accepted: BTreeMap<NodeId, u128>,
}

impl<V: Clone> Proposal<V> {
    /// A proposal of `wanted` under `ballot`.
    pub fn new(ballot: Ballot, electorate: Electorate, wanted: V) -> Self {
        Self { ballot, electorate, found: None, wanted, promised: BTreeMap::new(), accepted: BTreeMap::new() }
    }

    /// Its ballot.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// The value to send: one that may have been decided already, else the proposer's own; none until enough have
    /// promised.
    pub fn value(&self) -> Option<&V> {
        self.is_ready().then(|| self.found.as_ref().map_or(&self.wanted, |(_, value)| value))
    }

    /// Whether [`Self::value`] is not the value that was wanted, but one that was found.
    pub fn is_taken_over(&self) -> bool {
        self.found.is_some()
    }

    /// Counts a promise with the value that `from` had accepted. A promise that comes once the value is chosen changes
    /// nothing.
    pub fn promised(&mut self, from: Voter, accepted: Option<(Ballot, V)>) -> ProposalStep {
        if self.is_ready() || !self.electorate.names(from) || self.promised.contains_key(&from.node) {
            return ProposalStep::Wait;
        }
        self.promised.insert(from.node, from.store);
        if let Some((ballot, value)) = accepted
            && self.found.as_ref().is_none_or(|(highest, _)| *highest < ballot)
        {
            self.found = Some((ballot, value));
        }
        if self.is_ready() { ProposalStep::SendAccept } else { ProposalStep::Wait }
    }

    /// Counts an acceptance of the value under this ballot.
    pub fn accepted(&mut self, from: Voter) -> ProposalStep {
        // Without a named store the node may have lost the store that promised.
        let is_other_store = self.promised.get(&from.node).is_some_and(|store| *store != from.store);
        if !self.is_ready() || !self.electorate.names(from) || is_other_store {
            return ProposalStep::Wait;
        }
        self.accepted.insert(from.node, from.store);
        if self.accepted.len() >= self.electorate.needed { ProposalStep::Decided } else { ProposalStep::Wait }
    }

    fn is_ready(&self) -> bool {
        self.promised.len() >= self.electorate.needed
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ConfigurationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} with the store {:032x}", self.node, self.store)
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNamed { voter } => {
                write!(
                    f,
                    "the configuration does not name {voter}; a store votes once a configuration names it"
                )
            }
            Self::OtherInstance { ours } => {
                write!(
                    f,
                    "this node is at epoch {} with hash {}, not at the epoch asked for",
                    ours.epoch, ours.hash
                )
            }
            Self::Outbid { by } => {
                write!(f, "round {} of {} was promised; a new proposal must exceed it", by.round, by.proposer)
            }
            Self::Bound => f.write_str("the store has accepted a forced configuration, and accepts no other"),
        }
    }
}

impl std::error::Error for Denial {}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(node: u64) -> Voter {
        Voter { node: NodeId(node), store: u128::from(node) + 100 }
    }

    fn named(nodes: u64) -> Electorate {
        Electorate::new((0..nodes).map(|node| (NodeId(node), Some(u128::from(node) + 100))))
    }

    fn ballot(round: u64, node: u64) -> Ballot {
        Ballot { round, proposer: voter(node) }
    }

    const HERE: Instance = Instance { epoch: Epoch(1), hash: ConfigurationHash(7) };

    /// Any two deciding sets share an acceptor; an electorate that names no stores needs all of its nodes.
    #[test]
    fn majorities_of_named_stores() {
        for nodes in 1..8 {
            assert!(2 * named(nodes).needed() > usize::try_from(nodes).unwrap());
        }
        let open = Electorate::new((0..4).map(|node| (NodeId(node), None)));
        assert_eq!(open.needed(), 4);
        assert!(open.names(Voter { node: NodeId(1), store: 9 }));
        assert!(!named(3).names(Voter { node: NodeId(1), store: 9 }) && !named(3).names(voter(3)));
        assert_eq!(Electorate::new([]).needed(), 1, "nobody decides nothing");
    }

    /// Only the named store votes, only at its own configuration, and never below its promise.
    #[test]
    fn acceptors_deny_by_name() {
        let mut acceptor = Acceptor::new(voter(0), HERE, &named(3), Ballots::default());
        assert_eq!(acceptor.prepare(HERE, ballot(2, 1)), Ok(None));
        assert_eq!(acceptor.prepare(HERE, ballot(2, 1)), Err(Denial::Outbid { by: ballot(2, 1) }), "once");
        assert_eq!(acceptor.accept(HERE, ballot(1, 2), 'a'), Err(Denial::Outbid { by: ballot(2, 1) }));
        assert_eq!(acceptor.accept(HERE, ballot(2, 1), 'b'), Ok(()));
        assert_eq!(acceptor.accept(HERE, ballot(2, 1), 'b'), Ok(()), "repeated");
        assert_eq!(acceptor.prepare(HERE, ballot(3, 2)), Ok(Some((ballot(2, 1), 'b'))));
        let branch = Instance { hash: ConfigurationHash(8), ..HERE };
        assert_eq!(acceptor.prepare(branch, ballot(9, 1)), Err(Denial::OtherInstance { ours: HERE }));
        let replaced = Voter { store: 9, ..voter(0) };
        let mut other = Acceptor::<char>::new(replaced, HERE, &named(3), Ballots::default());
        assert_eq!(other.prepare(HERE, ballot(1, 1)), Err(Denial::NotNamed { voter: replaced }));
        assert_eq!(other.ballots(), &Ballots::default());
    }

    /// A proposer sends the value of the highest accepted ballot, and counts each node once.
    #[test]
    fn proposals_take_over_what_was_accepted() {
        let mut proposal = Proposal::new(ballot(9, 0), named(5), 'w');
        assert_eq!(proposal.promised(voter(0), Some((ballot(1, 1), 'a'))), ProposalStep::Wait);
        assert_eq!(proposal.promised(voter(0), Some((ballot(8, 1), 'z'))), ProposalStep::Wait, "twice");
        assert_eq!(proposal.promised(voter(1), Some((ballot(3, 1), 'b'))), ProposalStep::Wait);
        assert_eq!(proposal.value(), None);
        assert_eq!(proposal.accepted(voter(1)), ProposalStep::Wait, "nothing was sent");
        assert_eq!(proposal.promised(voter(7), None), ProposalStep::Wait, "no member");
        assert_eq!(proposal.promised(voter(2), Some((ballot(2, 1), 'c'))), ProposalStep::SendAccept);
        assert_eq!(proposal.promised(voter(3), Some((ballot(8, 1), 'z'))), ProposalStep::Wait, "too late");
        assert_eq!((proposal.value(), proposal.is_taken_over()), (Some(&'b'), true));
        assert_eq!(proposal.accepted(voter(3)), ProposalStep::Wait);
        assert_eq!(proposal.accepted(voter(3)), ProposalStep::Wait, "once");
        assert_eq!(proposal.accepted(voter(4)), ProposalStep::Wait);
        assert_eq!(proposal.accepted(voter(0)), ProposalStep::Decided);
    }
}
