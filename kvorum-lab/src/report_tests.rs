//! Tests of the report: whole texts from tallies made by hand.

use std::time::Duration;

use super::*;
use crate::dataset::Dataset;
use crate::load::tally::Broken;
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
        tally.uncorrected.record(Duration::from_micros(micros));
    }
    tally.windows = (0..40).map(|window| 20 + window % 11).collect();
    tally.succeeded = 1000;
    tally.bytes_received = 3 * 1024 * 1024;
    tally.bytes_sent = 1024;
    StreamOutcome { plan, tally, elapsed: Duration::from_secs(2) }
}

const SUMMARY: Distributions = Distributions { corrected: false, uncorrected: false };
const FULL: Distributions = Distributions { corrected: true, uncorrected: true };

fn text_of(stream: &StreamOutcome, distributions: Distributions) -> String {
    stream_text(stream, &RunOptions::default(), distributions)
}

/// Compares with a golden file; `UPDATE_GOLDEN=1` rewrites it, to look at the difference.
fn check(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expect = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expect, "{path}");
}

fn report_of(streams: Vec<StreamOutcome>, options: &RunOptions, distributions: Distributions) -> String {
    let plan = Plan {
        targets: vec![
            "127.0.0.1:8080".parse::<std::net::SocketAddr>().unwrap().into(),
            "127.0.0.1:8081".parse::<std::net::SocketAddr>().unwrap().into(),
        ],
        threads: 2,
        duration: Duration::from_secs(2),
        timeout: Duration::from_secs(5),
        core: None,
        streams: streams.iter().map(|stream| stream.plan.clone()).collect(),
    };
    let outcome = Outcome { streams, steal_cores: 0.0, interrupted: None };
    Report { plan: &plan, options, outcome: &outcome, fdatasync: None, distributions }.to_string()
}

/// Goal: a good run has the layout of wrk2's report. Method: the whole text, with every distribution.
#[test]
fn a_good_run() {
    let good = stream(Pacing::Open { rate_per_second: 500 });
    check("good", &report_of(vec![good], &RunOptions::default(), FULL));
}

/// Goal: the report shows the kinds of a mix, the stages and the warm-up. Method: the whole text.
#[test]
fn a_mix_in_stages() {
    let second = Duration::from_secs(1);
    let ramp = crate::load::Stage { begin_per_second: 100, end_per_second: 800, duration: second };
    let mut mixed = stream(Pacing::Staged([crate::load::Stage::constant(100, second), ramp].into()));
    mixed.plan.name = "mixed".into();
    mixed.tally.by_kind.insert("get", mixed.tally.latency.clone());
    mixed.tally.by_kind.insert("put", mixed.tally.uncorrected.clone());
    let options = RunOptions { warm_up: second, ..RunOptions::default() };
    check("mixed-stages", &report_of(vec![mixed], &options, SUMMARY));
}

/// Goal: a bad run's report has clear warnings. Method: the whole text of a tally of faults.
#[test]
fn a_bad_run() {
    check("bad", &report_of(vec![bad()], &RunOptions::default(), SUMMARY));
}

/// Goal: GETs that miss do not count as an overload, and the report warns that they are no reads. Method:
/// half of all fail.
#[test]
fn failures_are_not_overload() {
    let mut missing = stream(Pacing::Open { rate_per_second: 1000 });
    missing.tally.statuses.insert(404, 1000);
    let text = text_of(&missing, FULL);
    let line =
        "  !! 1,000 OPERATIONS FAILED: 500.00/s of 1000.00/s succeeded; the latencies are theirs alone.\n";
    assert!(text.contains(line) && !text.contains("COULD NOT") && !text.contains("OVERLOADED"), "{text}");
}

/// Goal: the report names failures that are too few to cost the rate, a node that is down, missing keys, and
/// an interrupted run. Method: one of each, and look for the lines.
#[test]
fn what_went_wrong_is_named() {
    let mut few = stream(Pacing::Closed);
    few.tally.status(503);
    let text = text_of(&few, SUMMARY);
    assert!(text.contains("  !! 1 OPERATIONS FAILED: the latencies are those of the others.\n"), "{text}");
    let mut missing = stream(Pacing::Closed);
    missing.tally.statuses.insert(404, 1000);
    let text = text_of(&missing, SUMMARY);
    assert!(
        text.contains("  !! 1,000 KEYS NOT FOUND (404): --prefill stores them before the run.\n"),
        "{text}"
    );
    let mut nobody = stream(Pacing::Closed);
    (nobody.tally.succeeded, nobody.tally.last_answer) = (0, None);
    nobody.tally.failure(Failure::Connect);
    nobody.tally.failure(Failure::Connect);
    let text = text_of(&nobody, SUMMARY);
    assert!(text.contains("  !! NO CONNECTION: 2 attempts failed, no node answered.\n"), "{text}");
    let good = text_of(&stream(Pacing::Closed), SUMMARY);
    assert!(!good.contains("!!"), "{good}");
    let plan = Plan {
        targets: vec!["127.0.0.1:8080".parse::<std::net::SocketAddr>().unwrap().into()],
        threads: 1,
        duration: Duration::from_secs(30),
        timeout: Duration::from_secs(5),
        core: None,
        streams: vec![stream(Pacing::Closed).plan],
    };
    let outcome = Outcome {
        streams: vec![stream(Pacing::Closed)],
        steal_cores: 0.0,
        interrupted: Some(Duration::from_millis(3210)),
    };
    let options = RunOptions::default();
    let report =
        Report { plan: &plan, options: &options, outcome: &outcome, fdatasync: None, distributions: SUMMARY };
    let text = report.to_string();
    assert!(text.contains("\n  !! INTERRUPTED after 3.21s of 30s: a partial report\n"), "{text}");
    assert_eq!(report.json()["interrupted_after_seconds"], 3.21);
}

fn bad() -> StreamOutcome {
    let mut bad = stream(Pacing::Open { rate_per_second: 1000 });
    bad.tally.status(503);
    bad.tally.status(404);
    bad.tally.status(404);
    bad.tally.failure(Failure::Timeout);
    bad.tally.wrong_bodies = 4;
    bad.tally.unsent = 1234;
    bad.tally.late = 77;
    bad.tally.driver_lag.record(Duration::from_millis(9));
    bad
}

/// Goal: every fault is reported. Method: one of each, and look for the lines.
#[test]
fn a_bad_run_says_so() {
    let bad = bad();
    let text = text_of(&bad, FULL);
    for line in [
        "  Non-2xx or 3xx responses: 3 (404: 2, 503: 1)\n",
        "  Socket errors: connect 0, read 0, write 0, timeout 1, closed 0, malformed 0\n",
        "  !! WRONG BODIES: 4\n",
        "  Sent over 1ms late: 77;",
        "  !! COULD NOT KEEP THE RATE: 500.00/s of 1000.00/s was kept, 1,234 due operations were never sent.\n",
        "  Latency Distribution (HdrHistogram - OVERLOADED: not a latency result)\n",
        "  !! THE DRIVER WOKE LATE",
    ] {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
    assert_eq!(bad.failed(), 3 + 1 + 4 + 1234);
    assert!(!text_of(&bad, SUMMARY).contains("Latency Distribution"), "not asked for");
}

/// Goal: a closed loop's latencies are marked, and it has no rate to miss.
#[test]
fn a_closed_loop_is_marked() {
    let text = text_of(&stream(Pacing::Closed), FULL);
    assert!(text.contains("not comparable"), "{text}");
    assert!(!text.contains("COULD NOT"), "{text}");
}

/// Goal: the report names the quorum, so that figures of different quorums are not confused. Method: text and
/// JSON, with and without.
#[test]
fn the_quorum_is_told() {
    let mut asked = stream(Pacing::Closed);
    assert!(!text_of(&asked, SUMMARY).contains("replicas"), "the node's own");
    assert!(stream_json(&asked)["replicas"].is_null());
    asked.plan.replicas = Replicas::new(2, 3);
    let text = text_of(&asked, SUMMARY);
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

/// Lines of the report in wrk2's README (commit 02f60da), one of each kind, without the line of a thread's
/// calibration.
const WRK2_README: [&str; 15] = [
    "  2 threads and 100 connections",
    "  Thread Stats   Avg      Stdev     Max   +/- Stdev",
    "    Latency     6.60ms    1.92ms  12.50ms   68.46%",
    "    Req/Sec     1.04k     1.08k    2.50k    72.79%",
    "  Latency Distribution (HdrHistogram - Recorded Latency)",
    " 50.000%    6.67ms",
    "100.000%   12.50ms",
    "  Detailed Percentile spectrum:",
    "       Value   Percentile   TotalCount 1/(1-Percentile)",
    "       6.179     0.400000        15803         1.67",
    "      12.503     1.000000        39500          inf",
    "#[Mean    =        6.602, StdDeviation   =        1.919]",
    "#[Max     =       12.496, Total count    =        39500]",
    "----------------------------------------------------------",
    "Requests/sec:   2000.28",
];

/// Where each word of a line ends, and the word without its digits.
fn columns(line: &str) -> Vec<(usize, String)> {
    let ends = line.char_indices().filter(|&(at, c)| {
        let next = line[at..].chars().nth(1);
        !c.is_whitespace() && next.is_none_or(char::is_whitespace)
    });
    let words = line.split_whitespace().map(|word| word.chars().filter(|c| !c.is_ascii_digit()).collect());
    ends.map(|(at, _)| at).zip(words).collect()
}

/// Goal: a program that reads wrk2's report by words or by columns can read ours. Method: for each of wrk2's
/// lines, in its order, one of ours. Its words are the same but for their digits, and end in the same
/// columns.
#[test]
fn the_layout_is_that_of_wrk2() {
    let mut loaded = stream(Pacing::Open { rate_per_second: 2000 });
    loaded.tally.windows = (0..40).map(|window| 100 + window * window).collect();
    loaded.elapsed = Duration::from_millis(500);
    let text = report_of(
        vec![loaded],
        &RunOptions::default(),
        Distributions { corrected: true, uncorrected: false },
    );
    let mut lines = text.lines();
    for line in WRK2_README {
        let expect = columns(line);
        let is_found = lines.any(|ours| match (columns(ours), line.contains("connections")) {
            // The number of digits moves the words after it.
            (ours, true) => ours.iter().map(|(_, word)| word).eq(expect.iter().map(|(_, word)| word)),
            (ours, false) => ours == expect,
        });
        assert!(is_found, "no line like {line:?}, or not in this place, in:\n{text}");
    }
}

/// Goal: errors have the system's words, and statuses their names. Method: one of each.
#[test]
fn errors_and_statuses_have_names() {
    let mut bad = stream(Pacing::Open { rate_per_second: 500 });
    let refused = std::io::Error::from_raw_os_error(rustix::io::Errno::CONNREFUSED.raw_os_error());
    bad.tally.failure(Broken::by(Failure::Connect, &refused));
    bad.tally.failure(Broken::by(Failure::Connect, &refused));
    bad.tally.failure(Failure::Timeout);
    bad.tally.status(503);
    bad.tally.status(599);
    let text = text_of(&bad, SUMMARY);
    assert!(text.contains("closed 0, malformed 0\n    connect: 2 Connection refused\n"), "{text}");
    assert!(text.contains("    503 Service Unavailable: 1\n    599 : 1\n"), "{text}");
    assert_eq!(stream_json(&bad)["causes"][0]["error"], "Connection refused");
}

/// Goal: the report says what was compared, and that nothing was. Method: both, and a wrong answer.
#[test]
fn the_report_says_what_was_verified() {
    let mut checked = stream(Pacing::Open { rate_per_second: 500 });
    checked.plan.verify = true;
    assert!(text_of(&checked, SUMMARY).contains("  Verified: nothing: "));
    for key in [3, 9, 3] {
        checked.tally.verified.read(key);
    }
    checked.tally.verified.wrong(|| "key-000000000003: 1 bytes where 100 are right".into());
    let text = text_of(&checked, SUMMARY);
    let expect = "  Verified: 3 answers to GETs, whole bodies byte for byte with the values of --seed 1; 2 different keys, \
                  key-000000000003 to key-000000000009\n    wrong: key-000000000003: 1 bytes where 100 are right\n";
    assert!(text.contains(expect), "{text}");
    assert_eq!(stream_json(&checked)["verified"]["different_keys"], 2);
    checked.plan.verify = false;
    assert!(stream_json(&checked)["verified"].is_null());
}

/// Goal: lateness of the driver is judged at every percentile, and only where enough operations lie beyond. Method: lags
/// that explain half of all latencies, only the slowest, only the maximum, and none.
#[test]
fn lateness_is_judged_on_the_whole_distribution() {
    let judged = |lag: fn(u64) -> u64| {
        let mut late = stream(Pacing::Open { rate_per_second: 500 });
        for nth in 1..=1000_u64 {
            late.tally.driver_lag.record(Duration::from_micros(lag(nth)));
        }
        (late.driver_late_from(), late.is_driver_late(), text_of(&late, SUMMARY))
    };
    // Latencies are 10 us to 10 ms, evenly.
    let (from, is_late, text) = judged(|nth| nth * 6);
    assert_eq!((from, is_late), (Some(50.0), true));
    assert!(text.contains("!! THE DRIVER WOKE LATE: from p50 on more than half"), "{text}");
    let (from, is_late, text) = judged(|nth| if nth > 900 { 6_000 } else { 50 });
    assert_eq!((from, is_late), (Some(99.0), true), "{text}");
    let (from, is_late, text) = judged(|nth| if nth == 1000 { 6_000 } else { 50 });
    assert_eq!((from, is_late), (Some(100.0), false));
    assert!(
        text.contains("    from the maximum on that is more than half") && !text.contains("!!"),
        "{text}"
    );
    let (from, _, text) = judged(|_| 900);
    assert!(from.is_none() && !text.contains("on that is more"), "{text}");
}
