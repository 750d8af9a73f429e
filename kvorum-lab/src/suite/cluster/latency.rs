//! Latency at half of the throughput that wrk found: an open loop over all nodes, beside the bare device.
//! Also beside bare responders that need as much processor time: they show the latencies of any server that
//! is as busy on this machine.

use std::time::Duration;

use super::cost::Costs;
use super::{DURABILITY, NODES, QUORUMS, RECORDS, Subject, fill, stream};
use crate::dataset::Dataset;
use crate::error::LabError;
use crate::fdatasync::{FdatasyncLoop, FdatasyncOutcome, RATE_PER_SECOND};
use crate::histogram::Latencies;
use crate::load::{Operation, Outcome, Pacing, Plan, StreamOutcome, StreamPlan, run as run_load};
use crate::machine;
use crate::suite::Suite;
use crate::suite::process::{BareOptions, Server, Syncs};
use crate::suite::table::{Table, verdict};
use crate::suite::wrk::WrkLoad;
use crate::units::{grouped, latency, nanos};

/// The aim: p99.9 below this.
const LATENCY_MAX: Duration = Duration::from_millis(5);

/// A run with more steal than this, in cores, is repeated.
const STEAL_CORES_MAX: f64 = 0.1;

/// The records of PUTs: as many keys as under wrk.
const WRITTEN: Dataset = Dataset { keys: 100_000, ..RECORDS };

/// One line of the table, before it is measured.
struct Row {
    name: &'static str,
    /// The load under wrk; half of its throughput is offered.
    load: WrkLoad,
    operation: Operation,
    dataset: Dataset,
}

/// In this order on the same stores: GETs do not change them.
const ROWS: [Row; 2] = [
    Row { name: "GET", load: WrkLoad::GetAny, operation: Operation::Get, dataset: RECORDS },
    Row { name: "PUT", load: WrkLoad::Put, operation: Operation::Put, dataset: WRITTEN },
];

/// One run.
struct Attempt {
    rate_per_second: u64,
    outcome: Outcome,
    /// For PUTs, which use the device.
    device: Option<FdatasyncOutcome>,
    bare: Bare,
}

/// The same load on bare responders, as many as nodes.
struct Bare {
    /// Their options; an answer costs them as much as it cost the nodes.
    options: BareOptions,
    latency: Latencies,
}

/// Runs each row until the hypervisor's steal is low enough, a few times at most. Shows every run and judges
/// the one with the least steal.
pub(super) fn run(suite: &Suite, costs: &Costs) -> Result<Table, LabError> {
    let sizes = suite.sizes.cluster;
    let mut rows: Vec<(String, Vec<Attempt>)> = Vec::new();
    for subject in QUORUMS.map(Subject::Cluster) {
        let mut attempts = ROWS.map(|_| Vec::new());
        for number in 1..=sizes.attempts_max {
            suite.say(&format!("cluster: latency of {subject}, attempt {number}"));
            let mut is_quiet = true;
            for (attempts, attempt) in attempts.iter_mut().zip(attempt(suite, costs, subject)?) {
                is_quiet &= attempt.outcome.steal_cores <= STEAL_CORES_MAX;
                attempts.push(attempt);
            }
            if is_quiet {
                break;
            }
        }
        let named = ROWS.iter().map(|row| format!("{}, {subject}", row.name));
        rows.extend(named.zip(attempts));
    }
    let mut table = Table::new(
        format!(
            "Cluster of {NODES}, durability {DURABILITY}, at half of the maximum: open loop over all nodes, 64 \
             connections, 100-byte values, {:?}",
            sizes.paced
        ),
        &[
            "row",
            "per second",
            "p50",
            "p99",
            "p99.9",
            "max",
            "failed",
            "driver late, p99.9",
            "steal, cores",
            "aim",
            "",
        ],
    );
    for (name, attempts) in &rows {
        add_rows(&mut table, name, attempts)?;
    }
    let place = if suite.args.pin_paced { "on its core" } else { "wherever the scheduler puts it" };
    table.note(format!(
        "The rate is half of the requests/s above, of GET any key and of PUT, where the server had a core for itself; \
         here it runs {place}, beside the driver."
    ));
    table.note(
        "The bare responders do nothing but spend as much of a processor on each answer as the nodes did, under the same \
         load, in the same minute, and sync what is put in as many files, of which they wait for as many; nothing goes \
         from one to another. They spend it however many requests wait, where nodes do many at once for less: near the \
         limit of the machine they fall behind sooner."
            .to_owned(),
    );
    table.note(format!(
        "Aim: p99.9 below {LATENCY_MAX:?}, nothing failed, the rate kept. Runs with more than {STEAL_CORES_MAX} cores \
         of steal are repeated; of several the quietest is judged."
    ));
    Ok(table)
}

/// One run of each row, in order. A new cluster each time: no attempt inherits the compactions of the one before.
fn attempt(suite: &Suite, costs: &Costs, subject: Subject) -> Result<Vec<Attempt>, LabError> {
    let core = suite.args.pin_paced.then_some(suite.args.server_core);
    let server = subject.start(suite, core)?;
    fill(suite, &server, subject)?;
    let duration = suite.sizes.cluster.paced;
    let run_row = |row: &Row| {
        let rate_per_second = half(costs.rate(row.load, subject));
        let pacing = Pacing::Open { rate_per_second };
        let streams = vec![stream(row.name, row.operation, row.dataset, subject.replicas(), pacing)];
        let mut plan = suite.plan(&server, duration, streams);
        if !suite.args.pin_paced {
            plan.core = None;
        }
        let probe = match row.operation {
            Operation::Put => Some(FdatasyncLoop::start(server.directory(), RATE_PER_SECOND, duration)?),
            Operation::Get | Operation::Scan { .. } => None,
        };
        let before = machine::cpu_time(server.pid())?;
        let outcome = run_load(&plan)?;
        let used = machine::cpu_time(server.pid())?.saturating_sub(before);
        let device = probe.map(FdatasyncLoop::finish).transpose()?;
        let syncs = syncs(row.operation, subject);
        let bare =
            bare(suite, core, &plan, BareOptions { count: NODES, busy: each_of(used, &outcome), syncs })?;
        Ok(Attempt { rate_per_second, outcome, device, bare })
    };
    ROWS.iter().map(run_row).collect()
}

/// Where bare responders sync that are to promise what the nodes do.
fn syncs(operation: Operation, subject: Subject) -> Syncs {
    match (operation, subject.replicas()) {
        (Operation::Get | Operation::Scan { .. }, _) => Syncs::Nowhere,
        (Operation::Put, Some(replicas)) if replicas.from() > 1 => Syncs::Everywhere { acks: replicas.ack() },
        (Operation::Put, _) => Syncs::Own,
    }
}

/// Puts the load of `plan` on bare responders.
fn bare(suite: &Suite, core: Option<usize>, plan: &Plan, bare: BareOptions) -> Result<Bare, LabError> {
    let server = Server::bare(&suite.bare, suite.scratch(), core, bare)?;
    // They send the same whatever they are asked for.
    let streams = plan.streams.iter().map(|stream| StreamPlan { verify: false, ..stream.clone() }).collect();
    let plan = Plan { targets: server.addresses().map(Into::into).collect(), streams, ..plan.clone() };
    let mut latency = Latencies::new()?;
    for stream in run_load(&plan)?.streams {
        latency.merge(&stream.tally.latency)?;
    }
    Ok(Bare { options: bare, latency })
}

/// The processor time per successful operation.
fn each_of(used: Duration, outcome: &Outcome) -> Duration {
    let done: u64 = outcome.streams.iter().map(|stream| stream.tally.succeeded).sum();
    used / u32::try_from(done).unwrap_or(u32::MAX).max(1)
}

/// Half of `rate`, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded rate, below 2^53")]
fn half(rate: f64) -> u64 {
    ((rate / 2.0).round() as u64).max(1)
}

/// Adds every attempt, its judgement at the quietest, and what the device did beside it.
fn add_rows(table: &mut Table, name: &str, attempts: &[Attempt]) -> Result<(), LabError> {
    let steal = |attempt: &Attempt| attempt.outcome.steal_cores;
    let least = attempts.iter().map(steal).fold(f64::INFINITY, f64::min);
    for (attempt, number) in attempts.iter().zip(1..) {
        let name = if attempts.len() > 1 { format!("{name}, run {number}") } else { name.to_owned() };
        for stream in &attempt.outcome.streams {
            let mut cells = cells(name.clone(), attempt.rate_per_second, &stream.tally.latency);
            cells[6] = grouped(stream.failed());
            cells[7] = latency(stream.tally.driver_lag.percentile(99.9));
            cells[8] = format!("{:.3}", steal(attempt));
            if steal(attempt) <= least {
                cells[9] = format!("p99.9 < {LATENCY_MAX:?}");
                cells[10] = judgement(stream, &attempt.bare.latency);
            }
            table.row(cells);
            if let Some(caution) = caution(stream) {
                table.note(format!("!! {name}: {caution}."));
            }
        }
        let bare = &attempt.bare;
        let synced = match bare.options.syncs {
            Syncs::Nowhere => "",
            Syncs::Own => " and sync it",
            Syncs::Everywhere { .. } => " and sync it in all their files",
        };
        let named =
            format!("  bare responders that need {} us a request{synced}", bare.options.busy.as_micros());
        table.row(cells(named, attempt.rate_per_second, &bare.latency));
        if let Some(device) = &attempt.device {
            table.row(cells("  bare fdatasync beside it".into(), RATE_PER_SECOND.into(), &device.latency));
            let seen = device.as_seen_at(attempt.rate_per_second)?;
            let name = "  the same, as that many requests would see it";
            table.row(cells(name.into(), attempt.rate_per_second, &seen));
        }
    }
    Ok(())
}

fn cells(name: String, rate_per_second: u64, seen: &Latencies) -> [String; 11] {
    let at = |percentile| latency(seen.percentile(percentile));
    let rate = grouped(rate_per_second);
    let none = String::new;
    [name, rate, at(50.0), at(99.0), at(99.9), latency(seen.max()), none(), none(), none(), none(), none()]
}

/// The aim, and whether bare responders miss it as well. Failed and unsent operations took longer than allowed, whatever they took.
fn judgement(stream: &StreamOutcome, bare: &Latencies) -> String {
    let is_fast = |seen: &Latencies| seen.percentile(99.9) < nanos(LATENCY_MAX);
    let is_whole = stream.tally.succeeded > 0 && stream.failed() == 0 && !stream.is_saturated();
    let judged = verdict(is_whole && is_fast(&stream.tally.latency));
    if is_whole && !is_fast(&stream.tally.latency) && !is_fast(bare) {
        format!("{judged}, as by bare responders")
    } else {
        judged
    }
}

/// Why a run's latencies are not the nodes' alone, if so.
fn caution(stream: &StreamOutcome) -> Option<&'static str> {
    if stream.is_saturated() {
        Some("COULD NOT KEEP THE RATE")
    } else if stream.is_driver_late() {
        Some("THE DRIVER WOKE LATE: much of the slowest latencies is the machine's or its own")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Tally;

    fn latencies(millis: u64) -> Latencies {
        let mut latencies = Latencies::new().unwrap();
        latencies.record(Duration::from_millis(millis));
        latencies
    }

    fn attempt_of(millis: u64, succeeded: u64, unsent: u64, steal_cores: f64) -> Attempt {
        let plan = stream("PUT", Operation::Put, WRITTEN, None, Pacing::Open { rate_per_second: 1 });
        let mut tally = Tally::new().unwrap();
        tally.latency.record(Duration::from_millis(millis));
        tally.succeeded = succeeded;
        tally.unsent = unsent;
        let streams = vec![StreamOutcome { plan, tally, elapsed: Duration::from_secs(1) }];
        let options = BareOptions { count: NODES, busy: Duration::ZERO, syncs: Syncs::Nowhere };
        let bare = Bare { options, latency: latencies(1) };
        Attempt {
            rate_per_second: 1,
            outcome: Outcome { streams, steal_cores, interrupted: None },
            device: None,
            bare,
        }
    }

    /// Goal: slow, missing or unsent operations miss the aim, and only for slow ones the machine may be the reason.
    /// Method: a table.
    #[test]
    fn latencies_are_judged() {
        let check = |attempt: &Attempt, bare_millis, expect: &str| {
            assert_eq!(judgement(&attempt.outcome.streams[0], &latencies(bare_millis)), expect);
        };
        check(&attempt_of(4, 1, 0, 0.0), 1, "met");
        check(&attempt_of(4, 1, 0, 0.0), 6, "met");
        check(&attempt_of(6, 1, 0, 0.0), 4, "MISSED");
        check(&attempt_of(6, 1, 0, 0.0), 6, "MISSED, as by bare responders");
        check(&attempt_of(4, 1, 1, 0.0), 6, "MISSED");
        check(&attempt_of(6, 1, 1, 0.0), 6, "MISSED");
        check(&attempt_of(4, 0, 0, 0.0), 6, "MISSED");
    }

    /// Responders sync what the nodes do: nothing of a GET, one copy or all of a PUT.
    #[test]
    fn syncs_are_those_of_the_nodes() {
        let of = |operation, (ack, from)| syncs(operation, Subject::Cluster(super::super::quorum(ack, from)));
        assert_eq!(of(Operation::Get, (2, 3)), Syncs::Nowhere);
        assert_eq!(of(Operation::Put, (1, 1)), Syncs::Own);
        assert_eq!(of(Operation::Put, (2, 3)), Syncs::Everywhere { acks: 2 });
        assert_eq!(syncs(Operation::Put, Subject::Single), Syncs::Own);
    }

    /// The time is divided by the successful operations.
    #[test]
    fn cost_of_each() {
        let outcome = attempt_of(4, 1000, 0, 0.0).outcome;
        assert_eq!(each_of(Duration::from_millis(84), &outcome), Duration::from_micros(84));
        let none = attempt_of(4, 0, 0, 0.0).outcome;
        assert_eq!(each_of(Duration::ZERO, &none), Duration::ZERO);
    }

    /// Goal: every run is shown and the quietest alone is judged, fast or not. Method: the slow one is the quiet one.
    #[test]
    fn the_quietest_run_is_judged() {
        let mut table = Table::new("", &[]);
        let attempts = [attempt_of(4, 1, 0, 0.3), attempt_of(6, 1, 0, 0.2)];
        add_rows(&mut table, "PUT", &attempts).unwrap();
        let judged: Vec<&str> = table.rows.iter().map(|row| row[10].as_str()).collect();
        assert_eq!(judged, ["", "", "MISSED", ""]);
        assert_eq!(table.rows[2][0], "PUT, run 2");
    }

    /// Goal: half is half, and never nothing. Method: a few.
    #[test]
    fn half_of_a_rate() {
        assert_eq!([half(0.0), half(1.0), half(10_001.0)], [1, 1, 5001]);
    }
}
