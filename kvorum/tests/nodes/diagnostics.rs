//! Goal: diagnostics cannot harm a node, and they are true. Method: real processes whose logs are broken in
//! every way and whose threads are made to panic; then the status, metrics and logs are checked.

use kvorum_server::peer::IDLE_MAX;
use kvorum_server::supervise::{AtEnd, Part};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::disk::Mounted;
use kvorum_testkit::http::{Answer, Connection, ask};
use kvorum_testkit::node::Node;
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{PATIENCE, metric_sum, skip, wait_until};
use kvorum_tls::authority::{Authority, Use};
use std::fs::{File, OpenOptions, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The node's status with its HTTP code; `None` while no node answers.
fn try_status(address: SocketAddr, query: &str) -> Option<(u16, serde_json::Value)> {
    let mut connection = Connection::open(address, PATIENCE).ok()?;
    let headers = "Accept: application/json\r\nConnection: close\r\n";
    let answer = connection.exchange("GET", &format!("/v0/status{query}"), headers, None).ok()?;
    Some((answer.status, serde_json::from_slice(&answer.body).ok()?))
}

/// Redirects a node's standard error, in the syntax of bash.
fn log_to(redirection: &str) -> Launch {
    let command = format!("exec \"$@\" {redirection}");
    let prefix = ["bash", "-c", &command, "bash"].map(ToOwned::to_owned).to_vec();
    Launch { prefix, ..Launch::default() }
}

/// Writes through the node to all replicas until that succeeds.
fn wait_until_all_confirm(cluster: &Cluster, index: usize) {
    let target = format!("/v0/entity?id=all&replicas={0}/{0}", cluster.len());
    wait_until("a write is confirmed by all", || {
        cluster.try_ask(index, "PUT", &target, Some(b"v")).is_ok_and(|answer| answer.status == 201)
    });
}

// ---- The log ----------------------------------------------------------------------------------------------------

/// Goal: a log whose reader has gone does not affect the node. Method: node 0 logs into a pipe that is closed
/// after its first line; then another node is killed and comes back, which node 0 logs.
#[test]
fn closed_log_stops_no_link() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.set_launch(0, log_to("2> >(exec head -n 1 >/dev/null)"));
    cluster.start_all();
    for node in [1, 2] {
        cluster.kill9(node);
        // Several times, so that each of the node's threads logs it.
        for _ in 0..8 {
            let _ = cluster.try_ask(0, "PUT", "/v0/entity?id=k&replicas=3/3", Some(b"v"));
        }
        cluster.start_node(node);
        wait_until_all_confirm(&cluster, 0);
        cluster.wait_until_connected();
        wait_until("hints are delivered", || cluster.metric(0, "kvorum_hints_waiting") == 0);
    }
    assert!(
        cluster.metric(0, "kvorum_log_lines_dropped_total") > 0,
        "the log was not closed: the test shows nothing"
    );
    assert_eq!(cluster.metric(0, "kvorum_panics_total"), 0);
    cluster.terminate(0);
}

/// Goal: a log that cannot be written (`2>/dev/full`) does not prevent a node from starting, serving and
/// ending with 0.
#[test]
fn full_log_stops_no_node() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    for index in 0..3 {
        cluster.set_launch(index, log_to("2>/dev/full"));
    }
    cluster.start_all();
    cluster.kill9(2);
    cluster.start_node(2);
    for index in 0..3 {
        wait_until_all_confirm(&cluster, index);
        assert_eq!(cluster.ask(index, "GET", "/v0/entity?id=all", None).body, b"v");
        assert!(cluster.metric(index, "kvorum_log_lines_dropped_total") > 0);
        assert_eq!(cluster.metric(index, "kvorum_panics_total"), 0);
    }
    for index in 0..3 {
        cluster.terminate(index);
    }
}

/// One node whose standard error is a file of the test.
struct Alone {
    address: SocketAddr,
    child: Child,
}

impl Alone {
    /// Starts the node and waits until it serves. It logs all its actions, so that there are many lines to
    /// lose.
    fn start(data_dir: &Path, log: File) -> Self {
        let address = Cluster::new(1, &[]).address(0);
        let mut command = kvorum(&["serve", "--memory-budget", "16MiB", "--durability", "os", "--data-dir"]);
        command.arg(data_dir).arg("--listen").arg(address.to_string()).env("KVORUM_LOG", "trace").stderr(log);
        let alone = Self { address, child: command.spawn().unwrap() };
        wait_until("the node serves", || try_status(address, "").is_some_and(|(code, _)| code == 200));
        alone
    }

    fn ask(&self, method: &str, id: &str, body: Option<&[u8]>) -> Answer {
        ask(self.address, method, &format!("/v0/entity?id={id}"), body, PATIENCE).unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        metric_sum(ask(self.address, "GET", "/metrics", None, PATIENCE).unwrap().text(), name)
    }

    /// Ends it by SIGTERM; returns its exit code.
    fn terminate(mut self) -> Option<i32> {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        let mut code = None;
        wait_until("the node has ended", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: the log is on the data's disk, which fills. Reads continue, writes resume when there is space again,
/// and one line of the log reports that lines are missing. Method: a small tmpfs with store and log of one
/// node.
#[test]
fn log_on_the_full_data_disk() {
    let disk = match Mounted::tmpfs(64) {
        Ok(disk) => disk,
        Err(reason) => return skip("log_on_the_full_data_disk", &reason),
    };
    let log = disk.path().join("log");
    let file = OpenOptions::new().create(true).append(true).open(&log).unwrap();
    let node = Alone::start(&disk.data_dir(), file);
    assert_eq!(node.ask("PUT", "kept", Some(b"v")).status, 201);
    let ballast = disk.fill(0);
    wait_until("the full disk is noticed", || node.ask("PUT", "k", Some(&vec![0; 65536])).status == 507);
    wait_until("lines are dropped", || {
        // The node has given up its reserve, and a merge may free more: the log would have room for long.
        disk.fill(0);
        node.metric("kvorum_log_lines_dropped_total") > 0
    });
    assert_eq!(node.ask("GET", "kept", None).body, b"v");
    std::fs::remove_file(ballast).unwrap();
    wait_until("writes are taken again", || node.ask("PUT", "k", Some(b"v")).status == 201);
    wait_until("it is told that lines are missing", || {
        std::fs::read_to_string(&log).unwrap().contains("log lines were dropped here")
    });
    assert_eq!(node.metric("kvorum_panics_total"), 0);
    assert_eq!(node.terminate(), Some(0));
}

/// Goal: a log whose reader does not read delays neither requests nor the end of the node. Method: a FIFO
/// that no process reads, and a log of everything, until lines have been dropped; then SIGTERM.
#[test]
fn reader_that_does_not_read_holds_up_nothing() {
    let dir = TempDir::with_prefix("kvorum-fifo-").unwrap();
    let fifo = dir.path().join("log");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Opened for both ends, so that it has a reader.
    let file = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let node = Alone::start(&dir.path().join("data"), file);
    let mut number = 0;
    wait_until("lines are dropped", || {
        number += 1;
        assert_eq!(node.ask("PUT", &number.to_string(), Some(b"v")).status, 201);
        node.metric("kvorum_log_lines_dropped_total") > 0
    });
    for number in 1..=number {
        assert_eq!(node.ask("GET", &number.to_string(), None).body, b"v");
    }
    assert_eq!(node.terminate(), Some(0));
}

/// Goal: no command panics if its output is full or closed. A result that could not be printed is a failure,
/// a reader that has gone is none. Method: each command that prints, with `/dev/full` and with a closed pipe.
#[test]
fn outputs_that_fail_make_no_command_panic() {
    let server = Node::start_new(&[]);
    server.put("id=k", b"v");
    let url = format!("http://{}", server.address());
    let program = kvorum(&[]).get_program().to_str().unwrap().to_owned();
    let commands = [
        "serve --print-config".to_owned(),
        "lab ladder".to_owned(),
        "lab stages".to_owned(),
        format!("bench get -d 100ms -c 2 -t 1 {url}"),
        format!("bench get -d 100ms -c 2 -t 1 -R 50 --find-max 1s {url}"),
        format!("status --url {url}"),
        format!("get k --url {url}"),
        format!("get k --show --url {url}"),
        format!("put k --value v --url {url}"),
        format!("scan --url {url}"),
        format!("explain k --url {url}"),
        format!("repair --url {url}"),
        "nonsense".to_owned(),
        "get".to_owned(),
        "serve --listen nonsense".to_owned(),
        "--help".to_owned(),
    ];
    for command in commands {
        for redirection in
            [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "| true", "2>&1 | true", "2> >(true) > >(true)"]
        {
            let line = format!("set -o pipefail; {program} {command} {redirection}");
            let output = run(Command::new("bash").args(["-c", &line]), b"");
            let code = output.status.code().expect("the command was killed");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(code <= 3 && !said.contains("panicked"), "{command} {redirection}: {code}: {said}");
        }
    }
}

// ---- Threads and tasks that end ---------------------------------------------------------------------------------

/// After how many of its steps a part must panic: late enough that the node serves by then.
fn steps(part: Part) -> u32 {
    match part {
        // One step each, at their start or their only step.
        Part::IndexFlush
        | Part::FileFree
        | Part::HintDrain
        | Part::CommitWake
        | Part::Turns
        | Part::FenceQuery
        | Part::Scrub
        | Part::History
        | Part::SpanExport
        | Part::Purge => 1,
        Part::Commit | Part::Worker | Part::BackgroundPool => 10,
        Part::Network => 30,
        Part::FilePin => 100,
        Part::Sweep
        | Part::Reclaim
        | Part::Reconnect
        | Part::TokenWatch
        | Part::PeerSecretWatch
        | Part::TlsWatch => 2,
        _ => 5,
    }
}

/// Starts three nodes, of which node 0 has `part` panic after a while.
fn cluster_that_loses(part: Part) -> Cluster {
    // Small buffers, so that the index is flushed and tables are freed soon.
    let mut cluster =
        Cluster::new(3, &["--memory-budget", "16MiB", "--durability", "os", "--execution", "pool"]);
    let fault = format!("panic-in-{}:{}", part.name(), steps(part));
    // Parts that not every node has: tokens, secrets and certificates are looked at, and all requests and nodes pass.
    let folder = cluster.data_dir(0).parent().unwrap();
    let (tokens, audit) = (folder.join("tokens.toml"), folder.join("audit.log"));
    std::fs::write(&tokens, "[end]\ntokens = 0\n").unwrap();
    let secrets = folder.join("secrets");
    std::fs::write(&secrets, "a secret for tests, of more than 32 bytes\n").unwrap();
    let host = cluster.address(0).ip().to_string();
    let made = Authority::new("a test's").unwrap().issue("node", &[host], Use::Node).unwrap();
    let (cert, key) = (folder.join("node.pem"), folder.join("node.key"));
    std::fs::write(&cert, &made.cert).unwrap();
    std::fs::write(&key, &made.key).unwrap();
    let environment = [
        ("KVORUM_CRASH_AT", fault),
        ("KVORUM_TRACE_ENDPOINT", "http://127.0.0.1:9/v1/traces".to_owned()),
        ("KVORUM_TLS", "allow".to_owned()),
        ("KVORUM_TLS_CERT", cert.display().to_string()),
        ("KVORUM_TLS_KEY", key.display().to_string()),
        ("KVORUM_AUTH", "warn".to_owned()),
        ("KVORUM_TOKEN_FILE", tokens.display().to_string()),
        ("KVORUM_PEER_AUTH", "prefer".to_owned()),
        ("KVORUM_PEER_SECRET_FILE", secrets.display().to_string()),
        ("KVORUM_AUDIT_LOG", audit.display().to_string()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    cluster.set_launch(0, Launch { environment, ..Launch::default() });
    for index in 0..3 {
        cluster.spawn(index);
    }
    for index in 1..3 {
        cluster.wait_until_ready(index);
    }
    cluster
}

/// Tests `parts`, a few at a time.
fn for_each_part<'a>(parts: impl Iterator<Item = &'a Part>, test: impl Fn(Part) + Copy + Send) {
    let parts: Vec<Part> = parts.copied().collect();
    for some in parts.chunks(4) {
        thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|&part| (part, scope.spawn(move || test(part)))).collect();
            for (part, thread) in threads {
                assert!(thread.join().is_ok(), "{}", part.name());
            }
        });
    }
}

/// Gives every part of the node some work, once.
fn keep_busy(cluster: &Cluster, turn: usize) {
    // Long keys, so that the index is soon large enough to be flushed.
    let tail = "k".repeat(900);
    for key in 0..8 {
        let target = format!("/v0/entity?id=busy-{}-{tail}&replicas=3/3", turn * 8 + key);
        for node in 0..3 {
            let _ = cluster.try_ask(node, "PUT", &target, Some(&[7; 2000]));
        }
    }
    let repair = format!("/admin/repair?partition={}", turn % 4096);
    let _ = cluster.try_ask(0, "POST", &repair, None);
    let _ = cluster.try_ask(0, "GET", "/v0/entity?id=busy&replicas=1/3", None);
    let _ = cluster.try_ask(0, "GET", "/v0/entities?start=b", None);
    let _ = cluster.try_ask(1, "GET", "/v0/entities?start=b", None);
}

/// Goal: if a thread or task ends that cannot be started again, the node reports it in its status, and its
/// process ends with exit code 3. It is never ready without being able to serve. Method: each such part of
/// the table, made to panic while the node works.
#[test]
fn parts_that_cannot_be_started_again_end_the_process() {
    let parts =
        Part::ALL.iter().filter(|part| matches!(part.at_end(), AtEnd::StopNode | AtEnd::DoneOrStopNode));
    // Only a node that waits has it: the next test.
    let parts = parts.filter(|part| **part != Part::Join);
    let lose = |part: Part| {
        let mut cluster = cluster_that_loses(part);
        let address = cluster.address(0);
        let (said, is_over) = (Mutex::new(None), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    if let Some((code, status)) = try_status(address, "")
                        && status["serving"] == "thread-ended"
                    {
                        assert_eq!((code, status["state"].as_str()), (503, Some("failed")));
                        *said.lock().unwrap() = status["ended"]["part"].as_str().map(ToOwned::to_owned);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let _over = kvorum_testkit::RaiseOnDrop(&is_over);
            let mut turn = 0;
            wait_until(&format!("the process ends: {}", part.name()), || {
                turn += 1;
                keep_busy(&cluster, turn);
                !cluster.is_alive(0)
            });
        });
        let said = said.into_inner().unwrap();
        let log = cluster.log(0);
        assert_eq!(cluster.exit_code(0), Some(3), "{}: {log}", part.name());
        assert!(log.contains("panics as a test wants") && log.contains("cannot serve any more"), "{log}");
        // A node without its only acceptor cannot answer; with two network threads every other request gets
        // through.
        if let Some(said) = said {
            assert!(said.contains(part.name()), "{said}");
        } else {
            assert_eq!(part, Part::Network, "{log}");
        }
        // Started again, as a supervisor does it, the node serves.
        cluster.set_launch(0, Launch::default());
        cluster.start_node(0);
        wait_until_all_confirm(&cluster, 0);
    };
    for_each_part(parts, lose);
}

/// Goal: the same for the thread of a node that waits to join a cluster. Method: it is made to panic while the node waits.
#[test]
fn a_waiting_node_ends_with_its_thread() {
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    let environment = vec![("KVORUM_CRASH_AT".to_owned(), format!("panic-in-{}:3", Part::Join.name()))];
    cluster.set_launch(3, Launch { joins: vec![cluster.url(0)], environment, ..Launch::default() });
    (0..4).for_each(|node| cluster.spawn(node));
    wait_until("the process ends", || !cluster.is_alive(3));
    let log = cluster.log(3);
    assert_eq!(cluster.exit_code(3), Some(3), "{log}");
    assert!(log.contains("panics as a test wants") && log.contains("cannot serve any more"), "{log}");
}

/// Goal: a task or thread that may be started again is, and the node works as before. Method: each such part
/// of the table, made to panic while the node works; then another node is killed and comes back: its hints
/// are delivered, and all confirm.
#[test]
fn parts_that_may_be_started_again_are() {
    let parts = Part::ALL.iter().filter(|part| matches!(part.at_end(), AtEnd::Restart | AtEnd::Done));
    let lose = |part: Part| {
        let mut cluster = cluster_that_loses(part);
        let metric = format!("kvorum_part_restarts_total{{part=\"{}\"}}", part.name());
        let mut turn = 0;
        let mut is_killed = false;
        wait_until(&format!("it is started again: {}", part.name()), || {
            turn += 1;
            keep_busy(&cluster, turn);
            if part == Part::Reconnect && !is_killed {
                // It has work only when a peer comes back.
                cluster.kill9(2);
                cluster.start_node(2);
                is_killed = true;
            }
            cluster.try_ask(0, "GET", "/metrics", None).is_ok_and(|answer| {
                answer
                    .text()
                    .lines()
                    .any(|line| line.strip_prefix(&metric).is_some_and(|count| count != " 0"))
            })
        });
        cluster.wait_until_ready(0);
        cluster.kill9(1);
        assert_eq!(cluster.ask(2, "PUT", "/v0/entity?id=missed", Some(b"v")).status, 201);
        wait_until("a write is confirmed by two", || {
            cluster.try_ask(0, "PUT", "/v0/entity?id=missed", Some(b"v")).is_ok_and(|it| it.status == 201)
        });
        cluster.start_node(1);
        wait_until_all_confirm(&cluster, 0);
        cluster.wait_until_connected();
        wait_until("hints are delivered", || cluster.metric(0, "kvorum_hints_waiting") == 0);
        // The state of its links is read twice a second.
        wait_until("the status says that it serves", || {
            let (code, status) = try_status(cluster.address(0), "?ready=quorum").unwrap();
            (code, status["serving"].as_str()) == (200, Some("ok"))
        });
        assert!(cluster.log(0).contains("it is started again"), "{}", cluster.log(0));
        cluster.terminate(0);
    };
    for_each_part(parts, lose);
}

/// Goal: the status says whether requests can be served, and the command for health checks agrees with it.
/// Method: two of three nodes are killed, and come back.
#[test]
fn status_says_whether_requests_can_be_served() {
    let mut cluster = Cluster::start(3);
    let says = |cluster: &Cluster, query: &str| {
        let (code, status) = try_status(cluster.address(0), query).unwrap();
        (code, status["serving"].as_str().unwrap().to_owned())
    };
    let exit_code = |cluster: &Cluster, flag: &[&str]| {
        let url = cluster.url(0);
        run(kvorum(&["status", "--node-only", "--url", &url]).args(flag), b"").status.code()
    };
    wait_until("there is a quorum", || says(&cluster, "?ready=quorum") == (200, "ok".to_owned()));
    assert_eq!((exit_code(&cluster, &[]), exit_code(&cluster, &["--quorum"])), (Some(0), Some(0)));
    cluster.kill9(1);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(says(&cluster, "?ready=quorum"), (200, "ok".to_owned()));
    cluster.kill9(2);
    wait_until("there is none", || says(&cluster, "?ready=quorum") == (503, "no-quorum".to_owned()));
    assert_eq!(says(&cluster, ""), (200, "no-quorum".to_owned()));
    assert_eq!(cluster.ask(0, "GET", "/v0/entity?id=k", None).status, 504);
    assert_eq!((exit_code(&cluster, &[]), exit_code(&cluster, &["--quorum"])), (Some(0), Some(3)));
    assert_eq!(cluster.ask(0, "GET", "/v0/status?ready=never", None).status, 400);
    cluster.start_node(1);
    wait_until("there is one again", || says(&cluster, "?ready=quorum") == (200, "ok".to_owned()));
    assert_eq!(cluster.ask(0, "GET", "/v0/entity?id=k", None).status, 404);
}

// ---- What an operator is told -----------------------------------------------------------------------------------

/// The text of a 504 to a read of `quorum` through node 0.
fn refusal(cluster: &Cluster, quorum: &str) -> String {
    let answer = cluster.ask(0, "GET", &format!("/v0/entity?id=k&replicas={quorum}"), None);
    assert_eq!(answer.status, 504, "{}", answer.text());
    answer.text().to_owned()
}

/// Goal: a 504 gives one reason for each replica, the true one, with measured figures. Method: new stores
/// with one node down; then a node that lost its disk, with one of its two peers down.
#[test]
fn refusals_give_the_reason_that_holds() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.start_node(0);
    cluster.start_node(1);
    let own = format!("{}: new store: waiting to hear from {}", cluster.url(0), cluster.url(2));
    let other = format!("{}: new store: waiting to hear from {}", cluster.url(1), cluster.url(2));
    let gone = format!("{}: no connection: cannot connect: Connection refused", cluster.url(2));
    wait_until("each replica has its reason", || {
        let text = refusal(&cluster, "3/3");
        assert!(!text.contains("NotVoting") && !text.contains("not quorum-eligible"), "{text}");
        let waited = text.split_once("did so in ").unwrap().1.split_once(" ms").unwrap().0;
        assert!(waited.parse::<f64>().unwrap() > 0.0, "{text}");
        text.contains(&own) && text.contains(&other) && text.contains(&gone)
    });
    cluster.start_node(2);
    cluster.wait_until_connected();
    for key in 0..200 {
        let target = format!("/v0/entity?id=key-{key}&replicas=3/3");
        wait_until("all confirm", || {
            cluster.try_ask(0, "PUT", &target, Some(b"v")).is_ok_and(|answer| answer.status == 201)
        });
    }
    cluster.kill9_all();
    cluster.wipe(0);
    cluster.start_node(1);
    cluster.start_node(0);
    wait_until("the loss is told, with a measured figure", || {
        let text = refusal(&cluster, "3/3");
        let own = format!("{}: ", cluster.url(0));
        let own = text.split("; ").find_map(|reason| reason.strip_prefix(&*own)).unwrap_or_default();
        own.starts_with("refilling after disk loss (")
            || own
                .starts_with(&format!("refilled after disk loss: waiting to compare with {}", cluster.url(2)))
    });
}

/// Goal: the log reports the loss of a peer and its return by its URL, once each, however many threads
/// notice. The warning of a first start is followed by its end; a peer that is down is one line.
#[test]
fn log_tells_loss_and_return_by_url() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB", "--threads", "4"]);
    cluster.start_node(0);
    cluster.start_node(1);
    let url = cluster.url(2);
    let count = |cluster: &Cluster, words: &str| {
        let log = cluster.log(0);
        log.lines().filter(|line| line.contains(words) && line.contains(&url)).count()
    };
    wait_until("it is told that a node is not there", || count(&cluster, "cannot reach a node") == 1);
    wait_until("it is told that the store is new", || {
        cluster.log(0).contains("new store: it answers no reads")
    });
    cluster.start_node(2);
    cluster.wait_until_connected();
    wait_until("the end of the warning is told", || {
        cluster.log(0).contains("this store is quorum-eligible from now on")
    });
    wait_until("it is told that the node is there", || count(&cluster, "a node is back") == 1);
    cluster.kill9(2);
    wait_until("the loss is told", || count(&cluster, "lost a node") == 1);
    thread::sleep(Duration::from_secs(3));
    cluster.start_node(2);
    cluster.wait_until_connected();
    wait_until("the return is told", || count(&cluster, "a node is back") == 2);
    // At the start, and after it was killed.
    assert_eq!(count(&cluster, "Connection refused"), 2, "{}", cluster.log(0));
    assert_eq!(count(&cluster, "lost a node"), 1, "{}", cluster.log(0));
}

/// Goal: a node with another list of nodes is refused, and both sides log the URLs that differ, once.
#[test]
fn other_list_of_nodes_is_told_on_both_sides() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.spawn(0);
    let (own, other, third) = (cluster.url(0), cluster.url(1), cluster.url(2));
    let dir = TempDir::with_prefix("kvorum-other-").unwrap();
    let foreign = "http://127.0.0.1:9";
    let log = dir.path().join("log");
    let mut command = kvorum(&["serve", "--memory-budget", "16MiB", "--cluster"]);
    command.arg(format!("{own},{other},{foreign}")).arg("--listen").arg(cluster.address(1).to_string());
    command.arg("--data-dir").arg(dir.path().join("data")).stderr(File::create(&log).unwrap());
    let _alone = Alone { address: cluster.address(1), child: command.spawn().unwrap() };
    let tells = |text: &str, words: &str| {
        let differ = |line: &&str| line.contains(words) && line.contains(foreign) && line.contains(&third);
        text.lines().filter(differ).count()
    };
    let theirs = || std::fs::read_to_string(&log).unwrap();
    let (refused, unreached) = ("refused the connection of another node", "cannot reach a node");
    wait_until("both sides tell", || {
        let ours = cluster.log(0);
        tells(&ours, refused) == 1
            && tells(&theirs(), refused) == 1
            && tells(&ours, unreached) == 1
            && tells(&theirs(), unreached) == 1
    });
    // After several attempts it is still logged once.
    thread::sleep(Duration::from_secs(4));
    for log in [cluster.log(0), theirs()] {
        assert_eq!((tells(&log, refused), tells(&log, unreached)), (1, 1), "{log}");
    }
}

/// Goal: a node's files can only be read by its user, and a directory with other modes is reported. Method:
/// modes after a start under the usual mask, and with modes that were changed.
#[test]
fn stored_files_are_private() {
    fn modes(path: &Path, found: &mut Vec<(PathBuf, u32)>) {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        found.push((path.to_path_buf(), metadata.permissions().mode() & 0o777));
        if metadata.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                modes(&entry.unwrap().path(), found);
            }
        }
    }
    let mut server = Node::start_new(&[]);
    for key in 0..100 {
        server.put(&format!("id={key}"), &[7; 2000]);
    }
    assert!(!server.log().contains("readable by other users"), "{}", server.log());
    server.terminate();
    let mut found = Vec::new();
    modes(server.data_dir(), &mut found);
    assert!(found.len() > 10);
    for (path, mode) in &found {
        assert_eq!(mode & 0o077, 0, "{}: {mode:04o}", path.display());
    }
    let change = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    change(&server.data_dir().join("KVORUM"), 0o644);
    server.restart();
    let log = server.log();
    assert!(log.contains("files in the data directory are readable by other users"), "{log}");
    server.terminate();
    change(server.data_dir(), 0o755);
    server.restart();
    let log = server.log();
    assert!(log.contains("the data directory is readable by other users") && log.contains("0755"), "{log}");
}

// ---- Clocks -----------------------------------------------------------------------------------------------------

/// Goal: a process that is stopped for 3 s and resumed is not taken for one with a wrong clock, on either
/// side. Method: SIGSTOP and SIGCONT, three times; no log mentions a clock, and every status shows that the
/// clocks are close.
#[test]
fn stopped_process_raises_no_clock_alarm() {
    let cluster = Cluster::start(3);
    for _ in 0..3 {
        cluster.pause(1);
        thread::sleep(Duration::from_secs(3));
        cluster.resume(1);
        thread::sleep(Duration::from_millis(300));
    }
    for index in 0..3 {
        wait_until("every peer's clock is known well", || {
            let Some((_, status)) = try_status(cluster.address(index), "") else { return false };
            let peers = status["peers"].as_array().unwrap();
            peers.iter().all(|peer| {
                let number = |name: &str| peer[name].as_i64().unwrap_or(i64::MAX);
                number("clock_offset_ms").abs() < 500 && number("clock_offset_error_ms") < 500
            })
        });
        assert!(!cluster.log(index).contains("clock of a node"), "{}", cluster.log(index));
    }
}

/// Goal: a node's links do not count as unused. Before the fix they did: on an idle cluster, the links of
/// every network thread but the first ended each minute. Method: two threads per node and no request, for
/// longer than a connection may be unused.
#[test]
fn links_of_idle_threads_are_kept() {
    let mut cluster = Cluster::new(3, &["--threads", "2"]);
    cluster.start_all();
    cluster.wait_until_connected();
    let connects = || (0..3).map(|node| cluster.metric(node, "kvorum_peer_connects_total")).sum::<u64>();
    wait_until("every thread is linked with every peer", || connects() >= 12);
    let before = connects();
    thread::sleep(IDLE_MAX + Duration::from_secs(20));
    assert_eq!(connects(), before, "links were ended and made again");
}
