//! Both sides of a call, over streams in memory and virtual time.

use super::frame::{FrameReader, Pieces};
use super::message::{ApplyKind, Held, HeldBack, Refusal, Reply, Request, ScanRow, StepKind, VersionRow};
use super::*;
use crate::clock::{Clock, Rng};
use crate::replica::{Applied, Fetched, Floor};
use bytes::{Bytes, BytesMut};
use kvorum_core::{Key, NodeId, Record, UnixMillis, Value, Version};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

const US: NodeId = NodeId(0xa);
const PEER: NodeId = NodeId(0xb);

/// The runtime's virtual time.
struct TestClock {
    begun: Instant,
}

impl Clock for TestClock {
    fn wall(&self) -> UnixMillis {
        UnixMillis(1_700_000_000_000 + u64::try_from(self.mono().as_millis()).unwrap())
    }

    fn mono(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// Always the greatest number: pauses are as long as they can be.
struct LongestRng;

impl Rng for LongestRng {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0xff);
    }
}

fn hello(node: NodeId) -> Hello {
    let store = u128::from(node.0);
    Hello { protocol: PROTOCOL, cluster: "blue".into(), node, topology: 1, store, clock: UnixMillis(5) }
}

/// What the test does to the link's end of a stream, and sees of it.
#[derive(Default)]
struct Tap {
    writes: Cell<u64>,
    /// Nothing comes, although all that is written is taken: a stopped process.
    is_silent: Cell<bool>,
    /// The next byte that comes is changed.
    corrupts: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Tap {
    fn silence(&self, is_silent: bool) {
        self.is_silent.set(is_silent);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct Tapped {
    stream: DuplexStream,
    tap: Rc<Tap>,
}

impl AsyncRead for Tapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.tap.is_silent.get() {
            self.tap.waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.tap.corrupts.get() && buf.filled().len() > before {
            self.tap.corrupts.set(false);
            *buf.filled_mut().last_mut().unwrap() ^= 1;
        }
        poll
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.tap.writes.set(self.tap.writes.get() + 1);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How the peer's address behaves.
#[derive(Clone, Default)]
enum Address {
    /// A node answers.
    #[default]
    Node,
    /// Nobody listens.
    Nobody,
    /// Connections are taken and nothing is ever said.
    Mute,
    /// This text answers every request.
    Text(String),
    /// A node answers, and takes 1 KiB in 10 ms.
    Slow,
}

type Work = Pin<Box<dyn Future<Output = Reply>>>;

/// The peer: what it does on a request, and what it saw.
struct Peer {
    clock: Arc<TestClock>,
    address: RefCell<Address>,
    answer: RefCell<Box<dyn Fn(Request) -> Work>>,
    stream_bytes: Cell<usize>,
    is_stalled: Cell<bool>,
    tap: Rc<Tap>,
    seen: RefCell<Vec<Request>>,
    connects: RefCell<Vec<Duration>>,
    expired: Cell<usize>,
    ended: RefCell<Vec<Caller>>,
    /// Serving tasks, to be cut off.
    serving: RefCell<Vec<tokio::task::JoinHandle<()>>>,
}

impl Peer {
    /// A peer that answers every request by `answer`.
    fn new(answer: impl Fn(Request) -> Work + 'static) -> Rc<Self> {
        Rc::new(Self {
            clock: Arc::new(TestClock { begun: Instant::now() }),
            address: RefCell::default(),
            answer: RefCell::new(Box::new(answer)),
            stream_bytes: Cell::new(64 << 10),
            is_stalled: Cell::new(false),
            tap: Rc::default(),
            seen: RefCell::default(),
            connects: RefCell::default(),
            expired: Cell::new(0),
            ended: RefCell::default(),
            serving: RefCell::default(),
        })
    }

    /// A peer that answers `Digests` after as many milliseconds as the first partition says, all else at once.
    fn timed() -> Rc<Self> {
        Self::new(|request| {
            Box::pin(async move {
                let Request::Digests { first_partition, .. } = request else { return Reply::Done };
                if first_partition > 0 {
                    sleep(Duration::from_millis(u64::from(first_partition))).await;
                }
                Reply::DigestList(vec![u64::from(first_partition)])
            })
        })
    }

    fn cut(&self) {
        self.serving.borrow_mut().drain(..).for_each(|task| task.abort());
    }

    fn millis(&self) -> u128 {
        self.clock.mono().as_millis()
    }
}

/// The accepting side of the handshake, as `http` does it.
async fn accept(peer: Rc<Peer>, mut stream: DuplexStream) {
    let mut head = BytesMut::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut request = httparse::Request::new(&mut headers);
    assert!(request.parse(&head).unwrap().is_complete());
    assert_eq!((request.method, request.path), (Some("GET"), Some(UPGRADE_PATH)));
    let header = |name: &str| {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| std::str::from_utf8(header.value).unwrap())
    };
    assert_eq!((header("Connection"), header("Upgrade")), (Some("Upgrade"), Some(UPGRADE_PROTOCOL)));
    let caller = Hello::parse(header).unwrap();
    let ours = hello(PEER);
    ours.check(&caller).unwrap();
    let answer = ours.headers().into_iter().fold(
        format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {UPGRADE_PROTOCOL}\r\n"),
        |answer, (name, value)| format!("{answer}{name}: {value}\r\n"),
    );
    stream.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
    let connection = peer.connects.borrow().len() as u64;
    let caller = Caller { peer: caller.node, connection };
    let clock = Arc::clone(&peer.clock);
    let service: Rc<dyn Service> = Rc::new(Answers { peer });
    serve(stream, Bytes::new(), service, caller, clock).await;
}

/// Carries bytes to the peer slowly, or not at all while it is stalled, and back at once.
async fn relay(peer: Rc<Peer>, link: DuplexStream, middle: DuplexStream) {
    let (mut from_link, mut to_link) = tokio::io::split(link);
    let (mut from_peer, mut to_peer) = tokio::io::split(middle);
    let there = async {
        let mut part = [0; 1024];
        while let Ok(bytes @ 1..) = from_link.read(&mut part).await {
            to_peer.write_all(&part[..bytes]).await.unwrap();
            sleep(Duration::from_millis(10)).await;
            while peer.is_stalled.get() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::select! {
        () = there => {}
        _ = tokio::io::copy(&mut from_peer, &mut to_link) => {}
    }
}

struct Answers {
    peer: Rc<Peer>,
}

impl Service for Answers {
    fn serve(&self, caller: Caller, request: Request, _: Duration) -> Work {
        assert_eq!(caller.peer, US);
        self.peer.seen.borrow_mut().push(request.clone());
        self.peer.answer.borrow()(request)
    }

    fn expired(&self, _: Caller) {
        self.peer.expired.set(self.peer.expired.get() + 1);
    }

    fn ended(&self, caller: Caller) {
        self.peer.ended.borrow_mut().push(caller);
    }
}

struct ToPeer {
    peer: Rc<Peer>,
}

impl Connector for ToPeer {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        assert_eq!(authority, "b:1");
        let peer = Rc::clone(&self.peer);
        Box::pin(async move {
            peer.connects.borrow_mut().push(peer.clock.mono());
            let (ours, mut theirs) = duplex(peer.stream_bytes.get());
            let address = peer.address.borrow().clone();
            let task = match address {
                Address::Nobody => return Err(io::ErrorKind::ConnectionRefused.into()),
                Address::Node => spawn_local(accept(Rc::clone(&peer), theirs)),
                Address::Slow => {
                    let (middle, far) = duplex(peer.stream_bytes.get());
                    spawn_local(relay(Rc::clone(&peer), theirs, middle));
                    spawn_local(accept(Rc::clone(&peer), far))
                }
                Address::Mute => spawn_local(async move {
                    let mut ignored = Vec::new();
                    let _ = theirs.read_to_end(&mut ignored).await;
                }),
                Address::Text(text) => spawn_local(async move {
                    let _ = theirs.read(&mut [0; 1024]).await;
                    let _ = theirs.write_all(text.as_bytes()).await;
                    std::future::pending::<()>().await;
                }),
            };
            peer.serving.borrow_mut().push(task);
            Ok(Box::new(Tapped { stream: ours, tap: Rc::clone(&peer.tap) }) as BoxedStream)
        })
    }
}

#[derive(Default)]
struct Witness {
    ups: Cell<usize>,
    downs: Cell<usize>,
}

impl LinkObserver for Witness {
    fn connected(&self, theirs: &Hello) {
        assert_eq!(*theirs, hello(PEER));
        self.ups.set(self.ups.get() + 1);
    }

    fn disconnected(&self) {
        self.downs.set(self.downs.get() + 1);
    }
}

fn start(peer: &Rc<Peer>) -> (Rc<Link>, Rc<Witness>) {
    let witness = Rc::new(Witness::default());
    let link = Link::start(LinkParts {
        authority: "b:1".to_owned(),
        peer: PEER,
        connector: Rc::new(ToPeer { peer: Rc::clone(peer) }),
        hello: Box::new(|| hello(US)),
        clock: Arc::clone(&peer.clock) as Arc<dyn Clock>,
        rng: Arc::new(LongestRng),
        observer: Rc::clone(&witness) as Rc<dyn LinkObserver>,
    });
    (link, witness)
}

/// A link that is up.
async fn connected(peer: &Rc<Peer>) -> Rc<Link> {
    let (link, _) = start(peer);
    settle().await;
    assert!(link.is_usable(), "{:?}", link.state());
    link
}

/// Lets all that is ready run, without letting time pass.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn pass(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
    settle().await;
}

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn after(millis: u16) -> Request {
    Request::Digests { first_partition: millis, count: 1 }
}

const SECOND: Duration = Duration::from_secs(1);

/// The name of a frame, its request, and the named replies that answer it.
type Sample = (&'static str, Request, Vec<(&'static str, Reply)>);

/// Requests and replies of every kind.
#[expect(clippy::too_many_lines, reason = "a table of all messages reads best in one piece")]
fn samples() -> Vec<Sample> {
    let key = |text: &'static str| Key::new(text).unwrap();
    let version = Version::new(UnixMillis(0x0123_4567_89ab), 0xcdef, NodeId(0x1122_3344_5566_7788));
    let value = Value::Present(Bytes::from_static(b"hello"));
    let record = Record { version, from: 3, expires: Some(UnixMillis(0x0199_0000_0000)), value };
    let tombstone = Record { expires: None, value: Value::Tombstone, ..record.clone() };
    let dead = tombstone.clone();
    let header = Held::HeaderOnly { version, from: 3, expires: None, value_bytes: 1 << 20 };
    let roster = vec![(NodeId(1), 0xaa << 120), (NodeId(2), 0xbb)];
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
                ("applied-superseded", Reply::Applied(Applied::Superseded { by: version })),
                ("refused-overloaded", refused(Refusal::Overloaded, "a queue is full")),
            ],
        ),
        (
            "apply-tombstone",
            Request::Apply { key: key("k"), record: tombstone, kind: ApplyKind::ReadRepair },
            vec![("refused-starting", refused(Refusal::Starting, ""))],
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
        (
            "ping",
            Request::Ping { wall, roster: roster.clone() },
            vec![("pong", Reply::Pong { wall, roster, votes: true })],
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
            Request::ApplyMany { settled: 9, records: vec![(key("a"), dead), (key("k"), record)] },
            vec![(
                "applied-many",
                Reply::AppliedMany(vec![
                    Some(Applied::Stored),
                    Some(Applied::Superseded { by: version }),
                    None,
                ]),
            )],
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
    let released: Vec<&str> = include_str!("../../../fixtures/peer-frames-2.txt").lines().collect();
    assert_eq!(lines, released, "\n{}\n", lines.join("\n"));
}

/// Each message gets through the link and the server as it is.
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
        assert_eq!((link.in_flight(), link.counts().calls_refused), (0, 2));
    });
}

/// Calls made in one go share writes, and so do their replies.
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

/// Replies find their calls in whatever order they come.
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

/// A call fails at its deadline; its late reply harms nobody.
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

/// A reply that nobody waits for any more is received and forgotten.
#[test]
fn dropped_calls_are_forgotten() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        drop(link.call(&after(20), SECOND));
        settle().await;
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
        settle().await;
        let call = link.call(&after(500), SECOND);
        settle().await;
        peer.cut();
        assert_eq!(call.await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("peer ended")));
        let not_sent = CallError::NotSent { reason: Unsent::Down };
        assert_eq!(link.call(&after(0), SECOND).await, Err(not_sent));
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 1));
        pass(60).await;
        assert_eq!(link.call(&after(0), SECOND).await, Ok(Reply::DigestList(vec![0])));
        assert_eq!((witness.ups.get(), witness.downs.get()), (2, 1));
        assert_eq!(peer.ended.borrow()[..], [Caller { peer: US, connection: 1 }]);
    });
}

/// Attempts become rarer up to a bound and never end; a sign of life brings one at once.
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
        settle().await;
        assert!(link.is_usable());
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 0));
    });
}

/// A sign of life during an attempt makes the pause behind it short.
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

/// A peer that refuses, or is not what was meant, is named with its own words, made harmless.
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

/// A peer that is silent while calls wait is suspected, and trusted again at its first byte.
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

/// A stopped peer is found out, although its system takes bytes and connections, and found again when it goes on.
#[test]
fn stopped_peers_are_given_up() {
    run(async {
        let peer = Peer::timed();
        let (link, witness) = start(&peer);
        settle().await;
        peer.tap.silence(true);
        peer.address.replace(Address::Mute);
        let long = link.call(&after(1), Duration::from_mins(1));
        let short = link.call(&Request::Ping { wall: UnixMillis(0), roster: Vec::new() }, SECOND);
        assert_eq!(short.await, Err(CallError::TimedOut));
        assert_eq!(long.await, Err(CallError::Lost));
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("silent")));
        pass(5000).await;
        assert!(matches!(link.state(), LinkState::Down { reason, .. } if reason.contains("within 1000 ms")));
        assert_eq!((witness.ups.get(), witness.downs.get()), (1, 1));
        peer.tap.silence(false);
        peer.address.replace(Address::Node);
        pass(3000).await;
        assert!(link.is_usable());
    });
}

/// Work that takes its time makes nobody suspect before its deadline.
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

/// One wrong byte ends the connection; nothing behind it is believed.
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

/// A server ends the connection of a caller that sends what is no request.
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
            let caller = Caller { peer: US, connection: 7 };
            // The last frame that was read before the upgrade was handed over is served like any other.
            let good = Bytes::from(frame(4, &[0, 0, 0, 9]));
            let serving = serve(theirs, good, service, caller, Arc::clone(&peer.clock) as Arc<dyn Clock>);
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

/// A reply that answers another question ends the connection.
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
            let record = Record { version: Version::ZERO, from: 1, expires: None, value };
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
        // Those given up by the caller still occupy the server.
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

/// Work whose deadline passed before it was begun is dropped.
#[test]
fn late_work_is_not_begun() {
    run(async {
        let peer = Peer::timed();
        let link = connected(&peer).await;
        assert_eq!(link.call(&after(0), Duration::ZERO).await, Err(CallError::TimedOut));
        assert_eq!((peer.expired.get(), peer.seen.borrow().len()), (1, 0));
    });
}

/// A value of 8 MiB goes both ways, beside small calls, and is not taken for silence.
#[test]
fn large_values_get_through() {
    run(async {
        let value: Bytes = (0..8 << 20).map(|at: u32| at.to_le_bytes()[at as usize % 3]).collect();
        let record = Record { version: Version::ZERO, from: 1, expires: None, value: Value::Present(value) };
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

/// A peer that slowly takes a long message is not silent, unless it stops.
#[test]
fn slow_transfers_are_not_silence() {
    run(async {
        let peer = Peer::new(|_| Box::pin(async { Reply::Applied(Applied::Stored) }));
        peer.address.replace(Address::Slow);
        peer.stream_bytes.set(1024);
        let (link, witness) = start(&peer);
        pass(200).await;
        let value = Value::Present(Bytes::from(vec![0; 100 << 10]));
        let record = Record { version: Version::ZERO, from: 1, expires: None, value };
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
        // Four times its usual second are cut to the bound.
        pass(1000).await;
        assert_eq!(witness.downs.get(), 1);
    });
}

/// A caller that does not take its replies is not read from, and given up in the end.
#[test]
fn replies_that_nobody_takes_are_bounded() {
    run(async {
        let value = Value::Present(Bytes::from(vec![0; 8 << 20]));
        let record = Record { version: Version::ZERO, from: 1, expires: None, value };
        let held = Held::Whole(record);
        let peer = Peer::new(move |_| Box::pin(std::future::ready(Reply::Found(Some(held.clone())))));
        let link = connected(&peer).await;
        peer.tap.silence(true);
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: u32::MAX };
        for _ in 0..50 {
            drop(link.call(&get, Duration::from_hours(1)));
        }
        pass(1000).await;
        // What the stream takes at first makes room for one more.
        assert_eq!(peer.seen.borrow().len(), OUT_BYTES_MAX / (8 << 20) + 1);
        assert!(peer.ended.borrow().is_empty());
        pass(60_000).await;
        assert_eq!(peer.ended.borrow().len(), 1);
    });
}

/// Requests that waited for room among the replies are answered once there is some, though nothing more comes.
#[test]
fn waiting_requests_are_not_forgotten() {
    run(async {
        let held = Held::Whole(samples_record(8 << 20));
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
        settle().await;
        let call = link.call(&after(500), SECOND);
        drop(link);
        assert_eq!(call.await, Err(CallError::Lost));
        settle().await;
        assert_eq!((witness.ups.get(), witness.downs.get(), peer.ended.borrow().len()), (1, 1, 1));
        pass(10_000).await;
        assert_eq!(peer.connects.borrow().len(), 1);
    });
}

/// Latencies are told apart by what is waited for.
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

/// Prints what a call costs over a loopback socket, as CPU time of either side. Not a judgement: run it with
/// `cargo test --release -p kvorum --lib peer::tests::cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_call() {
    let (address, addresses) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let real = |test: Pin<Box<dyn Future<Output = ()>>>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    };
    let get = Request::Get { key: Key::new("k".repeat(20)).unwrap(), value_bytes_max: u32::MAX };
    let server = move || {
        real(Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "the measurement brings its own socket")]
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            let record = samples_record(100);
            let peer = Peer::new(move |request| {
                let held = Held::Whole(record.clone());
                Box::pin(async move {
                    if let Request::Versions { .. } = request {
                        tokio::task::yield_now().await;
                        return Reply::VersionList {
                            rows: Vec::new(),
                            is_last: true,
                            floor: Floor::default(),
                        };
                    }
                    Reply::Found(Some(held))
                })
            });
            let serving = async {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut head = BytesMut::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        stream.read_buf(&mut head).await.unwrap();
                    }
                    let headers =
                        hello(PEER).headers().into_iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                    let headers: String = headers.collect();
                    let answer = format!("HTTP/1.1 101 Fine\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n{headers}\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    let service = Rc::new(Bare { peer: Rc::clone(&peer) });
                    let caller = Caller { peer: US, connection: 1 };
                    let clock = Arc::new(crate::clock::SystemClock::new());
                    spawn_local(serve(stream, Bytes::new(), service, caller, clock));
                }
            };
            tokio::select! {
                () = serving => {}
                _ = stopped => {}
            }
        }));
    };
    #[expect(clippy::disallowed_methods, reason = "the measurement has a thread for each side")]
    let server = std::thread::Builder::new().name("cost-server".to_owned()).spawn(server).unwrap();
    let address = addresses.recv().unwrap();
    real(Box::pin(async move {
        let link = Link::start(LinkParts {
            authority: address.to_string(),
            peer: PEER,
            connector: Rc::new(Tcp),
            hello: Box::new(|| hello(US)),
            clock: Arc::new(crate::clock::SystemClock::new()),
            rng: Arc::new(LongestRng),
            observer: Rc::new(Witness::default()),
        });
        while !link.is_usable() {
            sleep(Duration::from_millis(1)).await;
        }
        let waits = Request::Versions { partition: 0, after: None, bytes: 0, floor: Floor::default() };
        for (name, request) in [("answered at once", &get), ("answered by a task", &waits)] {
            for callers in [64, 8, 1] {
                let calls = 1_000_000 * callers / (callers + 8);
                let before = (cpu_nanos("self"), cpu_nanos("cost-server"));
                let tasks: Vec<_> = (0..callers)
                    .map(|_| {
                        let (link, request) = (Rc::clone(&link), request.clone());
                        spawn_local(async move {
                            for _ in 0..calls / callers {
                                link.call(&request, SECOND).await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                let each = |before: u64, after: u64| (after - before) / u64::try_from(calls).unwrap();
                let (client, server) =
                    (each(before.0, cpu_nanos("self")), each(before.1, cpu_nanos("cost-server")));
                println!("{name}, {callers} callers: {client} ns calling, {server} ns serving");
            }
        }
    }));
    stop.send(()).unwrap();
    server.join().unwrap();
}

fn samples_record(value_bytes: usize) -> Record {
    let value = Value::Present(Bytes::from(vec![7; value_bytes]));
    Record { version: Version::ZERO, from: 1, expires: None, value }
}

/// Answers without taking notes.
struct Bare {
    peer: Rc<Peer>,
}

impl Service for Bare {
    fn serve(&self, _: Caller, request: Request, _: Duration) -> Work {
        self.peer.answer.borrow()(request)
    }

    fn ended(&self, _: Caller) {}
}

struct Tcp;

impl Connector for Tcp {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "the measurement brings its own socket")]
            let stream = tokio::net::TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

/// CPU time of this thread or of the one with `name`, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "the measurement reads the system's accounts")]
fn cpu_nanos(name: &str) -> u64 {
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    if name == "self" {
        return of("/proc/thread-self".into());
    }
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let is_named =
        |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap().trim() == name;
    of(threads.into_iter().find(is_named).unwrap())
}
