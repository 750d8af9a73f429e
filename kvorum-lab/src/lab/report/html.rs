//! The report as one HTML page.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::chart::{Axis, Kind, Line, Size, colour, draw};
use super::{Flame, Report, Table, run_text};
use crate::lab::conclusions::{conclusions, control};
use crate::lab::figures::{Cell, Figure};
use crate::lab::profile::Event;
use crate::lab::results::Run;
use crate::lab::texts::Text;
use crate::lab::warnings::{Warning, warnings};
use crate::monitor::SecondFigures;
use crate::suite::table::median;
use crate::units::float;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// A plot whose highest value is so many times its median has a logarithmic axis.
const SPIKE: f64 = 20.0;

/// What a plot over time shows.
struct OverTime {
    title: String,
    of: fn(&SecondFigures) -> f64,
    /// Of the repeats at each second: a median would hide a stall of a single repeat.
    worst: fn(f64, f64) -> f64,
    kind: Kind,
}

impl Report<'_> {
    /// The whole page.
    pub(super) fn html(&self) -> String {
        let title = escape(&self.results.title);
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"{}\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">\
             <title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n",
            self.language.code()
        );
        let warnings = warnings(self.results, self.language);
        out.push_str(&self.warned(&warnings));
        out.push_str("<dl class=\"facts\">");
        // Writing into a `String` cannot fail.
        for (name, text) in self.facts() {
            let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(&name), escape(&text));
        }
        let _ = write!(out, "</dl>\n<h2>{}</h2>\n{}", self.text(Text::Conclusions), self.said_html());
        for load in self.results.load_names() {
            out.push_str(&self.load_section(&load, &warnings));
        }
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(self.text(Text::Legend)));
        out.push_str(&self.behind());
        let _ = write!(
            out,
            "</main>\n<script type=\"application/json\" id=\"flames\">{}</script>\n\
             <script type=\"application/json\" id=\"texts\">{}</script>\n<script>\n{SCRIPT}</script>\n</body></html>\n",
            self.flame_data(),
            self.script_texts(),
        );
        out
    }

    /// The warnings behind their count; open if one of them takes figures away.
    fn warned(&self, warnings: &[Warning]) -> String {
        if warnings.is_empty() {
            return String::new();
        }
        let open = if warnings.iter().any(|one| one.is_grave) { " open" } else { "" };
        let count = self.fill(Text::Warnings, &[("count", &warnings.len().to_string())]);
        let mut out = format!("<details class=\"warnings\"{open}><summary>{}</summary><ul>", escape(&count));
        for warning in warnings {
            let class = if warning.is_grave { " class=\"grave\"" } else { "" };
            let _ = write!(out, "<li{class}>{}</li>", escape(&warning.said()));
        }
        out + "</ul></details>\n"
    }

    /// The conclusions, and how often the method errs.
    fn said_html(&self) -> String {
        let said = conclusions(self.results, self.findings, self.profiles, self.language);
        let mut out = String::new();
        for one in &said {
            let _ = write!(out, "<h3>{}</h3><ul>", escape(&one.place()));
            for sentence in &one.sentences {
                let _ = write!(out, "<li>{}</li>", code(sentence));
            }
            out.push_str("</ul>\n");
        }
        if said.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", escape(self.text(Text::NothingCompared)));
        }
        let control = control(self.results, self.findings, self.language);
        if !control.is_empty() {
            let heading = escape(self.text(Text::ControlHeading));
            let _ = writeln!(out, "<h3>{heading}</h3><p>{}</p>", escape(&control.join(" ")));
        }
        out
    }

    fn load_section(&self, load: &str, warnings: &[Warning]) -> String {
        let name = escape(load);
        let marks: Vec<String> = self.names().iter().map(|one| marks(warnings, one, load)).collect();
        let mut out = format!(
            "<h2>{name}</h2>\n<h3>{}</h3>\n{}",
            self.text(Text::Figures),
            self.table(&self.values(load), &marks)
        );
        let changes = self.changes(load);
        if !changes.rows.is_empty() {
            let _ = write!(out, "<h3>{}</h3>\n{}", self.text(Text::Changes), self.table(&changes, &[]));
        }
        let control = self.control(load);
        if !control.rows.is_empty() {
            out.push_str(&details(self.text(Text::ControlTable), &self.table(&control, &[])));
        }
        let _ = write!(out, "<h3>{}</h3>\n{}", self.text(Text::ByPercentile), self.percentile_chart(load));
        let _ = writeln!(out, "<h3>{}</h3>", self.text(Text::OverTime));
        for plot in [
            OverTime {
                title: self.text(Text::Throughput).into(),
                of: |second| float(second.succeeded),
                worst: f64::min,
                kind: Kind::Count,
            },
            OverTime {
                title: self.text(Text::P99OverTime).into(),
                of: |second| float(second.p99),
                worst: f64::max,
                kind: Kind::Nanos,
            },
        ] {
            out.push_str(&self.time_charts(load, &plot));
        }
        for figure in [Figure::Cpu, Figure::Memory, Figure::Maximum, Figure::Alloc] {
            out.push_str(&self.bars(load, figure));
        }
        out.push_str(&self.processes_html(load));
        out.push_str(&self.flame_section(load));
        if let Some(waits) = self.waits(load) {
            out.push_str(&details(&waits.title.clone(), &self.table(&waits, &[])));
        }
        for one in self.shifts(load) {
            out.push_str(&details(&one.title.clone(), &self.table(&one, &[])));
        }
        out
    }

    /// What is needed to judge or repeat the figures.
    fn behind(&self) -> String {
        let mut out = format!("<h2>{}</h2>\n", self.text(Text::Behind));
        for table in self.cost_of_profiles().into_iter().chain([self.windows()]) {
            out.push_str(&details(&table.title.clone(), &self.table(&table, &[])));
        }
        for configuration in &self.results.configurations {
            let mut inner = format!("<pre>{}</pre>", escape(&configuration.commands.join("\n")));
            for load in self.results.load_names() {
                for (run, number) in self.results.runs(&configuration.name, &load).iter().zip(1..) {
                    let text = run_text(configuration, run);
                    let repeat = self.fill(Text::Repeat, &[("number", &number.to_string())]);
                    let _ = write!(inner, "<h4>{}, {repeat}</h4><pre>{}</pre>", escape(&load), escape(&text));
                }
            }
            let title = self.fill(Text::CommandsOf, &[("configuration", &configuration.name)]);
            out.push_str(&details(&title, &inner));
        }
        let file = format!("<pre>{}</pre>", escape(&self.results.lab));
        out.push_str(&details(self.text(Text::LabFile), &file));
        out
    }

    /// The flame graphs of a load: a row of pictures for each event, to choose one or two of.
    fn flame_section(&self, load: &str) -> String {
        let is_own = |flame: &&Flame| flame.load == *load && flame.before.is_none();
        let own: Vec<&Flame> = self.flames.iter().filter(is_own).collect();
        if own.is_empty() {
            return String::new();
        }
        let note = self.fill(Text::FlameNote, &[("load", load)]);
        let mut out =
            format!("<h3>{}</h3>\n<p class=\"note\">{}</p>\n", self.text(Text::FlameGraphs), escape(&note));
        for event in Event::ALL {
            let row: Vec<_> = own.iter().filter(|flame| flame.event == event).collect();
            if row.is_empty() {
                continue;
            }
            let unit = self.text(unit_word(event));
            let _ = write!(
                out,
                "<section class=\"flames\" data-unit=\"{unit}\"><h4>{event}</h4><div class=\"thumbs\">"
            );
            for flame in row {
                let key = (flame.configuration.clone(), flame.load.clone(), flame.event);
                let total = self.profiles.get(&key).map_or(0, crate::lab::profile::Stacks::total);
                let _ = write!(
                    out,
                    "<button type=\"button\" class=\"thumb\" data-flame=\"{}\" data-title=\"{}\" data-file=\"{}\" \
                     aria-pressed=\"false\"><span>{}</span><canvas width=\"240\" height=\"72\"></canvas><small>{} {unit}</small></button>",
                    escape(&flame.name()),
                    escape(&flame.title()),
                    escape(&flame.file()),
                    escape(&flame.configuration),
                    self.language.number(float(total), 0),
                );
            }
            out.push_str("</div><div class=\"pictures\"></div></section>\n");
        }
        out
    }

    /// Latency over share, the median of the repeats at each share.
    fn percentile_chart(&self, load: &str) -> String {
        let mut lines = Vec::new();
        for name in self.names() {
            let runs = self.results.runs(name, load);
            let is_doubtful = runs.iter().any(|run| !run.is_latency_result());
            lines.push(Line { name: name.into(), place: lines.len(), points: curve(&runs), is_doubtful });
        }
        let all = || lines.iter().flat_map(|line| &line.points);
        let furthest = all().map(|point| point.0).fold(1.0, f64::max);
        let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let high = all().map(|point| point.1).fold(0.0, f64::max);
        if high <= 0.0 {
            return format!("<p class=\"note\">{}</p>\n", self.text(Text::NothingSucceeded));
        }
        let y = Axis::log(self.text(Text::Latency), (low, high), Kind::Nanos, self.language);
        let x = Axis::percentiles(self.text(Text::ShareOfRequests), furthest, self.language);
        let label = format!("{}: {load}", self.text(Text::ByPercentile));
        self.framed(&draw(&label, Size::WHOLE, &x, &y, &lines), &lines)
    }

    /// A small plot for each configuration, all with the same axes.
    fn time_charts(&self, load: &str, plot: &OverTime) -> String {
        let mut lines: Vec<Line> = Vec::new();
        for name in self.names() {
            let runs = self.results.runs(name, load);
            let length = runs.iter().map(|run| run.seconds.len()).min().unwrap_or(0);
            let at = |second: usize| {
                let seen = runs.iter().filter_map(|run| run.seconds.get(second)).map(plot.of);
                seen.reduce(plot.worst).unwrap_or(0.0)
            };
            let points = (0..length).map(|second| (float(second as u64) + 1.0, at(second))).collect();
            lines.push(Line { name: name.into(), place: lines.len(), points, is_doubtful: false });
        }
        self.multiples(load, &plot.title, plot.kind, &lines)
    }

    /// A small plot for each line, all with the same axes.
    pub(super) fn multiples(&self, load: &str, title: &str, kind: Kind, lines: &[Line]) -> String {
        let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let seconds = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
        let highest = values().fold(0.0, f64::max);
        let is_spiky =
            highest > SPIKE * median(values()).max(f64::MIN_POSITIVE) && values().all(|one| one > 0.0);
        let y = if is_spiky {
            let lowest = values().fold(f64::INFINITY, f64::min);
            Axis::log(title, (lowest, highest), kind, self.language)
        } else {
            Axis::linear(title, highest, kind, self.language)
        };
        let x = Axis::linear(self.text(Text::Seconds), seconds, Kind::Count, self.language);
        let mut out = String::from("<div class=\"multiples\">");
        for line in lines.iter().filter(|line| !line.points.is_empty()) {
            let label = format!("{title}: {load}, {}", line.name);
            let chart = draw(&label, Size::SMALL, &x, &y, std::slice::from_ref(line));
            let _ = write!(out, "<figure><figcaption>{}</figcaption>{chart}</figure>", escape(&line.name));
        }
        out.push_str("</div>\n");
        if is_spiky {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", self.text(Text::LogAxis));
        }
        out
    }

    /// A chart that scrolls where the window is narrow, and its legend, whose names hide and show the lines.
    fn framed(&self, chart: &str, lines: &[Line]) -> String {
        let mut out = String::from("<div class=\"plot\"><p class=\"legend\">");
        for line in lines {
            let doubt =
                if line.is_doubtful { format!(" {}", self.text(Text::NoResult)) } else { String::new() };
            let _ = write!(
                out,
                "<button type=\"button\" class=\"{}\" data-line=\"{}\" aria-pressed=\"true\">{}{doubt}</button> ",
                colour(line.place),
                line.place,
                escape(&line.name)
            );
        }
        let _ = writeln!(out, "</p><div class=\"scroll\">{chart}</div><p class=\"told\"></p></div>");
        out
    }

    /// A bar with its interval for each configuration; an empty text if none has the figure.
    fn bars(&self, load: &str, figure: Figure) -> String {
        let cell = |name: &'_ str| figure.cell(self.results, name, load);
        let cells: Vec<(&str, Cell)> = self.names().into_iter().map(|name| (name, cell(name))).collect();
        let value = |cell: &Cell| match cell {
            Cell::Value(sample) => Some((sample.mean, sample.half_width().unwrap_or(0.0))),
            Cell::Missing | Cell::Overloaded => None,
        };
        let highest =
            cells.iter().filter_map(|(_, cell)| value(cell)).map(|(mean, _)| mean).fold(0.0, f64::max);
        if highest <= 0.0 {
            return String::new();
        }
        let mut out = format!("<h3>{}</h3>\n<table class=\"bars\">", escape(self.text(figure.title())));
        for (nth, (name, cell)) in cells.iter().enumerate() {
            let (mean, half) = value(cell).unwrap_or_default();
            // Room for intervals beyond the highest mean.
            let percent = |value: f64| (value / highest * 80.0).clamp(0.0, 100.0);
            let (low, high) = (percent(mean - half), percent(mean + half));
            let _ = write!(
                out,
                "<tr><th>{}</th><td><div class=\"bar {}\" style=\"width:{:.1}%\"></div>\
                 <div class=\"interval\" style=\"left:{low:.1}%;width:{:.1}%\"></div></td><td>{}</td></tr>",
                escape(name),
                colour(nth),
                percent(mean),
                high - low,
                escape(&figure.cell_text(cell, self.language)),
            );
        }
        out.push_str("</table>\n");
        out
    }

    /// A table; `marks` stand behind the heads of the columns after the first.
    pub(super) fn table(&self, table: &Table, marks: &[String]) -> String {
        let mut out = String::from("<div class=\"scroll\"><table>");
        if !table.columns.is_empty() {
            out.push_str("<thead><tr>");
            for (nth, head) in table.columns.iter().enumerate() {
                let mark = nth.checked_sub(1).and_then(|nth| marks.get(nth)).map_or("", String::as_str);
                let _ = write!(out, "<th>{}{mark}</th>", escape(head));
            }
            out.push_str("</tr></thead>");
        }
        out.push_str("<tbody>");
        let overloaded = self.text(Text::Overloaded);
        for row in &table.rows {
            let mut cells = row.iter();
            let head = cells.next().map_or_else(String::new, |cell| escape(cell));
            let _ = write!(out, "<tr><th>{head}</th>");
            for cell in cells {
                // Changes that are named, and cells without a result, are highlighted.
                let class = match cell.as_str() {
                    bad if bad == overloaded => " class=\"bad\"",
                    marked if marked.ends_with('*') => " class=\"beyond\"",
                    _ => "",
                };
                let _ = write!(out, "<td{class}>{}</td>", escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>\n");
        for note in &table.notes {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
        }
        out
    }

    /// The trees that the page's script draws, by name. It makes the differences itself.
    fn flame_data(&self) -> String {
        let mut all = Map::new();
        for flame in self.flames.iter().filter(|flame| flame.before.is_none()) {
            let key = (flame.configuration.clone(), flame.load.clone(), flame.event);
            if let Some(stacks) = self.profiles.get(&key) {
                all.insert(flame.name(), stacks.tree());
            }
        }
        in_script(&Value::Object(all))
    }

    /// The words that the page's script writes.
    fn script_texts(&self) -> String {
        let of = |text| self.text(text);
        in_script(&json!({
            "language": self.language.code(),
            "nothing": of(Text::NothingRecorded),
            "find": of(Text::FindFrames),
            "file": of(Text::AsFile),
            "difference": of(Text::Difference),
            "before": of(Text::BeforeWord),
            "shown": of(Text::OfShown),
        }))
    }
}

const fn unit_word(event: Event) -> Text {
    match event {
        Event::Cpu => Text::Samples,
        Event::Alloc => Text::BytesWord,
        Event::Lock => Text::Microseconds,
    }
}

/// A mark for the warnings about a configuration under a load, with their sentences as its title.
fn marks(warnings: &[Warning], configuration: &str, load: &str) -> String {
    let is_about = |warning: &&Warning| {
        warning.configuration.as_deref() == Some(configuration)
            && warning.load.as_deref().is_none_or(|one| one == load)
    };
    let said: Vec<String> = warnings.iter().filter(is_about).map(Warning::said).collect();
    if said.is_empty() {
        return String::new();
    }
    format!(" <abbr class=\"mark\" title=\"{}\">⚠ {}</abbr>", escape(&said.join("\n")), said.len())
}

/// Points of 1 / (1 - share) and nanoseconds.
fn curve(runs: &[&Run]) -> Vec<(f64, f64)> {
    let finite = |run: &Run| run.latency.spectrum.iter().filter(|(share, _)| *share < 1.0).count();
    let length = runs.iter().map(|run| finite(run)).min().unwrap_or(0);
    let point = |nth: usize| {
        let at: Vec<(f64, u64)> =
            runs.iter().filter_map(|run| run.latency.spectrum.get(nth).copied()).collect();
        let share = at.first().map_or(0.0, |(share, _)| *share);
        (1.0 / (1.0 - share), median(at.iter().map(|(_, nanos)| float(*nanos))))
    };
    (0..length).map(point).collect()
}

fn details(summary: &str, inner: &str) -> String {
    format!("<details><summary>{}</summary>{inner}</details>\n", escape(summary))
}

/// JSON inside a script: only one sequence could end it.
fn in_script(value: &Value) -> String {
    value.to_string().replace("</", "<\\/")
}

/// Text between backquotes as code.
fn code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(nth, part)| if nth % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) })
        .collect()
}

/// Text escaped for a page.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}
