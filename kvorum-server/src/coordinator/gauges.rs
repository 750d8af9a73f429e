//! Gauges: the state of the threads' links, gathered where every thread can read it.
//!
//! A link belongs to one thread. Twice a second each thread publishes the state of its links; status and metrics add
//! them up. So no call pays for counters that other threads read.

use super::{Coordinator, Peering, Shared};
use crate::cluster::ClockOffset;
use crate::metrics::{CallKind, CallMetrics, LatencyCounts};
use crate::peer::{LinkCounts, LinkState};
use crate::replica::{StoreState, Waiting};
use kvorum_core::{Partition, Slot};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two readings.
const READ_EVERY: Duration = Duration::from_millis(500);

/// One thread's link to one peer, as last read.
#[derive(Debug, Clone, Default)]
pub struct LinkGauge {
    /// Whether calls can be made and are answered.
    pub is_usable: bool,
    /// Why the link is not usable.
    pub reason: String,
    /// Calls that wait for their reply.
    pub in_flight: u64,
    /// The mean latency of a read.
    pub latency_mean: Duration,
    /// The 95th percentile of the latency of reads.
    pub latency_p95: Duration,
    /// The counters of the link since the node started.
    pub counts: LinkCounts,
    /// How long its answered calls took.
    pub call_metrics: Arc<CallMetrics>,
}

/// The links of all threads.
#[derive(Debug, Default)]
pub struct Gauges {
    // Guards the readings, by thread and peer. Held to write or read a few of them.
    links: Mutex<Vec<Vec<LinkGauge>>>,
}

/// The state of another node.
#[derive(Debug, Clone, Default)]
pub struct PeerStatus {
    /// The URL of the node.
    pub url: String,
    /// The id of the node.
    pub node: String,
    /// `up`, `suspect` (some thread gets no answers) or `down`.
    pub state: &'static str,
    /// Why the node is not up.
    pub reason: String,
    /// Whether its store is quorum-eligible, as it last said.
    pub votes: bool,
    /// Calls that wait for their reply.
    pub in_flight: u64,
    /// The mean latency of a read.
    pub latency_mean: Duration,
    /// The 95th percentile of the latency of reads.
    pub latency_p95: Duration,
    /// The sums of its links' counters.
    pub counts: LinkCounts,
    /// Calls to it that failed for this node's requests.
    pub failures: u64,
    /// How far its clock is ahead; `None` without a recent exchange.
    pub clock_offset: Option<ClockOffset>,
    /// The hints that wait for it.
    pub hints: Waiting,
    /// Hints delivered to it.
    pub hints_delivered: u64,
}

impl Coordinator {
    /// Publishes the state of this thread's links, forever.
    pub async fn keep_gauges(self: Rc<Self>, thread: usize) {
        loop {
            let slots = self.view().slots().last().map_or(0, |last| last.0 + 1);
            let links = (0..slots).map(|index| self.read_link(Slot(index))).collect();
            {
                let mut all = self.shared.peering.gauges.links();
                if all.len() <= thread {
                    all.resize_with(thread + 1, Vec::new);
                }
                if let Some(place) = all.get_mut(thread) {
                    *place = links;
                }
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    fn read_link(&self, index: Slot) -> LinkGauge {
        let Some(link) = self.link(index) else { return LinkGauge::default() };
        let reason = match link.state() {
            LinkState::Up { .. } if link.is_usable() => String::new(),
            LinkState::Up { .. } => "it does not answer".to_owned(),
            LinkState::Connecting { .. } => "connecting".to_owned(),
            LinkState::Down { reason, .. } => reason,
        };
        let latency = link.latency();
        LinkGauge {
            is_usable: link.is_usable(),
            reason,
            in_flight: link.in_flight() as u64,
            latency_mean: latency.mean,
            latency_p95: latency.p95,
            counts: link.counts(),
            call_metrics: link.call_metrics(),
        }
    }
}

impl PeerStatus {
    /// The state of every other node; of none if this one was removed, and leaves them alone.
    pub fn of_all(shared: &Shared) -> Vec<Self> {
        let cluster = &shared.cluster;
        if cluster.is_removed() {
            return Vec::new();
        }
        let links = shared.peering.gauges.links().clone();
        let status = |index: Slot| {
            let of_peer: Vec<&LinkGauge> =
                links.iter().filter_map(|links| links.get(usize::from(index.0))).collect();
            let usable = of_peer.iter().filter(|link| link.is_usable).count();
            let mut status = Self {
                url: cluster.url_of(index).to_owned(),
                node: cluster.id_of(index).to_string(),
                state: match usable {
                    0 => "down",
                    some if some < of_peer.len() => "suspect",
                    _ => "up",
                },
                clock_offset: shared.background.membership.clock_offset(index),
                hints: shared.hints.waiting_for(cluster.id_of(index)),
                ..Self::default()
            };
            for link in of_peer {
                if status.reason.is_empty() {
                    status.reason.clone_from(&link.reason);
                }
                status.in_flight += link.in_flight;
                status.latency_mean = status.latency_mean.max(link.latency_mean);
                status.latency_p95 = status.latency_p95.max(link.latency_p95);
                status.counts = sum(status.counts, link.counts);
            }
            if let Some(peer) = cluster.peer(index) {
                status.votes = peer.votes.load(Ordering::Relaxed);
                status.failures = peer.failures.load(Ordering::Relaxed);
                status.hints_delivered = peer.hints_delivered.load(Ordering::Relaxed);
            }
            status
        };
        cluster.others().map(status).collect()
    }
}

impl Gauges {
    fn links(&self) -> MutexGuard<'_, Vec<Vec<LinkGauge>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peering {
    /// How long the answered calls of `kind` to each other node took, in the order of [`PeerStatus::of_all`].
    pub fn call_latencies(&self, kind: CallKind) -> Vec<LatencyCounts> {
        let links = self.gauges.links();
        let of_peer = |index: Slot| {
            let mut total = LatencyCounts::default();
            let gauges = links.iter().filter_map(|links| links.get(usize::from(index.0)));
            gauges.filter_map(|gauge| gauge.call_metrics.of(kind)).for_each(|histogram| total.add(histogram));
            total
        };
        self.cluster.others().map(of_peer).collect()
    }
}

/// Whether a default request for any key finds enough replicas that answer and are quorum-eligible, as far as is known.
pub fn finds_default_quorum(shared: &Shared) -> bool {
    let cluster = &shared.cluster;
    let quorum = shared.settings.default_quorum(cluster.node_count());
    let view = cluster.view();
    let others = cluster.others().zip(PeerStatus::of_all(shared));
    let mut counts: BTreeSet<Slot> =
        others.filter(|(_, peer)| peer.state == "up" && peer.votes).map(|(index, _)| index).collect();
    if cluster.votes() && !matches!(shared.replica.health(), StoreState::Failed { .. }) {
        counts.insert(cluster.me());
    }
    let partitions = (0..=u16::MAX).take(1 << cluster.partition_bits());
    partitions.map(Partition).all(|partition| {
        let is_enough = |list: &[Slot]| {
            list.iter().filter(|index| counts.contains(index)).count() >= usize::from(quorum.ack())
        };
        view.route(partition).of(quorum.from()).writes().all(is_enough)
    })
}

fn sum(a: LinkCounts, b: LinkCounts) -> LinkCounts {
    LinkCounts {
        calls: a.calls + b.calls,
        calls_not_sent: a.calls_not_sent + b.calls_not_sent,
        calls_lost: a.calls_lost + b.calls_lost,
        calls_timed_out: a.calls_timed_out + b.calls_timed_out,
        calls_refused: a.calls_refused + b.calls_refused,
        connects: a.connects + b.connects,
        connects_failed: a.connects_failed + b.connects_failed,
        bytes_in: a.bytes_in + b.bytes_in,
        bytes_out: a.bytes_out + b.bytes_out,
    }
}
