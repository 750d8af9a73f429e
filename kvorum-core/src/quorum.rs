//! Quorums: how many of how many replicas must confirm, and when the outcome is known.

use crate::version::Version;
use std::fmt;

/// This is `ACK` of `FROM`, validated once: `1 <= ack <= from <= nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quorum {
    ack: u16,
    from: u16,
}

/// This is how many replicas a key has where a request does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationFactor {
    /// So many, capped by the size of the cluster.
    Count(u16),
    /// Every node.
    All,
}

/// This says why a pair is not a quorum for this cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuorumError {
    /// At least one replica must confirm.
    AckZero,
    /// No more can confirm than hold the key.
    AckAboveFrom {
        /// Confirmations asked for.
        ack: u16,
        /// Replicas asked for.
        from: u16,
    },
    /// No more can hold the key than there are nodes.
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

    /// The quorum of a request that names none: a majority of `factor` replicas, capped by the cluster's size.
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

/// This says what is known of a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Enough confirmed.
    Reached,
    /// So many failed that enough can no longer confirm.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// This counts the answers of one request's replicas. A plain value: it neither sends nor waits.
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

    /// What is known by now. Once it is not [`Verdict::Pending`], it does not change.
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

/// This says what a coordinator does next about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteVerdict {
    /// Enough replicas took the record: the write is acknowledged.
    Reached,
    /// Enough replicas confirm, but too few of them took the record, because they hold something newer: stamp again
    /// above it and write again.
    Superseded {
        /// The newest version that was met.
        by: Version,
    },
    /// Enough can no longer confirm. What was sent may still take effect.
    Unreachable,
    /// Not known yet.
    Pending,
}

/// This counts what the replicas made of one record. A plain value: it neither sends nor waits.
///
/// Stamping again is safe only while nobody can have read the record: a reader that saw it and then something newer
/// must not see it come back. A reader returns a record only when a quorum of replicas *accepted* it (each held it as
/// its newest at some time), so the record is stamped again only when the replicas that accepted it, or may have
/// without saying so, are too few for that. Where it cannot be told, the write ends as unknown.
#[derive(Debug, Clone, Copy)]
pub struct WriteTally {
    quorum: Quorum,
    stored: u16,
    superseded: u16,
    refused: u16,
    unknown: u16,
    newest: Version,
}

impl WriteTally {
    /// A count with no answer yet.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, stored: 0, superseded: 0, refused: 0, unknown: 0, newest: Version::ZERO }
    }

    /// Counts a replica that took the record.
    pub fn stored(&mut self) {
        self.stored += 1;
    }

    /// Counts a replica that holds something newer.
    pub fn superseded(&mut self, by: Version) {
        self.superseded += 1;
        self.newest = self.newest.max(by);
    }

    /// Counts a replica that surely did not take the record.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// Counts a replica that was asked and did not answer: it may have taken the record.
    pub fn unknown(&mut self) {
        self.unknown += 1;
    }

    /// How many replicas took the record.
    pub fn confirmed(&self) -> u16 {
        self.stored
    }

    /// How many replicas may hold the record, or have held it. One that refused it can have got it from a reader that met
    /// it elsewhere; one that holds something newer cannot.
    fn holders_max(&self, pending: u16) -> u16 {
        let met = self.stored + pending + self.unknown;
        if met == 0 { 0 } else { met + self.refused }
    }

    /// What is known by now.
    pub fn verdict(&self) -> WriteVerdict {
        let ack = self.quorum.ack;
        let answered = self.stored + self.superseded + self.refused + self.unknown;
        let pending = self.quorum.from.saturating_sub(answered);
        if self.stored >= ack {
            WriteVerdict::Reached
        } else if self.stored + self.superseded + pending < ack {
            WriteVerdict::Unreachable
        } else if self.holders_max(pending) >= ack {
            if pending == 0 { WriteVerdict::Unreachable } else { WriteVerdict::Pending }
        } else {
            WriteVerdict::Superseded { by: self.newest }
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

    /// The cases of a write at 2/3, as stories: stored, superseded, refused, unknown.
    #[test]
    fn write_verdicts() {
        let by = Version::from_words(9, 9);
        let check = |quorum: (u16, u16), answers: &str, expect: WriteVerdict| {
            let quorum = Quorum::new(quorum.0, quorum.1, quorum.1).unwrap();
            let mut tally = WriteTally::new(quorum);
            for answer in answers.chars() {
                match answer {
                    'S' => tally.stored(),
                    'N' => tally.superseded(by),
                    'R' => tally.refused(),
                    _ => tally.unknown(),
                }
            }
            assert_eq!(tally.verdict(), expect, "{quorum} {answers}");
        };
        let newer = WriteVerdict::Superseded { by };
        check((2, 3), "S", WriteVerdict::Pending);
        check((2, 3), "SS", WriteVerdict::Reached);
        check((2, 3), "SN", WriteVerdict::Pending);
        check((2, 3), "SNS", WriteVerdict::Reached);
        check((2, 3), "SNN", newer);
        check((2, 3), "NN", newer);
        check((2, 3), "NRN", newer);
        // A reader that met it on the first may have written it back to the third, which the writer did not reach.
        check((2, 3), "SNR", WriteVerdict::Unreachable);
        check((2, 3), "NRS", WriteVerdict::Unreachable);
        check((2, 3), "NR", WriteVerdict::Pending);
        // The third may have taken it, and a reader may have seen it on two.
        check((2, 3), "SN?", WriteVerdict::Unreachable);
        check((2, 3), "S?", WriteVerdict::Pending);
        check((2, 3), "S??", WriteVerdict::Unreachable);
        check((2, 3), "RR", WriteVerdict::Unreachable);
        check((3, 3), "SSN", newer);
        check((3, 3), "N", newer);
        check((3, 3), "R", WriteVerdict::Unreachable);
        check((1, 1), "N", newer);
        check((1, 3), "NS", WriteVerdict::Reached);
        check((1, 3), "NN", WriteVerdict::Pending);
        check((1, 3), "NNN", newer);
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
