//! Access to `/admin` and `/debug`: web pages of other sites are refused. Without tokens (`--auth on`), only people and
//! programs on the node's own machine have access, and clients behind a proxy there are refused.
//!
//! A loopback connection is not enough. A browser lets any page send requests to `localhost`. DNS rebinding (a name
//! whose owner points it at 127.0.0.1) gives a page the same origin. A proxy lends its own address to all its clients.

use crate::authority::{Authority, Scheme};
use http::HeaderMap;
use http::header::{FORWARDED, HeaderName, ORIGIN, VIA};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The prefix of headers that proxies add, besides the two standard ones.
const PROXY_PREFIX: &str = "x-forwarded-";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Whether the host of `named` is this node: the host of `own`, or loopback by name or address. The port is ignored: it
/// may be mapped.
pub(super) fn is_own(named: &Authority, own: Option<&Authority>) -> bool {
    named.is_loopback() || own.is_some_and(|own| named.has_host_of(own))
}

/// Checks that a request was made for this node, which is `own`, and not by a web page of another site, unless `is_of_member`;
/// `host` is the host that the request names, and `scheme` how it came.
///
/// # Errors
/// The evidence that it was not.
pub(super) fn check_site(
    headers: &HeaderMap,
    host: Option<&str>,
    own: Option<&Authority>,
    scheme: Scheme,
    is_of_member: bool,
) -> Result<(), String> {
    let Some(host) = host.and_then(Authority::parse).filter(|host| is_own(host, own)) else {
        return Err("its Host is not this node's".to_owned());
    };
    if is_of_member {
        return Ok(());
    }
    // A page of this node has the same scheme, host and port, so it is not foreign.
    let is_foreign = |origin: &[u8]| {
        let origin = std::str::from_utf8(origin).ok().and_then(Authority::of_url);
        let itself = Authority::of_url(&format!("{}://{host}", scheme.name()));
        origin.is_none() || origin != itself
    };
    if headers.get_all(ORIGIN).iter().any(|origin| is_foreign(origin.as_bytes())) {
        return Err("it has the Origin of another site".to_owned());
    }
    // "none" is a URL that a person has typed.
    let is_site_foreign = |site: &[u8]| !(site == b"same-origin" || site == b"none");
    if headers.get_all(SEC_FETCH_SITE).iter().any(|site| is_site_foreign(site.as_bytes())) {
        return Err("its Sec-Fetch-Site is another site".to_owned());
    }
    Ok(())
}

/// Checks that a POST about keys was not made by a web page of another site; `host` is the host that the request names. A browser
/// sends a POST of any page without asking first, unlike a PUT, with what it shows to this node by itself: its
/// certificate, and its place in the network.
///
/// # Errors
/// The evidence that it was.
pub(super) fn check_page(headers: &HeaderMap, host: Option<&str>) -> Result<(), String> {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter().peekable();
    if sites.peek().is_some() {
        let is_own = sites.all(|site| site == "same-origin" || site == "none");
        return if is_own { Ok(()) } else { Err("its Sec-Fetch-Site is another site".to_owned()) };
    }
    // Not the scheme: a proxy may speak TLS for this node.
    let host = host.and_then(Authority::parse);
    let is_foreign = |origin: &[u8]| {
        let origin = std::str::from_utf8(origin).ok().and_then(Authority::of_url).map(|(_, origin)| origin);
        origin.is_none() || origin != host
    };
    if headers.get_all(ORIGIN).iter().any(|origin| is_foreign(origin.as_bytes())) {
        return Err("it has the Origin of another site".to_owned());
    }
    Ok(())
}

/// Checks that a request came without a proxy.
///
/// # Errors
/// The evidence that it did not.
pub(super) fn check_proxy(headers: &HeaderMap) -> Result<(), String> {
    let of_proxy = |name: &&HeaderName| {
        **name == FORWARDED || **name == VIA || **name == REAL_IP || name.as_str().starts_with(PROXY_PREFIX)
    };
    headers.keys().find(of_proxy).map_or(Ok(()), |name| Err(format!("it has a {name} header")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(host: Option<&str>, headers: &[(&'static str, &str)]) -> Result<(), String> {
        let own = Authority::of_url("http://node-a:8080").unwrap().1;
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let headers = headers.collect();
        check_site(&headers, host, Some(&own), Scheme::Http, false).and_then(|()| check_proxy(&headers))
    }

    /// A POST about keys passes unless a page of another site made it, also through a proxy.
    #[test]
    fn pages_of_other_sites_post_nothing() {
        let checked = |headers: &[(&'static str, &str)]| {
            let headers =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            check_page(&headers.collect(), Some("store.example:8080")).is_ok()
        };
        assert!(checked(&[]));
        assert!(checked(&[("via", "1.1 proxy")]));
        assert!(checked(&[("origin", "https://store.example:8080")]));
        assert!(checked(&[("origin", "https://app.example"), ("sec-fetch-site", "same-origin")]));
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", "http://store.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(!checked(&[(name, value)]), "{name}: {value}");
        }
    }

    /// Requests of tools and of the node's own pages pass; requests that a page of another site or a proxy would send
    /// do not.
    #[test]
    fn only_requests_of_this_machine_pass() {
        for host in
            ["localhost:8080", "127.0.0.1", "[::1]:8080", "Node-A:8080", "node-a.", "node-a:9", "x.localhost"]
        {
            assert_eq!(checked(Some(host), &[]), Ok(()), "{host}");
        }
        for host in [
            None,
            Some(""),
            Some("evil.example"),
            Some("127.0.0.1.evil.example:8080"),
            Some("node-b:8080"),
            Some("10.0.0.1"),
        ] {
            assert!(checked(host, &[]).unwrap_err().contains("Host"), "{host:?}");
        }
        let host = Some("localhost:8080");
        for (name, value) in [
            ("origin", "http://localhost:8080"),
            ("origin", "HTTP://LOCALHOST:8080"),
            ("sec-fetch-site", "none"),
            ("sec-fetch-site", "same-origin"),
            ("referer", "http://evil.example/"),
            ("user-agent", "x"),
        ] {
            assert_eq!(checked(host, &[(name, value)]), Ok(()), "{name}: {value}");
        }
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", ""),
            // A page of another program on this machine.
            ("origin", "http://localhost:3000"),
            ("origin", "http://localhost"),
            ("origin", "https://localhost:8080"),
            ("origin", "http://127.0.0.1:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", ""),
            ("forwarded", "for=10.0.0.1"),
            ("via", "1.1 proxy"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "localhost"),
            ("x-forwarded-proto", "http"),
            ("x-real-ip", "127.0.0.1"),
        ] {
            assert!(checked(host, &[(name, value)]).is_err(), "{name}: {value}");
        }
        assert!(
            checked(host, &[("origin", "http://localhost:8080"), ("origin", "http://evil.example")]).is_err()
        );
    }
}
