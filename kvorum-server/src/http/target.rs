//! The request target: what a path and query ask for. Pure functions over text from outside.
//!
//! Percent-decoding is strict and `+` is a plus sign. A parameter that is unknown, repeated or out of range is refused
//! with a line that says what is allowed.

use crate::background::PAUSE_MAX;
use bytes::Bytes;
use kvorum_core::{Key, KeyError, Quorum, QuorumError};
use kvorum_profiler::{Event, Format, SECONDS_MAX};
use std::fmt;
use std::time::Duration;

/// The parsed query of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityQuery {
    /// The key.
    pub key: Key,
    /// The quorum, if the request names one.
    pub replicas: Replicas,
    /// The value's time to live, in milliseconds.
    pub ttl_millis: Option<u64>,
    /// How a POST makes the new value from the one that is there.
    pub edit: Option<EditQuery>,
}

/// How a POST changes the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditQuery {
    /// It adds this number.
    Add(i64),
    /// It appends its body.
    Append,
}

/// The replica counts that a request names; not yet checked against the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replicas {
    /// `ack`.
    pub ack: Option<u16>,
    /// `from`.
    pub from: Option<u16>,
}

impl Replicas {
    /// The quorum in a cluster of `nodes`; counts that the request does not name come from `default`.
    pub fn quorum(self, default: Quorum, nodes: u16) -> Result<Quorum, TargetError> {
        let quorum = match (self.ack, self.from) {
            (None, None) => return Ok(default),
            (Some(ack), Some(from)) => Quorum::new(ack, from, nodes),
            (Some(ack), None) => Quorum::new(ack, default.from(), nodes),
            (None, Some(0)) => return Err(TargetError::BadValue { name: "from", allowed: REPLICAS_ALLOWED }),
            (None, Some(from)) => Quorum::new(Quorum::majority_of(from).ack(), from, nodes),
        };
        quorum.map_err(TargetError::BadQuorum)
    }
}

/// Which nodes a range covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every live key of the cluster.
    Cluster,
    /// What this node stores.
    Local,
}

/// The parsed query of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeQuery {
    /// The first key.
    pub start: Key,
    /// The first key after the range.
    pub end: Option<Key>,
    /// The most records.
    pub limit: Option<u64>,
    /// Which nodes.
    pub scope: Scope,
}

/// An invalid target: what is wrong with it, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetError {
    /// A `%` that is not followed by two hexadecimal digits.
    BadEscape {
        /// The parameter that contains it.
        name: String,
    },
    /// A parameter that the path does not have.
    UnknownParameter {
        /// Its name.
        name: String,
        /// The parameters that the path has.
        known: &'static str,
    },
    /// A parameter given twice, or two that mean the same.
    Repeated {
        /// Its name.
        name: &'static str,
    },
    /// `replicas` beside `ack` or `from`, which say the same.
    Clash {
        /// The other one.
        name: &'static str,
    },
    /// A parameter that must be given.
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// An invalid key.
    BadKey {
        /// The parameter.
        name: &'static str,
        /// Why.
        error: KeyError,
    },
    /// A value that cannot be understood or is out of range.
    BadValue {
        /// The parameter.
        name: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A partition number that does not exist.
    BadPartition {
        /// How many partitions there are.
        partitions: u32,
    },
    /// Replica counts that are not a valid quorum here.
    BadQuorum(QuorumError),
    /// A `ttl` on a request other than PUT.
    TtlWithoutPut,
    /// `add` or `append` on a request other than POST.
    EditWithoutPost,
    /// A POST of a key with neither `add` nor `append`.
    MissingEdit,
    /// Both `add` and `append`.
    TwoEdits,
}

const ADD_ALLOWED: &str = "a decimal number of 64 bits, such as 1 or -5";
const REPLICAS_ALLOWED: &str = "ACK/FROM with 1 <= ACK <= FROM <= nodes in the cluster, such as 2/3";
/// The default duration of a profile.
const PROFILE_SECONDS_DEFAULT: u16 = 10;
const TTL_ALLOWED: &str =
    "a duration above 0 and at most 36500d (100 years): 500ms, 30s, 15m, 12h, 7d, or seconds such as 2.5";
/// The longest TTL, in milliseconds: 100 years of 365 days.
const TTL_MILLIS_MAX: u64 = 36_500 * 24 * 60 * 60 * 1000;

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadEscape { name } => {
                write!(f, "parameter {name:?}: % must be followed by two hexadecimal digits")
            }
            Self::UnknownParameter { name, known } => {
                write!(f, "unknown parameter {name:?}; known here: {known}")
            }
            Self::Repeated { name } => write!(f, "parameter {name} is given more than once"),
            Self::Clash { name } => {
                write!(
                    f,
                    "parameters replicas and {name} exclude each other: replicas=ACK/FROM, or ack=ACK and from=FROM"
                )
            }
            Self::Missing { name } => write!(f, "parameter {name} is missing"),
            Self::BadKey { name, error } => write!(f, "parameter {name}: {error}"),
            Self::BadValue { name, allowed } => {
                write!(f, "parameter {name}: not understood; allowed is {allowed}")
            }
            Self::BadPartition { partitions } => {
                let last = partitions.saturating_sub(1);
                write!(f, "parameter partition: not the number of a partition; allowed is 0 to {last}")
            }
            Self::BadQuorum(error) => write!(f, "parameter replicas: {error}"),
            Self::TtlWithoutPut => f.write_str("parameter ttl: only a PUT takes one"),
            Self::EditWithoutPost => f.write_str("parameters add and append: only a POST takes them"),
            Self::MissingEdit => {
                f.write_str("a POST of a key needs add=N, or append with the bytes as its body")
            }
            Self::TwoEdits => f.write_str("parameters add and append exclude each other"),
        }
    }
}

impl std::error::Error for TargetError {}

/// Reads the query of `/v0/entity`.
pub fn parse_entity(query: Option<&str>) -> Result<EntityQuery, TargetError> {
    let mut key = None;
    let mut pair = None;
    let mut replicas = Replicas::default();
    let mut ttl_millis = None;
    let (mut addend, mut append) = (None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"id" => set(&mut key, "id", parse_key("id", value)?)?,
            b"replicas" => set(&mut pair, "replicas", parse_pair(&value)?)?,
            b"ack" => set(&mut replicas.ack, "ack", parse_count("ack", &value)?)?,
            b"from" => set(&mut replicas.from, "from", parse_count("from", &value)?)?,
            b"ttl" => set(&mut ttl_millis, "ttl", parse_ttl(&value)?)?,
            b"add" => set(&mut addend, "add", parse_addend(&value)?)?,
            b"append" if value.is_empty() => set(&mut append, "append", ())?,
            b"append" => {
                return Err(TargetError::BadValue {
                    name: "append",
                    allowed: "no value: the body is appended",
                });
            }
            _ => return Err(unknown(&name, "id, replicas (or ack and from), ttl, add, append")),
        }
    }
    if let Some((ack, from)) = pair {
        let clash = replicas.ack.map(|_| "ack").or(replicas.from.map(|_| "from"));
        if let Some(name) = clash {
            return Err(TargetError::Clash { name });
        }
        replicas = Replicas { ack: Some(ack), from: Some(from) };
    }
    let edit = match (addend, append) {
        (Some(_), Some(())) => return Err(TargetError::TwoEdits),
        (Some(addend), None) => Some(EditQuery::Add(addend)),
        (None, Some(())) => Some(EditQuery::Append),
        (None, None) => None,
    };
    Ok(EntityQuery { key: key.ok_or(TargetError::Missing { name: "id" })?, replicas, ttl_millis, edit })
}

/// Reads the query of `/v0/entities`.
pub fn parse_range(query: Option<&str>) -> Result<RangeQuery, TargetError> {
    let (mut start, mut end, mut limit, mut scope) = (None, None, None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"start" => set(&mut start, "start", parse_key("start", value)?)?,
            b"end" => set(&mut end, "end", parse_key("end", value)?)?,
            b"limit" => set(&mut limit, "limit", parse_limit(&value)?)?,
            b"scope" => set(&mut scope, "scope", parse_scope(&value)?)?,
            _ => return Err(unknown(&name, "start, end, limit, scope")),
        }
    }
    let start = start.ok_or(TargetError::Missing { name: "start" })?;
    Ok(RangeQuery { start, end, limit, scope: scope.unwrap_or(Scope::Cluster) })
}

/// Reads the query of `/v0/explain`: the key.
pub fn parse_explain(query: Option<&str>) -> Result<Key, TargetError> {
    let mut key = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"id" => set(&mut key, "id", parse_key("id", value)?)?,
            _ => return Err(unknown(&name, "id")),
        }
    }
    key.ok_or(TargetError::Missing { name: "id" })
}

/// The parsed query of `/v0/converged`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvergedQuery {
    /// The key whose partition is asked about; none for the partition with the oldest watermark.
    pub key: Option<Key>,
    /// Whether to include every partition's instant.
    pub all_partitions: bool,
}

/// Reads the query of `/v0/converged`.
pub fn parse_converged(query: Option<&str>) -> Result<ConvergedQuery, TargetError> {
    let (mut key, mut partitions) = (None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"id" => set(&mut key, "id", parse_key("id", value)?)?,
            b"partitions" if &*value == b"all" => set(&mut partitions, "partitions", ())?,
            b"partitions" => return Err(TargetError::BadValue { name: "partitions", allowed: "all" }),
            _ => return Err(unknown(&name, "id, partitions")),
        }
    }
    Ok(ConvergedQuery { key, all_partitions: partitions.is_some() })
}

/// The action of `/admin/repair`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairQuery {
    /// Compare one partition, or all, and repair the differences.
    Compare(Option<u16>),
    /// Drop records whose timestamps are too far ahead of the node's clock, of this partition or of all.
    DropUnbelievable(Option<u16>),
}

/// Reads the query of `/admin/repair`: the partition, below `partitions`, or none for all; or the records to drop.
pub fn parse_repair(query: Option<&str>, partitions: u32) -> Result<RepairQuery, TargetError> {
    let (mut partition, mut drops) = (None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"partition" => {
                let number = digits(&value).filter(|number| u32::from(*number) < partitions);
                set(&mut partition, "partition", number.ok_or(TargetError::BadPartition { partitions })?)?;
            }
            b"drop" if *value == *b"unbelievable" => set(&mut drops, "drop", ())?,
            b"drop" => return Err(TargetError::BadValue { name: "drop", allowed: "unbelievable" }),
            _ => return Err(unknown(&name, "partition, or drop")),
        }
    }
    Ok(match drops {
        None => RepairQuery::Compare(partition),
        Some(()) => RepairQuery::DropUnbelievable(partition),
    })
}

/// Reads the query of `/v0/topology`: how many nodes of each preference list are wanted.
pub fn parse_ranks(query: Option<&str>) -> Result<Option<u16>, TargetError> {
    let mut ranks = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"ranks" => set(&mut ranks, "ranks", parse_count("ranks", &value)?)?,
            _ => return Err(unknown(&name, "ranks")),
        }
    }
    match ranks {
        Some(0) => Err(TargetError::BadValue { name: "ranks", allowed: "a number from 1" }),
        ranks => Ok(ranks),
    }
}

/// Reads the query of `/v0/history`: how many samples are asked for, if it says so.
pub fn parse_history(query: Option<&str>) -> Result<Option<u16>, TargetError> {
    let mut last = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"last" => set(&mut last, "last", parse_count("last", &value)?)?,
            _ => return Err(unknown(&name, "last")),
        }
    }
    match last {
        Some(0) => Err(TargetError::BadValue { name: "last", allowed: "a number from 1" }),
        last => Ok(last),
    }
}

/// The parsed query of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileQuery {
    /// The event to count.
    pub event: Event,
    /// For how many seconds.
    pub seconds: u16,
    /// The format of the profile.
    pub format: Format,
}

/// Reads the query of `/debug/profile`. The defaults are CPU, 10 seconds and a flame graph.
pub fn parse_profile(query: Option<&str>) -> Result<ProfileQuery, TargetError> {
    let (mut event, mut seconds, mut format) = (None, None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"event" => set(&mut event, "event", parse_event(&value)?)?,
            b"seconds" => set(&mut seconds, "seconds", parse_seconds(&value)?)?,
            b"format" => set(&mut format, "format", parse_format(&value)?)?,
            _ => return Err(unknown(&name, "event, seconds, format")),
        }
    }
    Ok(ProfileQuery {
        event: event.unwrap_or(Event::Cpu),
        seconds: seconds.unwrap_or(PROFILE_SECONDS_DEFAULT),
        format: format.unwrap_or(Format::Svg),
    })
}

/// The name and the verb in `/admin/workers/NAME/VERB`.
pub fn worker_of(path: &str) -> Option<(&str, &str)> {
    let (name, verb) = path.strip_prefix("/admin/workers/")?.split_once('/')?;
    (!name.is_empty()).then_some((name, verb))
}

/// Reads the query of a pause: how long it lasts.
pub fn parse_pause(query: Option<&str>) -> Result<Option<Duration>, TargetError> {
    let mut time = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"for" => {
                let millis = parse_ttl(&value).ok().map(Duration::from_millis);
                let allowed = "a duration above 0 and at most 24h, such as 30s, 10m or 2h";
                let bad = TargetError::BadValue { name: "for", allowed };
                set(&mut time, "for", millis.filter(|millis| *millis <= PAUSE_MAX).ok_or(bad)?)?;
            }
            _ => return Err(unknown(&name, "for")),
        }
    }
    Ok(time)
}

/// Reads the query of `/v0/status`: whether the node counts as ready only while a default request reaches its quorum.
pub fn parse_status(query: Option<&str>) -> Result<bool, TargetError> {
    let mut ready = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"ready" if &*value == b"quorum" => set(&mut ready, "ready", ())?,
            b"ready" => return Err(TargetError::BadValue { name: "ready", allowed: "quorum" }),
            _ => return Err(unknown(&name, "ready")),
        }
    }
    Ok(ready.is_some())
}

/// Checks that the query of a path without parameters is empty.
pub fn parse_nothing(query: Option<&str>) -> Result<(), TargetError> {
    match parameters(query).next() {
        None => Ok(()),
        Some(parameter) => Err(unknown(&parameter?.0, "none")),
    }
}

pub(super) type Parameter = (Bytes, Bytes);

/// The decoded parameters of a query. A name without `=` has an empty value; an empty part between two `&` is skipped.
pub(super) fn parameters(query: Option<&str>) -> impl Iterator<Item = Result<Parameter, TargetError>> {
    query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty()).map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let bad = || TargetError::BadEscape { name: shorten(name.as_bytes()) };
        Ok((decode(name).ok_or_else(bad)?, decode(value).ok_or_else(bad)?))
    })
}

/// Percent-decodes `text`; `None` if an escape is not two hexadecimal digits.
pub fn decode(text: &str) -> Option<Bytes> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (&[high, low], tail) = rest.split_first_chunk::<2>()?;
        bytes.push((hex_digit(high)? << 4) | hex_digit(low)?);
        rest = tail;
    }
    Some(Bytes::from(bytes))
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

pub(super) fn set<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), TargetError> {
    if slot.replace(value).is_some() { Err(TargetError::Repeated { name }) } else { Ok(()) }
}

pub(super) fn unknown(name: &[u8], known: &'static str) -> TargetError {
    TargetError::UnknownParameter { name: shorten(name), known }
}

/// Makes text from outside fit for one line of an answer: control characters are escaped, and it is cut to 64 bytes.
fn shorten(text: &[u8]) -> String {
    let head = text.get(..64).unwrap_or(text);
    head.escape_ascii().to_string()
}

pub(super) fn parse_key(name: &'static str, value: Bytes) -> Result<Key, TargetError> {
    Key::new(value).map_err(|error| TargetError::BadKey { name, error })
}

fn parse_pair(value: &[u8]) -> Result<(u16, u16), TargetError> {
    let bad = TargetError::BadValue { name: "replicas", allowed: REPLICAS_ALLOWED };
    let mut parts = value.splitn(2, |byte| *byte == b'/');
    match (parts.next().and_then(digits), parts.next().and_then(digits)) {
        (Some(ack), Some(from)) => Ok((ack, from)),
        _ => Err(bad),
    }
}

/// The quorum that a batch's line names, as `replicas`.
pub(super) fn replicas_of(pair: Option<&str>) -> Result<Replicas, TargetError> {
    let pair = pair.map(|pair| parse_pair(pair.as_bytes())).transpose()?;
    Ok(Replicas { ack: pair.map(|(ack, _)| ack), from: pair.map(|(_, from)| from) })
}

fn parse_count(name: &'static str, value: &[u8]) -> Result<u16, TargetError> {
    digits(value).ok_or(TargetError::BadValue { name, allowed: "a number from 1 to the number of nodes" })
}

/// As the number in a value is written: a minus sign at most before the digits.
fn parse_addend(value: &[u8]) -> Result<i64, TargetError> {
    let sum = kvorum_core::condition::add(Some(value), 0);
    sum.map_err(|_| TargetError::BadValue { name: "add", allowed: ADD_ALLOWED })
}

fn parse_limit(value: &[u8]) -> Result<u64, TargetError> {
    let limit = digits(value).filter(|limit| *limit > 0);
    limit.ok_or(TargetError::BadValue { name: "limit", allowed: "a number of records, at least 1" })
}

fn parse_scope(value: &[u8]) -> Result<Scope, TargetError> {
    match value {
        b"cluster" => Ok(Scope::Cluster),
        b"local" => Ok(Scope::Local),
        _ => Err(TargetError::BadValue { name: "scope", allowed: "cluster or local" }),
    }
}

fn parse_event(value: &[u8]) -> Result<Event, TargetError> {
    let event = std::str::from_utf8(value).ok().and_then(Event::parse);
    event.ok_or(TargetError::BadValue { name: "event", allowed: "cpu, alloc, lock, wall or live" })
}

fn parse_seconds(value: &[u8]) -> Result<u16, TargetError> {
    let seconds = digits(value).filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
    seconds.ok_or(TargetError::BadValue { name: "seconds", allowed: "a whole number from 1 to 300" })
}

fn parse_format(value: &[u8]) -> Result<Format, TargetError> {
    let format = std::str::from_utf8(value).ok().and_then(Format::parse);
    format.ok_or(TargetError::BadValue { name: "format", allowed: "svg, collapsed or pprof" })
}

/// A number in plain decimal digits: no sign, no spaces.
pub(super) fn digits<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Reads a `ttl` as milliseconds; fractions of a millisecond are rounded up.
pub(super) fn parse_ttl(value: &[u8]) -> Result<u64, TargetError> {
    let duration = std::str::from_utf8(value).ok().and_then(kvorum_units::duration);
    let millis =
        duration.and_then(kvorum_units::millis_up).filter(|millis| (1..=TTL_MILLIS_MAX).contains(millis));
    millis.ok_or(TargetError::BadValue { name: "ttl", allowed: TTL_ALLOWED })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key_of(query: &str) -> Result<Vec<u8>, TargetError> {
        parse_entity(Some(query)).map(|query| query.key.as_ref().to_vec())
    }

    /// Keys are bytes: every escape gives its byte, `+` stays, UTF-8 passes, and bad escapes are refused.
    #[test]
    fn keys_are_decoded_strictly() {
        let check = |query: &str, expect: Option<&[u8]>| {
            assert_eq!(key_of(query).ok().as_deref(), expect, "{query}");
        };
        check("id=a", Some(b"a"));
        check("id=a+b", Some(b"a+b"));
        check("id=%00%ff%2B%41%2f", Some(b"\x00\xff+A/"));
        check("id=a=b=c", Some(b"a=b=c"));
        check("%69d=x", Some(b"x"));
        check("&id=x&&", Some(b"x"));
        for bad in ["", "id", "id=", "id=%", "id=%4", "id=%zz", "id=%+1", "id=%%41", "ID=x", "id=a&id=b"] {
            check(bad, None);
        }
        assert!(key_of(&format!("id={}", "%00".repeat(1024))).is_ok());
        assert!(key_of(&format!("id={}", "%00".repeat(1025))).is_err());
    }

    /// An invalid partition number is refused with the valid ones. The text used to name the number of nodes, or no
    /// upper bound.
    #[test]
    fn partitions_are_read() {
        let partition = |query: &str| parse_repair(Some(query), 4_096);
        assert_eq!(partition(""), Ok(RepairQuery::Compare(None)));
        assert_eq!(partition("partition=0"), Ok(RepairQuery::Compare(Some(0))));
        assert_eq!(partition("partition=4095"), Ok(RepairQuery::Compare(Some(4_095))));
        assert_eq!(partition("drop=unbelievable"), Ok(RepairQuery::DropUnbelievable(None)));
        let one = RepairQuery::DropUnbelievable(Some(1));
        assert_eq!(partition("drop=unbelievable&partition=1"), Ok(one));
        assert!(partition("drop=all").is_err());
        for bad in ["partition=4096", "partition=99999", "partition=-1", "partition=x", "partition="] {
            let error = partition(bad).unwrap_err();
            assert_eq!(error, TargetError::BadPartition { partitions: 4_096 }, "{bad}");
            assert!(error.to_string().ends_with("allowed is 0 to 4095"), "{error}");
        }
    }

    /// Both spellings of the quorum mean the same; mixtures and malformed ones are refused.
    #[test]
    fn replicas_are_read() {
        let replicas = |query: &str| {
            parse_entity(Some(&format!("id=k&{query}"))).map(|q| (q.replicas.ack, q.replicas.from))
        };
        assert_eq!(replicas("replicas=2/3"), Ok((Some(2), Some(3))));
        assert_eq!(replicas("replicas=2%2F3"), Ok((Some(2), Some(3))));
        assert_eq!(replicas("ack=2&from=3"), Ok((Some(2), Some(3))));
        assert_eq!(replicas("ack=1"), Ok((Some(1), None)));
        for bad in [
            "replicas=",
            "replicas=2",
            "replicas=/",
            "replicas=2/",
            "replicas=/3",
            "replicas=2/3/4",
            "replicas=-1/3",
            "replicas=+1/3",
            "replicas=1 /3",
            "replicas=1/65536",
            "replicas=a/b",
            "replicas=1/2&ack=1",
            "ack=",
            "from=x",
            "replicas=1/1&replicas=1/1",
        ] {
            assert!(replicas(bad).is_err(), "{bad}");
        }
    }

    /// How a POST changes a value; numbers are read as those in values are.
    #[test]
    fn edits_are_read() {
        let edit = |query: &str| parse_entity(Some(&format!("id=k&{query}"))).map(|query| query.edit);
        assert_eq!(edit("add=5"), Ok(Some(EditQuery::Add(5))));
        assert_eq!(edit("add=-9223372036854775808"), Ok(Some(EditQuery::Add(i64::MIN))));
        assert_eq!(edit("append"), Ok(Some(EditQuery::Append)));
        assert_eq!(edit("append="), Ok(Some(EditQuery::Append)));
        assert_eq!(edit(""), Ok(None));
        assert_eq!(edit("add=1&append"), Err(TargetError::TwoEdits));
        for bad in ["add", "add=+1", "add=1.0", "add=9223372036854775808", "add=1&add=1", "append=x"] {
            assert!(edit(bad).is_err(), "{bad}");
        }
    }

    /// The quorum that a request gets in a cluster of three.
    #[test]
    fn quorum_fills_in_what_is_not_named() {
        let quorum = |ack, from| {
            Replicas { ack, from }.quorum(Quorum::majority_of(3), 3).map(|quorum| quorum.to_string())
        };
        assert_eq!(quorum(None, None), Ok("2/3".to_owned()));
        assert_eq!(quorum(Some(1), None), Ok("1/3".to_owned()));
        assert_eq!(quorum(None, Some(1)), Ok("1/1".to_owned()));
        assert_eq!(quorum(Some(3), Some(3)), Ok("3/3".to_owned()));
        for (ack, from) in [(Some(0), Some(1)), (Some(2), Some(1)), (Some(1), Some(4)), (None, Some(0))] {
            assert!(quorum(ack, from).is_err(), "{ack:?} {from:?}");
        }
    }

    /// Every form of a TTL in milliseconds, and invalid forms.
    #[test]
    fn ttl_in_all_forms() {
        let ttl = |text: &str| parse_ttl(text.as_bytes()).ok();
        let good = [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("12h", 43_200_000),
            ("7d", 604_800_000),
            ("5", 5000),
            ("0.5", 500),
            ("1.0005", 1001),
            ("0.0001", 1),
            ("36500d", 3_153_600_000_000),
            ("3153600000", 3_153_600_000_000),
            ("3153600000000ms", 3_153_600_000_000),
            ("1.5m", 90_000),
            ("250us", 1),
        ];
        for (text, millis) in good {
            assert_eq!(ttl(text), Some(millis).filter(|millis| *millis > 0), "{text}");
        }
        for bad in [
            "",
            "0",
            "0ms",
            "0.0",
            "-1",
            "+1",
            "2.",
            "1w",
            "s",
            "ms",
            "1 s",
            "1S",
            ".5",
            "1e3",
            "99999999999999999999",
            "18446744073709551615d",
            "36501d",
            "876001h",
            "3153600000.001",
            "3153600000001ms",
            "18446744073709551615ms",
            "1..2",
            "١s",
        ] {
            assert_eq!(ttl(bad), None, "{bad}");
        }
    }

    /// A range needs a start; everything else has its rule.
    #[test]
    fn ranges_are_read() {
        let range = |query: &str| parse_range(Some(query));
        let all = range("start=a&end=b&limit=7&scope=local").unwrap();
        assert_eq!((all.limit, all.scope), (Some(7), Scope::Local));
        assert_eq!(range("start=a").unwrap().scope, Scope::Cluster);
        for bad in [
            "",
            "start=",
            "end=b",
            "start=a&end=",
            "start=a&limit=0",
            "start=a&limit=-1",
            "start=a&scope=all",
            "start=a&id=b",
            "start=a&start=b",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    /// Every parameter of a profile has a default, and an unknown value is refused by the parameter's name.
    #[test]
    fn profiles_are_read() {
        let profile = |query: &str| parse_profile(Some(query));
        let default = ProfileQuery { event: Event::Cpu, seconds: 10, format: Format::Svg };
        assert_eq!(parse_profile(None), Ok(default));
        let all = ProfileQuery { event: Event::Lock, seconds: 300, format: Format::Pprof };
        assert_eq!(profile("event=lock&seconds=300&format=pprof"), Ok(all));
        for bad in [
            "event=",
            "event=CPU",
            "event=cpu&event=cpu",
            "seconds=0",
            "seconds=301",
            "seconds=1.5",
            "seconds=-1",
            "seconds=",
            "format=png",
            "format=",
        ] {
            let error = profile(bad).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{bad}: {error}");
        }
        assert!(profile("id=a").is_err());
        assert_eq!(SECONDS_MAX, 300, "the message says so");
    }

    proptest! {
        /// No text makes the parsers panic, and an error fits on one line.
        #[test]
        fn any_text_is_answered(query in "\\PC{0,80}|(id|start|ack|from|ttl|replicas|limit|scope|=|&|%|/|[0-9a-f.]){0,40}") {
            let errors = [parse_entity(Some(&query)).err(), parse_profile(Some(&query)).err(), parse_range(Some(&query)).err(), parse_nothing(Some(&query)).err()];
            for error in errors.into_iter().flatten() {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }

        /// Any key that is escaped byte by byte comes back as it was.
        #[test]
        fn escaped_keys_round_trip(key in prop::collection::vec(any::<u8>(), 1..50)) {
            let escaped = key.iter().fold(String::from("id="), |text, byte| text + &format!("%{byte:02x}"));
            prop_assert_eq!(key_of(&escaped), Ok(key));
        }
    }
}
