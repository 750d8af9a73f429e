//! A node's answer: its headers as values, and its body within a limit.

use crate::entry::{Entry, Head, Page, Status, Version};
use crate::error::Error;
use crate::operation::{Operation, Replicas};
use crate::retry::Cause;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, ETAG, HeaderName, RETRY_AFTER};
use http::{HeaderMap, Response};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, timeout_at};

const EXPIRES: HeaderName = HeaderName::from_static("kvorum-expires");
const REPLICAS: HeaderName = HeaderName::from_static("kvorum-replicas");

/// The longest `Retry-After` that is accepted: a node cannot send its clients away for good.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// The longest text of a failure that is read, in bytes: by the contract it is one line.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// The most memory that is reserved because an answer announces its length, in bytes; more is allocated as
/// bytes arrive.
const RESERVE_BYTES_MAX: usize = 1024 * 1024;

/// A whole answer to `operation`.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) operation: Operation,
    pub(crate) node: Arc<str>,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The result of a GET of `key`.
    pub(crate) fn into_entry(self, key: Bytes) -> Result<Option<Entry>, Error> {
        if self.status == 404 {
            return Ok(None);
        }
        let version = self.checked(version(&self.headers))?;
        let expires = self.checked(expires(&self.headers))?;
        let replicas = text(&self.headers, &REPLICAS).map(str::to_owned);
        Ok(Some(Entry { key, value: self.body, version, expires, replicas }))
    }

    /// The result of a HEAD of `key`.
    pub(crate) fn into_head(self, key: Bytes) -> Result<Option<Head>, Error> {
        if self.status == 404 {
            return Ok(None);
        }
        let version = self.checked(version(&self.headers))?;
        let expires = self.checked(expires(&self.headers))?;
        let replicas = text(&self.headers, &REPLICAS).map(str::to_owned);
        let value_bytes = text(&self.headers, &CONTENT_LENGTH).and_then(|length| length.parse().ok());
        Ok(Some(Head { key, value_bytes, version, expires, replicas }))
    }

    /// The version that a PUT was given.
    pub(crate) fn into_version(self) -> Result<Version, Error> {
        self.checked(version(&self.headers))
    }

    /// The number that an addition made.
    pub(crate) fn into_number(self) -> Result<i64, Error> {
        let number = std::str::from_utf8(&self.body).ok().and_then(|text| text.trim().parse().ok());
        self.checked(number.ok_or_else(|| "the answer is not a number of 64 bits".to_owned()))
    }

    /// The body as text.
    pub(crate) fn into_text(self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The state that a node reports.
    pub(crate) fn into_status(self) -> Status {
        let body = String::from_utf8_lossy(&self.body).into_owned();
        Status { node: self.node.as_ref().to_owned(), code: self.status, body }
    }

    /// A page, unchanged.
    pub(crate) fn into_page(self) -> Page {
        Page { node: self.node.as_ref().to_owned(), code: self.status, body: self.body }
    }

    fn checked<T>(&self, result: Result<T, String>) -> Result<T, Error> {
        result.map_err(|message| Error::Protocol {
            operation: self.operation.clone(),
            node: Arc::clone(&self.node),
            message,
            may_have_taken_effect: self.operation.is_write(),
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

fn version(headers: &HeaderMap) -> Result<Version, String> {
    let tag = text(headers, &ETAG).ok_or("no ETag")?;
    let quoted = tag.strip_prefix("W/").unwrap_or(tag);
    match quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(version) if !version.is_empty() => Ok(Version::from(version.to_owned())),
        _ => Err(format!("ETag {tag:?} is not a quoted version")),
    }
}

fn expires(headers: &HeaderMap) -> Result<Option<SystemTime>, String> {
    if !headers.contains_key(EXPIRES) {
        return Ok(None);
    }
    let spelled = text(headers, &EXPIRES).unwrap_or_default();
    let millis = spelled.parse().ok().map(unix_millis);
    millis.map(Some).ok_or_else(|| format!("Kvorum-Expires {spelled:?} is not in Unix milliseconds"))
}

/// The instant `millis` after 1970 began. Where the platform cannot express it: the last instant that a node
/// shows.
pub(crate) fn unix_millis(millis: u64) -> SystemTime {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    at.unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_millis((1 << 53) - 1))
}

/// How many replicas had confirmed a quorum that was not reached, as far as the node reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Missed {
    /// How many replicas confirmed.
    pub(crate) confirmed: Option<u32>,
    /// How many must confirm.
    pub(crate) required: Option<u32>,
    /// How many replicas were asked.
    pub(crate) from: Option<u32>,
}

/// Reads the counts of a 504: its header has the confirmations, its text also the required number; `asked` is
/// the request's quorum.
pub(crate) fn missed(headers: &HeaderMap, message: &str, asked: Option<Replicas>) -> Missed {
    let header = text(headers, &REPLICAS).and_then(|pair| pair.split_once('/'));
    let in_header = header.and_then(|(ack, from)| Some((ack.parse().ok()?, from.parse().ok()?)));
    // "… 1 of the 2 replicas that must confirm (of 3) …"
    let in_text = || {
        let (before, after) = message.split_once(" of the ")?;
        let (required, after) = after.split_once(" replicas that must confirm (of ")?;
        let confirmed = before.rsplit(' ').next()?.parse().ok()?;
        let from = after.split_once(')')?.0.parse().ok()?;
        Some((confirmed, required.parse().ok()?, from))
    };
    let in_text: Option<(u32, u32, u32)> = in_text();
    Missed {
        confirmed: in_header.map(|(confirmed, _)| confirmed).or(in_text.map(|(confirmed, _, _)| confirmed)),
        required: asked.map(|asked| asked.ack).or(in_text.map(|(_, required, _)| required)),
        from: in_header.map(|(_, from)| from).or(asked.map(|asked| asked.from)).or(in_text.map(|it| it.2)),
    }
}

/// How long the node asks not to be sent requests, in whole seconds; a date is not part of the contract.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = text(headers, &RETRY_AFTER)?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Whether the answer marks its own end. Without that, a lost connection would look like the end.
pub(crate) fn is_framed(response: &Response<Incoming>) -> bool {
    let is_chunked = || response.headers().contains_key(http::header::TRANSFER_ENCODING);
    response.body().size_hint().exact().is_some() || is_chunked()
}

/// Reads `body` to its end.
///
/// # Errors
/// [`Cause::TooLarge`] as soon as it is known to have more than `bytes_max`, [`Cause::Cut`], or
/// [`Cause::DeadlinePassed`]. What was read is lost; the connection cannot be used any more.
pub(crate) async fn read_whole(
    body: &mut Incoming,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Bytes, Cause> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(Cause::TooLarge { bytes_max });
    }
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => return Err(Cause::DeadlinePassed { waiting_for: "end of the answer" }),
            Ok(Some(Err(error))) => return Err(Cause::Cut(error.into())),
            Ok(None) => return Ok(if joined.is_empty() { whole } else { joined.freeze() }),
            // A frame without bytes is trailers, which mean nothing here.
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        if whole.len() + joined.len() + frame.len() > bytes_max {
            return Err(Cause::TooLarge { bytes_max });
        }
        // Most answers come in one piece, which is passed on as it is; only a second one makes a copy.
        if whole.is_empty() && joined.is_empty() {
            whole = frame;
        } else {
            if joined.is_empty() {
                joined.reserve(announced.min(RESERVE_BYTES_MAX));
                joined.extend_from_slice(&std::mem::take(&mut whole));
            }
            joined.extend_from_slice(&frame);
        }
    }
}

/// Reads the first line of a failure's text, and says whether that was the whole body.
///
/// The status alone is enough to act on: an error while reading only makes the text shorter.
pub(crate) async fn read_message(response: Response<Incoming>, deadline: Instant) -> (String, bool) {
    let reason = response.status().canonical_reason().unwrap_or("no text");
    let is_framed = is_framed(&response);
    let mut body = response.into_body();
    let mut text = BytesMut::new();
    let is_whole = loop {
        match timeout_at(deadline, body.frame()).await {
            Err(_) | Ok(Some(Err(_))) => break false,
            Ok(None) => break is_framed,
            Ok(Some(Ok(frame))) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
        }
        if text.len() > MESSAGE_BYTES_MAX {
            text.truncate(MESSAGE_BYTES_MAX);
            break false;
        }
    };
    let text = String::from_utf8_lossy(&text);
    // A terminal would obey control characters, and a log would break at them.
    let line: String =
        text.trim().lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    (if line.is_empty() { reason.to_owned() } else { line }, is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn one(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn reads_versions() {
        let check = |value, expect: Option<&str>| {
            let read = version(&one(ETAG, value));
            assert_eq!(read.as_ref().ok().map(Version::as_str), expect, "{value}");
        };
        check("\"0000-01\"", Some("0000-01"));
        check("W/\"0000-01\"", Some("0000-01"));
        check("0000-01", None);
        check("\"\"", None);
        check("\"", None);
        assert!(version(&HeaderMap::new()).is_err());
    }

    #[test]
    fn reads_expiry() {
        assert_eq!(expires(&HeaderMap::new()), Ok(None));
        assert_eq!(expires(&one(EXPIRES, "1500")), Ok(Some(unix_millis(1_500))));
        // The instant is beyond the range of a date, which is no reason to fail a read.
        assert!(matches!(expires(&one(EXPIRES, "18446744073709551615")), Ok(Some(_))));
        assert!(expires(&one(EXPIRES, "soon")).is_err());
    }

    #[test]
    fn reads_how_far_a_quorum_came() {
        let words = "Not Enough Replicas: 1 of the 2 replicas that must confirm (of 3) did so in 1000 ms";
        let asked = Some(Replicas { ack: 4, from: 5 });
        let header = one(REPLICAS, "0/7");
        let none = HeaderMap::new();
        let check = |headers: &HeaderMap, message, asked, expect: [u32; 3]| {
            let [confirmed, required, from] = expect.map(|it| (it != 99).then_some(it));
            assert_eq!(missed(headers, message, asked), Missed { confirmed, required, from }, "{message}");
        };
        check(&none, words, None, [1, 2, 3]);
        check(&header, words, None, [0, 2, 7]);
        check(&header, words, asked, [0, 4, 7]);
        check(&none, "", asked, [99, 4, 5]);
        check(&one(REPLICAS, "x/7"), "of the replicas that must confirm (of", None, [99, 99, 99]);
    }

    #[test]
    fn believes_retry_after_within_bounds() {
        let check = |value, expect| assert_eq!(retry_after(&one(RETRY_AFTER, value)), expect, "{value}");
        check("2", Some(Duration::from_secs(2)));
        check("86400", Some(RETRY_AFTER_MAX));
        check("Fri, 31 Dec 1999 23:59:59 GMT", None);
        check("-1", None);
    }
}
