//! Goal: a handshake's request or answer is either refused or, written again, equal to what was read.
//! Method: the input is the whole answer to an upgrade, read as a link reads it; and the same bytes as the
//! headers of a request.

#![no_main]

use kvorum_server::peer::fuzzing::{handshake_answer, handshake_headers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    handshake_answer(input);
    handshake_headers(input);
});
