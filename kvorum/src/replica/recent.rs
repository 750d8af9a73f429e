//! What the latest groups did, so that the committer need not read what it has just written.

use super::key_hash::KeyHash;
use super::stage::Changed;
use crate::storage::format::Mark;
use kvorum_core::{Key, Version};
use std::collections::HashMap;

/// Keys remembered per generation; two generations are kept.
const RECENT_LEN_MAX: usize = 4096;
/// Overwritten versions remembered per key: more overlapping writes to one key than this are not told apart.
const ACCEPTED_LEN_MAX: usize = 32;

/// The versions written by the latest groups, in two generations.
///
/// It also knows which versions were newest here before. A write whose record reached this replica by another way
/// first (a reader that saw it elsewhere wrote it back) and was overwritten since is told `Stored`, not superseded:
/// a reader may have seen it, so it must not be stamped again and take effect a second time.
#[derive(Default)]
pub(super) struct Recent {
    current: HashMap<Key, Seen, KeyHash>,
    previous: HashMap<Key, Seen, KeyHash>,
    /// The first group of the current generation and of the previous one.
    current_from: u64,
    previous_from: u64,
}

impl Recent {
    /// Nothing is known of the groups before `group`.
    pub(super) fn starting_at(group: u64) -> Self {
        Self { current_from: group, previous_from: group, ..Self::default() }
    }

    fn seen(&self, key: &Key) -> Option<&Seen> {
        self.current.get(key).or_else(|| self.previous.get(key))
    }

    #[expect(clippy::option_option, reason = "nothing remembered and a removal are two things")]
    pub(super) fn mark(&self, key: &Key) -> Option<Option<Mark>> {
        self.seen(key).map(|seen| seen.latest)
    }

    /// Of a remembered key, what its latest record replaced: nothing, or this version.
    #[expect(clippy::option_option, reason = "nothing remembered and nothing replaced are two things")]
    pub(super) fn replaced(&self, key: &Key) -> Option<Option<Version>> {
        self.seen(key).map(|seen| seen.replaced)
    }

    /// Notes that `version` took effect before the latest record of a remembered key.
    pub(super) fn note_accepted(&mut self, key: &Key, version: Version) {
        let seen = self.current.get_mut(key).or_else(|| self.previous.get_mut(key));
        if let Some(seen) = seen {
            seen.accept(version);
        }
    }

    pub(super) fn has_accepted(&self, key: &Key, version: Version) -> bool {
        self.seen(key).is_some_and(|seen| seen.overwritten.contains(&version))
    }

    /// Whether every group after the first `as_of` ones is still remembered.
    pub(super) fn covers(&self, as_of: u64) -> bool {
        as_of + 1 >= self.previous_from
    }

    pub(super) fn remember(&mut self, changes: Vec<Changed>, overwritten: Vec<(Key, Version)>, group: u64) {
        for (key, before, latest) in changes {
            let replaced = before.map(|mark| mark.version);
            if let Some(seen) = self.current.get_mut(&key) {
                (seen.latest, seen.replaced) = (latest, replaced);
            } else {
                let overwritten = self.previous.get(&key).map(|seen| seen.overwritten.clone());
                let overwritten = overwritten.unwrap_or_default();
                self.current.insert(key, Seen { latest, replaced, overwritten });
            }
        }
        for (key, version) in overwritten {
            if let Some(seen) = self.current.get_mut(&key) {
                seen.accept(version);
            }
        }
        if self.current.len() >= RECENT_LEN_MAX {
            // As large as the one before will be.
            let next = HashMap::with_capacity_and_hasher(self.current.len(), KeyHash::default());
            self.previous = std::mem::replace(&mut self.current, next);
            self.previous_from = self.current_from;
            self.current_from = group + 1;
        }
    }
}

/// What the latest groups did to one key.
struct Seen {
    latest: Option<Mark>,
    /// What the latest record replaced.
    replaced: Option<Version>,
    overwritten: Vec<Version>,
}

impl Seen {
    fn accept(&mut self, version: Version) {
        if self.overwritten.len() >= ACCEPTED_LEN_MAX {
            self.overwritten.remove(0);
        }
        self.overwritten.push(version);
        self.replaced = Some(version);
    }
}
