//! The figures of a report: their names, their values for a configuration, and their changes between two
//! configurations.

use std::fmt;
use std::str::FromStr;

use super::profile::Event;
use super::results::{Results, Run};
use super::statistics::{Change, Sample, Verdict};
use crate::units::{float, grouped, latency, mebibytes, size};

/// A row of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Operations per second that succeeded.
    Rate,
    /// Mean latency.
    Mean,
    /// The 50th percentile of the latency.
    P50,
    /// The 90th.
    P90,
    /// The 99th.
    P99,
    /// The 99.9th.
    P999,
    /// The longest latency.
    Max,
    /// CPU time of the whole cluster per operation.
    Cpu,
    /// Resident memory of the whole cluster.
    Memory,
    /// Bytes allocated per operation, from the allocation profile.
    Alloc,
    /// The highest rate.
    Maximum,
    /// Operations that failed, in all repeats.
    Failed,
}

/// The value of a figure for a configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// It was not measured.
    Missing,
    /// The rate was not kept: a latency would be the latency of an overloaded system.
    Overloaded,
    /// It was measured.
    Value(Sample),
}

impl Figure {
    /// Every figure, in the order of tables.
    pub const ALL: [Self; 12] = [
        Self::Rate,
        Self::Mean,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P999,
        Self::Max,
        Self::Cpu,
        Self::Memory,
        Self::Alloc,
        Self::Maximum,
        Self::Failed,
    ];

    /// Its title, for tables.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Rate => "operations/s",
            Self::Mean => "latency, mean",
            Self::P50 => "latency, p50",
            Self::P90 => "latency, p90",
            Self::P99 => "latency, p99",
            Self::P999 => "latency, p99.9",
            Self::Max => "latency, max",
            Self::Cpu => "CPU of the cluster, µs/operation",
            Self::Memory => "memory of the cluster, resident",
            Self::Alloc => "allocated/operation",
            Self::Maximum => "highest rate/s",
            Self::Failed => "failed operations",
        }
    }

    /// Whether it is a latency, and so meaningless in an overload.
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Max)
    }

    /// A value with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Rate | Self::Maximum | Self::Failed => grouped(whole(value)),
            Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Max => latency(whole(value)),
            Self::Cpu => format!("{value:.1}"),
            Self::Memory => mebibytes(whole(value)),
            Self::Alloc => size(value),
        }
    }

    /// The value for `configuration` under `load`.
    pub fn cell(self, results: &Results, configuration: &str, load: &str) -> Cell {
        let runs = results.runs(configuration, load);
        if self.is_latency() && runs.iter().any(|run| !run.is_latency_result()) {
            return Cell::Overloaded;
        }
        let allocated = || {
            let profile = results.profile(configuration, load, Event::Alloc)?;
            (profile.operations > 0.0).then(|| float(profile.total) / profile.operations)
        };
        let of_runs = |of: &dyn Fn(&Run) -> Option<f64>| -> Vec<f64> {
            let values: Vec<f64> = runs.iter().filter_map(|run| of(run)).collect();
            // The runs that have a value would be a different sample than all repeats.
            if values.len() == runs.len() { values } else { Vec::new() }
        };
        let percentile = |percentile: f64| of_runs(&|run| run.latency.percentile(percentile).map(float));
        let values = match self {
            Self::Rate => of_runs(&|run| Some(run.kept_per_second)),
            Self::Mean => of_runs(&|run| Some(run.latency.mean)),
            Self::P50 => percentile(50.0),
            Self::P90 => percentile(90.0),
            Self::P99 => percentile(99.0),
            Self::P999 => percentile(99.9),
            Self::Max => of_runs(&|run| Some(float(run.latency.max))),
            Self::Cpu => of_runs(&|run| run.cpu_micros_per_operation),
            Self::Memory => of_runs(&|run| run.resident_bytes.map(float)),
            Self::Alloc => allocated().into_iter().collect(),
            Self::Maximum => results
                .maximum(configuration, load)
                .map(|one| float(one.highest.unwrap_or(0)))
                .into_iter()
                .collect(),
            Self::Failed if runs.is_empty() => Vec::new(),
            Self::Failed => vec![float(runs.iter().map(|run| run.failed).sum())],
        };
        Sample::of(&values).map_or(Cell::Missing, Cell::Value)
    }

    /// The change from `before` to `after`; `None` if one of them has no value.
    pub fn change(self, results: &Results, load: &str, before: &str, after: &str) -> Option<Change> {
        match (self.cell(results, before, load), self.cell(results, after, load)) {
            (Cell::Value(before), Cell::Value(after)) => Some(after.change_from(&before)),
            _ => None,
        }
    }

    /// A cell as text: mean and confidence interval.
    pub fn cell_text(self, cell: &Cell) -> String {
        match cell {
            Cell::Missing => "–".into(),
            Cell::Overloaded => "overloaded".into(),
            Cell::Value(sample) => {
                let around = sample.half_width().map(|half| format!(" ± {}", self.text(half)));
                format!("{}{}", self.text(sample.mean), around.unwrap_or_default())
            }
        }
    }
}

/// A change as text; `*` marks a change beyond the noise, `?` one that cannot be judged.
pub fn change_text(change: Option<Change>) -> String {
    let Some(Change { ratio: Some(ratio), verdict }) = change else { return "–".into() };
    let mark = match verdict {
        Verdict::Beyond => "*",
        Verdict::Within => "",
        Verdict::Unknown => "?",
    };
    format!("x{ratio:.2}{mark}")
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "rate",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Max => "max",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Alloc => "alloc",
            Self::Maximum => "maximum",
            Self::Failed => "failed",
        })
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|figure| figure.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("{text:?} is no figure; known are {}", known.join(", "))
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are below 2^53, and not negative"
)]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{results, run};

    /// Goal: cells are means over repeats with their interval. Method: two repeats of known figures.
    #[test]
    fn cells_are_means() {
        let results = results(&[("one", &[run("PUT", 1.0), run("PUT", 3.0)])]);
        let p99 = Figure::P99.cell(&results, "one", "PUT");
        assert_eq!(Figure::P99.cell_text(&p99), "2.00ms ± 12.71ms");
        assert_eq!(Figure::Rate.cell_text(&Figure::Rate.cell(&results, "one", "PUT")), "1,000 ± 0");
        assert_eq!(Figure::Maximum.cell(&results, "one", "PUT"), Cell::Missing);
        assert_eq!(Figure::P99.cell(&results, "one", "GET"), Cell::Missing);
    }

    /// Goal: one overloaded repeat removes the latencies of all repeats, and keeps the rate. Method: one of
    /// two.
    #[test]
    fn an_overload_is_no_latency() {
        let mut slow = run("PUT", 900.0);
        slow.is_saturated = true;
        let results = results(&[("one", &[run("PUT", 1.0), slow]), ("two", &[run("PUT", 1.0)])]);
        assert_eq!(Figure::P50.cell(&results, "one", "PUT"), Cell::Overloaded);
        assert!(matches!(Figure::Rate.cell(&results, "one", "PUT"), Cell::Value(_)));
        assert_eq!(Figure::P50.change(&results, "PUT", "one", "two"), None);
    }

    /// Goal: changes carry their verdict. Method: far, near, and measured once.
    #[test]
    fn changes_are_marked() {
        let of = |millis: &[f64]| millis.iter().map(|&one| run("PUT", one)).collect::<Vec<_>>();
        let (one, two, near, single) =
            (of(&[1.0, 1.01, 0.99]), of(&[2.0, 2.01, 1.99]), of(&[1.0, 1.03, 0.98]), of(&[3.0]));
        let results = results(&[("one", &one), ("two", &two), ("near", &near), ("once", &single)]);
        let text = |after| change_text(Figure::P99.change(&results, "PUT", "one", after));
        assert_eq!(
            [text("two"), text("near"), text("once"), text("none")],
            ["x2.00*", "x1.00", "x3.00?", "–"]
        );
    }

    /// Goal: every figure is found by its own name. Method: all names, and one unknown name.
    #[test]
    fn figures_have_names() {
        for figure in Figure::ALL {
            assert_eq!(figure.to_string().parse(), Ok(figure));
        }
        let error = "p98".parse::<Figure>().unwrap_err();
        assert!(error.contains("p99.9"), "{error}");
    }
}
