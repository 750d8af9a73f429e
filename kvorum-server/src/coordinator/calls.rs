//! Calls to replicas: one question to several of them, with answers as they come.

use super::local_replica::NotCounted;
use super::{Coordinator, Missing, Peering, Shared, Stamps};
use crate::canary::{self, Canary};
use crate::cluster::Cluster;
use crate::peer::{ApplyKind, BallotReply, CallError, Held, Link, Refusal, Reply, Request, Unsent};
use crate::replica::{Applied, ReplicaError};
use crate::slow::{self, TraceContext};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Key, Record, Slot, Version};
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

/// The wait before a replica that is not quorum-eligible yet is asked again: some round trips.
pub(super) const TOO_EARLY_WAIT: Duration = Duration::from_millis(10);
/// Every replica that is asked sends a value up to this size; of a larger one, all but the first of a read send only the
/// version.
pub(super) const INLINE_BYTES_MAX: u32 = 4096;

/// The most bytes that a call of a plain write or read takes in memory, besides what it points to. Calls of 3.7 KB were a
/// third of what a write allocated.
const CALL_BYTES_MAX: usize = 1024;

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
    /// Keys are placed otherwise than when the request was planned, so the answer does not count. The replica may have
    /// taken the record.
    Moved,
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
    /// The replica joins in the change under way, and cannot be reached yet.
    Joining,
    /// The replica's record is damaged and cannot be read.
    Damaged,
    /// The replica's answer does not fit the question.
    OffTopic,
    /// An operator has paused the work.
    Paused,
    /// Keys are placed otherwise than when the request was planned: it must be planned again.
    Moved,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(error) => error.fmt(f),
            Self::Call(error) => error.fmt(f),
            Self::Late => f.write_str("no answer in time"),
            Self::Unreachable => f.write_str("no link to it"),
            Self::NotVoting | Self::NotVotingYet => f.write_str("its store is not quorum-eligible yet"),
            Self::Joining => f.write_str("it joins, and does not answer yet"),
            Self::Damaged => f.write_str("its copy is damaged and cannot be read"),
            Self::OffTopic => f.write_str("its answer does not fit the request"),
            Self::Paused => f.write_str("the worker is paused"),
            Self::Moved => f.write_str("keys are placed otherwise since the request began"),
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

    /// Whether the replica is not quorum-eligible yet, has not joined yet, or works with another epoch: asked again soon, it
    /// may count.
    pub(crate) fn is_too_early(&self) -> bool {
        match self {
            Self::NotVotingYet | Self::Joining => true,
            Self::Call(CallError::Refused { code, .. }) => {
                matches!(code, Refusal::NotVotingYet | Refusal::Epoch)
            }
            _ => false,
        }
    }

    pub(crate) fn is_moved(&self) -> bool {
        matches!(self, Self::Moved)
    }

    pub(crate) fn is_overload(&self) -> bool {
        matches!(
            self,
            Self::Replica(ReplicaError::Overloaded | ReplicaError::Short { .. })
                | Self::Call(CallError::Refused { code: Refusal::Overloaded, .. })
        )
    }
}

/// Whether a call may have failed because its epoch ended: the replica works with another one, or was removed, and the link to
/// it ended.
fn ended_with_epoch(error: &CallError) -> bool {
    let is_refused = matches!(error, CallError::Refused { code: Refusal::Epoch, .. });
    let is_gone = matches!(error, CallError::Lost | CallError::NotSent { .. });
    is_refused || is_gone && !canary::is(Canary::EndedEpochFails)
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

/// `call`, which must be small, because every request makes some of its kind.
fn small<F: Future>(call: F) -> F {
    const { assert!(size_of::<F>() <= CALL_BYTES_MAX) };
    call
}

type Pending<T> = Pin<Box<dyn Future<Output = T>>>;

/// Calls under way, in the order in which they were made.
pub(crate) struct Calls<T>(Vec<(Slot, Pending<T>)>);

impl<T> Calls<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(3))
    }

    pub(crate) fn push(&mut self, node: Slot, call: impl Future<Output = T> + 'static) {
        self.0.push((node, Box::pin(call)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes that have not answered.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Slot> + '_ {
        self.0.iter().map(|(node, _)| *node)
    }

    /// The next answer; `None` when all have come.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer.
    pub(crate) async fn next(&mut self) -> Option<(Slot, T)> {
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
    shared: std::sync::Arc<Shared>,
    /// Has the links: that to a node that joins may come later.
    coordinator: Rc<Coordinator>,
    /// The epoch that the request was planned in.
    epoch: Epoch,
    /// Whether the latest answer was that the replica is not quorum-eligible yet.
    is_too_early: Rc<Cell<bool>>,
}

impl Asker {
    fn link(&self, node: Slot) -> Option<&Rc<Link>> {
        self.coordinator.link(node)
    }

    /// Applies `record` to this node's own replica.
    fn apply_here(
        &self,
        key: Key,
        record: Record,
        kind: ApplyKind,
        timeout: Duration,
    ) -> impl Future<Output = Write> + use<> {
        let (shared, is_too_early) = (std::sync::Arc::clone(&self.shared), Rc::clone(&self.is_too_early));
        let epoch = self.epoch;
        async move {
            if !shared.cluster.is_placed_as(epoch) {
                return Write::Moved;
            }
            let applied = tokio::time::timeout(timeout, shared.local.apply(key, record, kind, epoch)).await;
            match counted(&shared, epoch, applied) {
                Ok(applied) => Write::of(applied, &shared.stamps),
                Err(Cause::Moved) => Write::Moved,
                Err(Cause::NotVoting) => Write::Uncounted,
                Err(Cause::NotVotingYet) => {
                    is_too_early.set(true);
                    Write::Uncounted
                }
                Err(Cause::Replica(error)) if error.is_nothing_done() => {
                    Write::Refused(Cause::Replica(error))
                }
                Err(cause) => Write::Unknown(cause),
            }
        }
    }

    fn ask_apply_once(
        &self,
        node: Slot,
        key: &Key,
        record: &Record,
        kind: ApplyKind,
        timeout: Duration,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Write> + use<> {
        // In a box of its own: a call to another node is much smaller, and has no place for it.
        let local = (node == self.shared.cluster.me())
            .then(|| Box::pin(self.apply_here(key.clone(), record.clone(), kind, timeout)));
        let remote = match (&local, self.link(node)) {
            (None, Some(link)) => {
                let request = Request::Apply { key: key.clone(), record: record.clone(), kind };
                Some(link.call_within(&request, timeout, self.epoch, trace))
            }
            _ => None,
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let (is_too_early, epoch) = (Rc::clone(&self.is_too_early), self.epoch);
        async move {
            is_too_early.set(false);
            if let Some(local) = local {
                return local.await;
            }
            let Some(call) = remote else {
                let cause = shared.peering.unreachable(node);
                is_too_early.set(matches!(cause, Cause::Joining));
                return Write::Refused(cause);
            };
            let answer = call.await;
            if let Err(error) = &answer {
                shared.peering.note_failure(node, error);
            }
            match answer {
                Ok(Reply::Applied(applied)) => Write::of(applied, &shared.stamps),
                Err(error) if ended_with_epoch(&error) && !shared.cluster.is_placed_as(epoch) => Write::Moved,
                Err(CallError::Refused { code: Refusal::Epoch, .. }) => {
                    is_too_early.set(true);
                    Write::Uncounted
                }
                Ok(_) => Write::Unknown(Cause::OffTopic),
                Err(CallError::Refused {
                    code: code @ (Refusal::NotVoting | Refusal::NotVotingYet),
                    detail,
                }) => {
                    shared.cluster.note_not_voting(node, detail);
                    is_too_early.set(code == Refusal::NotVotingYet);
                    Write::Uncounted
                }
                Err(error) if is_nothing_done(&error) => {
                    let cause = shared.peering.cause_of(node, epoch, error);
                    is_too_early.set(matches!(cause, Cause::Joining));
                    Write::Refused(cause)
                }
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
        self: &Rc<Self>,
        node: Slot,
        key: &Key,
        record: &Record,
        kind: ApplyKind,
        (epoch, timeout): (Epoch, Duration),
    ) -> impl Future<Output = Write> + use<> {
        let (shared, coordinator) = (std::sync::Arc::clone(&self.shared), Rc::clone(self));
        let asker = Asker { shared, coordinator, epoch, is_too_early: Rc::default() };
        let (key, record) = (key.clone(), record.clone());
        let deadline = Instant::now() + timeout;
        let what = match kind {
            ApplyKind::Write => "apply",
            ApplyKind::Ballot => "accept",
            ApplyKind::Hint | ApplyKind::ReadRepair => "write back",
        };
        let step = slow::open(what, Some(node), node == self.shared.cluster.me());
        let trace = step.context();
        let first = asker.ask_apply_once(node, &key, &record, kind, timeout, trace);
        let answered = async move {
            let mut answer = first.await;
            // Leave time for the last answer before the deadline: it says why the replica does not count.
            let margin = TOO_EARLY_WAIT.max(timeout / 8);
            while asker.is_too_early.get() && deadline > Instant::now() + margin {
                tokio::time::sleep(TOO_EARLY_WAIT).await;
                if !asker.shared.cluster.is_placed_as(asker.epoch) {
                    return Write::Moved;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                // Rare: in a box, so that other calls have no place for it.
                let again = asker.ask_apply_once(node, &key, &record, kind, left, trace);
                answer = Box::pin(again).await;
            }
            answer
        };
        small(step.over(answered))
    }

    /// Like [`Self::ask_newest`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_newest_later(
        self: &Rc<Self>,
        node: Slot,
        key: &Key,
        (epoch, deadline): (Epoch, Instant),
    ) -> impl Future<Output = Result<Version, Cause>> + use<> {
        let (coordinator, key) = (Rc::clone(self), key.clone());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_newest(node, &key, (epoch, left)).await
        }
    }

    /// Like [`Self::ask_get`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_get_later(
        self: &Rc<Self>,
        node: Slot,
        key: &Key,
        value_bytes_max: u32,
        (epoch, deadline): (Epoch, Instant),
    ) -> impl Future<Output = Read> + use<> {
        let (coordinator, key) = (Rc::clone(self), key.clone());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_get(node, &key, value_bytes_max, (epoch, left)).await
        }
    }

    /// Asks `node` which version a write to `key` must exceed.
    pub(crate) fn ask_newest(
        &self,
        node: Slot,
        key: &Key,
        (epoch, timeout): (Epoch, Duration),
    ) -> impl Future<Output = Result<Version, Cause>> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let key = key.clone();
        let me = node == shared.cluster.me();
        let remote = if me { None } else { self.link(node) };
        let step = slow::open("newest", Some(node), me);
        let remote = remote.map(|link| {
            link.call_within(&Request::Newest { key: key.clone() }, timeout, epoch, step.context())
        });
        let answered = async move {
            if me {
                let newest = tokio::time::timeout(timeout, shared.local.newest(&key, epoch)).await;
                return counted(&shared, epoch, newest);
            }
            let Some(call) = remote else { return Err(shared.peering.unreachable(node)) };
            match call.await {
                Ok(Reply::NewestIs(version)) => Ok(version),
                Ok(_) => Err(Cause::OffTopic),
                Err(error) => Err(shared.peering.failed(node, epoch, error)),
            }
        };
        step.over(answered)
    }

    /// Asks `node` to promise `ballot`. Of a value over [`INLINE_BYTES_MAX`] only the header comes.
    pub(crate) fn ask_prepare(
        &self,
        node: Slot,
        key: &Key,
        ballot: Version,
        earlier: &[Version],
        (epoch, timeout): (Epoch, Duration),
    ) -> impl Future<Output = Result<BallotReply, Cause>> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let (key, earlier, value_bytes_max) = (key.clone(), earlier.to_vec(), INLINE_BYTES_MAX);
        let me = node == shared.cluster.me();
        let remote = if me { None } else { self.link(node) };
        let step = slow::open("prepare", Some(node), me);
        let remote = remote.map(|link| {
            let request =
                Request::Prepare { key: key.clone(), ballot, earlier: earlier.clone(), value_bytes_max };
            link.call_within(&request, timeout, epoch, step.context())
        });
        let answered = async move {
            if me {
                let prepared = shared.local.prepare(key, ballot, earlier, (value_bytes_max, epoch));
                return counted(&shared, epoch, tokio::time::timeout(timeout, prepared).await);
            }
            let Some(call) = remote else { return Err(shared.peering.unreachable(node)) };
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
                Err(error) => Err(shared.peering.failed(node, epoch, error)),
            }
        };
        step.over(answered)
    }

    /// Like [`Self::ask_prepare`] after a short wait, for a replica that was not quorum-eligible yet.
    pub(crate) fn ask_prepare_later(
        self: &Rc<Self>,
        node: Slot,
        key: &Key,
        ballot: Version,
        earlier: &[Version],
        (epoch, deadline): (Epoch, Instant),
    ) -> impl Future<Output = Result<BallotReply, Cause>> + use<> {
        let (coordinator, key, earlier) = (Rc::clone(self), key.clone(), earlier.to_vec());
        async move {
            tokio::time::sleep(TOO_EARLY_WAIT).await;
            let left = deadline.saturating_duration_since(Instant::now());
            coordinator.ask_prepare(node, &key, ballot, &earlier, (epoch, left)).await
        }
    }

    /// Asks every other node the same. Fails with the first node to which there is no link.
    pub(crate) fn ask_others(
        &self,
        request: &Request,
        (epoch, timeout): (Epoch, Duration),
    ) -> Result<Calls<Result<Reply, CallError>>, Slot> {
        let mut calls = Calls::new();
        for index in self.shared.cluster.others() {
            let link = std::rc::Rc::clone(self.link(index).ok_or(index)?);
            let request = request.clone();
            calls.push(index, async move { link.call_within(&request, timeout, epoch, None).await });
        }
        Ok(calls)
    }

    /// Asks `node` for its record of `key`; of a value over `value_bytes_max` only the version is sent.
    pub(crate) fn ask_get(
        &self,
        node: Slot,
        key: &Key,
        value_bytes_max: u32,
        (epoch, timeout): (Epoch, Duration),
    ) -> impl Future<Output = Read> + use<> {
        let shared = std::sync::Arc::clone(&self.shared);
        let key = key.clone();
        let me = node == shared.cluster.me();
        let step = slow::open("get", Some(node), me);
        let remote = if me { None } else { self.link(node) };
        let remote = remote.map(|link| {
            let request = Request::Get { key: key.clone(), value_bytes_max };
            link.call_within(&request, timeout, epoch, step.context())
        });
        let answered = async move {
            if me {
                let read = tokio::time::timeout(timeout, shared.local.get(&key, epoch)).await;
                return counted(&shared, epoch, read).map(|record| record.map(Held::Whole));
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
                Err(error) => Err(shared.peering.failed(node, epoch, error)),
            }
        };
        small(step.over(answered))
    }

    /// Asks `node` which ballot is promised for `key`.
    pub(crate) fn ask_promise(
        &self,
        node: Slot,
        key: &Key,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Version>, Cause>> + use<> {
        let own = (node == self.shared.cluster.me()).then(|| self.shared.replica.promises().of(key));
        let call = if own.is_some() { None } else { self.link(node) };
        let call = call.map(|link| link.call(&Request::Promise { key: key.clone() }, timeout));
        async move {
            if let Some(ballot) = own {
                return Ok(Some(ballot).filter(|ballot| *ballot != Version::ZERO));
            }
            let Some(call) = call else { return Err(Cause::Unreachable) };
            match call.await {
                Ok(Reply::PromiseIs(ballot)) => Ok(ballot),
                Ok(_) => Err(Cause::OffTopic),
                Err(error) => Err(Cause::Call(error)),
            }
        }
    }
}

/// What this node's own replica `answered` in time, if it did and the answer counts.
fn counted<T>(
    shared: &Shared,
    epoch: Epoch,
    answered: Result<Result<T, NotCounted>, Elapsed>,
) -> Result<T, Cause> {
    match answered {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(why)) => Err(why.into_cause(&shared.cluster)),
        Err(_) if !shared.cluster.is_placed_as(epoch) => Err(Cause::Moved),
        Err(_) => Err(Cause::Late),
    }
}

impl NotCounted {
    pub(super) fn into_cause(self, cluster: &Cluster) -> Cause {
        match self {
            Self::Moved => Cause::Moved,
            Self::NotVoting if cluster.is_early() => Cause::NotVotingYet,
            Self::NotVoting => Cause::NotVoting,
            Self::Replica(error) => Cause::Replica(error),
        }
    }
}

impl Write {
    /// What a replica's answer means for a write. Moves this node's clock above any newer version.
    fn of(applied: Applied, stamps: &Stamps) -> Self {
        match applied {
            Applied::Stored => Self::Stored,
            Applied::Superseded { .. } if canary::is(Canary::SupersededIgnored) => Self::Stored,
            Applied::Superseded { by, memory_millis } => {
                stamps.observe(by);
                Self::Superseded { by, memory: Duration::from_millis(memory_millis.into()) }
            }
            Applied::TooLate { upto } => {
                stamps.observe(upto);
                Self::TooLate(upto)
            }
            Applied::Contested { by } => {
                stamps.observe(by);
                Self::Contested(by)
            }
        }
    }
}

impl Missing {
    /// The replica at `node`, with the reason why it did not confirm as the client is told it: the most specific one.
    pub(super) fn of(shared: &Shared, node: Slot, cause: &Cause) -> Self {
        let (cluster, local) = (&shared.cluster, &shared.local);
        let is_me = node == cluster.me();
        let reason = match cause {
            Cause::Late if is_me && cluster.is_early() => local.why_not_voting(),
            Cause::NotVoting | Cause::NotVotingYet if is_me => local.why_not_voting(),
            Cause::NotVoting | Cause::NotVotingYet => cluster.not_voting(node),
            Cause::Call(CallError::Refused { code: Refusal::NotVoting | Refusal::NotVotingYet, detail }) => {
                detail.clone()
            }
            Cause::Unreachable | Cause::Call(CallError::NotSent { reason: Unsent::Down }) => {
                let reason = cluster.contact(node, |contact| contact.reason().to_owned());
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
        Self { url: cluster.url_of(node).to_owned(), reason }
    }
}

impl Peering {
    /// Counts a call that failed. Where the node works with another epoch, asks it for later configurations.
    fn note_failure(&self, node: Slot, error: &CallError) {
        self.count_failure(node);
        if matches!(error, CallError::Refused { code: Refusal::Epoch, .. }) {
            self.configurations.ask(node);
        }
    }

    /// Notes a call of a request that was planned in `epoch`, and that failed. Returns why the replica did not confirm.
    pub(super) fn failed(&self, node: Slot, epoch: Epoch, error: CallError) -> Cause {
        self.note_failure(node, &error);
        self.cause_of(node, epoch, error)
    }

    fn cause_of(&self, node: Slot, epoch: Epoch, error: CallError) -> Cause {
        match error {
            error if ended_with_epoch(&error) && !self.cluster.is_placed_as(epoch) => Cause::Moved,
            CallError::NotSent { .. } if self.cluster.is_joining(node) => Cause::Joining,
            error => Cause::Call(error),
        }
    }

    /// The cause for which nothing was sent to a node without a link. A node that joins opens its store once it is named.
    fn unreachable(&self, node: Slot) -> Cause {
        if self.cluster.is_joining(node) { Cause::Joining } else { Cause::Unreachable }
    }

    pub(crate) fn count_failure(&self, node: Slot) {
        if let Some(peer) = self.cluster.peer(node) {
            peer.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}
