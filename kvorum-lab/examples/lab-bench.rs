//! `kvorum bench` as a program of its own, without the rest of `kvorum`: see [`kvorum_lab::cli`].

use std::process::ExitCode;

use clap::Parser;
use kvorum_lab::cli::{BenchArgs, run};

/// Offer a load to running nodes and print what came of it.
#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    run(&Command::parse().bench)
}
