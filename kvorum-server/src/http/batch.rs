//! Batches: one request with an operation a line, answered by a line each, in order. Not atomic: each line is a request of
//! its own, with its own outcome.
//!
//! The request is read to its end before its first line is carried out, so a batch that is too long does nothing. It counts
//! towards the budget of bodies until its last line is answered. At most [`LINES_IN_FLIGHT_MAX`] lines are under way; lines of one
//! key one after the other. A client that does not read stops the batch.

use super::access::LineJudge;
use super::batch_line::{Answer, Line, Op};
use super::body::{self, Cut, ReplyBody, Reserved, read_value};
use super::by_token::User;
use super::connection::Connection;
use super::error::Failure;
use super::handler::{Service, ThreadState};
use super::target;
use super::turns::{NoTurn, Turns};
use super::values;
use crate::coordinator::Coordinator;
use crate::metrics::{Operation, ThreadMetrics};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, Version};
use http_body::Body;
use kvorum_core::Key;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The longest batch, in bytes.
pub(super) const BATCH_BYTES_MAX: u64 = 64 << 20;
/// The most lines of a batch.
pub(super) const LINES_LEN_MAX: usize = 10_000;
/// Lines of one batch under way at a time. Links send what is queued at once in one go, so these few fill their frames.
const LINES_IN_FLIGHT_MAX: usize = 32;
/// Answers that may wait for the client.
const ANSWERS_AHEAD: usize = 4;

/// Carries out a batch.
pub(super) async fn batch<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
) -> Result<Response<ReplyBody>, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    target::parse_nothing(request.uri().query())?;
    if request.version() != Version::HTTP_11 {
        // Without chunks a client could not tell a complete answer from a truncated one.
        return Err(Failure::malformed("a batch needs HTTP/1.1"));
    }
    let coordinator = Rc::clone(state.coordinator()?);
    let judge = LineJudge::of(state, connection, request.headers());
    let announced = body::announced(request.headers())?;
    if announced.is_some_and(|length| length > BATCH_BYTES_MAX) {
        return Err(Failure::long_batch(BATCH_BYTES_MAX, LINES_LEN_MAX));
    }
    let (is_lost, budget) = (|| connection.is_lost(), &state.service.body_budget);
    let reading =
        read_value(request.into_body(), announced, BATCH_BYTES_MAX, budget, is_lost, async || Ok(()));
    let (body, reserved) = reading.await.map_err(|failure| match failure.status() {
        http::StatusCode::PAYLOAD_TOO_LARGE => Failure::long_batch(BATCH_BYTES_MAX, LINES_LEN_MAX),
        _ => failure,
    })?;
    if lines(&body).count() > LINES_LEN_MAX {
        return Err(Failure::long_batch(BATCH_BYTES_MAX, LINES_LEN_MAX));
    }
    let (sender, answers) = mpsc::channel(ANSWERS_AHEAD);
    let (service, metrics) = (Arc::clone(&state.service), Arc::clone(&state.metrics));
    let (user, turns) = (connection.user(), Rc::clone(&state.turns));
    let run = Run { service, metrics, coordinator, user, turns, judge };
    tokio::task::spawn_local(async move {
        run.all(&body, sender).await;
        drop(reserved);
    });
    let mut response =
        Response::new(ReplyBody::Batch(BatchBody { answers, rest: Bytes::new(), reserved: None }));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// The lines that are not empty.
fn lines(body: &Bytes) -> impl Iterator<Item = Bytes> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    lines.map(|line| body.slice_ref(line))
}

/// The answers of a batch, as they come.
pub struct BatchBody {
    answers: mpsc::Receiver<Item>,
    /// The part of the latest answer that has not been handed out, and its reservation.
    rest: Bytes,
    reserved: Option<Reserved>,
}

/// A message from the batch's task. A channel that closes without an `End` means that the rest is missing.
enum Item {
    Answer(Rendered),
    End,
}

impl BatchBody {
    /// The next bytes of the answers, at most `bytes_max`.
    pub(super) fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<Option<Result<Bytes, Cut>>> {
        while self.rest.is_empty() {
            match ready!(self.answers.poll_recv(cx)) {
                Some(Item::Answer(rendered)) => (self.rest, self.reserved) = rendered,
                Some(Item::End) => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Cut))),
            }
        }
        Poll::Ready(Some(Ok(self.rest.split_to(self.rest.len().min(bytes_max)))))
    }
}

/// An answer's line, and its reservation in the budget if it is long.
type Rendered = (Bytes, Option<Reserved>);

/// What the lines of a batch are carried out with.
struct Run {
    service: Arc<Service>,
    metrics: Arc<ThreadMetrics>,
    coordinator: Rc<Coordinator>,
    user: User,
    turns: Rc<Turns>,
    judge: LineJudge,
}

/// A line under way.
struct UnderWay {
    /// None for a line that is answered without being carried out.
    key: Option<Key>,
    answer: JoinHandle<Rendered>,
}

impl Run {
    /// Carries out all lines; ends early when the client has gone. Lines that have begun go on.
    async fn all(mut self, body: &Bytes, sender: mpsc::Sender<Item>) {
        let mut under_way: VecDeque<UnderWay> = VecDeque::with_capacity(LINES_IN_FLIGHT_MAX);
        for line in lines(body) {
            let line = self.judged(&line);
            let key = line.as_ref().ok().map(|line| line.key.clone());
            // Until an earlier line of the same key is done, the outcome of this one would depend on which comes first.
            let must_wait = |under_way: &VecDeque<UnderWay>| {
                let is_same = |earlier: &UnderWay| key.is_some() && earlier.key == key;
                under_way.len() >= LINES_IN_FLIGHT_MAX || under_way.iter().any(is_same)
            };
            while must_wait(&under_way) {
                if !answer_first(&mut under_way, &sender).await {
                    return;
                }
            }
            under_way.push_back(UnderWay { key, answer: self.begin(line) });
        }
        while !under_way.is_empty() {
            if !answer_first(&mut under_way, &sender).await {
                return;
            }
        }
        // The receiver may be gone by now.
        let _ = sender.send(Item::End).await;
    }

    /// The line, if it can be read and is allowed.
    fn judged(&mut self, line: &Bytes) -> Result<Line, Failure> {
        let line = Line::parse(line, &self.coordinator, self.service.limits.value_bytes_max)?;
        let clock = &self.service.clock;
        self.judge.check(line.op.right(), &line.key, clock.wall(), clock.mono())?;
        Ok(line)
    }

    /// Begins a line on a task of its own; one that is refused is answered there.
    fn begin(&self, line: Result<Line, Failure>) -> JoinHandle<Rendered> {
        let (service, metrics) = (Arc::clone(&self.service), Arc::clone(&self.metrics));
        let (coordinator, user) = (Rc::clone(&self.coordinator), self.user.clone());
        let turns = Rc::clone(&self.turns);
        tokio::task::spawn_local(async move {
            let begun = service.clock.mono();
            let operation = match &line {
                Ok(Line { op: Op::Get, .. }) => Operation::Get,
                Ok(Line { op: Op::Put, .. }) => Operation::Put,
                Ok(Line { op: Op::Delete, .. }) => Operation::Delete,
                Err(_) => Operation::Other,
            };
            let ran = match line {
                Ok(line) => {
                    metrics.partitions.note(coordinator.shared().cluster.partition_of(&line.key).0);
                    run(line, &coordinator, &service, user, &turns).await
                }
                Err(failure) => Err(failure),
            };
            let rendered = ran.and_then(|answer| {
                let status = answer.status();
                let line = answer.into_bytes();
                let reserved = ReplyBody::reserve(line.len(), &service.body_budget)?;
                Ok((status, line, reserved))
            });
            let (status, line, reserved) = rendered.unwrap_or_else(|failure| {
                let answer = failure.into_line(|| service.note_fault());
                (answer.status(), answer.into_bytes(), None)
            });
            metrics.answered(operation, status, service.clock.mono().saturating_sub(begun));
            (line, reserved)
        })
    }
}

async fn run(
    line: Line,
    coordinator: &Rc<Coordinator>,
    service: &Service,
    user: User,
    turns: &Turns,
) -> Result<Answer, Failure> {
    // A large value waits for its turn, as that of a PUT does.
    let wait = coordinator.request_timeout();
    let _turn = values::admit(user.clone(), service, line.value_bytes(), wait).await?;
    // And every line for that of a request of its token.
    if user.is_some() {
        turns.take(user).await.map_err(|NoTurn| Failure::no_turn())?;
    }
    line.run(coordinator).await
}

/// Hands the answer of the line that began first to the client. Returns false where the batch cannot go on.
async fn answer_first(under_way: &mut VecDeque<UnderWay>, sender: &mpsc::Sender<Item>) -> bool {
    let Some(first) = under_way.pop_front() else { return true };
    // A task that panicked has no answer: the client must not take another line for it.
    let Ok(rendered) = first.answer.await else { return false };
    sender.send(Item::Answer(rendered)).await.is_ok()
}
