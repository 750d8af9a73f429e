//! An operation as an HTTP request: method, target, headers, body.
//!
//! The same [`Call`] makes the request of every attempt; its body is shared, not copied.

use crate::entry::Version;
use crate::error::Error;
use crate::operation::{
    AddOptions, Condition, DeleteOptions, Operation, PutOptions, ReadOptions, Replicas, ScanOptions, Scope,
};
use crate::pool::Node;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use std::fmt::Write as _;
use std::time::Duration;

/// The path of records of a backup.
const RESTORE_PATH: &str = "/admin/entity";

/// The longest key of the contract, in bytes.
const KEY_BYTES_MAX: usize = 1024;

/// One operation, ready to be sent any number of times.
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) wanted: Wanted,
    /// The operation's own time limit; without it, the client's.
    pub(crate) timeout: Option<Duration>,
    /// Whether it is not repeated after an unknown outcome, whatever the client's policy.
    pub(crate) is_once: bool,
    method: Method,
    target: Uri,
    accept: Option<&'static str>,
    condition: Option<(HeaderName, HeaderValue)>,
    body: Bytes,
}

/// The properties that decide which nodes are best asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// The key whose replicas are asked; `None` where any node is as good.
    pub(crate) key: Option<Bytes>,
    /// The quorum of the request; `None` leaves it to the node.
    pub(crate) replicas: Option<Replicas>,
    /// Whether other clients' calls of this kind for the key overtake each other, if they go through different nodes. One node
    /// lets them share their rounds, so all go to the key's first replica.
    pub(crate) has_rivals: bool,
}

impl Call {
    pub(crate) fn get(key: &[u8], options: ReadOptions) -> Result<Self, Error> {
        let operation = Operation::Get { key: Bytes::copy_from_slice(key) };
        let target = entity(&operation, key, options.replicas)?;
        Ok(Self::new(operation, Method::GET, target)?.with(options.replicas, options.timeout))
    }

    pub(crate) fn head(key: &[u8], options: ReadOptions) -> Result<Self, Error> {
        let operation = Operation::Head { key: Bytes::copy_from_slice(key) };
        let target = entity(&operation, key, options.replicas)?;
        Ok(Self::new(operation, Method::HEAD, target)?.with(options.replicas, options.timeout))
    }

    pub(crate) fn put(key: &[u8], value: Bytes, options: PutOptions) -> Result<Self, Error> {
        let operation = Operation::Put { key: Bytes::copy_from_slice(key) };
        let mut target = entity(&operation, key, options.replicas)?;
        if let Some(ttl) = options.ttl {
            let millis = whole_millis(ttl);
            if millis > TTL_MILLIS_MAX {
                let message =
                    format!("a TTL of {ttl:?} is longer than the 100 years (36500 days) there may be");
                return Err(Error::InvalidRequest { operation, message });
            }
            push(&mut target, format_args!("&ttl={millis}ms"));
        }
        let call = Self::new(operation, Method::PUT, target)?.with(options.replicas, options.timeout);
        Ok(Self { body: value, ..call })
    }

    pub(crate) fn restore(
        key: &[u8],
        value: Bytes,
        version: &Version,
        expires_millis: Option<u64>,
    ) -> Result<Self, Error> {
        let operation = Operation::Put { key: Bytes::copy_from_slice(key) };
        check_key(&operation, key)?;
        let mut target = format!("{RESTORE_PATH}?id=");
        push_encoded(&mut target, key);
        target.push_str("&version=");
        push_encoded(&mut target, version.as_str().as_bytes());
        if let Some(at) = expires_millis {
            push(&mut target, format_args!("&expires={at}"));
        }
        Ok(Self { body: value, ..Self::new(operation, Method::PUT, target)? })
    }

    pub(crate) fn delete(key: &[u8], options: DeleteOptions) -> Result<Self, Error> {
        let operation = Operation::Delete { key: Bytes::copy_from_slice(key) };
        let target = entity(&operation, key, options.replicas)?;
        Ok(Self::new(operation, Method::DELETE, target)?.with(options.replicas, options.timeout))
    }

    pub(crate) fn add(key: &[u8], addend: i64, options: AddOptions) -> Result<Self, Error> {
        let operation = Operation::Add { key: Bytes::copy_from_slice(key) };
        let mut target = entity(&operation, key, options.replicas)?;
        push(&mut target, format_args!("&add={addend}"));
        let call = Self::new(operation, Method::POST, target)?.with(options.replicas, options.timeout);
        Ok(call.among_rivals())
    }

    pub(crate) fn scan(start: &[u8], end: Option<&[u8]>, options: ScanOptions) -> Result<Self, Error> {
        let operation = Operation::Scan { start: Bytes::copy_from_slice(start) };
        check_key(&operation, start)?;
        let mut target = "/v0/entities?start=".to_owned();
        push_encoded(&mut target, start);
        if let Some(end) = end {
            check_key(&operation, end)?;
            target.push_str("&end=");
            push_encoded(&mut target, end);
        }
        if let Some(limit) = options.limit {
            push(&mut target, format_args!("&limit={limit}"));
        }
        match options.scope {
            Scope::Cluster => {}
            Scope::Local => target.push_str("&scope=local"),
        }
        let call = Self::new(operation, Method::GET, target)?.with(None, options.timeout);
        Ok(Self { accept: Some("application/x-ndjson"), ..call })
    }

    pub(crate) fn explain(key: &[u8], json: bool) -> Result<Self, Error> {
        let operation = Operation::Explain { key: Bytes::copy_from_slice(key) };
        check_key(&operation, key)?;
        let mut target = "/v0/explain?id=".to_owned();
        push_encoded(&mut target, key);
        let call = Self::new(operation, Method::GET, target)?;
        Ok(Self { accept: Some(if json { "application/json" } else { "text/plain" }), ..call })
    }

    pub(crate) fn repair(partition: Option<u16>) -> Result<Self, Error> {
        let mut target = "/admin/repair".to_owned();
        if let Some(partition) = partition {
            push(&mut target, format_args!("?partition={partition}"));
        }
        let call = Self::new(Operation::Repair, Method::POST, target)?;
        Ok(Self { accept: Some("application/json"), ..call })
    }

    pub(crate) fn drop_unbelievable() -> Result<Self, Error> {
        let call = Self::new(Operation::Repair, Method::POST, "/admin/repair?drop=unbelievable".to_owned())?;
        Ok(Self { accept: Some("application/json"), ..call })
    }

    pub(crate) fn batch(operations: Bytes) -> Result<Self, Error> {
        let call = Self::new(Operation::Batch, Method::POST, "/v0/batch".to_owned())?;
        Ok(Self { is_once: true, body: operations, ..call })
    }

    pub(crate) fn status() -> Result<Self, Error> {
        let call = Self::new(Operation::Status, Method::GET, "/v0/status".to_owned())?;
        Ok(Self { accept: Some("application/json"), ..call })
    }

    pub(crate) fn cluster(json: bool) -> Result<Self, Error> {
        let call = Self::page("/admin/cluster")?;
        Ok(Self { accept: Some(if json { "application/json" } else { "text/plain" }), ..call })
    }

    pub(crate) fn page(target: &str) -> Result<Self, Error> {
        let operation = Operation::Page { target: target.to_owned() };
        if target.starts_with('/') {
            return Self::new(operation, Method::GET, target.to_owned());
        }
        let message = "a page is a path with its query, such as /metrics".to_owned();
        Err(Error::InvalidRequest { operation, message })
    }

    pub(crate) fn lines(target: &str, timeout: Option<Duration>) -> Result<Self, Error> {
        let operation = Operation::Lines { target: target.to_owned() };
        let call = Self::new(operation, Method::GET, target.to_owned())?.with(None, timeout);
        Ok(Self { accept: Some("application/x-ndjson"), ..call })
    }

    pub(crate) fn order(target: &str) -> Result<Self, Error> {
        let operation = Operation::Order { target: target.to_owned() };
        let call = Self::new(operation, Method::POST, target.to_owned())?;
        Ok(Self { accept: Some("application/json"), ..call })
    }

    fn new(operation: Operation, method: Method, target: String) -> Result<Self, Error> {
        match Uri::try_from(target) {
            Ok(target) => {
                let wanted = Wanted { key: operation.placed_key().cloned(), ..Wanted::default() };
                Ok(Self {
                    operation,
                    wanted,
                    timeout: None,
                    is_once: false,
                    method,
                    target,
                    accept: None,
                    condition: None,
                    body: Bytes::new(),
                })
            }
            Err(error) => Err(Error::InvalidRequest { operation, message: error.to_string() }),
        }
    }

    /// The same on a condition.
    pub(crate) fn on(self, condition: &Condition) -> Result<Self, Error> {
        let (name, tags) = match condition {
            Condition::Absent => (IF_NONE_MATCH, "*".to_owned()),
            Condition::Present => (IF_MATCH, "*".to_owned()),
            Condition::Version(version) => (IF_MATCH, format!("\"{}\"", version.as_str())),
        };
        match HeaderValue::try_from(tags) {
            Ok(tags) => Ok(Self { condition: Some((name, tags)), ..self.among_rivals() }),
            Err(error) => {
                let message = format!("a version that no header can have: {error}");
                Err(Error::InvalidRequest { operation: self.operation, message })
            }
        }
    }

    fn among_rivals(self) -> Self {
        Self { is_once: true, wanted: Wanted { has_rivals: true, ..self.wanted }, ..self }
    }

    fn with(self, replicas: Option<Replicas>, timeout: Option<Duration>) -> Self {
        Self { wanted: Wanted { replicas, ..self.wanted }, timeout, ..self }
    }

    /// Makes a request of the client itself, to `node`.
    pub(crate) fn question(target: &'static str, node: &Node) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = Uri::from_static(target);
        node.address_head(request.headers_mut());
        request
    }

    /// Whether a head with `status` is this operation's answer, rather than its failure.
    pub(crate) fn expects(&self, status: u16) -> bool {
        match self.operation {
            Operation::Get { .. } | Operation::Head { .. } => matches!(status, 200 | 404),
            // A restored record may be there already.
            Operation::Put { .. } => status == 201 || status == 200 && self.target.path() == RESTORE_PATH,
            Operation::Delete { .. } => status == 202,
            Operation::Batch
            | Operation::Add { .. }
            | Operation::Scan { .. }
            | Operation::Explain { .. }
            | Operation::Repair
            | Operation::Lines { .. } => status == 200,
            // A node that drains answers 503: that is a valid state.
            Operation::Status | Operation::Order { .. } | Operation::Page { .. } => true,
        }
    }

    /// The request to `node`.
    pub(crate) fn request(&self, node: &Node) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.clone();
        node.address_head(request.headers_mut());
        if let Some(accept) = self.accept {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        }
        if let Some((name, tags)) = &self.condition {
            request.headers_mut().insert(name, tags.clone());
        }
        if matches!(self.method, Method::PUT | Method::POST) {
            // Also for an empty body: a PUT without a length gets 411.
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        request
    }
}

fn entity(operation: &Operation, key: &[u8], replicas: Option<Replicas>) -> Result<String, Error> {
    check_key(operation, key)?;
    let mut target = "/v0/entity?id=".to_owned();
    push_encoded(&mut target, key);
    if let Some(replicas) = replicas {
        push(&mut target, format_args!("&replicas={replicas}"));
    }
    Ok(target)
}

/// Refuses keys that would not fit a request line; the node checks everything else.
fn check_key(operation: &Operation, key: &[u8]) -> Result<(), Error> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    let message = format!("a key of {} bytes: it has 1 to {KEY_BYTES_MAX}", key.len());
    Err(Error::InvalidRequest { operation: operation.clone(), message })
}

/// Appends `bytes` so that all of them survive: unreserved characters (RFC 3986, 2.3) as they are, all others
/// as `%XX`.
fn push_encoded(target: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                target.push(char::from(byte));
            }
            _ => push(target, format_args!("%{byte:02X}")),
        }
    }
}

/// Appends `text`. Writing to a `String` cannot fail.
fn push(target: &mut String, text: std::fmt::Arguments<'_>) {
    let written = target.write_fmt(text);
    debug_assert!(written.is_ok());
}

/// The longest TTL that a cluster takes, in milliseconds: 100 years of 365 days.
const TTL_MILLIS_MAX: u128 = 36_500 * 24 * 60 * 60 * 1000;

/// Rounds up: a record must not be gone before its time, and a time above zero must not become zero.
fn whole_millis(ttl: Duration) -> u128 {
    ttl.as_nanos().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HOST;

    fn target(call: Result<Call, Error>) -> String {
        call.unwrap().target.to_string()
    }

    /// A repeated restore of a record is told that it is there; a plain write never is.
    #[test]
    fn restored_records_may_be_there() {
        let version = Version::from("0123456789abcdef-0000000000000001".to_owned());
        let call = Call::restore(b"a b", Bytes::new(), &version, Some(5)).unwrap();
        let expect = "/admin/entity?id=a%20b&version=0123456789abcdef-0000000000000001&expires=5";
        assert_eq!(call.target.to_string(), expect);
        let put = Call::put(b"a b", Bytes::new(), PutOptions::default()).unwrap();
        assert_eq!([200, 201, 202].map(|status| call.expects(status)), [true, true, false]);
        assert_eq!([200, 201, 202].map(|status| put.expects(status)), [false, true, false]);
    }

    #[test]
    fn encodes_every_byte_and_only_what_is_needed() {
        let check = |key: &[u8], expect: &str| {
            assert_eq!(target(Call::get(key, ReadOptions::default())), format!("/v0/entity?id={expect}"));
        };
        check(b"AZaz09-._~", "AZaz09-._~");
        check(b"\0", "%00");
        check(b"\xff\xfe", "%FF%FE");
        check(b"a b+c", "a%20b%2Bc");
        check(b"/?#&=%", "%2F%3F%23%26%3D%25");
        check("é".as_bytes(), "%C3%A9");
        // Decoding what was encoded gives back each of the 256 bytes.
        for byte in 0..=u8::MAX {
            let spelled = target(Call::get(&[byte], ReadOptions::default()));
            let spelled = spelled.strip_prefix("/v0/entity?id=").unwrap();
            let decoded = match spelled.strip_prefix('%') {
                Some(digits) => u8::from_str_radix(digits, 16).unwrap(),
                None => spelled.as_bytes()[0],
            };
            assert_eq!(decoded, byte, "{spelled}");
        }
    }

    #[test]
    fn spells_options() {
        let replicas = Some(Replicas { ack: 2, from: 3 });
        let check_ttl = |ttl, expect: &str| {
            let options = PutOptions { ttl: Some(ttl), replicas, timeout: None };
            let spelled = target(Call::put(b"k", Bytes::new(), options));
            assert_eq!(spelled, format!("/v0/entity?id=k&replicas=2/3&ttl={expect}"));
        };
        check_ttl(Duration::from_secs(30), "30000ms");
        check_ttl(Duration::from_nanos(1), "1ms");
        check_ttl(Duration::from_micros(1_500), "2ms");
        check_ttl(Duration::ZERO, "0ms");
        check_ttl(Duration::from_hours(24 * 36_500), "3153600000000ms");
        for ttl in [Duration::from_hours(24 * 36_500) + Duration::from_nanos(1), Duration::MAX] {
            let options = PutOptions { ttl: Some(ttl), replicas, timeout: None };
            let refused = Call::put(b"k", Bytes::new(), options).map(|call| call.target.to_string());
            assert!(matches!(refused, Err(Error::InvalidRequest { .. })), "{ttl:?}: {refused:?}");
        }
        let options = DeleteOptions { replicas, timeout: None };
        assert_eq!(target(Call::delete(b"k", options)), "/v0/entity?id=k&replicas=2/3");
        let local = ScanOptions { limit: Some(7), scope: Scope::Local, timeout: None };
        assert_eq!(
            target(Call::scan(b"a", Some(b"b\n"), local)),
            "/v0/entities?start=a&end=b%0A&limit=7&scope=local"
        );
        assert_eq!(target(Call::scan(b"a", None, ScanOptions::default())), "/v0/entities?start=a");
    }

    #[test]
    fn an_empty_value_has_a_length() {
        let call = Call::put(b"k", Bytes::new(), PutOptions::default()).unwrap();
        let request = call.request(&crate::pool::tests::nodes(1)[0]);
        assert_eq!(
            (&request.headers()[CONTENT_LENGTH], &request.headers()[HOST]),
            (&"0".parse().unwrap(), &"n0:1".parse().unwrap())
        );
    }

    #[test]
    fn conditions_are_headers() {
        let node = &crate::pool::tests::nodes(1)[0];
        let check = |condition: &Condition, name: HeaderName, expect: &str| {
            let call = Call::delete(b"k", DeleteOptions::default()).unwrap().on(condition).unwrap();
            assert_eq!(call.request(node).headers()[name], expect);
        };
        check(&Condition::Absent, IF_NONE_MATCH, "*");
        check(&Condition::Present, IF_MATCH, "*");
        check(&Condition::Version("a-b".to_owned().into()), IF_MATCH, "\"a-b\"");
        let bad = Condition::Version("a\nb".to_owned().into());
        let refused = Call::delete(b"k", DeleteOptions::default()).unwrap().on(&bad);
        assert!(matches!(refused.map(|_| ()), Err(Error::InvalidRequest { .. })));
    }

    #[test]
    fn a_page_is_a_path() {
        assert_eq!(
            target(Call::page("/debug/profile?event=cpu&seconds=1")),
            "/debug/profile?event=cpu&seconds=1"
        );
        for bad in ["", "metrics", "http://elsewhere/metrics", "/me trics"] {
            assert!(matches!(Call::page(bad), Err(Error::InvalidRequest { .. })), "{bad:?}");
        }
    }

    #[test]
    fn refuses_keys_without_a_request_line() {
        let check = |key: &[u8], expect: bool| {
            let call = Call::get(key, ReadOptions::default());
            assert_eq!(call.is_ok(), expect, "{} bytes", key.len());
        };
        check(b"", false);
        check(&[0xff; 1024], true);
        check(&[b'k'; 1025], false);
    }
}
