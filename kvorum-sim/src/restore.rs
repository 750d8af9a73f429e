//! Restores: the records of a cut are written into another cluster, as `kvorum backup restore` writes them, while clients
//! write there, clocks differ and faults happen. What is not written when the faults end is tried again until it is.
//!
//! Each record is one operation of the history, however often it is tried: a PUT of the value on the condition that there is
//! none. So the oracle judges it as any other. A node is ordered directly, by a task on its own host, as a program on the
//! node's own machine would do it over HTTP.

use crate::history::{Condition, Doubt, Operation, Outcome, Request, WriteId, write_of};
use crate::load::{Load, PATIENCE};
use crate::net::SimConnector;
use crate::node::Nodes;
use crate::plan::Plan;
use crate::run::Run;
use crate::seed::Stream;
use crate::trace::Trace;
use bytes::Bytes;
use kvorum_core::{Key, Token, Value, Version};
use kvorum_server::coordinator::{Coordinator, Decided};
use kvorum_server::http::server::Phase;
use kvorum_server::peer::Connector;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Records that are under way at a time.
const WRITERS: u16 = 3;
/// How long a writer rests after an attempt that came to nothing.
const REST: Duration = Duration::from_millis(50);
/// The longest pause between two records.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// A record of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its value.
    pub value: Bytes,
    /// The version that clients knew.
    pub etag: Version,
    /// The write of the value.
    pub write: WriteId,
}

/// The records of a cut that a backup would have, without those that expire and without counters.
pub type Backup = BTreeMap<Bytes, Saved>;

/// The backup of a run's last cut; `None` if its plan restores none, or a part of the keys was not covered.
pub fn backup_of(run: &Run) -> Option<Backup> {
    let cut = run.facts.cuts.last().filter(|_| run.plan.is_restored)?;
    let bits = crate::plan::PARTITION_BITS;
    let is_covered =
        |key: &Bytes| cut.is_covered.get(usize::from(Token::of(key).partition(bits).0)) == Some(&true);
    let saved = cut.records.iter().filter(|(key, record)| record.expires.is_none() && is_covered(key));
    let saved = saved.filter_map(|(key, record)| {
        let Value::Present(value) = &record.value else { return None };
        let write = write_of(value)?;
        Some((key.clone(), Saved { value: value.clone(), etag: record.etag(), write }))
    });
    Some(saved.collect())
}

/// An order to a node: write a record.
struct Order {
    key: Key,
    saved: Saved,
    /// Told what came of it; dropped where that is not known.
    answer: oneshot::Sender<Decided>,
}

/// Where the nodes take orders, by number.
#[derive(Clone, Default)]
pub struct Doors(Rc<RefCell<BTreeMap<u16, mpsc::UnboundedSender<Order>>>>);

/// Carries out the orders to node `number`, on its host, while its process runs.
pub async fn serve(number: u16, doors: Doors, nodes: Nodes, connector: SimConnector) {
    let (sender, mut orders) = mpsc::unbounded_channel();
    doors.0.borrow_mut().insert(number, sender);
    let connector: Rc<dyn Connector> = Rc::new(connector);
    // With links of its own: it is not on the thread that serves clients.
    let mut operator: Option<Rc<Coordinator>> = None;
    while let Some(Order { key, saved, answer }) = orders.recv().await {
        let ready = nodes.get(number).filter(|node| node.phase() == Phase::Ready);
        let Some(shared) = ready.and_then(|node| node.shared().cloned()) else { continue };
        let coordinator =
            operator.get_or_insert_with(|| Coordinator::start(Arc::clone(&shared), &connector, 1));
        let coordinator = Rc::clone(coordinator);
        tokio::task::spawn_local(async move {
            let quorum = coordinator.default_quorum();
            let done = coordinator.restore(key, saved.value, saved.etag, None, quorum).await;
            // The writer may have given up.
            let _ = done.map(|done| answer.send(done));
        });
    }
}

/// Restores a backup into the cluster of `plan`.
pub struct Restore {
    plan: Plan,
    load: Rc<Load>,
    doors: Doors,
    trace: Trace,
    left: RefCell<Vec<(Bytes, Saved)>>,
    under_way: Cell<u16>,
}

impl Restore {
    /// The restore of `backup`.
    pub fn new(plan: Plan, backup: &Backup, load: Rc<Load>, doors: Doors, trace: Trace) -> Rc<Self> {
        let mut left: Vec<_> = backup.iter().map(|(key, saved)| (key.clone(), saved.clone())).collect();
        plan.seed.stream("order of restore").shuffle(&mut left);
        let (left, under_way) = (RefCell::new(left), Cell::new(WRITERS));
        Rc::new(Self { plan, load, doors, trace, left, under_way })
    }

    /// Whether all records have been tried until their outcome was final.
    pub fn is_done(&self) -> bool {
        self.under_way.get() == 0
    }

    /// Runs it. Must run where local tasks can be spawned.
    ///
    /// # Errors
    /// None; the type is the simulation's.
    pub async fn run(self: Rc<Self>) -> turmoil::Result {
        let writers = (0..WRITERS).map(|number| tokio::task::spawn_local(Rc::clone(&self).write(number)));
        for writer in writers.collect::<Vec<_>>() {
            let _ = writer.await;
        }
        Ok(())
    }

    async fn write(self: Rc<Self>, number: u16) {
        let mut stream = self.plan.seed.numbered("restoring", u64::from(number));
        loop {
            tokio::time::sleep(stream.duration(Duration::from_millis(1), PAUSE_MAX)).await;
            let next = self.left.borrow_mut().pop();
            let Some((key, saved)) = next else { break };
            let operation = self.restore(&mut stream, number, key, saved).await;
            self.trace.line(now(), "restore", &operation);
            self.load.note(operation);
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    /// Writes a record, again and again until its outcome is final.
    async fn restore(&self, stream: &mut Stream, number: u16, key: Bytes, saved: Saved) -> Operation {
        let invoked = now();
        let mut is_any_unknown = false;
        let (node, outcome) = loop {
            let node = stream.between_u16(0, self.plan.nodes - 1);
            match self.attempt(node, &key, &saved).await {
                Some(Decided::Written(written)) => {
                    break (node, Outcome::Acknowledged { version: written.version });
                }
                // An earlier attempt.
                Some(Decided::Failed { current: Some(version) }) if version == saved.etag => {
                    break (node, Outcome::Acknowledged { version });
                }
                // An earlier attempt may have been replaced by now.
                Some(Decided::Failed { .. }) if is_any_unknown => {
                    break (node, Outcome::Unknown(Doubt::Timeout));
                }
                Some(Decided::Failed { current }) => break (node, Outcome::Failed { current }),
                None => is_any_unknown = true,
            }
            tokio::time::sleep(REST).await;
        };
        Operation {
            id: saved.write,
            client: u16::MAX - number,
            node,
            key,
            request: Request::Put { ttl: None },
            condition: Condition::Absent,
            replicas: self.plan.default_replicas(),
            invoked,
            returned: now(),
            outcome,
        }
    }

    /// One attempt; `None` where its outcome is not known.
    async fn attempt(&self, node: u16, key: &Bytes, saved: &Saved) -> Option<Decided> {
        let (answer, told) = oneshot::channel();
        let order = Order { key: Key::new(key.clone()).ok()?, saved: saved.clone(), answer };
        let door = self.doors.0.borrow().get(&node).cloned()?;
        door.send(order).ok()?;
        tokio::time::timeout(PATIENCE, told).await.ok()?.ok()
    }
}

fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}
