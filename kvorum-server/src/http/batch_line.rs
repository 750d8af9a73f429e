//! One line of a batch: the operation that it asks for, and the line that answers it.

use super::conditions::{self, Wish};
use super::error::Failure;
use super::handler::quorum_of;
use super::instant;
use super::target::{self, Replicas, TargetError};
use crate::coordinator::{Coordinator, Found, Mutation};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::StatusCode;
use kvorum_core::{Key, Quorum, Right, Version};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::rc::Rc;

/// A line as it is written. A member that is not here, or is there twice, is refused: a misspelt one must not mean nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    op: Op,
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    replicas: Option<String>,
    ttl: Option<Value>,
    if_match: Option<String>,
    if_none_match: Option<String>,
    operation: Option<String>,
}

/// The operations that a line may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    Get,
    Put,
    Delete,
}

impl Op {
    /// The right that the line needs on its key.
    pub(super) fn right(self) -> Right {
        match self {
            Self::Get => Right::Read,
            Self::Put => Right::Write,
            Self::Delete => Right::Delete,
        }
    }
}

/// An operation of a batch.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) op: Op,
    pub(super) key: Key,
    value: Option<Bytes>,
    ttl_millis: Option<u64>,
    replicas: Replicas,
    wish: Option<Wish>,
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// 400; 413 for a value of more than `value_bytes_max`.
    pub(super) fn parse(
        line: &[u8],
        coordinator: &Coordinator,
        value_bytes_max: u64,
    ) -> Result<Self, Failure> {
        let text: Text = serde_json::from_slice(line).map_err(|error| Failure::line(&error.to_string()))?;
        let key = one("key", text.key, "key_base64", text.key_base64)?;
        let key = key.ok_or_else(|| Failure::line("key or key_base64 is missing"))?;
        let key = Key::new(key).map_err(|error| TargetError::BadKey { name: "key", error })?;
        let value = one("value", text.value, "value_base64", text.value_base64)?;
        match (text.op, &value, &text.ttl) {
            (Op::Put, None, _) => return Err(Failure::line("a put needs value or value_base64")),
            (Op::Get | Op::Delete, Some(_), _) => return Err(Failure::line("only a put takes a value")),
            (Op::Get | Op::Delete, _, Some(_)) => return Err(TargetError::TtlWithoutPut.into()),
            _ => {}
        }
        if value.as_ref().is_some_and(|value| value.len() as u64 > value_bytes_max) {
            return Err(Failure::too_large(value_bytes_max));
        }
        let ttl = match text.ttl {
            None => None,
            Some(Value::String(ttl)) => Some(target::parse_ttl(ttl.as_bytes())?),
            // As written: a number is seconds.
            Some(ttl) => Some(target::parse_ttl(ttl.to_string().as_bytes())?),
        };
        let replicas = target::replicas_of(text.replicas.as_deref())?;
        let quorum = quorum_of(replicas, coordinator)?;
        if text.op == Op::Get && text.operation.is_some() {
            return Err(Failure::line("only a write takes an operation"));
        }
        let wish = Wish::of_line(
            text.if_match.as_deref(),
            text.if_none_match.as_deref(),
            text.operation.as_deref(),
        )?;
        if text.op != Op::Get {
            Wish::check(wish.as_ref(), quorum)?;
        }
        Ok(Self { op: text.op, key, value, ttl_millis: ttl, replicas, wish })
    }

    /// How long the value is that it writes.
    pub(super) fn value_bytes(&self) -> u64 {
        self.value.as_ref().map_or(0, |value| value.len() as u64)
    }

    /// Carries it out.
    ///
    /// # Errors
    /// The failure that the answer shows.
    pub(super) async fn run(self, coordinator: &Rc<Coordinator>) -> Result<Answer, Failure> {
        let Self { op, key, value, ttl_millis, replicas, wish } = self;
        // The cluster may have grown or shrunk while the line waited.
        let quorum = quorum_of(replicas, coordinator)?;
        let (mutation, status) = match op {
            Op::Get => return get(coordinator, key, quorum, wish.as_ref()).await,
            Op::Put => {
                let value = value.unwrap_or_default();
                (Mutation::Put { value, ttl_millis }, StatusCode::CREATED)
            }
            Op::Delete => (Mutation::Delete, StatusCode::ACCEPTED),
        };
        let done = conditions::write(coordinator, key, mutation, wish, quorum).await?;
        let written = conditions::written(done)?;
        Ok(Answer::new(status).version(written.version).replicas(written.confirmed, quorum))
    }
}

async fn get(
    coordinator: &Rc<Coordinator>,
    key: Key,
    quorum: Quorum,
    wish: Option<&Wish>,
) -> Result<Answer, Failure> {
    let Found { record, now, answered } = coordinator.read(key, quorum).await?;
    let Some(record) = record else { return Err(Failure::not_found()) };
    let Some(value) = record.live(now) else { return Err(Failure::not_found()) };
    let is_unmodified = conditions::is_unmodified(wish.map(Wish::condition), record.etag())?;
    let status = if is_unmodified { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let mut answer = Answer::new(status).version(record.etag()).replicas(answered, quorum);
    if !is_unmodified {
        answer = answer.value(value);
    }
    if let Some(at) = record.expires {
        answer.0.insert("expires".to_owned(), instant::shown(at).into());
    }
    Ok(answer)
}

/// The one of two members that is there; `None` without either.
fn one(
    name: &str,
    text: Option<String>,
    name_base64: &str,
    base64: Option<String>,
) -> Result<Option<Bytes>, Failure> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Failure::line(&format!("{name} and {name_base64} exclude each other"))),
        (Some(text), None) => Ok(Some(Bytes::from(text))),
        (None, Some(text)) => match BASE64.decode(text) {
            Ok(bytes) => Ok(Some(Bytes::from(bytes))),
            Err(error) => Err(Failure::line(&format!("{name_base64}: {error}"))),
        },
        (None, None) => Ok(None),
    }
}

/// The line that answers a line.
#[derive(Debug)]
pub(super) struct Answer(Map<String, Value>);

impl Answer {
    fn new(status: StatusCode) -> Self {
        let mut members = Map::new();
        members.insert("status".to_owned(), status.as_u16().into());
        Self(members)
    }

    /// The answer of a failure, with the version that it shows.
    pub(super) fn failed(status: StatusCode, code: &str, message: &str, etag: Option<&str>) -> Self {
        let mut answer = Self::new(status);
        answer.0.insert("error".to_owned(), code.into());
        answer.0.insert("message".to_owned(), message.into());
        if let Some(etag) = etag {
            answer.0.insert("version".to_owned(), etag.trim_matches('"').into());
        }
        answer
    }

    fn version(mut self, version: Version) -> Self {
        self.0.insert("version".to_owned(), version.to_string().into());
        self
    }

    fn replicas(mut self, answered: u16, quorum: Quorum) -> Self {
        self.0.insert("replicas".to_owned(), format!("{answered}/{}", quorum.from()).into());
        self
    }

    fn value(mut self, value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) => self.0.insert("value".to_owned(), text.into()),
            Err(_) => self.0.insert("value_base64".to_owned(), BASE64.encode(value).into()),
        };
        self
    }

    /// The status of the answer.
    pub(super) fn status(&self) -> u16 {
        self.0
            .get("status")
            .and_then(Value::as_u64)
            .and_then(|status| u16::try_from(status).ok())
            .unwrap_or(0)
    }

    /// Its bytes, with the line's end.
    pub(super) fn into_bytes(self) -> Bytes {
        let mut line = Value::Object(self.0).to_string();
        line.push('\n');
        Bytes::from(line)
    }
}
