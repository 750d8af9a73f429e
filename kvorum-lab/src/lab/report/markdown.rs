//! The report as Markdown, for a repository or a review.

use std::fmt::Write;

use super::{Flame, LEGEND, Table, changes, cost_of_profiles, facts, shifts, short, values, waits, windows};
use crate::lab::Profiles;
use crate::lab::conclusions::{conclusions, warnings};
use crate::lab::results::Results;
use crate::units::{grouped, latency};

/// The whole report.
pub(super) fn report(results: &Results, profiles: &Profiles, flames: &[Flame]) -> String {
    let mut out = format!("# {}\n\n", results.title);
    // Writing into a `String` cannot fail.
    for warning in warnings(results) {
        let _ = writeln!(out, "> **{warning}**\n>");
    }
    out.push_str("\nThe same with plots and flame graphs: `report.html`.\n\n| | |\n| --- | --- |\n");
    for (name, text) in facts(results) {
        let _ = writeln!(out, "| {name} | {text} |");
    }
    out.push_str("\n## Conclusions\n\n");
    let said = conclusions(results, profiles);
    for one in &said {
        let _ = writeln!(out, "- {one}");
    }
    if said.is_empty() {
        out.push_str("None: nothing was compared.\n");
    }
    out.push_str("\n## Figures\n\n");
    for load in results.load_names() {
        out.push_str(&values(results, &load).markdown());
        let changes = changes(results, &load);
        if !changes.rows.is_empty() {
            out.push_str(&changes.markdown());
        }
    }
    let _ = writeln!(out, "{LEGEND}\n");
    for load in results.load_names() {
        if let Some(waits) = waits(results, profiles, &load) {
            out.push_str(&waits.markdown());
        }
    }
    out.push_str(&maxima(results));
    let gains: String = results
        .load_names()
        .iter()
        .flat_map(|load| shifts(results, profiles, load))
        .map(|table| table.markdown())
        .collect();
    if !gains.is_empty() {
        let _ = write!(out, "## Where the CPU went\n\nShares of all samples.\n\n{gains}");
    }
    if !flames.is_empty() {
        out.push_str("## Flame graphs\n\n");
        for flame in flames {
            let _ = writeln!(out, "- [{}]({})", flame.title(), flame.file());
        }
        out.push('\n');
    }
    if let Some(table) = cost_of_profiles(results) {
        out.push_str(&table.markdown());
    }
    out.push_str(&windows(results).markdown());
    out.push_str("## Commands and reports\n\n");
    for configuration in &results.configurations {
        let _ =
            writeln!(out, "### {}\n\n```\n{}\n```\n", configuration.name, configuration.commands.join("\n"));
        for load in results.load_names() {
            if let Some(run) = results.runs(&configuration.name, &load).first() {
                let _ = writeln!(out, "```\n$ {}\n{}```\n", run.command, short(&run.text));
            }
        }
    }
    let _ = write!(out, "## The lab file\n\n```toml\n{}```\n", results.lab);
    out
}

/// How the highest rates were found.
fn maxima(results: &Results) -> String {
    let columns = ["configuration", "load", "closed loop", "highest rate", "p99 up to", "rates tried"];
    let mut table = Table::new("Highest rates, one search each", &columns);
    for configuration in &results.configurations {
        for one in results.steps_of(&configuration.name).flat_map(|step| &step.maxima) {
            table.row([
                configuration.name.clone(),
                one.load.clone(),
                format!("{:.0}/s", one.closed_per_second),
                one.highest.map_or_else(|| "none".into(), |rate| format!("{}/s", grouped(rate))),
                latency(one.p99_max),
                one.trials.len().to_string(),
            ]);
        }
    }
    if table.rows.is_empty() { String::new() } else { table.markdown() }
}
