//! Whether a store is this node's: made for it, among these nodes, and on the disk of its last run.

use super::NodeError;
use crate::canary::{self, Canary};
use crate::config::Config;
use crate::replica::{Chain, Digests, Home, Purge, Replica, ReplicaError};
use crate::storage::identity::{DiskIdentity, Vouch};
use crate::storage::{Engine, Keyspace, format};
use kvorum_core::agreement::{Epoch, Voter};
use kvorum_core::{NodeId, Run, Topology};
use std::path::Path;
use std::sync::Arc;

/// The placement in the store of a lone node: every key belongs there, whatever the node's address.
pub(super) const PLACED_ALONE: u64 = 0;

/// The placement in the store of a node that joined: the configurations in the store say where keys belong.
pub(super) const PLACED_JOINED: u64 = 1;

/// The identifier of the nodes among which keys are placed.
pub(super) fn placed_for(topology: &Topology) -> u64 {
    if topology.node_count() == 1 { PLACED_ALONE } else { topology.hash() }
}

/// Whether a store's keys are placed as in `placed`. A store of the release before clusters counts as a lone node's.
fn is_home(home: &Home, placed: u64) -> bool {
    home.topology.unwrap_or(PLACED_ALONE) == placed || canary::is(Canary::StaleTopology)
}

/// Whether a store belongs to `node`. A store of an earlier release belongs to the node that opens it first; a lone
/// node's store is recognised by its placement.
fn is_own(home: &Home, node: NodeId) -> bool {
    home.node.as_ref().is_none_or(|(owner, _)| *owner == node) || canary::is(Canary::StoreOfAnotherNode)
}

/// The store of a node that was started alone, without a list of nodes.
pub(super) struct Alone {
    /// Whether other nodes have joined it, whether or not they are members now.
    pub(super) has_grown: bool,
    /// When its tombstones may be purged.
    pub(super) purge: Purge,
}

impl Alone {
    /// Looks at the store of the node `node`. A chain of configurations that names the node by another URL is forgotten: in a
    /// cluster in which no other node has ever been, the URL may change.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(super) fn of(engine: &dyn Engine, config: &Config, node: NodeId) -> Result<Self, ReplicaError> {
        // Damage is reported where the store is opened.
        let chain = Chain::read(engine).unwrap_or_default();
        let has_grown = chain.has_grown();
        let is_renamed = chain.configurations.first().is_some_and(|first| first.member(node).is_none());
        if is_renamed && !has_grown {
            tracing::info!(
                url = config.advertise,
                "this node has always been alone, and has another URL than in its configurations: they begin anew"
            );
            chain.forget(engine)?;
        }
        // Where others may join, they must be able to compare. A node that nobody can name is spared the index that this takes;
        // but once there is one, it is kept up.
        let may_grow = has_grown || config.is_advertised() || Digests::are_kept(engine)?;
        Ok(Self { has_grown, purge: if may_grow { Purge::Keep } else { Purge::Sole } })
    }
}

/// The epoch in which the node `node` was removed with the store of `engine`, as far as the store knows.
pub(super) fn removed_in(engine: &dyn Engine, node: NodeId) -> Option<Epoch> {
    // Damage is reported where the store is opened.
    let chain = Chain::read(engine).ok()?;
    let store = engine.get(Keyspace::Meta, format::META_STORE_ID).ok()??;
    let voter = Voter { node, store: format::decode_store_id(&store).ok()? };
    let removed = chain.configurations.iter().find(|configuration| configuration.is_retired(voter));
    removed.map(|configuration| configuration.epoch)
}

/// The placement in the store of a node that is started with `--join`. One that began the cluster alone keeps its own.
pub(super) fn placed_of_joined(engine: &dyn Engine) -> u64 {
    let began_alone =
        Home::of(engine).is_ok_and(|home| home.is_some_and(|home| is_home(&home, PLACED_ALONE)));
    let has_grown = || Chain::read(engine).is_ok_and(|chain| chain.has_grown());
    if began_alone && has_grown() { PLACED_ALONE } else { PLACED_JOINED }
}

/// A reason to begin a new store in place of the present one.
pub(super) enum Unusable {
    /// The store replaced a damaged one under another node or list of nodes, and has confirmed nothing.
    Provisional,
    /// The store cannot be read.
    Damaged(ReplicaError),
}

/// Checks whom the store with the record `home` belongs to. This node is `(its id, its URL)`, and its keys are placed
/// as in `placed`.
pub(super) fn check_home(
    home: Result<Option<Home>, ReplicaError>,
    (node, url): (NodeId, &str),
    placed: u64,
    path: &Path,
) -> Result<Option<Unusable>, NodeError> {
    let is_alone = placed == PLACED_ALONE;
    match home {
        Ok(home) if home.as_ref().is_none_or(|home| is_home(home, placed) && is_own(home, node)) => Ok(None),
        Ok(Some(home)) if home.is_provisional && !is_alone => Ok(Some(Unusable::Provisional)),
        Ok(Some(Home { node: Some((_, owner)), topology, .. })) if topology == Some(placed) => {
            Err(NodeError::OtherNode { path: path.to_path_buf(), owner, url: url.to_owned() })
        }
        Ok(_) => Err(NodeError::OtherCluster { path: path.to_path_buf() }),
        Err(error) if error.is_damage() && !is_alone => Ok(Some(Unusable::Damaged(error))),
        Err(error) => Err(NodeError::Replica(error)),
    }
}

/// Whether the disk is known to be the last run's; if so, records it for the next run. The operator's decision for this
/// start replaces the check.
pub(super) fn recognise(disk: &Disk, replica: &Replica) -> bool {
    let (store, run) = (replica.store_id(), replica.run());
    let doubt = match disk.vouched {
        Some(vouch) => {
            tracing::warn!("this start uses the operator's confirmation: kvorum {}", vouch.name());
            None
        }
        None => disk.identity.verify(store, run).err(),
    };
    match &doubt {
        None => record_disk(&*disk.identity, store, run),
        Some(doubt) => {
            if !replica.is_new() {
                tracing::info!(
                    %doubt,
                    "the data directory may not be the one of the last run: this store is quorum-eligible once a \
                     majority of the nodes has answered"
                );
            }
            if let Err(error) = disk.identity.forget() {
                tracing::warn!(%error, "the record of another data directory cannot be removed: it is ignored");
            }
        }
    }
    doubt.is_none() || canary::is(Canary::CopiedStoreServes)
}

/// Records durably that this run uses the disk with the store `store`.
pub(super) fn record_disk(identity: &dyn DiskIdentity, store: u128, run: Run) {
    if let Err(error) = identity.record(store, run) {
        tracing::warn!(
            %error,
            "cannot record which data directory this run uses: after a restart this node serves nothing until a \
             majority of the nodes has answered"
        );
    }
}

/// The disk that a node runs on.
#[derive(Clone)]
pub struct Disk {
    /// Checks and records the disk's identity.
    pub identity: Arc<dyn DiskIdentity>,
    /// The operator's decision for this start (`kvorum bootstrap` or `kvorum trust-store`).
    pub vouched: Option<Vouch>,
}
