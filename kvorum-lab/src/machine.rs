//! The kernel's figures about the machine and about a process: steal, CPU time, memory.
//!
//! Everything is read from `/proc`. CPU time there has the resolution of a clock tick (10 ms), so windows of
//! less than a second are imprecise.

use std::fs;
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::units::float;

/// The hypervisor's steal since a moment: how much of the machine's CPU other machines had.
#[derive(Debug)]
pub struct StealWindow {
    begin: Instant,
    ticks: u64,
}

impl StealWindow {
    /// Opens the window now.
    pub fn begin() -> Result<Self, LabError> {
        Ok(Self { begin: Instant::now(), ticks: steal_ticks()? })
    }

    /// Cores of steal, averaged from the beginning of the window until now; 1.0 = one whole core was taken.
    pub fn cores(&self) -> Result<f64, LabError> {
        let stolen = steal_ticks()?.saturating_sub(self.ticks);
        let elapsed = self.begin.elapsed().as_secs_f64();
        Ok(if elapsed > 0.0 { float(stolen) / float(ticks_per_second()) / elapsed } else { 0.0 })
    }
}

/// The memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident bytes now (`VmRSS`).
    pub resident_bytes: u64,
    /// The most resident bytes there ever were (`VmHWM`).
    pub resident_bytes_max: u64,
}

/// CPU time, user and system, that process `pid` and its finished threads have used.
pub fn cpu_time(pid: u32) -> Result<Duration, LabError> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(LabError::machine(format!("read {path}")))?;
    let ticks = parse_cpu_ticks(&text).ok_or_else(|| LabError::Subject(format!("{path}: no CPU times")))?;
    Ok(Duration::from_secs_f64(float(ticks) / float(ticks_per_second())))
}

/// The memory of process `pid`.
pub fn memory(pid: u32) -> Result<Memory, LabError> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(LabError::machine(format!("read {path}")))?;
    parse_memory(&text).ok_or_else(|| LabError::Subject(format!("{path}: no VmRSS (has it ended?)")))
}

/// Ties the calling thread, and the threads that it will start, to `core`.
pub fn pin_to_core(core: usize) -> Result<(), LabError> {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores)
        .map_err(|errno| LabError::Machine { attempted: format!("pin to core {core}"), source: errno.into() })
}

fn steal_ticks() -> Result<u64, LabError> {
    let text = fs::read_to_string("/proc/stat").map_err(LabError::machine("read /proc/stat"))?;
    parse_steal_ticks(&text).ok_or_else(|| LabError::Subject("/proc/stat: no steal".into()))
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The eighth figure of the line `cpu`, summed over all cores.
fn parse_steal_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    line.split_ascii_whitespace().nth(7)?.parse().ok()
}

/// utime + stime: fields 14 and 15, counted from after the last `)`, since a name may hold spaces and
/// brackets.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parse_memory(status: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    };
    Some(Memory { resident_bytes: bytes("VmRSS:")?, resident_bytes_max: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: steal is the eighth figure of the summary line, not of a core's. Method: a fixed text.
    #[test]
    fn steal_is_read() {
        let text = "cpu  10 20 30 40 50 60 70 88 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n";
        assert_eq!(parse_steal_ticks(text), Some(88));
        assert_eq!(parse_steal_ticks("cpu  10 20 30\n"), None);
        assert_eq!(parse_steal_ticks("cpu0 1 2 3 4 5 6 7 8 9 10\n"), None);
    }

    /// Goal: CPU ticks are found after a hostile name. Method: brackets and spaces in it.
    #[test]
    fn cpu_ticks_are_read() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 7 9 20 0 3 0 100 1000 200";
        assert_eq!(parse_cpu_ticks(text), Some(400));
        assert_eq!(parse_cpu_ticks("42 (a) S 1 2"), None);
        assert_eq!(parse_cpu_ticks(""), None);
    }

    /// Goal: memory is in bytes, and absent for a zombie, which has no such lines. Method: fixed texts.
    #[test]
    fn memory_is_read() {
        let text =
            "Name:\tkvorum\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t4\n";
        let expect = Memory { resident_bytes: 1024 * 1024, resident_bytes_max: 2048 * 1024 };
        assert_eq!(parse_memory(text), Some(expect));
        assert_eq!(parse_memory("Name:\tkvorum\nState:\tZ (zombie)\n"), None);
    }

    /// Goal: the real files have the expected shape here. Method: read our own.
    #[test]
    fn the_real_files_are_read() {
        let own = std::process::id();
        assert!(memory(own).unwrap().resident_bytes > 0);
        cpu_time(own).unwrap();
        assert!(StealWindow::begin().unwrap().cores().unwrap() >= 0.0);
        assert!(memory(0).is_err(), "there is no process 0");
    }
}
