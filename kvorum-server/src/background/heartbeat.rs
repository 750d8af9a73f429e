//! The heartbeat: one thread of the node sends every peer a ping, twice a second.
//!
//! The answers show that idle links are alive, carry the peer registry (so that a node learns of its own lost disk),
//! and show how far the clocks are apart.

use super::worker::{Work, Worker};
use crate::cluster::{Exchange, VotesVerdict};
use crate::coordinator::Coordinator;
use crate::peer::Reply;
use kvorum_core::Slot;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two heartbeats to one peer.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// The shorter time while this node does not know whether its store is quorum-eligible.
const HEARTBEAT_EVERY_UNKNOWN: Duration = Duration::from_millis(20);
/// How long an answer may take.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// The heartbeat to one peer.
pub(crate) struct Heartbeat {
    own: Rc<Coordinator>,
    index: Slot,
}

impl Heartbeat {
    pub(crate) fn new(own: Rc<Coordinator>, index: Slot) -> Self {
        Self { own, index }
    }
}

impl Worker for Heartbeat {
    async fn work(&mut self) -> Work {
        send(&self.own, self.index).await;
        let shared = &self.own.shared;
        shared.background.membership.tell_decided();
        let is_unknown = shared.cluster.registry().verdict() == VotesVerdict::Unknown;
        Work::Throttled(if is_unknown { HEARTBEAT_EVERY_UNKNOWN } else { HEARTBEAT_EVERY })
    }
}

/// Sends one heartbeat to the node at `index`, and processes the answer.
pub(crate) async fn send(own: &Coordinator, index: Slot) {
    let Some(link) = own.link(index) else { return };
    let shared = &own.shared;
    let membership = &shared.background.membership;
    let asked = shared.clock.mono();
    let Ok(Reply::Pong { wall, cluster_id, registry, votes }) =
        link.call(&membership.ping(), HEARTBEAT_TIMEOUT).await
    else {
        return;
    };
    // Read the clocks in this order: the process may be stopped between any two lines.
    let ours = shared.clock.wall();
    let answered = shared.clock.mono();
    membership.note_clock(index, Exchange { asked, answered, ours, theirs: wall });
    if let Some(peer) = shared.cluster.peer(index) {
        peer.votes.store(votes, Ordering::Relaxed);
    }
    membership.meet_cluster_id(index, cluster_id).await;
    let peer = shared.cluster.id_of(index);
    membership.meet(peer, &registry, votes).await;
    membership.hear(peer, &registry).await;
}
