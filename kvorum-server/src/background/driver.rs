//! The driver of a change of members: takes each of its steps as soon as nothing is left to wait for.
//!
//! The eligible member with the lowest id that answers drives. Where it does not take a step that is ready, because its store
//! has no vote, the next one does, [`TAKE_OVER_AFTER`] later, and so on. Nothing is kept of a step: any member goes on from
//! the configuration that was decided last, and two that drive at once propose the same.
//! [`kvorum_core::configuration::next_step`] has the rules.

use super::anti_entropy;
use super::worker::{Work, Worker};
use crate::canary::{self, Canary};
use crate::clock::Clock;
use crate::cluster::{Cluster, View};
use crate::coordinator::Coordinator;
use crate::membership::{Configurations, Pace};
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{
    ClusterMember, Configuration, MemberState, NextStep, Phase, Progress, Situation, Wait, next_step,
};
use kvorum_core::{NodeId, Slot};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time between two looks whether there is a step to take. It looks at once when a member has said something new.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a step is proposed.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a step that was not decided.
const FAILED_WAIT: Duration = Duration::from_secs(1);
/// How much longer than the one before it a member waits until it takes a step that is ready.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(3);
/// How long a member may say nothing, and still be the one that drives.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// The smallest FROM whose guarantees a change keeps. With 1, a member that is gone for good could not be replaced: it may
/// have had the only copy of a key.
const FROM_MIN: u16 = 2;

/// What the change of members under way, or the refill of a marked member, waits for, as this node has heard of it.
pub struct Steps {
    cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    configurations: Arc<Configurations>,
    comparisons: Arc<anti_entropy::Progress>,
    /// How long a member is silent until a change goes on without it.
    away_after: Duration,
}

/// The task of this node.
pub(crate) struct Driver {
    own: Rc<Coordinator>,
    /// The epoch of the step that is ready, and since when it is.
    ready: Option<(Epoch, Duration)>,
    /// What had been said at the latest look, by this node's epoch and comparisons and by the others.
    seen: Seen,
}

/// What a step may wait for: this node's epoch and how many others it was compared with, and news of the others.
type Seen = (Epoch, usize, u64);

impl Driver {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        Self { own, ready: None, seen: Seen::default() }
    }

    fn see(&self) -> Seen {
        let shared = self.own.shared();
        let epoch = shared.cluster.epoch();
        let compared = shared.background.anti_entropy.progress.compared_in(epoch).len();
        (epoch, compared, shared.configurations.said_news())
    }

    /// For how long the step to `epoch` has been ready at `now`.
    fn ready_for(&mut self, epoch: Epoch, now: Duration) -> Duration {
        let (_, since) = self.ready.filter(|(ready, _)| *ready == epoch).unwrap_or((epoch, now));
        self.ready = Some((epoch, since));
        now.saturating_sub(since)
    }
}

impl Worker for Driver {
    async fn work(&mut self) -> Work {
        let shared = Arc::clone(self.own.shared());
        self.seen = self.see();
        let view = shared.cluster.view();
        shared.configurations.note_members(view.slots(), shared.clock.mono());
        let is_needed = view.is_joint() || view.is_any_lacking();
        let steps = &shared.background.steps;
        steps.pace();
        let place = steps.place_of_driver(view.configuration()).filter(|_| is_needed);
        let step = place.map_or(NextStep::Nothing, |_| steps.next_step());
        // The others would take the step later: only the one that drives asks more often.
        let awaited = match &step {
            NextStep::Wait(waits) if place == Some(0) => steps.slots_of(waits),
            _ => BTreeSet::new(),
        };
        shared.configurations.set_awaited(awaited);
        let (Some(place), NextStep::Propose(next)) = (place, step) else {
            self.ready = None;
            return Work::Idle;
        };
        if self.ready_for(next.epoch, shared.clock.mono()) < TAKE_OVER_AFTER * place {
            return Work::Idle;
        }
        if next.epoch.0 != shared.cluster.epoch().0.saturating_add(1) {
            return Work::Busy;
        }
        let (epoch, phase) = (next.epoch, next.phase);
        match self.own.changes().propose(*next, Instant::now() + PROPOSE_TIMEOUT).await {
            Ok(_) => {
                tracing::info!(%epoch, %phase, "the change of members took its next step");
                Work::Busy
            }
            Err(error) => {
                tracing::debug!(%error, "a step of the change of members was not decided: it is tried again");
                Work::Throttled(FAILED_WAIT)
            }
        }
    }

    async fn wait_for_work(&mut self) {
        let cluster = &self.own.shared().cluster;
        let _ = tokio::time::timeout(LOOK_EVERY, cluster.until(|| self.see() != self.seen)).await;
    }
}

impl Steps {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        clock: Arc<dyn Clock>,
        configurations: Arc<Configurations>,
        comparisons: Arc<anti_entropy::Progress>,
        away_after: Duration,
    ) -> Self {
        Self { cluster, clock, configurations, comparisons, away_after }
    }

    /// The other members that `waits` name as those that have something to do.
    fn slots_of(&self, waits: &[Wait]) -> BTreeSet<Slot> {
        let member = |wait: &Wait| match *wait {
            Wait::Adoption { member } | Wait::Comparison { member, .. } => self.cluster.slot_of(member),
            Wait::TooManyLack { .. } => None,
        };
        waits.iter().filter_map(member).filter(|slot| *slot != self.cluster.me()).collect()
    }

    /// Whether the member `id` has answered in the last seconds. This node has.
    fn answers(&self, id: NodeId) -> bool {
        let Some(slot) = self.cluster.slot_of(id) else { return false };
        let silence = || self.clock.mono().saturating_sub(self.configurations.said(slot).at);
        slot == self.cluster.me() || silence() <= SILENT_MAX
    }

    /// Whether a change may go on without `member`: it has been silent for long enough, and knows of the change. A store that
    /// joins is in no epoch before it.
    fn is_away(&self, view: &View, member: &ClusterMember) -> bool {
        let said = self.configurations.said(member.slot);
        let knows = member.state == MemberState::Joining
            || view.knows_of_change(said.adopted.map(|adopted| adopted.epoch))
            || canary::is(Canary::MarksUnknowing);
        let silence = || self.configurations.silence(member.slot, self.clock.mono());
        member.slot != self.cluster.me() && knows && silence() > self.away_after
    }

    /// How many members are to drive before this node: those that are eligible, answer, and have a lower id. None if this node
    /// is not eligible.
    fn place_of_driver(&self, configuration: &Configuration) -> Option<u32> {
        let me = self.cluster.id_of(self.cluster.me());
        // After a forced configuration all are marked, and one of them must drive all the same.
        let is_any_whole = configuration.members.iter().any(|member| !member.lacks);
        let eligible = configuration.members.iter().filter(|member| !is_any_whole || !member.lacks);
        (0..)
            .zip(eligible.filter(|member| self.answers(member.id)))
            .find_map(|(place, member)| (member.id == me).then_some(place))
    }

    /// What the members have done in the epoch of `configuration`, as far as this node knows.
    fn progress_in(&self, configuration: &Configuration) -> Progress {
        let epoch = configuration.epoch;
        let mut progress = Progress::new(epoch);
        for member in &configuration.members {
            let Some(slot) = self.cluster.slot_of(member.id) else { continue };
            let compared: BTreeSet<NodeId> = if slot == self.cluster.me() {
                progress.adopt(epoch, member.id);
                self.comparisons.compared_in(epoch)
            } else {
                let said = self.configurations.said(slot);
                if said.adopted != Some(configuration.instance()) {
                    continue;
                }
                progress.adopt(epoch, member.id);
                said.compared.into_iter().collect()
            };
            for source in compared {
                progress.compare(epoch, member.id, source);
            }
            if canary::is(Canary::NewOwnersUnfilled) {
                let all = configuration.members.iter();
                all.for_each(|source| progress.compare(epoch, member.id, source.id));
            }
        }
        progress
    }

    fn next_step(&self) -> NextStep {
        let view = self.cluster.view();
        let current = view.configuration();
        let away = current.members.iter().filter(|member| self.is_away(&view, member));
        let away = away.map(|member| member.id).collect();
        next_step(&Situation {
            current,
            routing: view.routing(),
            progress: &self.progress_in(current),
            away: &away,
            from_min: FROM_MIN,
            window_partitions: view.routing().window_partitions(),
        })
    }

    /// How far the change under way has come, as this node has seen it.
    pub(crate) fn pace(&self) -> Option<Pace> {
        let view = self.cluster.view();
        let partitions = 1 << view.configuration().partition_bits;
        self.configurations.pace(view.configuration().phase, partitions, self.clock.mono())
    }

    /// What the change under way waits for, as far as this node knows; nothing where none is.
    pub(crate) fn waits(&self) -> Vec<String> {
        let view = self.cluster.view();
        if view.configuration().phase == Phase::Stable && !view.is_any_lacking() {
            return Vec::new();
        }
        let NextStep::Wait(waits) = self.next_step() else { return Vec::new() };
        let url = |id| {
            self.cluster
                .slot_of(id)
                .map_or_else(|| id.to_string(), |slot| self.cluster.url_of(slot).to_owned())
        };
        let text = |wait| match wait {
            Wait::Adoption { member } => {
                format!("waiting for {} to adopt epoch {}", url(member), view.epoch())
            }
            Wait::Comparison { member, source } => {
                format!("waiting for {} to take what it lacks from {}", url(member), url(source))
            }
            wait @ Wait::TooManyLack { .. } => wait.to_string(),
        };
        waits.into_iter().map(text).collect()
    }
}
