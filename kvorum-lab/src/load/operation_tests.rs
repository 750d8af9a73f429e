//! Tests of requests and of the check of answers.

use super::*;

const DATASET: Dataset = Dataset { keys: 1000, value_bytes: 10, seed: 1 };

fn writer() -> RequestWriter {
    RequestWriter { records: DATASET.into(), replicas: None, head: "Host: h:1\r\n".into(), template: None }
}

fn request(action: impl Into<Action>) -> String {
    let mut out = b"left over".to_vec();
    writer().write(action.into(), 7, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Goal: requests follow the contract. Method: compare whole texts.
#[test]
fn requests_are_those_of_the_contract() {
    assert_eq!(request(Operation::Get), "GET /v0/entity?id=key-000000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n");
    let put = request(Operation::Put);
    assert_eq!(
        request(Action::Delete),
        "DELETE /v0/entity?id=key-000000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n"
    );
    assert_eq!(request(Action::Insert), put);
    assert_eq!(request(Action::ReadModifyWrite), request(Operation::Get), "it begins with its read");
    let head = "PUT /v0/entity?id=key-000000000007 HTTP/1.1\r\nHost: h:1\r\nContent-Length: 10\r\n\r\n";
    assert!(put.starts_with(head), "{put:?}");
    assert_eq!(
        request(Operation::Scan { records: None }),
        "GET /v0/entities?start=key-&end=key. HTTP/1.1\r\nHost: h:1\r\n\r\n"
    );
    assert_eq!(
        request(Operation::Scan { records: Some(5) }),
        "GET /v0/entities?start=key-000000000007&end=key.&limit=5 HTTP/1.1\r\nHost: h:1\r\n\r\n"
    );
}

/// Goal: PUTs and GETs ask for their quorum; a scan, which would be refused, does not. Method: each kind.
#[test]
fn a_quorum_is_asked_for() {
    let line = |operation| {
        let mut out = Vec::new();
        let asking = RequestWriter { replicas: Replicas::new(2, 3), ..writer() };
        asking.write(Action::from(operation), 7, &mut out);
        String::from_utf8_lossy(&out).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(line(Operation::Put), "PUT /v0/entity?id=key-000000000007&replicas=2/3 HTTP/1.1");
    assert_eq!(line(Operation::Get), "GET /v0/entity?id=key-000000000007&replicas=2/3 HTTP/1.1");
    assert!(!line(Operation::Scan { records: None }).contains("replicas"));
}

/// Goal: requests of sized records carry their sizes. Method: a key and a value of known lengths.
#[test]
fn sized_records_are_asked_for() {
    let records =
        Records { key_bytes: "20".parse().ok(), value_bytes: "33".parse().ok(), ..Records::from(DATASET) };
    let mut out = Vec::new();
    RequestWriter { records, ..writer() }.write(Action::Put, 7, &mut out);
    let text = String::from_utf8_lossy(&out);
    let key = text.strip_prefix("PUT /v0/entity?id=").unwrap().split(' ').next().unwrap();
    assert!(key.len() == 20 && key.starts_with("key-000000000007"), "{key}");
    assert!(text.contains("Content-Length: 33\r\n\r\n"));
    assert!(records.is_value(7, &out[out.len() - 33..]));
}

/// Goal: the warm-up goes before the stages, at their first rate. Method: when slots are due.
#[test]
fn the_warm_up_is_a_stage() {
    let second = Duration::from_secs(1);
    let stages = [Stage::constant(10, second), Stage::constant(100, second)];
    for (pacing, slots) in [(Pacing::Open { rate_per_second: 10 }, 30), (Pacing::Staged(stages.into()), 120)]
    {
        let timeline = pacing.timeline(second, 2 * second);
        assert_eq!(timeline.slots(), slots);
        assert_eq!([timeline.due(9), timeline.due(10)], [second * 9 / 10, second]);
    }
    assert_eq!(Pacing::Staged(stages.into()).rate_per_second(), Some(55.0));
    assert_eq!(Pacing::Closed.timeline(second, second).slots(), 0);
}

fn scan_of(indexes: &[u64], spoil: bool) -> bool {
    let scan = Action::Scan { records: None };
    let mut body = AnswerBody::new(DATASET.into(), true, None);
    body.reset(scan);
    for &index in indexes {
        let mut chunk = format!("{}\n", Dataset::key(index)).into_bytes();
        DATASET.write_value(index, &mut chunk);
        let last = chunk.len() - 1;
        chunk[last] ^= u8::from(spoil);
        let (first, second) = chunk.split_at(5);
        body.data(first);
        body.data(second);
        body.chunk_end();
    }
    assert_eq!(body.records(), indexes.len() as u64);
    body.is_right(scan, 0)
}

/// Goal: a scan is right only with its records in order, each once, with their values.
#[test]
fn scans_are_judged() {
    assert!(scan_of(&[1, 2, 5], false));
    assert!(!scan_of(&[1, 5, 2], false), "out of order");
    assert!(!scan_of(&[1, 1], false), "twice");
    assert!(!scan_of(&[1, 2], true), "a wrong value");
}

/// Goal: a GET's value is compared, and a longer one is detected.
#[test]
fn gets_are_judged() {
    let mut value = Vec::new();
    DATASET.write_value(3, &mut value);
    let mut body = AnswerBody::new(DATASET.into(), true, None);
    body.reset(Action::Get);
    body.data(&value);
    assert!(body.is_right(Action::Get, 3));
    assert!(!body.is_right(Action::Get, 4));
    body.data(&[0; 200]);
    assert!(!body.is_right(Action::Get, 3), "longer than the value");
}
