//! The device alone: a thread that appends a block to a growing file and syncs it, at a given rate.
//!
//! It runs beside a load, so its percentiles are of the same disk in the same minute: they separate a slow
//! write of the node from a slow disk. A latency is the service time of one append and its fdatasync, from
//! the moment it began. It is the yardstick, so it must not contain waiting that the loop itself causes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::histogram::Latencies;

/// Bytes of one append: a page, about the size of a group commit of a few small writes.
const BLOCK_BYTES: usize = 4096;

/// The default number of appends per second: often enough for a p99.9, rare enough not to be a load.
pub const RATE_PER_SECOND: u32 = 200;

/// The name of the file inside the given directory; removed at the end.
const FILE_NAME: &str = "fdatasync-probe";

/// A running loop. Dropping it without [`finish`](Self::finish) stops it and removes its file.
#[derive(Debug)]
pub struct FdatasyncLoop {
    stop: Arc<AtomicBool>,
    path: PathBuf,
    thread: Option<JoinHandle<Result<FdatasyncOutcome, LabError>>>,
}

/// The measurements of the loop.
#[derive(Debug, Clone)]
pub struct FdatasyncOutcome {
    /// Service times of append + fdatasync.
    pub latency: Latencies,
    /// Appends that began later than scheduled because the one before had not returned.
    pub late: u64,
    /// The same service times one by one, in order.
    pub samples: Vec<Duration>,
    /// The time from one append to the next, if none was late.
    pub period: Duration,
}

impl FdatasyncOutcome {
    /// The latencies of requests that come `rate_per_second` a second and share syncs (an ideal group
    /// commit). A request that comes during a sync waits for its rest and then for a sync of its own, which
    /// takes the median. Any other request takes the sync that was measured.
    ///
    /// A stall of 100 ms is one of this loop's samples, but at 8,000 a second 800 requests wait for it. So a
    /// percentile of an open loop can only be compared with these latencies.
    ///
    /// # Errors
    /// When no histogram can be made.
    pub fn as_seen_at(&self, rate_per_second: u64) -> Result<Latencies, LabError> {
        let mut seen = Latencies::new()?;
        let gap = Duration::from_nanos(1_000_000_000 / rate_per_second.clamp(1, 1_000_000_000));
        let own = Duration::from_nanos(self.latency.percentile(50.0));
        for sample in &self.samples {
            let mut at = Duration::ZERO;
            while at < self.period.max(*sample) {
                seen.record(sample.checked_sub(at).map_or(*sample, |rest| rest + own));
                at += gap;
            }
        }
        Ok(seen)
    }
}

impl FdatasyncLoop {
    /// Starts the loop in `directory`, `rate_per_second` appends a second, for at most `duration_max`.
    pub fn start(directory: &Path, rate_per_second: u32, duration_max: Duration) -> Result<Self, LabError> {
        let path = directory.join(FILE_NAME);
        let file = File::create(&path).map_err(LabError::machine(format!("create {}", path.display())))?;
        let stop = Arc::new(AtomicBool::new(false));
        let period = Duration::from_secs(1) / rate_per_second.max(1);
        let thread = thread::Builder::new()
            .name("fdatasync".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || append_until(&stop, file, period, duration_max)
            })
            .map_err(LabError::machine("start the fdatasync thread"))?;
        Ok(Self { stop, path, thread: Some(thread) })
    }

    /// Stops the loop and returns its measurements. Waits for the append in flight.
    pub fn finish(mut self) -> Result<FdatasyncOutcome, LabError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => Err(LabError::Subject("the fdatasync thread panicked".into())),
        }
    }
}

impl Drop for FdatasyncLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread, if it still runs, holds the file open: removing the name is enough.
        let _ = fs::remove_file(&self.path);
    }
}

fn append_until(
    stop: &AtomicBool,
    mut file: File,
    period: Duration,
    duration_max: Duration,
) -> Result<FdatasyncOutcome, LabError> {
    let block = [0x5A_u8; BLOCK_BYTES];
    let mut outcome = FdatasyncOutcome { latency: Latencies::new()?, late: 0, samples: Vec::new(), period };
    let begin = Instant::now();
    let mut due = begin;
    while !stop.load(Ordering::Relaxed) && begin.elapsed() < duration_max {
        let now = Instant::now();
        match due.checked_duration_since(now) {
            Some(early) => thread::sleep(early),
            None if now.duration_since(due) > period => {
                // Catching up would turn the probe into a burst, so the schedule moves instead.
                outcome.late += 1;
                due = now;
            }
            None => {}
        }
        let started = Instant::now();
        file.write_all(&block)
            .and_then(|()| file.sync_data())
            .map_err(LabError::machine("append to the fdatasync probe"))?;
        let took = started.elapsed();
        outcome.latency.record(took);
        outcome.samples.push(took);
        due += period;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the loop appends, measures, stops when told and leaves no file behind. Method: run it for a
    /// moment.
    #[test]
    fn the_loop_measures_and_cleans_up() {
        let directory = tempfile::tempdir().unwrap();
        let probe = FdatasyncLoop::start(directory.path(), 1000, Duration::from_mins(1)).unwrap();
        thread::sleep(Duration::from_millis(100));
        let outcome = probe.finish().unwrap();
        assert!(outcome.latency.count() > 0);
        assert!(outcome.latency.max() > 0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// Goal: a stall weighs as much as requests would have met it. Method: 4,999 syncs of 1 ms and one of 100
    /// ms, every 10 ms. Of 1,000 requests a second, 100 of some 50,090 come during the long one. So p99.9 of
    /// their latencies lies in the middle of it, while the loop's own p99.9 is 1 ms.
    #[test]
    fn a_stall_weighs_as_requests_meet_it() {
        let mut samples = vec![Duration::from_millis(1); 4999];
        samples.push(Duration::from_millis(100));
        let mut latency = Latencies::new().unwrap();
        for sample in &samples {
            latency.record(*sample);
        }
        let outcome = FdatasyncOutcome { latency, late: 0, samples, period: Duration::from_millis(10) };
        let seen = outcome.as_seen_at(1000).unwrap();
        assert_eq!(seen.count(), 4999 * 10 + 100);
        assert!(outcome.latency.percentile(99.9) < 2_000_000);
        assert!((40_000_000..60_000_000).contains(&seen.percentile(99.9)), "{}", seen.percentile(99.9));
        assert!(seen.percentile(50.0) < 2_000_000);
    }

    /// Goal: a missing directory is an error, not a panic in a thread.
    #[test]
    fn a_missing_directory_is_an_error() {
        assert!(FdatasyncLoop::start(Path::new("/nonexistent"), 1, Duration::from_secs(1)).is_err());
    }
}
