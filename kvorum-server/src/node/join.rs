//! Joining: a node with an empty store waits until a configuration of the cluster names it, and takes over the chain.
//!
//! It connects to the members of `--join` as one that is no member yet ([`JOINING`]). They note its URL and store, so that an
//! operator can plan with it, and refuse everything but the question for configurations, which they answer once one of them
//! names the node. Nothing here has a time-out: the node waits, and says for what, until it is named or told to stop.

use crate::clock::{Clock, Rng};
use crate::crash;
use crate::http::Service;
use crate::http::server::Phase;
use crate::membership::{CHAIN_LEN_MAX, PAGE_BYTES, genesis_of};
use crate::peer::{
    Connector, Hello, JOINING, Link, LinkObserver, LinkParts, LinkState, PeerLimits, PlaceSettings,
    Protocols, Reply, Request, Setback,
};
use crate::replica::{Chain, Replica, ReplicaError};
use crate::supervise::Part;
use kvorum_core::agreement::{ConfigurationHash, Epoch, Instance, Voter};
use kvorum_core::configuration::Configuration;
use kvorum_core::{ClusterId, NodeId, PARTITION_BITS_DEFAULT};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The time between two questions to one member. Where a cluster has few members, writes wait for the one that joins.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long an answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The first version of the protocol that has configurations.
const SINCE: u16 = 8;

/// What a node that waits works with.
pub(super) struct Joining<'a> {
    pub(super) service: &'a Service,
    pub(super) url: &'a str,
    /// The URLs of the members to ask: [`members_to_ask`].
    pub(super) members: &'a [String],
    /// The cluster that a damaged store was of, if this store replaced one.
    pub(super) known: Option<ClusterId>,
    pub(super) cluster_name: &'a str,
    /// The zone and weight that it says, for the plan.
    pub(super) place: &'a PlaceSettings,
    pub(super) protocols: Protocols,
    pub(super) replica: &'a Replica,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) rng: &'a Arc<dyn Rng>,
    pub(super) limits: &'a Arc<PeerLimits>,
    pub(super) connector: &'a Rc<dyn Connector>,
}

/// Whom the node at `url` asks: the members `joins` of its `--join`, which may have left the cluster, and those that `chain` ends
/// with. A damaged store leaves its chain to the one that replaces it.
pub(super) fn members_to_ask(joins: &[String], url: &str, chain: &Chain) -> Vec<String> {
    let last = chain.configurations.last().into_iter().flat_map(|last| &last.members);
    let others = last.map(|member| &member.url).filter(|other| *other != url && !joins.contains(other));
    joins.iter().chain(others).cloned().collect()
}

struct Quiet;

impl LinkObserver for Quiet {
    fn connected(&self, _theirs: &Hello) {}
    fn disconnected(&self, _reason: Option<&str>) {}
    fn failed(&self, _reason: &str, _setback: Setback) {}
}

impl Joining<'_> {
    /// Waits until a configuration names this node with its store, and stores the chain. Returns false if the node was told to
    /// stop before.
    ///
    /// # Errors
    /// The store cannot keep the chain.
    pub(super) async fn wait(&self) -> Result<bool, ReplicaError> {
        let links: Vec<(&String, Rc<Link>)> =
            self.members.iter().map(|member| (member, self.link(member))).collect();
        tracing::info!(
            members = self.members.join(","),
            store = format!("{:032x}", self.replica.store_id()),
            "this node belongs to no cluster: it waits until a plan names it (kvorum cluster plan add {})",
            self.url
        );
        let mut phase = self.service.phase.subscribe();
        loop {
            crash::step(Part::Join);
            let mut reasons = Vec::new();
            for (member, link) in &links {
                match self.ask(link).await {
                    Ok(chain) => {
                        self.keep(&chain).await?;
                        self.tell(String::new());
                        return Ok(true);
                    }
                    Err(reason) => reasons.push(format!("{member}: {reason}")),
                }
            }
            self.tell(format!("a plan that names this node; {}", reasons.join("; ")));
            tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase == Phase::Draining) => return Ok(false),
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
        }
    }

    /// Shows in the status what the node waits for.
    fn tell(&self, waits_for: String) {
        *self.service.joining.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }

    fn voter(&self) -> Voter {
        Voter { node: NodeId::of_url(self.url), store: self.replica.store_id() }
    }

    fn link(&self, member: &str) -> Rc<Link> {
        let (voter, run) = (self.voter(), self.replica.run());
        let (name, url, protocols) = (self.cluster_name.to_owned(), self.url.to_owned(), self.protocols);
        let place = self.place.clone();
        let clock = Arc::clone(self.clock);
        let hello = move || Hello {
            protocol: protocols.oldest(),
            protocols: Some(protocols),
            cluster: name.clone(),
            cluster_id: None,
            node: voter.node,
            topology: JOINING,
            store: voter.store,
            run,
            members: vec![url.clone()],
            clock: clock.wall(),
            place: place.clone(),
            remembers: None,
        };
        Link::start(LinkParts {
            authority: member.split_once("://").map_or(member, |(_, authority)| authority).to_owned(),
            peer: NodeId::of_url(member),
            connector: Rc::clone(self.connector),
            hello: Box::new(hello),
            epoch: Box::new(|| Epoch(0)),
            clock: Arc::clone(self.clock),
            limits: Arc::clone(self.limits),
            auth: Arc::clone(&self.service.peer_auth),
            rng: Arc::clone(self.rng),
            observer: Rc::new(Quiet),
            supervisor: self.replica.supervisor().clone(),
        })
    }

    /// Asks a member for the whole chain, which must name this node. The error says why it is not taken over.
    async fn ask(&self, link: &Link) -> Result<Vec<Configuration>, String> {
        match link.state() {
            LinkState::Up { .. } if link.protocol() < SINCE => {
                return Err("its release is too old to take in a node".to_owned());
            }
            LinkState::Up { .. } => {}
            LinkState::Connecting { .. } => return Err("connecting".to_owned()),
            LinkState::Down { reason, .. } => return Err(reason),
        }
        let mut adopted = Instance { epoch: Epoch(0), hash: ConfigurationHash::default() };
        let mut chain: Vec<Configuration> = Vec::new();
        loop {
            let request = Request::Configurations { adopted, bytes: PAGE_BYTES };
            let theirs = match link.call(&request, ASK_TIMEOUT).await {
                Ok(Reply::ConfigurationList { adopted: theirs, configurations, .. }) => {
                    if configurations.is_empty() || chain.len() > CHAIN_LEN_MAX {
                        break;
                    }
                    chain.extend(configurations);
                    theirs
                }
                Ok(_) => return Err("its answer does not fit the question".to_owned()),
                Err(error) => return Err(error.to_string()),
            };
            let Some(last) = chain.last() else { break };
            adopted = last.instance();
            if adopted.epoch >= theirs.epoch {
                break;
            }
        }
        self.check(&chain)?;
        Ok(chain)
    }

    fn check(&self, chain: &[Configuration]) -> Result<(), String> {
        let first = chain.first().ok_or("it knows no configuration yet: the stores are to be named first")?;
        if first.partition_bits != PARTITION_BITS_DEFAULT {
            return Err(format!(
                "its partitions have {} bits, which this node does not have",
                first.partition_bits
            ));
        }
        if let Some(known) = self.known.filter(|known| *known != first.cluster) {
            return Err(format!(
                "it is of the cluster {}, and the damaged store here was of {known}: empty the data directory to join",
                first.cluster
            ));
        }
        let mut before = &genesis_of(first).map_err(|error| error.to_string())?;
        for next in chain {
            before.check_successor(next).map_err(|error| error.to_string())?;
            before = next;
        }
        if before.names(self.voter()) {
            return Ok(());
        }
        Err(match before.member(self.voter().node) {
            Some(_) => format!(
                "its configuration names another store of this node, which was lost: kvorum cluster plan store {}",
                self.url
            ),
            None => "its configuration does not name this node".to_owned(),
        })
    }

    async fn keep(&self, chain: &[Configuration]) -> Result<(), ReplicaError> {
        let Some(last) = chain.last() else { return Ok(()) };
        self.replica.store_cluster_id(last.cluster).await?;
        for configuration in chain {
            self.replica.store_configuration(configuration).await?;
        }
        tracing::info!(epoch = last.epoch.0, cluster_id = %last.cluster, "a configuration names this node: it joins");
        Ok(())
    }
}
