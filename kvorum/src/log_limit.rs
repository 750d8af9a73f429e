//! Bounds on how often something is logged: a shortage or a stranger can make the same line come a thousand times a second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lines of one kind: so many in each period, the others counted.
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
    /// Lets `lines_max` lines through in each `period`.
    pub(crate) const fn new(lines_max: u32, period: Duration) -> Self {
        let counts = Mutex::new(Counts { begun: None, lines: 0, left_out: 0 });
        Self { lines_max, period, counts }
    }

    /// Whether a line may be logged at `now`, and how many were left out since the last that was.
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

    /// So many lines a period, and the next that comes through says how many did not.
    #[test]
    fn lines_are_bounded_and_counted() {
        let limit = LogLimit::new(2, Duration::from_secs(10));
        let at = |seconds| limit.admit(Duration::from_secs(seconds));
        assert_eq!([at(5), at(5), at(6), at(14)], [Some(0), Some(0), None, None]);
        assert_eq!([at(15), at(15), at(16)], [Some(2), Some(0), None]);
        assert_eq!(at(60), Some(1));
    }
}
