//! Availability: while nothing is wrong, and nothing was wrong for a while, every request is served.
//!
//! Checked for operations that began [`GRACE`] after the latest fault ended, or later, and ended before the
//! next one began. A wrong clock is no excuse: clocks are not trusted.
//!
//! Where a disk was lost, only reads are checked, as long as `ACK` of `FROM` replicas are left and the key
//! has only one `FROM`. A write that must be stamped again while a replica is broken may fail, and a read may
//! have to write back to the only replicas of the record. Bugs that show as refusals, and nodes that never
//! reconnect, break only this invariant.

use super::{Facts, Violation};
use crate::history::{AckFrom, Condition, History, Operation, Outcome};
use std::time::Duration;

/// How long nodes may take to reconnect: a lost connection is noticed, tried again with growing pauses, and a
/// node that starts takes its hints first.
pub const GRACE: Duration = Duration::from_secs(6);

/// How far clocks that are not wrong may be apart: a rival by the faster one may have ended so long before a write began, and still
/// have the higher version.
const CLOCKS_APART: Duration = Duration::from_millis(50);

/// The same where clocks jump. A node hears of a clock that is ahead with a heartbeat, and gives lower versions until then. Two
/// heartbeats.
const VERSIONS_APART: Duration = Duration::from_secs(1);

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
    // Rivals may keep a conditional write from its end until the deadline, and the plain writes of its key as well.
    let has_ballots = |operation: &Operation| {
        let of_key = by_key.get(&operation.key);
        of_key.is_some_and(|of_key| of_key.iter().any(|other| other.condition != Condition::Any))
    };
    let apart = facts.clock_error.map_or(VERSIONS_APART, |_| CLOCKS_APART);
    // Where the owners of its key change under a write, a rival may have overtaken it: whether it took effect is not known then.
    let is_overtaken = |operation: &Operation| {
        let rivals = by_key.get(&operation.key).map_or(&[][..], |of_key| of_key.as_slice());
        let is_rival = |other: &Operation| {
            other.id != operation.id
                && other.is_write()
                && other.invoked < operation.returned
                && operation.invoked < other.returned + apart
        };
        facts.has_moved && operation.is_write() && rivals.iter().any(|other| is_rival(other))
    };
    let failed = |operation: &&Operation| {
        matches!(operation.outcome, Outcome::Unknown(_) | Outcome::Refused { .. })
            && facts.is_calm(operation.invoked.saturating_sub(GRACE), operation.returned)
            && !facts.was_outside(operation.node, operation.invoked, operation.returned)
            && !facts.was_unnamed(operation.node, operation.invoked, operation.returned)
            && is_held(operation)
            && !has_ballots(operation)
            && !is_overtaken(operation)
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

    /// A write that is overtaken by another one may end as unknown where data moves, and only there.
    #[test]
    fn overtaken_writes_are_excused_where_data_moves() {
        let run = |second: u64, has_moved| {
            let operations = [unknown(put(1, 500, 510, 1)), put(2, second, second + 10, 2)];
            check(&history(operations), &Facts { has_moved, ..facts() })
        };
        assert_eq!(run(505, true), Ok(()));
        assert!(run(505, false).is_err());
        assert!(run(511, true).is_err());
        // The rival ended before, by a clock that is ahead.
        assert_eq!(run(480, true), Ok(()));
        assert!(run(400, true).is_err());
        let run_where_clocks_jump = |second: u64, has_moved| {
            let operations = [unknown(put(1, 5000, 5010, 1)), put(2, second, second + 10, 2)];
            check(&history(operations), &Facts { has_moved, clock_error: None, ..facts() })
        };
        assert_eq!(run_where_clocks_jump(4700, true), Ok(()));
        assert!(run_where_clocks_jump(4700, false).is_err());
        assert!(run_where_clocks_jump(3900, true).is_err());
    }

    /// A failure while nothing is wrong is detected. One during or soon after a fault is allowed, and so is
    /// one where disks were lost.
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
        // Only a node that waits for an operator may refuse a read because of its own disk.
        let mut waiting = facts();
        waiting.waits_for_name(put(1, 500, 510, 1).node, millis(400));
        assert_eq!(run(500, &waiting), Ok(()));
        waiting.came(put(1, 500, 510, 1).node, millis(450));
        assert!(run(500, &waiting).is_err());
    }
}
