//! kvorum-sim: the same node code in a deterministic simulation, and the oracle that judges what clients saw.
//!
//! A [`seed`] decides a [`plan`]: the cluster, its clients, and which faults happen when. The [`cluster`]
//! runs it: real nodes over turmoil's network and time ([`net`]), each with its own [`clock`], randomness and
//! in-memory store. Clients record their operations and results ([`history`]). The oracle ([`invariants`])
//! judges the history, one file for each promise of the HTTP contract. A [`report`] shows what broke, and how
//! to replay it.
//!
//! Nothing in a run depends on the machine or the time of day: no real clock, no real socket, no thread, no
//! map with a random order.

pub mod batch;
pub mod clock;
pub mod cluster;
pub mod counters;
pub mod cuts;
pub mod fault;
pub mod foreign;
pub mod forge;
pub mod history;
pub mod http_client;
pub mod identity;
pub mod invariants;
pub mod load;
pub mod net;
pub mod node;
pub mod plan;
pub mod report;
pub mod restore;
pub mod run;
pub mod seed;
pub mod tally;
pub mod trace;

use std::time::Duration;

/// A duration in whole milliseconds.
pub(crate) fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
