//! Cuts: the records of this replica as of one timestamp, kept while a backup of the whole cluster reads them.
//!
//! A cut is *armed* at a timestamp T that no record has reached yet, on all nodes. The commit thread *closes* it before it
//! judges the first record above T, or when it is told to. In the same turn it takes a snapshot of the engine. So the
//! snapshot has no record above T, and nothing at or below T has been overwritten in it by a later one.
//!
//! From then on no client's write at or below T is confirmed, unless the snapshot has it. So what a read quorum of
//! snapshots holds is every write that was acknowledged at or below T, and none above. A write that comes too late goes
//! on by ballots, above T. Hints, write-backs and repair bring in
//! records at or below T as before: they confirm nothing to a client.
//!
//! A timestamp that this node's clock does not bear out is forgotten: with it nobody would believe what the node answers.
//!
//! There is one cut at a time, in memory only. It is dropped when it gets too old, when nobody reads it, when the disk
//! runs short, and before the engine is reopened: a snapshot keeps overwritten rows on the disk.

use super::queue::Request;
use super::{RangeReader, Replica, ReplicaError};
use crate::storage::{Scan, Snapshot, format};
use bytes::Bytes;
use kvorum_core::{Key, Record, Version};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A closed cut that nobody reads for so long belongs to a backup that has ended.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long a cut may be armed: the backup closes it as soon as all nodes have armed theirs.
const ARMED_MAX: Duration = Duration::from_secs(30);

/// A step of a cut. Its timestamp is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutStep {
    /// Close at the first record above the timestamp.
    Arm {
        /// The timestamp, inclusive.
        upto: u64,
        /// The longest time for which the cut is kept.
        age_max: Duration,
    },
    /// Close now.
    Close {
        /// The timestamp, inclusive.
        upto: u64,
    },
    /// Give the snapshot up.
    Drop {
        /// The timestamp, inclusive.
        upto: u64,
    },
}

/// The cut that a replica keeps, as others see it.
#[derive(Debug, Clone)]
pub struct CutView {
    /// The timestamp, inclusive.
    pub upto: u64,
    /// For each partition one number for all that the snapshot holds there; `None` until the cut is closed. Empty in a
    /// cluster of one, which keeps no digests.
    pub digests: Option<Arc<[u64]>>,
}

struct Cut {
    upto: u64,
    /// When it is dropped at the latest, by the monotonic clock.
    until: Duration,
    /// When it was armed, closed or read last.
    used_at: Duration,
    kept: Option<Kept>,
}

/// What the turn that closed the cut has kept.
#[derive(Clone)]
struct Kept {
    snapshot: Arc<dyn Snapshot>,
    digests: Arc<[u64]>,
}

/// The cut of a replica, if there is one.
#[derive(Default)]
pub(super) struct Cuts {
    /// The timestamp of the armed cut; 0 for none. The commit thread looks at it before each group.
    armed: AtomicU64,
    /// The highest timestamp that was closed in this run; 0 for none. It stays when the snapshot goes.
    closed: AtomicU64,
    // Guards the cut. Held for a look or a change; the snapshot is read outside.
    cut: Mutex<Option<Cut>>,
}

impl std::fmt::Debug for Cuts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuts")
            .field("armed", &self.armed)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Cuts {
    /// The timestamp of the armed cut.
    pub(super) fn armed(&self) -> Option<u64> {
        Some(self.armed.load(Ordering::Acquire)).filter(|upto| *upto > 0)
    }

    /// The highest version that clients' writes can no longer have; zero for none.
    pub(super) fn closed(&self) -> Version {
        match self.closed.load(Ordering::Acquire) {
            0 => Version::ZERO,
            upto => Version::from_words(upto, u64::MAX),
        }
    }

    /// Whether a cut is armed, or one has been closed.
    pub(super) fn has_stamp(&self) -> bool {
        self.closed.load(Ordering::Acquire) > 0 || self.armed().is_some()
    }

    /// Forgets what was armed or closed further ahead than `believed`, the highest timestamp that this node's clock bears out: it was
    /// wrong then. Otherwise nobody would believe this node's answers before that time has come.
    pub(super) fn forget_above(&self, believed: u64) {
        let closed = self.closed.load(Ordering::Acquire);
        if closed <= believed && self.armed().is_none_or(|upto| upto <= believed) {
            return;
        }
        self.drop_for("this node's clock was wrong when it was taken");
        if closed > believed {
            self.closed.store(0, Ordering::Release);
        }
    }

    /// Arms a cut. Returns false while another one is kept, or if this timestamp has been closed already.
    pub(super) fn arm(&self, upto: u64, age_max: Duration, now: Duration) -> bool {
        let mut cut = self.lock();
        if cut.is_some() || upto <= self.closed.load(Ordering::Acquire) {
            return false;
        }
        *cut = Some(Cut { upto, until: now + age_max, used_at: now, kept: None });
        self.armed.store(upto, Ordering::Release);
        true
    }

    /// Closes the armed cut with what the commit thread has just read.
    pub(super) fn close(&self, snapshot: Arc<dyn Snapshot>, digests: Vec<u64>, now: Duration) {
        let mut cut = self.lock();
        let Some(cut) = cut.as_mut().filter(|cut| cut.kept.is_none()) else { return };
        self.closed.fetch_max(cut.upto, Ordering::AcqRel);
        self.armed.store(0, Ordering::Release);
        (cut.used_at, cut.kept) = (now, Some(Kept { snapshot, digests: digests.into() }));
    }

    /// Whether the cut at `upto` is closed and kept.
    pub(super) fn is_closed(&self, upto: u64) -> bool {
        self.lock().as_ref().is_some_and(|cut| cut.upto == upto && cut.kept.is_some())
    }

    /// Whether the cut at `upto` is kept, armed or closed.
    pub(super) fn is_kept(&self, upto: u64) -> bool {
        self.lock().as_ref().is_some_and(|cut| cut.upto == upto)
    }

    /// Drops the cut at `upto`.
    pub(super) fn drop_at(&self, upto: u64) {
        let mut cut = self.lock();
        if cut.as_ref().is_some_and(|cut| cut.upto == upto) {
            self.forget(&mut cut);
        }
    }

    /// Drops the cut, because of `reason`.
    pub(super) fn drop_for(&self, reason: &str) {
        let mut cut = self.lock();
        if let Some(Cut { upto, .. }) = &*cut {
            tracing::warn!(
                cut = format!("{upto:016x}"),
                "the snapshot of a backup is dropped, {reason}: the backup fails if it needs this node"
            );
            self.forget(&mut cut);
        }
    }

    /// Drops a cut that is too old, or that nobody reads any more.
    pub(super) fn tend(&self, now: Duration) {
        let reason = {
            let cut = self.lock();
            let Some(cut) = &*cut else { return };
            let idle_max = if cut.kept.is_some() { IDLE_MAX } else { ARMED_MAX };
            match cut {
                cut if now >= cut.until => "it has reached its greatest age",
                cut if now >= cut.used_at + idle_max => "nobody reads it any more",
                _ => return,
            }
        };
        self.drop_for(reason);
    }

    fn forget(&self, cut: &mut Option<Cut>) {
        *cut = None;
        self.armed.store(0, Ordering::Release);
    }

    /// Whether the snapshot has `version` of `key`, or something newer.
    pub(super) fn has(&self, key: &Key, version: Version) -> bool {
        let Some(kept) = self.kept(None) else { return false };
        let row = kept.snapshot.scan(key.as_ref(), Bound::Included(key.as_ref()));
        let row = row.ok().and_then(|mut rows| rows.next()).and_then(Result::ok);
        row.and_then(|(_, row)| format::decode_record_mark(&row).ok())
            .is_some_and(|mark| mark.version >= version)
    }

    /// What the cut at `upto`, or whichever there is, has kept.
    fn kept(&self, upto: Option<u64>) -> Option<Kept> {
        let cut = self.lock();
        cut.as_ref().filter(|cut| upto.is_none_or(|upto| cut.upto == upto))?.kept.clone()
    }

    /// Notes that the cut at `upto` is being read. Returns false when it is gone.
    pub(super) fn touch(&self, upto: u64, now: Duration) -> bool {
        let mut cut = self.lock();
        let Some(cut) = cut.as_mut().filter(|cut| cut.upto == upto && cut.kept.is_some()) else {
            return false;
        };
        cut.used_at = now;
        true
    }

    #[cfg(test)]
    pub(super) fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        self.kept(None).map(|kept| kept.snapshot)
    }

    fn view(&self) -> Option<CutView> {
        let cut = self.lock();
        let Cut { upto, kept, .. } = cut.as_ref()?;
        Some(CutView { upto: *upto, digests: kept.as_ref().map(|kept| Arc::clone(&kept.digests)) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Cut>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replica {
    /// Takes a step of a cut. Returns false when it cannot be taken: another cut is kept, or this one is gone.
    ///
    /// # Errors
    /// [`ReplicaError::Overloaded`], [`ReplicaError::Stopped`]: nothing was done.
    pub async fn cut(&self, step: CutStep) -> Result<bool, ReplicaError> {
        let (done, outcome) = oneshot::channel();
        self.shared.queue.submit(Request::Cut { step, done })?;
        outcome.await.map_err(|_| ReplicaError::Stopped)?
    }

    /// The cut that is kept now.
    pub fn cut_view(&self) -> Option<CutView> {
        self.shared.cuts.view()
    }

    /// Reads the records of the closed cut at `upto` with start <= key < end, tombstones and expired ones included.
    /// `None` when it is not there.
    ///
    /// # Errors
    /// Those of [`Replica::scan`].
    pub async fn scan_cut(
        &self,
        upto: u64,
        start: Key,
        end: Option<Key>,
    ) -> Result<Option<CutReader>, ReplicaError> {
        let Some(Kept { snapshot, .. }) = self.shared.cuts.kept(Some(upto)) else { return Ok(None) };
        let open = move || {
            let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_ref()));
            snapshot.scan(start.as_ref(), end)
        };
        let scan: Scan = self.shared.pools.serving.run(open).await??;
        let reader = RangeReader { pools: Arc::clone(&self.shared.pools), scan: Some(scan) };
        Ok(Some(CutReader { replica: self.clone(), upto, reader }))
    }
}

/// A reader of a cut in parts.
pub struct CutReader {
    replica: Replica,
    upto: u64,
    reader: RangeReader,
}

impl CutReader {
    /// The next records, about `bytes` of keys and values; none at the end of the range. `now` is the monotonic time.
    ///
    /// # Errors
    /// Those of [`RangeReader::next`], and [`ReplicaError::Stopped`] once the cut has been dropped: a slow reader must
    /// not keep its rows on the disk.
    pub async fn next(&mut self, bytes: usize, now: Duration) -> Result<Vec<(Bytes, Record)>, ReplicaError> {
        if !self.replica.shared.cuts.touch(self.upto, now) {
            return Err(ReplicaError::Stopped);
        }
        let part = self.reader.next(bytes).await?;
        // Leaving out a record from the future would hide the key.
        for (_, record) in &part {
            self.replica.timestamps().check(record.version.clock())?;
        }
        Ok(part)
    }
}
