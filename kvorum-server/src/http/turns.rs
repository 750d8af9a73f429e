//! Turns of small requests by token. A thread works on at most [`UNDER_WAY_MAX`] requests of tokens at once; further ones
//! wait, and the tokens take turns. So a token that asks more than a node can answer waits for itself, and another one's
//! request waits for a turn.
//!
//! Large values have a queue of their own ([`super::admission`]), because what they share is bytes under way.

use super::by_token::{ByToken, User};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The most requests of tokens that a thread works on at once: more than a group commit on a slow disk needs, and few enough
/// that one more is answered soon.
const UNDER_WAY_MAX: usize = 1024;
/// The longest wait for a turn. Who waits longer asks more than its share.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The turns of one thread.
#[derive(Debug, Default)]
pub(super) struct Turns {
    under_way: Cell<usize>,
    waiting: RefCell<ByToken<oneshot::Sender<Turn>>>,
}

/// A request's turn; dropping it lets the next one go.
#[derive(Debug)]
pub(super) struct Turn(Rc<Turns>);

/// The turn did not come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoTurn;

impl Turns {
    /// Waits for the turn of a request of `user`.
    ///
    /// # Errors
    /// [`NoTurn`] after [`WAIT_MAX`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the turn to the next.
    pub(super) async fn take(self: &Rc<Self>, user: User) -> Result<Turn, NoTurn> {
        if self.under_way.get() < UNDER_WAY_MAX {
            return Ok(self.begin());
        }
        let (turn, comes) = oneshot::channel();
        self.waiting.borrow_mut().push(user, turn);
        match tokio::time::timeout(WAIT_MAX, comes).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(NoTurn),
        }
    }

    fn begin(self: &Rc<Self>) -> Turn {
        self.under_way.set(self.under_way.get() + 1);
        Turn(Rc::clone(self))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = &self.0;
        turns.under_way.set(turns.under_way.get().saturating_sub(1));
        loop {
            // Not borrowed while the next one gets its turn: a request that is gone gives it back at once.
            let next = turns.waiting.borrow_mut().pop(oneshot::Sender::is_closed);
            match next {
                Some(next) if next.is_closed() => {}
                Some(next) => return drop(next.send(turns.begin())),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[expect(clippy::unnecessary_wraps, reason = "a user is what requests have")]
    fn user(id: &str) -> User {
        Some(id.into())
    }

    fn taken(turns: &Rc<Turns>) -> Vec<Turn> {
        (0..UNDER_WAY_MAX)
            .map(|_| {
                let polled = pin!(turns.take(user("noisy"))).poll(&mut Context::from_waker(Waker::noop()));
                let Poll::Ready(Ok(turn)) = polled else { panic!("there is room") };
                turn
            })
            .collect()
    }

    /// Goal: a token's first request waits for one turn, however many another has waiting; who waits too long is refused.
    #[tokio::test(start_paused = true)]
    async fn a_noisy_token_waits_for_itself() {
        let turns = Rc::new(Turns::default());
        let mut under_way = taken(&turns);
        let mut noisy: Vec<_> = (0..3000).map(|_| Box::pin(turns.take(user("noisy")))).collect();
        let mut quiet = Box::pin(turns.take(user("quiet")));
        let mut context = Context::from_waker(Waker::noop());
        for waiting in &mut noisy {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
        assert!(quiet.as_mut().poll(&mut context).is_pending());
        under_way.truncate(UNDER_WAY_MAX - 2);
        let Poll::Ready(Ok(turn)) = quiet.as_mut().poll(&mut context) else { panic!("not its turn") };
        let went = noisy.iter_mut().filter_map(|waiting| match waiting.as_mut().poll(&mut context) {
            Poll::Ready(turn) => Some(turn.unwrap()),
            Poll::Pending => None,
        });
        let went: Vec<Turn> = went.collect();
        assert_eq!(went.len(), 1);
        drop((turn, went));
        assert_eq!(turns.under_way.get(), UNDER_WAY_MAX);
        assert_eq!(turns.take(user("late")).await.unwrap_err(), NoTurn);
        // All that gave up hold nothing.
        drop(noisy);
        drop(under_way);
        assert_eq!(turns.under_way.get(), 0);
        assert!(turns.take(user("quiet")).await.is_ok());
    }
}
