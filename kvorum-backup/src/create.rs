//! Making a backup: a scan of all keys into packs, then the manifest.

use crate::error::BackupError;
use crate::folder::Folder;
use crate::manifest::{Manifest, PackEntry};
use crate::pack::{PackBuilder, PackedRecord};
use kvorum_client::{Client, Entry, Error, ScanOptions};
use std::time::{Duration, SystemTime};

/// How often a scan that was cut is begun again without having come further.
const ATTEMPTS_MAX: u32 = 5;
/// The pause before that.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a scan may take to begin, and for each next record.
pub(crate) const WAIT: Duration = Duration::from_secs(30);

/// How a backup is made.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The backup's name ([`id_of`]).
    pub id: String,
    /// The most bytes of keys and values read in a second.
    pub bytes_per_second_max: u64,
    /// The longest time for which nodes keep the records of an exact backup.
    pub age_max: Duration,
}

/// A backup that was made.
#[derive(Debug, Clone)]
pub struct Created {
    /// The backup.
    pub manifest: Manifest,
    /// How many of its packs were not there before.
    pub packs_new: usize,
    /// How often the scan was cut, and went on behind the last key.
    pub cuts: u64,
    /// The nodes that an exact backup went on without.
    pub away: Vec<String>,
    /// How many values an exact backup read from the cluster; those of the others are in the backup before.
    pub values_read: u64,
}

/// The name of a backup that begins at `now`.
pub fn id_of(now: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(now).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Backs up every live record of the cluster into `folder`.
///
/// It has every write that was acknowledged before it began, unless a later one took its place. Of the writes while it
/// runs it has some. A scan that is cut, by a node's `--range-timeout` or a node that died, goes on behind its last key.
///
/// # Errors
/// The cluster does not answer, or a file cannot be written. No backup exists then.
///
/// # Cancel safety
/// Dropping the future leaves packs without a manifest, which the next backup uses or `prune` removes.
pub async fn create(
    client: &Client,
    folder: &Folder,
    plan: &Plan,
    now: impl Fn() -> SystemTime,
) -> Result<Created, BackupError> {
    let begun_millis = millis(now());
    let epoch = epoch_of(client).await;
    let mut packing = Packing::new(folder);
    let pace = RateLimit::new(plan.bytes_per_second_max);
    let (mut bytes, mut cuts, mut attempts) = (0_u64, 0, 0);
    let mut start: Vec<u8> = vec![0];
    loop {
        let before = start.clone();
        match read_from(client, &mut start, &mut packing, &pace, &mut bytes).await? {
            None => break,
            Some(error) => {
                attempts = if start == before { attempts + 1 } else { 0 };
                if attempts >= ATTEMPTS_MAX || !error.is_retry_safe() {
                    return Err(BackupError::Cluster { attempt: "read all keys", source: Box::new(error) });
                }
                cuts += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    packing.end_pack()?;
    let times = (begun_millis, millis(now()));
    let manifest = Manifest::new(plan.id.clone(), times, epoch, packing.packs, packing.value_bytes);
    folder.put_manifest(&manifest)?;
    Ok(Created { manifest, packs_new: packing.packs_new, cuts, away: Vec::new(), values_read: 0 })
}

/// Reads from `start` on, which follows the last key; the error that ended it, none at the end of all keys.
async fn read_from(
    client: &Client,
    start: &mut Vec<u8>,
    packing: &mut Packing<'_>,
    pace: &RateLimit,
    bytes: &mut u64,
) -> Result<Option<Error>, BackupError> {
    let options = ScanOptions { timeout: Some(WAIT), ..ScanOptions::default() };
    let mut scan = match client.scan(&*start, None, options).await {
        Ok(scan) => scan,
        Err(error) => return Ok(Some(error)),
    };
    while let Some(entry) = scan.next().await {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(Some(error)),
        };
        *bytes += (entry.key.len() + entry.value.len()) as u64;
        *start = [&entry.key, &b"\0"[..]].concat();
        packing.add(&record_of(entry))?;
        pace.keep(*bytes).await;
    }
    Ok(None)
}

fn record_of(entry: Entry) -> PackedRecord {
    let Entry { key, value, version, expires, .. } = entry;
    PackedRecord { key, value, version: version.into(), expires_millis: expires.map(millis) }
}

/// The records of a backup, on their way into packs.
pub(crate) struct Packing<'a> {
    folder: &'a Folder,
    builder: PackBuilder,
    pub(crate) packs: Vec<PackEntry>,
    pub(crate) packs_new: usize,
    pub(crate) value_bytes: u64,
    /// How many of the values came from the cluster.
    pub(crate) values_read: u64,
}

impl<'a> Packing<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        let (builder, packs) = (PackBuilder::default(), Vec::new());
        Self { folder, builder, packs, packs_new: 0, value_bytes: 0, values_read: 0 }
    }

    /// Adds a record; keys must rise.
    pub(crate) fn add(&mut self, record: &PackedRecord) -> Result<(), BackupError> {
        self.builder.push(record);
        self.value_bytes += record.value.len() as u64;
        if self.builder.is_full() { self.end_pack() } else { Ok(()) }
    }

    /// Ends the pack that is being filled.
    pub(crate) fn end_pack(&mut self) -> Result<(), BackupError> {
        let Some(pack) = self.builder.take() else { return Ok(()) };
        self.packs_new += usize::from(self.folder.put_pack(&pack)?);
        self.packs.push(PackEntry::of(&pack));
        Ok(())
    }
}

/// The rate at which the backup reads: nodes stop reading ahead when nobody takes what they send.
pub(crate) struct RateLimit {
    begun: tokio::time::Instant,
    bytes_per_second_max: u64,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second_max: u64) -> Self {
        let bytes_per_second_max = bytes_per_second_max.max(1);
        Self { begun: tokio::time::Instant::now(), bytes_per_second_max }
    }

    /// Waits while more than `bytes` would have been read too early.
    pub(crate) async fn keep(&self, bytes: u64) {
        let due = Duration::from_millis(bytes.saturating_mul(1000) / self.bytes_per_second_max);
        // Short waits are saved up: a timer takes a millisecond at least.
        if due > self.begun.elapsed() + Duration::from_millis(20) {
            tokio::time::sleep_until(self.begun + due).await;
        }
    }
}

/// The epoch of the placement, for people who compare backups; none if no node says it.
async fn epoch_of(client: &Client) -> Option<String> {
    let page = client.page("/v0/topology?ranks=1").await.ok()?;
    let topology: serde_json::Value = serde_json::from_slice(&page.body).ok()?;
    Some(topology.get("epoch")?.as_str()?.to_owned())
}

pub(crate) fn millis(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// A key as a query has it.
pub(crate) fn id_shown(key: &[u8]) -> String {
    let shown = |byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    key.iter().map(shown).collect()
}
