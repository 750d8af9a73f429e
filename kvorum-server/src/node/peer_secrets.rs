//! The file of peer secrets: one secret a line, read whole.

use crate::peer::{PeerAuth, Secrets, SecretsError};
use crate::security::Watched;
use crate::supervise::Part;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// The bits of a mode by which users other than the owner and the group read a file.
const OTHERS_READ: u32 = 0o004;

/// Why a file of peer secrets cannot be used.
#[derive(Debug)]
pub enum SecretFileError {
    /// The system refused to read it.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is over [`FILE_BYTES_MAX`].
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// Its content is no list of secrets.
    Secrets {
        /// The file.
        path: PathBuf,
        /// Why.
        error: SecretsError,
    },
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => {
                write!(f, "cannot read the file of peer secrets {}: {source}", path.display())
            }
            Self::TooLong { path } => {
                write!(f, "the file of peer secrets {} is over {FILE_BYTES_MAX} bytes", path.display())
            }
            Self::Secrets { path, error } => {
                write!(f, "the file of peer secrets {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for SecretFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Secrets { error, .. } => Some(error),
            Self::TooLong { .. } => None,
        }
    }
}

/// Reads the content of the file at `path`.
///
/// # Errors
/// [`SecretFileError::Io`] or [`SecretFileError::TooLong`].
pub fn read(path: &Path) -> Result<Vec<u8>, SecretFileError> {
    let failed = |source| SecretFileError::Io { path: path.to_path_buf(), source };
    let file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(SecretFileError::TooLong { path: path.to_path_buf() });
    }
    Ok(content)
}

/// Reads the secrets in `content`, which the file at `path` has.
///
/// # Errors
/// [`SecretFileError::Secrets`].
pub fn parse(path: &Path, content: &[u8]) -> Result<Secrets, SecretFileError> {
    Secrets::parse(content).map_err(|error| SecretFileError::Secrets { path: path.to_path_buf(), error })
}

/// Whether every user of the machine can read the file at `path`.
pub fn others_can_read(path: &Path) -> bool {
    path.metadata().is_ok_and(|facts| facts.mode() & OTHERS_READ != 0)
}

/// The file of peer secrets, watched.
pub struct PeerSecretFile {
    /// Where it is.
    pub path: PathBuf,
    /// Takes the secrets.
    pub auth: Arc<PeerAuth>,
}

impl Watched for PeerSecretFile {
    const PART: Part = Part::PeerSecretWatch;

    type Content = Vec<u8>;

    fn read(&self) -> Result<Vec<u8>, String> {
        read(&self.path).map_err(|error| error.to_string())
    }

    fn take(&self, content: &Vec<u8>) -> Result<(), String> {
        let secrets = parse(&self.path, content).map_err(|error| error.to_string())?;
        tracing::info!(
            secrets = secrets.len(),
            "the file of peer secrets has changed: its secrets hold from now on"
        );
        self.auth.replace(secrets);
        Ok(())
    }

    fn note_failure(&self) {
        self.auth.note_load_failure();
    }

    fn warn(&self, problem: &str) {
        tracing::error!(
            reason = problem,
            "the file of peer secrets cannot be used: the last good secrets stay in force until it is repaired"
        );
    }
}
