//! Scores: how well a node suits a partition.
//!
//! Weighted rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
//! 1998; with weights Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005. The score is
//! `weight / -ln(hash)`, the highest first: a node is the first of a partition with probability in proportion
//! to its weight.
//!
//! Computed in whole numbers: the logarithm of a float may differ in its last bit between processors and
//! libraries, and two nodes that order two scores differently would disagree about which nodes hold a key.

use super::lists::Node;
use crate::token::Partition;
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of scores: the bytes of `kvorum` and a 2.
const SCORE_SEED: u64 = 0x6b76_6f72_756d_0002;

/// The bits of a logarithm after its point. A million scores lie some 2^-20 apart; of equal ones the lower id
/// wins.
const FRACTION_BITS: u32 = 32;

/// The score of a node for a partition; the greater is the better.
#[derive(Debug, Clone, Copy)]
pub(super) struct Score {
    weight: u32,
    cost: u64,
}

impl Score {
    /// The score of `node` for `partition`: of the xxh3-64 of the node's id and the partition, 8 bytes each,
    /// little-endian.
    pub(super) fn of(node: &Node, partition: Partition) -> Self {
        let [id, place] = [node.id.0, u64::from(partition.0)].map(u64::to_le_bytes);
        let hash = xxh3_64_with_seed([id, place].as_flattened(), SCORE_SEED);
        Self { weight: node.weight, cost: cost(hash) }
    }

    /// Compares `weight / cost` of two scores, exactly.
    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        let mine = u128::from(self.weight) * u128::from(other.cost);
        mine.cmp(&(u128::from(other.weight) * u128::from(self.cost)))
    }
}

/// `-log2(hash / 2^64)` in units of 2^-32, rounded up: at least 1.
///
/// Squaring a number of 1 up to 2 doubles its logarithm: when the square reaches 2, the next bit is 1.
#[expect(clippy::cast_possible_truncation, reason = "a mantissa is halved to below 2^64")]
fn cost(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    let mut mantissa = hash << zeros;
    let mut log = u64::from(63 - zeros);
    for _ in 0..FRACTION_BITS {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let bit = (square >> 127) as u64;
        mantissa = (square >> (63 + bit)) as u64;
        log = (log << 1) | bit;
    }
    (64 << FRACTION_BITS) - log
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::NodeId;
    use proptest::prelude::*;

    /// The placement of running clusters depends on these values, computed by another implementation with 60 digits:
    /// they may never change.
    #[test]
    fn scores_are_golden() {
        let check = |id, partition, expect: u64| {
            let node = Node { id: NodeId(id), weight: 1, zone: 0 };
            assert_eq!(Score::of(&node, Partition(partition)).cost, expect, "{id} {partition}");
        };
        check(1, 0, 6_366_376_074);
        check(1, 1, 4_948_243_201);
        check(u64::MAX, 4095, 1_702_926_073);
    }

    /// Powers of two have whole logarithms; the ends are where they should be.
    #[test]
    fn costs_at_the_ends() {
        for bit in 0..64u32 {
            assert_eq!(cost(1 << bit), u64::from(64 - bit) << FRACTION_BITS);
        }
        assert_eq!(cost(0), cost(1));
        assert_eq!(cost(u64::MAX), 1);
    }

    proptest! {
        /// The logarithm agrees with the logarithm of floats.
        #[test]
        #[expect(clippy::cast_precision_loss, reason = "the tolerance is wider")]
        fn cost_is_a_logarithm(hash: u64) {
            let float = 64.0 - (hash.max(1) as f64).log2();
            let fixed = cost(hash) as f64 / f64::from(FRACTION_BITS).exp2();
            prop_assert!((float - fixed).abs() < 1e-8, "{float} {fixed}");
        }
    }
}
