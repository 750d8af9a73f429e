//! Seeds in which an older copy of a disk is put back and started several times before any other node answers.
//!
//! Chance alone hardly meets that beside an acknowledged write that only the lost disk and one other have. So each period of these
//! seeds has the same acts, at times that vary:
//!
//! | time | what happens |
//! | --- | --- |
//! | 0 | a copy is taken of the disk of a node (*copied*), and the node is started again: the others see a later run |
//! | [`WRITING`] | writes reach it and another node (*witness*); the third (*reader*) is cut off |
//! | [`ALONE`] | each node is cut off |
//! | [`PUT_BACK`] | the copied node gets its old disk, and is then started again up to twice |
//! | [`MEETING`] | it meets the reader, which saw the later run and none of the writes |
//! | [`READING`] | the reader is asked |
//! | [`FREE`] | everybody is there again, reads and writes |

use super::keys::key;
use super::stage::{BOTH, READS, WRITES, clients_in};
use super::{ClientPlan, KeyPlan, Plan, Turn};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::seed::Stream;
use std::collections::BTreeSet;
use std::time::Duration;

/// How many nodes there are. Each of them holds every key.
const NODES: u16 = 3;
/// The keys.
const KEYS: u64 = 8;
/// The length of a period. The first period has no fault.
const PERIOD: Duration = Duration::from_secs(6);
/// When the copied node is started again.
const LATER_RUN: Duration = Duration::from_millis(100);
/// When the reader is cut off: it has seen the later run.
const CUT_OFF: Duration = Duration::from_millis(900);
/// When clients write.
const WRITING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(1200));
/// When all are cut off: the writes are answered.
const ALONE: Duration = Duration::from_millis(1400);
/// When the old disk is put back.
const PUT_BACK: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(1600));
/// The time between its starts: each counts the run.
const BETWEEN: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(250));
/// How long the node is down.
const DOWN: Duration = Duration::from_millis(40);
/// When the reader and the copied node meet.
const MEETING: Duration = Duration::from_millis(2400);
/// When the reader is asked.
const READING: (Duration, Duration) = (Duration::from_millis(2500), Duration::from_millis(3800));
/// When the witness is there again, and everybody reads and writes.
const FREE: (Duration, Duration) = (Duration::from_secs(4), Duration::from_millis(5500));
/// How long clients wait between two requests at most.
const PAUSE: Duration = Duration::from_millis(40);

/// Makes `plan` one of this kind.
pub(super) fn put_back(plan: &mut Plan, stream: &mut Stream) {
    let mut order: Vec<u16> = (0..NODES).collect();
    stream.shuffle(&mut order);
    let &[copied, witness, reader] = order.as_slice() else { return };
    let periods = u32::try_from(stream.between(4, 8)).unwrap_or(4);
    let parts = (copied, witness, reader);
    let faults = (1..periods).flat_map(|period| acts(stream, parts, PERIOD * period)).collect();
    let latency_min = Duration::from_millis(stream.between(0, 3));
    let latency = (latency_min, latency_min + Duration::from_millis(stream.between(1, 4)));
    plan.stage(NODES, PERIOD * periods, latency, faults);
    plan.clients = clients(witness, reader);
    let key = |index| KeyPlan { key: key(stream, index), weight: 1, replicas: Vec::new(), reads: Vec::new() };
    plan.keys = (0..KEYS).map(key).collect();
    plan.conditions = 20;
    plan.restarts_copies = true;
}

fn acts(stream: &mut Stream, (copied, witness, reader): (u16, u16, u16), begin: Duration) -> Vec<FaultEvent> {
    let event = |at, until, kind, fault| FaultEvent::between(begin + at, begin + until, kind, fault);
    let cut_off = |node, at, until| {
        event(at, until, FaultKind::Partition, Fault::Partition { side: BTreeSet::from([node]) })
    };
    let restart = |at: Duration| event(at, at + DOWN, FaultKind::Restart, Fault::Restart { node: copied });
    let back = stream.duration(PUT_BACK.0, PUT_BACK.1);
    let older = Fault::OlderDisk { node: copied, is_image: stream.percent(50) };
    let mut events = vec![
        event(Duration::ZERO, back, FaultKind::OlderDisk, older),
        restart(LATER_RUN),
        cut_off(reader, CUT_OFF, MEETING),
        cut_off(copied, ALONE, MEETING),
        cut_off(witness, ALONE, FREE.0),
    ];
    let mut at = back;
    for _ in 0..stream.between(0, 2) {
        at += stream.duration(BETWEEN.0, BETWEEN.1);
        events.push(restart(at));
    }
    events
}

fn clients(witness: u16, reader: u16) -> Vec<ClientPlan> {
    let turn = |(from, until), mix| Turn { period: PERIOD, from, until, mix };
    let client = |count, home, turns: &[Turn]| clients_in(turns, count, home, PAUSE);
    client(4, Some(witness), &[turn(WRITING, WRITES)])
        .chain(client(4, Some(reader), &[turn(READING, READS)]))
        .chain(client(4, None, &[turn(FREE, BOTH)]))
        .collect()
}
