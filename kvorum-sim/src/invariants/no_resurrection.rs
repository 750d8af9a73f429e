//! No resurrection (guarantee 5): deletes stay deleted.
//!
//! 1. A key that a read found absent does not come back to a later read that must find what the first one
//!    found. Checked where the first read overlaps with the write that was known, and no TTL is involved
//!    (another node's clock may see an expired value as still live).
//! 2. After all faults have ended and the nodes have converged, no read sees, and no node stores as live, a
//!    record older than an acknowledged delete. Checked with background repair, for deletes that fewer than
//!    `ACK` disks lost, and that no newer record of fewer replicas replaced on the others (decision 12).

use super::facts::must_meet;
use super::floor::{Floor, Writes};
use super::{Facts, Violation};
use crate::history::{AckFrom, History, Operation, Outcome, Request};
use bytes::Bytes;
use kvorum_core::Version;
use std::time::Duration;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        gone_stays_gone(key, &operations, facts)?;
        if facts.mechanisms.repair && facts.converged.is_some() && !facts.may_come_back(&operations) {
            deleted_at_the_end(key, &operations, facts)?;
        }
    }
    Ok(())
}

/// A read that found nothing although `known` was there before.
struct Gone<'a> {
    read: &'a Operation,
    at: Duration,
    known: Version,
    /// The least `from` of the deletes that it may have found.
    from: u16,
}

fn gone_stays_gone(key: &Bytes, operations: &[&Operation], facts: &Facts) -> Result<(), Violation> {
    if operations.iter().any(|operation| matches!(operation.request, Request::Put { ttl: Some(_) })) {
        return Ok(());
    }
    let floor = Floor::of_writes(operations, facts);
    let writes = Writes::of(operations);
    let gone: Vec<Gone<'_>> = operations
        .iter()
        .filter(|read| read.outcome == Outcome::Absent)
        .filter_map(|read| {
            let overlaps = |replicas: AckFrom, _| replicas.overlaps(read.replicas);
            let known = floor.before(read.invoked, overlaps)?.version;
            // The read may have found any of these. If one has too few copies, or a disk lost it silently,
            // nothing can be concluded.
            let met: Vec<_> = writes.hiders(known, read, facts).collect();
            if !met.iter().all(|write| facts.is_still_seen(write, read)) {
                return None;
            }
            let from = met.iter().map(|write| write.replicas.from).min()?;
            Some(Gone { read, at: read.returned, known, from })
        })
        .collect();
    for read in operations {
        let Outcome::Value { version, .. } = read.outcome else { continue };
        let back = gone.iter().find(|gone| {
            gone.at < read.invoked
                && version <= gone.known
                && must_meet(gone.read.replicas, gone.from, read.replicas)
        });
        if let Some(gone) = back {
            let explanation =
                format!("the read #{} sees again what the read #{} found gone", read.id, gone.read.id);
            return Err(Violation::on_key("no_resurrection", key, explanation, operations));
        }
    }
    Ok(())
}

fn deleted_at_the_end(key: &Bytes, operations: &[&Operation], facts: &Facts) -> Result<(), Violation> {
    let deletes =
        operations.iter().filter(|write| write.request == Request::Delete && facts.must_survive(write));
    let Some((version, delete)) =
        deletes.filter_map(|write| Some((write.acknowledged()?, write))).max_by_key(|(version, _)| *version)
    else {
        return Ok(());
    };
    let writes = Writes::of(operations);
    let older = |read: &&&Operation| {
        facts.is_final(read)
            && read.replicas.overlaps(delete.replicas)
            && !writes.are_copies_lost(version, delete.replicas.from, read, facts)
            && matches!(read.outcome, Outcome::Value { version: seen, .. } if seen < version)
    };
    let violation = |explanation| Err(Violation::on_key("no_resurrection", key, explanation, operations));
    if let Some(read) = operations.iter().find(older) {
        return violation(format!("the read #{} sees what #{} deleted", read.id, delete.id));
    }
    if !facts.mechanisms.drop_stale {
        return Ok(());
    }
    let stored = facts.dumps.iter().find(|dump| {
        dump.records
            .get(key)
            .is_some_and(|record| record.version < version && record.live(dump.wall).is_some())
    });
    match stored {
        Some(dump) => violation(format!("node {} stores as live what #{} deleted", dump.node, delete.id)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Dump, Loss, LossKind};
    use super::super::testing::*;
    use super::*;

    /// A key that is absent and then present again is detected, also after a delete of unknown outcome; a new
    /// value is no resurrection.
    #[test]
    fn coming_back_is_found() {
        let run = |last| {
            let start = [put(1, 0, 10, 1), unknown(delete(2, 11, 20, 12)), absent(3, 21, 30)];
            let [a, b, c] = start;
            check(&history([a, b, c, put(4, 22, 40, 30), last]), &facts())
        };
        assert!(run(read(5, 31, 40, 1, 1)).is_err());
        assert_eq!(run(read(5, 31, 40, 4, 30)), Ok(()));
        assert_eq!(run(read(5, 30, 40, 1, 1)), Ok(()));
        assert_eq!(run(with(1, 3, read(5, 31, 40, 1, 1))), Ok(()));
    }

    /// At the end no read and no disk may have a deleted record; with a missing mechanism this is not
    /// checked.
    #[test]
    fn deleted_stays_deleted_at_the_end() {
        let run =
            |facts: &Facts, last| check(&history([put(1, 0, 10, 1), delete(2, 11, 20, 12), last]), facts);
        assert!(run(&facts(), read(3, 10_000, 10_010, 1, 1)).is_err());
        assert_eq!(run(&facts(), absent(3, 10_000, 10_010)), Ok(()));
        let records = [(Bytes::from_static(b"k"), record(1, 3, Some("old")))].into();
        let dump = Dump { node: 2, at: millis(10_000), wall: facts().epoch, records };
        let mut stored = Facts { dumps: vec![dump], ..facts() };
        assert!(run(&stored, absent(3, 10_000, 10_010)).is_err());
        stored.mechanisms.drop_stale = false;
        assert_eq!(run(&stored, absent(3, 10_000, 10_010)), Ok(()));
    }

    /// A tombstone of two replicas is gone once one of them lost its disk and the other holds a newer record of
    /// one replica. A read of a majority may then meet the older value on the third.
    #[test]
    fn deletion_under_a_narrower_record_may_be_lost_with_a_disk() {
        let run = |ack, from, losses| {
            let start = [put(1, 0, 10, 1), with(2, 2, delete(2, 11, 20, 12))];
            let [a, b] = start;
            let newer = with(ack, from, put(3, 21, 30, 22));
            check(&history([a, b, newer, read(4, 10_000, 10_010, 1, 1)]), &Facts { losses, ..facts() })
        };
        let wiped = Loss { node: 1, at: millis(40), kind: LossKind::Wiped, since: Duration::ZERO };
        assert_eq!(run(1, 1, vec![wiped.clone()]), Ok(()));
        assert!(run(1, 1, Vec::new()).is_err(), "no disk was lost");
        assert!(run(1, 2, vec![wiped]).is_err(), "the newer record belongs on the same replicas");
    }
}
