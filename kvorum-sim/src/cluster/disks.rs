//! The disks of the machines: backups, exchanges, older and foreign disks, and what is lost with them.

use super::{Cluster, KeptDisk, Machine};
use crate::fault::{FaultEvent, FaultKind};
use crate::foreign;
use crate::invariants::facts::{Loss, LossKind};
use crate::net::url_of;
use crate::plan::{Backups, PARTITION_BITS};
use kvorum_core::NodeId;
use kvorum_server::clock::Clock;
use kvorum_server::storage::memory::MemoryEngine;
use kvorum_server::storage::{Engine, Keyspace, format};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

impl Cluster<'_> {
    /// Puts back the oldest copy of a disk that is kept for the end. All other disks have dropped by then
    /// what was deleted since the copy. Returns whether there was one.
    pub fn put_back_older_disk(&mut self) -> bool {
        let left = std::mem::take(&mut self.left);
        left.first().inspect(|(number, event)| self.end(*number, event)).is_some()
    }

    /// Copies the disks that are due.
    pub(super) fn backups_due(&mut self) {
        let now = self.sim.elapsed();
        let taken = self.plan.backups.iter().flat_map(|backups| &backups.taken);
        let due = taken.skip(self.backups.len()).take_while(|(_, at)| *at <= now);
        let due: Vec<u16> = due.map(|(node, _)| *node).collect();
        self.back_up(&due);
    }

    pub(super) fn back_up(&mut self, nodes: &[u16]) {
        for node in nodes {
            let Some(engine) = self.engine(*node) else { return };
            let copy = engine.copy_of_files();
            self.trace.line(self.sim.elapsed(), "driver", &format_args!("backs up node {node}"));
            self.backups.push((*node, copy));
        }
    }

    /// Puts the backups of all disks back, as after the loss of a whole cluster. Returns when the first was
    /// taken, or `None` if the plan has no backups.
    pub fn restore(&mut self) -> Option<Duration> {
        let Backups { taken, last } = self.plan.backups.take()?;
        self.back_up(&last);
        self.trace.line(self.sim.elapsed(), "driver", &"puts back all backups");
        *self.counts.entry(FaultKind::StaggeredRestore).or_default() += 1;
        for (node, copy) in std::mem::take(&mut self.backups) {
            self.stop(node, |engine| engine.put_back(copy));
            self.with(node, |machine| machine.identity.exchange(None));
        }
        self.start_idle();
        taken.first().map(|(_, at)| *at)
    }

    /// Records the stores that nodes have set aside: records that were only there are lost, as on an emptied
    /// disk.
    pub(super) fn asides(&mut self) {
        let aside = |machine: &Machine| {
            let asides = machine.engine.counters().asides;
            (machine.asides.replace(asides) != asides).then_some(machine.node)
        };
        let nodes: Vec<u16> = self.machines.iter().filter_map(aside).collect();
        for node in nodes {
            self.lose(node, LossKind::Wiped, Duration::ZERO);
        }
    }

    /// Stops two nodes in order and exchanges their disks, or gives them back. Exchanges nothing while one of the
    /// stores has no owner yet: a store whose process crashed during its creation belongs to the node that opens it
    /// first.
    pub(super) fn exchange(&mut self, number: usize, (one, other): (u16, u16)) {
        let (Some(first), Some(second)) = (self.engine(one).cloned(), self.engine(other).cloned()) else {
            return;
        };
        let is_bound = |engine: &MemoryEngine| {
            engine.get(Keyspace::Meta, format::META_NODE).is_ok_and(|row| row.is_some())
        };
        if !self.exchanged.remove(&number) {
            if !is_bound(&first) || !is_bound(&second) {
                return;
            }
            self.exchanged.insert(number);
        }
        self.stop(one, MemoryEngine::kill);
        self.stop(other, MemoryEngine::kill);
        first.exchange(&second);
        let identity = |node: u16| self.machines.get(usize::from(node)).map(|machine| &machine.identity);
        if let (Some(first), Some(second)) = (identity(one), identity(other)) {
            let record = first.recorded();
            first.exchange(second.recorded());
            second.exchange(record);
        }
        self.start_idle();
    }

    /// Whether every node's store knows its cluster.
    pub(super) fn know_their_cluster(&self) -> bool {
        let nodes = self.machines.iter().take(usize::from(self.plan.nodes));
        nodes.into_iter().all(|machine| foreign::knows_cluster(&machine.engine) == Some(true))
    }

    /// Empties the disk of a machine that is no member any more, and starts it as one that waits to join; not while a fault
    /// holds it back.
    pub(super) fn rejoin(&mut self, choice: u64) {
        let is_held = |node: &u16| self.active.values().any(|event| event.fault.holds_back(*node));
        let idle: Vec<u16> = self.removed.iter().copied().filter(|node| !is_held(node)).collect();
        let Some(node) =
            usize::try_from(choice).ok().and_then(|choice| idle.get(choice % idle.len().max(1)).copied())
        else {
            return;
        };
        self.removed.remove(&node);
        self.waiting.insert(node);
        self.trace.line(
            self.sim.elapsed(),
            "driver",
            &format_args!("node {node} joins again with an empty disk"),
        );
        *self.counts.entry(FaultKind::Rejoin).or_default() += 1;
        self.with(node, |machine| {
            machine.copies.borrow_mut().clear();
            machine.identity.exchange(None);
            machine.is_stale.set(false);
            machine.joins.set(true);
        });
        self.facts.epochs.remove(&node);
        self.stop(node, MemoryEngine::wipe);
        self.start_idle();
    }

    /// Stops a node in order, keeps its disk, and starts the node with a disk of another cluster.
    pub(super) fn put_in_foreign(&mut self, number: usize, node: u16, choice: u64) {
        self.stop(node, MemoryEngine::kill);
        let Some(machine) = self.machines.get(usize::from(node)) else { return };
        // A wrong clock is set right when the node starts: see `node.rs`.
        machine.clock.set_right();
        let (disk, copy) = (machine.engine.copy_of_files(), machine.engine.copy_of_files());
        let (id, wall) = (NodeId::of_url(&url_of(node)), machine.clock.wall());
        if let Ok(foreign) = foreign::foreign(copy, id, PARTITION_BITS, choice, wall) {
            self.kept.insert(number, KeptDisk { node, disk, record: machine.identity.recorded() });
            machine.engine.put_back(foreign.disk);
            machine.identity.exchange(None);
            self.facts.foreign.extend(foreign.written);
        }
        self.start_idle();
    }

    /// Stops a node with a disk of another cluster, and starts it with its own disk.
    pub(super) fn take_out_foreign(&mut self, number: usize) {
        let Some(KeptDisk { node, disk, record }) = self.kept.remove(&number) else { return };
        self.stop(node, |engine| engine.put_back(disk));
        self.with(node, |machine| machine.identity.exchange(record));
        self.start_idle();
    }

    /// Starts a node again with an older copy of its disk. If the store was lost completely after the copy,
    /// the copy is of a store that no longer exists; it is not put back.
    pub(super) fn put_back(&mut self, node: u16, is_image: bool, number: usize, event: &FaultEvent) {
        let copies = self.machines.get(usize::from(node)).map(|machine| &machine.copies);
        let Some((taken, copy, record)) = copies.and_then(|copies| copies.borrow_mut().remove(&number))
        else {
            return;
        };
        let now = self.sim.elapsed();
        let age = now.saturating_sub(taken);
        self.trace.line(now, "driver", &format_args!("older-disk: {}, {age:?} old", event.fault));
        *self.counts.entry(event.kind).or_default() += 1;
        let since = self.plan.exposed_since(node, taken).map_or(taken, |since| since.min(taken));
        let kind = if self.plan.restarts_copies { LossKind::OlderNoticed } else { LossKind::Older };
        self.lose(node, kind, since);
        self.stop(node, |engine| engine.put_back(copy));
        self.with(node, |machine| machine.identity.exchange(record.filter(|_| is_image)));
        self.facts.disturbed.push((now, now));
        self.start_idle();
    }

    pub(super) fn lose_power(&mut self, node: u16, keep: u64) {
        if let Some(since) = self.plan.exposed_since(node, self.sim.elapsed()) {
            self.lose(node, LossKind::Unsynced, since);
        }
        self.stop(node, |engine| {
            let choices = engine.unsynced_len() as u64 + 1;
            engine.crash_keeping(usize::try_from(keep % choices).unwrap_or(0));
        });
    }

    pub(super) fn lose(&mut self, node: u16, kind: LossKind, since: Duration) {
        // What is lost is on a disk of another cluster: the node's own disk is kept.
        if self.has_foreign_disk(node) {
            return;
        }
        let at = self.sim.elapsed();
        if kind == LossKind::Wiped {
            self.with(node, |machine| machine.copies.borrow_mut().clear());
        }
        self.facts.losses.push(Loss { node, at, kind, since });
    }

    /// Flips a bit of a record, or, five times in sixteen, of a row of the store itself: then the node sets
    /// the whole store aside.
    pub(super) fn rot(&mut self, node: u16, choice: u64) {
        const OTHERS: [Keyspace; 5] =
            [Keyspace::Tokens, Keyspace::Meta, Keyspace::Due, Keyspace::Hints, Keyspace::Delta];
        let Some(engine) = self.engine(node).cloned() else { return };
        let other = usize::try_from(choice.rotate_right(8) % 16).ok().and_then(|nth| OTHERS.get(nth));
        if other.is_some_and(|keyspace| engine.flip(*keyspace, choice).is_some()) {
            return;
        }
        let before = engine.scan(Keyspace::Records, b"", Bound::Unbounded).map(Iterator::flatten);
        let before: BTreeMap<_, _> = before.into_iter().flatten().collect();
        let Some(key) = engine.flip(Keyspace::Records, choice) else { return };
        let record = before.get(&key).and_then(|row| format::decode_record(row).ok());
        self.facts.rotten.extend(record.map(|record| (key, node, record.version)));
    }
}
