//! Seeds in which a disk is lost and filled again while a write waits that it has confirmed.
//!
//! Chance alone hardly meets that: all of it happens within the timeout of one request. So each period of these seeds has the
//! same acts, at times that vary:
//!
//! | time | what happens |
//! | --- | --- |
//! | 0 | a node without replicas (*writer*) takes writes; its messages to two replicas (*late*, *apart*) are held, so the records are on the third (*loser*) alone |
//! | [`LOST`] | the loser's disk is lost, and filled from the other nodes |
//! | [`LATE`] | the late replica gets the writes, within their timeout; then its messages to the one apart are held |
//! | [`READING`] | readers ask the replica apart, which has the loser for a quorum |
//! | [`FREE`] | nothing is held; everybody reads and writes |

use super::keys::keys_without;
use super::stage::{BOTH, READS, WRITES, clients_in};
use super::{ClientPlan, Plan, Turn};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::seed::Stream;
use std::time::Duration;

/// The nodes: three replicas, and the writer.
const NODES: u16 = 4;
/// The length of a period. The first period has no fault.
const PERIOD: Duration = Duration::from_secs(6);
/// When clients write: each once, for it waits for a second replica.
const WRITING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(60));
/// When the disk is lost: the writes are stored there, and answered.
const LOST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(200));
/// How long its node is down.
const DOWN: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(60));
/// When the late replica gets the writes: they have been under way for less than a second.
const LATE: (Duration, Duration) = (Duration::from_millis(800), Duration::from_millis(920));
/// The time from there to when its messages to the replica apart are held: it has answered the writer.
const HEARD: Duration = Duration::from_millis(30);
/// When the replica apart is read.
const READING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// When everybody reads and writes.
const FREE: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(5));
/// How long clients wait between two requests at most.
const PAUSE: Duration = Duration::from_millis(40);

/// Makes `plan` one of this kind.
pub(super) fn lose(plan: &mut Plan, stream: &mut Stream) {
    let mut order: Vec<u16> = (0..NODES).collect();
    stream.shuffle(&mut order);
    let &[loser, late, apart, writer] = order.as_slice() else { return };
    let periods = u32::try_from(stream.between(4, 8)).unwrap_or(4);
    let acts = |stream: &mut Stream, begin: Duration| {
        let event = |at, until, kind, fault| FaultEvent::between(begin + at, begin + until, kind, fault);
        let held =
            |at, until, source, target| event(at, until, FaultKind::Hold, Fault::Hold { source, target });
        let (lost, down) = (stream.duration(LOST.0, LOST.1), stream.duration(DOWN.0, DOWN.1));
        let given = stream.duration(LATE.0, LATE.1);
        [
            held(Duration::ZERO, given, writer, late),
            held(Duration::ZERO, READING.1, writer, apart),
            event(lost, lost + down, FaultKind::Wipe, Fault::Wipe { node: loser }),
            held(given + HEARD, READING.1, apart, late),
        ]
    };
    let faults = (1..periods).flat_map(|period| acts(stream, PERIOD * period)).collect();
    let latency_min = Duration::from_millis(stream.between(0, 3));
    let latency = (latency_min, latency_min + Duration::from_millis(stream.between(1, 4)));
    plan.stage(NODES, PERIOD * periods, latency, faults);
    plan.clients = clients(apart, writer);
    plan.keys = keys_without(stream, NODES, writer);
    plan.conditions = 20;
    plan.loses_answers = true;
}

fn clients(apart: u16, asked: u16) -> Vec<ClientPlan> {
    let turn = |(from, until), mix| Turn { period: PERIOD, from, until, mix };
    let client = |count, home, turns: &[Turn], conditions| {
        clients_in(turns, count, home, PAUSE).map(move |client| ClientPlan { conditions, ..client })
    };
    client(6, Some(asked), &[turn(WRITING, WRITES)], Some(0))
        .chain(client(4, Some(apart), &[turn(READING, READS)], None))
        .chain(client(4, None, &[turn(FREE, BOTH)], None))
        .collect()
}
