//! A key's history as steps on one register: what both linearizability checkers judge.
//!
//! A write of unknown outcome becomes a step that may be left out and has no end. A value with a TTL brings a second
//! step that may be left out: its expiry. A HEAD counts as a read of the write whose version it saw, where that is
//! known. What was refused, and reads of unknown outcome, are no steps; nor are reads that found nothing of a key with
//! TTLs: two nodes need not agree to the millisecond on when a value has expired.

use super::floor::Writes;
use crate::history::{Operation, Outcome, Request, WriteId};
use std::time::Duration;

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sets the value of this write.
    Write(WriteId),
    /// Leaves no value.
    Erase,
    /// Leaves no value where the value is of this write, and does not happen otherwise.
    Expire(WriteId),
    /// Sees the value of this write, or none.
    Read(Option<WriteId>),
}

/// This is one step: it takes effect at one instant between its beginning and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The operation's number.
    pub id: u64,
    /// Not before this.
    pub invoked: Duration,
    /// Not after this.
    pub returned: Duration,
    /// What it does.
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

    /// A value that one node finds expired another may still show: nothing follows from the absence. Without TTLs it
    /// is a step like any other.
    #[test]
    fn absence_counts_where_nothing_expires() {
        let count = |first: Operation| steps(&[&first, &absent(2, 11, 20), &read(3, 21, 30, 1, 1)]).len();
        assert_eq!(count(put(1, 0, 10, 1)), 3);
        // The write, its expiry, and the read that saw it.
        assert_eq!(count(put_for(1, 0, 10, 1, 5)), 3);
        assert_eq!(steps(&[&put_for(1, 0, 10, 1, 5), &absent(2, 11, 20)]).len(), 2);
    }
}
