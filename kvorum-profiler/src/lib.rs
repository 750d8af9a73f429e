//! Profiles of the running process: where its CPU time, its allocations and its waits go, over a period of time.
//!
//! [`take`] collects on its own thread and renders the profile of a [`Session`]; one at a time, because a process has
//! one timer signal, one allocator and one set of locks. The collectors:
//!
//! | event | file | how | value |
//! | --- | --- | --- | --- |
//! | `cpu` | [`cpu`] | a timer signal interrupts running threads, which note their stacks | samples |
//! | `alloc` | [`alloc`] | the global allocator notes the stack of about one allocation in 256 KiB | bytes allocated, freed or not |
//! | `wall` | [`cpu`] | the same signal is sent to every thread, running or not, 20 times a second | samples |
//! | `live` | [`alloc`] | as `alloc`, without what has been freed at the end of the profile | bytes |
//! | `lock` | [`futex`], [`waits`] | waits for contended locks by stack, and waits of tasks and queues by name | microseconds waited |
//!
//! [`stacks`] takes and keeps stacks, [`fold`] gives them names, [`render`] writes them. While no profile runs, the
//! cost is one relaxed load per allocation and per named wait. `docs/dev/profiling.md` describes what each event sees,
//! what it misses, and what it costs.
//!
//! The crate reads the system's clock: it measures its own process, never a node in a simulation.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod alloc;
mod cpu;
mod fold;
pub mod futex;
mod pprof;
mod render;
mod stacks;
pub mod waits;

pub use fold::{Entry, Profile};
pub use render::{Format, Summary, render, stacks_of, titled};

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The longest profile, in seconds.
pub const SECONDS_MAX: u16 = 300;
/// How often a running profile reads the samples that signal handlers have written.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

/// The event that a profile counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Samples of running threads.
    Cpu = 1,
    /// Bytes allocated.
    Alloc = 2,
    /// Time waited for locks, queues and other threads.
    Lock = 3,
    /// Samples of all threads, running or not.
    Wall = 4,
    /// Bytes allocated during the profile and not freed at its end.
    Live = 5,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Alloc, Self::Lock, Self::Wall, Self::Live];

    /// The event's name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Lock => "lock",
            Self::Wall => "wall",
            Self::Live => "live",
        }
    }

    /// The event called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// The reason why there is no profile.
#[derive(Debug)]
pub enum ProfileError {
    /// Another profile of this process is running; a retry can help when it has ended.
    Busy,
    /// A system call that the profile needs failed.
    System {
        /// What was attempted.
        attempted: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The profile could not be written in the requested format.
    Format {
        /// The error.
        source: io::Error,
    },
    /// The profile was stopped before its end.
    Stopped,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another profile of this process runs; one is taken at a time"),
            Self::System { attempted, source } => write!(f, "cannot {attempted}: {source}"),
            Self::Format { source } => write!(f, "cannot write the profile: {source}"),
            Self::Stopped => f.write_str("the profile was stopped before its end"),
        }
    }
}

impl std::error::Error for ProfileError {}

/// The number of the [`Event`] that is collected now, or 0. Nothing else is read while no profile runs.
static COLLECTING: AtomicU8 = AtomicU8::new(0);
/// Whether a profile is being taken, including its rendering, which comes after the collecting.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether `event` is collected now.
#[inline]
fn is_on(event: Event) -> bool {
    COLLECTING.load(Ordering::Relaxed) == event as u8
}

#[expect(clippy::disallowed_methods, reason = "a profile measures the process it is in: see the module text")]
fn now() -> Instant {
    Instant::now()
}

/// A profile that is being collected. Dropping it ends the collecting; the collected samples are lost.
#[derive(Debug)]
pub struct Session {
    event: Event,
    begun: Instant,
    samples: cpu::Samples,
}

impl Session {
    /// Starts to collect.
    ///
    /// # Errors
    /// [`ProfileError::Busy`] while another profile is being taken, [`ProfileError::System`].
    pub fn start(event: Event) -> Result<Self, ProfileError> {
        if TAKEN.swap(true, Ordering::Acquire) {
            return Err(ProfileError::Busy);
        }
        // From here on, dropping the session lets the next profile start.
        let session = Self { event, begun: now(), samples: cpu::Samples::default() };
        match event {
            Event::Cpu | Event::Wall => cpu::prepare()?,
            Event::Alloc | Event::Lock | Event::Live => stacks::clear(),
        }
        waits::clear();
        COLLECTING.store(event as u8, Ordering::Release);
        if event == Event::Cpu {
            cpu::start()?;
        }
        Ok(session)
    }

    /// Reads the samples that signal handlers have written and, for `wall`, asks for the next ones; to be called every [`DRAIN_EVERY`].
    pub fn drain(&mut self) {
        if let Event::Cpu | Event::Wall = self.event {
            self.samples.drain();
        }
        if is_on(Event::Wall) {
            cpu::interrupt_all();
        }
    }

    /// Ends the collecting, and returns the profile. Naming the stacks takes about a second the first time.
    pub fn finish(mut self) -> Profile {
        let lasted = self.begun.elapsed();
        self.end();
        self.drain();
        let collected = match self.event {
            Event::Cpu | Event::Wall => std::mem::take(&mut self.samples).collected(),
            Event::Alloc | Event::Lock => stacks::take(),
            Event::Live => stacks::take_live(),
        };
        let mut profile = fold::fold(self.event, lasted, collected);
        if self.event == Event::Lock {
            profile.entries.extend(waits::take());
        }
        profile
    }

    fn end(&self) {
        if self.event == Event::Cpu {
            cpu::stop();
        }
        COLLECTING.store(0, Ordering::Release);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
        TAKEN.store(false, Ordering::Release);
    }
}

/// A profile that its own thread takes. Dropping it stops the thread soon.
#[derive(Debug)]
pub struct Taking {
    rendered: oneshot::Receiver<Result<Vec<u8>, ProfileError>>,
    _stop: mpsc::SyncSender<()>,
}

/// Starts a profile of `event` that takes `lasts`, on its own thread.
///
/// # Errors
/// At the start: [`ProfileError::Busy`], [`ProfileError::System`].
pub fn take(event: Event, lasts: Duration, format: Format) -> Result<Taking, ProfileError> {
    let session = Session::start(event)?;
    let (stop, stopped) = mpsc::sync_channel(0);
    let (report, rendered) = oneshot::channel();
    #[expect(clippy::disallowed_methods, reason = "this room owns the thread that takes a profile")]
    let thread = thread::Builder::new().name("kvorum:profile".to_owned()).spawn(move || {
        if let Some(session) = collect(session, lasts, &stopped) {
            // The requester may have gone.
            let _ = report.send(render(&session.finish(), format));
        }
    });
    thread.map_err(|source| ProfileError::System { attempted: "start the profile's thread", source })?;
    Ok(Taking { rendered, _stop: stop })
}

/// Collects for `lasts`; returns none if it was stopped.
fn collect(mut session: Session, lasts: Duration, stopped: &mpsc::Receiver<()>) -> Option<Session> {
    loop {
        let left = lasts.saturating_sub(session.begun.elapsed());
        if left.is_zero() {
            return Some(session);
        }
        match stopped.recv_timeout(left.min(DRAIN_EVERY)) {
            Err(RecvTimeoutError::Timeout) => session.drain(),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

impl Taking {
    /// Waits for the rendered profile.
    ///
    /// # Errors
    /// [`ProfileError::Format`], or [`ProfileError::Stopped`] if the thread ended early.
    ///
    /// # Cancel safety
    /// Dropping the future stops the profile.
    pub async fn rendered(self) -> Result<Vec<u8>, ProfileError> {
        self.rendered.await.unwrap_or(Err(ProfileError::Stopped))
    }
}
