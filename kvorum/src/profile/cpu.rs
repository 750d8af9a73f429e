//! CPU samples: a timer of the process's CPU time sends `SIGPROF` to a thread that runs, which writes its stack into a
//! pipe; the profile's thread reads the pipe and adds up.
//!
//! The handler does what a signal handler may: it walks its stack, makes two system calls of its own (which leave
//! `errno` alone), takes no lock and allocates nothing. A record is shorter than `PIPE_BUF`, so records do not mix; a
//! full pipe loses the sample and counts it. The pipe is never closed: a handler that was late would write into
//! whatever had its number next. The handler stays, too: without it a late signal would end the process.
//!
//! Why not the `pprof` crate, which does the same: it holds two stacks for the same when their functions are, so that
//! of the calls that were inlined into a function (most of an asynchronous program) it names those of the first sample
//! only. It also brings thirty crates.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `sigaction(2)` and `setitimer(2)` have no safe wrapper in a kept
//! crate. The test below lets signals interrupt threads that allocate, lock and unwind.
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

/// Samples per second of CPU time. Not 100: what happens a hundred times a second would be seen always or never.
pub(super) const PER_SECOND: u64 = 99;
/// What the pipe holds: half a second of sixty busy processors.
const PIPE_BYTES: usize = 1 << 20;
/// A record: the thread's number, the count of frames, the frames, each a word.
const RECORD_WORDS_MAX: usize = 2 + stacks::DEPTH_MAX;
const WORD: usize = size_of::<usize>();
const _: () = assert!(RECORD_WORDS_MAX * WORD <= 4096, "a record must be written whole");

/// Where handlers write and the profile's thread reads.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

static PIPE: OnceLock<Pipe> = OnceLock::new();
/// Samples that the pipe had no room for.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Notes where the interrupted thread is.
extern "C" fn on_tick(_signal: c_int) {
    let Some(pipe) = PIPE.get().filter(|_| is_on(Event::Cpu)) else { return };
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

/// Makes the pipe, sets the handler, and forgets what was left of an earlier profile.
pub(super) fn prepare() -> Result<(), ProfileError> {
    // What the unwinder loads when it is first used is loaded here, not in the handler.
    let _ = Stack::here();
    if PIPE.get().is_none() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| system("make a pipe for samples")(error.into()))?;
        // A smaller pipe loses samples sooner, and says so.
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
    // Stopping a timer with valid arguments does not fail.
    let _ = set_timer(0);
}

fn set_handler() -> io::Result<()> {
    // SAFETY: all bytes zero are a valid `sigaction`: no flags, an empty mask, no function.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // System calls that a sample interrupts go on by themselves.
    action.sa_flags = libc::SA_RESTART;
    action.sa_sigaction = on_tick as extern "C" fn(c_int) as usize;
    // SAFETY: `action` is a whole `sigaction`, whose handler has the signature that its flags ask for and does only what
    // a signal handler may; the old action is not asked for.
    let result = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal each time that the process has used `micros` of CPU time; never again for 0.
fn set_timer(micros: i64) -> io::Result<()> {
    let every = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: `timer` is a whole `itimerval`; the old one is not asked for.
    let result = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// This adds up samples.
#[derive(Debug, Default)]
pub(super) struct Samples {
    collected: Collected,
    /// The beginning of a record whose end is not read yet.
    rest: Vec<u8>,
}

impl Samples {
    /// Reads what is in the pipe.
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

    /// All samples; those that were lost stand without a stack under thread 0.
    pub(super) fn collected(mut self) -> Collected {
        let lost = LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let place = Place { thread: 0, frames: Box::default() };
            stacks::add(&mut self.collected, place, lost, lost);
        }
        self.collected
    }
}
