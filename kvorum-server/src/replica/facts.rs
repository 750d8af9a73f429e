//! Facts about the cluster that this node must not forget: the store that each node was last seen with, and whether its
//! own store is quorum-eligible.
//!
//! A node that lost its disk comes back with a new store, of another identity. It cannot know that it lost data. The
//! other nodes can, because they remember the identity of its previous store.

use super::{Replica, ReplicaError};
use crate::crash::{self, Point};
use crate::storage::{Batch, Change, Engine, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{ClusterId, NodeId, PastRuns, Run, StoreSeen, UnixMillis};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The facts as the store held them when they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The store and the run that each node was last seen with.
    pub seen: BTreeMap<NodeId, (u128, Run)>,
    /// The runs that this store comes from.
    pub past_runs: PastRuns,
    /// Whether this store is quorum-eligible: whether its answers count in reads.
    pub votes: Vote,
    /// The cluster that the store belongs to; `None` while no node has created the id yet.
    pub cluster_id: Option<ClusterId>,
}

/// The node that a store belongs to, and the nodes among which its keys are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The owner and its URL. `None` in a store of an earlier release and in a cluster of one.
    pub node: Option<(NodeId, String)>,
    /// The hash of the nodes; `None` in a store of the release before clusters.
    pub topology: Option<u64>,
    /// Whether the store replaced a damaged one and has not been refilled since. Such a store has never been
    /// quorum-eligible, so it has confirmed nothing, and it may be recreated among other nodes.
    pub is_provisional: bool,
}

impl Home {
    /// Reads the home of `engine`'s store; `None` when the store has not been created yet.
    ///
    /// # Errors
    /// When its rows cannot be read.
    pub fn of(engine: &dyn Engine) -> Result<Option<Self>, ReplicaError> {
        if engine.get(Keyspace::Meta, format::META_STORE_ID)?.is_none() {
            return Ok(None);
        }
        let hash = |key| {
            let row = engine.get(Keyspace::Meta, key)?;
            Ok::<_, ReplicaError>(row.map(|row| format::decode_lease(&row)).transpose()?.map(|word| word.0))
        };
        let (topology, begun_among) = (hash(format::META_TOPOLOGY)?, hash(format::META_BEGUN_AMONG)?);
        let node = engine.get(Keyspace::Meta, format::META_NODE)?;
        Ok(Some(Self {
            node: node.map(|row| format::decode_node(&row)).transpose()?,
            topology: topology.or(begun_among),
            is_provisional: topology.is_none() && begun_among.is_some(),
        }))
    }
}

/// Whether a store is quorum-eligible, as far as is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Vote {
    /// Its answers count.
    #[default]
    Yes,
    /// The store is known to lack records that an earlier store of the node held.
    No,
    /// The store is new, and not every other node has been asked about an earlier one.
    Unknown,
}

impl Vote {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Yes => format::VOTES_YES,
            Self::No => format::VOTES_NO,
            Self::Unknown => format::VOTES_UNKNOWN,
        }
    }
}

/// The runs before the latest one of the store of `engine`. A store of an earlier release has none.
pub(super) fn past_runs(engine: &dyn Engine) -> Result<PastRuns, ReplicaError> {
    let row = engine.get(Keyspace::Meta, format::META_PAST_RUNS)?;
    Ok(row.map(|row| format::decode_past_runs(&row)).transpose()?.unwrap_or_default())
}

/// The changes that store the latest run of a store and those before it.
pub(super) fn run_rows(run: Run, past: &PastRuns) -> Batch {
    let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
    vec![
        put(format::META_RUN, format::encode_run(run)),
        put(format::META_PAST_RUNS, format::encode_past_runs(past)),
    ]
}

impl Replica {
    /// Reads the facts.
    pub fn facts(&self) -> Result<Facts, ReplicaError> {
        let engine = &self.shared.engine;
        let mut facts = Facts::default();
        for pair in engine.scan(Keyspace::Meta, format::META_SEEN, Bound::Unbounded)? {
            let (row, id) = pair?;
            if !row.starts_with(format::META_SEEN) {
                break;
            }
            let node = format::decode_seen_key(&row)?;
            let run = engine.get(Keyspace::Meta, &format::encode_ran_key(node))?;
            // A store of an earlier release has no runs.
            let run = run.map(|run| format::decode_run(&run)).transpose()?.unwrap_or_default();
            facts.seen.insert(node, (format::decode_store_id(&id)?, run));
        }
        let id = engine.get(Keyspace::Meta, format::META_CLUSTER_ID)?;
        facts.cluster_id = id.map(|id| format::decode_cluster_id(&id)).transpose()?.flatten();
        facts.past_runs = past_runs(&**engine)?;
        let votes = engine.get(Keyspace::Meta, format::META_VOTES)?;
        facts.votes = match votes.as_ref().and_then(|row| row.first()) {
            Some(&format::VOTES_NO) => Vote::No,
            Some(&format::VOTES_UNKNOWN) => Vote::Unknown,
            // A store of the release before clusters was the only replica.
            _ => Vote::Yes,
        };
        Ok(facts)
    }

    /// Durably remembers the store and the run that each node was seen with.
    pub async fn store_seen(&self, seen: &[StoreSeen]) -> Result<(), ReplicaError> {
        let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key, value };
        let rows = seen.iter().flat_map(|StoreSeen { node, store, run }| {
            [
                put(format::encode_seen_key(*node), format::encode_store_id(*store)),
                put(format::encode_ran_key(*node), format::encode_run(*run)),
            ]
        });
        crash::point(Point::SeenBefore);
        self.store_side(rows.collect(), true).await?;
        crash::point(Point::SeenAfter);
        Ok(())
    }

    /// Durably remembers the cluster that this store belongs to.
    pub async fn store_cluster_id(&self, id: ClusterId) -> Result<(), ReplicaError> {
        self.store_one(format::META_CLUSTER_ID, format::encode_cluster_id(id)).await
    }

    /// Durably remembers that this store is in the run `run`, after the runs `past`.
    pub async fn store_run(&self, run: Run, past: &PastRuns) -> Result<(), ReplicaError> {
        crash::point(Point::IdentityBefore);
        self.store_side(run_rows(run, past), true).await?;
        crash::point(Point::IdentityAfter);
        Ok(())
    }

    async fn store_one(&self, key: &'static [u8], value: Bytes) -> Result<(), ReplicaError> {
        let row = Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
        crash::point(Point::IdentityBefore);
        self.store_side(vec![row], true).await?;
        crash::point(Point::IdentityAfter);
        Ok(())
    }

    /// Durably remembers whether this store is quorum-eligible.
    pub async fn store_votes(&self, vote: Vote) -> Result<(), ReplicaError> {
        let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
        let mut rows = vec![put(format::META_VOTES, Bytes::copy_from_slice(&[vote.code()]))];
        if vote == Vote::Yes {
            // An eligible store confirms writes: from now on it belongs to these nodes.
            rows.push(put(format::META_TOPOLOGY, format::encode_lease(UnixMillis(self.shared.topology))));
            let key = Bytes::from_static(format::META_BEGUN_AMONG);
            rows.push(Change::Remove { keyspace: Keyspace::Meta, key });
        }
        crash::point(Point::VotesBefore);
        self.store_side(rows, true).await?;
        crash::point(Point::VotesAfter);
        Ok(())
    }
}
