//! The clients' HTTP: one kept connection to each node, and one attempt per operation.
//!
//! The client repeats nothing. A repetition is another write, and the oracle has to know every write.

use crate::history::{AckFrom, Condition, Doubt, Entry, Outcome, Request, value_of, write_of};
use crate::net::SimConnector;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kvorum_core::Version;
use kvorum_server::peer::Connector;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// One client's connections.
#[derive(Debug, Default)]
pub struct HttpClient {
    open: BTreeMap<String, SendRequest<Full<Bytes>>>,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: http::HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There was no connection: nothing was sent.
    NotSent,
    /// The answer did not come in time.
    Timeout,
    /// The connection ended after the request was sent, or amid the answer.
    Cut,
}

impl HttpClient {
    /// A client without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends `request` to `authority` once and reads the whole answer. Must run where local tasks can be spawned.
    ///
    /// # Errors
    /// [`Failure`]; the connection is closed.
    pub async fn send(
        &mut self,
        authority: &str,
        request: http::Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let end = tokio::time::Instant::now() + timeout;
        let connected = tokio::time::timeout_at(end, self.connection(authority)).await;
        let mut connection = connected.map_err(|_| Failure::NotSent)??;
        let answer = tokio::time::timeout_at(end, exchange(&mut connection, request)).await;
        let answer = answer.unwrap_or(Err(Failure::Timeout));
        if answer.is_ok() {
            self.open.insert(authority.to_owned(), connection);
        }
        answer
    }

    /// The kept connection, if it is still there, or a new one.
    async fn connection(&mut self, authority: &str) -> Result<SendRequest<Full<Bytes>>, Failure> {
        if let Some(mut kept) = self.open.remove(authority)
            && kept.ready().await.is_ok()
        {
            return Ok(kept);
        }
        let stream = SimConnector::default().connect(authority).await.map_err(|_| Failure::NotSent)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failure::NotSent)?;
        // Ends with the connection; the request that was under way sees the error.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        sender.ready().await.map_err(|_| Failure::NotSent)?;
        Ok(sender)
    }
}

async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: http::Request<Full<Bytes>>,
) -> Result<Answer, Failure> {
    let answer = connection.send_request(request).await.map_err(|_| Failure::Cut)?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|_| Failure::Cut)?.to_bytes();
    Ok(Answer { status: head.status, headers: head.headers, body })
}

/// The HTTP request of operation `id`; without `replicas` the node's default applies.
pub fn request_of(
    id: u64,
    authority: &str,
    key: &[u8],
    request: &Request,
    condition: Condition,
    replicas: Option<AckFrom>,
    value_bytes: usize,
) -> http::Request<Full<Bytes>> {
    let (method, mut target) = match request {
        Request::Get => (Method::GET, format!("/v0/entity?id={}", encoded(key))),
        Request::Head => (Method::HEAD, format!("/v0/entity?id={}", encoded(key))),
        Request::Put { .. } => (Method::PUT, format!("/v0/entity?id={}", encoded(key))),
        Request::Delete => (Method::DELETE, format!("/v0/entity?id={}", encoded(key))),
        Request::Range { .. } => (Method::GET, format!("/v0/entities?start={}", encoded(key))),
    };
    // Writing to a string cannot fail.
    match request {
        Request::Put { ttl: Some(ttl) } => {
            let _ = write!(target, "&ttl={}ms", ttl.as_millis());
        }
        Request::Range { end, limit } => {
            if let Some(end) = end {
                let _ = write!(target, "&end={}", encoded(end));
            }
            if let Some(limit) = limit {
                let _ = write!(target, "&limit={limit}");
            }
        }
        _ => {}
    }
    if let Some(AckFrom { ack, from }) = replicas {
        let _ = write!(target, "&replicas={ack}/{from}");
    }
    let body = if method == Method::PUT { value_of(id, value_bytes) } else { Bytes::new() };
    let mut http = http::Request::new(Full::new(body));
    *http.method_mut() = method;
    // Both are made of valid characters; if they are wrong all the same, the node refuses them.
    *http.uri_mut() = target.parse().unwrap_or_default();
    let headers = http.headers_mut();
    if let Ok(host) = authority.parse() {
        headers.insert(http::header::HOST, host);
    }
    let (header, tag) = match condition {
        Condition::Any => (None, String::new()),
        Condition::Absent => (Some(http::header::IF_NONE_MATCH), "*".to_owned()),
        Condition::Present => (Some(http::header::IF_MATCH), "*".to_owned()),
        Condition::Match(version) => (Some(http::header::IF_MATCH), format!("\"{version}\"")),
    };
    if let (Some(header), Ok(tag)) = (header, tag.parse()) {
        headers.insert(header, tag);
    }
    if matches!(request, Request::Range { .. }) {
        headers.insert(http::header::ACCEPT, http::HeaderValue::from_static("application/x-ndjson"));
    }
    http
}

fn encoded(key: &[u8]) -> String {
    key.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// The outcome of an operation, from its answer. An answer that the contract does not define leaves it
/// unknown.
pub fn outcome_of(request: &Request, answer: Result<&Answer, Failure>) -> Outcome {
    let answer = match answer {
        Ok(answer) => answer,
        Err(Failure::NotSent) => return Outcome::Refused { status: 0 },
        Err(Failure::Timeout) => return Outcome::Unknown(Doubt::Timeout),
        Err(Failure::Cut) => return Outcome::Unknown(Doubt::Cut),
    };
    let status = answer.status.as_u16();
    let in_doubt = Outcome::Unknown(Doubt::Status(status));
    match (request, status) {
        (Request::Put { .. }, 201) | (Request::Delete, 202) => {
            version_of(answer).map_or(in_doubt, |version| Outcome::Acknowledged { version })
        }
        (Request::Get, 200) => version_of(answer).map_or(in_doubt, |version| {
            let write = write_of(&answer.body);
            Outcome::Value { write, version, is_foreign: write.is_none() }
        }),
        (Request::Head, 200) => version_of(answer).map_or(in_doubt, |version| Outcome::Value {
            write: None,
            version,
            is_foreign: false,
        }),
        (Request::Get | Request::Head, 404) => Outcome::Absent,
        (Request::Range { .. }, 200) => entries_of(&answer.body).map_or(in_doubt, Outcome::Range),
        (Request::Put { .. } | Request::Delete, 412) => Outcome::Failed { current: version_of(answer) },
        (_, 400..=499 | 503 | 507) => Outcome::Refused { status },
        _ => in_doubt,
    }
}

fn version_of(answer: &Answer) -> Option<Version> {
    answer.headers.get(http::header::ETAG)?.to_str().ok()?.trim_matches('"').parse().ok()
}

/// Reads an answer with one record per line; `None` if a line cannot be read.
fn entries_of(body: &[u8]) -> Option<Vec<Entry>> {
    body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(entry_of).collect()
}

fn entry_of(line: &[u8]) -> Option<Entry> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    let bytes = |name: &str| match line.get(name) {
        Some(text) => Some(Bytes::from(text.as_str()?.to_owned())),
        None => STANDARD.decode(line.get(format!("{name}_base64"))?.as_str()?).ok().map(Bytes::from),
    };
    let version = line.get("version")?.as_str()?.parse().ok()?;
    Some(Entry { key: bytes("key")?, write: write_of(&bytes("value")?), version })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, version: Option<&str>, body: &[u8]) -> Answer {
        let mut headers = http::HeaderMap::new();
        version.map(|version| headers.insert(http::header::ETAG, version.parse().unwrap()));
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: Bytes::copy_from_slice(body) }
    }

    const VERSION: &str = "0000000000010000-00000000000000ff";

    /// Statuses mean what the contract says: done, nothing done, or not known.
    #[test]
    fn statuses_keep_their_meaning() {
        let tagged = format!("\"{VERSION}\"");
        let version: Version = VERSION.parse().unwrap();
        let of = |request: &Request, status| outcome_of(request, Ok(&answer(status, Some(&tagged), b"")));
        let put = Request::Put { ttl: None };
        assert_eq!(of(&put, 201), Outcome::Acknowledged { version });
        assert_eq!(of(&Request::Delete, 202), Outcome::Acknowledged { version });
        for status in [400, 405, 413, 503, 507] {
            assert_eq!(of(&put, status), Outcome::Refused { status });
        }
        for status in [200, 500, 504] {
            assert_eq!(of(&put, status), Outcome::Unknown(Doubt::Status(status)));
        }
        assert_eq!(of(&put, 412), Outcome::Failed { current: Some(version) });
        assert_eq!(of(&Request::Get, 404), Outcome::Absent);
        assert!(matches!(of(&Request::Get, 200), Outcome::Value { is_foreign: true, .. }));
        let value = answer(200, Some(&tagged), &value_of(9, 100));
        assert!(matches!(outcome_of(&Request::Get, Ok(&value)), Outcome::Value { write: Some(9), .. }));
        assert_eq!(outcome_of(&put, Err(Failure::NotSent)), Outcome::Refused { status: 0 });
        assert_eq!(outcome_of(&put, Err(Failure::Cut)), Outcome::Unknown(Doubt::Cut));
    }

    /// Lines of a range are read, with keys that are not text.
    #[test]
    fn ranges_are_read() {
        let value = String::from_utf8(value_of(9, 30).to_vec()).unwrap();
        let value = serde_json::Value::from(value);
        let body = format!(
            "{{\"key\":\"a\",\"value\":{value},\"version\":\"{VERSION}\"}}\n{{\"key_base64\":\"/w==\",\"value\":\"x\",\"version\":\"{VERSION}\"}}\n"
        );
        let entries = entries_of(body.as_bytes()).unwrap();
        assert_eq!(entries[0].write, Some(9));
        assert_eq!((&entries[1].key[..], entries[1].write), (&b"\xff"[..], None));
        assert_eq!(entries_of(b"{}\n"), None);
    }

    /// Requests name the key byte by byte and everything else as the contract spells it.
    #[test]
    fn requests_are_spelled() {
        let target = |request: &Request| {
            let http = request_of(
                7,
                "node-0:8080",
                b"a+ \xff",
                request,
                Condition::Any,
                Some(AckFrom::new(1, 2)),
                24,
            );
            http.uri().to_string()
        };
        assert_eq!(target(&Request::Get), "/v0/entity?id=a%2B%20%FF&replicas=1/2");
        let ttl = Some(Duration::from_millis(1500));
        assert_eq!(target(&Request::Put { ttl }), "/v0/entity?id=a%2B%20%FF&ttl=1500ms&replicas=1/2");
        let range = Request::Range { end: Some(Bytes::from_static(b"z")), limit: Some(5) };
        assert_eq!(target(&range), "/v0/entities?start=a%2B%20%FF&end=z&limit=5&replicas=1/2");
    }
}
