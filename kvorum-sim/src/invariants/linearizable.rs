//! Linearizability of one key, in O(n log n).
//!
//! Checked on keys whose operations all overlap pairwise, whatever their `ack` and `from`. Every read must
//! have spread its record to where the next operation finds it, and the disks must have lost no more than the
//! quorums allow. There PUT, GET and DELETE behave as one register.
//!
//! Values identify the writes, not versions: a write that was stamped twice still takes effect once. So W1,
//! W2, W1 is a violation even if W1 came back with a version above that of W2.
//!
//! Method (Gibbons and Korach, "Testing Shared Memories", 1997, for writes with distinct values): the
//! operations of one value make a *zone*, from the earliest end among them to the latest beginning. If the
//! end is first, the value was present all that time (a forward zone). Otherwise it took effect at one
//! instant between the two (a backward zone). The history is linearizable exactly if every read has its
//! write, no two forward zones overlap, and no backward zone lies within a forward one.
//!
//! "No value" is written by the beginning, by deletes and by expiries, which cannot be distinguished. For it
//! only necessary conditions are checked. A read of "no value", or an acknowledged delete, must not lie
//! within a forward zone. And such a read must have a cause that is not older than every value it follows.
//! [`wing_gong`] decides those exactly, on small histories.
//!
//! [`wing_gong`]: super::wing_gong

use super::facts::must_meet;
use super::register::{Action, Expect, Step, steps};
use super::{Facts, Violation};
use crate::history::{AckFrom, History, Operation, WriteId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        if !applies(&operations, facts) {
            continue;
        }
        let mut steps = steps(&operations);
        steps.extend(seen_before(&steps));
        if let Err(explanation) = judge(&steps) {
            return Err(Violation::on_key("linearizable", key, explanation, &operations));
        }
    }
    Ok(())
}

/// The reads that certain conditional writes include: their condition was seen to hold.
fn seen_before(steps: &[Step]) -> Vec<Step> {
    let read = |step: &Step| {
        let action = match step.action {
            Action::If(Expect::Is(write), _) => Action::Read(Some(write)),
            Action::If(Expect::Absent, _) => Action::Read(None),
            _ => return None,
        };
        step.is_certain.then_some(Step { action, ..*step })
    };
    steps.iter().filter_map(read).collect()
}

/// Whether linearizability is promised for a key with these operations.
pub fn applies(operations: &[&Operation], facts: &Facts) -> bool {
    let quorums: BTreeSet<AckFrom> = operations.iter().map(|operation| operation.replicas).collect();
    let Some(ack_min) = quorums.iter().map(|quorum| quorum.ack).min() else { return false };
    // A record that a read finds may have been written with the `from` of any of the writes.
    let writes = operations.iter().filter(|operation| operation.is_write());
    let written: BTreeSet<u16> = writes.map(|operation| operation.replicas.from).collect();
    let copies =
        quorums.iter().flat_map(|quorum| written.iter().map(|from| super::facts::held_after(*quorum, *from)));
    let copies_min = copies.min();
    let meets =
        |a: &AckFrom, b: &AckFrom| a.overlaps(*b) && written.iter().all(|from| must_meet(*a, *from, *b));
    quorums.iter().all(|a| quorums.iter().all(|b| meets(a, b)))
        && facts.spares_quorums_of(ack_min.min(copies_min.unwrap_or(0)))
}

/// The bounds of all operations on one value.
#[derive(Debug, Clone, Copy)]
struct Zone {
    id: WriteId,
    /// The earliest end among them.
    end: Duration,
    /// The latest beginning.
    begin: Duration,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.end < self.begin
    }
}

/// Judges one register's steps.
///
/// # Errors
/// Why no order of the steps explains the results.
pub fn judge(steps: &[Step]) -> Result<(), String> {
    let zones = zones(steps)?;
    let mut forward: Vec<Zone> = zones.iter().filter(|zone| zone.is_forward()).copied().collect();
    forward.sort_by_key(|zone| (zone.end, zone.begin));
    for (zone, next) in forward.iter().zip(forward.iter().skip(1)) {
        if next.end < zone.begin {
            return Err(format!(
                "the values of #{} and #{} stood at the same time, at {:?}",
                zone.id, next.id, next.end
            ));
        }
    }
    // The zone that contains a step from `begin` to `end` completely. Forward zones do not overlap, so it is
    // the last one that began before.
    let around = |begin: Duration, end: Duration| {
        let before = forward.partition_point(|zone| zone.end < begin);
        forward.get(before.checked_sub(1)?).filter(|zone| end < zone.begin)
    };
    if let Some((zone, outer)) = zones
        .iter()
        .filter(|zone| !zone.is_forward())
        .find_map(|zone| Some((zone, around(zone.begin, zone.end)?)))
    {
        return Err(format!(
            "the value of #{} stood all the time in which #{} took effect",
            outer.id, zone.id
        ));
    }
    for step in steps {
        let takes_value_away = match step.action {
            Action::Read(seen) => seen.is_none(),
            action => action.erases() && step.is_certain,
        };
        if let Some(outer) = around(step.invoked, step.returned).filter(|_| takes_value_away) {
            return Err(format!("the value of #{} stood all the time that #{} lasted", outer.id, step.id));
        }
    }
    causes(steps, &zones)
}

/// The zones of all values that must have taken effect.
fn zones(steps: &[Step]) -> Result<Vec<Zone>, String> {
    let mut zones: BTreeMap<WriteId, (Zone, Duration, bool)> = BTreeMap::new();
    for step in steps {
        if let Some(id) = step.action.written() {
            let zone = Zone { id, end: step.returned, begin: step.invoked };
            zones.insert(id, (zone, step.invoked, step.is_certain));
        }
    }
    for step in steps {
        let Action::Read(Some(id)) = step.action else { continue };
        let Some((zone, written, is_certain)) = zones.get_mut(&id) else {
            return Err(format!("#{} saw the value of #{id}, which did not write", step.id));
        };
        if step.returned < *written {
            return Err(format!("#{} saw the value of #{id} before it was written", step.id));
        }
        *is_certain = true;
        zone.end = zone.end.min(step.returned);
        zone.begin = zone.begin.max(step.invoked);
    }
    Ok(zones.into_values().filter(|(_, _, is_certain)| *is_certain).map(|(zone, _, _)| zone).collect())
}

/// Every read that saw nothing needs a cause: the beginning, or a delete or expiry that can come after every
/// value that the read follows. Such a value had ended by then, with all its reads.
fn causes(steps: &[Step], zones: &[Zone]) -> Result<(), String> {
    let mut ended: Vec<(Duration, Duration, WriteId)> =
        zones.iter().map(|zone| (zone.end, zone.begin, zone.id)).collect();
    ended.sort_unstable();
    rise(&mut ended);
    let mut erased: Vec<(Duration, Duration, WriteId)> = steps
        .iter()
        .filter(|step| step.action.erases() || matches!(step.action, Action::Expire(_)))
        .map(|step| (step.invoked, step.returned, step.id))
        .collect();
    erased.sort_unstable();
    rise(&mut erased);
    for step in steps.iter().filter(|step| step.action == Action::Read(None)) {
        let before = ended.partition_point(|(end, _, _)| *end < step.invoked);
        let Some((_, until, value)) = before.checked_sub(1).and_then(|at| ended.get(at)) else { continue };
        let begun = erased.partition_point(|(begin, _, _)| *begin <= step.returned);
        let latest = begun.checked_sub(1).and_then(|at| erased.get(at));
        if latest.is_none_or(|(_, end, _)| end < until) {
            return Err(format!("#{} saw nothing, and nothing took away the value of #{value}", step.id));
        }
    }
    Ok(())
}

/// Raises the second field of each entry to the highest so far.
fn rise(sorted: &mut [(Duration, Duration, WriteId)]) {
    let mut highest = (Duration::ZERO, 0);
    for (_, until, id) in sorted {
        highest = highest.max((*until, *id));
        (*until, *id) = highest;
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Loss, LossKind};
    use super::super::testing::*;
    use super::super::wing_gong::{self, Answer};
    use super::*;
    use crate::seed::{Seed, Stream};

    /// W1, W2, W1 is detected although the versions rise: a write takes effect once.
    #[test]
    fn a_write_takes_effect_once() {
        let back = history([
            unknown(put(1, 0, 100, 1)),
            put(2, 0, 10, 2),
            read(3, 1, 5, 1, 1),
            read(4, 11, 20, 2, 2),
            read(5, 21, 30, 1, 3),
        ]);
        assert!(check(&back, &facts()).is_err());
        assert_eq!(super::super::freshness::check(&back, &facts()), Ok(()));
    }

    /// Stale reads, lost values, deletes without effect and reads of future writes are detected.
    #[test]
    fn broken_registers_are_found() {
        let run = |operations: Vec<Operation>| check(&History::new(operations), &facts());
        let start = || vec![put(1, 0, 10, 1), put(2, 20, 30, 2)];
        let and = |more: Vec<Operation>| start().into_iter().chain(more).collect::<Vec<_>>();
        assert!(run(and(vec![read(3, 31, 40, 1, 1)])).is_err());
        assert!(run(and(vec![absent(3, 31, 40)])).is_err());
        assert!(run(and(vec![read(3, 0, 5, 2, 2)])).is_err());
        assert!(run(and(vec![read(3, 11, 19, 1, 1), delete(4, 31, 40, 31), read(5, 41, 50, 2, 2)])).is_err());
        assert_eq!(run(and(vec![delete(4, 31, 40, 31), absent(5, 41, 50)])), Ok(()));
        assert_eq!(run(and(vec![read(3, 25, 29, 1, 1), read(4, 31, 40, 2, 2)])), Ok(()));
        assert_eq!(run(and(vec![unknown(delete(3, 11, 12, 0)), absent(4, 31, 40)])), Ok(()));
        assert_eq!(run(vec![put_for(1, 0, 10, 1, 500), absent(2, 600, 610)]), Ok(()));
    }

    /// Quorums that differ in `from`, quorums below a majority, and silent losses of a disk void the promise.
    #[test]
    fn preconditions_are_kept() {
        let stale = |a: (u16, u16), b: (u16, u16)| {
            let write = with(a.0, a.1, put(2, 20, 30, 2));
            history([with(a.0, a.1, put(1, 0, 10, 1)), write, with(b.0, b.1, read(3, 31, 40, 1, 1))])
        };
        assert!(check(&stale((2, 3), (2, 3)), &facts()).is_err());
        assert!(check(&stale((3, 5), (3, 5)), &facts()).is_err());
        assert_eq!(check(&stale((3, 3), (1, 3)), &facts()), Ok(()));
        assert_eq!(check(&stale((3, 5), (2, 3)), &facts()), Ok(()));
        let loss = Loss { node: 0, at: millis(15), kind: LossKind::Unsynced, since: Duration::ZERO };
        assert_eq!(check(&stale((2, 3), (2, 3)), &Facts { losses: vec![loss], ..facts() }), Ok(()));
    }

    /// A history that a real register produced: each step takes effect at an instant within its bounds.
    fn produced(stream: &mut Stream, with_erase: bool) -> Vec<Step> {
        let count = stream.between(1, 9);
        let mut points: Vec<(u64, u64, u64, u64)> = (0..count)
            .map(|id| {
                let point = stream.below(60);
                (point, id, point.saturating_sub(stream.below(15)), point + stream.below(15))
            })
            .collect();
        points.sort_unstable();
        let mut value = None;
        let mut steps = Vec::new();
        for (_, id, invoked, returned) in points {
            let (kind, is_certain, happens) = (stream.below(10), stream.percent(75), stream.percent(50));
            let (action, is_certain) = match kind {
                0..4 => (Action::Write(id), is_certain),
                4..6 if with_erase => (Action::Erase, is_certain),
                6 if with_erase => (Action::Expire(stream.below(count)), false),
                _ => (Action::Read(value), true),
            };
            if is_certain || happens {
                match action {
                    Action::Write(id) => value = Some(id),
                    Action::Erase => value = None,
                    Action::Expire(id) if value == Some(id) => value = None,
                    Action::Expire(_) | Action::Read(_) | Action::If(..) => {}
                }
            }
            let returned = if is_certain { millis(returned) } else { Duration::MAX };
            steps.push(Step { id, invoked: millis(invoked), returned, action, is_certain });
        }
        steps
    }

    /// The same, with some reads that return a wrong value.
    fn broken(stream: &mut Stream, mut steps: Vec<Step>) -> Vec<Step> {
        let written: Vec<Option<u64>> = steps
            .iter()
            .filter_map(|step| matches!(step.action, Action::Write(_)).then_some(Some(step.id)))
            .chain([None])
            .collect();
        for step in &mut steps {
            if matches!(step.action, Action::Read(_)) && stream.percent(60) {
                step.action = Action::Read(*stream.pick(&written).unwrap());
            }
        }
        steps
    }

    /// Goal: the fast checker is right. Method: 20,000 small histories of a real register and 20,000
    /// corrupted ones, judged by it and by the full search. Without deletes the two agree. With deletes the
    /// fast checker reports nothing that the search can explain, and reports most of what the search cannot
    /// explain.
    #[test]
    fn agrees_with_the_full_search() {
        let mut stream = Seed(1).stream("linearizable");
        let (mut impossible, mut missed) = ([0u32; 2], 0u32);
        for round in 0..20_000u32 {
            let with_erase = round % 2 == 1;
            let good = produced(&mut stream, with_erase);
            assert_eq!(wing_gong::search(&good, 100_000), Answer::Possible, "{good:#?}");
            assert_eq!(judge(&good), Ok(()), "{good:#?}");
            let bad = broken(&mut stream, good);
            let (fast, full) = (judge(&bad), wing_gong::search(&bad, 100_000));
            assert_ne!(full, Answer::OutOfSteps);
            impossible[usize::from(with_erase)] += u32::from(full == Answer::Impossible);
            match (fast, full) {
                (Err(why), Answer::Possible) => panic!("false alarm: {why}: {bad:#?}"),
                (Ok(()), Answer::Impossible) if with_erase => missed += 1,
                (Ok(()), Answer::Impossible) => panic!("missed: {bad:#?}"),
                _ => {}
            }
        }
        assert!(impossible.iter().all(|count| *count > 1000), "{impossible:?}: too few broken histories");
        assert!(missed * 10 < impossible[1], "{missed} of {} missed", impossible[1]);
    }

    /// 100,000 operations on one key take well under a second.
    #[test]
    fn long_histories_are_judged() {
        let mut steps = Vec::new();
        for id in (0..100_000u64).step_by(2) {
            let step = |id, at, action| Step {
                id,
                invoked: millis(at),
                returned: millis(at + 5),
                action,
                is_certain: true,
            };
            steps.push(step(id, id * 3, Action::Write(id)));
            steps.push(step(id + 1, id * 3 + 6, Action::Read(Some(id))));
        }
        assert_eq!(judge(&steps), Ok(()));
        steps[99_999].action = Action::Read(Some(4));
        assert!(judge(&steps).is_err());
    }
}
