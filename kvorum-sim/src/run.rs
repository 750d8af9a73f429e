//! One run: a plan, from its first step to the verdict.
//!
//! Load and faults run until the plan's length. Then all faults end, a last write goes through every node,
//! and the nodes finish their repairs. Then the disks are read, and every key. The oracle judges all results.

use crate::cluster::Cluster;
use crate::cuts::Cuts;
use crate::history::History;
use crate::invariants::availability::GRACE;
use crate::invariants::facts::{Dump, Gauge, Loss, LossKind, Mechanisms, Restored};
use crate::invariants::{Facts, Violation, check_all, convergence};
use crate::load::{Load, PATIENCE, Stage};
use crate::net::{authority_of, url_of};
use crate::node::{Nodes, start};
use crate::plan::Plan;
use crate::restore::{self, Backup, Restore};
use crate::trace::Trace;
use kvorum_core::agreement::Epoch;
use kvorum_server::clock::Clock;
use kvorum_server::config;
use kvorum_server::http::server::Phase;
use kvorum_server::replica::COMMIT_QUEUE_LEN_MAX;
use kvorum_server::storage::{Engine, Keyspace, format};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

/// The time between two checks of queues and disks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How much longer than the deadline an answer may take: connections and messages on the clients' links, and
/// the last check.
const SLACK: Duration = Duration::from_millis(300);
/// How long the nodes must be idle before they count as at rest.
const REST: Duration = Duration::from_secs(1);
/// How long the stages without faults may take.
const STAGE_MAX: Duration = Duration::from_mins(2);

/// The mechanisms that the node has by now. The oracle does not require the effects of the others.
const MECHANISMS: Mechanisms = Mechanisms { repair: true, drop_stale: false, purge: true, heal_rot: true };

/// A run that has ended.
pub struct Run {
    /// The plan of the seed.
    pub plan: Plan,
    /// The clients' operations.
    pub history: History,
    /// The effects on the nodes.
    pub facts: Facts,
    /// The broken invariants.
    pub violations: Vec<Violation>,
    /// How often each kind of fault began.
    pub faults: std::collections::BTreeMap<crate::fault::FaultKind, u64>,
    /// At which steps machines crashed, and how often.
    pub points: BTreeMap<&'static str, u64>,
    /// How long it took, in simulated time.
    pub simulated: Duration,
    /// The run of the cluster into which its last cut was restored.
    pub restored: Option<Box<Self>>,
}

/// Runs `plan` and judges it; then, if the plan says so, a cluster into which its last cut is restored.
///
/// # Errors
/// When the simulation itself ends with an error, or a stage does not end.
pub fn run(plan: &Plan, trace: &Trace) -> Result<Run, Box<dyn std::error::Error>> {
    let _listening = trace.listen();
    let mut run = run_one(plan, trace, None)?;
    if let Some(backup) = restore::backup_of(&run).filter(|_| run.violations.is_empty()) {
        let id = run.history.operations().iter().map(|operation| operation.id).max().unwrap_or(0) + 1;
        let other = plan.of_restore(backup.keys().cloned());
        trace.line(Duration::ZERO, "driver", &format_args!("a restore of {} records\n{other}", backup.len()));
        let restored = run_one(&other, trace, Some((backup, id)))?;
        run.violations.extend(restored.violations.iter().cloned());
        run.restored = Some(Box::new(restored));
    }
    Ok(run)
}

/// Runs one cluster. A backup is restored into it, with the first number that its clients' operations may have.
fn run_one(
    plan: &Plan,
    trace: &Trace,
    backup: Option<(Backup, u64)>,
) -> Result<Run, Box<dyn std::error::Error>> {
    let nodes = Nodes::default();
    let load = Load::new(plan.clone(), trace.clone());
    let mut cluster = Cluster::new(plan.clone(), &start(plan, &nodes, trace), trace.clone());
    cluster.client("clients", Rc::clone(&load).run());
    let cuts = Cuts::default();
    if !plan.cuts.is_empty() {
        cluster
            .client("backup", crate::cuts::run(plan.clone(), nodes.clone(), Rc::clone(&cuts), trace.clone()));
    }
    let restoring = backup.as_ref().map(|(backup, first)| {
        load.number_from(*first);
        Restore::new(plan.clone(), backup, Rc::clone(&load), nodes.doors.clone(), trace.clone())
    });
    if let Some(restoring) = &restoring {
        cluster.client("restore", Rc::clone(restoring).run());
    }
    let facts = cluster.facts_mut();
    facts.backup = backup.map(|(backup, _)| backup);
    (facts.deadline, facts.slack) = (DEADLINE, SLACK);
    (facts.mechanisms, facts.hints_suffice) = (MECHANISMS, plan.hints_suffice());
    let mut director = Director {
        plan,
        nodes,
        cluster,
        load: Rc::clone(&load),
        members: (0..plan.nodes).collect(),
        newest: 0,
        newest_at: Duration::ZERO,
        is_joint: false,
        served_at: BTreeMap::new(),
        is_marked: false,
        hint_bytes_max: hint_bytes_max()?,
        placement: None,
    };
    director.watch_until(plan.length)?;
    director.cluster.heal();
    director.watch_until(plan.length + PATIENCE + SLACK)?;
    if let Some(restoring) = restoring {
        director.wait_for("the restore", || restoring.is_done())?;
    }
    director.stage(&load, Stage::LastWrites)?;
    director.settle()?;
    if director.cluster.put_back_older_disk() {
        director.settle()?;
    }
    director.dump();
    director.stage(&load, Stage::FinalReads)?;
    let operations = load.take();
    let mut facts = director.cluster.facts_mut().clone();
    let cuts = cuts.take();
    facts.cuts = cuts.taken;
    facts.disturbed.extend(cuts.disturbed);
    facts.excuse_marks(GRACE);
    facts.restored = match director.cluster.restore() {
        Some(first) => {
            director.settle()?;
            director.stage(&load, Stage::RestoredReads)?;
            Some(Restored { first, reads: load.take() })
        }
        None => None,
    };
    let simulated = director.cluster.elapsed();
    let faults = director.cluster.counts().clone();
    let points = director.cluster.points().clone();
    let history = History::new(operations).with_counters(load.take_counters());
    let violations = check_all(&history, &facts).err().unwrap_or_default();
    Ok(Run { plan: plan.clone(), history, facts, violations, faults, points, simulated, restored: None })
}

/// The node's default `request-timeout`, which every plan uses.
const DEADLINE: Duration = Duration::from_secs(1);

/// How long a step of a change may take once all faults have ended. Then its operator gives it up.
const STANDS_STILL: Duration = Duration::from_secs(15);

fn hint_bytes_max() -> Result<u64, config::ConfigError> {
    let flags = std::collections::BTreeMap::new();
    Ok(config::resolve(&flags, &std::collections::BTreeMap::new(), None)?.0.hints.bytes_max)
}

struct Director<'a> {
    plan: &'a Plan,
    nodes: Nodes,
    cluster: Cluster<'a>,
    load: Rc<Load>,
    /// The members of the newest configuration that a node has been seen with, its epoch, and when it was seen first.
    members: BTreeSet<u16>,
    newest: u64,
    newest_at: Duration,
    /// Whether a change was under way then.
    is_joint: bool,
    /// When members were last seen to serve.
    served_at: BTreeMap<u16, Duration>,
    /// Whether a member was marked as lacking records in that configuration.
    is_marked: bool,
    hint_bytes_max: u64,
    /// The hash of the first placement.
    placement: Option<u64>,
}

impl Director<'_> {
    /// Advances time, and checks queues and disks at intervals.
    fn watch_until(&mut self, until: Duration) -> Result<(), Box<dyn std::error::Error>> {
        while self.cluster.elapsed() < until {
            let next = (self.cluster.elapsed() + LOOK_EVERY).min(until);
            self.cluster.run_until(next)?;
            self.look();
        }
        Ok(())
    }

    /// Starts a stage of the load and waits for its end.
    fn stage(&mut self, load: &Load, stage: Stage) -> Result<(), Box<dyn std::error::Error>> {
        load.begin(stage);
        self.wait_for(&format!("the clients' stage {stage:?}"), || load.is_done(stage))
    }

    /// Advances time until `is_done`.
    fn wait_for(&mut self, what: &str, is_done: impl Fn() -> bool) -> Result<(), Box<dyn std::error::Error>> {
        let end = self.cluster.elapsed() + STAGE_MAX;
        while !is_done() {
            if self.cluster.elapsed() >= end {
                return Err(format!("{what} did not end within {STAGE_MAX:?}").into());
            }
            let next = self.cluster.elapsed() + Duration::from_millis(50);
            self.cluster.run_until(next)?;
        }
        Ok(())
    }

    /// Advances time until the nodes have been at rest for a while, or the plan's time for it is over.
    fn settle(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let end = self.cluster.elapsed() + self.plan.settle;
        let mut rested = Duration::ZERO;
        while self.cluster.elapsed() < end && rested < REST {
            let next = self.cluster.elapsed() + LOOK_EVERY;
            self.watch_until(next)?;
            self.name_lost_stores();
            rested = if self.is_at_rest() { rested + LOOK_EVERY } else { Duration::ZERO };
        }
        Ok(())
    }

    /// Whether every node serves, all queues are empty, and replicas are equal as far as they must be.
    fn is_at_rest(&mut self) -> bool {
        let is_served = self.members.iter().all(|node| {
            let node = *node;
            let Some(handle) = self.nodes.get(node) else { return false };
            let Some(shared) = handle.shared() else { return false };
            handle.phase() == Phase::Ready
                && shared.replica.queue_len() == 0
                && shared.cluster.votes()
                && shared.hints.waiting().values().all(|waiting| waiting.count == 0)
        });
        let epochs: BTreeSet<_> = self
            .members
            .iter()
            .filter_map(|node| Some(self.nodes.get(*node)?.shared()?.cluster.epoch()))
            .collect();
        let at = self.cluster.elapsed();
        let dumps = self.dumps(at);
        let facts = self.cluster.facts_mut();
        facts.dumps = dumps;
        epochs.len() == 1
            && !self.is_joint
            && !self.is_marked
            && is_served
            && convergence::check_disks(facts).is_none()
    }

    fn look(&mut self) {
        let at = self.cluster.elapsed();
        self.note_members(at);
        for node in 0..self.plan.machines() {
            // A disk counts for the node that it belongs to, and the node that has it now does not write to
            // it.
            if self.cluster.has_another_disk(node) {
                continue;
            }
            let records = self.records(node);
            let facts = self.cluster.facts_mut();
            for (key, record) in &records {
                facts.sighted(key, record, node);
            }
            let Some(handle) = self.nodes.get(node) else { continue };
            let Some(shared) = handle.shared() else { continue };
            let view = shared.cluster.view();
            // A joint epoch may be over before anybody looks.
            let moves = view.placed_since() > Epoch(0)
                || view.is_joint()
                || view.placement().hash() != *self.placement.get_or_insert(view.placement().hash());
            facts.has_moved |= moves;
            if let Some(chain) = shared.configurations.chain() {
                let chain: Vec<(u64, u128)> =
                    chain.iter().map(|instance| (instance.epoch.0, instance.hash.0)).collect();
                facts.adopted(node, &chain, at);
            }
            let hint_bytes = shared.hints.waiting().values().map(|waiting| waiting.bytes).max().unwrap_or(0);
            let gauges = [
                ("commit queue", shared.replica.queue_len() as u64, COMMIT_QUEUE_LEN_MAX as u64),
                ("bytes of hints for one node", hint_bytes, self.hint_bytes_max),
                // A longer registry does not fit into a message: the node could not ping any more.
                (
                    "nodes in the registry of peers",
                    shared.cluster.registry().stores().len() as u64,
                    self.plan.machines().into(),
                ),
                // A panic or an end of a task is a bug even if the supervisor restarted the task.
                ("parts of the node that ended", shared.replica.supervisor().unexpected_ends(), 0),
            ];
            facts.gauges.extend(gauges.map(|(name, value, max)| Gauge {
                node,
                at,
                name: name.into(),
                value,
                max,
            }));
        }
    }

    /// Has an operator name the store of a member that waits for that; while a change is under way, only once it stands still: it may
    /// wait for that very member. Where no such member is known, the operator cancels it.
    fn name_lost_stores(&self) {
        let waits = |node: &&u16| self.nodes.get(**node).is_none();
        let stands_still = self.cluster.elapsed() > self.newest_at + STANDS_STILL;
        let may_be_named = !self.is_joint || stands_still;
        let is_needed = self.plan.spares > 0 && may_be_named && self.members.iter().any(|node| waits(&node));
        if let Some(other) = self.members.iter().find(|node| !waits(node)).filter(|_| is_needed) {
            self.cluster.name_lost_stores(*other);
        }
    }

    /// Learns which nodes are members, from the newest configuration of any.
    fn note_members(&mut self, at: Duration) {
        let machines = 0..self.plan.machines();
        let running =
            machines.clone().filter_map(|node| Some((node, self.nodes.get(node)?.shared()?.cluster.view())));
        let Some((_, view)) = running.max_by_key(|(_, view)| view.epoch().0) else { return };
        if view.epoch().0 > self.newest {
            (self.newest, self.newest_at) = (view.epoch().0, at);
            self.is_joint = view.is_joint();
            let urls: BTreeSet<&str> = view
                .configuration()
                .members
                .iter()
                .map(|member| member.url.split_once("://").map_or("", |(_, rest)| rest))
                .collect();
            let members: BTreeSet<u16> =
                machines.clone().filter(|node| urls.contains(authority_of(*node).as_str())).collect();
            let facts = self.cluster.facts_mut();
            for node in self.members.difference(&members) {
                facts.left(*node, at.saturating_sub(LOOK_EVERY));
            }
            self.members = members;
            self.load.note_members(&self.members);
        }
        let lacking = view.configuration().members.iter().filter(|member| member.lacks);
        let lacking: BTreeSet<&str> = lacking.map(|member| member.url.as_str()).collect();
        let marked = self.members.iter().copied().filter(|node| lacking.contains(url_of(*node).as_str()));
        self.is_marked = !lacking.is_empty();
        self.cluster.facts_mut().note_marks(
            &marked.collect(),
            &self.members,
            (at.saturating_sub(LOOK_EVERY), at),
        );
        let were = self.load.asked().into_iter();
        let removed = were.filter(|node| !self.is_joint && !self.members.contains(node));
        self.cluster.note_members(&self.members, &removed.collect());
        for node in self.members.clone() {
            let handle = self.nodes.get(node);
            // Of a process that was killed, the handle stays.
            let is_running = self.cluster.is_running(node);
            if handle.as_ref().is_some_and(|handle| handle.phase() == Phase::Ready) {
                self.cluster.facts_mut().came(node, at);
                if is_running {
                    self.served_at.insert(node, at);
                }
            } else if is_running && handle.is_none() && self.has_lost_disk(node) {
                self.cluster.facts_mut().waits_for_name(node, at.saturating_sub(LOOK_EVERY));
            }
        }
    }

    /// Whether the disk of `node` was emptied since the node served last.
    fn has_lost_disk(&mut self, node: u16) -> bool {
        let served_at = self.served_at.get(&node).copied().unwrap_or_default();
        let is_it = |loss: &Loss| loss.node == node && loss.kind == LossKind::Wiped && loss.at >= served_at;
        self.cluster.facts_mut().losses.iter().any(is_it)
    }

    /// Reads the disks; from now on the clients' reads are final.
    fn dump(&mut self) {
        self.look();
        let at = self.cluster.elapsed();
        let dumps = self.dumps(at);
        let facts = self.cluster.facts_mut();
        (facts.converged, facts.dumps) = (Some(at), dumps);
    }

    fn dumps(&self, at: Duration) -> Vec<Dump> {
        let dump = |node| {
            let wall = self.cluster.clock(node)?.wall();
            Some(Dump { node, at, wall, records: self.records(node) })
        };
        self.members.iter().copied().filter_map(dump).collect()
    }

    /// The records that a node stores, except for rows that cannot be read.
    fn records(&self, node: u16) -> BTreeMap<bytes::Bytes, kvorum_core::Record> {
        let Some(engine) = self.cluster.engine(node) else { return BTreeMap::default() };
        let Ok(rows) = engine.scan(Keyspace::Records, b"", Bound::Unbounded) else {
            return BTreeMap::default();
        };
        rows.flatten().filter_map(|(key, row)| Some((key, format::decode_record(&row).ok()?))).collect()
    }
}
