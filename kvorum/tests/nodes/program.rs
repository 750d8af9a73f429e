//! Goal: the program starts, ends and informs its operators as its documents say. Method: the real binary,
//! signals, its exit codes, and its own commands against a node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvorum_testkit::disk::MACHINE_ALARM;
use kvorum_testkit::http::{Ended, one};
use kvorum_testkit::node::{Node, RANGE, fill};
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{MIB, escape, noise, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

// ---- Its threads ------------------------------------------------------------------------------------------------

/// Threads that requests wait for have the nice value of the process, threads that no request waits for a
/// higher one. A thread that may hold a lock that requests need does not yield, except for fjall's workers.
#[test]
fn threads_yield_to_those_that_serve() {
    let server = Node::start_new(&[]);
    let niceness = |name: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
        let named = stats.filter_map(|stat| {
            let (head, tail) = stat.rsplit_once(") ")?;
            let comm = head.split_once('(')?.1;
            // proc_pid_stat(5): field 19; the text after the name begins with field 3.
            comm.starts_with(name).then(|| tail.split(' ').nth(16).unwrap().parse::<i32>().unwrap())
        });
        let named: Vec<i32> = named.collect();
        assert!(!named.is_empty(), "no thread is called {name}");
        named
    };
    let usual = niceness("kvorum:net")[0];
    for name in ["kvorum:net", "kvorum:commit", "kvorum:worker", "kvorum:sweep"] {
        assert!(niceness(name).iter().all(|&nice| nice == usual), "{name}");
    }
    for name in ["kvorum:bgpool", "kvorum:reclaim", "kvorum:filefree", "fjall:worker"] {
        wait_until(name, || niceness(name).iter().all(|&nice| nice >= usual.max(10)));
    }
}

// ---- The end of a node -----------------------------------------------------------------------------------------

/// A node that is told to stop answers the requests that it has begun: an upload is completed, a range is
/// whole. Idle connections are closed, new ones refused, and the exit code is 0.
#[test]
fn requests_under_way_are_answered_when_told_to_stop() {
    let mut server = Node::start_new(&["--drain-timeout", "20s", "--threads", "2", "--durability", "os"]);
    let all = fill(&server, 24);
    let mut idle = server.connect();
    idle.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.recv().status, 200);
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    upload.send(b"01234");
    let mut reader = server.connect();
    reader.send(RANGE);
    let first = reader.recv_raw(1000);
    server.signal(libc::SIGTERM);
    assert_eq!(idle.recv_end(), Ended::Closed);
    wait_until("new connections are refused", || server.try_status().is_none());
    assert_eq!(server.try_wait(), None, "the node waits for the upload");
    upload.send(b"56789");
    let answer = upload.recv();
    assert_eq!(answer.status, 201);
    assert!(answer.closes(), "the client is told that the connection ends: {answer:?}");
    // A reader that has stopped for a while has the usual time for readers.
    sleep(Duration::from_millis(2500));
    let mut wire = first;
    loop {
        let bytes = reader.recv_raw(MIB);
        if bytes.is_empty() {
            break;
        }
        wire.extend(bytes);
    }
    assert!(wire.len() > all.len() && wire.ends_with(b"\r\n0\r\n\r\n"), "the range is not whole");
    let status = server.wait();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    server.restart();
    assert_eq!(server.get("id=upload").body, b"0123456789");
    assert!(one(server.exchange(RANGE)).body == all);
}

/// An idle node ends at once on either signal; a second signal ends one that waits.
#[test]
fn signals_end_a_node() {
    let mut server = Node::start_new(&["--drain-timeout", "60s"]);
    let begun = Instant::now();
    server.signal(libc::SIGINT);
    assert_eq!(server.wait().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "an idle node waited {:?}", begun.elapsed());
    server.restart();
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    server.signal(libc::SIGTERM);
    wait_until("it drains", || server.log().contains("draining") && server.try_status().is_none());
    server.signal(libc::SIGTERM);
    let status = server.wait();
    assert!(!status.success() && status.signal().is_none(), "{status}");
}

/// A node as a child process, for tests that watch it before it serves, and the lines of its log.
fn watched(data_dir: &Path, listen: &str, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut command = kvorum(&["serve", "--listen", listen, "--data-dir"]);
    let mut child = command.arg(data_dir).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    (child, lines)
}

/// A node that has logged that it serves can be told to stop: it drains. Before the fix, it listened to
/// signals only after that line, and about one in ten was killed instead.
#[test]
fn signal_at_the_very_beginning_is_heard() {
    let directory = tempfile::tempdir().unwrap();
    for start in 1..=20 {
        let (mut node, mut log) = watched(directory.path(), "127.0.0.1:0", &[]);
        let serves = log.find(|line| line.as_ref().unwrap().contains("kvorum serves"));
        kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
        assert!(serves.is_some());
        let rest: Vec<String> = log.map(Result::unwrap).collect();
        let status = node.wait().unwrap();
        assert_eq!(status.code(), Some(0), "start {start}: {status}; {rest:?}");
    }
}

/// The first of three ports in a row that are free now.
pub(crate) fn three_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let Some(last) = port.checked_add(2) else { continue };
        if (port + 1..=last).all(|next| TcpListener::bind(("127.0.0.1", next)).is_ok()) {
            return port;
        }
    }
}

/// Goal: the log of `kvorum dev` says once what concerns the machine, and nodes that stop together are not reported as lost.
/// Method: a limit of connections that no machine allows, three nodes, and a signal.
#[test]
fn cluster_in_one_process_logs_no_loss_and_no_line_thrice() {
    let directory = tempfile::tempdir().unwrap();
    let base = three_ports().to_string();
    let arguments = ["--max-connections", "1000000", "--memory-budget", "16MiB"];
    let mut command = kvorum(&["dev", "--base-port", &base, "--data-dir"]);
    let mut nodes = command.arg(directory.path()).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(nodes.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines: Vec<String> = Vec::new();
    while !lines.last().is_some_and(|line| line.contains("any node answers")) {
        lines.push(log.next().expect("the nodes serve"));
    }
    let told = lines.len();
    kill_process(Pid::from_child(&nodes), Signal::INT).unwrap();
    lines.extend(log);
    assert_eq!(nodes.wait().unwrap().code(), Some(0), "{lines:?}");
    let count = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
    assert_eq!(count("limit of file descriptors"), 1, "{lines:?}");
    let at_the_end = &lines[told..];
    assert!(at_the_end.iter().any(|line| line.contains("draining")), "{at_the_end:?}");
    assert!(at_the_end.iter().all(|line| !line.contains(" WARN ")), "{at_the_end:?}");
}

/// A node that still waits for the hints of a silent peer ends when it is told to.
#[test]
fn signal_ends_the_wait_for_hints() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cluster = format!("http://{own},http://{}", silent.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let (mut node, log) =
        watched(directory.path(), &own, &["--cluster", &cluster, "--hint-drain-timeout", "1m"]);
    // It calls its peers once its store is open.
    let _call = silent.accept().unwrap();
    let begun = Instant::now();
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    let log: Vec<String> = log.map(Result::unwrap).collect();
    let status = node.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{status}; {log:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited {:?}", begun.elapsed());
    assert!(!log.iter().any(|line| line.contains("kvorum serves")), "{log:?}");
}

/// One directory, one node: the second is refused, with an error text, and does no harm.
#[test]
fn second_node_on_a_directory_is_refused() {
    let server = Node::start_new(&[]);
    assert_eq!(server.put("id=mine", b"x").status, 201);
    let mut second = kvorum(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    let output = run(second.arg(server.data_dir()), b"");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(server.data_dir().to_str().unwrap()), "{said}");
    assert_eq!(server.get("id=mine").body, b"x");
}

/// A port that is in use is an error, with a text; the program that has it continues.
#[test]
fn port_in_use_is_refused() {
    let server = Node::start_new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let address = server.address().to_string();
    let mut second = kvorum(&["serve", "--listen", &address, "--data-dir"]);
    let output = run(second.arg(directory.path().join("data")), b"");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&address) && said.to_lowercase().contains("listen"), "{said}");
    assert_eq!(server.try_status(), Some(200));
}

// ---- The command line ------------------------------------------------------------------------------------------

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Flags win over the environment over the file over defaults, and the page names the origin.
#[test]
fn printed_configuration_names_origins() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k.toml");
    std::fs::write(&file, "threads = 3\npool-threads = 5\nmax_value_size = \"2MiB\"\n").unwrap();
    let mut command = kvorum(&["serve", "--print-config", "--threads", "1", "--config"]);
    command.arg(&file).env("KVORUM_THREADS", "2").env("KVORUM_POOL_THREADS", "7").env("KVORUM_LOG", "debug");
    let output = run(&mut command, b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = text(&output.stdout).to_owned();
    let row = |name: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("threads"), "threads = \"1\" # flag --threads");
    assert_eq!(row("pool-threads"), "pool-threads = \"7\" # environment KVORUM_POOL_THREADS");
    assert_eq!(row("max-value-size"), format!("max-value-size = \"2MiB\" # file {}", file.display()));
    assert_eq!(row("durability"), "durability = \"always\" # default");
    // The page is itself a configuration.
    let again = directory.path().join("again.toml");
    std::fs::write(&again, &page).unwrap();
    let mut command = kvorum(&["serve", "--print-config"]);
    let output = run(command.env("KVORUM_CONFIG", &again), b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("pool-threads = \"7\""));
}

/// A setting's old name works as a flag, in the environment and in the file. Each use is one warning at the start, which names
/// both; help and the printed configuration show the new names only. Both names at once are refused.
#[test]
fn old_names_of_settings_warn() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k.toml");
    std::fs::write(&file, "scrub-every = \"2h\"\nworkers = 1\n").unwrap();
    let mut command = kvorum(&["serve", "--listen", "127.0.0.1:0", "--settle-interval", "1h", "--data-dir"]);
    command.arg(directory.path().join("data")).arg("--config").arg(&file).env("KVORUM_HINT_WAIT", "3s");
    let mut node = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(node.stderr.take().unwrap()).lines();
    let mut warnings = Vec::new();
    loop {
        let line = log.next().expect("the node serves").unwrap();
        if line.contains("kvorum serves") {
            break;
        }
        if line.contains(" WARN ") && line.contains("is now called") {
            warnings.push(line);
        }
    }
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    assert_eq!(node.wait().unwrap().code(), Some(0));
    let renamed = [
        ("workers", "pool-threads", "k.toml"),
        ("hint-wait", "hint-drain-timeout", "environment KVORUM_HINT_WAIT"),
        ("scrub-every", "scrub-interval", "k.toml"),
        ("settle-interval", "tombstone-gc-interval", "flag --settle-interval"),
    ];
    assert_eq!(warnings.len(), renamed.len(), "{warnings:?}");
    for (warning, (old, new, source)) in warnings.iter().zip(renamed) {
        assert!([old, new, source].iter().all(|part| warning.contains(part)), "{old}: {warning}");
    }
    let page = run(kvorum(&["serve", "--print-config", "--config"]).arg(&file), b"");
    let rows: Vec<&str> = text(&page.stdout).lines().filter_map(|line| line.split(" = ").next()).collect();
    for help in [&["serve", "--help"][..], &["dev", "--help"]] {
        let output = run(&mut kvorum(help), b"");
        for (old, new, _) in renamed {
            assert!(text(&output.stdout).contains(&format!("--{new} ")), "{help:?} lacks {new}");
            assert!(!text(&output.stdout).contains(&format!("--{old}")), "{help:?} shows {old}");
            assert!(rows.contains(&new) && !rows.contains(&old), "{rows:?}");
        }
    }
    let both = run(kvorum(&["serve", "--scrub-interval", "1h", "--config"]).arg(&file), b"");
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let said = text(&both.stderr);
    assert!(said.contains("scrub-every (file") && said.contains("scrub-interval (flag"), "{said}");
}

/// An error in a configuration is reported by name, with exit code 2.
#[test]
fn wrong_configurations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k.toml");
    let with_file = |content: &str| {
        std::fs::write(&file, content).unwrap();
        run(kvorum(&["serve", "--config"]).arg(&file), b"")
    };
    let check = |output: Output, names: &[&str]| {
        assert_eq!(output.status.code(), Some(2), "{names:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(names.iter().all(|name| said.contains(name)), "{names:?} are not in {said}");
        assert!(output.stdout.is_empty());
    };
    check(with_file("lissen = \"127.0.0.1:0\"\n"), &["lissen", "k.toml", "listen"]);
    check(with_file("threads = \n"), &["k.toml"]);
    check(with_file("threads = \"many\"\n"), &["threads", "many", "k.toml"]);
    check(
        run(kvorum(&["serve"]).env("KVORUM_DURABILITY", "sometimes"), b""),
        &["durability", "KVORUM_DURABILITY", "always"],
    );
    check(run(&mut kvorum(&["serve", "--listen", "here"]), b""), &["listen", "here"]);
    check(run(&mut kvorum(&["serve", "--no-such-setting", "1"]), b""), &["--no-such-setting"]);
    check(run(&mut kvorum(&["serve", "--config", "/no/such/file"]), b""), &["/no/such/file"]);
    check(
        run(&mut kvorum(&["serve", "--max-value-size", "2MiB", "--max-body-memory", "1MiB"]), b""),
        &["max-body-memory"],
    );
    check(run(&mut kvorum(&["serve", "--cluster", "http://a:1,http://b:2"]), b""), &["cluster"]);
    check(run(&mut kvorum(&["no-such-command"]), b""), &["no-such-command"]);
}

/// `get`, `put`, `delete`, `scan`, `status`: values pass unchanged, and exit codes tell the result.
#[test]
fn client_commands_pass_bytes_and_exit_codes() {
    let server = Node::start_new(&[]);
    let url = server.url();
    let client = |arguments: &[&str], input: &[u8]| run(kvorum(arguments).args(["--url", &url]), input);
    let code = |output: &Output| output.status.code().unwrap();
    // Bytes of all kinds through standard input and output.
    for value in [noise(300_000, 8), Vec::new(), b"\0".to_vec(), b"line\r\n\n".to_vec(), (0..=255).collect()]
    {
        let put = client(&["put", "key"], &value);
        // The version goes to the stream where a program looks for it.
        let version = server.get("id=key").header("etag").unwrap().trim_matches('"').to_owned();
        assert_eq!((code(&put), text(&put.stdout)), (0, &*format!("version {version}\n")), "{put:?}");
        let get = client(&["get", "key"], b"");
        assert_eq!(code(&get), 0);
        assert!(get.stdout == value && get.stderr.is_empty(), "{} bytes", value.len());
        assert!(server.get("id=key").body == value);
    }
    // Through arguments and files.
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    std::fs::write(&source, noise(1000, 1)).unwrap();
    assert_eq!(code(&client(&["put", "file", "--file", source.to_str().unwrap()], b"")), 0);
    assert_eq!(code(&client(&["get", "file", "--output", target.to_str().unwrap()], b"")), 0);
    assert_eq!(std::fs::read(&target).unwrap(), noise(1000, 1));
    assert_eq!(
        code(&client(&["put", "argument", "a value", "--ttl", "1h", "--replicas", "1/1"], b"not read")),
        0
    );
    for seconds in ["5000", "4999.5"] {
        assert_eq!(code(&client(&["put", "seconds", "x", "--ttl", seconds], b"")), 0);
        assert!(server.get("id=seconds").header("kvorum-expires").is_some());
    }
    let shown = client(&["get", "argument", "--show"], b"");
    assert_eq!(shown.stdout, b"a value");
    let version = server.get("id=argument").header("etag").unwrap().trim_matches('"').to_owned();
    assert!(text(&shown.stderr).contains(&version) && text(&shown.stderr).contains("expires"), "{shown:?}");
    // Keys of any bytes that an argument can have.
    let mut put = kvorum(&["put", "--url", &url]);
    assert_eq!(code(&run(put.arg(OsStr::from_bytes(b"odd\xff+ &=%#\n")), b"odd")), 0);
    assert_eq!(server.get(&format!("id={}", escape(b"odd\xff+ &=%#\n"))).body, b"odd");
    // Ranges.
    for (key, value) in [("scan-a", "1"), ("scan-b", "2"), ("scan-c", "3")] {
        assert_eq!(server.put(&format!("id={key}"), value.as_bytes()).status, 201);
    }
    let scan = client(&["scan", "scan-a", "scan-c"], b"");
    assert_eq!((code(&scan), text(&scan.stdout)), (0, "scan-a\t1\nscan-b\t2\n"));
    assert_eq!(client(&["scan", "scan-", "--limit", "1", "--keys", "--local"], b"").stdout, b"scan-a\n");
    let json = client(&["scan", "odd", "--limit", "1", "--json"], b"");
    let line: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(line["key_base64"], BASE64.encode(b"odd\xff+ &=%#\n"));
    assert_eq!(line["value"], "odd");
    let none = client(&["scan", "zz"], b"");
    assert_eq!((code(&none), none.stdout.len()), (1, 0));
    // Absent, deleted, wrong, unreachable.
    let absent = client(&["get", "absent"], b"");
    assert_eq!((code(&absent), absent.stdout.len()), (1, 0));
    assert!(!absent.stderr.is_empty());
    assert_eq!(code(&client(&["delete", "key"], b"")), 0);
    assert_eq!(code(&client(&["delete", "never"], b"")), 0);
    assert_eq!(code(&client(&["get", "key"], b"")), 1);
    // Conditions: exit code 4, and nothing is done.
    let first = client(&["put", "only", "1", "--if-absent"], b"");
    let version = text(&first.stdout).trim().strip_prefix("version ").unwrap().to_owned();
    let again = client(&["put", "only", "2", "--if-absent"], b"");
    assert!(code(&again) == 4 && text(&again.stderr).contains(&version), "{again:?}");
    assert_eq!(code(&client(&["put", "only", "2", "--if-match", &version], b"")), 0);
    assert_eq!(code(&client(&["delete", "only", "--if-match", &format!("\"{version}\"")], b"")), 4);
    assert_eq!(client(&["get", "only"], b"").stdout, b"2");
    assert_eq!(code(&client(&["delete", "only", "--if-match", "*"], b"")), 0);
    assert_eq!(code(&client(&["delete", "only", "--if-match", "*"], b"")), 4);
    // A batch: every line has an answer, and a batch that is too long is refused.
    let lines = b"{\"op\":\"put\",\"key\":\"b\",\"value\":\"1\"}\nno line\n{\"op\":\"get\",\"key\":\"b\"}\n";
    let answers = client(&["batch"], lines);
    let statuses: Vec<u64> = text(&answers.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["status"].as_u64().unwrap())
        .collect();
    assert_eq!((code(&answers), statuses), (0, vec![201, 400, 200]), "{answers:?}");
    assert_eq!(code(&client(&["batch"], &b"x\n".repeat(10_001))), 2);
    // Counters.
    for (arguments, expect) in [(&["incr", "hits"][..], "1\n"), (&["incr", "hits", "-3"], "-2\n")] {
        let counted = client(arguments, b"");
        assert_eq!((code(&counted), text(&counted.stdout)), (0, expect), "{counted:?}");
    }
    assert_eq!(code(&client(&["incr", "scan-a", "9223372036854775807"], b"")), 2);
    for wrong in [
        &["get", "key", "--replicas", "2/3"][..],
        &["put", "key", "x", "--if-absent", "--if-match", "*"],
        &["incr", "key", "1.5"],
        &["get", "key", "--replicas", "x"],
        &["get", ""],
        &["get"],
        &["put", "key", "x", "--ttl", "soon"],
        &["put", "key", "x", "--ttl", "0s"],
        &["put", "key", "x", "--ttl", "0"],
        &["put", "key", "x", "--file", "/no/such/file"],
        &["put", "key", "--file", "/no/such/file"],
        &["scan"],
        &["scan", "a", "--limit", "0"],
        &["put", &"k".repeat(1025), "x"],
    ] {
        let output = client(wrong, b"");
        assert_eq!(code(&output), 2, "{wrong:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    let status = client(&["status"], b"");
    assert!(code(&status) == 0 && text(&status.stdout).starts_with("1 of 1 node up, "), "{status:?}");
    let status = client(&["status", "--json"], b"");
    let fields: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let mut alarms = fields["verdict"]["alarms"].as_array().unwrap().iter();
    assert!(code(&status) == 0 && alarms.all(|alarm| alarm["name"] == MACHINE_ALARM), "{status:?}");
    assert_eq!(fields["nodes"][0]["status"]["state"], "ready");
    let status = client(&["status", "--node-only"], b"");
    assert!(code(&status) == 0 && text(&status.stdout).contains("ready"), "{status:?}");
    let status = client(&["status", "--node-only", "--json"], b"");
    let fields: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((code(&status), fields["state"].as_str()), (0, Some("ready")));
    assert_eq!(code(&client(&["status", "--quorum"], b"")), 2);
    assert_eq!(code(&run(kvorum(&["get", "argument"]).env("KVORUM_URL", &url), b"")), 0);
    // A port on which no process listens: bound once, and released again.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}");
    for command in [
        &["get", "key"][..],
        &["put", "key", "x"],
        &["delete", "key"],
        &["scan", "a"],
        &["status", "--node-only"],
    ] {
        let output = run(kvorum(command).args(["--url", &closed, "--timeout", "1"]), b"");
        assert_eq!(code(&output), 3, "{command:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// Completions are scripts that know the flags, and manual pages are written for every command.
#[test]
fn completions_and_manuals_know_the_flags() {
    let code = |output: &Output| output.status.code();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&mut kvorum(&["completions", shell]), b"");
        assert_eq!(code(&output), Some(0), "{shell}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("slow-request"), "{shell}");
    }
    let bash = run(&mut kvorum(&["completions", "bash"]), b"");
    assert!(run(Command::new("bash").arg("-n"), &bash.stdout).status.success());
    assert_eq!(code(&run(&mut kvorum(&["completions", "tcsh"]), b"")), Some(2));
    let dir = TempDir::with_prefix("kvorum-man-").unwrap();
    let written = run(kvorum(&["man"]).arg(dir.path()), b"");
    assert_eq!(code(&written), Some(0), "{written:?}");
    let page = std::fs::read_to_string(dir.path().join("kvorum-serve.1")).unwrap();
    assert!(page.contains("slow\\-request"), "{page}");
    assert!(dir.path().join("kvorum-status.1").exists() && dir.path().join("kvorum.1").exists());
    assert_eq!(code(&run(kvorum(&["man"]).arg(dir.path().join("absent")), b"")), Some(3));
}

/// A value over the limit of the node is a wrong request, and reported as such.
#[test]
fn client_tells_what_the_node_refuses() {
    let server = Node::start_new(&["--max-value-size", "1KiB"]);
    let url = server.url();
    let output = run(&mut kvorum(&["put", "key", "--url", &url]), &[0; 2000]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("1024"), "{output:?}");
}

/// Goal: a reader that stops early, as `head` does, is no failure and causes no message. Method: more than a
/// pipe holds, into a reader that reads a little of it.
#[test]
fn head_ends_commands_silently() {
    let server = Node::start_new(&[]);
    for key in ["large-a", "large-b", "large-c"] {
        assert_eq!(server.put(&format!("id={key}"), &noise(1_000_000, 3)).status, 201);
    }
    let program = kvorum(&[]).get_program().to_str().unwrap().to_owned();
    for command in ["get large-a", "scan large", "scan large --json"] {
        let line =
            format!("set -o pipefail; {program} {command} --url {} | head -c 1 >/dev/null", server.url());
        let output = run(Command::new("bash").args(["-c", &line]), b"");
        assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
        assert!(output.stderr.is_empty(), "{command}: {}", text(&output.stderr));
    }
}

/// Goal: `scan` shows stored bytes on a terminal, which does not obey them. Method: `script` gives it a
/// terminal.
#[test]
fn scans_are_escaped_on_terminals() {
    let server = Node::start_new(&[]);
    assert_eq!(server.put("id=k%1b%5b2J", b"v\x1b]0;title\x07\r\nforged\tline").status, 201);
    let plain = run(&mut kvorum(&["scan", "k", "--url", &server.url()]), b"");
    assert_eq!(plain.stdout, b"k\x1b[2J\tv\x1b]0;title\x07\r\nforged\tline\n");
    let program = kvorum(&[]).get_program().to_str().unwrap().to_owned();
    let line = format!("{program} scan k --url {}", server.url());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = script.output() else {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIPPED: scans_are_escaped_on_terminals: no script(1)\n",
        );
        return;
    };
    let shown = text(&output.stdout);
    assert_eq!(shown.trim_end(), "k\\u{1b}[2J\tv\\u{1b}]0;title\\u{7}\\r\\nforged\\tline", "{output:?}");
}

/// Goal: `bench` reports failures, and each exit code is the documented one. Method: a port without a listener, reads of
/// keys that were never stored, a good run, impossible arguments, and runs that are interrupted, also in steps and in the
/// search for the highest rate, whose partial reports are marked.
#[test]
fn bench_says_what_went_wrong() {
    let server = Node::start_new(&[]);
    let bench = |arguments: &[&str], url: &str| {
        let output = run(kvorum(&["bench"]).args(arguments).arg(url), b"");
        (output.status.code(), text(&output.stdout).to_owned() + text(&output.stderr))
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, said) = bench(&["get", "-d", "300ms", "-c", "2", "-t", "1"], &format!("http://{closed}"));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("!! NO CONNECTION: ") && said.contains("    connect: "), "{said}");
    assert!(said.contains(" Connection refused\n"), "{said}");
    let (code, said) = bench(&["get", "-H", "X"], &server.url());
    assert!(code == Some(2) && said.contains("\"X\" is not 'Name: value'"), "{said}");
    let (code, said) = bench(&["get", "--prefill", "--coalesce", "1ms"], &server.url());
    assert!(code == Some(2) && said.contains("--coalesce"), "{said}");
    let (code, said) = bench(&["get", "-d", "100ms", "--json", "/no/such/folder/a.json"], &server.url());
    assert!(code == Some(3) && said.contains("write /no/such/folder/a.json"), "{said}");
    let (code, said) = bench(&["get", "-d", "300ms", "-c", "2", "-t", "1"], &server.url());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("OPERATIONS FAILED") && said.contains("KEYS NOT FOUND (404): --prefill"), "{said}");
    let good = ["get", "-d", "300ms", "-c", "2", "-t", "1", "--keys", "100", "--prefill"];
    let (code, said) = bench(&good, &server.url());
    assert!(code == Some(0) && !said.contains("!!"), "{said}");
    for (signal, pace) in [
        (libc::SIGINT, &[][..]),
        (libc::SIGINT, &["-R200"]),
        (libc::SIGTERM, &[]),
        (libc::SIGINT, &["--rate-steps", "200,400"]),
        (libc::SIGINT, &["--find-max", "50ms", "-R200"]),
    ] {
        let mut command = kvorum(&["bench", "put", "-d", "60s", "-c", "2", "-t", "1", "--keys", "100"]);
        command.args(pace).arg(server.url());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(signal).unwrap()).unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("!! INTERRUPTED after ") && said.contains("a partial report"), "{said}");
        assert!(said.contains("Requests/sec:"), "{said}");
        // A busy machine may not keep a rate, but what was still to come is not overdue.
        assert!(
            !said.contains("COULD NOT KEEP") || said.contains(" 0 due operations were never sent"),
            "{said}"
        );
    }
}
