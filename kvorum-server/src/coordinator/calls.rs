//! Calls to replicas: one question to several of them, with answers as they come.

use super::{Coordinator, Missing};
use crate::canary::{self, Canary};
use crate::cluster::VotesVerdict;
use crate::peer::{ApplyKind, BallotReply, CallError, Held, Link, Refusal, Reply, Request, Unsent};
use crate::replica::{Applied, Prepared, ReplicaError, Source};
use crate::slow;
use kvorum_core::{Key, NodeIndex, Record, Version};
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// The wait before a replica that is not quorum-eligible yet is asked again: some round trips.
const TOO_EARLY_WAIT: Duration = Duration::from_millis(10);
/// Every replica that is asked sends a value up to this size; of a larger one, all but the first of a read send only the
/// version.
pub(super) const INLINE_BYTES_MAX: u32 = 4096;

/// A replica's answer to a record.
#[derive(Debug)]
pub(crate) enum Write {
    /// The replica took the record.
    Stored,
    /// The replica holds a newer record, and its memory reaches back by `memory`: within it, this record was never
    /// newest there.
    Superseded { by: Version, memory: Duration },
    /// The replica takes nothing up to a version.
    TooLate(Version),
    /// A ballot is or was under way at the replica: it has promised this version or holds it, and confirms nothing.
    Contested(Version),
    /// The replica took the record, but its store is not quorum-eligible. It cannot rule out that it had confirmed a
    /// newer record, so its answer does not count.
    Uncounted,
    /// The replica surely did not take the record.
    Refused(Cause),
    /// The replica was asked and did not answer: it may have taken the record.
    Unknown(Cause),
}

/// A replica's record of a key, or why it gives none.
pub(crate) type Read = Result<Option<Held>, Cause>;

/// Why a replica did not confirm.
#[derive(Debug)]
pub enum Cause {
    /// The node's own replica failed.
    Replica(ReplicaError),
    /// The call to the peer failed.
    Call(CallError),
    /// The replica did not answer in time.
    Late,
    /// There is no link to the replica.
    Unreachable,
    /// The replica's store is new or was lost, and is not quorum-eligible.
    NotVoting,
    /// The replica has started, and is meeting the other nodes before its store becomes quorum-eligible.
    NotVotingYet,
    /// The replica's record is damaged and cannot be read.
    Damaged,
    /// The replica's answer does not fit the question.
    OffTopic,
    /// An operator has paused the work.
    Paused,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(error) => error.fmt(f),
            Self::Call(error) => error.fmt(f),
            Self::Late => f.write_str("no answer in time"),
            Self::Unreachable => f.write_str("no link to it"),
            Self::NotVoting | Self::NotVotingYet => f.write_str("its store is not quorum-eligible yet"),
            Self::Damaged => f.write_str("its copy is damaged and cannot be read"),
            Self::OffTopic => f.write_str("its answer does not fit the request"),
            Self::Paused => f.write_str("the worker is paused"),
        }
    }
}

impl Cause {
    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(
            self,
            Self::Replica(ReplicaError::DiskFull)
                | Self::Call(CallError::Refused { code: Refusal::DiskFull, .. })
        )
    }

    /// Whether the record is there but cannot be read.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Replica(error) => error.is_damage(),
            Self::Call(error) => matches!(error, CallError::Refused { code: Refusal::Damaged, .. }),
            Self::Damaged => true,
            _ => false,
        }
    }

    /// Whether the replica is not quorum-eligible yet: it may be when asked again soon.
    pub(crate) fn is_too_early(&self) -> bool {
        match self {
            Self::NotVotingYet => true,
            Self::Call(CallError::Refused { code, .. }) => *code == Refusal::NotVotingYet,
            _ => false,
        }
    }

    pub(crate) fn is_overload(&self) -> bool {
        matches!(
            self,
            Self::Replica(ReplicaError::Overloaded | ReplicaError::Short { .. })
                | Self::Call(CallError::Refused { code: Refusal::Overloaded, .. })
        )
    }
}

/// The source of a record that is applied as `kind`.
pub(crate) fn source_of(kind: ApplyKind) -> Source {
    match kind {
        ApplyKind::Write => Source::Writer,
        ApplyKind::Hint => Source::Copy,
        ApplyKind::ReadRepair => Source::Reader,
        ApplyKind::Ballot => Source::Ballot,
    }
}

/// Whether the record comes from the coordinator that made it.
///
/// A store that is not quorum-eligible may have lost ballots: that it holds something newer proves nothing then.
pub(crate) fn is_own(kind: ApplyKind) -> bool {
    matches!(kind, ApplyKind::Write | ApplyKind::Ballot)
}

/// Whether a call that failed has surely changed nothing at the peer.
fn is_nothing_done(error: &CallError) -> bool {
    match error {
        CallError::NotSent { .. } => true,
        CallError::Refused { code, .. } => {
            matches!(
                code,
                Refusal::Overloaded
                    | Refusal::DiskFull
                    | Refusal::Stopped
                    | Refusal::Starting
                    | Refusal::TooFarAhead
                    | Refusal::TooLong
            )
        }
        _ => false,
    }
}

type Pending<T> = Pin<Box<dyn Future<Output = T>>>;

/// Calls under way, in the order in which they were made.
pub(crate) struct Calls<T>(Vec<(NodeIndex, Pending<T>)>);

impl<T> Calls<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(3))
    }

    pub(crate) fn push(&mut self, node: NodeIndex, call: impl Future<Output = T> + 'static) {
        self.0.push((node, Box::pin(call)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes that have not answered.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.0.iter().map(|(node, _)| *node)
    }

    /// The next answer; `None` when all have come.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer.
    pub(crate) async fn next(&mut self) -> Option<(NodeIndex, T)> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|cx| {
            for at in 0..self.0.len() {
                let Some((node, call)) = self.0.get_mut(at) else { break };
                if let Poll::Ready(answer) = call.as_mut().poll(cx) {
                    let node = *node;
                    drop(self.0.remove(at));
                    return Poll::Ready(Some((node, answer)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The means to call a replica again while it is not quorum-eligible yet.
struct Asker {
    shared: std::sync::Arc<super::Shared>,
    link: Option<Rc<Link>>,
    /// Whether the latest answer was that the replica is not quorum-eligible yet.
    is_too_early: Rc<Cell<bool>>,
}

impl Asker {
    fn link(&self, _node: NodeIndex) -> Option<&Rc<Link>> {
        self.link.as_ref()
    }

    fn ask_apply_once(
        &self,
        node: NodeIndex,
        key: &Key,
        record: &Record,
        kind: ApplyKind,
        timeout: Duration,
    ) -> impl Future<Output = Write> + use<> {
        let local = (node == self.shared.cluster.me())
            .then(|| (self.shared.replica.clone(), key.clone(), record.clone()));
        let remote = match (&local, self.link(node)) {
            (None, Some(link)) => {
                let request = Request::Apply { key: key.clone(), record: record.clone(), kind };
                Some(link.call(&request, timeout))
            }
            _ => None,
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let is_too_early = Rc::clone(&self.is_too_early);
        async move {
            is_too_early.set(false);
            if let Some((replica, key, record)) = local {
                return match tokio::time::timeout(timeout, replica.apply(key, record, source_of(kind))).await
                {
                    Ok(Ok(Applied::Stored)) if is_own(kind) && !shared.counts() => {
                        is_too_early.set(shared.cluster.is_undecided());
                        Write::Uncounted
                    }
                    Ok(Ok(Applied::Superseded { by, .. })) if is_own(kind) && !shared.counts() => {
                        shared.heard(Applied::Contested { by })
                    }
                    Ok(Ok(applied)) => shared.heard(applied),
                    Ok(Err(
                        error @ (ReplicaError::Overloaded
                        | ReplicaError::DiskFull
                        | ReplicaError::Short { .. }
                        | ReplicaError::Stopped
                        | ReplicaError::TooFarAhead(_)
                        | ReplicaError::ValueTooLong { .. }),
                    )) => Write::Refused(Cause::Replica(error)),
                    Ok(Err(error)) => Write::Unknown(Cause::Replica(error)),
                    Err(_) => Write::Unknown(Cause::Late),
                };
            }
            let Some(call) = remote else { return Write::Refused(Cause::Unreachable) };
            let answer = call.await;
            if answer.is_err() {
                shared.count_failure(node);
            }
            match answer {
                Ok(Reply::Applied(applied)) => shared.heard(applied),
                Ok(_) => Write::Unknown(Cause::OffTopic),
                Err(CallError::Refused {
                    code: code @ (Refusal::NotVoting | Refusal::NotVotingYet),
                    detail,
                }) => {
                    shared.cluster.note_not_voting(node, detail);
                    is_too_early.set(code == Refusal::NotVotingYet);
                    Write::Uncounted
                }
                Err(error) if is_nothing_done(&error) => Write::Refused(Cause::Call(error)),
                Err(error) => Write::Unknown(Cause::Call(error)),
            }
        }
    }
}

impl Coordinator {
    /// Asks `node` to apply `record`; this node's own replica is called without the network. The request is under way
    /// when this returns, and dropping the answer does not take it back. A replica that has started and is not
    /// quorum-eligible yet is asked again until it is, or the time is over.
    pub(crate) fn ask_apply(
        &self,
        node: NodeIndex,
        key: &Key,
        record: &Record,
        kind: ApplyKind,
        timeout: Duration,
    ) -> impl Future<Output = Write> + use<> {
        let link = self.link(node).cloned();
        let asker = Asker { shared: std::sync::Arc::clone(&self.shared), link, is_too_early: Rc::default() };
        let (key, record) = (key.clone(), record.clone());
        let deadline = Instant::now() + timeout;
        let first = asker.ask_apply_once(node, &key, &record, kind, timeout);
        let answered = async move {
            let mut answer = first.await;
            // Leave time for the last answer before the deadline: it says why the replica does not count.
            let margin = TOO_EARLY_WAIT.max(timeout / 8);
            while asker.is_too_early.get() && deadline > Instant::now() + margin {
                tokio::time::sleep(TOO_EARLY_WAIT).await;
                let left = deadline.saturating_duration_since(Instant::now());
                answer = asker.ask_apply_once(node, &key, &record, kind, left).await;
            }
            answer
        };
        let what = match kind {
            ApplyKind::Write => "apply",
            ApplyKind::Ballot => "accept",
            ApplyKind::Hint | ApplyKind::ReadRepair => "write back",
        };
        slow::step(what, Some(node), answered)
    }

    /// Like [`Self::ask_newest`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_newest_later(
        self: &Rc<Self>,
        node: NodeIndex,
        key: &Key,
        deadline: Instant,
    ) -> impl Future<Output = Result<Version, Cause>> + use<> {
        let (coordinator, key) = (Rc::clone(self), key.clone());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_newest(node, &key, left).await
        }
    }

    /// Like [`Self::ask_get`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_get_later(
        self: &Rc<Self>,
        node: NodeIndex,
        key: &Key,
        value_bytes_max: u32,
        deadline: Instant,
    ) -> impl Future<Output = Read> + use<> {
        let (coordinator, key) = (Rc::clone(self), key.clone());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_get(node, &key, value_bytes_max, left).await
        }
    }

    /// Asks `node` which version a write to `key` must exceed.
    pub(crate) fn ask_newest(
        &self,
        node: NodeIndex,
        key: &Key,
        timeout: Duration,
    ) -> impl Future<Output = Result<Version, Cause>> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let key = key.clone();
        let me = node == shared.cluster.me();
        let remote = if me { None } else { self.link(node) };
        let remote = remote.map(|link| link.call(&Request::Newest { key: key.clone() }, timeout));
        let answered = async move {
            if me {
                let newest = tokio::time::timeout(timeout, shared.replica.newest(&key)).await;
                return match newest {
                    Ok(Ok(_)) if !shared.counts() => Err(shared.not_voting()),
                    Ok(Ok(version)) => Ok(version),
                    Ok(Err(error)) => Err(Cause::Replica(error)),
                    Err(_) => Err(Cause::Late),
                };
            }
            let Some(call) = remote else { return Err(Cause::Unreachable) };
            match call.await {
                Ok(Reply::NewestIs(version)) => Ok(version),
                Ok(_) => Err(Cause::OffTopic),
                Err(error) => {
                    shared.count_failure(node);
                    Err(Cause::Call(error))
                }
            }
        };
        slow::step("newest", Some(node), answered)
    }

    /// Asks `node` to promise `ballot`. Of a value over [`INLINE_BYTES_MAX`] only the header comes.
    pub(crate) fn ask_prepare(
        &self,
        node: NodeIndex,
        key: &Key,
        ballot: Version,
        earlier: &[Version],
        timeout: Duration,
    ) -> impl Future<Output = Result<BallotReply, Cause>> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let (key, earlier, value_bytes_max) = (key.clone(), earlier.to_vec(), INLINE_BYTES_MAX);
        let me = node == shared.cluster.me();
        let remote = if me { None } else { self.link(node) };
        let remote = remote.map(|link| {
            let request =
                Request::Prepare { key: key.clone(), ballot, earlier: earlier.clone(), value_bytes_max };
            link.call(&request, timeout)
        });
        let answered = async move {
            if me {
                let prepared = shared.prepare(key, ballot, earlier, value_bytes_max);
                return tokio::time::timeout(timeout, prepared).await.unwrap_or(Err(Cause::Late));
            }
            let Some(call) = remote else { return Err(Cause::Unreachable) };
            match call.await {
                Ok(Reply::Prepared(answer)) => {
                    match &answer {
                        BallotReply::Denied { by } => shared.stamps.observe(*by),
                        BallotReply::Promised { held, .. } => {
                            if let Some(held) = held {
                                shared.stamps.observe(held.version());
                            }
                        }
                    }
                    Ok(answer)
                }
                Ok(_) => Err(Cause::OffTopic),
                Err(error) => {
                    shared.count_failure(node);
                    Err(Cause::Call(error))
                }
            }
        };
        slow::step("prepare", Some(node), answered)
    }

    /// Like [`Self::ask_prepare`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_prepare_later(
        self: &Rc<Self>,
        node: NodeIndex,
        key: &Key,
        ballot: Version,
        earlier: &[Version],
        deadline: Instant,
    ) -> impl Future<Output = Result<BallotReply, Cause>> + use<> {
        let (coordinator, key, earlier) = (Rc::clone(self), key.clone(), earlier.to_vec());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_prepare(node, &key, ballot, &earlier, left).await
        }
    }

    /// Asks every other node the same. Fails with the first node to which there is no link.
    pub(crate) fn ask_others(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Result<Calls<Result<Reply, CallError>>, NodeIndex> {
        let mut calls = Calls::new();
        for index in self.shared.cluster.others() {
            let link = std::rc::Rc::clone(self.link(index).ok_or(index)?);
            let request = request.clone();
            calls.push(index, async move { link.call(&request, timeout).await });
        }
        Ok(calls)
    }

    /// Asks `node` for its record of `key`; of a value over `value_bytes_max` only the version is sent.
    pub(crate) fn ask_get(
        &self,
        node: NodeIndex,
        key: &Key,
        value_bytes_max: u32,
        timeout: Duration,
    ) -> impl Future<Output = Read> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let key = key.clone();
        let remote = if node == shared.cluster.me() {
            None
        } else {
            self.link(node)
                .map(|link| link.call(&Request::Get { key: key.clone(), value_bytes_max }, timeout))
        };
        let answered = async move {
            if node == shared.cluster.me() {
                if !shared.cluster.votes() {
                    return Err(shared.not_voting());
                }
                let read = tokio::time::timeout(timeout, shared.replica.get(&key)).await;
                // Check again: the store may have been set aside meanwhile.
                if !shared.cluster.votes() {
                    return Err(shared.not_voting());
                }
                return match read {
                    Ok(Ok(record)) => Ok(record.map(Held::Whole)),
                    Ok(Err(error)) => Err(Cause::Replica(error)),
                    Err(_) => Err(Cause::Late),
                };
            }
            let Some(call) = remote else { return Err(Cause::Unreachable) };
            match call.await {
                Ok(Reply::Found(held)) => {
                    if let Some(held) = &held {
                        shared.stamps.observe(held.version());
                    }
                    Ok(held)
                }
                Ok(_) => Err(Cause::OffTopic),
                Err(error) => {
                    shared.count_failure(node);
                    Err(Cause::Call(error))
                }
            }
        };
        slow::step("get", Some(node), answered)
    }
}

impl super::Shared {
    /// Has this node's replica promise `ballot`.
    pub(crate) async fn prepare(
        &self,
        key: Key,
        ballot: Version,
        earlier: Vec<Version>,
        value_bytes_max: u32,
    ) -> Result<BallotReply, Cause> {
        if !self.counts() {
            return Err(self.not_voting());
        }
        let prepared = self.replica.prepare(key, ballot, earlier).await.map_err(Cause::Replica)?;
        // Check again: the store may have been set aside meanwhile, and its successor knows nothing.
        if !self.counts() {
            return Err(self.not_voting());
        }
        Ok(match prepared {
            Prepared::Denied { by } => {
                self.stamps.observe(by);
                BallotReply::Denied { by }
            }
            Prepared::Promised { held, has_held, has_built, memory_millis } => {
                let held = held.map(|record| Held::new(record, value_bytes_max));
                BallotReply::Promised { held, has_held, has_built, memory_millis }
            }
        })
    }

    /// Turns a replica's answer into a write's, and moves this node's clock above any newer version.
    fn heard(&self, applied: Applied) -> Write {
        match applied {
            Applied::Stored => Write::Stored,
            Applied::Superseded { .. } if canary::is(Canary::SupersededIgnored) => Write::Stored,
            Applied::Superseded { by, memory_millis } => {
                self.stamps.observe(by);
                Write::Superseded { by, memory: Duration::from_millis(memory_millis.into()) }
            }
            Applied::TooLate { upto } => {
                self.stamps.observe(upto);
                Write::TooLate(upto)
            }
            Applied::Contested { by } => {
                self.stamps.observe(by);
                Write::Contested(by)
            }
        }
    }

    /// Whether this replica's answer that it holds nothing newer counts for a write. It does not while the store lacks
    /// records that an earlier one confirmed. Nor does it while it is unknown whether there was an earlier one: the
    /// node that remembers it may be away. The same holds for a write to one replica, because an earlier write may have
    /// been for more.
    pub(crate) fn counts(&self) -> bool {
        self.cluster.votes()
    }

    /// The reason why the replica at `node` did not confirm, as the client is told: the most specific one.
    pub(crate) fn missing(&self, node: NodeIndex, cause: &Cause) -> Missing {
        let reason = match cause {
            Cause::Late if node == self.cluster.me() && self.cluster.is_undecided() => self.why_not_voting(),
            Cause::NotVoting | Cause::NotVotingYet if node == self.cluster.me() => self.why_not_voting(),
            Cause::NotVoting | Cause::NotVotingYet => self.cluster.not_voting(node),
            Cause::Call(CallError::Refused { code: Refusal::NotVoting | Refusal::NotVotingYet, detail }) => {
                detail.clone()
            }
            Cause::Unreachable | Cause::Call(CallError::NotSent { reason: Unsent::Down }) => {
                let reason = self.cluster.contact(node, |contact| contact.reason().to_owned());
                if reason.is_empty() {
                    "no connection".to_owned()
                } else {
                    format!("no connection: {reason}")
                }
            }
            cause => cause.to_string(),
        };
        // The reason from a peer of another release may be empty.
        let reason = if reason.is_empty() { cause.to_string() } else { reason };
        Missing { url: self.cluster.url_of(node).to_owned(), reason }
    }

    /// The reason why this node's store does not count, as other nodes and clients are told: measured, and only one.
    pub(crate) fn why_not_voting(&self) -> String {
        let cluster = &self.cluster;
        let urls = |nodes: Vec<NodeIndex>| {
            nodes.into_iter().map(|index| cluster.url_of(index).to_owned()).collect::<Vec<_>>().join(", ")
        };
        if cluster.stands_down() {
            return "its damaged store is being quarantined".to_owned();
        }
        let verdict = cluster.roster().verdict();
        match verdict {
            VotesVerdict::Unknown => {
                let others = cluster.others().map(|index| cluster.id_of(index));
                let unheard: Vec<_> = cluster.roster().unheard(others).collect();
                let unheard = unheard.into_iter().filter_map(|node| self.index_of(node)).collect();
                format!("new store: waiting to hear from {}", urls(unheard))
            }
            VotesVerdict::Lacks => {
                let (percent, left) = self.background.anti_entropy.refill_progress();
                if percent == 100 && !left.is_empty() {
                    return format!("refilled after disk loss: waiting to compare with {}", urls(left));
                }
                format!("refilling after disk loss ({percent} %)")
            }
            VotesVerdict::Votes => {
                let (met, needed) = cluster.met_and_needed();
                format!("just started: waiting for a majority ({} of {needed})", met.min(needed))
            }
        }
    }

    /// The cause for which this node's replica does not count.
    pub(crate) fn not_voting(&self) -> Cause {
        if self.cluster.is_undecided() { Cause::NotVotingYet } else { Cause::NotVoting }
    }

    pub(crate) fn count_failure(&self, node: NodeIndex) {
        if let Some(peer) = self.cluster.peer(node) {
            peer.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}
