//! Turns on the processors: threads that answer requests come before threads that nobody waits for.
//!
//! A nice value alone does not bring that about. Linux lets the thread that runs keep the processor for its slice,
//! 2.8 ms by default on two processors, before one that wakes gets its turn, however nice it is (EEVDF: Stoica and
//! Abdel-Wahab, 1995; in the kernel since 6.6). Since 6.12 a thread may have a slice of its own, and one that wakes with
//! a shorter one goes first. Older kernels take the nice value and leave the rest. Where the kernel or a container
//! refuses, or the process was started in another scheduling class (`chrt`), nothing changes.
//!
//! Who holds a lock that requests need must not yield: it would keep them for as long as others keep it. So what folds
//! the index and what sweeps take turns as any thread does. Why not `SCHED_IDLE`, and what it is worth:
//! `docs/decisions/0018-turns-on-the-processors.md`.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `sched_getattr(2)` and `sched_setattr(2)` have no safe wrapper in a
//! kept crate. Each gets a pointer to one structure that lives across the call, and its size.
#![expect(unsafe_code, reason = "sched_setattr(2) has no safe wrapper; see the module text")]

use std::io;
use std::mem;
use std::num::NonZeroU32;
use std::thread;

/// How a thread shares the processors with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Requests wait for it: it runs soon after it wakes, and briefly.
    Prompt,
    /// Nobody waits for it: it yields to all others.
    Polite,
}

/// The slice of a thread that requests wait for, in nanoseconds: the least that the kernel takes.
const PROMPT_SLICE: u64 = 100_000;
/// The nice value of a thread that yields, at least. It keeps a tenth of a processor beside one that never rests: what
/// flushes and compacts must come along.
const POLITE_NICE: i32 = 10;
/// Look-ups, and rows of a scan, between two times at which others may go first: each a few tens of microseconds.
const LOOK_UPS_IN_A_ROW: u32 = 8;
const ROWS_IN_A_ROW: u32 = 32;
/// The calling thread, to the kernel.
const OWN: libc::pid_t = 0;

/// This lets others go first now and then, in the loops of what nobody waits for.
///
/// A nice value decides how much of a processor a thread gets, not for how long at a time: what wakes on its processor
/// may wait for all of its slice, while another one is idle. Only where no lock is held. The default lets nobody go first.
#[derive(Debug, Default)]
pub struct Courtesy {
    every: Option<NonZeroU32>,
    steps: u32,
}

impl Courtesy {
    /// In a loop that looks a key up in each step.
    pub fn of_look_ups() -> Self {
        Self { every: NonZeroU32::new(LOOK_UPS_IN_A_ROW), steps: 0 }
    }

    /// In a loop that reads the next row in each step.
    pub fn of_rows() -> Self {
        Self { every: NonZeroU32::new(ROWS_IN_A_ROW), steps: 0 }
    }

    /// Counts a step.
    pub fn step(&mut self) {
        if self.is_due() {
            thread::yield_now();
        }
    }

    /// Counts a step. Whether others go first after it.
    fn is_due(&mut self) -> bool {
        let Some(every) = self.every else { return false };
        self.steps = (self.steps + 1) % every;
        self.steps == 0
    }

    /// Lets others go first now, between two things that take as long as some steps.
    pub fn pause(&mut self) {
        if self.every.is_some() {
            self.steps = 0;
            thread::yield_now();
        }
    }
}

/// Has the calling thread, and those that it starts, take such turns from now on.
pub fn take_own(turns: Turns) {
    let _ = set(OWN, turns);
}

/// Has this process's threads called `name` take such turns: for those that a library starts.
pub fn take_named(name: &str, turns: Turns) {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten() {
        #[expect(clippy::disallowed_methods, reason = "a thread's name is read from /proc")]
        let named =
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        if let (true, Some(Ok(thread))) = (named, task.file_name().to_str().map(str::parse)) {
            let _ = set(thread, turns);
        }
    }
}

fn set(thread: libc::pid_t, turns: Turns) -> io::Result<()> {
    let mut attributes = get(thread)?;
    if attributes.sched_policy != u32::try_from(libc::SCHED_OTHER).unwrap_or_default() {
        return Ok(());
    }
    match turns {
        Turns::Prompt => attributes.sched_runtime = PROMPT_SLICE,
        Turns::Polite => attributes.sched_nice = attributes.sched_nice.max(POLITE_NICE),
    }
    put(thread, &attributes)
}

fn put(thread: libc::pid_t, attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the structure outlives the call, which reads as many bytes of it as its first field says: all.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const *attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get(thread: libc::pid_t) -> io::Result<libc::sched_attr> {
    let size = u32::try_from(mem::size_of::<libc::sched_attr>()).unwrap_or_default();
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure outlives the call, which writes at most `size` bytes of it; all its fields are integers.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Runs `test` on a thread of its own: what it sets ends with it.
    #[expect(clippy::disallowed_methods, reason = "a test of threads")]
    fn on_thread(name: &str, test: impl FnOnce() + Send + 'static) {
        thread::Builder::new().name(name.to_owned()).spawn(test).unwrap().join().unwrap();
    }

    /// Goal: each class is what the kernel then says of the thread, and the nice value only ever rises. Method: the
    /// classes in turn, beside what was there before.
    #[test]
    fn the_kernel_takes_the_turns() {
        on_thread("turns", || {
            let before = get(OWN).unwrap();
            set(OWN, Turns::Prompt).unwrap();
            let prompt = get(OWN).unwrap();
            // A kernel that knows no slices of threads shows none.
            assert_eq!(prompt.sched_runtime, before.sched_runtime.min(PROMPT_SLICE));
            assert_eq!(prompt.sched_nice, before.sched_nice);
            set(OWN, Turns::Polite).unwrap();
            let polite = get(OWN).unwrap();
            assert_eq!(polite.sched_nice, before.sched_nice.max(POLITE_NICE));
            assert_eq!(polite.sched_policy, before.sched_policy);
        });
    }

    /// Others go first after so many steps, counted anew from where they did, and never by default.
    #[test]
    fn others_go_first_now_and_then() {
        let due = |courtesy: &mut Courtesy| (1..=64).filter(|_| courtesy.is_due()).count();
        assert_eq!(due(&mut Courtesy::of_look_ups()), 8);
        assert_eq!(due(&mut Courtesy::of_rows()), 2);
        assert_eq!(due(&mut Courtesy::default()), 0);
        let mut courtesy = Courtesy::of_look_ups();
        (0..5).for_each(|_| courtesy.step());
        courtesy.pause();
        assert_eq!((1..=8).find(|_| courtesy.is_due()), Some(8));
        let mut never = Courtesy::default();
        never.pause();
        assert!(!never.is_due());
    }

    /// A thread in another scheduling class than the usual one is left there.
    #[test]
    fn other_classes_are_left_alone() {
        on_thread("batch", || {
            let mut batch = get(OWN).unwrap();
            batch.sched_policy = u32::try_from(libc::SCHED_BATCH).unwrap();
            put(OWN, &batch).unwrap();
            let before = get(OWN).unwrap();
            set(OWN, Turns::Polite).unwrap();
            assert_eq!(get(OWN).unwrap().sched_nice, before.sched_nice);
        });
    }

    /// Of several threads only those of the name are meant, and a thread that there is not is an error.
    #[test]
    fn threads_are_found_by_name() {
        let (started, is_started) = mpsc::channel();
        let (end, until_end) = mpsc::channel::<()>();
        #[expect(clippy::disallowed_methods, reason = "a test of threads")]
        let other = thread::Builder::new()
            .name("not-meant".to_owned())
            .spawn(move || {
                started.send(()).unwrap();
                let _ = until_end.recv();
                get(OWN).unwrap().sched_nice
            })
            .unwrap();
        is_started.recv().unwrap();
        on_thread("is-meant", || {
            take_named("is-meant", Turns::Polite);
            assert!(get(OWN).unwrap().sched_nice >= POLITE_NICE);
        });
        drop(end);
        assert_eq!(other.join().unwrap(), get(OWN).unwrap().sched_nice);
        assert!(set(libc::pid_t::MAX, Turns::Polite).is_err());
    }
}
