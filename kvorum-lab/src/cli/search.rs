//! `--find-max`: the highest rate with a bounded p99, run by run.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::json;

use super::args::{BenchArgs, Rate};
use super::{Series, is_good, watched};
use crate::error::LabError;
use crate::find_max::highest;
use crate::load::{Outcome, Pacing, Plan, RunOptions};
use crate::units::{grouped, latency, nanos};

/// The default first rate of the search for the highest rate.
const FIRST_RATE: u64 = 1_000;

/// Why a search ended before its result.
enum Ended {
    Failed(LabError),
    /// In the middle of this run.
    Interrupted(Box<(Plan, Outcome)>),
}

/// Searches for the highest rate whose p99 is not above `bound`.
pub(super) fn search(
    args: &BenchArgs,
    plan: &Plan,
    options: &RunOptions,
    bound: Duration,
) -> Result<Series, LabError> {
    let first = match &args.rate {
        Some(Rate::Constant(rate)) => *rate,
        None => FIRST_RATE,
        Some(Rate::Stages(_)) => return Err(LabError::Usage("--find-max takes no stages".into())),
    };
    let mut text = format!("Highest rate with p99 up to {} and no failure\n", latency(nanos(bound)));
    let (mut trials, mut best) = (Vec::new(), None);
    let found = highest(first, |rate_per_second| {
        let mut plan = plan.clone();
        for stream in &mut plan.streams {
            stream.pacing = Pacing::Open { rate_per_second };
        }
        let outcome = watched(args, &plan, options).map_err(Ended::Failed)?;
        if outcome.interrupted.is_some() {
            return Err(Ended::Interrupted(Box::new((plan, outcome))));
        }
        let stream = outcome.streams.first();
        let stream = stream.ok_or_else(|| Ended::Failed(LabError::Usage("no stream".into())))?;
        let p99 = stream.tally.latency.percentile(99.0);
        let is_kept = is_good(&outcome);
        let is_accepted = is_kept && p99 <= nanos(bound);
        let why = match (is_accepted, is_kept, stream.is_driver_late()) {
            (true, ..) => "accepted",
            (_, false, _) => "rate not kept, or failures",
            (_, _, true) => "p99 too high, and the driver itself woke late",
            (..) => "p99 too high",
        };
        let line = format!(
            "  {:>12}/s: {:.2}/s kept, p99 {}, {} failed: {why}",
            grouped(rate_per_second),
            stream.rate(),
            latency(p99),
            grouped(stream.failed()),
        );
        if std::io::stderr().is_terminal() {
            kvorum_output::tell_line!("{line}");
        }
        // Writing into a `String` cannot fail.
        let _ = writeln!(text, "{line}");
        trials.push(json!({
            "rate": rate_per_second,
            "kept": stream.rate(),
            "p99": p99,
            "failed": stream.failed(),
            "is_accepted": is_accepted,
        }));
        if is_accepted {
            best = Some((plan, outcome));
        }
        Ok(is_accepted)
    });
    let found = match found {
        Ok(found) => found,
        Err(Ended::Failed(error)) => return Err(error),
        Err(Ended::Interrupted(run)) => {
            text.push_str("  !! INTERRUPTED before the highest rate was found; the run under way:\n\n");
            best = Some(*run);
            None
        }
    };
    match found {
        Some(rate) => drop(writeln!(text, "Highest: {}/s; its run:\n", grouped(rate))),
        None if best.is_some() => {}
        None => text.push_str("  !! NO RATE WAS ACCEPTED\n"),
    }
    let trials = json!({ "p99_max": nanos(bound), "highest": found, "trials": trials });
    Ok(Series { text, json: Some(("find_max", trials)), run: best })
}
