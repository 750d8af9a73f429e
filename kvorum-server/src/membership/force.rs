//! Forced configurations: this store's part in going on without a majority that is lost for good.
//!
//! An operator names the lost members at one that is left. That node asks all others that are left: first for a promise, then
//! to accept. It accepts last, and adopts with the same commit ([`Configurations::adopt_forced`]); the others hear of it as of any
//! configuration. A store that has accepted a forced configuration is bound: it votes for no other, and adopts no other, unless a
//! member that the forced one names has adopted it. `kvorum-core/tests/force_model.rs` checks these rules.
//!
//! A run that has met no majority takes part: that there is none is what the operator says.

use super::{Configurations, LEVEL_MAX, LearnError, Part, denied};
use crate::peer::BallotVote;
use crate::replica::ReplicaError;
use kvorum_core::agreement::{Ballot, Instance};
use kvorum_core::configuration::{ClusterMember, Configuration, Transition};

impl Part {
    /// The forced successor of `current` that this store has accepted.
    pub(super) fn forced(&self, current: &Configuration) -> Option<&Configuration> {
        let (instance, ballots) = self.agreement.as_ref()?;
        let (_, accepted) = ballots.accepted.as_ref()?;
        (*instance == current.instance() && current.is_forced_by(accepted)).then_some(accepted)
    }
}

impl Configurations {
    /// Answers a node that forces `value` and asks for a promise; with `accepts`, to accept it.
    ///
    /// # Errors
    /// The store cannot keep it: nothing was promised or accepted.
    pub(crate) async fn force(
        &self,
        instance: Instance,
        ballot: Ballot,
        accepts: bool,
        value: Configuration,
    ) -> Result<BallotVote, ReplicaError> {
        let mut part = self.part.lock().await;
        let (voter, current) = (self.cluster.voter(), self.cluster.configuration());
        if instance != current.instance() {
            return Ok(BallotVote::OtherInstance { ours: current.instance() });
        }
        if value.member(voter.node).and_then(ClusterMember::voter) != Some(voter) {
            return Ok(BallotVote::NotNamed { voter });
        }
        let is_forced = current.check_successor(&value) == Ok(Transition::Forced);
        if !is_forced || value.feature_level > LEVEL_MAX || self.cluster.id().is_none() {
            return Ok(BallotVote::Refused);
        }
        let mut acceptor = self.acceptor(&part, &current);
        let vote = if accepts {
            acceptor.accept_forced(instance, ballot, value).map(|()| BallotVote::Accepted { voter })
        } else {
            let promised = acceptor.prepare(instance, ballot);
            promised.map(|accepted| BallotVote::Promised { voter, accepted })
        };
        match vote {
            Ok(vote) => {
                self.keep(&mut part, instance, acceptor.ballots()).await?;
                Ok(vote)
            }
            Err(denial) => Ok(denied(denial)),
        }
    }

    /// Adopts the forced `value`, which all others that it names have accepted under `ballot`.
    ///
    /// # Errors
    /// [`LearnError::Outbid`]: this store has promised another ballot since, and nothing was adopted.
    pub(crate) async fn adopt_forced(
        &self,
        instance: Instance,
        ballot: Ballot,
        value: Configuration,
    ) -> Result<(), LearnError> {
        let mut part = self.part.lock().await;
        if part.ballots(instance).promised != Some(ballot) {
            return Err(LearnError::Outbid);
        }
        self.adopt(&mut part, value).await?;
        self.cluster.judge_met();
        Ok(())
    }

    /// The forced configuration that this store has accepted and not adopted.
    pub(crate) async fn forced(&self) -> Option<Configuration> {
        let part = self.part.lock().await;
        part.forced(&self.cluster.configuration()).cloned()
    }
}
