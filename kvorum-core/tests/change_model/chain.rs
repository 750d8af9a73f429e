//! The chain of configurations: links of a few bytes, from which whole configurations are made for the crate's rules.

use crate::{Case, Mistake, NODES, State};
use kvorum_core::agreement::{ConfigurationHash, Epoch};
use kvorum_core::configuration::{
    ClusterMember, Configuration, MemberState, Phase, Progress, Route, Side, Slot, Transition, Wait, Window,
    waits_for,
};
use kvorum_core::{ClusterId, NodeId, Partition};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The owners of the partition, on the old and on the new side.
pub(crate) const LISTS: [&[Slot]; 2] = [&[Slot(0), Slot(1), Slot(2)], &[Slot(0), Slot(1), Slot(3)]];

/// The placements' hashes: those of [`LISTS`].
const PLACEMENTS: [u64; 2] = [1, 2];

/// A configuration without what never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    phase: Phase,
    /// The current placement: an index of [`LISTS`].
    placement: usize,
    /// The members that are marked, a bit each.
    lacking: u8,
    /// Whether a change has ended: the members of the new side stay.
    has_changed: bool,
    /// Whether a change was cancelled: node 3 stays away if it would have joined.
    was_cancelled: bool,
}

/// What may be decided after the last link of a chain of this length, with this progress.
pub(crate) type Decisions = Arc<Mutex<HashMap<(Link, usize, Progress), Vec<Link>>>>;

pub(crate) fn id(at: usize) -> NodeId {
    NodeId(at as u64 + 1)
}

/// Configurations with named stores begin with epoch 1.
pub(crate) fn epoch_of(place: usize) -> Epoch {
    Epoch(place as u64 + 1)
}

fn joint(reads: Side, is_filled: bool) -> Phase {
    Phase::Joint { reads, is_filled, window: Window { begin: 0, end: 2 }, placement: PLACEMENTS[1] }
}

impl Link {
    pub(crate) fn first() -> Self {
        Self { phase: Phase::Stable, placement: 0, lacking: 0, has_changed: false, was_cancelled: false }
    }

    pub(crate) fn is_stable(&self) -> bool {
        self.phase == Phase::Stable
    }

    /// Whether the owners of the new side are still being filled.
    pub(crate) fn is_filling(&self) -> bool {
        matches!(self.phase, Phase::Joint { is_filled: false, .. })
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.has_changed
    }

    pub(crate) fn lacks(&self, at: usize) -> bool {
        self.lacking & (1 << at) != 0
    }

    pub(crate) fn is_any_lacking(&self) -> bool {
        self.lacking != 0
    }

    pub(crate) fn route(&self) -> Route<'static> {
        self.phase.route(Partition(0), LISTS[self.placement], LISTS[1])
    }

    pub(crate) fn members(&self, is_replacement: bool) -> Vec<usize> {
        let is_member = |at: &usize| match at {
            2 => !is_replacement || !self.has_changed,
            3 => !is_replacement || self.has_changed || !self.is_stable(),
            _ => true,
        };
        (0..NODES).filter(is_member).collect()
    }
}

impl Case {
    /// The configuration of `link` at `place`, after one with the hash `previous`.
    fn configuration(&self, link: &Link, place: usize, previous: ConfigurationHash) -> Configuration {
        let member = |at: usize| {
            let state = match at {
                _ if link.is_stable() || at < 2 => MemberState::In,
                2 if self.is_replacement => MemberState::Leaving,
                3 if self.is_replacement => MemberState::Joining,
                _ => MemberState::Changing { weight: 2, zone: String::new() },
            };
            let is_reweighed = link.has_changed && !self.is_replacement && at >= 2;
            ClusterMember {
                id: id(at),
                slot: crate::slot(at),
                url: format!("http://{at}"),
                zone: String::new(),
                weight: if is_reweighed { 2 } else { 1 },
                store: Some(at as u128 + 1),
                state,
                lacks: link.lacks(at),
            }
        };
        let members: Vec<ClusterMember> = link.members(self.is_replacement).into_iter().map(member).collect();
        let gone = |at: usize| self.is_replacement && members.iter().all(|member| member.id != id(at));
        let removed = (2..4).filter(|at| gone(*at) && (*at == 2 || link.was_cancelled));
        let retired = removed.map(|at| member(at).voter().unwrap()).collect();
        let had_change = !link.is_stable() || link.has_changed || link.was_cancelled;
        Configuration {
            epoch: epoch_of(place),
            previous,
            cluster: ClusterId::new(1).unwrap(),
            partition_bits: 1,
            feature_level: 0,
            slots_used: if had_change || !self.is_replacement { 4 } else { 3 },
            members,
            retired,
            phase: link.phase,
            placement: PLACEMENTS[link.placement],
        }
    }

    /// The configurations that may be decided now.
    pub(crate) fn decisions(&self, state: &State) -> Vec<Link> {
        let key = (*state.chain.last().unwrap(), state.chain.len(), state.progress.clone());
        if let Some(known) = self.decisions.lock().unwrap().get(&key) {
            return known.clone();
        }
        let decisions = self.decide(state);
        self.decisions.lock().unwrap().insert(key, decisions.clone());
        decisions
    }

    fn decide(&self, state: &State) -> Vec<Link> {
        let last = *state.chain.last().unwrap();
        let current = self.configuration(&last, state.last(), ConfigurationHash(1));
        let hash = current.hash();
        let mut decisions = Vec::new();
        for wanted in self.wanted(&last) {
            let next = self.configuration(&wanted, state.chain.len(), hash);
            // The rules themselves say what may follow: a link that the model makes wrongly stops the test.
            let kind = current.check_successor(&next).unwrap();
            let moving = LISTS.into_iter();
            let waits = waits_for((&current, &next), kind, &state.progress, moving, 2);
            if waits.iter().all(|wait| self.is_ignored(*wait, kind)) {
                decisions.push(wanted);
            }
        }
        decisions
    }

    fn is_ignored(&self, wait: Wait, kind: Transition) -> bool {
        match self.mistake {
            Mistake::ReadBeforeFilled => {
                matches!(wait, Wait::Comparison { .. }) && kind == Transition::Switch
            }
            Mistake::MarkRemovedEarly => {
                matches!(wait, Wait::Comparison { .. }) && kind == Transition::Upkeep
            }
            Mistake::MarkedKeepRecords => {
                let marked = self.alone.map(id);
                matches!(wait, Wait::Comparison { source, .. } if Some(source) == marked)
                    && kind == Transition::Upkeep
            }
            Mistake::JointLeftEarly => matches!(wait, Wait::Adoption { .. }) && kind == Transition::Switch,
            Mistake::EndedEarly => matches!(wait, Wait::Adoption { .. }) && kind == Transition::Exit,
            Mistake::AnyNumberLacks => matches!(wait, Wait::TooManyLack { .. }),
            _ => false,
        }
    }

    fn wanted(&self, last: &Link) -> Vec<Link> {
        let phase = |phase| Link { phase, ..*last };
        let end = |side| match side {
            Side::Old => Link { was_cancelled: true, ..phase(Phase::Stable) },
            Side::New => Link { placement: 1, has_changed: true, ..phase(Phase::Stable) },
        };
        let mut wanted = match last.phase {
            Phase::Stable if last.has_changed || (last.was_cancelled && self.is_replacement) => Vec::new(),
            Phase::Stable => vec![phase(joint(Side::Old, false))],
            Phase::Joint { reads: Side::Old, is_filled, .. } => {
                let back = self.cancels.then(|| end(Side::Old));
                // A change that is being cancelled is not taken up again: it adds nothing but states.
                let on = (!is_filled).then(|| phase(joint(Side::New, true)));
                on.into_iter().chain(back).collect()
            }
            Phase::Joint { reads: Side::New, .. } => {
                let back = self.cancels.then(|| phase(joint(Side::Old, true)));
                std::iter::once(end(Side::New)).chain(back).collect()
            }
        };
        // Members that do not answer are marked together with a step.
        for at in (0..NODES).filter(|at| self.may_lack & (1 << at) != 0) {
            let is_member = |link: &&Link| link.members(self.is_replacement).contains(&at) && !link.lacks(at);
            let marked =
                wanted.iter().filter(is_member).map(|link| Link { lacking: link.lacking | 1 << at, ..*link });
            wanted.extend(marked.collect::<Vec<_>>());
        }
        let members = last.members(self.is_replacement);
        let marked = members.into_iter().filter(|at| last.lacks(*at));
        wanted.extend(marked.map(|at| Link { lacking: last.lacking & !(1 << at), ..*last }));
        // Who is no member is not marked.
        for link in &mut wanted {
            let members = link.members(self.is_replacement);
            link.lacking &= members.iter().fold(0, |mask, at| mask | 1 << at);
        }
        wanted
    }

    /// The progress in the epoch after the last one. Only node 3 gains anything, and a store that is being refilled: all
    /// other comparisons find nothing to take.
    pub(crate) fn progress_after(&self, last: &State) -> Progress {
        let epoch = epoch_of(last.chain.len());
        let mut progress = Progress::new(epoch);
        for at in 0..3 {
            for from in (0..NODES).filter(|from| *from != at && self.alone != Some(*from)) {
                progress.compare(epoch, id(at), id(from));
            }
        }
        if self.mistake == Mistake::ComparisonsKept {
            for from in 0..3 {
                let mut with = last.progress.clone();
                with.compare(epoch_of(last.last()), id(3), id(from));
                if with == last.progress {
                    progress.compare(epoch, id(3), id(from));
                }
            }
        }
        progress
    }
}
