//! The simulated network, as the node sees it: a listener and a connector over turmoil.
//!
//! Hosts are named `node-0`, `client-0` and so on; every node listens on [`PORT`].

use kvorum_server::http::server::Listener;
use kvorum_server::peer::{BoxedStream, Connector};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

/// The port that every node listens on.
pub const PORT: u16 = 8080;

/// The name of a node's host.
pub fn host_of(node: u16) -> String {
    format!("node-{node}")
}

/// The authority of a node's URL.
pub fn authority_of(node: u16) -> String {
    format!("{}:{PORT}", host_of(node))
}

/// The URL of a node.
pub fn url_of(node: u16) -> String {
    format!("http://{}", authority_of(node))
}

/// A machine's power: while it is off, the machine sends nothing.
#[derive(Debug, Clone, Default)]
pub struct Power(Rc<Cell<bool>>);

impl Power {
    /// Turns it off, or on again.
    pub fn set_off(&self, is_off: bool) {
        self.0.set(is_off);
    }

    /// Whether it is off.
    pub fn is_off(&self) -> bool {
        self.0.get()
    }
}

/// A connection of a machine. It ends without a message when the power fails: the driver takes the machine
/// down a moment later.
pub struct Wire {
    stream: TcpStream,
    power: Power,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.power.is_off() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.power.is_off() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connector of a machine on the simulated network.
#[derive(Debug, Clone, Default)]
pub struct SimConnector {
    /// The machine's power.
    pub power: Power,
}

impl Connector for SimConnector {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        let power = self.power.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(authority).await?;
            Ok(Box::new(Wire { stream, power }) as BoxedStream)
        })
    }
}

type Accepting = Pin<Box<dyn Future<Output = io::Result<(TcpStream, IpAddr)>>>>;

/// A listener on the simulated network.
pub struct SimListener {
    listener: Rc<TcpListener>,
    power: Power,
    // The acceptance under way: turmoil's listener can be awaited, but not polled.
    accepting: RefCell<Option<Accepting>>,
}

impl SimListener {
    /// Listens on [`PORT`] of the host on which it is called, for as long as it has `power`.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn bind(power: Power) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        Ok(Self { listener: Rc::new(listener), power, accepting: RefCell::new(None) })
    }
}

impl Listener for SimListener {
    type Stream = Wire;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Wire, IpAddr)>> {
        let mut slot = self.accepting.borrow_mut();
        let accepting = slot.get_or_insert_with(|| {
            let listener = Rc::clone(&self.listener);
            Box::pin(async move { listener.accept().await.map(|(stream, client)| (stream, client.ip())) })
        });
        let accepted = ready!(accepting.as_mut().poll(cx));
        *slot = None;
        Poll::Ready(accepted.map(|(stream, client)| (Wire { stream, power: self.power.clone() }, client)))
    }
}
