//! Versions of the protocol: which ones a node speaks, and the one that two nodes agree on.
//!
//! A node offers a range, and both sides of a connection take the highest version that both ranges have. So nodes of two
//! releases work together while a cluster is upgraded node by node.
//!
//! | header | request | answer |
//! | --- | --- | --- |
//! | `Kvorum-Protocol` | the oldest version that the caller speaks | the version of this connection |
//! | `Kvorum-Protocols` | the caller's range, as `OLDEST-NEWEST` | the called node's range |
//!
//! The first releases know `Kvorum-Protocol` only: they send and expect their one version. A node that sends no range
//! offers just that one. It finds the version that it speaks in the answer, or in a newer node's request if that
//! node still speaks it.

use std::fmt;

/// The newest version of the protocol that this release speaks.
pub const PROTOCOL: u16 = 8;
/// The oldest version that this release speaks.
///
/// Version 6 has no ballots: a node that speaks it would take plain writes that a promise keeps out, and its records
/// would count for conditional writes. No release that speaks 6 can open a store that this one has written, either.
pub const PROTOCOL_OLDEST: u16 = 7;

/// The most versions of a range. No release speaks so many; a longer range is a mistake or a forgery.
const RANGE_LEN_MAX: u16 = 64;

/// A range of versions, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocols {
    oldest: u16,
    newest: u16,
}

impl Protocols {
    /// The versions that this release speaks.
    pub const SPOKEN: Self = Self { oldest: PROTOCOL_OLDEST, newest: PROTOCOL };

    /// The versions from `oldest` to `newest`; none for a range that is empty, begins with 0 or is longer than any.
    pub fn new(oldest: u16, newest: u16) -> Option<Self> {
        let is_range = oldest > 0 && oldest <= newest && newest - oldest < RANGE_LEN_MAX;
        is_range.then_some(Self { oldest, newest })
    }

    /// The range of a node that sends none.
    pub fn only(version: u16) -> Self {
        Self { oldest: version, newest: version }
    }

    /// The oldest version.
    pub fn oldest(self) -> u16 {
        self.oldest
    }

    /// The newest version.
    pub fn newest(self) -> u16 {
        self.newest
    }

    /// Whether `version` is one of them.
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// The highest version that both have; the same from either side.
    pub fn highest_common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Those up to `newest`; none if all are newer.
    pub fn up_to(self, newest: u16) -> Option<Self> {
        (newest >= self.oldest).then_some(Self { newest: self.newest.min(newest), ..self })
    }

    /// The form of the header `Kvorum-Protocols`.
    pub(super) fn header(self) -> String {
        format!("{}-{}", self.oldest, self.newest)
    }

    /// Reads the form of the header.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (oldest, newest) = text.split_once('-')?;
        // Parsing alone would accept a sign.
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let read = Self::new(number(oldest)?, number(newest)?)?;
        // One form each: no zeros in front.
        (read.header() == text).then_some(read)
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { oldest, newest } if oldest == newest => oldest.fmt(f),
            Self { oldest, newest } => write!(f, "{oldest} to {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Only ranges have a form, and each has one.
    #[test]
    fn absurd_ranges_are_refused() {
        for good in ["7-7", "7-8", "1-64", "65535-65535"] {
            assert_eq!(Protocols::parse(good).map(Protocols::header).as_deref(), Some(good));
        }
        for bad in [
            "", "7", "-", "7-", "-7", "8-7", "0-3", "1-65", "1-65535", "07-8", "7-+8", "7-8-9", "7-65536",
            "7 -8",
        ] {
            assert_eq!(Protocols::parse(bad), None, "{bad:?}");
        }
        assert!(Protocols::new(PROTOCOL_OLDEST, PROTOCOL).is_some());
    }

    proptest! {
        /// Both sides find the same version, both speak it, and no higher one.
        #[test]
        fn both_sides_agree(one in (1..90_u16, 0..20_u16), other in (1..90_u16, 0..20_u16)) {
            let range = |(oldest, more): (u16, u16)| Protocols::new(oldest, oldest + more).unwrap();
            let (one, other) = (range(one), range(other));
            let common = one.highest_common(other);
            prop_assert_eq!(common, other.highest_common(one));
            let expect = (1..=200).rev().find(|version| one.contains(*version) && other.contains(*version));
            prop_assert_eq!(common, expect);
        }
    }
}
