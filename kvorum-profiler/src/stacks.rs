//! Stacks: captures the calling thread's stack, and adds up allocations and lock waits by stack in a table.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `backtrace::trace_unsynchronized`. The crate's lock would make
//! every thread wait for every other, and must not be taken in a signal handler. Without the lock the crate walks the
//! stack by the system's unwinder, which keeps no state between calls; the lock is for platforms with other unwinders.
#![expect(unsafe_code, reason = "a lock must not be taken in a signal handler; see the module text")]

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The most frames of a stack; frames further out are cut.
pub(super) const DEPTH_MAX: usize = 128;
/// The most different stacks that are kept. Further ones are added up without a stack.
const STACKS_MAX: usize = 1 << 16;

/// A stack as addresses, the innermost first.
pub(super) struct Stack {
    frames: [usize; DEPTH_MAX],
    depth: usize,
}

impl Stack {
    /// The stack of the calling thread, from this function outwards. Safe in a signal handler.
    #[inline(never)]
    pub(super) fn here() -> Self {
        let mut stack = Self { frames: [0; DEPTH_MAX], depth: 0 };
        // SAFETY: the unwinder of Linux is reentrant and keeps no state: see the module text. The closure does not
        // unwind.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let Some(place) = stack.frames.get_mut(stack.depth) else { return false };
                *place = frame.ip().addr();
                stack.depth += 1;
                true
            });
        }
        stack
    }

    pub(super) fn frames(&self) -> &[usize] {
        self.frames.get(..self.depth).unwrap_or_default()
    }
}

/// A place in the program: a thread and its stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The system's number of the thread.
    pub(super) thread: u32,
    /// Its stack, the innermost frame first.
    pub(super) frames: Box<[usize]>,
}

/// How often an event was seen in one place, and the sum of its values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) count: u64,
    /// Samples, bytes or nanoseconds.
    pub(super) total: u64,
}

impl Seen {
    pub(super) fn add(&mut self, count: u64, total: u64) {
        self.count += count;
        self.total += total;
    }
}

/// The events of a profile by place.
pub(super) type Collected = HashMap<Place, Seen>;

// Guards the table; held for one look-up. Only locked while a profile is collected, by threads that have set their mark
// in `quietly` before.
static TABLE: Mutex<Option<Collected>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is recording now: its own allocations and waits during that are not recorded.
    static IS_NOTING: Cell<bool> = const { Cell::new(false) };
}

/// Adds `count` and `total` at the calling thread's stack. Does nothing if it is called within itself.
pub(super) fn note(count: u64, total: u64) {
    if IS_NOTING.replace(true) {
        return;
    }
    let thread = thread_number();
    let place = Place { thread, frames: Stack::here().frames().into() };
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // None: the profile has ended in the meantime.
    if let Some(table) = table.as_mut() {
        add(table, place, count, total);
    }
    drop(table);
    IS_NOTING.set(false);
}

/// Adds to a place; once there are too many places, to its thread without a stack.
pub(super) fn add(table: &mut Collected, mut place: Place, count: u64, total: u64) {
    if table.len() >= STACKS_MAX && !table.contains_key(&place) {
        place.frames = Box::default();
    }
    table.entry(place).or_default().add(count, total);
}

/// Starts an empty table.
pub(super) fn clear() {
    *TABLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Collected::new());
}

/// Takes the table away.
pub(super) fn take() -> Collected {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
}

/// The calling thread's number. Safe in a signal handler.
pub(super) fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond the bound, stacks are added up without frames, per thread; no count is lost.
    #[test]
    fn table_is_bounded() {
        let mut table = Collected::new();
        let place = |frame: usize| Place { thread: 7, frames: Box::new([frame]) };
        for frame in 0..STACKS_MAX + 10 {
            add(&mut table, place(frame), 1, 2);
        }
        add(&mut table, place(3), 1, 2);
        assert_eq!(table.len(), STACKS_MAX + 1);
        assert_eq!(table[&Place { thread: 7, frames: Box::default() }], Seen { count: 10, total: 20 });
        assert_eq!(table[&place(3)], Seen { count: 2, total: 4 });
    }
}
