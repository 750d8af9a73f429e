//! The file of tokens: read whole, and replaced whole.

use super::table::{FILE_BYTES_MAX, TableError, TokenTable};
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// The mode of a file that did not exist: for its owner only.
const FILE_MODE: u32 = 0o600;

/// Why a file of tokens cannot be used.
#[derive(Debug)]
pub enum FileError {
    /// The system refused an operation.
    Io {
        /// What was attempted, such as "read".
        attempted: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is over [`FILE_BYTES_MAX`].
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The text is not a table of tokens.
    Table {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TableError,
    },
    /// Another program is changing the file.
    Busy {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { attempted, path, source } => {
                write!(f, "cannot {attempted} the token file {}: {source}", path.display())
            }
            Self::TooLong { path } => {
                write!(f, "the token file {} is over {FILE_BYTES_MAX} bytes", path.display())
            }
            Self::Table { path, error } => write!(f, "the token file {}: {error}", path.display()),
            Self::Busy { path } => {
                write!(f, "another \"kvorum token\" is changing {}: try again", path.display())
            }
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Table { error, .. } => Some(error),
            Self::TooLong { .. } | Self::Busy { .. } => None,
        }
    }
}

/// Reads the text of the file at `path`.
///
/// # Errors
/// [`FileError::Io`] or [`FileError::TooLong`].
pub fn read(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError::Io { attempted: "read", path: path.to_path_buf(), source };
    let file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLong { path: path.to_path_buf() });
    }
    Ok(text)
}

/// Reads the table in the file at `path`.
///
/// # Errors
/// [`FileError`], but not [`FileError::Busy`].
pub fn load(path: &Path) -> Result<TokenTable, FileError> {
    parse(path, &read(path)?)
}

/// Reads the table in `text`, which the file at `path` has.
///
/// # Errors
/// [`FileError::Table`].
pub fn parse(path: &Path, text: &str) -> Result<TokenTable, FileError> {
    TokenTable::parse(text).map_err(|error| FileError::Table { path: path.to_path_buf(), error })
}

/// Changes the table in the file at `path`, and returns what `change` returns. Nodes that watch the file see the table before
/// or the table after, never a part. A file that does not exist is an empty table.
///
/// # Errors
/// [`FileError`], or the error of `change`; the file is unchanged then.
pub fn update<T, E: From<FileError>>(
    path: &Path,
    change: impl FnOnce(&mut TokenTable) -> Result<T, E>,
) -> Result<T, E> {
    let failed = |attempted| move |source| FileError::Io { attempted, path: path.to_path_buf(), source };
    // A link to the file stays one: its target is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The folder is locked, not the file, which is another one afterwards. The lock ends with this function.
    let folder = OpenOptions::new().read(true).open(folder).map_err(failed("open the folder of"))?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => FileError::Busy { path: path.to_path_buf() },
        error => failed("lock the folder of")(error.into()),
    })?;
    let mut table = match load(&target) {
        Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            TokenTable::default()
        }
        table => table?,
    };
    let changed = change(&mut table)?;
    let text = table.render().map_err(|error| FileError::Table { path: path.to_path_buf(), error })?;
    replace(&target, &text).map_err(failed("write"))?;
    folder.sync_all().map_err(failed("sync the folder of"))?;
    Ok(changed)
}

/// Replaces the file at `path` in one step. The new one has the owner and the mode of the old one, so that a node of another
/// user can still read what root has changed.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new` follows no link that somebody has put there.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
    let written = write(&mut file, path, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn write(file: &mut File, old: &Path, text: &str) -> io::Result<()> {
    if let Ok(old) = old.metadata() {
        let new = file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            fchown(&*file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests write the files themselves")]
mod tests {
    use super::*;
    use crate::security::limit::Limit;
    use crate::security::table::TokenEntry;
    use crate::security::token::SecretHash;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    fn add(path: &Path, id: &str) -> Result<(), FileError> {
        update(path, |table| {
            let entry = TokenEntry {
                id: id.into(),
                name: String::new(),
                secret: Some(SecretHash::of(id)),
                certificate: None,
                created: None,
                not_after: None,
                revoked: None,
                grants: Vec::new(),
                limit: Limit::default(),
                meter: Arc::default(),
            };
            table.add(entry).map_err(|error| FileError::Table { path: path.to_path_buf(), error })
        })
    }

    /// The file is private, changes add up, a failed change leaves the file and nothing else, a link stays a link.
    #[test]
    fn file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("tokens.toml"), folder.path().join("link.toml"));
        add(&path, "a").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, FILE_MODE);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        add(&link, "b").unwrap();
        assert!(link.is_symlink());
        assert!(matches!(add(&path, "a"), Err(FileError::Table { error: TableError::Twice { .. }, .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        add(&path, "c").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        let ids: Vec<_> = load(&path).unwrap().tokens().iter().map(|token| token.id.to_string()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// A file that is not valid is never replaced, and two changes do not mix.
    #[test]
    fn wrong_or_busy_files_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        assert!(matches!(load(&path), Err(FileError::Io { .. })));
        add(&path, "a").unwrap();
        let held = File::open(folder.path()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        assert!(matches!(add(&path, "b"), Err(FileError::Busy { .. })));
        drop(held);
        std::fs::write(&path, "[[token").unwrap();
        assert!(matches!(add(&path, "b"), Err(FileError::Table { .. })));
        assert_eq!(read(&path).unwrap(), "[[token");
        let long = vec![b'#'; usize::try_from(FILE_BYTES_MAX).unwrap() + 1];
        std::fs::write(&path, long).unwrap();
        assert!(matches!(load(&path), Err(FileError::TooLong { .. })));
    }
}
