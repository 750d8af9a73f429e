//! Bounds on a peer's messages, whichever side of a connection it is on.

use super::support::*;
use crate::clock::Clock;
use crate::peer::frame::{FrameReader, Pieces};
use crate::peer::*;
use crate::replica::{Applied, Fetched, Floor};
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Record, UnixMillis, Value, Version};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, duplex};

/// A minute and a lease ahead of the test's clock, plus one millisecond.
const TOO_FAR: UnixMillis = UnixMillis(1_700_000_000_000 + 60_000 + 1_000 + 1);

fn key() -> Key {
    Key::new("k").unwrap()
}

fn record(word: u64) -> Record {
    Record {
        version: Version::from_words(word, 1),
        from: 3,
        expires: None,
        value: Value::Tombstone,
        conditional: None,
    }
}

/// Every request that contains a timestamp, once for each place of one.
fn requests(word: u64) -> Vec<Request> {
    let versions = |floor| Request::Versions { partition: 0, after: None, bytes: 1, floor };
    let step = |kind| Request::Step { kind, round: 1, upto: Timestamp(word), partitions: vec![1] };
    let apply = |kind| Request::Apply { key: key(), record: record(word), kind };
    vec![
        apply(ApplyKind::Write),
        apply(ApplyKind::Hint),
        apply(ApplyKind::ReadRepair),
        versions(Floor { agreed: word, sealed: 0, purged: 0 }),
        versions(Floor { agreed: 0, sealed: word, purged: 0 }),
        versions(Floor { agreed: 0, sealed: 0, purged: word }),
        Request::Survey { agreed: [0, word, 0].map(Timestamp).to_vec(), held_by: None },
        Request::Close { round: 1, upto: Timestamp(word), by_scan: false, partitions: vec![1] },
        step(StepKind::Agree),
        step(StepKind::Seal),
        step(StepKind::Release),
    ]
}

/// Every reply that contains a timestamp, likewise, each with a request that it answers.
fn replies(word: u64) -> Vec<(Request, Reply)> {
    let version = Version::from_words(word, 1);
    let header = Held::HeaderOnly { version, from: 3, expires: None, conditional: None, value_bytes: 9 };
    let versions = Request::Versions { partition: 0, after: None, bytes: 1, floor: Floor::default() };
    let row = VersionRow { key: key(), version, from: 3, is_tombstone: false };
    let list = |rows, floor| Reply::VersionList { rows, is_last: true, floor };
    let apply = Request::Apply { key: key(), record: record(1), kind: ApplyKind::Write };
    let get = Request::Get { key: key(), value_bytes_max: 1 };
    let survey = Request::Survey { agreed: Vec::new(), held_by: None };
    let surveyed = |reading, oldest| {
        let (reading, hinted) = (Timestamp(reading), vec![(1, Timestamp(0)), (2, Timestamp(oldest))]);
        Reply::Surveyed { reading, hinted, votes: true, digests: Vec::new() }
    };
    let fetch = Request::Fetch { keys: vec![key()], bytes: 1 };
    let stretch = Request::Stretch { partitions: vec![1], after: None, bytes: 1 };
    let stretched = |agreed, word| Reply::Stretched {
        last: None,
        is_large: false,
        records: vec![StretchRow { agreed: Timestamp(agreed), key: key(), record: record(word) }],
    };
    let scan = Request::ScanNext { scan: 1, bytes: 1 };
    let scanned = |held| Reply::ScanPart { scan: 1, rows: vec![ScanRow { key: key(), held }], is_last: true };
    let superseded = Applied::Superseded { by: version, memory_millis: 0 };
    vec![
        (apply.clone(), Reply::Applied(superseded)),
        (apply, Reply::Applied(Applied::TooLate { upto: version })),
        (Request::Newest { key: key() }, Reply::NewestIs(version)),
        (get.clone(), Reply::Found(Some(Held::Whole(record(word))))),
        (get, Reply::Found(Some(header.clone()))),
        (Request::TakeHints, Reply::HintsTaken { delivered: 0, left: 0, met: Timestamp(word) }),
        (scan.clone(), scanned(Held::Whole(record(word)))),
        (scan, scanned(header)),
        (versions.clone(), list(vec![row], Floor::default())),
        (versions.clone(), list(Vec::new(), Floor { agreed: word, sealed: 0, purged: 0 })),
        (versions.clone(), list(Vec::new(), Floor { agreed: 0, sealed: word, purged: 0 })),
        (versions, list(Vec::new(), Floor { agreed: 0, sealed: 0, purged: word })),
        (survey.clone(), surveyed(word, 0)),
        (survey, surveyed(0, word)),
        (fetch.clone(), Reply::Fetched { agreed: Timestamp(word), records: Vec::new() }),
        (
            fetch,
            Reply::Fetched {
                agreed: Timestamp(0),
                records: vec![Fetched::Record(record(1)), Fetched::Damaged, Fetched::Record(record(word))],
            },
        ),
        (Request::Floors, Reply::FloorList(vec![Timestamp(0), Timestamp(word)])),
        (stretch.clone(), stretched(word, 1)),
        (stretch, stretched(0, word)),
    ]
}

/// Goal: whatever kind of request contains a timestamp from the future, the service never sees it, the caller gets the
/// reason, and the connection survives. Method: every place in every message, a millisecond and an eternity beyond the
/// limit; and at the limit, where all are served.
#[test]
fn requests_from_the_future_are_refused() {
    run(async {
        let served = || Reply::Refused { code: Refusal::Unknown, detail: "served".to_owned() };
        let peer = Peer::new(move |_| Box::pin(async move { served() }));
        let link = connected(&peer).await;
        let too_far = Version::new(TOO_FAR, 0, NodeId(0)).clock();
        for request in [requests(too_far), requests(u64::MAX)].concat() {
            let answer = link.call(&request, SECOND).await;
            let Err(CallError::Refused { code: Refusal::TooFarAhead, detail }) = answer else {
                panic!("{request:?}: {answer:?}")
            };
            assert!(detail.contains("ahead of this node's clock"), "{detail}");
        }
        assert_eq!(peer.seen.borrow().len(), 0);
        assert_eq!((link.counts().connects, link.is_usable()), (1, true));
        let allowed = requests(too_far - 1);
        for request in &allowed {
            let _ = link.call(request, SECOND).await;
        }
        assert_eq!(*peer.seen.borrow(), allowed);
    });
}

/// The same for replies: their calls fail, with the reason.
#[test]
fn replies_from_the_future_fail_their_calls() {
    run(async {
        let too_far = Version::new(TOO_FAR, 0, NodeId(0)).clock();
        let (all, allowed) = ([replies(too_far), replies(u64::MAX)].concat(), replies(too_far - 1));
        for (is_allowed, (request, reply)) in
            all.into_iter().map(|pair| (false, pair)).chain(allowed.into_iter().map(|pair| (true, pair)))
        {
            let said = reply.clone();
            let peer = Peer::new(move |_| {
                let said = said.clone();
                Box::pin(async move { said })
            });
            let link = connected(&peer).await;
            let answer = link.call(&request, SECOND).await;
            match answer {
                Ok(answer) if is_allowed => assert_eq!(answer, reply),
                Err(CallError::TooFarAhead(error)) if !is_allowed => {
                    assert_eq!(error.limit_millis, 60_000, "{reply:?}");
                }
                answer => panic!("{reply:?}: {answer:?}"),
            }
            assert_eq!((link.counts().connects, link.is_usable()), (1, true));
        }
    });
}

/// A peer's wall clock is only compared: whatever it shows, its pings are answered.
#[test]
fn wall_clocks_are_compared_only() {
    run(async {
        let peer = Peer::new(|request| {
            Box::pin(async move {
                let Request::Ping { wall, cluster_id, registry } = request else { return Reply::Done };
                Reply::Pong { wall, cluster_id, registry, votes: true }
            })
        });
        let link = connected(&peer).await;
        let wall = UnixMillis(u64::MAX);
        let answer = link
            .call(&Request::Ping { wall, cluster_id: None, registry: Vec::new() }, Duration::from_secs(1))
            .await;
        assert_eq!(answer, Ok(Reply::Pong { wall, cluster_id: None, registry: Vec::new(), votes: true }));
    });
}

/// Goal: a request that is longer than this node accepts is refused by its id, and does not affect the connection or
/// the requests around it. Method: one such request between two others.
#[test]
fn requests_that_are_too_long_are_refused() {
    run(async {
        let peer = Peer::new(|_| Box::pin(async { Reply::Applied(Applied::Stored) }));
        let link = connected(&peer).await;
        let apply = |bytes| {
            let request = Request::Apply { key: key(), record: record_of(bytes), kind: ApplyKind::Write };
            link.call(&request, 600 * SECOND)
        };
        assert_eq!(apply(10).await, Ok(Reply::Applied(Applied::Stored)));
        let answer = apply(73 << 20).await;
        assert!(matches!(answer, Err(CallError::Refused { code: Refusal::TooLong, .. })), "{answer:?}");
        assert_eq!(apply(10).await, Ok(Reply::Applied(Applied::Stored)));
        assert_eq!((peer.seen.borrow().len(), link.counts().connects), (2, 1));
    });
}

/// Goal: replies that a peer does not read hold no more than the memory for frames, however many it asks for. Replies
/// that do not fit are refused as overload, and all memory is given back at the end. Method: 200 values of 1 MiB for a
/// peer that reads nothing, with memory for 64.
#[test]
fn unsent_replies_are_bounded() {
    run(async {
        let clock: Arc<dyn Clock> = Arc::new(TestClock { begun: tokio::time::Instant::now() });
        let limits = limits_of(Arc::clone(&clock), 64 << 20);
        let peer = Peer::new(|_| {
            let held = Held::Whole(record_of(1 << 20));
            Box::pin(async move { Reply::Found(Some(held)) })
        });
        let (mut ours, theirs) = duplex(1024);
        let service = Rc::new(Answers { peer });
        let caller =
            Caller { peer: US, connection: 7, protocol: PROTOCOL, epoch: kvorum_core::agreement::Epoch(0) };
        let mut pieces = Pieces::default();
        let get = Request::Get { key: key(), value_bytes_max: u32::MAX };
        for id in 0..200 {
            let put = |to: &mut Pieces| get.encode(600 * SECOND, to);
            pieces.push(get.kind(), id, usize::MAX, put).unwrap();
        }
        let asked = Bytes::from(pieces.short.to_vec());
        let serving = serve(theirs, asked, service, caller, clock, Arc::clone(&limits));
        let taking = async {
            run_ready_tasks().await;
            let held = limits.memory_used();
            assert!((32 << 20..=64 << 20).contains(&held), "{held} bytes are held");
            // Every reply that fitted arrives once the peer reads, and the other requests got a refusal.
            let mut reader = FrameReader::new(Bytes::new());
            let (mut whole, mut refused) = (0, 0);
            while whole + refused < 200 {
                assert_ne!(ours.read_buf(reader.room()).await.unwrap(), 0);
                while let Some(frame) = reader.next().unwrap() {
                    match Reply::decode(frame, get.reply_kind()).unwrap() {
                        Reply::Found(Some(_)) => whole += 1,
                        Reply::Refused { code: Refusal::Overloaded, .. } => refused += 1,
                        reply => panic!("{reply:?}"),
                    }
                }
            }
            assert!(whole >= 32, "{whole} of 200");
            drop(ours);
        };
        tokio::join!(serving, taking);
        assert_eq!(limits.memory_used(), 0);
    });
}

/// Goal: peers that break the protocol, however often, cause one log line per interval; it was one for each try.
/// Method: 100 connections with a bad frame each; the limiter then reports how many lines were left out.
#[test]
fn bad_frames_are_logged_seldom() {
    run(async {
        let clock: Arc<dyn Clock> = Arc::new(TestClock { begun: tokio::time::Instant::now() });
        let limits = limits(Arc::clone(&clock));
        for connection in 0..100 {
            let peer = Peer::timed();
            let (_ours, theirs) = duplex(1024);
            let service = Rc::new(Answers { peer });
            let caller =
                Caller { peer: US, connection, protocol: PROTOCOL, epoch: kvorum_core::agreement::Epoch(0) };
            let bad = Bytes::from_static(&[0xff; 16]);
            serve(theirs, bad, service, caller, Arc::clone(&clock), Arc::clone(&limits)).await;
        }
        assert_eq!(limits.bad_frames.admit(Duration::from_hours(1)), Some(99));
    });
}
