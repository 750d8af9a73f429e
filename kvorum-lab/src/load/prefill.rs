//! Stores every key of a dataset once, before anything is measured.

use std::sync::Arc;
use std::time::Duration;

use super::{KeyOrder, Operation, Outcome, Pacing, Plan, RunOptions, StreamPlan, run_with};
use crate::dataset::Dataset;
use crate::error::LabError;

/// How often keys whose PUT failed are tried again before the prefill gives up.
const ROUNDS_MAX: u32 = 5;

/// Puts every key of the first stream's dataset, as fast as the node allows, over `plan`'s connections.
///
/// Keys that fail are tried again, a few rounds. Takes at most `duration_max` per round. Returns the outcome
/// of the first round, which has the representative rate.
///
/// # Errors
/// [`LabError::Subject`] if keys are still missing in the end: measuring reads would be measuring 404s.
pub fn prefill(plan: &Plan, duration_max: Duration) -> Result<Outcome, LabError> {
    prefill_with(plan, &RunOptions::default(), None, duration_max)
}

/// As [`prefill()`], with the sizes of `options`, and with only the first `keys` of the dataset if that is
/// given.
///
/// # Errors
/// The errors of [`prefill()`].
pub fn prefill_with(
    plan: &Plan,
    options: &RunOptions,
    keys: Option<u64>,
    duration_max: Duration,
) -> Result<Outcome, LabError> {
    let model = plan.streams.first().ok_or_else(|| LabError::Usage("a prefill needs a stream".into()))?;
    let connections = plan.streams.iter().map(|stream| stream.connections).max().unwrap_or(1);
    let dataset = Dataset { keys: keys.unwrap_or(model.dataset.keys), ..model.dataset };
    let sizes = RunOptions {
        key_bytes: options.key_bytes,
        value_bytes: options.value_bytes,
        stop: options.stop.clone(),
        template: options.template.clone(),
        headers: options.headers.clone(),
        ..RunOptions::default()
    };
    let mut order = KeyOrder::Sequential;
    let mut first = None;
    for _ in 0..ROUNDS_MAX {
        let stream = StreamPlan {
            name: "prefill".into(),
            operation: Operation::Put,
            pacing: Pacing::Closed,
            order: order.clone(),
            connections,
            dataset,
            ..model.clone()
        };
        let planned = stream.order.slots(dataset.keys);
        let plan = Plan { streams: vec![stream], duration: duration_max, ..plan.clone() };
        let outcome = run_with(&plan, &sizes)?;
        let is_interrupted = outcome.interrupted.is_some();
        let seen =
            outcome.streams.first().map(|stream| (stream.tally.succeeded, stream.tally.failed_keys.clone()));
        let (stored, failed) = seen.unwrap_or_default();
        let result = first.get_or_insert(outcome).clone();
        if stored == planned {
            return Ok(result);
        }
        if is_interrupted {
            return Err(LabError::Subject(format!(
                "interrupted while it prefilled: {stored} of {planned} keys"
            )));
        }
        if stored + failed.len() as u64 != planned {
            return Err(LabError::Subject(format!(
                "prefill: {stored} of {planned} keys in {duration_max:?}"
            )));
        }
        order = KeyOrder::Listed(Arc::from(failed));
    }
    Err(LabError::Subject(format!("prefill: keys still fail after {ROUNDS_MAX} rounds")))
}
