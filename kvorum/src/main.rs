//! The `kvorum` program: `kvorum serve`, the client's commands, and what measures.
//!
//! Exit codes: 0 done or found, 1 not found, 2 wrong usage or configuration, 3 unreachable or failed, 4 a condition
//! did not hold.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod backup;
mod client;
mod cluster;
mod dev;
mod membership;
mod profile;
mod repair;
mod serve;
mod shell;
mod status;
mod table;
mod tls;
mod token;
mod top;
mod vouch;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kvorum_lab::cli::BenchArgs;
use kvorum_lab::lab::LabArgs;
use kvorum_profiler::alloc::Sampled;
use kvorum_server::log;
use kvorum_server::sched::{self, Turns};
use std::ffi::OsString;
use std::process::ExitCode;

/// The allocator: returns memory after bursts, and keeps threads separate. Its allocations can be profiled.
#[global_allocator]
static ALLOCATOR: Sampled<tikv_jemallocator::Jemalloc> = Sampled(tikv_jemallocator::Jemalloc);

kvorum_profiler::time_futex_waits!();

/// The exit code for a key without a value.
const NOT_FOUND: u8 = 1;
/// The exit code for wrong usage or configuration.
const USAGE: u8 = 2;
/// The exit code for a failure.
const FAILED: u8 = 3;
/// The exit code for a write whose condition did not hold.
const CONDITION_FAILED: u8 = 4;

fn main() -> ExitCode {
    let code = run_command(std::env::args_os());
    kvorum_output::flush(log::FLUSH_MAX);
    code
}

fn run_command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match command().try_get_matches_from(arguments) {
        Ok(matches) => match matches.subcommand() {
            Some(("serve", matches)) => serve::run(matches),
            Some(("dev", matches)) => dev::run(matches),
            Some(("bench", matches)) => match BenchArgs::from_arg_matches(matches) {
                Ok(arguments) => {
                    // Late timer turns of the load driver would count as the node's latency. The scheduling applies to
                    // this process's threads; it starts no other program that would inherit it.
                    sched::take_own(Turns::Prompt);
                    kvorum_lab::cli::run(&arguments)
                }
                Err(error) => complain(error, USAGE),
            },
            Some(("backup", matches)) => backup::run(matches),
            Some(("profile", matches)) => profile::run(matches),
            Some(("token", matches)) => token::run(matches),
            Some(("tls", matches)) => tls::run(matches),
            Some(("lab", matches)) => match LabArgs::from_arg_matches(matches) {
                Ok(arguments) => kvorum_lab::lab::run_command(&arguments),
                Err(error) => complain(error, USAGE),
            },
            Some((name @ ("bootstrap" | "trust-store"), matches)) => vouch::run(name, matches),
            Some(("completions", matches)) => shell::completions(command(), matches),
            Some(("man", matches)) => shell::man(command(), matches),
            Some((name, matches)) => client::run(name, matches),
            None => ExitCode::from(USAGE),
        },
        Err(error) => {
            // Help and version are not errors. If printing fails, there is no other way to report it.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
        }
    }
}

fn command() -> Command {
    Command::new("kvorum")
        .about("A replicated key-value store behind plain HTTP")
        .version(kvorum_lab::version())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help("Exit codes: 0 done or found, 1 not found, 2 wrong usage, 3 unreachable or failed, 4 a condition did not hold; status and top have their own")
        .subcommand(serve::command())
        .subcommand(dev::command())
        .subcommands(vouch::commands())
        .subcommands(client::commands())
        .subcommand(backup::command())
        .subcommand(token::command())
        .subcommand(tls::command())
        .subcommand(profile::command())
        .subcommand(BenchArgs::augment_args(
            Command::new("bench").about("Loads a node at a fixed rate and prints latencies").after_help(
                "Exit codes: 0 a good run, 1 failures, wrong bodies or a rate that was not kept, 2 wrong usage, 3 nothing \
                 was measured, 130 interrupted",
            ),
        ))
        .subcommands(shell::commands())
        .subcommand(LabArgs::augment_args(
            Command::new("lab").about("Loads, profiles and compares configurations, and writes the report"),
        ))
}

fn flag(name: &'static str, value_name: &'static str, help: impl Into<clap::builder::StyledStr>) -> Arg {
    Arg::new(name).long(name).value_name(value_name).help(help).action(ArgAction::Set)
}

fn text_of<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn complain(what: impl std::fmt::Display, code: u8) -> ExitCode {
    kvorum_output::tell(format!("kvorum: {what}\n"));
    ExitCode::from(code)
}

/// Prints `text`. A reader that has closed the output, as `head` does, is not a failure.
fn print(text: impl AsRef<[u8]>) -> ExitCode {
    match kvorum_output::print(text) {
        Err(error) if !kvorum_output::is_reader_gone(&error) => {
            complain(format!("cannot write to standard output: {error}"), FAILED)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Reports why a client's command failed, and who is at fault.
fn complain_of(failure: client::Failure) -> ExitCode {
    match failure {
        client::Failure::Usage(reason) => complain(reason, USAGE),
        client::Failure::Failed(reason) => complain(reason, FAILED),
        client::Failure::ConditionFailed(reason) => complain(reason, CONDITION_FAILED),
        client::Failure::ReaderGone => ExitCode::SUCCESS,
    }
}
