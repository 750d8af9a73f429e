//! Traces of requests for a collector (OTLP), kept only while `--trace-endpoint` is set.
//!
//! A trace has a span for the request and one for each wait in it, as [`crate::slow`] notes them: calls of replicas, and the
//! commit in this node's own. A node that is called within a trace sends its own spans of the call: the commit there. A
//! request is traced if its `traceparent` header says so, or by chance where it has none.
//! Finished requests wait in a bounded queue for the exporter (`node/span_export.rs`); what does not fit is counted as lost. A
//! collector that is away costs a node that queue, and no request waits for it.

pub mod encode;

use crate::slow::{StepSpan, Trace, TraceContext};
use http::{HeaderMap, Method};
use kvorum_core::Slot;
use std::collections::VecDeque;
use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Requests that wait to be sent; about 2 KiB each.
const QUEUE_MAX: usize = 1024;
/// The golden ratio in 64 bits: the step of the `SplitMix64` generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where traces go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port.
    pub authority: String,
    /// The path.
    pub path: String,
}

impl Endpoint {
    /// Parses `http://HOST:PORT/PATH`; none if the text is not such a URL.
    pub fn parse(url: &str) -> Option<Self> {
        let (authority, path) = url.strip_prefix("http://")?.split_once('/')?;
        let (_, checked) = crate::authority::Authority::of_url(&format!("http://{authority}"))?;
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        is_path.then(|| Self { authority: checked.to_string(), path: format!("/{path}") })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// Whether and which requests are traced, and those that wait to be sent.
#[derive(Debug)]
pub struct Spans {
    endpoint: Option<Endpoint>,
    /// Of 2^64 draws, those below it are traced.
    chance: u64,
    random: AtomicU64,
    // Guards the queue; held to push or take, never while something is sent.
    finished: Mutex<VecDeque<FinishedRequest>>,
    sent: AtomicU64,
    lost: AtomicU64,
}

/// A request that is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traced {
    /// The request's own span.
    context: TraceContext,
    parent: Option<u64>,
}

impl Traced {
    /// The request's own span.
    pub fn context(&self) -> TraceContext {
        self.context
    }
}

/// A request that is traced and has been answered.
#[derive(Debug)]
pub struct FinishedRequest {
    traced: Traced,
    /// Who asked for what, and the answer.
    pub of: Asked,
    /// When it began, in Unix milliseconds.
    pub begun_millis: u64,
    /// How long it took.
    pub took: Duration,
    /// The waits in it.
    pub steps: Vec<FinishedStep>,
}

/// What was asked for.
#[derive(Debug)]
pub enum Asked {
    /// A request of a client.
    Client {
        /// The method, as the contract names it.
        method: &'static str,
        /// The status of the answer.
        status: u16,
        /// The key's hash, as in the logs.
        key_hash: String,
    },
    /// A call of another node.
    Peer {
        /// The kind of the call, as in `/metrics`.
        call: &'static str,
        /// The URL of the node that called.
        caller: String,
        /// Whether it was refused.
        is_refused: bool,
    },
}

/// A wait in a request.
#[derive(Debug)]
pub struct FinishedStep {
    span: u64,
    parent: u64,
    /// What it waited for.
    pub what: &'static str,
    /// At which node, and whether that is this one.
    pub node: Option<(String, bool)>,
    /// When it began, since the request did.
    pub begun: Duration,
    /// How long it took; none if it went on when the request was answered.
    pub took: Option<Duration>,
}

/// What was sent to the collector, and what was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Requests that the collector took.
    pub sent: u64,
    /// Requests that it did not, or that found the queue full.
    pub lost: u64,
}

impl Spans {
    /// Traces `share` (0 to 1) of the requests to `endpoint`; `seed` makes ids.
    pub fn new(endpoint: Option<Endpoint>, share: f64, seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let chance = (share * 2f64.powi(64)) as u64;
        Self {
            endpoint,
            chance,
            random: AtomicU64::new(seed),
            finished: Mutex::default(),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Where traces go; none if there are none.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Decides whether the request with these headers is traced.
    pub fn begin(&self, headers: &HeaderMap) -> Option<Traced> {
        self.endpoint.as_ref()?;
        let header = headers.get("traceparent").and_then(|header| header.to_str().ok());
        match header.and_then(parse_parent) {
            Some((trace, parent, true)) => {
                let trace = NonZeroU128::new(trace)?;
                Some(Traced { context: TraceContext { trace, span: self.id() }, parent: Some(parent) })
            }
            None if self.chance == u64::MAX || self.draw() < self.chance => {
                let trace = NonZeroU128::from(self.id()) | u128::from(self.id().get()) << 64;
                Some(Traced { context: TraceContext { trace, span: self.id() }, parent: None })
            }
            Some((_, _, false)) | None => None,
        }
    }

    /// The span of a call by another node, whose span is `caller`; none if there is no collector.
    pub fn begin_call(&self, caller: TraceContext) -> Option<Traced> {
        self.endpoint.as_ref()?;
        let context = TraceContext { span: self.id(), ..caller };
        Some(Traced { context, parent: Some(caller.span.get()) })
    }

    /// Queues an answered request for the collector, or counts it as lost.
    pub fn finish(
        &self,
        traced: Traced,
        answer: Answer,
        trace: &Trace,
        url_of: impl Fn(Slot) -> (String, bool),
    ) {
        let step = |StepSpan { span, parent, what, node, begun, took }| FinishedStep {
            span,
            parent,
            what,
            node: node.map(&url_of),
            begun,
            took,
        };
        let steps = trace.spans().into_iter().map(step).collect();
        let Answer { of, begun_millis, took } = answer;
        let request = FinishedRequest { traced, of, begun_millis, took, steps };
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if finished.len() < QUEUE_MAX {
            finished.push_back(request);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the oldest finished requests, `count` at most.
    pub fn take(&self, count: usize) -> Vec<FinishedRequest> {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(finished.len());
        finished.drain(..count).collect()
    }

    /// Counts requests that the collector took, or did not.
    pub fn note(&self, requests: usize, is_sent: bool) {
        let counter = if is_sent { &self.sent } else { &self.lost };
        counter.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// What was sent so far.
    pub fn counts(&self) -> Sent {
        Sent { sent: self.sent.load(Ordering::Relaxed), lost: self.lost.load(Ordering::Relaxed) }
    }

    /// An id, which must not be zero.
    fn id(&self) -> NonZeroU64 {
        NonZeroU64::new(self.draw()).unwrap_or(NonZeroU64::MIN)
    }

    /// The next number of a `SplitMix64` generator: ids need to differ, not to be secret.
    fn draw(&self) -> u64 {
        let mut word = self.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// The answer to a traced request.
#[derive(Debug)]
pub struct Answer {
    /// Who asked for what, and the answer.
    pub of: Asked,
    /// When the request began, in Unix milliseconds.
    pub begun_millis: u64,
    /// How long it took.
    pub took: Duration,
}

/// The name of a method, as the contract names it.
pub fn name_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::POST => "POST",
        _ => "_OTHER",
    }
}

/// Parses a `traceparent` header (W3C Trace Context): trace, parent, and whether it is sampled. None if it is none: then
/// the request is one without.
fn parse_parent(header: &str) -> Option<(u128, u64, bool)> {
    let mut parts = header.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    // Later versions may have more parts; version 00 has not, and ff is none.
    let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !is_known || !is_hex(trace, 32) || !is_hex(parent, 16) || !is_hex(flags, 2) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
    Some((trace, parent, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(parent: Option<&str>) -> HeaderMap {
        parent
            .map(|parent| ("traceparent".parse().unwrap(), HeaderValue::from_str(parent).unwrap()))
            .into_iter()
            .collect()
    }

    fn spans(share: f64) -> Spans {
        Spans::new(Endpoint::parse("http://127.0.0.1:4318/v1/traces"), share, 7)
    }

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        assert_eq!(parse_parent(PARENT), Some((trace, 0x00f0_67aa_0ba9_02b7, true)));
        assert_eq!(parse_parent(&PARENT.replace("-01", "-00")).map(|parent| parent.2), Some(false));
        assert_eq!(parse_parent(&PARENT.replace("-01", "-03")).map(|parent| parent.2), Some(true));
        let later = format!("{}-more", PARENT.replacen("00", "01", 1));
        assert!(parse_parent(&later).is_some());
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parse_parent(bad), None, "{bad}");
        }
    }

    /// The caller decides where it says so; chance decides otherwise.
    #[test]
    fn callers_and_chance_decide() {
        let (never, always) = (spans(0.0), spans(1.0));
        let traced = never.begin(&headers(Some(PARENT))).unwrap();
        assert_eq!(traced.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert!(always.begin(&headers(Some(&PARENT.replace("-01", "-00")))).is_none());
        assert!(never.begin(&headers(None)).is_none());
        assert!(always.begin(&headers(None)).is_some());
        assert!(always.begin(&headers(Some("nonsense"))).is_some());
        assert!(Spans::new(None, 1.0, 7).begin(&headers(Some(PARENT))).is_none());
        let some = spans(0.1);
        let count = (0..10_000).filter(|_| some.begin(&headers(None)).is_some()).count();
        assert!((800..1200).contains(&count), "{count}");
    }

    /// A collector that takes nothing costs a bounded queue.
    #[tokio::test]
    async fn queue_is_bounded() {
        let spans = spans(1.0);
        for _ in 0..QUEUE_MAX + 5 {
            let traced = spans.begin(&headers(None)).unwrap();
            let of = Asked::Client { method: name_of(&Method::PUT), status: 201, key_hash: String::new() };
            let answer = Answer { of, begun_millis: 1, took: Duration::from_millis(1) };
            spans.finish(traced, answer, &Trace::begin(None), |_| (String::new(), false));
        }
        assert_eq!(spans.counts(), Sent { sent: 0, lost: 5 });
        assert_eq!((spans.take(100).len(), spans.take(usize::MAX).len()), (100, QUEUE_MAX - 100));
    }

    #[test]
    fn endpoints_are_plain_http() {
        let parsed = |url: &str| Endpoint::parse(url).map(|endpoint| endpoint.to_string());
        assert_eq!(parsed("http://otel:4318/v1/traces"), Some("http://otel:4318/v1/traces".to_owned()));
        assert_eq!(parsed("http://otel/v1/traces"), Some("http://otel:80/v1/traces".to_owned()));
        for bad in [
            "",
            "http://otel:4318",
            "https://otel:4318/v1/traces",
            "otel:4318/v1",
            "http:///v1",
            "http://a b/v1",
            "http://a/v 1",
        ] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
