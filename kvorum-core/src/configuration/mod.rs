//! Configurations: who belongs to the cluster, as one link of a chain of epochs.
//!
//! Each epoch has one configuration, which names the hash of the one before. Epoch 0 is the list of nodes that a cluster
//! was started with ([`Configuration::genesis`]); nobody decides it, and it names no stores. Every later one was decided
//! by the stores that the one before names ([`crate::agreement`]).
//!
//! - `codec`: the bytes that are hashed, stored and sent.
//! - `plan`: the first configuration of a planned change.
//! - `preview`: what it moves.
//! - `driver`: the configurations after it, up to its end.
//! - `successor`: which configuration may follow another.
//! - `force`: the successor after a majority was lost for good.
//! - `waits`: what a change of phase waits for.
//! - `routing`: which nodes a request writes to and reads from, in each phase.
//! - `tally`: answers counted for each of these lists.
//!
//! A change moves data in *windows* of partitions. Partitions below the window are placed by the new placement, those
//! above it by the old one, and those in it by both: they are *joint*. Both sides of a window are written; one is read.

#[cfg(test)]
mod change_tests;
mod codec;
mod driver;
mod force;
#[cfg(test)]
mod force_tests;
mod plan;
mod preview;
mod routing;
mod successor;
mod tally;
#[cfg(test)]
mod tests;
mod waits;

pub use codec::{CONFIGURATION_FORM, ConfigurationDecodeError, ENCODED_BYTES_MAX};
pub use driver::{Heading, NextStep, Situation, next_step};
pub use force::{Forced, Losses};
pub use plan::{Joiner, MOVES_LEVEL, MemberChange, Opening, PlanError, WINDOW_PARTITIONS_DEFAULT};
pub use preview::{MemberPreview, Preview};
pub use routing::{Route, Routing, RoutingError};
pub use successor::{SuccessorError, Transition};
pub use tally::PerList;
pub use waits::{Progress, Wait, waits_for};

use crate::agreement::{ConfigurationHash, Electorate, Epoch, Instance, Voter};
use crate::identity::ClusterId;
use crate::placement::Placement;
use crate::token::{PARTITION_BITS_MAX, Partition};
use crate::topology::{self, NODES_MAX, Topology, TopologyError};
use crate::version::{NodeId, without_tls};
use std::collections::BTreeSet;
use std::fmt;

/// The longest URL of a member, in bytes.
pub const URL_BYTES_MAX: usize = 512;
/// The longest name of a zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 64;

/// A member's number for as long as the cluster lives: no later member gets it again. It names nodes on the wire and in
/// hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// One of the two placements of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The placement before the change.
    Old,
    /// The placement after it.
    New,
}

/// The partitions that move now, from `begin` on and below `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// The first.
    pub begin: u32,
    /// The one after the last.
    pub end: u32,
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No change is under way.
    Stable,
    /// The partitions of `window` are written by both placements.
    Joint {
        /// The side that is read.
        reads: Side,
        /// Whether the owners of the other side were once filled: since then writes go to both sides, so either can be
        /// read. Unset until then: only the side that is read now is whole.
        is_filled: bool,
        /// The partitions.
        window: Window,
        /// [`Placement::hash`] of the new placement.
        placement: u64,
    },
}

/// A member's part in a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// It stays as it is.
    In,
    /// It is on the new side only.
    Joining,
    /// It is on the old side only.
    Leaving,
    /// It is on both sides; on the new one with another weight or zone.
    Changing {
        /// Its weight on the new side.
        weight: u32,
        /// Its zone on the new side.
        zone: String,
    },
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterMember {
    /// The node's identity.
    pub id: NodeId,
    /// Its number.
    pub slot: Slot,
    /// The URL at which other nodes reach it.
    pub url: String,
    /// The failure domain.
    pub zone: String,
    /// Its share of the data in proportion to the other weights, at least 1.
    pub weight: u32,
    /// The identity of its store; none in epoch 0 only.
    pub store: Option<u128>,
    /// Its part in a change.
    pub state: MemberState,
    /// Whether its store lacks records: its answers do not count until it was refilled. It votes on configurations all the
    /// same, for its promises are not lost.
    pub lacks: bool,
}

/// The configuration of one epoch. [`Self::check`] holds for each that is used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration {
    /// Its number.
    pub epoch: Epoch,
    /// The hash of the one before; zero in epoch 0.
    pub previous: ConfigurationHash,
    /// The cluster.
    pub cluster: ClusterId,
    /// How many bits of a token name its partition; fixed for life.
    pub partition_bits: u8,
    /// What all members are able to do: formats on disk and on the wire change with it.
    pub feature_level: u16,
    /// How many slots were given so far: the next member gets this number.
    pub slots_used: u16,
    /// The members by rising id.
    pub members: Vec<ClusterMember>,
    /// The stores that were removed, by rising id and store: none of them comes back.
    pub retired: Vec<Voter>,
    /// How far a change is.
    pub phase: Phase,
    /// [`Placement::hash`] of the placement; of the old one while a change is under way.
    pub placement: u64,
}

/// The reason why a configuration contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigurationError {
    /// A side of the change is no topology.
    Topology {
        /// The side.
        side: Side,
        /// Why.
        error: TopologyError,
    },
    /// There are more members than a change of a full cluster can have.
    TooManyMembers {
        /// How many.
        members: usize,
    },
    /// Partitions have 1 to [`PARTITION_BITS_MAX`] bits.
    PartitionBits {
        /// The width.
        bits: u8,
    },
    /// The members do not rise by id.
    MembersUnsorted {
        /// The first that is out of place.
        id: NodeId,
    },
    /// Two members have one slot.
    DuplicateSlot {
        /// The slot.
        slot: Slot,
    },
    /// Two members have one store: one is a copy of the other.
    DuplicateStore {
        /// The store.
        store: u128,
    },
    /// A member has a slot that was not given.
    SlotUnknown {
        /// The slot.
        slot: Slot,
        /// How many were given.
        slots_used: u16,
    },
    /// A URL is empty, too long, or not of visible ASCII.
    Url {
        /// The member.
        id: NodeId,
    },
    /// The name of a zone is too long, or not of visible ASCII.
    Zone {
        /// The member.
        id: NodeId,
    },
    /// From epoch 1 on every member has a store, which is not 0. In epoch 0 none has.
    Store {
        /// The member.
        id: NodeId,
    },
    /// A member's store was retired.
    RetiredMember {
        /// The store.
        voter: Voter,
    },
    /// The retired stores do not rise.
    RetiredUnsorted {
        /// The first that is out of place.
        voter: Voter,
    },
    /// There are more retired stores than members can have been.
    TooManyRetired {
        /// How many.
        retired: usize,
    },
    /// A member joins, leaves or changes while no change is under way.
    StateWithoutChange {
        /// The member.
        id: NodeId,
    },
    /// The window is empty, or beyond the partitions.
    Window {
        /// The window.
        window: Window,
    },
    /// Epoch 0 has none before it and is stable; every other has one.
    Previous {
        /// The epoch.
        epoch: Epoch,
    },
}

impl Phase {
    /// The lists of `partition` that a request writes to and reads from. `old` is the partition's list on the old side,
    /// and the only one where no change is under way; `new` the one on the new side.
    pub fn route<'r>(self, partition: Partition, old: &'r [Slot], new: &'r [Slot]) -> Route<'r> {
        let Self::Joint { reads, window, .. } = self else { return Route::single(old) };
        if u32::from(partition.0) < window.begin {
            Route::single(new)
        } else if u32::from(partition.0) >= window.end {
            Route::single(old)
        } else {
            Route::joint(old, new, reads)
        }
    }
}

impl ClusterMember {
    /// Whether it is on `side`.
    pub fn is_on(&self, side: Side) -> bool {
        match self.state {
            MemberState::In | MemberState::Changing { .. } => true,
            MemberState::Joining => side == Side::New,
            MemberState::Leaving => side == Side::Old,
        }
    }

    /// The node with its store; none in epoch 0.
    pub fn voter(&self) -> Option<Voter> {
        self.store.map(|store| Voter { node: self.id, store })
    }

    fn on(&self, side: Side) -> Option<topology::Member> {
        let (weight, zone) = match &self.state {
            MemberState::Changing { weight, zone } if side == Side::New => (*weight, zone),
            _ => (self.weight, &self.zone),
        };
        let member = || topology::Member { id: self.id, url: self.url.clone(), weight, zone: zone.clone() };
        self.is_on(side).then(member)
    }
}

impl Configuration {
    /// The configuration of epoch 0: the members of `topology`, in whose order they get their slots.
    ///
    /// Nobody decides it, so it must be the same wherever it is made: an `https` URL counts as the `http` one, as it does
    /// for the ids of nodes and the hash of the topology.
    pub fn genesis(cluster: ClusterId, topology: &Topology, placement: &Placement) -> Self {
        let member = |(slot, member): (u16, &topology::Member)| ClusterMember {
            id: member.id,
            slot: Slot(slot),
            url: without_tls(&member.url).into_owned(),
            zone: member.zone.clone(),
            weight: member.weight,
            store: None,
            state: MemberState::In,
            lacks: false,
        };
        Self {
            epoch: Epoch(0),
            previous: ConfigurationHash::default(),
            cluster,
            partition_bits: topology.partition_bits(),
            feature_level: 0,
            slots_used: topology.node_count(),
            members: (0..).zip(topology.members()).map(member).collect(),
            retired: Vec::new(),
            phase: Phase::Stable,
            placement: placement.hash(),
        }
    }

    /// The member `id`.
    pub fn member(&self, id: NodeId) -> Option<&ClusterMember> {
        let place = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        self.members.get(place)
    }

    /// The topology of one side; both are the same where no change is under way.
    ///
    /// # Errors
    /// The members of a configuration that passed [`Self::check`] are one on either side.
    pub fn topology(&self, side: Side) -> Result<Topology, TopologyError> {
        Topology::new(self.members.iter().filter_map(|member| member.on(side)).collect(), self.partition_bits)
    }

    /// The stores that decide the successor: all members', those that join, leave and lack records included.
    pub fn electorate(&self) -> Electorate {
        Electorate::new(self.members.iter().map(|member| (member.id, member.store)))
    }

    /// The decision about its successor.
    pub fn instance(&self) -> Instance {
        Instance { epoch: self.epoch, hash: self.hash() }
    }

    /// Whether it has a member with just this store.
    pub fn names(&self, voter: Voter) -> bool {
        self.member(voter.node).and_then(ClusterMember::voter) == Some(voter)
    }

    /// Whether `voter` was removed, and may never come back.
    pub fn is_retired(&self, voter: Voter) -> bool {
        self.retired.binary_search(&voter).is_ok()
    }

    /// Checks everything that can be judged without another configuration.
    ///
    /// # Errors
    /// [`ConfigurationError`] names the first rule that is broken.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        if self.members.len() > 2 * NODES_MAX {
            return Err(ConfigurationError::TooManyMembers { members: self.members.len() });
        }
        if !(1..=PARTITION_BITS_MAX).contains(&self.partition_bits) {
            return Err(ConfigurationError::PartitionBits { bits: self.partition_bits });
        }
        let is_first = self.epoch == Epoch(0);
        if is_first != (self.previous == ConfigurationHash::default())
            || (is_first && self.phase != Phase::Stable)
        {
            return Err(ConfigurationError::Previous { epoch: self.epoch });
        }
        self.check_members()?;
        self.check_retired()?;
        if let Phase::Joint { window, .. } = self.phase
            && (window.begin >= window.end || window.end > 1 << self.partition_bits)
        {
            return Err(ConfigurationError::Window { window });
        }
        for side in [Side::Old, Side::New] {
            self.topology(side).map_err(|error| ConfigurationError::Topology { side, error })?;
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), ConfigurationError> {
        let (mut slots, mut stores) = (BTreeSet::new(), BTreeSet::new());
        let mut last = None;
        for member in &self.members {
            let id = member.id;
            if last.replace(id).is_some_and(|last| last >= id) {
                return Err(ConfigurationError::MembersUnsorted { id });
            }
            if member.slot.0 >= self.slots_used {
                return Err(ConfigurationError::SlotUnknown {
                    slot: member.slot,
                    slots_used: self.slots_used,
                });
            }
            if !slots.insert(member.slot) {
                return Err(ConfigurationError::DuplicateSlot { slot: member.slot });
            }
            if !is_plain(&member.url, 1..=URL_BYTES_MAX) {
                return Err(ConfigurationError::Url { id });
            }
            let next_zone = match &member.state {
                MemberState::Changing { zone, .. } => zone.as_str(),
                _ => "",
            };
            if ![member.zone.as_str(), next_zone].iter().all(|zone| is_plain(zone, 0..=ZONE_BYTES_MAX)) {
                return Err(ConfigurationError::Zone { id });
            }
            let is_named = member.store.is_some_and(|store| store != 0);
            if is_named == (self.epoch == Epoch(0)) || (!is_named && member.store.is_some()) {
                return Err(ConfigurationError::Store { id });
            }
            if let Some(voter) = member.voter() {
                if !stores.insert(voter.store) {
                    return Err(ConfigurationError::DuplicateStore { store: voter.store });
                }
                if self.is_retired(voter) {
                    return Err(ConfigurationError::RetiredMember { voter });
                }
            }
            if self.phase == Phase::Stable && member.state != MemberState::In {
                return Err(ConfigurationError::StateWithoutChange { id });
            }
        }
        Ok(())
    }

    fn check_retired(&self) -> Result<(), ConfigurationError> {
        if self.retired.len() > usize::from(u16::MAX) {
            return Err(ConfigurationError::TooManyRetired { retired: self.retired.len() });
        }
        let mut pairs = self.retired.iter().zip(self.retired.iter().skip(1));
        match pairs.find(|(one, next)| one >= next) {
            Some((_, voter)) => Err(ConfigurationError::RetiredUnsorted { voter: *voter }),
            None => Ok(()),
        }
    }
}

fn is_plain(text: &str, bytes: std::ops::RangeInclusive<usize>) -> bool {
    bytes.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Old => "old",
            Self::New => "new",
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stable => f.write_str("stable"),
            Self::Joint { reads, window: Window { begin, end }, .. } => {
                write!(
                    f,
                    "joint: partitions {begin} to {end} written by both placements, read by the {reads} one"
                )
            }
        }
    }
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology { side, error } => write!(f, "on the {side} side, {error}"),
            Self::TooManyMembers { members } => {
                write!(f, "the configuration has {members} members, more than {}", 2 * NODES_MAX)
            }
            Self::PartitionBits { bits } => {
                write!(f, "the configuration has partitions of {bits} bits, not of 1 to {PARTITION_BITS_MAX}")
            }
            Self::MembersUnsorted { id } => write!(f, "the members do not rise by id, at {id}"),
            Self::DuplicateSlot { slot } => write!(f, "two members have the slot {}", slot.0),
            Self::DuplicateStore { store } => write!(f, "two members have the store {store:032x}"),
            Self::SlotUnknown { slot, slots_used } => {
                write!(f, "a member has the slot {}, but only {slots_used} slots were given", slot.0)
            }
            Self::Url { id } => {
                write!(f, "the URL of {id} is not 1 to {URL_BYTES_MAX} visible ASCII characters")
            }
            Self::Zone { id } => {
                write!(f, "the zone of {id} is not at most {ZONE_BYTES_MAX} visible ASCII characters")
            }
            Self::Store { id } => {
                write!(f, "the member {id} must have a store from epoch 1 on, and none in epoch 0")
            }
            Self::RetiredMember { voter } => write!(f, "{voter} was removed and cannot be a member again"),
            Self::RetiredUnsorted { voter } => write!(f, "the removed stores do not rise, at {voter}"),
            Self::TooManyRetired { retired } => write!(f, "{retired} removed stores are too many"),
            Self::StateWithoutChange { id } => {
                write!(f, "the member {id} joins, leaves or changes, but no change is under way")
            }
            Self::Window { window: Window { begin, end } } => {
                write!(f, "there are no partitions {begin} to {end}")
            }
            Self::Previous { epoch } => {
                write!(f, "epoch {epoch}: only epoch 0 has no epoch before it, and it is stable")
            }
        }
    }
}

impl std::error::Error for ConfigurationError {}
