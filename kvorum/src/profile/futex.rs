//! Waits for contended locks: the time that threads sleep in `futex(2)`, by stack.
//!
//! The standard library's locks and those of `parking_lot` go to sleep by libc's function `syscall`. A program that
//! says [`time_futex_waits!`](crate::time_futex_waits) has a function of that name itself, which the linker prefers: it
//! hands every call on, and, while a profile of locks runs, times those that wait for a futex. An idle thread waits for
//! a futex, too; `fold` keeps the stacks that end in a lock and drops the others. A lock that is got while spinning,
//! which takes no system call, is not seen, nor are the locks of C code, which goes to the kernel by itself.
//!
//! One of the exceptions to `unsafe_code = "deny"`: a function of libc is replaced by its own, with a look before and
//! after. `tests/profile.rs` shows that locks still work and are seen, and would fail if a new standard library slept
//! by another way. Why this and nothing else: `docs/decisions/0016-lock-waits-by-replacing-syscall.md`.
#![expect(unsafe_code, reason = "hands calls on to libc; see the module text")]

use super::stacks;
use super::{Event, is_on, now};
use std::ffi::{c_int, c_long};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Replaces libc's `syscall` in a program, so that waits for locks can be profiled. Once, beside `main`.
///
/// Only on Linux with a glibc that is linked dynamically (in a static program nothing is behind the replacement), on
/// processors where a function with a variable number of arguments finds them where one with six does; elsewhere it is
/// nothing, and profiles of locks have named waits only.
#[macro_export]
macro_rules! time_futex_waits {
    () => {
        /// Stands for libc's `syscall`: see `kvorum::profile::futex`.
        ///
        /// # Safety
        /// As for libc's.
        #[cfg(all(
            target_os = "linux",
            target_env = "gnu",
            not(target_feature = "crt-static"),
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        #[unsafe(no_mangle)]
        #[expect(unsafe_code, reason = "see `kvorum::profile::futex`")]
        pub unsafe extern "C" fn syscall(
            number: std::ffi::c_long,
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> std::ffi::c_long {
            // SAFETY: the caller keeps the contract of libc's `syscall`; what it did not pass is not looked at.
            unsafe { $crate::profile::futex::pass(number, [a, b, c, d, e, f]) }
        }
    };
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// Where libc's own function is; 0 before it was looked for.
static LIBC: AtomicUsize = AtomicUsize::new(0);

/// Hands a system call on to libc, and times it if it waits for a futex.
///
/// # Safety
/// As for libc's `syscall`.
pub unsafe fn pass(number: c_long, arguments: [usize; 6]) -> c_long {
    let Some(libc) = libc_syscall() else {
        // SAFETY: the address of this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    // Called by what a futex takes; other calls take other things.
    let [word, operation, expected, timeout, other_word, mask] = arguments;
    let is_timed = is_on(Event::Lock) && number == libc::SYS_futex && is_wait(operation);
    let begun = is_timed.then(now);
    // SAFETY: the caller's arguments, as they came, to the function that they are for.
    let result = unsafe { libc(number, word, operation, expected, timeout, other_word, mask) };
    if let Some(begun) = begun {
        let waited = begun.elapsed();
        // SAFETY: the address of this thread's `errno`, which lives as long as the thread. What the call has left there is
        // what its caller looks at.
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
        // SAFETY: a name that ends in NUL; the result is an address or null.
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
