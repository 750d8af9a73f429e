//! Ended snapshots: makes fjall look for the oldest one that is still read.
//!
//! Unnecessary once fjall has a public way to trigger that look. It looks at a rotation, and once per
//! [`SNAPSHOTS_PER_LOOK`] snapshots that end; until then, the removed rows that an ended snapshot kept are not dropped.

use fjall::Database;

const SNAPSHOTS_PER_LOOK: usize = 10_000;

/// The sequence number of fjall's below which no snapshot is read any more. Takes a millisecond or two.
pub(super) fn unread_until(database: &Database) -> u64 {
    for _ in 0..SNAPSHOTS_PER_LOOK {
        drop(database.snapshot());
    }
    database.supervisor.snapshot_tracker.get_seqno_safe_to_gc()
}
