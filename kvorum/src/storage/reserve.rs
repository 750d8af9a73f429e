//! The reserve: a file that takes space while there is enough of it, and is removed when the disk is full, so that
//! deletions, and what reads must write back, have room however full others have made the disk.
//!
//! | path in the data directory | what |
//! | --- | --- |
//! | `reserve` | nothing that anybody reads |

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FILE: &str = "reserve";
/// The largest reserve: some hundred thousand deletions.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// Where the reserve of the store at `store` is.
fn path_of(store: &Path) -> PathBuf {
    store.with_file_name(FILE)
}

/// Takes `bytes` for the reserve, unless it has them. A file system that cannot give space ahead has none.
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

/// Gives the reserve up. Says whether there was any.
pub(super) fn give_up(store: &Path) -> bool {
    std::fs::remove_file(path_of(store)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is taken once and given up once.
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
