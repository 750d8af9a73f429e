//! A peer, a connector and a clock for tests.

use crate::clock::{Clock, Rng, TimestampBound};
use crate::peer::*;
use crate::slow::TraceContext;
use bytes::{Bytes, BytesMut};
use kvorum_core::{NodeId, Record, Run, UnixMillis, Value, Version};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

pub(super) const US: NodeId = NodeId(0xa);
pub(super) const PEER: NodeId = NodeId(0xb);

/// A clock over the runtime's virtual time.
pub(super) struct TestClock {
    pub(super) begun: Instant,
}

impl Clock for TestClock {
    fn wall(&self) -> UnixMillis {
        UnixMillis(1_700_000_000_000 + u64::try_from(self.mono().as_millis()).unwrap())
    }

    fn mono(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// A generator that always returns the greatest number: pauses are as long as they can be.
pub(super) struct LongestRng;

impl Rng for LongestRng {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0xff);
    }
}

/// The limits of a node whose clock is `clock`, wide enough that no test reaches them.
pub(super) fn limits(clock: Arc<dyn Clock>) -> Arc<PeerLimits> {
    limits_of(clock, 512 << 20)
}

/// The same with `memory_bytes` of memory for frames.
pub(super) fn limits_of(clock: Arc<dyn Clock>, memory_bytes: u64) -> Arc<PeerLimits> {
    let timestamps = Arc::new(TimestampBound::new(clock, Duration::from_mins(1)));
    Arc::new(PeerLimits::new(timestamps, 64 << 20, memory_bytes))
}

pub(super) fn hello(node: NodeId) -> Hello {
    let store = u128::from(node.0);
    Hello {
        protocol: PROTOCOL,
        protocols: Some(Protocols::SPOKEN),
        cluster: "blue".into(),
        cluster_id: None,
        node,
        topology: 1,
        store,
        run: Run { number: 1, nonce: 2 },
        members: Vec::new(),
        clock: UnixMillis(5),
        place: crate::peer::PlaceSettings::default(),
        remembers: None,
    }
}

/// The test's control over the link's end of a stream, and what it observed there.
#[derive(Default)]
pub(super) struct Tap {
    pub(super) writes: Cell<u64>,
    /// No bytes come, although all written bytes are accepted: a stopped process.
    pub(super) is_silent: Cell<bool>,
    /// The next byte that comes is changed.
    pub(super) corrupts: Cell<bool>,
    pub(super) waker: Cell<Option<Waker>>,
}

impl Tap {
    pub(super) fn silence(&self, is_silent: bool) {
        self.is_silent.set(is_silent);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

pub(super) struct Tapped {
    pub(super) stream: DuplexStream,
    pub(super) tap: Rc<Tap>,
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

/// The behaviour of the peer's address.
#[derive(Clone, Default)]
pub(super) enum Address {
    /// A node answers.
    #[default]
    Node,
    /// Nobody listens.
    Nobody,
    /// Connections are accepted and never answered.
    Mute,
    /// Every request is answered with this text.
    Text(String),
    /// A node answers, and accepts 1 KiB in 10 ms.
    Slow,
}

pub(super) type Work = Pin<Box<dyn Future<Output = Reply>>>;

/// The peer: its answers to requests, and a record of what it saw.
pub(super) struct Peer {
    pub(super) clock: Arc<TestClock>,
    pub(super) address: RefCell<Address>,
    pub(super) answer: RefCell<Box<dyn Fn(Request) -> Work>>,
    pub(super) stream_bytes: Cell<usize>,
    pub(super) is_stalled: Cell<bool>,
    pub(super) tap: Rc<Tap>,
    pub(super) seen: RefCell<Vec<Request>>,
    /// The versions that it speaks.
    pub(super) protocols: Cell<Protocols>,
    /// The traces that requests came with.
    pub(super) traces: RefCell<Vec<TraceContext>>,
    pub(super) connects: RefCell<Vec<Duration>>,
    pub(super) expired: Cell<usize>,
    pub(super) ended: RefCell<Vec<Caller>>,
    /// Serving tasks, to be aborted.
    pub(super) serving: RefCell<Vec<tokio::task::JoinHandle<()>>>,
}

impl Peer {
    /// A peer that answers every request by `answer`.
    pub(super) fn new(answer: impl Fn(Request) -> Work + 'static) -> Rc<Self> {
        Rc::new(Self {
            clock: Arc::new(TestClock { begun: Instant::now() }),
            address: RefCell::default(),
            answer: RefCell::new(Box::new(answer)),
            stream_bytes: Cell::new(64 << 10),
            is_stalled: Cell::new(false),
            tap: Rc::default(),
            seen: RefCell::default(),
            protocols: Cell::new(Protocols::SPOKEN),
            traces: RefCell::default(),
            connects: RefCell::default(),
            expired: Cell::new(0),
            ended: RefCell::default(),
            serving: RefCell::default(),
        })
    }

    /// A peer that answers `Close` after as many milliseconds as the round's number, everything else at once.
    pub(super) fn timed() -> Rc<Self> {
        Self::new(|request| {
            Box::pin(async move {
                let Request::Close { round, .. } = request else { return Reply::Done };
                if round > 0 {
                    sleep(Duration::from_millis(round)).await;
                }
                Reply::DigestList(vec![round])
            })
        })
    }

    pub(super) fn cut(&self) {
        self.serving.borrow_mut().drain(..).for_each(|task| task.abort());
    }

    pub(super) fn millis(&self) -> u128 {
        self.clock.mono().as_millis()
    }
}

/// The accepting side of the handshake, as `http` does it.
pub(super) async fn accept(peer: Rc<Peer>, mut stream: DuplexStream) {
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
    let ours = Hello { protocols: Some(peer.protocols.get()), ..hello(PEER) };
    let ours = ours.in_answer_to(&caller).unwrap();
    ours.check(&caller).unwrap();
    let answer = ours.headers().into_iter().fold(
        format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {UPGRADE_PROTOCOL}\r\n"),
        |answer, (name, value)| format!("{answer}{name}: {value}\r\n"),
    );
    stream.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
    let connection = peer.connects.borrow().len() as u64;
    let caller = Caller {
        peer: caller.node,
        connection,
        protocol: ours.protocol,
        epoch: kvorum_core::agreement::Epoch(0),
    };
    let clock = Arc::clone(&peer.clock);
    let service: Rc<dyn Service> = Rc::new(Answers { peer });
    let limits = limits(Arc::clone(&clock) as Arc<dyn Clock>);
    serve(stream, Bytes::new(), service, caller, clock, limits).await;
}

/// Carries bytes to the peer slowly, or not at all while it is stalled, and back at once.
pub(super) async fn relay(peer: Rc<Peer>, link: DuplexStream, middle: DuplexStream) {
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

pub(super) struct Answers {
    pub(super) peer: Rc<Peer>,
}

impl Service for Answers {
    fn serve(&self, caller: Caller, request: Request, _: Duration) -> Work {
        assert_eq!(caller.peer, US);
        self.peer.seen.borrow_mut().push(request.clone());
        self.peer.answer.borrow()(request)
    }

    fn serve_within(&self, caller: Caller, request: Request, until: Duration, trace: TraceContext) -> Work {
        self.peer.traces.borrow_mut().push(trace);
        self.serve(caller, request, until)
    }

    fn expired(&self, _: Caller) {
        self.peer.expired.set(self.peer.expired.get() + 1);
    }

    fn ended(&self, caller: Caller) {
        self.peer.ended.borrow_mut().push(caller);
    }
}

pub(super) struct ToPeer {
    pub(super) peer: Rc<Peer>,
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
pub(super) struct Witness {
    pub(super) ups: Cell<usize>,
    pub(super) downs: Cell<usize>,
}

impl LinkObserver for Witness {
    fn connected(&self, theirs: &Hello) {
        let versions = (PROTOCOL, Some(Protocols::SPOKEN));
        let theirs = Hello { protocol: versions.0, protocols: versions.1, ..theirs.clone() };
        assert_eq!(theirs, hello(PEER));
        self.ups.set(self.ups.get() + 1);
    }

    fn disconnected(&self, _reason: Option<&str>) {
        self.downs.set(self.downs.get() + 1);
    }

    fn failed(&self, _reason: &str, _setback: crate::peer::Setback) {}
}

pub(super) fn start(peer: &Rc<Peer>) -> (Rc<Link>, Rc<Witness>) {
    let witness = Rc::new(Witness::default());
    let link = Link::start(LinkParts {
        authority: "b:1".to_owned(),
        peer: PEER,
        connector: Rc::new(ToPeer { peer: Rc::clone(peer) }),
        hello: Box::new(|| hello(US)),
        epoch: Box::new(|| kvorum_core::agreement::Epoch(0)),
        clock: Arc::clone(&peer.clock) as Arc<dyn Clock>,
        limits: limits(Arc::clone(&peer.clock) as Arc<dyn Clock>),
        auth: Arc::default(),
        rng: Arc::new(LongestRng),
        observer: Rc::clone(&witness) as Rc<dyn LinkObserver>,
        supervisor: crate::supervise::Supervisor::default(),
    });
    (link, witness)
}

/// A link that is up.
pub(super) async fn connected(peer: &Rc<Peer>) -> Rc<Link> {
    let (link, _) = start(peer);
    run_ready_tasks().await;
    assert!(link.is_usable(), "{:?}", link.state());
    link
}

/// Runs all ready tasks without letting time pass.
pub(super) async fn run_ready_tasks() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub(super) async fn pass(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
    run_ready_tasks().await;
}

pub(super) fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

pub(super) fn after(millis: u16) -> Request {
    Request::Close { round: millis.into(), upto: Timestamp(0), by_scan: false, partitions: Vec::new() }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A record with a value of `value_bytes` bytes.
pub(super) fn record_of(value_bytes: usize) -> Record {
    let value = Value::Present(Bytes::from(vec![7; value_bytes]));
    Record { version: Version::ZERO, from: 1, expires: None, value, conditional: None }
}
