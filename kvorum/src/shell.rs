//! `kvorum completions` and `kvorum man`: texts for shells and for `man`, made from the table of commands.

use super::{FAILED, complain, print};
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn commands() -> Vec<Command> {
    vec![
        Command::new("completions")
            .about("Prints what makes a shell complete kvorum's commands and flags")
            .arg(
                Arg::new("shell")
                    .value_name("SHELL")
                    .required(true)
                    .help("The shell")
                    .value_parser(["bash", "zsh", "fish"]),
            ),
        // For those who make packages.
        Command::new("man").about("Writes manual pages into a directory").hide(true).arg(
            Arg::new("dir")
                .value_name("DIR")
                .required(true)
                .help("The directory")
                .value_parser(value_parser!(PathBuf)),
        ),
    ]
}

/// Prints the completions of `program` for the shell that was asked for.
pub(super) fn completions(mut program: Command, matches: &ArgMatches) -> ExitCode {
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, "kvorum", &mut text);
    print(text)
}

/// Writes a page for `program` and for each of its commands.
pub(super) fn man(program: Command, matches: &ArgMatches) -> ExitCode {
    let Some(dir) = matches.get_one::<PathBuf>("dir") else { return ExitCode::from(FAILED) };
    match clap_mangen::generate_to(program, dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(format!("cannot write manual pages into {}: {error}", dir.display()), FAILED),
    }
}
