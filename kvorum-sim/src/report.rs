//! The report of a failed run: enough to understand it, and the command that replays it.

use crate::invariants::Violation;
use crate::plan::Plan;
use std::fmt;

/// The report of a run that broke an invariant.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    /// The plan of the seed.
    pub plan: &'a Plan,
    /// The broken invariants, the simplest first; the first one is shown with its history.
    pub violations: &'a [Violation],
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.plan.seed.0;
        let names: Vec<&str> = self.violations.iter().map(|violation| violation.invariant).collect();
        writeln!(f, "seed {seed} breaks {}", names.join(", "))?;
        if let Some(first) = self.violations.first() {
            writeln!(f, "{first}")?;
        }
        for other in self.violations.iter().skip(1) {
            writeln!(f, "also {}: {}", other.invariant, other.explanation)?;
        }
        writeln!(f, "{}", self.plan)?;
        writeln!(f, "replay: make sim SEED={seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{AckFrom, Operation, Outcome, Request};
    use crate::seed::Seed;
    use bytes::Bytes;
    use std::time::Duration;

    /// A report names the seed, the invariant, the key, every operation on it, and the command.
    #[test]
    fn report_is_enough_to_replay() {
        let operation = Operation {
            id: 4,
            client: 2,
            node: 1,
            key: Bytes::from_static(b"k\x00"),
            condition: crate::history::Condition::Any,
            request: Request::Delete,
            replicas: AckFrom::new(2, 3),
            invoked: Duration::from_millis(1500),
            returned: Duration::from_millis(1501),
            outcome: Outcome::Refused { status: 503 },
        };
        let violation = Violation {
            invariant: "order",
            key: Some(operation.key.clone()),
            explanation: "wrong".to_owned(),
            operations: vec![operation],
        };
        let plan = Plan::of(Seed(17));
        let text = Report { plan: &plan, violations: &[violation.clone(), violation] }.to_string();
        for expected in [
            "seed 17 breaks order, order",
            "order: key k\\x00: wrong",
            "1.500000",
            "#4",
            "DELETE",
            "refused 503",
            "also order: wrong",
            "replay: make sim SEED=17",
        ] {
            assert!(text.contains(expected), "{expected:?} in:\n{text}");
        }
    }
}
