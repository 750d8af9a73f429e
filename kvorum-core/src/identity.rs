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
/// one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Starts of the store so far, this one among them.
    pub number: u64,
    /// A random number, drawn at the start.
    pub nonce: u64,
}

impl Run {
    /// Whether a store that is in this run must be an older copy, or a second one, of the store that was seen in `seen`.
    pub fn is_behind(self, seen: Self) -> bool {
        self.number < seen.number || (self.number == seen.number && self.nonce != seen.nonce)
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.nonce)
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

    /// A lower number counts as older, and so does another nonce under the same number; a higher number never does.
    #[test]
    fn runs_behind() {
        let run = |number, nonce| Run { number, nonce };
        assert!(run(3, 1).is_behind(run(4, 1)));
        assert!(run(4, 1).is_behind(run(4, 2)));
        assert!(!run(4, 1).is_behind(run(4, 1)));
        assert!(!run(5, 1).is_behind(run(4, 2)));
        assert!(!run(1, 9).is_behind(Run::default()));
    }
}
