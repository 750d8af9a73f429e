//! Named waits: waits of tasks and queues, which no thread's stack shows.
//!
//! Code that waits records it by a [`Since`] at the wait's beginning and end, or by [`timed`] around it. While no
//! profile of locks runs, that is one relaxed load. There is no wrapper for futures: it would move the future once
//! more, which costs each request more than all other parts of this module.
//!
//! Waits are nested (a coordinator waits for replicas, and one of these waits for its commit queue), and many run at
//! once. Their times therefore cannot be added up, and do not compare with wall-clock time.

use super::fold::Entry;
use super::{Event, is_on, now};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The object of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A write waits in the queue until the commit thread takes it.
    CommitQueue,
    /// The commit thread waits for the engine's background work to catch up.
    StorageBackground,
    /// The commit thread waits for the engine to write and sync a group.
    StorageCommit,
    /// The commit thread waits for the engine to sync earlier writes.
    StorageSync,
    /// A group's answers wait until the network thread takes them.
    Completions,
    /// A job waits in the queue until a worker takes it.
    PoolQueue,
    /// A message waits, from its encoding, until the connection to the peer has taken it.
    PeerSendQueue,
    /// A call waits, from its encoding, until the peer's reply is read.
    PeerReply,
    /// A write waits for enough replicas.
    WriteReplicas,
    /// A read waits for enough replicas.
    ReadReplicas,
    /// A read waits for the write-back before its answer.
    ReadWriteBack,
}

impl Wait {
    /// All waits, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::CommitQueue,
        Self::StorageBackground,
        Self::StorageCommit,
        Self::StorageSync,
        Self::Completions,
        Self::PoolQueue,
        Self::PeerSendQueue,
        Self::PeerReply,
        Self::WriteReplicas,
        Self::ReadReplicas,
        Self::ReadWriteBack,
    ];

    /// The thread that does nothing else during this wait. None for waits of requests, messages and jobs: many of them
    /// wait at the same time, and within each other.
    pub fn thread(self) -> Option<&'static str> {
        match self {
            Self::StorageBackground | Self::StorageCommit | Self::StorageSync => Some("kvorum:commit"),
            Self::CommitQueue
            | Self::Completions
            | Self::PoolQueue
            | Self::PeerSendQueue
            | Self::PeerReply
            | Self::WriteReplicas
            | Self::ReadReplicas
            | Self::ReadWriteBack => None,
        }
    }

    /// The name in profiles: the layer, and the object of the wait.
    pub fn name(self) -> &'static str {
        match self {
            Self::CommitQueue => "commit: queue",
            Self::StorageBackground => "storage: background",
            Self::StorageCommit => "storage: commit",
            Self::StorageSync => "storage: sync",
            Self::Completions => "commit: answers",
            Self::PoolQueue => "pool: queue",
            Self::PeerSendQueue => "peer: send queue",
            Self::PeerReply => "peer: reply",
            Self::WriteReplicas => "coordinator: replicas of a write",
            Self::ReadReplicas => "coordinator: replicas of a read",
            Self::ReadWriteBack => "coordinator: write-back",
        }
    }
}

/// The outermost frame of named waits, in place of a thread.
pub(super) const NAMED_WAITS: &str = "named waits";

/// The count and total duration of one kind of wait.
#[derive(Debug)]
struct Total {
    count: AtomicU64,
    nanos: AtomicU64,
}

static TOTALS: [Total; Wait::ALL.len()] =
    [const { Total { count: AtomicU64::new(0), nanos: AtomicU64::new(0) } }; Wait::ALL.len()];

/// The start of a wait; none unless a profile records it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Since(Option<Instant>);

impl Since {
    /// Starts a wait now.
    #[inline]
    pub fn now() -> Self {
        Self(is_on(Event::Lock).then(now))
    }

    /// Whether a profile records it.
    #[inline]
    pub fn is_wanted(self) -> bool {
        self.0.is_some()
    }

    /// Ends the wait, which was for `wait`.
    #[inline]
    pub fn end(self, wait: Wait) {
        if let Some(begun) = self.0 {
            note(wait, begun.elapsed());
        }
    }
}

/// Records that `wait` has taken `waited`, for callers that know the duration anyway.
#[inline]
pub fn note(wait: Wait, waited: Duration) {
    if is_on(Event::Lock)
        && let Some(total) = TOTALS.get(wait as usize)
    {
        total.count.fetch_add(1, Ordering::Relaxed);
        total.nanos.fetch_add(nanos(waited), Ordering::Relaxed);
    }
}

/// Runs `work`, and records its duration as a wait for `wait`.
#[inline]
pub fn timed<T>(wait: Wait, work: impl FnOnce() -> T) -> T {
    let since = Since::now();
    let done = work();
    since.end(wait);
    done
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Discards the waits of an earlier profile.
pub(super) fn clear() {
    for total in &TOTALS {
        total.count.store(0, Ordering::Relaxed);
        total.nanos.store(0, Ordering::Relaxed);
    }
}

/// Takes the recorded waits.
pub(super) fn take() -> Vec<Entry> {
    let entry = |(wait, total): (Wait, &Total)| {
        let count = total.count.swap(0, Ordering::Relaxed);
        let value = total.nanos.swap(0, Ordering::Relaxed) / 1000;
        let frames = vec![NAMED_WAITS.to_owned(), wait.name().to_owned()];
        (count > 0).then_some(Entry { frames, count, value })
    };
    Wait::ALL.into_iter().zip(&TOTALS).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals are indexed by the waits' numbers, and each name stands for one wait.
    #[test]
    fn waits_are_numbered_and_named() {
        for (index, wait) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, index);
            assert!(!wait.name().contains([';', '\n']));
            assert_eq!(Wait::ALL.into_iter().filter(|other| other.name() == wait.name()).count(), 1);
        }
    }
}
