//! Seeds whose ballots are stranded between their promises and their records, while what the promises kept out comes in
//! behind them: a disk that had promised is lost and filled again, or a replica is brought up to date.
//!
//! Chance alone does not meet that: it takes a plain write on one replica, a ballot on the two others, and a reader who
//! sees the write before the ballot's record arrives. So each period of these seeds has the same acts, at times that
//! vary:
//!
//! | time | what happens |
//! | --- | --- |
//! | 0 | one node (*apart*) is cut off; plain writes through it are on its disk alone |
//! | `CUT` | conditional writes through a node without replicas (*asker*) have promises of the two others |
//! | `CUT` | the asker is stopped, cut off, or its messages to one of the two are held: see [`Act`] |
//! | then | the other of the two (*loser*) reaches all nodes, the node apart only this one; readers ask there |
//! | [`LATE`] | the messages, the hints, or the asker go on |
//! | [`SEEING`] | everybody reads through every node, and then writes as well ([`FREE`]) |

use super::keys::keys_without;
use super::stage::{BOTH, READS, WRITES, clients_in};
use super::{ClientPlan, Plan, Turn};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::seed::Stream;
use std::collections::BTreeSet;
use std::time::Duration;

/// The nodes: three replicas, and the asker.
const NODES: u16 = 4;
/// The length of a period. The first period has no fault.
const PERIOD: Duration = Duration::from_secs(10);
/// When what was stranded goes on.
const LATE: Duration = Duration::from_secs(7);
/// When everybody reads: not before what was stranded has arrived, for a reader who meets a promise ends it.
const SEEING: (Duration, Duration) = (Duration::from_millis(7900), Duration::from_millis(8300));
/// When everybody reads and writes, but the writers through the asker and the node apart.
const FREE: (Duration, Duration) = (Duration::from_millis(8300), Duration::from_secs(9));
/// When the writers through the asker read: without the versions their conditions would be about nothing.
const LOOKING: (Duration, Duration) = (Duration::from_secs(9), Duration::from_millis(9900));
/// When the third replica repairs again: not before what was stranded has arrived either.
const IDLE_END: Duration = Duration::from_millis(7850);
/// When plain writes go to the node apart: before it notices that it reaches nobody.
const ALONE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// When conditional writes go to the asker: one of each client, for a second one would be judged on the first.
const ASKING: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(320));
/// How long such a client waits then at most.
const ASKING_PAUSE: Duration = Duration::from_millis(6);
/// How long the others wait between two requests at most.
const SHORT: Duration = Duration::from_millis(40);
const LONG: Duration = Duration::from_millis(100);
/// When readers ask the node apart: not before repair has had the time to copy its records, for a reader copies them as well.
const READING: (Duration, Duration) = (Duration::from_millis(980), Duration::from_millis(6800));
/// The latest end of a stop: the asker's requests must not have timed out.
const STOP_END: Duration = Duration::from_millis(1250);

/// What strands the ballots of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Messages from the asker to one replica are held; the loser's disk is lost.
    Held,
    /// The asker is cut off until its requests have timed out, and delivers no hints; the loser's disk is lost.
    CutOff,
    /// The asker is stopped; the node apart is started again, and repair copies its records.
    Stopped,
}

/// The nodes' parts, the same in all periods of a seed.
#[derive(Debug, Clone, Copy)]
struct Parts {
    apart: u16,
    loser: u16,
    third: u16,
    asker: u16,
}

/// Makes `plan` one of this kind.
pub(super) fn strand(plan: &mut Plan, stream: &mut Stream) {
    let mut order: Vec<u16> = (0..NODES).collect();
    stream.shuffle(&mut order);
    let &[apart, loser, third, asker] = order.as_slice() else { return };
    let parts = Parts { apart, loser, third, asker };
    let latency_min = Duration::from_millis(stream.between(12, 30));
    let latency = (latency_min, latency_min + Duration::from_millis(stream.between(1, 5)));
    let periods = u32::try_from(stream.between(5, 9)).unwrap_or(5);
    let faults = (1..periods).flat_map(|period| acts(stream, parts, latency, PERIOD * period)).collect();
    plan.stage(NODES, PERIOD * periods, latency, faults);
    plan.clients = clients(parts);
    plan.keys = keys_without(stream, NODES, asker);
    plan.conditions = 40;
    plan.strands_ballots = true;
}

fn acts(
    stream: &mut Stream,
    parts: Parts,
    latency: (Duration, Duration),
    begin: Duration,
) -> Vec<FaultEvent> {
    let Parts { apart, loser, third, asker } = parts;
    let act = [Act::Held, Act::CutOff, Act::Stopped];
    let act = stream.pick(&act).copied().unwrap_or(Act::Held);
    // After the ways of the request, of the ballot, and of the answers: the records are under way. Where the asker is
    // stopped: the answers are.
    let ways = if act == Act::Stopped { 2 } else { 3 };
    let given = ASKING.0 + ASKING_PAUSE + ways * latency.1;
    let cut = begin + stream.duration(given, given + latency.0.saturating_sub(ASKING_PAUSE));
    // Soon enough that the loser asks for hints before the asker has any.
    let lost = cut + stream.duration(Duration::from_millis(50), Duration::from_millis(400));
    let late = begin + LATE;
    let bridged = if act == Act::Stopped { cut } else { lost };
    let event = FaultEvent::between;
    let only = |node| BTreeSet::from([node]);
    let idle = |node, until| {
        let fault = Fault::PausedWorkers { node, choice: 0 };
        event(begin, until, FaultKind::PausedWorkers, fault)
    };
    let mut events = vec![
        event(begin, bridged, FaultKind::Partition, Fault::Partition { side: only(apart) }),
        event(bridged, late, FaultKind::Bridge, Fault::Bridge { side: only(apart), bridge: loser }),
        // Its repair would meet its promise, and find out what became of the ballot.
        idle(third, begin + IDLE_END),
    ];
    let wiped = |stream: &mut Stream| {
        let down = stream.duration(Duration::from_millis(50), Duration::from_millis(150));
        event(lost, lost + down, FaultKind::Wipe, Fault::Wipe { node: loser })
    };
    match act {
        Act::Held => {
            events.push(event(cut, late, FaultKind::Hold, Fault::Hold { source: asker, target: third }));
            events.push(wiped(stream));
        }
        Act::CutOff => {
            let until = cut + stream.duration(Duration::from_millis(1050), Duration::from_millis(1400));
            events.push(event(cut, until, FaultKind::Partition, Fault::Partition { side: only(asker) }));
            events.push(idle(asker, late));
            events.push(wiped(stream));
        }
        Act::Stopped => {
            let up = cut + stream.duration(Duration::from_millis(50), Duration::from_millis(80));
            events.push(event(cut, begin + STOP_END, FaultKind::Pause, Fault::Pause { node: asker }));
            events.push(event(cut, up, FaultKind::Restart, Fault::Restart { node: apart }));
        }
    }
    events
}

fn clients(parts: Parts) -> Vec<ClientPlan> {
    let turn = |(from, until), mix| Turn { period: PERIOD, from, until, mix };
    let client = |count, pause_max, home, turns: &[Turn], conditions| {
        clients_in(turns, count, home, pause_max).map(move |client| ClientPlan { conditions, ..client })
    };
    let asks = [turn(ASKING, WRITES), turn(LOOKING, READS)];
    let all = [turn(SEEING, READS), turn(FREE, BOTH)];
    client(8, SHORT, Some(parts.apart), &[turn(ALONE, WRITES)], Some(0))
        .chain(client(8, ASKING_PAUSE, Some(parts.asker), &asks, Some(100)))
        .chain(client(6, SHORT, Some(parts.apart), &[turn(READING, READS)], None))
        .chain(client(4, LONG, None, &all, None))
        .collect()
}
