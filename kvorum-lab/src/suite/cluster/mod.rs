//! Section `cluster`: three nodes in one process beside a single node, by quorum.
//!
//! `cost` finds the cost of a request on all nodes together and the highest rate, under wrk; `latency` then
//! offers half of that rate, constantly. Both begin with new processes and empty stores, which [`fill`] fills
//! with the records of the GETs.

use std::fmt;
use std::time::Duration;

use super::Suite;
use super::process::Server;
use super::table::Table;
use super::wrk::{HOT_KEY, KEYS, WrkLoad};
use crate::dataset::Dataset;
use crate::error::LabError;
use crate::load::{KeyOrder, Operation, Pacing, Replicas, StreamPlan, prefill};

mod cost;
mod latency;

/// Nodes of the cluster.
const NODES: u16 = 3;

/// The quorums that are measured.
const QUORUMS: [Replicas; 3] = [quorum(1, 1), QUORUM_AIMED_AT, quorum(3, 3)];

/// The quorum of the aims.
const QUORUM_AIMED_AT: Replicas = quorum(2, 3);

/// `--durability` of every node here: only with it does a cluster's benefit show.
const DURABILITY: &str = "always";

/// `--memory-budget` of each node: the example of the documentation.
const MEMORY_BUDGET: &str = "256MiB";

/// Connections of the load driver, over all nodes; as many as wrk has.
const CONNECTIONS: usize = 64;

/// The records that GETs read.
const RECORDS: Dataset = Dataset { keys: KEYS, value_bytes: 100, seed: 1 };

/// The longest that storing the records may take.
const FILL_MAX: Duration = Duration::from_mins(1);

/// The longest to wait for the end of background work.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// One wrk run.
    wrk: Duration,
    /// The wrk run before it, so that connections and caches are warm; zero for none.
    warm_up: Duration,
    /// Rounds at most, whatever the suite's arguments say.
    rounds_max: u8,
    /// One run at a constant rate.
    paced: Duration,
    /// The most runs at a constant rate, if the hypervisor's steal is too high.
    attempts_max: u32,
}

pub(super) const FULL: Sizes = Sizes {
    wrk: Duration::from_secs(4),
    warm_up: Duration::from_secs(1),
    rounds_max: u8::MAX,
    paced: Duration::from_secs(15),
    attempts_max: 3,
};

pub(super) const QUICK: Sizes = Sizes {
    wrk: Duration::from_secs(1),
    warm_up: Duration::ZERO,
    rounds_max: 1,
    // In less, one late answer at the end would look like a rate that was not kept.
    paced: Duration::from_secs(2),
    attempts_max: 1,
};

/// The system under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// One node; there is no quorum to choose.
    Single,
    /// The cluster, with this quorum in every request.
    Cluster(Replicas),
}

/// Measures cost, then latency at half of the throughput that was found.
pub(super) fn run(suite: &Suite, tables: &mut Vec<Table>) -> Result<(), LabError> {
    let costs = cost::measure(suite)?;
    tables.push(costs.table(suite));
    tables.push(latency::run(suite, &costs)?);
    Ok(())
}

#[expect(clippy::unwrap_used, reason = "only constants are made of it: a bad one does not compile")]
const fn quorum(ack: u16, from: u16) -> Replicas {
    Replicas::new(ack, from).unwrap()
}

impl Subject {
    fn replicas(self) -> Option<Replicas> {
        match self {
            Self::Single => None,
            Self::Cluster(replicas) => Some(replicas),
        }
    }

    /// Starts it, tied to `core` if any.
    fn start(self, suite: &Suite, core: Option<usize>) -> Result<Server, LabError> {
        let options = suite.node(DURABILITY, MEMORY_BUDGET, core);
        match self {
            Self::Single => Server::node(&options),
            Self::Cluster(_) => Server::cluster(&options, NODES),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("single node"),
            Self::Cluster(replicas) => write!(f, "cluster {replicas}"),
        }
    }
}

/// The name of a load in the tables.
fn name_of(load: WrkLoad) -> &'static str {
    match load {
        WrkLoad::Get => "GET hot key",
        WrkLoad::GetAny => "GET any key",
        WrkLoad::Put => "PUT",
    }
}

/// Stores the records of the GETs, confirmed by every replica: a GET that found a missing copy would measure
/// its repair.
fn fill(suite: &Suite, server: &Server, subject: Subject) -> Result<(), LabError> {
    let replicas = subject.replicas().map(Replicas::all);
    let get = stream("fill", Operation::Get, RECORDS, replicas, Pacing::Closed);
    prefill(&suite.plan(server, FILL_MAX, vec![get]), FILL_MAX)?;
    server.store(HOT_KEY, &[b'v'; 100], replicas)?;
    server.settle(SETTLE_MAX)
}

/// Operations on any key of `dataset`.
fn stream(
    name: &str,
    operation: Operation,
    dataset: Dataset,
    replicas: Option<Replicas>,
    pacing: Pacing,
) -> StreamPlan {
    StreamPlan {
        name: name.into(),
        operation,
        replicas,
        pacing,
        order: KeyOrder::Uniform { seed: 2 },
        dataset,
        connections: CONNECTIONS,
        verify: true,
    }
}
