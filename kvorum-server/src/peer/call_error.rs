//! The reasons why a call of another node has no reply.

use super::frame::PushError;
use super::terms::{MessageError, Refusal};
use crate::clock::TooFarAhead;
use std::fmt;

/// The reason why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Nothing was sent. The peer did nothing; a retry elsewhere can help.
    NotSent {
        /// Why.
        reason: Unsent,
    },
    /// The connection ended before the reply: it is unknown what the peer did.
    Lost,
    /// No reply came in time: it is unknown what the peer did.
    TimedOut,
    /// The peer refused.
    Refused {
        /// Why, for programs.
        code: Refusal,
        /// Why, for people.
        detail: String,
    },
    /// A reply came, but there was no memory for it: it is unknown what the peer did.
    NoMemory,
    /// A reply came and was rejected: a timestamp in it is too far ahead of this node's clock.
    TooFarAhead(TooFarAhead),
}

/// The reason why a call was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// The link is down.
    Down,
    /// [`super::CALLS_IN_FLIGHT_MAX`] calls are in flight.
    TooManyCalls,
    /// More than [`super::OUT_BYTES_MAX`] bytes would wait to be written.
    TooManyBytes,
    /// The request is longer than a frame may be.
    TooLong,
    /// The peer's release does not know the request. Nothing was sent; it does once the peer is upgraded.
    NotSpoken {
        /// The first version of the protocol that has the request.
        since: u16,
        /// The version that the two nodes speak.
        protocol: u16,
    },
    /// The request has no encoding: the caller is at fault.
    Invalid(MessageError),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent { reason } => write!(f, "not sent: {reason}"),
            Self::Lost => f.write_str("the connection ended before the reply"),
            Self::TimedOut => f.write_str("no reply in time"),
            Self::Refused { detail, .. } => write!(f, "refused: {detail}"),
            Self::NoMemory => f.write_str("no memory was left for its reply"),
            Self::TooFarAhead(error) => write!(f, "its reply was refused: {error}"),
        }
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("there is no connection"),
            Self::TooManyCalls => f.write_str("too many calls are in flight"),
            Self::TooManyBytes => f.write_str("too many bytes wait to be written"),
            Self::TooLong => f.write_str("the request is longer than a frame may be"),
            Self::NotSpoken { since, protocol } => write!(
                f,
                "it needs version {since} of the protocol between nodes, and the two nodes speak {protocol}"
            ),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl From<PushError> for Unsent {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Full => Self::TooManyBytes,
            PushError::TooLong => Self::TooLong,
            PushError::Message(error) => error.into(),
        }
    }
}

impl From<MessageError> for Unsent {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::NotSpoken { since, protocol, .. } => Self::NotSpoken { since, protocol },
            error => Self::Invalid(error),
        }
    }
}
