//! Durability (guarantee 1): no acknowledged write is lost while fewer than `ACK` of its replicas lose their disks.
//!
//! Judged at the end: the nodes' disks together hold the write or a newer one, and a final read whose quorum
//! overlaps with its quorum sees it or a newer one. The disks may hold no record at all only if a delete or
//! an expiry may be the newest. Before the end, a read that does not see the write is judged by freshness.

use super::floor::Writes;
use super::{Facts, Violation};
use crate::history::{History, Operation, Outcome};
use bytes::Bytes;
use kvorum_core::Version;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        if facts.may_come_back(&operations) {
            continue;
        }
        let held = operations.iter().filter(|write| facts.must_survive(write));
        let acknowledged = held.filter_map(|write| Some((write.acknowledged()?, *write)));
        let Some((version, write)) = acknowledged.max_by_key(|(version, _)| *version) else { continue };
        on_disk(key, &operations, version, write, facts)?;
        in_reads(key, &operations, facts)?;
    }
    Ok(())
}

fn on_disk(
    key: &Bytes,
    operations: &[&Operation],
    version: Version,
    write: &Operation,
    facts: &Facts,
) -> Result<(), Violation> {
    let Some(dumped) = facts.dumps.iter().map(|dump| dump.at).max() else { return Ok(()) };
    let newest = facts.dumps.iter().filter_map(|dump| Some(dump.records.get(key)?.version)).max();
    let lost = if let Some(newest) = newest {
        newest < version
    } else {
        // As a read of all disks at that instant would see it.
        let look = Operation { returned: dumped, ..write.clone() };
        Writes::of(operations).hider(version, &look, facts).is_none()
    };
    if !lost {
        return Ok(());
    }
    let found = newest.map_or("nothing".to_owned(), |version| version.to_string());
    let explanation = format!(
        "the write #{} was acknowledged by {} replicas with version {version}; all disks together hold {found}",
        write.id, write.replicas.ack
    );
    Err(Violation::on_key("durability", key, explanation, operations))
}

fn in_reads(key: &Bytes, operations: &[&Operation], facts: &Facts) -> Result<(), Violation> {
    if !facts.mechanisms.repair {
        return Ok(());
    }
    let writes = Writes::of(operations);
    for read in operations.iter().filter(|read| read.is_read() && facts.is_final(read)) {
        let before = operations.iter().filter(|write| {
            write.returned < read.invoked
                && write.replicas.overlaps(read.replicas)
                && facts.must_survive(write)
        });
        let newest = before.filter_map(|write| Some((write.acknowledged()?, *write))).max_by_key(|(v, _)| *v);
        let Some((version, write)) = newest else { continue };
        let is_older = match read.outcome {
            Outcome::Value { version: seen, .. } => seen < version,
            Outcome::Absent => writes.hider(version, read, facts).is_none(),
            _ => false,
        };
        let lost = is_older && !writes.are_copies_lost(version, write.replicas.from, read, facts);
        if lost {
            let explanation = format!(
                "the write #{} was acknowledged ({}); the final read #{} does not see it ({})",
                write.id, write.outcome, read.id, read.outcome
            );
            return Err(Violation::on_key("durability", key, explanation, operations));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Dump, Loss, LossKind};
    use super::super::testing::*;
    use super::*;
    use kvorum_core::Record;
    use std::time::Duration;

    fn dumped(record: Option<Record>, losses: Vec<Loss>) -> Facts {
        let records = record.map(|record| (Bytes::from_static(b"k"), record)).into_iter().collect();
        let dump = Dump { node: 0, at: millis(10_000), wall: facts().epoch, records };
        Facts { dumps: vec![dump], losses, ..facts() }
    }

    fn loss(node: u16, kind: LossKind) -> Loss {
        Loss { node, at: millis(50), kind, since: Duration::ZERO }
    }

    /// An acknowledged write that no disk has is lost, unless a newer one is there or a delete may have come
    /// after it.
    #[test]
    fn lost_writes_are_found() {
        let history = history([put(1, 0, 10, 5)]);
        assert!(check(&history, &dumped(None, Vec::new())).is_err());
        assert!(check(&history, &dumped(Some(record(4, 3, Some("x"))), Vec::new())).is_err());
        assert_eq!(check(&history, &dumped(Some(record(5, 3, Some("x"))), Vec::new())), Ok(()));
        assert_eq!(check(&history, &dumped(Some(record(9, 3, None)), Vec::new())), Ok(()));
    }

    /// Purged deletes, also of unknown outcome, and expired values may leave no record on the disks.
    #[test]
    fn purged_is_not_lost() {
        let run = |other| check(&history([put(1, 0, 10, 5), other]), &dumped(None, Vec::new()));
        assert_eq!(run(delete(2, 11, 20, 12)), Ok(()));
        assert_eq!(run(unknown(delete(2, 11, 20, 12))), Ok(()));
        assert_eq!(run(put_for(2, 11, 20, 12, 100)), Ok(()));
        assert!(run(put_for(2, 11, 20, 12, 60_000)).is_err());
    }

    /// One disk fewer than confirmed the write may be lost; a disk that is lost twice counts once.
    #[test]
    fn fewer_than_ack_disks_may_be_lost() {
        let run = |losses| check(&history([put(1, 0, 10, 5)]), &dumped(None, losses));
        assert!(run(vec![loss(0, LossKind::Wiped)]).is_err());
        assert!(run(vec![loss(0, LossKind::Wiped), loss(0, LossKind::Unsynced)]).is_err());
        assert_eq!(run(vec![loss(0, LossKind::Wiped), loss(1, LossKind::Unsynced)]), Ok(()));
        let later = Loss { since: millis(11), ..loss(1, LossKind::Unsynced) };
        assert!(run(vec![loss(0, LossKind::Wiped), later]).is_err(), "it was synced by then");
    }

    /// A final read sees the records that survived, also those that a node lost silently and repair brought
    /// back.
    #[test]
    fn final_reads_see_it() {
        let lost = [loss(0, LossKind::Unsynced)].to_vec();
        let run =
            |read| check(&history([put(1, 0, 10, 5), read]), &Facts { losses: lost.clone(), ..facts() });
        assert!(run(absent(2, 10_000, 10_001)).is_err());
        assert_eq!(run(absent(2, 9000, 9001)), Ok(()));
        assert_eq!(run(read(2, 10_000, 10_001, 1, 5)), Ok(()));
    }

    /// With an older disk a record that was written for one replica may come back; any other may not.
    #[test]
    fn older_disk_brings_back_what_it_alone_had() {
        let older = Loss { since: millis(15), ..loss(1, LossKind::Older) };
        let run = |from| {
            let first = with(1, from, put(1, 0, 10, 1));
            let deleted = with(2, 3, delete(2, 20, 30, 2));
            check(&history([first, deleted]), &dumped(Some(record(1, from, Some("x"))), vec![older.clone()]))
        };
        assert_eq!(run(1), Ok(()));
        assert!(run(3).is_err());
    }
}
