//! Linearizability by full search (Wing and Gong, "Testing and Verifying Concurrent Objects", 1993), with
//! Lowe's memo of the states tried. Exact for deletes, expiries and unknown writes, and exponential in the
//! number of overlapping operations.
//!
//! It checks the fast checker, and short histories of real runs. It ends after a bounded number of steps.

use super::linearizable;
use super::register::{Action, Step, steps};
use super::{Facts, Violation};
use crate::history::{History, WriteId};
use std::collections::BTreeSet;

/// The fast checker alone judges keys with more steps than this; a set of steps is one machine word.
pub const STEPS_MAX: usize = 128;
/// States tried for one key.
pub const STATES_MAX: usize = 200_000;

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// An order explains the history.
    Possible,
    /// No order does.
    Impossible,
    /// Not known: too many steps, or too many states.
    OutOfSteps,
}

/// Checks every key that is short enough.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        if linearizable::applies(&operations, facts)
            && search(&steps(&operations), STATES_MAX) == Answer::Impossible
        {
            let explanation = "no order of the operations explains what the reads saw".to_owned();
            return Err(Violation::on_key("wing_gong", key, explanation, &operations));
        }
    }
    Ok(())
}

/// Searches for an order of `steps`, trying at most `states` states.
pub fn search(steps: &[Step], states: usize) -> Answer {
    if steps.len() > STEPS_MAX {
        return Answer::OutOfSteps;
    }
    let certain = steps.iter().enumerate().filter(|(_, step)| step.is_certain);
    let needed: u128 = certain.fold(0, |set, (index, _)| set | 1 << index);
    let mut tried: BTreeSet<(u128, Option<WriteId>)> = BTreeSet::new();
    let mut open: Vec<(u128, Option<WriteId>)> = vec![(0, None)];
    while let Some((done, value)) = open.pop() {
        if done & needed == needed {
            return Answer::Possible;
        }
        if !tried.insert((done, value)) {
            continue;
        }
        if tried.len() > states {
            return Answer::OutOfSteps;
        }
        let left = || steps.iter().enumerate().filter(|(index, _)| done & (1 << index) == 0);
        // A step may come next unless another remaining one had ended before it began.
        let end = left().filter(|(_, step)| step.is_certain).map(|(_, step)| step.returned).min();
        for (index, step) in left().filter(|(_, step)| end.is_none_or(|end| step.invoked <= end)) {
            let next = match step.action {
                Action::Write(id) => Some(id),
                Action::Erase => None,
                Action::Expire(id) if value == Some(id) => None,
                Action::Read(seen) if seen == value => value,
                Action::If(expect, to) if expect.holds(value) => to,
                Action::Expire(_) | Action::Read(_) | Action::If(..) => continue,
            };
            open.push((done | 1 << index, next));
        }
    }
    Answer::Impossible
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn run<const N: usize>(operations: [crate::history::Operation; N]) -> Answer {
        let history = history(operations);
        search(&steps(&history.by_key().into_values().next().unwrap()), STATES_MAX)
    }

    /// Stale reads and values that come back are impossible; results that concurrency or an unknown outcome
    /// explains are possible.
    #[test]
    fn answers_are_exact() {
        assert_eq!(run([put(1, 0, 10, 1), put(2, 20, 30, 2), read(3, 31, 40, 1, 1)]), Answer::Impossible);
        assert_eq!(run([put(1, 0, 10, 1), put(2, 20, 30, 2), read(3, 30, 40, 1, 1)]), Answer::Possible);
        let twice = [unknown(put(1, 0, 5, 1)), put(2, 0, 10, 2), read(3, 1, 5, 1, 1), read(4, 11, 20, 2, 2)];
        let [a, b, c, d] = twice;
        assert_eq!(run([a, b, c, d, read(5, 21, 30, 1, 3)]), Answer::Impossible);
    }

    /// One unknown delete explains one disappearance, not two: the fast checker cannot detect this.
    #[test]
    fn doubt_is_used_once() {
        let start = [put(1, 0, 10, 1), unknown(delete(2, 0, 5, 0)), absent(3, 11, 20), put(4, 21, 30, 21)];
        let [a, b, c, d] = start.clone();
        assert_eq!(run([a, b, c, d, read(5, 31, 40, 4, 21)]), Answer::Possible);
        let [a, b, c, d] = start;
        assert_eq!(run([a, b, c, d, absent(5, 31, 40)]), Answer::Impossible);
    }

    /// A value expires at most once, and only this value.
    #[test]
    fn expiry_takes_its_own_value() {
        let step = |id, at, action| Step {
            id,
            invoked: millis(at),
            returned: millis(at + 5),
            action,
            is_certain: !matches!(action, Action::Expire(_)),
        };
        let expire = Step { returned: std::time::Duration::MAX, ..step(1, 0, Action::Expire(1)) };
        let alone = [step(1, 0, Action::Write(1)), expire, step(2, 10, Action::Read(None))];
        assert_eq!(search(&alone, 1000), Answer::Possible);
        let (first, second) = (step(1, 0, Action::Write(1)), step(2, 10, Action::Write(2)));
        let other = [first, expire, second, step(3, 20, Action::Read(None))];
        assert_eq!(search(&other, 1000), Answer::Impossible);
    }

    /// A search ends when its budget of states is used up.
    #[test]
    fn budget_ends_it() {
        let operations = (0..30).map(|id| put(id, 0, 100, id)).chain([absent(99, 101, 102)]);
        let history = History::new(operations.collect());
        let steps = steps(&history.by_key().into_values().next().unwrap());
        assert_eq!(search(&steps, 1000), Answer::OutOfSteps);
        assert!(check(&history, &facts()).is_ok());
    }
}
