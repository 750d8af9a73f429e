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

mod args;
mod plan;
mod search;

pub use args::{BenchArgs, Distribution, Rate, Work, prefill_of};
pub use plan::{options, parse_url, plan};

use search::{Found, search};

/// The longest that a round of `--prefill` may take.
const PREFILL_MAX: Duration = Duration::from_hours(1);

/// Runs `kvorum bench`: prints the report to stdout, complaints and progress to stderr.
///
/// The exit code is 0 if all operations succeeded, all rates were kept and no body was wrong. It is 1
/// otherwise, also for a run that was interrupted, and 2 for impossible arguments.
pub fn run(args: &BenchArgs) -> ExitCode {
    match bench(args) {
        Ok((text, is_good)) => match show(text) {
            Ok(()) if is_good => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
            Err(error) => {
                kvorum_output::tell_line!("kvorum bench: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            kvorum_output::tell_line!("kvorum bench: {error}");
            ExitCode::from(if matches!(error, LabError::Usage(_)) { 2 } else { 1 })
        }
    }
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
        std::process::exit(1);
    };
    thread::Builder::new()
        .name("bench-signals".to_owned())
        .spawn(wait)
        .map_err(LabError::machine("start a thread"))?;
    Ok(is_told)
}

fn bench(args: &BenchArgs) -> Result<(String, bool), LabError> {
    let (plan, mut options) = (plan(args)?, options(args)?);
    options.stop = Some(stop_signal()?);
    let (_, _, prefill) = args.read_words()?;
    if let Some(keys) = prefill {
        prefill_with(&plan, &options, keys, PREFILL_MAX)?;
    }
    let probe = match &args.fdatasync {
        Some(directory) => Some(FdatasyncLoop::start(directory, RATE_PER_SECOND, plan.duration)?),
        None => None,
    };
    let found = match args.find_max {
        Some(bound) => search(args, &plan, &options, bound)?,
        None => Found {
            text: String::new(),
            trials: Value::Null,
            run: Some((plan.clone(), watched(args, &plan, &options)?)),
        },
    };
    let fdatasync = probe.map(FdatasyncLoop::finish).transpose()?;
    let Some((plan, outcome)) = found.run else {
        return Ok((found.text, false));
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
            object.insert("find_max".into(), found.trials);
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
    Ok((format!("{}{report}", found.text), is_good(&outcome)))
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

/// Whether the run came to its end, and every stream had successes, no failures, and kept its rate.
pub fn is_good(outcome: &Outcome) -> bool {
    let mut streams = outcome.streams.iter();
    outcome.interrupted.is_none()
        && streams.all(|stream| stream.tally.succeeded > 0 && stream.failed() == 0 && !stream.is_saturated())
}

#[cfg(test)]
mod tests;
