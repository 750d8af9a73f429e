//! Ranges: records as a stream, one chunk each, with bounded memory.
//!
//! A task on the connection's thread reads the store in parts (on the worker pool) and renders each record; the body
//! takes records as fast as the client does. At most [`PARTS_AHEAD`] parts wait, so a client that does not read stops
//! the reading.

use super::body::Cut;
use super::cut::CutRows;
use super::instant;
use crate::coordinator::{ClusterRange, CoordinatorError};
use crate::metrics::ThreadMetrics;
use crate::replica::RangeReader;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use kvorum_core::{Record, UnixMillis};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;

/// How many bytes of records are read at a time.
const PART_BYTES: usize = 64 << 10;
/// How many parts may wait for the client.
const PARTS_AHEAD: usize = 2;

/// How a range is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeFormat {
    /// `<key>\n<value>`, one chunk a record.
    Plain,
    /// One JSON object a line.
    Ndjson,
}

/// The source of a range's records.
pub enum Reader {
    /// The store of this node alone.
    Local(RangeReader),
    /// The whole cluster.
    Cluster(Box<ClusterRange>),
    /// This node's cut.
    Cut(Box<CutRows>),
}

/// The parameters of a range.
pub struct RangeSource {
    pub reader: Reader,
    pub now: UnixMillis,
    pub limit: Option<u64>,
    pub format: RangeFormat,
    pub timeout: Duration,
}

impl RangeSource {
    /// The next records, rendered, and at most `left` of them; `None` at the end.
    async fn next(&mut self, left: &mut u64) -> Result<Option<Vec<Bytes>>, CoordinatorError> {
        let part = match &mut self.reader {
            Reader::Local(reader) => reader.next(PART_BYTES).await?,
            Reader::Cluster(range) => range.next(PART_BYTES).await?,
            Reader::Cut(rows) => return rows.next(PART_BYTES).await,
        };
        Ok((!part.is_empty()).then(|| render(part, self.now, self.format, left)))
    }
}

/// A stream of the records of a range.
pub struct RangeBody {
    parts: mpsc::Receiver<Part>,
    records: std::vec::IntoIter<Bytes>,
    metrics: Arc<ThreadMetrics>,
}

/// A message from the reading task. A channel that closes without an `End` means that the rest cannot be read.
enum Part {
    Records(std::vec::IntoIter<Bytes>),
    End,
}

impl RangeBody {
    /// Starts to read `source`. Must be called on a thread that runs local tasks.
    pub fn start(source: RangeSource, metrics: Arc<ThreadMetrics>) -> Self {
        let (sender, parts) = mpsc::channel(PARTS_AHEAD);
        tokio::task::spawn_local(async move {
            // Bounds how long the snapshot is held, whether the store or the client is slow.
            if tokio::time::timeout(source.timeout, read(source, sender)).await.is_err() {
                tracing::warn!("a range exceeded --range-timeout: its answer was cut short");
            }
        });
        Self { parts, records: Vec::new().into_iter(), metrics }
    }

    /// The next record, rendered.
    pub(super) fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if let Some(record) = self.records.next() {
                self.metrics.range_records.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(Some(Ok(record)));
            }
            match ready!(self.parts.poll_recv(cx)) {
                Some(Part::Records(records)) => self.records = records,
                Some(Part::End) => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Cut))),
            }
        }
    }
}

/// Reads until the end, the limit, an error, or until the receiver is gone.
async fn read(mut source: RangeSource, sender: mpsc::Sender<Part>) {
    let mut left = source.limit.unwrap_or(u64::MAX);
    loop {
        let part = match source.next(&mut left).await {
            Ok(part) => part,
            Err(error) => return tracing::error!(%error, "a range failed: its answer was cut short"),
        };
        let is_last = part.is_none();
        let records = part.unwrap_or_default();
        if !records.is_empty() && sender.send(Part::Records(records.into_iter())).await.is_err() {
            return;
        }
        if is_last || left == 0 {
            // The receiver may be gone by now.
            let _ = sender.send(Part::End).await;
            return;
        }
    }
}

fn render(part: Vec<(Bytes, Record)>, now: UnixMillis, format: RangeFormat, left: &mut u64) -> Vec<Bytes> {
    let mut rendered = Vec::with_capacity(part.len());
    // All records of a part share one allocation.
    let mut bytes = BytesMut::with_capacity(PART_BYTES + PART_BYTES / 8);
    for (key, record) in part {
        if *left == 0 {
            break;
        }
        let Some(value) = record.live(now) else { continue };
        match format {
            RangeFormat::Plain => {
                bytes.reserve(key.len() + 1 + value.len());
                bytes.put_slice(&key);
                bytes.put_u8(b'\n');
                bytes.put_slice(value);
            }
            RangeFormat::Ndjson => render_json(&mut bytes, &key, value, &record),
        }
        rendered.push(bytes.split().freeze());
        *left -= 1;
    }
    rendered
}

fn render_json(bytes: &mut BytesMut, key: &[u8], value: &[u8], record: &Record) {
    let mut object = serde_json::Map::new();
    for (name, raw) in [("key", key), ("value", value)] {
        match std::str::from_utf8(raw) {
            Ok(text) => object.insert(name.to_owned(), text.into()),
            Err(_) => object.insert(format!("{name}_base64"), BASE64.encode(raw).into()),
        };
    }
    object.insert("version".to_owned(), record.etag().to_string().into());
    if let Some(at) = record.expires {
        object.insert("expires".to_owned(), instant::shown(at).into());
    }
    bytes.put_slice(serde_json::Value::Object(object).to_string().as_bytes());
    bytes.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{NodeId, Value, Version};

    fn record(value: &'static [u8], expires: Option<u64>) -> Record {
        let version = Version::new(UnixMillis(1), 0, NodeId(2));
        Record {
            version,
            from: 1,
            expires: expires.map(UnixMillis),
            value: Value::Present(Bytes::from_static(value)),
            conditional: None,
        }
    }

    fn lines(format: RangeFormat, limit: u64) -> Vec<Bytes> {
        let tombstone = Record { value: Value::Tombstone, ..record(b"", None) };
        let part = vec![
            (Bytes::from_static(b"a"), record(b"1\n2", None)),
            (Bytes::from_static(b"b"), tombstone),
            (Bytes::from_static(b"c"), record(b"gone", Some(10))),
            (Bytes::from_static(b"\xff"), record(b"\x80", Some(11))),
            (Bytes::from_static(b"z"), record(b"forged", Some(u64::MAX))),
        ];
        let mut left = limit;
        render(part, UnixMillis(10), format, &mut left)
    }

    /// Both formats; tombstones and expired records are left out and do not count towards the limit.
    #[test]
    fn renders_live_records() {
        assert_eq!(lines(RangeFormat::Plain, 9), [&b"a\n1\n2"[..], b"\xff\n\x80", b"z\nforged"]);
        assert_eq!(lines(RangeFormat::Plain, 1), [&b"a\n1\n2"[..]]);
        let version = "0000000000010000-0000000000000002";
        assert_eq!(
            lines(RangeFormat::Ndjson, 3),
            [
                format!("{{\"key\":\"a\",\"value\":\"1\\n2\",\"version\":\"{version}\"}}\n"),
                format!(
                    "{{\"expires\":11,\"key_base64\":\"/w==\",\"value_base64\":\"gA==\",\"version\":\"{version}\"}}\n"
                ),
                // A number that JavaScript reads exactly.
                format!(
                    "{{\"expires\":9007199254740991,\"key\":\"z\",\"value\":\"forged\",\"version\":\"{version}\"}}\n"
                ),
            ]
        );
    }
}
