//! Goal: metrics keep to Prometheus' conventions, and the dashboard and the alerts name real ones.
//! Method: `promtool` reads the pages of real nodes, and each name in `deploy/` is looked up in them.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::Connection;
use kvorum_testkit::node::{Node, metrics};
use kvorum_testkit::{PATIENCE, skip, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The page of node 0 of three nodes that have served some requests.
fn page_of_three(accept: &str) -> String {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    // With TLS, so that its metrics are there.
    let files = crate::tls::Files::new(&cluster);
    cluster.set_launch(0, files.launch(0, false, &[("tls", "allow")]));
    cluster.start_all();
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

/// A killed node, a full disk and a clock that is 30 s ahead raise the alerts of that node and no others: the states are in
/// `deploy/alerts_test.yml`, and `promtool` evaluates the rules.
#[test]
fn promtool_raises_the_right_alerts() {
    let path = deploy("alerts_test.yml");
    let arguments = ["test", "rules", path.to_str().unwrap()];
    if let Some(tested) = promtool("promtool_raises_the_right_alerts", &arguments, "") {
        let (said, why) = (String::from_utf8_lossy(&tested.stdout), String::from_utf8_lossy(&tested.stderr));
        assert!(tested.status.success(), "{said}{why}");
    }
}

/// Every line of a page of metrics belongs to its format, and no series is there twice.
#[track_caller]
fn assert_page(page: &str, is_open: bool) {
    let mut lines: Vec<&str> = page.split('\n').collect();
    assert_eq!(lines.pop(), Some(""));
    if is_open {
        assert_eq!(lines.pop(), Some("# EOF"));
    }
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut readings = BTreeSet::new();
    for line in lines {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let kinds: &[&str] = if is_open { &["HELP", "TYPE", "UNIT"] } else { &["HELP", "TYPE"] };
            assert!(kinds.contains(&kind), "{line}");
            assert!(name.starts_with("kvorum_") || name.starts_with("process_"), "{line}");
            if kind == "TYPE" {
                assert!(["counter", "gauge", "histogram"].contains(&rest), "{line}");
                assert_eq!(families.insert(name, rest), None, "a family twice: {line}");
            }
            if kind == "UNIT" {
                assert!(name.ends_with(&format!("_{rest}")), "{line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(value.is_finite() && readings.insert(series), "{line}");
        let name = series.split('{').next().unwrap();
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{line}"
        );
        if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let inner = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix("\"}")).unwrap();
            assert!(inner.split("\",").all(|label| label.contains("=\"")), "{line}");
        }
        let endings: &[&str] = if is_open {
            &["_total", "_bucket", "_sum", "_count", ""]
        } else {
            &["_bucket", "_sum", "_count", ""]
        };
        let family = endings
            .iter()
            .find_map(|suffix| families.get(name.strip_suffix(suffix)?).map(|kind| (*suffix, *kind)));
        match family {
            Some(("_total", "counter")) if is_open => {}
            Some(("", "counter")) if !is_open => assert!(name.ends_with("_total"), "{line}"),
            Some(("", "gauge") | ("_bucket" | "_sum" | "_count", "histogram")) => {}
            other => panic!("{line} belongs to {other:?}"),
        }
    }
}

/// `/metrics` is classic text, or `OpenMetrics` on demand, each line of it; and the counters count.
#[test]
fn metrics_can_be_parsed_and_count() {
    let server = Node::start_new(&[]);
    let zero = metrics(&server);
    for series in [
        "kvorum_requests_total{operation=\"put\",status=\"504\"}",
        "kvorum_request_duration_seconds_count{operation=\"delete\"}",
        "kvorum_request_duration_seconds_bucket{operation=\"get\",le=\"0.005\"}",
        "kvorum_writes_without_quorum_total",
    ] {
        assert_eq!(zero.get(series), Some(&0.0), "{series} is not there before the first event");
    }
    for index in 0..3 {
        assert_eq!(server.put(&format!("id=metrics-{index}"), b"12345").status, 201);
    }
    assert_eq!(server.get("id=metrics-0").status, 200);
    assert_eq!(server.get("id=absent").status, 404);
    assert_eq!(server.request("HEAD", "/v0/entity?id=metrics-1").status, 200);
    assert_eq!(server.request("DELETE", "/v0/entity?id=metrics-2").status, 202);
    assert_eq!(server.request("GET", "/v0/entity").status, 400);
    assert_eq!(server.request("GET", "/v0/entities?start=metrics-").status, 200);
    let classic = server.request("GET", "/metrics");
    assert_eq!(classic.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_page(classic.text(), false);
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
    let open = server.request_with("GET", "/metrics", accept);
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text; version=1.0.0"));
    assert_page(open.text(), true);
    for answer in [classic, open] {
        assert!(answer.header("vary").unwrap().eq_ignore_ascii_case("accept"));
    }
    let readings = metrics(&server);
    let count =
        |name: &str| readings.get(name).copied().unwrap_or_else(|| panic!("no {name} in {readings:#?}"));
    for (operation, status, expect) in [
        ("put", 201, 3.0),
        ("get", 200, 1.0),
        ("get", 404, 1.0),
        ("get", 400, 1.0),
        ("head", 200, 1.0),
        ("delete", 202, 1.0),
        ("range", 200, 1.0),
    ] {
        let name = format!("kvorum_requests_total{{operation=\"{operation}\",status=\"{status}\"}}");
        assert!((count(&name) - expect).abs() < 0.5, "{name} is {}", count(&name));
    }
    assert!((count("kvorum_request_duration_seconds_count{operation=\"put\"}") - 3.0).abs() < 0.5);
    assert!((count("kvorum_range_records_total") - 2.0).abs() < 0.5);
    assert!((count("kvorum_commit_records_total") - 4.0).abs() < 0.5);
    assert!((count("kvorum_store_state{state=\"ok\"}") - 1.0).abs() < 0.5);
    assert!((count("kvorum_durability{mode=\"always\"}") - 1.0).abs() < 0.5);
    // Each request here was on a connection of its own, and a node may see the end of one a moment later.
    wait_until("one connection is left", || (metrics(&server)["kvorum_connections_open"] - 1.0).abs() < 0.5);
    let build = readings.keys().find(|series| series.starts_with("kvorum_build_info{version=\"")).unwrap();
    assert!(build.contains(",commit=\"") && build.contains(",rustc=\"1."), "{build}");
    assert!(count("process_cpu_seconds_total") > 0.0 && count("process_resident_memory_bytes") > 1e6);
    assert!(count("process_open_fds") > 3.0 && count("process_max_fds") >= count("process_open_fds"));
    assert!(count("process_start_time_seconds") > 1.6e9 && count("process_threads") >= 3.0);
    assert!(count("kvorum_disk_free_bytes") <= count("kvorum_disk_size_bytes"));
    assert!(count("kvorum_received_bytes_total") > 500.0 && count("kvorum_sent_bytes_total") > 500.0);
}
