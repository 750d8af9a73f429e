//! Whether a store is this node's: made for it, among these nodes, and on the disk of its last run.

use super::NodeError;
use crate::canary::{self, Canary};
use crate::config::Config;
use crate::replica::{Chain, Digests, Home, Purge, Replica, ReplicaError};
use crate::storage::identity::{DiskIdentity, Vouch};
use crate::storage::{Change, Durability, Engine, EngineError, Keyspace, format};
use bytes::Bytes;
use kvorum_core::agreement::{Epoch, Voter};
use kvorum_core::configuration::Configuration;
use kvorum_core::{NodeId, Placement, Run, Topology};
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

/// Sets the damaged store of `engine` aside. If all decided configurations can be read, the empty one in its place gets them: the nodes
/// of `listed`, which it would ask for them, may have left the cluster. It gets neither the identity nor the promises.
///
/// # Errors
/// The store is not replaced, or lacks the configurations.
pub(super) fn replace_damaged(
    engine: &dyn Engine,
    listed: Option<&Topology>,
    error: &ReplicaError,
) -> Result<(), EngineError> {
    tracing::error!(%error, "the store is damaged: it is quarantined, and a new store is refilled from the other nodes");
    let decided = decided(engine, listed);
    engine.set_aside()?;
    if decided.is_empty() {
        return Ok(());
    }
    let put = |(key, value)| Change::Put { keyspace: Keyspace::Meta, key, value };
    engine.commit(decided.into_iter().map(put).collect(), Durability::Synced)
}

/// The rows of the configurations in the damaged store of `engine`; none if one cannot be read, or if they did not begin with
/// the nodes of `listed`.
fn decided(engine: &dyn Engine, listed: Option<&Topology>) -> Vec<(Bytes, Bytes)> {
    let configurations = Chain::adopted(engine).unwrap_or_default();
    let Some(first) = configurations.first() else { return Vec::new() };
    let is_of = |listed: &Topology| {
        let genesis = Configuration::genesis(first.cluster, listed, &Placement::initial(listed));
        genesis.check_successor(first).is_ok()
    };
    if !listed.is_none_or(is_of) {
        return Vec::new();
    }
    let mut rows = Chain::rows(configurations.iter(), None);
    rows.push((Bytes::from_static(format::META_CLUSTER_ID), format::encode_cluster_id(first.cluster)));
    rows
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::join::members_to_ask;
    use crate::storage::memory::MemoryEngine;
    use kvorum_core::ClusterId;
    use kvorum_core::agreement::Epoch;

    fn listed() -> Topology {
        Topology::of_urls(["http://a:1", "http://b:1", "http://c:1"]).unwrap()
    }

    /// A store in which two epochs were adopted: the first names the stores, in the second `c` has another URL.
    fn engine() -> (MemoryEngine, Vec<Configuration>) {
        let genesis =
            Configuration::genesis(ClusterId::new(7).unwrap(), &listed(), &Placement::initial(&listed()));
        let mut first = Configuration { epoch: Epoch(1), previous: genesis.hash(), ..genesis };
        (1..).zip(&mut first.members).for_each(|(store, member)| member.store = Some(store));
        let mut second = Configuration { epoch: Epoch(2), previous: first.hash(), ..first.clone() };
        let moved = second.members.iter_mut().find(|member| member.url == "http://c:1").unwrap();
        moved.url = "http://d:1".to_owned();
        let (engine, chain) = (MemoryEngine::new(), vec![first, second]);
        let put = |(key, value)| Change::Put { keyspace: Keyspace::Meta, key, value };
        let mut rows: Vec<Change> = Chain::rows(chain.iter(), None).into_iter().map(put).collect();
        let store = Bytes::from_static(format::META_STORE_ID);
        rows.push(put((store, format::encode_store_id(3))));
        engine.commit(rows, Durability::Synced).unwrap();
        (engine, chain)
    }

    fn replaced(engine: &MemoryEngine, listed: Option<&Topology>) -> Vec<Configuration> {
        replace_damaged(engine, listed, &ReplicaError::Stopped).unwrap();
        assert!(engine.has_begun_anew());
        assert!(Home::of(engine).unwrap().is_none(), "it has no identity yet");
        Chain::read(engine).unwrap().configurations
    }

    /// A damaged store leaves its cluster's id and configurations, and nothing else.
    #[test]
    fn what_was_decided_outlives_a_damaged_store() {
        let (engine, chain) = engine();
        assert_eq!(replaced(&engine, Some(&listed())), chain);
        let id = engine.get(Keyspace::Meta, format::META_CLUSTER_ID).unwrap().unwrap();
        assert_eq!(format::decode_cluster_id(&id).unwrap(), ClusterId::new(7));
        assert_eq!(engine.row_count(Keyspace::Meta), chain.len() + 1);
    }

    /// A node that is started with another list, by mistake, is told nothing of this cluster by the damaged store.
    #[test]
    fn a_damaged_store_of_another_list_leaves_nothing() {
        let other = Topology::of_urls(["http://a:1", "http://b:1"]).unwrap();
        assert_eq!(replaced(&engine().0, Some(&other)), []);
    }

    /// Neither do configurations that cannot be read.
    #[test]
    fn damaged_configurations_leave_nothing() {
        let (engine, chain) = engine();
        let key = crate::storage::chain_format::encode_configuration_key(chain[1].epoch);
        let rotten = Change::Put { keyspace: Keyspace::Meta, key, value: Bytes::from_static(b"rotten") };
        engine.commit(vec![rotten], Durability::Synced).unwrap();
        assert_eq!(replaced(&engine, Some(&listed())), []);
    }

    /// A node that joined asks also the members that it last knew: those of `--join` may have left.
    #[test]
    fn a_damaged_store_of_a_node_that_joined_leaves_members_to_ask() {
        let (engine, _) = engine();
        replaced(&engine, None);
        let joins = ["http://b:1".to_owned(), "http://e:1".to_owned()];
        let asked = members_to_ask(&joins, "http://a:1", &Chain::read(&engine).unwrap());
        assert_eq!(asked, ["http://b:1", "http://e:1", "http://d:1"]);
    }
}
