//! The committer whose disk fails, fills, or runs out of what it needs: what it answers meanwhile, and how it goes on.

use super::*;
use crate::replica::{Birth, Replica, Vote, Workers};

/// A failed sync is final: the writer is told, later writers are refused, the state says so, reads go on.
#[test]
fn failed_sync_is_final() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.engine.set_fault(Some(Fault::SyncError));
    assert!(matches!(bench.apply("k", value(2, "w")), Err(ReplicaError::Failed { .. })));
    bench.engine.set_fault(None);
    bench.clock.pass(60_000);
    bench.committer.commit(Vec::new());
    assert!(matches!(bench.apply("k", value(3, "x")), Err(ReplicaError::Failed { .. })));
    assert!(matches!(bench.health.state(), StoreState::Failed { .. }));
    assert!(matches!(bench.health.admit(&value(4, "y"), Source::Writer), Err(ReplicaError::Failed { .. })));
    assert_eq!(bench.stored("k"), Some(value(1, "v")));
}

/// A full disk passes: writes are refused with a reason of their own, and go on once there is space, unasked.
#[test]
fn full_disk_passes() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    // So that the write meets the full disk before the committer looks at it.
    bench.look_after_a_second();
    bench.engine.set_fault(Some(Fault::DiskFull));
    assert!(matches!(bench.apply("k", value(1, "v")), Err(ReplicaError::DiskFilledUp)));
    assert_eq!(bench.health.state(), StoreState::DiskFull);
    assert!(matches!(bench.health.admit(&value(2, "w"), Source::Writer), Err(ReplicaError::DiskFull)));
    assert!(bench.committer.idle_wait() <= Duration::from_secs(1), "it must look again without being asked");
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::DiskFull, "the disk is still full");
    bench.engine.set_fault(None);
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::Ok);
    bench.apply("k", value(3, "x")).unwrap();
    assert_eq!(bench.stored("k"), Some(value(3, "x")));
}

/// Goal: a full disk passes also where the engine's background met it after writes were refused, and nobody noticed before
/// there was space again. The store used to be failed for good then. Method: an engine that is poisoned in between.
#[test]
fn full_disk_that_stopped_the_background_passes() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.engine.set_fault(Some(Fault::DiskFull));
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::DiskFull);
    bench.engine.set_fault(Some(Fault::BackgroundEnded));
    assert!(bench.engine.sync().is_err(), "the background");
    bench.engine.set_fault(None);
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::Ok);
    bench.apply("k", value(2, "w")).unwrap();
    assert_eq!(bench.stored("k"), Some(value(2, "w")));
}

/// Goal: a committer whose sync is due while the store takes no writes waits; it used to be woken again at once, for as
/// long as the failure lasted. Method: a sync is due when the disk fills up, and when a sync fails.
#[test]
fn overdue_syncs_wait_out_a_failure() {
    for fault in [Fault::DiskFull, Fault::SyncError] {
        let mut bench = Bench::new(DurabilityMode::Interval(Duration::from_millis(100)), Purge::Keep);
        bench.apply("k", value(1, "v")).unwrap();
        bench.engine.set_fault(Some(fault));
        bench.clock.pass(200);
        bench.committer.commit(Vec::new());
        assert!(bench.committer.idle_wait() >= Duration::from_millis(100), "{fault:?}");
    }
}

/// Goal: what an interval confirmed before it was synced is synced in time also where the store was opened again in between.
/// It used to wait for the next write, and a power failure before that took it. Method: a full disk that passes, no write
/// after it, and a crash.
#[test]
fn what_was_not_synced_is_synced_after_a_full_disk() {
    let mut bench = Bench::new(DurabilityMode::Interval(Duration::from_millis(100)), Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.engine.set_fault(Some(Fault::DiskFull));
    assert!(bench.apply("l", value(2, "w")).is_err());
    bench.engine.set_fault(None);
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::Ok);
    bench.clock.pass(100);
    bench.committer.commit(Vec::new());
    bench.engine.crash();
    assert_eq!(bench.stored("k"), Some(value(1, "v")));
}

fn parts_over(engine: &Arc<MemoryEngine>, clock: &Arc<ManualClock>) -> ReplicaParts {
    ReplicaParts {
        engine: Arc::clone(engine) as Arc<dyn Engine>,
        clock: Arc::clone(clock) as Arc<dyn crate::clock::Clock>,
        timestamps: Arc::new(crate::clock::TimestampBound::alone(ManualClock::at(1_000_000))),
        value_bytes_max: 8 << 20,
        rng: Arc::new(SystemRng),
        pools: Arc::new(Pools::inline()),
        metrics: Arc::new(StoreMetrics::default()),
        execution: Execution::Inline,
        durability: DurabilityMode::Always,
        purge: Purge::Keep,
        node: NodeId(1),
        bound_to: None,
        birth: Birth { vote: Vote::Yes, topology: 1 },
        partition_bits: 12,
        index_bytes: 4 << 10,
        workers: Workers::Tasks,
        supervisor: crate::supervise::Supervisor::default(),
    }
}

/// Goal: a store whose background meets a full disk while the node starts is opened again; it used to end the node. Method: an
/// engine that was stopped before its first sync.
#[tokio::test(start_paused = true)]
async fn store_that_stopped_while_it_was_opened_is_opened_again() {
    let engine = Arc::new(MemoryEngine::new());
    engine.set_fault(Some(Fault::DiskFull));
    assert!(engine.sync().is_err(), "the background");
    engine.set_fault(None);
    assert!(matches!(engine.sync(), Err(crate::storage::EngineError::Poisoned { .. })));
    let parts = parts_over(&engine, &ManualClock::at(1_000_000));
    let local = tokio::task::LocalSet::new();
    let run = local.run_until(async {
        let (replica, threads, _) = Replica::start(parts).unwrap();
        assert_eq!(replica.health(), StoreState::Ok);
        drop(threads);
    });
    run.await;
}

/// Goal: the commit thread dies after it has taken a write: the outcome is unknown. Once it was told as a refusal, which
/// says that nothing was done. Method: the commit task is ended while it waits for the disk.
#[tokio::test(start_paused = true)]
async fn write_whose_commit_thread_died_is_unknown() {
    let engine = Arc::new(MemoryEngine::new());
    let parts = parts_over(&engine, &ManualClock::at(1_000_000));
    let local = tokio::task::LocalSet::new();
    let run = local.run_until(async {
        let (replica, threads, _) = Replica::start(parts).unwrap();
        engine.set_latency(Duration::from_mins(1));
        let key = kvorum_core::Key::new("k").unwrap();
        let apply = replica.apply(key, value(1, "v"), Source::Writer);
        let dies = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(threads);
        };
        let (applied, ()) = tokio::join!(apply, dies);
        assert!(matches!(applied, Err(ReplicaError::Failed { .. })), "{applied:?}");
    });
    run.await;
}

/// Goal: the sweeper stands back while the store takes no writes; it used to ask again at once, for ever. Method: a
/// row is due and the disk is full, in virtual time, where a task that never waits lets no time pass.
#[tokio::test(start_paused = true)]
async fn sweeper_rests_while_the_disk_is_full() {
    let engine = Arc::new(MemoryEngine::new());
    let mut bench = Bench::over(Arc::clone(&engine), DurabilityMode::Always, Purge::Keep);
    let expiring = Record { expires: Some(UnixMillis(1_000_500)), ..value(1, "v") };
    bench.apply("k", expiring).unwrap();
    bench.clock.pass(1000);
    let parts = parts_over(&engine, &bench.clock);
    let local = tokio::task::LocalSet::new();
    let run = local.run_until(async {
        let (replica, threads, _) = Replica::start(parts).unwrap();
        engine.set_fault(Some(Fault::DiskFull));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(replica.sweeper().name(), "throttled");
        drop(threads);
    });
    run.await;
}

/// Goal: deletions, and what reads must write back, are taken on a disk that others have filled to the last byte; values are
/// not, and hints neither. Method: a disk that fills up under a write; then deletions until the reserve is used up; then
/// space, and the same again.
#[test]
fn full_disk_takes_deletions_from_the_reserve() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.look_after_a_second();
    for round in 0..2 {
        bench.apply("k", value(1 + 10 * round, "v")).unwrap();
        bench.engine.set_fault(Some(Fault::DiskFull));
        assert!(matches!(bench.apply("l", value(1, "v")), Err(ReplicaError::DiskFilledUp)));
        bench.look_after_a_second();
        assert_eq!(bench.health.state(), StoreState::DiskFull);
        let admits = |bench: &Bench, record, source| bench.health.admit(&record, source).is_ok();
        assert!(
            !admits(&bench, value(2, "w"), Source::Writer) && !admits(&bench, value(2, "w"), Source::Copy)
        );
        assert!(admits(&bench, value(2, "w"), Source::Reader));
        assert!(admits(&bench, tombstone(2), Source::Writer));
        assert_eq!(bench.apply("k", tombstone(2 + 10 * round)).unwrap(), Applied::Stored);
        let mut taken = 0;
        while bench.apply(&format!("gone-{taken}"), tombstone(1_000 + taken)).is_ok() {
            taken += 1;
            bench.look_after_a_second();
            if !admits(&bench, value(2, "w"), Source::Reader) {
                assert!(
                    admits(&bench, tombstone(2), Source::Writer) || taken > 100,
                    "what is left is for deletions"
                );
            }
            assert!(taken < 10_000, "the reserve has no end");
        }
        assert!(taken > 20, "only {taken} deletions were taken");
        bench.look_after_a_second();
        assert!(matches!(bench.health.admit(&tombstone(3), Source::Writer), Err(ReplicaError::DiskFull)));
        bench.engine.set_fault(None);
        bench.look_after_a_second();
        assert_eq!(bench.health.state(), StoreState::Ok);
        bench.look_after_a_second();
    }
}

/// A shortage of descriptors passes by itself: writes are refused while it lasts, and taken afterwards.
#[test]
fn shortage_of_descriptors_passes() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.engine.set_fault(Some(Fault::NoDescriptors));
    let met = bench.apply("k", value(2, "w"));
    assert!(matches!(met, Err(ReplicaError::ShortMet { .. })), "{met:?}");
    let short = StoreState::Short(crate::storage::shortage::Shortage::Descriptors);
    assert_eq!(bench.health.state(), short);
    let refused = bench.health.admit(&value(3, "x"), Source::Writer);
    assert!(matches!(refused, Err(ReplicaError::Short { .. })));
    assert!(bench.committer.idle_wait() <= Duration::from_secs(1), "it must look again without being asked");
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), short);
    assert_eq!(bench.stored("k"), Some(value(1, "v")), "reads go on");
    bench.engine.set_fault(None);
    bench.look_after_a_second();
    assert_eq!(bench.health.state(), StoreState::Ok);
    bench.apply("k", value(4, "y")).unwrap();
}

/// Goal: a background that ends without a reason is begun again, because what it met may have passed, and not for ever.
/// Method: it ends once; then again and again.
#[test]
fn background_that_ends_is_begun_again_a_few_times() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let mut times = 10;
    let mut end = |bench: &mut Bench| {
        times += 1;
        bench.engine.set_fault(Some(Fault::BackgroundEnded));
        bench.apply("k", value(times, "v")).unwrap_err();
        bench.engine.set_fault(None);
        bench.look_after_a_second();
        bench.health.state() == StoreState::Ok
    };
    assert!(end(&mut bench));
    bench.apply("k", value(2, "w")).unwrap();
    let begun = (0..10).take_while(|_| end(&mut bench)).count();
    assert_eq!(begun, 2, "of three within ten minutes one was used");
    assert!(matches!(bench.health.state(), StoreState::Failed { .. }));
}

/// Goal: what ends a background and lasts for a moment uses up one try, not two. Method: it is there still 200 ms later;
/// three times in a row, as often as a store is opened again.
#[test]
fn background_is_not_begun_again_at_once() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    for times in 0..3 {
        bench.engine.set_fault(Some(Fault::BackgroundEnded));
        bench.apply("k", value(10 + times, "v")).unwrap_err();
        bench.clock.pass(200);
        bench.committer.commit(Vec::new());
        bench.engine.set_fault(None);
        bench.look_after_a_second();
        assert_eq!(bench.health.state(), StoreState::Ok, "time {times}");
    }
}

/// Goal: a failed store that could not be opened for reading is opened later. It used to answer no read until the node was
/// restarted. Method: the reopening after a full disk fails, and so does the first try after it.
#[test]
fn failed_store_is_read_again() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(1, "v")).unwrap();
    bench.engine.set_fault(Some(Fault::DiskFull));
    bench.apply("k", value(2, "w")).unwrap_err();
    bench.engine.set_fault(Some(Fault::WriteError));
    bench.look_after_a_second();
    assert!(matches!(bench.health.state(), StoreState::Failed { .. }));
    let is_read = |bench: &Bench| bench.engine.get(Keyspace::Records, b"k").is_ok();
    assert!(!is_read(&bench));
    bench.look_after_a_second();
    assert!(!is_read(&bench));
    bench.engine.set_fault(None);
    for _ in 0..6 {
        bench.look_after_a_second();
    }
    assert!(is_read(&bench));
    assert!(matches!(bench.health.state(), StoreState::Failed { .. }), "it takes no writes all the same");
}

/// Goal: where nothing can be written, a replica still says what it holds: a read that writes a record back counts it.
/// Method: over a full disk the record that is stored, an older one, and a newer one.
#[tokio::test]
async fn replica_says_what_it_holds_on_a_full_disk() {
    let engine = Arc::new(MemoryEngine::new());
    let bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let parts = ReplicaParts {
        workers: Workers::Threads,
        clock: Arc::new(crate::clock::SystemClock::new()),
        ..parts_over(&engine, &bench.clock)
    };
    let (replica, _threads, _) = Replica::start(parts).unwrap();
    let apply = async |record| replica.apply(Key::new("k").unwrap(), record, Source::Reader).await;
    apply(value(5, "v")).await.unwrap();
    engine.set_capacity(Some(100));
    for _ in 0..1_000 {
        if replica.health() == StoreState::DiskFull {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(apply(value(5, "v")).await.unwrap(), Applied::Stored);
    assert_eq!(apply(value(4, "u")).await.unwrap(), superseded(value(5, "v").version));
    assert!(matches!(apply(value(6, "w")).await, Err(ReplicaError::DiskFull)));
}
