//! The highest version known as of an instant, for each kind of quorum. It makes the checks O(n log n).

use super::facts::Facts;
use crate::history::{AckFrom, Operation, Outcome, Request, WriteId};
use kvorum_core::Version;
use std::collections::BTreeMap;
use std::time::Duration;

/// The highest version among the operations that were complete before an instant.
#[derive(Debug, Default)]
pub(super) struct Floor<'a> {
    classes: BTreeMap<(AckFrom, u16), Vec<Known<'a>>>,
}

/// A version that was known from `at` on, by `operation`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) at: Duration,
    pub(super) version: Version,
    pub(super) operation: &'a Operation,
}

impl<'a> Floor<'a> {
    /// Makes it of versions known through operations; the second part of a class is the `from` of the record
    /// that was seen.
    pub(super) fn new(known: impl IntoIterator<Item = (u16, Known<'a>)>) -> Self {
        let mut classes: BTreeMap<_, Vec<Known<'a>>> = BTreeMap::new();
        for (from, known) in known {
            classes.entry((known.operation.replicas, from)).or_default().push(known);
        }
        for class in classes.values_mut() {
            class.sort_by_key(|known| (known.at, known.version));
            let mut highest: Option<Known<'a>> = None;
            for known in class {
                match highest {
                    Some(best) if best.version > known.version => {
                        known.version = best.version;
                        known.operation = best.operation;
                    }
                    _ => highest = Some(*known),
                }
            }
        }
        Self { classes }
    }

    /// Makes it of acknowledged writes that are still voted for.
    pub(super) fn of_writes(operations: &[&'a Operation], facts: &Facts) -> Self {
        Self::new(operations.iter().filter_map(|operation| {
            let version = operation.acknowledged().filter(|_| facts.is_voted_for(operation))?;
            Some((operation.replicas.from, Known { at: operation.returned, version, operation }))
        }))
    }

    /// The highest version that was known before `at` through an operation of a class that `counts`.
    pub(super) fn before(&self, at: Duration, counts: impl Fn(AckFrom, u16) -> bool) -> Option<Known<'a>> {
        let classes = self.classes.iter().filter(|((replicas, from), _)| counts(*replicas, *from));
        classes
            .filter_map(|(_, class)| class.get(class.partition_point(|known| known.at < at).checked_sub(1)?))
            .max_by_key(|known| known.version)
            .copied()
    }
}

/// Every version of a key that is known, with its write: from acknowledgements, and from reads that saw the value.
#[derive(Debug, Default)]
pub(super) struct Writes<'a> {
    by_id: BTreeMap<WriteId, &'a Operation>,
    by_version: BTreeMap<Version, WriteId>,
    /// Conditional writes that came to nothing.
    failed: BTreeMap<WriteId, &'a Operation>,
}

impl<'a> Writes<'a> {
    pub(super) fn of(operations: &[&'a Operation]) -> Self {
        let mut writes = Self::default();
        for operation in operations {
            if operation.may_take_effect() {
                writes.by_id.insert(operation.id, operation);
            }
            if matches!(operation.outcome, Outcome::Failed { .. }) {
                writes.failed.insert(operation.id, operation);
            }
            if let Some(version) = operation.acknowledged() {
                writes.by_version.insert(version, operation.id);
            }
            if let Outcome::Value { write: Some(write), version, .. } = operation.outcome {
                writes.by_version.entry(version).or_insert(write);
            }
        }
        writes
    }

    pub(super) fn get(&self, id: WriteId) -> Option<&'a Operation> {
        self.by_id.get(&id).copied()
    }

    /// A conditional write that came to nothing. A replica may have held its record for a while: one that no quorum held.
    pub(super) fn failed(&self, id: WriteId) -> Option<&'a Operation> {
        self.failed.get(&id).copied()
    }

    /// Whether a conditional delete that came to nothing may have hidden a record written by `known` from `range`: a replica may
    /// have held its tombstone for a while, and a range asks no quorum for it.
    pub(super) fn may_hide_by_failing(&self, known: &Operation, range: &Operation) -> bool {
        let hides = |write: &&Operation| {
            write.request == Request::Delete
                && write.returned >= known.invoked
                && write.invoked <= range.returned
        };
        self.failed.values().any(hides)
    }

    /// The write of `version`, if that is known.
    pub(super) fn of_version(&self, version: Version) -> Option<&'a Operation> {
        self.get(*self.by_version.get(&version)?)
    }

    /// The write that a read saw; for a HEAD by its version, if that is known.
    pub(super) fn seen_by(&self, read: &Operation) -> Option<&'a Operation> {
        let Outcome::Value { write, version, .. } = read.outcome else { return None };
        self.get(write.or_else(|| self.by_version.get(&version).copied())?)
    }

    /// Whether the record `known`, written with `from`, may have lost copies permanently. A disk was lost, or a change of members
    /// gave a rank to another node, and the other replicas hold a newer record with a smaller `from` instead. That record does
    /// not belong on that disk, so the disk is not filled with either (decision 12).
    pub(super) fn are_copies_lost(&self, known: Version, from: u16, read: &Operation, facts: &Facts) -> bool {
        let is_narrower = |write: &&Operation| {
            write.replicas.from < from
                && write.invoked <= read.returned
                && write.acknowledged().is_none_or(|version| version > known)
        };
        (facts.was_wiped(read.returned) || facts.has_moved) && self.by_id.values().any(is_narrower)
    }

    /// A write that explains why `read` found nothing although `floor` was known: it had begun, may be newer,
    /// and may leave the key without a value.
    pub(super) fn hider(&self, floor: Version, read: &Operation, facts: &Facts) -> Option<&'a Operation> {
        self.hiders(floor, read, facts).next()
    }

    /// All such writes.
    pub(super) fn hiders(
        &self,
        floor: Version,
        read: &Operation,
        facts: &Facts,
    ) -> impl Iterator<Item = &'a Operation> {
        let at = read.returned;
        self.by_id.values().copied().filter(move |write| {
            let version = write.acknowledged();
            let in_time =
                write.invoked <= at && write.may_hide() && version.is_none_or(|version| version >= floor);
            in_time
                && match write.request {
                    Request::Put { ttl: Some(ttl) } => facts.may_have_expired(write, ttl, read),
                    _ => true,
                }
        })
    }
}
