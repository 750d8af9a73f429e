//! The pause of a background worker: set by an operator, ends by itself.

use crate::clock::Clock;
use std::time::Duration;
use tokio::sync::watch;

/// The time until which a worker is paused, by the node's monotonic clock.
#[derive(Debug, Default)]
pub struct Pause {
    until: watch::Sender<Option<Duration>>,
}

impl Pause {
    /// Pauses the worker until `until`, or lets it continue (`None`).
    pub fn set(&self, until: Option<Duration>) {
        self.until.send_replace(until);
    }

    /// How long the worker stays paused; `None` when it is not.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.until.borrow().and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero())
    }

    /// Waits until the worker is not paused.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn end(&self, clock: &dyn Clock) {
        let mut changes = self.until.subscribe();
        while let Some(left) = self.left(clock.mono()) {
            let _ = tokio::time::timeout(left, changes.changed()).await;
        }
    }

    /// Waits until the worker is paused.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn begin(&self, clock: &dyn Clock) {
        let mut changes = self.until.subscribe();
        while self.left(clock.mono()).is_none() {
            // The sender is this pause: it cannot be gone.
            let _ = changes.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    const SHORT: Duration = Duration::from_secs(1);

    /// A pause ends when its time has passed, or when it is taken back. A task that waits for either is woken at once.
    #[tokio::test]
    async fn pauses_begin_and_end() {
        let (clock, pause) = (SystemClock::new(), Pause::default());
        pause.end(&clock).await;
        let in_a_moment = || Some(clock.mono() + SHORT / 20);
        pause.set(in_a_moment());
        pause.begin(&clock).await;
        pause.end(&clock).await;
        assert_eq!(pause.left(clock.mono()), None);
        pause.set(Some(clock.mono() + 3600 * SHORT));
        assert!(tokio::time::timeout(SHORT / 20, pause.end(&clock)).await.is_err());
        tokio::join!(pause.end(&clock), async { pause.set(None) });
        let begun = pause.begin(&clock);
        tokio::join!(begun, async {
            tokio::task::yield_now().await;
            pause.set(Some(clock.mono() + 3600 * SHORT));
        });
    }
}
