//! Changes of the configuration, as operators plan and apply them, and as any member proposes them.

mod force;
mod propose;

pub use propose::{ProposeError, Silent};

use super::Coordinator;
use crate::authority::Authority;
use crate::membership::{ChangeKind, ChangeOrder, LEVEL_MAX, MembersOrder, Newcomer, PAGE_BYTES, Planned};
use crate::peer::{PlaceSettings, Reply, Request};
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{ClusterMember, Configuration, Joiner, MemberChange, PlanError, Preview};
use kvorum_core::{NodeId, Quorum, Version};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a node's word about itself counts for a plan.
const SAID_AGE_MAX: Duration = Duration::from_secs(5);
/// How long a member that a plan takes away has to answer; then it counts as stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an order to apply a plan tries.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a change cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanningError {
    /// The rules do not allow it.
    Plan(PlanError),
    /// A member must answer, and does not.
    Silent {
        /// Its URL.
        url: String,
    },
    /// A member works with an older configuration: it must catch up first.
    Behind {
        /// Its URL.
        url: String,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A member runs a release that is not able to work at a higher level.
    LevelOf {
        /// Its URL.
        url: String,
        /// The highest level that it is able to work at.
        level_max: u16,
    },
    /// No member has this URL or id.
    NoMember {
        /// The URL or id.
        node: String,
    },
    /// The node that is to join has not been met, so its store is not known.
    NotMet {
        /// Its URL.
        url: String,
    },
    /// This node was started alone and without a URL: it keeps nothing that others could be compared with.
    Alone {
        /// The URL that it has from its address.
        url: String,
    },
    /// The URL of the node that is to join is missing, and nothing starts one beside this node.
    NoUrl,
    /// Another node was not started.
    NotStarted {
        /// Why.
        reason: String,
    },
    /// Two nodes cannot reach each other: the URL of one means its own machine to the other.
    NotReachable {
        /// The URL that means only its own machine.
        url: String,
        /// The URL of the other.
        other: String,
    },
    /// This node was started alone, and anybody could pass for another node.
    TakesAnyPeer,
    /// This node's versions are ahead of its clock, further than other nodes would believe.
    Ahead,
    /// The node that is asked to force is itself named as lost, or is no member.
    OwnLost,
    /// Members that were named as lost answer.
    NotLost {
        /// Their URLs.
        urls: Vec<String>,
    },
    /// The cluster has no id yet: this node has met too few others.
    NoCluster,
    /// The cluster's id cannot be stored.
    Store {
        /// Why.
        reason: String,
    },
}

/// The reason why a plan was not applied.
#[derive(Debug)]
pub enum ApplyPlanError {
    /// There is no plan on this epoch at this node.
    NoPlan {
        /// The epoch that was named.
        epoch: Epoch,
    },
    /// It was not decided.
    Propose(ProposeError),
}

/// Changes of the configuration, proposed with the links of one thread.
pub struct Changes<'a> {
    own: &'a Coordinator,
}

impl<'a> Changes<'a> {
    pub(super) fn new(own: &'a Coordinator) -> Self {
        Self { own }
    }

    /// Plans a change on the configuration that this node works with, and keeps the plan in the place of any other.
    ///
    /// # Errors
    /// [`PlanningError`]: nothing was planned, and a plan that there was is kept.
    pub async fn plan(&self, order: &ChangeOrder) -> Result<Planned, PlanningError> {
        let shared = &self.own.shared;
        let made = self.make_cluster_id().await;
        made.map_err(|error| PlanningError::Store { reason: error.to_string() })?;
        if shared.cluster.id().is_none() {
            return Err(PlanningError::NoCluster);
        }
        let current = shared.cluster.configuration();
        let (next, lines, moves) = match order {
            ChangeOrder::Name => {
                self.check_members(&current, &[])?;
                let next = current.with_stores(&self.stores()).map_err(PlanningError::Plan)?;
                let name = |member: &ClusterMember| {
                    let store = member.store.unwrap_or_default();
                    format!("the store {store:032x} of {} is named", member.url)
                };
                let lines = next.members.iter().map(name).collect();
                (next, lines, None)
            }
            ChangeOrder::Upgrade => {
                let level_max = self.check_members(&current, &[])?;
                let next = current.with_level(level_max).map_err(PlanningError::Plan)?;
                let (from, to) = (current.feature_level, next.feature_level);
                let line = format!(
                    "the feature level rises from {from} to {to}: older releases cannot join any more"
                );
                (next, vec![line], None)
            }
            ChangeOrder::Store { node } => {
                let (next, line) = self.plan_store(&current, node)?;
                (next, vec![line], None)
            }
            ChangeOrder::Force { lost } => {
                let (next, lines) = self.plan_force(&current, lost).await?;
                (next, lines, None)
            }
            ChangeOrder::Members(order, window) => {
                self.check_growth(&current, order)?;
                let (next, lines, preview) = self.plan_moves(&current, order, *window).await?;
                (next, lines, Some(preview))
            }
        };
        let copy_bytes = moves.as_ref().and_then(|moves| self.copy_bytes(moves));
        let planned = Planned { kind: order.kind(), next: Arc::new(next), lines, moves, copy_bytes };
        shared.configurations.keep_plan(planned.clone());
        Ok(planned)
    }

    /// The store that a member runs with takes the place of the one that it lost.
    fn plan_store(
        &self,
        current: &Configuration,
        node: &str,
    ) -> Result<(Configuration, String), PlanningError> {
        let member = member_of(current, node)?;
        // It may have lost its configurations with its disk, and wait.
        self.check_members(current, &[member.id])?;
        let store = self.own.shared.cluster.store_of(member.slot);
        let store = store.ok_or_else(|| PlanningError::Silent { url: member.url.clone() })?;
        let next = current.with_store(member.id, store).map_err(PlanningError::Plan)?;
        let before = member.store.unwrap_or_default();
        let line = format!(
            "the store {store:032x} of {} takes the place of {before:032x}, which never comes back; it counts in no quorum until \
             it was compared with all others",
            member.url
        );
        Ok((next, line))
    }

    /// Checks that the members of `current` and a node that joins can reach each other, and that a node that is alone may
    /// get another one.
    fn check_growth(&self, current: &Configuration, order: &MembersOrder) -> Result<(), PlanningError> {
        let shared = &self.own.shared;
        if shared.replica.digests().is_none() {
            return Err(PlanningError::Alone { url: shared.cluster.url_of(shared.cluster.me()).to_owned() });
        }
        let (MembersOrder::Add(new) | MembersOrder::Replace { by: new, .. }) = order else { return Ok(()) };
        for member in &current.members {
            match (is_local(&member.url), is_local(&new.url)) {
                (true, false) => {
                    return Err(PlanningError::NotReachable {
                        url: member.url.clone(),
                        other: new.url.clone(),
                    });
                }
                (false, true) => {
                    return Err(PlanningError::NotReachable {
                        url: new.url.clone(),
                        other: member.url.clone(),
                    });
                }
                _ => {}
            }
        }
        if current.members.len() > 1 {
            return Ok(());
        }
        if shared.settings.takes_any_peer {
            return Err(PlanningError::TakesAnyPeer);
        }
        let newest = Version::new(shared.stamps.lease(), 0, NodeId(0)).clock();
        if newest > shared.timestamps.max_beside_others() { Err(PlanningError::Ahead) } else { Ok(()) }
    }

    /// Checks that the cluster may get another node now, before one is started.
    ///
    /// # Errors
    /// [`PlanningError`].
    pub fn check_another(&self) -> Result<(), PlanningError> {
        let current = self.own.shared.cluster.configuration();
        current.check_plannable().map_err(PlanningError::Plan)?;
        self.check_members(&current, &[]).map(drop)
    }

    /// Whether the node at `url` has said that it waits to join.
    pub fn has_met(&self, url: &str) -> bool {
        self.own.shared.cluster.applicants().contains_key(&NodeId::of_url(url))
    }

    /// The stores that nodes were met with, those that wait to join among them.
    fn stores(&self) -> BTreeMap<NodeId, u128> {
        let cluster = &self.own.shared.cluster;
        let seen = cluster.registry().stores();
        let mut stores: BTreeMap<NodeId, u128> = seen.iter().map(|seen| (seen.node, seen.store)).collect();
        stores.extend(cluster.applicants().iter().map(|(node, applicant)| (*node, applicant.store)));
        stores
    }

    /// An estimate of the bytes of one copy of a partition: this node's share of what it stores.
    fn copy_bytes(&self, moves: &Preview) -> Option<u64> {
        let me = self.own.shared.cluster.id_of(self.own.shared.cluster.me());
        let own = moves.members.iter().find(|member| member.id == me).filter(|own| own.before > 0)?;
        let stats = self.own.shared.replica.engine_stats();
        // A journal has its size from the start.
        let bytes = stats.disk_bytes.saturating_sub(stats.journal_bytes).saturating_add(stats.memtable_bytes);
        Some(bytes / u64::from(own.before))
    }

    async fn plan_moves(
        &self,
        current: &Configuration,
        order: &MembersOrder,
        window: u32,
    ) -> Result<(Configuration, Vec<String>, Preview), PlanningError> {
        let shared = &self.own.shared;
        // A member that is gone may be removed or replaced; a majority of the others votes.
        let gone = match order {
            MembersOrder::Remove { node } | MembersOrder::Replace { node, .. } => {
                vec![member_of(current, node)?.id]
            }
            _ => Vec::new(),
        };
        self.check_members(current, &gone)?;
        let cluster = &shared.cluster;
        let stated = {
            let applicants = cluster.applicants();
            applicants.iter().map(|(node, applicant)| (*node, applicant.place.clone())).collect()
        };
        let change = change_of(current, order, &self.stores(), &stated)?;
        let view = shared.cluster.view();
        let mut opening = current
            .plan(view.placement(), std::slice::from_ref(&change), window)
            .map_err(PlanningError::Plan)?;
        let nodes = u16::try_from(current.members.len()).unwrap_or(u16::MAX);
        let from = Quorum::default_for(shared.settings.factor, nodes).from();
        let preview = opening.preview(from, window);
        let mut lines = lines_of(&opening.configuration, &change, &preview);
        for id in gone {
            if self.answers_now(id).await {
                continue;
            }
            let mut members = opening.configuration.members.iter_mut();
            if let Some(member) = members.find(|member| member.id == id) {
                // Marked at once: the change does not wait for it.
                member.lacks = true;
                lines.push(format!(
                    "{} does not answer, and counts as stopped for good. Make sure that it is: if it still runs, cut off from the \
                     others, it goes on serving clients that reach it",
                    member.url
                ));
            }
        }
        Ok((opening.configuration, lines, preview))
    }

    /// Checks that every member but those that are `gone` answers and works with `current`. Returns the highest level that
    /// all are able to work at.
    pub(super) fn check_members(
        &self,
        current: &Configuration,
        gone: &[NodeId],
    ) -> Result<u16, PlanningError> {
        let shared = &self.own.shared;
        let now = shared.clock.mono();
        let mut level_max = LEVEL_MAX;
        for index in shared.cluster.others() {
            if gone.iter().any(|id| shared.cluster.slot_of(*id) == Some(index)) {
                continue;
            }
            let url = shared.cluster.url_of(index).to_owned();
            let said = shared.configurations.said(index);
            let is_fresh = now.saturating_sub(said.at) <= SAID_AGE_MAX;
            let Some(adopted) = said.adopted.filter(|_| is_fresh) else {
                return Err(PlanningError::Silent { url });
            };
            if adopted != current.instance() {
                return Err(PlanningError::Behind { url, epoch: adopted.epoch });
            }
            if said.level_max <= current.feature_level && LEVEL_MAX > current.feature_level {
                return Err(PlanningError::LevelOf { url, level_max: said.level_max });
            }
            level_max = level_max.min(said.level_max);
        }
        Ok(level_max)
    }

    /// Whether the member `id` answers now, whatever it works with. This node does.
    async fn answers_now(&self, id: NodeId) -> bool {
        let shared = &self.own.shared;
        let Some(index) = shared.cluster.slot_of(id) else { return false };
        if index == shared.cluster.me() {
            return true;
        }
        let Some(link) = self.own.link(index) else { return false };
        let adopted = shared.cluster.configuration().instance();
        let answer = link.call(&Request::Configurations { adopted, bytes: PAGE_BYTES }, ANSWER_TIMEOUT).await;
        matches!(answer, Ok(Reply::ConfigurationList { .. }))
    }

    /// Turns the change under way round, if there is one that goes forwards: it then goes back to where it began.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn cancel(&self) -> Result<(), ProposeError> {
        let view = self.own.shared.cluster.view();
        match view.configuration().cancelled(view.routing(), view.routing().window_partitions()) {
            Ok(next) => self.propose(next, Instant::now() + APPLY_TIMEOUT).await.map(drop),
            // There is nothing to turn.
            Err(_) => Ok(()),
        }
    }

    /// Applies the plan that was made on `epoch`: proposes it until it is decided.
    ///
    /// An order that is repeated after it was decided answers the same.
    ///
    /// # Errors
    /// [`ApplyPlanError`].
    pub async fn apply(&self, epoch: Epoch) -> Result<Arc<Configuration>, ApplyPlanError> {
        let configurations = &self.own.shared.configurations;
        let planned = configurations.planned().filter(|planned| planned.base() == epoch);
        let planned = planned.ok_or(ApplyPlanError::NoPlan { epoch })?;
        let (wanted, deadline) = (Configuration::clone(&planned.next), Instant::now() + APPLY_TIMEOUT);
        let applied = match planned.kind {
            ChangeKind::Force => self.force(wanted, deadline).await,
            _ => self.propose(wanted, deadline).await,
        };
        applied.map_err(ApplyPlanError::Propose)
    }
}

/// Whether `url` means the machine that calls it.
fn is_local(url: &str) -> bool {
    let host = Authority::of_url(url).map(|(_, authority)| authority);
    host.is_some_and(|host| host.is_loopback() || host.is_unspecified())
}

/// The member with this URL or id.
pub(super) fn member_of<'c>(
    current: &'c Configuration,
    node: &str,
) -> Result<&'c ClusterMember, PlanningError> {
    let id = NodeId::of_url(node);
    let is_it = |member: &&ClusterMember| member.id == id || member.id.to_string() == node;
    current.members.iter().find(is_it).ok_or_else(|| PlanningError::NoMember { node: node.to_owned() })
}

/// The change that `order` asks for, with the `stores` that nodes were met with, and what the settings of those that wait to
/// join say of their places.
fn change_of(
    current: &Configuration,
    order: &MembersOrder,
    stores: &BTreeMap<NodeId, u128>,
    stated: &BTreeMap<NodeId, PlaceSettings>,
) -> Result<MemberChange, PlanningError> {
    let joiner = |new: &Newcomer, in_place_of: Option<&ClusterMember>| {
        let id = NodeId::of_url(&new.url);
        if current.member(id).is_some() {
            return Err(PlanningError::Plan(PlanError::Member { id }));
        }
        let store = *stores.get(&id).ok_or_else(|| PlanningError::NotMet { url: new.url.clone() })?;
        let (zone, weight) = in_place_of.map_or(("", 1), |member| (member.zone.as_str(), member.weight));
        // The order comes first, then the settings of the node, then the member that it replaces.
        let stated = stated.get(&id).cloned().unwrap_or_default();
        Ok(Joiner {
            id,
            url: new.url.clone(),
            zone: new.zone.clone().or(stated.zone).unwrap_or_else(|| zone.to_owned()),
            weight: new.weight.or(stated.weight).unwrap_or(weight),
            store,
        })
    };
    match order {
        MembersOrder::Add(new) => Ok(MemberChange::Add(joiner(new, None)?)),
        MembersOrder::Remove { node } => Ok(MemberChange::Remove(member_of(current, node)?.id)),
        MembersOrder::Replace { node, by } => {
            let member = member_of(current, node)?;
            Ok(MemberChange::Replace { node: member.id, by: joiner(by, Some(member))? })
        }
        MembersOrder::Weight { node, weight } => {
            Ok(MemberChange::Weight { node: member_of(current, node)?.id, weight: *weight })
        }
        MembersOrder::Zone { node, zone } => {
            Ok(MemberChange::Zone { node: member_of(current, node)?.id, zone: zone.clone() })
        }
    }
}

/// What a change of members does, a line each.
fn lines_of(next: &Configuration, change: &MemberChange, preview: &Preview) -> Vec<String> {
    let url = |id: NodeId| next.member(id).map_or_else(|| id.to_string(), |member| member.url.clone());
    let what = match change {
        MemberChange::Add(new) => {
            format!("{} joins in zone {:?} with weight {}", new.url, new.zone, new.weight)
        }
        MemberChange::Remove(node) => format!("{} leaves, and its store never comes back", url(*node)),
        MemberChange::Replace { node, by } => format!(
            "{} takes the place of {}, in zone {:?} with weight {}; the store of the latter never comes back",
            by.url,
            url(*node),
            by.zone,
            by.weight
        ),
        MemberChange::Weight { node, weight } => format!("{} gets the weight {weight}", url(*node)),
        MemberChange::Zone { node, zone } => format!("{} gets the zone {zone:?}", url(*node)),
    };
    let Preview { from, partitions, moving, copies, copies_least, windows, epochs, .. } = preview;
    let (before, joint, after) = (preview.copies_before, preview.copies_joint, preview.copies_after);
    let mut lines = vec![
        what,
        format!(
            "with FROM {from}, {moving} of {partitions} partitions move: {copies} copies are sent, and {copies_least} is the \
             least possible"
        ),
        format!("a partition has {before} copies before, up to {joint} while it moves, and {after} after"),
        format!("{windows} windows, {epochs} epochs"),
    ];
    lines.extend(preview.members.iter().map(|member| {
        format!(
            "{} holds {} partitions, then {}: it gets {} and gives up {}",
            url(member.id),
            member.before,
            member.after,
            member.gains,
            member.loses
        )
    }));
    lines
}

impl fmt::Display for PlanningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::Silent { url } => write!(
                f,
                "{url} has not said which configuration it works with: it must be reachable, and of a release that knows \
                 configurations"
            ),
            Self::Behind { url, epoch } => {
                write!(
                    f,
                    "{url} is at epoch {epoch}, not at the epoch of this node: wait until both are the same"
                )
            }
            Self::LevelOf { url, level_max } => {
                write!(
                    f,
                    "{url} is able to work at the feature level {level_max} at most: upgrade its release first"
                )
            }
            Self::NoMember { node } => {
                write!(f, "no member has the URL or id {node:?}: kvorum cluster show prints them")
            }
            Self::NotMet { url } => write!(
                f,
                "{url} has not been met, so its store is not known: start the node there with an empty data directory, \
                 and wait until it is connected"
            ),
            Self::OwnLost => f.write_str("the node that is asked must be one of the members that are left"),
            Self::NotLost { urls } => write!(
                f,
                "named as lost, but answering: {}; a member that answers is not lost: replace or remove it (kvorum cluster \
                 plan), or stop it for good",
                urls.join(", ")
            ),
            Self::Alone { url } => write!(
                f,
                "this node was started alone, as {url}, and keeps nothing that another node could be compared with: stop it, and \
                 start it with --advertise and the URL at which the other nodes are to reach it, and with a --listen that they \
                 reach; then kvorum cluster upgrade, and plan again"
            ),
            Self::NoUrl => f.write_str(
                "which node? Name its URL: only kvorum dev starts a node by itself. Start one with kvorum serve --join",
            ),
            Self::NotStarted { reason } => write!(f, "another node was not started: {reason}"),
            Self::NotReachable { url, other } => write!(
                f,
                "{url} means its own machine, so that {other} cannot reach it: start it with --advertise and a URL that all nodes \
                 reach. A member keeps its URL, unless it has always been alone"
            ),
            Self::TakesAnyPeer => f.write_str(
                "everybody who reaches this node's port could pass for a member: start it with --peer-ca or --peer-secret-file, \
                 or with --insecure yes if only trusted machines reach the port",
            ),
            Self::Ahead => f.write_str(
                "this node's clock was ahead once, and its versions still are, further than --clock-offset-limit: wait until its \
                 clock has reached them, or remove the records with kvorum repair --drop-unbelievable",
            ),
            Self::NoCluster => f.write_str("the cluster has no id yet: this node has met too few others"),
            Self::Store { reason } => write!(f, "the cluster's id cannot be stored: {reason}"),
        }
    }
}

impl std::error::Error for PlanningError {}

impl fmt::Display for ApplyPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPlan { epoch } => {
                write!(f, "this node has no plan that was made on epoch {epoch}: plan the change here first")
            }
            Self::Propose(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ApplyPlanError {}
