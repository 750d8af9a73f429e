//! Tombstone GC: rounds of all nodes together, after which every node can drop its old dead rows.
//!
//! The first node on a partition's preference list leads the partition. A leader runs a round over its partitions:
//!
//! 1. *Survey*: all nodes report their clock reading, the oldest hint of each partition, whether they are
//!    quorum-eligible, and their digests. A partition with equal digests agrees up to the least clock reading of the
//!    round before, or up to just below its oldest hint.
//! 2. If there is something to purge: *close*, and compare the digests again.
//! 3. *Agree*, *seal*, *release*, each once all nodes have confirmed the step before ([`crate::replica::FloorStep`]).
//!
//! A node that is away, is not eligible or holds other records holds back every partition that it takes part in. These
//! are all partitions, because older copies may lie on any rank. The rules and their proof: `docs/dev/tombstones.md`.

mod answers;
pub(crate) mod meet_floors;

use super::worker::{Work, Worker};
use crate::canary::{self, Canary};
use crate::clock::{Clock, TimestampBound};
use crate::cluster::Cluster;
use crate::coordinator::{Coordinator, Shared, Stamps};
use crate::peer::{HeldBack, Reply, Request, StepKind, Timestamp};
use crate::replica::{FloorStep, Hints, Replica, ReplicaError};
use kvorum_core::agreement::Epoch;
use kvorum_core::{Partition, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How long one call of a round may take: a step costs one sync.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// A partition is worth a round once tombstones are one in so many of its keys: finding them reads its whole index.
const DEAD_SHARE: u64 = 16;
/// A partition with fewer tombstones is worth a round this long after its last one.
const LAZY: Duration = Duration::from_mins(5);
/// Rounds that a partition with dead rows may differ before it is compared by a scan of its old enough records only: a
/// partition with constant writes never agrees otherwise. The next scans follow after twice as many rounds each.
const RESTLESS_ROUNDS: u32 = 4;
/// Partitions that are compared by a scan in one round.
const SCANNED_MAX: usize = 64;
/// How long the purge waits before it retries rows that it could not remove.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Tombstone GC on this node: up to where all nodes agree, which node holds them back, and what this node answers to the
/// leaders of rounds.
pub struct TombstoneGc {
    parts: Parts,
    /// When the node started, by the monotonic clock.
    begun: Duration,
    // Guards the agreed timestamps. Held for a copy or an update.
    agreed: Mutex<Agreed>,
    /// Partitions whose dead rows may be removed.
    pub(crate) purges: Arc<Purges>,
    /// Requests a round over all partitions now; counts the requests.
    called: watch::Sender<u64>,
    /// Rounds led by this node that have ended.
    ended: watch::Sender<u64>,
    /// Partitions that these rounds released for the purge of dead rows.
    pub released: AtomicU64,
    /// Dead rows removed here.
    pub purged: AtomicU64,
}

/// What tombstone GC works with.
pub(crate) struct Parts {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timestamps: Arc<TimestampBound>,
    pub(crate) replica: Replica,
    pub(crate) hints: Hints,
    pub(crate) stamps: Arc<Stamps>,
    /// The time between two rounds.
    pub(crate) interval: Duration,
}

/// The queue of partitions whose dead rows may be removed.
#[derive(Debug, Default)]
pub(crate) struct Purges {
    // Guards the partitions. Held to add some or to take one.
    partitions: Mutex<BTreeSet<u16>>,
    has_more: Notify,
}

impl Purges {
    /// Queues `partitions` for the removal of the dead rows that their floors let go.
    pub(crate) fn add(&self, partitions: impl IntoIterator<Item = u16>) {
        self.lock().extend(partitions);
        self.has_more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Agreed {
    words: Vec<u64>,
    /// By leader: the node that holds its partitions back, and why; and when it was last heard from, by the monotonic
    /// clock.
    by_leader: BTreeMap<Slot, (Option<(u16, HeldBack)>, Duration)>,
}

/// Up to where all replicas of a partition agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The partition.
    pub partition: Partition,
    /// A timestamp; 0 while they have not been found to agree since this node started.
    pub agreed: u64,
    /// The node that leads the partition's rounds.
    pub leader: Slot,
    /// The node that holds it back, and why, as the leader last said.
    pub held_by: Option<(Slot, HeldBack)>,
}

impl TombstoneGc {
    pub(crate) fn new(parts: Parts) -> Self {
        let (cluster, begun) = (&parts.cluster, parts.clock.mono());
        let words = vec![0; 1 << cluster.partition_bits()];
        let agreed = Agreed { words, by_leader: BTreeMap::new() };
        Self {
            parts,
            begun,
            agreed: Mutex::new(agreed),
            purges: Arc::default(),
            called: watch::Sender::new(0),
            ended: watch::Sender::new(0),
            released: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        }
    }

    /// Rounds led by this node that have ended.
    pub fn rounds(&self) -> u64 {
        *self.ended.borrow()
    }

    /// Runs a round over this node's partitions now, however little there is to purge in them, and waits for its end.
    ///
    /// # Cancel safety
    /// The round goes on when the future is dropped.
    pub async fn round_now(&self) {
        let mut ended = self.ended.subscribe();
        // A round may be under way that began before the call: wait for the next one.
        let wanted = *ended.borrow_and_update() + 2;
        while *ended.borrow_and_update() < wanted {
            self.called.send_modify(|count| *count += 1);
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    fn agreed(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leads rounds over this node's partitions.
pub(crate) struct Rounds {
    own: Rc<Coordinator>,
    lead: Lead,
    called: watch::Receiver<u64>,
    /// What the next round is for; none while none is due.
    due: Option<Due>,
}

/// Why a round is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The interval has passed.
    Interval,
    /// It was asked for: every partition with something to purge is worth it.
    Called,
}

/// The state of the rounds that this node leads.
struct Lead {
    /// Since when keys are placed as they are: the epoch of the rounds.
    epoch: Epoch,
    /// The partitions that this node leads, ascending.
    led: Vec<u16>,
    /// The least clock reading of the latest round in which all nodes answered.
    reading: Option<u64>,
    /// For each partition: when it was last agreed, and for how many rounds it has differed.
    agreed_at: Vec<Duration>,
    differed: Vec<u32>,
}

/// The answers of all nodes to a survey.
struct Surveyed {
    reading: u64,
    /// For each partition with hints on any node: a timestamp at or below that of the oldest hint.
    hinted: BTreeMap<u16, u64>,
    /// For each led partition, whether all nodes agree.
    agree: Vec<bool>,
    held_by: Option<(u16, HeldBack)>,
}

impl Rounds {
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        let called = own.shared.background.tombstone_gc.called.subscribe();
        Self { lead: Lead::new(&own.shared), called, due: None, own }
    }
}

impl Lead {
    fn new(shared: &Shared) -> Self {
        let epoch = shared.cluster.placed_since();
        let led = shared.background.tombstone_gc.led_by(shared.cluster.me());
        let now = shared.clock.mono();
        let (agreed_at, differed) = (vec![now; led.len()], vec![0; led.len()]);
        Self { epoch, led, reading: None, agreed_at, differed }
    }
}

impl Worker for Rounds {
    /// Runs a round. One that is cut short changes nothing that a later round would not.
    async fn work(&mut self) -> Work {
        let Some(due) = self.due.take() else { return Work::Idle };
        let shared = Arc::clone(&self.own.shared);
        if shared.cluster.placed_since() != self.lead.epoch {
            self.lead = Lead::new(&shared);
        }
        if !shared.timestamps.stands_down() {
            self.lead_round(due == Due::Called).await;
        }
        if let Err(error) = shared.background.tombstone_gc.forget_repaired_gaps().await {
            tracing::debug!(%error, "cannot remove the marks of partitions that are in sync again");
        }
        shared.background.tombstone_gc.ended.send_modify(|ended| *ended += 1);
        Work::Idle
    }

    async fn wait_for_work(&mut self) {
        let wait = tokio::time::timeout(
            self.own.shared.background.tombstone_gc.parts.interval,
            self.called.changed(),
        );
        self.due = Some(if matches!(wait.await, Ok(Ok(()))) { Due::Called } else { Due::Interval });
    }
}

impl Rounds {
    async fn lead_round(&mut self, is_called: bool) {
        let shared = Arc::clone(&self.own.shared);
        let surveyed = self.survey().await;
        let held_by = match &surveyed {
            Ok(surveyed) => surveyed.held_by,
            Err(held_by) => Some(*held_by),
        };
        let me = shared.cluster.me();
        if let Some((node, why)) = held_by {
            tracing::debug!(node, ?why, "a node holds a round of tombstone GC back");
        }
        let Ok(surveyed) = surveyed else {
            shared.background.tombstone_gc.agreed().hear(me, held_by, shared.clock.mono());
            return;
        };
        let Some(reading) = self.lead.reading.replace(surveyed.reading) else { return };
        // An owner that is being filled may lack what a tombstone deletes, and take it later: nothing is purged meanwhile.
        if shared.cluster.view().is_joint() && !canary::is(Canary::PurgesWhileJoint) {
            return;
        }
        // A hint holds back only its own partition.
        let upto = |partition| {
            let oldest = surveyed.hinted.get(&partition).copied().unwrap_or(u64::MAX);
            reading.min(oldest.saturating_sub(1))
        };
        {
            let mut agreed = shared.background.tombstone_gc.agreed();
            agreed.hear(me, held_by, shared.clock.mono());
            for (partition, agrees) in self.lead.led.iter().zip(&surveyed.agree) {
                if let Some(word) = agreed.words.get_mut(usize::from(*partition)).filter(|_| *agrees) {
                    *word = upto(*partition).max(*word);
                }
            }
        }
        let (wanted, restless) = self.worth_a_round(&surveyed.agree, upto, is_called);
        let is_free = |partition: &u16| upto(*partition) == reading;
        let (free, hinted): (Vec<u16>, Vec<u16>) = wanted.into_iter().partition(is_free);
        let (restless, held): (Vec<u16>, Vec<u16>) = restless.into_iter().partition(is_free);
        for (partitions, by_scan) in [(free, false), (restless, true), (hinted, false), (held, true)] {
            // The whole list gets one timestamp.
            let Some(upto) = partitions.iter().map(|partition| upto(*partition)).min() else { continue };
            let done = match self.advance(partitions, upto, by_scan).await {
                Ok(done) => done,
                Err(error) => {
                    tracing::debug!(%error, "a round could not advance");
                    continue;
                }
            };
            let now = shared.clock.mono();
            for (place, partition) in self.lead.led.iter().enumerate() {
                if done.binary_search(partition).is_err() {
                    continue;
                }
                if let (Some(at), Some(rounds)) =
                    (self.lead.agreed_at.get_mut(place), self.lead.differed.get_mut(place))
                {
                    (*at, *rounds) = (now, 0);
                }
            }
            let mut agreed = shared.background.tombstone_gc.agreed();
            for partition in done {
                if let Some(word) = agreed.words.get_mut(usize::from(partition)) {
                    *word = upto.max(*word);
                }
            }
        }
    }

    /// Asks all nodes for their state. Returns as error the node that holds everything back, if there is one.
    async fn survey(&self) -> Result<Surveyed, (u16, HeldBack)> {
        let Lead { epoch, led, .. } = &self.lead;
        let shared = &self.own.shared;
        let me = shared.cluster.me();
        if !shared.cluster.votes() {
            return Err((me.0, HeldBack::NotVoting));
        }
        let hinted = shared.background.tombstone_gc.hinted(led);
        let held_by = (!hinted.is_empty()).then_some((me.0, HeldBack::Hints));
        let hinted = hinted.into_iter().collect();
        let mut surveyed = Surveyed {
            reading: shared.background.tombstone_gc.reading(),
            hinted,
            agree: vec![true; led.len()],
            held_by,
        };
        let before = shared.background.tombstone_gc.commons_of_others(led);
        let (agreed, held_by) = {
            let known = shared.background.tombstone_gc.agreed();
            let words = led.iter().map(|partition| known.words.get(usize::from(*partition)).copied());
            let held_by = known.by_leader.get(&me).and_then(|(held_by, _)| *held_by);
            (words.map(|word| Timestamp(word.unwrap_or_default())).collect(), held_by)
        };
        let request = Request::Survey { agreed, held_by };
        let asked = self.own.ask_others(&request, (*epoch, STEP_TIMEOUT));
        let mut calls = asked.map_err(|index| (index.0, HeldBack::Away))?;
        let mut away = None;
        while let Some((index, answer)) = calls.next().await {
            let Ok(Reply::Surveyed { reading, hinted, votes, digests }) = answer else {
                away = away.or(Some((index.0, HeldBack::Away)));
                continue;
            };
            if !votes {
                away = away.or(Some((index.0, HeldBack::NotVoting)));
            }
            surveyed.reading = surveyed.reading.min(reading.0);
            for (partition, Timestamp(oldest)) in hinted {
                let known = surveyed.hinted.entry(partition).or_insert(oldest);
                *known = oldest.min(*known);
                surveyed.held_by = Some((index.0, HeldBack::Hints));
            }
            let agree = shared.background.tombstone_gc.agree(led, index, before.get(&index), &digests);
            if agree.contains(&false) && !matches!(surveyed.held_by, Some((_, HeldBack::Hints))) {
                surveyed.held_by = Some((index.0, HeldBack::Differs));
            }
            surveyed.agree.iter_mut().zip(agree).for_each(|(all, one)| *all &= one);
        }
        away.map_or(Ok(surveyed), Err)
    }

    /// Selects led partitions with something to purge: those that agree, and those that never agree and are to be
    /// scanned.
    fn worth_a_round(
        &mut self,
        agree: &[bool],
        upto: impl Fn(u16) -> u64,
        is_called: bool,
    ) -> (Vec<u16>, Vec<u16>) {
        let (shared, lead) = (&self.own.shared, &mut self.lead);
        let (mut wanted, mut restless) = (Vec::new(), Vec::new());
        let Some(digests) = shared.replica.digests() else { return (wanted, restless) };
        let now = shared.clock.mono();
        for (place, partition) in lead.led.iter().enumerate() {
            let (keys, dead) = digests.counts(Partition(*partition));
            let Some(differed) = lead.differed.get_mut(place) else { continue };
            if dead == 0 || shared.replica.floor(Partition(*partition)).purged >= upto(*partition) {
                *differed = 0;
                continue;
            }
            if agree.get(place) == Some(&true) {
                *differed = 0;
                let agreed_at = lead.agreed_at.get(place).copied().unwrap_or_default();
                if is_called || dead * DEAD_SHARE >= keys || now >= agreed_at + LAZY {
                    wanted.push(*partition);
                }
                continue;
            }
            *differed += 1;
            let is_turn = *differed >= RESTLESS_ROUNDS && differed.is_power_of_two();
            if is_turn && restless.len() < SCANNED_MAX {
                restless.push(*partition);
            }
        }
        (wanted, restless)
    }

    /// Takes `partitions`, where all nodes agree, through the steps. Returns those that were released.
    async fn advance(
        &self,
        mut partitions: Vec<u16>,
        upto: u64,
        by_scan: bool,
    ) -> Result<Vec<u16>, ReplicaError> {
        let shared = &self.own.shared;
        if by_scan {
            // Close only where the scan agrees: a closed partition takes no old write, even one that it lacks.
            partitions = self.compare_past((0, upto, true), partitions).await?;
        }
        let mut word = [0; 8];
        shared.rng.fill(&mut word);
        let round = u64::from_be_bytes(word).max(1);
        let partitions = self.compare_past((round, upto, by_scan), partitions).await?;
        // Seal twice: a node confirms the second seal once all nodes have sealed. From then on a node that comes back
        // with an older disk hears of it from every other node. Before that, the node refuses the step.
        for kind in [StepKind::Agree, StepKind::Seal, StepKind::Seal, StepKind::Release] {
            if partitions.is_empty() || !self.step_all(kind, (round, upto), &partitions).await? {
                return Ok(Vec::new());
            }
        }
        shared.background.tombstone_gc.released.fetch_add(partitions.len() as u64, Ordering::Relaxed);
        Ok(partitions)
    }

    /// Closes `partitions` on all nodes (except in round 0) and returns those in which all nodes then hold the same.
    async fn compare_past(
        &self,
        (round, upto, by_scan): (u64, u64, bool),
        mut partitions: Vec<u16>,
    ) -> Result<Vec<u16>, ReplicaError> {
        let shared = &self.own.shared;
        if shared.cluster.placed_since() != self.lead.epoch {
            return Ok(Vec::new());
        }
        if round != 0 && !shared.replica.step(close(round, upto, &partitions)).await? {
            return Ok(Vec::new());
        }
        let mut before = BTreeMap::new();
        for index in shared.cluster.others() {
            let words = shared.background.tombstone_gc.commons(&partitions, index, by_scan.then_some(upto));
            before.insert(index, words.await?);
        }
        let request =
            Request::Close { round, upto: Timestamp(upto), by_scan, partitions: partitions.clone() };
        let Ok(mut calls) = self.own.ask_others(&request, (self.lead.epoch, STEP_TIMEOUT)) else {
            return Ok(Vec::new());
        };
        let mut all = vec![true; partitions.len()];
        while let Some((index, answer)) = calls.next().await {
            let Ok(Reply::DigestList(theirs)) = answer else { return Ok(Vec::new()) };
            let before = before.get(&index);
            let agree = if by_scan {
                let ours = before.map_or(&[][..], |words| words);
                same(ours, &theirs, partitions.len())
            } else {
                shared.background.tombstone_gc.agree(&partitions, index, before, &theirs)
            };
            all.iter_mut().zip(agree).for_each(|(all, one)| *all &= one);
        }
        let mut agree = all.into_iter();
        partitions.retain(|_| agree.next() == Some(true));
        Ok(partitions)
    }

    /// Has all nodes take a step; returns true when all have taken it.
    async fn step_all(
        &self,
        kind: StepKind,
        (round, upto): (u64, u64),
        partitions: &[u16],
    ) -> Result<bool, ReplicaError> {
        let shared = &self.own.shared;
        // Rounds are of one placement: what all agreed on in another says nothing of the nodes that hold the keys now.
        if shared.cluster.placed_since() != self.lead.epoch {
            return Ok(false);
        }
        let request = Request::Step { kind, round, upto: Timestamp(upto), partitions: partitions.to_vec() };
        let Ok(mut calls) = self.own.ask_others(&request, (self.lead.epoch, STEP_TIMEOUT)) else {
            return Ok(false);
        };
        let mut is_done = shared.background.tombstone_gc.step(kind, round, upto, partitions).await?;
        while let Some((_, answer)) = calls.next().await {
            is_done &= answer == Ok(Reply::Stepped(true));
        }
        Ok(is_done)
    }
}

/// Removes dead rows that floors let go.
pub(crate) struct Purge {
    own: Rc<Coordinator>,
    /// Partitions that could not be purged: they are retried after all others.
    failed: BTreeSet<u16>,
}

impl Purge {
    /// The service, which begins with the rows that the previous run did not get to.
    pub(crate) fn new(own: Rc<Coordinator>) -> Self {
        let shared = &own.shared;
        if let Some(digests) = shared.replica.digests() {
            let left = Partition::all(shared.cluster.partition_bits()).filter(|partition| {
                shared.replica.floor(*partition).purged > 0 && digests.counts(*partition).1 > 0
            });
            shared.background.tombstone_gc.purges.add(left.map(|partition| partition.0));
        }
        Self { own, failed: BTreeSet::new() }
    }
}

impl Worker for Purge {
    async fn work(&mut self) -> Work {
        let shared = &self.own.shared;
        let gc = &shared.background.tombstone_gc;
        let next = gc.purges.lock().pop_first();
        let Some(partition) = next else {
            if self.failed.is_empty() {
                return Work::Idle;
            }
            gc.purges.lock().append(&mut self.failed);
            return Work::Throttled(RETRY_WAIT);
        };
        match shared.replica.purge(Partition(partition)).await {
            Ok(count) => drop(gc.purged.fetch_add(count as u64, Ordering::Relaxed)),
            Err(ReplicaError::Stopped) => return Work::Done,
            Err(error) => {
                tracing::debug!(%error, partition, "dead rows could not be removed; they are tried again");
                self.failed.insert(partition);
            }
        }
        Work::Busy
    }

    async fn wait_for_work(&mut self) {
        self.own.shared.background.tombstone_gc.purges.has_more.notified().await;
    }
}

impl Agreed {
    fn hear(&mut self, leader: Slot, held_by: Option<(u16, HeldBack)>, now: Duration) {
        self.by_leader.insert(leader, (held_by, now));
    }
}

fn close(round: u64, upto: u64, partitions: &[u16]) -> FloorStep {
    FloorStep::Close { round, upto, partitions: partitions.into() }
}

fn same(ours: &[u64], theirs: &[u64], count: usize) -> Vec<bool> {
    (0..count).map(|place| ours.get(place).is_some_and(|word| theirs.get(place) == Some(word))).collect()
}
