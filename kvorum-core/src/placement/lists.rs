//! The working data of a placement: nodes with their weights and zones, and lists while they change.

use crate::token::Partition;
use crate::topology::{Member, NodeIndex, Topology};
use crate::version::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A node with the properties that placement needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) id: NodeId,
    /// 0 while the node is on no list: it has left, or has not joined yet.
    pub(super) weight: u32,
    /// A number for the zone's name; it only tells which nodes share a zone.
    pub(super) zone: u16,
}

/// A table with an entry for each node or each partition of one computation.
///
/// Its indices are made from the same nodes and bits as its entries, and never leave the computation.
#[derive(Debug, Clone)]
pub(super) struct Table<I, T> {
    entries: Vec<T>,
    index: PhantomData<I>,
}

pub(super) type ByNode<T> = Table<NodeIndex, T>;
pub(super) type ByPartition<T> = Table<Partition, T>;

/// The list of each partition.
pub(super) type Lists = ByPartition<Vec<NodeIndex>>;

/// The index of a table.
pub(super) trait Place: Copy {
    fn place(self) -> usize;
    fn at(place: u16) -> Self;
}

impl Place for NodeIndex {
    fn place(self) -> usize {
        usize::from(self.0)
    }

    fn at(place: u16) -> Self {
        Self(place)
    }
}

impl Place for Partition {
    fn place(self) -> usize {
        usize::from(self.0)
    }

    fn at(place: u16) -> Self {
        Self(place)
    }
}

impl<I: Place, T> Table<I, T> {
    pub(super) fn new(entries: Vec<T>) -> Self {
        Self { entries, index: PhantomData }
    }

    pub(super) fn filled(value: T, count: usize) -> Self
    where
        T: Clone,
    {
        Self::new(vec![value; count])
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        (0..=u16::MAX).map(I::at).zip(&self.entries)
    }
}

#[expect(clippy::indexing_slicing, reason = "indices are of the computation that made the table")]
impl<I: Place, T> Index<I> for Table<I, T> {
    type Output = T;

    fn index(&self, index: I) -> &T {
        &self.entries[index.place()]
    }
}

#[expect(clippy::indexing_slicing, reason = "indices are of the computation that made the table")]
impl<I: Place, T> IndexMut<I> for Table<I, T> {
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.entries[index.place()]
    }
}

impl Lists {
    pub(super) fn into_flat(self) -> Vec<NodeIndex> {
        self.entries.concat()
    }
}

/// The members of the topologies, one topology after the other, with zones numbered over all of them.
pub(super) fn nodes_of(topologies: &[&Topology]) -> ByNode<Node> {
    let members = || topologies.iter().flat_map(|topology| topology.members());
    let names: BTreeSet<&str> = members().map(|member| member.zone.as_str()).collect();
    let zones: BTreeMap<&str, u16> = names.into_iter().zip(0..).collect();
    let node = |member: &Member| Node {
        id: member.id,
        weight: member.weight,
        zone: zones.get(member.zone.as_str()).copied().unwrap_or_default(),
    };
    Table::new(members().map(node).collect())
}
