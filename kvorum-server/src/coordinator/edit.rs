//! Edits: writes whose value depends on the value before. A ballot carries one out as it carries out a condition: no other
//! write comes between the value that it starts from and the value that it makes ([`super::ballot`]).

use super::{Mutation, allowance_for};
use crate::peer::Held;
use bytes::Bytes;
use kvorum_core::condition::{self, ApplyError};
use kvorum_core::{Record, UnixMillis, Value, Version};
use std::time::Duration;

/// The longest value that an append makes, in bytes. Each append sends the whole value to every replica, so a long one is
/// a burden that its client does not see. Values of this size need no turn either, as large ones do.
pub const APPENDED_BYTES_MAX: usize = (64 << 10) - 1;

/// A change of a key's value that depends on the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Adds to a decimal number; an absent value counts as 0.
    Add {
        /// The addend.
        addend: i64,
    },
    /// Appends bytes; an absent value counts as empty.
    Append {
        /// The bytes.
        suffix: Bytes,
        /// The longest value that may result.
        value_bytes_max: usize,
    },
}

impl Edit {
    /// The value that the edit makes of the live record `current`, or of none.
    pub(super) fn apply_to(&self, current: Option<&Held>) -> Result<Bytes, ApplyError> {
        match current {
            Some(Held::Whole(Record { value: Value::Present(value), .. })) => self.apply(Some(value)),
            // Had the edit needed the value, it would have been read.
            Some(Held::HeaderOnly { value_bytes, .. }) => {
                Err(self.refuses_long(*value_bytes).unwrap_or(ApplyError::NotANumber))
            }
            Some(Held::Whole(_)) | None => self.apply(None),
        }
    }

    fn apply(&self, value: Option<&[u8]>) -> Result<Bytes, ApplyError> {
        match self {
            Self::Add { addend } => condition::add(value, *addend).map(|sum| Bytes::from(sum.to_string())),
            Self::Append { suffix, value_bytes_max } => {
                condition::append(value, suffix, *value_bytes_max).map(Bytes::from)
            }
        }
    }

    /// Why the edit cannot be done on a value of `value_bytes` that is too long to come with its record; none where the
    /// value itself has to be read.
    pub(super) fn refuses_long(&self, value_bytes: u32) -> Option<ApplyError> {
        match self {
            // No number is that long.
            Self::Add { .. } => Some(ApplyError::NotANumber),
            Self::Append { suffix, value_bytes_max } => {
                let bytes = (value_bytes as usize).saturating_add(suffix.len());
                let bytes_max = *value_bytes_max;
                (bytes > bytes_max).then_some(ApplyError::TooLong { bytes, bytes_max })
            }
        }
    }

    /// The answer that shows the value of an earlier try: for a counter its number, for an append nothing.
    pub(super) fn answer(&self, value: &Bytes) -> Option<Bytes> {
        matches!(self, Self::Add { .. }).then(|| value.clone())
    }
}

/// What a write makes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A value or a tombstone that does not depend on what is there.
    Set {
        mutation: Mutation,
        /// When the value expires.
        expires: Option<UnixMillis>,
    },
    /// A value from a backup.
    Restore {
        value: Bytes,
        /// The `ETag` that it had.
        origin: Version,
        expires: Option<UnixMillis>,
    },
    /// A value made from the one that is there. It keeps the expiry instant: a counter with a TTL ends when it was to end.
    Edit(Edit),
}

impl Change {
    /// The time that the write may take beyond the request timeout.
    pub(super) fn allowance(&self) -> Duration {
        match self {
            Self::Set { mutation, .. } => mutation.allowance(),
            Self::Restore { value, .. } => allowance_for(value.len() as u64),
            Self::Edit(Edit::Add { .. }) => Duration::ZERO,
            Self::Edit(Edit::Append { .. }) => allowance_for(APPENDED_BYTES_MAX as u64),
        }
    }

    pub(super) fn edit(&self) -> Option<&Edit> {
        match self {
            Self::Set { .. } | Self::Restore { .. } => None,
            Self::Edit(edit) => Some(edit),
        }
    }

    /// The `ETag` of the record that it makes, if that is not its version.
    pub(super) fn origin(&self) -> Option<Version> {
        match self {
            Self::Restore { origin, .. } => Some(*origin),
            Self::Set { .. } | Self::Edit(_) => None,
        }
    }

    /// The record under `ballot`. `edited` is the value that an edit has made, and `current` the record that it was made
    /// from, if that has a value.
    pub(super) fn record(
        &self,
        ballot: Version,
        from: u16,
        edited: Option<&Bytes>,
        current: Option<&Held>,
    ) -> Option<Record> {
        match self {
            Self::Set { mutation, expires } => Some(mutation.record(ballot, from, *expires)),
            Self::Restore { value, expires, .. } => {
                let put = Mutation::Put { value: value.clone(), ttl_millis: None };
                Some(put.record(ballot, from, *expires))
            }
            Self::Edit(_) => {
                let put = Mutation::Put { value: edited?.clone(), ttl_millis: None };
                Some(put.record(ballot, from, current.and_then(Held::expires)))
            }
        }
    }
}

/// What is known of a record without its value, as one with an empty value.
pub(super) fn shown(held: Held) -> Record {
    match held {
        Held::Whole(record) => record,
        Held::HeaderOnly { version, from, expires, conditional, .. } => {
            Record { version, from, expires, value: Value::Present(Bytes::new()), conditional }
        }
    }
}

/// Whether `held` has a value that a reader at `now` sees. A record without its value has a long one.
pub(super) fn is_live(held: &Held, now: UnixMillis) -> bool {
    match held {
        Held::Whole(record) => record.live(now).is_some(),
        Held::HeaderOnly { expires, .. } => expires.is_none_or(|at| at > now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that did not come with its record: whether it must be read, and the error where it need not be.
    #[test]
    fn long_values_are_read_only_where_they_may_grow() {
        let append = |suffix: usize| Edit::Append { suffix: vec![0; suffix].into(), value_bytes_max: 10_000 };
        assert_eq!(Edit::Add { addend: 1 }.refuses_long(5_000), Some(ApplyError::NotANumber));
        assert_eq!(append(5_000).refuses_long(5_000), None);
        let too_long = ApplyError::TooLong { bytes: 10_001, bytes_max: 10_000 };
        assert_eq!(append(5_001).refuses_long(5_000), Some(too_long));
        assert!(matches!(append(1).refuses_long(u32::MAX), Some(ApplyError::TooLong { .. })));
    }
}
