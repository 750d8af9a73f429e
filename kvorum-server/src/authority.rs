//! The host and port of a URL, in the normal form of RFC 3986 (6.2.2 and 6.2.3).
//!
//! `http://Node-A:8080`, `http://node-a.:8080/` and `http://node%2Da:08080` name one node. So do `[::1]` and
//! `[0:0:0:0:0:0:0:1]`, and a URL without a port and the same with port 80. Names are not resolved: two names of one
//! machine stay different.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The port of an `http` URL without one.
const HTTP_PORT: u16 = 80;
/// The port of an `https` URL without one.
const HTTPS_PORT: u16 = 443;

/// A host, and its port if the text names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    host: Host,
    port: Option<u16>,
}

/// The scheme of a node's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// Its name in URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => HTTP_PORT,
            Self::Https => HTTPS_PORT,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

impl Authority {
    /// Parses `HOST` or `HOST:PORT`; none if the text is neither, or names a user.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(bracketed) = text.strip_prefix('[') {
            let (address, rest) = bracketed.split_once(']')?;
            let port = match rest.strip_prefix(':') {
                Some(port) => parse_port(port)?,
                None if rest.is_empty() => None,
                None => return None,
            };
            return Some(Self { host: Host::V6(address.parse().ok()?), port });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, parse_port(port)?),
            None => (text, None),
        };
        Some(Self { host: parse_name(host)?, port })
    }

    /// Parses the URL of a node: a scheme, a host, optionally a port, and no path beyond `/`. The default port is the
    /// scheme's.
    pub fn of_url(url: &str) -> Option<(Scheme, Self)> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let scheme = [Scheme::Http, Scheme::Https]
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(scheme))?;
        let parsed = Self::parse(authority)?;
        let port = parsed.port.unwrap_or(scheme.port());
        (port > 0).then_some((scheme, Self { port: Some(port), ..parsed }))
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => address.to_string(),
        }
    }

    /// Whether both have the same host, whatever their ports are.
    pub fn has_host_of(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// Whether the host is this machine by its name alone: `localhost`, names that end in `.localhost`, 127.0.0.0/8,
    /// `::1`.
    pub fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::V4(address) => address.is_loopback(),
            Host::V6(address) => address.to_canonical().is_loopback(),
        }
    }

    /// Whether the host is no machine: an address to listen on that stands for all of a machine's own.
    pub fn is_unspecified(&self) -> bool {
        match &self.host {
            Host::Name(_) => false,
            Host::V4(address) => address.is_unspecified(),
            Host::V6(address) => address.to_canonical().is_unspecified(),
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::V4(address) => address.fmt(f)?,
            Host::V6(address) => write!(f, "[{address}]")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Parses a port. The empty text gives `Some(None)`, for the scheme's default port; an invalid one gives none.
#[expect(clippy::option_option, reason = "no port is not the same as what is none")]
fn parse_port(text: &str) -> Option<Option<u16>> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
}

/// Parses a name or an IPv4 address: percent-decoded, in lower case, without the dot that may end a name.
fn parse_name(text: &str) -> Option<Host> {
    let mut name = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let byte = if byte == b'%' {
            let (&[high, low], tail) = rest.split_first_chunk::<2>()?;
            rest = tail;
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            (digit(high)? << 4) | digit(low)?
        } else {
            byte
        };
        // No DNS name has other characters; accepting them escaped would only disguise a name.
        if !(byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)) {
            return None;
        }
        name.push(char::from(byte.to_ascii_lowercase()));
    }
    if name.len() > 1 && name.ends_with('.') {
        name.pop();
    }
    if name.is_empty() {
        return None;
    }
    Some(name.parse().map_or(Host::Name(name), Host::V4))
}

/// The URL of a node without a path, in its normal form under RFC 3986.
pub(crate) fn node_url(text: &str) -> Option<String> {
    let (scheme, authority) = Authority::of_url(text)?;
    Some(format!("{}://{authority}", scheme.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spellings of one node become one text, and different nodes become different texts.
    #[test]
    fn spellings_of_a_url_are_one() {
        let check = |url: &str, expect: Option<&str>| {
            let canonical = Authority::of_url(url).map(|(_, authority)| authority.to_string());
            assert_eq!(canonical.as_deref(), expect, "{url}");
        };
        for url in [
            "http://node-a:8080",
            "HTTP://Node-A:8080/",
            "http://node-a.:8080",
            "http://node%2Da:8080",
            "http://node%2da:08080",
            "http://%6Eode-a:8080",
        ] {
            check(url, Some("node-a:8080"));
        }
        for url in ["http://a", "http://a/", "http://a:", "http://A.:80", "http://a:00080/"] {
            check(url, Some("a:80"));
        }
        for url in ["http://[::1]:8080", "http://[0:0:0:0:0:0:0:1]:8080", "http://[0000::0001]:8080/"] {
            check(url, Some("[::1]:8080"));
        }
        check("http://[2001:DB8::A]:1", Some("[2001:db8::a]:1"));
        check("http://10.0.0.1:1", Some("10.0.0.1:1"));
        check("HTTPS://A:1", Some("a:1"));
        check("https://a", Some("a:443"));
        for bad in [
            "",
            "a:1",
            "http://",
            "http:///",
            "http://:1",
            "ftp://a:1",
            "http://a:1/x",
            "http://a:1?x",
            "http://a:1#x",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://a:x",
            "http://a:1:2",
            "http://u@a:1",
            "http://a b:1",
            "http://a%zz:1",
            "http://a%:1",
            "http://a%00:1",
            "http://a%2f:1",
            "http://ä:1",
            "http://[::1:1",
            "http://[::1]1",
            "http://[::g]:1",
            "http://[fe80::1%25eth0]:1",
            "http://.:1x",
            "http://a:1//",
        ] {
            check(bad, None);
        }
    }

    /// Loopback by name or address, and no name that only looks like it.
    #[test]
    fn loopback_is_told_by_the_name() {
        let check = |text: &str, expect| {
            assert_eq!(Authority::parse(text).is_some_and(|host| host.is_loopback()), expect, "{text}");
        };
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "kv.localhost:1",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]:8080",
        ] {
            check(own, true);
        }
        for other in [
            "",
            "a",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil-localhost",
            "10.0.0.1",
            "[::2]",
        ] {
            check(other, false);
        }
    }
}
