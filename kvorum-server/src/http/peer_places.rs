//! Places for the connections of peers: a fixed number for each member, apart from those of clients.
//!
//! A node that handshakes as a member takes only that member's places. Beyond the bound, the oldest connection without
//! any request yet gives way, else the oldest. So idle handshakes cannot keep the member itself away.

use crate::peer::{Caller, NONCE_BYTES, Reply, Request, Service};
use crate::slow::TraceContext;
use kvorum_core::NodeId;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The most connections of one member at once. A member has one per network thread, and a second while it reconnects.
pub const PEER_CONNECTIONS_MAX: usize = 64;

/// The places of all members.
#[derive(Debug, Default)]
pub struct PeerPlaces {
    // Guards the lists, oldest first; held for an insertion or a removal.
    taken: Mutex<BTreeMap<NodeId, VecDeque<Arc<Slot>>>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// What the connection must have alone; none for nothing.
    nonce: Option<[u8; NONCE_BYTES]>,
    has_asked: AtomicBool,
    gives_way: Notify,
}

/// A connection's place, given back when it is dropped.
#[derive(Debug)]
pub struct PeerPlace {
    places: Arc<PeerPlaces>,
    peer: NodeId,
    slot: Arc<Slot>,
}

impl PeerPlaces {
    /// Takes a place for a connection of `peer`; if all are taken, another connection gives way.
    pub fn take(self: &Arc<Self>, peer: NodeId) -> PeerPlace {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.place(peer, taken.entry(peer).or_default(), Slot::default())
    }

    /// Like [`Self::take`], but none if another connection of `peer` has a place with this `nonce`: so one handshake that
    /// was recorded takes one place, however often it is sent.
    pub fn take_once(self: &Arc<Self>, peer: NodeId, nonce: [u8; NONCE_BYTES]) -> Option<PeerPlace> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = taken.entry(peer).or_default();
        let is_taken = slots.iter().any(|slot| slot.nonce == Some(nonce));
        (!is_taken).then(|| self.place(peer, slots, Slot { nonce: Some(nonce), ..Slot::default() }))
    }

    fn place(self: &Arc<Self>, peer: NodeId, slots: &mut VecDeque<Arc<Slot>>, slot: Slot) -> PeerPlace {
        let slot = Arc::new(slot);
        if slots.len() >= PEER_CONNECTIONS_MAX {
            let silent = slots.iter().position(|slot| !slot.has_asked.load(Ordering::Relaxed));
            if let Some(slot) = slots.remove(silent.unwrap_or(0)) {
                slot.gives_way.notify_one();
            }
        }
        slots.push_back(Arc::clone(&slot));
        PeerPlace { places: Arc::clone(self), peer, slot }
    }

    /// Connections of peers that have a place.
    pub fn count(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).values().map(VecDeque::len).sum()
    }
}

impl PeerPlace {
    /// Waits until this connection must end because a newer one of the same member needs its place.
    pub async fn gives_way(&self) {
        self.slot.gives_way.notified().await;
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = taken.get_mut(&self.peer) {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        }
    }
}

/// A peer's service that records that the connection is used.
pub struct Noted<S> {
    inner: S,
    slot: Arc<Slot>,
}

impl<S> Noted<S> {
    /// Wraps `inner` and records its requests in `place`.
    pub fn new(inner: S, place: &PeerPlace) -> Self {
        Self { inner, slot: Arc::clone(&place.slot) }
    }
}

impl<S: Service> Service for Noted<S> {
    fn serve(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = Reply>>> {
        self.slot.has_asked.store(true, Ordering::Relaxed);
        self.inner.serve(caller, request, deadline)
    }

    fn serve_within(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
        trace: TraceContext,
    ) -> Pin<Box<dyn Future<Output = Reply>>> {
        self.slot.has_asked.store(true, Ordering::Relaxed);
        self.inner.serve_within(caller, request, deadline, trace)
    }

    fn expired(&self, caller: Caller) {
        self.inner.expired(caller);
    }

    fn ended(&self, caller: Caller) {
        self.inner.ended(caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    async fn has_to_go(place: &PeerPlace) -> bool {
        timeout(Duration::from_millis(1), place.gives_way()).await.is_ok()
    }

    /// Goal: idle handshakes as one member end each other. Connections of that member that are used, and those of other
    /// members, stay. Method: many more handshakes than there are places.
    #[tokio::test(start_paused = true)]
    async fn idle_handshakes_give_way_to_each_other() {
        let places = Arc::new(PeerPlaces::default());
        let used = places.take(NodeId(1));
        used.slot.has_asked.store(true, Ordering::Relaxed);
        let other = places.take(NodeId(2));
        let mut idle = VecDeque::new();
        for _ in 0..10_000 {
            idle.push_back(places.take(NodeId(1)));
            if idle.len() >= PEER_CONNECTIONS_MAX {
                let oldest = idle.pop_front().unwrap();
                assert!(has_to_go(&oldest).await);
            }
            assert!(places.count() <= PEER_CONNECTIONS_MAX + 1);
        }
        assert!(!has_to_go(&used).await && !has_to_go(&other).await);
        drop((idle, used));
        assert_eq!(places.count(), 1);
    }

    /// A nonce has one place of a member at a time.
    #[test]
    fn nonces_have_one_place() {
        let places = Arc::new(PeerPlaces::default());
        let one = places.take_once(NodeId(1), [1; NONCE_BYTES]);
        assert!(one.is_some() && places.take_once(NodeId(1), [1; NONCE_BYTES]).is_none());
        let others =
            (places.take_once(NodeId(1), [2; NONCE_BYTES]), places.take_once(NodeId(2), [1; NONCE_BYTES]));
        assert!(others.0.is_some() && others.1.is_some());
        drop(one);
        assert!(places.take_once(NodeId(1), [1; NONCE_BYTES]).is_some());
    }
}
