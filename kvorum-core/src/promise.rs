//! Promises: what a replica may still take of a key for which a conditional write has asked first.
//!
//! A conditional write is a round of `CASPaxos` (Rystsov, arXiv 1802.07000) whose ballot is the version of its record. A
//! replica that promises a ballot says which record it holds, and takes nothing below the ballot any more: no plain
//! write, no hint, no write-back, no repair. So no write can come between the record that a condition was judged on
//! and the record that was written because it held. The coordinator's part is [`crate::conditional`];
//! `tests/conditional_model` checks both.
//!
//! A store that is refilled after a loss has lost its promises, and may take records from others that they would have
//! kept out. So before it is compared with another node, that node *fences* all ballots up to the highest clock of all
//! members: it takes none of them any more. A ballot whose promise was lost has been taken by then where the
//! comparison finds it, or it never will be.

use crate::version::Version;

/// What one replica knows of a key, as far as it decides which versions may come in. [`Version::ZERO`] stands for
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// The version of the stored record.
    pub stored: Version,
    /// The highest ballot that was promised and that no stored record has reached.
    pub promised: Version,
    /// The highest ballot that a lost store of the cluster may have promised: no ballot up to here is taken any more.
    pub fenced: Version,
    /// Up to where the partition's history is closed for everybody but repair.
    pub barred: Version,
}

/// A replica's judgement on a conditional write's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// The record is to be stored; it ends the promise.
    Store,
    /// The same record is stored already.
    Same,
    /// A newer ballot was promised, or a newer record is stored: nothing is done.
    Denied {
        /// The version that a new ballot must exceed.
        by: Version,
    },
}

impl KeyState {
    /// A key of which nothing is known.
    pub const EMPTY: Self =
        Self { stored: Version::ZERO, promised: Version::ZERO, fenced: Version::ZERO, barred: Version::ZERO };

    /// Judges a request to promise `ballot`.
    ///
    /// # Errors
    /// The version that a ballot must exceed here. A ballot is promised at most once, so a repeated request fails too.
    pub fn promise(self, ballot: Version) -> Result<(), Version> {
        let highest = self.stored.max(self.promised).max(self.fenced).max(self.barred);
        if ballot > highest { Ok(()) } else { Err(highest) }
    }

    /// Judges the record of a conditional write under `ballot`. A replica that was not asked for a promise takes it as
    /// well.
    pub fn accept(self, ballot: Version) -> Acceptance {
        if ballot == self.stored {
            return Acceptance::Same;
        }
        let is_denied =
            ballot < self.stored || self.is_bound(ballot) || ballot <= self.fenced || ballot <= self.barred;
        if is_denied {
            let by = self.stored.max(self.promised).max(self.fenced).max(self.barred);
            return Acceptance::Denied { by };
        }
        Acceptance::Store
    }

    /// Whether a promise keeps out the record of `version`, whoever sends it. The record of the promised ballot itself
    /// may come in.
    pub fn is_bound(self, version: Version) -> bool {
        version < self.promised
    }

    /// Whether the promise has no use any more, once a record of `version` is stored: newest wins keeps out everything
    /// below it.
    pub fn is_fulfilled_by(self, version: Version) -> bool {
        version >= self.promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(clock: u64) -> Version {
        Version::from_words(clock, 1)
    }

    /// A ballot must exceed everything that is known here.
    #[test]
    fn promises_only_above_all() {
        let fields: [fn(Version) -> KeyState; 4] = [
            |stored| KeyState { stored, ..KeyState::EMPTY },
            |promised| KeyState { promised, ..KeyState::EMPTY },
            |fenced| KeyState { fenced, ..KeyState::EMPTY },
            |barred| KeyState { barred, ..KeyState::EMPTY },
        ];
        for field in fields {
            let state = field(v(5));
            assert_eq!(state.promise(v(6)), Ok(()), "{state:?}");
            assert_eq!(state.promise(v(5)), Err(v(5)), "{state:?}");
            assert_eq!(state.promise(v(4)), Err(v(5)), "{state:?}");
        }
    }

    /// The promised ballot's own record comes in, and nothing below it, whoever sends it.
    #[test]
    fn a_promise_lets_in_its_own_record() {
        let state = KeyState { stored: v(2), promised: v(5), ..KeyState::EMPTY };
        assert_eq!(state.accept(v(5)), Acceptance::Store);
        assert_eq!(state.accept(v(6)), Acceptance::Store);
        assert_eq!(state.accept(v(4)), Acceptance::Denied { by: v(5) });
        assert_eq!(state.accept(v(2)), Acceptance::Same);
        assert!(state.is_bound(v(4)) && !state.is_bound(v(5)) && !state.is_bound(v(6)));
        assert!(state.is_fulfilled_by(v(5)) && !state.is_fulfilled_by(v(4)));
    }

    /// A fence ends ballots, and lets in everything else.
    #[test]
    fn a_fence_ends_ballots_only() {
        let state = KeyState { fenced: v(5), ..KeyState::EMPTY };
        assert!(!state.is_bound(v(4)));
        assert_eq!(state.accept(v(5)), Acceptance::Denied { by: v(5) });
        assert_eq!(state.accept(v(6)), Acceptance::Store);
    }
}
