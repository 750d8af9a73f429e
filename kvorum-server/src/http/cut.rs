//! `/admin/cut`: the records of this node as of one timestamp, for a backup of the whole cluster.
//!
//! The program that makes the backup speaks to every node: it arms the same timestamp on all, closes it on all, and reads
//! the snapshots. What a cut is and why the union of a read quorum of them is exact: [`crate::replica::CutStep`] and
//! `docs/dev/cuts.md`.

use super::body::ReplyBody;
use super::error::Failure;
use super::handler::ThreadState;
use super::instant;
use super::range::{RangeBody, RangeFormat, RangeSource, Reader};
use super::target::{TargetError, digits, parameters, parse_key, set, unknown};
use super::topology;
use crate::background::CutError;
use crate::coordinator::{CoordinatorError, Shared};
use crate::replica::{CutReader, CutStep, CutView, ReplicaError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use kvorum_core::{Key, Record, Slot, Value};
use std::sync::Arc;
use std::time::Duration;

/// The longest time for which a cut may be kept, in seconds: a week.
const AGE_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;
const AGE_SECONDS_DEFAULT: u64 = 60 * 60;
const STAMP_ALLOWED: &str = "a timestamp of 16 hexadecimal digits, as GET /admin/cut shows them";

/// Reads the query of an order: exactly one step.
pub(super) fn parse_step(query: Option<&str>) -> Result<CutStep, TargetError> {
    let (mut step, mut age) = (None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"arm" => {
                let upto = parse_stamp("arm", &value)?;
                set(&mut step, "arm", CutStep::Arm { upto, age_max: Duration::ZERO })?;
            }
            b"close" => set(&mut step, "close", CutStep::Close { upto: parse_stamp("close", &value)? })?,
            b"drop" => set(&mut step, "drop", CutStep::Drop { upto: parse_stamp("drop", &value)? })?,
            b"age" => {
                let seconds = digits::<u64>(&value).filter(|age| (1..=AGE_SECONDS_MAX).contains(age));
                let allowed = "a number of seconds from 1 to 604800 (a week)";
                set(&mut age, "age", seconds.ok_or(TargetError::BadValue { name: "age", allowed })?)?;
            }
            _ => return Err(unknown(&name, "arm, close, drop, age")),
        }
    }
    match (step, age) {
        (None, _) => Err(TargetError::Missing { name: "arm" }),
        (Some(CutStep::Arm { upto, .. }), age) => {
            let age_max = Duration::from_secs(age.unwrap_or(AGE_SECONDS_DEFAULT));
            Ok(CutStep::Arm { upto, age_max })
        }
        (Some(_), Some(_)) => Err(unknown(b"age", "age only goes with arm")),
        (Some(step), None) => Ok(step),
    }
}

fn parse_stamp(name: &'static str, value: &[u8]) -> Result<u64, TargetError> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 16);
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let stamp = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    stamp.ok_or(TargetError::BadValue { name, allowed: STAMP_ALLOWED })
}

/// The parsed query of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecordsQuery {
    cut: u64,
    start: Key,
    end: Option<Key>,
    /// The nodes that share the values among them, ascending; `None` when this node sends all of its own.
    sources: Option<Vec<u16>>,
    /// A bit for each partition, the highest bit of the first byte first; `None` for all.
    partitions: Option<Vec<u8>>,
    /// The caller has the values of versions up to this timestamp.
    known: u64,
}

pub(super) fn parse_records(query: Option<&str>) -> Result<RecordsQuery, TargetError> {
    let (mut cut, mut start, mut end, mut sources, mut partitions) = (None, None, None, None, None);
    let mut known = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"cut" => set(&mut cut, "cut", parse_stamp("cut", &value)?)?,
            b"start" => set(&mut start, "start", parse_key("start", value)?)?,
            b"end" => set(&mut end, "end", parse_key("end", value)?)?,
            b"sources" => {
                let allowed = "indexes of nodes as /v0/topology lists them, ascending, such as 0,2";
                let list: Option<Vec<u16>> = value.split(|byte| *byte == b',').map(digits).collect();
                let list = list.filter(|list| list.is_sorted_by(|one, next| one < next));
                set(
                    &mut sources,
                    "sources",
                    list.ok_or(TargetError::BadValue { name: "sources", allowed })?,
                )?;
            }
            b"partitions" => {
                let allowed = "a bit for each partition, as hexadecimal digits";
                let bits = bits_of(&value).ok_or(TargetError::BadValue { name: "partitions", allowed })?;
                set(&mut partitions, "partitions", bits)?;
            }
            b"known" => set(&mut known, "known", parse_stamp("known", &value)?)?,
            _ => return Err(unknown(&name, "cut, start, end, sources, partitions, known")),
        }
    }
    let cut = cut.ok_or(TargetError::Missing { name: "cut" })?;
    let start = start.ok_or(TargetError::Missing { name: "start" })?;
    Ok(RecordsQuery { cut, start, end, sources, partitions, known: known.unwrap_or(0) })
}

fn bits_of(value: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = value.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok().filter(|_| pair.iter().all(u8::is_ascii_hexdigit))
    };
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// Takes a step, and answers with the state of the cut.
pub(super) async fn order<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let step = parse_step(request.uri().query())?;
    let shared = Arc::clone(state.coordinator()?.shared());
    shared.background.cuts.take(step).await.map_err(|error| match error {
        CutError::Reached => Failure::cut("the timestamp has been reached here: choose a later one"),
        CutError::ClockOff => {
            Failure::cut("this node's clock may be wrong: wait until a majority confirms it")
        }
        CutError::NotVoting => Failure::cut("this node does not vote: its records are not complete"),
        CutError::Busy => Failure::cut("another backup has a cut open here: wait until it has ended"),
        CutError::Gone => Failure::cut(GONE),
        CutError::Replica(ReplicaError::TooFarAhead(error)) => Failure::too_far_ahead(&error),
        CutError::Replica(error) => CoordinatorError::from(error).into(),
    })?;
    Ok(answer(&shared))
}

const GONE: &str = "this cut is not here: the node was started again since, or has dropped it";

/// Shows the cut that is kept.
pub(super) fn show<B>(state: &ThreadState, request: &Request<B>) -> Result<Response<ReplyBody>, Failure> {
    super::target::parse_nothing(request.uri().query())?;
    Ok(answer(state.coordinator()?.shared()))
}

fn answer(shared: &Shared) -> Response<ReplyBody> {
    let cut = shared.replica.cut_view().map(|CutView { upto, digests }| {
        serde_json::json!({
            "upto": format!("{upto:016x}"),
            "is_closed": digests.is_some(),
            "digests": digests.map(|digests| {
                let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_be_bytes()).collect();
                BASE64.encode(bytes)
            }),
        })
    });
    let body = serde_json::json!({
        "node": shared.cluster.me().0,
        "epoch": topology::epoch(&shared.cluster),
        "reading": format!("{:016x}", shared.background.cuts.reading()),
        "cut": cut,
    });
    let mut response = Response::new(ReplyBody::full(Bytes::from(format!("{body}\n"))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Streams the records of a closed cut as lines of JSON.
pub(super) async fn records<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let RecordsQuery { cut, start, end, sources, partitions, known } = parse_records(request.uri().query())?;
    if request.version() != http::Version::HTTP_11 {
        return Err(Failure::malformed("a range needs HTTP/1.1"));
    }
    let shared = Arc::clone(state.coordinator()?.shared());
    let reader = shared.replica.scan_cut(cut, start, end).await.map_err(CoordinatorError::from)?;
    let reader = reader.ok_or_else(|| Failure::cut(GONE))?;
    let now = shared.clock.wall();
    let reader = CutRows { shared, reader, sources, partitions, known };
    let source = RangeSource {
        reader: Reader::Cut(Box::new(reader)),
        now,
        limit: None,
        format: RangeFormat::Ndjson,
        timeout: state.service.limits.range_timeout,
    };
    let body = RangeBody::start(source, Arc::clone(&state.metrics));
    let mut response = Response::new(ReplyBody::Range(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// The rows of a cut that a request wants.
pub struct CutRows {
    shared: Arc<Shared>,
    reader: CutReader,
    sources: Option<Vec<u16>>,
    partitions: Option<Vec<u8>>,
    known: u64,
}

impl CutRows {
    /// The next records, each rendered; `None` at the end.
    pub(super) async fn next(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>, CoordinatorError> {
        let now = self.shared.clock.mono();
        let part = self.reader.next(bytes, now).await?;
        // Check afterwards: the store may have been set aside meanwhile.
        if !self.shared.cluster.votes() {
            return Err(CoordinatorError::Stopped);
        }
        if part.is_empty() {
            return Ok(None);
        }
        let mut lines = BytesMut::with_capacity(bytes + bytes / 8);
        let mut rendered = Vec::with_capacity(part.len());
        for (key, record) in part {
            let Ok(key) = Key::new(key) else { continue };
            let partition = self.shared.cluster.partition_of(&key);
            if !self.partitions.as_ref().is_none_or(|bits| is_wanted(bits, partition.0)) {
                continue;
            }
            let me = self.shared.cluster.me();
            let view = self.shared.cluster.view();
            let list = view.preference_list(partition);
            let sends_value =
                self.sources.as_ref().is_none_or(|sources| sender(list, view.slots(), sources) == Some(me));
            let sends_value = sends_value && record.version.clock() > self.known;
            render(&mut lines, &key, &record, sends_value);
            rendered.push(lines.split().freeze());
        }
        Ok(Some(rendered))
    }
}

fn is_wanted(bits: &[u8], partition: u16) -> bool {
    let byte = bits.get(usize::from(partition / 8)).copied().unwrap_or(0);
    byte << (partition % 8) & 0x80 != 0
}

/// The node that sends the values of a partition: its best replica among `sources`, which are places in `members`.
///
/// If members have changed since, it may be none, or one without the record: the caller then asks for the value.
fn sender(list: &[Slot], members: &[Slot], sources: &[u16]) -> Option<Slot> {
    let place = |slot: &Slot| members.binary_search(slot).ok().and_then(|place| u16::try_from(place).ok());
    let takes_part = |slot: &&Slot| place(slot).is_some_and(|place| sources.binary_search(&place).is_ok());
    list.iter().find(takes_part).copied()
}

/// A line: the version that decides, the version that clients see where it is another one, and the value, unless another
/// node sends it.
fn render(to: &mut BytesMut, key: &Key, record: &Record, sends_value: bool) {
    let mut line = serde_json::Map::new();
    let mut put = |name: &str, raw: &[u8]| match std::str::from_utf8(raw) {
        Ok(text) => line.insert(name.to_owned(), text.into()),
        Err(_) => line.insert(format!("{name}_base64"), BASE64.encode(raw).into()),
    };
    put("key", key.as_ref());
    match &record.value {
        Value::Present(value) if sends_value => {
            put("value", value);
        }
        Value::Present(_) => {}
        Value::Tombstone => {
            line.insert("is_deleted".to_owned(), true.into());
        }
    }
    line.insert("version".to_owned(), record.version.to_string().into());
    if record.etag() != record.version {
        line.insert("etag".to_owned(), record.etag().to_string().into());
    }
    if let Some(at) = record.expires {
        line.insert("expires".to_owned(), instant::shown(at).into());
    }
    to.put_slice(serde_json::Value::Object(line).to_string().as_bytes());
    to.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step an order; what is not understood is refused.
    #[test]
    fn orders_are_read() {
        let upto = 0x0123_4567_89ab_cdef;
        let age_max = Duration::from_secs(5);
        assert_eq!(parse_step(Some("arm=0123456789abcdef&age=5")), Ok(CutStep::Arm { upto, age_max }));
        assert_eq!(parse_step(Some("close=0123456789abcdef")), Ok(CutStep::Close { upto }));
        assert_eq!(parse_step(Some("drop=0123456789abcdef")), Ok(CutStep::Drop { upto }));
        for bad in [
            "",
            "arm=1",
            "arm=0123456789abcdeg",
            "arm=+123456789abcdef",
            "arm=0123456789abcdef&age=0",
            "close=0123456789abcdef&age=1",
            "arm=0123456789abcdef&close=0123456789abcdef",
            "open=0123456789abcdef",
        ] {
            assert!(parse_step(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_are_read() {
        let query = parse_records(Some("cut=0000000000000001&start=a&sources=0,2&partitions=80ff")).unwrap();
        assert_eq!((query.sources, query.partitions), (Some(vec![0, 2]), Some(vec![0x80, 0xff])));
        assert_eq!(
            parse_records(Some("cut=0000000000000002&start=a&known=0000000000000001")).unwrap().known,
            1
        );
        for bad in ["start=a", "cut=0000000000000001", "cut=0000000000000001&start=a&sources=2,0"] {
            assert!(parse_records(Some(bad)).is_err(), "{bad}");
        }
        assert_eq!((bits_of(b"8"), bits_of(b"+1"), bits_of(b"")), (None, None, Some(Vec::new())));
    }

    #[test]
    fn partitions_are_bits() {
        let wanted: Vec<u16> = (0..32).filter(|partition| is_wanted(&[0x80, 0x01], *partition)).collect();
        assert_eq!(wanted, [0, 15]);
    }

    /// Exactly one of the nodes that take part sends a value.
    #[test]
    fn the_best_replica_that_takes_part_sends_the_value() {
        let (list, members) = ([3, 1, 0, 2].map(Slot), [0, 1, 2, 3].map(Slot));
        assert_eq!(sender(&list, &members, &[0, 1, 2]), Some(Slot(1)));
        assert_eq!(sender(&list, &members, &[2]), Some(Slot(2)));
        assert_eq!(sender(&list, &members, &[]), None);
        // Where members have left, places and slots differ.
        let (list, members) = ([7, 4, 2].map(Slot), [2, 4, 7].map(Slot));
        assert_eq!(sender(&list, &members, &[0, 1, 2]), Some(Slot(7)));
        assert_eq!(sender(&list, &members, &[0, 1]), Some(Slot(4)));
    }
}
