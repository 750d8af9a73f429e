//! Goal: a batch (`POST /v0/batch`) is its lines: each has its own status, in order, and a batch over its limits does nothing.
//! Method: the real program; answers are compared line by line.

use kvorum_testkit::http::{Answer, encode, one};
use kvorum_testkit::node::Node;
use serde_json::{Value, json};
use std::fmt::Write as _;

fn batch(server: &Node, headers: &str, body: &[u8]) -> Answer {
    one(server.exchange(&encode("POST", "/v0/batch", &format!("Connection: close\r\n{headers}"), Some(body))))
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!((answer.status, answer.is_whole), (200, true), "{answer:?}");
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run(server: &Node, operations: &[Value]) -> Vec<Value> {
    let body = operations.iter().fold(String::new(), |body, operation| format!("{body}{operation}\n"));
    let answers = lines(&batch(server, "", body.as_bytes()));
    assert_eq!(answers.len(), operations.len());
    answers
}

fn statuses(answers: &[Value]) -> Vec<u64> {
    answers.iter().map(|answer| answer["status"].as_u64().unwrap()).collect()
}

/// Every operation in one batch; lines of one key are done in their order.
#[test]
fn lines_have_their_own_answers() {
    let server = Node::start_new(&["--memory-budget", "16MiB"]);
    let answers = run(
        &server,
        &[
            json!({"op": "put", "key": "a", "value": "1"}),
            json!({"op": "get", "key": "a"}),
            json!({"op": "put", "key": "a", "value": "2", "if_none_match": "*"}),
            json!({"op": "delete", "key": "a", "if_match": "*"}),
            json!({"op": "get", "key": "a"}),
            json!({"op": "put", "key_base64": "/w==", "value_base64": "gA==", "ttl": "1h", "replicas": "1/1"}),
            json!({"op": "get", "key_base64": "/w=="}),
            json!({"op": "delete", "key": "never"}),
            json!({"op": "put", "key": "empty", "value": "", "ttl": 2.5}),
            json!({"op": "get", "key": "empty"}),
        ],
    );
    assert_eq!(statuses(&answers), [201, 200, 412, 202, 404, 201, 200, 202, 201, 200], "{answers:#?}");
    assert_eq!(answers[1]["value"], "1");
    assert_eq!(answers[1]["version"], answers[0]["version"]);
    assert_eq!(answers[2]["error"], "precondition_failed");
    assert_eq!(answers[2]["version"], answers[0]["version"]);
    assert_eq!(answers[4]["error"], "not_found");
    assert_eq!(answers[6]["value_base64"], "gA==");
    assert!(answers[6]["expires"].is_u64() && answers[6]["replicas"] == "1/1");
    assert_eq!(answers[9]["value"], "");
    let version = answers[9]["version"].as_str().unwrap();
    // A version is taken as it was answered, and as an ETag.
    let answers = run(
        &server,
        &[
            json!({"op": "get", "key": "empty", "if_none_match": version}),
            json!({"op": "put", "key": "empty", "value": "x", "if_match": format!("\"{version}\""), "operation": "n1"}),
            json!({"op": "put", "key": "empty", "value": "x", "if_match": version, "operation": "n1"}),
            json!({"op": "put", "key": "empty", "value": "y", "if_match": version}),
            json!({"op": "get", "key": "empty", "if_match": version}),
        ],
    );
    assert_eq!(statuses(&answers), [304, 201, 201, 412, 412], "{answers:#?}");
    assert_eq!(answers[1]["version"], answers[2]["version"]);
    assert_eq!(server.get("id=empty").text(), "x");
}

/// A line that is wrong is answered in its place, and the others are carried out.
#[test]
fn wrong_lines_are_answered_in_their_place() {
    let server = Node::start_new(&["--memory-budget", "16MiB", "--max-value-size", "100KiB"]);
    let long = "k".repeat(1025);
    let wrong = [
        "nonsense".to_owned(),
        "[]".to_owned(),
        r#"{"op":"put","value":"x"}"#.to_owned(),
        r#"{"op":"put","key":"","value":"x"}"#.to_owned(),
        format!(r#"{{"op":"put","key":"{long}","value":"x"}}"#),
        r#"{"op":"put","key":"w"}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","value_base64":"eA=="}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","key":"v"}"#.to_owned(),
        r#"{"op":"put","key":"w","value_base64":"%"}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","misspelt":1}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","ttl":0}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","replicas":"2/3"}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","if_match":"no tag"}"#.to_owned(),
        r#"{"op":"put","key":"w","value":"x","operation":"a b"}"#.to_owned(),
        r#"{"op":"get","key":"w","value":"x"}"#.to_owned(),
        r#"{"op":"get","key":"w","ttl":"5s"}"#.to_owned(),
        r#"{"op":"get","key":"w","operation":"a"}"#.to_owned(),
        r#"{"op":"patch","key":"w"}"#.to_owned(),
        "\u{0}".to_owned(),
    ];
    let mut body = wrong.iter().fold(String::new(), |body, line| body + line + "\n");
    let _ = writeln!(body, r#"{{"op":"put","key":"big","value":"{}"}}"#, "x".repeat(102_401));
    let _ = writeln!(body, r#"{{"op":"put","key":"large","value":"{}"}}"#, "x".repeat(102_400));
    // Empty lines are none, and the last line needs no end.
    body += "\r\n  \n\n{\"op\":\"get\",\"key\":\"large\"}";
    let answers = lines(&batch(&server, "", body.as_bytes()));
    let count = wrong.len();
    for (line, answer) in wrong.iter().zip(&answers) {
        assert_eq!(answer["status"], 400, "{line}: {answer}");
        assert!(answer["error"].is_string() && answer["message"].is_string(), "{answer}");
    }
    assert_eq!(statuses(&answers[count..]), [413, 201, 200]);
    assert_eq!(answers[count + 2]["value"].as_str().unwrap().len(), 102_400);
    assert_eq!(server.get("id=w").status, 404);
}

/// A batch that is too long does nothing; one of the most lines is carried out.
#[test]
fn long_batches_do_nothing() {
    let server = Node::start_new(&["--memory-budget", "32MiB"]);
    let many = |count: usize| {
        (0..count).fold(String::new(), |mut body, number| {
            let _ = writeln!(body, r#"{{"op":"put","key":"n{number}","value":"{number}"}}"#);
            body
        })
    };
    let answer = batch(&server, "Accept: application/json\r\n", many(10_001).as_bytes());
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.text().contains("batch_too_large"), "{answer:?}");
    assert_eq!(server.get("id=n0").status, 404);
    let answers = lines(&batch(&server, "", many(10_000).as_bytes()));
    assert!(answers.len() == 10_000 && answers.iter().all(|answer| answer["status"] == 201));
    assert_eq!(server.get("id=n9999").text(), "9999");
    // The length is judged before the body comes.
    let head = "POST /v0/batch HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 67108865\r\n\r\n";
    assert_eq!(one(server.exchange(head.as_bytes())).status, 413);
    assert_eq!(lines(&batch(&server, "", b"")), Vec::<Value>::new());
    for (line, status) in [("POST /v0/batch?x=1", 400), ("GET /v0/batch", 405), ("PUT /v0/batch", 405)] {
        let request = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(one(server.exchange(request.as_bytes())).status, status, "{line}");
    }
    let old = "POST /v0/batch HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(one(server.exchange(old.as_bytes())).status, 400);
}

/// A page of another site cannot make a browser change keys: it sends a POST without asking first.
#[test]
fn pages_of_other_sites_change_nothing() {
    let server = Node::start_new(&["--memory-budget", "16MiB"]);
    let evil = "Connection: close\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n";
    for (target, body) in [
        ("/v0/batch", &br#"{"op":"put","key":"page","value":"x"}"#[..]),
        ("/v0/entity?id=page&add=1", b""),
        ("/v0/entity?id=page&append", b"x"),
    ] {
        assert_eq!(one(server.exchange(&encode("POST", target, evil, Some(body)))).status, 403, "{target}");
    }
    assert_eq!(server.get("id=page").status, 404);
}
