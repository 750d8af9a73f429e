//! The pause of a background worker of the store: set by an operator, ends by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time until which a worker is paused, by the node's monotonic clock.
#[derive(Debug, Default)]
pub struct Pause {
    /// In milliseconds; 0 when the worker is not paused.
    until: AtomicU64,
}

impl Pause {
    /// Pauses the worker until `until`, or lets it continue (`None`).
    pub fn set(&self, until: Option<Duration>) {
        let millis = until.map_or(0, |until| u64::try_from(until.as_millis()).unwrap_or(u64::MAX));
        self.until.store(millis, Ordering::Relaxed);
    }

    /// How long the worker stays paused; `None` when it is not.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let until = Duration::from_millis(self.until.load(Ordering::Relaxed));
        until.checked_sub(now).filter(|left| !left.is_zero())
    }
}
