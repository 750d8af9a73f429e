//! Deadlines: every answer comes within its deadline plus some slack.
//!
//! Checked for every node that runs: not for one that was down, paused or slowed while the request was open,
//! and not where a connection was cut. An answer that the client gave up waiting for is late, whatever it
//! would have been. Ranges, and restores that are tried again, have no deadline as a whole.

use super::{Facts, Violation};
use crate::history::{Doubt, History, Operation, Outcome, Request};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let is_late = |operation: &&Operation| {
        let took = operation.returned.saturating_sub(operation.invoked);
        let is_answer =
            !matches!(operation.outcome, Outcome::Unknown(Doubt::Cut) | Outcome::Refused { status: 0 });
        is_answer
            && !matches!(operation.request, Request::Range { .. })
            && !facts.is_restore(operation)
            && took > facts.deadline + facts.slack
            && !stood_still(operation, facts)
    };
    let Some(late) = history.operations().iter().find(is_late) else { return Ok(()) };
    let explanation = format!(
        "#{} took {:?}; the deadline is {:?} and the slack {:?}, and node {} ran all the time",
        late.id,
        late.returned.saturating_sub(late.invoked),
        facts.deadline,
        facts.slack,
        late.node
    );
    Err(Violation::on_key("deadlines", &late.key, explanation, &[late]))
}

fn stood_still(operation: &Operation, facts: &Facts) -> bool {
    let overlaps = |since, until| since <= operation.returned && until >= operation.invoked;
    facts.stalls.iter().any(|stall| stall.node == operation.node && overlaps(stall.since, stall.until))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Stall;
    use super::super::testing::*;
    use super::*;

    /// Late answers and answers that never came are detected, but not of nodes that did not run.
    #[test]
    fn late_answers_are_found() {
        let run = |operation, stalls| check(&history([operation]), &Facts { stalls, ..facts() });
        assert_eq!(run(put(1, 0, 1100, 1), Vec::new()), Ok(()));
        assert!(run(put(1, 0, 1101, 1), Vec::new()).is_err());
        let silent = Operation { outcome: Outcome::Unknown(Doubt::Timeout), ..put(1, 0, 5000, 1) };
        assert!(run(silent, Vec::new()).is_err());
        let cut = Operation { outcome: Outcome::Unknown(Doubt::Cut), ..put(1, 0, 5000, 1) };
        assert_eq!(run(cut, Vec::new()), Ok(()));
        let stall = |node| vec![Stall { node, since: millis(100), until: millis(200) }];
        assert_eq!(run(put(1, 0, 1101, 1), stall(0)), Ok(()));
        assert!(run(put(1, 0, 1101, 1), stall(1)).is_err());
        assert!(run(put(1, 201, 1302, 1), stall(0)).is_err());
    }
}
