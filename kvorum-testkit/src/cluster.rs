//! A cluster of processes. Every node has an address of its own in 127.0.0.0/8, so that the URLs are known
//! before any node listens and no two test processes use the same address.

use crate::history::id_of;
use crate::http::{Answer, ask};
use crate::process::{Log, Process, kvorum, program, remove_settings};
use crate::{PATIENCE, metric_sum, wait_until};
use kvorum_client::{Client, ScanOptions, Scope};
use kvorum_core::Version;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The port of the first cluster's nodes; later clusters use the ports above it. It is below the range from
/// which the system gives ports to clients.
const PORT: u16 = 7101;

/// How a node's process is started, besides its arguments.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// The words before the program's name, for example `ip netns exec NAME`.
    pub prefix: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(String, String)>,
    /// More arguments.
    pub arguments: Vec<String>,
    /// Whether it names all nodes by `https`.
    pub is_secure: bool,
    /// The URLs of members, for a node that is to join them; the others do not name it.
    pub joins: Vec<String>,
    /// Whether it is started without a list of nodes.
    pub is_alone: bool,
}

/// A copy of a record, as a node stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Its version.
    pub version: Version,
    /// Its value.
    pub value: Vec<u8>,
}

impl Copy {
    /// The write of its value.
    pub fn id(&self) -> Option<u64> {
        id_of(&self.value)
    }
}

struct Node {
    address: SocketAddr,
    data_dir: PathBuf,
    wiped: u32,
    launch: Launch,
    process: Option<Process>,
    log: Log,
}

/// A cluster of processes; dropping it kills all of them.
pub struct Cluster {
    nodes: Vec<Node>,
    arguments: Vec<String>,
    dir: TempDir,
}

impl Cluster {
    /// A cluster of `count` nodes, none of them started.
    pub fn new(count: usize, arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        // 21 bits of the address stand for the process, the last 3 for the node, and the port for the
        // cluster.
        let block = NEXT.fetch_add(1, Ordering::Relaxed) % 20_000;
        let address = |index: usize| {
            let host = ((pid & 0x001f_ffff) << 3) | (u32::try_from(index).unwrap() + 1);
            let address = Ipv4Addr::from(0x7f00_0000 | (host & 0x00ff_ffff));
            SocketAddr::from((address, PORT + u16::try_from(block).unwrap()))
        };
        Self::at(&(0..count).map(address).collect::<Vec<_>>(), arguments)
    }

    /// A cluster at these addresses, none of them started.
    pub fn at(addresses: &[SocketAddr], arguments: &[&str]) -> Self {
        let dir = TempDir::with_prefix("kvorum-cluster-").unwrap();
        let node = |(index, address): (usize, &SocketAddr)| Node {
            address: *address,
            data_dir: dir.path().join(format!("node-{index}")),
            wiped: 0,
            launch: Launch::default(),
            process: None,
            log: Log::default(),
        };
        let nodes = addresses.iter().enumerate().map(node).collect();
        Self { nodes, arguments: arguments.iter().map(|&it| it.to_owned()).collect(), dir }
    }

    /// A cluster of `count` nodes that all serve and are connected.
    pub fn start(count: usize) -> Self {
        let mut cluster = Self::new(count, &["--memory-budget", "16MiB"]);
        cluster.start_all();
        cluster
    }

    /// Starts all nodes that do not run and waits until requests to every replica succeed through every node.
    pub fn start_all(&mut self) {
        for index in 0..self.len() {
            if self.nodes[index].process.is_none() {
                self.spawn(index);
            }
        }
        for index in 0..self.len() {
            self.wait_until_ready(index);
        }
        self.wait_until_connected();
    }

    /// Waits until every node reaches every other on all of its threads, as far as a client can see that.
    pub fn wait_until_connected(&self) {
        let count = self.len();
        for index in 0..count {
            let mut in_a_row = 0;
            wait_until("all nodes are connected", || {
                let target = format!("/v0/entity?id=connected&replicas={count}/{count}");
                let is_ok = self.try_ask(index, "DELETE", &target, None).is_ok_and(|it| it.status == 202);
                in_a_row = if is_ok { in_a_row + 1 } else { 0 };
                // Each on a connection of its own, which the system gives to one of the node's threads.
                in_a_row >= 12
            });
        }
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The address at which the node listens.
    pub fn address(&self, index: usize) -> SocketAddr {
        self.nodes[index].address
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// The node's URL.
    pub fn url(&self, index: usize) -> String {
        format!("http://{}", self.nodes[index].address)
    }

    /// How the node is started from now on.
    pub fn set_launch(&mut self, index: usize, launch: Launch) {
        self.nodes[index].launch = launch;
    }

    /// Starts the process, and does not wait.
    pub fn spawn(&mut self, index: usize) {
        let scheme = if self.nodes[index].launch.is_secure { "https" } else { "http" };
        let members = self.nodes.iter().filter(|node| node.launch.joins.is_empty());
        let urls: Vec<String> = members.map(|node| format!("{scheme}://{}", node.address)).collect();
        let node = &mut self.nodes[index];
        assert!(node.process.is_none(), "node {index} runs");
        let mut command = match node.launch.prefix.split_first() {
            None => kvorum(&[]),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program());
                remove_settings(&mut command);
                command
            }
        };
        command.arg("serve");
        command.arg("--listen").arg(node.address.to_string());
        if !node.launch.joins.is_empty() {
            command.arg("--join").arg(node.launch.joins.join(","));
        } else if !node.launch.is_alone {
            command.arg("--cluster").arg(urls.join(","));
        }
        command.arg("--data-dir").arg(&node.data_dir).args(&self.arguments).args(&node.launch.arguments);
        if !node.address.ip().is_loopback() {
            // A network of the test's own: nobody else reaches it.
            command.args(["--insecure", "yes"]);
        }
        command.envs(node.launch.environment.iter().map(|(name, value)| (name, value)));
        node.process = Some(Process::spawn(&mut command, &node.log));
    }

    /// Waits until the node serves clients; returns how long that took from now on.
    pub fn wait_until_ready(&mut self, index: usize) -> Duration {
        let begun = Instant::now();
        loop {
            if self.try_ask(index, "GET", "/v0/status", None).is_ok_and(|answer| answer.status == 200) {
                return begun.elapsed();
            }
            assert!(self.is_alive(index), "node {index} ended:\n{}", self.log(index));
            assert!(begun.elapsed() < PATIENCE, "node {index} does not get ready:\n{}", self.log(index));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts the node and waits until it serves.
    pub fn start_node(&mut self, index: usize) -> Duration {
        self.spawn(index);
        self.wait_until_ready(index)
    }

    /// Whether its process runs (or is paused).
    pub fn is_alive(&mut self, index: usize) -> bool {
        self.nodes[index].process.as_mut().is_some_and(Process::is_alive)
    }

    fn process(&self, index: usize) -> &Process {
        self.nodes[index].process.as_ref().unwrap()
    }

    fn take(&mut self, index: usize) -> Process {
        self.nodes[index].process.take().unwrap()
    }

    /// Kills the node as a crash would.
    #[track_caller]
    pub fn kill9(&mut self, index: usize) {
        self.take(index).kill9();
    }

    /// Waits until the node has ended by itself, and returns its exit code.
    #[track_caller]
    pub fn exit_code(&mut self, index: usize) -> Option<i32> {
        self.take(index).wait().code()
    }

    /// Kills all nodes at once.
    pub fn kill9_all(&mut self) {
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.begin_kill();
        }
        for node in &mut self.nodes {
            node.process = None;
        }
    }

    /// Ends the node as an operator does.
    #[track_caller]
    pub fn terminate(&mut self, index: usize) {
        self.process(index).signal(libc::SIGTERM);
        let status = self.take(index).wait();
        assert!(status.success(), "node {index} ended with {status}:\n{}", self.log(index));
    }

    /// Pauses the node: when this returns, it runs no more.
    #[track_caller]
    pub fn pause(&self, index: usize) {
        self.process(index).pause();
    }

    /// Resumes a paused node.
    pub fn resume(&self, index: usize) {
        self.process(index).signal(libc::SIGCONT);
    }

    /// Vouches for the data directory of the node, which must not run: `bootstrap` or `trust-store`.
    #[track_caller]
    pub fn vouch(&self, index: usize, word: &str) {
        let said = kvorum(&[word]).arg(self.data_dir(index)).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }

    /// Gives the node, which must not run, an empty disk.
    pub fn wipe(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        assert!(node.process.is_none(), "node {index} runs");
        node.wiped += 1;
        node.data_dir = self.dir.path().join(format!("node-{index}-{}", node.wiped));
    }

    /// Copies a dead node's data directory.
    pub fn copy_of_data_dir(&self, index: usize) -> TempDir {
        let copy = TempDir::with_prefix("kvorum-copy-").unwrap();
        copy_dir(self.data_dir(index), copy.path());
        copy
    }

    /// Puts a copy in place of a dead node's data directory.
    pub fn put_back(&self, index: usize, copy: &TempDir) {
        std::fs::remove_dir_all(self.data_dir(index)).unwrap();
        copy_dir(copy.path(), self.data_dir(index));
    }

    /// Writes a copy over a dead node's data directory, file by file, in place.
    pub fn write_over(&self, index: usize, copy: &TempDir) {
        copy_dir(copy.path(), self.data_dir(index));
    }

    /// Sets the data directory of the node, which was never started.
    pub fn set_data_dir(&mut self, index: usize, data_dir: PathBuf) {
        self.nodes[index].data_dir = data_dir;
    }

    /// The node's data directory.
    pub fn data_dir(&self, index: usize) -> &Path {
        &self.nodes[index].data_dir
    }

    /// The node's log since the cluster was made.
    pub fn log(&self, index: usize) -> String {
        self.nodes[index].log.text()
    }

    /// Sends one request on a connection of its own.
    pub fn try_ask(
        &self,
        index: usize,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
    ) -> io::Result<Answer> {
        ask(self.address(index), method, target, body, PATIENCE)
    }

    /// Sends one request that must be answered.
    #[track_caller]
    pub fn ask(&self, index: usize, method: &str, target: &str, body: Option<&[u8]>) -> Answer {
        self.try_ask(index, method, target, body)
            .unwrap_or_else(|error| panic!("node {index}: {method} {target}: {error}\n{}", self.log(index)))
    }

    /// The sum of a metric's samples at the node.
    #[track_caller]
    pub fn metric(&self, index: usize, name: &str) -> u64 {
        metric_sum(self.ask(index, "GET", "/metrics", None).text(), name)
    }

    /// The live records that the node itself stores, by key.
    #[track_caller]
    pub fn dump(&self, index: usize) -> BTreeMap<Vec<u8>, Copy> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::builder().node(self.url(index)).routing(false).timeout(PATIENCE);
            let local = ScanOptions { scope: Scope::Local, ..ScanOptions::default() };
            let mut scan = client.build().unwrap().scan(b"\0", None, local).await.unwrap();
            let mut copies = BTreeMap::new();
            while let Some(entry) = scan.next().await {
                let entry = entry.unwrap();
                let version = entry.version.as_str().parse().unwrap();
                copies.insert(entry.key.to_vec(), Copy { version, value: entry.value.to_vec() });
            }
            copies
        })
    }

    /// The live records that every node stores, by key and node.
    #[track_caller]
    pub fn copies(&self) -> BTreeMap<Vec<u8>, BTreeMap<usize, Copy>> {
        let mut copies: BTreeMap<Vec<u8>, BTreeMap<usize, Copy>> = BTreeMap::new();
        for index in 0..self.len() {
            for (key, copy) in self.dump(index) {
                copies.entry(key).or_default().insert(index, copy);
            }
        }
        copies
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            // Of those that run, their processes show it.
            for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_none()) {
                eprintln!("--- log of node {index} at {} ---\n{}---", node.address, node.log.text());
            }
        }
        self.kill9_all();
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
