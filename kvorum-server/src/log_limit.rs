//! Limits on how often a line is logged: a shortage or a foreign node can cause the same line a thousand times a
//! second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A limit of `lines_max` log lines of one kind per period; further lines are counted.
#[derive(Debug)]
pub(crate) struct LogLimit {
    lines_max: u32,
    period: Duration,
    // Guards the counts; held for a comparison.
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    begun: Option<Duration>,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// Allows `lines_max` lines in each `period`.
    pub(crate) const fn new(lines_max: u32, period: Duration) -> Self {
        let counts = Mutex::new(Counts { begun: None, lines: 0, left_out: 0 });
        Self { lines_max, period, counts }
    }

    /// Whether a line may be logged at `now`; if so, returns how many were left out since the last one.
    pub(crate) fn admit(&self, now: Duration) -> Option<u64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.begun.is_none_or(|begun| now >= begun + self.period || now < begun) {
            (counts.begun, counts.lines) = (Some(now), 0);
        }
        if counts.lines >= self.lines_max {
            counts.left_out += 1;
            return None;
        }
        counts.lines += 1;
        Some(std::mem::take(&mut counts.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixed number of lines per period are logged, and the first line of the next period reports how many were not.
    #[test]
    fn lines_are_bounded_and_counted() {
        let limit = LogLimit::new(2, Duration::from_secs(10));
        let at = |seconds| limit.admit(Duration::from_secs(seconds));
        assert_eq!([at(5), at(5), at(6), at(14)], [Some(0), Some(0), None, None]);
        assert_eq!([at(15), at(15), at(16)], [Some(2), Some(0), None]);
        assert_eq!(at(60), Some(1));
    }
}
