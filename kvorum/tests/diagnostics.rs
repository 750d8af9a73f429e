//! Goal: diagnostics cannot hurt a node, and what they tell is true. Method: real processes, whose logs are broken in every
//! way and whose threads are made to die, and what status, metrics and logs say meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a test"
)]

mod cluster_support;
mod faults_support;
mod support;

use cluster_support::node::{Cluster, connect};
use faults_support::http::{encode, receive};
use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;
use support::{PATIENCE, wait_until};

/// The node's status, and the code that it came with; none while nobody answers.
fn try_status(address: SocketAddr, query: &str) -> Option<(u16, serde_json::Value)> {
    let mut stream = connect(address, PATIENCE).ok()?;
    let headers = "Accept: application/json\r\nConnection: close\r\n";
    stream.get_mut().write_all(&encode("GET", &format!("/v0/status{query}"), headers, None)).ok()?;
    let answer = receive(&mut stream).ok()?;
    Some((answer.status, serde_json::from_slice(&answer.body).ok()?))
}

// ---- Clocks -----------------------------------------------------------------------------------------------------

/// Goal: a process that is stopped for 3 s and goes on is not taken for one with a wrong clock, on either side. Method:
/// SIGSTOP and SIGCONT, three times; no log speaks of a clock, and every status shows clocks that are surely near.
#[test]
fn stopped_process_raises_no_clock_alarm() {
    let cluster = Cluster::start(3);
    for _ in 0..3 {
        cluster.pause(1);
        thread::sleep(Duration::from_secs(3));
        cluster.resume(1);
        thread::sleep(Duration::from_millis(300));
    }
    for index in 0..3 {
        wait_until("every peer's clock is known well", || {
            let Some((_, status)) = try_status(cluster.address(index), "") else { return false };
            let peers = status["peers"].as_array().unwrap();
            peers.iter().all(|peer| {
                let number = |name: &str| peer[name].as_i64().unwrap_or(i64::MAX);
                number("clock_offset_ms").abs() < 500 && number("clock_offset_error_ms") < 500
            })
        });
        assert!(!cluster.log(index).contains("clock of a node"), "{}", cluster.log(index));
    }
}
