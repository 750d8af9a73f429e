//! The disk format of configurations and of a store's part in their agreement: rows of `meta`, beside those of
//! [`super::format`]. No other module reads or writes these bytes.
//!
//! | key | value |
//! | --- | --- |
//! | `configuration`, 8 bytes epoch | the configuration, in its own form (`kvorum_core::configuration`) |
//! | `agreement` | what the store has promised and accepted for one decision |
//! | `forgotten` | 1: the store was found to be an older copy, and may have forgotten what it promised |
//!
//! `agreement`:
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | form: 1 |
//! | 8, 16 | the epoch whose successor is decided, and the hash of its configuration |
//! | 1 | 1 if a ballot was promised; only then follow the next three |
//! | 8, 8, 16 | – round, node, store |
//! | 1 | 1 if a value was accepted; only then follow the next four |
//! | 8, 8, 16 | – round, node, store |
//! | rest | – the accepted configuration |
//!
//! Integers are big-endian. The rows are of this store, and go with it when it is set aside: a store that replaces it has
//! another identity, and none of its promises.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kvorum_core::NodeId;
use kvorum_core::agreement::{Ballot, Ballots, ConfigurationHash, Epoch, Instance, Voter};
use kvorum_core::configuration::{Configuration, ConfigurationDecodeError};
use std::fmt;

/// The prefix of the `meta` keys of configurations.
pub const META_CONFIGURATION: &[u8] = b"configuration";
/// The key of the `meta` row that holds what was promised and accepted.
pub const META_AGREEMENT: &[u8] = b"agreement";

/// The key of the `meta` row of a store that may have forgotten promises.
pub const META_FORGOTTEN: &[u8] = b"forgotten";

const FORM: u8 = 1;

/// The reason why a row is none of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainFormatError {
    /// A later release wrote it.
    Form {
        /// The form byte.
        form: u8,
    },
    /// It ends too early.
    Truncated,
    /// It is too long.
    Trailing {
        /// The surplus bytes.
        bytes: usize,
    },
    /// A flag has an undefined value.
    UnknownValue {
        /// The byte.
        value: u8,
    },
    /// The configuration in it is none.
    Configuration(ConfigurationDecodeError),
}

/// The key of a configuration's row.
pub fn encode_configuration_key(epoch: Epoch) -> Bytes {
    [META_CONFIGURATION, &epoch.0.to_be_bytes()].concat().into()
}

/// The epoch of a configuration's row.
pub fn decode_configuration_key(key: &[u8]) -> Result<Epoch, ChainFormatError> {
    let number = key.strip_prefix(META_CONFIGURATION).ok_or(ChainFormatError::Truncated)?;
    match number.try_into() {
        Ok(number) => Ok(Epoch(u64::from_be_bytes(number))),
        Err(_) if number.len() < 8 => Err(ChainFormatError::Truncated),
        Err(_) => Err(ChainFormatError::Trailing { bytes: number.len() - 8 }),
    }
}

/// What was promised and accepted, as a row.
pub fn encode_agreement(instance: Instance, ballots: &Ballots<Configuration>) -> Bytes {
    let mut to = BytesMut::new();
    to.put_u8(FORM);
    to.put_u64(instance.epoch.0);
    to.put_u128(instance.hash.0);
    to.put_u8(u8::from(ballots.promised.is_some()));
    if let Some(ballot) = ballots.promised {
        put_ballot(&mut to, ballot);
    }
    to.put_u8(u8::from(ballots.accepted.is_some()));
    if let Some((ballot, value)) = &ballots.accepted {
        put_ballot(&mut to, *ballot);
        to.put_slice(&value.encode());
    }
    to.freeze()
}

/// Reads what [`encode_agreement`] wrote.
pub fn decode_agreement(mut row: &[u8]) -> Result<(Instance, Ballots<Configuration>), ChainFormatError> {
    let from = &mut row;
    match from.try_get_u8()? {
        FORM => {}
        form => return Err(ChainFormatError::Form { form }),
    }
    let instance =
        Instance { epoch: Epoch(from.try_get_u64()?), hash: ConfigurationHash(from.try_get_u128()?) };
    let promised = if get_flag(from)? { Some(get_ballot(from)?) } else { None };
    if !get_flag(from)? {
        return match from.len() {
            0 => Ok((instance, Ballots { promised, accepted: None })),
            bytes => Err(ChainFormatError::Trailing { bytes }),
        };
    }
    let ballot = get_ballot(from)?;
    let value = Configuration::decode(from).map_err(ChainFormatError::Configuration)?;
    Ok((instance, Ballots { promised, accepted: Some((ballot, value)) }))
}

fn put_ballot(to: &mut BytesMut, ballot: Ballot) {
    to.put_u64(ballot.round);
    to.put_u64(ballot.proposer.node.0);
    to.put_u128(ballot.proposer.store);
}

fn get_ballot(from: &mut &[u8]) -> Result<Ballot, ChainFormatError> {
    let round = from.try_get_u64()?;
    let proposer = Voter { node: NodeId(from.try_get_u64()?), store: from.try_get_u128()? };
    Ok(Ballot { round, proposer })
}

fn get_flag(from: &mut &[u8]) -> Result<bool, ChainFormatError> {
    match from.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(ChainFormatError::UnknownValue { value }),
    }
}

impl From<bytes::TryGetError> for ChainFormatError {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Truncated
    }
}

impl fmt::Display for ChainFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { form } => {
                write!(f, "it has form {form}, written by a newer release; this one reads form {FORM}")
            }
            Self::Truncated => f.write_str("it ends too early"),
            Self::Trailing { bytes } => write!(f, "it has {bytes} bytes too many"),
            Self::UnknownValue { value } => write!(f, "it has a byte {value:#04x} without meaning"),
            Self::Configuration(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChainFormatError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn configurations() -> Vec<Configuration> {
        let fixture = include_str!("../../../fixtures/configuration-form-1.txt");
        let rows = fixture.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| Configuration::decode(&unhex(line.rsplit(' ').next().unwrap())).unwrap()).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, proposer: Voter { node: NodeId(2), store: 0x52 } }
    }

    fn rows() -> Vec<(Instance, Ballots<Configuration>)> {
        let all = configurations();
        let instance = all[1].instance();
        vec![
            (instance, Ballots { promised: Some(ballot(3)), accepted: None }),
            (instance, Ballots { promised: Some(ballot(4)), accepted: Some((ballot(3), all[2].clone())) }),
        ]
    }

    /// Released rows keep their meaning: these bytes may never change for form 1.
    #[test]
    fn rows_are_golden() {
        let fixture = include_str!("../../../fixtures/agreement-form-1.txt");
        let read: Vec<&str> = fixture.lines().filter(|line| !line.starts_with('#')).collect();
        let written: Vec<String> = rows()
            .iter()
            .map(|(instance, ballots)| {
                let row = encode_agreement(*instance, ballots);
                row.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
            })
            .collect();
        assert_eq!(read, written);
        let decoded: Vec<_> = read.iter().map(|row| decode_agreement(&unhex(row)).unwrap()).collect();
        assert_eq!(decoded, rows());
        assert_eq!(&*encode_configuration_key(Epoch(258)), b"configuration\0\0\0\0\0\0\x01\x02");
        assert_eq!(decode_configuration_key(&encode_configuration_key(Epoch(258))), Ok(Epoch(258)));
        assert!(decode_configuration_key(b"configuration\0").is_err());
        assert!(decode_configuration_key(b"configuration\0\0\0\0\0\0\x01\x02\x03").is_err());
    }

    proptest! {
        /// Damaged rows are refused by a named error, or are another row; never anything else.
        #[test]
        fn damage_is_named(at: prop::sample::Index, bit in 0..8_u8, cut: prop::sample::Index) {
            for (instance, ballots) in rows() {
                let row = encode_agreement(instance, &ballots);
                prop_assert!(decode_agreement(&row[..cut.index(row.len())]).is_err());
                let mut damaged = row.to_vec();
                damaged[at.index(row.len())] ^= 1 << bit;
                prop_assert_ne!(decode_agreement(&damaged), Ok((instance, ballots)));
            }
        }
    }
}
