//! What an operation is: its request as bytes, and whether its answer is right.
//!
//! Which key a slot uses follows from the slot's number alone, never from timing, so a run can be repeated.

use std::io::Write;
use std::sync::Arc;

use super::replicas::Replicas;
use super::schedule::Schedule;
use crate::dataset::{Dataset, KEY_PREFIX, KEYS_END};
use crate::http::BodySink;
use crate::rng::{SplitMix64, mix};

/// One kind of operation at one pace.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// The name in reports.
    pub name: String,
    /// What is done.
    pub operation: Operation,
    /// The quorum that PUTs and GETs ask for, or the node's own. A scan's is not the client's to choose.
    pub replicas: Option<Replicas>,
    /// When it is done.
    pub pacing: Pacing,
    /// Which keys, in which order.
    pub order: KeyOrder,
    /// The records.
    pub dataset: Dataset,
    /// Keep-alive connections; at least 1.
    pub connections: usize,
    /// Whether bodies are compared with what the key's value must be.
    pub verify: bool,
}

/// What a stream does with its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writes the key's value.
    Put,
    /// Reads the key's value.
    Get,
    /// Reads records from the key on: so many, or (`None`) every key of the lab from the first.
    Scan {
        /// The request's `limit`.
        records: Option<u64>,
    },
}

/// When a stream's operations are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// At a constant rate, whatever the answers do.
    Open {
        /// Operations per second over all connections; at least 1.
        rate_per_second: u64,
    },
    /// The next when the last was answered: as fast as the node allows.
    Closed,
}

/// The keys of a stream's slots.
#[derive(Debug, Clone)]
pub enum KeyOrder {
    /// Any key, all equally likely, for as long as the run lasts.
    Uniform {
        /// Another seed draws other keys.
        seed: u64,
    },
    /// Every key once, in order; then the stream ends.
    Sequential,
    /// These keys, in order; then the stream ends.
    Listed(Arc<[u64]>),
}

impl StreamPlan {
    /// How many slots the stream has in `duration`; `u64::MAX` where only time ends it.
    pub fn slots(&self, duration: std::time::Duration) -> u64 {
        let keys = match &self.order {
            KeyOrder::Uniform { .. } => u64::MAX,
            KeyOrder::Sequential => self.dataset.keys,
            KeyOrder::Listed(keys) => keys.len() as u64,
        };
        match self.pacing {
            Pacing::Open { rate_per_second } => keys.min(Schedule::slots_within(rate_per_second, duration)),
            Pacing::Closed => keys,
        }
    }

    /// Whether the stream's keys come to an end.
    pub fn is_bounded(&self) -> bool {
        !matches!(self.order, KeyOrder::Uniform { .. })
    }

    /// The index of the key that `slot` uses.
    pub fn key_of(&self, slot: u64) -> u64 {
        match &self.order {
            KeyOrder::Uniform { seed } => SplitMix64::new(mix(seed ^ mix(slot))).below(self.dataset.keys),
            KeyOrder::Sequential => slot,
            KeyOrder::Listed(keys) => {
                usize::try_from(slot).ok().and_then(|slot| keys.get(slot)).copied().unwrap_or(0)
            }
        }
    }

    /// Puts the whole request for key `index` into `out`, in place of what was there.
    pub fn write_request(&self, index: u64, host: &str, out: &mut Vec<u8>) {
        out.clear();
        match self.operation {
            Operation::Put => {
                out.extend_from_slice(b"PUT /v0/entity?id=");
                Dataset::write_key(index, out);
                self.write_replicas(out);
                let length = self.dataset.value_bytes;
                // Writing into a `Vec` cannot fail.
                let _ = write!(out, " HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
                self.dataset.write_value(index, out);
            }
            Operation::Get => {
                out.extend_from_slice(b"GET /v0/entity?id=");
                Dataset::write_key(index, out);
                self.write_replicas(out);
                let _ = write!(out, " HTTP/1.1\r\nHost: {host}\r\n\r\n");
            }
            Operation::Scan { records } => {
                out.extend_from_slice(b"GET /v0/entities?start=");
                match records {
                    Some(records) => {
                        Dataset::write_key(index, out);
                        let _ = write!(out, "&end={KEYS_END}&limit={records}");
                    }
                    None => {
                        let _ = write!(out, "{KEY_PREFIX}&end={KEYS_END}");
                    }
                }
                let _ = write!(out, " HTTP/1.1\r\nHost: {host}\r\n\r\n");
            }
        }
    }

    fn write_replicas(&self, out: &mut Vec<u8>) {
        if let Some(replicas) = self.replicas {
            out.extend_from_slice(replicas.query().as_bytes());
        }
    }
}

/// Takes the body of one answer and judges it; reused from answer to answer.
#[derive(Debug)]
pub struct AnswerBody {
    dataset: Dataset,
    verify: bool,
    is_scan: bool,
    /// The value, or the chunk so far; no more than a record of the dataset and a byte.
    piece: Vec<u8>,
    piece_bytes_max: usize,
    last_key: Vec<u8>,
    records: u64,
    is_wrong: bool,
}

impl AnswerBody {
    /// For the answers of `plan`'s operations.
    pub fn new(plan: &StreamPlan) -> Self {
        Self {
            dataset: plan.dataset,
            verify: plan.verify,
            is_scan: matches!(plan.operation, Operation::Scan { .. }),
            piece: Vec::new(),
            // A key of the lab and its line feed are 17 bytes: 64 leave room to see that a record is too long.
            piece_bytes_max: plan.dataset.value_bytes + 64,
            last_key: Vec::new(),
            records: 0,
            is_wrong: false,
        }
    }

    /// Forgets the answer before.
    pub fn reset(&mut self) {
        self.piece.clear();
        self.last_key.clear();
        self.records = 0;
        self.is_wrong = false;
    }

    /// Whether the whole body, the answer to `operation` on key `index`, is right as far as it is checked.
    pub fn is_right(&self, operation: Operation, index: u64) -> bool {
        match operation {
            Operation::Get if self.verify => self.dataset.is_value(index, &self.piece),
            Operation::Put | Operation::Get => true,
            Operation::Scan { .. } => !self.is_wrong,
        }
    }

    /// Records that a scan has brought.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// A record is one of the lab's, after the one before, and has its key's value.
    fn is_next_record(&self) -> bool {
        let Some(at) = memchr::memchr(b'\n', &self.piece) else { return false };
        let (key, value) = self.piece.split_at(at);
        let is_value = Dataset::index_of(key)
            .is_some_and(|index| self.dataset.is_value(index, value.get(1..).unwrap_or(&[])));
        is_value && key > self.last_key.as_slice()
    }
}

impl BodySink for AnswerBody {
    fn data(&mut self, bytes: &[u8]) {
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
