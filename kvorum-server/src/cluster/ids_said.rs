//! The cluster's id as the other members say it: when a store without an id may adopt one.
//!
//! A store that is new knows no id. It must not take the first one that it hears: a disk of another cluster may have been
//! put into one of the members, and would make this store its own. So an id is adopted once a majority of the members has
//! said it, or, in a cluster that has just been made, once a majority has been heard and nobody says another. Until then the
//! store talks to nobody who says one.
//!
//! If too few members answer, an id that nobody contradicts is adopted after [`ADOPT_WAIT`]. Otherwise, with one of three
//! nodes away and another one's disk lost, the lost disk would not be refilled, and the third node would hold the only copies.

use crate::canary::{self, Canary};
use kvorum_core::{ClusterId, Slot};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an id must have been known and not contradicted to be adopted without a majority.
const ADOPT_WAIT: Duration = Duration::from_secs(10);

/// What the other members have said in this run.
#[derive(Debug, Clone, Default)]
pub(super) struct IdsSaid {
    by_node: BTreeMap<Slot, Said>,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    latest: Option<ClusterId>,
    /// When the node was first heard, on the monotonic clock.
    since: Duration,
    /// Whether the node has said in this run that it knows none: this node has then seen it before it got one.
    was_without: bool,
}

impl IdsSaid {
    /// Notes that the node at `index` has said `id`, or that it knows none, at `now` on the monotonic clock.
    pub(super) fn note(&mut self, index: Slot, id: Option<ClusterId>, now: Duration) {
        let new = Said { latest: id, since: now, was_without: false };
        let said = self.by_node.entry(index).or_insert(new);
        said.latest = id;
        said.was_without |= id.is_none();
    }

    /// Whether all of the `others` members have said that they know none.
    pub(super) fn are_all_without(&self, others: usize) -> bool {
        self.by_node.len() == others && self.by_node.values().all(|said| said.latest.is_none())
    }

    /// The id of the node at `index`, if this store may adopt it at `now`. The cluster has `others` members besides this
    /// node.
    pub(super) fn adoptable(&self, index: Slot, others: usize, now: Duration) -> Option<ClusterId> {
        let said = self.by_node.get(&index)?;
        let id = said.latest?;
        if canary::is(Canary::FirstIdAdopted) {
            return Some(id);
        }
        // A majority of the members without this one, which knows none; of two members there is only the other.
        let enough = (others.div_ceil(2) + 1).min(others);
        let same = self.by_node.values().filter(|other| other.latest == Some(id)).count();
        if same >= enough {
            return Some(id);
        }
        let is_contested = self.contradicts(id).is_some();
        let is_known_long = now >= said.since + ADOPT_WAIT;
        let is_heard = said.was_without || self.by_node.len() >= enough || is_known_long;
        (is_heard && !is_contested).then_some(id)
    }

    /// A node that says another id than `id`.
    pub(super) fn contradicts(&self, id: ClusterId) -> Option<Slot> {
        let other = self.by_node.iter().find(|(_, said)| said.latest.is_some_and(|said| said != id));
        other.map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[Option<u128>]) -> IdsSaid {
        let mut said = IdsSaid::default();
        for (index, word) in (1..).zip(words) {
            said.note(Slot(index), word.and_then(ClusterId::new), Duration::ZERO);
        }
        said
    }

    fn adopts(words: &[Option<u128>], from: u16, others: usize) -> bool {
        said(words).adoptable(Slot(from), others, ADOPT_WAIT / 2).is_some()
    }

    /// An id that nobody contradicts is adopted after a while, however few members answer; one that is contradicted is not.
    #[test]
    fn waiting_has_an_end() {
        let later = |words: &[Option<u128>]| said(words).adoptable(Slot(1), 2, ADOPT_WAIT).is_some();
        assert!(!adopts(&[Some(7)], 1, 2));
        assert!(later(&[Some(7)]));
        assert!(!later(&[Some(7), Some(8)]));
    }

    /// A lost disk in a cluster that has an id: one word is not enough where there are more members.
    #[test]
    fn one_word_is_not_enough() {
        assert!(adopts(&[Some(7)], 1, 1), "there is only one other");
        assert!(!adopts(&[Some(7)], 1, 2));
        assert!(adopts(&[Some(7), Some(7)], 2, 2));
        assert!(!adopts(&[Some(7), Some(7)], 2, 4));
        assert!(!adopts(&[Some(7), Some(7), Some(8)], 1, 3), "two of four are no majority");
        assert!(adopts(&[Some(7), Some(7), Some(7)], 1, 3));
        assert!(adopts(&[Some(7), Some(7), Some(7), Some(8)], 1, 4), "three of five");
        assert!(!adopts(&[Some(7), Some(7), Some(7), Some(8)], 4, 4));
    }

    /// A cluster that has just been made: one member has an id, and the others have been without.
    #[test]
    fn new_clusters_take_the_first_id() {
        assert!(adopts(&[Some(7), None], 1, 2));
        assert!(!adopts(&[Some(7), None], 2, 2), "it says none");
        let mut heard = said(&[None]);
        heard.note(Slot(1), ClusterId::new(7), Duration::ZERO);
        assert!(heard.adoptable(Slot(1), 4, ADOPT_WAIT / 2).is_some(), "this node has seen it without an id");
        assert!(said(&[None, None]).are_all_without(2) && !said(&[None]).are_all_without(2));
        assert!(!said(&[None, Some(7)]).are_all_without(2));
    }

    /// Goal: a store never adopts the id of a single member if another member says another one. Method: two to five other
    /// members, and everything that they can say: no id, one id, or, one of them alone, another id.
    #[test]
    fn foreign_ids_are_never_adopted_against_the_others() {
        for others in 2..=5usize {
            for choice in 0..3usize.pow(u32::try_from(others).unwrap()) {
                let word = |index: usize| match choice / 3usize.pow(u32::try_from(index).unwrap()) % 3 {
                    0 => None,
                    word => Some(u128::try_from(word).unwrap()),
                };
                let words: Vec<_> = (0..others).map(word).collect();
                let foreign: Vec<usize> = (0..others).filter(|index| words[*index] == Some(2)).collect();
                let ([foreign], true) = (&foreign[..], words.contains(&Some(1))) else { continue };
                let index = u16::try_from(foreign + 1).unwrap();
                assert!(!adopts(&words, index, others), "{words:?}");
            }
        }
    }
}
