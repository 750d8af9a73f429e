//! One operation with the cluster: attempts, one after the other, until one succeeds or none is due any more.
//!
//! An attempt is: take a connection, send the request, wait for the head of the answer, read the answer. Whatever goes
//! wrong is a [`Failure`], which says whether the node may have got the request; `retry` decides what it means.

use crate::answer::{Answer, is_framed, read_message, read_whole, retry_after};
use crate::config::RetryPolicy;
use crate::error::Error;
use crate::pool::{Lease, Node};
use crate::request::Call;
use crate::retry::{Cause, Course, Failure};
use bytes::Bytes;
use http::response::Parts;
use http_body::Body;
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// This is what all operations of a client share.
#[derive(Debug)]
pub(crate) struct Exchange {
    nodes: Arc<[Arc<Node>]>,
    timeout: Duration,
    answer_bytes_max: usize,
    policy: RetryPolicy,
    /// How many operations have begun: they take turns over the nodes.
    turn: AtomicUsize,
}

/// This is an answer of which the head has been read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: Arc<str>,
    pub(crate) parts: Parts,
    pub(crate) body: Incoming,
    pub(crate) lease: Lease,
}

impl Exchange {
    pub(crate) fn new(
        nodes: Arc<[Arc<Node>]>,
        timeout: Duration,
        answer_bytes_max: usize,
        policy: RetryPolicy,
    ) -> Self {
        Self { nodes, timeout, answer_bytes_max, policy, turn: AtomicUsize::new(0) }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn answer_bytes_max(&self) -> usize {
        self.answer_bytes_max
    }

    /// Performs `call` and reads its whole answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; a write may have taken effect.
    pub(crate) async fn whole(&self, call: &Call) -> Result<Answer, Error> {
        let mut course = self.begin(call);
        loop {
            let failure = match self.attempt_whole(call, &course).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            sleep_until(course.after(failure, Instant::now())?).await;
        }
    }

    /// Performs `call` until its answer begins; reading it is the caller's.
    pub(crate) async fn open(&self, call: &Call) -> Result<Opened, Error> {
        let mut course = self.begin(call);
        loop {
            let failure = match attempt(call, &course).await {
                Ok(opened) => return Ok(opened),
                Err(failure) => failure,
            };
            sleep_until(course.after(failure, Instant::now())?).await;
        }
    }

    fn begin(&self, call: &Call) -> Course {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let nodes = Arc::clone(&self.nodes);
        Course::begin(call.operation.clone(), self.policy, nodes, self.timeout, turn, Instant::now())
    }

    async fn attempt_whole(&self, call: &Call, course: &Course) -> Result<Answer, Failure> {
        let Opened { node, parts, mut body, lease } = attempt(call, course).await?;
        let body = if call.operation.is_write() {
            // The head is all of the answer: the replicas have confirmed, whatever becomes of this connection. It is
            // used again if its body is the empty one of the contract.
            if body.is_end_stream() {
                lease.recycle();
            }
            Bytes::new()
        } else {
            let whole = read_whole(&mut body, self.answer_bytes_max, course.deadline()).await;
            let whole = whole.map_err(Failure::sent)?;
            lease.recycle();
            whole
        };
        let Parts { status, headers, .. } = parts;
        Ok(Answer { operation: call.operation.clone(), node, status: status.as_u16(), headers, body })
    }
}

/// Makes one attempt, up to the head of an answer that is not a failure.
async fn attempt(call: &Call, course: &Course) -> Result<Opened, Failure> {
    let deadline = course.deadline();
    let Some(node) = course.node() else {
        return Err(Failure::unsent(Cause::Connect("the client has no node".into())));
    };
    let mut lease = node.checkout(deadline).await.map_err(Failure::unsent)?;
    let now = Instant::now();
    let patience = course.patience(now);
    let head_by = patience.map_or(deadline, |patience| deadline.min(now + patience));
    let mut request = call.request(node.host());
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
            // The node had closed the idle connection: as if it had not been there. The new one is not reused, so
            // this is done once.
            Some(unsent) if lease.is_reused() => {
                lease.renew(deadline).await.map_err(Failure::unsent)?;
                request = unsent;
            }
            Some(_) => return Err(Failure::unsent(Cause::Lost(lost.into_error().into()))),
            None => return Err(Failure::sent(unanswered(lost.into_error()))),
        }
    };
    let status = response.status().as_u16();
    if !call.expects(status) {
        let retry_after = retry_after(response.headers());
        let (message, is_whole) = read_message(response, deadline).await;
        if is_whole {
            lease.recycle();
        }
        return Err(Failure::sent(Cause::Status { code: status, message, retry_after }));
    }
    if !call.operation.is_write() && !is_framed(&response) {
        let message =
            "the answer has neither a length nor chunks: its end cannot be told from a cut".to_owned();
        return Err(Failure::sent(Cause::Protocol { message }));
    }
    let (parts, body) = response.into_parts();
    Ok(Opened { node: node.name(), parts, body, lease })
}

/// Why a request that was sent has no answer.
fn unanswered(error: hyper::Error) -> Cause {
    if error.is_parse() { Cause::Protocol { message: error.to_string() } } else { Cause::Lost(error.into()) }
}
