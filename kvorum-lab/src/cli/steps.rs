//! `--rate-steps`: a run at each of several rates, a chart of latency against rate, and its knee.

use std::fmt::Write;
use std::io::IsTerminal;

use serde_json::{Value, json};

use super::args::{BenchArgs, RateSteps};
use super::{Series, is_good, named, watched, write_file};
use crate::error::LabError;
use crate::hdr_log::percentiles;
use crate::load::{Outcome, Pacing, Plan, RunOptions};
use crate::units::{float, grouped, latency};

/// A step is beyond the knee if its p99 is more than so many times the median p99 of the steps below it.
const KNEE_FACTOR: u64 = 2;

/// The columns of the chart.
const CHART_WIDTH: usize = 40;

/// The figures of one step; latencies in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    rate: u64,
    kept: f64,
    p50: u64,
    p99: u64,
    p99_9: u64,
    max: u64,
    failed: u64,
    /// Whether the rate was kept and nothing failed.
    is_good: bool,
    is_driver_late: bool,
    is_interrupted: bool,
}

impl Step {
    fn of(rate: u64, outcome: &Outcome) -> Option<Self> {
        let stream = outcome.streams.first()?;
        let at = |percentile| stream.tally.latency.percentile(percentile);
        Some(Self {
            rate,
            kept: stream.rate(),
            p50: at(50.0),
            p99: at(99.0),
            p99_9: at(99.9),
            max: stream.tally.latency.max(),
            failed: stream.failed(),
            is_good: is_good(outcome),
            is_driver_late: stream.is_driver_late(),
            is_interrupted: outcome.interrupted.is_some(),
        })
    }

    fn json(&self) -> Value {
        json!({
            "rate": self.rate,
            "kept": self.kept,
            "failed": self.failed,
            "is_good": self.is_good,
            "is_driver_late": self.is_driver_late,
            "is_interrupted": self.is_interrupted,
            "nanos": { "p50": self.p50, "p99": self.p99, "p99.9": self.p99_9, "max": self.max },
        })
    }

    fn remark(&self) -> &'static str {
        match self {
            Self { is_interrupted: true, .. } => "  interrupted",
            Self { is_good: false, .. } => "  not kept, or failures",
            Self { is_driver_late: true, .. } => "  the driver woke late",
            _ => "",
        }
    }
}

/// Makes a run at each of `rates`, until one is interrupted. The reported run is that before the knee.
pub(super) fn steps(
    args: &BenchArgs,
    plan: &Plan,
    options: &RunOptions,
    RateSteps(rates): &RateSteps,
) -> Result<Series, LabError> {
    let (mut steps, mut runs) = (Vec::new(), Vec::new());
    for &rate_per_second in rates {
        let mut plan = plan.clone();
        for stream in &mut plan.streams {
            stream.pacing = Pacing::Open { rate_per_second };
        }
        let outcome = watched(args, &plan, options)?;
        let step = Step::of(rate_per_second, &outcome).ok_or_else(|| LabError::Usage("no stream".into()))?;
        if std::io::stderr().is_terminal() {
            let (rate, p99) = (grouped(rate_per_second), latency(step.p99));
            kvorum_output::tell_line!("  {rate}/s: {:.2}/s kept, p99 {p99}{}", step.kept, step.remark());
        }
        if let (Some(path), Some(stream)) = (&args.hgrm, outcome.streams.first()) {
            let path = named(path, &format!("{rate_per_second}-per-second"));
            write_file(&path, &percentiles(&stream.tally.latency))?;
        }
        let is_interrupted = step.is_interrupted;
        steps.push(step);
        runs.push((plan, outcome));
        if is_interrupted {
            break;
        }
    }
    let knee = knee(&steps);
    let shown = match knee {
        Some(beyond) => beyond.saturating_sub(1),
        None => steps.len().saturating_sub(1),
    };
    let rate = steps.get(shown).map_or(0, |step| step.rate);
    let text = format!("{}{}\nThe run at {}/s:\n\n", chart(&steps), sentence(&steps, knee), grouped(rate));
    let before = knee.and_then(|beyond| steps.get(beyond.checked_sub(1)?)).map(|step| step.rate);
    let beyond = knee.and_then(|beyond| steps.get(beyond)).map(|step| step.rate);
    let json = json!({
        "steps": steps.iter().map(Step::json).collect::<Vec<_>>(),
        "knee": knee.map(|_| json!({ "last_rate_before": before, "first_rate_beyond": beyond })),
    });
    Ok(Series { text, json: Some(("rate_steps", json)), run: runs.into_iter().nth(shown) })
}

/// The first step beyond the knee: it and all above it were not kept, or have a p99 of more than [`KNEE_FACTOR`]
/// times the median p99 of the steps below it. One slow step between two good ones is none.
fn knee(steps: &[Step]) -> Option<usize> {
    let is_beyond = |at: usize, from: usize| {
        let step = steps.get(at)?;
        let mut below: Vec<u64> = steps.get(..from)?.iter().map(|step| step.p99).collect();
        below.sort_unstable();
        let usual = below.get(below.len() / 2).copied();
        let is_slow = usual.is_some_and(|usual| step.p99 > KNEE_FACTOR.saturating_mul(usual));
        Some(is_slow || !(step.is_good || step.is_interrupted))
    };
    let is_knee = |&from: &usize| (from..steps.len()).all(|at| is_beyond(at, from) == Some(true));
    (0..steps.len()).find(is_knee)
}

fn sentence(steps: &[Step], knee: Option<usize>) -> String {
    let Some(first) = steps.first() else { return String::new() };
    let Some(beyond) = knee.and_then(|at| steps.get(at)) else {
        let last = steps.last().unwrap_or(first);
        return format!(
            "No knee up to {}/s: p99 {} at {}/s, {} at {}/s\n",
            grouped(last.rate),
            latency(first.p99),
            grouped(first.rate),
            latency(last.p99),
            grouped(last.rate),
        );
    };
    let Some(before) = knee.and_then(|at| steps.get(at.checked_sub(1)?)) else {
        return format!("!! Already {}/s is beyond the knee: take lower rates\n", grouped(beyond.rate));
    };
    let why = if beyond.is_good { "" } else { ", and the rate is not kept or operations fail" };
    format!(
        "Knee between {}/s and {}/s: p99 goes from {} to {} (x{:.1}){why}\n",
        grouped(before.rate),
        grouped(beyond.rate),
        latency(before.p99),
        latency(beyond.p99),
        float(beyond.p99) / float(before.p99.max(1)),
    )
}

/// A row for each step: its figures, and a line from p50 to p99 and on to the maximum on a logarithmic axis.
fn chart(steps: &[Step]) -> String {
    let low = steps.iter().map(|step| step.p50).filter(|&p50| p50 > 0).min().unwrap_or(1);
    let high = steps.iter().map(|step| step.max).max().unwrap_or(1).max(low + 1);
    let mut out = format!(
        "Latency against rate: o p50, # p99, > max, from {} to {}, logarithmic\n{:>12}{:>13}{:>9}{:>9}{:>9}{:>9}{:>10}\n",
        latency(low),
        latency(high),
        "rate/s",
        "kept/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "failed",
    );
    for step in steps {
        // Writing into a `String` cannot fail.
        let _ = writeln!(
            out,
            "{:>12}{:>13.2}{:>9}{:>9}{:>9}{:>9}{:>10} |{}|{}",
            grouped(step.rate),
            step.kept,
            latency(step.p50),
            latency(step.p99),
            latency(step.p99_9),
            latency(step.max),
            grouped(step.failed),
            line(step, low, high),
            step.remark(),
        );
    }
    out
}

/// A step's line in the chart, whose ends are `low` and `high`.
fn line(step: &Step, low: u64, high: u64) -> String {
    let mut row = [' '; CHART_WIDTH];
    let place = |nanos: u64| column(nanos, low, high);
    let (p50, p99, max) = (place(step.p50), place(step.p99), place(step.max));
    for (at, cell) in row.iter_mut().enumerate() {
        *cell = match at {
            at if at == p99 => '#',
            at if at == p50 => 'o',
            at if at == max => '>',
            at if p50 < at && at < p99 => '=',
            at if p99 < at && at < max => '-',
            _ => ' ',
        };
    }
    row.iter().collect::<String>().trim_end().to_owned()
        + &" ".repeat(CHART_WIDTH - 1 - max.min(CHART_WIDTH - 1))
}

/// The column of a latency.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to the width")]
fn column(nanos: u64, low: u64, high: u64) -> usize {
    let share = (float(nanos.max(low)) / float(low)).ln() / (float(high) / float(low)).ln();
    let width = float(CHART_WIDTH as u64 - 1);
    (share.clamp(0.0, 1.0) * width).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rate: u64, p99_millis: u64, is_good: bool) -> Step {
        let nanos = p99_millis * 1_000_000;
        Step {
            rate,
            kept: float(rate),
            p50: nanos / 4,
            p99: nanos,
            p99_9: nanos * 2,
            max: nanos * 3,
            failed: 0,
            is_good,
            is_driver_late: false,
            is_interrupted: false,
        }
    }

    /// Goal: rates are read in both ways, and other texts refused. Method: a table.
    #[test]
    fn rates_are_read() {
        let read = |text: &str| text.parse::<RateSteps>().map(|RateSteps(rates)| rates);
        assert_eq!(read("100,2k,5k"), Ok(vec![100, 2_000, 5_000]));
        assert_eq!(read("1000..4000/4"), Ok(vec![1_000, 2_000, 3_000, 4_000]));
        assert_eq!(read("1..10/3"), Ok(vec![1, 5, 10]));
        for bad in ["", "100", "5,4", "5,5", "1..5", "1..5/1", "1..3/9", "5..1/3", "0,1", "a,b", "1..9/1000"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    /// Goal: the knee is where latency rises for good. Method: series with and without one, with one slow step among
    /// good ones, and with a first rate that is too high.
    #[test]
    fn the_knee_is_found() {
        let of = |steps: &[(u64, bool)]| {
            let steps: Vec<Step> =
                (1..).zip(steps).map(|(rate, &(p99, is_good))| step(rate * 1000, p99, is_good)).collect();
            knee(&steps)
        };
        assert_eq!(of(&[(2, true), (2, true), (3, true), (9, true), (80, false)]), Some(3));
        assert_eq!(of(&[(2, true), (3, true), (2, true), (4, true)]), None);
        assert_eq!(of(&[(2, true), (90, true), (2, true), (2, true)]), None);
        assert_eq!(of(&[(2, true), (2, false)]), Some(1));
        assert_eq!(of(&[(900, false), (900, false)]), Some(0));
        assert_eq!(of(&[]), None);
    }

    /// Goal: the chart has a row for each rate on one scale, and the sentence the figures. Method: the whole text.
    #[test]
    fn the_chart_is_drawn() {
        let steps = [step(1000, 2, true), step(2000, 2, true), step(4000, 40, false)];
        let expect = "Latency against rate: o p50, # p99, > max, from 500.00us to 120.00ms, logarithmic\n      \
                      rate/s       kept/s      p50      p99    p99.9      max    failed\n       \
                      1,000      1000.00 500.00us   2.00ms   4.00ms   6.00ms         0 |o=========#------->                     |\n       \
                      2,000      2000.00 500.00us   2.00ms   4.00ms   6.00ms         0 |o=========#------->                     |\n       \
                      4,000      4000.00  10.00ms  40.00ms  80.00ms 120.00ms         0 |                     o=========#------->|  not kept, or failures\n";
        assert_eq!(chart(&steps), expect);
        let expect = "Knee between 2,000/s and 4,000/s: p99 goes from 2.00ms to 40.00ms (x20.0), and the rate is not kept \
                      or operations fail\n";
        assert_eq!(sentence(&steps, knee(&steps)), expect);
        let expect = "No knee up to 2,000/s: p99 2.00ms at 1,000/s, 2.00ms at 2,000/s\n";
        assert_eq!(sentence(&steps[..2], None), expect);
        assert!(sentence(&steps[2..], knee(&steps[2..])).contains("Already 4,000/s is beyond"));
    }
}
