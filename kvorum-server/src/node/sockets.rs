//! The sockets of a node: listeners, one per network thread, and connections to other nodes.

use super::{NodeError, span_export};
use crate::authority::{Authority, Scheme};
use crate::config::Config;
use crate::http::Service;
use crate::http::ThreadState;
use crate::http::reports;
use crate::http::server::{self, Listener};
use crate::peer::{BoxedStream, Connector};
use crate::sched::{self, Turns};
use crate::supervise::{Part, Thread};
use crate::tls::Tls;
use rustix::net::sockopt;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// How long a connection is idle before it is probed, and the interval between probes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Connections that the kernel may hold for each listener until they are accepted.
const ACCEPT_BACKLOG: u32 = 1024;

/// Makes one listener per network thread, all on one port.
#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
pub(super) fn listen(config: &Config) -> Result<Vec<(std::net::TcpListener, SocketAddr)>, NodeError> {
    let mut listeners = Vec::with_capacity(config.threads);
    let mut address = config.listen;
    let failed = |source| NodeError::Listen { address: config.listen, source };
    // With SO_REUSEPORT, another process on this port would share it silently. Binding without it first turns that into
    // an error.
    drop(std::net::TcpListener::bind(address).map_err(failed)?);
    for _ in 0..config.threads.max(1) {
        let listener = listen_shared(address).map_err(failed)?;
        address = listener.local_addr().map_err(failed)?;
        listeners.push((listener, address));
    }
    Ok(listeners)
}

#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
fn listen_shared(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    socket.listen(ACCEPT_BACKLOG)?.into_std()
}

#[expect(clippy::disallowed_types, reason = "this room owns the sockets")]
pub(super) fn serve_on_thread(
    index: usize,
    listener: std::net::TcpListener,
    admin: Option<std::os::unix::net::UnixListener>,
    service: &Arc<Service>,
) -> Result<Thread, NodeError> {
    let supervisor = service.supervisor.clone();
    let service = Arc::clone(service);
    let run = move || {
        sched::take_own(Turns::Prompt);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let local = tokio::task::LocalSet::new();
        let serve = |runtime: tokio::runtime::Runtime| {
            let metrics = service.thread_metrics.get(index).map(Arc::clone).unwrap_or_default();
            local.block_on(&runtime, async {
                let listener = Tcp(TcpListener::from_std(listener)?);
                let admin = admin.map(UnixListener::from_std).transpose()?;
                let state = ThreadState::new(service, metrics);
                let administered = async {
                    if let Some(admin) = admin {
                        server::serve_admin(Unix(admin), Rc::clone(&state)).await;
                    }
                };
                if index == 0 {
                    let service = Arc::clone(&state.service);
                    let sampling = move || reports::keep_history(Arc::clone(&service));
                    drop(state.service.supervisor.task(Part::History, "", sampling));
                    if state.service.spans.endpoint().is_some() {
                        let service = Arc::clone(&state.service);
                        let exporting = move || span_export::export(Arc::clone(&service));
                        drop(state.service.supervisor.task(Part::SpanExport, "", exporting));
                    }
                }
                let connector = Rc::new(TcpConnector::new(&state.service));
                let served = server::serve(listener, Rc::clone(&state), connector, index);
                tokio::join!(served, administered);
                Ok(())
            })
        };
        if let Err(error) = runtime.and_then(serve) {
            tracing::error!(%error, "a network thread cannot start");
        }
    };
    supervisor.thread(Part::Network, Some(index), run).map_err(NodeError::Thread)
}

/// A listener on a real port.
struct Tcp(TcpListener);

impl Listener for Tcp {
    type Stream = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, IpAddr)>> {
        let (stream, client) = ready!(self.0.poll_accept(cx))?;
        prepare(&stream)?;
        Poll::Ready(Ok((stream, client.ip())))
    }
}

/// A listener on the socket for administration.
struct Unix(UnixListener);

impl Listener for Unix {
    type Stream = UnixStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(UnixStream, IpAddr)>> {
        let (stream, _) = ready!(self.0.poll_accept(cx))?;
        Poll::Ready(Ok((stream, IpAddr::V4(Ipv4Addr::LOCALHOST))))
    }
}

/// Sets the options of every connection. Messages are written whole, so Nagle's algorithm would only delay them.
/// Keep-alive probes detect a peer whose machine has vanished, even if the connection is idle.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    Ok(sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE)?)
}

/// Connects over TCP, with TLS to nodes that are named so.
pub(super) struct TcpConnector {
    tls: Option<Arc<Tls>>,
    /// The hosts and ports of nodes with `https` URLs.
    secure: HashMap<String, Authority>,
    /// Those of nodes with `http` URLs.
    plain: HashSet<String>,
    /// Whether nodes that are not named in the settings, because they joined later, have `https` URLs as this one has.
    is_secure: bool,
}

impl TcpConnector {
    pub(super) fn new(service: &Service) -> Self {
        let is_secure = service.facts.url.starts_with("https://");
        let named: Vec<_> = service.facts.cluster.iter().filter_map(|url| Authority::of_url(url)).collect();
        let plain = named.iter().filter(|(scheme, _)| *scheme == Scheme::Http);
        let plain = plain.map(|(_, authority)| authority.to_string()).collect();
        let urls = named.into_iter();
        let secure = urls.filter(|(scheme, _)| *scheme == Scheme::Https);
        let secure = secure.map(|(_, authority)| (authority.to_string(), authority)).collect();
        Self { tls: service.tls.clone(), secure, plain, is_secure }
    }
}

impl Connector for TcpConnector {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this room owns the sockets")]
            let stream = TcpStream::connect(authority).await?;
            prepare(&stream)?;
            let later = || {
                let is_later = self.is_secure && !self.plain.contains(authority);
                is_later.then(|| Authority::of_url(&format!("https://{authority}"))).flatten()
            };
            let named = self.secure.get(authority).cloned().or_else(|| later().map(|(_, named)| named));
            let Some(named) = named else { return Ok(Box::new(stream) as BoxedStream) };
            let dial = self.tls.as_ref().and_then(|tls| tls.dial());
            let dial =
                dial.ok_or_else(|| io::Error::other("there are no authorities of nodes (--peer-ca)"))?;
            Ok(Box::new(dial.connect(&named.host(), stream).await?) as BoxedStream)
        })
    }
}
