//! The server: the answering side of one connection.
//!
//! A request that can be answered at once costs no task: its future is polled where its frame was read, and its reply
//! is written together with the replies to all other frames of that read. A future that must wait becomes a task.

use super::frame::{Frame, PassedOver, PushError};
use super::limits::PeerLimits;
use super::message::{Note, NoteKind, Reply, Request};
use super::pump::{End, Inbox, OUT_BYTES_MAX, Outbox, Pump};
use super::terms::{MessageError, Refusal};
use crate::clock::Clock;
use crate::slow::TraceContext;
use bytes::Bytes;
use kvorum_core::NodeId;
use kvorum_core::agreement::Epoch;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time;

/// The most requests of one connection that may be waiting; more are refused as overload.
pub const SERVED_IN_FLIGHT_MAX: usize = 4096;

/// How often the server checks whether a connection with a partial message makes progress. A connection that made none
/// between two checks is ended, so that its replies do not hold memory forever.
const STALL_TICK: Duration = Duration::from_secs(15);
/// How long a connection may be silent: each of a node's links is used several times within it. It is checked as often
/// as a stall.
pub const IDLE_MAX: Duration = Duration::from_mins(1);

/// The origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The node that asks.
    pub peer: NodeId,
    /// The connection that the request came on: what it has opened (scans) belongs to it alone.
    pub connection: u64,
    /// The version of the protocol that the connection speaks.
    pub protocol: u16,
    /// The epoch of the request.
    pub epoch: Epoch,
}

/// A handler of peers' requests.
pub trait Service {
    /// Answers `request`. Its caller stops waiting at `deadline` (a [`Clock::mono`]).
    ///
    /// The future is polled at once and should be ready then if possible; it must not block. It runs to its end even if
    /// the connection ends.
    fn serve(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = Reply>>>;

    /// As [`Self::serve`], for a request that belongs to a trace that is sampled.
    fn serve_within(
        &self,
        caller: Caller,
        request: Request,
        deadline: Duration,
        _trace: TraceContext,
    ) -> Pin<Box<dyn Future<Output = Reply>>> {
        self.serve(caller, request, deadline)
    }

    /// Notes that a request was dropped because its deadline had passed before work on it began.
    fn expired(&self, _caller: Caller) {}

    /// Notes that the connection has ended. Requests of it may still be running.
    fn ended(&self, caller: Caller);
}

/// Answers the requests on `stream`, whose first bytes `already_read` were read before, until it ends.
///
/// Must run in a `LocalSet`. While more than [`OUT_BYTES_MAX`] bytes of replies wait for the peer to read them, no
/// further requests are read.
///
/// # Cancel safety
/// Dropping the future ends the connection; requests that are waiting continue to run.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    already_read: Bytes,
    service: Rc<dyn Service>,
    caller: Caller,
    clock: Arc<dyn Clock>,
    limits: Arc<PeerLimits>,
) {
    let outbox = Rc::new(Outbox::counted(&limits));
    let bytes_max = limits.request_bytes_max();
    let mut pump = Pump::new(stream, already_read, Rc::clone(&outbox), &limits, bytes_max);
    let received = Cell::new(clock.mono());
    let inbox = Served(Rc::new(Serving {
        service,
        caller,
        clock,
        limits,
        outbox,
        received,
        bytes_in: Cell::new(0),
        in_flight: Cell::new(0),
        noted: Cell::new(None),
        epoch: Cell::new(caller.epoch),
        has_ended: Cell::new(false),
    }));
    let is_midway = Cell::new(false);
    let end = tokio::select! {
        biased;
        end = pump.run(&inbox, &is_midway) => end,
        end = inbox.0.stall(&is_midway) => end,
    };
    if end.is_corrupt() {
        let serving = &inbox.0;
        if let Some(left_out) = serving.limits.bad_frames.admit(serving.clock.mono()) {
            tracing::warn!(peer = %caller.peer, reason = %end, left_out, "a peer sent a malformed message: its connection was closed");
        }
    } else {
        tracing::debug!(peer = %caller.peer, reason = %end, "the connection of a peer ended");
    }
}

/// The state that a connection and its requests share.
struct Serving {
    service: Rc<dyn Service>,
    caller: Caller,
    clock: Arc<dyn Clock>,
    limits: Arc<PeerLimits>,
    outbox: Rc<Outbox>,
    /// When the frames that are being handled were read.
    received: Cell<Duration>,
    bytes_in: Cell<u64>,
    in_flight: Cell<usize>,
    /// The trace that the latest note named, with the id of the request that is to follow.
    noted: Cell<Option<(u32, TraceContext)>>,
    /// The epoch of the requests that come, as the latest note said.
    epoch: Cell<Epoch>,
    has_ended: Cell<bool>,
}

impl Serving {
    /// Returns when the connection makes no progress in the middle of a message, or is unused for too long.
    async fn stall(&self, is_midway: &Cell<bool>) -> End {
        let mut before = None;
        loop {
            time::sleep(STALL_TICK).await;
            let now = (self.outbox.written(), self.bytes_in.get());
            let is_under_way = is_midway.get() || self.outbox.waiting() > 0;
            if is_under_way && before == Some(now) {
                return End::Stalled;
            }
            before = is_under_way.then_some(now);
            let silent = self.clock.mono().saturating_sub(self.received.get());
            if silent >= IDLE_MAX && !is_under_way && self.in_flight.get() == 0 {
                return End::Unused;
            }
        }
    }

    /// Keeps a note until the next frame, which is the request that it is about.
    fn note(&self, frame: Frame) -> Result<(), MessageError> {
        // Without memory for it, the request is served without. An epoch must not get lost: then the connection ends.
        if frame.passed_over.is_some() {
            let is_epoch = frame.kind == NoteKind::Epoch as u8;
            return if is_epoch { Err(MessageError::Truncated) } else { Ok(()) };
        }
        Note::check_spoken(frame.kind, self.caller.protocol)?;
        let id = frame.id;
        let note = Note::decode(frame)?;
        if self.limits.timestamps.check(note.newest()).is_ok() {
            match note {
                Note::Trace(trace) => self.noted.set(Some((id, trace))),
                Note::Epoch(epoch) => self.epoch.set(epoch),
            }
        }
        Ok(())
    }

    fn reply(&self, id: u32, reply: &Reply) {
        if self.has_ended.get() {
            return;
        }
        let push = |reply: &Reply| {
            Reply::check_spoken(reply.kind(), self.caller.protocol)?;
            self.outbox.push(reply.kind(), id, false, |to| reply.encode(to))
        };
        if let Err(error) = push(reply) {
            let (code, detail) = match error {
                PushError::Full => {
                    let detail = "no memory is left for a reply: other replies wait until peers read them";
                    (Refusal::Overloaded, detail.to_owned())
                }
                PushError::TooLong => (Refusal::Failed, "the reply is longer than a frame may be".to_owned()),
                PushError::Message(error) => (Refusal::Failed, error.to_string()),
            };
            if code == Refusal::Failed {
                tracing::error!(peer = %self.caller.peer, ?error, "a reply to a peer cannot be sent: it gets an \
                                                                   error instead");
            }
            // It is short and has no lists, so pushing it cannot fail.
            let _ = push(&Reply::Refused { code, detail });
        }
    }
}

/// The inbox of a connection; dropped with it.
struct Served(Rc<Serving>);

impl Inbox for Served {
    fn is_open(&self) -> bool {
        self.0.outbox.waiting() <= OUT_BYTES_MAX
    }

    fn heard(&self, bytes: usize) {
        self.0.received.set(self.0.clock.mono());
        self.0.bytes_in.set(self.0.bytes_in.get() + bytes as u64);
    }

    fn frame(&self, frame: Frame) -> Result<(), MessageError> {
        let serving = &self.0;
        let id = frame.id;
        let trace = serving.noted.take().filter(|(of, _)| *of == id).map(|(_, trace)| trace);
        if Note::is_kind(frame.kind) {
            return serving.note(frame);
        }
        if let Some(why) = frame.passed_over {
            let (code, detail) = match why {
                PassedOver::TooLong => {
                    let detail = format!("a request may have {} bytes", serving.limits.request_bytes_max());
                    (Refusal::TooLong, detail)
                }
                PassedOver::NoMemory => (Refusal::Overloaded, "no memory is left for the request".to_owned()),
            };
            serving.reply(id, &Reply::Refused { code, detail });
            return Ok(());
        }
        Request::check_spoken(frame.kind, serving.caller.protocol)?;
        let (request, left) = Request::decode(frame)?;
        let deadline = serving.received.get().saturating_add(left);
        if serving.clock.mono() >= deadline {
            serving.service.expired(serving.caller);
            return Ok(());
        }
        // The only place where the timestamps in a peer's requests are checked.
        if let Err(error) = serving.limits.timestamps.check(request.newest()) {
            let (code, detail) = (Refusal::TooFarAhead, error.to_string());
            serving.reply(id, &Reply::Refused { code, detail });
            return Ok(());
        }
        if serving.in_flight.get() >= SERVED_IN_FLIGHT_MAX {
            let detail = format!("{SERVED_IN_FLIGHT_MAX} requests of this connection are being served");
            serving.reply(id, &Reply::Refused { code: Refusal::Overloaded, detail });
            return Ok(());
        }
        let caller = Caller { epoch: serving.epoch.get(), ..serving.caller };
        let mut work = match trace {
            Some(trace) => serving.service.serve_within(caller, request, deadline, trace),
            None => serving.service.serve(caller, request, deadline),
        };
        // No waker is needed: if the future is not ready, the task that it becomes polls it again.
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => serving.reply(id, &reply),
            Poll::Pending => {
                let place = Place::take(serving);
                tokio::task::spawn_local(async move {
                    let reply = work.await;
                    place.serving.reply(id, &reply);
                });
            }
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.has_ended.set(true);
        self.0.service.ended(self.0.caller);
    }
}

/// A request's place among the requests in flight.
struct Place {
    serving: Rc<Serving>,
}

impl Place {
    fn take(serving: &Rc<Serving>) -> Self {
        serving.in_flight.set(serving.in_flight.get() + 1);
        Self { serving: Rc::clone(serving) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serving.in_flight.set(self.serving.in_flight.get() - 1);
    }
}
