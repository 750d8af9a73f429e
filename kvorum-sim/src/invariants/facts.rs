//! The effects of the run on the nodes: which disks lost what, which nodes did not run, what was on each disk
//! at the end.
//!
//! The contract keeps its promises only under conditions: fewer than `ACK` disks lost, a clock that a TTL can
//! be judged by, a node that runs. The driver records the effects; the functions here decide which failures
//! they excuse.
//!
//! | loss | what the node knows | durability | freshness, order, reads |
//! | --- | --- | --- | --- |
//! | wiped | that it comes back empty; it reports that and does not vote until it is refilled | held while fewer than `ACK` disks | the same, but where a newer record of a smaller `from` keeps it from being refilled |
//! | set aside | that its store was damaged, so it began anew | as wiped, from the time when it did | as wiped |
//! | rotten | the damage, by the checksum | held while fewer than `ACK` disks | the same |
//! | older | that others have sealed partitions further than its tombstone GC, if they have: then as wiped; else nothing | held while fewer than `ACK` disks | no promise for records that it took since the copy |
//! | unsynced (`interval`, `os`) | nothing: it votes with the older state | held while fewer than `ACK` disks | nothing |
//!
//! With `always` a power loss is no loss: a write that it takes back must not have been confirmed.

use crate::cuts::Taken;
use crate::history::{AckFrom, Operation};
use crate::millis;
use crate::restore::Backup;
use bytes::Bytes;
use kvorum_core::{Record, UnixMillis, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How a disk lost confirmed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// It was emptied, or set aside by its node.
    Wiped,
    /// A bit was flipped.
    Rotten,
    /// It was replaced by an older copy.
    Older,
    /// The same, and every node that it meets before it counts saw a later run of it.
    OlderNoticed,
    /// The power failed before it was synced.
    Unsynced,
}

/// One disk's loss of confirmed writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The node.
    pub node: u16,
    /// When it happened.
    pub at: Duration,
    /// How it happened.
    pub kind: LossKind,
    /// Records that it took since then may be lost; older ones are not. Zero for all records.
    pub since: Duration,
}

/// A time in which a node cannot answer in time: down, paused, slowed, or with its links held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// The node.
    pub node: u16,
    /// From when.
    pub since: Duration,
    /// Until when.
    pub until: Duration,
}

/// A time in which a node, just started, reached no other node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alone {
    /// The node.
    pub node: u16,
    /// Since when it was alone; it was started then.
    pub since: Duration,
    /// Until when.
    pub until: Duration,
    /// Whether it was started with a copy of its disk.
    pub is_copied: bool,
}

/// All records that a node stores, tombstones included, after all faults have ended.
#[derive(Debug, Clone, Default)]
pub struct Dump {
    /// The node.
    pub node: u16,
    /// When it was taken, in simulated time.
    pub at: Duration,
    /// The node's wall clock then.
    pub wall: UnixMillis,
    /// Key → record.
    pub records: BTreeMap<Bytes, Record>,
}

/// The reads after the backups of all nodes were put back.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// When the first of them was taken. Records written later may be in some backups and not in others.
    pub first: Duration,
    /// The reads.
    pub reads: Vec<Operation>,
}

/// A gauge's value at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// The node.
    pub node: u16,
    /// When.
    pub at: Duration,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// The named bound.
    pub max: u64,
}

/// The mechanisms that the node has by now; the oracle does not require the effects of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own, and goes when it is on for good"
)]
pub struct Mechanisms {
    /// Replicas become equal in the background, hints lost or not.
    pub repair: bool,
    /// Copies on nodes that are not replicas of the newest record are dropped.
    pub drop_stale: bool,
    /// Tombstones are dropped once no node can hold an older record. Without purge they stay, as other
    /// records do.
    pub purge: bool,
    /// A row that cannot be read is fetched again from other nodes.
    pub heal_rot: bool,
}

/// The knowledge of the oracle besides the history.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Nodes in the cluster.
    pub nodes: u16,
    /// The instant at which the simulation begins, as Unix milliseconds.
    pub epoch: UnixMillis,
    /// How far a node's wall clock may be from the true time, either way. `None` where clocks jump: then
    /// nothing that depends on a clock is judged.
    pub clock_error: Option<Duration>,
    /// When machines were no members: since when, and until when if they became members.
    pub outside: BTreeMap<u16, Vec<(Duration, Option<Duration>)>>,
    /// When members that had lost their disk waited for an operator to name the new store, likewise.
    pub unnamed: BTreeMap<u16, Vec<(Duration, Option<Duration>)>>,
    /// When members were marked as lacking records: since when, and until when if they no longer are. One that was removed under
    /// its mark stays so until it is a member without one.
    pub marked: BTreeMap<u16, Vec<(Duration, Option<Duration>)>>,
    /// The losses of disks.
    pub losses: Vec<Loss>,
    /// When nodes did not run.
    pub stalls: Vec<Stall>,
    /// When one node's clock was wrong while the others were right.
    pub wrong_clocks: Vec<Stall>,
    /// When nodes that had just started reached no other node.
    pub alone: Vec<Alone>,
    /// The longest wait for replicas (`request_timeout`).
    pub deadline: Duration,
    /// How much longer an answer may take: the network both ways, and the last check.
    pub slack: Duration,
    /// The instant from which on all faults have ended and all nodes have converged; reads from then on are
    /// final. `None` if the run did not get there.
    pub converged: Option<Duration>,
    /// The last state of every node.
    pub dumps: Vec<Dump>,
    /// The reads of a run with backups after they were put back, when everything else has been read.
    pub restored: Option<Restored>,
    /// The cuts that were taken.
    pub cuts: Vec<Taken>,
    /// The backup that was restored into this cluster, if one was.
    pub backup: Option<Backup>,
    /// The configurations that nodes have adopted: for each epoch the hashes, and for each hash the nodes.
    pub adopted: BTreeMap<u64, BTreeMap<u128, BTreeSet<u16>>>,
    /// The epoch of each node, as it was seen last; none while its node is down.
    pub epochs: BTreeMap<u16, u64>,
    /// Nodes that were seen at an earlier epoch than before: the node, both epochs, and when.
    pub epochs_lost: Vec<(u16, u64, u64, Duration)>,
    /// Nodes that are at an earlier epoch than before, with that epoch and the loss in `losses` that set them back.
    pub behind: BTreeMap<u16, (u64, usize)>,
    /// Whether a change of members moved data: the owners of a record were then not the same all the time.
    pub has_moved: bool,
    /// Gauges of queues.
    pub gauges: Vec<Gauge>,
    /// The mechanisms that the nodes are judged by.
    pub mechanisms: Mechanisms,
    /// Whether the faults were such that hints alone must make the replicas equal: no disk failed, no process ended.
    pub hints_suffice: bool,
    /// When a fault was active that may make a request fail.
    pub disturbed: Vec<(Duration, Duration)>,
    /// Keys with an unreadable row on a node, with the node and the version of that row.
    pub rotten: Vec<(Bytes, u16, Version)>,
    /// Every record that was ever seen on a disk: the least `from` of its copies, and the nodes.
    pub sightings: BTreeMap<(Bytes, Version), (u16, BTreeSet<u16>)>,
    /// Records that were written in another cluster, and never in this one.
    pub foreign: BTreeSet<(Bytes, Version)>,
}

/// How long a node may take to learn that its clock is right again.
const CLOCK_REGAINED: Duration = Duration::from_secs(6);

impl Facts {
    /// How many disks may have lost records that they took in `since..=until`.
    fn disks_lost(&self, since: Duration, until: Duration) -> usize {
        let touches = |loss: &&Loss| loss.at >= since && loss.since <= until;
        self.losses.iter().filter(touches).map(|loss| loss.node).collect::<BTreeSet<_>>().len()
    }

    /// Whether a node may vote without knowing that it lost records of `since..=until`.
    fn forgot_in_silence(&self, since: Duration, until: Duration) -> bool {
        let is_silent = |loss: &Loss| matches!(loss.kind, LossKind::Unsynced | LossKind::Older);
        let touches = |loss: &Loss| is_silent(loss) && loss.at >= since && loss.since <= until;
        self.losses.iter().any(touches)
    }

    /// Whether an acknowledged write must still be on some disk: fewer than `ACK` disks lost it.
    pub fn must_survive(&self, write: &Operation) -> bool {
        self.disks_lost(write.invoked, write.returned) < usize::from(write.replicas.ack)
    }

    /// Whether a deleted record of a key may come back with an older disk. A record that was written for one
    /// replica is accepted there, because no other node ever had it (decision 14).
    pub fn may_come_back(&self, operations: &[&Operation]) -> bool {
        let is_alone = |operation: &&Operation| operation.may_take_effect() && operation.replicas.from == 1;
        self.losses.iter().any(|loss| loss.kind == LossKind::Older) && operations.iter().any(is_alone)
    }

    /// Whether every replica that confirmed a write either still votes for it or does not vote.
    pub fn is_voted_for(&self, write: &Operation) -> bool {
        self.must_survive(write) && !self.forgot_in_silence(write.invoked, write.returned)
    }

    /// Whether the replicas on which a read left the record of `write` still vote for it.
    pub fn is_still_seen(&self, write: &Operation, read: &Operation) -> bool {
        let since = write.invoked.min(read.invoked);
        self.disks_lost(since, read.returned) < usize::from(held_after(read.replicas, write.replicas.from))
            && !self.forgot_in_silence(since, read.returned)
    }

    /// Whether no disk lost records silently, and so few lost any that a quorum of `ack` is still a proof.
    pub fn spares_quorums_of(&self, ack: u16) -> bool {
        self.disks_lost(Duration::ZERO, Duration::MAX) < usize::from(ack)
            && !self.forgot_in_silence(Duration::ZERO, Duration::MAX)
    }

    /// Notes that `node` has `record` on its disk.
    pub fn sighted(&mut self, key: &Bytes, record: &Record, node: u16) {
        let (from, nodes) =
            self.sightings.entry((key.clone(), record.version)).or_insert((record.from, BTreeSet::new()));
        *from = record.from.min(*from);
        nodes.insert(node);
    }

    /// Notes the chain of configurations of `node`: the epochs from 1 on, with their hashes.
    pub fn adopted(&mut self, node: u16, chain: &[(u64, u128)], at: Duration) {
        for (epoch, hash) in chain {
            self.adopted.entry(*epoch).or_default().entry(*hash).or_default().insert(node);
        }
        let epoch = chain.last().map_or(0, |(epoch, _)| *epoch);
        let before = self.epochs.insert(node, epoch).unwrap_or_default();
        if epoch < before {
            self.epochs_lost.push((node, before, epoch, at));
            let is_older = |loss: &Loss| matches!(loss.kind, LossKind::Older | LossKind::OlderNoticed);
            let loss = self.losses.iter().rposition(|loss| loss.node == node && is_older(loss));
            if let Some(loss) = loss {
                self.behind.insert(node, (before, loss));
            }
        }
        self.catch_up(node, epoch, at);
    }

    /// Extends the loss that set `node` back until now, once the node is again as far as it was. Keys may have moved since the epoch
    /// of the older disk: the node drops the writes that it alone confirmed in that epoch, as it no longer owns their keys.
    fn catch_up(&mut self, node: u16, epoch: u64, at: Duration) {
        let Some((_, loss)) = self.behind.get(&node).copied().filter(|(before, _)| epoch >= *before) else {
            return;
        };
        self.behind.remove(&node);
        if let Some(loss) = self.losses.get_mut(loss) {
            loss.at = loss.at.max(at);
        }
    }

    /// Notes that `node` is no member any more.
    pub fn left(&mut self, node: u16, at: Duration) {
        self.outside.entry(node).or_default().push((at, None));
    }

    /// Notes that `node` is a member and serves.
    pub fn came(&mut self, node: u16, at: Duration) {
        for times in [&mut self.outside, &mut self.unnamed] {
            if let Some((_, until)) = times.get_mut(&node).and_then(|times| times.last_mut()) {
                until.get_or_insert(at);
            }
        }
    }

    /// Notes that the member `node` waits for an operator to name the store that it has since it lost its disk.
    pub fn waits_for_name(&mut self, node: u16, at: Duration) {
        let times = self.unnamed.entry(node).or_default();
        if times.last().is_none_or(|(_, until)| until.is_some()) {
            times.push((at, None));
        }
    }

    /// Notes which of the `members` were marked as lacking records, at the latest of the instants `looked`; the one before it
    /// is when somebody looked last.
    pub fn note_marks(
        &mut self,
        marked: &BTreeSet<u16>,
        members: &BTreeSet<u16>,
        looked: (Duration, Duration),
    ) {
        for node in marked {
            let times = self.marked.entry(*node).or_default();
            if times.last().is_none_or(|(_, until)| until.is_some()) {
                times.push((looked.0, None));
            }
        }
        for node in members.difference(marked) {
            if let Some((_, until)) = self.marked.get_mut(node).and_then(|times| times.last_mut()) {
                until.get_or_insert(looked.1);
            }
        }
    }

    /// Has the marks excuse what a node that is down excuses, once all faults are known. A mark without a fault before it, `grace`
    /// at most, excuses nothing: no member was silent.
    pub fn excuse_marks(&mut self, grace: Duration) {
        let times = self.marked.values().flatten();
        let caused = times.filter(|(since, _)| !self.is_calm(since.saturating_sub(grace), *since));
        let caused: Vec<_> = caused.map(|(since, until)| (*since, until.unwrap_or(Duration::MAX))).collect();
        self.disturbed.extend(caused);
    }

    /// Whether `node` was no member at some time in `since..=until`.
    pub fn was_outside(&self, node: u16, since: Duration, until: Duration) -> bool {
        overlaps(&self.outside, node, since, until)
    }

    /// Whether `node` waited at some time in `since..=until` for an operator to name its store.
    pub fn was_unnamed(&self, node: u16, since: Duration, until: Duration) -> bool {
        overlaps(&self.unnamed, node, since, until)
    }

    /// Whether `node` is no member in the end.
    pub fn is_outside(&self, node: u16) -> bool {
        self.outside.get(&node).and_then(|times| times.last()).is_some_and(|(_, came)| came.is_none())
    }

    /// Whether the operation is the restore of a record, which may have been tried several times.
    pub fn is_restore(&self, operation: &Operation) -> bool {
        let saved = self.backup.as_ref().and_then(|backup| backup.get(&operation.key));
        saved.is_some_and(|saved| saved.write == operation.id)
    }

    /// Whether no fault was active in `since..=until`.
    pub fn is_calm(&self, since: Duration, until: Duration) -> bool {
        !self.disturbed.iter().any(|(begin, end)| *begin <= until && *end >= since)
    }

    /// How many nodes have lost their disks by `until`, and know it. A disk that was emptied counts until the
    /// cluster has converged, if repair fills it again.
    pub fn broken_disks(&self, until: Duration) -> usize {
        let is_refilled =
            self.mechanisms.repair && self.converged.is_some_and(|converged| until >= converged);
        let broken = |loss: &&Loss| match loss.kind {
            LossKind::Wiped | LossKind::Older | LossKind::OlderNoticed => loss.at <= until && !is_refilled,
            LossKind::Rotten => loss.at <= until,
            LossKind::Unsynced => false,
        };
        self.losses.iter().filter(broken).map(|loss| loss.node).collect::<BTreeSet<_>>().len()
    }

    /// Whether a disk was emptied by `until`, or replaced by an older one, which its node may then have
    /// emptied.
    pub fn was_wiped(&self, until: Duration) -> bool {
        let is_emptied = |loss: &Loss| !matches!(loss.kind, LossKind::Rotten | LossKind::Unsynced);
        self.losses.iter().any(|loss| is_emptied(loss) && loss.at <= until)
    }

    /// Whether the operation began after the cluster had converged.
    pub fn is_final(&self, operation: &Operation) -> bool {
        self.converged.is_some_and(|converged| operation.invoked >= converged)
    }

    /// Whether a write with a TTL may have expired for `read`. The TTL counts from the clock of the node that
    /// coordinated the write, not from its version; each clock may be wrong.
    pub fn may_have_expired(&self, write: &Operation, ttl: Duration, read: &Operation) -> bool {
        let Some(error) = self.clock_error else { return true };
        let begun = self.wall_millis(write.invoked).saturating_sub(millis(error));
        begun + millis(ttl) <= self.wall_millis(read.returned) + millis(error)
            || self.has_wrong_clock(write)
            || self.has_wrong_clock(read)
    }

    /// Whether the clock of the node that an operation was sent to was wrong meanwhile, or a moment before,
    /// so that the node may not know yet that it is right again.
    pub fn has_wrong_clock(&self, operation: &Operation) -> bool {
        self.wrong_clocks.iter().any(|wrong| {
            wrong.node == operation.node
                && wrong.since <= operation.returned
                && operation.invoked <= wrong.until + CLOCK_REGAINED
        })
    }

    /// The true time at `at`, as Unix milliseconds.
    pub fn wall_millis(&self, at: Duration) -> u64 {
        self.epoch.0 + millis(at)
    }
}

/// The least number of replicas on which a read of `read` leaves its answer, if that was written with `from`.
///
/// `b` replies agreed, or the read wrote it back until `b` replicas held it; never on more replicas than its
/// own `from` allows.
pub fn held_after(read: AckFrom, from: u16) -> u16 {
    read.ack.min(from)
}

/// Whether one of `node`'s times overlaps `since..=until`.
fn overlaps(
    all: &BTreeMap<u16, Vec<(Duration, Option<Duration>)>>,
    node: u16,
    since: Duration,
    until: Duration,
) -> bool {
    let times = all.get(&node).map_or(&[][..], Vec::as_slice);
    times.iter().any(|(begin, end)| *begin <= until && end.is_none_or(|end| end >= since))
}

/// Whether an operation of `later` must find what a read of `read` saw, which was written with `from`.
///
/// A shared replica is not enough: the read's write-back goes to ranks below `from` only, and only to
/// [`held_after`] of them. So the copies are counted: fewer than `ACK` of the later operation's replicas may
/// lack the record.
pub fn must_meet(read: AckFrom, from: u16, later: AckFrom) -> bool {
    let outside = from.min(read.from).saturating_sub(later.from);
    let inside = held_after(read, from).saturating_sub(outside);
    read.overlaps(later) && later.from.saturating_sub(inside) < later.ack
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// Reads that must find the record by the repair rule, and reads that need not.
    #[test]
    fn must_meet_counts_copies() {
        let check = |read: (u16, u16), from, later: (u16, u16), expect| {
            let (read, later) = (AckFrom::new(read.0, read.1), AckFrom::new(later.0, later.1));
            assert_eq!(must_meet(read, from, later), expect, "{read} of {from}, then {later}");
        };
        check((2, 3), 3, (2, 3), true);
        check((3, 5), 5, (3, 5), true);
        check((1, 1), 1, (1, 1), true);
        check((1, 3), 3, (2, 3), false);
        // The read found one copy; later all replicas are asked.
        check((1, 3), 3, (3, 3), true);
        // The read asked all replicas, so all have it.
        check((3, 3), 3, (3, 3), true);
        check((3, 3), 3, (1, 3), true);
        // The record belongs on one node only; a majority may miss it.
        check((2, 3), 1, (2, 3), false);
        check((2, 3), 1, (3, 3), true);
        // Written back to three of five replicas; a later 2/3 may ask only one of these three.
        check((3, 5), 5, (2, 3), false);
        check((4, 5), 5, (2, 3), true);
    }

    /// What an older disk of an earlier epoch confirms counts as lost with it, until it works with the epoch of before.
    #[test]
    fn older_disks_are_behind_until_they_catch_up() {
        let seconds = Duration::from_secs;
        let alone = |at| Operation { replicas: AckFrom::new(1, 1), ..put(1, at, at + 10, 1) };
        let survives = |facts: &Facts, at| facts.must_survive(&alone(at));
        let mut facts = facts();
        let chain: Vec<(u64, u128)> = (1..=9).map(|epoch| (epoch, epoch.into())).collect();
        facts.adopted(0, &chain, seconds(1));
        facts.losses.push(Loss { node: 0, at: seconds(5), kind: LossKind::Older, since: seconds(3) });
        facts.adopted(0, &chain[..4], seconds(6));
        facts.adopted(0, &chain[..7], seconds(8));
        assert!(survives(&facts, 7000));
        facts.adopted(0, &chain, seconds(10));
        assert!(survives(&facts, 2000));
        assert!(!survives(&facts, 7000));
        assert!(survives(&facts, 11_000));
        // Only once.
        facts.adopted(0, &chain, seconds(12));
        assert!(survives(&facts, 11_000));
    }

    /// Goal: `must_meet` is sound. Method: every placement of the copies that a read leaves, against every
    /// choice of replicas that a later operation can make.
    #[test]
    fn must_meet_is_sound() {
        let quorums: Vec<AckFrom> =
            (1..=5).flat_map(|from| (1..=from).map(move |ack| AckFrom::new(ack, from))).collect();
        for read in &quorums {
            for later in &quorums {
                for from in 1..=5u16 {
                    if !must_meet(*read, from, *later) {
                        continue;
                    }
                    let copies = held_after(*read, from);
                    let held = (0u32..32).filter(|held| {
                        held.count_ones() == u32::from(copies) && *held < 1 << from.min(read.from)
                    });
                    for held in held {
                        for asked in
                            (0u32..1 << later.from).filter(|a| a.count_ones() == u32::from(later.ack))
                        {
                            assert_ne!(held & asked, 0, "{read} of {from}, then {later}");
                        }
                    }
                }
            }
        }
    }

    /// A mark ends when its node is a member without one, not with its removal. It excuses failures only if a fault came before.
    #[test]
    fn marks_end_with_membership() {
        let (mut facts, second) = (Facts::default(), Duration::from_secs);
        let all = BTreeSet::from([0, 1, 2]);
        let looked = |at| (second(at - 1), second(at));
        facts.note_marks(&BTreeSet::new(), &all, looked(1));
        facts.note_marks(&BTreeSet::from([2]), &all, looked(2));
        facts.note_marks(&BTreeSet::from([2]), &all, looked(3));
        facts.note_marks(&BTreeSet::new(), &BTreeSet::from([0, 1]), looked(4));
        assert_eq!(facts.marked[&2], [(second(1), None)]);
        facts.note_marks(&BTreeSet::new(), &all, looked(5));
        assert_eq!(facts.marked[&2], [(second(1), Some(second(5)))]);
        facts.excuse_marks(second(1));
        assert!(facts.is_calm(second(2), second(3)), "nothing made it silent");
        facts.disturbed.push((second(0), second(0)));
        facts.excuse_marks(second(1));
        assert!(!facts.is_calm(second(2), second(3)) && facts.is_calm(second(6), second(7)));
    }
}
