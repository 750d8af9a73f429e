//! Crash points: named steps at which something is persisted, so that tests can let a node die exactly there.
//!
//! They exist only in builds with the feature `crash-points`, which no release has: without it [`point`] is nothing, at
//! compile time. With it
//! - a process that was started with `KVORUM_CRASH_AT=name[:n]` aborts when it reaches that point for the `n`th time
//!   ([`arm`]), as the tests of real processes want it;
//! - one that was started with `KVORUM_CRASH_AT=panic-in-part[:n]` has that part of the node ([`Part`]) panic at its
//!   `n`th step ([`step`]);
//! - the simulation is told of every point that its nodes reach ([`watched`]), and decides itself what becomes of the
//!   machine.

use crate::supervise::Part;
use std::rc::Rc;

macro_rules! points {
    ($($(#[doc = $doc:literal])+ $point:ident = $name:literal,)+) => {
        /// This is one step of persisting something.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $($(#[doc = $doc])+ $point,)+
        }

        impl Point {
            /// All of them, in the order of a node's life.
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
    /// The data directory is this process's, and nothing has been opened in it.
    DataDirTaken = "data-dir-taken",
    /// The engine has made or opened its files, and nothing of them has been used.
    StoreOpened = "store-opened",
    /// What the life before left unsynced is about to be synced.
    StartBeforeSync = "start-before-sync",
    /// It is synced.
    StartAfterSync = "start-after-sync",
    /// A new store is about to get its identity.
    BirthBefore = "birth-before",
    /// It has it.
    BirthAfter = "birth-after",
    /// A start of the store is about to be counted.
    RunBefore = "run-before",
    /// It is counted, and nobody has heard of it.
    RunAfter = "run-after",
    /// The store is about to remember to which cluster it belongs, or that its run has a later number.
    IdentityBefore = "identity-before",
    /// It remembers.
    IdentityAfter = "identity-after",
    /// A batch of the index that replicas compare is about to be written for a store that has none.
    IndexBefore = "index-before",
    /// The index is complete, and marked so.
    IndexAfter = "index-after",
    /// It is about to be marked that this life confirms writes before they are synced, or that the life before did and
    /// was cut short.
    UncleanBefore = "unclean-before",
    /// It is marked, and nothing has been written.
    UncleanAfter = "unclean-after",
    /// A lease of the clock is about to be stored.
    LeaseBefore = "lease-before",
    /// It is stored, and no version of it has been used.
    LeaseAfter = "lease-after",
    /// A group of writes has been judged, and nothing of it is written.
    CommitBeforeWrite = "commit-before-write",
    /// A group that is to be synced is written, and not synced.
    CommitBeforeSync = "commit-before-sync",
    /// A group is as durable as it must be, and nobody has been answered.
    CommitBeforeAnswers = "commit-before-answers",
    /// Everybody in a group has been answered.
    CommitAnswered = "commit-answered",
    /// Rows of the index are about to be folded into its tree, and what they stand for is synced.
    FoldBefore = "fold-before",
    /// They are folded, and still in the log.
    FoldAfter = "fold-after",
    /// The interval is over: what is not synced is about to be.
    IntervalBeforeSync = "interval-before-sync",
    /// It is synced.
    IntervalAfterSync = "interval-after-sync",
    /// A batch of what has expired or been deleted is about to be given back.
    SweepBefore = "sweep-before",
    /// It has been.
    SweepAfter = "sweep-after",
    /// A hint is about to be stored.
    HintBefore = "hint-before",
    /// It is stored.
    HintAfter = "hint-after",
    /// Hints have been delivered, and are about to be removed.
    HintsRemoveBefore = "hints-remove-before",
    /// They are removed.
    HintsRemoveAfter = "hints-remove-after",
    /// The mark of a gap is about to be stored.
    GapBefore = "gap-before",
    /// It is stored.
    GapAfter = "gap-after",
    /// Gaps have been healed, and their marks are about to be removed.
    GapsRemoveBefore = "gaps-remove-before",
    /// They are removed.
    GapsRemoveAfter = "gaps-remove-after",
    /// With which store a node was seen is about to be stored.
    SeenBefore = "seen-before",
    /// It is stored.
    SeenAfter = "seen-after",
    /// Whether this store votes is about to be stored.
    VotesBefore = "votes-before",
    /// It is stored.
    VotesAfter = "votes-after",
    /// It is about to be stored that all nodes held the same.
    SettleBefore = "settle-before",
    /// It is stored, and nobody has been told.
    SettleAfter = "settle-after",
    /// It is about to be stored that all nodes have settled.
    SealBefore = "seal-before",
    /// It is stored, and nobody has been told.
    SealAfter = "seal-after",
    /// It is about to be stored that all nodes have sealed.
    ReleaseBefore = "release-before",
    /// It is stored, and nothing that is dead has gone.
    ReleaseAfter = "release-after",
    /// A batch of tombstones that a floor lets go is about to be removed.
    PurgeBefore = "purge-before",
    /// It is removed.
    PurgeAfter = "purge-after",
    /// A batch of what an older store held below others' floors is about to be dropped.
    DropBefore = "drop-before",
    /// It is dropped.
    DropAfter = "drop-after",
    /// An older store has dropped all of that, and is about to take up the others' floors.
    AdoptBefore = "adopt-before",
    /// They are stored.
    AdoptAfter = "adopt-after",
    /// A damaged store is about to be set aside.
    AsideBefore = "aside-before",
    /// It is marked that it will be, and it is in its place.
    AsideMarked = "aside-marked",
    /// It is set aside, and nothing is in its place.
    AsideAfter = "aside-after",
    /// The store in its place has what its node knew, and nobody has been told of it.
    AsideBegun = "aside-begun",
    /// The store in its place knows what it lacks, and the mark has been removed.
    AsideForgotten = "aside-forgotten",
    /// There is space again: a store that met a full disk is about to be opened again.
    ReopenBefore = "reopen-before",
    /// It is open again; what is remembered of it is still that of before.
    ReopenAfter = "reopen-after",
    /// What replicas compare has been counted anew after that.
    ReopenCounted = "reopen-counted",
    /// The node has been told to stop, and its network threads have ended.
    CloseDrained = "close-drained",
    /// The last group is stored; the last sync is about to begin.
    CloseBeforeSync = "close-before-sync",
    /// The last sync is done.
    CloseAfterSync = "close-after-sync",
    /// The engine is closed; the data directory is still this process's.
    CloseDone = "close-done",
}

impl Point {
    /// The steps by which what is deleted goes.
    pub const PURGING: &[Self] = &[
        Self::SettleBefore,
        Self::SettleAfter,
        Self::SealBefore,
        Self::SealAfter,
        Self::ReleaseBefore,
        Self::ReleaseAfter,
        Self::PurgeBefore,
        Self::PurgeAfter,
    ];
    /// The steps that an older store takes once it meets the others.
    pub const ADOPTING: &[Self] = &[Self::DropBefore, Self::DropAfter, Self::AdoptBefore, Self::AdoptAfter];
    /// The steps that a store takes that met a full disk, once there is space.
    pub const REOPENING: &[Self] = &[Self::ReopenBefore, Self::ReopenAfter, Self::ReopenCounted];
}

/// The environment variable that arms a point of a process. A build without crash points warns of it, as of any other
/// that is no setting.
pub const VARIABLE: &str = "KVORUM_CRASH_AT";

/// Who is told of points.
pub type Watcher = Rc<dyn Fn(Point)>;

#[cfg(feature = "crash-points")]
pub use armed::{arm, watched};
#[cfg(feature = "crash-points")]
pub(crate) use armed::{is_armed, point, step};
#[cfg(not(feature = "crash-points"))]
pub use unarmed::watched;
#[cfg(not(feature = "crash-points"))]
pub(crate) use unarmed::{is_armed, point, step};

#[cfg(feature = "crash-points")]
mod armed {
    use super::{Part, Point, VARIABLE, Watcher};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What the process dies at, and how often it is still to be reached.
    static ARMED: OnceLock<(Point, AtomicU64)> = OnceLock::new();

    /// What panics, and how often it is still to take a step.
    static PANIC: OnceLock<(Part, AtomicU64)> = OnceLock::new();

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    /// Makes the process abort at a point: its name, or its name, a colon and the how-manieth time. The first call
    /// decides.
    ///
    /// # Errors
    /// When `text` names no point, or a number below 1: what was given, in words.
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

    /// Runs `run` and tells `watcher` of every point that it reaches on this thread.
    pub fn watched<T>(watcher: &Watcher, run: impl FnOnce() -> T) -> T {
        let before = WATCHER.replace(Some(Rc::clone(watcher)));
        let result = run();
        WATCHER.set(before);
        result
    }

    /// Whether the process is to die at `point`.
    pub(crate) fn is_armed(point: Point) -> bool {
        ARMED.get().is_some_and(|(armed, _)| *armed == point)
    }

    /// Panics where this is the step of `part` that it is to panic at.
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

    /// This is `point`.
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

    /// Nothing, in this build.
    #[inline]
    pub(crate) const fn step(_part: Part) {}

    /// Runs `run`. There are no points in this build.
    pub fn watched<T>(_watcher: &Watcher, run: impl FnOnce() -> T) -> T {
        run()
    }

    /// Nothing, in this build.
    #[inline]
    pub(crate) const fn point(_point: Point) {}

    /// Never, in this build.
    #[inline]
    pub(crate) const fn is_armed(_point: Point) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names are apart, and made for an environment variable.
    #[test]
    fn names_are_apart() {
        let names: BTreeSet<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(|name| is_plain(name)));
    }

    /// Every point stands in the code: one that nothing reaches would show nothing.
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

    /// What is no point is refused.
    #[cfg(feature = "crash-points")]
    #[test]
    fn unknown_names_are_refused() {
        for text in
            ["", "no-such-point", "commit-before-sync:0", "commit-before-sync:x", "commit-before-sync:"]
        {
            assert!(arm(text).unwrap_err().contains(text), "{text}");
        }
    }

    /// The watcher is told of what is reached while it watches, and of nothing else.
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
