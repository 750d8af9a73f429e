//! The pace of repair, refill and hints: at most so many bytes a second, and less while clients are there and feel it.
//!
//! One [`Pace`] for all of a node's comparisons and deliveries, and for those of its peers that reach it: what goes over is
//! charged on both sides, and waits on either until what was charged there before is worked off. So a node that comes
//! back is not swamped, however many others have something for it. While clients ask this node for anything, the allowed
//! share of the rate falls by a third whenever the first thread's tasks come late or clients' writes queue up, and rises slowly
//! otherwise (additive increase, multiplicative decrease: Chiu and Jain, 1989); without clients it is the whole rate.

use super::{Coordinator, Shared};
use kvorum_core::{Key, Record};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the load is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From here on the thread's tasks come late: a client's request would wait as long.
const LATE: Duration = Duration::from_millis(3);
/// Writes of clients that wait for the commit thread from which on it is behind.
const AWAITED_LEN: usize = 512;
/// The share of the rate while clients are there, at least (repair must come to an end) and at most.
const SHARE_MIN: f64 = 0.02;
// At the default rate 52,400 small records a second: repair is to manage 50,000 beside clients, and to be felt little.
const SHARE_MAX: f64 = 0.40;
const SHARE_FALL: f64 = 0.67;
const SHARE_RISE: f64 = 0.02;
/// What a record is charged at least, in bytes: small ones cost the processor more than the network.
const RECORD_BYTES_MIN: usize = 512;
/// The same for a hint, which nobody had to look for.
const HINT_BYTES_MIN: usize = 256;
/// What may be charged ahead: timers are not finer.
const AHEAD_MAX: Duration = Duration::from_millis(5);
/// How long a message of a peer waits at most: well below the time after which the peer gives it up.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// This is how much may be sent and taken now for what nobody waits for.
#[derive(Debug, Default)]
pub(super) struct Pace {
    // Guards two numbers; held for a few additions.
    state: Mutex<State>,
    /// What clients asked of this node so far, here or through another.
    requests: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// When all that was charged is worked off, on the monotonic clock.
    free_at: Duration,
    share: f64,
}

impl Default for State {
    fn default() -> Self {
        Self { free_at: Duration::ZERO, share: 1.0 }
    }
}

impl Pace {
    /// Notes that a client asked for something, of this node or of another that asks this one.
    pub(super) fn note_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `bytes` at `rate` bytes a second. How long they wait for what was charged before.
    fn charge(&self, now: Duration, bytes: usize, rate: u64) -> Option<Duration> {
        self.charge_within(now, bytes, rate, Duration::MAX)
    }

    /// The same, of what waits for `wait_max` at most: it is charged no further ahead, or what was let through without
    /// having waited long enough would be a debt of all that comes later.
    fn charge_within(&self, now: Duration, bytes: usize, rate: u64, wait_max: Duration) -> Option<Duration> {
        let mut state = self.state();
        #[expect(clippy::cast_precision_loss, reason = "a pace need not be exact")]
        let time = bytes as f64 / (rate.max(1) as f64 * state.share);
        let free_at = state.free_at.max(now);
        let charged = free_at + Duration::from_secs_f64(time);
        state.free_at = charged.min(now.saturating_add(wait_max)).max(free_at);
        free_at.checked_sub(now).filter(|ahead| *ahead > AHEAD_MAX).map(|ahead| ahead.min(wait_max))
    }

    /// Takes in how it went since the last look.
    fn look(&self, has_clients: bool, is_late: bool) {
        let mut state = self.state();
        state.share = match (has_clients, is_late) {
            (false, _) => 1.0,
            (true, true) => (state.share.min(SHARE_MAX) * SHARE_FALL).max(SHARE_MIN),
            (true, false) => (state.share + SHARE_RISE).min(SHARE_MAX),
        };
    }
}

impl Shared {
    /// Charges what goes over for repair, or as a hint, and waits until it may.
    pub(super) async fn wait_for_pace(&self, bytes: usize) {
        let rate = self.settings.upkeep.repair_rate;
        if let Some(wait) = self.pace.charge(self.clock.mono(), bytes, rate) {
            tokio::time::sleep(wait).await;
        }
    }

    /// The same for what a peer sends or has asked for: it waits for an answer, and not for ever.
    pub(super) async fn hold_to_pace(&self, bytes: usize) {
        let rate = self.settings.upkeep.repair_rate;
        if let Some(wait) = self.pace.charge_within(self.clock.mono(), bytes, rate, WAIT_MAX) {
            tokio::time::sleep(wait).await;
        }
    }
}

/// The bytes that a record is charged.
pub(super) fn charged(key: &Key, record: &Record) -> usize {
    bytes(key, record).max(RECORD_BYTES_MIN)
}

/// The bytes that a hint is charged.
pub(super) fn charged_hint(key: &Key, record: &Record) -> usize {
    bytes(key, record).max(HINT_BYTES_MIN)
}

fn bytes(key: &Key, record: &Record) -> usize {
    key.as_ref().len() + record.value_bytes()
}

/// The bytes that records are charged together.
pub(super) fn charged_all(records: &[(Key, Record)]) -> usize {
    records.iter().map(|(key, record)| charged(key, record)).sum()
}

impl Coordinator {
    /// Looks after the pace, forever. Called on the thread that repairs.
    pub(super) async fn keep_pace(self: Rc<Self>) {
        let mut before = 0;
        loop {
            let begun = self.shared.clock.mono();
            tokio::time::sleep(LOOK_EVERY).await;
            let late = self.shared.clock.mono().saturating_sub(begun + LOOK_EVERY);
            let asked = self.shared.pace.requests.load(Ordering::Relaxed);
            let is_late = late > LATE || self.shared.replica.awaited_len() > AWAITED_LEN;
            self.shared.pace.look(asked != before, is_late);
            before = asked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    /// A rate is kept to but for a few milliseconds, and idle time is not saved up.
    #[test]
    fn rate_is_kept() {
        let pace = Pace::default();
        let charge = |now, bytes| pace.charge(now, bytes, 1_000_000).map(|wait| wait.as_millis());
        assert_eq!(charge(NOW, 1000), None, "nothing was charged before");
        assert_eq!(charge(NOW, 99_000), None, "a millisecond ahead");
        assert_eq!(charge(NOW, 1), Some(100));
        let later = NOW + Duration::from_mins(1);
        assert_eq!(charge(later, 100_000), None);
        assert_eq!(charge(later, 1), Some(100));
    }

    /// What peers send beyond the pace goes through after the longest wait, and leaves no more than that to be worked off,
    /// however much there is of it and however low the pace.
    #[test]
    fn what_goes_through_leaves_no_debt() {
        let pace = Pace::default();
        (0..100).for_each(|_| pace.look(true, true));
        let held = |bytes| pace.charge_within(NOW, bytes, 1_000_000, WAIT_MAX);
        assert_eq!(held(1_000_000), None);
        assert!((0..1000).all(|_| held(1_000_000) == Some(WAIT_MAX)));
        assert_eq!(pace.charge(NOW, 1, 1_000_000), Some(WAIT_MAX));
        assert_eq!(pace.charge(NOW + WAIT_MAX, 1, 1_000_000), None);
    }

    /// Clients who feel it have the pace fall, at most to its least; without clients it is the whole rate at once.
    #[test]
    fn clients_come_first() {
        let pace = Pace::default();
        pace.look(true, true);
        assert!(pace.state().share < SHARE_MAX);
        (0..100).for_each(|_| pace.look(true, true));
        pace.charge(NOW, 20_000, 1_000_000);
        let wait = pace.charge(NOW, 1, 1_000_000).map(|wait| wait.as_millis());
        assert_eq!(wait, Some(1000), "one part in fifty");
        (0..100).for_each(|_| pace.look(true, false));
        assert!(pace.state().share >= SHARE_MAX);
        pace.look(false, true);
        assert!(pace.state().share >= 1.0);
    }
}
