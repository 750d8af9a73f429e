//! `kvorum bench` as a whole: its arguments, and the files that it writes.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "the lab's tests use real files and servers"
)]

mod support;

use std::time::Duration;

use clap::Parser;
use kvorum_lab::cli::{BenchArgs, run};
use serde_json::Value;
use support::{Behaviour, Toy};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

fn bench(line: &str) {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let command = Command::try_parse_from(words).expect("a good line");
    let _ = run(&command.bench);
}

/// Goal: the three files describe the same run. Method: counts and maxima of each, a whole line of options.
#[test]
fn files_agree_with_each_other() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    bench(&format!(
        "--ycsb A -t2 -c4 -R200:500ms,200-600:1s --latency -U --keys 300 --prefill 300 --verify --warmup 200ms \
         --value-size 10-200 --json {} --hgrm {} --hlog {} http://{target}",
        at("a.json"),
        at("a.hgrm"),
        at("a.hlog"),
    ));
    assert_eq!(toy.len(), 300);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(at("a.json")).unwrap()).unwrap();
    let stream = &json["streams"][0];
    let count = stream["latency"]["count"].as_u64().unwrap();
    assert_eq!(count + stream["unsent"].as_u64().unwrap(), 100 + 400);
    assert_eq!((stream["wrong_bodies"].as_u64(), json["mix"].as_str()), (Some(0), Some("get=50,put=50")));
    let kinds = |name: &str| stream["by_kind"][name]["count"].as_u64().unwrap();
    assert_eq!(kinds("get") + kinds("put"), count);
    let hgrm = std::fs::read_to_string(at("a.hgrm")).unwrap();
    assert!(hgrm.contains(&format!("Total count    = {count:12}]")), "{hgrm}");
    let hlog = std::fs::read_to_string(at("a.hlog")).unwrap();
    let intervals = hlog.lines().filter(|line| line.contains("HISTF")).count();
    assert!((2..=4).contains(&intervals), "{hlog}");
}

/// Goal: the highest rate is found, and its run reported. Method: one connection to a server that needs 5 ms:
/// never 200 a second.
#[test]
fn the_highest_rate_is_found() {
    let (_toy, target) = Toy::start(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Behaviour::Right
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("max.json");
    bench(&format!("put -t1 -c1 -R50 -d300ms --find-max 250ms --json {} http://{target}", path.display()));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let highest = json["find_max"]["highest"].as_u64().unwrap();
    assert!((25..=210).contains(&highest), "{highest}");
    assert_eq!(json["streams"][0]["open_loop_rate"].as_u64(), Some(highest));
    assert!(json["find_max"]["trials"].as_array().unwrap().len() >= 3);
}
