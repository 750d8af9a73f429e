//! The client against servers that follow a script: which requests it sends, which it repeats, and how it
//! reports failures.
//!
//! Each test runs in real time on sockets of 127.0.0.1; none depends on anything being fast.
#![expect(clippy::unwrap_used, reason = "helpers of tests, which may")]

mod support;

use bytes::Bytes;
use kvorum_client::{Builder, Client, Error, PutOptions, Replicas, RetryPolicy, Scan, ScanOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, SystemTime};
use support::Step::{Answer, Close, Hang};
use support::{Server, listen, nobody, read_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

const VALUE: &str = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nKvorum-Replicas: 2/3\r\nKvorum-Expires: 1500\r\n\
                     Content-Length: 5\r\n\r\nvalue";
const CREATED: &str = "HTTP/1.1 201 Created\r\nETag: \"v2\"\r\nContent-Length: 0\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\nETag: \"v3\"\r\nContent-Length: 0\r\n\r\n";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 8\r\n\r\nnothing\n";
const REST_1S: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 5\r\n\r\nbusy\n";
const REST_50S: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 50\r\nContent-Length: 5\r\n\r\nbusy\n";
const NO_QUORUM: &str = "HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 9\r\n\r\n1 of 2/3\n";

/// Two entries in three chunks, the second cut within its key; without the last chunk.
macro_rules! lines {
    () => {
        concat!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "36\r\n{\"key\":\"a\",\"value\":\"1\",\"version\":\"v1\",\"expires\":null}\n\r\n",
            "12\r\n{\"key_base64\":\"/w=\r\n",
            "2e\r\n=\",\"value\":\"2\",\"version\":\"v2\",\"expires\":1500}\n\r\n",
        )
    };
}
const LINES: &str = lines!();
const LINES_WHOLE: &str = concat!(lines!(), "0\r\n\r\n");

fn client(servers: &[&Server]) -> Client {
    builder(servers).build().unwrap()
}

/// A client with more time than any test needs: a test that waits for the timeout hangs.
fn builder(servers: &[&Server]) -> Builder {
    Client::builder().nodes(servers.iter().map(|server| server.url.clone())).timeout(Duration::from_mins(1))
}

/// A client that also repeats writes of unknown outcome.
fn bold(servers: &[&Server]) -> Client {
    let policy = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
    builder(servers).retry(policy).build().unwrap()
}

#[tokio::test]
async fn operations_as_the_contract_has_them() {
    // One of each over one connection.
    let head = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 5\r\n\r\n";
    let draining = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}";
    let answers = [VALUE, NOT_FOUND, head, CREATED, CREATED, ACCEPTED, draining].map(Answer);
    let server = Server::start(vec![answers.to_vec()]).await;
    let client = client(&[&server]);

    let entry = client.get(b"a\0").await.unwrap().unwrap();
    assert_eq!(
        (&entry.key[..], &entry.value[..], entry.version.as_str()),
        (&b"a\0"[..], &b"value"[..], "v1")
    );
    assert_eq!(entry.expires, Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)));
    assert_eq!(entry.replicas.as_deref(), Some("2/3"));
    assert_eq!(client.get("b").await.unwrap(), None);
    let head = client.head("c").await.unwrap().unwrap();
    assert_eq!((head.version.as_str(), head.value_bytes, head.expires), ("v1", Some(5), None));
    assert_eq!(client.put("d", "body").await.unwrap().as_str(), "v2");
    let options = PutOptions {
        ttl: Some(Duration::from_secs(2)),
        replicas: Some(Replicas { ack: 1, from: 2 }),
        ..PutOptions::default()
    };
    client.put_with("e", Bytes::new(), options).await.unwrap();
    assert_eq!(client.delete("f").await.unwrap().as_str(), "v3");
    let status = client.status().await.unwrap();
    assert_eq!(
        (status.code, status.is_ready(), status.body.as_str(), &status.node),
        (503, false, "{}", &server.url)
    );

    let expect = [
        "GET /v0/entity?id=a%00",
        "GET /v0/entity?id=b",
        "HEAD /v0/entity?id=c",
        "PUT /v0/entity?id=d body",
        "PUT /v0/entity?id=e&replicas=1/2&ttl=2000ms",
        "DELETE /v0/entity?id=f",
        "GET /v0/status",
    ];
    assert_eq!(server.seen(), expect);
    assert_eq!(server.connections().0, 1);
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_not_used() {
    // Without retries: the client must notice the closed connection before it sends anything.
    let server = Server::start(vec![vec![Answer(VALUE)], vec![Answer(CREATED)]]).await;
    let client = builder(&[&server]).retry(RetryPolicy::NONE).build().unwrap();
    client.get("k").await.unwrap();
    sleep(Duration::from_millis(300)).await;
    client.put("k", "v").await.unwrap();
    assert_eq!(server.connections().0, 2);
}

#[tokio::test]
async fn a_connection_closed_under_a_request_is_repeated_for_reads_and_unknown_for_writes() {
    let server = Server::start(vec![vec![Answer(CREATED), Close], vec![Answer(VALUE)]]).await;
    let cautious = client(&[&server]);
    cautious.put("k", "v").await.unwrap();
    cautious.get("k").await.unwrap();
    let get = "GET /v0/entity?id=k";
    assert_eq!(server.seen(), ["PUT /v0/entity?id=k v", get, get]);

    let server = Server::start(vec![vec![Close], vec![Answer(CREATED)]]).await;
    let error = client(&[&server]).put("k", "v").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 1, .. }), "{error}");
    assert!(error.may_have_taken_effect() && error.is_retry_safe());
    bold(&[&server]).put("k", "v").await.unwrap();
}

#[tokio::test]
async fn nobody_there_is_an_error_after_all_attempts() {
    let client = Client::builder().node(nobody().await).build().unwrap();
    let error = client.put("k", "v").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 4, .. }), "{error}");
    assert!(!error.may_have_taken_effect() && error.is_retry_safe());
}

#[tokio::test]
async fn an_attempt_that_may_have_counted_is_told_of_later() {
    let server = Server::start(vec![vec![Close]]).await;
    let policy = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
    let client = builder(&[&server]).node(nobody().await).retry(policy).build().unwrap();
    let error = client.put("k", "v").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 4, .. }), "{error}");
    assert!(error.may_have_taken_effect());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn another_node_takes_over() {
    let server = Server::start(vec![vec![Answer(VALUE), Answer(CREATED)]]).await;
    let client = Client::builder().node(nobody().await).node(&server.url).build().unwrap();
    assert!(client.get("k").await.unwrap().is_some());
    client.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let server = Server::start(vec![vec![Answer(REST_1S), Answer(CREATED)]]).await;
    let begin = Instant::now();
    client(&[&server]).put("k", "v").await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(server.seen().len(), 2);
    // Also after a failure, the connection is used again.
    assert_eq!(server.connections().0, 1);
}

#[tokio::test]
async fn retry_after_holds_for_its_node_only() {
    let busy = Server::start(vec![vec![Answer(REST_50S)]]).await;
    let free = Server::start(vec![vec![Answer(CREATED), Answer(CREATED)]]).await;
    let client = client(&[&busy, &free]);
    let puts = async {
        client.put("k", "v").await.unwrap();
        client.put("k", "v").await.unwrap();
    };
    timeout(Duration::from_secs(30), puts).await.unwrap();
    assert_eq!((busy.seen().len(), free.seen().len()), (1, 2));
}

#[tokio::test]
async fn retry_after_beyond_the_deadline_is_an_error_at_once() {
    let server = Server::start(vec![vec![Answer(REST_50S), Answer(CREATED)]]).await;
    let client = builder(&[&server]).timeout(Duration::from_secs(40)).build().unwrap();
    let error = timeout(Duration::from_secs(30), client.put("k", "v")).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Overloaded { attempts: 1, message, .. } if message == "busy"), "{error}");
    assert!(!error.may_have_taken_effect() && error.is_retry_safe());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_missed_quorum_is_repeated_for_reads_and_unknown_for_writes() {
    let server =
        Server::start(vec![vec![Answer(NO_QUORUM), Answer(VALUE), Answer(NO_QUORUM), Answer(CREATED)]]).await;
    let cautious = client(&[&server]);
    assert!(cautious.get("k").await.unwrap().is_some());
    let error = cautious.put("k", "v").await.unwrap_err();
    assert!(
        matches!(&error, Error::NotEnoughReplicas { attempts: 1, message, .. } if message == "1 of 2/3"),
        "{error}"
    );
    assert!(error.may_have_taken_effect());
    assert_eq!(server.seen().len(), 3);

    let server = Server::start(vec![vec![Answer(NO_QUORUM), Answer(CREATED)]]).await;
    bold(&[&server]).put("k", "v").await.unwrap();
}

#[tokio::test]
async fn statuses_become_errors() {
    async fn check(status: &'static str, is_expected: fn(&Error) -> bool, may_have_taken_effect: bool) {
        let server = Server::start(vec![vec![Answer(status)]]).await;
        let error = client(&[&server]).delete("k").await.unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        assert_eq!(error.may_have_taken_effect(), may_have_taken_effect, "{error}");
        assert_eq!(server.seen().len(), 1, "{error}");
    }
    let bad = "HTTP/1.1 400 Bad Request\r\nContent-Length: 11\r\n\r\nack > \x1bfrom";
    check(
        bad,
        |error| matches!(error, Error::Refused { status: 400, message, .. } if message == "ack > from"),
        false,
    )
    .await;
    let full = "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n";
    check(
        full,
        |error| matches!(error, Error::DiskFull { message, .. } if message == "Insufficient Storage"),
        false,
    )
    .await;
    let fault = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
    check(fault, |error| matches!(error, Error::ServerFault { status: 500, .. }), true).await;
    let moved = "HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n\r\n";
    check(moved, |error| matches!(error, Error::Protocol { .. }), true).await;
    check("SSH-2.0-OpenSSH_9.9\r\n\r\n", |error| matches!(error, Error::Protocol { .. }), true).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused() {
    let long = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 1000000000000\r\n\r\nv";
    let chunked =
        "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n4\r\nfour\r\n";
    for answer in [long, chunked] {
        // The script keeps the connection open: only the bytes so far can decide.
        let server = Server::start(vec![vec![Answer(answer), Hang]]).await;
        let client = builder(&[&server]).answer_bytes_max(7).build().unwrap();
        let error = timeout(Duration::from_secs(30), client.get("k")).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::TooLarge { bytes_max: 7, .. }), "{error}");
    }
    let server = Server::start(vec![vec![Answer(VALUE)]]).await;
    assert!(builder(&[&server]).answer_bytes_max(5).build().unwrap().get("k").await.is_ok());
}

#[tokio::test]
async fn a_value_that_was_cut_is_never_returned() {
    let short = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 9\r\n\r\nvalue";
    let unframed = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\n\r\nvalue";
    let server = Server::start(vec![vec![Answer(short)], vec![Answer(VALUE)]]).await;
    assert_eq!(client(&[&server]).get("k").await.unwrap().unwrap().value, "value");
    let server = Server::start(vec![vec![Answer(short)]]).await;
    let error = builder(&[&server]).retry(RetryPolicy::NONE).build().unwrap().get("k").await.unwrap_err();
    assert!(matches!(error, Error::Cut { .. }), "{error}");
    let server = Server::start(vec![vec![Answer(unframed)]]).await;
    let error = client(&[&server]).get("k").await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn the_deadline_ends_an_operation_and_frees_its_connection() {
    let server = Server::start(vec![vec![Hang], vec![Answer(VALUE)]]).await;
    let client =
        builder(&[&server]).connections_per_node_max(1).timeout(Duration::from_secs(1)).build().unwrap();
    let begin = Instant::now();
    let error = timeout(Duration::from_secs(30), client.put("k", "v")).await.unwrap().unwrap_err();
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert!(matches!(error, Error::TimedOut { attempts: 1, waiting_for: "answer", .. }), "{error}");
    assert!(error.may_have_taken_effect() && error.is_retry_safe());
    client.get("k").await.unwrap();
}

#[tokio::test]
async fn an_abandoned_write_is_not_sent_on() {
    // The server reads nothing until the client has given up, and then finds a part of the value only.
    let (listener, url) = listen().await;
    let client = Client::builder().node(url).timeout(Duration::from_secs(1)).build().unwrap();
    let value = Bytes::from(vec![b'v'; 48 * 1024 * 1024]);
    let (error, stream) = tokio::join!(client.put("k", value.clone()), listener.accept());
    assert!(matches!(error.unwrap_err(), Error::TimedOut { .. }));
    let mut stream = stream.unwrap().0;
    let (mut buffer, mut seen_bytes) = (vec![0; 64 * 1024], 0);
    while let Ok(Ok(read_bytes @ 1..)) = timeout(Duration::from_secs(10), stream.read(&mut buffer)).await {
        seen_bytes += read_bytes;
    }
    assert!(seen_bytes < value.len(), "{seen_bytes}");
}

#[tokio::test]
async fn who_waits_for_a_connection_has_sent_nothing() {
    let server = Server::start(vec![vec![Answer(LINES), Hang]]).await;
    let client =
        builder(&[&server]).connections_per_node_max(1).timeout(Duration::from_secs(1)).build().unwrap();
    let scan = client.scan("a", None, ScanOptions::default()).await.unwrap();
    let error = client.put("k", "v").await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { waiting_for: "free connection", .. }), "{error}");
    assert!(!error.may_have_taken_effect());
    assert_eq!(server.seen().len(), 1);
    drop(scan);
}

#[tokio::test]
async fn a_read_does_not_wait_for_a_silent_node_for_ever() {
    let silent = Server::start(vec![vec![Hang]]).await;
    let lively = Server::start(vec![vec![Answer(VALUE)]]).await;
    let policy = RetryPolicy { read_patience: Duration::from_millis(200), ..RetryPolicy::default() };
    let client = builder(&[&silent, &lively]).retry(policy).build().unwrap();
    assert!(timeout(Duration::from_secs(30), client.get("k")).await.unwrap().unwrap().is_some());
    assert_eq!((silent.seen().len(), lively.seen().len()), (1, 1));
}

/// Reads all of `scan`: the keys, and the error if there is one.
async fn read_all(scan: &mut Scan) -> (Vec<Bytes>, Option<Error>) {
    let mut keys = Vec::new();
    while let Some(entry) = scan.next().await {
        match entry {
            Ok(entry) => keys.push(entry.key),
            Err(error) => {
                // No item follows an error.
                assert!(scan.next().await.is_none());
                return (keys, Some(error));
            }
        }
    }
    (keys, None)
}

#[tokio::test]
async fn a_scan_ends_where_the_range_does() {
    let server = Server::start(vec![vec![Answer(LINES_WHOLE), Answer(VALUE)]]).await;
    let client = client(&[&server]);
    let mut scan = client.scan("a", Some(b"\xff\xff"), ScanOptions::default()).await.unwrap();
    let (keys, error) = read_all(&mut scan).await;
    assert_eq!(
        (&keys[..], error.is_none()),
        (&["a".into(), Bytes::from_static(b"\xff")][..], true),
        "{error:?}"
    );
    assert!(scan.next().await.is_none());
    assert_eq!(scan.last_key().unwrap(), &b"\xff"[..]);
    client.get("k").await.unwrap();
    assert_eq!(server.seen(), ["GET /v0/entities?start=a&end=%FF%FF", "GET /v0/entity?id=k"]);
    assert_eq!(server.connections().0, 1);
}

#[tokio::test]
async fn a_scan_that_was_cut_is_an_error() {
    // All but the last chunk; then a cut in the middle of a line; and a whole stream that ends within a line.
    let part = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"key\r\n";
    let part_whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"key\r\n0\r\n\r\n";
    for (answer, expect) in [(LINES, 2), (part, 0), (part_whole, 0)] {
        let server = Server::start(vec![vec![Answer(answer)]]).await;
        let mut scan = client(&[&server]).scan("a", None, ScanOptions::default()).await.unwrap();
        let (keys, error) = read_all(&mut scan).await;
        assert_eq!(keys.len(), expect);
        let error = error.unwrap();
        assert!(matches!(error, Error::Cut { entries, .. } if entries == expect as u64), "{error}");
        assert!(error.is_retry_safe());
    }
    // Without a length or chunks, a cut would look like the end.
    let unframed = "HTTP/1.1 200 OK\r\n\r\n";
    let server = Server::start(vec![vec![Answer(unframed)]]).await;
    let error = client(&[&server]).scan("a", None, ScanOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn a_scan_gives_up_on_silence_and_on_endless_lines() {
    let server = Server::start(vec![vec![Answer(LINES), Hang]]).await;
    let client = builder(&[&server]).timeout(Duration::from_secs(1)).build().unwrap();
    let mut scan = client.scan("a", None, ScanOptions::default()).await.unwrap();
    let (keys, error) = timeout(Duration::from_secs(30), read_all(&mut scan)).await.unwrap();
    assert_eq!(keys.len(), 2);
    assert!(matches!(error, Some(Error::TimedOut { .. })), "{error:?}");

    let server = Server::start(vec![vec![Answer(LINES), Hang]]).await;
    let client = builder(&[&server]).answer_bytes_max(50).build().unwrap();
    let mut scan = client.scan("a", None, ScanOptions::default()).await.unwrap();
    let (keys, error) = read_all(&mut scan).await;
    assert_eq!(keys.len(), 0);
    assert!(matches!(error, Some(Error::TooLarge { bytes_max: 50, .. })), "{error:?}");
}

#[tokio::test]
async fn opening_a_scan_is_repeated() {
    let server = Server::start(vec![vec![Close], vec![Answer(LINES_WHOLE)]]).await;
    let mut scan = client(&[&server]).scan("a", None, ScanOptions::default()).await.unwrap();
    assert_eq!(read_all(&mut scan).await.0.len(), 2);
}

#[tokio::test]
async fn connections_are_bounded_and_reused() {
    // 40 operations at once, 3 connections: the server counts its open connections, and how many of them are
    // busy.
    let (listener, url) = listen().await;
    let counts = Arc::new([(); 4].map(|()| AtomicUsize::new(0)));
    let count = Arc::clone(&counts);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let [open, open_max, busy, busy_max] = &*count;
                open_max.fetch_max(open.fetch_add(1, SeqCst) + 1, SeqCst);
                while read_request(&mut stream).await.is_some() {
                    busy_max.fetch_max(busy.fetch_add(1, SeqCst) + 1, SeqCst);
                    sleep(Duration::from_millis(10)).await;
                    busy.fetch_sub(1, SeqCst);
                    stream.write_all(VALUE.as_bytes()).await.unwrap();
                }
                open.fetch_sub(1, SeqCst);
            });
        }
    });
    let client = Client::builder()
        .node(url)
        .connections_per_node_max(3)
        .timeout(Duration::from_mins(1))
        .build()
        .unwrap();
    let operations: Vec<_> = (0..40)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.get(format!("k{n}")).await })
        })
        .collect();
    for operation in operations {
        assert!(operation.await.unwrap().unwrap().is_some());
    }
    assert_eq!([1, 3].map(|max: usize| counts[max].load(SeqCst)), [3, 3]);
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while_and_with_the_client() {
    async fn check_closed(server: &Server) {
        let closed = async {
            while server.connections() != (1, 1) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(Duration::from_secs(30), closed).await.is_ok(), "{:?}", server.connections());
    }
    let server = Server::start(vec![vec![Answer(VALUE), Hang]]).await;
    let kept = builder(&[&server]).idle_timeout(Duration::from_millis(200)).build().unwrap();
    kept.get("k").await.unwrap();
    check_closed(&server).await;

    let server = Server::start(vec![vec![Answer(VALUE), Hang]]).await;
    let dropped = builder(&[&server]).idle_timeout(Duration::from_hours(1)).build().unwrap();
    dropped.get("k").await.unwrap();
    assert_eq!(server.connections(), (1, 0));
    drop(dropped);
    check_closed(&server).await;
}
