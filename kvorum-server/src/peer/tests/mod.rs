//! Both sides of a call, over in-memory streams and virtual time.

mod bounds;
mod cost;
mod encoding;
mod messages;
mod support;
pub(super) mod values;
mod versions;

use super::frame::Pieces;
use super::*;
use crate::clock::Clock;
use crate::replica::Applied;
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Record, UnixMillis, Value, Version};
use messages::samples;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::spawn_local;
use tokio::time::sleep;

/// Calls made in one turn share writes, and so do their replies.
#[test]
fn calls_share_writes() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let before = peer.tap.writes.get();
        let calls: Vec<Call> = (0..64).map(|_| link.call(&after(0), SECOND)).collect();
        assert_eq!(link.in_flight(), 64);
        for call in calls {
            assert_eq!(call.await, Ok(Reply::DigestList(vec![0])));
        }
        assert_eq!(peer.tap.writes.get() - before, 1);
    });
}

/// Replies reach their calls in whatever order they come.
#[test]
fn replies_come_in_any_order() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let slow = link.call(&after(50), SECOND);
        let fast = link.call(&after(20), SECOND);
        let at_once = link.call(&after(0), SECOND);
        let begun = peer.millis();
        assert_eq!(at_once.await, Ok(Reply::DigestList(vec![0])));
        assert_eq!(peer.millis() - begun, 0);
        assert_eq!(fast.await, Ok(Reply::DigestList(vec![20])));
        assert_eq!(slow.await, Ok(Reply::DigestList(vec![50])));
        assert!((50..55).contains(&(peer.millis() - begun)));
    });
}

/// A call fails at its deadline; its late reply is ignored.
#[test]
fn calls_time_out() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let begun = peer.millis();
        let other = link.call(&after(80), SECOND);
        let late = link.call(&after(70), Duration::from_millis(30)).await;
        assert_eq!(late, Err(CallError::TimedOut));
        assert!((30..=45).contains(&(peer.millis() - begun)), "{}", peer.millis() - begun);
        assert_eq!(other.await, Ok(Reply::DigestList(vec![80])));
        let counts = link.counts();
        assert_eq!((counts.calls, counts.calls_timed_out, counts.calls_lost, counts.connects), (2, 1, 0, 1));
        assert!(link.is_usable());
    });
}

/// A reply whose call was dropped is received and discarded.
#[test]
fn dropped_calls_are_forgotten() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        drop(link.call(&after(20), SECOND));
        run_ready_tasks().await;
        assert_eq!((peer.seen.borrow().len(), link.in_flight()), (1, 1));
        pass(25).await;
        assert_eq!((link.in_flight(), link.counts().calls_timed_out), (0, 0));
        assert_eq!(link.call(&after(0), SECOND).await, Ok(Reply::DigestList(vec![0])));
    });
}

/// When the connection ends, its calls are lost at once, and the link comes up again by itself.
#[test]
fn lost_connections_come_back() {
    run(async {
        let peer = Peer::timed();
        let (link, witness) = start(&peer);
        run_ready_tasks().await;
        let call = link.call(&after(500), SECOND);
        run_ready_tasks().await;
        peer.cut();
        assert_eq!(call.await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("peer closed")));
        let not_sent = CallError::NotSent { reason: Unsent::Down };
        assert_eq!(link.call(&after(0), SECOND).await, Err(not_sent));
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 1));
        pass(60).await;
        assert_eq!(link.call(&after(0), SECOND).await, Ok(Reply::DigestList(vec![0])));
        assert_eq!((witness.ups.get(), witness.downs.get()), (2, 1));
        assert_eq!(
            peer.ended.borrow()[..],
            [Caller { peer: US, connection: 1, protocol: PROTOCOL, epoch: kvorum_core::agreement::Epoch(0) }]
        );
    });
}

/// Attempts become rarer up to a bound and never end; a message from the peer triggers one at once.
#[test]
fn attempts_back_off() {
    run(async {
        let peer = Peer::timed();
        peer.address.replace(Address::Nobody);
        let (link, witness) = start(&peer);
        pass(12_000).await;
        let at: Vec<u128> = peer.connects.borrow().iter().map(Duration::as_millis).collect();
        let pauses: Vec<u128> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let expected = [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000];
        let is_close = |(pause, expected): (&u128, &u128)| (expected..=&(expected + 2)).contains(&pause);
        assert!(pauses.iter().zip(&expected).all(is_close) && pauses.len() >= 9, "{pauses:?}");
        let LinkState::Down { since, reason } = link.state() else { panic!("{:?}", link.state()) };
        assert!(since.is_zero() && reason.contains("connection refused"), "{since:?} {reason}");
        peer.address.replace(Address::Node);
        link.probe_now();
        run_ready_tasks().await;
        assert!(link.is_usable());
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 0));
    });
}

/// A message from the peer during an attempt makes the next pause short.
#[test]
fn signs_of_life_begin_the_pauses_anew() {
    run(async {
        let peer = Peer::timed();
        peer.address.replace(Address::Mute);
        let (link, _) = start(&peer);
        // Attempts of a second each, with pauses of 50, 100, 200 and 400 ms.
        pass(5_000).await;
        let attempts = peer.connects.borrow().len();
        assert_eq!(attempts, 5);
        link.probe_now();
        pass(900).await;
        assert_eq!(peer.connects.borrow().len(), 6);
    });
}

/// A peer that refuses, or is not the expected one, is reported with its own text, sanitized.
#[test]
fn refusals_are_shown() {
    let head = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n");
    let said = |hello: &Hello, upgrade: &str| {
        let headers = hello.headers().into_iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        format!("HTTP/1.1 101 Fine\r\nUpgrade: {upgrade}\r\n{}\r\n", headers.collect::<String>())
    };
    let red = Hello { cluster: "red".to_owned(), ..hello(PEER) };
    let cases = [
        (
            format!("{}\r\nthe \x1b[1mclusters differ\nmore", head("409 Conflict")),
            "409: the [1mclusters differ",
        ),
        (format!("{}\r\nno line end", head("503 Busy")), "503: no line end"),
        ("SSH-2.0\r\n\r\n".to_owned(), "not HTTP/1.1"),
        (head("101 Fine") + &"X: y\r\n".repeat(3000), "not HTTP/1.1"),
        (format!("{}\r\n", head("101 Fine")), "did not upgrade"),
        (said(&hello(PEER), "websocket"), "did not upgrade"),
        (said(&red, UPGRADE_PROTOCOL), "the clusters differ: \"blue\" at node 000000000000000a, \"red\""),
        (said(&hello(NodeId(0xc)), UPGRADE_PROTOCOL), "node 000000000000000c answered instead of"),
    ];
    for (text, shown) in cases {
        run(async {
            let peer = Peer::timed();
            peer.address.replace(Address::Text(text));
            let (link, witness) = start(&peer);
            pass(240).await;
            let LinkState::Down { reason, .. } = link.state() else { panic!("{shown}: {:?}", link.state()) };
            assert!(reason.contains(shown) && !reason.contains(char::is_control), "{reason:?} {shown:?}");
            assert_eq!(witness.ups.get(), 0);
        });
    }
}

/// A peer that is silent while calls wait is suspected, and usable again at its first byte.
#[test]
fn silence_is_suspect() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let ping = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: 0 };
        *peer.answer.borrow_mut() = Box::new(|_| Box::pin(async { Reply::Found(None) }));
        assert_eq!(link.call(&ping, SECOND).await, Ok(Reply::Found(None)));
        peer.tap.silence(true);
        let call = link.call(&ping, SECOND);
        pass(90).await;
        assert!(link.is_usable());
        pass(40).await;
        assert!(!link.is_usable());
        assert!(matches!(link.state(), LinkState::Up { .. }));
        peer.tap.silence(false);
        assert_eq!(call.await, Ok(Reply::Found(None)));
        assert!(link.is_usable());
        assert_eq!(link.counts().connects, 1);
    });
}

/// A stopped peer is detected, although its system accepts bytes and connections, and used again when it goes on.
#[test]
fn stopped_peers_are_given_up() {
    run(async {
        let peer = Peer::timed();
        let (link, witness) = start(&peer);
        run_ready_tasks().await;
        peer.tap.silence(true);
        peer.address.replace(Address::Mute);
        let long = link.call(&after(1), Duration::from_mins(1));
        let short =
            link.call(&Request::Ping { wall: UnixMillis(0), cluster_id: None, registry: Vec::new() }, SECOND);
        assert_eq!(short.await, Err(CallError::TimedOut));
        assert_eq!(long.await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("does not answer")));
        pass(5000).await;
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("within 1000 ms")));
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 1));
        peer.tap.silence(false);
        peer.address.replace(Address::Node);
        pass(3000).await;
        assert!(link.is_usable());
    });
}

/// Long work does not make the peer suspect before its deadline.
#[test]
fn long_work_is_not_silence() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let long = link.call(&after(900), SECOND);
        pass(800).await;
        assert!(link.is_usable());
        assert_eq!(long.await, Ok(Reply::DigestList(vec![900])));
    });
}

/// One wrong byte ends the connection; no later byte is used.
#[test]
fn corrupt_bytes_end_the_connection() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        peer.tap.corrupts.set(true);
        assert_eq!(link.call(&after(0), SECOND).await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("checksum")));
        pass(60).await;
        assert_eq!(link.call(&after(0), SECOND).await, Ok(Reply::DigestList(vec![0])));
    });
}

/// A server ends the connection of a caller that sends anything but a request.
#[test]
fn servers_end_what_is_corrupt() {
    let frame = |kind: u8, payload: &'static [u8]| {
        let mut pieces = Pieces::default();
        let put = |to: &mut Pieces| {
            to.short.extend_from_slice(payload);
            Ok(())
        };
        pieces.push(kind, 1, usize::MAX, put).unwrap();
        pieces.short.to_vec()
    };
    let mut flipped = frame(4, &[0, 0, 0, 9]);
    flipped[12] ^= 1;
    let cases = [frame(4, &[0, 0, 0, 9, 9]), frame(0x7f, &[0; 4]), frame(0x81, &[0]), flipped, vec![0xff; 4]];
    for bytes in cases {
        run(async {
            let peer = Peer::timed();
            let (mut ours, theirs) = duplex(1024);
            let service = Rc::new(Answers { peer: Rc::clone(&peer) });
            let caller = Caller {
                peer: US,
                connection: 7,
                protocol: PROTOCOL,
                epoch: kvorum_core::agreement::Epoch(0),
            };
            // The last frame that was read before the upgrade was handed over is served like any other.
            let good = Bytes::from(frame(4, &[0, 0, 0, 9]));
            let clock = Arc::clone(&peer.clock) as Arc<dyn Clock>;
            let limits = limits(Arc::clone(&clock));
            let serving = serve(theirs, good, service, caller, clock, limits);
            let serving = spawn_local(serving);
            ours.write_all(&bytes).await.unwrap();
            let mut reply = Vec::new();
            ours.read_to_end(&mut reply).await.unwrap();
            serving.await.unwrap();
            assert_eq!(reply.len(), 13);
            assert_eq!((peer.seen.borrow().len(), &peer.ended.borrow()[..]), (1, &[caller][..]));
        });
    }
}

/// A reply to another kind of request ends the connection.
#[test]
fn wrong_replies_are_not_believed() {
    run(async {
        let peer = Peer::new(|_| Box::pin(async { Reply::Done }));
        let link = connected(&peer).await;
        assert_eq!(link.call(&after(0), SECOND).await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("does not answer")));
    });
}

/// Calls and bytes in flight are bounded; one request always fits.
#[test]
fn bounds_refuse() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        let calls: Vec<Call> = (0..CALLS_IN_FLIGHT_MAX).map(|_| link.call(&after(0), SECOND)).collect();
        let refused = |reason| Err(CallError::NotSent { reason });
        assert_eq!(link.call(&after(0), SECOND).await, refused(Unsent::TooManyCalls));
        for call in calls {
            assert_eq!(call.await, Ok(Reply::DigestList(vec![0])));
        }
        let put = |bytes: usize| {
            let value = Value::Present(Bytes::from(vec![0; bytes]));
            let record = Record { version: Version::ZERO, from: 1, expires: None, value, conditional: None };
            Request::Apply { key: Key::new("k").unwrap(), record, kind: ApplyKind::Write }
        };
        *peer.answer.borrow_mut() = Box::new(|_| Box::pin(async { Reply::Applied(Applied::Stored) }));
        let large = link.call(&put(OUT_BYTES_MAX + 1), SECOND);
        assert_eq!(link.call(&put(1), SECOND).await, refused(Unsent::TooManyBytes));
        assert_eq!(large.await, Ok(Reply::Applied(Applied::Stored)));
        assert_eq!(link.call(&put(FRAME_BYTES_MAX), SECOND).await, refused(Unsent::TooLong));
        assert_eq!(link.call(&put(1), SECOND).await, Ok(Reply::Applied(Applied::Stored)));
        assert_eq!(link.counts().connects, 1);
    });
}

/// A server with as many waiting requests as it may have refuses more.
#[test]
fn servers_refuse_overload() {
    run(async {
        let peer = Peer::timed();
        let first = connected(&peer).await;
        // Calls that the caller dropped still occupy the server.
        for _ in 0..SERVED_IN_FLIGHT_MAX {
            drop(first.call(&after(500), Duration::from_millis(50)));
        }
        pass(100).await;
        assert_eq!(first.in_flight(), 0);
        let outcome = first.call(&after(0), SECOND).await;
        assert!(matches!(outcome, Err(CallError::Refused { code: Refusal::Overloaded, .. })), "{outcome:?}");
        pass(500).await;
        assert_eq!(first.call(&after(0), SECOND).await, Ok(Reply::DigestList(vec![0])));
    });
}

/// A request whose deadline passed before work on it began is dropped.
#[test]
fn late_work_is_not_begun() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        assert_eq!(link.call(&after(0), Duration::ZERO).await, Err(CallError::TimedOut));
        assert_eq!((peer.expired.get(), peer.seen.borrow().len()), (1, 0));
    });
}

/// A value of 8 MiB goes both ways, beside small calls, and does not count as silence.
#[test]
fn large_values_get_through() {
    run(async {
        let value: Bytes = (0..8 << 20).map(|at: u32| at.to_le_bytes()[at as usize % 3]).collect();
        let record = Record {
            version: Version::ZERO,
            from: 1,
            expires: None,
            value: Value::Present(value),
            conditional: None,
        };
        let held = Held::Whole(record.clone());
        let peer = Peer::new(move |request| {
            let reply = match request {
                Request::Apply { .. } => Reply::Applied(Applied::Stored),
                _ => Reply::Found(Some(held.clone())),
            };
            Box::pin(std::future::ready(reply))
        });
        let link = connected(&peer).await;
        let key = Key::new("k").unwrap();
        let apply = Request::Apply { key: key.clone(), record: record.clone(), kind: ApplyKind::Hint };
        let apply_call = link.call(&apply, SECOND);
        let get_call = link.call(&Request::Get { key, value_bytes_max: u32::MAX }, SECOND);
        assert_eq!(apply_call.await, Ok(Reply::Applied(Applied::Stored)));
        assert!(peer.seen.borrow()[0] == apply);
        assert!(get_call.await == Ok(Reply::Found(Some(Held::Whole(record)))));
    });
}

/// A peer that slowly accepts a long message is not silent, unless it stops.
#[test]
fn slow_transfers_are_not_silence() {
    run(async {
        let peer = Peer::new(|_| Box::pin(async { Reply::Applied(Applied::Stored) }));
        peer.address.replace(Address::Slow);
        peer.stream_bytes.set(1024);
        let (link, witness) = start(&peer);
        pass(200).await;
        let value = Value::Present(Bytes::from(vec![0; 100 << 10]));
        let record = Record { version: Version::ZERO, from: 1, expires: None, value, conditional: None };
        let put = Request::Apply { key: Key::new("k").unwrap(), record, kind: ApplyKind::Write };
        let call = link.call(&put, 2 * SECOND);
        for _ in 0..9 {
            pass(100).await;
            assert!(link.is_usable());
        }
        assert_eq!((call.await, link.in_flight()), (Ok(Reply::Applied(Applied::Stored)), 0));
        let call = link.call(&put, 2 * SECOND);
        pass(500).await;
        peer.is_stalled.set(true);
        assert!(link.is_usable());
        assert_eq!((call.await, witness.downs.get()), (Err(CallError::TimedOut), 0));
        // Four times its usual latency of a second is cut to [`SILENCE_MAX`].
        pass(1000).await;
        assert_eq!(witness.downs.get(), 1);
    });
}

/// The server stops reading from a caller that does not read its replies, and finally ends its connection.
#[test]
fn replies_that_nobody_takes_are_bounded() {
    run(async {
        let value = Value::Present(Bytes::from(vec![0; 8 << 20]));
        let record = Record { version: Version::ZERO, from: 1, expires: None, value, conditional: None };
        let held = Held::Whole(record);
        let peer = Peer::new(move |_| Box::pin(std::future::ready(Reply::Found(Some(held.clone())))));
        let link = connected(&peer).await;
        peer.tap.silence(true);
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: u32::MAX };
        for _ in 0..50 {
            drop(link.call(&get, Duration::from_hours(1)));
        }
        pass(1000).await;
        // The bytes that the stream accepts at first make room for one more reply.
        assert_eq!(peer.seen.borrow().len(), OUT_BYTES_MAX / (8 << 20) + 1);
        assert!(peer.ended.borrow().is_empty());
        pass(60_000).await;
        assert_eq!(peer.ended.borrow().len(), 1);
    });
}

/// Goal: an unused connection is ended, so that idle handshakes hold nothing for long; one with occasional requests is
/// not. Method: silence, with and without a request every 40 s.
#[test]
fn unused_connections_are_ended() {
    run(async {
        let peer = Peer::new(|_| Box::pin(async { Reply::Found(None) }));
        let link = connected(&peer).await;
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: u32::MAX };
        for _ in 0..4 {
            pass(40_000).await;
            assert_eq!(link.call(&get, SECOND).await, Ok(Reply::Found(None)));
        }
        assert!(peer.ended.borrow().is_empty());
        pass(90_000).await;
        assert_eq!(peer.ended.borrow().len(), 1);
    });
}

/// Requests that waited for room among the replies are answered once there is some, though no further bytes come.
#[test]
fn waiting_requests_are_not_forgotten() {
    run(async {
        let held = Held::Whole(record_of(8 << 20));
        let peer = Peer::new(move |_| Box::pin(std::future::ready(Reply::Found(Some(held.clone())))));
        // Room for all replies at once: no write is ever cut short.
        peer.stream_bytes.set(200 << 20);
        let link = connected(&peer).await;
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: u32::MAX };
        let calls: Vec<Call> = (0..20).map(|_| link.call(&get, SECOND)).collect();
        for call in calls {
            assert!(call.await.is_ok());
        }
    });
}

/// Dropping the link ends its connection and its task, and fails its calls.
#[test]
fn dropped_links_end() {
    run(async {
        let peer = Peer::timed();
        let (link, witness) = start(&peer);
        run_ready_tasks().await;
        let call = link.call(&after(500), SECOND);
        drop(link);
        assert_eq!(call.await, Err(CallError::Lost));
        run_ready_tasks().await;
        assert_eq!((witness.ups.get(), witness.downs.get(), peer.ended.borrow().len()), (1, 1, 1));
        pass(10_000).await;
        assert_eq!(peer.connects.borrow().len(), 1);
    });
}

/// Each kind of call has a latency of its own.
#[test]
fn latencies_are_measured() {
    run(async {
        let peer = Peer::new(|request| {
            Box::pin(async move {
                if let Request::Apply { .. } = request {
                    sleep(Duration::from_millis(40)).await;
                    return Reply::Applied(Applied::Stored);
                }
                sleep(Duration::from_millis(4)).await;
                Reply::Found(None)
            })
        });
        let link = connected(&peer).await;
        assert_eq!(link.latency(), Latency::default());
        let (_, apply, _) = samples().swap_remove(0);
        let (_, get, _) = samples().swap_remove(2);
        for _ in 0..30 {
            link.call(&apply, SECOND).await.unwrap();
            link.call(&get, SECOND).await.unwrap();
        }
        let (reads, applies) = (link.latency(), link.apply_latency());
        assert_eq!((reads.count, applies.count), (30, 30));
        assert!((4..7).contains(&reads.mean.as_millis()), "{reads:?}");
        assert!((40..45).contains(&applies.p95.as_millis()), "{applies:?}");
    });
}
