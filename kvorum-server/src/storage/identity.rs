//! The identity of a data directory: whether its files are the ones that the node's last run used.
//!
//! | path in the data directory | what |
//! | --- | --- |
//! | `IDENTITY` | record of the last run: text, a name and a value per line |
//! | `VOUCHED` | the operator's decision for the next start only: `bootstrap` or `trust-store` |
//!
//! The record holds the device, inode number and birth time of itself, of the marker and of the store's folder. A file
//! system gives each new file another inode or another birth time, and lets no program set them. So a directory that
//! was copied, restored, unpacked or synchronised from elsewhere differs from its record, whatever program did it. The
//! record is a new file in every run, so that an older copy that is written over it in place does not match either.
//!
//! It cannot detect that a whole file system went back to an earlier state (an image, a snapshot of a machine or of a
//! volume). Other nodes can, by the run that they remember ([`kvorum_core::Run`]).
//!
//! Device numbers change at every boot of the machine; across boots the id of the file system replaces them.

use kvorum_core::Run;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const RECORD: &str = "IDENTITY";
const RECORD_NEW: &str = "IDENTITY.new";
const VOUCHED: &str = "VOUCHED";
const MARKER: &str = "KVORUM";
const STORE: &str = "store";
/// The longest record that is read, in bytes: a path has at most 4,096.
const RECORD_BYTES_MAX: u64 = 16 << 10;
/// How much later than its last change a file of the store may seem to be born: the file system's clock is coarse.
const BIRTH_SLACK: Duration = Duration::from_secs(1);
/// How many levels of folders below the store's folder are checked.
const DEPTH_MAX: usize = 4;
/// A value that changes with every boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The identity of the disk that the node's last run used.
pub trait DiskIdentity: Send + Sync {
    /// Verifies that the disk is the one of the last run. `store` is the identity of the store on it, and `run` the run
    /// that has just begun.
    ///
    /// # Errors
    /// The reason why it may be another disk.
    fn verify(&self, store: u128, run: Run) -> Result<(), Doubt>;

    /// Records durably that the disk is the one of `run`.
    ///
    /// # Errors
    /// When the record cannot be written: the next start will not recognise the disk.
    fn record(&self, store: u128, run: Run) -> io::Result<()>;

    /// Removes durably the record of the last run's disk.
    ///
    /// # Errors
    /// When the record cannot be removed.
    fn forget(&self) -> io::Result<()>;
}

/// The reason why a disk may not be the last run's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// There is no record: the node has not met the others since it got this directory.
    NoRecord,
    /// The record cannot be read or parsed.
    UnreadableRecord {
        /// Why.
        reason: String,
    },
    /// The file system keeps no birth times.
    NoBirthTime {
        /// The file.
        path: PathBuf,
    },
    /// The file or folder is not the recorded one.
    OtherFile {
        /// The file.
        path: PathBuf,
    },
    /// The directory has another path.
    Moved {
        /// Its recorded path.
        from: String,
    },
    /// The record belongs to another store, or to a later run than the store's.
    OtherStore,
    /// A file of the store was born after its last change: a program copied it there.
    Restored {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord => f.write_str("the directory has no record of a last run"),
            Self::UnreadableRecord { reason } => {
                write!(f, "the record of the last run cannot be read: {reason}")
            }
            Self::NoBirthTime { path } => {
                write!(f, "the file system keeps no birth time of {}", path.display())
            }
            Self::OtherFile { path } => write!(f, "{} is not the file of the last run", path.display()),
            Self::Moved { from } => write!(f, "the last run had the directory at {from}"),
            Self::OtherStore => f.write_str("the record of the last run is not of this store"),
            Self::Restored { path } => write!(f, "{} was put there by a copy", path.display()),
        }
    }
}

/// The operator's decision for one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vouch {
    /// No store of this node was ever lost: a new store is quorum-eligible without asking the other nodes.
    Bootstrap,
    /// The directory is the last run's, and not an older copy.
    TrustStore,
}

impl Vouch {
    /// Its name, which is also the command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::TrustStore => "trust-store",
        }
    }

    /// Stores the decision durably in the directory at `data_dir`, for the next start.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn leave(self, data_dir: &Path) -> io::Result<()> {
        let mut file = create(&data_dir.join(VOUCHED))?;
        file.write_all(self.name().as_bytes())?;
        file.sync_all()?;
        sync_folder(data_dir)
    }

    /// The decision stored in the directory at `data_dir`.
    pub fn left_in(data_dir: &Path) -> Option<Self> {
        let word = read_text(&data_dir.join(VOUCHED)).ok()?;
        [Self::Bootstrap, Self::TrustStore].into_iter().find(|vouch| vouch.name() == word.trim())
    }

    /// Removes the decision, once a start has used it.
    ///
    /// # Errors
    /// When it cannot be removed: the next start would use it again.
    pub fn forget(data_dir: &Path) -> io::Result<()> {
        remove(&data_dir.join(VOUCHED))?;
        sync_folder(data_dir)
    }
}

/// A disk that is never recognised.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unrecognised;

impl DiskIdentity for Unrecognised {
    fn verify(&self, _store: u128, _run: Run) -> Result<(), Doubt> {
        Err(Doubt::NoRecord)
    }

    fn record(&self, _store: u128, _run: Run) -> io::Result<()> {
        Ok(())
    }

    fn forget(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A data directory on a file system of this machine.
#[derive(Debug)]
pub struct DirectoryIdentity {
    data_dir: PathBuf,
}

impl DirectoryIdentity {
    /// The identity of the directory at `data_dir`.
    pub fn new(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_path_buf() }
    }

    fn parts(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("record", self.data_dir.join(RECORD)),
            ("marker", self.data_dir.join(MARKER)),
            ("store-folder", self.data_dir.join(STORE)),
        ]
    }

    fn surroundings(&self) -> io::Result<[(&'static str, String); 3]> {
        let path = self.data_dir.canonicalize()?;
        let filesystem = rustix::fs::statvfs(&path)?.f_fsid;
        Ok([
            ("path", path.to_string_lossy().escape_default().to_string()),
            ("boot", read_text(Path::new(BOOT_ID)).map(|id| id.trim().to_owned()).unwrap_or_default()),
            ("filesystem", format!("{filesystem:x}")),
        ])
    }
}

/// The location of a file, and its birth time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    device: u64,
    inode: u64,
    born_nanos: u128,
}

impl Place {
    fn of(metadata: &Metadata) -> Option<Self> {
        let born = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino(), born_nanos: born.as_nanos() })
    }

    fn write(self) -> String {
        format!("{} {} {}", self.device, self.inode, self.born_nanos)
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let device = words.next()?.parse().ok()?;
        let place =
            Self { device, inode: words.next()?.parse().ok()?, born_nanos: words.next()?.parse().ok()? };
        words.next().is_none().then_some(place)
    }
}

impl DiskIdentity for DirectoryIdentity {
    fn verify(&self, store: u128, run: Run) -> Result<(), Doubt> {
        let unreadable = |reason: String| Doubt::UnreadableRecord { reason };
        let record = match read_text(&self.data_dir.join(RECORD)) {
            Ok(record) => record,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Doubt::NoRecord),
            Err(error) => return Err(unreadable(error.to_string())),
        };
        if !record.ends_with('\n') {
            return Err(unreadable("it is incomplete".to_owned()));
        }
        let rows: BTreeMap<&str, &str> = record.lines().filter_map(|line| line.split_once(' ')).collect();
        let row = |name: &'static str| {
            rows.get(name).copied().ok_or_else(|| unreadable(format!("it has no line \"{name}\"")))
        };
        let surroundings = self.surroundings().map_err(|error| unreadable(error.to_string()))?;
        let [(_, path), (_, boot), (_, filesystem)] = &surroundings;
        if row("path")? != path {
            return Err(Doubt::Moved { from: row("path")?.to_owned() });
        }
        let is_same_boot = row("boot")? == boot && !boot.is_empty();
        let is_same_filesystem = row("filesystem")? == filesystem && filesystem != "0";
        for (name, path) in self.parts() {
            let recorded = Place::read(row(name)?).ok_or_else(|| unreadable(format!("line \"{name}\"")))?;
            let metadata = path.symlink_metadata().map_err(|_| Doubt::OtherFile { path: path.clone() })?;
            let found = Place::of(&metadata).ok_or_else(|| Doubt::NoBirthTime { path: path.clone() })?;
            let is_same_disk =
                if is_same_boot { recorded.device == found.device } else { is_same_filesystem };
            if !is_same_disk || (recorded.inode, recorded.born_nanos) != (found.inode, found.born_nanos) {
                return Err(Doubt::OtherFile { path });
            }
        }
        let is_older = row("run")?.parse().is_ok_and(|number: u64| number <= run.number);
        if row("store")? != format!("{store:032x}") || !is_older {
            return Err(Doubt::OtherStore);
        }
        restored_file(&self.data_dir.join(STORE), DEPTH_MAX)
            .map_or(Ok(()), |path| Err(Doubt::Restored { path }))
    }

    fn record(&self, store: u128, run: Run) -> io::Result<()> {
        let target = self.data_dir.join(RECORD_NEW);
        remove(&target)?;
        let mut file = create(&target)?;
        let no_birth_time =
            || io::Error::new(io::ErrorKind::Unsupported, "the file system keeps no birth times");
        let mut text = format!("store {store:032x}\nrun {}\n", run.number);
        for (name, path) in self.parts() {
            let metadata = if name == "record" { file.metadata()? } else { path.symlink_metadata()? };
            let place = Place::of(&metadata).ok_or_else(no_birth_time)?;
            let _ = writeln!(text, "{name} {}", place.write());
        }
        for (name, value) in self.surroundings()? {
            let _ = writeln!(text, "{name} {value}");
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&target, self.data_dir.join(RECORD))?;
        sync_folder(&self.data_dir)
    }

    fn forget(&self) -> io::Result<()> {
        remove(&self.data_dir.join(RECORD_NEW))?;
        remove(&self.data_dir.join(RECORD))?;
        sync_folder(&self.data_dir)
    }
}

/// A file under `folder` that was born after its last change: programs that copy preserve the time of the change, but
/// only the file system sets the birth time.
fn restored_file(folder: &Path, depth: usize) -> Option<PathBuf> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        if metadata.is_dir() {
            if let Some(found) = depth.checked_sub(1).and_then(|depth| restored_file(&entry.path(), depth)) {
                return Some(found);
            }
        } else if let (Ok(born), Ok(changed)) = (metadata.created(), metadata.modified())
            && born.duration_since(changed).is_ok_and(|younger| younger > BIRTH_SLACK)
        {
            return Some(entry.path());
        }
    }
    None
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    OpenOptions::new().read(true).open(path)?.take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this room owns the data directory")]
    File::open(path)?.sync_all()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;
    use std::process::Command;
    use tempfile::TempDir;

    const RUN: Run = Run { number: 3, nonce: 9 };

    fn later(runs: u64) -> Run {
        Run { number: RUN.number + runs, nonce: 7 }
    }

    /// A directory with a marker and a store, recorded in [`RUN`]; none if the file system keeps no birth times.
    fn recorded() -> Option<(TempDir, PathBuf)> {
        let dir = TempDir::new().unwrap();
        let data_dir = dir.path().join("data");
        std::fs::create_dir_all(data_dir.join(STORE).join("tables")).unwrap();
        std::fs::write(data_dir.join(MARKER), "kvorum data format 2\n").unwrap();
        std::fs::write(data_dir.join(STORE).join("tables/1"), "rows").unwrap();
        let identity = DirectoryIdentity::new(&data_dir);
        match identity.record(5, RUN) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                eprintln!("SKIPPED: {error} in {}", dir.path().display());
                return None;
            }
            outcome => outcome.unwrap(),
        }
        Some((dir, data_dir))
    }

    fn verify(data_dir: &Path) -> Result<(), Doubt> {
        DirectoryIdentity::new(data_dir).verify(5, later(1))
    }

    /// Runs a copying program. `cp` and `mv` are on every machine.
    fn run(program: &str, arguments: &[&Path]) {
        let status = Command::new(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    }

    /// The directory of the last run is recognised repeatedly. Not recognised: another store, a store that is older
    /// than the record, and one without a record.
    #[test]
    fn last_run_is_recognised() {
        let Some((_dir, data_dir)) = recorded() else { return };
        let identity = DirectoryIdentity::new(&data_dir);
        assert_eq!(verify(&data_dir), Ok(()));
        assert_eq!(identity.verify(5, later(7)), Ok(()), "runs in between that died early");
        assert_eq!(identity.verify(6, later(1)), Err(Doubt::OtherStore));
        assert_eq!(identity.verify(5, Run { number: 2, nonce: 1 }), Err(Doubt::OtherStore));
        identity.record(5, later(1)).unwrap();
        assert_eq!(identity.verify(5, later(2)), Ok(()));
        identity.forget().unwrap();
        assert_eq!(verify(&data_dir), Err(Doubt::NoRecord));
    }

    /// A copy is not the last run's directory, wherever it is, and whatever its times were set to; nor is a moved
    /// directory.
    #[test]
    fn copies_are_not_recognised() {
        let Some((dir, data_dir)) = recorded() else { return };
        let copy = dir.path().join("copy");
        run("cp", &[Path::new("-a"), &data_dir, &copy]);
        assert!(matches!(verify(&copy), Err(Doubt::Moved { .. })));
        // The copy in the original's place, under its name.
        let aside = dir.path().join("aside");
        run("mv", &[&data_dir, &aside]);
        assert!(matches!(verify(&aside), Err(Doubt::Moved { .. })));
        run("mv", &[&copy, &data_dir]);
        assert!(matches!(verify(&data_dir), Err(Doubt::OtherFile { .. })), "{:?}", verify(&data_dir));
        std::fs::remove_dir_all(&data_dir).unwrap();
        run("mv", &[&aside, &data_dir]);
        assert_eq!(verify(&data_dir), Ok(()), "the very one is back");
    }

    /// An older copy that is written over the directory in place is not recognised, whether the files are replaced or
    /// overwritten: each run has a new record file.
    #[test]
    fn restored_in_place_is_not_recognised() {
        for arguments in [&["-a", "--remove-destination"][..], &["-a"]] {
            let Some((dir, data_dir)) = recorded() else { return };
            let backup = dir.path().join("backup");
            run("cp", &[Path::new("-a"), &data_dir, &backup]);
            DirectoryIdentity::new(&data_dir).record(5, later(1)).unwrap();
            let from = backup.join(".");
            let mut all: Vec<&Path> = arguments.iter().map(Path::new).collect();
            all.extend([&*from, &*data_dir]);
            run("cp", &all);
            assert!(matches!(verify(&data_dir), Err(Doubt::OtherFile { .. })), "{arguments:?}");
        }
    }

    /// A store that was replaced while the record stayed is not recognised: replaced as a whole folder, or file by
    /// file.
    #[test]
    fn replaced_stores_are_not_recognised() {
        let Some((dir, data_dir)) = recorded() else { return };
        let backup = dir.path().join("backup");
        let store = data_dir.join(STORE);
        run("cp", &[Path::new("-a"), &store, &backup]);
        let old = File::options().write(true).open(backup.join("tables/1")).unwrap();
        old.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
        run(
            "cp",
            &[
                Path::new("-a"),
                Path::new("--remove-destination"),
                &backup.join("tables/1"),
                &store.join("tables"),
            ],
        );
        assert!(matches!(verify(&data_dir), Err(Doubt::Restored { .. })), "{:?}", verify(&data_dir));
        std::fs::remove_dir_all(&store).unwrap();
        run("cp", &[Path::new("-a"), &backup, &store]);
        assert!(matches!(verify(&data_dir), Err(Doubt::OtherFile { .. })));
    }

    /// After another boot device numbers may differ, and the id of the file system is compared; within one boot they
    /// are compared.
    #[test]
    fn device_numbers_may_change_with_a_boot() {
        let Some((_dir, data_dir)) = recorded() else { return };
        let record = data_dir.join(RECORD);
        let text = std::fs::read_to_string(&record).unwrap();
        let boot = text.lines().find(|line| line.starts_with("boot ")).unwrap();
        let device = std::fs::metadata(&record).unwrap().dev();
        let other_device = text.replace(&format!(" {device} "), " 9999 ");
        // Written in place, so that the file is still the one that the record names.
        std::fs::write(&record, &other_device).unwrap();
        assert!(matches!(verify(&data_dir), Err(Doubt::OtherFile { .. })));
        let is_named = !text.contains("filesystem 0\n");
        std::fs::write(&record, other_device.replace(boot, "boot before")).unwrap();
        assert_eq!(verify(&data_dir).is_ok(), is_named);
        let elsewhere = other_device.replace(boot, "boot before").replace("filesystem ", "filesystem 1");
        std::fs::write(&record, elsewhere).unwrap();
        assert!(matches!(verify(&data_dir), Err(Doubt::OtherFile { .. })));
    }

    /// A damaged record counts as no record, and causes no other failure.
    #[test]
    fn damaged_records_are_refused() {
        let Some((_dir, data_dir)) = recorded() else { return };
        let record = data_dir.join(RECORD);
        let text = std::fs::read(&record).unwrap();
        for cut in 0..text.len() - 1 {
            std::fs::write(&record, &text[..cut]).unwrap();
            assert!(verify(&data_dir).is_err(), "cut at {cut}");
        }
        std::fs::write(&record, b"\xff\xfe").unwrap();
        assert!(matches!(verify(&data_dir), Err(Doubt::UnreadableRecord { .. })));
    }

    /// The operator's decision is valid for one start.
    #[test]
    fn word_is_left_and_taken() {
        let dir = TempDir::new().unwrap();
        assert_eq!(Vouch::left_in(dir.path()), None);
        for vouch in [Vouch::Bootstrap, Vouch::TrustStore] {
            vouch.leave(dir.path()).unwrap();
            assert_eq!(Vouch::left_in(dir.path()), Some(vouch));
        }
        Vouch::forget(dir.path()).unwrap();
        Vouch::forget(dir.path()).unwrap();
        assert_eq!(Vouch::left_in(dir.path()), None);
    }
}
