//! Open writes: the stamps of this node's writes whose clients have not been answered.
//!
//! A record that meets a newer one whose write is still open was overtaken by a write beside it, not by one that ended
//! before it began. If it is above what that one replaced, it took effect just before that one, and need not be stamped
//! again (`docs/decisions/0006-*`).

use kvorum_core::Version;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// These are the stamps of writes that are open.
#[derive(Debug, Default)]
pub(super) struct OpenWrites {
    // Guards as many stamps as there are writes under way, which may be thousands; held for one insertion, removal or look.
    stamps: Mutex<BTreeSet<Version>>,
}

impl OpenWrites {
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> OpenWrite {
        self.lock().insert(version);
        OpenWrite { all: Arc::clone(self), version }
    }

    /// Whether the write of this stamp has not been answered.
    pub(super) fn has(&self, version: Version) -> bool {
        self.lock().contains(&version)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Version>> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This is a write that is open until it is dropped.
#[must_use = "the write is open until this is dropped"]
#[derive(Debug)]
pub struct OpenWrite {
    all: Arc<OpenWrites>,
    version: Version,
}

impl Drop for OpenWrite {
    fn drop(&mut self) {
        self.all.lock().remove(&self.version);
    }
}
