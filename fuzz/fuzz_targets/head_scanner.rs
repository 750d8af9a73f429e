//! Goal: the result of the head scanner does not depend on how the bytes arrive.
//! Method: the first bytes of the input say where the rest is cut. Verdicts and state must equal those of the
//! rest in one piece, and of the rest byte by byte.

#![no_main]

use kvorum_server::http::head::{HeadScanner, HeadVerdict};
use libfuzzer_sys::fuzz_target;

/// The complete visible result of a scanner.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    verdicts: Vec<HeadVerdict>,
    is_in_head: bool,
    is_in_body: bool,
    is_between_requests: bool,
}

fn scan<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut scanner = HeadScanner::default();
    parts.for_each(|part| scanner.feed(&mut part.to_vec()));
    Seen {
        is_in_head: scanner.is_in_head(),
        is_in_body: scanner.is_in_body(),
        is_between_requests: scanner.is_between_requests(),
        verdicts: std::iter::from_fn(|| scanner.take()).collect(),
    }
}

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
    let whole = scan(std::iter::once(bytes));
    assert_eq!(scan(cut(bytes, lengths)), whole, "in pieces of {lengths:?}");
    assert_eq!(scan(bytes.chunks(1)), whole, "byte by byte");
});
