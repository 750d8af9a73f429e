//! Goal: the node keeps every sentence of the HTTP contract (`docs`: the HTTP API), over real sockets.
//! Method: the real program on a port of its own for each test, and a client that shows every byte. What concerns
//! requests and answers runs under both executions; bounds, draining and the command line follow behind it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    missing_docs,
    reason = "tests fail by panicking, and use real sockets, files and time"
)]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::{Answer, Client, Ended, Server, kvorum, one, run, unix_millis, wait_until};

const MIB: usize = 1 << 20;

/// A key in a query, every byte escaped.
fn escape(key: &[u8]) -> String {
    key.iter().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"))
}

/// Bytes that look random and are not; every length and seed gives others.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut noise: Vec<u8> = std::iter::repeat_with(&mut next).take(bytes.div_ceil(8)).flatten().collect();
    noise.truncate(bytes);
    noise
}

/// The version in an `ETag`: clock word and node.
fn version_of(answer: &Answer) -> (u64, u64) {
    let etag = answer.header("etag").unwrap_or_else(|| panic!("no ETag: {answer:?}"));
    let version = etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap();
    let (clock, node) = version.split_once('-').unwrap();
    assert_eq!((clock.len(), node.len()), (16, 16), "{etag}");
    assert!(!version.contains(|c: char| c.is_ascii_uppercase()), "{etag}");
    (u64::from_str_radix(clock, 16).unwrap(), u64::from_str_radix(node, 16).unwrap())
}

/// The Unix milliseconds in an `ETag`.
fn millis_of(answer: &Answer) -> u64 {
    version_of(answer).0 >> 16
}

fn status_of(server: &Server, method: &str, query: &str) -> u16 {
    server.request(method, &format!("/v0/entity?{query}")).status
}

/// The readings of `/metrics` by name and labels.
fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = server.request("GET", "/metrics");
    assert_eq!(answer.status, 200);
    let readings = answer.text().lines().filter(|line| !line.starts_with('#'));
    readings
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.trim_end_matches("{}").to_owned(), value.parse().unwrap()))
        .collect()
}

// ---- What every execution must do ------------------------------------------------------------------------------

type Check = fn(&Server);

const CORE: &[(&str, Check)] = &[
    ("round trips", round_trips),
    ("versions", versions),
    ("headers of a value", headers_of_a_value),
    ("length of a value by HEAD", length_of_a_value_by_head),
    ("failures of a value", failures_of_a_value),
    ("lifetimes", lifetimes),
    ("expiry to the millisecond", expiry_to_the_millisecond),
    ("quorums", quorums),
    ("plain ranges", plain_ranges),
    ("ndjson ranges", ndjson_ranges),
    ("what ranges leave out", what_ranges_leave_out),
    ("ranges of many records", ranges_of_many_records),
    ("pipelining", pipelining),
    ("half a request behind a whole one", half_a_request_behind_a_whole_one),
    ("chunked uploads", chunked_uploads),
    ("expectation", expectation),
    ("persistence of connections", persistence_of_connections),
    ("concurrent writers", concurrent_writers),
];

fn run_core(execution: &str) {
    let mut server = Server::start(&["--execution", execution, "--max-value-size", "1MiB", "--threads", "2"]);
    let mut failed = Vec::new();
    for (name, check) in CORE {
        // Each has keys of its own, so all of them can be told of.
        println!("{execution}: {name}");
        if catch_unwind(AssertUnwindSafe(|| check(&server))).is_err() {
            failed.push(*name);
        }
    }
    restart_keeps_everything(&mut server);
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
fn core_of_the_contract_holds_inline() {
    run_core("inline");
}

#[test]
fn core_of_the_contract_holds_on_the_pool() {
    run_core("pool");
}

/// Binary keys and values of every critical size come back by GET as they were; HEAD says the same without a body;
/// DELETE takes them away.
fn round_trips(server: &Server) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let keys: [&[u8]; 9] = [
        b"a",
        b"\0",
        b"\xff\xfe",
        b"+ %&=?#/\\",
        b"\r\n",
        &all_bytes,
        &[0; 1024],
        &[0xff; 1024],
        "schlüssel".as_bytes(),
    ];
    let values = [0, 1, 2, 100, 4095, 65_535, 65_536, 65_537, 300_000, MIB].map(|bytes| noise(bytes, 7));
    let mut cases: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (*key, &all_bytes[..])).collect();
    cases.extend(values.iter().map(|value| (&b"value"[..], &value[..])));
    cases.push((b"lines", b"HTTP/1.1 200 OK\r\n\r\n0\r\n\r\n"));
    for (key, value) in cases {
        let query = format!("id={}", escape(key));
        let put = server.put(&query, value);
        assert_eq!((put.status, put.body.len()), (201, 0), "{put:?}");
        let get = server.get(&query);
        assert!(get.status == 200 && get.body == value, "{} bytes: {get:?}", value.len());
        let head = server.request("HEAD", &format!("/v0/entity?{query}"));
        assert_eq!(head.status, 200, "{head:?}");
        for name in ["content-type", "etag", "last-modified", "kvorum-replicas"] {
            assert_eq!(head.header(name), get.header(name), "{name}");
        }
        let length = value.len().to_string();
        assert_eq!(get.header("content-length"), Some(length.as_str()));
        assert!(value.is_empty() || head.header("content-length") == Some(&length), "{head:?}");
        let delete = server.request("DELETE", &format!("/v0/entity?{query}"));
        assert_eq!((delete.status, delete.body.len()), (202, 0), "{delete:?}");
        assert_eq!(status_of(server, "GET", &query), 404);
        assert_eq!(status_of(server, "HEAD", &query), 404);
    }
    // Escaping is only a way of writing: the same key written otherwise is the same.
    assert_eq!(server.put("id=a/b", b"x").status, 201);
    assert_eq!(server.get("id=a%2Fb").body, b"x");
    assert_eq!(server.get("id=%61%2f%62").body, b"x");
    // A plus sign is a plus sign.
    assert_eq!(server.put("id=a+b", b"plus").status, 201);
    assert_eq!(server.get("id=a%2bb").body, b"plus");
    assert_eq!(status_of(server, "GET", "id=a%20b"), 404);
}

/// Every write gets a version above all before it, also of other keys and of deletions; a read shows it.
fn versions(server: &Server) {
    let mut newest = (0, 0);
    for round in 0..20 {
        let key = format!("id=version-{}", round % 3);
        let before = unix_millis();
        let written = match round % 4 {
            3 => server.request("DELETE", &format!("/v0/entity?{key}")),
            _ => server.put(&key, b"x"),
        };
        let version = version_of(&written);
        assert!(version > newest, "{version:x?} behind {newest:x?}");
        assert!(version.0 >> 16 >= before, "a version is not older than its request");
        newest = version;
        if written.status == 201 {
            assert_eq!(version_of(&server.get(&key)), version);
        }
    }
    // Also for a key that never existed, each time anew.
    let delete = || server.request("DELETE", "/v0/entity?id=version-never");
    let (first, second) = (delete(), delete());
    assert_eq!((first.status, second.status), (202, 202));
    assert!(version_of(&second) > version_of(&first));
}

/// HEAD tells the length of a value, also of an empty one.
fn length_of_a_value_by_head(server: &Server) {
    for value in [&b"12345"[..], b"1", b""] {
        assert_eq!(server.put("id=length", value).status, 201);
        let head = server.request("HEAD", "/v0/entity?id=length");
        assert_eq!(head.header("content-length"), Some(value.len().to_string().as_str()), "{head:?}");
    }
}

fn headers_of_a_value(server: &Server) {
    let put = server.put("id=headers", b"value");
    assert_eq!(put.header("content-length"), Some("0"));
    assert_eq!(put.header("kvorum-expires"), None);
    for method in ["GET", "HEAD"] {
        let answer = server.request(method, "/v0/entity?id=headers");
        assert_eq!(answer.header("etag"), put.header("etag"));
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        assert_eq!(answer.header("content-length"), Some("5"));
        assert_eq!(answer.header("kvorum-replicas"), Some("1/1"));
        assert_eq!(answer.header("kvorum-expires"), None);
        let modified = httpdate::parse_http_date(answer.header("last-modified").unwrap()).unwrap();
        let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds, millis_of(&answer) / 1000);
    }
}

/// A key without a value is told in a line of text, or in JSON; to HEAD without either.
fn failures_of_a_value(server: &Server) {
    let text = server.get("id=absent");
    assert_eq!(text.status, 404);
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(text.text().ends_with('\n') && text.text().lines().count() == 1, "{text:?}");
    for name in ["etag", "last-modified", "kvorum-expires"] {
        assert_eq!(text.header(name), None);
    }
    let json = server.request_with("GET", "/v0/entity?id=absent", "Accept: application/json\r\n");
    assert_eq!((json.status, json.header("content-type")), (404, Some("application/json")));
    let fields: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!(fields["error"], "not_found");
    assert_eq!(fields["message"], text.text().trim_end());
    let other = server.request_with("GET", "/v0/entity?id=absent", "Accept: text/plain, */*\r\n");
    assert_eq!(other.body, text.body);
    let head = server.request("HEAD", "/v0/entity?id=absent");
    assert_eq!((head.status, head.header("content-length")), (404, text.header("content-length")));
    // One byte over the limit, both ways of saying how long it is; what was there stays.
    assert_eq!(server.put("id=limit", b"before").status, 201);
    let over = noise(MIB + 1, 1);
    let answer = server.put("id=limit", &over);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.text().contains("1048576"), "the limit is told: {answer:?}");
    let chunked = [
        &b"PUT /v0/entity?id=limit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n"[..],
        &over,
        b"\r\n0\r\n\r\n",
    ];
    assert_eq!(one(server.exchange(&chunked.concat())).status, 413);
    assert_eq!(server.get("id=limit").body, b"before");
}

/// Every form of a TTL gives its instant: the version's milliseconds and the TTL.
fn lifetimes(server: &Server) {
    for (ttl, millis) in [
        ("1500ms", 1500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("60", 60_000),
        ("60.25", 60_250),
        ("3600000ms", 3_600_000),
    ] {
        let put = server.put(&format!("id=ttl&ttl={ttl}"), b"x");
        assert_eq!(put.status, 201, "{ttl}: {put:?}");
        for method in ["GET", "HEAD"] {
            let answer = server.request(method, "/v0/entity?id=ttl");
            let expires: u64 = answer.header("kvorum-expires").unwrap().parse().unwrap();
            assert_eq!(expires, millis_of(&put) + millis, "{ttl}");
        }
    }
    // The next write says anew how long it lives.
    assert_eq!(server.put("id=ttl", b"for good").status, 201);
    assert_eq!(server.get("id=ttl").header("kvorum-expires"), None);
    assert_eq!(server.put("id=ttl&ttl=999999999d", b"nearly for good").status, 201);
    assert_eq!(server.get("id=ttl").status, 200);
    // What could end only behind the end of time is refused or lives until then; it is never gone at once.
    let endless = server.put("id=ttl&ttl=18446744073709551615ms", b"endless");
    assert!([201, 400].contains(&endless.status), "{endless:?}");
    assert_eq!(server.get("id=ttl").status, 200);
}

/// A record is there until the millisecond before its instant and gone from it on, for GET and HEAD alike.
///
/// Method: ask all the time. An answer that came before the instant must show it, a question asked at the instant or
/// later must not; between the two both are right.
fn expiry_to_the_millisecond(server: &Server) {
    let mut client = server.connect();
    for ttl in [1, 40, 300] {
        let put = server.put(&format!("id=expiry&ttl={ttl}ms"), b"x");
        let gone_at = millis_of(&put) + ttl;
        let mut seen_before = 0;
        let mut seen_after = 0;
        while seen_after < 20 {
            for method in ["GET", "HEAD"] {
                let asked = unix_millis();
                client.send(format!("{method} /v0/entity?id=expiry HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
                if method == "HEAD" {
                    client.expect_no_body();
                }
                let status = client.recv().status;
                let answered = unix_millis();
                if answered < gone_at {
                    assert_eq!(status, 200, "{method} with {} ms left", gone_at - answered);
                    seen_before += 1;
                } else if asked >= gone_at {
                    assert_eq!(status, 404, "{method} {} ms too late", asked - gone_at);
                    seen_after += 1;
                } else {
                    assert!(status == 200 || status == 404);
                }
            }
        }
        // A second and more of a machine that stands still would be needed to miss it.
        assert!(seen_before > 0 || ttl < 300, "the record was never seen");
        let lines = server.request("GET", "/v0/entities?start=expiry&end=expiry0");
        assert_eq!(lines.chunks.unwrap(), Vec::<Vec<u8>>::new());
    }
}

/// Every way to name the only quorum of a cluster of one; all others are refused, and do nothing.
fn quorums(server: &Server) {
    for quorum in ["replicas=1/1", "ack=1&from=1", "from=1&ack=1", "ack=1", "from=1", "replicas=1%2F1"] {
        let query = format!("id=quorum&{quorum}");
        assert_eq!(server.put(&query, quorum.as_bytes()).status, 201, "{quorum}");
        let get = server.get(&query);
        assert_eq!((get.status, get.header("kvorum-replicas")), (200, Some("1/1")), "{quorum}");
        assert_eq!(get.body, quorum.as_bytes());
        assert_eq!(status_of(server, "HEAD", &query), 200, "{quorum}");
        assert_eq!(status_of(server, "DELETE", &query), 202, "{quorum}");
        assert_eq!(status_of(server, "GET", "id=quorum"), 404);
    }
    assert_eq!(server.put("id=quorum", b"kept").status, 201);
    for quorum in
        ["replicas=2/3", "replicas=1/2", "replicas=2/2", "replicas=0/1", "ack=2&from=3", "ack=2", "from=3"]
    {
        let query = format!("id=quorum&{quorum}");
        assert_eq!(server.put(&query, b"never").status, 400, "{quorum}");
        for method in ["GET", "HEAD", "DELETE"] {
            assert_eq!(status_of(server, method, &query), 400, "{method} {quorum}");
        }
    }
    assert_eq!(server.get("id=quorum").body, b"kept");
}

/// The records of a range as they are framed: one chunk a record.
fn records(server: &Server, query: &str) -> Vec<Vec<u8>> {
    let answer = server.request("GET", &format!("/v0/entities?{query}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.is_whole, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    answer.chunks.unwrap()
}

/// Ranges are sorted by key bytes, start included, end not, one chunk a record, `<key>\n<value>` byte by byte.
fn plain_ranges(server: &Server) {
    let value = noise(200_000, 3);
    let stored: BTreeMap<&[u8], &[u8]> = BTreeMap::from([
        (&b"p"[..], &b""[..]),
        (b"p\0", b"nul"),
        (b"p\n", b"\n"),
        (b"pa", b"1"),
        (b"paa", b"line\nline"),
        (b"pb", &value),
        (b"p\x7f", b"del"),
        (b"p\x80", b"\xff\0"),
        (b"p\xff", b"last"),
        (b"p\xff\xff", b"really"),
    ]);
    for (key, value) in stored.iter().rev() {
        assert_eq!(server.put(&format!("id={}", escape(key)), value).status, 201);
    }
    let expect = |from: &[u8], to: &[u8], limit: usize| -> Vec<Vec<u8>> {
        let inside = stored.iter().filter(|(key, _)| **key >= from && **key < to);
        inside.take(limit).map(|(key, value)| [key, &b"\n"[..], value].concat()).collect()
    };
    let all = expect(b"p", b"q", 99);
    assert_eq!(records(server, "start=p&end=q"), all);
    assert_eq!(records(server, "start=p&end=q&scope=local"), all);
    assert_eq!(records(server, "scope=cluster&end=q&start=p"), all);
    for limit in [1, 2, 9, 10, 11, 1000] {
        assert_eq!(
            records(server, &format!("start=p&end=q&limit={limit}")),
            expect(b"p", b"q", limit),
            "{limit}"
        );
    }
    assert_eq!(records(server, "start=p&end=q&limit=18446744073709551615"), all);
    let ends: [&[u8]; 9] =
        [b"p\0", b"p\n", b"pa", b"pa\0", b"pb", b"pz", b"p\x80", b"p\xff\xff", b"p\xff\xff\0"];
    for from in ends {
        for to in ends {
            let query = format!("start={}&end={}", escape(from), escape(to));
            assert_eq!(records(server, &query), expect(from, to, 99), "{query}");
        }
    }
    // Without an end it goes to the last key there is.
    let open = records(server, "start=p");
    assert_eq!(open[..all.len()], all);
    // As the bytes on the wire: nothing but the framing around them.
    let mut client = server.connect();
    client.send(b"GET /v0/entities?start=pa&end=pb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut wire = Vec::new();
    loop {
        let bytes = client.recv_raw(4096);
        if bytes.is_empty() {
            break;
        }
        wire.extend(bytes);
    }
    let body = wire.split_off(memchr::memmem::find(&wire, b"\r\n\r\n").unwrap() + 4);
    let expected = "4\r\npa\n1\r\nD\r\npaa\nline\nline\r\n0\r\n\r\n";
    assert_eq!(String::from_utf8(body).unwrap().to_ascii_uppercase(), expected.to_ascii_uppercase());
    // HTTP/1.0 has no chunks, so it could not tell a part from the whole.
    let old = one(server.exchange(b"GET /v0/entities?start=p HTTP/1.0\r\n\r\n"));
    assert_eq!(old.status, 400, "{old:?}");
    // The connection goes on behind a range, also behind an empty one.
    let mut client = server.connect();
    for _ in 0..3 {
        client.send(b"GET /v0/entities?start=p&end=p HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().chunks.unwrap().len(), 0);
        client.send(b"GET /v0/entities?start=pa&end=pb HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().chunks.unwrap().len(), 2);
    }
}

/// `application/x-ndjson`: an object a line, base64 where it is not text, with version and expiry.
fn ndjson_ranges(server: &Server) {
    let rows: [(&[u8], &[u8], &str); 6] = [
        (b"json-a", b"", ""),
        (b"json-b", "text \"\\\n\u{1}ü".as_bytes(), ""),
        (b"json-c", b"\xff\0", ""),
        (b"json-d\0", b"nul in the key", ""),
        (b"json-e\xff", b"no text in the key", "&ttl=1h"),
        (b"json-f\xfe", b"\x80", ""),
    ];
    let mut expected = Vec::new();
    for (key, value, ttl) in rows {
        let put = server.put(&format!("id={}{ttl}", escape(key)), value);
        let mut object = serde_json::Map::new();
        for (name, bytes) in [("key", key), ("value", value)] {
            match std::str::from_utf8(bytes) {
                Ok(text) => object.insert(name.to_owned(), text.into()),
                Err(_) => object.insert(format!("{name}_base64"), BASE64.encode(bytes).into()),
            };
        }
        object.insert("version".to_owned(), put.header("etag").unwrap().trim_matches('"').into());
        if !ttl.is_empty() {
            object.insert("expires".to_owned(), (millis_of(&put) + 3_600_000).into());
        }
        expected.push(serde_json::Value::Object(object));
    }
    let accept = "Accept: application/x-ndjson\r\n";
    let answer = server.request_with("GET", "/v0/entities?start=json-&end=json0", accept);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<serde_json::Value> =
        answer.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines, expected);
    assert!(answer.text().ends_with('\n'));
    assert!(answer.chunks.unwrap().iter().all(|chunk| memchr::memchr_iter(b'\n', chunk).count() == 1));
    let limited = server.request_with("GET", "/v0/entities?start=json-&limit=2&scope=local", accept);
    assert_eq!(limited.text().lines().count(), 2);
    let empty = server.request_with("GET", "/v0/entities?start=json-&end=json-", accept);
    assert_eq!((empty.status, empty.body.len()), (200, 0));
}

/// Tombstones and what has expired are no records of a range, and do not count towards its limit.
fn what_ranges_leave_out(server: &Server) {
    for key in ["out-a", "out-b", "out-c", "out-d"] {
        assert_eq!(server.put(&format!("id={key}"), key.as_bytes()).status, 201);
    }
    assert_eq!(status_of(server, "DELETE", "id=out-a"), 202);
    assert_eq!(status_of(server, "DELETE", "id=out-never"), 202);
    assert_eq!(server.put("id=out-b&ttl=1ms", b"short").status, 201);
    assert_eq!(server.put("id=out-c&ttl=1h", b"long").status, 201);
    wait_until("a key has expired", || server.get("id=out-b").status == 404);
    for scope in ["cluster", "local"] {
        let query = format!("start=out-&end=out0&scope={scope}");
        assert_eq!(records(server, &query), [&b"out-c\nlong"[..], b"out-d\nout-d"]);
        assert_eq!(records(server, &format!("{query}&limit=1")), [b"out-c\nlong"]);
        let accept = "Accept: application/x-ndjson\r\n";
        let lines = server.request_with("GET", &format!("/v0/entities?{query}"), accept);
        assert_eq!(lines.text().lines().count(), 2);
    }
    // A deleted key that is written again is there again.
    assert_eq!(server.put("id=out-a", b"again").status, 201);
    assert_eq!(records(server, "start=out-&limit=1"), [b"out-a\nagain"]);
}

/// More records than one part of a range holds, of very different sizes: all of them, once, in order.
fn ranges_of_many_records(server: &Server) {
    let mut client = server.connect();
    let value = |index: u64| noise(usize::try_from(index * index * 37 % 5000).unwrap(), index);
    for index in 0..300 {
        let value = value(index);
        let head = format!(
            "PUT /v0/entity?id=many-{index:05} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            value.len()
        );
        client.send(&[head.as_bytes(), &value].concat());
        assert_eq!(client.recv().status, 201);
    }
    let all = records(server, "start=many-&end=many0");
    assert_eq!(all.len(), 300);
    for (index, record) in (0..).zip(&all) {
        assert_eq!(*record, [format!("many-{index:05}\n").as_bytes(), &value(index)].concat());
    }
    for limit in [1, 17, 255, 299] {
        assert_eq!(records(server, &format!("start=many-&end=many0&limit={limit}")), all[..limit]);
    }
    assert_eq!(records(server, "start=many-00100&end=many-00200"), all[100..200]);
}

/// A hundred requests of every kind in one write are answered in their order.
fn pipelining(server: &Server) {
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for round in 0..20 {
        let key = format!("pipe-{round}");
        let value = noise(round * 997, 5);
        bytes.extend(
            format!("PUT /v0/entity?id={key} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", value.len())
                .bytes(),
        );
        bytes.extend(&value);
        bytes.extend(format!("GET /v0/entity?id={key} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        bytes
            .extend(format!("GET /v0/entities?start={key}&end={key}%00 HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        bytes.extend(format!("DELETE /v0/entity?id={key} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        bytes.extend(format!("GET /v0/entity?id={key}&round={round} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        let record = [key.as_bytes(), b"\n", &value].concat();
        expected.extend([(201, vec![]), (200, value), (200, record), (202, vec![]), (400, vec![])]);
    }
    let mut client = server.connect();
    client.send(&bytes);
    for (index, (status, body)) in expected.iter().enumerate() {
        let answer = client.recv();
        assert_eq!(answer.status, *status, "answer {index}: {answer:?}");
        assert!(*status == 400 || answer.body == *body, "answer {index}: {answer:?}");
    }
    // The connection is still in step.
    client.send(b"GET /v0/entity?id=pipe-0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.recv_all().iter().map(|answer| answer.status).collect::<Vec<_>>(), [404]);
}

/// An answer is not held back because the next request has begun to arrive, or because an empty line follows.
fn half_a_request_behind_a_whole_one(server: &Server) {
    assert_eq!(server.put("id=half", b"value").status, 201);
    let get = "GET /v0/entity?id=half HTTP/1.1\r\nHost: a\r\n\r\n";
    for cut in [1, 10, get.len() - 1] {
        let mut client = server.connect();
        client.send(format!("{get}{}", &get[..cut]).as_bytes());
        assert_eq!(client.recv().body, b"value", "cut at {cut}");
        client.send(&get.as_bytes()[cut..]);
        assert_eq!(client.recv().body, b"value", "cut at {cut}");
    }
    let mut client = server.connect();
    client.send(b"PUT /v0/entity?id=half HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nnew\r\n");
    assert_eq!(client.recv().status, 201);
    client.send(get.as_bytes());
    assert_eq!(client.recv().body, b"new");
}

/// Chunked bodies in pieces of every kind are the values they frame.
fn chunked_uploads(server: &Server) {
    let value = noise(300_000, 11);
    for sizes in
        [&[300_000][..], &[1, 2, 3, 299_994], &[65_536, 65_536, 65_536, 65_536, 37_856], &[150_000, 150_000]]
    {
        let mut body = Vec::new();
        let mut at = 0;
        for size in sizes {
            body.extend(format!("{size:x};name=\"x\"\r\n").bytes());
            body.extend(&value[at..at + size]);
            body.extend(b"\r\n");
            at += size;
        }
        body.extend(b"0\r\nTrailer: is dropped\r\n\r\n");
        let head = b"PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(one(server.exchange(&[head, &body[..]].concat())).status, 201, "{sizes:?}");
        assert_eq!(server.get("id=chunked").body, value);
    }
    // Byte by byte: every place where the framing can be cut.
    let mut client = server.connect();
    let slow = b"PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        4;x=y\r\nwxyz\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n";
    for byte in slow {
        client.send(&[*byte]);
    }
    assert_eq!(client.recv().status, 201);
    assert_eq!(server.get("id=chunked").body, b"wxyz!");
}

/// Who asks first is told to go on, once, with either framing.
fn expectation(server: &Server) {
    let mut client = server.connect();
    for (framing, body) in [
        ("Content-Length: 5", "hello"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
        ("Content-Length: 0", ""),
    ] {
        let head = format!(
            "PUT /v0/entity?id=expect HTTP/1.1\r\nHost: a\r\n{framing}\r\nExpect: 100-continue\r\n\r\n"
        );
        client.send(head.as_bytes());
        let mut answer = client.recv();
        if !body.is_empty() {
            assert_eq!(answer.status, 100, "{framing}");
            client.send(body.as_bytes());
            answer = client.recv();
        }
        assert_eq!(answer.status, 201, "{framing}");
    }
    // A client need not wait for it.
    client.send(b"PUT /v0/entity?id=expect HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
    let mut answer = client.recv();
    if answer.status == 100 {
        answer = client.recv();
    }
    assert_eq!(answer.status, 201);
    assert_eq!(server.get("id=expect").body, b"abc");
}

/// HTTP/1.1 connections stay unless the client says otherwise, HTTP/1.0 connections end unless it does.
fn persistence_of_connections(server: &Server) {
    let mut client = server.connect();
    for _ in 0..50 {
        client.send(b"GET /v0/entity?id=absent HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.recv();
        assert_eq!((answer.status, answer.closes()), (404, false));
    }
    client.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(client.recv().closes());
    assert_eq!(client.recv_end(), Ended::Closed);
    let mut client = server.connect();
    for _ in 0..3 {
        client.send(b"GET /v0/status HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(client.recv().status, 200);
    }
    client.send(b"GET /v0/status HTTP/1.0\r\n\r\n");
    assert_eq!(client.recv().status, 200);
    assert_eq!(client.recv_end(), Ended::Closed);
}

/// Writers on many connections: every write is acknowledged with a version of its own, and the highest one is what
/// every reader sees in the end.
fn concurrent_writers(server: &Server) {
    let written: Vec<((u64, u64), Vec<u8>)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                scope.spawn(move || {
                    let mut client = server.connect();
                    let write = |round| {
                        let value = format!("{writer}:{round:02}").into_bytes();
                        client
                            .send(b"PUT /v0/entity?id=race HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n");
                        client.send(&value);
                        (version_of(&client.recv()), value)
                    };
                    (0..25).map(write).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let versions: BTreeMap<_, _> = written.iter().cloned().collect();
    assert_eq!(versions.len(), 200, "every write has a version of its own");
    let (newest, value) = versions.last_key_value().unwrap();
    let get = server.get("id=race");
    assert_eq!((version_of(&get), &get.body), (*newest, value));
}

/// A node that is told to stop and started again has every record, and goes on with higher versions.
fn restart_keeps_everything(server: &mut Server) {
    let dump = |server: &Server| {
        let answer = server.request_with("GET", "/v0/entities?start=%00", "Accept: application/x-ndjson\r\n");
        assert!(answer.is_whole);
        answer.body
    };
    // A key that expires meanwhile would be a difference that is none.
    let before = dump(server);
    let newest = version_of(&server.put("id=restart", b"x"));
    assert_eq!(status_of(server, "DELETE", "id=restart"), 202);
    server.restart();
    assert_eq!(dump(server), before);
    assert!(version_of(&server.put("id=restart", b"y")) > newest);
}

// ---- Status and metrics ----------------------------------------------------------------------------------------

#[test]
fn status_in_text_and_json() {
    let server = Server::start(&["--durability", "interval:50", "--advertise", "http://node.example:8080"]);
    let text = server.request("GET", "/v0/status");
    assert_eq!((text.status, text.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let rows: BTreeMap<&str, &str> = text.text().lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(rows["state"], "ready");
    assert_eq!(rows["durability"], "interval:50");
    assert_eq!(rows["url"], "http://node.example:8080");
    assert_eq!(rows["cluster"], "http://node.example:8080");
    assert_eq!(rows["store"], "ok");
    let json = server.request_with("GET", "/v0/status", "Accept: application/json\r\n");
    assert_eq!((json.status, json.header("content-type")), (200, Some("application/json")));
    let fields: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!(fields["state"], "ready");
    assert_eq!(fields["durability"], "interval:50");
    assert_eq!(fields["cluster"], serde_json::json!(["http://node.example:8080"]));
    assert_eq!(fields["store"]["state"], "ok");
    assert_eq!(fields["node"], rows["node"]);
    // Versions name the node and its store together: a store that takes the place of a lost one repeats none.
    let store = fields["store"]["id"].as_str().unwrap();
    let word = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let writer = word(rows["node"]) ^ word(&store[..16]) ^ word(&store[16..]);
    assert_eq!(version_of(&server.put("id=x", b"")).1, writer);
    let head = server.request("HEAD", "/v0/status");
    assert_eq!((head.status, head.header("content-length")), (200, text.header("content-length")));
}

/// Every line of `/metrics` is one of `OpenMetrics`, and the counters count.
#[test]
fn metrics_can_be_parsed_and_count() {
    let server = Server::start(&[]);
    for index in 0..3 {
        assert_eq!(server.put(&format!("id=metrics-{index}"), b"12345").status, 201);
    }
    assert_eq!(server.get("id=metrics-0").status, 200);
    assert_eq!(server.get("id=absent").status, 404);
    assert_eq!(status_of(&server, "HEAD", "id=metrics-1"), 200);
    assert_eq!(status_of(&server, "DELETE", "id=metrics-2"), 202);
    assert_eq!(server.request("GET", "/v0/entity").status, 400);
    assert_eq!(records(&server, "start=metrics-").len(), 2);
    let answer = server.request("GET", "/metrics");
    assert!(
        answer.header("content-type").unwrap().starts_with("application/openmetrics-text; version=1.0.0")
    );
    let mut lines: Vec<&str> = answer.text().split('\n').collect();
    assert_eq!(lines.pop(), Some(""));
    assert_eq!(lines.pop(), Some("# EOF"));
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut readings = BTreeSet::new();
    for line in lines {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind) && name.starts_with("kvorum_"), "{line}");
            if kind == "TYPE" {
                assert!(["counter", "gauge", "histogram"].contains(&rest), "{line}");
                assert_eq!(families.insert(name, rest), None, "a family twice: {line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(value >= 0.0 && readings.insert(series), "{line}");
        let name = series.split('{').next().unwrap();
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{line}"
        );
        if let Some(labels) = series.strip_prefix(name).filter(|labels| !["", "{}"].contains(labels)) {
            let inner = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix("\"}")).unwrap();
            assert!(inner.split("\",").all(|label| label.contains("=\"")), "{line}");
        }
        let family = ["_total", "_bucket", "_sum", "_count", ""]
            .iter()
            .find_map(|suffix| families.get(name.strip_suffix(suffix)?).map(|kind| (*suffix, *kind)));
        match family {
            Some(("_total", "counter") | ("", "gauge") | ("_bucket" | "_sum" | "_count", "histogram")) => {}
            other => panic!("{line} belongs to {other:?}"),
        }
    }
    let readings = metrics(&server);
    let count =
        |name: &str| readings.get(name).copied().unwrap_or_else(|| panic!("no {name} in {readings:#?}"));
    for (operation, status, expect) in [
        ("put", 201, 3.0),
        ("get", 200, 1.0),
        ("get", 404, 1.0),
        ("get", 400, 1.0),
        ("head", 200, 1.0),
        ("delete", 202, 1.0),
        ("range", 200, 1.0),
    ] {
        let name = format!("kvorum_requests_total{{operation=\"{operation}\",status=\"{status}\"}}");
        assert!((count(&name) - expect).abs() < 0.5, "{name} is {}", count(&name));
    }
    assert!((count("kvorum_request_duration_seconds_count{operation=\"put\"}") - 3.0).abs() < 0.5);
    assert!((count("kvorum_range_records_total") - 2.0).abs() < 0.5);
    assert!((count("kvorum_commit_records_total") - 4.0).abs() < 0.5);
    assert!((count("kvorum_store_state{state=\"ok\"}") - 1.0).abs() < 0.5);
    assert!((count("kvorum_durability{mode=\"always\"}") - 1.0).abs() < 0.5);
    assert!((count("kvorum_connections_open") - 1.0).abs() < 0.5);
    assert!(count("kvorum_received_bytes_total") > 500.0 && count("kvorum_sent_bytes_total") > 500.0);
}

// ---- Bounds ----------------------------------------------------------------------------------------------------

/// The largest value by default is 8 MiB, to the byte.
#[test]
fn default_limit_is_eight_mebibytes() {
    let server = Server::start(&[]);
    let value = noise(8 * MIB, 1);
    assert_eq!(server.put("id=large", &value).status, 201);
    assert!(server.get("id=large").body == value);
    let over = [&value[..], b"!"].concat();
    let answer = server.put("id=large", &over);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(server.get("id=large").body == value);
}

/// Fills a server with records of 64 KiB, `mib` MiB in all, and returns them as a range shows them.
fn fill(server: &Server, mib: usize) -> Vec<u8> {
    let mut client = server.connect();
    let mut all = Vec::with_capacity(mib * MIB);
    for index in 0..mib as u64 * 16 {
        let value = noise(65_536, index);
        client.send(
            format!("PUT /v0/entity?id=fill-{index:06} HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n")
                .as_bytes(),
        );
        client.send(&value);
        assert_eq!(client.recv().status, 201);
        all.extend(format!("fill-{index:06}\n").bytes());
        all.extend(value);
    }
    all
}

const RANGE: &[u8] =
    b"GET /v0/entities?start=fill-&end=fill0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// A range needs little memory however large it is and however slowly its readers take it.
///
/// Method: 50 MB, more than any bound here would hide; three readers who do not read at all for a while, then one of
/// them who reads on slowly. A server that read ahead would have grown by 150 MB.
#[test]
fn slow_readers_of_a_large_range_cost_little_memory() {
    let server = Server::start(&["--durability", "os", "--memory-budget", "16MiB"]);
    let all = fill(&server, 50);
    // Once at full speed: what a range needs anyway is in use from here on.
    assert!(one(server.exchange(RANGE)).body == all);
    let before = server.memory_bytes("VmRSS");
    let mut readers: Vec<Client> = (0..3)
        .map(|_| {
            let mut client = server.connect();
            client.send(RANGE);
            client
        })
        .collect();
    let mut most = 0;
    for _ in 0..15 {
        sleep(Duration::from_millis(100));
        most = most.max(server.memory_bytes("VmRSS"));
    }
    let mut wire = Vec::with_capacity(all.len() + MIB);
    loop {
        let bytes = readers[0].recv_raw(256 << 10);
        if bytes.is_empty() {
            break;
        }
        if wire.len() / (4 * MIB) != (wire.len() + bytes.len()) / (4 * MIB) {
            sleep(Duration::from_millis(50));
            most = most.max(server.memory_bytes("VmRSS"));
        }
        wire.extend(bytes);
    }
    let grown = most.saturating_sub(before);
    assert!(grown < 32 << 20, "grown by {grown} bytes from {before}");
    assert!(wire.len() > all.len() && wire.ends_with(b"\r\n0\r\n\r\n"), "the range came whole");
}

/// A client that goes away in the middle of a range costs nothing behind it.
#[test]
fn readers_who_leave_a_range_are_forgotten() {
    let server = Server::start(&["--durability", "os", "--threads", "2"]);
    let all = fill(&server, 16);
    for _ in 0..20 {
        let mut client = server.connect();
        client.send(RANGE);
        assert!(!client.recv_raw(1000).is_empty());
    }
    wait_until("all connections have ended", || metrics(&server)["kvorum_connections_open"] < 1.5);
    assert!(one(server.exchange(RANGE)).body == all);
}

/// How long until the server ends the connection. `patience` is what it may take at most, many times the bound.
fn time_until_closed(client: &mut Client) -> Duration {
    let begun = Instant::now();
    client.recv_end();
    begun.elapsed()
}

/// The bounds are kept to half a second; a test looks at them through a clock of its own.
const SOON: Duration = Duration::from_millis(900);

/// Half a head is waited for as long as the bound says and no longer, also if it goes on coming byte by byte.
#[test]
fn slow_heads_are_cut() {
    let server = Server::start(&["--head-timeout", "1s"]);
    let half = "GET /v0/status HTTP/1.1\r\nHost: a\r\nX: ";
    let mut silent = server.connect();
    let took = time_until_closed(&mut silent);
    assert!(took > SOON, "cut after {took:?}");
    let mut client = server.connect();
    client.send(half.as_bytes());
    let took = time_until_closed(&mut client);
    assert!(took > SOON, "cut after {took:?}");
    // Behind a whole request, too.
    let mut client = server.connect();
    client.send(format!("GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n{half}").as_bytes());
    assert_eq!(client.recv().status, 200);
    time_until_closed(&mut client);
    // Drop by drop: this head would take a minute.
    let mut client = server.connect();
    client.send(half.as_bytes());
    let dripped = (0..600).take_while(|_| {
        sleep(Duration::from_millis(100));
        client.try_send(b"x").is_ok()
    });
    let dripped = dripped.count();
    assert!((5..200).contains(&dripped), "cut after {dripped} drops");
    assert!(metrics(&server)["kvorum_connections_timed_out_total"] > 3.5);
}

/// A body is waited for from arrival to arrival: one that stops is cut, one that takes long is not, unless it comes in
/// a trickle that would hold its room for hours.
#[test]
fn stalled_bodies_are_cut() {
    let server = Server::start(&["--body-timeout", "1s"]);
    for framing in ["Content-Length: 10\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\na\r\nhalf"] {
        let mut client = server.connect();
        client.send(format!("PUT /v0/entity?id=stalled HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes());
        let begun = Instant::now();
        let answer = client.try_recv().unwrap();
        assert!(begun.elapsed() > SOON, "cut after {:?}", begun.elapsed());
        assert!(answer.is_none_or(|answer| answer.status >= 400), "half a body is no value");
    }
    assert_eq!(server.get("id=stalled").status, 404);
    let mut client = server.connect();
    client.send(b"PUT /v0/entity?id=slow HTTP/1.1\r\nHost: a\r\nContent-Length: 262144\r\n\r\n");
    let value = noise(262_144, 6);
    for piece in value.chunks(32_768) {
        sleep(Duration::from_millis(400));
        client.send(piece);
    }
    assert_eq!(client.recv().status, 201);
    assert!(server.get("id=slow").body == value);
    let mut trickle = server.connect();
    trickle.send(b"PUT /v0/entity?id=trickle HTTP/1.1\r\nHost: a\r\nContent-Length: 262144\r\n\r\n");
    let trickled = (0..600).take_while(|_| {
        sleep(Duration::from_millis(100));
        trickle.try_send(b"x").is_ok()
    });
    assert!(trickled.count() < 300, "a trickle of ten bytes a second goes on");
}

/// A connection without requests ends after the idle time, which begins anew with every answer.
#[test]
fn idle_connections_are_ended() {
    let server = Server::start(&["--idle-timeout", "1s"]);
    let mut client = server.connect();
    for _ in 0..4 {
        client.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().status, 200);
        sleep(Duration::from_millis(500));
    }
    client.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.recv().status, 200);
    let took = time_until_closed(&mut client);
    assert!(took > SOON, "cut after {took:?}");
}

/// A client that does not take its answer is cut, also if it goes on asking; whoever takes it slowly is not.
#[test]
fn clients_who_do_not_read_are_cut() {
    let server = Server::start(&["--write-timeout", "1s"]);
    let value = noise(8 * MIB, 2);
    assert_eq!(server.put("id=large", &value).status, 201);
    let get = b"GET /v0/entity?id=large HTTP/1.1\r\nHost: a\r\n\r\n";
    let cut = |server: &Server| metrics(server)["kvorum_connections_timed_out_total"];
    // More than the kernel's buffers hold.
    let mut client = server.connect();
    client.send(&get.repeat(8));
    wait_until("the silent client is cut", || cut(&server) > 0.5);
    let mut eager = server.connect();
    eager.send(&get.repeat(8));
    wait_until("the asking client is cut", || {
        sleep(Duration::from_millis(100));
        eager.send(get);
        cut(&server) > 1.5
    });
    let mut answers = Vec::new();
    while let Ok(Some(answer)) = client.try_recv() {
        answers.push(answer.is_whole);
    }
    assert!(answers.len() < 8 || answers.contains(&false), "{answers:?}");
    // Ten megabytes a second, in pieces of a megabyte: slow, but never silent for long.
    let mut slow = server.connect();
    slow.send(
        &[&get.repeat(3)[..], b"GET /v0/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"].concat(),
    );
    let mut got = 0;
    loop {
        let bytes = slow.recv_raw(64 << 10).len();
        if bytes == 0 {
            break;
        }
        if got / MIB != (got + bytes) / MIB {
            sleep(Duration::from_millis(100));
        }
        got += bytes;
    }
    assert!(got > 3 * 8 * MIB + 100, "cut behind {got} bytes");
}

/// Beyond the cap a connection is told 503, in words, and closed; places that become free are given away.
#[test]
fn connections_over_the_cap_are_refused() {
    let server = Server::start(&["--max-connections", "4"]);
    let ask = |client: &mut Client| {
        client.send(b"GET /v0/entity?id=absent HTTP/1.1\r\nHost: a\r\n\r\n");
        client.recv().status
    };
    let mut held: Vec<Client> = Vec::new();
    wait_until("four connections are held", || {
        let mut client = server.connect();
        if ask(&mut client) == 404 {
            held.push(client);
        }
        held.len() == 4
    });
    for _ in 0..3 {
        let mut fifth = server.connect();
        let answer = fifth.recv();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert!(answer.closes() && answer.text().lines().count() == 1);
        fifth.recv_end();
    }
    assert!(held.iter_mut().all(|client| ask(client) == 404));
    held.pop();
    wait_until("the free place is given away", || ask(&mut server.connect()) == 404);
}

/// Bodies beyond what may be in memory are refused with 503 before they are read; then there is room again.
#[test]
fn bodies_over_the_memory_are_refused() {
    let server = Server::start(&["--max-value-size", "1MiB", "--max-body-memory", "1MiB"]);
    let value = noise(MIB, 4);
    let mut first = server.connect();
    first.send(b"PUT /v0/entity?id=first HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(first.recv().status, 100);
    for framing in ["Content-Length: 1\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"] {
        let mut second = server.connect();
        second.send(format!("PUT /v0/entity?id=second HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes());
        let answer = second.recv();
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
        assert!(answer.text().contains("nothing was done"), "{answer:?}");
    }
    assert_eq!(server.get("id=second").status, 404);
    first.send(&value);
    assert_eq!(first.recv().status, 201);
    assert!(server.get("id=first").body == value);
    assert_eq!(server.put("id=second", b"x").status, 201);
    // An upload that is broken off gives its room back.
    let mut third = server.connect();
    third.send(b"PUT /v0/entity?id=third HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\nx");
    wait_until("the third has its room", || metrics(&server)["kvorum_body_bytes_in_flight"] > 1_000_000.0);
    drop(third);
    wait_until("the room is given back", || metrics(&server)["kvorum_body_bytes_in_flight"] < 0.5);
    assert!(server.put("id=third", &value).status == 201);
}

/// A configuration under which a value can be received at all lets it be received in chunks, too.
#[test]
fn chunked_upload_fits_where_one_value_fits() {
    let server = Server::start(&["--max-value-size", "100000", "--max-body-memory", "100000"]);
    for bytes in [1, 70_000, 100_000] {
        let value = noise(bytes, 9);
        assert_eq!(server.put("id=sized", &value).status, 201);
        let head = b"PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        let size = format!("{bytes:x}\r\n");
        let answer = one(server.exchange(&[head, size.as_bytes(), &value, b"\r\n0\r\n\r\n"].concat()));
        assert_eq!(answer.status, 201, "{bytes} bytes: {answer:?}");
        assert!(server.get("id=chunked").body == value);
    }
}

// ---- The end of a node -----------------------------------------------------------------------------------------

/// A node that is told to stop answers what it has begun: an upload is completed, a range is whole; idle connections
/// are closed, new ones refused, and the exit code is 0.
#[test]
fn requests_under_way_are_answered_when_told_to_stop() {
    let mut server = Server::start(&["--drain-timeout", "20s", "--threads", "2", "--durability", "os"]);
    let all = fill(&server, 24);
    let mut idle = server.connect();
    idle.send(b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.recv().status, 200);
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    upload.send(b"01234");
    let mut reader = server.connect();
    reader.send(RANGE);
    let first = reader.recv_raw(1000);
    server.signal(libc::SIGTERM);
    assert_eq!(idle.recv_end(), Ended::Closed);
    wait_until("new connections are refused", || server.try_status().is_none());
    assert_eq!(server.try_wait(), None, "the node waits for the upload");
    upload.send(b"56789");
    let answer = upload.recv();
    assert_eq!(answer.status, 201);
    assert!(answer.closes(), "the client is told that the connection ends: {answer:?}");
    // A reader who has stopped for a while has the time that any reader has.
    sleep(Duration::from_millis(2500));
    let mut wire = first;
    loop {
        let bytes = reader.recv_raw(MIB);
        if bytes.is_empty() {
            break;
        }
        wire.extend(bytes);
    }
    assert!(wire.len() > all.len() && wire.ends_with(b"\r\n0\r\n\r\n"), "the range is not whole");
    let status = server.wait();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    server.restart();
    assert_eq!(server.get("id=upload").body, b"0123456789");
    assert!(one(server.exchange(RANGE)).body == all);
}

/// What does not end within the drain time-out is cut; that is an orderly end all the same.
#[test]
fn draining_has_a_bound() {
    let mut server = Server::start(&["--drain-timeout", "1s"]);
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    let begun = Instant::now();
    let status = server.terminate();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(begun.elapsed() > SOON, "ended after {:?}", begun.elapsed());
    assert!(server.log().contains("drain time-out"), "{}", server.log());
    assert!(upload.try_recv().unwrap().is_none());
    server.restart();
    assert_eq!(server.get("id=upload").status, 404);
}

/// An idle node ends at once on either signal; a second signal ends one that waits.
#[test]
fn signals_end_a_node() {
    let mut server = Server::start(&["--drain-timeout", "60s"]);
    let begun = Instant::now();
    server.signal(libc::SIGINT);
    assert_eq!(server.wait().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "an idle node waited {:?}", begun.elapsed());
    server.restart();
    let mut upload = server.connect();
    upload.send(
        b"PUT /v0/entity?id=upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(upload.recv().status, 100);
    server.signal(libc::SIGTERM);
    wait_until("it drains", || server.log().contains("draining") && server.try_status().is_none());
    server.signal(libc::SIGTERM);
    let status = server.wait();
    assert!(!status.success() && status.signal().is_none(), "{status}");
}

/// One directory, one node: the second is refused, in words, and does no harm.
#[test]
fn second_node_on_a_directory_is_refused() {
    let server = Server::start(&[]);
    assert_eq!(server.put("id=mine", b"x").status, 201);
    let mut second = kvorum(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    let output = run(second.arg(server.data_dir()), b"");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(server.data_dir().to_str().unwrap()), "{said}");
    assert_eq!(server.get("id=mine").body, b"x");
}

/// A port that is taken is an error, in words; whoever has it goes on.
#[test]
fn port_in_use_is_refused() {
    let server = Server::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let address = server.address().to_string();
    let mut second = kvorum(&["serve", "--listen", &address, "--data-dir"]);
    let output = run(second.arg(directory.path().join("data")), b"");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&address) && said.to_lowercase().contains("listen"), "{said}");
    assert_eq!(server.try_status(), Some(200));
}

// ---- The command line ------------------------------------------------------------------------------------------

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Flags win over the environment over the file over defaults, and the page says which it was.
#[test]
fn printed_configuration_names_origins() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k.toml");
    std::fs::write(&file, "threads = 3\nworkers = 5\nmax_value_size = \"2MiB\"\n").unwrap();
    let mut command = kvorum(&["serve", "--print-config", "--threads", "1", "--config"]);
    command.arg(&file).env("KVORUM_THREADS", "2").env("KVORUM_WORKERS", "7").env("KVORUM_LOG", "debug");
    let output = run(&mut command, b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = text(&output.stdout).to_owned();
    let row = |name: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("threads"), "threads = \"1\" # flag --threads");
    assert_eq!(row("workers"), "workers = \"7\" # environment KVORUM_WORKERS");
    assert_eq!(row("max-value-size"), format!("max-value-size = \"2MiB\" # file {}", file.display()));
    assert_eq!(row("durability"), "durability = \"always\" # default");
    // The page is itself a configuration.
    let again = directory.path().join("again.toml");
    std::fs::write(&again, &page).unwrap();
    let mut command = kvorum(&["serve", "--print-config"]);
    let output = run(command.env("KVORUM_CONFIG", &again), b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("workers = \"7\""));
}

/// What is wrong with a configuration is told by name, with exit code 2.
#[test]
fn wrong_configurations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k.toml");
    let with_file = |content: &str| {
        std::fs::write(&file, content).unwrap();
        run(kvorum(&["serve", "--config"]).arg(&file), b"")
    };
    let check = |output: Output, names: &[&str]| {
        assert_eq!(output.status.code(), Some(2), "{names:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(names.iter().all(|name| said.contains(name)), "{names:?} are not in {said}");
        assert!(output.stdout.is_empty());
    };
    check(with_file("lissen = \"127.0.0.1:0\"\n"), &["lissen", "k.toml", "listen"]);
    check(with_file("threads = \n"), &["k.toml"]);
    check(with_file("threads = \"many\"\n"), &["threads", "many", "k.toml"]);
    check(
        run(kvorum(&["serve"]).env("KVORUM_DURABILITY", "sometimes"), b""),
        &["durability", "KVORUM_DURABILITY", "always"],
    );
    check(run(&mut kvorum(&["serve", "--listen", "here"]), b""), &["listen", "here"]);
    check(run(&mut kvorum(&["serve", "--no-such-setting", "1"]), b""), &["--no-such-setting"]);
    check(run(&mut kvorum(&["serve", "--config", "/no/such/file"]), b""), &["/no/such/file"]);
    check(
        run(&mut kvorum(&["serve", "--max-value-size", "2MiB", "--max-body-memory", "1MiB"]), b""),
        &["max-body-memory"],
    );
    check(run(&mut kvorum(&["serve", "--cluster", "http://a:1,http://b:2"]), b""), &["cluster"]);
    check(run(&mut kvorum(&["no-such-command"]), b""), &["no-such-command"]);
}

/// `get`, `put`, `delete`, `scan`, `status`: values pass untouched, and exit codes say what came of it.
#[test]
fn client_commands_pass_bytes_and_exit_codes() {
    let server = Server::start(&[]);
    let url = server.url();
    let client = |arguments: &[&str], input: &[u8]| run(kvorum(arguments).args(["--url", &url]), input);
    let code = |output: &Output| output.status.code().unwrap();
    // Bytes of all kinds through standard input and output.
    for value in [noise(300_000, 8), Vec::new(), b"\0".to_vec(), b"line\r\n\n".to_vec(), (0..=255).collect()]
    {
        let put = client(&["put", "key"], &value);
        assert_eq!((code(&put), put.stdout.len()), (0, 0), "{put:?}");
        let get = client(&["get", "key"], b"");
        assert_eq!(code(&get), 0);
        assert!(get.stdout == value && get.stderr.is_empty(), "{} bytes", value.len());
        assert!(server.get("id=key").body == value);
    }
    // Through arguments and files.
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    std::fs::write(&source, noise(1000, 1)).unwrap();
    assert_eq!(code(&client(&["put", "file", "--file", source.to_str().unwrap()], b"")), 0);
    assert_eq!(code(&client(&["get", "file", "--output", target.to_str().unwrap()], b"")), 0);
    assert_eq!(std::fs::read(&target).unwrap(), noise(1000, 1));
    assert_eq!(
        code(&client(&["put", "argument", "a value", "--ttl", "1h", "--replicas", "1/1"], b"not read")),
        0
    );
    let shown = client(&["get", "argument", "--show"], b"");
    assert_eq!(shown.stdout, b"a value");
    let version = server.get("id=argument").header("etag").unwrap().trim_matches('"').to_owned();
    assert!(text(&shown.stderr).contains(&version) && text(&shown.stderr).contains("expires"), "{shown:?}");
    // Keys of any bytes that an argument can have.
    let mut put = kvorum(&["put", "--url", &url]);
    assert_eq!(code(&run(put.arg(OsStr::from_bytes(b"odd\xff+ &=%#\n")), b"odd")), 0);
    assert_eq!(server.get(&format!("id={}", escape(b"odd\xff+ &=%#\n"))).body, b"odd");
    // Ranges.
    for (key, value) in [("scan-a", "1"), ("scan-b", "2"), ("scan-c", "3")] {
        assert_eq!(server.put(&format!("id={key}"), value.as_bytes()).status, 201);
    }
    let scan = client(&["scan", "scan-a", "scan-c"], b"");
    assert_eq!((code(&scan), text(&scan.stdout)), (0, "scan-a\t1\nscan-b\t2\n"));
    assert_eq!(client(&["scan", "scan-", "--limit", "1", "--keys", "--local"], b"").stdout, b"scan-a\n");
    let json = client(&["scan", "odd", "--limit", "1", "--json"], b"");
    let line: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(line["key_base64"], BASE64.encode(b"odd\xff+ &=%#\n"));
    assert_eq!(line["value"], "odd");
    let none = client(&["scan", "zz"], b"");
    assert_eq!((code(&none), none.stdout.len()), (1, 0));
    // Absent, deleted, wrong, unreachable.
    let absent = client(&["get", "absent"], b"");
    assert_eq!((code(&absent), absent.stdout.len()), (1, 0));
    assert!(!absent.stderr.is_empty());
    assert_eq!(code(&client(&["delete", "key"], b"")), 0);
    assert_eq!(code(&client(&["delete", "never"], b"")), 0);
    assert_eq!(code(&client(&["get", "key"], b"")), 1);
    for wrong in [
        &["get", "key", "--replicas", "2/3"][..],
        &["get", "key", "--replicas", "x"],
        &["get", ""],
        &["get"],
        &["put", "key", "x", "--ttl", "soon"],
        &["put", "key", "x", "--ttl", "0s"],
        &["put", "key", "x", "--file", "/no/such/file"],
        &["put", "key", "--file", "/no/such/file"],
        &["scan"],
        &["scan", "a", "--limit", "0"],
        &["put", &"k".repeat(1025), "x"],
    ] {
        let output = client(wrong, b"");
        assert_eq!(code(&output), 2, "{wrong:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    let status = client(&["status"], b"");
    assert!(code(&status) == 0 && text(&status.stdout).contains("ready"), "{status:?}");
    let status = client(&["status", "--json"], b"");
    let fields: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((code(&status), fields["state"].as_str()), (0, Some("ready")));
    assert_eq!(code(&run(kvorum(&["get", "argument"]).env("KVORUM_URL", &url), b"")), 0);
    // A port on which nobody listens: bound once, and given up again.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}");
    for command in
        [&["get", "key"][..], &["put", "key", "x"], &["delete", "key"], &["scan", "a"], &["status"]]
    {
        let output = run(kvorum(command).args(["--url", &closed, "--timeout", "1"]), b"");
        assert_eq!(code(&output), 3, "{command:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// A value over the limit of the node is a wrong request, and told as such.
#[test]
fn client_tells_what_the_node_refuses() {
    let server = Server::start(&["--max-value-size", "1KiB"]);
    let url = server.url();
    let output = run(&mut kvorum(&["put", "key", "--url", &url]), &[0; 2000]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("1024"), "{output:?}");
}
