//! The node: opens the store, starts the threads, and ends them in order.
//!
//! One network thread per core, each with its own single-threaded runtime and its own listener on the shared port
//! (`SO_REUSEPORT`); a request stays on its thread. One commit thread and one sweeper per store, a pool of workers,
//! and the engine's own threads.

use crate::clock::{Clock, Rng, SystemClock, SystemRng};
use crate::config::Config;
use crate::coordinator::{Coordinator, CoordinatorParts};
use crate::http::body::BodyBudget;
use crate::http::server::{self, Listener, Phase};
use crate::http::{NodeFacts, Rooms, Service};
use crate::metrics::{StoreMetrics, ThreadMetrics};
use crate::replica::{DurabilityMode, Purge, Replica, ReplicaError, ReplicaParts, ReplicaThreads};
use crate::storage::data_dir::{DataDir, DataDirError};
use crate::storage::lsm::{LsmConfig, LsmEngine};
use crate::storage::{Engine, EngineError};
use crate::worker::Pool;
use kvorum_core::NodeId;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Connections that the kernel may hold for each listener until they are accepted.
const ACCEPT_BACKLOG: u32 = 1024;

/// This says why a node did not start.
#[derive(Debug)]
pub enum NodeError {
    /// The data directory cannot be used.
    DataDir(DataDirError),
    /// The store cannot be opened.
    Store {
        /// Where it is.
        path: std::path::PathBuf,
        /// Why.
        error: EngineError,
    },
    /// The store opened, but its own rows cannot be read or written.
    Replica(ReplicaError),
    /// The address cannot be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A thread or its runtime cannot be started.
    Thread(io::Error),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataDir(error) => error.fmt(f),
            Self::Store { path, error } => {
                write!(f, "the store in {} cannot be opened: {error}", path.display())
            }
            Self::Replica(error) => write!(f, "the store cannot be used: {error}"),
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Thread(source) => write!(f, "cannot start a thread: {source}"),
        }
    }
}

impl std::error::Error for NodeError {}

/// This is a running node.
///
/// Fields are dropped in order: the network first, the directory's lock last.
pub struct Node {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    network: Vec<JoinHandle<()>>,
    service: Option<Arc<Service>>,
    replica: Option<ReplicaThreads>,
    data_dir: DataDir,
}

impl Node {
    /// Starts a node. It serves when this returns; while its store is being opened it answers 503.
    pub fn start(config: &Config) -> Result<Self, NodeError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let rng: Arc<dyn Rng> = Arc::new(SystemRng);
        let data_dir = DataDir::open(&config.data_dir).map_err(NodeError::DataDir)?;
        let listeners = listen(config)?;
        let address = listeners.first().map_or(config.listen, |(_, address)| *address);
        // With port 0 the system has chosen one by now.
        let actual = |url: &String| {
            if *url == format!("http://{}", config.listen) {
                format!("http://{address}")
            } else {
                url.clone()
            }
        };
        let url = actual(&config.advertise);
        let mut run_id = [0; 4];
        rng.fill(&mut run_id);
        let id = NodeId::of_url(&url);
        let service = Arc::new(Service {
            clock: Arc::clone(&clock),
            limits: config.limits,
            body_budget: Arc::new(BodyBudget::new(config.limits.body_bytes_in_flight_max)),
            connection_count: AtomicUsize::new(0),
            facts: NodeFacts {
                node: id.to_string(),
                url,
                cluster: config.cluster.iter().map(actual).collect(),
                durability: durability_name(config.durability),
            },
            thread_metrics: listeners.iter().map(|_| Arc::new(ThreadMetrics::default())).collect(),
            run_id: u32::from_be_bytes(run_id),
            faults: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            rooms: OnceLock::new(),
        });
        let mut node = Self {
            address,
            phase: watch::Sender::new(Phase::Starting),
            network: Vec::new(),
            service: Some(Arc::clone(&service)),
            replica: None,
            data_dir,
        };
        for (index, (listener, _)) in listeners.into_iter().enumerate() {
            node.network.push(serve_on_thread(index, listener, &service, node.phase.subscribe())?);
        }
        let engine = open_engine(&node.data_dir, config.memory_budget_bytes)?;
        let pool = Arc::new(Pool::start(config.workers).map_err(NodeError::Thread)?);
        let store_metrics = Arc::new(StoreMetrics::default());
        let (replica, replica_threads, lease) = Replica::start(ReplicaParts {
            engine,
            clock: Arc::clone(&clock),
            rng,
            pool: Arc::clone(&pool),
            metrics: Arc::clone(&store_metrics),
            execution: config.execution,
            durability: config.durability,
            // A cluster of one: nobody else can hold anything older.
            purge: Purge::Sole,
        })
        .map_err(NodeError::Replica)?;
        node.replica = Some(replica_threads);
        let coordinator = Coordinator::new(CoordinatorParts {
            node: id,
            nodes: u16::try_from(config.cluster.len()).unwrap_or(u16::MAX),
            factor: config.replication_factor,
            request_timeout: config.request_timeout,
            clock,
            replica: replica.clone(),
            lease,
        });
        // Set once, here.
        let _ = service.rooms.set(Rooms { coordinator, replica, pool, store_metrics });
        node.phase.send_replace(Phase::Ready);
        Ok(node)
    }

    /// The address that the node listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, answers what was accepted (within the drain time-out), stores what was queued, and closes
    /// the store.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(service) = &self.service {
            service.is_draining.store(true, Ordering::Relaxed);
        }
        self.phase.send_replace(Phase::Draining);
        for thread in self.network.drain(..) {
            let _ = thread.join();
        }
        self.service = None;
        self.replica = None;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
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

fn open_engine(data_dir: &DataDir, memory_budget_bytes: u64) -> Result<Arc<dyn Engine>, NodeError> {
    let path = data_dir.store_path();
    let engine = LsmEngine::open(LsmConfig::new(path.clone(), memory_budget_bytes));
    Ok(Arc::new(engine.map_err(|error| NodeError::Store { path, error })?))
}

/// One listener per network thread, all on one port.
#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
fn listen(config: &Config) -> Result<Vec<(std::net::TcpListener, SocketAddr)>, NodeError> {
    let mut listeners = Vec::with_capacity(config.threads);
    let mut address = config.listen;
    let failed = |source| NodeError::Listen { address: config.listen, source };
    // With SO_REUSEPORT another process on this port would share it in silence; bound without it first, that is an
    // error as it should be.
    drop(std::net::TcpListener::bind(address).map_err(failed)?);
    for _ in 0..config.threads.max(1) {
        let listener = listen_shared(address).map_err(failed)?;
        address = listener.local_addr().map_err(failed)?;
        listeners.push((listener, address));
    }
    Ok(listeners)
}

#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
fn listen_shared(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    socket.listen(ACCEPT_BACKLOG)?.into_std()
}

#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
fn serve_on_thread(
    index: usize,
    listener: std::net::TcpListener,
    service: &Arc<Service>,
    phase: watch::Receiver<Phase>,
) -> Result<JoinHandle<()>, NodeError> {
    let service = Arc::clone(service);
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let local = tokio::task::LocalSet::new();
        let serve = |runtime: tokio::runtime::Runtime| {
            let metrics = service.thread_metrics.get(index).map(Arc::clone).unwrap_or_default();
            local.block_on(&runtime, async {
                let listener = Tcp(TcpListener::from_std(listener)?);
                server::serve(listener, service, metrics, phase).await;
                Ok(())
            })
        };
        if let Err(error) = runtime.and_then(serve) {
            tracing::error!(%error, "a network thread could not serve");
        }
    };
    #[expect(clippy::disallowed_methods, reason = "this room owns the network threads")]
    let thread = thread::Builder::new().name(format!("kvorum:net{index}")).spawn(run);
    thread.map_err(NodeError::Thread)
}

/// A listener on a real port.
struct Tcp(TcpListener);

impl Listener for Tcp {
    type Stream = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let (stream, _) = ready!(self.0.poll_accept(cx))?;
        // Answers are written whole; waiting for more would only delay them.
        stream.set_nodelay(true)?;
        Poll::Ready(Ok(stream))
    }
}

/// Waits until the process is told to end: SIGTERM or SIGINT. A second one ends it at once.
///
/// # Errors
/// When the system lets no handler be set.
pub fn wait_for_signal() -> io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    drop(entered);
    // The same two listeners for both waits: a signal between them must not be lost.
    let mut next = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            }
        })
    };
    let name = next();
    #[expect(clippy::disallowed_methods, reason = "a thread of the process itself, not of the node's code")]
    let second = thread::Builder::new().name("kvorum:signal".to_owned()).spawn(move || {
        next();
        std::process::exit(130);
    });
    second.map(|_| name)
}

/// Lets this process have as many open files as the system allows: tables and connections need them.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
