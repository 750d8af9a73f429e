//! Checks of table files past the caches, for the scrub: a block in fjall's cache says nothing of the disk, and a store
//! that fits into the cache would never be read again.
//!
//! Unnecessary once fjall can verify a table against the checksum that it keeps of it.
//!
//! Files of large values ("blob files") are not checked here: damage there concerns single records, which the scan of
//! the rows names, and a file says no key. A damaged value in the cache is found once the cache has dropped it.

use crate::storage::{CheckedFile, EngineError};
use fjall::{AbstractTree, Keyspace};
use rustix::fs::Advice;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

const ATTEMPTED: &str = "check a table against its checksum";
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// Checks the table that follows the table `after`.
///
/// # Errors
/// [`EngineError::Corrupt`] if it is not as it was written.
pub(in crate::storage) fn check_table(
    keyspace: &Keyspace,
    after: Option<u64>,
) -> Result<Option<CheckedFile>, EngineError> {
    let version = keyspace.tree.current_version();
    let later = version.iter_tables().filter(|table| after.is_none_or(|after| table.id() > after));
    let newest = version.iter_tables().fold(0, |newest, table| table.id().max(newest));
    // The version keeps the file from being removed meanwhile.
    let Some(table) = later.min_by_key(|table| table.id()) else { return Ok(None) };
    let damaged = |how| {
        let detail = format!("{} {how}", table.path.display());
        EngineError::Corrupt { attempted: ATTEMPTED, detail, key: None }
    };
    match digest(&table.path) {
        Ok((checksum, bytes)) if checksum == table.checksum().into_u128() => {
            Ok(Some(CheckedFile { number: table.id(), bytes, newest }))
        }
        Ok(_) => Err(damaged("is not as it was written: its checksum differs")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged("is missing")),
        Err(error) => Err(EngineError::of_io(ATTEMPTED, error)),
    }
}

/// The checksum and the length of a file, read from the disk.
fn digest(path: &Path) -> io::Result<(u128, u64)> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the engine's own file, which the engine reads through its cache"
    )]
    let mut file = File::open(path)?;
    // The kernel drops what it has cached of the file, so that the disk is read; it may refuse, and then is not.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    let (mut hasher, mut bytes, mut buffer) = (Xxh3::new(), 0, vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.digest128(), bytes)),
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions};
    use std::os::unix::fs::FileExt;

    /// A flipped bit is found in a table whose every block is in the cache, where no scan sees it; and a removed file.
    #[test]
    fn cached_table_is_read_from_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::builder(dir.path()).open().unwrap();
        let keyspace = database.keyspace("rows", KeyspaceCreateOptions::default).unwrap();
        assert_eq!(check_table(&keyspace, None).unwrap(), None);
        let scan = || keyspace.iter().map(|row| row.into_inner().unwrap().1.len()).sum::<usize>() / 100;
        for part in 0..2 {
            for row in 0..1000 {
                keyspace.insert(format!("{part}-{row:04}"), [part; 100]).unwrap();
            }
            keyspace.rotate_memtable_and_wait().unwrap();
        }
        assert_eq!(scan(), 2000);
        let first = check_table(&keyspace, None).unwrap().unwrap();
        let second = check_table(&keyspace, Some(first.number)).unwrap().unwrap();
        assert!(second.number > first.number && second.bytes > 1000);
        assert_eq!((first.newest, second.newest), (second.number, second.number));
        assert_eq!(check_table(&keyspace, Some(second.number)).unwrap(), None);

        let version = keyspace.tree.current_version();
        let table = version.iter_tables().find(|table| table.id() == second.number).unwrap();
        let file = File::options().read(true).write(true).open(table.path.as_ref()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 100).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 100).unwrap();
        assert_eq!(scan(), 2000, "the cache hides it");
        assert!(check_table(&keyspace, None).is_ok());
        let error = check_table(&keyspace, Some(first.number)).unwrap_err();
        assert!(
            matches!(&error, EngineError::Corrupt { detail, .. } if detail.contains("checksum")),
            "{error}"
        );

        std::fs::remove_file(table.path.as_ref()).unwrap();
        let error = check_table(&keyspace, Some(first.number)).unwrap_err();
        assert!(
            matches!(&error, EngineError::Corrupt { detail, .. } if detail.contains("missing")),
            "{error}"
        );
    }
}
