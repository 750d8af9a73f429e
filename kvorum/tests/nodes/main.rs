//! The tests that start the program: one process or several, real sockets, real files, real faults. One binary, so
//! that it is linked once; `cargo test -p kvorum --test nodes cluster_heal` runs the tests of one file.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    missing_docs,
    unreachable_pub,
    reason = "a test"
)]

mod backup;
mod batch;
mod chain;
mod cluster_client;
mod cluster_clocks;
mod cluster_failure;
mod cluster_faults;
mod cluster_heal;
mod cluster_identity;
mod cluster_network;
mod cluster_purge;
mod cluster_quorums;
mod cluster_rot;
mod console;
mod crash_points;
mod dev_grows;
mod diagnostics;
mod edits;
mod faults_crash;
mod faults_damage;
mod faults_disk;
mod faults_load;
mod faults_power;
mod faults_shortage;
mod force;
mod http_bounds;
mod http_cases;
mod http_contract;
mod http_raw;
mod lab;
mod membership;
mod membership_nodes;
mod metrics;
mod mixed_versions;
mod peer_secret;
mod program;
mod status;
mod tls;
mod tokens;
mod traces;
