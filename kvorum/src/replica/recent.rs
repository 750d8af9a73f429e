//! What the latest groups did, so that the committer need not read what it has just written.

use super::key_hash::KeyHash;
use super::stage::Changed;
use crate::storage::format::Mark;
use kvorum_core::{Key, Version};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Keys remembered per generation; two generations are kept.
const RECENT_LEN_MAX: usize = 4096;
/// Overwritten versions remembered per key. A write that may have been one of those before is not said to be none.
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
    /// When the current generation began, and the previous one.
    current_since: Duration,
    previous_since: Duration,
}

impl Recent {
    /// Nothing is known of the groups before `group`, nor of what was before `now`.
    pub(super) fn starting_at(group: u64, now: Duration) -> Self {
        Self {
            current_from: group,
            previous_from: group,
            current_since: now,
            previous_since: now,
            ..Self::default()
        }
    }

    fn seen(&self, key: &Key) -> Option<&Seen> {
        self.current.get(key).or_else(|| self.previous.get(key))
    }

    #[expect(clippy::option_option, reason = "nothing remembered and a removal are two things")]
    pub(super) fn mark(&self, key: &Key) -> Option<Option<Mark>> {
        self.seen(key).map(|seen| seen.latest)
    }

    pub(super) fn has_accepted(&self, key: &Key, version: Version) -> bool {
        self.seen(key).is_some_and(|seen| seen.overwritten.iter().any(|(known, _)| *known == version))
    }

    /// Since when every version of `key` that was newest here, and was overwritten, is remembered.
    pub(super) fn remembers_since(&self, key: &Key) -> Duration {
        self.seen(key).map_or(self.previous_since, |seen| seen.forgotten.max(self.previous_since))
    }

    /// Whether every group after the first `as_of` ones is still remembered.
    pub(super) fn covers(&self, as_of: u64) -> bool {
        as_of + 1 >= self.previous_from
    }

    /// Takes in what `group` did, at `now`.
    pub(super) fn remember(
        &mut self,
        changes: Vec<Changed>,
        overwritten: Vec<(Key, Version)>,
        group: u64,
        now: Duration,
    ) {
        for (key, _, latest) in changes {
            if let Some(seen) = self.current.get_mut(&key) {
                seen.latest = latest;
            } else {
                let before = self.previous.get(&key);
                let overwritten = before.map(|seen| seen.overwritten.clone()).unwrap_or_default();
                let forgotten = before.map_or(Duration::ZERO, |seen| seen.forgotten);
                self.current.insert(key, Seen { latest, overwritten, forgotten });
            }
        }
        for (key, version) in overwritten {
            if let Some(seen) = self.current.get_mut(&key) {
                seen.accept(version, now);
            }
        }
        if self.current.len() >= RECENT_LEN_MAX {
            // As large as the one before will be.
            let next = HashMap::with_capacity_and_hasher(self.current.len(), KeyHash::default());
            self.previous = std::mem::replace(&mut self.current, next);
            (self.previous_from, self.previous_since) = (self.current_from, self.current_since);
            (self.current_from, self.current_since) = (group + 1, now);
        }
    }
}

/// What the latest groups did to one key.
struct Seen {
    latest: Option<Mark>,
    /// Versions that were newest, and when they were overwritten.
    overwritten: VecDeque<(Version, Duration)>,
    /// When the latest of those that are not remembered any more was overwritten.
    forgotten: Duration,
}

impl Seen {
    fn accept(&mut self, version: Version, now: Duration) {
        if self.overwritten.len() >= ACCEPTED_LEN_MAX
            && let Some((_, at)) = self.overwritten.pop_front()
        {
            self.forgotten = at;
        }
        self.overwritten.push_back((version, now));
    }
}
