//! Which backups a prune keeps.

use std::collections::BTreeSet;

/// How many backups are kept: the union of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// So many of the latest.
    pub latest: usize,
    /// The latest one of each of so many days (UTC) that have one.
    pub daily: usize,
}

impl Retention {
    /// The backups among `ids`, the oldest first, that are kept.
    pub fn kept(self, ids: &[String]) -> BTreeSet<String> {
        let mut kept: BTreeSet<String> = ids.iter().rev().take(self.latest).cloned().collect();
        let mut days: BTreeSet<&str> = BTreeSet::new();
        for id in ids.iter().rev() {
            let day = id.split('T').next().unwrap_or(id);
            if days.len() < self.daily && days.insert(day) {
                kept.insert(id.clone());
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_day_stay() {
        let ids = [
            "20261125T010000Z",
            "20261125T230000Z",
            "20261126T010000Z",
            "20261127T010000Z",
            "20261127T020000Z",
        ];
        let ids = ids.map(str::to_owned);
        let check = |latest, daily, expect: &[usize]| {
            let expect: BTreeSet<String> = expect.iter().map(|place| ids[*place].clone()).collect();
            assert_eq!(Retention { latest, daily }.kept(&ids), expect, "{latest} {daily}");
        };
        check(0, 0, &[]);
        check(1, 0, &[4]);
        check(9, 0, &[0, 1, 2, 3, 4]);
        check(0, 2, &[2, 4]);
        check(0, 3, &[1, 2, 4]);
        check(2, 3, &[1, 2, 3, 4]);
    }
}
