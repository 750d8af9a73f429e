//! Confirming the epoch: a request that few replicas answer, while members change.
//!
//! A change of members goes on without members that are silent. One that is cut off with its clients does not know, and would go on
//! answering them. A request to a majority fails there. A request to fewer replicas first asks all members whether the epoch is the last
//! one. If a majority has accepted no successor, none was decided when the request began, so no node had answered a client in a later
//! epoch. It costs one round trip, only while a change is under way (decision 33.2).

use super::Coordinator;
use super::calls::{Calls, Cause, TOO_EARLY_WAIT};
use crate::canary::{self, Canary};
use crate::cluster::View;
use crate::peer::{CallError, Reply, Request};
use kvorum_core::{Quorum, Slot};
use tokio::time::Instant;

/// Why an epoch was not confirmed.
pub(super) enum Unconfirmed {
    /// This node works with another one meanwhile: the request must be planned again.
    Moved,
    /// These members did not confirm it.
    By(Vec<(Slot, Cause)>),
}

impl Coordinator {
    /// Makes sure that the epoch of `view` is the last one, if a request to `quorum` needs that. Asks until `deadline`: a
    /// successor may be accepted that is about to be decided.
    ///
    /// # Errors
    /// The request must not be carried out in this epoch. Nothing was done.
    pub(super) async fn confirm_epoch(
        &self,
        view: &View,
        quorum: Quorum,
        deadline: Instant,
    ) -> Result<(), Unconfirmed> {
        if !view.must_confirm(quorum) || canary::is(Canary::MinorityUnconfirmed) {
            return Ok(());
        }
        loop {
            let Err(missing) = self.ask_whether_last(view, deadline).await else { return Ok(()) };
            if self.view().epoch() != view.epoch() {
                return Err(Unconfirmed::Moved);
            }
            if Instant::now() + TOO_EARLY_WAIT >= deadline {
                return Err(Unconfirmed::By(missing));
            }
            tokio::time::sleep(TOO_EARLY_WAIT).await;
        }
    }

    /// Asks all members once, until a majority of them has said that the epoch of `view` is the last one.
    ///
    /// # Errors
    /// The members that did not say so.
    async fn ask_whether_last(&self, view: &View, deadline: Instant) -> Result<(), Vec<(Slot, Cause)>> {
        let (shared, instance) = (&self.shared, view.configuration().instance());
        let me = shared.cluster.me();
        let needed = usize::from(view.member_count() / 2) + 1;
        let (mut confirmed, mut missing) = (0, Vec::new());
        if shared.configurations.is_last(instance).await {
            confirmed += 1;
        } else {
            missing.push((me, Cause::Moved));
        }
        let request = Request::Configurations { adopted: instance, bytes: 0 };
        let timeout = deadline.saturating_duration_since(Instant::now());
        let mut calls: Calls<Result<Reply, CallError>> = Calls::new();
        for index in view.slots().iter().copied().filter(|index| *index != me) {
            match self.link(index) {
                Some(link) => calls.push(index, link.call(&request, timeout)),
                None => missing.push((index, Cause::Unreachable)),
            }
        }
        while confirmed < needed {
            match tokio::time::timeout_at(deadline, calls.next()).await {
                Ok(Some((_, Ok(Reply::ConfigurationList { adopted, .. })))) if adopted == instance => {
                    confirmed += 1;
                }
                Ok(Some((index, Ok(_)))) => missing.push((index, Cause::Moved)),
                Ok(Some((index, Err(error)))) => {
                    missing.push((index, shared.peering.failed(index, view.placed_since(), error)));
                }
                Ok(None) => return Err(missing),
                Err(_) => {
                    missing.extend(calls.nodes().map(|index| (index, Cause::Late)));
                    return Err(missing);
                }
            }
        }
        Ok(())
    }
}
