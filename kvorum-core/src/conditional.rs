//! Conditional writes: a coordinator's next step, decided from the replicas' answers to its ballot.
//!
//! A write asks the replicas of its key to promise a ballot ([`PrepareTally`]), judges its condition on the newest
//! record among `ACK` promises ([`Prepared`]), and sends its record under the ballot ([`AcceptTally`]). The replica's
//! part is [`crate::promise`]. The rules need `2 * ACK > FROM`: any two quorums share a replica.
//!
//! A coordinator whose record was taken by too few replicas cannot know its fate: another coordinator may find the
//! record and go on from it. It begins again with a higher ballot and names its *earlier* versions. Then one of these
//! holds, and the answers tell which ([`Fate`]): the newest record is its own; it was built on its own; or no record of
//! a quorum can have been built on it, and none ever will be.
//!
//! A plain write goes the same way, as a write without a condition, when a ballot came between its replicas
//! ([`crate::WriteVerdict::Ballot`]), and so does a read that a promise keeps from writing back.

use crate::quorum::Quorum;
use crate::version::Version;

/// Earlier versions that one write may name: then it ends as unknown.
pub const EARLIER_LEN_MAX: usize = 8;

/// What a record says about the write that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lineage {
    /// The version under which the record's value was first written: its `ETag`. A record that is accepted anew under
    /// another ballot keeps it.
    pub origin: Version,
    /// The origin of the record that this one was built on.
    pub base: Version,
}

/// A replica's promise, with what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Promise {
    /// The version of the stored record; [`Version::ZERO`] where there is none.
    pub version: Version,
    /// The lineage of the stored record: its own version is the origin of a plain one.
    pub lineage: Lineage,
    /// Whether one of the earlier versions may have been the newest here: remembered, or too long ago to be remembered.
    pub may_have_held: bool,
    /// Whether a record that was built on one of the earlier versions, or accepted anew from one, may have been stored
    /// here: remembered, or too long ago to be remembered.
    pub may_have_built: bool,
}

impl Promise {
    /// A promise of a replica that holds a plain record of `version`, or none.
    pub fn plain(version: Version) -> Self {
        let lineage = Lineage { origin: version, base: Version::ZERO };
        Self { version, lineage, may_have_held: false, may_have_built: false }
    }
}

/// What became of the write's earlier versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They took no effect and never will once this ballot's record is accepted: the write may be done under it.
    Open,
    /// The newest record is the write's own, or was built on it: it took effect under this version, provided that the
    /// newest record is accepted.
    TookEffect(Version),
    /// It cannot be told.
    Unknown,
}

/// Enough promises for a ballot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// The newest record among the promises.
    pub base: Promise,
    /// Whether all promises had that record: then a quorum holds it, and it cannot be undone.
    pub is_uniform: bool,
    /// What became of the earlier versions.
    pub fate: Fate,
}

/// How a conditional write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionalOutcome {
    /// The write took effect; its `ETag` is this version.
    Done(Version),
    /// The condition did not hold for the base.
    Failed,
}

/// What a coordinator does with its promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send the new record under the ballot, built on the base.
    Build,
    /// Accept the base anew under the ballot, with its lineage; then the write has ended. An outcome must not be told
    /// on the word of a record that might still be undone.
    Secure(ConditionalOutcome),
    /// The write has ended.
    End(ConditionalOutcome),
    /// The outcome cannot be known.
    Unknown,
}

impl Prepared {
    /// The next step, if `holds` says that the condition holds for the base. A write without a condition always holds,
    /// and a read never does.
    pub fn next(&self, holds: bool) -> Next {
        let outcome = match self.fate {
            Fate::Unknown => return Next::Unknown,
            Fate::TookEffect(version) => ConditionalOutcome::Done(version),
            Fate::Open if holds => return Next::Build,
            Fate::Open => ConditionalOutcome::Failed,
        };
        if self.is_uniform { Next::End(outcome) } else { Next::Secure(outcome) }
    }
}

/// What the answers to a request for promises say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrepareVerdict {
    /// Enough replicas have promised.
    Ready(Prepared),
    /// Too many replicas know something newer: prepare a ballot above it.
    Again {
        /// The newest version that the replicas reported.
        above: Version,
    },
    /// Too few replicas can promise. Nothing was done.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// The answers of the replicas to a request for promises. A plain value: it neither sends nor waits.
#[derive(Debug, Clone)]
pub struct PrepareTally<'a> {
    quorum: Quorum,
    earlier: &'a [Version],
    promises: Vec<Promise>,
    denied: u16,
    missing: u16,
    above: Version,
    was_earlier: bool,
}

impl<'a> PrepareTally<'a> {
    /// A tally without answers, of a write whose record may have been taken under the `earlier` versions.
    pub fn new(quorum: Quorum, earlier: &'a [Version]) -> Self {
        let promises = Vec::new();
        Self { quorum, earlier, promises, denied: 0, missing: 0, above: Version::ZERO, was_earlier: false }
    }

    /// Notes that a record of the write was sent in an earlier epoch. A reader there may have seen it on replicas that are
    /// not counted here, and no replica remembers what it held before an epoch.
    pub fn sent_earlier(&mut self) {
        self.was_earlier = true;
    }

    /// Counts a replica that has promised.
    pub fn promised(&mut self, promise: Promise) {
        self.promises.push(promise);
    }

    /// Counts a replica that knows of `by`, which is not below the ballot.
    pub fn denied(&mut self, by: Version) {
        self.denied += 1;
        self.above = self.above.max(by);
    }

    /// Counts a replica that does not answer, or does not count.
    pub fn missing(&mut self) {
        self.missing += 1;
    }

    /// How many replicas have promised.
    pub fn promises(&self) -> u16 {
        u16::try_from(self.promises.len()).unwrap_or(u16::MAX)
    }

    fn pending(&self) -> u16 {
        self.quorum.from().saturating_sub(self.promises() + self.denied + self.missing)
    }

    /// What the answers say.
    pub fn verdict(&self) -> PrepareVerdict {
        Self::verdict_over(self, None)
    }

    /// What the answers say, with a tally for each of one or two lists.
    ///
    /// Every list must promise: then no write comes between that counts on either. The base is the newest record of all
    /// promises, as a record that one list has taken alone, in the epoch before or after this one, must be found.
    pub(crate) fn verdict_over(first: &Self, second: Option<&Self>) -> PrepareVerdict {
        let lists = || std::iter::once(first).chain(second);
        let ack = first.quorum.ack();
        let promises = || lists().flat_map(|list| &list.promises);
        let above = lists().map(|list| list.above).max().unwrap_or(Version::ZERO);
        if lists().all(|list| list.promises() >= ack)
            && let Some(base) = promises().max_by_key(|promise| promise.version)
        {
            let is_uniform = promises().all(|promise| promise.version == base.version);
            let could_be_open = |with_denied: bool| lists().all(|list| list.could_be_open(with_denied));
            let fate = first.fate(base, could_be_open(false));
            // Another replica may know.
            if fate == Fate::Unknown && lists().any(|list| list.pending() > 0) {
                return PrepareVerdict::Pending;
            }
            // One that knows a newer version has said nothing of the earlier ones: a higher ballot asks it again.
            if fate == Fate::Unknown && lists().any(|list| list.denied > 0) && could_be_open(true) {
                return PrepareVerdict::Again { above };
            }
            return PrepareVerdict::Ready(Prepared { base: *base, is_uniform, fate });
        }
        if lists().any(|list| list.promises() + list.denied + list.pending() < ack) {
            PrepareVerdict::Unreachable
        } else if lists().any(|list| list.promises() + list.pending() < ack) {
            PrepareVerdict::Again { above }
        } else {
            PrepareVerdict::Pending
        }
    }

    /// What became of the earlier versions, if `base` is the newest record among the promises, and if those below it
    /// `could_be_open`.
    ///
    /// What a quorum has ever held is on one of the promised replicas, or was overwritten there. So an earlier version
    /// that the base is below took no effect. One that the base is above did if a quorum held it, or held what was built
    /// on it; the replicas that held either know.
    fn fate(&self, base: &Promise, could_be_open: bool) -> Fate {
        let Lineage { origin, base: built_on } = base.lineage;
        let mine = self.earlier.iter().find(|earlier| **earlier == origin || **earlier == built_on);
        if let Some(mine) = mine {
            return Fate::TookEffect(*mine);
        }
        let is_passed = self.earlier.iter().any(|earlier| *earlier < base.version);
        if is_passed && !could_be_open {
            return Fate::Unknown;
        }
        Fate::Open
    }

    /// Whether the earlier versions that the base is above took no effect, as far as this list says; `with_denied`: if the
    /// replicas that denied the ballot never held them.
    fn could_be_open(&self, with_denied: bool) -> bool {
        let never_held = self.promises.iter().filter(|promise| !promise.may_have_held).count();
        let denied = if with_denied { self.denied } else { 0 };
        // All replicas but these may have held it, and a reader sees a record from `FROM - ACK + 1` holders on.
        let may_be_seen = never_held + usize::from(denied) < usize::from(self.quorum.ack());
        !self.was_earlier && !may_be_seen && !self.promises.iter().any(|promise| promise.may_have_built)
    }
}

/// What the answers to a ballot's record say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptVerdict {
    /// Enough replicas have taken the record: it is the newest, and stays in the history of the key.
    Taken,
    /// A newer ballot or record came between: prepare again, above it.
    Again {
        /// The newest version that the replicas reported.
        above: Version,
        /// Whether surely no replica has taken the record, nor ever will. Otherwise the next ballot must name its
        /// version as an earlier one.
        is_nowhere: bool,
    },
    /// Too few replicas answer. The record may still take effect.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// The answers of the replicas to a ballot's record. A plain value: it neither sends nor waits.
#[derive(Debug, Clone, Copy)]
pub struct AcceptTally {
    quorum: Quorum,
    taken: u16,
    denied: u16,
    refused: u16,
    unknown: u16,
    above: Version,
}

impl AcceptTally {
    /// A tally without answers.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, taken: 0, denied: 0, refused: 0, unknown: 0, above: Version::ZERO }
    }

    /// Counts a replica that has taken the record.
    pub fn taken(&mut self) {
        self.taken += 1;
    }

    /// Counts a replica that knows of the newer version `by`.
    pub fn denied(&mut self, by: Version) {
        self.denied += 1;
        self.above = self.above.max(by);
    }

    /// Counts a replica that surely did not take the record, for another reason.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// Counts a replica that was asked and did not answer, or does not count: it may have taken the record.
    pub fn unknown(&mut self) {
        self.unknown += 1;
    }

    /// How many replicas have taken the record.
    pub fn accepted(&self) -> u16 {
        self.taken
    }

    fn pending(&self) -> u16 {
        self.quorum.from().saturating_sub(self.taken + self.denied + self.refused + self.unknown)
    }

    /// What the answers say.
    pub fn verdict(&self) -> AcceptVerdict {
        Self::verdict_over(self, None)
    }

    /// What the answers say, with a tally for each of one or two lists. Every list must take the record.
    pub(crate) fn verdict_over(first: &Self, second: Option<&Self>) -> AcceptVerdict {
        let lists = || std::iter::once(first).chain(second);
        let ack = first.quorum.ack();
        if lists().all(|list| list.taken >= ack) {
            AcceptVerdict::Taken
        } else if lists().all(|list| list.taken + list.pending() >= ack) {
            AcceptVerdict::Pending
        } else if lists().any(|list| list.denied > 0) {
            let above = lists().map(|list| list.above).max().unwrap_or(Version::ZERO);
            let is_nowhere = lists().all(|list| list.taken + list.unknown + list.pending() == 0);
            AcceptVerdict::Again { above, is_nowhere }
        } else {
            AcceptVerdict::Unreachable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(clock: u64) -> Version {
        Version::from_words(clock, 1)
    }

    fn prepared(earlier: &[Version], promises: &[Promise]) -> PrepareVerdict {
        let mut tally = PrepareTally::new(Quorum::majority_of(3), earlier);
        for promise in promises {
            tally.promised(*promise);
        }
        tally.verdict()
    }

    /// Answers to a request for promises: P promised, D denied, M missing.
    #[test]
    fn prepare_verdicts() {
        let check = |answers: &str, expect: &str| {
            let mut tally = PrepareTally::new(Quorum::majority_of(3), &[]);
            for answer in answers.chars() {
                match answer {
                    'P' => tally.promised(Promise::plain(v(1))),
                    'D' => tally.denied(v(9)),
                    _ => tally.missing(),
                }
            }
            let verdict = match tally.verdict() {
                PrepareVerdict::Ready(_) => "ready",
                PrepareVerdict::Again { above } if above == v(9) => "again",
                PrepareVerdict::Again { .. } => "again above something else",
                PrepareVerdict::Unreachable => "unreachable",
                PrepareVerdict::Pending => "pending",
            };
            assert_eq!(verdict, expect, "{answers}");
        };
        check("", "pending");
        check("P", "pending");
        check("PP", "ready");
        check("PDP", "ready");
        check("PD", "pending");
        check("DD", "again");
        check("PDM", "again");
        check("DDM", "again");
        check("MM", "unreachable");
        check("PMM", "unreachable");
        check("DMM", "unreachable");
    }

    /// The newest record is the base, and an outcome is told at once only if all promises carry it.
    #[test]
    fn an_outcome_is_secured_unless_all_agree() {
        let PrepareVerdict::Ready(alike) = prepared(&[], &[Promise::plain(v(3)), Promise::plain(v(3))])
        else {
            panic!("two promises are enough");
        };
        assert_eq!(alike.next(true), Next::Build);
        assert_eq!(alike.next(false), Next::End(ConditionalOutcome::Failed));
        let PrepareVerdict::Ready(apart) = prepared(&[], &[Promise::plain(v(3)), Promise::plain(v(5))])
        else {
            panic!("two promises are enough");
        };
        assert_eq!(apart.base.version, v(5));
        assert_eq!(apart.next(true), Next::Build);
        assert_eq!(apart.next(false), Next::Secure(ConditionalOutcome::Failed));
    }

    /// What a ballot says of its write's earlier version 4.
    #[test]
    fn fates_of_an_earlier_version() {
        let record = |version, origin, base| Promise {
            version: v(version),
            lineage: Lineage { origin: v(origin), base: v(base) },
            may_have_held: false,
            may_have_built: false,
        };
        let check = |promises: &[Promise], expect: Option<Fate>| {
            let fate = match prepared(&[v(4)], promises) {
                PrepareVerdict::Ready(prepared) => Some(prepared.fate),
                _ => None,
            };
            assert_eq!(fate, expect, "{promises:?}");
        };
        let (held, built) = (
            Promise { may_have_held: true, ..record(6, 6, 0) },
            Promise { may_have_built: true, ..record(6, 6, 0) },
        );
        let new = record(6, 6, 0);
        check(&[record(1, 1, 0), record(2, 2, 0)], Some(Fate::Open));
        check(&[record(4, 4, 0), record(2, 2, 0)], Some(Fate::TookEffect(v(4))));
        check(&[record(5, 4, 1), record(2, 2, 0)], Some(Fate::TookEffect(v(4))));
        check(&[record(5, 5, 4), record(2, 2, 0)], Some(Fate::TookEffect(v(4))));
        check(&[new, new], Some(Fate::Open));
        // A second replica may have held it: the third is asked.
        check(&[held, new], None);
        check(&[held, new, new], Some(Fate::Open));
        check(&[held, new, held], Some(Fate::Unknown));
        check(&[built, new], None);
        check(&[built, new, new], Some(Fate::Unknown));
    }

    /// A replica that knows a newer version is asked again by a higher ballot, where it could tell that the earlier version
    /// took no effect. Under rivals this is frequent, and an outcome would be told as unknown that is not.
    #[test]
    fn a_denial_leaves_the_fate_open() {
        let held = Promise { may_have_held: true, ..Promise::plain(v(6)) };
        let verdict = |promises: &[Promise]| {
            let earlier = [v(4)];
            let mut tally = PrepareTally::new(Quorum::majority_of(3), &earlier);
            for promise in promises {
                tally.promised(*promise);
            }
            tally.denied(v(9));
            tally.verdict()
        };
        let again = PrepareVerdict::Again { above: v(9) };
        assert_eq!(verdict(&[held, Promise::plain(v(6))]), again);
        for lost in [held, Promise { may_have_built: true, ..Promise::plain(v(6)) }] {
            let PrepareVerdict::Ready(prepared) = verdict(&[held, lost]) else { panic!("{lost:?}") };
            assert_eq!(prepared.fate, Fate::Unknown, "{lost:?}");
        }
    }

    /// Goal: an earlier version counts as unseen only if fewer replicas than a reader needs may have held it. Method: all
    /// numbers of replicas that never held it, for every majority of up to 7.
    #[test]
    fn what_may_have_been_seen_is_unknown() {
        for from in 1..=7_u16 {
            for ack in from / 2 + 1..=from {
                let quorum = Quorum::new(ack, from, from).unwrap();
                for never_held in 0..=from {
                    let earlier = [v(4)];
                    let mut tally = PrepareTally::new(quorum, &earlier);
                    for at in 0..from {
                        tally.promised(Promise { may_have_held: at >= never_held, ..Promise::plain(v(6)) });
                    }
                    let PrepareVerdict::Ready(prepared) = tally.verdict() else { panic!("all promise") };
                    let is_seen = from - never_held >= quorum.visible_from();
                    let expect = if is_seen { Fate::Unknown } else { Fate::Open };
                    assert_eq!(prepared.fate, expect, "{quorum} {never_held}");
                }
            }
        }
    }

    /// Answers to a record: T taken, D denied, R refused, ? unknown.
    #[test]
    fn accept_verdicts() {
        let check = |answers: &str, expect| {
            let mut tally = AcceptTally::new(Quorum::majority_of(3));
            for answer in answers.chars() {
                match answer {
                    'T' => tally.taken(),
                    'D' => tally.denied(v(9)),
                    'R' => tally.refused(),
                    _ => tally.unknown(),
                }
            }
            assert_eq!(tally.verdict(), expect, "{answers}");
        };
        let again = |is_nowhere| AcceptVerdict::Again { above: v(9), is_nowhere };
        check("T", AcceptVerdict::Pending);
        check("TDT", AcceptVerdict::Taken);
        check("TD", AcceptVerdict::Pending);
        check("DD", again(false));
        check("DDD", again(true));
        check("DDR", again(true));
        check("DD?", again(false));
        check("TDD", again(false));
        check("RR", AcceptVerdict::Unreachable);
        check("T??", AcceptVerdict::Unreachable);
    }
}
