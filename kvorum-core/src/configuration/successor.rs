//! Which configuration may follow another.
//!
//! A proposer checks it before it proposes, an acceptor before it accepts, and every node before it adopts. So each of
//! them refuses a configuration that breaks a rule.

use super::{ClusterMember, Configuration, ConfigurationError, MemberState, Phase, Side, Slot, Window};
use crate::agreement::{ConfigurationHash, Epoch, Voter};
use crate::identity::ClusterId;
use crate::version::NodeId;
use std::collections::BTreeSet;
use std::fmt;

/// The kind of a step from one configuration to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Epoch 0 to 1: the stores of all members get named. Nothing else changes.
    Naming,
    /// The phase stays: a member lacks records or no longer does, a URL or the feature level changes, or an empty store
    /// takes the place of a lost one.
    Upkeep,
    /// A change begins, with its first window.
    Open,
    /// The other side of the window is read from now on: forwards, or to cancel.
    Switch,
    /// The window ends on the side that is read: the next window begins on it, or the change ends.
    Exit,
    /// A majority of the members is lost: those that are left go on alone, by the word of an operator.
    Forced,
}

/// The reason why a configuration may not follow another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuccessorError {
    /// It contradicts itself.
    Invalid(ConfigurationError),
    /// Epochs follow each other without gaps.
    Epoch {
        /// The epoch that follows.
        expected: Epoch,
        /// The epoch that was given.
        found: Epoch,
    },
    /// It follows another configuration.
    Previous {
        /// The hash of the one before.
        expected: ConfigurationHash,
        /// The hash that it names.
        found: ConfigurationHash,
    },
    /// It is of another cluster.
    Cluster {
        /// The cluster.
        expected: ClusterId,
        /// The cluster that was given.
        found: ClusterId,
    },
    /// The number of partitions is fixed for life.
    PartitionBits {
        /// The width.
        expected: u8,
        /// The width that was given.
        found: u8,
    },
    /// The feature level fell: members may have written what an older level cannot read. It rises by upkeep only.
    FeatureLevel {
        /// The level before.
        before: u16,
        /// The level that was given.
        found: u16,
    },
    /// The phase cannot follow the one before.
    Phase {
        /// The phase before.
        before: Phase,
        /// The phase that was given.
        found: Phase,
    },
    /// The placement changed without a change, or is not the one that the change led to.
    Placement {
        /// The hash that follows.
        expected: u64,
        /// The hash that was given.
        found: u64,
    },
    /// A member is gone although it did not leave.
    MemberVanished {
        /// The member.
        id: NodeId,
    },
    /// A member is there although it did not join.
    MemberAppeared {
        /// The member.
        id: NodeId,
    },
    /// A member changed in a way that this step does not allow.
    MemberChanged {
        /// The member.
        id: NodeId,
    },
    /// A new member has a slot that is not one of the next ones.
    SlotReused {
        /// The member.
        id: NodeId,
        /// Its slot.
        slot: Slot,
    },
    /// The number of slots is not what the new members make it.
    SlotsUsed {
        /// The number that follows.
        expected: u32,
        /// The number that was given.
        found: u16,
    },
    /// A store came in the place of another without being marked as lacking records.
    StoreUnmarked {
        /// The member.
        id: NodeId,
    },
    /// A mark that a store lacks records was removed in another step than upkeep, which waits for its refill.
    MarkRemoved {
        /// The member.
        id: NodeId,
    },
    /// A removed store is not listed as such, or a store is that was not removed.
    Retired {
        /// The store.
        voter: Voter,
    },
    /// A forced configuration is for a minority of the members: others decide as usual.
    NotForced {
        /// How many members there are.
        members: usize,
        /// How many of them are left.
        left: usize,
    },
}

impl Configuration {
    /// Checks whether `next` may follow this configuration.
    ///
    /// What must have happened before it may be proposed is another matter: [`super::waits_for`].
    ///
    /// # Errors
    /// [`SuccessorError`] names the first rule that is broken.
    pub fn check_successor(&self, next: &Self) -> Result<Transition, SuccessorError> {
        next.check().map_err(SuccessorError::Invalid)?;
        let expected = Epoch(self.epoch.0.saturating_add(1));
        if next.epoch != expected {
            return Err(SuccessorError::Epoch { expected, found: next.epoch });
        }
        if next.previous != self.hash() {
            return Err(SuccessorError::Previous { expected: self.hash(), found: next.previous });
        }
        if next.cluster != self.cluster {
            return Err(SuccessorError::Cluster { expected: self.cluster, found: next.cluster });
        }
        if next.partition_bits != self.partition_bits {
            let (expected, found) = (self.partition_bits, next.partition_bits);
            return Err(SuccessorError::PartitionBits { expected, found });
        }
        if self.is_forced_by(next) {
            return self.check_forced(next).map(|()| Transition::Forced);
        }
        let transition = self.transition(next)?;
        let may_rise = transition == Transition::Upkeep && self.phase == Phase::Stable;
        if next.feature_level < self.feature_level || (next.feature_level > self.feature_level && !may_rise) {
            let (before, found) = (self.feature_level, next.feature_level);
            return Err(SuccessorError::FeatureLevel { before, found });
        }
        self.check_placement(next)?;
        self.check_members_of(next, transition)?;
        self.check_slots_of(next)?;
        self.check_retired_of(next)?;
        Ok(transition)
    }

    fn transition(&self, next: &Self) -> Result<Transition, SuccessorError> {
        let partitions = 1_u32 << self.partition_bits;
        let transition = match (self.phase, next.phase) {
            (Phase::Stable, Phase::Stable) if self.epoch == Epoch(0) => Some(Transition::Naming),
            // Epoch 0 names no stores: a change of it would retire stores that nobody knows.
            (Phase::Stable, Phase::Joint { .. }) if self.epoch == Epoch(0) => None,
            (before, found) if before == found => Some(Transition::Upkeep),
            (Phase::Stable, Phase::Joint { reads: Side::Old, is_filled: false, window, .. }) => {
                (window.begin == 0).then_some(Transition::Open)
            }
            (
                Phase::Joint { reads, window, placement, .. },
                Phase::Joint { reads: reads_next, is_filled, window: window_next, placement: placement_next },
            ) if placement == placement_next => {
                let follows = match reads {
                    Side::New => window_next.begin == window.end,
                    Side::Old => window_next.end == window.begin,
                };
                if window == window_next {
                    (reads != reads_next && is_filled).then_some(Transition::Switch)
                } else {
                    // A window is entered from the side on which the one before ended.
                    (follows && !is_filled && reads_next == opposite(reads)).then_some(Transition::Exit)
                }
            }
            (Phase::Joint { reads, window, .. }, Phase::Stable) => {
                let is_last = match reads {
                    Side::New => window.end == partitions,
                    Side::Old => window.begin == 0,
                };
                is_last.then_some(Transition::Exit)
            }
            _ => None,
        };
        transition.ok_or(SuccessorError::Phase { before: self.phase, found: next.phase })
    }

    fn check_placement(&self, next: &Self) -> Result<(), SuccessorError> {
        let expected = match (self.phase, next.phase) {
            (Phase::Joint { reads: Side::New, placement, .. }, Phase::Stable) => placement,
            _ => self.placement,
        };
        if next.placement == expected {
            return Ok(());
        }
        Err(SuccessorError::Placement { expected, found: next.placement })
    }

    /// The member as the end of a change on `side` leaves it; none if it is not on it.
    pub(super) fn left_on(side: Side, member: &ClusterMember) -> Option<ClusterMember> {
        let mut left = member.clone();
        left.state = MemberState::In;
        if let (Side::New, MemberState::Changing { weight, zone }) = (side, &member.state) {
            (left.weight, left.zone) = (*weight, zone.clone());
        }
        member.is_on(side).then_some(left)
    }

    fn check_members_of(&self, next: &Self, transition: Transition) -> Result<(), SuccessorError> {
        // The side on which the change ends, if it does.
        let end = match (self.phase, next.phase) {
            (Phase::Joint { reads, .. }, Phase::Stable) => Some(reads),
            _ => None,
        };
        for before in &self.members {
            let id = before.id;
            let expected = end.map_or_else(|| Some(before.clone()), |side| Self::left_on(side, before));
            match (expected, next.member(id)) {
                (None, None) => {}
                (None, Some(_)) => return Err(SuccessorError::MemberAppeared { id }),
                (Some(_), None) => return Err(SuccessorError::MemberVanished { id }),
                (Some(expected), Some(found)) => check_member(&expected, found, transition)?,
            }
        }
        for found in next.members.iter().filter(|member| self.member(member.id).is_none()) {
            if transition != Transition::Open || found.state != MemberState::Joining {
                return Err(SuccessorError::MemberAppeared { id: found.id });
            }
        }
        Ok(())
    }

    fn check_slots_of(&self, next: &Self) -> Result<(), SuccessorError> {
        let new: BTreeSet<Slot> = (next.members.iter())
            .filter(|member| self.member(member.id).is_none())
            .map(|member| member.slot)
            .collect();
        for member in next.members.iter().filter(|member| new.contains(&member.slot)) {
            if member.slot.0 < self.slots_used {
                return Err(SuccessorError::SlotReused { id: member.id, slot: member.slot });
            }
        }
        let expected = u32::from(self.slots_used) + u32::try_from(new.len()).unwrap_or(u32::MAX);
        if u32::from(next.slots_used) == expected {
            return Ok(());
        }
        Err(SuccessorError::SlotsUsed { expected, found: next.slots_used })
    }

    pub(super) fn check_retired_of(&self, next: &Self) -> Result<(), SuccessorError> {
        let voters = |members: &[ClusterMember]| -> BTreeSet<Voter> {
            members.iter().filter_map(ClusterMember::voter).collect()
        };
        let mut expected: BTreeSet<Voter> =
            voters(&self.members).difference(&voters(&next.members)).copied().collect();
        expected.extend(&self.retired);
        let found: BTreeSet<Voter> = next.retired.iter().copied().collect();
        match expected.symmetric_difference(&found).next() {
            Some(voter) => Err(SuccessorError::Retired { voter: *voter }),
            None => Ok(()),
        }
    }
}

pub(super) fn opposite(side: Side) -> Side {
    match side {
        Side::Old => Side::New,
        Side::New => Side::Old,
    }
}

fn check_member(
    expected: &ClusterMember,
    found: &ClusterMember,
    transition: Transition,
) -> Result<(), SuccessorError> {
    let id = found.id;
    let is_upkeep = transition == Transition::Upkeep;
    if expected.lacks && !found.lacks && !is_upkeep {
        return Err(SuccessorError::MarkRemoved { id });
    }
    if found.store != expected.store && is_upkeep && !found.lacks {
        return Err(SuccessorError::StoreUnmarked { id });
    }
    let mut allowed = expected.clone();
    allowed.lacks = found.lacks;
    match transition {
        Transition::Naming => allowed.store = found.store,
        Transition::Upkeep => {
            allowed.store = found.store;
            allowed.url.clone_from(&found.url);
        }
        Transition::Open if found.state != MemberState::Joining => allowed.state = found.state.clone(),
        Transition::Open | Transition::Switch | Transition::Exit | Transition::Forced => {}
    }
    if allowed == *found { Ok(()) } else { Err(SuccessorError::MemberChanged { id }) }
}

impl fmt::Display for SuccessorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Epoch { expected, found } => write!(f, "epoch {expected} must follow, not {found}"),
            Self::Previous { expected, found } => {
                write!(f, "it follows the configuration {found}, not {expected}")
            }
            Self::Cluster { expected, found } => write!(f, "it is of the cluster {found}, not {expected}"),
            Self::PartitionBits { expected, found } => {
                write!(f, "it has partitions of {found} bits, not of {expected}; the width is fixed for life")
            }
            Self::FeatureLevel { before, found } => {
                write!(
                    f,
                    "it has the feature level {found} after {before}: a level never falls, and rises outside changes"
                )
            }
            Self::Phase { before, found } => {
                write!(f, "the phase \"{found}\" cannot follow \"{before}\"")
            }
            Self::Placement { expected, found } => {
                write!(f, "it has the placement {found:016x}, not {expected:016x}")
            }
            Self::MemberVanished { id } => write!(f, "the member {id} is gone, but it did not leave"),
            Self::MemberAppeared { id } => write!(f, "the member {id} is there, but it did not join"),
            Self::MemberChanged { id } => write!(f, "this step does not allow such a change of {id}"),
            Self::SlotReused { id, slot } => {
                write!(f, "the new member {id} has the slot {}, which was given before", slot.0)
            }
            Self::SlotsUsed { expected, found } => {
                write!(f, "it says that {found} slots were given, but it must be {expected}")
            }
            Self::StoreUnmarked { id } => {
                write!(f, "the member {id} has another store, which is not marked as lacking records")
            }
            Self::MarkRemoved { id } => {
                write!(f, "the store of {id} lacks records; this step cannot say that it no longer does")
            }
            Self::Retired { voter } => write!(f, "the list of removed stores is wrong about {voter}"),
            Self::NotForced { members, left } => {
                write!(f, "it is forced, but {left} of {members} members are left, which decide as usual")
            }
        }
    }
}

impl std::error::Error for SuccessorError {}

impl Window {
    /// Its partitions, as indexes.
    pub fn partitions(self) -> std::ops::Range<u32> {
        self.begin..self.end
    }
}
