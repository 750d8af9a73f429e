//! How a client is made: its nodes, limits and retry policy.

use crate::client::Client;
use crate::error::Error;
use crate::exchange::Exchange;
use crate::flight::{Flight, Overflow};
use crate::hedging::{Budget, Hedging};
use crate::nodes::Nodes;
use crate::operation::Replicas;
use crate::pool::{Access, Node, PoolLimits};
use http::HeaderValue;
use kvorum_tls::ClientTls;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How often, and when, a failed attempt is repeated.
///
/// | failure | read, or a scan that has not begun | write |
/// | --- | --- | --- |
/// | no connection | repeated | repeated |
/// | 503 | repeated, after `Retry-After` if it is the same node | likewise |
/// | 504, connection lost before an answer | repeated | only if `repeat_unknown_writes` |
/// | no answer for `read_patience` while another node is healthy | repeated | likewise; else it is waited for |
/// | cut answer, other 5xx | repeated | not |
/// | 4xx, an answer that no node gives | not | not |
///
/// Every repetition goes to another node if one is healthy, and none begins after the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts of one operation, the first included; 0 counts as 1. Default 4.
    pub attempts_max: u32,
    /// The wait before the second attempt; it doubles with each further one. Default 20 ms.
    ///
    /// The real wait is random, between half of it and all of it, so that clients which failed together do
    /// not come back together.
    pub backoff_min: Duration,
    /// The longest such wait. Default 500 ms. A `Retry-After` of the node that is asked next may be longer.
    pub backoff_max: Duration,
    /// How long an attempt of a read waits for an answer to begin while another node could still be asked,
    /// and how long an attempt of any kind waits for a free connection. Default 2 s.
    pub read_patience: Duration,
    /// Whether a write of unknown outcome is repeated. Default false: the first attempt may take effect at
    /// any later time. It may then replace a newer value of another writer. Where a key has one writer, that
    /// cannot hurt.
    pub repeat_unknown_writes: bool,
}

impl RetryPolicy {
    /// The policy that makes one attempt only.
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

/// The settings of a [`Client`]; see each method for its default.
///
/// ```
/// # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
/// # node::with_node(async |url| {
/// use kvorum_client::{Client, Hedging, Overflow, Replicas, RetryPolicy};
/// use std::time::Duration;
///
/// let client = Client::builder()
///     .node(url)
///     .timeout(Duration::from_secs(1))
///     .default_replicas(Replicas { ack: 1, from: 1 })
///     .in_flight_max(64, Overflow::Fail)
///     .retry(RetryPolicy { attempts_max: 2, ..RetryPolicy::default() })
///     .hedging(Hedging { after: Duration::from_millis(20), budget: 0.05 })
///     .build()?;
/// assert_eq!(client.get("nothing").await?, None);
/// # Ok(())
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    nodes: Vec<String>,
    timeout: Duration,
    connect_timeout: Duration,
    idle_timeout: Duration,
    connections_per_node_max: usize,
    in_flight_max: usize,
    overflow: Overflow,
    answer_bytes_max: usize,
    default_replicas: Option<Replicas>,
    retry: RetryPolicy,
    hedging: Option<Hedging>,
    routing: bool,
    token: Option<Token>,
    tls: Option<ClientTls>,
}

/// A token's text, which no output shows.
#[derive(Clone)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The `Authorization` that it makes; none if it is not a token.
    fn authorization(&self) -> Option<HeaderValue> {
        let text = self.0.trim();
        let is_part = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let (id, secret) = text.split_once('.')?;
        if !is_part(id) || !is_part(secret) {
            return None;
        }
        let mut value = HeaderValue::try_from(format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(15),
            connections_per_node_max: 256,
            in_flight_max: 1024,
            overflow: Overflow::Wait { waiting_max: 16_384 },
            answer_bytes_max: 64 * 1024 * 1024,
            default_replicas: None,
            retry: RetryPolicy::default(),
            hedging: None,
            routing: true,
            token: None,
            tls: None,
        }
    }
}

impl Builder {
    /// Adds a node by its base URL, `http://host:port`. At least one is needed, and the client learns the
    /// others from it. With more than one, the client also begins while one is down.
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

    /// Sets the overall time limit of an operation: its wait for a turn, all attempts, and all waits between them.
    /// Default 5 s.
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

    /// Sets how long an unused connection is kept. Default 15 s; it may stay open half as long again.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets the most connections to one node at a time, and so the most operations sent to it at once.
    /// Default 256.
    ///
    /// Further operations wait for one, or go to another node after [`RetryPolicy::read_patience`]. A scan holds its
    /// connection until it has ended or is dropped. The client's own requests (probes, and requests for the
    /// topology) take one connection more at a time.
    #[must_use]
    pub fn connections_per_node_max(mut self, connections: usize) -> Self {
        self.connections_per_node_max = connections;
        self
    }

    /// Sets the most operations in flight at a time, on all nodes, and what happens to further ones. Default
    /// 1,024, and up to 16,384 wait.
    ///
    /// A scan is in flight until it has ended or is dropped.
    #[must_use]
    pub fn in_flight_max(mut self, operations: usize, overflow: Overflow) -> Self {
        self.in_flight_max = operations;
        self.overflow = overflow;
        self
    }

    /// Sets the quorum of operations that name none. Default: the cluster's configured quorum.
    #[must_use]
    pub fn default_replicas(mut self, replicas: Replicas) -> Self {
        self.default_replicas = Some(replicas);
        self
    }

    /// Sets the largest answer that is read into memory, in bytes. Default 64 MiB.
    ///
    /// It bounds a value, and a line of a scan. JSON may spell one byte of a value with up to six: the
    /// default has room for a value of 8 MiB, the cluster's default limit, at its longest.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// Sets which failures are repeated.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sends slow reads to a second node, too. Default: off.
    #[must_use]
    pub fn hedging(mut self, hedging: Hedging) -> Self {
        self.hedging = Some(hedging);
        self
    }

    /// Sets whether operations go to replicas of their key, at the URLs by which the nodes know each other,
    /// which saves a hop. Default true. Switch it off where those cannot be reached, or where all requests
    /// must go over a proxy.
    ///
    /// The client learns the placement from the nodes after the first answer, and again when an answer shows
    /// another epoch. Scans go round among all nodes.
    #[must_use]
    pub fn routing(mut self, routing: bool) -> Self {
        self.routing = routing;
        self
    }

    /// Sets the token that is sent with every request, `ID.SECRET`; white space around it is dropped. Default: none,
    /// which is right where nodes run without `--auth`.
    ///
    /// It goes to the given nodes and to those that they name ([`Builder::routing`]). Without [`Builder::tls`], a
    /// program that can read the network's packets can read the token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// Sets which nodes the client believes, and the certificate that it shows to them. Nodes with `https` URLs need it.
    /// A client whose given nodes are all `https` follows to no `http` one. Default: none.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Makes the client. Nothing is connected yet, and no runtime is needed yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without a node, with a URL that is not `http://host:port` (or `https`, with [`Builder::tls`]), with no connection or operation
    /// allowed, with a budget of hedging that is out of its range, or with a token that is not `ID.SECRET`.
    pub fn build(self) -> Result<Client, Error> {
        let invalid = |message: String| Err(Error::InvalidConfig { message });
        if self.nodes.is_empty() {
            return invalid("a client needs the URL of at least one node".to_owned());
        }
        for (what, count) in [
            ("connections per node", self.connections_per_node_max),
            ("operations in flight", self.in_flight_max),
        ] {
            if !(1..=Semaphore::MAX_PERMITS).contains(&count) {
                return invalid(format!("{count} {what}: at least 1 is needed"));
            }
        }
        let hedging = self.hedging.map(Budget::new);
        if matches!(hedging, Some(None)) {
            return invalid("a budget of hedging is above 0 and at most 1".to_owned());
        }
        let authorization = self.token.as_ref().map(Token::authorization);
        if matches!(authorization, Some(None)) {
            // It may be a secret all the same, so it is not repeated.
            return invalid("the token is not one: a token is ID.SECRET".to_owned());
        }
        let access = Access { authorization: authorization.flatten(), tls: self.tls };
        let limits = PoolLimits {
            connections_max: self.connections_per_node_max,
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
        };
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for url in &self.nodes {
            match Node::new(url, limits, &access) {
                Ok(node) => nodes.push(Arc::new(node)),
                Err(why) => {
                    return invalid(format!(
                        "node {url:?}: {why}; a node is http://host:port or https://host:port"
                    ));
                }
            }
        }
        Ok(Client::new(Exchange {
            nodes: Arc::new(Nodes::new(nodes, limits, access, self.routing)),
            flight: Flight::new(self.in_flight_max, self.overflow),
            timeout: self.timeout,
            default_replicas: self.default_replicas,
            answer_bytes_max: self.answer_bytes_max,
            policy: self.retry,
            hedging: hedging.flatten(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token is sent as it is, whatever is not one is refused, and neither is ever shown.
    #[test]
    fn token_is_kept_secret() {
        let authorization = Token(" a-_1.s3cret\n".to_owned()).authorization().unwrap();
        assert_eq!(authorization, "Bearer a-_1.s3cret");
        let builder = Client::builder().node("http://a:1").token("a.s3cret");
        assert!(!format!("{builder:?}").contains("s3cret"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("s3cret"));
        for wrong in ["", "s3cret", ".s3cret", "s3cret.", "s3cret.a b", "s3cret.a\r\nX: y"] {
            let error = Client::builder().node("http://a:1").token(wrong).build().unwrap_err().to_string();
            assert!(error.contains("ID.SECRET") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn refuses_what_cannot_work() {
        let check = |builder: Builder, expect: &str| match builder.build() {
            Err(Error::InvalidConfig { message }) => assert!(message.contains(expect), "{message}"),
            other => panic!("expected {expect:?}, got {other:?}"),
        };
        check(Client::builder(), "at least one node");
        check(Client::builder().node("http://a:1").connections_per_node_max(0), "at least 1");
        check(Client::builder().node("http://a:1").in_flight_max(0, Overflow::Fail), "at least 1");
        let hedging = Hedging { after: Duration::ZERO, budget: 2.0 };
        check(Client::builder().node("http://a:1").hedging(hedging), "at most 1");
        check(Client::builder().nodes(["http://a:1", "https://b:1"]), "https://b:1");
        assert!(Client::builder().node("http://a:1").build().is_ok());
    }
}
