//! The software of the machines: the real node, over the simulated network, clock, randomness and disk.

use crate::cluster::{Life, Order, Start};
use crate::fault::FaultKind;
use crate::forge::{self, Forgery};
use crate::net::{SimConnector, SimListener, host_of, url_of};
use crate::plan::Plan;
use crate::trace::Trace;
use kvorum_server::background::Transferring;
use kvorum_server::config::{self, Config, ConfigError};
use kvorum_server::node::{Disk, Handle, LocalParts, durability_name, run_local};
use kvorum_server::peer::{PeerAuthMode, Secrets};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a process that could not start waits before it is started again, as a supervisor would do it.
const START_AGAIN: Duration = Duration::from_secs(1);
/// The time between two purge rounds: short, so that a run of seconds has many, which race with everything
/// else.
const SETTLE_EVERY: &str = "1s";
/// Room for a few rows of the index: it is flushed to its tree again and again.
const INDEX_BYTES: usize = 1500;
/// The host that replaces one of the nodes in an outdated list of nodes. No process listens there.
pub const STRANGER: &str = "stranger";

/// The running nodes, by number; `None` for a node that is down or still opens its store.
#[derive(Clone, Default)]
pub struct Nodes(Rc<RefCell<Vec<Option<Handle>>>>);

impl Nodes {
    /// The running node `node`.
    pub fn get(&self, node: u16) -> Option<Handle> {
        self.0.borrow().get(usize::from(node)).cloned().flatten()
    }

    fn set(&self, node: u16, handle: Option<Handle>) {
        let mut nodes = self.0.borrow_mut();
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
        life.desk.close();
        // A node that starts alone has no peer to tell it that its clock is wrong: a known limit, which is
        // not tested.
        life.clock.set_right();
        let (started, number, desk) = (nodes.clone(), life.node, life.desk.clone());
        let connector = SimConnector { power: life.power.clone() };
        let (tell, told) = mpsc::unbounded_channel();
        if plan.kinds.contains(&FaultKind::ForgedWord) {
            let forging =
                forge(told, Rc::clone(&plan), number, nodes.clone(), connector.clone(), trace.clone());
            tokio::task::spawn_local(forging);
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
            secrets: if plan.proves_peers {
                secrets_of(life.has_wrong_secret.get())
            } else {
                Secrets::default()
            },
            started: Box::new(move |handle| {
                let node = handle.clone();
                desk.open(move |order| match order {
                    Order::Pause { choice, time } => pause(&node, choice, time),
                    // The receiver exists only if the plan has forged messages.
                    Order::Forge(forgery) => drop(tell.send(forgery)),
                    Order::Secrets { are_wrong } => {
                        if let Some(shared) = node.shared() {
                            shared.peer_auth.replace(secrets_of(are_wrong));
                        }
                    }
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

/// Pauses the workers that `choice` names for `time`, or resumes them; 0 names all that can be paused.
fn pause(node: &Handle, choice: u64, time: Option<Duration>) {
    let Some(shared) = node.shared() else { return };
    let workers = shared.workers();
    for (place, worker) in (0..).zip(workers.iter().filter(|worker| worker.can_pause)) {
        if choice == 0 || choice & (1 << place) != 0 {
            let done = shared.pause_worker(&worker.name, time);
            debug_assert_eq!(done, Ok(()), "{}", worker.name);
        }
    }
}

fn config_of(plan: &Plan, life: &Life) -> Result<Config, ConfigError> {
    let stranger = (life.node + 1) % plan.nodes;
    let url = |node| if life.is_stale && node == stranger { url_of_stranger() } else { url_of(node) };
    let cluster: Vec<String> = (0..plan.nodes).map(url).collect();
    let mut flags = BTreeMap::from([
        ("cluster", cluster.join(",")),
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

/// The secrets of a node's file. No other node accepts the wrong one.
pub fn secrets_of(are_wrong: bool) -> Secrets {
    let text: &[u8] = if are_wrong {
        b"a wrong secret, which no other node of the simulation has"
    } else {
        b"the secret that the nodes of the simulation share"
    };
    Secrets::parse(text).unwrap_or_default()
}

fn url_of_stranger() -> String {
    format!("http://{STRANGER}:{}", crate::net::PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SimClock;
    use crate::cluster::Desk;
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
                has_wrong_secret: Rc::default(),
                desk: Desk::default(),
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
