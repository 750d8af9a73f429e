//! The pure rules of kvorum: keys, versions, records and their merge, quorums.
//!
//! Everything here is a plain value. There is no clock, no randomness, no socket, no file, no task and no
//! lock. Time comes in as an argument, and the `kvorum` crate performs the decisions that are made here. So
//! the server, the simulation and the property tests share one set of rules.
//!
//! Read on with [`version`] (how writes are ordered), then [`record`] (what is stored, and which of two
//! records wins), then [`quorum`] (how many replicas must confirm, and when that is known) and [`write`]
//! (when a write is acknowledged, and when it is stamped again). [`promise`] and [`conditional`] are the two sides of
//! a write with a condition. Where a record belongs is decided by
//! [`token`] (a key's partition), [`topology`] (which nodes there are) and [`placement`] (which nodes hold a
//! partition). [`configuration`] and [`agreement`] are to change these while the cluster runs; nodes do not use them yet.
//! Who may do something with a key is decided by [`rights`].

pub mod agreement;
pub mod condition;
pub mod conditional;
pub mod configuration;
pub mod hlc;
pub mod identity;
pub mod key;
pub mod placement;
pub mod promise;
pub mod quorum;
pub mod record;
pub mod rights;
pub mod token;
pub mod topology;
pub mod version;
pub mod write;

pub use condition::{Condition, ReadVerdict, Tags};
pub use conditional::{
    AcceptTally, AcceptVerdict, ConditionalOutcome, Fate, Lineage, Next, PrepareTally, PrepareVerdict,
    Prepared, Promise,
};
pub use configuration::Slot;
pub use hlc::Hlc;
pub use identity::{ClusterId, PastRuns, Run, StoreSeen};
pub use key::{Key, KeyError};
pub use placement::{ChangeError, Placement};
pub use promise::{Acceptance, KeyState};
pub use quorum::{Quorum, QuorumError, ReplicationFactor, Tally, Verdict};
pub use record::{Conditional, Record, Value};
pub use rights::{Grant, GrantError, Right, Scope, UnknownRight};
pub use token::{PARTITION_BITS_DEFAULT, Partition, Token};
pub use topology::{Member, NodeIndex, Topology, TopologyError};
pub use version::{NodeId, UnixMillis, Version};
pub use write::{Stamp, WriteTally, WriteVerdict};
