//! The progress display of a lab: which step of how many, its current work, and the time left.
//!
//! To stderr: one line that is replaced on a terminal, a line for each step elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The state of a run.
#[derive(Debug)]
pub struct Progress {
    /// The lengths of the windows of the planned steps, the current one first.
    planned: Vec<Duration>,
    /// Steps that an earlier run has finished.
    kept: usize,
    done: usize,
    /// The windows of the finished steps, and how long they really took.
    spent: (Duration, Duration),
    step: String,
    begun: Instant,
    is_terminal: bool,
}

/// The assumed time of a step besides its windows until one has finished: starting, filling, stopping.
const OVERHEAD: Duration = Duration::from_secs(8);

impl Progress {
    /// The state before the first of the `planned` steps, with `kept` steps finished by an earlier run.
    pub fn new(planned: Vec<Duration>, kept: usize) -> Self {
        Self {
            planned,
            kept,
            done: 0,
            spent: (Duration::ZERO, Duration::ZERO),
            step: String::new(),
            begun: Instant::now(),
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Marks the beginning of a step.
    pub fn begin(&mut self, step: &str) {
        step.clone_into(&mut self.step);
        self.begun = Instant::now();
        if !self.is_terminal {
            kvorum_output::tell_line!("{} {}", self.place(), self.step);
        }
    }

    /// Marks the end of the step, after `elapsed`.
    pub fn end(&mut self, elapsed: Duration) {
        let planned = self.planned.get(self.done).copied().unwrap_or_default();
        self.done += 1;
        self.spent = (self.spent.0 + planned, self.spent.1 + elapsed);
        if self.is_terminal {
            kvorum_output::tell("\r\x1b[K");
        }
    }

    /// Shows the current work of the step.
    pub fn say(&self, what: &str) {
        if self.is_terminal {
            kvorum_output::tell(format!("\r\x1b[K{} {}: {what}", self.place(), self.step));
        }
    }

    /// Shows a warning, on lines of its own.
    pub fn complain(&self, what: &str) {
        let erase = if self.is_terminal { "\r\x1b[K" } else { "" };
        kvorum_output::tell_line!("{erase}!! {}: {what}", self.step);
    }

    /// Which step of how many, and how long all will still take.
    pub fn place(&self) -> String {
        let all = self.kept + self.planned.len();
        let left = self.left().saturating_sub(self.begun.elapsed());
        format!("[{}/{all}, {} left]", self.kept + self.done + 1, minutes(left))
    }

    /// The time from the beginning of the current step to the end of the last one.
    fn left(&self) -> Duration {
        let steps = self.planned.len().saturating_sub(self.done);
        let windows: Duration = self.planned.iter().skip(self.done).sum();
        let done = u32::try_from(self.done).unwrap_or(u32::MAX);
        let overhead = match done {
            0 => OVERHEAD,
            done => self.spent.1.saturating_sub(self.spent.0) / done,
        };
        windows + overhead * u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 100 { format!("{seconds}s") } else { format!("{}m", seconds.div_ceil(60)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the time left follows the plan, and is corrected by the time that steps really took. Method:
    /// three steps of a minute, the first of which took two.
    #[test]
    fn the_time_left_is_learnt() {
        let minute = Duration::from_mins(1);
        let mut progress = Progress::new(vec![minute; 3], 2);
        assert_eq!(progress.left(), minute * 3 + OVERHEAD * 3);
        progress.begin("a");
        assert!(progress.place().starts_with("[3/5, 4m left"), "{}", progress.place());
        progress.end(minute * 2);
        assert_eq!(progress.left(), minute * 4);
        progress.end(minute * 2);
        progress.end(minute * 2);
        assert_eq!(progress.left(), Duration::ZERO);
        assert_eq!([minutes(Duration::from_secs(99)), minutes(Duration::from_secs(121))], ["99s", "3m"]);
    }
}
