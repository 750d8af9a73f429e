//! The stage: what one group makes of the store, put together before anything is written.

use super::floor::Floor;
use super::key_hash::KeyHash;
use crate::sched::Courtesy;
use crate::storage::format::Mark;
use crate::storage::{Change, Keyspace};
use bytes::Bytes;
use kvorum_core::{Key, Record, Value, Version};
use std::collections::{BTreeMap, HashMap};

/// Of a key, what was there and what is.
pub(super) type Changed = (Key, Option<Mark>, Option<Mark>);

/// What a group makes of one key.
pub(super) struct Staged {
    pub(super) key: Key,
    pub(super) record: Option<Record>,
    pub(super) before: Option<Mark>,
}

pub(super) fn mark_of(record: &Record) -> Mark {
    let is_tombstone = record.value == Value::Tombstone;
    Mark { version: record.version, from: record.from, is_tombstone }
}

/// What a group changes, each key once.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) records: Vec<Staged>,
    pub(super) index: HashMap<Key, usize, KeyHash>,
    pub(super) due: BTreeMap<Bytes, Option<Bytes>>,
    pub(super) side: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Whether some of the side rows must be on disk whatever the durability of writes is.
    pub(super) is_synced: bool,
    /// What was newest until this group.
    pub(super) overwritten: Vec<Version>,
    /// Floors as they will be.
    pub(super) floors: BTreeMap<u16, Floor>,
    /// Whom a batch that nobody waits for lets go first.
    pub(super) courtesy: Courtesy,
}

impl Stage {
    /// What is staged for `key`: nothing, a removal, or a record.
    #[expect(clippy::option_option, reason = "nothing staged and a staged removal are two things")]
    pub(super) fn record(&self, key: &Key) -> Option<Option<&Record>> {
        let staged = self.records.get(*self.index.get(key)?)?;
        Some(staged.record.as_ref())
    }

    #[expect(clippy::option_option, reason = "nothing staged and a staged removal are two things")]
    pub(super) fn mark(&self, key: &Key) -> Option<Option<Mark>> {
        self.record(key).map(|record| record.map(mark_of))
    }

    pub(super) fn put(&mut self, key: Key, record: Record, before: Option<Mark>) {
        self.set(key, Some(record), before);
    }

    pub(super) fn side(&mut self, change: Change) {
        match change {
            Change::Put { keyspace, key, value } => self.side.insert((keyspace, key), Some(value)),
            Change::Remove { keyspace, key } => self.side.insert((keyspace, key), None),
        };
    }

    pub(super) fn has_accepted(&self, version: Version) -> bool {
        self.overwritten.contains(&version)
    }

    /// Stages what `key` becomes; `before` is what it was when the group began, as far as nothing is staged yet.
    pub(super) fn set(&mut self, key: Key, record: Option<Record>, before: Option<Mark>) {
        if let Some(staged) = self.index.get(&key).and_then(|index| self.records.get_mut(*index)) {
            staged.record = record;
        } else {
            self.index.insert(key.clone(), self.records.len());
            self.records.push(Staged { key, record, before });
        }
    }
}
