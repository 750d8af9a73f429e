//! The log of a process that runs nodes: what it says, in which form, and how often at most.
//!
//! Lines go to standard error by way of [`kvorum_output`], which never waits and never panics; so a log that is closed, full
//! or not read costs lines, which are counted, and nothing else. A panic is logged like anything else.

use crate::config::LogFormat;
use std::io;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The environment variable that holds a filter such as `debug` or `kvorum=debug,fjall=info`.
pub const VARIABLE: &str = "KVORUM_LOG";

/// How long a process that ends waits for its last lines to be written.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Starts the log of this process.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env(VARIABLE)
        .unwrap_or_else(|_| EnvFilter::new("info,fjall=warn,lsm_tree=warn,inferno=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines);
    // Errors of its own would go to standard error by `eprintln!`.
    let log = log.log_internal_errors(false);
    kvorum_output::set_notice(match format {
        LogFormat::Text => text_notice,
        LogFormat::Json => json_notice,
    });
    // A second logger in one process (tests) is refused; the first stays.
    let _ = match format {
        LogFormat::Text => {
            log.with_target(false).with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init()
        }
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
}

/// Panics of this process so far.
pub fn panic_count() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// The standard hook writes to standard error itself, and waits for its reader.
fn log_panic(panic: &PanicHookInfo<'_>) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    let thread = thread::current();
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => Some(backtrace.to_string()),
        _ => None,
    };
    tracing::error!(
        thread = thread.name().unwrap_or("?"),
        place,
        backtrace,
        "a thread panicked: {}",
        panic.payload_as_str().unwrap_or("for a reason that is no text")
    );
}

/// The way of a formatted line to standard error.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        kvorum_output::tell(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const NOTICE: &str = "lines of the log were dropped here: they could not be written, or not soon enough";

fn timestamp() -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn text_notice(dropped: u64) -> String {
    format!("{}  WARN {NOTICE} lines={dropped}\n", timestamp())
}

fn json_notice(dropped: u64) -> String {
    let line = serde_json::json!({
        "timestamp": timestamp(), "level": "WARN", "message": NOTICE, "lines": dropped,
        "target": "kvorum::log",
    });
    format!("{line}\n")
}

/// A line that comes at most so often, whatever causes it: for what others can cause at will.
#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    // Guards when the last line came and how many were left out since; held to read and write two numbers.
    last: Mutex<(Option<Duration>, u64)>,
}

impl Seldom {
    /// A line that comes at most once in `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, last: Mutex::new((None, 0)) }
    }

    /// Whether the line may come at the monotonic time `now`: then how many were left out since the last one.
    pub fn admit(&self, now: Duration) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.is_some_and(|at| now.saturating_sub(at) < self.every) {
            last.1 += 1;
            return None;
        }
        last.0 = Some(now);
        Some(std::mem::take(&mut last.1))
    }
}

/// Lines of which each comes once in a while, and few different ones: for texts that others choose.
#[derive(Debug, Default)]
pub struct Repeats {
    // Guards the lines of late and when they came; held to look through a few texts.
    lines: Mutex<Vec<(String, Duration)>>,
}

impl Repeats {
    /// How long the same line does not come again.
    const SAME_EVERY: Duration = Duration::from_mins(10);
    /// So many different lines may come in [`Self::OTHERS_EVERY`].
    const LEN_MAX: usize = 16;
    /// How long a line keeps its place from others.
    const OTHERS_EVERY: Duration = Duration::from_mins(1);

    /// Whether `line` may come at the monotonic time `now`.
    pub fn admit(&self, line: &str, now: Duration) -> bool {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|(_, at)| now.saturating_sub(*at) < Self::SAME_EVERY);
        if lines.iter().any(|(known, _)| known == line) {
            return false;
        }
        if lines.len() >= Self::LEN_MAX {
            let oldest = lines.first().map_or(now, |(_, at)| *at);
            if now.saturating_sub(oldest) < Self::OTHERS_EVERY {
                return false;
            }
            lines.remove(0);
        }
        lines.push((line.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first line comes, those within the time are counted, the next one tells how many they were.
    #[test]
    fn lines_come_seldom() {
        let seldom = Seldom::new(Duration::from_secs(10));
        let at = |seconds| seldom.admit(Duration::from_secs(seconds));
        assert_eq!(
            [0, 1, 9, 10, 15, 19, 20, 40].map(at),
            [Some(0), None, None, Some(2), None, None, Some(2), Some(0)]
        );
    }

    /// The same line comes once in ten minutes, and of different ones few in a minute.
    #[test]
    fn repeated_lines_are_left_out() {
        let repeats = Repeats::default();
        let at = |line: &str, seconds| repeats.admit(line, Duration::from_secs(seconds));
        assert!(at("a", 0) && !at("a", 599) && at("a", 600) && at("b", 600));
        let others = (0..1000).filter(|number: &u64| at(&number.to_string(), 601 + number % 10)).count();
        assert_eq!(others, Repeats::LEN_MAX - 2);
        assert!(at("c", 660));
    }

    /// The notice is a line of the form that the log has.
    #[test]
    fn notice_is_a_line_of_the_log() {
        assert!(
            text_notice(7).ends_with("lines=7\n") && text_notice(7).starts_with("20"),
            "{}",
            text_notice(7)
        );
        let json: serde_json::Value = serde_json::from_str(&json_notice(7)).unwrap();
        assert_eq!((json["lines"].as_u64(), json["level"].as_str()), (Some(7), Some("WARN")));
    }
}
