//! kvorum-sim: the same node code in a deterministic simulation, and the oracle that judges what clients saw.
//!
//! A [`seed`] decides a [`plan`]: the cluster, its clients, and what goes wrong when. The [`cluster`] runs it: real
//! nodes over turmoil's network and time ([`net`]), each with its own [`clock`], randomness and in-memory store.
//! Clients write down what they did and saw ([`history`]); the oracle ([`invariants`]) judges it, one file for each
//! promise of the HTTP contract; a [`report`] shows what broke, and how to replay it.
//!
//! Nothing in a run depends on the machine or the hour: no real clock, no real socket, no thread, no map whose order
//! is drawn.

pub mod batch;
pub mod clock;
pub mod cluster;
pub mod fault;
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
pub mod run;
pub mod seed;
pub mod tally;
pub mod trace;

use std::time::Duration;

/// A duration in whole milliseconds.
pub(crate) fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
