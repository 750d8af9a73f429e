//! One node of kvorum, a distributed key-value store behind plain HTTP, as a library. The crate `kvorum` is the program.
//!
//! A request is read downwards: [`http`] → [`coordinator`] → [`replica`] → [`storage`]. Each layer uses only layers
//! below it and the pure rules of `kvorum-core`. [`node`] assembles them; [`config`] provides the settings.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod admin_socket;
pub mod authority;
pub mod background;
pub mod canary;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod coordinator;
pub mod crash;
pub mod history;
pub mod http;
pub mod log;
mod log_limit;
pub mod machine;
pub mod membership;
pub mod metrics;
pub mod node;
mod part;
pub mod pause;
pub mod peer;
pub mod replica;
pub mod sched;
pub mod security;
pub mod slow;
pub mod spans;
pub mod storage;
pub mod supervise;
pub mod tls;
pub mod verdict;
pub mod worker;
