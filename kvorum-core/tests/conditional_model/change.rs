//! A change of members in the model: epochs, and the lists of each.

use crate::{Case, Source, State, Step};
use kvorum_core::configuration::{Route, Side, Slot};

/// The replicas before a change, and after it.
const OLD: &[Slot] = &[Slot(0), Slot(1), Slot(2)];
const NEW: &[Slot] = &[Slot(0), Slot(1), Slot(3)];

/// The phase of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epoch {
    Old,
    /// Both lists are written, the old one is read.
    JointOld,
    /// Both lists are written, the new one is read.
    JointNew,
    New,
}

use Epoch::{JointNew, JointOld, New, Old};

/// The epoch of cases without a change.
pub(crate) const NO_CHANGE: &[Epoch] = &[Old];

impl Epoch {
    pub(crate) fn route(self) -> Route<'static> {
        match self {
            Old => Route::single(OLD),
            JointOld => Route::joint(OLD, NEW, Side::Old),
            JointNew => Route::joint(OLD, NEW, Side::New),
            New => Route::single(NEW),
        }
    }
}

/// The replicas on a list.
pub(crate) fn on(list: &[Slot]) -> impl Iterator<Item = usize> {
    list.iter().map(|slot| usize::from(slot.0))
}

/// The replicas that a request of `route` goes to.
pub(crate) fn targets(route: Route<'static>) -> impl Iterator<Item = usize> {
    route.targets().map(|slot| usize::from(slot.0))
}

impl Case {
    pub(crate) fn route(&self, epoch: usize) -> Route<'static> {
        self.epochs[epoch].route()
    }

    pub(crate) fn replicas(&self) -> usize {
        if self.epochs.len() == 1 && self.epochs[0] == Old { 3 } else { 4 }
    }

    /// Whether the epoch after that of the replica `at` exists, or may be decided now: `kvorum_core::configuration::waits_for`
    /// in short.
    fn may_adopt(&self, state: &State, at: usize) -> bool {
        let now = state.replicas[at].epoch;
        let Some(next) = self.epochs.get(now + 1) else { return false };
        if state.replicas.iter().any(|replica| replica.epoch > now) {
            return true;
        }
        let have_all = state.replicas.iter().all(|replica| replica.epoch == now);
        match (self.epochs[now], next) {
            (JointOld, JointNew) => have_all && state.compared.len() == OLD.len(),
            (JointNew, New) => have_all,
            _ => true,
        }
    }

    pub(crate) fn change_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, replica) in state.replicas.iter().enumerate() {
            if self.may_adopt(state, at) {
                steps.push(Step::Adopt(at));
            }
            let is_filled_now = at == 3
                && self.epochs[replica.epoch] == JointOld
                && self.epochs.get(replica.epoch + 1) == Some(&JointNew);
            if is_filled_now {
                let from = on(OLD).filter(|from| !state.compared.contains(from));
                let of_its_epoch = from.filter(|from| state.replicas[*from].epoch == replica.epoch);
                steps.extend(of_its_epoch.map(Step::Compare));
            }
        }
        for (at, client) in state.clients.iter().enumerate() {
            if client.is_under_way() && state.replicas.iter().any(|replica| replica.epoch > client.epoch) {
                steps.push(Step::Replan(at));
            }
        }
    }

    /// The new owner takes what it lacks. It counts once it has the record, or a newer one.
    pub(crate) fn compare(&self, state: &mut State, from: usize) {
        let record = state.replicas[from].stored;
        state.replicas[3].apply(record, Source::Repair, self.mistake);
        if state.replicas[3].stored.version >= record.version {
            state.compared.insert(from);
        }
    }
}
