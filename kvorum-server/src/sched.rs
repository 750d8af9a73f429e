//! CPU scheduling: threads that answer requests come before background threads.
//!
//! A nice value alone does not achieve that. Linux lets the running thread keep the processor for its slice (2.8 ms by
//! default on two processors) before a thread that wakes gets its turn, whatever the nice values (EEVDF: Stoica and
//! Abdel-Wahab, 1995; in the kernel since 6.6). Since 6.12 a thread may have its own slice, and a waking thread with a
//! shorter one goes first. Older kernels apply the nice value and ignore the slice. If the kernel or a container
//! refuses, or the process was started in another scheduling class (`chrt`), nothing changes.
//!
//! A thread that holds a lock which requests need must not yield: it would hold the lock for as long as other threads
//! keep the processor. So the threads that flush the index and that sweep are scheduled like any other. Why not
//! `SCHED_IDLE`, and measurements: `docs/decisions/0018-turns-on-the-processors.md`.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `sched_getattr(2)` and `sched_setattr(2)` have no safe wrapper in a
//! maintained crate. Each gets a pointer to one structure that lives across the call, and its size.
#![expect(unsafe_code, reason = "sched_setattr(2) has no safe wrapper; see the module text")]

use std::io;
use std::mem;

/// How a thread shares the processors with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Requests wait for the thread: it runs soon after it wakes, for short slices.
    Prompt,
    /// No request waits for the thread: it yields to all others.
    Polite,
}

/// The slice of a thread that requests wait for, in nanoseconds: the shortest that the kernel accepts.
const PROMPT_SLICE: u64 = 100_000;
/// The lowest nice value of a thread that yields. Beside a thread that never sleeps, such a thread still gets a tenth
/// of a processor: flushes and compactions must make progress.
const POLITE_NICE: i32 = 10;
/// The kernel's number for the calling thread.
const OWN: libc::pid_t = 0;

/// Sets the scheduling of the calling thread, and of the threads that it starts from now on.
pub fn take_own(turns: Turns) {
    let _ = set(OWN, turns);
}

/// Sets the scheduling of this process's threads called `name`: for threads that a library starts.
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
    // SAFETY: the structure outlives the call, which reads as many bytes of it as its first field gives: its whole
    // size.
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
    use std::thread;

    /// Runs `test` on its own thread: the settings end with the thread.
    #[expect(clippy::disallowed_methods, reason = "a test of threads")]
    fn on_thread(name: &str, test: impl FnOnce() + Send + 'static) {
        thread::Builder::new().name(name.to_owned()).spawn(test).unwrap().join().unwrap();
    }

    /// Goal: the kernel reports for the thread the values that each class sets, and the nice value only ever rises.
    /// Method: the classes in turn, compared with the values before.
    #[test]
    fn the_kernel_takes_the_turns() {
        on_thread("turns", || {
            let before = get(OWN).unwrap();
            set(OWN, Turns::Prompt).unwrap();
            let prompt = get(OWN).unwrap();
            // A kernel without per-thread slices reports none.
            assert_eq!(prompt.sched_runtime, before.sched_runtime.min(PROMPT_SLICE));
            assert_eq!(prompt.sched_nice, before.sched_nice);
            set(OWN, Turns::Polite).unwrap();
            let polite = get(OWN).unwrap();
            assert_eq!(polite.sched_nice, before.sched_nice.max(POLITE_NICE));
            assert_eq!(polite.sched_policy, before.sched_policy);
        });
    }

    /// The settings of a thread in another scheduling class than the normal one stay unchanged.
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

    /// Only threads with the name are affected, and a thread that does not exist is an error.
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
