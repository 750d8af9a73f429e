//! Freshness (guarantee 2): after a write acknowledged with a/f, a read with b/g sees it or a newer one
//! whenever a + b > max(f, g).
//!
//! Checked for writes whose replicas still vote for them ([`Facts::is_voted_for`]). A read that finds nothing
//! needs a cause: a delete, or a value that may have expired, that had begun and may be newer than the
//! acknowledged write. Not checked for copies that were on a lost disk and that no other node has to refill
//! it with ([`Writes::are_copies_lost`]).

use super::floor::{Floor, Writes};
use super::{Facts, Violation};
use crate::history::{History, Outcome};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        let floor = Floor::of_writes(&operations, facts);
        let writes = Writes::of(&operations);
        for read in operations.iter().filter(|operation| operation.is_read()) {
            let overlaps = |replicas: crate::history::AckFrom, _| replicas.overlaps(read.replicas);
            let Some(known) = floor.before(read.invoked, overlaps) else { continue };
            let stale = match read.outcome {
                Outcome::Value { version, .. } => version < known.version,
                Outcome::Absent => writes.hider(known.version, read, facts).is_none(),
                _ => false,
            };
            let from = known.operation.replicas.from;
            if stale && !writes.are_copies_lost(known.version, from, read, facts) {
                let explanation = format!(
                    "the read #{} ({}) does not see the write #{} ({}), acknowledged {} before it began",
                    read.id,
                    read.outcome,
                    known.operation.id,
                    known.operation.outcome,
                    known.operation.replicas
                );
                return Err(Violation::on_key("freshness", key, explanation, &operations));
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
    use std::time::Duration;

    /// A read after the acknowledgement that sees the older value, or nothing, is stale; one that began
    /// before is not.
    #[test]
    fn stale_reads_are_found() {
        let stale = history([put(1, 0, 10, 1), put(2, 20, 30, 2), read(3, 31, 40, 1, 1)]);
        assert!(check(&stale, &facts()).unwrap_err().explanation.contains("#3"));
        assert!(check(&history([put(1, 0, 10, 1), absent(2, 11, 20)]), &facts()).is_err());
        let concurrent = history([put(1, 0, 10, 1), put(2, 20, 30, 2), read(3, 30, 40, 1, 1)]);
        assert_eq!(check(&concurrent, &facts()), Ok(()));
    }

    /// Quorums that do not overlap promise nothing; other combinations that overlap do.
    #[test]
    fn overlap_decides() {
        let run = |write: (u16, u16), read_: (u16, u16)| {
            let write = with(write.0, write.1, put(2, 20, 30, 2));
            check(
                &history([put(1, 0, 10, 1), write, with(read_.0, read_.1, read(3, 31, 40, 1, 1))]),
                &facts(),
            )
        };
        assert!(run((3, 3), (1, 3)).is_err());
        assert!(run((1, 1), (1, 1)).is_err());
        assert_eq!(run((1, 3), (2, 3)), Ok(()));
        assert_eq!(run((2, 3), (1, 3)), Ok(()));
    }

    /// An unknown delete, or one that was acknowledged later, explains an absence; an older one does not.
    #[test]
    fn absence_needs_a_cause() {
        let write = put(1, 10, 20, 10);
        let run = |other| check(&history([write.clone(), other, absent(9, 100, 110)]), &facts());
        assert_eq!(run(unknown(delete(2, 0, 5, 0))), Ok(()));
        assert_eq!(run(delete(2, 30, 40, 30)), Ok(()));
        assert!(run(delete(2, 0, 5, 2)).is_err());
        assert!(run(delete(2, 111, 120, 111)).is_err());
        assert_eq!(run(put_for(2, 30, 40, 30, 50)), Ok(()));
        assert!(run(put_for(2, 30, 40, 30, 500)).is_err());
    }

    /// A lost disk excuses a stale read if it cannot be refilled, because the others hold a newer record that
    /// does not belong on it. A disk that can be refilled, or a newer record alone, does not.
    #[test]
    fn copies_that_nobody_has_any_more_excuse() {
        let run = |narrow_from, kind| {
            let loss = Loss { node: 1, at: millis(50), kind, since: Duration::ZERO };
            let facts = Facts { nodes: 5, losses: vec![loss], ..facts() };
            let wide = with(3, 5, put(1, 10, 20, 10));
            let narrow = with(2, narrow_from, put(2, 30, 40, 30));
            check(&history([wide, narrow, with(3, 5, absent(3, 100, 110))]), &facts)
        };
        assert_eq!(run(2, LossKind::Wiped), Ok(()));
        assert!(run(5, LossKind::Wiped).is_err());
        assert!(run(2, LossKind::Rotten).is_err());
    }

    /// A lost disk excuses a write that one disk held, and none that two held; a silent loss excuses both.
    #[test]
    fn losses_excuse() {
        let run = |ack, kind| {
            let loss = Loss { node: 1, at: millis(50), kind, since: Duration::ZERO };
            let facts = Facts { losses: vec![loss], ..facts() };
            let write = with(ack, 3, put(1, 10, 20, 10));
            check(&history([write, with(3, 3, absent(2, 100, 110))]), &facts)
        };
        assert_eq!(run(1, LossKind::Wiped), Ok(()));
        assert!(run(2, LossKind::Wiped).is_err());
        assert_eq!(run(2, LossKind::Unsynced), Ok(()));
    }
}
