//! The commit queue: bounded, many producers, the commit thread its one consumer.

use super::ReplicaError;
use super::answer::{Applied, Outcome};
use super::courier::Courier;
use crate::storage::Change;
use crate::storage::format::Mark;
use bytes::Bytes;
use kvorum_core::{Key, Record, UnixMillis, Value, Version};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Writes that may wait: beyond it the node is overloaded and says so.
pub const COMMIT_QUEUE_LEN_MAX: usize = 8192;
/// Bytes of keys and values that may wait, likewise.
pub const COMMIT_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes that one group takes, so that one sync does not grow without bound under large values.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// What the requesting side saw of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed {
    /// What is stored, but for its value.
    pub(super) mark: Option<Mark>,
    /// The number of groups that had been committed before the look-up began.
    pub(super) as_of: u64,
}

/// This says who asks for a record to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The coordinator of a client's write. A record of its that was newest here once is confirmed although it has been
    /// overwritten: it took effect, and must not be stamped again.
    Writer,
    /// Whoever copies a record that exists already: it is told what is stored now.
    Copy,
}

/// A row of the `due` keyspace whose instant has come.
#[derive(Debug, Clone)]
pub(super) struct DueRow {
    pub(super) at: UnixMillis,
    pub(super) key: Bytes,
    pub(super) version: Version,
}

/// What the commit thread is asked to do.
pub(super) enum Request {
    /// Store a record unless a newer one is stored.
    Apply {
        key: Key,
        record: Record,
        source: Source,
        observed: Observed,
        done: Outcome<Applied>,
        courier: Option<Arc<Courier>>,
    },
    /// Store rows that are no records: the clock's lease, hints, facts about the cluster.
    Side { changes: Vec<Change>, is_synced: bool, done: Outcome<()> },
    /// Give back the space of records whose time has come. Answers with the number of records purged.
    Purge { rows: Vec<DueRow>, done: Outcome<usize> },
}

impl Request {
    fn bytes(&self) -> usize {
        match self {
            Self::Apply { key, record, .. } => {
                let value = if let Value::Present(bytes) = &record.value { bytes.len() } else { 0 };
                key.as_ref().len() + value
            }
            Self::Side { changes, .. } => changes.iter().map(Change::bytes).sum(),
            Self::Purge { rows, .. } => rows.len() * size_of::<DueRow>(),
        }
    }
}

#[derive(Default)]
struct State {
    requests: std::collections::VecDeque<Request>,
    bytes: usize,
    closed: bool,
    waiting: bool,
}

impl State {
    fn take_group(&mut self) -> Vec<Request> {
        self.waiting = false;
        let mut group = Vec::with_capacity(self.requests.len());
        let mut bytes = 0;
        while let Some(request) = self.requests.pop_front() {
            bytes += request.bytes();
            group.push(request);
            if bytes >= GROUP_BYTES_MAX {
                break;
            }
        }
        self.bytes -= bytes;
        group
    }
}

/// This carries requests from the network threads to the commit thread.
pub(super) struct CommitQueue {
    // Guards the queue; held for a push, or for moving a group out.
    state: Mutex<State>,
    /// Wakes a commit thread.
    arrived: Condvar,
    /// Wakes a commit task.
    called: Notify,
}

impl CommitQueue {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), called: Notify::new() }
    }

    /// Queues `request`; the commit thread, if it sleeps, is woken now or by the thread's courier soon.
    ///
    /// # Errors
    /// At once: [`ReplicaError::Overloaded`] over the bounds, [`ReplicaError::Stopped`] after [`Self::close`].
    pub(super) fn submit(&self, request: Request) -> Result<(), ReplicaError> {
        let bytes = request.bytes();
        let mut state = self.lock();
        if state.closed {
            return Err(ReplicaError::Stopped);
        }
        // One request is always let in, however large: it was bounded where it came from.
        let full =
            state.requests.len() >= COMMIT_QUEUE_LEN_MAX || state.bytes + bytes > COMMIT_QUEUE_BYTES_MAX;
        if full && !state.requests.is_empty() {
            return Err(ReplicaError::Overloaded);
        }
        state.bytes += bytes;
        state.requests.push_back(request);
        let is_to_wake = std::mem::take(&mut state.waiting);
        drop(state);
        if is_to_wake {
            match Courier::of_thread() {
                Some(courier) => courier.wake_soon(),
                None => self.wake(),
            }
        }
        Ok(())
    }

    /// Wakes the committer. Only called while it sleeps, so neither way of waking costs a write anything.
    pub(super) fn wake(&self) {
        self.arrived.notify_one();
        self.called.notify_one();
    }

    /// The next group: everything that waits, up to a bound of bytes. Empty after `wait` without any; `None` once
    /// the queue is closed and empty.
    pub(super) fn take(&self, wait: Duration) -> Option<Vec<Request>> {
        let mut state = self.lock();
        while state.requests.is_empty() {
            if state.closed {
                return None;
            }
            state.waiting = true;
            let (woken, timeout) =
                self.arrived.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && state.requests.is_empty() && !state.closed {
                return Some(Vec::new());
            }
        }
        Some(state.take_group())
    }

    /// The same for a task.
    ///
    /// # Cancel safety
    /// Nothing is taken by a future that is dropped before it is ready.
    pub(super) async fn take_async(&self, wait: Duration) -> Option<Vec<Request>> {
        let wait = tokio::time::sleep(wait);
        tokio::pin!(wait);
        loop {
            {
                let mut state = self.lock();
                if !state.requests.is_empty() {
                    return Some(state.take_group());
                }
                if state.closed {
                    return None;
                }
                state.waiting = true;
            }
            tokio::select! {
                biased;
                () = self.called.notified() => {}
                () = &mut wait => return Some(Vec::new()),
            }
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
        self.called.notify_one();
    }

    pub(super) fn len(&self) -> usize {
        self.lock().requests.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn side() -> (Request, oneshot::Receiver<Result<(), ReplicaError>>) {
        let (done, outcome) = oneshot::channel();
        (Request::Side { changes: Vec::new(), is_synced: true, done }, outcome)
    }

    /// The bound holds, what is over it is refused at once, and taking a group makes room again.
    #[test]
    fn bounded_and_refusing() {
        let queue = CommitQueue::new();
        for _ in 0..COMMIT_QUEUE_LEN_MAX {
            queue.submit(side().0).unwrap();
        }
        assert!(matches!(queue.submit(side().0), Err(ReplicaError::Overloaded)));
        assert_eq!(queue.take(Duration::from_secs(1)).unwrap().len(), COMMIT_QUEUE_LEN_MAX);
        queue.submit(side().0).unwrap();
    }

    /// What was queued before the close is still handed out; then the consumer is told to end.
    #[test]
    fn close_hands_out_the_rest() {
        let queue = CommitQueue::new();
        queue.submit(side().0).unwrap();
        queue.close();
        assert!(matches!(queue.submit(side().0), Err(ReplicaError::Stopped)));
        assert_eq!(queue.take(Duration::from_secs(1)).unwrap().len(), 1);
        assert!(queue.take(Duration::from_secs(1)).is_none());
    }

    /// Waiting with a bound ends empty-handed rather than never.
    #[test]
    fn bounded_wait_ends() {
        assert!(CommitQueue::new().take(Duration::from_millis(1)).unwrap().is_empty());
    }
}
