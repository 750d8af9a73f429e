//! `kvorum bench add`: the clients of `cas`, which add to numbers instead of replacing values.

use kvorum_client::{AddOptions, Client};

use super::cas::{Tally, Work, read_in_time};
use crate::rng::SplitMix64;

/// What was added to a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Added {
    succeeded: u64,
    unknown: u64,
}

impl Added {
    fn add(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.unknown += other.unknown;
    }

    /// Checks the number that the key has in the end.
    ///
    /// # Errors
    /// Why no such additions lead to it, as text.
    fn check(self, number: u64) -> Result<(), String> {
        let Self { succeeded, unknown } = self;
        if (succeeded..=succeeded + unknown).contains(&number) {
            return Ok(());
        }
        Err(format!("the number is {number} after {succeeded} additions and {unknown} of unknown outcome"))
    }
}

impl Work {
    /// One client: adds 1 to numbers until the time is up.
    pub(super) async fn add(self, client: Client, mut chance: SplitMix64) -> Tally {
        let mut tally = Tally::default();
        let options = AddOptions { replicas: self.options.replicas, ..AddOptions::default() };
        while !self.is_over() {
            let number = chance.below(self.keys);
            let added = tally.added.entry(number).or_default();
            match client.add(self.key(number), 1, options).await {
                Ok(_) => {
                    added.succeeded += 1;
                    tally.succeeded += 1;
                }
                Err(error) if error.may_have_taken_effect() => {
                    added.unknown += 1;
                    tally.unknown += 1;
                }
                Err(error) => tally.fail(&error),
            }
        }
        tally
    }

    /// Checks the numbers of all keys; returns what is wrong.
    pub(super) async fn check_sums(&self, client: &Client, tallies: &[Tally]) -> Option<String> {
        let mut all = std::collections::BTreeMap::<u64, Added>::new();
        for (number, added) in tallies.iter().flat_map(|tally| &tally.added) {
            all.entry(*number).or_default().add(*added);
        }
        let mut wrong = None;
        for (number, added) in all {
            let key = self.key(number);
            let checked = match read_in_time(client, &key).await {
                Ok(None) => added.check(0),
                Ok(Some(entry)) => {
                    let number = std::str::from_utf8(&entry.value).ok().and_then(|text| text.parse().ok());
                    number.map_or_else(
                        || Err("the value is no number".to_owned()),
                        |number| added.check(number),
                    )
                }
                Err(error) => Err(format!("the number cannot be read: {error}")),
            };
            wrong = wrong.or_else(|| checked.err().map(|error| format!("{key}: {error}")));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lost addition and one that counted twice are found; one of unknown outcome counts once at most.
    #[test]
    fn sums_are_checked() {
        let added = Added { succeeded: 5, unknown: 2 };
        let holds = |number| added.check(number).is_ok();
        assert_eq!([4, 5, 6, 7, 8].map(holds), [false, true, true, true, false]);
    }
}
