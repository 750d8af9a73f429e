//! Fields: the parts of messages, written and read. The layout of each: [`super::message`].

use super::frame::Pieces;
use super::message::{ROSTER_LEN_MAX, Request};
use super::terms::{ApplyKind, Held, MessageError, VersionRow};
use crate::replica::{Applied, Fetched, Floor};
use bytes::{Buf, BufMut, Bytes};
use kvorum_core::{ClusterId, Key, NodeId, Record, Run, StoreSeen, UnixMillis, Value, Version};

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_EXPIRY: u8 = 2;
const FLAG_HEADER_ONLY: u8 = 4;
/// The code for a damaged record, where a flag is 0 or 1 otherwise.
const DAMAGED: u8 = 2;
/// The code for a record that is refused because it is too old to be accepted any more.
const TOO_LATE: u8 = 3;
/// The fewest bytes that a key, a held record and a row of a version list take.
pub(super) const KEY_BYTES_MIN: usize = 3;
pub(super) const HELD_BYTES_MIN: usize = 19;
pub(super) const VERSION_ROW_BYTES_MIN: usize = KEY_BYTES_MIN + 19;

pub(super) fn count_u16(count: usize, count_max: usize) -> Result<u16, MessageError> {
    let too_many = MessageError::TooMany { count, count_max };
    if count > count_max { Err(too_many) } else { u16::try_from(count).map_err(|_| too_many) }
}

pub(super) fn count_u32(count: usize) -> Result<u32, MessageError> {
    u32::try_from(count).map_err(|_| MessageError::TooMany { count, count_max: u32::MAX as usize })
}

pub(super) fn check_from(from: u16) -> Result<u16, MessageError> {
    if from == 0 { Err(MessageError::Contradiction) } else { Ok(from) }
}

pub(super) fn check_ascending(indexes: &[u16]) -> Result<(), MessageError> {
    if indexes.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(MessageError::Unsorted) }
}

pub(super) fn put_key(to: &mut Pieces, key: &Key) {
    // A key has at most 1,024 bytes.
    to.short.put_u16(u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX));
    to.short.put_slice(key.as_bytes());
}

pub(super) fn put_key_or_none(to: &mut Pieces, key: Option<&Key>) {
    match key {
        Some(key) => put_key(to, key),
        None => to.short.put_u16(0),
    }
}

pub(super) fn put_version(to: &mut Pieces, version: Version) {
    to.short.put_u64(version.clock());
    to.short.put_u64(version.node().0);
}

fn put_header(
    to: &mut Pieces,
    flags: u8,
    version: Version,
    from: u16,
    expires: Option<UnixMillis>,
) -> Result<(), MessageError> {
    to.short.put_u8(flags | if expires.is_some() { FLAG_EXPIRY } else { 0 });
    put_version(to, version);
    to.short.put_u16(check_from(from)?);
    if let Some(at) = expires {
        to.short.put_u64(at.0);
    }
    Ok(())
}

pub(super) fn put_record(to: &mut Pieces, record: &Record) -> Result<(), MessageError> {
    match &record.value {
        Value::Present(value) => {
            put_header(to, 0, record.version, record.from, record.expires)?;
            to.short.put_u32(count_u32(value.len())?);
            to.put_value(value);
            Ok(())
        }
        Value::Tombstone => put_header(to, FLAG_TOMBSTONE, record.version, record.from, record.expires),
    }
}

pub(super) fn put_held(to: &mut Pieces, held: &Held) -> Result<(), MessageError> {
    match held {
        Held::Whole(record) => put_record(to, record),
        Held::HeaderOnly { version, from, expires, value_bytes } => {
            put_header(to, FLAG_HEADER_ONLY, *version, *from, *expires)?;
            to.short.put_u32(*value_bytes);
            Ok(())
        }
    }
}

pub(super) fn put_applied(to: &mut Pieces, applied: Option<Applied>) {
    match applied {
        Some(Applied::Stored) => to.short.put_u8(0),
        Some(Applied::Superseded { by, memory_millis }) => {
            to.short.put_u8(1);
            put_version(to, by);
            to.short.put_u32(memory_millis);
        }
        Some(Applied::TooLate { upto }) => {
            to.short.put_u8(TOO_LATE);
            put_version(to, upto);
        }
        None => to.short.put_u8(DAMAGED),
    }
}

pub(super) fn put_fetched(to: &mut Pieces, fetched: &Fetched) -> Result<(), MessageError> {
    match fetched {
        Fetched::Nothing => to.short.put_u8(0),
        Fetched::Record(record) => {
            to.short.put_u8(1);
            put_record(to, record)?;
        }
        Fetched::Damaged => to.short.put_u8(DAMAGED),
    }
    Ok(())
}

pub(super) fn put_floor(to: &mut Pieces, floor: Floor) {
    for word in [floor.settled, floor.sealed, floor.purged] {
        to.short.put_u64(word);
    }
}

pub(super) fn put_words(to: &mut Pieces, words: &[u64]) -> Result<(), MessageError> {
    to.short.put_u16(count_u16(words.len(), usize::from(u16::MAX))?);
    for word in words {
        to.short.put_u64(*word);
    }
    Ok(())
}

pub(super) fn put_by_partition(to: &mut Pieces, words: &[(u16, u64)]) -> Result<(), MessageError> {
    to.short.put_u16(count_u16(words.len(), usize::from(u16::MAX))?);
    check_by_partition(words)?;
    for (partition, word) in words {
        to.short.put_u16(*partition);
        to.short.put_u64(*word);
    }
    Ok(())
}

fn check_by_partition(words: &[(u16, u64)]) -> Result<(), MessageError> {
    if words.is_sorted_by(|(a, _), (b, _)| a < b) { Ok(()) } else { Err(MessageError::Unsorted) }
}

pub(super) fn put_partitions(to: &mut Pieces, partitions: &[u16]) -> Result<(), MessageError> {
    to.short.put_u16(count_u16(partitions.len(), usize::from(u16::MAX))?);
    check_ascending(partitions)?;
    for partition in partitions {
        to.short.put_u16(*partition);
    }
    Ok(())
}

pub(super) fn put_roster(to: &mut Pieces, roster: &[StoreSeen]) -> Result<(), MessageError> {
    to.short.put_u16(count_u16(roster.len(), ROSTER_LEN_MAX)?);
    for StoreSeen { node, store, run } in roster {
        to.short.put_u64(node.0);
        to.short.put_u128(*store);
        to.short.put_u64(run.number);
        to.short.put_u64(run.nonce);
    }
    Ok(())
}

/// 0 stands for none.
pub(super) fn put_cluster_id(to: &mut Pieces, id: Option<ClusterId>) {
    to.short.put_u128(id.map_or(0, ClusterId::get));
}

pub(super) fn get_bytes(from: &mut Bytes, bytes: usize) -> Result<Bytes, MessageError> {
    if from.len() < bytes { Err(MessageError::Truncated) } else { Ok(from.split_to(bytes)) }
}

pub(super) fn get_bool(from: &mut Bytes) -> Result<bool, MessageError> {
    match from.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(MessageError::UnknownValue { value }),
    }
}

pub(super) fn get_key(from: &mut Bytes) -> Result<Key, MessageError> {
    let bytes = usize::from(from.try_get_u16()?);
    Ok(Key::new(get_bytes(from, bytes)?)?)
}

pub(super) fn get_key_or_none(from: &mut Bytes) -> Result<Option<Key>, MessageError> {
    match usize::from(from.try_get_u16()?) {
        0 => Ok(None),
        bytes => Ok(Some(Key::new(get_bytes(from, bytes)?)?)),
    }
}

pub(super) fn get_version(from: &mut Bytes) -> Result<Version, MessageError> {
    Ok(Version::from_words(from.try_get_u64()?, from.try_get_u64()?))
}

pub(super) fn get_record(from: &mut Bytes) -> Result<Record, MessageError> {
    match get_held(from)? {
        Held::Whole(record) => Ok(record),
        Held::HeaderOnly { .. } => Err(MessageError::UnknownValue { value: FLAG_HEADER_ONLY }),
    }
}

pub(super) fn get_held(from: &mut Bytes) -> Result<Held, MessageError> {
    let flags = from.try_get_u8()?;
    if flags & !(FLAG_TOMBSTONE | FLAG_EXPIRY | FLAG_HEADER_ONLY) != 0 {
        return Err(MessageError::UnknownValue { value: flags });
    }
    let version = get_version(from)?;
    let replicas = check_from(from.try_get_u16()?)?;
    let expires = match flags & FLAG_EXPIRY {
        0 => None,
        _ => Some(UnixMillis(from.try_get_u64()?)),
    };
    let value = match (flags & FLAG_TOMBSTONE != 0, flags & FLAG_HEADER_ONLY != 0) {
        (true, true) => return Err(MessageError::Contradiction),
        (true, false) => Value::Tombstone,
        (false, true) => {
            let value_bytes = from.try_get_u32()?;
            return Ok(Held::HeaderOnly { version, from: replicas, expires, value_bytes });
        }
        (false, false) => {
            let bytes = from.try_get_u32()? as usize;
            Value::Present(get_bytes(from, bytes)?)
        }
    };
    Ok(Held::Whole(Record { version, from: replicas, expires, value }))
}

pub(super) fn get_applied(from: &mut Bytes) -> Result<Applied, MessageError> {
    Ok(match from.try_get_u8()? {
        0 => Applied::Stored,
        1 => Applied::Superseded { by: get_version(from)?, memory_millis: from.try_get_u32()? },
        TOO_LATE => Applied::TooLate { upto: get_version(from)? },
        value => return Err(MessageError::UnknownValue { value }),
    })
}

pub(super) fn get_applied_or_damaged(from: &mut Bytes) -> Result<Option<Applied>, MessageError> {
    if is_damaged(from) { Ok(None) } else { get_applied(from).map(Some) }
}

pub(super) fn get_fetched(from: &mut Bytes) -> Result<Fetched, MessageError> {
    if is_damaged(from) {
        return Ok(Fetched::Damaged);
    }
    Ok(if get_bool(from)? { Fetched::Record(get_record(from)?) } else { Fetched::Nothing })
}

/// Whether [`DAMAGED`] comes next; if so, skips it.
fn is_damaged(from: &mut Bytes) -> bool {
    let is_damaged = from.first() == Some(&DAMAGED);
    if is_damaged {
        from.advance(1);
    }
    is_damaged
}

pub(super) fn get_apply_kind(from: &mut Bytes) -> Result<ApplyKind, MessageError> {
    Ok(match from.try_get_u8()? {
        0 => ApplyKind::Write,
        1 => ApplyKind::Hint,
        2 => ApplyKind::ReadRepair,
        value => return Err(MessageError::UnknownValue { value }),
    })
}

pub(super) fn get_floor(from: &mut Bytes) -> Result<Floor, MessageError> {
    let (settled, sealed, purged) = (from.try_get_u64()?, from.try_get_u64()?, from.try_get_u64()?);
    Ok(Floor { settled, sealed, purged })
}

pub(super) fn get_words(from: &mut Bytes) -> Result<Vec<u64>, MessageError> {
    let count = usize::from(from.try_get_u16()?);
    get_list(from, count, 8, |from| Ok(from.try_get_u64()?))
}

pub(super) fn get_by_partition(from: &mut Bytes) -> Result<Vec<(u16, u64)>, MessageError> {
    let count = usize::from(from.try_get_u16()?);
    let words = get_list(from, count, 10, |from| Ok((from.try_get_u16()?, from.try_get_u64()?)))?;
    check_by_partition(&words)?;
    Ok(words)
}

pub(super) fn get_partitions(from: &mut Bytes) -> Result<Vec<u16>, MessageError> {
    let count = usize::from(from.try_get_u16()?);
    let partitions = get_list(from, count, 2, |from| Ok(from.try_get_u16()?))?;
    check_ascending(&partitions)?;
    Ok(partitions)
}

pub(super) fn get_roster(from: &mut Bytes) -> Result<Vec<StoreSeen>, MessageError> {
    let count = usize::from(from.try_get_u16()?);
    if count > ROSTER_LEN_MAX {
        return Err(MessageError::TooMany { count, count_max: ROSTER_LEN_MAX });
    }
    get_list(from, count, 40, |from| {
        let (node, store) = (NodeId(from.try_get_u64()?), from.try_get_u128()?);
        let run = Run { number: from.try_get_u64()?, nonce: from.try_get_u64()? };
        Ok(StoreSeen { node, store, run })
    })
}

pub(super) fn get_cluster_id(from: &mut Bytes) -> Result<Option<ClusterId>, MessageError> {
    Ok(ClusterId::new(from.try_get_u128()?))
}

pub(super) fn get_scan_open(from: &mut Bytes) -> Result<Request, MessageError> {
    let bytes = from.try_get_u32()?;
    let (ack, replicas) = (from.try_get_u16()?, from.try_get_u16()?);
    let (start, end) = (get_key(from)?, get_key_or_none(from)?);
    let count = usize::from(from.try_get_u16()?);
    let sources = get_list(from, count, 2, |from| Ok(from.try_get_u16()?))?;
    check_ascending(&sources)?;
    Ok(Request::ScanOpen { start, end, bytes, sources, ack, from: replicas })
}

pub(super) fn get_version_row(from: &mut Bytes) -> Result<VersionRow, MessageError> {
    Ok(VersionRow {
        key: get_key(from)?,
        version: get_version(from)?,
        from: check_from(from.try_get_u16()?)?,
        is_tombstone: get_bool(from)?,
    })
}

/// Reads `count` items of at least `bytes_min` each. A count that the payload cannot hold reserves no memory.
pub(super) fn get_list<T>(
    from: &mut Bytes,
    count: usize,
    bytes_min: usize,
    item: impl Fn(&mut Bytes) -> Result<T, MessageError>,
) -> Result<Vec<T>, MessageError> {
    if count > from.len() / bytes_min {
        return Err(MessageError::Truncated);
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(item(from)?);
    }
    Ok(items)
}

pub(super) fn end(payload: &Bytes) -> Result<(), MessageError> {
    if payload.is_empty() { Ok(()) } else { Err(MessageError::Trailing { bytes: payload.len() }) }
}
