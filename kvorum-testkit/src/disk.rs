//! Faults below the node: full and failing file systems, power loss, damaged files.
//!
//! Everything that is mounted or attached here is unmounted and detached when its guard is dropped.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The alarm that a node raises when the machine's own disk is low: it says nothing of a test.
pub const MACHINE_ALARM: &str = "disk-low";

/// Runs a command; returns its error text if it fails or does not exist.
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mounted file system of the test's own.
#[derive(Debug)]
pub struct Mounted {
    dir: TempDir,
    image: Option<PathBuf>,
    attached: bool,
}

impl Mounted {
    /// A file system in memory of `mebibytes`.
    ///
    /// # Errors
    /// The reason, for example no root.
    pub fn tmpfs(mebibytes: u64) -> Result<Self, String> {
        Self::tmpfs_with(mebibytes, None)
    }

    /// The same, with at most `inodes` files.
    ///
    /// # Errors
    /// The reason, as for [`Self::tmpfs`].
    pub fn tmpfs_with(mebibytes: u64, inodes: Option<u64>) -> Result<Self, String> {
        let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
        std::fs::create_dir(dir.path().join("mount")).unwrap();
        let mut mounted = Self { dir, image: None, attached: false };
        let inodes = inodes.map(|inodes| format!(",nr_inodes={inodes}")).unwrap_or_default();
        let size = format!("size={mebibytes}M{inodes}");
        run("mount", &["-t", "tmpfs", "-o", &size, "kvorum-fault", text(&mounted.path())])?;
        mounted.attached = true;
        Ok(mounted)
    }

    /// An ext4 file system of `mebibytes` in a file, whose power can be cut.
    ///
    /// # Errors
    /// The reason: no root, no loop device, no mkfs or python3.
    pub fn ext4(mebibytes: u64) -> Result<Self, String> {
        run("python3", &["-c", "import fcntl"])?;
        let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
        std::fs::create_dir(dir.path().join("mount")).unwrap();
        let image = dir.path().join("image");
        File::create_new(&image).and_then(|file| file.set_len(mebibytes << 20)).unwrap();
        run("mkfs.ext4", &["-q", "-F", text(&image)])?;
        let mut mounted = Self { dir, image: Some(image), attached: false };
        mounted.mount()?;
        Ok(mounted)
    }

    fn mount(&mut self) -> Result<(), String> {
        let image = self.image.as_deref().unwrap();
        run("mount", &["-o", "loop", text(image), text(&self.path())])?;
        self.attached = true;
        Ok(())
    }

    /// Its mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// A directory on it for a node.
    pub fn data_dir(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Cuts the power: bytes that have not reached the disk by now never do. Returns the Unix milliseconds of
    /// the cut; no client would have received an answer from then on. Works for ext4 only.
    pub fn cut_power(&self) -> u64 {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH. There is no safe wrapper of it in Rust.
        let script = "import fcntl, os, struct, sys, time\n\
                      dir = os.open(sys.argv[1], os.O_RDONLY)\n\
                      print(int(time.time() * 1000), flush=True)\n\
                      fcntl.ioctl(dir, 0x8004587d, struct.pack('I', 2))";
        let output = Command::new("python3").args(["-c", script, text(&self.path())]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
    }

    /// Brings the power back: bytes that reached the disk are there. The node must have ended.
    pub fn restore_power(&mut self) {
        // The kernel closes a killed process's files a moment after it has ended.
        let begun = Instant::now();
        while let Err(error) = run("umount", &[text(&self.path())]) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.attached = false;
        self.mount().unwrap();
    }

    /// The number of free bytes.
    pub fn free_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.path()).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    /// Fills the disk at once with a file, up to at most `leave` bytes.
    pub fn fill(&self, leave: u64) -> PathBuf {
        let path = self.path().join("ballast");
        let file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        // Other processes take space meanwhile, so that the free space may be less than it was.
        let mut bytes = self.free_bytes().saturating_sub(leave);
        while bytes > 0 {
            let end = file.metadata().unwrap().len();
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, bytes) {
                Ok(()) => bytes = self.free_bytes().saturating_sub(leave),
                Err(_) => bytes /= 2,
            }
        }
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.attached
            && let Err(error) =
                run("umount", &[text(&self.path())]).or_else(|_| run("umount", &["-l", text(&self.path())]))
        {
            eprintln!("{error}");
        }
    }
}

/// A strace attached to a process or to threads, which changes their system calls; detached when dropped.
pub struct Meddling {
    strace: Child,
}

impl Meddling {
    /// Makes the process's calls of `fdatasync` fail from the next one on.
    ///
    /// # Errors
    /// The reason: no strace, or tracing is not allowed.
    pub fn failing_sync(pid: u32) -> Result<Self, String> {
        Self::attach(&["-f", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1+"], &[pid])
    }

    /// Delays each of the threads' calls of `write`.
    ///
    /// # Errors
    /// The reason, as for [`Self::failing_sync`].
    pub fn slow_writes(threads: &[u32], delay: Duration) -> Result<Self, String> {
        let inject = format!("inject=write:delay_enter={}:when=1+", delay.as_micros());
        Self::attach(&["-e", "trace=write", "-e", &inject], threads)
    }

    fn attach(arguments: &[&str], ids: &[u32]) -> Result<Self, String> {
        let mut strace = Command::new("strace")
            .args(arguments)
            .args(ids.iter().flat_map(|id| ["-p".to_owned(), id.to_string()]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("strace: {error}"))?;
        let mut said = BufReader::new(strace.stderr.take().unwrap());
        for _ in ids {
            let mut attached = String::new();
            said.read_line(&mut attached).unwrap();
            if !attached.contains("attached") {
                let _ = strace.kill();
                let _ = strace.wait();
                return Err(format!("strace: {}", attached.trim()));
            }
        }
        // Drained, so that strace never waits for the test.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(Self { strace })
    }
}

impl Drop for Meddling {
    fn drop(&mut self) {
        // It detaches on SIGTERM; on SIGKILL it would leave the process stopped.
        let pid = rustix::process::Pid::from_child(&self.strace);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.strace.wait();
    }
}

/// The node's newest journal.
pub fn newest_journal(data_dir: &Path) -> PathBuf {
    let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
    let journals = files_below(&data_dir.join("store")).into_iter();
    journals.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max_by_key(number).unwrap()
}

/// The files in the folders called `name` (`tables`, `blobs`) of the records keyspace, which is the largest.
/// A file that the node was about to begin when it was killed is empty and no part of the store; it is left
/// out.
pub fn record_files(data_dir: &Path, name: &str) -> Vec<PathBuf> {
    // A node that has just set its store aside has none.
    let Ok(folders) = std::fs::read_dir(data_dir.join("store/keyspaces")) else { return Vec::new() };
    let files = |folder: PathBuf| if folder.is_dir() { files_below(&folder) } else { Vec::new() };
    // A running node may have replaced a table meanwhile.
    let bytes = |file: &PathBuf| file.metadata().map_or(0, |metadata| metadata.len());
    let all_bytes = |files: &Vec<PathBuf>| files.iter().map(bytes).sum::<u64>();
    let mut largest = folders
        .flatten()
        .map(|folder| files(folder.path().join(name)))
        .max_by_key(all_bytes)
        .unwrap_or_default();
    largest.retain(|file| bytes(file) > 0);
    largest
}

/// Flips bits in every table that holds records and is not among `damaged` yet. A running node may replace a damaged table
/// before it has read the damage, so a test in which nothing else reads calls this until the node has met it.
pub fn damage_tables(data_dir: &Path, damaged: &mut BTreeSet<PathBuf>) {
    for table in record_files(data_dir, "tables") {
        let Ok(metadata) = table.metadata() else { continue };
        if damaged.insert(table.clone()) {
            for percent in [20, 45, 70] {
                // It may be gone from one moment to the next.
                let _ = try_flip_bit(&table, metadata.len() * percent / 100, 3);
            }
        }
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// The end of a file's last byte that is not zero. It is the end of a journal, whose file is allocated
/// longer.
pub fn written_bytes(path: &Path) -> u64 {
    const PIECE: usize = 64 << 10;
    static ZEROS: [u8; PIECE] = [0; PIECE];
    let bytes = std::fs::read(path).unwrap();
    // Piece by piece: a journal has 64 MiB of zeros, and a build for tests looks at single bytes slowly.
    let written = bytes.chunks(PIECE).enumerate().rfind(|(_, piece)| ZEROS[..piece.len()] != **piece);
    let (at, piece) = written.unwrap_or_default();
    piece.iter().rposition(|byte| *byte != 0).map_or(0, |last| (at * PIECE + last) as u64 + 1)
}

/// Flips one bit of the byte at `offset`. A second call restores it.
pub fn flip_bit(path: &Path, offset: u64, bit: u32) {
    try_flip_bit(path, offset, bit).unwrap();
}

fn try_flip_bit(path: &Path, offset: u64, bit: u32) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ (1 << bit)], offset)
}
