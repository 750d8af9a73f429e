//! The lists of a new cluster: rank by rank, the best scores within the shares.
//!
//! By scores alone the most loaded of 100 nodes would be first for 1.4 times its share of 4,096 partitions.
//! So no node gets more of a rank than its share: a partition takes the best of its nodes that still has
//! room. When none has room, other partitions exchange nodes along a chain that ends at a node with room (an
//! augmenting path, as in bipartite matching).
//!
//! Quotas begin rounded down and are raised by one for all nodes when no such chain is found. So no node is
//! far below its share either: the next change would fill up such a node, at the wrong ranks.

use super::lists::{ByNode, ByPartition, Lists, Node, Table};
use super::score::Score;
use super::share::Shares;
use crate::token::Partition;
use crate::topology::NodeIndex;
use std::collections::VecDeque;

/// How far the first partition to choose moves on with each rank: the golden section of 2^16. The last
/// partitions to choose get the nodes that are left, so no partition should be among them at many ranks.
const TURN: usize = 40_503;

/// The lists of `nodes`, the best node first.
pub(super) fn place(nodes: ByNode<Node>, partition_bits: u8) -> Lists {
    let mut draft = Draft::scored(nodes, partition_bits);
    for rank in 0..draft.nodes.len() {
        draft.fill(rank);
    }
    draft.lists
}

/// Lists that are fixed up to a rank; after it come the other nodes, the best score first.
struct Draft {
    nodes: ByNode<Node>,
    shares: Shares,
    lists: Lists,
    /// The zones of the fixed part of each list, by number of zone.
    zones: ByPartition<Vec<bool>>,
    /// The number of first ranks of a list that are in different zones.
    zone_ranks: usize,
    /// How many partitions each node holds so far.
    held: ByNode<u64>,
    /// How many partitions each node may hold up to the rank that is being filled.
    quotas: ByNode<u64>,
    /// For each node, the partitions that have it at the rank that is being filled.
    taken: ByNode<Vec<Partition>>,
}

impl Draft {
    fn scored(nodes: ByNode<Node>, partition_bits: u8) -> Self {
        let list = |partition| {
            let mut scored: Vec<_> =
                nodes.iter().map(|(index, node)| (Score::of(node, partition), index)).collect();
            // Stable, and nodes come by rising id: of equal scores the lower id wins.
            scored.sort_by(|(a, _), (b, _)| b.cmp(a));
            scored.into_iter().map(|(_, index)| index).collect()
        };
        let lists: Lists = Table::new(Partition::all(partition_bits).map(list).collect());
        let shares = Shares::new(&nodes, lists.len());
        let zone_ranks = shares.zone_count();
        let count = nodes.len();
        Self {
            zones: Table::filled(vec![false; zone_ranks], lists.len()),
            zone_ranks,
            held: Table::filled(0, count),
            quotas: Table::filled(0, count),
            taken: Table::filled(Vec::new(), count),
            nodes,
            shares,
            lists,
        }
    }

    /// Chooses the node at `rank` of every list.
    fn fill(&mut self, rank: usize) {
        self.quotas = self.shares.at(rank + 1).quotas();
        self.taken.values_mut().for_each(Vec::clear);
        let count = self.lists.len();
        let order: Vec<Partition> = self.lists.iter().map(|(partition, _)| partition).collect();
        for partition in order.iter().cycle().skip(rank * TURN % count).take(count) {
            while !self.settle(*partition, rank) {
                self.quotas.values_mut().for_each(|quota| *quota += 1);
            }
        }
    }

    /// Gives `partition` a node at `rank`. False when no node that may stand there can be freed.
    fn settle(&mut self, partition: Partition, rank: usize) -> bool {
        let roomy = self.open(partition, rank, None).find(|node| self.has_room(*node));
        if let Some(node) = roomy {
            self.take(partition, rank, node);
            return true;
        }
        let Some((givers, mut node)) = self.search(partition, rank) else { return false };
        // Along the chain from its end: each partition takes the node that was freed, and frees the one it had.
        while let Some(giver) = givers[node] {
            let freed = self.current(giver, rank).filter(|_| giver != partition);
            if let Some(freed) = freed {
                self.give_up(giver, freed);
            }
            self.take(giver, rank, node);
            let Some(freed) = freed else { break };
            node = freed;
        }
        true
    }

    /// Searches, breadth first, for a chain of partitions that could change nodes to make room for `partition`.
    ///
    /// Returns the node with room at the chain's end, and for each node that was seen the partition that asks
    /// for it.
    fn search(&self, partition: Partition, rank: usize) -> Option<(ByNode<Option<Partition>>, NodeIndex)> {
        let mut givers = Table::filled(None, self.nodes.len());
        let mut queue = VecDeque::new();
        for node in self.open(partition, rank, None) {
            givers[node] = Some(partition);
            queue.push_back(node);
        }
        while let Some(full) = queue.pop_front() {
            for giver in &self.taken[full] {
                for node in self.open(*giver, rank, Some(full)) {
                    if givers[node].is_some() {
                        continue;
                    }
                    givers[node] = Some(*giver);
                    if self.has_room(node) {
                        return Some((givers, node));
                    }
                    queue.push_back(node);
                }
            }
        }
        None
    }

    /// The nodes that may stand at `rank` of `partition`, the best first: not on the fixed part of its list,
    /// and in a zone that is not on it while there is one. `instead` names the node that stands there now and
    /// would be replaced.
    fn open(
        &self,
        partition: Partition,
        rank: usize,
        instead: Option<NodeIndex>,
    ) -> impl Iterator<Item = NodeIndex> {
        let zone = |node: NodeIndex| usize::from(self.nodes[node].zone);
        let zones = &self.zones[partition];
        let freed = instead.map(zone);
        let is_open = move |node: NodeIndex| {
            rank >= self.zone_ranks || freed == Some(zone(node)) || zones.get(zone(node)) == Some(&false)
        };
        let settled = rank + usize::from(instead.is_some());
        self.lists[partition].iter().skip(settled).copied().filter(move |node| is_open(*node))
    }

    fn current(&self, partition: Partition, rank: usize) -> Option<NodeIndex> {
        self.lists[partition].get(rank).copied()
    }

    fn has_room(&self, node: NodeIndex) -> bool {
        self.held[node] < self.quotas[node]
    }

    /// Fixes `node`, which is at `rank` or after it, at `rank` of `partition`.
    fn take(&mut self, partition: Partition, rank: usize, node: NodeIndex) {
        let rest = self.lists[partition].get_mut(rank..).unwrap_or_default();
        let place = rest.iter().position(|other| *other == node).unwrap_or_default();
        // The nodes that are passed over keep their order, so that the rest stays sorted, the best first.
        if let Some(passed) = rest.get_mut(..=place) {
            passed.rotate_right(1);
        }
        self.mark(partition, node, true);
        self.held[node] += 1;
        self.taken[node].push(partition);
    }

    /// Undoes [`Draft::take`].
    fn give_up(&mut self, partition: Partition, node: NodeIndex) {
        self.mark(partition, node, false);
        self.held[node] -= 1;
        self.taken[node].retain(|other| *other != partition);
    }

    fn mark(&mut self, partition: Partition, node: NodeIndex, used: bool) {
        let zone = usize::from(self.nodes[node].zone);
        if let Some(mark) = self.zones[partition].get_mut(zone) {
            *mark = used;
        }
    }
}
