//! Membership: which configuration of the cluster this node works with, and its part in deciding the next one.
//!
//! The rules are in `kvorum-core` (`agreement`, `configuration`). Here they meet the store and the other nodes:
//!
//! - [`Configurations`] is the node's chain. It answers proposers, and adopts what was decided. Whatever it says or works
//!   with is synced before.
//! - `plan` is for operators: a change is planned on an epoch, shown, and applied on that epoch only.
//! - `force` is this store's part in going on without a majority that is lost for good.
//!
//! What needs other nodes is above: the coordinator proposes (`coordinator/changes/propose.rs`), and a background task for each other
//! node asks it for the configurations that this one does not know (`background/catch_up.rs`).
//!
//! A configuration is learned only as the answer to a question of this node: a request could come in any node's name.
//!
//! What follows from a configuration, the members and the placement of keys, is a [`crate::cluster::View`].
//! `docs/decisions/0033-*` says what is built.

mod force;
mod pace;
mod place;
mod plan;
#[cfg(test)]
mod tests;

pub use pace::Pace;
pub(crate) use place::differences;
pub use plan::{ChangeKind, ChangeOrder, MembersOrder, Newcomer, Planned};
pub(crate) use plan::{parse_weight, parse_zone};

use crate::canary::{self, Canary};
use crate::cluster::Cluster;
use crate::peer::BallotVote;
use crate::replica::{Chain, Replica, ReplicaError};
use kvorum_core::agreement::{Acceptor, Ballot, Ballots, ConfigurationHash, Denial, Epoch, Instance};
use kvorum_core::configuration::{Configuration, RoutingError, SuccessorError, Transition};
use kvorum_core::{NodeId, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The highest feature level that this release works at.
///
/// | level | what all members are able to do |
/// | --- | --- |
/// | 0 | what the releases before configurations do |
/// | 1 | decide configurations, and name their epoch in requests to each other |
pub const LEVEL_MAX: u16 = 1;

/// The most configurations of a chain that a joiner takes over: 1,000 changes of a large cluster are about 33,000.
pub(crate) const CHAIN_LEN_MAX: usize = 1 << 18;

/// About how many bytes of configurations one answer has.
pub(crate) const PAGE_BYTES: u32 = 1 << 20;

/// The configurations of this node, and its votes on the next one.
pub struct Configurations {
    cluster: Arc<Cluster>,
    replica: Replica,
    // Guards the stored chain and the promises about its successor. Held while they are stored, across an await: one change
    // at a time, and none while the store is set aside. Nothing on the path of a client's request waits for it.
    part: tokio::sync::Mutex<Part>,
    /// Whether this store was found to be an older copy: it may have forgotten promises, so it never votes again.
    has_forgotten: AtomicBool,
    // Guards what the other nodes said. Held to read or write a few numbers.
    said: Mutex<BTreeMap<Slot, Said>>,
    /// How often another node said something new of itself.
    said_news: AtomicU64,
    // Guards the members that the driver of a change waits for at this node. Held to read or write it.
    awaited: Mutex<BTreeSet<Slot>>,
    // Guards what this node has seen of the change under way. Held to look.
    watch: Mutex<pace::Watch>,
    // Guards the plan of an operator. Held to read or write it.
    planned: Mutex<Option<Planned>>,
    // Guards what the log said last of the settings of this node's place. Held to compare a text.
    place_told: Mutex<String>,
    // Held by the proposer, across awaits: one proposal at a time.
    pub(crate) proposing: tokio::sync::Mutex<()>,
}

/// The stored chain from epoch 1 on, and the promises about its successor.
#[derive(Debug, Default)]
struct Part {
    chain: Vec<Arc<Configuration>>,
    agreement: Option<(Instance, Ballots<Configuration>)>,
}

/// What another node said last of its configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// The configuration that it works with; none before it has answered.
    pub adopted: Option<Instance>,
    /// The highest feature level that it is able to work at.
    pub level_max: u16,
    /// The nodes from which it has taken all that it lacked, in its epoch.
    pub compared: Vec<NodeId>,
    /// When it answered, on the monotonic clock.
    pub at: Duration,
    /// Since when this node has known it as a member, on the same clock: before that it cannot have been silent.
    member_since: Option<Duration>,
    /// Whether a request of it named a later epoch than this node's: a reason to ask it.
    is_ahead: bool,
}

/// The reason why a configuration is not adopted.
#[derive(Debug)]
pub enum LearnError {
    /// It does not follow: it is of another branch, or the sender is wrong.
    Successor {
        /// Its epoch.
        epoch: Epoch,
        /// Why.
        error: SuccessorError,
    },
    /// It differs from the one of the same epoch that this node has adopted.
    OtherBranch {
        /// The epoch.
        epoch: Epoch,
    },
    /// It needs a newer release than this one.
    Level {
        /// Its epoch.
        epoch: Epoch,
        /// The level that it needs.
        level: u16,
    },
    /// This node would place keys elsewhere than it says.
    Routing {
        /// Its epoch.
        epoch: Epoch,
        /// Why.
        error: RoutingError,
    },
    /// This store has accepted a forced configuration of the same epoch, and adopts no other.
    Bound {
        /// The epoch.
        epoch: Epoch,
    },
    /// This store has promised a higher ballot since.
    Outbid,
    /// It cannot be stored.
    Store(ReplicaError),
}

/// The reason why a node cannot start with the chain of its store.
#[derive(Debug)]
pub enum StartError {
    /// The chain does not begin with the nodes of `--cluster`.
    OtherCluster {
        /// Why epoch 1 does not follow.
        error: SuccessorError,
    },
    /// The chain contradicts itself, or this node would place keys elsewhere than it says.
    Chain {
        /// The first epoch that does not follow.
        epoch: Epoch,
        /// Why.
        error: RoutingError,
    },
    /// The cluster works at a level that this release is not able to work at.
    Level {
        /// The level.
        level: u16,
    },
}

impl Part {
    fn ballots(&self, instance: Instance) -> Ballots<Configuration> {
        let of_it = self.agreement.as_ref().filter(|(known, _)| *known == instance);
        of_it.map(|(_, ballots)| ballots.clone()).unwrap_or_default()
    }

    /// The adopted configuration of `epoch`, from 1 on.
    fn of(&self, epoch: Epoch) -> Option<&Arc<Configuration>> {
        let place = usize::try_from(epoch.0.checked_sub(1)?).ok()?;
        self.chain.get(place)
    }
}

impl Configurations {
    /// The configurations of a node whose store has none.
    pub(crate) fn new(cluster: Arc<Cluster>, replica: Replica) -> Self {
        Self {
            cluster,
            replica,
            part: tokio::sync::Mutex::default(),
            has_forgotten: AtomicBool::new(false),
            said: Mutex::default(),
            said_news: AtomicU64::new(0),
            awaited: Mutex::default(),
            watch: Mutex::default(),
            planned: Mutex::new(None),
            place_told: Mutex::default(),
            proposing: tokio::sync::Mutex::default(),
        }
    }

    /// Takes over the chain of the store, before the node serves anybody.
    ///
    /// # Errors
    /// [`StartError`]: the node must not start.
    pub(crate) fn resume(&self, chain: Chain) -> Result<(), StartError> {
        self.has_forgotten.store(chain.has_forgotten, Ordering::SeqCst);
        let chained: Vec<_> = chain.configurations.into_iter().map(Arc::new).collect();
        if let Some(first) = chained.first() {
            let checked = self.cluster.configuration().check_successor(first);
            checked.map_err(|error| StartError::OtherCluster { error })?;
        }
        if let Some(last) = chained.last().filter(|last| last.feature_level > LEVEL_MAX) {
            return Err(StartError::Level { level: last.feature_level });
        }
        for next in &chained {
            let adopted = self.cluster.adopt(Arc::clone(next));
            adopted.map_err(|error| StartError::Chain { epoch: next.epoch, error })?;
        }
        if !chained.is_empty() {
            self.cluster.begin_run();
        }
        self.cluster.judge_met();
        self.note_alone();
        // Nobody else has this yet.
        if let Ok(mut part) = self.part.try_lock() {
            *part = Part { chain: chained, agreement: chain.agreement };
        }
        self.tell_place();
        Ok(())
    }

    /// Notes whether any other node is there, whose clock may differ from this one's.
    fn note_alone(&self) {
        self.replica.timestamps().note_alone(self.cluster.member_count() == 1);
    }

    /// Notes, durably, that this store is an older copy: it may have forgotten promises.
    pub(crate) async fn forget(&self) {
        if self.has_forgotten.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.replica.store_forgotten().await {
            tracing::warn!(%error, "cannot store that this store does not vote on configurations any more: another node \
                                    finds its copy again after a restart");
        }
    }

    /// Whether this store was found to be an older copy.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.has_forgotten.load(Ordering::SeqCst)
    }

    /// What the node at `index` said last.
    pub fn said(&self, index: Slot) -> Said {
        self.all_said().get(&index).cloned().unwrap_or_default()
    }

    fn all_said(&self) -> MutexGuard<'_, BTreeMap<Slot, Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the node at `index` works with `adopted`, as it answered at `now`, with its highest feature level and the
    /// nodes that it was compared with.
    pub(crate) fn note_said(
        &self,
        index: Slot,
        adopted: Instance,
        (level_max, compared): (u16, Vec<NodeId>),
        now: Duration,
    ) {
        let mut all = self.all_said();
        let before = all.get(&index);
        let member_since = before.and_then(|before| before.member_since);
        let said =
            Said { adopted: Some(adopted), level_max, compared, at: now, member_since, is_ahead: false };
        let is_news =
            before.is_none_or(|before| (before.adopted, &before.compared) != (said.adopted, &said.compared));
        all.insert(index, said);
        drop(all);
        if is_news {
            self.said_news.fetch_add(1, Ordering::SeqCst);
            self.cluster.note_change();
        }
    }

    /// Notes which members there are at `now`. The silence of one that has just been added counts from here.
    pub(crate) fn note_members(&self, members: &[Slot], now: Duration) {
        let mut all = self.all_said();
        for slot in members {
            all.entry(*slot).or_default().member_since.get_or_insert(now);
        }
    }

    /// For how long the member at `index` has said nothing, at `now`.
    pub(crate) fn silence(&self, index: Slot, now: Duration) -> Duration {
        let said = self.said(index);
        if canary::is(Canary::NewMemberSilent) {
            return now.saturating_sub(said.at);
        }
        said.member_since.map_or(Duration::ZERO, |since| now.saturating_sub(since.max(said.at)))
    }

    /// How often another node said something new of itself: a driver looks again when this has changed.
    pub(crate) fn said_news(&self) -> u64 {
        self.said_news.load(Ordering::SeqCst)
    }

    /// Notes that the node at `index` asks with `adopted`. It may have adopted that just now: if this node works with the same,
    /// it asks, as comparisons and steps of a change begin only then.
    pub(crate) fn note_asked(&self, index: Slot, adopted: Instance) {
        let is_news =
            adopted == self.cluster.configuration().instance() && self.said(index).adopted != Some(adopted);
        if is_news {
            self.ask(index);
        }
        self.note_epoch(index, adopted.epoch);
    }

    /// Sets the members that the driver of a change waits for: they are asked more often.
    pub(crate) fn set_awaited(&self, awaited: BTreeSet<Slot>) {
        let mut known = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *known != awaited;
        *known = awaited;
        drop(known);
        if is_new {
            self.cluster.note_change();
        }
    }

    /// Whether the driver of a change waits for the member at `index`.
    pub(crate) fn is_awaited(&self, index: Slot) -> bool {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).contains(&index)
    }

    /// Notes that a request in the name of the node at `index` is of `epoch`. That is believed only as a reason to ask.
    pub(crate) fn note_epoch(&self, index: Slot, epoch: Epoch) {
        if epoch > self.cluster.epoch() {
            self.ask(index);
        }
    }

    /// Asks the node at `index` soon for later configurations.
    pub(crate) fn ask(&self, index: Slot) {
        let was_known = std::mem::replace(&mut self.all_said().entry(index).or_default().is_ahead, true);
        if !was_known {
            self.cluster.note_change();
        }
    }

    /// Whether the node at `index` may know configurations that this one does not.
    pub(crate) fn is_ahead(&self, index: Slot) -> bool {
        let said = self.said(index);
        said.is_ahead || said.adopted.is_some_and(|adopted| adopted.epoch > self.cluster.epoch())
    }

    /// Whether this store votes on configurations now.
    ///
    /// Not before this run has met a majority: the store may be an older copy, which has forgotten its promises. Where no
    /// stores are named all members must accept, and one that forgot nothing is enough (decision 33.1). Whether the store is
    /// quorum-eligible does not matter: one that joins is not before all members have answered, and one may be gone.
    fn votes(&self) -> bool {
        let is_named = self.cluster.epoch() > Epoch(0);
        let has_forgotten = self.has_forgotten.load(Ordering::SeqCst);
        self.cluster.has_met() && self.cluster.id().is_some() && !(is_named && has_forgotten)
    }

    /// Whether this store votes on the successor of the configuration `instance`, and has accepted none yet. If a majority of the
    /// members says so, no successor was decided.
    pub(crate) async fn is_last(&self, instance: Instance) -> bool {
        let part = self.part.lock().await;
        let (voter, current) = (self.cluster.voter(), self.cluster.configuration());
        let is_open = current.instance() == instance && part.ballots(instance).accepted.is_none();
        is_open && current.names(voter) && self.votes()
    }

    fn acceptor(&self, part: &Part, current: &Configuration) -> Acceptor<Configuration> {
        let instance = current.instance();
        let acceptor =
            Acceptor::new(self.cluster.voter(), instance, &current.electorate(), part.ballots(instance));
        acceptor.bound(part.forced(current).is_some())
    }

    /// Answers a proposer that asks for a promise.
    ///
    /// # Errors
    /// The store cannot keep it: nothing was promised.
    pub(crate) async fn promise(
        &self,
        instance: Instance,
        ballot: Ballot,
    ) -> Result<BallotVote, ReplicaError> {
        let mut part = self.part.lock().await;
        let (voter, current) = (self.cluster.voter(), self.cluster.configuration());
        if !self.votes() {
            return Ok(BallotVote::NotNamed { voter });
        }
        let mut acceptor = self.acceptor(&part, &current);
        match acceptor.prepare(instance, ballot) {
            Ok(accepted) => {
                self.keep(&mut part, instance, acceptor.ballots()).await?;
                Ok(BallotVote::Promised { voter, accepted })
            }
            Err(denial) => Ok(denied(denial)),
        }
    }

    /// Answers a proposer that asks to accept `value`.
    ///
    /// # Errors
    /// The store cannot keep it: nothing was accepted.
    pub(crate) async fn accept(
        &self,
        instance: Instance,
        ballot: Ballot,
        value: Configuration,
    ) -> Result<BallotVote, ReplicaError> {
        let mut part = self.part.lock().await;
        let (voter, current) = (self.cluster.voter(), self.cluster.configuration());
        if !self.votes() {
            return Ok(BallotVote::NotNamed { voter });
        }
        let transition = current.check_successor(&value);
        let may_follow = value.feature_level <= LEVEL_MAX
            && transition.is_ok_and(|transition| transition != Transition::Forced);
        if instance == current.instance() && !may_follow {
            return Ok(BallotVote::Refused);
        }
        let mut acceptor = if canary::is(Canary::AcceptorForgets) {
            Acceptor::new(voter, current.instance(), &current.electorate(), Ballots::default())
        } else {
            self.acceptor(&part, &current)
        };
        match acceptor.accept(instance, ballot, value) {
            Ok(()) => {
                self.keep(&mut part, instance, acceptor.ballots()).await?;
                Ok(BallotVote::Accepted { voter })
            }
            Err(denial) => Ok(denied(denial)),
        }
    }

    async fn keep(
        &self,
        part: &mut Part,
        instance: Instance,
        ballots: &Ballots<Configuration>,
    ) -> Result<(), ReplicaError> {
        if canary::is(Canary::AcceptorForgets) {
            return Ok(());
        }
        self.replica.store_ballots(instance, ballots).await?;
        part.agreement = Some((instance, ballots.clone()));
        Ok(())
    }

    /// The highest round that this store has promised in the decision about the successor of its configuration.
    pub(crate) async fn round(&self) -> u64 {
        let part = self.part.lock().await;
        part.ballots(self.cluster.configuration().instance()).promised.map_or(0, |ballot| ballot.round)
    }

    /// The configurations after `epoch`, about `bytes` of them.
    pub(crate) async fn after(&self, epoch: Epoch, bytes: u32) -> Vec<Configuration> {
        let part = self.part.lock().await;
        let bytes_max = usize::try_from(bytes.min(PAGE_BYTES)).unwrap_or(0);
        let mut taken = 0;
        let place = usize::try_from(epoch.0).unwrap_or(usize::MAX);
        let next = part.chain.get(place..).unwrap_or_default().iter();
        let fits = |configuration: &&Arc<Configuration>| {
            let is_first = taken == 0;
            taken += configuration.encode().len();
            is_first || taken <= bytes_max
        };
        next.take_while(fits).map(|configuration| Configuration::clone(configuration)).collect()
    }

    /// The adopted configuration of `epoch`; none for one that this node has not adopted.
    pub async fn adopted_at(&self, epoch: Epoch) -> Option<Arc<Configuration>> {
        self.part.lock().await.of(epoch).cloned()
    }

    /// The adopted configurations from epoch 1 on; none while one of them is being stored.
    pub fn chain(&self) -> Option<Vec<Instance>> {
        let part = self.part.try_lock().ok()?;
        Some(part.chain.iter().map(|configuration| configuration.instance()).collect())
    }

    /// Adopts `decided`, which follow each other; those that are known are passed over. Returns whether any was new. They were
    /// told by the node `from`, or decided here.
    ///
    /// # Errors
    /// The first that is not adopted; those before it are.
    pub(crate) async fn learn(
        &self,
        decided: Vec<Configuration>,
        from: Option<NodeId>,
    ) -> Result<bool, LearnError> {
        let mut part = self.part.lock().await;
        let mut is_news = false;
        for next in decided {
            let (epoch, current) = (next.epoch, self.cluster.configuration());
            if epoch <= current.epoch {
                match part.of(epoch) {
                    Some(known) if **known != next => return Err(LearnError::OtherBranch { epoch }),
                    _ => continue,
                }
            }
            // A member that the forced configuration names has adopted another one: so it is never adopted any more.
            let is_kept = part.forced(&current).is_some_and(|forced| {
                *forced != next && from.is_none_or(|from| forced.member(from).is_none())
            });
            if is_kept {
                return Err(LearnError::Bound { epoch });
            }
            self.adopt(&mut part, next).await?;
            is_news = true;
        }
        if is_news {
            self.cluster.judge_met();
        }
        Ok(is_news)
    }

    /// Adopts the successor of the configuration that this node works with.
    async fn adopt(&self, part: &mut Part, next: Configuration) -> Result<(), LearnError> {
        let (epoch, current) = (next.epoch, self.cluster.configuration());
        let transition = current.check_successor(&next);
        let transition = transition.map_err(|error| LearnError::Successor { epoch, error })?;
        if next.feature_level > LEVEL_MAX {
            return Err(LearnError::Level { epoch, level: next.feature_level });
        }
        let next = Arc::new(next);
        let was_removed = self.cluster.is_removed();
        let view = self.cluster.view().next(Arc::clone(&next));
        let view = view.map_err(|error| LearnError::Routing { epoch, error })?;
        self.replica.store_configuration(&next).await.map_err(LearnError::Store)?;
        part.chain.push(Arc::clone(&next));
        part.agreement = None;
        self.cluster.work_with(view);
        self.note_alone();
        self.tell_place();
        tracing::info!(
            epoch = epoch.0,
            hash = %next.hash(),
            feature_level = next.feature_level,
            members = next.members.len(),
            "adopted a configuration: this node works with it from now on"
        );
        if self.cluster.is_removed() && !was_removed {
            tracing::error!(
                epoch = epoch.0,
                "this node was removed from the cluster: it serves nobody any more, and leaves the other nodes alone; stop it. \
                 It can join again with an empty data directory and --join"
            );
        }
        if transition == Transition::Forced {
            tracing::warn!(
                epoch = epoch.0,
                "an operator has forced this configuration without a majority: the stores of the lost members are refused \
                 for good"
            );
        }
        Ok(())
    }

    /// Sets the store aside, and gives the new store, which keeps its identity, the chain and the promises.
    ///
    /// # Errors
    /// As [`Replica::set_aside`].
    pub(crate) async fn set_aside(&self, lease: kvorum_core::UnixMillis) -> Result<(), ReplicaError> {
        let part = self.part.lock().await;
        let chain = part.chain.iter().map(|configuration| &**configuration);
        self.replica.set_aside(lease, Chain::rows(chain, part.agreement.as_ref())).await
    }
}

/// The configuration of epoch 0 before `first`, which names the stores of its members and changes nothing else.
///
/// # Errors
/// There is none: `first` is not the first of a chain.
pub fn genesis_of(first: &Configuration) -> Result<Configuration, SuccessorError> {
    let mut genesis = Configuration {
        epoch: Epoch(0),
        previous: ConfigurationHash::default(),
        feature_level: 0,
        ..first.clone()
    };
    genesis.members.iter_mut().for_each(|member| member.store = None);
    genesis.check_successor(first)?;
    Ok(genesis)
}

fn denied(denial: Denial) -> BallotVote {
    match denial {
        Denial::NotNamed { voter } => BallotVote::NotNamed { voter },
        Denial::OtherInstance { ours } => BallotVote::OtherInstance { ours },
        Denial::Outbid { by } => BallotVote::Outbid { by },
        Denial::Bound => BallotVote::Refused,
    }
}

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Successor { epoch, error } => {
                write!(f, "the configuration of epoch {epoch} does not follow this node's: {error}")
            }
            Self::OtherBranch { epoch } => {
                write!(
                    f,
                    "the configuration of epoch {epoch} differs from the one that this node has adopted"
                )
            }
            Self::Level { epoch, level } => write!(
                f,
                "the configuration of epoch {epoch} needs the feature level {level}, and this release works at {LEVEL_MAX} \
                 at most: start a newer release on this node"
            ),
            Self::Routing { epoch, error } => {
                write!(f, "the configuration of epoch {epoch} does not fit this node's placement: {error}")
            }
            Self::Bound { epoch } => write!(
                f,
                "this store has accepted a forced configuration of epoch {epoch}, and adopts no other: complete it (kvorum \
                 cluster force), or replace this node"
            ),
            Self::Outbid => f.write_str("another proposer came in between"),
            Self::Store(error) => write!(f, "cannot store a configuration: {error}"),
        }
    }
}

impl std::error::Error for LearnError {}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherCluster { error } => {
                write!(f, "the configurations of the store do not begin with the nodes of --cluster: {error}")
            }
            Self::Chain { epoch, error } => {
                write!(
                    f,
                    "the configuration of epoch {epoch} in the store does not fit its placement: {error}"
                )
            }
            Self::Level { level } => write!(
                f,
                "the cluster works at the feature level {level}, and this release at {LEVEL_MAX} at most: start a newer \
                 release"
            ),
        }
    }
}

impl std::error::Error for StartError {}
