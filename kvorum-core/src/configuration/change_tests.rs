//! Planned changes, driven to their ends.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BITS: u8 = 4;

fn url(id: u64) -> String {
    format!("http://n{id}:8080")
}

fn joiner(id: u64, store: u128) -> Joiner {
    Joiner { id: NodeId(id), url: url(id), zone: format!("z{}", id % 2), weight: 1, store }
}

/// A cluster at level 1, and its placement.
fn cluster_of(nodes: u64) -> (Configuration, Placement) {
    let member =
        |id: u64| topology::Member { id: NodeId(id), url: url(id), weight: 1, zone: format!("z{}", id % 2) };
    let topology = Topology::new((1..=nodes).map(member).collect(), BITS).unwrap();
    let placement = Placement::initial(&topology);
    let zero = Configuration::genesis(ClusterId::new(7).unwrap(), &topology, &placement);
    let stores: BTreeMap<NodeId, u128> = (1..=nodes).map(|id| (NodeId(id), u128::from(id) + 0x50)).collect();
    (zero.with_stores(&stores).unwrap().with_level(MOVES_LEVEL).unwrap(), placement)
}

/// The cluster, with what nodes and drivers know.
struct World {
    current: Configuration,
    old: Placement,
    new: Option<Placement>,
    progress: Progress,
    window: u32,
    epochs: u64,
}

impl World {
    fn new(nodes: u64, window: u32) -> Self {
        let (current, old) = cluster_of(nodes);
        let progress = Progress::new(current.epoch);
        Self { current, old, new: None, progress, window, epochs: 0 }
    }

    fn routing(&self) -> Routing {
        Routing::new(&self.current, &self.old, self.new.as_ref()).unwrap()
    }

    fn adopt(&mut self, next: Configuration) {
        assert!(self.current.check_successor(&next).is_ok(), "{} after {}", next.phase, self.current.phase);
        if next.phase == Phase::Stable
            && let Some(new) = self.new.take_if(|_| self.current.phase != Phase::Stable)
            && new.hash() == next.placement
        {
            self.old = new;
        }
        self.progress = Progress::new(next.epoch);
        self.current = next;
        self.epochs += 1;
        assert!(self.epochs < 1000, "the change does not end");
    }

    fn open(&mut self, changes: &[MemberChange]) -> Result<(), PlanError> {
        let opening = self.current.plan(&self.old, changes, self.window)?;
        self.new = Some(opening.placement);
        self.adopt(opening.configuration);
        Ok(())
    }

    fn next(&self, away: &BTreeSet<NodeId>) -> NextStep {
        let situation = Situation {
            current: &self.current,
            routing: &self.routing(),
            progress: &self.progress,
            away,
            from_min: 2,
            window_partitions: self.window,
        };
        let next = next_step(&situation);
        assert_eq!(next, next_step(&situation));
        next
    }

    /// One step, or what it waits for happens; false at the end.
    fn turn(&mut self, away: &BTreeSet<NodeId>) -> bool {
        let epoch = self.current.epoch;
        match self.next(away) {
            NextStep::Propose(next) => self.adopt(*next),
            NextStep::Wait(waits) => {
                assert!(!waits.is_empty());
                for wait in waits {
                    match wait {
                        Wait::Adoption { member } => self.progress.adopt(epoch, member),
                        Wait::Comparison { member, source } => self.progress.compare(epoch, member, source),
                        Wait::TooManyLack { .. } => return false,
                    }
                }
            }
            NextStep::Nothing => return false,
        }
        true
    }

    fn drive(&mut self, away: &BTreeSet<NodeId>) {
        while self.turn(away) {}
    }
}

fn nobody() -> BTreeSet<NodeId> {
    BTreeSet::new()
}

/// Each refusal is named.
#[test]
fn refused_plans_are_named() {
    let (current, placement) = cluster_of(3);
    let refused = |changes: &[MemberChange]| current.plan(&placement, changes, 4).unwrap_err();
    let id = NodeId(9);
    assert_eq!(refused(&[MemberChange::Add(joiner(1, 0x99))]), PlanError::Member { id: NodeId(1) });
    assert_eq!(refused(&[MemberChange::Remove(id)]), PlanError::NoMember { id });
    let twice = MemberChange::Weight { node: NodeId(1), weight: 2 };
    assert_eq!(
        refused(&[twice.clone(), MemberChange::Remove(NodeId(1))]),
        PlanError::NamedTwice { id: NodeId(1) }
    );
    let same = MemberChange::Weight { node: NodeId(1), weight: 1 };
    assert_eq!(refused(&[same]), PlanError::Unchanged { id: NodeId(1) });
    let all: Vec<MemberChange> = (1..=3).map(|id| MemberChange::Remove(NodeId(id))).collect();
    assert_eq!(refused(&all), PlanError::LastMember);
    let invalid = |changes: &[MemberChange]| {
        let error = refused(changes);
        assert!(matches!(error, PlanError::Invalid(_)), "{error:?}");
    };
    invalid(&[MemberChange::Add(joiner(9, 0x51))]);
    invalid(&[MemberChange::Add(joiner(9, 0))]);
    invalid(&[MemberChange::Add(Joiner { url: url(1), ..joiner(9, 0x59) })]);
    invalid(&[MemberChange::Weight { node: NodeId(1), weight: 0 }]);
    invalid(&[MemberChange::Zone { node: NodeId(1), zone: "a b".into() }]);
    let low = Configuration { feature_level: 0, ..current.clone() };
    let add = [MemberChange::Add(joiner(9, 0x59))];
    assert_eq!(low.plan(&placement, &add, 4), Err(PlanError::Level { needed: 1, found: 0 }));
    let opened = current.plan(&placement, &add, 4).unwrap();
    assert_eq!(opened.configuration.plan(&placement, &add, 4), Err(PlanError::UnderWay));
    let other = current.plan(&opened.placement, &add, 4).unwrap_err();
    assert!(matches!(other, PlanError::Placement { .. }), "{other:?}");
    assert_eq!(current.cancelled(&opened.routing, 4), Err(PlanError::NotUnderWay));
}

/// A store that was removed is refused, and its node comes back with an empty one.
#[test]
fn a_removed_store_is_refused() {
    let mut world = World::new(3, 4);
    world.open(&[MemberChange::Remove(NodeId(3))]).unwrap();
    world.drive(&nobody());
    assert_eq!(world.current.members.len(), 2);
    let back = |store| [MemberChange::Add(joiner(3, store))];
    let voter = Voter { node: NodeId(3), store: 0x53 };
    assert_eq!(world.open(&back(0x53)), Err(PlanError::Removed { voter }));
    world.open(&back(0x63)).unwrap();
    world.drive(&nobody());
    assert_eq!(world.current.members[2].slot, Slot(3));
}

/// A new store in the place of a lost one is marked, and unmarked once it was compared with all others; the lost one never
/// comes back. It may be named while a change is under way.
#[test]
fn a_lost_store_is_replaced() {
    let mut world = World::new(3, 4);
    let id = NodeId(2);
    assert_eq!(world.current.with_store(id, 0x52), Err(PlanError::StoreNamed { id }));
    assert_eq!(world.current.with_store(NodeId(9), 1), Err(PlanError::NoMember { id: NodeId(9) }));
    let of_another = world.current.with_store(id, 0x51);
    assert!(matches!(of_another, Err(PlanError::Invalid(_))), "{of_another:?}");
    for (store, weight) in [(0x62, None), (0x72, Some(3))] {
        if let Some(weight) = weight {
            world.open(&[MemberChange::Weight { node: NodeId(1), weight }]).unwrap();
        }
        let lost = world.current.member(id).unwrap().voter().unwrap();
        world.adopt(world.current.with_store(id, store).unwrap());
        assert!(world.current.member(id).unwrap().lacks && world.current.is_retired(lost));
        world.drive(&nobody());
        let member = world.current.member(id).unwrap();
        assert_eq!((member.store, member.lacks, world.current.phase), (Some(store), false, Phase::Stable));
        assert_eq!(world.current.with_store(id, lost.store), Err(PlanError::Removed { voter: lost }));
    }
}

/// What a preview says: a replacement moves the member's partitions and no other, and all windows are counted.
#[test]
fn previews_count_what_moves() {
    let (current, placement) = cluster_of(4);
    let by = Joiner { zone: "z1".into(), ..joiner(9, 0x59) };
    let replace = current.plan(&placement, &[MemberChange::Replace { node: NodeId(1), by }], 5).unwrap();
    let preview = replace.preview(3, 5);
    let (left, came) = (preview.members[0], preview.members[4]);
    assert_eq!((left.before, left.after, left.gains, left.loses), (left.loses, 0, 0, left.before));
    assert_eq!((came.before, came.after, came.gains), (0, left.before, left.before));
    assert_eq!((preview.moving, preview.copies, preview.copies_least), (came.gains, came.gains, came.gains));
    assert_eq!((preview.copies_before, preview.copies_joint, preview.copies_after), (3, 4, 3));
    assert_eq!((preview.windows, preview.epochs), (4, 9));
    assert!(preview.members[1..4].iter().all(|member| (member.gains, member.loses) == (0, 0)));
    let add = current.plan(&placement, &[MemberChange::Add(joiner(9, 0x59))], 256).unwrap();
    let preview = add.preview(3, 256);
    assert_eq!((preview.windows, preview.epochs), (1, 3));
    assert!(preview.copies >= preview.copies_least && preview.copies_least > 0, "{preview:?}");
}

/// A change that moves nothing takes one window.
#[test]
fn a_change_without_moves_is_short() {
    let mut world = World::new(1, 1);
    world.open(&[MemberChange::Weight { node: NodeId(1), weight: 5 }]).unwrap();
    assert_eq!(world.next(&nobody()), world.next(&nobody()));
    world.drive(&nobody());
    assert_eq!((world.current.members[0].weight, world.epochs), (5, 3));
}

/// A dead machine is replaced without its data: it is marked, and gone at the end.
#[test]
fn a_dead_member_is_replaced() {
    let mut world = World::new(3, 4);
    world.open(&[MemberChange::Replace { node: NodeId(2), by: joiner(9, 0x59) }]).unwrap();
    let dead = BTreeSet::from([NodeId(2)]);
    world.drive(&dead);
    let ids: Vec<u64> = world.current.members.iter().map(|member| member.id.0).collect();
    assert_eq!((ids, world.current.phase), (vec![1, 3, 9], Phase::Stable));
    assert!(world.current.members.iter().all(|member| !member.lacks));
    // Two of three are dead: a step waits.
    let mut world = World::new(3, 4);
    world.open(&[MemberChange::Replace { node: NodeId(2), by: joiner(9, 0x59) }]).unwrap();
    world.drive(&BTreeSet::from([NodeId(2), NodeId(3)]));
    let NextStep::Wait(waits) = world.next(&BTreeSet::from([NodeId(2), NodeId(3)])) else {
        panic!("it waits")
    };
    assert!(matches!(waits.as_slice(), [Wait::TooManyLack { .. }, ..]), "{waits:?}");
}

#[derive(Debug, Clone)]
struct Wanted {
    kind: u8,
    node: prop::sample::Index,
    weight: u32,
    /// The turns at which the change is turned round.
    turns: Vec<u8>,
    away: Option<prop::sample::Index>,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let turns = prop::collection::vec(0..40_u8, 0..3);
    let away = prop::option::of(any::<prop::sample::Index>());
    (0..5_u8, any::<prop::sample::Index>(), 1..4_u32, turns, away)
        .prop_map(|(kind, node, weight, turns, away)| Wanted { kind, node, weight, turns, away })
}

fn change_of(wanted: &Wanted, current: &Configuration, fresh: u64) -> MemberChange {
    let node = wanted.node.get(&current.members).id;
    let by = joiner(fresh, u128::from(fresh) + 0x50);
    match wanted.kind {
        0 => MemberChange::Add(by),
        1 => MemberChange::Remove(node),
        2 => MemberChange::Replace { node, by },
        3 => MemberChange::Weight { node, weight: wanted.weight },
        _ => MemberChange::Zone { node, zone: format!("z{}", wanted.weight) },
    }
}

/// The members after the change, made by hand.
fn members_after(current: &Configuration, change: &MemberChange) -> Vec<topology::Member> {
    let mut members = current.topology(Side::Old).unwrap().members().to_vec();
    let come = |by: &Joiner| topology::Member {
        id: by.id,
        url: by.url.clone(),
        weight: by.weight,
        zone: by.zone.clone(),
    };
    match change {
        MemberChange::Add(by) => members.push(come(by)),
        MemberChange::Remove(node) => members.retain(|member| member.id != *node),
        MemberChange::Replace { node, by } => {
            members.retain(|member| member.id != *node);
            members.push(come(by));
        }
        MemberChange::Weight { node, weight } => {
            members.iter_mut().filter(|member| member.id == *node).for_each(|member| member.weight = *weight);
        }
        MemberChange::Zone { node, zone } => {
            members.iter_mut().filter(|member| member.id == *node).for_each(|m| m.zone.clone_from(zone));
        }
    }
    members
}

proptest! {
    /// Goal: any sequence of plans ends, wherever it is cancelled or taken up again, and with a member away; placements are
    /// those of direct changes. Method: a driver and a world in which everything that is waited for happens.
    #[test]
    fn every_change_ends(
        nodes in 1..5_u64,
        window in 1..20_u32,
        plans in prop::collection::vec(wanted(), 1..5),
    ) {
        let mut world = World::new(nodes, window);
        for (at, wanted) in plans.iter().enumerate() {
            let (before, placement) = (world.current.clone(), world.old.clone());
            let change = change_of(wanted, &before, 100 + at as u64);
            if world.open(std::slice::from_ref(&change)).is_err() {
                prop_assert_eq!(&world.current, &before);
                continue;
            }
            let away: BTreeSet<NodeId> =
                wanted.away.iter().map(|index| index.get(&world.current.members).id).collect();
            for turn in 0..=u8::MAX {
                if wanted.turns.contains(&turn) && let Some(heading) = world.current.phase.heading() {
                    let routing = world.routing();
                    let next = match heading {
                        Heading::Forwards => world.current.cancelled(&routing, window).unwrap(),
                        Heading::Back => world.current.step(&routing, Heading::Forwards, window).unwrap(),
                    };
                    let kind = world.current.check_successor(&next).unwrap();
                    let waits =
                        waits_for((&world.current, &next), kind, &world.progress, routing.moving(), 2);
                    prop_assert_eq!(waits, vec![], "a change of direction waits for nothing");
                    world.adopt(next);
                } else if !world.turn(&away) {
                    break;
                }
            }
            world.drive(&away);
            // Members that were away come back and are refilled.
            world.drive(&nobody());
            prop_assert_eq!(world.current.phase, Phase::Stable);
            prop_assert!(world.current.members.iter().all(|member| !member.lacks));
            let old = before.topology(Side::Old).unwrap();
            let new = Topology::new(members_after(&before, &change), BITS).unwrap();
            let topology = world.current.topology(Side::Old).unwrap();
            prop_assert!(topology == new || topology == old);
            let expected = if topology == new { placement.change(&old, &new)? } else { placement };
            prop_assert_eq!(&world.old, &expected);
            prop_assert_eq!(world.current.placement, world.old.hash());
        }
    }
}
