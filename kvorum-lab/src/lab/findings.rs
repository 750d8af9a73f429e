//! Every comparison of a report, judged once: tables mark and sentences say the same.
//!
//! The [`Figure::JUDGED`] figures of every pair of configurations under every load are one family; which of them are
//! named is decided over all of them ([`discoveries`]). Configurations between which nothing differs are the control:
//! their spread is the least that any comparison is granted, and how often the method would have named a difference
//! between *them* stands in the report.
//!
//! A window in which the hypervisor stole CPU, or in which the driver was late, is left out together with the other
//! window of its round. Where most rounds are of that kind all are kept, and the finding says so.

use std::collections::BTreeMap;

use super::figures::{Cell, Figure};
use super::results::{Results, Run};
use super::statistics::{Change, LEVEL, ROUNDS_FIRM, Values, change, deviation_of_equals, discoveries};
use crate::units::float;

/// The share of the machine's cores that the hypervisor may take from a window that counts.
const STEAL_SHARE_MAX: f64 = 0.02;

/// The share of a latency that may be the driver's own lateness at the same percentile, and the lateness that always may be: what
/// a timer and a wake-up cost on any machine.
const LATE_SHARE_MAX: f64 = 0.5;
const LATE_NANOS_MIN: u64 = 200_000;

/// The standard deviation of a log ratio by the resolution of histograms (three digits) and of memory (pages).
const RESOLUTION: f64 = 0.0005;

/// The kernel's step of CPU time, in seconds: 100 ticks a second, since Linux counts for users in these.
const CPU_TICK_SECONDS: f64 = 0.01;

/// Why a window says little about the nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Disturbance {
    /// The hypervisor took this many cores.
    Steal(f64),
    /// The driver woke so many nanoseconds late at the figure's percentile.
    Late(u64),
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The load.
    pub load: String,
    /// The configurations.
    pub pair: (String, String),
    /// The figure.
    pub figure: Figure,
    /// Its result.
    pub state: State,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Not measured on both.
    Missing,
    /// One of the two did not keep its rate.
    Overloaded,
    /// Fewer than two rounds in common: the values, if there is one.
    Once(f64, f64),
    /// Judged.
    Judged(Judged),
}

/// A comparison of at least two rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The change.
    pub change: Change,
    /// Whether it is more than chance, among all comparisons of the report.
    pub is_named: bool,
    /// Rounds that do not count.
    pub left_out: Vec<(u32, Disturbance)>,
    /// Rounds that count although they were disturbed: most were.
    pub disturbed: Vec<(u32, Disturbance)>,
}

impl Judged {
    /// Whether there are so few rounds that it only indicates something.
    pub fn is_indicative(&self) -> bool {
        self.change.rounds < ROUNDS_FIRM
    }
}

/// How often the method errs here: what it says of equal configurations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Control {
    /// The comparisons of equals.
    pub findings: Vec<Finding>,
    /// How many of them were judged.
    pub judged: usize,
    /// How many would be chance alone at 5 %, each looked at by itself.
    pub by_itself: usize,
    /// How many would have been named in this report.
    pub named: usize,
}

/// All comparisons of a report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Findings {
    all: Vec<Finding>,
    /// The comparisons of equals.
    pub control: Control,
}

impl Findings {
    /// Judges everything that `results` compare.
    pub fn of(results: &Results) -> Self {
        let (mut control, mut all) = (Vec::new(), Vec::new());
        let mut floors: BTreeMap<(String, Figure), f64> = BTreeMap::new();
        for load in results.load_names() {
            let equals = results.equals_under(&load);
            for pair in &equals {
                for figure in Figure::JUDGED {
                    let rounds = rounds_of(results, &load, pair, figure).unwrap_or_default();
                    let clean: Vec<(f64, f64)> = kept(rounds).0.iter().map(Round::values).collect();
                    let seen = deviation_of_equals(&clean).unwrap_or(0.0);
                    let floor = floors.entry((load.clone(), figure)).or_insert(0.0);
                    *floor = floor.max(seen);
                    control.push((load.clone(), pair.clone(), figure));
                }
            }
            let is_equal = |pair: &(String, String)| {
                equals
                    .iter()
                    .any(|(one, two)| (one, two) == (&pair.0, &pair.1) || (two, one) == (&pair.0, &pair.1))
            };
            for pair in results.pairs.iter().filter(|pair| !is_equal(pair)) {
                all.extend(Figure::JUDGED.map(|figure| (load.clone(), pair.clone(), figure)));
            }
        }
        let judge = |(load, pair, figure): (String, (String, String), Figure)| {
            let floor = floors.get(&(load.clone(), figure)).copied().unwrap_or(0.0);
            let state = judge(results, &load, &pair, figure, floor);
            Finding { load, pair, figure, state }
        };
        let mut all: Vec<Finding> = all.into_iter().map(judge).collect();
        let mut control: Vec<Finding> = control.into_iter().map(judge).collect();
        let p_values = |findings: &[Finding]| -> Vec<f64> {
            findings.iter().filter_map(Finding::judged).map(|judged| judged.change.p_value).collect()
        };
        let bound = discoveries(&p_values(&all));
        for finding in all.iter_mut().chain(&mut control) {
            if let State::Judged(judged) = &mut finding.state {
                judged.is_named = judged.change.p_value <= bound;
            }
        }
        let of_equals = p_values(&control);
        let up_to = |bound: f64| of_equals.iter().filter(|p_value| **p_value <= bound).count();
        let (by_itself, named) = (up_to(LEVEL), up_to(bound));
        Self { all, control: Control { judged: of_equals.len(), findings: control, by_itself, named } }
    }

    /// The comparisons of one pair under one load, in the figures' order; none for equal configurations.
    pub fn pair(&self, load: &str, before: &str, after: &str) -> Vec<&Finding> {
        let is_it = |one: &&Finding| one.load == load && one.pair.0 == before && one.pair.1 == after;
        self.all.iter().filter(is_it).collect()
    }

    /// The comparison of one figure.
    pub fn one(&self, load: &str, pair: &(String, String), figure: Figure) -> Option<&Finding> {
        self.all.iter().find(|one| one.load == load && one.pair == *pair && one.figure == figure)
    }

    /// How many comparisons were judged, and how many are named.
    pub fn counts(&self) -> (usize, usize) {
        let judged: Vec<&Judged> = self.all.iter().filter_map(Finding::judged).collect();
        (judged.len(), judged.iter().filter(|judged| judged.is_named).count())
    }
}

impl Finding {
    /// The judgement, if there is one.
    pub fn judged(&self) -> Option<&Judged> {
        match &self.state {
            State::Judged(judged) => Some(judged),
            State::Missing | State::Overloaded | State::Once(..) => None,
        }
    }
}

/// The two windows of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Round {
    number: u32,
    before: f64,
    after: f64,
    disturbance: Option<Disturbance>,
}

impl Round {
    const fn values(&self) -> (f64, f64) {
        (self.before, self.after)
    }
}

/// The rounds that both have; `None` if a window has no value.
fn rounds_of(results: &Results, load: &str, pair: &(String, String), figure: Figure) -> Option<Vec<Round>> {
    let (before, after) = (results.rounds(&pair.0, load), results.rounds(&pair.1, load));
    let both = before.iter().filter_map(|(number, run)| Some((*number, *run, *after.get(number)?)));
    both.map(|(number, before, after)| {
        let disturbance = disturbance(results, before, figure).or(disturbance(results, after, figure));
        Some(Round { number, before: figure.of(before)?, after: figure.of(after)?, disturbance })
    })
    .collect()
}

/// What made the window of `run` a poor witness of `figure`.
pub fn disturbance(results: &Results, run: &Run, figure: Figure) -> Option<Disturbance> {
    let cores = float(results.machine.cores.max(1) as u64);
    if run.steal_cores > STEAL_SHARE_MAX * cores && figure != Figure::Memory {
        return Some(Disturbance::Steal(run.steal_cores));
    }
    let percentile = figure.percentile()?;
    let latency = float(run.latency.percentile(percentile)?);
    match run.driver_lag.get(&percentile.to_string()) {
        Some(&lag) if lag > LATE_NANOS_MIN && float(lag) > LATE_SHARE_MAX * latency => {
            Some(Disturbance::Late(lag))
        }
        // Results of older versions judged the driver at one percentile.
        None if run.is_driver_late && percentile > 99.0 => Some(Disturbance::Late(0)),
        Some(_) | None => None,
    }
}

/// The rounds that count, those left out, and those that count although they were disturbed.
type Kept = (Vec<Round>, Vec<(u32, Disturbance)>, Vec<(u32, Disturbance)>);

/// Leaves disturbed rounds out, if at least two and at least half of all remain.
fn kept(rounds: Vec<Round>) -> Kept {
    let disturbed: Vec<(u32, Disturbance)> =
        rounds.iter().filter_map(|round| Some((round.number, round.disturbance?))).collect();
    let clean = rounds.len() - disturbed.len();
    if clean >= 2 && clean * 2 >= rounds.len() {
        let kept = rounds.into_iter().filter(|round| round.disturbance.is_none()).collect();
        return (kept, disturbed, Vec::new());
    }
    (rounds, Vec::new(), disturbed)
}

fn judge(results: &Results, load: &str, pair: &(String, String), figure: Figure, floor: f64) -> State {
    // In an overload every figure is of something else: also CPU and memory an operation.
    let is_overloaded = |name: &str| Figure::P50.cell(results, name, load) == Cell::Overloaded;
    if is_overloaded(&pair.0) || is_overloaded(&pair.1) {
        return State::Overloaded;
    }
    if results.is_of_separate_runs {
        return judge_separate(results, load, pair, figure, floor);
    }
    let Some(rounds) = rounds_of(results, load, pair, figure).filter(|rounds| !rounds.is_empty()) else {
        return State::Missing;
    };
    let (rounds, left_out, disturbed) = kept(rounds);
    let values: Vec<(f64, f64)> = rounds.iter().map(Round::values).collect();
    let floor = floor.max(resolution(results, load, pair, figure));
    match (change(&Values::Rounds(values), floor), rounds.as_slice()) {
        (Some(change), _) => State::Judged(Judged { change, is_named: false, left_out, disturbed }),
        (None, [only]) => State::Once(only.before, only.after),
        (None, _) => State::Missing,
    }
}

/// As [`judge`], of separate runs: each side's own rounds.
fn judge_separate(
    results: &Results,
    load: &str,
    pair: &(String, String),
    figure: Figure,
    floor: f64,
) -> State {
    let side = |name: &str| -> Option<Kept> {
        let rounds = results.rounds(name, load);
        let round = |(&number, run): (&u32, &&Run)| {
            let value = figure.of(run)?;
            let disturbance = disturbance(results, run, figure);
            Some(Round { number, before: value, after: value, disturbance })
        };
        rounds.iter().map(round).collect::<Option<Vec<_>>>().filter(|rounds| !rounds.is_empty()).map(kept)
    };
    let (Some(before), Some(after)) = (side(&pair.0), side(&pair.1)) else { return State::Missing };
    let values = |kept: &Kept| kept.0.iter().map(|round| round.before).collect::<Vec<_>>();
    let floor = floor.max(resolution(results, load, pair, figure));
    let (one, two) = (values(&before), values(&after));
    match (change(&Values::Separate(one.clone(), two.clone()), floor), one.as_slice(), two.as_slice()) {
        (Some(change), ..) => State::Judged(Judged {
            change,
            is_named: false,
            left_out: [before.1, after.1].concat(),
            disturbed: [before.2, after.2].concat(),
        }),
        (None, [one, ..], [two, ..]) => State::Once(*one, *two),
        (None, ..) => State::Missing,
    }
}

/// The least standard deviation of a log ratio, by the steps in which `figure` is counted.
fn resolution(results: &Results, load: &str, pair: &(String, String), figure: Figure) -> f64 {
    if figure != Figure::Cpu {
        return RESOLUTION;
    }
    let of = |name: &String| -> f64 {
        let nodes = results.configurations.iter().find(|one| one.name == *name).map_or(1, |one| one.nodes);
        let used = results.runs(name, load).into_iter().filter_map(|run| {
            Some(run.cpu_micros_per_operation? / 1e6 * float(run.succeeded)).filter(|used| *used > 0.0)
        });
        let least = used.fold(f64::INFINITY, f64::min);
        // One step for the begin and one for the end of the window; both uniform.
        CPU_TICK_SECONDS * float(nodes as u64) / least / 6.0_f64.sqrt()
    };
    of(&pair.0).hypot(of(&pair.1)).max(RESOLUTION)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
