//! Waits for contended locks: the time that threads sleep in `futex(2)`, by stack.
//!
//! The standard library's locks and `parking_lot`'s go to sleep by libc's function `syscall`. A program that uses
//! [`time_futex_waits!`](crate::time_futex_waits) defines a function of that name itself, which the linker prefers. It
//! passes every call on and, while a profile of locks runs, times the calls that wait for a futex. An idle thread waits
//! for a futex, too; `fold` keeps the stacks that end in a lock and drops the others. Two kinds of locks are not seen:
//! those that are acquired while spinning, without a system call, and those of C code, which makes its system calls
//! directly.
//!
//! One of the exceptions to `unsafe_code = "deny"`: a libc function is replaced by one that calls the original and
//! takes times around it. `tests/profile.rs` shows that locks still work and are seen, and would fail if a new standard
//! library slept in another way. Alternatives: `docs/decisions/0016-lock-waits-by-replacing-syscall.md`.
#![expect(unsafe_code, reason = "hands calls on to libc; see the module text")]

use super::stacks;
use super::{Event, is_on, now};
use std::ffi::{c_int, c_long};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Replaces libc's `syscall` in a program, so that waits for locks can be profiled. Use it once, beside `main`.
///
/// Only on Linux with a dynamically linked glibc: in a static program there is no original behind the replacement. And
/// only on processors that pass variable arguments like six fixed ones. Elsewhere it does nothing, and profiles of
/// locks have named waits only.
#[macro_export]
macro_rules! time_futex_waits {
    () => {
        /// Replaces libc's `syscall`: see `kvorum_profiler::futex`.
        ///
        /// # Safety
        /// As for libc's `syscall`.
        #[cfg(all(
            target_os = "linux",
            target_env = "gnu",
            not(target_feature = "crt-static"),
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        #[unsafe(no_mangle)]
        #[expect(unsafe_code, reason = "see `kvorum_profiler::futex`")]
        pub unsafe extern "C" fn syscall(
            number: std::ffi::c_long,
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> std::ffi::c_long {
            // SAFETY: the caller keeps the contract of libc's `syscall`; arguments that it did not pass are not used.
            unsafe { $crate::futex::pass(number, [a, b, c, d, e, f]) }
        }
    };
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// The address of libc's own function; 0 until it was looked up.
static LIBC: AtomicUsize = AtomicUsize::new(0);

/// Passes a system call on to libc, and times it if it waits for a futex.
///
/// # Safety
/// As for libc's `syscall`.
pub unsafe fn pass(number: c_long, arguments: [usize; 6]) -> c_long {
    let Some(libc) = libc_syscall() else {
        // SAFETY: the address of this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    // The names are those of a futex's arguments; other calls have others.
    let [word, operation, expected, timeout, other_word, mask] = arguments;
    let is_timed = is_on(Event::Lock) && number == libc::SYS_futex && is_wait(operation);
    let begun = is_timed.then(now);
    // SAFETY: the caller's arguments are passed unchanged to the function that they are meant for.
    let result = unsafe { libc(number, word, operation, expected, timeout, other_word, mask) };
    if let Some(begun) = begun {
        let waited = begun.elapsed();
        // SAFETY: the address of this thread's `errno`, which lives as long as the thread. The caller reads the value
        // that the call has left there, so it is restored.
        unsafe {
            let errno = *libc::__errno_location();
            stacks::note(1, super::waits::nanos(waited));
            *libc::__errno_location() = errno;
        }
    }
    result
}

fn libc_syscall() -> Option<Syscall> {
    let mut address = LIBC.load(Ordering::Relaxed);
    if address == 0 {
        // SAFETY: the name ends in NUL; the result is an address or null.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) }.addr();
        LIBC.store(address, Ordering::Relaxed);
    }
    // SAFETY: libc's `syscall` has this type; null is no function and becomes `None`.
    unsafe { mem::transmute::<usize, Option<Syscall>>(address) }
}

fn is_wait(operation: usize) -> bool {
    let command = c_int::try_from(operation & 0x7f).unwrap_or(-1);
    matches!(command, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
}
