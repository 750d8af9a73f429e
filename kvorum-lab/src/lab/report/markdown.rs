//! The report as Markdown, for a repository or a review.

use std::fmt::Write;

use super::{Report, Table, run_text, short};
use crate::lab::conclusions::{conclusions, control};
use crate::lab::language::Unit;
use crate::lab::texts::Text;
use crate::lab::warnings::warnings;
use crate::units::float;

impl Report<'_> {
    /// The report as one text.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", self.results.title);
        // Writing into a `String` cannot fail.
        let (grave, doubts): (Vec<_>, Vec<_>) =
            warnings(self.results, self.language).into_iter().partition(|warning| warning.is_grave);
        for warning in grave {
            let _ = writeln!(out, "> **{}**\n>", warning.said());
        }
        if !doubts.is_empty() {
            let count = self.fill(Text::Warnings, &[("count", &doubts.len().to_string())]);
            let said: Vec<String> = doubts.iter().map(|warning| format!("- {}\n", warning.said())).collect();
            let _ = write!(out, "\n<details><summary>{count}</summary>\n\n{}\n</details>\n", said.concat());
        }
        let _ = write!(out, "\n{}\n\n| | |\n| --- | --- |\n", self.text(Text::SamePlots));
        for (name, text) in self.facts() {
            let _ = writeln!(out, "| {name} | {text} |");
        }
        out.push_str(&self.said());
        let _ = write!(out, "## {}\n\n", self.text(Text::Figures));
        let loads = self.results.load_names();
        for load in &loads {
            out.push_str(&self.values(load).markdown());
            for table in [self.changes(load), self.control(load), self.processes(load)] {
                if !table.rows.is_empty() {
                    out.push_str(&table.markdown());
                }
            }
        }
        let _ = writeln!(out, "{}\n", self.text(Text::Legend));
        for waits in loads.iter().filter_map(|load| self.waits(load)) {
            out.push_str(&waits.markdown());
        }
        let maxima = self.maxima();
        if !maxima.rows.is_empty() {
            out.push_str(&maxima.markdown());
        }
        let shifts: String =
            loads.iter().flat_map(|load| self.shifts(load)).map(|one| one.markdown()).collect();
        if !shifts.is_empty() {
            let _ = write!(out, "## {}\n\n{shifts}", self.text(Text::WhereCpuWent));
        }
        if !self.flames.is_empty() {
            let _ = write!(out, "## {}\n\n", self.text(Text::FlameGraphs));
            for flame in &self.flames {
                let _ = writeln!(out, "- [{}]({})", flame.title(), flame.file());
            }
            out.push('\n');
        }
        if let Some(table) = self.cost_of_profiles() {
            out.push_str(&table.markdown());
        }
        out.push_str(&self.windows().markdown());
        out.push_str(&self.commands());
        let _ = write!(out, "## {}\n\n```toml\n{}```\n", self.text(Text::LabFile), self.results.lab);
        out
    }

    /// The conclusions, and how often the method errs.
    fn said(&self) -> String {
        let mut out = format!("\n## {}\n\n", self.text(Text::Conclusions));
        let said = conclusions(self.results, self.findings, self.profiles, self.language);
        for one in &said {
            let _ = writeln!(out, "- **{}**: {}", one.place(), one.sentences.join(" "));
        }
        if said.is_empty() {
            let _ = writeln!(out, "{}", self.text(Text::NothingCompared));
        }
        let control = control(self.results, self.findings, self.language);
        if !control.is_empty() {
            let _ = write!(out, "\n**{}** {}\n", self.text(Text::ControlHeading), control.join(" "));
        }
        out.push('\n');
        out
    }

    /// The commands of the nodes and the driver, with wrk2's report of each first repeat.
    fn commands(&self) -> String {
        let mut out = format!("## {}\n\n", self.text(Text::Commands));
        for configuration in self.results.shown() {
            let _ = writeln!(
                out,
                "### {}\n\n```\n{}\n```\n",
                configuration.name,
                configuration.commands.join("\n")
            );
            for load in self.results.load_names() {
                if let Some(run) = self.results.runs(&configuration.name, &load).first() {
                    let _ = writeln!(out, "```\n{}```\n", short(&run_text(configuration, run)));
                }
            }
        }
        out
    }

    /// How the highest rates were found.
    fn maxima(&self) -> Table {
        let heads = [
            Text::Configuration,
            Text::Load,
            Text::ClosedLoop,
            Text::HighestRate,
            Text::P99UpTo,
            Text::RatesTried,
        ];
        let mut table = Table::new(self.text(Text::Maxima), &heads.map(|head| self.text(head)));
        let count = |value: f64| self.language.number(value, 0);
        for configuration in &self.results.configurations {
            for one in self.results.steps_of(&configuration.name).flat_map(|step| &step.maxima) {
                table.row([
                    configuration.name.clone(),
                    one.load.clone(),
                    count(one.closed_per_second),
                    one.highest.map_or_else(|| self.text(Text::NoneFound).into(), |rate| count(float(rate))),
                    self.language.amount(Unit::Nanos, float(one.p99_max)),
                    one.trials.len().to_string(),
                ]);
            }
        }
        table
    }
}
