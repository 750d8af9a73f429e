//! Allocations: a wrapper around the global allocator. While a profile of allocations runs, it records the stack of
//! about one allocation in every [`INTERVAL_BYTES`] allocated.
//!
//! The next recorded byte is drawn from the exponential distribution, for each thread separately, as in tcmalloc and
//! jemalloc. An allocation of `s` bytes is recorded with the probability `1 - exp(-s / interval)`, and counts for `s`
//! divided by that. So the sums are unbiased for all sizes. The profile counts *allocated* bytes, freed again or not. A
//! reallocation counts with its new size, because it is mostly a new block and a copy.
//!
//! A profile of *live* bytes keeps the address of each recorded allocation until it is freed or moved; what is left at its
//! end is the profile. Allocations from before its beginning are not in it.
//!
//! Why not jemalloc's own heap profile: it counts live bytes, keeps every stack forever when it accumulates
//! (`prof_accum`), and makes each allocation and each release slower even while it is off.
//!
//! One of the exceptions to `unsafe_code = "deny"`: a global allocator is an unsafe trait. Each method passes its
//! arguments on unchanged, and returns the result unchanged. Recording allocates; the thread's mark in `stacks` lets
//! those allocations pass unrecorded.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; see the module text")]

use super::stacks;
use super::{COLLECTING, Event, is_on};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Bytes allocated per sample, on average.
pub const INTERVAL_BYTES: f64 = 262_144.0;

/// An allocator wrapper whose allocations can be profiled.
#[derive(Debug, Clone, Copy)]
pub struct Sampled<A>(pub A);

// SAFETY: every method calls the same method of the inner allocator, with the same arguments; `note` neither unwinds
// nor touches the memory.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let pointer = unsafe { self.0.alloc(layout) };
        note_if_on(layout.size(), pointer);
        pointer
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let pointer = unsafe { self.0.alloc_zeroed(layout) };
        note_if_on(layout.size(), pointer);
        pointer
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        forget_if_on(pointer);
        // SAFETY: the caller keeps the contract of `realloc`.
        let moved = unsafe { self.0.realloc(pointer, layout, new_size) };
        note_if_on(new_size, moved);
        moved
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Before: afterwards another thread may get the same address.
        forget_if_on(pointer);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { self.0.dealloc(pointer, layout) }
    }
}

#[inline]
fn note_if_on(bytes: usize, pointer: *mut u8) {
    let collecting = COLLECTING.load(Ordering::Relaxed);
    if collecting == Event::Alloc as u8 || collecting == Event::Live as u8 {
        note(bytes, (collecting == Event::Live as u8).then_some(pointer));
    }
}

#[inline]
fn forget_if_on(pointer: *mut u8) {
    if is_on(Event::Live) {
        stacks::forget(pointer.addr());
    }
}

thread_local! {
    /// Bytes until the next sample; none before the first draw.
    static LEFT: Cell<Option<f64>> = const { Cell::new(None) };
    /// The state of the random generator.
    static CHANCE: Cell<u64> = const { Cell::new(0) };
}

#[cold]
#[inline(never)]
#[expect(clippy::cast_precision_loss, reason = "no allocation has 2^53 bytes")]
fn note(bytes: usize, pointer: Option<*mut u8>) {
    let size = bytes as f64;
    let left = LEFT.get().unwrap_or_else(|| draw(next_chance())) - size;
    if left > 0.0 {
        LEFT.set(Some(left));
        return;
    }
    LEFT.set(Some(draw(next_chance())));
    let (count, total) = weigh(size);
    match pointer {
        None => stacks::note(count, total),
        Some(pointer) if !pointer.is_null() => stacks::note_live(pointer.addr(), count, total),
        // The allocation failed.
        Some(_) => {}
    }
}

/// How many allocations and bytes one recorded allocation stands for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "both are positive and below the bytes of a machine"
)]
fn weigh(size: f64) -> (u64, u64) {
    if size < 1.0 {
        return (0, 0);
    }
    let count = 1.0 / -(-size / INTERVAL_BYTES).exp_m1();
    (count.round() as u64, (count * size).round() as u64)
}

/// Bytes until the next sample, from 64 uniform random bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits are kept, as many as there are")]
fn draw(chance: u64) -> f64 {
    let even = ((chance >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -even.ln() * INTERVAL_BYTES
}

/// `SplitMix64` (Steele, Lea, Flood 2014), seeded with the thread's number.
fn next_chance() -> u64 {
    let before = CHANCE.get();
    let begun = if before == 0 { u64::from(stacks::thread_number()) << 32 } else { before };
    let state = begun.wrapping_add(0x9e37_79b9_7f4a_7c15);
    CHANCE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums are unbiased for small and large allocations alike: within five standard deviations, with draws that are
    /// the same in each run.
    #[test]
    fn estimates_are_unbiased() {
        let mut state = 1;
        let mut chance = || {
            state += 1;
            CHANCE.set(state << 20);
            next_chance()
        };
        for size in [16.0, 4096.0, 262_144.0, 4_000_000.0] {
            let total = 400_000_000.0_f64;
            let (mut done, mut left, mut estimate) = (0.0, draw(chance()), 0.0);
            while done < total {
                done += size;
                left -= size;
                if left <= 0.0 {
                    left = draw(chance());
                    #[expect(clippy::cast_precision_loss, reason = "small enough")]
                    let bytes = weigh(size).1 as f64;
                    estimate += bytes;
                }
            }
            let deviation = (INTERVAL_BYTES.max(size) * total).sqrt();
            assert!((estimate - done).abs() < 5.0 * deviation, "{size}: {estimate} of {done}");
        }
    }

    #[test]
    fn nothing_weighs_nothing() {
        assert_eq!(weigh(0.0), (0, 0));
        assert_eq!(weigh(1e9), (1, 1_000_000_000));
    }
}
