//! Goal: the node keeps every sentence of the HTTP contract (`docs`: the HTTP API), over real sockets.
//! Method: the real program on a port of its own for each test, and a client that shows every byte. Tests of
//! requests and answers run under both executions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvorum_testkit::http::{Answer, Ended, one};
use kvorum_testkit::node::Node;
use kvorum_testkit::{MIB, escape, noise, unix_millis, wait_until};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The version in an `ETag`: timestamp and node.
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

fn status_of(server: &Node, method: &str, query: &str) -> u16 {
    server.request(method, &format!("/v0/entity?{query}")).status
}

// ---- What every execution must do ------------------------------------------------------------------------------

type Check = fn(&Node);

const CORE: &[(&str, Check)] = &[
    ("round trips", round_trips),
    ("versions", versions),
    ("headers of a value", headers_of_a_value),
    ("conditions of reads", conditions_of_reads),
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
    let mut server =
        Node::start_new(&["--execution", execution, "--max-value-size", "1MiB", "--threads", "2"]);
    let mut failed = Vec::new();
    for (name, check) in CORE {
        // Each has keys of its own, so that failures can be attributed.
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

/// Binary keys and values of every critical size come back unchanged by GET; HEAD says the same without a
/// body; DELETE removes them.
fn round_trips(server: &Node) {
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
    // Escaping is only a spelling: the same key in another spelling is the same key.
    assert_eq!(server.put("id=a/b", b"x").status, 201);
    assert_eq!(server.get("id=a%2Fb").body, b"x");
    assert_eq!(server.get("id=%61%2f%62").body, b"x");
    // A plus sign is not a space.
    assert_eq!(server.put("id=a+b", b"plus").status, 201);
    assert_eq!(server.get("id=a%2bb").body, b"plus");
    assert_eq!(status_of(server, "GET", "id=a%20b"), 404);
}

/// Every write gets a version above all versions before it, also of other keys and of deletions; a read shows
/// it.
fn versions(server: &Node) {
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
    // Also for a key that never existed, a new version each time.
    let delete = || server.request("DELETE", "/v0/entity?id=version-never");
    let (first, second) = (delete(), delete());
    assert_eq!((first.status, second.status), (202, 202));
    assert!(version_of(&second) > version_of(&first));
}

/// HEAD reports the length of a value, also of an empty one.
fn length_of_a_value_by_head(server: &Node) {
    for value in [&b"12345"[..], b"1", b""] {
        assert_eq!(server.put("id=length", value).status, 201);
        let head = server.request("HEAD", "/v0/entity?id=length");
        assert_eq!(head.header("content-length"), Some(value.len().to_string().as_str()), "{head:?}");
    }
}

fn headers_of_a_value(server: &Node) {
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

/// A client that has the value already gets 304 without it, and one that wants another version gets 412 with the
/// current one. Where there is no value, conditions are not judged (RFC 9110, section 13.2.1).
fn conditions_of_reads(server: &Node) {
    let put = server.put("id=conditions", b"value");
    let etag = put.header("etag").unwrap().to_owned();
    let ask = |method: &str, id: &str, headers: String| {
        server.request_with(method, &format!("/v0/entity?id={id}"), &headers)
    };
    let current = [
        format!("If-None-Match: {etag}\r\n"),
        format!("If-None-Match: W/{etag}\r\n"),
        format!("If-None-Match: \"a\", {etag}\r\n"),
        format!("If-None-Match: \"a\"\r\nIf-None-Match: {etag}\r\n"),
        "If-None-Match: *\r\n".to_owned(),
        format!("If-Match: {etag}\r\nIf-None-Match: {etag}\r\n"),
    ];
    for method in ["GET", "HEAD"] {
        for headers in &current {
            let answer = ask(method, "conditions", headers.clone());
            assert_eq!((answer.status, answer.body.len()), (304, 0), "{headers}: {answer:?}");
            assert_eq!(answer.header("etag"), Some(etag.as_str()));
            assert_eq!(answer.header("kvorum-replicas"), Some("1/1"));
            assert!(answer.header("last-modified").is_some() && answer.header("cache-control").is_some());
            assert_eq!(ask(method, "no-value", headers.clone()).status, 404, "{headers}");
        }
        for headers in [format!("If-Match: W/{etag}\r\n"), "If-Match: \"a\"\r\n".to_owned()] {
            let answer = ask(method, "conditions", headers.clone());
            assert_eq!((answer.status, answer.header("etag")), (412, Some(etag.as_str())), "{headers}");
            assert_eq!(ask(method, "no-value", headers.clone()).status, 404, "{headers}");
        }
        let matching = ask(method, "conditions", format!("If-Match: \"a\", {etag}\r\n"));
        assert_eq!((matching.status, matching.header("content-length")), (200, Some("5")));
    }
    let text = ask("GET", "conditions", "If-Match: \"a\"\r\n".to_owned());
    assert!(text.text().contains(&etag) && text.text().lines().count() == 1, "{text:?}");
    // After another write the old tag no longer names the value.
    server.put("id=conditions", b"later");
    let later = ask("GET", "conditions", format!("If-None-Match: {etag}\r\n"));
    assert_eq!((later.status, &later.body[..]), (200, &b"later"[..]));
    assert_eq!(ask("GET", "conditions", format!("If-Match: {etag}\r\n")).status, 412);
}

/// A missing value is reported in a line of text, or in JSON; to HEAD without either.
fn failures_of_a_value(server: &Node) {
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
    // One byte over the limit, with both kinds of framing; the earlier value stays.
    assert_eq!(server.put("id=limit", b"before").status, 201);
    let over = noise(MIB + 1, 1);
    let answer = server.put("id=limit", &over);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.text().contains("1048576"), "the limit is told: {answer:?}");
    let chunked = [
        &b"PUT /v0/entity?id=limit HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n"[..],
        &over,
        b"\r\n0\r\n\r\n",
    ];
    assert_eq!(one(server.exchange(&chunked.concat())).status, 413);
    assert_eq!(server.get("id=limit").body, b"before");
}

/// Every form of a TTL gives its instant: the node's clock at the time of the write, plus the TTL.
fn lifetimes(server: &Node) {
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
        let begun = unix_millis();
        let put = server.put(&format!("id=ttl&ttl={ttl}"), b"x");
        let ended = unix_millis();
        assert_eq!(put.status, 201, "{ttl}: {put:?}");
        for method in ["GET", "HEAD"] {
            let answer = server.request(method, "/v0/entity?id=ttl");
            let expires: u64 = answer.header("kvorum-expires").unwrap().parse().unwrap();
            assert!((begun + millis..=ended + millis).contains(&expires), "{ttl}: {expires}");
        }
    }
    // The next write sets a new lifetime.
    assert_eq!(server.put("id=ttl", b"for good").status, 201);
    assert_eq!(server.get("id=ttl").header("kvorum-expires"), None);
    assert_eq!(server.put("id=ttl&ttl=36500d", b"nearly for good").status, 201);
    assert_eq!(server.get("id=ttl").status, 200);
    // 100 years are the most, in every unit; the answer says so, and nothing is stored.
    for ttl in ["36501d", "876001h", "3153600001", "3153600000001ms", "18446744073709551615ms"] {
        let refused = server.put(&format!("id=ttl&ttl={ttl}"), b"longer");
        assert_eq!(refused.status, 400, "{ttl}: {refused:?}");
        assert!(refused.text().contains("at most 36500d (100 years)"), "{refused:?}");
    }
    assert_eq!(server.get("id=ttl").body, b"nearly for good");
}

/// A record is there until the millisecond before its instant and gone from it on, for GET as for HEAD.
///
/// Method: ask all the time. An answer that came before the instant must show it, a request sent at the
/// instant or later must not; between the two both are right.
fn expiry_to_the_millisecond(server: &Node) {
    let mut client = server.connect();
    for ttl in [1, 40, 300] {
        let put = server.put(&format!("id=expiry&ttl={ttl}ms"), b"x");
        // For a value that expires at once: the last millisecond in which it can have been written.
        let expires = server.get("id=expiry").header("kvorum-expires").map(|at| at.parse().unwrap());
        let gone_at = expires.unwrap_or_else(|| millis_of(&put) + ttl);
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
        // Only a machine that stalls for more than a second could miss it.
        assert!(seen_before > 0 || ttl < 300, "the record was never seen");
        let lines = server.request("GET", "/v0/entities?start=expiry&end=expiry0");
        assert_eq!(lines.chunks.unwrap(), Vec::<Vec<u8>>::new());
    }
}

/// Every way to name the only quorum of a cluster of one; all others are refused, and store nothing.
fn quorums(server: &Node) {
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

/// The records of a range by their framing: one chunk per record.
fn records(server: &Node, query: &str) -> Vec<Vec<u8>> {
    let answer = server.request("GET", &format!("/v0/entities?{query}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.is_whole, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    answer.chunks.unwrap()
}

/// Ranges are sorted by key bytes, start included, end not, one chunk per record, `<key>\n<value>` byte by
/// byte.
fn plain_ranges(server: &Node) {
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
    // Without an end it goes to the last key.
    let open = records(server, "start=p");
    assert_eq!(open[..all.len()], all);
    // As bytes on the wire: only the framing around the records.
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
    // The connection continues after a range, also after an empty one.
    let mut client = server.connect();
    for _ in 0..3 {
        client.send(b"GET /v0/entities?start=p&end=p HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().chunks.unwrap().len(), 0);
        client.send(b"GET /v0/entities?start=pa&end=pb HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.recv().chunks.unwrap().len(), 2);
    }
}

/// `application/x-ndjson`: an object per line, base64 for bytes that are not text, with version and expiry.
fn ndjson_ranges(server: &Node) {
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
        let expires = server.get(&format!("id={}", escape(key))).header("kvorum-expires").map(str::to_owned);
        let mut object = serde_json::Map::new();
        for (name, bytes) in [("key", key), ("value", value)] {
            match std::str::from_utf8(bytes) {
                Ok(text) => object.insert(name.to_owned(), text.into()),
                Err(_) => object.insert(format!("{name}_base64"), BASE64.encode(bytes).into()),
            };
        }
        object.insert("version".to_owned(), put.header("etag").unwrap().trim_matches('"').into());
        assert_eq!(expires.is_some(), !ttl.is_empty());
        if let Some(expires) = expires {
            object.insert("expires".to_owned(), expires.parse::<u64>().unwrap().into());
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

/// A range leaves out tombstones and expired records, and they do not count towards its limit.
fn what_ranges_leave_out(server: &Node) {
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
fn ranges_of_many_records(server: &Node) {
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
fn pipelining(server: &Node) {
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
    // The connection still works.
    client.send(b"GET /v0/entity?id=pipe-0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.recv_all().iter().map(|answer| answer.status).collect::<Vec<_>>(), [404]);
}

/// An answer is not held back because the next request has begun to arrive, or because an empty line follows.
fn half_a_request_behind_a_whole_one(server: &Node) {
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

/// Chunked bodies in pieces of every kind arrive as the right values.
fn chunked_uploads(server: &Node) {
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

/// A client that asks first is told to continue, once, with either framing.
fn expectation(server: &Node) {
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

/// HTTP/1.1 connections stay open unless the client says otherwise, HTTP/1.0 connections end unless it does.
fn persistence_of_connections(server: &Node) {
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

/// Writers on many connections: every write is acknowledged with a version of its own, and in the end every
/// reader sees the highest one.
fn concurrent_writers(server: &Node) {
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

/// A node that is told to stop and started again has every record, and continues with higher versions.
fn restart_keeps_everything(server: &mut Node) {
    let dump = |server: &Node| {
        let answer = server.request_with("GET", "/v0/entities?start=%00", "Accept: application/x-ndjson\r\n");
        assert!(answer.is_whole);
        answer.body
    };
    // A key that expires meanwhile would be a false difference.
    let before = dump(server);
    let newest = version_of(&server.put("id=restart", b"x"));
    assert_eq!(status_of(server, "DELETE", "id=restart"), 202);
    server.restart();
    assert_eq!(dump(server), before);
    // The writer in a version belongs to one run of a node: a copy of its disk repeats none.
    let (again, later) =
        (version_of(&server.put("id=restart", b"y")), version_of(&server.put("id=later", b"y")));
    assert!(again > newest && again.1 != newest.1 && again.1 == later.1, "{newest:?}, {again:?}, {later:?}");
}

/// Goal: `Last-Modified` is never later than `Date`. Method: versions are ahead of the clock after a restart,
/// by the lease of the previous run; a record that is written then is read at once.
#[test]
fn dates_are_of_one_clock() {
    let mut server = Node::start_new(&[]);
    let mut ahead = 0;
    for round in 0..4 {
        assert_eq!(server.put(&format!("id=before-{round}"), b"x").status, 201);
        server.restart();
        let put = server.put(&format!("id=dates-{round}"), b"x");
        let answer = server.get(&format!("id=dates-{round}"));
        let second = |name| httpdate::parse_http_date(answer.header(name).unwrap()).unwrap();
        let (date, modified) = (second("date"), second("last-modified"));
        assert!(modified <= date, "{answer:?}");
        let stamped = std::time::UNIX_EPOCH + std::time::Duration::from_millis(millis_of(&put));
        ahead += u32::from(stamped > date + std::time::Duration::from_secs(1));
    }
    println!("the version was in a second behind its answer's {ahead} times of 4");
}

// ---- Status and metrics ----------------------------------------------------------------------------------------

#[test]
fn status_in_text_and_json() {
    let server = Node::start_new(&["--durability", "interval:50", "--advertise", "http://node.example:8080"]);
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
    let head = server.request("HEAD", "/v0/status");
    assert_eq!((head.status, head.header("content-length")), (200, text.header("content-length")));
}
