//! The report of a lab: `report.md`, `report.html` with everything inside, and flame graphs as SVG files beside them.
//!
//! Both texts are made from the same tables. The HTML loads no other file: charts are inline SVG made here
//! ([`chart`]), a script in the page draws flame graphs from the stacks in the page, styles follow the
//! reader's theme.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Profiles;
use super::figures::{Cell, Figure, change_text};
use super::profile::Event;
use super::results::{Results, Task};
use super::run::slug;
use crate::error::LabError;
use crate::suite::table::Table;
use crate::units::date;

pub mod chart;
mod html;
mod markdown;

/// The text below tables of changes.
const LEGEND: &str = "± is the confidence interval of the mean at 95 % (Student's t over the repeats). * exceeds the \
    noise of the repeats (Welch's test at 5 %: of twenty equal figures one is marked by chance); without a mark it \
    does not; ? was measured once, and nobody can tell. Latencies count from the moment a request was due.";

/// Writes the report of `results` into `folder`.
///
/// # Errors
/// [`LabError::Machine`] if a file cannot be written.
pub fn write(folder: &Path, results: &Results, profiles: &Profiles) -> Result<(), LabError> {
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
    write("report.md", &markdown::report(results, profiles, &flames))?;
    write("report.html", &html::report(results, profiles, &flames))
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

/// The figures of every configuration under `load`.
fn values(results: &Results, load: &str) -> Table {
    let names: Vec<&str> = results.configurations.iter().map(|one| one.name.as_str()).collect();
    let columns: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    let mut table = Table::new(format!("{load}: figures"), &columns);
    for figure in Figure::ALL {
        let cells: Vec<Cell> = names.iter().map(|name| figure.cell(results, name, load)).collect();
        if cells.iter().all(|cell| *cell == Cell::Missing) {
            continue;
        }
        let texts = cells.iter().map(|cell| figure.cell_text(cell));
        table.rows.push(std::iter::once(figure.title().to_owned()).chain(texts).collect());
    }
    table
}

/// The change of each figure from each configuration to the one compared with it.
fn changes(results: &Results, load: &str) -> Table {
    let heads: Vec<String> =
        results.pairs.iter().map(|(before, after)| format!("{before} → {after}")).collect();
    let columns: Vec<&str> = std::iter::once("").chain(heads.iter().map(String::as_str)).collect();
    let mut table = Table::new(format!("{load}: changes"), &columns);
    for figure in Figure::ALL {
        let cells: Vec<String> = results
            .pairs
            .iter()
            .map(|(before, after)| change_text(figure.change(results, load, before, after)))
            .collect();
        if cells.iter().any(|cell| cell != "–") {
            table.rows.push(std::iter::once(figure.title().to_owned()).chain(cells).collect());
        }
    }
    table
}

/// Every measured window, with the machine's state meanwhile.
fn windows(results: &Results) -> Table {
    let columns = [
        "configuration",
        "step",
        "load",
        "rate wanted",
        "kept",
        "failed",
        "p99",
        "steal, cores",
        "driver late",
    ];
    let mut table = Table::new("Every window", &columns);
    for configuration in &results.configurations {
        for step in results.steps_of(&configuration.name) {
            for run in &step.runs {
                table.row([
                    configuration.name.clone(),
                    step.task.to_string(),
                    run.load.clone(),
                    format!("{:.0}", run.wanted_per_second),
                    format!("{:.1}", run.kept_per_second),
                    run.failed.to_string(),
                    run.latency.percentile(99.0).map_or_else(|| "–".into(), crate::units::latency),
                    format!("{:.3}", run.steal_cores),
                    if run.is_driver_late { "yes" } else { "no" }.into(),
                ]);
            }
        }
    }
    table.note("Windows under profiles are shown here and used nowhere else.");
    table
}

/// The cost of each profile on the nodes: CPU per operation without and with it; `None` without profiles.
fn cost_of_profiles(results: &Results) -> Option<Table> {
    let mut table = Table::new(
        "What the profiles cost: CPU, µs/operation",
        &["configuration", "load", "no profile", "cpu", "alloc", "lock"],
    );
    for configuration in &results.configurations {
        for load in &results.loads {
            let of = |event| results.profile(&configuration.name, &load.name, event);
            let Some(any) = Event::ALL.into_iter().find_map(of) else { continue };
            let cell = |cpu: Option<f64>| cpu.map_or_else(|| "–".into(), |cpu| Figure::Cpu.text(cpu));
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
    table.note("One window each, one after the other on one cluster. Naming the stacks comes after it: some 0.1 s of CPU a node.");
    (!table.rows.is_empty()).then_some(table)
}

/// The frames that gained and lost most between two configurations' CPU profiles.
fn shifts(results: &Results, profiles: &Profiles, load: &str) -> Vec<Table> {
    const SHOWN: usize = 6;
    let mut tables = Vec::new();
    for (before, after) in &results.pairs {
        let of = |name: &String| profiles.get(&(name.clone(), load.to_owned(), Event::Cpu));
        let (Some(old), Some(new)) = (of(before), of(after)) else { continue };
        let all = super::conclusions::shifts(old, new);
        let columns = ["frame, with what it calls", "before, %", "after, %"];
        let mut table = Table::new(format!("{load}, CPU: {before} → {after}"), &columns);
        let lost = all.len().saturating_sub(SHOWN).max(SHOWN.min(all.len()));
        for shift in all.iter().take(SHOWN).chain(all.iter().skip(lost)) {
            let percent = |share: f64| format!("{:.1}", share * 100.0);
            table.row([shift.frame.into(), percent(shift.shares.0), percent(shift.shares.1)]);
        }
        tables.push(table);
    }
    tables
}

/// The waits of operations, by the names that the nodes give to them; `None` if no profile has any.
fn waits(results: &Results, profiles: &Profiles, load: &str) -> Option<Table> {
    let names: Vec<&str> = results.configurations.iter().map(|one| one.name.as_str()).collect();
    let columns: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    let mut table = Table::new(format!("{load}: waits, µs/operation"), &columns);
    let of = |name: &str| {
        let stacks = profiles.get(&(name.to_owned(), load.to_owned(), Event::Lock))?;
        Some((stacks.named_waits(), results.profile(name, load, Event::Lock)?.operations))
    };
    let all: Vec<_> = names.iter().map(|name| of(name)).collect();
    let waits: BTreeSet<&str> = all.iter().flatten().flat_map(|(waits, _)| waits.keys().copied()).collect();
    for wait in waits {
        let cell = |one: &Option<(BTreeMap<&str, u64>, f64)>| match one {
            Some((waits, operations)) if *operations > 0.0 => {
                let micros = waits.get(wait).copied().unwrap_or(0);
                format!("{:.1}", crate::units::float(micros) / operations)
            }
            _ => "–".into(),
        };
        table.rows.push(std::iter::once(wait.to_owned()).chain(all.iter().map(cell)).collect());
    }
    table.note(
        "Of the lock profile, over all nodes. Waits of one operation lie within each other: compare each with itself.",
    );
    (!table.rows.is_empty()).then_some(table)
}

/// The machine, the versions, and how the results were made.
fn facts(results: &Results) -> Vec<(String, String)> {
    let machine = &results.machine;
    let memory = format!("{:.1} GiB", crate::units::float(machine.memory_bytes) / f64::from(1 << 30));
    let repeats = results.steps.iter().filter_map(|step| match step.task {
        Task::Measure(repeat) => Some(repeat),
        Task::Profile | Task::Maximum => None,
    });
    let mut facts = vec![
        ("machine".into(), format!("{} cores, {}, {memory}", machine.cores, machine.cpu)),
        ("kernel".into(), machine.kernel.clone()),
        ("nodes".into(), results.kvorum.clone()),
        ("lab".into(), format!("kvorum-lab {}", env!("CARGO_PKG_VERSION"))),
        ("repeats".into(), repeats.max().unwrap_or(0).to_string()),
        ("driver".into(), "on the same machine as the nodes, not pinned".into()),
    ];
    if let Some(label) = &results.label {
        facts.insert(0, ("label".into(), label.clone()));
    }
    let began = results.steps.iter().map(|step| step.began).min();
    let ended = results.steps.iter().map(|step| step.began).max();
    if let (Some(began), Some(ended)) = (began, ended) {
        facts.push(("first and last step began".into(), format!("{} and {}", date(began), date(ended))));
    }
    facts
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
