//! A completion queue for each network thread: one wake-up per batch, towards the commit thread and back.
//!
//! Waking another thread costs a system call. A network thread that serves many connections queues many writes
//! before it sleeps, and a group answers many of them at once; without the queue each would cost its own wake-up.
//! So the first write queued on a thread does not wake the commit thread. A local task of the thread wakes it, after the
//! tasks that are ready now. The commit thread puts the answers of a group into the queue and wakes that task once.
//!
//! A thread without a completion queue (a test, a command) wakes the commit thread itself: same order, more wake-ups.

use super::answer::Answer;
use kvorum_profiler::waits::{Since, Wait};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

thread_local! {
    static COMPLETIONS: RefCell<Option<Arc<CompletionQueue>>> = const { RefCell::new(None) };
}

/// The link between one network thread and the commit thread.
#[derive(Default)]
pub(super) struct CompletionQueue {
    // Guards the answers under way and since when the first of them waits. Held to push answers or to take all of them.
    answers: Mutex<(Vec<Answer>, Since)>,
    /// Whether the commit thread sleeps although this thread has queued something.
    is_to_wake: AtomicBool,
    called: Notify,
}

impl CompletionQueue {
    /// The completion queue of the calling thread.
    pub(super) fn of_thread() -> Option<Arc<Self>> {
        COMPLETIONS.with_borrow(Clone::clone)
    }

    /// Serves the calling thread until dropped; `wake` wakes the commit thread.
    ///
    /// # Cancel safety
    /// Dropping the future ends the service; requests queued and answers brought by then are still delivered.
    pub(super) async fn serve(wake: impl Fn()) {
        let completions = Arc::new(Self::default());
        let service = Service { completions: Arc::clone(&completions), wake };
        COMPLETIONS.set(Some(Arc::clone(&completions)));
        loop {
            completions.called.notified().await;
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

/// Delivers in both directions; the drop of the service's future makes the last delivery.
struct Service<W: Fn()> {
    completions: Arc<CompletionQueue>,
    wake: W,
}

impl<W: Fn()> Service<W> {
    fn deliver(&self) {
        if self.completions.is_to_wake.swap(false, Ordering::Relaxed) {
            (self.wake)();
        }
        let (answers, since) =
            std::mem::take(&mut *self.completions.answers.lock().unwrap_or_else(PoisonError::into_inner));
        since.end(Wait::Completions);
        for answer in answers {
            answer.give();
        }
    }
}

impl<W: Fn()> Drop for Service<W> {
    fn drop(&mut self) {
        COMPLETIONS.set(None);
        self.deliver();
    }
}
