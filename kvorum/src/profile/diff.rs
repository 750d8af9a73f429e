//! `kvorum profile diff`: two profiles beside each other, as shares of each.
//!
//! A profile is a file of collapsed stacks, or a flame graph of `kvorum profile`, which has its stacks as text inside.
//! Threads that differ only in a number are one. Waits by name are left out: they lie within each other, and are shares of
//! nothing.

use crate::client::{Failure, write_out};
use crate::flag;
use clap::{Arg, ArgMatches, Command, value_parser};
use kvorum_lab::lab::profile::{Event as Unit, Stacks};
use kvorum_profiler::{Event, stacks_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

/// The rows of the table, unless `--rows` says otherwise.
const ROWS: &str = "20";
/// The outermost frame of waits by name.
const NAMED_WAITS: &str = "named waits;";

pub(super) fn command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).required(true).value_parser(value_parser!(OsString)).help(help)
    };
    Command::new("diff")
        .about("Compares two profiles: the functions whose shares have changed most, in percentage points")
        .arg(file("before", "The first profile: collapsed stacks, or a flame graph of `kvorum profile`"))
        .arg(file("after", "The second profile"))
        .arg(
            flag("output", "FILE", "Also writes a flame graph of the second, coloured by the change (SVG)")
                .short('o')
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            flag("rows", "N", "How many functions to print")
                .value_parser(value_parser!(u16))
                .default_value(ROWS),
        )
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let path = |name: &str| matches.get_one::<OsString>(name).cloned().unwrap_or_default();
    let (before, after) = (Source::read(path("before").as_ref())?, Source::read(path("after").as_ref())?);
    if let (Some(one), Some(other)) = (before.event, after.event)
        && one != other
    {
        let why = format!("{} and {} profiles cannot be compared", one.name(), other.name());
        return Err(Failure::Usage(why));
    }
    if let Some(output) = matches.get_one::<OsString>("output") {
        let svg = difference_svg(&before, &after)?;
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        std::fs::write(output, svg)?;
    }
    let rows = matches.get_one::<u16>("rows").copied().unwrap_or_default();
    Ok(write_out(table(&before, &after, rows.into()).as_bytes())?)
}

/// One of the profiles.
struct Source {
    name: String,
    event: Option<Event>,
    /// How many records it is made of, if the file says so.
    samples: Option<u64>,
    stacks: Stacks,
}

impl Source {
    fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        #[expect(clippy::disallowed_methods, reason = "the user names this file")]
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        Self::of(name, &text)
    }

    fn of(name: String, text: &str) -> Result<Self, Failure> {
        let usage = |why: &str| Failure::Usage(format!("{name}: {why}"));
        let (event, samples, text) = if text.trim_start().starts_with('<') {
            let found = stacks_of(text).ok_or_else(|| {
                usage("no stacks in it; take a flame graph of `kvorum profile`, or collapsed stacks")
            })?;
            (Some(found.0), Some(found.1.samples), found.2)
        } else {
            (None, None, text.to_owned())
        };
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with(NAMED_WAITS)).collect();
        let read = Stacks::read(&kept.join("\n")).map_err(|error| usage(&error.to_string()))?;
        let mut stacks = Stacks::default();
        stacks.merge(&read);
        if stacks.total() == 0 {
            return Err(usage("no stacks to compare"));
        }
        Ok(Self { name, event, samples, stacks })
    }

    /// The number of records from which the error of a share follows; none where values are no counts.
    fn records(&self) -> Option<u64> {
        match self.event? {
            Event::Cpu | Event::Wall | Event::Alloc | Event::Live => self.samples,
            Event::Lock => None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "values of a profile are below 2^53")]
const fn float(value: u64) -> f64 {
    value as f64
}

/// The functions whose shares differ most, the largest change first.
fn table(before: &Source, after: &Source, rows: usize) -> String {
    let (old, new) = (before.stacks.inclusive(), after.stacks.inclusive());
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let of = |all: &BTreeMap<&str, u64>, source: &Source, name: &str| {
        100.0 * float(all.get(name).copied().unwrap_or(0)) / float(source.stacks.total())
    };
    let mut changes: Vec<(f64, f64, &str)> =
        names.into_iter().map(|name| (of(&old, before, name), of(&new, after, name), name)).collect();
    changes.sort_by(|one, other| (other.1 - other.0).abs().total_cmp(&(one.1 - one.0).abs()));
    let error = |before_share: f64, after_share: f64| {
        let (old, new) = (before.records()?, after.records()?);
        let variance = |percent: f64, records: u64| percent * (100.0 - percent) / float(records.max(1));
        Some(1.96 * (variance(before_share, old) + variance(after_share, new)).sqrt())
    };
    let mut out = format!(
        "A: {} ({})\nB: {} ({})\n{:>9} {:>8} {:>9} {:>9}  function, with what it calls\n",
        before.name,
        size_of(before),
        after.name,
        size_of(after),
        "points",
        "+- 95 %",
        "A",
        "B",
    );
    for (old, new, name) in changes.into_iter().take(rows).filter(|(old, new, _)| (new - old).abs() >= 0.005)
    {
        let error = error(old, new).map_or_else(String::new, |error| format!("{error:.2}"));
        let _ = writeln!(out, "{:>+9.2} {error:>8} {old:>8.2}% {new:>8.2}%  {name}", new - old);
    }
    out
}

fn size_of(source: &Source) -> String {
    match (source.event, source.samples) {
        (Some(event), Some(samples)) => format!("{}, {samples} records", event.name()),
        _ => format!("a total of {}", source.stacks.total()),
    }
}

/// The flame graph of `after`; widths are its own values, colours the change of each frame's share.
fn difference_svg(before: &Source, after: &Source) -> Result<String, Failure> {
    let unit = match after.event.or(before.event) {
        Some(Event::Alloc | Event::Live) => Unit::Alloc,
        Some(Event::Lock) => Unit::Lock,
        Some(Event::Cpu | Event::Wall) | None => Unit::Cpu,
    };
    let scaled = scaled(&before.stacks, after.stacks.total())?;
    let title = format!("{} against {}: red has a larger share, blue a smaller one", after.name, before.name);
    after.stacks.difference_svg(&scaled, &title, unit).map_err(|error| Failure::Failed(error.to_string()))
}

/// The same shares of another total.
fn scaled(stacks: &Stacks, total: u64) -> Result<Stacks, Failure> {
    let whole = u128::from(stacks.total().max(1));
    let mut text = String::new();
    for line in stacks.text().lines() {
        let Some((frames, value)) = line.rsplit_once(' ') else { continue };
        let value = u128::from(value.parse::<u64>().unwrap_or(0)) * u128::from(total);
        let _ = writeln!(text, "{frames} {}", (value + whole / 2) / whole);
    }
    Stacks::read(&text).map_err(|error| Failure::Failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source::of(name.to_owned(), text).unwrap_or_else(|_| panic!("{text}"))
    }

    /// Goal: changes are of shares, not of totals, sorted, and threads of a kind are one. Method: a profile of twice the
    /// length with one function grown.
    #[test]
    fn changes_are_of_shares() {
        let before = source("a", "net0;get;hash 10\nnet1;get;hash 10\nnet0;put 80\n");
        let after = source("b", "net0;get;hash 100\nnet0;put 100\nnamed waits;x 9999\n");
        let text = table(&before, &after, 10);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..3], ["+30.00", "20.00%", "50.00%"], "{text}");
        assert_eq!(rows.iter().map(|row| *row.last().unwrap()).collect::<Vec<_>>(), ["get", "hash", "put"]);
        assert_eq!(table(&before, &after, 1).lines().count(), 4);
        let svg = difference_svg(&before, &after).ok().unwrap();
        assert!(svg.contains("put (100 samples, 50.00%; -30.00%)"), "{svg}");
    }

    /// Goal: the error of a share follows from the records of flame graphs. Method: 100 and 400 samples, by hand.
    #[test]
    fn shares_have_an_error() {
        let graph = |samples: u64, text: &str| {
            source(
                "x",
                &format!(
                    "<svg><metadata id=\"kvorum-profile\" data-event=\"cpu\" data-seconds=\"1.0\" data-samples=\"{samples}\" \
                 data-title=\"x\">\n{text}</metadata></svg>"
                ),
            )
        };
        let text = table(&graph(100, "t;a 50\nt;b 50\n"), &graph(400, "t;a 300\nt;b 100\n"), 10);
        // 1.96 * sqrt(50 * 50 / 100 + 75 * 25 / 400)
        assert!(text.contains("   +25.00    10.68    50.00%    75.00%  a\n"), "{text}");
    }

    /// Goal: files that cannot be compared are refused with a reason. Method: one each.
    #[test]
    fn bad_files_are_refused() {
        let refused = |text: &str| match Source::of("f".to_owned(), text) {
            Err(Failure::Usage(why)) => why,
            _ => panic!("{text}"),
        };
        assert!(refused("<svg></svg>").contains("no stacks in it"));
        assert!(refused("a;b x\n").contains("\"a;b x\""));
        assert!(refused("named waits;x 5\n").contains("no stacks to compare"));
        assert!(refused("").contains("no stacks to compare"));
    }
}
