//! `/console`: the page for people. It draws what the public API says; nothing is computed for it here.
//!
//! Its files are in the program, so it works offline, and nothing else may be loaded: the policy in its headers lets it run
//! only what this node serves, and ask only this node and the reports of other members ([`super::members`]). The files
//! hold no data and need no token; what they ask for does.

use super::body::ReplyBody;
use super::error::Failure;
use super::handler::{Service, accepts, vary_by_accept};
use super::target;
use crate::machine;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY};
use http::{HeaderValue, Request, Response, StatusCode};

/// The page, its program, its style: each with its type.
pub(super) const PAGE: Asset =
    Asset { text: include_str!("console/index.html"), kind: "text/html; charset=utf-8" };
pub(super) const SCRIPT: Asset =
    Asset { text: include_str!("console/console.js"), kind: "text/javascript; charset=utf-8" };
pub(super) const STYLE: Asset =
    Asset { text: include_str!("console/console.css"), kind: "text/css; charset=utf-8" };

/// The program of the page of profiles.
pub(super) const PROFILE: Asset =
    Asset { text: include_str!("console/profile.js"), kind: "text/javascript; charset=utf-8" };

/// A file of the console.
pub(super) struct Asset {
    text: &'static str,
    kind: &'static str,
}

/// Sends one of the console's files.
pub(super) fn show<B>(
    service: &Service,
    request: &Request<B>,
    asset: &'static Asset,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let mut response = Response::new(ReplyBody::full(Bytes::from_static(asset.text.as_bytes())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(CONTENT_SECURITY_POLICY, service.facts.pages.policy());
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

/// Sends a browser from `/` to the console, and tells everybody else where to look.
pub(super) fn welcome<B>(request: &Request<B>) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let text =
        format!("kvorum {}: /console for people, /openapi.json for programs, /v0/status\n", machine::VERSION);
    let mut response = Response::new(ReplyBody::full(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    vary_by_accept(headers);
    if accepts(request.headers(), "text/html") {
        headers.insert(LOCATION, HeaderValue::from_static("/console"));
        *response.status_mut() = StatusCode::FOUND;
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page loads nothing but its own files, and has nothing that its policy forbids. Texts are never set as markup.
    #[test]
    fn page_keeps_its_own_policy() {
        for Asset { text, .. } in [PAGE, SCRIPT, STYLE, PROFILE] {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
                "style=",
                "onclick",
                "<style",
                "@import",
                ": url(",
                ":url(",
            ] {
                assert!(!text.contains(word), "{word}");
            }
            let others = text.matches("http://").count() - text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(others + text.matches("https://").count(), 0);
        }
        let total: usize = [PAGE, SCRIPT, STYLE, PROFILE].iter().map(|asset| asset.text.len()).sum();
        assert!(total <= 150 << 10, "{total} bytes");
    }
}
