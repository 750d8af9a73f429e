//! Signs of a peer: it has connected to this node, so every thread retries its own link to it.
//!
//! No `watch`: it wakes several receivers in a random order, and two runs of one seed would differ.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// The signs of one peer.
#[derive(Default)]
pub(crate) struct Signs {
    count: AtomicU64,
    called: Notify,
}

impl Signs {
    /// The signs so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes a sign, and wakes all waiting tasks in the order in which they began to wait.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.called.notify_waiters();
    }

    /// Waits until there have been more than `seen` signs. Returns how many there were.
    ///
    /// # Cancel safety
    /// Dropping the future loses no sign: the next call sees the count.
    pub(crate) async fn after(&self, seen: u64) -> u64 {
        loop {
            // Taken before the count is read, so that a sign in between wakes it.
            let called = self.called.notified();
            let count = self.count();
            if count > seen {
                return count;
            }
            called.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Goal: the order in which tasks are woken is no matter of chance. Method: many tasks that wait, one sign.
    #[tokio::test(flavor = "current_thread")]
    async fn tasks_are_woken_in_their_order() {
        let local = tokio::task::LocalSet::new();
        let (signs, order) = (Rc::new(Signs::default()), Rc::new(RefCell::new(Vec::new())));
        local
            .run_until(async {
                let waiting: Vec<_> = (0..20)
                    .map(|number| {
                        let (signs, order) = (Rc::clone(&signs), Rc::clone(&order));
                        tokio::task::spawn_local(async move {
                            assert_eq!(signs.after(0).await, 1);
                            order.borrow_mut().push(number);
                        })
                    })
                    .collect();
                tokio::task::yield_now().await;
                signs.note();
                for task in waiting {
                    task.await.unwrap();
                }
            })
            .await;
        assert_eq!(*order.borrow(), (0..20).collect::<Vec<_>>());
        assert_eq!(signs.after(0).await, 1, "a sign that came before the wait is seen");
    }
}
