//! The records that a load writes and reads: key and value are functions of an index.
//!
//! A value follows from its key alone. So a GET can be checked without remembering the PUT, and two runs
//! against the same node agree. Values are pseudo-random bytes: they do not compress, so a store cannot look
//! faster or smaller than its disk.

use std::fmt;
use std::str::FromStr;

use crate::rng::{SplitMix64, mix};

/// The first bytes of every key of the lab.
pub const KEY_PREFIX: &str = "key-";

/// The first key after all keys of the lab: `.` follows `-` in ASCII.
pub const KEYS_END: &str = "key.";

/// Decimal digits of a key's index, so that key order is index order.
const KEY_DIGITS: usize = 12;

/// A number of records of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataset {
    /// How many keys there are; indexes run from 0 to `keys` - 1.
    pub keys: u64,
    /// The size of every value, in bytes.
    pub value_bytes: usize,
    /// Selects the values: another seed gives other contents under the same keys.
    pub seed: u64,
}

impl Dataset {
    /// Appends the key of `index`: `key-` and twelve digits. It needs no percent-encoding.
    pub fn write_key(index: u64, out: &mut Vec<u8>) {
        let mut digits = [b'0'; KEY_DIGITS];
        let mut rest = index;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        out.extend_from_slice(KEY_PREFIX.as_bytes());
        out.extend_from_slice(&digits);
    }

    /// The key of `index` as text.
    pub fn key(index: u64) -> String {
        let mut key = Vec::with_capacity(KEY_PREFIX.len() + KEY_DIGITS);
        Self::write_key(index, &mut key);
        String::from_utf8_lossy(&key).into_owned()
    }

    /// The index of `key`, or `None` where the key is not one of the lab's.
    pub fn index_of(key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(KEY_PREFIX.as_bytes())?;
        if digits.len() != KEY_DIGITS {
            return None;
        }
        digits.iter().try_fold(0_u64, |index, &digit| {
            digit.is_ascii_digit().then(|| index * 10 + u64::from(digit - b'0'))
        })
    }

    /// Appends the value of `index`, `value_bytes` long.
    pub fn write_value(&self, index: u64, out: &mut Vec<u8>) {
        let mut rng = self.stream(index);
        let target = out.len() + self.value_bytes;
        while out.len() < target {
            out.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        out.truncate(target);
    }

    /// Whether `body` is the value of `index`, byte for byte.
    pub fn is_value(&self, index: u64, body: &[u8]) -> bool {
        if body.len() != self.value_bytes {
            return false;
        }
        let mut rng = self.stream(index);
        body.chunks(8).all(|piece| rng.next_u64().to_le_bytes().starts_with(piece))
    }

    fn stream(&self, index: u64) -> SplitMix64 {
        SplitMix64::new(mix(self.seed ^ mix(index)))
    }
}

/// One size, or a range of sizes; the size of a key or value follows from its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    min: u32,
    max: u32,
}

impl Sizes {
    /// Always `bytes`.
    pub const fn fixed(bytes: u32) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// The smallest, in bytes.
    pub const fn min(self) -> usize {
        self.min as usize
    }

    /// The largest, in bytes.
    pub const fn max(self) -> usize {
        self.max as usize
    }

    /// The size that belongs to `draw`, in bytes; all equally likely.
    fn of(self, draw: u64) -> usize {
        let range = u64::from(self.max - self.min) + 1;
        self.min() + usize::try_from(SplitMix64::new(draw).below(range)).unwrap_or(0)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if min <= max => Ok(Self { min, max }),
            _ => Err(format!("{text:?} is neither BYTES nor SMALLEST-LARGEST")),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}-{}", self.min, self.max) }
    }
}

/// A dataset whose keys and values have sizes of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    /// The count and the seed; its value size applies if `value_bytes` is `None`.
    pub dataset: Dataset,
    /// Sizes of keys, of at least [`KEY_BYTES`]; without it all have that size.
    pub key_bytes: Option<Sizes>,
    /// Sizes of values, in place of the dataset's.
    pub value_bytes: Option<Sizes>,
}

/// Bytes of a key that is not padded; none is shorter.
pub const KEY_BYTES: usize = KEY_PREFIX.len() + KEY_DIGITS;

/// Makes the draw of a key's size independent of the draw of a value's size.
const KEY_SIZE_SALT: u64 = 0x6b65_7973_697a_6521;

impl Records {
    /// Appends the key of `index`: the dataset's key, and letters after it up to its size.
    pub fn write_key(&self, index: u64, out: &mut Vec<u8>) {
        Dataset::write_key(index, out);
        if let Some(sizes) = self.key_bytes {
            let mut rng = SplitMix64::new(mix(self.dataset.seed ^ mix(index ^ KEY_SIZE_SALT)));
            let bytes = sizes.of(rng.next_u64());
            for _ in KEY_BYTES..bytes {
                out.push(b'a' + u8::try_from(rng.below(26)).unwrap_or(0));
            }
        }
    }

    /// The index of `key`, or `None` where the key is not one of these.
    pub fn index_of(&self, key: &[u8]) -> Option<u64> {
        let index = Dataset::index_of(key.get(..KEY_BYTES)?)?;
        let mut expect = Vec::with_capacity(key.len());
        self.write_key(index, &mut expect);
        (expect == key).then_some(index)
    }

    /// The size of the value of `index`, in bytes.
    pub fn value_size(&self, index: u64) -> usize {
        let draw = mix(self.dataset.seed ^ mix(!index));
        self.value_bytes.map_or(self.dataset.value_bytes, |sizes| sizes.of(draw))
    }

    /// Appends the value of `index`.
    pub fn write_value(&self, index: u64, out: &mut Vec<u8>) {
        self.sized(index).write_value(index, out);
    }

    /// Whether `body` is the value of `index`, byte for byte.
    pub fn is_value(&self, index: u64, body: &[u8]) -> bool {
        self.sized(index).is_value(index, body)
    }

    /// The largest size of a record, key and value, in bytes.
    pub fn record_bytes_max(&self) -> usize {
        let key = self.key_bytes.map_or(KEY_BYTES, |sizes| sizes.max().max(KEY_BYTES));
        key + self.value_bytes.map_or(self.dataset.value_bytes, Sizes::max)
    }

    fn sized(&self, index: u64) -> Dataset {
        Dataset { value_bytes: self.value_size(index), ..self.dataset }
    }
}

impl From<Dataset> for Records {
    fn from(dataset: Dataset) -> Self {
        Self { dataset, key_bytes: None, value_bytes: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Dataset = Dataset { keys: 10, value_bytes: 100, seed: 1 };

    /// Goal: keys sort as their indexes do, lie inside the lab's range, and can be read back.
    #[test]
    fn keys_are_ordered_and_readable() {
        assert_eq!(Dataset::key(42), "key-000000000042");
        assert!(Dataset::key(9) < Dataset::key(10));
        assert!(Dataset::key(999_999_999_999).as_str() < KEYS_END);
        assert_eq!(Dataset::index_of(b"key-000000000042"), Some(42));
        assert_eq!(Dataset::index_of(b"key-42"), None);
        assert_eq!(Dataset::index_of(b"key-00000000004x"), None);
    }

    /// Goal: a value is recognised, and no other bytes are. Method: change one thing at a time.
    #[test]
    fn values_are_recognised_only_when_whole_and_right() {
        let mut value = Vec::new();
        SMALL.write_value(3, &mut value);
        assert_eq!(value.len(), 100);
        assert!(SMALL.is_value(3, &value));
        assert!(!SMALL.is_value(4, &value), "another key's value");
        assert!(!Dataset { seed: 2, ..SMALL }.is_value(3, &value), "another seed's value");
        assert!(!SMALL.is_value(3, &value[..99]), "one byte short");
        value[99] ^= 1;
        assert!(!SMALL.is_value(3, &value), "last bit flipped");
    }

    /// Goal: sizes are parsed, and other texts are refused. Method: a table.
    #[test]
    fn sizes_are_read() {
        for good in ["0", "100", "16-64", "7-7"] {
            let sizes: Sizes = good.parse().unwrap();
            assert_eq!(sizes.to_string(), if good == "7-7" { "7" } else { good });
        }
        for bad in ["", "-", "5-", "-5", "9-8", "a", "1-2-3", "4294967296"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad:?}");
        }
    }

    /// Goal: sizes stay in their range, reach its ends, and do not disturb order or recognition.
    #[test]
    fn sized_records_are_recognised() {
        let sizes = |text: &str| Some(text.parse().unwrap());
        let records =
            Records { key_bytes: sizes("16-20"), value_bytes: sizes("0-10"), ..Records::from(SMALL) };
        let (mut key_sizes, mut value_sizes) = (Vec::new(), Vec::new());
        let mut last = Vec::new();
        for index in 0..500 {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            records.write_key(index, &mut key);
            records.write_value(index, &mut value);
            assert!(key > last, "order of keys is order of indexes");
            assert_eq!(records.index_of(&key), Some(index));
            assert!(records.is_value(index, &value));
            assert_eq!(records.value_size(index), value.len());
            key_sizes.push(key.len());
            value_sizes.push(value.len());
            last = key.clone();
            key.push(b'z');
            assert_eq!(records.index_of(&key), None, "no key of these");
            value.push(0);
            assert!(!records.is_value(index, &value), "too long");
        }
        assert_eq!((key_sizes.iter().min(), key_sizes.iter().max()), (Some(&16), Some(&20)));
        assert_eq!((value_sizes.iter().min(), value_sizes.iter().max()), (Some(&0), Some(&10)));
        assert_eq!(records.record_bytes_max(), 30);
    }
}
