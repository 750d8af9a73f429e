//! Identities: which cluster a store belongs to, which store a node has, and which run of the node's process uses it.

use crate::version::NodeId;
use std::fmt;
use std::num::NonZeroU128;

/// The random id of a cluster, made once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(NonZeroU128);

impl ClusterId {
    /// Stands in for the id of a cluster that has none yet, where a configuration is only shown: a cluster of one node never
    /// makes one.
    pub const STAND_IN: Self = Self(NonZeroU128::MAX);

    /// The id `id`; none for 0, which stands for "no id yet" on the wire.
    pub fn new(id: u128) -> Option<Self> {
        NonZeroU128::new(id).map(Self)
    }

    /// The id as a number.
    pub fn get(self) -> u128 {
        self.0.get()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One run of a node's process on its store.
///
/// Runs of one store are ordered by number. Two runs of the same number with different nonces come from two copies of
/// one directory: see [`PastRuns`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Starts of the store so far, this one among them.
    pub number: u64,
    /// A random number, drawn at the start.
    pub nonce: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.nonce)
    }
}

/// The earlier runs that a node's store comes from: those of the store itself, and the last one of each store before it that
/// other nodes remembered.
///
/// A number shows no more than how often a store was started. An older copy that is started a few times while no node answers has
/// a number that no node remembers yet, and only its earlier runs show that it left out what others saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PastRuns {
    /// Oldest first.
    runs: Vec<(u128, Run)>,
}

impl PastRuns {
    /// The most runs that are kept. The oldest are forgotten first; a node that saw one of those is believed.
    pub const LEN_MAX: usize = 256;
    /// The most runs that are told to other nodes.
    pub const TOLD_MAX: usize = 24;

    /// The runs `runs`, oldest first.
    pub fn new(runs: impl IntoIterator<Item = (u128, Run)>) -> Self {
        Self { runs: runs.into_iter().collect() }
    }

    /// Adds the run `run` of `store`, and returns whether it is new. `own` is the store that the node has now: for each store before
    /// it, only the latest run is kept.
    pub fn note(&mut self, own: u128, store: u128, run: Run) -> bool {
        if run == Run::default() || self.runs.contains(&(store, run)) {
            return false;
        }
        if store != own {
            if self.knows_store(store, run) {
                return false;
            }
            self.runs.retain(|(known, _)| *known != store);
        }
        self.runs.push((store, run));
        while self.runs.len() > Self::LEN_MAX {
            let oldest = self.runs.iter().position(|(known, _)| *known == own).unwrap_or(0);
            self.runs.remove(oldest);
        }
        true
    }

    /// The runs, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u128, Run)> {
        self.runs.iter().copied()
    }

    /// The runs that other nodes are told, at most [`Self::TOLD_MAX`]: half of them of the stores before `own`, and half of `own`, the
    /// latest first.
    pub fn told(&self, own: u128) -> impl Iterator<Item = (u128, Run)> {
        let half = Self::TOLD_MAX / 2;
        let latest =
            move |is_own| self.runs.iter().rev().copied().filter(move |(store, _)| (*store == own) == is_own);
        latest(false).take(half).chain(latest(true).take(half))
    }

    /// Whether the store `own`, which is in the run `now` and has these earlier runs, does not come from the run `seen` of `store`. It
    /// is an older copy then, a second one, or a store from before `store`.
    pub fn deny(&self, (own, now): (u128, Run), (store, seen): (u128, Run)) -> bool {
        if (own, now) == (store, seen) || self.runs.contains(&(store, seen)) {
            return false;
        }
        if seen.number > now.number {
            return true;
        }
        if store != own {
            // A store of a release that kept no runs says nothing of the stores before it.
            return !self.runs.is_empty() && !self.knows_store(store, seen);
        }
        let is_listed = |(known, run): &(u128, Run)| *known == own && run.number == seen.number;
        now.number == seen.number || self.runs.iter().any(is_listed)
    }

    /// Whether `store`, seen in `seen` or later, is one of those before the present one.
    fn knows_store(&self, store: u128, seen: Run) -> bool {
        self.runs.iter().any(|(known, run)| *known == store && run.number >= seen.number)
    }
}

/// The store and the run that a node was seen with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSeen {
    /// The node.
    pub node: NodeId,
    /// The identity of its store.
    pub store: u128,
    /// The run.
    pub run: Run,
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u128 = 11;
    const BEFORE: u128 = 10;

    fn run(number: u64, nonce: u64) -> Run {
        Run { number, nonce }
    }

    fn past(runs: &[(u128, Run)]) -> PastRuns {
        let mut past = PastRuns::default();
        for (store, run) in runs {
            past.note(OWN, *store, *run);
        }
        past
    }

    /// A lower number is older, and so is another nonce under the same number. A higher number is, if an earlier run of that
    /// number had another nonce: the copy was started again.
    #[test]
    fn older_copies_are_denied() {
        let none = past(&[]);
        assert!(none.deny((OWN, run(3, 1)), (OWN, run(4, 1))));
        assert!(none.deny((OWN, run(4, 1)), (OWN, run(4, 2))));
        assert!(!none.deny((OWN, run(4, 1)), (OWN, run(4, 1))));
        assert!(!none.deny((OWN, run(5, 1)), (OWN, run(4, 2))), "a store of a release that kept no runs");
        let started_twice = past(&[(OWN, run(3, 1)), (OWN, run(4, 2)), (OWN, run(5, 3))]);
        assert!(started_twice.deny((OWN, run(6, 4)), (OWN, run(4, 1))));
        assert!(started_twice.deny((OWN, run(6, 4)), (OWN, run(5, 1))));
        assert!(!started_twice.deny((OWN, run(6, 4)), (OWN, run(4, 2))));
        assert!(!started_twice.deny((OWN, run(6, 4)), (OWN, run(2, 9))), "older than the runs that are kept");
    }

    /// What a store has heard of a run that it left out is no news when it is said again.
    #[test]
    fn what_was_heard_is_no_news() {
        let heard = past(&[(OWN, run(4, 2)), (OWN, run(4, 1)), (BEFORE, run(9, 9))]);
        for seen in [(OWN, run(4, 1)), (OWN, run(4, 2)), (BEFORE, run(9, 9)), (BEFORE, run(2, 5))] {
            assert!(!heard.deny((OWN, run(10, 3)), seen), "{seen:?}");
        }
    }

    /// An older store of a node whose store was replaced since is older, however often it was started.
    #[test]
    fn store_before_a_replacement_is_denied() {
        let older = past(&[(OWN, run(5, 1)), (OWN, run(6, 2)), (OWN, run(7, 3))]);
        assert!(older.deny((OWN, run(8, 4)), (12, run(6, 6))));
        assert!(
            past(&[(BEFORE, run(5, 5))]).deny((OWN, run(8, 4)), (BEFORE, run(6, 6))),
            "a later run than was heard of"
        );
        assert!(
            !past(&[]).deny((OWN, run(8, 4)), (BEFORE, run(6, 6))),
            "a store of a release that kept no runs"
        );
    }

    /// The runs are bounded, and told in part: the latest, and those of the stores before, which stay longest.
    #[test]
    fn runs_are_bounded() {
        let mut many = past(&[(BEFORE, run(1, 1))]);
        assert!((2..2000).all(|number| many.note(OWN, OWN, run(number, number))));
        let known = [(OWN, run(1999, 1999)), (OWN, Run::default()), (BEFORE, run(1, 2))];
        assert!(known.into_iter().all(|(store, run)| !many.note(OWN, store, run)));
        assert_eq!(many.iter().count(), PastRuns::LEN_MAX);
        assert_eq!(many.iter().next(), Some((BEFORE, run(1, 1))));
        let told: Vec<_> = many.told(OWN).collect();
        assert_eq!((told.len(), told[0], told[1]), (13, (BEFORE, run(1, 1)), (OWN, run(1999, 1999))));
        assert!((0..2000).all(|store| many.note(OWN, store + 20, run(1, 1))));
        assert_eq!(
            (many.iter().count(), many.told(OWN).count()),
            (PastRuns::LEN_MAX, PastRuns::TOLD_MAX / 2)
        );
    }
}
