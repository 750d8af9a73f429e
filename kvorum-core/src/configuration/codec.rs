//! The bytes of a configuration. They are hashed, stored and sent, so one configuration has one form.
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | form: 1 |
//! | 8 | epoch |
//! | 16 | hash of the configuration before; 0 in epoch 0 |
//! | 16 | cluster id |
//! | 1 | partition bits |
//! | 2 | feature level |
//! | 2 | slots used |
//! | 8 | hash of the placement |
//! | 1 | phase: 0 stable, 1 joint; only for 1 follow the next four |
//! | 1 | side that is read: 0 old, 1 new |
//! | 1 | whether the other side was filled: 0 or 1 |
//! | 4, 4 | window: begin, end |
//! | 8 | hash of the new placement |
//! | 2 | count of members, each: |
//! | 8, 2, 16 | – id, slot, store (0 for none) |
//! | 4, 2 + n, 2 + n | – weight, length and bytes of the URL, length and bytes of the zone |
//! | 1 | – state: 0 in, 1 joining, 2 leaving, 3 changing; 4 is added where it lacks records |
//! | 4, 2 + n | – only for 3: weight, length and bytes of the zone, on the new side |
//! | 2 | count of retired stores, each: |
//! | 8, 16 | – node, store |
//!
//! Numbers are big-endian. The hash is xxh3-128, seed 0, of all of it: it tells configurations apart, and proves nothing
//! against somebody who forges one. Who may send a configuration is decided by the peers' secret.

use super::{
    ClusterMember, Configuration, ConfigurationError, MemberState, Phase, Side, Slot, URL_BYTES_MAX, Window,
    ZONE_BYTES_MAX,
};
use crate::agreement::{ConfigurationHash, Epoch, Voter};
use crate::identity::ClusterId;
use crate::topology::NODES_MAX;
use crate::version::NodeId;
use bytes::{Buf, TryGetError};
use std::fmt;

/// The form that this release writes, and the only one that it reads.
pub const CONFIGURATION_FORM: u8 = 1;

/// The most bytes of a configuration: all members of both sides with their longest texts, and all stores that can have
/// been retired.
pub const ENCODED_BYTES_MAX: usize =
    128 + 2 * NODES_MAX * (48 + URL_BYTES_MAX + 2 * ZONE_BYTES_MAX) + 24 * 0xffff;

const LACKS: u8 = 4;

/// The reason why bytes are not a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigurationDecodeError {
    /// Another release wrote them.
    Form {
        /// The form byte.
        form: u8,
    },
    /// They end too early.
    Truncated,
    /// There are bytes after the end.
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// There are more of them than a configuration can have.
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// A byte has no meaning where it stands.
    UnknownValue {
        /// The byte.
        value: u8,
    },
    /// A text is not ASCII, or too long.
    Text,
    /// A cluster has an id.
    NoCluster,
    /// The configuration contradicts itself.
    Contradiction(ConfigurationError),
}

impl Configuration {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = vec![CONFIGURATION_FORM];
        to.extend(self.epoch.0.to_be_bytes());
        to.extend(self.previous.0.to_be_bytes());
        to.extend(self.cluster.get().to_be_bytes());
        to.push(self.partition_bits);
        to.extend(self.feature_level.to_be_bytes());
        to.extend(self.slots_used.to_be_bytes());
        to.extend(self.placement.to_be_bytes());
        match self.phase {
            Phase::Stable => to.push(0),
            Phase::Joint { reads, is_filled, window, placement } => {
                to.extend([1, u8::from(reads == Side::New), u8::from(is_filled)]);
                to.extend(window.begin.to_be_bytes());
                to.extend(window.end.to_be_bytes());
                to.extend(placement.to_be_bytes());
            }
        }
        put_count(&mut to, self.members.len());
        for member in &self.members {
            put_member(&mut to, member);
        }
        put_count(&mut to, self.retired.len());
        for voter in &self.retired {
            to.extend(voter.node.0.to_be_bytes());
            to.extend(voter.store.to_be_bytes());
        }
        to
    }

    /// The hash that its successor names.
    pub fn hash(&self) -> ConfigurationHash {
        ConfigurationHash(xxhash_rust::xxh3::xxh3_128(&self.encode()))
    }

    /// Reads a configuration that is exactly `bytes`, and checks it.
    ///
    /// # Errors
    /// [`ConfigurationDecodeError`]: the sender, or the disk, is at fault.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, ConfigurationDecodeError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(ConfigurationDecodeError::TooLong { bytes: bytes.len() });
        }
        let from = &mut bytes;
        match from.try_get_u8()? {
            CONFIGURATION_FORM => {}
            form => return Err(ConfigurationDecodeError::Form { form }),
        }
        let epoch = Epoch(from.try_get_u64()?);
        let previous = ConfigurationHash(from.try_get_u128()?);
        let cluster = ClusterId::new(from.try_get_u128()?).ok_or(ConfigurationDecodeError::NoCluster)?;
        let (partition_bits, feature_level) = (from.try_get_u8()?, from.try_get_u16()?);
        let (slots_used, placement) = (from.try_get_u16()?, from.try_get_u64()?);
        let phase = get_phase(from)?;
        // A count says nothing about how much follows: no memory is taken for it before.
        let members = (0..from.try_get_u16()?).map(|_| get_member(from)).collect::<Result<Vec<_>, _>>()?;
        let retired = (0..from.try_get_u16()?).map(|_| get_voter(from)).collect::<Result<Vec<_>, _>>()?;
        if !bytes.is_empty() {
            return Err(ConfigurationDecodeError::Trailing { bytes: bytes.len() });
        }
        let read = Self {
            epoch,
            previous,
            cluster,
            partition_bits,
            feature_level,
            slots_used,
            members,
            retired,
            phase,
            placement,
        };
        read.check().map_err(ConfigurationDecodeError::Contradiction)?;
        Ok(read)
    }
}

/// More than 65,535 items do not pass [`Configuration::check`].
fn put_count(to: &mut Vec<u8>, count: usize) {
    to.extend(u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    put_count(to, text.len());
    to.extend(text.as_bytes());
}

fn put_member(to: &mut Vec<u8>, member: &ClusterMember) {
    to.extend(member.id.0.to_be_bytes());
    to.extend(member.slot.0.to_be_bytes());
    to.extend(member.store.unwrap_or(0).to_be_bytes());
    to.extend(member.weight.to_be_bytes());
    put_text(to, &member.url);
    put_text(to, &member.zone);
    let lacks = if member.lacks { LACKS } else { 0 };
    match &member.state {
        MemberState::In => to.push(lacks),
        MemberState::Joining => to.push(1 | lacks),
        MemberState::Leaving => to.push(2 | lacks),
        MemberState::Changing { weight, zone } => {
            to.push(3 | lacks);
            to.extend(weight.to_be_bytes());
            put_text(to, zone);
        }
    }
}

fn get_bool(from: &mut &[u8]) -> Result<bool, ConfigurationDecodeError> {
    match from.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(ConfigurationDecodeError::UnknownValue { value }),
    }
}

fn get_text(from: &mut &[u8], bytes_max: usize) -> Result<String, ConfigurationDecodeError> {
    let length = usize::from(from.try_get_u16()?);
    if length > bytes_max {
        return Err(ConfigurationDecodeError::Text);
    }
    let (text, rest) = from.split_at_checked(length).ok_or(ConfigurationDecodeError::Truncated)?;
    *from = rest;
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or(ConfigurationDecodeError::Text)
}

fn get_phase(from: &mut &[u8]) -> Result<Phase, ConfigurationDecodeError> {
    if !get_bool(from)? {
        return Ok(Phase::Stable);
    }
    let reads = if get_bool(from)? { Side::New } else { Side::Old };
    let is_filled = get_bool(from)?;
    let window = Window { begin: from.try_get_u32()?, end: from.try_get_u32()? };
    Ok(Phase::Joint { reads, is_filled, window, placement: from.try_get_u64()? })
}

fn get_member(from: &mut &[u8]) -> Result<ClusterMember, ConfigurationDecodeError> {
    let id = NodeId(from.try_get_u64()?);
    let slot = Slot(from.try_get_u16()?);
    let store = Some(from.try_get_u128()?).filter(|store| *store != 0);
    let weight = from.try_get_u32()?;
    let (url, zone) = (get_text(from, URL_BYTES_MAX)?, get_text(from, ZONE_BYTES_MAX)?);
    let state = from.try_get_u8()?;
    let lacks = state & LACKS != 0;
    let state = match state & !LACKS {
        0 => MemberState::In,
        1 => MemberState::Joining,
        2 => MemberState::Leaving,
        3 => MemberState::Changing { weight: from.try_get_u32()?, zone: get_text(from, ZONE_BYTES_MAX)? },
        _ => return Err(ConfigurationDecodeError::UnknownValue { value: state }),
    };
    Ok(ClusterMember { id, slot, url, zone, weight, store, state, lacks })
}

fn get_voter(from: &mut &[u8]) -> Result<Voter, ConfigurationDecodeError> {
    Ok(Voter { node: NodeId(from.try_get_u64()?), store: from.try_get_u128()? })
}

impl From<TryGetError> for ConfigurationDecodeError {
    fn from(_: TryGetError) -> Self {
        Self::Truncated
    }
}

impl fmt::Display for ConfigurationDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { form } => {
                write!(f, "the configuration has form {form}; this release reads form {CONFIGURATION_FORM}")
            }
            Self::Truncated => f.write_str("the configuration ends too early"),
            Self::Trailing { bytes } => write!(f, "the configuration has {bytes} bytes too many"),
            Self::TooLong { bytes } => {
                write!(f, "the configuration has {bytes} bytes, more than {ENCODED_BYTES_MAX}")
            }
            Self::UnknownValue { value } => {
                write!(f, "the configuration has a byte {value:#04x} without meaning")
            }
            Self::Text => f.write_str("a text of the configuration is too long or not ASCII"),
            Self::NoCluster => f.write_str("the configuration has no cluster id"),
            Self::Contradiction(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigurationDecodeError {}
