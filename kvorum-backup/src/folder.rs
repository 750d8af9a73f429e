//! The folder of backups: `packs/NAME.pack`, shared by the backups, `ID.json`, a manifest each, and `lock`.
//!
//! A file is complete under its name or not there: it is written under another name, synced and renamed. So an
//! interrupted backup leaves packs that the next one uses or `prune` removes, and never a manifest.
#![allow(clippy::disallowed_methods, reason = "this module has the files of backups")]

use crate::error::BackupError;
use crate::manifest::{Manifest, PackEntry};
use crate::pack::{self, Pack, PackedRecord};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// What a file is called until it is complete.
const UNFINISHED: &str = "unfinished-";

/// A folder of backups, held for as long as this is there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Locked by the kernel until it is closed, also where the process dies.
    #[expect(dead_code, reason = "held for its lock")]
    lock: File,
}

/// What a prune did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Backups removed.
    pub backups: usize,
    /// Packs removed that no backup needs.
    pub packs: usize,
}

fn failed<'a>(attempt: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BackupError + 'a {
    move |source| BackupError::File { attempt, path: path.to_path_buf(), source }
}

impl Folder {
    /// Opens the folder to add or remove backups, alone; it is made if it is not there.
    ///
    /// # Errors
    /// [`BackupError::Busy`] while somebody else uses it; it cannot be made.
    pub fn open_alone(path: &Path) -> Result<Self, BackupError> {
        let packs = path.join("packs");
        fs::create_dir_all(&packs).map_err(failed("make the folder", &packs))?;
        let lock = File::create(path.join("lock")).map_err(failed("use", path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_path_buf(), lock }),
            Err(fs::TryLockError::WouldBlock) => Err(BackupError::Busy { path: path.to_path_buf() }),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", path)(error)),
        }
    }

    /// Opens the folder to read backups, beside other readers. It changes nothing there, so the folder may be read-only.
    ///
    /// # Errors
    /// [`BackupError::Busy`] while somebody adds or removes backups; there is no such folder.
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let name = path.join("lock");
        let lock = File::open(&name).map_err(failed("open the folder of backups by its lock,", &name))?;
        match lock.try_lock_shared() {
            Ok(()) => Ok(Self { path: path.to_path_buf(), lock }),
            Err(fs::TryLockError::WouldBlock) => Err(BackupError::Busy { path: path.to_path_buf() }),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", path)(error)),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all backups, the oldest first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn ids(&self) -> Result<Vec<String>, BackupError> {
        let mut ids: Vec<String> = names(&self.path)?
            .into_iter()
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .filter(|id| is_id(id))
            .collect();
        ids.sort();
        Ok(ids)
    }

    /// The manifest of a backup, or of the latest.
    ///
    /// # Errors
    /// [`BackupError::NoBackup`], [`BackupError::Damaged`].
    pub fn manifest(&self, id: Option<&str>) -> Result<Manifest, BackupError> {
        let missing = || BackupError::NoBackup { id: id.map(str::to_owned), path: self.path.clone() };
        let ids = self.ids()?;
        let id = match id {
            Some(id) => ids.iter().find(|known| *known == id),
            None => ids.last(),
        };
        let path = self.manifest_path(id.ok_or_else(missing)?);
        let bytes = fs::read(&path).map_err(failed("read", &path))?;
        let parsed = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned());
        let parsed = parsed.and_then(|text| Manifest::parse(&text));
        parsed.map_err(|reason| BackupError::Damaged { path, reason })
    }

    /// Stores a manifest: from now on the backup exists.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put_manifest(&self, manifest: &Manifest) -> Result<(), BackupError> {
        let path = self.manifest_path(&manifest.id);
        let file = manifest.to_file().map_err(|error| failed("write", &path)(error.into()))?;
        write_whole(&path, file.as_bytes())
    }

    /// Stores a pack, unless it is there; says whether it was new.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put_pack(&self, pack: &Pack) -> Result<bool, BackupError> {
        let path = self.pack_path(&pack.name);
        // One that was damaged since gets its right bytes back.
        if fs::read(&path).is_ok_and(|bytes| bytes == pack.file) {
            return Ok(false);
        }
        write_whole(&path, &pack.file)?;
        Ok(true)
    }

    /// Checks that a pack is there, with its length.
    ///
    /// # Errors
    /// [`BackupError::Damaged`].
    pub fn check_pack_length(&self, entry: &PackEntry) -> Result<(), BackupError> {
        let path = self.pack_path(&entry.name);
        let bytes = fs::metadata(&path).map_err(|error| damaged(&path, &error))?.len();
        if bytes == entry.bytes {
            return Ok(());
        }
        let reason = format!("it has {bytes} bytes instead of {}", entry.bytes);
        Err(BackupError::Damaged { path, reason })
    }

    /// The bytes of a pack, if they are those that were written.
    ///
    /// # Errors
    /// [`BackupError::Damaged`].
    pub fn pack_bytes(&self, entry: &PackEntry) -> Result<Vec<u8>, BackupError> {
        self.check_pack_length(entry)?;
        let path = self.pack_path(&entry.name);
        let bytes = fs::read(&path).map_err(|error| damaged(&path, &error))?;
        if pack::hash(&bytes) == entry.name {
            return Ok(bytes);
        }
        Err(BackupError::Damaged { path, reason: "its bytes are not those that were written".to_owned() })
    }

    /// The records of a pack, if they are those that were written.
    ///
    /// # Errors
    /// [`BackupError::Damaged`].
    pub fn records(&self, entry: &PackEntry) -> Result<Vec<PackedRecord>, BackupError> {
        let bytes = self.pack_bytes(entry)?;
        let bad = |reason: &str| BackupError::Damaged {
            path: self.pack_path(&entry.name),
            reason: reason.to_owned(),
        };
        let (records, digest) = pack::read(&bytes).map_err(|error| bad(error.reason))?;
        if digest != entry.digest || records.len() as u64 != entry.records {
            return Err(bad("its records are not those that the manifest sums up"));
        }
        Ok(records)
    }

    /// Removes all backups but those in `keep`, then the packs that no backup needs, and unfinished files.
    ///
    /// # Errors
    /// A manifest that stays cannot be read: then nobody knows which packs are needed, and nothing is removed.
    pub fn prune(&self, keep: &BTreeSet<String>) -> Result<Pruned, BackupError> {
        let (kept, removed): (Vec<_>, Vec<_>) = self.ids()?.into_iter().partition(|id| keep.contains(id));
        let mut needed = BTreeSet::new();
        for id in &kept {
            needed
                .extend(self.manifest(Some(id))?.packs.into_iter().map(|pack| format!("{}.pack", pack.name)));
        }
        for id in &removed {
            remove(&self.manifest_path(id))?;
        }
        // The manifests must be gone for good before their packs go.
        sync_folder(&self.path)?;
        let packs = self.path.join("packs");
        let mut pruned = Pruned { backups: removed.len(), packs: 0 };
        for name in names(&packs)?.iter().filter(|name| !needed.contains(*name)) {
            remove(&packs.join(name))?;
            pruned.packs += 1;
        }
        for name in names(&self.path)?.iter().filter(|name| name.starts_with(UNFINISHED)) {
            remove(&self.path.join(name))?;
        }
        Ok(pruned)
    }

    fn manifest_path(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }

    fn pack_path(&self, name: &str) -> PathBuf {
        self.path.join("packs").join(format!("{name}.pack"))
    }
}

/// Whether a text has the form of a backup's name: others' files in the folder are left alone.
pub fn is_id(text: &str) -> bool {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    text.len() == 16
        && (0..15).all(|at| at == 8 || is_digit(at))
        && text.as_bytes().get(8) == Some(&b'T')
        && text.ends_with('Z')
}

fn damaged(path: &Path, error: &io::Error) -> BackupError {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "it is missing".to_owned(),
        _ => format!("it cannot be read: {error}"),
    };
    BackupError::Damaged { path: path.to_path_buf(), reason }
}

fn names(folder: &Path) -> Result<Vec<String>, BackupError> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().map_err(failed("read the folder", folder))
}

fn remove(path: &Path) -> Result<(), BackupError> {
    fs::remove_file(path).map_err(failed("remove", path))
}

/// Writes a file so that it is there whole, also after a power cut, or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().unwrap_or(Path::new("."));
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(failed("write", path))?;
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> Result<(), BackupError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync the folder", folder))
}
