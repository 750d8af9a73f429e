//! Membership: what this node knows of the others' stores and clocks, and of its own store.
//!
//! - The **registry** has the store and run that each node was seen with. It is stored before any other node is told, and
//!   shows a node that its own store is an older or another one.
//! - The **cluster id** is made once, by the first member when all are without one. A new store adopts it when enough of the
//!   others say it: [`crate::cluster`].
//! - The **disk** is recorded for the next start once this run has met a majority: from then on the store is known to be no
//!   older copy.
//! - The **clocks** of the other nodes: this node's clock is right if a majority of the nodes agrees with it.

use crate::canary::{self, Canary};
use crate::clock::{Clock, ClockStanding, Rng, TimestampBound};
use crate::cluster::{ClockNews, ClockOffset, Cluster, Exchange, Heard, IdVerdict, VotesVerdict};
use crate::membership::Configurations;
use crate::peer::{Hello, Request};
use crate::replica::{Replica, ReplicaError, Vote};
use kvorum_core::agreement::Voter;
use kvorum_core::{ClusterId, NodeId, PastRuns, Run, Slot, StoreSeen};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What this node knows of the members.
pub struct Membership {
    pub(super) cluster: Arc<Cluster>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timestamps: Arc<TimestampBound>,
    pub(super) rng: Arc<dyn Rng>,
    pub(super) replica: Replica,
    pub(super) configurations: Arc<Configurations>,
    /// How far a peer's clock may be from this node's before it is reported.
    pub(super) clock_offset_max: Duration,
    /// The disk, once the node knows whether it is that of the last run.
    pub(super) disk: OnceLock<DiskState>,
    // Held while the cluster's id is stored, so that only one id is ever stored. Held across an await, by tasks that
    // nothing else waits for.
    pub(crate) making_cluster_id: tokio::sync::Mutex<()>,
    /// Whether the log has said that this store does not count yet.
    pub(super) is_undecided_told: AtomicBool,
}

/// The disk that the node runs on.
pub(super) struct DiskState {
    /// Durably records a run on the disk.
    record: Box<dyn Fn(Run) + Send + Sync>,
    /// Whether the disk was the one of the last run when the node started.
    is_recognised: bool,
    /// Whether this run is recorded, so that the next start recognises the disk.
    is_recorded: AtomicBool,
}

impl Membership {
    /// Sets whether the node's disk is the one of the last run, and how a run is recorded on it. Called once, before
    /// the node serves.
    pub fn set_disk(&self, is_recognised: bool, record: impl Fn(Run) + Send + Sync + 'static) {
        let is_recorded = AtomicBool::new(is_recognised);
        let _ = self.disk.set(DiskState { record: Box::new(record), is_recognised, is_recorded });
    }

    /// Whether the disk is known to be the one of the last run.
    pub(crate) fn recognises_disk(&self) -> bool {
        self.disk.get().is_some_and(|disk| disk.is_recognised)
    }

    /// Records the disk for the next start, once this node has met a majority of the members.
    pub(crate) fn record_disk(&self) {
        let Some(disk) = self.disk.get() else { return };
        if !self.cluster.has_met() || disk.is_recorded.swap(true, Ordering::SeqCst) {
            return;
        }
        (disk.record)(self.cluster.registry().run());
    }

    /// Notes that the log has said that this store does not count yet.
    pub(crate) fn note_undecided_told(&self) {
        self.is_undecided_told.store(true, Ordering::Relaxed);
    }

    /// Logs that the eligibility is decided, if the log said before that this store did not count yet.
    pub(crate) fn tell_decided(&self) {
        let is_told = self.is_undecided_told.load(Ordering::Relaxed);
        if !is_told || self.cluster.is_undecided() || !self.is_undecided_told.swap(false, Ordering::Relaxed) {
            return;
        }
        if self.cluster.votes() {
            tracing::info!("enough other nodes have answered: this store is quorum-eligible from now on");
        } else {
            tracing::info!(
                "enough other nodes have answered: this store is refilled before it is quorum-eligible"
            );
        }
    }

    /// Processes the cluster id in a message of the node at `index`: adopts it if enough nodes say it, or makes one if this
    /// node must.
    pub(crate) async fn meet_cluster_id(&self, index: Slot, theirs: Option<ClusterId>) {
        if self.cluster.id().is_some() {
            return;
        }
        let (id, is_made) = match self.cluster.note_id_said(index, theirs, self.clock.mono()) {
            IdVerdict::Adopt(id) => (id, false),
            IdVerdict::Make => {
                let mut bytes = [0; 16];
                self.rng.fill(&mut bytes);
                let Some(id) = ClusterId::new(u128::from_be_bytes(bytes)) else { return };
                (id, true)
            }
            IdVerdict::Wait => return,
        };
        // Store it before any node is told. Of two tasks that come here at once, the later one finds the id of the
        // earlier.
        let _making = self.making_cluster_id.lock().await;
        if self.cluster.id().is_some() {
            return;
        }
        match self.replica.store_cluster_id(id).await {
            Ok(()) => {
                self.cluster.adopt_id(id);
                let how = if is_made { "made" } else { "adopted" };
                tracing::info!(cluster_id = %id, "{how} the cluster's id: stores of another id are refused from now on");
            }
            Err(error) => tracing::warn!(%error, "cannot store the cluster's id: this node tries again"),
        }
    }

    /// The heartbeat request.
    pub(crate) fn ping(&self) -> Request {
        let (cluster_id, registry) = (self.cluster.id(), self.cluster.registry().entries());
        Request::Ping { wall: self.clock.wall(), cluster_id, registry }
    }

    /// Processes, and durably stores, the message of the node `from` about all nodes' stores. Ignores senders and
    /// entries that are no members of the cluster: the registry has one place for each member.
    pub(crate) async fn hear(&self, from: NodeId, said: &[StoreSeen]) {
        if self.cluster.slot_of(from).is_none() {
            return;
        }
        let said: Vec<StoreSeen> =
            said.iter().filter(|seen| self.has_place_for(seen.node)).copied().collect();
        let heard = self.cluster.registry().hear(from, &said);
        self.settle(heard).await;
    }

    /// Processes what the hello of a peer says of this node's store, and returns what must be [settled](Self::settle). The
    /// eligibility reflects it at once, so no request over the new connection meets an older copy that still counts.
    pub(crate) fn hear_hello(&self, theirs: &Hello) -> Option<Heard> {
        let is_heard =
            self.cluster.slot_of(theirs.node).is_some() && !canary::is(Canary::RememberedRunComesLate);
        let (store, run) = theirs.remembers.filter(|_| is_heard)?;
        let own = StoreSeen { node: self.cluster.id_of(self.cluster.me()), store, run };
        let heard = self.cluster.registry().hear(theirs.node, &[own]);
        heard.is_news().then_some(heard)
    }

    /// Durably stores what was heard, and logs it.
    pub(crate) async fn settle(&self, heard: Heard) {
        let Heard { verdict, run, behind, news } = heard;
        if !news.is_empty() {
            self.remember(&news).await;
        }
        if behind.is_some_and(|store| self.may_have_forgotten(store)) {
            self.configurations.forget().await;
        }
        if verdict.is_some() {
            self.cluster.note_change();
        }
        let votes = verdict.map(|verdict| verdict == VotesVerdict::Votes);
        let vote = votes.map(|votes| if votes { Vote::Yes } else { Vote::No });
        if let Err(error) = self.store_heard(vote, run).await {
            tracing::warn!(%error, "cannot store what other nodes know of this node's store: they tell it again after a \
                                    restart");
        }
        let Some(votes) = votes else { return };
        if behind.is_some() {
            tracing::warn!(
                "another node saw a later run of this node: the data directory is an older copy, or is used twice; \
                 this store is not quorum-eligible until it has been refilled"
            );
        } else if !votes {
            tracing::warn!(
                "another node knows an older store of this node: its records are lost here; this store is not \
                 quorum-eligible until it has been refilled"
            );
        }
    }

    /// Stores whether this store is eligible, and then the run that it goes on with: once that is stored, nobody tells this node
    /// again what it lacks.
    async fn store_heard(
        &self,
        vote: Option<Vote>,
        run: Option<(Run, PastRuns)>,
    ) -> Result<(), ReplicaError> {
        if let Some(vote) = vote {
            self.replica.store_votes(vote).await?;
        }
        if let Some((run, past)) = run {
            self.replica.store_run(run, &past).await?;
            self.cluster.registry().note_stored(run, past);
        }
        Ok(())
    }

    /// Whether this store may have forgotten what it promised about configurations: another node remembers a later run of this
    /// node, with `store`. Not if that is another store, and this one came after it: it was made in this run, or a
    /// configuration retired the other one.
    fn may_have_forgotten(&self, store: u128) -> bool {
        let own = self.cluster.voter();
        let is_retired = || self.cluster.configuration().is_retired(Voter { store, ..own });
        let came_after = self.replica.is_new() || is_retired();
        store == own.store || !came_after || canary::is(Canary::NewStoreForgets)
    }

    /// Durably stores the store and run that a node was met with, before any other node is told. `entries` are its words.
    pub(crate) async fn meet(&self, node: NodeId, entries: &[StoreSeen], votes: bool) {
        if self.cluster.slot_of(node).is_none() {
            return;
        }
        let news = self.cluster.registry().meet(node, entries, votes);
        if let Some(news) = news {
            self.remember(&[news]).await;
            self.cluster.note_change();
        }
    }

    /// Whether the registry has a place for `node`: members only.
    fn has_place_for(&self, node: NodeId) -> bool {
        self.cluster.slot_of(node).is_some() || canary::is(Canary::RegistryTakesForeignNodes)
    }

    async fn remember(&self, news: &[StoreSeen]) {
        match self.replica.store_seen(news).await {
            Ok(()) => self.cluster.registry().remember(news),
            Err(error) => {
                tracing::warn!(%error, "cannot store which node was seen with which store: after a restart this node \
                                        asks again");
            }
        }
    }

    /// Adds an exchange that shows a peer's clock, and judges this node's own clock by all peers'.
    pub(crate) fn note_clock(&self, index: Slot, exchange: Exchange) {
        self.report_clock(index, exchange);
        let offsets: Vec<_> = self.cluster.others().filter_map(|index| self.clock_offset(index)).collect();
        let limit = self.timestamps.limit_millis();
        let majority = usize::from(self.cluster.member_count() / 2) + 1;
        let within = offsets.iter().filter(|offset| offset.is_surely_within(limit)).count();
        let over = offsets.iter().filter(|offset| offset.is_surely_over(limit)).count();
        let standing = match over {
            _ if within + 1 >= majority => ClockStanding::Confirmed,
            0 => ClockStanding::Unknown,
            over if over >= majority => ClockStanding::Off,
            _ => ClockStanding::Disputed,
        };
        let before = self.timestamps.note_standing(standing);
        if before != standing {
            self.cluster.note_change();
        }
        let was_down = matches!(before, ClockStanding::Off | ClockStanding::Disputed);
        match standing {
            ClockStanding::Off if before != ClockStanding::Off => tracing::error!(
                limit_ms = limit,
                "this node's clock is further than --clock-offset-limit from the clocks of a majority of the nodes: \
                 the node takes no writes, expires and purges nothing until its clock is right; synchronise the \
                 machine's clock (NTP)"
            ),
            ClockStanding::Disputed if !was_down => tracing::warn!(
                limit_ms = limit,
                "this node's clock is further than --clock-offset-limit from another node's, and no majority is \
                 reachable to decide which is right: the node takes no writes and purges nothing until more nodes \
                 answer"
            ),
            ClockStanding::Confirmed if was_down => {
                tracing::info!(
                    "a majority of the nodes confirms this node's clock: the node takes writes again"
                );
            }
            _ => {}
        }
    }

    /// Logs when a peer's clock is too far off, and when it is near again.
    fn report_clock(&self, index: Slot, exchange: Exchange) {
        let bound = u64::try_from(self.clock_offset_max.as_millis()).unwrap_or(u64::MAX);
        let Some(news) = self.cluster.note_clock(index, exchange, bound) else { return };
        let node = self.cluster.url_of(index);
        match news {
            ClockNews::Far(ClockOffset { millis, error_millis }) => tracing::warn!(
                node,
                offset_ms = millis,
                error_ms = error_millis,
                "the clock of a node differs from this node's by more than --max-clock-offset: records may expire \
                 early or late; synchronise the clocks of both machines (NTP)"
            ),
            ClockNews::Near(ClockOffset { millis, .. }) => {
                tracing::info!(
                    node,
                    offset_ms = millis,
                    "the clock of a node is within --max-clock-offset of this node's again"
                );
            }
        }
    }

    /// How far the clock of the node at `index` is ahead of this node's now; `None` without a recent exchange.
    pub fn clock_offset(&self, index: Slot) -> Option<ClockOffset> {
        self.cluster.clock_offset(index, self.clock.mono(), self.clock.wall())
    }
}
