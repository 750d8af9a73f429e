//! The cluster: machines with their software, and the driver that advances time and injects faults.
//!
//! The caller provides the software of a machine ([`Start`]), once for each run of the process. The driver
//! owns everything that outlives a process: disk, clock, scheduling. It steps the simulation, begins and ends
//! the plan's faults, and records the facts that the oracle needs ([`Facts`]).

mod disks;

use crate::clock::{EPOCH, SimClock};
use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::forge::Forgery;
use crate::identity::{Record, SimIdentity};
use crate::invariants::facts::{Alone, Facts, LossKind, Stall};
use crate::net::{Power, host_of};
use crate::node::STRANGER;
use crate::plan::Plan;
use crate::seed::{Seed, SimRng};
use crate::trace::Trace;
use kvorum_server::crash::{self, Point, Watcher};
use kvorum_server::storage::memory::{self, DiskCopy, MemoryEngine};
use kvorum_server::storage::{Engine, Keyspace};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long one step of the simulation is.
pub const TICK: Duration = Duration::from_millis(1);

/// The software of a machine in one run of its process.
pub type Software = Pin<Box<dyn Future<Output = turmoil::Result>>>;
/// A function that starts a machine's software; it is called for each run of the process.
pub type Start = Rc<dyn Fn(Life) -> Software>;

/// The machine's parts, given to the software for one run of the process.
pub struct Life {
    /// The node.
    pub node: u16,
    /// How many runs there were before.
    pub number: u64,
    /// The machine's clock.
    pub clock: Arc<SimClock>,
    /// The randomness of this run.
    pub rng: Arc<SimRng>,
    /// The machine's disk.
    pub engine: Arc<MemoryEngine>,
    /// The identity of the machine's disk.
    pub identity: Arc<SimIdentity>,
    /// The machine's power.
    pub power: Power,
    /// Whether it uses an outdated list of nodes.
    pub is_stale: bool,
    /// Whether its file of peer secrets has a wrong one now: it changes while the process runs or tries to start.
    pub has_wrong_secret: Rc<Cell<bool>>,
    /// The receiver of the driver's orders to the running software.
    pub desk: Desk,
}

/// An order of the driver to a machine's software.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// An operator pauses workers, or resumes them.
    Pause {
        /// Chooses the workers.
        choice: u64,
        /// For how long; `None` resumes them.
        time: Option<Duration>,
    },
    /// A forger on this machine pretends to be its node.
    Forge(Forgery),
    /// The file of peer secrets has changed: to a wrong secret, or back.
    Secrets {
        /// Whether the secret is wrong.
        are_wrong: bool,
    },
}

type Orders = Box<dyn Fn(Order)>;

/// The place where the driver gives orders to a machine's software; without a running node, orders are not
/// taken.
#[derive(Clone, Default)]
pub struct Desk(Rc<RefCell<Option<Orders>>>);

impl Desk {
    /// Gives all orders to `take` from now on.
    pub fn open(&self, take: impl Fn(Order) + 'static) {
        self.0.replace(Some(Box::new(take)));
    }

    /// Stops taking orders.
    pub fn close(&self) {
        self.0.replace(None);
    }

    /// Whether the order was taken.
    fn give(&self, order: Order) -> bool {
        self.0.borrow().as_ref().map(|take| take(order)).is_some()
    }
}

/// The scheduling of a machine's software: pauses it, and records the named steps that it takes.
struct Pace {
    is_paused: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    watcher: Watcher,
}

impl Pace {
    fn set_paused(&self, is_paused: bool) {
        self.is_paused.set(is_paused);
        if let Some(waker) = self.waker.take().filter(|_| !is_paused) {
            waker.wake();
        }
    }

    /// Runs `software` with all tasks that it spawns, except while paused. A pause works as SIGSTOP does:
    /// none of its tasks runs, while time and the network continue.
    async fn run(self: Rc<Self>, software: Software) -> turmoil::Result {
        let local = tokio::task::LocalSet::new();
        let mut running = pin!(local.run_until(software));
        poll_fn(|cx| {
            if self.is_paused.get() {
                self.waker.replace(Some(cx.waker().clone()));
                return Poll::Pending;
            }
            crash::watched(&self.watcher, || running.as_mut().poll(cx))
        })
        .await
    }
}

/// The named steps at which a machine will crash, and the one at which it did.
#[derive(Debug, Default)]
struct Traps {
    /// The active faults, by their place in the plan: the step, and how often it must still be reached.
    set: RefCell<BTreeMap<usize, (Point, u64)>>,
    sprung: Cell<Option<(usize, Point)>>,
}

impl Traps {
    /// Takes a step. Returns whether the machine crashes at it: then none of its further effects is seen or
    /// kept.
    fn step(&self, point: Point) -> bool {
        if self.sprung.get().is_some() {
            return false;
        }
        for (number, (at, left)) in self.set.borrow_mut().iter_mut().filter(|(_, (at, _))| *at == point) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.sprung.set(Some((*number, *at)));
                return true;
            }
        }
        false
    }
}

/// The parts of a machine that outlive a process.
struct Machine {
    node: u16,
    host: String,
    clock: Arc<SimClock>,
    engine: Arc<MemoryEngine>,
    identity: Arc<SimIdentity>,
    power: Power,
    traps: Rc<Traps>,
    pace: Rc<Pace>,
    lives: Rc<Cell<u64>>,
    is_stale: Rc<Cell<bool>>,
    has_wrong_secret: Rc<Cell<bool>>,
    desk: Desk,
    /// The number of stores that it had set aside at the last check.
    asides: Cell<u64>,
    /// Copies of its disk and the time of each, by the fault's place in the plan.
    copies: RefCell<BTreeMap<usize, (Duration, DiskCopy, Record)>>,
}

impl Machine {
    fn new(plan: &Plan, node: u16) -> Self {
        let clock = plan.clocks.get(usize::from(node)).copied();
        let (offset, drift) = clock.map_or((0, 0), |clock| (clock.offset_millis, clock.drift_ppm));
        let (engine, power, traps) =
            (Arc::new(MemoryEngine::new()), Power::default(), Rc::new(Traps::default()));
        let watcher: Watcher = {
            let (engine, power, traps) = (Arc::clone(&engine), power.clone(), Rc::clone(&traps));
            Rc::new(move |point| {
                if traps.step(point) {
                    engine.cut_off();
                    power.set_off(true);
                }
            })
        };
        let pace = Pace { is_paused: Cell::default(), waker: RefCell::default(), watcher };
        Self {
            node,
            host: host_of(node),
            clock: Arc::new(SimClock::of_simulation(offset, drift)),
            engine,
            identity: Arc::default(),
            power,
            traps,
            pace: Rc::new(pace),
            lives: Rc::default(),
            is_stale: Rc::default(),
            has_wrong_secret: Rc::default(),
            desk: Desk::default(),
            asides: Cell::default(),
            copies: RefCell::default(),
        }
    }

    /// The software of all runs, for the simulation to start.
    fn software(&self, seed: Seed, start: Start) -> impl Fn() -> Software + 'static {
        let (node, lives) = (self.node, Rc::clone(&self.lives));
        let (clock, engine) = (Arc::clone(&self.clock), Arc::clone(&self.engine));
        let identity = Arc::clone(&self.identity);
        let (pace, is_stale, power) = (Rc::clone(&self.pace), Rc::clone(&self.is_stale), self.power.clone());
        let (desk, has_wrong_secret) = (self.desk.clone(), Rc::clone(&self.has_wrong_secret));
        move || {
            let number = lives.replace(lives.get() + 1);
            let software = start(Life {
                node,
                number,
                clock: Arc::clone(&clock),
                rng: Arc::new(SimRng::of_node(seed, node, number)),
                engine: Arc::clone(&engine),
                identity: Arc::clone(&identity),
                power: power.clone(),
                // A store that is created under a wrong list belongs to those nodes permanently: an
                // operator's mistake, not a fault.
                is_stale: is_stale.get() && engine.row_count(Keyspace::Meta) > 0,
                has_wrong_secret: Rc::clone(&has_wrong_secret),
                desk: desk.clone(),
            });
            Box::pin(Rc::clone(&pace).run(software))
        }
    }
}

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
        let machines: Vec<Machine> = (0..plan.nodes).map(|node| Machine::new(&plan, node)).collect();
        for machine in &machines {
            sim.host(machine.host.as_str(), machine.software(plan.seed, Rc::clone(start)));
        }
        // In an outdated list of nodes it replaces one of the current nodes.
        sim.host(STRANGER, || async { std::future::pending::<turmoil::Result>().await });
        let facts = Facts {
            nodes: plan.nodes,
            epoch: EPOCH,
            clock_error: plan.clock_error(),
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

    /// A node's disk.
    pub fn engine(&self, node: u16) -> Option<&Arc<MemoryEngine>> {
        self.machines.get(usize::from(node)).map(|machine| &machine.engine)
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

    fn begin(&mut self, number: usize, event: &FaultEvent) {
        let now = self.sim.elapsed();
        if let Fault::OlderDisk { node, .. } = event.fault {
            // The effect begins when the copy comes back.
            self.with(node, |machine| {
                let copy = (now, machine.engine.copy_of_disk(), machine.identity.recorded());
                machine.copies.borrow_mut().insert(number, copy);
            });
            return;
        }
        if let Fault::CrashPoint { .. } = event.fault {
            // The effect begins when the step is reached. Until then the fault is only a restart, if it has
            // one.
            if let Some(node) = event.fault.restarts() {
                self.stop(node, MemoryEngine::kill);
                self.start_idle();
            }
            return;
        }
        if event.kind == FaultKind::ForeignDisk && !self.know_their_cluster() {
            return;
        }
        let order = match event.fault {
            Fault::PausedWorkers { node, choice } => {
                Some((node, Order::Pause { choice, time: Some(event.lasts) }))
            }
            Fault::ForgedWord { liar, node, choice } => Some((liar, Order::Forge(Forgery { node, choice }))),
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
                (0..self.plan.nodes)
                    .for_each(|node| self.lose_power(node, keep.rotate_left(u32::from(node))));
            }
            Fault::Wipe { node } => {
                self.lose(*node, LossKind::Wiped, Duration::ZERO);
                self.with(*node, |machine| machine.identity.exchange(None));
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
        let nodes = (0..self.plan.nodes).filter(|node| event.fault.holds_back(*node));
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
            if machine.has_wrong_secret.replace(are_wrong) != are_wrong {
                machine.desk.give(Order::Secrets { are_wrong });
            }
        }
        let slowest = self.active.values().filter_map(|event| match event.fault {
            Fault::Delay { latency_max } => Some(latency_max),
            _ => None,
        });
        let latency_max = slowest.max().unwrap_or(self.plan.latency.1);
        for low in 0..self.plan.nodes {
            for high in low + 1..self.plan.nodes {
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
        self.machines.get(usize::from(node)).is_some_and(|machine| machine.desk.give(order))
    }

    /// Ends the software of a machine, and applies `then` to its disk.
    fn stop(&mut self, node: u16, then: impl FnOnce(&MemoryEngine)) {
        let Some(machine) = self.machines.get(usize::from(node)) else { return };
        if self.down.insert(node) {
            self.sim.crash(machine.host.as_str());
            machine.desk.close();
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
