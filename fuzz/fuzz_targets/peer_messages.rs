//! Goal: a payload is either refused or exactly the bytes that its message is written as. The properties that
//! are checked of a message (its newest timestamp, its longest value) can be computed for every message.
//! Method: the first byte is the kind, the rest the payload.

#![no_main]

use kvorum_server::peer::fuzzing::message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, payload)) = input.split_first() else { return };
    message(*kind, payload);
});
