//! Goal: `kvorum status` and `kvorum top` say what is true of a whole cluster. Method: three real nodes. Some are
//! killed, or have a full disk or a wrong clock. Each state has its verdict, its alarms and its exit code, and
//! `/v0/status` of a node says the same.

use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::disk::{MACHINE_ALARM, Mounted};
use kvorum_testkit::http::Connection;
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{PATIENCE, skip, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

fn command(cluster: &Cluster, index: usize, words: &[&str]) -> Output {
    run(kvorum(words).args(["--timeout", "3", "--url", &cluster.url(index)]), b"")
}

/// The exit code and the JSON of `kvorum status --json`.
fn status(cluster: &Cluster, index: usize) -> (Option<i32>, Value) {
    let output = command(cluster, index, &["status", "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

/// The names of the alarms and their nodes, but for the one that is true of this machine and not of the test.
fn alarms(verdict: &Value) -> Vec<(String, String)> {
    let text = |alarm: &Value, name: &str| alarm[name].as_str().unwrap_or_default().to_owned();
    let alarms = verdict["alarms"].as_array().into_iter().flatten();
    let named = alarms.map(|alarm| (text(alarm, "name"), text(alarm, "node")));
    named.filter(|(name, _)| name != MACHINE_ALARM).collect()
}

/// The verdict of `/v0/status` of the node at `index`.
fn own_verdict(cluster: &Cluster, index: usize) -> Value {
    let mut connection = Connection::open(cluster.address(index), PATIENCE).unwrap();
    let headers = "Accept: application/json\r\nConnection: close\r\n";
    let answer = connection.exchange("GET", "/v0/status", headers, None).unwrap();
    serde_json::from_slice::<Value>(&answer.body).unwrap()["verdict"].take()
}

/// Waits until the command says this of the cluster, asked through node 0, and then that the node itself and the page for
/// people say the same.
#[track_caller]
fn wait_for(cluster: &Cluster, code: i32, sentence: &str, expected: &[(&str, usize)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, node)| ((*name).to_owned(), cluster.url(*node))).collect();
    let mut last = (None, Value::Null);
    wait_until(&format!("{sentence}: {expected:?}"), || {
        last = status(cluster, 0);
        last.0 == Some(code)
            && last.1["verdict"]["sentence"].as_str().is_some_and(|said| said.starts_with(sentence))
            && alarms(&last.1["verdict"]) == expected
    });
    wait_until("the node says the same", || {
        let own = own_verdict(cluster, 0);
        own["reads"] == last.1["verdict"]["reads"]
            && own["writes"] == last.1["verdict"]["writes"]
            && own["sentence"].as_str().is_some_and(|said| said.starts_with(sentence))
    });
    let page = command(cluster, 0, &["status"]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert!(text.starts_with(sentence) && page.status.code() == Some(code), "{text}");
    for (name, node) in &expected {
        let alarm = text.lines().find(|line| line.contains(&format!(" {name}: ")) && line.contains(node));
        assert!(alarm.is_some() && text.contains(&format!("docs/operating.md#{name}\n")), "{text}");
    }
}

const WELL: &str = "3 of 3 nodes up, default reads and writes have a quorum";

/// All are up; one is killed; two are killed; all are.
#[test]
fn status_follows_killed_nodes() {
    let mut cluster = Cluster::start(3);
    wait_for(&cluster, 0, WELL, &[]);
    wait_until("replicas agree", || {
        let (_, fields) = status(&cluster, 0);
        fields["verdict"]["sentence"].as_str().is_some_and(|said| said.contains(", replicas agree up to "))
    });
    // A row per node with its figures, once each has sampled its load.
    wait_until("all nodes have figures", || {
        let (_, fields) = status(&cluster, 1);
        let nodes = fields["nodes"].as_array().unwrap().clone();
        nodes.len() == 3
            && nodes.iter().all(|node| {
                let status = &node["status"];
                status["load"]["requests_per_second"].is_number()
                    && status["process"]["resident_bytes"].as_u64() > Some(1 << 20)
                    && status["disk"]["free_bytes"].is_u64()
                    && status["uptime_ms"].is_u64()
            })
    });
    cluster.kill9(2);
    let one = "2 of 3 nodes up, default reads and writes have a quorum";
    wait_for(&cluster, 0, one, &[("node-down", 2)]);
    cluster.kill9(1);
    let two = "1 of 3 nodes up, default reads and writes have no quorum";
    wait_for(&cluster, 1, two, &[("no-quorum", 0), ("node-down", 1), ("node-down", 2)]);
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=k", Some(b"v")).status, 504);
    cluster.kill9(0);
    let (code, fields) = status(&cluster, 0);
    assert_eq!((code, alarms(&fields["verdict"]).len()), (Some(2), 1), "{fields}");
}

/// A node whose disk is full takes no values: one of three is spare.
#[test]
fn status_names_the_full_disk() {
    let disk = match Mounted::tmpfs(64) {
        Ok(disk) => disk,
        Err(reason) => return skip("status_names_the_full_disk", &reason),
    };
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.set_data_dir(1, disk.data_dir());
    cluster.start_all();
    let ballast = disk.fill(0);
    wait_until("the full disk is noticed", || {
        let _ = cluster.try_ask(1, "PUT", "/v0/entity?id=k&replicas=3/3", Some(&vec![0; 65_536]));
        alarms(&own_verdict(&cluster, 1)).contains(&("disk-full".to_owned(), cluster.url(1)))
    });
    let mut last = (None, Value::Null);
    wait_until("the disk is named", || {
        last = status(&cluster, 0);
        alarms(&last.1["verdict"]) == [("disk-full".to_owned(), cluster.url(1))]
    });
    assert_eq!(last.0, Some(0), "{}", last.1["verdict"]);
    let own = own_verdict(&cluster, 1);
    assert!(alarms(&own).contains(&("disk-full".to_owned(), cluster.url(1))), "{own}");
    let mut raised = own["alarms"].as_array().unwrap().iter();
    let remedy = raised.find(|alarm| alarm["name"] == "disk-full").unwrap()["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("Free space on the file system of the data directory"), "{remedy}");
    std::fs::remove_file(ballast).unwrap();
    wait_until("all is well again", || {
        let _ = cluster.try_ask(1, "PUT", "/v0/entity?id=k", Some(b"v"));
        alarms(&status(&cluster, 0).1["verdict"]).is_empty()
    });
}

/// The one clock that differs from the two others is named, from every node.
#[test]
fn status_names_the_wrong_clock() {
    if !Path::new(FAKETIME).exists() {
        return skip("status_names_the_wrong_clock", "libfaketime is not there");
    }
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let environment =
        vec![set("LD_PRELOAD", FAKETIME), set("FAKETIME", "+30s"), set("DONT_FAKE_MONOTONIC", "1")];
    cluster.set_launch(1, Launch { environment, ..Launch::default() });
    cluster.start_all();
    wait_for(&cluster, 0, WELL, &[("clock-drift", 1)]);
    for index in 0..3 {
        let (_, fields) = status(&cluster, index);
        let mut alarms = fields["verdict"]["alarms"].as_array().unwrap().iter();
        let alarm = alarms.find(|alarm| alarm["name"] == "clock-drift").unwrap();
        let sentence = alarm["sentence"].as_str().unwrap();
        assert!(sentence.contains("ahead of that of") && sentence.contains(" s "), "{sentence}");
    }
    let text = String::from_utf8(command(&cluster, 2, &["status"]).stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with(&cluster.url(1))).unwrap();
    assert!(row.contains("+30") || row.contains("+29"), "{text}");
}

/// `kvorum top --once` shows the rates, the hottest partition and the pairs of nodes.
#[test]
fn top_shows_the_hottest_partition() {
    let cluster = Cluster::start(3);
    let mut last = Value::Null;
    wait_until("the hottest partition leads", || {
        for _ in 0..200 {
            assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=hot", Some(b"v")).status, 201);
        }
        let output = command(&cluster, 1, &["top", "--once", "--json"]);
        last = serde_json::from_slice(&output.stdout).unwrap();
        let hottest = &last["hottest_partitions"][0]["requests_per_second"];
        hottest.as_f64() > Some(0.0) && last["nodes"][0]["operations"]["put"].as_f64() > Some(0.0)
    });
    assert_eq!(last["slowest_peers"].as_array().unwrap().len(), 6, "{last}");
    let text = String::from_utf8(command(&cluster, 1, &["top", "--once"]).stdout).unwrap();
    assert!(text.starts_with(WELL), "{text}");
    for part in ["hottest partitions\n", "slowest peers\n", &cluster.url(2)] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The history has one place for each sample in every list, and only as many samples as were asked for.
#[test]
fn history_has_the_last_samples() {
    let cluster = Cluster::start(3);
    let read = |query: &str| -> Value {
        let answer = cluster.ask(0, "GET", &format!("/v0/history{query}"), None);
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_slice(&answer.body).unwrap()
    };
    let mut all = Value::Null;
    wait_until("three samples are there", || {
        assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=k", Some(b"v")).status, 201);
        all = read("");
        all["at_ms"].as_array().unwrap().len() >= 3
    });
    let count = all["at_ms"].as_array().unwrap().len();
    let lists = [
        "failures_per_second",
        "latency_us_p50",
        "latency_us_p99",
        "cpu_cores",
        "resident_bytes",
        "disk_free_bytes",
    ];
    let operations =
        ["get", "head", "put", "delete", "range", "other"].map(|name| &all["requests_per_second"][name]);
    let peers = all["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2);
    let of_peers =
        peers.iter().flat_map(|peer| ["up", "latency_us_mean", "clock_offset_ms"].map(|name| &peer[name]));
    for list in lists.map(|name| &all[name]).into_iter().chain(operations).chain(of_peers) {
        assert_eq!(list.as_array().map(Vec::len), Some(count), "{all}");
    }
    assert!(
        all["requests_per_second"]["put"].as_array().unwrap().iter().any(|rate| rate.as_f64() > Some(0.0))
    );
    assert_eq!(read("?last=2")["at_ms"].as_array().unwrap().len(), 2);
    for bad in ["?last=0", "?last=x", "?first=1"] {
        assert_eq!(cluster.ask(0, "GET", &format!("/v0/history{bad}"), None).status, 400, "{bad}");
    }
}

/// Goal: the log names the replica that made a request slow, with `--slow-request` only, and no key. Method: one of three
/// nodes is stopped, and a write and a read ask for all three.
#[test]
fn slow_requests_name_the_replica() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB", "--slow-request", "400ms"]);
    cluster.start_all();
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=quick-secret&replicas=3/3", Some(b"v")).status, 201);
    for method in ["PUT", "GET"] {
        cluster.wait_until_connected();
        // Once the node is known not to answer, requests fail at once.
        cluster.pause(2);
        // A stopped process may go on for an instant.
        wait_until("it is missed", || {
            cluster.ask(0, method, "/v0/entity?id=slow-secret&replicas=3/3", Some(b"v")).status == 504
        });
        cluster.resume(2);
    }
    let url = cluster.url(2);
    // A write to all asks for the newest version first.
    // The call may end with the request, or be still under way then.
    for (operation, call) in [("put", "newest"), ("get", "get")] {
        wait_until(&format!("the slow {operation} is logged"), || {
            let log = cluster.log(0);
            log.lines().any(|line| {
                line.contains("slow request")
                    && line.contains(&format!("operation=\"{operation}\" status=504"))
                    && line.contains("key_sha256=\"")
                    && line.contains(&format!("{call} at {url} "))
            })
        });
    }
    for index in 0..3 {
        assert!(!cluster.log(index).contains("secret"), "a key is in the log");
    }
    let lines = |log: String| log.lines().filter(|line| line.contains("slow request")).count();
    assert_eq!([lines(cluster.log(1)), lines(cluster.log(2))], [0, 0]);
}
