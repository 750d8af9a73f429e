//! Results made by hand, for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::results::{
    ConfigurationRecord, FORMAT, LatencyFigures, LoadRecord, Machine, Results, Run, Step, Task,
};
use crate::histogram::Latencies;
use crate::monitor::SecondFigures;

/// A run of a second at 1,000/s, all of whose operations took `millis` milliseconds.
pub(super) fn run(load: &str, millis: f64) -> Run {
    let mut latencies = Latencies::new().unwrap();
    for _ in 0..1000 {
        latencies.record(Duration::from_secs_f64(millis / 1e3));
    }
    let mut latency = LatencyFigures::of(&latencies);
    // The exact values, not rounded to the histogram's resolution.
    latency.nanos.values_mut().for_each(|nanos| *nanos = *nanos / 10_000 * 10_000);
    Run {
        load: load.into(),
        wanted_per_second: 1000.0,
        kept_per_second: 1000.0,
        succeeded: 1000,
        failed: 0,
        unsent: 0,
        wrong_bodies: 0,
        statuses: BTreeMap::new(),
        failures: BTreeMap::new(),
        is_saturated: false,
        is_driver_late: false,
        driver_lag: BTreeMap::new(),
        latency,
        seconds: vec![SecondFigures { succeeded: 1000, failed: 0, p99: 1_000_000 }],
        cpu_micros_per_operation: Some(20.0),
        resident_bytes: Some(10 << 20),
        steal_cores: 0.01,
        samples: Vec::new(),
        pauses: None,
        warm_up: None,
        text: "Running 1s test\n  Detailed Percentile spectrum:\n 1\n----------\nRequests/sec: 1000\n".into(),
        command: "kvorum bench put -R1000 http://127.0.0.1:1".into(),
    }
}

/// Results of configurations with the runs of their repeats, each compared with the one before.
pub(super) fn results(configurations: &[(&str, &[Run])]) -> Results {
    let names = configurations.iter().map(|(name, _)| (*name).to_owned());
    let steps = configurations.iter().flat_map(|(name, runs)| {
        (1..).zip(*runs).map(|(repeat, run)| Step {
            configuration: (*name).into(),
            task: Task::Measure(repeat),
            began: 1_700_000_000,
            seconds: 3.0,
            error: None,
            notes: Vec::new(),
            runs: vec![run.clone()],
            profiles: Vec::new(),
            maxima: Vec::new(),
        })
    });
    Results {
        format: FORMAT,
        lab: "title = \"Made by hand\"\n".into(),
        title: "Made by hand".into(),
        label: None,
        is_quick: false,
        kvorum: "kvorum 0".into(),
        machine: Machine { cpu: "a <cpu>".into(), cores: 2, memory_bytes: 4 << 30, kernel: "6".into() },
        configurations: names
            .clone()
            .map(|name| ConfigurationRecord {
                commands: vec![format!("kvorum serve --data-dir '{name}'")],
                name,
                nodes: 1,
                replicas: None,
                version: String::new(),
                program: None,
                control_of: None,
            })
            .collect(),
        loads: vec![LoadRecord { name: "PUT".into(), bench: "put -R1000".into() }],
        pairs: names.clone().zip(names.skip(1)).collect(),
        equals: Vec::new(),
        steps: steps.collect(),
        is_of_separate_runs: false,
    }
}
