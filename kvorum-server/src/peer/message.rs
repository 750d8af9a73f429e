//! Messages: the requests and replies between nodes, in one table.
//!
//! A row of the table has a message's kind byte, its name, its fields in the order of their bytes, and the reply that
//! answers a request. The enums and their encoding are made from the rows ([`super::table`]). `docs/wire.md` has a line
//! for each row. The frame around a payload is defined in [`super::frame`], the types of fields in [`super::fields`] and
//! [`super::terms`].
//!
//! A new message is a row here, for a request its handler in `coordinator/serve.rs`, its line in `docs/wire.md`, and an
//! example in `tests/messages.rs`, whose frame goes into `fixtures/`. The compiler and the tests name what is missing. A
//! new message needs a new [`super::PROTOCOL`], which its row names: it is sent on no connection of an older version. A
//! message whose fields change becomes a new kind; the old one stays as long as its version is spoken.
//!
//! Each message has exactly one encoding, and bytes after it are refused. What a reader refuses, the writer refuses
//! too. Keys and values share the bytes of the frame that they came in, and keep that memory alive. Code that stores
//! one for long makes a copy.

use super::fields::{Field, Tagged, tagged};
use super::frame::{Frame, Pieces};
use super::table::{messages, requests};
use super::terms::{
    ApplyKind, BallotReply, BallotVote, Held, HeldBack, MessageError, Refusal, ScanRow, StepKind,
};
use super::terms::{StretchRow, Timestamp, VersionRow};
use crate::metrics::CallKind;
use crate::replica::{Applied, Fetched, Floor};
use crate::slow::TraceContext;
use bytes::Bytes;
use kvorum_core::agreement::{Ballot, Epoch, Instance};
use kvorum_core::configuration::Configuration;
use kvorum_core::{ClusterId, Key, NodeId, Record, StoreSeen, UnixMillis, Version};
use std::time::Duration;

/// The most nodes that a peer registry names: no cluster is larger.
pub const REGISTRY_LEN_MAX: usize = 1024;
/// The most text of a refusal, in bytes; the rest is cut.
pub const DETAIL_BYTES_MAX: usize = 512;

requests! {
    /// A request of one node to another.
    pub enum Request, RequestKind {
        /// Applies a record to the peer's replica.
        0x01 Apply {
            /// The record's key.
            key: Key,
            /// The record to apply.
            record: Record,
            /// The cause of the apply.
            kind: ApplyKind,
        } => Applied,
        /// Reads the peer's record of a key.
        0x02 Get {
            /// The key.
            key: Key,
            /// The longest value to include, in bytes; of a record with a longer one, only the header comes.
            value_bytes_max: u32,
        } => Found,
        /// A heartbeat.
        0x03 Ping {
            /// The time of day at the sender.
            wall: UnixMillis,
            /// The id of the sender's cluster; none while it knows none yet.
            cluster_id: Option<ClusterId>,
            /// The store and the run that the sender last saw of each node; at most [`REGISTRY_LEN_MAX`].
            registry: Vec<StoreSeen>,
        } => Pong,
        /// Asks for the hints that the peer keeps for this node.
        0x04 TakeHints => HintsTaken,
        /// Opens a scan of the peer's replica.
        0x05 ScanOpen {
            /// The first key.
            start: Key,
            /// The key before which the scan ends; none for all later keys.
            end: Option<Key>,
            /// About how many bytes of keys and values a part may have.
            bytes: u32,
            /// The indexes of the nodes that serve this scan; ascending.
            sources: Vec<u16>,
            /// The quorum's `from`.
            from: u16,
        } => ScanPart,
        /// Asks for an open scan's next part.
        0x06 ScanNext {
            /// The number that the first part named.
            scan: u32,
            /// About how many bytes of keys and values the part may have.
            bytes: u32,
        } => ScanPart,
        /// Closes a scan before its end.
        0x07 ScanClose {
            /// The number that the first part named.
            scan: u32,
        } => Done,
        /// Asks for the versions of a partition's keys.
        0x09 Versions {
            /// The partition.
            partition: u16,
            /// The last key of the previous list; none for the first list.
            after: Option<Key>,
            /// About how many bytes the list may have.
            bytes: u32,
            /// The sender's tombstone GC floor for the partition.
            floor: Floor,
        } => VersionList,
        /// Reads records to copy them: answered even if the peer's store is not quorum-eligible.
        0x0a Fetch {
            /// The keys.
            keys: Vec<Key>,
            /// About how many bytes of keys and values the answer may have.
            bytes: u32,
        } => Fetched,
        /// Begins a tombstone GC round over the partitions whose preference lists the sender leads.
        0x0b Survey {
            /// The watermark in each of these partitions, up to which all nodes were found to agree.
            agreed: Vec<Timestamp>,
            /// Which node holds the sender's partitions back, and why.
            held_by: Option<(u16, HeldBack)>,
        } => Surveyed,
        /// Makes the peer refuse writes up to a timestamp, and asks for the digests of what it must have in common with
        /// the others.
        0x0c Close {
            /// The number of the round; 0 closes nothing and only asks.
            round: u64,
            /// The timestamp, inclusive.
            upto: Timestamp,
            /// Whether the digests cover only records up to the timestamp, which takes a scan.
            by_scan: bool,
            /// The partitions; ascending.
            partitions: Vec<u16>,
        } => DigestList,
        /// Moves floors.
        0x0d Step {
            /// The direction.
            kind: StepKind,
            /// The number of the round.
            round: u64,
            /// The timestamp, inclusive.
            upto: Timestamp,
            /// The partitions; ascending.
            partitions: Vec<u16>,
        } => Stepped,
        /// Asks for the peer's fence (how far it has sealed).
        0x0e Floors => FloorList,
        /// Reads the next records in key order, for a bulk sync of the sender.
        0x10 Stretch {
            /// The partitions whose records are wanted; ascending.
            partitions: Vec<u16>,
            /// The last key that was read; none at the beginning.
            after: Option<Key>,
            /// About how many bytes of records to read, wanted or not.
            bytes: u32,
        } => Stretched,
        /// Asks for the digests of partitions in those stretches whose sums differ at the peer.
        0x11 Compare {
            /// The exclusive or of the sender's digests for each stretch; the stretches divide the partitions equally.
            sums: Vec<u64>,
        } => Compared,
        /// Asks for the version that a write to a key must exceed.
        0x12 Newest {
            /// The key.
            key: Key,
        } => NewestIs,
        /// Asks for a promise: to take nothing of a key below a ballot.
        0x13 Prepare {
            /// The key.
            key: Key,
            /// The version of the ballot.
            ballot: Version,
            /// Versions under which the same write may have been taken before.
            earlier: Vec<Version>,
            /// The longest value to include, in bytes; of a record with a longer one, only the header comes.
            value_bytes_max: u32,
        } => Prepared,
        /// Makes the peer take no ballot up to a timestamp: the sender has lost its promises and is being refilled. With 0, which comes
        /// first, it tells the peer of the loss.
        0x14 Fence {
            /// The timestamp, inclusive.
            upto: Timestamp,
        } => Fenced,
        /// Takes back a promise: nothing was sent under its ballot, nor ever will be.
        0x15 Release {
            /// The key.
            key: Key,
            /// The version of the ballot.
            ballot: Version,
        } => Done,
        /// Asks which ballot is promised for a key.
        0x16 [since 8] Promise {
            /// The key.
            key: Key,
        } => PromiseIs,
        /// Says which configuration the sender works with, and asks for those after it.
        0x20 [since 8] Configurations {
            /// The configuration, as the decision about its successor.
            adopted: Instance,
            /// About how many bytes of configurations the answer may have.
            bytes: u32,
        } => ConfigurationList,
        /// Asks the peer's store for a promise in the decision about a configuration's successor.
        0x21 [since 8] Propose {
            /// The decision.
            instance: Instance,
            /// The proposer's turn.
            ballot: Ballot,
        } => Voted,
        /// Asks the peer's store to accept a configuration.
        0x22 [since 8] Accept {
            /// The decision.
            instance: Instance,
            /// The proposer's turn.
            ballot: Ballot,
            /// The configuration.
            value: Configuration,
        } => Voted,
        /// Asks the peer's store for its part in a configuration that an operator forces, because a majority is lost for good.
        0x23 [since 8] Force {
            /// The decision.
            instance: Instance,
            /// The turn of the node that forces.
            ballot: Ballot,
            /// Whether to accept it; otherwise only to promise.
            accepts: bool,
            /// The configuration.
            value: Configuration,
        } => Voted,
    }
}

messages! {
    /// A word about the request behind it, in a frame of its own with the same id. Nothing answers it.
    pub enum Note, NoteKind {
        /// The request belongs to a trace that is sampled.
        0x40 [since 8] Trace(context: TraceContext),
        /// The request, and each one behind it on the connection until the next such note, is of this epoch.
        0x41 [since 8] Epoch(epoch: Epoch),
    }
}

impl Note {
    /// Whether frames of this kind are notes.
    pub(super) fn is_kind(kind: u8) -> bool {
        Self::TAGS.contains(&kind)
    }

    /// Writes the payload.
    pub(super) fn encode(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.put_fields(to)
    }

    /// The note in `frame`.
    pub(super) fn decode(frame: Frame) -> Result<Self, MessageError> {
        Self::check_kind(frame.kind)?;
        Self::read(frame.kind, frame.payload)
    }
}

impl Request {
    /// Whether a replica carries it out only in its own epoch: requests about records, and about what replicas agree on. Not
    /// those by which nodes meet, ask what a node knows, or learn of epochs.
    pub fn is_of_epoch(&self) -> bool {
        match self {
            Self::Apply { .. }
            | Self::Get { .. }
            | Self::TakeHints
            | Self::ScanOpen { .. }
            | Self::Versions { .. }
            | Self::Fetch { .. }
            | Self::Survey { .. }
            | Self::Close { .. }
            | Self::Step { .. }
            | Self::Floors
            | Self::Stretch { .. }
            | Self::Compare { .. }
            | Self::Newest { .. }
            | Self::Prepare { .. }
            | Self::Fence { .. } => true,
            // A scan that was opened shows one instant, whatever came after; and to give something back is right at any time.
            Self::ScanNext { .. }
            | Self::ScanClose { .. }
            | Self::Release { .. }
            | Self::Promise { .. }
            | Self::Ping { .. }
            | Self::Configurations { .. }
            | Self::Propose { .. }
            | Self::Accept { .. }
            | Self::Force { .. } => false,
        }
    }

    /// The kind under which its time is counted.
    pub fn call_kind(&self) -> CallKind {
        match self {
            Self::Apply { .. } => CallKind::Apply,
            Self::Get { .. } => CallKind::Get,
            Self::Newest { .. } => CallKind::Newest,
            Self::Prepare { .. } | Self::Release { .. } | Self::Promise { .. } => CallKind::Prepare,
            Self::ScanOpen { .. } | Self::ScanNext { .. } | Self::ScanClose { .. } => CallKind::Scan,
            Self::Ping { .. } => CallKind::Ping,
            Self::TakeHints => CallKind::Hints,
            Self::Versions { .. }
            | Self::Fetch { .. }
            | Self::Stretch { .. }
            | Self::Compare { .. }
            | Self::Fence { .. } => CallKind::Repair,
            Self::Configurations { .. } | Self::Propose { .. } | Self::Accept { .. } | Self::Force { .. } => {
                CallKind::Membership
            }
            Self::Survey { .. } | Self::Close { .. } | Self::Step { .. } | Self::Floors => {
                CallKind::TombstoneGc
            }
        }
    }
}

messages! {
    /// An answer to a [`Request`].
    pub enum Reply, ReplyKind {
        /// The record was applied.
        0x81 Applied(applied: Applied),
        /// The replica's record of the key; none if it has no record of it.
        0x82 Found(held: Option<Held>),
        /// The answer to a heartbeat.
        0x83 Pong {
            /// The time of day at the sender.
            wall: UnixMillis,
            /// The id of the sender's cluster; none while it knows none yet.
            cluster_id: Option<ClusterId>,
            /// The store and the run that the sender last saw of each node; at most [`REGISTRY_LEN_MAX`].
            registry: Vec<StoreSeen>,
            /// Whether the sender's store is quorum-eligible.
            votes: bool,
        },
        /// All or some hints were delivered.
        0x84 HintsTaken {
            /// How many were delivered.
            delivered: u64,
            /// How many still wait.
            left: u64,
            /// The timestamp of the highest version that the peer has seen in this run of its process.
            met: Timestamp,
        },
        /// A part of a scan.
        0x85 ScanPart {
            /// The number for requests of the next part, on this connection.
            scan: u32,
            /// The rows, by key.
            rows: Vec<ScanRow>,
            /// Whether the scan ends here and is closed.
            is_last: bool,
        },
        /// The request was carried out.
        0x87 Done,
        /// Digests in the order of their partitions.
        0x88 DigestList(digests: Vec<u64>),
        /// Versions of a partition's keys.
        0x89 VersionList {
            /// The rows, by key.
            rows: Vec<VersionRow>,
            /// Whether the partition ends here.
            is_last: bool,
            /// The sender's tombstone GC floor for the partition.
            floor: Floor,
        },
        /// The sender's state at the beginning of a round.
        0x8a Surveyed {
            /// The timestamp that all later timestamps of the sender exceed.
            reading: Timestamp,
            /// The requested partitions for whose keys the sender keeps hints, ascending, each with a timestamp at or
            /// below the oldest hint's.
            hinted: Vec<(u16, Timestamp)>,
            /// Whether the sender's store is quorum-eligible.
            votes: bool,
            /// The digests of what the sender must have in common with the others, by partition.
            digests: Vec<u64>,
        },
        /// Whether the step was taken for all of its partitions.
        0x8b Stepped(is_done: bool),
        /// The replica's records of the first keys, as many as `bytes` allowed: at least one if any was asked for.
        0x8c Fetched {
            /// The timestamp up to which the sender had agreed in each of their partitions before it read them.
            agreed: Timestamp,
            /// The records, in the order of the request.
            records: Vec<Fetched>,
        },
        /// The timestamp up to which the sender has sealed, by partition.
        0x8d FloorList(sealed: Vec<Timestamp>),
        /// The records that were found in the stretch.
        0x8f Stretched {
            /// The last key that was read; none at the end of the store.
            last: Option<Key>,
            /// Whether records are so large that looking up the wanted ones is cheaper.
            is_large: bool,
            /// The wanted records, by key.
            records: Vec<StretchRow>,
        },
        /// Digests by partition, ascending, of all stretches in which the two nodes differ.
        0x90 Compared(digests: Vec<(u16, u64)>),
        /// The version that a write to the key must exceed to be newest at the sender; zero for any.
        0x91 NewestIs(version: Version),
        /// The replica's answer to a ballot.
        0x92 Prepared(answer: BallotReply),
        /// The fence is stored.
        0x93 Fenced {
            /// No ballot that the sender has stamped is above this timestamp.
            met: Timestamp,
        },
        /// The ballot that is promised for the key; none for none.
        0x94 [since 8] PromiseIs(ballot: Option<Version>),
        /// The next configurations that the sender has adopted, as many as `bytes` allowed: at least one if there is one.
        0xa0 [since 8] ConfigurationList {
            /// The configuration that the sender works with.
            adopted: Instance,
            /// The highest feature level that the sender is able to work at.
            level_max: u16,
            /// The nodes from which the sender has taken all that it lacks, in the epoch of that configuration.
            compared: Vec<NodeId>,
            /// The configurations, by epoch.
            configurations: Vec<Configuration>,
        },
        /// The answer of a store in a decision about configurations.
        0xa1 [since 8] Voted(vote: BallotVote),
        /// The request was not carried out, or not completely: see the code.
        0xff Refused {
            /// Why, for programs.
            code: Refusal,
            /// Why, for people; at most [`DETAIL_BYTES_MAX`].
            detail: String,
        },
    }
}

impl Request {
    /// Writes the payload of a request that has `left` until its deadline; the time is sent in whole milliseconds,
    /// rounded up.
    pub(super) fn encode(&self, left: Duration, to: &mut Pieces) -> Result<(), MessageError> {
        let left_ms = left.as_nanos().div_ceil(1_000_000);
        u32::try_from(left_ms).unwrap_or(u32::MAX).put(to)?;
        self.put_fields(to)
    }

    /// The request in `frame`, and the time left until its deadline.
    pub(super) fn decode(frame: Frame) -> Result<(Self, Duration), MessageError> {
        Self::check_kind(frame.kind)?;
        let mut payload = frame.payload;
        let left = Duration::from_millis(u32::get(&mut payload)?.into());
        Ok((Self::read(frame.kind, payload)?, left))
    }
}

impl Reply {
    /// Writes the payload.
    pub(super) fn encode(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.put_fields(to)
    }

    /// The reply in `frame`, which must be of the `expected` kind or a refusal.
    pub(super) fn decode(frame: Frame, expected: u8) -> Result<Self, MessageError> {
        Self::check_kind(frame.kind)?;
        if frame.kind != expected && frame.kind != ReplyKind::Refused as u8 {
            return Err(MessageError::WrongReply { kind: frame.kind });
        }
        Self::read(frame.kind, frame.payload)
    }
}
