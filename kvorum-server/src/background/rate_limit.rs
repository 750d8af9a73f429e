//! The rate limiter of repair, refill and hints: limits their bytes per second, further while clients are slowed down.
//!
//! One [`RateLimit`] covers all of a node's comparisons and deliveries, and those of its peers that reach it. Every transfer
//! is charged on both sides, and waits on either side until earlier charges are worked off. So a node that comes back
//! is not swamped, however many others send it records.
//!
//! While clients use this node, it allows only a share of the rate. The share falls by a third whenever the first
//! thread's tasks run late or clients' writes queue up, and otherwise rises slowly (additive increase, multiplicative
//! decrease: Chiu and Jain, 1989). Without clients it is the whole rate.

use super::worker::{Work, Worker};
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use kvorum_core::{Key, Record};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the load is measured.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The delay from which the thread's tasks count as late: a client's request would wait as long.
const LATE: Duration = Duration::from_millis(3);
/// The number of clients' writes waiting for the commit thread from which it counts as overloaded.
const AWAITED_LEN: usize = 512;
/// The share of the rate while clients are there: the minimum (repair must come to an end) and the maximum.
const SHARE_MIN: f64 = 0.02;
// At the default rate 52,400 small records a second: repair must manage 50,000 beside clients and slow them little.
const SHARE_MAX: f64 = 0.40;
const SHARE_FALL: f64 = 0.67;
const SHARE_RISE: f64 = 0.02;
/// The minimum charge of a record, in bytes: small records cost the processor more than the network.
const RECORD_BYTES_MIN: usize = 512;
/// The same for a hint, which costs no comparison.
const HINT_BYTES_MIN: usize = 256;
/// How far charges may run ahead without a wait: timers are not finer.
const AHEAD_MAX: Duration = Duration::from_millis(5);
/// The longest wait of a peer's message: well below the time after which the peer gives up.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The rate limiter of background transfers.
pub(crate) struct RateLimit {
    clock: Arc<dyn Clock>,
    /// Bytes per second.
    rate: u64,
    // Guards two numbers. Held for a few additions.
    state: Mutex<State>,
    /// Number of requests that clients made of this node so far, directly or through another node.
    requests: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// When all charges are worked off, on the monotonic clock.
    free_at: Duration,
    share: f64,
}

impl Default for State {
    fn default() -> Self {
        Self { free_at: Duration::ZERO, share: 1.0 }
    }
}

impl RateLimit {
    /// A limiter to `rate` bytes per second.
    pub(crate) fn new(clock: Arc<dyn Clock>, rate: u64) -> Self {
        Self { clock, rate, state: Mutex::default(), requests: AtomicU64::new(0) }
    }

    /// Notes a request of a client to this node, directly or through another node.
    pub(crate) fn note_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `bytes` at `now`, on the monotonic clock. Returns how long they wait for earlier charges.
    fn charge(&self, now: Duration, bytes: usize) -> Option<Duration> {
        self.charge_within(now, bytes, Duration::MAX)
    }

    /// Like [`Self::charge`], but with a wait of `wait_max` at most. The charge goes no further ahead than that:
    /// otherwise a message that was let through too early would leave a debt for all later ones.
    fn charge_within(&self, now: Duration, bytes: usize, wait_max: Duration) -> Option<Duration> {
        let mut state = self.state();
        #[expect(clippy::cast_precision_loss, reason = "a pace need not be exact")]
        let time = bytes as f64 / (self.rate.max(1) as f64 * state.share);
        let free_at = state.free_at.max(now);
        let charged = free_at + Duration::from_secs_f64(time);
        state.free_at = charged.min(now.saturating_add(wait_max)).max(free_at);
        free_at.checked_sub(now).filter(|ahead| *ahead > AHEAD_MAX).map(|ahead| ahead.min(wait_max))
    }

    /// Charges a repair or a hint, and waits until it may be sent.
    pub(crate) async fn wait(&self, bytes: usize) {
        if let Some(wait) = self.charge(self.clock.mono(), bytes) {
            tokio::time::sleep(wait).await;
        }
    }

    /// The same for a message that a peer sends or asked for: the peer waits for an answer, but not for ever.
    pub(crate) async fn hold(&self, bytes: usize) {
        if let Some(wait) = self.charge_within(self.clock.mono(), bytes, WAIT_MAX) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Adjusts the share by the load since the last call.
    fn look(&self, has_clients: bool, is_late: bool) {
        let mut state = self.state();
        state.share = match (has_clients, is_late) {
            (false, _) => 1.0,
            (true, true) => (state.share.min(SHARE_MAX) * SHARE_FALL).max(SHARE_MIN),
            (true, false) => (state.share + SHARE_RISE).min(SHARE_MAX),
        };
    }
}

/// The bytes that a record is charged.
pub(crate) fn charged(key: &Key, record: &Record) -> usize {
    bytes(key, record).max(RECORD_BYTES_MIN)
}

/// The bytes that a hint is charged.
pub(crate) fn charged_hint(key: &Key, record: &Record) -> usize {
    bytes(key, record).max(HINT_BYTES_MIN)
}

fn bytes(key: &Key, record: &Record) -> usize {
    key.as_ref().len() + record.value_bytes()
}

/// The bytes that records are charged together.
pub(crate) fn charged_all(records: &[(Key, Record)]) -> usize {
    records.iter().map(|(key, record)| charged(key, record)).sum()
}

/// Measures the load, and adjusts the rate limiter by it. Runs on the thread that runs anti-entropy.
pub(crate) struct LoadMeter {
    own: Rc<Coordinator>,
    requests_before: u64,
}

impl LoadMeter {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        Self { own, requests_before: 0 }
    }
}

impl Worker for LoadMeter {
    async fn work(&mut self) -> Work {
        let shared = &self.own.shared;
        let begun = shared.clock.mono();
        tokio::time::sleep(LOOK_EVERY).await;
        let late = shared.clock.mono().saturating_sub(begun + LOOK_EVERY);
        let pace = &shared.background.pace;
        let requests = pace.requests.load(Ordering::Relaxed);
        let is_late = late > LATE || shared.replica.awaited_len() > AWAITED_LEN;
        pace.look(requests != self.requests_before, is_late);
        self.requests_before = requests;
        Work::Busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    const NOW: Duration = Duration::from_secs(100);

    fn limit() -> RateLimit {
        RateLimit::new(Arc::new(SystemClock::new()), 1_000_000)
    }

    /// The rate is kept but for a few milliseconds, and idle time is not saved up.
    #[test]
    fn rate_is_kept() {
        let pace = limit();
        let charge = |now, bytes| pace.charge(now, bytes).map(|wait| wait.as_millis());
        assert_eq!(charge(NOW, 1000), None, "nothing was charged before");
        assert_eq!(charge(NOW, 99_000), None, "a millisecond ahead");
        assert_eq!(charge(NOW, 1), Some(100));
        let later = NOW + Duration::from_mins(1);
        assert_eq!(charge(later, 100_000), None);
        assert_eq!(charge(later, 1), Some(100));
    }

    /// Messages of peers above the rate go through after the longest wait. They leave no longer wait than that for
    /// later ones, however many they are and however low the rate.
    #[test]
    fn what_goes_through_leaves_no_debt() {
        let pace = limit();
        (0..100).for_each(|_| pace.look(true, true));
        let held = |bytes| pace.charge_within(NOW, bytes, WAIT_MAX);
        assert_eq!(held(1_000_000), None);
        assert!((0..1000).all(|_| held(1_000_000) == Some(WAIT_MAX)));
        assert_eq!(pace.charge(NOW, 1), Some(WAIT_MAX));
        assert_eq!(pace.charge(NOW + WAIT_MAX, 1), None);
    }

    /// Slowed-down clients make the share fall, down to its minimum; without clients the whole rate is back at once.
    #[test]
    fn clients_come_first() {
        let pace = limit();
        pace.look(true, true);
        assert!(pace.state().share < SHARE_MAX);
        (0..100).for_each(|_| pace.look(true, true));
        pace.charge(NOW, 20_000);
        let wait = pace.charge(NOW, 1).map(|wait| wait.as_millis());
        assert_eq!(wait, Some(1000), "one part in fifty");
        (0..100).for_each(|_| pace.look(true, false));
        assert!(pace.state().share >= SHARE_MAX);
        pace.look(false, true);
        assert!(pace.state().share >= 1.0);
    }
}
