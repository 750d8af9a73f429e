//! The faults of a plan: which kinds a seed has, when each begins, and how long it lasts.

use super::{FAULT_MAX, JUMP_MAX, WRONG_CLOCK_LIMIT, WRONG_CLOCK_MAX, signed};
use crate::fault::{Fault, FaultEvent, FaultKind, STARTING};
use crate::seed::Stream;
use kvorum_server::crash::Point;
use kvorum_server::replica::DurabilityMode;
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) fn kinds(stream: &mut Stream, nodes: u16, durability: DurabilityMode) -> BTreeSet<FaultKind> {
    // One seed in ten is calm: it shows that the checks are silent without faults.
    let percent = [0, 15, 30, 30, 30, 30, 50, 50, 50, 70];
    let percent = stream.pick(&percent).copied().unwrap_or(30);
    // Drawn for every kind, so that the kinds that are possible in this cluster do not change the draws of
    // the others.
    let mut kinds: BTreeSet<FaultKind> = FaultKind::ALL
        .into_iter()
        // Planned apart: see `wrong_secrets`, `changes` and `members`.
        .filter(|kind| ![FaultKind::WrongSecret, FaultKind::Change, FaultKind::Rejoin].contains(kind))
        .map(|kind| (kind, stream.percent(percent)))
        .filter(|(kind, is_on)| {
            let is_possible = match kind {
                FaultKind::SyncError => durability == DurabilityMode::Always,
                // A node learns from the others that its clock is wrong, or which cluster its new store belongs
                // to: with two nodes neither knows which one is wrong.
                FaultKind::Bridge
                | FaultKind::StaleTopology
                | FaultKind::ExchangedDisks
                | FaultKind::WrongClock
                | FaultKind::ForeignDisk => nodes >= 3,
                kind if kind.needs_peers() => nodes >= 2,
                // With one node no promise would be left to check.
                FaultKind::Wipe | FaultKind::BitRot | FaultKind::OlderDisk => nodes >= 2,
                // More nodes than replicas: some nodes seal partitions that they do not hold.
                FaultKind::StaggeredRestore => nodes >= 4,
                _ => true,
            };
            *is_on && is_possible
        })
        .map(|(kind, _)| kind)
        .collect();
    // Where clocks have no known bound, there is no right clock to compare one with.
    if stream.percent(70) {
        if kinds.contains(&FaultKind::WrongClock) {
            kinds.remove(&FaultKind::ClockJump);
            kinds.remove(&FaultKind::ClockDrift);
        }
    } else if kinds.contains(&FaultKind::ClockJump) || kinds.contains(&FaultKind::ClockDrift) {
        kinds.remove(&FaultKind::WrongClock);
    }
    if nodes == 3 && kinds.contains(&FaultKind::RestartAlone) {
        // With three nodes its disk would be one of the exchanged ones, and be recognised again when it comes
        // back.
        kinds.remove(&FaultKind::ExchangedDisks);
    }
    if kinds.contains(&FaultKind::StaggeredRestore) {
        // The copies must hold exactly the acknowledged writes.
        for kind in [
            FaultKind::Wipe,
            FaultKind::BitRot,
            FaultKind::ReadError,
            FaultKind::OlderDisk,
            FaultKind::ExchangedDisks,
            FaultKind::StaleTopology,
            FaultKind::ForeignDisk,
        ] {
            kinds.remove(&kind);
        }
    }
    kinds
}

pub(super) fn faults(
    stream: &mut Stream,
    nodes: u16,
    length: Duration,
    kinds: &BTreeSet<FaultKind>,
) -> Vec<FaultEvent> {
    // The only disk that may be lost permanently.
    let victim = stream.between_u16(0, nodes - 1);
    let mut events = Vec::new();
    // Backups are put back at the end of the run.
    for kind in kinds.iter().filter(|kind| !kind.is_once_a_run()) {
        // Kinds that are rarely possible come more often.
        let most = match kind {
            FaultKind::SyncError => 7,
            FaultKind::ExchangedDisks
            | FaultKind::StaleTopology
            | FaultKind::ClockJump
            | FaultKind::ClockDrift => 6,
            FaultKind::WrongClock => 8,
            // Many are left out again: they would overlap with another fault of the same disk.
            FaultKind::ForeignDisk => 16,
            FaultKind::CrashPoint => 12,
            // No more than three: a node restarts it three times within ten minutes.
            FaultKind::BackgroundEnd => 3,
            _ => 4,
        };
        for _ in 0..stream.between(1, most) {
            // Not in the first second: there are no records to lose yet.
            let at = stream.duration(Duration::from_secs(1), length);
            let lasts = stream.duration(Duration::from_millis(50), FAULT_MAX);
            let lasts = if stream.percent(60) { lasts / 8 } else { lasts };
            let fault = fault(stream, *kind, nodes, victim);
            // Long enough for records to be deleted and purged meanwhile.
            let is_long = matches!(kind, FaultKind::OlderDisk | FaultKind::RestartAlone);
            let lasts = if is_long { lasts.max(FAULT_MAX / 2) } else { lasts };
            // Long enough for the sweeper to run, and for nodes to meet a node of another cluster.
            let is_longer = matches!(kind, FaultKind::WrongClock | FaultKind::ForeignDisk);
            let lasts = if is_longer { lasts.max(FAULT_MAX / 4) } else { lasts };
            // If the background task ends for longer than a moment, the node treats it as a permanent
            // failure.
            let lasts =
                if *kind == FaultKind::BackgroundEnd { lasts.min(Duration::from_millis(200)) } else { lasts };
            let is_instant = matches!(
                kind,
                FaultKind::BitRot | FaultKind::ClockJump | FaultKind::ClockDrift | FaultKind::ForgedWord
            );
            let lasts = if is_instant { Duration::ZERO } else { lasts };
            events.push(FaultEvent { at, lasts, kind: *kind, fault });
        }
    }
    if kinds.contains(&FaultKind::Wipe) {
        let foreign = events.iter().filter(|event| event.kind == FaultKind::ForeignDisk);
        events.extend(foreign.filter_map(|event| newcomer(stream, event, victim)).collect::<Vec<_>>());
    }
    events.sort_by_key(|event| event.at);
    keep_foreign_disks_apart(events)
}

/// Half of the time a node that loses its disk while a node has one of another cluster: the new store knows no cluster id,
/// and must take that of its own cluster.
fn newcomer(stream: &mut Stream, foreign: &FaultEvent, victim: u16) -> Option<FaultEvent> {
    let lasts = stream.duration(Duration::from_millis(50), Duration::from_millis(500));
    let at = foreign.at + foreign.lasts / 8;
    let fault = Fault::Wipe { node: victim };
    stream.percent(50).then_some(FaultEvent { at, lasts, kind: FaultKind::Wipe, fault })
}

/// Leaves out a disk of another cluster where another fault changes the disk of the same node meanwhile, or
/// requires the node to serve alone: the node's own disk must be there when it is kept.
pub(super) fn keep_foreign_disks_apart(events: Vec<FaultEvent>) -> Vec<FaultEvent> {
    let is_foreign = |event: &FaultEvent| event.kind == FaultKind::ForeignDisk;
    let (foreign, mut kept): (Vec<_>, Vec<_>) = events.into_iter().partition(is_foreign);
    for event in foreign {
        let Fault::ForeignDisk { node, .. } = event.fault else { continue };
        let is_of_node = |other: &FaultEvent| match other.fault {
            Fault::ExchangedDisks { nodes: (one, other) } => [one, other].contains(&node),
            Fault::RestartAlone { node: of, .. } | Fault::ForeignDisk { node: of, .. } => of == node,
            _ => false,
        };
        let is_meanwhile =
            |other: &FaultEvent| other.at <= event.at + event.lasts && event.at <= other.at + other.lasts;
        if !kept.iter().any(|other| is_of_node(other) && is_meanwhile(other)) {
            kept.push(event);
        }
    }
    kept.sort_by_key(|event| event.at);
    kept
}

/// One more older disk, if the seed has any. A copy that is left at the end of the load comes back after the
/// cluster is at rest, so that no write overwrites its records.
pub(super) fn last_older_disk(length: Duration, faults: &[FaultEvent]) -> Option<FaultEvent> {
    let older = faults.iter().find(|event| event.kind == FaultKind::OlderDisk)?;
    Some(FaultEvent { at: length.saturating_sub(FAULT_MAX), lasts: FAULT_MAX, ..older.clone() })
}

/// Partitions around wipes, so that the loss has consequences. Until the wiped node comes back, some other
/// nodes receive nothing. For a while after that the rest receives nothing, which includes the nodes that
/// confirmed together with the wiped one.
pub(super) fn shifts(stream: &mut Stream, nodes: u16, faults: &[FaultEvent]) -> Vec<FaultEvent> {
    let mut events = Vec::new();
    for event in faults {
        let Fault::Wipe { node: victim } = event.fault else { continue };
        let others = side(stream, nodes);
        let (away, there): (BTreeSet<u16>, BTreeSet<u16>) =
            (0..nodes).filter(|node| *node != victim).partition(|node| others.contains(node));
        if away.is_empty() || there.is_empty() || event.lasts > FAULT_MAX / 2 {
            continue;
        }
        let lead = FAULT_MAX / 4;
        let (at, back) = (event.at.saturating_sub(lead), event.at + event.lasts);
        let partition = |at, lasts, side| FaultEvent {
            at,
            lasts,
            kind: FaultKind::Partition,
            fault: Fault::Partition { side },
        };
        events.push(partition(at, back.saturating_sub(at), away));
        events.push(partition(back, lead, there));
    }
    events
}

/// Short partitions, one after the other, each around one node. What it takes meanwhile reaches the others late: by hints, by
/// the write-backs of readers and by repair.
pub(super) fn short_faults(stream: &mut Stream, nodes: u16, length: Duration) -> Vec<FaultEvent> {
    let mut events = Vec::new();
    let mut at = Duration::from_secs(1);
    while at < length {
        let lasts = stream.duration(Duration::from_millis(50), Duration::from_millis(600));
        let side = BTreeSet::from([stream.between_u16(0, nodes - 1)]);
        let fault = Fault::Partition { side };
        events.push(FaultEvent { at, lasts, kind: FaultKind::Partition, fault });
        at += lasts + stream.duration(Duration::from_millis(100), Duration::from_millis(1200));
    }
    events
}

/// Changes of the configuration, half of them at two nodes at once. The first one that reaches all nodes names the stores.
pub(super) fn changes(stream: &mut Stream, nodes: u16, length: Duration) -> Vec<FaultEvent> {
    let mut events = Vec::new();
    let mut change = |at, node, choice| {
        let fault = Fault::Change { node, choice };
        events.push(FaultEvent { at, lasts: Duration::ZERO, kind: FaultKind::Change, fault });
    };
    // Early, when all nodes are likely to be there.
    change(Duration::from_secs(1), stream.between_u16(0, nodes - 1), stream.word());
    for _ in 0..stream.between(1, 12) {
        let at = stream.duration(Duration::from_secs(1), length);
        let node = stream.between_u16(0, nodes - 1);
        change(at, node, stream.word());
        // Close enough for the two to propose for one epoch.
        let (rival, later) = (stream.between_u16(0, nodes - 1), stream.between(0, 4));
        let choice = stream.word();
        if rival != node {
            change(at + Duration::from_millis(later), rival, choice);
        }
    }
    events
}

/// Wrong secrets, in a cluster whose nodes prove one.
pub(super) fn wrong_secrets(stream: &mut Stream, nodes: u16, length: Duration) -> Vec<FaultEvent> {
    let count = stream.between(0, 4);
    let event = |_| {
        let at = stream.duration(Duration::from_secs(1), length);
        // Long enough for connections that were proved by the right secret to end.
        let lasts = stream.duration(Duration::from_millis(50), FAULT_MAX);
        let fault = Fault::WrongSecret { node: stream.between_u16(0, nodes - 1) };
        FaultEvent { at, lasts, kind: FaultKind::WrongSecret, fault }
    };
    (0..count).map(event).collect()
}

/// The named steps of a running node.
const RUNNING: &[Point] = &[
    Point::LeaseBefore,
    Point::LeaseAfter,
    Point::CommitBeforeWrite,
    Point::CommitBeforeSync,
    Point::CommitBeforeAnswers,
    Point::CommitAnswered,
    Point::IntervalBeforeSync,
    Point::IntervalAfterSync,
    Point::SweepBefore,
    Point::SweepAfter,
    Point::HintBefore,
    Point::HintAfter,
    Point::HintsRemoveBefore,
    Point::HintsRemoveAfter,
    Point::IndexFlushBefore,
    Point::IndexFlushAfter,
];
/// The named steps of creating a store.
const BEING_BORN: &[Point] = &[
    Point::BirthBefore,
    Point::BirthAfter,
    Point::IndexBefore,
    Point::IndexAfter,
    Point::IdentityBefore,
    Point::IdentityAfter,
    Point::SeenBefore,
    Point::SeenAfter,
    Point::VotesBefore,
    Point::VotesAfter,
];

/// The named steps of setting a damaged store aside.
const SETTING_ASIDE: &[Point] = &[Point::AsideBefore, Point::AsideAfter, Point::AsideBegun];

/// Crashes at steps that only another fault leads to. New stores crash while they find out what they are, at
/// the first start and after a wipe. Stores crash that are opened again after a full disk, that are older, or
/// damaged. And, without another fault, nodes crash while deleted records are removed.
pub(super) fn led_to(
    stream: &mut Stream,
    nodes: u16,
    length: Duration,
    faults: &[FaultEvent],
) -> Vec<FaultEvent> {
    let first = stream.between_u16(0, nodes - 1);
    let mut leads = vec![(Duration::ZERO, Duration::ZERO, first, BEING_BORN, 1)];
    for _ in 0..2 {
        let at = stream.duration(Duration::from_secs(1), length);
        leads.push((at, FAULT_MAX / 2, stream.between_u16(0, nodes - 1), Point::PURGING, 8));
    }
    leads.extend(faults.iter().filter_map(|event| match event.fault {
        Fault::Wipe { node } => Some((event.at, event.lasts, node, BEING_BORN, 1)),
        Fault::DiskFull { node } => Some((event.at, event.lasts, node, Point::REOPENING, 1)),
        Fault::OlderDisk { node, .. } => {
            Some((event.at + event.lasts, Duration::ZERO, node, Point::ADOPTING, 1))
        }
        Fault::BitRot { node, .. } => Some((event.at, FAULT_MAX / 2, node, SETTING_ASIDE, 1)),
        _ => None,
    }));
    let mut events = Vec::new();
    for (at, lasts, node, points, most) in leads {
        let fault = crash(stream, node, points, most);
        let lasts = (lasts + stream.duration(Duration::from_secs(1), FAULT_MAX / 2)).min(FAULT_MAX);
        if stream.percent(40) {
            events.push(FaultEvent { at, lasts, kind: FaultKind::CrashPoint, fault });
        }
    }
    events
}

/// Crashes at steps that only a change leads to.
pub(super) fn crashes_of_changes(stream: &mut Stream, nodes: u16, length: Duration) -> Vec<FaultEvent> {
    let crashes = stream.between(1, 4);
    let event = |_| {
        let at = stream.duration(Duration::ZERO, length);
        let node = stream.between_u16(0, nodes - 1);
        let fault = crash(stream, node, Point::DECIDING, 2);
        FaultEvent { at, lasts: FAULT_MAX / 2, kind: FaultKind::CrashPoint, fault }
    };
    (0..crashes).map(event).collect()
}

/// A crash of a node that joins, at a step of the creation of its store or of an epoch.
pub(super) fn crash_of_joiner(stream: &mut Stream, node: u16) -> Fault {
    let points = if stream.percent(50) { Point::DECIDING } else { BEING_BORN };
    crash(stream, node, points, 2)
}

/// A crash of `node` at one of `points`, at the first to `most`th arrival.
fn crash(stream: &mut Stream, node: u16, points: &[Point], most: u64) -> Fault {
    let point = stream.pick(points).copied().unwrap_or(Point::CommitBeforeWrite);
    let (keep, loses_power) = (stream.word(), stream.percent(60));
    Fault::CrashPoint { node, point, count: stream.between(1, most), keep: loses_power.then_some(keep) }
}

fn fault(stream: &mut Stream, kind: FaultKind, nodes: u16, victim: u16) -> Fault {
    let node = stream.between_u16(0, nodes - 1);
    // Another node than `node`, if there is one.
    let other = (node + stream.between_u16(1, nodes.max(2) - 1)) % nodes;
    let choice = stream.word();
    let millis = |stream: &mut Stream, low, high| Duration::from_millis(stream.between(low, high));
    match kind {
        FaultKind::Restart => Fault::Restart { node },
        FaultKind::PowerLoss => Fault::PowerLoss { node: Some(node), keep: choice },
        FaultKind::PowerLossOfAll => Fault::PowerLoss { node: None, keep: choice },
        FaultKind::Wipe => Fault::Wipe { node: victim },
        FaultKind::Partition => Fault::Partition { side: side(stream, nodes) },
        FaultKind::OneWay => Fault::OneWay { source: node, target: other },
        FaultKind::Bridge => {
            let mut side = side(stream, nodes);
            side.remove(&node);
            Fault::Bridge { side, bridge: node }
        }
        FaultKind::Delay => Fault::Delay { latency_max: millis(stream, 30, 1500) },
        FaultKind::Hold => Fault::Hold { source: node, target: other },
        FaultKind::Pause => Fault::Pause { node },
        FaultKind::SlowNode => Fault::SlowNode { node, every: millis(stream, 5, 200) },
        FaultKind::SlowDisk => Fault::SlowDisk { node, latency: millis(stream, 5, 400) },
        FaultKind::SyncError => Fault::SyncError { node },
        FaultKind::WriteError => Fault::WriteError { node },
        FaultKind::ReadError => Fault::ReadError { node, choice },
        FaultKind::DiskFull => Fault::DiskFull { node },
        FaultKind::DiskFullOfAll => Fault::DiskFullOfAll,
        FaultKind::NoDescriptors => Fault::NoDescriptors { node },
        FaultKind::BackgroundEnd => Fault::BackgroundEnd { node },
        FaultKind::BitRot => Fault::BitRot { node: victim, choice },
        FaultKind::ClockJump => {
            let size = if stream.percent(50) { 5000 } else { crate::millis(JUMP_MAX) };
            Fault::ClockJump { node, by_millis: signed(stream, size) }
        }
        // Not the disk that other faults change meanwhile.
        FaultKind::ExchangedDisks => {
            Fault::ExchangedDisks { nodes: ((victim + 1) % nodes, (victim + 2) % nodes) }
        }
        // Backups are not a fault during the load, so none is planned here: see `faults`.
        FaultKind::OlderDisk | FaultKind::StaggeredRestore => {
            Fault::OlderDisk { node: victim, is_image: choice & 1 == 1 }
        }
        FaultKind::StaleTopology => Fault::StaleTopology { node },
        FaultKind::WrongSecret => Fault::WrongSecret { node },
        FaultKind::Change => Fault::Change { node, choice },
        FaultKind::Rejoin => Fault::Rejoin { choice },
        // 18 workers at most: two for each other node of seven, and six more.
        FaultKind::PausedWorkers => Fault::PausedWorkers { node, choice: choice & ((1 << 18) - 1) },
        FaultKind::CrashPoint if stream.percent(15) => crash(stream, node, STARTING, 1),
        FaultKind::CrashPoint => crash(stream, node, RUNNING, 5),
        // At most one clock per seed.
        FaultKind::WrongClock => {
            Fault::WrongClock { node: (victim + 1) % nodes, by_millis: wrong_by(stream) }
        }
        FaultKind::ForgedWord => Fault::ForgedWord { liar: node, node: other, choice },
        // Not the disk that comes back as an older image, which would be recognised.
        FaultKind::RestartAlone => {
            Fault::RestartAlone { node: (victim + nodes - 1) % nodes, is_copied: choice & 1 == 1 }
        }
        // Not the disk that is lost, rots or comes back older: it would have to be done to the disk that is kept.
        FaultKind::ForeignDisk => {
            let other = u16::try_from(choice % u64::from(nodes.max(2) - 1)).unwrap_or(0);
            Fault::ForeignDisk { node: (victim + 1 + other) % nodes, choice }
        }
        FaultKind::ClockDrift => {
            Fault::ClockDrift { node, ppm: i32::try_from(signed(stream, 500)).unwrap_or(0) }
        }
    }
}

/// The error of one clock while the others are right: less than the limit, which a node must tolerate, or
/// much more.
fn wrong_by(stream: &mut Stream) -> i64 {
    let is_small = stream.percent(50);
    let small = stream.between(500, crate::millis(WRONG_CLOCK_LIMIT) - 500);
    let powers = [10_000, 60_000, 3_600_000, 2 * 3_600_000, 24 * 3_600_000, crate::millis(WRONG_CLOCK_MAX)];
    let large = stream.pick(&powers).copied().unwrap_or(10_000);
    let size = i64::try_from(if is_small { small } else { large }).unwrap_or(0);
    if stream.percent(80) { size } else { -size }
}

/// Some of the nodes: at least one, and not all if there are several.
fn side(stream: &mut Stream, nodes: u16) -> BTreeSet<u16> {
    let mut all: Vec<u16> = (0..nodes).collect();
    stream.shuffle(&mut all);
    all.truncate(usize::from(stream.between_u16(1, nodes.max(2) - 1)));
    all.into_iter().collect()
}
