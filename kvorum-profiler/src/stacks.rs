//! Stacks: captures the calling thread's stack, and adds up allocations and lock waits by stack in a table.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `backtrace::trace_unsynchronized`. The crate's lock would make
//! every thread wait for every other, and must not be taken in a signal handler. Without the lock the crate walks the
//! stack by the system's unwinder, which keeps no state between calls; the lock is for platforms with other unwinders.
#![expect(unsafe_code, reason = "a lock must not be taken in a signal handler; see the module text")]

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// How many records make up the sums.
    pub(super) samples: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.samples += other.samples;
    }
}

/// The events of a profile by place.
pub(super) type Collected = HashMap<Place, Seen>;

// Guards the table; held for one look-up. Only locked while a profile is collected, by threads that have set their mark
// in `quietly` before.
static TABLE: Mutex<Option<Collected>> = Mutex::new(None);

/// Recorded allocations that have not been freed, by address.
type Live = HashMap<usize, (Place, Seen)>;

// Guards the live allocations; held for one look-up, under the same rule as the table above.
static LIVE: Mutex<Option<Live>> = Mutex::new(None);

/// The words of [`RECORDED`]: a million bits, so that few of the freed addresses share one with a recorded allocation.
const RECORDED_WORDS: usize = 1 << 14;

/// A bit for each recorded address of the profile, by its hash: most freed addresses were never recorded, and need no
/// lock.
static RECORDED: [AtomicU64; RECORDED_WORDS] = [const { AtomicU64::new(0) }; RECORDED_WORDS];

/// The word and the bit of an address.
fn recorded_bit(address: usize) -> (Option<&'static AtomicU64>, u64) {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the address.
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    let word = usize::try_from(hash >> 6).ok().and_then(|word| RECORDED.get(word));
    (word, 1 << (hash & 63))
}

/// Adds a live allocation at `address`, from the calling thread's stack. Does nothing if it is called within itself, or
/// if there are too many.
pub(super) fn note_live(address: usize, count: u64, total: u64) {
    if IS_NOTING.replace(true) {
        return;
    }
    let place = Place { thread: thread_number(), frames: Stack::here().frames().into() };
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(live) = live.as_mut().filter(|live| live.len() < STACKS_MAX) {
        live.insert(address, (place, Seen { count, total, samples: 1 }));
        let (word, bit) = recorded_bit(address);
        if let Some(word) = word {
            word.fetch_or(bit, Ordering::Release);
        }
    }
    drop(live);
    IS_NOTING.set(false);
}

/// Forgets the live allocation at `address`, if there is one.
pub(super) fn forget(address: usize) {
    let (word, bit) = recorded_bit(address);
    if word.is_none_or(|word| word.load(Ordering::Acquire) & bit == 0) || IS_NOTING.replace(true) {
        return;
    }
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let forgotten = live.as_mut().and_then(|live| live.remove(&address));
    drop(live);
    drop(forgotten);
    IS_NOTING.set(false);
}

/// Takes the live allocations away, added up by place.
pub(super) fn take_live() -> Collected {
    let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let mut collected = Collected::new();
    for (place, seen) in live.into_values() {
        collected.entry(place).or_default().add(seen);
    }
    collected
}

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
    table.entry(place).or_default().add(Seen { count, total, samples: 1 });
}

/// Starts empty tables.
pub(super) fn clear() {
    for word in &RECORDED {
        word.store(0, Ordering::Relaxed);
    }
    *LIVE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Live::new());
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
        assert_eq!(
            table[&Place { thread: 7, frames: Box::default() }],
            Seen { count: 10, total: 20, samples: 10 }
        );
        assert_eq!(table[&place(3)], Seen { count: 2, total: 4, samples: 2 });
    }
}
