//! Alone: a node that is started and reaches no other node serves the requests that need no other replica, if
//! its disk is the one of its last run. With a copied disk it answers nothing, because the copy may be older.
//!
//! The first part is checked for requests with `ACK` 1, on whichever replica. It applies where nothing else
//! was wrong for a while, no disk was ever lost, and the node was up long enough to recognise its disk. The
//! second part is always checked.

use super::availability::GRACE;
use super::facts::Alone;
use super::{Facts, Violation};
use crate::history::{History, Operation, Outcome};
use std::time::Duration;

/// How long a node may take until it serves: its process starts and opens the store.
const START: Duration = Duration::from_millis(1500);

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let by_key = history.by_key();
    // With members that join, other nodes may hold a record as well.
    let is_changed = !facts.outside.is_empty();
    for alone in &facts.alone {
        let may_serve = is_recognised(alone, facts);
        let wrong = history.operations().iter().find_map(|operation| {
            if operation.node != alone.node
                || operation.invoked <= alone.since
                || operation.returned >= alone.until
            {
                return None;
            }
            let came_to_nothing = matches!(operation.outcome, Outcome::Unknown(_) | Outcome::Refused { .. });
            let is_served_alone =
                operation.replicas.ack == 1 && operation.replicas.from == facts.nodes && !is_changed;
            let must_be_served = may_serve
                && is_served_alone
                && operation.invoked >= alone.since + START
                && !is_ranged(operation);
            match came_to_nothing {
                false if alone.is_copied => Some((operation, "was answered with a copy of a disk")),
                true if must_be_served => Some((operation, "came to nothing although one replica is enough")),
                _ => None,
            }
        });
        if let Some((operation, what)) = wrong {
            let explanation = format!(
                "#{} {what} by node {}, which had been alone since {:?}: {}",
                operation.id, alone.node, alone.since, operation.outcome
            );
            let of_key = by_key.get(&operation.key).map_or(&[][..], |of_key| of_key.as_slice());
            return Err(Violation::on_key("alone", &operation.key, explanation, of_key));
        }
    }
    Ok(())
}

/// Whether the node must be able to recognise its disk.
fn is_recognised(alone: &Alone, facts: &Facts) -> bool {
    let own = (alone.since, alone.until);
    let is_other = |disturbed: &&(Duration, Duration)| **disturbed != own;
    let touches =
        |disturbed: &(Duration, Duration)| disturbed.0 <= alone.until && disturbed.1 + GRACE >= alone.since;
    !alone.is_copied && facts.losses.is_empty() && !facts.disturbed.iter().filter(is_other).any(touches)
}

fn is_ranged(operation: &Operation) -> bool {
    matches!(operation.request, crate::history::Request::Range { .. })
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// A copy that answers is detected, and so is a node that refuses a request that it could serve; neither
    /// before nor after the node was alone.
    #[test]
    fn answers_and_refusals_are_found() {
        let since = Duration::from_secs(20);
        let run = |is_copied, operation: Operation| {
            let alone = Alone { node: operation.node, since, until: Duration::from_secs(28), is_copied };
            let nodes = operation.replicas.from;
            check(&history([operation]), &Facts { alone: vec![alone], nodes, ..facts() })
        };
        let answered = |at| with(1, 3, put(1, at, at + 10, 1));
        assert!(run(true, answered(22_000)).is_err());
        assert_eq!(run(false, answered(22_000)), Ok(()));
        assert_eq!(run(true, answered(19_000)), Ok(()));
        assert_eq!(run(true, answered(27_995)), Ok(()));
        let refused = |at| Operation { outcome: Outcome::Refused { status: 503 }, ..answered(at) };
        assert_eq!(run(true, refused(22_000)), Ok(()));
        assert!(run(false, refused(22_000)).is_err());
        assert_eq!(run(false, refused(21_000)), Ok(()), "it has just been started");
        assert_eq!(run(false, with(2, 3, refused(22_000))), Ok(()), "two must confirm");
    }
}
