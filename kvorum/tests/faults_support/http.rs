//! A client of one connection that reports a cut connection and does not fail.

use super::history::Moment;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// An answer that arrived with a whole head.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; of a chunked one, the part that arrived.
    pub body: Vec<u8>,
    /// Whether a chunked body came to its final chunk. Always true for others, which are an error when cut.
    pub is_whole: bool,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A client of one address, over one connection while that lasts.
pub struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// There was no connection, or its end had been announced before: the node has not taken the request.
    NotTaken(io::Error),
    /// The connection ended before the answer: the request may have been carried out.
    Cut(io::Error),
}

impl Client {
    /// A client of `address`; it connects when it is used.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends one request and waits for its answer. A cut connection is not tried again.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, NoAnswer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address).map_err(NoAnswer::NotTaken)?,
        };
        let exchanged = exchange(&mut stream, &encode(method, target, headers, body));
        let answer = exchanged.map_err(NoAnswer::Cut)?;
        if answer.is_whole && answer.header("connection") != Some("close") {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    /// Sends several requests at once, then reads their answers, each with the instant of its arrival. The
    /// node does not take requests after one whose answer announces the connection's end.
    pub fn pipeline(&mut self, requests: &[u8], count: usize) -> Vec<(Result<Answer, NoAnswer>, Moment)> {
        let stream = self.stream.take().map_or_else(|| connect(self.address), Ok);
        let mut stream = stream.map_err(|error| error.kind());
        if let Ok(stream) = &mut stream {
            // An answer may come, and the connection end, before all requests are taken.
            let _ = stream.get_mut().write_all(requests);
        }
        let mut is_cut = false;
        let mut answer = || {
            let error = match &mut stream {
                Ok(connected) => match receive(connected) {
                    Ok(answer) => {
                        if answer.header("connection") == Some("close") {
                            stream = Err(io::ErrorKind::NotConnected);
                        }
                        return Ok(answer);
                    }
                    Err(error) => {
                        is_cut = true;
                        stream = Err(error.kind());
                        error
                    }
                },
                Err(kind) => io::Error::from(*kind),
            };
            Err(if is_cut { NoAnswer::Cut(error) } else { NoAnswer::NotTaken(error) })
        };
        let answers = (0..count).map(|_| (answer(), Moment::now())).collect();
        self.stream = stream.ok();
        answers
    }

    /// Sends one request that must be answered.
    pub fn ask(&mut self, method: &str, target: &str, body: Option<&[u8]>) -> Answer {
        self.request(method, target, "", body).unwrap_or_else(|error| panic!("{method} {target}: {error:?}"))
    }
}

/// The bytes of a request.
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

/// Opens a connection with bounded waits.
pub fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WAIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    Ok(BufReader::new(stream))
}

fn exchange(stream: &mut BufReader<TcpStream>, request: &[u8]) -> io::Result<Answer> {
    // A refusal may come, and the connection end, before all of the request is taken.
    let sent = stream.get_mut().write_all(request);
    receive(stream).map_err(|error| sent.err().unwrap_or(error))
}

/// Reads one answer.
pub fn receive(stream: &mut BufReader<TcpStream>) -> io::Result<Answer> {
    let line = read_line(stream)?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status line: {line:?}")))?;
    let mut answer = Answer { status, headers: Vec::new(), body: Vec::new(), is_whole: true };
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| io::Error::other("no header"))?;
        answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if answer.header("transfer-encoding").is_some() {
        answer.is_whole = read_chunks(stream, &mut answer.body).is_ok();
    } else {
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        answer.body = vec![0; length];
        stream.read_exact(&mut answer.body)?;
    }
    Ok(answer)
}

fn read_chunks(stream: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let line = read_line(stream)?;
        let size = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
        let begin = body.len();
        body.resize(begin + size, 0);
        if let Err(error) = stream.read_exact(&mut body[begin..]) {
            body.truncate(begin);
            return Err(error);
        }
        read_line(stream)?;
        if size == 0 {
            return Ok(());
        }
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(line.to_owned())
}
