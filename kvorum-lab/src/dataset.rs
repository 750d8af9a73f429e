//! The records that a load writes and reads: key and value are functions of an index.
//!
//! Because a value follows from its key alone, a GET can be checked without remembering what was put, and two
//! runs against the same node agree. Values are pseudo-random bytes: they do not compress, so a store cannot
//! look faster or smaller than its disk.

use crate::rng::{SplitMix64, mix};

/// What every key of the lab begins with.
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
    /// Which values: another seed gives other contents under the same keys.
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

    /// Goal: a value is recognised, and nothing else is. Method: change one thing at a time.
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
}
