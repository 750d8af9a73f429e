//! The driver of a change: from the configuration that was decided to the next one, up to the end.
//!
//! It keeps nothing. The phase says where a change is going: a window is entered from the side that is read and left on
//! the other, so *read the new side, filled* goes forwards, and *read the old side, filled* back. So any member may drive,
//! one after the other or several at once, and each proposes the same.
//!
//! A cancel is one step that turns round ([`Configuration::cancelled`]); the driver goes on from there. No such step waits
//! for anything. Of the window under way either the side is read that was whole all the time, or both are.

use super::successor::opposite;
use super::{Configuration, Phase, PlanError, Progress, Routing, Side, Slot, Wait, waits_for};
use crate::agreement::Voter;
use crate::version::NodeId;
use std::collections::BTreeSet;

/// Where a change is going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    /// To the new placement.
    Forwards,
    /// Back to the old one: it was cancelled.
    Back,
}

/// What a driver knows.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The configuration that was decided last.
    pub current: &'a Configuration,
    /// Its lists.
    pub routing: &'a Routing,
    /// What the members have done in its epoch.
    pub progress: &'a Progress,
    /// The members that no step should wait for: one that the next step needs is marked as lacking records.
    pub away: &'a BTreeSet<NodeId>,
    /// As for [`waits_for`].
    pub from_min: u16,
    /// How many partitions move at once.
    pub window_partitions: u32,
}

/// What a driver does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Propose this configuration. Where another driver does the same, either is decided.
    Propose(Box<Configuration>),
    /// Wait for all of these.
    Wait(Vec<Wait>),
    /// Nothing is under way.
    Nothing,
}

impl Phase {
    /// Where the change is going; none where no change is under way.
    pub fn heading(self) -> Option<Heading> {
        let Self::Joint { reads, is_filled, .. } = self else { return None };
        Some(if (reads == Side::New) == is_filled { Heading::Forwards } else { Heading::Back })
    }
}

impl Configuration {
    /// The step that turns a change round, whatever the members have done.
    ///
    /// # Errors
    /// [`PlanError`]: no change is under way, or it is being cancelled already.
    pub fn cancelled(&self, routing: &Routing, window_partitions: u32) -> Result<Self, PlanError> {
        match self.phase.heading() {
            None => Err(PlanError::NotUnderWay),
            Some(Heading::Back) => Err(PlanError::Cancelled),
            Some(Heading::Forwards) => {
                self.step(routing, Heading::Back, window_partitions).ok_or(PlanError::NotUnderWay)
            }
        }
    }

    /// The next step of the change under way, if it goes to `heading`; none where none is under way.
    pub fn step(&self, routing: &Routing, heading: Heading, window_partitions: u32) -> Option<Self> {
        let Phase::Joint { reads, window, placement, .. } = self.phase else { return None };
        let (goal, left_on) = match heading {
            Heading::Forwards => (Side::New, window.end >= routing.partitions()),
            Heading::Back => (Side::Old, window.begin == 0),
        };
        if reads != goal {
            let phase = Phase::Joint { reads: goal, is_filled: true, window, placement };
            return Some(Self { phase, ..self.followed() });
        }
        if left_on {
            return Some(self.ended(goal));
        }
        let window = match heading {
            Heading::Forwards => routing.window_from(window.end, window_partitions),
            Heading::Back => routing.window_until(window.begin, window_partitions),
        };
        let phase = Phase::Joint { reads: opposite(goal), is_filled: false, window, placement };
        Some(Self { phase, ..self.followed() })
    }

    /// The end of the change on `side`.
    fn ended(&self, side: Side) -> Self {
        let mut next = self.followed();
        if let (Side::New, Phase::Joint { placement, .. }) = (side, self.phase) {
            next.placement = placement;
        }
        next.phase = Phase::Stable;
        next.members = self.members.iter().filter_map(|member| Self::left_on(side, member)).collect();
        let gone = self.members.iter().filter(|member| !member.is_on(side));
        let gone: BTreeSet<Voter> = gone.filter_map(super::ClusterMember::voter).collect();
        next.retired = gone.union(&next.retired.iter().copied().collect()).copied().collect();
        next
    }
}

/// The next step of the change under way, or of the refill of a member that is marked as lacking records.
pub fn next_step(situation: &Situation<'_>) -> NextStep {
    let Situation { current, routing, away, window_partitions, .. } = *situation;
    let Some(heading) = current.phase.heading() else { return refill(situation) };
    let Some(mut next) = current.step(routing, heading, window_partitions) else { return NextStep::Nothing };
    let waits = waits(situation, &next);
    let absent: BTreeSet<NodeId> = named(&waits).filter(|id| away.contains(id)).collect();
    for member in next.members.iter_mut().filter(|member| absent.contains(&member.id)) {
        member.lacks = true;
    }
    let waits = self::waits(situation, &next);
    if waits.is_empty() {
        return NextStep::Propose(Box::new(next));
    }
    // A member that has come back may be what a step waits for, which it can be only without its mark.
    if waits.iter().any(|wait| matches!(wait, Wait::TooManyLack { .. }))
        && let NextStep::Propose(next) = refill(situation)
    {
        return NextStep::Propose(next);
    }
    NextStep::Wait(waits)
}

/// Takes away the marks of the members that were refilled.
fn refill(situation: &Situation<'_>) -> NextStep {
    let Situation { current, away, .. } = *situation;
    let unmarked = |ids: &BTreeSet<NodeId>| {
        let mut next = current.followed();
        for member in next.members.iter_mut().filter(|member| ids.contains(&member.id)) {
            member.lacks = false;
        }
        next
    };
    let marked = current.members.iter().filter(|member| member.lacks && !away.contains(&member.id));
    let mut missing = Vec::new();
    let mut whole = BTreeSet::new();
    for member in marked {
        let alone = BTreeSet::from([member.id]);
        let waits = waits(situation, &unmarked(&alone));
        if waits.is_empty() {
            whole.insert(member.id);
        }
        missing.extend(waits);
    }
    // Members without a mark must have been compared with each other, too: so one at a time, where there are several.
    let Some(first) = whole.first() else {
        return if missing.is_empty() { NextStep::Nothing } else { NextStep::Wait(missing) };
    };
    let all = unmarked(&whole);
    let next = if waits(situation, &all).is_empty() { all } else { unmarked(&BTreeSet::from([*first])) };
    NextStep::Propose(Box::new(next))
}

fn waits(situation: &Situation<'_>, next: &Configuration) -> Vec<Wait> {
    let Situation { current, routing, progress, from_min, .. } = *situation;
    let Ok(transition) = current.check_successor(next) else { return Vec::new() };
    let moving: Box<dyn Iterator<Item = &[Slot]>> = Box::new(routing.moving());
    waits_for((current, next), transition, progress, moving, from_min)
}

/// The members that a step waits for.
fn named(waits: &[Wait]) -> impl Iterator<Item = NodeId> {
    waits
        .iter()
        .flat_map(|wait| match *wait {
            Wait::Adoption { member } => [Some(member), None],
            Wait::Comparison { member, source } => [Some(member), Some(source)],
            Wait::TooManyLack { .. } => [None, None],
        })
        .flatten()
}
