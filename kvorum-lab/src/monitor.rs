//! Watches a run while it lasts: a line on the terminal, and a histogram for every second.
//!
//! Lanes report their figures each second ([`Tick`]); a second is complete when every lane has reported it.
//! The monitor listens on a thread of its own, so that a slow terminal delays no load.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::hdr_log::log_line;
use crate::histogram::Latencies;
use crate::load::{Plan, Tick};
use crate::units::{float, grouped, latency};

/// The figures of all lanes of one stream in one second.
#[derive(Debug)]
struct Second {
    latency: Latencies,
    failed: u64,
}

/// A running monitor.
#[derive(Debug)]
pub struct Monitor {
    thread: JoinHandle<Result<Watched, LabError>>,
}

/// The results of a monitor.
#[derive(Debug)]
pub struct Watched {
    /// The lines of a histogram log, without its head.
    pub log: String,
    /// For each stream of the plan, second by second from the first measured one.
    pub streams: Vec<Vec<SecondFigures>>,
}

/// One second of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SecondFigures {
    /// Operations answered as expected.
    pub succeeded: u64,
    /// Operations that failed.
    pub failed: u64,
    /// The 99th percentile of those that succeeded, in nanoseconds.
    pub p99: u64,
}

impl Monitor {
    /// Watches a run of `plan`, which gets the sender. Prints progress to stderr after `label`, or nothing
    /// without one.
    ///
    /// # Errors
    /// [`LabError::Machine`] if no thread can be started.
    pub fn start(plan: &Plan, label: Option<String>) -> Result<(Self, Sender<Tick>), LabError> {
        let (sender, ticks) = channel();
        let names = plan.streams.iter().map(|stream| stream.name.clone()).collect();
        let watch = Watch { names, lanes: plan.threads, duration: plan.duration, label };
        let thread = thread::Builder::new()
            .name("monitor".into())
            .spawn(move || watch.run(&ticks))
            .map_err(LabError::machine("start a thread"))?;
        Ok((Self { thread }, sender))
    }

    /// Returns the results. Call it when every sender is gone: it waits for that.
    ///
    /// # Errors
    /// [`LabError::Usage`] if histograms do not fit each other, which would be a bug of the lab.
    pub fn finish(self) -> Result<Watched, LabError> {
        self.thread.join().map_err(|_| LabError::Subject("the monitor panicked".into()))?
    }
}

struct Watch {
    names: Vec<String>,
    /// Every thread reports every stream, also a stream without connections on it.
    lanes: usize,
    duration: Duration,
    /// The text before the line of progress; `None` for no line.
    label: Option<String>,
}

impl Watch {
    fn run(&self, ticks: &Receiver<Tick>) -> Result<Watched, LabError> {
        let mut seconds: BTreeMap<(u64, usize), Second> = BTreeMap::new();
        let mut told: BTreeMap<u64, usize> = BTreeMap::new();
        for tick in ticks {
            let place = seconds.entry((tick.second, tick.stream));
            match place {
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    known.get_mut().latency.merge(&tick.latency)?;
                    known.get_mut().failed += tick.failed;
                }
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(Second { latency: tick.latency, failed: tick.failed });
                }
            }
            let count = told.entry(tick.second).or_default();
            *count += 1;
            if *count == self.lanes * self.names.len() {
                self.show(tick.second, &seconds)?;
            }
        }
        if self.label.is_some() {
            kvorum_output::tell("\r\x1b[K");
        }
        Ok(Watched { log: self.log(&seconds), streams: self.streams(&seconds) })
    }

    /// Replaces the line on the terminal.
    fn show(&self, second: u64, seconds: &BTreeMap<(u64, usize), Second>) -> Result<(), LabError> {
        let Some(label) = &self.label else { return Ok(()) };
        let mut all = Latencies::new()?;
        for (_, one) in seconds.range((second, 0)..=(second, usize::MAX)) {
            all.merge(&one.latency)?;
        }
        let failed = seconds.values().map(|one| one.failed).sum();
        kvorum_output::tell(format!("\r\x1b[K{label}{}", progress(second, self.duration, &all, failed)));
        Ok(())
    }

    fn streams(&self, seconds: &BTreeMap<(u64, usize), Second>) -> Vec<Vec<SecondFigures>> {
        let mut streams = vec![Vec::new(); self.names.len()];
        for (&(second, stream), one) in seconds {
            let Some(figures) = streams.get_mut(stream) else { continue };
            if Duration::from_secs(second) >= self.duration {
                continue;
            }
            // A second that no lane reported had no answers.
            let place = usize::try_from(second).unwrap_or(usize::MAX);
            figures.resize(place, SecondFigures::default());
            figures.push(SecondFigures {
                succeeded: one.latency.count(),
                failed: one.failed,
                p99: one.latency.percentile(99.0),
            });
        }
        streams
    }

    fn log(&self, seconds: &BTreeMap<(u64, usize), Second>) -> String {
        let is_tagged = self.names.len() > 1;
        // After the end only late answers arrive, and usually none.
        let is_within = |&(&(second, _), one): &(&(u64, usize), &Second)| {
            Duration::from_secs(second) < self.duration || one.latency.count() > 0
        };
        let lines = seconds.iter().filter(is_within).map(|(&(second, stream), one)| {
            let tag = self.names.get(stream).filter(|_| is_tagged).map(String::as_str);
            log_line(tag, Duration::from_secs(second), Duration::from_secs(1), &one.latency)
        });
        lines.collect()
    }
}

/// Rate, latencies and failures of `second`, and the rest of `duration`.
fn progress(second: u64, duration: Duration, latencies: &Latencies, failed: u64) -> String {
    let left = float(crate::units::nanos(duration)) / 1e9 - float(second + 1);
    format!(
        "{}/s  p50 {}  p99 {}  errors {}  {:.0}s left",
        grouped(latencies.count()),
        latency(latencies.percentile(50.0)),
        latency(latencies.percentile(99.0)),
        grouped(failed),
        left.max(0.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: seconds of lanes add up, streams stay apart, order is that of time. Method: ticks made by hand.
    #[test]
    fn ticks_add_up() {
        let (sender, ticks) = channel();
        for (stream, second, millis) in [(0, 0, 5), (1, 0, 7), (0, 0, 6), (0, 1, 8), (1, 0, 9)] {
            let mut latency = Latencies::new().unwrap();
            latency.record(Duration::from_millis(millis));
            sender.send(Tick { stream, second, latency, failed: 0 }).unwrap();
        }
        drop(sender);
        let names = vec!["put".into(), "get".into()];
        let watch = Watch { names, lanes: 2, duration: Duration::from_secs(2), label: None };
        let watched = watch.run(&ticks).unwrap();
        let log = watched.log;
        let heads: Vec<String> = log.lines().map(|line| line.rsplit_once(',').unwrap().0.into()).collect();
        assert_eq!(
            heads,
            ["Tag=put,0.000,1.000,6.001", "Tag=get,0.000,1.000,9.003", "Tag=put,1.000,1.000,8.004"]
        );
        let counts: Vec<Vec<u64>> =
            watched.streams.iter().map(|stream| stream.iter().map(|one| one.succeeded).collect()).collect();
        assert_eq!(counts, [vec![2, 1], vec![2]]);
    }

    /// Goal: the line shows rate, latencies, errors and time left. Method: the whole text.
    #[test]
    fn the_line_of_progress() {
        let mut latencies = Latencies::new().unwrap();
        for _ in 0..1_200 {
            latencies.record(Duration::from_micros(500));
        }
        let line = progress(9, Duration::from_secs(30), &latencies, 3);
        assert_eq!(line, "1,200/s  p50 500.22us  p99 500.22us  errors 3  20s left");
    }
}
