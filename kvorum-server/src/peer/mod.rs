//! Peers: how nodes call each other.
//!
//! Each network thread has its own [`Link`] to each other node: one connection that carries many calls at once, and
//! that reconnects without end. It begins as an HTTP/1.1 upgrade on the node's ordinary address, so that one URL names
//! a node ([`Hello`]); from then on frames go both ways. The answering side is [`serve`], over a [`Service`] that
//! another module provides.
//!
//! Deliberately not here: which node to call, what a failed call means for a quorum, when to send heartbeats. A link
//! tells whether its peer is worth asking ([`Link::is_usable`]) and how fast it answers ([`Link::latency`]); the caller
//! decides. Connections come in through [`Connector`] and time through `Clock`, so that the same code runs over a
//! simulated network.
//!
//! Read next: [`message`] (the table of messages), [`fields`] and [`terms`] (the types of their fields), [`frame`] (the
//! layout in bytes), [`handshake`], then [`link`] and [`server`], the two sides of a call, which share the [`pump`].
//! [`auth`] decides whether a peer must prove that it knows the cluster's secret, [`secret`] has the proofs.
//! `docs/wire.md` describes the protocol for authors of other programs.

mod auth;
mod auth_error;
mod call_error;
mod fields;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod latency;
mod limits;
mod link;
mod message;
mod place;
mod protocols;
mod pump;
mod secret;
mod server;
mod table;
mod terms;
#[cfg(test)]
mod tests;

pub use auth::{Answer, Challenge, Connected, Expected, Known, PeerAuth, PeerAuthMode, Proven};
pub use auth_error::AuthError;
pub use call_error::{CallError, Unsent};
pub use frame::{FRAME_BYTES_MAX, FrameError};
pub use handshake::{CLUSTER_BYTES_MAX, HandshakeError, Hello, JOINING, UPGRADE_PATH, UPGRADE_PROTOCOL};
pub use latency::{Estimator, Latency};
pub use limits::PeerLimits;
pub use link::{
    CALLS_IN_FLIGHT_MAX, CONNECT_TIMEOUT, Call, Link, LinkCounts, LinkObserver, LinkParts, LinkState, Setback,
};
pub use message::{DETAIL_BYTES_MAX, Note, REGISTRY_LEN_MAX, Reply, Request};
pub use place::PlaceSettings;
pub use protocols::{PROTOCOL, PROTOCOL_OLDEST, Protocols};
pub use pump::OUT_BYTES_MAX;
pub use secret::{NONCE_BYTES, PROOF_BYTES, SECRET_BYTES_MIN, Secret, Secrets, SecretsError};
pub use server::{Caller, IDLE_MAX, SERVED_IN_FLIGHT_MAX, Service, serve};
pub use terms::{
    ApplyKind, BallotReply, BallotVote, Held, HeldBack, MessageError, Refusal, ScanRow, StepKind, StretchRow,
    Timestamp, VersionRow,
};

use std::future::Future;
use std::io;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// A boxed stream of any type.
pub type BoxedStream = Box<dyn Stream>;

/// An opener of connections: over TCP in a node, over a simulated network in a simulation.
pub trait Connector {
    /// Opens a connection to `authority` (`host:port`). The caller bounds the wait by dropping the future.
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>>;
}
