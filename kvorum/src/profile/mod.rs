//! `kvorum profile`: requests a profile of a node, and writes it to a file or to standard output.
//!
//! [`all`] takes those of all nodes into a folder, [`diff`] compares two files.

use super::client::{DEFAULT_URL, Failure, access_flags, with_access, write_out};
use super::{complain_of, flag, text_of};
use bytes::Bytes;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use kvorum_client::{Builder, Client, RetryPolicy};
use kvorum_profiler::{Event, Format, SECONDS_MAX};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

mod all;
mod diff;

/// The extra time for a node to name the stacks of a profile and to send it, beyond the profile's duration.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn command() -> Command {
    Command::new("profile")
        .about("Profiles a node on this machine: a flame graph of where it spends time or memory")
        .arg(
            flag(
                "event",
                "EVENT",
                "What to count: time on processors, bytes allocated, time waited, threads whether they run or not, or \
                 bytes allocated and not freed",
            )
                .value_parser(Event::ALL.map(Event::name))
                .default_value(Event::Cpu.name()),
        )
        .arg(
            flag("seconds", "N", "For how long")
                .value_parser(value_parser!(u16).range(1..=i64::from(SECONDS_MAX)))
                .default_value("10"),
        )
        .arg(
            flag("format", "FORMAT", "How to write it: for a browser, as text, or for the pprof tool")
                .value_parser(Format::ALL.map(Format::name))
                .default_value(Format::Svg.name()),
        )
        .arg(flag("url", "URL", format!("The node [env: KVORUM_URL, its first] [default: {DEFAULT_URL}]")))
        .args(access_flags())
        .arg(
            flag("output", "FILE", "Writes to a file instead of standard output; with --all to a folder")
                .short('o')
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .requires("output")
                .conflicts_with("format")
                .help("Profiles all nodes: cpu, alloc and lock one after the other, or --event"),
        )
        .subcommand(diff::command())
        .args_conflicts_with_subcommands(true)
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match (runtime, matches.subcommand()) {
        (Err(error), _) => Err(error.into()),
        (Ok(_), Some((_, matches))) => diff::run(matches).map(|()| ExitCode::SUCCESS),
        (Ok(runtime), None) if matches.get_flag("all") => runtime.block_on(profile_all(matches)),
        (Ok(runtime), None) => runtime.block_on(profile(matches)).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(complain_of)
}

async fn profile(matches: &ArgMatches) -> Result<(), Failure> {
    let format = text_of(matches, "format").unwrap_or_default();
    let output = matches.get_one::<OsString>("output");
    if format == Format::Pprof.name() && output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "pprof files are binary: give a file with -o, or write to a pipe".to_owned(),
        ));
    }
    let event = text_of(matches, "event").unwrap_or_default();
    let seconds = matches.get_one::<u16>("seconds").copied().unwrap_or_default();
    let urls = urls_of(matches);
    let url = urls.first().map(String::as_str).unwrap_or_default();
    let builder = with_access(Client::builder(), matches)?;
    let profile = fetch(builder, url, event, seconds, format).await.map_err(|refused| refused.failure)?;
    match output {
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        Some(path) => std::fs::write(path, &profile)?,
        None => write_out(&profile)?,
    }
    Ok(())
}

/// Profiles of all nodes, into a folder.
async fn profile_all(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let is_said = matches.value_source("event") == Some(ValueSource::CommandLine);
    let events = match text_of(matches, "event").and_then(Event::parse).filter(|_| is_said) {
        Some(event) => vec![event],
        None => vec![Event::Cpu, Event::Alloc, Event::Lock],
    };
    let seconds = matches.get_one::<u16>("seconds").copied().unwrap_or_default();
    let folder = matches.get_one::<OsString>("output").cloned().unwrap_or_default();
    let builder = with_access(Client::builder(), matches)?;
    all::run(&builder, urls_of(matches), &events, seconds, folder.as_ref()).await
}

/// The nodes of `--url`, or of the environment, or the default.
fn urls_of(matches: &ArgMatches) -> Vec<String> {
    let environment = std::env::var("KVORUM_URL").ok();
    let urls = text_of(matches, "url").or(environment.as_deref()).unwrap_or(DEFAULT_URL);
    urls.split(',').map(|url| url.trim().to_owned()).collect()
}

/// Why a node gave no profile.
struct Refused {
    failure: Failure,
    /// Whether another profile of the node's process runs.
    is_busy: bool,
}

impl From<kvorum_client::Error> for Refused {
    fn from(error: kvorum_client::Error) -> Self {
        Self { failure: error.into(), is_busy: false }
    }
}

/// Fetches a profile of the node at `url` with the token of `builder`, without retries: a second attempt, or one at another node, would be another
/// profile.
async fn fetch(
    builder: Builder,
    url: &str,
    event: &str,
    seconds: u16,
    format: &str,
) -> Result<Bytes, Refused> {
    let target = format!("/debug/profile?event={event}&seconds={seconds}&format={format}");
    let patience = Duration::from_secs(seconds.into()) + PATIENCE;
    let builder = builder.node(url).timeout(patience).retry(RetryPolicy::NONE);
    let client = builder.answer_bytes_max(usize::MAX).routing(false).build()?;
    let page = client.page(&target).await?;
    if page.code == 200 {
        return Ok(page.body);
    }
    let reason = String::from_utf8_lossy(&page.body);
    let reason = format!("{url}: {}: {}", page.code, reason.trim_end());
    let failure = if page.code == 400 { Failure::Usage(reason) } else { Failure::Failed(reason) };
    Err(Refused { failure, is_busy: page.code == 409 })
}
