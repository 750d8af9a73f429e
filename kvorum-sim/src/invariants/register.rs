//! A key's history as steps on one register: the input of both linearizability checkers.
//!
//! A write of unknown outcome becomes a step that may be left out and has no end. A value with a TTL adds a
//! second step that may be left out: its expiry. A HEAD counts as a read of the write whose version it saw,
//! if that is known. Refused operations, and reads of unknown outcome, are no steps. Reads that found nothing
//! are no steps on a key with TTLs: two nodes need not agree to the millisecond on when a value has expired.

use super::floor::Writes;
use crate::history::{Condition, Operation, Outcome, Request, WriteId};
use std::time::Duration;

/// The effect of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sets the value of this write.
    Write(WriteId),
    /// Deletes the value.
    Erase,
    /// Deletes the value if it is of this write; otherwise it does not happen.
    Expire(WriteId),
    /// Sees the value of this write, or none.
    Read(Option<WriteId>),
    /// Sets the value of this write, or deletes it if there is none, if this holds for the value before.
    If(Expect, Option<WriteId>),
}

/// The condition of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is no value.
    Absent,
    /// There is a value.
    Present,
    /// The value is of this write.
    Is(WriteId),
}

impl Expect {
    /// Whether it holds for `value`.
    pub fn holds(self, value: Option<WriteId>) -> bool {
        match self {
            Self::Absent => value.is_none(),
            Self::Present => value.is_some(),
            Self::Is(write) => value == Some(write),
        }
    }
}

impl Action {
    /// The write whose value it sets.
    pub fn written(self) -> Option<WriteId> {
        match self {
            Self::Write(id) | Self::If(_, Some(id)) => Some(id),
            _ => None,
        }
    }

    /// Whether it deletes.
    pub fn erases(self) -> bool {
        matches!(self, Self::Erase | Self::If(_, None))
    }
}

/// One step: it takes effect at one instant between its beginning and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The operation's number.
    pub id: u64,
    /// The earliest instant of its effect.
    pub invoked: Duration,
    /// The latest instant of its effect.
    pub returned: Duration,
    /// Its effect.
    pub action: Action,
    /// Whether it must take effect.
    pub is_certain: bool,
}

/// The steps of one key's operations.
pub fn steps(operations: &[&Operation]) -> Vec<Step> {
    let writes = Writes::of(operations);
    let expires = |operation: &&Operation| matches!(operation.request, Request::Put { ttl: Some(_) });
    let has_ttl = operations.iter().any(expires);
    let mut steps = Vec::with_capacity(operations.len());
    for operation in operations {
        let (id, invoked) = (operation.id, operation.invoked);
        let action = match (&operation.request, &operation.outcome) {
            // What a condition failed on was read.
            (_, Outcome::Failed { current: None }) if has_ttl => continue,
            (_, Outcome::Failed { current: None }) => Action::Read(None),
            (_, Outcome::Failed { current: Some(version) }) => match writes.of_version(*version) {
                Some(write) => Action::Read(Some(write.id)),
                None => continue,
            },
            _ if operation.is_write() && !operation.may_take_effect() => continue,
            (Request::Put { ttl }, _) => {
                if ttl.is_some() {
                    let action = Action::Expire(id);
                    steps.push(Step { id, invoked, returned: Duration::MAX, action, is_certain: false });
                }
                expected(operation, &writes, has_ttl)
                    .map_or(Action::Write(id), |expect| Action::If(expect, Some(id)))
            }
            (Request::Delete, _) => {
                expected(operation, &writes, has_ttl).map_or(Action::Erase, |expect| Action::If(expect, None))
            }
            (_, Outcome::Absent) if has_ttl => continue,
            (_, Outcome::Absent) => Action::Read(None),
            (_, Outcome::Value { .. }) => match writes.seen_by(operation) {
                Some(write) => Action::Read(Some(write.id)),
                None => continue,
            },
            _ => continue,
        };
        let is_certain = matches!(action, Action::Read(_)) || operation.acknowledged().is_some();
        let returned = if is_certain { operation.returned } else { Duration::MAX };
        steps.push(Step { id, invoked, returned, action, is_certain });
    }
    steps
}

/// The condition of a write, as far as it is known which write it means. Where values expire, two nodes need not agree on
/// when: then an absence is no condition.
fn expected(operation: &Operation, writes: &Writes<'_>, has_ttl: bool) -> Option<Expect> {
    match operation.condition {
        Condition::Any => None,
        Condition::Absent if has_ttl => None,
        Condition::Absent => Some(Expect::Absent),
        Condition::Present => Some(Expect::Present),
        Condition::Match(version) => writes.of_version(version).map(|write| Expect::Is(write.id)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// Another node may still show a value that one node finds expired, so an absence proves nothing. Without
    /// TTLs it is a step like any other.
    #[test]
    fn absence_counts_where_nothing_expires() {
        let count = |first: Operation| steps(&[&first, &absent(2, 11, 20), &read(3, 21, 30, 1, 1)]).len();
        assert_eq!(count(put(1, 0, 10, 1)), 3);
        // The write, its expiry, and the read that saw it.
        assert_eq!(count(put_for(1, 0, 10, 1, 5)), 3);
        assert_eq!(steps(&[&put_for(1, 0, 10, 1, 5), &absent(2, 11, 20)]).len(), 2);
    }
}
