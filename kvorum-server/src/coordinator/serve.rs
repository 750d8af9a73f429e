//! The requests that a peer may send to this node.

use super::Shared;
use super::local_replica::NotCounted;
use super::range::Share;
use crate::background::anti_entropy::bulk::Part;
use crate::background::rate_limit::{charged, charged_hint};
use crate::membership::LEVEL_MAX;
use crate::peer::{ApplyKind, Caller, Held, Hello, Refusal, Reply, Request, Service, Timestamp};
use crate::replica::{Fetched, RangeReader, ReplicaError};
use crate::slow::{self, Trace, TraceContext};
use crate::spans::{Answer, Asked, Spans};
use bytes::Bytes;
use kvorum_core::agreement::{Epoch, Instance};
use kvorum_core::{Key, Partition, Record, Slot, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Scans that may be open on one connection.
const SCANS_OPEN_MAX: usize = 256;
/// How long a scan may wait for the request of its next part: it holds a snapshot of the store meanwhile.
const SCAN_IDLE_MAX: Duration = Duration::from_mins(1);
/// Bytes of records that one call may fetch, even if the caller allows more.
const FETCHED_BYTES_MAX: u32 = 4 << 20;

/// The service that answers a peer on one connection.
pub struct PeerHandler {
    shared: Arc<Shared>,
    scans: Rc<Scans>,
    /// The exporter of traces; none if there is none.
    spans: Option<Arc<Spans>>,
    /// Whether the peer was removed: it may ask for configurations, and for nothing else.
    is_removed: bool,
}

impl PeerHandler {
    /// A service over the node's shared state.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, scans: Rc::default(), spans: None, is_removed: false }
    }

    /// The same service, which notes the requests of traces in `spans`.
    #[must_use]
    pub fn with_spans(self, spans: Arc<Spans>) -> Self {
        Self { spans: Some(spans), ..self }
    }

    /// The same service, for the peer that sent `theirs`.
    #[must_use]
    pub fn of(self, theirs: &Hello) -> Self {
        Self { is_removed: self.shared.cluster.was_removed(theirs), ..self }
    }

    /// Notes that a peer has connected. It has sent no request yet.
    pub fn met(&self, theirs: &Hello) {
        if self.is_removed {
            return;
        }
        hear_at_once(&self.shared, theirs);
        if let Some(index) = self.shared.cluster.slot_of(theirs.node) {
            self.shared.peering.note_sign_of_life(index);
            self.shared.background.handoff.call(index);
        }
    }
}

/// Processes what a peer's hello says of this node's store, before any request over the new connection.
pub(super) fn hear_at_once(shared: &Arc<Shared>, theirs: &Hello) {
    if let Some(heard) = shared.background.membership.hear_hello(theirs) {
        let shared = Arc::clone(shared);
        tokio::task::spawn_local(async move { shared.background.membership.settle(heard).await });
    }
}

impl Service for PeerHandler {
    #[expect(clippy::too_many_lines, reason = "an arm for each message")]
    fn serve(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = Reply>>> {
        let shared = Arc::clone(&self.shared);
        let Some(index) = shared.cluster.slot_of(caller.peer).filter(|_| !self.is_removed) else {
            return match request {
                // One that was a member, and does not know yet that it is none any more.
                Request::Configurations { adopted, bytes } if shared.cluster.was_member(caller.peer) => {
                    Box::pin(configurations(shared, None, adopted, bytes))
                }
                _ => Box::pin(std::future::ready(foreign())),
            };
        };
        let epoch = caller.epoch;
        if request.is_of_epoch() {
            shared.configurations.note_epoch(index, epoch);
            if !shared.cluster.is_placed_as(epoch) {
                return Box::pin(std::future::ready(other_epoch(&shared, epoch)));
            }
        }
        match request {
            Request::Apply { key, record, kind } => Box::pin(apply(shared, key, record, kind, epoch)),
            Request::Get { key, value_bytes_max } => Box::pin(get(shared, key, value_bytes_max, epoch)),
            Request::Newest { key } => Box::pin(async move {
                let newest = shared.local.newest(&key, epoch).await;
                newest.map_or_else(|why| refusal(&shared, epoch, why), Reply::NewestIs)
            }),
            Request::Prepare { key, ballot, earlier, value_bytes_max } => {
                Box::pin(prepare(shared, key, ballot, earlier, (value_bytes_max, epoch)))
            }
            Request::Release { key, ballot } => Box::pin(async move {
                match shared.replica.release(key, ballot).await {
                    Ok(()) => Reply::Done,
                    Err(error) => refuse(&error),
                }
            }),
            Request::Promise { key } => {
                let ballot =
                    Some(shared.replica.promises().of(&key)).filter(|ballot| *ballot != Version::ZERO);
                Box::pin(std::future::ready(Reply::PromiseIs(ballot)))
            }
            Request::Fence { upto } => Box::pin(async move {
                // A refill begins by asking for the clocks of all members.
                if upto.0 == 0 {
                    shared.cluster.note_loss();
                }
                // A ballot that was promised here, or stamped here, is not above this.
                let met = shared.stamps.reading();
                match shared.replica.fence(upto.0).await {
                    Ok(()) => Reply::Fenced { met: Timestamp(met) },
                    Err(error) => refuse(&error),
                }
            }),
            // The caller's time of day is not judged: it came one way, and may be as old as this node was stopped for.
            Request::Ping { wall: _, cluster_id, registry } => Box::pin(async move {
                if let Some(index) = shared.cluster.slot_of(caller.peer) {
                    shared.background.membership.meet_cluster_id(index, cluster_id).await;
                }
                let membership = &shared.background.membership;
                membership.hear(caller.peer, &registry).await;
                // What was remembered of the caller until now: it must learn if it is not from there.
                let said = shared.cluster.registry().entries();
                membership.meet(caller.peer, &registry, false).await;
                let (cluster_id, votes) = (shared.cluster.id(), shared.cluster.votes());
                Reply::Pong { wall: shared.clock.wall(), cluster_id, registry: said, votes }
            }),
            Request::TakeHints => Box::pin(async move {
                let timeout = deadline.saturating_sub(shared.clock.mono());
                let (delivered, left) = shared.background.handoff.drain(index, timeout).await;
                Reply::HintsTaken { delivered, left, met: Timestamp(shared.stamps.met()) }
            }),
            Request::ScanOpen { start, end, bytes, sources, from } => {
                let share = Share { view: shared.cluster.view(), sources, from };
                let scans = Rc::clone(&self.scans);
                Box::pin(async move { scans.open(&shared, (start, end), share, bytes).await })
            }
            Request::ScanNext { scan, bytes } => {
                let scans = Rc::clone(&self.scans);
                Box::pin(async move { scans.next(&shared, scan, bytes).await })
            }
            Request::ScanClose { scan } => {
                self.scans.close(scan);
                Box::pin(std::future::ready(Reply::Done))
            }
            Request::Fetch { keys, bytes } => Box::pin(fetch(shared, keys, bytes)),
            Request::Stretch { partitions, after, bytes } => {
                Box::pin(stretch(shared, index, partitions, after, bytes))
            }
            Request::Survey { agreed, held_by } => {
                Box::pin(async move { shared.background.tombstone_gc.surveyed(index, agreed, held_by) })
            }
            Request::Close { round, upto, by_scan, partitions } => Box::pin(async move {
                match shared.background.tombstone_gc.closed(round, upto.0, by_scan, &partitions).await {
                    Ok(reply) => reply.unwrap_or_else(|| not_voting(&shared)),
                    Err(error) => refuse(&error),
                }
            }),
            Request::Step { kind, round, upto, partitions } => Box::pin(async move {
                let stepped = shared.background.tombstone_gc.stepped(kind, round, upto.0, &partitions).await;
                stepped.unwrap_or_else(|error| refuse(&error))
            }),
            // The caller takes the answer for everything that this node holds.
            Request::Floors | Request::Versions { .. } if !shared.timestamps.may_leave_out() => {
                Box::pin(std::future::ready(clock_in_doubt()))
            }
            Request::Floors => {
                let floors = shared.replica.believed_floors().unwrap_or_default();
                let sealed = floors.into_iter().map(|floor| Timestamp(floor.sealed)).collect();
                Box::pin(std::future::ready(Reply::FloorList(sealed)))
            }
            Request::Configurations { adopted, bytes } => {
                Box::pin(configurations(shared, Some(index), adopted, bytes))
            }
            Request::Propose { instance, ballot } => Box::pin(async move {
                let voted = shared.configurations.promise(instance, ballot).await;
                voted.map_or_else(|error| refuse(&error), Reply::Voted)
            }),
            Request::Accept { instance, ballot, value } => Box::pin(async move {
                let voted = shared.configurations.accept(instance, ballot, value).await;
                voted.map_or_else(|error| refuse(&error), Reply::Voted)
            }),
            Request::Force { instance, ballot, accepts, value } => Box::pin(async move {
                let voted = shared.configurations.force(instance, ballot, accepts, value).await;
                voted.map_or_else(|error| refuse(&error), Reply::Voted)
            }),
            Request::Compare { sums } => {
                Box::pin(
                    async move { Reply::Compared(shared.background.anti_entropy.compared(index, &sums)) },
                )
            }
            Request::Versions { partition, after, bytes, floor } => Box::pin(async move {
                // The floor only says which rows the answer may leave out. It changes nothing here, because anyone can send
                // a request in any node's name: this node asks the peer for its floors at the peer's own address.
                let partition = Partition(partition);
                let state = &shared.background.anti_entropy;
                match state.versions_for(state.pull_by(index), partition, after, bytes, floor).await {
                    Ok((rows, is_last)) => {
                        Reply::VersionList { rows, is_last, floor: shared.replica.floor(partition) }
                    }
                    Err(error) => refuse(&error),
                }
            }),
        }
    }

    fn serve_within(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
        trace: TraceContext,
    ) -> Pin<Box<dyn Future<Output = Reply>>> {
        let begun = self.spans.as_ref().and_then(|spans| Some((Arc::clone(spans), spans.begin_call(trace)?)));
        let call = request.call_kind().name();
        let work = self.serve(caller, request, deadline);
        let Some((spans, traced)) = begun else { return work };
        let (shared, trace) = (Arc::clone(&self.shared), Trace::begin(Some(traced.context())));
        let (wall, mono) = (shared.clock.wall(), shared.clock.mono());
        Box::pin(async move {
            let reply = slow::within(Rc::clone(&trace), work).await;
            let caller = shared.cluster.slot_of(caller.peer).map_or("", |index| shared.cluster.url_of(index));
            let is_refused = matches!(reply, Reply::Refused { .. });
            let of = Asked::Peer { call, caller: caller.to_owned(), is_refused };
            let took = shared.clock.mono().saturating_sub(mono);
            let answer = Answer { of, begun_millis: wall.0, took };
            spans.finish(traced, answer, &trace, |node| (shared.cluster.url_of(node).to_owned(), true));
            reply
        })
    }

    fn ended(&self, _caller: Caller) {
        self.scans.open.borrow_mut().clear();
    }
}

/// The scans that a peer has open on one connection.
#[derive(Default)]
struct Scans {
    numbers: Cell<u32>,
    open: RefCell<BTreeMap<u32, OpenScan>>,
    /// Scans whose next part is being read, with true if they were closed meanwhile.
    reading: RefCell<BTreeMap<u32, bool>>,
}

/// A scan between two of its parts.
struct OpenScan {
    reader: RangeReader,
    share: Share,
    used_at: Duration,
}

impl Scans {
    async fn open(
        &self,
        shared: &Shared,
        (start, end): (Key, Option<Key>),
        share: Share,
        bytes: u32,
    ) -> Reply {
        let now = shared.clock.mono();
        self.open.borrow_mut().retain(|_, scan| scan.used_at + SCAN_IDLE_MAX > now);
        if self.open.borrow().len() >= SCANS_OPEN_MAX {
            return Reply::Refused {
                code: Refusal::Overloaded,
                detail: "too many scans are open".to_owned(),
            };
        }
        let epoch = share.view.placed_since();
        match shared.local.scan(start, end, epoch).await {
            Ok(reader) => {
                let number = self.numbers.get().wrapping_add(1);
                self.numbers.set(number);
                self.part(shared, number, OpenScan { reader, share, used_at: now }, bytes).await
            }
            Err(why) => refusal(shared, epoch, why),
        }
    }

    async fn next(&self, shared: &Shared, number: u32, bytes: u32) -> Reply {
        let scan = self.open.borrow_mut().remove(&number);
        match scan {
            Some(scan) => self.part(shared, number, scan, bytes).await,
            None => Reply::Refused { code: Refusal::Unknown, detail: "no such scan is open".to_owned() },
        }
    }

    async fn part(&self, shared: &Shared, scan: u32, mut open: OpenScan, bytes: u32) -> Reply {
        self.reading.borrow_mut().insert(scan, false);
        let part = open.share.next(shared, &mut open.reader, bytes).await;
        let is_closed = self.reading.borrow_mut().remove(&scan) == Some(true);
        if !shared.cluster.votes() {
            return not_voting(shared);
        }
        match part {
            Ok(rows) => {
                let is_last = rows.is_empty();
                if !is_last && !is_closed {
                    open.used_at = shared.clock.mono();
                    self.open.borrow_mut().insert(scan, open);
                }
                Reply::ScanPart { scan, rows, is_last }
            }
            Err(error) => refuse(&error),
        }
    }

    fn close(&self, scan: u32) {
        self.open.borrow_mut().remove(&scan);
        // Its next part, requested ahead, is being read: the scan must not be put back afterwards.
        if let Some(is_closed) = self.reading.borrow_mut().get_mut(&scan) {
            *is_closed = true;
        }
    }
}

async fn configurations(shared: Arc<Shared>, index: Option<Slot>, theirs: Instance, bytes: u32) -> Reply {
    if let Some(index) = index {
        shared.configurations.note_asked(index, theirs);
    }
    if shared.cluster.id().is_none() {
        let detail = "this node does not know the cluster's id yet".to_owned();
        return Reply::Refused { code: Refusal::Starting, detail };
    }
    if bytes == 0 && !shared.configurations.is_last(theirs).await {
        let detail = "a later configuration may have been decided".to_owned();
        return Reply::Refused { code: Refusal::Epoch, detail };
    }
    let configurations = shared.configurations.after(theirs.epoch, bytes).await;
    let adopted = shared.cluster.configuration().instance();
    let compared = shared.background.anti_entropy.progress.compared_in(adopted.epoch).into_iter().collect();
    Reply::ConfigurationList { adopted, level_max: LEVEL_MAX, compared, configurations }
}

async fn apply(shared: Arc<Shared>, key: Key, record: Record, kind: ApplyKind, epoch: Epoch) -> Reply {
    shared.stamps.observe(record.version);
    shared.metrics.count_applied(kind);
    match kind {
        ApplyKind::Write | ApplyKind::Ballot => shared.background.pace.note_request(),
        ApplyKind::Hint => shared.background.pace.hold(charged_hint(&key, &record)).await,
        ApplyKind::ReadRepair => {}
    }
    // Copy the key: the store remembers keys for a while, and a slice would keep the whole received buffer in memory.
    let Ok(key) = Key::new(Bytes::copy_from_slice(key.as_ref())) else { return unknown() };
    let applied = shared.local.apply(key, record, kind, epoch).await;
    applied.map_or_else(|why| refusal(&shared, epoch, why), Reply::Applied)
}

async fn prepare(
    shared: Arc<Shared>,
    key: Key,
    ballot: Version,
    earlier: Vec<Version>,
    (value_bytes_max, epoch): (u32, Epoch),
) -> Reply {
    shared.stamps.observe(ballot);
    shared.background.pace.note_request();
    // Copy the key: the store keeps it with the promise, and a slice would keep the whole received buffer in memory.
    let Ok(key) = Key::new(Bytes::copy_from_slice(key.as_ref())) else { return unknown() };
    let prepared = shared.local.prepare(key, ballot, earlier, (value_bytes_max, epoch)).await;
    prepared.map_or_else(|why| refusal(&shared, epoch, why), Reply::Prepared)
}

async fn fetch(shared: Arc<Shared>, keys: Vec<Key>, bytes: u32) -> Reply {
    // Read the floors before the records: they are then at least as recent.
    let agreed = shared.background.anti_entropy.agreed_of(&keys);
    let bytes = usize::try_from(bytes.min(FETCHED_BYTES_MAX)).unwrap_or(1);
    match shared.replica.get_many(keys.clone(), bytes).await {
        Ok(records) => {
            // A request for a single key is not delayed, because a caller waits for it.
            if keys.len() > 1 {
                let charged = keys.iter().zip(&records).map(|(key, fetched)| match fetched {
                    Fetched::Record(record) => charged(key, record),
                    Fetched::Nothing | Fetched::Damaged => 0,
                });
                shared.background.pace.hold(charged.sum()).await;
            }
            Reply::Fetched { agreed: Timestamp(agreed), records }
        }
        Err(error) => refuse(&error),
    }
}

async fn stretch(
    shared: Arc<Shared>,
    index: Slot,
    partitions: Vec<u16>,
    after: Option<Key>,
    bytes: u32,
) -> Reply {
    match shared
        .background
        .anti_entropy
        .part_for(index, &partitions, after, bytes.min(FETCHED_BYTES_MAX))
        .await
    {
        Ok(Part { records, last, is_large }) => {
            shared.background.pace.hold(records.iter().map(|row| charged(&row.key, &row.record)).sum()).await;
            Reply::Stretched { last, is_large, records }
        }
        Err(error) => refuse(&error),
    }
}

async fn get(shared: Arc<Shared>, key: Key, value_bytes_max: u32, epoch: Epoch) -> Reply {
    shared.background.pace.note_request();
    match shared.local.get(&key, epoch).await {
        Ok(record) => Reply::Found(record.map(|record| Held::new(record, value_bytes_max))),
        Err(why) => refusal(&shared, epoch, why),
    }
}

/// The reply to a request of `epoch` whose answer does not count.
fn refusal(shared: &Shared, epoch: Epoch, why: NotCounted) -> Reply {
    match why {
        NotCounted::Moved => other_epoch(shared, epoch),
        NotCounted::NotVoting => not_voting(shared),
        NotCounted::Replica(error) => refuse(&error),
    }
}

/// Refuses what is of `theirs`, another epoch than this node's. The node that is behind catches up, and the request may come
/// again.
fn other_epoch(shared: &Shared, theirs: Epoch) -> Reply {
    shared.metrics.epochs_refused.fetch_add(1, Ordering::Relaxed);
    let ours = shared.cluster.epoch();
    let detail = format!("this node works with epoch {ours}, and the request is of epoch {theirs}");
    Reply::Refused { code: Refusal::Epoch, detail }
}

fn not_voting(shared: &Shared) -> Reply {
    let is_early = shared.cluster.is_early();
    let code = if is_early { Refusal::NotVotingYet } else { Refusal::NotVoting };
    Reply::Refused { code, detail: shared.local.why_not_voting() }
}

/// Refuses to list this store's rows. With a clock that may be behind, the list would leave out rows that only seem to be
/// from the future.
fn clock_in_doubt() -> Reply {
    let detail = "this node's clock may be wrong: this node lists no records until a majority of the nodes has \
                  confirmed the clock";
    Reply::Refused { code: Refusal::NotVoting, detail: detail.to_owned() }
}

fn refuse(error: &ReplicaError) -> Reply {
    let code = match error {
        ReplicaError::Overloaded | ReplicaError::Short { .. } => Refusal::Overloaded,
        ReplicaError::DiskFull => Refusal::DiskFull,
        ReplicaError::Stopped => Refusal::Stopped,
        ReplicaError::TooFarAhead(_) => Refusal::TooFarAhead,
        ReplicaError::ValueTooLong { .. } => Refusal::TooLong,
        damaged if damaged.is_damage() => Refusal::Damaged,
        ReplicaError::DiskFilledUp
        | ReplicaError::ShortMet { .. }
        | ReplicaError::Failed { .. }
        | ReplicaError::Engine(_)
        | ReplicaError::Chain(_)
        | ReplicaError::Format(_) => Refusal::Failed,
    };
    Reply::Refused { code, detail: error.to_string() }
}

fn foreign() -> Reply {
    Reply::Refused {
        code: Refusal::Unknown,
        detail: "the node that asks is not a member of this cluster: a plan must name it".to_owned(),
    }
}

fn unknown() -> Reply {
    Reply::Refused { code: Refusal::Unknown, detail: "this release does not know the request".to_owned() }
}
