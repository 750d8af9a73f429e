//! Pages of other members of the cluster: what the console of another node may ask this one.
//!
//! A browser keeps a page from reading answers of other hosts unless these allow it (CORS). A node allows it to pages whose
//! origin is exactly the URL of a member, for three reports and for nothing else: a page never writes to another node. A
//! node serves no page but its console, because values are never sent as pages.

use super::body::ReplyBody;
use super::routes::Path;
use crate::authority::{Authority, Scheme};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response};

/// What a browser lets the console do: run its own program, and ask this node. Members are added to the last source.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; connect-src 'self'";

/// The pages of a cluster's members.
#[derive(Debug, Clone)]
pub struct MemberPages {
    members: Vec<(Scheme, Authority)>,
    policy: HeaderValue,
}

impl MemberPages {
    /// The pages of the nodes at `urls`.
    pub fn of(urls: &[String]) -> Self {
        let members: Vec<_> = urls.iter().filter_map(|url| Authority::of_url(url)).collect();
        let sources = members.iter().map(|(scheme, member)| format!(" {}://{member}", scheme.name()));
        let policy = sources.fold(POLICY.to_owned(), |policy, source| policy + &source);
        let policy = HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static(POLICY));
        Self { members, policy }
    }

    /// The policy of the console's own pages.
    pub(super) fn policy(&self) -> HeaderValue {
        self.policy.clone()
    }

    /// The origin of a request that a member's page makes, if it may read the answer.
    pub(super) fn reader<B>(&self, request: &Request<B>) -> Option<HeaderValue> {
        // Most requests have no origin.
        let origin = single(request.headers())?;
        let is_read = request.method() == Method::GET || is_preflight(request);
        let is_shared = Path::parse(request.uri().path()).is_some_and(is_shared);
        (is_read && is_shared && self.has(origin)).then(|| origin.clone())
    }

    fn has(&self, origin: &HeaderValue) -> bool {
        let named = origin.to_str().ok().and_then(Authority::of_url);
        named.is_some_and(|named| self.members.contains(&named))
    }

    /// The answer to a browser that asks whether a member's page may send a token; none if this is no such question.
    pub(super) fn answer_preflight<B>(&self, request: &Request<B>) -> Option<Response<ReplyBody>> {
        if !is_preflight(request) {
            return None;
        }
        self.reader(request)?;
        let mut response = Response::new(ReplyBody::empty());
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, accept"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        Some(response)
    }
}

/// Lets the page of `reader` read the answer.
pub(super) fn allow(headers: &mut HeaderMap, reader: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, reader);
    let vary = if headers.contains_key(VARY) { "accept, origin" } else { "origin" };
    headers.insert(VARY, HeaderValue::from_static(vary));
}

/// The reports that pages of other members may read.
fn is_shared(path: Path) -> bool {
    matches!(path, Path::Status | Path::History | Path::Profile)
}

fn is_preflight<B>(request: &Request<B>) -> bool {
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_METHOD);
    request.method() == Method::OPTIONS && asked.is_some_and(|method| method == "GET")
}

/// The only Origin header.
fn single(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let origin = origins.next()?;
    origins.next().is_none().then_some(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only a member's page reads, and only three reports. Method: origins, methods and paths that differ by one thing.
    #[test]
    fn only_pages_of_members_read_reports() {
        let pages = MemberPages::of(&[
            "http://a:8080".to_owned(),
            "http://b".to_owned(),
            "https://c:8443".to_owned(),
        ]);
        let reads = |method: Method, path: &str, origins: &[&str]| {
            let mut request = Request::builder().method(method).uri(path);
            for origin in origins {
                request = request.header(ORIGIN, *origin);
            }
            pages.reader(&request.body(()).unwrap()).is_some()
        };
        for (path, expect) in [
            ("/v0/status", true),
            ("/v0/status?ready=quorum", true),
            ("/v0/history", true),
            ("/debug/profile", true),
            ("/v0/entity?id=a", false),
            ("/v0/entities?start=a", false),
            ("/admin/workers", false),
            ("/admin/settings", false),
            ("/admin/cluster", false),
            ("/metrics", false),
            ("/nowhere", false),
        ] {
            assert_eq!(reads(Method::GET, path, &["http://a:8080"]), expect, "{path}");
            assert!(!reads(Method::PUT, path, &["http://a:8080"]), "{path}");
            assert!(!reads(Method::OPTIONS, path, &["http://a:8080"]), "{path}");
        }
        for (origin, expect) in [
            ("http://A:8080", true),
            ("http://b", true),
            ("http://b:80", true),
            ("http://a", false),
            ("http://a:8081", false),
            ("https://a:8080", false),
            ("https://c:8443", true),
            ("http://c:8443", false),
            ("http://a:8080.evil.example", false),
            ("http://x@a:8080", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(reads(Method::GET, "/v0/status", &[origin]), expect, "{origin}");
        }
        assert!(!reads(Method::GET, "/v0/status", &["http://a:8080", "http://a:8080"]));
        assert!(!reads(Method::GET, "/v0/status", &[]));
    }

    #[test]
    fn preflight_allows_a_token() {
        let pages = MemberPages::of(&["http://a:8080".to_owned()]);
        let asks = |path: &str, origin: &str, method: &str| {
            let request = Request::builder().method(Method::OPTIONS).uri(path).header(ORIGIN, origin);
            pages.answer_preflight(&request.header(ACCESS_CONTROL_REQUEST_METHOD, method).body(()).unwrap())
        };
        let allowed = asks("/debug/profile", "http://a:8080", "GET").unwrap();
        assert_eq!(allowed.headers()[ACCESS_CONTROL_ALLOW_HEADERS], "authorization, accept");
        assert!(asks("/debug/profile", "http://a:8080", "POST").is_none());
        assert!(asks("/debug/profile", "http://evil.example", "GET").is_none());
        assert!(asks("/admin/workers", "http://a:8080", "GET").is_none());
    }

    #[test]
    fn policy_names_members() {
        let policy = MemberPages::of(&["http://a:8080".to_owned(), "http://b".to_owned()]).policy();
        assert!(
            policy.to_str().unwrap().ends_with("connect-src 'self' http://a:8080 http://b:80"),
            "{policy:?}"
        );
    }
}
