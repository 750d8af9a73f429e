//! Headers of the caller's own, written as for wrk: `-H 'Name: value'`.

use std::fmt::{self, Write};
use std::str::FromStr;

/// Headers that say where a body ends or how the connection goes on; the driver writes them, or must not.
const OWN: [&str; 5] = ["content-length", "transfer-encoding", "expect", "upgrade", "trailer"];

/// A header of every request.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    name: String,
    value: String,
}

impl Header {
    /// The header `name` with `value`.
    ///
    /// # Errors
    /// A sentence that names the mistake: a bad name, a character that would end the line, or a header that the
    /// driver writes itself.
    pub fn new(name: &str, value: &str) -> Result<Self, String> {
        check_name(name)?;
        if let Some(bad) = value.chars().find(|&c| c.is_control() && c != '\t') {
            return Err(format!("header {name}: the character {bad:?} is not allowed in a value"));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }

    /// The header that sends the token in `text`, `ID.SECRET` with white space around it.
    ///
    /// # Errors
    /// A sentence without the text: it may be a secret.
    pub fn bearer(text: &str) -> Result<Self, String> {
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token is not one: a token is ID.SECRET".to_owned());
        }
        Self::new("Authorization", &format!("Bearer {token}"))
    }

    /// Whether its name is `name`, in whatever case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// Whether `name` may be that of a caller's header.
///
/// # Errors
/// A sentence that names the mistake.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is no name of a header"));
    }
    if OWN.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err(format!("header {name}: bench decides itself whether a request has it"));
    }
    Ok(())
}

/// Shows no value: it may be a secret.
impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({}: …)", self.name)
    }
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or_else(|| format!("{text:?} is not 'Name: value'"))?;
        Self::new(name, value.trim())
    }
}

/// The header lines of every request to `host`, each with its line's end. A `Host` among `headers` takes the place of
/// `host`.
pub fn lines(host: &str, headers: &[Header]) -> String {
    let mut out = String::new();
    if !headers.iter().any(|header| header.is("host")) {
        let _ = write!(out, "Host: {host}\r\n");
    }
    for Header { name, value } in headers {
        // Writing into a `String` cannot fail.
        let _ = write!(out, "{name}: {value}\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: headers are read as wrk reads them, and the host can be another. Method: the lines of a request.
    #[test]
    fn headers_are_read() {
        let read =
            |texts: &[&str]| -> Vec<Header> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let headers = read(&["X-Trace: a: b", "accept:*/*", "Empty:"]);
        assert_eq!(lines("h:1", &headers), "Host: h:1\r\nX-Trace: a: b\r\naccept: */*\r\nEmpty: \r\n");
        assert_eq!(lines("h:1", &read(&["host: example.org"])), "host: example.org\r\n");
    }

    /// Goal: a token is sent as the contract says, and no text shows it. Method: its line, and texts that are no token.
    #[test]
    fn token_is_a_header() {
        let header = Header::bearer(" a.s3cret\n").unwrap();
        assert!(!format!("{header:?}").contains("s3cret"));
        assert_eq!(lines("h:1", &[header]), "Host: h:1\r\nAuthorization: Bearer a.s3cret\r\n");
        for bad in ["", " ", "a.s3cret\r\nX: y", "a s3cret"] {
            assert!(!Header::bearer(bad).unwrap_err().contains("s3cret"), "{bad:?}");
        }
    }

    /// Goal: a header that would break a request is refused, with its name. Method: one mistake each.
    #[test]
    fn bad_headers_are_refused() {
        let check = |text: &str, expect: &str| {
            let error = text.parse::<Header>().unwrap_err();
            assert!(error.contains(expect), "{text:?}: {error}");
        };
        check("X-Trace", "is not 'Name: value'");
        check(": value", "\"\" is no name");
        check("X Trace: 1", "\"X Trace\" is no name");
        check("X-Trace : 1", "\"X-Trace \" is no name");
        check("X: a\r\nY: b", "'\\r' is not allowed");
        check("Content-Length: 5", "Content-Length: bench decides itself");
        check("transfer-encoding: chunked", "bench decides itself");
    }
}
