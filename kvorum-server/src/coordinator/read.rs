//! Reads: as many replicas as must confirm are asked, this node and the fastest first. The freshest record wins. If the
//! answers differ, it is written back before the read is answered, so that no later read goes back in time.

use super::ballot::{Ballot, End, Purpose, majority};
use super::calls::{Calls, Cause, INLINE_BYTES_MAX, Read, Write};
use super::confirm::Unconfirmed;
use super::{Coordinator, CoordinatorError, Found, Missing};
use crate::canary::{self, Canary};
use crate::cluster::Plan;
use crate::peer::{ApplyKind, Held};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Key, Quorum, Record, Slot, Version};
use kvorum_profiler::waits::{Since, Wait};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Rounds that one read may need: each further one means that it met a newer write while it wrote an older one back.
/// Measured on one key under 64 clients without a pause, half of them writers: 3 of 100 reads needed more than 8
/// rounds.
const ROUNDS_MAX: usize = 32;
/// How often a waiting read checks whether a replica that it asked has stopped answering altogether.
const SUSPECT_LOOK: Duration = Duration::from_millis(20);
/// The least wait before a read is hedged: below it, timers and scheduling are most of the latency.
const HEDGE_WAIT_MIN: Duration = Duration::from_millis(1);

/// The answers of replicas to one read.
struct Replies {
    held: Vec<(Slot, Option<Held>)>,
    missing: Vec<(Slot, Cause)>,
}

/// The outcome of writing a record back.
enum WrittenBack {
    Enough,
    /// A replica holds a newer record: the read begins again, and asks that replica first. Other replicas might miss
    /// the newer record again and again, if it was written with a smaller `from`.
    Superseded {
        at: Slot,
    },
    /// A promise keeps the record out at a replica: only a ballot can tell what becomes of it.
    Contested,
    /// Keys are placed otherwise than when the read was planned: it begins again.
    Moved,
    /// Fewer replicas hold the record than must, of a list that is written.
    TooFew {
        /// How many hold it.
        held: usize,
        /// Those that could not be asked to, and why.
        missing: Vec<(Slot, Cause)>,
    },
}

impl Coordinator {
    /// Reads the freshest record of `key` among `quorum.ack` replies.
    ///
    /// # Errors
    /// [`CoordinatorError::NotEnoughReplicas`] when fewer answered in time, or when the record could not be written
    /// back to enough replicas.
    ///
    /// # Cancel safety
    /// A read changes nothing but what repair would change; dropping the future is safe.
    pub async fn read(self: &Rc<Self>, key: Key, quorum: Quorum) -> Result<Found, CoordinatorError> {
        let begun = Instant::now();
        let deadline = begun + self.shared.settings.request_timeout;
        self.hedge_allowance();
        self.shared.background.pace.note_request();
        let mut ask_first = None;
        for _ in 0..ROUNDS_MAX {
            let since = Since::now();
            let view = self.view();
            match self.confirm_epoch(&view, quorum, deadline).await {
                Ok(()) => {}
                Err(Unconfirmed::Moved) => continue,
                Err(Unconfirmed::By(missing)) => return Err(self.too_few(quorum, begun, 0, missing)),
            }
            let plan = view.plan(&key, quorum);
            let era = self.shared.cluster.era(plan.epoch);
            let is_over = || self.shared.cluster.era(plan.epoch) != era;
            let replies = self.ask_replicas(&key, &plan, ask_first, begun).await?;
            since.end(Wait::ReadReplicas);
            let Some(replies) = replies.filter(|_| !is_over()) else { continue };
            let answered = u16::try_from(replies.held.len()).unwrap_or(u16::MAX);
            let newest = replies.held.iter().filter_map(|(_, held)| held.as_ref().map(Held::version)).max();
            let Some(version) = newest else { return Ok(self.found(None, answered)) };
            let record = self.whole(&key, version, &replies, (plan.epoch, deadline)).await;
            let record = match record {
                Ok(Some(record)) => record,
                // The record has been overwritten meanwhile.
                Ok(None) => continue,
                Err((_, cause)) if cause.is_moved() => continue,
                Err(cause) => return Err(self.too_few(quorum, begun, answered, vec![cause])),
            };
            let since = Since::now();
            let written_back = self.write_back(&key, &plan, &record, &replies, deadline).await;
            since.end(Wait::ReadWriteBack);
            match written_back {
                WrittenBack::Enough if is_over() => {}
                WrittenBack::Enough => return Ok(self.found(Some(record), answered)),
                WrittenBack::Superseded { at } => ask_first = Some(at),
                WrittenBack::Moved => {}
                WrittenBack::Contested => {
                    let record = self.read_by_ballot(&key, quorum, begun, record.version).await?;
                    return Ok(self.found(record, answered));
                }
                WrittenBack::TooFew { held, missing } => {
                    let held = u16::try_from(held).unwrap_or(u16::MAX);
                    return Err(self.too_few(quorum, begun, held, missing));
                }
            }
        }
        Err(self.too_few(quorum, begun, 0, Vec::new()))
    }

    /// The newest record of `key` that stays. For a read that found a record at `met`, which a promise keeps it from writing
    /// back.
    async fn read_by_ballot(
        self: &Rc<Self>,
        key: &Key,
        quorum: Quorum,
        begun: Instant,
        met: Version,
    ) -> Result<Option<Record>, CoordinatorError> {
        let deadline = begun + self.shared.settings.request_timeout;
        let mut ballot = Ballot::new(self, key.clone(), majority(quorum), begun, deadline);
        ballot.above = met;
        self.shared.metrics.ballots_recovered.fetch_add(1, Ordering::Relaxed);
        match ballot.run(&Purpose::Read).await? {
            End::Kept(record) => Ok(record),
            // A read writes nothing of its own.
            End::Done { .. } | End::Failed { .. } | End::Unfit(_) => Err(CoordinatorError::Stopped),
        }
    }

    fn found(&self, record: Option<Record>, answered: u16) -> Found {
        Found { record, now: self.shared.timestamps.expiry_clock(), answered }
    }

    fn too_few(
        &self,
        quorum: Quorum,
        begun: Instant,
        confirmed: u16,
        mut missing: Vec<(Slot, Cause)>,
    ) -> CoordinatorError {
        self.shared.metrics.reads_failed.fetch_add(1, Ordering::Relaxed);
        if let ([(node, Cause::Replica(_))], true) = (&*missing, quorum.from() == 1)
            && *node == self.shared.cluster.me()
            && let Some((_, Cause::Replica(error))) = missing.pop()
        {
            return CoordinatorError::Replica(error);
        }
        let missing =
            missing.into_iter().map(|(node, cause)| Missing::of(&self.shared, node, &cause)).collect();
        let waited = begun.elapsed();
        CoordinatorError::NotEnoughReplicas { quorum, confirmed, missing, waited }
    }

    /// Asks replicas until `quorum.ack` have answered, `ask_first` among the first. None: keys are placed otherwise
    /// meanwhile, and the read is to be planned again.
    async fn ask_replicas(
        self: &Rc<Self>,
        key: &Key,
        plan: &Plan<'_>,
        ask_first: Option<Slot>,
        begun: Instant,
    ) -> Result<Option<Replies>, CoordinatorError> {
        let deadline = begun + self.shared.settings.request_timeout;
        let quorum = plan.quorum;
        let mut unasked = self.by_readiness(plan.partition, plan.replicas);
        // The node at the end of the list is asked first; the order of the others stays.
        unasked.reverse();
        unasked.sort_by_key(|node| Some(*node) == ask_first);
        let mut calls = Calls::new();
        let mut replies = Replies { held: Vec::with_capacity(3), missing: Vec::new() };
        let ask = |calls: &mut Calls<Read>, unasked: &mut Vec<Slot>| {
            let Some(node) = unasked.pop() else { return };
            let first = calls.is_empty();
            let value_bytes_max = if first { u32::MAX } else { INLINE_BYTES_MAX };
            let timeout = deadline.saturating_duration_since(Instant::now());
            calls.push(node, self.ask_get(node, key, value_bytes_max, (plan.epoch, timeout)));
        };
        for _ in 0..quorum.ack() {
            ask(&mut calls, &mut unasked);
        }
        let mut hedge_at = Instant::now() + self.hedge_wait(calls.nodes());
        loop {
            if replies.held.len() >= usize::from(quorum.ack()) {
                self.hear_out(key.clone(), plan.epoch, calls, &replies);
                return Ok(Some(replies));
            }
            let wake_at = if unasked.is_empty() { deadline } else { hedge_at.min(deadline) };
            match tokio::time::timeout_at(wake_at, calls.next()).await {
                Ok(Some((node, Ok(held)))) => replies.held.push((node, held)),
                Ok(Some((_, Err(cause)))) if cause.is_moved() => return Ok(None),
                Ok(Some((node, Err(cause)))) => {
                    if cause.is_too_early() {
                        let when = (plan.epoch, deadline);
                        calls.push(node, self.ask_get_later(node, key, INLINE_BYTES_MAX, when));
                    }
                    if !replies.missing.iter().any(|(missing, _)| *missing == node) {
                        replies.missing.push((node, cause));
                        ask(&mut calls, &mut unasked);
                    }
                }
                Ok(None) => break,
                Err(_) if Instant::now() >= deadline => break,
                Err(_) => {
                    hedge_at = Instant::now() + SUSPECT_LOOK;
                    if calls.nodes().any(|node| !self.is_ready(node)) || self.take_hedge() {
                        self.shared.metrics.hedges.fetch_add(1, Ordering::Relaxed);
                        ask(&mut calls, &mut unasked);
                    }
                }
            }
        }
        let answered = u16::try_from(replies.held.len()).unwrap_or(u16::MAX);
        let mut missing = replies.missing;
        let is_known = |node: &Slot| missing.iter().any(|(missing, _)| missing == node);
        let late: Vec<Slot> = calls.nodes().filter(|node| !is_known(node)).collect();
        missing.extend(late.into_iter().map(|node| (node, Cause::Late)));
        Err(self.too_few(quorum, begun, answered, missing))
    }

    /// The record of `version`, fetched whole if only its header came. `None` when it has been overwritten meanwhile.
    async fn whole(
        &self,
        key: &Key,
        version: Version,
        replies: &Replies,
        (epoch, deadline): (Epoch, Instant),
    ) -> Result<Option<Record>, (Slot, Cause)> {
        let mut newest: Option<&Record> = None;
        let mut holders = Vec::new();
        for (node, held) in &replies.held {
            match held {
                Some(Held::Whole(record)) if record.version == version => {
                    let is_newer = newest.is_none_or(|known| record.newness(known).is_gt());
                    newest = if is_newer { Some(record) } else { newest };
                }
                Some(held) if held.version() == version => holders.push(*node),
                _ => {}
            }
        }
        if let Some(record) = newest {
            return Ok(Some(record.clone()));
        }
        let mut failed = None;
        for node in holders {
            let timeout = deadline.saturating_duration_since(Instant::now());
            match self.ask_get(node, key, u32::MAX, (epoch, timeout)).await {
                Ok(Some(Held::Whole(record))) if record.version == version => return Ok(Some(record)),
                Ok(_) => return Ok(None),
                Err(cause) => failed = Some((node, cause)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Makes every later read that overlaps with this one see `record`. As many replicas as this read asks must hold
    /// it, limited to those that the record's own `from` allows. Reads with quorums `b/g` and later `b'/g'` overlap
    /// when b + b' is above g and g'. The later read then meets at least one of any b holders.
    async fn write_back(
        self: &Rc<Self>,
        key: &Key,
        plan: &Plan<'_>,
        record: &Record,
        replies: &Replies,
        deadline: Instant,
    ) -> WrittenBack {
        let holds = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.version() == record.version);
        let is_known = replies.held.iter().all(|(_, held)| holds(held));
        if canary::is(Canary::NoWriteBack) || is_known && !plan.route.is_joint() {
            return WrittenBack::Enough;
        }
        let has = replies.held.iter().filter(|(_, held)| holds(held)).map(|(node, _)| *node);
        let mut holders: Vec<Slot> = has.collect();
        // A later read may ask either list of a partition that moves.
        for list in plan.route.writes() {
            match self.write_back_to(list, key, plan, (record, replies), (&mut holders, deadline)).await {
                WrittenBack::Enough => {}
                other => return other,
            }
        }
        WrittenBack::Enough
    }

    /// As [`Self::write_back`], on one list. `holders` are the nodes that hold the record.
    async fn write_back_to(
        self: &Rc<Self>,
        list: &[Slot],
        key: &Key,
        plan: &Plan<'_>,
        (record, replies): (&Record, &Replies),
        (holders, deadline): (&mut Vec<Slot>, Instant),
    ) -> WrittenBack {
        let ignores_from = canary::is(Canary::RepairIgnoresFrom);
        let allowed = if ignores_from { usize::MAX } else { usize::from(record.from) };
        let allowed = list.get(..allowed).unwrap_or(list);
        let needed = usize::from(plan.quorum.ack()).min(allowed.len());
        let mut held = allowed.iter().filter(|node| holders.contains(node)).count();
        let mut stale: Vec<Slot> = Vec::new();
        let mut others: Vec<Slot> = Vec::new();
        for node in self.by_readiness(plan.partition, allowed) {
            if !holders.contains(&node) {
                let answered = replies.held.iter().any(|(at, _)| *at == node);
                if answered { stale.push(node) } else { others.push(node) }
            }
        }
        others.reverse();
        let mut calls = Calls::new();
        let ask = |calls: &mut Calls<Write>, node: Slot| {
            let when = (plan.epoch, deadline.saturating_duration_since(Instant::now()));
            self.shared.metrics.read_repairs.fetch_add(1, Ordering::Relaxed);
            calls.push(node, self.ask_apply(node, key, record, ApplyKind::ReadRepair, when));
        };
        for node in stale {
            ask(&mut calls, node);
        }
        while held + calls.nodes().count() < needed {
            let Some(node) = others.pop() else { break };
            ask(&mut calls, node);
        }
        let mut missing = Vec::new();
        while held < needed {
            match tokio::time::timeout_at(deadline, calls.next()).await {
                Ok(Some((node, Write::Stored | Write::Uncounted))) => {
                    holders.push(node);
                    held += 1;
                }
                // A later read of that list finds something newer. This one cannot: it asks the other list.
                Ok(Some((at, Write::Superseded { by, .. }))) if !plan.replicas.contains(&at) => {
                    self.shared.stamps.observe(by);
                    held += 1;
                }
                Ok(Some((at, Write::Superseded { by, .. } | Write::TooLate(by)))) => {
                    self.shared.stamps.observe(by);
                    return WrittenBack::Superseded { at };
                }
                Ok(Some((_, Write::Contested(_)))) => return WrittenBack::Contested,
                Ok(Some((_, Write::Moved))) => return WrittenBack::Moved,
                Ok(Some((node, Write::Refused(cause) | Write::Unknown(cause)))) => {
                    missing.push((node, cause));
                    if let Some(node) = others.pop() {
                        ask(&mut calls, node);
                    }
                }
                Ok(None) | Err(_) => {
                    missing.extend(calls.nodes().map(|node| (node, Cause::Late)));
                    return WrittenBack::TooFew { held, missing };
                }
            }
        }
        WrittenBack::Enough
    }

    /// Waits for replicas that answer after the client has been answered, and repairs those with an older version.
    fn hear_out(self: &Rc<Self>, key: Key, epoch: Epoch, mut calls: Calls<Read>, replies: &Replies) {
        if calls.is_empty() {
            return;
        }
        let newest = replies.held.iter().filter_map(|(_, held)| match held {
            Some(Held::Whole(record)) => Some(record),
            _ => None,
        });
        let Some(newest) = newest.max_by(|a, b| a.newness(b)).cloned() else { return };
        let coordinator = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let partition = coordinator.shared.cluster.partition_of(&key);
            while let Some((node, answer)) = calls.next().await {
                let Ok(held) = answer else { continue };
                let is_behind = held.is_none_or(|held| held.version() < newest.version);
                let rank = coordinator.view().rank_of(partition, node);
                let is_allowed =
                    canary::is(Canary::RepairIgnoresFrom) || rank.is_some_and(|rank| rank < newest.from);
                if is_behind && is_allowed {
                    coordinator.shared.metrics.late_repairs.fetch_add(1, Ordering::Relaxed);
                    let timeout = coordinator.shared.settings.request_timeout;
                    let _ = coordinator
                        .ask_apply(node, &key, &newest, ApplyKind::ReadRepair, (epoch, timeout))
                        .await;
                }
            }
        });
    }

    /// How long to wait before another replica is asked: the slowest 95th percentile of the replicas asked so far.
    fn hedge_wait(&self, asked: impl Iterator<Item = Slot>) -> Duration {
        let p95 = asked.filter_map(|node| self.link(node)).map(|link| link.latency().p95).max();
        p95.unwrap_or(SUSPECT_LOOK).max(HEDGE_WAIT_MIN)
    }
}
