//! Goal: nodes prove to each other that they know the peer secret. Others are refused before anything that they send is
//! used, with the reason in both logs. Secrets and modes change without a failed request. Method: real nodes, real files, and
//! handshakes written by hand.

use kvorum_core::{Key, NodeId, Run, Topology, UnixMillis};
use kvorum_server::clock::{Clock, SystemClock, SystemRng, TimestampBound};
use kvorum_server::peer::{
    BoxedStream, Connector, HandshakeError, Hello, Link, LinkObserver, LinkParts, PROTOCOL, PeerAuth,
    PeerAuthMode, PeerLimits, Request, Secrets, Setback,
};
use kvorum_server::supervise::Supervisor;
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::history::{Asked, Class, History};
use kvorum_testkit::http::Connection;
use kvorum_testkit::load::cluster::{Load, settle};
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{PATIENCE, metric_sum, seed, wait_until};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const ONE: &str = "one: a secret for tests, of more than 32 bytes";
const TWO: &str = "two: a secret for tests, of more than 32 bytes";

/// A file of secrets for each node.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: TempDir::with_prefix("kvorum-peer-secrets-").unwrap() }
    }

    fn path(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("secrets-{node}"))
    }

    /// Writes the file of `node` anew, whole.
    fn write(&self, node: usize, secrets: &[&str]) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("# secrets of a test\n{}\n", secrets.join("\n"))).unwrap();
        std::fs::rename(new, self.path(node)).unwrap();
    }

    /// How `node` is started with this mode, and with its file if `has_file`.
    fn launch(&self, node: usize, mode: &str, has_file: bool) -> Launch {
        let mut environment = vec![("KVORUM_PEER_AUTH".to_owned(), mode.to_owned())];
        if has_file {
            let path = self.path(node).to_str().unwrap().to_owned();
            environment.push(("KVORUM_PEER_SECRET_FILE".to_owned(), path));
        }
        Launch { environment, ..Launch::default() }
    }
}

/// A cluster whose nodes are not started. Each has a mode and secrets; no secrets means no file.
fn cluster(files: &Files, nodes: &[(&str, &[&str])]) -> Cluster {
    let mut cluster = Cluster::new(nodes.len(), &["--memory-budget", "16MiB"]);
    for (node, (mode, secrets)) in nodes.iter().enumerate() {
        if !secrets.is_empty() {
            files.write(node, secrets);
        }
        cluster.set_launch(node, files.launch(node, mode, !secrets.is_empty()));
    }
    cluster
}

pub(crate) fn labelled(cluster: &Cluster, node: usize, name: &str, label: &str) -> u64 {
    let page = cluster.ask(node, "GET", "/metrics", None);
    let lines: Vec<&str> =
        page.text().lines().filter(|line| line.starts_with(name) && line.contains(label)).collect();
    // A node of --peer-auth off has no such metric.
    if lines.is_empty() { 0 } else { metric_sum(&lines.join("\n"), name) }
}

/// The open connections to `node` by what they have proved: its first secret, a later one, nothing.
fn proven(cluster: &Cluster, node: usize) -> [u64; 3] {
    ["first", "later", "none"].map(|secret| {
        labelled(cluster, node, "kvorum_peer_connections_proven", &format!("secret=\"{secret}\""))
    })
}

/// Whether all open connections to `node` have proved its first secret.
fn are_all_first(cluster: &Cluster, node: usize) -> bool {
    let [by_first, by_another, by_none] = proven(cluster, node);
    by_first > 0 && by_another + by_none == 0
}

/// Goal: two nodes of every pair of modes and secrets either connect or say exactly why not, in both logs.
#[test]
fn pairs_connect_or_say_why_not() {
    let none: &[&str] = &[];
    for (first, second, expect) in [
        (("off", none), ("prefer", &[ONE][..]), Ok(2)),
        (("prefer", none), ("prefer", &[ONE]), Ok(2)),
        (("prefer", &[TWO][..]), ("prefer", &[ONE]), Ok(2)),
        (("prefer", &[ONE]), ("require", &[ONE]), Ok(0)),
        (("require", &[ONE, TWO]), ("require", &[TWO]), Ok(0)),
        (
            ("off", none),
            ("require", &[ONE]),
            Err(
                "B requires that peers prove the peer secret (--peer-auth require), and A does not: start it with --peer-secret-file",
            ),
        ),
        (
            ("prefer", none),
            ("require", &[ONE]),
            Err(
                "B requires that peers prove the peer secret (--peer-auth require), and A does not: start it with --peer-secret-file",
            ),
        ),
        (
            ("off", &[ONE]),
            ("require", &[ONE]),
            Err(
                "B requires that peers prove the peer secret (--peer-auth require), and A does not: start it with --peer-secret-file",
            ),
        ),
        (
            ("prefer", &[TWO]),
            ("require", &[ONE]),
            Err("B and A have no peer secret in common: their files of --peer-secret-file differ"),
        ),
        (
            ("require", &[TWO]),
            ("require", &[ONE]),
            Err("A and B have no peer secret in common: their files of --peer-secret-file differ"),
        ),
    ] {
        let files = Files::new();
        let mut cluster = cluster(&files, &[first, second]);
        let text = |text: &str| {
            let marked = text.replace("A ", "\u{1} ").replace("B ", "\u{2} ");
            marked.replace('\u{1}', &cluster.url(0)).replace('\u{2}', &cluster.url(1))
        };
        match expect {
            Ok(unproven) => {
                cluster.start_all();
                // The secrets of the second node's callers, and of its own calls.
                let open: u64 = (0..2).map(|node| proven(&cluster, node)[2]).sum();
                let closed: u64 =
                    (0..2).map(|node| proven(&cluster, node)[0] + proven(&cluster, node)[1]).sum();
                assert_eq!((open > 0, closed > 0), (unproven > 0, unproven == 0), "{first:?} {second:?}");
            }
            Err(reason) => {
                let reason = text(reason);
                cluster.spawn(0);
                cluster.spawn(1);
                for node in 0..2 {
                    let what = format!("node {node} says: {reason}");
                    wait_until(&what, || cluster.log(node).contains(&reason));
                }
                assert_eq!(proven(&cluster, 1), [0, 0, 0], "{first:?} {second:?}");
                cluster.wait_until_ready(0);
                let put = cluster.ask(0, "PUT", "/v0/entity?id=k&replicas=2/2", Some(b"v"));
                assert_eq!(put.status, 504, "{put:?}");
            }
        }
        for node in 0..2 {
            let log = cluster.log(node);
            assert!(!log.contains(ONE) && !log.contains(TWO), "{log}");
        }
    }
}

/// Goal: a file that cannot be used stops a start, and later changes nothing.
#[test]
fn only_good_files_are_taken() {
    let files = Files::new();
    for (text, reason) in [
        ("", "it has no secret"),
        ("# nothing\n", "it has no secret"),
        ("short\n", "line 1 has a secret of 5 bytes: allowed are 32 to 1024"),
    ] {
        std::fs::write(files.path(0), text).unwrap();
        let path = files.path(0);
        let words =
            ["serve", "--listen", "127.0.0.1:0", "--peer-secret-file", path.to_str().unwrap(), "--data-dir"];
        let output = run(kvorum(&words).arg(files.folder.path().join("data")), b"");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{output:?}");
    }
    let mut cluster = cluster(&files, &[("require", &[ONE]), ("require", &[ONE])]);
    cluster.start_all();
    std::fs::write(files.path(1), "rubbish").unwrap();
    wait_until("the bad file is counted", || cluster.metric(1, "kvorum_peer_secret_file_failures_total") > 0);
    assert!(cluster.log(1).contains("the last good secrets stay in force"));
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=k&replicas=2/2", Some(b"v")).status, 201);
    files.write(1, &[TWO]);
    wait_until("the withdrawn secret opens nothing", || {
        cluster.log(0).contains("have no peer secret in common") && proven(&cluster, 1) == [0, 0, 0]
    });
    files.write(1, &[TWO, ONE]);
    cluster.wait_until_connected();
}

pub(crate) const LOAD: Load<'_> = Load {
    fixed: 6,
    roaming: 3,
    classes: &[(Class::default(2, 3), 3), (Class::default(3, 3), 1)],
    keys: (10, 300),
    puts: 45,
    deletes: 5,
    bytes: (24, 200, 400),
    pause: Duration::from_millis(1),
};

/// Goal: the secret is exchanged twice while clients ask all three nodes, and no request fails; afterwards the old secret
/// opens nothing. Method: the three steps of the documentation, node by node.
#[test]
fn rotation_fails_no_request() {
    let files = Files::new();
    let mut cluster = cluster(&files, &[("require", &[ONE]), ("require", &[ONE]), ("require", &[ONE])]);
    cluster.start_all();
    let addresses = cluster.addresses();
    let mut history = LOAD.run(&addresses, &[0, 1, 2], seed("peer secrets rotate"), |_| {
        for (old, new) in [(ONE, TWO), (TWO, ONE)] {
            for step in [&[old, new][..], &[new, old], &[new]] {
                for node in 0..3 {
                    let loads = cluster.metric(node, "kvorum_peer_secret_file_loads_total");
                    files.write(node, step);
                    wait_until("the file is taken", || {
                        cluster.metric(node, "kvorum_peer_secret_file_loads_total") > loads
                    });
                }
                wait_until("every connection has proved the first secret", || {
                    (0..3).all(|node| are_all_first(&cluster, node))
                });
            }
        }
    });
    let failed: Vec<&Asked> = history.asked.iter().filter(|asked| !asked.is_ok()).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), history.asked.len(), failed.first());
    assert!(history.asked.len() > 1000, "{} requests", history.asked.len());
    settle(&cluster, &mut history, "rotation of the peer secret");
}

/// Goal: a running cluster without a secret gets one, node by node, and clients of the other nodes notice nothing.
#[test]
fn running_cluster_migrates() {
    let files = Files::new();
    let mut cluster = cluster(&files, &[("off", &[]), ("off", &[]), ("off", &[])]);
    (0..3).for_each(|node| files.write(node, &[ONE]));
    cluster.start_all();
    let addresses = cluster.addresses();
    let load = Load { classes: &[(Class::default(2, 3), 1)], ..LOAD };
    let mut restarting = Vec::new();
    let mut history = load.run(&addresses, &[0, 1, 2], seed("peers migrate"), |_| {
        for mode in ["prefer", "require"] {
            if mode == "require" {
                wait_until("no connection is unproven", || (0..3).all(|node| are_all_first(&cluster, node)));
            }
            for node in 0..3 {
                let begun = kvorum_testkit::history::Moment::now().mono;
                cluster.terminate(node);
                cluster.set_launch(node, files.launch(node, mode, true));
                cluster.start_node(node);
                cluster.wait_until_connected();
                restarting.push((node, begun, kvorum_testkit::history::Moment::now().mono));
            }
        }
    });
    let failed = failed_elsewhere(&history, &restarting);
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), history.asked.len(), failed.first());
    for node in 0..3 {
        assert!(are_all_first(&cluster, node), "{:?}", proven(&cluster, node));
        let status = cluster.ask(node, "GET", "/v0/status", None);
        assert!(status.text().contains("peer-auth require\n"), "{status:?}");
    }
    settle(&cluster, &mut history, "migration to the peer secret");
}

/// The requests that failed although their node was not being restarted; `restarting` has nodes, and from when to when.
pub(crate) fn failed_elsewhere<'a>(history: &'a History, restarting: &[(usize, u64, u64)]) -> Vec<&'a Asked> {
    let is_excused = |asked: &Asked| {
        restarting
            .iter()
            .any(|(node, begun, ended)| asked.node == *node && asked.ended >= *begun && asked.begun <= *ended)
    };
    history.asked.iter().filter(|asked| !asked.is_ok() && !is_excused(asked)).collect()
}

/// The headers of a handshake in the name of `node`, as a stranger would make them up from `/v0/status`.
pub(crate) fn hello_of(cluster: &Cluster, node: usize) -> String {
    format!(
        "Connection: Upgrade\r\nUpgrade: kvorum-peer\r\nKvorum-Protocol: {PROTOCOL}\r\nKvorum-Cluster: kvorum\r\n\
         Kvorum-Cluster-Id: 00000000000000000000000000000000\r\nKvorum-Node: {}\r\n\
         Kvorum-Topology: 0000000000000000\r\nKvorum-Store: 00000000000000000000000000000bad\r\n\
         Kvorum-Run: 1-0000000000000001\r\nKvorum-Members: -\r\nKvorum-Clock: 1700000000000\r\n",
        id_of(cluster, node)
    )
}

pub(crate) fn id_of(cluster: &Cluster, node: usize) -> String {
    let status = cluster.ask(node, "GET", "/v0/status", None);
    status.text().lines().find_map(|line| line.strip_prefix("node ")).unwrap().to_owned()
}

/// Goal: a stranger is refused before one of its frames is read, whatever it sends and however often, and nothing grows.
/// Method: forged hellos, frames behind them, claims and proofs made up, a client's token, and
/// thousands of handshakes at once.
#[test]
fn strangers_are_refused_before_their_first_frame() {
    let files = Files::new();
    let mut cluster = cluster(&files, &[("require", &[ONE]), ("require", &[ONE]), ("require", &[ONE])]);
    cluster.start_all();
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=k&replicas=3/3", Some(b"kept")).status, 201);
    let hello = hello_of(&cluster, 1);
    let (own, other) = (id_of(&cluster, 0), id_of(&cluster, 2));
    let challenge = |called: &str, claims: &str| {
        let nonce = "5a".repeat(32);
        format!(
            "Kvorum-Nonce: {nonce}\r\nKvorum-Called: {called}\r\nKvorum-Claims: {claims}\r\nKvorum-Peer-Auth: prefer\r\n"
        )
    };
    let forged = ["0123456789abcdef"; 8].join(",");
    let before = proven(&cluster, 0);
    // A whole frame of TakeHints, and rubbish.
    for frames in [&b""[..], &[0, 0, 0, 13, 1, 2, 3, 4, 4, 0, 0, 0, 1, 0, 0, 3, 232], &[0xff; 4096]] {
        for (headers, reason) in [
            (hello.clone(), "requires that peers prove the peer secret"),
            (
                format!("{hello}Authorization: Bearer root.secret\r\n"),
                "requires that peers prove the peer secret",
            ),
            (hello.clone() + &challenge(&own, &forged), "have no peer secret in common"),
            (hello.clone() + &challenge(&other, &forged), "an address leads to the wrong node"),
        ] {
            let mut connection = Connection::open(cluster.address(0), PATIENCE).unwrap();
            let request = format!("GET /v0/peer HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
            connection.send(&[request.as_bytes(), frames].concat());
            let answers = connection.recv_all();
            let status: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
            assert_eq!(status, [403], "{headers} {answers:?}");
            assert!(answers[0].text().contains(reason), "{headers} {answers:?}");
        }
    }
    let memory = || cluster.metric(0, "kvorum_peer_frame_bytes");
    assert_eq!((proven(&cluster, 0), memory()), (before, 0));
    // Thousands at once, each unfinished or forged.
    let request = format!("GET /v0/peer HTTP/1.1\r\nHost: x\r\n{hello}{}\r\n", challenge(&own, &forged));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..600 {
                    let mut connection = Connection::open(cluster.address(0), PATIENCE).unwrap();
                    let bytes = request.as_bytes();
                    let end = if round % 2 == 0 { bytes.len() } else { bytes.len() - 2 };
                    let _ = connection.try_send(&bytes[..end]);
                    if round % 2 == 0 {
                        let answer = connection.try_recv();
                        assert!(matches!(&answer, Ok(Some(answer)) if answer.status == 403), "{answer:?}");
                    }
                }
            });
        }
    });
    assert_eq!((proven(&cluster, 0), memory()), (before, 0));
    assert!(labelled(&cluster, 0, "kvorum_peer_handshakes_refused_total", "no-shared-secret") >= 1200);
    for node in 0..3 {
        assert_eq!(cluster.ask(node, "GET", "/v0/entity?id=k", None).body, b"kept");
    }
    let lines =
        cluster.log(0).lines().filter(|line| line.contains("refused the connection of another node")).count();
    assert!(lines <= 16, "the log stays short: {lines} lines");
}

/// A stream that keeps what is written to it.
struct Recorded {
    stream: tokio::net::TcpStream,
    written: Rc<RefCell<Vec<u8>>>,
}

impl AsyncRead for Recorded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.written.borrow_mut().extend_from_slice(&bytes[..count]);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

struct Recorder(Rc<RefCell<Vec<u8>>>);

impl Connector for Recorder {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(authority).await?;
            self.0.borrow_mut().clear();
            Ok(Box::new(Recorded { stream, written: Rc::clone(&self.0) }) as BoxedStream)
        })
    }
}

struct Anybody;

impl LinkObserver for Anybody {
    fn connected(&self, _theirs: &Hello) {}
    fn disconnected(&self, _reason: Option<&str>) {}
    fn failed(&self, _reason: &str, _setback: Setback) {}
    fn admit(&self, _ours: &Hello, _theirs: &Hello) -> Result<(), HandshakeError> {
        Ok(())
    }
}

/// The bytes of a connection to node 0 in the name of node 1, by a program that knows the secret: its handshake, its proof,
/// and a request, which was answered.
fn record(cluster: &Cluster) -> Vec<u8> {
    let mut connection = Connection::open(cluster.address(1), PATIENCE).unwrap();
    let status = connection.exchange("GET", "/v0/status", "Accept: application/json\r\n", None).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    let store = u128::from_str_radix(status["store"]["id"].as_str().unwrap(), 16).unwrap();
    let urls: Vec<String> = (0..cluster.len()).map(|node| cluster.url(node)).collect();
    let (topology, peer) = (Topology::of_urls(&urls).unwrap().hash(), NodeId::of_url(&urls[0]));
    let node = NodeId::of_url(&urls[1]);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let auth = PeerAuth::new(PeerAuthMode::Require);
    auth.replace(Secrets::parse(ONE.as_bytes()).unwrap());
    let written = Rc::new(RefCell::new(Vec::new()));
    let timestamps = TimestampBound::new(Arc::clone(&clock), Duration::from_mins(1));
    let parts = LinkParts {
        authority: cluster.address(0).to_string(),
        peer,
        connector: Rc::new(Recorder(Rc::clone(&written))),
        hello: Box::new(move || Hello {
            protocol: PROTOCOL,
            protocols: None,
            cluster: "kvorum".to_owned(),
            cluster_id: None,
            node,
            topology,
            store,
            run: Run::default(),
            members: urls.clone(),
            clock: UnixMillis(1_700_000_000_000),
            place: kvorum_server::peer::PlaceSettings::default(),
            remembers: None,
        }),
        epoch: Box::new(|| kvorum_core::agreement::Epoch(0)),
        clock,
        limits: Arc::new(PeerLimits::new(Arc::new(timestamps), 8 << 20, 64 << 20)),
        auth: Arc::new(auth),
        rng: Arc::new(SystemRng),
        observer: Rc::new(Anybody),
        supervisor: Supervisor::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let link = Link::start(parts);
        let begun = std::time::Instant::now();
        while !link.is_usable() {
            assert!(begun.elapsed() < PATIENCE, "{:?}", link.state());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: 100 };
        link.call(&get, PATIENCE).await.unwrap();
    });
    let recorded = written.borrow().clone();
    assert!(recorded.starts_with(b"GET /v0/peer HTTP/1.1\r\n"));
    recorded
}

/// Goal: what was recorded on the network opens nothing, and cannot keep the node itself away. Method: a whole connection
/// of a program that knows the secret is recorded. It is sent again, with its proof; with the proof of the called node in
/// its place; and its handshake alone, again and again, while the node that it names comes back.
#[test]
fn recorded_handshakes_open_nothing() {
    let files = Files::new();
    let mut cluster = cluster(&files, &[("require", &[ONE]), ("require", &[ONE])]);
    let audit = files.folder.path().join("audit.log");
    let mut launch = files.launch(0, "require", true);
    launch.environment.push(("KVORUM_AUDIT_LOG".to_owned(), audit.to_str().unwrap().to_owned()));
    cluster.set_launch(0, launch);
    cluster.start_all();
    let before = proven(&cluster, 0);
    let recorded = record(&cluster);
    wait_until("the recorded connection has ended", || proven(&cluster, 0) == before);
    let head = recorded.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    assert!(recorded.len() > head + 32, "a proof and a frame follow");
    let refused = |reason| labelled(&cluster, 0, "kvorum_peer_handshakes_refused_total", reason);
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(cluster.address(0)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    // Everything after the head of the answer: no frame may be answered.
    let rest = |stream: &mut TcpStream| {
        let mut all = Vec::new();
        // A reset is an end, too: the node did not read all that came.
        let _ = stream.read_to_end(&mut all);
        let end = all.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or_default() + 4;
        assert!(all.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&all));
        all[end..].to_vec()
    };
    assert_eq!(rest(&mut open(&recorded)), b"", "replayed");
    assert_eq!(refused("wrong-proof"), 1);

    let mut stream = open(&recorded[..head]);
    let mut answer = vec![0; 4096];
    let count = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..count]).to_ascii_lowercase();
    let proof = answer.lines().find_map(|line| line.strip_prefix("kvorum-proof: ")).unwrap();
    let digits = proof.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    let proof: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    stream.write_all(&[&proof, &recorded[head + 32..]].concat()).unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    assert_eq!((all.as_slice(), refused("wrong-proof")), (&b""[..], 2), "reflected");
    assert_eq!(proven(&cluster, 0), before, "nothing was opened");
    wait_until("the audit log has both", || {
        let lines = std::fs::read_to_string(&audit).unwrap_or_default();
        let is_it = |line: &&str| line.contains("\"wrong-proof\"") && line.contains("\"/v0/peer\"");
        lines.lines().filter(is_it).count() == 2
    });

    cluster.kill9(1);
    let address = cluster.address(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut silent = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let _ = stream.write_all(&recorded[..head]);
                    silent.push_back(stream);
                    // More than a member has places for handshakes.
                    if silent.len() > 200 {
                        silent.pop_front();
                    }
                }
            });
        }
        let _over = kvorum_testkit::RaiseOnDrop(&is_over);
        cluster.start_node(1);
        cluster.wait_until_connected();
    });
    wait_until("the unfinished handshakes are gone", || {
        let open = cluster.metric(0, "kvorum_connections_open");
        open < 20 && labelled(&cluster, 0, "kvorum_peer_handshakes_refused_total", "late") > 0
    });
    assert!(labelled(&cluster, 0, "kvorum_peer_handshakes_refused_total", "replayed") > 0);
    assert!(are_all_first(&cluster, 0), "{:?}", proven(&cluster, 0));
}
