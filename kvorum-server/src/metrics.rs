//! Counters and histograms: on hot paths each is written by one thread; they are merged when scraped.
//!
//! Incrementing a counter that two cores share costs 35 ns instead of 6. So each network thread has its own counters
//! ([`ThreadMetrics`]) and `/metrics` adds them up. The crate `prometheus-client` does the rendering.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets in microseconds: from 25 µs on, each about 1.41 times the previous one.
pub const LATENCY_BOUNDS_MICROS: [u64; 38] = [
    25, 35, 50, 71, 100, 141, 200, 283, 400, 566, 800, 1_131, 1_600, 2_263, 3_200, 4_525, 6_400, 9_051,
    12_800, 18_102, 25_600, 36_204, 51_200, 72_408, 102_400, 144_815, 204_800, 289_631, 409_600, 579_262,
    819_200, 1_158_524, 1_638_400, 2_317_047, 3_276_800, 4_634_095, 6_553_600, 9_268_190,
];

/// A histogram of durations. Writing is cheap from one thread; from several it is correct, but slower.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; LATENCY_BOUNDS_MICROS.len() + 1],
    sum_micros: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; LATENCY_BOUNDS_MICROS.len() + 1],
            sum_micros: AtomicU64::new(0),
        }
    }
}

impl LatencyHistogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let index = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the counts per bucket (the last bucket has no bound) and the sum in microseconds.
    pub fn read(&self) -> (Vec<u64>, u64) {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        (buckets, self.sum_micros.load(Ordering::Relaxed))
    }
}

/// The operation of a request, as `/metrics` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// GET of one key.
    Get,
    /// HEAD of one key.
    Head,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// GET of a range.
    Range,
    /// Everything else: status, metrics, bad requests.
    Other,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Get, Self::Head, Self::Put, Self::Delete, Self::Range, Self::Other];

    /// The name in `/metrics`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Range => "range",
            Self::Other => "other",
        }
    }
}

/// The statuses that the node answers with; any other status counts under the last.
pub const STATUSES: [u16; 20] =
    [200, 201, 202, 304, 404, 400, 401, 403, 405, 409, 411, 412, 413, 431, 500, 501, 503, 504, 507, 0];

/// The counters of one network thread.
#[derive(Debug, Default)]
pub struct ThreadMetrics {
    pub(crate) requests: [[AtomicU64; STATUSES.len()]; Operation::ALL.len()],
    pub(crate) latencies: [LatencyHistogram; Operation::ALL.len()],
    /// Bytes read from sockets.
    pub bytes_in: AtomicU64,
    /// Bytes written to sockets.
    pub bytes_out: AtomicU64,
    /// Connections accepted.
    pub connections_accepted: AtomicU64,
    /// Connections refused because of the cap.
    pub connections_refused: AtomicU64,
    /// Connections cut because a wait took longer than its bound.
    pub connections_timed_out: AtomicU64,
    /// Records sent in ranges.
    pub range_records: AtomicU64,
}

impl ThreadMetrics {
    /// Counts one answered request.
    pub fn answered(&self, operation: Operation, status: u16, took: Duration) {
        let column = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len() - 1);
        let row = operation as usize;
        if let Some(count) = self.requests.get(row).and_then(|row| row.get(column)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(latency) = self.latencies.get(row) {
            latency.observe(took);
        }
    }
}

/// The store's counters, written by the commit thread.
#[derive(Debug, Default)]
pub struct StoreMetrics {
    /// Groups committed.
    pub groups: AtomicU64,
    /// Records written in them.
    pub records: AtomicU64,
    /// Records removed: dead keys, and rows that another store no longer vouches for.
    pub removed: AtomicU64,
    /// Received records that differ from the stored record of the same version, which should not occur.
    pub conflicts: AtomicU64,
    /// The largest group so far.
    pub group_records_max: AtomicU64,
    /// Time of one commit, sync included.
    pub commit: LatencyHistogram,
    /// Time of one commit or sync that reached the disk.
    pub sync: LatencyHistogram,
}

impl StoreMetrics {
    /// Counts one committed group.
    pub fn committed(&self, records: usize, took: Duration, synced: bool) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.group_records_max.fetch_max(records as u64, Ordering::Relaxed);
        self.commit.observe(took);
        if synced {
            self.sync.observe(took);
        }
    }

    /// Counts one sync without a group.
    pub fn synced(&self, took: Duration) {
        self.sync.observe(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A duration is counted in the first bucket whose bound it does not exceed, the longest in the last.
    #[test]
    fn latencies_fall_into_their_buckets() {
        let histogram = LatencyHistogram::default();
        for micros in [0, 25, 26, 9_268_190, 9_268_191] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (buckets, sum) = histogram.read();
        assert_eq!((buckets[0], buckets[1], buckets[37], buckets[38]), (2, 1, 1, 1));
        assert_eq!(sum, 25 + 26 + 9_268_190 + 9_268_191);
        assert!(LATENCY_BOUNDS_MICROS.is_sorted_by(|a, b| a < b));
    }

    /// Every operation's number is its index in `ALL`: the counters are indexed by it.
    #[test]
    fn operations_are_numbered_in_order() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }
}
