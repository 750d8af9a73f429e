//! Shortages: one table with the meaning of each operating system error for the store.
//!
//! A shortage passes by itself, so the failed operation is tried again. Damage is repaired from other nodes. Any other
//! error is a failure of the store, after which it accepts no more writes.

use super::EngineError;
use std::fmt;
use std::io;

/// A resource that the machine ran out of, and that may come back without a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Space, inodes or quota of the disk.
    Disk,
    /// File descriptors of the process or the machine.
    Descriptors,
    /// Memory.
    Memory,
    /// Threads of the process, the user or the machine.
    Threads,
    /// Unknown: the engine's background ended, and its reason cannot be queried.
    Unknown,
}

impl Shortage {
    /// Its name on `/v0/status` and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk-full",
            Self::Descriptors => "no-descriptors",
            Self::Memory => "no-memory",
            Self::Threads => "no-threads",
            Self::Unknown => "reopening",
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "no space, inodes or quota left on the disk",
            Self::Descriptors => "no file descriptors left",
            Self::Memory => "no memory left",
            Self::Threads => "no more threads can be started",
            Self::Unknown => "the engine's background work ended",
        })
    }
}

/// The meaning of an I/O error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A shortage, which passes.
    Shortage(Shortage),
    /// Bytes on disk differ from the written ones.
    Damage,
    /// The device or the file system failed.
    Failure,
}

/// The table, by the error's kind; each row names the error numbers that belong to it.
const MEANINGS: &[(io::ErrorKind, Meaning)] = &[
    // ENOSPC, also when inodes are used up.
    (io::ErrorKind::StorageFull, Meaning::Shortage(Shortage::Disk)),
    // EDQUOT.
    (io::ErrorKind::QuotaExceeded, Meaning::Shortage(Shortage::Disk)),
    // ENOMEM.
    (io::ErrorKind::OutOfMemory, Meaning::Shortage(Shortage::Memory)),
    // EAGAIN: files are not read in non-blocking mode here, so only the start of a thread reports it.
    (io::ErrorKind::WouldBlock, Meaning::Shortage(Shortage::Threads)),
    // A file that ends early: if it were longer, a checksum would have reported it.
    (io::ErrorKind::UnexpectedEof, Meaning::Damage),
    (io::ErrorKind::InvalidData, Meaning::Damage),
];

/// The same for errors without a kind of their own.
const NUMBERED: &[(rustix::io::Errno, Meaning)] = &[
    (rustix::io::Errno::MFILE, Meaning::Shortage(Shortage::Descriptors)),
    (rustix::io::Errno::NFILE, Meaning::Shortage(Shortage::Descriptors)),
];

/// Looks `error` up in the table. Errors that are not in it are failures.
pub fn meaning_of(error: &io::Error) -> Meaning {
    let number = rustix::io::Errno::from_io_error(error);
    let numbered = NUMBERED.iter().find(|(row, _)| Some(*row) == number).map(|(_, meaning)| *meaning);
    let by_kind = || MEANINGS.iter().find(|(row, _)| *row == error.kind()).map(|(_, meaning)| *meaning);
    numbered.or_else(by_kind).unwrap_or(Meaning::Failure)
}

impl EngineError {
    /// Converts an `error` of the operating system into an engine error, by the table.
    pub fn of_io(attempted: &'static str, error: io::Error) -> Self {
        match meaning_of(&error) {
            Meaning::Shortage(Shortage::Disk) => Self::DiskFull { attempted },
            Meaning::Shortage(shortage) => Self::Short { attempted, shortage },
            Meaning::Damage => Self::Corrupt { attempted, detail: error.to_string(), key: None },
            Meaning::Failure => Self::Io { attempted, source: error },
        }
    }

    /// The shortage that the error reports, if it reports one.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::DiskFull { .. } => Some(Shortage::Disk),
            Self::Short { shortage, .. } => Some(*shortage),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// Each error number of a full or exhausted machine is a shortage; a broken device is not.
    #[test]
    fn table_of_meanings() {
        let check = |errno: Errno, expect| {
            assert_eq!(meaning_of(&io::Error::from_raw_os_error(errno.raw_os_error())), expect, "{errno:?}");
        };
        check(Errno::NOSPC, Meaning::Shortage(Shortage::Disk));
        check(Errno::DQUOT, Meaning::Shortage(Shortage::Disk));
        check(Errno::MFILE, Meaning::Shortage(Shortage::Descriptors));
        check(Errno::NFILE, Meaning::Shortage(Shortage::Descriptors));
        check(Errno::NOMEM, Meaning::Shortage(Shortage::Memory));
        check(Errno::AGAIN, Meaning::Shortage(Shortage::Threads));
        for errno in [Errno::IO, Errno::ROFS, Errno::NOENT, Errno::ACCESS, Errno::NXIO] {
            check(errno, Meaning::Failure);
        }
        assert_eq!(meaning_of(&io::ErrorKind::UnexpectedEof.into()), Meaning::Damage);
        assert_eq!(meaning_of(&io::ErrorKind::InvalidData.into()), Meaning::Damage);
    }

    /// Engine errors agree with the table.
    #[test]
    fn engine_errors_follow_the_table() {
        let of = |errno: Errno| EngineError::of_io("try", io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(matches!(of(Errno::DQUOT), EngineError::DiskFull { attempted: "try" }));
        assert_eq!(of(Errno::MFILE).shortage(), Some(Shortage::Descriptors));
        assert!(matches!(of(Errno::IO), EngineError::Io { .. }));
        assert_eq!(of(Errno::IO).shortage(), None);
    }
}
