//! The pump: moves frames through one connection, for both of its sides.
//!
//! One task polls both directions of a stream. Frames to be sent are collected in an [`Outbox`], which wakes the task
//! once, however many are added before it runs. The task then writes all of them by one call if the stream accepts as
//! much. All frames of one read are handled before the next write. So many messages share the system calls of a busy
//! connection, which are most of a message's cost.

use super::frame::{Frame, FrameError, FrameReader, Pieces, PushError};
use super::limits::{MemoryShare, PeerLimits};
use super::terms::MessageError;
use bytes::{Buf, Bytes};
use kvorum_profiler::waits::{Since, Wait};
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

/// A frame up to this length is always accepted: the refusal for lack of memory is one.
const SHORT_BYTES: usize = 4 << 10;

/// The most frames and reads between two turns of the thread's other tasks.
const STEPS_PER_TURN: usize = 128;

/// The reason why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The other side closed it.
    Closed,
    /// An I/O error broke it.
    Io(io::Error),
    /// The received bytes are not a frame.
    Frame(FrameError),
    /// The received frame is not a message that is expected here.
    Message(MessageError),
    /// The other side was silent for too long.
    Silent,
    /// The other side stopped in the middle of a message.
    Stalled,
    /// The other side has not used it for long.
    Unused,
    /// What it was proved by, a peer secret or a certificate, does not hold any more.
    Withdrawn,
    /// The local side has no more use for it.
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
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::Io(error) => write!(f, "the connection broke: {error}"),
            Self::Frame(error) => error.fmt(f),
            Self::Message(error) => error.fmt(f),
            Self::Silent => f.write_str("the peer does not answer"),
            Self::Stalled => f.write_str("the peer stopped in the middle of a message"),
            Self::Unused => f.write_str("the peer has not used the connection for a minute"),
            Self::Withdrawn => f.write_str("the peer secret or certificate of the connection was withdrawn"),
            Self::Dropped => f.write_str("the connection is not needed any more"),
        }
    }
}

/// A receiver of a connection's frames. Its methods must not block.
pub(super) trait Inbox {
    /// Whether frames are accepted now; always true while no bytes wait to be written. While it is false, the
    /// connection is not read.
    fn is_open(&self) -> bool;

    /// Notes that bytes came.
    fn heard(&self, bytes: usize);

    /// Takes a frame; an error ends the connection.
    fn frame(&self, frame: Frame) -> Result<(), MessageError>;
}

/// The frames that wait to be written on a connection. It may outlive the connection.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: RefCell<Pieces>,
    /// The share of the memory for frames that the waiting bytes hold; none if they are not counted.
    memory: Option<RefCell<MemoryShare>>,
    /// Bytes that were pushed and that the stream has not accepted yet.
    waiting: Cell<usize>,
    /// Bytes that the stream has accepted.
    written: Cell<u64>,
    /// While a profile records it: since when the bytes up to a position in the written stream have been waiting.
    since: RefCell<VecDeque<(u64, Since)>>,
    /// Wakes the pump; none while it runs.
    waker: Cell<Option<Waker>>,
}

impl Outbox {
    /// An outbox whose waiting bytes count towards the memory for frames.
    pub(super) fn counted(limits: &PeerLimits) -> Self {
        Self { memory: Some(RefCell::new(MemoryShare::new(&limits.memory))), ..Self::default() }
    }

    /// Adds a frame. If `bounded`, refuses it when more than [`OUT_BYTES_MAX`] bytes would then wait, except that one
    /// frame may always wait; or when there is no memory for it.
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

    /// Holds as much memory as the waiting bytes. Another thread may have taken the free memory a moment ago; that can
    /// exceed the bound by one frame.
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

/// A pump that moves frames between a stream, an outbox and an inbox.
pub(super) struct Pump<S> {
    stream: S,
    reader: FrameReader,
    outbox: Rc<Outbox>,
    /// Bytes taken from the outbox that the stream has not accepted yet.
    writing: VecDeque<Bytes>,
    /// Whether the stream accepted bytes that are not flushed yet.
    is_unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    /// A pump on `stream`, whose first bytes `already_read` were read before.
    ///
    /// Received frames are kept up to `bytes_max`.
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

    /// Moves frames until the connection ends. `midway` tells other code whether a frame has been partly received.
    ///
    /// # Cancel safety
    /// Dropping the future alone ends nothing; the connection ends when the pump is dropped.
    pub(super) async fn run(&mut self, inbox: &impl Inbox, midway: &Cell<bool>) -> End {
        poll_fn(|cx| {
            // Frames that are pushed during the turn are written by it and need no wake-up.
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

    /// Does all work that is possible now. On return, the task is woken when more becomes possible.
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
                // The write made room: frames that were already read are handled before more is read.
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
        // The future keeps no state between polls, so a new one per poll is equivalent.
        std::future::Future::poll(pin!(self.stream.read_buf(self.reader.room())), cx)
    }

    /// Writes until no bytes are left or the stream accepts no more.
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
