//! Copies: no operation, and no background repair, ever leaves more copies of a record than the `from` it was
//! written with.
//!
//! Held always, for every record that is stored anywhere at the end, not only for the newest of a key.

use super::{Facts, Violation};
use crate::history::History;
use bytes::Bytes;
use kvorum_core::Version;
use std::collections::BTreeMap;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let mut copies: BTreeMap<(&Bytes, Version), (u16, Vec<u16>)> = BTreeMap::new();
    for dump in &facts.dumps {
        for (key, record) in &dump.records {
            let (from, nodes) = copies.entry((key, record.version)).or_insert((record.from, Vec::new()));
            *from = record.from.min(*from);
            nodes.push(dump.node);
        }
    }
    let Some(((key, version), (from, nodes))) =
        copies.into_iter().find(|(_, (from, nodes))| nodes.len() > usize::from(*from))
    else {
        return Ok(());
    };
    let explanation = format!("{version} was written with from = {from} and is on the nodes {nodes:?}");
    let by_key = history.by_key();
    Err(Violation::on_key(
        "copies",
        key,
        explanation,
        by_key.get(key).map_or(&[], |of_key| of_key.as_slice()),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Dump;
    use super::super::testing::*;
    use super::*;

    /// One copy too many is found; copies of different versions are counted apart.
    #[test]
    fn surplus_copies_are_found() {
        let dump = |node, at| {
            let records = [(Bytes::from_static(b"k"), record(at, 2, Some("v")))].into();
            Dump { node, at: millis(0), wall: facts().epoch, records }
        };
        let run = |versions: [u64; 3]| {
            let dumps = (0..3).zip(versions).map(|(node, at)| dump(node, at)).collect();
            check(&history([put(1, 0, 10, 5)]), &Facts { dumps, ..facts() })
        };
        assert_eq!(run([5, 5, 5]).unwrap_err().operations.len(), 1);
        assert_eq!(run([5, 5, 4]), Ok(()));
    }
}
