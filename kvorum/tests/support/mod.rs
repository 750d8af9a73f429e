//! Support for the tests that run the real program: a server to start, stop and kill, and a raw HTTP client.
//!
//! The module knows only as much of HTTP as it needs to cut a byte stream into answers, so that a test sees
//! the bytes that a client would see. Every wait has a bound; a wait that exceeds it fails with the server's
//! log in the text.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses another part of this")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait for an event that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Milliseconds since the Unix epoch, now.
pub fn unix_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Calls `is_so` until it returns `true`; panics with `what` after [`PATIENCE`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The sum of a counter's or gauge's samples in the text of `/metrics`.
#[track_caller]
pub fn metric_sum(text: &str, name: &str) -> u64 {
    let samples: Vec<u64> = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(!samples.is_empty(), "no metric {name} in:\n{text}");
    samples.iter().sum()
}

/// The program with these arguments, and none of the caller's `KVORUM_*` variables.
pub fn kvorum(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVORUM_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// Runs a command to its end with `input` on its standard input.
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || {
        // A command that does not read its input may close it.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// A running node in a directory of its own, killed when it is dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    data_dir: PathBuf,
    arguments: Vec<String>,
    setup: Option<Setup>,
    log: Arc<Mutex<Vec<u8>>>,
    has_ended: Option<ExitStatus>,
    // Dropped last: the directory is removed after the process has ended.
    _temp_dir: Option<TempDir>,
}

type Setup = Box<dyn Fn(&mut Command) + Send + Sync>;

impl Server {
    /// Starts a node with these extra arguments in a new directory; it serves when the function returns.
    pub fn start(arguments: &[&str]) -> Self {
        let temp_dir = TempDir::with_prefix("kvorum-test-").unwrap();
        let data_dir = temp_dir.path().join("data");
        Self::launch(data_dir, Some(temp_dir), arguments, None)
    }

    /// Starts a node in `data_dir`, which is kept.
    pub fn start_in(data_dir: &Path, arguments: &[&str]) -> Self {
        Self::launch(data_dir.to_path_buf(), None, arguments, None)
    }

    /// Starts a node in `data_dir` (or a new directory). `setup` changes its command first, for example
    /// environment variables and limits; each restart applies it again.
    pub fn start_with(
        data_dir: Option<&Path>,
        arguments: &[&str],
        setup: impl Fn(&mut Command) + Send + Sync + 'static,
    ) -> Self {
        let temp_dir = data_dir.is_none().then(|| TempDir::with_prefix("kvorum-test-").unwrap());
        let data_dir =
            data_dir.map_or_else(|| temp_dir.as_ref().unwrap().path().join("data"), Path::to_path_buf);
        Self::launch(data_dir, temp_dir, arguments, Some(Box::new(setup)))
    }

    fn launch(
        data_dir: PathBuf,
        temp_dir: Option<TempDir>,
        arguments: &[&str],
        setup: Option<Setup>,
    ) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let log = Arc::new(Mutex::new(Vec::new()));
        let child = spawn(&data_dir, &arguments, setup.as_ref(), &log);
        let mut server = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir,
            arguments,
            setup,
            log,
            has_ended: None,
            _temp_dir: temp_dir,
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let begun = Instant::now();
        loop {
            let ended = self.try_wait();
            assert!(ended.is_none(), "the server ended with {ended:?}; its log:\n{}", self.log());
            assert!(begun.elapsed() < PATIENCE, "the server does not start; its log:\n{}", self.log());
            if let Some(address) = address_in(&self.log()) {
                self.address = address;
                if self.try_status() == Some(200) {
                    return;
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The status code of `/v0/status`; `None` if the node does not answer.
    pub fn try_status(&self) -> Option<u16> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok()?;
        let mut client = Client::new(stream, Arc::clone(&self.log));
        client.try_send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").ok()?;
        client.try_recv().ok()?.map(|answer| answer.status)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Its standard error since the last start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    /// Opens a new connection.
    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address)
            .unwrap_or_else(|error| panic!("cannot connect: {error}; the server's log:\n{}", self.log()));
        Client::new(stream, Arc::clone(&self.log))
    }

    /// Sends `bytes` on a new connection and reads until the server ends it: the last request should say
    /// `Connection: close` or be one that ends the connection.
    pub fn exchange(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut client = self.connect();
        client.send(bytes);
        client.recv_all()
    }

    /// Sends one request without a body on a connection of its own.
    pub fn request(&self, method: &str, target: &str) -> Answer {
        self.request_with(method, target, "")
    }

    /// Sends one request without a body, with further header lines, each ending with `\r\n`.
    pub fn request_with(&self, method: &str, target: &str, headers: &str) -> Answer {
        let mut client = self.connect();
        if method == "HEAD" {
            client.expect_no_body();
        }
        client.send(
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
                .as_bytes(),
        );
        one(client.recv_all())
    }

    /// Sends one PUT on a connection of its own; `query` is everything after the `?`.
    pub fn put(&self, query: &str, value: &[u8]) -> Answer {
        let head = format!(
            "PUT /v0/entity?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            value.len()
        );
        one(self.exchange(&[head.as_bytes(), value].concat()))
    }

    /// Sends one GET of `/v0/entity?{query}`.
    pub fn get(&self, query: &str) -> Answer {
        self.request("GET", &format!("/v0/entity?{query}"))
    }

    /// Resident memory of the process in bytes; `field` is `VmRSS` or `VmHWM`.
    pub fn memory_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        let kib: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }

    /// Sends it a signal, for example `libc::SIGTERM`.
    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until it ends. Panics if it does not.
    pub fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not end; its log:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its exit status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.has_ended.is_none() {
            self.has_ended = self.child.try_wait().unwrap();
        }
        self.has_ended
    }

    /// Tells it to end (SIGTERM) and returns its exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        if self.try_wait().is_none() {
            self.signal(libc::SIGTERM);
        }
        self.wait()
    }

    /// Kills it as a crash would (SIGKILL).
    pub fn kill9(&mut self) {
        if self.try_wait().is_none() {
            self.child.kill().unwrap();
            let status = self.child.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGKILL));
            self.has_ended = Some(status);
        }
    }

    /// Starts it again on the same directory with the same arguments (it must have ended, or is terminated first).
    /// It has another port afterwards.
    pub fn restart(&mut self) {
        self.terminate();
        self.log.lock().unwrap().clear();
        self.child = spawn(&self.data_dir, &self.arguments, self.setup.as_ref(), &self.log);
        self.has_ended = None;
        self.wait_until_ready();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- log of the server in {} ---\n{}---", self.data_dir.display(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(data_dir: &Path, arguments: &[String], setup: Option<&Setup>, log: &Arc<Mutex<Vec<u8>>>) -> Child {
    let mut command = kvorum(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    command.arg(data_dir).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some(setup) = setup {
        setup(&mut command);
    }
    let mut child = command.spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let log = Arc::clone(log);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = stderr.read(&mut buffer) {
            log.lock().unwrap().extend_from_slice(&buffer[..bytes]);
        }
    });
    child
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let line =
        log.split_inclusive('\n').find(|line| line.contains("kvorum serves") && line.ends_with('\n'))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("address="))?.parse().ok()
}

/// Returns the only answer.
pub fn one(mut answers: Vec<Answer>) -> Answer {
    assert_eq!(answers.len(), 1, "{answers:#?}");
    answers.remove(0)
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
pub struct Client {
    stream: TcpStream,
    /// Bytes that arrived and belong to no answer yet.
    pending: Vec<u8>,
    next_has_no_body: bool,
    log: Arc<Mutex<Vec<u8>>>,
}

/// The end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server has closed the connection.
    Closed,
    /// The server has reset the connection.
    Reset,
}

impl Client {
    fn new(stream: TcpStream, log: Arc<Mutex<Vec<u8>>>) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, pending: Vec::new(), next_has_no_body: false, log }
    }

    /// The socket, for uses that have no method here.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends bytes. It is no failure if the server has closed the connection meanwhile: its answer tells the
    /// reason.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.try_send(bytes);
    }

    /// Sends bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
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

    /// Reads the next answer.
    pub fn recv(&mut self) -> Answer {
        match self.try_recv() {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("the connection ended without an answer; the server's log:\n{}", self.log()),
            Err(error) => panic!("no answer: {error}; the server's log:\n{}", self.log()),
        }
    }

    /// Reads the answers until the server ends the connection.
    pub fn recv_all(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            match self.try_recv() {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return answers,
                Err(error) => panic!(
                    "the connection does not end: {error}; so far {answers:?} and {:?}; the server's log:\n{}",
                    self.pending.escape_ascii().to_string(),
                    self.log()
                ),
            }
        }
    }

    /// Reads the next answer; `None` if the connection ends (also by reset) before one begins. An answer that
    /// ends early is one with `is_whole` false.
    ///
    /// # Errors
    /// When no byte comes within [`PATIENCE`].
    pub fn try_recv(&mut self) -> std::io::Result<Option<Answer>> {
        let no_body = std::mem::take(&mut self.next_has_no_body);
        loop {
            if let Some((answer, used)) = parse(&self.pending, no_body, false) {
                self.pending.drain(..used);
                return Ok(Some(answer));
            }
            if self.fill()?.is_some() {
                let parsed = parse(&self.pending, no_body, true);
                assert!(
                    parsed.is_some() || self.pending.is_empty(),
                    "the connection ended in the middle of a head: {:?}",
                    self.pending.escape_ascii().to_string()
                );
                self.pending.clear();
                return Ok(parsed.map(|(answer, _)| answer));
            }
        }
    }

    /// Waits until the server ends the connection, without a further byte.
    pub fn recv_end(&mut self) -> Ended {
        let ended = self.fill().unwrap_or_else(|error| panic!("not closed: {error}; log:\n{}", self.log()));
        assert!(self.pending.is_empty(), "{:?}", self.pending.escape_ascii().to_string());
        ended.unwrap_or_else(|| unreachable!("bytes came, so they are pending"))
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
    fn fill(&mut self) -> std::io::Result<Option<Ended>> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted};
        let mut buffer = vec![0; 256 << 10];
        loop {
            return match self.stream.read(&mut buffer) {
                Ok(0) => Ok(Some(Ended::Closed)),
                Ok(bytes) => {
                    self.pending.extend_from_slice(&buffer[..bytes]);
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

    fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }
}

/// The first answer in `bytes` and its length in bytes; `None` while it is not whole, unless `is_end`.
fn parse(bytes: &[u8], no_body: bool, is_end: bool) -> Option<(Answer, usize)> {
    let head_bytes = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..head_bytes - 4]).expect("a head is text");
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap().to_owned();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("this is no status line: {status_line:?}"));
    let headers: Vec<(String, String)> = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no header: {line:?}"));
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    let mut answer = Answer { status_line, status, headers, body: Vec::new(), chunks: None, is_whole: true };
    let rest = &bytes[head_bytes..];
    if no_body || (100..200).contains(&status) || status == 204 || status == 304 {
        return Some((answer, head_bytes));
    }
    if answer.header("transfer-encoding").is_some() {
        assert!(answer.header("content-length").is_none(), "{answer:?}");
        let (chunks, used) = find_chunks(rest);
        answer.is_whole = used.is_some();
        if !answer.is_whole && !is_end {
            return None;
        }
        let chunks: Vec<Vec<u8>> = chunks.into_iter().map(<[u8]>::to_vec).collect();
        answer.body = chunks.concat();
        answer.chunks = Some(chunks);
        return Some((answer, used.map_or(bytes.len(), |used| head_bytes + used)));
    }
    if let Some(length) = answer.header("content-length") {
        let length: usize = length.parse().expect("a length is a number");
        answer.is_whole = rest.len() >= length;
        if !answer.is_whole && !is_end {
            return None;
        }
        answer.body = rest[..length.min(rest.len())].to_vec();
        let used = head_bytes + answer.body.len();
        return Some((answer, used));
    }
    if !is_end {
        return None;
    }
    // Neither: the body ends with the connection.
    answer.body = rest.to_vec();
    Some((answer, bytes.len()))
}

/// The chunks in `bytes`, and their length in bytes if the last one is there.
fn find_chunks(bytes: &[u8]) -> (Vec<&[u8]>, Option<usize>) {
    let mut chunks = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = memchr::memmem::find(&bytes[at..], b"\r\n") else { return (chunks, None) };
        let size = std::str::from_utf8(&bytes[at..at + line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no chunk size: {size:?}"));
        let data = at + line + 2;
        let Some(chunk) = bytes.get(data..data + size + 2) else { return (chunks, None) };
        assert!(chunk.ends_with(b"\r\n"), "a chunk does not end with CRLF");
        at = data + size + 2;
        if size == 0 {
            return (chunks, Some(at));
        }
        chunks.push(&chunk[..size]);
    }
}

/// The number of bytes in a mebibyte.
pub const MIB: usize = 1 << 20;

/// A key in a query, every byte escaped.
pub fn escape(key: &[u8]) -> String {
    key.iter().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"))
}

/// Pseudo-random bytes; every length and seed gives others.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut noise: Vec<u8> = std::iter::repeat_with(&mut next).take(bytes.div_ceil(8)).flatten().collect();
    noise.truncate(bytes);
    noise
}

/// The samples of `/metrics` by name and labels.
pub fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = server.request("GET", "/metrics");
    assert_eq!(answer.status, 200);
    let readings = answer.text().lines().filter(|line| !line.starts_with('#'));
    readings
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.trim_end_matches("{}").to_owned(), value.parse().unwrap()))
        .collect()
}

/// Fills a server with records of 64 KiB, `mib` MiB in all, and returns them as a range shows them.
pub fn fill(server: &Server, mib: usize) -> Vec<u8> {
    let mut client = server.connect();
    let mut all = Vec::with_capacity(mib * MIB);
    for index in 0..mib as u64 * 16 {
        let value = noise(65_536, index);
        client.send(
            format!("PUT /v0/entity?id=fill-{index:06} HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n")
                .as_bytes(),
        );
        client.send(&value);
        assert_eq!(client.recv().status, 201);
        all.extend(format!("fill-{index:06}\n").bytes());
        all.extend(value);
    }
    all
}

/// A request for all records of [`fill`], and for the end of the connection.
pub const RANGE: &[u8] =
    b"GET /v0/entities?start=fill-&end=fill0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
