//! Proposing: one node makes the next configuration decided.
//!
//! Any number of nodes may do so at once: rounds decide between them. A proposal that is given up, or whose node ends, may
//! have been decided all the same; the next proposer then finds it, and completes it first.

use super::Changes;
use crate::canary::{self, Canary};
use crate::coordinator::Coordinator;
use crate::coordinator::calls::Calls;
use crate::membership::LearnError;
use crate::peer::{BallotVote, CallError, Reply, Request};
use crate::replica::ReplicaError;
use kvorum_core::agreement::{Ballot, Epoch, Instance, Proposal, ProposalStep, Voter};
use kvorum_core::configuration::Configuration;
use kvorum_core::{ClusterId, Slot};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the nodes may take to answer one step of a proposal.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(1);
/// The bound of the first pause between two rounds; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A member that has not voted for a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silent {
    /// Its URL.
    pub url: String,
    /// Why.
    pub reason: String,
}

/// The reason why a configuration was not decided.
#[derive(Debug)]
pub enum ProposeError {
    /// Another configuration was decided for its epoch.
    Other {
        /// The epoch.
        epoch: Epoch,
    },
    /// Too few stores voted in time. It may be decided later all the same.
    Unknown {
        /// How many must vote.
        needed: usize,
        /// The members that did not, in the last round.
        silent: Vec<Silent>,
    },
    /// This node's own store cannot keep its vote, or what was decided.
    Store(ReplicaError),
    /// This node cannot adopt what was decided.
    Learn(LearnError),
    /// This node cannot propose: its store does not vote.
    NotVoting,
    /// This node's store has accepted a forced configuration: it must be completed first.
    Bound {
        /// The members that it gives up for lost.
        lost: Vec<String>,
    },
    /// Members that were named as lost answer.
    NotLost {
        /// Their URLs.
        urls: Vec<String>,
    },
}

impl Changes<'_> {
    /// Makes `wanted`, a successor of the configuration that this node works with, decided by `deadline`, and adopts it.
    ///
    /// # Errors
    /// [`ProposeError`]. Only with [`ProposeError::Other`] is it sure that `wanted` is not decided.
    ///
    /// # Cancel safety
    /// Dropping the future ends the proposal; it may have been decided.
    pub async fn propose(
        &self,
        wanted: Configuration,
        deadline: Instant,
    ) -> Result<Arc<Configuration>, ProposeError> {
        self.make_cluster_id().await.map_err(ProposeError::Store)?;
        let turn = async |current: &Configuration, round| self.turn(current, &wanted, round, deadline).await;
        self.take_turns(&wanted, deadline, turn).await
    }

    /// Takes turns, each in a round above all that this node knows of, until `wanted` or another successor is adopted, or until
    /// `deadline`.
    ///
    /// # Errors
    /// As [`Self::propose`], and those of a turn.
    pub(super) async fn take_turns(
        &self,
        wanted: &Configuration,
        deadline: Instant,
        turn: impl AsyncFn(&Configuration, u64) -> Result<Turn, ProposeError>,
    ) -> Result<Arc<Configuration>, ProposeError> {
        let configurations = &self.own.shared.configurations;
        let _proposing = configurations.proposing.lock().await;
        let mut backoff = BACKOFF_MIN;
        let mut round = configurations.round().await;
        loop {
            let current = self.own.shared.cluster.configuration();
            if current.epoch >= wanted.epoch {
                let decided = configurations.adopted_at(wanted.epoch).await;
                let ours = decided.filter(|decided| **decided == *wanted);
                return ours.ok_or(ProposeError::Other { epoch: wanted.epoch });
            }
            let (needed, silent) = match turn(&current, round.saturating_add(1)).await? {
                Turn::Adopted => continue,
                Turn::Outbid { round: by } => {
                    round = round.max(by);
                    (0, Vec::new())
                }
                Turn::Behind => (0, Vec::new()),
                Turn::TooFew { needed, silent } => {
                    round = round.saturating_add(1);
                    (needed, silent)
                }
            };
            let pause = self.chance(backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
            if Instant::now() + pause >= deadline {
                return Err(ProposeError::Unknown { needed, silent });
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One round of a proposal.
    async fn turn(
        &self,
        current: &Configuration,
        wanted: &Configuration,
        round: u64,
        deadline: Instant,
    ) -> Result<Turn, ProposeError> {
        let shared = &self.own.shared;
        let instance = current.instance();
        let ballot = Ballot { round, proposer: shared.cluster.voter() };
        let electorate = current.electorate();
        let mut proposal = Proposal::new(ballot, electorate.clone(), wanted.clone());
        let mut count = Count::default();
        // Its own store comes first: a ballot that was used before a crash is refused there.
        let own = shared.configurations.promise(instance, ballot).await.map_err(ProposeError::Store)?;
        let mut step = match own {
            BallotVote::Promised { accepted: Some((_, forced)), .. } if current.is_forced_by(&forced) => {
                return Err(ProposeError::Bound { lost: lost_of(current, &forced) });
            }
            BallotVote::Promised { voter, accepted } => proposal.promised(voter, accepted),
            BallotVote::Outbid { by } => return Ok(Turn::Outbid { round: by.round }),
            BallotVote::OtherInstance { .. } => return Ok(Turn::Behind),
            _ => return Err(ProposeError::NotVoting),
        };
        let timeout = STEP_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
        let request = Request::Propose { instance, ballot };
        let mut calls = self.ask_members(shared.cluster.others(), &request, timeout, &mut count);
        while step == ProposalStep::Wait {
            let Some((index, answer)) = calls.next().await else { break };
            match answer {
                Ok(Reply::Voted(BallotVote::Promised { accepted: Some((_, forced)), .. }))
                    if current.is_forced_by(&forced) =>
                {
                    count.silent.insert(index, "it has accepted a forced configuration".to_owned());
                }
                Ok(Reply::Voted(BallotVote::Promised { voter, accepted })) => {
                    count.heard(index);
                    step =
                        proposal.promised(voter, accepted.filter(|_| !canary::is(Canary::AcceptorForgets)));
                }
                answer => count.note(self.own, index, instance, answer),
            }
        }
        let Some(value) = proposal.value().cloned() else {
            return Ok(count.end(self.own, electorate.needed()));
        };
        let own = shared.configurations.accept(instance, ballot, value.clone()).await;
        step = match own.map_err(ProposeError::Store)? {
            BallotVote::Accepted { voter } => proposal.accepted(voter),
            BallotVote::Outbid { by } => return Ok(Turn::Outbid { round: by.round }),
            _ => return Ok(Turn::Behind),
        };
        let request = Request::Accept { instance, ballot, value: value.clone() };
        let mut count = Count { round: count.round, ..Count::default() };
        let mut calls = self.ask_members(shared.cluster.others(), &request, timeout, &mut count);
        while step != ProposalStep::Decided {
            let Some((index, answer)) = calls.next().await else { break };
            match answer {
                Ok(Reply::Voted(BallotVote::Accepted { voter })) => {
                    count.heard(index);
                    step = proposal.accepted(voter);
                }
                answer => count.note(self.own, index, instance, answer),
            }
        }
        if step != ProposalStep::Decided {
            return Ok(count.end(self.own, electorate.needed()));
        }
        shared.configurations.learn(vec![value], None).await.map_err(ProposeError::Learn)?;
        Ok(Turn::Adopted)
    }

    /// Sends `request` to `members`. This node must not be among them.
    pub(super) fn ask_members(
        &self,
        members: impl Iterator<Item = Slot>,
        request: &Request,
        timeout: Duration,
        count: &mut Count,
    ) -> Calls<Result<Reply, CallError>> {
        let mut calls = Calls::new();
        for index in members {
            count.silent.insert(index, "no answer in time".to_owned());
            if let Some(link) = self.own.link(index) {
                calls.push(index, link.call(request, timeout));
            }
        }
        calls
    }

    /// A random time of at most `bound`.
    fn chance(&self, bound: Duration) -> Duration {
        let mut chance = [0; 4];
        self.own.shared.rng.fill(&mut chance);
        bound.mul_f64(f64::from(u32::from_be_bytes(chance)) / f64::from(u32::MAX))
    }

    /// Makes the id of a cluster of one node, which needs none before its first change.
    pub(crate) async fn make_cluster_id(&self) -> Result<(), ReplicaError> {
        let shared = &self.own.shared;
        if shared.cluster.member_count() > 1 {
            return Ok(());
        }
        let _making = shared.background.membership.making_cluster_id.lock().await;
        if shared.cluster.id().is_some() {
            return Ok(());
        }
        let mut bytes = [0; 16];
        shared.rng.fill(&mut bytes);
        // 0 stands for no id. It comes once in 2^128 times; then the number of this run is as good.
        let id = ClusterId::new(u128::from_be_bytes(bytes)).unwrap_or(ClusterId::STAND_IN);
        shared.replica.store_cluster_id(id).await?;
        shared.cluster.adopt_id(id);
        tracing::info!(cluster_id = %id, "made the cluster's id: stores of another id are refused from now on");
        Ok(())
    }
}

/// The URLs of the members that `forced` gives up for lost.
pub(super) fn lost_of(current: &Configuration, forced: &Configuration) -> Vec<String> {
    let lost = current.members.iter().filter(|member| forced.member(member.id).is_none());
    lost.map(|member| member.url.clone()).collect()
}

/// What became of one round.
pub(super) enum Turn {
    /// A successor was adopted.
    Adopted,
    Outbid {
        round: u64,
    },
    /// This node must catch up first, or others must.
    Behind,
    TooFew {
        needed: usize,
        silent: Vec<Silent>,
    },
}

/// The members that have not voted, and why; and the highest round that was promised to others.
#[derive(Default)]
pub(super) struct Count {
    pub(super) silent: BTreeMap<Slot, String>,
    round: Option<u64>,
}

impl Count {
    pub(super) fn heard(&mut self, index: Slot) {
        self.silent.remove(&index);
    }

    /// Notes an answer that is no vote.
    pub(super) fn note(
        &mut self,
        own: &Coordinator,
        index: Slot,
        instance: Instance,
        answer: Result<Reply, CallError>,
    ) {
        let reason = match answer {
            Ok(Reply::Voted(BallotVote::Outbid { by })) => {
                self.round = self.round.max(Some(by.round));
                "it has promised another proposer".to_owned()
            }
            Ok(Reply::Voted(BallotVote::NotNamed { voter: Voter { store, .. } })) => {
                format!("its store {store:032x} does not vote on configurations")
            }
            Ok(Reply::Voted(BallotVote::OtherInstance { ours })) => {
                own.shared.configurations.note_epoch(index, ours.epoch);
                format!("it works with epoch {}, not {}", ours.epoch, instance.epoch)
            }
            Ok(Reply::Voted(BallotVote::Refused)) => {
                "it refuses the configuration: it may run an older release, or have accepted a forced one"
                    .to_owned()
            }
            Ok(_) => "its answer does not fit the question".to_owned(),
            Err(error) => error.to_string(),
        };
        self.silent.insert(index, reason);
    }

    pub(super) fn end(self, own: &Coordinator, needed: usize) -> Turn {
        if let Some(round) = self.round {
            return Turn::Outbid { round };
        }
        let url = |index| own.shared.cluster.url_of(index).to_owned();
        let silent = self.silent.into_iter().map(|(index, reason)| Silent { url: url(index), reason });
        Turn::TooFew { needed, silent: silent.collect() }
    }
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other { epoch } => write!(f, "another change was decided for epoch {epoch}"),
            Self::Unknown { needed, silent } => {
                write!(f, "not decided in time, and it may be decided later: {needed} stores must vote")?;
                silent.iter().try_for_each(|Silent { url, reason }| write!(f, "; {url}: {reason}"))
            }
            Self::Store(error) => write!(f, "the store of this node cannot vote: {error}"),
            Self::Learn(error) => error.fmt(f),
            Self::Bound { lost } => write!(
                f,
                "the store of this node has accepted a forced configuration without {}: complete it first, with the same lost \
                 members (kvorum cluster force)",
                lost.join(", ")
            ),
            Self::NotLost { urls } => {
                write!(f, "named as lost, but answering: {}; stop them for good first", urls.join(", "))
            }
            Self::NotVoting => {
                f.write_str("the store of this node does not vote on configurations: ask another node")
            }
        }
    }
}

impl std::error::Error for ProposeError {}
