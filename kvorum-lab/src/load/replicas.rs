//! How many replicas a load's operations ask for: `ACK/FROM`, as in the contract's `replicas` parameter.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// `ack` of `from` replicas must confirm an operation; 1 <= `ack` <= `from`.
///
/// Only the nodes know whether the cluster has `from` nodes: they answer 400 if it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    ack: NonZeroU16,
    from: NonZeroU16,
}

impl Replicas {
    /// `ack` of `from`; `None` if that is no quorum.
    pub const fn new(ack: u16, from: u16) -> Option<Self> {
        match (NonZeroU16::new(ack), NonZeroU16::new(from)) {
            (Some(ack), Some(from)) if ack.get() <= from.get() => Some(Self { ack, from }),
            _ => None,
        }
    }

    /// The quorum of all `from` replicas: after such a write no replica is missing, and no late copy is on
    /// its way.
    #[must_use]
    pub const fn all(self) -> Self {
        Self { ack: self.from, from: self.from }
    }

    /// How many must confirm.
    pub const fn ack(self) -> u16 {
        self.ack.get()
    }

    /// How many replicas hold the key.
    pub const fn from(self) -> u16 {
        self.from.get()
    }

    /// The parameter, to be appended to others: `&replicas=ACK/FROM`.
    pub fn query(self) -> String {
        format!("&replicas={self}")
    }
}

impl From<Replicas> for kvorum_client::Replicas {
    fn from(replicas: Replicas) -> Self {
        Self { ack: replicas.ack.get().into(), from: replicas.from.get().into() }
    }
}

impl FromStr for Replicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| -> Option<u16> {
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_plain { digits.parse().ok() } else { None }
        };
        text.split_once('/')
            .and_then(|(ack, from)| Self::new(number(ack)?, number(from)?))
            .ok_or_else(|| format!("{text:?} is not ACK/FROM with 1 <= ACK <= FROM, as in 2/3"))
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ack, self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: quorums are parsed, and other texts are refused. Method: a table.
    #[test]
    fn quorums_are_read() {
        for good in ["1/1", "2/3", "3/3", "1/65535"] {
            assert_eq!(good.parse::<Replicas>().unwrap().to_string(), good);
        }
        for bad in [
            "", "/", "2", "2/", "/3", "0/3", "0/0", "4/3", "2/3/4", "+2/3", "2 / 3", "-1/3", "two/3",
            "1/65536",
        ] {
            assert!(bad.parse::<Replicas>().is_err(), "{bad:?} must be refused");
        }
    }

    /// Goal: a request has the contract's parameter. Method: the text, of a quorum and of all.
    #[test]
    fn a_quorum_is_a_parameter() {
        let quorum = Replicas::new(2, 3).unwrap();
        assert_eq!(quorum.query(), "&replicas=2/3");
        assert_eq!(quorum.all().query(), "&replicas=3/3");
    }
}
