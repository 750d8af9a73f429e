//! Forcing: the members that are left go on without a majority that is lost for good.
//!
//! An operator names the lost members. All others must answer, work with this node's configuration, and accept the one without
//! the lost ones: first they promise, then they accept, and this node adopts it last. The rules are in
//! [`kvorum_core::configuration::Forced`] and `membership/force.rs`.

use super::propose::{Count, ProposeError, STEP_TIMEOUT, Turn, lost_of};
use super::{Changes, PlanningError, member_of};
use crate::cluster::VotesVerdict;
use crate::coordinator::calls::Calls;
use crate::membership::LearnError;
use crate::peer::{BallotVote, Reply, Request};
use kvorum_core::agreement::{Ballot, Proposal, ProposalStep};
use kvorum_core::configuration::{ClusterMember, Configuration, Losses, Phase};
use kvorum_core::{NodeId, Quorum};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;

/// A round that no proposer has: a question with it finds out whether a store answers, and promises nothing that matters.
const ROUND_OF_A_QUESTION: u64 = 0;

impl Changes<'_> {
    /// Plans to go on without the members `lost`, each named by its URL or its id. Nothing is changed.
    pub(super) async fn plan_force(
        &self,
        current: &Configuration,
        lost: &[String],
    ) -> Result<(Configuration, Vec<String>), PlanningError> {
        let shared = &self.own.shared;
        let mut ids = BTreeSet::new();
        for node in lost {
            ids.insert(member_of(current, node)?.id);
        }
        let me = shared.cluster.id_of(shared.cluster.me());
        if ids.contains(&me) || current.member(me).is_none() {
            return Err(PlanningError::OwnLost);
        }
        let view = shared.cluster.view();
        let forced = current.forced(&ids, view.placement()).map_err(PlanningError::Plan)?;
        let answering = self.answering(current, &forced.configuration).await;
        if !answering.is_empty() {
            return Err(PlanningError::NotLost { urls: answering });
        }
        let gone: Vec<NodeId> = ids.into_iter().collect();
        self.check_members(current, &gone)?;
        let nodes = u16::try_from(current.members.len()).unwrap_or(u16::MAX);
        let from = Quorum::default_for(shared.settings.factor, nodes).from();
        let losses = Losses::of(&forced.configuration, view.routing(), from);
        let mut lines = lines_of(current, &forced.configuration, losses, from);
        if shared.cluster.registry().verdict() == VotesVerdict::Lacks {
            lines.push(format!(
                "the store of this node lacks records itself: {}",
                shared.local.why_not_voting()
            ));
        }
        if let Some(other) =
            shared.configurations.forced().await.filter(|other| *other != forced.configuration)
        {
            let lost = lost_of(current, &other).join(", ");
            lines.push(format!(
                "this store has accepted an order without {lost}, which this one takes the place of"
            ));
        }
        Ok((forced.configuration, lines))
    }

    /// The URLs of the members that `forced` does not name and that answer with the store that they are named with.
    async fn answering(&self, current: &Configuration, forced: &Configuration) -> Vec<String> {
        let shared = &self.own.shared;
        let ballot = Ballot { round: ROUND_OF_A_QUESTION, proposer: shared.cluster.voter() };
        let question = Request::Propose { instance: current.instance(), ballot };
        let mut calls = Calls::new();
        for member in current.members.iter().filter(|member| forced.member(member.id).is_none()) {
            if let Some(link) = self.own.link(member.slot) {
                calls.push(member.slot, link.call(&question, STEP_TIMEOUT));
            }
        }
        let mut urls = Vec::new();
        while let Some((slot, answer)) = calls.next().await {
            let member = current.members.iter().find(|member| member.slot == slot);
            // A node that came back without its store is as lost as one that is gone.
            let is_it = match answer {
                Ok(Reply::Voted(BallotVote::NotNamed { voter } | BallotVote::Promised { voter, .. })) => {
                    member.and_then(ClusterMember::voter) == Some(voter)
                }
                Ok(_) => true,
                Err(_) => false,
            };
            if is_it {
                urls.push(shared.cluster.url_of(slot).to_owned());
            }
        }
        urls.sort_unstable();
        urls
    }

    /// Has all members that the forced `wanted` names accept it by `deadline`, and adopts it.
    ///
    /// # Errors
    /// [`ProposeError`]. With [`ProposeError::Unknown`] it is not adopted here; members that have accepted it wait for it to be
    /// forced again.
    ///
    /// # Cancel safety
    /// Dropping the future ends it like [`ProposeError::Unknown`].
    pub(super) async fn force(
        &self,
        wanted: Configuration,
        deadline: Instant,
    ) -> Result<Arc<Configuration>, ProposeError> {
        let turn = async |current: &Configuration, round| {
            let answering = self.answering(current, &wanted).await;
            if !answering.is_empty() {
                return Err(ProposeError::NotLost { urls: answering });
            }
            self.force_once(current, &wanted, round).await
        };
        self.take_turns(&wanted, deadline, turn).await
    }

    /// One round of it.
    async fn force_once(
        &self,
        current: &Configuration,
        wanted: &Configuration,
        round: u64,
    ) -> Result<Turn, ProposeError> {
        let configurations = &self.own.shared.configurations;
        let (instance, voter) = (current.instance(), self.own.shared.cluster.voter());
        let ballot = Ballot { round, proposer: voter };
        let electorate = wanted.forced_electorate();
        let mut proposal = Proposal::new(ballot, electorate.clone(), wanted.clone());
        let own = configurations.force(instance, ballot, false, wanted.clone()).await;
        // What was accepted before does not matter: if all promise, none of them has adopted it, and none will.
        let mut step = match own.map_err(ProposeError::Store)? {
            BallotVote::Promised { voter, .. } => proposal.promised(voter, None),
            BallotVote::Outbid { by } => return Ok(Turn::Outbid { round: by.round }),
            BallotVote::OtherInstance { .. } => return Ok(Turn::Behind),
            _ => return Err(ProposeError::NotVoting),
        };
        for accepts in [false, true] {
            let request = Request::Force { instance, ballot, accepts, value: wanted.clone() };
            let mut count = Count::default();
            let left = wanted.members.iter().map(|member| member.slot);
            let others = left.filter(|slot| *slot != self.own.shared.cluster.me());
            let mut calls = self.ask_members(others, &request, STEP_TIMEOUT, &mut count);
            while let Some((index, answer)) = calls.next().await {
                match answer {
                    Ok(Reply::Voted(BallotVote::Promised { voter, .. })) if !accepts => {
                        count.heard(index);
                        step = proposal.promised(voter, None);
                    }
                    Ok(Reply::Voted(BallotVote::Accepted { voter })) if accepts => {
                        count.heard(index);
                        proposal.accepted(voter);
                    }
                    answer => count.note(self.own, index, instance, answer),
                }
            }
            let is_done = step == ProposalStep::SendAccept && (!accepts || count.silent.is_empty());
            if !is_done {
                return Ok(count.end(self.own, electorate.needed()));
            }
        }
        // Its own store accepts last, and adopts at once.
        if proposal.accepted(voter) != ProposalStep::Decided {
            return Ok(Turn::Behind);
        }
        match configurations.adopt_forced(instance, ballot, wanted.clone()).await {
            Ok(()) => Ok(Turn::Adopted),
            Err(LearnError::Outbid) => Ok(Turn::Outbid { round: configurations.round().await }),
            Err(error) => Err(ProposeError::Learn(error)),
        }
    }
}

/// What is lost, and what comes of it, a line each.
fn lines_of(current: &Configuration, forced: &Configuration, losses: Losses, from: u16) -> Vec<String> {
    let left: Vec<&str> = forced.members.iter().map(|member| member.url.as_str()).collect();
    let (count, members) = (left.len(), current.members.len());
    let Losses { partitions, gone, doubtful } = losses;
    let lost = current.members.iter().filter(|member| forced.member(member.id).is_none());
    let mut lines =
        vec![format!("{count} of {members} members go on without the others: {}", left.join(", "))];
    lines.extend(lost.map(|member| {
        let store = member.store.unwrap_or_default();
        format!("{} is given up for lost: its store {store:032x} is refused for good", member.url)
    }));
    lines.push(format!(
        "records without a copy on these members are lost: with FROM {from}, {gone} of {partitions} partitions have none"
    ));
    lines.push(format!(
        "acknowledged writes that only lost members confirmed are lost: that may be in {doubtful} more partitions, and in any \
         with a smaller ACK"
    ));
    lines.push("whatever the lost members have decided among themselves is refused".to_owned());
    if current.phase != Phase::Stable {
        lines.push("the change under way ends here: members that join or leave stay, weights and zones are the old ones".to_owned());
    }
    if count > 1 {
        lines.push(
            "requests fail until the members that are left have taken from each other what each lacks"
                .to_owned(),
        );
    }
    let copies = u16::try_from(count).unwrap_or(from).min(from);
    // What a node stores alone gets its copies once there are others.
    if count > 1 && copies < from {
        lines.push(format!(
            "until nodes are added, a key gets {copies} copies at most; keys that are written meanwhile keep that number"
        ));
    }
    lines.push("make sure that the lost members never start again; this cannot be taken back".to_owned());
    lines
}
