//! Manifests: which packs a backup has. A line of JSON, and a line with its SHA-256.
//!
//! It is written last and at once: without a whole manifest a backup does not exist.

use crate::pack::{Pack, hash};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// What a backup consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// Its name: the time at which it began, such as `20261127T041500Z`.
    pub id: String,
    /// When it began, in Unix milliseconds: it has every write that was acknowledged before.
    pub begun_millis: u64,
    /// When it had read everything.
    pub ended_millis: u64,
    /// The cluster, as a node said: the epoch of its placement.
    pub epoch: Option<String>,
    /// The instant that it shows; none for a backup by a scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutEntry>,
    /// How many records there are.
    pub records: u64,
    /// The bytes of their values.
    pub value_bytes: u64,
    /// The SHA-256 of the packs' digests, one after the other.
    pub digest: String,
    /// The packs, in the order of their keys.
    pub packs: Vec<PackEntry>,
}

/// The cut of an exact backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutEntry {
    /// The timestamp: it has every write that was acknowledged at or below it, and none above. The first 12 of the 16
    /// hexadecimal digits are Unix milliseconds.
    pub upto: String,
    /// For each node that took part, what stands for all that it held.
    pub nodes: Vec<NodeDigests>,
    /// How many partitions there are.
    pub partitions: u64,
    /// How many of them were read. The records of the others are those of the backup before.
    pub partitions_read: u64,
}

/// What stands for all that a node held, by partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDigests {
    /// The node's id.
    pub node: String,
    /// 8 bytes for each partition, in base64.
    pub digests: String,
}

/// A pack, as the manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackEntry {
    /// The SHA-256 of its file.
    pub name: String,
    /// The bytes of its file.
    pub bytes: u64,
    /// The SHA-256 of its records.
    pub digest: String,
    /// How many records it has.
    pub records: u64,
    /// Its first key, in base64.
    pub first: String,
    /// Its last key, in base64.
    pub last: String,
}

impl PackEntry {
    /// The entry of a pack.
    pub fn of(pack: &Pack) -> Self {
        Self {
            name: pack.name.clone(),
            bytes: pack.file.len() as u64,
            digest: pack.digest.clone(),
            records: pack.records,
            first: BASE64.encode(&pack.first),
            last: BASE64.encode(&pack.last),
        }
    }

    /// Whether the name is one of ours: it becomes a part of a path.
    fn is_sound(&self) -> bool {
        self.name.len() == 64 && self.name.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl Manifest {
    /// The manifest of these packs.
    pub fn new(
        id: String,
        (begun_millis, ended_millis): (u64, u64),
        epoch: Option<String>,
        packs: Vec<PackEntry>,
        value_bytes: u64,
    ) -> Self {
        let records = records_of(&packs);
        let digest = digest_of(&packs);
        let cut = None;
        Self {
            format: FORMAT,
            id,
            begun_millis,
            ended_millis,
            epoch,
            cut,
            records,
            value_bytes,
            digest,
            packs,
        }
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn to_file(&self) -> Result<String, serde_json::Error> {
        let line = serde_json::to_string(self)?;
        let sum = hash(line.as_bytes());
        Ok(format!("{line}\n{sum}\n"))
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(file: &str) -> Result<Self, String> {
        let (line, sum) = file.split_once('\n').ok_or("it is cut off")?;
        if sum != format!("{}\n", hash(line.as_bytes())) {
            return Err("its checksum is missing or wrong".to_owned());
        }
        let manifest: Self = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("format {} is not known to this version", manifest.format));
        }
        if !manifest.packs.iter().all(PackEntry::is_sound) {
            return Err("the name of a pack is no SHA-256".to_owned());
        }
        if manifest.digest != digest_of(&manifest.packs) || manifest.records != records_of(&manifest.packs) {
            return Err("its packs are not those that it sums up".to_owned());
        }
        Ok(manifest)
    }
}

fn records_of(packs: &[PackEntry]) -> u64 {
    packs.iter().fold(0, |sum, pack| sum.saturating_add(pack.records))
}

fn digest_of(packs: &[PackEntry]) -> String {
    hash(packs.iter().map(|pack| &*pack.digest).collect::<Vec<_>>().concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let pack = PackEntry {
            name: "0".repeat(64),
            bytes: 10,
            digest: "1".repeat(64),
            records: 3,
            first: "YQ==".to_owned(),
            last: "Yg==".to_owned(),
        };
        Manifest::new(
            "20261127T041500Z".to_owned(),
            (1, 2),
            Some("5b46ea28918405f7".to_owned()),
            vec![pack],
            17,
        )
    }

    #[test]
    fn manifests_come_back() {
        let file = manifest().to_file().unwrap();
        assert_eq!(Manifest::parse(&file), Ok(manifest()));
    }

    #[test]
    fn damaged_manifests_are_refused() {
        let file = manifest().to_file().unwrap();
        for length in 0..file.len() {
            assert!(Manifest::parse(&file[..length]).is_err(), "{length} bytes");
        }
        for (at, _) in file.char_indices() {
            let mut bytes = file.clone().into_bytes();
            bytes[at] ^= 1;
            let is_refused = String::from_utf8(bytes).map_or(true, |file| Manifest::parse(&file).is_err());
            assert!(is_refused, "byte {at}");
        }
    }

    /// A name leads to no file elsewhere, even where the checksum is right.
    #[test]
    fn names_are_no_paths() {
        let mut manifest = manifest();
        manifest.packs[0].name = "../".repeat(21) + "x";
        assert!(Manifest::parse(&manifest.to_file().unwrap()).unwrap_err().contains("SHA-256"));
    }
}
