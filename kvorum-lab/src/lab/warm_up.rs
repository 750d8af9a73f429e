//! The warm-up before a window: one part of the asked length, or parts until the CPU time of an operation has settled.
//!
//! A JVM compiles while it runs, so the first operations cost a multiple of later ones, and nobody can say beforehand for
//! how long. Measured CPU time says it for every program, whatever its compiler; counting the time of the compiler's
//! threads was refused, since only a JVM has them, and since it is part of that CPU time.

use std::time::{Duration, Instant};

use super::nodes::Cluster;
use super::results::WarmUp;
use crate::error::LabError;
use crate::load::{Outcome, Pacing, Plan, RunOptions, run_with};
use crate::units::float;

/// The fewest parts after which costs may be called settled.
const PARTS_MIN: usize = 3;

/// A part that costs less than this share of the cheapest before says that costs still fall.
const FALLS: f64 = 0.95;

/// Loads `cluster` for `part`, and with `bound` again and again until costs have settled or so much time has passed.
///
/// # Errors
/// Those of the load.
pub(super) fn warm(
    plan: &Plan,
    options: &RunOptions,
    cluster: &Cluster,
    (part, bound): (Duration, Option<Duration>),
) -> Result<WarmUp, LabError> {
    let mut plan = Plan { duration: part, ..plan.clone() };
    for stream in &mut plan.streams {
        if let Pacing::Staged(stages) = &stream.pacing {
            let rate_per_second = stages.first().map_or(1, |stage| stage.begin_per_second).max(1);
            stream.pacing = Pacing::Open { rate_per_second };
        }
    }
    let begun = Instant::now();
    let mut costs = Vec::new();
    loop {
        let before = cluster.cpu_time();
        let outcome = run_with(&plan, options)?;
        let used = cluster.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
        // Where costs are not known, or not asked for, one part is all.
        let cost = used.filter(|_| bound.is_some()).and_then(|used| per_operation(used, &outcome));
        costs.extend(cost);
        let is_settled = is_settled(&costs);
        let is_over = bound.is_none_or(|bound| begun.elapsed() + part > bound);
        if is_settled || is_over || cost.is_none() {
            return Ok(WarmUp {
                seconds: begun.elapsed().as_secs_f64(),
                is_settled: cost.is_some().then_some(is_settled),
                cpu_micros_per_operation: costs,
            });
        }
    }
}

/// CPU time by operations, in microseconds; `None` without any operation.
fn per_operation(used: Duration, outcome: &Outcome) -> Option<f64> {
    let operations: u64 = outcome.streams.iter().map(|stream| stream.tally.succeeded).sum();
    (operations > 0).then(|| used.as_secs_f64() * 1e6 / float(operations))
}

/// Whether the last two parts were not cheaper than those before: a single one may be noise.
fn is_settled(costs: &[f64]) -> bool {
    let Some(known) = costs.len().checked_sub(2).filter(|_| costs.len() >= PARTS_MIN) else { return false };
    let (before, last) = costs.split_at(known);
    let cheapest = before.iter().copied().fold(f64::INFINITY, f64::min);
    last.iter().all(|&cost| cost >= cheapest * FALLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: costs have settled when they fall no more; noise upwards does not prolong the warm-up. Method: a table.
    #[test]
    fn falling_costs_are_not_settled() {
        let check = |costs: &[f64], expect: bool| assert_eq!(is_settled(costs), expect, "{costs:?}");
        check(&[], false);
        check(&[50.0, 50.0], false);
        check(&[50.0, 50.0, 49.0], true);
        check(&[900.0, 400.0, 200.0], false);
        check(&[900.0, 400.0, 200.0, 190.0], false);
        check(&[900.0, 400.0, 200.0, 195.0, 197.0], true);
        check(&[200.0, 260.0, 198.0], true);
        check(&[200.0, 260.0, 150.0], false);
    }
}
