//! Tallies of joint partitions: answers counted for each list that a request writes to.

use super::{Route, Slot};
use crate::quorum::{Quorum, Tally, Verdict};

/// One tally for each list of a route. A node that is on both lists counts in both.
///
/// One tally over all nodes would be wrong: `ack` of the nodes of both lists may be `ack` of neither.
#[derive(Debug, Clone)]
pub struct PerList<'r, T> {
    lists: Vec<(&'r [Slot], T)>,
}

impl<'r, T> PerList<'r, T> {
    /// A tally for each list of `route`, which was cut to the request's `from` ([`Route::of`]).
    pub fn new(route: Route<'r>, mut tally: impl FnMut() -> T) -> Self {
        Self { lists: route.writes().map(|list| (list, tally())).collect() }
    }

    /// Counts an answer of `replica` in every list that it is on. An answer of a node that is on none counts nowhere.
    pub fn count(&mut self, replica: Slot, mut answer: impl FnMut(&mut T)) {
        let theirs = self.lists.iter_mut().filter(|(list, _)| list.contains(&replica));
        theirs.for_each(|(_, tally)| answer(tally));
    }

    /// The tallies, one for each list.
    pub fn tallies(&self) -> impl Iterator<Item = &T> {
        self.lists.iter().map(|(_, tally)| tally)
    }
}

impl<'r> PerList<'r, Tally> {
    /// A count of the confirmations of `quorum` in each list.
    pub fn of_quorum(route: Route<'r>, quorum: Quorum) -> Self {
        Self::new(route.of(quorum.from()), || Tally::new(quorum))
    }

    /// The outcome so far: reached once every list has reached it.
    pub fn verdict(&self) -> Verdict {
        let is_any = |verdict| self.tallies().any(|tally| tally.verdict() == verdict);
        if is_any(Verdict::Unreachable) {
            Verdict::Unreachable
        } else if is_any(Verdict::Pending) {
            Verdict::Pending
        } else {
            Verdict::Reached
        }
    }
}
