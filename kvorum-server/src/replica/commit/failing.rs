//! A store that fails: shortages that pass, failures that do not, a full disk, a store that is set aside.

use super::{Committer, DISK_RETRY, Refusal};
use crate::canary::{self, Canary};
use crate::crash::{self, Point};
use crate::replica::queue::Request;
use crate::replica::recent::Recent;
use crate::replica::stage::Stage;
use crate::replica::{ReplicaError, StoreState};
use crate::storage::shortage::Shortage;
use crate::storage::{Change, Durability, EngineError, Keyspace, Room, format};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering as Memory;
use std::time::Duration;

/// How often the free space is checked while writes come in.
const DISK_LOOK: Duration = Duration::from_millis(100);
/// The wait between two tries to open a failed store for reading.
const READING_RETRY: Duration = Duration::from_secs(5);
/// How often, within the period below, a store is reopened whose background ended without a known reason: it may have
/// met a shortage that has passed. A lasting cause, such as damage, ends it again at once.
const REVIVALS_MAX: usize = 3;
const REVIVALS_PERIOD: Duration = Duration::from_mins(10);

impl Committer {
    /// Takes the requests to set the store aside out of `group` and executes them first: the new store judges the rest.
    pub(super) fn begin_anew_first(&mut self, group: Vec<Request>) -> Vec<Request> {
        if !group.iter().any(|request| matches!(request, Request::SetAside { .. })) {
            return group;
        }
        let (orders, others): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|request| matches!(request, Request::SetAside { .. }));
        for order in orders {
            let (_, answer) = self.judge(&mut Stage::default(), order);
            answer.give();
        }
        others
    }

    /// Sets the store aside and replaces it with an empty one of the same identity. The new store is known to lack the
    /// old store's records, so no other node has to report the loss.
    ///
    /// The readable `meta` rows are carried over; `known` has those that the node knows without reading them. A failed
    /// attempt may be repeated: the old store's rows are kept in memory until the new one has them.
    pub(super) fn set_aside(&mut self, known: Vec<(Bytes, Bytes)>) -> Result<(), ReplicaError> {
        let mut rows: BTreeMap<Bytes, Bytes> = known.into_iter().collect();
        rows.append(&mut self.carried);
        match self.engine.scan(Keyspace::Meta, b"", std::ops::Bound::Unbounded) {
            Ok(scan) => rows.extend(scan.filter_map(Result::ok)),
            Err(error) => {
                tracing::warn!(%error, "the store's metadata cannot be read: this node goes on with the metadata in \
                                        memory");
            }
        }
        // A promise would keep out records that the old store had before it gave the promise. The fence stands for it.
        rows.retain(|row, _| !row.starts_with(format::META_PROMISE));
        rows.insert(Bytes::from_static(format::META_VOTES), Bytes::from_static(&[format::VOTES_NO]));
        // The new store has confirmed nothing, so it belongs to no set of nodes before it has been refilled.
        rows.remove(format::META_TOPOLOGY);
        if let Err(error) = self.begin_with(&rows) {
            self.carried = rows;
            self.health.set_failed(&error.to_string());
            return Err(error.into());
        }
        // Look-ups made before this group saw the old store.
        let group = self.committed.load(Memory::Relaxed) + 1;
        self.committed.store(group, Memory::Release);
        self.recent = Recent::starting_at(group + 1, self.clock.mono());
        self.promises.clear();
        (self.unsynced_since, self.stopped_by, self.is_on_reserve) = (None, None, false);
        self.health.revive();
        Ok(())
    }

    /// Replaces the store with an empty one that has `rows`.
    fn begin_with(&self, rows: &BTreeMap<Bytes, Bytes>) -> Result<(), EngineError> {
        self.cuts.drop_for("the store is set aside");
        self.engine.set_aside()?;
        if let Some(digests) = &self.digests {
            digests.clear();
        }
        let put = |(key, value): (&Bytes, &Bytes)| Change::Put {
            keyspace: Keyspace::Meta,
            key: key.clone(),
            value: value.clone(),
        };
        self.engine.commit(rows.iter().map(put).collect(), Durability::Synced)?;
        crash::point(Point::AsideBegun);
        Ok(())
    }

    /// Handles a failed write. A shortage passes; any other failure is final until the node is restarted.
    pub(super) fn fail(&mut self, error: &EngineError) -> Refusal {
        if matches!(error, EngineError::Busy) {
            return Refusal::Overloaded;
        }
        let now = self.clock.mono();
        let shortage = match error {
            // A background flush that met a shortage shows here only as a poisoned engine.
            EngineError::Poisoned { .. } => self.what_stopped(now),
            error => error.shortage(),
        };
        if let Some(shortage) = shortage {
            if self.stopped_by.is_none()
                && let Some(left_out) = self.shortages.admit(now)
            {
                let news = match shortage {
                    Shortage::Disk => "a write found the disk full",
                    _ => "a write found too few resources",
                };
                tracing::warn!(%error, %shortage, left_out, "{news}");
            }
            self.stopped_by = Some(shortage);
            self.health.set_short(shortage, now);
            return Refusal::Met(shortage);
        }
        self.cuts.drop_for("the store has failed");
        self.health.set_failed(&error.to_string());
        if matches!(error, EngineError::Poisoned { .. })
            && let Err(error) = self.engine.retire()
        {
            tracing::error!(%error, "the failed store cannot be opened for reading either: this node tries again \
                                     every 5 s");
        }
        Refusal::Failed(error.to_string())
    }

    /// The shortage that stopped the engine's background, as far as can be told; `None` when it counts as a failure.
    fn what_stopped(&mut self, now: Duration) -> Option<Shortage> {
        if self.engine.is_short_of_space() || self.health.state() == StoreState::DiskFull {
            return Some(Shortage::Disk);
        }
        if let Err(error) = self.engine.check_supplies() {
            return error.shortage();
        }
        if canary::is(Canary::ShortageIsFailure) {
            return None;
        }
        self.revivals.retain(|at| now < *at + REVIVALS_PERIOD);
        if self.revivals.len() >= REVIVALS_MAX {
            return None;
        }
        self.revivals.push(now);
        // The cause has hardly passed yet, and the tries are few: wait first.
        self.reopen_at = self.reopen_at.max(now + DISK_RETRY);
        Some(Shortage::Unknown)
    }

    /// Checks the free space from time to time, and reopens the store once the shortage that it met has passed.
    pub(super) fn look_at_disk(&mut self, now: Duration) {
        if self.disk_looked_at.is_some_and(|at| now < at + DISK_LOOK) {
            return;
        }
        self.disk_looked_at = Some(now);
        if matches!(self.health.state(), StoreState::Failed { .. }) {
            return self.read_again(now);
        }
        let room = self.engine.room();
        // The engine's background may have met the full disk after the last refused write; no write has shown it since.
        if room == Room::Enough
            && self.stopped_by.is_none()
            && self.health.state() == StoreState::DiskFull
            && self.engine.check().is_err()
        {
            self.stopped_by = Some(Shortage::Disk);
        }
        match (self.stopped_by, room) {
            (None, Room::Enough) if !self.is_on_reserve => {
                if self.health.state() != StoreState::Ok || !self.has_reserve {
                    self.engine.keep_reserve();
                    self.has_reserve = true;
                }
                self.health.set_ok(now);
            }
            (_, Room::Enough) => self.open_again(now),
            // Open the reserve before a deletion meets the end of the disk.
            (None, Room::Least) if !self.is_on_reserve => self.open_reserve(room, now),
            (None, room) => self.health.set_disk_low(room, now),
            (Some(Shortage::Disk), room) => self.open_reserve(room, now),
            (Some(_), _) => self.open_again(now),
        }
    }

    /// Reopens a store that a shortage stopped, if the shortage has passed.
    fn open_again(&mut self, now: Duration) {
        if now < self.reopen_at {
            return;
        }
        self.reopen_at = now + DISK_RETRY;
        // Check while the store is still open and readable.
        if self.engine.check_supplies().is_err() {
            return;
        }
        crash::point(Point::ReopenBefore);
        self.cuts.drop_for("the store is reopened");
        match self.engine.reopen() {
            Ok(()) => {
                crash::point(Point::ReopenAfter);
                if self.has_opened() {
                    self.is_on_reserve = false;
                    self.engine.keep_reserve();
                    self.health.set_ok(now);
                }
            }
            Err(error) if error.shortage().is_some() => {
                self.stopped_by = error.shortage();
                if let Some(shortage) = self.stopped_by {
                    self.health.set_short(shortage, now);
                }
            }
            Err(error) => self.health.set_failed(&error.to_string()),
        }
    }

    /// Reopens a store on a full disk with the reserve for deletions, if the reserve is still there.
    fn open_reserve(&mut self, room: Room, now: Duration) {
        let is_writable = self.stopped_by.is_none();
        if is_writable {
            self.health.set_disk_low(room, now);
        }
        if now < self.reopen_at {
            return;
        }
        self.reopen_at = now + DISK_RETRY;
        crash::point(Point::ReopenBefore);
        self.cuts.drop_for("the store is reopened");
        match self.engine.open_reserve() {
            Ok(true) => {
                crash::point(Point::ReopenAfter);
                if self.has_opened() {
                    self.is_on_reserve = true;
                    self.health.set_disk_low(self.engine.room(), now);
                }
            }
            Ok(false) => self.read_again(now),
            Err(error) => {
                // Any error is treated as a full disk, so that opening is tried again.
                self.stopped_by = Some(Shortage::Disk);
                self.health.set_short(Shortage::Disk, now);
                tracing::debug!(%error, "a store on a full disk cannot be opened for deletions");
            }
        }
    }

    /// Updates the committer's state after the store was reopened. Returns whether the store can be used.
    fn has_opened(&mut self) -> bool {
        self.stopped_by = None;
        // Now it shows whether the failed write took effect: recount the digests.
        if let Some(digests) = &self.digests
            && let Err(error) = digests.load(&*self.engine)
        {
            self.health.set_failed(&error.to_string());
            return false;
        }
        crash::point(Point::ReopenCounted);
        self.recent = Recent::starting_at(self.committed.load(Memory::Relaxed) + 1, self.clock.mono());
        // Keep `unsynced_since`: writes confirmed before the reopening are in the store but still not synced.
        true
    }

    /// Opens for reading a store that takes no writes and is closed, if that works by now.
    fn read_again(&mut self, now: Duration) {
        if now < self.read_at {
            return;
        }
        self.read_at = now + READING_RETRY;
        if !matches!(self.engine.check(), Err(EngineError::Closed)) {
            return;
        }
        self.cuts.drop_for("the store has failed");
        match self.engine.retire() {
            Ok(()) => {
                tracing::info!("the failed store can be read again; it takes no writes until a restart");
            }
            Err(error) => tracing::debug!(%error, "the store cannot be opened for reading"),
        }
    }
}
