//! Quarantine: where damaged stores are set aside, so that a node can begin a new store without deleting the old one at
//! once.
//!
//! | path in the data directory | what |
//! | --- | --- |
//! | `quarantine/store-N` | the engine's files as they were found damaged; a larger N is a later one |
//! | `quarantine/begun-anew` | exists from before a store is set aside until the new one has recorded that it lacks the old data |
//!
//! The newest store is always kept; one more before it, as long as both are within a bound of bytes. They are for
//! people: no code reads them again.

use crate::crash::{self, Point};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The most stores that are kept.
pub const STORES_MAX: usize = 2;

const FOLDER: &str = "quarantine";
const BEGUN_ANEW: &str = "begun-anew";
const PREFIX: &str = "store-";

/// Moves the closed store at `store`, a folder of the data directory, aside. Older stores that are over the bounds are
/// deleted.
///
/// Safe to repeat after a crash at any point: either the store is still in its place, or it is set aside and the mark
/// for that exists.
pub fn set_aside(store: &Path, bytes_max: u64) -> io::Result<PathBuf> {
    crash::point(Point::AsideBefore);
    let data_dir = store.parent().ok_or_else(|| io::Error::other("the store has no directory"))?;
    let folder = data_dir.join(FOLDER);
    #[expect(clippy::disallowed_methods, reason = "this room owns the data directory")]
    std::fs::create_dir_all(&folder)?;
    #[expect(clippy::disallowed_methods, reason = "this room owns the data directory")]
    File::create(folder.join(BEGUN_ANEW))?.sync_all()?;
    sync_folder(&folder)?;
    sync_folder(data_dir)?;
    crash::point(Point::AsideMarked);
    let kept = stores(&folder)?;
    let number = kept.last().map_or(1, |(number, _)| number + 1);
    let target = folder.join(format!("{PREFIX}{number:06}"));
    std::fs::rename(store, &target)?;
    sync_folder(&folder)?;
    sync_folder(data_dir)?;
    crash::point(Point::AsideAfter);
    let mut total = bytes_of(&target);
    for (place, (_, older)) in kept.iter().rev().enumerate() {
        total = total.saturating_add(bytes_of(older));
        if place + 1 >= STORES_MAX || total > bytes_max {
            std::fs::remove_dir_all(older)?;
        }
    }
    Ok(target)
}

/// Removes a closed store that was begun in place of one set aside, and is still empty.
pub fn forget(store: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(store) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a store was set aside at `store` and its replacement may not have recorded that yet.
pub fn has_begun_anew(store: &Path) -> bool {
    store.with_file_name(FOLDER).join(BEGUN_ANEW).exists()
}

/// Records that the store at `store`, which replaced one that was set aside, knows what it lacks.
pub fn forget_beginning(store: &Path) -> io::Result<()> {
    match std::fs::remove_file(store.with_file_name(FOLDER).join(BEGUN_ANEW)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The number of stores set aside under `data_dir`.
pub fn count(data_dir: &Path) -> usize {
    stores(&data_dir.join(FOLDER)).map_or(0, |stores| stores.len())
}

/// The stores in the folder, oldest first.
fn stores(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut stores = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(PREFIX)).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            stores.push((number, path));
        }
    }
    stores.sort();
    Ok(stores)
}

/// Bytes on disk of everything under `path`, as far as it can be determined.
fn bytes_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    // Journals are preallocated: their allocated blocks count.
    let own = metadata.blocks() * 512;
    let Ok(entries) = std::fs::read_dir(path) else { return own };
    entries.flatten().map(|entry| bytes_of(&entry.path())).fold(own, u64::saturating_add)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this room owns the data directory")]
    File::open(path)?.sync_all()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;

    fn store_of(data_dir: &Path, bytes: usize) -> PathBuf {
        let store = data_dir.join("store");
        std::fs::create_dir_all(store.join("tables")).unwrap();
        std::fs::write(store.join("tables/1"), vec![7; bytes]).unwrap();
        store
    }

    /// The newest store is kept whatever its size; older ones as long as there are few and they fit.
    #[test]
    fn kept_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let names = || -> Vec<String> {
            let stores = stores(&dir.path().join(FOLDER)).unwrap();
            stores.iter().map(|(_, path)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        for expect in
            [&["store-000001"][..], &["store-000001", "store-000002"], &["store-000002", "store-000003"]]
        {
            let aside = set_aside(&store_of(dir.path(), 1000), 1 << 20).unwrap();
            assert_eq!(std::fs::read(aside.join("tables/1")).unwrap(), vec![7; 1000]);
            assert_eq!(names(), expect);
            assert!(!dir.path().join("store").exists());
        }
        set_aside(&store_of(dir.path(), 1_200_000), 1 << 20).unwrap();
        assert_eq!(names(), ["store-000004"], "the older ones are over the bound of bytes");
        assert_eq!(count(dir.path()), 1);
    }

    /// The mark exists from before the store is gone until it is removed, and may be removed twice.
    #[test]
    fn beginning_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        assert!(!has_begun_anew(&store));
        assert!(set_aside(&store, 0).is_err(), "there is no store");
        assert!(has_begun_anew(&store), "marked first");
        set_aside(&store_of(dir.path(), 10), 0).unwrap();
        assert!(has_begun_anew(&store));
        forget_beginning(&store).unwrap();
        forget_beginning(&store).unwrap();
        assert!(!has_begun_anew(&store));
    }
}
