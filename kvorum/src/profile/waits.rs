//! Named waits: what tasks and queues wait for, which no stack of a thread shows.
//!
//! A place that waits says so by [`Since`] where something begins to wait and where it has waited, or by [`timed`] around
//! it. While no profile of locks runs, that is one relaxed load. There is nothing to wrap a future in: it would be moved
//! once more, which costs each request more than all the rest of this.
//!
//! Waits lie within each other (a coordinator waits for replicas, of which one waits for its commit queue), and many
//! wait at once: their times do not add up to anything, and are not those of a clock on the wall.

use super::fold::Entry;
use super::{Event, is_on, now};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A write, from its queueing until the commit thread takes it.
    CommitQueue,
    /// The commit thread, for the engine's background to catch up.
    StorageBackground,
    /// The commit thread, for the engine to write and sync a group.
    StorageCommit,
    /// The commit thread, for the engine to sync what it has written before.
    StorageSync,
    /// A group's answers, until the network thread takes them.
    CourierAnswers,
    /// A job, from its queueing until a worker takes it.
    PoolQueue,
    /// A message, from its encoding until the connection to the peer has taken it.
    PeerSendQueue,
    /// A call, from its encoding until the peer's reply is read.
    PeerReply,
    /// A write, for enough replicas.
    WriteReplicas,
    /// A read, for enough replicas.
    ReadReplicas,
    /// A read, for the write-back before its answer.
    ReadWriteBack,
}

impl Wait {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::CommitQueue,
        Self::StorageBackground,
        Self::StorageCommit,
        Self::StorageSync,
        Self::CourierAnswers,
        Self::PoolQueue,
        Self::PeerSendQueue,
        Self::PeerReply,
        Self::WriteReplicas,
        Self::ReadReplicas,
        Self::ReadWriteBack,
    ];

    /// The name in profiles: the room, and what is waited for there.
    pub fn name(self) -> &'static str {
        match self {
            Self::CommitQueue => "commit: queue",
            Self::StorageBackground => "storage: background",
            Self::StorageCommit => "storage: commit",
            Self::StorageSync => "storage: sync",
            Self::CourierAnswers => "courier: answers",
            Self::PoolQueue => "pool: queue",
            Self::PeerSendQueue => "peer: send queue",
            Self::PeerReply => "peer: reply",
            Self::WriteReplicas => "coordinator: replicas of a write",
            Self::ReadReplicas => "coordinator: replicas of a read",
            Self::ReadWriteBack => "coordinator: write-back",
        }
    }
}

/// How often one thing was waited for, and for how long.
#[derive(Debug)]
struct Total {
    count: AtomicU64,
    nanos: AtomicU64,
}

static TOTALS: [Total; Wait::ALL.len()] =
    [const { Total { count: AtomicU64::new(0), nanos: AtomicU64::new(0) } }; Wait::ALL.len()];

/// This is when something began to wait, if a profile wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct Since(Option<Instant>);

impl Since {
    /// It begins to wait now.
    #[inline]
    pub fn now() -> Self {
        Self(is_on(Event::Lock).then(now))
    }

    /// Whether a profile wants to know.
    #[inline]
    pub fn is_wanted(self) -> bool {
        self.0.is_some()
    }

    /// It has waited for `wait`.
    #[inline]
    pub fn end(self, wait: Wait) {
        if let Some(begun) = self.0 {
            note(wait, begun.elapsed());
        }
    }
}

/// Notes that `wait` has taken `waited`, where it is known anyway.
#[inline]
pub fn note(wait: Wait, waited: Duration) {
    if is_on(Event::Lock)
        && let Some(total) = TOTALS.get(wait as usize)
    {
        total.count.fetch_add(1, Ordering::Relaxed);
        total.nanos.fetch_add(nanos(waited), Ordering::Relaxed);
    }
}

/// Does `work`, which is to wait for `wait`.
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

/// Forgets what an earlier profile has left.
pub(super) fn clear() {
    for total in &TOTALS {
        total.count.store(0, Ordering::Relaxed);
        total.nanos.store(0, Ordering::Relaxed);
    }
}

/// What was waited for.
pub(super) fn take() -> Vec<Entry> {
    let entry = |(wait, total): (Wait, &Total)| {
        let count = total.count.swap(0, Ordering::Relaxed);
        let value = total.nanos.swap(0, Ordering::Relaxed) / 1000;
        let frames = vec!["named waits".to_owned(), wait.name().to_owned()];
        (count > 0).then_some(Entry { frames, count, value })
    };
    Wait::ALL.into_iter().zip(&TOTALS).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals are indexed by the number, and a name stands for one wait.
    #[test]
    fn waits_are_numbered_and_named() {
        for (index, wait) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, index);
            assert!(!wait.name().contains([';', '\n']));
            assert_eq!(Wait::ALL.into_iter().filter(|other| other.name() == wait.name()).count(), 1);
        }
    }
}
