//! `kvorum profile`: requests a profile of a node, and writes it to a file or to standard output.

use super::client::{DEFAULT_URL, Failure, write_out};
use super::{complain_of, flag, text_of};
use bytes::Bytes;
use clap::{ArgMatches, Command, value_parser};
use kvorum_client::{Client, RetryPolicy};
use kvorum_profiler::{Event, Format, SECONDS_MAX};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// The extra time for a node to name the stacks of a profile and to send it, beyond the profile's duration.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn command() -> Command {
    Command::new("profile")
        .about("Profiles a node on this machine: a flame graph of where it spends time or memory")
        .arg(
            flag("event", "EVENT", "What to count: time on processors, bytes allocated, or time waited")
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
        .arg(
            flag("output", "FILE", "Writes to a file instead of standard output")
                .short('o')
                .value_parser(value_parser!(OsString)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(profile(matches)));
    done.map_or_else(complain_of, |()| ExitCode::SUCCESS)
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
    let environment = std::env::var("KVORUM_URL").ok();
    let url = text_of(matches, "url").or(environment.as_deref()).unwrap_or(DEFAULT_URL);
    let url = url.split(',').next().unwrap_or_default().trim();
    let target = format!("/debug/profile?event={event}&seconds={seconds}&format={format}");
    let profile = fetch(url, &target, Duration::from_secs(seconds.into()) + PATIENCE).await?;
    match output {
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        Some(path) => std::fs::write(path, &profile)?,
        None => write_out(&profile)?,
    }
    Ok(())
}

/// Fetches a profile of the node at `url`, without retries: a second attempt, or one at another node, would be another
/// profile.
async fn fetch(url: &str, target: &str, patience: Duration) -> Result<Bytes, Failure> {
    let builder = Client::builder().node(url).timeout(patience).retry(RetryPolicy::NONE);
    let client = builder.answer_bytes_max(usize::MAX).routing(false).build()?;
    let page = client.page(target).await?;
    if page.code == 200 {
        return Ok(page.body);
    }
    let reason = String::from_utf8_lossy(&page.body);
    let reason = format!("{url}: {}: {}", page.code, reason.trim_end());
    Err(if page.code == 400 { Failure::Usage(reason) } else { Failure::Failed(reason) })
}
