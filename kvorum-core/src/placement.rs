//! Placement: which nodes hold a partition, first to last.
//!
//! Every partition has a **preference list** of all nodes; a key written to `from` nodes is on the first `from` of
//! its partition's list, so the replicas for `from` are a prefix of those for `from + 1`. A list is computed when
//! the topology changes and looked up after that.
//!
//! - `score`: how well a node suits a partition. The same on every machine, to the bit.
//! - `share`: how many partitions a node should hold at each `from`, by weight and zones.
//! - `initial`: the lists of a new cluster, rank by rank, the best scores within the shares.
//! - `change`: the lists after nodes left or joined, from the lists before, moving as little as possible.
//!
//! A placement that has seen changes depends on its history, not on its topology alone: nodes must agree on the
//! placement (or on the sequence of topologies), not just on the last topology. `docs/placement.md` has the figures.

mod change;
mod initial;
mod lists;
mod score;
mod share;

use crate::token::Partition;
use crate::topology::{NodeIndex, Topology};
use lists::Lists;
use std::fmt;

/// The preference list of every partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// [`Topology::hash`] of the topology that the indices belong to.
    topology: u64,
    partition_bits: u8,
    node_count: u16,
    /// The lists of all partitions one after the other, `node_count` entries each.
    lists: Vec<NodeIndex>,
    /// See [`Self::hash`].
    hash: u64,
}

/// Why a placement cannot be changed from one topology to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeError {
    /// The placement was not made for the topology that was given as the old one.
    OtherTopology {
        /// The hash of the topology that the placement is of.
        placement: u64,
        /// The hash of the topology that was given.
        given: u64,
    },
    /// The number of partitions is fixed when a cluster is created.
    PartitionBits {
        /// The width before, in bits.
        old: u8,
        /// The width asked for, in bits.
        new: u8,
    },
}

impl Placement {
    /// The placement of a new cluster. Depends on nothing but the topology.
    pub fn initial(topology: &Topology) -> Self {
        let nodes = lists::nodes_of(&[topology]);
        Self::of_lists(topology, initial::place(nodes, topology.partition_bits()))
    }

    /// The placement after the members of `old` became those of `new`, made from this placement, which
    /// belongs to `old`.
    ///
    /// First a member that joins takes over the places of one that leaves, if weight and zone are the same.
    /// Then the other leavers leave one by one, and the other joiners join one by one, by rising id. A member
    /// whose weight or zone changed leaves and joins. A different URL moves nothing. When no member stays,
    /// this is [`Placement::initial`].
    ///
    /// # Errors
    /// [`ChangeError`] when this placement is not of `old`, or the number of partitions differs: the caller is at
    /// fault, and this placement is still good.
    pub fn change(&self, old: &Topology, new: &Topology) -> Result<Self, ChangeError> {
        if self.topology != old.hash() {
            return Err(ChangeError::OtherTopology { placement: self.topology, given: old.hash() });
        }
        if old.partition_bits() != new.partition_bits() {
            return Err(ChangeError::PartitionBits { old: old.partition_bits(), new: new.partition_bits() });
        }
        let rows = self.lists.chunks_exact(usize::from(self.node_count)).map(<[NodeIndex]>::to_vec).collect();
        match change::place(Lists::new(rows), old, new) {
            Some(lists) => Ok(Self::of_lists(new, lists)),
            None => Ok(Self::initial(new)),
        }
    }

    fn of_lists(topology: &Topology, lists: Lists) -> Self {
        let mut placement = Self {
            topology: topology.hash(),
            partition_bits: topology.partition_bits(),
            node_count: topology.node_count(),
            lists: lists.into_flat(),
            hash: 0,
        };
        placement.hash = placement.hashed();
        placement
    }

    /// A number that differs between placements: a configuration names its placement by it.
    ///
    /// xxh3-64, seed 0, of: the topology's hash (8 bytes), partition bits (1), node count (2), and the lists of all
    /// partitions, 2 bytes for each node. Numbers are little-endian.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    fn hashed(&self) -> u64 {
        let mut bytes = self.topology.to_le_bytes().to_vec();
        bytes.push(self.partition_bits);
        bytes.extend(self.node_count.to_le_bytes());
        bytes.extend(self.lists.iter().flat_map(|node| node.0.to_le_bytes()));
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// How many bits of a token name its partition.
    pub fn partition_bits(&self) -> u8 {
        self.partition_bits
    }

    /// All nodes in the order in which they hold `partition`; empty for a partition that does not exist.
    pub fn preference_list(&self, partition: Partition) -> &[NodeIndex] {
        let width = usize::from(self.node_count);
        let begin = usize::from(partition.0) * width;
        self.lists.get(begin..begin + width).unwrap_or_default()
    }

    /// The nodes that hold a key of `partition` written to `from` nodes: the first `from` of its list, or all.
    pub fn replicas(&self, partition: Partition, from: u16) -> &[NodeIndex] {
        let list = self.preference_list(partition);
        list.get(..usize::from(from)).unwrap_or(list)
    }

    /// The place of `node` on the list of `partition`, from 0; none when either does not exist.
    ///
    /// A search along the list: an inverse table would double the memory to save some ten nanoseconds.
    pub fn rank_of(&self, partition: Partition, node: NodeIndex) -> Option<u16> {
        let rank = self.preference_list(partition).iter().position(|other| *other == node)?;
        u16::try_from(rank).ok()
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherTopology { placement, given } => {
                write!(f, "the placement is of topology {placement:016x}, not of {given:016x}")
            }
            Self::PartitionBits { old, new } => {
                write!(
                    f,
                    "partitions of {old} bits cannot become {new} bits wide; the width is fixed for life"
                )
            }
        }
    }
}

impl std::error::Error for ChangeError {}

#[cfg(test)]
mod tests;
