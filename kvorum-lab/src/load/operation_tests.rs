//! Tests of requests and of the judgement over answers.

use std::time::Duration;

use super::*;

fn plan(operation: Operation) -> StreamPlan {
    StreamPlan {
        name: "test".into(),
        operation,
        replicas: None,
        pacing: Pacing::Closed,
        order: KeyOrder::Uniform { seed: 1 },
        dataset: Dataset { keys: 1000, value_bytes: 10, seed: 1 },
        connections: 1,
        verify: true,
    }
}

fn request(operation: Operation) -> String {
    let mut out = b"left over".to_vec();
    plan(operation).write_request(7, "h:1", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Goal: requests are those of the contract. Method: compare whole texts.
#[test]
fn requests_are_those_of_the_contract() {
    assert_eq!(request(Operation::Get), "GET /v0/entity?id=key-000000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n");
    let put = request(Operation::Put);
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
        let asking = StreamPlan { replicas: Replicas::new(2, 3), ..plan(operation) };
        asking.write_request(7, "h:1", &mut out);
        String::from_utf8_lossy(&out).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(line(Operation::Put), "PUT /v0/entity?id=key-000000000007&replicas=2/3 HTTP/1.1");
    assert_eq!(line(Operation::Get), "GET /v0/entity?id=key-000000000007&replicas=2/3 HTTP/1.1");
    assert!(!line(Operation::Scan { records: None }).contains("replicas"));
}

/// Goal: keys follow from slot and seed alone and cover the dataset. Method: draw twice, and with another seed.
#[test]
fn keys_follow_from_the_slot() {
    let one = plan(Operation::Get);
    let keys: Vec<u64> = (0..5000).map(|slot| one.key_of(slot)).collect();
    assert_eq!(keys, (0..5000).map(|slot| one.key_of(slot)).collect::<Vec<_>>());
    assert!(keys.iter().all(|&key| key < 1000));
    let distinct: std::collections::BTreeSet<u64> = keys.iter().copied().collect();
    assert!(distinct.len() > 950, "{} of 1000 keys in 5000 draws", distinct.len());
    let other = StreamPlan { order: KeyOrder::Uniform { seed: 2 }, ..one.clone() };
    assert_ne!(other.key_of(0), one.key_of(0));
    let listed = StreamPlan { order: KeyOrder::Listed([4, 9].into()), ..one };
    assert_eq!([listed.key_of(0), listed.key_of(1)], [4, 9]);
    assert_eq!(listed.slots(Duration::from_secs(1)), 2);
}

fn scan_of(indexes: &[u64], spoil: bool) -> bool {
    let plan = plan(Operation::Scan { records: None });
    let mut body = AnswerBody::new(&plan);
    body.reset();
    for &index in indexes {
        let mut chunk = format!("{}\n", Dataset::key(index)).into_bytes();
        plan.dataset.write_value(index, &mut chunk);
        let last = chunk.len() - 1;
        chunk[last] ^= u8::from(spoil);
        let (first, second) = chunk.split_at(5);
        body.data(first);
        body.data(second);
        body.chunk_end();
    }
    assert_eq!(body.records(), indexes.len() as u64);
    body.is_right(plan.operation, 0)
}

/// Goal: a scan is right only with its records in order, each once, with their values.
#[test]
fn scans_are_judged() {
    assert!(scan_of(&[1, 2, 5], false));
    assert!(!scan_of(&[1, 5, 2], false), "out of order");
    assert!(!scan_of(&[1, 1], false), "twice");
    assert!(!scan_of(&[1, 2], true), "a wrong value");
}

/// Goal: a GET's value is compared, and a longer one is seen to be longer.
#[test]
fn gets_are_judged() {
    let plan = plan(Operation::Get);
    let mut value = Vec::new();
    plan.dataset.write_value(3, &mut value);
    let mut body = AnswerBody::new(&plan);
    body.data(&value);
    assert!(body.is_right(Operation::Get, 3));
    assert!(!body.is_right(Operation::Get, 4));
    body.data(&[0; 200]);
    assert!(!body.is_right(Operation::Get, 3), "longer than the value");
}
