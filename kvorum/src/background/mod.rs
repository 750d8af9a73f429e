//! What a node does without a client: services that run for as long as the node does.
//!
//! | service | what it does |
//! | --- | --- |
//! | [`heartbeat`] | asks every peer twice a second how it is, and compares clocks and stores seen |
//! | [`hinted_handoff`] | delivers hints to nodes that missed writes |
//! | [`anti_entropy`] | compares with every peer and pulls what this node lacks |
//! | [`tombstone_gc`] | finds up to where all nodes agree, and purges tombstones below |
//! | [`repair_damage`] | scans the store for corruption, fetches damaged records, sets a damaged store aside |
//! | [`repair_on_demand`] | does at once what an operator asks for |
//!
//! [`rate_limit`] bounds the bytes that all of them move, and [`workers`] shows their states and lets an operator pause
//! them. They use the calls and clocks of [`crate::coordinator`], and answer no client.

pub(crate) mod anti_entropy;
pub(crate) mod heartbeat;
pub(crate) mod hinted_handoff;
pub(crate) mod rate_limit;
pub(crate) mod repair_damage;
pub(crate) mod repair_on_demand;
pub(crate) mod tombstone_gc;
pub(crate) mod workers;

pub use anti_entropy::bulk::Transferring;
pub use hinted_handoff::Handoff;
pub use repair_damage::Mending;
pub use repair_on_demand::Repaired;
pub use tombstone_gc::{Settling, Watermark};
pub use workers::{PAUSE_DEFAULT, PAUSE_MAX, WorkerError, WorkerStatus, Workers};

use crate::coordinator::Coordinator;
use crate::supervise::Part;
use std::rc::Rc;

/// Starts the node's background work, on the network thread of `coordinator`. Called on one thread of the node.
pub fn start(coordinator: &Rc<Coordinator>) {
    for index in coordinator.shared().cluster.others() {
        coordinator.keep(Part::Meet, Some(index), move |own| own.meet_once(index));
        coordinator.keep(Part::Hints, Some(index), move |own| own.deliver_hints(index));
        coordinator.keep(Part::Pulse, Some(index), move |own| own.keep_pulse(index));
        coordinator.keep(Part::Repair, Some(index), move |own| own.keep_alike(index));
    }
    coordinator.keep(Part::Mend, None, Coordinator::mend);
    coordinator.keep(Part::Scrub, None, Coordinator::scrub);
    coordinator.keep(Part::Pace, None, Coordinator::keep_pace);
    if coordinator.nodes() > 1 {
        coordinator.keep(Part::Settle, None, Coordinator::keep_settled);
        coordinator.keep(Part::Purge, None, Coordinator::keep_purged);
    }
}
