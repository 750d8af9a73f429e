//! Small histories for the tests of the invariants: every invariant must fail in a test once.

use super::facts::{Facts, Mechanisms};
use crate::history::{AckFrom, Condition, Doubt, Entry, History, Operation, Outcome, Request};
use bytes::Bytes;
use kvorum_core::{NodeId, Record, UnixMillis, Value, Version};
use std::time::Duration;

pub(super) const MAJORITY: AckFrom = AckFrom::new(2, 3);

pub(super) fn millis(of: u64) -> Duration {
    Duration::from_millis(of)
}

/// The version that a clock at `millis` of simulated time stamps.
pub(super) fn version(millis: u64) -> Version {
    Version::new(UnixMillis(facts().epoch.0 + millis), 0, NodeId(1))
}

pub(super) fn facts() -> Facts {
    Facts {
        nodes: 3,
        epoch: UnixMillis(1_000_000),
        clock_error: Some(millis(10)),
        deadline: millis(1000),
        slack: millis(100),
        converged: Some(millis(10_000)),
        mechanisms: Mechanisms { repair: true, drop_stale: true, purge: true, heal_rot: true },
        ..Facts::default()
    }
}

/// An operation on key `k` from `invoked` to `returned`, 2/3.
pub(super) fn operation(
    id: u64,
    invoked: u64,
    returned: u64,
    request: Request,
    outcome: Outcome,
) -> Operation {
    Operation {
        id,
        client: 0,
        node: 0,
        key: Bytes::from_static(b"k"),
        request,
        condition: Condition::Any,
        replicas: MAJORITY,
        invoked: millis(invoked),
        returned: millis(returned),
        outcome,
    }
}

pub(super) fn put(id: u64, invoked: u64, returned: u64, at: u64) -> Operation {
    let outcome = Outcome::Acknowledged { version: version(at) };
    operation(id, invoked, returned, Request::Put { ttl: None }, outcome)
}

pub(super) fn put_for(id: u64, invoked: u64, returned: u64, at: u64, ttl: u64) -> Operation {
    Operation { request: Request::Put { ttl: Some(millis(ttl)) }, ..put(id, invoked, returned, at) }
}

pub(super) fn delete(id: u64, invoked: u64, returned: u64, at: u64) -> Operation {
    Operation { request: Request::Delete, ..put(id, invoked, returned, at) }
}

pub(super) fn read(id: u64, invoked: u64, returned: u64, write: u64, at: u64) -> Operation {
    let outcome = Outcome::Value { write: Some(write), version: version(at), is_foreign: false };
    operation(id, invoked, returned, Request::Get, outcome)
}

pub(super) fn absent(id: u64, invoked: u64, returned: u64) -> Operation {
    operation(id, invoked, returned, Request::Get, Outcome::Absent)
}

/// The same with an outcome that is not known.
pub(super) fn unknown(operation: Operation) -> Operation {
    Operation { outcome: Outcome::Unknown(Doubt::Status(504)), ..operation }
}

/// The same with a condition.
pub(super) fn when(condition: Condition, operation: Operation) -> Operation {
    Operation { condition, ..operation }
}

/// The same, whose condition did not hold.
pub(super) fn failed(current: Option<u64>, operation: Operation) -> Operation {
    Operation { outcome: Outcome::Failed { current: current.map(version) }, ..operation }
}

/// The same with other replicas.
pub(super) fn with(ack: u16, from: u16, operation: Operation) -> Operation {
    Operation { replicas: AckFrom::new(ack, from), ..operation }
}

pub(super) fn range(id: u64, invoked: u64, returned: u64, entries: Vec<Entry>) -> Operation {
    let request = Request::Range { end: None, limit: None };
    Operation {
        key: Bytes::from_static(b"a"),
        ..operation(id, invoked, returned, request, Outcome::Range(entries))
    }
}

pub(super) fn history<const N: usize>(operations: [Operation; N]) -> History {
    History::new(operations.into())
}

/// A stored record.
pub(super) fn record(at: u64, from: u16, value: Option<&'static str>) -> Record {
    let value = value.map_or(Value::Tombstone, |value| Value::Present(Bytes::from_static(value.as_bytes())));
    Record { version: version(at), from, expires: None, value, conditional: None }
}
