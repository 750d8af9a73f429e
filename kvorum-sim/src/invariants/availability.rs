//! Availability: while nothing is wrong, and has not been for a while, every request is served.
//!
//! Held for operations that began [`GRACE`] after the latest fault ended, or later, and ended before the next one
//! began, as long as the nodes that lost their disks leave `ACK` of `FROM` replicas. Clocks are no excuse: none of
//! them is trusted. Bugs that show as refusals, and nodes that never find together again, break this and nothing else.

use super::{Facts, Violation};
use crate::history::{History, Operation, Outcome};
use std::time::Duration;

/// How long nodes may take to find together again: a connection that is lost is noticed, tried again with growing
/// pauses, and a node that starts takes its hints first.
pub const GRACE: Duration = Duration::from_secs(6);

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let failed = |operation: &&Operation| {
        matches!(operation.outcome, Outcome::Unknown(_) | Outcome::Refused { .. })
            && facts.is_calm(operation.invoked.saturating_sub(GRACE), operation.returned)
            && facts.leaves_enough(operation.replicas, operation.returned)
    };
    let Some(operation) = history.operations().iter().find(failed) else { return Ok(()) };
    let explanation = format!("#{} came to nothing although nothing was wrong: {}", operation.id, operation.outcome);
    let by_key = history.by_key();
    let of_key = by_key.get(&operation.key).map_or(&[][..], |of_key| of_key.as_slice());
    Err(Violation::on_key("availability", &operation.key, explanation, of_key))
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Loss, LossKind};
    use super::super::testing::*;
    use super::*;

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
        assert!(run(500, &Facts { losses: vec![loss(1)], ..facts() }).is_err());
        assert_eq!(run(500, &Facts { losses: vec![loss(1), loss(2)], ..facts() }), Ok(()));
    }
}
