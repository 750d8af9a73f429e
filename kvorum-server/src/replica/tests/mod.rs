//! The committer, driven group by group over the in-memory engine: what it stores, what it answers, what survives.

mod ballots;
mod cuts;
mod failures;

use super::answer::Applied;
use super::commit::{Committer, DurabilityMode, Purge};
use super::floor::{FloorStep, SealedWord};
use super::health::StoreHealth;
use super::queue::{DueRow, Observed, Removal, Request, Source};
use super::{Execution, ReplicaError, ReplicaParts, StoreState};
use crate::clock::{ClockStanding, ManualClock, SystemRng};
use crate::metrics::StoreMetrics;
use crate::storage::memory::{Fault, MemoryEngine};
use crate::storage::{Change, Engine, Keyspace, format};
use crate::worker::Pools;
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Partition, Record, Token, UnixMillis, Value, Version};
use proptest::prelude::*;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Superseded by `by`, as told at the instant at which the replica started.
fn superseded(by: Version) -> Applied {
    Applied::Superseded { by, memory_millis: 0 }
}

/// A committer with everything around it at hand.
struct Bench {
    engine: Arc<MemoryEngine>,
    clock: Arc<ManualClock>,
    groups: Arc<AtomicU64>,
    health: Arc<StoreHealth>,
    metrics: Arc<StoreMetrics>,
    promises: Arc<super::Promises>,
    cuts: Arc<super::Cuts>,
    committer: Committer,
    source: Source,
}

impl Bench {
    fn new(durability: DurabilityMode, purge: Purge) -> Self {
        Self::over(Arc::new(MemoryEngine::new()), durability, purge)
    }

    fn over(engine: Arc<MemoryEngine>, durability: DurabilityMode, purge: Purge) -> Self {
        let clock = ManualClock::at(1_000_000);
        let parts = ReplicaParts {
            engine: Arc::clone(&engine) as Arc<dyn Engine>,
            clock: Arc::clone(&clock) as Arc<dyn crate::clock::Clock>,
            timestamps: Arc::new(crate::clock::TimestampBound::alone(Arc::clone(&clock) as _)),
            value_bytes_max: 8 << 20,
            rng: Arc::new(SystemRng),
            pools: Arc::new(Pools::start(1, &crate::supervise::Supervisor::default()).unwrap()),
            metrics: Arc::new(StoreMetrics::default()),
            execution: Execution::Inline,
            durability,
            purge,
            node: NodeId(1),
            bound_to: None,
            birth: super::Birth { vote: super::Vote::Yes, topology: 1 },
            partition_bits: 12,
            index_bytes: 4 << 10,
            workers: super::Workers::Threads,
            supervisor: crate::supervise::Supervisor::default(),
        };
        let (groups, health) = (Arc::new(AtomicU64::new(0)), Arc::new(StoreHealth::default()));
        let digests = (purge == Purge::Keep).then(|| Arc::new(super::Digests::open(&*engine, 12).unwrap()));
        let floors = (purge == Purge::Keep).then(|| Arc::new(super::Floors::open(&*engine, 12).unwrap()));
        let (counted, known) = (Arc::clone(&groups), Arc::clone(&health));
        let promises = Arc::new(super::Promises::open(&*engine).unwrap());
        let cuts = Arc::new(super::Cuts::default());
        let committer = Committer::new(&parts, digests, floors, Arc::clone(&promises), counted, known)
            .with_cuts(Arc::clone(&cuts));
        let (metrics, source) = (parts.metrics, Source::Writer);
        Self { engine, clock, groups, health, metrics, promises, cuts, committer, source }
    }

    fn stored(&self, key: &str) -> Option<Record> {
        let row = self.engine.get(Keyspace::Records, key.as_bytes()).unwrap();
        row.map(|row| format::decode_record(&row).unwrap())
    }

    /// What the requesting side would see of the key now.
    fn observe(&self, key: &str) -> Observed {
        let as_of = self.groups.load(Ordering::Acquire);
        let row = self.engine.get(Keyspace::Records, key.as_bytes()).unwrap();
        Observed { mark: row.map(|row| format::decode_record_mark(&row).unwrap()), as_of }
    }

    fn apply(&mut self, key: &str, record: Record) -> Result<Applied, ReplicaError> {
        let observed = self.observe(key);
        self.apply_all(vec![(key, record, observed)]).remove(0)
    }

    /// One group, with what each requester had observed.
    fn apply_all(&mut self, group: Vec<(&str, Record, Observed)>) -> Vec<Result<Applied, ReplicaError>> {
        let (requests, answers): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|(key, record, observed)| {
                let (done, answer) = oneshot::channel();
                let source = self.source;
                let key = self::key(key);
                (
                    Request::Apply { key, record, source, observed, done, completions: None, times: None },
                    answer,
                )
            })
            .unzip();
        self.committer.commit(requests);
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect()
    }

    /// Lets so many other writes pass that nothing is remembered of those before.
    fn forget(&mut self) {
        for generation in 0..3 {
            let others: Vec<String> = (0..10_000).map(|i| format!("other-{generation}-{i}")).collect();
            let fresh = Observed { mark: None, as_of: self.groups.load(Ordering::Acquire) };
            let group = others.iter().map(|other| (&**other, value(1_000, ""), fresh)).collect();
            for answer in self.apply_all(group) {
                assert_eq!(answer.unwrap(), Applied::Stored);
            }
        }
    }

    fn conflicts(&self) -> u64 {
        self.metrics.conflicts.load(Ordering::Relaxed)
    }

    fn due(&self) -> Vec<DueRow> {
        let rows = self.engine.scan(Keyspace::Due, &[], Bound::Unbounded).unwrap();
        rows.map(|row| {
            let (row, version) = row.unwrap();
            let (at, key) = format::decode_due_key(&row).unwrap();
            DueRow { at, key, version: format::decode_due_version(&version).unwrap() }
        })
        .collect()
    }

    /// Hands the committer everything that is due by now; says how many records were purged.
    fn sweep(&mut self) -> usize {
        let now = crate::clock::Clock::wall(&*self.clock);
        let rows = self.due().into_iter().filter(|row| row.at <= now).collect();
        let (done, mut answer) = oneshot::channel();
        self.committer.commit(vec![Request::Purge { rows, done }]);
        answer.try_recv().unwrap().unwrap()
    }
}

impl Bench {
    /// Has the committer look again, as it does without being asked.
    fn look_after_a_second(&mut self) {
        self.clock.pass(1000);
        self.committer.commit(Vec::new());
    }

    /// Takes a step in the partition of `k`.
    fn step(&mut self, step: FloorStep) -> bool {
        let (done, mut answer) = oneshot::channel();
        self.committer.commit(vec![Request::Floor { step, done }]);
        answer.try_recv().unwrap().unwrap()
    }

    /// Removes what is stored of `k`, as far as it may go.
    fn remove(&mut self, which: Removal) -> usize {
        let rows = self.stored("k").map(|record| (key("k"), record.version)).into_iter().collect();
        let (done, mut answer) = oneshot::channel();
        self.committer.commit(vec![Request::Remove { partition: partition(), rows, which, done }]);
        answer.try_recv().unwrap().unwrap()
    }

    fn apply_as(&mut self, source: Source, record: Record) -> Applied {
        self.source = source;
        self.apply("k", record).unwrap()
    }

    fn floor(&self) -> super::Floor {
        super::Floors::open(&*self.engine, 12).unwrap().of(partition())
    }

    /// Through all steps up to `millis`.
    fn release(&mut self, millis: u64) {
        let (upto, partitions) = (version(millis).clock(), || Arc::from([partition().0]));
        assert!(self.step(FloorStep::Close { round: 7, upto, partitions: partitions() }));
        assert!(self.step(FloorStep::Agree { round: 7, upto, partitions: partitions() }));
        assert!(self.step(FloorStep::Seal { upto, partitions: partitions() }));
        assert!(self.step(FloorStep::Release { upto, partitions: partitions() }));
    }
}

fn partition() -> Partition {
    Token::of(b"k").partition(12)
}

fn key(text: &str) -> Key {
    Key::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn version(millis: u64) -> Version {
    Version::new(UnixMillis(millis), 0, NodeId(1))
}

fn value(millis: u64, text: &str) -> Record {
    let value = Value::Present(Bytes::copy_from_slice(text.as_bytes()));
    Record { version: version(millis), from: 1, expires: None, value, conditional: None }
}

fn tombstone(millis: u64) -> Record {
    Record { version: version(millis), from: 1, expires: None, value: Value::Tombstone, conditional: None }
}

/// Newest wins, whatever the order; the loser is told by what; a repetition changes nothing.
#[test]
fn newest_wins() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    assert_eq!(bench.apply("k", value(5, "new")).unwrap(), Applied::Stored);
    assert_eq!(bench.apply("k", value(4, "old")).unwrap(), superseded(version(5)));
    assert_eq!(bench.apply("k", value(5, "new")).unwrap(), Applied::Stored);
    assert_eq!(bench.stored("k"), Some(value(5, "new")));
    assert_eq!(bench.apply("k", tombstone(6)).unwrap(), Applied::Stored);
    // It was the newest once, so it took effect; what is stored stays.
    assert_eq!(bench.apply("k", value(5, "new")).unwrap(), Applied::Stored);
    assert_eq!(bench.stored("k"), Some(tombstone(6)));
}

/// Several records of one key in one group: the newest is stored once, and each is told the truth.
#[test]
fn one_group_may_hold_a_key_several_times() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let observed = bench.observe("k");
    let group = [3, 7, 5].map(|at| ("k", value(at, "v"), observed)).to_vec();
    let answers: Vec<_> = bench.apply_all(group).into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Applied::Stored, Applied::Stored, superseded(version(7))]);
    assert_eq!(bench.stored("k"), Some(value(7, "v")));
}

/// A batch is judged record by record, in one group, against what the batch itself has brought.
#[test]
fn batches_are_judged_record_by_record() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("newer here", value(9, "stays")).unwrap();
    let records = [
        ("new", value(5, "a")),
        ("newer here", value(5, "late")),
        ("twice", value(6, "b")),
        ("twice", value(5, "late")),
    ];
    let records = records.map(|(name, record)| (key(name), record, bench.observe(name)));
    let before = bench.groups.load(Ordering::Acquire);
    let (done, mut answer) = oneshot::channel();
    let source = Source::Repair { agreed: 0 };
    let request = Request::ApplyMany { records: records.into(), source, done, completions: None };
    bench.committer.commit(vec![request]);
    let superseded = |by| Some(self::superseded(version(by)));
    let expected = vec![Some(Applied::Stored), superseded(9), Some(Applied::Stored), superseded(6)];
    assert_eq!(answer.try_recv().unwrap().unwrap(), expected);
    assert_eq!(bench.groups.load(Ordering::Acquire), before + 1);
    assert_eq!(bench.stored("new"), Some(value(5, "a")));
    assert_eq!(bench.stored("newer here"), Some(value(9, "stays")));
    assert_eq!(bench.stored("twice"), Some(value(6, "b")));
}

/// A batch that the disk does not take is refused as a whole, as its group is.
#[test]
fn batches_fail_with_their_group() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.engine.set_fault(Some(Fault::SyncError));
    let (done, mut answer) = oneshot::channel();
    let records = vec![(key("k"), value(5, "a"), bench.observe("k"))];
    let source = Source::Repair { agreed: 0 };
    bench.committer.commit(vec![Request::ApplyMany { records, source, done, completions: None }]);
    assert!(matches!(answer.try_recv().unwrap(), Err(ReplicaError::Failed { .. })));
}

/// Steps are taken in their order only, and only in the round that closed; what is confirmed is on disk whatever the
/// durability of writes is.
#[test]
fn steps_follow_each_other() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let (upto, partitions) = (version(5).clock(), || Arc::from([partition().0]));
    let agree = |round| FloorStep::Agree { round, upto, partitions: partitions() };
    assert!(!bench.step(agree(7)));
    assert!(!bench.step(FloorStep::Seal { upto, partitions: partitions() }));
    assert!(!bench.step(FloorStep::Release { upto, partitions: partitions() }));
    assert!(bench.step(FloorStep::Close { round: 7, upto, partitions: partitions() }));
    assert!(!bench.step(agree(8)));
    assert!(!bench.step(FloorStep::Agree { round: 7, upto: upto + 1, partitions: partitions() }));
    bench.source = Source::Writer;
    assert_eq!(bench.apply("other", value(9, "v")).unwrap(), Applied::Stored);
    assert!(bench.step(agree(7)));
    assert!(bench.step(FloorStep::Seal { upto, partitions: partitions() }));
    bench.engine.crash();
    assert_eq!(bench.floor(), super::Floor { agreed: upto, sealed: upto, purged: 0 });
    // What was compared is as durable as the word on it.
    assert_eq!(bench.stored("other"), Some(value(9, "v")));
    // Another life has not been closed.
    let mut bench = Bench::over(Arc::clone(&bench.engine), DurabilityMode::Os, Purge::Keep);
    assert!(!bench.step(agree(7)));
}

/// Goal: what is purged stays away, whoever brings it; what is newer does not. Method: a deleted key is purged, then
/// everything older comes late.
#[test]
fn nothing_comes_in_below_a_floor() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    bench.apply("k", value(2, "old")).unwrap();
    bench.apply("k", tombstone(4)).unwrap();
    assert_eq!(bench.remove(Removal::Purged), 0);
    bench.release(5);
    assert_eq!(bench.remove(Removal::Purged), 1);
    assert_eq!(bench.stored("k"), None);
    assert_eq!(bench.engine.row_count(Keyspace::Tokens), 0);
    let floor = version(5).clock();
    let refused = Applied::TooLate { upto: Version::from_words(floor, u64::MAX) };
    bench.forget();
    for source in [Source::Writer, Source::Copy, Source::Repair { agreed: floor - 1 }] {
        assert_eq!(bench.apply_as(source, value(2, "old")), refused, "{source:?}");
        assert_eq!(bench.apply_as(source, value(5, "old")), refused, "{source:?}");
    }
    // Whoever writes back or repairs what is dead is told that it is as good as held; a writer stamps again.
    assert_eq!(bench.apply_as(Source::Copy, tombstone(4)), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Repair { agreed: floor }, tombstone(4)), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Writer, tombstone(4)), refused);
    assert_eq!(bench.stored("k"), None);
    // From a store that has agreed as far, what is alive is what all hold: it was lost here.
    assert_eq!(bench.apply_as(Source::Repair { agreed: floor }, value(3, "lost")), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Copy, value(4, "late")), refused);
    assert_eq!(bench.apply_as(Source::Copy, value(6, "new")), Applied::Stored);
    assert_eq!(bench.stored("k"), Some(value(6, "new")));
}

/// A record that expires when the floor has passed it goes at once: nobody would come back for its tombstone.
#[test]
fn expiry_below_a_floor_leaves_nothing() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let expires = Some(UnixMillis(1_000_010));
    bench.apply("k", Record { expires, ..value(2, "brief") }).unwrap();
    bench.release(5);
    bench.clock.pass(10);
    assert_eq!(bench.sweep(), 1);
    assert_eq!(bench.stored("k"), None);
    assert_eq!(bench.engine.row_count(Keyspace::Tokens), 0);
}

/// A partition that is closed takes what is above only; repair goes on.
#[test]
fn closed_partitions_take_repair_only() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    bench.apply("k", value(2, "held")).unwrap();
    let upto = version(5).clock();
    assert!(bench.step(FloorStep::Close { round: 7, upto, partitions: Arc::from([partition().0]) }));
    let refused = Applied::TooLate { upto: Version::from_words(upto, u64::MAX) };
    // Also over something older: a deletion that comes now would be on one side only.
    assert_eq!(bench.apply_as(Source::Writer, tombstone(4)), refused);
    assert_eq!(bench.apply_as(Source::Copy, value(5, "late")), refused);
    assert_eq!(bench.apply_as(Source::Writer, value(2, "held")), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Repair { agreed: 0 }, value(4, "theirs")), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Writer, value(6, "new")), Applied::Stored);
}

fn doubt(rank: u16, millis: u64) -> FloorStep {
    let word = SealedWord { partition: partition().0, rank, upto: version(millis).clock() };
    FloorStep::Doubt { words: Arc::from([word]) }
}

/// Goal: a word of another node drops nothing; what is in doubt by it goes once it is named, and is bolted until then.
/// Method: a row below the word of the first replica, and the answers to what may come in.
#[test]
fn rows_in_doubt_stay_until_they_are_named() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let word = version(5).clock();
    bench.apply("k", Record { from: 3, ..value(2, "old") }).unwrap();
    assert_eq!(bench.remove(Removal::Outlived), 0);
    assert!(bench.step(doubt(0, 5)));
    assert!(bench.stored("k").is_some());
    assert_eq!(bench.remove(Removal::Outlived), 1);
    let old = Source::Repair { agreed: version(3).clock() };
    assert!(matches!(bench.apply_as(old, value(3, "older store")), Applied::TooLate { .. }));
    assert!(matches!(bench.apply_as(Source::Writer, value(4, "late")), Applied::TooLate { .. }));
    assert_eq!(bench.floor(), super::Floor::default());
    let adopt = || FloorStep::Adopt { floors: Arc::from([(partition().0, word)]) };
    assert!(bench.step(adopt()));
    assert_eq!(bench.floor(), super::Floor { agreed: word, sealed: word, purged: 0 });
    assert_eq!(bench.apply_as(Source::Repair { agreed: word }, value(3, "theirs")), Applied::Stored);
    // Nobody said yet that tombstones may go: the other still has this one, and so must this store.
    assert_eq!(bench.apply_as(Source::Repair { agreed: word }, tombstone(4)), Applied::Stored);
    assert_eq!(bench.stored("k"), Some(tombstone(4)));
    // Once more, as when two nodes are met at a time: the partition agrees again afterwards.
    assert!(bench.step(doubt(0, 5)));
    assert!(bench.step(adopt()));
    bench.release(6);
}

/// Goal: a node's word counts for the records that it must hold, and no others. Method: words of two ranks, and records
/// written for as many replicas as reach the one, the other, or both.
#[test]
fn words_count_of_replicas_only() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let from_behind = Source::Repair { agreed: 0 };
    let of = |from, millis| Record { from, ..value(millis, "v") };
    bench.apply("k", of(3, 4)).unwrap();
    // The fifth node of the list holds nothing that was written for three.
    assert!(bench.step(doubt(4, 9)));
    assert_eq!(bench.remove(Removal::Outlived), 0);
    assert_eq!(bench.apply_as(from_behind, of(5, 5)), Applied::Stored, "over what is held");
    assert_eq!(bench.remove(Removal::Outlived), 1);
    assert!(matches!(bench.apply_as(from_behind, of(5, 6)), Applied::TooLate { .. }));
    assert_eq!(bench.apply_as(from_behind, of(3, 6)), Applied::Stored);
    // The third does.
    assert!(bench.step(doubt(2, 8)));
    assert_eq!(bench.remove(Removal::Outlived), 1);
    assert!(matches!(bench.apply_as(from_behind, of(3, 8)), Applied::TooLate { .. }));
    assert_eq!(bench.apply_as(from_behind, of(3, 9)), Applied::Stored, "above what it has sealed");
}

/// Two different records of one version, which should not be: the written rule decides, on every replica alike.
#[test]
fn ties_follow_the_rule() {
    for order in [[value(5, "a"), value(5, "b")], [value(5, "b"), value(5, "a")]] {
        let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
        for record in order {
            bench.apply("k", record).unwrap();
        }
        assert_eq!(bench.stored("k"), Some(value(5, "b")));
    }
}

/// Goal: a tombstone that a wrong clock has made of a value gives way to the value, on whichever replica; what an expired
/// value has left does not. Method: both states of one version in both orders, before and after the expiry.
#[test]
fn value_wins_over_the_tombstone_of_a_wrong_clock() {
    let value = Record { expires: Some(UnixMillis(1_500_000)), ..value(5, "lives for a while") };
    let tombstone = Record { value: Value::Tombstone, ..value.clone() };
    for order in [[&value, &tombstone], [&tombstone, &value]] {
        let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
        for record in order {
            assert_eq!(bench.apply("k", record.clone()).unwrap(), Applied::Stored);
        }
        assert_eq!(bench.stored("k"), Some(value.clone()));
        assert_eq!(bench.conflicts(), 1);
    }
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.clock.pass(600_000);
    for record in [&tombstone, &value] {
        bench.apply("k", record.clone()).unwrap();
    }
    assert_eq!((bench.stored("k"), bench.conflicts()), (Some(tombstone), 0));
}

/// Goal: a look-up that became stale while it waited in the queue never lets an older record win.
/// Method: observe, then let so many other groups pass that the key is forgotten twice over, then apply the older
/// record with the old observation.
#[test]
fn stale_observation_is_looked_up_again() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let stale = bench.observe("k");
    bench.apply("k", value(9, "new")).unwrap();
    bench.forget();
    let answer = bench.apply_all(vec![("k", value(8, "old"), stale)]).remove(0).unwrap();
    assert_eq!(answer, superseded(version(9)));
    assert_eq!(bench.stored("k"), Some(value(9, "new")));
}

/// With `always`, what was answered survives a power loss right after; with `os` it need not, and `interval` keeps
/// its interval.
#[test]
fn durability_is_what_it_says() {
    let survives = |durability, pass: u64| {
        let mut bench = Bench::new(durability, Purge::Keep);
        bench.apply("k", value(1, "v")).unwrap();
        bench.clock.pass(pass);
        if bench.committer.idle_wait() == Duration::ZERO {
            bench.committer.commit(Vec::new());
        }
        bench.engine.crash();
        bench.stored("k").is_some()
    };
    let interval = DurabilityMode::Interval(Duration::from_millis(50));
    assert!(survives(DurabilityMode::Always, 0));
    assert!(!survives(DurabilityMode::Os, 1000));
    assert!(!survives(interval, 49));
    assert!(survives(interval, 50));
}

/// The last thing a committer does is to sync what an interval still owes.
#[test]
fn finish_syncs() {
    let mut bench = Bench::new(DurabilityMode::Interval(Duration::from_hours(1)), Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.committer.finish();
    bench.engine.crash();
    assert!(bench.stored("k").is_some());
}

/// Goal: no write takes effect twice. Method: a record that a reader wrote back is overwritten before the writer's own
/// message comes; the writer must be told that its record was stored, or it would stamp again and come back.
#[test]
fn record_that_was_newest_once_is_not_superseded() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    bench.apply("k", value(1, "written back")).unwrap();
    bench.apply("k", value(5, "newer")).unwrap();
    assert_eq!(bench.apply("k", value(1, "written back")).unwrap(), Applied::Stored);
    assert_eq!(bench.apply("k", value(2, "late")).unwrap(), superseded(version(5)));
    assert_eq!(bench.stored("k"), Some(value(5, "newer")));
    // Whoever only copies it is told what is stored now.
    bench.source = Source::Copy;
    let copied = bench.apply("k", value(1, "written back")).unwrap();
    assert_eq!(copied, superseded(version(5)));
    bench.source = Source::Writer;
    // The same within one group.
    let observed = bench.observe("g");
    let group = [value(1, "a"), value(5, "b"), value(1, "a"), value(2, "c")];
    let answers = bench.apply_all(group.into_iter().map(|record| ("g", record, observed)).collect());
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers[2], Applied::Stored);
    assert_eq!(answers[3], superseded(version(5)));
}

/// Goal: a replica says how far back it knows what it held, so that forgetting is never taken for not having held it.
/// Method: versions of one key and many other keys, at instants that are known.
#[test]
fn superseded_says_how_far_back_it_remembers() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let memory = |bench: &mut Bench, key: &str| match bench.apply(key, value(1, "old")).unwrap() {
        Applied::Superseded { memory_millis, .. } => memory_millis,
        other => panic!("{other:?}"),
    };
    bench.clock.pass(1_000);
    for clock in 2..=500 {
        bench.apply("k", value(clock, "b")).unwrap();
    }
    bench.clock.pass(1_000);
    // However often one key is written, its versions are remembered.
    assert_eq!(memory(&mut bench, "k"), 2000, "since the start");
    assert_eq!(bench.apply("k", value(2, "b")).unwrap(), Applied::Stored);
    bench.forget();
    bench.clock.pass(5);
    assert_eq!(memory(&mut bench, "k"), 5, "since the generation before");
    assert!(matches!(bench.apply("k", value(2, "b")).unwrap(), Applied::Superseded { .. }));
}

/// Goal: in a new epoch a replica forgets what it held, and says all the same that it remembers a record of this epoch: else the
/// first write after each epoch that meets a newer record would be of unknown outcome. Method: a version that was overwritten
/// before the epoch changed.
#[test]
fn a_new_epoch_shortens_no_memory() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let placed_since = Arc::new(AtomicU64::new(0));
    bench.committer = bench.committer.placed_by(Arc::clone(&placed_since));
    bench.apply("k", value(2, "b")).unwrap();
    bench.apply("k", value(3, "b")).unwrap();
    assert_eq!(bench.apply("k", value(2, "b")).unwrap(), Applied::Stored, "it was held");
    bench.clock.pass(1_000);
    placed_since.store(1, Ordering::SeqCst);
    let applied = bench.apply("k", value(2, "b")).unwrap();
    assert!(matches!(applied, Applied::Superseded { memory_millis: 1_000, .. }), "{applied:?}");
}

/// A lease is synced whatever the durability of writes is: the clock's monotony hangs on it.
#[test]
fn leases_are_always_synced() {
    let mut bench = Bench::new(DurabilityMode::Os, Purge::Keep);
    let (done, mut answer) = oneshot::channel();
    let lease = Change::Put {
        keyspace: Keyspace::Meta,
        key: Bytes::from_static(format::META_CLOCK_LEASE),
        value: format::encode_lease(UnixMillis(77)),
    };
    bench.committer.commit(vec![Request::Side { changes: vec![lease], is_synced: true, done }]);
    answer.try_recv().unwrap().unwrap();
    bench.engine.crash();
    let row = bench.engine.get(Keyspace::Meta, format::META_CLOCK_LEASE).unwrap().unwrap();
    assert_eq!(format::decode_lease(&row), Ok(UnixMillis(77)));
}

/// A sole replica purges what has expired and what was deleted; what was written anew meanwhile stays.
#[test]
fn sole_replica_purges_what_is_due() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Sole);
    let expiring = |millis| Record { expires: Some(UnixMillis(1_000_500)), ..value(millis, "v") };
    bench.apply("expired", expiring(1)).unwrap();
    bench.apply("rewritten", expiring(1)).unwrap();
    bench.apply("rewritten", value(2, "for good")).unwrap();
    bench.apply("deleted", tombstone(1)).unwrap();
    bench.apply("recreated", tombstone(1)).unwrap();
    bench.apply("recreated", value(2, "again")).unwrap();
    assert_eq!(bench.sweep(), 0, "nothing is due yet");
    bench.clock.pass(500);
    assert_eq!(bench.sweep(), 1);
    bench.clock.pass(60_000);
    assert_eq!(bench.sweep(), 1);
    assert_eq!(bench.due().len(), 0);
    let left: Vec<_> =
        ["expired", "rewritten", "deleted", "recreated"].map(|key| bench.stored(key).is_some()).into();
    assert_eq!(left, [false, true, false, true]);
}

/// Goal: a record that could not be read when it had expired is swept once it can be (seed 3631772509). It used to be
/// forgotten, and as long as the node held the value no other could purge the tombstone. Method: the row is unreadable at
/// the first look.
#[test]
fn expired_record_that_could_not_be_read_is_swept_later() {
    for (purge, left) in [(Purge::Keep, true), (Purge::Sole, false)] {
        let mut bench = Bench::new(DurabilityMode::Always, purge);
        bench.apply("k", Record { expires: Some(UnixMillis(1_000_500)), ..value(1, "v") }).unwrap();
        bench.clock.pass(500);
        bench.engine.set_unreadable(Keyspace::Records, b"k", true);
        assert_eq!(bench.sweep(), 0);
        bench.engine.clear_unreadable();
        assert_eq!(bench.sweep(), 0, "not at once: the disk may need its time");
        bench.clock.pass(10_000);
        assert_eq!(bench.sweep(), 1);
        assert_eq!(bench.stored("k").is_some_and(|record| record.value == Value::Tombstone), left);
        assert_eq!((purge, bench.due().len()), (purge, 0));
    }
}

/// Goal: the same of a key that is written often: a row is looked at again for its record, not for one that the record has
/// replaced (seed 2815464754: the tombstone stayed for good). Method: three rows that are due at one unreadable look.
#[test]
fn expired_record_of_a_busy_key_that_could_not_be_read_is_swept_later() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Sole);
    for version in 1..=3 {
        bench.apply("k", tombstone(version)).unwrap();
        bench.clock.pass(1);
    }
    bench.clock.pass(10_000);
    bench.engine.set_unreadable(Keyspace::Records, b"k", true);
    let mut rows = bench.due();
    // In any order: they are of one look.
    rows.reverse();
    let (done, mut answer) = oneshot::channel();
    bench.committer.commit(vec![Request::Purge { rows, done }]);
    assert_eq!(answer.try_recv().unwrap().unwrap(), 0);
    bench.engine.clear_unreadable();
    bench.clock.pass(10_000);
    assert_eq!(bench.sweep(), 1);
    assert_eq!((bench.stored("k"), bench.due().len()), (None, 0));
}

/// Where other replicas may hold something older, the value's bytes go and the tombstone stays, with its version.
#[test]
fn replicated_expiry_leaves_a_tombstone() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let expiring = Record { expires: Some(UnixMillis(1_000_500)), ..value(1, "v") };
    bench.apply("k", expiring.clone()).unwrap();
    bench.apply("deleted", tombstone(1)).unwrap();
    bench.clock.pass(3_600_000);
    assert_eq!(bench.sweep(), 1);
    assert_eq!(bench.stored("k"), Some(Record { value: Value::Tombstone, ..expiring }));
    assert_eq!(bench.stored("deleted"), Some(tombstone(1)));
}

/// Goal: what one clock takes for expired is not destroyed before all clocks that can be right agree. Method: a clock that
/// nobody has confirmed, one that has just jumped, and a confirmed one before and after twice the limit.
#[test]
fn expiry_destroys_nothing_by_one_clock() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let clock = Arc::clone(&bench.clock) as Arc<dyn crate::clock::Clock>;
    let bound = Arc::new(crate::clock::TimestampBound::new(clock, Duration::from_mins(1)));
    bench.committer.set_timestamps(Arc::clone(&bound));
    let expiring = Record { expires: Some(UnixMillis(1_000_500)), ..value(1, "v") };
    bench.apply("k", expiring.clone()).unwrap();
    let holds = |bench: &Bench| bench.stored("k") == Some(expiring.clone());
    bench.clock.pass(200_000);
    assert!(bench.sweep() == 0 && holds(&bench), "nobody has confirmed this clock");
    bound.note_standing(ClockStanding::Confirmed);
    bench.clock.set_wall(1_000_000 + 7_200_000);
    assert!(bench.sweep() == 0 && holds(&bench), "this clock has just jumped");
    bound.note_standing(ClockStanding::Off);
    assert!(bench.sweep() == 0 && holds(&bench), "this clock is wrong");
    bench.clock.set_wall(1_120_499);
    bound.note_standing(ClockStanding::Confirmed);
    assert!(
        bench.sweep() == 0 && holds(&bench),
        "it may not have expired by a clock that is 2 minutes behind"
    );
    bench.clock.pass(3_600_000);
    bound.note_standing(ClockStanding::Confirmed);
    assert_eq!(bench.sweep(), 1);
    assert_eq!(bench.stored("k"), Some(Record { value: Value::Tombstone, ..expiring }));
}

/// Goal: nothing that was deleted comes back by a write that is older than the purged tombstone.
/// Method: a write stamped before the deletion arrives after the purge, when neither store nor memory know the key
/// any more: it must be told that it is superseded.
#[test]
fn purged_keys_do_not_resurrect() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Sole);
    bench.apply("k", tombstone(50)).unwrap();
    bench.clock.pass(60_000);
    assert_eq!(bench.sweep(), 1);
    assert_eq!(bench.stored("k"), None);
    bench.forget();
    assert_eq!(bench.apply("k", value(40, "ghost")).unwrap(), Applied::TooLate { upto: version(50) });
    assert_eq!(bench.stored("k"), None);
    assert_eq!(bench.apply("k", value(51, "new")).unwrap(), Applied::Stored);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Goal: applying is idempotent and order-independent. Method: the same records in two orders, grouped at
    /// random, some twice; both stores must end with the newest of each key.
    #[test]
    fn applying_is_order_independent(
        records in prop::collection::vec((0..3usize, 1..8u64, 0..3u8), 1..20),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 40),
        group_len in 1..6usize,
    ) {
        let records: Vec<(&str, Record)> = records
            .into_iter()
            .map(|(key, at, kind)| {
                let record = if kind == 0 { tombstone(at) } else { value(at, &format!("{kind}")) };
                // A version is of one key.
                let version = Version::new(UnixMillis(at), 0, NodeId(1 + key as u64));
                (["a", "b", "c"][key], Record { version, ..record })
            })
            .collect();
        let mut shuffled: Vec<_> = shuffle.iter().map(|index| records[index.index(records.len())].clone()).collect();
        shuffled.extend(records.iter().cloned());
        let end_of = |order: &[(&'static str, Record)]| {
            let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
            for group in order.chunks(group_len) {
                let group: Vec<_> = group.iter().map(|(key, record)| (*key, record.clone(), bench.observe(key))).collect();
                bench.apply_all(group).into_iter().for_each(|answer| assert!(answer.is_ok()));
            }
            ["a", "b", "c"].map(|key| bench.stored(key))
        };
        let merged = ["a", "b", "c"].map(|key| {
            records.iter().filter(|(k, _)| *k == key).map(|(_, record)| record.clone()).reduce(Record::merge)
        });
        prop_assert_eq!(end_of(&records), merged.clone());
        prop_assert_eq!(end_of(&shuffled), merged);
    }
}
