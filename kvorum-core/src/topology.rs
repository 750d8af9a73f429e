//! The topology: the agreed set of nodes, in one order on all of them.
//!
//! It says which nodes belong, not which ones answer; [`crate::placement`] decides from it which node holds
//! what.

use crate::token::{PARTITION_BITS_DEFAULT, PARTITION_BITS_MAX};
use crate::version::{NodeId, without_tls};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// The most nodes of a cluster: every node keeps every partition's list of all nodes, 8 MiB at this many.
pub const NODES_MAX: usize = 1024;

/// The version of the byte form that [`Topology::hash`] is taken over.
const HASH_FORM: u8 = 1;

/// One node as the cluster's configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's identity.
    pub id: NodeId,
    /// The URL at which other nodes reach it.
    pub url: String,
    /// Its share of the data in proportion to the other weights, at least 1.
    pub weight: u32,
    /// The failure domain: nodes of one zone may fail together. Copies are spread over zones before a zone
    /// gets a second one.
    pub zone: String,
}

/// A node's place among the members of one topology. It means nothing in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

/// The set of nodes that the cluster agreed on, ordered by id whatever the order it was given in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    members: Vec<Member>,
    partition_bits: u8,
    hash: u64,
}

/// Why a list of members is not a topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyError {
    /// A cluster has at least one node.
    NoMembers,
    /// A cluster has at most [`NODES_MAX`] nodes.
    TooManyMembers {
        /// How many were given.
        members: usize,
    },
    /// Two members have one id.
    DuplicateId {
        /// The id.
        id: NodeId,
    },
    /// Two members have one URL.
    DuplicateUrl {
        /// The URL.
        url: String,
    },
    /// A member has weight 0.
    WeightZero {
        /// The member's URL.
        url: String,
    },
    /// A partition has 1 to [`PARTITION_BITS_MAX`] bits.
    PartitionBits {
        /// The width that was given.
        bits: u8,
    },
}

impl Topology {
    /// The topology of `members`, in any order, with partitions of `partition_bits`.
    ///
    /// # Errors
    /// [`TopologyError`] names the first rule that is broken; the configuration is at fault.
    pub fn new(mut members: Vec<Member>, partition_bits: u8) -> Result<Self, TopologyError> {
        if !(1..=PARTITION_BITS_MAX).contains(&partition_bits) {
            return Err(TopologyError::PartitionBits { bits: partition_bits });
        }
        match members.len() {
            0 => return Err(TopologyError::NoMembers),
            1..=NODES_MAX => {}
            count => return Err(TopologyError::TooManyMembers { members: count }),
        }
        if let Some(member) = members.iter().find(|member| member.weight == 0) {
            return Err(TopologyError::WeightZero { url: member.url.clone() });
        }
        if let Some(url) = first_twice(members.iter().map(|member| &member.url)) {
            return Err(TopologyError::DuplicateUrl { url: url.clone() });
        }
        if let Some(id) = first_twice(members.iter().map(|member| member.id)) {
            return Err(TopologyError::DuplicateId { id });
        }
        members.sort_unstable_by_key(|member| member.id);
        let hash = xxh3_64(&canonical_bytes(&members, partition_bits));
        Ok(Self { members, partition_bits, hash })
    }

    /// The topology of the nodes at `urls`: equal weights, one zone, partitions of [`PARTITION_BITS_DEFAULT`].
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn of_urls<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Self, TopologyError> {
        let member = |url: U| {
            let url = url.into();
            Member { id: NodeId::of_url(&url), url, weight: 1, zone: String::new() }
        };
        Self::new(urls.into_iter().map(member).collect(), PARTITION_BITS_DEFAULT)
    }

    /// The members by rising id; a [`NodeIndex`] is a place in it.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many nodes there are, at least 1.
    #[expect(clippy::cast_possible_truncation, reason = "at most NODES_MAX, checked in `new`")]
    pub fn node_count(&self) -> u16 {
        self.members.len() as u16
    }

    /// How many bits of a token name its partition.
    pub fn partition_bits(&self) -> u8 {
        self.partition_bits
    }

    /// The place of the node `id`; none when it is not a member.
    pub fn index_of(&self, id: NodeId) -> Option<NodeIndex> {
        let place = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        u16::try_from(place).ok().map(NodeIndex)
    }

    /// The member at `index`; none when the index is of another topology.
    pub fn member(&self, index: NodeIndex) -> Option<&Member> {
        self.members.get(usize::from(index.0))
    }

    /// A number that differs between nodes whose configurations differ: nodes compare it when they connect.
    ///
    /// xxh3-64, seed 0, of: form (1 byte, 1), partition bits (1), node count (2), and by rising id of each node: id
    /// (8), weight (4), length of URL (4), URL, length of zone (4), zone. Numbers are little-endian.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// The least of the items that occur twice.
fn first_twice<T: Ord>(items: impl Iterator<Item = T>) -> Option<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    let mut last = None;
    for item in items {
        if last.as_ref() == Some(&item) {
            return Some(item);
        }
        last = Some(item);
    }
    None
}

fn canonical_bytes(members: &[Member], partition_bits: u8) -> Vec<u8> {
    let mut bytes = vec![HASH_FORM, partition_bits];
    let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&count.to_le_bytes());
    for member in members {
        bytes.extend_from_slice(&member.id.0.to_le_bytes());
        bytes.extend_from_slice(&member.weight.to_le_bytes());
        for text in [&*without_tls(&member.url), &member.zone] {
            // No text has 4 GiB. The length keeps ("ab", "c") apart from ("a", "bc").
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMembers => f.write_str("the topology has no node; a cluster has at least 1"),
            Self::TooManyMembers { members } => {
                write!(f, "the topology has {members} nodes; a cluster has at most {NODES_MAX}")
            }
            Self::DuplicateId { id } => write!(f, "two nodes of the topology have the id {id}"),
            Self::DuplicateUrl { url } => write!(f, "two nodes of the topology have the URL {url}"),
            Self::WeightZero { url } => write!(f, "the node {url} has weight 0; a weight is at least 1"),
            Self::PartitionBits { bits } => {
                write!(
                    f,
                    "partitions of {bits} bits were asked for; a partition has 1 to {PARTITION_BITS_MAX}"
                )
            }
        }
    }
}

impl std::error::Error for TopologyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(id: u64, url: &str, weight: u32, zone: &str) -> Member {
        Member { id: NodeId(id), url: url.into(), weight, zone: zone.into() }
    }

    fn three() -> Vec<Member> {
        vec![member(3, "c", 1, "x"), member(1, "a", 1, "x"), member(2, "b", 2, "y")]
    }

    /// Each rule is named when it is broken, with the value that broke it.
    #[test]
    fn broken_rules_are_named() {
        let check = |members, bits, expect| assert_eq!(Topology::new(members, bits), Err(expect));
        let twice = |id, url: &str| {
            [three(), vec![member(id, url, 1, "x")]].into_iter().flatten().collect::<Vec<_>>()
        };
        let many = |count: u64| (0..count).map(|id| member(id, &format!("n{id}"), 1, "")).collect::<Vec<_>>();
        check(vec![], 12, TopologyError::NoMembers);
        check(many(1025), 12, TopologyError::TooManyMembers { members: 1025 });
        check(twice(2, "d"), 12, TopologyError::DuplicateId { id: NodeId(2) });
        check(twice(4, "b"), 12, TopologyError::DuplicateUrl { url: "b".into() });
        check(vec![member(1, "a", 0, "")], 12, TopologyError::WeightZero { url: "a".into() });
        check(three(), 0, TopologyError::PartitionBits { bits: 0 });
        check(three(), 17, TopologyError::PartitionBits { bits: 17 });
        assert!(Topology::new(many(1024), 16).is_ok());
        assert!(Topology::new(many(1), 1).is_ok());
    }

    /// Members are found by id and by index, and there are no others.
    #[test]
    fn members_are_found() {
        let topology = Topology::new(three(), 12).unwrap();
        assert_eq!(topology.node_count(), 3);
        assert_eq!(topology.index_of(NodeId(2)), Some(NodeIndex(1)));
        assert_eq!(topology.member(NodeIndex(1)).map(|member| member.url.as_str()), Some("b"));
        assert_eq!(topology.index_of(NodeId(4)), None);
        assert_eq!(topology.member(NodeIndex(3)), None);
        let by_url = Topology::of_urls(["http://a", "http://b"]).unwrap();
        // A node and its cluster stay the same when their connections are encrypted.
        let secured = Topology::of_urls(["https://a", "http://b"]).unwrap();
        assert_eq!(secured.hash(), by_url.hash());
        assert!(secured.index_of(NodeId::of_url("http://a")).is_some());
        assert_ne!(Topology::of_urls(["https://a", "http://c"]).unwrap().hash(), by_url.hash());
        assert!(by_url.index_of(NodeId::of_url("http://b")).is_some());
        assert_eq!(by_url.partition_bits(), 12);
    }

    /// Nodes of different versions compare hashes: this value may change only together with `HASH_FORM`.
    #[test]
    fn hash_is_golden() {
        assert_eq!(Topology::new(three(), 12).unwrap().hash(), 0x78f2_146b_7c26_60f6);
    }

    /// Every difference of the configuration changes the hash.
    #[test]
    fn hash_differs_with_the_configuration() {
        let hash = |members, bits| Topology::new(members, bits).unwrap().hash();
        let changed = |change: fn(&mut Member)| {
            let mut members = three();
            change(members.first_mut().unwrap());
            hash(members, 12)
        };
        let mut hashes = vec![
            hash(three(), 12),
            hash(three(), 11),
            hash(three().into_iter().skip(1).collect(), 12),
            changed(|m| m.id = NodeId(9)),
            changed(|m| m.url = "d".into()),
            changed(|m| m.weight = 3),
            changed(|m| m.zone = "y".into()),
            changed(|m| (m.url, m.zone) = ("cx".into(), String::new())),
        ];
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    proptest! {
        /// The order of the configuration does not matter.
        #[test]
        fn order_does_not_matter(members in Just((0..20).map(|id| member(id, &format!("n{id}"), 1, "")).collect::<Vec<_>>()).prop_shuffle()) {
            let shuffled = Topology::new(members.clone(), 12)?;
            let mut members = members;
            members.sort_by_key(|member| member.id);
            prop_assert_eq!(shuffled, Topology::new(members, 12)?);
        }
    }
}
