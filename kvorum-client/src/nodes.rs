//! The known nodes, their health, and where keys belong.
//!
//! The client learns the topology from the nodes: when an answer has another epoch than the known one, it
//! asks for the topology again. It asks once at a time and no more often than every [`REFRESH_INTERVAL`],
//! because nodes may disagree for a while. Until the topology is known, and wherever it does not help, any
//! node is used.
//!
//! A node that failed is set aside and probed at `/v0/status`, first after [`PROBE_DELAY_MIN`], then after twice as long
//! each time up to [`PROBE_DELAY_MAX`], until it says that it accepts requests.

use crate::choice::choose;
use crate::pool::{Access, Health, Node, PoolLimits};
use crate::request::{Call, Wanted};
use crate::retry::{later, mix};
use crate::topology::Topology;
use http::header::HeaderName;
use http::{HeaderMap, StatusCode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const EPOCH: HeaderName = HeaderName::from_static("kvorum-epoch");

/// The waits before the first probe of a node set aside, and the longest between later ones. A random part is
/// added, so that clients which lost a node together do not come back together.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(100);
const PROBE_DELAY_MAX: Duration = Duration::from_secs(5);

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer to a probe that is read, in bytes.
const STATUS_BYTES_MAX: usize = 1024 * 1024;

/// The least time between two requests for the topology.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a request for the topology may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest topology that is read, in bytes: 65,536 partitions with 8 ranks are 1.4 MB; the rest is for URLs.
const TOPOLOGY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// FROM of an operation that names none, where the topology does not say the nodes' default.
const FROM_DEFAULT: u32 = 3;

/// A client's nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    configured: Vec<Arc<Node>>,
    limits: PoolLimits,
    /// What nodes that are learned are shown.
    access: Access,
    is_routing: bool,
    /// How many operations have begun: they take turns over the nodes.
    turn: AtomicUsize,
    /// Guards the view; held to clone the pointer or to replace it.
    view: Mutex<Arc<View>>,
    /// Guards the instant of the last request for the topology; held for a comparison. `None`: never asked.
    refreshed_at: Mutex<Option<Instant>>,
}

/// The topology and its nodes at one moment.
#[derive(Debug, Default)]
struct View {
    topology: Option<Topology>,
    /// The topology's nodes, in its order; empty without one.
    placed: Vec<Arc<Node>>,
}

impl Nodes {
    pub(crate) fn new(
        configured: Vec<Arc<Node>>,
        limits: PoolLimits,
        access: Access,
        is_routing: bool,
    ) -> Self {
        Self {
            configured,
            limits,
            access,
            is_routing,
            turn: AtomicUsize::new(0),
            view: Mutex::default(),
            refreshed_at: Mutex::default(),
        }
    }

    /// Returns the number of an operation, one more than the last, so that operations spread over all nodes.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Chooses the node of an attempt: a replica of the key if one is healthy, else a node of the topology,
    /// else one that the client was given.
    pub(crate) fn choose(
        &self,
        wanted: &Wanted,
        turn: usize,
        tried: &[Arc<Node>],
        now: Instant,
    ) -> Option<Arc<Node>> {
        let view = self.view();
        let holders = view.holders(wanted);
        let turn = if wanted.has_rivals && !holders.is_empty() { 0 } else { turn };
        choose(&[&holders, &view.placed, &self.configured], turn, tried, now)
    }

    /// Whether there is a node that is healthy and not among those that were tried.
    pub(crate) fn has_other(&self, tried: &[Arc<Node>], now: Instant) -> bool {
        let view = self.view();
        view.placed.iter().chain(&self.configured).any(|node| {
            node.health(now) == Health::Well && !tried.iter().any(|other| Arc::ptr_eq(other, node))
        })
    }

    /// The epoch of the known topology.
    pub(crate) fn epoch(&self) -> Option<String> {
        self.view().topology.as_ref().map(|topology| topology.epoch().to_owned())
    }

    /// How many nodes are set aside.
    pub(crate) fn aside_count(&self) -> usize {
        let (view, now) = (self.view(), Instant::now());
        let given =
            self.configured.iter().filter(|node| !view.placed.iter().any(|other| Arc::ptr_eq(other, node)));
        view.placed.iter().chain(given).filter(|node| node.health(now) == Health::Aside).count()
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares the epoch in an answer of `node` with the known one, and asks for the topology if they
    /// differ.
    pub(crate) fn notice(self: &Arc<Self>, headers: &HeaderMap, node: &Arc<Node>) {
        if !self.is_routing {
            return;
        }
        let Some(epoch) = headers.get(EPOCH).filter(|epoch| !epoch.is_empty()) else { return };
        let view = self.view();
        if view.topology.as_ref().is_some_and(|topology| topology.epoch().as_bytes() == epoch.as_bytes()) {
            return;
        }
        let now = Instant::now();
        {
            let mut refreshed_at = self.refreshed_at.lock().unwrap_or_else(PoisonError::into_inner);
            if refreshed_at.is_some_and(|at| now < later(at, REFRESH_INTERVAL)) {
                return;
            }
            *refreshed_at = Some(now);
        }
        tokio::spawn(refresh(Arc::downgrade(self), Arc::clone(node)));
    }

    /// Replaces the known topology. A description that cannot be parsed changes nothing: requests then take
    /// one hop more, and the next answer of another epoch causes another attempt.
    fn learn(&self, body: &[u8]) {
        let Ok(topology) = Topology::parse(body) else { return };
        let before = self.view();
        let known: HashMap<&str, &Arc<Node>> =
            before.placed.iter().chain(&self.configured).map(|node| (node.address(), node)).collect();
        let mut placed = Vec::with_capacity(topology.urls().len());
        for url in topology.urls() {
            let Ok(node) = Node::new(url, self.limits, &self.access) else { return };
            // Who was told to call nodes by https is not led to others: its token would go over the network in clear.
            if !node.is_secured() && self.configured.iter().all(|node| node.is_secured()) {
                return;
            }
            // A node that was known already stays the same value, with its connections and its health.
            placed.push(known.get(node.address()).map_or_else(|| Arc::new(node), |&node| Arc::clone(node)));
        }
        let view = Arc::new(View { topology: Some(topology), placed });
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }
}

impl View {
    /// The replicas of a key; empty where they are not known, or are all nodes.
    fn holders(&self, wanted: &Wanted) -> Vec<Arc<Node>> {
        let (Some(topology), Some(key)) = (&self.topology, &wanted.key) else { return Vec::new() };
        let default = topology.default_from().unwrap_or(FROM_DEFAULT);
        let from = wanted.replicas.map_or(default, |replicas| replicas.from);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        if from >= self.placed.len() && !wanted.has_rivals {
            return Vec::new();
        }
        let places = topology.places(key).iter().take(from);
        places.filter_map(|&place| self.placed.get(usize::from(place)).cloned()).collect()
    }
}

/// Asks `node` for the topology, unless the client is gone.
async fn refresh(nodes: Weak<Nodes>, node: Arc<Node>) {
    let deadline = later(Instant::now(), REFRESH_TIMEOUT);
    let request = Call::question("/v0/topology", &node);
    let asked = node.ask(request, TOPOLOGY_BYTES_MAX, deadline).await;
    if let (Ok((StatusCode::OK, body)), Some(nodes)) = (asked, nodes.upgrade()) {
        nodes.learn(&body);
    }
}

/// Sets aside, until a probe succeeds, a node whose failure would hit another request, too.
pub(crate) fn suspect(node: &Arc<Node>) {
    if node.set_aside() {
        tokio::spawn(probe(Aside(Arc::downgrade(node))));
    }
}

/// Takes a node back when it is dropped: also when the runtime ends, and the probe with it.
struct Aside(Weak<Node>);

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            node.take_back();
        }
    }
}

async fn probe(aside: Aside) {
    let mut delay = PROBE_DELAY_MIN;
    let mut seed = aside.0.as_ptr().addr() as u64;
    loop {
        seed = mix(seed);
        let half = delay / 2;
        sleep(delay + half.saturating_mul(u32::try_from(seed % 1_001).unwrap_or(0)) / 1_000).await;
        // The node is no longer in use: the client is gone, or the node left the topology.
        let Some(node) = aside.0.upgrade() else { return };
        let request = Call::question("/v0/status", &node);
        let deadline = later(Instant::now(), PROBE_TIMEOUT);
        if let Ok((StatusCode::OK, _)) = node.ask(request, STATUS_BYTES_MAX, deadline).await {
            return;
        }
        delay = (delay * 2).min(PROBE_DELAY_MAX);
    }
}
