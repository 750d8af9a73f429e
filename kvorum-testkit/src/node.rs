//! One node without peers: started, restarted, killed and asked. It may refuse to start, with an error text.

use crate::http::{Answer, Client, Connection, encode, one};
use crate::process::{Log, Process, kvorum, program};
use crate::{MIB, PATIENCE, metric_sum, noise, wait_until};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A node that serves; dropping it kills it.
#[derive(Debug)]
pub struct Node {
    process: Process,
    address: SocketAddr,
    data_dir: PathBuf,
    arguments: Vec<String>,
    // Dropped last: the directory is removed after the process has ended.
    temp_dir: Option<TempDir>,
}

/// The end of a process that did not come to serve.
#[derive(Debug)]
pub struct NotStarted {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// Its standard error.
    pub log: String,
}

impl NotStarted {
    /// Asserts that the node refused to start: an exit code of its own and an error in the log, no crash.
    #[track_caller]
    pub fn expect_refusal(&self, words: &[&str]) {
        assert!(self.code.is_some_and(|code| code != 0), "exit code: {self:?}");
        assert!(!self.log.contains("panicked"), "a panic is no refusal: {self:?}");
        let error = self.log.lines().find(|line| line.contains("the node does not start"));
        let error = error.unwrap_or_else(|| panic!("no reason in the log: {self:?}"));
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
    }
}

impl Node {
    /// Starts a node in a new directory; it serves and is ready when the function returns.
    #[track_caller]
    pub fn start_new(arguments: &[&str]) -> Self {
        let dir = TempDir::with_prefix("kvorum-test-").unwrap();
        let mut node = Self::start(&dir.path().join("data"), arguments);
        node.temp_dir = Some(dir);
        node.wait_until_ready();
        node
    }

    /// Starts a node on `data_dir` that must come to serve.
    #[track_caller]
    pub fn start(data_dir: &Path, arguments: &[&str]) -> Self {
        Self::try_start(data_dir, arguments)
            .unwrap_or_else(|ended| panic!("the node does not start: {ended:#?}"))
    }

    /// Starts a node on `data_dir` and waits until it serves or ends.
    pub fn try_start(data_dir: &Path, arguments: &[&str]) -> Result<Self, NotStarted> {
        Self::try_start_with(data_dir, arguments, &[])
    }

    /// The same, with these variables in its environment.
    pub fn try_start_with(
        data_dir: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, NotStarted> {
        let mut command = kvorum(&[]);
        command.envs(environment.iter().copied());
        Self::try_start_by(command, data_dir, arguments)
    }

    /// Starts a node with a limit of `descriptors`, which must come to serve.
    #[track_caller]
    pub fn start_limited(data_dir: &Path, arguments: &[&str], descriptors: u64) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]).arg(program());
        Self::try_start_by(command, data_dir, arguments)
            .unwrap_or_else(|ended| panic!("the node does not start: {ended:#?}"))
    }

    fn try_start_by(command: Command, data_dir: &Path, arguments: &[&str]) -> Result<Self, NotStarted> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
        let (process, address) = serve(command, data_dir, &arguments)?;
        Ok(Self { process, address, data_dir: data_dir.to_path_buf(), arguments, temp_dir: None })
    }

    /// Starts it again on the same directory with the same arguments (it must have ended, or is terminated first).
    /// It has another port afterwards.
    #[track_caller]
    pub fn restart(&mut self) {
        self.terminate();
        let started = serve(kvorum(&[]), &self.data_dir, &self.arguments);
        (self.process, self.address) =
            started.unwrap_or_else(|ended| panic!("the node does not start: {ended:#?}"));
        self.wait_until_ready();
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        wait_until("the node is ready", || {
            assert!(self.is_alive(), "the node ended; its log:\n{}", self.log());
            self.try_status() == Some(200)
        });
    }

    /// Kills it as a crash would, and waits until it has ended. It must have been alive until then.
    #[track_caller]
    pub fn kill9(self) {
        self.process.kill9();
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The status code of `/v0/status`; `None` if the node does not answer.
    pub fn try_status(&self) -> Option<u16> {
        let mut connection = Connection::open(self.address, Duration::from_secs(1)).ok()?;
        connection.set_wait(PATIENCE);
        connection.try_send(&encode("GET", "/v0/status", "Connection: close\r\n", None)).ok()?;
        connection.try_recv().ok()?.map(|answer| answer.status)
    }

    /// Opens a new connection.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        let connection = Connection::open(self.address, PATIENCE)
            .unwrap_or_else(|error| panic!("cannot connect: {error}; the node's log:\n{}", self.log()));
        connection.with_log(self.log_of())
    }

    /// A client that connects when it is used.
    pub fn client(&self) -> Client {
        Client::new(self.address, PATIENCE)
    }

    /// Sends one request over a [`Client`] of its own; the answer must be whole.
    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: Option<&[u8]>) -> Answer {
        self.client().ask(method, target, body)
    }

    /// Sends `bytes` on a new connection and reads until the node ends it: the last request should say
    /// `Connection: close` or be one that ends the connection.
    pub fn exchange(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut connection = self.connect();
        connection.send(bytes);
        connection.recv_all()
    }

    /// Sends one request without a body on a connection of its own, which must end with its answer.
    pub fn request(&self, method: &str, target: &str) -> Answer {
        self.request_with(method, target, "")
    }

    /// The same with further header lines, each ending with `\r\n`.
    pub fn request_with(&self, method: &str, target: &str, headers: &str) -> Answer {
        let mut connection = self.connect();
        if method == "HEAD" {
            connection.expect_no_body();
        }
        connection.send(&encode(method, target, &format!("Connection: close\r\n{headers}"), None));
        one(connection.recv_all())
    }

    /// Sends one PUT on a connection of its own; `query` is everything after the `?`.
    pub fn put(&self, query: &str, value: &[u8]) -> Answer {
        let target = format!("/v0/entity?{query}");
        one(self.exchange(&encode("PUT", &target, "Connection: close\r\n", Some(value))))
    }

    /// Sends one GET of `/v0/entity?{query}`.
    pub fn get(&self, query: &str) -> Answer {
        self.request("GET", &format!("/v0/entity?{query}"))
    }

    /// The state of the store in `/v0/status`: `ok`, `disk-full` or `failed`; text and JSON must agree.
    #[track_caller]
    pub fn store_state(&self) -> String {
        // Twice, because the state may change between the two requests.
        for _ in 0..2 {
            let text = self.ask("GET", "/v0/status", None);
            let answer =
                self.client().request("GET", "/v0/status", "Accept: application/json\r\n", None).unwrap();
            let state = text.text().lines().find_map(|line| line.strip_prefix("store ").map(str::to_owned));
            let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            if state.as_deref() == json["store"]["state"].as_str() && text.status == answer.status {
                let state = state.unwrap();
                assert_eq!(text.status, if state == "failed" { 503 } else { 200 }, "{text:?}");
                return state;
            }
        }
        panic!("text and JSON of /v0/status say different things");
    }

    /// The sum of a counter's or gauge's samples.
    #[track_caller]
    pub fn metric(&self, name: &str) -> u64 {
        metric_sum(self.ask("GET", "/metrics", None).text(), name)
    }
}

impl Deref for Node {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Starts a node by `command`, and waits until it logs its address or ends.
fn serve(
    mut command: Command,
    data_dir: &Path,
    arguments: &[String],
) -> Result<(Process, SocketAddr), NotStarted> {
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir).args(arguments);
    let mut process = Process::spawn(&mut command, &Log::default());
    let begun = Instant::now();
    loop {
        if let Some(address) = address_in(&process.log()) {
            return Ok((process, address));
        }
        if !process.is_alive() {
            let code = process.wait().code();
            return Err(NotStarted { code, log: process.log() });
        }
        assert!(begun.elapsed() < PATIENCE, "the node neither serves nor ends");
        thread::sleep(Duration::from_millis(5));
    }
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let line =
        log.split_inclusive('\n').find(|line| line.contains("kvorum serves") && line.ends_with('\n'))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("address="))?.parse().ok()
}

/// The samples of `/metrics` by name and labels.
#[track_caller]
pub fn metrics(node: &Node) -> BTreeMap<String, f64> {
    let answer = node.request("GET", "/metrics");
    assert_eq!(answer.status, 200);
    let readings = answer.text().lines().filter(|line| !line.starts_with('#'));
    readings
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.trim_end_matches("{}").to_owned(), value.parse().unwrap()))
        .collect()
}

/// Fills a node with records of 64 KiB, `mib` MiB in all, and returns them as a range shows them.
#[track_caller]
pub fn fill(node: &Node, mib: usize) -> Vec<u8> {
    let mut connection = node.connect();
    let mut all = Vec::with_capacity(mib * MIB);
    for index in 0..mib as u64 * 16 {
        let value = noise(65_536, index);
        connection.send(&encode("PUT", &format!("/v0/entity?id=fill-{index:06}"), "", Some(&value)));
        assert_eq!(connection.recv().status, 201);
        all.extend(format!("fill-{index:06}\n").bytes());
        all.extend(value);
    }
    all
}

/// A request for all records of [`fill`], and for the end of the connection.
pub const RANGE: &[u8] =
    b"GET /v0/entities?start=fill-&end=fill0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
