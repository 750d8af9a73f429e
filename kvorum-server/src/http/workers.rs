//! `/admin/workers`: the node's background workers, as a table for people or JSON for programs.

use crate::background::WorkerStatus;
use std::fmt::Write as _;
use std::time::Duration;

/// The workers: one per line, or one JSON object.
pub(super) fn render(workers: &[WorkerStatus], json: bool) -> String {
    if json {
        let workers: Vec<_> = workers.iter().map(json_of).collect();
        return format!("{}\n", serde_json::json!({"workers": workers}));
    }
    let mut text = String::new();
    for worker in workers {
        let WorkerStatus { name, state, done, rate, unit, backlog, purpose, .. } = worker;
        let _ = write!(text, "{name} {state} done {done} {unit} rate {rate:.1} backlog {backlog}");
        if let Some(left) = worker.paused_for {
            let _ = write!(text, " paused-for {}s", seconds(left));
        }
        if let Some(ago) = worker.begun_ago {
            let _ = write!(text, " began {}s ago", seconds(ago));
        }
        let detail = if worker.detail.is_empty() { purpose } else { &worker.detail };
        let _ = writeln!(text, " ({detail})");
    }
    text
}

fn json_of(worker: &WorkerStatus) -> serde_json::Value {
    serde_json::json!({
        "name": worker.name,
        "purpose": worker.purpose,
        "state": worker.state,
        "detail": (!worker.detail.is_empty()).then_some(&worker.detail),
        "can_pause": worker.can_pause,
        "paused_for_seconds": worker.paused_for.map(seconds),
        "began_seconds_ago": worker.begun_ago.map(seconds),
        "unit": worker.unit,
        "done": worker.done,
        "rate": (worker.rate * 10.0).round() / 10.0,
        "backlog": worker.backlog,
    })
}

fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}
