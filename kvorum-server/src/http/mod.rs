//! HTTP: the only layer that knows requests, statuses and headers.
//!
//! A request is read downwards. [`server`] accepts connections and hands hyper their bytes; [`head`] and [`connection`]
//! add the checks and bounds that hyper lacks. `access` judges who may ask. [`handler`] turns a request into a call of the
//! coordinator and the result into a response. [`target`] reads paths and parameters; [`error`] turns errors into answers.
//!
//! A request stays on the thread that accepted its connection, so nothing here is shared between threads but the
//! [`Service`].

mod access;
pub mod admission;
mod another;
mod batch;
mod batch_line;
pub mod body;
mod by_token;
mod cluster;
mod conditions;
pub mod connection;
mod console;
mod converged;
mod cut;
mod edits;
pub mod error;
mod explain;
pub mod handler;
pub mod head;
mod instant;
mod local;
mod members;
mod metrics_page;
mod metrics_text;
mod openapi;
pub mod peer_places;
mod range;
mod repair;
pub mod reports;
mod restore;
mod rooms;
pub mod routes;
pub mod server;
mod settings;
mod status;
pub mod target;
#[cfg(test)]
mod tests;
mod topology;
mod turns;
mod values;
mod welcome;
mod workers;

pub use another::{Another, Order};
pub use handler::{Service, ThreadState};
pub use members::MemberPages;
pub use rooms::Rooms;
pub use settings::ShownSetting;
pub use status::NodeFacts;

use std::time::Duration;

/// The bounds of what a client may ask of the node.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest value, in bytes.
    pub value_bytes_max: u64,
    /// Bytes of request bodies that may be in memory at once, over all connections.
    pub body_bytes_in_flight_max: u64,
    /// Connections at once, over all threads.
    pub connections_max: usize,
    /// How long a range may take from first to last byte: it holds a snapshot of the store all the while.
    pub range_timeout: Duration,
    /// How long a draining node waits for requests and connections to end.
    pub drain_timeout: Duration,
    /// The time from which on a request is logged as slow; none for never.
    pub slow_request: Option<Duration>,
    /// The waits on a connection.
    pub waits: connection::Waits,
}

/// The largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
