//! The placement of keys, as a node describes it at `/v0/topology`.
//!
//! | member | is |
//! | --- | --- |
//! | `epoch` | what names this topology |
//! | `token` | `hash`, always `xxh3-64`, and `seed`, 16 hexadecimal digits |
//! | `partition_bits` | 1 to 16: so many first bits of a key's token are its partition |
//! | `nodes` | objects, each with its `url` |
//! | `default_from` | FROM of a request that names none, 1 to the number of nodes; not said by earlier releases |
//! | `ranks` | 1 to the number of nodes: how long the lists below are |
//! | `preference_lists` | base64; for each partition in turn, `ranks` places in `nodes`, two bytes each, big-endian |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The most bits of a partition.
const PARTITION_BITS_MAX: u32 = 16;

/// A topology; its places are all within its lists.
#[derive(Debug)]
pub(crate) struct Topology {
    epoch: String,
    seed: u64,
    partition_bits: u32,
    ranks: usize,
    default_from: Option<u32>,
    urls: Vec<String>,
    /// For each partition in turn, `ranks` places in `urls`.
    places: Vec<u16>,
}

#[derive(Deserialize)]
struct Body {
    epoch: String,
    token: TokenRule,
    partition_bits: u32,
    nodes: Vec<Member>,
    ranks: usize,
    default_from: Option<u32>,
    preference_lists: String,
}

#[derive(Deserialize)]
struct TokenRule {
    hash: String,
    seed: String,
}

#[derive(Deserialize)]
struct Member {
    url: String,
}

impl Topology {
    /// Reads and checks a description; the error is a text.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| format!("not a topology: {error}"))?;
        if body.token.hash != "xxh3-64" {
            return Err(format!("tokens are made by {:?}, which is not known here", body.token.hash));
        }
        let seed = u64::from_str_radix(&body.token.seed, 16).map_err(|error| format!("seed: {error}"))?;
        if !(1..=PARTITION_BITS_MAX).contains(&body.partition_bits)
            || !(1..=body.nodes.len()).contains(&body.ranks)
        {
            return Err("partition_bits or ranks is out of range".to_owned());
        }
        if body.default_from.is_some_and(|from| !(1..=body.nodes.len()).contains(&(from as usize))) {
            return Err("default_from is out of range".to_owned());
        }
        let lists =
            BASE64.decode(body.preference_lists).map_err(|error| format!("preference_lists: {error}"))?;
        let (pairs, rest) = lists.as_chunks();
        let places: Vec<u16> = pairs.iter().map(|&pair| u16::from_be_bytes(pair)).collect();
        if !rest.is_empty() || places.len() != body.ranks << body.partition_bits {
            return Err("preference_lists has another length than its ranks say".to_owned());
        }
        if places.iter().any(|&place| usize::from(place) >= body.nodes.len()) {
            return Err("preference_lists names a node that is not there".to_owned());
        }
        Ok(Self {
            epoch: body.epoch,
            seed,
            partition_bits: body.partition_bits,
            ranks: body.ranks,
            default_from: body.default_from,
            urls: body.nodes.into_iter().map(|member| member.url).collect(),
            places,
        })
    }

    /// The epoch: another topology has another one.
    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// FROM of a request that names none, as far as the node says.
    pub(crate) fn default_from(&self) -> Option<u32> {
        self.default_from
    }

    /// The URLs of all nodes.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The places in [`Topology::urls`] of the nodes of the key's preference list, as far as they are known.
    pub(crate) fn places(&self, key: &[u8]) -> &[u16] {
        let token = xxh3_64_with_seed(key, self.seed);
        // At most 16 bits are left.
        let partition = usize::try_from(token >> (u64::BITS - self.partition_bits)).unwrap_or_default();
        let begin = partition * self.ranks;
        self.places.get(begin..begin + self.ranks).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four partitions of three nodes, two ranks each.
    fn body(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
        let lists = [0u16, 1, 1, 2, 2, 0, 0, 2].map(u16::to_be_bytes).concat();
        let mut body = serde_json::json!({
            "epoch": "e1",
            "token": {"hash": "xxh3-64", "seed": "6b766f72756d0001"},
            "partition_bits": 2,
            "nodes": [{"url": "http://a:1"}, {"url": "http://b:1", "zone": null}, {"url": "http://c:1"}],
            "ranks": 2,
            "preference_lists": BASE64.encode(lists),
            "more": {},
        });
        change(&mut body);
        body.to_string().into_bytes()
    }

    #[test]
    fn places_keys_as_nodes_do() {
        let topology = Topology::parse(&body(|_| {})).unwrap();
        assert_eq!((topology.epoch(), topology.urls().len()), ("e1", 3));
        // Tokens of the node's own table: 0xde52…, 0x239c…, 0x5f88….
        assert_eq!(topology.places(b""), [0, 2]);
        assert_eq!(topology.places(b"a"), [0, 1]);
        assert_eq!(topology.places(b"key-000123"), [1, 2]);
    }

    /// A node's default is taken as it says; nodes of earlier releases do not say it.
    #[test]
    fn default_is_the_nodes() {
        assert_eq!(Topology::parse(&body(|_| {})).unwrap().default_from(), None);
        for from in [1, 3] {
            let said = body(|body| body["default_from"] = from.into());
            assert_eq!(Topology::parse(&said).unwrap().default_from(), Some(from));
        }
    }

    #[test]
    fn refuses_what_would_lead_astray() {
        type Change = fn(&mut serde_json::Value);
        let changes: [Change; 12] = [
            |body| body["token"]["hash"] = "md5".into(),
            |body| body["token"]["seed"] = "no".into(),
            |body| body["partition_bits"] = 0.into(),
            |body| body["partition_bits"] = 17.into(),
            |body| body["partition_bits"] = 3.into(),
            |body| body["default_from"] = 0.into(),
            |body| body["default_from"] = 4.into(),
            |body| body["default_from"] = "3".into(),
            |body| body["ranks"] = 0.into(),
            |body| body["ranks"] = 4.into(),
            |body| body["preference_lists"] = "AAA".into(),
            |body| body["nodes"] = serde_json::json!([{"url": "http://a:1"}, {"url": "http://b:1"}]),
        ];
        for change in changes {
            let body = body(change);
            assert!(Topology::parse(&body).is_err(), "{}", String::from_utf8_lossy(&body));
        }
        assert!(Topology::parse(b"").is_err());
    }
}
