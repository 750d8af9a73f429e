//! Preconditions of requests (RFC 9110, section 13): `If-Match` and `If-None-Match`.
//!
//! A read is judged on the value that its replicas answer with. A write with a condition is refused, since the node
//! would ignore the condition.
//!
//! `If-Modified-Since` and `If-Unmodified-Since` of a read are not looked at: dates count seconds, and of two values
//! of one second a client would be told that the second is the first.

use super::error::Failure;
use http::header::{CONTENT_RANGE, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, Method};
use kvorum_core::Version;
use kvorum_core::condition::{Condition, ReadVerdict, Tags};
use std::borrow::Cow;

/// The preconditions of a GET or HEAD; none where it has no such header.
///
/// # Errors
/// 400 for a header that is no list of entity tags, whether there is a value or not.
pub(super) fn of_read(headers: &HeaderMap) -> Result<Option<Condition>, Failure> {
    if !headers.contains_key(IF_MATCH) && !headers.contains_key(IF_NONE_MATCH) {
        return Ok(None);
    }
    let (if_match, if_none_match) = (tags(headers, &IF_MATCH)?, tags(headers, &IF_NONE_MATCH)?);
    Ok(Some(Condition { if_match, if_none_match }))
}

/// Whether the client of a read has the value at `current` already.
///
/// # Errors
/// 412 if `If-Match` does not name the value.
pub(super) fn is_unmodified(condition: Option<&Condition>, current: Version) -> Result<bool, Failure> {
    match condition.map(|condition| condition.for_read(Some(current))) {
        None | Some(ReadVerdict::Proceed) => Ok(false),
        Some(ReadVerdict::NotModified) => Ok(true),
        Some(ReadVerdict::Failed) => Err(Failure::precondition(current)),
    }
}

/// The tags of one header, whose lines count as one list (RFC 9110, section 5.3).
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Failure> {
    let mut lines = headers.get_all(name).iter();
    let Some(first) = lines.next() else { return Ok(None) };
    let mut joined = Cow::Borrowed(first.as_bytes());
    for line in lines {
        let joined = joined.to_mut();
        joined.push(b',');
        joined.extend_from_slice(line.as_bytes());
    }
    Tags::parse(&joined).map(Some).map_err(|error| Failure::tags(name, error))
}

/// Refuses a write with a condition, which the node would ignore, and a write of a part of the value.
pub(super) fn check_write(headers: &HeaderMap, method: &Method) -> Result<(), Failure> {
    for (header, name) in [
        (IF_MATCH, "If-Match"),
        (IF_NONE_MATCH, "If-None-Match"),
        (IF_UNMODIFIED_SINCE, "If-Unmodified-Since"),
    ] {
        if headers.contains_key(header) {
            return Err(Failure::condition(name));
        }
    }
    // RFC 9110, 14.4: the client wants to write a part, and the rest of the value would be lost.
    if method == Method::PUT && headers.contains_key(CONTENT_RANGE) {
        return Err(Failure::partial_value());
    }
    Ok(())
}
