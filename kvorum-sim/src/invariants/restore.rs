//! Restores: what a cut had is in the cluster into which it was restored, with its value and its `ETag`, and no value that a
//! client wrote there was replaced by it.
//!
//! Each record of the backup has an operation, which is judged as any other ([`crate::restore`]). Here it is judged that none
//! is missing, that it was refused only because of another value, and that nothing but clients' writes replaced it.

use super::{Facts, Violation};
use crate::history::{History, Operation, Outcome, Request};

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let Some(backup) = &facts.backup else { return Ok(()) };
    let by_key = history.by_key();
    for (key, saved) in backup {
        let operations = by_key.get(key).map_or(&[][..], |operations| operations.as_slice());
        let broken = |explanation| Err(Violation::on_key("restore", key, explanation, operations));
        let Some(restore) = operations.iter().find(|operation| operation.id == saved.write) else {
            return broken("a record of the backup was not restored".to_owned());
        };
        if restore.acknowledged().is_some_and(|version| version != saved.etag) {
            return broken(format!("it was restored as another version than {}", saved.etag));
        }
        let is_of_client = |write: &&&Operation| write.id != saved.write && write.may_take_effect();
        if operations.iter().any(|write| is_of_client(&write)) {
            continue;
        }
        if restore.acknowledged().is_none() {
            return broken(format!(
                "nobody else wrote this key, and the restore #{} was not done",
                restore.id
            ));
        }
        let is_as_it_was = |read: &Operation| match read.outcome {
            Outcome::Value { write, version, .. } => version == saved.etag && write == Some(saved.write),
            _ => false,
        };
        let mut reads = operations.iter().filter(|read| read.request == Request::Get && facts.is_final(read));
        if let Some(read) = reads.find(|read| !is_as_it_was(read)) {
            return broken(format!(
                "the backup has #{} as {}; the read #{} is {}",
                saved.write, saved.etag, read.id, read.outcome
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::history::value_of;
    use crate::restore::Saved;
    use bytes::Bytes;

    fn run(operations: Vec<Operation>) -> bool {
        let saved = Saved { value: value_of(1, 24), etag: version(5), write: 1 };
        let backup = Some([(Bytes::from_static(b"k"), saved)].into());
        check(&History::new(operations), &Facts { backup, converged: Some(millis(100)), ..facts() }).is_ok()
    }

    /// A record that is missing, has another version, or is gone in the end is found; one that a client has replaced is not.
    #[test]
    fn what_was_saved_must_be_there() {
        let restore = || put(1, 0, 10, 5);
        assert!(run(vec![restore(), read(2, 110, 120, 1, 5)]));
        assert!(!run(vec![]));
        assert!(!run(vec![put(1, 0, 10, 7)]));
        assert!(!run(vec![restore(), absent(2, 110, 120)]));
        assert!(!run(vec![restore(), read(2, 110, 120, 1, 7)]));
        assert!(!run(vec![failed(Some(9), restore())]));
        assert!(run(vec![failed(Some(9), restore()), put(3, 0, 5, 9), read(2, 110, 120, 3, 9)]));
        assert!(run(vec![restore(), put(3, 20, 30, 9), read(2, 110, 120, 3, 9)]));
    }
}
