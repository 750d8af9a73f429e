//! Records: what a replica holds of a key, and which of two records wins.

use crate::conditional::Lineage;
use crate::version::{UnixMillis, Version};
use bytes::Bytes;
use std::cmp::Ordering;
use std::num::NonZeroU128;

/// The content of a record: a value, or a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The bytes of the PUT.
    Present(Bytes),
    /// A deletion. It takes part in merging like any other record.
    Tombstone,
}

/// A key's state as of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The order of this write among all writes to the key.
    pub version: Version,
    /// The replica count that the write asked for; copies belong on ranks below it only.
    pub from: u16,
    /// From this instant on the record is a tombstone for every reader. Part of the record, so that every
    /// replica uses the same instant.
    pub expires: Option<UnixMillis>,
    /// The value or tombstone.
    pub value: Value,
    /// What a conditional write notes beside its value; none for a plain write. In a box, since most records have none.
    pub conditional: Option<Box<Conditional>>,
}

/// What a record of a conditional write says about the write. Also a plain write makes such a record where a ballot came
/// between its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditional {
    /// The version under which the value was first written, and the one that it was built on.
    pub lineage: Lineage,
    /// A digest of the `Kvorum-Operation` that the client named.
    pub operation: Option<NonZeroU128>,
}

impl Record {
    /// Where the record comes from: a plain one is its own origin, and its base is not known.
    pub fn lineage(&self) -> Lineage {
        let plain = Lineage { origin: self.version, base: Version::ZERO };
        self.conditional.as_ref().map_or(plain, |conditional| conditional.lineage)
    }

    /// The version that clients see, as `ETag`: it stays when a ballot accepts the record anew.
    pub fn etag(&self) -> Version {
        self.lineage().origin
    }

    /// Bytes of its value; 0 for a tombstone.
    pub fn value_bytes(&self) -> usize {
        if let Value::Present(value) = &self.value { value.len() } else { 0 }
    }

    /// The value that a reader at `now` sees; none for a tombstone and for a record that has expired.
    pub fn live(&self, now: UnixMillis) -> Option<&Bytes> {
        match &self.value {
            Value::Present(bytes) if !self.has_expired(now) => Some(bytes),
            _ => None,
        }
    }

    /// Whether the record's expiry instant has come.
    pub fn has_expired(&self, now: UnixMillis) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// Orders records by newness: the greater one wins a merge.
    ///
    /// By version. Two different records of one version should not occur; if they do, every replica must
    /// still choose the same one. So these win, in this order: a value beats a tombstone, then the larger
    /// bytes, the earlier expiry, the smaller `from`.
    ///
    /// A deletion has a version of its own, so a tombstone with a value's version is what remains of that
    /// value after its expiry. Compared with a value that has expired, the two mean the same. Compared with
    /// one that has not, the tombstone comes from a clock that was wrong.
    pub fn newness(&self, other: &Self) -> Ordering {
        self.version.cmp(&other.version).then_with(|| match (&self.value, &other.value) {
            (Value::Tombstone, Value::Present(_)) => Ordering::Less,
            (Value::Present(_), Value::Tombstone) => Ordering::Greater,
            (Value::Present(a), Value::Present(b)) => a.cmp(b).then_with(|| self.tie(other)),
            (Value::Tombstone, Value::Tombstone) => self.tie(other),
        })
    }

    fn tie(&self, other: &Self) -> Ordering {
        let instant = |record: &Self| record.expires.map_or(u64::MAX, |at| at.0);
        instant(other).cmp(&instant(self)).then_with(|| other.from.cmp(&self.from))
    }

    /// The winner of two records of one key: commutative, associative, idempotent.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        match self.newness(&other) {
            Ordering::Less => other,
            Ordering::Equal | Ordering::Greater => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::NodeId;
    use proptest::prelude::*;

    /// Few distinct fields, so that ties of every kind are frequent.
    fn record() -> impl Strategy<Value = Record> {
        let value = prop_oneof![
            Just(Value::Tombstone),
            prop::collection::vec(0..2u8, 0..3).prop_map(|v| Value::Present(v.into()))
        ];
        (0..3u64, 0..2u16, 1..3u16, prop::option::of(0..3u64), value).prop_map(
            |(ms, counter, from, expires, value)| {
                let version = Version::new(UnixMillis(ms), counter, NodeId(0));
                Record { version, from, expires: expires.map(UnixMillis), value, conditional: None }
            },
        )
    }

    proptest! {
        /// Merge is a join: the order and repetition of records never matter.
        #[test]
        fn merge_is_commutative_associative_idempotent(a in record(), b in record(), c in record()) {
            prop_assert_eq!(a.clone().merge(b.clone()), b.clone().merge(a.clone()));
            prop_assert_eq!(
                a.clone().merge(b.clone()).merge(c.clone()),
                a.clone().merge(b.clone().merge(c))
            );
            prop_assert_eq!(a.clone().merge(a.clone()), a);
        }

        /// The higher version wins, whatever else the records carry.
        #[test]
        fn higher_version_wins(a in record(), b in record()) {
            prop_assume!(a.version < b.version);
            prop_assert_eq!(a.merge(b.clone()), b);
        }
    }

    /// Expiry is to the millisecond: live just before, gone at the instant.
    #[test]
    fn expires_at_its_instant() {
        let version = Version::new(UnixMillis(1), 0, NodeId(1));
        let value = Value::Present(Bytes::from_static(b"v"));
        let record = Record { version, from: 1, expires: Some(UnixMillis(100)), value, conditional: None };
        assert!(record.live(UnixMillis(99)).is_some());
        assert!(record.live(UnixMillis(100)).is_none());
    }
}
