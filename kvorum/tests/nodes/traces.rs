//! Goal: traces reach a collector whole, follow the caller's decision, and a collector that is away costs no request.
//! Method: real nodes, and a small collector that keeps what it was sent.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::Connection;
use kvorum_testkit::node::Node;
use kvorum_testkit::{PATIENCE, metric_sum, wait_until};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

/// A collector of OTLP over HTTP: it takes one request a connection, and answers with `status`.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut line, mut length, mut is_json) = (String::new(), 0, false);
                while reader.read_line(&mut line).unwrap() > 2 {
                    let lower = line.to_ascii_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    is_json |= lower.starts_with("content-type: application/json");
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                assert!(is_json);
                let body: Value = serde_json::from_slice(&body).unwrap();
                let resource = &body["resourceSpans"][0];
                let found = resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned();
                kept.lock().unwrap().extend(found.map(|mut span| {
                    span["resource"] = resource["resource"].clone();
                    span
                }));
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}").unwrap();
            }
        });
        Self { url, spans }
    }

    /// The spans of a trace.
    fn trace(&self, id: &str) -> Vec<Value> {
        self.spans.lock().unwrap().iter().filter(|span| span["traceId"] == id).cloned().collect()
    }
}

fn parent(trace: &str, flags: &str) -> String {
    format!("Connection: close\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-{flags}\r\n")
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

#[test]
fn traces_reach_the_collector() {
    let collector = Collector::start("200 OK");
    let mut cluster = Cluster::new(3, &["--trace-endpoint", &collector.url, "--trace-sample", "0"]);
    cluster.start_all();
    cluster.wait_until_connected();
    let send = |method: &str, headers: &str, body: Option<&[u8]>| {
        let mut connection = Connection::open(cluster.address(0), PATIENCE).unwrap();
        connection.exchange(method, "/v0/entity?id=a&replicas=3/3", headers, body).unwrap().status
    };
    let (written, read, refused) = ("1".repeat(32), "2".repeat(32), "3".repeat(32));
    assert_eq!(send("PUT", &parent(&written, "01"), Some(b"x")), 201);
    assert_eq!(send("GET", &parent(&refused, "00"), None), 200);
    assert_eq!(send("GET", "Connection: close\r\n", None), 200);
    assert_eq!(send("GET", &parent(&read, "01"), None), 200);
    // The other nodes send their spans by themselves, and may be first.
    wait_until("the collector has both requests", || {
        !named(&collector.trace(&written), "PUT /v0/entity").is_empty()
            && !named(&collector.trace(&read), "GET /v0/entity").is_empty()
    });
    let spans = collector.trace(&written);
    let request = named(&spans, "PUT /v0/entity")[0];
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&"00f067aa0ba902b7".into(), &2.into()));
    let attribute = |span: &Value, key: &str| {
        span["attributes"].as_array().unwrap().iter().find(|one| one["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!(attribute(request, "http.response.status_code")["intValue"], "201");
    let instance = request["resource"]["attributes"].as_array().unwrap();
    assert!(instance.iter().any(|one| one["value"]["stringValue"] == *cluster.url(0)), "{instance:?}");
    // One commit here, one call of each of the others, all within the request.
    let of_this = |name: &str| {
        let mut found = named(&spans, name);
        found.retain(|span| {
            span["resource"] == request["resource"] && span["parentSpanId"] == request["spanId"]
        });
        found
    };
    let (commits, calls) = (of_this("commit"), of_this("apply"));
    assert_eq!((commits.len(), calls.len()), (1, 2), "{spans:#?}");
    assert_eq!(attribute(commits[0], "kvorum.node")["stringValue"], *cluster.url(0));
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    for step in commits.iter().chain(&calls) {
        assert_eq!(step["parentSpanId"], request["spanId"]);
        assert!(time(step, "startTimeUnixNano") >= time(request, "startTimeUnixNano"));
        assert!(time(step, "endTimeUnixNano") >= time(step, "startTimeUnixNano"));
    }
    assert!(!named(&collector.trace(&read), "get").is_empty());
    // Neither the one whose caller said no, nor the one without a caller and with no chance.
    let is_request = |span: &&Value| span["name"].as_str().unwrap().ends_with("/v0/entity");
    let all = collector.spans.lock().unwrap().iter().filter(is_request).count();
    assert_eq!(all, 2);
    assert!(collector.trace(&refused).is_empty());
    let metrics = cluster.ask(0, "GET", "/metrics", None);
    assert!(metrics.text().contains("kvorum_traces_total{result=\"sent\"} 2"), "{}", metrics.text());
}

/// Goal: one PUT is one tree at the collector: the request, its calls of replicas, and the commit at each of them, also in the
/// other nodes. Method: three nodes with one collector, a PUT that all three must confirm, an addition, which is a ballot.
#[test]
fn called_nodes_add_their_spans() {
    let collector = Collector::start("200 OK");
    let mut cluster = Cluster::new(3, &["--trace-endpoint", &collector.url, "--trace-sample", "0"]);
    cluster.start_all();
    cluster.wait_until_connected();
    let send = |method: &str, query: &str, trace: &str, body: Option<&[u8]>| {
        let mut connection = Connection::open(cluster.address(0), PATIENCE).unwrap();
        let target = format!("/v0/entity?replicas=3/3&{query}");
        connection.exchange(method, &target, &parent(trace, "01"), body).unwrap().status
    };
    let (put, added) = ("4".repeat(32), "5".repeat(32));
    assert_eq!(send("PUT", "id=a", &put, Some(b"x")), 201);
    assert_eq!(send("POST", "id=n&add=5", &added, None), 200);
    let node_of = |span: &Value| {
        let attributes = span["resource"]["attributes"].as_array().unwrap();
        let id = attributes.iter().find(|one| one["key"] == "service.instance.id").unwrap();
        id["value"]["stringValue"].as_str().unwrap().to_owned()
    };
    let served = |trace: &str, name: &str| {
        let spans = collector.trace(trace);
        let of_kind = |kind: u64| {
            named(&spans, name).into_iter().filter(|span| span["kind"] == kind).cloned().collect::<Vec<_>>()
        };
        (of_kind(3), of_kind(2))
    };
    let are_there = || {
        let called = (served(&put, "apply").1.len(), served(&added, "prepare").1.len());
        let asked = (served(&put, "PUT /v0/entity").1.len(), served(&added, "POST /v0/entity").1.len());
        called == (2, 2) && asked == (1, 1)
    };
    wait_until("all nodes have sent their spans", are_there);
    // The request, the calls that it makes, what the called nodes do within them, and the parts of each commit.
    let spans = collector.trace(&put);
    let request = named(&spans, "PUT /v0/entity")[0];
    let (calls, remote) = served(&put, "apply");
    assert!(calls.iter().all(|call| call["parentSpanId"] == request["spanId"]), "{spans:#?}");
    let within = |parent: &Value, name: &str| {
        let mut found = named(&spans, name);
        found.retain(|span| span["parentSpanId"] == parent["spanId"]);
        assert_eq!(found.len(), 1, "{name} within {parent:#}\n{spans:#?}");
        found[0]
    };
    for call in &calls {
        let there = remote.iter().find(|there| there["parentSpanId"] == call["spanId"]).unwrap();
        assert_ne!(node_of(there), node_of(request));
        let commit = within(there, "commit");
        for part in ["queue", "sync"] {
            assert_eq!(node_of(within(commit, part)), node_of(there));
        }
    }
    let own = within(request, "commit");
    for part in ["queue", "sync"] {
        assert_eq!(node_of(within(own, part)), node_of(request));
    }
    let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| span["spanId"].to_string()).collect();
    assert_eq!(ids.len(), spans.len(), "each span has an id of its own");
    // A promise is a commit, too.
    let spans = collector.trace(&added);
    let (_, promised) = served(&added, "prepare");
    for there in promised {
        assert!(named(&spans, "commit").iter().any(|commit| commit["parentSpanId"] == there["spanId"]));
    }
}

/// Without a caller's word, chance decides: with 1 each request is traced.
#[test]
fn requests_without_a_parent_are_sampled() {
    let collector = Collector::start("200 OK");
    let node = Node::start_new(&["--trace-endpoint", &collector.url, "--trace-sample", "1"]);
    for _ in 0..5 {
        assert_eq!(node.put("id=a", b"x").status, 201);
    }
    // Requests about the node itself are none for keys.
    assert_eq!(node.request("GET", "/v0/status").status, 200);
    let requests =
        || collector.spans.lock().unwrap().iter().filter(|span| span["name"] == "PUT /v0/entity").count();
    wait_until("all are there", || requests() == 5);
    let ids =
        collector.spans.lock().unwrap().iter().map(|span| span["traceId"].to_string()).collect::<Vec<_>>();
    assert_eq!(ids.into_iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
}

/// A collector that refuses, or is away, costs no request; what it did not take is counted.
#[test]
fn collector_that_fails_costs_no_request() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in [Collector::start("503 Service Unavailable").url, format!("http://{away}/v1/traces")] {
        let node = Node::start_new(&["--trace-endpoint", &url, "--trace-sample", "1"]);
        assert_eq!(node.put("id=a", b"x").status, 201);
        let lost = || {
            let metrics = node.request("GET", "/metrics");
            metric_sum(metrics.text(), "kvorum_traces_total{result=\"lost\"}")
        };
        wait_until("the trace is lost", || lost() == 1);
        assert_eq!(node.put("id=a", b"y").status, 201);
        assert_eq!(node.get("id=a").status, 200);
    }
}
