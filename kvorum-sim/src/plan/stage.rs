//! The parts that plans which act something out share: the operations of their clients, and a stage on which nothing else happens.

use super::{ClientPlan, Mix, Plan, Turn, clocks};
use crate::fault::FaultEvent;
use std::time::Duration;

const NONE: Mix = Mix { get: 0, head: 0, put: 0, delete: 0, range: 0 };
/// Writes only.
pub(super) const WRITES: Mix = Mix { put: 9, delete: 1, ..NONE };
/// Reads only.
pub(super) const READS: Mix = Mix { get: 1, ..NONE };
/// Reads and writes.
pub(super) const BOTH: Mix = Mix { get: 50, put: 45, delete: 5, ..NONE };

/// Makes `count` clients that act in `turns` only. They ask the node `home`, or all nodes.
pub(super) fn clients_in(
    turns: &[Turn],
    count: usize,
    home: Option<u16>,
    pause_max: Duration,
) -> impl Iterator<Item = ClientPlan> + use<> {
    let client = ClientPlan { mix: NONE, turns: turns.to_vec(), conditions: None, pause_max, home };
    std::iter::repeat_n(client, count)
}

impl Plan {
    /// Sets the nodes, the times and the faults of the plan, and removes all else that chance has put in.
    pub(super) fn stage(
        &mut self,
        nodes: u16,
        length: Duration,
        latency: (Duration, Duration),
        mut faults: Vec<FaultEvent>,
    ) {
        faults.sort_by_key(|event| event.at);
        (self.nodes, self.length, self.latency) = (nodes, length, latency);
        self.kinds = faults.iter().map(|event| event.kind).collect();
        self.clocks = clocks(&mut self.seed.stream("clocks"), nodes, &self.kinds);
        self.faults = faults;
        (self.ttl, self.backups, self.counters) = (None, None, 0);
        self.cuts.clear();
    }
}
