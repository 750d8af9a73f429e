//! The counts of `--verify`: answers that were compared, their different keys, and the first wrong answers.

use crate::dataset::Dataset;

/// Different keys are told apart up to this index: 2 MiB of bits.
const INDEX_MAX: u64 = 1 << 24;

/// The most wrong answers that are described.
const WRONG_MAX: usize = 3;

/// The answers of one stream, or of a lane of it, whose bodies were compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Answers to reads whose whole body was compared with its key's value.
    pub reads: u64,
    /// Scans whose records were compared.
    pub scans: u64,
    /// Descriptions of the first wrong answers; at most three.
    pub wrong: Vec<String>,
    /// A bit for each key that was compared, by its index.
    keys: Vec<u64>,
    /// Whether keys beyond [`INDEX_MAX`] were compared, which are not told apart.
    has_more_keys: bool,
}

impl Verified {
    /// Counts an answer to a read of key `index`.
    pub fn read(&mut self, index: u64) {
        self.reads += 1;
        let Some(word) = usize::try_from(index / 64).ok().filter(|_| index < INDEX_MAX) else {
            self.has_more_keys = true;
            return;
        };
        if word >= self.keys.len() {
            self.keys.resize(word + 1, 0);
        }
        if let Some(word) = self.keys.get_mut(word) {
            *word |= 1 << (index % 64);
        }
    }

    /// Remembers a wrong answer, if it is one of the first.
    pub fn wrong(&mut self, description: impl FnOnce() -> String) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(description());
        }
    }

    /// How many different keys were compared, and whether there were more that are not told apart.
    pub fn different_keys(&self) -> (u64, bool) {
        (self.keys.iter().map(|word| u64::from(word.count_ones())).sum(), self.has_more_keys)
    }

    /// The first and the last key that were compared, in the order of keys.
    pub fn range(&self) -> Option<(String, String)> {
        let first = self.keys.iter().position(|&word| word != 0)?;
        let last = self.keys.iter().rposition(|&word| word != 0)?;
        let of = |word: usize, bit: u32| Dataset::key(word as u64 * 64 + u64::from(bit));
        let bits = |word: usize| self.keys.get(word).copied().unwrap_or(1);
        Some((of(first, bits(first).trailing_zeros()), of(last, bits(last).ilog2())))
    }

    /// Adds what another lane has compared.
    pub fn merge(&mut self, other: &Self) {
        self.reads += other.reads;
        self.scans += other.scans;
        self.has_more_keys |= other.has_more_keys;
        if self.keys.len() < other.keys.len() {
            self.keys.resize(other.keys.len(), 0);
        }
        for (word, more) in self.keys.iter_mut().zip(&other.keys) {
            *word |= more;
        }
        let room = WRONG_MAX.saturating_sub(self.wrong.len());
        self.wrong.extend(other.wrong.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys are counted once, over all lanes, and their range is known. Method: two lanes with a key in common.
    #[test]
    fn keys_are_told_apart() {
        let lane = |keys: &[u64]| {
            let mut verified = Verified::default();
            for &key in keys {
                verified.read(key);
            }
            verified
        };
        let mut all = lane(&[70, 3, 70]);
        assert_eq!((all.reads, all.different_keys()), (3, (2, false)));
        all.merge(&lane(&[3, 200, INDEX_MAX]));
        assert_eq!((all.reads, all.different_keys()), (6, (3, true)));
        assert_eq!(all.range(), Some(("key-000000000003".into(), "key-000000000200".into())));
        assert_eq!(lane(&[]).range(), None);
    }

    /// Goal: descriptions are bounded. Method: more than there is room for, in two lanes.
    #[test]
    fn few_wrong_answers_are_described() {
        let mut all = Verified::default();
        for number in 0..2 {
            all.wrong(|| number.to_string());
        }
        all.merge(&all.clone());
        all.wrong(|| "late".to_owned());
        assert_eq!(all.wrong, ["0", "1", "0"]);
    }
}
