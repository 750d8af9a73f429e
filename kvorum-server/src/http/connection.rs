//! One connection's state, the watchdog over all of a thread's connections, and the guarded stream.
//!
//! Every wait on a connection is bounded: for the rest of a head, for the next bytes of a body, for the next request,
//! and for the client to take the answer. There is no timer per wait. Each connection notes a deadline, and a watchdog
//! per thread checks all deadlines twice a second. That costs a request nothing, and it covers hyper's own header
//! time-out, which is therefore off (hyper's runs while a connection idles, too).

use super::head::{HeadScanner, HeadVerdict};
use super::peer_places::PeerPlace;
use crate::authority::Scheme;
use crate::clock::Clock;
use crate::metrics::ThreadMetrics;
use crate::peer::{Expected, Hello};
use crate::security::limit::User;
use crate::tls::Shown;
use bytes::{Buf, Bytes};
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How often the watchdog checks; bounds are kept to this precision.
pub const WATCHDOG_TICK: Duration = Duration::from_millis(500);

/// The lowest average rate of a body, in bytes per second. Slower clients could hold the memory reserved for their
/// values for hours.
pub const BODY_RATE_MIN: u64 = 16 << 10;

/// The lowest average rate at which a client takes an answer, in bytes per second of the time in which it could take
/// more. Slower clients could hold large values in memory for hours.
pub const ANSWER_RATE_MIN: u64 = 16 << 10;

/// How long a connection on a spare place may stay silent.
pub const SPARE_WAIT: Duration = Duration::from_secs(1);

/// How fast a client takes an answer.
#[derive(Debug, Clone, Copy, Default)]
struct Taking {
    bytes: u64,
    /// Ticks during which it took nothing although bytes were waiting.
    blocked: u64,
    /// The tick since which it takes nothing.
    blocked_since: Option<u64>,
}

/// The bounds of the waits on a connection.
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

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Another machine, with this address.
    Network(IpAddr),
    /// This machine, over its network, with this address.
    Machine(IpAddr),
    /// The socket for administration: the mode of its file says who may connect.
    AdminSocket,
}

impl Origin {
    /// The client's address; none for the socket for administration.
    pub fn client(self) -> Option<IpAddr> {
        match self {
            Self::Network(client) | Self::Machine(client) => Some(client),
            Self::AdminSocket => None,
        }
    }
}

/// A peer for which a connection was upgraded.
#[derive(Debug)]
pub struct Upgraded {
    /// What it has said of itself.
    pub theirs: Hello,
    /// The proof that it is to send before anything else, and its place until then; none if it need prove nothing.
    pub expected: Option<(Expected, PeerPlace)>,
    /// The certificate by which it is known; none if none is needed.
    pub shown: Option<Rc<Shown>>,
}

/// The state that the parts of one connection share.
pub struct Connection {
    thread: Rc<Watchdog>,
    origin: Origin,
    /// Whether it is encrypted, and the certificate that its client showed.
    secured: OnceCell<Option<Rc<Shown>>>,
    /// Whether its place is one of those kept for peers, `/v0/status` and `/metrics`.
    is_spare: bool,
    scanner: RefCell<HeadScanner>,
    /// Requests handed to the handler whose answers have not begun.
    in_flight: Cell<u32>,
    /// Whether a request has been handed to the handler, and hyper has not asked for the next one's bytes since.
    is_answering: Cell<bool>,
    /// The deadline for the next event, in ticks; `u64::MAX` for no bound.
    due: Cell<u64>,
    head_begun: Cell<bool>,
    /// The tick at which the body began, and how many of its bytes have come.
    body: Cell<Option<(u64, u64)>>,
    /// How fast the client takes the answers.
    taking: Cell<Taking>,
    has_asked: Cell<bool>,
    timed_out: Cell<bool>,
    lingers: Cell<bool>,
    upgraded: RefCell<Option<Upgraded>>,
    /// The token of the latest request: bytes that come and go are charged to it.
    user: RefCell<Option<User>>,
    waker: RefCell<Option<Waker>>,
}

/// The watchdog over a thread's connections.
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

    /// Makes a connection that is watched until it is dropped.
    pub fn connect(self: &Rc<Self>, origin: Origin, is_spare: bool) -> Rc<Connection> {
        let connection = Rc::new(Connection {
            thread: Rc::clone(self),
            origin,
            secured: OnceCell::new(),
            is_spare,
            scanner: RefCell::default(),
            in_flight: Cell::new(0),
            is_answering: Cell::new(false),
            due: Cell::new(u64::MAX),
            head_begun: Cell::new(false),
            body: Cell::new(None),
            taking: Cell::default(),
            has_asked: Cell::new(false),
            timed_out: Cell::new(false),
            lingers: Cell::new(false),
            upgraded: RefCell::new(None),
            user: RefCell::new(None),
            waker: RefCell::new(None),
        });
        // A new connection that stays silent gets the same bound as half a head. A spare place gets less: other clients
        // wait for it.
        connection.expect_within(if is_spare { self.waits.head.min(SPARE_WAIT) } else { self.waits.head });
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        connection
    }

    /// Checks all connections every [`WATCHDOG_TICK`], forever.
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
            // A connection that has no request under way is not waited for longer than a tick.
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
    /// Whether a wait exceeded its bound, so that the connection is to be cut.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Notes that the connection is encrypted, and what its client has shown of itself.
    pub fn secure(&self, shown: Option<Shown>) {
        let _ = self.secured.set(shown.map(Rc::new));
    }

    /// How clients name the node to reach it like this.
    pub fn scheme(&self) -> Scheme {
        if self.secured.get().is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// The certificate that the client showed, which was valid then; none if it showed none.
    pub fn shown(&self) -> Option<&Rc<Shown>> {
        self.secured.get().and_then(Option::as_ref)
    }

    /// Whether the connection has a spare place, which serves only peers, the status and the metrics.
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// Whether the connection is to end after the requests it has.
    pub fn is_draining(&self) -> bool {
        self.thread.is_draining()
    }

    /// Remembers whom to wake when [`Self::has_timed_out`] or [`Self::is_draining`] changes.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Begins a request: takes the verdict on its head.
    pub fn begin_request(&self) -> Option<HeadVerdict> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.is_answering.set(true);
        self.scanner.borrow_mut().take()
    }

    /// Whether its client has sent a whole request, and its answer is under way.
    fn is_waiting_for_answer(&self) -> bool {
        self.is_answering.get() && self.scanner.borrow().is_between_requests()
    }

    /// Notes that hyper reads: after the last byte of a request it does so only once the answer is complete.
    fn note_read(&self) {
        if self.scanner.borrow().is_between_requests() {
            self.is_answering.set(false);
        }
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
        // The rate is counted for each answer: an answer taken quickly earns nothing for the next.
        self.taking.set(Taking::default());
    }

    /// Notes that the answer ends the connection although the client may still be sending.
    pub fn linger(&self) {
        self.lingers.set(true);
    }

    /// Charges the bytes that come and go from now on to `user`, or to nobody.
    pub fn charge_to(&self, user: Option<User>) {
        self.user.replace(user);
    }

    /// The id of the token of the latest request.
    pub fn user(&self) -> Option<Arc<str>> {
        self.user.borrow().as_ref().map(|user| Arc::clone(&user.id))
    }

    fn charge(&self, bytes: usize) {
        if let Some(User { limit, meter, .. }) = &*self.user.borrow()
            && limit.bytes.is_some()
        {
            meter.charge(*limit, bytes as u64, self.thread.clock.mono());
        }
    }

    /// Notes that the connection becomes a peer's after this answer.
    pub fn upgrade(&self, peer: Upgraded) {
        *self.upgraded.borrow_mut() = Some(peer);
    }

    /// Takes the peer that the connection was upgraded for, if it was.
    pub fn upgraded(&self) -> Option<Upgraded> {
        self.upgraded.borrow_mut().take()
    }

    /// Whether unread bytes of the client may be left, so that closing at once could cost the client its answer.
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

    /// Sets the next deadline after `bytes` have come. hyper has not seen them yet.
    fn received(&self, bytes: &mut [u8]) {
        self.thread.metrics.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.has_asked.set(true);
        self.charge(bytes.len());
        let mut scanner = self.scanner.borrow_mut();
        scanner.feed(bytes);
        if scanner.is_in_body() {
            self.head_begun.set(false);
            self.expect_body(bytes.len() as u64);
        } else if scanner.is_in_head() {
            // The wait for a head counts from its first byte, however slowly the others arrive.
            self.body.set(None);
            if !self.head_begun.replace(true) {
                self.expect_within(self.thread.waits.head);
            }
        } else {
            // The request is complete. From now on the client waits for this node, whose own deadlines apply.
            self.head_begun.set(false);
            self.body.set(None);
            self.due.set(u64::MAX);
        }
    }

    /// Sets the deadline for more of a body: within the wait from now, and no later than [`BODY_RATE_MIN`] allows since
    /// the body began.
    fn expect_body(&self, came: u64) {
        let now = self.thread.now.get();
        let (begun, before) = self.body.get().unwrap_or((now, 0));
        let bytes = before.saturating_add(came);
        self.body.set(Some((begun, bytes)));
        let wait = ticks_of(self.thread.waits.body);
        let earned = ticks_of(Duration::from_secs(bytes / BODY_RATE_MIN));
        self.due.set((now + wait).min(begun + wait + earned));
    }

    /// Sets the deadline for the client to take more of an answer: within the wait from now. The total time that the
    /// client keeps the answer waiting may not exceed what [`ANSWER_RATE_MIN`] allows.
    fn expect_taking(&self) {
        let (now, wait) = (self.thread.now.get(), ticks_of(self.thread.waits.write));
        let mut taking = self.taking.get();
        let since = *taking.blocked_since.get_or_insert(now);
        self.taking.set(taking);
        let earned = ticks_of(Duration::from_secs(taking.bytes / ANSWER_RATE_MIN));
        self.due.set((now + wait).min((since + wait + earned).saturating_sub(taking.blocked)));
    }

    fn sent(&self, bytes: usize) {
        self.charge(bytes);
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

/// Ticks until `wait` has certainly passed: one more than it lasts, because the current tick has begun already.
fn ticks_of(wait: Duration) -> u64 {
    let ticks = wait.as_millis().div_ceil(WATCHDOG_TICK.as_millis());
    u64::try_from(ticks).unwrap_or(u64::MAX >> 2).min(u64::MAX >> 2) + 1
}

/// The slot to which a connection's stream is returned when hyper is done with it, with bytes of the client that hyper has
/// not taken.
pub type Returned<S> = Rc<RefCell<Option<(S, Bytes)>>>;

/// The most bytes that are read from a client while it waits for its answer.
const AHEAD_BYTES_MAX: usize = 256;

/// A connection's stream under the watchdog's control. Dropping it returns the stream.
pub struct Guarded<S> {
    stream: Option<S>,
    returned: Returned<S>,
    connection: Rc<Connection>,
    /// The unwritten rest of our answer, which replaces one that hyper gave without a body.
    substitute: Option<Bytes>,
    /// Bytes that came while an answer was under way: the beginning of the next request.
    ahead: Bytes,
}

impl<S> Guarded<S> {
    /// Guards `stream`, which is put into `returned` when the guard is dropped.
    pub fn new(stream: S, returned: Returned<S>, connection: Rc<Connection>) -> Self {
        Self { stream: Some(stream), returned, connection, substitute: None, ahead: Bytes::new() }
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
        *self.returned.borrow_mut() =
            self.stream.take().map(|stream| (stream, std::mem::take(&mut self.ahead)));
    }
}

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Notices a client that leaves while its answer is under way, so that nothing more is done for it.
    ///
    /// hyper would notice it as well, by a read into its own buffer. At that time the request still holds that buffer, so
    /// hyper would allocate another 8 KiB for each request (`half_close` in `server` stops it). This reads a few bytes of
    /// the stack instead.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the client has left; the errors of reading.
    fn notice_leaving(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.connection.is_waiting_for_answer() || !self.ahead.is_empty() {
            return Ok(());
        }
        let mut bytes = [0; AHEAD_BYTES_MAX];
        let mut buf = ReadBuf::new(&mut bytes);
        match self.stream()?.poll_read(cx, &mut buf) {
            Poll::Pending => Ok(()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if buf.filled().is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(())) => {
                self.ahead = Bytes::copy_from_slice(buf.filled());
                Ok(())
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.connection.note_read();
        let polled = if self.ahead.is_empty() {
            self.stream()?.poll_read(cx, buf)
        } else {
            let count = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(count));
            Poll::Ready(Ok(()))
        };
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.substitute.is_none()
            && let Some(answer) = super::error::substitute_for(buf, self.connection.is_lost())
        {
            self.substitute = Some(answer.bytes(self.connection.thread.clock.wall()));
            self.connection.linger();
            // From here on hyper's answer counts as written; our substitute goes out below and in `poll_flush`.
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
            // A stream that encrypts holds back what its socket does not take, and gives it out here.
            Poll::Ready(Ok(())) => {
                let polled = self.stream()?.poll_flush(cx);
                if polled.is_pending() {
                    self.connection.expect_taking();
                }
                // hyper calls this last, whenever it has done what it can for now.
                self.notice_leaving(cx)?;
                polled
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A connection whose client has sent a whole request that is being answered, and the client.
    async fn answering() -> (Guarded<DuplexStream>, DuplexStream) {
        let wait = Duration::from_secs(1);
        let waits = Waits { head: wait, body: wait, idle: wait, write: wait };
        let watchdog = Watchdog::new(waits, Arc::new(SystemClock::new()), Arc::default());
        let connection = watchdog.connect(Origin::AdminSocket, false);
        let (mut client, stream) = tokio::io::duplex(4096);
        let mut guarded = Guarded::new(stream, Returned::default(), Rc::clone(&connection));
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut head = [0; 18];
        guarded.read_exact(&mut head).await.unwrap();
        connection.begin_request();
        (guarded, client)
    }

    /// A client that leaves while it is answered is noticed, also one that says so with a half of its connection.
    #[tokio::test]
    async fn leaving_clients_are_noticed() {
        let (mut guarded, client) = answering().await;
        guarded.flush().await.unwrap();
        drop(client);
        assert_eq!(guarded.flush().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (mut guarded, mut client) = answering().await;
        client.shutdown().await.unwrap();
        assert_eq!(guarded.flush().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// The next request may begin to come, and its client leave, before the answer is complete: no byte of it is lost, and
    /// what hyper has not taken comes back with the stream.
    #[tokio::test]
    async fn bytes_that_come_early_are_kept() {
        let (mut guarded, mut client) = answering().await;
        let next: Vec<u8> = (b'a'..=b'z').cycle().take(2 * AHEAD_BYTES_MAX).collect();
        client.write_all(&next).await.unwrap();
        drop(client);
        for _ in 0..3 {
            guarded.flush().await.unwrap();
        }
        let mut read = vec![0; AHEAD_BYTES_MAX - 1];
        guarded.read_exact(&mut read).await.unwrap();
        let returned = Rc::clone(&guarded.returned);
        drop(guarded);
        let (mut stream, ahead) = returned.borrow_mut().take().unwrap();
        read.extend_from_slice(&ahead);
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, next);
    }

    /// A connection between two requests is not read ahead: hyper waits for the next one itself.
    #[tokio::test]
    async fn only_answers_are_watched() {
        let (mut guarded, mut client) = answering().await;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut head = [0; 18];
        guarded.read_exact(&mut head).await.unwrap();
        drop(client);
        guarded.flush().await.unwrap();
        assert!(guarded.ahead.is_empty());
    }
}
