//! Goal: counters and appends (`POST /v0/entity`) do each change once, as one step, through whichever node. Method: the real
//! program, alone for statuses and headers, and as a cluster of three with clients at all nodes at once.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::{Answer, Connection, one};
use kvorum_testkit::node::Node;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

fn post(server: &Node, query: &str, headers: &str, body: &[u8]) -> Answer {
    let head = format!(
        "POST /v0/entity?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    one(server.exchange(&[head.as_bytes(), body].concat()))
}

/// Counters: numbers, what is no number, the ends of the range, conditions, names, and parameters that do not fit.
#[test]
fn counters_keep_the_contract() {
    let server = Node::start_new(&["--memory-budget", "16MiB"]);
    let add = |query: &str, headers: &str| post(&server, &format!("id={query}"), headers, b"");
    let first = add("n&add=5", "");
    assert_eq!((first.status, first.text()), (200, "5"), "{first:?}");
    let kind = first.header("content-type");
    assert_eq!((kind, first.header("kvorum-replicas")), (Some("text/plain; charset=utf-8"), Some("1/1")));
    let second = add("n&add=-7", "");
    assert_eq!(second.text(), "-2");
    let read = server.get("id=n");
    assert_eq!((read.text(), read.header("etag")), ("-2", second.header("etag")));
    // Conditions, and a name that makes the repetition the same answer.
    let etag = second.header("etag").unwrap();
    let stale = add("n&add=1", &format!("If-Match: {}\r\n", first.header("etag").unwrap()));
    assert_eq!((stale.status, stale.header("etag")), (412, Some(etag)));
    let named = format!("If-Match: {etag}\r\nKvorum-Operation: once\r\n");
    let once = add("n&add=1", &named);
    let again = add("n&add=1", &named);
    assert_eq!((once.text(), again.text()), ("-1", "-1"));
    assert_eq!(once.header("etag"), again.header("etag"));
    // What cannot be added to stays.
    server.put("id=word", b"seven");
    server.put("id=long", &[b'7'; 5000]);
    server.put("id=most", b"9223372036854775807");
    for (key, status, code) in
        [("word", 409, "not_a_number"), ("long", 409, "not_a_number"), ("most", 409, "overflow")]
    {
        let refused = add(&format!("{key}&add=1"), "Accept: application/json\r\n");
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(refused.text().contains(code), "{refused:?}");
    }
    assert_eq!(server.get("id=word").text(), "seven");
    assert_eq!(add("most&add=-1", "").text(), "9223372036854775806");
    // A condition comes before what cannot be added to: the client then learns that it is another value.
    assert_eq!(add("word&add=1", "If-None-Match: *\r\n").status, 412);
    // The name of a write of another kind is no number.
    server.request_with("DELETE", "/v0/entity?id=n", "Kvorum-Operation: other\r\n");
    assert_eq!(add("n&add=1", "Kvorum-Operation: other\r\n").status, 409);
    assert_eq!(add("n&add=1", "").text(), "1");
    for bad in ["n", "n&add=1.5", "n&add=", "n&add=1&append", "n&add=1&ttl=5s", "&add=1", "n&append=x"] {
        assert_eq!(add(bad, "").status, 400, "{bad}");
    }
    assert_eq!(post(&server, "id=n&add=1", "", b"1").status, 400);
    assert_eq!(server.request("DELETE", "/v0/entity?id=n&add=1").status, 400);
    assert_eq!(server.get("id=n&append").status, 400);
    assert_eq!(add("n&add=1", "If-Unmodified-Since: Sun, 22 Nov 2026 02:07:08 GMT\r\n").status, 501);
    assert_eq!(server.get("id=n").text(), "1");
}

/// A counter keeps its expiry instant, so that one that was made for an hour ends after it.
#[test]
fn counters_keep_their_expiry() {
    let server = Node::start_new(&["--memory-budget", "16MiB"]);
    let put = server.put("id=hour&ttl=1h", b"1");
    assert_eq!(put.status, 201);
    let expires = server.get("id=hour").header("kvorum-expires").unwrap().to_owned();
    assert_eq!(post(&server, "id=hour&add=1", "", b"").text(), "2");
    assert_eq!(server.get("id=hour").header("kvorum-expires"), Some(expires.as_str()));
    // One that has expired is absent, and the new one lives for ever.
    server.put("id=gone&ttl=1ms", b"41");
    kvorum_testkit::wait_until("the value expires", || server.get("id=gone").status == 404);
    assert_eq!(post(&server, "id=gone&add=1", "", b"").text(), "1");
    assert_eq!(server.get("id=gone").header("kvorum-expires"), None);
}

/// Appends: the value grows up to its bound, also where it is too long to come with a promise.
#[test]
fn appends_keep_the_contract() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.start_all();
    let append =
        |node: usize, bytes: &[u8]| cluster.ask(node, "POST", "/v0/entity?id=log&append", Some(bytes));
    let mut expect = Vec::new();
    for (node, bytes) in
        [(0, &b""[..]), (1, b"one "), (2, &[b'x'; 5000]), (0, &vec![0xff; 60_000]), (1, b"end")]
    {
        let answer = append(node, bytes);
        assert_eq!((answer.status, answer.body.len()), (201, 0), "{answer:?}");
        expect.extend_from_slice(bytes);
        let read = cluster.ask((node + 1) % 3, "GET", "/v0/entity?id=log", None);
        assert_eq!(read.body, expect);
        assert_eq!(read.header("etag"), answer.header("etag"));
    }
    let room = 65_535 - expect.len();
    assert_eq!(append(2, &vec![b'y'; room + 1]).status, 413);
    assert_eq!(append(2, &vec![b'y'; 65_536]).status, 413);
    assert_eq!(append(2, &vec![b'y'; room]).status, 201);
    assert_eq!(append(0, b"z").status, 413);
    assert_eq!(append(0, b"").status, 201);
    assert_eq!(cluster.ask(1, "GET", "/v0/entity?id=log", None).body.len(), 65_535);
}

/// Goal: concurrent adds through all nodes are each counted once. Method: three clients at each of three nodes; no two get
/// the same number, and the last number is how many there were. Rivals may leave an outcome unknown: it then counts, once,
/// or does not.
#[test]
fn concurrent_adds_are_counted_once() {
    const CLIENTS: usize = 6;
    const ADDS: usize = 40;
    // Rivals and a busy machine must not make an outcome unknown.
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB", "--request-timeout", "20s"]);
    cluster.start_all();
    let unknown = AtomicU64::new(0);
    let numbers: Vec<Vec<u64>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (address, unknown) = (cluster.address(client % 3), &unknown);
                scope.spawn(move || {
                    let mut connection = Connection::open(address, kvorum_testkit::PATIENCE).unwrap();
                    let mut numbers = Vec::new();
                    while numbers.len() < ADDS {
                        let target = "/v0/entity?id=hits&add=1";
                        let answer = connection.exchange("POST", target, "", Some(b"")).unwrap();
                        match answer.status {
                            200 => numbers.push(answer.text().parse().unwrap()),
                            // Nothing was done: too many rivals.
                            503 => {}
                            504 => _ = unknown.fetch_add(1, Ordering::Relaxed),
                            status => panic!("{status}: {answer:?}"),
                        }
                    }
                    numbers
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for numbers in &numbers {
        assert!(numbers.is_sorted(), "a client saw a counter go back: {numbers:?}");
    }
    let all: BTreeSet<u64> = numbers.into_iter().flatten().collect();
    let (counted, unknown) = ((CLIENTS * ADDS) as u64, unknown.into_inner());
    assert_eq!(all.len() as u64, counted, "two adds were answered with one number");
    let last: u64 = cluster.ask(0, "GET", "/v0/entity?id=hits", None).text().parse().unwrap();
    println!("figures: {counted} adds acknowledged, {unknown} unknown, the counter is at {last}");
    assert!((counted..=counted + unknown).contains(&last), "{counted} {unknown} {last}");
    assert!(*all.last().unwrap() <= last);
}
