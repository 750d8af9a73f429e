//! The node's last quarter of an hour: a fixed ring of samples, so that a console can draw it without a database.
//!
//! A sample is the difference of two readings of counters, [`SAMPLE_EVERY`] apart. The ring never holds more than
//! [`SAMPLES_MAX`] samples of [`PEERS_MAX`] peers: less than 512 KB, whatever the cluster's size.

use crate::metrics::{LatencyCounts, Operation, PARTITION_SLOTS, ThreadMetrics};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// The most samples that are kept: 15 minutes.
pub const SAMPLES_MAX: usize = 180;
/// A sample has figures of at most this many peers: the first ones in the cluster's list.
pub const PEERS_MAX: usize = 64;
/// How many of the hottest partitions are kept.
pub const HOTTEST_MAX: usize = 10;

/// Counters and gauges at some instant.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The monotonic time.
    pub at: Duration,
    /// The wall clock, in milliseconds since 1970.
    pub wall_millis: u64,
    /// Requests by operation.
    pub requests: [u64; Operation::ALL.len()],
    /// Requests that failed by the node's fault: a status of 500 or more.
    pub failures: u64,
    /// The times of requests for one key.
    pub latencies: LatencyCounts,
    /// Requests by partition.
    pub partitions: Vec<u32>,
    /// CPU time of the process.
    pub cpu: Option<Duration>,
    /// Memory of the process, in bytes.
    pub resident_bytes: Option<u64>,
    /// Bytes free in the file system of the data.
    pub disk_free_bytes: Option<u64>,
    /// The other nodes, in the order of the cluster's list.
    pub peers: Vec<PeerSample>,
}

/// The figures of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerSample {
    /// The mean time of a read from it, in microseconds.
    pub latency_mean_micros: u32,
    /// How far its clock is ahead, in milliseconds, if that is known.
    pub clock_offset_millis: Option<i32>,
    /// Whether it answers.
    pub is_up: bool,
}

/// What happened between two readings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// The wall clock at its end, in milliseconds since 1970.
    pub wall_millis: u64,
    /// Requests a second, by operation.
    pub requests: [f32; Operation::ALL.len()],
    /// Failures a second by the node's fault.
    pub failures: f32,
    /// The median time of requests for one key, in microseconds; none without any.
    pub p50_micros: Option<u64>,
    /// The time that 99 of 100 did not exceed, in microseconds.
    pub p99_micros: Option<u64>,
    /// Processors in use: 1.0 is one core.
    pub cpu_cores: Option<f32>,
    /// Memory of the process, in bytes.
    pub resident_bytes: Option<u64>,
    /// Bytes free in the file system of the data.
    pub disk_free_bytes: Option<u64>,
    /// The other nodes.
    pub peers: Box<[PeerSample]>,
}

/// A partition with many requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotPartition {
    /// The partition.
    pub partition: u16,
    /// Requests for its keys a second.
    pub requests: f32,
}

#[derive(Debug, Default)]
struct Ring {
    last: Option<Reading>,
    samples: VecDeque<Sample>,
    hottest: Vec<HotPartition>,
}

/// The ring, which one task writes and any thread reads.
#[derive(Debug, Default)]
pub struct History {
    // Held to push or copy samples: microseconds, every few seconds.
    ring: Mutex<Ring>,
}

impl Reading {
    /// Adds up the counters of the network threads.
    pub fn count(threads: &[Arc<ThreadMetrics>]) -> Self {
        let mut reading = Self { partitions: vec![0; PARTITION_SLOTS], ..Self::default() };
        for thread in threads {
            for (operation, total) in Operation::ALL.into_iter().zip(&mut reading.requests) {
                let (requests, failures) = thread.counts(operation);
                *total += requests;
                reading.failures += failures;
                if operation.is_of_a_key()
                    && let Some(histogram) = thread.latencies.get(operation as usize)
                {
                    reading.latencies.add(histogram);
                }
            }
            for (total, count) in reading.partitions.iter_mut().zip(thread.partitions.counts()) {
                *total = total.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        reading
    }

    /// What happened since `earlier`; none if no time has passed.
    fn since(&self, earlier: &Self) -> Option<Sample> {
        let seconds = self.at.checked_sub(earlier.at).filter(|span| !span.is_zero())?.as_secs_f32();
        let mut requests = [0.0; Operation::ALL.len()];
        for ((rate, now), before) in requests.iter_mut().zip(self.requests).zip(earlier.requests) {
            *rate = rate_of(now.saturating_sub(before), seconds);
        }
        let latencies = self.latencies.since(&earlier.latencies);
        let cpu = self.cpu.zip(earlier.cpu).map(|(now, before)| now.saturating_sub(before));
        Some(Sample {
            wall_millis: self.wall_millis,
            requests,
            failures: rate_of(self.failures.saturating_sub(earlier.failures), seconds),
            p50_micros: latencies.percentile_micros(500),
            p99_micros: latencies.percentile_micros(990),
            cpu_cores: cpu.map(|cpu| cpu.as_secs_f32() / seconds),
            resident_bytes: self.resident_bytes,
            disk_free_bytes: self.disk_free_bytes,
            peers: self.peers.iter().take(PEERS_MAX).copied().collect(),
        })
    }

    /// The partitions with the most requests since `earlier`, the hottest first.
    fn hottest_since(&self, earlier: &Self) -> Vec<HotPartition> {
        let seconds = self.at.saturating_sub(earlier.at).as_secs_f32().max(0.001);
        let counts =
            self.partitions.iter().zip(&earlier.partitions).map(|(now, before)| now.wrapping_sub(*before));
        let mut hot: Vec<(u32, u16)> = counts.zip(0_u16..).filter(|(count, _)| *count > 0).collect();
        hot.sort_unstable_by_key(|(count, partition)| (std::cmp::Reverse(*count), *partition));
        hot.truncate(HOTTEST_MAX);
        let rated =
            |(count, partition)| HotPartition { partition, requests: rate_of(u64::from(count), seconds) };
        hot.into_iter().map(rated).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate_of(count: u64, seconds: f32) -> f32 {
    count as f32 / seconds
}

impl Sample {
    /// Requests a second, of all operations.
    pub fn requests_per_second(&self) -> f32 {
        self.requests.iter().sum()
    }
}

impl History {
    /// Takes a reading: from the second on, each makes a sample, and the oldest one beyond [`SAMPLES_MAX`] goes.
    pub fn record(&self, reading: Reading) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &ring.last {
            let (sample, hottest) = (reading.since(last), reading.hottest_since(last));
            let Some(sample) = sample else { return };
            while ring.samples.len() >= SAMPLES_MAX {
                ring.samples.pop_front();
            }
            ring.samples.push_back(sample);
            ring.hottest = hottest;
        }
        ring.last = Some(reading);
    }

    /// The last `count` samples, the oldest first, and the hottest partitions of the last one.
    pub fn last(&self, count: usize) -> (Vec<Sample>, Vec<HotPartition>) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = ring.samples.len().saturating_sub(count);
        (ring.samples.iter().skip(skipped).cloned().collect(), ring.hottest.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LatencyHistogram;

    fn reading(seconds: u64, gets: u64) -> Reading {
        let latencies = LatencyHistogram::default();
        (0..gets).for_each(|_| latencies.observe(Duration::from_millis(1)));
        Reading {
            at: Duration::from_secs(seconds),
            wall_millis: seconds * 1000,
            requests: [gets, 0, 0, 0, 0, 0],
            latencies: latencies.read(),
            cpu: Some(Duration::from_secs(seconds / 2)),
            partitions: vec![0; PARTITION_SLOTS],
            ..Reading::default()
        }
    }

    /// A sample is the difference of two readings by the time between them.
    #[test]
    fn samples_are_rates() {
        let history = History::default();
        history.record(reading(10, 100));
        assert_eq!(history.last(9), (Vec::new(), Vec::new()));
        history.record(Reading { failures: 10, ..reading(20, 300) });
        let (samples, _) = history.last(9);
        let sample = &samples[0];
        assert_eq!((sample.requests[0], sample.failures, sample.cpu_cores), (20.0, 1.0, Some(0.5)));
        assert_eq!((sample.p50_micros, sample.p99_micros), (Some(1000), Some(1000)));
        // Counters that went back, and a reading at the same time, make no nonsense.
        history.record(reading(30, 0));
        history.record(reading(30, 5));
        let (samples, _) = history.last(9);
        assert_eq!((samples.len(), samples[1].requests[0], samples[1].p50_micros), (2, 0.0, None));
    }

    /// The ring holds 15 minutes and less than 512 KB with the most peers; the oldest samples go first.
    #[test]
    fn ring_is_bounded() {
        let history = History::default();
        for second in 0..(SAMPLES_MAX as u64 + 50) {
            history.record(Reading { peers: vec![PeerSample::default(); 2000], ..reading(second + 1, 0) });
        }
        let (samples, _) = history.last(usize::MAX);
        assert_eq!((samples.len(), samples[0].wall_millis), (SAMPLES_MAX, 51_000));
        assert_eq!(SAMPLE_EVERY * u32::try_from(SAMPLES_MAX).unwrap(), Duration::from_mins(15));
        let peers: usize = samples.iter().map(|sample| sample.peers.len()).sum();
        let bytes = samples.len() * size_of::<Sample>()
            + peers * size_of::<PeerSample>()
            + PARTITION_SLOTS * size_of::<u32>()
            + 2000 * size_of::<PeerSample>()
            + size_of::<Reading>();
        assert!(bytes < 512 << 10, "{bytes}");
        assert_eq!(history.last(1).0.len(), 1);
    }

    /// The hottest partitions are those with the most requests since the reading before, also over a wrapped count.
    #[test]
    fn hottest_partitions_are_found() {
        let (mut before, mut after) = (reading(1, 0), reading(3, 0));
        before.partitions[7] = u32::MAX - 1;
        after.partitions[7] = 8;
        for partition in 100..120 {
            after.partitions[partition] = 4;
        }
        let history = History::default();
        history.record(before);
        history.record(after);
        let (_, hottest) = history.last(1);
        assert_eq!(hottest.len(), HOTTEST_MAX);
        assert_eq!(hottest[0], HotPartition { partition: 7, requests: 5.0 });
        assert_eq!(hottest[1], HotPartition { partition: 100, requests: 2.0 });
    }
}
