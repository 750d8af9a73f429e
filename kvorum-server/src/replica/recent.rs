//! The changes of the latest groups, so that the committer need not read what it has just written.

use super::key_hash::KeyHash;
use super::stage::Changed;
use crate::storage::Known;
use crate::storage::format::Mark;
use kvorum_core::{Key, Version};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Keys remembered per generation; two generations are kept.
const KEYS_LEN_MAX: usize = 4096;
/// Overwritten versions remembered per generation, of all keys together: about 2 MiB.
const OVERWRITTEN_LEN_MAX: usize = 65_536;

/// The changes of the latest groups, in two generations.
///
/// It also knows which versions were once the newest here. A write's record can reach this replica first by a reader,
/// which saw it elsewhere and wrote it back, and be overwritten since. The write is then told `Stored`, not superseded:
/// a reader may have seen it, so it must not be stamped again and take effect a second time.
pub(super) struct Recent {
    current: Generation,
    previous: Generation,
}

/// The groups from `from` on.
struct Generation {
    from: u64,
    since: Duration,
    latest: HashMap<Key, Option<Mark>, KeyHash>,
    /// Versions that were once the newest. A version names one write, so their keys are not needed.
    overwritten: HashSet<Version, KeyHash>,
    /// Origins that records of ballots were built on, or accepted anew from.
    built: HashSet<Version, KeyHash>,
}

impl Generation {
    fn new(from: u64, since: Duration) -> Self {
        let (latest, overwritten, built) = (HashMap::default(), HashSet::default(), HashSet::default());
        Self { from, since, latest, overwritten, built }
    }

    fn is_full(&self) -> bool {
        self.latest.len() >= KEYS_LEN_MAX
            || self.overwritten.len().max(self.built.len()) >= OVERWRITTEN_LEN_MAX
    }
}

impl Recent {
    /// A memory that knows nothing of the groups before `group`, nor of anything before `now`.
    pub(super) fn starting_at(group: u64, now: Duration) -> Self {
        Self { current: Generation::new(group, now), previous: Generation::new(group, now) }
    }

    /// What the latest groups have left of `key`.
    pub(super) fn mark(&self, key: &Key) -> Known<Mark> {
        let latest = self.current.latest.get(key).or_else(|| self.previous.latest.get(key));
        latest.map_or(Known::Nothing, |mark| Known::row(*mark))
    }

    /// Whether the record of `version` was once the newest here and was overwritten, as far back as is remembered.
    pub(super) fn has_accepted(&self, version: Version) -> bool {
        self.current.overwritten.contains(&version) || self.previous.overwritten.contains(&version)
    }

    /// Whether the record of a ballot that was built on `origin` was once the newest here, as far back as is remembered.
    pub(super) fn has_built(&self, origin: Version) -> bool {
        self.current.built.contains(&origin) || self.previous.built.contains(&origin)
    }

    /// The time since when all overwritten versions are remembered.
    pub(super) fn remembers_since(&self) -> Duration {
        self.previous.since
    }

    /// Whether every group after the first `as_of` ones is still remembered.
    pub(super) fn covers(&self, as_of: u64) -> bool {
        as_of + 1 >= self.previous.from
    }

    /// Remembers the changes of `group`, at `now`.
    pub(super) fn remember(
        &mut self,
        changes: Vec<Changed>,
        overwritten: Vec<Version>,
        built: Vec<Version>,
        group: u64,
        now: Duration,
    ) {
        self.current.latest.extend(changes.into_iter().map(|(key, _, latest)| (key, latest)));
        self.current.overwritten.extend(overwritten);
        self.current.built.extend(built);
        if self.current.is_full() {
            let mut next = Generation::new(group + 1, now);
            // Reserve as much as the previous generation grew to.
            next.latest.reserve(self.current.latest.len());
            next.overwritten.reserve(self.current.overwritten.len());
            self.previous = std::mem::replace(&mut self.current, next);
        }
    }
}
