//! Operations: their requests as bytes, and the check of their answers.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use super::headers::{Header, lines};
use super::keys::KeyOrder;
use super::mix::Action;
use super::replicas::Replicas;
use super::schedule::{Stage, Timeline};
use super::template::Template;
use crate::dataset::{Dataset, KEY_PREFIX, KEYS_END, Records};
use crate::http::BodySink;

/// One kind of operation at one pace.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// The name in reports.
    pub name: String,
    /// The operation on each key.
    pub operation: Operation,
    /// The quorum of PUTs and GETs; `None` for the node's own. A client cannot choose the quorum of a scan.
    pub replicas: Option<Replicas>,
    /// When operations are sent.
    pub pacing: Pacing,
    /// The keys, and their order.
    pub order: KeyOrder,
    /// The records.
    pub dataset: Dataset,
    /// Keep-alive connections; at least 1.
    pub connections: usize,
    /// Whether bodies are compared with the expected value of the key.
    pub verify: bool,
}

/// The operation of a stream on its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writes the key's value.
    Put,
    /// Reads the key's value.
    Get,
    /// Reads records from the key on: `records` of them, or (`None`) every key of the lab from the first.
    Scan {
        /// The request's `limit`.
        records: Option<u64>,
    },
}

/// When a stream's operations are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pacing {
    /// At a constant rate, whatever the answers do.
    Open {
        /// Operations per second over all connections; at least 1.
        rate_per_second: u64,
    },
    /// At rates that change during the run, whatever the answers do; the durations are the plan's.
    Staged(Arc<[Stage]>),
    /// The next when the last was answered: as fast as the node allows.
    Closed,
}

impl Pacing {
    /// Whether each operation is due at a planned moment.
    pub const fn is_open(&self) -> bool {
        !matches!(self, Self::Closed)
    }

    /// The due moments of `warm_up` and, after it, of `duration`; none in a closed loop.
    pub fn timeline(&self, warm_up: Duration, duration: Duration) -> Timeline {
        let with_warm_up = |rate_per_second, stages: &[Stage]| {
            let first = (!warm_up.is_zero()).then(|| Stage::constant(rate_per_second, warm_up));
            Timeline::new(first.into_iter().chain(stages.iter().copied()))
        };
        match self {
            &Self::Open { rate_per_second } => {
                with_warm_up(rate_per_second, &[Stage::constant(rate_per_second, duration)])
            }
            Self::Staged(stages) => {
                with_warm_up(stages.first().map_or(1, |stage| stage.begin_per_second), stages)
            }
            Self::Closed => Timeline::new([]),
        }
    }

    /// Operations per second that were requested, on average over the stages; `None` in a closed loop.
    pub fn rate_per_second(&self) -> Option<f64> {
        match self {
            &Self::Open { rate_per_second } => Some(crate::units::float(rate_per_second)),
            Self::Staged(stages) => {
                let duration = stages.iter().map(|stage| stage.duration).sum();
                Some(crate::units::per_second(stages.iter().map(Stage::slots).sum(), duration))
            }
            Self::Closed => None,
        }
    }
}

impl StreamPlan {
    /// Whether the stream's keys come to an end.
    pub fn is_bounded(&self) -> bool {
        self.order.slots(self.dataset.keys) != u64::MAX
    }
}

/// Writes requests of one stream.
#[derive(Clone)]
pub struct RequestWriter {
    /// The requested records.
    pub records: Records,
    /// The requested quorum.
    pub replicas: Option<Replicas>,
    /// The header lines of every request, as [`head`] makes them.
    pub head: String,
    /// The service's requests; without it kvorum's.
    pub template: Option<Arc<Template>>,
}

/// Does not show the head, which may have a token.
impl fmt::Debug for RequestWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, replicas, head: _, template } = self;
        let mut shown = f.debug_struct("RequestWriter");
        shown.field("records", records).field("replicas", replicas).field("template", template);
        shown.finish_non_exhaustive()
    }
}

/// The header lines of every request to `host`, where `headers` are the caller's own.
pub fn head(host: &str, headers: &[Header], template: Option<&Template>) -> String {
    template.map_or_else(|| lines(host, headers), |template| template.head(host, headers))
}

impl RequestWriter {
    /// Replaces the content of `out` by the whole request of `action` on key `index`.
    ///
    /// A read-modify-write begins with its read; its write is a [`Action::Put`].
    pub fn write(&self, action: Action, index: u64, out: &mut Vec<u8>) {
        out.clear();
        if let Some(template) = &self.template {
            return template.write(&self.records, self.replicas, &self.head, (action, index), out);
        }
        match action {
            Action::Put | Action::Insert => {
                self.write_line(b"PUT", index, out);
                // Writing into a `Vec` cannot fail.
                let _ = write!(out, "Content-Length: {}\r\n\r\n", self.records.value_size(index));
                self.records.write_value(index, out);
            }
            Action::Get | Action::ReadModifyWrite => {
                self.write_line(b"GET", index, out);
                out.extend_from_slice(b"\r\n");
            }
            Action::Delete => {
                self.write_line(b"DELETE", index, out);
                out.extend_from_slice(b"\r\n");
            }
            Action::Scan { records } => {
                out.extend_from_slice(b"GET /v0/entities?start=");
                match records {
                    Some(records) => {
                        self.records.write_key(index, out);
                        let _ = write!(out, "&end={KEYS_END}&limit={records}");
                    }
                    None => {
                        let _ = write!(out, "{KEY_PREFIX}&end={KEYS_END}");
                    }
                }
                let _ = write!(out, " HTTP/1.1\r\n{}\r\n", self.head);
            }
        }
    }

    /// The request line of one entity, and the headers of all requests.
    fn write_line(&self, method: &[u8], index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(method);
        out.extend_from_slice(b" /v0/entity?id=");
        self.records.write_key(index, out);
        if let Some(replicas) = self.replicas {
            out.extend_from_slice(replicas.query().as_bytes());
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        out.extend_from_slice(self.head.as_bytes());
    }
}

/// Takes the body of one answer and judges it; reused from answer to answer.
#[derive(Debug)]
pub struct AnswerBody {
    wanted: Records,
    verify: bool,
    /// The service's bodies; without it a body is a value.
    template: Option<Arc<Template>>,
    is_scan: bool,
    /// All bytes of the answer's body.
    bytes: u64,
    /// The value, or the chunk so far; no more than a record of the dataset and a byte.
    piece: Vec<u8>,
    piece_bytes_max: usize,
    last_key: Vec<u8>,
    records: u64,
    is_wrong: bool,
}

impl AnswerBody {
    /// A judge for answers about `wanted`, as `template` has them; bodies are compared if `verify` is set.
    pub fn new(wanted: Records, verify: bool, template: Option<Arc<Template>>) -> Self {
        let record_bytes_max = wanted.record_bytes_max();
        let body_bytes_max = template.as_ref().map_or(0, |template| template.body_bytes(record_bytes_max));
        Self {
            wanted,
            verify,
            template,
            is_scan: false,
            bytes: 0,
            piece: Vec::new(),
            // Room after a record and its line feed shows that a record is too long.
            piece_bytes_max: record_bytes_max.max(body_bytes_max) + 64,
            last_key: Vec::new(),
            records: 0,
            is_wrong: false,
        }
    }

    /// Prepares for the next answer, which is one to `action`.
    pub fn reset(&mut self, action: Action) {
        self.is_scan = matches!(action, Action::Scan { .. });
        self.piece.clear();
        self.bytes = 0;
        self.last_key.clear();
        self.records = 0;
        self.is_wrong = false;
    }

    /// Whether the whole body, the answer to `action` on key `index`, passes all checks that are made.
    pub fn is_right(&self, action: Action, index: u64) -> bool {
        match action {
            Action::Get | Action::ReadModifyWrite => !self.verify || self.is_value(index),
            Action::Put | Action::Insert | Action::Delete => true,
            Action::Scan { .. } => !self.is_wrong,
        }
    }

    fn is_value(&self, index: u64) -> bool {
        match &self.template {
            Some(template) => template.is_body(&self.wanted, index, &self.piece),
            None => self.wanted.is_value(index, &self.piece),
        }
    }

    /// Whether a body of an answer to `action` is compared with anything.
    pub fn is_compared(&self, action: Action) -> bool {
        self.verify && matches!(action, Action::Get | Action::ReadModifyWrite | Action::Scan { .. })
    }

    /// Describes why the body, the answer to `action` on key `index`, is wrong.
    pub fn complaint(&self, action: Action, index: u64) -> String {
        let key = Dataset::key(index);
        if let Action::Scan { .. } = action {
            return format!("scan from {key}: a record is out of order, or not the value of its key");
        }
        let mut wanted = Vec::new();
        match &self.template {
            Some(template) => template.write_body(&self.wanted, index, &mut wanted),
            None => self.wanted.write_value(index, &mut wanted),
        }
        let same = wanted.iter().zip(&self.piece).take_while(|(wanted, found)| wanted == found).count();
        format!("{key}: {} bytes where {} are right, different from byte {same} on", self.bytes, wanted.len())
    }

    /// The number of records that a scan has returned.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether the record is one of the lab's, comes after the previous one, and has its key's value.
    fn is_next_record(&self) -> bool {
        let Some(at) = memchr::memchr(b'\n', &self.piece) else { return false };
        let (key, value) = self.piece.split_at(at);
        let is_value = self
            .wanted
            .index_of(key)
            .is_some_and(|index| self.wanted.is_value(index, value.get(1..).unwrap_or(&[])));
        is_value && key > self.last_key.as_slice()
    }
}

impl BodySink for AnswerBody {
    fn data(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if self.verify {
            let room = self.piece_bytes_max.saturating_sub(self.piece.len());
            self.piece.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    fn chunk_end(&mut self) {
        self.records += 1;
        if self.verify && self.is_scan {
            self.is_wrong |= !self.is_next_record();
            self.last_key.clear();
            let key = memchr::memchr(b'\n', &self.piece).and_then(|at| self.piece.get(..at));
            self.last_key.extend_from_slice(key.unwrap_or_default());
            self.piece.clear();
        }
    }
}

#[cfg(test)]
#[path = "operation_tests.rs"]
mod tests;
