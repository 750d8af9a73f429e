//! The machine's view of the node: its process (CPU time, memory, descriptors) and the file system of its data.
//!
//! Everything is read from the kernel when it is asked for. A figure that the kernel does not give is none: a metric
//! that is missing is better than one that is wrong.

use std::path::Path;
use std::time::Duration;

/// The commit of this build, as `kvorum --version` has it; empty if it was not given to the build.
pub const COMMIT: &str = match option_env!("KVORUM_COMMIT") {
    Some(commit) => commit,
    None => "",
};
/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The compiler of this build.
pub const RUSTC: &str = env!("KVORUM_RUSTC");

/// The figures of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Process {
    /// CPU time of all its threads so far, user and system.
    pub cpu: Option<Duration>,
    /// Memory that it has in RAM, in bytes.
    pub resident_bytes: Option<u64>,
    /// Memory that it has mapped, in bytes.
    pub virtual_bytes: Option<u64>,
    /// Its threads.
    pub threads: Option<u64>,
    /// Descriptors that it has open.
    pub fds_open: Option<u64>,
    /// Descriptors that it may have open; none if there is no limit.
    pub fds_max: Option<u64>,
    /// When it started, since 1970.
    pub started: Option<Duration>,
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size.
    pub size: u64,
    /// Free for this process: without what is kept for root.
    pub free: u64,
}

impl DiskSpace {
    /// The space of the file system that `path` is on; none if there is no such path.
    pub fn of(path: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Some(Self { size: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
    }
}

impl Process {
    /// Reads the figures of this process.
    pub fn read() -> Self {
        let stat = read("/proc/self/stat").unwrap_or_default();
        let status = read("/proc/self/status").unwrap_or_default();
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let mut process = Self::parse(&stat, &status, ticks_per_second);
        process.fds_open = fds_open();
        process.fds_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let boot = read("/proc/stat").as_deref().and_then(boot_seconds);
        // Until here, `started` counts from the boot.
        process.started = process.started.zip(boot).map(|(since_boot, boot)| boot + since_boot);
        process
    }

    /// What `/proc/self/stat` and `/proc/self/status` say; `started` counts from the machine's boot.
    fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Self {
        // The second field is the name in parentheses, which may contain spaces and parentheses.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().collect())
            .unwrap_or_default();
        let ticks = |number: usize| -> Option<Duration> {
            // Fields are numbered from 1 in proc(5), and the first here is the third.
            let ticks: u64 = fields.get(number.checked_sub(3)?)?.parse().ok()?;
            let micros = u128::from(ticks) * 1_000_000 / u128::from(ticks_per_second.max(1));
            Some(Duration::from_micros(u64::try_from(micros).ok()?))
        };
        let row = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        let kib = |name| row(name).and_then(|kib| kib.checked_mul(1024));
        Self {
            cpu: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
            resident_bytes: kib("VmRSS"),
            virtual_bytes: kib("VmSize"),
            threads: row("Threads"),
            fds_open: None,
            fds_max: None,
            started: ticks(22),
        }
    }
}

/// The machine's boot, since 1970.
fn boot_seconds(stat: &str) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok().map(Duration::from_secs)
}

/// The number of open descriptors. Since Linux 6.2 it is the size of their directory, which costs nothing with many
/// connections; before, the size is 0 and they are counted.
fn fds_open() -> Option<u64> {
    let path = "/proc/self/fd";
    match rustix::fs::stat(path).ok().and_then(|stat| u64::try_from(stat.st_size).ok()) {
        Some(count) if count > 0 => Some(count),
        // Less the one that reads the directory.
        _ => Some((std::fs::read_dir(path).ok()?.count() as u64).saturating_sub(1)),
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel's files about this process: they do not block")]
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's lines are read as proc(5) describes them, also with a name that looks like fields.
    #[test]
    fn lines_of_the_kernel_are_read() {
        let stat = "1234 (a) b (c) S 1 1234 1234 0 -1 4194304 500 0 1 0 150 50 0 0 20 0 9 0 7350 100 20 184";
        let status = "Name:\ta) b (c\nVmPeak:\t  300 kB\nVmSize:\t  200 kB\nVmRSS:\t  100 kB\nThreads:\t9\n";
        let process = Process::parse(stat, status, 100);
        assert_eq!(process.cpu, Some(Duration::from_secs(2)));
        assert_eq!((process.resident_bytes, process.virtual_bytes), (Some(102_400), Some(204_800)));
        assert_eq!((process.threads, process.started), (Some(9), Some(Duration::from_millis(73_500))));
        assert_eq!(boot_seconds("cpu 1 2\nbtime 1700000000\n"), Some(Duration::from_secs(1_700_000_000)));
    }

    /// Text that is none of the kernel's gives no figures and no panic.
    #[test]
    fn other_text_gives_no_figures() {
        for text in
            ["", ")", "1 (a) S", "x (y) z 18446744073709551616", "VmRSS:", "VmRSS: 18446744073709551615 kB"]
        {
            let process = Process::parse(text, text, 0);
            assert_eq!((process.cpu, process.resident_bytes), (None, None), "{text}");
        }
    }

    /// This process has figures.
    #[test]
    fn this_process_has_figures() {
        let process = Process::read();
        assert!(process.cpu.is_some() && process.threads >= Some(1) && process.fds_open >= Some(3));
        assert!(process.virtual_bytes >= process.resident_bytes && process.resident_bytes > Some(1 << 20));
        assert!(process.started > Some(Duration::from_secs(1_600_000_000)));
        let disk = DiskSpace::of(Path::new("/")).unwrap();
        assert!(disk.size >= disk.free && disk.size > 0);
        assert_eq!(DiskSpace::of(Path::new("/no/such/path")), None);
    }
}
