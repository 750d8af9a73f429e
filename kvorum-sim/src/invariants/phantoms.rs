//! Phantoms: a read sees the whole value of some write, and never of one that was refused or had not begun. No
//! disk of the cluster ever holds a record of another cluster, and in the end no disk holds another value than
//! that of such a write.
//!
//! Always checked: no fault excuses bytes that no client sent.

use super::floor::Writes;
use super::{Facts, Violation};
use crate::counters::is_counter;
use crate::history::{History, Operation, Outcome, Request, write_of};
use bytes::Bytes;
use kvorum_core::{Record, Value};
use std::collections::BTreeMap;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let by_key = history.by_key();
    check_reads(&by_key, facts)?;
    check_disks(&by_key, facts)
}

type ByKey<'a> = BTreeMap<&'a Bytes, Vec<&'a Operation>>;

/// Checks what clients read.
fn check_reads(by_key: &ByKey<'_>, facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in by_key {
        let writes = Writes::of(operations);
        for read in operations {
            let Outcome::Value { write, version, is_foreign } = read.outcome else { continue };
            // A read that need not overlap with a conditional write may meet a record of it that no quorum held.
            let failed = |write| writes.failed(write).filter(|write| !write.replicas.overlaps(read.replicas));
            let seen = write.and_then(|write| writes.get(write).or_else(|| failed(write)));
            let wrong = match (write, seen) {
                _ if is_foreign => Some("saw bytes that nobody wrote"),
                _ if facts.foreign.contains(&((*key).clone(), version)) => {
                    Some("saw a version of another cluster")
                }
                (Some(_), None) => Some("saw a value that was refused, or was never written to this key"),
                (Some(_), Some(seen)) if seen.request == Request::Delete => Some("saw the value of a delete"),
                (Some(_), Some(seen)) if seen.invoked > read.returned => {
                    Some("saw a value before it was written")
                }
                _ => None,
            };
            if let Some(wrong) = wrong {
                let explanation = format!("the read #{} {wrong}: {}", read.id, read.outcome);
                return Err(Violation::on_key("phantoms", key, explanation, operations));
            }
        }
    }
    Ok(())
}

/// Checks what disks held: records of another cluster at any time, and everything else at the end.
fn check_disks(by_key: &ByKey<'_>, facts: &Facts) -> Result<(), Violation> {
    let of_key = |key: &Bytes| by_key.get(key).map_or(&[][..], |of_key| of_key.as_slice());
    if let Some((record, (_, nodes))) =
        facts.foreign.iter().find_map(|record| facts.sightings.get_key_value(record))
    {
        let (key, version) = record;
        let explanation = format!("{version} was written in another cluster and was on the nodes {nodes:?}");
        return Err(Violation::on_key("phantoms", key, explanation, of_key(key)));
    }
    for dump in &facts.dumps {
        let is_phantom = |(key, record): &(&Bytes, &Record)| {
            // The numbers of counters are judged as what clients read of them.
            !is_counter(key) && !is_of_a_write(record, of_key(key))
        };
        if let Some((key, record)) = dump.records.iter().find(is_phantom) {
            let (node, version) = (dump.node, record.version);
            let explanation =
                format!("node {node} holds {version} with a value that nobody wrote to this key");
            return Err(Violation::on_key("phantoms", key, explanation, of_key(key)));
        }
    }
    Ok(())
}

/// Whether a stored value is of a write that may have taken effect. A tombstone carries no write.
fn is_of_a_write(record: &Record, operations: &[&Operation]) -> bool {
    let Value::Present(value) = &record.value else { return true };
    let write = write_of(value).and_then(|write| operations.iter().find(|operation| operation.id == write));
    write.is_some_and(|write| matches!(write.request, Request::Put { .. }) && write.may_take_effect())
}

#[cfg(test)]
mod tests {
    use super::super::facts::Dump;
    use super::super::testing::*;
    use super::*;
    use crate::history::value_of;

    /// Foreign bytes, refused writes and writes of the future are phantoms; unknown writes are not.
    #[test]
    fn phantoms_are_found() {
        let refused = Operation { outcome: Outcome::Refused { status: 503 }, ..put(1, 0, 10, 1) };
        assert!(check(&history([refused, read(2, 20, 30, 1, 1)]), &facts()).is_err());
        assert!(check(&history([put(1, 40, 50, 1), read(2, 20, 30, 1, 1)]), &facts()).is_err());
        assert!(check(&history([delete(1, 0, 10, 1), read(2, 20, 30, 1, 1)]), &facts()).is_err());
        let outcome = Outcome::Value { write: None, version: version(1), is_foreign: true };
        assert!(check(&history([Operation { outcome, ..absent(1, 0, 1) }]), &facts()).is_err());
        assert_eq!(check(&history([unknown(put(1, 0, 10, 1)), read(2, 5, 30, 1, 1)]), &facts()), Ok(()));
    }
    /// A record of another cluster is found in an answer to a HEAD, and on a disk at any time.
    #[test]
    fn records_of_another_cluster_are_found() {
        let key = Bytes::from_static(b"k");
        let foreign = Facts { foreign: [(key.clone(), version(5))].into(), ..facts() };
        let head = |at| {
            let outcome = Outcome::Value { write: None, version: version(at), is_foreign: false };
            Operation { request: Request::Head, outcome, ..absent(2, 20, 30) }
        };
        assert!(check(&history([put(1, 0, 10, 1), head(5)]), &foreign).is_err());
        assert_eq!(check(&history([put(1, 0, 10, 1), head(1)]), &foreign), Ok(()));
        let sighted = |at| {
            let mut facts = foreign.clone();
            facts.sighted(&key, &record(at, 3, Some("v")), 2);
            check(&history([put(1, 0, 10, 1)]), &facts)
        };
        assert!(sighted(5).is_err());
        assert_eq!(sighted(1), Ok(()));
    }

    /// In the end every stored value is of a write that may have taken effect, to the same key.
    #[test]
    fn stored_values_that_nobody_wrote_are_found() {
        let refused = Operation { outcome: Outcome::Refused { status: 503 }, ..put(2, 0, 10, 1) };
        let operations = [put(1, 0, 10, 1), refused, unknown(put(3, 0, 10, 1)), delete(4, 0, 10, 1)];
        let run = |key: &'static str, value: Value| {
            let record = Record { value, ..record(1, 3, None) };
            let records = [(Bytes::from_static(key.as_bytes()), record)].into();
            let facts = Facts { dumps: vec![Dump { records, ..Dump::default() }], ..facts() };
            check(&history(operations.clone()), &facts)
        };
        let value = |write| Value::Present(value_of(write, 100));
        assert_eq!(run("k", value(1)), Ok(()));
        assert_eq!(run("k", value(3)), Ok(()));
        assert_eq!(run("k", Value::Tombstone), Ok(()));
        assert!(run("k", value(2)).is_err());
        assert!(run("k", value(4)).is_err());
        assert!(run("k", value(9)).is_err());
        assert!(run("l", value(1)).is_err());
        assert!(run("k", Value::Present(Bytes::from_static(b"v"))).is_err());
    }
}
