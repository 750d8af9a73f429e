//! `/v0/topology`: where keys belong, for clients that send each request to a replica of its key.

use crate::cluster::Cluster;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvorum_core::agreement::Epoch;
use kvorum_core::token::TOKEN_SEED;
use kvorum_core::{Partition, Quorum, Slot};

/// The body of `/v0/topology` as JSON, with the first `ranks` nodes of every preference list.
///
/// `preference_lists` is base64 of two bytes per entry, big-endian: for each partition in turn, its first `ranks` nodes
/// as indexes into `nodes`. `default` is the quorum of a request that names none.
pub(super) fn render(cluster: &Cluster, default: Quorum, ranks: u16) -> String {
    let view = cluster.view();
    let bits = cluster.partition_bits();
    let ranks = ranks.clamp(1, view.node_count());
    // Clients index the list of nodes, which has no gaps where a member has gone.
    let place =
        |slot: &Slot| view.slots().binary_search(slot).ok().and_then(|place| u16::try_from(place).ok());
    let lists: Vec<u8> = Partition::all(bits)
        .flat_map(|partition| view.preference_list(partition).iter().take(usize::from(ranks)))
        .flat_map(|slot| place(slot).unwrap_or_default().to_be_bytes())
        .collect();
    let mut members: Vec<_> = view.configuration().members.iter().collect();
    members.sort_by_key(|member| member.slot);
    let nodes: Vec<_> = members
        .into_iter()
        .map(|member| {
            serde_json::json!({
                "id": member.id.to_string(),
                "url": cluster.url_of(member.slot),
                "weight": member.weight,
                "zone": member.zone,
            })
        })
        .collect();
    let body = serde_json::json!({
        "epoch": epoch(cluster),
        "configuration_epoch": cluster.epoch().0,
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

/// The epoch of the topology, as clients compare it: another one for each configuration. In epoch 0 it names the list of nodes.
pub(super) fn epoch(cluster: &Cluster) -> String {
    if cluster.epoch() == Epoch(0) {
        return format!("{:016x}", cluster.view().topology().hash());
    }
    let mut text = cluster.configuration().hash().to_string();
    text.truncate(16);
    text
}
