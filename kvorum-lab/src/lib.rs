//! The laboratory: it drives real nodes over HTTP, on the real machine, and reports its measurements.
//!
//! It depends on no server crate: it knows only the HTTP contract, so that it can measure any build of the
//! node, and so that a bug in the node's own code cannot hide itself here.
//!
//! - [`load`] offers a load at a constant rate (open loop) or as fast as possible (closed loop), by the
//!   strict HTTP of [`http`]; [`ask`] sends single requests beside it, by the client;
//! - [`report`] prints the outcome in wrk2's style, [`hdr_log`] writes histograms for other tools,
//!   [`find_max`] searches for the highest rate, [`monitor`] watches a run; [`cli`] combines them as `kvorum
//!   bench`;
//! - [`chain`] checks conditional writes;
//! - [`machine`] reads the kernel's figures: steal, CPU time, memory; [`fdatasync`] measures the device
//!   alone;
//! - [`suite`] is `make bench`: the node beside the bare responder, in rows, with the aims;
//! - [`lab`] is `kvorum lab`: configurations of a cluster loaded, profiled and compared, in one report.
//!
//! It deliberately injects no faults.
#![expect(clippy::disallowed_methods, reason = "the lab measures the real machine")]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::time::Duration;

pub mod ask;
pub mod chain;
pub mod cli;
pub mod dataset;
pub mod error;
pub mod fdatasync;
pub mod find_max;
pub mod hdr_log;
pub mod histogram;
pub mod http;
pub mod lab;
pub mod load;
pub mod machine;
pub mod monitor;
pub mod report;
pub mod rng;
pub mod suite;
pub mod units;

/// The version of this build with its commit, as in `0.1.0 (1dc1be8)`. The commit is the value that `KVORUM_COMMIT` had when
/// it was built, as `make release` sets it; a build without it has no commit here.
pub fn version() -> String {
    let number = env!("CARGO_PKG_VERSION");
    match option_env!("KVORUM_COMMIT") {
        Some(commit) if !commit.is_empty() => format!("{number} ({commit})"),
        _ => number.to_owned(),
    }
}

/// How long a program that ends waits for its last diagnostics to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);
