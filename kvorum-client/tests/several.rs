//! The client and several nodes that answer as each test says: where requests go, how many there are at once,
//! and what happens to a node that fails.
//!
//! Each test runs in real time on sockets of 127.0.0.1; none depends on anything being fast.
#![expect(clippy::unwrap_used, reason = "helpers of tests, which may")]

mod support;

use futures_core::Stream;
use kvorum_client::{
    AddOptions, Builder, Client, Condition, Error, Hedging, Overflow, PutOptions, ReadOptions, Replicas,
    RetryPolicy, ScanOptions,
};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use support::{Fake, Reply, listen, nobody, read_request};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

fn value(headers: &str) -> Reply {
    Reply::Text(format!("HTTP/1.1 200 OK\r\nETag: \"v1\"\r\n{headers}Content-Length: 5\r\n\r\nvalue"))
}

fn status(code: u16) -> Reply {
    Reply::Text(format!("HTTP/1.1 {code} X\r\nContent-Length: 2\r\n\r\n{{}}"))
}

fn builder(nodes: &[&Fake]) -> Builder {
    Client::builder().nodes(nodes.iter().map(|node| node.url.clone())).timeout(Duration::from_mins(1))
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), holds).await.is_ok(), "never came: {what}");
}

/// A description of a cluster with a node for each URL and two partitions. Keys of the first partition are at
/// the first of `urls`, then at the second; keys of the other are at the last, then at the first.
fn topology(epoch: &str, urls: &[String]) -> Reply {
    topology_with_default(epoch, urls, None)
}

/// The same, of a node that says its default FROM.
fn topology_with_default(epoch: &str, urls: &[String], default_from: Option<u32>) -> Reply {
    let last = u16::try_from(urls.len()).unwrap() - 1;
    let lists: Vec<u8> = [0, 1, last, 0].into_iter().flat_map(u16::to_be_bytes).collect();
    let nodes: Vec<_> = urls.iter().map(|url| serde_json::json!({"url": url})).collect();
    let mut body = serde_json::json!({
        "epoch": epoch,
        "token": {"hash": "xxh3-64", "seed": "6b766f72756d0001"},
        "partition_bits": 1,
        "nodes": nodes,
        "ranks": 2,
        "preference_lists": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, lists),
    });
    if let (Some(from), Some(members)) = (default_from, body.as_object_mut()) {
        members.insert("default_from".to_owned(), from.into());
    }
    let body = body.to_string();
    Reply::Text(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// A key of the first partition, and one of the second: by the first bit of their tokens, 0x239c… and 0x89f0….
const FIRST: &str = "a";
const SECOND: &str = "d";

fn one_of_one() -> ReadOptions {
    ReadOptions { replicas: Some(Replicas { ack: 1, from: 1 }), ..ReadOptions::default() }
}

#[tokio::test]
async fn requests_go_to_replicas_and_a_new_epoch_is_noticed() {
    // The topology that all nodes report: which nodes, in which order, and under which epoch.
    let shape = Arc::new(std::sync::Mutex::new(("e1".to_owned(), Vec::new())));
    let node = || {
        let shape = Arc::clone(&shape);
        Fake::start(move |request| {
            let (epoch, urls) = shape.lock().unwrap().clone();
            match request {
                "GET /v0/topology" => topology(&epoch, &urls),
                _ => value(&format!("Kvorum-Epoch: {epoch}\r\n")),
            }
        })
    };
    let (a, b, c) = (node().await, node().await, node().await);
    let urls = [&a, &b, &c].map(|node| node.url.clone());
    shape.lock().unwrap().1 = urls.to_vec();
    // One node is enough to learn of the others.
    let client = builder(&[&b]).build().unwrap();
    assert_eq!(client.topology_epoch(), None);
    client.get(FIRST).await.unwrap();
    eventually("the topology", || client.topology_epoch().as_deref() == Some("e1")).await;
    for _ in 0..6 {
        client.get_with(FIRST, one_of_one()).await.unwrap();
        client.get_with(SECOND, one_of_one()).await.unwrap();
    }
    let count = |node: &Fake, key: &str| node.count(&format!("GET /v0/entity?id={key}&replicas=1/1"));
    assert_eq!([&a, &b, &c].map(|node| (count(node, FIRST), count(node, SECOND))), [(6, 0), (0, 0), (0, 6)]);
    // These nodes do not say their default: three replicas are assumed, which are all nodes, so requests go round.
    let before = [&a, &b, &c].map(|node| node.count("GET /v0/entity?id=a"));
    for _ in 0..6 {
        client.get(FIRST).await.unwrap();
    }
    let after = [&a, &b, &c].map(|node| node.count("GET /v0/entity?id=a"));
    assert!(after.iter().zip(before).all(|(after, before)| after - before == 2), "{before:?} {after:?}");
    // Another order under another epoch: the client sees it in the next answer.
    *shape.lock().unwrap() = ("e2".to_owned(), vec![urls[2].clone(), urls[1].clone(), urls[0].clone()]);
    eventually_with("the new topology", &client, "e2").await;
    client.get_with(FIRST, one_of_one()).await.unwrap();
    assert!(count(&c, FIRST) > 0);
    // The client asked once for each epoch, at the node that answered first.
    assert_eq!([&a, &b, &c].map(|node| node.count("GET /v0/topology")).iter().sum::<usize>(), 2);
}

/// Goal: requests that name no replicas go to replicas, also where the default is not 3. Method: nodes that say a default of
/// 1; all reads of a key go to the first node of its list.
#[tokio::test]
async fn the_default_of_the_nodes_is_used() {
    let urls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let node = || {
        let urls = Arc::clone(&urls);
        Fake::start(move |request| match request {
            "GET /v0/topology" => topology_with_default("e1", &urls.lock().unwrap(), Some(1)),
            _ => value("Kvorum-Epoch: e1\r\n"),
        })
    };
    let (a, b, c) = (node().await, node().await, node().await);
    *urls.lock().unwrap() = [&a, &b, &c].map(|node| node.url.clone()).to_vec();
    let client = builder(&[&b]).build().unwrap();
    client.get("k").await.unwrap();
    eventually("the topology", || client.topology_epoch().is_some()).await;
    for _ in 0..6 {
        client.get(FIRST).await.unwrap();
        client.get(SECOND).await.unwrap();
    }
    let count = |node: &Fake, key: &str| node.count(&format!("GET /v0/entity?id={key}"));
    assert_eq!([&a, &b, &c].map(|node| (count(node, FIRST), count(node, SECOND))), [(6, 0), (0, 0), (0, 6)]);
}

/// Goal: conditional writes and additions of one key meet at one node, which lets them share their rounds. Method: three nodes
/// that are all replicas; these calls go to the first of the key's list, while plain writes go round.
#[tokio::test]
async fn rivals_meet_at_the_first_replica() {
    let urls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let node = || {
        let urls = Arc::clone(&urls);
        Fake::start(move |request| match request {
            "GET /v0/topology" => topology("e1", &urls.lock().unwrap()),
            request if request.starts_with("POST") => {
                Reply::Text("HTTP/1.1 200 OK\r\nKvorum-Epoch: e1\r\nContent-Length: 1\r\n\r\n7".to_owned())
            }
            request if request.starts_with("PUT") => Reply::Text(
                "HTTP/1.1 201 Created\r\nETag: \"v1\"\r\nKvorum-Epoch: e1\r\nContent-Length: 0\r\n\r\n"
                    .to_owned(),
            ),
            _ => value("Kvorum-Epoch: e1\r\n"),
        })
    };
    let (a, b, c) = (node().await, node().await, node().await);
    *urls.lock().unwrap() = [&a, &b, &c].map(|node| node.url.clone()).to_vec();
    let client = builder(&[&b]).build().unwrap();
    client.get("k").await.unwrap();
    eventually("the topology", || client.topology_epoch().is_some()).await;
    for _ in 0..6 {
        client.put_if(FIRST, "x", &Condition::Present, PutOptions::default()).await.unwrap();
        client.add(SECOND, 1, AddOptions::default()).await.unwrap();
    }
    for _ in 0..6 {
        client.put(FIRST, "x").await.unwrap();
    }
    let count = |request: &str| [&a, &b, &c].map(|node| node.count(request));
    // Six with a condition at the first replica, and six without one in turn.
    assert_eq!(count(&format!("PUT /v0/entity?id={FIRST} x")), [8, 2, 2]);
    assert_eq!(count(&format!("POST /v0/entity?id={SECOND}&add=1")), [0, 0, 6]);
}

/// Sends reads until the client knows the topology `epoch`: the client asks for it only once a second.
async fn eventually_with(what: &str, client: &Client, epoch: &str) {
    let learned = async {
        while client.topology_epoch().as_deref() != Some(epoch) {
            client.get("other").await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), learned).await.is_ok(), "never came: {what}");
}

#[tokio::test]
async fn a_replica_that_is_away_is_no_obstacle() {
    let there = Fake::start(|_| value("")).await;
    let away = nobody().await;
    let urls = vec![away, there.url.clone(), there.url.clone()];
    let teacher = Fake::start(move |request| match request {
        "GET /v0/topology" => topology("e1", &urls),
        _ => value("Kvorum-Epoch: e1\r\n"),
    })
    .await;
    let client = builder(&[&teacher]).build().unwrap();
    client.get("k").await.unwrap();
    eventually("the topology", || client.topology_epoch().is_some()).await;
    // Its only replica is down: another node of the topology answers, and the next time it is asked first.
    client.get_with(FIRST, one_of_one()).await.unwrap();
    assert_eq!(client.nodes_aside(), 1);
    client.get_with(FIRST, one_of_one()).await.unwrap();
    assert_eq!(there.count("GET /v0/entity?id=a&replicas=1/1"), 2);
}

#[tokio::test]
async fn a_topology_that_is_not_understood_or_not_wanted_does_no_harm() {
    for is_wanted in [true, false] {
        let node = Fake::start(|request| match request {
            "GET /v0/topology" => Reply::Text("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_owned()),
            _ => value("Kvorum-Epoch: e1\r\n"),
        })
        .await;
        let client = builder(&[&node]).routing(is_wanted).build().unwrap();
        client.get("k").await.unwrap();
        if is_wanted {
            eventually("the question", || node.count("GET /v0/topology") == 1).await;
        }
        client.get("k").await.unwrap();
        assert_eq!(client.topology_epoch(), None);
        assert_eq!(node.count("GET /v0/topology"), usize::from(is_wanted));
    }
}

#[tokio::test]
async fn a_node_that_fails_is_set_aside_probed_and_taken_back() {
    let is_well = Arc::new(AtomicBool::new(false));
    let sick = {
        let is_well = Arc::clone(&is_well);
        Fake::start(move |request| match (is_well.load(SeqCst), request) {
            (true, _) => value(""),
            (false, "GET /v0/status") => status(503),
            (false, _) => Reply::Close,
        })
        .await
    };
    let well = Fake::start(|_| value("")).await;
    let client = builder(&[&sick, &well]).build().unwrap();
    for _ in 0..10 {
        client.get("k").await.unwrap();
    }
    assert_eq!((sick.count("GET /v0/entity?id=k"), well.count("GET /v0/entity?id=k")), (1, 10));
    assert_eq!(client.nodes_aside(), 1);
    // Only probes reach it, and more than one.
    eventually("two probes", || sick.count("GET /v0/status") >= 2).await;
    assert_eq!(client.nodes_aside(), 1);
    is_well.store(true, SeqCst);
    eventually("the node is back", || client.nodes_aside() == 0).await;
    let before = sick.count("GET /v0/entity?id=k");
    for _ in 0..10 {
        client.get("k").await.unwrap();
    }
    assert_eq!(sick.count("GET /v0/entity?id=k") - before, 5);
}

#[tokio::test]
async fn where_none_is_well_those_set_aside_are_asked() {
    let down = Arc::new(AtomicBool::new(true));
    let node = {
        let down = Arc::clone(&down);
        Fake::start(move |request| match (down.load(SeqCst), request) {
            (_, "GET /v0/status") => status(503),
            (true, _) => Reply::Close,
            (false, _) => value(""),
        })
        .await
    };
    let client = builder(&[&node]).retry(RetryPolicy::NONE).build().unwrap();
    assert!(matches!(client.get("k").await.unwrap_err(), Error::Unreachable { .. }));
    assert_eq!(client.nodes_aside(), 1);
    down.store(false, SeqCst);
    assert!(client.get("k").await.unwrap().is_some());
}

#[tokio::test]
async fn a_slow_read_is_hedged_within_the_budget() {
    let slow = Fake::start(|_| Reply::Hang).await;
    let quick = Fake::start(|_| value("")).await;
    let hedging = Hedging { after: Duration::from_millis(20), budget: 0.01 };
    let patient = RetryPolicy { read_patience: Duration::from_millis(600), ..RetryPolicy::default() };
    let client = builder(&[&slow, &quick]).hedging(hedging).retry(patient).build().unwrap();
    // The budget begins with one: the second node answers the first read, and the other exchange is given up.
    client.get("k").await.unwrap();
    assert_eq!((slow.count("GET /v0/entity?id=k"), quick.count("GET /v0/entity?id=k")), (1, 1));
    eventually("the slow exchange's end", || slow.closed_by_client() == 1).await;
    // The second read goes to the quick node in turn; the third waits out its patience, because the budget is
    // empty.
    client.get("k").await.unwrap();
    let begun = tokio::time::Instant::now();
    client.get("k").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    // A policy of one attempt never asks a second node.
    let once = builder(&[&slow, &quick]).hedging(hedging).retry(RetryPolicy::NONE);
    assert!(timeout(Duration::from_millis(300), once.build().unwrap().get("once")).await.is_err());
    assert_eq!(quick.count("GET /v0/entity?id=once"), 0);
    // A write is never hedged.
    let writes = Fake::start(|_| Reply::Hang).await;
    let client = builder(&[&writes, &quick]).hedging(hedging).build().unwrap();
    assert!(timeout(Duration::from_millis(300), client.put("w", "v")).await.is_err());
    assert_eq!((writes.count("PUT /v0/entity?id=w v"), quick.count("PUT /v0/entity?id=w v")), (1, 0));
}

#[tokio::test]
async fn a_hedged_read_survives_one_failure() {
    let failing = Fake::start(|_| Reply::Late(Duration::from_millis(200), Box::new(Reply::Close))).await;
    let slow = Fake::start(|_| Reply::Late(Duration::from_millis(600), Box::new(value("")))).await;
    let hedging = Hedging { after: Duration::from_millis(20), budget: 1.0 };
    let client = builder(&[&failing, &slow])
        .hedging(hedging)
        .retry(RetryPolicy { attempts_max: 2, ..RetryPolicy::default() });
    assert!(client.build().unwrap().get("k").await.unwrap().is_some());
    assert_eq!((failing.count("GET /v0/entity?id=k"), slow.count("GET /v0/entity?id=k")), (1, 1));
}

#[tokio::test]
async fn flight_is_bounded_and_more_waits_or_fails_by_choice() {
    let silent = Fake::start(|_| Reply::Hang).await;
    let client = builder(&[&silent]).in_flight_max(2, Overflow::Wait { waiting_max: 1 }).build().unwrap();
    let begin = |key: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.put(key, "v").await })
    };
    let inside = [begin("k0"), begin("k1")];
    eventually("two in flight", || silent.seen().len() == 2).await;
    let waiting = begin("k2");
    eventually("one who waits", || client.waiting() == 1).await;
    let error = client.put("k3", "v").await.unwrap_err();
    assert!(matches!(error, Error::TooManyInFlight { in_flight_max: 2, waited: None, .. }), "{error}");
    assert!(!error.may_have_taken_effect() && error.is_retry_safe());
    assert_eq!((client.in_flight(), client.waiting(), silent.seen().len()), (2, 1, 2));
    // An operation that is dropped lets the next one in, and its connection is closed.
    inside[0].abort();
    eventually("the third in flight", || silent.count("PUT /v0/entity?id=k2 v") == 1).await;
    eventually("the first one's end", || silent.closed_by_client() == 1).await;
    assert_eq!((client.in_flight(), client.waiting()), (2, 0));
    inside[1].abort();
    waiting.abort();
    eventually("nobody in flight", || client.in_flight() == 0).await;

    let client = builder(&[&silent]).in_flight_max(1, Overflow::Fail).build().unwrap();
    let other = client.clone();
    let first = tokio::spawn(async move { other.put("k4", "v").await });
    eventually("one in flight", || client.in_flight() == 1).await;
    assert!(matches!(client.get("k").await.unwrap_err(), Error::TooManyInFlight { .. }));
    first.abort();
}

#[tokio::test]
async fn who_waits_for_a_turn_waits_until_its_deadline() {
    let silent = Fake::start(|_| Reply::Hang).await;
    let client = builder(&[&silent]).in_flight_max(1, Overflow::Wait { waiting_max: 1 }).build().unwrap();
    let other = client.clone();
    let first = tokio::spawn(async move { other.put("k", "v").await });
    eventually("one in flight", || client.in_flight() == 1).await;
    let options = ReadOptions { timeout: Some(Duration::from_millis(200)), ..ReadOptions::default() };
    let error = client.get_with("k", options).await.unwrap_err();
    assert!(matches!(error, Error::TooManyInFlight { waited: Some(_), .. }), "{error}");
    assert_eq!(silent.seen().len(), 1);
    first.abort();
}

/// Writes entries without end to each client, and counts their bytes.
async fn endless(listener: TcpListener, written: Arc<AtomicUsize>) {
    let line = format!("{{\"key\":\"k\",\"value\":\"{}\",\"version\":\"v1\"}}\n", "v".repeat(1000));
    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
    while let Ok((mut stream, _)) = listener.accept().await {
        read_request(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        while stream.write_all(chunk.as_bytes()).await.is_ok() {
            written.fetch_add(chunk.len(), SeqCst);
        }
    }
}

#[tokio::test]
async fn a_scan_that_is_not_read_stops_its_node_and_holds_its_place() {
    let (listener, url) = listen().await;
    let written = Arc::new(AtomicUsize::new(0));
    let server = tokio::spawn(endless(listener, Arc::clone(&written)));
    let client = Client::builder().node(url).timeout(Duration::from_mins(1)).build().unwrap();
    let mut scan = client.scan("a", None, ScanOptions::default()).await.unwrap();
    for _ in 0..3 {
        scan.next().await.unwrap().unwrap();
    }
    // The node writes as much as the sockets' buffers take; then nothing more, however long the test waits.
    let mut before = 0;
    eventually("the node's stop", || {
        let now = written.load(SeqCst);
        std::mem::replace(&mut before, now) == now && now > 0
    })
    .await;
    let stopped = written.load(SeqCst);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(written.load(SeqCst), stopped);
    assert!(stopped < 32 * 1024 * 1024, "{stopped}");
    assert_eq!(client.in_flight(), 1);
    // The rest is read as a stream, with the adapters of another library: the node continues, and the reader
    // ends the stream.
    let mut seen_bytes = 0;
    while seen_bytes < 2 * stopped {
        let entry = poll_fn(|context| Pin::new(&mut scan).poll_next(context)).await;
        seen_bytes += entry.unwrap().unwrap().value.len();
    }
    assert!(written.load(SeqCst) > stopped);
    drop(scan);
    assert_eq!(client.in_flight(), 0);
    server.abort();
}

#[tokio::test]
async fn a_missed_quorum_is_told_in_numbers() {
    let node = Fake::start(|request| {
        let words = "Not Enough Replicas: 1 of the 2 replicas that must confirm (of 3) did so in 1000 ms\n";
        let length = if request.starts_with("HEAD") { 0 } else { words.len() };
        let words = &words[..length];
        let head = "HTTP/1.1 504 Gateway Timeout\r\nKvorum-Replicas: 1/3\r\n";
        Reply::Text(format!("{head}Content-Length: {length}\r\n\r\n{words}"))
    })
    .await;
    let client = builder(&[&node]).retry(RetryPolicy::NONE).build().unwrap();
    let error = client.put("k", "v").await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotEnoughReplicas { confirmed: Some(1), required: Some(2), from: Some(3), .. }
        ),
        "{error}"
    );
    // A HEAD has no text; the required number is still known from the request.
    let strict = builder(&[&node]).retry(RetryPolicy::NONE).default_replicas(Replicas { ack: 3, from: 3 });
    let error = strict.build().unwrap().head("k").await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotEnoughReplicas { confirmed: Some(1), required: Some(3), from: Some(3), .. }
        ),
        "{error}"
    );
    assert_eq!(node.seen(), ["PUT /v0/entity?id=k v", "HEAD /v0/entity?id=k&replicas=3/3"]);
}

#[tokio::test]
async fn a_busy_node_does_not_keep_a_write_that_another_could_take() {
    // One connection per node, held by a write that hangs: the next operation has not been sent anywhere yet.
    let silent = Fake::start(|_| Reply::Hang).await;
    let lively = Fake::start(|request| match request {
        put if put.starts_with("PUT") => {
            Reply::Text("HTTP/1.1 201 Created\r\nETag: \"v2\"\r\nContent-Length: 0\r\n\r\n".to_owned())
        }
        _ => value(""),
    })
    .await;
    let policy = RetryPolicy { read_patience: Duration::from_millis(100), ..RetryPolicy::default() };
    let client = builder(&[&silent, &lively]).connections_per_node_max(1).retry(policy).build().unwrap();
    let other = client.clone();
    let hanging = tokio::spawn(async move { other.put("k0", "v").await });
    eventually("a write that hangs", || silent.seen().len() == 1).await;
    client.put("k1", "v").await.unwrap();
    client.put("k2", "v").await.unwrap();
    assert_eq!((silent.seen().len(), lively.seen().len()), (1, 2));
    hanging.abort();
}
