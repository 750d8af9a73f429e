//! Row `range`: one stream over a million records, and the memory it takes.

use std::time::Duration;

use super::Suite;
use super::process::{MemoryWatch, Server};
use super::table::{Table, median, verdict};
use crate::dataset::Dataset;
use crate::error::LabError;
use crate::load::{KeyOrder, Operation, Pacing, Plan, StreamPlan, prefill, run as run_load};
use crate::machine::memory;
use crate::units::{float, grouped, mebibytes, per_second};

/// Bytes of a value.
const VALUE_BYTES: usize = 100;

/// The aim: more records per second than this.
const RECORDS_PER_SECOND_AIM: f64 = 1_000_000.0;

/// `--memory-budget` of the node: small against the data. The block cache, which a range fills as any reader
/// does, is soon full, so that later growth is not the cache.
const MEMORY_BUDGET: &str = "32MiB";

/// The longest that loading, or one scan, may take.
const PHASE_MAX: Duration = Duration::from_mins(10);

/// How much more memory the whole range may take than a tenth of it: noise.
const GROWTH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One scan.
struct Scan {
    records: u64,
    bytes: u64,
    elapsed: Duration,
    before: u64,
    peak: u64,
    after: u64,
}

/// Loads the records, reads a tenth of them, then all of them three times.
pub(super) fn run(suite: &Suite) -> Result<Table, LabError> {
    let dataset = Dataset { keys: suite.sizes.range_records, value_bytes: VALUE_BYTES, seed: 1 };
    let server = Server::node(&suite.node("os", MEMORY_BUDGET, Some(suite.args.server_core)))?;
    suite.say(&format!("range: loading {} records", grouped(dataset.keys)));
    let plan = suite.plan(&server, PHASE_MAX, vec![stream(dataset, None)]);
    let loaded = prefill(&plan, PHASE_MAX)?;
    server.settle(Duration::from_secs(20))?;

    let mut table = Table::new(
        format!(
            "Range over {} records of {VALUE_BYTES} bytes, one stream, every record checked",
            grouped(dataset.keys)
        ),
        &["scan", "records", "records/s", "MB/s", "resident before", "peak", "after"],
    );
    let mut wholes = Vec::new();
    let tenth = scan(&server, &plan, dataset, Some(dataset.keys / 10))?;
    table.row(cells("a tenth", &tenth));
    for round in 1..=suite.args.rounds {
        suite.say(&format!("range: whole, round {round}"));
        let whole = scan(&server, &plan, dataset, None)?;
        table.row(cells("the whole", &whole));
        wholes.push(whole);
    }
    let rate = median(wholes.iter().map(|scan| per_second(scan.records, scan.elapsed)));
    let is_fast = rate > RECORDS_PER_SECOND_AIM;
    table.note(format!("Median {rate:.0} records/s; aim above 1,000,000: {}.", verdict(is_fast)));
    let extra = |scan: &Scan| scan.peak.saturating_sub(scan.before);
    let most = wholes.iter().map(extra).max().unwrap_or(0);
    let is_flat = most <= extra(&tenth).saturating_add(GROWTH_BYTES_MAX);
    table.note(format!(
        "Memory taken while scanning: {} for a tenth, at most {} for the whole; aim not to grow with the range \
         (16 MiB are noise): {}.",
        mebibytes(extra(&tenth)),
        mebibytes(most),
        verdict(is_flat)
    ));
    let load_rate = loaded.streams.first().map_or(0.0, crate::load::StreamOutcome::rate);
    table.note(format!("Loaded at {load_rate:.0} PUT/s (os, closed loop)."));
    Ok(table)
}

fn stream(dataset: Dataset, records: Option<u64>) -> StreamPlan {
    StreamPlan {
        name: "range".into(),
        operation: Operation::Scan { records },
        replicas: None,
        pacing: Pacing::Closed,
        // One scan, from the first key.
        order: KeyOrder::Listed([0].into()),
        dataset,
        connections: 64,
        verify: true,
    }
}

fn scan(server: &Server, plan: &Plan, dataset: Dataset, records: Option<u64>) -> Result<Scan, LabError> {
    let one = StreamPlan { connections: 1, ..stream(dataset, records) };
    let before = memory(server.pid())?.resident_bytes;
    let watch = MemoryWatch::start(server.pid())?;
    let outcome = run_load(&Plan { streams: vec![one], threads: 1, ..plan.clone() })?;
    let peak = watch.finish()?;
    let after = memory(server.pid())?.resident_bytes;
    let stream = outcome.streams.first().ok_or_else(|| LabError::Subject("no scan".into()))?;
    let wanted = records.unwrap_or(dataset.keys);
    if stream.tally.succeeded != 1 || stream.tally.records != wanted {
        return Err(LabError::Subject(format!(
            "range: {} of {wanted} records, {} wrong, statuses {:?}, failures {:?}",
            stream.tally.records, stream.tally.wrong_bodies, stream.tally.statuses, stream.tally.failures
        )));
    }
    // From the request to the last chunk, without the wait for the run's start.
    let elapsed = Duration::from_nanos(stream.tally.latency.max());
    Ok(Scan { records: wanted, bytes: stream.tally.bytes_received, elapsed, before, peak, after })
}

fn cells(name: &str, scan: &Scan) -> [String; 7] {
    [
        name.into(),
        grouped(scan.records),
        format!("{:.0}", per_second(scan.records, scan.elapsed)),
        format!("{:.1}", float(scan.bytes) / 1e6 / scan.elapsed.as_secs_f64().max(1e-9)),
        mebibytes(scan.before),
        mebibytes(scan.peak),
        mebibytes(scan.after),
    ]
}
