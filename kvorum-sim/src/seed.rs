//! Randomness: everything random in a run comes from one number, by named streams.
//!
//! Every use of randomness has a stream of its own, made from the seed and a name. So a new draw in one place
//! does not change the draws of any other, and a seed that failed mostly keeps its plan while the code
//! changes.
//!
//! The generator is xoshiro256++ (Blackman and Vigna 2018), seeded by `SplitMix64` as its authors advise. It
//! is thirty lines of our own, so that no release of a library changes the plan of a seed. It need not be
//! cryptographically secure, because nothing here is a secret.

use kvorum_server::clock::Rng;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The number that decides a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seed(pub u64);

/// The random numbers of one named use.
#[derive(Debug, Clone)]
pub struct Stream {
    state: [u64; 4],
}

impl Seed {
    /// The stream of `name`; always the same numbers for one seed and name.
    pub fn stream(self, name: &str) -> Stream {
        let mut state = self.0 ^ xxh3_64(name.as_bytes());
        Stream { state: std::array::from_fn(|_| split_mix(&mut state)) }
    }

    /// The stream of the `number`th thing called `name`.
    pub fn numbered(self, name: &str, number: u64) -> Stream {
        self.stream(&format!("{name}/{number}"))
    }

    /// The `number`th seed of a batch that `text` names, for example a commit's hash.
    pub fn derived(text: &str, number: u64) -> Self {
        let mut state = xxh3_64(text.as_bytes()).wrapping_add(number);
        // Short enough to type.
        Self(split_mix(&mut state) >> 32)
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Stream {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        let [mut a, mut b, mut c, mut d] = self.state;
        let word = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        c ^= a;
        d ^= b;
        b ^= c;
        a ^= d;
        c ^= shifted;
        d = d.rotate_left(45);
        self.state = [a, b, c, d];
        word
    }

    /// A number below `bound`; 0 for a bound of 0. The bias of the modulus is too small to affect a run.
    pub fn below(&mut self, bound: u64) -> u64 {
        let word = self.word();
        if bound == 0 { 0 } else { word % bound }
    }

    /// A number of `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A node, client or count of `low..=high`.
    pub fn between_u16(&mut self, low: u16, high: u16) -> u16 {
        u16::try_from(self.between(u64::from(low), u64::from(high))).unwrap_or(low)
    }

    /// A duration of `low..=high`, to the millisecond.
    pub fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        let millis = |of: Duration| u64::try_from(of.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.between(millis(low), millis(high)))
    }

    /// True in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.below(items.len() as u64);
        items.get(usize::try_from(at).unwrap_or(0))
    }

    /// One of `items`, each as often as its weight says; `None` if all weights are 0.
    pub fn weighted<'a, T>(&mut self, items: &'a [(u64, T)]) -> Option<&'a T> {
        let mut left = self.below(items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if left < *weight {
                return Some(item);
            }
            left -= weight;
        }
        None
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap_or(0);
            items.swap(at, other);
        }
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            for (to, from) in piece.iter_mut().zip(self.word().to_le_bytes()) {
                *to = from;
            }
        }
    }
}

/// One node's randomness.
#[derive(Debug)]
pub struct SimRng {
    // Guards the generator; held for one fill.
    stream: Mutex<Stream>,
}

impl SimRng {
    /// The randomness of run number `life` of `node`: a restarted machine does not repeat itself.
    pub fn of_node(seed: Seed, node: u16, life: u64) -> Self {
        Self { stream: Mutex::new(seed.numbered(&format!("node/{node}/random"), life)) }
    }
}

impl Rng for SimRng {
    fn fill(&self, bytes: &mut [u8]) {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed always gives the same numbers: these were computed once and must never change.
    #[test]
    fn streams_are_stable() {
        let mut stream = Seed(1).stream("plan");
        let words: Vec<u64> = (0..3).map(|_| stream.word()).collect();
        assert_eq!(words, STABLE, "{words:?}");
    }

    const STABLE: [u64; 3] =
        [2_074_791_707_288_603_754, 8_969_460_208_026_193_859, 7_408_901_476_685_152_691];

    /// The reference output of `SplitMix64` for seed 1234567 (its authors' test vector).
    #[test]
    fn split_mix_is_the_published_one() {
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut state), 3_203_168_211_198_807_973);
    }

    /// The generator's first numbers from the state 1, 2, 3, 4, as published implementations give them.
    #[test]
    fn xoshiro_is_the_published_one() {
        let mut stream = Stream { state: [1, 2, 3, 4] };
        assert_eq!([stream.word(), stream.word()], [41_943_041, 58_720_359]);
    }

    /// Different names differ, different numbers differ, and the same name gives the same again.
    #[test]
    fn names_are_apart() {
        let first = |stream: Stream| stream.clone().word();
        assert_ne!(first(Seed(1).stream("a")), first(Seed(1).stream("b")));
        assert_ne!(first(Seed(1).stream("a")), first(Seed(2).stream("a")));
        assert_ne!(first(Seed(1).numbered("a", 0)), first(Seed(1).numbered("a", 1)));
        assert_eq!(first(Seed(1).stream("a")), first(Seed(1).stream("a")));
        assert_eq!(Seed::derived("x", 3), Seed::derived("x", 3));
        assert_ne!(Seed::derived("x", 3), Seed::derived("y", 3));
    }

    /// Every bounded draw stays within its bounds and reaches both ends.
    #[test]
    fn draws_are_bounded() {
        let mut stream = Seed(7).stream("bounds");
        let draws: Vec<u64> = (0..1000).map(|_| stream.between(3, 6)).collect();
        assert_eq!((draws.iter().min(), draws.iter().max()), (Some(&3), Some(&6)));
        assert_eq!(stream.below(0), 0);
        assert_eq!(stream.pick::<u8>(&[]), None);
        assert_eq!(stream.weighted(&[(0, 'a'), (1, 'b'), (0, 'c')]), Some(&'b'));
        let mut items: Vec<u64> = (0..50).collect();
        stream.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
