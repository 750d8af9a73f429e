//! The head scanner: follows a connection's raw bytes beside hyper and detects malformed heads that hyper accepts.
//!
//! hyper accepts a request with both `Content-Length` and `Transfer-Encoding` (and hides the former), bare line feeds,
//! and a `#` in the target (and hides the rest of the target). In each case two parsers can read one byte stream
//! differently, so each is refused. The scanner sees every byte before hyper does, finds where heads begin and end, and
//! keeps one [`HeadVerdict`] per head, in order. The handler takes one for each request. The scanner checks the whole
//! grammar of the lines between chunks (RFC 9112, 7.1), which hyper skips.
//!
//! It changes one byte: a later minor version of HTTP/1, which hyper would refuse, becomes 1.1 (RFC 9110, 2.5).
//!
//! Fail closed: when the scanner cannot follow the bytes, it gives no more verdicts, and a request without one is
//! refused.

use std::collections::VecDeque;

/// How much of a header line the scanner keeps: enough for `transfer-encoding`, or for `content-length` and a length.
const LINE_BYTES_MAX: usize = 128;

/// The longest body that is followed, in bytes: above any limit, and below the overflow of hyper's own arithmetic.
const LENGTH_MAX: u64 = u64::MAX >> 1;

/// Properties of a head that hyper does not show.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent findings, each refused in words of its own"
)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadVerdict {
    /// A line ends without a carriage return.
    pub bare_line_feed: bool,
    /// The target has a `#`.
    pub fragment: bool,
    /// A `Content-Length` header is there.
    pub content_length: bool,
    /// A `Transfer-Encoding` header is there.
    pub transfer_encoding: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a head, or before one.
    Head,
    /// In a body; how many bytes of it are still to come.
    Body(u64),
    /// In the line with the next chunk's length; the size read so far.
    ChunkLine(u64, At),
    /// In a chunk; how many bytes are still to come, including its line end.
    ChunkData(u64),
    /// In the trailer: whether the line is empty so far, and whether the last byte was a carriage return.
    Trailer(bool, bool),
    /// The scanner cannot follow the bytes any more, or they are no longer HTTP.
    Lost,
}

/// The position in the line before a chunk: `SIZE *( BWS ";" BWS NAME [ BWS "=" BWS VALUE ] )`, where BWS is blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first digit.
    Begin,
    Size,
    /// In blanks, after which only another extension may come.
    BeforeExtension,
    BeforeName,
    Name,
    AfterName,
    BeforeValue,
    Value,
    Quoted,
    /// After a backslash in quotes.
    Escaped,
    /// After the closing quote.
    QuoteEnd,
    /// After the carriage return.
    End,
}

impl At {
    /// The position after `byte`, which is not a digit of the size; none if `byte` is not allowed here.
    fn after(self, byte: u8) -> Option<Self> {
        let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        // Tab, blank, visible characters, and bytes beyond ASCII.
        let is_text = byte == b'\t' || byte >= b' ' && byte != 0x7f;
        Some(match (self, byte) {
            (Self::Quoted, b'"') => Self::QuoteEnd,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, _) => return is_text.then_some(Self::Quoted),
            (Self::Size | Self::Name | Self::Value | Self::QuoteEnd, b'\r') => Self::End,
            (Self::Name, b' ' | b'\t') => Self::AfterName,
            (Self::Size | Self::Value | Self::QuoteEnd, b' ' | b'\t') => Self::BeforeExtension,
            (
                Self::BeforeExtension | Self::BeforeName | Self::AfterName | Self::BeforeValue,
                b' ' | b'\t',
            ) => self,
            (
                Self::Size
                | Self::BeforeExtension
                | Self::Name
                | Self::AfterName
                | Self::Value
                | Self::QuoteEnd,
                b';',
            ) => Self::BeforeName,
            (Self::Name | Self::AfterName, b'=') => Self::BeforeValue,
            (Self::BeforeValue, b'"') => Self::Quoted,
            (Self::BeforeName | Self::Name, _) if is_token => Self::Name,
            (Self::BeforeValue | Self::Value, _) if is_token => Self::Value,
            _ => return None,
        })
    }
}

/// The scanner of one connection's inbound bytes.
#[derive(Debug)]
pub struct HeadScanner {
    state: State,
    verdict: HeadVerdict,
    length: Option<u64>,
    is_first_line: bool,
    line: Vec<u8>,
    line_overflows: bool,
    /// How many bytes of [`VERSION`] the received part of a split request line ends with.
    version_matched: usize,
    verdicts: VecDeque<HeadVerdict>,
}

/// The text before the minor version in a request line.
const VERSION: &[u8] = b" HTTP/1.";

impl Default for HeadScanner {
    fn default() -> Self {
        Self {
            state: State::Head,
            verdict: HeadVerdict::default(),
            length: None,
            is_first_line: true,
            line: Vec::new(),
            line_overflows: false,
            version_matched: 0,
            verdicts: VecDeque::new(),
        }
    }
}

impl HeadScanner {
    /// Follows `bytes`, the next ones of the connection, and changes later minor versions of HTTP/1 in them to 1.1.
    pub fn feed(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            at += match self.state {
                State::Head => self.feed_head(rest),
                State::Body(left) => {
                    let (left, skipped) = skip(left, rest);
                    self.state = if left == 0 { State::Head } else { State::Body(left) };
                    skipped
                }
                State::ChunkData(left) => {
                    let (left, skipped) = skip(left, rest);
                    self.state =
                        if left == 0 { State::ChunkLine(0, At::Begin) } else { State::ChunkData(left) };
                    skipped
                }
                State::ChunkLine(..) | State::Trailer(..) => self.feed_chunk_line(rest),
                State::Lost => return,
            };
        }
    }

    /// Takes the verdict on the oldest head whose verdict was not taken yet.
    pub fn take(&mut self) -> Option<HeadVerdict> {
        self.verdicts.pop_front()
    }

    /// Whether a head has begun and not ended.
    pub fn is_in_head(&self) -> bool {
        self.state == State::Head && (!self.is_first_line || !self.line.is_empty())
    }

    /// Whether no head and no body has begun.
    pub fn is_between_requests(&self) -> bool {
        self.state == State::Head && !self.is_in_head()
    }

    /// Whether the bytes cannot be followed any more; no request after them may be carried out.
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Whether a body has begun and not ended.
    pub fn is_in_body(&self) -> bool {
        !matches!(self.state, State::Head | State::Lost)
    }

    /// Follows the next line, or the part of it that has come; returns how many bytes that is.
    fn feed_head(&mut self, bytes: &mut [u8]) -> usize {
        let end = memchr::memchr(b'\n', bytes);
        let Some(line) = bytes.get_mut(..end.unwrap_or(bytes.len())) else { return 0 };
        if self.is_first_line {
            self.lower_version(line, end.is_some());
        }
        if end.is_none() {
            self.keep(line);
            return line.len();
        }
        let taken = line.len() + 1;
        if self.line.is_empty() && !self.line_overflows {
            self.end_line(line, line.len() > LINE_BYTES_MAX);
        } else {
            self.keep(line);
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, self.line_overflows);
            self.line = line;
            self.line.clear();
            self.line_overflows = false;
        }
        taken
    }

    /// Changes the minor version in a part of a request line to 1, if it is a later one. The digit is changed as soon
    /// as it comes: hyper looks at a line before it has ended.
    fn lower_version(&mut self, part: &mut [u8], has_ended: bool) {
        if has_ended && part.ends_with(b" HTTP/1.1\r") {
            self.version_matched = 0;
            return;
        }
        for byte in part {
            let expected = VERSION.get(self.version_matched);
            if expected.is_none() && (b'2'..=b'9').contains(byte) {
                *byte = b'1';
            }
            self.version_matched = match expected {
                Some(expected) if expected == byte => self.version_matched + 1,
                _ => usize::from(VERSION.first() == Some(byte)),
            };
        }
        if has_ended {
            self.version_matched = 0;
        }
    }

    /// Keeps the beginning of a line whose end has not come yet. For a longer line, the last kept byte is the latest
    /// that came: it decides whether the line ends with a carriage return.
    fn keep(&mut self, part: &[u8]) {
        if self.is_first_line && memchr::memchr(b'#', part).is_some() {
            self.verdict.fragment = true;
        }
        let room = LINE_BYTES_MAX - self.line.len();
        if part.len() <= room && !self.line_overflows {
            self.line.extend_from_slice(part);
        } else {
            self.line_overflows = true;
            self.line.extend_from_slice(part.get(..room).unwrap_or(part));
            if let (Some(last), Some(latest)) = (self.line.last_mut(), part.last()) {
                *last = *latest;
            }
        }
    }

    /// Judges a line; `is_long` when it has more than [`LINE_BYTES_MAX`] bytes, and `line` may lack some of them.
    fn end_line(&mut self, line: &[u8], is_long: bool) {
        let Some(line) = line.strip_suffix(b"\r") else {
            self.verdict.bare_line_feed = true;
            return self.judge_line(line, is_long);
        };
        self.judge_line(line, is_long);
    }

    fn judge_line(&mut self, line: &[u8], is_long: bool) {
        if self.is_first_line {
            // Empty lines before a request line are skipped, as hyper does.
            if !line.is_empty() {
                self.is_first_line = false;
                self.verdict.fragment |= memchr::memchr(b'#', line).is_some();
            }
            return;
        }
        if line.is_empty() {
            return self.end_head();
        }
        // Only header names of these two lengths matter; every other header costs one comparison.
        match memchr::memchr(b':', line.get(..18).unwrap_or(line)) {
            Some(14) if starts_with_ignoring_case(line, b"content-length") => {
                self.verdict.content_length = true;
                // A long line may have come in pieces; then the kept bytes are not the whole number.
                self.length = line.get(15..).filter(|_| !is_long).and_then(parse_length);
                if self.length.is_none() {
                    self.state = State::Lost;
                }
            }
            Some(17) if starts_with_ignoring_case(line, b"transfer-encoding") => {
                self.verdict.transfer_encoding = true;
            }
            _ => {}
        }
    }

    fn end_head(&mut self) {
        let verdict = std::mem::take(&mut self.verdict);
        let length = self.length.take();
        self.is_first_line = true;
        if self.state == State::Lost {
            return;
        }
        self.verdicts.push_back(verdict);
        self.state = match (verdict.transfer_encoding, length) {
            (true, _) => State::ChunkLine(0, At::Begin),
            (false, Some(length)) if length > 0 => State::Body(length),
            (false, _) => State::Head,
        };
    }

    /// Follows one byte of a line between chunks or of a trailer; returns how many bytes that is.
    fn feed_chunk_line(&mut self, bytes: &[u8]) -> usize {
        let Some(&byte) = bytes.first() else { return 0 };
        // A line feed alone is not a line end here. hyper accepts some, so hyper and a stricter proxy in front of this
        // node would see the next request begin at different bytes.
        self.state = match (self.state, byte) {
            (State::ChunkLine(0, At::End) | State::Trailer(false, true), b'\n') => {
                State::Trailer(true, false)
            }
            // Two more for the line end after the data.
            (State::ChunkLine(size, At::End), b'\n') => {
                size.checked_add(2).map_or(State::Lost, State::ChunkData)
            }
            (State::ChunkLine(size, At::Begin | At::Size), digit) if digit.is_ascii_hexdigit() => {
                match char::from(digit).to_digit(16) {
                    Some(digit) if size >> 60 == 0 => {
                        State::ChunkLine((size << 4) | u64::from(digit), At::Size)
                    }
                    _ => State::Lost,
                }
            }
            (State::ChunkLine(size, at), byte) => {
                at.after(byte).map_or(State::Lost, |at| State::ChunkLine(size, at))
            }
            (State::Trailer(true, true), b'\n') => State::Head,
            (_, b'\n') | (State::Trailer(_, true), _) => State::Lost,
            (State::Trailer(is_empty, false), b'\r') => State::Trailer(is_empty, true),
            (State::Trailer(..), _) => State::Trailer(false, false),
            (state, _) => state,
        };
        1
    }
}

/// How many of `left` bytes are still to come after `bytes`, and how many of `bytes` belong to them.
fn skip(left: u64, bytes: &[u8]) -> (u64, usize) {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (left - here as u64, here)
}

fn starts_with_ignoring_case(line: &[u8], name: &[u8]) -> bool {
    line.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name))
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = std::str::from_utf8(value).ok()?.parse().ok();
    length.filter(|length| *length <= LENGTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdicts(parts: &[&[u8]]) -> Vec<HeadVerdict> {
        let mut scanner = HeadScanner::default();
        for part in parts {
            scanner.feed(&mut part.to_vec());
        }
        std::iter::from_fn(|| scanner.take()).collect()
    }

    const PLAIN: HeadVerdict = HeadVerdict {
        bare_line_feed: false,
        fragment: false,
        content_length: false,
        transfer_encoding: false,
    };

    /// Bodies that look like heads are skipped as bodies: by length and by chunks, with extensions and trailers.
    #[test]
    fn bodies_are_skipped() {
        let sized: &[u8] =
            b"PUT / HTTP/1.1\r\nContent-Length: 19\r\n\r\nGET /# HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(verdicts(&[sized]), [HeadVerdict { content_length: true, ..PLAIN }, PLAIN]);
        let chunked: &[u8] =
            b"PUT / HTTP/1.1\r\nTRANSFER-encoding: chunked\r\n\r\n3;a=b\r\n\n#\n\r\na\r\n0123456789\r\n\
            0\r\nTrailer: x\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        let chunk = HeadVerdict { transfer_encoding: true, ..PLAIN };
        assert_eq!(verdicts(&[chunked]), [chunk, PLAIN]);
    }

    /// The scanner sees everything that hyper hides.
    #[test]
    fn what_hyper_hides_is_seen() {
        let one = |head: &[u8]| verdicts(&[head]);
        assert_eq!(one(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), [PLAIN]);
        assert_eq!(one(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"), [PLAIN]);
        assert_eq!(one(b"GET /#x HTTP/1.1\r\n\r\n"), [HeadVerdict { fragment: true, ..PLAIN }]);
        assert_eq!(one(b"GET / HTTP/1.1\nHost: a\r\n\r\n"), [HeadVerdict { bare_line_feed: true, ..PLAIN }]);
        assert_eq!(one(b"GET / HTTP/1.1\r\nHost: a\r\n\n"), [HeadVerdict { bare_line_feed: true, ..PLAIN }]);
        let both = HeadVerdict { content_length: true, transfer_encoding: true, ..PLAIN };
        assert_eq!(one(b"PUT / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), [both]);
        assert_eq!(one(b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n"), [both]);
    }

    /// In chunk lines and trailers, a bare line feed or a carriage return inside a line loses the scanner: hyper
    /// accepts some of them, and a proxy in front of it might not.
    #[test]
    fn bare_line_ends_in_chunks_lose_the_way() {
        let good = "3;a=b\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\n";
        let verdicts_of = |body: &str| {
            let bytes =
                format!("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}GET / HTTP/1.1\r\n\r\n");
            verdicts(&[bytes.as_bytes()]).len()
        };
        assert_eq!(verdicts_of(good), 2);
        for bad in [
            "3\nabc\r\n0\r\n\r\n",
            "0\r\n\n",
            "0\n\r\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA\r: b\r\n\r\n",
            "0\r\r\n\r\n",
            "0;\n\r\n",
            "5;\r\nhello\r\n0\r\n\r\n",
            "5;bad[=x\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5;a=\0\r\nhello\r\n0\r\n\r\n",
        ] {
            assert_eq!(verdicts_of(bad), 1, "{bad:?}");
        }
    }

    /// The line before a chunk is checked against its whole grammar.
    #[test]
    fn chunk_lines_are_strict() {
        let is_followed = |line: &[u8]| {
            let head = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
            let bytes = [head, line, b"\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"].concat();
            verdicts(&[&bytes]).len() == 2
        };
        for good in [
            "5",
            "05",
            "5;a",
            "5;a=b",
            "5;a;b",
            "5;a=b;c=d",
            "5 ;a",
            "5\t; a",
            "5;a =b",
            "5;a= b",
            "5; a = b ; c",
            "5;a=\"\"",
            "5;a=\"b;c=d\"",
            "5;a=\"\\\"\"",
            "5;a=\"b\" ;c",
            "5;a=\"b\t ä\"",
            "5;!#$%&'*+-.^_`|~09aZ=~",
        ] {
            assert!(is_followed(good.as_bytes()), "{good:?}");
        }
        for bad in [
            "",
            ";a",
            "5;",
            "5; ",
            "5 ",
            "5\t",
            "5 5",
            "5;;a",
            "5;a;",
            "5;a ",
            "5;a=",
            "5;a= ",
            "5;=b",
            "5;a==b",
            "5;a=b=c",
            "5;a b",
            "5;a=b ",
            "5;a=b c",
            "5;bad[=x",
            "5;a=[",
            "5;a=\"",
            "5;a=\"b",
            "5;a=\"b\"c",
            "5;a=\"b\\",
            "5;a=\"\0\"",
            "5;a=\"\x7f\"",
            "5;\0",
            "5;a\0",
            "5;a=\0",
            "5;ä",
            "5;a=ä",
            "5;a=b\r",
            "5;a=\"b\r\"",
            "5,a",
            "5;a,b",
            "5:a",
            "0x5",
            "+5",
        ] {
            assert!(!is_followed(bad.as_bytes()), "{bad:?}");
        }
    }

    /// Later minor versions become 1.1, however the line is cut, and nothing else changes.
    #[test]
    fn later_minor_versions_are_lowered() {
        let check = |bytes: &str, expect: &str| {
            for cut in 0..=bytes.len() {
                let mut scanner = HeadScanner::default();
                let (first, second) = bytes.split_at(cut);
                let mut parts = [first.as_bytes().to_vec(), second.as_bytes().to_vec()];
                for part in &mut parts {
                    scanner.feed(part);
                }
                assert_eq!(String::from_utf8_lossy(&parts.concat()), expect, "cut at {cut}");
            }
        };
        let body =
            "PUT / HTTP/1.9\r\nA: x HTTP/1.2\r\nContent-Length: 11\r\n\r\n/ HTTP/1.2\nGET / HTTP/1.2\r\n\r\n";
        check(
            body,
            "PUT / HTTP/1.1\r\nA: x HTTP/1.2\r\nContent-Length: 11\r\n\r\n/ HTTP/1.2\nGET / HTTP/1.1\r\n\r\n",
        );
        for same in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET /HTTP/1.2 x\r\n\r\n",
        ] {
            check(same, same);
        }
        // Refused as before: the rest is not a version.
        check("GET / HTTP/1.23\r\n\r\n", "GET / HTTP/1.13\r\n\r\n");
        check("GET /  HTTP/1.2\n\n", "GET /  HTTP/1.1\n\n");
    }

    /// With a length that is not a number the scanner gives no verdict, so the request is refused.
    #[test]
    fn odd_lengths_lose_the_way() {
        for length in ["+3", "-1", "0x3", "3, 3", "", "18446744073709551615", "99999999999999999999"] {
            let head = format!("PUT / HTTP/1.1\r\nContent-Length: {length}\r\n\r\nabcGET / HTTP/1.1\r\n\r\n");
            assert!(verdicts(&[head.as_bytes()]).is_empty(), "{length}");
        }
    }

    proptest! {
        /// Goal: verdicts do not depend on how the bytes arrive. Method: requests of every kind, cut at random places,
        /// against the same bytes in one piece.
        #[test]
        fn cuts_do_not_matter(
            kinds in prop::collection::vec(0..8usize, 1..5),
            cuts in prop::collection::vec(0..400usize, 0..20),
        ) {
            let padded = format!("PUT / HTTP/1.1\r\nContent-Length: {}1\r\n\r\nx", "0".repeat(200));
            let long = format!("GET /{} HTTP/1.1\r\nX-Long: {}\r\n\r\n", "a".repeat(200), "b".repeat(300));
            let requests: [&[u8]; 8] = [
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"GET /# HTTP/1.1\nHost: a\r\n\r\n",
                b"PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab\n\r\n",
                b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc\r\n\r\n0\r\n\r\n",
                b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\nA: b\r\n\r\n",
                long.as_bytes(),
                b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                padded.as_bytes(),
            ];
            let bytes: Vec<u8> = kinds.iter().flat_map(|kind| requests[*kind].iter().copied()).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).collect();
            cuts.sort_unstable();
            let mut parts = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                parts.push(&bytes[from..cut]);
                from = cut;
            }
            let whole = verdicts(&[&bytes]);
            prop_assert_eq!(verdicts(&parts), whole.clone());
            let expect = kinds.iter().position(|kind| *kind >= 6).unwrap_or(kinds.len());
            prop_assert_eq!(whole.len(), expect);
        }
    }
}
