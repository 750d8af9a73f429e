//! The model's replica: judges by the rules of `kvorum_core::promise`.

use crate::{Mistake, Source};
use kvorum_core::{Acceptance, KeyState, Lineage, Promise, Version};
use std::collections::BTreeSet;

/// A record; the beginning is [`Record::FIRST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) version: Version,
    pub(crate) lineage: Lineage,
    pub(crate) is_conditional: bool,
}

impl Record {
    pub(crate) const FIRST: Self = Self::plain(Version::ZERO);

    pub(crate) const fn plain(version: Version) -> Self {
        let lineage = Lineage { origin: version, base: Version::ZERO };
        Self { version, lineage, is_conditional: false }
    }
}

/// A replica's answer to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    Stored,
    Superseded { by: Version, surely_never_held: bool },
    Contested(Version),
    Refused,
    Unknown,
}

/// A replica's answer to a request for a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Heard {
    Promised(Promise),
    Denied(Version),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Replica {
    /// The epoch that it has adopted.
    pub(crate) epoch: usize,
    pub(crate) stored: Record,
    promised: Version,
    /// Whether no earlier promise was open when it was given.
    is_alone: bool,
    fenced: Version,
    /// Versions that were once the newest here.
    held: BTreeSet<Version>,
    /// Origins that conditional records here were built on or accepted anew from.
    built: BTreeSet<Version>,
    /// The highest ballot that was seen here. After a crash it is not known any more: it may have been any.
    met: Version,
    /// Whether the memory of earlier versions was lost in a crash.
    has_forgotten: bool,
    /// The replicas that a refill must still read; `None` for a replica that votes.
    pub(crate) filling_from: Option<BTreeSet<usize>>,
}

impl Replica {
    pub(crate) fn new() -> Self {
        Self {
            epoch: 0,
            stored: Record::FIRST,
            promised: Version::ZERO,
            is_alone: false,
            fenced: Version::ZERO,
            held: BTreeSet::new(),
            built: BTreeSet::new(),
            met: Version::ZERO,
            has_forgotten: false,
            filling_from: None,
        }
    }

    pub(crate) fn votes(&self) -> bool {
        self.filling_from.is_none()
    }

    pub(crate) fn has_promised(&self) -> bool {
        self.promised > Version::ZERO
    }

    fn state(&self) -> KeyState {
        let (stored, promised, fenced) = (self.stored.version, self.promised, self.fenced);
        KeyState { stored, promised, fenced, barred: Version::ZERO }
    }

    /// The version that a writer that asks first is told.
    pub(crate) fn newest(&self) -> Version {
        self.stored.version.max(self.promised)
    }

    pub(crate) fn promise(&mut self, ballot: Version, earlier: &[Version], mistake: Mistake) -> Heard {
        if let Err(by) = self.state().promise(ballot) {
            return Heard::Denied(by);
        }
        self.is_alone = self.promised == Version::ZERO;
        self.promised = ballot;
        self.met = self.met.max(ballot);
        let any_of = |known: &BTreeSet<Version>| {
            !earlier.is_empty()
                && (self.has_forgotten || earlier.iter().any(|version| known.contains(version)))
        };
        let may_have_held = mistake != Mistake::ForgetHeld && any_of(&self.held);
        let may_have_built = mistake != Mistake::ForgetBuilt && any_of(&self.built);
        let (version, lineage) = (self.stored.version, self.stored.lineage);
        Heard::Promised(Promise { version, lineage, may_have_held, may_have_built })
    }

    /// Applies a record, whoever sends it.
    pub(crate) fn apply(&mut self, record: Record, source: Source, mistake: Mistake) -> Answer {
        let is_free = matches!(
            (mistake, source),
            (Mistake::WritesIgnorePromises, Source::Writer)
                | (Mistake::HintsIgnorePromises, Source::Hint)
                | (Mistake::WriteBacksIgnorePromises, Source::Reader)
                | (Mistake::RepairIgnoresPromises, Source::Repair)
                | (Mistake::AcceptUnchecked, Source::Ballot)
        );
        let state = self.state();
        let is_own = matches!(source, Source::Writer | Source::Ballot);
        // While the store was refilled, it took what a promise that it had lost would have kept out.
        let has_held = self.held.contains(&record.version) && record.version > self.fenced;
        if is_own && has_held && mistake != Mistake::ForgetHeld {
            return Answer::Stored;
        }
        if source == Source::Ballot && !is_free {
            return match state.accept(record.version) {
                Acceptance::Store => self.store(record),
                Acceptance::Same => Answer::Stored,
                Acceptance::Denied { by } => Answer::Contested(by),
            };
        }
        if record.version >= self.stored.version {
            if state.is_bound(record.version) && record.version > self.stored.version && !is_free {
                return Answer::Contested(self.promised);
            }
            return self.store(record);
        }
        let by = self.stored.version;
        // A ballot below this record cannot have gone on from it.
        let is_contested = record.version <= self.met || record.version <= self.fenced || !self.votes();
        if is_contested && mistake != Mistake::SupersededByConditional {
            return Answer::Contested(by);
        }
        Answer::Superseded { by, surely_never_held: !self.has_forgotten }
    }

    fn store(&mut self, record: Record) -> Answer {
        self.stored = record;
        self.held.insert(record.version);
        if record.is_conditional {
            self.met = self.met.max(record.version);
            self.built.insert(record.lineage.base);
            if record.lineage.origin != record.version {
                self.built.insert(record.lineage.origin);
            }
        }
        if self.state().is_fulfilled_by(record.version) {
            (self.promised, self.is_alone) = (Version::ZERO, false);
        }
        Answer::Stored
    }

    pub(crate) fn adopt(&mut self, mistake: Mistake) {
        self.epoch += 1;
        if mistake != Mistake::MemoryOverEpochs {
            self.held.clear();
            self.built.clear();
        }
    }

    /// Loses what is in memory only.
    pub(crate) fn crash(&mut self, now: Version, mistake: Mistake) {
        self.held.clear();
        self.built.clear();
        if self.met > Version::ZERO {
            self.met = now;
        }
        self.has_forgotten = true;
        if mistake == Mistake::PromiseUnsynced {
            self.promised = Version::ZERO;
        }
        if mistake == Mistake::FenceLostAtRestart {
            self.fenced = Version::ZERO;
        }
    }

    /// Forgets the versions of operations that are over.
    pub(crate) fn remember_only(&mut self, is_open: impl Fn(&Version) -> bool) {
        self.held.retain(&is_open);
        self.built.retain(&is_open);
    }

    /// Takes back a promise under whose ballot nothing was sent, nor ever will be. One that stands for an earlier promise as
    /// well stays.
    pub(crate) fn release(&mut self, ballot: Version, mistake: Mistake) {
        if self.promised == ballot && (self.is_alone || mistake == Mistake::TakeBackAny) {
            (self.promised, self.is_alone) = (Version::ZERO, false);
        }
    }

    pub(crate) fn drop_promise(&mut self) {
        self.promised = Version::ZERO;
    }

    /// Loses the disk.
    pub(crate) fn lose(&mut self, others: BTreeSet<usize>) {
        *self = Self { has_forgotten: true, filling_from: Some(others), ..Self::new() };
    }

    /// Takes no ballot up to `word` any more: a store that is being refilled has lost its promises.
    pub(crate) fn fence(&mut self, word: Version, mistake: Mistake) {
        if mistake != Mistake::RefillForgets {
            self.fenced = self.fenced.max(word);
        }
    }

    /// Ends a refill: from now on it votes.
    pub(crate) fn vote(&mut self, word: Version, mistake: Mistake) {
        self.filling_from = None;
        self.fence(word, mistake);
    }
}
