//! Goal: the ammo that `bench/tank/ammo.py` makes for Yandex.Tank is what phantom reads, and its requests are those of
//! `kvorum bench`. Method: run it, take its output apart by the sizes it names, and compare each request byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::BTreeMap;
use std::process::Command;

use kvorum_lab::dataset::Dataset;
use kvorum_lab::load::Replicas;
use kvorum_lab::load::mix::Action;
use kvorum_lab::load::operation::{RequestWriter, head};

const AMMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/tank/ammo.py");
const KEYS: u64 = 50;

/// The tagged requests of an ammo file. Phantom reads a line with a size and a tag, so many bytes, and a line feed.
fn taken_apart(mut ammo: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut requests = Vec::new();
    while !ammo.is_empty() {
        let (line, rest) = ammo.split_at(ammo.iter().position(|&byte| byte == b'\n').unwrap());
        let (size, tag) = std::str::from_utf8(line).unwrap().split_once(' ').unwrap();
        let (request, rest) = rest.strip_prefix(b"\n").unwrap().split_at(size.parse().unwrap());
        requests.push((tag.to_owned(), request.to_vec()));
        ammo = rest.strip_prefix(b"\n").expect("a line feed behind the request");
    }
    requests
}

/// What the script writes; none where there is no Python to run it.
fn made(arguments: &[&str]) -> Option<Vec<(String, Vec<u8>)>> {
    let Ok(output) = Command::new("python3").arg(AMMO).args(arguments).output() else {
        println!("SKIPPED: python3 is not here to make ammo");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(taken_apart(&output.stdout))
}

/// All requests of bench for the keys, with the key's index.
fn expected(value_bytes: usize, replicas: Option<Replicas>) -> BTreeMap<Vec<u8>, (&'static str, u64)> {
    let dataset = Dataset { keys: KEYS, value_bytes, seed: 7 };
    let head = head("n1:80", &[], None);
    let writer = RequestWriter { records: dataset.into(), replicas, head, template: None };
    let mut all = BTreeMap::new();
    for index in 0..KEYS {
        for (tag, action) in [("put", Action::Put), ("get", Action::Get)] {
            let mut request = Vec::new();
            writer.write(action, index, &mut request);
            all.insert(request, (tag, index));
        }
    }
    all
}

#[test]
fn ammo_is_framed_and_its_requests_are_those_of_bench() {
    let common = ["--keys", "50", "--seed", "7", "--host", "n1:80"];
    let Some(puts) = made(&[&["put", "--value-size", "33"], &common[..]].concat()) else { return };
    let all = expected(33, None);
    let keys: Vec<_> = puts.iter().map(|(tag, request)| (tag.as_str(), all[request])).collect();
    assert_eq!(keys, (0..KEYS).map(|index| ("put", ("put", index))).collect::<Vec<_>>());
    let mixed =
        [&["mixed", "--requests", "400", "--value-size", "8", "--replicas", "2/3"], &common[..]].concat();
    let mixed = made(&mixed).unwrap();
    let all = expected(8, Replicas::new(2, 3));
    assert_eq!(mixed.len(), 400);
    for (tag, request) in &mixed {
        assert_eq!(
            all.get(request).map(|found| found.0),
            Some(tag.as_str()),
            "{}",
            String::from_utf8_lossy(request)
        );
    }
    let gets = mixed.iter().filter(|(tag, _)| tag == "get").count();
    assert!((100..300).contains(&gets), "{gets}");
}
