//! The pulse: on one thread of the node, every peer is asked how it is, twice a second.
//!
//! The answers keep idle links known to be alive, carry who was seen with which store (so that a lost disk is noticed
//! by its owner), and show how far the clocks are apart.

use super::{Coordinator, Shared};
use crate::cluster::{ClockNews, ClockOffset, Exchange, VotesVerdict};
use crate::peer::{Reply, Request};
use crate::replica::Vote;
use kvorum_core::{NodeId, NodeIndex};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two questions to one peer.
const PULSE_EVERY: Duration = Duration::from_millis(500);
/// While this node does not know whether its store votes, it asks more often.
const PULSE_EVERY_UNKNOWN: Duration = Duration::from_millis(20);
/// How long an answer may take.
const PULSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Asks the node at `index` how it is, forever.
    pub async fn keep_pulse(self: Rc<Self>, index: NodeIndex) {
        loop {
            self.pulse(index).await;
            let is_unknown = self.shared.cluster.roster().verdict() == VotesVerdict::Unknown;
            tokio::time::sleep(if is_unknown { PULSE_EVERY_UNKNOWN } else { PULSE_EVERY }).await;
        }
    }

    async fn pulse(&self, index: NodeIndex) {
        let Some(link) = self.link(index) else { return };
        let shared = &self.shared;
        let asked = shared.clock.mono();
        let roster = shared.cluster.roster().entries();
        let ping = Request::Ping { wall: shared.clock.wall(), roster };
        let Ok(Reply::Pong { wall, roster, votes }) = link.call(&ping, PULSE_TIMEOUT).await else { return };
        // In this order: the process may be stopped between any two lines.
        let ours = shared.clock.wall();
        let answered = shared.clock.mono();
        shared.note_clock(index, Exchange { asked, answered, ours, theirs: wall });
        if let Some(peer) = shared.cluster.peer(index) {
            peer.votes.store(votes, Ordering::Relaxed);
        }
        let peer = shared.cluster.id_of(index);
        if let Some((_, store)) = roster.iter().find(|(node, _)| *node == peer) {
            shared.meet(peer, *store, votes).await;
        }
        shared.hear(peer, &roster).await;
    }
}

impl Shared {
    /// Takes in what the node `from` said of everybody's stores, durably. Who is no member of the cluster says nothing, and
    /// nothing is heard of who is none: a roster has a place for each member only.
    pub(super) async fn hear(&self, from: NodeId, said: &[(NodeId, u128)]) {
        if self.index_of(from).is_none() {
            return;
        }
        let is_member = |(node, _): &&(NodeId, u128)| self.index_of(*node).is_some();
        let said: Vec<(NodeId, u128)> = said.iter().filter(is_member).copied().collect();
        let (verdict, news) = self.cluster.roster().hear(from, &said);
        if !news.is_empty() {
            self.remember(&news).await;
        }
        let Some(verdict) = verdict else { return };
        let votes = verdict == VotesVerdict::Votes;
        let vote = if votes { Vote::Yes } else { Vote::No };
        if let Err(error) = self.replica.store_votes(vote).await {
            tracing::warn!(%error, "cannot store whether this node votes; it is found out again after a restart");
        }
        if !votes {
            tracing::warn!(
                "another node knows an older store of this node: what it held is lost here, so this replica does not \
                 vote in reads until it has been refilled"
            );
        }
    }

    /// Notes that the node `from` was met with `store`, durably, before anyone else is told.
    pub(super) async fn meet(&self, from: NodeId, store: u128, votes: bool) {
        if self.index_of(from).is_none() {
            return;
        }
        let news = self.cluster.roster().meet(from, store, votes);
        if let Some(news) = news {
            self.remember(&[news]).await;
        }
    }

    async fn remember(&self, news: &[(NodeId, u128)]) {
        match self.replica.store_seen(news).await {
            Ok(()) => self.cluster.roster().remember(news),
            Err(error) => tracing::warn!(%error, "cannot store which node was seen with which store"),
        }
    }

    /// Notes what an exchange shows of a peer's clock, and reports one that is too far off, and its return.
    fn note_clock(&self, index: NodeIndex, exchange: Exchange) {
        let bound = u64::try_from(self.settings.clock_offset_max.as_millis()).unwrap_or(u64::MAX);
        let Some(news) = self.cluster.note_clock(index, exchange, bound) else { return };
        let node = self.cluster.url_of(index);
        match news {
            ClockNews::Far(ClockOffset { millis, error_millis }) => tracing::warn!(
                node,
                offset_ms = millis,
                error_ms = error_millis,
                "the clock of a node is far from this one's; guarantees hold, expiry is only as good as the clocks: \
                 have both machines keep the time (NTP)"
            ),
            ClockNews::Near(ClockOffset { millis, .. }) => {
                tracing::info!(node, offset_ms = millis, "the clock of a node is near this one's again");
            }
        }
    }

    /// How far the clock of the node at `index` is ahead of this node's now; none without a recent exchange.
    pub fn clock_offset(&self, index: NodeIndex) -> Option<ClockOffset> {
        self.cluster.clock_offset(index, self.clock.mono(), self.clock.wall())
    }
}
