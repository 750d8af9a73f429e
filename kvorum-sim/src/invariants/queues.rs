//! Queues: every queue stays within its named bound. Always checked.

use super::{Facts, Violation};
use crate::history::History;

/// Checks the invariant.
pub fn check(_history: &History, facts: &Facts) -> Result<(), Violation> {
    let Some(gauge) = facts.gauges.iter().find(|gauge| gauge.value > gauge.max) else { return Ok(()) };
    let explanation = format!(
        "{} of node {} is {} at {:?}; its bound is {}",
        gauge.name, gauge.node, gauge.value, gauge.at, gauge.max
    );
    Err(Violation { invariant: "queues", key: None, explanation, operations: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::facts::Gauge;
    use super::super::testing::*;
    use super::*;

    /// One above the bound is found, the bound itself is not.
    #[test]
    fn overfull_queues_are_found() {
        let gauge = |value| Gauge { node: 1, at: millis(5), name: "commit_queue".to_owned(), value, max: 8 };
        let run = |value| check(&history([]), &Facts { gauges: vec![gauge(8), gauge(value)], ..facts() });
        assert!(run(9).is_err());
        assert_eq!(run(8), Ok(()));
    }
}
