//! What a node does without a client: services that run for as long as the node does.
//!
//! | service | what it does |
//! | --- | --- |
//! | [`heartbeat`] | asks every peer twice a second how it is, and compares clocks and stores seen |
//! | [`hinted_handoff`] | delivers hints to nodes that missed writes |
//! | [`take_hints`](mod@take_hints) | meets the peers at a start, and takes the hints that they hold |
//! | [`anti_entropy`] | compares with every peer and pulls what this node lacks |
//! | [`tombstone_gc`] | finds up to where all nodes agree, and purges tombstones below |
//! | [`repair_damage`] | scans the store for corruption, fetches damaged records, sets a damaged store aside |
//! | [`driver`] | takes the steps of a change of members |
//! | [`cuts`] | takes the steps of a cut, for exact backups |
//! | [`repair_on_demand`] | does at once what an operator asks for |
//!
//! Each is a struct with its own state, which the loop in [`worker`] runs. What a service shows to others is in
//! [`Background`]. [`rate_limit`] bounds the bytes that all of them move, and [`workers`] lists them and lets an operator
//! pause them. They use the calls and clocks of [`crate::coordinator`], and answer no client.

pub(crate) mod anti_entropy;
mod catch_up;
mod cuts;
mod driver;
pub(crate) mod heartbeat;
pub(crate) mod hinted_handoff;
pub(crate) mod membership;
pub(crate) mod rate_limit;
pub(crate) mod repair_damage;
pub(crate) mod repair_on_demand;
mod take_hints;
pub(crate) mod tombstone_gc;
mod unowned;
mod worker;
pub(crate) mod workers;

pub use anti_entropy::Comparisons;
pub use anti_entropy::bulk::Transferring;
pub use cuts::{CutError, Cuts};
pub use driver::Steps;
pub use hinted_handoff::Handoff;
pub use membership::Membership;
pub use repair_damage::DamageRepair;
pub use repair_on_demand::{Repaired, drop_unbelievable, repair_now};
pub use take_hints::take_hints;
pub use tombstone_gc::{TombstoneGc, Watermark};
pub use workers::{PAUSE_DEFAULT, PAUSE_MAX, WorkerError, WorkerStatus, Workers};

use crate::clock::{Clock, Rng, TimestampBound};
use crate::cluster::Cluster;
use crate::coordinator::{Coordinator, Settings, Stamps};
use crate::membership::Configurations;
use crate::replica::{Hints, Replica};
use crate::supervise::Part;
use anti_entropy::AntiEntropy;
use catch_up::CatchUp;
use driver::Driver;
use heartbeat::Heartbeat;
use hinted_handoff::HintedHandoff;
use kvorum_core::Slot;
use rate_limit::{LoadMeter, RateLimit};
use repair_damage::{RepairDamage, Scrub};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tombstone_gc::meet_floors::MeetFloors;
use tombstone_gc::{Purge, Rounds};
use unowned::DropUnowned;

/// The state of the background services that outlives their tasks: for each other, for requests and for operators.
pub struct Background {
    cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    replica: Replica,
    hints: Hints,
    /// The list of the workers.
    pub workers: Workers,
    /// What this node knows of the others' stores and clocks, and of its own store.
    pub membership: Membership,
    /// Comparisons of replicas.
    pub anti_entropy: Comparisons,
    /// Wakes the tasks that deliver hints.
    pub handoff: Handoff,
    /// What a change of members waits for.
    pub steps: Steps,
    /// Cuts of the store, for backups.
    pub cuts: Cuts,
    /// Counters of the scrub and of replaced stores.
    pub damage_repair: Arc<DamageRepair>,
    /// Rounds of all nodes, and the purge of dead rows.
    pub tombstone_gc: TombstoneGc,
    pub(crate) pace: RateLimit,
    /// Whether a repair on an operator's order is under way.
    pub(crate) is_repairing: AtomicBool,
}

/// What the services work with.
pub(crate) struct Parts<'a> {
    pub(crate) cluster: &'a Arc<Cluster>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) timestamps: &'a Arc<TimestampBound>,
    pub(crate) rng: &'a Arc<dyn Rng>,
    pub(crate) replica: &'a Replica,
    pub(crate) hints: &'a Hints,
    pub(crate) stamps: &'a Arc<Stamps>,
    pub(crate) configurations: &'a Arc<Configurations>,
    pub(crate) settings: &'a Settings,
}

impl Background {
    /// The state of the services of a node that starts now.
    pub(crate) fn new(parts: &Parts<'_>) -> Self {
        let Parts { cluster, clock, timestamps, rng, replica, hints, stamps, configurations, settings } =
            *parts;
        let tombstone_gc = TombstoneGc::new(tombstone_gc::Parts {
            cluster: Arc::clone(cluster),
            clock: Arc::clone(clock),
            timestamps: Arc::clone(timestamps),
            replica: replica.clone(),
            hints: hints.clone(),
            stamps: Arc::clone(stamps),
            interval: settings.tombstone_gc_every,
        });
        let damage_repair = Arc::new(DamageRepair::default());
        let anti_entropy = Comparisons {
            cluster: Arc::clone(cluster),
            timestamps: Arc::clone(timestamps),
            replica: replica.clone(),
            hints: hints.clone(),
            damage_repair: Arc::clone(&damage_repair),
            purges: Arc::clone(&tombstone_gc.purges),
            transferring: settings.upkeep.transferring,
            progress: Arc::default(),
        };
        let membership = Membership {
            cluster: Arc::clone(cluster),
            clock: Arc::clone(clock),
            timestamps: Arc::clone(timestamps),
            rng: Arc::clone(rng),
            replica: replica.clone(),
            configurations: Arc::clone(configurations),
            clock_offset_max: settings.clock_offset_max,
            disk: OnceLock::new(),
            making_cluster_id: tokio::sync::Mutex::default(),
            is_undecided_told: AtomicBool::new(false),
        };
        let cuts = Cuts {
            cluster: Arc::clone(cluster),
            timestamps: Arc::clone(timestamps),
            stamps: Arc::clone(stamps),
            replica: replica.clone(),
        };
        let progress = Arc::clone(&anti_entropy.progress);
        let (cluster, clock) = (Arc::clone(cluster), Arc::clone(clock));
        let away_after = settings.upkeep.away_after;
        let configurations = Arc::clone(configurations);
        let steps =
            Steps::new(Arc::clone(&cluster), Arc::clone(&clock), configurations, progress, away_after);
        Self {
            workers: Workers::default(),
            membership,
            anti_entropy,
            handoff: Handoff::new(Arc::clone(&cluster), hints.clone()),
            steps,
            cuts,
            damage_repair,
            tombstone_gc,
            pace: RateLimit::new(Arc::clone(&clock), settings.upkeep.repair_rate),
            replica: replica.clone(),
            hints: hints.clone(),
            cluster,
            clock,
            is_repairing: AtomicBool::new(false),
        }
    }
}

/// Starts the background work for the member at `index`, on the network thread of `coordinator`. It ends with the member.
pub(crate) fn start_for(coordinator: &Rc<Coordinator>, index: Slot) {
    worker::start(coordinator, Part::FenceQuery, Some(index), move |own| MeetFloors::new(own, index));
    worker::start(coordinator, Part::Handoff, Some(index), move |own| HintedHandoff::new(own, index));
    worker::start(coordinator, Part::Heartbeat, Some(index), move |own| Heartbeat::new(own, index));
    worker::start(coordinator, Part::CatchUp, Some(index), move |own| CatchUp::new(own, index));
    worker::start(coordinator, Part::AntiEntropy, Some(index), move |own| AntiEntropy::new(own, index));
}

/// Starts the node's background work, on the network thread of `coordinator`. Called on one thread of the node.
pub fn start(coordinator: &Rc<Coordinator>) {
    coordinator.begin_background();
    worker::start(coordinator, Part::DamageRepair, None, RepairDamage::new);
    worker::start(coordinator, Part::Scrub, None, Scrub::new);
    worker::start(coordinator, Part::RateLimit, None, LoadMeter::new);
    worker::start(coordinator, Part::Drop, None, DropUnowned::new);
    worker::start(coordinator, Part::ChangeDriver, None, Driver::new);
    // A node that was started alone and cannot grow purges by itself.
    if coordinator.shared().replica.digests().is_some() {
        worker::start(coordinator, Part::TombstoneGc, None, Rounds::new);
        worker::start(coordinator, Part::Purge, None, Purge::new);
    }
}
