//! The asynchronous Rust client of a kvorum cluster.
//!
//! A [`Client`] knows one or more nodes. Every node answers every request. Each operation has one overall
//! deadline. Within it, attempts that are safe to repeat are repeated on the next node, a bounded number of
//! times.
//!
//! ```
//! # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
//! # node::with_node(async |url| {
//! use kvorum_client::{Client, PutOptions, ScanOptions};
//! use std::time::Duration;
//!
//! // One node is enough, it tells of the others; with more, the client also begins while one is down.
//! let client = Client::builder().nodes([url]).timeout(Duration::from_secs(2)).build()?;
//!
//! let version = client.put("greeting", "hello").await?;
//! let entry = client.get("greeting").await?;
//! assert_eq!(entry.map(|entry| (entry.value, entry.version)), Some(("hello".into(), version)));
//!
//! let session = PutOptions { ttl: Some(Duration::from_secs(30)), ..PutOptions::default() };
//! client.put_with("session/1", "token", session).await?;
//!
//! // In the order of the keys' bytes; read as it is asked for, however large the range is.
//! let mut scan = client.scan("session/", Some(b"session0"), ScanOptions::default()).await?;
//! while let Some(entry) = scan.next().await {
//!     println!("{}", entry?.key.escape_ascii());
//! }
//!
//! let deleted = client.delete("greeting").await?;
//! assert_eq!(client.get("greeting").await?, None);
//! # drop(deleted);
//! # Ok(())
//! # });
//! ```
//!
//! # How it behaves
//! | | default | see |
//! | --- | --- | --- |
//! | deadline over all attempts and waits of an operation | 5 s | [`Builder::timeout`] |
//! | in flight; more waits, or fails | 1,024; 16,384 wait | [`Builder::in_flight_max`] |
//! | sent to a replica of the key | yes | [`Builder::routing`] |
//! | repeated | reads, and what is certain to have done nothing; 4 attempts | [`RetryPolicy`] |
//! | a failed node | set aside, probed after 100 ms, then at most 5 s apart | [`Client::nodes_aside`] |
//! | slow reads asked of a second node | no | [`Builder::hedging`] |
//!
//! # A repeated write is a new write
//! The contract makes repeating a write safe: the same value is stored once more. It is not invisible: an
//! attempt whose outcome is unknown may take effect at any later time, even after its repetition was
//! acknowledged. So writes of unknown outcome are not repeated unless [`RetryPolicy::repeat_unknown_writes`]
//! says so. Every error tells whether the write [may have taken effect](Error::may_have_taken_effect). A
//! program that records a history sets [`RetryPolicy::NONE`].
//!
//! A write with a condition ([`Client::put_if`], [`Client::delete_if`]) and [`Client::add`] are never repeated after an unknown
//! outcome, whatever the policy: the repetition would be judged against the write itself, or count twice.
//!
//! # Where to read next
//! `client` has the operations; `flight` bounds them; `request` makes the HTTP request of one, `exchange`
//! performs it, `hedging` pays for a second attempt beside a slow one, `retry` decides what follows a
//! failure. `nodes` knows which nodes are healthy and, by `topology`, where keys belong; `choice` picks one
//! of them; `pool` keeps the connections. `answer` and `scan` read the answers. There is no TLS, no proxy and
//! no redirect here.

mod answer;
mod batch;
mod choice;
mod client;
mod conditional;
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

pub use batch::Batch;
pub use client::Client;
pub use config::{Builder, RetryPolicy};
pub use entry::{Entry, Head, Page, Status, Version};
pub use error::{BoxError, Error};
pub use flight::Overflow;
pub use hedging::Hedging;
pub use kvorum_tls::{ClientTls, PemError};
pub use operation::{
    AddOptions, Condition, DeleteOptions, Operation, PutOptions, ReadOptions, Replicas, ScanOptions, Scope,
};
pub use scan::{LineStream, Scan};
