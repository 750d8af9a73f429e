//! Shortages: the one table that says what an error of the operating system means for the store.
//!
//! A shortage passes by itself, so what met it is tried again; damage is healed from other nodes; anything else is a
//! failure of the store, after which it takes no more writes.

use super::EngineError;
use std::fmt;
use std::io;

/// Something that the machine ran out of, and that may come back without a restart.
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
    /// Not known: the engine's background ended without a reason that can be asked for.
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
    /// It passes.
    Shortage(Shortage),
    /// Bytes on disk are not what was written.
    Damage,
    /// The device or the file system failed.
    Failure,
}

/// The table, by the error's kind; each row names the error numbers that it stands for.
const MEANINGS: &[(io::ErrorKind, Meaning)] = &[
    // ENOSPC, also where inodes are used up.
    (io::ErrorKind::StorageFull, Meaning::Shortage(Shortage::Disk)),
    // EDQUOT.
    (io::ErrorKind::QuotaExceeded, Meaning::Shortage(Shortage::Disk)),
    // ENOMEM.
    (io::ErrorKind::OutOfMemory, Meaning::Shortage(Shortage::Memory)),
    // EAGAIN: files are not read without waiting here, so only the start of a thread says so.
    (io::ErrorKind::WouldBlock, Meaning::Shortage(Shortage::Threads)),
    // A file that ends early: a checksum would have said so had it been longer.
    (io::ErrorKind::UnexpectedEof, Meaning::Damage),
    (io::ErrorKind::InvalidData, Meaning::Damage),
];

/// The same for errors that have no kind of their own.
const NUMBERED: &[(rustix::io::Errno, Meaning)] = &[
    (rustix::io::Errno::MFILE, Meaning::Shortage(Shortage::Descriptors)),
    (rustix::io::Errno::NFILE, Meaning::Shortage(Shortage::Descriptors)),
];

/// Looks `error` up in the table. What is not in it is a failure.
pub fn meaning_of(error: &io::Error) -> Meaning {
    let number = rustix::io::Errno::from_io_error(error);
    let numbered = NUMBERED.iter().find(|(row, _)| Some(*row) == number).map(|(_, meaning)| *meaning);
    let by_kind = || MEANINGS.iter().find(|(row, _)| *row == error.kind()).map(|(_, meaning)| *meaning);
    numbered.or_else(by_kind).unwrap_or(Meaning::Failure)
}

impl EngineError {
    /// Makes an error of the engine of an `error` of the operating system, by the table.
    pub fn of_io(attempted: &'static str, error: io::Error) -> Self {
        match meaning_of(&error) {
            Meaning::Shortage(Shortage::Disk) => Self::DiskFull { attempted },
            Meaning::Shortage(shortage) => Self::Short { attempted, shortage },
            Meaning::Damage => Self::Corrupt { attempted, detail: error.to_string(), key: None },
            Meaning::Failure => Self::Io { attempted, source: error },
        }
    }

    /// The shortage that it reports, if it reports one.
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

    /// Each error number that a full or exhausted machine gives passes; a broken device does not.
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

    /// An engine's error says the same as the table.
    #[test]
    fn engine_errors_follow_the_table() {
        let of = |errno: Errno| EngineError::of_io("try", io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(matches!(of(Errno::DQUOT), EngineError::DiskFull { attempted: "try" }));
        assert_eq!(of(Errno::MFILE).shortage(), Some(Shortage::Descriptors));
        assert!(matches!(of(Errno::IO), EngineError::Io { .. }));
        assert_eq!(of(Errno::IO).shortage(), None);
    }
}
