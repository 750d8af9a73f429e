//! The server over in-memory connections and a clock that tests advance: for cases that need hours, or that hit a
//! moment which a real process hardly shows.

use super::connection::{ANSWER_RATE_MIN, BODY_RATE_MIN};
use super::server::{Listener, Phase, serve};
use super::{Service, ThreadState};
use crate::clock::{Clock, SystemClock, SystemRng};
use crate::config::{self, Config};
use crate::node::{self, Disk, Names, NodeError, Opening};
use crate::peer::{BoxedStream, Connector};
use crate::replica::{ReplicaThreads, Workers};
use crate::storage::identity::Unrecognised;
use crate::storage::memory::MemoryEngine;
use crate::storage::{Engine, Keyspace};
use crate::supervise::Supervisor;
use crate::worker::Pools;
use futures_util::FutureExt as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

const SECOND: Duration = Duration::from_secs(1);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A listener whose connections the test supplies.
struct Given(Mutex<mpsc::Receiver<(Noting, IpAddr)>>);

/// A node's end of a connection. It notes the addresses of the buffers that bytes are read into.
struct Noting {
    stream: DuplexStream,
    buffers: Arc<Mutex<Vec<usize>>>,
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(read) = buf.filled().get(before..).filter(|read| !read.is_empty()) {
            self.buffers.lock().unwrap().push(read.as_ptr().addr());
        }
        polled
    }
}

impl AsyncWrite for Noting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Listener for Given {
    type Stream = Noting;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Noting, IpAddr)>> {
        match self.0.lock().unwrap().poll_recv(cx) {
            Poll::Ready(Some(accepted)) => Poll::Ready(Ok(accepted)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A node without sockets or files.
struct Node {
    config: Config,
    names: Names,
    service: Arc<Service>,
    connections: mpsc::Sender<(Noting, IpAddr)>,
    /// The buffers of all connections.
    buffers: Arc<Mutex<Vec<usize>>>,
    serving: tokio::task::JoinHandle<()>,
    /// The client address of the next connections.
    client: IpAddr,
    threads: Option<ReplicaThreads>,
}

/// A connector that reaches no other node.
struct Nowhere;

impl Connector for Nowhere {
    fn connect<'a>(
        &'a self,
        _authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionRefused.into())))
    }
}

impl Node {
    /// A node whose store is not open yet.
    fn starting() -> Self {
        Self::starting_with(1)
    }

    /// The same with `threads` network threads, of which the first runs.
    fn starting_with(threads: usize) -> Self {
        let flags = [("max-connections", "10")].map(|(name, value)| (name, value.to_owned())).into();
        let (mut config, _) = config::resolve(&flags, &std::collections::BTreeMap::new(), None).unwrap();
        // A long time-out: while time stands still, only a request that waits for nothing else lets it pass.
        config.request_timeout = 3600 * SECOND;
        let names = Names::new(&config, config.listen);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let service =
            node::service(&config, &names, &clock, &SystemRng, (threads, None), Supervisor::default());
        let (connections, given) = mpsc::channel(10);
        let state = ThreadState::new(Arc::clone(&service), Arc::clone(&service.thread_metrics[0]));
        let serving = tokio::task::spawn_local(serve(Given(Mutex::new(given)), state, Rc::new(Nowhere), 0));
        let buffers = Arc::default();
        Self { config, names, service, connections, buffers, serving, client: ELSEWHERE, threads: None }
    }

    /// Opens the store, and waits until the node is ready.
    async fn open(&mut self) {
        self.open_store();
        self.ready().await;
    }

    fn open_store(&mut self) {
        let opened = open_store(&self.config, &self.names, &self.service, Arc::new(MemoryEngine::new()));
        self.threads = Some(opened.unwrap());
    }

    async fn ready(&self) {
        let mut phase = self.service.phase.subscribe();
        phase.wait_for(|phase| *phase == Phase::Ready).await.unwrap();
    }

    async fn connect(&self) -> DuplexStream {
        let (client, stream) = tokio::io::duplex(64 << 10);
        let server = Noting { stream, buffers: Arc::clone(&self.buffers) };
        self.connections.send((server, self.client)).await.unwrap();
        client
    }

    /// Opens `count` connections that send nothing.
    async fn hold(&self, count: usize) -> Vec<DuplexStream> {
        let mut held = Vec::new();
        for _ in 0..count {
            held.push(self.connect().await);
        }
        tokio::task::yield_now().await;
        held
    }

    /// The whole answer to a request that asks for the connection to be closed.
    async fn ask(&self, request_line: &str) -> String {
        let mut client = self.connect().await;
        let request = format!(
            "{request_line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn open_store(
    config: &Config,
    names: &Names,
    service: &Service,
    engine: Arc<dyn Engine>,
) -> Result<ReplicaThreads, NodeError> {
    let disk = Disk { identity: Arc::new(Unrecognised), vouched: None };
    let opening = Opening {
        disk,
        config,
        names,
        clock: Arc::clone(&service.clock),
        rng: Arc::new(SystemRng),
        engine,
        index_bytes: 4 << 10,
        pools: Arc::new(Pools::start(1, &service.supervisor).unwrap()),
        workers: Workers::Threads,
        connector: Rc::new(Nowhere),
    };
    // A node that joins no cluster waits for nothing.
    node::open(opening, service).now_or_never().unwrap().map(Option::unwrap)
}

fn run(paused: bool, test: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(paused).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

/// Goal: a start with a wrong list of nodes changes nothing. Before it refused, the node used to open the store and to
/// index all records of the lone node, which only clusters need. Method: the store of a lone node, opened for three.
#[test]
fn wrong_list_of_nodes_changes_nothing() {
    let engine = Arc::new(MemoryEngine::new());
    let open = |flags: &[(&'static str, &str)]| {
        let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let (config, _) = config::resolve(&flags, &std::collections::BTreeMap::new(), None).unwrap();
        let names = Names::new(&config, config.listen);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let service = node::service(&config, &names, &clock, &SystemRng, (1, None), Supervisor::default());
        open_store(&config, &names, &service, Arc::clone(&engine) as Arc<dyn Engine>).map(drop)
    };
    let rows = || {
        [Keyspace::Records, Keyspace::Tokens, Keyspace::Meta].map(|keyspace| {
            let scan = engine.scan(keyspace, b"", Bound::Unbounded).unwrap();
            scan.collect::<Result<Vec<_>, _>>().unwrap()
        })
    };
    open(&[]).unwrap();
    let before = rows();
    let others = "http://127.0.0.1:8080,http://127.0.0.1:8081,http://127.0.0.1:8082";
    let refused = open(&[("cluster", others)]);
    assert!(matches!(refused, Err(NodeError::OtherCluster { .. })), "{refused:?}");
    assert_eq!(rows(), before);
}

/// All network threads share the port, so a node is not ready while one of them does not serve yet.
#[test]
fn ready_once_every_thread_serves() {
    run(false, async || {
        let mut node = Node::starting_with(2);
        node.open_store();
        assert!(tokio::time::timeout(SECOND / 10, node.ready()).await.is_err(), "one thread of two serves");
        let (_connections, given) = mpsc::channel(1);
        let state = ThreadState::new(Arc::clone(&node.service), Arc::clone(&node.service.thread_metrics[1]));
        let serving = tokio::task::spawn_local(serve(Given(Mutex::new(given)), state, Rc::new(Nowhere), 1));
        node.ready().await;
        serving.abort();
    });
}

/// A starting node answers 503 to every request, and serves on the same port once its store is open.
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
        node.open().await;
        assert!(node.ask("GET /v0/status").await.starts_with("HTTP/1.1 200 "));
        assert!(node.ask("PUT /v0/entity?id=k").await.starts_with("HTTP/1.1 201 "));
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 200 "));
    });
}

/// The API description needs no store: it is served completely from the first moment.
#[test]
fn description_is_served_while_starting() {
    run(false, async || {
        let node = Node::starting();
        let answer = node.ask("GET /openapi.json").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: application/json"),
            "{head}"
        );
        assert_eq!(body, super::openapi::DOCUMENT);
        assert!(node.ask("HEAD /openapi.json").await.starts_with("HTTP/1.1 200 "));
        assert!(node.ask("GET /openapi.json?x").await.starts_with("HTTP/1.1 400 "));
        assert!(node.ask("PUT /openapi.json").await.contains("allow: GET, HEAD"));
    });
}

/// Goal: a client cannot hold a reservation by sending slowly. Method: bytes that come often enough for the body's wait
/// but far below the lowest rate are cut once the wait has passed. At twice the lowest rate a body may take far longer.
#[test]
fn dripping_body_is_cut() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
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

/// Half a head is cut after the head's wait, an idle connection after the idle wait, and neither earlier.
#[test]
fn waits_have_their_bounds() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
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

/// A draining node answers the requests that it has accepted, ends idle connections at once, and then ends.
#[test]
fn draining_node_ends() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        let mut idle = node.connect().await;
        idle.write_all(b"GET /v0/status HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).await.unwrap();
        let mut accepted = node.connect().await;
        accepted.write_all(b"GET /v0/entity?id=k HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
        node.service.phase.send_replace(Phase::Draining);
        let mut answer = String::new();
        accepted.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        node.serving.await.unwrap();
    });
}

/// Goal: the requests of a connection share one buffer; each used to take 8 KiB of its own. Method: PUTs and GETs, one
/// after the other, and where their bytes were read to.
#[test]
fn requests_of_a_connection_share_a_buffer() {
    run(false, async || {
        let mut node = Node::starting();
        node.open().await;
        let mut client = node.connect().await;
        for request in ["PUT", "HEAD", "PUT", "HEAD", "DELETE", "HEAD"] {
            let body = if request == "PUT" { "value" } else { "" };
            let request = format!(
                "{request} /v0/entity?id=key HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            while !answer.ends_with("\r\n\r\n") {
                answer.push(client.read_u8().await.unwrap().into());
            }
            assert!(answer.starts_with("HTTP/1.1 20") || answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
        let buffers = node.buffers.lock().unwrap().clone();
        let (least, most) = (buffers.iter().min().unwrap(), buffers.iter().max().unwrap());
        assert!(buffers.len() == 6 && most - least < 8192, "{buffers:x?}");
    });
}

/// Goal: profiles are for the node's own machine, one at a time, and end with their client. Method: the same requests
/// from elsewhere and from loopback; a second request during a long profile, whose client then disconnects.
#[test]
fn profiles_are_local_and_one_at_a_time() {
    run(false, async || {
        let mut node = Node::starting();
        let long = "GET /debug/profile?event=lock&seconds=300&format=collapsed";
        for request in [long, "GET /debug/profile?event=none"] {
            let answer = node.ask(request).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("own machine"), "{answer}");
        }
        node.client = Ipv4Addr::LOCALHOST.into();
        let bad = node.ask("GET /debug/profile?seconds=301").await;
        assert!(bad.starts_with("HTTP/1.1 400 ") && bad.contains("seconds"), "{bad}");
        for method in ["HEAD", "POST", "PUT", "DELETE"] {
            let answer = node.ask(&format!("{method} /debug/profile")).await;
            assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET\r\n"), "{answer}");
        }
        // A client whose profile runs. Another test in this process may be taking one: then it asks again.
        let begin = async || loop {
            let mut client = node.connect().await;
            client.write_all(format!("{long} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            match tokio::time::timeout(SECOND / 4, client.read_exact(&mut answer)).await {
                Ok(_) => assert_eq!(&answer, b"HTTP/1.1 409"),
                Err(_) => return client,
            }
        };
        let client = begin().await;
        let short = "GET /debug/profile?event=lock&seconds=1&format=collapsed";
        let answer = node.ask(short).await;
        assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("another profile"), "{answer}");
        drop(client);
        while node.ask(short).await.starts_with("HTTP/1.1 409 ") {}
        // A node that drains does not wait for a profile.
        let mut client = begin().await;
        node.service.phase.send_replace(Phase::Draining);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    });
}

/// Goal: only clients on the node's own machine see and pause workers. Method: the same requests from elsewhere and
/// from loopback.
/// from loopback.
#[test]
fn workers_are_paused_locally() {
    run(false, async || {
        let mut node = Node::starting();
        node.open().await;
        for request in ["GET /admin/workers", "POST /admin/workers/sweep/pause", "POST /admin/repair"] {
            let answer = node.ask(request).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("own machine"), "{answer}");
        }
        assert!(node.ask("GET /v0/status").await.starts_with("HTTP/1.1 200 "), "other paths are for all");
        node.client = Ipv4Addr::LOCALHOST.into();
        let listed = node.ask("GET /admin/workers").await;
        assert!(listed.contains("\nsweep idle ") || listed.contains("\nsweep running "), "{listed}");
        let paused = node.ask("POST /admin/workers/sweep/pause?for=2h").await;
        assert!(paused.contains("\nsweep paused ") && paused.contains("paused-for 7200s"), "{paused}");
        assert!(node.ask("GET /v0/status").await.contains("workers-paused sweep"));
        let resumed = node.ask("POST /admin/workers/sweep/resume").await;
        assert!(resumed.starts_with("HTTP/1.1 200 ") && !resumed.contains("paused"), "{resumed}");
        for (request, status, said) in [
            ("POST /admin/workers/reclaim/pause?for=10s", "200", "\nreclaim paused "),
            ("POST /admin/workers/reclaim/resume", "200", "\nreclaim idle "),
            ("POST /admin/workers/nobody/pause", "404", "nobody"),
            ("POST /admin/workers/compaction/pause", "409", "cannot be paused"),
            ("POST /admin/workers/sweep/pause?for=25h", "400", "at most 24h"),
            ("POST /admin/workers/sweep/pause?for=0s", "400", "for"),
            ("POST /admin/workers/sweep/resume?for=1s", "400", "unknown parameter"),
            ("GET /admin/workers/sweep/pause", "405", "allow: POST"),
            ("POST /admin/workers", "405", "allow: GET, HEAD"),
            ("POST /admin/workers/sweep/end", "400", "unknown path"),
        ] {
            let answer = node.ask(request).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(said),
                "{request}: {answer}"
            );
        }
    });
}

/// Goal: the operator sees the configuration of the cluster, and nobody else does. Method: both forms, from loopback and from
/// elsewhere.
#[test]
fn cluster_is_shown_to_its_operator() {
    run(false, async || {
        let mut node = Node::starting();
        node.open().await;
        let answer = node.ask("GET /admin/cluster").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        node.client = Ipv4Addr::LOCALHOST.into();
        let shown = node.ask("GET /admin/cluster").await;
        assert!(
            shown.starts_with("HTTP/1.1 200 ") && shown.contains("\nepoch 0 stable level 0 cluster "),
            "{shown}"
        );
        assert!(shown.contains("\nmember 0 http://") && shown.contains(" weight 1 in epoch 0\n"), "{shown}");
        for (request, status) in [("GET /admin/cluster?x=1", "400"), ("PUT /admin/cluster", "405")] {
            let answer = node.ask(request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
    });
}

/// Goal: a web page, or a client behind a proxy on the node's machine, cannot pause a worker or take a profile; a page
/// once could. Method: requests from loopback with the headers that a browser or a proxy adds, to every such path; the
/// worker must go on.
#[test]
fn pages_and_proxies_are_not_the_operator() {
    run(false, async || {
        let mut node = Node::starting();
        node.open().await;
        node.client = Ipv4Addr::LOCALHOST.into();
        let paths = [
            "POST /admin/workers/sweep/pause",
            "POST /admin/workers/sweep/resume",
            "POST /admin/repair",
            "GET /admin/workers",
            "GET /debug/profile?event=lock&seconds=1",
        ];
        let ask = async |line: &str, host: &str, header: &str| {
            let mut client = node.connect().await;
            let request = format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{header}\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        for line in paths {
            for (host, header, why) in [
                ("localhost", "Origin: http://evil.example\r\n", "Origin"),
                ("localhost", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site"),
                ("localhost", "X-Forwarded-For: 10.0.0.1\r\n", "x-forwarded-for"),
                ("localhost", "Forwarded: for=10.0.0.1\r\n", "forwarded"),
                ("localhost", "Via: 1.1 proxy\r\n", "via"),
                // A foreign name that points at this machine.
                ("evil.example", "", "Host"),
                ("evil.example", "Origin: http://evil.example\r\n", "Host"),
            ] {
                let answer = ask(line, &format!("Host: {host}\r\n"), header).await;
                assert!(answer.starts_with("HTTP/1.1 403 "), "{line} {host} {header}: {answer}");
                assert!(answer.contains(why), "{line} {host} {header}: {answer}");
            }
        }
        // The host of an absolute target counts, and HTTP/1.0 may name none.
        let absolute = ask("GET http://localhost/admin/workers", "Host: evil.example\r\n", "").await;
        assert!(absolute.starts_with("HTTP/1.1 200 "), "{absolute}");
        let mut client = node.connect().await;
        client.write_all(b"GET /admin/workers HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 403 "), "{answer}");
        let listed =
            ask("GET /admin/workers", "Host: localhost:8080\r\n", "Origin: http://localhost:8080\r\n").await;
        assert!(listed.starts_with("HTTP/1.1 200 ") && !listed.contains("paused"), "{listed}");
        // Public paths stay public.
        let status =
            ask("GET /v0/status", "Host: evil.example\r\n", "Via: x\r\nOrigin: http://evil.example\r\n")
                .await;
        assert!(status.starts_with("HTTP/1.1 200 "), "{status}");
    });
}

/// Goal: a client cannot hold a large value in memory by reading it a few bytes at a time. Method: a client that takes
/// bytes often enough for the write's wait but far below the lowest rate is cut. At twice the lowest rate an answer may
/// take far longer.
#[test]
fn dripping_reader_is_cut() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        let value = vec![b'x'; 1 << 20];
        let mut client = node.connect().await;
        let head =
            format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: n\r\nContent-Length: {}\r\n\r\n", value.len());
        client.write_all(&[head.as_bytes(), &value].concat()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 201");
        let drip = async |piece: usize| {
            let mut client = node.connect().await;
            client
                .write_all(b"GET /v0/entity?id=k HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let (begun, mut taken) = (tokio::time::Instant::now(), 0);
            let mut bytes = vec![0; piece];
            while let Ok(count @ 1..) = client.read(&mut bytes).await {
                taken += count;
                // Bytes in the buffer between the two can be read although the connection is cut.
                if node.service.connection_count.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                    break;
                }
                tokio::time::sleep(SECOND).await;
            }
            (taken, begun.elapsed())
        };
        drop(client);
        let (taken, waited) = drip(10).await;
        assert!(taken < 10_000 && waited < 60 * SECOND, "{taken} bytes in {waited:?}");
        let rate = usize::try_from(ANSWER_RATE_MIN).unwrap();
        let (taken, waited) = drip(2 * rate).await;
        assert!(waited > 20 * SECOND, "{taken} bytes in {waited:?}");
        assert!(taken > value.len() - (64 << 10), "cut behind {taken} bytes");
    });
}

/// Goal: a node whose places are all taken still reports its state, and lets its peers in. Method: as many clients as
/// it may have; then the paths that have spare places, and the others.
#[test]
fn full_node_keeps_places_for_peers_and_operators() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        node.client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut held = node.hold(10).await;
        for path in ["/v0/status", "/metrics"] {
            let answer = node.ask(&format!("GET {path}")).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
        }
        let answer = node.ask("GET /v0/entity?id=k").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"), "{answer}");
        assert!(answer.contains("no room for a connection"), "{answer}");
        // A peer's upgrade is checked, not refused for lack of room.
        let answer = node.ask("GET /v0/peer").await;
        assert!(!answer.contains("no room"), "{answer}");
        // A silent client is told that it is refused, and its place goes to the next.
        let mut silent = node.connect().await;
        let mut answer = String::new();
        silent.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        held.pop();
        tokio::time::sleep(SECOND).await;
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 404 "));
    });
}

/// Goal: one address cannot take all places. Method: eight of ten connections from one address are served; others still
/// find a place.
#[test]
fn one_address_takes_its_share_only() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        let held = node.hold(8).await;
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 503 "));
        assert!(node.ask("GET /v0/status").await.starts_with("HTTP/1.1 200 "));
        node.client = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 404 "));
        node.client = ELSEWHERE;
        drop(held);
        tokio::time::sleep(SECOND).await;
        assert!(node.ask("GET /v0/entity?id=k").await.starts_with("HTTP/1.1 404 "));
    });
}

/// Goal: when more large values come than can be written in time, the next ones wait, and are refused before they are
/// read. Method: the limit is used up. One more is refused without a byte if the client sends `Expect`, else after its
/// beginning. One that comes slowly holds no turn.
#[test]
fn large_values_wait_before_they_are_read() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        let admission = &node.service.admission;
        let ask = async |length: u64, more: &str, body: usize| {
            let mut client = node.connect().await;
            let head = format!(
                "PUT /v0/entity?id=k HTTP/1.1\r\nHost: n\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n"
            );
            client.write_all(head.as_bytes()).await.unwrap();
            client.write_all(&vec![b'x'; body]).await.unwrap();
            let mut answer = [0; 12];
            let read = tokio::time::timeout(5 * SECOND, client.read_exact(&mut answer)).await;
            let answered = read.is_ok_and(|read| read.is_ok());
            (answered.then(|| String::from_utf8_lossy(&answer).into_owned()), client)
        };
        let (_, limit) = admission.bytes();
        let others = admission.admit(None, limit, SECOND).await.unwrap();
        let refused = Some("HTTP/1.1 503".to_owned());
        assert_eq!(ask(1 << 20, "Expect: 100-continue\r\n", 0).await.0, refused);
        assert_eq!(ask(1 << 20, "", 100 << 10).await.0, refused);
        // A small value waits only for its own body, which does not come.
        assert_eq!(ask(100, "", 0).await.0, None);
        drop(others);
        assert_eq!(admission.bytes().0, 0);
        let (answer, stalled) = ask(1 << 20, "", 100 << 10).await;
        assert_eq!((answer, admission.bytes().0), (None, 0), "its turn is given to others");
        drop(stalled);
    });
}

/// Goal: refused clients get their answers, and cannot take the processors from others by sending on. Method: two that
/// send a body that is too long before they read the answer; the node drops it at its rate, shared by both. One that
/// sends nothing more is waited for shortly.
#[test]
fn refused_bodies_are_dropped_at_a_rate() {
    run(true, async || {
        let mut node = Node::starting();
        node.open().await;
        let refused = async |body: usize| {
            let mut client = node.connect().await;
            let head = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: n\r\nContent-Length: 20000000\r\n\r\n";
            client.write_all(head.as_bytes()).await.unwrap();
            client.write_all(&vec![b'x'; body]).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            while node.service.connection_count.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                tokio::time::sleep(SECOND / 100).await;
            }
        };
        let begun = tokio::time::Instant::now();
        tokio::join!(refused(12 << 20), refused(12 << 20));
        let both = begun.elapsed();
        assert!(both > SECOND * 7 / 10 && both < 3 * SECOND, "24 MiB in {both:?}");
        let begun = tokio::time::Instant::now();
        refused(0).await;
        assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    });
}
