//! Every kind of message: the released bytes, any other bytes, and the way through a link.

use super::support::*;
use crate::peer::frame::{FrameReader, Pieces};
use crate::peer::*;
use crate::replica::{Applied, Fetched, Floor};
use bytes::Bytes;
use kvorum_core::{ClusterId, Key, NodeId, Record, Run, StoreSeen, UnixMillis, Value, Version};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

/// The name of a frame, its request, and the named replies that answer it.
pub(super) type Sample = (&'static str, Request, Vec<(&'static str, Reply)>);

/// Requests and replies of every kind.
#[expect(clippy::too_many_lines, reason = "a table of all messages reads best in one piece")]
pub(super) fn samples() -> Vec<Sample> {
    let key = |text: &'static str| Key::new(text).unwrap();
    let version = Version::new(UnixMillis(0x0123_4567_89ab), 0xcdef, NodeId(0x1122_3344_5566_7788));
    let value = Value::Present(Bytes::from_static(b"hello"));
    let record = Record { version, from: 3, expires: Some(UnixMillis(0x0199_0000_0000)), value };
    let tombstone = Record { expires: None, value: Value::Tombstone, ..record.clone() };
    let dead = tombstone.clone();
    let header = Held::HeaderOnly { version, from: 3, expires: None, value_bytes: 1 << 20 };
    let seen =
        |node, store, number, nonce| StoreSeen { node: NodeId(node), store, run: Run { number, nonce } };
    let roster = vec![seen(1, 0xaa << 120, 7, 0xcc), seen(2, 0xbb, 0, 0)];
    let cluster_id = ClusterId::new(0xc1 << 64);
    let wall = UnixMillis(0x0188_1234_5678);
    let rows = vec![
        ScanRow { key: key("a"), held: Held::Whole(tombstone.clone()) },
        ScanRow { key: key("b"), held: header.clone() },
    ];
    let row = VersionRow { key: key("a"), version, from: 2, is_tombstone: true };
    let floor = Floor { settled: 9, sealed: 8, purged: 7 };
    let refused = |code, detail: &str| Reply::Refused { code, detail: detail.to_owned() };
    vec![
        (
            "apply",
            Request::Apply { key: key("k"), record: record.clone(), kind: ApplyKind::Write },
            vec![
                ("applied-stored", Reply::Applied(Applied::Stored)),
                (
                    "applied-superseded",
                    Reply::Applied(Applied::Superseded { by: version, memory_millis: 160 }),
                ),
                ("applied-too-late", Reply::Applied(Applied::TooLate { upto: version })),
                ("refused-overloaded", refused(Refusal::Overloaded, "a queue is full")),
            ],
        ),
        (
            "apply-tombstone",
            Request::Apply { key: key("k"), record: tombstone, kind: ApplyKind::ReadRepair },
            vec![
                ("refused-starting", refused(Refusal::Starting, "")),
                ("refused-not-voting-yet", refused(Refusal::NotVotingYet, "")),
            ],
        ),
        (
            "get",
            Request::Get { key: key("k"), value_bytes_max: 65_536 },
            vec![
                ("found-nothing", Reply::Found(None)),
                ("found", Reply::Found(Some(Held::Whole(record.clone())))),
                ("found-header", Reply::Found(Some(header))),
            ],
        ),
        ("newest", Request::Newest { key: key("k") }, vec![("newest-is", Reply::NewestIs(version))]),
        (
            "ping",
            Request::Ping { wall, cluster_id, roster: roster.clone() },
            vec![("pong", Reply::Pong { wall, cluster_id: None, roster, votes: true })],
        ),
        (
            "take-hints",
            Request::TakeHints,
            vec![("hints-taken", Reply::HintsTaken { delivered: 7, left: 1, met: 9 })],
        ),
        (
            "scan-open",
            Request::ScanOpen {
                start: key("a"),
                end: Some(key("z")),
                bytes: 65_536,
                sources: vec![0, 2],
                ack: 2,
                from: 3,
            },
            vec![("scan-part", Reply::ScanPart { scan: 9, rows, is_last: false })],
        ),
        (
            "scan-next",
            Request::ScanNext { scan: 9, bytes: 65_536 },
            vec![("scan-part-last", Reply::ScanPart { scan: 9, rows: Vec::new(), is_last: true })],
        ),
        ("scan-close", Request::ScanClose { scan: 9 }, vec![("done", Reply::Done)]),
        (
            "digests",
            Request::Digests { first_partition: 256, count: 2 },
            vec![("digest-list", Reply::DigestList(vec![1, u64::MAX]))],
        ),
        (
            "versions",
            Request::Versions { partition: 4095, after: None, bytes: 65_536, floor },
            vec![("version-list", Reply::VersionList { rows: vec![row], is_last: true, floor })],
        ),
        (
            "fetch",
            Request::Fetch { keys: vec![key("k"), key("l")], bytes: 65_536 },
            vec![
                ("fetched-nothing", Reply::Fetched { settled: 0, records: vec![Fetched::Nothing] }),
                (
                    "fetched",
                    Reply::Fetched {
                        settled: 9,
                        records: vec![Fetched::Record(record.clone()), Fetched::Damaged],
                    },
                ),
            ],
        ),
        (
            "survey",
            Request::Survey { agreed: vec![7, 8], held_by: Some((2, HeldBack::Away)) },
            vec![(
                "surveyed",
                Reply::Surveyed { reading: 9, hinted: vec![(7, 5)], votes: true, digests: vec![1, 2] },
            )],
        ),
        ("survey-free", Request::Survey { agreed: Vec::new(), held_by: None }, Vec::new()),
        (
            "close",
            Request::Close { round: 5, upto: 9, by_scan: true, partitions: vec![1, 4095] },
            vec![("closed", Reply::DigestList(vec![3, 4]))],
        ),
        (
            "settle",
            Request::Step { kind: StepKind::Settle, round: 5, upto: 9, partitions: vec![1] },
            vec![("stepped", Reply::Stepped(true))],
        ),
        (
            "release",
            Request::Step { kind: StepKind::Release, round: 5, upto: 9, partitions: vec![1] },
            vec![("not-stepped", Reply::Stepped(false))],
        ),
        ("floors", Request::Floors, vec![("floor-list", Reply::FloorList(vec![0, 9]))]),
        (
            "apply-many",
            Request::ApplyMany {
                settled: 9,
                records: vec![(key("a"), dead.clone()), (key("k"), record.clone())],
            },
            vec![(
                "applied-many",
                Reply::AppliedMany(vec![
                    Some(Applied::Stored),
                    Some(Applied::Superseded { by: version, memory_millis: 160 }),
                    Some(Applied::TooLate { upto: version }),
                    None,
                ]),
            )],
        ),
        (
            "stretch",
            Request::Stretch { partitions: vec![1, 4095], after: Some(key("a")), bytes: 65_536 },
            vec![
                (
                    "stretched",
                    Reply::Stretched {
                        last: Some(key("k")),
                        is_large: false,
                        records: vec![(9, key("b"), dead), (8, key("k"), record)],
                    },
                ),
                ("stretched-end", Reply::Stretched { last: None, is_large: true, records: Vec::new() }),
            ],
        ),
        (
            "compare",
            Request::Compare { sums: vec![7, u64::MAX] },
            vec![("compared", Reply::Compared(vec![(1, 9), (4095, 0)]))],
        ),
    ]
}

/// The released frames, byte by byte. A change here breaks clusters of mixed releases.
#[test]
fn released_frames_still_read_and_write() {
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let written = |pieces: &mut Pieces| {
        let mut queue = VecDeque::new();
        pieces.take(&mut queue);
        queue.into_iter().flatten().collect::<Vec<u8>>()
    };
    let left = Duration::from_millis(1500);
    let mut lines = Vec::new();
    for (name, request, replies) in samples() {
        let mut pieces = Pieces::default();
        let encode = |to: &mut Pieces| request.encode(left, to);
        pieces.push(request.kind(), 0x0102_0304, usize::MAX, encode).unwrap();
        let bytes = written(&mut pieces);
        lines.push(format!("{name} {}", hex(&bytes)));
        let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
        assert_eq!(frame.id, 0x0102_0304);
        assert_eq!(Request::decode(frame), Ok((request.clone(), left)), "{name}");
        for (name, reply) in replies {
            pieces.push(reply.kind(), 0x0102_0304, usize::MAX, |to| reply.encode(to)).unwrap();
            let bytes = written(&mut pieces);
            lines.push(format!("{name} {}", hex(&bytes)));
            let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
            assert_eq!(Reply::decode(frame, request.reply_kind()), Ok(reply), "{name}");
        }
    }
    let released: Vec<&str> = include_str!("../../../../fixtures/peer-frames-5.txt").lines().collect();
    assert_eq!(lines, released, "\n{}\n", lines.join("\n"));
}

/// Each message of version 2 means the same in version 3, and each of version 3 the same in version 4: a version only
/// adds.
#[test]
fn frames_of_versions_2_and_3_are_those_of_version_4() {
    let versions = [
        include_str!("../../../../fixtures/peer-frames-2.txt"),
        include_str!("../../../../fixtures/peer-frames-3.txt"),
        include_str!("../../../../fixtures/peer-frames-4.txt"),
    ];
    let more = |before: &str, after: &'static str| {
        let rest = after.strip_prefix(before).expect("what there was is as it was");
        rest.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>()
    };
    assert_eq!(more(versions[0], versions[1]), ["stretch", "stretched", "stretched-end"]);
    assert_eq!(more(versions[1], versions[2]), ["compare", "compared"]);
}

/// Version 5 changed the bytes of few messages. `ping` and `pong` carry the cluster id and each store's run. A replica
/// that holds something newer reports how far back it remembers.
#[test]
fn frames_of_version_5_change_what_they_must() {
    let (four, five) = (
        include_str!("../../../../fixtures/peer-frames-4.txt"),
        include_str!("../../../../fixtures/peer-frames-5.txt"),
    );
    let changed = four.lines().filter(|line| !five.lines().any(|other| other == *line));
    let changed: Vec<&str> = changed.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(changed, ["applied-superseded", "ping", "pong", "applied-many"]);
}

/// Goal: it is known which frames of version 1 mean something else now, and none does harm. The handshake refuses such
/// nodes, and its version must go up with this list. Method: the released frames, read as today's.
#[test]
fn frames_of_version_1_are_read_or_refused() {
    let released = include_str!("../../../../fixtures/peer-frames-1.txt");
    let refused: Vec<&str> = released
        .lines()
        .filter_map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
            let kind = frame.kind;
            let is_read =
                if kind < 0x80 { Request::decode(frame).is_ok() } else { Reply::decode(frame, kind).is_ok() };
            (!is_read).then_some(name)
        })
        .collect();
    let changed = [
        "applied-superseded",
        "apply-tombstone",
        "ping",
        "pong",
        "hints-taken",
        "fetch",
        "fetched-nothing",
        "fetched",
        "surveyed",
    ];
    assert_eq!(refused, changed);
}

/// Each message passes through the link and the server unchanged.
#[test]
fn each_message_gets_through() {
    run(async {
        let replies: VecDeque<Reply> = samples()
            .into_iter()
            .flat_map(|(_, _, replies)| replies.into_iter().map(|(_, reply)| reply))
            .collect();
        let replies = RefCell::new(replies);
        let peer =
            Peer::new(move |_| Box::pin(std::future::ready(replies.borrow_mut().pop_front().unwrap())));
        let link = connected(&peer).await;
        for (_, request, replies) in samples() {
            for (name, reply) in replies {
                let outcome = link.call(&request, SECOND).await;
                let expected = match reply {
                    Reply::Refused { code, detail } => Err(CallError::Refused { code, detail }),
                    reply => Ok(reply),
                };
                assert_eq!(outcome, expected, "{name}");
                assert_eq!(peer.seen.borrow().last(), Some(&request));
            }
        }
        assert_eq!((link.in_flight(), link.counts().calls_refused), (0, 3));
    });
}
