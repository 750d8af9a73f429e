//! Goal: metrics keep to Prometheus' conventions, and the dashboard and the alerts name real ones.
//! Method: `promtool` reads the pages of real nodes, and each name in `deploy/` is looked up in them.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::Connection;
use kvorum_testkit::{PATIENCE, skip, wait_until};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
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

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("kvorum_") || word.starts_with("process_")).collect()
}

/// Every metric that the dashboard and the alerts name is one of a real node.
#[test]
fn dashboard_and_alerts_name_real_metrics() {
    let page = page_of_three("text/plain");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let mut real: BTreeSet<&str> = samples.map(|line| line.split([' ', '{']).next().unwrap()).collect();
    real.extend(names(&page));
    for file in ["grafana/kvorum.json", "alerts.yml"] {
        let text = std::fs::read_to_string(deploy(file)).unwrap();
        let named = names(&text);
        assert!(named.len() > 10, "{file} names few metrics: {named:?}");
        let unknown: Vec<_> = named.difference(&real).collect();
        assert!(unknown.is_empty(), "{file} names metrics that no node has: {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(deploy("grafana/kvorum.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).expect("the dashboard is not JSON");
}

/// `promtool check rules` accepts the alerts.
#[test]
fn promtool_accepts_the_alerts() {
    let path = deploy("alerts.yml");
    let arguments = ["check", "rules", path.to_str().unwrap()];
    if let Some(checked) = promtool("promtool_accepts_the_alerts", &arguments, "") {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
