//! Forced configurations.

use super::*;
use std::collections::BTreeMap;

fn cluster_of(nodes: u64) -> (Configuration, Placement) {
    let member = |id: u64| topology::Member {
        id: NodeId(id),
        url: format!("http://n{id}:8080"),
        weight: 1,
        zone: String::new(),
    };
    let topology = Topology::new((1..=nodes).map(member).collect(), 4).unwrap();
    let placement = Placement::initial(&topology);
    let zero = Configuration::genesis(ClusterId::new(7).unwrap(), &topology, &placement);
    let stores: BTreeMap<NodeId, u128> = (1..=nodes).map(|id| (NodeId(id), u128::from(id) + 0x50)).collect();
    (zero.with_stores(&stores).unwrap().with_level(MOVES_LEVEL).unwrap(), placement)
}

fn lost(ids: &[u64]) -> BTreeSet<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

/// Goal: a forced successor names whom is left, retires the lost stores for ever, and has no change under way, also where one
/// was. Method: one of three is left, and two of four in the midst of a change; the chain goes on from there.
#[test]
fn members_that_are_left_go_on() {
    let (three, placement) = cluster_of(3);
    let forced = three.forced(&lost(&[1, 3]), &placement).unwrap();
    let next = &forced.configuration;
    assert_eq!(three.check_successor(next), Ok(Transition::Forced));
    let [left] = &next.members[..] else { panic!("{next:?}") };
    assert_eq!((left.id, left.lacks, &left.state), (NodeId(2), false, &MemberState::In));
    assert!(next.is_retired(Voter { node: NodeId(1), store: 0x51 }));
    assert!(next.is_retired(Voter { node: NodeId(3), store: 0x53 }));
    assert_eq!((next.slots_used, next.placement), (4, forced.placement.hash()));
    assert_eq!(next.forced_electorate().needed(), 1);
    let joiner =
        Joiner { id: NodeId(1), url: "http://n1:8080".into(), zone: String::new(), weight: 1, store: 0x71 };
    let opening = next.plan(&forced.placement, &[MemberChange::Add(joiner.clone())], 256).unwrap();
    assert_eq!(opening.configuration.member(NodeId(1)).unwrap().slot, Slot(4), "no slot is given twice");
    let back = MemberChange::Add(Joiner { store: 0x51, ..joiner });
    assert!(matches!(next.plan(&forced.placement, &[back], 256), Err(PlanError::Removed { .. })));

    let (four, placement) = cluster_of(4);
    let changes = [MemberChange::Remove(NodeId(1)), MemberChange::Weight { node: NodeId(2), weight: 5 }];
    let joint = four.plan(&placement, &changes, 4).unwrap().configuration;
    let forced = joint.forced(&lost(&[3, 4]), &placement).unwrap().configuration;
    assert_eq!(joint.check_successor(&forced), Ok(Transition::Forced));
    assert_eq!(forced.phase, Phase::Stable);
    assert!(forced.members.iter().all(|member| member.lacks && member.state == MemberState::In));
    assert_eq!(
        forced.members.iter().map(|member| (member.id.0, member.weight)).collect::<Vec<_>>(),
        [(1, 1), (2, 1)]
    );
}

/// Where a majority is left, or nobody, or the stores have no names, nothing is forced.
#[test]
fn forcing_is_refused_by_name() {
    let (five, placement) = cluster_of(5);
    assert_eq!(
        five.forced(&lost(&[1, 2]), &placement).unwrap_err(),
        PlanError::MajorityLeft { members: 5, left: 3 }
    );
    assert!(five.forced(&lost(&[1, 2, 3]), &placement).is_ok());
    assert_eq!(five.forced(&lost(&[1, 2, 3, 4, 5]), &placement).unwrap_err(), PlanError::LastMember);
    assert_eq!(five.forced(&lost(&[9]), &placement).unwrap_err(), PlanError::NoMember { id: NodeId(9) });
    let zero = Configuration { epoch: Epoch(0), ..five.clone() };
    assert_eq!(zero.forced(&lost(&[1, 2, 3]), &placement).unwrap_err(), PlanError::Unnamed);
    let level = Configuration { feature_level: 0, ..five.clone() };
    assert!(matches!(level.forced(&lost(&[1, 2, 3]), &placement), Err(PlanError::Level { .. })));
}

/// A forced successor that breaks a rule is refused, and no ordinary successor passes for a forced one.
#[test]
fn forced_successors_are_checked() {
    let (five, placement) = cluster_of(5);
    let good = five.forced(&lost(&[1, 2, 3]), &placement).unwrap().configuration;
    let check = |change: &dyn Fn(&mut Configuration)| {
        let mut next = good.clone();
        change(&mut next);
        five.check_successor(&next).unwrap_err()
    };
    assert!(matches!(check(&|next| next.members[0].lacks = false), SuccessorError::MemberChanged { .. }));
    assert!(matches!(check(&|next| next.members[0].weight = 2), SuccessorError::MemberChanged { .. }));
    assert!(matches!(check(&|next| next.members[0].store = Some(9)), SuccessorError::MemberChanged { .. }));
    assert!(matches!(check(&|next| next.retired.clear()), SuccessorError::Retired { .. }));
    assert!(matches!(check(&|next| next.feature_level += 1), SuccessorError::FeatureLevel { .. }));
    assert!(matches!(check(&|next| next.slots_used -= 1), SuccessorError::Placement { .. }));
    let mut most = five.forced(&lost(&[1, 2, 3]), &placement).unwrap().configuration;
    most.members =
        five.members.iter().map(|member| ClusterMember { lacks: true, ..member.clone() }).collect();
    most.members.remove(0);
    most.retired = vec![five.members[0].voter().unwrap()];
    assert_eq!(five.check_successor(&most), Err(SuccessorError::NotForced { members: 5, left: 4 }));
}

/// Goal: members that are left count only when each has what any of them has. Method: three of six; the marks go together once
/// each store was compared with both others. One that is lost meanwhile is forced away.
#[test]
fn marks_go_once_all_were_compared() {
    let (six, placement) = cluster_of(6);
    let Forced { configuration: current, placement } = six.forced(&lost(&[4, 5, 6]), &placement).unwrap();
    let routing = Routing::new(&current, &placement, None).unwrap();
    let away = BTreeSet::new();
    let step = |progress: &Progress| {
        next_step(&Situation {
            current: &current,
            routing: &routing,
            progress,
            away: &away,
            from_min: 2,
            window_partitions: 256,
        })
    };
    let mut progress = Progress::new(current.epoch);
    for (member, source) in [(2, 1), (2, 3), (1, 2), (1, 3), (3, 1), (3, 2)] {
        assert!(matches!(step(&progress), NextStep::Wait(_)), "{:?}", step(&progress));
        progress.compare(current.epoch, NodeId(member), NodeId(source));
    }
    let NextStep::Propose(next) = step(&progress) else { panic!("{:?}", step(&progress)) };
    let marks: Vec<_> = next.members.iter().map(|member| (member.id.0, member.lacks)).collect();
    assert_eq!(marks, [(1, false), (2, false), (3, false)]);
    assert_eq!(current.check_successor(&next), Ok(Transition::Upkeep));
    assert_eq!(
        next.forced(&lost(&[3]), &placement).unwrap_err(),
        PlanError::MajorityLeft { members: 3, left: 2 }
    );
    let again = current.forced(&lost(&[3]), &placement).unwrap().configuration;
    assert_eq!(current.check_successor(&again), Ok(Transition::Forced));
}

/// A forced configuration counts the partitions without a copy, and those with too few.
#[test]
fn losses_are_counted() {
    let (five, placement) = cluster_of(5);
    let routing = Routing::new(&five, &placement, None).unwrap();
    let forced = five.forced(&lost(&[1, 2, 3]), &placement).unwrap().configuration;
    let left: Vec<Slot> = forced.members.iter().map(|member| member.slot).collect();
    let copies = |partition: u16, from: usize| {
        let (old, _) = routing.sides(partition.into());
        old[..from].iter().filter(|slot| left.contains(slot)).count()
    };
    for from in 1..=5_u16 {
        let count = |is: &dyn Fn(usize) -> bool| {
            u32::try_from((0..16).filter(|partition| is(copies(*partition, from.into()))).count()).unwrap()
        };
        let lost = usize::from(from - (from / 2 + 1));
        let expect = Losses {
            partitions: 16,
            gone: count(&|copies| copies == 0),
            doubtful: count(&|copies| (1..=lost).contains(&copies)),
        };
        assert_eq!(Losses::of(&forced, &routing, from), expect, "{from}");
    }
}
