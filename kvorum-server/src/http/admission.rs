//! Admission of large values: limits how many bytes of large values are written at once to as many as finish in time.
//!
//! A node that takes every large value at once finishes none in time: they share its processors and disks, all of them
//! pass their deadlines, and the work is lost. So a large value queues once its first [`LARGE_BYTES`] have arrived. The
//! node does not read the rest before the value's turn. A value that would wait too long is refused with a time to
//! retry after.
//!
//! The queue takes turns by token ([`super::by_token`]).
//!
//! The limit follows from how long writes take. It grows while writes end well within their deadlines and shrinks as
//! soon as one does not (additive increase, multiplicative decrease: Chiu and Jain, "Analysis of the increase and
//! decrease algorithms for congestion avoidance in computer networks", 1989).

use super::by_token::{ByToken, User};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// The size in bytes from which a value is a large one.
pub const LARGE_BYTES: u64 = 64 << 10;
/// The most requests that wait to be admitted; more are refused at once.
const WAITING_MAX: usize = 1024;
/// The longest `Retry-After` that a client is given.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The admission queue; one for all threads of a node.
#[derive(Debug)]
pub struct Admission {
    // Guards the state; held for a few assignments, or to collect the requests whose turn it is.
    state: Mutex<State>,
    /// The largest value, which is always admitted alone, and the highest limit; both in bytes.
    bounds: (u64, u64),
    me: Weak<Self>,
}

#[derive(Debug)]
struct State {
    /// The limit: the most bytes that may be under way at once.
    limit: u64,
    under_way: u64,
    waiting: ByToken<Waiting>,
    /// How long the latest write took.
    took: Duration,
}

#[derive(Debug)]
struct Waiting {
    bytes: u64,
    turn: oneshot::Sender<Admitted>,
}

/// An admitted value. Dropping it makes room for the next.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    bytes: u64,
}

/// The error for a value that was not admitted within its wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowded {
    /// When there may be room, in whole seconds, at least one.
    pub retry_after: u64,
}

impl Admission {
    /// Begins with a limit of two of the largest values; the limit never exceeds `bytes_max`.
    pub fn new(value_bytes_max: u64, bytes_max: u64) -> Arc<Self> {
        let least = value_bytes_max.max(LARGE_BYTES);
        let most = bytes_max.max(least);
        let state = State {
            limit: (2 * least).min(most),
            under_way: 0,
            waiting: ByToken::default(),
            took: Duration::ZERO,
        };
        Arc::new_cyclic(|me| Self { state: Mutex::new(state), bounds: (least, most), me: Weak::clone(me) })
    }

    /// Waits at most `wait` for the turn of a value of `user`.
    ///
    /// # Errors
    /// [`Crowded`] when its turn does not come in time, or too many wait already.
    ///
    /// # Cancel safety
    /// Dropping the future gives the turn to the next.
    pub async fn admit(
        self: &Arc<Self>,
        user: User,
        bytes: u64,
        wait: Duration,
    ) -> Result<Admitted, Crowded> {
        let turn = {
            let mut state = self.lock();
            if state.waiting.is_empty() && state.has_room(bytes) {
                state.under_way += bytes;
                return Ok(Admitted { admission: Arc::clone(self), bytes });
            }
            // Dropping the one that gives way tells its request.
            if state.waiting.len() >= WAITING_MAX && state.waiting.pop_for(&user).is_none() {
                return Err(state.crowded());
            }
            let (turn, comes) = oneshot::channel();
            state.waiting.push(user, Waiting { bytes, turn });
            comes
        };
        match tokio::time::timeout(wait, turn).await {
            Ok(Ok(admitted)) => Ok(admitted),
            _ => Err(self.lock().crowded()),
        }
    }

    /// Records that writing a value of `bytes` took `took`, against a target of `in_time`; `took` is none if it failed.
    pub fn note(&self, bytes: u64, took: Option<Duration>, in_time: Duration) {
        let (least, most) = self.bounds;
        let mut state = self.lock();
        match took.filter(|took| *took <= in_time) {
            // The limit grows by one largest value once a whole limit's worth of bytes has been written.
            Some(_) => {
                let more = least.saturating_mul(bytes) / state.limit.max(1);
                // A limit that is less than half used is no evidence that a higher one works.
                if state.under_way.saturating_mul(2) >= state.limit {
                    state.limit = state.limit.saturating_add(more).min(most);
                }
            }
            None => state.limit = (state.limit / 4 * 3).max(least),
        }
        state.took = took.unwrap_or(in_time);
        self.wake(state);
    }

    /// Bytes under way, and the limit.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.under_way, state.limit)
    }

    /// Admits the requests whose turn it is.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let mut turns = Vec::new();
        while let Some(next) = state.next() {
            if !next.turn.is_closed() {
                state.under_way += next.bytes;
                turns.push(next);
            }
        }
        drop(state);
        // Send without the lock: when the receiver is gone, dropping the `Admitted` takes the lock again.
        for Waiting { bytes, turn } in turns {
            if let Some(admission) = self.me.upgrade() {
                drop(turn.send(Admitted { admission, bytes }));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, bytes: u64) -> bool {
        self.under_way == 0 || self.under_way.saturating_add(bytes) <= self.limit
    }

    /// Takes the next request that is gone or has room.
    fn next(&mut self) -> Option<Waiting> {
        let next = self.waiting.front()?;
        if !next.turn.is_closed() && !self.has_room(next.bytes) {
            return None;
        }
        self.waiting.pop(|next| next.turn.is_closed())
    }

    fn crowded(&self) -> Crowded {
        // The requests ahead in the queue, at the duration of the latest write.
        let before: u64 = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        let rounds = (self.under_way + before).div_ceil(self.limit.max(1));
        let wait = self.took.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX)).min(RETRY_AFTER_MAX);
        Crowded { retry_after: wait.as_secs() + 1 }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.under_way = state.under_way.saturating_sub(self.bytes);
        self.admission.wake(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WAIT: Duration = Duration::from_millis(500);

    /// Values beyond the limit wait in order. The turn of a request that has gone passes to the next. One value is
    /// always admitted, however large.
    #[tokio::test(start_paused = true)]
    async fn values_wait_for_their_turn() {
        let admission = Admission::new(8 * MIB, 100 * MIB);
        let first = admission.admit(None, 8 * MIB, WAIT).await.unwrap();
        let second = admission.admit(None, 8 * MIB, WAIT).await.unwrap();
        assert_eq!(admission.bytes(), (16 * MIB, 16 * MIB));
        let gone = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.admit(None, 8 * MIB, WAIT).await }
        });
        tokio::task::yield_now().await;
        let third = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.admit(None, 8 * MIB, WAIT).await }
        });
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        drop(first);
        let third = third.await.unwrap().unwrap();
        assert_eq!(admission.bytes().0, 16 * MIB);
        assert_eq!(admission.admit(None, 1, WAIT).await.unwrap_err(), Crowded { retry_after: 1 });
        drop((second, third));
        assert_eq!(admission.bytes().0, 0);
        let huge = admission.admit(None, 90 * MIB, WAIT).await.unwrap();
        drop(huge);
        assert_eq!(admission.bytes().0, 0, "what was not waited for any more holds nothing");
    }

    /// The limit grows while values end in time and use it, shrinks when one does not, and stays within its bounds.
    #[tokio::test(start_paused = true)]
    async fn limit_follows_what_is_done_in_time() {
        let admission = Admission::new(8 * MIB, 64 * MIB);
        let (quick, slow) = (Some(Duration::from_millis(10)), Some(Duration::from_secs(9)));
        admission.note(MIB, quick, WAIT);
        assert_eq!(admission.bytes().1, 16 * MIB, "nothing was under way");
        let mut held = Vec::new();
        for _ in 0..100 {
            if let Ok(admitted) = admission.admit(None, 8 * MIB, Duration::ZERO).await {
                held.push(admitted);
            }
            admission.note(8 * MIB, quick, WAIT);
        }
        assert_eq!(admission.bytes(), (64 * MIB, 64 * MIB));
        for took in [slow, None].into_iter().cycle().take(20) {
            admission.note(8 * MIB, took, WAIT);
        }
        assert_eq!(admission.bytes().1, 8 * MIB);
        assert!(admission.admit(None, 8 * MIB, WAIT).await.unwrap_err().retry_after > 1);
    }

    /// The number of waiting requests is bounded.
    #[tokio::test(start_paused = true)]
    async fn too_many_are_refused_at_once() {
        let admission = Admission::new(8 * MIB, 8 * MIB);
        let _held = admission.admit(None, 8 * MIB, WAIT).await.unwrap();
        let waiting: Vec<_> = (0..WAITING_MAX + 5)
            .map(|_| {
                let admission = Arc::clone(&admission);
                tokio::spawn(async move { admission.admit(None, MIB, WAIT).await.is_ok() })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(admission.lock().waiting.len() <= WAITING_MAX);
        for waiting in waiting {
            assert!(!waiting.await.unwrap());
        }
    }

    /// Goal: a token with many values waiting does not starve another. Method: a noisy token fills the queue; the values
    /// of a quiet one come, are given every second turn, and find room in the full queue.
    #[tokio::test(start_paused = true)]
    async fn tokens_take_turns() {
        let admission = Admission::new(8 * MIB, 8 * MIB);
        let held = admission.admit(None, 8 * MIB, WAIT).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |user: &'static str| {
            let (admission, order) = (Arc::clone(&admission), Arc::clone(&order));
            tokio::spawn(async move {
                let admitted = admission.admit(Some(user.into()), 8 * MIB, Duration::from_mins(1)).await;
                if admitted.is_ok() {
                    order.lock().unwrap().push(user);
                }
                admitted.is_ok()
            })
        };
        // As many turns of the tasks as it takes for all of them to wait.
        let settle = async || {
            for _ in 0..WAITING_MAX {
                tokio::task::yield_now().await;
            }
        };
        let noisy: Vec<_> = (0..WAITING_MAX).map(|_| ask("noisy")).collect();
        settle().await;
        assert_eq!(admission.lock().waiting.len(), WAITING_MAX);
        let quiet: Vec<_> = (0..3).map(|_| ask("quiet")).collect();
        settle().await;
        assert_eq!(admission.lock().waiting.len(), WAITING_MAX);
        drop(held);
        for quiet in quiet {
            assert!(quiet.await.unwrap());
        }
        let mut passed = 0;
        for noisy in noisy {
            passed += usize::from(noisy.await.unwrap());
        }
        assert_eq!(passed, WAITING_MAX - 3, "the latest gave way");
        let order = order.lock().unwrap();
        assert_eq!(order[..7], ["noisy", "quiet", "noisy", "quiet", "noisy", "quiet", "noisy"]);
        assert_eq!(order.len(), WAITING_MAX);
        assert_eq!(admission.lock().waiting.len(), 0);
        assert_eq!(admission.bytes().0, 0);
    }
}
