//! Allocations: a wrapper around the global allocator that, while a profile of them runs, notes the stack of about one
//! allocation in every [`INTERVAL_BYTES`] allocated.
//!
//! Which byte is noted next is drawn from the exponential distribution, for each thread by itself, as in tcmalloc and
//! jemalloc: an allocation of `s` bytes is then noted with the probability `1 - exp(-s / interval)`, and counts for
//! `s` divided by it, so that the sums are right on average whatever the sizes. What is counted is what is *allocated*,
//! freed again or not; a reallocation counts with its new size, because it is mostly a new place and a copy.
//!
//! Why not jemalloc's own heap profile: it is of live bytes, keeps every stack for good when told to add up (its
//! `prof_accum`), and makes each allocation and each release do more also while it is off.
//!
//! One of the exceptions to `unsafe_code = "deny"`: a global allocator is an unsafe trait. Each method hands its
//! arguments on as they came, and returns what came back; noting allocates, which the mark in `stacks` lets through
//! unnoted.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; see the module text")]

use super::stacks;
use super::{Event, is_on};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

/// Bytes allocated per sample, on average.
pub const INTERVAL_BYTES: f64 = 262_144.0;

/// This is an allocator whose allocations can be profiled.
#[derive(Debug, Clone, Copy)]
pub struct Sampled<A>(pub A);

// SAFETY: every method is that of the allocator inside, with the same arguments; `note` neither unwinds nor touches
// the memory.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_if_on(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note_if_on(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note_if_on(new_size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { self.0.dealloc(pointer, layout) }
    }
}

#[inline]
fn note_if_on(bytes: usize) {
    if is_on(Event::Alloc) {
        note(bytes);
    }
}

thread_local! {
    /// Bytes until the next sample; none before the first draw.
    static LEFT: Cell<Option<f64>> = const { Cell::new(None) };
    /// The state of the draws.
    static CHANCE: Cell<u64> = const { Cell::new(0) };
}

#[cold]
#[inline(never)]
#[expect(clippy::cast_precision_loss, reason = "no allocation has 2^53 bytes")]
fn note(bytes: usize) {
    let size = bytes as f64;
    let left = LEFT.get().unwrap_or_else(|| draw(next_chance())) - size;
    if left > 0.0 {
        LEFT.set(Some(left));
        return;
    }
    LEFT.set(Some(draw(next_chance())));
    let (count, total) = weigh(size);
    stacks::note(count, total);
}

/// For how many allocations and bytes one stands that was noted.
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

/// Bytes until the next sample, from a number of 64 even bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits are kept, as many as there are")]
fn draw(chance: u64) -> f64 {
    let even = ((chance >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -even.ln() * INTERVAL_BYTES
}

/// `SplitMix64` (Steele, Lea, Flood 2014), begun with the thread's number.
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

    /// Sums are right on average for small and large allocations alike: within five standard deviations, with draws
    /// that are the same in each run.
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
