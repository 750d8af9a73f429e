//! The identity of this node's store: the id of its cluster, and the disk that it runs on.
//!
//! The cluster's id is made once, by the first node that knows of a majority without one, and adopted by all others. The
//! disk is recorded for the next start once this run has met a majority of the nodes: from then on the store is known to be
//! no older copy.

use crate::cluster::Cluster;
use crate::coordinator::Shared;
use kvorum_core::{ClusterId, NodeIndex, Run};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of the store's identity.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// The disk, once the node knows whether it is that of the last run.
    disk: OnceLock<DiskState>,
    // Held while the cluster's id is stored, so that only one id is ever stored. Held across an await, by tasks that
    // nothing else waits for.
    making_cluster_id: tokio::sync::Mutex<()>,
    /// Whether the log has said that this store does not count yet.
    is_undecided_told: AtomicBool,
}

/// The disk that the node runs on.
struct DiskState {
    /// Durably records a run on the disk.
    record: Box<dyn Fn(Run) + Send + Sync>,
    /// Whether the disk was the one of the last run when the node started.
    is_recognised: bool,
    /// Whether this run is recorded, so that the next start recognises the disk.
    is_recorded: AtomicBool,
}

impl fmt::Debug for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskState").field("is_recognised", &self.is_recognised).finish_non_exhaustive()
    }
}

impl Identity {
    /// Whether the disk is known to be the one of the last run.
    pub(crate) fn recognises_disk(&self) -> bool {
        self.disk.get().is_some_and(|disk| disk.is_recognised)
    }

    /// Records the disk for the next start, once this node has met a majority of `cluster`.
    pub(crate) fn record_disk(&self, cluster: &Cluster) {
        let Some(disk) = self.disk.get() else { return };
        if !cluster.has_met() || disk.is_recorded.swap(true, Ordering::SeqCst) {
            return;
        }
        (disk.record)(cluster.roster().run());
    }

    /// Notes that the log has said that this store does not count yet.
    pub(crate) fn note_undecided_told(&self) {
        self.is_undecided_told.store(true, Ordering::Relaxed);
    }

    /// Logs that the eligibility is decided, if the log said before that this store did not count yet.
    pub(crate) fn tell_decided(&self, cluster: &Cluster) {
        let is_told = self.is_undecided_told.load(Ordering::Relaxed);
        if !is_told || cluster.is_undecided() || !self.is_undecided_told.swap(false, Ordering::Relaxed) {
            return;
        }
        if cluster.votes() {
            tracing::info!("enough other nodes have answered: this store takes part in quorums from now on");
        } else {
            tracing::info!(
                "enough other nodes have answered: this store is refilled before it takes part in quorums"
            );
        }
    }
}

impl Shared {
    /// Sets whether the node's disk is the one of the last run, and how a run is recorded on it. Called once, before
    /// the node serves.
    pub fn set_disk(&self, is_recognised: bool, record: impl Fn(Run) + Send + Sync + 'static) {
        let is_recorded = AtomicBool::new(is_recognised);
        let disk = DiskState { record: Box::new(record), is_recognised, is_recorded };
        let _ = self.background.identity.disk.set(disk);
    }

    /// Processes the cluster id in a message of the node at `index`: adopts it, or makes one if this node must.
    pub(crate) async fn meet_cluster_id(&self, index: NodeIndex, theirs: Option<ClusterId>) {
        if self.cluster.id().is_some() {
            return;
        }
        let (id, is_made) = match theirs {
            Some(id) => (id, false),
            None if self.cluster.note_without_id(index) => {
                let mut bytes = [0; 16];
                self.rng.fill(&mut bytes);
                let Some(id) = ClusterId::new(u128::from_be_bytes(bytes)) else { return };
                (id, true)
            }
            None => return,
        };
        // Store it before any node is told. Of two tasks that come here at once, the later one finds the id of the
        // earlier.
        let _making = self.background.identity.making_cluster_id.lock().await;
        if self.cluster.id().is_some() {
            return;
        }
        match self.replica.store_cluster_id(id).await {
            Ok(()) => {
                self.cluster.adopt_id(id);
                let how = if is_made { "made" } else { "adopted" };
                tracing::info!(cluster_id = %id, "{how} the cluster's id: stores of another id are refused from now on");
            }
            Err(error) => tracing::warn!(%error, "cannot store the cluster's id; it is tried again"),
        }
    }
}
