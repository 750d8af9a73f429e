//! Repair on an operator's order: compares this node with every other at once, and leads its tombstone GC rounds. The
//! same runs in the background without an order. The order is for operators who want to see it done now.

use super::Background;
use super::anti_entropy::AntiEntropy;
use crate::coordinator::{Coordinator, Shared};
use crate::replica::{Hint, ReplicaError};
use kvorum_core::Partition;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Hints that are read at a time, in number and bytes.
const HINTS_LEN_MAX: usize = 1024;
const HINTS_BYTES_MAX: usize = 4 << 20;

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// Nodes that this one was compared with, wholly.
    pub compared: u16,
    /// Nodes that it could not be compared with, and why.
    pub failed: Vec<(String, String)>,
    /// Records that anti-entropy brought here meanwhile.
    pub pulled: u64,
    /// Dead rows removed here meanwhile.
    pub purged: u64,
}

/// The right to run a repair, released when the repair ends, however it ends.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Compares this node with all others now, in one partition or in all, pulls everything that this node lacks, and leads
/// two rounds over the partitions in which it comes first. None when another such repair is under way on this node.
///
/// # Cancel safety
/// Dropping the future ends it between two records; records that were synced stay.
pub async fn repair_now(own: &Rc<Coordinator>, partition: Option<Partition>) -> Option<Repaired> {
    let shared = &own.shared;
    if shared.background.is_repairing.swap(true, Ordering::AcqRel) {
        return None;
    }
    let _turn = Turn(&shared.background.is_repairing);
    let before = shared.background.repair_counts();
    let mut repaired = Repaired { compared: 0, failed: Vec::new(), pulled: 0, purged: 0 };
    for index in shared.cluster.others() {
        match AntiEntropy::new(Rc::clone(own), index).compare_once(partition).await {
            Ok(()) => repaired.compared += 1,
            Err(cause) => {
                repaired.failed.push((shared.cluster.url_of(index).to_owned(), cause.to_string()));
            }
        }
    }
    if own.nodes() > 1 {
        shared.background.tombstone_gc.round_now().await;
    }
    let [pulled, purged] = shared.background.repair_counts();
    let [pulled_before, purged_before] = before;
    repaired.pulled = pulled.saturating_sub(pulled_before);
    repaired.purged = purged.saturating_sub(purged_before);
    Some(repaired)
}

/// Removes everything from this node that is too far ahead of its clock, in one partition or in all: records, hints
/// and floors. Returns the number of records and hints. Their values are lost on this node; anti-entropy brings the
/// records that other nodes hold of these keys.
///
/// # Errors
/// Errors of the store; records removed before stay removed.
pub async fn drop_unbelievable(shared: &Shared, only: Option<Partition>) -> Result<u64, ReplicaError> {
    let is_meant = |partition: Partition| only.is_none_or(|only| only == partition);
    let mut dropped = 0;
    let all = Partition::all(shared.cluster.partition_bits());
    for partition in all.filter(|partition| is_meant(*partition)) {
        dropped += shared.replica.drop_too_far_ahead(partition).await? as u64;
    }
    for index in shared.cluster.others() {
        let target = shared.cluster.id_of(index);
        let mut after: Option<Hint> = None;
        loop {
            let hints = shared.hints.next(target, after.as_ref(), HINTS_LEN_MAX, HINTS_BYTES_MAX).await?;
            let Some(last) = hints.last() else { break };
            after = Some(last.clone());
            let is_ahead = |hint: &Hint| {
                is_meant(shared.cluster.partition_of(&hint.key))
                    && shared.timestamps.check(hint.record.version.clock()).is_err()
            };
            let ahead: Vec<Hint> = hints.into_iter().filter(is_ahead).collect();
            dropped += ahead.len() as u64;
            shared.hints.remove(target, ahead).await?;
        }
    }
    tracing::warn!(
        dropped,
        "records and hints with timestamps beyond --clock-offset-limit were dropped on an operator's request \
         (kvorum repair --drop-unbelievable)"
    );
    Ok(dropped)
}

impl Background {
    fn repair_counts(&self) -> [u64; 2] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [read(&self.anti_entropy.progress.pulled), read(&self.tombstone_gc.purged)]
    }
}
