//! The report of a lab: `report.md`, `report.html` with everything inside, and flame graphs as SVG files beside them.
//!
//! Both texts are made from the same tables. The HTML loads no other file: charts are inline SVG made here
//! ([`chart`]), a script in the page draws flame graphs from the stacks in the page, styles follow the
//! reader's theme.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::figures::{Cell, Figure};
use super::findings::{Findings, State};
use super::language::{Language, Unit};
use super::profile::Event;
use super::results::{ConfigurationRecord, Results, Run};
use super::run::slug;
use super::texts::Text;
use super::warnings;
use super::{Profiles, nodes};
use crate::error::LabError;
use crate::suite::table::Table;
use crate::units::{date, float};

pub mod chart;
mod html;
mod markdown;
mod processes;

/// What a report is made of.
struct Report<'a> {
    results: &'a Results,
    findings: &'a Findings,
    profiles: &'a Profiles,
    language: Language,
    flames: Vec<Flame>,
}

/// Writes the report of `results` into `folder`.
///
/// # Errors
/// [`LabError::Machine`] if a file cannot be written.
pub fn write(
    folder: &Path,
    results: &Results,
    findings: &Findings,
    profiles: &Profiles,
    language: Language,
) -> Result<(), LabError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(LabError::machine(format!("write {}", path.display())))
    };
    let flames = Flame::all(results, profiles);
    if !flames.is_empty() {
        let path = folder.join("flames");
        std::fs::create_dir_all(&path).map_err(LabError::machine(format!("make {}", path.display())))?;
    }
    for flame in &flames {
        write(&flame.file(), &flame.svg(profiles)?)?;
    }
    let report = Report { results, findings, profiles, language, flames };
    write("report.md", &report.markdown())?;
    write("report.html", &report.html())
}

/// The change of a figure between a pair of configurations, as text: `*` marks it as named, `?` as measured once.
pub fn change_cell(
    results: &Results,
    findings: &Findings,
    load: &str,
    pair: &(String, String),
    figure: Figure,
    language: Language,
) -> String {
    match findings.one(load, pair, figure).map(|finding| &finding.state) {
        Some(State::Judged(judged)) => {
            let (low, high) = language.interval(judged.change.interval);
            let mark = if judged.is_named { " *" } else { "" };
            format!("{} ({low}…{high}){mark}", language.change(judged.change.ratio))
        }
        Some(State::Once(before, after)) if *before > 0.0 => format!("{} ?", language.change(after / before)),
        Some(State::Missing | State::Overloaded | State::Once(..)) => "–".into(),
        None => match (figure.cell(results, &pair.0, load), figure.cell(results, &pair.1, load)) {
            (Cell::Value(before), Cell::Value(after)) if before.mean > 0.0 => {
                let mark = if before.count.min(after.count) < 2 { " ?" } else { "" };
                format!("{}{mark}", language.change(after.mean / before.mean))
            }
            _ => "–".into(),
        },
    }
}

/// One flame graph: of a configuration, or of its difference from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flame {
    load: String,
    event: Event,
    configuration: String,
    /// The configuration that it is compared with.
    before: Option<String>,
}

impl Flame {
    /// The flame graphs that `profiles` allow, load by load: each configuration, then each pair.
    fn all(results: &Results, profiles: &Profiles) -> Vec<Self> {
        let has = |configuration: &str, load: &str, event| {
            profiles.contains_key(&(configuration.to_owned(), load.to_owned(), event))
        };
        let mut all = Vec::new();
        for load in results.loads.iter().map(|load| &load.name) {
            for event in Event::ALL {
                let names = results.configurations.iter().map(|one| (None, one.name.clone()));
                let pairs = results.pairs.iter().map(|(before, after)| (Some(before.clone()), after.clone()));
                for (before, configuration) in names.chain(pairs) {
                    let is_there = has(&configuration, load, event)
                        && before.as_ref().is_none_or(|before| has(before, load, event));
                    if is_there {
                        all.push(Self { load: load.clone(), event, configuration, before });
                    }
                }
            }
        }
        all
    }

    fn title(&self) -> String {
        match &self.before {
            None => format!("{}, {}, {}", self.event, self.load, self.configuration),
            Some(before) => format!("{}, {}, {} since {before}", self.event, self.load, self.configuration),
        }
    }

    fn name(&self) -> String {
        let since =
            self.before.as_ref().map_or_else(String::new, |before| format!("-since-{}", slug(before)));
        format!("{}-{}-{}{since}", slug(&self.load), self.event, slug(&self.configuration))
    }

    fn file(&self) -> String {
        format!("flames/{}.svg", self.name())
    }

    fn svg(&self, profiles: &Profiles) -> Result<String, LabError> {
        let of = |name: &str| profiles.get(&(name.to_owned(), self.load.clone(), self.event));
        match (of(&self.configuration), self.before.as_deref().map(of)) {
            (Some(after), Some(Some(before))) => after.difference_svg(before, &self.title(), self.event),
            (Some(after), _) => after.svg(&self.title(), self.event),
            (None, _) => Err(LabError::Subject(format!("no profile for {}", self.title()))),
        }
    }
}

impl Report<'_> {
    fn text(&self, text: Text) -> &'static str {
        text.of(self.language)
    }

    fn fill(&self, text: Text, places: &[(&str, &str)]) -> String {
        text.fill(self.language, places)
    }

    /// The names of the configurations of tables and plots.
    fn names(&self) -> Vec<&str> {
        self.results.shown().map(|one| one.name.as_str()).collect()
    }

    /// The figures of every configuration under `load`.
    fn values(&self, load: &str) -> Table {
        let names = self.names();
        let columns: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
        let mut table = Table::new(self.fill(Text::FiguresOf, &[("load", load)]), &columns);
        for figure in Figure::ALL {
            let cells: Vec<Cell> = names.iter().map(|name| figure.cell(self.results, name, load)).collect();
            if cells.iter().all(|cell| *cell == Cell::Missing) {
                continue;
            }
            let texts = cells.iter().map(|cell| figure.cell_text(cell, self.language));
            table.rows.push(std::iter::once(self.text(figure.title()).to_owned()).chain(texts).collect());
        }
        table
    }

    /// The change of each figure from each configuration to the one compared with it; no rows without any.
    fn changes(&self, load: &str) -> Table {
        self.compared(self.fill(Text::ChangesOf, &[("load", load)]), &self.results.pairs, &Figure::ALL, load)
    }

    /// The changes between equal configurations.
    fn control(&self, load: &str) -> Table {
        let pairs = self.results.equals_under(load);
        let title = format!("{load}: {}", self.text(Text::ControlTable));
        self.compared(title, &pairs, &Figure::JUDGED, load)
    }

    fn compared(&self, title: String, pairs: &[(String, String)], figures: &[Figure], load: &str) -> Table {
        let heads: Vec<String> = pairs.iter().map(|(before, after)| format!("{before} → {after}")).collect();
        let columns: Vec<&str> = std::iter::once("").chain(heads.iter().map(String::as_str)).collect();
        let mut table = Table::new(title, &columns);
        for &figure in figures {
            let cell = |pair| change_cell(self.results, self.findings, load, pair, figure, self.language);
            let cells: Vec<String> = pairs.iter().map(cell).collect();
            if cells.iter().any(|cell| cell != "–") {
                let row = std::iter::once(self.text(figure.title()).to_owned()).chain(cells);
                table.rows.push(row.collect());
            }
        }
        table
    }

    /// Every measured window, with the machine's state meanwhile.
    fn windows(&self) -> Table {
        let heads = [
            Text::Configuration,
            Text::Step,
            Text::Load,
            Text::RateWanted,
            Text::Kept,
            Text::Failed,
            Text::FigureP99,
            Text::Steal,
            Text::DriverLate,
        ];
        let mut table = Table::new(self.text(Text::Windows), &heads.map(|head| self.text(head)));
        let language = self.language;
        let nanos = |nanos: u64| language.amount(Unit::Nanos, float(nanos));
        for configuration in &self.results.configurations {
            for step in self.results.steps_of(&configuration.name) {
                for run in &step.runs {
                    table.row([
                        configuration.name.clone(),
                        warnings::task(&step.task, language),
                        run.load.clone(),
                        language.number(run.wanted_per_second, 0),
                        language.number(run.kept_per_second, 1),
                        language.number(float(run.failed), 0),
                        run.latency.percentile(99.0).map_or_else(|| "–".into(), nanos),
                        language.number(run.steal_cores, 3),
                        run.driver_lag.get("99.9").map_or_else(|| "–".into(), |&lag| nanos(lag)),
                    ]);
                }
            }
        }
        table.note(self.text(Text::WindowsNote));
        table
    }

    /// The cost of each profile on the nodes: CPU per operation without and with it; `None` without profiles.
    fn cost_of_profiles(&self) -> Option<Table> {
        let heads = [Text::Configuration, Text::Load, Text::NoProfile].map(|head| self.text(head));
        let columns: Vec<&str> = heads.into_iter().chain(["cpu", "alloc", "lock"]).collect();
        let mut table = Table::new(self.text(Text::ProfileCost), &columns);
        for configuration in self.results.shown() {
            for load in &self.results.loads {
                let of = |event| self.results.profile(&configuration.name, &load.name, event);
                let Some(any) = Event::ALL.into_iter().find_map(of) else { continue };
                let cell = |cpu: Option<f64>| cpu.map_or_else(|| "–".into(), |cpu| self.language.short(cpu));
                let with = |event| cell(of(event).and_then(|profile| profile.cpu_micros_per_operation));
                table.row([
                    configuration.name.clone(),
                    load.name.clone(),
                    cell(any.unprofiled_cpu_micros_per_operation),
                    with(Event::Cpu),
                    with(Event::Alloc),
                    with(Event::Lock),
                ]);
            }
        }
        table.note(self.text(Text::ProfileCostNote));
        (!table.rows.is_empty()).then_some(table)
    }

    /// The frames whose share changed most between two configurations' CPU profiles.
    fn shifts(&self, load: &str) -> Vec<Table> {
        const SHOWN: usize = 12;
        let mut tables = Vec::new();
        for (before, after) in &self.results.pairs {
            let of = |name: &String| self.profiles.get(&(name.clone(), load.to_owned(), Event::Cpu));
            let (Some(old), Some(new)) = (of(before), of(after)) else { continue };
            if !self.results.have_one_program(before, after) {
                continue;
            }
            let heads = [Text::ShiftFrame, Text::ShiftBefore, Text::ShiftAfter, Text::ShiftPoints];
            let title = self.fill(Text::Shifts, &[("load", load), ("before", before), ("after", after)]);
            let mut table = Table::new(title, &heads.map(|head| self.text(head)));
            for shift in super::conclusions::shifts(old, new).into_iter().take(SHOWN) {
                let points = |share: f64| self.language.number(share * 100.0, 1);
                let change = shift.change;
                let sign = if change.difference() > 0.0 { "+" } else { "" };
                let mark = if change.is_beyond() { " *" } else { "" };
                let difference =
                    format!("{sign}{} ± {}{mark}", points(change.difference()), points(change.half_width));
                table.row([shift.frame.into(), points(change.shares.0), points(change.shares.1), difference]);
            }
            table.note(self.text(Text::ShiftsNote));
            tables.push(table);
        }
        tables
    }

    /// The waits of operations, by the names that the nodes give to them; `None` if no profile has any.
    fn waits(&self, load: &str) -> Option<Table> {
        let names = self.names();
        let columns: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
        let mut table = Table::new(self.fill(Text::Waits, &[("load", load)]), &columns);
        let of = |name: &str| {
            let stacks = self.profiles.get(&(name.to_owned(), load.to_owned(), Event::Lock))?;
            Some((stacks.named_waits(), self.results.profile(name, load, Event::Lock)?.operations))
        };
        let all: Vec<_> = names.iter().map(|name| of(name)).collect();
        let waits: BTreeSet<&str> =
            all.iter().flatten().flat_map(|(waits, _)| waits.keys().copied()).collect();
        for wait in waits {
            let cell = |one: &Option<(BTreeMap<&str, u64>, f64)>| match one {
                Some((waits, operations)) if *operations > 0.0 => {
                    let micros = waits.get(wait).copied().unwrap_or(0);
                    self.language.number(float(micros) / operations, 1)
                }
                _ => "–".into(),
            };
            table.rows.push(std::iter::once(wait.to_owned()).chain(all.iter().map(cell)).collect());
        }
        table.note(self.text(Text::WaitsNote));
        (!table.rows.is_empty()).then_some(table)
    }

    /// The machine, the versions, and how the results were made.
    fn facts(&self) -> Vec<(String, String)> {
        let (results, language) = (self.results, self.language);
        let machine = &results.machine;
        let memory = language.amount(Unit::Bytes, float(machine.memory_bytes));
        let cores = machine.cores.to_string();
        let places = [("cores", cores.as_str()), ("cpu", &machine.cpu), ("memory", &memory)];
        let mut facts = vec![
            (Text::FactMachine, self.fill(Text::FactCores, &places)),
            (Text::FactKernel, machine.kernel.clone()),
            (Text::FactNodes, results.kvorum.clone()),
            (Text::FactLab, format!("kvorum-lab {}", crate::version())),
            (Text::FactRepeats, results.repeats().to_string()),
            (Text::FactDriver, self.text(Text::FactDriverIs).into()),
        ];
        if let Some(label) = &results.label {
            facts.insert(0, (Text::FactLabel, label.clone()));
        }
        let began = results.steps.iter().map(|step| step.began).min();
        let ended = results.steps.iter().map(|step| step.began).max();
        if let (Some(began), Some(ended)) = (began, ended) {
            let times = self.fill(Text::FactTimesAre, &[("first", &date(began)), ("last", &date(ended))]);
            facts.push((Text::FactTimes, times));
        }
        let mut facts: Vec<_> =
            facts.into_iter().map(|(name, text)| (self.text(name).into(), text)).collect();
        let versions = results.shown().filter(|one| !one.version.is_empty() && one.version != results.kvorum);
        facts.extend(versions.map(|one| (one.name.clone(), one.version.clone())));
        facts
    }
}

/// The command of a run and what it printed, so that it can be pasted behind the nodes' own commands.
fn run_text(configuration: &ConfigurationRecord, run: &Run) -> String {
    let text = format!("$ {}\n{}", run.command, run.text);
    let has_run_already =
        configuration.commands.iter().all(|command| command.starts_with(nodes::RUNS_ALREADY));
    if has_run_already { text } else { with_shown_urls(&text, &run.command) }
}

/// `text` with the URLs of the nodes' commands as the report shows them, ports from 8080 on, in place of those of
/// `command`, a line of `kvorum bench` for nodes that the lab started.
fn with_shown_urls(text: &str, command: &str) -> String {
    let of_nodes = command.split_whitespace().filter(|word| word.starts_with("http://127.0.0.1:"));
    let urls: Vec<(&str, String)> =
        of_nodes.zip(8080..).map(|(url, port)| (url, format!("http://127.0.0.1:{port}"))).collect();
    let words = text.split_inclusive(char::is_whitespace);
    words
        .map(|word| {
            let (url, space) = word.split_at(word.trim_end().len());
            let shown = urls.iter().find(|(own, _)| *own == url).map_or(url, |(_, shown)| shown);
            [shown, space].concat()
        })
        .collect()
}

/// wrk2's report without its long table.
fn short(text: &str) -> String {
    let mut is_shown = true;
    let kept = text.lines().filter(|line| {
        if line.trim_start().starts_with("Detailed Percentile spectrum") {
            is_shown = false;
        }
        let was_shown = is_shown;
        if line.starts_with("-----") {
            is_shown = true;
        }
        was_shown
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
