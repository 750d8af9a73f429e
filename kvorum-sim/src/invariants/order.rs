//! Order (guarantee 3): if two acknowledged writes overlap (a + a' > max(f, f')), the one that begins after
//! the other was acknowledged has the higher version, whatever the clocks say. A write that begins after a
//! read has the higher version too, if it must find what the read saw. No two writes to a key have one
//! version, and a write has no second one: it would take effect twice.
//!
//! Checked for writes whose replicas still vote for them. Writes of unknown outcome promise nothing until
//! they are read.

use super::facts::must_meet;
use super::floor::{Floor, Known, Writes};
use super::{Facts, Violation};
use crate::history::{AckFrom, History, Operation, Outcome};
use bytes::Bytes;
use kvorum_core::Version;
use std::collections::BTreeMap;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        one_write_a_version(key, &operations)?;
        one_version_a_write(key, &operations)?;
        let writes = Writes::of(&operations);
        let acknowledged = Floor::of_writes(&operations, facts);
        let read = Floor::new(operations.iter().filter_map(|read| {
            let Outcome::Value { version, .. } = read.outcome else { return None };
            let write = writes.seen_by(read).filter(|write| facts.is_still_seen(write, read))?;
            Some((write.replicas.from, Known { at: read.returned, version, operation: read }))
        }));
        for write in &operations {
            let Some(version) = write.acknowledged() else { continue };
            let overlaps = |replicas: AckFrom, _| replicas.overlaps(write.replicas);
            let meets = |replicas, from| must_meet(replicas, from, write.replicas);
            let before = [acknowledged.before(write.invoked, overlaps), read.before(write.invoked, meets)];
            if let Some(known) = before.into_iter().flatten().find(|known| known.version >= version) {
                let explanation = format!(
                    "the write #{} has version {version}, not above {} of #{}, which was complete before it began",
                    write.id, known.version, known.operation.id
                );
                return Err(Violation::on_key("order", key, explanation, &operations));
            }
        }
    }
    Ok(())
}

fn one_write_a_version(key: &Bytes, operations: &[&Operation]) -> Result<(), Violation> {
    let mut owners: BTreeMap<Version, u64> = BTreeMap::new();
    for operation in operations {
        let (version, write) = match operation.outcome {
            Outcome::Acknowledged { version } => (version, operation.id),
            Outcome::Value { write: Some(write), version, .. } => (version, write),
            _ => continue,
        };
        let owner = *owners.entry(version).or_insert(write);
        if owner != write {
            let explanation = format!("the writes #{owner} and #{write} have one version, {version}");
            return Err(Violation::on_key("order", key, explanation, operations));
        }
    }
    Ok(())
}

/// Checks that no reader saw a write under another version than the one that it was acknowledged with. A reader whose quorum
/// need not meet the write's may have seen it before it was stamped again.
fn one_version_a_write(key: &Bytes, operations: &[&Operation]) -> Result<(), Violation> {
    let writes = operations.iter().filter_map(|write| Some((write.id, (write.acknowledged()?, *write))));
    let writes: BTreeMap<u64, (Version, &Operation)> = writes.collect();
    for read in operations {
        let Outcome::Value { write: Some(write), version, .. } = read.outcome else { continue };
        let Some((acknowledged, write)) = writes.get(&write) else { continue };
        if version != *acknowledged && read.replicas.overlaps(write.replicas) {
            let explanation = format!(
                "the read #{} saw the write #{} as {version}, and it was acknowledged as {acknowledged}",
                read.id, write.id
            );
            return Err(Violation::on_key("order", key, explanation, operations));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// A later write with a lower version is detected if the two overlap, and only then.
    #[test]
    fn versions_must_rise() {
        let run = |first: Operation, second| check(&history([first, second]), &facts());
        assert!(run(put(1, 0, 10, 500), put(2, 11, 20, 15)).is_err());
        assert!(run(put(1, 0, 10, 500), delete(2, 11, 20, 15)).is_err());
        assert_eq!(run(put(1, 0, 10, 500), put(2, 10, 20, 15)), Ok(()));
        assert_eq!(run(with(1, 3, put(1, 0, 10, 500)), put(2, 11, 20, 15)), Ok(()));
        assert_eq!(run(unknown(put(1, 0, 10, 500)), put(2, 11, 20, 15)), Ok(()));
    }

    /// A write after a read supersedes what the read saw, also if that was a write of unknown outcome.
    #[test]
    fn write_after_read_rises() {
        let run = |replicas: (u16, u16)| {
            let seen = with(replicas.0, replicas.1, read(2, 11, 20, 1, 500));
            check(&history([unknown(put(1, 0, 10, 500)), seen, put(3, 21, 30, 25)]), &facts())
        };
        assert!(run((2, 3)).is_err());
        assert_eq!(run((1, 3)), Ok(()));
    }

    /// One version for two writes is detected, also if one of them is only known from a read.
    #[test]
    fn versions_are_unique() {
        assert!(check(&history([put(1, 0, 10, 5), put(2, 0, 10, 5)]), &facts()).is_err());
        let seen = history([put(1, 0, 10, 5), unknown(put(2, 0, 10, 9)), read(3, 1, 9, 2, 5)]);
        assert!(check(&seen, &facts()).is_err());
    }

    /// A write that was seen under another version is detected, by a reader who must meet it.
    #[test]
    fn writes_have_one_version() {
        let run = |seen| check(&history([put(1, 0, 10, 5), seen]), &facts());
        assert_eq!(run(read(2, 5, 20, 1, 5)), Ok(()));
        assert!(run(read(2, 5, 20, 1, 3)).is_err());
        assert_eq!(run(with(1, 3, read(2, 5, 20, 1, 3))), Ok(()));
    }
}
