//! Quorums: how many of how many replicas must confirm, and when the outcome is known.

use std::fmt;

/// `ACK` of `FROM`, validated once: `1 <= ack <= from <= nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quorum {
    ack: u16,
    from: u16,
}

/// The replica count of a key when the request names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationFactor {
    /// A fixed number, capped by the size of the cluster.
    Count(u16),
    /// Every node.
    All,
}

/// Why a pair is not a quorum for this cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuorumError {
    /// At least one replica must confirm.
    AckZero,
    /// `ack` is above `from`: only replicas that hold the key can confirm.
    AckAboveFrom {
        /// Confirmations asked for.
        ack: u16,
        /// Replicas asked for.
        from: u16,
    },
    /// `from` is above the number of nodes: every replica needs a node of its own.
    FromAboveNodes {
        /// Replicas asked for.
        from: u16,
        /// Nodes in the cluster.
        nodes: u16,
    },
}

impl Quorum {
    /// A quorum of `ack` out of `from` in a cluster of `nodes`.
    pub fn new(ack: u16, from: u16, nodes: u16) -> Result<Self, QuorumError> {
        if ack == 0 {
            return Err(QuorumError::AckZero);
        }
        if ack > from {
            return Err(QuorumError::AckAboveFrom { ack, from });
        }
        if from > nodes {
            return Err(QuorumError::FromAboveNodes { from, nodes });
        }
        Ok(Self { ack, from })
    }

    /// The quorum of a request that names none: a majority of `factor` replicas, capped by the cluster's
    /// size.
    pub fn default_for(factor: ReplicationFactor, nodes: u16) -> Self {
        let from = match factor {
            ReplicationFactor::Count(count) => count.clamp(1, nodes.max(1)),
            ReplicationFactor::All => nodes.max(1),
        };
        Self::majority_of(from)
    }

    /// A majority of `from` (at least 1) replicas.
    pub fn majority_of(from: u16) -> Self {
        let from = from.max(1);
        Self { ack: from / 2 + 1, from }
    }

    /// How many replicas must confirm.
    pub fn ack(self) -> u16 {
        self.ack
    }

    /// How many replicas hold the key.
    pub fn from(self) -> u16 {
        self.from
    }

    /// Whether any `ack` replicas of the one include one of any `ack` replicas of the other. The replicas of
    /// the smaller `from` are among those of the larger one.
    pub fn overlaps(self, other: Self) -> bool {
        self.ack + other.ack > self.from.max(other.from)
    }

    /// The fewest replicas that must have held a record before a read that overlaps with its write may return it.
    ///
    /// A read returns a record once its own `ack` replicas have held it (fewer only where the record has no more), and a
    /// read of `ack` replicas overlaps with this write from `FROM - ACK + 1` on.
    pub fn visible_from(self) -> u16 {
        self.from - self.ack + 1
    }
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ack, self.from)
    }
}

impl fmt::Display for QuorumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AckZero => write!(f, "ack is 0; at least 1 replica must confirm"),
            Self::AckAboveFrom { ack, from } => {
                write!(f, "ack {ack} is above from {from}; no more replicas can confirm than hold the key")
            }
            Self::FromAboveNodes { from, nodes } => {
                write!(f, "from {from} is above the number of nodes in the cluster, {nodes}")
            }
        }
    }
}

impl std::error::Error for QuorumError {}

/// The outcome of a quorum so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Enough confirmed.
    Reached,
    /// So many failed that `ack` can no longer confirm.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// A count of the answers of one request's replicas. A plain value: it neither sends nor waits.
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    quorum: Quorum,
    confirmed: u16,
    failed: u16,
}

impl Tally {
    /// A count with no answer yet.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, confirmed: 0, failed: 0 }
    }

    /// Counts a replica that confirmed.
    pub fn confirm(&mut self) {
        self.confirmed += 1;
    }

    /// Counts a replica that will not confirm.
    pub fn fail(&mut self) {
        self.failed += 1;
    }

    /// How many confirmed so far.
    pub fn confirmed(&self) -> u16 {
        self.confirmed
    }

    /// The outcome so far. Once it is not [`Verdict::Pending`], it does not change.
    pub fn verdict(&self) -> Verdict {
        if self.confirmed >= self.quorum.ack {
            Verdict::Reached
        } else if self.failed > self.quorum.from - self.quorum.ack {
            Verdict::Unreachable
        } else {
            Verdict::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The defaults that the contract lists.
    #[test]
    fn defaults_of_the_contract() {
        let check = |factor, nodes, expect: &str| {
            assert_eq!(Quorum::default_for(factor, nodes).to_string(), expect, "{factor:?} of {nodes}");
        };
        check(ReplicationFactor::Count(3), 1, "1/1");
        check(ReplicationFactor::Count(3), 2, "2/2");
        check(ReplicationFactor::Count(3), 3, "2/3");
        check(ReplicationFactor::Count(3), 30, "2/3");
        check(ReplicationFactor::All, 4, "3/4");
        check(ReplicationFactor::All, 5, "3/5");
    }

    /// Each rule of `1 <= ack <= from <= nodes` is named when it is broken.
    #[test]
    fn broken_rules_are_named() {
        assert_eq!(Quorum::new(0, 1, 3), Err(QuorumError::AckZero));
        assert_eq!(Quorum::new(2, 1, 3), Err(QuorumError::AckAboveFrom { ack: 2, from: 1 }));
        assert_eq!(Quorum::new(1, 4, 3), Err(QuorumError::FromAboveNodes { from: 4, nodes: 3 }));
        assert!(Quorum::new(3, 3, 3).is_ok());
    }

    proptest! {
        /// Goal: the verdict is right and final. Method: answers in any order; the verdict must be the one that
        /// counting by hand gives, and once known must not change.
        #[test]
        fn verdict_is_right_and_final(from in 1..8u16, ack in 1..8u16, answers in prop::collection::vec(any::<bool>(), 8)) {
            prop_assume!(ack <= from);
            let quorum = Quorum::new(ack, from, from)?;
            let mut tally = Tally::new(quorum);
            let mut known = Verdict::Pending;
            for &confirmed in answers.iter().take(usize::from(from)) {
                prop_assert_eq!(tally.verdict(), known);
                if confirmed { tally.confirm() } else { tally.fail() }
                if known == Verdict::Pending {
                    known = tally.verdict();
                }
            }
            let confirmations = answers.iter().take(usize::from(from)).filter(|c| **c).count();
            let expect = if confirmations >= usize::from(ack) { Verdict::Reached } else { Verdict::Unreachable };
            prop_assert_eq!(tally.verdict(), expect);
            prop_assert_eq!(known, expect);
        }
    }
}
