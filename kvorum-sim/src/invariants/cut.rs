//! Cuts: what a read quorum of snapshots holds is every write that was acknowledged at or below the timestamp, and none
//! above. A write that was under way when the nodes closed may be in it or not: if it goes on by ballots, its record is above
//! the timestamp, though the version that its client was told is not.
//!
//! Judged for keys whose partition has a read quorum among the nodes that were read, and for writes whose quorum overlaps
//! with that one and whose replicas still vote for them ([`Facts::is_voted_for`]). A deletion, and a value with a TTL, may
//! have been purged by then.

use super::floor::Writes;
use super::{Facts, Violation};
use crate::history::{AckFrom, History, Operation, Outcome, Request, write_of};
use crate::plan::PARTITION_BITS;
use kvorum_core::{Token, Value};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let from = facts.nodes.min(3);
    let default = AckFrom::new(from / 2 + 1, from);
    for cut in &facts.cuts {
        for (key, operations) in history.by_key() {
            let record = cut.records.get(key);
            let broken = |explanation| Err(Violation::on_key("cut", key, explanation, &operations));
            let at = format!("the cut at {:016x} of nodes {:?}", cut.upto, cut.sources);
            if let Some(record) = record {
                if record.version.clock() > cut.upto {
                    return broken(format!("{at} has {}, which is above it", record.version));
                }
                if let Value::Present(value) = &record.value {
                    let write = write_of(value).and_then(|id| {
                        operations.iter().find(|operation| operation.id == id && operation.is_write())
                    });
                    if write.is_none_or(|write| write.invoked > cut.closed) {
                        return broken(format!(
                            "{at} has {}, which nobody had written by then",
                            record.version
                        ));
                    }
                }
            }
            let partition = Token::of(key.as_ref()).partition(PARTITION_BITS);
            if cut.is_covered.get(usize::from(partition.0)) != Some(&true) {
                continue;
            }
            // A read at that time, for what excuses reads.
            let Some(like) = operations.first() else { continue };
            let read = Operation {
                request: Request::Get,
                outcome: Outcome::Absent,
                replicas: default,
                invoked: cut.closing,
                returned: cut.closed,
                ..(*like).clone()
            };
            let writes = Writes::of(&operations);
            let must_have = operations.iter().filter(|write| {
                let is_below = write.acknowledged().is_some_and(|version| version.clock() <= cut.upto);
                is_below && write.replicas.overlaps(default) && facts.is_voted_for(write)
            });
            let must_have = must_have.filter(|write| write.returned < cut.closing);
            let newest = must_have
                .filter_map(|write| Some((write.acknowledged()?, *write)))
                .max_by_key(|(version, _)| *version);
            let Some((version, write)) = newest else { continue };
            let is_missing = match record {
                Some(record) => record.version < version,
                None => !write.may_hide() && writes.hider(version, &read, facts).is_none(),
            };
            if is_missing && !writes.are_copies_lost(version, write.replicas.from, &read, facts) {
                let has = record.map_or("nothing".to_owned(), |record| record.version.to_string());
                return broken(format!(
                    "{at} has {has}, and misses the write #{} ({})",
                    write.id, write.outcome
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::cuts::Taken;
    use bytes::Bytes;
    use kvorum_core::Record;

    fn record(id: u64, at: u64) -> Record {
        let value = Value::Present(crate::history::value_of(id, 24));
        Record { version: version(at), from: 3, expires: None, value, conditional: None }
    }

    fn taken(upto: u64, record: Option<Record>) -> Facts {
        let records = record.map(|record| (Bytes::from_static(b"k"), record)).into_iter().collect();
        let upto = version(upto).clock();
        let cut = Taken {
            upto,
            closing: millis(100),
            closed: millis(110),
            sources: vec![0, 1],
            records,
            is_covered: vec![true; 1 << PARTITION_BITS],
        };
        Facts { cuts: vec![cut], ..facts() }
    }

    /// A write that was acknowledged at or below the timestamp is missed, an older one in its place is found, and so is one
    /// above; a deletion may be purged.
    #[test]
    fn wrong_cuts_are_found() {
        let history = history([put(1, 0, 10, 5), put(2, 20, 30, 25), put(3, 120, 130, 125)]);
        let check = |upto, record| check(&history, &taken(upto, record));
        assert_eq!(check(60, Some(record(2, 25))), Ok(()));
        assert!(check(60, Some(record(1, 5))).is_err());
        assert!(check(60, None).is_err());
        assert!(check(60, Some(record(3, 125))).is_err());
        assert!(check(200, Some(record(3, 125))).is_err(), "it began after the nodes had closed");
        assert!(check(20, Some(record(2, 25))).is_err());
    }

    /// Without a read quorum nothing is promised but that nothing is above.
    #[test]
    fn only_covered_keys_must_be_there() {
        let history = history([put(1, 0, 10, 5)]);
        let mut facts = taken(60, None);
        facts.cuts[0].is_covered.fill(false);
        assert_eq!(check(&history, &facts), Ok(()));
    }

    #[test]
    fn purged_deletions_may_be_gone() {
        let history = history([put(1, 0, 10, 5), delete(2, 20, 30, 25)]);
        assert_eq!(check(&history, &taken(60, None)), Ok(()));
        assert!(check(&history, &taken(60, Some(record(1, 5)))).is_err());
    }
}
