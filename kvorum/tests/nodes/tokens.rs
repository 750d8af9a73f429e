//! Goal: with `--auth on`, exactly the requests pass that their token allows; a change of the token file holds on open
//! connections; a bad file changes nothing. Method: real nodes, tokens made by the real command line, and raw requests.

use kvorum_client::{Client, Error};
use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::{Answer, Connection, encode, one};
use kvorum_testkit::node::Node;
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{PATIENCE, metric_sum, wait_until};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with a file of tokens.
struct Tokens {
    folder: TempDir,
}

impl Tokens {
    fn new() -> Self {
        Self { folder: TempDir::with_prefix("kvorum-tokens-").unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("tokens.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    fn command(&self, words: &[&str]) -> Output {
        let mut command = kvorum(&["token", words[0]]);
        run(command.arg(self.path()).args(&words[1..]), b"")
    }

    /// Makes a token with this id; returns its text.
    fn create(&self, id: &str, words: &[&str]) -> String {
        let output = self.command(&[&["create", "--id", id], words].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn revoke(&self, id: &str) {
        let output = self.command(&["revoke", id]);
        assert!(output.status.success(), "{output:?}");
    }

    /// A node that judges by `auth`.
    fn serve(&self, auth: &str) -> Node {
        let path = self.path();
        Node::start_new(&["--auth", auth, "--token-file", path.to_str().unwrap(), "--threads", "2"])
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn ask(server: &Node, method: &str, target: &str, token: &str) -> Answer {
    server.request_with(method, target, &bearer(token))
}

/// Sends a PUT of `value`; `headers` end with line ends.
fn put(server: &Node, target: &str, headers: &str, value: &str) -> Answer {
    let headers = format!("Connection: close\r\n{headers}");
    one(server.exchange(&encode("PUT", target, &headers, Some(value.as_bytes()))))
}

#[test]
fn only_what_a_token_allows_passes() {
    let tokens = Tokens::new();
    let root = tokens.create("root", &["--allow", "read,write,delete,scan", "--allow", "admin,metrics"]);
    let billing = tokens.create("billing", &["--allow", "read,write:billing/", "--allow", "scan:billing%2F"]);
    let reader = tokens.create("reader", &["--allow", "read"]);
    let short = tokens.create("short", &["--allow", "read", "--expires-in", "1ms"]);
    let gone = tokens.create("gone", &["--allow", "read"]);
    tokens.revoke("gone");
    let server = tokens.serve("on");
    let billing_key = "/v0/entity?id=billing/1";
    assert_eq!(put(&server, billing_key, &bearer(&billing), "paid").status, 201);

    let forged = format!("root.{}", billing.split_once('.').unwrap().1);
    let unauthenticated: [(&str, &str); 9] = [
        ("", "a token is needed"),
        ("Authorization: Bearer\r\n", "not one bearer token"),
        ("Authorization: Basic cm9vdDp4\r\n", "not one bearer token"),
        (&(bearer(&root) + &bearer(&root)), "not one bearer token"),
        (&bearer("root"), "not one bearer token"),
        (&bearer("nobody.x"), "not known here"),
        (&bearer(&forged), "not known here"),
        (&bearer(&short), "the time of the token short is over"),
        (&bearer(&gone), "the token gone was revoked"),
    ];
    for (headers, reason) in unauthenticated {
        for answer in [
            server.request_with("GET", billing_key, headers),
            put(&server, billing_key, headers, "stolen"),
            server.request_with("DELETE", billing_key, headers),
            server.request_with("POST", "/v0/entity?id=billing/1&add=1", headers),
            server.request_with("POST", "/v0/batch", headers),
            server.request_with("GET", "/v0/entities?start=a", headers),
            server.request_with("GET", "/v0/topology", headers),
            server.request_with("GET", "/v0/explain?id=billing/1", headers),
            server.request_with("GET", "/metrics", headers),
            server.request_with("GET", "/openapi.json", headers),
            server.request_with("GET", "/admin/workers", headers),
            server.request_with("POST", "/admin/repair", headers),
            server.request_with("GET", "/debug/profile?seconds=1", headers),
        ] {
            assert_eq!(answer.status, 401, "{headers} {answer:?}");
            assert!(answer.text().contains(reason), "{headers} {answer:?}");
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Bearer realm=\"kvorum\""), "{challenge}");
            assert_eq!(challenge.contains("invalid_token"), !headers.is_empty(), "{challenge}");
        }
    }
    let json = format!("{}Accept: application/json\r\n", bearer(&short));
    assert!(server.request_with("GET", billing_key, &json).text().contains("\"unauthenticated\""));

    for (method, target, token, right) in [
        ("GET", "/v0/entity?id=billing", &billing, "read"),
        ("GET", "/v0/entity?id=%62illing0", &billing, "read"),
        ("GET", "/v0/entity?id=billing%252F1", &billing, "read"),
        ("HEAD", "/v0/entity?id=other", &billing, "read"),
        ("GET", "/v0/explain?id=other", &billing, "read"),
        ("DELETE", billing_key, &billing, "delete"),
        ("POST", "/v0/entity?id=other&add=1", &billing, "write"),
        ("POST", "/v0/entity?id=other&append", &billing, "write"),
        ("POST", "/v0/entity?id=billing/1&add=1", &reader, "write"),
        ("DELETE", billing_key, &reader, "delete"),
        ("GET", "/v0/entities?start=billing/", &billing, "scan"),
        ("GET", "/v0/entities?start=billing/&end=billing0%00", &billing, "scan"),
        ("GET", "/v0/entities?start=billing&end=billing0", &billing, "scan"),
        ("GET", "/v0/entities?start=billing/&end=billing0&scope=local", &reader, "scan"),
        ("GET", "/metrics", &reader, "metrics"),
        ("GET", "/v0/history", &reader, "metrics"),
        ("GET", "/admin/workers", &reader, "admin"),
        ("POST", "/admin/workers/scrub/pause", &reader, "admin"),
    ] {
        let answer = ask(&server, method, target, token);
        assert_eq!(answer.status, 403, "{method} {target} {answer:?}");
        let scope = format!("scope=\"{right}\"");
        assert!(answer.header("www-authenticate").unwrap().ends_with(&scope), "{answer:?}");
        assert!(
            method == "HEAD" || answer.text().contains(&format!("lacks the right {right}")),
            "{answer:?}"
        );
    }
    assert_eq!(put(&server, "/v0/entity?id=billin", &bearer(&billing), "x").status, 403);

    for (method, target, token, status) in [
        ("GET", "/v0/entity?id=%62illing%2f1", &billing, 200),
        ("GET", "/v0/entity?id=billing%2F%00%FF", &billing, 404),
        ("GET", "/v0/entities?start=billing/&end=billing0", &billing, 200),
        ("GET", "/v0/entities?start=%62illing%2F1&end=billing/1%00&limit=1", &billing, 200),
        ("GET", "/v0/topology", &billing, 200),
        ("GET", "/openapi.json", &billing, 200),
        ("GET", "/metrics", &root, 200),
        ("GET", "/v0/history?last=1", &root, 200),
        ("GET", "/admin/workers", &root, 200),
        // Refused for what it says, once it is known who says it.
        ("GET", "/v0/entity?id=billing/1&id=other", &billing, 400),
        ("GET", "/v0/entity?id=%zz", &billing, 400),
        ("GET", "/v0/nothing", &billing, 400),
        ("PATCH", billing_key, &billing, 405),
        ("GET", "/v0/entities?start=a", &root, 200),
        ("DELETE", billing_key, &root, 202),
    ] {
        assert_eq!(ask(&server, method, target, token).status, status, "{method} {target}");
    }
    // Load balancers have no token.
    assert_eq!(server.request("GET", "/v0/status").status, 200);
    let log = server.log();
    for secret in [&root, &billing, &short].map(|token| token.split_once('.').unwrap().1) {
        assert!(!log.contains(secret), "{log}");
    }
    assert!(log.contains("a request was refused") && log.contains("the token gone was revoked"), "{log}");
}

/// Without an `Origin` of another site and with a `Host` of the node, an admin token is enough; a proxy may bring it.
#[test]
fn web_pages_have_no_access_to_admin_paths() {
    let tokens = Tokens::new();
    let admin = bearer(&tokens.create("admin", &["--allow", "admin"]));
    let server = tokens.serve("on");
    let ask = |headers: &str| {
        let request = format!("GET /admin/workers HTTP/1.1\r\nConnection: close\r\n{admin}{headers}\r\n");
        one(server.exchange(request.as_bytes())).status
    };
    let own = format!("Host: {}\r\n", server.address());
    assert_eq!(ask(&own), 200);
    assert_eq!(ask("Host: localhost\r\n"), 200);
    assert_eq!(ask(&format!("{own}X-Forwarded-For: 10.0.0.1\r\n")), 200);
    assert_eq!(ask(&format!("{own}Origin: {}\r\n", server.url())), 200);
    assert_eq!(ask(&format!("{own}Origin: http://evil.example\r\n")), 403);
    assert_eq!(ask(&format!("{own}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(ask("Host: evil.example\r\n"), 403);
}

/// Goal: a line of a batch passes exactly where the same request would. Method: one batch by tokens with different rights, and
/// without one where the request itself needs none.
#[test]
fn lines_of_a_batch_are_judged_alone() {
    let tokens = Tokens::new();
    let billing = tokens.create("billing", &["--allow", "read,write:billing/"]);
    let idle = tokens.create("idle", &["--allow", "metrics"]);
    let slow = tokens.create("slow", &["--allow", "read,write", "--requests-per-second", "1"]);
    let socket = tokens.folder.path().join("admin.sock");
    let path = tokens.path();
    let server = Node::start_new(&[
        "--auth",
        "on",
        "--token-file",
        path.to_str().unwrap(),
        "--admin-socket",
        socket.to_str().unwrap(),
    ]);
    let lines = [
        r#"{"op":"put","key":"billing/1","value":"x"}"#,
        r#"{"op":"get","key":"billing/1"}"#,
        r#"{"op":"get","key":"other"}"#,
        r#"{"op":"put","key":"billing","value":"x"}"#,
        r#"{"op":"delete","key":"billing/1"}"#,
    ];
    let body = lines.join("\n");
    let statuses = |answer: &Answer| -> Vec<u64> {
        assert_eq!(answer.status, 200, "{answer:?}");
        let status = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["status"].as_u64();
        answer.text().lines().map(|line| status(line).unwrap()).collect()
    };
    let batch = |token: &str| {
        let headers = format!("Connection: close\r\n{}", bearer(token));
        one(server.exchange(&encode("POST", "/v0/batch", &headers, Some(body.as_bytes()))))
    };
    let answer = batch(&billing);
    assert_eq!(statuses(&answer), [201, 200, 403, 403, 403], "{answer:?}");
    assert!(answer.text().contains("missing_right"), "{answer:?}");
    assert_eq!(statuses(&batch(&idle)), [403; 5]);
    // Each line counts as a request: a batch is no way around a limit.
    let over = statuses(&batch(&slow));
    assert!(over.iter().filter(|status| **status == 429).count() >= 2, "{over:?}");
    // The socket for administration needs no token, but keys do.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(&encode("POST", "/v0/batch", "Connection: close\r\n", Some(body.as_bytes()))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"status\":401") && !answer.contains("\"status\":2"), "{answer}");
    assert_eq!(ask(&server, "GET", "/v0/entity?id=billing/1", &billing).text(), "x");
}

/// The socket for administration answers its user without a token what is about the node, and only that; it is private, goes
/// with its node, and a dead one is replaced.
#[test]
fn admin_socket_needs_no_token() {
    let tokens = Tokens::new();
    let token = tokens.create("reader", &["--allow", "read"]);
    let (path, socket) = (tokens.path(), tokens.folder.path().join("admin.sock"));
    let arguments =
        ["--auth", "on", "--token-file", path.to_str().unwrap(), "--admin-socket", socket.to_str().unwrap()];
    let mut server = Node::start_new(&arguments);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |request: &str, headers: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{request} HTTP/1.1\r\nHost: any\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    for request in [
        "GET /admin/workers",
        "POST /admin/workers/scrub/pause?for=1s",
        "POST /admin/workers/scrub/resume",
        "GET /metrics",
        "GET /openapi.json",
        "GET /v0/status",
        "GET /debug/profile?seconds=1&format=collapsed",
    ] {
        assert_eq!(ask(request, ""), 200, "{request}");
    }
    for request in ["GET /v0/entity?id=a", "DELETE /v0/entity?id=a", "GET /v0/entities?start=a"] {
        assert_eq!(ask(request, ""), 401, "{request}");
    }
    assert_eq!(ask("GET /v0/entity?id=a", &bearer(&token)), 404);
    assert_eq!(server.request("GET", "/admin/workers").status, 401);
    server.begin_kill();
    server.wait();
    assert!(socket.exists());
    server.restart();
    assert_eq!(ask("GET /admin/workers", ""), 200);
    assert!(server.terminate().success());
    assert!(!socket.exists());
}

/// The audit log names refusals, administration and changes of tokens, and has no key, secret or value.
#[test]
fn audit_log_says_who_did_what() {
    let tokens = Tokens::new();
    let reader = tokens.create("reader", &["--allow", "read:mine/"]);
    let admin = tokens.create("chief", &["--allow", "admin"]);
    let (path, log) = (tokens.path(), tokens.folder.path().join("audit.log"));
    let arguments =
        ["--auth", "on", "--token-file", path.to_str().unwrap(), "--audit-log", log.to_str().unwrap()];
    let mut server = Node::start_new(&arguments);
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(
        put(&server, "/v0/entity?id=mine/topsecretkey", &bearer(&reader), "topsecretvalue").status,
        403
    );
    assert_eq!(ask(&server, "GET", "/v0/entity?id=mine/topsecretkey", "reader.wrong").status, 401);
    assert_eq!(ask(&server, "GET", "/v0/entity?id=mine/topsecretkey", &reader).status, 404);
    assert_eq!(ask(&server, "POST", "/admin/workers/scrub/resume", &admin).status, 200);
    tokens.revoke("reader");
    wait_until("the token is refused", || ask(&server, "GET", "/v0/entity?id=mine/1", &reader).status == 401);
    assert!(server.terminate().success());
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |event: &str, name: &str, value: &str| {
        let mut found = lines.iter().filter(|line| line["event"] == event && line[name] == value);
        found.next().unwrap_or_else(|| panic!("no {event} {name} {value} in {text}")).clone()
    };
    let refused = find("refused", "reason", "missing-right");
    assert_eq!(
        (&refused["token"], &refused["method"], &refused["client"]),
        (&"reader".into(), &"PUT".into(), &"127.0.0.1".into())
    );
    assert_eq!(refused["key_sha256"].as_str().map(str::len), Some(16));
    assert_eq!(find("refused", "reason", "unknown")["token"], "");
    find("refused", "reason", "revoked");
    assert_eq!(find("admin", "token", "chief")["path"], "/admin/workers/scrub/resume");
    find("tokens", "change", "added");
    assert_eq!(find("tokens", "change", "revoked")["token"], "reader");
    let secrets = [&reader, &admin].map(|token| token.split_once('.').unwrap().1);
    for hidden in secrets.into_iter().chain(["topsecretkey", "topsecretvalue", "wrong"]) {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

#[test]
fn revocation_holds_on_an_open_connection() {
    let tokens = Tokens::new();
    let (one, other) =
        (tokens.create("one", &["--allow", "read"]), tokens.create("other", &["--allow", "read"]));
    let server = tokens.serve("on");
    let mut client = server.connect();
    let mut ask = |token: &str| {
        client.send(format!("GET /v0/entity?id=a HTTP/1.1\r\nHost: a\r\n{}\r\n", bearer(token)).as_bytes());
        client.recv().status
    };
    assert_eq!((ask(&one), ask(&other)), (404, 404));
    tokens.revoke("one");
    wait_until("the revoked token is refused", || ask(&one) == 401);
    assert_eq!((ask(&one), ask(&other)), (401, 404));
    // A new token holds without a restart, too.
    let new = tokens.create("new", &["--allow", "read"]);
    wait_until("the new token passes", || ask(&new) == 404);
    // So does the end of one that was changed by hand.
    let ended =
        tokens.text().replace("id = \"other\"\n", "id = \"other\"\nnot_after = 2020-01-01T00:00:00Z\n");
    std::fs::write(tokens.path(), ended).unwrap();
    wait_until("the ended token is refused", || ask(&other) == 401);
    assert_eq!(ask(&new), 404);
}

#[test]
fn bad_token_files_change_nothing() {
    let tokens = Tokens::new();
    let good = tokens.create("good", &["--allow", "read,metrics"]);
    let before = tokens.text();
    let server = tokens.serve("on");
    let metric = |name: &str| metric_sum(ask(&server, "GET", "/metrics", &good).text(), name);
    let is_good = || ask(&server, "GET", "/v0/entity?id=a", &good).status == 404;
    tokens.revoke("good");
    let new = tokens.create("new", &["--allow", "read"]);
    let after = tokens.text();
    // From here on the file is bad in one way after the other.
    let half = &after[..after.len() / 2];
    for bad in [Some(half), Some(""), Some("\0"), None, Some(&after[..after.rfind("[end]").unwrap()])] {
        // Written in one step, so that the node never sees a good file in between.
        let prepared = tokens.folder.path().join("prepared");
        match bad {
            Some(bad) => {
                std::fs::write(&prepared, bad).unwrap();
                std::fs::rename(&prepared, tokens.path()).unwrap();
            }
            None => std::fs::remove_file(tokens.path()).unwrap(),
        }
        if bad == Some(half) {
            // The node may have taken the good file that was there for a moment; then the old token is revoked.
            std::fs::write(&prepared, &before).unwrap();
            std::fs::rename(&prepared, tokens.path()).unwrap();
            wait_until("the first file holds", is_good);
            std::fs::write(&prepared, half).unwrap();
            std::fs::rename(&prepared, tokens.path()).unwrap();
        }
        let failures = metric("kvorum_token_file_failures_total");
        // Two more: the second look began after the file was there.
        wait_until("the bad file was looked at", || {
            metric("kvorum_token_file_failures_total") >= failures + 2
        });
        assert!(is_good(), "{bad:?}");
        assert_eq!(ask(&server, "GET", "/v0/entity?id=a", &new).status, 401, "{bad:?}");
    }
    let log = server.log();
    assert!(log.contains("the token file cannot be used") && log.contains("no [end] table"), "{log}");
    std::fs::write(tokens.path(), after).unwrap();
    wait_until("the mended file holds", || ask(&server, "GET", "/v0/entity?id=a", &new).status == 404);
    assert!(!is_good());
}

#[test]
fn node_does_not_start_without_its_tokens() {
    let tokens = Tokens::new();
    let data = tokens.folder.path().join("data");
    let start = || {
        let mut command = kvorum(&["serve", "--listen", "127.0.0.1:0", "--auth", "on", "--token-file"]);
        run(command.arg(tokens.path()).arg("--data-dir").arg(&data), b"")
    };
    let check = |why: &str| {
        let output = start();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{log}");
        assert!(log.contains("the node does not start") && log.contains(why), "{log}");
    };
    check("cannot read the token file");
    std::fs::write(tokens.path(), "[[token]]\nid = \"a\"\n").unwrap();
    check("it seems cut off");
    std::fs::write(tokens.path(), "[[token]]\nid = \"a\"\n[end]\ntokens = 1\n").unwrap();
    check("secret_sha256");
}

/// With `warn` every request passes that passes without tokens, and those that would not pass are counted by reason and
/// token.
#[test]
fn warn_lets_through_and_counts() {
    let tokens = Tokens::new();
    let reader = tokens.create("reader", &["--allow", "read:a"]);
    let server = tokens.serve("warn");
    assert_eq!(server.put("id=b", b"x").status, 201);
    assert_eq!(server.get("id=b").status, 200);
    assert_eq!(ask(&server, "GET", "/v0/entity?id=a", &reader).status, 404);
    assert_eq!(ask(&server, "GET", "/v0/entity?id=b", &reader).status, 200);
    assert_eq!(ask(&server, "GET", "/v0/entity?id=b", "reader.x").status, 200);
    assert_eq!(ask(&server, "GET", "/v0/entity?id=", "reader.x").status, 400);
    // The rules that hold without tokens still hold.
    assert_eq!(server.request_with("GET", "/admin/workers", "Via: proxy\r\n").status, 403);
    assert_eq!(server.request("GET", "/admin/workers").status, 200);
    let metrics = server.request("GET", "/metrics").text().to_owned();
    for row in [
        "{reason=\"no-token\",token=\"\"} 5",
        "{reason=\"unknown\",token=\"\"} 2",
        "{reason=\"missing-right\",token=\"reader\"} 1",
    ] {
        assert!(metrics.contains(&format!("kvorum_requests_not_allowed_total{row}\n")), "{row}: {metrics}");
    }
    assert!(server.log().contains("a request passed that --auth on would refuse"), "{}", server.log());
}

/// Nodes need no tokens among themselves: what a client may do through one node is done on all of them.
#[test]
fn nodes_of_a_cluster_need_no_token() {
    let tokens = Tokens::new();
    let token = tokens.create("all", &["--allow", "read,write,scan"]);
    let path = tokens.path();
    let arguments = ["--memory-budget", "16MiB", "--auth", "on", "--token-file", path.to_str().unwrap()];
    let mut cluster = Cluster::new(3, &arguments);
    (0..3).for_each(|index| cluster.spawn(index));
    for index in 0..3 {
        cluster.wait_until_ready(index);
    }
    let ask = |index: usize, method: &str, target: &str, headers: &str, body: Option<&[u8]>| {
        let mut connection = Connection::open(cluster.address(index), PATIENCE).unwrap();
        let headers = format!("Connection: close\r\n{headers}");
        connection.exchange(method, target, &headers, body).unwrap()
    };
    let with = bearer(&token);
    for index in 0..3 {
        let target = format!("/v0/entity?id=k{index}&replicas=3/3");
        wait_until("all replicas confirm", || ask(index, "PUT", &target, &with, Some(b"v")).status == 201);
        assert_eq!(ask(index, "PUT", &target, "", Some(b"v")).status, 401);
    }
    for index in 0..3 {
        for key in 0..3 {
            let target = format!("/v0/entity?id=k{key}&replicas=3/3");
            assert_eq!(ask(index, "GET", &target, &with, None).status, 200);
        }
        let range = ask(index, "GET", "/v0/entities?start=k", &with, None);
        assert_eq!((range.status, range.text().matches('v').count()), (200, 3));
    }
    // A client that routes learns the topology with its token, and sends the token to the nodes that it learns.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Client::builder().node(cluster.url(0)).timeout(PATIENCE);
        let client = builder.clone().token(&token).build().unwrap();
        while client.topology_epoch().is_none() {
            client.put("routed", "v").await.unwrap();
        }
        for key in 0..30 {
            client.put(format!("r{key}"), "v").await.unwrap();
        }
        let refused = builder.build().unwrap().get("routed").await.unwrap_err();
        assert!(matches!(refused, Error::Refused { status: 401, .. }), "{refused}");
        let refused = client.delete("routed").await.unwrap_err();
        assert!(matches!(refused, Error::Refused { status: 403, .. }), "{refused}");
    });
}

/// The client's commands send the token of a file or of the environment, and fail with the node's words without.
#[test]
fn commands_send_their_token() {
    let tokens = Tokens::new();
    let token = tokens.create("ops", &["--allow", "read,write,delete,scan", "--allow", "admin"]);
    let file = tokens.folder.path().join("ops.token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let server = tokens.serve("on");
    let url = server.url();
    let profiles = tokens.folder.path().join("profiles").display().to_string();
    for words in [
        &["put", "k", "v"][..],
        &["get", "k"],
        &["scan", "a"],
        &["explain", "k"],
        &["repair"],
        &["cluster", "show"],
        &["profile", "--seconds", "1", "--format", "collapsed"],
        &["profile", "--all", "--event", "cpu", "--seconds", "1", "-o", &profiles],
        &["delete", "k"],
    ] {
        let base = || {
            let mut command = kvorum(words);
            command.args(["--url", &url]);
            command
        };
        let refused = run(&mut base(), b"");
        let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
        assert!(!refused.status.success() && said.contains("a token is needed"), "{words:?}: {said}");
        for output in
            [run(base().arg("--token-file").arg(&file), b""), run(base().env("KVORUM_TOKEN", &token), b"")]
        {
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
        let missing = run(base().args(["--token-file", "/nowhere"]), b"");
        assert_eq!(missing.status.code(), Some(2), "{words:?}");
    }
}

/// `bench` sends the token, with its prefill, and says so where it is refused.
#[test]
fn bench_sends_its_token() {
    let tokens = Tokens::new();
    let token = tokens.create("bench", &["--allow", "read,write:key-"]);
    let server = tokens.serve("on");
    let bench = |token: &str| {
        let mut command =
            kvorum(&["bench", "get", "-d", "300ms", "-c", "2", "-t", "1", "--keys", "100", "--prefill"]);
        run(command.arg(server.url()).env("KVORUM_TOKEN", token), b"")
    };
    let output = bench(&token);
    assert!(output.status.success(), "{output:?}");
    assert!(!bench("bench.wrong").status.success());
}

/// The command line: a token is shown once, the file is private and has no secret, wrong words change nothing.
#[test]
fn command_line_keeps_secrets() {
    let tokens = Tokens::new();
    let check = |words: &[&str], code: i32, says: &str| {
        let output = tokens.command(words);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(says), "{words:?}: {text}");
        text
    };
    check(&["list"], 3, "cannot read the token file");
    check(&["revoke", "a"], 3, "cannot read the token file");
    assert!(!Path::new(&tokens.path()).exists());
    let token =
        tokens.create("a", &["--allow", "read,write:%00%ff", "--name", "the a\u{7}", "--expires-in", "90d"]);
    let secret = token.strip_prefix("a.").unwrap();
    assert_eq!(secret.len(), 43);
    assert_ne!(tokens.create("b", &["--allow", "metrics"]).strip_prefix("b."), Some(secret));
    assert_eq!(tokens.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!tokens.text().contains(secret));
    let list = check(&["list"], 0, "a\tvalid\t2");
    assert!(
        list.contains("read,write:%00%FF\tthe a \n") && list.contains("b\tvalid\tforever\tmetrics"),
        "{list}"
    );
    let before = tokens.text();
    check(&["create", "--id", "a", "--allow", "read"], 2, "already");
    check(&["create", "--id", "a b", "--allow", "read"], 2, "letters");
    check(&["create", "--allow", "fly"], 2, "not a right");
    check(&["create", "--allow", "admin:a"], 2, "whole node");
    check(&["create", "--allow", "read", "--expires-in", "0s"], 2, "--expires-in");
    check(&["create"], 2, "--allow");
    check(&["revoke", "c"], 2, "no token");
    assert_eq!(tokens.text(), before);
    check(&["revoke", "a"], 0, "a is revoked");
    check(&["revoke", "a"], 0, "a is revoked");
    check(&["list"], 0, "a\trevoked\t");
    std::fs::write(tokens.path(), &before[..before.len() / 2]).unwrap();
    check(&["create", "--allow", "read"], 3, "the token file");
    assert_eq!(tokens.text(), before[..before.len() / 2]);
}

/// Goal: a token is kept to its limits on every path, is told when to come again, and disturbs nobody else; a change of the
/// limit holds on an open connection, and gives no new allowance. Method: a token with limits asks as fast as it can
/// beside one without.
#[test]
fn limits_of_a_token_hold() {
    let tokens = Tokens::new();
    let few = bearer(&tokens.create("few", &["--allow", "read,write,scan", "--requests-per-second", "2"]));
    let slow = bearer(&tokens.create("slow", &["--allow", "read,write", "--bytes-per-second", "1000"]));
    let free = bearer(&tokens.create("free", &["--allow", "read,write", "--allow", "metrics"]));
    let server = tokens.serve("on");
    let mut connection = server.connect();
    let mut ask = |method: &str, target: &str, headers: &str| {
        connection.send(&encode(method, target, headers, None));
        connection.recv()
    };
    let key = "/v0/entity?id=k";
    // Two a second pass. A refusal is sent half a second after its request, so that asking again at once gains nothing.
    let begun = Instant::now();
    let answers: Vec<Answer> = (0..12).map(|_| ask("GET", key, &few)).collect();
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert!(answers.iter().all(|answer| [404, 429].contains(&answer.status)), "{answers:?}");
    assert!((1..=10).contains(&refused.len()), "{}", refused.len());
    assert!(begun.elapsed() >= Duration::from_millis(500 * refused.len() as u64), "not in an instant");
    assert_eq!(refused[0].header("retry-after"), Some("1"), "{:?}", refused[0]);
    let text = "the token few is over its limit of 2 requests a second on this node; nothing was done";
    assert!(refused[0].text().starts_with(text), "{:?}", refused[0]);
    let json = format!("{slow}Accept: application/json\r\n");

    assert_eq!(put(&server, key, &slow, &"v".repeat(100_000)).status, 201, "one may be larger");
    for (method, target) in [("GET", key), ("GET", "/v0/explain?id=k"), ("GET", "/v0/topology")] {
        let answer = ask(method, target, &json);
        assert_eq!(answer.status, 429, "{method} {target} {answer:?}");
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((50..=100).contains(&wait), "100,000 bytes at 1,000 a second: {wait} s");
    }
    assert!(ask("GET", key, &json).text().contains("\"over_limit\""));
    for _ in 0..200 {
        assert_eq!(ask("GET", key, &free).status, 200);
    }
    let page = ask("GET", "/metrics", &free);
    let count = |token: &str| {
        let label = format!("reason=\"over-limit\",token=\"{token}\"");
        page.text().lines().filter(|line| line.contains(&label)).count()
    };
    assert_eq!((count("few"), count("slow"), count("free")), (1, 1, 0), "{page:?}");

    // The file is written anew: the debt stays. Then the limit goes.
    tokens.create("other", &["--allow", "read"]);
    wait_until("the file is taken", || server.log().contains("the token file has changed"));
    assert_eq!(ask("GET", key, &slow).status, 429);
    std::fs::write(tokens.path(), tokens.text().replace("bytes_per_second = 1000\n", "")).unwrap();
    wait_until("the limit is gone", || ask("GET", key, &slow).status == 200);
    let list = String::from_utf8(tokens.command(&["list"]).stdout).unwrap();
    assert!(list.contains("2 requests/s") && !list.contains("bytes/s"), "{list}");
    for wrong in ["0", "-1", "x", "99999999999999999999"] {
        let output = tokens.command(&["create", "--allow", "read", "--requests-per-second", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {output:?}");
    }
}

/// An exact backup needs the right `admin`; one by a scan needs `scan` for all keys, and no more.
#[test]
fn backups_need_their_rights() {
    let tokens = Tokens::new();
    let operator = tokens.create("operator", &["--allow", "admin"]);
    let scanner = tokens.create("scanner", &["--allow", "scan"]);
    let node = tokens.serve("on");
    let create = |token: &str, more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let words = [&["backup", "create"], more].concat();
        let mut command = kvorum(&words);
        run(command.arg(folder.path()).args(["--url", &node.url()]).env("KVORUM_TOKEN", token), b"")
    };
    let is_done = |output: &Output| output.status.success();
    assert!(is_done(&create(&operator, &[])));
    assert!(is_done(&create(&scanner, &["--scan"])));
    let refused = create(&scanner, &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!is_done(&refused) && said.contains("needs the right admin on every node"), "{said}");
    assert!(!is_done(&create(&operator, &["--scan"])));
}
