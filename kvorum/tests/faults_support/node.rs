//! A node as a process: started, killed and inspected. It may refuse to start, with an error text.

use super::http::{Answer, Client};
use crate::support::{self, kvorum, metric_sum};
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A process that serves; dropping it kills it.
#[derive(Debug)]
pub struct Node {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
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
        Self::try_start_by(
            kvorum(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]),
            data_dir,
            arguments,
            environment,
        )
    }

    /// Starts a node with a limit of `descriptors`, which must come to serve.
    #[track_caller]
    pub fn start_limited(data_dir: &Path, arguments: &[&str], descriptors: u64) -> Self {
        let program = kvorum(&[]);
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")])
            .arg(program.get_program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        Self::try_start_by(command, data_dir, arguments, &[])
            .unwrap_or_else(|ended| panic!("the node does not start: {ended:#?}"))
    }

    fn try_start_by(
        mut command: std::process::Command,
        data_dir: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, NotStarted> {
        command.arg(data_dir).args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let reader = read_log(child.stderr.take().unwrap(), Arc::clone(&log));
        let begun = Instant::now();
        loop {
            let address = address_in(&log.lock().unwrap());
            if let Some(address) = address {
                return Ok(Self { child, address, log });
            }
            if let Some(status) = child.try_wait().unwrap() {
                reader.join().unwrap();
                let log = log.lock().unwrap().clone();
                return Err(NotStarted { code: status.code(), log });
            }
            if begun.elapsed() > support::PATIENCE {
                let _ = child.kill();
                panic!("the node neither serves nor ends:\n{}", log.lock().unwrap());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a node that must come to serve.
    #[track_caller]
    pub fn start(data_dir: &Path, arguments: &[&str]) -> Self {
        Self::try_start(data_dir, arguments)
            .unwrap_or_else(|ended| panic!("the node does not start: {ended:#?}"))
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client with a new connection.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills it as a crash would, and waits until it has ended. It must have been alive until then.
    #[track_caller]
    pub fn kill9(mut self) {
        assert!(self.is_alive(), "the node ended by itself:\n{}", self.log());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends one request on a connection of its own.
    #[track_caller]
    pub fn ask(&self, method: &str, target: &str, body: Option<&[u8]>) -> Answer {
        self.client().ask(method, target, body)
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
        metric_sum(&self.ask("GET", "/metrics", None).text(), name)
    }

    /// The ids of its threads called `name`, in the order in which they were started.
    pub fn threads(&self, name: &str) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut found: Vec<u32> = tasks
            .map(|task| task.unwrap().path())
            .filter(|task| {
                std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
            })
            .map(|task| task.file_name().unwrap().to_str().unwrap().parse().unwrap())
            .collect();
        found.sort_unstable();
        found
    }

    /// Processor time used so far, in the kernel's ticks of 10 ms.
    pub fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// A line of `/proc/PID/status` in bytes: `VmRSS` is memory now, `VmHWM` the most so far.
    pub fn memory_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- log of node {} ---\n{}---", self.pid(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_log(mut stderr: std::process::ChildStderr, log: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = stderr.read(&mut buffer) {
            log.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        }
    })
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let line =
        log.split_inclusive('\n').find(|line| line.contains("kvorum serves") && line.ends_with('\n'))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("address="))?.parse().ok()
}
