//! The server: accepts connections on one thread and serves them there.
//!
//! It is generic over the listener, so that the same code serves a simulated network.

use super::HEAD_BYTES_MAX;
use super::connection::{Connection, Guarded, Origin, Returned, Watchdog};
use super::error::{CONNECTION_REFUSED, TLS_REQUIRED};
use super::handler::{ThreadState, handle};
use super::peer_places::Noted;
use super::welcome;
use crate::background;
use crate::coordinator::{Coordinator, PeerHandler};
use crate::crash;
use crate::log_limit::LogLimit;
use crate::peer::{self, BoxedStream, Caller, Connector, Hello, Secret};
use crate::supervise::Part;
use crate::tls::{self, Arrived, Handshake, Shown, Tls, TlsMode};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// How long the acceptor pauses after the system failed to give it a connection, for example for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long the node waits, in all, for the bytes of a client that is sending a body which nobody reads, so that the
/// client can read the answer first. Closing the connection at once would reset it and might discard the answer.
const LINGER: Duration = Duration::from_secs(1);
/// The most bytes that are read and dropped meanwhile: twice the default largest value, so that a client that is
/// sending one gets the answer.
const LINGER_BYTES_MAX: usize = 16 << 20;
/// How many bytes per second a thread reads only to drop them. Dropping as fast as refused clients can send would take
/// the processors from the values that were admitted.
const LINGER_BYTES_PER_SECOND: u32 = 32 << 20;
/// The longest time for which that rate keeps a connection open.
const LINGER_MAX: Duration = Duration::from_secs(30);
/// The most bytes that are read at once to be dropped.
const LINGER_PIECE_BYTES: usize = 64 << 10;

/// Places beyond the cap, for peers, the status and the metrics, one request each. Any other request is refused for
/// lack of room. Further connections are closed without an answer, because each takes a descriptor.
pub const SPARE_PLACES: usize = 64;
/// The most connections to the socket for administration; further ones are closed.
pub const ADMIN_CONNECTIONS_MAX: usize = 16;
/// The most log lines about failed accepts in one period.
const ACCEPT_LINES_MAX: u32 = 3;
const ACCEPT_LINES_PERIOD: Duration = Duration::from_mins(1);

/// A source of connections.
pub trait Listener {
    /// A connection's stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Polls for the next connection and the address of its client.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Stream, IpAddr)>>;
}

/// The phase that the node is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The store is being opened: every request gets 503.
    Starting,
    /// The store is open and peers are served; the node is taking the hints that peers hold for it.
    Joining,
    /// The node serves clients.
    Ready,
    /// The node was told to stop.
    Draining,
}

/// Serves connections of `listener` until the node drains, then ends them: accepted requests are answered within the
/// drain time-out. Must run where local tasks can be spawned.
///
/// It connects to the peers as soon as the store is open. The first `thread` also does the node's background work, and
/// announces when the node is ready.
pub async fn serve<L: Listener>(
    listener: L,
    state: Rc<ThreadState>,
    connector: Rc<dyn Connector>,
    thread: usize,
) {
    let service = Arc::clone(&state.service);
    let (watchdog, watch) = start_watchdog(&state);
    let supervisor = &service.supervisor;
    let opening = supervisor.task(Part::CommitWake, "", {
        let state = Rc::clone(&state);
        move || open(Rc::clone(&state), Rc::clone(&connector), thread)
    });
    let turns = supervisor.task(Part::Turns, "", {
        let turns = Rc::clone(&state.turns);
        move || {
            let turns = Rc::clone(&turns);
            async move { turns.run().await }
        }
    });
    accept_until_draining(&listener, &state, |accepted| accept(accepted, &state, &watchdog)).await;
    drop(listener);
    watchdog.drain();
    let end = service.clock.mono() + service.limits.drain_timeout;
    let writing = || state.coordinator.get().map_or(0, |coordinator| coordinator.writes_under_way());
    while watchdog.connection_count() + writing() > 0 && service.clock.mono() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = watchdog.connection_count();
    if left > 0 {
        tracing::warn!(
            connections = left,
            "--drain-timeout has passed: the connections that were left are closed"
        );
    }
    watch.abort();
    turns.abort();
    opening.abort();
}

/// Serves the connections of `listener`, whose clients may administer the node without a token, until the node drains. Must
/// run where local tasks can be spawned.
pub async fn serve_admin<L: Listener>(listener: L, state: Rc<ThreadState>) {
    let (watchdog, watch) = start_watchdog(&state);
    accept_until_draining(&listener, &state, |(stream, _)| accept_admin(stream, &state, &watchdog)).await;
    drop(listener);
    watchdog.drain();
    let clock = &state.service.clock;
    let end = clock.mono() + state.service.limits.drain_timeout;
    while watchdog.connection_count() > 0 && clock.mono() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watch.abort();
}

fn start_watchdog(state: &Rc<ThreadState>) -> (Rc<Watchdog>, tokio::task::JoinHandle<()>) {
    let service = &state.service;
    let watchdog =
        Watchdog::new(service.limits.waits, Arc::clone(&service.clock), Arc::clone(&state.metrics));
    let watching = Rc::clone(&watchdog);
    let watch = service.supervisor.task(Part::Watchdog, "", move || {
        let watching = Rc::clone(&watching);
        async move { watching.run().await }
    });
    (watchdog, watch)
}

/// Gives `accept` every connection of `listener` until the node drains, and those that the kernel has accepted by then.
async fn accept_until_draining<L: Listener>(
    listener: &L,
    state: &ThreadState,
    accept: impl Fn((L::Stream, IpAddr)),
) {
    let service = &state.service;
    let mut phase = service.phase.subscribe();
    let accept_lines = LogLimit::new(ACCEPT_LINES_MAX, ACCEPT_LINES_PERIOD);
    loop {
        crash::step(Part::Network);
        let accepted = tokio::select! {
            biased;
            accepted = std::future::poll_fn(|cx| listener.poll_accept(cx)) => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => break,
        };
        match accepted {
            Ok(accepted) => accept(accepted),
            Err(error) => {
                if let Some(left_out) = accept_lines.admit(service.clock.mono()) {
                    tracing::warn!(%error, left_out, "cannot accept connections: this node tries again every 50 ms");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    // Connections that the kernel has accepted already are served; then the port is given up.
    while let Some(Ok(accepted)) = accept_now(listener).await {
        accept(accepted);
    }
}

/// Gives this thread its coordinator as soon as the store is open, and keeps it running.
async fn open(state: Rc<ThreadState>, connector: Rc<dyn Connector>, thread: usize) {
    let service = &state.service;
    let is_open = service.phase.subscribe().wait_for(|phase| *phase != Phase::Starting).await.is_ok();
    let (true, Some(rooms)) = (is_open, service.rooms.get()) else { return };
    let coordinator = Coordinator::start(Arc::clone(&rooms.shared), &connector, thread);
    let _ = state.coordinator.set(Rc::clone(&coordinator));
    service.threads_open.send_modify(|open| *open += 1);
    if thread == 0 {
        drop(service.supervisor.task(Part::HintDrain, "", {
            let state = Rc::clone(&state);
            move || join(Arc::clone(&state.service), Rc::clone(&coordinator))
        }));
    }
    // Makes this thread's writes share their wake-ups.
    rooms.replica.share_wakeups().await;
}

/// Takes the hints that peers hold for this node. Once every network thread serves as well, the node is ready.
async fn join(service: Arc<super::Service>, coordinator: Rc<Coordinator>) {
    background::start(&coordinator);
    background::take_hints(&coordinator).await;
    let all = service.thread_metrics.len();
    if service.threads_open.subscribe().wait_for(|open| *open >= all).await.is_err() {
        return;
    }
    service.phase.send_if_modified(|phase| {
        let is_joining = *phase == Phase::Joining;
        if is_joining {
            *phase = Phase::Ready;
        }
        is_joining
    });
}

/// Accepts a connection without waiting; none if there is none.
async fn accept_now<L: Listener>(listener: &L) -> Option<io::Result<(L::Stream, IpAddr)>> {
    std::future::poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn accept<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    (stream, client): (S, IpAddr),
    state: &Rc<ThreadState>,
    watchdog: &Rc<Watchdog>,
) {
    let place = Place::take(&state.service, client);
    let connections_max = state.service.limits.connections_max;
    if place.number > connections_max + SPARE_PLACES {
        state.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let is_spare = place.number > connections_max || place.of_address > share_of_address(connections_max);
    let origin = if is_this_machine(client) { Origin::Machine(client) } else { Origin::Network(client) };
    let connection = watchdog.connect(origin, is_spare);
    state.metrics.connections_accepted.fetch_add(1, Ordering::Relaxed);
    match &state.service.tls {
        None => tokio::task::spawn_local(serve_connection(stream, Rc::clone(state), connection, place)),
        Some(tls) => {
            let tls = Arc::clone(tls);
            tokio::task::spawn_local(secure_connection(stream, tls, Rc::clone(state), connection, place))
        }
    };
}

/// Serves a connection to a port with TLS, once it has shaken hands or begun without. The handshake is part of the wait
/// for the first head.
async fn secure_connection<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
    tls: Arc<Tls>,
    state: Rc<ThreadState>,
    connection: Rc<Connection>,
    place: Place,
) {
    let stream: BoxedStream = match unless_cut(&connection, tls::arrive(stream)).await.flatten() {
        Some(Arrived::Tls(stream)) => {
            let done = unless_cut(&connection, tls.shake_hands(stream)).await;
            if let Some(Err(error)) = &done {
                let (reason, service) = (error.to_string(), &state.service);
                if service.refusals.admit(&reason, service.clock.mono()) {
                    tracing::warn!(reason, client = ?connection.origin().client(), "a handshake of TLS failed");
                }
            }
            let Some(Ok(Handshake { stream, shown })) = done else { return };
            connection.secure(shown);
            Box::new(stream)
        }
        Some(Arrived::Plain(stream)) if tls.mode() == TlsMode::Allow => Box::new(stream),
        Some(Arrived::Plain(mut stream)) => {
            let answer = TLS_REQUIRED.bytes(state.service.clock.wall());
            let write = async {
                let _ = stream.write_all(&answer).await;
                linger(stream, &state, &connection).await;
            };
            let _ = tokio::time::timeout(LINGER, write).await;
            return;
        }
        None => return,
    };
    serve_connection(stream, state, connection, place).await;
}

/// What `future` gives, unless the connection times out or the node drains first.
async fn unless_cut<T>(connection: &Connection, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        connection.register(cx);
        if connection.has_timed_out() || connection.is_draining() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Connections to the socket for administration have places of their own, so that clients cannot take them.
fn accept_admin<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
    state: &Rc<ThreadState>,
    watchdog: &Rc<Watchdog>,
) {
    if watchdog.connection_count() >= ADMIN_CONNECTIONS_MAX {
        state.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let connection = watchdog.connect(Origin::AdminSocket, false);
    state.metrics.connections_accepted.fetch_add(1, Ordering::Relaxed);
    let place = Place::take(&state.service, IpAddr::V4(Ipv4Addr::LOCALHOST));
    tokio::task::spawn_local(serve_connection(stream, Rc::clone(state), connection, place));
}

/// The most connections that one address may have: three quarters of all. Clients on this machine are not counted,
/// because many may come through one proxy there.
fn share_of_address(connections_max: usize) -> usize {
    connections_max - connections_max / 4
}

/// The unit that counts as one address: for IPv6 a /64 network, which one client can have.
fn address_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}

/// Open connections by client address, except for clients on this machine.
#[derive(Debug, Default)]
pub struct Addresses {
    // Guards the counts; held to change one of them.
    counts: Mutex<HashMap<IpAddr, usize>>,
}

impl Addresses {
    /// Counts one more connection of `address`, and returns how many it has.
    fn add(&self, address: IpAddr) -> usize {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        *count += 1;
        *count
    }

    fn remove(&self, address: IpAddr) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = counts.entry(address) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// Whether a client at `address` is on this machine.
fn is_this_machine(address: IpAddr) -> bool {
    // A listener for both IPv6 and IPv4 sees 127.0.0.1 as ::ffff:127.0.0.1.
    address.to_canonical().is_loopback()
}

/// A connection's place under the cap, given back when it is dropped.
struct Place {
    service: Arc<super::Service>,
    number: usize,
    address: Option<IpAddr>,
    /// How many connections the client's address has.
    of_address: usize,
}

impl Place {
    fn take(service: &Arc<super::Service>, client: IpAddr) -> Self {
        let number = service.connection_count.fetch_add(1, Ordering::Relaxed) + 1;
        let address = (!is_this_machine(client)).then(|| address_of(client));
        let of_address = address.map_or(0, |address| service.addresses.add(address));
        Self { service: Arc::clone(service), number, address, of_address }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.service.connection_count.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.address {
            self.service.addresses.remove(address);
        }
    }
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
    state: Rc<ThreadState>,
    connection: Rc<Connection>,
    place: Place,
) {
    let serve = |request| {
        let (state, connection) = (Rc::clone(&state), Rc::clone(&connection));
        async move { Ok::<_, Infallible>(handle(&state, &connection, request).await) }
    };
    let returned = Returned::default();
    let io = TokioIo::new(Guarded::new(stream, Rc::clone(&returned), Rc::clone(&connection)));
    let mut http = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        // The watchdog bounds this wait; see `connection`.
        .header_read_timeout(None)
        // Small answers and the many chunks of a range cost less when they are copied into one buffer than in a
        // vectored write.
        .writev(false)
        // Not that a client may close its half: `Guarded` notices that, without the buffer that hyper would allocate.
        .half_close(true)
        .serve_connection(io, service_fn(serve));
    let mut drained = false;
    std::future::poll_fn(|cx| {
        connection.register(cx);
        if connection.has_timed_out() {
            return Poll::Ready(());
        }
        loop {
            // Polled before it is told to end, so that a request which has arrived is read and answered. A connection's
            // error is not handled here: the client has its answer, or it has gone.
            if Pin::new(&mut http).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if !connection.is_draining() || drained {
                return Poll::Pending;
            }
            drained = true;
            Pin::new(&mut http).graceful_shutdown();
        }
    })
    .await;
    let mut already_read = http.into_parts().read_buf;
    let stream = returned.borrow_mut().take();
    let Some((mut stream, ahead)) = stream else { return };
    if !ahead.is_empty() {
        already_read = [already_read, ahead].concat().into();
    }
    if let Some(peer) = connection.upgraded() {
        // Until it has proved who it is, it counts as a client's connection.
        let shown = peer.shown.clone();
        let proved = welcome::prove(&mut stream, &mut already_read, &state.service, &connection, peer).await;
        // From here on it is a peer's connection: the watchdog and the drain leave it alone.
        drop((connection, place));
        if let Some((theirs, secret)) = proved {
            serve_peer(stream, already_read, &state, theirs, (secret, shown)).await;
        }
    } else if connection.is_spare() && !connection.has_asked() {
        // The client sent nothing, perhaps because it opened the connection for later use. It is told that it is
        // refused.
        state.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
        let answer = CONNECTION_REFUSED.bytes(state.service.clock.wall());
        let write = async {
            let _ = stream.write_all(&answer).await;
            linger(stream, &state, &connection).await;
        };
        let _ = tokio::time::timeout(LINGER, write).await;
    } else if connection.is_to_linger() {
        linger(stream, &state, &connection).await;
    }
}

/// Answers a peer until it closes the connection, or until what it has proved itself by is withdrawn.
async fn serve_peer<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
    already_read: Bytes,
    state: &Rc<ThreadState>,
    theirs: Hello,
    (secret, shown): (Option<Secret>, Option<Rc<Shown>>),
) {
    let Some(rooms) = state.service.rooms.get() else { return };
    let peers = PeerHandler::new(Arc::clone(&rooms.shared)).with_spans(Arc::clone(&state.service.spans));
    let peers = peers.of(&theirs);
    peers.met(&theirs);
    let clock = Arc::clone(&state.service.clock);
    let number = state.service.peer_connections.fetch_add(1, Ordering::Relaxed);
    // The handshake has found that there is one.
    let Ok(protocol) = rooms.shared.cluster.hello(clock.wall()).common_protocol(&theirs) else { return };
    let caller =
        Caller { peer: theirs.node, connection: number, protocol, epoch: kvorum_core::agreement::Epoch(0) };
    let limits = Arc::clone(&rooms.shared.peering.limits);
    let place = state.service.peer_places.take(theirs.node);
    let serving = Rc::new(Noted::new(peers, &place));
    let auth = &state.service.peer_auth;
    let _connected = auth.connected(number, secret.clone(), shown.is_some());
    tokio::select! {
        biased;
        () = place.gives_way() => {}
        () = auth.withdrawn(secret.as_ref()) => {
            tracing::debug!(peer = %theirs.node, "closed a connection whose peer secret was withdrawn");
        }
        () = withdrawn(&state.service, shown.as_deref()) => {
            tracing::debug!(peer = %theirs.node, "closed a connection whose certificate holds no more");
        }
        () = peer::serve(stream, already_read, serving, caller, clock, limits) => {}
    }
}

/// Waits until the certificate `shown`, if there is one, holds no more.
async fn withdrawn(service: &super::Service, shown: Option<&Shown>) {
    match &service.tls {
        Some(tls) => tls.withdrawn(shown, || service.clock.wall()).await,
        None => std::future::pending().await,
    }
}

/// Reads what the client still sends, and drops it, at most at [`LINGER_BYTES_PER_SECOND`].
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    state: &ThreadState,
    connection: &Connection,
) {
    let end = Instant::now() + LINGER_MAX;
    let mut left = LINGER;
    let mut dropped = 0;
    let _ = tokio::time::timeout(LINGER, stream.shutdown()).await;
    let mut piece = vec![0; LINGER_PIECE_BYTES];
    while dropped < LINGER_BYTES_MAX && !connection.is_draining() {
        let begun = Instant::now();
        let Ok(Ok(bytes @ 1..)) = tokio::time::timeout(left, stream.read(&mut piece)).await else { return };
        let now = Instant::now();
        left = left.saturating_sub(now - begun);
        dropped += bytes;
        let free_at = state.dropping_until.get().max(now) + dropping_time(bytes);
        if free_at > end {
            return;
        }
        state.dropping_until.set(free_at);
        tokio::time::sleep_until(free_at).await;
    }
}

/// How long reading `bytes` takes at [`LINGER_BYTES_PER_SECOND`].
fn dropping_time(bytes: usize) -> Duration {
    Duration::from_secs(1).saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX)) / LINGER_BYTES_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address is counted while it has connections; for IPv6 its network is counted.
    #[test]
    fn addresses_are_counted() {
        let addresses = Addresses::default();
        let [one, other] = ["2001:db8::1", "2001:db8::2:1"].map(|text| address_of(text.parse().unwrap()));
        assert_eq!((addresses.add(one), addresses.add(other)), (1, 2));
        assert_ne!(address_of("2001:db8:0:1::1".parse().unwrap()), one);
        assert_eq!(address_of("::ffff:10.0.0.1".parse().unwrap()), address_of("10.0.0.1".parse().unwrap()));
        addresses.remove(one);
        addresses.remove(other);
        assert!(addresses.counts.lock().unwrap().is_empty());
        assert_eq!((share_of_address(10_000), share_of_address(1)), (7_500, 1));
    }

    #[test]
    fn this_machine_is_loopback_alone() {
        let check = |address: &str, expect| {
            assert_eq!(is_this_machine(address.parse().unwrap()), expect, "{address}");
        };
        for own in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
            check(own, true);
        }
        for other in ["10.0.0.1", "0.0.0.0", "128.0.0.1", "::", "::2", "::ffff:10.0.0.1", "fe80::1"] {
            check(other, false);
        }
    }
}
