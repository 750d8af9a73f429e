//! Facts about the cluster that this node must not forget: which store each node was last seen with, and whether its
//! own store votes in reads.
//!
//! A node that lost its disk comes back with a store of another identity. It cannot know that it lost anything; the
//! others can, because they remember the store it had.

use super::{Replica, ReplicaError};
use crate::crash::{self, Point};
use crate::storage::{Change, Engine, Keyspace, format};
use bytes::Bytes;
use kvorum_core::{ClusterId, NodeId, Run, StoreSeen, UnixMillis};
use std::collections::BTreeMap;
use std::ops::Bound;

/// These are the facts as the store held them when it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The store and the run that each node was last seen with.
    pub seen: BTreeMap<NodeId, (u128, Run)>,
    /// Whether this store votes in reads.
    pub votes: Vote,
    /// The cluster that the store belongs to; none where no node has made its id yet.
    pub cluster_id: Option<ClusterId>,
}

/// This says whose store it is, and among which nodes its keys are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The node that it belongs to, and its URL; none in a store of an earlier release, and in that of a node that is alone.
    pub node: Option<(NodeId, String)>,
    /// The hash of the nodes; none in a store of the release before clusters.
    pub topology: Option<u64>,
    /// Whether it was begun in place of a damaged one and has not been refilled since. Such a store has never voted, so it
    /// has confirmed nothing, and may be begun anew among other nodes.
    pub is_provisional: bool,
}

impl Home {
    /// What the store of `engine` says; none of one that has not been made yet.
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

/// This says whether a store votes in reads, as far as it has been found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Vote {
    /// It does.
    #[default]
    Yes,
    /// It is known to lack what an earlier store of the node held.
    No,
    /// It is new, and not everybody has been asked.
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
        let votes = engine.get(Keyspace::Meta, format::META_VOTES)?;
        facts.votes = match votes.as_ref().and_then(|row| row.first()) {
            Some(&format::VOTES_NO) => Vote::No,
            Some(&format::VOTES_UNKNOWN) => Vote::Unknown,
            // A store of the release before clusters was the only one there was.
            _ => Vote::Yes,
        };
        Ok(facts)
    }

    /// Remembers durably with which stores, and in which runs of them, nodes were seen.
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

    /// Remembers durably to which cluster this store belongs.
    pub async fn store_cluster_id(&self, id: ClusterId) -> Result<(), ReplicaError> {
        self.store_one(format::META_CLUSTER_ID, format::encode_cluster_id(id)).await
    }

    /// Remembers durably that this store is in the run `run`.
    pub async fn store_run(&self, run: Run) -> Result<(), ReplicaError> {
        self.store_one(format::META_RUN, format::encode_run(run)).await
    }

    async fn store_one(&self, key: &'static [u8], value: Bytes) -> Result<(), ReplicaError> {
        let row = Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
        crash::point(Point::IdentityBefore);
        self.store_side(vec![row], true).await?;
        crash::point(Point::IdentityAfter);
        Ok(())
    }

    /// Remembers durably whether this store votes in reads.
    pub async fn store_votes(&self, vote: Vote) -> Result<(), ReplicaError> {
        let put = |key, value| Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(key), value };
        let mut rows = vec![put(format::META_VOTES, Bytes::copy_from_slice(&[vote.code()]))];
        if vote == Vote::Yes {
            // What votes confirms writes: from now on it belongs to these nodes.
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
