//! Support for the tests of whole clusters: real processes, clients on all of them, and a checker of their
//! results.
//!
//! `node` starts, stops, pauses and kills the processes; `history` decides whether the clients' results keep
//! the contract; `load` runs the clients; `net` gives each node a network namespace that can be cut off. The
//! tests are the `cluster_*.rs` files.

#![allow(dead_code, clippy::trivially_copy_pass_by_ref, reason = "each test crate uses another part of this")]

pub mod history;
pub mod load;
pub mod net;
pub mod node;

/// Seconds that a test which runs for a while may take: `KVORUM_TEST_SECONDS` if set.
pub fn seconds(default: u64) -> u64 {
    std::env::var("KVORUM_TEST_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(default)
}
