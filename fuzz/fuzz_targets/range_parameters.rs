//! Goal: no query makes `parse_range` panic. An accepted query keeps the contract, and means the same in
//! another spelling.
//! Method: any text as the query; an accepted one is written again, escaped byte by byte, and must read the
//! same.

#![no_main]

use kvorum_server::http::target::{RangeQuery, Scope, parse_range};
use libfuzzer_sys::fuzz_target;
use std::fmt::Write as _;

fuzz_target!(|query: &str| {
    match parse_range(Some(query)) {
        Ok(parsed) => check(query, &parsed),
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?} is no line of text"),
    }
});

fn check(query: &str, parsed: &RangeQuery) {
    assert!(parsed.limit != Some(0), "{query:?}: a limit of nothing");
    let mut again = String::new();
    let mut write_key = |name: &str, key: &[u8]| {
        assert!((1..=1024).contains(&key.len()), "{query:?}: {name} has {} bytes", key.len());
        write!(again, "&{name}=").unwrap();
        key.iter().for_each(|byte| write!(again, "%{byte:02X}").unwrap());
    };
    write_key("start", parsed.start.as_ref());
    if let Some(end) = &parsed.end {
        write_key("end", end.as_ref());
    }
    if let Some(limit) = parsed.limit {
        write!(again, "&limit={limit}").unwrap();
    }
    again.push_str(if parsed.scope == Scope::Local { "&scope=local" } else { "&scope=cluster" });
    assert_eq!(parse_range(Some(&again)).as_ref(), Ok(parsed), "{query:?} against {again:?}");
}
