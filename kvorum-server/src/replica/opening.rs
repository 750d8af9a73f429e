//! Opening: what the replica reads and writes in a store before it serves: the lease of the previous run, the mark of an
//! unclean shutdown, the store's identity and the number of the run.

use super::commit::{DurabilityMode, Purge};
use super::{Birth, ReplicaError, ReplicaParts, Vote, Workers, facts};
use crate::clock::Rng;
use crate::crash::{self, Point};
use crate::storage::delta::{Delta, Flushing};
use crate::storage::{Batch, Change, Durability, Engine, EngineError, Keyspace, format};
use bytes::Bytes;
use kvorum_core::hlc::LEASE_MILLIS;
use kvorum_core::{Partition, Run, UnixMillis, Version};
use std::sync::Arc;

/// How often the replica opens a store before it reports the store as unusable.
const OPENINGS_MAX: u32 = 5;

/// The lease that the previous run stored. Returns 0 when that lease is too far ahead to be believed: no version need
/// be stamped above it, and the versions of this run carry another writer id anyway.
pub(super) fn stored_lease(parts: &ReplicaParts) -> Result<UnixMillis, ReplicaError> {
    let Some(row) = parts.engine.get(Keyspace::Meta, format::META_CLOCK_LEASE)? else {
        return Ok(UnixMillis(0));
    };
    let lease = format::decode_lease(&row)?;
    // Subtract one lease: the last stamped version may have been as far ahead as the bound allows.
    let begin = UnixMillis(lease.0.saturating_sub(LEASE_MILLIS));
    Ok(match parts.timestamps.check(Version::new(begin, 0, parts.node).clock()) {
        Ok(()) => lease,
        Err(error) => {
            tracing::warn!(%error, "the stored lease of this node's clock is implausible and ignored: versions \
                                    continue from the current time");
            UnixMillis(0)
        }
    })
}

/// The engine with the index's delta over it; a sole replica has no index.
pub(super) fn over_index(parts: &ReplicaParts) -> Result<Arc<dyn Engine>, ReplicaError> {
    let engine = Arc::clone(&parts.engine);
    if parts.purge == Purge::Sole {
        return Ok(engine);
    }
    let flushing = match parts.workers {
        Workers::Threads => Flushing::Beside,
        Workers::Tasks => Flushing::Within,
    };
    Ok(Arc::new(Delta::open(engine, parts.index_bytes, flushing, &parts.supervisor)?))
}

/// Sets the unclean-shutdown mark when this run confirms writes before they are synced; a clean shutdown removes it.
///
/// If the previous run left the mark, it may have lost confirmed writes. Then every partition of this node is durably
/// marked as needing repair before anything is written.
pub(super) fn mark_unclean(parts: &ReplicaParts, lease: UnixMillis) -> Result<(), ReplicaError> {
    let was_cut_short = parts.engine.get(Keyspace::Meta, format::META_UNSYNCED)?.is_some();
    let (keyspace, key) = (Keyspace::Meta, Bytes::from_static(format::META_UNSYNCED));
    let mut batch = Batch::new();
    if was_cut_short {
        tracing::warn!(
            "unclean shutdown with a --durability below always: acknowledged writes may be missing; this node \
             compares all partitions with the other nodes"
        );
        batch.extend(Partition::all(parts.partition_bits).map(|partition| Change::Put {
            keyspace,
            key: format::encode_gap_key(parts.node, partition.0),
            value: format::encode_lease(lease),
        }));
    }
    match (parts.durability == DurabilityMode::Always, was_cut_short) {
        (true, true) => batch.push(Change::Remove { keyspace, key }),
        (false, false) => batch.push(Change::Put { keyspace, key, value: Bytes::from_static(&[1]) }),
        (true, false) | (false, true) => {}
    }
    if !batch.is_empty() {
        crash::point(Point::UncleanBefore);
        parts.engine.commit(batch, Durability::Synced)?;
        crash::point(Point::UncleanAfter);
    }
    Ok(())
}

/// The store's identity, which is created and stored when there is none; and whether it was created now.
pub(super) fn store_id(
    engine: &dyn Engine,
    rng: &dyn Rng,
    birth: Birth,
) -> Result<(u128, bool), ReplicaError> {
    if let Some(row) = engine.get(Keyspace::Meta, format::META_STORE_ID)? {
        return Ok((format::decode_store_id(&row)?, false));
    }
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    let id = u128::from_be_bytes(bytes);
    let row = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
    let home = if birth.vote == Vote::No { format::META_BEGUN_AMONG } else { format::META_TOPOLOGY };
    // In one batch: a store that does not know yet whether it is quorum-eligible must not forget that when it is
    // reopened.
    let batch = vec![
        row(format::META_STORE_ID, format::encode_store_id(id)),
        row(format::META_VOTES, Bytes::copy_from_slice(&[birth.vote.code()])),
        row(home, format::encode_lease(UnixMillis(birth.topology))),
    ];
    crash::point(Point::BirthBefore);
    engine.commit(batch, Durability::Synced)?;
    crash::point(Point::BirthAfter);
    Ok((id, true))
}

/// Stores the rows that a run begins with. Returns the store's identity, whether it was created now, and the run.
pub(super) fn begin_run(parts: &ReplicaParts, lease: UnixMillis) -> Result<(u128, bool, Run), ReplicaError> {
    let (id, is_new) = store_id(&*parts.engine, &*parts.rng, parts.birth)?;
    let run = count_run(parts, id)?;
    if parts.purge == Purge::Keep {
        mark_unclean(parts, lease)?;
    }
    Ok((id, is_new, run))
}

/// Durably counts this start of the store before any other node hears of it. Other nodes remember the latest run that
/// they saw. So they recognise a copy of the store that is older, or that is used at the same time.
///
/// A store that is not bound to a node yet is bound to this one.
pub(super) fn count_run(parts: &ReplicaParts, store: u128) -> Result<Run, ReplicaError> {
    let (engine, rng) = (&*parts.engine, &*parts.rng);
    let before = engine.get(Keyspace::Meta, format::META_RUN)?;
    let before = before.map(|row| format::decode_run(&row)).transpose()?.unwrap_or_default();
    let mut nonce = [0; 8];
    rng.fill(&mut nonce);
    let run = Run { number: before.number.saturating_add(1), nonce: u64::from_be_bytes(nonce) };
    let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
    let mut past = facts::past_runs(engine)?;
    past.note(store, store, before);
    let mut batch = facts::run_rows(run, &past);
    if let Some(url) = &parts.bound_to
        && engine.get(Keyspace::Meta, format::META_NODE)?.is_none()
    {
        batch.push(put(format::META_NODE, format::encode_node(parts.node, url)));
    }
    let votes = engine.get(Keyspace::Meta, format::META_VOTES)?;
    if parts.birth.vote == Vote::Yes && votes.is_some_and(|row| row.first() == Some(&format::VOTES_UNKNOWN)) {
        // The store was created before the operator vouched that no older store exists.
        batch.push(put(format::META_VOTES, Bytes::from_static(&[format::VOTES_YES])));
    }
    crash::point(Point::RunBefore);
    match engine.commit(batch, Durability::Synced) {
        // The run is not counted, so no node is told of it: a store on a full disk must stay readable.
        Err(EngineError::DiskFull { .. }) => return Ok(before),
        outcome => outcome?,
    }
    crash::point(Point::RunAfter);
    Ok(run)
}

/// Syncs a store that has just been opened. If its background met a full disk meanwhile, the engine has stopped and is
/// opened again. A store on a disk that stays full is opened all the same, so that it can be read.
pub(super) fn sync_first(engine: &dyn Engine) -> Result<(), EngineError> {
    for _ in 1..OPENINGS_MAX {
        match engine.sync() {
            Err(EngineError::Poisoned { .. }) => engine.reopen()?,
            outcome => return outcome,
        }
    }
    engine.sync()
}
