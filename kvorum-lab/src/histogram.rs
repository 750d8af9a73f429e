//! The only shape of histogram in the lab: nanoseconds, three significant digits, up to an hour.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::LabError;
use crate::units::{float, nanos};

/// The longest latency that is recorded exactly: one hour, in nanoseconds. Longer ones count as this.
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;

/// Significant decimal digits of a recorded value.
const DIGITS: u8 = 3;

/// The percentiles of wrk2's short distribution.
pub const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// A distribution of durations, recorded in nanoseconds.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty distribution; about 300 KiB.
    pub fn new() -> Result<Self, LabError> {
        Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, DIGITS)
            .map(Self)
            .map_err(|error| LabError::Usage(format!("histogram: {error}")))
    }

    /// Records one duration; more than an hour counts as an hour.
    pub fn record(&mut self, duration: Duration) {
        self.0.saturating_record(nanos(duration));
    }

    /// Adds everything that `other` holds.
    pub fn merge(&mut self, other: &Self) -> Result<(), LabError> {
        self.0.add(&other.0).map_err(|error| LabError::Usage(format!("histogram: {error}")))
    }

    /// Removes all recorded durations.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value in nanoseconds that `percentile` per cent of the durations do not exceed; 0 when empty.
    pub fn percentile(&self, percentile: f64) -> u64 {
        self.0.value_at_percentile(percentile)
    }

    /// The largest duration, in nanoseconds; 0 when empty.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The mean, in nanoseconds; 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() }
    }

    /// The standard deviation, in nanoseconds; 0 when empty.
    pub fn deviation(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.stdev() }
    }

    /// The share of durations, from 0 to 1, that lie within one standard deviation of the mean.
    pub fn within_deviation(&self) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let nanos = |value: f64| crate::units::nanos(Duration::from_secs_f64(value.max(0.0) / 1e9));
        let (mean, deviation) = (self.mean(), self.deviation());
        float(self.0.count_between(nanos(mean - deviation), nanos(mean + deviation))) / float(self.count())
    }

    /// The distribution in ever finer percentiles: five points for every halving of the remaining share.
    ///
    /// The points equal those of the Java tools. They are counted in whole durations here, because the
    /// iterator of the histogram library is off by one at some of them.
    pub fn spectrum(&self) -> Vec<Point> {
        let (total, mut level, mut points) = (float(self.count()), 0.0, Vec::new());
        let mut count = 0;
        for step in self.0.iter_recorded() {
            count += step.count_at_value();
            let nanos = step.value_iterated_to();
            while float(count) / total * 100.0 >= level {
                points.push(Point { nanos, quantile: level / 100.0, count });
                if count == self.count() {
                    break;
                }
                let halvings = (100.0 / (100.0 - level)).log2().floor() + 1.0;
                level += 100.0 / (POINTS_PER_HALVING * halvings.exp2());
            }
        }
        if count > 0 {
            points.push(Point { nanos: self.max(), quantile: 1.0, count });
        }
        points
    }

    /// The places that are not empty, counted from the lowest value on, with their counts.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| (place(step.value_iterated_to()), step.count_at_value()))
    }

    /// The lowest and highest distinct value, and the significant digits.
    pub(crate) const fn bounds() -> (u64, u64, u8) {
        (1, LATENCY_NANOS_MAX, DIGITS)
    }

    /// How many buckets of doubling width there are, and how many places are in the first.
    pub(crate) const fn buckets() -> (u64, u64) {
        (place(LATENCY_NANOS_MAX) / (SUB_BUCKETS / 2), SUB_BUCKETS)
    }

    /// How many durations exceeded `limit`, to within the histogram's 0.1 %.
    pub fn count_over(&self, limit: Duration) -> u64 {
        let within = self.0.count_between(0, nanos(limit));
        self.count().saturating_sub(within)
    }

    /// How many times `self`'s percentile is `other`'s; `None` if `other` is empty.
    pub fn ratio(&self, other: &Self, percentile: f64) -> Option<f64> {
        let divisor = other.percentile(percentile);
        (divisor > 0 && self.count() > 0).then(|| float(self.percentile(percentile)) / float(divisor))
    }
}

/// A point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The value, in nanoseconds, that the share does not exceed.
    pub nanos: u64,
    /// The share, from 0 to 1.
    pub quantile: f64,
    /// How many durations are not above the value.
    pub count: u64,
}

/// Points of a distribution for every halving of the distance to 100 %, as in wrk2.
const POINTS_PER_HALVING: f64 = 5.0;

/// Places of the first bucket: enough for three significant digits, as a power of two.
const SUB_BUCKETS: u64 = 2048;

/// The place of `nanos` in the histogram: 2048 places of one nanosecond, then 1024 of two, 1024 of four and
/// so on.
const fn place(nanos: u64) -> u64 {
    let bucket = (u64::BITS - (nanos | (SUB_BUCKETS - 1)).leading_zeros() - SUB_BUCKETS.ilog2()) as u64;
    bucket * (SUB_BUCKETS / 2) + (nanos >> bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: counts over a limit and ratios are those of the recorded values. Method: known values.
    #[test]
    fn counts_and_ratios() {
        let mut one = Latencies::new().unwrap();
        let mut two = Latencies::new().unwrap();
        for millis in 1..=100 {
            one.record(Duration::from_millis(millis));
            two.record(Duration::from_millis(2 * millis));
        }
        assert_eq!(two.count_over(Duration::from_millis(100)), 50);
        assert_eq!(one.count_over(Duration::from_millis(101)), 0);
        let ratio = two.ratio(&one, 99.0).unwrap();
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
        assert!(one.ratio(&Latencies::new().unwrap(), 99.0).is_none(), "nothing to compare with");
        one.merge(&two).unwrap();
        assert_eq!(one.count(), 200);
    }
}
