//! The hash of keys in the committer's maps: five look-ups for each record, on the one thread that all writes wait for.
//!
//! It is xxh3 with a random seed per map. It replaces the standard library's `SipHash`, which took a tenth of a
//! commit's time. Clients that send keys do not know the seed, and the maps hold some thousands of keys at most.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The builder of one map's hashers.
#[derive(Debug, Clone)]
pub(super) struct KeyHash {
    seed: u64,
}

impl Default for KeyHash {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.seed)
    }
}

/// The hasher of one key.
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }

    /// Ignores the length prefix of a slice: xxh3 distinguishes lengths by itself.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::Key;

    /// Goal: different keys have different hashes, and each map has its own.
    /// Method: keys with a common beginning, of all lengths up to a kilobyte, and two seeds.
    #[test]
    fn keys_and_maps_are_told_apart() {
        let (one, other) = (KeyHash::default(), KeyHash::default());
        let keys: Vec<Key> = (1..=1024).map(|length| Key::new(vec![b'k'; length]).unwrap()).collect();
        let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|key| one.hash_one(key)).collect();
        assert_eq!(hashes.len(), keys.len());
        assert!(keys.iter().all(|key| one.hash_one(key) == one.hash_one(key.clone())));
        assert!(keys.iter().all(|key| one.hash_one(key) != other.hash_one(key)));
    }
}
