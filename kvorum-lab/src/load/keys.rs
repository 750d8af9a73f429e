//! Which key an operation uses: the orders and popularities of keys.
//!
//! The key of a slot follows from the slot's number alone, never from timing, so a run can be repeated. Loads
//! that insert are the one exception: their newest key depends on which inserts have been answered.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::rng::{SplitMix64, mix};
use crate::units::float;

/// The skew of YCSB's zipfian distribution.
pub const THETA: f64 = 0.99;

/// The keys of a stream's slots.
#[derive(Debug, Clone)]
pub enum KeyOrder {
    /// Any key, all equally likely, for as long as the run lasts.
    Uniform {
        /// Another seed draws other keys.
        seed: u64,
    },
    /// The popularity of the *n*-th most popular key falls as 1 / n^theta; popular keys are scattered over
    /// the range.
    Zipfian {
        /// Another seed draws other keys.
        seed: u64,
        /// Above 0, below 1; the larger it is, the more operations go to few keys.
        theta: f64,
    },
    /// As zipfian, and the newest key (the largest index) is the most popular, the one before it the next.
    Latest {
        /// Another seed draws other keys.
        seed: u64,
        /// As for `Zipfian`.
        theta: f64,
    },
    /// Every key in order, and again from the first, for as long as the run lasts.
    Cycle,
    /// Every key once, in order; then the stream ends.
    Sequential,
    /// The listed keys, in order; then the stream ends.
    Listed(Arc<[u64]>),
}

impl KeyOrder {
    /// How many slots the order has over `keys` keys; `u64::MAX` where it never ends.
    pub fn slots(&self, keys: u64) -> u64 {
        match self {
            Self::Uniform { .. } | Self::Zipfian { .. } | Self::Latest { .. } | Self::Cycle => u64::MAX,
            Self::Sequential => keys,
            Self::Listed(listed) => listed.len() as u64,
        }
    }

    /// The seed of the other draws of a slot; 0 where nothing is drawn.
    pub(super) fn seed(&self) -> u64 {
        match *self {
            Self::Uniform { seed } | Self::Zipfian { seed, .. } | Self::Latest { seed, .. } => seed,
            Self::Cycle | Self::Sequential | Self::Listed(_) => 0,
        }
    }
}

/// An order over a number of keys, with its constants computed once.
#[derive(Debug, Clone)]
pub struct KeyChooser {
    order: KeyOrder,
    keys: u64,
    zipf: Option<Zipf>,
    /// Coprime to `keys`, so that multiplying by it moves every rank to a key of its own.
    stride: u64,
}

impl KeyChooser {
    /// A chooser for `keys` keys, at least 1.
    pub fn new(order: &KeyOrder, keys: u64) -> Self {
        let keys = keys.max(1);
        let zipf = match *order {
            KeyOrder::Zipfian { theta, .. } | KeyOrder::Latest { theta, .. } => Some(Zipf::new(keys, theta)),
            _ => None,
        };
        let mut stride = STRIDE % keys + keys;
        while greatest_common_divisor(stride, keys) != 1 {
            stride += 1;
        }
        Self { order: order.clone(), keys, zipf, stride }
    }

    /// The key of `slot`, where `newest` - 1 is the largest index that is known to be stored.
    pub fn choose(&self, slot: u64, newest: u64) -> u64 {
        let rng = |seed: u64| SplitMix64::new(mix(seed ^ mix(slot)));
        match &self.order {
            KeyOrder::Uniform { seed } => rng(*seed).below(self.keys),
            KeyOrder::Zipfian { seed, .. } => self.strewn(self.rank(&mut rng(*seed))),
            KeyOrder::Latest { seed, .. } => {
                newest.max(self.keys).saturating_sub(1 + self.rank(&mut rng(*seed)))
            }
            KeyOrder::Cycle => slot % self.keys,
            KeyOrder::Sequential => slot,
            KeyOrder::Listed(listed) => {
                usize::try_from(slot).ok().and_then(|slot| listed.get(slot)).copied().unwrap_or(0)
            }
        }
    }

    fn rank(&self, rng: &mut SplitMix64) -> u64 {
        self.zipf.as_ref().map_or(0, |zipf| zipf.rank(rng.unit()))
    }

    /// Moves popular ranks away from each other, each to a key of its own.
    fn strewn(&self, rank: u64) -> u64 {
        let product = u128::from(rank) * u128::from(self.stride) % u128::from(self.keys);
        u64::try_from(product).unwrap_or(0)
    }
}

/// A large prime: consecutive ranks land far apart.
const STRIDE: u64 = 11_400_714_819_323_198_549;

const fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Draws ranks from 0, the most popular first: the method of Gray and others (SIGMOD 1994), as in YCSB.
#[derive(Debug, Clone)]
struct Zipf {
    count: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Self {
        let zeta = zeta(count, theta);
        let eta = (1.0 - (2.0 / float(count)).powf(1.0 - theta)) / (1.0 - zeta_exact(2, theta) / zeta);
        Self { count, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// The rank at `unit` of the distribution, 0 <= `unit` < 1.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= the value < count")]
    fn rank(&self, unit: f64) -> u64 {
        let weight = unit * self.zeta;
        let rank = if weight < 1.0 {
            0
        } else if weight < 1.0 + 0.5_f64.powf(self.theta) {
            1
        } else {
            (float(self.count) * self.eta.mul_add(unit, 1.0 - self.eta).powf(self.alpha)) as u64
        };
        rank.min(self.count - 1)
    }
}

/// Terms that are added one by one; the rest is an integral, accurate here to twelve digits.
const ZETA_TERMS: u64 = 10_000;

/// The sum of 1 / i^theta for i from 1 to `count`.
fn zeta(count: u64, theta: f64) -> f64 {
    if count <= ZETA_TERMS {
        return zeta_exact(count, theta);
    }
    let (from, to) = (float(ZETA_TERMS), float(count));
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (to.powf(-theta) - from.powf(-theta)) / 2.0;
    zeta_exact(ZETA_TERMS, theta) + integral + ends
}

fn zeta_exact(count: u64, theta: f64) -> f64 {
    (1..=count).map(|rank| float(rank).powf(-theta)).sum()
}

/// The keys that a stream's inserts have added; shared by its lanes.
#[derive(Debug)]
pub struct Inserts {
    /// The next index, and the indices that have begun and not ended. Held for a few instructions, by inserts
    /// only.
    begun: Mutex<(u64, BTreeSet<u64>)>,
    /// All inserts below it have ended.
    newest: AtomicU64,
}

impl Inserts {
    /// Inserts after `keys` keys that are stored already.
    pub fn behind(keys: u64) -> Self {
        Self { begun: Mutex::new((keys, BTreeSet::new())), newest: AtomicU64::new(keys) }
    }

    /// One more than the largest index below which every insert has ended.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Takes the next index.
    pub fn begin(&self) -> u64 {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let index = begun.0;
        begun.0 += 1;
        begun.1.insert(index);
        index
    }

    /// Marks the insert of `index` as answered, or failed.
    pub fn end(&self, index: u64) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.1.remove(&index);
        let newest = begun.1.first().copied().unwrap_or(begun.0);
        self.newest.store(newest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u64 = 1_000;

    fn draws(order: &KeyOrder, count: u64) -> Vec<u64> {
        let chooser = KeyChooser::new(order, KEYS);
        let mut hits = vec![0; usize::try_from(KEYS).unwrap()];
        for slot in 0..count {
            hits[usize::try_from(chooser.choose(slot, KEYS)).unwrap()] += 1;
        }
        hits
    }

    /// Goal: a zipfian load has the popularities of its law. Method: the shares of the first ranks of 200,000
    /// draws against 1 / (rank^theta * zeta); Gray's method is exact for the first two and near for the
    /// others.
    #[test]
    fn zipfian_draws_follow_the_law() {
        for theta in [0.5, 0.8, THETA] {
            let mut hits = draws(&KeyOrder::Zipfian { seed: 1, theta }, 200_000);
            hits.sort_unstable_by(|a, b| b.cmp(a));
            let zeta = zeta_exact(KEYS, theta);
            for (rank, tolerance) in [(1, 0.08), (2, 0.08), (10, 0.25), (100, 0.3)] {
                let expect = 200_000.0 / (float(rank).powf(theta) * zeta);
                let seen = float(hits[usize::try_from(rank - 1).unwrap()]);
                assert!((seen / expect - 1.0).abs() < tolerance, "{theta} rank {rank}: {seen} for {expect}");
            }
        }
    }

    /// Goal: popular keys are not adjacent, and every rank has its own key. Method: all ranks.
    #[test]
    fn ranks_are_strewn_one_to_one() {
        for keys in [1, 2, 7, 1_000, 65_536, 99_991] {
            let chooser = KeyChooser::new(&KeyOrder::Zipfian { seed: 1, theta: THETA }, keys);
            let seen: BTreeSet<u64> = (0..keys).map(|rank| chooser.strewn(rank)).collect();
            assert_eq!(seen.len() as u64, keys);
            assert!(seen.last() < Some(&keys));
        }
    }

    /// Goal: the newest key is the most popular. Method: count, and again after inserts.
    #[test]
    fn latest_prefers_the_newest() {
        let order = KeyOrder::Latest { seed: 1, theta: THETA };
        let hits = draws(&order, 20_000);
        assert!(hits[999] > hits[998] && hits[998] > hits[900], "{:?}", &hits[990..]);
        assert!(hits[999] > 2_000);
        let chooser = KeyChooser::new(&order, KEYS);
        let newest = (0..1_000).filter(|&slot| chooser.choose(slot, 1_500) == 1_499).count();
        assert!(newest > 80, "{newest}");
    }

    /// Goal: sequential loads go round. Method: three slots.
    #[test]
    fn a_cycle_goes_round() {
        let chooser = KeyChooser::new(&KeyOrder::Cycle, KEYS);
        assert_eq!([0, 999, 1_000].map(|slot| chooser.choose(slot, KEYS)), [0, 999, 0]);
    }

    /// Goal: a large key count costs nothing and changes nothing. Method: the integral against the sum.
    #[test]
    fn zeta_of_many_keys() {
        for theta in [0.1, 0.5, THETA] {
            let (near, exact) = (zeta(300_000, theta), zeta_exact(300_000, theta));
            assert!((near / exact - 1.0).abs() < 1e-9, "{theta}: {near} for {exact}");
        }
    }

    /// Goal: the newest key that is read has been written. Method: inserts that end out of order.
    #[test]
    fn the_newest_waits_for_those_before_it() {
        let inserts = Inserts::behind(10);
        assert_eq!([inserts.begin(), inserts.begin(), inserts.begin()], [10, 11, 12]);
        inserts.end(11);
        assert_eq!(inserts.newest(), 10);
        inserts.end(10);
        assert_eq!(inserts.newest(), 12);
        inserts.end(12);
        assert_eq!(inserts.newest(), 13);
    }
}
