//! One connection's state, the watchdog over all of a thread's connections, and the guarded stream.
//!
//! Every wait on a connection is bounded: for the rest of a head, for the next bytes of a body, for the next
//! request, for the client to take the answer. Instead of a timer per wait, each connection notes by when something
//! must happen, and a watchdog per thread looks twice a second. That costs a request nothing, and it covers hyper's
//! own header time-out, which is therefore off (hyper's runs while a connection idles, too).

use super::head::{HeadScanner, HeadVerdict};
use crate::clock::Clock;
use crate::metrics::ThreadMetrics;
use crate::peer::Hello;
use bytes::{Buf, Bytes};
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How often the watchdog looks: a bound is kept to this much.
pub const WATCHDOG_TICK: Duration = Duration::from_millis(500);

/// The slowest that a body may come on average, in bytes per second: slower clients could hold what is reserved for
/// their values for hours.
pub const BODY_RATE_MIN: u64 = 16 << 10;

/// The slowest that an answer may be taken on average, in bytes per second of the time in which the client could take
/// more: slower ones could hold large values in memory for hours.
pub const ANSWER_RATE_MIN: u64 = 16 << 10;

/// How long a connection on a spare place may say nothing.
pub const SPARE_WAIT: Duration = Duration::from_secs(1);

/// How a client takes an answer.
#[derive(Debug, Clone, Copy, Default)]
struct Taking {
    bytes: u64,
    /// Ticks for which it took nothing although there was something.
    blocked: u64,
    /// Since when it takes nothing.
    blocked_since: Option<u64>,
}

/// These are the bounds of the waits on a connection.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// From a head's first byte to its last.
    pub head: Duration,
    /// Between two arrivals of a body's bytes.
    pub body: Duration,
    /// Between requests.
    pub idle: Duration,
    /// For the client to take bytes of an answer.
    pub write: Duration,
}

/// This is what the parts of one connection share.
pub struct Connection {
    thread: Rc<Watchdog>,
    /// Whether its client is on this node's machine.
    is_local: bool,
    /// Whether its place is one of those kept for peers, `/v0/status` and `/metrics`.
    is_spare: bool,
    scanner: RefCell<HeadScanner>,
    /// Requests handed to the handler whose answers have not begun.
    in_flight: Cell<u32>,
    /// When something must have happened, in ticks; `u64::MAX` for no bound.
    due: Cell<u64>,
    head_begun: Cell<bool>,
    /// The tick at which the body began, and the bytes that have come of it.
    body: Cell<Option<(u64, u64)>>,
    /// How the client takes the answers.
    taking: Cell<Taking>,
    has_asked: Cell<bool>,
    timed_out: Cell<bool>,
    lingers: Cell<bool>,
    upgraded: RefCell<Option<Hello>>,
    waker: RefCell<Option<Waker>>,
}

/// This looks after a thread's connections.
pub struct Watchdog {
    waits: Waits,
    clock: Arc<dyn Clock>,
    now: Cell<u64>,
    draining: Cell<bool>,
    metrics: Arc<ThreadMetrics>,
    connections: RefCell<Vec<Weak<Connection>>>,
}

impl Watchdog {
    /// A watchdog over no connections.
    pub fn new(waits: Waits, clock: Arc<dyn Clock>, metrics: Arc<ThreadMetrics>) -> Rc<Self> {
        let connections = RefCell::new(Vec::new());
        Rc::new(Self { waits, clock, now: Cell::new(0), draining: Cell::new(false), metrics, connections })
    }

    /// A new connection, watched until it is dropped. `is_local`: its client is on this node's machine.
    pub fn connect(self: &Rc<Self>, is_local: bool, is_spare: bool) -> Rc<Connection> {
        let connection = Rc::new(Connection {
            thread: Rc::clone(self),
            is_local,
            is_spare,
            scanner: RefCell::default(),
            in_flight: Cell::new(0),
            due: Cell::new(u64::MAX),
            head_begun: Cell::new(false),
            body: Cell::new(None),
            taking: Cell::default(),
            has_asked: Cell::new(false),
            timed_out: Cell::new(false),
            lingers: Cell::new(false),
            upgraded: RefCell::new(None),
            waker: RefCell::new(None),
        });
        // A connection that says nothing at all is as slow as one with half a head. On a spare place others wait.
        connection.expect_within(if is_spare { self.waits.head.min(SPARE_WAIT) } else { self.waits.head });
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        connection
    }

    /// Looks every [`WATCHDOG_TICK`], forever.
    ///
    /// # Cancel safety
    /// Dropping the future ends the watch.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(WATCHDOG_TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    fn look(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        self.connections.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            if connection.due.get() <= now && !connection.timed_out.replace(true) {
                self.metrics.connections_timed_out.fetch_add(1, Ordering::Relaxed);
                connection.wake();
            }
            true
        });
    }

    /// Tells every connection to end after the requests it has.
    pub fn drain(&self) {
        self.draining.set(true);
        for connection in self.connections.borrow().iter().filter_map(Weak::upgrade) {
            // Whoever has sent nothing so far is not waited for.
            if connection.in_flight.get() == 0 && connection.scanner.borrow().is_between_requests() {
                connection.expect_within(WATCHDOG_TICK);
            }
            connection.wake();
        }
    }

    /// Whether connections are to end.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Connections that are open now.
    pub fn connection_count(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }
}

impl Connection {
    /// Whether some wait took longer than its bound: the connection is to be cut.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// Whether its client is on this node's machine, and so may see and change the node itself.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Whether it is there for peers, the status and the metrics only.
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// Whether the connection is to end after the requests it has.
    pub fn is_draining(&self) -> bool {
        self.thread.is_draining()
    }

    /// Remembers whom to wake when one of the two above changes.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Begins a request: takes the verdict on its head.
    pub fn begin_request(&self) -> Option<HeadVerdict> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.scanner.borrow_mut().take()
    }

    /// Whether its client has sent anything.
    pub fn has_asked(&self) -> bool {
        self.has_asked.get()
    }

    /// Whether the bytes of the connection cannot be followed any more.
    pub fn is_lost(&self) -> bool {
        self.scanner.borrow().is_lost()
    }

    /// Ends a request: its answer goes out now.
    pub fn end_request(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        // Counted for each answer: one that was taken quickly earns nothing for the next.
        self.taking.set(Taking::default());
    }

    /// Notes that the answer ends the connection although the client may still be sending.
    pub fn linger(&self) {
        self.lingers.set(true);
    }

    /// Notes that with this answer the connection becomes a peer's.
    pub fn upgrade(&self, theirs: Hello) {
        *self.upgraded.borrow_mut() = Some(theirs);
    }

    /// Whose connection this has become, if it has.
    pub fn upgraded(&self) -> Option<Hello> {
        self.upgraded.borrow_mut().take()
    }

    /// Whether bytes of the client may lie unread, so that closing at once could cost it the answer.
    pub fn is_to_linger(&self) -> bool {
        !self.timed_out.get() && (self.lingers.get() || self.scanner.borrow().is_in_body())
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn expect_within(&self, wait: Duration) {
        self.due.set(self.thread.now.get().saturating_add(ticks_of(wait)));
    }

    /// Notes what the bytes that have just come leave to be waited for. hyper has not seen them yet.
    fn received(&self, bytes: &mut [u8]) {
        self.thread.metrics.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.has_asked.set(true);
        let mut scanner = self.scanner.borrow_mut();
        scanner.feed(bytes);
        if scanner.is_in_body() {
            self.head_begun.set(false);
            self.expect_body(bytes.len() as u64);
        } else if scanner.is_in_head() {
            // Counted from the first byte on, however slowly the others drip.
            self.body.set(None);
            if !self.head_begun.replace(true) {
                self.expect_within(self.thread.waits.head);
            }
        } else {
            // A whole request is in: now it is this node that is waited for, within deadlines of its own.
            self.head_begun.set(false);
            self.body.set(None);
            self.due.set(u64::MAX);
        }
    }

    /// Expects more of a body: within the wait from now, and no later than its least rate allows since it began.
    fn expect_body(&self, came: u64) {
        let now = self.thread.now.get();
        let (begun, before) = self.body.get().unwrap_or((now, 0));
        let bytes = before.saturating_add(came);
        self.body.set(Some((begun, bytes)));
        let wait = ticks_of(self.thread.waits.body);
        let earned = ticks_of(Duration::from_secs(bytes / BODY_RATE_MIN));
        self.due.set((now + wait).min(begun + wait + earned));
    }

    /// Expects the client to take more of an answer: within the wait from now, and soon enough that it has kept the answer
    /// waiting no longer in all than the least rate allows.
    fn expect_taking(&self) {
        let (now, wait) = (self.thread.now.get(), ticks_of(self.thread.waits.write));
        let mut taking = self.taking.get();
        let since = *taking.blocked_since.get_or_insert(now);
        self.taking.set(taking);
        let earned = ticks_of(Duration::from_secs(taking.bytes / ANSWER_RATE_MIN));
        self.due.set((now + wait).min((since + wait + earned).saturating_sub(taking.blocked)));
    }

    fn sent(&self, bytes: usize) {
        self.thread.metrics.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut taking = self.taking.get();
        taking.bytes = taking.bytes.saturating_add(bytes as u64);
        if let Some(since) = taking.blocked_since.take() {
            taking.blocked += self.thread.now.get().saturating_sub(since);
        }
        self.taking.set(taking);
        if !self.head_begun.get() && !self.scanner.borrow().is_in_body() {
            self.expect_within(self.thread.waits.idle);
        }
    }
}

/// Ticks until `wait` has surely passed: one more than it lasts, because the current tick has begun already.
fn ticks_of(wait: Duration) -> u64 {
    let ticks = wait.as_millis().div_ceil(WATCHDOG_TICK.as_millis());
    u64::try_from(ticks).unwrap_or(u64::MAX >> 2).min(u64::MAX >> 2) + 1
}

/// This is where a connection's stream goes when hyper is done with it.
pub type Returned<S> = Rc<RefCell<Option<S>>>;

/// This is a connection's stream, watched. Dropped, it hands the stream back.
pub struct Guarded<S> {
    stream: Option<S>,
    returned: Returned<S>,
    connection: Rc<Connection>,
    /// What is left to write of an answer of ours in place of one that hyper gave without a body.
    substitute: Option<Bytes>,
}

impl<S> Guarded<S> {
    /// Guards `stream`; `returned` gets it back in the end.
    pub fn new(stream: S, returned: Returned<S>, connection: Rc<Connection>) -> Self {
        Self { stream: Some(stream), returned, connection, substitute: None }
    }
}

impl<S: Unpin> Guarded<S> {
    /// The stream, which is there until this is dropped.
    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S> Drop for Guarded<S> {
    fn drop(&mut self) {
        *self.returned.borrow_mut() = self.stream.take();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = self.stream()?.poll_read(cx, buf);
        if let Some(bytes) = buf.filled_mut().get_mut(before..)
            && !bytes.is_empty()
        {
            self.connection.received(bytes);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    /// Writes the rest of a substitute answer.
    fn poll_substitute(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(mut rest) = self.substitute.take().filter(|rest| !rest.is_empty()) {
            let written = self.stream()?.poll_write(cx, &rest);
            if let Poll::Ready(Ok(bytes @ 1..)) = written {
                rest.advance(bytes);
                self.substitute = Some(rest);
                continue;
            }
            self.substitute = Some(rest);
            return match written {
                Poll::Ready(Ok(_)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.substitute.is_none()
            && let Some(answer) = super::error::substitute_for(buf, self.connection.is_lost())
        {
            self.substitute = Some(answer.bytes(self.connection.thread.clock.wall()));
            self.connection.linger();
            // From here on hyper's answer counts as written; ours goes out below and in `poll_flush`.
            return match self.poll_substitute(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(buf.len())),
            };
        }
        let polled = self.stream()?.poll_write(cx, buf);
        match &polled {
            Poll::Ready(Ok(bytes)) => self.connection.sent(*bytes),
            Poll::Pending => self.connection.expect_taking(),
            Poll::Ready(Err(_)) => {}
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_substitute(cx) {
            Poll::Ready(Ok(())) => self.stream()?.poll_flush(cx),
            other => other,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_substitute(cx) {
            Poll::Ready(Ok(())) => self.stream()?.poll_shutdown(cx),
            other => other,
        }
    }
}
