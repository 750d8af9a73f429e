//! The processes of one configuration: started together on fresh directories, awaited, and never left behind.
//!
//! Every process that is started is handed to [`ProcessGuard`] at once. It kills them all when the lab gets SIGINT,
//! SIGTERM or SIGHUP, and when a cluster is dropped. After `kill -9` of the lab its [`Watch`] kills them.
//! Data is temporary, so nodes are killed rather than drained.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::file::Configuration;
use super::processes::{self, DIRECTORY_PREFIX, MARK, Usage, Watch};
use super::reference;
use super::target::{Ready, Stop, Values, find_program};
use crate::FLUSH_MAX;
use crate::ask::ask;
use crate::cli::parse_url;
use crate::error::LabError;
use crate::suite::process::{free_addresses, log_tail, output_within, until_idle};
use crate::units::{date, grouped};

/// How long a cluster may take until every node answers reads.
const READY_MAX: Duration = Duration::from_secs(30);

/// How long one request to a node may take.
const ASK_MAX: Duration = Duration::from_secs(5);

/// How often a cluster is started again if another program took one of its ports.
const STARTS_MAX: u32 = 3;

/// How long the processes of a tree may take to end.
const END_MAX: Duration = Duration::from_secs(10);

/// How long processes that were asked to end may take before they are killed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// What stands before a node that the lab did not start, in place of its command.
pub const RUNS_ALREADY: &str = "(runs already)";

/// The most characters of a version that are kept.
const VERSION_CHARS_MAX: usize = 120;

/// How long `kvorum --version` or `--print-config` may take.
const SAY_MAX: Duration = Duration::from_secs(10);

/// The processes and data that must not outlive the lab.
#[derive(Debug, Default)]
struct Kept {
    children: Vec<Child>,
    directory: Option<TempDir>,
    /// What ends them if the lab cannot; only tests have none.
    watch: Option<Watch>,
    /// The signal that asks them to end.
    stop: Option<Stop>,
}

impl Kept {
    /// Ends every process, waits for it, and removes the data.
    fn end(&mut self) {
        self.ask_to_end();
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
        }
        if let Some(watch) = &self.watch {
            let roots: Vec<u32> = self.children.iter().map(Child::id).collect();
            processes::kill_tree(watch.value(), &roots, END_MAX);
        }
        for mut child in self.children.drain(..) {
            let _ = child.wait();
        }
        self.directory = None;
    }

    /// Sends the signal to stop, if there is one, and gives the processes a moment.
    fn ask_to_end(&mut self) {
        let Some(Stop(signal)) = self.stop.take() else { return };
        for child in &self.children {
            processes::send(child.id(), signal);
        }
        let deadline = Instant::now() + STOP_MAX;
        let is_running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while self.children.iter_mut().any(is_running) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends the started processes, however the lab ends.
#[derive(Debug, Clone, Default)]
pub struct ProcessGuard {
    /// Held while processes are started and ended, so that a signal finds either none or all of them.
    kept: Arc<Mutex<Kept>>,
}

impl ProcessGuard {
    /// A guard that handles signals from now on. The first signal ends the nodes and then the program, with
    /// the exit code that shells use (128 plus the signal's number).
    ///
    /// # Errors
    /// [`LabError::Machine`] if signal handlers or threads are not available.
    pub fn start() -> Result<Self, LabError> {
        let guard = Self::default();
        guard.kept.lock().unwrap_or_else(PoisonError::into_inner).watch = Some(Watch::start()?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(LabError::machine("start a runtime"))?;
        let listen = |kind| {
            let _context = runtime.enter();
            signal(kind).map_err(LabError::machine("listen to signals"))
        };
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let mut hang_up = listen(SignalKind::hangup())?;
        let kept = Arc::clone(&guard.kept);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let code = runtime.block_on(first_of(&mut interrupt, &mut terminate, &mut hang_up));
                // Held until the program has ended: no process is started any more.
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.end();
                kvorum_output::tell_line!(
                    "\nkvorum lab: interrupted; nodes are stopped, what was measured is kept"
                );
                kvorum_output::flush(FLUSH_MAX);
                std::process::exit(code)
            })
            .map_err(LabError::machine("start a thread"))?;
        Ok(guard)
    }

    fn end(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}

/// Waits for any of the signals, and returns the exit code.
async fn first_of(interrupt: &mut Signal, terminate: &mut Signal, hang_up: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
        _ = hang_up.recv() => 129,
    }
}

/// A running cluster. Dropping it ends its processes and removes their data, if they are the lab's.
#[derive(Debug)]
pub struct Cluster {
    guard: ProcessGuard,
    addresses: Vec<SocketAddr>,
    /// The lab's own processes; empty for a cluster that already ran.
    pids: Vec<u32>,
    /// The mark of the lab's processes.
    mark: Option<String>,
    ready: Option<Ready>,
    /// The command of each node, with placeholders for the parts that differ between runs.
    commands: Vec<String>,
    /// The log of collections of each process, if the lab file names one.
    gc_logs: Vec<PathBuf>,
}

impl Cluster {
    /// Starts the cluster of `configuration`, under `scratch`, and waits until every node answers reads. For
    /// a cluster that already runs it only waits.
    ///
    /// # Errors
    /// [`LabError::Subject`] with the last lines of a node's log if it ended or was not ready in time.
    pub fn start(
        guard: &ProcessGuard,
        binary: &Path,
        scratch: &Path,
        configuration: &Configuration,
    ) -> Result<Self, LabError> {
        if let Some(urls) = &configuration.urls {
            let addresses = urls.iter().map(|url| parse_url(url)).collect::<Result<Vec<_>, _>>()?;
            let commands = urls.iter().map(|url| format!("{RUNS_ALREADY} {url}")).collect();
            let cluster = Self {
                guard: guard.clone(),
                addresses,
                pids: Vec::new(),
                mark: None,
                ready: None,
                commands,
                gc_logs: Vec::new(),
            };
            return cluster.wait_until_ready(&[]).map(|()| cluster);
        }
        let mut tries = 1;
        loop {
            match Self::spawn(guard, binary, scratch, configuration) {
                Err(LabError::Subject(why)) if tries < STARTS_MAX && is_port_taken(&why) => tries += 1,
                result => return result,
            }
        }
    }

    fn spawn(
        guard: &ProcessGuard,
        binary: &Path,
        scratch: &Path,
        configuration: &Configuration,
    ) -> Result<Self, LabError> {
        let nodes = configuration.nodes.unwrap_or(1);
        let directory = tempfile::Builder::new()
            .prefix(DIRECTORY_PREFIX)
            .tempdir_in(scratch)
            .map_err(LabError::machine(format!("create a directory in {}", scratch.display())))?;
        let flags = configuration.flags().map_err(LabError::Usage)?;
        let (first, others) = free_addresses(nodes)?;
        let addresses: Vec<SocketAddr> = std::iter::once(first).chain(others).collect();
        let mut logs = Vec::new();
        let (mut pids, mut commands) = (Vec::new(), Vec::new());
        let mut kept = guard.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let root = directory.path().to_path_buf();
        kept.directory = Some(directory);
        kept.stop = configuration.stop;
        if let Some(watch) = &mut kept.watch {
            watch.tell(&root)?;
        }
        let mark = kept.watch.as_ref().map(|watch| watch.value().to_owned());
        let foreign = configuration.command.is_some();
        let ready = foreign.then(|| configuration.ready.clone().unwrap_or_else(Ready::of_contract));
        let each = if configuration.processes == Some(1) { addresses.len() } else { 1 };
        // From here on dropping the cluster ends the processes that have been started.
        let mut cluster = Self {
            guard: guard.clone(),
            addresses,
            pids: Vec::new(),
            mark,
            ready,
            commands: Vec::new(),
            gc_logs: Vec::new(),
        };
        // Commands are shown with ports and directories that a reader can use, and that are the same in every run.
        let pasted: Vec<SocketAddr> = (8080..)
            .take(cluster.addresses.len())
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .collect();
        let places = cluster.addresses.chunks(each).zip(pasted.chunks(each));
        let started = (1..).zip(places).try_for_each(|(number, (own, shown))| {
            let data = root.join(number.to_string());
            let log = root.join(format!("{number}.log"));
            let output = File::create(&log).map_err(LabError::machine("create a log"))?;
            let output_too = output.try_clone().map_err(LabError::machine("create a log"))?;
            let (mut command, shown) = if let Some(words) = &configuration.command {
                std::fs::create_dir_all(&data).map_err(LabError::machine("create a data directory"))?;
                let reference = configuration.reference.as_deref().unwrap_or(Path::new(""));
                let gc_log = root.join(format!("{number}.gc"));
                cluster.gc_logs.extend(configuration.has_gc_log().then(|| gc_log.clone()));
                let values = Values {
                    node: number,
                    own,
                    all: &cluster.addresses,
                    data: &data,
                    gc_log: &gc_log,
                    reference,
                };
                let place = PathBuf::from(format!("data/{number}"));
                let (log, reference) =
                    (PathBuf::from(format!("data/{number}.gc")), Path::new(reference::JAR));
                let pasted =
                    Values { node: number, own: shown, all: &pasted, data: &place, gc_log: &log, reference };
                let shown = shown_foreign(words, &configuration.env, &pasted);
                (foreign_command(words, &configuration.env, &values), shown)
            } else {
                let address = own.first().copied().unwrap_or(first);
                let mut command = Command::new(binary);
                command.args(words(address, &cluster.addresses, &flags)).arg("--data-dir").arg(&data);
                let shown = words(shown.first().copied().unwrap_or(address), &pasted, &flags);
                (command, format!("kvorum {} --data-dir data/{number}", shell(&shown)))
            };
            if let Some(mark) = &cluster.mark {
                command.env(MARK, mark);
            }
            command.stdin(Stdio::null()).stdout(output).stderr(output_too);
            // A Ctrl-C must reach only the lab, which then ends its nodes.
            command.process_group(0);
            let child = command.spawn().map_err(LabError::machine(format!("start {command:?}")))?;
            pids.push(child.id());
            commands.push(shown);
            kept.children.push(child);
            logs.push(log);
            Ok(())
        });
        drop(kept);
        cluster.pids = pids;
        cluster.commands = commands;
        started?;
        cluster.wait_until_ready(&logs).map(|()| cluster)
    }

    /// Waits until every node answers a read: `/v0/status` is answered before the store votes.
    fn wait_until_ready(&self, logs: &[PathBuf]) -> Result<(), LabError> {
        let deadline = Instant::now() + READY_MAX;
        for (node, &address) in self.addresses.iter().enumerate() {
            while let Some(refusal) = self.refusal(address)? {
                let mut kept = self.guard.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let ended = kept.children.iter_mut().zip(logs).find_map(|(child, log)| {
                    child.try_wait().ok().flatten().map(|status| (format!("ended: {status}"), log))
                });
                drop(kept);
                let is_over = Instant::now() > deadline;
                let waited = is_over.then(|| (format!("is not ready: {refusal}"), logs.get(node)));
                if let Some((state, log)) = ended.map(|(state, log)| (state, Some(log))).or(waited) {
                    let tail = log.map(|log| log_tail(log)).unwrap_or_default();
                    return Err(LabError::Subject(format!("node {} {state}{tail}", node + 1)));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Why the node at `address` does not serve yet; `None` if it does.
    #[expect(clippy::disallowed_types, reason = "the lab measures the real machine")]
    fn refusal(&self, address: SocketAddr) -> Result<Option<String>, LabError> {
        match &self.ready {
            None => {
                let answer = ask(address, ASK_MAX, async |node| node.get("lab-is-there").await)?;
                Ok(answer.err().map(|refusal| refusal.to_string()))
            }
            Some(Ready::Tcp) => {
                let opened = std::net::TcpStream::connect_timeout(&address, ASK_MAX);
                Ok(opened.err().map(|refusal| refusal.to_string()))
            }
            Some(Ready::Get { target, status }) => {
                Ok(match ask(address, ASK_MAX, async |node| node.page(target).await)? {
                    Ok(page) if page.code == *status => None,
                    Ok(page) => Some(format!("GET {target} is answered with {}", page.code)),
                    Err(refusal) => Some(refusal.to_string()),
                })
            }
        }
    }

    /// All processes of the lab's own nodes, with those that they started.
    pub fn processes(&self) -> BTreeSet<u32> {
        match &self.mark {
            Some(mark) => processes::tree(mark, &self.pids),
            None => self.pids.iter().copied().collect(),
        }
    }

    /// The started processes, each with the port of its first node.
    pub fn ports_of_processes(&self) -> Vec<(u32, u16)> {
        let each = (self.addresses.len() / self.pids.len().max(1)).max(1);
        let ports = self.addresses.iter().step_by(each).map(SocketAddr::port);
        self.pids.iter().copied().zip(ports).collect()
    }

    /// The addresses of its nodes.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The nodes' URLs.
    pub fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("http://{address}")).collect()
    }

    /// The command of each node.
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// The started processes, each with its log of collections.
    pub fn gc_logs(&self) -> impl Iterator<Item = (u32, &Path)> {
        self.pids.iter().copied().zip(self.gc_logs.iter().map(PathBuf::as_path))
    }

    /// What all processes use now; `None` if they are not the lab's.
    pub fn usage(&self) -> Option<Usage> {
        (!self.pids.is_empty()).then(|| processes::usage(&self.processes()))
    }

    /// CPU time of all nodes so far; `None` if they are not the lab's.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.usage().map(|usage| usage.cpu_time)
    }

    /// Waits until the disk has nothing left to write and background work has ended: less than 5 % of a core
    /// over half a second. Gives up after `wait_max`, without an error.
    pub fn settle(&self, wait_max: Duration) -> Result<(), LabError> {
        rustix::fs::sync();
        until_idle(|| Ok(self.cpu_time().unwrap_or_default()), wait_max)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.guard.end();
    }
}

/// Asks the binary whether it would start with the flags of `configuration`.
///
/// # Errors
/// [`LabError::Usage`] with the binary's own text if it would not.
pub fn check(binary: &Path, configuration: &Configuration) -> Result<(), LabError> {
    let place = |why| LabError::Usage(format!("configuration {:?}: {why}", configuration.name));
    if let Some(program) = configuration.command.as_ref().and_then(|words| words.first()) {
        let is_there = program.contains('{') || find_program(program).is_some();
        return if is_there { Ok(()) } else { Err(place(format!("the program {program} is not installed"))) };
    }
    if configuration.urls.is_some() {
        return Ok(());
    }
    let mut command = Command::new(binary);
    let flags = configuration.flags().map_err(LabError::Usage)?;
    command.arg("serve").args(flags).arg("--print-config");
    let output = output_within(command, SAY_MAX)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(place(said))
}

/// The version that the binary reports, with its size and age, which distinguish builds of one version.
///
/// # Errors
/// [`LabError::Subject`] if it reports none, [`LabError::Machine`] if it cannot be read.
pub fn version(binary: &Path) -> Result<String, LabError> {
    let mut command = Command::new(binary);
    command.arg("--version");
    let output = output_within(command, SAY_MAX)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !said.is_empty() {
        let file =
            std::fs::metadata(binary).map_err(LabError::machine(format!("read {}", binary.display())))?;
        let made = file.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let made = date(made.unwrap_or_default().as_secs());
        return Ok(format!("{said}, {made}, {} B", grouped(file.len())));
    }
    Err(LabError::Subject(format!("{} --version: {}", binary.display(), output.status)))
}

/// What `command` says of the version of a program that is not kvorum: the first line that it prints.
///
/// # Errors
/// [`LabError::Subject`] if it fails or says nothing, [`LabError::Machine`] if it cannot be started.
pub fn foreign_version(command: &[String]) -> Result<String, LabError> {
    let mut words = command.iter();
    let mut version = Command::new(words.next().map_or("", String::as_str));
    version.args(words);
    let output = output_within(version, SAY_MAX)?;
    // `java -version` says it on standard error.
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let line = said.iter().flat_map(|text| text.lines()).map(str::trim).find(|line| !line.is_empty());
    match line {
        Some(line) if output.status.success() => Ok(line.chars().take(VERSION_CHARS_MAX).collect()),
        _ => Err(LabError::Subject(format!("{}: {}, and no version", shell(command), output.status))),
    }
}

/// A server that is not kvorum.
fn foreign_command(words: &[String], environment: &BTreeMap<String, String>, values: &Values<'_>) -> Command {
    let mut filled = words.iter().map(|word| values.fill(word));
    let mut command = Command::new(filled.next().unwrap_or_default());
    command.args(filled);
    command.envs(environment.iter().map(|(name, text)| (name, values.fill(text))));
    command
}

/// The same as a line for a shell, with its environment: without it another server would be started.
fn shown_foreign(words: &[String], environment: &BTreeMap<String, String>, values: &Values<'_>) -> String {
    let settings = environment.iter().map(|(name, text)| format!("{name}={}", shell(&[values.fill(text)])));
    let words: Vec<String> = words.iter().map(|word| values.fill(word)).collect();
    settings.chain([shell(&words)]).collect::<Vec<_>>().join(" ")
}

/// The arguments of the program, except for the data directory.
fn words(address: SocketAddr, all: &[SocketAddr], flags: &[String]) -> Vec<String> {
    let mut words = vec!["serve".to_owned(), "--listen".into(), address.to_string()];
    if all.len() > 1 {
        let urls: Vec<String> = all.iter().map(|one| format!("http://{one}")).collect();
        words.extend(["--cluster".into(), urls.join(",")]);
    }
    words.extend_from_slice(flags);
    words
}

/// The words, quoted for a shell.
pub(super) fn shell(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,=%@+".contains(&byte);
        let is_bare = !word.is_empty() && word.bytes().all(is_plain);
        if is_bare { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn is_port_taken(why: &str) -> bool {
    why.contains("in use")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;

    /// Goal: a cluster's nodes know each other, a single one has no peers. Method: the arguments.
    #[test]
    fn nodes_are_told_of_each_other() {
        let addresses: [SocketAddr; 2] = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        let one = words(addresses[0], &addresses[..1], &["--threads".into(), "2".into()]);
        assert_eq!(shell(&one), "serve --listen 127.0.0.1:1 --threads 2");
        let two = words(addresses[1], &addresses, &[]);
        assert_eq!(shell(&two), "serve --listen 127.0.0.1:2 --cluster http://127.0.0.1:1,http://127.0.0.1:2");
        assert_eq!(shell(&["a b".into(), "it's".into(), String::new()]), r"'a b' 'it'\''s' ''");
    }

    /// Goal: the version of a foreign program is the first line that it prints, on either output; a program that fails or says
    /// nothing has none. Method: small shell scripts.
    #[test]
    fn foreign_versions_are_first_lines() {
        let said = |script: &str| foreign_version(&["sh", "-c", script].map(String::from));
        assert_eq!(said("echo; echo ' one 1.2 '; echo more").unwrap(), "one 1.2");
        assert_eq!(said("echo 'openjdk version \"17\"' >&2").unwrap(), "openjdk version \"17\"");
        assert_eq!(said("printf '%0500d' 0").unwrap().len(), VERSION_CHARS_MAX);
        for bad in ["true", "echo 1; false"] {
            assert!(matches!(said(bad), Err(LabError::Subject(_))), "{bad}");
        }
        assert!(matches!(foreign_version(&["/no/such/program".to_owned()]), Err(LabError::Machine { .. })));
    }

    /// Goal: a foreign server's command can be pasted. Method: two ports of one process, and an environment with a space.
    #[test]
    fn foreign_commands_are_shown_whole() {
        let own: [SocketAddr; 2] = ["127.0.0.1:8080".parse().unwrap(), "127.0.0.1:8081".parse().unwrap()];
        let (data, none) = (Path::new("data/1"), Path::new(""));
        let values = Values { node: 1, own: &own, all: &own, data, gc_log: none, reference: none };
        let environment = BTreeMap::from([("OPTIONS".to_owned(), "-Xmx1g -Dport={port}".to_owned())]);
        let words = ["java", "{ports}", "{data}"].map(String::from);
        let expect = "OPTIONS='-Xmx1g -Dport=8080' java 8080,8081 data/1";
        assert_eq!(shown_foreign(&words, &environment, &values), expect);
    }

    /// Goal: no process outlives a guard's end. Method: a process that would sleep on, and its directory.
    #[test]
    fn what_is_kept_is_ended() {
        let guard = ProcessGuard::default();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_path_buf();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        {
            let mut kept = guard.kept.lock().unwrap();
            kept.children.push(child);
            kept.directory = Some(directory);
        }
        guard.end();
        assert!(machine::cpu_time(pid).is_err(), "process {pid} lives");
        assert!(!path.exists());
    }
}
