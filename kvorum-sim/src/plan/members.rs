//! Seeds in which members come and go: machines that wait to join, the orders of an operator, and faults of those machines.
//!
//! There are never fewer members than at the beginning, so that every `from` of the plan can be had at any time. One order
//! after the other is given, far more than can be carried out: most meet a change under way, and some turn it round.

use super::{ClockPlan, Plan, faults};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::seed::Stream;
use std::collections::BTreeSet;
use std::time::Duration;

/// The shortest load: a change takes a step for each of two phases of each window.
const LENGTH_MIN: Duration = Duration::from_secs(40);
/// How long the last change may take when all faults have ended, besides what any seed may take.
const SETTLE: Duration = Duration::from_mins(1);
/// The longest pause between two orders.
const ORDER_PAUSE_MAX: Duration = Duration::from_millis(2500);
/// Seeds in a hundred, of those with joins and faults, in which members are marked. More of them once the faults that they have
/// found are mended (`docs/dev/faults-found.md`, Open).
const MARKS_PERCENT: u64 = 15;
/// The longest silence of a member that a change waits for, where it is shorter than the faults.
const AWAY_AFTER_MAX: Duration = Duration::from_secs(4);
/// The longest fault of a machine that joins.
const FAULT_MAX: Duration = Duration::from_secs(4);

/// Makes `plan` one in which members come and go.
pub(super) fn come_and_go(plan: &mut Plan, stream: &mut Stream) {
    plan.spares = stream.between_u16(1, 2);
    plan.length = plan.length.max(LENGTH_MIN);
    plan.settle += SETTLE;
    plan.clocks.extend((0..plan.spares).map(|_| {
        let drift_ppm = i32::try_from(super::signed(stream, 50)).unwrap_or(0);
        ClockPlan { offset_millis: super::signed(stream, 10), drift_ppm }
    }));
    plan.faults.retain(|event| event.kind != FaultKind::Change);
    plan.faults.extend(orders(stream, plan));
    let is_calm = plan.faults.iter().all(|event| !event.kind.disturbs());
    if !is_calm {
        plan.faults.extend(faults_of_spares(stream, plan));
        if stream.percent(MARKS_PERCENT) {
            plan.away_after = Some(stream.duration(Duration::from_secs(1), AWAY_AFTER_MAX));
        }
    }
    plan.faults.sort_by_key(|event| event.at);
    plan.kinds.extend(plan.faults.iter().map(|event| event.kind));
}

/// Orders to the nodes, and the return of machines that were removed, with empty disks.
fn orders(stream: &mut Stream, plan: &Plan) -> Vec<FaultEvent> {
    let mut events = Vec::new();
    let mut at = Duration::from_secs(1);
    while at < plan.length {
        let event = |at, kind, fault| FaultEvent { at, lasts: Duration::ZERO, kind, fault };
        let order = |stream: &mut Stream| Fault::Change {
            node: stream.between_u16(0, plan.machines() - 1),
            choice: stream.word(),
        };
        events.push(event(at, FaultKind::Change, order(stream)));
        if stream.percent(30) {
            // Close enough for the two to propose for one epoch.
            let rival = at + Duration::from_millis(stream.between(0, 4));
            events.push(event(rival, FaultKind::Change, order(stream)));
        }
        if stream.percent(40) {
            let again = at + stream.duration(Duration::ZERO, ORDER_PAUSE_MAX);
            events.push(event(again, FaultKind::Rejoin, Fault::Rejoin { choice: stream.word() }));
        }
        at += stream.duration(Duration::from_millis(300), ORDER_PAUSE_MAX);
    }
    events
}

/// Faults of the machines that join, also before they are members.
fn faults_of_spares(stream: &mut Stream, plan: &Plan) -> Vec<FaultEvent> {
    let spares = plan.nodes..plan.machines();
    let events = spares.flat_map(|node| {
        let count = stream.between(0, 4);
        (0..count).map(move |_| node).collect::<Vec<_>>()
    });
    let nodes: Vec<u16> = events.collect();
    let event = |node| {
        let keep = stream.word();
        let side = BTreeSet::from([node]);
        let every = Duration::from_millis(stream.between(5, 200));
        let crash = faults::crash_of_joiner(stream, node);
        let possible = [
            (3, (FaultKind::Restart, Fault::Restart { node })),
            (3, (FaultKind::PowerLoss, Fault::PowerLoss { node: Some(node), keep })),
            (2, (FaultKind::Pause, Fault::Pause { node })),
            (3, (FaultKind::Partition, Fault::Partition { side })),
            (1, (FaultKind::SlowNode, Fault::SlowNode { node, every })),
            (3, (FaultKind::CrashPoint, crash)),
        ];
        let (kind, fault) =
            stream.weighted(&possible).cloned().unwrap_or((FaultKind::Pause, Fault::Pause { node }));
        let at = stream.duration(Duration::from_millis(100), plan.length);
        FaultEvent { at, lasts: stream.duration(Duration::from_millis(50), FAULT_MAX), kind, fault }
    };
    nodes.into_iter().map(event).collect()
}
