//! The coordinator: serves a client's request by asking replicas.
//!
//! It plans (which replicas, how many must confirm, until when), stamps writes, asks, and counts the answers with
//! the rules of `kvorum-core`. It knows neither HTTP nor disks. In this release a cluster has one node, so the only
//! replica is this node's own; the rules are those of any number.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::replica::{Applied, RangeReader, Replica, ReplicaError};
use bytes::Bytes;
use kvorum_core::hlc::LeaseNeeded;
use kvorum_core::{
    Hlc, Key, NodeId, Quorum, Record, ReplicationFactor, Tally, UnixMillis, Value, Verdict, Version,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Stamps that one write may need: each further one means that a newer write overtook it.
const STAMPS_MAX: usize = 16;

/// This is what a client wants to become of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the value, for good or for `ttl_millis` milliseconds from the write's version on.
    Put {
        /// The value.
        value: Bytes,
        /// How long it lives.
        ttl_millis: Option<u64>,
    },
    /// Deletes it.
    Delete,
}

impl Mutation {
    fn record(&self, version: Version, from: u16) -> Record {
        match self {
            Self::Put { value, ttl_millis } => Record {
                version,
                from,
                expires: ttl_millis.map(|ttl| version.millis().saturating_add(ttl)),
                value: Value::Present(value.clone()),
            },
            Self::Delete => Record { version, from, expires: None, value: Value::Tombstone },
        }
    }
}

/// This is the answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The freshest record among the replies, if any replica has one.
    pub record: Option<Record>,
    /// The instant at which expiry is judged.
    pub now: UnixMillis,
    /// Replicas that answered.
    pub answered: u16,
}

/// This says why a request was not carried out.
#[derive(Debug)]
pub enum CoordinatorError {
    /// Fewer replicas confirmed than the request asks for. A write may still take effect: unknown, not undone.
    NotEnoughReplicas {
        /// What was asked for.
        quorum: Quorum,
        /// Replicas that confirmed.
        confirmed: u16,
        /// How long was waited.
        waited: Duration,
    },
    /// This node's replica could not do it.
    Replica(ReplicaError),
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnoughReplicas { quorum, confirmed, waited } => write!(
                f,
                "Not Enough Replicas: {confirmed} of the {} replicas that must confirm (of {}) did so within {} ms",
                quorum.ack(),
                quorum.from(),
                waited.as_millis()
            ),
            Self::Replica(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CoordinatorError {}

impl From<ReplicaError> for CoordinatorError {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}

/// This is what a coordinator is made of.
pub struct CoordinatorParts {
    /// This node.
    pub node: NodeId,
    /// The nodes in the cluster.
    pub nodes: u16,
    /// Replicas of a key where the request does not say.
    pub factor: ReplicationFactor,
    /// The longest wait for replicas.
    pub request_timeout: Duration,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// This node's replica.
    pub replica: Replica,
    /// The clock lease stored by the life before.
    pub lease: UnixMillis,
}

/// This serves clients' requests.
pub struct Coordinator {
    nodes: u16,
    factor: ReplicationFactor,
    request_timeout: Duration,
    clock: Arc<dyn Clock>,
    replica: Replica,
    // Guards the clock; held for one stamp, which is a few instructions.
    hlc: Mutex<Hlc>,
}

impl Coordinator {
    /// A coordinator over `parts`.
    pub fn new(parts: CoordinatorParts) -> Self {
        Self {
            nodes: parts.nodes,
            factor: parts.factor,
            request_timeout: parts.request_timeout,
            clock: parts.clock,
            replica: parts.replica,
            hlc: Mutex::new(Hlc::resume(parts.node, parts.lease)),
        }
    }

    /// The number of nodes: the upper bound of `from`.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// The quorum of a request that names none.
    pub fn default_quorum(&self) -> Quorum {
        Quorum::default_for(self.factor, self.nodes)
    }

    /// Writes `mutation` to the replicas of `key` and returns the version it got.
    ///
    /// Returns once `quorum.ack` replicas hold the record and none of them held a newer one; where one did, the
    /// write is stamped again above it, so that it supersedes whatever was acknowledged before it began.
    ///
    /// # Errors
    /// [`CoordinatorError::NotEnoughReplicas`] leaves the write of unknown outcome, as does a failure in the
    /// replica other than a refusal.
    ///
    /// # Cancel safety
    /// A write that was handed to a replica goes on when the future is dropped; its outcome is then unknown.
    pub async fn write(
        &self,
        key: Key,
        mutation: Mutation,
        quorum: Quorum,
    ) -> Result<Version, CoordinatorError> {
        let write = self.write_until_newest(key, mutation, quorum);
        tokio::time::timeout(self.request_timeout, write)
            .await
            .unwrap_or_else(|_| Err(self.not_enough(quorum, Tally::new(quorum))))
    }

    /// Reads the freshest record of `key` among `quorum.ack` replies.
    ///
    /// # Cancel safety
    /// A read changes nothing; dropping the future is safe.
    pub async fn read(&self, key: Key, quorum: Quorum) -> Result<Found, CoordinatorError> {
        let mut tally = Tally::new(quorum);
        let reply = tokio::time::timeout(self.request_timeout, self.replica.get(&key)).await;
        let Ok(reply) = reply else { return Err(self.not_enough(quorum, tally)) };
        let record = reply?;
        tally.confirm();
        match tally.verdict() {
            Verdict::Reached => Ok(Found { record, now: self.clock.wall(), answered: tally.confirmed() }),
            Verdict::Pending | Verdict::Unreachable => Err(self.not_enough(quorum, tally)),
        }
    }

    /// Reads the records of start <= key < end that this node stores, tombstones and expired ones included, with
    /// the instant at which expiry is to be judged.
    pub async fn scan_local(
        &self,
        start: Key,
        end: Option<Key>,
    ) -> Result<(RangeReader, UnixMillis), CoordinatorError> {
        let now = self.clock.wall();
        Ok((self.replica.scan(start, end).await?, now))
    }

    async fn write_until_newest(
        &self,
        key: Key,
        mutation: Mutation,
        quorum: Quorum,
    ) -> Result<Version, CoordinatorError> {
        let mut tally = Tally::new(quorum);
        for _ in 0..STAMPS_MAX {
            let version = self.stamp().await?;
            tally = Tally::new(quorum);
            match self.replica.apply(key.clone(), mutation.record(version, quorum.from())).await? {
                Applied::Stored => tally.confirm(),
                Applied::Superseded { by } => {
                    self.lock_hlc().observe(by);
                    continue;
                }
            }
            if tally.verdict() == Verdict::Reached {
                return Ok(version);
            }
        }
        Err(self.not_enough(quorum, tally))
    }

    /// A version above every one stamped or seen before, within a stored lease.
    async fn stamp(&self) -> Result<Version, CoordinatorError> {
        loop {
            let stamped = self.lock_hlc().stamp(self.clock.wall());
            match stamped {
                Ok(version) => return Ok(version),
                Err(LeaseNeeded { until }) => {
                    self.replica.store_lease(until).await?;
                    self.lock_hlc().extend(until);
                }
            }
        }
    }

    fn lock_hlc(&self) -> std::sync::MutexGuard<'_, Hlc> {
        self.hlc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_enough(&self, quorum: Quorum, tally: Tally) -> CoordinatorError {
        let waited = self.request_timeout;
        CoordinatorError::NotEnoughReplicas { quorum, confirmed: tally.confirmed(), waited }
    }
}
