//! The link: the calling side of one thread's connection to one other node.
//!
//! A link's one task connects, moves frames, watches the calls and reconnects, until the link is dropped. A call is
//! encoded at once and has no timer: while any call is in flight, the task checks every [`TICK`] which ones are due.
//!
//! A peer can be gone although its operating system still accepts bytes (a stopped process, a pulled cable). To detect
//! that, the link measures the *silence*: the time since the first call after which no byte has come. A silence longer
//! than the peer's usual latency allows makes the link unusable. A silence past such a call's deadline ends the
//! connection, and the peer must then answer the next handshake in time. Any byte ends the silence. While the peer
//! slowly accepts a long message, the silence does not grow.
//!
//! A call that its caller dropped stays in flight until its reply or deadline: the peer works on it all the same, and
//! leaving it out would make a slow peer look fast.

use super::auth::{Known, PeerAuth};
use super::call_error::{CallError, Unsent};
use super::frame::{FRAME_BYTES_MAX, Frame};
use super::handshake::{self, Accepted, ConnectError, HandshakeError, Hello};
use super::latency::{Estimator, Latency};
use super::limits::PeerLimits;
use super::message::{Note, Reply, Request};
use super::pump::{End, Inbox, Outbox, Pump};
use super::secret::Secret;
use super::terms::MessageError;
use super::{BoxedStream, Connector};
use crate::clock::{Clock, Rng};
use crate::metrics::{CallKind, CallMetrics};
use crate::slow::TraceContext;
use crate::supervise::{Part, Supervisor};
use bytes::Bytes;
use kvorum_core::NodeId;
use kvorum_core::agreement::Epoch;
use kvorum_profiler::waits::{self, Wait};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time;

/// The most calls that may be in flight on one link.
pub const CALLS_IN_FLIGHT_MAX: usize = 4096;
/// The longest time from the beginning of a connection to the end of its handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a link with calls in flight checks which are due; deadlines are kept to this precision.
const TICK: Duration = Duration::from_millis(10);
/// The bound of the first pause between two attempts to connect; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The largest bound of a pause. After a connection that lasted as long, the pauses begin at [`BACKOFF_MIN`] again.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// The pause between two attempts to prove another secret. A connection whose secret was withdrawn ends after the second.
const RENEW_MAX: Duration = Duration::from_secs(1);
/// A peer is suspected after a silence of this plus four times its usual latency.
const SILENCE_MIN: Duration = Duration::from_millis(100);
/// A silence of this length is suspect, however slow the peer usually is.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The parts that a link is made from.
pub struct LinkParts {
    /// The peer's address: `host:port`.
    pub authority: String,
    /// The node that must answer there.
    pub peer: NodeId,
    /// Opens connections.
    pub connector: Rc<dyn Connector>,
    /// Makes this node's hello, for each handshake.
    pub hello: Box<dyn Fn() -> Hello>,
    /// The epoch that other requests name.
    pub epoch: Box<dyn Fn() -> Epoch>,
    /// For deadlines and latencies.
    pub clock: Arc<dyn Clock>,
    /// The bounds of the peer's replies.
    pub limits: Arc<PeerLimits>,
    /// What this node proves to the peer, and demands of it.
    pub auth: Arc<PeerAuth>,
    /// For the pauses between attempts, and for nonces.
    pub rng: Arc<dyn Rng>,
    /// Is told when the connection begins and ends.
    pub observer: Rc<dyn LinkObserver>,
    /// Starts the link's task, and restarts it if that panics.
    pub supervisor: Supervisor,
}

/// The kind of a failed attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setback {
    /// The peer answers, but is still starting.
    Passing,
    /// The peer cannot be reached.
    Unreachable,
    /// At least one of the two nodes finds that they do not belong together: a retry alone does not help.
    Refused,
}

/// An observer of a link, called on the link's thread. It may make calls.
pub trait LinkObserver {
    /// The link is up; `theirs` is the peer's hello.
    fn connected(&self, theirs: &Hello);
    /// The link that was up is down. All its calls have failed. `reason` is none if this node took it down itself.
    fn disconnected(&self, reason: Option<&str>);
    /// An attempt to connect failed.
    fn failed(&self, reason: &str, setback: Setback);
    /// Checks whether this node, whose hello is `ours`, may connect with the peer whose hello is `theirs`.
    ///
    /// # Errors
    /// The reason why not.
    fn admit(&self, ours: &Hello, theirs: &Hello) -> Result<(), HandshakeError> {
        ours.check(theirs)
    }
}

/// The state of a link. Times are readings of [`Clock::mono`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// The first attempt is under way.
    Connecting {
        /// Since when.
        since: Duration,
    },
    /// Calls can be made.
    Up {
        /// Since when.
        since: Duration,
    },
    /// Calls fail at once. Attempts to connect go on.
    Down {
        /// Since when.
        since: Duration,
        /// Why the connection ended or the last attempt failed.
        reason: String,
    },
}

/// A link's counters since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounts {
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that failed before they were sent.
    pub calls_not_sent: u64,
    /// Calls whose connection ended before their reply.
    pub calls_lost: u64,
    /// Calls whose deadline passed.
    pub calls_timed_out: u64,
    /// Calls that the peer refused.
    pub calls_refused: u64,
    /// Connections that came up.
    pub connects: u64,
    /// Attempts to connect that failed.
    pub connects_failed: u64,
    /// Bytes that were read after handshakes.
    pub bytes_in: u64,
    /// Bytes that were written after handshakes.
    pub bytes_out: u64,
}

/// A caller of one other node from one thread. Dropping it ends the connection; calls in flight are lost.
pub struct Link {
    shared: Rc<Shared>,
    task: JoinHandle<()>,
}

impl Link {
    /// Starts a link, and its task on the current `LocalSet`. It connects at once.
    pub fn start(parts: LinkParts) -> Rc<Self> {
        let shared = Rc::new(Shared::new(parts));
        let running = Rc::clone(&shared);
        let LinkParts { supervisor, authority, .. } = &shared.parts;
        let task = supervisor.task(Part::Link, authority, move || Rc::clone(&running).run());
        Rc::new(Self { shared, task })
    }

    /// Sends `request` and awaits its reply for at most `timeout`. The request is encoded before this returns.
    ///
    /// Does not wait for a connection: without one the call fails at once. Dropping the call discards its reply; the peer
    /// still carries out the request.
    pub fn call(&self, request: &Request, timeout: Duration) -> Call {
        self.shared.call(request, timeout, ((self.shared.parts.epoch)(), None))
    }

    /// As [`Self::call`], of `epoch` and within a trace: the peer adds its own spans to it, if it speaks that.
    pub fn call_within(
        &self,
        request: &Request,
        timeout: Duration,
        epoch: Epoch,
        trace: Option<TraceContext>,
    ) -> Call {
        self.shared.call(request, timeout, (epoch, trace))
    }

    /// The version of the protocol that the peer was last spoken with; 0 if it never was.
    pub fn protocol(&self) -> u16 {
        self.shared.protocol.get()
    }

    /// Whether the link is up and its peer is not suspected to be gone. Cheap enough for every request.
    pub fn is_usable(&self) -> bool {
        self.shared.is_up.get() && !self.shared.is_suspect.get()
    }

    /// The state, for display.
    pub fn state(&self) -> LinkState {
        self.shared.state.borrow().clone()
    }

    /// How long the peer takes to answer reads and pings.
    pub fn latency(&self) -> Latency {
        self.shared.reads.borrow().latency()
    }

    /// How long the peer takes to apply a record. Kept apart from reads, because it includes waiting for a disk.
    pub fn apply_latency(&self) -> Latency {
        self.shared.applies.borrow().latency()
    }

    /// The calls with neither reply nor failure, including those that their callers dropped.
    pub fn in_flight(&self) -> usize {
        self.shared.calls.borrow().len()
    }

    /// The counters.
    pub fn counts(&self) -> LinkCounts {
        let mut counts = *self.shared.counts.borrow();
        counts.bytes_out += self.shared.outbox.borrow().as_ref().map_or(0, |outbox| outbox.written());
        counts
    }

    /// How long its answered calls took.
    pub fn call_metrics(&self) -> Arc<CallMetrics> {
        Arc::clone(&self.shared.call_metrics)
    }

    /// Ends the link for good: its node is no member any more.
    pub fn end(&self) {
        let (since, reason) = (self.shared.parts.clock.mono(), "no member any more".to_owned());
        self.task.abort();
        self.shared.go_down(&End::Dropped);
        self.shared.state.replace(LinkState::Down { since, reason });
    }

    /// Tries to connect at once if the link is down, because the peer was heard from.
    pub fn probe_now(&self) {
        self.shared.attempt.set(0);
        self.shared.probe.notify_waiters();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.go_down(&End::Dropped);
    }
}

/// A call under way. It must not be polled again after it has returned its outcome.
#[must_use = "dropping a call forgets its reply"]
pub struct Call {
    slot: Rc<Slot>,
}

impl Future for Call {
    type Output = Result<Reply, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        self.slot.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// The place for a call's outcome.
#[derive(Default)]
struct Slot {
    outcome: Cell<Option<Result<Reply, CallError>>>,
    waker: Cell<Option<Waker>>,
}

impl Slot {
    fn fill(&self, outcome: Result<Reply, CallError>) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A call in flight.
struct Waiting {
    sent: Duration,
    due: Duration,
    /// The kind of the reply, unless it is a refusal.
    expected: u8,
    class: LatencyClass,
    kind: CallKind,
    slot: Rc<Slot>,
}

/// The latency that a call's duration is a sample of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LatencyClass {
    Read,
    Apply,
    /// Neither: the duration depends on the amount of work.
    Other,
}

impl LatencyClass {
    fn of(request: &Request) -> Self {
        match request {
            Request::Get { .. } | Request::Ping { .. } => Self::Read,
            Request::Apply { .. } => Self::Apply,
            _ => Self::Other,
        }
    }
}

/// A silence: no byte has come since some call.
#[derive(Clone, Copy)]
struct Silence {
    /// When the peer could first have been heard: when the first such call was sent, or when the peer last accepted
    /// bytes of a long message.
    since: Duration,
    /// The earliest deadline of such calls.
    due: Duration,
}

/// A connection that both sides have accepted.
struct Opened {
    stream: BoxedStream,
    accepted: Accepted,
    /// What this node could prove when it was opened.
    known: Known,
}

/// The state that a link and its task share. No borrow is held while a slot gets its outcome or the observer is called.
struct Shared {
    parts: LinkParts,
    state: RefCell<LinkState>,
    is_up: Cell<bool>,
    is_suspect: Cell<bool>,
    /// The version of the protocol that the connection speaks.
    protocol: Cell<u16>,
    /// The epoch that the peer was told last on the connection, which begins with 0.
    epoch_told: Cell<Epoch>,
    silence: Cell<Option<Silence>>,
    /// The connection's outbox while the link is up.
    outbox: RefCell<Option<Rc<Outbox>>>,
    /// Calls in flight by number, which is the order in which they were sent.
    calls: RefCell<BTreeMap<u64, Waiting>>,
    /// The number of the next call; its lower half is its id in frames.
    next: Cell<u64>,
    /// A lower bound of all calls' deadlines.
    earliest_due: Cell<Duration>,
    /// How many bytes the connection had written at the last check.
    written_seen: Cell<u64>,
    /// When bytes were last read.
    heard: Cell<Duration>,
    /// Notified when there is something to watch.
    busy: Notify,
    /// Attempts to connect since the last success.
    attempt: Cell<u32>,
    probe: Notify,
    reads: RefCell<Estimator>,
    applies: RefCell<Estimator>,
    counts: RefCell<LinkCounts>,
    call_metrics: Arc<CallMetrics>,
}

impl Shared {
    fn new(parts: LinkParts) -> Self {
        let state = LinkState::Connecting { since: parts.clock.mono() };
        Self {
            parts,
            state: RefCell::new(state),
            is_up: Cell::new(false),
            is_suspect: Cell::new(false),
            protocol: Cell::new(0),
            epoch_told: Cell::new(Epoch(0)),
            silence: Cell::new(None),
            outbox: RefCell::default(),
            calls: RefCell::default(),
            next: Cell::new(0),
            earliest_due: Cell::new(Duration::MAX),
            written_seen: Cell::new(0),
            heard: Cell::new(Duration::ZERO),
            busy: Notify::new(),
            attempt: Cell::new(0),
            probe: Notify::new(),
            reads: RefCell::default(),
            applies: RefCell::default(),
            counts: RefCell::default(),
            call_metrics: Arc::default(),
        }
    }

    /// Connects and stays connected, forever.
    async fn run(self: Rc<Self>) {
        loop {
            match self.connect().await {
                Ok(opened) => self.stay(opened).await,
                Err(error) => self.note_refusal(&error),
            }
            self.pause().await;
        }
    }

    /// One attempt, bounded by [`CONNECT_TIMEOUT`].
    async fn connect(&self) -> Result<Opened, ConnectError> {
        let LinkParts { authority, connector, hello, peer, observer, auth, rng, .. } = &self.parts;
        let known = auth.known();
        let attempt = async {
            let failed = |source| ConnectError::Io { attempted: "connect", source };
            let mut stream = connector.connect(authority).await.map_err(failed)?;
            let ours = hello();
            let admit = |theirs: &Hello| observer.admit(&ours, theirs);
            let offer = auth.offer(&ours, *peer, &**rng);
            let proving = (&**auth, offer.as_ref());
            let accepted = handshake::ask(&mut stream, authority, (&ours, &admit), *peer, proving).await?;
            Ok(Opened { stream, accepted, known })
        };
        let timed_out = |_| Err(ConnectError::TimedOut { after: CONNECT_TIMEOUT });
        time::timeout(CONNECT_TIMEOUT, attempt).await.unwrap_or_else(timed_out)
    }

    /// Serves a connection until its end. When the secrets change, another connection takes its place.
    async fn stay(self: &Rc<Self>, opened: Opened) {
        let begun = self.parts.clock.mono();
        let Opened { stream, accepted: Accepted { theirs, already_read, mut secret }, mut known } = opened;
        let (mut pump, mut outbox) = self.pump(stream, already_read);
        let is_midway = Cell::new(false);
        // The link goes down even if the task is dropped with the thread's `LocalSet`.
        let _downfall = Downfall { shared: self };
        self.go_up(begun, Rc::clone(&outbox), &theirs);
        let end = loop {
            let renewed = tokio::select! {
                // Received bytes are handled before silence is judged.
                biased;
                end = pump.run(&**self, &is_midway) => break end,
                end = self.watch() => break end,
                renewed = self.renew(secret.as_ref(), &known) => renewed,
            };
            let Some(renewed) = renewed else { break End::Withdrawn };
            secret = renewed.accepted.secret;
            known = renewed.known;
            self.protocol.set(renewed.accepted.theirs.protocol);
            self.epoch_told.set(Epoch(0));
            let (new_pump, new_outbox) = self.pump(renewed.stream, renewed.accepted.already_read);
            self.outbox.replace(Some(Rc::clone(&new_outbox)));
            self.written_seen.set(0);
            let old = (mem::replace(&mut pump, new_pump), mem::replace(&mut outbox, new_outbox));
            self.finish(old);
        };
        if end.is_corrupt() {
            if let Some(left_out) = self.parts.limits.bad_frames.admit(self.parts.clock.mono()) {
                tracing::warn!(peer = %self.parts.peer, reason = %end, left_out, "a peer sent a malformed message: the connection to it was closed");
            }
        } else {
            tracing::debug!(peer = %self.parts.peer, reason = %end, "the connection to a peer ended");
        }
        if self.parts.clock.mono().saturating_sub(begun) >= BACKOFF_MAX {
            self.attempt.set(0);
        }
        self.go_down(&end);
    }

    fn pump(&self, stream: BoxedStream, already_read: Bytes) -> (Pump<BoxedStream>, Rc<Outbox>) {
        let outbox = Rc::new(Outbox::default());
        let pump = Pump::new(stream, already_read, Rc::clone(&outbox), &self.parts.limits, FRAME_BYTES_MAX);
        (pump, outbox)
    }

    /// Waits until the node's certificates have changed since `known`, or its secrets have and `used` is not the first of
    /// them. Then opens a connection that is proved by what the nodes have now. The present connection goes on meanwhile,
    /// so that no call fails because a secret or a certificate is exchanged. Returns none if it must end, because what it
    /// was proved by may hold no more and the nodes cannot prove each other anything else.
    async fn renew(&self, used: Option<&Secret>, known: &Known) -> Option<Opened> {
        let auth = &self.parts.auth;
        let mut now = auth.changed_from(known).await;
        while now.certificates == known.certificates && used.is_some_and(|used| now.secrets.is_first(used)) {
            now = auth.changed_from(&now).await;
        }
        let are_certificates_new = now.certificates != known.certificates;
        let begun = self.parts.clock.mono();
        loop {
            let error = match self.connect().await {
                Ok(opened) => return Some(opened),
                Err(error) => error,
            };
            tracing::debug!(peer = %self.parts.peer, %error, "cannot prove by a new peer secret or certificate yet");
            let is_withdrawn =
                are_certificates_new || used.is_some_and(|used| !auth.secrets().contains(used));
            if is_withdrawn && self.parts.clock.mono().saturating_sub(begun) >= RENEW_MAX {
                return None;
            }
            time::sleep(RENEW_MAX).await;
        }
    }

    /// Lets the calls on a connection that was replaced end there. Each call has a deadline, so the connection ends.
    fn finish(self: &Rc<Self>, (mut pump, outbox): (Pump<BoxedStream>, Rc<Outbox>)) {
        let (shared, first_after) = (Rc::clone(self), self.next.get());
        tokio::task::spawn_local(async move {
            let are_left = || shared.calls.borrow().range(..first_after).next().is_some();
            let answered = async {
                while are_left() {
                    time::sleep(TICK).await;
                }
            };
            let is_midway = Cell::new(false);
            tokio::select! {
                biased;
                _ = pump.run(&*shared, &is_midway) => {
                    let lost: Vec<Waiting> =
                        shared.calls.borrow_mut().extract_if(..first_after, |_, _| true).map(|(_, call)| call).collect();
                    shared.counts.borrow_mut().calls_lost += lost.len() as u64;
                    for call in lost {
                        call.slot.fill(Err(CallError::Lost));
                    }
                }
                () = answered => {}
            }
            shared.counts.borrow_mut().bytes_out += outbox.written();
        });
    }

    fn go_up(&self, since: Duration, outbox: Rc<Outbox>, theirs: &Hello) {
        self.silence.set(None);
        self.is_suspect.set(false);
        self.written_seen.set(0);
        self.heard.set(since);
        self.protocol.set(theirs.protocol);
        self.epoch_told.set(Epoch(0));
        self.counts.borrow_mut().connects += 1;
        self.outbox.replace(Some(outbox));
        self.state.replace(LinkState::Up { since });
        self.is_up.set(true);
        self.parts.observer.connected(theirs);
    }

    /// Fails the calls in flight; does nothing when the link is not up.
    fn go_down(&self, end: &End) {
        if !self.is_up.replace(false) {
            return;
        }
        let since = self.parts.clock.mono();
        self.state.replace(LinkState::Down { since, reason: end.to_string() });
        let written = self.outbox.take().map_or(0, |outbox| outbox.written());
        let calls = mem::take(&mut *self.calls.borrow_mut());
        self.earliest_due.set(Duration::MAX);
        let mut counts = self.counts.borrow_mut();
        counts.bytes_out += written;
        counts.calls_lost += calls.len() as u64;
        drop(counts);
        for call in calls.into_values() {
            call.slot.fill(Err(CallError::Lost));
        }
        let reason = (!matches!(end, End::Dropped)).then(|| end.to_string());
        self.parts.observer.disconnected(reason.as_deref());
    }

    /// Records why an attempt failed. The link counts as down since the first failed attempt, or since it was up.
    fn note_refusal(&self, error: &ConnectError) {
        tracing::debug!(peer = %self.parts.peer, %error, "cannot connect to a peer");
        self.counts.borrow_mut().connects_failed += 1;
        let mut state = self.state.borrow_mut();
        let since = match *state {
            LinkState::Down { since, .. } | LinkState::Connecting { since } | LinkState::Up { since } => {
                since
            }
        };
        *state = LinkState::Down { since, reason: error.to_string() };
        drop(state);
        self.parts.observer.failed(&error.to_string(), error.setback());
    }

    /// Waits a random time before the next attempt, up to a bound that doubles, so that nodes do not retry in step.
    async fn pause(&self) {
        let attempt = self.attempt.get();
        self.attempt.set(attempt.saturating_add(1));
        let bound = BACKOFF_MIN.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
        let mut chance = [0; 4];
        self.parts.rng.fill(&mut chance);
        let share = f64::from(u32::from_be_bytes(chance)) / f64::from(u32::MAX);
        tokio::select! {
            biased;
            () = self.probe.notified() => {}
            () = time::sleep(bound.mul_f64(share)) => {}
        }
    }

    fn call(&self, request: &Request, timeout: Duration, of: (Epoch, Option<TraceContext>)) -> Call {
        let slot = Rc::new(Slot::default());
        match self.send(request, timeout, of, &slot) {
            Ok(()) => self.counts.borrow_mut().calls += 1,
            Err(reason) => {
                self.counts.borrow_mut().calls_not_sent += 1;
                slot.fill(Err(CallError::NotSent { reason }));
            }
        }
        Call { slot }
    }

    fn send(
        &self,
        request: &Request,
        timeout: Duration,
        (epoch, trace): (Epoch, Option<TraceContext>),
        slot: &Rc<Slot>,
    ) -> Result<(), Unsent> {
        Request::check_spoken(request.kind(), self.protocol.get())?;
        let outbox = self.outbox.borrow();
        let outbox = outbox.as_ref().ok_or(Unsent::Down)?;
        let mut calls = self.calls.borrow_mut();
        if calls.len() >= CALLS_IN_FLIGHT_MAX {
            return Err(Unsent::TooManyCalls);
        }
        if request.is_of_epoch() && epoch != self.epoch_told.get() {
            // Unlike other notes it must not be left out: the request would be taken for one of an older epoch.
            let note = Note::Epoch(epoch);
            Note::check_spoken(note.kind(), self.protocol.get())?;
            outbox.push(note.kind(), frame_id(self.next.get()), true, |to| note.encode(to))?;
            self.next.set(self.next.get() + 1);
            self.epoch_told.set(epoch);
        }
        let number = self.next.get();
        if let Some(trace) = trace {
            self.note(outbox, number, &Note::Trace(trace));
        }
        outbox.push(request.kind(), frame_id(number), true, |to| request.encode(timeout, to))?;
        self.next.set(number + 1);
        let sent = self.parts.clock.mono();
        let due = sent.saturating_add(timeout);
        if calls.is_empty() && self.silence.get().is_none() {
            self.busy.notify_one();
        }
        let (expected, class, slot) = (request.reply_kind(), LatencyClass::of(request), Rc::clone(slot));
        // A call with much work to do need not be answered before its deadline.
        let since = if class == LatencyClass::Other { due } else { sent };
        let silence = self.silence.get().unwrap_or(Silence { since, due });
        self.silence.set(Some(Silence { since: silence.since.min(since), due: silence.due.min(due) }));
        self.earliest_due.set(self.earliest_due.get().min(due));
        calls.insert(number, Waiting { sent, due, expected, class, kind: request.call_kind(), slot });
        Ok(())
    }

    /// Sends a note about the request that follows with this number. A peer that does not know it, or to which too much
    /// waits to be written, gets the request without.
    fn note(&self, outbox: &Outbox, number: u64, note: &Note) {
        if Note::check_spoken(note.kind(), self.protocol.get()).is_ok()
            && outbox.push(note.kind(), frame_id(number), true, |to| note.encode(to)).is_ok()
        {
            // Should the request not be sent, the next one has another number: the note is not its own.
            self.next.set(number + 1);
        }
    }

    /// Checks every [`TICK`] while there are calls to watch. Returns when the connection is to end.
    async fn watch(&self) -> End {
        loop {
            if self.calls.borrow().is_empty() && self.silence.get().is_none() {
                self.busy.notified().await;
            } else {
                time::sleep(TICK).await;
                if self.look(self.parts.clock.mono()) {
                    return End::Silent;
                }
            }
        }
    }

    /// Fails the calls that are due. Returns whether the silence is so long that the connection is to end.
    fn look(&self, now: Duration) -> bool {
        self.fail_due(now);
        let (waiting, written) =
            self.outbox.borrow().as_ref().map_or((0, 0), |outbox| (outbox.waiting(), outbox.written()));
        let is_moving = self.written_seen.replace(written) != written;
        let Some(mut silence) = self.silence.get() else { return false };
        if is_moving && waiting > 0 {
            // The pump writes all bytes that the stream accepts, so the peer is in the middle of a long message.
            silence.since = silence.since.max(now);
            self.silence.set(Some(silence));
        }
        let slowness = self.reads.borrow().latency().p95.max(self.applies.borrow().latency().p95);
        let bound = (SILENCE_MIN + slowness.saturating_mul(4)).min(SILENCE_MAX);
        let is_suspect = now.saturating_sub(silence.since) > bound;
        self.is_suspect.set(is_suspect);
        is_suspect && now >= silence.due
    }

    fn fail_due(&self, now: Duration) {
        if now < self.earliest_due.get() {
            return;
        }
        let mut calls = self.calls.borrow_mut();
        let due: Vec<Waiting> =
            calls.extract_if(.., |_, call| call.due <= now).map(|(_, call)| call).collect();
        let earliest = calls.values().map(|call| call.due).min();
        drop(calls);
        self.earliest_due.set(earliest.unwrap_or(Duration::MAX));
        self.counts.borrow_mut().calls_timed_out += due.len() as u64;
        let silent_since = self.silence.get().map_or(Duration::MAX, |silence| silence.since);
        for call in due {
            // The silence of a peer that is gone is not a latency: recording it would only delay the detection of the
            // next silence.
            if call.sent < silent_since {
                self.measure(&call, now);
            }
            call.slot.fill(Err(CallError::TimedOut));
        }
    }

    fn measure(&self, call: &Waiting, now: Duration) {
        let estimator = match call.class {
            LatencyClass::Read => &self.reads,
            LatencyClass::Apply => &self.applies,
            LatencyClass::Other => return,
        };
        estimator.borrow_mut().record(now.saturating_sub(call.sent));
    }

    /// The number of the call that has `id` in frames; the call is in flight or over.
    fn number_of(&self, id: u32) -> Option<u64> {
        let next = self.next.get();
        next.checked_sub(u64::from(frame_id(next).wrapping_sub(id)))
    }
}

impl Inbox for Shared {
    fn is_open(&self) -> bool {
        true
    }

    fn heard(&self, bytes: usize) {
        self.heard.set(self.parts.clock.mono());
        self.silence.set(None);
        self.is_suspect.set(false);
        self.counts.borrow_mut().bytes_in += bytes as u64;
    }

    fn frame(&self, frame: Frame) -> Result<(), MessageError> {
        let call = self.number_of(frame.id).and_then(|number| self.calls.borrow_mut().remove(&number));
        // A reply after its deadline has no caller any more.
        let Some(call) = call else { return Reply::check_kind(frame.kind) };
        if frame.passed_over.is_some() {
            self.counts.borrow_mut().calls_lost += 1;
            call.slot.fill(Err(CallError::NoMemory));
            return Ok(());
        }
        match Reply::decode(frame, call.expected) {
            Ok(Reply::Refused { code, detail }) => {
                self.counts.borrow_mut().calls_refused += 1;
                call.slot.fill(Err(CallError::Refused { code, detail }));
            }
            Ok(reply) => {
                waits::note(Wait::PeerReply, self.heard.get().saturating_sub(call.sent));
                self.measure(&call, self.heard.get());
                self.call_metrics.answered(call.kind, self.heard.get().saturating_sub(call.sent));
                // The only place where the timestamps in a peer's replies are checked.
                let believed = self.parts.limits.timestamps.check(reply.newest());
                call.slot.fill(believed.map(|()| reply).map_err(CallError::TooFarAhead));
            }
            Err(error) => {
                self.counts.borrow_mut().calls_lost += 1;
                call.slot.fill(Err(CallError::Lost));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Takes the link down when dropped.
struct Downfall<'a> {
    shared: &'a Shared,
}

impl Drop for Downfall<'_> {
    fn drop(&mut self) {
        self.shared.go_down(&End::Dropped);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "4 billion later calls must pass before an id comes again"
)]
fn frame_id(number: u64) -> u32 {
    number as u32
}
