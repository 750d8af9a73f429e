//! A small seeded generator: the same seed always gives the same keys and values, on every machine.
//!
//! `SplitMix64` (Steele, Lea, Flood 2014) is written here rather than imported because recorded runs must
//! stay repeatable when a dependency changes.

/// A `SplitMix64` stream: 64 bits per step, period 2^64.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Starts the stream that belongs to `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        finish(self.state)
    }

    /// A number from 0 to `bound` - 1, uniform to within `bound` / 2^64; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to below 1, of 53 bits.
    pub fn unit(&mut self) -> f64 {
        crate::units::float(self.next_u64() >> 11) / crate::units::float(1 << 53)
    }
}

/// Mixes `value` into one well spread 64-bit number: a hash for small integers.
pub const fn mix(value: u64) -> u64 {
    finish(value.wrapping_add(GOLDEN_GAMMA))
}

/// 2^64 divided by the golden ratio, made odd: `SplitMix64`'s increment.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

const fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the stream is the published one. Method: the reference values for seed 1234567.
    #[test]
    fn the_stream_is_the_published_one() {
        let mut rng = SplitMix64::new(1_234_567);
        let seen: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(seen, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    /// Goal: `below` stays below and reaches every number. Method: draw often from a small bound.
    #[test]
    fn below_covers_its_range_and_nothing_else() {
        let mut rng = SplitMix64::new(7);
        let mut seen = [0_u32; 5];
        for _ in 0..10_000 {
            seen[usize::try_from(rng.below(5)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| count > 1_800), "{seen:?}");
        assert_eq!(SplitMix64::new(7).below(0), 0);
    }

    /// Goal: different seeds give different streams. Method: compare the first draws.
    #[test]
    fn seeds_differ() {
        assert_ne!(SplitMix64::new(1).next_u64(), SplitMix64::new(2).next_u64());
        assert_ne!(mix(1), mix(2));
    }
}
