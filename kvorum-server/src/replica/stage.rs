//! The stage: the pending batch of one group, put together before anything is written.

use super::floor::Floor;
use super::key_hash::KeyHash;
use super::promise::{self, Promised};
use crate::storage::format::Mark;
use crate::storage::{Change, Keyspace, Known};
use bytes::Bytes;
use kvorum_core::{Key, Record, Value, Version};
use std::collections::{BTreeMap, HashMap};

/// A key with its mark before and after a group.
pub(super) type Changed = (Key, Option<Mark>, Option<Mark>);

/// The pending change of one key.
pub(super) struct Staged {
    pub(super) key: Key,
    pub(super) record: Option<Record>,
    pub(super) before: Option<Mark>,
}

pub(super) fn mark_of(record: &Record) -> Mark {
    let is_tombstone = record.value == Value::Tombstone;
    Mark { version: record.version, from: record.from, is_tombstone }
}

/// The pending changes of a group, each key once.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) records: Vec<Staged>,
    pub(super) index: HashMap<Key, usize, KeyHash>,
    pub(super) due: BTreeMap<Bytes, Option<Bytes>>,
    pub(super) side: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Whether some of the side rows must be on disk whatever the durability of writes is.
    pub(super) is_synced: bool,
    /// Versions that were the newest until this group.
    pub(super) overwritten: Vec<Version>,
    /// Origins that records of ballots in this group were built on.
    pub(super) built: Vec<Version>,
    /// Promises that this group gives and ends.
    pub(super) promises: promise::Staged,
    /// The bound of the ballots that the store has met, if the group raises it.
    pub(super) noted: Option<u64>,
    /// Floors as the group will leave them.
    pub(super) floors: BTreeMap<u16, Floor>,
}

impl Stage {
    /// What is staged for `key`.
    pub(super) fn record(&self, key: &Key) -> Known<&Record> {
        let staged = self.index.get(key).and_then(|index| self.records.get(*index));
        staged.map_or(Known::Nothing, |staged| Known::row(staged.record.as_ref()))
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

    /// Stages a promise for `key`, or its end.
    pub(super) fn promise(&mut self, key: Key, promised: Option<Promised>) {
        self.side(promise::row(&key, promised.map(|promised| promised.ballot)));
        self.promises.insert(key, promised);
    }

    /// Stages the bound of the ballots that the store has met.
    pub(super) fn note_ballots(&mut self, bound: u64) {
        if self.noted.is_none_or(|noted| noted < bound) {
            self.noted = Some(bound);
            self.side(promise::noted(bound));
        }
    }

    pub(super) fn has_accepted(&self, version: Version) -> bool {
        self.overwritten.contains(&version)
    }

    /// Stages the new state of `key`. `before` is its mark when the group began; it is ignored if the key is already
    /// staged.
    pub(super) fn set(&mut self, key: Key, record: Option<Record>, before: Option<Mark>) {
        if let Some(staged) = self.index.get(&key).and_then(|index| self.records.get_mut(*index)) {
            staged.record = record;
        } else {
            self.index.insert(key.clone(), self.records.len());
            self.records.push(Staged { key, record, before });
        }
    }
}
