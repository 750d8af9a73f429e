//! Copies: no operation, and no background repair, ever leaves more copies of a record than the `from` it was
//! written with.
//! Always checked, for every record that was ever seen on a disk: a copy on a wrong node counts even if it
//! was overwritten there later. Not where a change of members moved data.

use super::{Facts, Violation};
use crate::history::History;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    // While its partition moves, a record has more copies.
    if facts.has_moved {
        return Ok(());
    }
    let Some(((key, version), (from, nodes))) =
        facts.sightings.iter().find(|(_, (from, nodes))| nodes.len() > usize::from(*from))
    else {
        return Ok(());
    };
    let explanation = format!("{version} was written with from = {from} and was on the nodes {nodes:?}");
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
    use super::super::testing::*;
    use super::*;
    use bytes::Bytes;

    /// One copy too many is detected; copies of different versions are counted separately.
    #[test]
    fn surplus_copies_are_found() {
        let run = |versions: [u64; 3]| {
            let mut facts = facts();
            for (node, at) in (0..3).zip(versions) {
                facts.sighted(&Bytes::from_static(b"k"), &record(at, 2, Some("v")), node);
            }
            check(&history([put(1, 0, 10, 5)]), &facts)
        };
        assert_eq!(run([5, 5, 5]).unwrap_err().operations.len(), 1);
        assert_eq!(run([5, 5, 4]), Ok(()));
    }
}
