//! The disk format of a record and of the store's other rows. No other module reads or writes these bytes.
//!
//! Integers are big-endian. The engine checksums every block and journal entry, so rows carry none of their own.
//!
//! `records`: key → record
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | format of this row: 1 |
//! | 1 | 1 | flags: 1 = tombstone, 2 = has expiry, 8 = conditional; all other bits 0 |
//! | 2 | 8 | version: 48 bits Unix milliseconds, 16 bits counter |
//! | 10 | 8 | version: node id |
//! | 18 | 2 | `from`, the replica count of the write; at least 1 |
//! | 20 | 8 | expiry instant in Unix milliseconds; only with flag 2 |
//! | next | 16 | version of the origin; only with flag 8 |
//! | next | 16 | version of the base's origin; only with flag 8 |
//! | next | 16 | digest of the operation, 0 for none; only with flag 8 |
//! | next | rest | value; empty with flag 1 |
//!
//! `due`: (8 bytes instant in Unix milliseconds, then the key) → 16 bytes version (clock word, node id)
//!
//! `meta`: `clock-lease` → 8 bytes Unix milliseconds; `store-id` → 16 random bytes; `votes` → 1 byte: 1 when the store
//! was found to hold all that it must, 0 when it is known to lack some, 2 while it is new and that is not known;
//! `topology` → 8 bytes: the hash of the nodes whose keys are placed here; `begun-among` instead, the same, in a store
//! that replaced a damaged one and has not been refilled; `seen` and 8 bytes node id → 16 bytes id of the store that
//! the node was last seen with; `ran` and 8 bytes node id → 8 bytes number and 8 bytes nonce of that store's run;
//! `node` → 8 bytes id of the node that the store belongs to, then its URL; `cluster-id` → 16 random bytes; `run` → 8
//! bytes number and 8 bytes nonce of the latest run on this store; `past-runs` → 16 bytes store, 8 bytes number and 8
//! bytes nonce of each run that the store comes from, oldest first, at most 256; `gap`, 8 bytes node id, 2 bytes partition → 8 bytes
//! Unix milliseconds since when a hint for that node and partition is missing (a dirty partition); `indexed` → 1 when
//! every record has its row in `tokens`; `unsynced` → 1 while a run confirms writes before they are synced, until it
//! has ended in order; `floor` and 2 bytes partition → three clock words of 8 bytes: agreed, sealed, purged;
//! `promise` and the key → 16 bytes version: a ballot that no stored record has reached; `fence` → 8 bytes clock word: no ballot
//! up to there is taken any more; `ballots` → 8 bytes clock word that no ballot which was met here exceeds
//!
//! `configuration` and `agreement`, also in `meta`: see [`super::chain_format`].
//!
//! `tokens`: (2 bytes partition, then the key) → 16 bytes version, 2 bytes `from`, 1 byte: 1 for a tombstone
//!
//! `delta`: 8 bytes number of a batch → for each row of `tokens` that the batch changed: 2 bytes length of the row's
//! key, the key, 2 bytes length of its value, the value; if the row is removed, 0xffff instead of the value and its
//! length
//!
//! `hints`: (8 bytes target node, 16 bytes version, then the key) → record, as in `records`
//!
//! A row is upgraded by writing it again; a reader refuses a format byte that it does not know.

use bytes::{BufMut, Bytes, BytesMut};
use kvorum_core::{
    ClusterId, Conditional, Lineage, NodeId, Partition, PastRuns, Record, Run, UnixMillis, Value, Version,
};
use std::fmt;
use std::num::NonZeroU128;
use std::ops::Bound;

const FORMAT: u8 = 1;
const FLAG_TOMBSTONE: u8 = 1;
const FLAG_EXPIRY: u8 = 2;
const FLAG_CONDITIONAL: u8 = 8;
const HEADER_BYTES: usize = 20;
const CONDITIONAL_BYTES: usize = 48;
/// The value length that marks a row of `tokens` as removed.
const REMOVED: u16 = u16::MAX;

/// The key of the `meta` row that holds the clock's lease.
pub const META_CLOCK_LEASE: &[u8] = b"clock-lease";
/// The key of the `meta` row that holds the store's random identity.
pub const META_STORE_ID: &[u8] = b"store-id";

/// The key of the `meta` row that holds the id of the cluster that the store belongs to.
pub const META_CLUSTER_ID: &[u8] = b"cluster-id";
/// The key of the `meta` row that names the node that the store belongs to: its id and URL.
pub const META_NODE: &[u8] = b"node";
/// The key of the `meta` row that holds the latest run on the store.
pub const META_RUN: &[u8] = b"run";
/// The key of the `meta` row that holds the runs before the latest: see [`PastRuns`].
pub const META_PAST_RUNS: &[u8] = b"past-runs";

/// The key of the `meta` row that holds whether this store is quorum-eligible.
pub const META_VOTES: &[u8] = b"votes";
/// The key of the `meta` row that is set when every record has its row in `tokens`.
pub const META_INDEXED: &[u8] = b"indexed";
/// The key of the `meta` row that holds the hash of the store's topology.
pub const META_TOPOLOGY: &[u8] = b"topology";
/// The key of the `meta` row that replaces [`META_TOPOLOGY`] in a store that was begun in place of a damaged one, until
/// it has been refilled.
pub const META_BEGUN_AMONG: &[u8] = b"begun-among";
/// The values of the `votes` row.
pub const VOTES_NO: u8 = 0;
/// See [`VOTES_NO`].
pub const VOTES_YES: u8 = 1;
/// See [`VOTES_NO`].
pub const VOTES_UNKNOWN: u8 = 2;
/// The key of the `meta` row that is there while writes are confirmed before they are synced.
pub const META_UNSYNCED: &[u8] = b"unsynced";
/// The prefix of the `meta` keys of nodes' store identities.
pub const META_SEEN: &[u8] = b"seen";
/// The prefix of the `meta` keys of the runs of nodes' stores. Separate from [`META_SEEN`], whose rows an earlier
/// release reads as well.
pub const META_RAN: &[u8] = b"ran";
/// The prefix of the `meta` keys of dirty partitions.
pub const META_GAP: &[u8] = b"gap";
/// The prefix of the `meta` keys of floors.
pub const META_FLOOR: &[u8] = b"floor";
/// The prefix of the `meta` keys of promised ballots.
pub const META_PROMISE: &[u8] = b"promise";
/// The key of the `meta` row that holds the fence of ballots.
pub const META_FENCE: &[u8] = b"fence";
/// The key of the `meta` row that holds the bound of the ballots that the store has met.
pub const META_BALLOTS: &[u8] = b"ballots";

/// A record without its value and expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The stored version.
    pub version: Version,
    /// The replica count it was written with.
    pub from: u16,
    /// Whether it is a tombstone.
    pub is_tombstone: bool,
}

/// The reason why bytes are not a row of this format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatError {
    /// Fewer bytes than the row's fixed part.
    Truncated {
        /// How many bytes there are.
        bytes: usize,
    },
    /// A format byte of another release.
    UnknownFormat {
        /// The byte.
        format: u8,
    },
    /// A flag that this format does not have.
    UnknownFlags {
        /// The flag byte.
        flags: u8,
    },
    /// A tombstone with a value, or a `from` of 0.
    Contradiction,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { bytes } => write!(f, "the row ends after {bytes} bytes"),
            Self::UnknownFormat { format } => write!(f, "row format {format} is unknown to this release"),
            Self::UnknownFlags { flags } => write!(f, "row flags {flags:#010b} are unknown to this release"),
            Self::Contradiction => f.write_str("the row is inconsistent"),
        }
    }
}

impl std::error::Error for FormatError {}

/// The encoded length of `record`, in bytes.
pub fn record_bytes(record: &Record) -> usize {
    let conditional = record.conditional.as_ref().map_or(0, |_| CONDITIONAL_BYTES);
    HEADER_BYTES + record.expires.map_or(0, |_| 8) + conditional + record.value_bytes()
}

/// Encodes `record`.
pub fn encode_record(record: &Record) -> Bytes {
    let value: &[u8] = match &record.value {
        Value::Present(bytes) => bytes,
        Value::Tombstone => &[],
    };
    let mut flags = 0;
    if record.value == Value::Tombstone {
        flags |= FLAG_TOMBSTONE;
    }
    if record.expires.is_some() {
        flags |= FLAG_EXPIRY;
    }
    if record.conditional.is_some() {
        flags |= FLAG_CONDITIONAL;
    }
    let mut row = BytesMut::with_capacity(record_bytes(record));
    row.put_u8(FORMAT);
    row.put_u8(flags);
    row.put_u64(record.version.clock());
    row.put_u64(record.version.node().0);
    row.put_u16(record.from);
    if let Some(at) = record.expires {
        row.put_u64(at.0);
    }
    if let Some(Conditional { lineage, operation }) = record.conditional.as_deref() {
        for version in [lineage.origin, lineage.base] {
            row.put_u64(version.clock());
            row.put_u64(version.node().0);
        }
        row.put_u128(operation.map_or(0, NonZeroU128::get));
    }
    row.put_slice(value);
    row.freeze()
}

/// The record in `row`; its value shares the row's bytes.
pub fn decode_record(row: &Bytes) -> Result<Record, FormatError> {
    let header = Header::parse(row)?;
    let value = if header.flags & FLAG_TOMBSTONE == 0 {
        Value::Present(row.slice(header.value_at..))
    } else if row.len() == header.value_at {
        Value::Tombstone
    } else {
        return Err(FormatError::Contradiction);
    };
    let Header { version, from, expires, conditional, .. } = header;
    Ok(Record { version, from, expires, value, conditional: conditional.map(Box::new) })
}

/// The version of the record in `row`, without reading its value.
pub fn decode_version(row: &[u8]) -> Result<Version, FormatError> {
    Header::parse(row).map(|header| header.version)
}

/// The record in `row` without its value and expiry.
pub fn decode_record_mark(row: &[u8]) -> Result<Mark, FormatError> {
    let Header { version, from, flags, .. } = Header::parse(row)?;
    Ok(Mark { version, from, is_tombstone: flags & FLAG_TOMBSTONE != 0 })
}

/// The key of a `tokens` row.
pub fn encode_token_key(partition: Partition, key: &[u8]) -> Bytes {
    let mut row = BytesMut::with_capacity(2 + key.len());
    row.put_u16(partition.0);
    row.put_slice(key);
    row.freeze()
}

/// The end of a partition's `tokens` rows, for `Bound::map`.
pub fn token_end(partition: Partition) -> Bound<[u8; 2]> {
    partition.0.checked_add(1).map_or(Bound::Unbounded, |next| Bound::Excluded(next.to_be_bytes()))
}

/// The partition and the key in a `tokens` row's key.
pub fn decode_token_key(row: &Bytes) -> Result<(Partition, Bytes), FormatError> {
    let (partition, _) = row.split_first_chunk::<2>().ok_or(FormatError::Truncated { bytes: row.len() })?;
    Ok((Partition(u16::from_be_bytes(*partition)), row.slice(2..)))
}

/// The key of a `delta` row.
pub fn encode_delta_key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// The number in a `delta` row's key.
pub fn decode_delta_key(row: &[u8]) -> Result<u64, FormatError> {
    let number = row.try_into().map_err(|_| FormatError::Truncated { bytes: row.len() })?;
    Ok(u64::from_be_bytes(number))
}

/// The bytes that a `delta` row takes for a row of `tokens`, besides that row's key and value.
pub const DELTA_ROW_BYTES: usize = 4;

/// A writer of the value of a `delta` row.
#[derive(Debug)]
pub struct DeltaWriter(BytesMut);

impl DeltaWriter {
    /// A writer with room for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(BytesMut::with_capacity(bytes))
    }

    /// Adds that the row of `tokens` at `key` was set to `value`, or removed. Both are shorter than 64 KiB.
    pub fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(
            key.len().max(value.map_or(0, <[u8]>::len)) < usize::from(REMOVED),
            "keys and marks are short"
        );
        self.0.put_u16(u16::try_from(key.len()).unwrap_or(REMOVED));
        self.0.put_slice(key);
        match value {
            Some(value) => {
                self.0.put_u16(u16::try_from(value.len()).unwrap_or(REMOVED));
                self.0.put_slice(value);
            }
            None => self.0.put_u16(REMOVED),
        }
    }

    /// Returns the value.
    pub fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// A changed row of `tokens` in a `delta` row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaRow<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value; none when it is removed.
    pub value: Option<&'a [u8]>,
    /// The encoded bytes of this change.
    pub encoded: &'a [u8],
}

impl DeltaRow<'_> {
    /// Copies of its key and value.
    pub fn to_owned(self) -> (Bytes, Option<Bytes>) {
        (Bytes::copy_from_slice(self.key), self.value.map(Bytes::copy_from_slice))
    }
}

/// The changes in the value of a `delta` row. The iterator ends after an error.
pub fn delta_rows(row: &[u8]) -> impl Iterator<Item = Result<DeltaRow<'_>, FormatError>> {
    let mut left = row;
    std::iter::from_fn(move || {
        let all = left;
        let row = (!all.is_empty()).then(|| {
            let key = take_short(&mut left)?.ok_or(FormatError::Contradiction)?;
            let value = take_short(&mut left)?;
            let (encoded, _) = all.split_at(all.len() - left.len());
            Ok(DeltaRow { key, value, encoded })
        })?;
        if row.is_err() {
            left = &[];
        }
        Some(row)
    })
}

fn take_short<'a>(left: &mut &'a [u8]) -> Result<Option<&'a [u8]>, FormatError> {
    let truncated = FormatError::Truncated { bytes: left.len() };
    let (length, rest) = left.split_first_chunk::<2>().ok_or(truncated)?;
    let length = u16::from_be_bytes(*length);
    if length == REMOVED {
        *left = rest;
        return Ok(None);
    }
    let (bytes, rest) = rest.split_at_checked(usize::from(length)).ok_or(truncated)?;
    *left = rest;
    Ok(Some(bytes))
}

/// The value of a `tokens` row.
pub fn encode_mark(mark: Mark) -> Bytes {
    let mut row = BytesMut::with_capacity(19);
    row.put_u64(mark.version.clock());
    row.put_u64(mark.version.node().0);
    row.put_u16(mark.from);
    row.put_u8(u8::from(mark.is_tombstone));
    row.freeze()
}

/// The mark in a `tokens` row's value.
pub fn decode_mark(row: &[u8]) -> Result<Mark, FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let (clock, rest) = row.split_first_chunk::<8>().ok_or(truncated)?;
    let (node, rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
    let (from, rest) = rest.split_first_chunk::<2>().ok_or(truncated)?;
    let is_tombstone = match rest {
        [0] => false,
        [1] => true,
        _ => return Err(FormatError::Contradiction),
    };
    let version = Version::from_words(u64::from_be_bytes(*clock), u64::from_be_bytes(*node));
    Ok(Mark { version, from: u16::from_be_bytes(*from), is_tombstone })
}

struct Header {
    flags: u8,
    version: Version,
    from: u16,
    expires: Option<UnixMillis>,
    conditional: Option<Conditional>,
    value_at: usize,
}

impl Header {
    fn parse(row: &[u8]) -> Result<Self, FormatError> {
        let truncated = FormatError::Truncated { bytes: row.len() };
        let (&[format, flags], rest) = row.split_first_chunk::<2>().ok_or(truncated)?;
        if format != FORMAT {
            return Err(FormatError::UnknownFormat { format });
        }
        if flags & !(FLAG_TOMBSTONE | FLAG_EXPIRY | FLAG_CONDITIONAL) != 0 {
            return Err(FormatError::UnknownFlags { flags });
        }
        let (clock, rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
        let (node, rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
        let (from, rest) = rest.split_first_chunk::<2>().ok_or(truncated)?;
        let from = u16::from_be_bytes(*from);
        if from == 0 {
            return Err(FormatError::Contradiction);
        }
        let mut value_at = HEADER_BYTES;
        let mut expires = None;
        if flags & FLAG_EXPIRY != 0 {
            let (at, _) = rest.split_first_chunk::<8>().ok_or(truncated)?;
            expires = Some(UnixMillis(u64::from_be_bytes(*at)));
            value_at += 8;
        }
        let mut conditional = None;
        if flags & FLAG_CONDITIONAL != 0 {
            let (bytes, _) = row
                .get(value_at..)
                .and_then(<[u8]>::split_first_chunk::<CONDITIONAL_BYTES>)
                .ok_or(truncated)?;
            conditional = Some(parse_conditional(bytes));
            value_at += CONDITIONAL_BYTES;
        }
        let version = Version::from_words(u64::from_be_bytes(*clock), u64::from_be_bytes(*node));
        Ok(Self { flags, version, from, expires, conditional, value_at })
    }
}

fn parse_conditional(bytes: &[u8; CONDITIONAL_BYTES]) -> Conditional {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).copied().map_or(0, u64::from_be_bytes);
    let version = |at| Version::from_words(word(at), word(at + 1));
    let operation = u128::from(word(4)) << 64 | u128::from(word(5));
    let lineage = Lineage { origin: version(0), base: version(2) };
    Conditional { lineage, operation: NonZeroU128::new(operation) }
}

/// The key of a `promise` row.
pub fn encode_promise_key(key: &[u8]) -> Bytes {
    Bytes::from([META_PROMISE, key].concat())
}

/// The key in a `promise` row's key.
pub fn decode_promise_key(row: &[u8]) -> Result<Bytes, FormatError> {
    let key = row.strip_prefix(META_PROMISE).ok_or(FormatError::Truncated { bytes: row.len() })?;
    Ok(Bytes::copy_from_slice(key))
}

/// The key of a `floor` row.
pub fn encode_floor_key(partition: Partition) -> Bytes {
    let mut row = BytesMut::with_capacity(META_FLOOR.len() + 2);
    row.put_slice(META_FLOOR);
    row.put_u16(partition.0);
    row.freeze()
}

/// The partition in a `floor` row's key.
pub fn decode_floor_key(row: &[u8]) -> Result<Partition, FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let partition = row.strip_prefix(META_FLOOR).and_then(|rest| <[u8; 2]>::try_from(rest).ok());
    Ok(Partition(u16::from_be_bytes(partition.ok_or(truncated)?)))
}

/// The value of a `floor` row: clock words.
pub fn encode_floor(words: [u64; 3]) -> Bytes {
    Bytes::copy_from_slice(words.map(u64::to_be_bytes).as_flattened())
}

/// The clock words in a `floor` row.
pub fn decode_floor(row: &[u8]) -> Result<[u64; 3], FormatError> {
    let truncated = || FormatError::Truncated { bytes: row.len() };
    let bytes: &[u8; 24] = row.try_into().map_err(|_| truncated())?;
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|word| <[u8; 8]>::try_from(word).ok());
        word.map(u64::from_be_bytes).ok_or_else(truncated)
    };
    Ok([word(0)?, word(8)?, word(16)?])
}

/// The key of the `due` row for `key` at `at`.
pub fn encode_due_key(at: UnixMillis, key: &[u8]) -> Bytes {
    let mut row = BytesMut::with_capacity(8 + key.len());
    row.put_u64(at.0);
    row.put_slice(key);
    row.freeze()
}

/// The instant and key of a `due` row's key.
pub fn decode_due_key(row: &Bytes) -> Result<(UnixMillis, Bytes), FormatError> {
    let (at, _) = row.split_first_chunk::<8>().ok_or(FormatError::Truncated { bytes: row.len() })?;
    Ok((UnixMillis(u64::from_be_bytes(*at)), row.slice(8..)))
}

/// The value of a `due` row.
pub fn encode_version(version: Version) -> Bytes {
    let mut row = BytesMut::with_capacity(16);
    row.put_u64(version.clock());
    row.put_u64(version.node().0);
    row.freeze()
}

/// The version in a `due` row's value.
pub fn decode_due_version(row: &[u8]) -> Result<Version, FormatError> {
    let (clock, node) = row.split_first_chunk::<8>().ok_or(FormatError::Truncated { bytes: row.len() })?;
    let node: &[u8; 8] = node.try_into().map_err(|_| FormatError::Truncated { bytes: row.len() })?;
    Ok(Version::from_words(u64::from_be_bytes(*clock), u64::from_be_bytes(*node)))
}

/// The key of a `hints` row: rows of one target are contiguous, in the order of their versions.
pub fn encode_hint_key(target: NodeId, version: Version, key: &[u8]) -> Bytes {
    let mut row = BytesMut::with_capacity(24 + key.len());
    row.put_u64(target.0);
    row.put_u64(version.clock());
    row.put_u64(version.node().0);
    row.put_slice(key);
    row.freeze()
}

/// The target and the key in a `hints` row's key.
pub fn decode_hint_key(row: &Bytes) -> Result<(NodeId, Bytes), FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let (target, _) = row.split_first_chunk::<8>().ok_or(truncated)?;
    if row.len() < 24 {
        return Err(truncated);
    }
    Ok((NodeId(u64::from_be_bytes(*target)), row.slice(24..)))
}

/// The clock word of the version in a `hints` row's key.
pub fn decode_hint_clock(row: &[u8]) -> Result<u64, FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let clock = row.get(8..16).and_then(|clock| <[u8; 8]>::try_from(clock).ok());
    clock.map(u64::from_be_bytes).ok_or(truncated)
}

/// The key of a `seen` row.
pub fn encode_seen_key(node: NodeId) -> Bytes {
    let mut row = BytesMut::with_capacity(META_SEEN.len() + 8);
    row.put_slice(META_SEEN);
    row.put_u64(node.0);
    row.freeze()
}

/// The node in a `seen` row's key.
pub fn decode_seen_key(row: &[u8]) -> Result<NodeId, FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let node = row.strip_prefix(META_SEEN).and_then(|node| <[u8; 8]>::try_from(node).ok());
    Ok(NodeId(u64::from_be_bytes(node.ok_or(truncated)?)))
}

/// The key of a `ran` row.
pub fn encode_ran_key(node: NodeId) -> Bytes {
    let mut row = BytesMut::with_capacity(META_RAN.len() + 8);
    row.put_slice(META_RAN);
    row.put_u64(node.0);
    row.freeze()
}

/// The key of a `gap` row.
pub fn encode_gap_key(target: NodeId, partition: u16) -> Bytes {
    let mut row = BytesMut::with_capacity(META_GAP.len() + 10);
    row.put_slice(META_GAP);
    row.put_u64(target.0);
    row.put_u16(partition);
    row.freeze()
}

/// The target and partition in a `gap` row's key.
pub fn decode_gap_key(row: &[u8]) -> Result<(NodeId, u16), FormatError> {
    let truncated = FormatError::Truncated { bytes: row.len() };
    let rest = row.strip_prefix(META_GAP).ok_or(truncated)?;
    let (target, partition) = rest.split_first_chunk::<8>().ok_or(truncated)?;
    let partition = <[u8; 2]>::try_from(partition).map_err(|_| truncated)?;
    Ok((NodeId(u64::from_be_bytes(*target)), u16::from_be_bytes(partition)))
}

/// The value of the clock lease's row.
pub fn encode_lease(until: UnixMillis) -> Bytes {
    Bytes::copy_from_slice(&until.0.to_be_bytes())
}

/// The lease in the clock lease's row.
pub fn decode_lease(row: &[u8]) -> Result<UnixMillis, FormatError> {
    let bytes: [u8; 8] = row.try_into().map_err(|_| FormatError::Truncated { bytes: row.len() })?;
    Ok(UnixMillis(u64::from_be_bytes(bytes)))
}

/// The value of the store identity's row.
pub fn encode_store_id(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

/// The value of the `node` row.
pub fn encode_node(node: NodeId, url: &str) -> Bytes {
    let mut row = BytesMut::with_capacity(8 + url.len());
    row.put_u64(node.0);
    row.put_slice(url.as_bytes());
    row.freeze()
}

/// The node and its URL in the `node` row.
pub fn decode_node(row: &[u8]) -> Result<(NodeId, String), FormatError> {
    let (node, url) = row.split_first_chunk::<8>().ok_or(FormatError::Truncated { bytes: row.len() })?;
    Ok((NodeId(u64::from_be_bytes(*node)), String::from_utf8_lossy(url).into_owned()))
}

/// The value of the `run` row.
pub fn encode_run(run: Run) -> Bytes {
    let mut row = BytesMut::with_capacity(16);
    row.put_u64(run.number);
    row.put_u64(run.nonce);
    row.freeze()
}

/// The run in the `run` row.
pub fn decode_run(row: &[u8]) -> Result<Run, FormatError> {
    let bytes: [u8; 16] = row.try_into().map_err(|_| FormatError::Truncated { bytes: row.len() })?;
    let both = u128::from_be_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    Ok(Run { number: (both >> 64) as u64, nonce: both as u64 })
}

/// The value of the row of earlier runs.
pub fn encode_past_runs(past: &PastRuns) -> Bytes {
    let mut row = BytesMut::with_capacity(32 * PastRuns::LEN_MAX);
    for (store, run) in past.iter() {
        row.put_u128(store);
        row.put_slice(&encode_run(run));
    }
    row.freeze()
}

/// The earlier runs in their row.
pub fn decode_past_runs(row: &[u8]) -> Result<PastRuns, FormatError> {
    let (entries, rest) = row.as_chunks::<32>();
    if !rest.is_empty() || entries.len() > PastRuns::LEN_MAX {
        return Err(FormatError::Truncated { bytes: row.len() });
    }
    let entry = |entry: &[u8; 32]| {
        let (store, run) = entry.split_at(16);
        Ok((decode_store_id(store)?, decode_run(run)?))
    };
    let runs: Result<Vec<(u128, Run)>, FormatError> = entries.iter().map(entry).collect();
    Ok(PastRuns::new(runs?))
}

/// The value of the cluster id's row.
pub fn encode_cluster_id(id: ClusterId) -> Bytes {
    Bytes::copy_from_slice(&id.get().to_be_bytes())
}

/// The cluster id in its row; none for 0.
pub fn decode_cluster_id(row: &[u8]) -> Result<Option<ClusterId>, FormatError> {
    decode_store_id(row).map(ClusterId::new)
}

/// The identity in the store identity's row.
pub fn decode_store_id(row: &[u8]) -> Result<u128, FormatError> {
    let bytes: [u8; 16] = row.try_into().map_err(|_| FormatError::Truncated { bytes: row.len() })?;
    Ok(u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// Rows written by released versions, byte by byte. A change here breaks every existing store.
    #[test]
    fn released_fixture_still_reads_and_writes() {
        let fixture = include_str!("../../../fixtures/record-format-1.txt");
        let version = Version::new(UnixMillis(0x0123_4567_89ab), 0xcdef, NodeId(0x1122_3344_5566_7788));
        let record = |from, expires: Option<u64>, value: Option<&'static [u8]>| Record {
            version,
            from,
            expires: expires.map(UnixMillis),
            value: value.map_or(Value::Tombstone, |v| Value::Present(Bytes::from_static(v))),
            conditional: None,
        };
        let conditional = |record: Record, operation| {
            let (origin, base) = (Version::from_words(0x0a, 0x0b), Version::from_words(0x0c, 0x0d));
            let lineage = Lineage { origin, base };
            let conditional = Conditional { lineage, operation: NonZeroU128::new(operation) };
            Record { conditional: Some(Box::new(conditional)), ..record }
        };
        let expected = [
            ("value", record(3, None, Some(b"hello"))),
            ("empty-value", record(1, None, Some(b""))),
            ("value-with-expiry", record(2, Some(0x0199_0000_0000), Some(b"\x00\xff"))),
            ("tombstone", record(3, None, None)),
            ("tombstone-with-expiry", record(3, Some(1), None)),
            ("conditional", conditional(record(3, None, Some(b"hello")), 0)),
            ("conditional-with-expiry", conditional(record(3, Some(0x0199_0000_0000), Some(b"hello")), 9)),
            ("conditional-tombstone", conditional(record(3, None, None), 0)),
        ];
        let rows: Vec<(&str, &str)> = fixture.lines().filter_map(|line| line.split_once(' ')).collect();
        assert_eq!(rows.len(), expected.len());
        for ((name, row), (expected_name, record)) in rows.into_iter().zip(expected) {
            assert_eq!(name, expected_name);
            assert_eq!(hex(&encode_record(&record)), row, "{name}");
            assert_eq!(decode_record(&encode_record(&record)), Ok(record), "{name}");
        }
    }

    /// Rows of the index's log as released: a tombstone's mark, a removal, and another change in one row.
    #[test]
    fn released_delta_fixture_still_reads_and_writes() {
        let fixture = include_str!("../../../fixtures/delta-format-1.txt");
        let version = Version::new(UnixMillis(0x0123_4567_89ab), 0xcdef, NodeId(0x1122_3344_5566_7788));
        let mark = |from, is_tombstone| encode_mark(Mark { version, from, is_tombstone });
        let rows = [
            (encode_token_key(Partition(0x0fff), b"gone"), Some(mark(3, true))),
            (encode_token_key(Partition(0), b"a"), None),
            (encode_token_key(Partition(1), b""), Some(mark(1, false))),
        ];
        let mut writer = DeltaWriter::with_capacity(0);
        for (key, value) in &rows {
            writer.put(key, value.as_deref());
        }
        let row = writer.finish();
        let expected = format!("{} {}\n", hex(&encode_delta_key(0x0102_0304_0506_0708)), hex(&row));
        assert_eq!(expected, fixture);
        let read: Vec<_> = delta_rows(&row).map(|row| row.unwrap().to_owned()).collect();
        assert_eq!(read, rows);
        for bytes in 1..row.len() {
            let read: Vec<_> = delta_rows(&row[..bytes]).collect();
            let is_whole = [29, 36].contains(&bytes);
            assert_eq!(read.last().unwrap().is_ok(), is_whole, "{bytes} bytes");
        }
    }

    /// Each kind of wrong row is refused with its own error.
    #[test]
    fn wrong_rows_are_refused() {
        let record = Record {
            version: Version::ZERO,
            from: 1,
            expires: Some(UnixMillis(9)),
            value: Value::Tombstone,
            conditional: None,
        };
        let good = encode_record(&record);
        let changed = |at: usize, to: u8| {
            let mut row = good.to_vec();
            row[at] = to;
            decode_record(&Bytes::from(row))
        };
        assert_eq!(changed(0, 2), Err(FormatError::UnknownFormat { format: 2 }));
        assert_eq!(changed(1, 4), Err(FormatError::UnknownFlags { flags: 4 }));
        assert_eq!(changed(19, 0), Err(FormatError::Contradiction));
        for bytes in 0..good.len() {
            assert_eq!(decode_record(&good.slice(..bytes)), Err(FormatError::Truncated { bytes }));
        }
        let mut longer = good.to_vec();
        longer.push(0);
        assert_eq!(decode_record(&Bytes::from(longer)), Err(FormatError::Contradiction));
    }

    proptest! {
        /// Encoded rows decode to the same, and any bytes are either refused or decode to something that encodes to
        /// them.
        #[test]
        fn any_bytes_are_refused_or_exact(row in prop::collection::vec(any::<u8>(), 0..120), plausible: bool) {
            let mut row = row;
            if plausible && row.len() > 2 {
                row[0] = 1;
                row[1] &= 0b1011;
            }
            let row = Bytes::from(row);
            if let Ok(record) = decode_record(&row) {
                prop_assert_eq!(encode_record(&record), row.clone());
                prop_assert_eq!(decode_version(&row), Ok(record.version));
            }
        }

        /// `due` rows sort by instant, then key, and decode to both.
        #[test]
        fn due_keys_sort_by_instant(a: u64, b: u64, key in prop::collection::vec(any::<u8>(), 0..5)) {
            let row = |at| encode_due_key(UnixMillis(at), &key);
            prop_assert_eq!(row(a).cmp(&row(b)), a.cmp(&b));
            prop_assert_eq!(decode_due_key(&row(a)), Ok((UnixMillis(a), Bytes::from(key))));
        }
    }
}
