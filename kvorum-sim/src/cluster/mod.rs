//! The cluster: machines with their software, and the driver that advances time and injects faults.
//!
//! The caller provides the software of a machine ([`Start`]), once for each run of the process. The driver
//! owns everything that outlives a process: disk, clock, scheduling. It steps the simulation, begins and ends
//! the plan's faults, and records the facts that the oracle needs ([`Facts`]).

mod disks;
mod machine;

pub use machine::{Life, Order, SecretFile, Software, Start, ThreadState};

use self::machine::Machine;
use crate::clock::{EPOCH, SimClock};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::forge::Forgery;
use crate::identity::Record;
use crate::invariants::facts::{Alone, Facts, LossKind, Stall};
use crate::net::host_of;
use crate::node::{FOREIGN_NODE, ONLY_STORES};
use crate::plan::Plan;
use crate::trace::Trace;
use kvorum_server::storage::memory::{self, DiskCopy, MemoryEngine};
use kvorum_server::storage::{Engine, Keyspace};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long one step of the simulation is.
pub const TICK: Duration = Duration::from_millis(1);

/// The state of the link between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Way {
    #[default]
    Open,
    Held,
    /// Which of the two directions is cut: from the lower node, from the higher.
    Cut(bool, bool),
}

/// A node's own disk while the node has one of another cluster.
struct KeptDisk {
    node: u16,
    disk: DiskCopy,
    record: Record,
}

/// The driver, which runs a plan.
pub struct Cluster<'a> {
    plan: Plan,
    sim: turmoil::Sim<'a>,
    machines: Vec<Machine>,
    /// Faults that have begun and not ended, by their place in the plan.
    active: BTreeMap<usize, FaultEvent>,
    next: usize,
    /// Older disks that come back after the cluster is at rest.
    left: Vec<(usize, FaultEvent)>,
    /// Copies of disks that have been taken, in the plan's order.
    backups: Vec<(u16, DiskCopy)>,
    down: BTreeSet<u16>,
    /// Machines that are no members any more, as the caller says, and do not wait to join again.
    removed: BTreeSet<u16>,
    /// Machines that wait to join again.
    waiting: BTreeSet<u16>,
    /// Exchanges of disks that are in force, by their fault's place in the plan.
    exchanged: BTreeSet<usize>,
    /// The own disks of nodes that have a disk of another cluster now, by their fault's place in the plan.
    kept: BTreeMap<usize, KeptDisk>,
    ways: BTreeMap<(u16, u16), Way>,
    facts: Facts,
    counts: BTreeMap<FaultKind, u64>,
    points: BTreeMap<&'static str, u64>,
    trace: Trace,
}

impl Cluster<'_> {
    /// The cluster of `plan`, whose machines run the software of `start`.
    pub fn new(plan: Plan, start: &Start, trace: Trace) -> Self {
        let mut sim = turmoil::Builder::new()
            .rng_seed(plan.seed.stream("network").word())
            .tick_duration(TICK)
            .simulation_duration(plan.length + plan.settle + Duration::from_hours(1))
            .min_message_latency(plan.latency.0)
            .max_message_latency(plan.latency.1)
            .tcp_capacity(4096)
            .build();
        let machines: Vec<Machine> = (0..plan.machines()).map(|node| Machine::new(&plan, node)).collect();
        for machine in &machines {
            sim.host(machine.host.as_str(), machine.software(plan.seed, Rc::clone(start)));
        }
        // In an outdated list of nodes it replaces one of the current nodes.
        sim.host(FOREIGN_NODE, || async { std::future::pending::<turmoil::Result>().await });
        let facts = Facts {
            nodes: plan.nodes,
            epoch: EPOCH,
            clock_error: plan.clock_error(),
            outside: (plan.nodes..plan.machines()).map(|node| (node, vec![(Duration::ZERO, None)])).collect(),
            // The nodes must connect to each other first.
            disturbed: vec![(Duration::ZERO, Duration::ZERO)],
            ..Facts::default()
        };
        let (active, ways) = (BTreeMap::new(), BTreeMap::new());
        let (counts, points) = (BTreeMap::new(), BTreeMap::new());
        Self {
            plan,
            sim,
            machines,
            active,
            next: 0,
            left: Vec::new(),
            backups: Vec::new(),
            down: BTreeSet::new(),
            removed: BTreeSet::new(),
            waiting: BTreeSet::new(),
            exchanged: BTreeSet::new(),
            kept: BTreeMap::new(),
            ways,
            facts,
            counts,
            points,
            trace,
        }
    }

    /// Adds a client of the name `name`. Its links are never disturbed.
    pub fn client(&mut self, name: &str, run: impl Future<Output = turmoil::Result> + 'static) {
        self.sim.client(name, run);
    }

    /// The simulated time since the run began.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// Whether a process of the node runs, or tries to start.
    pub fn is_running(&mut self, node: u16) -> bool {
        self.sim.is_host_running(host_of(node).as_str())
    }

    /// A node's disk.
    pub fn engine(&self, node: u16) -> Option<&Arc<MemoryEngine>> {
        self.machines.get(usize::from(node)).map(|machine| &machine.engine)
    }

    /// Has an operator at `node` name the store of a member that lost its disk, if one waits for it; or cancel the change under way.
    pub fn name_lost_stores(&self, node: u16) {
        self.order(node, Order::Change { choice: ONLY_STORES });
    }

    /// Says which machines are members, and which were and are no more; none of these while a change is under way.
    pub fn note_members(&mut self, members: &BTreeSet<u16>, removed: &BTreeSet<u16>) {
        self.waiting.retain(|node| !members.contains(node));
        self.removed = removed - &self.waiting;
    }

    /// Whether a node has the disk of another node or cluster now.
    pub fn has_another_disk(&self, node: u16) -> bool {
        self.has_foreign_disk(node) || self.has_disk_of_another_node(node)
    }

    fn has_foreign_disk(&self, node: u16) -> bool {
        self.kept.values().any(|kept| kept.node == node)
    }

    fn has_disk_of_another_node(&self, node: u16) -> bool {
        let has = |number: &&usize| {
            let event = self.active.get(*number).or_else(|| self.plan.faults.get(**number));
            event.is_some_and(|event| event.fault.holds_back(node))
        };
        self.exchanged.iter().filter(has).count() % 2 == 1
    }

    /// A node's clock.
    pub fn clock(&self, node: u16) -> Option<&Arc<SimClock>> {
        self.machines.get(usize::from(node)).map(|machine| &machine.clock)
    }

    /// The facts for the oracle; the caller adds those that it learns from the nodes.
    pub fn facts_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }

    /// How often each kind of fault has begun.
    pub fn counts(&self) -> &BTreeMap<FaultKind, u64> {
        &self.counts
    }

    /// At which steps machines have crashed, and how often.
    pub fn points(&self) -> &BTreeMap<&'static str, u64> {
        &self.points
    }

    /// Advances time until `until`, with the faults that are due. Returns whether all clients have ended.
    ///
    /// # Errors
    /// The error of a client or of a node's software.
    pub fn run_until(&mut self, until: Duration) -> Result<bool, Box<dyn std::error::Error>> {
        let mut is_over = false;
        while self.sim.elapsed() < until && !is_over {
            self.faults_due();
            self.backups_due();
            self.pace();
            is_over = self.sim.step()?;
            self.deaths();
            self.asides();
        }
        Ok(is_over)
    }

    /// Ends every fault, corrects every clock and starts every machine that is down. No further fault begins.
    pub fn heal(&mut self) {
        self.next = self.plan.faults.len();
        while let Some((number, event)) = self.active.pop_first() {
            if event.kind == FaultKind::OlderDisk {
                self.left.push((number, event));
            } else {
                self.end(number, &event);
            }
        }
        for machine in &self.machines {
            machine.clock.heal();
            machine.engine.clear_unreadable();
        }
        self.trace.line(self.sim.elapsed(), "driver", &"everything is healed");
    }

    /// Takes down the machines that have reached a step at which they were to crash.
    fn deaths(&mut self) {
        let sprung = |machine: &Machine| Some((machine.node, machine.traps.sprung.take()?));
        let sprung: Vec<_> = self.machines.iter().filter_map(sprung).collect();
        for (node, (number, point)) in sprung {
            let Some(event) = self.active.get(&number).cloned() else { continue };
            let Fault::CrashPoint { keep, .. } = event.fault else { continue };
            let now = self.sim.elapsed();
            self.trace.line(now, "driver", &format_args!("{} begins: {}", event.kind.name(), event.fault));
            *self.counts.entry(event.kind).or_default() += 1;
            *self.points.entry(point.name()).or_default() += 1;
            self.disarm(node, number);
            // From now on it is like any other fault; one that began with a restart counts from the restart
            // on.
            let at = if event.fault.restarts().is_some() { event.at } else { now };
            let fault = match keep {
                Some(keep) => Fault::PowerLoss { node: Some(node), keep },
                None => Fault::Restart { node },
            };
            let lasts = (event.at + event.lasts).saturating_sub(at);
            match keep {
                Some(keep) => self.lose_power(node, keep),
                None => self.stop(node, MemoryEngine::kill),
            }
            self.active.insert(number, FaultEvent { at, lasts, fault, ..event });
            self.disturb();
        }
    }

    fn disarm(&self, node: u16, number: usize) {
        self.with(node, |machine| {
            machine.traps.set.borrow_mut().remove(&number);
        });
    }

    fn faults_due(&mut self) {
        let now = self.sim.elapsed();
        let over: Vec<usize> = self
            .active
            .iter()
            .filter(|(_, event)| event.at + event.lasts <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            if let Some(event) = self.active.remove(&number) {
                self.end(number, &event);
            }
        }
        while let Some(event) = self.plan.faults.get(self.next).filter(|event| event.at <= now).cloned() {
            if let Fault::CrashPoint { node, point, count, .. } = event.fault {
                let number = self.next;
                self.with(node, |machine| {
                    machine.traps.set.borrow_mut().insert(number, (point, count));
                });
            }
            self.active.insert(self.next, event.clone());
            self.begin(self.next, &event);
            self.next += 1;
        }
    }

    /// Whether the effect of a fault does not begin now: it begins later, or not at all, or is done.
    fn begins_otherwise(&mut self, number: usize, event: &FaultEvent) -> bool {
        match event.fault {
            // The effect begins when the copy comes back.
            Fault::OlderDisk { node, .. } => {
                let now = self.sim.elapsed();
                self.with(node, |machine| {
                    let copy = (now, machine.engine.copy_of_disk(), machine.identity.recorded());
                    machine.copies.borrow_mut().insert(number, copy);
                });
                true
            }
            // The effect begins when the step is reached. Until then the fault is only a restart, if it has one.
            Fault::CrashPoint { .. } => {
                if let Some(node) = event.fault.restarts() {
                    self.stop(node, MemoryEngine::kill);
                    self.start_idle();
                }
                true
            }
            Fault::ForeignDisk { .. } => !self.know_their_cluster(),
            Fault::Rejoin { choice } => {
                self.rejoin(choice);
                true
            }
            _ => false,
        }
    }

    fn begin(&mut self, number: usize, event: &FaultEvent) {
        if self.begins_otherwise(number, event) {
            return;
        }
        let now = self.sim.elapsed();
        let order = match event.fault {
            Fault::PausedWorkers { node, choice } => {
                Some((node, Order::Pause { choice, time: Some(event.lasts) }))
            }
            Fault::ForgedWord { liar, node, choice } => Some((liar, Order::Forge(Forgery { node, choice }))),
            Fault::Change { node, choice } => Some((node, Order::Change { choice })),
            _ => None,
        };
        if order.is_some_and(|(node, order)| !self.order(node, order)) {
            return;
        }
        self.trace.line(now, "driver", &format_args!("{} begins: {}", event.kind.name(), event.fault));
        *self.counts.entry(event.kind).or_default() += 1;
        match &event.fault {
            Fault::Restart { node } => self.stop(*node, MemoryEngine::kill),
            Fault::PowerLoss { node: Some(node), keep } => self.lose_power(*node, *keep),
            Fault::PowerLoss { node: None, keep } => {
                (0..self.plan.machines())
                    .for_each(|node| self.lose_power(node, keep.rotate_left(u32::from(node))));
            }
            Fault::Wipe { node } => {
                self.lose(*node, LossKind::Wiped, Duration::ZERO);
                // If too few nodes of its list are left, it would wait long before it believes their cluster id: the operator names
                // present members.
                let is_left = |other: &u16| {
                    other != node && !self.removed.contains(other) && !self.waiting.contains(other)
                };
                let others = usize::from(self.plan.nodes) - 1;
                let left = (0..self.plan.nodes).filter(is_left).count();
                let knows_few = left < (others.div_ceil(2) + 1).min(others);
                self.with(*node, |machine| {
                    machine.identity.exchange(None);
                    machine.joins.set(machine.joins.get() || knows_few);
                });
                self.stop(*node, MemoryEngine::wipe);
            }
            Fault::ReadError { node, choice } => self.with(*node, |machine| {
                let Ok(rows) = machine.engine.scan(Keyspace::Records, b"", Bound::Unbounded) else { return };
                let count = machine.engine.row_count(Keyspace::Records).max(1) as u64;
                let nth = usize::try_from(choice % count).unwrap_or(0);
                if let Some(Ok((key, _))) = rows.into_iter().nth(nth) {
                    machine.engine.set_unreadable(Keyspace::Records, &key, true);
                }
            }),
            Fault::BitRot { node, choice } => {
                self.lose(*node, LossKind::Rotten, Duration::ZERO);
                self.rot(*node, *choice);
            }
            Fault::ClockJump { node, by_millis } => {
                self.with(*node, |machine| machine.clock.jump(*by_millis));
            }
            Fault::ClockDrift { node, ppm } => self.with(*node, |machine| machine.clock.set_drift(*ppm)),
            Fault::SlowDisk { node, latency } => {
                self.with(*node, |machine| machine.engine.set_latency(*latency));
            }
            Fault::WrongClock { node, by_millis } => {
                self.with(*node, |machine| machine.clock.err(number, *by_millis));
            }
            Fault::RestartAlone { node, is_copied } => {
                if *is_copied {
                    self.with(*node, |machine| machine.identity.exchange(None));
                }
                self.stop(*node, MemoryEngine::kill);
                self.start_idle();
            }
            Fault::ExchangedDisks { nodes } => self.exchange(number, *nodes),
            Fault::ForeignDisk { node, choice } => self.put_in_foreign(number, *node, *choice),
            Fault::StaleTopology { node } => {
                self.with(*node, |machine| machine.is_stale.set(true));
                self.stop(*node, MemoryEngine::kill);
                self.start_idle();
            }
            Fault::SyncError { .. }
            | Fault::WriteError { .. }
            | Fault::DiskFull { .. }
            | Fault::DiskFullOfAll
            | Fault::NoDescriptors { .. }
            | Fault::BackgroundEnd { .. }
            | Fault::Pause { .. }
            | Fault::SlowNode { .. }
            | Fault::Partition { .. }
            | Fault::OneWay { .. }
            | Fault::Bridge { .. }
            | Fault::Delay { .. }
            | Fault::Hold { .. }
            | Fault::CrashPoint { .. }
            | Fault::OlderDisk { .. }
            | Fault::ForgedWord { .. }
            | Fault::Change { .. }
            | Fault::Rejoin { .. }
            | Fault::WrongSecret { .. }
            | Fault::PausedWorkers { .. } => {}
        }
        self.disturb();
    }

    fn end(&mut self, number: usize, event: &FaultEvent) {
        let now = self.sim.elapsed();
        if let Fault::CrashPoint { node, .. } = event.fault {
            self.disarm(node, number);
            if event.fault.restarts().is_some() {
                self.facts.disturbed.push((event.at, now));
            }
            return;
        }
        if let Fault::OlderDisk { node, is_image } = event.fault {
            return self.put_back(node, is_image, number, event);
        }
        if event.kind == FaultKind::ForeignDisk && !self.kept.contains_key(&number) {
            return;
        }
        if !event.lasts.is_zero() {
            self.trace.line(now, "driver", &format_args!("{} ends: {}", event.kind.name(), event.fault));
        }
        self.disturb();
        match &event.fault {
            Fault::ReadError { node, .. } => self.with(*node, |machine| machine.engine.clear_unreadable()),
            Fault::SlowDisk { node, .. } => {
                self.with(*node, |machine| machine.engine.set_latency(Duration::ZERO));
            }
            Fault::ExchangedDisks { nodes } if self.exchanged.contains(&number) => {
                self.exchange(number, *nodes);
            }
            Fault::ForeignDisk { .. } => self.take_out_foreign(number),
            Fault::StaleTopology { node } => {
                self.with(*node, |machine| machine.is_stale.set(false));
                self.stop(*node, MemoryEngine::kill);
            }
            // A node with this error takes no more writes until it is restarted; the driver restarts it.
            Fault::SyncError { node } | Fault::WriteError { node } => {
                self.stop(*node, MemoryEngine::kill);
            }
            Fault::WrongClock { node, .. } => {
                self.with(*node, |machine| machine.clock.end_error(number));
                self.facts.wrong_clocks.push(Stall { node: *node, since: event.at, until: now });
            }
            Fault::RestartAlone { node, is_copied } => {
                let (node, is_copied) = (*node, *is_copied);
                self.facts.alone.push(Alone { node, since: event.at, until: now, is_copied });
            }
            Fault::PausedWorkers { node, choice } => {
                self.order(*node, Order::Pause { choice: *choice, time: None });
            }
            _ => {}
        }
        self.stalled(event, now);
        if event.kind.disturbs() {
            self.facts.disturbed.push((event.at, now));
        }
        self.start_idle();
    }

    /// Records for which nodes the fault that ends now excuses late answers.
    fn stalled(&mut self, event: &FaultEvent, now: Duration) {
        let nodes = (0..self.plan.machines()).filter(|node| event.fault.holds_back(*node));
        let stall = |node| Stall { node, since: event.at, until: now };
        self.facts.stalls.extend(nodes.map(stall));
    }

    /// Sets engines, scheduling and links as the active faults require.
    fn disturb(&mut self) {
        for machine in &self.machines {
            let node = machine.node;
            let fault = self.active.values().find_map(|event| match event.fault {
                Fault::DiskFull { node: of } if of == node => Some(memory::Fault::DiskFull),
                Fault::DiskFullOfAll => Some(memory::Fault::DiskFull),
                Fault::NoDescriptors { node: of } if of == node => Some(memory::Fault::NoDescriptors),
                Fault::BackgroundEnd { node: of } if of == node => Some(memory::Fault::BackgroundEnded),
                Fault::WriteError { node: of } if of == node => Some(memory::Fault::WriteError),
                Fault::SyncError { node: of } if of == node => Some(memory::Fault::SyncError),
                _ => None,
            });
            machine.engine.set_fault(fault);
            let are_wrong = self.active.values().any(|event| event.fault == Fault::WrongSecret { node });
            machine.secret_file.set(are_wrong);
        }
        let slowest = self.active.values().filter_map(|event| match event.fault {
            Fault::Delay { latency_max } => Some(latency_max),
            _ => None,
        });
        let latency_max = slowest.max().unwrap_or(self.plan.latency.1);
        for low in 0..self.plan.machines() {
            for high in low + 1..self.plan.machines() {
                let (a, b) = (host_of(low), host_of(high));
                self.sim.set_link_max_message_latency(a.as_str(), b.as_str(), latency_max);
                let way = self.way(low, high);
                if self.ways.insert((low, high), way).unwrap_or_default() == way {
                    continue;
                }
                self.sim.release(a.as_str(), b.as_str());
                self.sim.repair(a.as_str(), b.as_str());
                match way {
                    Way::Open => {}
                    Way::Held => self.sim.hold(a.as_str(), b.as_str()),
                    Way::Cut(true, true) => self.sim.partition(a.as_str(), b.as_str()),
                    Way::Cut(true, _) => self.sim.partition_oneway(a.as_str(), b.as_str()),
                    Way::Cut(..) => self.sim.partition_oneway(b.as_str(), a.as_str()),
                }
            }
        }
    }

    /// The state of the link between two nodes under the active faults; a cut wins over a hold.
    fn way(&self, low: u16, high: u16) -> Way {
        let (mut is_held, mut from_low, mut from_high) = (false, false, false);
        for event in self.active.values() {
            match &event.fault {
                Fault::RestartAlone { node, .. } if [low, high].contains(node) => {
                    (from_low, from_high) = (true, true);
                }
                Fault::Partition { side } if side.contains(&low) != side.contains(&high) => {
                    (from_low, from_high) = (true, true);
                }
                Fault::Bridge { side, bridge }
                    if side.contains(&low) != side.contains(&high) && ![low, high].contains(bridge) =>
                {
                    (from_low, from_high) = (true, true);
                }
                Fault::OneWay { source, target } => {
                    from_low |= (*source, *target) == (low, high);
                    from_high |= (*source, *target) == (high, low);
                }
                Fault::Hold { source, target } => {
                    is_held |= (*source.min(target), *source.max(target)) == (low, high);
                }
                _ => {}
            }
        }
        match (from_low, from_high, is_held) {
            (false, false, false) => Way::Open,
            (false, false, true) => Way::Held,
            (from_low, from_high, _) => Way::Cut(from_low, from_high),
        }
    }

    /// Decides for each machine whether it runs in this step.
    fn pace(&self) {
        let now = self.sim.elapsed();
        for machine in &self.machines {
            let is_paused = self.active.values().any(|event| match event.fault {
                Fault::Pause { node } => node == machine.node,
                Fault::SlowNode { node, every } => {
                    node == machine.node && now.as_nanos() % every.max(TICK).as_nanos() >= TICK.as_nanos()
                }
                _ => false,
            });
            if is_paused != machine.pace.is_paused.get() {
                machine.pace.set_paused(is_paused);
            }
        }
    }

    /// Gives an order to a node. Returns whether it was taken. A second pause of the same worker replaces the
    /// first.
    fn order(&self, node: u16, order: Order) -> bool {
        self.machines.get(usize::from(node)).is_some_and(|machine| machine.state.give(order))
    }

    /// Ends the software of a machine, and applies `then` to its disk.
    fn stop(&mut self, node: u16, then: impl FnOnce(&MemoryEngine)) {
        let Some(machine) = self.machines.get(usize::from(node)) else { return };
        if self.down.insert(node) {
            self.sim.crash(machine.host.as_str());
            machine.state.close();
        }
        then(&machine.engine);
        machine.power.set_off(false);
    }

    /// Starts every machine that no active fault keeps down.
    fn start_idle(&mut self) {
        let is_kept_down = |node: u16| {
            self.active.values().any(|event| match &event.fault {
                Fault::Restart { node: of } | Fault::Wipe { node: of } => *of == node,
                Fault::PowerLoss { node: of, .. } => of.is_none_or(|of| of == node),
                _ => false,
            })
        };
        let idle: Vec<u16> = self.down.iter().copied().filter(|node| !is_kept_down(*node)).collect();
        for node in idle {
            self.down.remove(&node);
            let host = host_of(node);
            self.trace.line(self.sim.elapsed(), &host, &"starts");
            self.sim.bounce(host.as_str());
        }
    }

    fn with(&self, node: u16, then: impl FnOnce(&Machine)) {
        if let Some(machine) = self.machines.get(usize::from(node)) {
            then(machine);
        }
    }
}
