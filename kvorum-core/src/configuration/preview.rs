//! What a planned change moves, for the operator who is asked whether to begin it.

use super::{Configuration, Opening, Routing, Slot};
use crate::version::NodeId;
use std::collections::BTreeMap;

/// What a change moves, for records of one FROM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The FROM.
    pub from: u16,
    /// How many partitions there are.
    pub partitions: u32,
    /// How many of them get another owner.
    pub moving: u32,
    /// How many copies of partitions are sent.
    pub copies: u32,
    /// The fewest copies that can be sent, if the members are to hold as many afterwards.
    pub copies_least: u32,
    /// The copies of a partition before the change.
    pub copies_before: u16,
    /// The most copies of a partition while it moves.
    pub copies_joint: u16,
    /// The copies of a partition after the change.
    pub copies_after: u16,
    /// How many windows the partitions move in.
    pub windows: u32,
    /// How many epochs the change takes.
    pub epochs: u32,
    /// The members of both sides, by rising id.
    pub members: Vec<MemberPreview>,
}

/// What a change moves from and to one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberPreview {
    /// The member.
    pub id: NodeId,
    /// The partitions that it holds before the change.
    pub before: u32,
    /// The partitions that it holds afterwards.
    pub after: u32,
    /// The partitions that it gets.
    pub gains: u32,
    /// The partitions that it gives up.
    pub loses: u32,
}

impl Opening {
    /// What the change moves, for records that are written to `from` nodes; `window_partitions` as in the plan.
    pub fn preview(&self, from: u16, window_partitions: u32) -> Preview {
        Preview::of(&self.configuration, &self.routing, from, window_partitions)
    }
}

impl Preview {
    fn of(opening: &Configuration, routing: &Routing, from: u16, window_partitions: u32) -> Self {
        let mut by_slot: BTreeMap<Slot, MemberPreview> = (opening.members.iter())
            .map(|member| {
                let nothing = MemberPreview { id: member.id, before: 0, after: 0, gains: 0, loses: 0 };
                (member.slot, nothing)
            })
            .collect();
        let mut preview = Self {
            from,
            partitions: routing.partitions(),
            moving: 0,
            copies: 0,
            copies_least: 0,
            copies_before: 0,
            copies_joint: 0,
            copies_after: 0,
            windows: 0,
            epochs: 0,
            members: Vec::new(),
        };
        let owners = |list: &[Slot]| -> Vec<Slot> { list.iter().take(from.into()).copied().collect() };
        let count = |owners: usize| u16::try_from(owners).unwrap_or(u16::MAX);
        for partition in 0..preview.partitions {
            let (old, new) = routing.sides(partition);
            let (old, new) = (owners(old), owners(new));
            let mut gained = 0;
            for slot in &new {
                let member = by_slot.get_mut(slot);
                let is_new = !old.contains(slot);
                gained += usize::from(is_new);
                if let Some(member) = member {
                    member.after += 1;
                    member.gains += u32::from(is_new);
                }
            }
            for slot in &old {
                if let Some(member) = by_slot.get_mut(slot) {
                    member.before += 1;
                    member.loses += u32::from(!new.contains(slot));
                }
            }
            preview.moving += u32::from(gained > 0);
            preview.copies += u32::from(count(gained));
            preview.copies_before = preview.copies_before.max(count(old.len()));
            preview.copies_after = preview.copies_after.max(count(new.len()));
            preview.copies_joint = preview.copies_joint.max(count(old.len() + gained));
        }
        preview.members = by_slot.into_values().collect();
        preview.members.sort_unstable_by_key(|member| member.id);
        let missing = |member: &MemberPreview| member.after.saturating_sub(member.before);
        preview.copies_least = preview.members.iter().map(missing).sum();
        let mut end = 0;
        while end < preview.partitions {
            end = routing.window_from(end, window_partitions).end;
            preview.windows += 1;
        }
        preview.epochs = 2 * preview.windows + 1;
        preview
    }
}
