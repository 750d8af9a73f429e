//! Tests of the response parser: tables of heads, and bodies cut at every place.

use super::*;

fn head(text: &str) -> Result<Option<Head>, Malformed> {
    parse_head(text.as_bytes())
}

/// Goal: good heads are understood. Method: a table of status, framing, close.
#[test]
fn good_heads_are_read() {
    let check = |text: &str, status: u16, framing: Framing, close: bool| {
        let expect = Head { status, framing, close, bytes: text.len() };
        assert_eq!(head(text), Ok(Some(expect)), "{text:?}");
    };
    check("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", 200, Framing::Length(100), false);
    check("HTTP/1.1 201 Created\r\ncontent-length:0\r\nETag: x\r\n\r\n", 201, Framing::Length(0), false);
    check("HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\n", 200, Framing::Chunked, false);
    check("HTTP/1.1 204\r\n\r\n", 204, Framing::Length(0), false);
    check("HTTP/1.1 503 X\r\nconnection: close\r\ncontent-length: 5\r\n\r\n", 503, Framing::Length(5), true);
}

/// Goal: interim responses are skipped, as proxies and servers may send them at any time; before the fix, the
/// run counted them as malformed. Method: none, one, several, and half of one before an answer.
#[test]
fn interim_responses_are_passed_over() {
    let answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
    for before in [
        "",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102\r\n\r\n",
    ] {
        let text = format!("{before}{answer}");
        let seen = parse_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!((seen.status, seen.bytes), (201, text.len()), "{text:?}");
        for cut in 0..text.len() {
            assert_eq!(parse_head(&text.as_bytes()[..cut]), Ok(None), "{:?}", &text[..cut]);
        }
    }
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_BYTES_MAX / 20);
    assert!(parse_head(endless.as_bytes()).is_err());
}

/// Goal: invalid heads are refused. Method: one error each.
#[test]
fn bent_heads_are_refused() {
    for bad in [
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 1xx\r\n\r\n",
        "HTTP/1.1 100x\r\n\r\n",
        "HTTP/1.1 20 OK\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 2000 OK\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\nX: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length\r\n\r\n",
    ] {
        assert!(head(bad).is_err(), "{bad:?} must be refused");
    }
    assert!(parse_head(&vec![b'x'; HEAD_BYTES_MAX + 1]).is_err(), "a head without end");
}

/// Goal: a head split over reads is waited for. Method: every proper prefix gives `None`.
#[test]
fn a_split_head_is_waited_for() {
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    for cut in 0..text.len() - 3 {
        assert_eq!(parse_head(&text[..cut]), Ok(None), "cut at {cut}");
    }
    assert_eq!(parse_head(text).unwrap().unwrap().bytes, text.len() - 3);
}

#[derive(Default, Debug, PartialEq)]
struct Chunks {
    open: Vec<u8>,
    whole: Vec<Vec<u8>>,
}

impl BodySink for Chunks {
    fn data(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
    }

    fn chunk_end(&mut self) {
        self.whole.push(std::mem::take(&mut self.open));
    }
}

const BODY: &[u8] = b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n";

/// Goal: chunks keep their borders however the bytes arrive. Method: cut the body at every pair of places.
#[test]
fn chunks_survive_any_split() {
    for first in 0..=BODY.len() {
        for second in first..=BODY.len() {
            let (mut body, mut chunks) = (ChunkedBody::new(), Chunks::default());
            for piece in [&BODY[..first], &BODY[first..second], &BODY[second..]] {
                assert_eq!(body.feed(piece, &mut chunks), Ok(piece.len()));
            }
            assert!(body.is_done(), "cut at {first}, {second}");
            assert_eq!(chunks.whole, [b"abc".to_vec(), b"0123456789".to_vec()]);
        }
    }
}

/// Goal: a body that was cut is not complete, and bytes after a complete one are not consumed.
#[test]
fn the_end_of_a_body_is_exact() {
    let (mut body, mut chunks) = (ChunkedBody::new(), Chunks::default());
    body.feed(&BODY[..BODY.len() - 1], &mut chunks).unwrap();
    assert!(!body.is_done(), "the final LF is missing");
    let more = [BODY, b"HTTP/1.1"].concat();
    let mut body = ChunkedBody::new();
    assert_eq!(body.feed(&more, &mut Chunks::default()), Ok(BODY.len()));
    assert!(body.is_done());
}

/// Goal: invalid chunks are refused. Method: one error each.
#[test]
fn bent_chunks_are_refused() {
    for bad in [
        "\r\n",
        "g\r\n",
        "3;x=y\r\nabc",
        "3\nabc",
        "3\r\nabcd",
        "0\r\nX: y\r\n\r\n",
        "10000000000\r\n",
        "3\r\nabc\r3",
    ] {
        assert!(ChunkedBody::new().feed(bad.as_bytes(), &mut Chunks::default()).is_err(), "{bad:?}");
    }
}
