//! `/admin/entity`: a record of a backup, written with the `ETag` that it had.

use super::body::ReplyBody;
use super::conditions::Wish;
use super::connection::Connection;
use super::error::Failure;
use super::handler::{self, ThreadState};
use super::target::{TargetError, digits, parameters, parse_key, set, unknown};
use super::values::{self, Brought};
use crate::coordinator::{Decided, Written};
use crate::slow;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use kvorum_core::{Key, UnixMillis, Version};

/// The parsed query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RestoreQuery {
    key: Key,
    version: Version,
    expires: Option<UnixMillis>,
}

pub(super) fn parse(query: Option<&str>) -> Result<RestoreQuery, TargetError> {
    let (mut key, mut version, mut expires) = (None, None, None);
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"id" => set(&mut key, "id", parse_key("id", value)?)?,
            b"version" => {
                let parsed = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                let allowed = "a version as the ETag has it: 16 hexadecimal digits, a dash, and 16 more";
                let parsed = parsed.filter(|version| *version > Version::ZERO);
                set(
                    &mut version,
                    "version",
                    parsed.ok_or(TargetError::BadValue { name: "version", allowed })?,
                )?;
            }
            b"expires" => {
                let allowed = "Unix milliseconds";
                let at = digits(&value).ok_or(TargetError::BadValue { name: "expires", allowed })?;
                set(&mut expires, "expires", UnixMillis(at))?;
            }
            _ => return Err(unknown(&name, "id, version, expires")),
        }
    }
    let key = key.ok_or(TargetError::Missing { name: "id" })?;
    let version = version.ok_or(TargetError::Missing { name: "version" })?;
    Ok(RestoreQuery { key, version, expires })
}

/// Writes a record of a backup. The answer is 200 if the key has a value of this version already.
pub(super) async fn put<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
) -> Result<Response<ReplyBody>, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let RestoreQuery { key, version, expires } = parse(request.uri().query())?;
    let coordinator = state.coordinator()?;
    let believed = coordinator.shared().timestamps.check(version.clock());
    believed.map_err(|error| Failure::too_far_ahead(&error))?;
    let quorum = coordinator.default_quorum();
    Wish::check_majority(quorum)?;
    slow::note_key(&key);
    let (head, body) = request.into_parts();
    let Brought { value, taken } = values::read(state, connection, &head.headers, body).await?;
    let done = coordinator.restore(key, value, version, expires, quorum).await;
    taken.end(&state.service, done.is_ok());
    match done? {
        Decided::Failed { current } if current == Some(version) => {
            let there = Decided::Written(Written { version, confirmed: quorum.ack() });
            handler::written(StatusCode::OK, there, quorum)
        }
        done => handler::written(StatusCode::CREATED, done, quorum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read() {
        let version = "0123456789abcdef-0000000000000001";
        let query = parse(Some(&format!("id=k&version={version}&expires=5"))).unwrap();
        assert_eq!((query.version.to_string(), query.expires), (version.to_owned(), Some(UnixMillis(5))));
        for bad in [
            "id=k".to_owned(),
            format!("version={version}"),
            format!("id=k&version={version}x"),
            format!("id=k&version={version}&expires=-1"),
            format!("id=k&version={version}&ttl=5s"),
            format!("id=k&version={:016x}-{:016x}", 0, 0),
        ] {
            assert!(parse(Some(&bad)).is_err(), "{bad}");
        }
    }
}
