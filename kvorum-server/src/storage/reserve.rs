//! The reserve: a file that takes up space and is removed when the disk is full. Deletions, and values that reads must
//! write back, then have room, however full other programs have made the disk.
//!
//! | path in the data directory | what |
//! | --- | --- |
//! | `reserve` | preallocated space without contents |

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FILE: &str = "reserve";
/// The size of the largest reserve: enough for some hundred thousand deletions.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// The path of the reserve of the store at `store`.
fn path_of(store: &Path) -> PathBuf {
    store.with_file_name(FILE)
}

/// Allocates `bytes` for the reserve, unless it has them. On a file system without preallocation there is no reserve.
pub(super) fn keep(store: &Path, bytes: u64) -> io::Result<()> {
    let path = path_of(store);
    if path.metadata().is_ok_and(|file| file.blocks() * 512 >= bytes) {
        return Ok(());
    }
    let file = OpenOptions::new().create(true).append(true).open(&path)?;
    let taken = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
    taken.map_err(|error| {
        let _ = std::fs::remove_file(&path);
        error.into()
    })
}

/// Removes the reserve. Returns whether there was one.
pub(super) fn give_up(store: &Path) -> bool {
    std::fs::remove_file(path_of(store)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reserve is taken once and given up once.
    #[test]
    fn kept_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        assert!(!give_up(&store));
        for _ in 0..2 {
            keep(&store, 1 << 20).unwrap();
            assert!(path_of(&store).metadata().unwrap().blocks() * 512 >= 1 << 20);
        }
        assert!(give_up(&store));
        assert!(!give_up(&store));
    }
}
