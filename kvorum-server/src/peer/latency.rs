//! Latency: how long a peer takes to answer, as two running figures.
//!
//! The mean is weighted exponentially. The 95th percentile is a stochastic approximation (Robbins and Monro, "A
//! Stochastic Approximation Method", 1951) by steps in proportion to the estimate: up by 0.95 r when a sample is above,
//! down by 0.05 r when it is not. So it settles where one sample in twenty is above. It needs no buckets, is
//! independent of scale, and follows a peer that became slow within some 50 samples. Sorted windows and sketches were
//! refused: per thread and peer they cost more than their precision is worth.

use std::time::Duration;

/// The share of the newest sample in the mean, once there are enough.
const MEAN_WEIGHT: f64 = 1.0 / 32.0;
/// The step of the percentile: a larger step follows faster and fluctuates more.
const STEP: f64 = 0.05;
/// The percentile.
const QUANTILE: f64 = 0.95;
/// Up to this many samples the largest stands for the percentile: at most one in twenty is above it.
const WARM_UP_COUNT: u64 = 20;
/// The smallest estimate, in seconds: proportional steps cannot leave zero.
const SECONDS_MIN: f64 = 1e-6;

/// A peer's response times, as estimated so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// The mean, recent answers weighing more.
    pub mean: Duration,
    /// The duration that 95 of 100 recent answers do not exceed.
    pub p95: Duration,
    /// The number of measured answers; if it is 0, the other fields are zero.
    pub count: u64,
}

/// An estimator of a [`Latency`] from samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Estimator {
    mean: f64,
    p95: f64,
    count: u64,
}

impl Estimator {
    /// Takes one sample into account.
    pub fn record(&mut self, sample: Duration) {
        let sample = sample.as_secs_f64().max(SECONDS_MIN);
        self.count = self.count.saturating_add(1);
        #[expect(clippy::cast_precision_loss, reason = "the count matters while it is small")]
        let weight = MEAN_WEIGHT.max(1.0 / self.count as f64);
        self.mean += (sample - self.mean) * weight;
        if self.count <= WARM_UP_COUNT {
            self.p95 = self.p95.max(sample);
        } else if sample > self.p95 {
            self.p95 *= 1.0 + STEP * QUANTILE;
        } else {
            self.p95 = (self.p95 * (1.0 - STEP * (1.0 - QUANTILE))).max(SECONDS_MIN);
        }
    }

    /// The estimate.
    pub fn latency(&self) -> Latency {
        let mean = Duration::from_secs_f64(self.mean);
        Latency { mean, p95: Duration::from_secs_f64(self.p95), count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;

    /// A fixed permutation of 0..1000: uniform, and without a pattern that the steps could follow.
    fn scrambled(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) % 1000)
    }

    fn check(
        samples: impl Iterator<Item = u64>,
        mean_us: RangeInclusive<u128>,
        p95_us: RangeInclusive<u128>,
    ) {
        let mut estimator = Estimator::default();
        samples.for_each(|us| estimator.record(Duration::from_micros(us)));
        let latency = estimator.latency();
        assert!(mean_us.contains(&latency.mean.as_micros()), "{latency:?}");
        assert!(p95_us.contains(&latency.p95.as_micros()), "{latency:?}");
    }

    /// For known distributions, the estimates are close to the mean and percentile.
    #[test]
    fn estimates_known_distributions() {
        check(std::iter::empty(), 0..=0, 0..=0);
        check([300].into_iter(), 300..=300, 300..=300);
        check(scrambled(5000), 350..=650, 850..=1050);
        check(scrambled(5000).map(|us| if us < 900 { 100 } else { 5000 }), 150..=1500, 4000..=6000);
        check(scrambled(5000).map(|us| if us < 990 { 100 } else { 5000 }), 90..=600, 90..=150);
    }

    /// The estimates follow a change of speed: within tens of samples upwards, within hundreds downwards.
    #[test]
    fn follows_a_change() {
        let then = |first: u64, us: u64, count: usize| {
            std::iter::repeat_n(first, 100).chain(std::iter::repeat_n(us, count))
        };
        check(then(1000, 10_000, 60), 8000..=10_000, 9_500..=10_500);
        check(then(10_000, 1000, 1200), 1000..=1100, 900..=1100);
    }
}
