//! Support for the tests that run the real program, compiled once for all of them.
//!
//! [`process`] starts, kills and inspects the program; of it are made [`node`], one node without peers, and
//! [`cluster`]. [`http`] is the raw client. [`session`] and [`load`] are clients that record what they did, and
//! [`history`] decides whether the results keep the contract. [`disk`] and [`net`] break what is below the nodes.
//!
//! Every wait has a bound; one that exceeds it fails with the nodes' logs in the text. A process that lives longer than any test is
//! killed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::len_without_is_empty,
    clippy::trivially_copy_pass_by_ref,
    reason = "support for tests fails by panicking, and owns its processes, files and sockets"
)]

pub mod cluster;
pub mod disk;
pub mod history;
pub mod http;
pub mod load;
pub mod net;
pub mod node;
pub mod process;
pub mod session;
mod watchdog;

use kvorum_core::Version;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for an event that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The number of bytes in a mebibyte.
pub const MIB: usize = 1 << 20;

/// Milliseconds since the Unix epoch, now.
pub fn unix_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Calls `is_so` until it returns `true`; panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Raises a flag when dropped, also by a failed assertion. A scope waits for its threads: one that goes on until a flag is raised
/// would never end, and the test would hang instead of failing.
pub struct RaiseOnDrop<'a>(pub &'a AtomicBool);

impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The sum of a counter's or gauge's samples in the text of `/metrics`.
#[track_caller]
pub fn metric_sum(text: &str, name: &str) -> u64 {
    let samples: Vec<u64> = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(!samples.is_empty(), "no metric {name} in:\n{text}");
    samples.iter().sum()
}

/// The version in an answer.
pub fn version_of(answer: &http::Answer) -> Option<Version> {
    answer.header("etag")?.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// A key in a query, escaped where it must be.
pub fn percent(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// A key in a query, every byte escaped.
pub fn escape(key: &[u8]) -> String {
    key.iter().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"))
}

/// A seeded random generator, so that a failure can be repeated.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits: splitmix64.
    pub fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to below `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_word() % (high - low)
    }

    /// `true` in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0, 100) < percent
    }
}

/// Pseudo-random bytes; every seed gives others.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.next_word().to_le_bytes());
    let mut noise: Vec<u8> = words.take(bytes.div_ceil(8)).flatten().collect();
    noise.truncate(bytes);
    noise
}

/// How many rounds a test that repeats itself makes: `KVORUM_TEST_ROUNDS` if set.
pub fn rounds(default: u32) -> u32 {
    setting("KVORUM_TEST_ROUNDS").and_then(|rounds| rounds.try_into().ok()).unwrap_or(default)
}

/// Seconds that a test which runs for a while may take: `KVORUM_TEST_SECONDS` if set.
pub fn seconds(default: u64) -> u64 {
    setting("KVORUM_TEST_SECONDS").unwrap_or(default)
}

/// The seed of this run: `KVORUM_TEST_SEED`, or the time. Printed, so that a failure can be repeated.
pub fn seed(of: &str) -> u64 {
    let seed = setting("KVORUM_TEST_SEED").unwrap_or_else(unix_millis);
    println!("{of}: KVORUM_TEST_SEED={seed}");
    seed
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Reports on the test's standard error, which bypasses the capture of passing tests' output, that it did not
/// run.
pub fn skip(test: &str, why: &str) {
    use std::io::Write;
    // `eprintln!` is captured and shown for failures only; a skipped test must be seen.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}
