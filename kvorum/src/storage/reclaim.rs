//! Reclaiming: gives back the space of removed rows where fjall would not.
//!
//! A removed row is a marker above the row that it removes, and both take space until a compaction brings them together
//! into the last level. fjall compacts when enough is written; where little is, what was removed stays. A pass of this
//! flushes what is in memory and then pushes every table down to the last level, in pieces.
//!
//! It asks fjall's own levelled strategy, with a threshold of 0 for every level, for one compaction at a time: each is one
//! that fjall's workers might have chosen, they go on beside it, and between two of them it can be stopped. What that
//! strategy cannot push down (a table that reaches beyond the first or last key of the level below) is merged by
//! `major_compact` where the keyspace is small; elsewhere it is two tables at most. That one is not used for more: fjall's
//! workers wait for its end, for any keyspace, and it cannot be stopped (`docs/dev/storage.md`).

use super::{EngineError, lsm, wait};
use fjall::compaction::Leveled;
use fjall::{AbstractTree, Database, Keyspace};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Of so many rows on disk, dead ones and markers included, one must be a marker for a pass to touch a keyspace: the
/// removed are a quarter of what lives then, for each marker has at least one dead row below it.
const WORTH_IT_ONE_IN: u64 = 6;
/// A compaction merges a table with as much below it as fills so many tables, or is not done: a table that is full of
/// markers may need more. Then tables may become larger, four times each time, up to a bound.
const STEP_TABLES_MAX: u64 = 50;
const TABLE_BYTES_MAX: u64 = 64 * lsm::TABLE_BYTES;
/// The largest keyspace that is merged as a whole: some ten seconds.
const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// Compactions in one pass of one keyspace: what is written meanwhile must not keep it going for ever.
const STEPS_MAX: usize = 10_000;
/// How often a compaction that changed nothing is asked for again, because a worker of fjall's has the tables.
const AGAIN_MAX: usize = 50;
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
/// How long a flush may take.
const FLUSH_WAIT_MAX: Duration = Duration::from_mins(1);
const FLUSH_PAUSE: Duration = Duration::from_millis(20);
const LEVELS: usize = 7;

/// fjall looks which snapshots are gone at a rotation, and once in so many that end.
const SNAPSHOTS_A_LOOK: usize = 10_000;

/// Yields the open database and a keyspace, for one piece of work: a store that is opened again waits for no more.
pub(super) type Handle<'a> = dyn Fn() -> Result<(Database, Keyspace), EngineError> + 'a;

/// Flushes a keyspace's memtable. Says whether it was flushed: not where `go_on` ended it.
pub(super) fn flush(handle: &Handle<'_>, go_on: &mut dyn FnMut() -> bool) -> Result<bool, EngineError> {
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

/// Whether nobody reads a snapshot from before this call: what was removed until then can be dropped.
pub(super) fn is_unread(database: &Database) -> bool {
    let now = database.visible_seqno();
    unread_until(database) + 1 >= now
}

/// Below which of fjall's sequence numbers nobody reads any more.
fn unread_until(database: &Database) -> u64 {
    // A millisecond or two: fjall has no other way to make it look.
    for _ in 0..SNAPSHOTS_A_LOOK {
        drop(database.snapshot());
    }
    database.supervisor.snapshot_tracker.get_seqno_safe_to_gc()
}

/// Lets go of the files that were replaced. fjall does so when something is written later: it keeps the lists of tables
/// before the one that is below what is read. So a small keyspace is merged, which takes a sequence number, first.
pub(super) fn release(
    database: &Database,
    small: &Keyspace,
    keyspaces: &[&Keyspace],
) -> Result<(), EngineError> {
    let attempted = "let go of replaced tables";
    small.major_compact().map_err(|error| lsm::translate(attempted, error))?;
    let unread = unread_until(database);
    for keyspace in keyspaces {
        let released = keyspace.tree.get_version_history_lock().maintenance(keyspace.path(), unread);
        released.map_err(|error| lsm::translate(attempted, error.into()))?;
    }
    Ok(())
}

/// Gives back the space of a keyspace's removed rows, where they are worth it.
pub(super) fn keyspace(
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

/// Whether enough of the keyspace's rows were removed.
fn is_worth_it(keyspace: &Keyspace) -> bool {
    let removed = keyspace.tree.tombstone_count();
    removed > 0 && removed * WORTH_IT_ONE_IN >= keyspace.approximate_len() as u64
}

/// Tables of each level above the last.
fn above_last(keyspace: &Keyspace) -> [usize; LEVELS - 1] {
    std::array::from_fn(|level| keyspace.tree.level_table_count(level).unwrap_or(0))
}

fn need_space(store: &Path, bytes: u64) -> Result<(), EngineError> {
    if lsm::spare_bytes(store).is_some_and(|spare| spare < bytes) {
        return Err(EngineError::DiskFull { attempted: "rewrite tables to give back space" });
    }
    Ok(())
}
