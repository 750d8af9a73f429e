//! Tallies of joint partitions: answers counted for each list that a request writes to.
//!
//! A request makes one of these in place of the tally of one list, in the epoch of its plan. An answer counts only if it
//! was given in that epoch. When the epoch ends before the request does, its coordinator plans it again in the next one:
//!
//! - A plain write sends the same record again, and says so ([`WriteTally::sent_earlier`]).
//! - A ballot ends with its epoch, as promises are not carried to new owners. The next ballot names the record as an
//!   earlier version if it was sent, and says when ([`PrepareTally::sent_earlier`]).
//! - A read begins again, with its write-back.
//! - A replica forgets at each epoch which versions it held before newer ones came. A new owner may have held a record
//!   that a promise kept out elsewhere: said later, it would confirm a write between a condition and its record.
//!
//! `tests/conditional_model` explores this over a change.

use super::{Route, Slot};
use crate::conditional::{AcceptTally, AcceptVerdict, PrepareTally, PrepareVerdict};
use crate::quorum::{Quorum, Tally, Verdict};
use crate::version::Version;
use crate::write::{Stamp, WriteTally, WriteVerdict};

/// One tally for each list of a route. A node that is on both lists counts in both.
///
/// One tally over all nodes would be wrong: `ack` of the nodes of both lists may be `ack` of neither. Without a second
/// list it is the tally of the first.
#[derive(Debug, Clone)]
pub struct PerList<'r, T> {
    route: Route<'r>,
    first: T,
    second: Option<T>,
}

impl<'r, T: Clone> PerList<'r, T> {
    /// A copy of `tally` for each list of `route`, which was cut to the request's `from` ([`Route::of`]).
    pub fn new(route: Route<'r>, tally: T) -> Self {
        let second = route.is_joint().then(|| tally.clone());
        Self { route, first: tally, second }
    }

    /// Counts an answer of `replica` in every list that it is on. An answer of a node that is on none counts nowhere.
    pub fn count(&mut self, replica: Slot, mut answer: impl FnMut(&mut T)) {
        let mut lists = self.route.writes();
        for tally in std::iter::once(&mut self.first).chain(&mut self.second) {
            if lists.next().is_some_and(|list| list.contains(&replica)) {
                answer(tally);
            }
        }
    }

    /// The tallies, one for each list.
    pub fn tallies(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// The smallest number of the tallies: as many replicas as every list has.
    fn least(&self, number: fn(&T) -> u16) -> u16 {
        self.tallies().map(number).min().unwrap_or(0)
    }
}

impl<'r> PerList<'r, Tally> {
    /// A count of the confirmations of `quorum` in each list.
    pub fn of_quorum(route: Route<'r>, quorum: Quorum) -> Self {
        Self::new(route.of(quorum.from()), Tally::new(quorum))
    }

    /// How many replicas of each list confirmed.
    pub fn confirmed(&self) -> u16 {
        self.least(Tally::confirmed)
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

impl<'r> PerList<'r, WriteTally> {
    /// A count of the answers to a plain write's record, in each list.
    pub fn of_write(route: Route<'r>, quorum: Quorum, stamp: Stamp) -> Self {
        Self::new(route.of(quorum.from()), WriteTally::new(quorum, stamp))
    }

    /// As [`WriteTally::sent_earlier`].
    pub fn sent_earlier(&mut self) {
        self.first.sent_earlier();
    }

    /// How many replicas of each list confirm.
    pub fn confirmed(&self) -> u16 {
        self.least(WriteTally::confirmed)
    }

    /// The next step of the write.
    pub fn verdict(&self) -> WriteVerdict {
        WriteTally::verdict_over(&self.first, self.second.as_ref())
    }
}

impl<'r, 'a> PerList<'r, PrepareTally<'a>> {
    /// A count of the promises of a ballot in each list. `earlier` as in [`PrepareTally::new`].
    pub fn of_promises(route: Route<'r>, quorum: Quorum, earlier: &'a [Version]) -> Self {
        Self::new(route.of(quorum.from()), PrepareTally::new(quorum, earlier))
    }

    /// As [`PrepareTally::sent_earlier`].
    pub fn sent_earlier(&mut self) {
        self.first.sent_earlier();
    }

    /// How many replicas of each list have promised.
    pub fn promises(&self) -> u16 {
        self.least(PrepareTally::promises)
    }

    /// What the answers say.
    pub fn verdict(&self) -> PrepareVerdict {
        PrepareTally::verdict_over(&self.first, self.second.as_ref())
    }
}

impl<'r> PerList<'r, AcceptTally> {
    /// A count of the replicas that have taken a ballot's record, in each list.
    pub fn of_ballot(route: Route<'r>, quorum: Quorum) -> Self {
        Self::new(route.of(quorum.from()), AcceptTally::new(quorum))
    }

    /// How many replicas of each list have taken the record.
    pub fn accepted(&self) -> u16 {
        self.least(AcceptTally::accepted)
    }

    /// What the answers say.
    pub fn verdict(&self) -> AcceptVerdict {
        AcceptTally::verdict_over(&self.first, self.second.as_ref())
    }
}

impl Stamp {
    /// As [`Self::first_for`], for a write by `route`. A joint partition is asked first: a stamp of the clock alone could
    /// reach one list and be too old for the other, and then the write could neither end nor be stamped again.
    pub fn first_on(route: Route<'_>, quorum: Quorum, all_answer: bool) -> Self {
        if route.of(quorum.from()).is_joint() { Self::Asked } else { Self::first_for(quorum, all_answer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditional::{Fate, Promise};
    use crate::configuration::Side;

    const OLD: &[Slot] = &[Slot(0), Slot(1), Slot(2)];
    const NEW: &[Slot] = &[Slot(0), Slot(1), Slot(3)];
    /// Lists without a node in common.
    const FAR: &[Slot] = &[Slot(4), Slot(5), Slot(6)];

    fn v(clock: u64) -> Version {
        Version::from_words(clock, 1)
    }

    fn parsed(answers: &str) -> impl Iterator<Item = (Slot, char)> {
        answers.split(' ').filter_map(|answer| {
            let mut signs = answer.chars();
            let slot = signs.next()?.to_digit(10)?;
            Some((Slot(u16::try_from(slot).ok()?), signs.next()?))
        })
    }

    /// Answers, each with its node: S stored, N newer there, H the same and perhaps held before, C contested, R refused,
    /// ? unknown.
    fn write((old, new): (&[Slot], &[Slot]), stamp: Stamp, answers: &str, is_earlier: bool) -> WriteVerdict {
        let mut tally = PerList::of_write(Route::joint(old, new, Side::Old), Quorum::majority_of(3), stamp);
        for (slot, answer) in parsed(answers) {
            tally.count(slot, |tally| match answer {
                'S' => tally.stored(),
                'N' => tally.superseded(v(9), true),
                'H' => tally.superseded(v(9), false),
                'C' => tally.contested(v(9)),
                'R' => tally.refused(),
                _ => tally.unknown(),
            });
        }
        if is_earlier {
            tally.sent_earlier();
        }
        tally.verdict()
    }

    /// The list with the most holders decides between a new stamp and a ballot.
    #[test]
    fn writes_of_two_lists() {
        let check = |lists, answers, expect| {
            let verdict = write(lists, Stamp::Unasked, answers, false);
            assert_eq!(verdict, expect, "{lists:?} {answers}");
        };
        let (near, far) = ((OLD, NEW), (OLD, FAR));
        let again = WriteVerdict::StampAgain { above: v(9) };
        let ballot = WriteVerdict::Ballot { above: v(9) };
        check(near, "0S 1S", WriteVerdict::Reached);
        check(near, "0S 2S", WriteVerdict::Pending);
        check(near, "0S 2S 3S", WriteVerdict::Reached);
        check(near, "0S 1N 2S 3S", WriteVerdict::Reached);
        // One list is reached, and the other would stamp again: a reader of the first may have seen it.
        check(near, "0S 1N 2S 3N", WriteVerdict::Unreachable);
        check(near, "0N 1N 2S 3N", again);
        check(near, "0N 1N", again);
        // One list would stamp again, and the other goes on by a ballot.
        check(near, "0S 1N 2C 3N", ballot);
        check(near, "0R 1N 2N 3N", again);
        check(near, "0R 1R", WriteVerdict::Unreachable);
        // The holder is on the first list, and a reader may have brought it to two of the second.
        check(far, "0N 1N 2N 4H 5R 6N", again);
        check(far, "0N 1N 2S 4H 5R 6N", WriteVerdict::Unreachable);
        check(far, "0N 1N 2S 4C 5C 6N", ballot);
        check(far, "0N 1N 2N 4C 5C 6N", again);
    }

    /// A record that was sent in an earlier epoch is not stamped again.
    #[test]
    fn writes_of_two_epochs() {
        let check = |stamp, answers, expect| {
            assert_eq!(write((OLD, NEW), stamp, answers, true), expect, "{stamp:?} {answers}");
        };
        check(Stamp::Unasked, "0N 1N 2N 3N", WriteVerdict::Unreachable);
        check(Stamp::Unasked, "0N 1N 2C 3N", WriteVerdict::Ballot { above: v(9) });
        check(Stamp::Asked, "0N 1N", WriteVerdict::Reached);
        check(Stamp::Unasked, "0S 1S", WriteVerdict::Reached);
    }

    /// A joint partition is asked first; one with equal lists is not joint.
    #[test]
    fn first_stamps_of_two_lists() {
        let quorum = Quorum::majority_of(3);
        let first = |new| Stamp::first_on(Route::joint(OLD, new, Side::New), quorum, true);
        assert_eq!((first(NEW), first(OLD)), (Stamp::Asked, Stamp::Unasked));
    }

    /// Every list promises, and the newest record of any is the base.
    #[test]
    fn promises_of_two_lists() {
        let verdict = |answers: &str, earlier: &[Version], is_earlier| {
            let route = Route::joint(OLD, NEW, Side::Old);
            let mut tally = PerList::of_promises(route, Quorum::majority_of(3), earlier);
            for (slot, answer) in parsed(answers) {
                tally.count(slot, |tally| match answer {
                    'P' => tally.promised(Promise::plain(v(u64::from(slot.0) + 1))),
                    'H' => tally.promised(Promise { may_have_held: true, ..Promise::plain(v(1)) }),
                    'D' => tally.denied(v(9)),
                    _ => tally.missing(),
                });
            }
            if is_earlier {
                tally.sent_earlier();
            }
            tally.verdict()
        };
        let base = |verdict| match verdict {
            PrepareVerdict::Ready(prepared) => Some((prepared.base.version, prepared.fate)),
            _ => None,
        };
        assert_eq!(base(verdict("0P 1P", &[], false)), Some((v(2), Fate::Open)));
        assert_eq!(verdict("0P 2P", &[], false), PrepareVerdict::Pending);
        assert_eq!(base(verdict("0P 2P 3P", &[], false)), Some((v(4), Fate::Open)));
        assert_eq!(verdict("0P 1D 2P 3D", &[], false), PrepareVerdict::Again { above: v(9) });
        assert_eq!(verdict("0P 1? 2P 3?", &[], false), PrepareVerdict::Unreachable);
        // An earlier version: open only if each list says so.
        assert_eq!(base(verdict("0P 1P 2P 3P", &[v(4)], false)), Some((v(4), Fate::TookEffect(v(4)))));
        let earlier = [Version::from_words(1, 0)];
        assert_eq!(base(verdict("0H 1P 2P 3P", &earlier, false)), Some((v(4), Fate::Open)));
        assert_eq!(base(verdict("0P 1H 2P 3H", &earlier, false)), Some((v(3), Fate::Unknown)));
        assert_eq!(base(verdict("0P 1P 2P 3P", &earlier, true)), Some((v(4), Fate::Unknown)));
    }

    /// Every list takes a ballot's record; it is nowhere only if it is on neither.
    #[test]
    fn records_of_ballots_on_two_lists() {
        let check = |answers: &str, expect| {
            let mut tally = PerList::of_ballot(Route::joint(OLD, NEW, Side::Old), Quorum::majority_of(3));
            for (slot, answer) in parsed(answers) {
                tally.count(slot, |tally| match answer {
                    'T' => tally.taken(),
                    'D' => tally.denied(v(9)),
                    _ => tally.refused(),
                });
            }
            assert_eq!(tally.verdict(), expect, "{answers}");
        };
        let again = |is_nowhere| AcceptVerdict::Again { above: v(9), is_nowhere };
        check("0T 1T", AcceptVerdict::Taken);
        check("0T 2T", AcceptVerdict::Pending);
        check("0T 2T 1D 3D", again(false));
        check("0D 1D 2D 3T", again(false));
        check("0D 1D 2D 3R", again(true));
        check("0R 1R 2T 3T", AcceptVerdict::Unreachable);
    }
}
