//! Batches: many seeds on all cores, each in a process of its own.
//!
//! A process for each seed costs a few milliseconds and makes every run in a batch the same as its replay. No
//! state is left over from the seed before, and the replacement of the machine's randomness exists once per
//! process. A batch also survives a seed that panics or never ends.

use crate::seed::Seed;
use crate::tally::Tally;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The settings of a seed's run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// The canary bug that is switched on.
    pub canary: Option<&'a str>,
    /// Whether the trace is kept and its checksum reported.
    pub sums_trace: bool,
    /// Shifts the replacement of the machine's randomness; the run must not depend on it.
    pub salt: u64,
}

/// A seed that was run, and its results.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The seed.
    pub seed: Seed,
    /// The figures of the run.
    pub tally: Tally,
    /// The run's output; the report, if an invariant was broken.
    pub text: String,
}

/// The time since the machine was started. The simulation replaces the clock itself in this process.
pub fn uptime() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "the real time, which is not the simulation's")]
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.0))
}

/// Runs `seeds` on all cores, until they are used up or `goes_on` returns false; calls `each` with every
/// result.
pub fn run(
    seeds: impl Iterator<Item = Seed> + Send,
    options: Options<'_>,
    goes_on: impl Fn() -> bool + Sync,
    each: impl FnMut(Ran) + Send,
) {
    let (seeds, each) = (Mutex::new(seeds), Mutex::new(each));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while goes_on() {
                    let next = seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(seed) = next else { return };
                    let ran = run_one(seed, options);
                    each.lock().unwrap_or_else(PoisonError::into_inner)(ran);
                }
            });
        }
    });
}

/// Runs `seed` in a process of its own.
pub fn run_one(seed: Seed, options: Options<'_>) -> Ran {
    let mut command = match std::env::current_exe() {
        Ok(program) => Command::new(program),
        Err(error) => return lost(seed, &format!("this program is not to be found: {error}")),
    };
    command.args(["run", "--tally", "--seed", &seed.0.to_string(), "--salt", &options.salt.to_string()]);
    command.args(options.canary.map(|canary| format!("--canary={canary}")));
    command.args(options.sums_trace.then_some("--sum-trace"));
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return lost(seed, &format!("the run could not be started: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(tally) = text.lines().next_back().and_then(|line| serde_json::from_str(line).ok()) else {
        let said = String::from_utf8_lossy(&output.stderr);
        return lost(seed, &format!("no end ({}): {said}", output.status));
    };
    Ran { seed, tally, text }
}

fn lost(seed: Seed, reason: &str) -> Ran {
    let tally = Tally::failed(seed.0, reason.lines().next().unwrap_or(reason));
    let text = format!("seed {}: {reason}\nreplay: make sim SEED={}\n", seed.0, seed.0);
    Ran { seed, tally, text }
}
