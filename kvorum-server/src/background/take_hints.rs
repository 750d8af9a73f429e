//! Taking hints: a node that starts meets its peers and takes the hints that they hold for it, before it serves.

use super::heartbeat;
use super::tombstone_gc::meet_floors::meet_floors;
use crate::cluster::VotesVerdict;
use crate::coordinator::Coordinator;
use crate::coordinator::calls::Calls;
use crate::peer::{LinkState, Reply, Request};
use kvorum_core::Version;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How long a starting node waits for a peer to answer.
const ANSWERS_AT_ONCE: Duration = Duration::from_millis(300);

/// A peer that is being met. It is dropped once the peer was met or did not answer.
struct Meeting {
    own: Rc<Coordinator>,
    /// How many are being met.
    count: Rc<Cell<usize>>,
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
        self.own.shared.cluster.note_change();
    }
}

/// Meets the peers that answer at once, and takes the hints that each holds for this node, within the bound in the
/// settings. Does not wait for peers that do not answer, and takes no hints while this node joins.
///
/// # Cancel safety
/// Dropping the future loses nothing: other peers are met later, and the remaining hints are delivered later.
pub async fn take_hints(own: &Rc<Coordinator>) {
    let wait = own.shared.settings.hint_wait;
    let deadline = tokio::time::Instant::now() + wait;
    let mut calls = Calls::new();
    let meeting = Rc::new(Cell::new(own.shared.cluster.others().count()));
    for index in own.shared.cluster.others() {
        let meeting = Meeting { own: Rc::clone(own), count: Rc::clone(&meeting) };
        let Some(link) = own.link(index).cloned() else { continue };
        let coordinator = Rc::clone(own);
        calls.push(index, async move {
            let is_decided = || link.is_usable() || matches!(link.state(), LinkState::Down { .. });
            let decided = coordinator.shared.cluster.until(is_decided);
            let _ = tokio::time::timeout(ANSWERS_AT_ONCE, decided).await;
            if !link.is_usable() {
                return None;
            }
            // Before any hint comes in, and before this store is eligible. A failure is retried in the background.
            heartbeat::send(&coordinator, index).await;
            let _ = meet_floors(&coordinator, index).await;
            drop(meeting);
            // The change fills a node that joins, which has missed nothing that it must have to serve.
            if coordinator.shared.cluster.joins() {
                return None;
            }
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            link.call(&Request::TakeHints, left).await.ok()
        });
    }
    let taken = take_from(own, calls, deadline);
    tokio::join!(taken, hear_of_store(own, &meeting, deadline));
}

async fn take_from(own: &Coordinator, mut calls: Calls<Option<Reply>>, deadline: tokio::time::Instant) {
    while let Ok(Some((index, answer))) = tokio::time::timeout_at(deadline, calls.next()).await {
        let Some(Reply::HintsTaken { delivered, left, met }) = answer else { continue };
        // A node that comes back with an older disk also has an older clock lease: continue above the versions that
        // others have met.
        own.shared.stamps.observe(Version::from_words(met.0, 0));
        if delivered + left > 0 {
            let node = own.shared.cluster.url_of(index);
            tracing::info!(node, delivered, left, "a peer delivered the hints that it held for this node");
        }
    }
}

/// Waits for a moment until it is decided whether this store is quorum-eligible. `meeting` counts the peers that
/// are being met, until `deadline`.
///
/// A disk that is known to be the one of the last run needs no majority. Its store is eligible once the peers that
/// answer now had their chance to report a later run.
async fn hear_of_store(own: &Coordinator, meeting: &Cell<usize>, deadline: tokio::time::Instant) {
    let cluster = &own.shared.cluster;
    if own.shared.background.membership.recognises_disk() {
        let met = cluster.until(|| meeting.get() == 0 || cluster.has_met());
        // A peer that takes longer counts as away.
        let _ = tokio::time::timeout_at(deadline, met).await;
        cluster.trust_store();
    }
    let heard = cluster.until(|| !cluster.is_undecided());
    if tokio::time::timeout(ANSWERS_AT_ONCE, heard).await.is_ok() {
        return;
    }
    own.shared.background.membership.note_undecided_told();
    let registry = own.shared.cluster.registry();
    if registry.verdict() == VotesVerdict::Unknown {
        let all = own.shared.cluster.others().map(|index| own.shared.cluster.id_of(index));
        let unheard: Vec<&str> = registry
            .unheard(all)
            .filter_map(|node| own.shared.cluster.slot_of(node))
            .map(|index| own.shared.cluster.url_of(index))
            .collect();
        tracing::warn!(
            unheard = unheard.join(","),
            "new store: it answers no reads until every other node has confirmed that it knows no older store of \
             this node; if the cluster is new and a node stays away, stop this node, run \"kvorum bootstrap \
             DIR\" on its data directory, and start it again"
        );
    } else {
        tracing::warn!(
            "too few other nodes answer: this store is not quorum-eligible until a majority of the nodes, this \
             one included, has said what was purged meanwhile; if the others stay away and this is the disk of \
             the node's last run, stop it, run \"kvorum trust-store DIR\" on its data directory, and start it \
             again"
        );
    }
}
