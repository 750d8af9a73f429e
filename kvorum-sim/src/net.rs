//! The simulated network, as the node sees it: a listener and a connector over turmoil.
//!
//! Hosts are named `node-0`, `client-0` and so on; every node listens on [`PORT`].

use kvorum::http::server::Listener;
use kvorum::peer::{BoxedStream, Connector};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
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

/// This connects over the simulated network.
#[derive(Debug, Clone, Copy, Default)]
pub struct SimConnector;

impl Connector for SimConnector {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(async move { Ok(Box::new(TcpStream::connect(authority).await?) as BoxedStream) })
    }
}

type Accepting = Pin<Box<dyn Future<Output = io::Result<(TcpStream, IpAddr)>>>>;

/// This listens on the simulated network.
pub struct SimListener {
    listener: Rc<TcpListener>,
    // The acceptance under way: turmoil's listener can only be waited for, not polled.
    accepting: RefCell<Option<Accepting>>,
}

impl SimListener {
    /// Listens on [`PORT`] of the host on which it is called.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        Ok(Self { listener: Rc::new(listener), accepting: RefCell::new(None) })
    }
}

impl Listener for SimListener {
    type Stream = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, IpAddr)>> {
        let mut slot = self.accepting.borrow_mut();
        let accepting = slot.get_or_insert_with(|| {
            let listener = Rc::clone(&self.listener);
            Box::pin(async move { listener.accept().await.map(|(stream, client)| (stream, client.ip())) })
        });
        let accepted = ready!(accepting.as_mut().poll(cx));
        *slot = None;
        Poll::Ready(accepted)
    }
}
