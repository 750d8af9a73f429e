//! Cuts: exact backups of the whole cluster, taken under load and faults as `kvorum backup create` takes them.
//!
//! The orders go to the nodes directly, with pauses between them that a network could make. Some nodes are left out
//! although they run. A cut of which a node is lost goes on with the others.

use crate::node::Nodes;
use crate::plan::{CutPlan, Plan};
use crate::seed::Stream;
use crate::trace::Trace;
use bytes::Bytes;
use kvorum_core::{Key, Record, Slot};
use kvorum_server::canary::{self, Canary};
use kvorum_server::coordinator::Shared;
use kvorum_server::replica::CutStep;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take for a step: a paused one is left out.
const STEP_MAX: Duration = Duration::from_secs(2);
/// The time between two looks whether a node has closed by itself.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Bytes of records that are read at a time.
const PART_BYTES: usize = 4096;
const AGE_MAX: Duration = Duration::from_hours(1);

/// A cut that was taken.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The timestamp, inclusive.
    pub upto: u64,
    /// When no node had closed yet: whatever was acknowledged by then must be in it. A node closes when it is told to, or before
    /// its first record above the timestamp.
    pub closing: Duration,
    /// After the last node had closed: whatever began later must not be in it.
    pub closed: Duration,
    /// The nodes whose snapshots were read.
    pub sources: Vec<u16>,
    /// The newest record of each key among them.
    pub records: BTreeMap<Bytes, Record>,
    /// For each partition that has a read quorum among the nodes that were read: true.
    pub is_covered: Vec<bool>,
}

/// The cuts of a run.
#[derive(Debug, Default)]
pub struct CutLog {
    /// Those that were taken.
    pub taken: Vec<Taken>,
    /// From when until when each was tried. A write that is under way when a node closes goes on by ballots; where rivals of its
    /// key do the same, its outcome may be unknown (`docs/dev/cuts.md`).
    pub disturbed: Vec<(Duration, Duration)>,
}

/// The log that a run and its cuts share.
pub type Cuts = Rc<RefCell<CutLog>>;

/// Takes the cuts of `plan`.
///
/// # Errors
/// None; the type is the simulation's.
pub async fn run(plan: Plan, nodes: Nodes, cuts: Cuts, trace: Trace) -> turmoil::Result {
    for (number, cut) in (0..).zip(plan.cuts.clone()) {
        tokio::time::sleep(cut.at.saturating_sub(now())).await;
        let mut stream = plan.seed.numbered("cut", number);
        let begun = now();
        let taken = take(&plan, cut, &mut stream, &nodes).await;
        let text = match &taken {
            Some(taken) => format!(
                "a cut at {:016x} of nodes {:?}, {} records, {} partitions covered",
                taken.upto,
                taken.sources,
                taken.records.len(),
                taken.is_covered.iter().filter(|covered| **covered).count()
            ),
            None => "no cut could be taken".to_owned(),
        };
        trace.line(now(), "backup", &text);
        let mut log = cuts.borrow_mut();
        log.disturbed.push((begun, now()));
        log.taken.extend(taken);
    }
    Ok(())
}

/// A node that takes part: the process whose snapshot it is.
struct Source {
    node: u16,
    shared: Arc<Shared>,
}

impl Source {
    async fn order(&self, step: CutStep) -> bool {
        matches!(tokio::time::timeout(STEP_MAX, self.shared.background.cuts.take(step)).await, Ok(Ok(())))
    }

    /// Whether its cut has closed.
    fn has_closed(&self) -> bool {
        self.shared.replica.cut_view().is_some_and(|cut| cut.digests.is_some())
    }

    /// Whether the store has a record above `upto` now.
    async fn has_above(&self, upto: u64) -> bool {
        let Ok(start) = Key::new(Bytes::from_static(b"\0")) else { return false };
        let Ok(mut reader) = self.shared.replica.scan(start, None).await else { return false };
        while let Ok(part) = reader.next(PART_BYTES).await {
            if part.is_empty() {
                break;
            }
            if part.iter().any(|(_, record)| record.version.clock() > upto) {
                return true;
            }
        }
        false
    }

    /// All records of the snapshot; none when it is gone.
    async fn read(&self, upto: u64, nodes: &Nodes) -> Option<Vec<(Bytes, Record)>> {
        let start = Key::new(Bytes::from_static(b"\0")).ok()?;
        let mut records = Vec::new();
        let mut reader = self.shared.replica.scan_cut(upto, start, None).await.ok()??;
        loop {
            let part = reader.next(PART_BYTES, self.shared.clock.mono()).await.ok()?;
            if !self.shared.cluster.votes() {
                return None;
            }
            if part.is_empty() {
                break;
            }
            records.extend(part);
        }
        // A process that has died answers nobody.
        let shared = nodes.get(self.node)?.shared().cloned()?;
        Arc::ptr_eq(&shared, &self.shared).then_some(records)
    }
}

/// Like [`pause`]. Moves `closing` on for as long as none of `armed` has closed.
async fn pause_watching(stream: &mut Stream, max: Duration, armed: &[Source], closing: &mut Duration) {
    let end = now() + stream.duration(Duration::ZERO, max);
    while !armed.iter().any(Source::has_closed) {
        *closing = now();
        if now() >= end {
            return;
        }
        tokio::time::sleep(LOOK_EVERY.min(end.saturating_sub(now()))).await;
    }
    tokio::time::sleep(end.saturating_sub(now())).await;
}

async fn pause(stream: &mut Stream, max: Duration) {
    let pause = stream.duration(Duration::ZERO, max);
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

async fn take(plan: &Plan, cut: CutPlan, stream: &mut Stream, nodes: &Nodes) -> Option<Taken> {
    let mut order: Vec<u16> = (0..plan.machines()).collect();
    stream.shuffle(&mut order);
    let is_left_out: Vec<bool> = order.iter().map(|_| stream.percent(25)).collect();
    let running = order.into_iter().zip(is_left_out).filter_map(|(node, is_left_out)| {
        let shared = nodes.get(node)?.shared().cloned()?;
        (!is_left_out).then_some(Source { node, shared })
    });
    let mut sources: Vec<Source> = running.collect();
    // Any node may say which ones there are, in which epoch.
    let view = sources.first()?.shared.cluster.view();
    sources.retain(|source| view.has(source.shared.cluster.me()));
    let highest = sources.iter().map(|source| source.shared.background.cuts.reading()).max()?;
    let ahead = crate::millis(cut.ahead);
    let upto = ((highest >> 16) + ahead) << 16 | 0xffff;
    let (mut armed, mut closing, mut has_above) = (Vec::new(), now(), false);
    for source in sources {
        pause_watching(stream, cut.pause_max, &armed, &mut closing).await;
        if source.order(CutStep::Arm { upto, age_max: AGE_MAX }).await {
            has_above |= source.has_above(upto).await;
            armed.push(source);
        }
    }
    pause_watching(stream, cut.pause_max * 4, &armed, &mut closing).await;
    sources = Vec::new();
    for source in armed {
        pause(stream, cut.pause_max).await;
        let is_closed = source.order(CutStep::Close { upto }).await;
        // In another epoch other nodes confirm writes.
        if is_closed
            && (source.shared.cluster.epoch() == view.epoch() || canary::is(Canary::CutOfSeveralEpochs))
        {
            sources.push(source);
        }
    }
    let closed = now();
    pause(stream, Duration::from_secs(3)).await;
    let mut taken = Taken { upto, closing, closed, ..Taken::default() };
    // The cluster numbers its nodes by their ids.
    let mut indexes = Vec::new();
    for source in &sources {
        let read = source.read(upto, nodes).await;
        source.order(CutStep::Drop { upto }).await;
        let Some(read) = read else { continue };
        taken.sources.push(source.node);
        indexes.push(source.shared.cluster.me());
        for (key, record) in read {
            let newest = match taken.records.remove(&key) {
                Some(known) => known.merge(record),
                None => record,
            };
            taken.records.insert(key, newest);
        }
    }
    // The program meets such a record in a snapshot, and the backup fails. One that comes after arming is the node's fault.
    if has_above {
        return None;
    }
    let default = plan.default_replicas();
    let covered = kvorum_core::Partition::all(view.configuration().partition_bits).map(|partition| {
        let list = view.preference_list(partition).iter().take(usize::from(default.from));
        let has = |index: &&Slot| indexes.contains(*index);
        list.filter(has).count() >= usize::from(default.ack)
    });
    taken.is_covered = covered.collect();
    Some(taken)
}

fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}
