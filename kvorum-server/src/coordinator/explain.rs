//! Explain: the records that all nodes hold of one key, for people who are surprised by an answer.
//!
//! It asks beyond the quorum: also nodes whose store is not quorum-eligible, and nodes beyond the default number of
//! replicas, which may hold older copies.

use super::calls::{Calls, Cause};
use super::{Coordinator, CoordinatorError};
use crate::background::anti_entropy::sync::fetch;
use crate::peer::HeldBack;
use bytes::Bytes;
use kvorum_core::{Key, Record, Slot, Token, UnixMillis, Value, Version};
use std::rc::Rc;
use std::time::Duration;

/// How long a node may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Nodes that are asked at most, if a default read does not ask more.
const NODES_MAX: usize = 16;

/// The records and the state of a key across the nodes.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The token of the key.
    pub token: u64,
    /// The partition of the key.
    pub partition: u16,
    /// The default quorum.
    pub quorum: kvorum_core::Quorum,
    /// The time at which expiry is judged.
    pub now: UnixMillis,
    /// The timestamp up to which all replicas of the partition agree, as this node last heard; 0 if it has not.
    pub agreed: u64,
    /// The URL of the node that holds this timestamp back, and why.
    pub held_by: Option<(String, HeldBack)>,
    /// The answers of the nodes, by rank.
    pub replicas: Vec<Explained>,
}

/// One node's answer about a key.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The URL of the node.
    pub url: String,
    /// Whether a default read would ask it first.
    pub is_asked: bool,
    /// The record that the node holds, or why it is not known.
    pub held: Result<Option<HeldRecord>, String>,
    /// The promise that the node holds, or why it is not known.
    pub promise: Result<Option<HeldPromise>, String>,
    /// Hints that this node keeps for that node, for any key.
    pub hints_waiting: u64,
}

/// A promise of a conditional write: the node takes no version below the ballot any more, until a record reaches it.
#[derive(Debug, Clone)]
pub struct HeldPromise {
    /// The ballot, in the form of a version.
    pub ballot: String,
    /// When the ballot was stamped, by the clock of the node that coordinates the write.
    pub since: UnixMillis,
}

/// A record without its value.
#[derive(Debug, Clone)]
pub struct HeldRecord {
    /// The version, as in the `ETag`.
    pub version: String,
    /// The replica count that the record was written with.
    pub from: u16,
    /// The time at which the record expires.
    pub expires: Option<UnixMillis>,
    /// `value`, `tombstone` or `expired`.
    pub state: &'static str,
    /// The value's length in bytes.
    pub value_bytes: Option<usize>,
    /// The xxh3-64 hash of the value.
    pub value_hash: Option<String>,
}

impl Explanation {
    /// The places of two replicas that hold different records of the same version, if there are any.
    pub fn conflict(&self) -> Option<(usize, usize)> {
        let mut held = self
            .replicas
            .iter()
            .enumerate()
            .filter_map(|(rank, replica)| Some((rank, replica.held.as_ref().ok()?.as_ref()?)));
        let mut known: Vec<(usize, &HeldRecord)> = Vec::new();
        held.find_map(|(rank, record)| {
            let differs = |(_, other): &&(usize, &HeldRecord)| {
                other.version == record.version
                    && (&other.state, &other.value_hash) != (&record.state, &record.value_hash)
                    && (other.state, record.state) != ("expired", "expired")
            };
            let other = known.iter().find(differs).map(|(other, _)| (*other, rank));
            known.push((rank, record));
            other
        })
    }
}

impl HeldPromise {
    fn of(ballot: Version) -> Self {
        Self { ballot: ballot.to_string(), since: ballot.millis() }
    }
}

/// A node's record of the key, and its promise for it.
type Answer = (Result<Option<Record>, Cause>, Result<Option<Version>, Cause>);

impl HeldRecord {
    fn of(record: &Record, now: UnixMillis) -> Self {
        let value = if let Value::Present(bytes) = &record.value { Some(bytes) } else { None };
        Self {
            version: record.version.to_string(),
            from: record.from,
            expires: record.expires,
            state: match (value, record.has_expired(now)) {
                (_, true) => "expired",
                (Some(_), false) => "value",
                (None, false) => "tombstone",
            },
            value_bytes: value.map(Bytes::len),
            value_hash: value.map(|bytes| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))),
        }
    }
}

impl Coordinator {
    /// Asks the nodes on the key's preference list for their records.
    pub async fn explain(self: &Rc<Self>, key: Key) -> Result<Explanation, CoordinatorError> {
        let shared = &self.shared;
        let quorum = self.default_quorum();
        let partition = shared.cluster.partition_of(&key);
        let view = self.view();
        let list = view.preference_list(partition);
        let first = self.by_readiness(partition, view.plan(&key, quorum).replicas);
        let asked = first.get(..usize::from(quorum.ack())).unwrap_or(&first);
        let now = shared.timestamps.expiry_clock();
        let mut calls = Calls::new();
        for node in list.iter().take(NODES_MAX.max(usize::from(quorum.from()))) {
            let record = fetch(Rc::clone(self), *node, key.clone(), ASK_TIMEOUT);
            let promise = self.ask_promise(*node, &key, ASK_TIMEOUT);
            calls.push(*node, async move { tokio::join!(record, promise) });
        }
        let mut answers: Vec<(Slot, Answer)> = Vec::new();
        while let Some((node, (record, promise))) = calls.next().await {
            answers.push((node, (record.map(|(_, record)| record), promise)));
        }
        answers.sort_by_key(|(node, _)| list.iter().position(|at| at == node));
        let replicas = answers
            .into_iter()
            .map(|(node, (record, promise))| Explained {
                url: shared.cluster.url_of(node).to_owned(),
                is_asked: asked.contains(&node),
                held: record
                    .map(|record| record.map(|record| HeldRecord::of(&record, now)))
                    .map_err(|cause| cause.to_string()),
                promise: promise.map(|ballot| ballot.map(HeldPromise::of)).map_err(|cause| cause.to_string()),
                hints_waiting: shared.hints.waiting_for(shared.cluster.id_of(node)).count,
            })
            .collect();
        let token = Token::of(key.as_ref()).0;
        let watermark = shared
            .background
            .tombstone_gc
            .watermarks()
            .into_iter()
            .find(|watermark| watermark.partition == partition);
        let agreed = watermark.as_ref().map_or(0, |watermark| watermark.agreed);
        let held_by = watermark.and_then(|watermark| watermark.held_by);
        let held_by = held_by.map(|(node, why)| (shared.cluster.url_of(node).to_owned(), why));
        Ok(Explanation { token, partition: partition.0, quorum, now, agreed, held_by, replicas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::NodeId;

    /// Different records of one version are found; records that only look different are not.
    #[test]
    fn conflicts_are_found() {
        let record = |clock, expires: Option<u64>, value: Option<&'static str>| Record {
            version: Version::from_words(clock, NodeId(1).0),
            from: 3,
            expires: expires.map(UnixMillis),
            value: value.map_or(Value::Tombstone, |text| Value::Present(Bytes::from_static(text.as_bytes()))),
            conditional: None,
        };
        let conflict = |records: &[Record]| {
            let held = |record: &Record| Explained {
                url: String::new(),
                is_asked: true,
                held: Ok(Some(HeldRecord::of(record, UnixMillis(100)))),
                promise: Ok(None),
                hints_waiting: 0,
            };
            let explanation = Explanation {
                token: 0,
                partition: 0,
                quorum: kvorum_core::Quorum::majority_of(3),
                now: UnixMillis(100),
                agreed: 0,
                held_by: None,
                replicas: records.iter().map(held).collect(),
            };
            explanation.conflict()
        };
        let live = record(7, Some(200), Some("v"));
        assert_eq!(
            conflict(&[live.clone(), record(6, None, None), record(7, Some(200), None)]),
            Some((0, 2))
        );
        assert_eq!(conflict(&[live.clone(), record(7, Some(200), Some("w"))]), Some((0, 1)));
        assert_eq!(conflict(&[live.clone(), live, record(6, None, None)]), None);
        assert_eq!(conflict(&[record(7, Some(50), Some("v")), record(7, Some(50), None)]), None);
    }
}
