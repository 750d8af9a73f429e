//! Goal: the cost of clients for a node is bounded: memory, connections, time. Method: the real program on a
//! port of its own for each test, and clients that send too much, too slowly, or do not read.

use kvorum_testkit::http::{Connection, one};
use kvorum_testkit::node::{Node, RANGE, fill, metrics};
use kvorum_testkit::{MIB, noise, wait_until};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The largest value by default is 8 MiB, to the byte.
#[test]
fn default_limit_is_eight_mebibytes() {
    let server = Node::start_new(&[]);
    let value = noise(8 * MIB, 1);
    assert_eq!(server.put("id=large", &value).status, 201);
    assert!(server.get("id=large").body == value);
    let over = [&value[..], b"!"].concat();
    let answer = server.put("id=large", &over);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(server.get("id=large").body == value);
}

/// A range needs little memory however large it is and however slowly its readers take it.
///
/// Method: 50 MB, more than any bound here would hide. Three readers do not read at all for a while, then one
/// of them continues slowly. A server that read ahead would have grown by 150 MB.
#[test]
fn slow_readers_of_a_large_range_cost_little_memory() {
    let server = Node::start_new(&["--durability", "os", "--memory-budget", "16MiB"]);
    let all = fill(&server, 50);
    // Once at full speed: the memory that any range needs is in use from here on.
    assert!(one(server.exchange(RANGE)).body == all);
    let before = server.memory_bytes("VmRSS");
    let mut readers: Vec<Connection> = (0..3)
        .map(|_| {
            let mut client = server.connect();
            client.send(RANGE);
            client
        })
        .collect();
    let mut most = 0;
    for _ in 0..15 {
        sleep(Duration::from_millis(100));
        most = most.max(server.memory_bytes("VmRSS"));
    }
    let mut wire = Vec::with_capacity(all.len() + MIB);
    loop {
        let bytes = readers[0].recv_raw(256 << 10);
        if bytes.is_empty() {
            break;
        }
        if wire.len() / (4 * MIB) != (wire.len() + bytes.len()) / (4 * MIB) {
            sleep(Duration::from_millis(50));
            most = most.max(server.memory_bytes("VmRSS"));
        }
        wire.extend(bytes);
    }
    let grown = most.saturating_sub(before);
    assert!(grown < 32 << 20, "grown by {grown} bytes from {before}");
    assert!(wire.len() > all.len() && wire.ends_with(b"\r\n0\r\n\r\n"), "the range came whole");
}

/// A client that goes away in the middle of a range leaves no cost behind.
#[test]
fn readers_who_leave_a_range_are_forgotten() {
    let server = Node::start_new(&["--durability", "os", "--threads", "2"]);
    let all = fill(&server, 16);
    for _ in 0..20 {
        let mut client = server.connect();
        client.send(RANGE);
        assert!(!client.recv_raw(1000).is_empty());
    }
    wait_until("all connections have ended", || metrics(&server)["kvorum_connections_open"] < 1.5);
    assert!(one(server.exchange(RANGE)).body == all);
}

/// How long until the server ends the connection. `patience` is the longest that it may take, many times the
/// bound.
fn time_until_closed(client: &mut Connection) -> Duration {
    let begun = Instant::now();
    client.recv_end();
    begun.elapsed()
}

/// The bounds are kept to half a second; a test looks at them through a clock of its own.
const SOON: Duration = Duration::from_millis(900);

/// Half a head is waited for as long as the bound says and no longer, also if more bytes arrive one by one.
#[test]
fn slow_heads_are_cut() {
    let server = Node::start_new(&["--head-timeout", "1s"]);
    let half = "GET /v0/status HTTP/1.1\r\nHost: a\r\nX: ";
    let mut silent = server.connect();
    let took = time_until_closed(&mut silent);
    assert!(took > SOON, "cut after {took:?}");
    let mut client = server.connect();
    client.send(half.as_bytes());
    let took = time_until_closed(&mut client);
    assert!(took > SOON, "cut after {took:?}");
    // After a whole request, too.
    let mut client = server.connect();
    client.send(format!("GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n{half}").as_bytes());
    assert_eq!(client.recv().status, 200);
    time_until_closed(&mut client);
    // Byte by byte: this head would take a minute.
    let mut client = server.connect();
    client.send(half.as_bytes());
    let dripped = (0..600).take_while(|_| {
        sleep(Duration::from_millis(100));
        client.try_send(b"x").is_ok()
    });
    let dripped = dripped.count();
    assert!((5..200).contains(&dripped), "cut after {dripped} drops");
    assert!(metrics(&server)["kvorum_connections_timed_out_total"] > 3.5);
}

/// A body's wait counts from arrival to arrival. One that stops is cut. One that takes long is not, unless it
/// is so slow that it would hold its memory for hours.
#[test]
fn stalled_bodies_are_cut() {
    let server = Node::start_new(&["--body-timeout", "1s"]);
    for framing in ["Content-Length: 10\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\na\r\nhalf"] {
        let mut client = server.connect();
        client.send(format!("PUT /v0/entity?id=stalled HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes());
        let begun = Instant::now();
        let answer = client.try_recv().unwrap();
        assert!(begun.elapsed() > SOON, "cut after {:?}", begun.elapsed());
        assert!(answer.is_none_or(|answer| answer.status >= 400), "half a body is no value");
    }
    assert_eq!(server.get("id=stalled").status, 404);
    let mut client = server.connect();
    client.send(b"PUT /v0/entity?id=slow HTTP/1.1\r\nHost: a\r\nContent-Length: 262144\r\n\r\n");
    let value = noise(262_144, 6);
    for piece in value.chunks(32_768) {
        sleep(Duration::from_millis(400));
        client.send(piece);
    }
    assert_eq!(client.recv().status, 201);
    assert!(server.get("id=slow").body == value);
    let mut trickle = server.connect();
    trickle.send(b"PUT /v0/entity?id=trickle HTTP/1.1\r\nHost: a\r\nContent-Length: 262144\r\n\r\n");
    let trickled = (0..600).take_while(|_| {
        sleep(Duration::from_millis(100));
        trickle.try_send(b"x").is_ok()
    });
    assert!(trickled.count() < 300, "a trickle of ten bytes a second goes on");
}

/// A connection without requests ends after the idle time, which begins again with every answer.
#[test]
fn idle_connections_are_ended() {
    let server = Node::start_new(&["--idle-timeout", "1s"]);
    let mut client = server.connect();
    for _ in 0..4 {
        client.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().status, 200);
        sleep(Duration::from_millis(500));
    }
    client.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.recv().status, 200);
    let took = time_until_closed(&mut client);
    assert!(took > SOON, "cut after {took:?}");
}

/// A client that does not read its answer is cut, also if it continues to send requests; a slow reader is
/// not.
#[test]
fn clients_who_do_not_read_are_cut() {
    let server = Node::start_new(&["--write-timeout", "1s"]);
    let value = noise(8 * MIB, 2);
    assert_eq!(server.put("id=large", &value).status, 201);
    let get = b"GET /v0/entity?id=large HTTP/1.1\r\nHost: a\r\n\r\n";
    let cut = |server: &Node| metrics(server)["kvorum_connections_timed_out_total"];
    // More than the kernel's buffers hold.
    let mut client = server.connect();
    client.send(&get.repeat(8));
    wait_until("the silent client is cut", || cut(&server) > 0.5);
    let mut eager = server.connect();
    eager.send(&get.repeat(8));
    wait_until("the asking client is cut", || {
        sleep(Duration::from_millis(100));
        eager.send(get);
        cut(&server) > 1.5
    });
    let mut answers = Vec::new();
    while let Ok(Some(answer)) = client.try_recv() {
        answers.push(answer.is_whole);
    }
    assert!(answers.len() < 8 || answers.contains(&false), "{answers:?}");
    // Ten megabytes a second, in pieces of a megabyte: slow, but never silent for long.
    let mut slow = server.connect();
    slow.send(
        &[&get.repeat(3)[..], b"GET /v0/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"].concat(),
    );
    let mut got = 0;
    loop {
        let bytes = slow.recv_raw(64 << 10).len();
        if bytes == 0 {
            break;
        }
        if got / MIB != (got + bytes) / MIB {
            sleep(Duration::from_millis(100));
        }
        got += bytes;
    }
    assert!(got > 3 * 8 * MIB + 100, "cut behind {got} bytes");
}

/// A connection beyond the cap gets 503 with an error text, and is closed; places that become free are used
/// again.
#[test]
fn connections_over_the_cap_are_refused() {
    let server = Node::start_new(&["--max-connections", "4"]);
    let ask = |client: &mut Connection| {
        client.send(b"GET /v0/entity?id=absent HTTP/1.1\r\nHost: a\r\n\r\n");
        client.recv().status
    };
    let mut held: Vec<Connection> = Vec::new();
    wait_until("four connections are held", || {
        let mut client = server.connect();
        if ask(&mut client) == 404 {
            held.push(client);
        }
        held.len() == 4
    });
    for _ in 0..3 {
        let mut fifth = server.connect();
        let answer = fifth.recv();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert!(answer.closes() && answer.text().lines().count() == 1);
        fifth.recv_end();
    }
    assert!(held.iter_mut().all(|client| ask(client) == 404));
    held.pop();
    wait_until("the free place is given away", || ask(&mut server.connect()) == 404);
}

/// Goal: uploads that are announced and do not come take nothing from other clients. Before the fix, 16
/// uploads of 8 MiB at 16 KiB/s blocked every PUT. Method: more of them than the memory for all bodies.
#[test]
fn announced_uploads_take_nothing_from_others() {
    let server = Node::start_new(&[]);
    let slow: Vec<Connection> = (0..20)
        .map(|index| {
            let mut client = server.connect();
            let head = format!(
                "PUT /v0/entity?id=slow-{index} HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n"
            );
            client.send(head.as_bytes());
            client.send(&noise(16 << 10, index));
            client
        })
        .collect();
    let in_flight = || metrics(&server)["kvorum_body_in_flight_bytes"];
    wait_until("the uploads have begun", || in_flight() >= 20.0 * f64::from(16 << 10));
    assert!(in_flight() < f64::from(8 << 20), "only what has come counts");
    let value = noise(8 * MIB, 5);
    assert_eq!(server.put("id=whole", &value).status, 201);
    assert!(server.get("id=whole").body == value);
    drop(slow);
    wait_until("the room is given back", || in_flight() < 0.5);
}

/// Bodies that exceed the memory for bodies are refused with 503 before they are read; then there is room
/// again.
#[test]
fn bodies_over_the_memory_are_refused() {
    let server = Node::start_new(&["--max-value-size", "1MiB", "--max-body-memory", "1MiB"]);
    let value = noise(MIB, 4);
    let mut first = server.connect();
    first.send(b"PUT /v0/entity?id=first HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(first.recv().status, 100);
    let (most, last) = value.split_at(MIB - 1);
    first.send(most);
    wait_until("nearly all has come", || metrics(&server)["kvorum_body_in_flight_bytes"] > 1_048_575.5);
    for framing in ["Content-Length: 1\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"] {
        let mut second = server.connect();
        second.send(format!("PUT /v0/entity?id=second HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes());
        let answer = second.recv();
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
        assert!(answer.text().contains("nothing was done"), "{answer:?}");
    }
    assert_eq!(server.get("id=second").status, 404);
    first.send(last);
    assert_eq!(first.recv().status, 201);
    assert!(server.get("id=first").body == value);
    assert_eq!(server.put("id=second", b"x").status, 201);
    // An upload that is broken off frees its memory.
    let mut third = server.connect();
    third.send(b"PUT /v0/entity?id=third HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\nx");
    wait_until("the third has its room", || metrics(&server)["kvorum_body_in_flight_bytes"] > 0.5);
    drop(third);
    wait_until("the room is given back", || metrics(&server)["kvorum_body_in_flight_bytes"] < 0.5);
    assert!(server.put("id=third", &value).status == 201);
}

/// A configuration under which a value can be received at all lets it be received in chunks, too.
#[test]
fn chunked_upload_fits_where_one_value_fits() {
    let server = Node::start_new(&["--max-value-size", "100000", "--max-body-memory", "100000"]);
    for bytes in [1, 70_000, 100_000] {
        let value = noise(bytes, 9);
        assert_eq!(server.put("id=sized", &value).status, 201);
        let head = b"PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        let size = format!("{bytes:x}\r\n");
        let answer = one(server.exchange(&[head, size.as_bytes(), &value, b"\r\n0\r\n\r\n"].concat()));
        assert_eq!(answer.status, 201, "{bytes} bytes: {answer:?}");
        assert!(server.get("id=chunked").body == value);
    }
}

/// Requests that do not end within the drain time-out are cut; that is a normal end all the same.
#[test]
fn draining_has_a_bound() {
    let mut server = Node::start_new(&["--drain-timeout", "1s"]);
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    let begun = Instant::now();
    let status = server.terminate();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(begun.elapsed() > SOON, "ended after {:?}", begun.elapsed());
    assert!(server.log().contains("--drain-timeout has passed"), "{}", server.log());
    assert!(upload.try_recv().unwrap().is_none());
    server.restart();
    assert_eq!(server.get("id=upload").status, 404);
}
