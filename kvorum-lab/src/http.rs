//! HTTP/1.1 responses, read strictly and cheaply: status line, headers, Content-Length or chunked.
//!
//! It accepts the responses that the contract allows and refuses all others, so that a node which breaks HTTP
//! is found here: no bare LF, no chunk extensions, no trailers, no body that ends with the connection.
//! Interim responses (1xx) are skipped, as RFC 9110, 15.2 asks of every client; 101 is refused, because the
//! lab never asks for an upgrade. Pure functions over bytes; [`crate::load`] owns the sockets.

use std::fmt;

/// The most bytes that a response's head may have.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The head is followed by this many bytes.
    Length(u64),
    /// Chunks follow, the last one empty.
    Chunked,
}

/// The head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The status code, 200 to 599.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the server will close the connection after this response.
    pub close: bool,
    /// How many bytes the head took, with its empty line and the interim responses before it.
    pub bytes: usize,
}

/// The error in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Reads the head at the beginning of `buffer`, after any interim responses; `None` until its empty line has
/// arrived.
pub fn parse_head(buffer: &[u8]) -> Result<Option<Head>, Malformed> {
    let mut before = 0;
    loop {
        let rest = buffer.get(before..).unwrap_or_default();
        match interim_bytes(rest)? {
            Some(bytes) => before += bytes,
            None => return Ok(parse_final(rest)?.map(|head| Head { bytes: before + head.bytes, ..head })),
        }
        if before > HEAD_BYTES_MAX {
            return Err(Malformed("interim responses without end"));
        }
    }
}

/// The size in bytes of the interim response at the beginning of `buffer`; `None` if there is none, or not
/// all of it yet.
fn interim_bytes(buffer: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(rest) = buffer.strip_prefix(b"HTTP/1.1 1") else { return Ok(None) };
    let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") else { return Ok(None) };
    match rest {
        [b'0', b'1', ..] => Err(Malformed("an upgrade that nobody asked for")),
        [b'0'..=b'9', b'0'..=b'9', b' ' | b'\r', ..] => Ok(Some(end + 4)),
        _ => Err(Malformed("bad status")),
    }
}

fn parse_final(buffer: &[u8]) -> Result<Option<Head>, Malformed> {
    let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") else {
        return if buffer.len() > HEAD_BYTES_MAX { Err(Malformed("head too large")) } else { Ok(None) };
    };
    if end + 4 > HEAD_BYTES_MAX {
        return Err(Malformed("head too large"));
    }
    let text = buffer.get(..end).unwrap_or_default();
    let mut lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    if memchr::memchr_iter(b'\n', text).any(|at| at == 0 || text.get(at - 1) != Some(&b'\r')) {
        return Err(Malformed("bare LF in head"));
    }
    let status = parse_status(lines.next().unwrap_or_default())?;
    let (mut length, mut chunked, mut close) = (None, false, false);
    for line in lines {
        let colon = memchr::memchr(b':', line).ok_or(Malformed("header without colon"))?;
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if name.is_empty() || name.iter().any(u8::is_ascii_whitespace) {
            return Err(Malformed("bad header name"));
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            if length.replace(parse_length(value)?).is_some() {
                return Err(Malformed("two Content-Lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed("unknown Transfer-Encoding"));
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            close |= value.eq_ignore_ascii_case(b"close");
        }
    }
    let framing = match (length, chunked) {
        (Some(_), true) => return Err(Malformed("Content-Length beside Transfer-Encoding")),
        (None, false) if status == 204 || status == 304 => Framing::Length(0),
        (None, false) => return Err(Malformed("neither Content-Length nor chunked")),
        (Some(length), false) => Framing::Length(length),
        (None, true) => Framing::Chunked,
    };
    Ok(Some(Head { status, framing, close, bytes: end + 4 }))
}

fn parse_status(line: &[u8]) -> Result<u16, Malformed> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").ok_or(Malformed("not HTTP/1.1"))?;
    let (code, reason) = rest.split_at_checked(3).ok_or(Malformed("bad status"))?;
    if !(reason.is_empty() || reason.starts_with(b" ")) {
        return Err(Malformed("bad status"));
    }
    match parse_length(code) {
        Ok(code @ 200..=599) => u16::try_from(code).map_err(|_| Malformed("bad status")),
        Ok(_) | Err(_) => Err(Malformed("bad status")),
    }
}

fn parse_length(text: &[u8]) -> Result<u64, Malformed> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return Err(Malformed("bad Content-Length"));
    }
    Ok(text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// A receiver of a body, piece by piece.
pub trait BodySink {
    /// Takes the next bytes of the body; a chunk may come in several pieces.
    fn data(&mut self, bytes: &[u8]);
    /// Marks the end of a non-empty chunk. Not called for bodies with a Content-Length.
    fn chunk_end(&mut self) {}
}

impl BodySink for Vec<u8> {
    fn data(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads a chunked body piece by piece; holds no bytes of it.
#[derive(Debug, Clone)]
pub struct ChunkedBody {
    state: ChunkState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size { size: u64, digits: u8 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    LastCr,
    LastLf,
    Done,
}

/// Hexadecimal digits that a chunk's size may have: 2^40 bytes are enough.
const SIZE_DIGITS_MAX: u8 = 10;

const CHUNK_BEGIN: ChunkState = ChunkState::Size { size: 0, digits: 0 };

impl ChunkedBody {
    /// A reader at the beginning of a body.
    pub const fn new() -> Self {
        Self { state: CHUNK_BEGIN }
    }

    /// Whether the empty last chunk has been read: the body is whole.
    pub fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Takes `input`, hands data to `sink`, and returns how many bytes belonged to the body.
    ///
    /// That is all of them unless the body ended in between.
    pub fn feed(&mut self, input: &[u8], sink: &mut impl BodySink) -> Result<usize, Malformed> {
        let mut rest = input;
        while let Some((&byte, tail)) = rest.split_first() {
            if let ChunkState::Data { left } = self.state {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                let (data, behind) = rest.split_at(take);
                sink.data(data);
                rest = behind;
                let left = left - take as u64;
                self.state = if left == 0 { ChunkState::DataCr } else { ChunkState::Data { left } };
                continue;
            }
            self.state = match (self.state, byte) {
                (ChunkState::Size { size, digits: 1.. }, b'\r') => ChunkState::SizeLf { size },
                (ChunkState::Size { size, digits }, _) if digits < SIZE_DIGITS_MAX => {
                    let digit = char::from(byte).to_digit(16).ok_or(Malformed("bad chunk size"))?;
                    ChunkState::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
                }
                (ChunkState::SizeLf { size: 0 }, b'\n') => ChunkState::LastCr,
                (ChunkState::SizeLf { size }, b'\n') => ChunkState::Data { left: size },
                (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
                (ChunkState::DataLf, b'\n') => {
                    sink.chunk_end();
                    CHUNK_BEGIN
                }
                (ChunkState::LastCr, b'\r') => ChunkState::LastLf,
                (ChunkState::LastLf, b'\n') => ChunkState::Done,
                (ChunkState::Done, _) => break,
                _ => return Err(Malformed("bad chunk")),
            };
            rest = tail;
        }
        Ok(input.len() - rest.len())
    }
}

impl Default for ChunkedBody {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
