//! The pulse: on one thread of the node, every peer is asked how it is, twice a second.
//!
//! The answers keep idle links known to be alive, carry who was seen with which store (so that a lost disk is noticed
//! by its owner), and show how far the clocks are apart.

use super::{Coordinator, Shared};
use crate::cluster::VotesVerdict;
use crate::peer::{Reply, Request};
use crate::replica::Vote;
use kvorum_core::{NodeId, NodeIndex, UnixMillis};
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
        let begun = shared.clock.mono();
        let roster = shared.cluster.roster().entries();
        let ping = Request::Ping { wall: shared.clock.wall(), roster };
        let Ok(Reply::Pong { wall, roster, votes }) = link.call(&ping, PULSE_TIMEOUT).await else { return };
        let took = shared.clock.mono().saturating_sub(begun);
        shared.note_clock(index, wall, took / 2);
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
    /// Takes in what the node `from` said of everybody's stores, durably.
    pub(super) async fn hear(&self, from: NodeId, said: &[(NodeId, u128)]) {
        let (verdict, news) = self.cluster.roster().hear(from, said);
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

    /// Notes a peer's clock, `ago` old, and reports one that is too far off.
    pub(super) fn note_clock(&self, index: NodeIndex, theirs: UnixMillis, ago: Duration) {
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        let (theirs, ours) = (theirs.saturating_add(ago).0, self.clock.wall().0);
        let offset = i64::try_from(theirs).unwrap_or(i64::MAX) - i64::try_from(ours).unwrap_or(i64::MAX);
        let bound = u64::try_from(self.settings.clock_offset_max.as_millis()).unwrap_or(u64::MAX);
        if self.cluster.note_clock(index, offset, bound) {
            let node = self.cluster.url_of(index);
            tracing::warn!(
                node,
                offset_ms = offset,
                "the clock of a node is far from this one's; guarantees hold, expiry is only as good as the clocks"
            );
        }
    }
}
