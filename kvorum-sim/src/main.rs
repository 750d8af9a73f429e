//! `kvorum-sim`: replays one seed, soaks many, or runs those of a commit.
//!
//! In this binary the C library's randomness and clocks are replaced too: what reaches past the node's own `Clock`
//! and `Rng`, the order of a hash map say, is decided by the seed as well. For that reason it is a binary of its own,
//! which no other links.

use clap::{Parser, Subcommand};
use kvorum_sim::plan::Plan;
use kvorum_sim::seed::Seed;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::process::ExitCode;

/// Deterministic simulation of a kvorum cluster.
#[derive(Debug, Parser)]
#[command(name = "kvorum-sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays one seed.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Prints every step.
        #[arg(long)]
        trace: bool,
    },
    /// Runs fresh seeds until the time is up.
    Soak {
        /// For how long.
        #[arg(long)]
        minutes: u64,
    },
    /// Runs the seeds of a commit.
    Ci {
        /// How many.
        #[arg(long)]
        seeds: u64,
        /// What they are made of: the commit's hash.
        #[arg(long, value_name = "HASH")]
        from: String,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { seed, .. } => {
            mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
            let _clocks = mad_turmoil::time::SimClocksGuard::init();
            print!("{}", Plan::of(Seed(seed)));
            ExitCode::SUCCESS
        }
        Command::Ci { seeds, from } => {
            (0..seeds).for_each(|number| println!("seed {}", Seed::derived(&from, number).0));
            ExitCode::SUCCESS
        }
        Command::Soak { minutes } => {
            eprintln!("soak of {minutes} minutes: there is nothing to run yet");
            ExitCode::FAILURE
        }
    }
}
