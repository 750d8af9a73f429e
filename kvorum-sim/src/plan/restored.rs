//! The other cluster, into which the cut of a seed is restored: another size, clocks that are wrong by up to
//! [`CLOCK_OFF`], faults that lose nothing, and clients that write to some of the keys meanwhile.

use super::{ClientPlan, ClockPlan, KeyPlan, Mix, Plan, faults, signed};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::seed::{Seed, Stream};
use bytes::Bytes;
use kvorum_server::replica::DurabilityMode;
use std::collections::BTreeSet;
use std::time::Duration;

/// How far a clock of the other cluster is off at most, either way.
const CLOCK_OFF: Duration = Duration::from_secs(30);
/// Makes the other cluster's seed.
const OTHER: u64 = 0x7265_7374_6f72_6564;

impl Plan {
    /// The plan of the cluster into which a backup with these keys is restored.
    #[must_use]
    pub fn of_restore(&self, keys: impl Iterator<Item = Bytes>) -> Self {
        let seed = Seed(self.seed.0 ^ OTHER);
        let mut stream = seed.stream("restore");
        let nodes = stream.weighted(&[(1, 1), (8, 3), (3, 4), (3, 5)]).copied().unwrap_or(3);
        let length = stream.duration(Duration::from_secs(10), Duration::from_secs(20));
        let possible = [
            FaultKind::Restart,
            FaultKind::PowerLoss,
            FaultKind::Partition,
            FaultKind::OneWay,
            FaultKind::Delay,
            FaultKind::Hold,
            FaultKind::Pause,
        ];
        let is_possible = |kind: &FaultKind| nodes > 1 || !kind.needs_peers();
        let kinds: BTreeSet<FaultKind> =
            possible.into_iter().filter(|_| stream.percent(40)).filter(is_possible).collect();
        let mut events = faults::faults(&mut seed.stream("faults"), nodes, length, &kinds);
        events.extend(jumps(&mut stream, nodes, length));
        events.sort_by_key(|event| event.at);
        let clock =
            |_| ClockPlan { offset_millis: signed(&mut stream, crate::millis(CLOCK_OFF)), drift_ppm: 0 };
        let clocks: Vec<ClockPlan> = (0..nodes).map(clock).collect();
        // No deletions: the versions of what is restored are older than those.
        let mix = Mix { get: 50, head: 5, put: 40, delete: 0, range: 5 };
        let clients = (0..stream.between(1, 4)).map(|_| ClientPlan {
            mix,
            turns: Vec::new(),
            conditions: None,
            pause_max: Duration::from_millis(stream.between(20, 300)),
            home: None,
        });
        let clients = clients.collect();
        // Nobody writes to two thirds of the keys, which must be there as they were.
        let keys = keys.map(|key| {
            let weight = u64::from(stream.percent(33));
            KeyPlan { key, weight, replicas: Vec::new(), reads: Vec::new() }
        });
        Self {
            seed,
            nodes,
            spares: 0,
            durability: DurabilityMode::Always,
            clocks,
            clients,
            keys: keys.collect(),
            ttl: None,
            conditions: 30,
            counters: 0,
            proves_peers: false,
            length,
            backups: None,
            has_late_writers: false,
            loses_answers: false,
            restarts_copies: false,
            cuts_members_off: false,
            strands_ballots: false,
            is_restored: false,
            takes_backup: true,
            cuts: Vec::new(),
            kinds: events.iter().map(|event| event.kind).collect(),
            faults: events,
            ..self.clone()
        }
    }
}

/// Clocks that are set while the restore is under way.
fn jumps(stream: &mut Stream, nodes: u16, length: Duration) -> Vec<FaultEvent> {
    let count = stream.between(0, 4);
    let jumps = (0..count).map(|_| FaultEvent {
        at: stream.duration(Duration::ZERO, length),
        lasts: Duration::ZERO,
        kind: FaultKind::ClockJump,
        fault: Fault::ClockJump {
            node: stream.between_u16(0, nodes - 1),
            by_millis: signed(stream, crate::millis(CLOCK_OFF)),
        },
    });
    jumps.collect()
}
