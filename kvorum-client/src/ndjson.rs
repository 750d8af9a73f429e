//! A stream of JSON lines as entries.
//!
//! | field | is |
//! | --- | --- |
//! | `key`, or `key_base64` where not UTF-8 | string; one of them, not both |
//! | `value`, or `value_base64` where not UTF-8 | string; one of them, not both |
//! | `version` | string |
//! | `expires` | integer, Unix milliseconds; absent or null without a time to live |
//!
//! Other fields are ignored: a later version of the node may add some.

use crate::answer::unix_millis;
use crate::entry::{Entry, Version};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;

/// The standard alphabet, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A splitter of byte pieces, as they arrive, into lines.
#[derive(Debug)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// How much of `buffer` is known to have no line end: a line in many pieces is searched once, not once
    /// per piece.
    searched_bytes: usize,
    line_bytes_max: usize,
}

/// A line is longer than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTooLong;

impl Lines {
    pub(crate) fn new(line_bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched_bytes: 0, line_bytes_max }
    }

    /// Adds bytes. The caller should have taken all whole lines before, or they accumulate.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Takes the next whole line, without its end; `None` when more bytes are needed for it.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        let unsearched = self.buffer.get(self.searched_bytes..).unwrap_or_default();
        let end = unsearched.iter().position(|&byte| byte == b'\n').map(|found| self.searched_bytes + found);
        if end.unwrap_or(self.buffer.len()) > self.line_bytes_max {
            return Err(LineTooLong);
        }
        let Some(end) = end else {
            self.searched_bytes = self.buffer.len();
            return Ok(None);
        };
        let line = self.buffer.split_to(end).freeze();
        self.buffer.advance(1);
        self.searched_bytes = 0;
        Ok(Some(line))
    }

    /// Whether a line has begun and not ended.
    pub(crate) fn has_part(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[derive(Deserialize)]
struct Line {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    version: String,
    expires: Option<u64>,
}

/// Reads one line as an entry; the error is a text.
pub(crate) fn entry(line: &[u8]) -> Result<Entry, String> {
    let line: Line =
        serde_json::from_slice(line).map_err(|error| format!("not a line of a scan: {error}"))?;
    let expires = line.expires.map(unix_millis);
    Ok(Entry {
        key: bytes("key", line.key, line.key_base64)?,
        value: bytes("value", line.value, line.value_base64)?,
        version: Version::from(line.version),
        expires,
        replicas: None,
    })
}

fn bytes(name: &str, text: Option<String>, base64: Option<String>) -> Result<Bytes, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(base64)) => match BASE64.decode(base64) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(format!("{name}_base64: {error}")),
        },
        _ => Err(format!("a line of a scan has either {name} or {name}_base64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `stream` in pieces that end at `cuts`, and collects the lines.
    fn lines(stream: &[u8], cuts: impl Fn(usize) -> bool) -> (Vec<Bytes>, bool) {
        let mut lines = Lines::new(1_000);
        let mut seen = Vec::new();
        let mut piece = Vec::new();
        for (index, &byte) in stream.iter().enumerate() {
            piece.push(byte);
            if cuts(index) || index + 1 == stream.len() {
                lines.push(&std::mem::take(&mut piece));
                while let Some(line) = lines.next().unwrap() {
                    seen.push(line);
                }
            }
        }
        (seen, lines.has_part())
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces() {
        let stream = b"one\n\nthree is longer\n4\nrest";
        let expect: Vec<Bytes> = ["one", "", "three is longer", "4"].map(Bytes::from).into();
        // Each way to cut in two, each fixed size, and many sets of cuts made of a counter's bits.
        for at in 0..stream.len() {
            assert_eq!(lines(stream, |index| index == at), (expect.clone(), true), "cut at {at}");
            assert_eq!(
                lines(stream, |index| index % (at + 1) == 0),
                (expect.clone(), true),
                "pieces of {at}"
            );
        }
        for set in 0..5_000u64 {
            let bits = set.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(lines(stream, |index| bits >> index & 1 == 1), (expect.clone(), true), "set {set}");
        }
        assert_eq!(lines(b"whole\n", |_| false), (vec![Bytes::from("whole")], false));
        assert_eq!(lines(b"", |_| false), (vec![], false));
    }

    #[test]
    fn a_line_has_a_limit() {
        let check = |pieces: &[&str], expect: Result<Option<&'static str>, LineTooLong>| {
            let mut lines = Lines::new(4);
            let mut last = Ok(None);
            for piece in pieces {
                lines.push(piece.as_bytes());
                last = lines.next();
            }
            assert_eq!(last, expect.map(|line| line.map(Bytes::from)), "{pieces:?}");
        };
        check(&["four\n"], Ok(Some("four")));
        check(&["fi", "ve5\n"], Err(LineTooLong));
        check(&["without end"], Err(LineTooLong));
        check(&["four"], Ok(None));
        check(&["1\nthe next may be long"], Ok(Some("1")));
    }

    #[test]
    fn reads_entries() {
        let check = |line: &str, key: &[u8], value: &[u8], expires: Option<u64>| {
            let read = entry(line.as_bytes()).unwrap();
            assert_eq!((&read.key[..], &read.value[..]), (key, value), "{line}");
            assert_eq!(read.version.as_str(), "v1");
            assert_eq!(read.expires, expires.map(unix_millis));
        };
        check(r#"{"key":"k","value":"v","version":"v1","expires":null}"#, b"k", b"v", None);
        check(r#"{"key":"k","value":"","version":"v1","expires":1500}"#, b"k", b"", Some(1_500));
        let last = r#"{"key":"k","value":"","version":"v1","expires":18446744073709551615}"#;
        check(last, b"k", b"", Some(u64::MAX));
        check(
            r#"{"key":"\u0000\né","value":"\"","version":"v1","more":[]}"#,
            "\0\né".as_bytes(),
            b"\"",
            None,
        );
        check(r#"{"key_base64":"/w==","value_base64":"/w","version":"v1"}"#, b"\xff", b"\xff", None);
    }

    #[test]
    fn refuses_what_is_not_an_entry() {
        for line in [
            "",
            "null",
            r#"{"key":"k","value":"v"}"#,
            r#"{"value":"v","version":"v1"}"#,
            r#"{"key":"k","version":"v1"}"#,
            r#"{"key":"k","key_base64":"aw==","value":"v","version":"v1"}"#,
            r#"{"key_base64":"?","value":"v","version":"v1"}"#,
            r#"{"key":"k","value":"v","version":"v1","expires":"soon"}"#,
            r#"{"key":"k","value":"v","version":"v1"} {}"#,
        ] {
            assert!(entry(line.as_bytes()).is_err(), "{line}");
        }
    }
}
