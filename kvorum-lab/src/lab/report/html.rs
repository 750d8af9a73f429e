//! The report as one HTML page.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::chart::{Axis, Line, colour, draw};
use super::{Flame, LEGEND, Table, changes, cost_of_profiles, facts, shifts, values, waits, windows};
use crate::lab::Profiles;
use crate::lab::conclusions::{conclusions, warnings};
use crate::lab::figures::{Cell, Figure};
use crate::lab::profile::Event;
use crate::lab::results::{Results, Run};
use crate::monitor::SecondFigures;
use crate::suite::table::median;
use crate::units::float;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// The whole page.
pub(super) fn report(results: &Results, profiles: &Profiles, flames: &[Flame]) -> String {
    let title = escape(&results.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">\
         <title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n"
    );
    // Writing into a `String` cannot fail.
    for warning in warnings(results) {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escape(&warning));
    }
    out.push_str("<dl class=\"facts\">");
    for (name, text) in facts(results) {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(&name), escape(&text));
    }
    out.push_str("</dl>\n<h2>Conclusions</h2>\n<ul>");
    for one in conclusions(results, profiles) {
        let _ = write!(out, "<li>{}</li>", code(&one));
    }
    out.push_str("</ul>\n");
    for load in results.load_names() {
        out.push_str(&load_section(results, profiles, flames, &load));
    }
    let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(LEGEND));
    out.push_str("<h2>Behind the figures</h2>\n");
    if let Some(cost) = cost_of_profiles(results) {
        out.push_str(&details(&cost.title.clone(), &table(&cost)));
    }
    let windows = windows(results);
    out.push_str(&details(&windows.title.clone(), &table(&windows)));
    for configuration in &results.configurations {
        let mut inner = format!("<pre>{}</pre>", escape(&configuration.commands.join("\n")));
        for load in results.load_names() {
            for (run, number) in results.runs(&configuration.name, &load).iter().zip(1..) {
                let text = format!("$ {}\n{}", run.command, run.text);
                let _ =
                    write!(inner, "<h4>{}, repeat {number}</h4><pre>{}</pre>", escape(&load), escape(&text));
            }
        }
        out.push_str(&details(&format!("Commands and reports: {}", configuration.name), &inner));
    }
    out.push_str(&details("The lab file", &format!("<pre>{}</pre>", escape(&results.lab))));
    let _ = write!(
        out,
        "</main>\n<script type=\"application/json\" id=\"flames\">{}</script>\n<script>\n{SCRIPT}</script>\n</body></html>\n",
        flame_data(flames, profiles)
    );
    out
}

fn load_section(results: &Results, profiles: &Profiles, flames: &[Flame], load: &str) -> String {
    let name = escape(load);
    let mut out = format!("<h2>{name}</h2>\n<h3>Figures</h3>\n{}", table(&values(results, load)));
    let changes = changes(results, load);
    if !changes.rows.is_empty() {
        let _ = write!(out, "<h3>Changes, stage by stage</h3>\n{}", table(&changes));
    }
    let _ = write!(out, "<h3>Latency by percentile</h3>\n{}", percentile_chart(results, load));
    let _ = write!(
        out,
        "<h3>Throughput over time, worst repeat at each second</h3>\n{}",
        time_chart(
            results,
            load,
            "operations/s",
            |second| float(second.succeeded),
            f64::min,
            |value| format!("{value:.0}")
        )
    );
    let millis = |value: f64| format!("{} ms", value / 1e6);
    let _ = write!(
        out,
        "<h3>p99 of each second, worst repeat</h3>\n{}",
        time_chart(results, load, "p99", |second| float(second.p99), f64::max, millis)
    );
    for figure in [Figure::Cpu, Figure::Memory, Figure::Maximum, Figure::Alloc] {
        out.push_str(&bars(results, load, figure));
    }
    let own: Vec<&Flame> = flames.iter().filter(|flame| flame.load == *load).collect();
    if !own.is_empty() {
        let _ = write!(
            out,
            "<h3>Flame graphs</h3>\n<p class=\"note\">Of all nodes together, under {name} at its rate. Click a frame \
             to zoom, the lowest to go back. In differences red has gained and blue has lost against the stage before, \
             in absolute values: load and length are the same.</p>\n"
        );
        for event in Event::ALL {
            for flame in own.iter().filter(|flame| flame.event == event) {
                let _ = writeln!(
                    out,
                    "<details class=\"flame\" data-flame=\"{0}\" data-unit=\"{1}\"><summary>{2}</summary>\
                     <p><a href=\"{3}\">as a file of its own</a></p></details>",
                    escape(&flame.name()),
                    event.unit(),
                    escape(&flame.title()),
                    escape(&flame.file()),
                );
            }
        }
    }
    if let Some(waits) = waits(results, profiles, load) {
        let _ = write!(out, "<h3>Waits by name</h3>\n{}", table(&waits));
    }
    for one in shifts(results, profiles, load) {
        out.push_str(&details(&format!("Frames that gained and lost most: {}", one.title), &table(&one)));
    }
    out
}

/// Latency over share, the median of the repeats at each share.
fn percentile_chart(results: &Results, load: &str) -> String {
    let mut lines = Vec::new();
    for configuration in &results.configurations {
        let runs = results.runs(&configuration.name, load);
        let points = curve(&runs);
        let is_doubtful = runs.iter().any(|run| !run.is_latency_result());
        lines.push(Line { name: configuration.name.clone(), points, is_doubtful });
    }
    let all = || lines.iter().flat_map(|line| &line.points);
    let furthest = all().map(|point| point.0).fold(1.0, f64::max);
    let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|point| point.1).fold(0.0, f64::max);
    if high <= 0.0 {
        return "<p class=\"note\">Nothing succeeded.</p>\n".into();
    }
    let y = Axis::log("latency", (low, high), short_latency);
    let chart = draw(&format!("Latency of {load} by percentile"), &Axis::percentiles(furthest), &y, &lines);
    framed(&chart, &lines)
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

/// A figure second by second, the worst of the repeats: a median would hide a stall of a single repeat.
fn time_chart(
    results: &Results,
    load: &str,
    title: &str,
    of: impl Fn(&SecondFigures) -> f64,
    worst: fn(f64, f64) -> f64,
    text: impl Fn(f64) -> String,
) -> String {
    let mut lines = Vec::new();
    for configuration in &results.configurations {
        let runs = results.runs(&configuration.name, load);
        let length = runs.iter().map(|run| run.seconds.len()).min().unwrap_or(0);
        let at = |second: usize| {
            let seen = runs.iter().filter_map(|run| run.seconds.get(second)).map(&of);
            seen.reduce(worst).unwrap_or(0.0)
        };
        let points = (0..length).map(|second| (float(second as u64) + 1.0, at(second))).collect();
        lines.push(Line { name: configuration.name.clone(), points, is_doubtful: false });
    }
    let highest = |of: &dyn Fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max)
    };
    let x = Axis::linear("seconds", highest(&|point| point.0), |value| value.to_string());
    let y = Axis::linear(title, highest(&|point| point.1), text);
    framed(&draw(&format!("{title} of {load} over time"), &x, &y, &lines), &lines)
}

/// A chart that scrolls where the window is narrow, and its legend.
fn framed(chart: &str, lines: &[Line]) -> String {
    let mut out = String::from("<p class=\"legend\">");
    for (nth, line) in lines.iter().enumerate() {
        let doubt = if line.is_doubtful { " (overloaded: no result)" } else { "" };
        let _ = write!(out, "<span class=\"{}\">{}{doubt}</span> ", colour(nth), escape(&line.name));
    }
    let _ = writeln!(out, "</p><div class=\"scroll\">{chart}</div>");
    out
}

/// A bar for each configuration; an empty text if none has the figure.
fn bars(results: &Results, load: &str, figure: Figure) -> String {
    let cells: Vec<(&str, Cell)> = results
        .configurations
        .iter()
        .map(|one| (one.name.as_str(), figure.cell(results, &one.name, load)))
        .collect();
    let value = |cell: &Cell| match cell {
        Cell::Value(sample) => Some(sample.mean),
        Cell::Missing | Cell::Overloaded => None,
    };
    let highest = cells.iter().filter_map(|(_, cell)| value(cell)).fold(0.0, f64::max);
    if highest <= 0.0 {
        return String::new();
    }
    let mut out = format!("<h3>{}</h3>\n<table class=\"bars\">", escape(&capital(figure.title())));
    for (nth, (name, cell)) in cells.iter().enumerate() {
        let percent = value(cell).unwrap_or(0.0) / highest * 100.0;
        let _ = write!(
            out,
            "<tr><th>{}</th><td><div class=\"bar {}\" style=\"width:{percent:.1}%\"></div></td><td>{}</td></tr>",
            escape(name),
            colour(nth),
            escape(&figure.cell_text(cell)),
        );
    }
    out.push_str("</table>\n");
    out
}

fn table(table: &Table) -> String {
    let mut out = String::from("<div class=\"scroll\"><table>");
    if !table.columns.is_empty() {
        out.push_str("<thead><tr>");
        for head in &table.columns {
            let _ = write!(out, "<th>{}</th>", escape(head));
        }
        out.push_str("</tr></thead>");
    }
    out.push_str("<tbody>");
    for row in &table.rows {
        let mut cells = row.iter();
        let head = cells.next().map_or_else(String::new, |cell| escape(cell));
        let _ = write!(out, "<tr><th>{head}</th>");
        for cell in cells {
            // Changes beyond the noise, and cells without a result, are highlighted.
            let class = match cell.as_str() {
                "overloaded" => " class=\"bad\"",
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

fn details(summary: &str, inner: &str) -> String {
    format!("<details><summary>{}</summary>{inner}</details>\n", escape(summary))
}

/// The trees that the page's script draws, by name.
fn flame_data(flames: &[Flame], profiles: &Profiles) -> String {
    let mut all = Map::new();
    for flame in flames {
        let of = |name: &String| profiles.get(&(name.clone(), flame.load.clone(), flame.event));
        let before = flame.before.as_ref().and_then(of);
        if let Some(stacks) = of(&flame.configuration) {
            all.insert(flame.name(), stacks.tree(before));
        }
    }
    // Inside a script only this sequence could end it.
    Value::Object(all).to_string().replace("</", "<\\/")
}

/// A short text of a latency, as 250 us or 1.5 ms, without digits that an axis does not need.
fn short_latency(nanos: f64) -> String {
    let (value, unit) = match nanos {
        small if small < 1e6 => (small / 1e3, "µs"),
        middle if middle < 1e9 => (middle / 1e6, "ms"),
        large => (large / 1e9, "s"),
    };
    format!("{} {unit}", (value * 100.0).round() / 100.0)
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
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
