//! Goal: two runs of one seed are equal to the byte. Method: seeds of real nodes, each run twice, the second
//! time with other hidden randomness (the order of hash maps). The whole output, every message included, must
//! be equal; the output of other seeds must differ.
//!
//! The test runs the program itself: only there are the C library's clocks and randomness replaced.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail by panicking, as its tests do")]

use kvorum_sim::plan::Plan;
use kvorum_sim::seed::Seed;
use std::process::Command;

/// Seeds whose runs are short.
fn short_seeds() -> Vec<Seed> {
    let is_short = |plan: &Plan| {
        plan.nodes >= 3 && plan.clients.len() <= 3 && plan.length.as_secs() < 25 && plan.faults.len() > 5
    };
    (1..1000).map(Seed).filter(|seed| is_short(&Plan::of(*seed))).take(5).collect()
}

fn trace(seed: Seed, salt: u64) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum-sim"));
    command.args(["run", "--trace", "--seed", &seed.0.to_string(), "--salt", &salt.to_string()]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", text.lines().rev().take(100).collect::<Vec<_>>().join("\n"));
    text
}

#[test]
fn same_seed_same_trace() {
    let traces: Vec<String> = short_seeds().into_iter().map(|seed| trace(seed, 0)).collect();
    for (seed, first) in short_seeds().into_iter().zip(&traces) {
        assert!(first.lines().count() > 1000, "seed {}: {} lines", seed.0, first.lines().count());
        let second = trace(seed, 1);
        let differs = first.lines().zip(second.lines()).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {} differs from that line on", seed.0);
        assert_eq!(first.len(), second.len(), "seed {}", seed.0);
    }
    assert!(traces.iter().zip(traces.iter().skip(1)).all(|(one, other)| one != other));
}
