//! Shares: how many partitions each node should hold at each `from`.
//!
//! Shares are in proportion to the weights, within what is possible: a node holds a partition once, and while
//! there is a zone without a copy, a zone holds a partition once. The others take, in proportion, the part
//! that a full node or zone cannot take.

use super::lists::{ByNode, Node, Table};
use crate::topology::NodeIndex;

/// Shares are counted in units of 2^-16 partitions, so that rounding them is left to the end.
const SHARE_BITS: u32 = 16;

/// The bits after the point of a level, the share per weight. A weight is below 2^32, so that one step of the
/// level moves a node's share by one unit at most.
const LEVEL_BITS: u32 = 32;

/// The fair share of each node at each `from`.
pub(super) struct Shares {
    nodes: ByNode<Node>,
    /// By number of zone; 0 for a zone without a node.
    zone_weights: Vec<u64>,
    /// The units of one copy of everything: a partition's units times the number of partitions.
    whole: u64,
    /// The shares when every zone has one copy of everything.
    in_every_zone: Vec<u64>,
}

/// The partitions that each node should hold within the first `from` ranks.
pub(super) struct Share(ByNode<u64>);

impl Shares {
    /// The shares of those `nodes` that have a weight.
    pub(super) fn new(nodes: &ByNode<Node>, partition_count: usize) -> Self {
        let zone_count = nodes.values().map(|node| usize::from(node.zone) + 1).max().unwrap_or_default();
        let mut zone_weights = vec![0; zone_count];
        for node in nodes.values() {
            if let Some(weight) = zone_weights.get_mut(usize::from(node.zone)) {
                *weight += u64::from(node.weight);
            }
        }
        let whole = (partition_count as u64) << SHARE_BITS;
        let mut shares = Self { nodes: nodes.clone(), zone_weights, whole, in_every_zone: Vec::new() };
        shares.in_every_zone = shares.over_zones(shares.zone_count());
        shares
    }

    /// How many zones have a node: as many first ranks of a list are in different zones.
    pub(super) fn zone_count(&self) -> usize {
        self.zone_weights.iter().filter(|weight| **weight > 0).count()
    }

    /// How many nodes have a weight, and so how many ranks a list has.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.values().filter(|node| node.weight > 0).count()
    }

    /// The shares of the first `from` ranks.
    pub(super) fn at(&self, from: usize) -> Share {
        Share(Table::new(if from <= self.zone_count() {
            self.over_zones(from)
        } else {
            self.over_nodes(from)
        }))
    }

    /// No zone holds a partition twice: zones are filled to one level, and each divides its part among its
    /// nodes.
    fn over_zones(&self, from: usize) -> Vec<u64> {
        let zone = |weight: u64, level| scaled(weight, level).min(self.whole);
        let level = level_of(self.whole * from as u64, |level| {
            self.zone_weights.iter().map(|weight| zone(*weight, level)).sum()
        });
        let part = |node: &Node| {
            let weight = self.zone_weights.get(usize::from(node.zone)).copied().unwrap_or_default().max(1);
            part_of(zone(weight, level), u64::from(node.weight), weight)
        };
        self.nodes.values().map(part).collect()
    }

    /// Every zone has its copy: all nodes are filled to one level, unless they hold more already.
    fn over_nodes(&self, from: usize) -> Vec<u64> {
        let fill = |level: u64| {
            let floors = self.nodes.values().zip(&self.in_every_zone);
            floors.map(move |(node, floor)| scaled(u64::from(node.weight), level).clamp(*floor, self.whole))
        };
        fill(level_of(self.whole * from as u64, |level| fill(level).sum())).collect()
    }
}

impl Share {
    /// The share of each node in whole partitions, rounded down.
    pub(super) fn quotas(&self) -> ByNode<u64> {
        Table::new(self.0.values().map(|units| units >> SHARE_BITS).collect())
    }

    /// The share of one node in whole partitions, rounded to the nearest.
    pub(super) fn rounded(&self, node: NodeIndex) -> u64 {
        (self.0[node] + (1 << (SHARE_BITS - 1))) >> SHARE_BITS
    }

    /// Whether `a` holding `held_a` partitions has more of its share than `b` holding `held_b`.
    pub(super) fn is_fuller(&self, (a, held_a): (NodeIndex, u64), (b, held_b): (NodeIndex, u64)) -> bool {
        u128::from(held_a) * u128::from(self.0[b]) > u128::from(held_b) * u128::from(self.0[a])
    }
}

fn scaled(weight: u64, level: u64) -> u64 {
    let units = (u128::from(weight) * u128::from(level)) >> LEVEL_BITS;
    u64::try_from(units).unwrap_or(u64::MAX)
}

fn part_of(whole: u64, weight: u64, of_weight: u64) -> u64 {
    let units = u128::from(whole) * u128::from(weight) / u128::from(of_weight);
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// The highest level at which `sum` is at most `total`; `sum` rises with the level.
fn level_of(total: u64, sum: impl Fn(u64) -> u64) -> u64 {
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = high - (high - low) / 2;
        if sum(middle) <= total {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::NodeId;

    /// Shares of 12 partitions, by weight and zone of each node: in proportion, but no node and (at first) no zone
    /// gets a partition twice.
    #[test]
    fn shares_are_proportional_within_what_is_possible() {
        let check = |nodes: &[(u32, u16)], from, expect: &[u64]| {
            let node = |&(weight, zone)| Node { id: NodeId(0), weight, zone };
            let nodes: ByNode<Node> = Table::new(nodes.iter().map(node).collect());
            let share = Shares::new(&nodes, 12).at(from);
            let shares: Vec<u64> = nodes.iter().map(|(index, _)| share.rounded(index)).collect();
            assert_eq!(shares, expect, "from {from}");
        };
        check(&[(1, 0), (1, 0), (1, 0)], 1, &[4, 4, 4]);
        check(&[(1, 0), (1, 0), (1, 0)], 3, &[12, 12, 12]);
        check(&[(1, 0), (2, 0), (3, 0)], 1, &[2, 4, 6]);
        check(&[(1, 0), (2, 0), (3, 0)], 2, &[4, 8, 12]);
        check(&[(1, 0), (1, 0), (10, 0)], 2, &[6, 6, 12]);
        check(&[(1, 0), (0, 0), (1, 0)], 1, &[6, 0, 6]);
        check(&[(u32::MAX, 0), (u32::MAX, 0), (1, 0)], 2, &[12, 12, 0]);
        // Zones of 1 and 3 nodes: even at first, then the single node has all, then the others fill up.
        let zones = [(1, 0), (1, 1), (1, 1), (1, 1)];
        check(&zones, 1, &[3, 3, 3, 3]);
        check(&zones, 2, &[12, 4, 4, 4]);
        check(&zones, 3, &[12, 8, 8, 8]);
        check(&zones, 4, &[12, 12, 12, 12]);
    }
}
