//! The pump: moves frames through one connection, for both of its sides.
//!
//! One task polls both directions of a stream. Frames to be sent are collected in an [`Outbox`], which wakes the
//! task once, however many are added before it runs; it then writes all of them by one call where the stream takes
//! as much. All frames that one read brought are handled before the next write. So the system calls of a busy
//! connection are shared by many messages, which is most of what a message costs.

use super::frame::{Frame, FrameError, FrameReader, Pieces, PushError};
use super::limits::{MemoryShare, PeerLimits};
use super::terms::MessageError;
use crate::profile::waits::{Since, Wait};
use bytes::{Buf, Bytes};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

/// The most bytes that may wait to be written on one connection, unless a single message is longer.
pub const OUT_BYTES_MAX: usize = 64 << 20;

/// A frame up to this length always finds room: what says that there is no memory is one.
const SHORT_BYTES: usize = 4 << 10;

/// The most frames and reads between two turns of the thread's other tasks.
const STEPS_PER_TURN: usize = 128;

/// This says why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The other side ended it.
    Closed,
    /// It broke.
    Io(io::Error),
    /// What came is not a frame.
    Frame(FrameError),
    /// What came is not a message that is expected here.
    Message(MessageError),
    /// The other side was silent for too long.
    Silent,
    /// The other side stopped in the middle of a message.
    Stalled,
    /// The other side has not used it for long.
    Unused,
    /// This side has no more use for it.
    Dropped,
}

impl End {
    /// Whether the other side broke the protocol.
    pub(super) fn is_corrupt(&self) -> bool {
        matches!(self, Self::Frame(_) | Self::Message(_))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer ended the connection"),
            Self::Io(error) => write!(f, "the connection broke: {error}"),
            Self::Frame(error) => error.fmt(f),
            Self::Message(error) => error.fmt(f),
            Self::Silent => f.write_str("the peer is silent although something is asked of it"),
            Self::Stalled => f.write_str("the peer takes or brings no more bytes in the middle of a message"),
            Self::Unused => f.write_str("the peer has not used the connection for a minute"),
            Self::Dropped => f.write_str("the connection is of no more use"),
        }
    }
}

/// This takes what comes on a connection. Nothing here may block.
pub(super) trait Inbox {
    /// Whether frames are taken now; always while nothing waits to be written. While they are not, the connection is
    /// not read.
    fn is_open(&self) -> bool;

    /// Notes that bytes came.
    fn heard(&self, bytes: usize);

    /// Takes a frame; an error ends the connection.
    fn frame(&self, frame: Frame) -> Result<(), MessageError>;
}

/// This holds what is to be written on a connection. It outlives the connection harmlessly.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: RefCell<Pieces>,
    /// What waits holds so much of the memory for frames; none where it is not bounded by it.
    memory: Option<RefCell<MemoryShare>>,
    /// Bytes that were pushed and not yet taken by the stream.
    waiting: Cell<usize>,
    /// Bytes that the stream has taken.
    written: Cell<u64>,
    /// While a profile wants to know: since when the bytes up to a count of all written wait.
    since: RefCell<VecDeque<(u64, Since)>>,
    /// Wakes the pump; none while it runs.
    waker: Cell<Option<Waker>>,
}

impl Outbox {
    /// An outbox of which what waits counts towards the memory for frames.
    pub(super) fn counted(limits: &PeerLimits) -> Self {
        Self { memory: Some(RefCell::new(MemoryShare::new(&limits.memory))), ..Self::default() }
    }

    /// Adds a frame, unless `bounded` and more than [`OUT_BYTES_MAX`] would wait then, where one frame may always wait; or
    /// more than there is memory for.
    pub(super) fn push(
        &self,
        kind: u8,
        id: u32,
        bounded: bool,
        payload: impl FnOnce(&mut Pieces) -> Result<(), MessageError>,
    ) -> Result<(), PushError> {
        let waiting = self.waiting.get();
        let room = if bounded && waiting > 0 { OUT_BYTES_MAX.saturating_sub(waiting) } else { usize::MAX };
        let memory = self.memory.as_ref().map(|memory| memory.borrow().room().saturating_sub(waiting));
        let room = memory.map_or(room, |memory| memory.max(SHORT_BYTES).min(room));
        let bytes = self.pieces.borrow_mut().push(kind, id, room, payload)?;
        self.waiting.set(waiting + bytes);
        self.count_memory();
        let since = Since::now();
        if since.is_wanted() {
            let end = self.written.get() + (waiting + bytes) as u64;
            self.since.borrow_mut().push_back((end, since));
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Holds as much of the memory as waits. Another thread may have taken what there was a moment ago; one frame more is
    /// what that costs.
    fn count_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.borrow_mut().hold(self.waiting.get());
        }
    }

    fn note_written(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
        self.count_memory();
        let written = self.written.get() + bytes as u64;
        self.written.set(written);
        let mut since = self.since.borrow_mut();
        while let Some((_, since)) = since.pop_front_if(|(end, _)| *end <= written) {
            since.end(Wait::PeerSendQueue);
        }
    }
}

/// This moves frames between a stream, an outbox and an inbox.
pub(super) struct Pump<S> {
    stream: S,
    reader: FrameReader,
    outbox: Rc<Outbox>,
    /// Taken from the outbox, not yet by the stream.
    writing: VecDeque<Bytes>,
    /// Whether the stream took bytes that it was not asked to flush, or has not flushed.
    is_unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    /// A pump on `stream`, of which `already_read` has come before.
    ///
    /// Frames that come are kept up to `bytes_max`.
    pub(super) fn new(
        stream: S,
        already_read: Bytes,
        outbox: Rc<Outbox>,
        limits: &PeerLimits,
        bytes_max: usize,
    ) -> Self {
        let reader = FrameReader::bounded(already_read, limits, bytes_max);
        Self { stream, reader, outbox, writing: VecDeque::new(), is_unflushed: false }
    }

    /// Moves frames until the connection ends. `midway` tells others whether half a frame has come.
    ///
    /// # Cancel safety
    /// Dropping the future ends nothing by itself; the connection ends when the pump is dropped.
    pub(super) async fn run(&mut self, inbox: &impl Inbox, midway: &Cell<bool>) -> End {
        poll_fn(|cx| {
            // What is pushed during the turn is written by it and needs no waking.
            self.outbox.waker.set(None);
            let turn = self.turn(cx, inbox);
            midway.set(self.reader.is_midway());
            if let Err(end) = turn {
                return Poll::Ready(end);
            }
            self.outbox.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Does what can be done now. On return, whatever can be done later wakes the task.
    fn turn(&mut self, cx: &mut Context<'_>, inbox: &impl Inbox) -> Result<(), End> {
        let mut steps = 0;
        loop {
            let mut is_drained = false;
            while !is_drained && steps < STEPS_PER_TURN && inbox.is_open() {
                match self.reader.next().map_err(End::Frame)? {
                    Some(frame) => inbox.frame(frame).map_err(End::Message)?,
                    None => is_drained = true,
                }
                steps += 1;
            }
            let is_blocked = self.poll_write(cx).map_err(End::Io)?.is_pending();
            if steps >= STEPS_PER_TURN {
                cx.waker().wake_by_ref();
                return Ok(());
            }
            if !is_drained {
                if is_blocked && !inbox.is_open() {
                    return Ok(());
                }
                // The write made room: frames that were read already come before more is read.
                continue;
            }
            steps += 1;
            match self.poll_read(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(End::Closed),
                Poll::Ready(Ok(bytes)) => inbox.heard(bytes),
                Poll::Ready(Err(error)) => return Err(End::Io(error)),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // The future holds nothing between polls, so a new one each time is the same.
        std::future::Future::poll(pin!(self.stream.read_buf(self.reader.room())), cx)
    }

    /// Writes until nothing is left or the stream takes no more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.writing.is_empty() {
                self.outbox.pieces.borrow_mut().take(&mut self.writing);
            }
            let Some(piece) = self.writing.front_mut() else { break };
            let bytes = ready!(Pin::new(&mut self.stream).poll_write(cx, piece))?;
            if bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_unflushed = true;
            piece.advance(bytes);
            if piece.is_empty() {
                self.writing.pop_front();
            }
            self.outbox.note_written(bytes);
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
