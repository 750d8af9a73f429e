//! The keys of a plan, and which nodes hold them.

use super::{KeyPlan, PARTITION_BITS};
use crate::fault::FaultKind;
use crate::history::AckFrom;
use crate::net::url_of;
use crate::seed::Stream;
use bytes::Bytes;
use kvorum_core::{Placement, Token, Topology};
use std::collections::BTreeSet;

/// The number of partitions that keys share where they are to be close together. Few, but no more than eight
/// keys in each, so that one tombstone is enough for tombstone GC to process the partition.
const CROWDED: u64 = 16;
/// How many keys a plan has that one node holds none of.
const WITHOUT_LEN: usize = 8;

pub(super) fn keys(
    stream: &mut Stream,
    nodes: u16,
    kinds: &BTreeSet<FaultKind>,
    is_contended: bool,
) -> Vec<KeyPlan> {
    let majority = AckFrom::new(nodes / 2 + 1, nodes);
    // All quorums of these overlap, also those with different `ack`: a register that must stay linearizable.
    let overlapping = |from: u16| (from / 2 + 1..=from).map(|ack| AckFrom::new(ack, from)).collect();
    let few = nodes.min(3);
    let styles: [(u64, Vec<AckFrom>); 9] = [
        (12, Vec::new()),
        (1, vec![AckFrom::new(1, 1)]),
        (1, vec![AckFrom::new(1, nodes)]),
        (1, vec![AckFrom::new(nodes, nodes)]),
        (2, vec![majority]),
        // Written to all, read from one; and the other way round.
        (1, vec![AckFrom::new(1, nodes), AckFrom::new(nodes, nodes)]),
        // One key with versions of different `from`.
        (1, (1..=nodes).map(|from| AckFrom::new(from / 2 + 1, from)).collect()),
        (4, overlapping(few)),
        (2, overlapping(nodes)),
    ];
    // Written to all and read from the first alone: such a reader can see a record that only one replica
    // holds.
    let read_from_first = (vec![AckFrom::new(few, few)], vec![AckFrom::new(1, 1)]);
    let is_plain = stream.percent(40) && !is_contended;
    // Requests that any node can serve alone.
    let any_one = vec![AckFrom::new(1, nodes)];
    let serves_alone = |index: u64| kinds.contains(&FaultKind::RestartAlone) && index.is_multiple_of(3);
    // Records on all replicas: a read notices as soon as one replica has lost its copy.
    let (all, each) = (vec![AckFrom::new(few, few)], vec![AckFrom::new(1, few)]);
    let is_on_all = |index: u64| kinds.contains(&FaultKind::WrongClock) && index % 3 == 1;
    // A node with an outdated list may write to the wrong node if it alone must confirm; if others must
    // confirm too, it cannot.
    let ack_min = if kinds.contains(&FaultKind::StaleTopology) { 2 } else { 1 };
    let (hot, cold) = if is_contended { (3, 0) } else { (6, 120) };
    let (hot, cold) = (stream.between(1, hot), stream.between(0, cold));
    (0..hot + cold)
        .map(|index| {
            let styles = if is_contended { &styles[7..] } else { &styles[..] };
            let replicas = stream.weighted(styles).cloned().unwrap_or_default();
            let (replicas, reads) = if stream.percent(if is_contended { 20 } else { 5 }) {
                read_from_first.clone()
            } else {
                (replicas, Vec::new())
            };
            let is_safe = |replicas: &AckFrom| replicas.ack >= ack_min;
            let (replicas, reads) = if is_plain { Default::default() } else { (replicas, reads) };
            let (replicas, reads) = match index {
                _ if is_contended => (replicas, reads),
                index if serves_alone(index) => (any_one.clone(), Vec::new()),
                index if is_on_all(index) => (all.clone(), each.clone()),
                _ => (replicas, reads),
            };
            let replicas = replicas.into_iter().filter(is_safe).collect();
            let weight = if index < hot { 60 } else { 1 };
            let key = key(stream, index);
            let key = if kinds.contains(&FaultKind::StaggeredRestore) { crowded(&key, index) } else { key };
            KeyPlan { key, weight, replicas, reads }
        })
        .collect()
}

/// The bytes of key `index`: mostly plain, some with bytes that careless code would mishandle.
pub(super) fn key(stream: &mut Stream, index: u64) -> Bytes {
    let odd: [&[u8]; 5] = [b"\x00", b"\xff\xfe", b"a+b %&=", b"\xc3\xa4/../", b"\n"];
    let mut key = format!("k{index:03}").into_bytes();
    if stream.percent(10) {
        key.extend_from_slice(stream.pick(&odd).copied().unwrap_or_default());
    }
    Bytes::from(key)
}

/// A key like `key` in one of few partitions, so that keys that stay share partitions with keys that are
/// deleted and purged.
fn crowded(key: &[u8], index: u64) -> Bytes {
    let longer = (0u32..).map(|number| Bytes::from([key, format!("-{number}").as_bytes()].concat()));
    let mut crowded =
        longer.filter(|key| u64::from(Token::of(key).partition(PARTITION_BITS).0) == index % CROWDED);
    crowded.next().unwrap_or_default()
}

/// A few keys with the default quorum, which reads of any two replicas judge.
pub(super) fn late_keys(stream: &mut Stream) -> Vec<KeyPlan> {
    (0..stream.between(1, 6))
        .map(|index| KeyPlan { key: key(stream, index), weight: 1, replicas: Vec::new(), reads: Vec::new() })
        .collect()
}

/// Keys of a cluster of `nodes` that the node `without` comes last for: with three replicas on four nodes, it holds none of them.
pub(super) fn keys_without(stream: &mut Stream, nodes: u16, without: u16) -> Vec<KeyPlan> {
    let list = nodes_by_key(nodes);
    let first = stream.between(0, 1000);
    let all = (first..).map(|number| Bytes::from(format!("k{number:05}")));
    let plan = |key| KeyPlan { key, weight: 1, replicas: Vec::new(), reads: Vec::new() };
    all.filter(|key| list(key).last() == Some(&without)).take(WITHOUT_LEN).map(plan).collect()
}

/// Lists the nodes of a cluster of `nodes` in the order in which they hold a key: the first three have its replicas.
pub fn nodes_by_key(nodes: u16) -> impl Fn(&[u8]) -> Vec<u16> {
    let placed =
        Topology::of_urls((0..nodes).map(url_of)).map(|topology| (Placement::initial(&topology), topology));
    move |key| {
        let Ok((placement, topology)) = &placed else { return Vec::new() };
        let list = placement.preference_list(Token::of(key).partition(topology.partition_bits()));
        let urls = list.iter().filter_map(|index| topology.member(*index)).map(|member| &member.url);
        urls.filter_map(|url| (0..nodes).find(|node| url_of(*node) == *url)).collect()
    }
}
