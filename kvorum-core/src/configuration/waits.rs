//! What a step of a change waits for. No time-out turns into consent: a member that does not answer is either waited for,
//! or the next configuration marks it as lacking records.
//!
//! Two epochs that follow each other may be in use at once, on different nodes; a replica serves a request only in its own
//! epoch. The steps are such that neighbours agree: a quorum that either of them writes meets every quorum that the
//! other reads. Epochs further apart do not, so the steps in between wait until no quorum can be left in the older ones.
//!
//! - Before the *other* side of a window is read, every member must have adopted the epoch in which both are written, and
//!   every store must have been compared with every other one since. Then each owner has what any owner has that was
//!   compared.
//! - Before a window *ends*, every member must have adopted the epoch in which the side is read that stays.
//!
//! After a forced configuration all members are marked, and each may have records that no other has. Then the first that loses
//! its mark must have been compared with all others, marked or not.
//!
//! A member that is marked as lacking is not waited for otherwise. It may still serve others that are marked, in an older epoch. So
//! there must be too few of them for a quorum: at most `from / 2` of the first `from` nodes of a list, as quorums that
//! overlap are majorities. For the same reason some owner that was compared has every acknowledged record.

use super::{Configuration, Phase, Slot, Transition};
use crate::agreement::Epoch;
use crate::version::NodeId;
use std::collections::BTreeSet;
use std::fmt;

/// What the members have done in one epoch. It counts for that epoch only: records that were compared in an epoch that was
/// cancelled since may have changed on one side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Progress {
    epoch: Epoch,
    adopted: BTreeSet<NodeId>,
    /// The node that took what it lacked, and the node that it was compared with.
    compared: BTreeSet<(NodeId, NodeId)>,
}

/// Something that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The member must adopt the epoch.
    Adoption {
        /// The member.
        member: NodeId,
    },
    /// The member must take what it lacks from another.
    Comparison {
        /// The member.
        member: NodeId,
        /// The other.
        source: NodeId,
    },
    /// So many of the first owners of a partition are marked as lacking that they could be a quorum: one of them must
    /// come back, or its data is given up for lost.
    TooManyLack {
        /// The first owners, as many as a request may name.
        from: u16,
        /// How many of them are marked.
        lacking: u16,
    },
}

impl Progress {
    /// No progress yet, in `epoch`.
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, adopted: BTreeSet::new(), compared: BTreeSet::new() }
    }

    /// Notes that `member` has durably adopted `epoch`. Another epoch is passed over.
    pub fn adopt(&mut self, epoch: Epoch, member: NodeId) {
        if epoch == self.epoch {
            self.adopted.insert(member);
        }
    }

    /// Notes that `member` has all records of the moving partitions that `source` had, or newer ones: also those that a
    /// promise kept out at first. Both were in `epoch` from the beginning of the comparison to its end; another epoch is
    /// passed over. A member that gains no partition has nothing to take: that may be noted at once.
    pub fn compare(&mut self, epoch: Epoch, member: NodeId, source: NodeId) {
        if epoch == self.epoch {
            self.compared.insert((member, source));
        }
    }

    /// The epoch that it is about.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// Everything that the step from `current` to `next` still waits for, after `progress` in the epoch of `current`.
///
/// `moving` has the lists of the partitions that move, of both sides ([`super::Routing::moving`]); all lists, if `next`
/// says that a member lacks records no longer. `from_min` is the smallest FROM whose guarantees must hold: with 1 a
/// single copy counts, and a change waits for a member that may have the only one.
pub fn waits_for<'a>(
    (current, next): (&Configuration, &Configuration),
    transition: Transition,
    progress: &Progress,
    moving: impl IntoIterator<Item = &'a [Slot]>,
    from_min: u16,
) -> Vec<Wait> {
    let is_filled = matches!(current.phase, Phase::Joint { is_filled: true, .. });
    let is_lacking = |id| {
        let member = next.member(id).or_else(|| current.member(id));
        member.is_some_and(|member| member.lacks)
    };
    let eligible = || current.members.iter().filter(|member| !is_lacking(member.id));
    let refilled = || eligible().filter(|member| member.lacks).map(|member| member.id);
    let is_any_whole = current.members.iter().any(|member| !member.lacks);
    let sources = || current.members.iter().filter(|member| !is_any_whole || !is_lacking(member.id));
    let is_compared = |member, source| progress.compared.contains(&(member, source));
    let comparisons = |member: NodeId| {
        let missing = sources().filter(move |source| source.id != member && !is_compared(member, source.id));
        missing.map(move |source| Wait::Comparison { member, source: source.id })
    };
    let mut waits = Vec::new();
    let (must_adopt, must_compare) = match transition {
        // These epochs are safe beside the one before, also where a member has not adopted them yet. What a forced one needs is
        // the agreement of all members that are left.
        Transition::Naming | Transition::Open | Transition::Upkeep | Transition::Forced => (false, false),
        // Once both sides were whole, writes kept both so.
        Transition::Switch => (!is_filled, !is_filled),
        // Back to the side from which the window was entered, which alone was ever read.
        Transition::Exit => (is_filled, false),
    };
    if must_adopt {
        let missing = eligible().filter(|member| !progress.adopted.contains(&member.id));
        waits.extend(missing.map(|member| Wait::Adoption { member: member.id }));
    }
    if must_compare {
        waits.extend(eligible().flat_map(|member| comparisons(member.id)));
    } else if !is_any_whole && refilled().next().is_some() {
        // All are marked, as after a majority was lost. Nobody takes what a member owns no longer from it once its mark has gone, so
        // all marks go together, when each has taken what it lacks from all others.
        waits.extend(current.members.iter().flat_map(|member| comparisons(member.id)));
    } else {
        waits.extend(refilled().flat_map(comparisons));
        // And before such a member drops what it no longer owns, the others take from it what it alone may have confirmed.
        waits.extend(refilled().flat_map(|source| {
            let missing =
                eligible().filter(move |member| member.id != source && !is_compared(member.id, source));
            missing.map(move |member| Wait::Comparison { member: member.id, source })
        }));
    }
    if must_adopt {
        let lacking: BTreeSet<Slot> =
            current.members.iter().filter(|member| is_lacking(member.id)).map(|member| member.slot).collect();
        if !lacking.is_empty() {
            waits.extend(moving.into_iter().filter_map(|list| too_many(list, &lacking, from_min)));
        }
    }
    waits.sort_unstable();
    waits.dedup();
    waits
}

/// Whether a quorum of some FROM may consist of lacking stores.
fn too_many(list: &[Slot], lacking: &BTreeSet<Slot>, from_min: u16) -> Option<Wait> {
    let mut count = 0;
    (1..).zip(list).find_map(|(from, slot)| {
        count += u16::from(lacking.contains(slot));
        let is_quorum = from >= from_min && count > from / 2;
        is_quorum.then_some(Wait::TooManyLack { from, lacking: count })
    })
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adoption { member } => write!(f, "waiting for node {member} to adopt the epoch"),
            Self::Comparison { member, source } => {
                write!(f, "waiting for node {member} to take what it lacks from node {source}")
            }
            Self::TooManyLack { from, lacking } => write!(
                f,
                "{lacking} of the first {from} owners of a partition do not answer: waiting for one of them to come back"
            ),
        }
    }
}
