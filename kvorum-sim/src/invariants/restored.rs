//! Restored backups: a key whose last write was before the first backup is in every backup of a node that
//! must hold it. So once all backups have been put back, however far apart they were taken, reads return that
//! value. Every node votes, so reads of all replicas are answered as well.
//!
//! A key is judged if its value at that time is known: every write was acknowledged before the first backup,
//! on disks that lost nothing, for the same number of replicas, without a TTL.

use super::{Facts, Violation};
use crate::history::{History, Operation, Outcome, Request};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let Some(restored) = &facts.restored else { return Ok(()) };
    for (key, operations) in history.by_key() {
        let writes: Vec<&Operation> =
            operations.iter().filter(|operation| operation.may_take_effect()).copied().collect();
        let from = writes.first().map(|write| write.replicas.from);
        let is_certain = |write: &&Operation| {
            write.acknowledged().is_some()
                && write.returned < restored.first
                && facts.must_survive(write)
                && Some(write.replicas.from) == from
                && !matches!(write.request, Request::Put { ttl: Some(_) })
        };
        let newest = writes.iter().filter_map(|write| Some((write.acknowledged()?, *write)));
        let Some((version, write)) = newest.max_by_key(|(version, _)| *version) else { continue };
        if !writes.iter().all(is_certain) {
            continue;
        }
        let is_as_it_was = |read: &Operation| match (&write.request, &read.outcome) {
            (Request::Delete, Outcome::Absent) => true,
            (Request::Put { .. }, Outcome::Value { version: seen, .. }) => *seen == version,
            _ => false,
        };
        let mut reads = restored.reads.iter().filter(|read| {
            read.key == *key && read.request == Request::Get && read.replicas.overlaps(write.replicas)
        });
        if let Some(read) = reads.find(|read| !is_as_it_was(read)) {
            let explanation = format!(
                "the write #{} ({}) was acknowledged before the first backup was taken; with all put back, the read #{} of \
                 {} is {}",
                write.id, write.outcome, read.id, read.replicas, read.outcome
            );
            return Err(Violation::on_key("restored", key, explanation, &operations));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::facts::Restored;
    use super::super::testing::*;
    use super::*;

    /// Records from before the first backup must be there; later ones need not.
    #[test]
    fn only_what_all_backups_hold_is_asked_for() {
        let write = put(1, 10, 20, 1);
        let restored = |first, outcome: Outcome| {
            let read = Operation { outcome, ..absent(2, 900, 910) };
            Facts { restored: Some(Restored { first: millis(first), reads: vec![read] }), ..facts() }
        };
        let history = history([write.clone()]);
        assert!(check(&history, &restored(30, Outcome::Absent)).is_err());
        assert!(check(&history, &restored(15, Outcome::Absent)).is_ok());
        let version = write.acknowledged().unwrap();
        let seen = Outcome::Value { write: Some(1), version, is_foreign: false };
        assert!(check(&history, &restored(30, seen)).is_ok());
    }
}
