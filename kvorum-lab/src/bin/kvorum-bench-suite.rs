//! `make bench`: see [`kvorum_lab::suite`].

use std::process::ExitCode;

use clap::Parser;
use kvorum_lab::suite::{SuiteArgs, run};

/// Measure a kvorum node on this machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    suite: SuiteArgs,
}

fn main() -> ExitCode {
    run(&Command::parse().suite)
}
