//! Samples by a signal. For `cpu`, a timer of the process's CPU time sends `SIGPROF` to a running thread, whose handler writes the stack
//! into a pipe. The profile's thread reads the pipe and adds the samples up. For `wall`, the profile's thread sends the
//! signal to every thread itself.
//!
//! The handler is async-signal-safe: it walks its stack, makes two direct system calls (which do not change `errno`),
//! takes no lock and allocates nothing. A record is shorter than `PIPE_BUF`, so records do not interleave. If the pipe
//! is full, the sample is lost and counted as lost. The pipe is never closed: a late handler would write into whatever
//! file had its descriptor next. The handler is never removed either: without it a late signal would end the process.
//!
//! Why not the `pprof` crate, which does the same: it treats two stacks as equal when their functions are. For the
//! calls that were inlined into a function (most of an asynchronous program) it therefore names only those of the first
//! sample. It also brings thirty crates.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `sigaction(2)` and `setitimer(2)` have no safe wrapper in a
//! maintained crate. The test below lets signals interrupt threads that allocate, lock and unwind.
#![expect(unsafe_code, reason = "signals and timers have no safe wrapper; see the module text")]

use super::stacks::{self, Collected, Place, Stack};
use super::{Event, ProfileError, is_on};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::ffi::c_int;
use std::io;
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Samples per second of CPU time. Not 100: work that happens a hundred times a second would be sampled always or
/// never.
pub(super) const PER_SECOND: u64 = 99;
/// How often a profile of `wall` interrupts all threads, in a second; that of [`super::DRAIN_EVERY`].
pub(super) const WALL_PER_SECOND: u64 = 20;
/// The capacity of the pipe, in bytes: half a second of sixty busy processors.
const PIPE_BYTES: usize = 1 << 20;
/// The most words of a record: the thread's number, the count of frames, and the frames, one word each.
const RECORD_WORDS_MAX: usize = 2 + stacks::DEPTH_MAX;
const WORD: usize = size_of::<usize>();
const _: () = assert!(RECORD_WORDS_MAX * WORD <= 4096, "a record must be written whole");

/// The pipe that handlers write to and the profile's thread reads.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

static PIPE: OnceLock<Pipe> = OnceLock::new();
/// Samples that were lost because the pipe was full.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Records the interrupted thread's stack.
extern "C" fn on_tick(_signal: c_int) {
    let Some(pipe) = PIPE.get().filter(|_| is_on(Event::Cpu) || is_on(Event::Wall)) else { return };
    let stack = Stack::here();
    let mut record = [0_u8; RECORD_WORDS_MAX * WORD];
    let mut words = record.chunks_exact_mut(WORD);
    let frames = stack.frames();
    let thread = usize::try_from(stacks::thread_number()).unwrap_or(0);
    let mut bytes = 0;
    for word in [thread, frames.len()].iter().chain(frames) {
        if let Some(place) = words.next() {
            place.copy_from_slice(&word.to_ne_bytes());
            bytes += WORD;
        }
    }
    let written = record.get(..bytes).is_some_and(|record| rustix::io::write(&pipe.write, record).is_ok());
    if !written {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

fn system(attempted: &'static str) -> impl Fn(io::Error) -> ProfileError {
    move |source| ProfileError::System { attempted, source }
}

/// Makes the pipe, sets the handler, and discards the rest of an earlier profile.
pub(super) fn prepare() -> Result<(), ProfileError> {
    // The unwinder loads data when it is first used; that must happen here, not in the handler.
    let _ = Stack::here();
    if PIPE.get().is_none() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| system("make a pipe for samples")(error.into()))?;
        // A smaller pipe loses samples sooner, and they are counted as lost.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        let _ = PIPE.set(Pipe { read, write });
        set_handler().map_err(system("set the handler of SIGPROF"))?;
    }
    Samples::default().drain();
    LOST.store(0, Ordering::Relaxed);
    Ok(())
}

pub(super) fn start() -> Result<(), ProfileError> {
    set_timer(1_000_000 / PER_SECOND.cast_signed()).map_err(system("start the timer for samples"))
}

pub(super) fn stop() {
    // Stopping a timer with valid arguments cannot fail.
    let _ = set_timer(0);
}

/// Sends the signal to every thread of the process but the calling one, whether it runs or sleeps.
///
/// A sleeping thread's system call is restarted by the kernel, or ends early with `EINTR`, which the standard library
/// and the runtime expect. A thread that ends meanwhile is passed over.
pub(super) fn interrupt_all() {
    let own = stacks::thread_number();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let numbers = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    for thread in numbers.filter(|&thread| thread.unsigned_abs() != own) {
        // SAFETY: `tgkill(2)` has three arguments, all numbers. The signal has a handler, which `prepare` has set.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGPROF) };
    }
}

fn set_handler() -> io::Result<()> {
    // SAFETY: all bytes zero are a valid `sigaction`: no flags, an empty mask, no function.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // System calls that a sample interrupts are restarted by the kernel.
    action.sa_flags = libc::SA_RESTART;
    action.sa_sigaction = on_tick as extern "C" fn(c_int) as usize;
    // SAFETY: `action` is a complete `sigaction`; its handler has the signature that its flags require and is
    // async-signal-safe. The old action is not requested.
    let result = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel send a signal each time that the process has used `micros` of CPU time; 0 stops that.
fn set_timer(micros: i64) -> io::Result<()> {
    let every = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: `timer` is a complete `itimerval`; the old one is not requested.
    let result = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A collector of samples.
#[derive(Debug, Default)]
pub(super) struct Samples {
    collected: Collected,
    /// The beginning of a record whose end has not been read yet.
    rest: Vec<u8>,
}

impl Samples {
    /// Reads the samples that are in the pipe.
    pub(super) fn drain(&mut self) {
        let Some(pipe) = PIPE.get() else { return };
        let mut buffer = [0; 16 << 10];
        while let Ok(bytes @ 1..) = rustix::io::read(&pipe.read, &mut buffer) {
            self.rest.extend_from_slice(buffer.get(..bytes).unwrap_or_default());
            self.decode();
        }
    }

    fn decode(&mut self) {
        let words: Vec<usize> = self
            .rest
            .chunks_exact(WORD)
            .filter_map(|word| Some(usize::from_ne_bytes(word.try_into().ok()?)))
            .collect();
        let mut left = words.as_slice();
        while let [thread, depth, rest @ ..] = left
            && let Some((frames, rest)) = rest.split_at_checked(*depth)
        {
            let place = Place { thread: u32::try_from(*thread).unwrap_or(0), frames: frames.into() };
            stacks::add(&mut self.collected, place, 1, 1);
            left = rest;
        }
        self.rest.drain(..(words.len() - left.len()) * WORD);
    }

    /// All samples; lost ones are under thread 0 without a stack.
    pub(super) fn collected(mut self) -> Collected {
        let lost = LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let place = Place { thread: 0, frames: Box::default() };
            stacks::add(&mut self.collected, place, lost, lost);
        }
        self.collected
    }
}
