//! Versions: the total order over all writes to a key.
//!
//! A version is a hybrid logical clock reading (Kulkarni, Demirbas et al., "Logical Physical Clocks and Consistent
//! Snapshots in Globally Distributed Databases", 2014, section 3) with the writer's id behind it to break ties:
//! 48 bits of Unix milliseconds, 16 bits of counter, 64 bits of node id, compared in that order.
//!
//! Shown to people and as `ETag`: 16 hexadecimal digits of clock, a dash, 16 of node id.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The largest instant a version can carry: 48 bits of milliseconds, in the year 10889.
pub const MILLIS_MAX: u64 = (1 << 48) - 1;

/// An instant as milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The instant `millis` later, or the last one there is.
    #[must_use]
    pub fn saturating_add(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

/// The name of a node in versions and in placement; the same on every node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The id of the node that is reached at `url`: xxh3-64 of the URL's bytes, seed 0. An `https` URL counts as the `http`
    /// one, so that a node stays the same when its connections are encrypted.
    pub fn of_url(url: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(without_tls(url).as_bytes()))
    }
}

/// The `http` URL of a node, whether or not its connections are encrypted: what stores and handshakes identify it by.
pub(crate) fn without_tls(url: &str) -> Cow<'_, str> {
    match url.strip_prefix("https://") {
        Some(authority) => Cow::Owned(format!("http://{authority}")),
        None => Cow::Borrowed(url),
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The order of the writes to a key: of two records, the one with the higher version is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    clock: u64,
    node: NodeId,
}

impl Version {
    /// The version before all others; no write has it.
    pub const ZERO: Self = Self { clock: 0, node: NodeId(0) };

    /// Assembles a version. Milliseconds beyond [`MILLIS_MAX`] are cut to it.
    pub fn new(millis: UnixMillis, counter: u16, node: NodeId) -> Self {
        Self { clock: (millis.0.min(MILLIS_MAX) << 16) | u64::from(counter), node }
    }

    /// Reassembles a version from the two words of its disk and wire form.
    pub fn from_words(clock: u64, node: u64) -> Self {
        Self { clock, node: NodeId(node) }
    }

    /// The instant part.
    pub fn millis(self) -> UnixMillis {
        UnixMillis(self.clock >> 16)
    }

    /// The counter part.
    #[expect(clippy::cast_possible_truncation, reason = "the counter is the low 16 bits")]
    pub fn counter(self) -> u16 {
        self.clock as u16
    }

    /// Instant and counter as one ordered word: milliseconds in the upper 48 bits, counter in the lower 16.
    pub fn clock(self) -> u64 {
        self.clock
    }

    /// The node that coordinated the write.
    pub fn node(self) -> NodeId {
        self.node
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.clock, self.node.0)
    }
}

/// A text is not a version: 16 hexadecimal digits, a dash, 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseVersionError;

impl fmt::Display for ParseVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a version is 16 hexadecimal digits, a dash, and 16 more")
    }
}

impl std::error::Error for ParseVersionError {}

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |digits: &str| {
            let plain = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or(ParseVersionError)
        };
        let (clock, node) = text.split_once('-').ok_or(ParseVersionError)?;
        Ok(Self::from_words(word(clock)?, word(node)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Order is by instant, then counter, then node: each field outranks all after it.
    #[test]
    fn order_is_instant_counter_node() {
        let v = |ms, c, n| Version::new(UnixMillis(ms), c, NodeId(n));
        let rising = [v(1, 0, 9), v(1, 1, 0), v(1, 1, 1), v(2, 0, 0), v(2, u16::MAX, 7), v(3, 0, 0)];
        assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
    }

    /// Text that is not exactly a version is refused; in particular signs, which integer parsing would take.
    #[test]
    fn malformed_text_is_refused() {
        let good = "0000000000010000-00000000000000ff";
        assert!(good.parse::<Version>().is_ok());
        for bad in
            ["", "-", "+000000000010000-00000000000000ff", &good[1..], "0000000000010000_00000000000000ff"]
        {
            assert_eq!(bad.parse::<Version>(), Err(ParseVersionError), "{bad}");
        }
    }

    proptest! {
        /// A version survives the conversion to text and to its parts.
        #[test]
        fn round_trips(ms in 0..=MILLIS_MAX, counter: u16, node: u64) {
            let v = Version::new(UnixMillis(ms), counter, NodeId(node));
            prop_assert_eq!((v.millis().0, v.counter(), v.node().0), (ms, counter, node));
            prop_assert_eq!(v.to_string().parse(), Ok(v));
            prop_assert_eq!(Version::from_words(v.clock(), v.node().0), v);
        }
    }
}
