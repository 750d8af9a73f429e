//! Packs: files of records in the order of their keys, compressed, named by the SHA-256 of their bytes.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | `KVBP` |
//! | 1 | format, 1 |
//! | 8 | length of the records before compression, big-endian |
//! | rest | the records, one LZ4 block |
//!
//! | bytes of a record | what |
//! | --- | --- |
//! | 2 | length of the key, big-endian |
//! | 1 | 1 where it expires, else 0 |
//! | 8 | only where it expires: the instant in Unix milliseconds |
//! | 1 | length of the version |
//! | 4 | length of the value |
//! | rest | key, version as text, value |
//!
//! Where a pack ends depends on the keys alone, beyond a least size: after a change the packs of other keys stay the same
//! files, and the next backup writes only new ones.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a pack.
const MAGIC: &[u8; 4] = b"KVBP";
const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 13;
/// A pack does not end before it has this many bytes.
pub const PACK_BYTES_MIN: usize = 4 << 20;
/// A pack ends once it has this many bytes.
pub const PACK_BYTES_MAX: usize = 32 << 20;
/// Of so many keys one may end a pack.
const ENDS_ONE_IN: u64 = 64;
/// The largest value that a node takes.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// The longest key.
pub const KEY_BYTES_MAX: usize = 1024;
/// The most bytes that a pack may claim: full but for one byte, and then the largest record.
const CLAIM_MAX: usize = PACK_BYTES_MAX + VALUE_BYTES_MAX + KEY_BYTES_MAX + 512;

/// A record of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedRecord {
    /// The key's bytes.
    pub key: Bytes,
    /// The value's bytes.
    pub value: Bytes,
    /// The version, as the cluster spelled it.
    pub version: String,
    /// The instant from which on no reader sees it, in Unix milliseconds.
    pub expires_millis: Option<u64>,
}

/// Why bytes are no pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPack {
    /// What is wrong.
    pub reason: &'static str,
}

/// A pack that is being filled.
#[derive(Debug, Default)]
pub struct PackBuilder {
    bytes: Vec<u8>,
    records: u64,
    first: Option<Bytes>,
    last: Option<Bytes>,
    may_end: bool,
}

/// A pack that is complete.
#[derive(Debug, Clone)]
pub struct Pack {
    /// The file's bytes.
    pub file: Vec<u8>,
    /// The SHA-256 of the file's bytes, in hexadecimal: its name.
    pub name: String,
    /// The SHA-256 of the records before compression.
    pub digest: String,
    /// How many records there are.
    pub records: u64,
    /// The key of the first one.
    pub first: Bytes,
    /// The key of the last one.
    pub last: Bytes,
}

impl PackBuilder {
    /// Adds a record; keys must rise.
    pub fn push(&mut self, record: &PackedRecord) {
        let PackedRecord { key, value, version, expires_millis } = record;
        let key_bytes = u16::try_from(key.len()).unwrap_or(u16::MAX);
        let version_bytes = u8::try_from(version.len()).unwrap_or(u8::MAX);
        let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&key_bytes.to_be_bytes());
        self.bytes.push(u8::from(expires_millis.is_some()));
        if let Some(at) = expires_millis {
            self.bytes.extend_from_slice(&at.to_be_bytes());
        }
        self.bytes.push(version_bytes);
        self.bytes.extend_from_slice(&value_bytes.to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(version.as_bytes());
        self.bytes.extend_from_slice(value);
        self.records += 1;
        self.first.get_or_insert_with(|| key.clone());
        self.last = Some(key.clone());
        self.may_end = xxh3_64(key).is_multiple_of(ENDS_ONE_IN);
    }

    /// Whether the pack is to end here.
    pub fn is_full(&self) -> bool {
        let size = self.bytes.len();
        size >= PACK_BYTES_MAX || size >= PACK_BYTES_MIN && self.may_end
    }

    /// Ends the pack; none if it has no record. The builder is empty afterwards.
    pub fn take(&mut self) -> Option<Pack> {
        let Self { bytes, records, first, last, .. } = std::mem::take(self);
        let (first, last) = first.zip(last)?;
        let mut file = Vec::with_capacity(HEAD_BYTES + bytes.len() / 2);
        file.extend_from_slice(MAGIC);
        file.push(FORMAT);
        file.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        file.extend_from_slice(&lz4_flex::block::compress(&bytes));
        Some(Pack { name: hash(&file), digest: hash(&bytes), file, records, first, last })
    }
}

/// Reads the records of a pack, and their digest.
///
/// # Errors
/// The bytes are no pack, or of a later format.
pub fn read(file: &[u8]) -> Result<(Vec<PackedRecord>, String), BadPack> {
    let bad = |reason| BadPack { reason };
    let (head, block) = file.split_at_checked(HEAD_BYTES).ok_or(bad("it is shorter than its head"))?;
    let (magic, rest) = head.split_first_chunk::<4>().ok_or(bad("it is shorter than its head"))?;
    let (format, claim) = rest.split_first().ok_or(bad("it is shorter than its head"))?;
    if magic != MAGIC {
        return Err(bad("it is no pack of a backup"));
    }
    if *format != FORMAT {
        return Err(bad("its format is not known to this version"));
    }
    let claim = claim.try_into().map(u64::from_be_bytes).map_err(|_| bad("it is shorter than its head"))?;
    // LZ4 makes 255 bytes of one at most: a false length cannot take more memory than the file stands for.
    let claim = usize::try_from(claim)
        .ok()
        .filter(|claim| *claim <= CLAIM_MAX && *claim <= block.len().saturating_mul(256).saturating_add(64));
    let claim = claim.ok_or(bad("its length is not believable"))?;
    let bytes = lz4_flex::block::decompress(block, claim).map_err(|_| bad("it cannot be decompressed"))?;
    if bytes.len() != claim {
        return Err(bad("it has another length than it says"));
    }
    let digest = hash(&bytes);
    let mut rest = Bytes::from(bytes);
    let mut records: Vec<PackedRecord> = Vec::new();
    while !rest.is_empty() {
        let record = take_record(&mut rest).ok_or(bad("a record is cut off"))?;
        if records.last().is_some_and(|last| last.key >= record.key) {
            return Err(bad("its keys do not rise"));
        }
        records.push(record);
    }
    Ok((records, digest))
}

fn take_record(rest: &mut Bytes) -> Option<PackedRecord> {
    let mut take = |count: usize| (rest.len() >= count).then(|| rest.split_to(count));
    let key_bytes = u16::from_be_bytes(take(2)?.as_ref().try_into().ok()?);
    let expires_millis = match take(1)?.first()? {
        0 => None,
        1 => Some(u64::from_be_bytes(take(8)?.as_ref().try_into().ok()?)),
        _ => return None,
    };
    let version_bytes = *take(1)?.first()?;
    let value_bytes = u32::from_be_bytes(take(4)?.as_ref().try_into().ok()?);
    let key = take(usize::from(key_bytes)).filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()))?;
    let version = String::from_utf8(take(usize::from(version_bytes))?.to_vec()).ok()?;
    let value = take(usize::try_from(value_bytes).ok()?)?;
    Some(PackedRecord { key, value, version, expires_millis })
}

/// The SHA-256 of `bytes` in hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u32, value: &[u8]) -> PackedRecord {
        PackedRecord {
            key: Bytes::from(format!("key {number:08}\0\u{ff}")),
            value: Bytes::copy_from_slice(value),
            version: format!("{number:016x}-0000000000000001"),
            expires_millis: number.is_multiple_of(3).then_some(u64::from(number)),
        }
    }

    fn pack(records: &[PackedRecord]) -> Pack {
        let mut builder = PackBuilder::default();
        for record in records {
            builder.push(record);
        }
        builder.take().unwrap()
    }

    #[test]
    fn records_come_back() {
        let records: Vec<_> = (1..200).map(|number| record(number, &vec![0xfe; number as usize])).collect();
        let pack = pack(&records);
        let (back, digest) = read(&pack.file).unwrap();
        assert_eq!((back, &digest), (records, &pack.digest));
        assert_eq!((pack.records, &pack.first), (199, &record(1, b"").key));
        assert!(PackBuilder::default().take().is_none());
    }

    /// Goal: no damage passes, and none makes the reader fall. Method: each bit of a small pack flipped, each length cut.
    #[test]
    fn damage_is_found() {
        let pack = pack(&[record(1, b"one"), record(2, b""), record(3, b"three three three three")]);
        for at in 0..pack.file.len() * 8 {
            let mut file = pack.file.clone();
            file[at / 8] ^= 1 << (at % 8);
            assert_ne!(hash(&file), pack.name, "bit {at}");
            let _ = read(&file);
        }
        for length in 0..pack.file.len() {
            assert!(
                read(&pack.file[..length]).map_or(true, |(_, digest)| digest != pack.digest),
                "{length} bytes"
            );
        }
        let mut huge = pack.file;
        huge[5..13].copy_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(read(&huge), Err(BadPack { reason: "its length is not believable" }));
    }

    /// Goal: a change of one record changes few packs. Method: packs of many records, and the same with one more value.
    #[test]
    fn other_packs_stay_the_same() {
        let value = |number: u32| vec![u8::try_from(number % 251).unwrap(); 40_000];
        let names = |changed: u32| {
            let mut builder = PackBuilder::default();
            let mut names = Vec::new();
            for number in 0..1500 {
                let value = if number == changed { vec![7; 10] } else { value(number) };
                builder.push(&record(number, &value));
                if builder.is_full() {
                    names.extend(builder.take().map(|pack| pack.name));
                }
            }
            names.extend(builder.take().map(|pack| pack.name));
            names
        };
        let (before, after) = (names(u32::MAX), names(700));
        assert!(before.len() >= 4, "{}", before.len());
        let new = after.iter().filter(|name| !before.contains(name)).count();
        assert!((1..=2).contains(&new), "{new} of {} packs are new", after.len());
    }
}
