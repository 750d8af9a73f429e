//! Entry points for the fuzz targets, which are outside of this crate (`fuzz/`).

use super::auth::{Challenge, PeerAuth};
use super::frame::{Frame, FrameError, FrameReader, Pieces};
use super::handshake::{self, Hello};
use super::limits::PeerLimits;
use super::message::{Note, Reply, Request};
use super::terms::Refusal;
use super::{BoxedStream, UPGRADE_PATH};
use crate::clock::{SystemClock, TimestampBound};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

fn limits() -> PeerLimits {
    let clock = Arc::new(SystemClock::new());
    PeerLimits::new(Arc::new(TimestampBound::new(clock, Duration::from_mins(1))), 8 << 20, 64 << 20)
}

/// The kind, id and payload of each frame in `parts`; and the error that ends them, if there is one.
pub fn frames<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<(u8, u32, Bytes)>, Option<FrameError>) {
    let limits = limits();
    let mut reader = FrameReader::bounded(Bytes::new(), &limits, limits.request_bytes_max());
    let mut frames = Vec::new();
    for part in parts {
        let mut rest = part;
        while !rest.is_empty() {
            let room = reader.room();
            let free = (room.capacity() - room.len()).min(rest.len());
            let (now, later) = rest.split_at(free);
            room.extend_from_slice(now);
            rest = later;
            loop {
                match reader.next() {
                    Ok(Some(Frame { kind, id, payload, .. })) => frames.push((kind, id, payload)),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
    }
    (frames, None)
}

/// The bytes of a frame.
pub fn write_frame(kind: u8, id: u32, payload: &Bytes) -> Vec<u8> {
    let mut pieces = Pieces::default();
    let pushed = pieces.push(kind, id, usize::MAX, |to| {
        to.put_value(payload);
        Ok(())
    });
    assert!(pushed.is_ok(), "{pushed:?}");
    taken(&mut pieces)
}

fn taken(pieces: &mut Pieces) -> Vec<u8> {
    let mut queue = VecDeque::new();
    pieces.take(&mut queue);
    queue.into_iter().flatten().collect()
}

/// Reads a payload as the request, the reply and the note of that kind. A message that was read must be written with the same
/// bytes. No payload may cause a panic.
pub fn message(kind: u8, payload: &[u8]) {
    let frame = || Frame { kind, id: 1, payload: Bytes::copy_from_slice(payload), passed_over: None };
    if let Ok((request, left)) = Request::decode(frame()) {
        let mut pieces = Pieces::default();
        assert!(request.encode(left, &mut pieces).is_ok(), "{request:?}");
        assert_eq!(taken(&mut pieces), payload, "{request:?}");
        let _ = (request.newest(), request.reply_kind());
    }
    if let Ok(note) = Note::decode(frame()) {
        let mut pieces = Pieces::default();
        assert!(note.encode(&mut pieces).is_ok(), "{note:?}");
        assert_eq!(taken(&mut pieces), payload, "{note:?}");
    }
    if let Ok(reply) = Reply::decode(frame(), kind) {
        let mut pieces = Pieces::default();
        assert!(reply.encode(&mut pieces).is_ok(), "{reply:?}");
        // An unknown code is read as `Unknown`, which has a code of its own.
        let is_unknown = matches!(reply, Reply::Refused { code: Refusal::Unknown, .. });
        assert!(taken(&mut pieces) == payload || is_unknown, "{reply:?}");
        let _ = reply.newest();
    }
}

/// Reads `answer` as a peer's complete answer to an upgrade.
pub fn handshake_answer(answer: &[u8]) {
    let ours = example();
    let mut stream: BoxedStream = Box::new(Said(Bytes::copy_from_slice(answer)));
    let admit = |_: &Hello| Ok(());
    let auth = PeerAuth::default();
    let asked = handshake::ask(&mut stream, "peer:1", (&ours, &admit), ours.node, (&auth, None));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    if let Ok(Ok(accepted)) = runtime.map(|runtime| runtime.block_on(asked)) {
        check(&accepted.theirs);
    }
}

/// Reads `head` as the headers of a request for an upgrade.
pub fn handshake_headers(head: &[u8]) {
    let Ok(head) = std::str::from_utf8(head) else { return };
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    if let Ok(hello) = Hello::parse(header) {
        check(&hello);
    }
    if let Ok(Some(challenge)) = Challenge::parse(header) {
        let headers = challenge.headers();
        let written =
            |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        assert_eq!(Challenge::parse(written), Ok(Some(challenge.clone())));
    }
}

/// Checks that a parsed hello is the same after its headers are written and parsed again.
fn check(hello: &Hello) {
    let headers = hello.headers();
    let header =
        |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    assert_eq!(Hello::parse(header).as_ref(), Ok(hello));
}

fn example() -> Hello {
    let text = format!(
        "Kvorum-Protocol: {}\nKvorum-Cluster: blue\nKvorum-Cluster-Id: {:032x}\nKvorum-Node: {:016x}\n\
         Kvorum-Topology: {:016x}\nKvorum-Store: {:032x}\nKvorum-Run: 1-{:016x}\nKvorum-Members: -\nKvorum-Clock: 5\n",
        super::PROTOCOL,
        7,
        10,
        1,
        2,
        3
    );
    let header = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    match Hello::parse(header) {
        Ok(hello) => hello,
        Err(error) => unreachable!("{UPGRADE_PATH}: {error}"),
    }
}

/// A stream that yields these bytes, and ends.
struct Said(Bytes);

impl AsyncRead for Said {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = self.0.len().min(to.remaining());
        to.put_slice(&self.0.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Said {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
