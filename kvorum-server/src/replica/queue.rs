//! The commit queue: bounded, with many producers; the commit thread is its only consumer.

use super::ReplicaError;
use super::answer::{Applied, Judged, Outcome};
use super::completions::CompletionQueue;
use super::cut::CutStep;
use super::floor::FloorStep;
use crate::slow::CommitTimes;
use crate::storage::Change;
use crate::storage::format::Mark;
use bytes::Bytes;
use kvorum_core::{Key, Partition, Record, UnixMillis, Version};
use kvorum_profiler::waits::{Since, Wait};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Number of requests that may wait; beyond it, the node refuses requests as overloaded.
pub const COMMIT_QUEUE_LEN_MAX: usize = 8192;
/// Bytes of keys and values that may wait; beyond it, the node refuses requests as overloaded.
pub const COMMIT_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes in one group, so that one sync does not grow without bound under large values.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// The result of the requesting side's look-up of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed {
    /// The stored record, but for its value.
    pub(super) mark: Option<Mark>,
    /// The number of groups that had been committed before the look-up began.
    pub(super) as_of: u64,
}

/// The requester of a record's application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The coordinator of a client's write. If its record was once the newest here, it is confirmed although it has
    /// been overwritten: it took effect and must not be stamped again.
    Writer,
    /// A copier of an existing record: it is told what is stored now.
    Copy,
    /// A read that must write a record back before it can answer. Like [`Self::Copy`], but accepted also on a nearly
    /// full disk.
    Reader,
    /// Anti-entropy, from a store that had agreed up to this timestamp before the record was read from it.
    Repair {
        /// The timestamp.
        agreed: u64,
    },
    /// The coordinator of a ballot, with the ballot's record. It is taken only if nothing newer was promised.
    Ballot,
}

/// A row of the `due` keyspace whose time has come.
#[derive(Debug, Clone)]
pub(super) struct DueRow {
    pub(super) at: UnixMillis,
    pub(super) key: Bytes,
    pub(super) version: Version,
}

/// A request to the commit thread.
pub(super) enum Request {
    /// Store a record unless a newer one is stored.
    Apply {
        key: Key,
        record: Record,
        source: Source,
        observed: Observed,
        done: Outcome<Applied>,
        completions: Option<Arc<CompletionQueue>>,
        /// For a request with a trace.
        times: Option<Arc<CommitTimes>>,
    },
    /// Store many records, each unless a newer one is stored.
    ApplyMany {
        records: Vec<(Key, Record, Observed)>,
        source: Source,
        done: Outcome<Vec<Option<Applied>>>,
        completions: Option<Arc<CompletionQueue>>,
    },
    /// Promise a ballot.
    Prepare {
        key: Key,
        ballot: Version,
        earlier: Vec<Version>,
        observed: Observed,
        done: Outcome<Judged>,
        completions: Option<Arc<CompletionQueue>>,
        /// For a request with a trace.
        times: Option<Arc<CommitTimes>>,
    },
    /// End the promise of a ballot, if it is the key's latest.
    Release { key: Key, ballot: Version, done: Outcome<()> },
    /// Store rows that are no records: the clock's lease, hints, facts about the cluster.
    Side { changes: Vec<Change>, is_synced: bool, done: Outcome<()> },
    /// Free the space of records that are due. Answers with the number of records purged.
    Purge { rows: Vec<DueRow>, done: Outcome<usize> },
    /// Set the store aside and replace it with an empty one that has at least these `meta` rows.
    SetAside { rows: Vec<(Bytes, Bytes)>, done: Outcome<()> },
    /// Move floors. Answers whether all of them could be moved.
    Floor { step: FloorStep, done: Outcome<bool> },
    /// Take a step of a cut. Answers whether it could be taken.
    Cut { step: CutStep, done: Outcome<bool> },
    /// Remove rows of a partition that are no longer needed, unless they have changed since they were found. Answers
    /// with the number of rows removed.
    Remove { partition: Partition, rows: Vec<(Key, Version)>, which: Removal, done: Outcome<usize> },
}

/// Which rows of a partition are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// Tombstones that the floor lets go.
    Purged,
    /// Rows in doubt that an authoritative replica does not have.
    Outlived,
    /// Records from the future, on an operator's order.
    TooFarAhead,
    /// Records that other nodes own since a change of members.
    Unowned,
}

impl Request {
    fn bytes(&self) -> usize {
        match self {
            Self::Apply { key, record, .. } => key.as_ref().len() + record.value_bytes(),
            Self::ApplyMany { records, .. } => {
                records.iter().map(|(key, record, _)| key.as_ref().len() + record.value_bytes()).sum()
            }
            Self::Prepare { key, .. } | Self::Release { key, .. } => key.as_ref().len(),
            Self::Side { changes, .. } => changes.iter().map(Change::bytes).sum(),
            Self::Purge { rows, .. } => rows.len() * size_of::<DueRow>(),
            Self::SetAside { .. } | Self::Floor { .. } | Self::Cut { .. } => 0,
            Self::Remove { rows, .. } => rows.iter().map(|(key, _)| key.as_ref().len()).sum(),
        }
    }
}

impl Request {
    /// Where the commit thread notes how long it takes, if that is wanted.
    pub(super) fn times(&self) -> Option<&Arc<CommitTimes>> {
        match self {
            Self::Apply { times, .. } | Self::Prepare { times, .. } => times.as_ref(),
            _ => None,
        }
    }

    /// The highest timestamp of the records in it; 0 for none.
    pub(super) fn newest(&self) -> u64 {
        match self {
            Self::Apply { record, .. } => record.version.clock(),
            Self::ApplyMany { records, .. } => {
                records.iter().map(|(_, record, _)| record.version.clock()).max().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

#[derive(Default)]
struct State {
    requests: std::collections::VecDeque<(Since, Request)>,
    bytes: usize,
    closed: bool,
    /// Number of queued requests that wakes the sleeping committer; `None` while it is awake.
    wanted: Option<usize>,
    /// Number of requests in the latest group.
    answered: usize,
}

impl State {
    fn take_group(&mut self) -> Vec<Request> {
        self.wanted = None;
        let mut group = Vec::with_capacity(self.requests.len());
        let mut bytes = 0;
        while let Some((since, request)) = self.requests.pop_front() {
            since.end(Wait::CommitQueue);
            bytes += request.bytes();
            group.push(request);
            if bytes >= GROUP_BYTES_MAX {
                break;
            }
        }
        self.bytes -= bytes;
        self.answered = group.len();
        group
    }

    /// Whether there is no reason to wait for more than is queued.
    fn is_due(&self, wanted: usize) -> bool {
        self.closed || self.requests.len() >= wanted || self.bytes >= GROUP_BYTES_MAX
    }
}

/// The queue of requests from the network threads to the commit thread.
pub(super) struct CommitQueue {
    // Guards the queue. Held for a push, or to move out or count a group.
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

    /// Queues `request`. If the commit thread sleeps, it is woken now, or soon by the calling thread's completion queue.
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
        state.requests.push_back((Since::now(), request));
        let is_to_wake = state.wanted.is_some_and(|wanted| state.is_due(wanted));
        if is_to_wake {
            state.wanted = None;
        }
        drop(state);
        if is_to_wake {
            match CompletionQueue::of_thread() {
                Some(completions) => completions.wake_soon(),
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

    /// Takes the next group: all waiting requests, up to a bound of bytes. The group is empty if none came within
    /// `wait`; `None` once the queue is closed and empty.
    ///
    /// Clients answered in the latest group are likely to write again at once. So a new group first waits until as many
    /// requests have come as were answered, in addition to those already queued. It waits at most `gather`.
    pub(super) fn take(&self, wait: Duration, gather: Duration) -> Option<Vec<Request>> {
        let mut state = self.lock();
        let all = state.requests.len() + state.answered;
        if !gather.is_zero() {
            state = self.sleep(state, all, gather);
        }
        state = self.sleep(state, 1, wait);
        if state.requests.is_empty() && state.closed {
            return None;
        }
        Some(state.take_group())
    }

    /// Sleeps until `wanted` requests are queued, for `at_most`.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        wanted: usize,
        at_most: Duration,
    ) -> MutexGuard<'a, State> {
        if state.is_due(wanted) {
            return state;
        }
        state.wanted = Some(wanted);
        let (mut state, _) = self
            .arrived
            .wait_timeout_while(state, at_most, |state| !state.is_due(wanted))
            .unwrap_or_else(PoisonError::into_inner);
        state.wanted = None;
        state
    }

    /// Like [`Self::take`] for a task, without gathering.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready takes nothing.
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
                state.wanted = Some(1);
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

    /// Number of queued writes that clients wait for.
    pub(super) fn awaited_len(&self) -> usize {
        let is_awaited = |request: &Request| {
            matches!(
                request,
                Request::Apply { source: Source::Writer | Source::Ballot, .. } | Request::Prepare { .. }
            )
        };
        self.lock().requests.iter().filter(|(_, request)| is_awaited(request)).count()
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

    /// The bound holds, a request over it is refused at once, and taking a group makes room again.
    #[test]
    fn bounded_and_refusing() {
        let queue = CommitQueue::new();
        for _ in 0..COMMIT_QUEUE_LEN_MAX {
            queue.submit(side().0).unwrap();
        }
        assert!(matches!(queue.submit(side().0), Err(ReplicaError::Overloaded)));
        assert_eq!(queue.take(Duration::from_secs(1), Duration::ZERO).unwrap().len(), COMMIT_QUEUE_LEN_MAX);
        queue.submit(side().0).unwrap();
    }

    /// A client's write counts as awaited; a copied record, a hint and the node's own rows do not.
    #[test]
    fn clients_wait_for_their_own_writes_only() {
        let queue = CommitQueue::new();
        let apply = |source| {
            let key = Key::new(Bytes::from_static(b"k")).unwrap();
            let version = Version::from_words(1, 1);
            let record = Record {
                version,
                expires: None,
                from: 3,
                value: kvorum_core::Value::Tombstone,
                conditional: None,
            };
            let observed = Observed { mark: None, as_of: 0 };
            let done = oneshot::channel().0;
            queue
                .submit(Request::Apply {
                    key,
                    record,
                    source,
                    observed,
                    done,
                    completions: None,
                    times: None,
                })
                .unwrap();
        };
        apply(Source::Copy);
        queue.submit(side().0).unwrap();
        assert_eq!((queue.len(), queue.awaited_len()), (2, 0));
        apply(Source::Writer);
        assert_eq!((queue.len(), queue.awaited_len()), (3, 1));
    }

    /// Requests queued before the close are still handed out; then the consumer is told to end.
    #[test]
    fn close_hands_out_the_rest() {
        let queue = CommitQueue::new();
        queue.submit(side().0).unwrap();
        queue.close();
        assert!(matches!(queue.submit(side().0), Err(ReplicaError::Stopped)));
        assert_eq!(queue.take(Duration::from_secs(1), Duration::ZERO).unwrap().len(), 1);
        assert!(queue.take(Duration::from_secs(1), Duration::ZERO).is_none());
    }

    /// A group waits for as many requests as were answered in the previous one, in addition to those already queued; no
    /// longer than `gather`, and not once the queue is closed.
    #[test]
    fn gathers_those_who_were_answered() {
        let queue = CommitQueue::new();
        let submit = |count: usize| (0..count).for_each(|_| queue.submit(side().0).unwrap());
        let long = Duration::from_mins(1);
        let take = |gather| queue.take(long, gather).unwrap().len();
        submit(2);
        assert_eq!(take(long), 2, "nobody was answered before: nothing to wait for");
        submit(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while queue.lock().wanted != Some(3) {
                    std::thread::yield_now();
                }
                submit(2);
            });
            assert_eq!(take(long), 3);
        });
        submit(1);
        assert_eq!(take(Duration::from_millis(1)), 1, "they did not come back");
        submit(1);
        queue.close();
        assert_eq!(take(long), 1);
    }

    /// Waiting with a bound ends empty-handed rather than never.
    #[test]
    fn bounded_wait_ends() {
        assert!(CommitQueue::new().take(Duration::from_millis(1), Duration::ZERO).unwrap().is_empty());
    }
}
