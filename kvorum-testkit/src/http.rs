//! The raw HTTP client: knows only as much of HTTP as it needs to cut a byte stream into answers, so that a test
//! sees the bytes that a client would see. Every wait has a bound.
//!
//! A [`Connection`] sends bytes and cuts answers, also those that a correct client would never ask for. A
//! [`Client`] sends requests, connects again by itself, and tells what is known of a request without an answer.

use crate::history::Moment;
use crate::process::Log;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Returns the only answer.
#[track_caller]
pub fn one(mut answers: Vec<Answer>) -> Answer {
    assert_eq!(answers.len(), 1, "{answers:#?}");
    answers.remove(0)
}

/// The bytes of a request. `headers` are lines that each end with `\r\n`.
pub fn encode(method: &str, target: &str, headers: &str, body: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}").into_bytes();
    if let Some(body) = body {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
    } else {
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Sends one request on a connection of its own; the answer must be whole, but for chunks that are missing.
///
/// # Errors
/// No connection, or one that ended before the answer did.
pub fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    body: Option<&[u8]>,
    wait: Duration,
) -> io::Result<Answer> {
    let mut connection = Connection::open(address, wait)?;
    connection.exchange(method, target, "Connection: close\r\n", body)
}

/// An answer as it came over the wire.
#[derive(Clone)]
pub struct Answer {
    /// The first line, without its end.
    pub status_line: String,
    /// The status code.
    pub status: u16,
    /// Names in lower case, values trimmed, in order.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// The chunks of a chunked body.
    pub chunks: Option<Vec<Vec<u8>>>,
    /// Whether the body came to its end: false if the connection ended before.
    pub is_whole: bool,
}

impl Answer {
    /// The header's value; `None` if it is missing. Panics if it is there twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values =
            self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Whether the answer announces that the connection ends.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = self.body.get(..200).unwrap_or(&self.body);
        write!(
            f,
            "{} {:?} {} bytes, whole {}: {:?}",
            self.status_line,
            self.headers,
            self.body.len(),
            self.is_whole,
            head.escape_ascii().to_string()
        )
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Bytes that arrived and belong to no answer yet.
    pending: Vec<u8>,
    buffer: Vec<u8>,
    next_has_no_body: bool,
    /// Of the node at the other end; shown when an expected answer does not come.
    log: Log,
}

/// The end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server has closed the connection.
    Closed,
    /// The server has reset the connection.
    Reset,
}

impl Connection {
    /// Connects; no wait for the server, then or later, is longer than `wait`.
    ///
    /// # Errors
    /// Nobody listens, or the connection was not made in time.
    pub fn open(address: SocketAddr, wait: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, wait)?;
        stream.set_nodelay(true)?;
        let buffer = vec![0; 256 << 10];
        let mut connection =
            Self { stream, pending: Vec::new(), buffer, next_has_no_body: false, log: Log::default() };
        connection.set_wait(wait);
        Ok(connection)
    }

    /// Shows `log` in the text of each failure.
    #[must_use]
    pub fn with_log(mut self, log: &Log) -> Self {
        self.log = log.clone();
        self
    }

    /// Sets the longest wait for the server.
    pub fn set_wait(&mut self, wait: Duration) {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        self.stream.set_write_timeout(Some(wait)).unwrap();
    }

    /// Sends bytes. It is no failure if the server has closed the connection meanwhile: its answer tells the
    /// reason.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.try_send(bytes);
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection has ended, or takes no byte in time.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Closes the sending direction.
    pub fn end_sending(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Marks the next answer as one to a HEAD.
    pub fn expect_no_body(&mut self) {
        self.next_has_no_body = true;
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// As [`Self::answer`]; where the request could not be sent either, why.
    pub fn exchange(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: Option<&[u8]>,
    ) -> io::Result<Answer> {
        self.next_has_no_body = method == "HEAD";
        // A refusal may come, and the connection end, before all of the request is taken.
        let sent = self.try_send(&encode(method, target, headers, body));
        self.answer().map_err(|error| sent.err().unwrap_or(error))
    }

    /// Reads the next answer.
    #[track_caller]
    pub fn recv(&mut self) -> Answer {
        match self.try_recv() {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                panic!("the connection ended without an answer; the node's log:\n{}", self.log.text())
            }
            Err(error) => panic!("no answer: {error}; the node's log:\n{}", self.log.text()),
        }
    }

    /// Reads the answers until the server ends the connection.
    #[track_caller]
    pub fn recv_all(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            match self.try_recv() {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return answers,
                Err(error) => panic!(
                    "the connection does not end: {error}; so far {answers:?} and {:?}; the node's log:\n{}",
                    self.pending.escape_ascii().to_string(),
                    self.log.text()
                ),
            }
        }
    }

    /// Reads the next answer, which must be there, and whole but for chunks that are missing.
    ///
    /// # Errors
    /// As [`Self::try_recv`], and an end of the connection before the answer's.
    pub fn answer(&mut self) -> io::Result<Answer> {
        match self.try_recv()? {
            Some(answer) if answer.is_whole || answer.chunks.is_some() => Ok(answer),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the next answer; `None` if the connection ends (also by reset) before one begins. An answer that
    /// ends early is one with `is_whole` false.
    ///
    /// # Errors
    /// No byte in time, an end in the middle of a head, or bytes that are no HTTP.
    pub fn try_recv(&mut self) -> io::Result<Option<Answer>> {
        let no_body = std::mem::take(&mut self.next_has_no_body);
        loop {
            if let Some((answer, used)) = parse(&self.pending, no_body, false)? {
                self.pending.drain(..used);
                return Ok(Some(answer));
            }
            if self.fill()?.is_some() {
                let parsed = parse(&self.pending, no_body, true)?;
                if parsed.is_none() && !self.pending.is_empty() {
                    let head = self.pending.escape_ascii().to_string();
                    let text = format!("the connection ended in the middle of a head: {head:?}");
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                self.pending.clear();
                return Ok(parsed.map(|(answer, _)| answer));
            }
        }
    }

    /// Waits until the server ends the connection, without a further byte.
    #[track_caller]
    pub fn recv_end(&mut self) -> Ended {
        let log = self.log.clone();
        let ended = self.fill().unwrap_or_else(|error| panic!("not closed: {error}; log:\n{}", log.text()));
        assert!(self.pending.is_empty(), "{:?}", self.pending.escape_ascii().to_string());
        ended.unwrap_or_else(|| unreachable!("bytes came, so they are pending"))
    }

    /// Waits until the next answer has begun; reads at most 256 KiB of it.
    ///
    /// # Errors
    /// As [`Self::try_recv`].
    pub fn wait_for_byte(&mut self) -> io::Result<()> {
        match self.fill()? {
            Some(_) => Err(ErrorKind::UnexpectedEof.into()),
            None => Ok(()),
        }
    }

    /// Reads up to `bytes` raw bytes; 0 at the end of the connection.
    pub fn recv_raw(&mut self, bytes: usize) -> Vec<u8> {
        if self.pending.is_empty() {
            self.fill().unwrap();
        }
        let bytes = bytes.min(self.pending.len());
        self.pending.drain(..bytes).collect()
    }

    /// Waits for bytes; returns how the connection ended if it did.
    fn fill(&mut self) -> io::Result<Option<Ended>> {
        use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted};
        loop {
            return match self.stream.read(&mut self.buffer) {
                Ok(0) => Ok(Some(Ended::Closed)),
                Ok(bytes) => {
                    self.pending.extend_from_slice(&self.buffer[..bytes]);
                    Ok(None)
                }
                Err(error) if error.kind() == Interrupted => continue,
                Err(error) if matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe) => {
                    Ok(Some(Ended::Reset))
                }
                Err(error) => Err(error),
            };
        }
    }
}

/// The first answer in `bytes` and its length in bytes; `None` while it is not whole, unless `is_end`.
fn parse(bytes: &[u8], no_body: bool, is_end: bool) -> io::Result<Option<(Answer, usize)>> {
    let Some(head_end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..head_end]).map_err(io::Error::other)?;
    let head_bytes = head_end + 4;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default().to_owned();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| io::Error::other(format!("this is no status line: {status_line:?}")))?;
    let header = |line: &str| {
        let (name, value) =
            line.split_once(':').ok_or_else(|| io::Error::other(format!("no header: {line:?}")))?;
        Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers = lines.map(header).collect::<io::Result<Vec<_>>>()?;
    let mut answer = Answer { status_line, status, headers, body: Vec::new(), chunks: None, is_whole: true };
    let rest = &bytes[head_bytes..];
    if no_body || (100..200).contains(&status) || status == 204 || status == 304 {
        return Ok(Some((answer, head_bytes)));
    }
    if answer.header("transfer-encoding").is_some() {
        assert!(answer.header("content-length").is_none(), "{answer:?}");
        let (chunks, used) = find_chunks(rest)?;
        answer.is_whole = used.is_some();
        if !answer.is_whole && !is_end {
            return Ok(None);
        }
        let chunks: Vec<Vec<u8>> = chunks.into_iter().map(<[u8]>::to_vec).collect();
        answer.body = chunks.concat();
        answer.chunks = Some(chunks);
        return Ok(Some((answer, used.map_or(bytes.len(), |used| head_bytes + used))));
    }
    if let Some(length) = answer.header("content-length") {
        let length: usize = length.parse().map_err(io::Error::other)?;
        answer.is_whole = rest.len() >= length;
        if !answer.is_whole && !is_end {
            return Ok(None);
        }
        answer.body = rest[..length.min(rest.len())].to_vec();
        let used = head_bytes + answer.body.len();
        return Ok(Some((answer, used)));
    }
    if !is_end {
        return Ok(None);
    }
    // Neither: the body ends with the connection.
    answer.body = rest.to_vec();
    Ok(Some((answer, bytes.len())))
}

/// The chunks in `bytes`, and their length in bytes if the last one is there.
fn find_chunks(bytes: &[u8]) -> io::Result<(Vec<&[u8]>, Option<usize>)> {
    let mut chunks = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = memchr::memmem::find(&bytes[at..], b"\r\n") else { return Ok((chunks, None)) };
        let size = std::str::from_utf8(&bytes[at..at + line]).map_err(io::Error::other)?;
        let size = usize::from_str_radix(size, 16)
            .map_err(|_| io::Error::other(format!("no chunk size: {size:?}")))?;
        let data = at + line + 2;
        let Some(chunk) = bytes.get(data..data + size + 2) else { return Ok((chunks, None)) };
        if !chunk.ends_with(b"\r\n") {
            return Err(io::Error::other("a chunk does not end with CRLF"));
        }
        at = data + size + 2;
        if size == 0 {
            return Ok((chunks, Some(at)));
        }
        chunks.push(&chunk[..size]);
    }
}

/// A client of one address, over one connection while that lasts.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    wait: Duration,
    connection: Option<Connection>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// There was no connection, or its end had been announced before: the node has not taken the request.
    NotTaken(io::Error),
    /// The connection ended before the answer: the request may have been carried out.
    Cut(io::Error),
    /// No answer in time: the request may have been carried out, or may still be.
    Late(io::Error),
}

impl NoAnswer {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Late(error),
            _ => Self::Cut(error),
        }
    }
}

impl Client {
    /// A client of `address` that waits for as long as `wait`; it connects when it is used.
    pub fn new(address: SocketAddr, wait: Duration) -> Self {
        Self { address, wait, connection: None }
    }

    fn connected(&mut self) -> io::Result<Connection> {
        self.connection.take().map_or_else(|| Connection::open(self.address, self.wait), Ok)
    }

    /// Sends one request and waits for its answer. A cut connection is not tried again.
    ///
    /// # Errors
    /// What is known of the request.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, NoAnswer> {
        let mut connection = self.connected().map_err(NoAnswer::NotTaken)?;
        let answer = connection.exchange(method, target, headers, body).map_err(NoAnswer::of)?;
        if answer.is_whole && !answer.closes() {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    /// Sends several requests at once, then reads their answers, each with the instant of its arrival. The
    /// node does not take requests after one whose answer announces the connection's end.
    pub fn pipeline(&mut self, requests: &[u8], count: usize) -> Vec<(Result<Answer, NoAnswer>, Moment)> {
        let mut connection = self.connected().map_err(|error| error.kind());
        if let Ok(connection) = &mut connection {
            // An answer may come, and the connection end, before all requests are taken.
            connection.send(requests);
        }
        let mut is_cut = false;
        let mut answer = || {
            let error = match &mut connection {
                Ok(open) => match open.answer() {
                    Ok(answer) => {
                        if answer.closes() {
                            connection = Err(ErrorKind::NotConnected);
                        }
                        return Ok(answer);
                    }
                    Err(error) => {
                        is_cut = true;
                        connection = Err(error.kind());
                        error
                    }
                },
                Err(kind) => io::Error::from(*kind),
            };
            Err(if is_cut { NoAnswer::Cut(error) } else { NoAnswer::NotTaken(error) })
        };
        let answers = (0..count).map(|_| (answer(), Moment::now())).collect();
        self.connection = connection.ok();
        answers
    }

    /// Sends one request that must be answered.
    #[track_caller]
    pub fn ask(&mut self, method: &str, target: &str, body: Option<&[u8]>) -> Answer {
        self.request(method, target, "", body).unwrap_or_else(|error| panic!("{method} {target}: {error:?}"))
    }
}
