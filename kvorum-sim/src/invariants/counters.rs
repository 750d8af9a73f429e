//! Counters: each acknowledged add is counted exactly once, one of unknown outcome at most once, a refused one never; and
//! the numbers that clients saw are those of one order of the adds.
//!
//! A number shows the set of adds that it counts ([`crate::counters`]). So the sets must be a chain: of any two, one
//! contains the other. No two acknowledged adds made the same number. And a set that was seen before an operation began is
//! contained in that operation's set.
//!
//! Checked where a key with the default quorum is linearizable.

use super::{Facts, Violation, linearizable};
use crate::counters::{Counted, CounterOperation, digits_of};
use crate::history::{Condition, History, Operation, Outcome, Request};
use std::collections::BTreeMap;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let mut keys: BTreeMap<_, Vec<&CounterOperation>> = BTreeMap::new();
    for operation in history.counters() {
        keys.entry(&operation.key).or_default().push(operation);
    }
    for (key, operations) in keys {
        if !operations.iter().any(|operation| linearizable::applies(&[&like(operation)], facts)) {
            continue;
        }
        if let Err(explanation) = judge(&operations) {
            let lines = operations.iter().map(|operation| format!("\n  {operation}"));
            let explanation = std::iter::once(explanation).chain(lines).collect();
            return Err(Violation::on_key("counters", key, explanation, &[]));
        }
    }
    Ok(())
}

/// A plain write with the quorum of `operation`.
fn like(operation: &CounterOperation) -> Operation {
    let CounterOperation { id, client, node, replicas, invoked, returned, .. } = *operation;
    Operation {
        id,
        client,
        node,
        key: operation.key.clone(),
        request: Request::Put { ttl: None },
        condition: Condition::Any,
        replicas,
        invoked,
        returned,
        outcome: Outcome::Absent,
    }
}

/// A number that a client saw, as the set of adds that it counts.
struct Seen<'a> {
    by: &'a CounterOperation,
    digits: u64,
}

fn judge(operations: &[&CounterOperation]) -> Result<(), String> {
    let adds: BTreeMap<u32, &CounterOperation> =
        operations.iter().filter_map(|operation| Some((operation.digit?, *operation))).collect();
    let mut seen = Vec::new();
    for by in operations {
        match by.outcome {
            Counted::Number(number) => {
                let digits = digits_of(number);
                let digits =
                    digits.map_err(|digit| format!("#{} saw digit {digit} counted more than once", by.id))?;
                seen.push(Seen { by, digits });
            }
            Counted::Wrong { status } => return Err(format!("#{} was answered with {status}", by.id)),
            Counted::Refused { .. } | Counted::Unknown => {}
        }
    }
    for Seen { by, digits } in &seen {
        let id = by.id;
        if by.digit.is_some_and(|own| digits & (1 << own) == 0) {
            return Err(format!("#{id} does not count itself"));
        }
        for digit in (0..64).filter(|digit| digits & (1 << digit) != 0) {
            match adds.get(&digit) {
                None => return Err(format!("#{id} counts digit {digit}, which nobody added to")),
                Some(add) if matches!(add.outcome, Counted::Refused { .. }) => {
                    return Err(format!("#{id} counts #{}, which was refused", add.id));
                }
                Some(add) if add.invoked > by.returned => {
                    return Err(format!("#{id} counts #{} before it began", add.id));
                }
                Some(_) => {}
            }
        }
    }
    let is_within = |less: u64, more: u64| less & !more == 0;
    for later in &seen {
        for earlier in seen.iter().filter(|earlier| earlier.by.returned < later.by.invoked) {
            if !is_within(earlier.digits, later.digits) {
                return Err(format!("#{} does not count all that #{} counted", later.by.id, earlier.by.id));
            }
        }
    }
    seen.sort_by_key(|seen| (seen.digits.count_ones(), seen.digits));
    for (less, more) in seen.iter().zip(seen.iter().skip(1)) {
        if !is_within(less.digits, more.digits) {
            return Err(format!("#{} and #{} count different adds", less.by.id, more.by.id));
        }
        if less.digits == more.digits && less.by.digit.is_some() && more.by.digit.is_some() {
            return Err(format!("#{} and #{} made the same number", less.by.id, more.by.id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAJORITY, facts, millis};
    use super::*;
    use crate::counters::{addend, key_of};

    fn operation(id: u64, digit: Option<u32>, at: (u64, u64), outcome: Counted) -> CounterOperation {
        let (client, node, key, replicas) = (0, 0, key_of(0), MAJORITY);
        let (invoked, returned) = (millis(at.0), millis(at.1));
        CounterOperation { id, client, node, key, digit, replicas, invoked, returned, outcome }
    }

    fn number(digits: &[u32]) -> Counted {
        Counted::Number(digits.iter().map(|digit| addend(*digit)).sum())
    }

    fn run(operations: &[CounterOperation]) -> bool {
        check(&History::default().with_counters(operations.to_vec()), &facts()).is_ok()
    }

    /// Each rule has a history that breaks it and nothing else.
    #[test]
    fn broken_counters_are_found() {
        let add =
            |digit: u32, at, counts: &[u32]| operation(u64::from(digit) + 1, Some(digit), at, number(counts));
        let read = |at, counts: &[u32]| operation(99, None, at, number(counts));
        let unknown = operation(3, Some(2), (0, 5), Counted::Unknown);
        let refused = operation(3, Some(2), (0, 5), Counted::Refused { status: 503 });
        let two = [add(0, (0, 10), &[0]), add(1, (20, 30), &[0, 1])];
        let and = |more: &[CounterOperation]| run(&[&two[..], more].concat());
        assert!(and(&[]));
        assert!(and(&[read((40, 50), &[0, 1])]));
        assert!(and(&[read((5, 15), &[]), unknown.clone()]));
        assert!(and(&[read((40, 50), &[0, 1, 2]), unknown]));
        assert!(!and(&[read((40, 50), &[0, 1, 2]), refused]));
        assert!(!and(&[read((40, 50), &[0, 1, 1])]));
        assert!(!and(&[read((40, 50), &[0])]));
        assert!(!and(&[read((0, 5), &[0, 1])]));
        assert!(!and(&[read((40, 50), &[0, 1, 7])]));
        assert!(!and(&[operation(4, Some(3), (40, 50), number(&[0, 1]))]));
        assert!(!and(&[operation(4, Some(3), (40, 50), Counted::Wrong { status: 409 })]));
        // An add that was lost to another one that did not see it.
        assert!(!run(&[add(0, (0, 10), &[0]), add(1, (0, 10), &[1])]));
        // Two adds that were counted as one.
        assert!(!run(&[add(0, (0, 10), &[0, 1]), add(1, (0, 10), &[0, 1])]));
    }
}
