//! The data directory: its lock, and the version of its format.
//!
//! | path | what |
//! | --- | --- |
//! | `KVORUM` | marker: one line `kvorum data format N`; locked while a process uses the directory |
//! | `store/` | the engine's files |
//! | `quarantine/` | damaged stores: see `quarantine` |
//! | `IDENTITY`, `VOUCHED` | the files of the last run, and the operator's decision: see `identity` |
//!
//! The marker is read before anything else is touched, so a directory of a newer release stays unchanged.

use crate::crash::{self, Point};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The format that this release writes. It reads all earlier ones and converts them to this one; from then on, an
/// earlier release refuses the directory.
///
/// 2: the newest rows of the index are in a log (`delta`), which a release that only knows format 1 would ignore.
pub const DATA_FORMAT: u32 = 2;

/// The mode of the data directory, and of directories that are made in it.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The most files whose modes are checked when a directory is opened: enough to notice the modes of an earlier release.
const FILES_LOOKED_AT_MAX: usize = 1000;
const MARKER: &str = "KVORUM";
const MARKER_BYTES_MAX: u64 = 256;

/// A data directory, locked for this process until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// The reason why a directory cannot be used.
#[derive(Debug)]
pub enum DataDirError {
    /// Another process has locked it.
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A later release wrote it.
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The marker exists, but its text is unknown.
    UnknownMarker {
        /// The directory.
        path: PathBuf,
        /// The marker's text.
        found: String,
    },
    /// There is no marker, but there are other files: not a data directory of kvorum.
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system reported an error.
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => {
                write!(f, "data directory {} is in use by another kvorum process", path.display())
            }
            Self::NewerFormat { path, found } => write!(
                f,
                "data directory {} has format {found}, written by a newer release; this one reads formats up to \
                 {DATA_FORMAT}",
                path.display()
            ),
            Self::UnknownMarker { path, found } => write!(
                f,
                "data directory {}: its {MARKER} file says {found:?} instead of \"kvorum data format \
                 {DATA_FORMAT}\"",
                path.display()
            ),
            Self::NotEmpty { path } => write!(
                f,
                "directory {} has files but no {MARKER} file: it is not a data directory of kvorum; give an empty or \
                 new one",
                path.display()
            ),
            Self::Io { attempted, path, source } => {
                write!(f, "cannot {attempted} {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for DataDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl DataDir {
    /// Opens and locks the directory at `path`, and creates it if it does not exist.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let io = |attempted| move |source| DataDirError::Io { attempted, path: path.to_path_buf(), source };
        // For this user only, whatever the process's umask: values are private.
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(path)
            .map_err(io("create the data directory"))?;
        let marker_path = path.join(MARKER);
        let marker = OpenOptions::new().read(true).write(true).open(&marker_path);
        let mut marker = match marker {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if is_occupied(path).map_err(io("list the data directory"))? {
                    return Err(DataDirError::NotEmpty { path: path.to_path_buf() });
                }
                let made = OpenOptions::new()
                    .mode(FILE_MODE)
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&marker_path)
                    .map_err(io("create the marker file in"))?;
                crash::point(Point::MarkerCreated);
                made
            }
            Err(error) => return Err(io("open the marker file in")(error)),
        };
        marker.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DataDirError::InUse { path: path.to_path_buf() },
            TryLockError::Error(error) => io("lock the marker file in")(error),
        })?;
        let mut text = Vec::new();
        Read::by_ref(&mut marker)
            .take(MARKER_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(io("read the marker file in"))?;
        match parse_marker(&text) {
            Marker::Format(found) if found > DATA_FORMAT => {
                return Err(DataDirError::NewerFormat { path: path.to_path_buf(), found });
            }
            Marker::Format(DATA_FORMAT) => {}
            // A crash between creating and writing the marker leaves it empty; nothing else was made by then. In a
            // marker of an earlier format a single byte changes, so it is always complete.
            Marker::Empty | Marker::Format(_) => {
                marker
                    .write_all_at(format!("kvorum data format {DATA_FORMAT}\n").as_bytes(), 0)
                    .map_err(io("write the marker file in"))?;
                crash::point(Point::MarkerWritten);
                marker.sync_all().map_err(io("sync the marker file in"))?;
                crash::point(Point::MarkerSynced);
                #[expect(clippy::disallowed_methods, reason = "this room owns the data directory")]
                File::open(path).and_then(|dir| dir.sync_all()).map_err(io("sync the data directory"))?;
            }
            Marker::Unknown(found) => {
                return Err(DataDirError::UnknownMarker { path: path.to_path_buf(), found });
            }
        }
        crash::point(Point::DataDirTaken);
        warn_of_readers(path);
        Ok(Self { path: path.to_path_buf(), _lock: marker })
    }

    /// Whether there is a data directory at `path`.
    pub fn is_one(path: &Path) -> bool {
        path.join(MARKER).is_file()
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the engine's files.
    pub fn store_path(&self) -> PathBuf {
        self.path.join("store")
    }
}

/// Makes all files that this process creates from now on private to its user: the engine creates its files without a
/// mode.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(!DIR_MODE & 0o777));
}

/// Warns of a data directory that other users may read; if the directory is private, warns of such files in it.
///
/// A directory that already existed, or that an earlier release made, keeps its mode: another program may rely on it.
fn warn_of_readers(path: &Path) {
    if let Some(mode) = wide_mode(path) {
        tracing::warn!(
            path = %path.display(),
            mode,
            "the data directory is readable by other users: chmod 0700 keeps its values private"
        );
        return;
    }
    let wide =
        files_under(path, FILES_LOOKED_AT_MAX).into_iter().find_map(|file| Some((wide_mode(&file)?, file)));
    if let Some((mode, file)) = wide {
        tracing::warn!(
            path = %file.display(),
            mode,
            "files in the data directory are readable by other users, and only the directory's own mode protects \
             them: chmod -R go= keeps them private"
        );
    }
}

/// The mode of the file at `path`, if it gives other users any permission.
fn wide_mode(path: &Path) -> Option<String> {
    let mode = std::fs::symlink_metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then(|| format!("{mode:04o}"))
}

/// Some of the files under `path`, at most `count`.
fn files_under(path: &Path, count: usize) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if found.len() >= count {
                return found;
            }
            if is_folder && entry.file_name() != "lost+found" {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// Whether the directory contains anything but a file system's own `lost+found`.
fn is_occupied(path: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(path)? {
        if entry?.file_name() != "lost+found" {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Debug, PartialEq, Eq)]
enum Marker {
    Empty,
    Format(u32),
    Unknown(String),
}

fn parse_marker(text: &[u8]) -> Marker {
    if text.is_empty() {
        return Marker::Empty;
    }
    let text = String::from_utf8_lossy(text);
    let format = text.strip_prefix("kvorum data format ").and_then(|rest| rest.trim_end().parse().ok());
    format.map_or_else(|| Marker::Unknown(text.trim_end().to_owned()), Marker::Format)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;

    /// A directory that is in use is refused, and can be opened again once its user has dropped it.
    #[test]
    fn second_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        assert!(matches!(DataDir::open(dir.path()), Err(DataDirError::InUse { .. })));
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    /// Markers of later releases, foreign markers and foreign directories are refused and stay unchanged.
    #[test]
    fn newer_and_foreign_are_refused() {
        let check = |file: &str, text: &str, expect: fn(&DataDirError) -> bool| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(file), text).unwrap();
            let error = DataDir::open(dir.path()).unwrap_err();
            assert!(expect(&error), "{file} {text:?}: {error}");
            assert_eq!(std::fs::read_to_string(dir.path().join(file)).unwrap(), text);
        };
        check(MARKER, "kvorum data format 3\n", |e| matches!(e, DataDirError::NewerFormat { found: 3, .. }));
        check(MARKER, "something else\n", |e| matches!(e, DataDirError::UnknownMarker { .. }));
        check("letters.txt", "dear", |e| matches!(e, DataDirError::NotEmpty { .. }));
    }

    /// A crash right after the marker was created, before it was written, leaves a usable directory.
    #[test]
    fn empty_marker_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MARKER), "").unwrap();
        drop(DataDir::open(dir.path()).unwrap());
        assert_eq!(std::fs::read_to_string(dir.path().join(MARKER)).unwrap(), "kvorum data format 2\n");
    }

    /// A directory of the previous release is opened, and marked so that the previous release refuses it from then on.
    #[test]
    fn earlier_format_becomes_this_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MARKER), "kvorum data format 1\n").unwrap();
        drop(DataDir::open(dir.path()).unwrap());
        assert_eq!(std::fs::read_to_string(dir.path().join(MARKER)).unwrap(), "kvorum data format 2\n");
    }
}
