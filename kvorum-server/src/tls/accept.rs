//! The answering side of a handshake.

use super::{Shown, Tls};
use kvorum_tls::tokio_rustls::TlsAcceptor;
use kvorum_tls::tokio_rustls::server::TlsStream;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first byte of a TLS connection: a record of the handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

/// A connection whose first byte was read.
pub enum Arrived<S> {
    /// It begins a handshake.
    Tls(Rewound<S>),
    /// It begins something else.
    Plain(Rewound<S>),
}

/// Reads the first byte of `stream`; none if the connection ends before.
///
/// # Cancel safety
/// Dropping the future drops the stream.
pub async fn arrive<S: AsyncRead + Unpin>(mut stream: S) -> Option<Arrived<S>> {
    let mut first = [0];
    stream.read_exact(&mut first).await.ok()?;
    let stream = Rewound { first: Some(first), stream };
    Some(if first == [HANDSHAKE_RECORD] { Arrived::Tls(stream) } else { Arrived::Plain(stream) })
}

/// What a handshake gave.
pub struct Handshake<S> {
    /// The connection.
    pub stream: TlsStream<Rewound<S>>,
    /// The certificate that the caller showed; none if it showed none.
    pub shown: Option<Shown>,
}

impl Tls {
    /// The handshake with whom `stream` comes from. The caller bounds the wait.
    ///
    /// # Errors
    /// Why there is no connection.
    ///
    /// # Cancel safety
    /// Dropping the future drops the stream.
    pub async fn shake_hands<S>(&self, stream: Rewound<S>) -> io::Result<Handshake<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let server = Arc::clone(&self.current().server);
        let done = TlsAcceptor::from(server).accept(stream).await;
        let count = if done.is_ok() { &self.handshakes } else { &self.handshake_failures };
        count.fetch_add(1, Ordering::Relaxed);
        let stream = done?;
        let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
        let shown = chain.and_then(Shown::of);
        Ok(Handshake { stream, shown })
    }
}

/// A stream whose first byte was read and is given again.
pub struct Rewound<S> {
    first: Option<[u8; 1]>,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buf.put_slice(&first);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
