//! The software of the machines: the real node, over the simulated network, clock, randomness and disk.

use crate::cluster::{Life, Order, Start};
use crate::fault::FaultKind;
use crate::forge::{self, Forgery};
use crate::net::{SimConnector, SimListener, host_of, url_of};
use crate::plan::Plan;
use crate::restore::{self, Doors};
use crate::trace::Trace;
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{ClusterMember, Configuration, MOVES_LEVEL, Phase};
use kvorum_server::background::Transferring;
use kvorum_server::config::{self, Config, ConfigError};
use kvorum_server::coordinator::{Coordinator, PlanningError, Shared};
use kvorum_server::membership::{ChangeOrder, LEVEL_MAX, MembersOrder, Newcomer};
use kvorum_server::node::{Disk, Handle, LocalParts, durability_name, run_local};
use kvorum_server::peer::{Connector, PeerAuthMode};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a process that could not start waits before it is started again, as a supervisor would do it.
const START_AGAIN: Duration = Duration::from_secs(1);
/// How long the links of an operator may take to come up.
const LINKED: Duration = Duration::from_millis(300);
/// How long an operator tries to have a change decided.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// The time between two purge rounds: short, so that a run of seconds has many, which race with everything
/// else.
const SETTLE_EVERY: &str = "1s";
/// Room for a few rows of the index: it is flushed to its tree again and again.
const INDEX_BYTES: usize = 1500;
/// The host that replaces one of the nodes in an outdated list of nodes. No process listens there.
pub const FOREIGN_NODE: &str = "stranger";

/// The running nodes, by number; `None` for a node that is down or still opens its store.
#[derive(Clone, Default)]
pub struct Nodes {
    handles: Rc<RefCell<Vec<Option<Handle>>>>,
    /// Where they take records to restore.
    pub doors: Doors,
}

impl Nodes {
    /// The running node `node`.
    pub fn get(&self, node: u16) -> Option<Handle> {
        self.handles.borrow().get(usize::from(node)).cloned().flatten()
    }

    fn set(&self, node: u16, handle: Option<Handle>) {
        let mut nodes = self.handles.borrow_mut();
        let at = usize::from(node);
        if nodes.len() <= at {
            nodes.resize_with(at + 1, || None);
        }
        if let Some(slot) = nodes.get_mut(at) {
            *slot = handle;
        }
    }
}

/// Returns a function that starts the real node for each run of a machine.
pub fn start(plan: &Plan, nodes: &Nodes, trace: &Trace) -> Start {
    let (plan, nodes, trace) = (Rc::new(plan.clone()), nodes.clone(), trace.clone());
    Rc::new(move |life| Box::pin(live(Rc::clone(&plan), life, nodes.clone(), trace.clone())))
}

/// One run of a machine: the process is started again until a start succeeds.
async fn live(plan: Rc<Plan>, life: Life, nodes: Nodes, trace: Trace) -> turmoil::Result {
    let host = host_of(life.node);
    let config = config_of(&plan, &life)?;
    loop {
        nodes.set(life.node, None);
        life.state.close();
        // A node that starts alone has no peer to tell it that its clock is wrong: a known limit, which is
        // not tested.
        life.clock.set_right();
        let (started, number, state) = (nodes.clone(), life.node, life.state.clone());
        let connector = SimConnector { power: life.power.clone() };
        let (tell, told) = mpsc::unbounded_channel();
        if plan.kinds.contains(&FaultKind::ForgedWord) {
            let forging =
                forge(told, Rc::clone(&plan), number, nodes.clone(), connector.clone(), trace.clone());
            tokio::task::spawn_local(forging);
        }
        let (order_change, ordered) = mpsc::unbounded_channel();
        if plan.kinds.contains(&FaultKind::Change) {
            let changing =
                change(ordered, number, Rc::clone(&plan), nodes.clone(), connector.clone(), trace.clone());
            tokio::task::spawn_local(changing);
        }
        if plan.takes_backup {
            let serving = restore::serve(number, nodes.doors.clone(), nodes.clone(), connector.clone());
            tokio::task::spawn_local(serving);
        }
        let parts = LocalParts {
            config: config.clone(),
            clock: life.clock.clone(),
            rng: life.rng.clone(),
            disk: Disk { identity: life.identity.clone(), vouched: None },
            engine: life.engine.clone(),
            index_bytes: INDEX_BYTES,
            listener: SimListener::bind(life.power.clone()).await?,
            connector: Rc::new(connector),
            secrets: {
                let (file, proves_peers) = (life.secret_file.clone(), plan.proves_peers);
                Box::new(move |auth| {
                    if proves_peers {
                        file.watched_by(auth);
                    }
                })
            },
            started: Box::new(move |handle| {
                let node = handle.clone();
                state.open(move |order| match order {
                    Order::Pause { choice, time } => pause(&node, choice, time),
                    // The receiver exists only if the plan has forged messages.
                    Order::Forge(forgery) => drop(tell.send(forgery)),
                    Order::Change { choice } => drop(order_change.send(choice)),
                });
                started.set(number, Some(handle));
            }),
        };
        let Err(error) = run_local(parts).await else { return Ok(()) };
        let now = turmoil::sim_elapsed().unwrap_or_default();
        trace.line(now, &host, &format_args!("did not start: {error}"));
        tokio::time::sleep(START_AGAIN).await;
        // A process that ends leaves its writes in the operating system's cache.
        life.engine.kill();
    }
}

/// Sends the forged messages, one after the other, as the node `number`.
async fn forge(
    mut told: mpsc::UnboundedReceiver<Forgery>,
    plan: Rc<Plan>,
    number: u16,
    nodes: Nodes,
    connector: SimConnector,
    trace: Trace,
) {
    while let Some(forgery) = told.recv().await {
        let Some(shared) = nodes.get(number).and_then(|node| node.shared().cloned()) else { continue };
        forge::send(forgery, &plan, shared, connector.clone(), &trace).await;
    }
}

/// Changes the configuration of the cluster at the node `number`, as an operator does, one order after the other.
async fn change(
    mut ordered: mpsc::UnboundedReceiver<u64>,
    number: u16,
    plan: Rc<Plan>,
    nodes: Nodes,
    connector: SimConnector,
    trace: Trace,
) {
    let connector: Rc<dyn Connector> = Rc::new(connector);
    // With links of its own: it is not on the thread that serves clients.
    let mut operator: Option<Rc<Coordinator>> = None;
    while let Some(choice) = ordered.recv().await {
        let Some(shared) = nodes.get(number).and_then(|node| node.shared().cloned()) else { continue };
        let coordinator =
            operator.get_or_insert_with(|| Coordinator::start(Arc::clone(&shared), &connector, 1));
        // The links must come up first.
        tokio::time::sleep(LINKED).await;
        let current = shared.cluster.configuration();
        let changed = if current.epoch == Epoch(0) {
            match coordinator.changes().plan(&ChangeOrder::Name).await {
                Ok(planned) => {
                    coordinator.changes().apply(planned.base()).await.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            }
        } else if current.phase != Phase::Stable {
            // The members drive it to its end. It may wait for a member that lost its disk. Some are turned round.
            let waiting = waiting_at(&shared);
            let lost = current.members.iter().find(|member| waiting.contains(&member.url));
            if let Some(lost) = lost.filter(|_| !choice.is_multiple_of(2)) {
                name_store(coordinator, lost).await.map(drop)
            } else if choice.is_multiple_of(3) {
                coordinator.changes().cancel().await.map_err(|error| error.to_string())
            } else {
                Err("a change is under way".to_owned())
            }
            .map(|()| shared.cluster.configuration())
        } else if plan.spares > 0 {
            change_members(coordinator, &plan, &current, &waiting_at(&shared), choice).await
        } else {
            let wanted = match move_of(coordinator, &current, choice).await {
                Some(Ok(wanted)) => wanted,
                Some(Err(error)) => {
                    let text = format!("a move cannot be planned: {error}");
                    trace.line(turmoil::sim_elapsed().unwrap_or_default(), &host_of(number), &text);
                    next_of(&current, choice)
                }
                None => next_of(&current, choice),
            };
            let deadline = tokio::time::Instant::now() + CHANGE_MAX;
            coordinator.changes().propose(wanted, deadline).await.map_err(|error| error.to_string())
        };
        let text = match changed {
            Ok(adopted) => {
                let (epoch, phase) = (adopted.epoch, adopted.phase);
                format!(
                    "decided epoch {epoch} with hash {}: level {}, {phase}",
                    adopted.hash(),
                    adopted.feature_level
                )
            }
            Err(error) => format!("a change came to nothing: {error}"),
        };
        trace.line(turmoil::sim_elapsed().unwrap_or_default(), &host_of(number), &text);
    }
}

/// The URLs of the nodes that wait to be named, as a node has met them.
fn waiting_at(shared: &Shared) -> Vec<String> {
    shared.cluster.applicants().values().map(|applicant| applicant.url.clone()).collect()
}

/// Names the store that a member runs with since it lost its own.
async fn name_store(coordinator: &Coordinator, lost: &ClusterMember) -> Result<Arc<Configuration>, String> {
    let planned = coordinator.changes().plan(&ChangeOrder::Store { node: lost.url.clone() }).await;
    let planned = planned.map_err(|error| format!("the store of {} cannot be named: {error}", lost.url))?;
    coordinator.changes().apply(planned.base()).await.map_err(|error| error.to_string())
}

/// Plans and applies a change of members as `choice` says, or what must come before it.
async fn change_members(
    coordinator: &Coordinator,
    plan: &Plan,
    current: &Configuration,
    waiting: &[String],
    choice: u64,
) -> Result<Arc<Configuration>, String> {
    // A member that came by --join and lost its disk waits as at first.
    let lost = current.members.iter().find(|member| waiting.contains(&member.url));
    let order = if current.feature_level < MOVES_LEVEL {
        ChangeOrder::Upgrade
    } else if let Some(lost) = lost {
        return name_store(coordinator, lost).await;
    } else if choice == ONLY_STORES {
        return Err("no store is missing".to_owned());
    } else {
        let order = members_order(plan, current, waiting, choice);
        // Few windows: each takes several seconds.
        ChangeOrder::Members(order, 2048 << (choice >> 12 & 1))
    };
    let planned = coordinator.changes().plan(&order).await;
    let planned = planned.map_err(|error| format!("{order:?} cannot be planned: {error}"))?;
    let lacks = |id| current.member(id).is_some_and(|member| member.lacks);
    if planned.moves.is_some() && planned.next.members.iter().any(|member| member.lacks && !lacks(member.id))
    {
        return Err(
            "a silent member would be taken away: nobody can say that it is stopped for good".to_owned()
        );
    }
    coordinator.changes().apply(planned.base()).await.map_err(|error| error.to_string())
}

/// The choice of an order that only names the store of a member that lost its disk. It is odd and a multiple of 3: while a change is
/// under way and no such member is known, it turns the change round.
pub const ONLY_STORES: u64 = u64::MAX;

/// The change that `choice` stands for, or another one where that is not possible.
fn members_order(plan: &Plan, current: &Configuration, waiting: &[String], choice: u64) -> MembersOrder {
    let pick = |count: usize| usize::try_from(choice >> 16).unwrap_or(0) % count.max(1);
    let node =
        current.members.get(pick(current.members.len())).map(|member| member.url.clone()).unwrap_or_default();
    let newcomer = waiting.get(pick(waiting.len())).map(|url| {
        let weight = (choice >> 8 & 1 == 1).then_some(1 + u32::try_from(choice >> 4 & 3).unwrap_or(0));
        Newcomer { url: url.clone(), zone: None, weight }
    });
    let may_shrink = current.members.len() > usize::from(plan.nodes);
    match (choice % 8, newcomer) {
        (0..3, Some(by)) => MembersOrder::Replace { node, by },
        (3..7, Some(newcomer)) => MembersOrder::Add(newcomer),
        (1..7, _) if may_shrink => MembersOrder::Remove { node },
        (7, _) if choice >> 9 & 1 == 1 => MembersOrder::Zone { node, zone: format!("z{}", choice >> 4 & 1) },
        _ => MembersOrder::Weight { node, weight: 1 + u32::try_from(choice >> 4 & 3).unwrap_or(0) },
    }
}

/// A configuration in which a member gets another weight, if `choice` wants it and it can be planned.
async fn move_of(
    coordinator: &Coordinator,
    current: &Configuration,
    choice: u64,
) -> Option<Result<Configuration, PlanningError>> {
    if !choice.is_multiple_of(2) || current.feature_level < MOVES_LEVEL {
        return None;
    }
    let place = usize::try_from(choice >> 8).ok()? % current.members.len();
    let member = current.members.get(place)?;
    let weight = 1 + u32::try_from(choice >> 4 & 3).ok()?;
    // In one window, or in two.
    let window = 2048 << (choice >> 12 & 1);
    let order = ChangeOrder::Members(MembersOrder::Weight { node: member.url.clone(), weight }, window);
    let planned = coordinator.changes().plan(&order).await;
    Some(planned.map(|planned| Configuration::clone(&planned.next)))
}

/// A configuration that may follow `current` and moves no data. Different choices lead to different ones, so that two
/// proposers want different values.
fn next_of(current: &Configuration, choice: u64) -> Configuration {
    let mut next = current.clone();
    (next.epoch, next.previous) = (Epoch(current.epoch.0 + 1), current.hash());
    if choice.is_multiple_of(4) {
        next.feature_level = next.feature_level.max(LEVEL_MAX);
    }
    for (place, member) in (2..).zip(&mut next.members) {
        // Its scheme: a mark as lacking would keep its store from voting. Nodes keep the URL that they saw first.
        if choice >> place & 1 == 1 {
            member.url = match member.url.strip_prefix("http://") {
                Some(authority) => format!("https://{authority}"),
                None => member.url.replacen("https://", "http://", 1),
            };
        }
    }
    next
}

/// Pauses the workers that `choice` names for `time`, or resumes them; 0 names all that can be paused.
fn pause(node: &Handle, choice: u64, time: Option<Duration>) {
    let Some(shared) = node.shared() else { return };
    let workers = shared.background.list_workers();
    for (place, worker) in (0..).zip(workers.iter().filter(|worker| worker.can_pause)) {
        if choice == 0 || choice & (1 << place) != 0 {
            let done = shared.background.pause_worker(&worker.name, time);
            debug_assert_eq!(done, Ok(()), "{}", worker.name);
        }
    }
}

fn config_of(plan: &Plan, life: &Life) -> Result<Config, ConfigError> {
    let stranger = (life.node + 1) % plan.nodes;
    let url = |node| if life.is_stale && node == stranger { url_of_foreign_node() } else { url_of(node) };
    let cluster: Vec<String> = (0..plan.nodes).map(url).collect();
    let machines: Vec<String> = (0..plan.machines()).map(url_of).collect();
    let mut flags = BTreeMap::from([
        // Machines that were removed may be among the others.
        if life.joins { ("join", others(&machines, life.node)) } else { ("cluster", cluster.join(",")) },
        ("advertise", url_of(life.node)),
        ("durability", durability_name(plan.durability)),
        ("tombstone-gc-interval", SETTLE_EVERY.to_owned()),
        ("threads", "1".to_owned()),
        ("pool-threads", "1".to_owned()),
        // A store here is small, and a seed lasts seconds.
        ("scrub-interval", "3s".to_owned()),
    ]);
    flags.insert("clock-offset-limit", format!("{}s", plan.clock_limit().as_secs()));
    let mut config = config::resolve(&flags, &BTreeMap::new(), None)?.0;
    config.upkeep.away_after = plan.away_after.unwrap_or(config.upkeep.away_after);
    if plan.proves_peers {
        config.peer_auth = PeerAuthMode::Require;
    }
    if plan.transfers_early {
        // Makes the node treat every partition as one with many keys.
        config.upkeep.transferring =
            Transferring { probed_min: 1, stretch_bytes: 2 << 10, ..Transferring::default() };
    }
    Ok(config)
}

fn others(cluster: &[String], node: u16) -> String {
    let own = url_of(node);
    cluster.iter().filter(|url| **url != own).map(String::as_str).collect::<Vec<_>>().join(",")
}

fn url_of_foreign_node() -> String {
    format!("http://{FOREIGN_NODE}:{}", crate::net::PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SimClock;
    use crate::cluster::{SecretFile, ThreadState};
    use crate::net::Power;
    use crate::seed::{Seed, SimRng};
    use kvorum_server::storage::memory::MemoryEngine;
    use std::sync::Arc;

    /// A node knows the plan's nodes; an outdated one knows as many nodes, with one replaced.
    #[test]
    fn stale_lists_name_a_stranger() {
        let mut plan = Plan::of(Seed(1));
        plan.nodes = 3;
        let config = |is_stale| {
            let life = Life {
                node: 2,
                number: 0,
                clock: Arc::new(SimClock::new(|| None, 0, 0)),
                rng: Arc::new(SimRng::of_node(Seed(1), 2, 0)),
                engine: Arc::new(MemoryEngine::new()),
                identity: Arc::default(),
                power: Power::default(),
                is_stale,
                joins: false,
                secret_file: SecretFile::default(),
                state: ThreadState::default(),
            };
            config_of(&plan, &life).unwrap()
        };
        assert_eq!(config(false).cluster, ["http://node-0:8080", "http://node-1:8080", "http://node-2:8080"]);
        assert_eq!(
            config(true).cluster,
            ["http://stranger:8080", "http://node-1:8080", "http://node-2:8080"]
        );
        assert_eq!(config(true).advertise, "http://node-2:8080");
    }
}
