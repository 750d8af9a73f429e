//! The nodes of a cluster, each by itself: a cut is ordered and read at every one.

use crate::error::BackupError;
use crate::exact::{Connect, digests_of, node_digests};
use crate::manifest::NodeDigests;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kvorum_client::{Client, Page};
use serde::Deserialize;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Where keys belong, as a node said.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) epoch: String,
    bits: u32,
    seed: u64,
    ack: usize,
    from: usize,
    nodes: Vec<Member>,
    /// For each partition the indexes of all nodes, the best first.
    lists: Vec<Vec<u16>>,
}

#[derive(Debug, Deserialize)]
struct Member {
    id: String,
    url: String,
}

#[derive(Deserialize)]
struct Token {
    hash: String,
    seed: String,
}

#[derive(Deserialize)]
struct TopologyPage {
    epoch: String,
    token: Token,
    partition_bits: u32,
    nodes: Vec<Member>,
    default_ack: usize,
    default_from: usize,
    ranks: usize,
    preference_lists: String,
}

impl Topology {
    /// Asks a node.
    pub(crate) async fn of(client: &Client) -> Result<Self, BackupError> {
        let failed = |source| BackupError::Cluster { attempt: "read the topology", source: Box::new(source) };
        let page = client.page("/v0/topology?ranks=65535").await.map_err(failed)?;
        if page.code != 200 {
            return Err(refusal(&page));
        }
        Self::parse(&page.body).map_err(|reason| BackupError::Answer { reason })
    }

    fn parse(body: &[u8]) -> Result<Self, String> {
        let page: TopologyPage =
            serde_json::from_slice(body).map_err(|error| format!("the topology cannot be read: {error}"))?;
        let bad = || "the topology contradicts itself".to_owned();
        if page.token.hash != "xxh3-64" || page.partition_bits > 16 || page.nodes.is_empty() {
            return Err(bad());
        }
        let seed = u64::from_str_radix(&page.token.seed, 16).map_err(|_| bad())?;
        let bytes = BASE64.decode(&page.preference_lists).map_err(|_| bad())?;
        let (words, rest) = bytes.as_chunks::<2>();
        let words: Vec<u16> = words.iter().map(|word| u16::from_be_bytes(*word)).collect();
        // While members come and go there are more of them than a list has.
        let is_whole = (page.default_from..=page.nodes.len()).contains(&page.ranks)
            && words.len() == page.ranks << page.partition_bits;
        if !rest.is_empty() || !is_whole || words.iter().any(|index| usize::from(*index) >= page.nodes.len())
        {
            return Err(bad());
        }
        let lists = words.chunks(page.ranks.max(1)).map(<[u16]>::to_vec).collect();
        let TopologyPage { epoch, partition_bits: bits, nodes, default_ack: ack, default_from: from, .. } =
            page;
        Ok(Self { epoch, bits, seed, ack, from, nodes, lists })
    }

    /// How many partitions there are.
    pub(crate) fn partitions(&self) -> usize {
        self.lists.len()
    }

    /// The partition of a key.
    pub(crate) fn partition_of(&self, key: &[u8]) -> usize {
        let token = xxh3_64_with_seed(key, self.seed);
        token.checked_shr(64 - self.bits).and_then(|bits| usize::try_from(bits).ok()).unwrap_or(0)
    }

    /// Checks that the nodes `sources` are a read quorum of every partition.
    pub(crate) fn check_coverage(&self, sources: &[u16], away: &[String]) -> Result<(), BackupError> {
        let is_covered = |list: &Vec<u16>| {
            list.iter().take(self.from).filter(|index| sources.contains(index)).count() >= self.ack
        };
        let partitions = self.lists.iter().filter(|list| !is_covered(list)).count();
        if partitions == 0 {
            return Ok(());
        }
        Err(BackupError::NoCoverage { partitions, away: away.to_vec() })
    }
}

/// The nodes that take part.
pub(crate) struct Nodes {
    members: BTreeMap<u16, Node>,
    /// The others, each with the reason.
    pub(crate) away: Vec<String>,
}

struct Node {
    id: String,
    url: String,
    client: Client,
    /// By partition; empty before the cut is closed, and in a cluster of one.
    digests: Vec<u64>,
}

/// What became of an order to all nodes.
pub(crate) struct Ordered {
    /// The nodes that carried it out, each with its state.
    pub(crate) done: BTreeMap<u16, CutPage>,
    /// The refusal of a node that answered.
    pub(crate) refused: Option<BackupError>,
}

/// The state of a node's cut.
#[derive(Debug, Deserialize)]
pub(crate) struct CutPage {
    reading: String,
    /// The epoch in which the node answered; none from an older release, whose members do not change.
    epoch: Option<String>,
    cut: Option<CutOfPage>,
}

impl CutPage {
    /// Whether the node was in `epoch` when it carried out the order.
    pub(crate) fn is_of(&self, epoch: &str) -> bool {
        self.epoch.as_ref().is_none_or(|of| of == epoch)
    }
}

#[derive(Debug, Deserialize)]
struct CutOfPage {
    upto: String,
    is_closed: bool,
    digests: Option<String>,
}

impl Nodes {
    /// Makes a client of each node; none is asked yet.
    pub(crate) fn connect(topology: &Topology, connect: Connect<'_>) -> Result<Self, BackupError> {
        let node = |(index, member): (u16, &Member)| {
            let client = connect(&member.url).map_err(|source| BackupError::Cluster {
                attempt: "reach a node",
                source: Box::new(source),
            })?;
            let (id, url) = (member.id.clone(), member.url.clone());
            Ok((index, Node { id, url, client, digests: Vec::new() }))
        };
        let members = (0_u16..).zip(&topology.nodes).map(node).collect::<Result<_, BackupError>>()?;
        Ok(Self { members, away: Vec::new() })
    }

    /// The indexes of the nodes that take part, ascending.
    pub(crate) fn sources(&self) -> Vec<u16> {
        self.members.keys().copied().collect()
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (u16, &Client)> {
        self.members.iter().map(|(index, node)| (*index, &node.client))
    }

    pub(crate) fn client(&self, index: u16) -> Option<&Client> {
        self.members.get(&index).map(|node| &node.client)
    }

    pub(crate) fn clients(&self) -> Vec<Client> {
        self.members.values().map(|node| node.client.clone()).collect()
    }

    /// Leaves a node out.
    pub(crate) fn lose(&mut self, index: u16) {
        if let Some(node) = self.members.remove(&index) {
            self.away.push(node.url);
        }
    }

    /// Leaves out all nodes but those in `done`.
    pub(crate) fn keep(&mut self, done: &BTreeMap<u16, CutPage>) {
        for index in self.sources() {
            if !done.contains_key(&index) {
                self.lose(index);
            }
        }
    }

    /// The readings of the nodes' clocks; nodes that do not answer are left out.
    pub(crate) async fn readings(&mut self) -> Result<Vec<u64>, BackupError> {
        let asked = self.ask(&self.sources(), "/admin/cut", false).await;
        if let Some(refused) = asked.refused {
            return Err(refused);
        }
        self.keep(&asked.done);
        let reading = |page: &CutPage| {
            let bad = |_| BackupError::Answer { reason: format!("{:?} is no timestamp", page.reading) };
            u64::from_str_radix(&page.reading, 16).map_err(bad)
        };
        asked.done.values().map(reading).collect()
    }

    /// Orders all nodes to take a step, at once.
    pub(crate) async fn order_all(&self, step: &str) -> Ordered {
        self.order(&self.sources(), step).await
    }

    /// Orders these nodes to take a step, at once.
    pub(crate) async fn order(&self, indexes: &[u16], step: &str) -> Ordered {
        self.ask(indexes, &format!("/admin/cut?{step}"), true).await
    }

    async fn ask(&self, indexes: &[u16], target: &str, is_order: bool) -> Ordered {
        let mut calls = JoinSet::new();
        for (index, client) in self.each().filter(|(index, _)| indexes.contains(index)) {
            let (client, target) = (client.clone(), target.to_owned());
            calls.spawn(async move {
                let answer = if is_order { client.order(&target).await } else { client.page(&target).await };
                (index, answer)
            });
        }
        let mut ordered = Ordered { done: BTreeMap::new(), refused: None };
        while let Some(joined) = calls.join_next().await {
            let Ok((index, Ok(page))) = joined else { continue };
            match (page.code, serde_json::from_slice(&page.body)) {
                (200, Ok(state)) => drop(ordered.done.insert(index, state)),
                // It starts or drains.
                (503, _) => {}
                _ => ordered.refused = Some(refusal(&page)),
            }
        }
        ordered
    }

    /// Whether a node still has the cut at `upto`.
    pub(crate) async fn still_has(&self, index: u16, upto: u64) -> bool {
        let Some(client) = self.client(index) else { return false };
        let Ok(page) = client.page("/admin/cut").await else { return false };
        let state: Option<CutPage> = serde_json::from_slice(&page.body).ok();
        let cut = state.and_then(|state| state.cut);
        cut.is_some_and(|cut| cut.is_closed && cut.upto == format!("{upto:016x}"))
    }

    /// Takes over the digests of closed cuts.
    pub(crate) fn take_digests(&mut self, closing: &Ordered) {
        for (index, node) in &mut self.members {
            let cut = closing.done.get(index).and_then(|state| state.cut.as_ref());
            node.digests = cut.and_then(|cut| cut.digests.as_deref()).map(digests_of).unwrap_or_default();
        }
    }

    /// The digests for a manifest.
    pub(crate) fn digests(&self) -> Vec<NodeDigests> {
        self.members.values().map(|node| node_digests(node.id.clone(), &node.digests)).collect()
    }

    /// By partition, whether each node that takes part held the same at the backup before.
    ///
    /// A node that took part then and does not now changes nothing: what it alone had was never acknowledged.
    pub(crate) fn unchanged_since(&self, before: &[NodeDigests], partitions: usize) -> Vec<bool> {
        let before: BTreeMap<&str, Vec<u64>> =
            before.iter().map(|known| (&*known.node, digests_of(&known.digests))).collect();
        let same = |partition: usize| {
            !self.members.is_empty()
                && self.members.values().all(|node| {
                    let now = node.digests.get(partition);
                    now.is_some() && before.get(&*node.id).and_then(|known| known.get(partition)) == now
                })
        };
        (0..partitions).map(same).collect()
    }
}

/// The refusal of a node, in its own words.
fn refusal(page: &Page) -> BackupError {
    let message = String::from_utf8_lossy(&page.body).trim().to_owned();
    BackupError::Refused { node: page.node.clone(), code: page.code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        // Three nodes, two partitions, all three in each list.
        let lists = BASE64.encode([0, 0, 0, 1, 0, 2, 0, 2, 0, 1, 0, 0]);
        let body = format!(
            "{{\"epoch\":\"e\",\"token\":{{\"hash\":\"xxh3-64\",\"seed\":\"0000000000000000\"}},\"partition_bits\":1,\"nodes\":[{}],\
             \"default_ack\":2,\"default_from\":3,\"ranks\":3,\"preference_lists\":\"{lists}\"}}",
            [1, 2, 3].map(|id| format!("{{\"id\":\"{id}\",\"url\":\"http://n{id}:1\"}}")).join(",")
        );
        Topology::parse(body.as_bytes()).unwrap()
    }

    /// While a node joins, the lists that are read have fewer ranks than there are nodes.
    #[test]
    fn lists_may_be_shorter_than_the_list_of_nodes() {
        let lists = BASE64.encode([0, 0, 0, 1]);
        let page = |ranks: usize, from: usize| {
            format!(
                "{{\"epoch\":\"e\",\"token\":{{\"hash\":\"xxh3-64\",\"seed\":\"0000000000000000\"}},\"partition_bits\":0,\"nodes\":[{}],\
                 \"default_ack\":2,\"default_from\":{from},\"ranks\":{ranks},\"preference_lists\":\"{lists}\"}}",
                [1, 2, 3].map(|id| format!("{{\"id\":\"{id}\",\"url\":\"http://n{id}:1\"}}")).join(",")
            )
        };
        assert_eq!(Topology::parse(page(2, 2).as_bytes()).unwrap().lists, [[0, 1]]);
        for (ranks, from) in [(3, 2), (1, 1), (2, 3)] {
            assert!(Topology::parse(page(ranks, from).as_bytes()).is_err(), "{ranks} {from}");
        }
    }

    /// A backup without a read quorum of some partition is refused.
    #[test]
    fn coverage_is_a_read_quorum_of_every_partition() {
        let topology = topology();
        assert_eq!(topology.partitions(), 2);
        for sources in [&[0, 1][..], &[1, 2], &[0, 1, 2]] {
            assert!(topology.check_coverage(sources, &[]).is_ok(), "{sources:?}");
        }
        for sources in [&[][..], &[0], &[2]] {
            let refused = topology.check_coverage(sources, &["http://n2:1".to_owned()]);
            assert!(matches!(refused, Err(BackupError::NoCoverage { partitions: 2, .. })), "{sources:?}");
        }
    }

    #[test]
    fn digests_come_back() {
        let digests = [0, 1, u64::MAX];
        assert_eq!(digests_of(&node_digests("a".to_owned(), &digests).digests), digests);
        assert_eq!(digests_of("?"), Vec::<u64>::new());
    }
}
