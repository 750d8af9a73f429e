//! Expiry: no reader sees a record with a TTL once the TTL has passed since its write, whatever its version
//! says.
//!
//! Checked where clocks are within a known error of the true time; where clocks jump, the end of a TTL is not
//! defined. If one node's clock is wrong among others, operations at that node during that time are not
//! judged. The other half, that no record expires too early, is part of every check that accepts an expiry as
//! the cause of an absence.

use super::floor::Writes;
use super::{Facts, Violation};
use crate::history::{History, Outcome, Request};
use crate::millis;

/// Checks the invariant.
pub fn check(history: &History, facts: &Facts) -> Result<(), Violation> {
    let Some(error) = facts.clock_error else { return Ok(()) };
    for (key, operations) in history.by_key() {
        let writes = Writes::of(&operations);
        for read in &operations {
            let Outcome::Value { version, .. } = read.outcome else { continue };
            let Some(write) = writes.seen_by(read) else { continue };
            let Request::Put { ttl: Some(ttl) } = &write.request else { continue };
            if facts.has_wrong_clock(read) || facts.has_wrong_clock(write) {
                continue;
            }
            // A write whose client got no answer may have begun later than the client waited.
            let answered = write.acknowledged().map(|_| facts.wall_millis(write.returned) + millis(error));
            let gone_from = version.millis().0.min(answered.unwrap_or(u64::MAX)) + millis(*ttl);
            if facts.wall_millis(read.invoked) > gone_from + millis(error) {
                let explanation = format!(
                    "the read #{} saw a value {} ms after it had expired",
                    read.id,
                    facts.wall_millis(read.invoked) - gone_from
                );
                return Err(Violation::on_key("expiry", key, explanation, &operations));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, history, put_for, read};
    use super::*;

    /// A value that is served after its end is detected, within the clocks' error; where clocks jump nothing
    /// is judged.
    #[test]
    fn late_values_are_found() {
        let run = |at: u64| history([put_for(1, 0, 10, 5, 100), read(2, at, at + 5, 1, 5)]);
        assert!(check(&run(116), &facts()).is_err());
        assert_eq!(check(&run(115), &facts()), Ok(()));
        assert_eq!(check(&run(9000), &Facts { clock_error: None, ..facts() }), Ok(()));
        // A version that is ahead of all clocks does not extend the TTL.
        let ahead = |at: u64| history([put_for(1, 0, 10, 5_000, 100), read(2, at, at + 5, 1, 5_000)]);
        assert!(check(&ahead(200), &facts()).is_err());
        assert_eq!(check(&ahead(110), &facts()), Ok(()));
    }
}
