//! `kvorum-sim`: replays one seed, soaks many, runs the seeds of a commit, and runs the canaries.
//!
//! In this binary the C library's randomness and clocks are replaced too. So the seed also decides values
//! that bypass the node's own `Clock` and `Rng`, such as the order of a hash map. For that reason it is a
//! binary of its own, and no other program links this code.

use clap::{Parser, Subcommand};
use kvorum_server::canary::{self, Canary};
use kvorum_sim::batch::{self, Options, Ran, uptime};
use kvorum_sim::fault::FaultKind;
use kvorum_sim::plan::Plan;
use kvorum_sim::report::Report;
use kvorum_sim::run::run;
use kvorum_sim::seed::Seed;
use kvorum_sim::tally::Tally;
use kvorum_sim::trace::Trace;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Every seed that ever failed, one per line, each with the bug that it found.
const FAILED: &str = include_str!("../seeds-that-failed.txt");
/// The seed in which each canary was caught last.
const CANARIES: &str = include_str!("../seeds-of-canaries.txt");
/// The simulated time that a batch for a commit must reach.
const SIMULATED_MIN: Duration = Duration::from_hours(2);
/// Half of what the rarest kind is expected to have in 240 seeds (`older-disk`, some 100): fewer is no chance.
const FAULTS_OF_EACH_KIND_MIN: u64 = 50;
/// Processor time after which a run counts as endless, in seconds.
const RUN_SECONDS_MAX: u64 = 120;
/// The number of seeds within which a canary must be detected, and the first of them. Those of `Canary::NOTICED_IN` have seeds of
/// that kind; the others any.
const CANARY_SEEDS: usize = 80;
const CANARY_SEED_FIRST: u64 = 12;
/// Seeds that are run twice.
const SEEDS_TWICE: usize = 5;

/// Deterministic simulation of a kvorum cluster.
#[derive(Debug, Parser)]
#[command(name = "kvorum-sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one seed.
    #[command(alias = "replay")]
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Prints every step.
        #[arg(long)]
        trace: bool,
        /// Lets a bug loose.
        #[arg(long)]
        canary: Option<String>,
        /// Prints the run's figures as the last line.
        #[arg(long)]
        tally: bool,
        /// Adds the checksum of the trace to the figures.
        #[arg(long)]
        sum_trace: bool,
        /// Moves what replaces the machine's randomness; nothing may depend on it.
        #[arg(long, default_value_t = 0)]
        salt: u64,
    },
    /// Runs fresh seeds until the time is up.
    Soak {
        /// For how long.
        #[arg(long)]
        minutes: u64,
        /// What the seeds are made of.
        #[arg(long, value_name = "TEXT")]
        from: String,
        /// Only seeds that have this kind of fault, or are of this kind: contended-conditions, cut-off-members, joins, late-writers,
        /// lost-answers, marks, restarted-copies, restores, stranded-ballots.
        #[arg(long, value_name = "KIND")]
        with: Option<String>,
        /// Where to write the summary, in Markdown.
        #[arg(long, value_name = "FILE")]
        summary: Option<PathBuf>,
    },
    /// Runs the seeds of a commit and those that ever failed, and some of them twice.
    Ci {
        /// How many.
        #[arg(long)]
        seeds: u64,
        /// What they are made of: the commit's hash.
        #[arg(long, value_name = "HASH")]
        from: String,
        /// Leaves out what only a whole batch can show: seeds that are run twice, and enough faults of each kind.
        #[arg(long)]
        quick: bool,
    },
    /// Lets every canary loose; each must be caught.
    Canaries {
        /// Only this one.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// In seeds of this kind, as for soak: to find out which kind meets it.
        #[arg(long, value_name = "KIND", requires = "only")]
        with: Option<String>,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { seed, trace, canary, tally, sum_trace, salt } => {
            if let Some(name) = canary
                && let Err(error) = let_loose(&name)
            {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            run_here(Seed(seed), trace, sum_trace, tally, salt)
        }
        Command::Soak { minutes, from, with, summary } => {
            soak(minutes, &from, with.as_deref(), summary.as_ref())
        }
        Command::Ci { seeds, from, quick } => ci(seeds, &from, quick),
        Command::Canaries { only, with } => canaries(only.as_deref(), with.as_deref()),
    }
}

/// Runs one seed in this process.
fn run_here(seed: Seed, shows_trace: bool, sums_trace: bool, tells_tally: bool, salt: u64) -> ExitCode {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(RUN_SECONDS_MAX), maximum: Some(RUN_SECONDS_MAX) };
    let _ = setrlimit(Resource::Cpu, limit);
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed.0 ^ salt));
    let _clocks = mad_turmoil::time::SimClocksGuard::init();
    let plan = Plan::of(seed);
    if shows_trace {
        print!("{plan}");
    }
    let trace = match (shows_trace, sums_trace) {
        (true, _) => Trace::shown(),
        (_, true) => Trace::kept(),
        _ => Trace::default(),
    };
    let ran = run(&plan, &trace);
    let (mut tally, is_clean) = match &ran {
        Ok(run) => {
            let tally = Tally::of(run);
            if run.violations.is_empty() {
                if !tells_tally {
                    println!("{tally}seed {} keeps every promise", seed.0);
                }
            } else {
                println!("{}", Report { plan: &plan, violations: &run.violations });
            }
            (tally, run.violations.is_empty())
        }
        Err(error) => {
            println!("seed {} came to no end: {error}\n{plan}\nreplay: make sim SEED={}", seed.0, seed.0);
            (Tally::failed(seed.0, &error.to_string()), false)
        }
    };
    if sums_trace {
        tally.trace_sum = Some(xxh3_64(trace.text().as_bytes()));
    }
    if tells_tally && let Ok(text) = serde_json::to_string(&tally) {
        println!("{text}");
    }
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn let_loose(name: &str) -> Result<(), String> {
    canary::let_loose(Canary::of_name(name).ok_or_else(|| format!("there is no canary {name}"))?);
    Ok(())
}

fn seeds_that_failed() -> Vec<Seed> {
    let number = |line: &str| line.split('#').next().and_then(|number| number.trim().parse().ok());
    FAILED.lines().filter_map(number).map(Seed).collect()
}

/// Adds a seed's figures to the sum, and prints the report if it broke an invariant.
fn take(sum: &mut Tally, ran: Ran) {
    if !ran.tally.broken.is_empty() {
        // The last line is the tally.
        let report: Vec<&str> = ran.text.lines().filter(|line| !line.starts_with("{\"seeds\"")).collect();
        println!("{}", report.join("\n"));
    }
    sum.add(ran.tally);
}

fn ci(count: u64, from: &str, is_quick: bool) -> ExitCode {
    let begun = uptime();
    let failed = seeds_that_failed();
    let fresh: Vec<Seed> = (0..count).map(|number| Seed::derived(from, number)).collect();
    let mut sum = Tally::default();
    let (known, options) = (failed.len(), Options::default());
    batch::run(failed.into_iter().chain(fresh.iter().copied()), options, || true, |ran| take(&mut sum, ran));
    println!(
        "{count} seeds of {from} and {known} that failed once, in {:.0} s",
        uptime().saturating_sub(begun).as_secs_f64()
    );
    print!("{sum}");
    if is_quick {
        return if sum.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let is_same = runs_twice(fresh.iter().copied().take(SEEDS_TWICE));
    let rare = sum.rarer_than(FAULTS_OF_EACH_KIND_MIN);
    let is_enough = sum.simulated() >= SIMULATED_MIN && rare.is_empty();
    if !is_enough {
        println!(
            "too little was simulated: at least {SIMULATED_MIN:?} and {FAULTS_OF_EACH_KIND_MIN} faults of each kind are asked \
             for; too rare: {}",
            rare.join(", ")
        );
    }
    if sum.broken.is_empty() && is_same && is_enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs each of `seeds` twice, the second time with other hidden randomness; the traces must be equal.
fn runs_twice(seeds: impl Iterator<Item = Seed>) -> bool {
    let mut sums = BTreeMap::<u64, Vec<Option<u64>>>::new();
    let seeds: Vec<Seed> = seeds.collect();
    for salt in [0, 1] {
        let options = Options { sums_trace: true, salt, ..Options::default() };
        batch::run(
            seeds.iter().copied(),
            options,
            || true,
            |ran| {
                sums.entry(ran.seed.0).or_default().push(ran.tally.trace_sum);
            },
        );
    }
    let mut is_same = true;
    for (seed, sums) in sums {
        let equal = matches!(sums.as_slice(), [Some(one), Some(other)] if one == other);
        println!("seed {seed} twice: {}", if equal { "equal to the byte" } else { "DIFFERENT" });
        is_same &= equal;
    }
    is_same
}

/// Seeds with so few keys have clients that often meet.
const CONTENDED_KEYS_MAX: usize = 5;
/// Kinds of seeds besides those with a kind of fault.
const KINDS: [&str; 9] = [
    "contended-conditions",
    "cut-off-members",
    "joins",
    "late-writers",
    "lost-answers",
    "marks",
    "restarted-copies",
    "restores",
    "stranded-ballots",
];

/// Whether there are seeds of this `kind`.
fn is_kind(kind: &str) -> bool {
    KINDS.contains(&kind) || FaultKind::ALL.into_iter().any(|fault| fault.name() == kind)
}

/// Whether `seed` has this kind of fault, or is of this kind.
fn is_of(seed: Seed, kind: &str) -> bool {
    let plan = Plan::of(seed);
    match kind {
        "contended-conditions" => plan.conditions > 0 && plan.keys.len() <= CONTENDED_KEYS_MAX,
        "joins" => plan.spares > 0,
        "marks" => plan.away_after.is_some(),
        "late-writers" => plan.has_late_writers,
        "restores" => plan.is_restored,
        "lost-answers" => plan.loses_answers,
        "cut-off-members" => plan.cuts_members_off,
        "restarted-copies" => plan.restarts_copies,
        "stranded-ballots" => plan.strands_ballots,
        name => plan.kinds.iter().any(|kind| kind.name() == name),
    }
}

fn soak(minutes: u64, from: &str, with: Option<&str>, summary: Option<&PathBuf>) -> ExitCode {
    if let Some(name) = with
        && !is_kind(name)
    {
        eprintln!("there is no kind of fault or seed {name}");
        return ExitCode::FAILURE;
    }
    let begun = uptime();
    let end = begun + Duration::from_mins(minutes);
    let is_asked = |seed: &Seed| with.is_none_or(|kind| is_of(*seed, kind));
    let seeds = (0..).map(|number| Seed::derived(from, number)).filter(is_asked);
    let mut sum = Tally::default();
    batch::run(seeds, Options::default(), || uptime() < end, |ran| take(&mut sum, ran));
    let took = uptime().saturating_sub(begun).as_secs_f64();
    let speed = sum.simulated().as_secs_f64() / took.max(1.0);
    print!("{sum}");
    println!("{took:.0} s, {speed:.1} times as fast as real time");
    if let Some(path) = summary {
        let text = format!(
            "# Soak of {minutes} minutes\n\nSeeds made of `{from}`; {speed:.1} times as fast as real time.\n\n```\n{sum}```\n"
        );
        #[expect(clippy::disallowed_methods, reason = "the report of a soak")]
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("the summary cannot be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    if sum.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn canaries(only: Option<&str>, with: Option<&str>) -> ExitCode {
    if let Some(kind) = with.filter(|kind| !is_kind(kind)) {
        eprintln!("there is no kind of fault or seed {kind}");
        return ExitCode::FAILURE;
    }
    let chosen = only.filter(|_| with.is_some()).and_then(Canary::of_name);
    let mut all_caught = true;
    let seeds_of = |kind: Option<&str>| -> Vec<Seed> {
        let is_asked = |seed: &Seed| kind.is_none_or(|kind| is_of(*seed, kind));
        (CANARY_SEED_FIRST..).map(Seed).filter(is_asked).take(CANARY_SEEDS).collect()
    };
    let any = (None, Canary::NOTICED);
    let of_kinds = Canary::NOTICED_IN.iter().map(|(kind, canaries)| (Some(*kind), *canaries));
    let noticed = std::iter::once(any).chain(of_kinds).flat_map(|(kind, canaries)| {
        let seeds = seeds_of(kind);
        canaries.iter().map(move |canary| (canary, seeds.clone()))
    });
    let asked: Vec<(&Canary, Vec<Seed>)> = match &chosen {
        Some(canary) => vec![(canary, seeds_of(with))],
        None => noticed.filter(|(canary, _)| only.is_none_or(|only| only == canary.name())).collect(),
    };
    let clean = Clean::default();
    let asked = if with.is_some() { asked } else { without_caught(asked, &clean) };
    for (canary, seeds) in asked {
        let options = Options { canary: Some(canary.name()), ..Options::default() };
        let caught = Mutex::new(BTreeMap::new());
        let lock = || caught.lock().unwrap_or_else(PoisonError::into_inner);
        batch::run(
            seeds.into_iter(),
            options,
            || lock().is_empty(),
            |ran| {
                if let Some((seed, names)) = ran.tally.broken.into_iter().next() {
                    lock().insert(seed, names);
                }
            },
        );
        let first = lock().pop_first();
        match first {
            Some((seed, names)) if clean.has(Seed(seed)) => {
                print_caught(*canary, Seed(seed), &names);
                println!("  to be written into kvorum-sim/seeds-of-canaries.txt: {} {seed}", canary.name());
            }
            Some((seed, _)) => {
                println!("{:<22} NOT SHOWN: seed {seed} fails without it too", canary.name());
                all_caught = false;
            }
            None => {
                println!("{:<22} GOT AWAY from {CANARY_SEEDS} seeds", canary.name());
                all_caught = false;
            }
        }
    }
    if all_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Those of `asked` that are not caught in the seeds that caught them last: each needs one run with it and one without,
/// where a search takes up to 80.
fn without_caught<'a>(asked: Vec<(&'a Canary, Vec<Seed>)>, clean: &Clean) -> Vec<(&'a Canary, Vec<Seed>)> {
    let (asked, left) = (Mutex::new(asked.into_iter()), Mutex::new(Vec::new()));
    let next = || asked.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((canary, seeds)) = next() {
                    let known = seed_of(*canary);
                    let names = known.and_then(|seed| {
                        let options = Options { canary: Some(canary.name()), ..Options::default() };
                        batch::run_one(seed, options).tally.broken.into_values().next()
                    });
                    match (known, names) {
                        (Some(seed), Some(names)) if clean.has(seed) => print_caught(*canary, seed, &names),
                        _ => left.lock().unwrap_or_else(PoisonError::into_inner).push((canary, seeds)),
                    }
                }
            });
        }
    });
    left.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The seed in which `canary` was caught last.
fn seed_of(canary: Canary) -> Option<Seed> {
    let pairs = CANARIES.lines().filter_map(|line| line.split_once(' '));
    let mut seeds = pairs.filter(|(name, _)| *name == canary.name());
    seeds.find_map(|(_, seed)| seed.parse().ok()).map(Seed)
}

/// Seeds that were run without a canary, and whether they broke nothing: one that does proves nothing.
#[derive(Default)]
struct Clean(Mutex<BTreeMap<u64, bool>>);

impl Clean {
    /// Whether `seed` breaks nothing without a canary. Several canaries are caught in one seed, so it is run once for all of them.
    fn has(&self, seed: Seed) -> bool {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(is_clean) = known().get(&seed.0) {
            return *is_clean;
        }
        let is_clean = batch::run_one(seed, Options::default()).tally.broken.is_empty();
        known().insert(seed.0, is_clean);
        is_clean
    }
}

fn print_caught(canary: Canary, seed: Seed, names: &[String]) {
    println!("{:<22} caught by seed {:<3} {}", canary.name(), seed.0, names.join(", "));
}
