//! `kvorum bench` as a whole: its arguments, and the files that it writes.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    reason = "the lab's tests use real files and servers"
)]

mod support;

use std::process::ExitCode;
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

fn bench(line: &str) -> ExitCode {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let command = Command::try_parse_from(words).expect("a good line");
    run(&command.bench)
}

/// Whether a run ends with `code`. On a busy machine nothing may be sent in so short a time, so it has some attempts.
fn ends_with(code: ExitCode, line: &str) -> bool {
    (0..10).any(|_| bench(line) == code)
}

/// Goal: the three files describe the same run. Method: counts and maxima of each, a whole line of options.
#[test]
fn files_agree_with_each_other() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let _ = bench(&format!(
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
    let _ = bench(&format!(
        "put -t1 -c1 -R50 -d300ms --find-max 250ms --json {} http://{target}",
        path.display()
    ));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let highest = json["find_max"]["highest"].as_u64().unwrap();
    assert!((25..=210).contains(&highest), "{highest}");
    assert_eq!(json["streams"][0]["open_loop_rate"].as_u64(), Some(highest));
    assert!(json["find_max"]["trials"].as_array().unwrap().len() >= 3);
}

/// Goal: headers of the command line reach the server, also with a script, whose counter goes on over all connections.
/// Method: a server that keeps what it is asked for.
#[test]
fn scripts_and_headers_reach_the_server() {
    let (toy, target) = Toy::start(|_| Behaviour::Right);
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("put.lua");
    let text = "n = 0\nrequest = function()\n n = n + 1\n wrk.body = 'value ' .. n\n\
                return wrk.format('PUT', '/v0/entity?id=k' .. n)\nend\n";
    std::fs::write(&script, text).unwrap();
    let line = format!("-t2 -c4 -R100 -d500ms -H X-Trace:1 -s {} http://{target}", script.display());
    assert!(ends_with(ExitCode::SUCCESS, &line));
    assert_eq!(toy.len(), 50);
    for number in 1..=50 {
        assert_eq!(toy.value(&format!("k{number}")), Some(format!("value {number}").into_bytes()));
    }
    assert!(toy.headers("x-trace") >= 50);
}

/// Goal: every exit code of a run is the documented one. Method: a run of each kind.
#[test]
fn exit_codes_are_those_documented() {
    let (_toy, target) =
        Toy::start(|number| if number == 3 { Behaviour::Status(503) } else { Behaviour::Right });
    let ends = |code, words: &str| ends_with(code, &format!("{words} -t1 -c2 -d200ms http://{target}"));
    assert_eq!(bench(&format!("put -t1 -c2 -d200ms http://{target}")), ExitCode::FAILURE, "one failed");
    assert!(ends(ExitCode::SUCCESS, "put --keys 10"));
    assert!(ends(ExitCode::SUCCESS, "get --keys 10 --prefill --verify --seed 2"));
    assert!(ends(ExitCode::FAILURE, "get --keys 10 --verify"), "values of another seed");
    assert!(ends(ExitCode::from(2), "get -s /no/such/script.lua"));
    assert!(ends(ExitCode::from(3), "put --json /no/such/folder/a.json"));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(bench(&format!("put -t1 -c1 -R50 -d200ms http://{closed}")), ExitCode::from(3));
}

/// Goal: a run in steps reports each of them, the knee, and what was verified. Method: one connection to a server that
/// needs 5 ms, so never 200 a second.
#[test]
fn steps_find_the_knee() {
    let (_toy, target) = Toy::start(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Behaviour::Right
    });
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let line = format!(
        "get -t1 -c1 --rate-steps 20,1000 -d500ms --keys 8 --prefill --verify --json {} --hgrm {} http://{target}",
        at("a.json"),
        at("a.hgrm"),
    );
    let _ = bench(&line);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(at("a.json")).unwrap()).unwrap();
    let steps = json["rate_steps"]["steps"].as_array().unwrap();
    assert_eq!(steps.iter().map(|step| step["rate"].as_u64()).collect::<Vec<_>>(), [Some(20), Some(1000)]);
    // On a busy machine the first rate may be beyond it, too.
    assert!(json["rate_steps"]["knee"]["first_rate_beyond"].is_u64(), "{}", json["rate_steps"]);
    assert_eq!(steps[1]["is_good"], false);
    assert_eq!(json["streams"][0]["open_loop_rate"], 20, "the run before the knee is reported");
    let verified = &json["streams"][0]["verified"];
    assert_eq!(verified["reads"], json["streams"][0]["succeeded"]);
    assert!((1..=8).contains(&verified["different_keys"].as_u64().unwrap()), "{verified}");
    for rate in [20, 1000] {
        assert!(
            std::fs::read_to_string(at(&format!("a-{rate}-per-second.hgrm")))
                .unwrap()
                .contains("Total count")
        );
    }
}
