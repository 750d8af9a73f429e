//! The asynchronous Rust client of a kvorum cluster.
//!
//! A [`Client`] knows one or more nodes, any of which answers any request. Each operation has one overall deadline;
//! within it, what is safe to repeat is repeated on the next node, a bounded number of times.
//!
//! ```no_run
//! # async fn example() -> Result<(), kvorum_client::Error> {
//! use kvorum_client::{Client, PutOptions, ScanOptions};
//! use std::time::Duration;
//!
//! let client = Client::builder()
//!     .nodes(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])
//!     .timeout(Duration::from_secs(2))
//!     .build()?;
//!
//! let version = client.put("greeting", "hello").await?;
//! let session = PutOptions { ttl: Some(Duration::from_secs(30)), ..PutOptions::default() };
//! client.put_with("session/1", "token", session).await?;
//!
//! if let Some(entry) = client.get("greeting").await? {
//!     assert_eq!(entry.version, version);
//! }
//!
//! let mut scan = client.scan("session/", Some(b"session0"), ScanOptions::default()).await?;
//! while let Some(entry) = scan.next().await {
//!     println!("{}", entry?.key.escape_ascii());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # A repeated write is a new write
//! The contract makes repeating a write safe: the same value is stored once more. It is not invisible: an attempt whose
//! outcome is unknown may take effect at any later time, even after its repetition was acknowledged. So writes of unknown
//! outcome are not repeated unless [`RetryPolicy::repeat_unknown_writes`] says so, and every error tells whether the write
//! [may have taken effect](Error::may_have_taken_effect). Who records a history sets [`RetryPolicy::NONE`].
//!
//! # Where to read next
//! `client` has the operations; `flight` bounds them; `request` makes the HTTP request of one, `exchange` performs it,
//! `hedging` pays for a second attempt beside a slow one, `retry` decides what comes after a failure. `nodes` knows who is
//! well and, by `topology`, where keys belong; `choice` picks one of them; `pool` keeps the connections. `answer` and
//! `scan` read what comes back. There is no TLS, no proxy and no redirect here.

mod answer;
mod choice;
mod client;
mod config;
mod entry;
mod error;
mod exchange;
mod flight;
mod hedging;
mod io;
mod ndjson;
mod nodes;
mod operation;
mod pool;
mod request;
mod retry;
mod scan;
mod topology;

pub use client::Client;
pub use config::{Builder, RetryPolicy};
pub use entry::{Entry, Head, Status, Version};
pub use error::{BoxError, Error};
pub use flight::Overflow;
pub use hedging::Hedging;
pub use operation::{DeleteOptions, Operation, PutOptions, ReadOptions, Replicas, ScanOptions, Scope};
pub use scan::Scan;
