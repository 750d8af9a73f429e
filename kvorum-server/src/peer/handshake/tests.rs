//! Headers, versions, differences and texts of the handshake.

#![allow(clippy::similar_names, reason = "caller and called are the words of the protocol")]

use super::*;
use crate::peer::{PROTOCOL, PROTOCOL_OLDEST};

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        protocols: Some(Protocols::SPOKEN),
        cluster: "blue".to_owned(),
        cluster_id: ClusterId::new(0xc1),
        node: NodeId(0xa),
        topology: 0xbeef,
        store: 7,
        run: Run { number: 3, nonce: 0xab },
        members: vec!["http://a:1".to_owned(), "http://b:1".to_owned()],
        clock: UnixMillis(1_700_000_000_000),
        place: PlaceSettings::default(),
        remembers: Some((9, Run { number: 2, nonce: 0xcd })),
    }
}

fn parse(headers: &[(&'static str, String)]) -> Result<Hello, HandshakeError> {
    Hello::parse(|name| {
        headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    })
}

/// Headers round-trip; each is required, and each has one form.
#[test]
fn headers_round_trip() {
    let headers = hello().headers();
    assert_eq!(parse(&headers), Ok(hello()));
    for at in 0..headers.len() {
        let mut fewer = headers.clone();
        let (header, _) = fewer.remove(at);
        let expect = match header {
            PROTOCOLS_HEADER => Ok(Hello { protocols: None, ..hello() }),
            REMEMBERS_HEADER => Ok(Hello { remembers: None, ..hello() }),
            header => Err(HandshakeError::Missing { header }),
        };
        assert_eq!(parse(&fewer), expect);
        for bad in ["+1", "-1", "1 2", "é", &"1".repeat(200)] {
            let mut changed = headers.clone();
            changed[at].1 = bad.to_owned();
            let is_a_name = header == CLUSTER_HEADER && bad.len() == 2 && bad.is_ascii()
                || header == MEMBERS_HEADER && !bad.contains(' ') && bad.is_ascii();
            let is_malformed = matches!(parse(&changed), Err(HandshakeError::Malformed { .. }));
            assert_eq!(is_malformed, !is_a_name, "{header} {bad}");
        }
    }
}

/// Another version of the protocol is reported as such, whatever its other headers are.
#[test]
fn protocol_is_judged_first() {
    let (ours, theirs) = (Protocols::SPOKEN, Protocols::new(PROTOCOL + 1, PROTOCOL + 2).unwrap());
    let newer = [("Kvorum-Protocol", theirs.oldest().to_string())];
    let only = Protocols::only(theirs.oldest());
    assert_eq!(parse(&newer), Err(HandshakeError::Protocol { ours, theirs: only }));
    let newer = [newer[0].clone(), ("Kvorum-Protocols", theirs.header())];
    assert_eq!(parse(&newer), Err(HandshakeError::Protocol { ours, theirs }));
}

/// A range that is absurd, or that does not have the version before it, is refused by name.
#[test]
fn forged_ranges_are_refused() {
    for range in ["7-6", "0-7", "1-70000", "1-999", "7", "x-y", "9-10", "5-6"] {
        let mut headers = hello().headers();
        headers[1].1 = range.to_owned();
        let error = parse(&headers).unwrap_err();
        assert!(matches!(error, HandshakeError::Malformed { header: PROTOCOLS_HEADER, .. }), "{error}");
    }
}

/// The hello of a node that speaks `range`, as a caller.
fn speaking(range: Protocols, node: u64) -> Hello {
    Hello {
        protocol: range.oldest(),
        protocols: Some(range),
        node: NodeId(node),
        store: node.into(),
        ..hello()
    }
}

/// A whole handshake over headers: the version, as both sides see it.
fn shake(caller: &Hello, called: &Hello) -> Result<u16, HandshakeError> {
    let read = |hello: &Hello, by: &Hello| {
        let headers = hello.headers();
        let value = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
        Hello::parse_as(by.spoken(), value)
    };
    let heard = read(caller, called)?;
    called.check(&heard)?;
    let answer = called.clone().in_answer_to(&heard)?;
    let heard_back = read(&answer, caller)?;
    caller.check_taken(&heard_back)?;
    caller.check(&heard_back)?;
    assert_eq!(called.common_protocol(&heard), Ok(heard_back.protocol));
    Ok(heard_back.protocol)
}

/// Nodes of two releases take the highest version that both know, in both directions: this release, one after it that
/// keeps this version, one that does not, and one before it that offers no range.
#[test]
fn two_releases_take_the_highest_common_version() {
    let range = |oldest, newest| Protocols::new(oldest, newest).unwrap();
    let (this, next) = (Protocols::SPOKEN, range(PROTOCOL, PROTOCOL + 1));
    let check = |one: &Hello, other: &Hello, expect: Option<u16>| {
        for (caller, called) in [(one, other), (other, one)] {
            let taken = shake(caller, called);
            assert_eq!(
                taken.clone().ok(),
                expect,
                "{:?} calls {:?}: {taken:?}",
                caller.protocols,
                called.protocols
            );
        }
    };
    check(&speaking(this, 1), &speaking(this, 2), Some(PROTOCOL));
    check(&speaking(this, 1), &speaking(next, 2), Some(PROTOCOL));
    check(&speaking(next, 1), &speaking(next, 2), Some(PROTOCOL + 1));
    check(&speaking(range(8, 20), 1), &speaking(range(12, 30), 2), Some(20));
    check(&speaking(this, 1), &speaking(range(PROTOCOL + 1, PROTOCOL + 2), 2), None);
    // A release that offers one version sends no range, and does not read one.
    let before = Hello { protocols: None, ..speaking(this, 2) };
    let later = range(PROTOCOL_OLDEST, PROTOCOL + 1);
    check(&speaking(this, 1), &before, Some(PROTOCOL_OLDEST));
    check(&speaking(later, 1), &before, Some(PROTOCOL_OLDEST));
    check(&speaking(next, 1), &before, None);
    check(&before, &Hello { node: NodeId(1), store: 1, ..before.clone() }, Some(PROTOCOL_OLDEST));
    let answer = speaking(later, 1).in_answer_to(&before).unwrap();
    assert_eq!(answer.headers()[0], ("Kvorum-Protocol", PROTOCOL_OLDEST.to_string()), "what it expects");
}

/// A called node that takes a lower version than both speak is refused: somebody may want an older one to be spoken.
#[test]
fn a_lower_version_is_not_taken() {
    let next = Protocols::new(PROTOCOL, PROTOCOL + 1).unwrap();
    let (caller, called) = (speaking(next, 1), speaking(next, 2));
    let taken = HandshakeError::ProtocolTaken { expected: PROTOCOL + 1, found: PROTOCOL };
    assert_eq!(caller.check_taken(&called), Err(taken));
    let text = caller.check_taken(&called).unwrap_err().to_string();
    assert!(text.contains(&format!("both speak {}", PROTOCOL + 1)), "{text}");
}

/// Each difference is refused in a sentence with both values.
#[test]
fn differences_are_named() {
    let other = Hello { node: NodeId(0xb), store: 8, ..hello() };
    assert_eq!(hello().check(&other), Ok(()));
    let check = |theirs: Hello, shown: [&str; 2]| {
        let text = hello().check(&theirs).unwrap_err().to_string();
        assert!(shown.iter().all(|part| text.contains(part)) && !text.contains('\n'), "{text}");
    };
    let (ours, theirs) = (format!("version {}", Protocols::SPOKEN), format!("{} at", PROTOCOL + 1));
    check(Hello { protocol: PROTOCOL + 1, protocols: None, ..other.clone() }, [&ours, &theirs]);
    check(Hello { cluster: "red".to_owned(), ..other.clone() }, ["\"blue\" at node", "\"red\" at node"]);
    let another = ClusterId::new(0xc2);
    check(
        Hello { cluster_id: another, ..other.clone() },
        ["000000c1 at node 000000000000000a", "000000c2 at node"],
    );
    assert_eq!(hello().check(&Hello { cluster_id: None, ..other.clone() }), Ok(()), "adopted");
    check(Hello { topology: 1, ..other.clone() }, ["000000000000beef", "0000000000000001"]);
    let members = ["http://a:1", "http://c:1", "http://d:1", "http://e:1", "http://f:1"];
    let members: Vec<String> = members.iter().map(|url| (*url).to_owned()).collect();
    check(
        Hello { topology: 1, members, ..other.clone() },
        [
            "only node 000000000000000a lists http://b:1",
            "lists http://c:1, http://d:1, http://e:1 and 1 more",
        ],
    );
    check(Hello { topology: 1, members: Vec::new(), ..other.clone() }, ["beef at", "0001 at"]);
    check(Hello { node: NodeId(0xa), ..other.clone() }, ["both ends", "000000000000000a"]);
    check(Hello { store: 7, ..other }, ["000000000000000b", "00000000000000000000000000000007"]);
}

/// No configured text can break out of its header.
#[test]
fn requests_are_one_head() {
    let text = request("host:1", &hello(), None).unwrap();
    assert!(text.starts_with("GET /v0/peer HTTP/1.1\r\nHost: host:1\r\nConnection: Upgrade\r\n"), "{text}");
    assert!(text.ends_with("09-2-00000000000000cd\r\n\r\n"), "{text}");
    let cluster = "a\r\nX: y".to_owned();
    assert!(matches!(
        request("host:1", &Hello { cluster, ..hello() }, None),
        Err(ConnectError::Unsendable { .. })
    ));
    assert!(request("", &hello(), None).is_err());
}

/// Nodes are named by their URLs if those are known. A list that does not fit into a header is left out, and its
/// hash stands for it.
#[test]
fn members_are_named() {
    let url = "http://b:1".to_owned();
    assert_eq!(hello().name_of(NodeId::of_url(&url)), url);
    assert_eq!(hello().name_of(NodeId(9)), "node 0000000000000009");
    let long: Vec<String> = (0..500).map(|node| format!("http://node-{node}:8080")).collect();
    for unsendable in [long, vec!["http://a,b:1".to_owned()], vec!["http://\u{e9}:1".to_owned()], Vec::new()]
    {
        let headers = Hello { members: unsendable, ..hello() }.headers();
        assert_eq!(parse(&headers).unwrap().members, Vec::<String>::new());
    }
}

/// Text from the other side is shown as one short line.
#[test]
fn lines_are_plain() {
    assert_eq!(plain_line(b"no\x1b[31m way\r\nsecond"), "no[31m way");
    assert_eq!(plain_line(&[b'x'; 1000]).len(), SHOWN_LEN_MAX);
    assert_eq!(plain_line(b"\xff"), "\u{fffd}");
}
