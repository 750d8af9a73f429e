//! The section on the processes of the nodes: what they use, how long they were warmed up, and the pauses of JVMs.

use std::fmt::Write;

use super::chart::{Kind, Line};
use super::{Report, Table};
use crate::lab::language::Unit;
use crate::lab::results::{Run, Sample};
use crate::lab::texts::Text;
use crate::units::float;

/// What a plot of samples shows, and what is worst of several repeats.
type Shown = (Text, fn(&Sample) -> f64);

/// A mebibyte, the unit of the plot of memory.
const MEBIBYTE: f64 = 1_048_576.0;

impl Report<'_> {
    /// A row for each figure that any configuration has; no rows where the processes are not the lab's.
    pub(super) fn processes(&self, load: &str) -> Table {
        let names = self.names();
        let columns: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
        let mut table = Table::new(self.fill(Text::Processes, &[("load", load)]), &columns);
        let runs: Vec<Vec<&Run>> = names.iter().map(|name| self.results.runs(name, load)).collect();
        let language = self.language;
        let samples = |runs: &[&Run], of: fn(&Sample) -> f64| {
            let all: Vec<f64> = runs.iter().flat_map(|run| &run.samples).map(of).collect();
            (!all.is_empty()).then_some(all)
        };
        let most = |runs: &[&Run], of| Some(samples(runs, of)?.into_iter().fold(0.0, f64::max));
        let mean = |runs: &[&Run], of| {
            samples(runs, of).map(|all| all.iter().sum::<f64>() / float(all.len() as u64))
        };
        self.row(&mut table, Text::ProcessesWarmUp, &runs, |runs| self.warm_up(runs));
        self.row(&mut table, Text::ProcessesCores, &runs, |runs| {
            mean(runs, |one| one.cores).map(|cores| language.number(cores, 2))
        });
        self.row(&mut table, Text::ProcessesMemory, &runs, |runs| {
            most(runs, |one| float(one.resident_bytes)).map(|bytes| language.amount(Unit::Bytes, bytes))
        });
        self.row(&mut table, Text::ProcessesThreads, &runs, |runs| {
            most(runs, |one| float(one.threads)).map(|threads| language.number(threads, 0))
        });
        self.row(&mut table, Text::PausesPerMinute, &runs, |runs| {
            let (pauses, seconds) = pauses(runs)?;
            Some(language.number(float(pauses.len() as u64) * 60.0 / seconds, 1))
        });
        self.row(&mut table, Text::PausesLongest, &runs, |runs| {
            let longest = pauses(runs)?.0.into_iter().reduce(f64::max);
            Some(longest.map_or_else(|| "–".into(), |seconds| language.amount(Unit::Nanos, seconds * 1e9)))
        });
        self.row(&mut table, Text::PausesShare, &runs, |runs| {
            let (pauses, seconds) = pauses(runs)?;
            Some(language.number(pauses.iter().sum::<f64>() / seconds * 100.0, 2))
        });
        if !table.rows.is_empty() {
            table.note(self.text(Text::ProcessesNote));
        }
        table
    }

    /// Adds a row to `table`, unless no configuration has the figure.
    fn row(
        &self,
        table: &mut Table,
        title: Text,
        runs: &[Vec<&Run>],
        cell: impl Fn(&[&Run]) -> Option<String>,
    ) {
        let cells: Vec<Option<String>> = runs.iter().map(|runs| cell(runs)).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into()));
            table.rows.push(std::iter::once(self.text(title).to_owned()).chain(cells).collect());
        }
    }

    /// The longest warm-up of the repeats, with the number of those at whose end costs still fell.
    fn warm_up(&self, runs: &[&Run]) -> Option<String> {
        let all = || runs.iter().filter_map(|run| run.warm_up.as_ref());
        let longest = all().map(|one| one.seconds).reduce(f64::max)?;
        let seconds = self.language.number(longest, 1);
        let falling = all().filter(|one| one.is_settled == Some(false)).count().to_string();
        let places =
            [("seconds", seconds.as_str()), ("count", &falling), ("all", &all().count().to_string())];
        Some(if falling == "0" { seconds.clone() } else { self.fill(Text::ProcessesNotSettled, &places) })
    }

    /// The section: the table, and plots over time.
    pub(super) fn processes_html(&self, load: &str) -> String {
        let table = self.processes(load);
        if table.rows.is_empty() {
            return String::new();
        }
        let mut out = format!("<h3>{}</h3>\n{}", self.text(Text::ProcessesHeading), self.table(&table, &[]));
        let shown: [Shown; 2] = [
            (Text::CoresOverTime, |sample| sample.cores),
            (Text::MemoryOverTime, |sample| float(sample.resident_bytes) / MEBIBYTE),
        ];
        for (title, of) in shown {
            let lines: Vec<Line> = self.lines(load, |runs| {
                let length = runs.iter().map(|run| run.samples.len()).min().unwrap_or(0);
                let at = |nth: usize| runs.iter().filter_map(move |run| run.samples.get(nth));
                let worst = |nth| at(nth).map(of).fold(0.0, f64::max);
                let second = |nth| at(nth).next().map_or(0.0, |sample| sample.second);
                (0..length).map(|nth| (second(nth), worst(nth))).collect()
            });
            out.push_str(&self.multiples(load, self.text(title), Kind::Count, &lines));
        }
        // A stroke for each pause, as high as it was long.
        let lines = self.lines(load, |runs| {
            let pauses = runs.iter().filter_map(|run| run.pauses.as_ref()).flatten();
            let mut pauses: Vec<_> = pauses.map(|pause| (pause.second, pause.seconds * 1e9)).collect();
            pauses.sort_by(|one, two| one.0.total_cmp(&two.0));
            pauses.into_iter().flat_map(|(at, nanos)| [(at, 0.0), (at, nanos), (at, 0.0)]).collect()
        });
        if lines.iter().any(|line| !line.points.is_empty()) {
            out.push_str(&self.multiples(load, self.text(Text::PausesOverTime), Kind::Nanos, &lines));
        }
        // Writing into a `String` cannot fail.
        let _ = writeln!(out);
        out
    }

    /// A line for each configuration, with the points of its runs.
    fn lines(&self, load: &str, points: impl Fn(&[&Run]) -> Vec<(f64, f64)>) -> Vec<Line> {
        let names = self.names().into_iter().enumerate();
        let line = |(place, name): (usize, &str)| {
            let points = points(&self.results.runs(name, load));
            Line { name: name.into(), place, points, is_doubtful: false }
        };
        names.map(line).collect()
    }
}

/// The lengths of all pauses, and the seconds in which they were; `None` if nobody looked.
fn pauses(runs: &[&Run]) -> Option<(Vec<f64>, f64)> {
    let looked: Vec<(&Run, _)> = runs.iter().filter_map(|run| Some((*run, run.pauses.as_ref()?))).collect();
    let seconds: usize = looked.iter().map(|(run, _)| run.seconds.len()).sum();
    let all = looked.iter().flat_map(|(_, pauses)| pauses.iter()).map(|pause| pause.seconds);
    (seconds > 0).then(|| (all.collect(), float(seconds as u64)))
}
