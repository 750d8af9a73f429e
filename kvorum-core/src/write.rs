//! Writes: a coordinator's next step, decided from the replicas' answers to its record.
//!
//! The rules order the writes to one key, whatever the clocks say. They are those of a multi-writer register
//! (Lynch and Shvartsman, "Robust emulation of shared memory using dynamic quorum-acknowledged broadcasts",
//! FTCS 1997): ask a quorum for the newest version, stamp above it, write. One optimistic round goes before
//! them where it is safe. `tests/write_model.rs` checks the rules, and shows that weaker ones fail;
//! `docs/decisions/0006-*` has the reasons.

use crate::quorum::Quorum;
use crate::version::Version;

/// What is known of a version when its record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stamp {
    /// The version comes from the coordinator's clock alone: a newer record on a replica may have been
    /// acknowledged before this write began.
    Unasked,
    /// `ack` replicas were asked after the write began, and the version is above all that they held. A newer
    /// record on a replica was not acknowledged before this write began, or its quorum does not overlap with
    /// this one.
    Asked,
}

impl Stamp {
    /// How the first stamp of a write of `quorum` is made. `all_answer` says that no replica of the key is
    /// known to be away.
    ///
    /// An unasked stamp saves a round trip. It is safe if the write can end in two ways only. Either `ack`
    /// replicas take the record. Or so few take it that no reader can have seen it, and it may be stamped
    /// again. With `FROM - ACK + 1` to `ACK - 1` holders there would be a third way. No number lies in that
    /// range exactly if `2 * ACK <= FROM + 1`. A replica that is away may be a holder, so it leads to the
    /// third way too.
    pub fn first_for(quorum: Quorum, all_answer: bool) -> Self {
        if all_answer && 2 * quorum.ack() <= quorum.from() + 1 { Self::Unasked } else { Self::Asked }
    }
}

/// The next step of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteVerdict {
    /// Enough replicas confirm: the write is acknowledged.
    Reached,
    /// No reader can have seen the record, and `ack` replicas have said what they hold: stamp again above all
    /// of it. The new stamp is [`Stamp::Asked`].
    StampAgain {
        /// The newest version that the replicas reported.
        above: Version,
    },
    /// A conditional write came between, and may go on from this record where it finds it: the write goes on as a write
    /// without a condition ([`crate::conditional`]) that names this version as an earlier one.
    Ballot {
        /// The newest version that the replicas reported.
        above: Version,
    },
    /// `ack` replicas can no longer confirm. The record may still take effect.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// The answers of the replicas to one record. A plain value: it neither sends nor waits.
///
/// A write takes effect once. A second stamp is a second effect if a reader saw the record under its first
/// stamp: one reader sees the record, another sees a newer one, a third sees the record again. So the record
/// is stamped again only while the replicas that hold it, or may have held it, are fewer than
/// [`Quorum::visible_from`]. The readers' quorums decide, not this write's own `ack`. Where the number of
/// holders is not known, the write ends as unknown.
#[derive(Debug, Clone, Copy)]
pub struct WriteTally {
    quorum: Quorum,
    stamp: Stamp,
    visible_from: u16,
    stored: u16,
    superseded: u16,
    too_late: u16,
    contested: u16,
    refused: u16,
    unknown: u16,
    overtaken: u16,
    newest: Version,
    was_earlier: bool,
}

impl WriteTally {
    /// A tally without answers.
    pub fn new(quorum: Quorum, stamp: Stamp) -> Self {
        Self::with_visible_from(quorum, stamp, quorum.visible_from())
    }

    /// As [`Self::new`], with another number of holders that make a record visible: for models and canaries.
    #[doc(hidden)]
    pub fn with_visible_from(quorum: Quorum, stamp: Stamp, visible_from: u16) -> Self {
        Self {
            quorum,
            stamp,
            visible_from,
            stored: 0,
            superseded: 0,
            too_late: 0,
            contested: 0,
            refused: 0,
            unknown: 0,
            overtaken: 0,
            newest: Version::ZERO,
            was_earlier: false,
        }
    }

    /// Notes that the record was sent in an earlier epoch, too. A reader there may have seen it on replicas that are not
    /// counted here, and no replica remembers what it held before an epoch: the record is never stamped again. A
    /// replica that refuses it now, and was sent it before, counts as of unknown answer.
    pub fn sent_earlier(&mut self) {
        self.was_earlier = true;
    }

    /// Counts a replica that took the record, or had taken it before a newer one came.
    pub fn stored(&mut self) {
        self.stored += 1;
    }

    /// Counts a replica that holds the newer version `by`. `surely_never_held` says that its memory reaches
    /// back far enough to know that it never held the record.
    pub fn superseded(&mut self, by: Version, surely_never_held: bool) {
        self.superseded += 1;
        self.overtaken += u16::from(!surely_never_held);
        self.newest = self.newest.max(by);
    }

    /// Counts a replica that refuses versions up to `upto`, and need not hold a newer one.
    pub fn too_late(&mut self, upto: Version) {
        self.too_late += 1;
        self.newest = self.newest.max(upto);
    }

    /// Counts a replica where a conditional write is or was under way: it has promised `by`, or holds the newer version
    /// `by`. It confirms nothing: a write that came just before a conditional one would lie between its condition and
    /// its record. And it may get this record from a coordinator that finds it elsewhere.
    pub fn contested(&mut self, by: Version) {
        self.contested += 1;
        self.newest = self.newest.max(by);
    }

    /// Counts a replica that surely did not take the record from this coordinator.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// Counts a replica that was asked and did not answer: it may have taken the record.
    pub fn unknown(&mut self) {
        self.unknown += 1;
    }

    /// How many replicas confirm.
    pub fn confirmed(&self) -> u16 {
        match self.stamp {
            Stamp::Unasked => self.stored,
            // A newer record there was not acknowledged before: this write comes just before it.
            Stamp::Asked => self.stored + self.superseded,
        }
    }

    fn told(&self) -> u16 {
        self.stored + self.superseded + self.too_late + self.contested
    }

    fn pending(&self) -> u16 {
        self.quorum.from().saturating_sub(self.told() + self.refused + self.unknown)
    }

    /// How many replicas may have the record from this coordinator.
    fn sent_max(&self) -> u16 {
        self.stored + self.pending() + self.unknown
    }

    /// How many replicas may hold the record, or have held it, if some replica of the key may have it from this
    /// coordinator. After that a replica that refused it, or does not remember, may have got it from a reader that found
    /// it on the first one. A replica that holds a newer record and never held this one never will.
    fn holders_max(&self, is_anywhere: bool) -> u16 {
        if is_anywhere { self.sent_max() + self.overtaken + self.refused + self.contested } else { 0 }
    }

    /// The next step of the write.
    pub fn verdict(&self) -> WriteVerdict {
        Self::verdict_over(self, None)
    }

    /// The next step of a write, with a tally for each of one or two lists.
    ///
    /// A reader needs [`Quorum::visible_from`] holders in *one* list: in the epochs before and after this one, it may read
    /// and write back to either list alone. So the record is invisible only if each list says so, and what one list
    /// decides by itself decides nothing: the list that has the most holders decides between a new stamp and a ballot.
    /// The first holder may be on either list: a reader brings the record from one to the other.
    pub(crate) fn verdict_over(first: &Self, second: Option<&Self>) -> WriteVerdict {
        let lists = || std::iter::once(first).chain(second);
        let ack = first.quorum.ack();
        let is_anywhere = lists().any(|list| list.sent_max() > 0);
        let may_be_seen =
            |list: &Self| list.was_earlier || list.holders_max(is_anywhere) >= list.visible_from;
        let above = lists().map(|list| list.newest).max().unwrap_or(Version::ZERO);
        if lists().all(|list| list.confirmed() >= ack) {
            WriteVerdict::Reached
        } else if lists().any(|list| list.told() + list.pending() < ack) {
            WriteVerdict::Unreachable
        } else if lists().all(|list| list.confirmed() + list.pending() >= ack) {
            WriteVerdict::Pending
        } else if lists().any(may_be_seen) {
            if lists().any(|list| list.contested > 0) {
                WriteVerdict::Ballot { above }
            } else if lists().any(|list| list.pending() > 0) {
                WriteVerdict::Pending
            } else {
                WriteVerdict::Unreachable
            }
        } else if lists().all(|list| list.told() >= ack) {
            WriteVerdict::StampAgain { above }
        } else {
            WriteVerdict::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by() -> Version {
        Version::from_words(9, 9)
    }

    /// Answers: stored, newer there, newer there and perhaps held before (H), too late, contested, refused, unknown.
    fn verdict(quorum: (u16, u16), stamp: Stamp, answers: &str) -> WriteVerdict {
        let mut tally = WriteTally::new(Quorum::new(quorum.0, quorum.1, quorum.1).unwrap(), stamp);
        for answer in answers.chars() {
            match answer {
                'S' => tally.stored(),
                'N' => tally.superseded(by(), true),
                'H' => tally.superseded(by(), false),
                'L' => tally.too_late(by()),
                'C' => tally.contested(by()),
                'R' => tally.refused(),
                _ => tally.unknown(),
            }
        }
        tally.verdict()
    }

    /// An unasked stamp is safe exactly if no number of holders is both visible and below `ack`.
    #[test]
    fn first_stamps() {
        for from in 1..=9 {
            for ack in 1..=from {
                let quorum = Quorum::new(ack, from, from).unwrap();
                let is_safe = (quorum.visible_from()..ack).is_empty();
                assert_eq!(Stamp::first_for(quorum, true) == Stamp::Unasked, is_safe, "{quorum}");
                assert_eq!(Stamp::first_for(quorum, false), Stamp::Asked, "{quorum}");
            }
        }
        let default = Quorum::majority_of(3);
        assert_eq!(Stamp::first_for(default, true), Stamp::Unasked);
    }

    /// The cases of an unasked stamp.
    #[test]
    fn unasked_verdicts() {
        let check = |quorum, answers, expect| {
            assert_eq!(verdict(quorum, Stamp::Unasked, answers), expect, "{quorum:?} {answers}");
        };
        let again = WriteVerdict::StampAgain { above: by() };
        check((2, 3), "S", WriteVerdict::Pending);
        check((2, 3), "SS", WriteVerdict::Reached);
        check((2, 3), "SN", WriteVerdict::Pending);
        check((2, 3), "SNS", WriteVerdict::Reached);
        check((2, 3), "SNN", again);
        check((2, 3), "NN", again);
        check((2, 3), "NRN", again);
        check((2, 3), "SLL", again);
        // A replica that cannot say whether it held the record may be the second holder.
        check((2, 3), "SNH", WriteVerdict::Unreachable);
        check((2, 3), "HN", WriteVerdict::Pending);
        check((2, 3), "HNN", again);
        // A reader that saw it on the first may have written it back to the third, which the writer did not reach.
        check((2, 3), "SNR", WriteVerdict::Unreachable);
        check((2, 3), "NRS", WriteVerdict::Unreachable);
        check((2, 3), "NR", WriteVerdict::Pending);
        // The third may have taken it, and a reader may have seen it on two.
        check((2, 3), "SN?", WriteVerdict::Unreachable);
        check((2, 3), "S?", WriteVerdict::Pending);
        check((2, 3), "S??", WriteVerdict::Unreachable);
        check((2, 3), "RR", WriteVerdict::Unreachable);
        check((1, 1), "N", again);
        // No replica took it from this coordinator, so none can have got it from a holder.
        check((1, 1), "H", again);
        check((2, 3), "HHH", again);
        check((2, 3), "HRH", again);
        check((2, 3), "HH?", WriteVerdict::Unreachable);
        check((1, 3), "NS", WriteVerdict::Reached);
        check((1, 3), "NN", WriteVerdict::Pending);
        check((1, 3), "NNN", again);
        // A read that overlaps asks all three, and two have never held it.
        check((1, 3), "NN?", again);
    }

    /// The cases of a stamp above a quorum's versions: a newer record came meanwhile, and counts as a confirmation.
    #[test]
    fn asked_verdicts() {
        let check = |quorum, answers, expect| {
            assert_eq!(verdict(quorum, Stamp::Asked, answers), expect, "{quorum:?} {answers}");
        };
        check((3, 3), "SSN", WriteVerdict::Reached);
        check((3, 3), "NNN", WriteVerdict::Reached);
        check((3, 3), "HHH", WriteVerdict::Reached);
        check((3, 3), "SN", WriteVerdict::Pending);
        check((3, 3), "R", WriteVerdict::Unreachable);
        check((2, 3), "N?S", WriteVerdict::Reached);
        check((2, 3), "R?", WriteVerdict::Unreachable);
        check((2, 2), "SN", WriteVerdict::Reached);
        // A barrier is no newer record: it confirms nothing.
        check((2, 3), "LLL", WriteVerdict::StampAgain { above: by() });
        check((2, 3), "SLL", WriteVerdict::StampAgain { above: by() });
        check((3, 3), "SLL", WriteVerdict::Unreachable);
    }

    /// A conditional write between the replicas confirms nothing, and may bring the record to where it was refused.
    #[test]
    fn contested_verdicts() {
        let ballot = WriteVerdict::Ballot { above: by() };
        let again = WriteVerdict::StampAgain { above: by() };
        for stamp in [Stamp::Unasked, Stamp::Asked] {
            let check = |quorum, answers, expect| {
                assert_eq!(verdict(quorum, stamp, answers), expect, "{quorum:?} {stamp:?} {answers}");
            };
            check((2, 3), "SC", WriteVerdict::Pending);
            check((2, 3), "SSC", WriteVerdict::Reached);
            check((2, 3), "SCC", ballot);
            check((2, 3), "CC", ballot);
            check((2, 3), "CC?", ballot);
            check((2, 3), "CCR", again);
            check((2, 3), "CCC", again);
            check((3, 3), "SSC", ballot);
            check((2, 3), "CR?", WriteVerdict::Unreachable);
        }
    }
}
