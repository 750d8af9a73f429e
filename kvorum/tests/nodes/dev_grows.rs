//! `kvorum dev` grows and shrinks: one process, nodes that a plan starts and stops.

use crate::membership::text;
use kvorum_testkit::http::ask;
use kvorum_testkit::process::{Log, Process, kvorum, run};
use kvorum_testkit::{PATIENCE, wait_until};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Output;

/// The first of four ports in a row that are free now, below those that the system gives to clients.
fn four_ports() -> u16 {
    let first = 11_000 + u16::try_from(std::process::id() % 2000).unwrap() * 8;
    let is_free = |base: &u16| (*base..*base + 4).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    (first..32_000).step_by(8).find(is_free).expect("four free ports in a row")
}

fn start(data_dir: &Path, base: u16, log: &Log) -> Process {
    let mut command =
        kvorum(&["dev", "--memory-budget", "16MiB", "--base-port", &base.to_string(), "--data-dir"]);
    let process = Process::spawn(command.arg(data_dir), log);
    wait_until("the nodes serve", || log.text().contains("any node answers"));
    process
}

fn cluster_command(port: u16, words: &[&str]) -> Output {
    run(kvorum(&["cluster"]).args(words).args(["--url", &format!("http://127.0.0.1:{port}")]), b"")
}

fn shown(port: u16) -> Value {
    let output = cluster_command(port, &["show", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Plans a change at a node until it is taken, applies it and waits for its end; returns the URLs of the members.
fn change(port: u16, words: &[&str]) -> Vec<String> {
    let words = [&["plan"], words, &["--window", "4096"]].concat();
    wait_until(&format!("{words:?} is planned"), || cluster_command(port, &words).status.success());
    let epoch = shown(port)["plan"]["on_epoch"].to_string();
    let applied = cluster_command(port, &["apply", &epoch]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let waited = cluster_command(port, &["wait", "--timeout", "120"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    let shown = shown(port);
    let members = shown["members"].as_array().unwrap().iter();
    let mut urls: Vec<String> = members.map(|member| member["url"].as_str().unwrap().to_owned()).collect();
    urls.sort();
    urls
}

fn status_of(port: u16) -> Option<u16> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    ask(address, "GET", "/v0/status", None, PATIENCE).ok().map(|answer| answer.status)
}

/// Goal: a plan without a URL has the process start one more node, which joins; a node that was removed is stopped; the same
/// command runs the members again. Method: three nodes, a fourth, one of the first leaves, and a restart in between and at the end.
#[test]
fn a_cluster_in_one_process_grows_and_shrinks() {
    let directory = tempfile::tempdir().unwrap();
    let (base, log) = (four_ports(), Log::default());
    let url = |place: u16| format!("http://127.0.0.1:{}", base + place);
    let mut process = start(directory.path(), base, &log);
    let low = cluster_command(base, &["plan", "add"]);
    assert!(text(&low.stderr).contains("name the stores"), "{}", text(&low.stderr));
    assert_eq!(status_of(base + 3), None, "nothing was started");
    wait_until("the level is raised", || cluster_command(base, &["upgrade"]).status.success());
    let put = |port: u16, key: u32| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let target = format!("/v0/entity?id=k{key}");
        assert_eq!(ask(address, "PUT", &target, Some(b"kept"), PATIENCE).unwrap().status, 201);
    };
    let get = |port: u16, key: u32| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let got = ask(address, "GET", &format!("/v0/entity?id=k{key}"), None, PATIENCE).unwrap();
        assert_eq!((got.status, text(&got.body)), (200, "kept"), "{key} at {port}");
    };
    (0..50).for_each(|key| put(base, key));
    assert_eq!(change(base, &["add"]), [url(0), url(1), url(2), url(3)]);
    wait_until("the fourth node serves", || status_of(base + 3) == Some(200));
    (0..50).for_each(|key| get(base + 3, key));
    assert!(process.terminate().success(), "{}", log.text());
    log.clear();
    let mut process = start(directory.path(), base, &log);
    wait_until("the fourth node serves again", || status_of(base + 3) == Some(200));
    (0..50).for_each(|key| get(base + 3, key));
    assert_eq!(change(base, &["remove", &url(1)]), [url(0), url(2), url(3)]);
    wait_until("the removed node is stopped", || status_of(base + 1).is_none());
    (0..50).for_each(|key| get(base + 3, key));
    assert!(process.terminate().success(), "{}", log.text());
    log.clear();
    let mut process = start(directory.path(), base, &log);
    wait_until("the fourth node serves again", || status_of(base + 3) == Some(200));
    assert_eq!(status_of(base + 1), None, "{}", log.text());
    (0..50).for_each(|key| get(base, key));
    assert!(process.terminate().success(), "{}", log.text());
}

/// A node that is not of `kvorum dev` starts no other one, and says so.
#[test]
fn a_plan_without_a_url_needs_kvorum_dev() {
    let node = kvorum_testkit::node::Node::start_new(&["--advertise", "http://127.0.0.1:9"]);
    let planned = run(&mut kvorum(&["cluster", "plan", "add", "--url", &node.url()]), b"");
    assert_eq!(planned.status.code(), Some(3));
    assert!(text(&planned.stderr).contains("only kvorum dev starts a node"), "{}", text(&planned.stderr));
}
