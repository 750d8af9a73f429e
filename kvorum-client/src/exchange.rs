//! One operation with the cluster: attempts, one after the other, until one succeeds or no further one is
//! allowed.
//!
//! An attempt is: take a connection, send the request, wait for the head of the answer, read the answer. An
//! error in any of these is a [`Failure`], which says whether the node may have got the request; `retry`
//! decides what happens next. A hedged read may have two attempts at once.

use crate::answer::{Answer, is_framed, missed, read_message, read_whole, retry_after};
use crate::config::RetryPolicy;
use crate::error::Error;
use crate::flight::{Flight, Place};
use crate::hedging::Budget;
use crate::nodes::{Nodes, suspect};
use crate::operation::{Operation, Replicas};
use crate::pool::{Lease, Node};
use crate::request::Call;
use crate::retry::{Cause, Course, Failure, later};
use bytes::Bytes;
use http::response::Parts;
use http_body::Body;
use hyper::body::Incoming;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The state that all operations of a client share.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) flight: Flight,
    pub(crate) timeout: Duration,
    pub(crate) default_replicas: Option<Replicas>,
    pub(crate) answer_bytes_max: usize,
    pub(crate) policy: RetryPolicy,
    pub(crate) hedging: Option<Budget>,
}

/// An answer whose head has been read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: Arc<str>,
    pub(crate) parts: Parts,
    pub(crate) body: Incoming,
    pub(crate) lease: Lease,
}

/// The time limits of one attempt.
#[derive(Debug, Clone, Copy)]
struct Terms {
    deadline: Instant,
    /// How long to wait for a free connection, if that is less than until the deadline. Nothing is sent
    /// during this wait, so that another node can always be asked instead.
    connection_patience: Option<Duration>,
    /// How long the answer may take to begin, if that is less than until the deadline.
    patience: Option<Duration>,
}

impl Exchange {
    /// Performs `call` and reads its whole answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes its connections; a write may have taken effect.
    pub(crate) async fn whole(&self, call: &Call) -> Result<Answer, Error> {
        let (mut course, _place) = self.begin(call).await?;
        let mut is_first = true;
        loop {
            let attempt = match &self.hedging {
                Some(budget) if is_first && call.operation.is_hedgeable() => {
                    self.hedged(call, &mut course, budget).await
                }
                _ => {
                    let (node, terms) = aim(&mut course);
                    self.attempt_whole(call, node, terms).await
                }
            };
            is_first = false;
            match attempt {
                Ok(answer) => return Ok(answer),
                Err(failure) => sleep_until(course.after(failure, Instant::now())?).await,
            }
        }
    }

    /// Performs `call` until its answer begins. The caller reads the answer, and keeps the place in flight
    /// until it has.
    pub(crate) async fn open(&self, call: &Call) -> Result<(Opened, Place), Error> {
        let (mut course, place) = self.begin(call).await?;
        loop {
            let (node, terms) = aim(&mut course);
            match self.attempt(call, node, terms).await {
                Ok(opened) => return Ok((opened, place)),
                Err(failure) => sleep_until(course.after(failure, Instant::now())?).await,
            }
        }
    }

    async fn begin(&self, call: &Call) -> Result<(Course, Place), Error> {
        let timeout = call.timeout.unwrap_or(self.timeout);
        // Its repetition would be judged against the write itself, or count twice.
        let repeat_unknown_writes = self.policy.repeat_unknown_writes && !call.is_once;
        let policy = RetryPolicy { repeat_unknown_writes, ..self.policy };
        let course = Course::begin(call, policy, Arc::clone(&self.nodes), timeout, Instant::now());
        match self.flight.enter(course.deadline()).await {
            Ok(place) => Ok((course, place)),
            Err(no_place) => Err(course.without_place(no_place, self.flight.places_max())),
        }
    }

    /// Makes the first attempt of a read and, when it takes long and the budget allows it, a second one beside it. The
    /// first success wins.
    async fn hedged(&self, call: &Call, course: &mut Course, budget: &Budget) -> Result<Answer, Failure> {
        budget.earn();
        let (node, terms) = aim(course);
        let mut first = pin!(self.attempt_whole(call, node, terms));
        if let Ok(done) = timeout_at(later(Instant::now(), budget.after()), &mut first).await {
            return done;
        }
        if !course.has_other(Instant::now()) || !budget.spend() {
            return first.await;
        }
        let (node, terms) = aim(course);
        let mut second = pin!(self.attempt_whole(call, node, terms));
        tokio::select! {
            done = &mut first => if done.is_ok() { done } else { second.await },
            done = &mut second => if done.is_ok() { done } else { first.await },
        }
    }

    async fn attempt_whole(
        &self,
        call: &Call,
        node: Option<Arc<Node>>,
        terms: Terms,
    ) -> Result<Answer, Failure> {
        let asked = node.clone();
        let Opened { node, parts, mut body, lease } = self.attempt(call, node, terms).await?;
        let body = if matches!(call.operation, Operation::Add { .. }) {
            // The number is added; without its text this client does not know it.
            let whole = read_whole(&mut body, self.answer_bytes_max, terms.deadline).await;
            let whole = whole.map_err(|_| {
                let message = "the number did not arrive".to_owned();
                Failure { node: asked, ..Failure::sent(Cause::Protocol { message }) }
            })?;
            lease.recycle();
            whole
        } else if call.operation.is_write() {
            // The head is the whole answer: the replicas have confirmed, whatever happens to this connection.
            // The connection is used again if the body is empty, as the contract says.
            if body.is_end_stream() {
                lease.recycle();
            }
            Bytes::new()
        } else {
            let whole = read_whole(&mut body, self.answer_bytes_max, terms.deadline).await;
            let whole = whole.map_err(|cause| Failure { node: asked, ..Failure::sent(cause) })?;
            lease.recycle();
            whole
        };
        let Parts { status, headers, .. } = parts;
        Ok(Answer { operation: call.operation.clone(), node, status: status.as_u16(), headers, body })
    }

    /// Makes one attempt, up to the head of an answer that is not a failure. A failure also updates the
    /// health of its node.
    async fn attempt(&self, call: &Call, node: Option<Arc<Node>>, terms: Terms) -> Result<Opened, Failure> {
        let Some(node) = node else {
            return Err(Failure::unsent(Cause::Connect("the client has no node".into())));
        };
        let begun = Instant::now();
        let failure = match self.send(call, &node, terms).await {
            Ok(opened) => return Ok(opened),
            Err(failure) => failure.at(&node),
        };
        if failure.is_node_suspect(begun.elapsed(), self.policy.read_patience) {
            suspect(&node);
        }
        if let Cause::Status { code: 503, retry_after: Some(wait), .. } = failure.cause {
            node.rest(later(Instant::now(), wait));
        }
        Err(failure)
    }

    async fn send(&self, call: &Call, node: &Arc<Node>, terms: Terms) -> Result<Opened, Failure> {
        let Terms { deadline, connection_patience, patience } = terms;
        let by = |patience: Option<Duration>| {
            patience.map_or(deadline, |patience| deadline.min(later(Instant::now(), patience)))
        };
        let mut lease = match (node.checkout(by(connection_patience)).await, connection_patience) {
            (Ok(lease), _) => lease,
            (Err(Cause::DeadlinePassed { waiting_for }), Some(after)) => {
                return Err(Failure::unsent(Cause::Connect(format!("no {waiting_for} in {after:?}").into())));
            }
            (Err(cause), _) => return Err(Failure::unsent(cause)),
        };
        let head_by = by(patience);
        let mut request = call.request(node);
        let response = loop {
            let mut lost = match timeout_at(head_by, lease.send(request)).await {
                Ok(Ok(response)) => break response,
                Ok(Err(lost)) => lost,
                Err(_) => {
                    let late = Cause::DeadlinePassed { waiting_for: "answer" };
                    return Err(Failure::sent(patience.map_or(late, |after| Cause::Impatient { after })));
                }
            };
            match lost.take_message() {
                // The node had closed the idle connection, so the request is sent over a new one. This happens only
                // once, because the new connection has not been used before.
                Some(unsent) if lease.is_reused() => {
                    lease.renew(deadline).await.map_err(Failure::unsent)?;
                    request = unsent;
                }
                Some(_) => return Err(Failure::unsent(Cause::Lost(lost.into_error().into()))),
                None => return Err(Failure::sent(unanswered(lost.into_error()))),
            }
        };
        self.nodes.notice(response.headers(), node);
        let status = response.status().as_u16();
        if !call.expects(status) {
            let headers = response.headers().clone();
            let (message, is_whole) = read_message(response, deadline).await;
            if is_whole {
                lease.recycle();
            }
            let missed = missed(&headers, &message, call.wanted.replicas);
            let retry_after = retry_after(&headers);
            return Err(Failure::sent(Cause::Status { code: status, message, retry_after, missed }));
        }
        if !call.operation.is_write() && !is_framed(&response) {
            let message =
                "the answer has neither a length nor chunks: its end cannot be told from a cut".to_owned();
            return Err(Failure::sent(Cause::Protocol { message }));
        }
        let (parts, body) = response.into_parts();
        Ok(Opened { node: node.name(), parts, body, lease })
    }
}

/// Begins an attempt: chooses its node and its time limits.
fn aim(course: &mut Course) -> (Option<Arc<Node>>, Terms) {
    let now = Instant::now();
    let node = course.aim(now);
    let (connection_patience, patience) = course.patience(now);
    (node, Terms { deadline: course.deadline(), connection_patience, patience })
}

/// Why a request that was sent has no answer.
fn unanswered(error: hyper::Error) -> Cause {
    if error.is_parse() { Cause::Protocol { message: error.to_string() } } else { Cause::Lost(error.into()) }
}
