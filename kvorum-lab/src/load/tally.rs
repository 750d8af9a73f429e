//! The counts of a running stream; tallies of its lanes add up to the stream's.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::verified::Verified;
use crate::error::LabError;
use crate::histogram::Latencies;

/// An operation that was sent more than this after it was due is "late".
pub const LATE: Duration = Duration::from_millis(1);

/// The windows over which the spread of a thread's rate is measured.
pub const WINDOW: Duration = Duration::from_millis(100);

/// The most keys of failed operations that a lane remembers, for the prefill to repeat.
const FAILED_KEYS_MAX: usize = 1_000_000;

/// The most windows of a lane: 28 hours.
pub(super) const WINDOWS_MAX: usize = 1_000_000;

/// How an operation, or a connection, failed below HTTP's statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection could be made: refused, unreachable, or not in time.
    Connect,
    /// Writing the request failed.
    Send,
    /// Reading the answer failed.
    Receive,
    /// The server closed the connection before its answer was whole.
    Closed,
    /// No answer within the time-out.
    Timeout,
    /// The answer was not HTTP as the contract defines it.
    Malformed,
}

impl Failure {
    /// Every kind, in the order of reports: wrk's own first.
    pub const ALL: [Self; 6] =
        [Self::Connect, Self::Receive, Self::Send, Self::Timeout, Self::Closed, Self::Malformed];
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Send => "write",
            Self::Receive => "read",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
        })
    }
}

/// A failure, with the system's error if it was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// The failure.
    pub failure: Failure,
    /// The number of the system's error; none for time-outs and what the other side sent or closed.
    pub os_error: Option<i32>,
}

impl Broken {
    /// A failure by an error of the system.
    pub fn by(failure: Failure, error: &io::Error) -> Self {
        Self { failure, os_error: error.raw_os_error() }
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self { failure, os_error: None }
    }
}

/// Counts and distributions of one stream, or of a lane of it.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Latencies of operations that succeeded; in an open loop from the moment each was due.
    pub latency: Latencies,
    /// The same operations from the moment each was sent: the figures of a tool without a schedule.
    pub uncorrected: Latencies,
    /// As `latency`, by kind of operation; only in loads of several kinds.
    pub by_kind: BTreeMap<&'static str, Latencies>,
    /// Operations answered in each [`WINDOW`], one lane's windows after another's.
    pub windows: Vec<u32>,
    /// How late the driver itself woke up for due operations: its own error, and a sign of a starved machine.
    pub driver_lag: Latencies,
    /// Operations answered with a 2xx status and, where checked, the right body.
    pub succeeded: u64,
    /// Operations answered with another status, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by kind. For kind `Connect` they count attempts, not operations.
    pub failures: BTreeMap<Failure, u64>,
    /// Of the failures, those by an error of the system, by its number.
    pub causes: BTreeMap<(Failure, i32), u64>,
    /// What was compared with `--verify`.
    pub verified: Verified,
    /// Answers 2xx whose body was not the key's value, or records out of order.
    pub wrong_bodies: u64,
    /// Operations sent more than [`LATE`] after they were due: no connection was free, or none at all.
    pub late: u64,
    /// Operations that were due and could not be sent before the run ended.
    pub unsent: u64,
    /// Scans still running when the run was cut off; neither success nor failure, their records not counted.
    pub cut: u64,
    /// Records of whole scans.
    pub records: u64,
    /// Bytes written to sockets.
    pub bytes_sent: u64,
    /// Bytes read from sockets.
    pub bytes_received: u64,
    /// When the last operation was answered.
    pub last_answer: Option<Instant>,
    /// Keys of operations that did not succeed, in bounded streams; at most a million per lane.
    pub failed_keys: Vec<u64>,
}

impl Tally {
    /// An empty tally.
    pub fn new() -> Result<Self, LabError> {
        Ok(Self {
            latency: Latencies::new()?,
            uncorrected: Latencies::new()?,
            by_kind: BTreeMap::new(),
            windows: Vec::new(),
            driver_lag: Latencies::new()?,
            succeeded: 0,
            statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            causes: BTreeMap::new(),
            verified: Verified::default(),
            wrong_bodies: 0,
            late: 0,
            unsent: 0,
            cut: 0,
            records: 0,
            bytes_sent: 0,
            bytes_received: 0,
            last_answer: None,
            failed_keys: Vec::new(),
        })
    }

    /// Counts a failure.
    pub fn failure(&mut self, broken: impl Into<Broken>) {
        let Broken { failure, os_error } = broken.into();
        *self.failures.entry(failure).or_default() += 1;
        if let Some(number) = os_error {
            *self.causes.entry((failure, number)).or_default() += 1;
        }
    }

    /// Counts an answer with an unexpected status.
    pub fn status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    /// Counts an answer that came `after` the measured part began.
    pub fn answered(&mut self, after: Duration) {
        let window = usize::try_from(after.as_nanos() / WINDOW.as_nanos()).unwrap_or(usize::MAX);
        if window >= self.windows.len() && window < WINDOWS_MAX {
            self.windows.resize(window + 1, 0);
        }
        if let Some(count) = self.windows.get_mut(window) {
            *count += 1;
        }
    }

    /// Remembers the key of an operation that must be repeated.
    pub fn failed_key(&mut self, index: u64) {
        if self.failed_keys.len() < FAILED_KEYS_MAX {
            self.failed_keys.push(index);
        }
    }

    /// Operations answered with an unexpected status.
    pub fn unexpected(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Operations that were sent and got no answer.
    pub fn failed_in_flight(&self) -> u64 {
        self.failures.iter().filter(|&(&kind, _)| kind != Failure::Connect).map(|(_, count)| count).sum()
    }

    /// How often `kind` happened.
    pub fn failures_of(&self, kind: Failure) -> u64 {
        self.failures.get(&kind).copied().unwrap_or(0)
    }

    /// Adds the counts of another lane.
    pub fn merge(&mut self, other: &Self) -> Result<(), LabError> {
        self.latency.merge(&other.latency)?;
        self.uncorrected.merge(&other.uncorrected)?;
        for (&kind, latency) in &other.by_kind {
            match self.by_kind.get_mut(kind) {
                Some(known) => known.merge(latency)?,
                None => drop(self.by_kind.insert(kind, latency.clone())),
            }
        }
        self.windows.extend_from_slice(&other.windows);
        self.driver_lag.merge(&other.driver_lag)?;
        self.succeeded += other.succeeded;
        for (&status, count) in &other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for (&kind, count) in &other.failures {
            *self.failures.entry(kind).or_default() += count;
        }
        for (&cause, count) in &other.causes {
            *self.causes.entry(cause).or_default() += count;
        }
        self.verified.merge(&other.verified);
        self.wrong_bodies += other.wrong_bodies;
        self.late += other.late;
        self.unsent += other.unsent;
        self.cut += other.cut;
        self.records += other.records;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.last_answer = self.last_answer.max(other.last_answer);
        self.failed_keys.extend_from_slice(&other.failed_keys);
        Ok(())
    }
}
