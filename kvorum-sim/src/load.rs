//! The clients: they carry out the plan, and record their operations and results.
//!
//! All of them run on one host, whose links are never disturbed, each with connections of its own. They go
//! through the [`Stage`]s that the driver sets: load, a last write through every node, and final reads of
//! every key.

use crate::counters::{self, ADDS_MAX, CounterOperation};
use crate::history::{AckFrom, Condition, Operation, Outcome, Request};
use crate::http_client::{Failure, HttpClient, outcome_of, request_of};
use crate::net::authority_of;
use crate::plan::{ClientPlan, KeyPlan, Mix, Plan};
use crate::seed::Stream;
use crate::trace::Trace;
use bytes::Bytes;
use kvorum_core::Version;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How long a client waits for an answer. Longer than any answer within its deadline takes; shorter than most
/// faults, so that a client whose node does not run continues at another node.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long a client rests when a node takes no connection: each try uses up one of its host's ports.
const REST: Duration = Duration::from_millis(50);
/// How often clients check whether the next stage has begun.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Clients of each counter.
const COUNTERS_CLIENTS: u16 = 3;
/// The longest pause of such a client; some seconds of load use up all adds.
const COUNTING_PAUSE_MAX: Duration = Duration::from_millis(600);
/// Clients at the final reads.
const READERS: usize = 8;

/// The current task of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The plan's load, while faults begin and end.
    Load,
    /// A write through every node, each to a key of its own, after all faults have ended.
    LastWrites,
    /// Reads of every key, after the cluster is at rest.
    FinalReads,
    /// The same, after backups of all nodes have been put back and the cluster is at rest again.
    RestoredReads,
}

/// The state that clients share, and the driver reads.
pub struct Load {
    plan: Plan,
    stage: Cell<Stage>,
    done: Cell<Option<Stage>>,
    next: Cell<u64>,
    operations: RefCell<Vec<Operation>>,
    counted: RefCell<Vec<CounterOperation>>,
    /// Of each counter, the digit of its next add.
    digits: RefCell<BTreeMap<u16, u32>>,
    /// The nodes that are asked: all that ever were members.
    asked: RefCell<Vec<u16>>,
    /// The members of now.
    members: RefCell<Vec<u16>>,
    /// The version that each client knows of each key.
    seen: RefCell<BTreeMap<(u16, Bytes), Version>>,
    trace: Trace,
}

impl Load {
    /// The load of `plan`.
    pub fn new(plan: Plan, trace: Trace) -> Rc<Self> {
        let nodes: Vec<u16> = (0..plan.nodes).collect();
        Rc::new(Self {
            asked: RefCell::new(nodes.clone()),
            members: RefCell::new(nodes),
            plan,
            stage: Cell::new(Stage::Load),
            done: Cell::new(None),
            next: Cell::new(1),
            operations: RefCell::default(),
            counted: RefCell::default(),
            digits: RefCell::default(),
            seen: RefCell::default(),
            trace,
        })
    }

    /// Makes all operations that begin from now on have numbers from `id` on.
    pub fn number_from(&self, id: u64) {
        self.next.set(id);
    }

    /// Says which nodes are members now.
    pub fn note_members(&self, members: &BTreeSet<u16>) {
        self.members.replace(members.iter().copied().collect());
        let mut asked = self.asked.borrow_mut();
        let before = asked.len();
        let new: Vec<u16> = members.iter().copied().filter(|node| !asked.contains(node)).collect();
        asked.extend(new);
        if asked.len() > before {
            asked.sort_unstable();
        }
    }

    /// The nodes that are asked: all that ever were members.
    pub fn asked(&self) -> Vec<u16> {
        self.asked.borrow().clone()
    }

    /// One of the nodes that are asked.
    fn node(&self, stream: &mut Stream) -> u16 {
        stream.pick(&self.asked.borrow()).copied().unwrap_or(0)
    }

    /// Adds an operation that was carried out elsewhere.
    pub fn note(&self, operation: Operation) {
        self.operations.borrow_mut().push(operation);
    }

    /// Starts `stage`.
    pub fn begin(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// Whether every client has finished `stage`.
    pub fn is_done(&self, stage: Stage) -> bool {
        self.done.get().is_some_and(|done| done >= stage)
    }

    /// Takes the clients' operations, in the order of their ends.
    pub fn take(&self) -> Vec<Operation> {
        self.operations.take()
    }

    /// Takes the operations on counters.
    pub fn take_counters(&self) -> Vec<CounterOperation> {
        self.counted.take()
    }

    /// Runs all clients. Must run where local tasks can be spawned.
    ///
    /// # Errors
    /// None; the type is the simulation's.
    pub async fn run(self: Rc<Self>) -> turmoil::Result {
        let clients = (0u16..).zip(self.plan.clients.clone());
        let counters = 0..self.plan.counters * COUNTERS_CLIENTS;
        let counting = counters.map(|number| tokio::task::spawn_local(Rc::clone(&self).count(number)));
        let counting: Vec<_> = counting.collect();
        self.all(clients.map(|(number, client)| Rc::clone(&self).client(number, client))).await;
        for client in counting {
            let _ = client.await;
        }
        self.finish(Stage::Load, Stage::LastWrites).await;
        Rc::clone(&self).last_writes().await;
        self.finish(Stage::LastWrites, Stage::FinalReads).await;
        Rc::clone(&self).read_all().await;
        if self.plan.backups.is_some() {
            self.finish(Stage::FinalReads, Stage::RestoredReads).await;
            Rc::clone(&self).read_all().await;
        }
        self.done.set(Some(Stage::RestoredReads));
        Ok(())
    }

    /// A client that adds to a counter and reads it, until the load ends.
    async fn count(self: Rc<Self>, number: u16) {
        let counter = number / COUNTERS_CLIENTS;
        let mut stream = self.plan.seed.numbered("counting", u64::from(number));
        let mut http = HttpClient::new();
        loop {
            tokio::time::sleep(stream.duration(Duration::from_millis(1), COUNTING_PAUSE_MAX)).await;
            if now() >= self.plan.length {
                return;
            }
            let node = self.node(&mut stream);
            let is_read = stream.percent(40);
            let digit = if is_read { None } else { self.next_digit(counter) };
            self.perform_on_counter(&mut http, number, node, counter, digit).await;
        }
    }

    /// The digit of a counter's next add; none once all are used.
    fn next_digit(&self, counter: u16) -> Option<u32> {
        let mut digits = self.digits.borrow_mut();
        let next = digits.entry(counter).or_default();
        let digit = (*next < ADDS_MAX).then_some(*next);
        *next += u32::from(digit.is_some());
        digit
    }

    async fn perform_on_counter(
        &self,
        http: &mut HttpClient,
        client: u16,
        node: u16,
        counter: u16,
        digit: Option<u32>,
    ) {
        let id = self.next.replace(self.next.get() + 1);
        let (key, authority) = (counters::key_of(counter), authority_of(node));
        let invoked = now();
        let message = counters::request_of(&authority, &key, digit);
        let answer = http.send(&authority, message, PATIENCE).await;
        let outcome = counters::outcome_of(digit, answer.as_ref().map_err(|failure: &Failure| *failure));
        let (returned, replicas) = (now(), self.plan.default_replicas());
        let operation =
            CounterOperation { id, client, node, key, digit, replicas, invoked, returned, outcome };
        self.trace.line(returned, "counting", &operation);
        self.counted.borrow_mut().push(operation);
        if matches!(answer, Err(Failure::NotSent)) {
            tokio::time::sleep(REST).await;
        }
    }

    /// Reads every key.
    async fn read_all(self: Rc<Self>) {
        let mut http = HttpClient::new();
        // After a restore the numbers are those of the backups.
        if self.stage.get() == Stage::FinalReads {
            let members = self.members.borrow().clone();
            for (counter, node) in (0..self.plan.counters).zip(members.into_iter().cycle()) {
                self.perform_on_counter(&mut http, 0, node, counter, None).await;
            }
        }
        let mut keys: Vec<Vec<KeyPlan>> = vec![Vec::new(); READERS];
        for (at, key) in self.plan.keys.iter().enumerate() {
            if let Some(keys) = keys.get_mut(at % READERS) {
                keys.push(key.clone());
            }
        }
        self.all((0u16..).zip(keys).map(|(number, keys)| Rc::clone(&self).final_reads(number, keys))).await;
    }

    /// Runs clients side by side to their ends.
    async fn all(&self, clients: impl Iterator<Item = impl Future<Output = ()> + 'static>) {
        let clients: Vec<_> = clients.map(tokio::task::spawn_local).collect();
        for client in clients {
            // A client that panics is a bug in this crate; the panic is shown already, and the run fails for
            // the missing operations.
            let _ = client.await;
        }
    }

    async fn finish(&self, stage: Stage, next: Stage) {
        self.done.set(Some(stage));
        while self.stage.get() < next {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn client(self: Rc<Self>, number: u16, client: ClientPlan) {
        let mut stream = self.plan.seed.numbered("client", u64::from(number));
        let mut http = HttpClient::new();
        loop {
            tokio::time::sleep(stream.duration(Duration::from_millis(1), client.pause_max)).await;
            if now() >= self.plan.length {
                return;
            }
            let turn = client.turns.iter().min_by_key(|turn| turn.wait(now()));
            let wait = turn.map_or(Duration::ZERO, |turn| turn.wait(now()));
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
                continue;
            }
            let node = self.node(&mut stream);
            let node = client.home.unwrap_or(node);
            let Some(key) = stream.weighted(&self.weights()).copied().and_then(|at| self.plan.keys.get(at))
            else {
                return;
            };
            let mix = turn.map_or(client.mix, |turn| turn.mix);
            let (request, replicas) = self.request(&mut stream, mix, key);
            let percent = client.conditions.unwrap_or(self.plan.conditions);
            let condition = self.condition(&mut stream, percent, number, key, &request, replicas);
            let bytes = usize::try_from(stream.between(0, self.plan.value_bytes_max as u64)).unwrap_or(0);
            let asked = (request, condition, replicas);
            if !self.perform(&mut http, number, node, &key.key, asked, bytes).await {
                tokio::time::sleep(REST).await;
            }
        }
    }

    fn weights(&self) -> Vec<(u64, usize)> {
        self.plan.keys.iter().enumerate().map(|(at, key)| (key.weight, at)).collect()
    }

    fn request(&self, stream: &mut Stream, mix: Mix, key: &KeyPlan) -> (Request, Option<AckFrom>) {
        let Mix { get, head, put, delete, range } = mix;
        let kinds = [(get, 0), (head, 1), (put, 2), (delete, 3), (range, 4)];
        let kind = stream.weighted(&kinds).copied().unwrap_or(0);
        let replicas = stream.pick(key.replicas_of(kind < 2)).copied();
        let ttl = self.plan.ttl.filter(|ttl| stream.percent(ttl.percent));
        let ttl = ttl.map(|ttl| {
            let is_outliving = ttl.outliving_max.is_some() && stream.percent(50);
            let max = ttl.outliving_max.filter(|_| is_outliving).unwrap_or(ttl.max);
            stream.duration(ttl.min, max)
        });
        let (has_end, has_limit) = (stream.percent(50), stream.percent(30));
        let end =
            stream.pick(&self.plan.keys).map(|end| end.key.clone()).filter(|end| has_end && *end > key.key);
        let limit = Some(stream.between(1, 20)).filter(|_| has_limit);
        match kind {
            0 => (Request::Get, replicas),
            1 => (Request::Head, replicas),
            2 => (Request::Put { ttl }, replicas),
            3 => (Request::Delete, replicas),
            // A range uses the default replicas.
            _ => (Request::Range { end, limit }, None),
        }
    }

    /// The condition of a write; of those that the plan wants, and where the quorum allows one.
    fn condition(
        &self,
        stream: &mut Stream,
        percent: u64,
        client: u16,
        key: &KeyPlan,
        request: &Request,
        replicas: Option<AckFrom>,
    ) -> Condition {
        let is_write = matches!(request, Request::Put { .. } | Request::Delete);
        let (is_wanted, kind) = (stream.percent(percent), stream.between(0, 99));
        let is_few = replicas.is_some_and(|replicas| 2 * replicas.ack <= replicas.from);
        if !is_write || !is_wanted || is_few || !key.overlaps(self.plan.default_replicas()) {
            return Condition::Any;
        }
        match (kind, self.seen.borrow().get(&(client, key.key.clone()))) {
            (0..75, Some(version)) => Condition::Match(*version),
            (75..85, _) => Condition::Present,
            _ => Condition::Absent,
        }
    }

    /// Notes what a client knows of a key after an operation.
    fn note_seen(&self, client: u16, key: &Bytes, request: &Request, outcome: &Outcome) {
        let known = match outcome {
            Outcome::Acknowledged { .. } if *request == Request::Delete => None,
            Outcome::Acknowledged { version }
            | Outcome::Value { version, .. }
            | Outcome::Failed { current: Some(version) } => Some(*version),
            Outcome::Absent | Outcome::Failed { current: None } => None,
            Outcome::Range(_) | Outcome::Refused { .. } | Outcome::Unknown(_) => return,
        };
        let mut seen = self.seen.borrow_mut();
        match known {
            Some(version) => seen.insert((client, key.clone()), version),
            None => seen.remove(&(client, key.clone())),
        };
    }

    /// A write through each node, to a key that is used for nothing else, so that it repairs no other key.
    async fn last_writes(self: Rc<Self>) {
        let mut http = HttpClient::new();
        let members = self.members.borrow().clone();
        for node in members {
            let key = Bytes::from(format!("last-{node}"));
            let asked = (Request::Put { ttl: None }, Condition::Any, None);
            self.perform(&mut http, 0, node, &key, asked, 100).await;
        }
    }

    /// Reads each of `keys` in every way that the plan uses, and from all replicas; the first reader also two ranges.
    async fn final_reads(self: Rc<Self>, number: u16, keys: Vec<KeyPlan>) {
        let mut stream = self.plan.seed.numbered("reader", u64::from(number));
        let mut http = HttpClient::new();
        let everybody = AckFrom::new(self.plan.nodes, self.plan.nodes);
        let members = self.members.borrow().clone();
        for key in keys {
            let mut ways: Vec<Option<AckFrom>> = key.replicas_of(true).iter().copied().map(Some).collect();
            // All replicas are asked too; not where such a read would not overlap with reads of the first
            // replica alone.
            ways.extend(if key.reads.is_empty() { vec![None, Some(everybody)] } else { Vec::new() });
            for replicas in ways {
                let node = stream.pick(&members).copied().unwrap_or(0);
                let asked = (Request::Get, Condition::Any, replicas);
                self.perform(&mut http, number, node, &key.key, asked, 0).await;
            }
        }
        for node in members.into_iter().take(if number == 0 { 2 } else { 0 }) {
            let asked = (Request::Range { end: None, limit: None }, Condition::Any, None);
            self.perform(&mut http, number, node, &Bytes::from_static(b"k"), asked, 0).await;
        }
    }

    /// Carries out an operation. Returns whether there was a connection for it.
    async fn perform(
        &self,
        http: &mut HttpClient,
        client: u16,
        node: u16,
        key: &Bytes,
        (request, condition, replicas): (Request, Condition, Option<AckFrom>),
        value_bytes: usize,
    ) -> bool {
        let id = self.next.replace(self.next.get() + 1);
        let authority = authority_of(node);
        let message = request_of(id, &authority, key, &request, condition, replicas, value_bytes);
        let invoked = now();
        let who = format!("client-{client}");
        self.trace.line(
            invoked,
            &who,
            &format_args!("#{id} to node {node}: {request}{condition} {}", key.escape_ascii()),
        );
        let answer = http.send(&authority, message, PATIENCE).await;
        let outcome = outcome_of(&request, answer.as_ref().map_err(|failure: &Failure| *failure));
        let returned = now();
        let why =
            answer.as_ref().ok().filter(|_| matches!(outcome, Outcome::Unknown(_) | Outcome::Refused { .. }));
        let why = why.map(|answer| String::from_utf8_lossy(&answer.body).trim_end().to_owned());
        self.trace.line(returned, &who, &format_args!("#{id} {outcome} {}", why.unwrap_or_default()));
        let replicas = replicas.unwrap_or(self.plan.default_replicas());
        let key = key.clone();
        self.note_seen(client, &key, &request, &outcome);
        let operation =
            Operation { id, client, node, key, request, condition, replicas, invoked, returned, outcome };
        self.operations.borrow_mut().push(operation);
        !matches!(answer, Err(Failure::NotSent))
    }
}

fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}
