//! Outcomes as text in wrk2's style, and as JSON.
//!
//! The text marks clearly what a reader must not overlook: a rate that was not kept, latencies of a closed
//! loop, wrong answers. A distribution holds only successful operations; the number of missing ones is shown
//! beside it.

use std::fmt::{self, Write};
use std::io;

use serde_json::{Value, json};

use crate::fdatasync::FdatasyncOutcome;
use crate::hdr_log::percentiles;
use crate::histogram::{Latencies, PERCENTILES};
use crate::load::tally::WINDOW;
use crate::load::{Failure, Operation, Outcome, Pacing, Plan, RunOptions, StreamOutcome, Tally};
use crate::units::{float, grouped, latency, per_second, size};

/// The report of one run.
#[derive(Debug)]
pub struct Report<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// The options of the run.
    pub options: &'a RunOptions,
    /// The results of the run.
    pub outcome: &'a Outcome,
    /// The bare fdatasync loop of the same minutes.
    pub fdatasync: Option<&'a FdatasyncOutcome>,
    /// Which distributions to print beside their summaries.
    pub distributions: Distributions,
}

/// Which distributions a report prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distributions {
    /// Latencies from the moment operations were due.
    pub corrected: bool,
    /// Latencies from the moment operations were sent.
    pub uncorrected: bool,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: Vec<String> =
            self.plan.targets.iter().map(|target| format!("http://{target}")).collect();
        let connections: usize = self.plan.streams.iter().map(|stream| stream.connections).sum();
        writeln!(f, "Running {:?} test @ {}", self.plan.duration, targets.join(" "))?;
        writeln!(f, "  {} threads and {connections} connections", self.plan.threads)?;
        if !self.options.warm_up.is_zero() {
            writeln!(f, "  after a warm-up of {:?} that no figure includes", self.options.warm_up)?;
        }
        if let Some(measured) = self.outcome.interrupted {
            let (seconds, planned) = (measured.as_secs_f64(), self.plan.duration);
            writeln!(f, "  !! INTERRUPTED after {seconds:.2}s of {planned:?}: a partial report")?;
        }
        for stream in &self.outcome.streams {
            writeln!(f)?;
            f.write_str(&stream_text(stream, self.options, self.distributions))?;
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
            "warm_up_seconds": self.options.warm_up.as_secs_f64(),
            "key_bytes": self.options.key_bytes.map(|sizes| sizes.to_string()),
            "value_bytes": self.options.value_bytes.map(|sizes| sizes.to_string()),
            "mix": self.options.mix.map(|mix| mix.to_string()),
            "steal_cores": self.outcome.steal_cores,
            "interrupted_after_seconds": self.outcome.interrupted.map(|measured| measured.as_secs_f64()),
            "streams": streams,
            "fdatasync": self.fdatasync.map(|probe| latencies_json(&probe.latency)),
        })
    }

    /// Warnings that a reader must not overlook: one line each, none after a good run.
    pub fn complaints(&self) -> String {
        self.outcome.streams.iter().map(complaints).collect()
    }
}

/// One stream, as in wrk2.
fn stream_text(stream: &StreamOutcome, options: &RunOptions, distributions: Distributions) -> String {
    let mut out = String::new();
    // Writing into a `String` cannot fail.
    let _ = write_stream(&mut out, stream, options, distributions);
    if stream.plan.pacing == Pacing::Closed {
        out.push_str("  Closed loop: these latencies are not comparable with those of a constant rate.\n");
    }
    out.push_str(&complaints(stream));
    out
}

fn complaints(stream: &StreamOutcome) -> String {
    let mut out = String::new();
    let wanted = stream.plan.pacing.rate_per_second().unwrap_or(0.0);
    if stream.is_saturated() && stream.was_offered() {
        let _ = writeln!(
            out,
            "  !! {} OPERATIONS FAILED: {:.2}/s of {wanted:.2}/s succeeded; the latencies are theirs alone.",
            grouped(stream.failed()),
            stream.rate(),
        );
    } else if stream.is_saturated() {
        let _ = writeln!(
            out,
            "  !! COULD NOT KEEP THE RATE: {:.2}/s of {wanted:.2}/s was kept, {} due operations were never sent.\n  \
             !! The latencies are those of an overloaded system, not of the node at this rate.",
            stream.rate(),
            grouped(stream.tally.unsent),
        );
    } else if stream.failed() > stream.tally.wrong_bodies {
        let failed = grouped(stream.failed());
        let _ = writeln!(out, "  !! {failed} OPERATIONS FAILED: the latencies are those of the others.");
    }
    let refused = stream.tally.failures_of(Failure::Connect);
    if refused > 0 && stream.tally.last_answer.is_none() {
        let _ = writeln!(out, "  !! NO CONNECTION: {} attempts failed, no node answered.", grouped(refused));
    }
    if let Some(&missing) = stream.tally.statuses.get(&404) {
        let missing = grouped(missing);
        let _ = writeln!(out, "  !! {missing} KEYS NOT FOUND (404): --prefill stores them before the run.");
    }
    match stream.driver_late_from() {
        Some(from) if stream.is_driver_late() => {
            let _ = writeln!(
                out,
                "  !! THE DRIVER WOKE LATE: from {} on more than half of the latency is its own or the machine's, not the \
                 node's.",
                named(from),
            );
        }
        Some(_) | None => {}
    }
    if stream.tally.wrong_bodies > 0 {
        let _ = writeln!(out, "  !! WRONG BODIES: {}", grouped(stream.tally.wrong_bodies));
    }
    out
}

fn write_stream(
    out: &mut String,
    stream: &StreamOutcome,
    options: &RunOptions,
    distributions: Distributions,
) -> fmt::Result {
    let (tally, plan) = (&stream.tally, &stream.plan);
    let replicas = plan.replicas.map_or_else(String::new, |replicas| format!(", replicas {replicas}"));
    writeln!(out, "{}: {}, {} connections{replicas}", plan.name, pace(&plan.pacing), plan.connections)?;
    out.push_str(&thread_stats(tally));
    let is_overloaded = stream.is_saturated() && !stream.was_offered();
    let caution = if is_overloaded { "OVERLOADED: not a latency result" } else { "Recorded Latency" };
    if distributions.corrected {
        out.push_str(&spectrum(&tally.latency, caution));
    }
    if distributions.uncorrected {
        let title = "Uncorrected Latency (measured without taking delayed starts into account)";
        out.push_str(&spectrum(&tally.uncorrected, title));
    }
    for (kind, latencies) in tally.by_kind.iter().filter(|_| tally.by_kind.len() > 1) {
        writeln!(
            out,
            "  {kind}: {} requests, avg {}, p50 {}, p99 {}, max {}",
            latencies.count(),
            latency_of(latencies.mean()),
            latency(latencies.percentile(50.0)),
            latency(latencies.percentile(99.0)),
            latency(latencies.max()),
        )?;
    }
    let elapsed = stream.elapsed;
    writeln!(
        out,
        "  {} requests in {:.2}s, {} read, {} written",
        tally.succeeded,
        elapsed.as_secs_f64(),
        size(float(tally.bytes_received)),
        size(float(tally.bytes_sent)),
    )?;
    if !tally.failures.is_empty() {
        let kinds: Vec<String> =
            Failure::ALL.iter().map(|&kind| format!("{kind} {}", tally.failures_of(kind))).collect();
        writeln!(out, "  Socket errors: {}", kinds.join(", "))?;
    }
    for ((kind, number), count) in &tally.causes {
        writeln!(out, "    {kind}: {} {}", grouped(*count), system_error(*number))?;
    }
    if tally.unexpected() > 0 {
        let kinds: Vec<String> =
            tally.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        writeln!(out, "  Non-2xx or 3xx responses: {} ({})", tally.unexpected(), kinds.join(", "))?;
        for (status, count) in &tally.statuses {
            writeln!(out, "    {status} {}: {}", reason(*status), grouped(*count))?;
        }
    }
    if plan.verify {
        out.push_str(&verified(stream));
    }
    if tally.cut > 0 {
        writeln!(out, "  Cut off at the end of the run: {}", tally.cut)?;
    }
    if tally.driver_lag.count() > 0 {
        let lag = |percentile| latency(tally.driver_lag.percentile(percentile));
        writeln!(
            out,
            "  Sent over 1ms late: {}; the driver itself woke late by p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            grouped(tally.late),
            lag(50.0),
            lag(90.0),
            lag(99.0),
            lag(99.9),
            latency(tally.driver_lag.max()),
        )?;
        if let Some(from) = stream.driver_late_from().filter(|_| !stream.is_driver_late()) {
            writeln!(out, "    from {} on that is more than half of the latency", named(from))?;
        }
    }
    if matches!(plan.operation, Operation::Scan { .. }) || options.mix.is_some_and(|mix| mix.scan > 0) {
        writeln!(out, "Records/sec:  {:>10.2}", per_second(tally.records, elapsed))?;
    }
    writeln!(out, "Requests/sec: {:9.2}", stream.rate())?;
    writeln!(out, "Transfer/sec: {:>10}", size(per_second(tally.bytes_received, elapsed)))
}

/// A percentile's name: `p99.99`, and `the maximum` of the last.
fn named(percentile: f64) -> String {
    if percentile >= 100.0 { "the maximum".into() } else { format!("p{percentile}") }
}

/// The system's own words for an error.
fn system_error(number: i32) -> String {
    let text = io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The name of a status, as in the register of statuses; empty for one that has none.
fn reason(status: u16) -> &'static str {
    ::http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("")
}

/// The lines about `--verify`: how many answers were compared, of how many keys, and the first wrong ones.
fn verified(stream: &StreamOutcome) -> String {
    let verified = &stream.tally.verified;
    if verified.reads + verified.scans == 0 {
        return "  Verified: nothing: no answer to a GET or a scan came\n".into();
    }
    let mut out = String::new();
    if verified.reads > 0 {
        let (different, has_more) = verified.different_keys();
        let range = verified.range().map(|(first, last)| format!(", {first} to {last}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "  Verified: {} answers to GETs, whole bodies byte for byte with the values of --seed {}; {}{} different \
             keys{range}",
            grouped(verified.reads),
            stream.plan.dataset.seed,
            if has_more { "at least " } else { "" },
            grouped(different),
        );
    }
    if verified.scans > 0 {
        let _ = writeln!(
            out,
            "  Verified: {} scans, {} records of the whole ones: ascending keys, each with its value of --seed {}",
            grouped(verified.scans),
            grouped(stream.tally.records),
            stream.plan.dataset.seed,
        );
    }
    for wrong in &verified.wrong {
        let _ = writeln!(out, "    wrong: {wrong}");
    }
    out
}

fn pace(pacing: &Pacing) -> String {
    match pacing {
        Pacing::Open { rate_per_second } => format!("{}/s, open loop", grouped(*rate_per_second)),
        Pacing::Staged(stages) => {
            let parts: Vec<String> = stages.iter().map(ToString::to_string).collect();
            format!("{}, open loop", parts.join(","))
        }
        Pacing::Closed => "closed loop".into(),
    }
}

/// wrk's table: latencies, and requests per second of each thread in windows of a tenth of a second.
fn thread_stats(tally: &Tally) -> String {
    let mut out = format!("  Thread Stats{:>6}{:>11}{:>8}{:>12}\n", "Avg", "Stdev", "Max", "+/- Stdev");
    let latencies = &tally.latency;
    let row = |name: &str, figures: [String; 3], within: f64| {
        let [mean, deviation, max] = figures;
        let (mean, deviation, max) = (padded(&mean, 8), padded(&deviation, 10), padded(&max, 9));
        format!("    {name:<10}{mean}{deviation}{max}{:8.2}%\n", within * 100.0)
    };
    let figures = [latency_of(latencies.mean()), latency_of(latencies.deviation()), latency(latencies.max())];
    out.push_str(&row("Latency", figures, latencies.within_deviation()));
    let windows_per_second = 1.0 / WINDOW.as_secs_f64();
    let rates: Vec<f64> = tally.windows.iter().map(|&count| f64::from(count) * windows_per_second).collect();
    let count = float(rates.len().max(1) as u64);
    let mean = rates.iter().sum::<f64>() / count;
    let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count).sqrt();
    let max = rates.iter().copied().fold(0.0, f64::max);
    let within = rates.iter().filter(|&&rate| (rate - mean).abs() <= deviation).count();
    let figures = [metric(mean), metric(deviation), metric(max)];
    out.push_str(&row("Req/Sec", figures, float(within as u64) / count));
    out
}

/// Right-aligned as in wrk, where figures align and units hang: a unit of one letter has a space after it.
fn padded(text: &str, width: usize) -> String {
    let letters = text.bytes().rev().take(2).take_while(u8::is_ascii_alphabetic).count();
    let behind = 2 - letters;
    format!("{text:>0$}{1:2$}", width - behind, "", behind)
}

/// A count in wrk's style: `950.00`, `1.05k`, `2.00M`.
fn metric(value: f64) -> String {
    if value < 1e3 {
        format!("{value:.2}")
    } else if value < 1e6 {
        format!("{:.2}k", value / 1e3)
    } else {
        format!("{:.2}M", value / 1e6)
    }
}

/// wrk2's short distribution and its detailed one.
fn spectrum(latencies: &Latencies, title: &str) -> String {
    format!(
        "{}\n  Detailed Percentile spectrum:\n{}{}\n",
        distribution(latencies, &format!("HdrHistogram - {title}")),
        percentiles(latencies),
        "-".repeat(58),
    )
}

/// wrk2's short distribution.
fn distribution(latencies: &Latencies, caution: &str) -> String {
    let mut out = format!("  Latency Distribution ({caution})\n");
    for percentile in PERCENTILES {
        let _ = writeln!(out, "{percentile:7.3}%{}", padded(&latency(latencies.percentile(percentile)), 10));
    }
    out
}

fn latency_of(nanos: f64) -> String {
    latency(crate::units::nanos(std::time::Duration::from_secs_f64(nanos.max(0.0) / 1e9)))
}

fn stream_json(stream: &StreamOutcome) -> Value {
    let tally = &stream.tally;
    let rate = match &stream.plan.pacing {
        Pacing::Open { rate_per_second } => json!(rate_per_second),
        pacing @ (Pacing::Staged(_) | Pacing::Closed) => json!(pacing.rate_per_second()),
    };
    let stages = match &stream.plan.pacing {
        Pacing::Staged(stages) => json!(stages.iter().map(ToString::to_string).collect::<Vec<_>>()),
        Pacing::Open { .. } | Pacing::Closed => Value::Null,
    };
    let kinds: serde_json::Map<String, Value> =
        tally.by_kind.iter().map(|(&kind, latencies)| (kind.to_owned(), latencies_json(latencies))).collect();
    let statuses: serde_json::Map<String, Value> =
        tally.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
    let failures: serde_json::Map<String, Value> =
        tally.failures.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    let causes: Vec<Value> = tally
        .causes
        .iter()
        .map(|((kind, number), count)| {
            json!({ "kind": kind.to_string(), "error": system_error(*number), "count": count })
        })
        .collect();
    json!({
        "name": stream.plan.name,
        "open_loop_rate": rate,
        "stages": stages,
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
        "causes": causes,
        "wrong_bodies": tally.wrong_bodies,
        "verified": stream.plan.verify.then(|| {
            let (keys, has_more) = tally.verified.different_keys();
            json!({
                "reads": tally.verified.reads,
                "scans": tally.verified.scans,
                "different_keys": keys,
                "has_more_keys": has_more,
                "wrong": tally.verified.wrong,
            })
        }),
        "late": tally.late,
        "unsent": tally.unsent,
        "is_saturated": stream.is_saturated(),
        "is_driver_late": stream.is_driver_late(),
        "driver_late_from_percentile": stream.driver_late_from(),
        "latency": latencies_json(&tally.latency),
        "uncorrected": latencies_json(&tally.uncorrected),
        "by_kind": kinds,
        "driver_lag": latencies_json(&tally.driver_lag),
    })
}

fn latencies_json(latencies: &Latencies) -> Value {
    let points: serde_json::Map<String, Value> = PERCENTILES
        .iter()
        .map(|&percentile| (format!("p{percentile}"), json!(latencies.percentile(percentile))))
        .collect();
    json!({
        "count": latencies.count(),
        "mean": latencies.mean(),
        "deviation": latencies.deviation(),
        "max": latencies.max(),
        "nanos": points,
    })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
