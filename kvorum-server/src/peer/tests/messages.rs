//! Every kind of message: the released bytes, any other bytes, and the way through a link.

use super::support::*;
use crate::peer::frame::{FrameReader, Pieces};
use crate::peer::table::Row;
use crate::peer::*;
use crate::replica::{Applied, Fetched, Floor};
use crate::slow::TraceContext;
use bytes::Bytes;
use kvorum_core::agreement::{Ballot, ConfigurationHash, Epoch, Instance, Voter};
use kvorum_core::configuration::Configuration;
use kvorum_core::{
    ClusterId, Conditional, Key, Lineage, NodeId, Placement, Record, Run, StoreSeen, Topology, UnixMillis,
    Value, Version,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::{NonZeroU64, NonZeroU128};
use std::time::Duration;

/// A request, and replies that answer it. Each has what follows its message's name in the name of its frame.
pub(super) type Sample = (&'static str, Request, Vec<(&'static str, Reply)>);

/// Requests and replies of every kind.
#[expect(clippy::too_many_lines, reason = "a table of all messages reads best in one piece")]
pub(super) fn samples() -> Vec<Sample> {
    let key = |text: &'static str| Key::new(text).unwrap();
    let version = Version::new(UnixMillis(0x0123_4567_89ab), 0xcdef, NodeId(0x1122_3344_5566_7788));
    let value = Value::Present(Bytes::from_static(b"hello"));
    let record =
        Record { version, from: 3, expires: Some(UnixMillis(0x0199_0000_0000)), value, conditional: None };
    let tombstone = Record { expires: None, value: Value::Tombstone, ..record.clone() };
    let dead = tombstone.clone();
    let header =
        Held::HeaderOnly { version, from: 3, expires: None, conditional: None, value_bytes: 1 << 20 };
    let seen =
        |node, store, number, nonce| StoreSeen { node: NodeId(node), store, run: Run { number, nonce } };
    let registry = vec![seen(1, 0xaa << 120, 7, 0xcc), seen(2, 0xbb, 0, 0)];
    let cluster_id = ClusterId::new(0xc1 << 64);
    let wall = UnixMillis(0x0188_1234_5678);
    let rows = vec![
        ScanRow { key: key("a"), held: Held::Whole(tombstone.clone()) },
        ScanRow { key: key("b"), held: header.clone() },
    ];
    let row = VersionRow { key: key("a"), version, from: 2, is_tombstone: true };
    let floor = Floor { agreed: 9, sealed: 8, purged: 7 };
    let stretched = |agreed, name, record| StretchRow { agreed: Timestamp(agreed), key: key(name), record };
    let lineage = Lineage { origin: version, base: Version::from_words(0x0a, 0x0b) };
    let conditional = Some(Box::new(Conditional { lineage, operation: NonZeroU128::new(9) }));
    let accepted = Record { conditional, ..tombstone.clone() };
    let promised =
        |held| BallotReply::Promised { held, has_held: true, has_built: false, memory_millis: 160 };
    let voter = Voter { node: NodeId(1), store: 0x51 << 64 };
    let turn = Ballot { round: 3, proposer: voter };
    let instance = Instance { epoch: Epoch(1), hash: ConfigurationHash(0xaa << 120) };
    let topology = Topology::of_urls(["http://a:1"]).unwrap();
    let configuration =
        Configuration::genesis(ClusterId::new(7).unwrap(), &topology, &Placement::initial(&topology));
    let refused = |code, detail: &str| Reply::Refused { code, detail: detail.to_owned() };
    vec![
        (
            "",
            Request::Apply { key: key("k"), record: record.clone(), kind: ApplyKind::Write },
            vec![
                ("stored", Reply::Applied(Applied::Stored)),
                ("superseded", Reply::Applied(Applied::Superseded { by: version, memory_millis: 160 })),
                ("too-late", Reply::Applied(Applied::TooLate { upto: version })),
                ("overloaded", refused(Refusal::Overloaded, "a queue is full")),
            ],
        ),
        (
            "tombstone",
            Request::Apply { key: key("k"), record: tombstone, kind: ApplyKind::ReadRepair },
            vec![
                ("starting", refused(Refusal::Starting, "")),
                ("not-voting-yet", refused(Refusal::NotVotingYet, "")),
            ],
        ),
        (
            "",
            Request::Get { key: key("k"), value_bytes_max: 65_536 },
            vec![
                ("nothing", Reply::Found(None)),
                ("", Reply::Found(Some(Held::Whole(record.clone())))),
                ("header", Reply::Found(Some(header))),
            ],
        ),
        ("", Request::Newest { key: key("k") }, vec![("", Reply::NewestIs(version))]),
        (
            "",
            Request::Prepare {
                key: key("k"),
                ballot: version,
                earlier: vec![version, Version::from_words(0x0a, 0x0b)],
                value_bytes_max: 4096,
            },
            vec![
                ("", Reply::Prepared(promised(Some(Held::Whole(accepted.clone()))))),
                ("nothing", Reply::Prepared(promised(None))),
                ("denied", Reply::Prepared(BallotReply::Denied { by: version })),
            ],
        ),
        (
            "ballot",
            Request::Apply { key: key("k"), record: accepted, kind: ApplyKind::Ballot },
            vec![("contested", Reply::Applied(Applied::Contested { by: version }))],
        ),
        ("", Request::Release { key: key("k"), ballot: version }, Vec::new()),
        (
            "",
            Request::Promise { key: key("k") },
            vec![("", Reply::PromiseIs(Some(version))), ("none", Reply::PromiseIs(None))],
        ),
        ("", Request::Fence { upto: Timestamp(9) }, vec![("", Reply::Fenced { met: Timestamp(8) })]),
        (
            "",
            Request::Ping { wall, cluster_id, registry: registry.clone() },
            vec![("", Reply::Pong { wall, cluster_id: None, registry, votes: true })],
        ),
        ("", Request::TakeHints, vec![("", Reply::HintsTaken { delivered: 7, left: 1, met: Timestamp(9) })]),
        (
            "",
            Request::ScanOpen {
                start: key("a"),
                end: Some(key("z")),
                bytes: 65_536,
                sources: vec![0, 2],
                from: 3,
            },
            vec![("", Reply::ScanPart { scan: 9, rows, is_last: false })],
        ),
        (
            "",
            Request::ScanNext { scan: 9, bytes: 65_536 },
            vec![("last", Reply::ScanPart { scan: 9, rows: Vec::new(), is_last: true })],
        ),
        ("", Request::ScanClose { scan: 9 }, vec![("", Reply::Done)]),
        (
            "",
            Request::Versions { partition: 4095, after: None, bytes: 65_536, floor },
            vec![("", Reply::VersionList { rows: vec![row], is_last: true, floor })],
        ),
        (
            "",
            Request::Fetch { keys: vec![key("k"), key("l")], bytes: 65_536 },
            vec![
                ("nothing", Reply::Fetched { agreed: Timestamp(0), records: vec![Fetched::Nothing] }),
                (
                    "",
                    Reply::Fetched {
                        agreed: Timestamp(9),
                        records: vec![Fetched::Record(record.clone()), Fetched::Damaged],
                    },
                ),
            ],
        ),
        (
            "",
            Request::Survey { agreed: vec![Timestamp(7), Timestamp(8)], held_by: Some((2, HeldBack::Away)) },
            vec![(
                "",
                Reply::Surveyed {
                    reading: Timestamp(9),
                    hinted: vec![(7, Timestamp(5))],
                    votes: true,
                    digests: vec![1, 2],
                },
            )],
        ),
        ("free", Request::Survey { agreed: Vec::new(), held_by: None }, Vec::new()),
        (
            "",
            Request::Close { round: 5, upto: Timestamp(9), by_scan: true, partitions: vec![1, 4095] },
            vec![("", Reply::DigestList(vec![3, 4]))],
        ),
        (
            "settle",
            Request::Step { kind: StepKind::Agree, round: 5, upto: Timestamp(9), partitions: vec![1] },
            vec![("", Reply::Stepped(true))],
        ),
        (
            "release",
            Request::Step { kind: StepKind::Release, round: 5, upto: Timestamp(9), partitions: vec![1] },
            vec![("not-done", Reply::Stepped(false))],
        ),
        ("", Request::Floors, vec![("", Reply::FloorList(vec![Timestamp(0), Timestamp(9)]))]),
        (
            "",
            Request::Stretch { partitions: vec![1, 4095], after: Some(key("a")), bytes: 65_536 },
            vec![
                (
                    "",
                    Reply::Stretched {
                        last: Some(key("k")),
                        is_large: false,
                        records: vec![stretched(9, "b", dead), stretched(8, "k", record)],
                    },
                ),
                ("end", Reply::Stretched { last: None, is_large: true, records: Vec::new() }),
            ],
        ),
        (
            "",
            Request::Compare { sums: vec![7, u64::MAX] },
            vec![("", Reply::Compared(vec![(1, 9), (4095, 0)]))],
        ),
        (
            "",
            Request::Configurations { adopted: instance, bytes: 65_536 },
            vec![(
                "",
                Reply::ConfigurationList {
                    adopted: instance,
                    level_max: 1,
                    compared: vec![NodeId(2), NodeId(5)],
                    configurations: vec![configuration.clone()],
                },
            )],
        ),
        (
            "",
            Request::Propose { instance, ballot: turn },
            vec![
                ("promised", Reply::Voted(BallotVote::Promised { voter, accepted: None })),
                (
                    "found",
                    Reply::Voted(BallotVote::Promised {
                        voter,
                        accepted: Some((turn, configuration.clone())),
                    }),
                ),
                ("not-named", Reply::Voted(BallotVote::NotNamed { voter })),
                ("other", Reply::Voted(BallotVote::OtherInstance { ours: instance })),
                ("outbid", Reply::Voted(BallotVote::Outbid { by: turn })),
            ],
        ),
        (
            "",
            Request::Accept { instance, ballot: turn, value: configuration.clone() },
            vec![
                ("accepted", Reply::Voted(BallotVote::Accepted { voter })),
                ("refused", Reply::Voted(BallotVote::Refused)),
            ],
        ),
        ("", Request::Force { instance, ballot: turn, accepts: true, value: configuration }, Vec::new()),
    ]
}

/// The name of a frame: its message's name in the table, and what it shows if the message has several frames.
fn name_of(rows: &[Row], kind: u8, shows: &str) -> String {
    let row = rows.iter().find(|row| row.kind == kind).unwrap();
    if shows.is_empty() { row.name.to_owned() } else { format!("{}-{shows}", row.name) }
}

/// The fixtures of all versions that are spoken.
const SPOKEN: [(u16, &str); 2] = [
    (7, include_str!("../../../../fixtures/peer-frames-7.txt")),
    (8, include_str!("../../../../fixtures/peer-frames-8.txt")),
];

/// The released frames of each version that is spoken, byte by byte. A change here breaks clusters of mixed releases.
#[test]
fn released_frames_still_read_and_write() {
    assert_eq!(SPOKEN.map(|(version, _)| version).to_vec(), (PROTOCOL_OLDEST..=PROTOCOL).collect::<Vec<_>>());
    for (version, released) in SPOKEN {
        let lines = frames_of(version);
        let released: Vec<&str> = released.lines().collect();
        assert_eq!(lines, released, "version {version}\n{}\n", lines.join("\n"));
    }
}

/// The name and the bytes of each frame of version `protocol`, after they were read again.
fn frames_of(protocol: u16) -> Vec<String> {
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let written = |pieces: &mut Pieces| {
        let mut queue = VecDeque::new();
        pieces.take(&mut queue);
        queue.into_iter().flatten().collect::<Vec<u8>>()
    };
    let left = Duration::from_millis(1500);
    let mut lines = Vec::new();
    for (shows, request, replies) in samples() {
        if Request::check_spoken(request.kind(), protocol).is_err() {
            continue;
        }
        let name = name_of(Request::ROWS, request.kind(), shows);
        let mut pieces = Pieces::default();
        let encode = |to: &mut Pieces| request.encode(left, to);
        pieces.push(request.kind(), 0x0102_0304, usize::MAX, encode).unwrap();
        let bytes = written(&mut pieces);
        lines.push(format!("{name} {}", hex(&bytes)));
        let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
        assert_eq!(frame.id, 0x0102_0304);
        assert_eq!(Request::decode(frame), Ok((request.clone(), left)), "{name}");
        for (shows, reply) in replies {
            let name = name_of(Reply::ROWS, reply.kind(), shows);
            pieces.push(reply.kind(), 0x0102_0304, usize::MAX, |to| reply.encode(to)).unwrap();
            let bytes = written(&mut pieces);
            lines.push(format!("{name} {}", hex(&bytes)));
            let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
            assert_eq!(Reply::decode(frame, request.reply_kind()), Ok(reply), "{name}");
        }
    }
    for note in notes().into_iter().filter(|note| Note::check_spoken(note.kind(), protocol).is_ok()) {
        let mut pieces = Pieces::default();
        pieces.push(note.kind(), 0x0102_0304, usize::MAX, |to| note.encode(to)).unwrap();
        let bytes = written(&mut pieces);
        lines.push(format!("{} {}", name_of(Note::ROWS, note.kind(), ""), hex(&bytes)));
        let frame = FrameReader::new(bytes.into()).next().unwrap().unwrap();
        assert_eq!(Note::decode(frame), Ok(note));
    }
    lines
}

/// Notes of every kind.
pub(super) fn notes() -> Vec<Note> {
    let context = TraceContext { trace: NonZeroU128::MIN, span: NonZeroU64::MAX };
    vec![Note::Trace(context), Note::Epoch(Epoch(258))]
}

/// Goal: no message is released without a frame that later releases are compared with. Method: for each row of the table
/// a frame with its name and kind in the latest fixture.
#[test]
fn every_message_has_a_frame() {
    let (_, fixture) = SPOKEN[SPOKEN.len() - 1];
    let named: BTreeSet<(&str, &str)> = fixture
        .lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            (name.split('-').next().unwrap(), &hex[16..18])
        })
        .collect();
    for row in [Request::ROWS, Reply::ROWS, Note::ROWS].concat() {
        let kind = format!("{:02x}", row.kind);
        assert!(named.contains(&(row.name, &kind)), "the latest fixture has no frame of {}", row.name);
        assert!((PROTOCOL_OLDEST..=PROTOCOL).contains(&row.since), "{}", row.name);
    }
}

/// The cells of the rows of a table in `docs/wire.md`.
fn documented(section: &str) -> Vec<Vec<&'static str>> {
    let text = include_str!("../../../../docs/wire.md");
    let (_, text) = text.split_once(&format!("\n## {section}\n")).unwrap();
    let lines =
        text.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    lines.map(|line| line.split('|').map(str::trim).collect()).collect()
}

/// The words in backticks.
fn quoted(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split('`').skip(1).step_by(2)
}

/// Goal: `docs/wire.md` has each message with its kind and its fields in the order of their bytes, each request with the
/// kind of its reply, and the layout of each type of a field; and no message that is gone. Method: its tables and the
/// table of the code, as text.
#[test]
fn the_document_has_every_message() {
    let answers: BTreeMap<u8, u8> =
        samples().iter().map(|(_, request, _)| (request.kind(), request.reply_kind())).collect();
    for (section, rows) in [("Requests", Request::ROWS), ("Replies", Reply::ROWS), ("Notes", Note::ROWS)] {
        let mut left: BTreeSet<String> = documented(section)
            .into_iter()
            .map(|cells| {
                let fields: Vec<&str> = quoted(cells[3]).filter(|words| words.contains(": ")).collect();
                format!("{} {} {} {}", cells[1], cells[2], fields.join(", "), cells[4])
            })
            .collect();
        for row in rows {
            let answer = answers.get(&row.kind).map(|kind| format!("`{kind:02x}`")).unwrap_or_default();
            let line = format!("`{:02x}` {} {} {answer}", row.kind, row.name, row.fields.join(", "));
            assert!(left.remove(&line), "docs/wire.md, {section}: no line for {line}; left: {left:#?}");
        }
        assert!(left.is_empty(), "docs/wire.md, {section}: not in the table: {left:#?}");
    }
    let layouts: BTreeSet<&str> = documented("Types")
        .into_iter()
        .flat_map(|cells| quoted(cells[1]))
        .map(|name| name.split('<').next().unwrap())
        .collect();
    for field in [Request::ROWS, Reply::ROWS, Note::ROWS].concat().iter().flat_map(|row| row.fields) {
        let (_, types) = field.split_once(": ").unwrap();
        for name in types.split(|letter: char| !letter.is_alphanumeric()).filter(|name| !name.is_empty()) {
            assert!(layouts.contains(name), "docs/wire.md, Types: no layout of {name}, in {field}");
        }
    }
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

/// Version 6 has the fields of each message in the order of its row, and a byte before each value that may be missing. The
/// requests `Digests` and `ApplyMany`, and the frames of their replies, are gone.
#[test]
fn frames_of_version_6_change_what_they_must() {
    let bytes_of = |fixture: &'static str| fixture.lines().filter_map(|line| line.split_once(' '));
    let six: BTreeSet<&str> =
        bytes_of(include_str!("../../../../fixtures/peer-frames-6.txt")).map(|(_, hex)| hex).collect();
    let five = bytes_of(include_str!("../../../../fixtures/peer-frames-5.txt"));
    let changed: Vec<&str> = five.filter(|(_, hex)| !six.contains(hex)).map(|(name, _)| name).collect();
    let expected = "apply applied-too-late apply-tombstone get ping pong scan-open scan-part scan-part-last digests \
        digest-list versions version-list fetch survey surveyed survey-free apply-many applied-many stretch \
        stretched stretched-end";
    assert_eq!(changed.join(" "), expected);
}

/// Version 7 only adds: ballots, their records and the fence.
#[test]
fn frames_of_version_7_are_those_of_version_6_and_more() {
    let (six, seven) = (
        include_str!("../../../../fixtures/peer-frames-6.txt"),
        include_str!("../../../../fixtures/peer-frames-7.txt"),
    );
    assert!(six.lines().all(|line| seven.lines().any(|other| other == line)));
    let more = seven.lines().filter(|line| !six.lines().any(|other| other == *line));
    let more: Vec<&str> = more.filter_map(|line| line.split(' ').next()).collect();
    let expected = "Prepare Prepared Prepared-nothing Prepared-denied Apply-ballot Applied-contested Release Fence Fenced";
    assert_eq!(more.join(" "), expected);
}

/// Version 8 only adds: the question for a promise, configurations and their ballots, and the note of a trace.
#[test]
fn frames_of_version_8_are_those_of_version_7_and_more() {
    let [(_, seven), (_, eight)] = SPOKEN;
    assert!(seven.lines().all(|line| eight.lines().any(|other| other == line)));
    let more = eight.lines().filter(|line| !seven.lines().any(|other| other == *line));
    let more: Vec<&str> = more.filter_map(|line| line.split(' ').next()).collect();
    let expected = "Promise PromiseIs PromiseIs-none Configurations ConfigurationList Propose Voted-promised Voted-found \
        Voted-not-named Voted-other Voted-outbid Accept Voted-accepted Voted-refused Force Trace Epoch";
    assert_eq!(more.join(" "), expected);
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
    let changed = "apply applied-superseded apply-tombstone ping pong hints-taken scan-open scan-part scan-part-last \
        digests versions version-list fetch fetched-nothing fetched survey surveyed survey-free";
    assert_eq!(refused.join(" "), changed);
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
