//! Row `memory`: a data set ten times the memory budget; reads continue, and the process stays small.

use std::time::Duration;

use super::Suite;
use super::process::{MemoryWatch, Server};
use super::table::{Table, verdict};
use crate::dataset::Dataset;
use crate::error::LabError;
use crate::load::{KeyOrder, Operation, Pacing, StreamOutcome, StreamPlan, prefill, run as run_load};
use crate::machine::memory;
use crate::units::{grouped, mebibytes};

/// `--memory-budget` of the node.
const MEMORY_BUDGET: &str = "64MiB";

/// The aim: the budget and 64 MiB more.
const RESIDENT_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Bytes of a value.
const VALUE_BYTES: usize = 1024;

/// The longest that loading may take.
const LOAD_MAX: Duration = Duration::from_mins(10);

/// Loads the data set, then reads any key for a while.
pub(super) fn run(suite: &Suite) -> Result<Table, LabError> {
    let dataset = Dataset { keys: suite.sizes.memory_records, value_bytes: VALUE_BYTES, seed: 1 };
    let data_bytes = dataset.keys * VALUE_BYTES as u64;
    let server = Server::node(&suite.node("os", MEMORY_BUDGET, Some(suite.args.server_core)))?;
    let mut table = Table::new(
        format!("Data set of {} in a budget of {MEMORY_BUDGET}, 1 KiB values", mebibytes(data_bytes)),
        &["phase", "operations/s", "operations", "failed", "p99.9 closed loop", "resident max"],
    );
    let get = StreamPlan {
        name: "get".into(),
        operation: Operation::Get,
        replicas: None,
        pacing: Pacing::Closed,
        order: KeyOrder::Uniform { seed: 2 },
        dataset,
        connections: 64,
        verify: true,
    };
    let plan = suite.plan(&server, suite.sizes.memory_gets, vec![get]);

    suite.say(&format!("memory: loading {}", mebibytes(data_bytes)));
    let watch = MemoryWatch::start(server.pid())?;
    let loaded = prefill(&plan, LOAD_MAX)?;
    let load_peak = watch.finish()?;

    suite.say("memory: reading");
    let watch = MemoryWatch::start(server.pid())?;
    let outcome = run_load(&plan)?;
    let read_peak = watch.finish()?;
    // The kernel counts lazily: its own maximum may be lower than the measured one.
    let life_peak = memory(server.pid())?.resident_bytes_max.max(load_peak).max(read_peak);

    for (name, outcome, peak) in [("load (PUT)", &loaded, load_peak), ("GET, uniform", &outcome, read_peak)] {
        for stream in &outcome.streams {
            table.row(cells(name, stream, peak));
        }
    }
    let failed: u64 = outcome.streams.iter().map(StreamOutcome::failed).sum();
    let succeeded: u64 = outcome.streams.iter().map(|stream| stream.tally.succeeded).sum();
    table.note(format!("GETs go on, every value right: {}.", verdict(failed == 0 && succeeded > 0)));
    table.note(format!(
        "Resident at most {} in the node's life; aim the budget and 64 MiB = {}: {}.",
        mebibytes(life_peak),
        mebibytes(RESIDENT_BYTES_MAX),
        verdict(life_peak <= RESIDENT_BYTES_MAX)
    ));
    Ok(table)
}

fn cells(name: &str, stream: &StreamOutcome, peak: u64) -> [String; 6] {
    [
        name.into(),
        format!("{:.0}", stream.rate()),
        grouped(stream.tally.succeeded),
        grouped(stream.failed()),
        crate::units::latency(stream.tally.latency.percentile(99.9)),
        mebibytes(peak),
    ]
}
