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
//! Each is a struct with its own state, which the loop in [`worker`] runs. What a service shows to others is in
//! [`Background`]. [`rate_limit`] bounds the bytes that all of them move, and [`workers`] lists them and lets an operator
//! pause them. They use the calls and clocks of [`crate::coordinator`], and answer no client.

pub(crate) mod anti_entropy;
pub(crate) mod heartbeat;
pub(crate) mod hinted_handoff;
pub(crate) mod identity;
pub(crate) mod rate_limit;
pub(crate) mod repair_damage;
pub(crate) mod repair_on_demand;
pub(crate) mod tombstone_gc;
mod worker;
pub(crate) mod workers;

pub use anti_entropy::AntiEntropyState;
pub use anti_entropy::bulk::Transferring;
pub use hinted_handoff::Handoff;
pub use repair_damage::Mending;
pub use repair_on_demand::Repaired;
pub use tombstone_gc::{Settling, Watermark};
pub use workers::{PAUSE_DEFAULT, PAUSE_MAX, WorkerError, WorkerStatus, Workers};

use crate::cluster::Cluster;
use crate::coordinator::Coordinator;
use crate::supervise::Part;
use anti_entropy::AntiEntropy;
use heartbeat::Heartbeat;
use hinted_handoff::HintedHandoff;
use identity::Identity;
use rate_limit::{LoadMeter, Pace};
use repair_damage::{RepairDamage, Scrub};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tombstone_gc::watermark::MeetFloors;
use tombstone_gc::{Purge, Rounds};

/// What the background services show to each other, to requests and to operators.
#[derive(Debug)]
pub struct Background {
    /// The list of the workers.
    pub workers: Workers,
    /// Comparisons of replicas, and what they brought.
    pub anti_entropy: AntiEntropyState,
    /// Wakes the tasks that deliver hints.
    pub handoff: Handoff,
    /// Counters of the scrub and of replaced stores.
    pub mending: Mending,
    /// Up to where all nodes agree.
    pub settling: Settling,
    /// The cluster's id, and the disk of this run.
    pub(crate) identity: Identity,
    pub(crate) pace: Pace,
    /// Whether a repair on an operator's order is under way.
    pub(crate) is_repairing: AtomicBool,
}

impl Background {
    /// The state of the services of a node of `cluster` that starts at `now`, on the monotonic clock.
    pub(crate) fn new(cluster: &Cluster, now: Duration) -> Self {
        let nodes = cluster.node_count();
        Self {
            workers: Workers::new(&cluster.others().collect::<Vec<_>>()),
            anti_entropy: AntiEntropyState::new(nodes),
            handoff: Handoff::new(nodes),
            mending: Mending::default(),
            settling: Settling::new(cluster.topology().partition_bits(), nodes, now),
            identity: Identity::default(),
            pace: Pace::default(),
            is_repairing: AtomicBool::new(false),
        }
    }
}

/// Starts the node's background work, on the network thread of `coordinator`. Called on one thread of the node.
pub fn start(coordinator: &Rc<Coordinator>) {
    for index in coordinator.shared().cluster.others() {
        worker::start(coordinator, Part::Meet, Some(index), move |own| MeetFloors::new(own, index));
        worker::start(coordinator, Part::Hints, Some(index), move |own| HintedHandoff::new(own, index));
        worker::start(coordinator, Part::Pulse, Some(index), move |own| Heartbeat::new(own, index));
        worker::start(coordinator, Part::Repair, Some(index), move |own| AntiEntropy::new(own, index));
    }
    worker::start(coordinator, Part::Mend, None, RepairDamage::new);
    worker::start(coordinator, Part::Scrub, None, Scrub::new);
    worker::start(coordinator, Part::Pace, None, LoadMeter::new);
    if coordinator.nodes() > 1 {
        worker::start(coordinator, Part::Settle, None, Rounds::new);
        worker::start(coordinator, Part::Purge, None, Purge::new);
    }
}
