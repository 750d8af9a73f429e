//! Tests of the arguments: lines, and what they mean.

use clap::Parser;

use super::args::Prefill;
use super::*;
use crate::load::{KeyOrder, Pacing, Replicas, Stage};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

fn planned(line: &str) -> Result<Plan, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
    plan(&command.bench).map_err(|error| error.to_string())
}

/// Goal: wrk2's way of writing options is understood. Method: the line of the old load scripts.
#[test]
fn a_line_for_wrk2_is_understood() {
    let plan = planned("put -t2 -c64 -d7m -R5000 --latency http://127.0.0.1:8080").unwrap();
    assert_eq!(plan.threads, 2);
    assert_eq!(plan.duration, Duration::from_mins(7));
    assert_eq!(plan.targets[0].address, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(plan.streams.len(), 1);
    assert_eq!(plan.streams[0].connections, 64);
    assert_eq!(plan.streams[0].pacing, Pacing::Open { rate_per_second: 5000 });
    let same = planned("put -t2 -c1k -d7m -R5k -U http://127.0.0.1:8080").unwrap();
    assert_eq!((same.streams[0].connections, &same.streams[0].pacing), (1_000, &plan.streams[0].pacing));
    let closed = planned("get 127.0.0.1:1 http://127.0.0.1:2/").unwrap();
    assert_eq!(closed.streams[0].pacing, Pacing::Closed);
    assert_eq!(closed.targets.len(), 2);
}

fn optioned(line: &str) -> RunOptions {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    options(&Command::try_parse_from(words).unwrap().bench).unwrap()
}

fn prefilled(line: &str) -> (Work, usize, Prefill) {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let args = Command::try_parse_from(words).unwrap().bench;
    let (work, urls, prefill) = args.read_words().unwrap();
    (work, urls.len(), prefill)
}

/// Goal: mixed work has the requested shares or rates. Method: every way to request them.
#[test]
fn mixed_work_is_what_was_asked() {
    let rates = |line: &str| -> Vec<Pacing> {
        planned(line).unwrap().streams.iter().map(|stream| stream.pacing.clone()).collect()
    };
    let open = |rate_per_second| Pacing::Open { rate_per_second };
    let shares = |line| optioned(line).mix.map(|mix| mix.to_string());
    let line = "mixed -R1000 --read-fraction 0.9 127.0.0.1:1";
    assert_eq!(rates(line), [open(1000)]);
    assert_eq!(shares(line).unwrap(), "get=9000,put=1000");
    assert_eq!(shares("mixed 127.0.0.1:1").unwrap(), "get=5000,put=5000");
    assert_eq!(shares("--mix get=1,delete=1 127.0.0.1:1").unwrap(), "get=1,delete=1");
    assert_eq!(shares("delete 127.0.0.1:1").unwrap(), "delete=1");
    let line = "mixed --put-rate 8000 --get-rate 7000 127.0.0.1:1";
    assert_eq!(rates(line), [open(8000), open(7000)]);
    assert_eq!(shares(line), None);
}

/// Goal: YCSB's presets have their mix and their keys. Method: two of them.
#[test]
fn presets_are_understood() {
    let order = |line: &str| planned(line).unwrap().streams[0].order.clone();
    assert!(matches!(order("--ycsb A -R10 127.0.0.1:1"), KeyOrder::Zipfian { .. }));
    assert!(matches!(order("mixed --ycsb d 127.0.0.1:1"), KeyOrder::Latest { .. }));
    assert_eq!(optioned("--ycsb b 127.0.0.1:1").mix.unwrap().to_string(), "get=95,put=5");
}

/// Goal: stages and ramps are read, with their durations. Method: a line, and its whole meaning.
#[test]
fn stages_are_understood() {
    let plan = planned("put --rate 1000:30s,1000-5000:60s,5000:1m 127.0.0.1:1").unwrap();
    let stage = |begin_per_second, end_per_second, seconds| Stage {
        begin_per_second,
        end_per_second,
        duration: Duration::from_secs(seconds),
    };
    let stages = [stage(1000, 1000, 30), stage(1000, 5000, 60), stage(5000, 5000, 60)];
    assert_eq!(plan.streams[0].pacing, Pacing::Staged(stages.into()));
    assert_eq!(plan.duration, Duration::from_secs(150));
}

/// Goal: keys and sizes are those asked for. Method: a line for each.
#[test]
fn keys_and_sizes_are_understood() {
    let order = |name: &str| {
        planned(&format!("get --distribution {name} 127.0.0.1:1")).unwrap().streams[0].order.clone()
    };
    assert!(matches!(order("zipfian:0.8"), KeyOrder::Zipfian { theta, .. } if (theta - 0.8).abs() < 1e-9));
    assert!(matches!(order("latest"), KeyOrder::Latest { .. }));
    assert!(matches!(order("sequential"), KeyOrder::Cycle));
    let options = optioned("put --key-size 16-40 --value-size 10-4096 --warmup 2s 127.0.0.1:1");
    assert_eq!(options.key_bytes.unwrap().to_string(), "16-40");
    assert_eq!(options.value_bytes.unwrap().to_string(), "10-4096");
    assert_eq!(options.warm_up, Duration::from_secs(2));
}

/// Goal: `--prefill` takes a number or none, wherever it stands. Method: the places.
#[test]
fn prefill_takes_a_number_or_none() {
    for (line, expect) in [
        ("get a:1 b:2", (Work::Get, 2, None)),
        ("get --prefill a:1", (Work::Get, 1, Some(None))),
        ("--prefill mixed a:1", (Work::Mixed, 1, Some(None))),
        ("--prefill a:1", (Work::Get, 1, Some(None))),
        ("get --prefill 500 a:1", (Work::Get, 1, Some(Some(500)))),
        ("get a:1 --prefill", (Work::Get, 1, Some(None))),
        ("get --prefill --verify a:1", (Work::Get, 1, Some(None))),
        ("a:1", (Work::Get, 1, None)),
    ] {
        assert_eq!(prefilled(line), expect, "{line}");
    }
}

/// Goal: files of several loads do not overwrite each other. Method: a path.
#[test]
fn files_are_named_by_load() {
    assert_eq!(named(Path::new("out/a.hgrm"), "put"), Path::new("out/a-put.hgrm"));
}

/// Goal: a quorum reaches every stream, and without one no stream asks for any. Method: with and without.
#[test]
fn replicas_are_those_of_every_stream() {
    let replicas = |line: &str| -> Vec<Option<Replicas>> {
        planned(line).unwrap().streams.iter().map(|stream| stream.replicas).collect()
    };
    let quorum = Replicas::new(2, 3);
    assert_eq!(
        replicas("mixed --put-rate 5 --get-rate 5 --replicas 2/3 127.0.0.1:1 127.0.0.1:2"),
        [quorum, quorum]
    );
    assert_eq!(replicas("put 127.0.0.1:1"), [None]);
}

/// Goal: the token of a file is sent, and nothing but a token. Method: files, one beside a header that has a token, too.
#[test]
fn token_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let headers = |line: &str| {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        options(&Command::try_parse_from(words).unwrap().bench).map(|options| options.headers)
    };
    let good = file("good", "a.s3cret\n");
    let sent = headers(&format!("get --token-file {good} 127.0.0.1:1")).unwrap();
    assert_eq!(sent, ["Authorization: Bearer a.s3cret".parse().unwrap()]);
    for bad in [file("empty", "\n"), file("two", "a.s3cret b.s3cret"), "/nowhere".to_owned()] {
        let error = headers(&format!("get --token-file {bad} 127.0.0.1:1")).unwrap_err();
        assert!(
            matches!(error, LabError::Usage(_)) && !error.to_string().contains("s3cret"),
            "{bad}: {error}"
        );
    }
    let error = headers(&format!("get -H authorization:x --token-file {good} 127.0.0.1:1")).unwrap_err();
    assert!(error.to_string().contains("not both"), "{error}");
}

/// Goal: impossible arguments are refused. Method: one fault each.
#[test]
fn impossible_arguments_are_refused() {
    for bad in [
        "put",
        "wash http://127.0.0.1:1",
        "put https://127.0.0.1:1",
        "put http://127.0.0.1:1/v0/entity",
        "put 127.0.0.1",
        "put -c0 127.0.0.1:1",
        "put -c70k 127.0.0.1:1",
        "put -R0 127.0.0.1:1",
        "put -d0 127.0.0.1:1",
        "put -R10:0s 127.0.0.1:1",
        "put -R10:1s -d5s 127.0.0.1:1",
        "put -R10:1s,x 127.0.0.1:1",
        "get --mix get=1 127.0.0.1:1",
        "put --ycsb A 127.0.0.1:1",
        "--ycsb G 127.0.0.1:1",
        "get --distribution zipfian:1 127.0.0.1:1",
        "get --distribution uniform:0.5 127.0.0.1:1",
        "get --value-size 9-8 127.0.0.1:1",
        "get --key-size 8 127.0.0.1:1",
        "get --coalesce 1ms 127.0.0.1:1",
        "get --prefill 0 127.0.0.1:1",
        "mixed --find-max 5ms --put-rate 5 --get-rate 5 127.0.0.1:1",
        "mixed --put-rate 5 127.0.0.1:1",
        "mixed -R10 --read-fraction 1 127.0.0.1:1",
        "put --replicas 2 127.0.0.1:1",
        "put --replicas 0/3 127.0.0.1:1",
        "put --replicas 4/3 127.0.0.1:1",
        "scan --replicas 2/3 127.0.0.1:1",
    ] {
        let is_refused = planned(bad).is_err() || {
            let words = std::iter::once("bench").chain(bad.split_whitespace());
            Command::try_parse_from(words).map_or(true, |command| options(&command.bench).is_err())
        };
        assert!(is_refused, "{bad:?} must be refused");
    }
}
