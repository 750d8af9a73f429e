//! The figures of a report: their names, their values for a configuration, and their changes between two
//! configurations.

use std::fmt;
use std::str::FromStr;

use super::language::{Language, Unit};
use super::profile::Event;
use super::results::{Results, Run};
use super::statistics::Sample;
use super::texts::Text;
use crate::units::float;

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

    /// The figures that are compared in words and marked in tables; the same ones, so that a mark has a sentence. Mean and
    /// maximum are left out: the one repeats the percentiles, the other is a single operation.
    pub const JUDGED: [Self; 6] = [Self::P50, Self::P90, Self::P99, Self::P999, Self::Cpu, Self::Memory];

    /// Its title, for tables.
    pub const fn title(self) -> Text {
        match self {
            Self::Rate => Text::FigureRate,
            Self::Mean => Text::FigureMean,
            Self::P50 => Text::FigureP50,
            Self::P90 => Text::FigureP90,
            Self::P99 => Text::FigureP99,
            Self::P999 => Text::FigureP999,
            Self::Max => Text::FigureMax,
            Self::Cpu => Text::FigureCpu,
            Self::Memory => Text::FigureMemory,
            Self::Alloc => Text::FigureAlloc,
            Self::Maximum => Text::FigureMaximum,
            Self::Failed => Text::FigureFailed,
        }
    }

    /// Its name within a sentence.
    pub fn word(self, language: Language) -> String {
        match self {
            Self::Cpu => Text::WordCpu.of(language).to_owned(),
            Self::Memory => Text::WordMemory.of(language).to_owned(),
            other => match language {
                Language::En => other.to_string(),
                Language::Ru => other.to_string().replace('.', ","),
            },
        }
    }

    /// The percentile of the driver's own lateness that belongs to it, if it is a latency.
    pub const fn percentile(self) -> Option<f64> {
        match self {
            Self::Mean | Self::P50 => Some(50.0),
            Self::P90 => Some(90.0),
            Self::P99 => Some(99.0),
            Self::P999 => Some(99.9),
            Self::Max => Some(100.0),
            Self::Rate | Self::Cpu | Self::Memory | Self::Alloc | Self::Maximum | Self::Failed => None,
        }
    }

    const fn unit(self) -> Unit {
        match self {
            Self::Rate | Self::Maximum | Self::Failed => Unit::Count,
            Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Max => Unit::Nanos,
            Self::Cpu => Unit::CpuMicros,
            Self::Memory | Self::Alloc => Unit::Bytes,
        }
    }

    /// Whether it is a latency, and so meaningless in an overload.
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Max)
    }

    /// A value with its unit.
    pub fn text(self, value: f64, language: Language) -> String {
        language.amount(self.unit(), value)
    }

    /// Two values, the unit once if it is the same.
    pub fn two_texts(self, before: f64, after: f64, language: Language) -> (String, String) {
        let (one, two) = (language.quantity(self.unit(), before), language.quantity(self.unit(), after));
        let first = if one.1 == two.1 { one.0 } else { self.text(before, language) };
        (first, self.text(after, language))
    }

    /// The value of one window.
    pub fn of(self, run: &Run) -> Option<f64> {
        let percentile = |percentile: f64| run.latency.percentile(percentile).map(float);
        match self {
            Self::Rate => Some(run.kept_per_second),
            Self::Mean => Some(run.latency.mean),
            Self::P50 => percentile(50.0),
            Self::P90 => percentile(90.0),
            Self::P99 => percentile(99.0),
            Self::P999 => percentile(99.9),
            Self::Max => Some(float(run.latency.max)),
            Self::Cpu => run.cpu_micros_per_operation,
            Self::Memory => run.resident_bytes.map(float),
            Self::Failed => Some(float(run.failed)),
            Self::Alloc | Self::Maximum => None,
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
        let values: Vec<f64> = match self {
            Self::Alloc => allocated().into_iter().collect(),
            Self::Maximum => results
                .maximum(configuration, load)
                .map(|one| float(one.highest.unwrap_or(0)))
                .into_iter()
                .collect(),
            Self::Failed if runs.is_empty() => Vec::new(),
            Self::Failed => vec![float(runs.iter().map(|run| run.failed).sum())],
            _ => {
                // The runs that have a value would be a different sample than all repeats.
                let values: Option<Vec<f64>> = runs.iter().map(|run| self.of(run)).collect();
                values.unwrap_or_default()
            }
        };
        Sample::of(&values).map_or(Cell::Missing, Cell::Value)
    }

    /// A cell as text: the mean, and half the width of its confidence interval as a share of it.
    pub fn cell_text(self, cell: &Cell, language: Language) -> String {
        match cell {
            Cell::Missing => "–".into(),
            Cell::Overloaded => Text::Overloaded.of(language).into(),
            Cell::Value(sample) => {
                let share = sample.half_width().filter(|_| sample.mean > 0.0).map(|half| half / sample.mean);
                let around = share.map(|share| format!(" ± {}", language.percent(share)));
                format!("{}{}", self.text(sample.mean, language), around.unwrap_or_default())
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{results, run};

    /// Goal: cells are means over repeats with their interval, in either language. Method: two repeats of known figures.
    #[test]
    fn cells_are_means() {
        let results = results(&[("one", &[run("PUT", 1.0), run("PUT", 3.0)])]);
        let text = |figure: Figure, language| {
            figure.cell_text(&figure.cell(&results, "one", "PUT"), language).replace('\u{a0}', " ")
        };
        assert_eq!(text(Figure::P99, Language::En), "2.00 ms ± 635 %");
        assert_eq!(text(Figure::P99, Language::Ru), "2,00 мс ± 635 %");
        assert_eq!(text(Figure::Rate, Language::En), "1,000 ± 0.0 %");
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
    }

    /// Goal: two values of one unit have it once. Method: latencies on both sides of a border.
    #[test]
    fn units_are_said_once() {
        let two = |before, after| {
            let (one, two) = Figure::P50.two_texts(before, after, Language::En);
            format!("{one} to {two}").replace('\u{a0}', " ")
        };
        assert_eq!(two(90_050.0, 139_220.0), "90.0 to 139 µs");
        assert_eq!(two(900_000.0, 1_390_000.0), "900 µs to 1.39 ms");
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
