//! The cost of a request on all nodes together, and the highest rate: under wrk, servers on one core.

use super::{DURABILITY, NODES, QUORUM_AIMED_AT, QUORUMS, Subject, fill, name_of};
use crate::error::LabError;
use crate::suite::Suite;
use crate::suite::table::{Table, median, verdict};
use crate::suite::wrk::{Wrk, WrkLoad, WrkSample};
use crate::units::grouped;

/// The aims: CPU microseconds of all nodes together per request.
const GET_CPU_MICROS_MAX: f64 = 30.0;
const PUT_CPU_MICROS_MAX: f64 = 70.0;

/// The aim: a cluster's PUTs per second, at least this share of the single node's.
const PUT_RATE_SHARE_MIN: f64 = 1.0 / 3.0;

/// In this order on the same stores: GETs do not change them.
const LOADS: [WrkLoad; 3] = [WrkLoad::Get, WrkLoad::GetAny, WrkLoad::Put];

/// All measurements.
pub(super) struct Costs {
    rows: Vec<Row>,
}

/// One load on one subject.
struct Row {
    load: WrkLoad,
    subject: Subject,
    samples: Vec<WrkSample>,
}

/// Measures every load on every subject in turn, round after round.
///
/// Every round and subject begin with a new process and an empty store.
pub(super) fn measure(suite: &Suite) -> Result<Costs, LabError> {
    let sizes = suite.sizes.cluster;
    let wrk = Wrk::find(suite.scratch(), suite.args.load_core)?;
    let subjects: Vec<Subject> =
        std::iter::once(Subject::Single).chain(QUORUMS.map(Subject::Cluster)).collect();
    let mut rows: Vec<Row> = Vec::new();
    for load in LOADS {
        rows.extend(subjects.iter().map(|&subject| Row { load, subject, samples: Vec::new() }));
    }
    let rounds = rounds(suite);
    for round in 1..=rounds {
        for &subject in &subjects {
            suite.say(&format!("cluster: round {round} of {rounds}: {subject}"));
            let server = subject.start(suite, Some(suite.args.server_core))?;
            fill(suite, &server, subject)?;
            for row in rows.iter_mut().filter(|row| row.subject == subject) {
                if !sizes.warm_up.is_zero() {
                    wrk.measure(&server, row.load, subject.replicas(), sizes.warm_up)?;
                }
                row.samples.push(wrk.measure(&server, row.load, subject.replicas(), sizes.wrk)?);
            }
        }
    }
    Ok(Costs { rows })
}

fn rounds(suite: &Suite) -> u8 {
    suite.args.rounds.min(suite.sizes.cluster.rounds_max)
}

impl Costs {
    /// Median requests per second; 0 if it was not measured.
    pub(super) fn rate(&self, load: WrkLoad, subject: Subject) -> f64 {
        let row = self.rows.iter().find(|row| row.load == load && row.subject == subject);
        row.map_or(0.0, Row::rate)
    }

    /// The medians, beside the single node's and the aims.
    pub(super) fn table(&self, suite: &Suite) -> Table {
        let mut table = Table::new(
            format!(
                "Cluster of {NODES} in one process, durability {DURABILITY}: wrk with 64 connections, {}s, 100-byte \
                 values, medians of {}",
                suite.sizes.cluster.wrk.as_secs(),
                rounds(suite)
            ),
            &[
                "row",
                "CPU us/request",
                "(min to max)",
                "aim",
                "",
                "requests/s",
                "of single's",
                "steal, cores",
                "faults",
            ],
        );
        for row in &self.rows {
            table.row(row.cells(self.rate(row.load, Subject::Single)));
        }
        table.note(format!(
            "CPU is that of all nodes together. The cluster, on one core as the single node is, is loaded by {NODES} \
             wrks at once, one a node, with 22, 21 and 21 connections."
        ));
        table.note(self.judgement());
        if self.rows.iter().flat_map(|row| &row.samples).any(|sample| sample.faults > 0) {
            table.note(
                "!! There were answers that are no success: the figures of those rows are not to be used.",
            );
        }
        table
    }

    /// The judgement of the aim that compares two rows.
    fn judgement(&self) -> String {
        let single = self.rate(WrkLoad::Put, Subject::Single);
        let share = self.rate(WrkLoad::Put, Subject::Cluster(QUORUM_AIMED_AT)) / single;
        format!(
            "PUT {QUORUM_AIMED_AT}: {share:.2} of the single node's requests/s; aim at least a third: {}.",
            verdict(share >= PUT_RATE_SHARE_MIN)
        )
    }
}

impl Row {
    fn rate(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.rate))
    }

    fn cells(&self, single_rate: f64) -> [String; 9] {
        let cpu = || self.samples.iter().map(|sample| sample.cpu_micros);
        let (aim, judged) = match self.cpu_micros_max() {
            Some(most) => (format!("<= {most}"), verdict(median(cpu()) <= most)),
            None => (String::new(), String::new()),
        };
        [
            format!("{}, {}", name_of(self.load), self.subject),
            format!("{:.2}", median(cpu())),
            format!("{:.2} to {:.2}", cpu().fold(f64::INFINITY, f64::min), cpu().fold(0.0, f64::max)),
            aim,
            judged,
            format!("{:.0}", self.rate()),
            format!("{:.2}", self.rate() / single_rate),
            format!("{:.3}", self.samples.iter().map(|sample| sample.steal_cores).fold(0.0, f64::max)),
            grouped(self.samples.iter().map(|sample| sample.faults).sum()),
        ]
    }

    fn cpu_micros_max(&self) -> Option<f64> {
        if self.subject != Subject::Cluster(QUORUM_AIMED_AT) {
            return None;
        }
        Some(match self.load {
            WrkLoad::Get | WrkLoad::GetAny => GET_CPU_MICROS_MAX,
            WrkLoad::Put => PUT_CPU_MICROS_MAX,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(load: WrkLoad, subject: Subject, cpu_micros: f64, rate: f64) -> Row {
        let sample = WrkSample { cpu_micros, rate, steal_cores: 0.0, faults: 0 };
        Row { load, subject, samples: vec![sample] }
    }

    const AIMED_AT: Subject = Subject::Cluster(QUORUM_AIMED_AT);

    /// Goal: only the quorum of the aims is judged, reads and writes each by their own aim. Method: a table.
    #[test]
    fn costs_are_judged() {
        let check = |load, subject, cpu_micros, expect: &str| {
            let cells = row(load, subject, cpu_micros, 1.0).cells(1.0);
            assert_eq!(cells[4], expect, "{cells:?}");
        };
        check(WrkLoad::Get, AIMED_AT, 30.0, "met");
        check(WrkLoad::GetAny, AIMED_AT, 31.0, "MISSED");
        check(WrkLoad::Put, AIMED_AT, 70.0, "met");
        check(WrkLoad::Put, AIMED_AT, 71.0, "MISSED");
        check(WrkLoad::Put, Subject::Single, 1000.0, "");
        for quorum in QUORUMS.into_iter().filter(|&quorum| quorum != QUORUM_AIMED_AT) {
            check(WrkLoad::Get, Subject::Cluster(quorum), 1000.0, "");
        }
    }

    /// Goal: a third of the single node's PUTs is enough, less is not. Method: on both sides of it, and unmeasured.
    #[test]
    fn throughput_is_judged() {
        let check = |rows: Vec<Row>, expect: &str| {
            let text = Costs { rows }.judgement();
            assert!(text.ends_with(expect), "{text}");
        };
        let single = || row(WrkLoad::Put, Subject::Single, 1.0, 300.0);
        check(vec![single(), row(WrkLoad::Put, AIMED_AT, 1.0, 101.0)], "a third: met.");
        check(vec![single(), row(WrkLoad::Put, AIMED_AT, 1.0, 99.0)], "a third: MISSED.");
        check(Vec::new(), "a third: MISSED.");
    }
}
