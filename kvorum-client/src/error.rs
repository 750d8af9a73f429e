//! The errors of the client, as a caller sees them.
//!
//! Each variant says what was attempted, on what, at which node, and whether a write may have taken effect.
//! The last point covers *all* attempts of the call: a PUT whose first attempt was cut and whose second was
//! refused a connection is [`Error::Unreachable`], and may have taken effect.

use crate::operation::Operation;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The cause of an [`Error`], of any type.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why an operation did not succeed.
///
/// Its `Display` is one line that includes the text of its causes.
///
/// ```
/// # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
/// # node::with_node(async |url| {
/// use kvorum_client::{Client, Error, PutOptions, Replicas};
///
/// let client = Client::builder().node(url).build()?;
/// let both = PutOptions { replicas: Some(Replicas { ack: 2, from: 2 }), ..PutOptions::default() };
/// match client.put_with("key", "value", both).await {
///     Ok(version) => println!("two replicas hold version {version}"),
///     Err(Error::NotEnoughReplicas { confirmed, required, .. }) => {
///         println!("{confirmed:?} of {required:?} confirmed: it may take effect later, or never");
///     }
///     Err(error) if error.may_have_taken_effect() => println!("unknown: {error}"),
///     Err(error) if error.is_retry_safe() => println!("nothing was done, later perhaps: {error}"),
///     Err(error) => {
///         // There is one node only, so that two replicas are too many to ask for.
///         assert!(matches!(error, Error::Refused { status: 400, .. }), "{error}");
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
pub enum Error {
    /// The client cannot be built like this; nothing was attempted.
    InvalidConfig {
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// The request cannot be formed; nothing was sent.
    InvalidRequest {
        /// The operation.
        operation: Operation,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// The client's limit of operations in flight is reached; nothing was sent.
    TooManyInFlight {
        /// The operation.
        operation: Operation,
        /// The client's limit.
        in_flight_max: usize,
        /// How long the operation waited for its turn: until its deadline. `None` if it could not even wait.
        waited: Option<Duration>,
    },
    /// No node could be connected to, or the connection was lost before an answer.
    Unreachable {
        /// The operation.
        operation: Operation,
        /// The node of the last attempt.
        node: Arc<str>,
        /// How many attempts were made, on all nodes.
        attempts: u32,
        /// Whether some attempt may have changed the key, or may yet.
        may_have_taken_effect: bool,
        /// The last attempt's failure.
        source: BoxError,
    },
    /// The deadline passed.
    TimedOut {
        /// The operation.
        operation: Operation,
        /// The node of the last attempt.
        node: Arc<str>,
        /// What the last attempt was waiting for.
        waiting_for: &'static str,
        /// The time limit that passed.
        after: Duration,
        /// How many attempts were made, on all nodes.
        attempts: u32,
        /// Whether some attempt may have changed the key, or may yet.
        may_have_taken_effect: bool,
        /// The failure of the attempt before the last one.
        previous: Option<Box<Error>>,
    },
    /// The node found the request wrong (4xx).
    Refused {
        /// The operation.
        operation: Operation,
        /// The node that refused.
        node: Arc<str>,
        /// The HTTP status code.
        status: u16,
        /// The node's text.
        message: String,
        /// Whether an earlier attempt may have changed the key, or may yet.
        may_have_taken_effect: bool,
    },
    /// Fewer replicas confirmed than were asked for, before the node's deadline (504).
    NotEnoughReplicas {
        /// The operation.
        operation: Operation,
        /// The node that coordinated the last attempt.
        node: Arc<str>,
        /// How many attempts were made, on all nodes.
        attempts: u32,
        /// How many replicas confirmed, if the node reported it.
        confirmed: Option<u32>,
        /// How many must confirm, if the request named it or the node reported it.
        required: Option<u32>,
        /// How many replicas were asked, if the request named it or the node reported it.
        from: Option<u32>,
        /// The node's text.
        message: String,
        /// True for a write: a missed quorum is unknown, not undone.
        may_have_taken_effect: bool,
    },
    /// The node is overloaded or shutting down, and did nothing (503).
    Overloaded {
        /// The operation.
        operation: Operation,
        /// The node of the last attempt.
        node: Arc<str>,
        /// How many attempts were made, on all nodes.
        attempts: u32,
        /// How long the node asks not to be sent requests, counted from its answer.
        retry_after: Option<Duration>,
        /// The node's text.
        message: String,
        /// Whether an earlier attempt may have changed the key, or may yet.
        may_have_taken_effect: bool,
    },
    /// The disks of the replicas are full (507): writes are refused, reads continue. This attempt stored
    /// nothing anywhere. If a replica may have stored it, the node answers 504, which is
    /// [`Error::NotEnoughReplicas`].
    DiskFull {
        /// The operation.
        operation: Operation,
        /// The node whose disk is full.
        node: Arc<str>,
        /// The node's text.
        message: String,
        /// Whether an earlier attempt may have changed the key, or may yet.
        may_have_taken_effect: bool,
    },
    /// The node is at fault (500, or a 5xx that has no variant of its own).
    ServerFault {
        /// The operation.
        operation: Operation,
        /// The node at fault.
        node: Arc<str>,
        /// The HTTP status code.
        status: u16,
        /// The node's text, with its request id.
        message: String,
        /// True for a write: it is unknown how far the node came.
        may_have_taken_effect: bool,
    },
    /// The answer is not one of this protocol.
    Protocol {
        /// The operation.
        operation: Operation,
        /// The node that gave this answer.
        node: Arc<str>,
        /// What is wrong with the answer.
        message: String,
        /// True for a write: it is unknown what the node did.
        may_have_taken_effect: bool,
    },
    /// The answer, or one line of it, is larger than this client accepts.
    TooLarge {
        /// The operation.
        operation: Operation,
        /// The node that gave this answer.
        node: Arc<str>,
        /// The client's limit, in bytes.
        bytes_max: usize,
    },
    /// The connection was lost within an answer: only a part of it arrived.
    Cut {
        /// The operation.
        operation: Operation,
        /// The node that was answering.
        node: Arc<str>,
        /// How many entries of a scan had come before.
        entries: u64,
        /// What happened to the connection.
        source: BoxError,
    },
}

impl Error {
    /// Whether the key may have been changed by this call, or may yet be at any later time.
    ///
    /// False is certain: nothing was done, nothing will be. Always false for reads.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::InvalidConfig { .. }
            | Self::InvalidRequest { .. }
            | Self::TooManyInFlight { .. }
            | Self::TooLarge { .. }
            | Self::Cut { .. } => false,
            Self::Unreachable { may_have_taken_effect, .. }
            | Self::TimedOut { may_have_taken_effect, .. }
            | Self::Refused { may_have_taken_effect, .. }
            | Self::NotEnoughReplicas { may_have_taken_effect, .. }
            | Self::Overloaded { may_have_taken_effect, .. }
            | Self::DiskFull { may_have_taken_effect, .. }
            | Self::ServerFault { may_have_taken_effect, .. }
            | Self::Protocol { may_have_taken_effect, .. } => *may_have_taken_effect,
        }
    }

    /// Whether the same call, made again, does no harm by the cluster's guarantees and may succeed.
    ///
    /// A repeated write is a new write: it supersedes values that were written in between.
    pub fn is_retry_safe(&self) -> bool {
        match self {
            Self::TooManyInFlight { .. }
            | Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::NotEnoughReplicas { .. }
            | Self::Overloaded { .. }
            | Self::DiskFull { .. }
            | Self::ServerFault { .. }
            | Self::Cut { .. } => true,
            Self::InvalidConfig { .. }
            | Self::InvalidRequest { .. }
            | Self::Refused { .. }
            | Self::Protocol { .. }
            | Self::TooLarge { .. } => false,
        }
    }

    /// Whether the condition of a write did not hold (412): nothing was done.
    pub fn is_condition_failed(&self) -> bool {
        matches!(self, Self::Refused { status: 412, .. })
    }

    /// The operation; `None` for a client that could not be built.
    pub fn operation(&self) -> Option<&Operation> {
        match self {
            Self::InvalidConfig { .. } => None,
            Self::InvalidRequest { operation, .. }
            | Self::TooManyInFlight { operation, .. }
            | Self::Unreachable { operation, .. }
            | Self::TimedOut { operation, .. }
            | Self::Refused { operation, .. }
            | Self::NotEnoughReplicas { operation, .. }
            | Self::Overloaded { operation, .. }
            | Self::DiskFull { operation, .. }
            | Self::ServerFault { operation, .. }
            | Self::Protocol { operation, .. }
            | Self::TooLarge { operation, .. }
            | Self::Cut { operation, .. } => Some(operation),
        }
    }

    fn fmt_what(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidConfig { message } | Self::InvalidRequest { message, .. } => f.write_str(message),
            Self::TooManyInFlight { in_flight_max, waited, .. } => {
                write!(f, "{in_flight_max} operations are in flight, as many as this client may have")?;
                waited.map_or(Ok(()), |waited| write!(f, "; no turn came within {waited:?}"))
            }
            Self::Unreachable { node, attempts, source, .. } => {
                write!(f, "no answer from {node}{}: {}", Attempts(*attempts), Chain(source.as_ref()))
            }
            Self::TimedOut { node, waiting_for, after, attempts, previous, .. } => {
                write!(f, "no {waiting_for} from {node} within {after:?}{}", Attempts(*attempts))?;
                match previous {
                    Some(previous) => {
                        f.write_str("; before that, ")?;
                        previous.fmt_what(f)
                    }
                    None => Ok(()),
                }
            }
            Self::Refused { node, status, message, .. } => write!(f, "{node} refused ({status}): {message}"),
            Self::NotEnoughReplicas { node, attempts, message, .. } => {
                write!(f, "not enough replicas at {node}{}: {message}", Attempts(*attempts))
            }
            Self::Overloaded { node, attempts, retry_after, message, .. } => {
                write!(f, "{node} is overloaded{}: {message}", Attempts(*attempts))?;
                retry_after.map_or(Ok(()), |wait| write!(f, " (retry after {wait:?})"))
            }
            Self::DiskFull { node, message, .. } => write!(f, "the disk of {node} is full: {message}"),
            Self::ServerFault { node, status, message, .. } => {
                write!(f, "{node} is at fault ({status}): {message}")
            }
            Self::Protocol { node, message, .. } => write!(f, "{node} answered out of protocol: {message}"),
            Self::TooLarge { node, bytes_max, .. } => {
                write!(f, "the answer of {node} is larger than {bytes_max} bytes")
            }
            Self::Cut { operation, node, entries, source } => {
                write!(f, "the answer of {node} was cut")?;
                if matches!(operation, Operation::Scan { .. }) {
                    write!(f, " after {entries} entries")?;
                }
                write!(f, ": {}", Chain(source.as_ref()))
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.operation() {
            write!(f, "{operation}: ")?;
        }
        self.fmt_what(f)?;
        if self.may_have_taken_effect() { f.write_str("; it may have taken effect") } else { Ok(()) }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unreachable { source, .. } | Self::Cut { source, .. } => Some(source.as_ref()),
            Self::TimedOut { previous: Some(previous), .. } => Some(previous.as_ref()),
            _ => None,
        }
    }
}

/// Shows a number of attempts if it is above 1.
struct Attempts(u32);

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 1 { write!(f, " in {} attempts", self.0) } else { Ok(()) }
    }
}

/// Shows an error and its causes on one line: the useful text of an HTTP error is in its last cause.
struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn one_line_says_what_where_how_often_why_and_whether_it_counts() {
        let put = Operation::Put { key: Bytes::from_static(b"k") };
        let lost = Error::Unreachable {
            operation: put.clone(),
            node: "http://a:1".into(),
            attempts: 2,
            may_have_taken_effect: true,
            source: "connection reset".into(),
        };
        assert_eq!(
            lost.to_string(),
            "PUT \"k\": no answer from http://a:1 in 2 attempts: connection reset; it may have taken effect"
        );
        let late = Error::TimedOut {
            operation: put,
            node: "http://b:1".into(),
            waiting_for: "answer",
            after: Duration::from_secs(5),
            attempts: 3,
            may_have_taken_effect: true,
            previous: Some(Box::new(lost)),
        };
        assert_eq!(
            late.to_string(),
            "PUT \"k\": no answer from http://b:1 within 5s in 3 attempts; before that, \
             no answer from http://a:1 in 2 attempts: connection reset; it may have taken effect"
        );
        assert!(late.source().is_some());
        // Every call returns one by value.
        assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
    }
}
