//! Availability: while nothing is wrong, and has not been for a while, every request is served.
//!
//! Held for operations that began [`GRACE`] after the latest fault ended, or later, and ended before the next one
//! began. Clocks are no excuse: none of them is trusted. Where a disk was lost, only reads are held to it, as long as
//! `ACK` of `FROM` replicas are left and the key has one `FROM`: a write that must be stamped again while a replica
//! is broken may come to nothing, and a read may have to write back where the record alone belongs. Bugs that show as
//! refusals, and nodes that never find together again, break this and nothing else.

use super::{Facts, Violation};
use crate::history::{AckFrom, History, Operation, Outcome};
use std::time::Duration;

/// How long nodes may take to find together again: a connection that is lost is noticed, tried again with growing
/// pauses, and a node that starts takes its hints first.
pub const GRACE: Duration = Duration::from_secs(6);

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let by_key = history.by_key();
    let has_one_from = |operation: &Operation| {
        by_key
            .get(&operation.key)
            .is_some_and(|of_key| of_key.iter().all(|other| other.replicas.from == operation.replicas.from))
    };
    let is_held = |operation: &Operation| {
        let broken = facts.broken_disks(operation.returned);
        let AckFrom { ack, from } = operation.replicas;
        let is_enough = broken + usize::from(ack) <= usize::from(from);
        broken == 0 || operation.is_read() && is_enough && has_one_from(operation)
    };
    let failed = |operation: &&Operation| {
        matches!(operation.outcome, Outcome::Unknown(_) | Outcome::Refused { .. })
            && facts.is_calm(operation.invoked.saturating_sub(GRACE), operation.returned)
            && is_held(operation)
    };
    let Some(operation) = history.operations().iter().find(failed) else { return Ok(()) };
    let explanation =
        format!("#{} came to nothing although nothing was wrong: {}", operation.id, operation.outcome);
    let of_key = by_key.get(&operation.key).map_or(&[][..], |of_key| of_key.as_slice());
    Err(Violation::on_key("availability", &operation.key, explanation, of_key))
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Loss, LossKind};
    use super::super::testing::*;
    use super::*;
    use crate::history::Request;

    /// A failure in calm times is found; one during or soon after a fault is not, nor where disks were lost.
    #[test]
    fn failures_in_calm_times_are_found() {
        let run = |at: u64, facts: &Facts| check(&history([unknown(put(1, at, at + 10, 1))]), facts);
        let disturbed = Facts { disturbed: vec![(millis(1000), millis(2000))], ..facts() };
        assert!(run(500, &facts()).is_err());
        assert!(run(500, &disturbed).is_err());
        assert_eq!(run(995, &disturbed), Ok(()));
        assert_eq!(run(1500, &disturbed), Ok(()));
        assert_eq!(run(7900, &disturbed), Ok(()));
        assert!(run(8100, &disturbed).is_err());
        let loss = |node| Loss { node, at: millis(5), kind: LossKind::Wiped, since: Duration::ZERO };
        let read = |losses, other: Operation| {
            let failed = Operation { request: Request::Get, ..unknown(put(1, 500, 510, 1)) };
            check(&history([failed, other]), &Facts { losses, ..facts() })
        };
        assert_eq!(run(500, &Facts { losses: vec![loss(1)], ..facts() }), Ok(()));
        assert!(read(vec![loss(1)], put(2, 0, 10, 1)).is_err());
        assert_eq!(read(vec![loss(1), loss(2)], put(2, 0, 10, 1)), Ok(()));
        assert_eq!(read(vec![loss(1)], with(1, 1, put(2, 0, 10, 1))), Ok(()));
    }
}
