//! `kvorum bench`: arguments in the manner of wrk2, one run or a search for the highest rate, a report.
//!
//! Given a rate it is an open loop; without one a closed loop, whose latencies the report marks as such.
//! [`BenchArgs`] are the arguments, [`plan()`] and [`options()`] interpret them, [`run()`] carries them out.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::LabError;
use crate::fdatasync::{FdatasyncLoop, RATE_PER_SECOND};
use crate::hdr_log::{log_head, percentiles};
use crate::load::{LEAD, Outcome, Plan, RunOptions, prefill_with, run_with};
use crate::monitor::Monitor;
use crate::report::{Distributions, Report};

mod add;
mod args;
mod cas;
mod plan;
mod search;
mod steps;

pub use args::{BenchArgs, Distribution, Rate, RateSteps, Work, prefill_of};
pub use plan::{options, parse_url, plan};

use search::search;
use steps::steps;

/// The longest that a round of `--prefill` may take.
const PREFILL_MAX: Duration = Duration::from_hours(1);

/// The exit code of a run whose figures are no result: failures, a rate that was not kept, wrong bodies.
const BAD_RUN: u8 = 1;
/// The exit code for impossible arguments.
const USAGE: u8 = 2;
/// The exit code where nothing was measured: no node answered, or a file or the machine failed.
const FAILED: u8 = 3;
/// The exit code of a run that Ctrl-C or SIGTERM has ended early: that of shells for a signal.
const INTERRUPTED: u8 = 130;

/// Runs `kvorum bench`: prints the report to stdout, complaints and progress to stderr.
///
/// The exit code is 0 if all operations succeeded, all rates were kept and no body was wrong; 1 if not; 2 for
/// impossible arguments; 3 where nothing was measured; 130 for a run that was interrupted. `docs/bench.md` has them.
pub fn run(args: &BenchArgs) -> ExitCode {
    let done = bench(args).and_then(|(text, code)| show(text).map(|()| code));
    ExitCode::from(done.unwrap_or_else(|error| {
        kvorum_output::tell_line!("kvorum bench: {error}");
        if matches!(error, LabError::Usage(_)) { USAGE } else { FAILED }
    }))
}

/// Prints a part of the result. If the reader has gone, as `head` does, that is no failure.
pub(crate) fn show(text: impl AsRef<[u8]>) -> Result<(), LabError> {
    match kvorum_output::print(text) {
        Err(error) if !kvorum_output::is_reader_gone(&error) => {
            Err(LabError::machine("write to standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Becomes true at the first SIGINT or SIGTERM: the run ends, and the report is still printed. The second
/// signal ends the process.
fn stop_signal() -> Result<watch::Receiver<bool>, LabError> {
    let (stop, is_told) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("wait for signals"))?;
    let (interrupt, terminate) = {
        let _context = runtime.enter();
        let of = |kind| signal(kind).map_err(LabError::machine("wait for signals"));
        (of(SignalKind::interrupt())?, of(SignalKind::terminate())?)
    };
    let wait = move || {
        runtime.block_on(async {
            let (mut interrupt, mut terminate) = (interrupt, terminate);
            let mut next = async || {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            };
            next().await;
            stop.send_replace(true);
            kvorum_output::tell_line!("kvorum bench: interrupted; the report of what was measured follows");
            next().await;
        });
        std::process::exit(INTERRUPTED.into());
    };
    thread::Builder::new()
        .name("bench-signals".to_owned())
        .spawn(wait)
        .map_err(LabError::machine("start a thread"))?;
    Ok(is_told)
}

/// One or more runs: the text before the report of one of them, what the JSON has beside it, and that run.
struct Series {
    text: String,
    json: Option<(&'static str, Value)>,
    run: Option<(Plan, Outcome)>,
}

/// Makes the runs; returns the report and the exit code.
fn bench(args: &BenchArgs) -> Result<(String, u8), LabError> {
    if args.read_words()?.0.is_of_rivals() {
        return cas::run(args, &stop_signal()?);
    }
    let (plan, mut options) = (plan(args)?, options(args)?);
    let stop = stop_signal()?;
    options.stop = Some(stop.clone());
    let (_, _, prefill) = args.read_words()?;
    if let Some(keys) = prefill {
        match prefill_with(&plan, &options, keys, PREFILL_MAX) {
            Err(error) if *stop.borrow() => {
                return Ok((format!("!! INTERRUPTED before the run: {error}\n"), INTERRUPTED));
            }
            done => drop(done?),
        }
    }
    let probe = match &args.fdatasync {
        Some(directory) => Some(FdatasyncLoop::start(directory, RATE_PER_SECOND, plan.duration)?),
        None => None,
    };
    let series = match (args.find_max, &args.rate_steps) {
        (Some(bound), _) => search(args, &plan, &options, bound)?,
        (None, Some(rates)) => steps(args, &plan, &options, rates)?,
        (None, None) => {
            let outcome = watched(args, &plan, &options)?;
            Series { text: String::new(), json: None, run: Some((plan, outcome)) }
        }
    };
    let fdatasync = probe.map(FdatasyncLoop::finish).transpose()?;
    let Some((plan, outcome)) = series.run else {
        return Ok((series.text, BAD_RUN));
    };
    let distributions = Distributions {
        // As in wrk2: latencies from the sending are only meaningful beside latencies from the due time.
        corrected: args.latency || args.uncorrected,
        uncorrected: args.uncorrected,
    };
    let report = Report {
        plan: &plan,
        options: &options,
        outcome: &outcome,
        fdatasync: fdatasync.as_ref(),
        distributions,
    };
    if let Some(path) = &args.json {
        let mut value = report.json();
        if let Some(object) = value.as_object_mut() {
            object.extend(series.json.map(|(name, json)| (name.to_owned(), json)));
        }
        write_file(path, &format!("{value:#}\n"))?;
    }
    if let Some(path) = &args.hgrm {
        for stream in &outcome.streams {
            let path = if outcome.streams.len() == 1 { path.clone() } else { named(path, &stream.plan.name) };
            write_file(&path, &percentiles(&stream.tally.latency))?;
        }
    }
    if !std::io::stdout().is_terminal() {
        // The warning must also reach a user who redirects the report.
        kvorum_output::tell(report.complaints());
    }
    let code = if *stop.borrow() { INTERRUPTED } else { exit_code(&outcome) };
    Ok((format!("{}{report}", series.text), code))
}

/// One run, with progress on a terminal and the log if it was asked for.
fn watched(args: &BenchArgs, plan: &Plan, options: &RunOptions) -> Result<Outcome, LabError> {
    let is_live = std::io::stderr().is_terminal();
    if !is_live && args.hlog.is_none() {
        return run_with(plan, options);
    }
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (monitor, ticks) = Monitor::start(plan, is_live.then(String::new))?;
    // The options with the sender end here, and so the monitor ends.
    let outcome = run_with(plan, &RunOptions { ticks: Some(ticks), ..options.clone() });
    let watched = monitor.finish()?;
    if let Some(path) = &args.hlog {
        write_file(path, &(log_head(started + LEAD + options.warm_up) + &watched.log))?;
    }
    outcome
}

/// The path of the load `name`: `dir/a.hgrm` of `put` becomes `dir/a-put.hgrm`.
fn named(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-{name}{extension}"))
}

fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(LabError::machine(format!("write {}", path.display())))
}

/// The exit code of a run that came to its end.
fn exit_code(outcome: &Outcome) -> u8 {
    let is_silent = outcome.streams.iter().all(|stream| stream.tally.last_answer.is_none());
    match (is_good(outcome), is_silent) {
        (true, _) => 0,
        (false, true) => FAILED,
        (false, false) => BAD_RUN,
    }
}

/// Whether the run came to its end, and every stream had successes, no failures, and kept its rate.
pub fn is_good(outcome: &Outcome) -> bool {
    let mut streams = outcome.streams.iter();
    outcome.interrupted.is_none()
        && streams.all(|stream| stream.tally.succeeded > 0 && stream.failed() == 0 && !stream.is_saturated())
}

#[cfg(test)]
mod tests;
