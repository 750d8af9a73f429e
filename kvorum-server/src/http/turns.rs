//! Turns of requests by token. In one pass over its ready tasks, a thread begins at most [`PASS_MAX`] requests of tokens.
//! Further ones wait, and in each of the next passes the tokens take turns. So a token that asks more than a thread can
//! answer waits for itself, and another one's request waits for a pass or two.
//!
//! What is limited is how many begin in a pass, not how many are under way: a small read begins and ends in one step, so
//! thousands of them would never be under way together, and yet the thread would serve them one after the other before it
//! comes to a task that became ready after them.
//!
//! A thread with one token has nothing to share. Turns, which cost a request about 2 µs, are kept for [`SHARED_FOR`] after two
//! tokens have met on a thread.
//!
//! Large values have a queue of their own ([`super::admission`]), because what they share is bytes under way.

use super::by_token::{ByToken, User};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The most requests of tokens that begin in a pass: about 2 ms of small reads, and enough that what a pass costs is
/// nothing beside them.
const PASS_MAX: usize = 64;
/// For how long turns are kept once requests of two tokens have met.
const SHARED_FOR: Duration = Duration::from_secs(10);
/// The longest wait for a turn. Who waits longer asks more than its share.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The turns of one thread.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// How many have begun in this pass.
    begun: Cell<usize>,
    waiting: RefCell<ByToken<Waiting>>,
    /// The token of the latest request.
    latest: RefCell<User>,
    /// Until when turns are kept.
    shared_until: Cell<Option<Instant>>,
    /// Tells [`Turns::run`] that a pass has begun.
    pass: Notify,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    turn: oneshot::Sender<()>,
}

/// The turn did not come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoTurn;

impl Turns {
    /// Waits for the turn of a request of `user`. No timer runs: a request that has waited for over a second is refused in the
    /// pass that comes to it.
    ///
    /// # Errors
    /// [`NoTurn`] if it did not come in time.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place.
    pub(super) async fn take(&self, user: User) -> Result<(), NoTurn> {
        let now = Instant::now();
        if *self.latest.borrow() != user {
            let before = self.latest.replace(user.clone());
            if before.is_some() {
                self.shared_until.set(Some(now + SHARED_FOR));
            }
        }
        if self.shared_until.get().is_none_or(|until| until < now) && self.waiting.borrow().is_empty() {
            return Ok(());
        }
        if self.begun.get() == 0 {
            self.pass.notify_one();
        }
        if self.begun.get() < PASS_MAX && self.waiting.borrow().is_empty() {
            self.begun.set(self.begun.get() + 1);
            return Ok(());
        }
        let (turn, comes) = oneshot::channel();
        self.waiting.borrow_mut().push(user, Waiting { since: now, turn });
        comes.await.map_err(|_| NoTurn)
    }

    /// Gives the turns; never ends. It has one step in each pass over the thread's tasks while there are requests.
    pub(super) async fn run(&self) {
        loop {
            // At first, too: the task before this one may have ended in a pass.
            loop {
                pass().await;
                self.begin();
                if self.begun.get() == 0 {
                    break;
                }
            }
            self.pass.notified().await;
        }
    }

    /// Begins a pass with the requests whose turn it is.
    fn begin(&self) {
        let now = Instant::now();
        let has_gone = |one: &Waiting| one.turn.is_closed() || now.duration_since(one.since) > WAIT_MAX;
        let mut waiting = self.waiting.borrow_mut();
        let mut begun = 0;
        while begun < PASS_MAX {
            let Some(next) = waiting.pop(has_gone) else { break };
            begun += usize::from(!has_gone(&next) && next.turn.send(()).is_ok());
        }
        self.begun.set(begun);
    }
}

/// Goes to the end of the thread's ready tasks. The runtime's own way to give way asks the system for events first, which
/// is a system call for each request where there are few.
async fn pass() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::{Context, Waker};
    use tokio::task::{LocalSet, spawn_local};

    #[expect(clippy::unnecessary_wraps, reason = "a user is what requests have")]
    fn user(id: &str) -> User {
        Some(id.into())
    }

    /// Two tokens have met.
    async fn shared() -> Turns {
        let turns = Turns::default();
        for id in ["a", "b"] {
            turns.take(user(id)).await.unwrap();
        }
        turns.begin();
        turns
    }

    /// One token alone takes no turns, and none are kept long after another has gone.
    #[tokio::test(start_paused = true)]
    async fn one_token_has_the_thread() {
        let turns = Turns::default();
        let alone = async |turns: &Turns| {
            for _ in 0..3 * PASS_MAX {
                turns.take(user("a")).await.unwrap();
            }
            turns.begun.get()
        };
        assert_eq!(alone(&turns).await, 0);
        turns.take(user("b")).await.unwrap();
        turns.take(user("a")).await.unwrap();
        assert_eq!(turns.begun.get(), 2);
        tokio::time::advance(SHARED_FOR + Duration::from_secs(1)).await;
        turns.begin();
        assert_eq!(alone(&turns).await, 0);
    }

    /// Goal: however many requests of one token are ready, one of another that comes after them begins within two passes.
    /// Method: 3,000 tasks that are ready at once; the quiet one is spawned last, and notes how many went before it.
    #[tokio::test(start_paused = true)]
    async fn a_noisy_token_waits_for_itself() {
        let turns = Rc::new(shared().await);
        let begun = Rc::new(Cell::new(0));
        LocalSet::new()
            .run_until(async {
                let running = spawn_local({
                    let turns = Rc::clone(&turns);
                    async move { turns.run().await }
                });
                let request = |id: &'static str| {
                    let (turns, begun) = (Rc::clone(&turns), Rc::clone(&begun));
                    spawn_local(async move {
                        turns.take(user(id)).await.unwrap();
                        begun.replace(begun.get() + 1)
                    })
                };
                let noisy: Vec<_> = (0..3000).map(|_| request("noisy")).collect();
                let before = request("quiet").await.unwrap();
                assert!(before <= 2 * PASS_MAX, "{before} went before it");
                for one in noisy {
                    one.await.unwrap();
                }
                assert_eq!(begun.get(), 3001);
                running.abort();
            })
            .await;
        assert!(turns.waiting.borrow().is_empty());
    }

    /// Who waits for over a second is refused, and a request that has gone takes nobody's turn.
    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_come() {
        let turns = shared().await;
        for _ in 0..PASS_MAX {
            turns.take(user("a")).await.unwrap();
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut late = Box::pin(turns.take(user("a")));
        assert!(late.as_mut().poll(&mut context).is_pending());
        tokio::time::advance(WAIT_MAX + Duration::from_millis(1)).await;
        let mut gone = Box::pin(turns.take(user("a")));
        let mut waits = Box::pin(turns.take(user("b")));
        assert!(
            gone.as_mut().poll(&mut context).is_pending() && waits.as_mut().poll(&mut context).is_pending()
        );
        drop(gone);
        turns.begin();
        assert_eq!(late.as_mut().poll(&mut context), Poll::Ready(Err(NoTurn)));
        assert_eq!(waits.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!((turns.begun.get(), turns.waiting.borrow().len()), (1, 0));
    }
}
