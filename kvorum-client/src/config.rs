//! How a client is made: its nodes, limits and retry policy.

use crate::client::Client;
use crate::error::Error;
use crate::exchange::Exchange;
use crate::pool::{Node, PoolLimits};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// This says how often, and when, a failed attempt is repeated.
///
/// Repeated are: connections refused or lost before an answer, and 503, for every operation; 504, a cut answer and an
/// attempt that outlasts `read_patience` for reads, and for writes if `repeat_unknown_writes`. Every repetition goes to
/// the next node, and none begins after the operation's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts of one operation, the first included; 0 counts as 1. Default 4.
    pub attempts_max: u32,
    /// The wait before the second attempt; it doubles with each further one. Default 20 ms.
    ///
    /// What is really waited is between half of it and all of it, so that clients which failed together do not
    /// come back together.
    pub backoff_min: Duration,
    /// The longest such wait. Default 500 ms. A `Retry-After` for the node whose turn it is may be longer.
    pub backoff_max: Duration,
    /// How long an attempt of a read waits for an answer to begin while another node could still be asked. Default 2 s.
    pub read_patience: Duration,
    /// Whether a write of unknown outcome (504, or no answer for `read_patience`) is repeated. Default false.
    pub repeat_unknown_writes: bool,
}

impl RetryPolicy {
    /// The policy that never repeats what may have reached a node.
    pub const NONE: Self = Self {
        attempts_max: 1,
        backoff_min: Duration::ZERO,
        backoff_max: Duration::ZERO,
        read_patience: Duration::MAX,
        repeat_unknown_writes: false,
    };
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 4,
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(500),
            read_patience: Duration::from_secs(2),
            repeat_unknown_writes: false,
        }
    }
}

/// This makes a [`Client`]; see each method for its default.
#[derive(Debug, Clone)]
pub struct Builder {
    nodes: Vec<String>,
    timeout: Duration,
    connect_timeout: Duration,
    idle_timeout: Duration,
    connections_per_node_max: usize,
    answer_bytes_max: usize,
    retry: RetryPolicy,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(15),
            connections_per_node_max: 64,
            answer_bytes_max: 64 * 1024 * 1024,
            retry: RetryPolicy::default(),
        }
    }
}

impl Builder {
    /// Adds a node by its base URL, `http://host:port`. At least one is needed.
    #[must_use]
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(url.into());
        self
    }

    /// Adds nodes by their base URLs.
    #[must_use]
    pub fn nodes(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.nodes.extend(urls.into_iter().map(Into::into));
        self
    }

    /// Sets the overall time limit of an operation: all attempts, and all waits between them. Default 5 s.
    ///
    /// For a scan, it is the limit for the stream to begin, and then for each next entry.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the time limit of making one connection, the name's resolution included. Default 1 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a connection is kept that nobody uses. Default 15 s; it may linger half as long again.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets the most connections to one node at a time, and so the most operations it is asked at once. Default 64.
    ///
    /// Further operations wait for their turn, until their deadline. A scan holds its connection until it has ended or
    /// is dropped.
    #[must_use]
    pub fn connections_per_node_max(mut self, connections: usize) -> Self {
        self.connections_per_node_max = connections;
        self
    }

    /// Sets the largest answer that is read into memory, in bytes. Default 64 MiB.
    ///
    /// It bounds a value, and a line of a scan, where JSON may spell a byte of a value with up to six; the default
    /// has room for a value of 8 MiB, the cluster's default limit, at its longest.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// Sets what is repeated after a failure.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Makes the client. Nothing is connected yet, and no runtime is needed yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without a node, with a URL that is not `http://host:port`, or with no connection
    /// allowed.
    pub fn build(self) -> Result<Client, Error> {
        let invalid = |message: String| Err(Error::InvalidConfig { message });
        if self.nodes.is_empty() {
            return invalid("a client needs the URL of at least one node".to_owned());
        }
        if !(1..=Semaphore::MAX_PERMITS).contains(&self.connections_per_node_max) {
            return invalid(format!(
                "{} connections per node: at least 1 is needed",
                self.connections_per_node_max
            ));
        }
        let limits = PoolLimits {
            connections_max: self.connections_per_node_max,
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
        };
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for url in &self.nodes {
            match Node::new(url, limits) {
                Ok(node) => nodes.push(Arc::new(node)),
                Err(why) => return invalid(format!("node {url:?}: {why}; a node is http://host:port")),
            }
        }
        Ok(Client::new(Exchange::new(nodes.into(), self.timeout, self.answer_bytes_max, self.retry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_work() {
        let check = |builder: Builder, expect: &str| match builder.build() {
            Err(Error::InvalidConfig { message }) => assert!(message.contains(expect), "{message}"),
            other => panic!("expected {expect:?}, got {other:?}"),
        };
        check(Client::builder(), "at least one node");
        check(Client::builder().node("http://a:1").connections_per_node_max(0), "at least 1");
        check(Client::builder().nodes(["http://a:1", "https://b:1"]), "https://b:1");
        assert!(Client::builder().node("http://a:1").build().is_ok());
    }
}
