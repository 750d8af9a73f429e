//! The processes of a lab: trees of them, what they use, and their end, also after `kill -9` of the lab.
//!
//! Every process that a lab starts has the variable [`MARK`] in its environment, with a value of that run, and so
//! have the processes that it starts, whatever group or session they choose. A tree is every process with the mark,
//! every process that the lab started, and all their descendants.
//!
//! A [`Watch`] is a second process of the lab's own program. It waits until the lab is gone, however that happened:
//! the pipe that only the lab holds open ends. Then it kills what still has the mark. The alternatives were refused:
//! a death signal of the parent needs `unsafe` code, reaches no grandchildren, and is lost where a thread ends; a
//! process between the lab and each node would be in the way of signals, profilers and CPU times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;
use crate::machine;
use crate::units::float;

/// The variable that marks the processes of a lab.
pub const MARK: &str = "KVORUM_LAB_RUN";

/// The beginning of the names of temporary directories; the watch removes no others.
pub const DIRECTORY_PREFIX: &str = "kvorum-lab-";

/// How long the watch looks for marked processes, and the pause between two looks: a process that was just being
/// started has no mark yet.
const WATCH_MAX: Duration = Duration::from_secs(10);
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// How many looks in a row must find nothing.
const CLEAN_LOOKS: u32 = 3;

/// What a tree of processes uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time so far, with that of children that have ended.
    pub cpu_time: Duration,
    /// Resident bytes now.
    pub resident_bytes: u64,
    /// Threads now.
    pub threads: u64,
}

/// Every process that has the mark with `value`, is one of `roots`, or descends from one of them.
pub fn tree(value: &str, roots: &[u32]) -> BTreeSet<u32> {
    let mark = format!("{MARK}={value}");
    let mut parents = BTreeMap::new();
    let mut found: BTreeSet<u32> = BTreeSet::new();
    for pid in pids() {
        // A process may have ended meanwhile; a zombie has nothing left to measure or to kill.
        let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_zombie) else { continue };
        parents.insert(pid, stat.parent);
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if roots.contains(&pid) || environment.split(|&byte| byte == 0).any(|one| one == mark.as_bytes()) {
            found.insert(pid);
        }
    }
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(&pid, _)| pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// What `processes` use together. One that has ended counts for nothing.
pub fn usage(processes: &BTreeSet<u32>) -> Usage {
    let mut all = Usage::default();
    for &pid in processes {
        if let Some(stat) = Stat::read(pid) {
            all.cpu_time += ticks(stat.cpu_ticks);
            all.threads += stat.threads;
            all.resident_bytes += machine::memory(pid).map_or(0, |memory| memory.resident_bytes);
        }
    }
    all
}

/// When process `pid` was started, after the boot of the machine; `None` if there is none.
pub fn started(pid: u32) -> Option<Duration> {
    Stat::read(pid).map(|stat| ticks(stat.start_ticks))
}

/// Kills every process of the tree, again until none is left or `within` has passed. Returns how many it killed.
pub fn kill_tree(value: &str, roots: &[u32], within: Duration) -> usize {
    let deadline = Instant::now() + within;
    let mut killed = BTreeSet::new();
    loop {
        let left = tree(value, roots);
        for &pid in &left {
            send(pid, Signal::KILL);
        }
        if left.is_empty() || Instant::now() > deadline {
            return killed.len();
        }
        killed.extend(left);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `signal` to process `pid`, which may have ended.
pub fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

fn pids() -> Vec<u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(float(ticks) / float(rustix::param::clock_ticks_per_second().max(1)))
}

/// The fields of `/proc/PID/stat` that are needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    is_zombie: bool,
    /// With those of children that have ended and were waited for.
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Fields are counted from after the last `)`, since a name may hold spaces and brackets; the first there is the
    /// third of the manual.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            is_zombie: matches!(fields.first(), Some(&("Z" | "X"))),
            cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
            threads: number(20)?,
            start_ticks: number(22)?,
        })
    }
}

/// A process that outlives the lab by a moment, and ends what the lab has left behind.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    value: String,
}

impl Watch {
    /// Starts the watch of a new run; its processes carry [`MARK`] with [`Watch::value`].
    ///
    /// # Errors
    /// [`LabError::Machine`] if the own program cannot be started again.
    pub fn start() -> Result<Self, LabError> {
        let value = format!("{}-{}", std::process::id(), super::results::now());
        let own = std::env::current_exe().map_err(LabError::machine("find the own program"))?;
        let mut command = Command::new(own);
        command.args(["lab", "watch", &value]).stdin(Stdio::piped()).stdout(Stdio::null());
        // A Ctrl-C, or the end of the lab's group, must not reach it.
        command.process_group(0).env_remove(MARK);
        let child = command.spawn().map_err(LabError::machine("start a watch over the lab's processes"))?;
        Ok(Self { child, value })
    }

    /// The value of this run's mark.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Has `directory` removed in the end, if the lab has not done it.
    ///
    /// # Errors
    /// [`LabError::Machine`] if the watch has ended.
    pub fn tell(&mut self, directory: &Path) -> Result<(), LabError> {
        let Some(pipe) = self.child.stdin.as_mut() else { return Ok(()) };
        let line = format!("{}\n", directory.display());
        pipe.write_all(line.as_bytes()).map_err(LabError::machine("tell the watch of a directory"))
    }
}

/// Runs the watch over the lab with the mark `value`: waits for the end of standard input, then kills and removes
/// what is left.
///
/// # Errors
/// [`LabError::Machine`] if standard input cannot be read.
pub fn watch(value: &str) -> Result<(), LabError> {
    let mut told = String::new();
    std::io::stdin().lock().read_to_string(&mut told).map_err(LabError::machine("read standard input"))?;
    let deadline = Instant::now() + WATCH_MAX;
    let (mut killed, mut clean) = (0, 0);
    let is_left = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(DIRECTORY_PREFIX) && path.is_dir()
    };
    let directories: Vec<PathBuf> = told.lines().map(PathBuf::from).filter(|path| is_left(path)).collect();
    // After an orderly end of the lab nothing is left, and one look is enough.
    let looks = if directories.is_empty() { 1 } else { CLEAN_LOOKS };
    while clean < looks && Instant::now() < deadline {
        let count = kill_tree(value, &[], WATCH_PAUSE);
        killed += count;
        clean = if count == 0 { clean + 1 } else { 0 };
        if clean < looks {
            thread::sleep(WATCH_PAUSE);
        }
    }
    for path in &directories {
        // Nobody is there to be told of a failure.
        let _ = fs::remove_dir_all(path);
    }
    if killed > 0 {
        kvorum_output::tell_line!("kvorum lab: ended {killed} processes that the lab had left behind");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the fields are those of the manual, after a hostile name. Method: a fixed text.
    #[test]
    fn stat_is_read() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194304 100 0 0 0 250 150 7 9 20 0 3 0 100 1000 200";
        let expect = Stat { parent: 7, is_zombie: false, cpu_ticks: 416, threads: 3, start_ticks: 100 };
        assert_eq!(Stat::parse(text), Some(expect));
        assert_eq!(Stat::parse("42 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }

    /// Goal: a tree holds children, and processes that have left it but carry the mark; its end is the end of all.
    /// Method: a shell whose children sleep on, one of them in a session of its own and without its parent.
    #[test]
    fn a_tree_is_found_and_ended() {
        let value = format!("test-{}", std::process::id());
        let script = "setsid sleep 600 & sleep 600 & wait";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).env(MARK, &value);
        let mut shell = shell.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while tree(&value, &[]).len() < 3 {
            assert!(Instant::now() < deadline, "{:?}", tree(&value, &[]));
            thread::sleep(Duration::from_millis(5));
        }
        let usage = usage(&tree(&value, &[]));
        assert_eq!(usage.threads, 3);
        assert!(usage.resident_bytes > 0);
        assert_eq!(kill_tree(&value, &[shell.id()], Duration::from_secs(20)), 3);
        assert!(!shell.wait().unwrap().success());
        assert_eq!(tree(&value, &[]), BTreeSet::new());
    }
}
