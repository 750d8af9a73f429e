//! Preconditions of requests (RFC 9110, section 13): `If-Match` and `If-None-Match`.
//!
//! A read is judged on the value that its replicas answer with. A write is judged and done as one step
//! ([`crate::coordinator::Coordinator::write_if`]).
//!
//! `If-Modified-Since` and `If-Unmodified-Since` of a read are not looked at: dates count seconds, and of two values
//! of one second a client would be told that the second is the first. A write with `If-Unmodified-Since` is refused.

use super::error::Failure;
use crate::coordinator::{Coordinator, CoordinatorError, Decided, Edit, Edited, Mutation, Written};
use http::header::{CONTENT_RANGE, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, Method};
use kvorum_core::condition::{Condition, ReadVerdict, Tags};
use kvorum_core::{Key, Quorum, Version};
use std::borrow::Cow;
use std::num::NonZeroU128;
use std::rc::Rc;

/// The header that names a write, so that it can be repeated.
const OPERATION: &str = "kvorum-operation";
/// The longest name of a write, in bytes.
const OPERATION_BYTES_MAX: usize = 64;

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

/// What a write asks for beside its value; none for a plain write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    condition: Condition,
    /// The digest of `Kvorum-Operation`.
    operation: Option<NonZeroU128>,
}

/// The preconditions and the name of a PUT, POST or DELETE; none where it has neither.
///
/// # Errors
/// 400 for a header that is no list of entity tags, for a name that is not allowed, and for a part of a value. 501 for
/// `If-Unmodified-Since`.
pub(super) fn of_write(headers: &HeaderMap, method: &Method) -> Result<Option<Wish>, Failure> {
    if headers.contains_key(IF_UNMODIFIED_SINCE) {
        return Err(Failure::condition("If-Unmodified-Since"));
    }
    // RFC 9110, 14.4: the client wants to write a part, and the rest of the value would be lost.
    if method != Method::DELETE && headers.contains_key(CONTENT_RANGE) {
        return Err(Failure::partial_value());
    }
    let condition = of_read(headers)?;
    let operation = operation(headers)?;
    if condition.is_none() && operation.is_none() {
        return Ok(None);
    }
    Ok(Some(Wish { condition: condition.unwrap_or_default(), operation }))
}

fn operation(headers: &HeaderMap) -> Result<Option<NonZeroU128>, Failure> {
    let mut names = headers.get_all(OPERATION).iter();
    match (names.next(), names.next()) {
        (None, _) => Ok(None),
        (Some(name), None) => digest(name.as_bytes()).map(Some),
        (Some(_), Some(_)) => Err(Failure::operation(OPERATION_BYTES_MAX)),
    }
}

/// The digest of a write's name.
fn digest(name: &[u8]) -> Result<NonZeroU128, Failure> {
    let is_allowed = (1..=OPERATION_BYTES_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic);
    if !is_allowed {
        return Err(Failure::operation(OPERATION_BYTES_MAX));
    }
    // A digest of 0 stands for no name.
    Ok(NonZeroU128::new(xxhash_rust::xxh3::xxh3_128(name)).unwrap_or(NonZeroU128::MIN))
}

impl Wish {
    /// The same as [`of_write`] from the members of a batch's line. A version may be written without the quotes of an `ETag`,
    /// as the answers write it.
    ///
    /// # Errors
    /// 400.
    pub(super) fn of_line(
        if_match: Option<&str>,
        if_none_match: Option<&str>,
        operation: Option<&str>,
    ) -> Result<Option<Self>, Failure> {
        let tags = |name: &HeaderName, text: Option<&str>| {
            let Some(text) = text else { return Ok(None) };
            match text.parse::<Version>() {
                Ok(version) => Ok(Some(Tags::Listed { strong: vec![version], weak: Vec::new() })),
                Err(_) => Tags::parse(text.as_bytes()).map(Some).map_err(|error| Failure::tags(name, error)),
            }
        };
        let (if_match, if_none_match) = (tags(&IF_MATCH, if_match)?, tags(&IF_NONE_MATCH, if_none_match)?);
        let condition = Condition { if_match, if_none_match };
        let operation = operation.map(|name| digest(name.as_bytes())).transpose()?;
        let is_plain = condition.is_none() && operation.is_none();
        Ok((!is_plain).then_some(Self { condition, operation }))
    }

    /// The condition.
    pub(super) fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Refuses a quorum that is no majority: two of them might share no replica.
    ///
    /// # Errors
    /// 400.
    pub(super) fn check(wish: Option<&Self>, quorum: Quorum) -> Result<(), Failure> {
        if wish.is_some() { Self::check_majority(quorum) } else { Ok(()) }
    }

    /// Refuses a quorum that is no majority, as [`Self::check`] does, for a write that is conditional without a wish.
    ///
    /// # Errors
    /// 400.
    pub(super) fn check_majority(quorum: Quorum) -> Result<(), Failure> {
        let is_majority = 2 * u32::from(quorum.ack()) > u32::from(quorum.from());
        if is_majority { Ok(()) } else { Err(Failure::no_majority(quorum)) }
    }
}

/// Carries out a write, plain or conditional.
pub(super) async fn write(
    coordinator: &Rc<Coordinator>,
    key: Key,
    mutation: Mutation,
    wish: Option<Wish>,
    quorum: Quorum,
) -> Result<Decided, CoordinatorError> {
    match wish {
        None => coordinator.write(key, mutation, quorum).await.map(Decided::Written),
        // Boxed, so that the future of a plain write stays small.
        Some(Wish { condition, operation }) => {
            Box::pin(coordinator.write_if(key, mutation, condition, operation, quorum)).await
        }
    }
}

/// The write of a condition that held.
///
/// # Errors
/// 412 where it did not.
pub(super) fn written(decided: Decided) -> Result<Written, Failure> {
    match decided {
        Decided::Written(written) => Ok(written),
        Decided::Failed { current } => Err(Failure::condition_failed(current)),
    }
}

/// Carries out an edit.
pub(super) async fn edit(
    coordinator: &Rc<Coordinator>,
    key: Key,
    edit: Edit,
    wish: Option<Wish>,
    quorum: Quorum,
) -> Result<Edited, CoordinatorError> {
    let (condition, operation) = wish.map(|wish| (wish.condition, wish.operation)).unwrap_or_default();
    coordinator.edit(key, edit, condition, operation, quorum).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn wish(headers: &[(&'static str, &str)], method: &Method) -> Result<Option<Wish>, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        of_write(&map, method).map_err(|failure| failure.status().as_u16())
    }

    /// Which headers make a conditional write, and which are refused.
    #[test]
    fn wishes_are_read() {
        let put = Method::PUT;
        assert_eq!(wish(&[], &put), Ok(None));
        let absent = wish(&[("if-none-match", "*")], &put).unwrap().unwrap();
        assert!(absent.condition.holds(None) && absent.operation.is_none());
        let named =
            |name: &str| wish(&[("kvorum-operation", name)], &put).map(|wish| wish.unwrap().operation);
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
        assert!(named(&"n".repeat(64)).is_ok());
        for name in ["", "a b", "\u{e9}", &"n".repeat(65)] {
            assert_eq!(named(name), Err(400), "{name}");
        }
        assert_eq!(wish(&[("kvorum-operation", "a"), ("kvorum-operation", "a")], &put), Err(400));
        assert_eq!(wish(&[("if-match", "unquoted")], &put), Err(400));
        assert_eq!(wish(&[("if-unmodified-since", "x")], &put), Err(501));
        assert_eq!(wish(&[("content-range", "bytes 0-1/2")], &put), Err(400));
        assert_eq!(wish(&[("content-range", "bytes 0-1/2")], &Method::DELETE), Ok(None));
    }

    /// A condition needs a majority, so that any two quorums share a replica.
    #[test]
    fn a_condition_needs_a_majority() {
        let some = Wish { condition: Condition::default(), operation: None };
        for (ack, from, is_enough) in
            [(1, 1, true), (1, 2, false), (2, 3, true), (1, 3, false), (2, 4, false), (3, 4, true)]
        {
            let quorum = Quorum::new(ack, from, 5).unwrap();
            assert_eq!(Wish::check(Some(&some), quorum).is_ok(), is_enough, "{quorum}");
            assert!(Wish::check(None, quorum).is_ok());
        }
    }
}
