//! TLS for nodes and clients: reading certificates and keys, showing and checking them, and making a small authority.
//!
//! The protocol itself is rustls' with ring: TLS 1.3, and 1.2 for clients that have no other. There is no resumption and
//! no early data, so that every connection is judged by what holds when it begins.
//!
//! [`pem`] reads files, [`client`] is the side that calls, [`facts`] tells what a certificate says, [`authority`] makes
//! certificates. The side that answers is `kvorum-server`'s, because it depends on who may connect there.

pub mod authority;
pub mod client;
pub mod facts;
pub mod pem;

pub use client::ClientTls;
pub use facts::Facts;
pub use pem::{Identity, PemError};
pub use rustls;
pub use tokio_rustls;

use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// The cryptography of every connection: ring's.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
