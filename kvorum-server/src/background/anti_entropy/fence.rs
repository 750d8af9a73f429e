//! The fence of a refill: a store that has lost its promises makes all others refuse the ballots that it may have promised.
//!
//! Before a comparison counts, its peer stores durably that it takes no ballot up to a timestamp that every ballot of the
//! past is below: the highest clock of all members. A ballot whose promise was lost has then been taken by where the
//! comparison finds it, or it never will be. Why that is enough: [`kvorum_core::promise`].

use super::Puller;
use super::sync::CALL_TIMEOUT;
use crate::coordinator::calls::Cause;
use crate::peer::{Reply, Request, Timestamp};
use kvorum_core::Slot;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The clocks of the members, and the timestamp that a refill fences up to.
#[derive(Debug, Default)]
pub(super) struct RefillFence {
    // Guards both. Held for a look-up or an insertion.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By node, a timestamp that no ballot which it has stamped is above. Read after the promises were lost.
    met: BTreeMap<Slot, u64>,
    /// The highest of all, once every node has said it.
    word: Option<u64>,
}

impl RefillFence {
    /// The timestamp to fence up to, once it is known.
    pub(super) fn word(&self) -> Option<u64> {
        self.lock().word
    }

    /// Forgets everything: promises were lost again.
    pub(super) fn forget(&self) {
        *self.lock() = State::default();
    }

    fn knows(&self, index: Slot) -> bool {
        self.lock().met.contains_key(&index)
    }

    /// Notes the clock of the node at `index`.
    fn note(&self, index: Slot, met: u64) {
        self.lock().met.entry(index).or_insert(met);
    }

    /// The timestamp to fence up to, if all of `others` have said their clocks; `own` is this node's. Those that have left since
    /// need not say theirs any more.
    fn decide(&self, others: &[Slot], own: u64) -> Option<u64> {
        let mut state = self.lock();
        if state.word.is_none() && others.iter().all(|other| state.met.contains_key(other)) {
            state.word = Some(state.met.values().copied().fold(own, u64::max));
        }
        state.word
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Puller {
    /// Fences the peer. Returns whether it has stored the fence: then a comparison that begins now counts.
    pub(super) async fn fence(&self) -> bool {
        let shared = &self.own.shared;
        let fence = &shared.background.anti_entropy.progress.fence;
        let others: Vec<Slot> = shared.cluster.others().collect();
        for other in &others {
            if fence.word().is_none() && !fence.knows(*other) && self.own.is_ready(*other) {
                self.tell_fence(*other, 0).await;
            }
        }
        match fence.decide(&others, shared.stamps.reading()) {
            Some(word) => self.tell_fence(self.index, word).await,
            None => false,
        }
    }

    /// Has the node at `index` fence ballots up to `upto`, and notes its clock. Returns whether it did.
    async fn tell_fence(&self, index: Slot, upto: u64) -> bool {
        let shared = &self.own.shared;
        let Some(link) = self.own.link(index) else { return false };
        let cause = match link.call(&Request::Fence { upto: Timestamp(upto) }, CALL_TIMEOUT).await {
            Ok(Reply::Fenced { met }) => {
                let fence = &shared.background.anti_entropy.progress.fence;
                fence.note(index, met.0);
                return true;
            }
            Ok(_) => Cause::OffTopic,
            Err(error) => Cause::Call(error),
        };
        tracing::debug!(node = shared.cluster.url_of(index), %cause, "a node was not fenced against lost promises");
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word is known once every other node has said its clock, and covers this node's as well. It does not change then.
    #[test]
    fn the_word_covers_all_members() {
        let fence = RefillFence::default();
        let (a, b, gone) = (Slot(0), Slot(2), Slot(5));
        fence.note(a, 7);
        assert_eq!((fence.decide(&[a, b], 9), fence.knows(a), fence.knows(b)), (None, true, false));
        fence.note(b, 8);
        assert_eq!(fence.decide(&[a, b, gone], 5), None);
        // A member that has not said its clock leaves: nothing more is to be heard.
        assert_eq!(fence.decide(&[a, b], 5), Some(8));
        fence.note(a, 20);
        assert_eq!((fence.decide(&[a, b], 30), fence.word()), (Some(8), Some(8)));
        fence.forget();
        assert_eq!(fence.word(), None);
        fence.note(a, 1);
        assert_eq!(fence.decide(&[a], 4), Some(4));
    }
}
