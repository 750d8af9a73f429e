//! The load driver against a server that misbehaves on order.
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
use kvorum_lab::load::{
    Failure, KeyOrder, Operation, Outcome, Pacing, Plan, StreamOutcome, StreamPlan, prefill, run,
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
        targets: vec![target],
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

/// Goal: no coordinated omission: a stall is seen by every operation that was due in it, not only by the four
/// that were in flight. Method: 1,000 operations a second for 2 s, all answers held back for 300 ms. About 300
/// of 2,000 operations wait, up to 300 ms each: a tenth of all must have waited more than 80 ms.
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
    // A machine that stands still may leave slots unsent; nothing else may fail.
    let counts = outcome.streams.iter().map(|stream| stream.tally.succeeded + stream.tally.unsent);
    assert_eq!(counts.collect::<Vec<_>>(), [150, 350]);
    assert!(outcome.streams.iter().all(|stream| stream.failed() == stream.tally.unsent));
    assert!(outcome.streams.iter().all(|stream| stream.tally.succeeded > 0));
}

/// Goal: GETs that all miss are no reads. Method: an empty store.
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

/// Goal: every kind of misbehaviour is counted as what it is, and the load goes on. Method: each on order.
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

/// Goal: a dead node does not hold up the end of a run, and is loudly no success. Method: a closed port; the
/// test itself would hang if the run did not end.
#[test]
fn a_dead_node_is_counted_and_survived() {
    // Port 1 is reserved and served by nobody.
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

/// Goal: a rate beyond the server is said to be. Method: one connection, 20 ms an answer, 500 asked.
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

/// Goal: the prefill repeats what failed, and gives up loudly. Method: some 503s, then nothing but.
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

/// Goal: a scan counts its records and sees one that is wrong. Method: a right store, then a spoilt one.
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
