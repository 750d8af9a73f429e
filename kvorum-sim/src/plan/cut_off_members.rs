//! Seeds in which a member is cut off with its clients while data moves.
//!
//! Such a member could answer requests of one replica from its own records, although newer ones are elsewhere. Chance alone hardly meets
//! that, so each period of these seeds has the same acts, at times that vary:
//!
//! | time | what happens |
//! | --- | --- |
//! | [`ORDERED`] | a member gets another weight, so keys move; requests reach all members |
//! | [`CUT_OFF`] | one member is cut off, just before or after it hears of the change |
//! | [`WRITING`], [`READING`] | clients write through the others; other clients read through the member that is cut off |
//! | [`BACK`] | it is there again |
//! | [`FREE`] | everybody reads and writes |

use super::keys::key;
use super::stage::{BOTH, READS, WRITES, clients_in};
use super::{ClientPlan, KeyPlan, Plan, Turn};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::history::AckFrom;
use crate::seed::Stream;
use std::collections::BTreeSet;
use std::time::Duration;

/// The nodes. A quarter of the keys has three replicas, the others have one.
const NODES: u16 = 4;
/// The keys.
const KEYS: u64 = 16;
/// The length of a period. In the first one, the cluster gets what a move needs: names of its stores, and the feature level.
const PERIOD: Duration = Duration::from_secs(10);
/// When those orders are given.
const PREPARED: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];
/// When keys begin to move.
const ORDERED: Duration = Duration::from_millis(500);
/// When the member is cut off: an operator needs 300 ms to connect, and the move takes about 100 ms.
const CUT_OFF: (Duration, Duration) = (Duration::from_millis(760), Duration::from_millis(960));
/// The longest silence of a member that a change waits for.
const AWAY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// When clients write through the member. It notices within half a second that it reaches nobody.
const WRITING_THERE: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(1500));
/// When clients write through the others.
const WRITING: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(6500));
/// When clients read through the member.
const READING: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(6800));
/// When it is there again.
const BACK: Duration = Duration::from_secs(7);
/// When everybody reads and writes.
const FREE: (Duration, Duration) = (Duration::from_millis(7500), Duration::from_millis(9500));
/// How long clients wait between two requests at most.
const PAUSE: Duration = Duration::from_millis(60);

/// Makes `plan` one of this kind.
pub(super) fn cut_off(plan: &mut Plan, stream: &mut Stream) {
    let mut order: Vec<u16> = (0..NODES).collect();
    stream.shuffle(&mut order);
    let Some((&member, others)) = order.split_first() else { return };
    let periods = u32::try_from(stream.between(4, 6)).unwrap_or(4);
    let ordered = |at, choice: u64, node| {
        FaultEvent::between(at, at, FaultKind::Change, Fault::Change { node, choice })
    };
    let asked = |stream: &mut Stream| stream.pick(others).copied().unwrap_or_default();
    let mut faults: Vec<FaultEvent> = PREPARED.map(|at| ordered(at, 0, asked(stream))).into();
    for period in 1..periods {
        let begin = PERIOD * period;
        faults.push(ordered(begin + ORDERED, another_weight(stream), asked(stream)));
        let partition = Fault::Partition { side: BTreeSet::from([member]) };
        let cut_off = begin + stream.duration(CUT_OFF.0, CUT_OFF.1);
        faults.push(FaultEvent::between(cut_off, begin + BACK, FaultKind::Partition, partition));
    }
    let latency_min = Duration::from_millis(stream.between(0, 3));
    let latency = (latency_min, latency_min + Duration::from_millis(stream.between(1, 4)));
    plan.stage(NODES, PERIOD * periods, latency, faults);
    plan.away_after = Some(stream.duration(AWAY_AFTER.0, AWAY_AFTER.1));
    plan.clients = clients(member, others);
    let of_one = |index: u64| if index.is_multiple_of(4) { Vec::new() } else { vec![AckFrom::new(1, 1)] };
    let key =
        |index| KeyPlan { key: key(stream, index), weight: 1, replicas: of_one(index), reads: Vec::new() };
    plan.keys = (0..KEYS).map(key).collect();
    plan.conditions = 0;
    plan.cuts_members_off = true;
}

/// Makes the choice of an order (`node.rs: change`) that gives a member another weight. It cancels no change.
fn another_weight(stream: &mut Stream) -> u64 {
    let (place, windows, weight) = (stream.between(0, 3), stream.between(0, 1), stream.between(0, 3));
    let choice = place << 8 | windows << 12 | weight << 4;
    if choice.is_multiple_of(3) { choice | 1 << 14 } else { choice }
}

fn clients(member: u16, others: &[u16]) -> Vec<ClientPlan> {
    let turn = |(from, until), mix| Turn { period: PERIOD, from, until, mix };
    let client = |count, home, turns: &[Turn]| clients_in(turns, count, home, PAUSE);
    let of_others =
        others.iter().flat_map(|node| client(1, Some(*node), &[turn(WRITING, WRITES), turn(FREE, BOTH)]));
    client(3, Some(member), &[turn(WRITING_THERE, WRITES), turn(READING, READS), turn(FREE, BOTH)])
        .chain(of_others)
        .collect()
}
