//! Messages of any content, encoded and decoded; and decoding of any bytes.

use super::values::AnyValue;
use crate::peer::fields::Field;
use crate::peer::frame::{Frame, Pieces};
use crate::peer::message::*;
use crate::peer::terms::*;
use crate::replica::Fetched;
use bytes::{Buf, Bytes};
use kvorum_core::{Key, NodeId, Record, Run, StoreSeen, UnixMillis, Value, Version};
use proptest::prelude::*;
use std::time::Duration;

fn payload(encode: impl FnOnce(&mut Pieces) -> Result<(), MessageError>) -> Bytes {
    let mut pieces = Pieces::default();
    encode(&mut pieces).unwrap();
    pieces.short.freeze()
}

fn frame(kind: u8, payload: Bytes) -> Frame {
    Frame { kind, id: 0, payload, passed_over: None }
}

/// Changes one byte, or cuts the end off, so that most test inputs are nearly valid.
fn changed(bytes: &Bytes, at: usize, to: u8, cut: bool) -> Bytes {
    let mut bytes = bytes.to_vec();
    let at = at % (bytes.len() + 1);
    if cut {
        bytes.truncate(at);
    } else if let Some(byte) = bytes.get_mut(at) {
        *byte = to;
    } else {
        bytes.push(to);
    }
    bytes.into()
}

proptest! {
    /// Every request, and the time left until its deadline, round-trips.
    #[test]
    fn requests_round_trip(request in Request::any_value(), left_ms: u32) {
        let left = Duration::from_millis(u64::from(left_ms));
        let payload = payload(|to| request.encode(left, to));
        prop_assert_eq!(Request::decode(frame(request.kind(), payload)), Ok((request, left)));
    }

    /// Every reply round-trips.
    #[test]
    fn replies_round_trip(reply in Reply::any_value()) {
        let payload = payload(|to| reply.encode(to));
        prop_assert_eq!(Reply::decode(frame(reply.kind(), payload), reply.kind()), Ok(reply));
    }

    /// Bytes that are nearly a message are refused, or are the only encoding of the message that they decode to.
    #[test]
    fn near_messages_are_refused_or_exact(
        request in Request::any_value(),
        reply in Reply::any_value(),
        at in 0..200usize,
        to: u8,
        small: bool,
        cut: bool,
    ) {
        let to = if small { to % 8 } else { to };
        let bytes = changed(&payload(|to| request.encode(Duration::ZERO, to)), at, to, cut);
        if let Ok((read, left)) = Request::decode(frame(request.kind(), bytes.clone())) {
            prop_assert_eq!(payload(|to| read.encode(left, to)), bytes);
        }
        let bytes = changed(&payload(|to| reply.encode(to)), at, to, cut);
        if let Ok(read) = Reply::decode(frame(reply.kind(), bytes.clone()), reply.kind()) {
            // Reasons of later releases are read as unknown.
            let is_newer = matches!(&read, Reply::Refused { code: Refusal::Unknown, .. });
            prop_assert!(is_newer || payload(|to| read.encode(to)) == bytes);
        }
    }

    /// Any bytes are refused, or are the only encoding of a message.
    #[test]
    fn any_bytes_are_refused_or_exact(kind: u8, bytes in prop::collection::vec(0..6u8, 0..80)) {
        let bytes = Bytes::from(bytes);
        if let Ok((read, left)) = Request::decode(frame(kind, bytes.clone())) {
            prop_assert_eq!(payload(|to| read.encode(left, to)), bytes.clone());
        }
        let _ = Reply::decode(frame(kind, bytes), kind);
    }
}

/// The writer refuses what no peer would read; text is cut between characters.
#[test]
fn bounds_are_kept_when_writing() {
    let request = |request: Request| request.encode(Duration::ZERO, &mut Pieces::default());
    let key = Key::new("k").unwrap();
    let registry = vec![StoreSeen { node: NodeId(1), store: 1, run: Run::default() }; REGISTRY_LEN_MAX + 1];
    let too_many = MessageError::TooMany { count: REGISTRY_LEN_MAX + 1, count_max: REGISTRY_LEN_MAX };
    assert_eq!(request(Request::Ping { wall: UnixMillis(0), cluster_id: None, registry }), Err(too_many));
    let scan = |sources| Request::ScanOpen { start: key.clone(), end: None, bytes: 1, sources, from: 1 };
    assert_eq!(request(scan(vec![1, 2])), Ok(()));
    assert_eq!(request(scan(vec![1, 1])), Err(MessageError::Unsorted));
    let record =
        Record { version: Version::ZERO, from: 0, expires: None, value: Value::Tombstone, conditional: None };
    let apply = Request::Apply { key: key.clone(), record, kind: ApplyKind::Write };
    assert_eq!(request(apply), Err(MessageError::Contradiction));
    let digests = Reply::DigestList(vec![0; 1 << 16]);
    assert!(matches!(digests.encode(&mut Pieces::default()), Err(MessageError::TooMany { .. })));
    let detail = format!("{}é", "x".repeat(DETAIL_BYTES_MAX - 1));
    let refused = Reply::Refused { code: Refusal::Failed, detail };
    let payload = payload(|to| refused.encode(to));
    assert_eq!(payload.len(), 3 + DETAIL_BYTES_MAX - 1);
    assert!(Reply::decode(frame(refused.kind(), payload), Reply::Done.kind()).is_ok());
}

/// Goal: a forged count reserves no memory: a list cannot be longer than the bytes behind its count allow. Method: the
/// highest counts before one byte less than their items need at least, which is refused before any item is read.
#[test]
fn forged_counts_are_refused() {
    fn check<T: Field>(item_bytes_min: usize, put_count: impl Fn(&mut Vec<u8>, u32)) {
        assert_eq!(T::BYTES_MIN, item_bytes_min);
        let count = u32::try_from(T::LIST_LEN_MAX.min(10_000)).unwrap();
        let mut bytes = Vec::new();
        put_count(&mut bytes, count);
        bytes.resize(bytes.len() + item_bytes_min * count as usize - 1, 0xff);
        let mut bytes = Bytes::from(bytes);
        let behind = item_bytes_min * count as usize - 1;
        assert!(matches!(Vec::<T>::get(&mut bytes), Err(MessageError::Truncated)));
        assert_eq!(bytes.len(), behind);
    }
    let short = |bytes: &mut Vec<u8>, count: u32| bytes.extend(u16::try_from(count).unwrap().to_be_bytes());
    let long = |bytes: &mut Vec<u8>, count: u32| bytes.extend(count.to_be_bytes());
    check::<u16>(2, short);
    check::<u64>(8, short);
    check::<Timestamp>(8, short);
    check::<(u16, u64)>(10, short);
    check::<(u16, Timestamp)>(10, short);
    check::<Key>(3, short);
    check::<Fetched>(1, short);
    check::<StoreSeen>(40, short);
    check::<ScanRow>(22, long);
    check::<VersionRow>(22, long);
    check::<StretchRow>(30, long);
    let mut registry = Bytes::from_static(&[0x04, 0x01]);
    let too_many = MessageError::TooMany { count: REGISTRY_LEN_MAX + 1, count_max: REGISTRY_LEN_MAX };
    assert_eq!(Vec::<StoreSeen>::get(&mut registry), Err(too_many));
}

/// A deadline below a millisecond is not sent as zero.
#[test]
fn deadlines_are_rounded_up() {
    let sent = |left| payload(|to| Request::TakeHints.encode(left, to)).get_u32();
    assert_eq!(sent(Duration::ZERO), 0);
    assert_eq!(sent(Duration::from_nanos(1)), 1);
    assert_eq!(sent(Duration::from_micros(1001)), 2);
    assert_eq!(sent(Duration::MAX), u32::MAX);
}

/// A value is left out when it is longer than was wanted, never otherwise.
#[test]
fn long_values_are_left_out() {
    let value = Value::Present(Bytes::from_static(b"four"));
    let record = Record { version: Version::ZERO, from: 1, expires: None, value, conditional: None };
    assert_eq!(Held::new(record.clone(), 4), Held::Whole(record.clone()));
    let header = Held::HeaderOnly {
        version: Version::ZERO,
        from: 1,
        expires: None,
        conditional: None,
        value_bytes: 4,
    };
    assert_eq!(Held::new(record.clone(), 3), header);
    let tombstone = Record { value: Value::Tombstone, ..record };
    assert_eq!(Held::new(tombstone.clone(), 0), Held::Whole(tombstone));
}
