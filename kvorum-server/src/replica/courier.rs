//! The courier: carries writes to the commit thread and its answers back, with one wake-up per batch and direction.
//!
//! Waking another thread costs a system call. A network thread that serves many connections queues many writes
//! before it sleeps, and a group answers many of them at once; without the courier each would cost its own wake-up.
//! So the first write queued on a thread does not wake the commit thread. It asks the thread's courier, a local task
//! that runs after the tasks that are ready now, to wake it. The commit thread puts a group's answers into the
//! courier's box and wakes the courier once.
//!
//! A thread without a courier (a test, a command) wakes the commit thread itself: same order, more wake-ups.

use super::answer::Answer;
use kvorum_profiler::waits::{Since, Wait};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

thread_local! {
    static COURIER: RefCell<Option<Arc<Courier>>> = const { RefCell::new(None) };
}

/// The link between one network thread and the commit thread.
#[derive(Default)]
pub(super) struct Courier {
    // Guards the answers under way and since when the first of them waits. Held to push answers or to take all of them.
    answers: Mutex<(Vec<Answer>, Since)>,
    /// Whether the commit thread sleeps although this thread has queued something.
    is_to_wake: AtomicBool,
    called: Notify,
}

impl Courier {
    /// The courier of the calling thread.
    pub(super) fn of_thread() -> Option<Arc<Self>> {
        COURIER.with_borrow(Clone::clone)
    }

    /// Serves the calling thread until dropped; `wake` wakes the commit thread.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service; requests queued and answers brought by then are still delivered.
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

/// Delivers in both directions; the drop of the courier's future makes the last delivery.
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
