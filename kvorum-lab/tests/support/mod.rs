//! A store in memory that implements enough of the contract to test the lab, with chosen faults.
//!
//! One thread per connection, no limits, no durability: never judge a node by it. Shared by the tests and by
//! the example `toy-node`, with which the suite can be tried.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each of its users needs a part of it")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a real server for tests of real sockets"
)]

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

/// The server's behaviour for one request, chosen by the request's number (from 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// As the contract says.
    Right,
    /// Answers with a status, and a line of text.
    Status(u16),
    /// Closes the connection without an answer.
    Close,
    /// Answers with bytes that are no HTTP.
    Garbage,
    /// 200 and a body that is not the value.
    Wrong,
    /// No answer, ever; the connection stays open.
    Hang,
}

type Script = dyn Fn(u64) -> Behaviour + Send + Sync;

/// The server. Its threads run until the process ends.
pub struct Toy {
    records: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    requests: AtomicU64,
    /// The names of all headers that came, in lower case.
    headers: Mutex<Vec<String>>,
    /// Held by a test that stalls the whole server.
    pub gate: Mutex<()>,
    script: Box<Script>,
}

impl Toy {
    pub fn start(script: impl Fn(u64) -> Behaviour + Send + Sync + 'static) -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let toy = Self::new(script);
        thread::spawn({
            let toy = Arc::clone(&toy);
            move || toy.accept(&listener)
        });
        (toy, address)
    }

    pub fn new(script: impl Fn(u64) -> Behaviour + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            records: RwLock::default(),
            requests: AtomicU64::new(0),
            headers: Mutex::default(),
            gate: Mutex::default(),
            script: Box::new(script),
        })
    }

    pub fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for connection in listener.incoming().flatten() {
            let toy = Arc::clone(self);
            thread::spawn(move || toy.serve(&connection));
        }
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often a header came, whose name begins with x.
    pub fn headers(&self, name: &str) -> usize {
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        headers.iter().filter(|found| *found == name).count()
    }

    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).get(key.as_bytes()).cloned()
    }

    pub fn len(&self) -> usize {
        self.records.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn insert(&self, key: &[u8], value: &[u8]) {
        self.records.write().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), value.to_vec());
    }

    fn serve(&self, connection: &TcpStream) -> io::Result<()> {
        connection.set_nodelay(true)?;
        let mut reader = BufReader::new(connection);
        let mut writer = BufWriter::with_capacity(64 * 1024, connection);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut length = 0;
            loop {
                let mut header = String::new();
                reader.read_line(&mut header)?;
                if header.trim().is_empty() {
                    break;
                }
                if let Some((name, _)) =
                    header.split_once(':').filter(|(name, _)| name.starts_with(['x', 'X']))
                {
                    let mut headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
                    headers.push(name.to_ascii_lowercase());
                }
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap_or(0);
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            drop(self.gate.lock());
            let behaviour = (self.script)(self.requests.fetch_add(1, Ordering::Relaxed));
            match behaviour {
                Behaviour::Right => self.answer(&line, &body, &mut writer)?,
                Behaviour::Status(status) => respond(&mut writer, status, b"on order\n")?,
                Behaviour::Close => return Ok(()),
                Behaviour::Garbage => writer.write_all(b"what is HTTP?\r\n\r\n")?,
                Behaviour::Wrong => respond(&mut writer, 200, b"not the value")?,
                Behaviour::Hang => loop {
                    thread::park();
                },
            }
            writer.flush()?;
        }
    }

    fn answer(&self, line: &str, body: &[u8], writer: &mut impl Write) -> io::Result<()> {
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::as_bytes)
        };
        match (method, path, parameter("id"), parameter("start")) {
            ("GET", "/v0/status", ..) => respond(writer, 200, b""),
            ("PUT", "/v0/entity", Some(key), _) => {
                self.insert(key, body);
                respond(writer, 201, b"")
            }
            ("GET", "/v0/entity", Some(key), _) => {
                let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
                match records.get(key) {
                    Some(value) => respond(writer, 200, value),
                    None => respond(writer, 404, b"no such key\n"),
                }
            }
            ("DELETE", "/v0/entity", Some(key), _) => {
                self.records.write().unwrap_or_else(PoisonError::into_inner).remove(key);
                respond(writer, 202, b"")
            }
            ("GET", "/v0/entities", _, Some(start)) => {
                let limit =
                    parameter("limit").and_then(|limit| std::str::from_utf8(limit).ok()?.parse().ok());
                let end = parameter("end").unwrap_or(b"\xff\xff");
                self.range(start, end, limit.unwrap_or(usize::MAX), writer)
            }
            _ => respond(writer, 400, b"what?\n"),
        }
    }

    fn range(&self, start: &[u8], end: &[u8], limit: usize, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in records.range(start.to_vec()..end.to_vec()).take(limit) {
            write!(writer, "{:x}\r\n", key.len() + 1 + value.len())?;
            writer.write_all(key)?;
            writer.write_all(b"\n")?;
            writer.write_all(value)?;
            writer.write_all(b"\r\n")?;
        }
        writer.write_all(b"0\r\n\r\n")
    }
}

fn respond(writer: &mut impl Write, status: u16, body: &[u8]) -> io::Result<()> {
    write!(writer, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len())?;
    writer.write_all(body)
}
