//! The server over in-memory connections and a clock that tests advance: what needs hours, or a moment that a real
//! process hardly shows.

use super::body::BodyBudget;
use super::connection::{BODY_RATE_MIN, Waits};
use super::server::{Listener, Phase, serve};
use super::{Limits, NodeFacts, Rooms, Service};
use crate::clock::{Clock, SystemClock, SystemRng};
use crate::coordinator::{Coordinator, CoordinatorParts};
use crate::metrics::{StoreMetrics, ThreadMetrics};
use crate::replica::{DurabilityMode, Execution, Purge, Replica, ReplicaParts, ReplicaThreads};
use crate::storage::memory::MemoryEngine;
use crate::worker::Pool;
use kvorum_core::{NodeId, ReplicationFactor};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

const SECOND: Duration = Duration::from_secs(1);

/// A listener that is given its connections.
struct Given(Mutex<mpsc::Receiver<DuplexStream>>);

impl Listener for Given {
    type Stream = DuplexStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<DuplexStream>> {
        match self.0.lock().unwrap().poll_recv(cx) {
            Poll::Ready(Some(stream)) => Poll::Ready(Ok(stream)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A node without sockets or files.
struct Node {
    service: Arc<Service>,
    phase: watch::Sender<Phase>,
    connections: mpsc::Sender<DuplexStream>,
    serving: tokio::task::JoinHandle<()>,
    threads: Option<ReplicaThreads>,
}

impl Node {
    /// A node whose store is not open yet.
    fn starting() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let waits = Waits { head: 10 * SECOND, body: 10 * SECOND, idle: 75 * SECOND, write: 30 * SECOND };
        let limits = Limits {
            value_bytes_max: 8 << 20,
            body_bytes_in_flight_max: 128 << 20,
            connections_max: 10,
            range_timeout: 300 * SECOND,
            drain_timeout: 10 * SECOND,
            waits,
        };
        let metrics = Arc::new(ThreadMetrics::default());
        let facts = NodeFacts {
            node: "n".to_owned(),
            url: "http://n:1".to_owned(),
            cluster: vec!["http://n:1".to_owned()],
            durability: "always".to_owned(),
        };
        let service = Arc::new(Service {
            clock,
            limits,
            body_budget: Arc::new(BodyBudget::new(limits.body_bytes_in_flight_max)),
            connection_count: AtomicUsize::new(0),
            facts,
            thread_metrics: vec![Arc::clone(&metrics)],
            run_id: 1,
            faults: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            rooms: OnceLock::new(),
        });
        let phase = watch::Sender::new(Phase::Starting);
        let (connections, given) = mpsc::channel(10);
        let serving = tokio::task::spawn_local(serve(
            Given(Mutex::new(given)),
            Arc::clone(&service),
            metrics,
            phase.subscribe(),
        ));
        Self { service, phase, connections, serving, threads: None }
    }

    /// Opens the store.
    fn open(&mut self) {
        let pool = Arc::new(Pool::start(1).unwrap());
        let store_metrics = Arc::new(StoreMetrics::default());
        let (replica, threads, lease) = Replica::start(ReplicaParts {
            engine: Arc::new(MemoryEngine::new()),
            clock: Arc::clone(&self.service.clock),
            rng: Arc::new(SystemRng),
            pool: Arc::clone(&pool),
            metrics: Arc::clone(&store_metrics),
            execution: Execution::Inline,
            durability: DurabilityMode::Always,
            purge: Purge::Sole,
        })
        .unwrap();
        self.threads = Some(threads);
        let coordinator = Coordinator::new(CoordinatorParts {
            node: NodeId(1),
            nodes: 1,
            factor: ReplicationFactor::Count(3),
            // Far off: while time stands still, only what must wait for nothing else makes it pass.
            request_timeout: 3600 * SECOND,
            clock: Arc::clone(&self.service.clock),
            replica: replica.clone(),
            lease,
        });
        let rooms = Rooms { coordinator, replica, pool, store_metrics };
        assert!(self.service.rooms.set(rooms).is_ok());
        self.phase.send_replace(Phase::Ready);
    }

    async fn connect(&self) -> DuplexStream {
        let (client, server) = tokio::io::duplex(64 << 10);
        self.connections.send(server).await.unwrap();
        client
    }

    /// The whole answer to a request that asks for the connection to be closed.
    async fn ask(&self, request_line: &str) -> String {
        let mut client = self.connect().await;
        let request =
            format!("{request_line} HTTP/1.1\r\nHost: n\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn run(paused: bool, test: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(paused).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

/// A node that starts says so, to every request, and serves the same connection port once its store is open.
#[test]
fn starting_node_answers_503() {
    run(false, async || {
        let mut node = Node::starting();
        for request in
            ["GET /v0/status", "GET /v0/entity?id=k", "PUT /v0/entity?id=k", "GET /v0/entities?start=a"]
        {
            let answer = node.ask(request).await;
            assert!(
                answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"),
                "{request}: {answer}"
            );
            assert!(answer.contains("starting"), "{request}: {answer}");
        }
        assert!(node.ask("GET /nowhere").await.starts_with("HTTP/1.1 400 "));
        node.open();
        assert!(node.ask("GET /v0/status").await.starts_with("HTTP/1.1 200 "));
        assert!(node.ask("PUT /v0/entity?id=k").await.starts_with("HTTP/1.1 201 "));
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 200 "));
    });
}

/// Goal: a client cannot hold a reservation by dripping. Method: bytes that come often enough for the body's wait but
/// far below the least rate are cut once the wait has passed; at twice the least rate a body may take far longer.
#[test]
fn dripping_body_is_cut() {
    run(true, async || {
        let mut node = Node::starting();
        node.open();
        let rate = usize::try_from(BODY_RATE_MIN).unwrap();
        let drip = async |piece: usize, length: usize| {
            let mut client = node.connect().await;
            let head = format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: n\r\nContent-Length: {length}\r\n\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            let begun = tokio::time::Instant::now();
            for _ in 0..length / piece {
                if client.write_all(&vec![b'x'; piece]).await.is_err() {
                    break;
                }
                tokio::time::sleep(SECOND).await;
            }
            let mut answer = [0; 12];
            let answered = client.read_exact(&mut answer).await.is_ok();
            (answered.then(|| String::from_utf8_lossy(&answer).into_owned()), begun.elapsed())
        };
        let (answer, waited) = drip(10, 1000).await;
        assert!(answer.is_none() && waited < 15 * SECOND, "{answer:?} after {waited:?}");
        let (answer, waited) = drip(2 * rate, 80 * rate).await;
        assert!(
            answer.as_deref() == Some("HTTP/1.1 201") && waited >= 40 * SECOND,
            "{answer:?} after {waited:?}"
        );
        assert_eq!(node.service.body_budget.used(), 0);
    });
}

/// Half a head is cut after the head's wait, an idle connection after the idle one, and neither before.
#[test]
fn waits_have_their_bounds() {
    run(true, async || {
        let mut node = Node::starting();
        node.open();
        let begun = tokio::time::Instant::now();
        let mut half = node.connect().await;
        half.write_all(b"GET /v0/sta").await.unwrap();
        assert_eq!(half.read(&mut [0; 10]).await.unwrap(), 0);
        let waited = begun.elapsed();
        assert!((10 * SECOND..12 * SECOND).contains(&waited), "{waited:?}");
        let begun = tokio::time::Instant::now();
        let mut idle = node.connect().await;
        idle.write_all(b"GET /v0/status HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        idle.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        let waited = begun.elapsed();
        assert!((75 * SECOND..77 * SECOND).contains(&waited), "{waited:?}");
    });
}

/// A draining node answers what it has accepted, ends idle connections at once, and then is done.
#[test]
fn draining_node_ends() {
    run(true, async || {
        let mut node = Node::starting();
        node.open();
        let mut idle = node.connect().await;
        idle.write_all(b"GET /v0/status HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).await.unwrap();
        let mut accepted = node.connect().await;
        accepted.write_all(b"GET /v0/status HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
        node.phase.send_replace(Phase::Draining);
        let mut answer = String::new();
        accepted.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        node.serving.await.unwrap();
    });
}
