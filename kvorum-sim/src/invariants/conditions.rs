//! Conditions: no write comes between the record that a condition was judged on and the record that was written because it
//! held; and a condition that failed did not hold.
//!
//! Versions order the writes of a key as they took effect. So the highest known version below that of a conditional write
//! is the one that its condition was judged on. In particular each version is used up by one successful condition at most.
//!
//! Checked on keys whose operations all overlap, as [`linearizable`](super::linearizable) is. Values that may have expired
//! meet every condition.

use super::floor::Writes;
use super::{Facts, Violation, linearizable};
use crate::history::{Condition, History, Operation, Outcome, Request, WriteId};
use bytes::Bytes;
use kvorum_core::Version;
use std::collections::BTreeMap;
use std::time::Duration;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        check_failed(key, &operations)?;
        if linearizable::applies(&operations, facts) {
            check_chain(key, &operations)?;
        }
    }
    Ok(())
}

/// Checks that no condition failed that held by its own answer.
fn check_failed(key: &Bytes, operations: &[&Operation]) -> Result<(), Violation> {
    for operation in operations {
        let Outcome::Failed { current } = operation.outcome else { continue };
        let held = match operation.condition {
            Condition::Any => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Match(version) => current == Some(version),
        };
        if held {
            let explanation = format!("the condition of #{} failed, but held", operation.id);
            return Err(Violation::on_key("conditions", key, explanation, operations));
        }
    }
    Ok(())
}

/// The conditional writes of unknown outcome whose values were seen: their conditions held. Of each its version, and until
/// when it took effect.
fn seen_unknown(operations: &[&Operation], writes: &Writes<'_>) -> BTreeMap<WriteId, (Version, Duration)> {
    let mut seen: BTreeMap<WriteId, (Version, Duration)> = BTreeMap::new();
    for operation in operations {
        let (Outcome::Value { version, .. }, Some(write)) = (&operation.outcome, writes.seen_by(operation))
        else {
            continue;
        };
        if write.acknowledged().is_none() {
            let (lowest, end) = seen.entry(write.id).or_insert((*version, operation.returned));
            (*lowest, *end) = ((*lowest).min(*version), (*end).min(operation.returned));
        }
    }
    seen
}

/// Checks what was written just before each condition that held.
fn check_chain(key: &Bytes, operations: &[&Operation]) -> Result<(), Violation> {
    let writes = Writes::of(operations);
    // Of a version that was seen without its value it need not be known which write it is of; it is of a value.
    let mut known: BTreeMap<Version, Option<&Operation>> = BTreeMap::new();
    for operation in operations {
        match operation.outcome {
            Outcome::Acknowledged { version } => known.insert(version, Some(operation)),
            Outcome::Value { version, .. } | Outcome::Failed { current: Some(version) } => {
                known.insert(version, writes.of_version(version))
            }
            _ => None,
        };
    }
    let seen = seen_unknown(operations, &writes);
    for write in operations.iter().filter(|write| write.condition != Condition::Any) {
        let acknowledged = write.acknowledged().map(|version| (version, write.returned));
        let Some((version, end)) = acknowledged.or_else(|| seen.get(&write.id).copied()) else { continue };
        // A write of unknown outcome may have taken effect in between.
        let may_be = |write: &Operation, has_effect: &dyn Fn(&Operation) -> bool| {
            operations.iter().any(|other| {
                other.id != write.id
                    && other.may_take_effect()
                    && other.acknowledged().is_none()
                    && other.invoked <= end
                    && has_effect(other)
            })
        };
        let before = known.range(..version).next_back();
        let is_delete = |write: &Operation| write.request == Request::Delete;
        let has_value = before.map(|(_, before)| !before.is_some_and(is_delete));
        let is_mortal = before.is_some_and(|(_, before)| before.is_none_or(Operation::may_hide));
        let holds = match write.condition {
            Condition::Any => true,
            // A value that has expired since is gone as well.
            Condition::Absent => {
                is_mortal || !has_value.unwrap_or(false) || may_be(write, &Operation::may_hide)
            }
            Condition::Present => {
                has_value.unwrap_or(true) || may_be(write, &|other| other.request != Request::Delete)
            }
            Condition::Match(expected) => before.is_none_or(|(before, _)| *before <= expected),
        };
        if !holds {
            let found = before.map(|(at, before)| (at, before.map_or(0, |before| before.id)));
            let found = found.map_or("nothing".to_owned(), |(at, before)| format!("#{before} at {at}"));
            let explanation = format!("#{} took effect{}, just after {found}", write.id, write.condition);
            return Err(Violation::on_key("conditions", key, explanation, operations));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn run(operations: Vec<Operation>) -> bool {
        check(&History::new(operations), &facts()).is_ok()
    }

    fn is(at: u64) -> Condition {
        Condition::Match(version(at))
    }

    /// Two successful conditions on one version, and a plain write between a condition and its record, are found.
    #[test]
    fn what_came_between_is_found() {
        let start = || put(1, 0, 10, 1);
        assert!(run(vec![start(), when(is(1), put(2, 20, 30, 20))]));
        assert!(!run(vec![start(), when(is(1), put(2, 20, 30, 20)), when(is(1), put(3, 20, 30, 25))]));
        assert!(!run(vec![start(), put(2, 20, 40, 21), when(is(1), put(3, 20, 30, 25))]));
        assert!(run(vec![start(), put(2, 20, 40, 26), when(is(1), put(3, 20, 30, 25))]));
        assert!(run(vec![start(), unknown(put(2, 20, 40, 21)), when(is(1), put(3, 20, 30, 25))]));
        // Seen by a read, a write of unknown outcome counts as well.
        let seen = [unknown(put(2, 20, 40, 21)), read(4, 50, 60, 2, 21)];
        assert!(!run([start(), when(is(1), put(3, 20, 30, 25))].into_iter().chain(seen).collect()));
    }

    /// Conditions on there being a value.
    #[test]
    fn presence_is_judged() {
        let absent = |write| when(Condition::Absent, write);
        let present = |write| when(Condition::Present, write);
        assert!(run(vec![absent(put(1, 0, 10, 1))]));
        assert!(!run(vec![put(1, 0, 10, 1), absent(put(2, 20, 30, 20))]));
        assert!(run(vec![put(1, 0, 10, 1), delete(3, 11, 12, 11), absent(put(2, 20, 30, 20))]));
        let doubtful = unknown(delete(3, 11, 12, 0));
        assert!(run(vec![put(1, 0, 10, 1), doubtful, absent(put(2, 20, 30, 20))]));
        assert!(!run(vec![delete(1, 0, 10, 1), present(put(2, 20, 30, 20))]));
        let doubtful = unknown(put(3, 11, 12, 0));
        assert!(run(vec![delete(1, 0, 10, 1), doubtful, present(put(2, 20, 30, 20))]));
        assert!(run(vec![put(1, 0, 10, 1), present(delete(2, 20, 30, 20))]));
        assert!(run(vec![put_for(1, 0, 10, 1, 5), absent(put(2, 20, 30, 20))]));
    }

    /// A condition of unknown outcome whose value was seen has held: what came between is found there as well. It was found
    /// with ballots whose records came after their replicas had lost their promises.
    #[test]
    fn a_condition_that_was_seen_to_hold_is_judged() {
        let swap = || unknown(when(is(1), put(2, 20, 30, 0)));
        let other = put(3, 15, 40, 21);
        assert!(run(vec![put(1, 0, 10, 1), swap(), other.clone()]));
        assert!(run(vec![put(1, 0, 10, 1), swap(), read(4, 50, 60, 2, 20), other.clone()]));
        assert!(!run(vec![put(1, 0, 10, 1), swap(), read(4, 50, 60, 2, 25), other]));
        let absent = unknown(when(Condition::Absent, put(2, 20, 30, 0)));
        assert!(!run(vec![put(1, 0, 10, 1), absent, read(4, 50, 60, 2, 25)]));
    }

    /// A condition that failed did not hold by the answer itself, and what the answer shows was there.
    #[test]
    fn failures_are_judged() {
        assert!(!run(vec![put(1, 0, 10, 1), failed(Some(1), when(is(1), put(2, 20, 30, 0)))]));
        assert!(run(vec![put(1, 0, 10, 1), failed(Some(1), when(is(5), put(2, 20, 30, 0)))]));
        let stale = [put(1, 0, 10, 1), put(3, 11, 12, 11), failed(Some(1), when(is(5), put(2, 20, 30, 0)))];
        assert!(linearizable::check(&history(stale), &facts()).is_err());
        let gone = [put(1, 0, 10, 1), failed(None, when(is(5), put(2, 20, 30, 0)))];
        assert!(linearizable::check(&history(gone), &facts()).is_err());
    }

    /// The full search knows conditions as well: an unknown write whose condition cannot have held explains nothing.
    #[test]
    fn unknown_conditions_explain_only_what_they_can() {
        let swap = unknown(when(is(1), put(2, 20, 30, 0)));
        let possible = [put(1, 0, 10, 1), swap.clone(), read(3, 31, 40, 2, 31)];
        assert_eq!(super::super::wing_gong::check(&history(possible), &facts()), Ok(()));
        let passed = [put(1, 0, 10, 1), put(4, 11, 15, 12), swap, read(3, 31, 40, 2, 31)];
        assert!(super::super::wing_gong::check(&history(passed), &facts()).is_err());
    }
}
