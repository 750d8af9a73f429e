//! Plans: the next configuration of a change that an operator asks for.
//!
//! A plan is made on a stable configuration, and refused where a rule of [`Configuration::check_successor`] would be broken,
//! or where the change changes nothing. Whether requests in use need more copies than there will be nodes is not known
//! here: a request names its FROM, and no list of them is kept. Records that were written with a larger FROM than the
//! cluster has nodes afterwards are on all nodes.

use super::{
    ClusterMember, Configuration, ConfigurationError, MemberState, Phase, Routing, Side, Slot, Window,
};
use crate::agreement::{Epoch, Voter};
use crate::placement::{ChangeError, Placement};
use crate::version::{NodeId, without_tls};
use std::collections::BTreeMap;
use std::fmt;

/// The feature level from which on members are able to move data.
pub const MOVES_LEVEL: u16 = 1;

/// The partitions of a window, if no other number is asked for. A cancel drops the copies of one window at most, and only
/// its partitions have more copies than usual.
pub const WINDOW_PARTITIONS_DEFAULT: u32 = 256;

/// A node that joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joiner {
    /// Its identity.
    pub id: NodeId,
    /// The URL at which other nodes reach it.
    pub url: String,
    /// Its failure domain.
    pub zone: String,
    /// Its share of the data in proportion to the other weights.
    pub weight: u32,
    /// The identity of its store, which is empty.
    pub store: u128,
}

/// One change of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// A node joins.
    Add(Joiner),
    /// A member leaves.
    Remove(NodeId),
    /// A node joins in the place of a member that leaves. With the same weight and zone it takes over its partitions, and
    /// no other moves.
    Replace {
        /// The member.
        node: NodeId,
        /// The node.
        by: Joiner,
    },
    /// A member gets another share of the data.
    Weight {
        /// The member.
        node: NodeId,
        /// The weight.
        weight: u32,
    },
    /// A member is in another failure domain.
    Zone {
        /// The member.
        node: NodeId,
        /// Its zone.
        zone: String,
    },
}

/// The first step of a planned change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The configuration.
    pub configuration: Configuration,
    /// The placement that the change leads to.
    pub placement: Placement,
    /// The lists of both sides.
    pub routing: Routing,
}

/// The reason why a change cannot be planned on a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// Only epoch 0 has stores without a name.
    AlreadyNamed {
        /// The epoch.
        epoch: Epoch,
    },
    /// The stores must be named first, by epoch 1.
    Unnamed,
    /// The store of a member is not known.
    StoreUnknown {
        /// The member.
        id: NodeId,
    },
    /// The cluster has this feature level already, or a higher one.
    LevelReached {
        /// The level.
        level: u16,
    },
    /// A change is under way: it must end first.
    UnderWay,
    /// No change is under way.
    NotUnderWay,
    /// The change is being cancelled already.
    Cancelled,
    /// Not all members are known to be able to move data: the feature level must be raised first.
    Level {
        /// The level that a change needs.
        needed: u16,
        /// The level of the cluster.
        found: u16,
    },
    /// The placement is not that of the configuration.
    Placement {
        /// The hash that the configuration names.
        expected: u64,
        /// The hash of the placement.
        found: u64,
    },
    /// The placement cannot be changed.
    Change(ChangeError),
    /// The node is a member already.
    Member {
        /// The node.
        id: NodeId,
    },
    /// The node is no member.
    NoMember {
        /// The node.
        id: NodeId,
    },
    /// Two changes name one node.
    NamedTwice {
        /// The node.
        id: NodeId,
    },
    /// The store was removed from the cluster. Only an empty store can join.
    Removed {
        /// The store.
        voter: Voter,
    },
    /// The member is as it should be already.
    Unchanged {
        /// The member.
        id: NodeId,
    },
    /// The member has this store already.
    StoreNamed {
        /// The member.
        id: NodeId,
    },
    /// No member would be left.
    LastMember,
    /// All numbers of members were given.
    NoSlots,
    /// So many members are left that they decide as usual.
    MajorityLeft {
        /// How many members there are.
        members: usize,
        /// How many are left.
        left: usize,
    },
    /// The result contradicts itself.
    Invalid(ConfigurationError),
}

impl Configuration {
    /// Epoch 1: the stores of all members get named, and nothing else changes.
    ///
    /// # Errors
    /// [`PlanError`]: another epoch, or a member without a known store.
    pub fn with_stores(&self, stores: &BTreeMap<NodeId, u128>) -> Result<Self, PlanError> {
        if self.epoch != Epoch(0) {
            return Err(PlanError::AlreadyNamed { epoch: self.epoch });
        }
        let mut next = self.followed();
        for member in &mut next.members {
            let store = stores.get(&member.id).copied().filter(|store| *store != 0);
            member.store = Some(store.ok_or(PlanError::StoreUnknown { id: member.id })?);
        }
        next.check().map_err(PlanError::Invalid)?;
        Ok(next)
    }

    /// The next epoch with the feature level `level`.
    ///
    /// # Errors
    /// [`PlanError`]: the level does not rise, or this is epoch 0, or a change is under way.
    pub fn with_level(&self, level: u16) -> Result<Self, PlanError> {
        if self.epoch == Epoch(0) {
            return Err(PlanError::Unnamed);
        }
        if self.phase != super::Phase::Stable {
            return Err(PlanError::UnderWay);
        }
        if level <= self.feature_level {
            return Err(PlanError::LevelReached { level: self.feature_level });
        }
        Ok(Self { feature_level: level, ..self.followed() })
    }

    /// The next epoch, in which the member `id` has `store` in the place of one that it lost. The new store is marked as lacking
    /// records, and the lost one never comes back. The phase stays.
    ///
    /// # Errors
    /// [`PlanError`]: epoch 0, which names no stores; no such member; a store that it has already, or that was removed.
    pub fn with_store(&self, id: NodeId, store: u128) -> Result<Self, PlanError> {
        if self.epoch == Epoch(0) {
            return Err(PlanError::Unnamed);
        }
        let mut next = self.followed();
        let place = next.members.binary_search_by_key(&id, |member| member.id);
        let member = place.ok().and_then(|place| next.members.get_mut(place));
        let member = member.ok_or(PlanError::NoMember { id })?;
        let before = member.voter();
        let voter = Voter { node: id, store };
        if before == Some(voter) {
            return Err(PlanError::StoreNamed { id });
        }
        if self.is_retired(voter) {
            return Err(PlanError::Removed { voter });
        }
        (member.store, member.lacks) = (Some(store).filter(|store| *store != 0), true);
        next.retired.extend(before);
        next.retired.sort_unstable();
        next.check().map_err(PlanError::Invalid)?;
        Ok(next)
    }

    /// Whether a change of members can be planned on this configuration at all.
    ///
    /// # Errors
    /// [`PlanError`]: epoch 0, a change under way, or a feature level below [`MOVES_LEVEL`].
    pub fn check_plannable(&self) -> Result<(), PlanError> {
        if self.epoch == Epoch(0) {
            return Err(PlanError::Unnamed);
        }
        if self.phase != Phase::Stable {
            return Err(PlanError::UnderWay);
        }
        if self.feature_level < MOVES_LEVEL {
            return Err(PlanError::Level { needed: MOVES_LEVEL, found: self.feature_level });
        }
        Ok(())
    }

    /// The first step of `changes`, which are made at once; this configuration has `placement`. The first window has
    /// `window_partitions` partitions that move.
    ///
    /// # Errors
    /// [`PlanError`] says what is refused, and why.
    pub fn plan(
        &self,
        placement: &Placement,
        changes: &[MemberChange],
        window_partitions: u32,
    ) -> Result<Opening, PlanError> {
        self.check_plannable()?;
        if placement.hash() != self.placement {
            return Err(PlanError::Placement { expected: self.placement, found: placement.hash() });
        }
        let mut next = self.followed();
        for change in changes {
            next.make(change)?;
        }
        if !next.members.iter().any(|member| member.is_on(Side::New)) {
            return Err(PlanError::LastMember);
        }
        let topology = |side| {
            let topology = next.topology(side);
            topology.map_err(|error| PlanError::Invalid(ConfigurationError::Topology { side, error }))
        };
        let (old, new) = (topology(Side::Old)?, topology(Side::New)?);
        let placement_next = placement.change(&old, &new).map_err(PlanError::Change)?;
        let window = Window { begin: 0, end: 1 };
        next.phase =
            Phase::Joint { reads: Side::Old, is_filled: false, window, placement: placement_next.hash() };
        next.check().map_err(PlanError::Invalid)?;
        let routing = |next: &Self| {
            let routing = Routing::new(next, placement, Some(&placement_next));
            // Both placements were made from the topologies of this configuration.
            routing.map_err(|_| PlanError::Placement { expected: self.placement, found: placement.hash() })
        };
        let lists = routing(&next)?;
        if let Phase::Joint { window, .. } = &mut next.phase {
            *window = lists.window_from(0, window_partitions);
        }
        let lists = routing(&next)?;
        Ok(Opening { configuration: next, placement: placement_next, routing: lists })
    }

    fn make(&mut self, change: &MemberChange) -> Result<(), PlanError> {
        match change {
            MemberChange::Add(joiner) => self.join(joiner),
            MemberChange::Remove(id) => {
                self.unchanged(*id)?.state = MemberState::Leaving;
                Ok(())
            }
            MemberChange::Replace { node, by } => {
                self.unchanged(*node)?.state = MemberState::Leaving;
                self.join(by)
            }
            MemberChange::Weight { node, weight } => {
                let member = self.unchanged(*node)?;
                member.change_to(*weight, member.zone.clone())
            }
            MemberChange::Zone { node, zone } => {
                let member = self.unchanged(*node)?;
                member.change_to(member.weight, zone.clone())
            }
        }
    }

    /// A member that no other change of the plan has named.
    fn unchanged(&mut self, id: NodeId) -> Result<&mut ClusterMember, PlanError> {
        let place = self.members.binary_search_by_key(&id, |member| member.id);
        let member = place.ok().and_then(|place| self.members.get_mut(place));
        match member {
            None => Err(PlanError::NoMember { id }),
            Some(member) if member.state != MemberState::In => Err(PlanError::NamedTwice { id }),
            Some(member) => Ok(member),
        }
    }

    fn join(&mut self, joiner: &Joiner) -> Result<(), PlanError> {
        let id = joiner.id;
        let voter = Voter { node: id, store: joiner.store };
        if self.is_retired(voter) {
            return Err(PlanError::Removed { voter });
        }
        match self.members.binary_search_by_key(&id, |member| member.id) {
            Ok(_) => Err(PlanError::Member { id }),
            Err(place) => {
                let slot = Slot(self.slots_used);
                self.slots_used = self.slots_used.checked_add(1).ok_or(PlanError::NoSlots)?;
                let member = ClusterMember {
                    id,
                    slot,
                    url: without_tls(&joiner.url).into_owned(),
                    zone: joiner.zone.clone(),
                    weight: joiner.weight,
                    store: Some(joiner.store).filter(|store| *store != 0),
                    state: MemberState::Joining,
                    lacks: false,
                };
                self.members.insert(place, member);
                Ok(())
            }
        }
    }

    /// The same in the epoch after this one.
    pub(super) fn followed(&self) -> Self {
        Self { epoch: Epoch(self.epoch.0.saturating_add(1)), previous: self.hash(), ..self.clone() }
    }
}

impl ClusterMember {
    fn change_to(&mut self, weight: u32, zone: String) -> Result<(), PlanError> {
        if (weight, &zone) == (self.weight, &self.zone) {
            return Err(PlanError::Unchanged { id: self.id });
        }
        self.state = MemberState::Changing { weight, zone };
        Ok(())
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyNamed { epoch } => {
                write!(f, "the stores are named since epoch 1; the cluster is at epoch {epoch}")
            }
            Self::Unnamed => f.write_str("the cluster is at epoch 0: name the stores of its members first"),
            Self::StoreUnknown { id } => {
                write!(f, "the store of node {id} is not known: it must be reachable")
            }
            Self::LevelReached { level } => write!(f, "the cluster has the feature level {level} already"),
            Self::UnderWay => f.write_str("a change is under way: it must end or be cancelled first"),
            Self::NotUnderWay => f.write_str("no change is under way"),
            Self::Cancelled => f.write_str("the change is being cancelled already"),
            Self::Level { needed, found } => write!(
                f,
                "the cluster has the feature level {found}, and moving data needs {needed}: raise it first with \
                 \"kvorum cluster upgrade\""
            ),
            Self::Placement { expected, found } => {
                write!(
                    f,
                    "this node has the placement {found:016x}, but the configuration names {expected:016x}"
                )
            }
            Self::Change(error) => error.fmt(f),
            Self::Member { id } => write!(f, "node {id} is a member already"),
            Self::NoMember { id } => write!(f, "node {id} is no member of the cluster"),
            Self::NamedTwice { id } => write!(f, "the plan names node {id} twice"),
            Self::Removed { voter } => write!(
                f,
                "{voter} was removed from the cluster and cannot join again: start the node with an empty data \
                 directory"
            ),
            Self::Unchanged { id } => write!(f, "node {id} has this weight and zone already"),
            Self::StoreNamed { id } => write!(f, "the configuration names this store of node {id} already"),
            Self::LastMember => f.write_str("no member would be left: a cluster has at least one node"),
            Self::MajorityLeft { members, left } => write!(
                f,
                "{left} of {members} members are left, a majority: replace or remove the lost ones, one after the other \
                 (kvorum cluster plan)"
            ),
            Self::NoSlots => f.write_str("the cluster has had 65535 members, and cannot get another one"),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlanError {}
