//! One keep-alive connection: a request out, its answer in, a deadline on everything.
//!
//! No pipelining, no retry, no pool: an operation is sent once, and its result is reported. After any failure
//! the connection is in an unknown state and must be dropped.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kvorum_tls::ClientTls;
use kvorum_tls::tokio_rustls::client::TlsStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::tally::{Broken, Failure};
use crate::http::{BodySink, ChunkedBody, Framing, Malformed, parse_head};

/// Bytes asked for in one read: enough for any small answer at once, and for scans to need few reads.
const READ_BYTES: usize = 64 * 1024;

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    /// The whole answer by this moment.
    Until(Instant),
    /// Some progress at least this often.
    Progress(Duration),
}

impl Patience {
    fn deadline(self) -> tokio::time::Instant {
        match self {
            Self::Until(at) => at.into(),
            Self::Progress(every) => tokio::time::Instant::now() + every,
        }
    }
}

/// The head of an answer whose body has gone to its sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Whether the server closes the connection now: open another for the next request.
    pub close: bool,
}

/// A node to load.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// For connections with TLS: whom to believe, and the host that the node's certificate must name.
    pub secured: Option<(ClientTls, String)>,
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { address, secured: None }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// A connection's stream, encrypted or not.
#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    async fn read_buf(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_buf(buffer).await,
            Self::Tls(stream) => stream.read_buf(buffer).await,
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: Wire,
    buffer: Vec<u8>,
    bytes_sent: u64,
    bytes_received: u64,
}

impl Connection {
    /// Connects to `target` by `deadline`.
    pub async fn open(target: &Target, deadline: Instant) -> Result<Self, Broken> {
        let connect = async {
            let stream = TcpStream::connect(target.address).await?;
            stream.set_nodelay(true)?;
            Ok(match &target.secured {
                None => Wire::Plain(stream),
                Some((tls, host)) => Wire::Tls(Box::new(Box::pin(tls.connect(host, stream)).await?)),
            })
        };
        let refused = |error: io::Error| Broken::by(Failure::Connect, &error);
        let connected = timeout_at(deadline.into(), connect).await;
        let stream = connected.map_err(|_| Failure::Connect)?.map_err(refused)?;
        Ok(Self { stream, buffer: Vec::with_capacity(READ_BYTES), bytes_sent: 0, bytes_received: 0 })
    }

    /// Sends `request` and gives the answer's body to `sink`. After an error the connection cannot be used
    /// again.
    pub async fn exchange(
        &mut self,
        request: &[u8],
        patience: Patience,
        sink: &mut impl BodySink,
    ) -> Result<Answer, Broken> {
        match timeout_at(patience.deadline(), self.stream.write_all(request)).await {
            Ok(Ok(())) => self.bytes_sent += request.len() as u64,
            Ok(Err(error)) => return Err(Broken::by(Failure::Send, &error)),
            Err(_) => return Err(Failure::Timeout.into()),
        }
        let head = loop {
            self.fill(patience).await?;
            if let Some(head) = parse_head(&self.buffer).map_err(malformed)? {
                break head;
            }
        };
        self.buffer.drain(..head.bytes);
        match head.framing {
            Framing::Length(length) => self.take_length(length, patience, sink).await?,
            Framing::Chunked => self.take_chunks(patience, sink).await?,
        }
        // No further bytes may follow: only one request is sent at a time.
        if self.buffer.is_empty() {
            Ok(Answer { status: head.status, close: head.close })
        } else {
            Err(Failure::Malformed.into())
        }
    }

    /// Bytes sent and received since the last call.
    pub fn take_bytes(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.bytes_sent), std::mem::take(&mut self.bytes_received))
    }

    async fn take_length(
        &mut self,
        length: u64,
        patience: Patience,
        sink: &mut impl BodySink,
    ) -> Result<(), Broken> {
        let mut left = length;
        loop {
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            sink.data(self.buffer.get(..take).unwrap_or_default());
            self.buffer.drain(..take);
            left -= take as u64;
            if left == 0 {
                return Ok(());
            }
            self.fill(patience).await?;
        }
    }

    async fn take_chunks(&mut self, patience: Patience, sink: &mut impl BodySink) -> Result<(), Broken> {
        let mut body = ChunkedBody::new();
        loop {
            let taken = body.feed(&self.buffer, sink).map_err(malformed)?;
            self.buffer.drain(..taken);
            if body.is_done() {
                return Ok(());
            }
            self.fill(patience).await?;
        }
    }

    /// Reads the bytes that have arrived, at least one, and appends them to the buffer.
    async fn fill(&mut self, patience: Patience) -> Result<(), Broken> {
        self.buffer.reserve(READ_BYTES);
        match timeout_at(patience.deadline(), self.stream.read_buf(&mut self.buffer)).await {
            Ok(Ok(0)) => Err(Failure::Closed.into()),
            Ok(Ok(read)) => {
                self.bytes_received += read as u64;
                Ok(())
            }
            Ok(Err(error)) => Err(Broken::by(Failure::Receive, &error)),
            Err(_) => Err(Failure::Timeout.into()),
        }
    }
}

fn malformed(_: Malformed) -> Broken {
    Failure::Malformed.into()
}
