//! The one shape of histogram that the lab uses: nanoseconds, three significant digits, up to an hour.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::LabError;
use crate::units::{float, nanos};

/// The longest latency that is told apart from longer ones: one hour, in nanoseconds.
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;

/// Significant decimal digits of a recorded value.
const DIGITS: u8 = 3;

/// The percentiles of wrk2's short distribution.
pub const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

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

    /// How many durations exceeded `limit`, to within the histogram's 0.1 %.
    pub fn count_over(&self, limit: Duration) -> u64 {
        let within = self.0.count_between(0, nanos(limit));
        self.count().saturating_sub(within)
    }

    /// How many times `self`'s percentile is `other`'s; `None` where `other` has nothing.
    pub fn ratio(&self, other: &Self, percentile: f64) -> Option<f64> {
        let divisor = other.percentile(percentile);
        (divisor > 0 && self.count() > 0).then(|| float(self.percentile(percentile)) / float(divisor))
    }
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
