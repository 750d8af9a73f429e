//! The load driver against a server with chosen faults.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "the lab's tests use the real clock and threads"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvorum_lab::dataset::Dataset;
use kvorum_lab::histogram::Latencies;
use kvorum_lab::load::{
    Failure, KeyOrder, Mix, Operation, Outcome, Pacing, Plan, RunOptions, Stage, StreamOutcome, StreamPlan,
    prefill, prefill_with, run, run_with,
};
use support::{Behaviour, Toy};

const DATASET: Dataset = Dataset { keys: 500, value_bytes: 100, seed: 1 };

fn stream(operation: Operation, pacing: Pacing) -> StreamPlan {
    StreamPlan {
        name: "test".into(),
        operation,
        replicas: None,
        pacing,
        order: KeyOrder::Uniform { seed: 1 },
        dataset: DATASET,
        connections: 4,
        verify: true,
    }
}

fn plan(target: SocketAddr, duration_ms: u64, streams: Vec<StreamPlan>) -> Plan {
    Plan {
        targets: vec![target.into()],
        threads: 2,
        duration: Duration::from_millis(duration_ms),
        timeout: Duration::from_secs(2),
        core: None,
        streams,
    }
}

const fn open(rate_per_second: u64) -> Pacing {
    Pacing::Open { rate_per_second }
}

fn only(outcome: &Outcome) -> &StreamOutcome {
    let (stream, others) = outcome.streams.split_first().expect("a stream");
    assert!(others.is_empty());
    stream
}

/// Goal: no coordinated omission: every operation that was due in a stall shows it, not only the four that
/// were in flight. Method: 1,000 operations a second for 2 s, all answers held back for 300 ms. About 300 of
/// 2,000 operations wait, up to 300 ms each: a tenth of all must have waited more than 80 ms.
#[test]
fn a_stall_shows_in_the_latencies() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let stall = std::thread::spawn({
        let toy = Arc::clone(&toy);
        move || {
            while toy.requests() < 500 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _held = toy.gate.lock();
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let outcome = run(&plan(target, 2000, vec![stream(Operation::Put, open(1000))])).unwrap();
    stall.join().unwrap();
    let seen = only(&outcome);
    assert_eq!(seen.tally.succeeded + seen.tally.unsent, 2000, "slots due in the stall are not forgotten");
    assert_eq!(seen.tally.latency.count(), seen.tally.succeeded);
    let at = |percentile| Duration::from_nanos(seen.tally.latency.percentile(percentile));
    assert!(at(99.0) >= Duration::from_millis(200), "p99 {:?}", at(99.0));
    assert!(at(90.0) >= Duration::from_millis(80), "p90 {:?}", at(90.0));
    assert!(seen.tally.late > 200, "{} late", seen.tally.late);
}

/// Goal: a server that stops for a second at 1,000/s makes about 1,000 operations late, and the percentiles
/// show them. The uncorrected figures, as of a tool without a schedule, hide all but the four in flight.
/// Method: 4,000 operations in 4 s, one stall; operations due in it wait 0 to 1 s, evenly.
#[test]
fn a_stall_of_a_second_makes_a_thousand_late() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let stall = std::thread::spawn({
        let toy = Arc::clone(&toy);
        move || {
            while toy.requests() < 1000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _held = toy.gate.lock();
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    let outcome = run(&plan(target, 4000, vec![stream(Operation::Put, open(1000))])).unwrap();
    stall.join().unwrap();
    let tally = &only(&outcome).tally;
    assert_eq!(tally.latency.count() + tally.unsent, 4000);
    // Other work on the machine can only add to the late ones.
    let over = |millis| tally.latency.count_over(Duration::from_millis(millis));
    assert!((960..1500).contains(&over(20)), "{} waited over 20 ms", over(20));
    assert!((450..800).contains(&over(500)), "{} waited over 500 ms", over(500));
    assert!(over(900) >= 80, "{} waited over 900 ms", over(900));
    assert!((960..2000).contains(&tally.late), "{} late", tally.late);
    let hidden = tally.uncorrected.count_over(Duration::from_millis(500));
    assert!(hidden <= 4, "{hidden} without the schedule");
}

/// Goal: the warm-up is made and not counted. Method: a server whose first 100 answers are refusals.
#[test]
fn the_warm_up_is_not_counted() {
    let (toy, target) = Toy::start(|request| match request {
        0..100 => Behaviour::Status(503),
        _ => Behaviour::Right,
    });
    let plan = plan(target, 500, vec![stream(Operation::Put, open(400))]);
    let options = RunOptions { warm_up: Duration::from_millis(500), ..RunOptions::default() };
    let outcome = run_with(&plan, &options).unwrap();
    let seen = only(&outcome);
    assert_eq!(toy.requests() + seen.tally.unsent, 400, "200 to warm up, 200 to count");
    assert_eq!(seen.tally.succeeded + seen.tally.unsent, 200);
    assert_eq!(seen.tally.unexpected(), 0, "refusals were in the warm-up");
    // Answers that come after the end are in no window.
    let windows: u64 = seen.tally.windows.iter().map(|&count| u64::from(count)).sum();
    assert!(windows > 0 && windows <= seen.tally.succeeded, "{windows}");
}

/// Goal: operations that wait for the driver's next waking are all sent, and count from when they were due.
/// Method: wakings 20 ms apart for an operation each millisecond; of the twenty that are sent together three
/// quarters were due 5 ms before.
#[test]
fn coalesced_operations_count_from_when_they_were_due() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let plan = plan(target, 500, vec![stream(Operation::Put, open(1000))]);
    let options = RunOptions { coalesce: Duration::from_millis(20), ..RunOptions::default() };
    let outcome = run_with(&plan, &options).unwrap();
    let tally = &only(&outcome).tally;
    assert_eq!(toy.requests() + tally.unsent, 500);
    let late = tally.latency.count_over(Duration::from_millis(5));
    assert!(late + tally.unsent >= 300, "{late} late");
}

/// Goal: stages are offered at their rates. Method: 100/s, then a ramp to 500/s; every slot arrives.
#[test]
fn stages_are_offered() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let millis = Duration::from_millis;
    let ramp = Stage { begin_per_second: 100, end_per_second: 500, duration: millis(500) };
    let pacing = Pacing::Staged([Stage::constant(100, millis(500)), ramp].into());
    let outcome = run(&plan(target, 1000, vec![stream(Operation::Put, pacing)])).unwrap();
    assert_eq!(toy.requests() + only(&outcome).tally.unsent, 50 + 150);
}

/// Goal: a mix does all its kinds, reads the keys that it inserts, and verifies sized records. Method: every
/// kind but deletes, over a prefilled store; no operation may fail.
#[test]
fn a_mix_does_all_its_kinds() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let latest = StreamPlan {
        order: KeyOrder::Latest { seed: 1, theta: 0.99 },
        ..stream(Operation::Get, Pacing::Closed)
    };
    let plan = plan(target, 500, vec![latest]);
    let options = RunOptions {
        mix: "get=4,put=2,insert=2,scan=1,read-modify-write=1".parse().ok(),
        key_bytes: "16-40".parse().ok(),
        value_bytes: "0-300".parse().ok(),
        ..RunOptions::default()
    };
    prefill_with(&plan, &options, None, Duration::from_mins(1)).unwrap();
    let outcome = run_with(&plan, &options).unwrap();
    let tally = &only(&outcome).tally;
    assert_eq!(only(&outcome).failed(), 0, "{:?} {:?}", tally.statuses, tally.failures);
    assert!(tally.by_kind.keys().eq(&["get", "insert", "put", "read-modify-write", "scan"]));
    assert_eq!(tally.by_kind.values().map(Latencies::count).sum::<u64>(), tally.succeeded);
    assert_eq!(toy.len() as u64, 500 + tally.by_kind["insert"].count());
    assert!(tally.records > 0);
}

/// Goal: deletes delete. Method: every key of a full store in turn.
#[test]
fn deletes_delete() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let every = StreamPlan { order: KeyOrder::Cycle, ..stream(Operation::Put, open(1000)) };
    let plan = plan(target, 500, vec![every]);
    prefill(&plan, Duration::from_mins(1)).unwrap();
    let options = RunOptions { mix: Some(Mix::deletes()), ..RunOptions::default() };
    let outcome = run_with(&plan, &options).unwrap();
    assert_eq!(toy.len() as u64, only(&outcome).tally.unsent, "all 500, each once");
}

/// Goal: every second is reported, with all its operations. Method: add the ticks up.
#[test]
fn ticks_tell_everything() {
    let (_toy, target) = Toy::start(|_| Behaviour::Right);
    let (sender, ticks) = std::sync::mpsc::channel();
    let plan = plan(target, 1500, vec![stream(Operation::Put, open(200))]);
    let outcome = run_with(&plan, &RunOptions { ticks: Some(sender), ..RunOptions::default() }).unwrap();
    let mut total = 0;
    let mut seconds = std::collections::BTreeSet::new();
    for tick in ticks {
        total += tick.latency.count();
        seconds.insert(tick.second);
    }
    assert_eq!(total, only(&outcome).tally.succeeded);
    assert!(seconds.contains(&0) && seconds.contains(&1), "{seconds:?}");
}

/// Goal: two streams keep their own counts, and GETs read what the prefill stored. Method: compare counts.
#[test]
fn streams_run_beside_each_other() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let streams = vec![stream(Operation::Put, open(300)), stream(Operation::Get, open(700))];
    let plan = plan(target, 500, streams);
    let filled = prefill(&plan, Duration::from_mins(1)).unwrap();
    assert_eq!(only(&filled).tally.succeeded, DATASET.keys);
    assert_eq!(toy.len(), 500);
    let outcome = run(&plan).unwrap();
    // A machine that stalls may leave slots unsent; no other operation may fail.
    let counts = outcome.streams.iter().map(|stream| stream.tally.succeeded + stream.tally.unsent);
    assert_eq!(counts.collect::<Vec<_>>(), [150, 350]);
    assert!(outcome.streams.iter().all(|stream| stream.failed() == stream.tally.unsent));
    assert!(outcome.streams.iter().all(|stream| stream.tally.succeeded > 0));
}

/// Goal: GETs that all miss do not count as reads. Method: an empty store.
#[test]
fn misses_are_not_successes() {
    let (_toy, target) = Toy::start(|_| Behaviour::Right);
    let outcome = run(&plan(target, 200, vec![stream(Operation::Get, open(500))])).unwrap();
    let seen = only(&outcome);
    assert_eq!(seen.tally.succeeded, 0);
    assert_eq!(seen.tally.latency.count(), 0);
    assert_eq!(seen.tally.unexpected() + seen.tally.unsent, 100);
    assert!(seen.tally.statuses.keys().eq([&404]));
}

/// Goal: every kind of misbehaviour is counted by its kind, and the load continues. Method: each kind in
/// turn.
#[test]
fn misbehaviour_is_counted() {
    let (_toy, target) = Toy::start(|request| match request {
        10 => Behaviour::Status(503),
        20 => Behaviour::Status(504),
        30 => Behaviour::Close,
        40 => Behaviour::Garbage,
        50 => Behaviour::Wrong,
        60 => Behaviour::Hang,
        _ => Behaviour::Right,
    });
    let get = stream(Operation::Get, open(200));
    let mut plan = plan(target, 1000, vec![get]);
    plan.timeout = Duration::from_millis(300);
    let outcome = run(&plan).unwrap();
    let tally = &only(&outcome).tally;
    assert_eq!(tally.statuses.get(&503), Some(&1));
    assert_eq!(tally.statuses.get(&504), Some(&1));
    assert_eq!(tally.failures_of(Failure::Closed), 1);
    assert_eq!(tally.failures_of(Failure::Malformed), 1);
    assert!(tally.failures_of(Failure::Timeout) >= 1);
    assert_eq!(tally.wrong_bodies, 1);
    assert_eq!(only(&outcome).failed(), 200, "the store is empty: each slot is counted, none twice");
}

/// Goal: a node that is down does not delay the end of a run, and the run is clearly no success. Method: a
/// closed port; the test itself would hang if the run did not end.
#[test]
fn a_dead_node_is_counted_and_survived() {
    // Port 1 is reserved and no server listens there.
    let gone = SocketAddr::from(([127, 0, 0, 1], 1));
    let begin = Instant::now();
    let outcome = run(&plan(gone, 300, vec![stream(Operation::Put, open(1000))])).unwrap();
    let seen = only(&outcome);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!(seen.tally.succeeded, 0);
    assert_eq!(seen.tally.unsent, 300);
    assert!(seen.is_saturated());
    assert!(seen.tally.failures_of(Failure::Connect) >= 4, "each connection tried");
}

/// Goal: a rate above the server's limit is reported. Method: one connection, 20 ms per answer, 500 per
/// second requested.
#[test]
fn a_rate_that_cannot_be_kept_is_said() {
    let (_toy, target) = Toy::start(|_| {
        std::thread::sleep(Duration::from_millis(20));
        Behaviour::Right
    });
    let slow = StreamPlan { connections: 1, ..stream(Operation::Put, open(500)) };
    let outcome = run(&plan(target, 500, vec![slow])).unwrap();
    let seen = only(&outcome);
    assert!(seen.is_saturated());
    assert!(seen.tally.unsent > 0);
    assert_eq!(seen.tally.succeeded + seen.tally.unsent, 250, "no slot is lost");
}

/// Goal: the prefill repeats failed operations, and gives up with an error. Method: some 503s, then only
/// 503s.
#[test]
fn the_prefill_repeats_and_gives_up() {
    let put = vec![stream(Operation::Put, Pacing::Closed)];
    let (toy, target) =
        Toy::start(|request| if request % 50 == 3 { Behaviour::Status(503) } else { Behaviour::Right });
    prefill(&plan(target, 1, put.clone()), Duration::from_mins(1)).unwrap();
    assert_eq!(toy.len(), 500);
    let (_toy, target) =
        Toy::start(|request| if request > 400 { Behaviour::Status(507) } else { Behaviour::Right });
    assert!(prefill(&plan(target, 1, put), Duration::from_mins(1)).is_err());
}

/// Goal: a scan counts its records and detects a wrong one. Method: a right store, then a corrupted one.
#[test]
fn scans_count_and_check_records() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let mut scan = stream(Operation::Scan { records: None }, Pacing::Closed);
    prefill(&plan(target, 1, vec![scan.clone()]), Duration::from_mins(1)).unwrap();
    scan.order = KeyOrder::Listed([0].into());
    let outcome = run(&plan(target, 10_000, vec![scan.clone()])).unwrap();
    assert_eq!((only(&outcome).tally.succeeded, only(&outcome).tally.records), (1, 500));
    toy.insert(Dataset::key(250).as_bytes(), b"spoilt");
    let outcome = run(&plan(target, 10_000, vec![scan])).unwrap();
    assert_eq!((only(&outcome).tally.succeeded, only(&outcome).tally.wrong_bodies), (0, 1));
}
