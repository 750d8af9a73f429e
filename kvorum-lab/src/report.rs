//! Outcomes as text in wrk2's style, and as JSON.
//!
//! The text says loudly what a reader must not overlook: a rate that was not kept, latencies of a closed loop,
//! answers that were not what they should be. A distribution holds successful operations only; how many are
//! missing from it stands beside it.

use std::fmt::{self, Write};

use serde_json::{Value, json};

use crate::fdatasync::FdatasyncOutcome;
use crate::histogram::{Latencies, PERCENTILES};
use crate::load::{Failure, Operation, Outcome, Pacing, Plan, StreamOutcome};
use crate::units::{float, grouped, latency, per_second, size};

/// Everything that there is to say about one run.
#[derive(Debug)]
pub struct Report<'a> {
    /// What was asked for.
    pub plan: &'a Plan,
    /// What came of it.
    pub outcome: &'a Outcome,
    /// The bare fdatasync loop of the same minutes.
    pub fdatasync: Option<&'a FdatasyncOutcome>,
    /// Whether to print the distributions and not only their summaries.
    pub distributions: bool,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: Vec<String> =
            self.plan.targets.iter().map(|target| format!("http://{target}")).collect();
        let connections: usize = self.plan.streams.iter().map(|stream| stream.connections).sum();
        writeln!(f, "Running {:?} test @ {}", self.plan.duration, targets.join(" "))?;
        writeln!(f, "  {} threads and {connections} connections", self.plan.threads)?;
        for stream in &self.outcome.streams {
            writeln!(f)?;
            f.write_str(&stream_text(stream, self.distributions))?;
        }
        if let Some(probe) = self.fdatasync {
            writeln!(
                f,
                "\nBare fdatasync ({} appends, {} late)",
                grouped(probe.latency.count()),
                probe.late
            )?;
            f.write_str(&distribution(&probe.latency, "HdrHistogram"))?;
        }
        writeln!(f, "\nSteal: {:.3} cores", self.outcome.steal_cores)
    }
}

impl Report<'_> {
    /// The same as one JSON object; latencies in nanoseconds.
    pub fn json(&self) -> Value {
        let streams: Vec<Value> = self.outcome.streams.iter().map(stream_json).collect();
        json!({
            "targets": self.plan.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "threads": self.plan.threads,
            "duration_seconds": self.plan.duration.as_secs_f64(),
            "steal_cores": self.outcome.steal_cores,
            "streams": streams,
            "fdatasync": self.fdatasync.map(|probe| latencies_json(&probe.latency)),
        })
    }
}

/// One stream, as in wrk2.
fn stream_text(stream: &StreamOutcome, distributions: bool) -> String {
    let tally = &stream.tally;
    let mut out = String::new();
    // Writing into a `String` cannot fail.
    let _ = write_stream(&mut out, stream, distributions);
    if stream.plan.pacing == Pacing::Closed {
        out.push_str("  Closed loop: these latencies are not comparable with those of a constant rate.\n");
    }
    if stream.is_saturated() {
        let _ = writeln!(
            out,
            "  !! COULD NOT KEEP THE RATE: {:.2}/s was kept, {} due operations were never sent.\n  \
             !! The latencies above are those of an overloaded system, not of the node at this rate.",
            stream.rate(),
            grouped(tally.unsent),
        );
    }
    if stream.is_driver_late() {
        out.push_str(
            "  !! THE DRIVER WOKE LATE: much of the slowest latencies is the machine's or its own, not the node's.\n",
        );
    }
    out
}

fn write_stream(out: &mut String, stream: &StreamOutcome, distributions: bool) -> fmt::Result {
    let (tally, plan) = (&stream.tally, &stream.plan);
    let pace = match plan.pacing {
        Pacing::Open { rate_per_second } => format!("{}/s, open loop", grouped(rate_per_second)),
        Pacing::Closed => "closed loop".into(),
    };
    let replicas = plan.replicas.map_or_else(String::new, |replicas| format!(", replicas {replicas}"));
    writeln!(out, "{}: {pace}, {} connections{replicas}", plan.name, plan.connections)?;
    writeln!(
        out,
        "  Latency: avg {}, stdev {}, max {}",
        latency_of(tally.latency.mean()),
        latency_of(tally.latency.deviation()),
        latency(tally.latency.max()),
    )?;
    if distributions {
        let caution = if stream.is_saturated() { "OVERLOADED: not a latency result" } else { "HdrHistogram" };
        out.push_str(&distribution(&tally.latency, caution));
    }
    let (requests, elapsed) = (grouped(tally.succeeded), stream.elapsed);
    writeln!(
        out,
        "  {requests} requests in {:.2}s, {} read, {} written",
        elapsed.as_secs_f64(),
        size(float(tally.bytes_received)),
        size(float(tally.bytes_sent)),
    )?;
    if tally.unexpected() > 0 {
        let kinds: Vec<String> =
            tally.statuses.iter().map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
        writeln!(out, "  Non-2xx responses: {} ({})", grouped(tally.unexpected()), kinds.join(", "))?;
    }
    if !tally.failures.is_empty() {
        let kinds: Vec<String> =
            Failure::ALL.iter().map(|&kind| format!("{kind} {}", tally.failures_of(kind))).collect();
        writeln!(out, "  Socket errors: {}", kinds.join(", "))?;
    }
    if tally.wrong_bodies > 0 {
        writeln!(out, "  !! WRONG BODIES: {}", grouped(tally.wrong_bodies))?;
    }
    if tally.cut > 0 {
        writeln!(out, "  Cut off at the end of the run: {}", tally.cut)?;
    }
    if tally.driver_lag.count() > 0 {
        writeln!(
            out,
            "  Sent over 1ms late: {}; the driver itself woke late by p99.9 {}, max {}",
            grouped(tally.late),
            latency(tally.driver_lag.percentile(99.9)),
            latency(tally.driver_lag.max()),
        )?;
    }
    if matches!(plan.operation, Operation::Scan { .. }) {
        writeln!(out, "Records/sec:  {:>10.2}", per_second(tally.records, elapsed))?;
    }
    writeln!(out, "Requests/sec: {:>10.2}", stream.rate())?;
    let bytes_per_second = per_second(tally.bytes_received + tally.bytes_sent, elapsed);
    writeln!(out, "Transfer/sec: {:>10}", size(bytes_per_second))
}

/// wrk2's short distribution.
fn distribution(latencies: &Latencies, caution: &str) -> String {
    let mut out = format!("  Latency Distribution ({caution})\n");
    for percentile in PERCENTILES {
        let _ = writeln!(out, "  {percentile:7.3}% {:>10}", latency(latencies.percentile(percentile)));
    }
    out
}

fn latency_of(nanos: f64) -> String {
    latency(crate::units::nanos(std::time::Duration::from_secs_f64(nanos.max(0.0) / 1e9)))
}

fn stream_json(stream: &StreamOutcome) -> Value {
    let tally = &stream.tally;
    let rate = match stream.plan.pacing {
        Pacing::Open { rate_per_second } => Some(rate_per_second),
        Pacing::Closed => None,
    };
    let statuses: serde_json::Map<String, Value> =
        tally.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
    let failures: serde_json::Map<String, Value> =
        tally.failures.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    json!({
        "name": stream.plan.name,
        "open_loop_rate": rate,
        "connections": stream.plan.connections,
        "replicas": stream.plan.replicas.map(|replicas| replicas.to_string()),
        "keys": stream.plan.dataset.keys,
        "value_bytes": stream.plan.dataset.value_bytes,
        "elapsed_seconds": stream.elapsed.as_secs_f64(),
        "succeeded": tally.succeeded,
        "requests_per_second": stream.rate(),
        "records": tally.records,
        "bytes_sent": tally.bytes_sent,
        "bytes_received": tally.bytes_received,
        "statuses": statuses,
        "failures": failures,
        "wrong_bodies": tally.wrong_bodies,
        "late": tally.late,
        "unsent": tally.unsent,
        "is_saturated": stream.is_saturated(),
        "latency": latencies_json(&tally.latency),
        "driver_lag": latencies_json(&tally.driver_lag),
    })
}

fn latencies_json(latencies: &Latencies) -> Value {
    let points: serde_json::Map<String, Value> = PERCENTILES
        .iter()
        .map(|&percentile| (format!("p{percentile}"), json!(latencies.percentile(percentile))))
        .collect();
    json!({ "count": latencies.count(), "mean": latencies.mean(), "max": latencies.max(), "nanos": points })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
