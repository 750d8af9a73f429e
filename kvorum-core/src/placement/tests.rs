//! Balance, movement and rules of placements. `docs/placement.md` quotes the lines of `figures:`.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use super::*;
use crate::token::{PARTITION_BITS_DEFAULT, Token};
use crate::topology::Member;
use crate::version::NodeId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A node of the weight and zone, known by its number.
fn member(number: u64, weight: u32, zone: u64) -> Member {
    let url = format!("http://node-{number}:8080");
    Member { id: NodeId::of_url(&url), url, weight, zone: format!("zone-{zone}") }
}

fn equal(numbers: std::ops::Range<u64>) -> Topology {
    Topology::new(numbers.map(|number| member(number, 1, 0)).collect(), PARTITION_BITS_DEFAULT).unwrap()
}

fn without(topology: &Topology, id: NodeId) -> Topology {
    let members = topology.members().iter().filter(|member| member.id != id).cloned().collect();
    Topology::new(members, topology.partition_bits()).unwrap()
}

fn with(topology: &Topology, member: Member) -> Topology {
    let members = topology.members().iter().cloned().chain([member]).collect();
    Topology::new(members, topology.partition_bits()).unwrap()
}

/// The number of keys in each partition, out of a million keys.
fn keys_by_partition() -> Vec<u64> {
    let mut counts = vec![0; 4096];
    let mut key = *b"key-000000";
    for number in 0..1_000_000u32 {
        let mut rest = number;
        for digit in key[4..].iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap();
            rest /= 10;
        }
        counts[usize::from(Token::of(&key).partition(PARTITION_BITS_DEFAULT).0)] += 1;
    }
    counts
}

/// The load of each node within the first `from` ranks, where partition `p` counts `weigh(p)`.
fn loads(placement: &Placement, from: u16, weigh: impl Fn(Partition) -> u64) -> Vec<u64> {
    let mut loads = vec![0; usize::from(placement.node_count)];
    for partition in Partition::all(placement.partition_bits) {
        for node in placement.replicas(partition, from) {
            loads[usize::from(node.0)] += weigh(partition);
        }
    }
    loads
}

/// The most loaded node in proportion to the mean.
fn imbalance(loads: &[u64]) -> f64 {
    let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
    *loads.iter().max().unwrap() as f64 / mean
}

/// Each list has every node once, and no zone twice before every zone once.
fn check_rules(placement: &Placement, topology: &Topology) {
    let names: BTreeSet<&str> = topology.members().iter().map(|member| member.zone.as_str()).collect();
    let zone = |member: &Member| names.iter().position(|name| *name == member.zone).unwrap();
    let zones: Vec<usize> = topology.members().iter().map(zone).collect();
    for partition in Partition::all(topology.partition_bits()) {
        let list = placement.preference_list(partition);
        let (mut has_node, mut has_zone) = (vec![false; zones.len()], vec![false; names.len()]);
        for (rank, node) in list.iter().enumerate() {
            let node = usize::from(node.0);
            assert!(!std::mem::replace(&mut has_node[node], true), "{partition:?} {list:?}");
            let again = std::mem::replace(&mut has_zone[zones[node]], true);
            assert!(!again || rank >= names.len(), "{partition:?} {list:?} {zones:?}");
        }
        assert_eq!(list.len(), zones.len());
    }
}

/// A placement with its topology, and a change history.
struct Story {
    topology: Topology,
    placement: Placement,
}

impl Story {
    fn of(topology: Topology) -> Self {
        let placement = Placement::initial(&topology);
        check_rules(&placement, &topology);
        Self { topology, placement }
    }

    /// Moves on to `topology`; returns the copies that move for each of `froms`.
    fn change(&mut self, topology: Topology, froms: &[u16]) -> Vec<u64> {
        let placement = self.placement.change(&self.topology, &topology).unwrap();
        check_rules(&placement, &topology);
        let before = std::mem::replace(self, Self { topology, placement });
        froms.iter().map(|from| self.moved(&before, *from)).collect()
    }

    /// The copies within the first `from` ranks that were not there before.
    fn moved(&self, before: &Self, from: u16) -> u64 {
        let ids = |story: &Self, partition| -> BTreeSet<NodeId> {
            let nodes = story.placement.replicas(partition, from).iter();
            nodes.map(|node| story.topology.member(*node).unwrap().id).collect()
        };
        let moved = |partition| ids(self, partition).difference(&ids(before, partition)).count() as u64;
        Partition::all(self.topology.partition_bits()).map(moved).sum()
    }

    fn imbalance(&self, from: u16) -> f64 {
        imbalance(&loads(&self.placement, from, |_| 1))
    }

    /// How many copies `id` holds within the first `from` ranks.
    fn held(&self, id: NodeId, from: u16) -> u64 {
        let node = self.topology.index_of(id).unwrap();
        loads(&self.placement, from, |_| 1)[usize::from(node.0)]
    }
}

/// Goal: no node stores more than 1.10 of the mean. Method: count a million real keys.
#[test]
fn keys_are_balanced() {
    let keys = keys_by_partition();
    for nodes in [3, 10, 100] {
        let story = Story::of(equal(0..nodes));
        for from in [1, 2, 3] {
            let stored = loads(&story.placement, from, |partition| keys[usize::from(partition.0)]);
            let (keys, partitions) = (imbalance(&stored), story.imbalance(from));
            println!(
                "figures: initial, {nodes} nodes, from {from}: max/mean of keys {keys:.3}, of partitions {partitions:.3}"
            );
            assert!(keys <= 1.10);
        }
    }
}

/// The same scores without quotas: shows why the quotas are needed.
#[test]
fn plain_rendezvous_is_not_balanced() {
    for nodes in [3, 10, 100u64] {
        let topology = equal(0..nodes);
        let nodes = lists::nodes_of(&[&topology]);
        let mut firsts = vec![0; nodes.len()];
        for partition in Partition::all(PARTITION_BITS_DEFAULT) {
            let scores = nodes.values().map(|node| score::Score::of(node, partition));
            let first = scores.enumerate().max_by(|(_, a), (_, b)| a.cmp(b)).unwrap().0;
            firsts[first] += 1;
        }
        println!(
            "figures: plain rendezvous, {} nodes, from 1: max/mean of partitions {:.3}",
            nodes.len(),
            imbalance(&firsts)
        );
    }
}

/// At every `from`, not only the usual ones, no node holds more than a partition or two above the share.
#[test]
fn every_from_is_balanced() {
    for (nodes, froms) in [(1, 1), (2, 2), (3, 3), (7, 7), (10, 10), (100, 20)] {
        let story = Story::of(equal(0..nodes));
        for from in 1..=froms {
            let loads = loads(&story.placement, from, |_| 1);
            let share = (4096 * u64::from(from)).div_ceil(nodes);
            assert!(*loads.iter().max().unwrap() <= share + 1, "{nodes} {from} {loads:?} {share}");
        }
    }
}

/// Goal: a join moves little more than the joiner's share, a leave little more than the leaver's copies; both
/// stay balanced.
#[test]
fn a_join_and_a_leave_move_the_least() {
    for nodes in [3, 10, 100u64] {
        let joiner = member(nodes, 1, 0);
        let mut story = Story::of(equal(0..nodes));
        let anew = Story::of(equal(0..nodes + 1));
        let moved = [1, 2, 3].map(|from| anew.moved(&story, from));
        println!("figures: placed anew, {nodes} to {} nodes, from 1 to 3: moved {moved:?} copies", nodes + 1);
        let moved = story.change(equal(0..nodes + 1), &[1, 2, 3]);
        for (from, moved) in (1..).zip(moved) {
            let least = (4096 * u64::from(from)) as f64 / (nodes + 1) as f64;
            report("join", nodes, nodes + 1, from, moved, least, &story);
        }
        let back: Vec<u64> = [1, 2, 3].map(|from| story.held(joiner.id, from)).into();
        let left = story.change(equal(0..nodes), &[1, 2, 3]);
        for ((from, moved), least) in (1..).zip(left).zip(back) {
            report("leave", nodes + 1, nodes, from, moved, least as f64, &story);
        }
        // A leave from lists that saw no join, and of another node than the last one.
        let mut story = Story::of(equal(0..nodes + 1));
        let leaver = member(1, 1, 0).id;
        let least: Vec<u64> = [1, 2, 3].map(|from| story.held(leaver, from)).into();
        let moved = story.change(without(&story.topology, leaver), &[1, 2, 3]);
        for ((from, moved), least) in (1..).zip(moved).zip(least) {
            report("leave of initial", nodes + 1, nodes, from, moved, least as f64, &story);
        }
    }
}

fn report(what: &str, old: u64, new: u64, from: u16, moved: u64, least: f64, story: &Story) {
    let (relative, imbalance) = (moved as f64 / least, story.imbalance(from));
    println!(
        "figures: {what} {old} to {new} nodes, from {from}: moved {moved} copies, {relative:.3} of the least; \
         max/mean of partitions {imbalance:.3}"
    );
    assert!(relative <= 1.05 && imbalance <= 1.10);
}

/// Goal: changes do not add up to imbalance. Method: joins and leaves in a row, one by one, of small and large ones.
#[test]
fn changes_in_a_row_stay_balanced() {
    for (begin, most) in [(3, 13), (90, 100)] {
        let mut story = Story::of(equal(0..begin));
        let joins = (begin + 1..=most).map(|last| (0, last));
        let leaves = (1..=most - begin).map(|first| (first, most));
        let mut worst: BTreeMap<u16, f64> = BTreeMap::new();
        for (first, last) in joins.chain(leaves) {
            story.change(equal(first..last), &[]);
            for from in [1, 2, 3, 5] {
                let imbalance = story.imbalance(from);
                worst.entry(from).and_modify(|worst| *worst = worst.max(imbalance)).or_insert(imbalance);
            }
        }
        println!(
            "figures: {begin} to {most} nodes, back to {begin} others: max/mean by from {worst:.3?} at worst"
        );
        assert!(worst.values().all(|worst| *worst <= 1.10));
    }
}

/// Goal: zones are respected and balanced whatever joins and leaves. Method: a zone grows, appears, shrinks, vanishes.
#[test]
fn zones_are_respected() {
    let members = (0..9).map(|number| member(number, 1, number % 3)).collect();
    let mut story = Story::of(Topology::new(members, PARTITION_BITS_DEFAULT).unwrap());
    // (number, zone): a number that is a member leaves, another joins.
    for (number, zone) in [
        (9, 0),
        (10, 1),
        (11, 3),
        (12, 3),
        (13, 3),
        (0, 0),
        (11, 3),
        (12, 3),
        (13, 3),
        (5, 2),
        (2, 2),
        (8, 2),
    ] {
        let one = member(number, 1, zone);
        let joins = story.topology.index_of(one.id).is_none();
        let held = |story: &Story| [1, 2, 3, 4, 5].map(|from| story.held(one.id, from)).to_vec();
        let before = if joins { Vec::new() } else { held(&story) };
        let topology =
            if joins { with(&story.topology, one.clone()) } else { without(&story.topology, one.id) };
        let moved = story.change(topology, &[1, 2, 3, 4, 5]);
        let least = if joins { held(&story) } else { before };
        assert_eq!(moved, least, "only what the joiner holds, or the leaver held, moves");
        let fresh = Story::of(story.topology.clone());
        for from in [1, 2, 3, 4, 5] {
            let [after, anew] = [&story, &fresh].map(|story| story.imbalance(from));
            println!(
                "figures: zones, {} {number} in {zone}, from {from}: max/mean {after:.3}, anew {anew:.3}",
                if joins { "join" } else { "leave" }
            );
            // After the ranks in different zones, a leave from a small zone cannot be evened out without
            // moving more.
            assert!(after <= anew + 0.12);
        }
    }
}

/// Zones of a usual size stay balanced over a join and a leave.
#[test]
fn zones_of_ten_stay_balanced() {
    let members =
        |numbers: std::ops::Range<u64>| numbers.map(|number| member(number, 1, number % 3)).collect();
    let mut story = Story::of(Topology::new(members(0..30), PARTITION_BITS_DEFAULT).unwrap());
    for (what, numbers) in [("30", 0..30), ("30 to 31", 0..31), ("31 to 30", 1..31), ("30 to 29", 2..31)] {
        story.change(Topology::new(members(numbers), PARTITION_BITS_DEFAULT).unwrap(), &[]);
        let figures = [1, 2, 3, 4, 5].map(|from| story.imbalance(from));
        println!("figures: 3 zones, {what} nodes, from 1 to 5: max/mean {figures:.3?}");
        assert!(figures.iter().all(|figure| *figure <= 1.10));
    }
}

/// The only nodes of a zone are in every list's first ranks; the others take what these cannot take.
#[test]
fn zones_of_different_sizes() {
    let zones = [0, 1, 1, 2, 2, 2, 2, 2, 2, 2];
    let members = (0..).zip(zones).map(|(number, zone)| member(number, 1, zone)).collect();
    let story = Story::of(Topology::new(members, PARTITION_BITS_DEFAULT).unwrap());
    for (number, zone) in (0..).zip(zones) {
        let held = story.held(member(number, 1, zone).id, 3);
        let share = 4096 / [1, 2, 7][usize::try_from(zone).unwrap()];
        assert!(held.abs_diff(share) <= 3, "{number} {held} {share}");
    }
}

/// Loads are in proportion to the weights, in a new cluster and after changes.
#[test]
fn weights_are_respected() {
    let weighted = |numbers: std::ops::Range<u64>| {
        let weight = |number| u32::try_from(number % 4 + 1).unwrap();
        let members = numbers.map(|number| member(number, weight(number), 0)).collect();
        Topology::new(members, PARTITION_BITS_DEFAULT).unwrap()
    };
    let check = |what: &str, story: &Story| {
        let weights: Vec<f64> =
            story.topology.members().iter().map(|member| f64::from(member.weight)).collect();
        for from in [1, 3] {
            let share = 4096.0 * f64::from(from) / weights.iter().sum::<f64>();
            let relative = loads(&story.placement, from, |_| 1).into_iter().zip(&weights);
            let relative: Vec<f64> = relative.map(|(load, weight)| load as f64 / (weight * share)).collect();
            let [least, most] =
                [relative.iter().copied().fold(9.0, f64::min), relative.iter().copied().fold(0.0, f64::max)];
            println!("figures: weights 1 to 4, {what}, from {from}: {least:.3} to {most:.3} of the share");
            assert!(most <= 1.10 && least >= 0.90);
        }
    };
    let mut story = Story::of(weighted(0..20));
    check("20 nodes", &story);
    for last in 21..=24 {
        story.change(weighted(0..last), &[]);
    }
    check("20 to 24 nodes", &story);
    for first in 1..=8 {
        story.change(weighted(first..24), &[]);
    }
    check("24 to 16 nodes", &story);
}

/// A node so heavy that its share is above everything holds everything; the others share the rest.
#[test]
fn a_giant_holds_every_partition_once() {
    let members = vec![member(0, u32::MAX, 0), member(1, 1, 0), member(2, 1, 0), member(3, 2, 0)];
    let story = Story::of(Topology::new(members, PARTITION_BITS_DEFAULT).unwrap());
    let held = |number, from| story.held(member(number, 1, 0).id, from);
    assert_eq!(held(0, 1), 4096);
    assert_eq!([1, 2, 3].map(|number| held(number, 2)), [1024, 1024, 2048]);
}

/// A node that replaces one of its kind takes its places: nothing else moves.
#[test]
fn a_replacement_moves_only_its_own() {
    let mut story = Story::of(equal(0..10));
    let leaver = member(0, 1, 0).id;
    let held: Vec<u64> = [1, 3].map(|from| story.held(leaver, from)).into();
    assert_eq!(story.change(equal(1..11), &[1, 3]), held);
}

/// A node with another URL and the same id moves nothing, and is found under the new topology.
#[test]
fn a_different_url_moves_nothing() {
    let mut story = Story::of(equal(0..3));
    let mut members = story.topology.members().to_vec();
    members[1].url = "http://elsewhere".into();
    let topology = Topology::new(members, PARTITION_BITS_DEFAULT).unwrap();
    assert_eq!(story.change(topology, &[1, 2, 3]), [0, 0, 0]);
}

/// A member whose weight changed gets the share of its new weight; when no member stays, all begins anew.
#[test]
fn a_member_of_another_weight() {
    let mut story = Story::of(equal(0..4));
    let weights = |weights: [u32; 4]| {
        let members = (0..).zip(weights).map(|(number, weight)| member(number, weight, 0)).collect();
        Topology::new(members, PARTITION_BITS_DEFAULT).unwrap()
    };
    story.change(weights([1, 1, 1, 2]), &[]);
    assert!(story.held(member(3, 2, 0).id, 1).abs_diff(4096 * 2 / 5) <= 1);
    let anew = weights([2, 2, 2, 4]);
    story.change(anew.clone(), &[]);
    assert_eq!(story.placement, Placement::initial(&anew));
}

/// A change from the wrong topology or to other partitions is refused by name.
#[test]
fn wrong_changes_are_named() {
    let (three, four) = (equal(0..3), equal(0..4));
    let placement = Placement::initial(&three);
    let error = ChangeError::OtherTopology { placement: three.hash(), given: four.hash() };
    assert_eq!(placement.change(&four, &three), Err(error));
    let wide = Topology::new(four.members().to_vec(), 13).unwrap();
    assert_eq!(placement.change(&three, &wide), Err(ChangeError::PartitionBits { old: 12, new: 13 }));
}

/// Lookups of unknown nodes and partitions find nothing.
#[test]
fn lookups_outside_are_empty() {
    let placement = Placement::initial(&equal(0..3));
    assert!(placement.preference_list(Partition(4096)).is_empty());
    assert_eq!(placement.rank_of(Partition(0), NodeIndex(3)), None);
    assert_eq!(placement.replicas(Partition(0), 9).len(), 3);
    assert!(placement.replicas(Partition(0), 0).is_empty());
}

/// Running clusters depend on their placement: it may never change for a topology, nor for a change of one.
#[test]
fn placements_are_golden() {
    let hash = |placement: &Placement| {
        let bytes: Vec<u8> = placement.lists.iter().flat_map(|node| node.0.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    };
    let of_kinds = |numbers: std::ops::Range<u64>| {
        let weight = |number| u32::try_from(number % 2 + 1).unwrap();
        let members = numbers.map(|number| member(number, weight(number), number % 3)).collect();
        Topology::new(members, PARTITION_BITS_DEFAULT).unwrap()
    };
    let plain = Placement::initial(&equal(0..10));
    let joined = plain.change(&equal(0..10), &equal(0..11)).unwrap();
    let left = joined.change(&equal(0..11), &equal(1..11)).unwrap();
    let zones = Placement::initial(&of_kinds(0..10));
    let changed = zones.change(&of_kinds(0..10), &of_kinds(2..13)).unwrap();
    assert_eq!(
        [&plain, &joined, &left, &zones, &changed].map(hash),
        [
            0x936d_5e56_032a_03bb,
            0xc460_4338_756c_bfd2,
            0xe810_abea_1c26_d8e4,
            0x81ab_d391_548e_7800,
            0x7053_d441_2cf6_c1af
        ]
    );
}

/// Any small topology, with few zones and weights, and few partitions.
fn topology() -> impl Strategy<Value = Topology> {
    let one = (any::<prop::sample::Index>(), 1..4u32, 0..4u64);
    let members = prop::collection::vec(one, 1..13);
    (members, 1..=7u8).prop_map(|(members, bits)| {
        let members: BTreeMap<u64, _> = (members.into_iter())
            .map(|(number, weight, zone)| (number.index(16) as u64, (weight, zone)))
            .collect();
        let members = members.into_iter().map(|(number, (weight, zone))| member(number, weight, zone));
        Topology::new(members.collect(), bits).unwrap()
    })
}

proptest! {
    /// Every rule holds for any topology, whatever the order of its members, and prefixes are prefixes.
    #[test]
    fn initial_keeps_the_rules(topology in topology(), seed: u64) {
        let placement = Placement::initial(&topology);
        check_rules(&placement, &topology);
        let mut members = topology.members().to_vec();
        members.sort_by_key(|member| member.id.0 ^ seed);
        let shuffled = Topology::new(members, topology.partition_bits())?;
        prop_assert_eq!(&Placement::initial(&shuffled), &placement);
        for partition in Partition::all(topology.partition_bits()) {
            for from in 1..=topology.node_count() {
                let replicas = placement.replicas(partition, from);
                prop_assert_eq!(replicas.len(), usize::from(from));
                prop_assert_eq!(&replicas[..replicas.len() - 1], placement.replicas(partition, from - 1));
                prop_assert_eq!(placement.rank_of(partition, replicas[replicas.len() - 1]), Some(from - 1));
            }
        }
    }

    /// Every rule holds after any change of anything to anything, twice.
    #[test]
    fn change_keeps_the_rules(topologies in prop::collection::vec(topology(), 3)) {
        let bits = topologies[0].partition_bits();
        let mut story = Story::of(topologies[0].clone());
        for topology in &topologies[1..] {
            story.change(Topology::new(topology.members().to_vec(), bits)?, &[]);
        }
    }

    /// One join or leave moves one copy of a prefix at most, and only to the joiner or from the leaver.
    #[test]
    fn one_change_moves_one_copy_of_a_prefix(topology in topology(), weight in 1..4u32, zone in 0..5u64) {
        let joiner = member(99, weight, zone);
        let froms: Vec<u16> = (1..=topology.node_count()).collect();
        let mut story = Story::of(topology.clone());
        let joined = story.change(with(&topology, joiner.clone()), &froms);
        let held: Vec<u64> = froms.iter().map(|from| story.held(joiner.id, *from)).collect();
        prop_assert_eq!(&joined, &held);
        prop_assert_eq!(story.change(topology, &froms), held);
    }
}
