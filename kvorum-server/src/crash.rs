//! Crash points: named steps of persisting something, so that tests can kill a node exactly there.
//!
//! They exist only in builds with the feature `crash-points`, which no release has: without it [`point`] does nothing,
//! at compile time. With it
//! - a process that was started with `KVORUM_CRASH_AT=name[:n]` aborts when it reaches that point for the `n`th time
//!   ([`arm`]); tests of real processes use this;
//! - in a process that was started with `KVORUM_CRASH_AT=panic-in-part[:n]`, that part of the node ([`Part`]) panics at
//!   its `n`th step ([`step`]);
//! - the simulation is told of every point that its nodes reach ([`watched`]), and decides itself what happens to the
//!   machine.

use crate::part::Part;
use std::rc::Rc;

macro_rules! points {
    ($($(#[doc = $doc:literal])+ $point:ident = $name:literal,)+) => {
        /// A step of persisting something.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $($(#[doc = $doc])+ $point,)+
        }

        impl Point {
            /// All points, in the order in which a node reaches them.
            pub const ALL: &[Self] = &[$(Self::$point,)+];

            /// The point's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }
    };
}

points! {
    /// The data directory has a marker, which is empty.
    MarkerCreated = "marker-created",
    /// The marker is written, and not synced.
    MarkerWritten = "marker-written",
    /// The marker is synced; its name in the directory is not.
    MarkerSynced = "marker-synced",
    /// The process has locked the data directory, and has not opened anything in it.
    DataDirTaken = "data-dir-taken",
    /// The engine has made or opened its files, and none of them has been used.
    StoreOpened = "store-opened",
    /// The writes that the last run left unsynced are about to be synced.
    StartBeforeSync = "start-before-sync",
    /// They are synced.
    StartAfterSync = "start-after-sync",
    /// A new store is about to get its identity.
    BirthBefore = "birth-before",
    /// The new store has its identity.
    BirthAfter = "birth-after",
    /// A start of the store is about to be counted.
    RunBefore = "run-before",
    /// The start is counted, and no other node has been told.
    RunAfter = "run-after",
    /// The store is about to record the cluster that it belongs to, or that its run has a later number.
    IdentityBefore = "identity-before",
    /// The store has recorded it.
    IdentityAfter = "identity-after",
    /// A batch of the index that replicas compare is about to be written for a store that has none.
    IndexBefore = "index-before",
    /// The index is complete, and marked so.
    IndexAfter = "index-after",
    /// The store is about to record that this run confirms writes before they are synced, or that the last run did and
    /// was cut short.
    UncleanBefore = "unclean-before",
    /// That is recorded, and no write has been made.
    UncleanAfter = "unclean-after",
    /// A clock lease is about to be stored.
    LeaseBefore = "lease-before",
    /// The lease is stored, and no version from it has been used.
    LeaseAfter = "lease-after",
    /// The commit thread has judged a group of writes, and none of it is written.
    CommitBeforeWrite = "commit-before-write",
    /// A group that must be synced is written, and not synced.
    CommitBeforeSync = "commit-before-sync",
    /// A group is as durable as required, and no write in it has been answered.
    CommitBeforeAnswers = "commit-before-answers",
    /// Every write in a group has been answered.
    CommitAnswered = "commit-answered",
    /// Rows of the index are about to be flushed into its tree, and the records that they index are synced.
    IndexFlushBefore = "index-flush-before",
    /// The rows are flushed, and still in the log.
    IndexFlushAfter = "index-flush-after",
    /// The sync interval is over: unsynced writes are about to be synced.
    IntervalBeforeSync = "interval-before-sync",
    /// They are synced.
    IntervalAfterSync = "interval-after-sync",
    /// A batch of expired or deleted records is about to be removed.
    SweepBefore = "sweep-before",
    /// The batch is removed.
    SweepAfter = "sweep-after",
    /// A hint is about to be stored.
    HintBefore = "hint-before",
    /// The hint is stored.
    HintAfter = "hint-after",
    /// Hints have been delivered, and are about to be removed.
    HintsRemoveBefore = "hints-remove-before",
    /// The hints are removed.
    HintsRemoveAfter = "hints-remove-after",
    /// The mark of a dirty partition is about to be stored.
    GapBefore = "gap-before",
    /// The mark is stored.
    GapAfter = "gap-after",
    /// Dirty partitions have been repaired, and their marks are about to be removed.
    GapsRemoveBefore = "gaps-remove-before",
    /// The marks are removed.
    GapsRemoveAfter = "gaps-remove-after",
    /// The store that a peer was seen with is about to be recorded.
    SeenBefore = "seen-before",
    /// That is recorded.
    SeenAfter = "seen-after",
    /// Whether the store is quorum-eligible is about to be recorded.
    VotesBefore = "votes-before",
    /// That is recorded.
    VotesAfter = "votes-after",
    /// Tombstone GC is about to record that all nodes held the same.
    AgreeBefore = "agree-before",
    /// That is recorded, and no other node has been told.
    AgreeAfter = "agree-after",
    /// Tombstone GC is about to record that all nodes have agreed.
    SealBefore = "seal-before",
    /// That is recorded, and no other node has been told.
    SealAfter = "seal-after",
    /// Tombstone GC is about to record that all nodes have sealed.
    ReleaseBefore = "release-before",
    /// That is recorded, and no tombstone has been removed.
    ReleaseAfter = "release-after",
    /// A batch of tombstones that a floor allows to purge is about to be removed.
    PurgeBefore = "purge-before",
    /// The batch is removed.
    PurgeAfter = "purge-after",
    /// A batch of an outdated store's records below the other nodes' floors is about to be dropped.
    DropBefore = "drop-before",
    /// The batch is dropped.
    DropAfter = "drop-after",
    /// A promise about the next configuration, or its acceptance, is about to be stored.
    BallotBefore = "ballot-before",
    /// That is stored, and no proposer has been told.
    BallotAfter = "ballot-after",
    /// A configuration that was decided is about to be adopted.
    EpochBefore = "epoch-before",
    /// It is stored, and no other node has been told.
    EpochAfter = "epoch-after",
    /// The store has taken all that it lacks from a peer in this epoch, and a change is about to count that.
    ComparedBefore = "compared-before",
    /// It counts, and no other node has been told.
    ComparedAfter = "compared-after",
    /// A batch of records that other nodes own since a change has ended is about to be dropped.
    UnownedBefore = "unowned-before",
    /// The batch is dropped.
    UnownedAfter = "unowned-after",
    /// An outdated store has dropped all such records, and is about to adopt the other nodes' floors.
    AdoptBefore = "adopt-before",
    /// The floors are stored.
    AdoptAfter = "adopt-after",
    /// A damaged store is about to be set aside.
    AsideBefore = "aside-before",
    /// The store is marked to be set aside, and still in its place.
    AsideMarked = "aside-marked",
    /// The store is set aside, and nothing is in its place.
    AsideAfter = "aside-after",
    /// The replacement store has the facts that its node knew, and no other node has been told of it.
    AsideBegun = "aside-begun",
    /// The replacement store has recorded what it lacks, and the mark has been removed.
    AsideForgotten = "aside-forgotten",
    /// There is disk space again: a store that met a full disk is about to be reopened.
    ReopenBefore = "reopen-before",
    /// The store is reopened; the state in memory is still from before.
    ReopenAfter = "reopen-after",
    /// The digests that replicas compare have been counted again after that.
    ReopenCounted = "reopen-counted",
    /// The node has been told to stop, and its network threads have ended.
    CloseDrained = "close-drained",
    /// The last group is stored; the last sync is about to begin.
    CloseBeforeSync = "close-before-sync",
    /// The last sync is done.
    CloseAfterSync = "close-after-sync",
    /// The engine is closed; the process still holds the data directory's lock.
    CloseDone = "close-done",
}

impl Point {
    /// The steps of tombstone GC, by which deleted records are purged.
    pub const PURGING: &[Self] = &[
        Self::AgreeBefore,
        Self::AgreeAfter,
        Self::SealBefore,
        Self::SealAfter,
        Self::ReleaseBefore,
        Self::ReleaseAfter,
        Self::PurgeBefore,
        Self::PurgeAfter,
    ];
    /// The steps of deciding a configuration.
    pub const DECIDING: &[Self] =
        &[Self::BallotBefore, Self::BallotAfter, Self::EpochBefore, Self::EpochAfter];
    /// The steps of moving partitions, besides those of deciding.
    pub const MOVING: &[Self] =
        &[Self::ComparedBefore, Self::ComparedAfter, Self::UnownedBefore, Self::UnownedAfter];
    /// The steps of an outdated store after it meets the other nodes.
    pub const ADOPTING: &[Self] = &[Self::DropBefore, Self::DropAfter, Self::AdoptBefore, Self::AdoptAfter];
    /// The steps of a store that met a full disk, once there is space.
    pub const REOPENING: &[Self] = &[Self::ReopenBefore, Self::ReopenAfter, Self::ReopenCounted];
}

/// The environment variable that arms a point in a process. A build without crash points warns of it, as of any unknown
/// variable.
pub const VARIABLE: &str = "KVORUM_CRASH_AT";

/// The callback for points that are reached.
pub type Watcher = Rc<dyn Fn(Point)>;

#[cfg(feature = "crash-points")]
pub use armed::{arm, watched};
#[cfg(feature = "crash-points")]
pub(crate) use armed::{is_armed, point, step};
#[cfg(not(feature = "crash-points"))]
pub use unarmed::{arm, watched};
#[cfg(not(feature = "crash-points"))]
pub(crate) use unarmed::{is_armed, point, step};

#[cfg(feature = "crash-points")]
mod armed {
    use super::{Part, Point, VARIABLE, Watcher};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The point at which the process aborts, and how many times it must still be reached.
    static ARMED: OnceLock<(Point, AtomicU64)> = OnceLock::new();

    /// The part that panics, and how many steps it must still take.
    static PANIC: OnceLock<(Part, AtomicU64)> = OnceLock::new();

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    /// Makes the process abort at a point, or a part panic. `text` is `NAME` or `NAME:N`, for the `N`th time. Only the
    /// first call has an effect.
    ///
    /// # Errors
    /// When `text` names no point or part, or a number below 1: the text, in a message.
    pub fn arm(text: &str) -> Result<(), String> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        if let Some(part) = name.strip_prefix("panic-in-")
            && let Some(part) = Part::ALL.iter().find(|it| it.name() == part)
            && let Ok(count @ 1..) = count.parse()
        {
            let _ = PANIC.set((*part, AtomicU64::new(count)));
            return Ok(());
        }
        let point = Point::ALL.iter().find(|point| point.name() == name);
        match (point, count.parse()) {
            (Some(point), Ok(count @ 1..)) => {
                let _ = ARMED.set((*point, AtomicU64::new(count)));
                Ok(())
            }
            _ => Err(format!("{VARIABLE}={text:?} is not the name of a crash point, or NAME:COUNT")),
        }
    }

    /// Runs `run` and reports every point that it reaches on this thread to `watcher`.
    pub fn watched<T>(watcher: &Watcher, run: impl FnOnce() -> T) -> T {
        let before = WATCHER.replace(Some(Rc::clone(watcher)));
        let result = run();
        WATCHER.set(before);
        result
    }

    /// Whether the process is set to abort at `point`.
    pub(crate) fn is_armed(point: Point) -> bool {
        ARMED.get().is_some_and(|(armed, _)| *armed == point)
    }

    /// Panics if `part` is armed and has taken its last step before the panic.
    pub(crate) fn step(part: Part) {
        if let Some((armed, left)) = PANIC.get()
            && *armed == part
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            #[expect(clippy::panic, reason = "a test wants this part to panic")]
            {
                panic!("{} panics as a test wants", part.name());
            }
        }
    }

    /// Marks that the thread has reached `point`: reports it, and aborts the process if it is armed.
    pub(crate) fn point(point: Point) {
        if let Some(watcher) = WATCHER.with_borrow(Clone::clone) {
            watcher(point);
        }
        if let Some((armed, left)) = ARMED.get()
            && *armed == point
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            kvorum_output::tell(format!("crash point {} is reached\n", point.name()));
            kvorum_output::flush(crate::log::FLUSH_MAX);
            std::process::abort();
        }
    }
}

#[cfg(not(feature = "crash-points"))]
mod unarmed {
    use super::{Part, Point, Watcher};

    /// Does nothing in this build, whose settings warn of the variable.
    ///
    /// # Errors
    /// None.
    pub fn arm(_text: &str) -> Result<(), String> {
        Ok(())
    }

    /// Does nothing in this build.
    #[inline]
    pub(crate) const fn step(_part: Part) {}

    /// Runs `run`. There are no points in this build.
    pub fn watched<T>(_watcher: &Watcher, run: impl FnOnce() -> T) -> T {
        run()
    }

    /// Does nothing in this build.
    #[inline]
    pub(crate) const fn point(_point: Point) {}

    /// Always false in this build.
    #[inline]
    pub(crate) const fn is_armed(_point: Point) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names are unique, and fit into an environment variable.
    #[test]
    fn names_are_apart() {
        let names: BTreeSet<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(|name| is_plain(name)));
    }

    /// The code uses every point: one that is never reached would test nothing.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test reads the source")]
    fn every_point_stands_in_the_code() {
        fn texts(folder: &std::path::Path, found: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    texts(&path, found);
                } else if path.file_name().is_some_and(|name| name != "crash.rs") {
                    found.push_str(&std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        let mut source = String::new();
        texts(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut source);
        for point in Point::ALL {
            assert!(source.contains(&format!("crash::point(Point::{point:?})")), "{}", point.name());
        }
    }

    /// A name that is not a point's is refused.
    #[cfg(feature = "crash-points")]
    #[test]
    fn unknown_names_are_refused() {
        for text in
            ["", "no-such-point", "commit-before-sync:0", "commit-before-sync:x", "commit-before-sync:"]
        {
            assert!(arm(text).unwrap_err().contains(text), "{text}");
        }
    }

    /// The watcher is told of the points reached while it watches, and of no others.
    #[cfg(feature = "crash-points")]
    #[test]
    fn watcher_is_told() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let seen = Rc::new(RefCell::new(Vec::new()));
        let watcher: Rc<dyn Fn(Point)> = {
            let seen = Rc::clone(&seen);
            Rc::new(move |point| seen.borrow_mut().push(point))
        };
        point(Point::SweepBefore);
        watched(&watcher, || point(Point::LeaseBefore));
        point(Point::SweepAfter);
        assert_eq!(*seen.borrow(), [Point::LeaseBefore]);
    }
}
