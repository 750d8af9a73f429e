//! Tests of the report: whole texts from tallies made by hand.

use std::time::Duration;

use super::*;
use crate::dataset::Dataset;
use crate::load::{KeyOrder, Replicas, StreamPlan, Tally};

fn stream(pacing: Pacing) -> StreamOutcome {
    let plan = StreamPlan {
        name: "get".into(),
        operation: Operation::Get,
        replicas: None,
        pacing,
        order: KeyOrder::Sequential,
        dataset: Dataset { keys: 10, value_bytes: 100, seed: 1 },
        connections: 64,
        verify: false,
    };
    let mut tally = Tally::new().unwrap();
    for micros in 1..=1000_u64 {
        tally.latency.record(Duration::from_micros(micros * 10));
    }
    tally.succeeded = 1000;
    tally.bytes_received = 3 * 1024 * 1024;
    tally.bytes_sent = 1024;
    StreamOutcome { plan, tally, elapsed: Duration::from_secs(2) }
}

/// Goal: a good run reads as wrk2's does. Method: the whole text.
#[test]
fn a_good_run() {
    let text = stream_text(&stream(Pacing::Open { rate_per_second: 500 }), true);
    let expect = "\
get: 500/s, open loop, 64 connections
  Latency: avg 5.01ms, stdev 2.89ms, max 10.00ms
  Latency Distribution (HdrHistogram)
   50.000%     5.00ms
   75.000%     7.50ms
   90.000%     9.00ms
   99.000%     9.90ms
   99.900%    10.00ms
   99.990%    10.00ms
  100.000%    10.00ms
  1,000 requests in 2.00s, 3.00MB read, 1.00KB written
Requests/sec:     500.00
Transfer/sec:     1.50MB
";
    assert_eq!(text, expect);
}

/// Goal: everything bad is said. Method: one of each, and look for the lines.
#[test]
fn a_bad_run_says_so() {
    let mut bad = stream(Pacing::Open { rate_per_second: 1000 });
    bad.tally.status(503);
    bad.tally.status(404);
    bad.tally.status(404);
    bad.tally.failure(Failure::Timeout);
    bad.tally.wrong_bodies = 4;
    bad.tally.unsent = 1234;
    bad.tally.late = 77;
    bad.tally.driver_lag.record(Duration::from_millis(9));
    let text = stream_text(&bad, true);
    for line in [
        "  Non-2xx responses: 3 (404: 2, 503: 1)\n",
        "  Socket errors: connect 0, write 0, read 0, closed 0, timeout 1, malformed 0\n",
        "  !! WRONG BODIES: 4\n",
        "  Sent over 1ms late: 77;",
        "  !! COULD NOT KEEP THE RATE: 500.00/s was kept, 1,234 due operations were never sent.\n",
        "  Latency Distribution (OVERLOADED: not a latency result)\n",
        "  !! THE DRIVER WOKE LATE",
    ] {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
    assert_eq!(bad.failed(), 3 + 1 + 4 + 1234);
    assert!(!stream_text(&bad, false).contains("Latency Distribution"), "not asked for");
}

/// Goal: a closed loop's latencies are marked, and it has no rate to miss.
#[test]
fn a_closed_loop_is_marked() {
    let text = stream_text(&stream(Pacing::Closed), true);
    assert!(text.contains("not comparable"), "{text}");
    assert!(!text.contains("COULD NOT"), "{text}");
}

/// Goal: figures of one quorum are not taken for those of another. Method: text and JSON, with and without.
#[test]
fn the_quorum_is_told() {
    let mut asked = stream(Pacing::Closed);
    assert!(!stream_text(&asked, false).contains("replicas"), "the node's own");
    assert!(stream_json(&asked)["replicas"].is_null());
    asked.plan.replicas = Replicas::new(2, 3);
    let text = stream_text(&asked, false);
    assert!(text.starts_with("get: closed loop, 64 connections, replicas 2/3\n"), "{text}");
    assert_eq!(stream_json(&asked)["replicas"], "2/3");
}

/// Goal: the JSON carries the same figures. Method: look some up.
#[test]
fn json_has_the_figures() {
    let value = stream_json(&stream(Pacing::Open { rate_per_second: 500 }));
    assert_eq!(value["succeeded"], 1000);
    assert_eq!(value["open_loop_rate"], 500);
    assert_eq!(value["is_saturated"], false);
    assert!(value["latency"]["nanos"]["p99.9"].as_u64().unwrap() > 9_000_000);
}
