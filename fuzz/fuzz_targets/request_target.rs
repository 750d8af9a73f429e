//! Goal: no query makes `parse_entity` panic. An accepted query keeps the contract, and means the same in
//! another spelling.
//! Method: any text as the query; an accepted one is written again, escaped byte by byte, and must read the
//! same.

#![no_main]

use kvorum_server::http::target::{EditQuery, EntityQuery, parse_entity};
use libfuzzer_sys::fuzz_target;
use std::fmt::Write as _;

fuzz_target!(|query: &str| {
    match parse_entity(Some(query)) {
        Ok(parsed) => check(query, &parsed),
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?} is no line of text"),
    }
});

fn check(query: &str, parsed: &EntityQuery) {
    let key: &[u8] = parsed.key.as_ref();
    assert!((1..=1024).contains(&key.len()), "{query:?}: a key of {} bytes", key.len());
    assert!(parsed.ttl_millis != Some(0), "{query:?}: a TTL of nothing");
    let mut again = String::from("id=");
    key.iter().for_each(|byte| write!(again, "%{byte:02X}").unwrap());
    if let Some(ack) = parsed.replicas.ack {
        write!(again, "&ack={ack}").unwrap();
    }
    if let Some(from) = parsed.replicas.from {
        write!(again, "&from={from}").unwrap();
    }
    if let Some(millis) = parsed.ttl_millis {
        write!(again, "&ttl={millis}ms").unwrap();
    }
    match parsed.edit {
        Some(EditQuery::Add(addend)) => write!(again, "&add={addend}").unwrap(),
        Some(EditQuery::Append) => again.push_str("&append"),
        None => {}
    }
    assert_eq!(parse_entity(Some(&again)).as_ref(), Ok(parsed), "{query:?} against {again:?}");
}
