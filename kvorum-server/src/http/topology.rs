//! `/v0/topology`: where keys belong, for clients that send each request to a replica of its key.

use crate::cluster::Cluster;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvorum_core::token::TOKEN_SEED;
use kvorum_core::{Partition, Quorum};

/// The body of `/v0/topology` as JSON, with the first `ranks` nodes of every preference list.
///
/// `preference_lists` is base64 of two bytes per entry, big-endian: for each partition in turn, its first `ranks` nodes
/// as indexes into `nodes`. `default` is the quorum of a request that names none.
pub(super) fn render(cluster: &Cluster, default: Quorum, ranks: u16) -> String {
    let topology = cluster.topology();
    let bits = topology.partition_bits();
    let ranks = ranks.clamp(1, topology.node_count());
    let lists: Vec<u8> = Partition::all(bits)
        .flat_map(|partition| cluster.preference_list(partition).iter().take(usize::from(ranks)))
        .flat_map(|index| index.0.to_be_bytes())
        .collect();
    let nodes: Vec<_> = topology
        .members()
        .iter()
        .map(|member| {
            serde_json::json!({
                "id": member.id.to_string(),
                "url": member.url,
                "weight": member.weight,
                "zone": member.zone,
            })
        })
        .collect();
    let body = serde_json::json!({
        "epoch": epoch(cluster),
        "token": {"hash": "xxh3-64", "seed": format!("{TOKEN_SEED:016x}")},
        "partition_bits": bits,
        "nodes": nodes,
        "default_ack": default.ack(),
        "default_from": default.from(),
        "ranks": ranks,
        "preference_lists": BASE64.encode(lists),
    });
    format!("{body}\n")
}

/// The epoch of the topology; every other topology has another one.
pub(super) fn epoch(cluster: &Cluster) -> String {
    format!("{:016x}", cluster.topology().hash())
}
