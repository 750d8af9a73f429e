//! Checking a backup, at three depths.

use crate::error::BackupError;
use crate::folder::Folder;
use crate::manifest::Manifest;

/// How deep a backup is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The manifest is whole, and every pack is there with its length.
    Files,
    /// Besides, every pack has the bytes that were written.
    Hashes,
    /// Besides, every record is read, and digests and counts are computed again: the backup is complete.
    Records,
}

/// A backup that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// How many packs were checked.
    pub packs: usize,
    /// How many records were read: none at lesser depths.
    pub records: u64,
}

/// Checks a backup.
///
/// # Errors
/// [`BackupError::Damaged`] with the first file that is not what was written.
pub fn verify(folder: &Folder, manifest: &Manifest, depth: Depth) -> Result<Verified, BackupError> {
    let mut verified = Verified { packs: 0, records: 0 };
    let mut last = None;
    for entry in &manifest.packs {
        match depth {
            Depth::Files => folder.check_pack_length(entry)?,
            Depth::Hashes => drop(folder.pack_bytes(entry)?),
            Depth::Records => {
                let records = folder.records(entry)?;
                verified.records += records.len() as u64;
                // Packs that lap over each other would hide a record that is missing.
                let first = records.first().map(|record| record.key.clone());
                if last.is_some() && last >= first {
                    let path = folder.path().join(format!("{}.json", manifest.id));
                    let reason = "the keys of its packs do not rise".to_owned();
                    return Err(BackupError::Damaged { path, reason });
                }
                last = records.last().map(|record| record.key.clone());
            }
        }
        verified.packs += 1;
    }
    Ok(verified)
}
