//! Goal: the frames do not depend on how the bytes arrive, and writing a frame again gives the bytes that
//! were read.
//! Method: the first bytes of the input say where the rest is cut; the frames and the error must equal those
//! of the rest in one piece. Each frame is written again. Its payload is read as every message that its kind
//! may be.

#![no_main]

use kvorum_server::peer::fuzzing::{frames, message, write_frame};
use libfuzzer_sys::fuzz_target;

/// `bytes` in pieces whose lengths come from `lengths`, over and over.
fn cut<'a>(mut bytes: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter().map(|length| usize::from(*length).max(1)).cycle();
    std::iter::from_fn(move || {
        let length = lengths.next().unwrap_or(1).min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

fuzz_target!(|input: &[u8]| {
    // One byte for the number of cut lengths, then those, then the stream.
    let Some((count, rest)) = input.split_first() else { return };
    let (lengths, bytes) = rest.split_at(usize::from(count % 8).min(rest.len()));
    let (whole, error) = frames(std::iter::once(bytes));
    assert_eq!(frames(cut(bytes, lengths)), (whole.clone(), error), "in pieces of {lengths:?}");
    assert_eq!(frames(bytes.chunks(1)), (whole.clone(), error), "byte by byte");
    let written: Vec<u8> =
        whole.iter().flat_map(|(kind, id, payload)| write_frame(*kind, *id, payload)).collect();
    assert!(bytes.starts_with(&written), "a frame is written otherwise than it came");
    for (kind, _, payload) in &whole {
        message(*kind, payload);
    }
});
