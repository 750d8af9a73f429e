//! Routing: which nodes a request writes to and reads from, in every phase.

use super::{Configuration, Phase, Side, Slot, Window};
use crate::placement::Placement;
use crate::token::Partition;
use crate::topology::TopologyError;
use std::fmt;

/// The lists of one partition, first to last; a request's replicas are the first `from` of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'r> {
    first: &'r [Slot],
    second: Option<&'r [Slot]>,
    reads: &'r [Slot],
}

impl<'r> Route<'r> {
    /// The route of a partition that one list places.
    pub fn single(list: &'r [Slot]) -> Self {
        Self { first: list, second: None, reads: list }
    }

    /// The route of a joint partition.
    pub fn joint(old: &'r [Slot], new: &'r [Slot], reads: Side) -> Self {
        let reads = match reads {
            Side::Old => old,
            Side::New => new,
        };
        Self { first: old, second: Some(new), reads }
    }

    /// The same for requests of `from` replicas. Two equal lists become one.
    #[must_use]
    pub fn of(self, from: u16) -> Self {
        let cut = |list: &'r [Slot]| list.get(..usize::from(from)).unwrap_or(list);
        let first = cut(self.first);
        Self { first, second: self.second.map(cut).filter(|second| *second != first), reads: cut(self.reads) }
    }

    /// Whether two lists are written.
    pub fn is_joint(self) -> bool {
        self.second.is_some()
    }

    /// Whether both routes write to the same lists, whichever of them is read.
    pub fn has_lists_of(self, other: Self) -> bool {
        (self.first, self.second) == (other.first, other.second)
    }

    /// The lists that are written. Each needs `ack` confirmations.
    pub fn writes(self) -> impl Iterator<Item = &'r [Slot]> {
        std::iter::once(self.first).chain(self.second)
    }

    /// The nodes to write to, each once.
    pub fn targets(self) -> impl Iterator<Item = Slot> {
        let second = self.second.unwrap_or_default();
        self.first.iter().chain(second.iter().filter(move |slot| !self.first.contains(slot))).copied()
    }

    /// The list that is read.
    pub fn reads(self) -> &'r [Slot] {
        self.reads
    }
}

/// The lists of all partitions under one configuration: a lookup per request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    phase: Phase,
    old: SlotLists,
    /// As `old`, where no change is under way: empty.
    new: SlotLists,
}

/// The reason why a placement does not belong to a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutingError {
    /// The configuration contradicts itself.
    Topology(TopologyError),
    /// The placement of a side is another one, or is missing.
    Placement {
        /// The side.
        side: Side,
        /// The hash that the configuration names.
        expected: u64,
        /// The hash of the placement that was given.
        found: Option<u64>,
    },
}

impl Routing {
    /// The lists under `configuration`: `old` is the placement of its old side, and `new` that of its new one, if a
    /// change is under way.
    ///
    /// # Errors
    /// [`RoutingError`]: nodes with other placements would write to other nodes.
    pub fn new(
        configuration: &Configuration,
        old: &Placement,
        new: Option<&Placement>,
    ) -> Result<Self, RoutingError> {
        let lists = |side, placement: Option<&Placement>, expected| {
            let topology = configuration.topology(side).map_err(RoutingError::Topology)?;
            let placement = placement.filter(|placement| placement.hash() == expected);
            let found = match side {
                Side::Old => Some(old.hash()),
                Side::New => new.map(Placement::hash),
            };
            let placement = placement.ok_or(RoutingError::Placement { side, expected, found })?;
            // Members of a topology rise by id, as those of the configuration do.
            let slots: Vec<Slot> = (configuration.members.iter())
                .filter(|member| member.is_on(side))
                .map(|member| member.slot)
                .collect();
            let slot_of = |index: &crate::topology::NodeIndex| slots.get(usize::from(index.0)).copied();
            let lists = Partition::all(configuration.partition_bits)
                .flat_map(|partition| placement.preference_list(partition))
                .filter_map(slot_of)
                .collect();
            Ok(SlotLists { width: usize::from(topology.node_count()), lists })
        };
        let old_lists = lists(Side::Old, Some(old), configuration.placement)?;
        let new_lists = match configuration.phase {
            Phase::Stable => SlotLists::default(),
            Phase::Joint { placement, .. } => lists(Side::New, new, placement)?,
        };
        Ok(Self { phase: configuration.phase, old: old_lists, new: new_lists })
    }

    /// The lists of `partition`; empty for a partition that does not exist.
    pub fn route(&self, partition: Partition) -> Route<'_> {
        self.phase.route(partition, self.old.of(partition), self.new.of(partition))
    }

    /// The lists of `partition` on the old and on the new side of a change.
    pub(super) fn sides(&self, partition: u32) -> (&[Slot], &[Slot]) {
        match u16::try_from(partition).map(Partition) {
            Ok(partition) => (self.old.of(partition), self.new.of(partition)),
            Err(_) => (&[], &[]),
        }
    }

    /// How many partitions there are.
    pub(super) fn partitions(&self) -> u32 {
        let count = self.old.lists.len().checked_div(self.old.width).unwrap_or(0);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn is_moving(&self, partition: u32) -> bool {
        let (old, new) = self.sides(partition);
        old != new
    }

    /// The window from `begin` on that has `count` partitions whose lists differ, and those between them and after them
    /// whose lists do not.
    pub(super) fn window_from(&self, begin: u32, count: u32) -> Window {
        let mut left = count.max(1);
        let mut end = begin;
        while end < self.partitions() {
            let is_moving = self.is_moving(end);
            if is_moving && left == 0 {
                break;
            }
            left -= u32::from(is_moving);
            end += 1;
        }
        Window { begin, end }
    }

    /// As [`Self::window_from`], before `end`.
    pub(super) fn window_until(&self, end: u32, count: u32) -> Window {
        let mut left = count.max(1);
        let mut begin = end;
        while let Some(before) = begin.checked_sub(1) {
            let is_moving = self.is_moving(before);
            if is_moving && left == 0 {
                break;
            }
            left -= u32::from(is_moving);
            begin = before;
        }
        Window { begin, end }
    }

    /// How many partitions move at once in the change under way: at least [`super::WINDOW_PARTITIONS_DEFAULT`], as the last
    /// window of a change may be a small rest.
    pub fn window_partitions(&self) -> u32 {
        let now = match self.phase {
            Phase::Stable => 0..0,
            Phase::Joint { window, .. } => window.partitions(),
        };
        let count = now.filter(|partition| self.is_moving(*partition)).count();
        u32::try_from(count).unwrap_or(u32::MAX).max(super::WINDOW_PARTITIONS_DEFAULT)
    }

    /// The lists, of both sides, of the partitions that move now.
    pub fn moving(&self) -> impl Iterator<Item = &[Slot]> {
        let partitions = match self.phase {
            Phase::Stable => 0..0,
            Phase::Joint { window, .. } => window.partitions(),
        };
        let partitions = partitions.filter_map(|partition| u16::try_from(partition).ok().map(Partition));
        partitions.flat_map(|partition| [self.old.of(partition), self.new.of(partition)])
    }
}

/// The list of every partition, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SlotLists {
    width: usize,
    lists: Vec<Slot>,
}

impl SlotLists {
    fn of(&self, partition: Partition) -> &[Slot] {
        let begin = usize::from(partition.0) * self.width;
        self.lists.get(begin..begin + self.width).unwrap_or_default()
    }
}

impl fmt::Display for RoutingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::Placement { side, expected, found: Some(found) } => {
                write!(f, "the {side} placement is {found:016x}, but the configuration names {expected:016x}")
            }
            Self::Placement { side, expected, found: None } => {
                write!(f, "the {side} placement {expected:016x} is missing")
            }
        }
    }
}

impl std::error::Error for RoutingError {}
