//! Faults: what can happen to machines, disks, clocks and the network between them. The [plan](crate::plan)
//! decides which faults a seed has, and when; [`crate::cluster`] carries them out.

use kvorum_server::crash::Point;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A node's process ends and is started again.
    Restart,
    /// A node loses power: batches that were not synced are lost, except for a prefix.
    PowerLoss,
    /// All nodes lose power at once.
    PowerLossOfAll,
    /// A node comes back with an empty disk.
    Wipe,
    /// The network splits into two parts.
    Partition,
    /// One node's messages do not reach another; messages in the other direction do.
    OneWay,
    /// The network splits into two parts that are connected only through one node.
    Bridge,
    /// Links get slower and uneven.
    Delay,
    /// Messages between two nodes are held, then all released: they arrive after messages that were sent
    /// later.
    Hold,
    /// A node stops for a while, then continues as if nothing had happened.
    Pause,
    /// A node gets little time to run.
    SlowNode,
    /// A node's disk is slow.
    SlowDisk,
    /// Syncs fail.
    SyncError,
    /// Writes fail.
    WriteError,
    /// A row cannot be read.
    ReadError,
    /// The disk is full.
    DiskFull,
    /// A bit of a stored row flips.
    BitRot,
    /// A clock is set forward or back.
    ClockJump,
    /// A clock begins to run too fast or too slow.
    ClockDrift,
    /// A node is started again with an outdated list of nodes.
    StaleTopology,
    /// A node crashes at a named step of a write to its disk.
    CrashPoint,
    /// A node comes back with an older copy of its disk.
    OlderDisk,
    /// An operator pauses some of a node's workers.
    PausedWorkers,
    /// The disks of all nodes are full.
    DiskFullOfAll,
    /// A node's writes find no file descriptors.
    NoDescriptors,
    /// The background task of a node's engine ends, for a cause that passes.
    BackgroundEnd,
    /// The disks of two nodes are exchanged.
    ExchangedDisks,
    /// Copies of all disks, taken one after the other, are put back at once.
    StaggeredRestore,
    /// One node's clock is wrong for a while, among clocks that are right.
    WrongClock,
    /// A forger, which pretends to be a node, sends another node a message that no real node would send.
    ForgedWord,
    /// A node is started again while it reaches no other node, with its own disk or with a copy.
    RestartAlone,
    /// A node is started with its disk of another cluster, which was made by copying this one.
    ForeignDisk,
    /// A node has a wrong peer secret for a while.
    WrongSecret,
    /// An operator changes the configuration of the cluster at a node.
    Change,
    /// A machine that was removed waits to join again, with an empty disk.
    Rejoin,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 35] = [
        Self::Restart,
        Self::PowerLoss,
        Self::PowerLossOfAll,
        Self::Wipe,
        Self::Partition,
        Self::OneWay,
        Self::Bridge,
        Self::Delay,
        Self::Hold,
        Self::Pause,
        Self::SlowNode,
        Self::SlowDisk,
        Self::SyncError,
        Self::WriteError,
        Self::ReadError,
        Self::DiskFull,
        Self::BitRot,
        Self::ClockJump,
        Self::ClockDrift,
        Self::StaleTopology,
        Self::CrashPoint,
        Self::OlderDisk,
        Self::PausedWorkers,
        Self::DiskFullOfAll,
        Self::NoDescriptors,
        Self::BackgroundEnd,
        Self::ExchangedDisks,
        Self::StaggeredRestore,
        Self::WrongClock,
        Self::ForgedWord,
        Self::RestartAlone,
        Self::ForeignDisk,
        Self::WrongSecret,
        Self::Change,
        Self::Rejoin,
    ];

    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::PowerLoss => "power-loss",
            Self::PowerLossOfAll => "power-loss-of-all",
            Self::Wipe => "wipe",
            Self::Partition => "partition",
            Self::OneWay => "one-way",
            Self::Bridge => "bridge",
            Self::Delay => "delay",
            Self::Hold => "hold",
            Self::Pause => "pause",
            Self::SlowNode => "slow-node",
            Self::SlowDisk => "slow-disk",
            Self::SyncError => "sync-error",
            Self::WriteError => "write-error",
            Self::ReadError => "read-error",
            Self::DiskFull => "disk-full",
            Self::BitRot => "bit-rot",
            Self::ClockJump => "clock-jump",
            Self::ClockDrift => "clock-drift",
            Self::StaleTopology => "stale-topology",
            Self::CrashPoint => "crash-point",
            Self::OlderDisk => "older-disk",
            Self::ExchangedDisks => "exchanged-disks",
            Self::StaggeredRestore => "staggered-restore",
            Self::PausedWorkers => "paused-workers",
            Self::DiskFullOfAll => "disk-full-of-all",
            Self::NoDescriptors => "no-descriptors",
            Self::BackgroundEnd => "background-end",
            Self::WrongClock => "wrong-clock",
            Self::ForgedWord => "forged-word",
            Self::RestartAlone => "restart-alone",
            Self::ForeignDisk => "foreign-disk",
            Self::WrongSecret => "wrong-secret",
            Self::Change => "change",
            Self::Rejoin => "rejoin",
        }
    }

    /// Whether it ends no process and makes no disk fail.
    pub(crate) fn leaves_processes_alone(self) -> bool {
        matches!(
            self,
            Self::Partition
                | Self::OneWay
                | Self::Bridge
                | Self::Delay
                | Self::Hold
                | Self::Pause
                | Self::SlowNode
                | Self::SlowDisk
                | Self::ClockJump
                | Self::ClockDrift
                | Self::PausedWorkers
                | Self::Change
        )
    }

    /// Whether it may make a request fail. Clocks are not trusted, so a wrong one is no excuse; and no
    /// request needs a worker. A change that is planned must cost no request.
    pub fn disturbs(self) -> bool {
        !matches!(
            self,
            Self::ClockJump | Self::ClockDrift | Self::PausedWorkers | Self::Change | Self::Rejoin
        )
    }

    /// Whether it comes once in a run at most, or as seldom.
    pub(crate) fn is_once_a_run(self) -> bool {
        matches!(self, Self::StaggeredRestore | Self::Rejoin)
    }

    /// Whether it needs several nodes.
    pub(crate) fn needs_peers(self) -> bool {
        matches!(
            self,
            Self::Partition
                | Self::OneWay
                | Self::Hold
                | Self::ForgedWord
                | Self::RestartAlone
                | Self::ForeignDisk
                | Self::WrongSecret
        )
    }
}

/// A fault and the nodes that it affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The process of `node` ends, and is started again after the fault's duration. No write is lost.
    Restart {
        /// The node.
        node: u16,
    },
    /// `node`, or every node, loses power; a prefix of the unsynced batches survives.
    PowerLoss {
        /// The node; `None` for all.
        node: Option<u16>,
        /// Chooses the prefix: modulo the count of unsynced batches plus one.
        keep: u64,
    },
    /// `node` ends and comes back with an empty disk.
    Wipe {
        /// The node.
        node: u16,
    },
    /// No message passes between nodes of `side` and the others.
    Partition {
        /// One of the two sides.
        side: BTreeSet<u16>,
    },
    /// No message passes from `source` to `target`.
    OneWay {
        /// The node whose messages are lost.
        source: u16,
        /// The node that does not receive them.
        target: u16,
    },
    /// No message passes between nodes of `side` and the others, except through `bridge`, which reaches all.
    Bridge {
        /// One of the two sides.
        side: BTreeSet<u16>,
        /// The node that both reach.
        bridge: u16,
    },
    /// Every message takes up to `latency_max`.
    Delay {
        /// The longest time that a message takes.
        latency_max: Duration,
    },
    /// Messages between the two are held until the end of the fault.
    Hold {
        /// One node.
        source: u16,
        /// The other.
        target: u16,
    },
    /// `node` does not run.
    Pause {
        /// The node.
        node: u16,
    },
    /// `node` runs only once per `every`.
    SlowNode {
        /// The node.
        node: u16,
        /// The time between two steps in which it runs.
        every: Duration,
    },
    /// Each commit of `node` takes `latency`.
    SlowDisk {
        /// The node.
        node: u16,
        /// The time of a commit.
        latency: Duration,
    },
    /// Syncs of `node` fail; at the end of the fault it is restarted, because it takes no more writes.
    SyncError {
        /// The node.
        node: u16,
    },
    /// Writes of `node` fail; at the end of the fault it is restarted.
    WriteError {
        /// The node.
        node: u16,
    },
    /// A row of `node` cannot be read.
    ReadError {
        /// The node.
        node: u16,
        /// Chooses the row.
        choice: u64,
    },
    /// `node` has no space left.
    DiskFull {
        /// The node.
        node: u16,
    },
    /// No node has space left.
    DiskFullOfAll,
    /// Writes of `node` find no descriptor.
    NoDescriptors {
        /// The node.
        node: u16,
    },
    /// The background task of the engine of `node` ends, and ends again whenever it is started.
    BackgroundEnd {
        /// The node.
        node: u16,
    },
    /// A bit of a row of `node` flips.
    BitRot {
        /// The node.
        node: u16,
        /// Chooses the row and the bit.
        choice: u64,
    },
    /// The clock of `node` is set.
    ClockJump {
        /// The node.
        node: u16,
        /// Forward if positive, otherwise back.
        by_millis: i64,
    },
    /// `node` is started again, with a list of nodes in which another node has been replaced; at the end of
    /// the fault it is started again with the right list.
    StaleTopology {
        /// The node.
        node: u16,
    },
    /// The file of peer secrets of `node` has another secret than those of the other nodes, which do not accept it.
    WrongSecret {
        /// The node.
        node: u16,
    },
    /// `node` crashes when it reaches `point` for the `count`th time while the fault lasts, and is started
    /// again at its end. If it never reaches `point` that often, there is no fault.
    CrashPoint {
        /// The node.
        node: u16,
        /// The step.
        point: Point,
        /// At which arrival at the step it crashes, from 1.
        count: u64,
        /// Chooses the prefix that survives, as of a power loss; `None` if only the process crashes.
        keep: Option<u64>,
    },
    /// A copy of the synced state of the disk of `node` is taken; at the end of the fault the node is started
    /// again with it.
    OlderDisk {
        /// The node.
        node: u16,
        /// Whether it is a whole image, which the node cannot distinguish from the disk of its last run.
        is_image: bool,
    },
    /// Two nodes are stopped and each is started with the other's disk; at the end of the fault each gets its own back.
    ExchangedDisks {
        /// The nodes.
        nodes: (u16, u16),
    },
    /// `node` is stopped and started with a disk of another cluster; at the end of the fault it gets its own back,
    /// as it was when the node was stopped. See [`crate::foreign`].
    ForeignDisk {
        /// The node.
        node: u16,
        /// Chooses the other cluster's id, and the keys that it wrote.
        choice: u64,
    },
    /// The clock of `node` gains `ppm` microseconds per second from now on.
    ClockDrift {
        /// The node.
        node: u16,
        /// Microseconds per second.
        ppm: i32,
    },
    /// The clock of `node` is set wrong, and corrected at the end of the fault.
    WrongClock {
        /// The node.
        node: u16,
        /// Forward if positive, otherwise back.
        by_millis: i64,
    },
    /// A forger that pretends to be `liar` sends `node` a message that it must not accept without a bound.
    ForgedWord {
        /// The node that the forger pretends to be.
        liar: u16,
        /// The node that receives the message.
        node: u16,
        /// Chooses the message.
        choice: u64,
    },
    /// No message passes between `node` and the others. Its process ends and is started again at once.
    RestartAlone {
        /// The node.
        node: u16,
        /// Whether its disk is a copy, made file by file.
        is_copied: bool,
    },
    /// At `node` the stores are named, or the next configuration is proposed.
    Change {
        /// The node.
        node: u16,
        /// Chooses the change.
        choice: u64,
    },
    /// A machine that is no member any more is started with an empty disk, and waits to join.
    Rejoin {
        /// Chooses the machine, if there are several.
        choice: u64,
    },
    /// Some workers of `node` are paused. A restart of the node ends the pause.
    PausedWorkers {
        /// The node.
        node: u16,
        /// Chooses the workers: bit N stands for the worker at place N of the list; 0 stands for all.
        choice: u64,
    },
}

/// A fault with its beginning and its duration; a fault of one instant lasts 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultEvent {
    /// When it begins.
    pub at: Duration,
    /// How long it lasts; a node that is down starts again after it.
    pub lasts: Duration,
    /// Its kind.
    pub kind: FaultKind,
    /// The fault itself.
    pub fault: Fault,
}

impl FaultEvent {
    /// The fault that begins at `at` and ends at `until`.
    pub fn between(at: Duration, until: Duration, kind: FaultKind, fault: Fault) -> Self {
        Self { at, lasts: until.saturating_sub(at), kind, fault }
    }
}

/// The steps that every start of a node takes: a fault at one of them begins with a restart.
pub(crate) const STARTING: &[Point] =
    &[Point::StartBeforeSync, Point::StartAfterSync, Point::RunBefore, Point::RunAfter];

impl Fault {
    /// The node that is restarted at its beginning, because the fault happens during a start.
    pub fn restarts(&self) -> Option<u16> {
        match self {
            Self::CrashPoint { node, point, .. } if STARTING.contains(point) => Some(*node),
            _ => None,
        }
    }

    /// Whether `node` is down, stopped or unable to write meanwhile.
    pub fn holds_back(&self, node: u16) -> bool {
        match self {
            Self::PowerLoss { node: None, .. } | Self::DiskFullOfAll => true,
            Self::ExchangedDisks { nodes: (one, other) } => [*one, *other].contains(&node),
            Self::Restart { node: of }
            | Self::PowerLoss { node: Some(of), .. }
            | Self::Wipe { node: of }
            | Self::Pause { node: of }
            | Self::SlowNode { node: of, .. }
            | Self::SlowDisk { node: of, .. }
            | Self::SyncError { node: of }
            | Self::WriteError { node: of }
            | Self::DiskFull { node: of }
            | Self::NoDescriptors { node: of }
            | Self::BackgroundEnd { node: of }
            | Self::StaleTopology { node: of }
            | Self::RestartAlone { node: of, .. }
            | Self::ForeignDisk { node: of, .. }
            | Self::WrongSecret { node: of }
            | Self::CrashPoint { node: of, .. } => *of == node,
            _ => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart { node }
            | Self::Wipe { node }
            | Self::Pause { node }
            | Self::SyncError { node }
            | Self::WriteError { node }
            | Self::DiskFull { node }
            | Self::NoDescriptors { node }
            | Self::BackgroundEnd { node }
            | Self::StaleTopology { node }
            | Self::WrongSecret { node }
            | Self::PowerLoss { node: Some(node), .. } => write!(f, "node {node}"),
            Self::ExchangedDisks { nodes: (one, other) } => write!(f, "nodes {one} and {other}"),
            Self::OlderDisk { node, is_image } => {
                write!(f, "node {node}, {}", if *is_image { "as an image" } else { "file by file" })
            }
            Self::PowerLoss { node: None, .. } | Self::DiskFullOfAll => f.write_str("all nodes"),
            Self::Partition { side } => write!(f, "{side:?} from the others"),
            Self::OneWay { source, target } => write!(f, "from {source} to {target}"),
            Self::Bridge { side, bridge } => write!(f, "{side:?} from the others, except {bridge}"),
            Self::Delay { latency_max } => write!(f, "up to {latency_max:?}"),
            Self::Hold { source, target } => write!(f, "between {source} and {target}"),
            Self::SlowNode { node, every } => write!(f, "node {node}, once in {every:?}"),
            Self::SlowDisk { node, latency } => write!(f, "node {node}, {latency:?} a commit"),
            Self::ReadError { node, choice } | Self::BitRot { node, choice } => {
                write!(f, "node {node}, row {choice:016x}")
            }
            Self::CrashPoint { node, point, count, keep } => {
                let dies = if keep.is_some() { "loses power" } else { "dies" };
                write!(f, "node {node} {dies} at {} the {count}. time", point.name())
            }
            Self::ClockJump { node, by_millis } | Self::WrongClock { node, by_millis } => {
                write!(f, "node {node} by {by_millis:+} ms")
            }
            Self::ForgedWord { liar, node, choice } => {
                write!(f, "as node {liar} to node {node}, word {choice:016x}")
            }
            Self::RestartAlone { node, is_copied } => {
                write!(f, "node {node}, with {}", if *is_copied { "a copy of its disk" } else { "its disk" })
            }
            Self::ForeignDisk { node, choice } => write!(f, "node {node}, keys {choice:016x}"),
            Self::ClockDrift { node, ppm } => write!(f, "node {node} {ppm:+} ppm"),
            Self::PausedWorkers { node, choice } => write!(f, "node {node}, workers {choice:b}"),
            Self::Change { node, choice } => write!(f, "at node {node}, change {choice:016x}"),
            Self::Rejoin { choice } => write!(f, "of a removed machine, {choice:016x}"),
        }
    }
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, lasts, kind, fault } = self;
        write!(f, "{:>10.3} s  {:<18} {fault}", at.as_secs_f64(), kind.name())?;
        if lasts.is_zero() { Ok(()) } else { write!(f, ", for {:.3} s", lasts.as_secs_f64()) }
    }
}
