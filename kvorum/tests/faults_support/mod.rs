//! Support for the fault tests: nodes that may refuse to start, clients that may be cut, a checker of histories,
//! and the faults themselves.
//!
//! `history` decides whether the clients' results keep the contract; `load` runs the clients; `node` starts,
//! kills and inspects the program; `disk` injects faults below it. The fault tests are the `faults_*.rs`
//! files.

#![allow(dead_code, reason = "each test crate uses another part of this")]

pub mod disk;
pub mod history;
pub mod http;
pub mod load;
pub mod node;

/// A seeded random generator, so that a failure can be repeated.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits: splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to below `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// `true` in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0, 100) < percent
    }
}

/// How many rounds a test that repeats itself makes: `KVORUM_TEST_ROUNDS` if set.
pub fn rounds(default: u32) -> u32 {
    std::env::var("KVORUM_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}

/// The seed of this run: `KVORUM_TEST_SEED`, or the time. Printed, so that a failure can be repeated.
pub fn seed(of: &str) -> u64 {
    let given = std::env::var("KVORUM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(crate::support::unix_millis);
    println!("{of}: KVORUM_TEST_SEED={seed}");
    seed
}

/// Reports on the test's standard error, which bypasses the capture of passing tests' output, that it did not
/// run.
pub fn skip(test: &str, why: &str) {
    use std::io::Write;
    // `eprintln!` is captured and shown for failures only; a skipped test must be seen.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}
