//! Time and chance, as the node sees them. The simulation is the second user of both traits.

use kvorum_core::UnixMillis;
use std::time::{Duration, Instant, SystemTime};

/// This tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The time of day. It may jump either way; nothing but stamps and expiry is judged by it.
    fn wall(&self) -> UnixMillis;

    /// The time since some fixed instant of this process. It never goes back; every duration is measured by it.
    fn mono(&self) -> Duration;
}

/// This gives bytes that nobody can foretell.
pub trait Rng: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// This is the machine's time.
#[derive(Debug)]
pub struct SystemClock {
    begun: Instant,
}

impl SystemClock {
    /// The machine's clocks, with the monotonic one counted from now.
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's time comes in")]
    pub fn new() -> Self {
        Self { begun: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's time comes in")]
    fn wall(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn mono(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// This is the operating system's randomness.
#[derive(Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's randomness comes in")]
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness the node would run with a store id of zeros, which only names it.
        if let Err(error) = getrandom::fill(bytes) {
            tracing::warn!(%error, "the operating system gives no randomness");
        }
    }
}

/// A clock that stands still until a test moves it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock {
    wall_millis: std::sync::atomic::AtomicU64,
    mono_millis: std::sync::atomic::AtomicU64,
}

#[cfg(test)]
impl ManualClock {
    pub(crate) fn at(wall_millis: u64) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self { wall_millis: wall_millis.into(), mono_millis: 0.into() })
    }

    pub(crate) fn set_wall(&self, millis: u64) {
        self.wall_millis.store(millis, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn pass(&self, millis: u64) {
        self.wall_millis.fetch_add(millis, std::sync::atomic::Ordering::Relaxed);
        self.mono_millis.fetch_add(millis, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn wall(&self) -> UnixMillis {
        UnixMillis(self.wall_millis.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn mono(&self) -> Duration {
        Duration::from_millis(self.mono_millis.load(std::sync::atomic::Ordering::Relaxed))
    }
}
