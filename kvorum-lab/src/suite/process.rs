//! The processes under measurement: started, awaited, watched, and never left behind.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvorum_client::{PutOptions, ReadOptions};
use tempfile::TempDir;

use crate::ask::ask;
use crate::error::LabError;
use crate::load::Replicas;
use crate::machine;

/// How long a server may take to be ready.
const READY_MAX: Duration = Duration::from_secs(30);

/// How long a single request of the suite itself may take.
const ASK_MAX: Duration = Duration::from_secs(5);

/// How many last lines of a process's log are shown.
const TAIL_LINES: usize = 10;

/// How often a process's memory is read.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// A running server. Dropping it kills the process, waits for it, and removes its files.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    /// The further nodes of a cluster in one process; empty for a single one.
    others: Vec<SocketAddr>,
    /// The data directory's parent; after `child`, so that it is removed last.
    directory: TempDir,
}

/// How a node, or each node of a cluster, is started.
#[derive(Debug, Clone)]
pub struct NodeOptions<'a> {
    /// The `kvorum` binary.
    pub binary: &'a Path,
    /// The parent of its data directory.
    pub scratch: &'a Path,
    /// The core it is tied to, if any.
    pub core: Option<usize>,
    /// `--durability`.
    pub durability: &'a str,
    /// `--memory-budget`.
    pub memory_budget: &'a str,
    /// More arguments for `serve` or `dev`.
    pub extra: &'a [String],
}

/// The options of bare responders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BareOptions {
    /// How many there are.
    pub count: u16,
    /// The processor time of each answer; zero: as little as possible.
    pub busy: Duration,
    /// The files in which a request is synced before it is answered.
    pub syncs: Syncs,
}

/// The files that bare responders sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    /// None: they keep nothing.
    Nowhere,
    /// The file of the responder that got the request.
    Own,
    /// The files of all; the request is answered after `acks` syncs.
    Everywhere {
        /// The number of syncs.
        acks: u16,
    },
}

impl Server {
    /// Starts a node with an empty data directory and waits until it accepts requests.
    pub fn node(options: &NodeOptions<'_>) -> Result<Self, LabError> {
        let directory = scratch_directory(options.scratch)?;
        let address = free_address()?;
        let mut command = pinned(options.binary, options.core);
        command.arg("serve").arg("--listen").arg(address.to_string());
        options.add_to(&mut command, &directory);
        Self::start(command, address, Vec::new(), directory)
    }

    /// Starts a cluster of `nodes` in one process, each with an empty store, and waits until all accept requests.
    pub fn cluster(options: &NodeOptions<'_>, nodes: u16) -> Result<Self, LabError> {
        let directory = scratch_directory(options.scratch)?;
        let (address, others) = free_addresses(nodes)?;
        let mut command = pinned(options.binary, options.core);
        command.arg("dev").arg("--nodes").arg(nodes.to_string());
        command.arg("--base-port").arg(address.port().to_string());
        options.add_to(&mut command, &directory);
        Self::start(command, address, others, directory)
    }

    /// Starts bare responders in one process, each on a thread and an address of its own.
    pub fn bare(
        binary: &Path,
        scratch: &Path,
        core: Option<usize>,
        bare: BareOptions,
    ) -> Result<Self, LabError> {
        let directory = scratch_directory(scratch)?;
        let (address, others) = free_addresses(bare.count)?;
        let mut command = pinned(binary, core);
        command.arg("--busy").arg(bare.busy.as_micros().to_string());
        if bare.syncs != Syncs::Nowhere {
            command.arg("--sync").arg(directory.path());
        }
        if let Syncs::Everywhere { acks } = bare.syncs {
            command.arg("--acks").arg(acks.to_string());
        }
        command.arg(address.to_string()).args(others.iter().map(SocketAddr::to_string));
        Self::start(command, address, others, directory)
    }

    fn start(
        mut command: Command,
        address: SocketAddr,
        others: Vec<SocketAddr>,
        directory: TempDir,
    ) -> Result<Self, LabError> {
        // Flushes the writes of other programs (a build, an earlier run), so that they do not happen during
        // the measurement.
        rustix::fs::sync();
        let log_path = directory.path().join("log");
        let log = File::create(&log_path).map_err(LabError::machine("create a log"))?;
        let log_too = log.try_clone().map_err(LabError::machine("create a log"))?;
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        let child = command.spawn().map_err(LabError::machine(format!("start {command:?}")))?;
        let mut server = Self { child, address, others, directory };
        server.wait_until_ready(&log_path).map(|()| server)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<(), LabError> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            if self.is_ready()? {
                return Ok(());
            }
            let ended = self.child.try_wait().map_err(LabError::machine("ask after a server"))?;
            if ended.is_some() || Instant::now() > deadline {
                let state = ended.map_or("is not ready".into(), |status| format!("ended: {status}"));
                return Err(LabError::Subject(format!("the server {state}{}", log_tail(log))));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether every node accepts requests.
    fn is_ready(&self) -> Result<bool, LabError> {
        for address in self.addresses() {
            let status = ask(address, ASK_MAX, async |node| node.status().await)?;
            if !status.is_ok_and(|status| status.is_ready()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The address at which it listens; for a cluster, its first node's.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The addresses at which its nodes listen: one address, or one for each node of a cluster.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.address).chain(self.others.iter().copied())
    }

    /// The id of its process. taskset becomes the server, so the id is the server's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A directory on the same disk as its data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Stores `value` under `key` by the first node and reads it back, each with `replicas`, or else the node's default.
    pub fn store(&self, key: &str, value: &[u8], replicas: Option<Replicas>) -> Result<(), LabError> {
        let replicas = replicas.map(Into::into);
        let found = ask(self.address, ASK_MAX, async |node| {
            let options = PutOptions { replicas, ..PutOptions::default() };
            node.put_with(key, value.to_vec(), options).await?;
            node.get_with(key, ReadOptions { replicas, ..ReadOptions::default() }).await
        })?;
        match found {
            Ok(Some(entry)) if entry.value == value => Ok(()),
            Ok(_) => Err(LabError::Subject(format!("{key}: stored, and not read back"))),
            Err(error) => Err(LabError::Subject(error.to_string())),
        }
    }

    /// Waits until its background work has ended: less than 5 % of a core over half a second. Gives up after
    /// `wait_max`, without an error.
    pub fn settle(&self, wait_max: Duration) -> Result<(), LabError> {
        until_idle(|| machine::cpu_time(self.pid()), wait_max)
    }
}

/// Waits until the processes of `cpu_time` use less than 5 % of a core over half a second. Gives up after
/// `wait_max`, without an error.
pub fn until_idle(
    cpu_time: impl Fn() -> Result<Duration, LabError>,
    wait_max: Duration,
) -> Result<(), LabError> {
    let window = Duration::from_millis(500);
    let deadline = Instant::now() + wait_max;
    let mut before = cpu_time()?;
    while Instant::now() < deadline {
        thread::sleep(window);
        let now = cpu_time()?;
        if now.saturating_sub(before) < window / 20 {
            break;
        }
        before = now;
    }
    Ok(())
}

/// The end of a server's log, on lines of its own after the message about the server.
pub fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    format!("; its log:\n{}", lines.get(from..).unwrap_or_default().join("\n"))
}

impl NodeOptions<'_> {
    /// Adds the arguments that `serve` and `dev` share.
    fn add_to(&self, command: &mut Command, directory: &TempDir) {
        command.arg("--data-dir").arg(directory.path().join("data"));
        command.arg("--durability").arg(self.durability);
        command.arg("--memory-budget").arg(self.memory_budget).args(self.extra);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is no process to kill, and the wait returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A watch over a process's memory.
#[derive(Debug)]
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl MemoryWatch {
    /// Watches `pid` from now on.
    pub fn start(pid: u32) -> Result<Self, LabError> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("memory-watch".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    let mut bytes_max = 0;
                    while !stop.load(Ordering::Relaxed) {
                        // A process that has ended holds no memory.
                        bytes_max = machine::memory(pid).map_or(0, |now| now.resident_bytes).max(bytes_max);
                        thread::sleep(WATCH_EVERY);
                    }
                    bytes_max
                }
            })
            .map_err(LabError::machine("start a watch"))?;
        Ok(Self { stop, thread })
    }

    /// The most resident bytes that were read.
    pub fn finish(self) -> Result<u64, LabError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| LabError::Subject("the memory watch panicked".into()))
    }
}

/// `program`, tied to `core`.
pub fn pinned(program: &Path, core: Option<usize>) -> Command {
    match core {
        Some(core) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(core.to_string()).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// Runs `command` to its end, at most for `deadline`; after that kills it and returns an error. Its output
/// must fit a pipe.
pub fn output_within(mut command: Command, deadline: Duration) -> Result<Output, LabError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(LabError::machine(format!("start {command:?}")))?;
    let end = Instant::now() + deadline;
    loop {
        match child.try_wait().map_err(LabError::machine("wait for a command"))? {
            Some(_) => return child.wait_with_output().map_err(LabError::machine("read a command's output")),
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(LabError::Subject(format!("{command:?}: not done after {deadline:?}")));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs `commands` at once, each as [`output_within`] does; their outputs in the same order.
pub fn outputs_within(commands: Vec<Command>, deadline: Duration) -> Result<Vec<Output>, LabError> {
    thread::scope(|scope| {
        let running: Vec<_> = commands
            .into_iter()
            .map(|command| scope.spawn(move || output_within(command, deadline)))
            .collect();
        let ended = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(LabError::Subject("a thread that waited panicked".into())))
        });
        ended.collect()
    })
}

fn scratch_directory(scratch: &Path) -> Result<TempDir, LabError> {
    tempfile::Builder::new()
        .prefix("kvorum-bench-")
        .tempdir_in(scratch)
        .map_err(LabError::machine(format!("create a directory in {}", scratch.display())))
}

/// A port that was free a moment ago. If another process takes it, the server fails to start, and reports
/// that.
fn free_address() -> Result<SocketAddr, LabError> {
    free_addresses(1).map(|(address, _)| address)
}

/// How many places are tried for ports that follow one another.
const PORT_TRIES_MAX: u32 = 100;

/// `count` ports, each following the one before, the first by itself; all were free a moment ago, and all at once.
#[expect(clippy::disallowed_types, reason = "the lab measures the real machine")]
pub fn free_addresses(count: u16) -> Result<(SocketAddr, Vec<SocketAddr>), LabError> {
    let local = |port| SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
    for _ in 0..PORT_TRIES_MAX {
        let first = std::net::TcpListener::bind(local(0)).map_err(LabError::machine("find a port"))?;
        let address = first.local_addr().map_err(LabError::machine("find a port"))?;
        let following: Option<Vec<SocketAddr>> =
            (1..count).map(|nth| address.port().checked_add(nth).map(local)).collect();
        let Some(others) = following else { continue };
        // `first` is still held, so no other program that asks for any port gets it meanwhile.
        if others.iter().all(|&other| std::net::TcpListener::bind(other).is_ok()) {
            return Ok((address, others));
        }
    }
    Err(LabError::Subject(format!("no {count} free ports in a row after {PORT_TRIES_MAX} tries")))
}

/// The program called `name` beside the one that runs.
pub fn sibling(name: &str) -> Result<PathBuf, LabError> {
    let own = std::env::current_exe().map_err(LabError::machine("find the own program"))?;
    Ok(own.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(text);
        command
    }

    /// Goal: a command that does not end is killed, the output of one that ends is returned. Method: one of
    /// each.
    #[test]
    fn commands_have_deadlines() {
        assert!(output_within(shell("sleep 600"), Duration::from_millis(50)).is_err());
        let output = output_within(shell("echo heard"), Duration::from_mins(1)).unwrap();
        assert_eq!(output.stdout, b"heard\n");
    }

    /// Goal: commands run at the same time, and one that fails fails all. Method: each waits for a file that
    /// the other makes.
    #[test]
    fn commands_run_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let meet = |own: &str, other: &str| {
            let mut command = shell("touch $1; until test -e $2; do sleep 0.01; done; echo $1");
            let path = |name: &str| directory.path().join(name);
            command.arg("sh").arg(path(own)).arg(path(other));
            command
        };
        let outputs = outputs_within(vec![meet("a", "b"), meet("b", "a")], Duration::from_mins(1)).unwrap();
        let heard: Vec<&[u8]> = outputs.iter().map(|output| output.stdout.trim_ascii()).collect();
        assert!(heard[0].ends_with(b"/a") && heard[1].ends_with(b"/b"), "{heard:?}");
        let one_hangs = vec![shell("true"), shell("sleep 600")];
        assert!(outputs_within(one_hangs, Duration::from_millis(50)).is_err());
    }

    /// Goal: a cluster's ports follow one another, as `--base-port` wants them. Method: three, and one.
    #[test]
    fn free_ports_are_consecutive() {
        let (address, others) = free_addresses(3).unwrap();
        let ports: Vec<u16> = others.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [address.port() + 1, address.port() + 2]);
        assert!(free_addresses(1).unwrap().1.is_empty());
    }

    /// Goal: a server that ends at once is an error with its log, and its directory is gone.
    #[test]
    fn a_server_that_dies_says_why() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch_directory(scratch.path()).unwrap();
        let started = Server::start(
            shell("echo no such option; exit 3"),
            free_address().unwrap(),
            Vec::new(),
            directory,
        );
        let error = started.unwrap_err().to_string();
        assert!(error.contains("no such option"), "{error}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "left behind");
    }

    /// Goal: dropping a server ends its process. Method: a server that never gets ready, looked up
    /// afterwards.
    #[test]
    fn a_dropped_server_is_dead() {
        let scratch = tempfile::tempdir().unwrap();
        let child = shell("exec sleep 600").spawn().unwrap();
        let pid = child.id();
        let directory = scratch_directory(scratch.path()).unwrap();
        drop(Server { child, address: free_address().unwrap(), others: Vec::new(), directory });
        assert!(machine::cpu_time(pid).is_err(), "process {pid} lives");
    }
}
