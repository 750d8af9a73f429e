//! Phantoms: a read sees the whole value of some write, and never of one that was refused or had not begun.
//!
//! Always checked: no fault excuses bytes that no client sent.

use super::floor::Writes;
use super::{Facts, Violation};
use crate::history::{History, Outcome, Request};

/// Checks the invariant.
pub fn check(history: &History, _facts: &Facts) -> Result<(), Violation> {
    for (key, operations) in history.by_key() {
        let writes = Writes::of(&operations);
        for read in &operations {
            let Outcome::Value { write, is_foreign, .. } = read.outcome else { continue };
            let seen = write.and_then(|write| writes.get(write));
            let wrong = match (write, seen) {
                _ if is_foreign => Some("saw bytes that nobody wrote"),
                (Some(_), None) => Some("saw a value that was refused, or was never written to this key"),
                (Some(_), Some(seen)) if seen.request == Request::Delete => Some("saw the value of a delete"),
                (Some(_), Some(seen)) if seen.invoked > read.returned => {
                    Some("saw a value before it was written")
                }
                _ => None,
            };
            if let Some(wrong) = wrong {
                let explanation = format!("the read #{} {wrong}: {}", read.id, read.outcome);
                return Err(Violation::on_key("phantoms", key, explanation, &operations));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::history::Operation;

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
}
