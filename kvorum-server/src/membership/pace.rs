//! The pace of the change under way, as this node has seen it: how far it has come, and since when.

use super::Configurations;
use kvorum_core::configuration::{Heading, Phase, Side};
use std::sync::PoisonError;
use std::time::Duration;

/// What a node has seen of the change under way.
#[derive(Debug, Default)]
pub(super) struct Watch(Option<Begun>);

/// Where a change was first seen going where it goes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begun {
    heading: Heading,
    /// On the monotonic clock.
    at: Duration,
    /// How many partitions were read on the new side then.
    moved: u32,
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The partitions that are read on the new side.
    pub moved: u32,
    /// For how long this node has watched the change go where it goes.
    pub watched: Duration,
    /// How many partitions came, or went back, meanwhile.
    pub since: u32,
    /// How long the rest takes at this rate; none while nothing has moved yet.
    pub left: Option<Duration>,
}

fn moved(phase: Phase) -> Option<u32> {
    match phase {
        Phase::Joint { reads: Side::New, window, .. } => Some(window.end),
        Phase::Joint { reads: Side::Old, window, .. } => Some(window.begin),
        Phase::Stable => None,
    }
}

impl Watch {
    /// The pace at `now`, with `phase` and so many partitions in all; none where no change is under way.
    fn look(&mut self, phase: Phase, partitions: u32, now: Duration) -> Option<Pace> {
        let seen = phase.heading().zip(moved(phase));
        let Some((heading, moved)) = seen else {
            self.0 = None;
            return None;
        };
        let begun = self.0.filter(|begun| begun.heading == heading);
        let begun = *self.0.insert(begun.unwrap_or(Begun { heading, at: now, moved }));
        let (since, watched) = (moved.abs_diff(begun.moved), now.saturating_sub(begun.at));
        let rest = match heading {
            Heading::Forwards => partitions.saturating_sub(moved),
            Heading::Back => moved,
        };
        let left = (since > 0).then(|| watched.saturating_mul(rest) / since);
        Some(Pace { moved, watched, since, left })
    }
}

impl Configurations {
    /// The pace of the change under way at `now`, on the monotonic clock; none where none is under way. It is measured from the
    /// first call on: this node's driver looks often.
    pub fn pace(&self, phase: Phase, partitions: u32, now: Duration) -> Option<Pace> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).look(phase, partitions, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::configuration::Window;

    fn joint(reads: Side, is_filled: bool) -> Phase {
        Phase::Joint { reads, is_filled, window: Window { begin: 0, end: 1024 }, placement: 1 }
    }

    /// The rest is judged by what has moved since the change took its direction; a cancel begins anew.
    #[test]
    fn the_rest_follows_from_what_has_moved() {
        let mut watch = Watch::default();
        let at = Duration::from_secs;
        let mut look = |phase, seconds| watch.look(phase, 4096, at(seconds));
        assert_eq!(look(Phase::Stable, 1), None);
        let nothing = Some(Pace { moved: 0, watched: at(0), since: 0, left: None });
        assert_eq!(look(joint(Side::Old, false), 10), nothing);
        let quarter = Pace { moved: 1024, watched: at(4), since: 1024, left: Some(at(12)) };
        assert_eq!(look(joint(Side::New, true), 14), Some(quarter));
        assert_eq!(look(joint(Side::Old, true), 20), nothing, "it goes back, and is there");
        assert_eq!(look(Phase::Stable, 21), None);
    }
}
