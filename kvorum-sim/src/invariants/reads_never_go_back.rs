//! Reads never go back (guarantee 4): of two reads, one after the other, the second sees the record of the
//! first or a newer one.
//!
//! Checked where the second must find the record that the first left on its replicas ([`must_meet`]). They
//! overlap, b + b' > max(g, g'), and the write-back, which goes to ranks below the record's own `from` only,
//! reaches enough replicas. The first read's disks must still vote. As for freshness, a second read that
//! finds nothing needs a cause, and permanently lost copies are an excuse.

use super::facts::must_meet;
use super::floor::{Floor, Known, Writes};
use super::{Facts, Violation};
use crate::history::{History, Outcome};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        let writes = Writes::of(&operations);
        let seen = Floor::new(operations.iter().filter_map(|read| {
            let Outcome::Value { version, .. } = read.outcome else { return None };
            let write = writes.seen_by(read).filter(|write| facts.is_still_seen(write, read))?;
            Some((write.replicas.from, Known { at: read.returned, version, operation: read }))
        }));
        for read in operations.iter().filter(|operation| operation.is_read()) {
            let meets = |replicas, from| must_meet(replicas, from, read.replicas);
            let Some(known) = seen.before(read.invoked, meets) else { continue };
            let went_back = match read.outcome {
                Outcome::Value { version, .. } => version < known.version,
                Outcome::Absent => writes.hider(known.version, read, facts).is_none(),
                _ => false,
            };
            let from = writes.seen_by(known.operation).map_or(0, |write| write.replicas.from);
            if went_back && !writes.are_copies_lost(known.version, from, read, facts) {
                let explanation = format!(
                    "the read #{} ({}) goes back behind the read #{} ({})",
                    read.id, read.outcome, known.operation.id, known.operation.outcome
                );
                return Err(Violation::on_key("reads_never_go_back", key, explanation, &operations));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Loss, LossKind};
    use super::super::testing::*;
    use super::*;

    /// A newer value, then an older one: detected also for a write of unknown outcome, which freshness does
    /// not judge.
    #[test]
    fn going_back_is_found() {
        let run = |second| {
            let writes = [put(1, 0, 10, 1), unknown(put(2, 11, 20, 12)), read(3, 21, 30, 2, 12), second];
            check(&history(writes), &facts())
        };
        assert!(run(read(4, 31, 40, 1, 1)).is_err());
        assert!(run(absent(4, 31, 40)).is_err());
        assert_eq!(run(read(4, 30, 40, 1, 1)), Ok(()));
        assert_eq!(run(read(4, 31, 40, 2, 12)), Ok(()));
        assert_eq!(run(with(1, 3, read(4, 31, 40, 1, 1))), Ok(()));
    }

    /// A read does not spread a record that belongs on one node: a later majority may miss it.
    #[test]
    fn narrow_records_are_not_spread() {
        let run = |from| {
            let narrow = with(1, from, unknown(put(2, 11, 20, 12)));
            check(
                &history([put(1, 0, 10, 1), narrow, read(3, 21, 30, 2, 12), read(4, 31, 40, 1, 1)]),
                &facts(),
            )
        };
        assert_eq!(run(1), Ok(()));
        assert!(run(3).is_err());
    }

    /// A record that the others have overwritten for fewer replicas cannot be filled into a disk again: one that was lost (seed
    /// 2596495622), or that of a node which a change gave the record's rank (seeds 2431231459 and 317).
    #[test]
    fn lost_copies_under_a_narrower_record_excuse() {
        let run = |losses, has_moved| {
            let facts = Facts { nodes: 5, losses, has_moved, ..facts() };
            let reads = [with(3, 5, read(2, 11, 20, 1, 1)), with(3, 5, absent(4, 100, 110))];
            let [first, second] = reads;
            let narrow = with(2, 2, put(3, 30, 40, 30));
            check(&history([put(1, 0, 10, 1), first, narrow, second]), &facts)
        };
        assert!(run(Vec::new(), false).is_err());
        assert_eq!(run(Vec::new(), true), Ok(()));
        let wiped = Loss { node: 1, at: millis(50), kind: LossKind::Wiped, since: millis(0) };
        assert_eq!(run(vec![wiped], false), Ok(()));
    }

    /// A write that is stamped twice is seen with both versions; a value between the two must not be seen
    /// after.
    #[test]
    fn second_stamp_is_no_excuse() {
        let two = [unknown(put(1, 0, 100, 1)), put(2, 0, 10, 5)];
        let [a, b] = two;
        let back = history([a, b, read(3, 11, 20, 2, 5), read(4, 21, 30, 1, 1)]);
        assert!(check(&back, &facts()).is_err());
    }
}
