//! Goal: a payload is either refused or exactly what its message is written as, and what is judged of a message (its
//! newest timestamp, its longest value) can be told of all of them.
//! Method: the first byte is the kind, the rest the payload.

#![no_main]

use kvorum::peer::fuzzing::message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, payload)) = input.split_first() else { return };
    message(*kind, payload);
});
