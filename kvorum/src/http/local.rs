//! Who may use `/admin` and `/debug`: people and programs on the node's own machine, and no web page that such a person
//! looks at, nor anybody behind a proxy that runs there.
//!
//! A connection from loopback is not enough for that. A browser lets any page send requests to `localhost`; a name that
//! its owner points at 127.0.0.1 makes such a page one of the same origin; and a proxy lends its own address to all.

use crate::authority::Authority;
use http::HeaderMap;
use http::header::{FORWARDED, HeaderName, ORIGIN, VIA};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What proxies add, besides the two that are standard.
const PROXY_PREFIX: &str = "x-forwarded-";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Whether `named` is this node by its host: that of `own`, or loopback by name or address. The port is not looked at: it may be
/// mapped.
pub(super) fn is_own(named: &Authority, own: Option<&Authority>) -> bool {
    named.is_loopback() || own.is_some_and(|own| named.has_host_of(own))
}

/// Checks that a request was made on this machine and for this node, which is `own`; `host` is the host that it names.
///
/// # Errors
/// What shows that it was not.
pub(super) fn check(headers: &HeaderMap, host: Option<&str>, own: Option<&Authority>) -> Result<(), String> {
    let Some(host) = host.and_then(Authority::parse).filter(|host| is_own(host, own)) else {
        return Err("its Host is not this node's".to_owned());
    };
    let of_proxy = |name: &&HeaderName| {
        **name == FORWARDED || **name == VIA || **name == REAL_IP || name.as_str().starts_with(PROXY_PREFIX)
    };
    if let Some(name) = headers.keys().find(of_proxy) {
        return Err(format!("it has a {name} header"));
    }
    // A page of this very node is none of another: the same scheme, host and port.
    let is_foreign = |origin: &[u8]| {
        let origin = std::str::from_utf8(origin).ok().and_then(Authority::of_url);
        let itself = Authority::of_url(&format!("http://{host}"));
        origin.is_none() || origin != itself
    };
    if headers.get_all(ORIGIN).iter().any(|origin| is_foreign(origin.as_bytes())) {
        return Err("it has the Origin of another site".to_owned());
    }
    // "none" is what a person has typed.
    let is_site_foreign = |site: &[u8]| !(site == b"same-origin" || site == b"none");
    if headers.get_all(SEC_FETCH_SITE).iter().any(|site| is_site_foreign(site.as_bytes())) {
        return Err("its Sec-Fetch-Site is another site".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(host: Option<&str>, headers: &[(&'static str, &str)]) -> Result<(), String> {
        let own = Authority::of_url("http://node-a:8080").unwrap();
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        check(&headers.collect(), host, Some(&own))
    }

    /// Requests of tools and of the node's own pages pass; what a page of another site or a proxy would send does not.
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
            // Another program's page on this machine.
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
