//! A machine: what outlives a process of it, its scheduling, and the steps at which it is to crash.

use crate::clock::SimClock;
use crate::forge::Forgery;
use crate::identity::{Record, SimIdentity};
use crate::net::{Power, host_of};
use crate::plan::Plan;
use crate::seed::{Seed, SimRng};
use kvorum_server::crash::{self, Point, Watcher};
use kvorum_server::peer::{PeerAuth, Secrets};
use kvorum_server::storage::Keyspace;
use kvorum_server::storage::memory::{DiskCopy, MemoryEngine};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

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
    /// Whether it is started to join.
    pub joins: bool,
    /// Its file of peer secrets.
    pub secret_file: SecretFile,
    /// The receiver of the driver's orders to the running software.
    pub state: ThreadState,
}

/// A machine's file of peer secrets, which its processes watch from their start on, also while they wait to join.
#[derive(Clone, Default)]
pub struct SecretFile(Rc<RefCell<Secret>>);

#[derive(Default)]
struct Secret {
    is_wrong: bool,
    /// What the newest process proves to its peers: it has the file's secrets.
    watched_by: Option<Arc<PeerAuth>>,
}

impl SecretFile {
    /// Gives the process its secrets, and each later change of them.
    pub fn watched_by(&self, auth: Arc<PeerAuth>) {
        let mut file = self.0.borrow_mut();
        auth.replace(secrets_of(file.is_wrong));
        file.watched_by = Some(auth);
    }

    /// Puts a wrong secret into the file, or the right one.
    pub(super) fn set(&self, is_wrong: bool) {
        let mut file = self.0.borrow_mut();
        let was_wrong = std::mem::replace(&mut file.is_wrong, is_wrong);
        if let Some(auth) = file.watched_by.as_ref().filter(|_| was_wrong != is_wrong) {
            auth.replace(secrets_of(is_wrong));
        }
    }
}

/// The secrets of a node's file. No other node accepts the wrong one.
fn secrets_of(are_wrong: bool) -> Secrets {
    let text: &[u8] = if are_wrong {
        b"a wrong secret, which no other node of the simulation has"
    } else {
        b"the secret that the nodes of the simulation share"
    };
    Secrets::parse(text).unwrap_or_default()
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
    /// An operator changes the configuration of the cluster here.
    Change {
        /// Chooses the change.
        choice: u64,
    },
}

type Orders = Box<dyn Fn(Order)>;

/// The place where the driver gives orders to a machine's software; without a running node, orders are not
/// taken.
#[derive(Clone, Default)]
pub struct ThreadState(Rc<RefCell<Option<Orders>>>);

impl ThreadState {
    /// Gives all orders to `take` from now on.
    pub fn open(&self, take: impl Fn(Order) + 'static) {
        self.0.replace(Some(Box::new(take)));
    }

    /// Stops taking orders.
    pub fn close(&self) {
        self.0.replace(None);
    }

    /// Whether the order was taken.
    pub(super) fn give(&self, order: Order) -> bool {
        self.0.borrow().as_ref().map(|take| take(order)).is_some()
    }
}

/// The scheduling of a machine's software: pauses it, and records the named steps that it takes.
pub(super) struct Pace {
    pub(super) is_paused: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    watcher: Watcher,
}

impl Pace {
    pub(super) fn set_paused(&self, is_paused: bool) {
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
pub(super) struct Traps {
    /// The active faults, by their place in the plan: the step, and how often it must still be reached.
    pub(super) set: RefCell<BTreeMap<usize, (Point, u64)>>,
    pub(super) sprung: Cell<Option<(usize, Point)>>,
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
pub(super) struct Machine {
    pub(super) node: u16,
    pub(super) host: String,
    pub(super) clock: Arc<SimClock>,
    pub(super) engine: Arc<MemoryEngine>,
    pub(super) identity: Arc<SimIdentity>,
    pub(super) power: Power,
    pub(super) traps: Rc<Traps>,
    pub(super) pace: Rc<Pace>,
    pub(super) lives: Rc<Cell<u64>>,
    pub(super) is_stale: Rc<Cell<bool>>,
    pub(super) joins: Rc<Cell<bool>>,
    pub(super) secret_file: SecretFile,
    pub(super) state: ThreadState,
    /// The number of stores that it had set aside at the last check.
    pub(super) asides: Cell<u64>,
    /// Copies of its disk and the time of each, by the fault's place in the plan.
    pub(super) copies: RefCell<BTreeMap<usize, (Duration, DiskCopy, Record)>>,
}

impl Machine {
    pub(super) fn new(plan: &Plan, node: u16) -> Self {
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
            joins: Rc::new(Cell::new(node >= plan.nodes)),
            secret_file: SecretFile::default(),
            state: ThreadState::default(),
            asides: Cell::default(),
            copies: RefCell::default(),
        }
    }

    /// The software of all runs, for the simulation to start.
    pub(super) fn software(&self, seed: Seed, start: Start) -> impl Fn() -> Software + 'static {
        let (node, lives) = (self.node, Rc::clone(&self.lives));
        let (clock, engine) = (Arc::clone(&self.clock), Arc::clone(&self.engine));
        let identity = Arc::clone(&self.identity);
        let (pace, is_stale, power) = (Rc::clone(&self.pace), Rc::clone(&self.is_stale), self.power.clone());
        let (state, secret_file) = (self.state.clone(), self.secret_file.clone());
        let joins = Rc::clone(&self.joins);
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
                is_stale: is_stale.get() && engine.row_count(Keyspace::Meta) > 0 && !joins.get(),
                joins: joins.get(),
                secret_file: secret_file.clone(),
                state: state.clone(),
            });
            Box::pin(Rc::clone(&pace).run(software))
        }
    }
}
