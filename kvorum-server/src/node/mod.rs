//! The node: opens the store, starts the threads, and stops them in order.
//!
//! One network thread per core, each with its own single-threaded runtime and its own listener on the shared port
//! (`SO_REUSEPORT`); a request stays on its thread. One commit thread and one sweeper per store, two pools of workers,
//! and the engine's own threads.

mod descriptors;
mod error;
mod home;
mod join;
pub mod peer_secrets;
mod signals;
mod sockets;
mod span_export;
mod watches;

pub use descriptors::{fit_connections, raise_file_limit};
pub use error::NodeError;
pub use home::Disk;
pub use signals::{END_SHOWN, Stop, StopSignals};

use self::home::{
    Alone, Unusable, check_home, placed_for, placed_of_joined, recognise, record_disk, removed_in,
};
use crate::admin_socket::{self, SocketFile};
use crate::authority::Authority;
use crate::clock::{Clock, Rng, SystemClock, SystemRng, TimestampBound};
use crate::cluster::{Cluster, PeerRegistry};
use crate::config::{self, Config, Resolved, SETTINGS};
use crate::coordinator::{Settings, Shared, Stamps};
use crate::crash::{self, Point};
use crate::history::History;
use crate::http::admission::Admission;
use crate::http::body::BodyBudget;
use crate::http::server::{self, Addresses, Listener, Phase};
use crate::http::{Another, MemberPages, NodeFacts, Rooms, Service, ShownSetting, ThreadState};
use crate::log::Repeats;
use crate::log_limit::LogLimit;
use crate::membership::{StartError, genesis_of};
use crate::metrics::{StoreMetrics, ThreadMetrics};
use crate::peer::{Connector, PeerAuth, PeerAuthMode, PeerLimits};
use crate::replica::{
    Birth, Chain, DurabilityMode, Hints, Home, Purge, Replica, ReplicaError, ReplicaParts, ReplicaThreads,
    Vote, Workers,
};
use crate::security::Security;
use crate::spans::Spans;
use crate::storage::data_dir::DataDir;
use crate::storage::identity::{DirectoryIdentity, Vouch};
use crate::storage::lsm::{LsmConfig, LsmEngine};
use crate::storage::{Engine, EngineError};
use crate::supervise::{Part, Supervisor, Thread};
use crate::tls::Tls;
use crate::worker::Pools;
use futures_util::FutureExt as _;
use kvorum_core::agreement::Voter;
use kvorum_core::configuration::Side;
use kvorum_core::{NodeId, Slot, StoreSeen, Topology};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use watches::FileWatch;

/// A running node.
///
/// Fields are dropped in order: the network first, the directory's lock last.
pub struct Node {
    address: SocketAddr,
    network: Vec<Thread>,
    service: Option<Arc<Service>>,
    replica: Option<ReplicaThreads>,
    /// The thread on which the node waits to join a cluster, and what it opens then.
    join: Option<(Thread, Opened)>,
    /// The threads that watch the files of tokens and of peer secrets.
    watches: Vec<FileWatch>,
    /// The thread that writes the audit log.
    audit: Option<Thread>,
    admin_socket: Option<SocketFile>,
    data_dir: DataDir,
}

impl Node {
    /// Starts a node. It listens when this returns. It serves clients once it is ready ([`Node::wait_until_ready`]),
    /// and answers 503 until then.
    pub fn start(config: &Config) -> Result<Self, NodeError> {
        Self::start_beside(config, None)
    }

    /// Starts a node of a process that runs several: a plan may have `another` started.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_beside(config: &Config, another: Option<&Another>) -> Result<Self, NodeError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let rng: Arc<dyn Rng> = Arc::new(SystemRng);
        let data_dir = DataDir::open(&config.data_dir).map_err(NodeError::DataDir)?;
        let listeners = sockets::listen(config)?;
        let address = listeners.first().map_or(config.listen, |(_, address)| *address);
        let names = Names::new(config, address);
        let supervisor = Supervisor::default();
        let (tls, tls_files) = watches::open_tls(config, &names.url)?.unzip();
        let service = service(config, &names, &clock, &*rng, (listeners.len(), tls), supervisor.clone());
        if let Some(another) = another {
            let _ = service.another.set(another.clone());
        }
        let mut node = Self {
            address,
            network: Vec::new(),
            service: Some(Arc::clone(&service)),
            replica: None,
            join: None,
            audit: None,
            watches: Vec::new(),
            admin_socket: None,
            data_dir,
        };
        node.audit = open_audit(config, &service)?;
        watches::warn_if_open(config);
        node.watches.extend(watches::tokens(config, &service)?);
        node.watches.extend(watches::peer_secrets(config, &service)?);
        node.watches.extend(watches::tls(tls_files, &service)?);
        let mut admin = None;
        if let Some(path) = &config.admin_socket {
            let failed = |source| NodeError::AdminSocket { path: path.clone(), source };
            let (listener, file) = admin_socket::listen(path).map_err(failed)?;
            (admin, node.admin_socket) = (Some(listener), Some(file));
        }
        for (index, (listener, _)) in listeners.into_iter().enumerate() {
            // The first thread also serves the socket for administration.
            node.network.push(sockets::serve_on_thread(index, listener, admin.take(), &service)?);
        }
        let (engine, index_bytes) = open_engine(&node.data_dir, config, &names, &supervisor)?;
        crash::point(Point::StoreOpened);
        if let Some(epoch) = removed_in(&*engine, NodeId::of_url(&names.url)) {
            let (path, url) = (config.data_dir.clone(), names.url.clone());
            return Err(NodeError::Removed { path, url, epoch });
        }
        let pools = Arc::new(Pools::start(config.pool_threads, &supervisor).map_err(NodeError::Thread)?);
        let workers = Workers::Threads;
        let identity = Arc::new(DirectoryIdentity::new(node.data_dir.path()));
        let disk = Disk { identity, vouched: Vouch::left_in(node.data_dir.path()) };
        let is_vouched = disk.vouched.is_some();
        if !config.join.is_empty() {
            let config = config.clone();
            let parts = Apart { config, names, clock, rng, disk, engine, index_bytes, pools };
            node.join = Some(open_apart(parts, &service)?);
            return Ok(node);
        }
        let connector: Rc<dyn Connector> = Rc::new(sockets::TcpConnector::new(&service));
        let names = &names;
        let parts =
            Opening { config, names, clock, rng, disk, engine, index_bytes, pools, workers, connector };
        // A node that joins no cluster waits for nothing.
        node.replica = open(parts, &service).now_or_never().transpose()?.flatten();
        if is_vouched && let Err(error) = Vouch::forget(node.data_dir.path()) {
            tracing::warn!(%error, "the operator's confirmation cannot be removed from the data directory: the next \
                                    start uses it again");
        }
        Ok(node)
    }

    /// Waits until the node serves clients: it has taken the hints that its peers hold for it, or its wait for them is
    /// over.
    pub fn wait_until_ready(&self) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
        runtime.block_on(self.ready());
    }

    /// Like [`Node::wait_until_ready`], unless the process is told to end first. Returns whether the node serves.
    pub fn wait_until_ready_or(&self, stop: &StopSignals) -> bool {
        stop.waiting.block_on(async {
            tokio::select! {
                is_ready = self.ready() => is_ready,
                _ = stop.told() => false,
                () = self.until_ended() => false,
            }
        })
    }

    /// Waits until the node cannot serve any more because a thread or task that it needs has ended.
    async fn until_ended(&self) {
        match &self.service {
            Some(service) => drop(service.supervisor.until_ended().await),
            None => std::future::pending().await,
        }
    }

    async fn ready(&self) -> bool {
        let Some(service) = &self.service else { return false };
        let mut phase = service.phase.subscribe();
        let phase = phase.wait_for(|phase| matches!(phase, Phase::Ready | Phase::Draining)).await;
        phase.is_ok_and(|phase| *phase == Phase::Ready)
    }

    /// The URL of the node.
    pub fn url(&self) -> &str {
        self.service.as_ref().map_or("", |service| &service.facts.url)
    }

    /// Whether the node waits to join a cluster.
    pub fn waits_to_join(&self) -> bool {
        self.service.as_ref().is_some_and(|service| service.rooms.get().is_none())
    }

    /// Waits until the node learns that it was removed from the cluster.
    pub async fn until_removed(&self) {
        if self.ready().await
            && let Some(rooms) = self.service.as_ref().and_then(|service| service.rooms.get())
        {
            let cluster = &rooms.shared.cluster;
            return cluster.until(|| cluster.is_removed()).await;
        }
        std::future::pending::<()>().await;
    }

    /// The address that the node listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, answers the accepted requests (within the drain time-out), stores the queued writes, and closes
    /// the store.
    pub fn stop(mut self) {
        self.end();
    }

    /// Announces that the node will be told to stop, with all nodes of its process: it logs none of them as lost.
    pub fn note_draining(&self) {
        if let Some(rooms) = self.service.as_ref().and_then(|service| service.rooms.get()) {
            rooms.shared.peering.note_draining();
        }
    }

    /// Tells the node to stop, without waiting; [`Node::stop`] waits.
    pub fn begin_to_stop(&self) {
        self.note_draining();
        self.network.iter().for_each(Thread::may_end);
        if let Some((join, _)) = &self.join {
            join.may_end();
        }
        if let Some(service) = &self.service {
            service.phase.send_replace(Phase::Draining);
        }
    }

    fn end(&mut self) {
        // While its listener is still there; see `SocketFile`.
        self.admin_socket = None;
        self.begin_to_stop();
        self.network.drain(..).for_each(Thread::join);
        if let Some((join, opened)) = self.join.take() {
            join.join();
            self.replica = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        crash::point(Point::CloseDrained);
        self.watches.drain(..).for_each(FileWatch::end);
        if let (Some(service), Some(audit)) = (&self.service, self.audit.take()) {
            audit.may_end();
            service.security.audit().close();
            audit.join();
        }
        self.service = None;
        self.replica = None;
        crash::point(Point::CloseDone);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// The parts of a node on the calling thread, with a given network, clock and engine. The simulation runs nodes in this
/// way.
pub struct LocalParts<L: Listener> {
    /// Its settings.
    pub config: Config,
    /// Its source of time.
    pub clock: Arc<dyn Clock>,
    /// Its source of random numbers.
    pub rng: Arc<dyn Rng>,
    /// The identity of its disk.
    pub disk: Disk,
    /// Its store, which must never block.
    pub engine: Arc<dyn Engine>,
    /// Memory for the newest rows of the index, in bytes.
    pub index_bytes: usize,
    /// The source of connections from clients and peers.
    pub listener: L,
    /// Opens connections to peers.
    pub connector: Rc<dyn Connector>,
    /// Called once, before the store is opened. It puts the secrets in that the node proves to its peers, and may replace them later.
    pub secrets: Box<dyn FnOnce(Arc<PeerAuth>)>,
    /// Called once, with the handle to the running node.
    pub started: Box<dyn FnOnce(Handle)>,
}

/// A handle to a node on the calling thread.
#[derive(Clone)]
pub struct Handle(Arc<Service>);

impl Handle {
    /// The state of its coordinators; none while the store is being opened.
    pub fn shared(&self) -> Option<&Arc<Shared>> {
        self.0.rooms.get().map(|rooms| &rooms.shared)
    }

    /// The node's phase.
    pub fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Tells the node to drain.
    pub fn drain(&self) {
        if let Some(shared) = self.shared() {
            shared.peering.note_draining();
        }
        self.0.phase.send_replace(Phase::Draining);
    }
}

/// Runs a node on the calling thread, which must run local tasks, until it is told to drain.
///
/// # Cancel safety
/// Dropping the future (and the tasks of its thread) is a crash: uncommitted writes are lost.
pub async fn run_local<L: Listener>(parts: LocalParts<L>) -> Result<(), NodeError> {
    let LocalParts { config, clock, rng, disk, engine, index_bytes, listener, connector, secrets, started } =
        parts;
    let names = Names::new(&config, config.listen);
    let service = service(&config, &names, &clock, &*rng, (1, None), Supervisor::default());
    secrets(Arc::clone(&service.peer_auth));
    let pools = Arc::new(Pools::inline());
    let workers = Workers::Tasks;
    let (config, names, own) = (&config, &names, Rc::clone(&connector));
    let opening =
        Opening { config, names, clock, rng, disk, engine, index_bytes, pools, workers, connector: own };
    let metrics = service.thread_metrics.first().map(Arc::clone).unwrap_or_default();
    let thread = ThreadState::new(Arc::clone(&service), metrics);
    let mut serving = pin!(server::serve(listener, thread, connector, 0));
    // A node that waits to join serves meanwhile: it answers that it is not ready.
    let opened = tokio::select! {
        biased;
        opened = open(opening, &service) => opened,
        () = &mut serving => return Ok(()),
    };
    if opened.is_err() {
        // The connections are tasks of this thread, which goes on. They end, as with a process.
        service.phase.send_replace(Phase::Draining);
        serving.as_mut().await;
    }
    let Some(replica) = opened? else { return Ok(()) };
    started(Handle(service));
    serving.await;
    replica.finish().await;
    Ok(())
}

/// The URLs of all nodes, and which one is this node's.
pub(crate) struct Names {
    url: String,
    cluster: Vec<String>,
}

impl Names {
    /// If the port is configured as 0, `address` has the port that the system has chosen.
    pub(crate) fn new(config: &Config, address: SocketAddr) -> Self {
        let configured = ["http", "https"].map(|scheme| (scheme, format!("{scheme}://{}", config.listen)));
        let actual = |url: &String| match configured.iter().find(|(_, configured)| configured == url) {
            Some((scheme, _)) => format!("{scheme}://{address}"),
            None => url.clone(),
        };
        Self { url: actual(&config.advertise), cluster: config.cluster.iter().map(actual).collect() }
    }
}

/// The most log lines in each period about requests that failed by this node's own fault.
const FAULT_LINES_MAX: u32 = 10;
/// The most log lines in each period about slow requests: on a slow disk every request is one.
const SLOW_LINES_MAX: u32 = 60;
const FAULT_LINES_PERIOD: Duration = Duration::from_mins(1);

/// The state that all of a node's threads share, before the store is open.
pub(crate) fn service(
    config: &Config,
    names: &Names,
    clock: &Arc<dyn Clock>,
    rng: &dyn Rng,
    (threads, tls): (usize, Option<Arc<Tls>>),
    supervisor: Supervisor,
) -> Arc<Service> {
    let mut run_id = [0; 4];
    rng.fill(&mut run_id);
    // Of this run of this node: two must not make the same ids.
    let seed = NodeId::of_url(&names.url).0 ^ u64::from(u32::from_be_bytes(run_id)) << 32;
    Arc::new(Service {
        joining: Mutex::default(),
        another: OnceLock::new(),
        clock: Arc::clone(clock),
        limits: config.limits,
        body_budget: Arc::new(BodyBudget::new(config.limits.body_bytes_in_flight_max)),
        admission: Admission::new(config.limits.value_bytes_max, config.limits.body_bytes_in_flight_max),
        connection_count: AtomicUsize::new(0),
        addresses: Addresses::default(),
        facts: NodeFacts {
            node: NodeId::of_url(&names.url).to_string(),
            url: names.url.clone(),
            own_host: Authority::of_url(&names.url).map(|(_, authority)| authority),
            cluster: names.cluster.clone(),
            durability: durability_name(config.durability),
            auth: config.auth.name(),
            peer_auth: config.peer_auth.name(),
            open_to: Some(config::open_to(config)).filter(|open_to| !open_to.is_empty()),
            insecure: config.is_insecure(),
            data_dir: config.data_dir.clone(),
            pages: MemberPages::of(&names.cluster),
            settings: shown_settings(config),
        },
        thread_metrics: (0..threads).map(|_| Arc::new(ThreadMetrics::default())).collect(),
        history: History::default(),
        started: clock.mono(),
        threads_open: watch::Sender::new(0),
        run_id: u32::from_be_bytes(run_id),
        faults: AtomicU64::new(0),
        fault_lines: LogLimit::new(FAULT_LINES_MAX, FAULT_LINES_PERIOD),
        slow_lines: LogLimit::new(SLOW_LINES_MAX, FAULT_LINES_PERIOD),
        phase: watch::Sender::new(Phase::Starting),
        peer_connections: AtomicU64::new(0),
        peer_places: Arc::default(),
        handshake_places: Arc::default(),
        peer_auth: Arc::new(peer_auth(config)),
        tls,
        refusals: Repeats::default(),
        spans: Arc::new(Spans::new(config.trace_endpoint.clone(), config.trace_sample, seed)),
        security: Arc::new(Security::new(config.auth)),
        supervisor,
        rooms: OnceLock::new(),
    })
}

fn peer_auth(config: &Config) -> PeerAuth {
    let auth = PeerAuth::new(config.peer_auth);
    if config.peer_ca.is_some() { auth.with_certificates() } else { auth }
}

/// Opens the audit log, if there is to be one.
fn open_audit(config: &Config, service: &Service) -> Result<Option<Thread>, NodeError> {
    let Some(path) = &config.audit_log else { return Ok(None) };
    let opened = service.security.audit().open(path, &service.supervisor);
    opened.map(Some).map_err(|source| NodeError::Audit { path: path.clone(), source })
}

/// The parameters for opening the layers below HTTP.
pub(crate) struct Opening<'a> {
    pub(crate) config: &'a Config,
    pub(crate) names: &'a Names,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) disk: Disk,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) index_bytes: usize,
    pub(crate) pools: Arc<Pools>,
    pub(crate) workers: Workers,
    /// Opens connections to members of a cluster that the node is to join.
    pub(crate) connector: Rc<dyn Connector>,
}

/// What a thread has opened.
type Opened = Arc<Mutex<Option<ReplicaThreads>>>;

/// The parameters for opening the layers below HTTP on a thread of their own.
struct Apart {
    config: Config,
    names: Names,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    disk: Disk,
    engine: Arc<dyn Engine>,
    index_bytes: usize,
    pools: Arc<Pools>,
}

/// Opens the layers below HTTP on a thread of its own, which may have to wait for the cluster that it joins. It ends when the
/// node drains.
fn open_apart(apart: Apart, service: &Arc<Service>) -> Result<(Thread, Opened), NodeError> {
    let (opened, service) = (Opened::default(), Arc::clone(service));
    let (kept, supervisor) = (Arc::clone(&opened), service.supervisor.clone());
    let run = move || {
        let Apart { config, names, clock, rng, disk, engine, index_bytes, pools } = apart;
        let connector: Rc<dyn Connector> = Rc::new(sockets::TcpConnector::new(&service));
        let (config, names, workers) = (&config, &names, Workers::Threads);
        let parts =
            Opening { config, names, clock, rng, disk, engine, index_bytes, pools, workers, connector };
        match block_on(open(parts, &service)) {
            Ok(replica) => *kept.lock().unwrap_or_else(PoisonError::into_inner) = replica,
            Err(error) => return tracing::error!(%error, "the node cannot start"),
        }
        let mut phase = service.phase.subscribe();
        drop(block_on(async { phase.wait_for(|phase| *phase == Phase::Draining).await.map(drop) }));
    };
    Ok((supervisor.thread(Part::Join, None, run).map_err(NodeError::Thread)?, opened))
}

/// Runs `future` to its end, with a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    #[expect(clippy::expect_used, reason = "every network thread has made one just like it")]
    let runtime = runtime.expect("a runtime of the calling thread");
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// The nodes that a node begins with: those of `--cluster`, or those that the cluster began with which it has joined.
fn first_nodes(chain: &Chain, names: &Names, joins: bool) -> Result<Topology, NodeError> {
    match chain.configurations.first() {
        Some(first) if joins => {
            let genesis = genesis_of(first)
                .map_err(|error| NodeError::Configuration(StartError::OtherCluster { error }))?;
            genesis.topology(Side::Old).map_err(NodeError::Topology)
        }
        _ => Topology::of_urls(&names.cluster).map_err(NodeError::Topology),
    }
}

/// Opens the layers below HTTP; from then on the node serves its peers, and takes its hints. A node that belongs to no cluster
/// waits until it does: none, if it was told to stop before.
#[expect(clippy::too_many_lines, reason = "the layers in their order, each opened with those below it")]
pub(crate) async fn open(
    opening: Opening<'_>,
    service: &Service,
) -> Result<Option<ReplicaThreads>, NodeError> {
    let Opening { config, names, clock, rng, disk, engine, index_bytes, pools, workers, connector } = opening;
    let mut begins_anew = engine.has_begun_anew();
    let node = NodeId::of_url(&names.url);
    let joins = !config.join.is_empty();
    let listed = Topology::of_urls(&names.cluster).map_err(NodeError::Topology)?;
    if listed.index_of(node).is_none() {
        return Err(NodeError::NotAmongNodes { url: names.url.clone() });
    }
    let store_metrics = Arc::new(StoreMetrics::default());
    let is_alone = listed.node_count() == 1 && !joins;
    let placed = if joins { placed_of_joined(&*engine) } else { placed_for(&listed) };
    let failed = |error| NodeError::Store { path: config.data_dir.clone(), error };
    let replace_damaged = |error: &ReplicaError| {
        home::replace_damaged(&*engine, (!joins).then_some(&listed), error).map_err(failed)
    };
    // This comes before any change. With a wrong list of nodes, nothing is made, indexed or set aside, except for a
    // store that was begun under such a list.
    match check_home(Home::of(&*engine), (node, &names.url), placed, &config.data_dir)? {
        None => {}
        Some(Unusable::Provisional) => {
            tracing::warn!(
                "the store replaced a damaged one under another --cluster and was never refilled: it is quarantined, \
                 and a new store is refilled from these nodes"
            );
            engine.set_aside().map_err(failed)?;
            begins_anew = true;
        }
        Some(Unusable::Damaged(error)) => {
            replace_damaged(&error)?;
            begins_anew = true;
        }
    }
    let alone =
        is_alone.then(|| Alone::of(&*engine, config, node)).transpose().map_err(NodeError::Replica)?;
    let has_peers = alone.as_ref().is_none_or(|alone| alone.has_grown);
    if is_alone && has_peers {
        tracing::warn!(
            "other nodes have joined this one: start it with --join and their URLs from now on, so that an empty data directory \
             is not taken for a new cluster"
        );
    }
    let purge = alone.map_or(Purge::Keep, |alone| alone.purge);
    let timestamps = timestamp_bound(config, !has_peers, &clock);
    let start = |vote| {
        let (replica, threads, lease) = Replica::start(ReplicaParts {
            engine: Arc::clone(&engine),
            clock: Arc::clone(&clock),
            timestamps: Arc::clone(&timestamps),
            value_bytes_max: config.limits.value_bytes_max,
            rng: Arc::clone(&rng),
            pools: Arc::clone(&pools),
            metrics: Arc::clone(&store_metrics),
            execution: config.execution,
            durability: config.durability,
            purge,
            node,
            // The URL of a node that is alone may change.
            bound_to: has_peers.then(|| Arc::from(&*names.url)),
            birth: Birth { vote, topology: placed },
            partition_bits: listed.partition_bits(),
            index_bytes,
            workers,
            supervisor: service.supervisor.clone(),
        })?;
        let facts = replica.facts()?;
        let chain = replica.chain()?;
        let hints = Hints::open(replica.clone(), config.hints, lease)?;
        Ok::<_, ReplicaError>((replica, threads, lease, facts, chain, hints))
    };
    let started = match start(first_vote(disk.vouched, is_alone, begins_anew)) {
        Err(error) if error.is_damage() && !is_alone => {
            replace_damaged(&error)?;
            start(Vote::No)
        }
        started => started,
    };
    let (replica, threads, lease, mut facts, mut chain, hints) = started.map_err(NodeError::Replica)?;
    forget_beginning(&*engine);
    let timestamps_of_peers = Arc::clone(&timestamps);
    let (value_bytes_max, memory) = (config.limits.value_bytes_max, peer_memory(config));
    let peer_limits = Arc::new(PeerLimits::new(timestamps_of_peers, value_bytes_max, memory));
    let voter = Voter { node, store: replica.store_id() };
    let is_named =
        |chain: &Chain| chain.configurations.last().is_some_and(|configuration| configuration.names(voter));
    if joins && !is_named(&chain) {
        let joining = join::Joining {
            service,
            url: &names.url,
            members: &join::members_to_ask(&config.join, &names.url, &chain),
            known: chain.configurations.first().map(|first| first.cluster),
            cluster_name: &config.cluster_name,
            place: &config.place,
            protocols: config.protocols,
            replica: &replica,
            clock: &clock,
            rng: &rng,
            limits: &peer_limits,
            connector: &connector,
        };
        if !joining.wait().await.map_err(NodeError::Replica)? {
            threads.finish().await;
            return Ok(None);
        }
        facts.cluster_id = replica.facts().map_err(NodeError::Replica)?.cluster_id;
        chain = replica.chain().map_err(ReplicaError::from).map_err(NodeError::Replica)?;
    }
    let topology = first_nodes(&chain, names, joins)?;
    let last = chain.configurations.last();
    let slot = last.and_then(|last| last.member(node)).map(|member| member.slot);
    let me = slot.or_else(|| topology.index_of(node).map(|index| Slot(index.0))).unwrap_or(Slot(0));
    let mut seen = facts.seen;
    // A store may contain foreign nodes that a peer once named. If this node passed them on, they would fill the peer
    // registry (registry).
    let members = |node: &NodeId| last.is_some_and(|last| last.member(*node).is_some());
    seen.retain(|node, _| topology.index_of(*node).is_some() || members(node));
    let is_recognised = has_peers && recognise(&disk, &replica);
    let own = StoreSeen { node, store: replica.store_id(), run: replica.run() };
    // The members have decided to take in just this store, so none that this node had before counts any more. If all of
    // them had to say that they remember none, one that is away would keep this store from counting.
    if facts.votes == Vote::Unknown && joins && is_named(&chain) {
        facts.votes = Vote::Yes;
    }
    let registry = PeerRegistry::new(own, topology.node_count(), seen, facts.votes).after(facts.past_runs);
    let name = config.cluster_name.clone();
    let cluster = Cluster::new(name, facts.cluster_id, topology, me, replica.store_id(), registry)
        .at(&names.url)
        .speaking(config.protocols)
        .placed_as(config.place.clone())
        .placing(replica.placed_since());
    let (time, chance) = (Arc::clone(&clock), Arc::clone(&rng));
    let stamps = Stamps::resume(node, lease, time, Arc::clone(&timestamps), chance, replica.clone());
    let auth = Arc::clone(&service.peer_auth);
    let shared =
        Shared::new(cluster, clock, peer_limits, auth, rng, replica.clone(), hints, stamps, settings(config));
    shared.configurations.resume(chain).map_err(NodeError::Configuration)?;
    let store = replica.store_id();
    shared.background.membership.set_disk(is_recognised, move |run| record_disk(&*disk.identity, store, run));
    // Only set here, so it cannot be set already.
    let _ = service.rooms.set(Rooms::new(shared, replica, pools, store_metrics));
    service.phase.send_if_modified(|phase| {
        let is_starting = *phase == Phase::Starting;
        if is_starting {
            *phase = Phase::Joining;
        }
        is_starting
    });
    Ok(Some(threads))
}

/// Removes the mark that a store was set aside: the replacement store has recorded what it lacks.
fn forget_beginning(engine: &dyn Engine) {
    if !engine.has_begun_anew() {
        return;
    }
    match engine.forget_beginning() {
        Ok(()) => crash::point(Point::AsideForgotten),
        Err(error) => {
            tracing::warn!(%error, "the mark of a quarantined store cannot be removed: it does no harm");
        }
    }
}

/// The memory for unfinished frames and unsent replies: at most two peers' worth of what their clients have sent them.
/// It is separate from the memory for this node's own clients, so that neither can use up the other.
fn peer_memory(config: &Config) -> u64 {
    config.limits.body_bytes_in_flight_max.saturating_mul(2)
}

/// Whether a store that is made now is quorum-eligible at once.
fn first_vote(vouched: Option<Vouch>, is_alone: bool, begins_anew: bool) -> Vote {
    match (is_alone, begins_anew) {
        (false, true) => Vote::No,
        (false, false) if vouched != Some(Vouch::Bootstrap) => Vote::Unknown,
        _ => Vote::Yes,
    }
}

/// The bound for timestamps ahead of `clock`, for a node that is alone or has peers.
fn timestamp_bound(config: &Config, is_alone: bool, clock: &Arc<dyn Clock>) -> Arc<TimestampBound> {
    let clock = Arc::clone(clock);
    Arc::new(if is_alone {
        TimestampBound::alone_at_first(clock, config.clock_offset_limit)
    } else {
        TimestampBound::new(clock, config.clock_offset_limit)
    })
}

/// The settings as operators see them.
fn shown_settings(config: &Config) -> Vec<ShownSetting> {
    let shown = |resolved: &Resolved| {
        let setting = SETTINGS.iter().find(|setting| setting.name == resolved.name);
        ShownSetting {
            name: resolved.name,
            value: resolved.value.clone(),
            default: setting.map_or("", |setting| setting.default),
            origin: resolved.origin.to_string(),
            help: setting.map_or("", |setting| setting.help),
        }
    };
    config.settings.iter().map(shown).collect()
}

/// The coordinator's settings.
fn settings(config: &Config) -> Settings {
    Settings {
        factor: config.replication_factor,
        request_timeout: config.request_timeout,
        fanout: config.fanout,
        hint_wait: config.hint_drain_timeout,
        tombstone_gc_every: config.tombstone_gc_interval,
        clock_offset_max: config.clock_offset_max,
        upkeep: config.upkeep,
        takes_any_peer: !config.listen.ip().to_canonical().is_loopback()
            && config.peer_auth != PeerAuthMode::Require
            && !config.insecure,
    }
}

/// The mode as it is written in the configuration.
pub fn durability_name(mode: DurabilityMode) -> String {
    match mode {
        DurabilityMode::Always => "always".to_owned(),
        DurabilityMode::Interval(every) => format!("interval:{}", every.as_millis()),
        DurabilityMode::Os => "os".to_owned(),
    }
}

/// Opens the store, and returns with it how many bytes of its memory are for the newest rows of the index. A damaged
/// store is set aside if there are other nodes from which a new one can be refilled.
fn open_engine(
    data_dir: &DataDir,
    config: &Config,
    names: &Names,
    supervisor: &Supervisor,
) -> Result<(Arc<dyn Engine>, usize), NodeError> {
    let path = data_dir.store_path();
    // How many URLs sort before this node's: the same on all nodes, whatever the order of their lists.
    let place = names.cluster.iter().filter(|url| **url < names.url).count();
    let parts = || {
        let mut parts = LsmConfig::new(path.clone(), config.memory_budget_bytes).staggered(place);
        parts.quarantine_bytes_max = config.quarantine_bytes_max;
        parts.supervisor = supervisor.clone();
        parts.is_synced = config.durability == DurabilityMode::Always;
        parts
    };
    let opened = match LsmEngine::open(parts()) {
        Err(error @ EngineError::Corrupt { .. }) if names.cluster.len() > 1 => {
            tracing::error!(%error, "the store is damaged: it is quarantined, and a new store is refilled from the \
                                     other nodes");
            LsmEngine::open_anew(parts())
        }
        opened => opened,
    };
    let index_bytes = parts().index_bytes();
    Ok((Arc::new(opened.map_err(|error| NodeError::Store { path, error })?), index_bytes))
}
