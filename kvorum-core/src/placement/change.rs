//! The lists after a change of topology, from the lists before.
//!
//! As little as possible moves: a node that leaves is replaced by one other node in each prefix it was in; a
//! node that joins replaces one other in each prefix it comes into. Those nodes are chosen so that the shares
//! stay even.
//!
//! **Leave.** The leaver swaps places with a later node on the list, the one that holds the least of its
//! share. It does so again from its new place, until it stands last and is cut off.
//!
//! **Join.** The same in reverse. The joiner begins after the end of each list. Rank by rank it takes the
//! places of the nodes that hold the most of their share, until it has its own share of that rank. A node
//! that loses its place stands after the end. At each later rank that node or the node at the rank gets the
//! place, whichever holds less.
//!
//! Only partitions that have the joiner or leaver in the first `from` ranks change anything in these ranks.

use super::lists::{ByNode, Lists, Node, Table, nodes_of};
use super::score::Score;
use super::share::{Share, Shares};
use crate::token::Partition;
use crate::topology::{Member, NodeIndex, Topology};
use crate::version::NodeId;
use std::collections::BTreeMap;

/// The lists of `new` made from those of `old`; none when no member stays.
pub(super) fn place(lists: Lists, old: &Topology, new: &Topology) -> Option<Lists> {
    let kind = |member: &Member| (member.weight, member.zone.clone());
    let stays = |member: &Member, in_topology: &Topology| {
        let other = in_topology.index_of(member.id).and_then(|index| in_topology.member(index));
        other.is_some_and(|other| kind(other) == kind(member))
    };
    let mut nodes = nodes_of(&[old, new]);
    let indices: Vec<NodeIndex> = nodes.iter().map(|(index, _)| index).collect();
    let (olds, news) = indices.split_at_checked(old.members().len())?;
    let mut leaving = Vec::new();
    // By weight and zone: places that a joining member of the same kind takes over as they are.
    let mut vacant: BTreeMap<(u32, String), Vec<NodeIndex>> = BTreeMap::new();
    for (index, member) in olds.iter().zip(old.members()).filter(|(_, member)| !stays(member, new)) {
        leaving.push(*index);
        vacant.entry(kind(member)).or_default().push(*index);
    }
    if leaving.len() == olds.len() {
        return None;
    }
    let mut joining = Vec::new();
    for (index, member) in news.iter().zip(new.members()) {
        let weight = std::mem::take(&mut nodes[*index].weight);
        if stays(member, old) {
            continue;
        }
        match vacant.get_mut(&kind(member)).and_then(Vec::pop) {
            Some(place) => {
                nodes[place].id = member.id;
                leaving.retain(|other| *other != place);
            }
            None => joining.push((*index, weight)),
        }
    }
    let mut draft = Draft { nodes, lists };
    for node in leaving {
        draft.leave(node);
    }
    for (node, weight) in joining {
        draft.join(node, weight);
    }
    Some(draft.of(new))
}

/// Full lists of the nodes that have a weight.
struct Draft {
    nodes: ByNode<Node>,
    lists: Lists,
}

impl Draft {
    fn leave(&mut self, leaver: NodeIndex) {
        self.nodes[leaver].weight = 0;
        let shares = Shares::new(&self.nodes, self.lists.len());
        let zone_ranks = shares.zone_count();
        let mut held = Table::filled(0, self.nodes.len());
        for rank in 0..shares.node_count() {
            let share = shares.at(rank + 1);
            let mut holes = Vec::new();
            for (partition, list) in self.lists.iter() {
                match list.get(rank) {
                    Some(node) if *node == leaver => holes.push(partition),
                    Some(node) => held[*node] += 1,
                    None => {}
                }
            }
            for partition in holes {
                let Some(place) = self.successor(partition, rank, zone_ranks, &share, &held) else {
                    continue;
                };
                let list = &mut self.lists[partition];
                if let Some(node) = list.get(place) {
                    held[*node] += 1;
                }
                list.swap(rank, place);
            }
        }
        for list in self.lists.values_mut() {
            list.pop();
        }
    }

    /// The rank of the node that gets the leaver's place at `rank`.
    ///
    /// Within the ranks that are in different zones, it is one of these ranks, or a node in the zone that
    /// they now lack.
    fn successor(
        &self,
        partition: Partition,
        rank: usize,
        zone_ranks: usize,
        share: &Share,
        held: &ByNode<u64>,
    ) -> Option<usize> {
        let list = &self.lists[partition];
        let lacking = (rank < zone_ranks).then(|| self.zone_lacking(list, rank, zone_ranks)).flatten();
        let may = |place: usize, node: NodeIndex| {
            place < zone_ranks || lacking.is_none_or(|zone| self.nodes[node].zone == zone)
        };
        let behind = list.iter().copied().enumerate().skip(rank + 1);
        let emptier = |a: (usize, NodeIndex), b: (usize, NodeIndex)| {
            let is_fuller = share.is_fuller((a.1, held[a.1] + 1), (b.1, held[b.1] + 1));
            if is_fuller { b } else { a }
        };
        behind.filter(|(place, node)| may(*place, *node)).reduce(emptier).map(|(place, _)| place)
    }

    /// The one zone that is missing among the first `zone_ranks` places of the list, `rank` left out.
    fn zone_lacking(&self, list: &[NodeIndex], rank: usize, zone_ranks: usize) -> Option<u16> {
        let mut has: BTreeMap<u16, bool> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.weight > 0) {
            has.insert(node.zone, false);
        }
        for (_, node) in list.iter().take(zone_ranks).enumerate().filter(|(place, _)| *place != rank) {
            has.insert(self.nodes[*node].zone, true);
        }
        has.into_iter().find(|(_, has)| !has).map(|(zone, _)| zone)
    }

    fn join(&mut self, joiner: NodeIndex, weight: u32) {
        self.nodes[joiner].weight = weight;
        let shares = Shares::new(&self.nodes, self.lists.len());
        let mut liking: Vec<_> = (self.lists.iter())
            .map(|(partition, _)| (Score::of(&self.nodes[joiner], partition), partition))
            .collect();
        liking.sort_by(|(a, _), (b, _)| a.cmp(b));
        for list in self.lists.values_mut() {
            list.push(joiner);
        }
        let mut held = Table::filled(0, self.nodes.len());
        let last = shares.node_count() - 1;
        for rank in 0..last {
            let share = shares.at(rank + 1);
            let in_zones = rank < shares.zone_count();
            self.join_rank(joiner, &liking, rank, in_zones, &share, &mut held);
        }
    }

    /// Decides which node of each list stands at `rank`: the node there, or the one after the end.
    fn join_rank(
        &mut self,
        joiner: NodeIndex,
        liking: &[(Score, Partition)],
        rank: usize,
        in_zones: bool,
        share: &Share,
        held: &mut ByNode<u64>,
    ) {
        let nodes = &self.nodes;
        // For each node the partitions where the joiner may take its place, the one where the joiner scores
        // best last.
        let mut offers: ByNode<Vec<Partition>> = Table::filled(Vec::new(), nodes.len());
        let mut undecided = Vec::new();
        for (_, partition) in liking {
            let list = &mut self.lists[*partition];
            let Some((behind, list)) = list.split_last_mut() else { continue };
            let Some((at, before)) = list.get_mut(..=rank).and_then(|list| list.split_last_mut()) else {
                continue;
            };
            let may = |node: NodeIndex| {
                !in_zones || before.iter().all(|other| nodes[*other].zone != nodes[node].zone)
            };
            match (may(*at), may(*behind)) {
                (true, true) if *behind != joiner => {
                    undecided.push(*partition);
                    continue;
                }
                (true, true) => offers[*at].push(*partition),
                (true, false) => {}
                (false, _) => std::mem::swap(at, behind),
            }
            held[*at] += 1;
        }
        for partition in undecided {
            let Some((behind, list)) = self.lists[partition].split_last_mut() else { continue };
            let Some(at) = list.get_mut(rank) else { continue };
            if share.is_fuller((*at, held[*at] + 1), (*behind, held[*behind] + 1)) {
                std::mem::swap(at, behind);
            }
            held[*at] += 1;
        }
        while held[joiner] < share.rounded(joiner) {
            let offering = offers.iter().filter(|(_, offers)| !offers.is_empty()).map(|(node, _)| node);
            let fuller = |a, b| if share.is_fuller((b, held[b]), (a, held[a])) { b } else { a };
            let Some(node) = offering.reduce(fuller) else { break };
            let Some(partition) = offers[node].pop() else { break };
            let list = &mut self.lists[partition];
            let end = list.len().saturating_sub(1);
            list.swap(rank, end);
            held[node] -= 1;
            held[joiner] += 1;
        }
    }

    /// The lists with the indices of `topology`.
    fn of(self, topology: &Topology) -> Lists {
        let index = |id: NodeId| topology.index_of(id).unwrap_or(NodeIndex(u16::MAX));
        let indices: ByNode<NodeIndex> = Table::new(self.nodes.values().map(|node| index(node.id)).collect());
        let list = |list: &Vec<NodeIndex>| list.iter().map(|node| indices[*node]).collect();
        Table::new(self.lists.values().map(list).collect())
    }
}
