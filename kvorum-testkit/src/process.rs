//! The program as a process: started, told to end, killed and inspected. Both harnesses, [`crate::node`] for one
//! node and [`crate::cluster`] for several, are made of it.

use crate::wait_until;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// The program that the tests start: cargo builds it beside the tests of its own package.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("kvorum");
    assert!(program.is_file(), "{} is not built; these are tests of the package `kvorum`", program.display());
    program
}

/// The program with these arguments, and none of the caller's `KVORUM_*` variables.
pub fn kvorum(arguments: &[&str]) -> Command {
    crate::watchdog::watch();
    let mut command = Command::new(program());
    remove_settings(&mut command);
    command.args(arguments);
    command
}

/// Takes the caller's `KVORUM_*` variables from the command's environment.
pub(crate) fn remove_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVORUM_") {
            command.env_remove(name);
        }
    }
}

/// How long a command may take. It is no measurement: what takes longer hangs.
const COMMAND_MAX: Duration = Duration::from_mins(10);

/// Runs a command to its end, with nothing on its standard input. One that hangs is killed, with all that it has started,
/// and fails the test.
pub fn finish(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let what = format!("{command:?}");
    let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    wait_for(child, &what)
}

/// Waits until `child`, the leader of a process group, has ended; see [`finish`].
fn wait_for(mut child: Child, what: &str) -> Output {
    let group = child.id();
    let (ended, is_over) = mpsc::channel::<()>();
    let killer = thread::spawn(move || {
        let hangs = is_over.recv_timeout(COMMAND_MAX) == Err(mpsc::RecvTimeoutError::Timeout);
        if hangs {
            let _ = Command::new("kill").args(["-KILL", &format!("-{group}")]).status();
        }
        hangs
    });
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    drop(ended);
    let hung = killer.join().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(!hung, "{what} hung:\n{}\n{}", said(&output.stdout), said(&output.stderr));
    output
}

/// Runs a command to its end with `input` on its standard input; see [`finish`].
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let what = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || {
        // A command that does not read its input may close it.
        let _ = stdin.write_all(&input);
    });
    let output = wait_for(child, &what);
    writer.join().unwrap();
    output
}

/// Standard error of one or several processes, as far as it was read.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The text so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Forgets the text so far.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    fn read(&self, mut stderr: ChildStderr) -> thread::JoinHandle<()> {
        let log = Arc::clone(&self.0);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = stderr.read(&mut buffer) {
                log.lock().unwrap().extend_from_slice(&buffer[..bytes]);
            }
        })
    }
}

/// A process; dropping it kills it, and shows its log if the test fails.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: Log,
    reader: Option<thread::JoinHandle<()>>,
}

impl Process {
    /// Starts the command, whose standard error goes to `log`.
    pub fn spawn(command: &mut Command, log: &Log) -> Self {
        // A group of its own: a key pressed at the terminal ends the test, which then ends its nodes.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let reader = log.read(child.stderr.take().unwrap());
        Self { child, log: log.clone(), reader: Some(reader) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Where its standard error is kept.
    pub fn log_of(&self) -> &Log {
        &self.log
    }

    /// Its exit status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Whether it runs (or is paused).
    pub fn is_alive(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Waits until it has ended by itself and its whole log is read.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the process has ended", || !self.is_alive());
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.try_wait().unwrap()
    }

    /// Sends it a signal, for example `libc::SIGTERM`.
    pub fn signal(&self, signal: i32) {
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Pauses it (SIGSTOP), and returns once all its threads have stopped: on busy processors some still run for a moment, and answer.
    #[track_caller]
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until("the process has stopped", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                // A thread that has ended meanwhile has no file. Its name, in parentheses, may be anything.
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
            })
        });
    }

    /// Tells it to end (SIGTERM), unless it has ended, and returns its exit status.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        if self.is_alive() {
            self.signal(libc::SIGTERM);
        }
        self.wait()
    }

    /// Kills it as a crash would (SIGKILL). It must have been alive until then.
    #[track_caller]
    pub fn kill9(mut self) {
        assert!(self.is_alive(), "the process ended by itself:\n{}", self.log());
        self.begin_kill();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "the process ended by itself:\n{}", self.log());
    }

    /// Kills it, and does not wait.
    pub fn begin_kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// The ids of its threads called `name`, in the order in which they were started.
    pub fn threads(&self, name: &str) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let is_called = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let mut found: Vec<u32> = tasks
            .map(|task| task.unwrap().path())
            .filter(is_called)
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

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- log of process {} ---\n{}---", self.pid(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
