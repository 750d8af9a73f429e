//! `kvorum lab`: loads, profiles and compares configurations of a cluster, and writes the report.
//!
//! - [`file`] describes the work: configurations and loads; [`run`] does it, step by step, and can be
//!   interrupted;
//! - [`nodes`] starts and ends clusters, [`processes`] knows their trees and leaves none behind, [`target`] is
//!   a server that is not kvorum, [`reference`] one in Java; [`profilers`] take profiles, [`progress`] shows the state
//!   of the run; [`warm_up`] decides when a window may begin, [`watching`] looks at the processes in it;
//! - [`results`] are the measurements on disk; [`figures`] and [`statistics`] evaluate them, [`findings`] judges every
//!   comparison once, [`conclusions`] and [`warnings`] put the result in words ([`texts`], in each [`language`]);
//! - [`compare`] puts two folders side by side; [`report`] writes Markdown, HTML and SVG.
//!
//! `docs/lab.md` describes the file, and what each figure means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::show;
use crate::error::LabError;
use crate::units::parse_duration;

pub mod compare;
pub mod conclusions;
pub mod figures;
pub mod file;
pub mod findings;
#[cfg(test)]
mod fixture;
mod frame_colour;
pub mod language;
pub mod nodes;
pub mod processes;
pub mod profile;
pub mod profilers;
pub mod progress;
pub mod reference;
pub mod report;
pub mod results;
pub mod run;
pub mod statistics;
pub mod target;
pub mod texts;
mod warm_up;
pub mod warnings;
mod watching;

use compare::{Comparison, Condition};
use file::LabFile;
use findings::Findings;
use language::Language;
use profile::{Event, Stacks};
use results::Results;
use run::Options;

/// Profiles of all nodes together, by configuration, load and event.
pub type Profiles = BTreeMap<(String, String, Event), Stacks>;

/// Load, profile and compare configurations of a cluster.
#[derive(Debug, Clone, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum LabCommand {
    /// Measures what a lab file describes and writes the report; goes on where an earlier run was interrupted
    Run(RunArgs),
    /// Puts the results in two folders beside each other
    Compare(CompareArgs),
    /// Writes the report of a folder again, in another language for example; measures nothing
    Report(ReportArgs),
    /// Prints the lab file of the built-in ladder, to start one's own from
    Ladder,
    /// Prints the lab file of the built-in stages of a Java service beside kvorum
    Stages,
    /// Ends what a lab leaves behind; every run starts one for itself
    #[command(hide = true)]
    Watch { value: String },
}

#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// A lab file, or "ladder" or "stages" for a built-in one
    #[arg(value_name = "FILE.toml|ladder|stages")]
    file: PathBuf,
    /// Where results and report go
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Windows of seconds: to see that it works; the report says that its figures are no results
    #[arg(long)]
    quick: bool,
    /// What the report calls this run, such as a commit
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// The language of the report
    #[arg(long, value_name = "LANGUAGE", default_value = "en")]
    lang: Language,
    /// Begin nothing further after this long; the next run goes on
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    stop_after: Option<Duration>,
    /// The binary of the nodes; without it this one
    #[arg(long, value_name = "FILE")]
    kvorum: Option<PathBuf>,
    /// Where the nodes' data is put for the time being: on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// The library of async-profiler, or its jar; without it that of the variable, or of the local Maven folder
    #[arg(long, value_name = "FILE", env = profilers::ASYNC_PROFILER)]
    async_profiler: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
struct CompareArgs {
    /// The folder of an earlier run
    a: PathBuf,
    /// The folder of a later one
    b: PathBuf,
    /// Exit with 1 where B is so by A, as "p99 > 1.2x" or "GET cpu > 1.1x"; may be repeated
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<String>,
    /// The language of the tables and the report
    #[arg(long, value_name = "LANGUAGE", default_value = "en")]
    lang: Language,
    /// Also write a report of both
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
struct ReportArgs {
    /// The folder of the results
    folder: PathBuf,
    /// The language of the report
    #[arg(long, value_name = "LANGUAGE", default_value = "en")]
    lang: Language,
}

/// Runs `kvorum lab`: tables to stdout, progress and complaints to stderr.
///
/// Exit codes: 0 done; 1 something was not measured, a rate was not kept, or a condition is met; 2 wrong
/// usage; 128 plus the signal's number if a signal ended it.
pub fn run_command(args: &LabArgs) -> ExitCode {
    let done = match &args.command {
        LabCommand::Run(args) => measure(args),
        LabCommand::Compare(args) => put_beside(args),
        LabCommand::Report(args) => {
            read(&args.folder).and_then(|results| publish(&args.folder, &results, args.lang)).map(|()| true)
        }
        LabCommand::Watch { value } => processes::watch(value).map(|()| true),
        LabCommand::Ladder => show(file::LADDER).map(|()| true),
        LabCommand::Stages => show(file::STAGES).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            kvorum_output::tell_line!("kvorum lab: {error}");
            ExitCode::from(if matches!(error, LabError::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn measure(args: &RunArgs) -> Result<bool, LabError> {
    let name = args.file.display().to_string();
    let text = match name.as_str() {
        "ladder" => file::LADDER.to_owned(),
        "stages" => file::STAGES.to_owned(),
        // The caller gave the name, so an unreadable file is a usage error.
        _ => std::fs::read_to_string(&args.file)
            .map_err(|error| LabError::Usage(format!("cannot read the lab file {name}: {error}")))?,
    };
    let mut file = LabFile::read(&name, &text)?;
    if args.quick {
        file.make_quick();
    }
    reference::provide(&mut file, &args.output)?;
    let own = std::env::current_exe().map_err(LabError::machine("find the own program"))?;
    let options = Options {
        binary: args.kvorum.clone().unwrap_or(own),
        folder: args.output.clone(),
        scratch: args.scratch.clone(),
        label: args.label.clone(),
        is_quick: args.quick,
        stop_after: args.stop_after,
        async_profiler: args.async_profiler.clone(),
    };
    let (results, is_whole) = run::run(&file, &text, &options)?;
    publish(&args.output, &results, args.lang)?;
    if !is_whole {
        show("Not everything has been measured yet: the same command goes on.\n")?;
    }
    let is_kept = results.steps.iter().all(|step| {
        step.error.is_none() && step.runs.iter().all(|run| run.is_latency_result() && run.wrong_bodies == 0)
    });
    Ok(is_kept)
}

/// Writes the report of `results` into their folder, and shows its warnings and conclusions.
fn publish(folder: &Path, results: &Results, language: Language) -> Result<(), LabError> {
    let profiles = load_profiles(folder, results)?;
    let findings = Findings::of(results);
    report::write(folder, results, &findings, &profiles, language)?;
    for warning in warnings::warnings(results, language) {
        kvorum_output::tell_line!("!! {}", warning.said());
    }
    for conclusion in conclusions::conclusions(results, &findings, &profiles, language) {
        show(format!("{}\n", conclusion.place()))?;
        for sentence in &conclusion.sentences {
            show(format!("  {sentence}\n"))?;
        }
    }
    for sentence in conclusions::control(results, &findings, language) {
        show(format!("{sentence}\n"))?;
    }
    show(format!("{}\n", folder.join("report.html").display()))
}

/// The results in a folder that the caller named.
fn read(folder: &Path) -> Result<Results, LabError> {
    if !folder.is_dir() {
        return Err(LabError::Usage(format!("{} is no folder of results", folder.display())));
    }
    Results::read(folder)
}

fn put_beside(args: &CompareArgs) -> Result<bool, LabError> {
    let conditions = args.fail_if.iter().map(|text| text.parse::<Condition>());
    let conditions = conditions.collect::<Result<Vec<_>, _>>().map_err(LabError::Usage)?;
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let profiles = (load_profiles(&args.a, &a)?, load_profiles(&args.b, &b)?);
    let both = Comparison::new(a, b)?;
    let (results, profiles) = both.merged(profiles.0, profiles.1);
    let findings = Findings::of(&results);
    show(both.text(&results, &findings, args.lang))?;
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).map_err(LabError::machine(format!("make {}", folder.display())))?;
        report::write(folder, &results, &findings, &profiles, args.lang)?;
        show(format!("{}\n", folder.join("report.html").display()))?;
    }
    let met = both.met(&conditions)?;
    for one in &met {
        kvorum_output::tell_line!("!! {one}");
    }
    Ok(met.is_empty())
}

/// The profiles that `results` name, from their folder.
fn load_profiles(folder: &Path, results: &Results) -> Result<Profiles, LabError> {
    let mut profiles = Profiles::new();
    for step in &results.steps {
        for record in &step.profiles {
            let path = folder.join(&record.file);
            let text = std::fs::read_to_string(&path)
                .map_err(LabError::machine(format!("read {}", path.display())))?;
            let key = (step.configuration.clone(), record.load.clone(), record.event);
            profiles.insert(key, Stacks::read(&text)?);
        }
    }
    Ok(profiles)
}
