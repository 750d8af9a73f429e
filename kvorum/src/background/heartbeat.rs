//! The heartbeat: one thread of the node sends every peer a ping, twice a second.
//!
//! The answers show that idle links are alive, carry the peer registry (so that a node learns of its own lost disk),
//! and show how far the clocks are apart.

use super::worker::{Work, Worker};
use crate::canary::{self, Canary};
use crate::clock::ClockStanding;
use crate::cluster::{ClockNews, ClockOffset, Exchange, Heard, VotesVerdict};
use crate::coordinator::{Coordinator, Shared};
use crate::peer::{Reply, Request};
use crate::replica::Vote;
use kvorum_core::{NodeId, NodeIndex, StoreSeen};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two heartbeats to one peer.
const PULSE_EVERY: Duration = Duration::from_millis(500);
/// The shorter time while this node does not know whether its store is quorum-eligible.
const PULSE_EVERY_UNKNOWN: Duration = Duration::from_millis(20);
/// How long an answer may take.
const PULSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The heartbeat to one peer.
pub(crate) struct Heartbeat {
    own: Rc<Coordinator>,
    index: NodeIndex,
}

impl Heartbeat {
    pub(crate) fn new(own: Rc<Coordinator>, index: NodeIndex) -> Self {
        Self { own, index }
    }
}

impl Worker for Heartbeat {
    async fn work(&mut self) -> Work {
        self.own.pulse(self.index).await;
        let shared = &self.own.shared;
        shared.background.identity.tell_decided(&shared.cluster);
        let is_unknown = shared.cluster.roster().verdict() == VotesVerdict::Unknown;
        Work::Throttled(if is_unknown { PULSE_EVERY_UNKNOWN } else { PULSE_EVERY })
    }
}

impl Coordinator {
    /// Sends one heartbeat to the node at `index`, and processes the answer.
    pub(crate) async fn pulse(&self, index: NodeIndex) {
        let Some(link) = self.link(index) else { return };
        let shared = &self.shared;
        let ping = shared.ping();
        let asked = shared.clock.mono();
        let Ok(Reply::Pong { wall, cluster_id, roster, votes }) = link.call(&ping, PULSE_TIMEOUT).await
        else {
            return;
        };
        // Read the clocks in this order: the process may be stopped between any two lines.
        let ours = shared.clock.wall();
        let answered = shared.clock.mono();
        shared.note_clock(index, Exchange { asked, answered, ours, theirs: wall });
        if let Some(peer) = shared.cluster.peer(index) {
            peer.votes.store(votes, Ordering::Relaxed);
        }
        shared.meet_cluster_id(index, cluster_id).await;
        let peer = shared.cluster.id_of(index);
        if let Some(met) = roster.iter().find(|seen| seen.node == peer) {
            shared.meet(*met, votes).await;
        }
        shared.hear(peer, &roster).await;
    }
}

impl Shared {
    /// The heartbeat request.
    pub(crate) fn ping(&self) -> Request {
        let (cluster_id, roster) = (self.cluster.id(), self.cluster.roster().entries());
        Request::Ping { wall: self.clock.wall(), cluster_id, roster }
    }

    /// Processes, and durably stores, the message of the node `from` about all nodes' stores. Ignores senders and
    /// entries that are no members of the cluster: the registry has one place for each member.
    pub(crate) async fn hear(&self, from: NodeId, said: &[StoreSeen]) {
        if self.index_of(from).is_none() {
            return;
        }
        let said: Vec<StoreSeen> =
            said.iter().filter(|seen| self.has_place_for(seen.node)).copied().collect();
        let Heard { verdict, run, is_behind, news } = self.cluster.roster().hear(from, &said);
        if !news.is_empty() {
            self.remember(&news).await;
        }
        if let Some(run) = run
            && let Err(error) = self.replica.store_run(run).await
        {
            tracing::warn!(%error, "cannot store the number of this run; other nodes correct it again after a restart");
        }
        let Some(verdict) = verdict else { return };
        let votes = verdict == VotesVerdict::Votes;
        let vote = if votes { Vote::Yes } else { Vote::No };
        if let Err(error) = self.replica.store_votes(vote).await {
            tracing::warn!(%error, "cannot store whether this node votes; it is found out again after a restart");
        }
        if is_behind {
            tracing::warn!(
                "another node saw a later run of this node: the data directory is an older copy, or is used twice; this \
                 replica does not vote in reads until it has been refilled"
            );
        } else if !votes {
            tracing::warn!(
                "another node knows an older store of this node: what it held is lost here, so this replica does not \
                 vote in reads until it has been refilled"
            );
        }
    }

    /// Durably stores the store and run that a node was met with, before any other node is told.
    pub(crate) async fn meet(&self, met: StoreSeen, votes: bool) {
        if self.index_of(met.node).is_none() {
            return;
        }
        let news = self.cluster.roster().meet(met, votes);
        if let Some(news) = news {
            self.remember(&[news]).await;
        }
    }

    /// Whether the registry has a place for `node`: members only.
    fn has_place_for(&self, node: NodeId) -> bool {
        self.index_of(node).is_some() || canary::is(Canary::RosterTakesStrangers)
    }

    async fn remember(&self, news: &[StoreSeen]) {
        match self.replica.store_seen(news).await {
            Ok(()) => self.cluster.roster().remember(news),
            Err(error) => tracing::warn!(%error, "cannot store which node was seen with which store"),
        }
    }

    /// Adds an exchange that shows a peer's clock, and judges this node's own clock by all peers'.
    fn note_clock(&self, index: NodeIndex, exchange: Exchange) {
        self.report_clock(index, exchange);
        let offsets: Vec<_> = self.cluster.others().filter_map(|index| self.clock_offset(index)).collect();
        let limit = self.timestamps.limit_millis();
        let majority = usize::from(self.cluster.node_count() / 2) + 1;
        let within = offsets.iter().filter(|offset| offset.is_surely_within(limit)).count();
        let over = offsets.iter().filter(|offset| offset.is_surely_over(limit)).count();
        let standing = match over {
            _ if within + 1 >= majority => ClockStanding::Confirmed,
            0 => ClockStanding::Unknown,
            over if over >= majority => ClockStanding::Off,
            _ => ClockStanding::Disputed,
        };
        let before = self.timestamps.note_standing(standing);
        let was_down = matches!(before, ClockStanding::Off | ClockStanding::Disputed);
        match standing {
            ClockStanding::Off if before != ClockStanding::Off => tracing::error!(
                limit_ms = limit,
                "this node's clock is further than --clock-offset-limit from the clocks of a majority of the nodes: it takes \
                 no writes, expires and purges nothing until its clock is right; have the machine keep the time (NTP)"
            ),
            ClockStanding::Disputed if !was_down => tracing::warn!(
                limit_ms = limit,
                "this node's clock is further than --clock-offset-limit from another node's, and no majority is there to say \
                 which of them is right: it takes no writes and purges nothing until more nodes have been heard"
            ),
            ClockStanding::Confirmed if was_down => {
                tracing::info!("a majority of the nodes confirms this node's clock: it takes writes again");
            }
            _ => {}
        }
    }

    /// Logs when a peer's clock is too far off, and when it is near again.
    fn report_clock(&self, index: NodeIndex, exchange: Exchange) {
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

    /// How far the clock of the node at `index` is ahead of this node's now; `None` without a recent exchange.
    pub fn clock_offset(&self, index: NodeIndex) -> Option<ClockOffset> {
        self.cluster.clock_offset(index, self.clock.mono(), self.clock.wall())
    }
}
