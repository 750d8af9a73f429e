//! Restoring a backup: its records are written, with the versions that they had, and then everything is read back and compared.

use crate::create::millis;
use crate::error::BackupError;
use crate::folder::Folder;
use crate::manifest::Manifest;
use crate::pack::{KEY_BYTES_MAX, PackedRecord};
use crate::verify::{Depth, verify};
use bytes::Bytes;
use kvorum_client::{Client, Error, PutOptions, ScanOptions, Version};
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Writes under way at once.
const WRITES_MAX: usize = 32;
/// How often a write or a comparison is tried.
const ATTEMPTS_MAX: u32 = 8;
/// The pause before the second attempt; each further one is as much longer.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a scan may take to begin, and for each next record.
const WAIT: Duration = Duration::from_secs(30);

/// Where a backup goes.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// What is put before every key.
    pub prefix: Vec<u8>,
    /// Whether an interrupted restore goes on: records that are there already are left as they are.
    pub resume: bool,
    /// Whether the records get new versions. Those under a prefix always do: nobody knows a version of their keys.
    pub new_versions: bool,
}

impl Target {
    fn keeps_versions(&self) -> bool {
        self.prefix.is_empty() && !self.new_versions
    }
}

/// A restore that is complete and was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Records written.
    pub written: u64,
    /// Records that were there already.
    pub there: u64,
    /// Records that had expired.
    pub expired: u64,
}

/// Restores a backup into the cluster of `client`, of any size. Records keep their versions and expire when they were to, unless
/// [`Target::new_versions`] or a prefix is given.
///
/// The whole backup is checked before anything is written, and everything is read back and compared at the end.
///
/// # Errors
/// [`BackupError::Damaged`], [`BackupError::NotEmpty`], [`BackupError::KeyTooLong`]: nothing was written. Afterwards
/// [`BackupError::Cluster`] and [`BackupError::Differs`]: a part was written, and [`Target::resume`] goes on.
///
/// # Cancel safety
/// Dropping the future leaves a part written; [`Target::resume`] goes on.
pub async fn restore(
    client: &Client,
    folder: &Folder,
    manifest: &Manifest,
    target: &Target,
    now: impl Fn() -> SystemTime,
) -> Result<Restored, BackupError> {
    verify(folder, manifest, Depth::Records)?;
    check_lengths(folder, manifest, target)?;
    if !target.resume {
        check_empty(client, target).await?;
    }
    let mut restored = Restored::default();
    for entry in &manifest.packs {
        let records = moved(folder.records(entry)?, target);
        let wanted = records.len() as u64;
        let (live, expired) = split(records, millis(now()));
        restored.expired += expired;
        let missing =
            if target.resume { compare(client, live, target).await?.missing_unless_other()? } else { live };
        restored.there += wanted - expired - missing.len() as u64;
        restored.written += write_all(client, missing, target, &now).await?;
    }
    let (mut missing, mut other, mut example) = (0, 0, None);
    for entry in &manifest.packs {
        let (live, _) = split(moved(folder.records(entry)?, target), millis(now()));
        let compared = compare(client, live, target).await?;
        // One may have expired since.
        let (gone, _) = split(compared.missing, millis(now()));
        missing += gone.len() as u64;
        other += compared.other.len() as u64;
        example =
            example.or_else(|| gone.first().or(compared.other.first()).map(|record| record.key.to_vec()));
    }
    match example {
        Some(key) => Err(BackupError::Differs { missing, other, key }),
        None => Ok(restored),
    }
}

fn check_lengths(folder: &Folder, manifest: &Manifest, target: &Target) -> Result<(), BackupError> {
    if target.prefix.is_empty() {
        return Ok(());
    }
    for entry in &manifest.packs {
        for record in folder.records(entry)? {
            if record.key.len() + target.prefix.len() > KEY_BYTES_MAX {
                return Err(BackupError::KeyTooLong { key: record.key.to_vec(), bytes_max: KEY_BYTES_MAX });
            }
        }
    }
    Ok(())
}

/// Checks that there is no key where the backup goes.
async fn check_empty(client: &Client, target: &Target) -> Result<(), BackupError> {
    let start = if target.prefix.is_empty() { vec![0] } else { target.prefix.clone() };
    let end = end_of(&target.prefix);
    let options = ScanOptions { limit: Some(1), timeout: Some(WAIT), ..ScanOptions::default() };
    let failed = |error| cluster("look whether there are keys", error);
    let mut scan = client.scan(start, end.as_deref(), options).await.map_err(failed)?;
    match scan.next().await {
        None => Ok(()),
        Some(Ok(entry)) => Err(BackupError::NotEmpty { key: entry.key.to_vec() }),
        Some(Err(error)) => Err(failed(error)),
    }
}

/// The first key behind all that begin with `prefix`; none where there is no such key.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let (kept, _) = prefix.split_at_checked(last + 1)?;
    let mut end = kept.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

fn moved(mut records: Vec<PackedRecord>, target: &Target) -> Vec<PackedRecord> {
    if !target.prefix.is_empty() {
        for record in &mut records {
            record.key = [&target.prefix[..], &record.key].concat().into();
        }
    }
    records
}

/// The records that have not expired, and how many have.
fn split(records: Vec<PackedRecord>, now_millis: u64) -> (Vec<PackedRecord>, u64) {
    let count = records.len();
    let live: Vec<_> =
        records.into_iter().filter(|record| record.expires_millis.is_none_or(|at| at > now_millis)).collect();
    let expired = (count - live.len()) as u64;
    (live, expired)
}

/// What the cluster lacks of some records.
struct Compared {
    missing: Vec<PackedRecord>,
    other: Vec<PackedRecord>,
}

impl Compared {
    /// The missing records, if no record has another value: that may be newer, and is not written over.
    fn missing_unless_other(self) -> Result<Vec<PackedRecord>, BackupError> {
        match self.other.first() {
            None => Ok(self.missing),
            Some(record) => Err(BackupError::Differs {
                missing: self.missing.len() as u64,
                other: self.other.len() as u64,
                key: record.key.to_vec(),
            }),
        }
    }
}

/// Compares records, in the order of their keys, with the same range of the cluster. A scan that is cut begins anew.
async fn compare(
    client: &Client,
    records: Vec<PackedRecord>,
    target: &Target,
) -> Result<Compared, BackupError> {
    let mut attempt = 1;
    loop {
        match compare_once(client, &records, target).await {
            Ok((missing, other)) => {
                let pick = |places: &[usize]| {
                    places.iter().filter_map(|place| records.get(*place).cloned()).collect()
                };
                return Ok(Compared { missing: pick(&missing), other: pick(&other) });
            }
            Err(error) if attempt < ATTEMPTS_MAX && error.is_retry_safe() => {
                tokio::time::sleep(PAUSE * attempt).await;
                attempt += 1;
            }
            Err(error) => return Err(cluster("compare what is there", error)),
        }
    }
}

async fn compare_once(
    client: &Client,
    records: &[PackedRecord],
    target: &Target,
) -> Result<(Vec<usize>, Vec<usize>), Error> {
    let (mut missing, mut other) = (Vec::new(), Vec::new());
    let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok((missing, other)) };
    let end = [&last.key, &b"\0"[..]].concat();
    // An end longer than a key may be is no key: then the range goes to its end, and stops behind the last record.
    let end = (end.len() <= KEY_BYTES_MAX).then_some(end);
    let options = ScanOptions { timeout: Some(WAIT), ..ScanOptions::default() };
    let mut scan = client.scan(&first.key, end.as_deref(), options).await?;
    let mut wanted = records.iter().enumerate().peekable();
    while let Some(found) = scan.next().await {
        let found = found?;
        while let Some((place, _)) = wanted.next_if(|(_, record)| record.key < found.key) {
            missing.push(place);
        }
        if let Some((place, record)) = wanted.next_if(|(_, record)| record.key == found.key)
            && (record.value != found.value
                || target.keeps_versions() && record.version != found.version.as_str())
        {
            other.push(place);
        }
        if wanted.peek().is_none() {
            break;
        }
    }
    missing.extend(wanted.map(|(place, _)| place));
    Ok((missing, other))
}

/// Writes the records, some at once; says how many.
async fn write_all(
    client: &Client,
    records: Vec<PackedRecord>,
    target: &Target,
    now: &impl Fn() -> SystemTime,
) -> Result<u64, BackupError> {
    let mut writes = JoinSet::new();
    let mut written = 0;
    for PackedRecord { key, value, expires_millis, version } in records {
        if writes.len() >= WRITES_MAX {
            written += ended(writes.join_next().await)?;
        }
        if target.keeps_versions() {
            writes.spawn(write_as_it_was(client.clone(), key, value, version.into(), expires_millis));
            continue;
        }
        // What has expired meanwhile has a millisecond left: it is as gone as it should be.
        let left = expires_millis.map(|at| Duration::from_millis(at.saturating_sub(millis(now())).max(1)));
        writes.spawn(write(client.clone(), key, value, left));
    }
    while !writes.is_empty() {
        written += ended(writes.join_next().await)?;
    }
    Ok(written)
}

fn ended(joined: Option<Result<Result<(), Error>, tokio::task::JoinError>>) -> Result<u64, BackupError> {
    match joined {
        Some(Ok(Err(error))) => Err(cluster("write a record", error)),
        Some(Ok(Ok(()))) => Ok(1),
        // A task that panicked wrote nothing that is counted; the comparison at the end tells.
        Some(Err(_)) | None => Ok(0),
    }
}

async fn write(client: Client, key: Bytes, value: Bytes, ttl: Option<Duration>) -> Result<(), Error> {
    let mut attempt = 1;
    loop {
        let options = PutOptions { ttl, ..PutOptions::default() };
        match client.put_with(&key, value.clone(), options).await {
            Ok(_) => return Ok(()),
            // The same value once more does no harm: nobody else writes these keys.
            Err(error) if attempt < ATTEMPTS_MAX && error.is_retry_safe() => {
                tokio::time::sleep(PAUSE * attempt).await;
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn write_as_it_was(
    client: Client,
    key: Bytes,
    value: Bytes,
    version: Version,
    expires_millis: Option<u64>,
) -> Result<(), Error> {
    let mut attempt = 1;
    loop {
        match client.restore(&key, value.clone(), &version, expires_millis).await {
            Ok(_) => return Ok(()),
            // A key that has this version already is left as it is.
            Err(error) if attempt < ATTEMPTS_MAX && error.is_retry_safe() => {
                tokio::time::sleep(PAUSE * attempt).await;
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn cluster(attempt: &'static str, error: Error) -> BackupError {
    BackupError::Cluster { attempt, source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_an_end() {
        assert_eq!(end_of(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(end_of(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of(b"\xff"), None);
        assert_eq!(end_of(b""), None);
    }
}
