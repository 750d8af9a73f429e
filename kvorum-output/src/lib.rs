//! The standard outputs of kvorum's programs. `println!` and `eprintln!` panic when the reader has gone or
//! the disk is full, and block when the reader does not read. A server or a benchmark may do neither.
//!
//! - [`print`]: results, to standard output. It may wait for the reader, and a failure is the caller's to
//!   handle.
//! - [`tell`]: diagnostics, to standard error. It never waits, fails or panics: a thread writes them, from a
//!   bounded queue. Lines that find no place or cannot be written are dropped and counted
//!   ([`lines_dropped`]). One line reports their number once lines can be written again.
//!
//! A program calls [`flush`] before it ends.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of diagnostics that may wait to be written: some 1,300 lines of a log.
pub const WAITING_BYTES_MAX: usize = 256 << 10;
/// How often the writer tries again to write, where lines were dropped and no more come.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How long the writer waits for an output that is in non-blocking mode.
const BUSY_WAIT: Duration = Duration::from_millis(10);

/// Writes `text` to standard output, all of it.
///
/// # Errors
/// The errors of writing; [`is_reader_gone`] recognises a closed pipe, which a program does not report.
pub fn print(text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref())?;
    out.flush()
}

/// Whether writing failed because the reader has closed its end, as `head` does.
pub fn is_reader_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes `text` to standard error, soon. Never waits, fails or panics.
pub fn tell(text: impl AsRef<[u8]>) {
    diagnostics().push(text.as_ref());
}

/// [`tell`]s one line, given as to `format!`.
#[macro_export]
macro_rules! tell_line {
    ($($words:tt)*) => { $crate::tell(format!("{}\n", format_args!($($words)*))) };
}

/// Diagnostics that were dropped since the program began.
pub fn lines_dropped() -> u64 {
    DIAGNOSTICS.get().map_or(0, |diagnostics| diagnostics.dropped.load(Ordering::Relaxed))
}

/// Sets the function that formats the line about dropped diagnostics, with its line end.
pub fn set_notice(notice: fn(u64) -> String) {
    diagnostics().lock().notice = notice;
}

/// Waits until all diagnostics are written, for at most `wait`.
pub fn flush(wait: Duration) {
    if let Some(diagnostics) = DIAGNOSTICS.get() {
        diagnostics.flush(wait);
    }
}

static DIAGNOSTICS: OnceLock<Arc<Diagnostics>> = OnceLock::new();

fn diagnostics() -> &'static Arc<Diagnostics> {
    DIAGNOSTICS.get_or_init(|| Arc::new(Diagnostics::new(write_to_stderr)))
}

/// Writes some of `bytes` without the lock of [`io::stderr`]: no other thread may wait for a reader that does
/// not read.
fn write_to_stderr(bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(io::stderr().as_fd(), bytes)?)
}

fn plain_notice(dropped: u64) -> String {
    format!("{dropped} lines were dropped here: they could not be written\n")
}

/// The queue of lines to an output.
struct Diagnostics {
    // Guards the queue; held to push a line or to take all, never to write.
    queue: Mutex<Queue>,
    arrived: Condvar,
    written: Condvar,
    dropped: AtomicU64,
    write: fn(&[u8]) -> io::Result<usize>,
}

struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no place since the last one that did.
    dropped: u64,
    has_writer: bool,
    is_writing: bool,
    notice: fn(u64) -> String,
}

impl Diagnostics {
    fn new(write: fn(&[u8]) -> io::Result<usize>) -> Self {
        let queue = Queue {
            lines: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            has_writer: false,
            is_writing: false,
            notice: plain_notice,
        };
        Self {
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            written: Condvar::new(),
            dropped: AtomicU64::new(0),
            write,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Self>, line: &[u8]) {
        let mut queue = self.lock();
        if queue.bytes.saturating_add(line.len()) > WAITING_BYTES_MAX {
            queue.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line.to_vec());
        if !queue.has_writer {
            // If there is no thread to be had, or the writer ended, the next line tries again.
            queue.has_writer = self.start_writer();
        }
        drop(queue);
        self.arrived.notify_one();
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one thread that may wait for the reader of diagnostics"
    )]
    fn start_writer(self: &Arc<Self>) -> bool {
        let diagnostics = Arc::clone(self);
        let writer = move || {
            let _ended = WriterEnd(Arc::clone(&diagnostics));
            Writer { diagnostics: &diagnostics, dropped: 0, is_midway: false }.run();
        };
        thread::Builder::new().name("kvorum:log".to_owned()).spawn(writer).is_ok()
    }

    fn flush(&self, wait: Duration) {
        #[expect(clippy::disallowed_methods, reason = "the program is about to end")]
        let end = Instant::now() + wait;
        let mut queue = self.lock();
        while queue.has_writer && (queue.is_writing || !queue.lines.is_empty()) {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            queue = self.written.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the program is about to end")]
fn now() -> Instant {
    Instant::now()
}

/// Marks the writer as ended when dropped, however it ended.
struct WriterEnd(Arc<Diagnostics>);

impl Drop for WriterEnd {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.has_writer = false;
        queue.is_writing = false;
        drop(queue);
        self.0.written.notify_all();
    }
}

/// The state of the thread that writes.
struct Writer<'a> {
    diagnostics: &'a Diagnostics,
    /// Lines that were dropped and not reported yet.
    dropped: u64,
    /// Whether the last line was cut.
    is_midway: bool,
}

impl Writer<'_> {
    fn run(&mut self) {
        loop {
            let (lines, dropped_behind) = self.take();
            for line in lines {
                self.write_line(&line);
            }
            self.dropped += dropped_behind;
            self.tell_dropped();
        }
    }

    /// Takes the waiting lines, and how many lines were dropped after them. Sometimes empty while dropped
    /// lines are still to be reported.
    fn take(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut queue = self.diagnostics.lock();
        queue.is_writing = false;
        self.diagnostics.written.notify_all();
        while queue.lines.is_empty() && queue.dropped == 0 {
            if self.dropped == 0 {
                queue = self.diagnostics.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.diagnostics.arrived.wait_timeout(queue, RETRY_EVERY);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                break;
            }
        }
        queue.is_writing = true;
        queue.bytes = 0;
        (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.dropped))
    }

    fn write_line(&mut self, line: &[u8]) {
        if !self.tell_dropped() || self.write_all(line).is_err() {
            self.dropped += 1;
            self.diagnostics.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports how many lines were dropped, if any. Returns whether nothing is left to report.
    fn tell_dropped(&mut self) -> bool {
        if self.dropped == 0 {
            return true;
        }
        let notice = self.diagnostics.lock().notice;
        let is_told = self.write_all(notice(self.dropped).as_bytes()).is_ok();
        if is_told {
            self.dropped = 0;
        }
        is_told
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_midway {
            self.write_rest(b"\n")?;
            self.is_midway = false;
        }
        self.write_rest(line)
    }

    fn write_rest(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match (self.diagnostics.write)(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    rest = rest.get(bytes..).unwrap_or_default();
                    self.is_midway = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                #[expect(clippy::disallowed_methods, reason = "a thread of its own, on which nobody waits")]
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(BUSY_WAIT),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests wait in real time")]
mod tests {
    use super::*;

    /// The bytes that the outputs of the tests below took, and the outputs' behaviour.
    #[derive(Default)]
    struct Output {
        taken: Mutex<Vec<u8>>,
        is_full: std::sync::atomic::AtomicBool,
        /// Held by a test whose reader does not read.
        reader: Mutex<()>,
    }

    macro_rules! output {
        () => {{
            static OUTPUT: OnceLock<Output> = OnceLock::new();
            fn write(bytes: &[u8]) -> io::Result<usize> {
                let output = OUTPUT.get_or_init(Output::default);
                let _read = output.reader.lock().unwrap_or_else(PoisonError::into_inner);
                if output.is_full.load(Ordering::SeqCst) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                // Takes half of the bytes, so that a line takes several writes.
                let some = bytes.len().div_ceil(2);
                output.taken.lock().unwrap().extend(&bytes[..some]);
                Ok(some)
            }
            (Arc::new(Diagnostics::new(write)), OUTPUT.get_or_init(Output::default))
        }};
    }

    fn taken(output: &Output) -> String {
        String::from_utf8(output.taken.lock().unwrap().clone()).unwrap()
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lines come in order, and `flush` waits for them.
    #[test]
    fn lines_come_in_order() {
        let (diagnostics, output) = output!();
        for line in 0..100 {
            diagnostics.push(format!("{line}\n").as_bytes());
        }
        diagnostics.flush(Duration::from_secs(30));
        let expected: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        assert_eq!(taken(output).lines().collect::<Vec<_>>(), expected);
        assert_eq!(diagnostics.dropped.load(Ordering::Relaxed), 0);
    }

    /// Goal: a reader that does not read costs only lines; one line reports how many, in their place.
    #[test]
    fn reader_that_does_not_read_costs_lines() {
        let (diagnostics, output) = output!();
        let stopped = output.reader.lock().unwrap();
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<u8>>();
        diagnostics.push(&line);
        wait_until("the writer waits for the reader", || diagnostics.lock().lines.is_empty());
        // As many as have room, and 7 more.
        for _ in 0..WAITING_BYTES_MAX / line.len() + 7 {
            diagnostics.push(&line);
        }
        diagnostics.flush(Duration::from_millis(1));
        assert_eq!(diagnostics.dropped.load(Ordering::Relaxed), 7);
        drop(stopped);
        diagnostics.flush(Duration::from_secs(30));
        let taken = taken(output);
        assert_eq!(
            taken.lines().filter(|line| line.starts_with('x')).count(),
            WAITING_BYTES_MAX / line.len() + 1
        );
        assert_eq!(taken.lines().last(), Some("7 lines were dropped here: they could not be written"));
    }

    /// Goal: an output that fails loses lines, and a line reports it without a further call once the output
    /// takes some again.
    #[test]
    fn full_disk_is_told_of_once_there_is_space() {
        let (diagnostics, output) = output!();
        diagnostics.push(b"first\n");
        diagnostics.flush(Duration::from_secs(30));
        output.is_full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            diagnostics.push(b"lost\n");
        }
        diagnostics.flush(Duration::from_secs(30));
        assert_eq!(diagnostics.dropped.load(Ordering::Relaxed), 3);
        output.is_full.store(false, Ordering::SeqCst);
        let told = "first\n3 lines were dropped here: they could not be written\n";
        wait_until("it is told without another line", || taken(output) == told);
        diagnostics.push(b"last\n");
        diagnostics.flush(Duration::from_secs(30));
        assert_eq!(taken(output), format!("{told}last\n"));
    }

    /// A writer that has ended is replaced.
    #[test]
    fn writer_is_replaced() {
        fn notice(_: u64) -> String {
            panic!("as the test wants")
        }
        let (diagnostics, output) = output!();
        diagnostics.lock().notice = notice;
        output.is_full.store(true, Ordering::SeqCst);
        diagnostics.push(b"lost\n");
        wait_until("the writer has ended", || !diagnostics.lock().has_writer);
        diagnostics.lock().notice = plain_notice;
        output.is_full.store(false, Ordering::SeqCst);
        diagnostics.push(b"written\n");
        diagnostics.flush(Duration::from_secs(30));
        assert_eq!(taken(output), "written\n");
    }
}
