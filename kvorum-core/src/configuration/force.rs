//! Forcing: the successor of a configuration whose majority is lost for good, by the word of an operator.
//!
//! It names the members that are left, with their stores, and retires the stores of the lost ones. No change is under way
//! in it: members that were joining or leaving stay. It skips one slot. No other successor does that, so its bytes show that it
//! was forced, and no lost member can have decided the same.
//!
//! No member that is left need have all records that are left: the lists of keys change at once. So where several are left, all are
//! marked as lacking records, until each pair was compared ([`super::waits_for`]).

use super::{
    ClusterMember, Configuration, MemberState, Phase, PlanError, Routing, Side, Slot, SuccessorError,
};
use crate::agreement::{Electorate, Epoch, Voter};
use crate::placement::Placement;
use crate::token::Partition;
use crate::version::NodeId;
use std::collections::BTreeSet;

/// A forced successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forced {
    /// The configuration.
    pub configuration: Configuration,
    /// Its placement.
    pub placement: Placement,
}

/// The partitions that lose copies for good, for records of one FROM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// How many partitions there are.
    pub partitions: u32,
    /// Those without a copy on any member that is left.
    pub gone: u32,
    /// Those with so few copies left that all of them may miss an acknowledged write.
    pub doubtful: u32,
}

impl Configuration {
    /// Whether `next` has the mark of a forced successor: it skips a slot.
    pub fn is_forced_by(&self, next: &Self) -> bool {
        let is_known = next.members.iter().all(|member| self.member(member.id).is_some());
        is_known && u32::from(next.slots_used) == u32::from(self.slots_used) + 1
    }

    /// The successor without the members `lost`; this configuration has `placement`, on its old side.
    ///
    /// # Errors
    /// [`PlanError`]: the stores have no names, a majority is left, or nobody.
    pub fn forced(&self, lost: &BTreeSet<NodeId>, placement: &Placement) -> Result<Forced, PlanError> {
        if self.epoch == Epoch(0) {
            return Err(PlanError::Unnamed);
        }
        if self.feature_level < super::MOVES_LEVEL {
            return Err(PlanError::Level { needed: super::MOVES_LEVEL, found: self.feature_level });
        }
        if let Some(id) = lost.iter().find(|id| self.member(**id).is_none()) {
            return Err(PlanError::NoMember { id: *id });
        }
        let left: Vec<&ClusterMember> =
            self.members.iter().filter(|member| !lost.contains(&member.id)).collect();
        if left.is_empty() {
            return Err(PlanError::LastMember);
        }
        if !self.may_be_forced(left.len()) {
            return Err(PlanError::MajorityLeft { members: self.members.len(), left: left.len() });
        }
        let mut next = self.followed();
        next.slots_used = self.slots_used.checked_add(1).ok_or(PlanError::NoSlots)?;
        next.phase = Phase::Stable;
        next.members = left.iter().map(|member| left_alone(member, left.len())).collect();
        let gone = self.members.iter().filter(|member| lost.contains(&member.id));
        let retired: BTreeSet<Voter> =
            gone.filter_map(ClusterMember::voter).chain(self.retired.clone()).collect();
        next.retired = retired.into_iter().collect();
        let invalid =
            |side| move |error| PlanError::Invalid(super::ConfigurationError::Topology { side, error });
        let before = self.topology(Side::Old).map_err(invalid(Side::Old))?;
        let after = next.topology(Side::Old).map_err(invalid(Side::Old))?;
        let placement = placement.change(&before, &after).map_err(PlanError::Change)?;
        next.placement = placement.hash();
        next.check().map_err(PlanError::Invalid)?;
        Ok(Forced { configuration: next, placement })
    }

    /// The stores that must all accept this forced configuration: those that it names.
    pub fn forced_electorate(&self) -> Electorate {
        Electorate::unanimous(self.members.iter().filter_map(ClusterMember::voter))
    }

    /// Whether `left` members may go on alone: no majority decides without the others. Where all are marked, an earlier forced
    /// configuration was not completed, and one of its members may be lost since.
    fn may_be_forced(&self, left: usize) -> bool {
        let is_open = self.members.iter().all(|member| member.lacks);
        left < self.members.len() && (2 * left <= self.members.len() || is_open)
    }

    /// Checks a successor that has the mark of a forced one. Its placement is checked where the lists are made.
    pub(super) fn check_forced(&self, next: &Self) -> Result<(), SuccessorError> {
        let (members, left) = (self.members.len(), next.members.len());
        if self.epoch == Epoch(0) || next.phase != Phase::Stable {
            return Err(SuccessorError::Phase { before: self.phase, found: next.phase });
        }
        if !self.may_be_forced(left) {
            return Err(SuccessorError::NotForced { members, left });
        }
        if next.feature_level != self.feature_level || self.feature_level < super::MOVES_LEVEL {
            let (before, found) = (self.feature_level, next.feature_level);
            return Err(SuccessorError::FeatureLevel { before, found });
        }
        for found in &next.members {
            let expected = self.member(found.id).map(|before| left_alone(before, left));
            if expected.as_ref() != Some(found) {
                return Err(SuccessorError::MemberChanged { id: found.id });
            }
        }
        self.check_retired_of(next)
    }
}

/// `member` as one of `left` that go on alone.
fn left_alone(member: &ClusterMember, left: usize) -> ClusterMember {
    ClusterMember { state: MemberState::In, lacks: left > 1, ..member.clone() }
}

impl Losses {
    /// What is lost with the members that `forced` does not name, of records that were written to `from` nodes by `routing`.
    pub fn of(forced: &Configuration, routing: &Routing, from: u16) -> Self {
        let left: BTreeSet<Slot> = forced.members.iter().map(|member| member.slot).collect();
        let mut losses = Self { partitions: routing.partitions(), ..Self::default() };
        for partition in (0..losses.partitions).filter_map(|number| u16::try_from(number).ok()) {
            let route = routing.route(Partition(partition)).of(from);
            // A write is on a majority of each list that it was sent to.
            let copies = route.writes().map(|list| list.iter().filter(|slot| left.contains(slot)).count());
            let (copies, owners) = (copies.max().unwrap_or(0), route.reads().len());
            let is_whole = copies + owners / 2 + 1 > owners;
            losses.gone += u32::from(copies == 0);
            losses.doubtful += u32::from(copies > 0 && !is_whole);
        }
        losses
    }
}
