//! Rows `get` and `put`: CPU microseconds per request, of the node and of the bare responder under one load.

use std::time::Duration;

use super::process::{BareOptions, Server, Syncs};
use super::table::{Table, median, verdict};
use super::wrk::{HOT_KEY, Wrk, WrkLoad, WrkSample};
use super::{Section, Suite};
use crate::error::LabError;
use crate::units::grouped;

/// Before each measurement, so that connections, caches and branch predictors are warm.
const WARM_UP: Duration = Duration::from_secs(1);

/// `--memory-budget` of the node in these rows: the example of the documentation.
const MEMORY_BUDGET: &str = "256MiB";

/// One line of the table.
struct Row {
    name: &'static str,
    load: WrkLoad,
    /// `None`: the bare responder, otherwise the node's durability.
    durability: Option<&'static str>,
    /// The row it is compared with, and the aim: at most this many times its figure.
    versus: Option<(&'static str, f64)>,
}

const BARE_GET: &str = "bare responder, GET";
const BARE_PUT: &str = "bare responder, PUT";
const NODE_PUT_OS: &str = "node, PUT, os";

const ROWS: [Row; 5] = [
    Row { name: BARE_GET, load: WrkLoad::Get, durability: None, versus: None },
    Row {
        name: "node, GET hot key",
        load: WrkLoad::Get,
        durability: Some("os"),
        versus: Some((BARE_GET, 1.8)),
    },
    Row { name: BARE_PUT, load: WrkLoad::Put, durability: None, versus: None },
    Row { name: NODE_PUT_OS, load: WrkLoad::Put, durability: Some("os"), versus: Some((BARE_PUT, 3.0)) },
    Row {
        name: "node, PUT, always",
        load: WrkLoad::Put,
        durability: Some("always"),
        versus: Some((NODE_PUT_OS, 1.5)),
    },
];

/// Measures the rows in turn, round after round, and compares their medians.
pub(super) fn run(suite: &Suite) -> Result<Table, LabError> {
    let wrk = Wrk::find(suite.scratch(), suite.args.load_core)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| suite.wants(section_of(row.load))).collect();
    let mut samples: Vec<Vec<WrkSample>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=suite.args.rounds {
        for (row, samples) in rows.iter().zip(&mut samples) {
            suite.say(&format!("round {round} of {}: {}", suite.args.rounds, row.name));
            samples.push(measure(suite, &wrk, row)?);
        }
    }
    let window = suite.sizes.wrk.as_secs();
    let mut table = Table::new(
        format!(
            "CPU per request: wrk -t1 -c64 -d{window}s, 100-byte values, medians of {}",
            suite.args.rounds
        ),
        &[
            "row",
            "CPU us/request",
            "(min to max)",
            "requests/s",
            "ratio",
            "aim",
            "",
            "steal, cores",
            "faults",
        ],
    );
    let cpu_of = |name: &str| {
        let found = rows.iter().zip(&samples).find(|(row, _)| row.name == name);
        found.map(|(_, samples)| median(samples.iter().map(|sample| sample.cpu_micros)))
    };
    for (row, samples) in rows.iter().zip(&samples) {
        let cpu = median(samples.iter().map(|sample| sample.cpu_micros));
        let least = samples.iter().map(|sample| sample.cpu_micros).fold(f64::INFINITY, f64::min);
        let most = samples.iter().map(|sample| sample.cpu_micros).fold(0.0, f64::max);
        let ratio = row.versus.and_then(|(name, aim)| cpu_of(name).map(|base| (cpu / base, aim, name)));
        let (ratio, aim, judged) = match ratio {
            Some((ratio, aim, name)) => {
                (format!("{ratio:.2}"), format!("<= {aim} x {name}"), verdict(ratio <= aim))
            }
            None => (String::new(), String::new(), String::new()),
        };
        table.row([
            row.name.into(),
            format!("{cpu:.2}"),
            format!("{least:.2} to {most:.2}"),
            format!("{:.0}", median(samples.iter().map(|sample| sample.rate))),
            ratio,
            aim,
            judged,
            format!("{:.3}", samples.iter().map(|sample| sample.steal_cores).fold(0.0, f64::max)),
            grouped(samples.iter().map(|sample| sample.faults).sum()),
        ]);
    }
    if samples.iter().flatten().any(|sample| sample.faults > 0) {
        table
            .note("!! There were answers that are no success: the figures of those rows are not to be used.");
    }
    Ok(table)
}

fn section_of(load: WrkLoad) -> Section {
    match load {
        WrkLoad::Get | WrkLoad::GetAny => Section::Get,
        WrkLoad::Put => Section::Put,
    }
}

/// Every round begins with a new process and an empty store: no row inherits background work of another.
fn measure(suite: &Suite, wrk: &Wrk, row: &Row) -> Result<WrkSample, LabError> {
    let server = match row.durability {
        None => {
            let bare = BareOptions { count: 1, busy: Duration::ZERO, syncs: Syncs::Nowhere };
            Server::bare(&suite.bare, suite.scratch(), Some(suite.args.server_core), bare)?
        }
        Some(durability) => {
            Server::node(&suite.node(durability, MEMORY_BUDGET, Some(suite.args.server_core)))?
        }
    };
    if row.durability.is_some() && row.load == WrkLoad::Get {
        server.store(HOT_KEY, &[b'v'; 100], None)?;
    }
    wrk.measure(&server, row.load, None, WARM_UP)?;
    wrk.measure(&server, row.load, None, suite.sizes.wrk)
}
