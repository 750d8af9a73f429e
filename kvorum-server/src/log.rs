//! The log of a process that runs nodes: its format, its filter, and limits on repeated lines.
//!
//! Lines go to standard error through [`kvorum_output`], which never waits and never panics. If standard error is
//! closed, full or not read, lines are lost and counted, with no other effect. Panics are logged like other events.

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

/// How long an ending process waits for its last lines to be written.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts the log of this process.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env(VARIABLE)
        .unwrap_or_else(|_| EnvFilter::new("info,fjall=warn,lsm_tree=warn,inferno=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines);
    // The subscriber's own errors would go to standard error by `eprintln!`.
    let log = log.log_internal_errors(false);
    kvorum_output::set_notice(match format {
        LogFormat::Text => text_notice,
        LogFormat::Json => json_notice,
    });
    // A second subscriber in one process (in tests) is refused; the first stays.
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

/// Logs a panic. It replaces the standard hook, which writes to standard error itself and blocks until it is read.
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
        panic.payload_as_str().unwrap_or("for a reason that is not a text")
    );
}

/// A writer of formatted lines to standard error.
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

const NOTICE: &str = "log lines were dropped here: standard error was closed, full or too slow";

fn timestamp() -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn text_notice(dropped: u64) -> String {
    format!("{}  WARN {NOTICE} lines={dropped}\n", timestamp())
}

fn json_notice(dropped: u64) -> String {
    let line = serde_json::json!({
        "timestamp": timestamp(), "level": "WARN", "message": NOTICE, "lines": dropped,
        "target": "kvorum_server::log",
    });
    format!("{line}\n")
}

/// A limit of one log line per interval, for lines that other nodes or clients can cause at will.
#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    // Guards the time of the last line and how many were left out since; held to read and write two numbers.
    last: Mutex<(Option<Duration>, u64)>,
}

impl Seldom {
    /// Allows at most one line in each `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, last: Mutex::new((None, 0)) }
    }

    /// Whether the line may be logged at the monotonic time `now`; if so, returns how many were left out since the last
    /// one.
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

/// A limit on repeated lines and on the number of different ones, for texts that other nodes choose.
#[derive(Debug, Default)]
pub struct Repeats {
    // Guards the recent lines and their times; held to compare a few texts.
    lines: Mutex<Vec<(String, Duration)>>,
}

impl Repeats {
    /// How long a line is not repeated.
    const SAME_EVERY: Duration = Duration::from_mins(10);
    /// The most different lines in [`Self::OTHERS_EVERY`].
    const LEN_MAX: usize = 16;
    /// How long a line keeps its place in the list when others come.
    const OTHERS_EVERY: Duration = Duration::from_mins(1);

    /// Whether `line` may be logged at the monotonic time `now`.
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

    /// The first line is logged, those within the interval are counted, and the next one reports the count.
    #[test]
    fn lines_come_seldom() {
        let seldom = Seldom::new(Duration::from_secs(10));
        let at = |seconds| seldom.admit(Duration::from_secs(seconds));
        assert_eq!(
            [0, 1, 9, 10, 15, 19, 20, 40].map(at),
            [Some(0), None, None, Some(2), None, None, Some(2), Some(0)]
        );
    }

    /// A line is logged once in ten minutes, and only a few different ones in a minute.
    #[test]
    fn repeated_lines_are_left_out() {
        let repeats = Repeats::default();
        let at = |line: &str, seconds| repeats.admit(line, Duration::from_secs(seconds));
        assert!(at("a", 0) && !at("a", 599) && at("a", 600) && at("b", 600));
        let others = (0..1000).filter(|number: &u64| at(&number.to_string(), 601 + number % 10)).count();
        assert_eq!(others, Repeats::LEN_MAX - 2);
        assert!(at("c", 660));
    }

    /// The notice is a line in the log's format.
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
