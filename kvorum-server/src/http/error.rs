//! The one place where errors become status codes and lines of text.

use super::batch_line::Answer;
use super::body::ReplyBody;
use super::instant;
use super::routes::Path;
use super::target::TargetError;
use crate::background::WorkerError;
use crate::clock::TooFarAhead;
use crate::coordinator::{ApplyPlanError, CoordinatorError, PlanningError};
use crate::replica::ReplicaError;
use crate::security::Refusal;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, VARY};
use http::{HeaderValue, Response, StatusCode};
use kvorum_core::agreement::Epoch;
use kvorum_core::condition::{ApplyError, TagsError};
use kvorum_core::{Quorum, UnixMillis, Version};
use kvorum_profiler::ProfileError;

/// A failure as the client gets it.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// A further header: `allow`, `etag`, `upgrade` or `www-authenticate`.
    header: Option<(&'static str, String)>,
    /// `ANSWERED/FROM`, where replicas were asked.
    replicas: Option<String>,
    close: bool,
    /// The `Retry-After` of a 503, in seconds.
    retry_after: u64,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, code, message, header: None, replicas: None, close: false, retry_after: 1 }
    }

    /// The client's token does not allow the request (RFC 6750, 3).
    pub fn refused(refusal: &Refusal) -> Self {
        let message = format!("{refusal}; nothing was done");
        let with = |error: &str| Some(("www-authenticate", format!("Bearer realm=\"kvorum\"{error}")));
        match refusal {
            Refusal::NoToken | Refusal::NoSuchCertificate => {
                Self { header: with(""), ..Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message) }
            }
            Refusal::Malformed | Refusal::Unknown | Refusal::Revoked { .. } | Refusal::Expired { .. } => {
                Self {
                    header: with(", error=\"invalid_token\""),
                    ..Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
                }
            }
            Refusal::OverLimit { over, .. } => Self {
                retry_after: over.retry_after,
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "over_limit", message)
            },
            Refusal::Missing { right, .. } => Self {
                header: with(&format!(", error=\"insufficient_scope\", scope=\"{right}\"")),
                ..Self::new(StatusCode::FORBIDDEN, "missing_right", message)
            },
        }
    }

    /// Whether the client is over a limit: the refusal waits before it is sent.
    pub fn is_to_wait(&self) -> bool {
        self.code == "over_limit"
    }

    /// The token's requests wait for each other: it asks more than its share of a busy node.
    pub fn no_turn() -> Self {
        let message =
            "this node is busy, and the token has more requests waiting than its share; nothing was done";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "over_share", message)
    }

    /// The request's head breaks a rule of HTTP; nothing more is read from the connection.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self { close: true, ..Self::new(StatusCode::BAD_REQUEST, "malformed_request", message) }
    }

    /// The node does not have this path.
    pub fn unknown_path() -> Self {
        let known = Path::ALL.iter().filter(|(_, path)| *path != Path::Peer).map(|(text, _)| *text);
        let message = format!("unknown path; known are {}", known.collect::<Vec<_>>().join(", "));
        Self::new(StatusCode::BAD_REQUEST, "unknown_path", message)
    }

    /// The path does not have this method.
    pub fn method(allowed: &[&str]) -> Self {
        let allow = allowed.join(", ");
        let message = format!("this path does not have this method; it has {allow}");
        Self {
            header: Some(("allow", allow)),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        }
    }

    /// A request with a value says neither how long its body is nor that it is chunked.
    pub fn length_required() -> Self {
        let message = "a request with a body needs Content-Length or Transfer-Encoding: chunked";
        // The bytes that follow may be the body, and could not be told from a request.
        Self { close: true, ..Self::new(StatusCode::LENGTH_REQUIRED, "length_required", message) }
    }

    /// The body is over the limit.
    pub fn too_large(limit: u64) -> Self {
        let message = format!("the value is over the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "value_too_large", message)
    }

    /// A batch is over its limits; nothing was done.
    pub fn long_batch(bytes_max: u64, lines_len_max: usize) -> Self {
        let message = format!(
            "the batch is over {bytes_max} bytes or {lines_len_max} lines; nothing was done, divide it"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "batch_too_large", message)
    }

    /// A line of a batch is no operation.
    pub fn line(what: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_line", format!("not an operation: {what}"))
    }

    /// The body's framing is broken.
    pub fn broken_body() -> Self {
        Self::malformed("the body ended early or its framing is broken")
    }

    /// The node has too much to do; nothing was done.
    pub fn overloaded(what: &str) -> Self {
        let message = format!("the node is overloaded: {what}; nothing was done");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    /// The budget for bodies is used up.
    pub fn no_memory() -> Self {
        Self::overloaded("too many bytes of values are in memory")
    }

    /// More large values are waiting than can be written in time; most of this one was not read.
    pub fn crowded(retry_after: u64) -> Self {
        Self {
            retry_after,
            ..Self::overloaded("as many large values are being written as fit into the time-out")
        }
    }

    /// All places for connections are taken, or the client's address has its share. Some places stay free for peers,
    /// the status and the metrics. The connection ends.
    pub fn no_place() -> Self {
        let message = CONNECTION_REFUSED.text;
        Self { close: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message) }
    }

    /// The store is not open yet.
    pub fn starting() -> Self {
        let message = "the node is starting: it opens its store, or takes the hints for it; nothing was done";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "starting", message)
    }

    /// The node was removed from the cluster in `epoch`.
    pub fn removed(epoch: Epoch) -> Self {
        let message = format!(
            "this node was removed from the cluster in epoch {epoch}: ask another node; nothing was done"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "removed", message)
    }

    /// A thread that the node needs has ended, and its process is about to end. The connection ends.
    pub fn ending() -> Self {
        let message = "a thread of the node has ended, and its process is about to end; nothing was done";
        Self { close: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "ending", message) }
    }

    /// The path answers only to clients on the node's own machine.
    pub fn not_local() -> Self {
        let message = "this path answers only to clients on the node's own machine (127.0.0.0/8 or ::1)";
        Self::new(StatusCode::FORBIDDEN, "not_local", message)
    }

    /// A request to a path for the node's own machine came through a proxy or from a web page; `why` names the
    /// evidence.
    pub fn foreign(why: &str) -> Self {
        let message = format!(
            "this path answers only to requests made on the node's own machine, not by a web page or through a proxy: {why}"
        );
        Self::new(StatusCode::FORBIDDEN, "foreign_request", message)
    }

    /// A web page of another site asks for a change of keys; `why` names the evidence.
    pub fn foreign_page(why: &str) -> Self {
        let message =
            format!("a POST about keys is not for web pages of other sites: {why}; nothing was done");
        Self::new(StatusCode::FORBIDDEN, "foreign_request", message)
    }

    /// A write names a condition that is not supported.
    pub fn condition(header: &str) -> Self {
        let message =
            format!("{header} is not supported on PUT, POST and DELETE, use If-Match; nothing was done");
        Self::new(StatusCode::NOT_IMPLEMENTED, "condition_not_supported", message)
    }

    /// `If-Match` of a read does not name the value's version.
    pub fn precondition(current: Version) -> Self {
        let message = format!("If-Match does not name the value's version, which is \"{current}\"");
        let failure = Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", message);
        Self { header: Some(("etag", format!("\"{current}\""))), ..failure }
    }

    /// The condition of a write does not hold; `current` is the `ETag` of the value, if there is one.
    pub fn condition_failed(current: Option<Version>) -> Self {
        let state = match current {
            Some(current) => format!("the value's version is \"{current}\""),
            None => "there is no value".to_owned(),
        };
        let message = format!("the condition does not hold, {state}; nothing was done");
        let header = current.map(|current| ("etag", format!("\"{current}\"")));
        Self { header, ..Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", message) }
    }

    /// The value cannot be added to, or would become too long.
    pub fn unfit(error: ApplyError) -> Self {
        let message = error.to_string();
        match error {
            ApplyError::NotANumber => Self::new(StatusCode::CONFLICT, "not_a_number", message),
            ApplyError::Overflow => Self::new(StatusCode::CONFLICT, "overflow", message),
            ApplyError::TooLong { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "value_too_large", message)
            }
        }
    }

    /// A request that adds a number has a body.
    pub fn body_of_add() -> Self {
        let message = "add=N takes no body: the number is in the parameter; nothing was done";
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message)
    }

    /// A condition with a quorum that is no majority.
    pub fn no_majority(quorum: Quorum) -> Self {
        let message = format!(
            "replicas={quorum}: a conditional write needs more than half of its replicas, {} of {} at least",
            quorum.from() / 2 + 1,
            quorum.from()
        );
        Self::new(StatusCode::BAD_REQUEST, "no_majority", message)
    }

    /// `Kvorum-Operation` is given twice, or is no allowed name.
    pub fn operation(bytes_max: usize) -> Self {
        let message =
            format!("Kvorum-Operation: one name of 1 to {bytes_max} visible ASCII characters is allowed");
        Self::new(StatusCode::BAD_REQUEST, "bad_operation", message)
    }

    /// `If-Match` or `If-None-Match` is no list of entity tags.
    pub fn tags(header: &HeaderName, error: TagsError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_condition", format!("{header}: {error}"))
    }

    /// A PUT says that its body is a part of the value.
    pub fn partial_value() -> Self {
        let message = "Content-Range: a PUT replaces the whole value, a part of it cannot be written";
        Self::new(StatusCode::BAD_REQUEST, "partial_value", message)
    }

    /// There is no such worker, or it cannot be paused.
    pub fn worker(error: WorkerError, name: &str) -> Self {
        match error {
            WorkerError::Unknown => {
                let message = format!("there is no worker {name:?}; GET /admin/workers lists them");
                Self::new(StatusCode::NOT_FOUND, "unknown_worker", message)
            }
            WorkerError::NotPausable => {
                let message = format!(
                    "the worker {name:?} cannot be paused: without it the store takes no more writes"
                );
                Self::new(StatusCode::CONFLICT, "not_pausable", message)
            }
        }
    }

    /// A change of the configuration cannot be planned.
    pub fn cannot_plan(error: &PlanningError) -> Self {
        let message = format!("{error}; nothing was planned");
        Self::new(StatusCode::CONFLICT, "cannot_plan", message)
    }

    /// There is no such plan, or it cannot be applied any more.
    pub fn no_plan(error: &ApplyPlanError) -> Self {
        Self::new(StatusCode::CONFLICT, "no_plan", error.to_string())
    }

    /// Too few stores have voted for a plan. It may be decided later.
    pub fn not_decided(error: &ApplyPlanError) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "not_decided", error.to_string())
    }

    /// The request names a timestamp that no node can have given yet.
    pub fn too_far_ahead(error: &TooFarAhead) -> Self {
        Self::new(StatusCode::CONFLICT, "too_far_ahead", error.to_string())
    }

    /// The step of a cut cannot be taken.
    pub fn cut(message: &'static str) -> Self {
        Self::new(StatusCode::CONFLICT, "no_cut", message)
    }

    /// The path is for peers, which begin with an upgrade.
    pub fn upgrade_required(protocol: &'static str) -> Self {
        let message = format!("only nodes connect here: a request needs Upgrade: {protocol}");
        Self {
            header: Some(("upgrade", protocol.to_owned())),
            ..Self::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
        }
    }

    /// A foreign node: it does not belong to this cluster, or speaks another protocol.
    pub fn foreign_node(message: String) -> Self {
        Self { close: true, ..Self::new(StatusCode::CONFLICT, "foreign_node", message) }
    }

    /// A node that does not prove that it knows the peer secret.
    pub fn unproven(message: String) -> Self {
        Self { close: true, ..Self::new(StatusCode::FORBIDDEN, "unproven_peer", message) }
    }

    /// A peer cannot be accepted yet, which passes.
    pub fn peer_not_yet(message: String) -> Self {
        Self { close: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "peer_not_yet", message) }
    }

    /// There is no value.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "no value for this key")
    }

    /// Whether the connection ends with this answer, because it is unclear where the next request begins.
    pub fn closes(&self) -> bool {
        self.close
    }

    /// The status that the client gets.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The same as a line of a batch's answer.
    pub(super) fn into_line(mut self, fault: impl FnOnce() -> (String, Option<u64>)) -> Answer {
        if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            let _ = self.log(fault);
        }
        let etag = self.header.as_ref().filter(|(name, _)| *name == "etag").map(|(_, etag)| etag.as_str());
        Answer::failed(self.status, self.code, &self.message, etag)
    }

    /// Logs a fault of this node, if it is not one too many, and puts its id into the message.
    fn log(&mut self, fault: impl FnOnce() -> (String, Option<u64>)) -> String {
        let (id, left_out) = fault();
        if let Some(left_out) = left_out {
            tracing::error!(
                request_id = %id,
                error = %self.message,
                left_out,
                "a request failed with an internal error"
            );
        }
        self.message = format!("{} (request id {id})", self.message);
        id
    }

    /// The response; JSON for clients that accept it. `fault` numbers a fault of this node. Its second value is none if
    /// the fault is not to be logged, else how many were not logged since the last one that was.
    pub fn into_response(
        mut self,
        json: bool,
        fault: impl FnOnce() -> (String, Option<u64>),
    ) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody::empty());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            let id = self.log(fault);
            if let Ok(id) = HeaderValue::try_from(id) {
                headers.insert("kvorum-request-id", id);
            }
        }
        if let Some((name, value)) = self.header
            && let Ok(value) = HeaderValue::try_from(value)
        {
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some(Ok(replicas)) = self.replicas.map(HeaderValue::try_from) {
            headers.insert("kvorum-replicas", replicas);
        }
        if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&self.status) {
            headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after));
        }
        if self.close {
            headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        let (content_type, body) = if json {
            let body = serde_json::json!({"error": self.code, "message": self.message});
            ("application/json", format!("{body}\n"))
        } else {
            // Control characters become spaces, so that the answer is one line.
            let line: String = self.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            ("text/plain; charset=utf-8", line + "\n")
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        *response.body_mut() = ReplyBody::full(Bytes::from(body));
        response
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", error.to_string())
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        match error {
            ProfileError::Busy => Self::new(StatusCode::CONFLICT, "profile_running", error.to_string()),
            error => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()),
        }
    }
}

impl From<CoordinatorError> for Failure {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::NotEnoughReplicas { quorum, confirmed, .. } => Self {
                replicas: Some(format!("{confirmed}/{}", quorum.from())),
                ..Self::new(StatusCode::GATEWAY_TIMEOUT, "not_enough_replicas", error.to_string())
            },
            CoordinatorError::Replica(ReplicaError::Overloaded) => {
                Self::overloaded("a queue of the store is full")
            }
            CoordinatorError::Replica(ReplicaError::Short { shortage }) => {
                Self::overloaded(&format!("the store waits, {shortage}"))
            }
            CoordinatorError::Replica(ReplicaError::ShortMet { shortage }) => {
                let message =
                    format!("the store met a shortage ({shortage}): the write may take effect or not");
                Self::new(StatusCode::GATEWAY_TIMEOUT, "not_enough_replicas", message)
            }
            CoordinatorError::Stopped | CoordinatorError::Replica(ReplicaError::Stopped) => {
                let message = "the node is shutting down; nothing was done";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
            }
            CoordinatorError::Replica(ReplicaError::DiskFull) => {
                let message = "the disks of the replicas are full, nothing was stored: writes are refused until \
                               there is space, reads go on";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
            }
            CoordinatorError::Replica(error @ ReplicaError::TooFarAhead(_)) => {
                let message = format!("Not Enough Replicas: {error}");
                Self::new(StatusCode::GATEWAY_TIMEOUT, "not_enough_replicas", message)
            }
            error @ CoordinatorError::ClockOff { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "clock_off", error.to_string())
            }
            error @ (CoordinatorError::Replica(_) | CoordinatorError::ClockExhausted) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
            }
        }
    }
}

/// A plain text answer that the node writes without hyper. The connection ends after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BareAnswer {
    line: &'static str,
    /// A further header, with its line end.
    header: &'static str,
    text: &'static str,
}

const MALFORMED: BareAnswer =
    BareAnswer { line: "400 Bad Request", header: "", text: "this is not a valid HTTP request" };
const HEADERS_TOO_LARGE: BareAnswer = BareAnswer {
    line: "431 Request Header Fields Too Large",
    header: "",
    text: "the head is over 64 KiB or has more than 100 headers",
};

/// The answer to a connection without TLS to a port that requires it.
pub(super) const TLS_REQUIRED: BareAnswer =
    BareAnswer { line: "400 Bad Request", header: "", text: "this port speaks TLS alone: use https://" };

/// The answer to a connection over the cap.
pub(super) const CONNECTION_REFUSED: BareAnswer = BareAnswer {
    line: "503 Service Unavailable",
    header: "retry-after: 1\r\n",
    text: "the node has no room for a connection",
};

impl BareAnswer {
    /// The bytes of the answer, dated `now`.
    pub(super) fn bytes(&self, now: UnixMillis) -> Bytes {
        let Self { line, header, text } = self;
        let date = instant::date(now);
        let date = date.as_ref().and_then(|date| date.to_str().ok()).unwrap_or_default();
        let length = text.len() + 1;
        Bytes::from(format!(
            "HTTP/1.1 {line}\r\ndate: {date}\r\ncontent-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\n{header}connection: close\r\ncontent-length: {length}\r\n\r\n{text}\n"
        ))
    }
}

/// The answer to send in place of `answer`, if hyper itself gave that to a head that it cannot parse. hyper's answers
/// have no body, and the contract requires a line that says what was wrong. `is_lost`: the scanner could not follow the
/// head either. Then its size was not the cause (hyper says 431 also to a Content-Length that does not fit a number).
pub(super) fn substitute_for(answer: &[u8], is_lost: bool) -> Option<&'static BareAnswer> {
    let bare = |status: &[u8]| {
        answer.starts_with(status) && memchr::memmem::find(answer, b"content-length: 0\r\n").is_some()
    };
    // Every answer of ours with one of these statuses has a body.
    if bare(b"HTTP/1.1 400 ") {
        Some(&MALFORMED)
    } else if bare(b"HTTP/1.1 431 ") || bare(b"HTTP/1.1 414 ") {
        Some(if is_lost { &MALFORMED } else { &HEADERS_TOO_LARGE })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fixed answers are complete: their `Content-Length` matches their body, and they have a date.
    #[test]
    fn fixed_answers_are_consistent() {
        for answer in [MALFORMED, HEADERS_TOO_LARGE, TLS_REQUIRED, CONNECTION_REFUSED] {
            let bytes = answer.bytes(UnixMillis(0));
            let text = std::str::from_utf8(&bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let length: usize = head.split_once("content-length: ").unwrap().1.parse().unwrap();
            assert_eq!(body.len(), length, "{text}");
            assert!(head.contains("\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"), "{text}");
            assert!(head.lines().all(|line| !line.is_empty() && !line.ends_with(' ')), "{text}");
        }
    }

    /// Only hyper's bare answers are replaced.
    #[test]
    fn only_bare_answers_are_replaced() {
        assert_eq!(
            substitute_for(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", false),
            Some(&MALFORMED)
        );
        assert_eq!(substitute_for(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\n\r\n", false), None);
        assert_eq!(substitute_for(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true), None);
    }
}
