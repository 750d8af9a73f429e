//! Messages: what nodes ask of each other, and every byte of it.
//!
//! Integers are big-endian. The frame around a payload is [`super::frame`]'s.
//!
//! | kind | request | payload behind the deadline |
//! | --- | --- | --- |
//! | 0x01 | `Apply` | cause (1), key, record |
//! | 0x02 | `Get` | longest value to send, in bytes (4), key |
//! | 0x03 | `Ping` | wall clock in Unix milliseconds (8), roster |
//! | 0x04 | `TakeHints` | nothing |
//! | 0x05 | `ScanOpen` | bytes per part (4), `ack` (2), `from` (2), start key, end key or none, count (2), that many node indexes (2 each), ascending |
//! | 0x06 | `ScanNext` | scan (4), bytes per part (4) |
//! | 0x07 | `ScanClose` | scan (4) |
//! | 0x08 | `Digests` | first partition (2), count (2) |
//! | 0x09 | `Versions` | partition (2), bytes per list (4), floor, key to begin behind or none |
//! | 0x0a | `Fetch` | bytes (4), count (2), that many keys |
//! | 0x0b | `Survey` | held by: node index or 0xffff (2), why (1), count (2), that many clock words (8 each) |
//! | 0x0c | `Close` | round (8), up to (8), by scan: 0 or 1 (1), partitions |
//! | 0x0d | `Step` | step (1), round (8), up to (8), partitions |
//! | 0x0e | `Floors` | nothing |
//! | 0x0f | `ApplyMany` | settled (8), count (2), that many of: key, record |
//!
//! Every request's payload begins with its deadline: the milliseconds that are left when it is sent (4).
//!
//! | kind | reply | to | payload |
//! | --- | --- | --- | --- |
//! | 0x81 | `Applied` | `Apply` | 0 for stored; or 1 for superseded (1), the newer version (16) |
//! | 0x82 | `Found` | `Get` | 0 for nothing; or 1 (1), held |
//! | 0x83 | `Pong` | `Ping` | wall clock in Unix milliseconds (8), votes: 0 or 1 (1), roster |
//! | 0x84 | `HintsTaken` | `TakeHints` | delivered (8), left (8), met (8) |
//! | 0x85 | `ScanPart` | `ScanOpen`, `ScanNext` | scan (4), is last: 0 or 1 (1), count (4), that many of: key, held |
//! | 0x87 | `Done` | `ScanClose` | nothing |
//! | 0x88 | `DigestList` | `Digests`, `Close` | count (2), that many digests (8 each) |
//! | 0x89 | `VersionList` | `Versions` | is last: 0 or 1 (1), floor, count (4), that many of: key, version (16), `from` (2), is tombstone: 0 or 1 (1) |
//! | 0x8a | `Surveyed` | `Survey` | clock word of its latest reading (8), votes: 0 or 1 (1), hinted, count (2), that many digests (8 each) |
//! | 0x8b | `Stepped` | `Step` | done: 0 or 1 (1) |
//! | 0x8c | `Fetched` | `Fetch` | settled (8), count (2), that many of: 0 for nothing, 2 for damaged; or 1 (1), record |
//! | 0x8d | `FloorList` | `Floors` | count (2), that many clock words (8 each) |
//! | 0x8e | `AppliedMany` | `ApplyMany` | count (2), that many of: 0 for stored, 2 for damaged; or 1 for superseded (1), the newer version (16) |
//! | 0xff | `Refused` | any | code (1), length (2), that many bytes of UTF-8 |
//!
//! | part | layout |
//! | --- | --- |
//! | key | length (2), bytes; a key that may be missing has length 0 then |
//! | version | 48 bits Unix milliseconds and 16 bits counter (8), node id (8) |
//! | record | flags: 1 tombstone, 2 has expiry (1); version (16); `from` (2); with flag 2 expiry in Unix milliseconds (8); without flag 1 the value's length (4) and bytes |
//! | held | a record; or with flag 4 one whose value's length is given, but not its bytes |
//! | roster | count (2), that many of: node id (8), store id (16) |
//! | floor | settled (8), sealed (8), purged (8): clock words |
//! | clock word | 48 bits Unix milliseconds and 16 bits counter (8) |
//! | partitions | count (2), that many partitions (2 each), ascending |
//! | hinted | count (2), that many of: partition (2), clock word (8); partitions ascending |
//! | step | 0 settle, 1 seal, 2 release |
//! | why | 0 nothing, 1 away, 2 does not vote, 3 holds hints, 4 differs |
//! | cause | 0 write, 1 hint, 2 read repair |
//! | code | 0 unknown, 1 overloaded, 2 disk full, 3 failed, 4 not voting, 5 stopped, 6 starting, 7 damaged; any other is read as 0 |
//!
//! Each message has one encoding only, and bytes behind it are refused. What a reader refuses, the writer refuses
//! too. Keys and values share the bytes of the frame that they came in, and keep as much of what was read alive:
//! whoever keeps one for long makes a copy.

use super::fields::{
    HELD_BYTES_MIN, KEY_BYTES_MIN, VERSION_ROW_BYTES_MIN, check_ascending, check_from, count_u16, count_u32,
    end, get_applied, get_applied_or_damaged, get_apply_kind, get_bool, get_bytes, get_fetched, get_floor,
    get_held, get_hinted, get_key, get_key_or_none, get_list, get_partitions, get_record, get_roster,
    get_scan_open, get_version_row, get_words, put_applied, put_fetched, put_floor, put_held, put_hinted,
    put_key, put_key_or_none, put_partitions, put_record, put_roster, put_version, put_words,
};
use super::frame::{Frame, Pieces};
use crate::replica::{Applied, Fetched, Floor};
use bytes::{Buf, BufMut, Bytes, TryGetError};
use kvorum_core::{Key, KeyError, NodeId, Record, UnixMillis, Value, Version};
use std::fmt;
use std::time::Duration;

/// The most nodes that a roster names: no cluster is larger.
pub const ROSTER_LEN_MAX: usize = 1024;
/// The most text that goes with a refusal, in bytes; more is cut.
pub const DETAIL_BYTES_MAX: usize = 512;

/// The node index that names no node.
const NOBODY: u16 = u16::MAX;

/// The kind bytes.
mod kind {
    pub(super) const APPLY: u8 = 0x01;
    pub(super) const GET: u8 = 0x02;
    pub(super) const PING: u8 = 0x03;
    pub(super) const TAKE_HINTS: u8 = 0x04;
    pub(super) const SCAN_OPEN: u8 = 0x05;
    pub(super) const SCAN_NEXT: u8 = 0x06;
    pub(super) const SCAN_CLOSE: u8 = 0x07;
    pub(super) const DIGESTS: u8 = 0x08;
    pub(super) const VERSIONS: u8 = 0x09;
    pub(super) const FETCH: u8 = 0x0a;
    pub(super) const SURVEY: u8 = 0x0b;
    pub(super) const CLOSE: u8 = 0x0c;
    pub(super) const STEP: u8 = 0x0d;
    pub(super) const FLOORS: u8 = 0x0e;
    pub(super) const APPLY_MANY: u8 = 0x0f;
    pub(super) const APPLIED: u8 = 0x81;
    pub(super) const FOUND: u8 = 0x82;
    pub(super) const PONG: u8 = 0x83;
    pub(super) const HINTS_TAKEN: u8 = 0x84;
    pub(super) const SCAN_PART: u8 = 0x85;
    pub(super) const DONE: u8 = 0x87;
    pub(super) const DIGEST_LIST: u8 = 0x88;
    pub(super) const VERSION_LIST: u8 = 0x89;
    pub(super) const SURVEYED: u8 = 0x8a;
    pub(super) const STEPPED: u8 = 0x8b;
    pub(super) const FETCHED: u8 = 0x8c;
    pub(super) const FLOOR_LIST: u8 = 0x8d;
    pub(super) const APPLIED_MANY: u8 = 0x8e;
    pub(super) const REFUSED: u8 = 0xff;
}

/// This is what one node asks of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Applies a record to the peer's replica. Answered by [`Reply::Applied`].
    Apply {
        /// The record's key.
        key: Key,
        /// What to apply.
        record: Record,
        /// What brought it about.
        kind: ApplyKind,
    },
    /// Reads what the peer's replica holds of a key. Answered by [`Reply::Found`].
    Get {
        /// The key.
        key: Key,
        /// The longest value that is wanted, in bytes; of a longer one, only the header comes.
        value_bytes_max: u32,
    },
    /// Asks for a sign of life. Answered by [`Reply::Pong`].
    Ping {
        /// The time of day at the sender.
        wall: UnixMillis,
        /// The store that each node was last seen with; at most [`ROSTER_LEN_MAX`].
        roster: Vec<(NodeId, u128)>,
    },
    /// Asks for the hints that the peer keeps for this node. Answered by [`Reply::HintsTaken`].
    TakeHints,
    /// Opens a scan of the peer's replica. Answered by [`Reply::ScanPart`].
    ScanOpen {
        /// The first key.
        start: Key,
        /// The key to end before; none for all later ones.
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
        /// How many.
        count: u16,
    },
    /// Asks for the versions of a partition's keys. Answered by [`Reply::VersionList`].
    Versions {
        /// The partition.
        partition: u16,
        /// The last key of the list before; none for the first list.
        after: Option<Key>,
        /// About how many bytes the list may have.
        bytes: u32,
        /// How far the partition's past is finished at the sender.
        floor: Floor,
    },
    /// Reads records to copy them: answered whether or not the peer's store votes. Answered by [`Reply::Fetched`].
    Fetch {
        /// The keys.
        keys: Vec<Key>,
        /// About how many bytes of keys and values the answer may have.
        bytes: u32,
    },
    /// Begins a round over the partitions in which the sender comes first. Answered by [`Reply::Surveyed`].
    Survey {
        /// Up to where all nodes were found to agree, in each of these partitions: clock words.
        agreed: Vec<u64>,
        /// Which node holds the sender's partitions back, and why.
        held_by: Option<(u16, HeldBack)>,
    },
    /// Lets nothing more in below a clock word, and asks for what the peer must have in common with the others.
    /// Answered by [`Reply::DigestList`].
    Close {
        /// Names the round; 0 closes nothing and only asks.
        round: u64,
        /// The clock word, inclusive.
        upto: u64,
        /// Whether only what is not above it is asked for, which takes a scan.
        by_scan: bool,
        /// The partitions; ascending.
        partitions: Vec<u16>,
    },
    /// Moves floors. Answered by [`Reply::Stepped`].
    Step {
        /// Which way.
        kind: StepKind,
        /// Names the round.
        round: u64,
        /// The clock word, inclusive.
        upto: u64,
        /// The partitions; ascending.
        partitions: Vec<u16>,
    },
    /// Asks how far the peer has sealed. Answered by [`Reply::FloorList`].
    Floors,
    /// Applies records that a comparison found the peer to lack. Answered by [`Reply::AppliedMany`].
    ApplyMany {
        /// How far the sender had settled before it read the records, in each of their partitions: a clock word.
        settled: u64,
        /// The records by their keys, each key once.
        records: Vec<(Key, Record)>,
    },
}

/// This is an answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The record was applied.
    Applied(Applied),
    /// What the replica holds of the key; none when it has never heard of it.
    Found(Option<Held>),
    /// A sign of life.
    Pong {
        /// The time of day at the sender.
        wall: UnixMillis,
        /// The store that each node was last seen with; at most [`ROSTER_LEN_MAX`].
        roster: Vec<(NodeId, u128)>,
        /// Whether its answers count in quorums.
        votes: bool,
    },
    /// Hints were delivered, or some were.
    HintsTaken {
        /// How many were.
        delivered: u64,
        /// How many still wait.
        left: u64,
        /// The clock word of the highest version that the peer has met in this life.
        met: u64,
    },
    /// A part of a scan.
    ScanPart {
        /// The number by which the next part is asked for, on this connection.
        scan: u32,
        /// The rows, by key.
        rows: Vec<ScanRow>,
        /// Whether the scan ends here and is closed.
        is_last: bool,
    },
    /// It was done.
    Done,
    /// Digests in the order of their partitions.
    DigestList(Vec<u64>),
    /// Versions of a partition's keys.
    VersionList {
        /// The rows, by key.
        rows: Vec<VersionRow>,
        /// Whether the partition ends here.
        is_last: bool,
        /// How far the partition's past is finished at the sender.
        floor: Floor,
    },
    /// How the sender stands at the beginning of a round.
    Surveyed {
        /// What it stamps from now on is above this clock word.
        reading: u64,
        /// The partitions of those asked for of whose keys it keeps hints, ascending, each with a clock word at or below
        /// that of the oldest.
        hinted: Vec<(u16, u64)>,
        /// Whether its store votes.
        votes: bool,
        /// What it must have in common with the others, by partition.
        digests: Vec<u64>,
    },
    /// Whether a step was taken for all of its partitions.
    Stepped(bool),
    /// What the replica holds of the first of the keys, as many as the bytes allowed: of one at least, if any was asked.
    Fetched {
        /// How far it had settled before they were read, in each of their partitions: a clock word.
        settled: u64,
        /// What it holds, in the order in which it was asked.
        records: Vec<Fetched>,
    },
    /// How far the sender has sealed, by partition: clock words.
    FloorList(Vec<u64>),
    /// What became of each record; none where what is stored of its key is damaged and cannot be judged.
    AppliedMany(Vec<Option<Applied>>),
    /// It was not done, or not wholly: see the code.
    Refused {
        /// Why, for programs.
        code: Refusal,
        /// Why, for people; at most [`DETAIL_BYTES_MAX`].
        detail: String,
    },
}

/// This says what brought an apply about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyKind {
    /// A client's write.
    Write,
    /// A hint's delivery.
    Hint,
    /// A read that saw something older.
    ReadRepair,
}

/// This says which way floors are moved: see [`crate::replica::FloorStep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// All nodes hold the same.
    Settle,
    /// All nodes have settled.
    Seal,
    /// All nodes have sealed.
    Release,
}

/// This says why a node holds the watermark back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBack {
    /// It does not answer.
    Away,
    /// Its store does not vote.
    NotVoting,
    /// It keeps hints that others have not taken.
    Hints,
    /// It holds something else.
    Differs,
}

/// This says why a peer did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A bounded queue is full. Nothing was done; a retry can help.
    Overloaded,
    /// The disk is full. For a write it is unknown whether it took effect.
    DiskFull,
    /// The store failed. For a write it is unknown whether it took effect.
    Failed,
    /// The peer does not take part in quorums now.
    NotVoting,
    /// The peer is shutting down.
    Stopped,
    /// The peer is not ready yet.
    Starting,
    /// What the peer has of it is damaged and cannot be read; it is healed where another node has it.
    Damaged,
    /// Something that this release has no name for.
    Unknown,
}

/// This is a record as one replica holds it, with or without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// All of it.
    Whole(Record),
    /// All but the value, which is longer than was wanted.
    HeaderOnly {
        /// The record's version.
        version: Version,
        /// The replica count that it was written with.
        from: u16,
        /// Its expiry instant.
        expires: Option<UnixMillis>,
        /// The value's length, in bytes.
        value_bytes: u32,
    },
}

/// This is one key of a scan's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRow {
    /// The key.
    pub key: Key,
    /// What the replica holds of it.
    pub held: Held,
}

/// This is one key of a version list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// The key.
    pub key: Key,
    /// The version of what the replica holds of it.
    pub version: Version,
    /// The replica count that it was written with.
    pub from: u16,
    /// Whether it is a tombstone.
    pub is_tombstone: bool,
}

/// This says why bytes are not a message, or why a message has no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageError {
    /// A kind byte of no message that is expected here.
    UnknownKind {
        /// The byte.
        kind: u8,
    },
    /// A reply that does not answer what was asked.
    WrongReply {
        /// The reply's kind byte.
        kind: u8,
    },
    /// The payload ends too early.
    Truncated,
    /// The payload goes on too long.
    Trailing {
        /// The bytes too many.
        bytes: usize,
    },
    /// A key of no allowed length.
    Key(KeyError),
    /// A flag, cause or truth value that there is none of.
    UnknownValue {
        /// The byte.
        value: u8,
    },
    /// A record that contradicts itself: a tombstone with a value, or a `from` of 0.
    Contradiction,
    /// More of something than there may be.
    TooMany {
        /// How many.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
    /// Node indexes that do not ascend.
    Unsorted,
    /// Text that is not UTF-8.
    Text,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKind { kind } => write!(f, "messages of kind {kind:#04x} are not known here"),
            Self::WrongReply { kind } => write!(f, "a reply of kind {kind:#04x} does not answer the request"),
            Self::Truncated => f.write_str("a message ends too early"),
            Self::Trailing { bytes } => write!(f, "a message has {bytes} bytes too many"),
            Self::Key(error) => write!(f, "a message has a bad key: {error}"),
            Self::UnknownValue { value } => write!(f, "a message has a byte {value:#04x} without meaning"),
            Self::Contradiction => f.write_str("a record in a message contradicts itself"),
            Self::TooMany { count, count_max } => {
                write!(f, "a message has a list of {count}, more than {count_max}")
            }
            Self::Unsorted => f.write_str("node indexes in a message do not ascend"),
            Self::Text => f.write_str("a text in a message is not UTF-8"),
        }
    }
}

impl std::error::Error for MessageError {}

impl From<TryGetError> for MessageError {
    fn from(_: TryGetError) -> Self {
        Self::Truncated
    }
}

impl From<KeyError> for MessageError {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
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
        }
    }

    /// The byte that names the message that answers this one, unless it is refused.
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
        }
    }

    /// Writes the payload of a request that has `left` until its deadline, in whole milliseconds, rounded up.
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
            Self::Ping { wall, roster } => {
                to.short.put_u64(wall.0);
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

    /// The request in `frame`, and what is left until its deadline.
    pub(super) fn decode(frame: Frame) -> Result<(Self, Duration), MessageError> {
        let mut payload = frame.payload;
        let from = &mut payload;
        if !matches!(frame.kind, kind::APPLY..=kind::APPLY_MANY) {
            return Err(MessageError::UnknownKind { kind: frame.kind });
        }
        let left = Duration::from_millis(u64::from(from.try_get_u32()?));
        let request = match frame.kind {
            kind::APPLY => {
                let kind = get_apply_kind(from)?;
                Self::Apply { key: get_key(from)?, record: get_record(from)?, kind }
            }
            kind::GET => Self::Get { value_bytes_max: from.try_get_u32()?, key: get_key(from)? },
            kind::PING => Self::Ping { wall: UnixMillis(from.try_get_u64()?), roster: get_roster(from)? },
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
            Self::Pong { wall, roster, votes } => {
                to.short.put_u64(wall.0);
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
            Self::Surveyed { reading, hinted, votes, digests } => {
                to.short.put_u64(*reading);
                to.short.put_u8(u8::from(*votes));
                put_hinted(to, hinted)?;
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

    /// Refuses a kind byte that no reply has.
    pub(super) fn check_kind(kind: u8) -> Result<(), MessageError> {
        match kind {
            kind::APPLIED..=kind::SCAN_PART | kind::DONE..=kind::APPLIED_MANY | kind::REFUSED => Ok(()),
            kind => Err(MessageError::UnknownKind { kind }),
        }
    }

    /// The reply in `frame`, which must be one of `expected` kind or a refusal.
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
                let (wall, votes) = (UnixMillis(from.try_get_u64()?), get_bool(from)?);
                Self::Pong { wall, votes, roster: get_roster(from)? }
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
            kind::SURVEYED => Self::Surveyed {
                reading: from.try_get_u64()?,
                votes: get_bool(from)?,
                hinted: get_hinted(from)?,
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

impl ApplyKind {
    /// How many causes there are.
    pub const COUNT: usize = 3;

    fn code(self) -> u8 {
        match self {
            Self::Write => 0,
            Self::Hint => 1,
            Self::ReadRepair => 2,
        }
    }

    /// The place of this cause in lists by cause.
    pub fn index(self) -> usize {
        usize::from(self.code())
    }
}

impl StepKind {
    fn code(self) -> u8 {
        match self {
            Self::Settle => 0,
            Self::Seal => 1,
            Self::Release => 2,
        }
    }

    fn of_code(code: u8) -> Result<Self, MessageError> {
        Ok(match code {
            0 => Self::Settle,
            1 => Self::Seal,
            2 => Self::Release,
            value => return Err(MessageError::UnknownValue { value }),
        })
    }
}

impl HeldBack {
    fn code(self) -> u8 {
        match self {
            Self::Away => 1,
            Self::NotVoting => 2,
            Self::Hints => 3,
            Self::Differs => 4,
        }
    }

    fn of_code(code: u8) -> Result<Option<Self>, MessageError> {
        Ok(Some(match code {
            0 => return Ok(None),
            1 => Self::Away,
            2 => Self::NotVoting,
            3 => Self::Hints,
            4 => Self::Differs,
            value => return Err(MessageError::UnknownValue { value }),
        }))
    }
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Overloaded => 1,
            Self::DiskFull => 2,
            Self::Failed => 3,
            Self::NotVoting => 4,
            Self::Stopped => 5,
            Self::Starting => 6,
            Self::Damaged => 7,
        }
    }

    fn of_code(code: u8) -> Self {
        match code {
            1 => Self::Overloaded,
            2 => Self::DiskFull,
            3 => Self::Failed,
            4 => Self::NotVoting,
            5 => Self::Stopped,
            6 => Self::Starting,
            7 => Self::Damaged,
            _ => Self::Unknown,
        }
    }
}

impl Held {
    /// `record`, without its value if that is longer than `value_bytes_max`.
    pub fn new(record: Record, value_bytes_max: u32) -> Self {
        match &record.value {
            Value::Present(value) if value.len() > value_bytes_max as usize => Self::HeaderOnly {
                version: record.version,
                from: record.from,
                expires: record.expires,
                value_bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
            },
            _ => Self::Whole(record),
        }
    }

    /// The record's version.
    pub fn version(&self) -> Version {
        match self {
            Self::Whole(record) => record.version,
            Self::HeaderOnly { version, .. } => *version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        prop::collection::vec(any::<u8>(), 1..20).prop_map(|bytes| Key::new(bytes).unwrap())
    }

    fn version() -> impl Strategy<Value = Version> {
        any::<(u64, u64)>().prop_map(|(clock, node)| Version::from_words(clock, node))
    }

    fn record() -> impl Strategy<Value = Record> {
        let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        (version(), 1u16.., prop::option::of(any::<u64>()), value).prop_map(
            |(version, from, expires, value)| {
                let value = value.map_or(Value::Tombstone, |bytes| Value::Present(bytes.into()));
                Record { version, from, expires: expires.map(UnixMillis), value }
            },
        )
    }

    fn held() -> impl Strategy<Value = Held> {
        prop_oneof![
            record().prop_map(Held::Whole),
            (record(), any::<u32>()).prop_map(|(record, value_bytes)| Held::HeaderOnly {
                version: record.version,
                from: record.from,
                expires: record.expires,
                value_bytes
            })
        ]
    }

    fn roster() -> impl Strategy<Value = Vec<(NodeId, u128)>> {
        prop::collection::vec(any::<(u64, u128)>().prop_map(|(node, store)| (NodeId(node), store)), 0..5)
    }

    fn apply_kind() -> impl Strategy<Value = ApplyKind> {
        prop_oneof![Just(ApplyKind::Write), Just(ApplyKind::Hint), Just(ApplyKind::ReadRepair)]
    }

    fn floor() -> impl Strategy<Value = Floor> {
        any::<[u64; 3]>().prop_map(|[settled, sealed, purged]| Floor { settled, sealed, purged })
    }

    fn held_by() -> impl Strategy<Value = Option<(u16, HeldBack)>> {
        let why = (1..5u8).prop_map(|code| HeldBack::of_code(code).unwrap().unwrap());
        prop::option::of((0..NOBODY, why))
    }

    fn partitions() -> impl Strategy<Value = Vec<u16>> {
        prop::collection::btree_set(any::<u16>(), 0..5).prop_map(|set| set.into_iter().collect())
    }

    fn words() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(any::<u64>(), 0..5)
    }

    fn request() -> impl Strategy<Value = Request> {
        let sources = prop::collection::btree_set(any::<u16>(), 0..5);
        prop_oneof![
            (key(), record(), apply_kind()).prop_map(|(key, record, kind)| Request::Apply {
                key,
                record,
                kind
            }),
            (key(), any::<u32>()).prop_map(|(key, value_bytes_max)| Request::Get { key, value_bytes_max }),
            (any::<u64>(), roster())
                .prop_map(|(wall, roster)| Request::Ping { wall: UnixMillis(wall), roster }),
            Just(Request::TakeHints),
            (prop::collection::vec(key(), 0..4), any::<u32>())
                .prop_map(|(keys, bytes)| Request::Fetch { keys, bytes }),
            (any::<u64>(), prop::collection::vec((key(), record()), 0..4))
                .prop_map(|(settled, records)| Request::ApplyMany { settled, records }),
            (key(), prop::option::of(key()), any::<u32>(), sources, any::<(u16, u16)>()).prop_map(
                |(start, end, bytes, sources, (ack, from))| {
                    let sources = sources.into_iter().collect();
                    Request::ScanOpen { start, end, bytes, sources, ack, from }
                }
            ),
            any::<(u32, u32)>().prop_map(|(scan, bytes)| Request::ScanNext { scan, bytes }),
            any::<u32>().prop_map(|scan| Request::ScanClose { scan }),
            any::<(u16, u16)>()
                .prop_map(|(first_partition, count)| Request::Digests { first_partition, count }),
            (any::<u16>(), prop::option::of(key()), any::<u32>(), floor()).prop_map(
                |(partition, after, bytes, floor)| Request::Versions { partition, after, bytes, floor }
            ),
            (words(), held_by()).prop_map(|(agreed, held_by)| Request::Survey { agreed, held_by }),
            (any::<(u64, u64)>(), any::<bool>(), partitions()).prop_map(
                |((round, upto), by_scan, partitions)| Request::Close { round, upto, by_scan, partitions }
            ),
            (0..3u8, any::<(u64, u64)>(), partitions()).prop_map(|(code, (round, upto), partitions)| {
                Request::Step { kind: StepKind::of_code(code).unwrap(), round, upto, partitions }
            }),
            Just(Request::Floors),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let scan_row = (key(), held()).prop_map(|(key, held)| ScanRow { key, held });
        let version_row = (key(), version(), 1u16.., any::<bool>())
            .prop_map(|(key, version, from, is_tombstone)| VersionRow { key, version, from, is_tombstone });
        let fetched =
            prop_oneof![Just(Fetched::Nothing), record().prop_map(Fetched::Record), Just(Fetched::Damaged)];
        let hinted = prop::collection::btree_map(any::<u16>(), any::<u64>(), 0..4);
        let applied = prop_oneof![
            Just(None),
            Just(Some(Applied::Stored)),
            version().prop_map(|by| Some(Applied::Superseded { by }))
        ];
        prop_oneof![
            Just(Reply::Applied(Applied::Stored)),
            version().prop_map(|by| Reply::Applied(Applied::Superseded { by })),
            prop::option::of(held()).prop_map(Reply::Found),
            (any::<u64>(), roster(), any::<bool>()).prop_map(|(wall, roster, votes)| Reply::Pong {
                wall: UnixMillis(wall),
                roster,
                votes
            }),
            any::<(u64, u64, u64)>().prop_map(|(delivered, left, met)| Reply::HintsTaken {
                delivered,
                left,
                met
            }),
            (any::<u32>(), prop::collection::vec(scan_row, 0..4), any::<bool>())
                .prop_map(|(scan, rows, is_last)| Reply::ScanPart { scan, rows, is_last }),
            Just(Reply::Done),
            words().prop_map(Reply::DigestList),
            words().prop_map(Reply::FloorList),
            any::<bool>().prop_map(Reply::Stepped),
            (any::<u64>(), prop::collection::vec(fetched, 0..4))
                .prop_map(|(settled, records)| Reply::Fetched { settled, records }),
            prop::collection::vec(applied, 0..4).prop_map(Reply::AppliedMany),
            (any::<u64>(), hinted, any::<bool>(), words()).prop_map(|(reading, hinted, votes, digests)| {
                Reply::Surveyed { reading, hinted: hinted.into_iter().collect(), votes, digests }
            }),
            (prop::collection::vec(version_row, 0..4), any::<bool>(), floor())
                .prop_map(|(rows, is_last, floor)| Reply::VersionList { rows, is_last, floor }),
            (0..7u8, ".{0,20}")
                .prop_map(|(code, detail)| Reply::Refused { code: Refusal::of_code(code), detail }),
        ]
    }

    fn payload(encode: impl FnOnce(&mut Pieces) -> Result<(), MessageError>) -> Bytes {
        let mut pieces = Pieces::default();
        encode(&mut pieces).unwrap();
        pieces.short.freeze()
    }

    fn frame(kind: u8, payload: Bytes) -> Frame {
        Frame { kind, id: 0, payload }
    }

    /// Sets one byte, or cuts, so that most of what is tried is nearly right.
    fn changed(bytes: &Bytes, at: usize, to: u8, cut: bool) -> Bytes {
        let mut bytes = bytes.to_vec();
        let at = at % (bytes.len() + 1);
        if cut {
            bytes.truncate(at);
        } else if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        } else {
            bytes.push(to);
        }
        bytes.into()
    }

    proptest! {
        /// Every request is read as it was written, and so is what is left until its deadline.
        #[test]
        fn requests_round_trip(request in request(), left_ms: u32) {
            let left = Duration::from_millis(u64::from(left_ms));
            let payload = payload(|to| request.encode(left, to));
            prop_assert_eq!(Request::decode(frame(request.kind(), payload)), Ok((request, left)));
        }

        /// Every reply is read as it was written.
        #[test]
        fn replies_round_trip(reply in reply()) {
            let payload = payload(|to| reply.encode(to));
            prop_assert_eq!(Reply::decode(frame(reply.kind(), payload), reply.kind()), Ok(reply));
        }

        /// Bytes that are nearly a message are refused, or are the only encoding of what they are read as.
        #[test]
        fn near_messages_are_refused_or_exact(
            request in request(),
            reply in reply(),
            at in 0..200usize,
            to: u8,
            small: bool,
            cut: bool,
        ) {
            let to = if small { to % 8 } else { to };
            let bytes = changed(&payload(|to| request.encode(Duration::ZERO, to)), at, to, cut);
            if let Ok((read, left)) = Request::decode(frame(request.kind(), bytes.clone())) {
                prop_assert_eq!(payload(|to| read.encode(left, to)), bytes);
            }
            let bytes = changed(&payload(|to| reply.encode(to)), at, to, cut);
            if let Ok(read) = Reply::decode(frame(reply.kind(), bytes.clone()), reply.kind()) {
                // Reasons of later releases are read as unknown.
                let is_newer = matches!(&read, Reply::Refused { code: Refusal::Unknown, .. });
                prop_assert!(is_newer || payload(|to| read.encode(to)) == bytes);
            }
        }

        /// No bytes can do worse than be refused.
        #[test]
        fn any_bytes_are_refused_or_exact(kind: u8, bytes in prop::collection::vec(0..6u8, 0..80)) {
            let bytes = Bytes::from(bytes);
            if let Ok((read, left)) = Request::decode(frame(kind, bytes.clone())) {
                prop_assert_eq!(payload(|to| read.encode(left, to)), bytes.clone());
            }
            let _ = Reply::decode(frame(kind, bytes), kind);
        }
    }

    /// What no peer would read is not written; text is cut between characters.
    #[test]
    fn bounds_are_kept_when_writing() {
        let request = |request: Request| request.encode(Duration::ZERO, &mut Pieces::default());
        let key = Key::new("k").unwrap();
        let roster = vec![(NodeId(1), 1); ROSTER_LEN_MAX + 1];
        let too_many = MessageError::TooMany { count: ROSTER_LEN_MAX + 1, count_max: ROSTER_LEN_MAX };
        assert_eq!(request(Request::Ping { wall: UnixMillis(0), roster }), Err(too_many));
        let scan =
            |sources| Request::ScanOpen { start: key.clone(), end: None, bytes: 1, sources, ack: 1, from: 1 };
        assert_eq!(request(scan(vec![1, 2])), Ok(()));
        assert_eq!(request(scan(vec![1, 1])), Err(MessageError::Unsorted));
        let record = Record { version: Version::ZERO, from: 0, expires: None, value: Value::Tombstone };
        let apply = Request::Apply { key: key.clone(), record, kind: ApplyKind::Write };
        assert_eq!(request(apply), Err(MessageError::Contradiction));
        let digests = Reply::DigestList(vec![0; 1 << 16]);
        assert!(matches!(digests.encode(&mut Pieces::default()), Err(MessageError::TooMany { .. })));
        let detail = format!("{}é", "x".repeat(DETAIL_BYTES_MAX - 1));
        let refused = Reply::Refused { code: Refusal::Failed, detail };
        let payload = payload(|to| refused.encode(to));
        assert_eq!(payload.len(), 3 + DETAIL_BYTES_MAX - 1);
        assert!(Reply::decode(frame(kind::REFUSED, payload), kind::DONE).is_ok());
    }

    /// A deadline below a millisecond is not sent as none.
    #[test]
    fn deadlines_are_rounded_up() {
        let sent = |left| payload(|to| Request::TakeHints.encode(left, to)).get_u32();
        assert_eq!(sent(Duration::ZERO), 0);
        assert_eq!(sent(Duration::from_nanos(1)), 1);
        assert_eq!(sent(Duration::from_micros(1001)), 2);
        assert_eq!(sent(Duration::MAX), u32::MAX);
    }

    /// A value is left out when it is longer than was wanted, never otherwise.
    #[test]
    fn long_values_are_left_out() {
        let value = Value::Present(Bytes::from_static(b"four"));
        let record = Record { version: Version::ZERO, from: 1, expires: None, value };
        assert_eq!(Held::new(record.clone(), 4), Held::Whole(record.clone()));
        let header = Held::HeaderOnly { version: Version::ZERO, from: 1, expires: None, value_bytes: 4 };
        assert_eq!(Held::new(record.clone(), 3), header);
        let tombstone = Record { value: Value::Tombstone, ..record };
        assert_eq!(Held::new(tombstone.clone(), 0), Held::Whole(tombstone));
    }
}
