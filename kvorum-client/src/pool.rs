//! The nodes and their connections.
//!
//! An operation takes a [`Lease`]: the right to use one connection to a node, an idle one if there is one.
//! The number of rights is bounded. Only an operation that has a right and found no idle connection makes a
//! new one, so connections have the same bound. A lease that is dropped closes its connection at once: only
//! [`Lease::recycle`], called when an answer has been read to its end, keeps it for the next operation.

use crate::answer::read_whole;
use crate::io::TokioIo;
use crate::retry::{Cause, later};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{SendRequest, handshake};
use kvorum_tls::ClientTls;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a recycled connection may take to be ready: its driver has read the whole answer and needs one
/// turn of the runtime to see it. A connection that is not ready by then is closed.
const READY_WAIT: Duration = Duration::from_millis(100);

/// The shortest pause between two sweeps of connections that have been idle too long.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The limits of one node's connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    pub(crate) connections_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
}

/// What the client shows to nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// The `Authorization` of requests, if the client has a token.
    pub(crate) authorization: Option<HeaderValue>,
    /// For `https` nodes.
    pub(crate) tls: Option<ClientTls>,
}

/// A node as the client sees it.
#[derive(Debug)]
pub(crate) struct Node {
    /// The URL without its trailing slash, for people.
    name: Arc<str>,
    /// `host:port`, to connect to.
    address: String,
    /// The `Host` of requests.
    host: HeaderValue,
    /// What the client shows to nodes.
    access: Access,
    /// The host to which a connection is encrypted; none for one without TLS.
    secured: Option<String>,
    limits: PoolLimits,
    /// One permit for each operation under way; tokio hands them out in the order of the requests for them.
    permits: Arc<Semaphore>,
    /// Guards the idle connections; held for a push, a pop or a sweep.
    idle: Mutex<Idle>,
    /// Guards the reasons against asking this node; held for a copy.
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The connection used last is used next, so that connections which are not needed grow old.
    stack: Vec<(Connection, Instant)>,
    is_swept: bool,
}

/// The reasons against asking a node.
#[derive(Debug, Default, Clone, Copy)]
struct Marks {
    /// Set aside after a failure, until a probe succeeds.
    is_aside: bool,
    /// The node asked (by `Retry-After`) not to be asked again before then.
    rest_until: Option<Instant>,
}

/// Whether a node should be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    RestsUntil(Instant),
    Aside,
}

/// An open connection; dropping it closes it.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Connection {
    async fn open<S>(stream: S) -> Result<Self, Cause>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| Cause::Connect(error.into()))?;
        // The operation that waits for an answer learns of the driver's end; nothing else needs to know it.
        let driver = tokio::spawn(async move { drop(driver.await) }).abort_handle();
        Ok(Self { sender, driver })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Without it, a driver that still writes a request would keep the socket beyond the bound on connections.
        self.driver.abort();
    }
}

/// The right to use one connection to a node, and that connection.
#[derive(Debug)]
pub(crate) struct Lease {
    // The order matters: the connection is closed before the next operation gets its permit.
    connection: Connection,
    permit: OwnedSemaphorePermit,
    is_reused: bool,
    node: Arc<Node>,
}

impl Node {
    /// Makes a node of `http://host:port` or `https://host:port`; the error is a text.
    pub(crate) fn new(url: &str, limits: PoolLimits, access: &Access) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("not a URL ({error})"))?;
        let default_port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") if access.tls.is_none() => {
                return Err(
                    "https needs the authorities of the nodes' certificates (Builder::tls, --ca)".to_owned()
                );
            }
            Some("https") => 443,
            _ => return Err("the scheme is neither http nor https".to_owned()),
        };
        if uri.path_and_query().is_some_and(|path| path != "/") {
            return Err("a path is not allowed".to_owned());
        }
        let authority = uri.authority().ok_or("no host")?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err("a user is not allowed, a host is needed".to_owned());
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?;
        Ok(Self {
            name: url.trim_end_matches('/').into(),
            address: format!(
                "{}:{}",
                authority.host().to_ascii_lowercase(),
                authority.port_u16().unwrap_or(default_port)
            ),
            secured: (default_port == 443).then(|| authority.host().to_ascii_lowercase()),
            host,
            access: access.clone(),
            limits,
            permits: Arc::new(Semaphore::new(limits.connections_max)),
            idle: Mutex::default(),
            marks: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Adds the headers of every request to the node: its `Host`, and the client's token.
    pub(crate) fn address_head(&self, headers: &mut HeaderMap) {
        headers.insert(HOST, self.host.clone());
        if let Some(authorization) = &self.access.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// The address at which it listens, `host:port`, which identifies the node.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Lets other nodes go first, until [`Node::take_back`]; false if it was set aside already.
    pub(crate) fn set_aside(&self) -> bool {
        !std::mem::replace(&mut lock(&self.marks).is_aside, true)
    }

    pub(crate) fn take_back(&self) {
        lock(&self.marks).is_aside = false;
    }

    /// Notes that the node should not be asked again before `until`.
    pub(crate) fn rest(&self, until: Instant) {
        let mut marks = lock(&self.marks);
        marks.rest_until = marks.rest_until.max(Some(until));
    }

    pub(crate) fn health(&self, now: Instant) -> Health {
        let marks = *lock(&self.marks);
        match marks.rest_until {
            _ if marks.is_aside => Health::Aside,
            Some(until) if until > now => Health::RestsUntil(until),
            _ => Health::Well,
        }
    }

    /// Makes one request on a connection of its own, without a right. The client's own requests use it, one
    /// at a time, because they must not wait for the operations whose node they check.
    pub(crate) async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<(StatusCode, Bytes), Cause> {
        let mut connection = self.connect(deadline).await?;
        let sent = timeout_at(deadline, connection.sender.send_request(request)).await;
        let response = sent
            .map_err(|_| Cause::DeadlinePassed { waiting_for: "answer" })?
            .map_err(|error| Cause::Lost(error.into()))?;
        let status = response.status();
        Ok((status, read_whole(&mut response.into_body(), bytes_max, deadline).await?))
    }

    /// Waits for the right to use a connection, and takes an idle one or makes one.
    pub(crate) async fn checkout(self: &Arc<Self>, deadline: Instant) -> Result<Lease, Cause> {
        let Ok(Ok(permit)) = timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await else {
            return Err(Cause::DeadlinePassed { waiting_for: "free connection" });
        };
        while let Some(mut connection) = self.pop() {
            if let Ok(Ok(())) = timeout(READY_WAIT, connection.sender.ready()).await {
                return Ok(Lease { connection, permit, is_reused: true, node: Arc::clone(self) });
            }
        }
        let connection = self.connect(deadline).await?;
        Ok(Lease { connection, permit, is_reused: false, node: Arc::clone(self) })
    }

    /// Takes the idle connection that was used last, and drops those found closed or too old.
    fn pop(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        while let Some((connection, since)) = idle.stack.pop() {
            if self.is_fresh(&connection, since) {
                return Some(connection);
            }
        }
        None
    }

    fn is_fresh(&self, connection: &Connection, since: Instant) -> bool {
        !connection.sender.is_closed() && since.elapsed() < self.limits.idle_timeout
    }

    #[expect(clippy::disallowed_methods, reason = "the client owns its sockets")]
    async fn connect(&self, deadline: Instant) -> Result<Connection, Cause> {
        let connect_by = later(Instant::now(), self.limits.connect_timeout);
        let connect = async {
            let stream = TcpStream::connect(&self.address).await?;
            // A request is one write, and its answer is waited for: delaying small packets gains nothing.
            stream.set_nodelay(true)?;
            match (&self.secured, &self.access.tls) {
                // In a box: it is large, and a connection without TLS has no place for it.
                (Some(host), Some(tls)) => Box::pin(tls.connect(host, stream)).await.map(Either::Right),
                _ => Ok(Either::Left(stream)),
            }
        };
        let stream = match timeout_at(connect_by.min(deadline), connect).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(Cause::Connect(error.into())),
            Err(_) if connect_by < deadline => {
                return Err(Cause::Connect(
                    format!("no connection in {:?}", self.limits.connect_timeout).into(),
                ));
            }
            Err(_) => return Err(Cause::DeadlinePassed { waiting_for: "connection" }),
        };
        match stream {
            Either::Left(stream) => Connection::open(stream).await,
            Either::Right(stream) => Connection::open(stream).await,
        }
    }

    /// Whether connections to it are encrypted.
    pub(crate) fn is_secured(&self) -> bool {
        self.secured.is_some()
    }

    /// Keeps `connection` for the next operation, and starts a sweep task that closes connections which are
    /// not used again.
    fn keep(self: &Arc<Self>, connection: Connection) {
        let mut idle = lock(&self.idle);
        idle.stack.push((connection, Instant::now()));
        if !idle.is_swept {
            idle.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.limits.idle_timeout));
        }
    }

    /// Drops idle connections that are closed or too old, and says whether any is left.
    fn sweep(&self) -> bool {
        let mut idle = lock(&self.idle);
        idle.stack.retain(|(connection, since)| self.is_fresh(connection, *since));
        idle.is_swept = !idle.stack.is_empty();
        idle.is_swept
    }
}

/// Sweeps until nothing is idle, or the client is gone.
async fn sweep(node: Weak<Node>, idle_timeout: Duration) {
    loop {
        sleep((idle_timeout / 2).max(SWEEP_PAUSE_MIN)).await;
        match node.upgrade() {
            Some(node) if node.sweep() => {}
            _ => return,
        }
    }
}

impl Lease {
    /// Sends `request`, and waits for the head of its answer.
    ///
    /// If the error has the request in it, nothing of it was sent; otherwise all of it may have been.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        self.connection.sender.try_send_request(request).await
    }

    /// Whether an earlier operation used the connection: then the node may have closed it since.
    pub(crate) fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Closes the connection and makes a new one, with the same right.
    pub(crate) async fn renew(&mut self, deadline: Instant) -> Result<(), Cause> {
        self.connection.driver.abort();
        self.connection = self.node.connect(deadline).await?;
        self.is_reused = false;
        Ok(())
    }

    /// Gives the connection back for the next operation. The last answer must have been read to its end.
    pub(crate) fn recycle(self) {
        let Self { connection, permit, node, .. } = self;
        node.keep(connection);
        // Only now, so that the operation that waits for the permit finds the connection.
        drop(permit);
    }
}

/// A panic while one of these locks is held leaves no inconsistent state: they guard single assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `count` nodes that do not run.
    pub(crate) fn nodes(count: usize) -> Vec<Arc<Node>> {
        let limits =
            PoolLimits { connections_max: 1, connect_timeout: Duration::MAX, idle_timeout: Duration::MAX };
        (0..count)
            .map(|n| Arc::new(Node::new(&format!("http://n{n}:1"), limits, &Access::default()).unwrap()))
            .collect()
    }

    #[test]
    fn takes_base_urls_only() {
        let limits =
            PoolLimits { connections_max: 1, connect_timeout: Duration::MAX, idle_timeout: Duration::MAX };
        let check = |url: &str, expect: Option<(&str, &str)>| {
            let node = Node::new(url, limits, &Access::default());
            let seen = node.as_ref().ok().map(|node| (node.address.as_str(), &*node.name));
            assert_eq!(seen, expect, "{url}: {node:?}");
        };
        check("http://127.0.0.1:8080", Some(("127.0.0.1:8080", "http://127.0.0.1:8080")));
        check("http://N1.example:8080/", Some(("n1.example:8080", "http://N1.example:8080")));
        check("http://[::1]:8080", Some(("[::1]:8080", "http://[::1]:8080")));
        check("http://n1", Some(("n1:80", "http://n1")));
        for wrong in
            ["", "n1:8080", "https://n1:1", "http://n1:1/v0", "http://n1:1/?a", "http://me@n1:1", "http://:1"]
        {
            check(wrong, None);
        }
    }
}
