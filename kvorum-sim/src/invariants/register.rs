//! A key's history as steps on one register: the input of both linearizability checkers.
//!
//! A write of unknown outcome becomes a step that may be left out and has no end. A value with a TTL adds a
//! second step that may be left out: its expiry. A HEAD counts as a read of the write whose version it saw,
//! if that is known. Refused operations, and reads of unknown outcome, are no steps. Reads that found nothing
//! are no steps on a key with TTLs: two nodes need not agree to the millisecond on when a value has expired.

use super::floor::Writes;
use crate::history::{Operation, Outcome, Request, WriteId};
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
            _ if operation.is_write() && !operation.may_take_effect() => continue,
            (Request::Put { ttl }, _) => {
                if ttl.is_some() {
                    let action = Action::Expire(id);
                    steps.push(Step { id, invoked, returned: Duration::MAX, action, is_certain: false });
                }
                Action::Write(id)
            }
            (Request::Delete, _) => Action::Erase,
            (_, Outcome::Absent) if has_ttl => continue,
            (_, Outcome::Absent) => Action::Read(None),
            (_, Outcome::Value { .. }) => match writes.seen_by(operation) {
                Some(write) => Action::Read(Some(write.id)),
                None => continue,
            },
            _ => continue,
        };
        let is_certain = !operation.is_write() || operation.acknowledged().is_some();
        let returned = if is_certain { operation.returned } else { Duration::MAX };
        steps.push(Step { id, invoked, returned, action, is_certain });
    }
    steps
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
