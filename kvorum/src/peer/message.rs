//! Messages: the requests and replies between nodes, and their encoding.
//!
//! `docs/wire.md` has every byte, by kind and by part. The frame around a payload is defined in [`super::frame`], the
//! parts in [`super::fields`], and the terms that have codes in [`super::terms`].
//!
//! Each message has exactly one encoding, and bytes after it are refused. What a reader refuses, the writer refuses
//! too. Keys and values share the bytes of the frame that they came in, and keep that memory alive. Code that stores
//! one for long makes a copy.

use super::fields::{
    HELD_BYTES_MIN, KEY_BYTES_MIN, VERSION_ROW_BYTES_MIN, check_ascending, check_from, count_u16, count_u32,
    end, get_applied, get_applied_or_damaged, get_apply_kind, get_bool, get_by_partition, get_bytes,
    get_cluster_id, get_fetched, get_floor, get_held, get_key, get_key_or_none, get_list, get_partitions,
    get_record, get_roster, get_scan_open, get_version, get_version_row, get_words, put_applied,
    put_by_partition, put_cluster_id, put_fetched, put_floor, put_held, put_key, put_key_or_none,
    put_partitions, put_record, put_roster, put_version, put_words,
};
use super::frame::{Frame, Pieces};
use super::terms::{ApplyKind, Held, HeldBack, MessageError, Refusal, ScanRow, StepKind, VersionRow};
use crate::replica::{Applied, Fetched, Floor};
use bytes::{Buf, BufMut, Bytes};
use kvorum_core::{ClusterId, Key, Record, StoreSeen, UnixMillis, Version};
use std::time::Duration;

/// The most nodes that a peer registry (roster) names: no cluster is larger.
pub const ROSTER_LEN_MAX: usize = 1024;
/// The most text of a refusal, in bytes; the rest is cut.
pub const DETAIL_BYTES_MAX: usize = 512;

/// The node index that names no node.
pub(super) const NOBODY: u16 = u16::MAX;

/// The kind bytes.
pub(super) mod kind {
    pub(in crate::peer) const APPLY: u8 = 0x01;
    pub(in crate::peer) const GET: u8 = 0x02;
    pub(in crate::peer) const PING: u8 = 0x03;
    pub(in crate::peer) const TAKE_HINTS: u8 = 0x04;
    pub(in crate::peer) const SCAN_OPEN: u8 = 0x05;
    pub(in crate::peer) const SCAN_NEXT: u8 = 0x06;
    pub(in crate::peer) const SCAN_CLOSE: u8 = 0x07;
    pub(in crate::peer) const DIGESTS: u8 = 0x08;
    pub(in crate::peer) const VERSIONS: u8 = 0x09;
    pub(in crate::peer) const FETCH: u8 = 0x0a;
    pub(in crate::peer) const SURVEY: u8 = 0x0b;
    pub(in crate::peer) const CLOSE: u8 = 0x0c;
    pub(in crate::peer) const STEP: u8 = 0x0d;
    pub(in crate::peer) const FLOORS: u8 = 0x0e;
    pub(in crate::peer) const APPLY_MANY: u8 = 0x0f;
    pub(in crate::peer) const STRETCH: u8 = 0x10;
    pub(in crate::peer) const COMPARE: u8 = 0x11;
    pub(in crate::peer) const NEWEST: u8 = 0x12;
    pub(in crate::peer) const APPLIED: u8 = 0x81;
    pub(in crate::peer) const FOUND: u8 = 0x82;
    pub(in crate::peer) const PONG: u8 = 0x83;
    pub(in crate::peer) const HINTS_TAKEN: u8 = 0x84;
    pub(in crate::peer) const SCAN_PART: u8 = 0x85;
    pub(in crate::peer) const DONE: u8 = 0x87;
    pub(in crate::peer) const DIGEST_LIST: u8 = 0x88;
    pub(in crate::peer) const VERSION_LIST: u8 = 0x89;
    pub(in crate::peer) const SURVEYED: u8 = 0x8a;
    pub(in crate::peer) const STEPPED: u8 = 0x8b;
    pub(in crate::peer) const FETCHED: u8 = 0x8c;
    pub(in crate::peer) const FLOOR_LIST: u8 = 0x8d;
    pub(in crate::peer) const APPLIED_MANY: u8 = 0x8e;
    pub(in crate::peer) const STRETCHED: u8 = 0x8f;
    pub(in crate::peer) const COMPARED: u8 = 0x90;
    pub(in crate::peer) const NEWEST_IS: u8 = 0x91;
    pub(in crate::peer) const REFUSED: u8 = 0xff;
}

/// A request of one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Applies a record to the peer's replica. Answered by [`Reply::Applied`].
    Apply {
        /// The record's key.
        key: Key,
        /// The record to apply.
        record: Record,
        /// The cause of the apply.
        kind: ApplyKind,
    },
    /// Reads the peer's record of a key. Answered by [`Reply::Found`].
    Get {
        /// The key.
        key: Key,
        /// The longest value to include, in bytes; of a record with a longer one, only the header comes.
        value_bytes_max: u32,
    },
    /// Asks for the version that a write to a key must exceed. Answered by [`Reply::NewestIs`].
    Newest {
        /// The key.
        key: Key,
    },
    /// A heartbeat. Answered by [`Reply::Pong`].
    Ping {
        /// The time of day at the sender.
        wall: UnixMillis,
        /// The id of the sender's cluster; none while it knows none yet.
        cluster_id: Option<ClusterId>,
        /// The store and the run that the sender last saw of each node; at most [`ROSTER_LEN_MAX`].
        roster: Vec<StoreSeen>,
    },
    /// Asks for the hints that the peer keeps for this node. Answered by [`Reply::HintsTaken`].
    TakeHints,
    /// Opens a scan of the peer's replica. Answered by [`Reply::ScanPart`].
    ScanOpen {
        /// The first key.
        start: Key,
        /// The key before which the scan ends; none for all later keys.
        end: Option<Key>,
        /// About how many bytes of keys and values a part may have.
        bytes: u32,
        /// The indexes of the nodes that serve this scan; ascending.
        sources: Vec<u16>,
        /// The quorum's `ack`.
        ack: u16,
        /// The quorum's `from`.
        from: u16,
    },
    /// Asks for an open scan's next part. Answered by [`Reply::ScanPart`].
    ScanNext {
        /// The number that the first part named.
        scan: u32,
        /// About how many bytes of keys and values the part may have.
        bytes: u32,
    },
    /// Closes a scan before its end. Answered by [`Reply::Done`].
    ScanClose {
        /// The number that the first part named.
        scan: u32,
    },
    /// Asks for digests of partitions. Answered by [`Reply::DigestList`].
    Digests {
        /// The first partition.
        first_partition: u16,
        /// The number of partitions.
        count: u16,
    },
    /// Asks for the digests of partitions in those stretches whose sums differ at the peer. Answered by
    /// [`Reply::Compared`].
    Compare {
        /// The exclusive or of the sender's digests for each stretch; the stretches divide the partitions equally.
        sums: Vec<u64>,
    },
    /// Asks for the versions of a partition's keys. Answered by [`Reply::VersionList`].
    Versions {
        /// The partition.
        partition: u16,
        /// The last key of the previous list; none for the first list.
        after: Option<Key>,
        /// About how many bytes the list may have.
        bytes: u32,
        /// The sender's tombstone GC floor for the partition.
        floor: Floor,
    },
    /// Reads records to copy them: answered even if the peer's store is not quorum-eligible. Answered by
    /// [`Reply::Fetched`].
    Fetch {
        /// The keys.
        keys: Vec<Key>,
        /// About how many bytes of keys and values the answer may have.
        bytes: u32,
    },
    /// Begins a tombstone GC round over the partitions whose preference lists the sender leads. Answered by
    /// [`Reply::Surveyed`].
    Survey {
        /// The watermark in each of these partitions, up to which all nodes were found to agree: timestamps (clock
        /// words).
        agreed: Vec<u64>,
        /// Which node holds the sender's partitions back, and why.
        held_by: Option<(u16, HeldBack)>,
    },
    /// Makes the peer refuse writes up to a timestamp, and asks for the digests of what it must have in common with the
    /// others. Answered by [`Reply::DigestList`].
    Close {
        /// The number of the round; 0 closes nothing and only asks.
        round: u64,
        /// The timestamp (clock word), inclusive.
        upto: u64,
        /// Whether the digests cover only records up to the timestamp, which takes a scan.
        by_scan: bool,
        /// The partitions; ascending.
        partitions: Vec<u16>,
    },
    /// Moves floors. Answered by [`Reply::Stepped`].
    Step {
        /// The direction.
        kind: StepKind,
        /// The number of the round.
        round: u64,
        /// The timestamp (clock word), inclusive.
        upto: u64,
        /// The partitions; ascending.
        partitions: Vec<u16>,
    },
    /// Asks for the peer's fence (how far it has sealed). Answered by [`Reply::FloorList`].
    Floors,
    /// Applies records that the peer lacked in a comparison. Answered by [`Reply::AppliedMany`].
    ApplyMany {
        /// How far the sender had settled (tombstone GC) in each of the records' partitions before it read them: a
        /// clock word.
        settled: u64,
        /// The records by their keys, each key once.
        records: Vec<(Key, Record)>,
    },
    /// Reads the next records in key order, for a bulk sync of the sender. Answered by [`Reply::Stretched`].
    Stretch {
        /// The partitions whose records are wanted; ascending.
        partitions: Vec<u16>,
        /// The last key that was read; none at the beginning.
        after: Option<Key>,
        /// About how many bytes of records to read, wanted or not.
        bytes: u32,
    },
}

/// An answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The record was applied.
    Applied(Applied),
    /// The replica's record of the key; none if it has no record of it.
    Found(Option<Held>),
    /// The version that a write to the key must exceed to be newest at the sender; zero for any.
    NewestIs(Version),
    /// The answer to a heartbeat.
    Pong {
        /// The time of day at the sender.
        wall: UnixMillis,
        /// The id of the sender's cluster; none while it knows none yet.
        cluster_id: Option<ClusterId>,
        /// The store and the run that the sender last saw of each node; at most [`ROSTER_LEN_MAX`].
        roster: Vec<StoreSeen>,
        /// Whether the sender's store is quorum-eligible.
        votes: bool,
    },
    /// All or some hints were delivered.
    HintsTaken {
        /// How many were delivered.
        delivered: u64,
        /// How many still wait.
        left: u64,
        /// The clock word of the highest version that the peer has seen in this run of its process.
        met: u64,
    },
    /// A part of a scan.
    ScanPart {
        /// The number for requests of the next part, on this connection.
        scan: u32,
        /// The rows, by key.
        rows: Vec<ScanRow>,
        /// Whether the scan ends here and is closed.
        is_last: bool,
    },
    /// The request was carried out.
    Done,
    /// Digests in the order of their partitions.
    DigestList(Vec<u64>),
    /// Digests by partition, ascending, of all stretches in which the two nodes differ.
    Compared(Vec<(u16, u64)>),
    /// Versions of a partition's keys.
    VersionList {
        /// The rows, by key.
        rows: Vec<VersionRow>,
        /// Whether the partition ends here.
        is_last: bool,
        /// The sender's tombstone GC floor for the partition.
        floor: Floor,
    },
    /// The sender's state at the beginning of a round.
    Surveyed {
        /// The clock word that all later timestamps of the sender exceed.
        reading: u64,
        /// The requested partitions for whose keys the sender keeps hints, ascending, each with a clock word at or
        /// below the oldest hint's.
        hinted: Vec<(u16, u64)>,
        /// Whether the sender's store is quorum-eligible.
        votes: bool,
        /// The digests of what the sender must have in common with the others, by partition.
        digests: Vec<u64>,
    },
    /// Whether the step was taken for all of its partitions.
    Stepped(bool),
    /// The replica's records of the first keys, as many as `bytes` allowed: at least one if any was asked for.
    Fetched {
        /// How far the sender had settled in each of their partitions before it read them: a clock word.
        settled: u64,
        /// The records, in the order of the request.
        records: Vec<Fetched>,
    },
    /// How far the sender has sealed, by partition: clock words.
    FloorList(Vec<u64>),
    /// The result for each record; none if the stored record of its key is damaged and cannot be compared.
    AppliedMany(Vec<Option<Applied>>),
    /// The records that were found in the stretch.
    Stretched {
        /// The last key that was read; none at the end of the store.
        last: Option<Key>,
        /// Whether records are so large that looking up the wanted ones is cheaper.
        is_large: bool,
        /// The wanted records, each after how far the sender had settled in its partition before it read the record.
        records: Vec<(u64, Key, Record)>,
    },
    /// The request was not carried out, or not completely: see the code.
    Refused {
        /// Why, for programs.
        code: Refusal,
        /// Why, for people; at most [`DETAIL_BYTES_MAX`].
        detail: String,
    },
}

fn newest_of(words: impl Iterator<Item = u64>) -> u64 {
    words.max().unwrap_or_default()
}

fn newest_of_floor(floor: Floor) -> u64 {
    floor.settled.max(floor.sealed).max(floor.purged)
}

fn newest_of_applied(applied: Option<Applied>) -> u64 {
    match applied {
        Some(Applied::Superseded { by, .. } | Applied::TooLate { upto: by }) => by.clock(),
        Some(Applied::Stored) | None => 0,
    }
}

impl Request {
    /// The byte that names this message.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Apply { .. } => kind::APPLY,
            Self::Get { .. } => kind::GET,
            Self::Ping { .. } => kind::PING,
            Self::TakeHints => kind::TAKE_HINTS,
            Self::ScanOpen { .. } => kind::SCAN_OPEN,
            Self::ScanNext { .. } => kind::SCAN_NEXT,
            Self::ScanClose { .. } => kind::SCAN_CLOSE,
            Self::Digests { .. } => kind::DIGESTS,
            Self::Versions { .. } => kind::VERSIONS,
            Self::Fetch { .. } => kind::FETCH,
            Self::Survey { .. } => kind::SURVEY,
            Self::Close { .. } => kind::CLOSE,
            Self::Step { .. } => kind::STEP,
            Self::Floors => kind::FLOORS,
            Self::ApplyMany { .. } => kind::APPLY_MANY,
            Self::Stretch { .. } => kind::STRETCH,
            Self::Compare { .. } => kind::COMPARE,
            Self::Newest { .. } => kind::NEWEST,
        }
    }

    /// The byte that names the reply to this request, unless it is refused.
    pub(super) fn reply_kind(&self) -> u8 {
        match self {
            Self::Apply { .. } => kind::APPLIED,
            Self::Get { .. } => kind::FOUND,
            Self::Ping { .. } => kind::PONG,
            Self::TakeHints => kind::HINTS_TAKEN,
            Self::ScanOpen { .. } | Self::ScanNext { .. } => kind::SCAN_PART,
            Self::ScanClose { .. } => kind::DONE,
            Self::Digests { .. } | Self::Close { .. } => kind::DIGEST_LIST,
            Self::Versions { .. } => kind::VERSION_LIST,
            Self::Fetch { .. } => kind::FETCHED,
            Self::Survey { .. } => kind::SURVEYED,
            Self::Step { .. } => kind::STEPPED,
            Self::Floors => kind::FLOOR_LIST,
            Self::ApplyMany { .. } => kind::APPLIED_MANY,
            Self::Stretch { .. } => kind::STRETCHED,
            Self::Compare { .. } => kind::COMPARED,
            Self::Newest { .. } => kind::NEWEST_IS,
        }
    }

    /// The highest timestamp in it, a clock word; 0 if it has none. Wall clocks, which are only compared, do not count.
    pub(super) fn newest(&self) -> u64 {
        match self {
            Self::Apply { record, .. } => record.version.clock(),
            Self::Versions { floor, .. } => newest_of_floor(*floor),
            Self::Survey { agreed, .. } => newest_of(agreed.iter().copied()),
            Self::Close { upto, .. } | Self::Step { upto, .. } => *upto,
            Self::ApplyMany { settled, records } => {
                newest_of(records.iter().map(|(_, record)| record.version.clock())).max(*settled)
            }
            Self::Get { .. }
            | Self::Newest { .. }
            | Self::Ping { .. }
            | Self::TakeHints
            | Self::ScanOpen { .. }
            | Self::ScanNext { .. }
            | Self::ScanClose { .. }
            | Self::Digests { .. }
            | Self::Compare { .. }
            | Self::Fetch { .. }
            | Self::Floors
            | Self::Stretch { .. } => 0,
        }
    }

    /// Writes the payload of a request that has `left` until its deadline; the time is sent in whole milliseconds,
    /// rounded up.
    pub(super) fn encode(&self, left: Duration, to: &mut Pieces) -> Result<(), MessageError> {
        let left_ms = left.as_nanos().div_ceil(1_000_000);
        to.short.put_u32(u32::try_from(left_ms).unwrap_or(u32::MAX));
        match self {
            Self::Apply { key, record, kind } => {
                to.short.put_u8(kind.code());
                put_key(to, key);
                put_record(to, record)?;
            }
            Self::Get { key, value_bytes_max } => {
                to.short.put_u32(*value_bytes_max);
                put_key(to, key);
            }
            Self::Ping { wall, cluster_id, roster } => {
                to.short.put_u64(wall.0);
                put_cluster_id(to, *cluster_id);
                put_roster(to, roster)?;
            }
            Self::TakeHints | Self::Floors => {}
            Self::ScanOpen { start, end, bytes, sources, ack, from } => {
                to.short.put_u32(*bytes);
                to.short.put_u16(*ack);
                to.short.put_u16(*from);
                put_key(to, start);
                put_key_or_none(to, end.as_ref());
                to.short.put_u16(count_u16(sources.len(), usize::from(u16::MAX))?);
                check_ascending(sources)?;
                for index in sources {
                    to.short.put_u16(*index);
                }
            }
            Self::ScanNext { scan, bytes } => {
                to.short.put_u32(*scan);
                to.short.put_u32(*bytes);
            }
            Self::ScanClose { scan } => to.short.put_u32(*scan),
            Self::Digests { first_partition, count } => {
                to.short.put_u16(*first_partition);
                to.short.put_u16(*count);
            }
            Self::Versions { partition, after, bytes, floor } => {
                to.short.put_u16(*partition);
                to.short.put_u32(*bytes);
                put_floor(to, *floor);
                put_key_or_none(to, after.as_ref());
            }
            Self::Fetch { keys, bytes } => {
                to.short.put_u32(*bytes);
                to.short.put_u16(count_u16(keys.len(), usize::from(u16::MAX))?);
                for key in keys {
                    put_key(to, key);
                }
            }
            Self::ApplyMany { settled, records } => {
                to.short.put_u64(*settled);
                to.short.put_u16(count_u16(records.len(), usize::from(u16::MAX))?);
                for (key, record) in records {
                    put_key(to, key);
                    put_record(to, record)?;
                }
            }
            Self::Stretch { partitions, after, bytes } => {
                to.short.put_u32(*bytes);
                put_key_or_none(to, after.as_ref());
                put_partitions(to, partitions)?;
            }
            Self::Compare { sums } => put_words(to, sums)?,
            Self::Newest { key } => put_key(to, key),
            Self::Survey { agreed, held_by } => {
                let (node, why) = held_by.map_or((NOBODY, 0), |(node, why)| (node, why.code()));
                to.short.put_u16(node);
                to.short.put_u8(why);
                put_words(to, agreed)?;
            }
            Self::Close { round, upto, by_scan, partitions } => {
                to.short.put_u64(*round);
                to.short.put_u64(*upto);
                to.short.put_u8(u8::from(*by_scan));
                put_partitions(to, partitions)?;
            }
            Self::Step { kind, round, upto, partitions } => {
                to.short.put_u8(kind.code());
                to.short.put_u64(*round);
                to.short.put_u64(*upto);
                put_partitions(to, partitions)?;
            }
        }
        Ok(())
    }

    /// The request in `frame`, and the time left until its deadline.
    pub(super) fn decode(frame: Frame) -> Result<(Self, Duration), MessageError> {
        let mut payload = frame.payload;
        let from = &mut payload;
        if !matches!(frame.kind, kind::APPLY..=kind::NEWEST) {
            return Err(MessageError::UnknownKind { kind: frame.kind });
        }
        let left = Duration::from_millis(u64::from(from.try_get_u32()?));
        let request = match frame.kind {
            kind::APPLY => {
                let kind = get_apply_kind(from)?;
                Self::Apply { key: get_key(from)?, record: get_record(from)?, kind }
            }
            kind::GET => Self::Get { value_bytes_max: from.try_get_u32()?, key: get_key(from)? },
            kind::PING => {
                let (wall, cluster_id) = (UnixMillis(from.try_get_u64()?), get_cluster_id(from)?);
                Self::Ping { wall, cluster_id, roster: get_roster(from)? }
            }
            kind::TAKE_HINTS => Self::TakeHints,
            kind::SCAN_OPEN => get_scan_open(from)?,
            kind::SCAN_NEXT => Self::ScanNext { scan: from.try_get_u32()?, bytes: from.try_get_u32()? },
            kind::SCAN_CLOSE => Self::ScanClose { scan: from.try_get_u32()? },
            kind::DIGESTS => {
                Self::Digests { first_partition: from.try_get_u16()?, count: from.try_get_u16()? }
            }
            kind::VERSIONS => Self::Versions {
                partition: from.try_get_u16()?,
                bytes: from.try_get_u32()?,
                floor: get_floor(from)?,
                after: get_key_or_none(from)?,
            },
            kind::FETCH => {
                let (bytes, count) = (from.try_get_u32()?, usize::from(from.try_get_u16()?));
                Self::Fetch { bytes, keys: get_list(from, count, KEY_BYTES_MIN, get_key)? }
            }
            kind::APPLY_MANY => {
                let (settled, count) = (from.try_get_u64()?, usize::from(from.try_get_u16()?));
                let record = |from: &mut Bytes| Ok((get_key(from)?, get_record(from)?));
                Self::ApplyMany {
                    settled,
                    records: get_list(from, count, KEY_BYTES_MIN + HELD_BYTES_MIN, record)?,
                }
            }
            kind::STRETCH => Self::Stretch {
                bytes: from.try_get_u32()?,
                after: get_key_or_none(from)?,
                partitions: get_partitions(from)?,
            },
            kind::COMPARE => Self::Compare { sums: get_words(from)? },
            kind::NEWEST => Self::Newest { key: get_key(from)? },
            kind::SURVEY => {
                let (node, why) = (from.try_get_u16()?, HeldBack::of_code(from.try_get_u8()?)?);
                if (node == NOBODY) != why.is_none() {
                    return Err(MessageError::Contradiction);
                }
                Self::Survey { held_by: why.map(|why| (node, why)), agreed: get_words(from)? }
            }
            kind::CLOSE => Self::Close {
                round: from.try_get_u64()?,
                upto: from.try_get_u64()?,
                by_scan: get_bool(from)?,
                partitions: get_partitions(from)?,
            },
            kind::STEP => Self::Step {
                kind: StepKind::of_code(from.try_get_u8()?)?,
                round: from.try_get_u64()?,
                upto: from.try_get_u64()?,
                partitions: get_partitions(from)?,
            },
            kind::FLOORS => Self::Floors,
            kind => return Err(MessageError::UnknownKind { kind }),
        };
        end(&payload)?;
        Ok((request, left))
    }
}

impl Reply {
    /// The byte that names this message.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Applied(_) => kind::APPLIED,
            Self::Found(_) => kind::FOUND,
            Self::Pong { .. } => kind::PONG,
            Self::HintsTaken { .. } => kind::HINTS_TAKEN,
            Self::ScanPart { .. } => kind::SCAN_PART,
            Self::Done => kind::DONE,
            Self::DigestList(_) => kind::DIGEST_LIST,
            Self::VersionList { .. } => kind::VERSION_LIST,
            Self::Surveyed { .. } => kind::SURVEYED,
            Self::Stepped(_) => kind::STEPPED,
            Self::Fetched { .. } => kind::FETCHED,
            Self::FloorList(_) => kind::FLOOR_LIST,
            Self::AppliedMany(_) => kind::APPLIED_MANY,
            Self::Stretched { .. } => kind::STRETCHED,
            Self::Compared(_) => kind::COMPARED,
            Self::NewestIs(_) => kind::NEWEST_IS,
            Self::Refused { .. } => kind::REFUSED,
        }
    }

    /// Writes the payload.
    pub(super) fn encode(&self, to: &mut Pieces) -> Result<(), MessageError> {
        match self {
            Self::Applied(applied) => put_applied(to, Some(*applied)),
            Self::Found(None) => to.short.put_u8(0),
            Self::Found(Some(held)) => {
                to.short.put_u8(1);
                put_held(to, held)?;
            }
            Self::Pong { wall, cluster_id, roster, votes } => {
                to.short.put_u64(wall.0);
                put_cluster_id(to, *cluster_id);
                to.short.put_u8(u8::from(*votes));
                put_roster(to, roster)?;
            }
            Self::HintsTaken { delivered, left, met } => {
                to.short.put_u64(*delivered);
                to.short.put_u64(*left);
                to.short.put_u64(*met);
            }
            Self::ScanPart { scan, rows, is_last } => {
                to.short.put_u32(*scan);
                to.short.put_u8(u8::from(*is_last));
                to.short.put_u32(count_u32(rows.len())?);
                for row in rows {
                    put_key(to, &row.key);
                    put_held(to, &row.held)?;
                }
            }
            Self::Done => {}
            Self::DigestList(words) | Self::FloorList(words) => put_words(to, words)?,
            Self::Compared(digests) => put_by_partition(to, digests)?,
            Self::NewestIs(version) => put_version(to, *version),
            Self::Surveyed { reading, hinted, votes, digests } => {
                to.short.put_u64(*reading);
                to.short.put_u8(u8::from(*votes));
                put_by_partition(to, hinted)?;
                put_words(to, digests)?;
            }
            Self::Stepped(is_done) => to.short.put_u8(u8::from(*is_done)),
            Self::Fetched { settled, records } => {
                to.short.put_u64(*settled);
                to.short.put_u16(count_u16(records.len(), usize::from(u16::MAX))?);
                records.iter().try_for_each(|fetched| put_fetched(to, fetched))?;
            }
            Self::AppliedMany(outcomes) => {
                to.short.put_u16(count_u16(outcomes.len(), usize::from(u16::MAX))?);
                for applied in outcomes {
                    put_applied(to, *applied);
                }
            }
            Self::Stretched { last, is_large, records } => {
                put_key_or_none(to, last.as_ref());
                to.short.put_u8(u8::from(*is_large));
                to.short.put_u32(count_u32(records.len())?);
                for (settled, key, record) in records {
                    to.short.put_u64(*settled);
                    put_key(to, key);
                    put_record(to, record)?;
                }
            }
            Self::VersionList { rows, is_last, floor } => {
                to.short.put_u8(u8::from(*is_last));
                put_floor(to, *floor);
                to.short.put_u32(count_u32(rows.len())?);
                for row in rows {
                    put_key(to, &row.key);
                    put_version(to, row.version);
                    to.short.put_u16(check_from(row.from)?);
                    to.short.put_u8(u8::from(row.is_tombstone));
                }
            }
            Self::Refused { code, detail } => {
                let detail = detail.get(..detail.floor_char_boundary(DETAIL_BYTES_MAX)).unwrap_or_default();
                to.short.put_u8(code.code());
                to.short.put_u16(count_u16(detail.len(), DETAIL_BYTES_MAX)?);
                to.short.put_slice(detail.as_bytes());
            }
        }
        Ok(())
    }

    /// The highest timestamp in it, a clock word; 0 if it has none.
    pub(super) fn newest(&self) -> u64 {
        match self {
            Self::Applied(applied) => newest_of_applied(Some(*applied)),
            Self::Found(held) => held.as_ref().map_or(0, Held::timestamp),
            Self::NewestIs(version) => version.clock(),
            Self::HintsTaken { met, .. } => *met,
            Self::ScanPart { rows, .. } => newest_of(rows.iter().map(|row| row.held.timestamp())),
            Self::VersionList { rows, floor, .. } => {
                newest_of(rows.iter().map(|row| row.version.clock())).max(newest_of_floor(*floor))
            }
            Self::Surveyed { reading, hinted, .. } => {
                newest_of(hinted.iter().map(|(_, oldest)| *oldest)).max(*reading)
            }
            Self::Fetched { settled, records } => {
                let word = |fetched: &Fetched| match fetched {
                    Fetched::Record(record) => record.version.clock(),
                    Fetched::Nothing | Fetched::Damaged => 0,
                };
                newest_of(records.iter().map(word)).max(*settled)
            }
            Self::FloorList(words) => newest_of(words.iter().copied()),
            Self::AppliedMany(outcomes) => newest_of(outcomes.iter().copied().map(newest_of_applied)),
            Self::Stretched { records, .. } => {
                newest_of(records.iter().map(|(settled, _, record)| record.version.clock().max(*settled)))
            }
            Self::Pong { .. }
            | Self::Done
            | Self::DigestList(_)
            | Self::Compared(_)
            | Self::Stepped(_)
            | Self::Refused { .. } => 0,
        }
    }

    /// Refuses a kind byte that belongs to no reply.
    pub(super) fn check_kind(kind: u8) -> Result<(), MessageError> {
        match kind {
            kind::APPLIED..=kind::SCAN_PART | kind::DONE..=kind::NEWEST_IS | kind::REFUSED => Ok(()),
            kind => Err(MessageError::UnknownKind { kind }),
        }
    }

    /// The reply in `frame`, which must be of the `expected` kind or a refusal.
    pub(super) fn decode(frame: Frame, expected: u8) -> Result<Self, MessageError> {
        Self::check_kind(frame.kind)?;
        if frame.kind != expected && frame.kind != kind::REFUSED {
            return Err(MessageError::WrongReply { kind: frame.kind });
        }
        let mut payload = frame.payload;
        let from = &mut payload;
        let reply = match frame.kind {
            kind::APPLIED => Self::Applied(get_applied(from)?),
            kind::FOUND => Self::Found(get_bool(from)?.then(|| get_held(from)).transpose()?),
            kind::PONG => {
                let (wall, cluster_id) = (UnixMillis(from.try_get_u64()?), get_cluster_id(from)?);
                Self::Pong { wall, cluster_id, votes: get_bool(from)?, roster: get_roster(from)? }
            }
            kind::HINTS_TAKEN => Self::HintsTaken {
                delivered: from.try_get_u64()?,
                left: from.try_get_u64()?,
                met: from.try_get_u64()?,
            },
            kind::SCAN_PART => {
                let (scan, is_last) = (from.try_get_u32()?, get_bool(from)?);
                let count = from.try_get_u32()? as usize;
                let row = |from: &mut Bytes| Ok(ScanRow { key: get_key(from)?, held: get_held(from)? });
                Self::ScanPart {
                    scan,
                    is_last,
                    rows: get_list(from, count, KEY_BYTES_MIN + HELD_BYTES_MIN, row)?,
                }
            }
            kind::DONE => Self::Done,
            kind::DIGEST_LIST => Self::DigestList(get_words(from)?),
            kind::FLOOR_LIST => Self::FloorList(get_words(from)?),
            kind::COMPARED => Self::Compared(get_by_partition(from)?),
            kind::NEWEST_IS => Self::NewestIs(get_version(from)?),
            kind::SURVEYED => Self::Surveyed {
                reading: from.try_get_u64()?,
                votes: get_bool(from)?,
                hinted: get_by_partition(from)?,
                digests: get_words(from)?,
            },
            kind::STEPPED => Self::Stepped(get_bool(from)?),
            kind::FETCHED => {
                let (settled, count) = (from.try_get_u64()?, usize::from(from.try_get_u16()?));
                Self::Fetched { settled, records: get_list(from, count, 1, get_fetched)? }
            }
            kind::APPLIED_MANY => {
                let count = usize::from(from.try_get_u16()?);
                Self::AppliedMany(get_list(from, count, 1, get_applied_or_damaged)?)
            }
            kind::STRETCHED => {
                let (last, is_large) = (get_key_or_none(from)?, get_bool(from)?);
                let count = from.try_get_u32()? as usize;
                let record = |from: &mut Bytes| Ok((from.try_get_u64()?, get_key(from)?, get_record(from)?));
                let bytes_min = 8 + KEY_BYTES_MIN + HELD_BYTES_MIN;
                Self::Stretched { last, is_large, records: get_list(from, count, bytes_min, record)? }
            }
            kind::VERSION_LIST => {
                let (is_last, floor) = (get_bool(from)?, get_floor(from)?);
                let count = from.try_get_u32()? as usize;
                Self::VersionList {
                    is_last,
                    floor,
                    rows: get_list(from, count, VERSION_ROW_BYTES_MIN, get_version_row)?,
                }
            }
            kind::REFUSED => {
                let code = Refusal::of_code(from.try_get_u8()?);
                let length = usize::from(from.try_get_u16()?);
                if length > DETAIL_BYTES_MAX {
                    return Err(MessageError::TooMany { count: length, count_max: DETAIL_BYTES_MAX });
                }
                let detail = get_bytes(from, length)?;
                let detail = std::str::from_utf8(&detail).map_err(|_| MessageError::Text)?.to_owned();
                Self::Refused { code, detail }
            }
            kind => return Err(MessageError::UnknownKind { kind }),
        };
        end(&payload)?;
        Ok(reply)
    }
}
