//! Fields: the types that messages consist of, and the bytes of each. `docs/wire.md` has a row for every type.
//!
//! A value has exactly one encoding. What the reader of a type refuses, the writer refuses too; only the text of a
//! refusal is cut instead.

use super::frame::Pieces;
use super::message::{DETAIL_BYTES_MAX, REGISTRY_LEN_MAX};
use super::terms::{
    ApplyKind, BallotReply, BallotVote, Held, HeldBack, MessageError, Refusal, ScanRow, StepKind, StretchRow,
    Timestamp, VersionRow,
};
use crate::replica::{Applied, Fetched, Floor};
use crate::slow::TraceContext;
use bytes::{Buf, BufMut, Bytes};
use kvorum_core::agreement::{Ballot, ConfigurationHash, Epoch, Instance, Voter};
use kvorum_core::conditional::EARLIER_LEN_MAX;
use kvorum_core::configuration::{Configuration, ENCODED_BYTES_MAX};
use kvorum_core::{
    ClusterId, Conditional, Key, Lineage, NodeId, Record, Run, StoreSeen, UnixMillis, Value, Version,
};
use std::num::{NonZeroU64, NonZeroU128};

/// A type that a field of a message can have.
pub(super) trait Field: Sized {
    /// The fewest bytes that a value takes.
    const BYTES_MIN: usize;
    /// The most values in a list. The count before a list has 2 bytes if this number fits into them, otherwise 4.
    const LIST_LEN_MAX: usize = COUNT_U16_MAX;

    /// Writes the value.
    fn put(&self, to: &mut Pieces) -> Result<(), MessageError>;

    /// Reads a value.
    fn get(from: &mut Bytes) -> Result<Self, MessageError>;

    /// The highest timestamp in the value; 0 if it has none. Times of day are only compared, and do not count.
    fn newest(&self) -> u64;

    /// Whether `next` may follow this value in a list.
    fn may_precede(&self, _next: &Self) -> bool {
        true
    }
}

const COUNT_U16_MAX: usize = u16::MAX as usize;
const COUNT_U32_MAX: usize = u32::MAX as usize;

/// Implements [`Field`] for big-endian integers.
macro_rules! integers {
    ($($Integer:ty: $put:ident, $try_get:ident $({ $($more:tt)* })?;)*) => {$(
        impl Field for $Integer {
            const BYTES_MIN: usize = size_of::<$Integer>();

            fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
                to.short.$put(*self);
                Ok(())
            }

            fn get(from: &mut Bytes) -> Result<Self, MessageError> {
                Ok(from.$try_get()?)
            }

            fn newest(&self) -> u64 {
                0
            }

            $($($more)*)?
        }
    )*};
}

integers! {
    u8: put_u8, try_get_u8;
    // In a list, these are the indexes of partitions or nodes: they ascend.
    u16: put_u16, try_get_u16 {
        fn may_precede(&self, next: &Self) -> bool {
            self < next
        }
    };
    u32: put_u32, try_get_u32;
    u64: put_u64, try_get_u64;
    u128: put_u128, try_get_u128;
}

/// Implements [`Field`] for structs whose bytes are the bytes of their fields in this order.
macro_rules! structs {
    ($(
        $Struct:ident $(($whole:ident: $Whole:ty))? $({ $($field:ident: $Field:ty),* })?
        $(lists of $list_len_max:expr)?;
    )*) => {$(
        impl Field for $Struct {
            const BYTES_MIN: usize = 0 $(+ <$Whole>::BYTES_MIN)? $($(+ <$Field>::BYTES_MIN)*)?;
            $(const LIST_LEN_MAX: usize = $list_len_max;)?

            fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
                let Self { $(0: $whole)? $($($field),*)? } = self;
                $($whole.put(to)?;)?
                $($($field.put(to)?;)*)?
                Ok(())
            }

            fn get(from: &mut Bytes) -> Result<Self, MessageError> {
                Ok(Self { $(0: <$Whole>::get(from)?)? $($($field: <$Field>::get(from)?),*)? })
            }

            fn newest(&self) -> u64 {
                let Self { $(0: $whole)? $($($field),*)? } = self;
                0 $(.max($whole.newest()))? $($(.max($field.newest()))*)?
            }
        }

        #[cfg(test)]
        super::tests::values::any_value! { $Struct = $(($whole: $Whole))? $({ $($field: $Field),* })? }
    )*};
}

structs! {
    NodeId(number: u64) lists of REGISTRY_LEN_MAX;
    UnixMillis(number: u64);
    Run { number: u64, nonce: u64 };
    StoreSeen { node: NodeId, store: u128, run: Run } lists of REGISTRY_LEN_MAX;
    ScanRow { key: Key, held: Held } lists of COUNT_U32_MAX;
    StretchRow { agreed: Timestamp, key: Key, record: Record } lists of COUNT_U32_MAX;
    Epoch(number: u64);
    ConfigurationHash(number: u128);
    Instance { epoch: Epoch, hash: ConfigurationHash };
    Voter { node: NodeId, store: u128 };
    Ballot { round: u64, proposer: Voter };
}

/// An enum that is sent as the tag byte of its variant, and the fields of the variant behind it.
pub(super) trait Tagged: Sized {
    /// The tags of all variants.
    const TAGS: &[u8];
    /// The value that stands for tags without a variant; none if they are refused.
    const OTHER: Option<Self> = None;

    /// The tag of this value's variant.
    fn tag(&self) -> u8;

    /// Writes the fields, without the tag.
    fn put_fields(&self, to: &mut Pieces) -> Result<(), MessageError>;

    /// Reads the fields of the variant with this tag.
    fn get_fields(tag: u8, from: &mut Bytes) -> Result<Self, MessageError>;

    /// The highest timestamp in the fields; 0 if they have none.
    fn newest_of_fields(&self) -> u64;
}

impl<T: Tagged> Field for T {
    const BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.tag().put(to)?;
        self.put_fields(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let tag = u8::get(from)?;
        match T::OTHER {
            Some(other) if !T::TAGS.contains(&tag) => Ok(other),
            _ => T::get_fields(tag, from),
        }
    }

    fn newest(&self) -> u64 {
        self.newest_of_fields()
    }
}

/// Implements [`Tagged`] for enums, by rows of a tag, a variant and its fields. A variant without a row does not compile.
macro_rules! tagged {
    ($($Enum:ident { $(
        $tag:literal $Name:ident $(($whole:ident: $Whole:ty))? $({ $($field:ident: $Field:ty),* })?
    ),* } $(otherwise $Other:ident)?;)*) => {$(
        #[allow(unused_variables, reason = "there are enums without fields")]
        impl Tagged for $Enum {
            const TAGS: &[u8] = &[$($tag),*];
            $(const OTHER: Option<Self> = Some(Self::$Other);)?

            fn tag(&self) -> u8 {
                match self {
                    $(Self::$Name { .. } => $tag,)*
                }
            }

            fn put_fields(&self, to: &mut Pieces) -> Result<(), MessageError> {
                match self {
                    $(Self::$Name { $(0: $whole)? $($($field),*)? } => {
                        $($whole.put(to)?;)?
                        $($($field.put(to)?;)*)?
                    })*
                }
                Ok(())
            }

            fn get_fields(tag: u8, from: &mut Bytes) -> Result<Self, MessageError> {
                Ok(match tag {
                    $($tag => Self::$Name {
                        $(0: <$Whole>::get(from)?)?
                        $($($field: <$Field>::get(from)?),*)?
                    },)*
                    value => return Err(MessageError::UnknownValue { value }),
                })
            }

            fn newest_of_fields(&self) -> u64 {
                match self {
                    $(Self::$Name { $(0: $whole)? $($($field),*)? } => {
                        0 $(.max($whole.newest()))? $($(.max($field.newest()))*)?
                    })*
                }
            }
        }

        #[cfg(test)]
        super::tests::values::any_value! {
            $Enum = $(:: $Name $(($whole: $Whole))? $({ $($field: $Field),* })?);*
        }
    )*};
}
pub(super) use tagged;

tagged! {
    ApplyKind { 0 Write, 1 Hint, 2 ReadRepair, 3 Ballot };
    StepKind { 0 Agree, 1 Seal, 2 Release };
    HeldBack { 1 Away, 2 NotVoting, 3 Hints, 4 Differs, 5 NotHeard };
    Refusal {
        0 Unknown, 1 Overloaded, 2 DiskFull, 3 Failed, 4 NotVoting, 5 Stopped, 6 Starting, 7 Damaged, 8 TooFarAhead,
        9 TooLong, 10 NotVotingYet, 11 Epoch
    } otherwise Unknown;
    Applied {
        0 Stored, 1 Superseded { by: Version, memory_millis: u32 }, 2 TooLate { upto: Version },
        3 Contested { by: Version }
    };
    BallotReply {
        0 Promised { held: Option<Held>, has_held: bool, has_built: bool, memory_millis: u32 },
        1 Denied { by: Version }
    };
    Fetched { 0 Nothing, 1 Record(record: Record), 2 Damaged };
    BallotVote {
        0 Promised { voter: Voter, accepted: Option<(Ballot, Configuration)> }, 1 Accepted { voter: Voter },
        2 NotNamed { voter: Voter }, 3 OtherInstance { ours: Instance }, 4 Outbid { by: Ballot }, 5 Refused
    };
}

impl Field for Timestamp {
    const BYTES_MIN: usize = u64::BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.0.put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        Field::get(from).map(Self)
    }

    fn newest(&self) -> u64 {
        self.0
    }
}

impl Field for bool {
    const BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        u8::from(*self).put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        match Field::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(MessageError::UnknownValue { value }),
        }
    }

    fn newest(&self) -> u64 {
        0
    }
}

impl<T: Field> Field for Option<T> {
    const BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.is_some().put(to)?;
        self.as_ref().map_or(Ok(()), |value| value.put(to))
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }

    fn newest(&self) -> u64 {
        self.as_ref().map_or(0, T::newest)
    }
}

/// The order of a list of pairs is the order of their first parts.
impl<A: Field, B: Field> Field for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.0.put(to)?;
        self.1.put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        Ok((A::get(from)?, B::get(from)?))
    }

    fn newest(&self) -> u64 {
        self.0.newest().max(self.1.newest())
    }

    fn may_precede(&self, next: &Self) -> bool {
        self.0.may_precede(&next.0)
    }
}

impl<T: Field> Field for Vec<T> {
    const BYTES_MIN: usize = if T::LIST_LEN_MAX <= COUNT_U16_MAX { u16::BYTES_MIN } else { u32::BYTES_MIN };

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        put_count::<T>(self.len(), to)?;
        check_order(self)?;
        self.iter().try_for_each(|item| item.put(to))
    }

    /// A count that the rest of the payload cannot hold reserves no memory.
    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        const { assert!(T::BYTES_MIN > 0, "a list of values without bytes has no bound") };
        let count = get_count::<T>(from)?;
        if count > from.len() / T::BYTES_MIN {
            return Err(MessageError::Truncated);
        }
        let mut items = Self::with_capacity(count);
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        check_order(&items)?;
        Ok(items)
    }

    fn newest(&self) -> u64 {
        self.iter().map(T::newest).max().unwrap_or_default()
    }
}

fn put_count<T: Field>(count: usize, to: &mut Pieces) -> Result<(), MessageError> {
    check_count(count, T::LIST_LEN_MAX)?;
    match u16::try_from(count) {
        Ok(count) if T::LIST_LEN_MAX <= COUNT_U16_MAX => count.put(to),
        _ => length(count)?.put(to),
    }
}

fn get_count<T: Field>(from: &mut Bytes) -> Result<usize, MessageError> {
    let count =
        if T::LIST_LEN_MAX <= COUNT_U16_MAX { u16::get(from)?.into() } else { u32::get(from)? as usize };
    check_count(count, T::LIST_LEN_MAX)?;
    Ok(count)
}

fn check_count(count: usize, count_max: usize) -> Result<(), MessageError> {
    if count > count_max { Err(MessageError::TooMany { count, count_max }) } else { Ok(()) }
}

fn check_order<T: Field>(items: &[T]) -> Result<(), MessageError> {
    if items.is_sorted_by(T::may_precede) { Ok(()) } else { Err(MessageError::Unsorted) }
}

/// A length in bytes, or a count, that is sent in 4 bytes.
fn length(length: usize) -> Result<u32, MessageError> {
    u32::try_from(length).map_err(|_| MessageError::TooMany { count: length, count_max: COUNT_U32_MAX })
}

fn get_bytes(from: &mut Bytes, bytes: usize) -> Result<Bytes, MessageError> {
    if from.len() < bytes { Err(MessageError::Truncated) } else { Ok(from.split_to(bytes)) }
}

/// The text of a refusal, the only text in messages. The writer cuts it to [`DETAIL_BYTES_MAX`].
impl Field for String {
    const BYTES_MIN: usize = 2;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        let text = self.get(..self.floor_char_boundary(DETAIL_BYTES_MAX)).unwrap_or_default();
        u16::try_from(text.len()).unwrap_or_default().put(to)?;
        to.short.put_slice(text.as_bytes());
        Ok(())
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let bytes = usize::from(u16::get(from)?);
        check_count(bytes, DETAIL_BYTES_MAX)?;
        let text = get_bytes(from, bytes)?;
        Ok(std::str::from_utf8(&text).map_err(|_| MessageError::Text)?.to_owned())
    }

    fn newest(&self) -> u64 {
        0
    }
}

impl Field for ClusterId {
    const BYTES_MIN: usize = u128::BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        Self::get(*self).put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        Self::new(Field::get(from)?).ok_or(MessageError::UnknownValue { value: 0 })
    }

    fn newest(&self) -> u64 {
        0
    }
}

/// Neither of its ids may be 0, as in the standard for traces.
impl Field for TraceContext {
    const BYTES_MIN: usize = u128::BYTES_MIN + u64::BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.trace.get().put(to)?;
        self.span.get().put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let zero = || MessageError::UnknownValue { value: 0 };
        let trace = NonZeroU128::new(Field::get(from)?).ok_or_else(zero)?;
        let span = NonZeroU64::new(Field::get(from)?).ok_or_else(zero)?;
        Ok(Self { trace, span })
    }

    fn newest(&self) -> u64 {
        0
    }
}

/// A key shares the bytes of the frame that it came in.
impl Field for Key {
    const BYTES_MIN: usize = 3;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        // A key has at most 1,024 bytes.
        u16::try_from(self.as_bytes().len()).unwrap_or(u16::MAX).put(to)?;
        to.short.put_slice(self.as_bytes());
        Ok(())
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let bytes = u16::get(from)?.into();
        Ok(Self::new(get_bytes(from, bytes)?)?)
    }

    fn newest(&self) -> u64 {
        0
    }
}

/// Lists of versions are the earlier ones of one write.
impl Field for Version {
    const BYTES_MIN: usize = 16;
    const LIST_LEN_MAX: usize = EARLIER_LEN_MAX;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.clock().put(to)?;
        self.node().put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        Ok(Self::from_words(Field::get(from)?, Field::get(from)?))
    }

    fn newest(&self) -> u64 {
        self.clock()
    }
}

/// A configuration has bytes of its own, in which it is also stored and hashed.
impl Field for Configuration {
    const BYTES_MIN: usize = 4;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        let bytes = self.encode();
        length(bytes.len())?.put(to)?;
        to.short.put_slice(&bytes);
        Ok(())
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let bytes = u32::get(from)? as usize;
        check_count(bytes, ENCODED_BYTES_MAX)?;
        Self::decode(&get_bytes(from, bytes)?).map_err(|_| MessageError::Configuration)
    }

    fn newest(&self) -> u64 {
        0
    }
}

impl Field for Floor {
    const BYTES_MIN: usize = 24;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        [self.agreed, self.sealed, self.purged].iter().try_for_each(|timestamp| timestamp.put(to))
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        Ok(Self { agreed: Field::get(from)?, sealed: Field::get(from)?, purged: Field::get(from)? })
    }

    fn newest(&self) -> u64 {
        self.agreed.max(self.sealed).max(self.purged)
    }
}

impl Field for VersionRow {
    const BYTES_MIN: usize = Key::BYTES_MIN + Version::BYTES_MIN + 3;
    const LIST_LEN_MAX: usize = COUNT_U32_MAX;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.key.put(to)?;
        self.version.put(to)?;
        check_from(self.from)?.put(to)?;
        self.is_tombstone.put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let (key, version) = Field::get(from)?;
        Ok(Self { key, version, from: check_from(Field::get(from)?)?, is_tombstone: Field::get(from)? })
    }

    fn newest(&self) -> u64 {
        self.version.newest()
    }
}

fn check_from(from: u16) -> Result<u16, MessageError> {
    if from == 0 { Err(MessageError::Contradiction) } else { Ok(from) }
}

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_EXPIRY: u8 = 2;
const FLAG_HEADER_ONLY: u8 = 4;
const FLAG_CONDITIONAL: u8 = 8;
const FLAGS: u8 = FLAG_TOMBSTONE | FLAG_EXPIRY | FLAG_HEADER_ONLY | FLAG_CONDITIONAL;

/// Flags, version, `from`.
const HEADER_BYTES_MIN: usize = 19;

fn put_header(
    to: &mut Pieces,
    flags: u8,
    version: Version,
    from: u16,
    expires: Option<UnixMillis>,
    conditional: Option<&Conditional>,
) -> Result<(), MessageError> {
    let expiry = if expires.is_some() { FLAG_EXPIRY } else { 0 };
    (flags | expiry | if conditional.is_some() { FLAG_CONDITIONAL } else { 0 }).put(to)?;
    version.put(to)?;
    check_from(from)?.put(to)?;
    expires.map_or(Ok(()), |expires| expires.put(to))?;
    conditional.map_or(Ok(()), |conditional| conditional.put(to))
}

impl Field for Conditional {
    const BYTES_MIN: usize = 48;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        self.lineage.origin.put(to)?;
        self.lineage.base.put(to)?;
        self.operation.map_or(0, NonZeroU128::get).put(to)
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        let lineage = Lineage { origin: Field::get(from)?, base: Field::get(from)? };
        Ok(Self { lineage, operation: NonZeroU128::new(Field::get(from)?) })
    }

    fn newest(&self) -> u64 {
        self.lineage.origin.newest().max(self.lineage.base.newest())
    }
}

/// The highest timestamp of a record: that of its version, unless what it notes contradicts it.
fn newest_of(version: Version, conditional: Option<&Conditional>) -> u64 {
    version.newest().max(conditional.map_or(0, Conditional::newest))
}

/// A value shares the bytes of the frame that it came in, and goes out without a copy if it is long.
impl Field for Record {
    const BYTES_MIN: usize = HEADER_BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        match &self.value {
            Value::Present(value) => {
                put_header(to, 0, self.version, self.from, self.expires, self.conditional.as_deref())?;
                length(value.len())?.put(to)?;
                to.put_value(value);
                Ok(())
            }
            Value::Tombstone => {
                let conditional = self.conditional.as_deref();
                put_header(to, FLAG_TOMBSTONE, self.version, self.from, self.expires, conditional)
            }
        }
    }

    fn get(from: &mut Bytes) -> Result<Self, MessageError> {
        match Field::get(from)? {
            Held::Whole(record) => Ok(record),
            Held::HeaderOnly { .. } => Err(MessageError::UnknownValue { value: FLAG_HEADER_ONLY }),
        }
    }

    fn newest(&self) -> u64 {
        newest_of(self.version, self.conditional.as_deref())
    }
}

impl Field for Held {
    const BYTES_MIN: usize = HEADER_BYTES_MIN;

    fn put(&self, to: &mut Pieces) -> Result<(), MessageError> {
        match self {
            Self::Whole(record) => record.put(to),
            Self::HeaderOnly { version, from, expires, conditional, value_bytes } => {
                put_header(to, FLAG_HEADER_ONLY, *version, *from, *expires, conditional.as_deref())?;
                value_bytes.put(to)
            }
        }
    }

    fn get(payload: &mut Bytes) -> Result<Self, MessageError> {
        let flags = u8::get(payload)?;
        if flags & !FLAGS != 0 {
            return Err(MessageError::UnknownValue { value: flags });
        }
        let (version, from) = (Field::get(payload)?, check_from(Field::get(payload)?)?);
        let expires = (flags & FLAG_EXPIRY != 0).then(|| Field::get(payload)).transpose()?;
        let conditional = (flags & FLAG_CONDITIONAL != 0)
            .then(|| Field::get(payload))
            .transpose()?
            .map(|conditional: Conditional| Box::new(conditional));
        let value = match (flags & FLAG_TOMBSTONE != 0, flags & FLAG_HEADER_ONLY != 0) {
            (true, true) => return Err(MessageError::Contradiction),
            (true, false) => Value::Tombstone,
            (false, true) => {
                let value_bytes = Field::get(payload)?;
                return Ok(Self::HeaderOnly { version, from, expires, conditional, value_bytes });
            }
            (false, false) => {
                let bytes = u32::get(payload)? as usize;
                Value::Present(get_bytes(payload, bytes)?)
            }
        };
        Ok(Self::Whole(Record { version, from, expires, value, conditional }))
    }

    fn newest(&self) -> u64 {
        newest_of(self.version(), self.conditional())
    }
}
