//! Meeting: asks every other node once in each run up to where it has sealed.
//!
//! What follows if it has sealed further than this store has agreed: [`super::super::anti_entropy::doubt`].

use crate::background::worker::{Work, Worker};
use crate::coordinator::Coordinator;
use crate::coordinator::calls::Cause;
use crate::peer::{Reply, Request};
use kvorum_core::{Partition, Slot};
use std::rc::Rc;
use std::time::Duration;

/// How long the call for a list of floors may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait after a node did not say how far it has sealed.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// The longest wait for a node to be within reach: a link may be usable again without notice.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Meets a node once in this run, as soon as the two can talk. It cannot be paused: this store is not quorum-eligible
/// before.
pub(crate) struct MeetFloors {
    own: Rc<Coordinator>,
    index: Slot,
}

impl MeetFloors {
    pub(crate) fn new(own: Rc<Coordinator>, index: Slot) -> Self {
        Self { own, index }
    }
}

impl Worker for MeetFloors {
    async fn work(&mut self) -> Work {
        let cluster = &self.own.shared.cluster;
        if cluster.has_met_floors_of(self.index) {
            return Work::Done;
        }
        if !self.own.is_ready(self.index) {
            return Work::Idle;
        }
        match meet_floors(&self.own, self.index).await {
            Ok(()) => Work::Done,
            Err(cause) => {
                let node = cluster.url_of(self.index);
                tracing::debug!(node, %cause, "a node did not say how far it has sealed");
                Work::Throttled(RETRY_WAIT)
            }
        }
    }

    async fn wait_for_work(&mut self) {
        let cluster = &self.own.shared.cluster;
        let is_near = || self.own.is_ready(self.index) || cluster.has_met_floors_of(self.index);
        let _ = tokio::time::timeout(LOOK_EVERY, cluster.until(is_near)).await;
    }
}

/// Asks the node at `index` up to where it has sealed, and notes the rows that are in doubt because of it.
pub(crate) async fn meet_floors(own: &Coordinator, index: Slot) -> Result<(), Cause> {
    let Some(link) = own.link(index) else { return Err(Cause::Unreachable) };
    let theirs = match link.call(&Request::Floors, LIST_TIMEOUT).await {
        Ok(Reply::FloorList(words)) => words,
        Ok(_) => return Err(Cause::OffTopic),
        Err(error) => return Err(Cause::Call(error)),
    };
    let Some(ours) = own.shared.replica.believed_floors() else { return Ok(()) };
    if theirs.len() != ours.len() {
        return Err(Cause::OffTopic);
    }
    let ahead = (0u16..).zip(ours.iter().zip(theirs)).filter(|(_, (ours, sealed))| sealed.0 > ours.agreed);
    let words = ahead.map(|(partition, (_, sealed))| (Partition(partition), sealed.0)).collect();
    own.shared.background.anti_entropy.doubt(index, words).await.map_err(Cause::Replica)?;
    own.shared.cluster.note_floors_met(index);
    own.shared.background.membership.record_disk();
    Ok(())
}
