//! The courier: carries writes to the commit thread and answers back with one wake-up per batch and direction.
//!
//! Waking another thread costs a system call. A network thread that serves many connections queues many writes
//! before it sleeps, and a group answers many of them at once; without the courier each would pay for a wake-up of
//! its own. So the first write queued on a thread only asks the thread's courier, a local task that runs once the
//! tasks that are ready now have run, to wake the commit thread; and the commit thread puts a group's answers into
//! the courier's box and wakes it once.
//!
//! A thread without a courier (a test, a command) is served directly: same order, more wake-ups.

use super::answer::Answer;
use crate::profile::waits::{Since, Wait};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

thread_local! {
    static COURIER: RefCell<Option<Arc<Courier>>> = const { RefCell::new(None) };
}

/// This carries between one network thread and the commit thread.
#[derive(Default)]
pub(super) struct Courier {
    // Guards answers on their way, and since when the first of them wait; held for a push or a take of the whole.
    answers: Mutex<(Vec<Answer>, Since)>,
    /// Whether the commit thread sleeps although this thread has queued something.
    is_to_wake: AtomicBool,
    called: Notify,
}

impl Courier {
    /// The courier of the thread that calls.
    pub(super) fn of_thread() -> Option<Arc<Self>> {
        COURIER.with_borrow(Clone::clone)
    }

    /// Serves the thread that calls until dropped; `wake` wakes the commit thread.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service; what was queued or answered by then is still delivered.
    pub(super) async fn serve(wake: impl Fn()) {
        let courier = Arc::new(Self::default());
        let service = Service { courier: Arc::clone(&courier), wake };
        COURIER.set(Some(Arc::clone(&courier)));
        loop {
            courier.called.notified().await;
            service.deliver();
        }
    }

    /// Asks for the commit thread to be woken once the tasks that are ready now have run. Called on its own thread.
    pub(super) fn wake_soon(&self) {
        self.is_to_wake.store(true, Ordering::Relaxed);
        self.called.notify_one();
    }

    /// Brings a group's answers to the thread. Called on the commit thread.
    pub(super) fn bring(&self, answers: Vec<Answer>) {
        let mut waiting = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.0.is_empty() {
            *waiting = (answers, Since::now());
        } else {
            waiting.0.extend(answers);
        }
        drop(waiting);
        self.called.notify_one();
    }
}

/// Delivers in both directions, the last time when the courier's future is dropped.
struct Service<W: Fn()> {
    courier: Arc<Courier>,
    wake: W,
}

impl<W: Fn()> Service<W> {
    fn deliver(&self) {
        if self.courier.is_to_wake.swap(false, Ordering::Relaxed) {
            (self.wake)();
        }
        let (answers, since) =
            std::mem::take(&mut *self.courier.answers.lock().unwrap_or_else(PoisonError::into_inner));
        since.end(Wait::CourierAnswers);
        for answer in answers {
            answer.give();
        }
    }
}

impl<W: Fn()> Drop for Service<W> {
    fn drop(&mut self) {
        COURIER.set(None);
        self.deliver();
    }
}
