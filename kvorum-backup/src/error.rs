//! What can go wrong with a backup.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// How many bytes of a key are in a message.
const KEY_BYTES_SHOWN: usize = 64;

/// An error of a backup.
#[derive(Debug)]
pub enum BackupError {
    /// A file or folder cannot be used.
    File {
        /// What was attempted, as a verb phrase.
        attempt: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another backup, restore or prune uses the folder.
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// There is no such backup.
    NoBackup {
        /// What was asked for; none for the latest.
        id: Option<String>,
        /// The folder.
        path: PathBuf,
    },
    /// A manifest or a pack is not what was written.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The cluster did not answer.
    Cluster {
        /// What was attempted, as a verb phrase.
        attempt: &'static str,
        /// Why it failed.
        source: Box<kvorum_client::Error>,
    },
    /// A node does not allow it.
    Refused {
        /// The node.
        node: String,
        /// The HTTP status.
        code: u16,
        /// What it says.
        message: String,
    },
    /// The nodes that take part are no read quorum of every partition.
    NoCoverage {
        /// Of how many partitions they are none.
        partitions: usize,
        /// The nodes that do not take part.
        away: Vec<String>,
    },
    /// Members of the cluster came or went meanwhile: too few nodes closed the cut in one epoch.
    MembersChange,
    /// A node has a record above the timestamp that was written before the cut was armed: its writer's clock was ahead, and
    /// it is away.
    AboveCut {
        /// The key.
        key: Vec<u8>,
    },
    /// An answer of the cluster cannot be understood.
    Answer {
        /// What is wrong with it.
        reason: String,
    },
    /// The restore would mix with keys that are there.
    NotEmpty {
        /// A key that is there.
        key: Vec<u8>,
    },
    /// A key with the prefix would be too long.
    KeyTooLong {
        /// The key in the backup.
        key: Vec<u8>,
        /// The most bytes of a key.
        bytes_max: usize,
    },
    /// After the restore the cluster has something else than the backup.
    Differs {
        /// Records that are missing.
        missing: u64,
        /// Records with another value.
        other: u64,
        /// The first such key.
        key: Vec<u8>,
    },
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { attempt, path, source } => {
                write!(f, "cannot {attempt} {}: {source}", path.display())
            }
            Self::Busy { path } => {
                write!(
                    f,
                    "{}: another backup, restore or prune uses it: wait until it has ended",
                    path.display()
                )
            }
            Self::NoBackup { id: Some(id), path } => {
                write!(f, "{}: no backup {id} there; `kvorum backup list` shows them", path.display())
            }
            Self::NoBackup { id: None, path } => write!(f, "{}: there is no backup", path.display()),
            Self::Damaged { path, reason } => write!(f, "{} is damaged: {reason}", path.display()),
            Self::Cluster { attempt, source } => write!(f, "cannot {attempt}: {source}"),
            Self::Refused { node, code, message } => write!(
                f,
                "{node} refuses the backup ({code}): {message}; an exact backup needs the right admin on every node, and without \
                 --auth on it is made on a node's own machine; --scan makes one that is not exact"
            ),
            Self::NoCoverage { partitions, away } => write!(
                f,
                "too few nodes take part: {partitions} partitions lack a read quorum without {}; no backup was made",
                away.join(", ")
            ),
            Self::MembersChange => write!(
                f,
                "members of the cluster come and go: no backup was made; try again when `kvorum cluster wait` has ended"
            ),
            Self::AboveCut { key } => write!(
                f,
                "the key {} was written by a node whose clock was ahead and that is away now: no backup was made; try again when \
                 the clocks have passed it",
                shown(key)
            ),
            Self::Answer { reason } => write!(f, "an answer of the cluster cannot be used: {reason}"),
            Self::NotEmpty { key } => write!(
                f,
                "the cluster has keys where the backup would go, such as {}: restore into an empty cluster, under a \
                 --prefix without keys, or go on with an interrupted restore by --resume; nothing was written",
                shown(key)
            ),
            Self::KeyTooLong { key, bytes_max } => write!(
                f,
                "with the prefix the key {} would have more than {bytes_max} bytes; nothing was written",
                shown(key)
            ),
            Self::Differs { missing, other, key } => write!(
                f,
                "the cluster differs from the backup: {missing} records are missing and {other} have another value, such as \
                 {}; did somebody else write there? --resume writes what is missing",
                shown(key)
            ),
        }
    }
}

/// The beginning of a key, as people read it: a key may have a thousand bytes.
fn shown(key: &[u8]) -> String {
    let part = key.get(..KEY_BYTES_SHOWN).unwrap_or(key);
    format!("{}{}", part.escape_ascii(), if part.len() < key.len() { "…" } else { "" })
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::Cluster { source, .. } => Some(source),
            _ => None,
        }
    }
}
