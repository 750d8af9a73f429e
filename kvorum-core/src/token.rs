//! Tokens and partitions: a key's place in the hash space, and the range of places that are kept together.
//!
//! A token is the xxh3-64 of the key's bytes with the seed [`TOKEN_SEED`]; a partition is the token's top bits.
//! Both are stored and sent to other nodes: neither can change in a running cluster.

/// The seed of tokens: the bytes of `kvorum` and a 1. It differs from the seed of node ids, so that a key
/// that is a URL is unrelated to the node at that URL.
pub const TOKEN_SEED: u64 = 0x6b76_6f72_756d_0001;

/// The default number of top bits of a token that name its partition: 4,096 partitions, some 40 for each of
/// 100 nodes, so that a node's share can be even to a few per cent.
pub const PARTITION_BITS_DEFAULT: u8 = 12;

/// The most bits of a partition: it is a 16-bit number on disk and on the wire.
pub const PARTITION_BITS_MAX: u8 = 16;

/// A key's place in the hash space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A range of tokens that is placed, compared and moved as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

impl Token {
    /// The token of the key with these bytes.
    pub fn of(key: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64_with_seed(key, TOKEN_SEED))
    }

    /// The partition of this token when partitions are `bits` wide: 1 to [`PARTITION_BITS_MAX`], other widths
    /// are clamped.
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are left after the shift")]
    pub fn partition(self, bits: u8) -> Partition {
        Partition((self.0 >> (64 - u32::from(bits.clamp(1, PARTITION_BITS_MAX)))) as u16)
    }
}

impl Partition {
    /// All partitions that are `bits` wide, rising. `bits` is clamped as in [`Token::partition`].
    pub fn all(bits: u8) -> impl Iterator<Item = Self> {
        let last = u16::MAX >> (PARTITION_BITS_MAX - bits.clamp(1, PARTITION_BITS_MAX));
        (0..=last).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens are on disk and on the wire: these values, computed by another implementation, may never change.
    #[test]
    fn tokens_are_golden() {
        let check = |key: &[u8], token: u64, partition: u16| {
            assert_eq!(Token::of(key), Token(token), "{key:?}: {:#018x}", Token::of(key).0);
            assert_eq!(Token::of(key).partition(PARTITION_BITS_DEFAULT), Partition(partition), "{key:?}");
        };
        check(b"", 0xde52_c276_ff4a_0848, 3557);
        check(b"a", 0x239c_5507_cc7e_6d3c, 569);
        check(b"key-000123", 0x5f88_992d_586b_17f4, 1528);
        check("ключ".as_bytes(), 0xbfa5_749f_2966_738a, 3066);
        check(&[0; 1024], 0x15b6_c736_8fde_c8be, 347);
    }

    /// The ends of the hash space, and widths that do not exist.
    #[test]
    fn partition_is_the_top_bits() {
        let check =
            |token, bits, expect| assert_eq!(Token(token).partition(bits), Partition(expect), "{bits}");
        check(0, 12, 0);
        check(u64::MAX, 12, 4095);
        check(1 << 52, 12, 1);
        check((1 << 52) - 1, 12, 0);
        check(u64::MAX, 1, 1);
        check(u64::MAX, 16, u16::MAX);
        check(u64::MAX, 0, 1);
        check(u64::MAX, 200, u16::MAX);
        assert_eq!(Partition::all(1).collect::<Vec<_>>(), [Partition(0), Partition(1)]);
        assert_eq!(Partition::all(12).count(), 4096);
        assert_eq!(Partition::all(16).count(), 65_536);
    }

    proptest! {
        /// Partitions are ranges: they rise with the token, and a wider partition splits into narrower ones.
        #[test]
        fn partitions_are_ranges(a: u64, b: u64, bits in 2..=16u8) {
            prop_assert!(Token(a.min(b)).partition(bits) <= Token(a.max(b)).partition(bits));
            prop_assert_eq!(Token(a).partition(bits - 1), Partition(Token(a).partition(bits).0 >> 1));
        }
    }
}
