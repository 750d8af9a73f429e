//! Configurations: their bytes, their rules, their lists.

use super::*;
use crate::quorum::{Quorum, Verdict};
use proptest::prelude::*;

fn cluster() -> ClusterId {
    ClusterId::new(0xc1).unwrap()
}

fn topology(nodes: u64, bits: u8) -> Topology {
    let member = |id: u64| topology::Member {
        id: NodeId(id),
        url: format!("http://n{id}:8080"),
        weight: 1,
        zone: format!("z{}", id % 2),
    };
    Topology::new((1..=nodes).map(member).collect(), bits).unwrap()
}

fn genesis(nodes: u64) -> Configuration {
    let topology = topology(nodes, 4);
    Configuration::genesis(cluster(), &topology, &Placement::initial(&topology))
}

/// The next configuration, after `change`.
fn next(before: &Configuration, change: impl FnOnce(&mut Configuration)) -> Configuration {
    let mut next = before.clone();
    (next.epoch, next.previous) = (Epoch(before.epoch.0 + 1), before.hash());
    change(&mut next);
    next
}

/// Epoch 1: all stores are named.
fn named(nodes: u64) -> Configuration {
    next(&genesis(nodes), |next| {
        next.members.iter_mut().for_each(|member| member.store = Some(u128::from(member.id.0) + 0x50));
    })
}

fn joint(reads: Side, is_filled: bool, begin: u32, end: u32) -> Phase {
    Phase::Joint { reads, is_filled, window: Window { begin, end }, placement: 77 }
}

/// Node 4 joins, node 3 leaves, node 2 gets another weight: the first window.
fn opened(before: &Configuration) -> Configuration {
    next(before, |next| {
        let joiner = ClusterMember {
            id: NodeId(4),
            slot: Slot(3),
            url: "http://n4:8080".into(),
            store: Some(0x54),
            state: MemberState::Joining,
            ..next.members[0].clone()
        };
        next.members.push(joiner);
        next.members[1].state = MemberState::Changing { weight: 3, zone: "z9".into() };
        next.members[2].state = MemberState::Leaving;
        next.slots_used = 4;
        next.phase = joint(Side::Old, false, 0, 8);
    })
}

fn in_phase(before: &Configuration, phase: Phase) -> Configuration {
    next(before, |next| next.phase = phase)
}

fn ended(before: &Configuration) -> Configuration {
    next(before, |next| {
        next.members.remove(2);
        (next.members[1].weight, next.members[1].zone) = (3, "z9".into());
        next.members.iter_mut().for_each(|member| member.state = MemberState::In);
        next.retired = vec![Voter { node: NodeId(3), store: 0x53 }];
        (next.phase, next.placement) = (Phase::Stable, 77);
    })
}

fn cancelled(before: &Configuration) -> Configuration {
    next(before, |next| {
        next.members.remove(3);
        next.members.iter_mut().for_each(|member| member.state = MemberState::In);
        next.retired = vec![Voter { node: NodeId(4), store: 0x54 }];
        next.phase = Phase::Stable;
    })
}

/// A whole change, forwards in two windows, and each way back.
#[test]
fn a_change_takes_its_steps() {
    let check = |before: &Configuration, next: &Configuration, expect| {
        assert_eq!(before.check_successor(next), Ok(expect), "{} after {}", next.phase, before.phase);
    };
    let zero = genesis(3);
    assert_eq!(zero.check(), Ok(()));
    let one = named(3);
    check(&zero, &one, Transition::Naming);
    let first = opened(&one);
    check(&one, &first, Transition::Open);
    check(&first, &cancelled(&first), Transition::Exit);
    let first_read = in_phase(&first, joint(Side::New, true, 0, 8));
    check(&first, &first_read, Transition::Switch);
    let first_back = in_phase(&first_read, joint(Side::Old, true, 0, 8));
    check(&first_read, &first_back, Transition::Switch);
    check(&first_back, &cancelled(&first_back), Transition::Exit);
    let second = in_phase(&first_read, joint(Side::Old, false, 8, 16));
    check(&first_read, &second, Transition::Exit);
    let second_read = in_phase(&second, joint(Side::New, true, 8, 16));
    check(&second, &second_read, Transition::Switch);
    let last = ended(&second_read);
    check(&second_read, &last, Transition::Exit);
    // Back from the second window: the first one is entered from its new side, and its old owners are filled.
    let back = in_phase(&second, joint(Side::New, false, 0, 8));
    check(&second, &back, Transition::Exit);
    let back_read = in_phase(&back, joint(Side::Old, true, 0, 8));
    check(&back, &back_read, Transition::Switch);
    check(&back_read, &cancelled(&back_read), Transition::Exit);
    let upkeep = next(&last, |next| {
        (next.members[0].lacks, next.members[0].store) = (true, Some(0x99));
        next.retired.insert(0, Voter { node: NodeId(1), store: 0x51 });
        next.members[1].url = "http://elsewhere".into();
        next.feature_level = 1;
    });
    check(&last, &upkeep, Transition::Upkeep);
    check(&upkeep, &next(&upkeep, |next| next.members[0].lacks = false), Transition::Upkeep);
}

/// Planned epochs may follow, one after the other; what cannot be planned is named.
#[test]
fn planned_epochs_may_follow() {
    let zero = genesis(3);
    let stores: std::collections::BTreeMap<_, _> =
        zero.members.iter().map(|member| (member.id, u128::from(member.id.0) + 0x50)).collect();
    let one = zero.with_stores(&stores).unwrap();
    assert_eq!((zero.check_successor(&one), &one), (Ok(Transition::Naming), &named(3)));
    let two = one.with_level(1).unwrap();
    assert_eq!((one.check_successor(&two), two.feature_level), (Ok(Transition::Upkeep), 1));
    assert_eq!(zero.with_level(1), Err(PlanError::Unnamed));
    assert_eq!(one.with_stores(&stores), Err(PlanError::AlreadyNamed { epoch: Epoch(1) }));
    assert_eq!(two.with_level(1), Err(PlanError::LevelReached { level: 1 }));
    assert_eq!(opened(&one).with_level(1), Err(PlanError::UnderWay));
    let id = zero.members[1].id;
    let some = stores.into_iter().filter(|(node, _)| *node != id).collect();
    assert_eq!(zero.with_stores(&some), Err(PlanError::StoreUnknown { id }));
}

use SuccessorError as E;

fn refuse(before: &Configuration, next: &Configuration, is_it: fn(&E) -> bool) {
    let error = before.check_successor(next).unwrap_err();
    assert!(is_it(&error), "{error:?}");
    assert!(!error.to_string().contains('\n'));
}

/// Each rule is named when it is broken.
#[test]
fn wrong_successors_are_named() {
    let (zero, one) = (genesis(3), named(3));
    let first = opened(&one);
    refuse(&one, &next(&one, |next| next.epoch = Epoch(9)), |e| matches!(e, E::Epoch { .. }));
    refuse(&one, &next(&one, |next| next.previous.0 += 1), |e| matches!(e, E::Previous { .. }));
    refuse(&one, &next(&one, |next| next.cluster = ClusterId::new(9).unwrap()), |e| {
        matches!(e, E::Cluster { .. })
    });
    refuse(&one, &next(&one, |next| next.partition_bits = 5), |e| matches!(e, E::PartitionBits { .. }));
    refuse(&one, &next(&one, |next| next.placement += 1), |e| matches!(e, E::Placement { .. }));
    refuse(&zero, &opened(&zero), |e| matches!(e, E::Invalid(ConfigurationError::Store { .. })));
    let skipped = next(&zero, |next| {
        *next = opened(&one);
        (next.epoch, next.previous) = (Epoch(1), zero.hash());
    });
    refuse(&zero, &skipped, |e| matches!(e, E::Phase { .. }));
    for phase in [joint(Side::New, true, 0, 8), joint(Side::Old, false, 1, 8), joint(Side::Old, true, 0, 8)] {
        refuse(&one, &next(&one, |next| next.phase = phase), |e| matches!(e, E::Phase { .. }));
    }
    for phase in [
        joint(Side::New, false, 0, 8),
        joint(Side::Old, false, 8, 16),
        joint(Side::New, true, 0, 16),
        Phase::Joint {
            reads: Side::New,
            is_filled: true,
            window: Window { begin: 0, end: 8 },
            placement: 78,
        },
    ] {
        refuse(&first, &in_phase(&first, phase), |e| matches!(e, E::Phase { .. }));
    }
    let halfway = in_phase(&first, joint(Side::New, true, 0, 8));
    refuse(&halfway, &ended(&halfway), |e| matches!(e, E::Phase { .. }));
    refuse(&one, &next(&one, |next| drop(next.members.pop())), |e| matches!(e, E::MemberVanished { .. }));
    refuse(&one, &next(&one, |next| next.members[0].weight = 2), |e| matches!(e, E::MemberChanged { .. }));
    refuse(&first, &next(&first, |next| next.members[0].state = MemberState::Leaving), |e| {
        matches!(e, E::MemberChanged { .. })
    });
    let appeared = next(&one, |next| {
        *next =
            Configuration { epoch: next.epoch, previous: next.previous, phase: one.phase, ..opened(&one) };
        next.members.iter_mut().for_each(|member| member.state = MemberState::In);
    });
    refuse(&one, &appeared, |e| matches!(e, E::MemberAppeared { .. }));
    let reused = next(&one, |next| {
        *next = opened(&one);
        next.members[3].slot = Slot(3);
    });
    assert_eq!(one.check_successor(&reused), Ok(Transition::Open));
}

/// Slots, stores and marks are watched over all epochs.
#[test]
fn wrong_members_are_named() {
    let one = named(3);
    let after = in_phase(&opened(&one), joint(Side::New, true, 0, 16));
    let stable = ended(&after);
    let reopened = next(&stable, |next| {
        let joiner = ClusterMember {
            id: NodeId(9),
            slot: Slot(2),
            url: "http://n9:8080".into(),
            store: Some(0x59),
            state: MemberState::Joining,
            ..next.members[0].clone()
        };
        next.members.push(joiner);
        (next.slots_used, next.phase) = (5, joint(Side::Old, false, 0, 16));
    });
    refuse(&stable, &reopened, |e| matches!(e, E::SlotReused { slot: Slot(2), .. }));
    refuse(
        &stable,
        &next(&reopened, |next| {
            (next.epoch, next.previous) = (reopened.epoch, reopened.previous);
            next.members[3].slot = Slot(4);
            next.slots_used = 6;
        }),
        |e| matches!(e, E::SlotsUsed { expected: 5, found: 6 }),
    );
    refuse(&stable, &next(&stable, |next| next.retired.clear()), |e| matches!(e, E::Retired { .. }));
    refuse(&one, &next(&one, |next| next.members[0].store = Some(0x99)), |e| {
        matches!(e, E::StoreUnmarked { .. })
    });
    refuse(
        &stable,
        &next(&stable, |next| {
            next.members[0].store = Some(0x99);
            next.members[0].lacks = true;
        }),
        |e| matches!(e, E::Retired { .. }),
    );
    let marked = next(&one, |next| next.members[0].lacks = true);
    refuse(
        &marked,
        &next(&opened(&marked), |next| {
            (next.epoch, next.previous) = (Epoch(3), marked.hash());
            next.members[0].lacks = false;
        }),
        |e| matches!(e, E::MarkRemoved { .. }),
    );
    let raised = next(&one, |next| next.feature_level = 3);
    refuse(&raised, &next(&raised, |next| next.feature_level = 2), |e| matches!(e, E::FeatureLevel { .. }));
    refuse(
        &one,
        &next(&opened(&one), |next| {
            (next.epoch, next.previous, next.feature_level) = (Epoch(2), one.hash(), 1);
        }),
        |e| matches!(e, E::FeatureLevel { .. }),
    );
}

/// Each contradiction within one configuration is named.
#[test]
fn contradictions_are_named() {
    use ConfigurationError as E;
    let refuse = |change: fn(&mut Configuration), is_it: fn(&E) -> bool| {
        let mut broken = opened(&named(3));
        change(&mut broken);
        let error = broken.check().unwrap_err();
        assert!(is_it(&error), "{error:?}");
        let decoded = Configuration::decode(&broken.encode());
        assert!(decoded.is_err(), "{error:?}");
    };
    refuse(|c| c.partition_bits = 0, |e| matches!(e, E::PartitionBits { .. }));
    refuse(|c| c.previous = ConfigurationHash(0), |e| matches!(e, E::Previous { .. }));
    refuse(|c| c.epoch = Epoch(0), |e| matches!(e, E::Previous { .. }));
    refuse(|c| c.members.swap(0, 1), |e| matches!(e, E::MembersUnsorted { .. }));
    refuse(|c| c.members[0].slot = Slot(1), |e| matches!(e, E::DuplicateSlot { .. }));
    refuse(|c| c.members[0].slot = Slot(9), |e| matches!(e, E::SlotUnknown { .. }));
    refuse(|c| c.members[0].store = Some(0x54), |e| matches!(e, E::DuplicateStore { .. }));
    refuse(|c| c.members[0].store = None, |e| matches!(e, E::Store { .. }));
    refuse(|c| c.members[0].store = Some(0), |e| matches!(e, E::Store { .. }));
    refuse(|c| c.members[0].url = String::new(), |e| matches!(e, E::Url { .. }));
    refuse(|c| c.members[0].url = "http://a b".into(), |e| matches!(e, E::Url { .. }));
    refuse(|c| c.members[0].zone = "z".repeat(65), |e| matches!(e, E::Zone { .. }));
    refuse(|c| c.members[0].weight = 0, |e| matches!(e, E::Topology { .. }));
    refuse(|c| c.members[0].url = "http://n2:8080".into(), |e| matches!(e, E::Topology { .. }));
    refuse(
        |c| c.retired = vec![Voter { node: NodeId(1), store: 0x51 }],
        |e| matches!(e, E::RetiredMember { .. }),
    );
    refuse(
        |c| c.retired = vec![Voter { node: NodeId(9), store: 2 }, Voter { node: NodeId(9), store: 2 }],
        |e| matches!(e, E::RetiredUnsorted { .. }),
    );
    refuse(|c| c.phase = Phase::Stable, |e| matches!(e, E::StateWithoutChange { .. }));
    refuse(|c| c.phase = joint(Side::Old, false, 3, 3), |e| matches!(e, E::Window { .. }));
    refuse(|c| c.phase = joint(Side::Old, false, 0, 17), |e| matches!(e, E::Window { .. }));
    refuse(|c| c.members.truncate(0), |e| matches!(e, E::Topology { .. }));
}

/// Nodes that begin with the same list have the same epoch 0, whichever of them has turned on TLS.
#[test]
fn epoch_0_is_the_same_everywhere() {
    let of = |urls: [&str; 2]| {
        let topology = Topology::of_urls(urls).unwrap();
        Configuration::genesis(cluster(), &topology, &Placement::initial(&topology)).hash()
    };
    assert_eq!(of(["http://a:1", "http://b:1"]), of(["https://b:1", "http://a:1"]));
    assert_ne!(of(["http://a:1", "http://b:1"]), of(["http://a:1", "http://c:1"]));
}

/// A removed store never comes back, whatever epochs lie between.
#[test]
fn removed_stores_stay_removed() {
    let last = ended(&in_phase(&opened(&named(3)), joint(Side::New, true, 0, 16)));
    let back = next(&last, |next| {
        let joiner = ClusterMember {
            id: NodeId(3),
            slot: Slot(4),
            url: "http://n3:8080".into(),
            store: Some(0x53),
            state: MemberState::Joining,
            ..next.members[0].clone()
        };
        next.members.insert(2, joiner);
        (next.slots_used, next.phase) = (5, joint(Side::Old, false, 0, 16));
    });
    let voter = Voter { node: NodeId(3), store: 0x53 };
    assert!(last.is_retired(voter));
    let error = SuccessorError::Invalid(ConfigurationError::RetiredMember { voter });
    assert_eq!(last.check_successor(&back), Err(error));
    let forgotten = Configuration { retired: Vec::new(), ..back.clone() };
    assert_eq!(last.check_successor(&forgotten), Err(SuccessorError::Retired { voter }));
    let mut empty = back;
    empty.members[2].store = Some(0x63);
    assert_eq!(last.check_successor(&empty), Ok(Transition::Open));
}

/// Stores and other releases keep these bytes: they may never change for form 1.
#[test]
fn bytes_are_golden() {
    let fixture = include_str!("../../../fixtures/configuration-form-1.txt");
    let one = named(3);
    let first = opened(&one);
    let last = ended(&in_phase(&first, joint(Side::New, true, 0, 16)));
    let rows = [("genesis", genesis(3)), ("named", one), ("joint", first), ("changed", last)];
    let hexadecimal =
        |bytes: Vec<u8>| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let row = |(name, one): &(&str, Configuration)| {
        // Placements have their own golden test: a number stands for them here.
        let one = Configuration { placement: 5, ..one.clone() };
        let one =
            if one.epoch == Epoch(0) { one } else { Configuration { previous: ConfigurationHash(6), ..one } };
        format!("{name} {} {}\n", one.hash(), hexadecimal(one.encode()))
    };
    let written: String = rows.iter().map(row).collect();
    let read: String = fixture
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |text, line| text + line + "\n");
    assert_eq!(read, written);
    for line in read.lines() {
        let bytes = line.rsplit(' ').next().unwrap();
        let bytes: Vec<u8> = (0..bytes.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&bytes[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(Configuration::decode(&bytes).unwrap().encode(), bytes);
    }
}

/// Joint partitions are written by both lists and read by one; the others have one list.
#[test]
fn lists_follow_the_window() {
    let (old, new) = (topology(3, 4), topology(4, 4));
    let old_placement = Placement::initial(&old);
    let new_placement = old_placement.change(&old, &new).unwrap();
    let mut joining = opened(&named(3));
    for member in &mut joining.members[..3] {
        member.state = MemberState::In;
    }
    joining.members[3].zone = "z0".into();
    joining.placement = old_placement.hash();
    let phase = |reads, is_filled| Phase::Joint {
        reads,
        is_filled,
        window: Window { begin: 4, end: 8 },
        placement: new_placement.hash(),
    };
    joining.phase = phase(Side::Old, false);
    let routing = Routing::new(&joining, &old_placement, Some(&new_placement)).unwrap();
    let slots = |placement: &Placement, partition| {
        placement.replicas(Partition(partition), 3).iter().map(|index| Slot(index.0)).collect::<Vec<_>>()
    };
    let mut moved = 0;
    for partition in 0..16 {
        let route = routing.route(Partition(partition)).of(3);
        let [old, new] = [slots(&old_placement, partition), slots(&new_placement, partition)];
        let writes: Vec<Vec<Slot>> = route.writes().map(<[Slot]>::to_vec).collect();
        let expect = match partition {
            0..4 => vec![new.clone()],
            4..8 if old == new => vec![old.clone()],
            4..8 => vec![old.clone(), new.clone()],
            _ => vec![old.clone()],
        };
        moved += usize::from(old != new);
        assert_eq!(writes, expect, "{partition}");
        assert_eq!(route.reads(), if partition < 4 { new } else { old });
        let targets: Vec<Slot> = route.targets().collect();
        let once: BTreeSet<Slot> = writes.concat().into_iter().collect();
        assert_eq!(targets.iter().copied().collect::<BTreeSet<_>>(), once);
        assert_eq!(targets.len(), once.len());
    }
    assert!(moved > 0, "the joiner got nothing");
    assert_eq!(routing.moving().count(), 8);
    joining.phase = phase(Side::New, true);
    let routing = Routing::new(&joining, &old_placement, Some(&new_placement)).unwrap();
    assert_eq!(routing.route(Partition(5)).of(3).reads(), slots(&new_placement, 5));
    let other = Routing::new(&joining, &new_placement, Some(&new_placement));
    assert!(matches!(other, Err(RoutingError::Placement { side: Side::Old, .. })), "{other:?}");
    let missing = Routing::new(&joining, &old_placement, None);
    assert!(matches!(missing, Err(RoutingError::Placement { side: Side::New, found: None, .. })));
    assert_eq!(routing.route(Partition(99)).of(3).targets().count(), 0);
}

/// What a step waits for is named, and nothing else.
#[test]
fn waits_are_named() {
    let first = opened(&named(3));
    let read = in_phase(&first, joint(Side::New, true, 0, 16));
    let list: &[Slot] = &[Slot(0), Slot(1), Slot(2)];
    let waits = |current: &Configuration, next: &Configuration, progress: &Progress| {
        let kind = current.check_successor(next).unwrap();
        waits_for((current, next), kind, progress, [list], 2)
    };
    let whole = Configuration { phase: joint(Side::Old, false, 0, 16), ..first.clone() };
    let read = Configuration { previous: whole.hash(), ..read };
    let mut progress = Progress::new(whole.epoch);
    assert_eq!(waits(&whole, &read, &progress).len(), 4 + 12);
    for id in (1..=4).map(NodeId) {
        progress.adopt(Epoch(9), id);
        progress.adopt(whole.epoch, id);
        for source in (1..=4).map(NodeId).filter(|source| *source != id && *source != NodeId(3)) {
            progress.compare(whole.epoch, id, source);
        }
    }
    let missing = |member| Wait::Comparison { member: NodeId(member), source: NodeId(3) };
    assert_eq!(waits(&whole, &read, &progress), [missing(1), missing(2), missing(4)]);
    // Without node 3, which is marked, nothing is missing; without two of three, there may be a quorum of them.
    let marked = Configuration {
        members: {
            let mut m = read.members.clone();
            m[2].lacks = true;
            m
        },
        ..read.clone()
    };
    assert_eq!(waits(&whole, &marked, &progress), []);
    let mut both = marked.clone();
    both.members[1].lacks = true;
    assert_eq!(waits(&whole, &both, &progress), [Wait::TooManyLack { from: 3, lacking: 2 }]);
    // The end waits for adoption only; a cancel before anything was read by the new side waits for nothing.
    let fresh = Progress::new(read.epoch);
    assert_eq!(waits(&read, &ended(&read), &fresh).len(), 4);
    assert_eq!(waits(&whole, &cancelled(&whole), &progress), []);
    // A mark goes with a refill, and once the others have taken what the member alone has.
    let stable = next(&named(3), |next| next.members[0].lacks = true);
    let clear = next(&stable, |next| next.members[0].lacks = false);
    let mut progress = Progress::new(stable.epoch);
    assert_eq!(waits(&stable, &clear, &progress).len(), 4);
    for other in [2, 3].map(NodeId) {
        progress.compare(stable.epoch, NodeId(1), other);
    }
    let taken = |member| Wait::Comparison { member: NodeId(member), source: NodeId(1) };
    assert_eq!(waits(&stable, &clear, &progress), [taken(2), taken(3)]);
}

/// Where all members are marked, no mark goes before each has taken what it lacks from all others: what a member owns no longer
/// is taken from it only while it is marked.
#[test]
fn where_all_are_marked_all_are_compared_first() {
    let marked = next(&named(3), |next| next.members.iter_mut().for_each(|member| member.lacks = true));
    let one = next(&marked, |next| next.members[0].lacks = false);
    let mut progress = Progress::new(marked.epoch);
    let ids: Vec<NodeId> = marked.members.iter().map(|member| member.id).collect();
    let mut pairs: Vec<(NodeId, NodeId)> = ids
        .iter()
        .flat_map(|by| ids.iter().map(move |from| (*by, *from)))
        .filter(|(by, from)| by != from)
        .collect();
    while let Some((member, source)) = pairs.pop() {
        let waits = waits_for((&marked, &one), Transition::Upkeep, &progress, [], 2);
        assert_eq!(waits.len(), pairs.len() + 1);
        assert!(waits.contains(&Wait::Comparison { member, source }));
        progress.compare(marked.epoch, member, source);
    }
    assert_eq!(waits_for((&marked, &one), Transition::Upkeep, &progress, [], 2), []);
}

/// A single copy that lacks is one too many only where single copies count.
#[test]
fn single_copies_count_if_asked() {
    let stable = named(3);
    let first = Configuration { phase: joint(Side::Old, false, 0, 16), ..opened(&stable) };
    let mut read = in_phase(&first, joint(Side::New, true, 0, 16));
    read.members[0].lacks = true;
    let list: &[Slot] = &[Slot(0), Slot(1), Slot(2)];
    let lacks = |from_min| {
        let waits =
            waits_for((&first, &read), Transition::Switch, &Progress::new(first.epoch), [list], from_min);
        waits.into_iter().filter(|wait| matches!(wait, Wait::TooManyLack { .. })).collect::<Vec<_>>()
    };
    assert_eq!(lacks(1), [Wait::TooManyLack { from: 1, lacking: 1 }]);
    assert_eq!(lacks(2), []);
}

fn slots(numbers: &[u16]) -> Vec<Slot> {
    numbers.iter().copied().map(Slot).collect()
}

proptest! {
    /// A decoder never fails but by a named error, and what it reads has one form.
    #[test]
    fn any_bytes_are_refused_or_read(mut bytes in prop::collection::vec(any::<u8>(), 0..400), cut: prop::sample::Index) {
        let _ = Configuration::decode(&bytes);
        let whole = opened(&named(3)).encode();
        bytes.truncate(3);
        let mut damaged = whole.clone();
        let at = cut.index(whole.len());
        damaged[at] ^= bytes.first().copied().unwrap_or(1).max(1);
        if let Ok(read) = Configuration::decode(&damaged) {
            prop_assert_eq!(read.encode(), damaged);
            prop_assert_ne!(read.hash(), opened(&named(3)).hash());
        }
        prop_assert!(Configuration::decode(&whole[..at]).is_err());
    }

    /// Two neighbours in a change agree: whatever quorum one writes, the other reads a replica of it. The lists are any
    /// two, and quorums any that overlap.
    #[test]
    fn neighbours_overlap(
        order in Just((0..7_u16).collect::<Vec<_>>()).prop_shuffle(),
        other in Just((0..7_u16).collect::<Vec<_>>()).prop_shuffle(),
        from in 1..6_u16,
        confirms in prop::collection::vec(any::<bool>(), 7),
        answers in prop::collection::vec(any::<bool>(), 7),
    ) {
        let (old, new) = (slots(&order), slots(&other));
        let quorum = Quorum::majority_of(from);
        let phases = [
            Phase::Stable,
            joint(Side::Old, false, 0, 16),
            joint(Side::New, true, 0, 16),
            Phase::Stable,
        ];
        // The last phase has the new list only.
        let route = |at: usize| if at == 3 { Route::single(&new) } else { phases[at].route(Partition(3), &old, &new) };
        let confirmed = |slot: Slot| confirms[usize::from(slot.0)];
        for (writer, reader) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)] {
            let mut tally = PerList::of_quorum(route(writer), quorum);
            for slot in route(writer).of(from).targets().filter(|slot| confirmed(*slot)) {
                tally.count(slot, crate::Tally::confirm);
            }
            let read: Vec<Slot> =
                route(reader).of(from).reads().iter().copied().filter(|slot| answers[usize::from(slot.0)]).collect();
            if tally.verdict() == Verdict::Reached && read.len() >= usize::from(quorum.ack()) {
                prop_assert!(read.iter().any(|slot| confirmed(*slot)), "{} then {}", writer, reader);
            }
        }
    }

    /// The verdict over two lists is that of counting each by hand, and is final.
    #[test]
    fn every_list_counts(
        order in Just((0..6_u16).collect::<Vec<_>>()).prop_shuffle(),
        other in Just((0..6_u16).collect::<Vec<_>>()).prop_shuffle(),
        from in 1..5_u16,
        ack in 1..5_u16,
        answers in prop::collection::vec(any::<bool>(), 6),
    ) {
        prop_assume!(ack <= from);
        let (old, new) = (slots(&order), slots(&other));
        let route = Route::joint(&old, &new, Side::Old);
        let quorum = Quorum::new(ack, from, 6)?;
        let mut tally = PerList::of_quorum(route, quorum);
        let mut known = Verdict::Pending;
        for slot in (0..6).map(Slot) {
            let confirms = answers[usize::from(slot.0)];
            tally.count(slot, |tally| if confirms { tally.confirm() } else { tally.fail() });
            if known != Verdict::Pending {
                prop_assert_eq!(tally.verdict(), known);
            }
            known = tally.verdict();
        }
        let reached = |list: &[Slot]| {
            list[..usize::from(from)].iter().filter(|slot| answers[usize::from(slot.0)]).count() >= usize::from(ack)
        };
        let expect = if reached(&old) && reached(&new) { Verdict::Reached } else { Verdict::Unreachable };
        prop_assert_eq!(known, expect);
    }
}
