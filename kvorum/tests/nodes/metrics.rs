//! Goal: metrics keep to Prometheus' conventions. Method: `promtool` reads the pages of real nodes.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::Connection;
use kvorum_testkit::{PATIENCE, skip, wait_until};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// The page of node 0 of three nodes that have served some requests.
fn page_of_three(accept: &str) -> String {
    let cluster = Cluster::start(3);
    for key in 0..20 {
        let target = format!("/v0/entity?id=k{key}&replicas=3/3");
        assert_eq!(cluster.ask(0, "PUT", &target, Some(b"v")).status, 201);
    }
    let read = || {
        let mut connection = Connection::open(cluster.address(0), PATIENCE).unwrap();
        let headers = format!("Accept: {accept}\r\nConnection: close\r\n");
        connection.exchange("GET", "/metrics", &headers, None).unwrap().text().to_owned()
    };
    wait_until("calls to peers are counted", || {
        let calls = "kvorum_peer_call_duration_seconds_count{";
        let page = read();
        let mut applies =
            page.lines().filter(|line| line.starts_with(calls) && line.contains("kind=\"apply\""));
        applies.clone().count() == 2 && applies.all(|line| !line.ends_with(" 0"))
    });
    read()
}

/// Runs `promtool`; none, with the skip reported, if this machine has none.
fn promtool(test: &str, arguments: &[&str], input: &str) -> Option<Output> {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        skip(test, "promtool is not there");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

/// `promtool check metrics` has nothing to say against the page.
#[test]
fn promtool_finds_no_fault_in_the_page() {
    let page = page_of_three("text/plain");
    let Some(checked) = promtool("promtool_finds_no_fault_in_the_page", &["check", "metrics"], &page) else {
        return;
    };
    assert!(
        checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(),
        "{}{}",
        String::from_utf8_lossy(&checked.stdout),
        String::from_utf8_lossy(&checked.stderr)
    );
}

/// The linter can fail: a name against the conventions is reported.
#[test]
fn promtool_would_find_a_fault() {
    let bad = "# HELP kvorum_took_millis Took\n# TYPE kvorum_took_millis counter\nkvorum_took_millis 1\n";
    if let Some(checked) = promtool("promtool_would_find_a_fault", &["check", "metrics"], bad) {
        assert!(!checked.status.success() || !checked.stdout.is_empty() || !checked.stderr.is_empty());
    }
}
