//! The table of odd requests, in groups: bytes, and the exact status of each. `http_raw.rs` sends them.

mod bodies;

pub(crate) use bodies::{codings, lengths};

use Expect::{Bare, Closed, Refused, Served};

/// The expected answer of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A success (or 404) with this status, from the handler.
    Served(u16),
    /// A failure with this status, from the handler: text, or JSON for a client that accepts it.
    Refused(u16),
    /// A failure with this status, before the handler: always text, and the connection ends.
    Bare(u16),
    /// No answer: the connection ends. Only if the client has gone.
    Closed,
}

/// The bytes of a client, and the expected answer.
pub(crate) struct Case {
    pub name: String,
    pub bytes: Vec<u8>,
    pub expect: Expect,
    /// The client sends nothing more after these bytes.
    pub ends: bool,
}

pub(crate) fn case(name: impl Into<String>, bytes: impl AsRef<[u8]>, expect: Expect) -> Case {
    Case { name: name.into(), bytes: bytes.as_ref().to_vec(), expect, ends: false }
}

/// A GET of `target`, given as bytes.
pub(crate) fn get(target: impl AsRef<[u8]>) -> Vec<u8> {
    [b"GET ", target.as_ref(), b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat()
}

/// A request with only these headers, each with its line end.
pub(crate) fn with(line: &str, headers: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    [line.as_bytes(), b"\r\nHost: a\r\n", headers.as_ref(), b"\r\n", body.as_ref()].concat()
}

/// A PUT of the key `raw`.
pub(crate) fn put(headers: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    with("PUT /v0/entity?id=raw HTTP/1.1", headers, body)
}

/// A chunked PUT of the key `raw`.
pub(crate) fn put_chunks(body: impl AsRef<[u8]>) -> Vec<u8> {
    put("Transfer-Encoding: chunked\r\n", body)
}

pub(crate) fn request_lines() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        ("no method", " /v0/status HTTP/1.1"),
        ("no target", "GET HTTP/1.1"),
        ("empty target", "GET  HTTP/1.1"),
        ("nothing but a method", "GET"),
        ("nothing but spaces", "   "),
        ("two spaces before the target", "GET  /v0/status HTTP/1.1"),
        ("two spaces before the version", "GET /v0/status  HTTP/1.1"),
        ("a space behind the version", "GET /v0/status HTTP/1.1 "),
        ("a word behind the version", "GET /v0/status HTTP/1.1 x"),
        ("a tab before the target", "GET\t/v0/status HTTP/1.1"),
        ("a tab before the version", "GET /v0/status\tHTTP/1.1"),
        ("HTTP/0.9 with a version", "GET /v0/status HTTP/0.9"),
        ("HTTP/1.10", "GET /v0/status HTTP/1.10"),
        ("HTTP/11", "GET /v0/status HTTP/11"),
        ("HTTP/1.", "GET /v0/status HTTP/1."),
        ("HTTP/1", "GET /v0/status HTTP/1"),
        ("HTTP/2.0", "GET /v0/status HTTP/2.0"),
        ("HTTP/3", "GET /v0/status HTTP/3"),
        ("http/1.1", "GET /v0/status http/1.1"),
        ("HTTP/1.23", "GET /v0/status HTTP/1.23"),
        ("HTTP/1.x", "GET /v0/status HTTP/1.x"),
        ("HTTP/1.2 in small letters", "GET /v0/status http/1.2"),
        ("HTTP/1.2 behind HTTP/1.1", "GET /v0/status HTTP/1.1 HTTP/1.2"),
        ("another protocol", "OPTIONS rtsp://a/v0 RTSP/1.0"),
        ("a method with @", "G@T /v0/status HTTP/1.1"),
        ("a method with NUL", "G\0T /v0/status HTTP/1.1"),
        ("a method with ESC", "\x1b[AGET /v0/status HTTP/1.1"),
        ("a method in UTF-8", "GÉT /v0/status HTTP/1.1"),
        ("a space in the target", "GET /v0/entity?id=a b HTTP/1.1"),
        ("a NUL in the target", "GET /v0/entity?id=a\0b HTTP/1.1"),
        ("a SOH in the target", "GET /v0/entity?id=a\x01b HTTP/1.1"),
        ("a DEL in the target", "GET /v0/entity?id=a\x7fb HTTP/1.1"),
        ("a CR in the target", "GET /v0/entity?id=a\rb HTTP/1.1"),
        ("a relative target", "GET v0/status HTTP/1.1"),
        ("a target of a query alone", "GET ?id=a HTTP/1.1"),
        ("a response in place of a request", "HTTP/1.1 200 OK"),
        ("a PROXY line", "PROXY TCP4 127.0.0.1 127.0.0.1 1 2"),
    ]
    .map(|(name, line)| case(name, with(line, "", ""), Bare(400)))
    .into();
    cases.push(case("raw bytes that are no UTF-8", get(b"/v0/entity?id=\xff\xfe"), Bare(400)));
    cases.push(case("half a UTF-8 sequence", get(b"/v0/entity?id=\xc3"), Bare(400)));
    cases.push(case("HTTP/0.9", b"GET /v0/status\r\n\r\n", Bare(400)));
    cases.push(case("HTTP/0.9 with a bare line feed", b"GET /v0/status\n\n", Bare(400)));
    cases.push(case("the HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", Closed));
    cases.push(case("a TLS hello", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n", Bare(400)));
    cases.push(case("an SSH banner", b"SSH-2.0-OpenSSH_9.9\r\n\r\n", Bare(400)));
    cases.push(case("zeros", [0; 64], Bare(400)));
    cases.push(case("bytes of all kinds", (0..=255).rev().collect::<Vec<u8>>(), Bare(400)));
    cases.push(case(
        "empty lines before a request",
        [b"\r\n\r\n", &get("/v0/status")[..]].concat(),
        Served(200),
    ));
    cases
}

pub(crate) fn methods() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in ["/v0/entity?id=raw", "/v0/entities?start=raw", "/v0/status", "/metrics"] {
        for method in ["get", "Get", "PATCH", "POST", "OPTIONS", "TRACE", "BREW", "put", "PROPFIND"] {
            let line = format!("{method} {path} HTTP/1.1");
            // A POST of a key says what it does with the value.
            let is_edit = method == "POST" && path.starts_with("/v0/entity?");
            let status = if is_edit { 400 } else { 405 };
            cases.push(case(&line, with(&line, "Content-Length: 0\r\n", ""), Refused(status)));
        }
    }
    for path in ["/v0/entities?start=raw", "/v0/status", "/metrics"] {
        for method in ["PUT", "DELETE"] {
            let line = format!("{method} {path} HTTP/1.1");
            cases.push(case(&line, with(&line, "Content-Length: 3\r\n", "abc"), Refused(405)));
        }
    }
    let odd = |name: &str, line: &str, expect| case(name, with(line, "", ""), expect);
    cases.extend([
        odd("CONNECT to an authority", "CONNECT a:80 HTTP/1.1", Refused(400)),
        odd("CONNECT to a path", "CONNECT /v0/status HTTP/1.1", Refused(405)),
        odd("PATCH with no length", "PATCH /v0/entity?id=raw HTTP/1.1", Refused(405)),
        odd("POST with neither add nor append", "POST /v0/entity?id=raw HTTP/1.1", Refused(400)),
        odd("an append with no length", "POST /v0/entity?id=raw&append HTTP/1.1", Refused(411)),
        odd("an unknown path is told before the method", "PATCH /v0/nothing HTTP/1.1", Refused(400)),
        odd("GET with a long method", &format!("{} /v0/status HTTP/1.1", "G".repeat(5000)), Refused(405)),
    ]);
    cases
}

pub(crate) fn targets() -> Vec<Case> {
    let mut cases = Vec::new();
    for target in [
        "/console/",
        "/console/other.js",
        "/v0",
        "/v0/",
        "/v0/entity/",
        "/v0/entity/raw",
        "/v0/entitys?id=raw",
        "/V0/entity?id=raw",
        "/v0/Entity?id=raw",
        "/v0//entity?id=raw",
        "//v0/entity?id=raw",
        "//v0/status",
        "/v0/../v0/entity?id=raw",
        "/v0/./entity?id=raw",
        "/../../etc/passwd",
        "/v0/%65ntity?id=raw",
        "/v0%2fentity?id=raw",
        "/v0/entity%3fid=raw",
        "/v0/entity;x=1?id=raw",
        "/v0/entity%00?id=raw",
        "/v0/metrics",
        "/metrics/",
        "/v1/status",
        "/favicon.ico",
        "/v0/entity&id=raw",
        // Forms for proxies, or for no server at all.
        "http://a/v0/status",
        "HTTP://a/v0/status",
        "https://a/v0/status",
        "ftp://a/v0/status",
        "http://a:1/v0/entity?id=raw",
        "http://u:p@a/v0/status",
        "*",
        "a",
        "a:80",
        // A well-formed client never sends a fragment.
        "/v0/status#",
        "/v0/entity?id=raw#top",
        "/v0/entity#?id=raw",
        "/#/v0/entity?id=raw",
    ] {
        cases.push(case(format!("target {target}"), get(target), Refused(400)));
    }
    cases.push(case("target http://", get("http://"), Bare(400)));
    cases.push(case("target http:///v0/status", get("http:///v0/status"), Bare(400)));
    cases.push(case("OPTIONS *", with("OPTIONS * HTTP/1.1", "", ""), Served(200)));
    cases.push(case(
        "OPTIONS * with a body",
        with("OPTIONS * HTTP/1.1", "Content-Length: 3\r\n", "abc"),
        Served(200),
    ));
    for method in ["PUT", "DELETE", "POST", "options"] {
        let line = format!("{method} * HTTP/1.1");
        cases.push(case(format!("{method} *"), with(&line, "Content-Length: 0\r\n", ""), Refused(400)));
    }
    // RFC 9112, 3.2.2: a target with this node's own host, as clients of proxies send it. The Host header is
    // ignored.
    for host in ["127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:8080", "[::1]:80", "localhost."] {
        for scheme in ["http", "HTTP"] {
            let target = format!("{scheme}://{host}/v0/status");
            cases.push(case(format!("target {target}"), get(target), Served(200)));
        }
    }
    // hyper takes no escapes in a host.
    cases.push(case("an escape in a target's host", get("http://local%68ost/v0/status"), Bare(400)));
    for target in [
        "http://localhost/v0/entity?id=raw-absent",
        "http://localhost/v0/entity?id=http://localhost/",
        "http://127.0.0.1/v0/entity?id=raw%2Dabsent&replicas=1/1",
    ] {
        cases.push(case(format!("target {target}"), get(target), Served(404)));
    }
    for target in [
        "http://localhost/other",
        "http://localhost/console/",
        "http://localhost?id=raw",
        "http://localhost/v0",
        "http://localhost//v0/status",
        "http://localhost/v0/entity",
        "http://localhost/v0/status#x",
        "http://localhost.evil.example/v0/status",
        "http://u@localhost/v0/status",
        "http://127.0.0.1.evil.example/v0/status",
        "http://10.0.0.1/v0/status",
        "https://localhost/v0/status",
        "localhost/v0/status",
        "localhost:80",
    ] {
        let status = if target == "localhost/v0/status" { Bare(400) } else { Refused(400) };
        cases.push(case(format!("target {target}"), get(target), status));
    }
    cases.push(case(
        "an own target without a Host",
        "GET http://localhost/v0/status HTTP/1.1\r\n\r\n",
        Refused(400),
    ));
    cases
}

pub(crate) fn entity_parameters() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = "k".repeat(1024);
    let escaped = "%6b".repeat(1024);
    let found = [
        "id=raw-absent".to_owned(),
        "id=%00".to_owned(),
        "id=%ff%fe".to_owned(),
        "id=+".to_owned(),
        "id=%2B%2b".to_owned(),
        "id==".to_owned(),
        "id=a=b".to_owned(),
        "id=a/b?c".to_owned(),
        "id=a:@!$'()*,;~".to_owned(),
        "%69%64=x".to_owned(),
        "&&id=raw-absent&".to_owned(),
        format!("id={long}"),
        format!("id={escaped}"),
        "id=raw-absent&replicas=1/1".to_owned(),
        "id=raw-absent&replicas=1%2f1".to_owned(),
        "id=raw-absent&ack=1&from=1".to_owned(),
        "from=1&id=raw-absent&ack=1".to_owned(),
        "id=raw-absent&ack=1".to_owned(),
        "id=raw-absent&from=1".to_owned(),
        "id=raw-absent&replicas=01/01".to_owned(),
    ];
    for query in found {
        let name = format!("GET {query}");
        cases.push(case(name, get(format!("/v0/entity?{query}")), Served(404)));
    }
    cases.push(case("GET of a raw UTF-8 key", get("/v0/entity?id=schlüssel"), Served(404)));
    let bad = [
        String::new(),
        "id".to_owned(),
        "id=".to_owned(),
        "id=&id=".to_owned(),
        "ID=raw".to_owned(),
        "key=raw".to_owned(),
        "raw".to_owned(),
        "=raw".to_owned(),
        "id=raw&id=raw".to_owned(),
        "id=raw&%69d=raw".to_owned(),
        format!("id={long}k"),
        format!("id={escaped}%6b"),
        "id=%".to_owned(),
        "id=%4".to_owned(),
        "id=a%".to_owned(),
        "id=%zz".to_owned(),
        "id=%4g".to_owned(),
        "id=%%41".to_owned(),
        "id=%u0041".to_owned(),
        "id=%+1".to_owned(),
        "id=%-1".to_owned(),
        "id=%&x".to_owned(),
        "%6=raw".to_owned(),
        "i%64%=raw".to_owned(),
        "id=raw&x=1".to_owned(),
        "id=raw&start=a".to_owned(),
        "id=raw&%0d%0aX-Injected:%201=1".to_owned(),
        "id=raw&=".to_owned(),
        "id=raw;ack=1".replace(';', "&ack=1;"),
    ];
    for query in bad {
        cases.push(case(format!("GET {query}"), get(format!("/v0/entity?{query}")), Refused(400)));
    }
    cases.push(case("GET without a query", get("/v0/entity"), Refused(400)));
    for replicas in [
        "replicas",
        "replicas=",
        "replicas=1",
        "replicas=/",
        "replicas=1/",
        "replicas=/1",
        "replicas=1/1/1",
        "replicas=1//1",
        "replicas=-1/1",
        "replicas=+1/1",
        "replicas=%2b1/1",
        "replicas=1.0/1",
        "replicas=0x1/1",
        "replicas=a/b",
        "replicas=%D9%A1/1",
        "replicas=1%20/1",
        "replicas=1,1",
        "replicas=0/1",
        "replicas=0/0",
        "replicas=1/0",
        "replicas=2/1",
        "replicas=1/2",
        "replicas=2/2",
        "replicas=2/3",
        "replicas=1/65536",
        "replicas=65537/1",
        "replicas=18446744073709551617/1",
        "replicas=1/1&replicas=1/1",
        "replicas=1/1&ack=1",
        "replicas=1/1&from=1",
        "replicas=1/1&ack=1&from=1",
        "ack=1&replicas=1/1",
        "from=1&replicas=1/1",
        "ack=",
        "ack=0",
        "ack=2",
        "ack=x",
        "ack=-1",
        "ack=1/1",
        "ack=1&ack=1",
        "ack=2&from=1",
        "ack=0&from=1",
        "ack=99999",
        "from=",
        "from=0",
        "from=2",
        "from=x",
        "from=1&from=1",
        "ttl=",
        "ttl=5",
    ] {
        cases.push(case(
            format!("GET {replicas}"),
            get(format!("/v0/entity?id=raw&{replicas}")),
            Refused(400),
        ));
        let line = format!("DELETE /v0/entity?id=raw-kept&{replicas} HTTP/1.1");
        cases.push(case(format!("DELETE {replicas}"), with(&line, "", ""), Refused(400)));
    }
    for ttl in [
        "",
        "0",
        "0s",
        "0ms",
        "0.0",
        "00",
        "-1",
        "-1s",
        "+1s",
        "%2b1s",
        "1.5w",
        "1.5%20s",
        ".5",
        "5.",
        "1e3",
        "1w",
        "1y",
        "1S",
        "1 s",
        "1%20s",
        "%201s",
        "1s%20",
        "s",
        "ms",
        "1sm",
        "1m30s",
        "0x10",
        "NaN",
        "inf",
        "1,5",
        "1..5",
        "1%00",
        "%D9%A1s",
        "18446744073709551616",
        "18446744073709551615",
        "18446744073709551615d",
        "0.0000000000000000001",
        "1&ttl=1",
    ] {
        let line = format!("PUT /v0/entity?id=raw-kept&ttl={} HTTP/1.1", ttl.replace(' ', "%20"));
        cases.push(case(format!("PUT ttl={ttl}"), with(&line, "Content-Length: 1\r\n", "x"), Refused(400)));
    }
    cases
}

pub(crate) fn other_parameters() -> Vec<Case> {
    let mut cases = Vec::new();
    for query in [
        "",
        "start",
        "start=",
        "end=b",
        "id=a",
        "start=raw&start=raw",
        "start=%",
        "start=%4",
        "start=raw&end=",
        "start=raw&end",
        "start=raw&end=%g1",
        "start=raw&end=a&end=b",
        "start=raw&limit=",
        "start=raw&limit=0",
        "start=raw&limit=-1",
        "start=raw&limit=+1",
        "start=raw&limit=1.0",
        "start=raw&limit=1k",
        "start=raw&limit=all",
        "start=raw&limit=18446744073709551616",
        "start=raw&limit=1&limit=1",
        "start=raw&scope=",
        "start=raw&scope=all",
        "start=raw&scope=Local",
        "start=raw&scope=local&scope=local",
        "start=raw&replicas=1/1",
        "start=raw&id=a",
        "start=raw&x",
    ] {
        cases.push(case(format!("range {query}"), get(format!("/v0/entities?{query}")), Refused(400)));
    }
    for start in ["k".repeat(1025), "%00".repeat(1025)] {
        let target = format!("/v0/entities?start={start}");
        cases.push(case(format!("range from a long key {start:.3}"), get(target), Refused(400)));
    }
    cases.push(case("range without a query", get("/v0/entities"), Refused(400)));
    let http_10 = "GET /v0/entities?start=a HTTP/1.0";
    cases.push(case("range in HTTP/1.0", with(http_10, "", ""), Refused(400)));
    for target in ["/v0/status?x", "/v0/status?x=1", "/v0/status?%", "/metrics?name[]=x", "/metrics?id=a"] {
        cases.push(case(format!("parameters on {target}"), get(target), Refused(400)));
    }
    for target in ["/v0/status?", "/v0/status?&", "/metrics?"] {
        cases.push(case(format!("no parameters on {target}"), get(target), Served(200)));
    }
    cases
}

pub(crate) fn hosts_and_versions() -> Vec<Case> {
    let status = |headers: &str| format!("GET /v0/status HTTP/1.1\r\n{headers}\r\n");
    let mut cases = vec![
        case("no Host", status(""), Refused(400)),
        case("two Hosts", status("Host: a\r\nHost: b\r\n"), Refused(400)),
        case("two equal Hosts", status("Host: a\r\nhost: a\r\n"), Refused(400)),
        case("an empty and a good Host", status("Host:\r\nHost: a\r\n"), Refused(400)),
        // RFC 9112, 3.2: a client sends an empty Host if its target has no authority.
        case("an empty Host", status("Host:\r\n"), Served(200)),
        case("HTTP/1.0 with a Host", "GET /v0/status HTTP/1.0\r\nHost: a\r\n\r\n", Served(200)),
        case("HTTP/1.0 without a Host", "GET /v0/status HTTP/1.0\r\n\r\n", Served(200)),
        case(
            "HTTP/1.0 with two Hosts",
            "GET /v0/status HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
            Refused(400),
        ),
        // RFC 9110, 2.5: a later minor version is treated as the known one.
        case("HTTP/1.2", "GET /v0/status HTTP/1.2\r\nHost: a\r\n\r\n", Served(200)),
        case("HTTP/1.9", "GET /v0/status HTTP/1.9\r\nHost: a\r\n\r\n", Served(200)),
        case("HTTP/1.2 without a Host", "GET /v0/status HTTP/1.2\r\n\r\n", Refused(400)),
        case("HTTP/1.2 with bare line feeds", "GET /v0/status HTTP/1.2\nHost: a\n\n", Refused(400)),
        case("a range in HTTP/1.2", "GET /v0/entities?start=a HTTP/1.2\r\nHost: a\r\n\r\n", Served(200)),
        case(
            "a PUT in HTTP/1.2",
            with("PUT /v0/entity?id=raw HTTP/1.2", "Content-Length: 3\r\n", "abc"),
            Served(201),
        ),
        case("HTTP/1.0 that stays", "GET /v0/status HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Served(200)),
    ];
    for host in ["a", "a:80", "127.0.0.1:8080", "[::1]:80", "[::1]", "a.example.", "A-b.c", "a:"] {
        cases.push(case(format!("Host: {host}"), status(&format!("Host: {host}\r\n")), Served(200)));
    }
    for host in ["a b", "a/b", "http://a", "a@b", "a\\b", "a\"b", "<a>", "a#b", "a?b", "a\tb", "a{b"] {
        cases.push(case(format!("Host: {host}"), status(&format!("Host: {host}\r\n")), Refused(400)));
    }
    cases.push(case("Host with UTF-8", status("Host: ä\r\n"), Refused(400)));
    cases
}

pub(crate) fn head_lines() -> Vec<Case> {
    let status = "GET /v0/status HTTP/1.1";
    let line = |name: &str, header: &str, expect| case(name, with(status, header, ""), expect);
    let mut cases = vec![
        case("a bare LF behind the request line", "GET /v0/status HTTP/1.1\nHost: a\r\n\r\n", Refused(400)),
        case("a bare LF behind a header", "GET /v0/status HTTP/1.1\r\nHost: a\n\r\n", Refused(400)),
        case("a bare LF as the end of the head", "GET /v0/status HTTP/1.1\r\nHost: a\r\n\n", Refused(400)),
        case("bare LFs alone", "GET /v0/status HTTP/1.1\nHost: a\n\n", Refused(400)),
        case("a bare LF between two headers", with(status, "A: b\nC: d\r\n", ""), Refused(400)),
        case("a bare LF before the request", [b"\n", &get("/v0/status")[..]].concat(), Refused(400)),
        case(
            "a bare LF behind a long header",
            with(status, format!("A: {}\n", "b".repeat(4000)), ""),
            Refused(400),
        ),
        case("a CR alone behind the request line", "GET /v0/status HTTP/1.1\rHost: a\r\n\r\n", Bare(400)),
        case(
            "a CR alone as the end of the head",
            "GET /v0/status HTTP/1.1\r\nHost: a\r\n\rx\r\n\r\n",
            Bare(400),
        ),
        case("two CRs", "GET /v0/status HTTP/1.1\r\r\nHost: a\r\n\r\n", Bare(400)),
        case("a CR before the request", [b"\rx", &get("/v0/status")[..]].concat(), Bare(400)),
        line("a CR in a value", "A: b\rc\r\n", Bare(400)),
        line("two CRs behind a value", "A: b\r\r\n", Bare(400)),
        line("a NUL in a value", "A: b\0c\r\n", Bare(400)),
        line("a BEL in a value", "A: b\x07c\r\n", Bare(400)),
        line("a DEL in a value", "A: b\x7fc\r\n", Bare(400)),
        line("a NUL in a name", "A\0: b\r\n", Bare(400)),
        line("a space in a name", "A b: c\r\n", Bare(400)),
        line("a space before the colon", "A : b\r\n", Bare(400)),
        line("a tab before the colon", "A\t: b\r\n", Bare(400)),
        line("an empty name", ": b\r\n", Bare(400)),
        line("a name alone", "A\r\n", Bare(400)),
        line("a name with a bracket", "A(b): c\r\n", Bare(400)),
        line("a name in UTF-8", "Ä: b\r\n", Bare(400)),
        line("a folded value", "A: b\r\n c\r\n", Bare(400)),
        line("a value folded with a tab", "A: b\r\n\tc\r\n", Bare(400)),
        line("a folded empty line", "A: b\r\n \r\n", Bare(400)),
        case("a space before the first header", "GET /v0/status HTTP/1.1\r\n Host: a\r\n\r\n", Bare(400)),
        line("an empty value", "A:\r\n", Served(200)),
        line("a value in UTF-8", "A: ä\r\n", Served(200)),
        line("no space behind the colon", "A:b\r\n", Served(200)),
        line("spaces and tabs around a value", "A: \t b \t \r\n", Served(200)),
        line("an unknown expectation", "Expect: tea\r\n", Served(200)),
        line("an upgrade that is not wanted", "Connection: upgrade\r\nUpgrade: h2c\r\n", Served(200)),
        line("odd connection options", "Connection: ,,x, keep-alive,\r\n", Served(200)),
        line("100 headers", &"A: b\r\n".repeat(99), Served(200)),
        line("101 headers", &"A: b\r\n".repeat(100), Bare(431)),
        line("a header of 60000 bytes", &format!("A: {}\r\n", "b".repeat(60_000)), Served(200)),
        line("a header of 70000 bytes", &format!("A: {}\r\n", "b".repeat(70_000)), Bare(431)),
        line("a name of 70000 bytes", &format!("{}: b\r\n", "A".repeat(70_000)), Bare(431)),
        line(
            "many headers, 90000 bytes in all",
            &format!("A: {}\r\n", "b".repeat(1000)).repeat(90),
            Bare(431),
        ),
        case("a target of 70000 bytes", get(format!("/v0/entity?id={}", "k".repeat(70_000))), Bare(431)),
        case("a target of 60000 bytes", get(format!("/v0/entity?id={}", "k".repeat(60_000))), Refused(400)),
    ];
    for (name, head) in
        [("nothing", ""), ("half a request line", "GET /v0"), ("half a head", "GET / HTTP/1.1\r\nHo")]
    {
        // A client that goes away in the middle of a head does not wait for an answer.
        cases.push(Case { ends: true, ..case(format!("{name}, then the end"), head, Closed) });
    }
    cases
}

/// Conditions and ranges on writes: those that do not hold, and headers that would be ignored are refused, before anything is
/// done.
pub(crate) fn conditions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (header, status) in [
        ("If-Match: \"0000000000010000-00000000000000ff\"", 412),
        ("if-match: \"a\", \"b\"", 412),
        ("If-None-Match: *", 412),
        ("If-Match: *\r\nIf-None-Match: *", 412),
        ("If-Match:", 400),
        ("If-None-Match: unquoted", 400),
        ("If-Match: *\r\nKvorum-Operation:", 400),
        ("Kvorum-Operation: two words", 400),
        ("If-Unmodified-Since: Sun, 22 Nov 2026 02:07:08 GMT", 501),
        ("If-Unmodified-Since: nonsense", 501),
    ] {
        let headers = format!("{header}\r\nContent-Length: 1\r\n");
        let put_kept = with("PUT /v0/entity?id=raw-kept HTTP/1.1", &headers, "x");
        cases.push(case(format!("PUT {header}"), put_kept, Refused(status)));
        let delete_kept = with("DELETE /v0/entity?id=raw-kept HTTP/1.1", format!("{header}\r\n"), "");
        cases.push(case(format!("DELETE {header}"), delete_kept, Refused(status)));
    }
    for header in ["If-None-Match: *", "If-Match: *", "Kvorum-Operation: again"] {
        let headers = format!("{header}\r\nContent-Length: 1\r\n");
        let put_new = with("PUT /v0/entity?id=raw-conditional HTTP/1.1", &headers, "x");
        cases.push(case(format!("PUT {header}, which holds"), put_new, Served(201)));
    }
    // Headers without a meaning on a write (RFC 9110, 13.1.3, 13.1.5, 14.2).
    for header in ["If-Modified-Since: Sun, 22 Nov 2026 02:07:08 GMT", "If-Range: \"a\"", "Range: bytes=0-1"]
    {
        cases.push(case(
            format!("PUT {header}"),
            put(format!("{header}\r\nContent-Length: 1\r\n"), "x"),
            Served(201),
        ));
    }
    for (header, expect) in [
        ("If-Match: *", Served(200)),
        ("If-Match: \"0000000000010000-00000000000000ff\"", Refused(412)),
        ("If-Match: \"other\", W/\"third\"", Refused(412)),
        ("If-Match:", Refused(400)),
        ("If-Match: unquoted", Refused(400)),
        ("If-None-Match: *", Served(304)),
        ("If-None-Match: \"a\", , \"b\"", Served(200)),
        ("If-None-Match: \"a", Refused(400)),
        ("If-None-Match: \"a\" \"b\"", Refused(400)),
        ("If-Match: *\r\nIf-None-Match: *", Served(304)),
        ("If-Match: \"a\"\r\nIf-None-Match: *", Refused(412)),
        ("If-Modified-Since: Sun, 22 Nov 2126 02:07:08 GMT", Served(200)),
        ("If-Unmodified-Since: Sun, 22 Nov 1926 02:07:08 GMT", Served(200)),
    ] {
        let bytes = with("GET /v0/entity?id=raw-marker HTTP/1.1", format!("{header}\r\n"), "");
        cases.push(case(format!("GET {header}"), bytes, expect));
    }
    for range in ["bytes 0-0/4", "bytes */4", "bytes 0-0/*", "x"] {
        let headers = format!("Content-Range: {range}\r\nContent-Length: 1\r\n");
        let bytes = with("PUT /v0/entity?id=raw-kept HTTP/1.1", headers, "x");
        cases.push(case(format!("PUT Content-Range: {range}"), bytes, Refused(400)));
    }
    let bytes = with("DELETE /v0/entity?id=raw HTTP/1.1", "Content-Range: bytes 0-0/4\r\n", "");
    cases.push(case("DELETE Content-Range", bytes, Served(202)));
    cases
}
