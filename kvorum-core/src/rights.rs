//! Rights by key prefix: what the holder of a token may do, and with which keys.
//!
//! A [`Grant`] gives some [`Right`]s for all keys that begin with its prefix. A request needs one grant that covers all of
//! it: grants do not add up. So a range is allowed only if its whole interval lies inside one scan right, and nobody has
//! to think about where two prefixes meet.
//!
//! Keys come in decoded, as the bytes that are stored: percent-encoding is undone before a right is looked at.

use crate::version::UnixMillis;
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;

/// Something that a token may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Reading a key.
    Read,
    /// Writing a key.
    Write,
    /// Deleting a key.
    Delete,
    /// Reading a range of keys.
    Scan,
    /// Running code of the node on a range of keys. No request needs it yet.
    Process,
    /// Seeing and changing the node itself: repairs, workers, profiles, and the snapshots of backups, which have every key.
    Admin,
    /// Reading the node's metrics.
    Metrics,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Delete, Self::Scan, Self::Process, Self::Admin, Self::Metrics];

    /// Its name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Scan => "scan",
            Self::Process => "process",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    /// Whether it is about keys, so that a prefix can bound it. The others are about the node as a whole.
    pub fn is_of_keys(self) -> bool {
        match self {
            Self::Read | Self::Write | Self::Delete | Self::Scan | Self::Process => true,
            Self::Admin | Self::Metrics => false,
        }
    }
}

impl FromStr for Right {
    type Err = UnknownRight;

    fn from_str(name: &str) -> Result<Self, UnknownRight> {
        let known = Self::ALL.into_iter().find(|right| right.name() == name);
        known.ok_or_else(|| UnknownRight { name: name.to_owned() })
    }
}

/// A name that no right has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRight {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a right; there are {}", self.name, Right::ALL.map(Right::name).join(", "))
    }
}

impl std::error::Error for UnknownRight {}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rights for all keys with a prefix, up to an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    prefix: Bytes,
    /// One bit per right, by its place in [`Right::ALL`].
    rights: u8,
    not_after: Option<UnixMillis>,
}

/// Why a grant cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantError {
    /// It gives no right.
    NoRight,
    /// It bounds a right by a prefix that is about the node as a whole.
    PrefixOfNodeRight {
        /// The right.
        right: Right,
    },
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRight => {
                let names: Vec<&str> = Right::ALL.iter().map(|right| right.name()).collect();
                write!(f, "a grant needs at least one right; there are {}", names.join(", "))
            }
            Self::PrefixOfNodeRight { right } => {
                write!(f, "the right {right} is about the whole node: its grant must have no prefix")
            }
        }
    }
}

impl std::error::Error for GrantError {}

/// A request as rights see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// One key.
    Key(&'a [u8]),
    /// The keys from `start` on and before `end`; without `end`, all from `start`.
    Range {
        /// The first key.
        start: &'a [u8],
        /// The first key after the range.
        end: Option<&'a [u8]>,
    },
    /// The node as a whole.
    Node,
}

impl Grant {
    /// Gives `rights` for all keys that begin with `prefix`, until `not_after` has passed.
    ///
    /// # Errors
    /// [`GrantError`] for no right, or for a right about the node as a whole with a prefix.
    pub fn new(
        prefix: impl Into<Bytes>,
        rights: &[Right],
        not_after: Option<UnixMillis>,
    ) -> Result<Self, GrantError> {
        let prefix = prefix.into();
        if rights.is_empty() {
            return Err(GrantError::NoRight);
        }
        if let Some(right) = rights.iter().find(|right| !right.is_of_keys() && !prefix.is_empty()) {
            return Err(GrantError::PrefixOfNodeRight { right: *right });
        }
        let rights = rights.iter().fold(0, |bits, right| bits | bit(*right));
        Ok(Self { prefix, rights, not_after })
    }

    /// The prefix of its keys.
    pub fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// The rights that it gives.
    pub fn rights(&self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(|right| self.rights & bit(*right) != 0)
    }

    /// The last instant at which it holds; none for no end.
    pub fn not_after(&self) -> Option<UnixMillis> {
        self.not_after
    }

    /// Whether it allows `right` on all of `scope` at `now`.
    pub fn allows(&self, right: Right, scope: Scope<'_>, now: UnixMillis) -> bool {
        let is_over = self.not_after.is_some_and(|last| now > last);
        !is_over && self.rights & bit(right) != 0 && self.covers(scope)
    }

    fn covers(&self, scope: Scope<'_>) -> bool {
        match scope {
            Scope::Key(key) => key.starts_with(&self.prefix),
            Scope::Range { start, end } => {
                start.starts_with(&self.prefix)
                    && match (end, after_prefix(&self.prefix)) {
                        (_, None) => true,
                        (None, Some(_)) => false,
                        (Some(end), Some(after)) => end <= &*after,
                    }
            }
            Scope::Node => self.prefix.is_empty(),
        }
    }
}

fn bit(right: Right) -> u8 {
    1 << right as u8
}

/// The first byte string that is greater than all that begin with `prefix`; none if there is no greater one, so that
/// everything from `prefix` on begins with it.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    // A last byte of 0xff has no successor: the byte before it is raised instead.
    let kept = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut after = prefix.get(..=kept)?.to_vec();
    if let Some(last) = after.last_mut() {
        *last += 1;
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: UnixMillis = UnixMillis(1000);

    fn allows(prefix: &[u8], scope: Scope<'_>) -> bool {
        let rights = [Right::Read, Right::Scan];
        let grant = Grant::new(prefix.to_vec(), &rights, None).unwrap();
        let right = if matches!(scope, Scope::Range { .. }) { Right::Scan } else { Right::Read };
        grant.allows(right, scope, NOW)
    }

    /// The edges that a property test could miss: NUL, 0xff, the exclusive end, no end, no prefix.
    #[test]
    fn prefixes_at_their_edges() {
        let key = |prefix: &[u8], key: &[u8], expect| {
            assert_eq!(
                allows(prefix, Scope::Key(key)),
                expect,
                "{} {}",
                prefix.escape_ascii(),
                key.escape_ascii()
            );
        };
        key(b"", b"\0", true);
        key(b"a/", b"a/", true);
        key(b"a/", b"a", false);
        key(b"a/", b"a0", false);
        key(b"a\0", b"a\0b", true);
        key(b"a\0", b"a", false);
        key(b"\xff", b"\xff\xff", true);
        key(b"\xff", b"\xfe\xff", false);
        let range = |prefix: &[u8], start: &[u8], end: Option<&[u8]>, expect| {
            let scope = Scope::Range { start, end };
            assert_eq!(allows(prefix, scope), expect, "{} {scope:?}", prefix.escape_ascii());
        };
        range(b"", b"a", None, true);
        range(b"a/", b"a/", Some(b"a0"), true);
        range(b"a/", b"a/", Some(b"a0\0"), false);
        range(b"a/", b"a/", None, false);
        range(b"a/", b"a", Some(b"a0"), false);
        range(b"a/", b"a/x", Some(b"a/y"), true);
        range(b"a\xff", b"a\xff", Some(b"b"), true);
        range(b"a\xff", b"a\xff", Some(b"b\0"), false);
        range(b"\xff\xff", b"\xff\xff", None, true);
        range(b"\xff\xff", b"\xff", None, false);
        range(b"a\0", b"a\0", Some(b"a\x01"), true);
        range(b"a\0", b"a\0", Some(b"a\x01\0"), false);
    }

    /// A grant allows only its own rights, only until its end, and rights about the node only without a prefix.
    #[test]
    fn grants_hold_for_their_rights_and_time() {
        let grant = Grant::new(&b"a"[..], &[Right::Write], Some(NOW)).unwrap();
        for right in Right::ALL {
            assert_eq!(grant.allows(right, Scope::Key(b"ab"), NOW), right == Right::Write, "{right}");
            assert_eq!(right.name().parse(), Ok(right));
        }
        assert!(!grant.allows(Right::Write, Scope::Key(b"ab"), UnixMillis(NOW.0 + 1)));
        assert!(!grant.allows(Right::Write, Scope::Node, NOW));
        assert_eq!(grant.rights().collect::<Vec<_>>(), [Right::Write]);
        assert_eq!(Grant::new(&b""[..], &[], None), Err(GrantError::NoRight));
        let node = Grant::new(&b"a"[..], &[Right::Read, Right::Metrics], None);
        assert_eq!(node, Err(GrantError::PrefixOfNodeRight { right: Right::Metrics }));
        let metrics = Grant::new(&b""[..], &[Right::Metrics], None).unwrap();
        assert!(metrics.allows(Right::Metrics, Scope::Node, NOW));
        assert!(!metrics.allows(Right::Admin, Scope::Node, NOW));
    }

    /// All byte strings of at most four of these bytes. They have the successor of every byte of a generated prefix, so
    /// an interval that leaves a prefix has a key here that shows it.
    fn universe() -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        let mut longest = all.clone();
        for _ in 0..4 {
            let longer = longest
                .iter()
                .flat_map(|key: &Vec<u8>| [0, 1, 2, 0xfe, 0xff].map(|byte| [&key[..], &[byte]].concat()));
            longest = longer.collect();
            all.extend(longest.iter().cloned());
        }
        all
    }

    fn bytes_max(len: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(proptest::sample::select(vec![0, 1, 0xfe, 0xff]), 0..=len)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Goal: a range is allowed exactly if each of its keys has the prefix. Method: a naive model, which looks at every
        /// key of a small universe. An empty interval is allowed only where it begins inside the prefix.
        #[test]
        fn ranges_are_judged_as_a_naive_model_does(
            prefix in bytes_max(3),
            start in bytes_max(3),
            end in proptest::option::of(bytes_max(3)),
        ) {
            let is_inside = |key: &&Vec<u8>| **key >= start && end.as_ref().is_none_or(|end| *key < end);
            let mut keys = universe();
            keys.push(start.clone());
            let model = start.starts_with(&prefix)
                && keys.iter().filter(is_inside).all(|key| key.starts_with(&prefix));
            let scope = Scope::Range { start: &start, end: end.as_deref() };
            prop_assert_eq!(allows(&prefix, scope), model);
        }

        /// A key is allowed exactly if the range of this key alone is.
        #[test]
        fn keys_are_judged_as_ranges_of_one(prefix in bytes_max(3), key in bytes_max(4)) {
            let end = [&key[..], &[0]].concat();
            let range = Scope::Range { start: &key, end: Some(&end) };
            prop_assert_eq!(allows(&prefix, Scope::Key(&key)), key.starts_with(&prefix));
            prop_assert_eq!(allows(&prefix, Scope::Key(&key)), allows(&prefix, range));
        }
    }
}
