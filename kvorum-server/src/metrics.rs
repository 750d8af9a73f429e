//! Counters and histograms: on hot paths each is written by one thread; they are merged when scraped.
//!
//! Incrementing a counter that two cores share costs 35 ns instead of 6. So each network thread has its own counters
//! ([`ThreadMetrics`]) and `/metrics` adds them up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the counted latency buckets in microseconds: ten a decade from 10 µs to 10 s, so that a percentile
/// read from them is at most a quarter off. `/metrics` shows those of [`SHOWN_BOUNDS_MICROS`].
pub const LATENCY_BOUNDS_MICROS: [u64; 61] = [
    10, 12, 15, 20, 25, 30, 40, 50, 60, 80, //
    100, 125, 150, 200, 250, 300, 400, 500, 600, 800, //
    1_000, 1_250, 1_500, 2_000, 2_500, 3_000, 4_000, 5_000, 6_000, 8_000, //
    10_000, 12_500, 15_000, 20_000, 25_000, 30_000, 40_000, 50_000, 60_000, 80_000, //
    100_000, 125_000, 150_000, 200_000, 250_000, 300_000, 400_000, 500_000, 600_000, 800_000, //
    1_000_000, 1_250_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000, 4_000_000, 5_000_000, 6_000_000,
    8_000_000, //
    10_000_000,
];

/// Upper bounds of the buckets on `/metrics`, in microseconds: round numbers, as dashboards and alerts use. Each is one of
/// [`LATENCY_BOUNDS_MICROS`], so the shown counts are exact.
pub const SHOWN_BOUNDS_MICROS: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// The number of counted buckets; the last has no bound.
pub const BUCKETS: usize = LATENCY_BOUNDS_MICROS.len() + 1;

/// A histogram of durations. Writing is cheap from one thread; from several it is correct, but slower.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_micros: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_micros: AtomicU64::new(0) }
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

    /// Its counts now.
    pub fn read(&self) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        counts.add(self);
        counts
    }
}

/// The counts of one or several histograms at some instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Durations in each bucket of [`LATENCY_BOUNDS_MICROS`], and in the last those beyond.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations in microseconds.
    pub sum_micros: u64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_micros: 0 }
    }
}

impl LatencyCounts {
    /// Adds the counts of `histogram`.
    pub fn add(&mut self, histogram: &LatencyHistogram) {
        for (total, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total += bucket.load(Ordering::Relaxed);
        }
        self.sum_micros += histogram.sum_micros.load(Ordering::Relaxed);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The counts of what came after `earlier`, a reading of the same histograms.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        for (count, before) in later.buckets.iter_mut().zip(&earlier.buckets) {
            *count = count.saturating_sub(*before);
        }
        later.sum_micros = later.sum_micros.saturating_sub(earlier.sum_micros);
        later
    }

    /// The bound in microseconds that `per_mille` of 1,000 durations do not exceed; none without any. Beyond the last
    /// bound it is the last bound.
    pub fn percentile_micros(&self, per_mille: u64) -> Option<u64> {
        let count = self.count();
        let rank = count.saturating_mul(per_mille).div_ceil(1000).max(1);
        let mut passed = 0;
        let at = self.buckets.iter().position(|bucket| {
            passed += bucket;
            passed >= rank
        })?;
        (count > 0)
            .then(|| LATENCY_BOUNDS_MICROS.get(at).copied().unwrap_or(LATENCY_BOUNDS_MICROS[BUCKETS - 2]))
    }

    /// The durations up to each of [`SHOWN_BOUNDS_MICROS`], and last all of them: cumulative, as `/metrics` shows them.
    pub fn shown(&self) -> [u64; SHOWN_BOUNDS_MICROS.len() + 1] {
        let mut shown = [self.count(); SHOWN_BOUNDS_MICROS.len() + 1];
        for (place, bound) in shown.iter_mut().zip(SHOWN_BOUNDS_MICROS) {
            let up_to = LATENCY_BOUNDS_MICROS.partition_point(|counted| *counted <= bound);
            *place = self.buckets.iter().take(up_to).sum();
        }
        shown
    }
}

/// The kind of a call to a peer, as `/metrics` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Applies a record: a client's write, a hint or a read repair.
    Apply,
    /// Reads a record for a client.
    Get,
    /// Asks which version a write must exceed.
    Newest,
    /// Asks for the promise of a ballot.
    Prepare,
    /// Reads a part of a range.
    Scan,
    /// A heartbeat.
    Ping,
    /// Asks for hints.
    Hints,
    /// Compares and copies records: anti-entropy, bulk sync, repair of damage.
    Repair,
    /// Agrees on what may be purged.
    TombstoneGc,
    /// Agrees on configurations, and passes them on.
    Membership,
}

impl CallKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Apply,
        Self::Get,
        Self::Newest,
        Self::Prepare,
        Self::Scan,
        Self::Ping,
        Self::Hints,
        Self::Repair,
        Self::TombstoneGc,
        Self::Membership,
    ];

    /// The name in `/metrics`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Get => "get",
            Self::Newest => "newest",
            Self::Prepare => "prepare",
            Self::Scan => "scan",
            Self::Ping => "ping",
            Self::Hints => "hints",
            Self::Repair => "repair",
            Self::TombstoneGc => "tombstone-gc",
            Self::Membership => "membership",
        }
    }
}

/// How long one thread's answered calls to one peer took, by kind.
#[derive(Debug, Default)]
pub struct CallMetrics([LatencyHistogram; CallKind::ALL.len()]);

impl CallMetrics {
    /// The histogram of `kind`.
    pub fn of(&self, kind: CallKind) -> Option<&LatencyHistogram> {
        self.0.get(kind as usize)
    }

    /// Counts one answered call.
    pub fn answered(&self, kind: CallKind, took: Duration) {
        if let Some(histogram) = self.of(kind) {
            histogram.observe(took);
        }
    }
}

/// The operation of a request, as `/metrics` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// GET of one key.
    Get,
    /// HEAD of one key.
    Head,
    /// PUT, and POST of one key.
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
pub const STATUSES: [u16; 22] = [
    200, 201, 202, 302, 304, 404, 400, 401, 403, 405, 409, 411, 412, 413, 429, 431, 500, 501, 503, 504, 507,
    0,
];

impl Operation {
    /// Whether it is about one key.
    pub fn is_of_a_key(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Put | Self::Delete)
    }

    /// The statuses that are shown as 0 before the first such answer, so that a rate over them is right from the first on.
    pub fn usual_statuses(self) -> &'static [u16] {
        match self {
            Self::Get | Self::Head => &[200, 404, 400, 500, 503, 504],
            Self::Put => &[201, 400, 413, 500, 503, 504, 507],
            Self::Delete => &[202, 400, 500, 503, 504, 507],
            Self::Range => &[200, 400, 500, 503, 504],
            Self::Other => &[200, 400, 404, 500, 503],
        }
    }
}

/// The places for counts of requests by partition: as many as a cluster has partitions by default. With more partitions,
/// several share a place.
pub const PARTITION_SLOTS: usize = 4096;

/// Requests by partition, of one thread. The counts wrap.
#[derive(Debug)]
pub struct PartitionCounts(Box<[AtomicU32]>);

impl Default for PartitionCounts {
    fn default() -> Self {
        Self((0..PARTITION_SLOTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl PartitionCounts {
    /// Counts a request for a key of partition `number`.
    pub fn note(&self, number: u16) {
        if let Some(count) = self.0.get(usize::from(number) % PARTITION_SLOTS) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts, by partition.
    pub fn counts(&self) -> &[AtomicU32] {
        &self.0
    }
}

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
    /// Requests for one key, by its partition.
    pub partitions: PartitionCounts,
}

impl ThreadMetrics {
    /// How many requests of `operation` were answered, and how many of them failed by the node's fault.
    pub fn counts(&self, operation: Operation) -> (u64, u64) {
        let (mut requests, mut failures) = (0, 0);
        for (status, count) in
            STATUSES.iter().zip(self.requests.get(operation as usize).into_iter().flatten())
        {
            let count = count.load(Ordering::Relaxed);
            requests += count;
            failures += if *status >= 500 { count } else { 0 };
        }
        (requests, failures)
    }

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
        for micros in [0, 10, 11, 10_000_000, 10_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.read();
        assert_eq!((counts.buckets[0], counts.buckets[1]), (2, 1));
        assert_eq!((counts.buckets[BUCKETS - 2], counts.buckets[BUCKETS - 1]), (1, 1));
        assert_eq!((counts.sum_micros, counts.count()), (10 + 11 + 10_000_000 + 10_000_001, 5));
        assert!(LATENCY_BOUNDS_MICROS.is_sorted_by(|a, b| a < b));
    }

    /// Every shown bound is a counted one, and its count is that of the durations up to it.
    #[test]
    fn shown_buckets_are_exact() {
        assert!(SHOWN_BOUNDS_MICROS.is_sorted_by(|a, b| a < b));
        assert!(SHOWN_BOUNDS_MICROS.iter().all(|bound| LATENCY_BOUNDS_MICROS.contains(bound)));
        let histogram = LatencyHistogram::default();
        let durations = [7, 50, 51, 99, 100, 101, 24_000, 25_000, 25_001, 11_000_000];
        for micros in durations {
            histogram.observe(Duration::from_micros(micros));
        }
        let shown = histogram.read().shown();
        for (bound, count) in SHOWN_BOUNDS_MICROS.iter().zip(shown) {
            assert_eq!(count, durations.iter().filter(|micros| *micros <= bound).count() as u64, "{bound}");
        }
        assert_eq!(shown.last(), Some(&10));
    }

    /// A percentile is the bound of the bucket with its rank; there is none without durations.
    #[test]
    fn percentiles_are_bounds() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.read().percentile_micros(500), None);
        (1..=100).for_each(|millis| histogram.observe(Duration::from_millis(millis)));
        let before = histogram.read();
        assert_eq!(before.percentile_micros(500), Some(50_000));
        assert_eq!(before.percentile_micros(990), Some(100_000));
        assert_eq!(before.percentile_micros(0), Some(1000));
        histogram.observe(Duration::from_secs(100));
        let later = histogram.read().since(&before);
        assert_eq!((later.count(), later.percentile_micros(500)), (1, Some(10_000_000)));
    }

    /// Every operation's number is its index in `ALL`: the counters are indexed by it.
    #[test]
    fn operations_are_numbered_in_order() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
            assert!(operation.usual_statuses().iter().all(|status| STATUSES.contains(status)));
        }
        for (index, kind) in CallKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }
}
