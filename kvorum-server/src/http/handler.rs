//! The handler: from a request to a call of the coordinator, and from its result to a response.

use super::Limits;
use super::access;
use super::admission::Admission;
use super::another::Another;
use super::body::{BodyBudget, ReplyBody, Upload};
use super::conditions::{self, Wish};
use super::connection::Connection;
use super::converged;
use super::error::Failure;
use super::explain;
use super::instant;
use super::local;
use super::members;
use super::openapi;
use super::peer_places::PeerPlaces;
use super::range::{RangeBody, RangeFormat, RangeSource, Reader};
use super::repair;
use super::rooms::Rooms;
use super::routes::{self, Path};
use super::server::{Addresses, Phase};
use super::status::NodeFacts;
use super::target::{self, ProfileQuery, RepairQuery, Scope};
use super::topology;
use super::turns::{NoTurn, Turns};
use super::workers;
use crate::authority::Authority;
use crate::background;
use crate::background::PAUSE_DEFAULT;
use crate::clock::Clock;
use crate::coordinator::{Coordinator, CoordinatorError, Decided, Found, Mutation, Shared};
use crate::history::History;
use crate::log::Repeats;
use crate::log_limit::LogLimit;
use crate::metrics::{Operation, ThreadMetrics};
use crate::peer::PeerAuth;
use crate::security::{Security, TokenView, key_hash};
use crate::slow::{self, Trace};
use crate::spans::{self, Answer, Asked, Spans, Traced};
use crate::supervise::Supervisor;
use crate::tls::Tls;
use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, EXPECT, HOST,
    LAST_MODIFIED, TRANSFER_ENCODING, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use kvorum_core::{Partition, Quorum, Version};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a refusal waits before it is sent where the client asks more than its limit: less than clients wait for an answer.
const REFUSAL_WAIT: Duration = Duration::from_millis(500);

/// How many nodes of each preference list `/v0/topology` shows by default.
const DEFAULT_RANKS: u16 = 8;

/// The state that all network threads share.
///
/// It exists before the store is open, so that a starting node can say so.
pub struct Service {
    // Guards what a node waits for that belongs to no cluster; empty otherwise. Held to read or write a text.
    pub(crate) joining: Mutex<String>,
    /// Starts another node in the same process; not set where nothing does.
    pub(crate) another: OnceLock<Another>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The bounds of what clients may ask.
    pub limits: Limits,
    /// Bytes of bodies in memory.
    pub body_budget: Arc<BodyBudget>,
    /// Large values that are being written.
    pub admission: Arc<Admission>,
    /// Connections open now, over all threads.
    pub connection_count: AtomicUsize,
    /// Open connections by client address.
    pub addresses: Addresses,
    /// The node's fixed facts, for the status.
    pub facts: NodeFacts,
    /// Every network thread's counters.
    pub thread_metrics: Vec<Arc<ThreadMetrics>>,
    /// The load of the last quarter of an hour.
    pub history: History,
    /// When the node started, by its monotonic clock.
    pub started: Duration,
    /// How many of these threads have a coordinator. All threads share the port, so clients are served once all have
    /// one.
    pub threads_open: watch::Sender<usize>,
    /// Names this run of the node in request ids.
    pub run_id: u32,
    /// Requests that failed by this node's own fault so far; numbers request ids.
    pub faults: AtomicU64,
    /// Limits the log lines about these failures.
    pub(crate) fault_lines: LogLimit,
    /// Limits the log lines about slow requests.
    pub(crate) slow_lines: LogLimit,
    /// The node's phase: starting, joining, ready or draining.
    pub phase: watch::Sender<Phase>,
    /// Connections of peers so far; gives each its number.
    pub peer_connections: AtomicU64,
    /// Places for connections of peers, apart from those of clients.
    pub peer_places: Arc<PeerPlaces>,
    /// Places for peers that have not sent their proof yet, apart from those that have.
    pub handshake_places: Arc<PeerPlaces>,
    /// What peers must prove, and what this node proves to them.
    pub peer_auth: Arc<PeerAuth>,
    /// TLS on the port; none without.
    pub tls: Option<Arc<Tls>>,
    /// Limits the log lines about refused nodes.
    pub refusals: Repeats,
    /// Traces for a collector.
    pub spans: Arc<Spans>,
    /// The tokens, and whether they are needed.
    pub security: Arc<Security>,
    /// Notices when a thread or task of the node ends.
    pub supervisor: Supervisor,
    /// The layers below, once the store is open.
    pub rooms: OnceLock<Rooms>,
}

/// The state that one network thread serves with.
pub struct ThreadState {
    /// The state that all threads share.
    pub service: Arc<Service>,
    /// The thread's counters.
    pub metrics: Arc<ThreadMetrics>,
    /// The thread's coordinator, once the store is open.
    pub coordinator: OnceCell<Rc<Coordinator>>,
    /// Until when this thread's rate of reading bytes only to drop them is used up.
    pub dropping_until: Cell<Instant>,
    /// The tokens as this thread sees them.
    pub(super) tokens: RefCell<TokenView>,
    /// The turns of this thread's requests.
    pub(super) turns: Rc<Turns>,
}

impl ThreadState {
    /// The state of one thread, without a coordinator yet.
    pub fn new(service: Arc<Service>, metrics: Arc<ThreadMetrics>) -> Rc<Self> {
        let tokens = RefCell::new(service.security.view());
        Rc::new(Self {
            tokens,
            service,
            metrics,
            coordinator: OnceCell::new(),
            dropping_until: Cell::new(Instant::now()),
            turns: Rc::default(),
        })
    }

    /// The coordinator.
    ///
    /// # Errors
    /// 503 while the node starts.
    pub(super) fn coordinator(&self) -> Result<&Rc<Coordinator>, Failure> {
        if self.service.supervisor.has_ended() {
            return Err(Failure::ending());
        }
        let is_starting = matches!(*self.service.phase.borrow(), Phase::Starting | Phase::Joining);
        let coordinator = self.coordinator.get().filter(|_| !is_starting).ok_or_else(Failure::starting)?;
        match coordinator.shared().cluster.removed_in() {
            Some(epoch) => Err(Failure::removed(epoch)),
            None => Ok(coordinator),
        }
    }
}

impl Service {
    /// The layers below.
    ///
    /// # Errors
    /// 503 while the store is being opened.
    pub(super) fn rooms(&self) -> Result<&Rooms, Failure> {
        self.rooms.get().ok_or_else(Failure::starting)
    }

    /// Counts a request that failed by this node's own fault: its id, and whether it is logged ([`LogLimit::admit`]).
    pub(super) fn note_fault(&self) -> (String, Option<u64>) {
        let number = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        (format!("{:08x}-{number}", self.run_id), self.fault_lines.admit(self.clock.mono()))
    }
}

impl Service {
    /// Hands an answered request over to the exporter of traces.
    fn finish_span(
        &self,
        traced: Traced,
        method: &Method,
        status: StatusCode,
        took: Duration,
        trace: &Trace,
    ) {
        let key_hash = trace.key().map(|key| key_hash(key.as_ref())).unwrap_or_default();
        let taken = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let begun_millis = self.clock.wall().0.saturating_sub(taken);
        let of = Asked::Client { method: spans::name_of(method), status: status.as_u16(), key_hash };
        let answer = Answer { of, begun_millis, took };
        let shared = self.rooms.get().map(|rooms| &rooms.shared);
        self.spans.finish(traced, answer, trace, |node| {
            let url = shared.map_or_else(String::new, |shared| shared.cluster.url_of(node).to_owned());
            let is_own = url == self.facts.url;
            (url, is_own)
        });
    }

    /// Logs a slow request: keys as hashes, as in the audit log.
    fn log_slow(&self, operation: Operation, status: StatusCode, took: Duration, trace: &Trace) {
        let Some(left_out) = self.slow_lines.admit(self.clock.mono()) else { return };
        let hash = trace.key().map(|key| key_hash(key.as_ref())).unwrap_or_default();
        let shared = self.rooms.get().map(|rooms| &rooms.shared);
        let steps = trace.describe(|node| {
            shared.map_or_else(String::new, |shared| shared.cluster.url_of(node).to_owned())
        });
        tracing::warn!(
            operation = operation.name(),
            status = status.as_u16(),
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            key_sha256 = hash,
            steps,
            left_out,
            "slow request (--slow-request)"
        );
    }
}

/// Answers one request.
///
/// # Cancel safety
/// Dropping the future leaves the outcome of a write that was begun unknown.
pub async fn handle<B>(
    state: &ThreadState,
    connection: &Rc<Connection>,
    request: Request<B>,
) -> Response<ReplyBody>
where
    B: Body<Data = Bytes> + Unpin,
{
    let ThreadState { service, metrics, .. } = state;
    let begun = service.clock.mono();
    let reader = service.facts.pages.reader(&request);
    let operation = operation_of(&request);
    let json = accepts(request.headers(), "application/json");
    let (head, body) = request.into_parts();
    let asks_first = head.headers.contains_key(EXPECT);
    let mut upload = Upload::new(body);
    let request = Request::from_parts(head, &mut upload);
    let traced = operation.is_of_a_key().then(|| service.spans.begin(request.headers())).flatten();
    let method = traced.map(|_| request.method().clone());
    let is_traced = traced.is_some() || service.limits.slow_request.is_some() && operation.is_of_a_key();
    let trace = is_traced.then(|| Trace::begin(traced.map(|traced| traced.context())));
    let answered = match (check_head(connection, &request, service.facts.own_host.as_ref()), &trace) {
        (Ok(()), None) => route(state, connection, request).await,
        // Boxed, so that a request without a trace has no place for this one.
        (Ok(()), Some(trace)) => {
            Box::pin(slow::within(Rc::clone(trace), route(state, connection, request))).await
        }
        (Err(failure), _) => Err(failure),
    };
    let is_distrusted = match &answered {
        // A spare place serves one request and is then free for the next client. A peer gets a place of its own.
        Ok(response) => connection.is_spare() && response.status() != StatusCode::SWITCHING_PROTOCOLS,
        Err(failure) => connection.is_spare() || failure.closes(),
    };
    let mut response =
        answered.unwrap_or_else(|failure| failure.into_response(json, || service.note_fault()));
    let headers = response.headers_mut();
    // If the rest of the body could be taken for the next request, the connection ends, and the answer says so.
    if is_distrusted || !upload.discard(asks_first, || connection.is_lost()).await {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        connection.linger();
    }
    if let Some(rooms) = service.rooms.get() {
        headers.insert("kvorum-epoch", rooms.epoch());
    }
    // No cache may answer for the store, and no browser may treat a value as a page.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(reader) = reader {
        members::allow(headers, reader);
    }
    let took = service.clock.mono().saturating_sub(begun);
    metrics.answered(operation, response.status().as_u16(), took);
    if let (Some(trace), Some(traced), Some(method)) = (&trace, traced, method) {
        service.finish_span(traced, &method, response.status(), took, trace);
    }
    if let (Some(trace), Some(bound)) = (trace, service.limits.slow_request)
        && took >= bound
    {
        service.log_slow(operation, response.status(), took, &trace);
    }
    connection.end_request();
    response
}

fn operation_of<B>(request: &Request<B>) -> Operation {
    match (Path::parse(request.uri().path()), request.method()) {
        (Some(Path::Entity), &Method::GET) => Operation::Get,
        (Some(Path::Entity), &Method::HEAD) => Operation::Head,
        // A counter or an append is a write of a value, too.
        (Some(Path::Entity), &Method::PUT | &Method::POST) | (Some(Path::Restore), &Method::PUT) => {
            Operation::Put
        }
        (Some(Path::Entity), &Method::DELETE) => Operation::Delete,
        (Some(Path::Entities), &Method::GET) => Operation::Range,
        _ => Operation::Other,
    }
}

/// Refuses requests that hyper accepts but two parsers could read differently, and targets whose authority is not
/// `own`.
fn check_head<B>(
    connection: &Connection,
    request: &Request<B>,
    own: Option<&Authority>,
) -> Result<(), Failure> {
    let Some(verdict) = connection.begin_request() else {
        return Err(Failure::malformed("the framing of the request is malformed"));
    };
    if verdict.bare_line_feed {
        return Err(Failure::malformed("a line of the head ends without a carriage return"));
    }
    if verdict.content_length && verdict.transfer_encoding {
        return Err(Failure::malformed("Content-Length and Transfer-Encoding exclude each other"));
    }
    if verdict.fragment {
        return Err(Failure::malformed("the target has a #; in a key it is written %23"));
    }
    let headers = request.headers();
    if verdict.transfer_encoding && !is_plainly_chunked(headers) {
        return Err(Failure::malformed("the only transfer coding known here is chunked"));
    }
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(Failure::malformed("there is more than one Host header")),
        (None, None) if request.version() == http::Version::HTTP_11 => {
            return Err(Failure::malformed("an HTTP/1.1 request needs a Host header"));
        }
        (Some(host), None) if !is_plausible_host(host) => {
            return Err(Failure::malformed("the Host header is not a host"));
        }
        _ => {}
    }
    let uri = request.uri();
    let is_own = match (uri.scheme_str(), uri.authority()) {
        (None, None) => is_asterisk(request) || uri.path().starts_with('/'),
        // RFC 9112, 3.2.2: the absolute form, as clients send it to proxies. This node is not a proxy, so the target
        // must name it.
        (Some(scheme), Some(authority)) => {
            scheme.eq_ignore_ascii_case(connection.scheme().name())
                && Authority::parse(authority.as_str()).is_some_and(|named| local::is_own(&named, own))
        }
        _ => false,
    };
    if !is_own {
        return Err(Failure::malformed(
            "the target must begin with /, or with http:// and this node's own host",
        ));
    }
    Ok(())
}

/// Whether this is `OPTIONS *`: it asks about the node, not about a path.
fn is_asterisk<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS && request.uri().path() == "*"
}

fn is_plainly_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked =
        codings.next().is_some_and(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"));
    chunked && codings.next().is_none()
}

fn is_plausible_host(host: &HeaderValue) -> bool {
    host.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]%~!$&'()*+,;=".contains(byte))
}

/// Whether the client lists `kind` in an Accept header. Weights are ignored.
pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers.get_all(ACCEPT).iter().any(|accept| {
        accept.to_str().is_ok_and(|accept| {
            let mut kinds = accept.split(',').map(|item| item.split(';').next().unwrap_or("").trim());
            kinds.any(|item| item.eq_ignore_ascii_case(kind))
        })
    })
}

async fn route<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
) -> Result<Response<ReplyBody>, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    if is_asterisk(&request) {
        return Ok(show_methods());
    }
    if let Some(allowed) = state.service.facts.pages.answer_preflight(&request) {
        return Ok(allowed);
    }
    let path = Path::parse(request.uri().path()).ok_or_else(Failure::unknown_path)?;
    if connection.is_spare() && !path.is_spare() {
        state.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
        return Err(Failure::no_place());
    }
    if let Err(failure) = access::check(state, connection, &request, path) {
        if failure.is_to_wait() {
            // Who asks again at once would otherwise keep the thread busy with refusals.
            tokio::time::sleep(REFUSAL_WAIT).await;
        }
        return Err(failure);
    }
    // A PUT takes its turn once its body is there: a slow client keeps nobody waiting.
    if path != Path::Entity || request.method() != Method::PUT {
        token_turn(state, connection).await?;
    }
    routes::answer(state, connection, request, path).await
}

/// Waits for the turn of a request of a token.
pub(super) async fn token_turn(state: &ThreadState, connection: &Connection) -> Result<(), Failure> {
    let Some(user) = connection.user() else { return Ok(()) };
    let turn = slow::step("turn", None, state.turns.take(Some(user))).await;
    turn.map_err(|NoTurn| Failure::no_turn())
}

/// The answer to `OPTIONS *`: every method that some path of the node has.
fn show_methods() -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::empty());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE, POST, OPTIONS"));
    response
}

/// Notes that the answer depends on the Accept header.
pub(super) fn vary_by_accept(headers: &mut HeaderMap) {
    headers.insert(VARY, HeaderValue::from_static("accept"));
}

/// The quorum that a request asks for, among the nodes that there are now.
pub(super) fn quorum_of(
    replicas: target::Replicas,
    coordinator: &Coordinator,
) -> Result<Quorum, target::TargetError> {
    replicas.quorum(coordinator.default_quorum(), coordinator.nodes())
}

pub(super) fn parse_entity<B>(
    state: &ThreadState,
    coordinator: &Coordinator,
    request: &Request<B>,
) -> Result<(target::EntityQuery, Quorum), Failure> {
    let query = target::parse_entity(request.uri().query())?;
    if query.ttl_millis.is_some() && request.method() != Method::PUT {
        return Err(target::TargetError::TtlWithoutPut.into());
    }
    match (query.edit, request.method() == Method::POST) {
        (Some(_), false) => return Err(target::TargetError::EditWithoutPost.into()),
        (None, true) => return Err(target::TargetError::MissingEdit.into()),
        _ => {}
    }
    let quorum = quorum_of(query.replicas, coordinator)?;
    slow::note_key(&query.key);
    state.metrics.partitions.note(coordinator.shared().cluster.partition_of(&query.key).0);
    Ok((query, quorum))
}

pub(super) async fn get<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let coordinator = state.coordinator()?;
    let (query, quorum) = parse_entity(state, coordinator, request)?;
    let condition = conditions::of_read(request.headers())?;
    let Found { record, now, answered } = coordinator.read(query.key, quorum).await?;
    let Some(record) = record else { return Err(Failure::not_found()) };
    let Some(value) = record.live(now) else { return Err(Failure::not_found()) };
    let is_unmodified = conditions::is_unmodified(condition.as_ref(), record.etag())?;
    let mut response = if is_unmodified {
        let mut response = Response::new(ReplyBody::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(ReplyBody::value(value.clone(), &state.service.body_budget)?);
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    };
    let headers = response.headers_mut();
    insert_version(headers, record.etag());
    if request.method() == Method::HEAD && !is_unmodified {
        // hyper leaves out the length of an empty value in an answer to HEAD, where there is no body to take it from.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(value.len()));
    }
    insert_replicas(headers, answered, quorum);
    // Both dates come from one clock. A version may be ahead of this node's clock, and `Date` must not be before
    // `Last-Modified`.
    let modified = record.etag().millis().min(now);
    for (name, at) in [(DATE, now), (LAST_MODIFIED, modified)] {
        if let Some(at) = instant::date(at) {
            headers.insert(name, at);
        }
    }
    if let Some(at) = record.expires {
        headers.insert("kvorum-expires", HeaderValue::from(instant::shown(at)));
    }
    Ok(response)
}

pub(super) async fn delete<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let wish = conditions::of_write(request.headers(), request.method())?;
    let coordinator = state.coordinator()?;
    let (query, quorum) = parse_entity(state, coordinator, request)?;
    Wish::check(wish.as_ref(), quorum)?;
    let done = conditions::write(coordinator, query.key, Mutation::Delete, wish, quorum).await?;
    written(StatusCode::ACCEPTED, done, quorum)
}

pub(super) fn written(
    status: StatusCode,
    done: Decided,
    quorum: Quorum,
) -> Result<Response<ReplyBody>, Failure> {
    let done = conditions::written(done)?;
    let mut response = Response::new(ReplyBody::empty());
    *response.status_mut() = status;
    insert_version(response.headers_mut(), done.version);
    insert_replicas(response.headers_mut(), done.confirmed, quorum);
    Ok(response)
}

pub(super) fn insert_replicas(headers: &mut HeaderMap, answered: u16, quorum: Quorum) {
    if let Ok(replicas) = HeaderValue::try_from(format!("{answered}/{}", quorum.from())) {
        headers.insert("kvorum-replicas", replicas);
    }
}

pub(super) fn insert_version(headers: &mut HeaderMap, version: Version) {
    if let Ok(etag) = HeaderValue::try_from(format!("\"{version}\"")) {
        headers.insert(ETAG, etag);
    }
}

pub(super) async fn range<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let query = target::parse_range(request.uri().query())?;
    if request.version() != http::Version::HTTP_11 {
        // Without chunks a client could not tell a complete range from a truncated one.
        return Err(Failure::malformed("a range needs HTTP/1.1"));
    }
    let ndjson = accepts(request.headers(), "application/x-ndjson");
    let (format, content_type) = if ndjson {
        (RangeFormat::Ndjson, "application/x-ndjson")
    } else {
        (RangeFormat::Plain, "application/octet-stream")
    };
    let coordinator = state.coordinator()?;
    // Where there is no other member, not even one that joins, this node's live keys are all live keys.
    let is_alone = coordinator.shared().cluster.member_count() == 1;
    let (reader, now) = if query.scope == Scope::Local || is_alone {
        let (reader, now) = coordinator.scan_local(query.start, query.end).await?;
        (Reader::Local(reader), now)
    } else {
        let (range, now) = coordinator.scan_cluster(query.start, query.end).await?;
        (Reader::Cluster(Box::new(range)), now)
    };
    let timeout = state.service.limits.range_timeout;
    let source = RangeSource { reader, now, limit: query.limit, format, timeout };
    let body = RangeBody::start(source, Arc::clone(&state.metrics));
    let mut response = Response::new(ReplyBody::Range(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    Ok(response)
}

pub(super) async fn show_explanation<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let key = target::parse_explain(request.uri().query())?;
    let explanation = state.coordinator()?.explain(key).await?;
    let json = accepts(request.headers(), "application/json");
    let mut response = Response::new(ReplyBody::full(Bytes::from(explain::render(&explanation, json))));
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    Ok(response)
}

pub(super) fn show_converged<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let query = target::parse_converged(request.uri().query())?;
    let body = converged::render(&service.rooms()?.shared, &query);
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

pub(super) async fn repair<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let coordinator = state.coordinator()?;
    let partitions = 1 << coordinator.shared().cluster.partition_bits();
    let body = match target::parse_repair(request.uri().query(), partitions)? {
        RepairQuery::Compare(partition) => {
            let repaired = background::repair_now(coordinator, partition.map(Partition)).await;
            repair::render(&repaired.ok_or_else(|| Failure::overloaded("a repair is under way on it"))?)
        }
        RepairQuery::DropUnbelievable(partition) => {
            let dropped = background::drop_unbelievable(coordinator.shared(), partition.map(Partition)).await;
            repair::render_dropped(dropped.map_err(CoordinatorError::from)?)
        }
    };
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

pub(super) fn show_topology<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let ranks = target::parse_ranks(request.uri().query())?;
    let shared = &service.rooms()?.shared;
    // Clients would take the members for those that this node serves with.
    if let Some(epoch) = shared.cluster.removed_in() {
        return Err(Failure::removed(epoch));
    }
    let quorum = shared.settings.default_quorum(shared.cluster.node_count());
    let body = topology::render(&shared.cluster, quorum, ranks.unwrap_or(DEFAULT_RANKS));
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

pub(super) fn show_openapi<B>(request: &Request<B>) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let mut response = Response::new(ReplyBody::full(Bytes::from_static(openapi::DOCUMENT.as_bytes())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

pub(super) fn show_workers<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    Ok(workers_of(&service.rooms()?.shared, request))
}

/// Takes a profile, and answers when it is complete. It is stopped when the client disconnects or the node ends.
pub(super) async fn show_profile<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let ProfileQuery { event, seconds, format } = target::parse_profile(request.uri().query())?;
    let taking = kvorum_profiler::take(event, Duration::from_secs(seconds.into()), format)?;
    let mut phase = service.phase.subscribe();
    let rendered = tokio::select! {
        rendered = taking.rendered() => rendered?,
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => return Err(CoordinatorError::Stopped.into()),
    };
    let mut response = Response::new(ReplyBody::full(Bytes::from(rendered)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    Ok(response)
}

/// Pauses a worker, and answers with the state of all workers.
pub(super) fn pause_worker<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let time = target::parse_pause(request.uri().query())?.unwrap_or(PAUSE_DEFAULT);
    set_pause(service, request, Some(time))
}

/// Resumes a worker, and answers with the state of all workers.
pub(super) fn resume_worker<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    set_pause(service, request, None)
}

fn set_pause<B>(
    service: &Service,
    request: &Request<B>,
    time: Option<Duration>,
) -> Result<Response<ReplyBody>, Failure> {
    let name = target::worker_of(request.uri().path()).map_or("", |(name, _)| name);
    let shared = &service.rooms()?.shared;
    shared.background.pause_worker(name, time).map_err(|error| Failure::worker(error, name))?;
    Ok(workers_of(shared, request))
}

fn workers_of<B>(shared: &Shared, request: &Request<B>) -> Response<ReplyBody> {
    let json = accepts(request.headers(), "application/json");
    let mut response =
        Response::new(ReplyBody::full(Bytes::from(workers::render(&shared.background.list_workers(), json))));
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    response
}
