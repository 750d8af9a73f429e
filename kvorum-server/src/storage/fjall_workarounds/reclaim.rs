//! Reclaiming: frees the space of removed rows in cases where fjall would not.
//!
//! Unnecessary once fjall compacts by the share of removed rows, and the compaction of a keyspace can be stopped. Rows
//! that stay were reported as fjall's issue 115, which is closed; with few writes they still stay in 3.1.
//!
//! A removed row is a marker above the row that it removes, and both take space until a compaction brings them together
//! into the last level. fjall compacts when enough is written; with few writes, removed rows stay. A pass flushes the
//! memtables and then pushes every table down to the last level, in pieces.
//!
//! It requests one compaction at a time from fjall's own levelled strategy, with a threshold of 0 for every level. Each
//! is one that fjall's workers might have chosen; they continue beside it, and it can be stopped between two of them.
//! That strategy cannot push down a table that reaches beyond the first or last key of the level below. If the keyspace
//! is small, `major_compact` merges such tables; in large keyspaces there are at most two. `major_compact` is not used
//! for more: fjall's workers, for any keyspace, wait for its end, and it cannot be stopped (`docs/dev/storage.md`).

use super::snapshots::unread_until;
use crate::storage::{EngineError, lsm, wait};
use fjall::compaction::Leveled;
use fjall::{AbstractTree, Database, Keyspace};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A pass changes a keyspace only if at least one in this many rows on disk, dead rows and markers included, is a
/// marker. The removed rows are then a quarter of the live ones, since each marker has at least one dead row below it.
const WORTH_IT_ONE_IN: u64 = 6;
/// A compaction is skipped if it would merge a table with more than so many tables' worth of rows below it. A table
/// full of markers may need more. Then the table size grows, by a factor of four each time, up to a bound.
const STEP_TABLES_MAX: u64 = 50;
const TABLE_BYTES_MAX: u64 = 64 * lsm::TABLE_BYTES;
/// The largest keyspace that is merged as a whole, which takes some ten seconds.
const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// The most compactions in one pass of one keyspace: concurrent writes must not keep it going forever.
const STEPS_MAX: usize = 10_000;
/// How often a compaction that changed nothing is requested again, because one of fjall's workers has the tables.
const AGAIN_MAX: usize = 50;
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
/// The longest that a flush may take.
const FLUSH_WAIT_MAX: Duration = Duration::from_mins(1);
const FLUSH_PAUSE: Duration = Duration::from_millis(20);
const LEVELS: usize = 7;

/// Returns the open database and a keyspace, for one piece of work: a reopening of the store waits only for that.
pub(in crate::storage) type Handle<'a> = dyn Fn() -> Result<(Database, Keyspace), EngineError> + 'a;

/// Flushes a keyspace's memtable. Returns whether it was flushed: not if `go_on` stopped it.
pub(in crate::storage) fn flush(
    handle: &Handle<'_>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool, EngineError> {
    let attempted = "flush a memtable";
    let (database, keyspace) = handle()?;
    keyspace.rotate_memtable().map_err(|error| lsm::translate(attempted, error))?;
    drop((database, keyspace));
    let mut waited = Duration::ZERO;
    loop {
        let (database, keyspace) = handle()?;
        if keyspace.tree.sealed_memtable_count() == 0 {
            return Ok(true);
        }
        database.persist(fjall::PersistMode::Buffer).map_err(|error| lsm::translate(attempted, error))?;
        drop((database, keyspace));
        if waited >= FLUSH_WAIT_MAX {
            return Err(EngineError::Busy);
        }
        if !go_on() {
            return Ok(false);
        }
        wait::pause(FLUSH_PAUSE);
        waited += FLUSH_PAUSE;
    }
}

/// Whether no snapshot from before this call is being read, so that rows removed until then can be dropped.
pub(in crate::storage) fn is_unread(database: &Database) -> bool {
    let now = database.visible_seqno();
    unread_until(database) + 1 >= now
}

/// Releases the replaced files. fjall does so only at a later write: it keeps the list of tables that precedes the
/// oldest one in use. So a small keyspace is merged first, which takes a sequence number.
pub(in crate::storage) fn release(
    database: &Database,
    small: &Keyspace,
    keyspaces: &[&Keyspace],
) -> Result<(), EngineError> {
    let attempted = "release replaced tables";
    small.major_compact().map_err(|error| lsm::translate(attempted, error))?;
    let unread = unread_until(database);
    for keyspace in keyspaces {
        let released = keyspace.tree.get_version_history_lock().maintenance(keyspace.path(), unread);
        released.map_err(|error| lsm::translate(attempted, error.into()))?;
    }
    Ok(())
}

/// Reclaims the space of a keyspace's removed rows, if it is worth the work.
pub(in crate::storage) fn keyspace(
    store: &Path,
    handle: &Handle<'_>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), EngineError> {
    let (mut unchanged, mut table_bytes) = (0, lsm::TABLE_BYTES);
    for step in 0..STEPS_MAX {
        if !go_on() {
            return Ok(());
        }
        let (database, keyspace) = handle()?;
        if step == 0 && !is_worth_it(&keyspace) {
            return Ok(());
        }
        let before = above_last(&keyspace);
        if before.iter().all(|count| *count == 0) {
            break;
        }
        need_space(store, keyspace.disk_space().min((STEP_TABLES_MAX + 2) * table_bytes))?;
        let squeeze = Leveled::default().with_table_target_size(table_bytes).with_l0_threshold(0);
        let watermark = database.supervisor.snapshot_tracker.get_seqno_safe_to_gc();
        let done = keyspace.tree.compact(Arc::new(squeeze), watermark);
        done.map_err(|error| lsm::translate("rewrite tables", error.into()))?;
        if above_last(&keyspace) != before {
            unchanged = 0;
        } else if database.active_compactions() > 0 && unchanged < AGAIN_MAX {
            unchanged += 1;
            drop((database, keyspace));
            wait::pause(AGAIN_PAUSE);
        } else if table_bytes < TABLE_BYTES_MAX {
            table_bytes *= 4;
        } else {
            break;
        }
    }
    let (_database, keyspace) = handle()?;
    if go_on() && is_worth_it(&keyspace) && keyspace.disk_space() <= WHOLE_BYTES_MAX {
        need_space(store, keyspace.disk_space())?;
        keyspace.major_compact().map_err(|error| lsm::translate("rewrite a keyspace", error))?;
    }
    Ok(())
}

/// Whether enough of the keyspace's rows were removed to be worth a pass.
fn is_worth_it(keyspace: &Keyspace) -> bool {
    let removed = keyspace.tree.tombstone_count();
    removed > 0 && removed * WORTH_IT_ONE_IN >= keyspace.approximate_len() as u64
}

/// The number of tables in each level above the last.
fn above_last(keyspace: &Keyspace) -> [usize; LEVELS - 1] {
    std::array::from_fn(|level| keyspace.tree.level_table_count(level).unwrap_or(0))
}

fn need_space(store: &Path, bytes: u64) -> Result<(), EngineError> {
    if lsm::spare_bytes(store).is_some_and(|spare| spare < bytes) {
        return Err(EngineError::DiskFull { attempted: "rewrite tables to reclaim space" });
    }
    Ok(())
}
