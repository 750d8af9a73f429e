//! The view: the cluster in one epoch, as an immutable value. A request takes one when it begins, and keeps it.
//!
//! A node builds the view of each epoch from the one before, so all nodes that adopted one chain have the same placements:
//! a configuration names its placements by their hashes, which are checked. Nodes are named by their slots, which they keep
//! for life; the places in a topology, by which placements speak, do not leave this file.

use crate::canary::{self, Canary};
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{Configuration, Phase, Route, Routing, RoutingError, Side, Window};
use kvorum_core::{ClusterId, Key, NodeId, Partition, Placement, Quorum, Slot, Token, Topology};
use std::sync::Arc;

/// The cluster in one epoch.
#[derive(Debug, Clone)]
pub struct View {
    configuration: Arc<Configuration>,
    /// The first epoch in which keys are placed, written and read as in this one.
    placed_since: Epoch,
    old: Arc<Placed>,
    /// The new side, while a change is under way.
    new: Option<Arc<Placed>>,
    routing: Arc<Routing>,
    /// The slots of all members, ascending.
    slots: Vec<Slot>,
    /// The change under way.
    under_way: Option<UnderWay>,
}

/// A change under way.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    /// Its first epoch.
    opened: Epoch,
    /// Whether a step of it has waited until all members had adopted one of its epochs.
    is_known: bool,
}

/// A topology with its placement.
#[derive(Debug)]
struct Placed {
    topology: Topology,
    placement: Placement,
}

/// The plan of one request: fixed once made.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'v> {
    /// The key's partition.
    pub partition: Partition,
    /// The lists of replicas, each cut to the quorum's `from`.
    pub route: Route<'v>,
    /// The replicas that are read, best first.
    pub replicas: &'v [Slot],
    /// How many must confirm, on each list.
    pub quorum: Quorum,
    /// The epoch that the request names: a replica carries it out only if keys are placed there in the same way.
    pub epoch: Epoch,
}

/// A comparison: the first node takes from the second what it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// The node that takes.
    pub by: Slot,
    /// The node that holds.
    pub from: Slot,
}

impl View {
    /// The view of epoch 0: the members of `topology`, in whose order they have their slots.
    ///
    /// # Panics
    /// Never: the configuration is made of this topology and its placement.
    pub fn genesis(cluster: ClusterId, topology: &Topology) -> Self {
        let placement = Placement::initial(topology);
        let configuration = Arc::new(Configuration::genesis(cluster, topology, &placement));
        let slots = (0..topology.node_count()).map(Slot).collect();
        let old = Arc::new(Placed { topology: topology.clone(), placement });
        let routing = Routing::new(&configuration, &old.placement, None);
        #[expect(clippy::expect_used, reason = "the configuration was made of this topology and placement")]
        let routing = Arc::new(routing.expect("the placement of its own configuration"));
        Self { configuration, placed_since: Epoch(0), old, new: None, routing, slots, under_way: None }
    }

    /// The same epoch, 0, of the cluster `id`.
    #[must_use]
    pub fn of_cluster(&self, id: ClusterId) -> Self {
        let configuration = Configuration { cluster: id, ..Configuration::clone(&self.configuration) };
        Self { configuration: Arc::new(configuration), ..self.clone() }
    }

    /// The view of `next`, which follows this one's configuration.
    ///
    /// # Errors
    /// [`RoutingError`]: this node would place keys elsewhere than `next` says, or `next` contradicts itself.
    pub fn next(&self, next: Arc<Configuration>) -> Result<Self, RoutingError> {
        let old = self.placed(&next, Side::Old, next.placement, &self.old)?;
        let new = match next.phase {
            Phase::Stable => None,
            Phase::Joint { placement, .. } => Some(self.placed(&next, Side::New, placement, &old)?),
        };
        let routing = Routing::new(&next, &old.placement, new.as_ref().map(|new| &new.placement))?;
        let mut slots: Vec<Slot> = next.members.iter().map(|member| member.slot).collect();
        slots.sort_unstable();
        let is_same = routing == *self.routing && lacking(&next).eq(lacking(&self.configuration));
        let placed_since = if is_same { self.placed_since } else { next.epoch };
        let routing = if is_same { Arc::clone(&self.routing) } else { Arc::new(routing) };
        let under_way = self.under_way_in(&next);
        Ok(Self { configuration: next, placed_since, old, new, routing, slots, under_way })
    }

    fn under_way_in(&self, next: &Configuration) -> Option<UnderWay> {
        let (Phase::Joint { reads, .. }, before) = (next.phase, self.configuration.phase) else {
            return None;
        };
        let mut under_way = self.under_way.unwrap_or(UnderWay { opened: next.epoch, is_known: false });
        under_way.is_known |=
            reads == Side::New && matches!(before, Phase::Joint { reads: Side::Old, is_filled: false, .. });
        Some(under_way)
    }

    /// One side of `next`, with the placement of the hash `expected`: one that this view has, or what becomes of `before`.
    fn placed(
        &self,
        next: &Configuration,
        side: Side,
        expected: u64,
        before: &Arc<Placed>,
    ) -> Result<Arc<Placed>, RoutingError> {
        let topology = next.topology(side).map_err(RoutingError::Topology)?;
        let known = [Some(before), Some(&self.old), self.new.as_ref()].into_iter().flatten();
        let mut known = known.filter(|placed| placed.placement.hash() == expected);
        if let Some(known) = known.find(|placed| placed.topology == topology) {
            return Ok(Arc::clone(known));
        }
        let changed = before.placement.change(&before.topology, &topology).ok();
        let found = changed.as_ref().map(Placement::hash);
        match changed.filter(|_| found == Some(expected)) {
            Some(placement) => Ok(Arc::new(Placed { topology, placement })),
            None => Err(RoutingError::Placement { side, expected, found }),
        }
    }

    /// The configuration.
    pub fn configuration(&self) -> &Arc<Configuration> {
        &self.configuration
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.configuration.epoch
    }

    /// The first epoch in which keys are placed, written and read as in this one. Requests name it: epochs that change
    /// nothing of that, as one that names stores does, refuse no request.
    pub fn placed_since(&self) -> Epoch {
        self.placed_since
    }

    /// Whether a change moves partitions now.
    pub fn is_joint(&self) -> bool {
        self.configuration.phase != Phase::Stable
    }

    /// Whether a change is under way, and some keys are read where they belong afterwards.
    pub fn is_read_anew(&self) -> bool {
        let phase = self.configuration.phase;
        matches!(phase, Phase::Joint { reads, window, .. } if reads == Side::New || window.begin > 0)
    }

    /// Whether a member that has adopted the epoch `adopted`, as far as is known, surely knows of the change under way.
    ///
    /// Only such a member may be marked as lacking records: it asks others before it alone answers a client
    /// ([`Self::must_confirm`]). Another one, cut off in the epoch before the change, would not.
    pub fn knows_of_change(&self, adopted: Option<Epoch>) -> bool {
        self.under_way
            .is_none_or(|change| change.is_known || adopted.is_some_and(|adopted| adopted >= change.opened))
    }

    /// Whether a request to `quorum` must wait until a majority of the members has said that no later configuration was decided. The
    /// few replicas that it asks may all be ones that the change went on without.
    pub fn must_confirm(&self, quorum: Quorum) -> bool {
        self.is_joint() && (quorum.from() == 1 || quorum.ack() <= quorum.from() / 2)
    }

    /// Whether any member's store is marked as lacking records.
    pub fn is_any_lacking(&self) -> bool {
        lacking(&self.configuration).next().is_some()
    }

    /// Whether the store at `slot` is marked as lacking records: its answers do not count.
    pub fn is_lacking(&self, slot: Slot) -> bool {
        lacking(&self.configuration).any(|lacking| lacking == slot)
    }

    /// The slots of all members, ascending: of those that join and leave, too.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// How many members there are.
    pub fn member_count(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// How many replicas a key can have: nodes of the smaller side, while a change is under way.
    pub fn node_count(&self) -> u16 {
        let sides = [Some(&self.old), self.new.as_ref()].into_iter().flatten();
        sides.map(|placed| placed.topology.node_count()).min().unwrap_or(1)
    }

    /// The topology that is read: the old one until the last window of a change is read on the new side.
    pub fn topology(&self) -> &Topology {
        match (self.configuration.phase, &self.new) {
            (Phase::Joint { reads: Side::New, window: Window { end, .. }, .. }, Some(new))
                if end == 1 << self.configuration.partition_bits =>
            {
                &new.topology
            }
            _ => &self.old.topology,
        }
    }

    /// The placement of the configuration: of its old side, while a change is under way.
    pub fn placement(&self) -> &Placement {
        &self.old.placement
    }

    /// The lists of all partitions.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The slot of the member `id`.
    pub fn slot_of(&self, id: NodeId) -> Option<Slot> {
        self.configuration.member(id).map(|member| member.slot)
    }

    /// Whether `slot` is a member's.
    pub fn has(&self, slot: Slot) -> bool {
        self.slots.binary_search(&slot).is_ok()
    }

    /// The partition of `key`.
    pub fn partition_of(&self, key: &Key) -> Partition {
        Token::of(key.as_ref()).partition(self.configuration.partition_bits)
    }

    /// The lists of `partition`, whole.
    pub fn route(&self, partition: Partition) -> Route<'_> {
        self.routing.route(partition)
    }

    /// The nodes from which keys of `partition` are read, best first: all that hold it. A request uses a prefix of the list.
    pub fn preference_list(&self, partition: Partition) -> &[Slot] {
        self.route(partition).reads()
    }

    /// Whether `key` is written to the node at `slot`, and not read from it yet. What the node lacks, the owners of the other
    /// list have, who confirm each write as well; it is read once it was compared with them, or marked as lacking.
    pub fn is_unread(&self, key: &Key, slot: Slot) -> bool {
        let route = self.route(self.partition_of(key));
        route.is_joint() && !route.reads().contains(&slot) && route.targets().any(|target| target == slot)
    }

    /// The rank of the node at `slot` for `partition`; its better one, where two lists are written.
    pub fn rank_of(&self, partition: Partition, slot: Slot) -> Option<u16> {
        let ranks = self.route(partition).writes().filter_map(|list| list.iter().position(|at| *at == slot));
        ranks.min().and_then(|rank| u16::try_from(rank).ok())
    }

    /// In `partition`, the two nodes of `pull` are compared in the records whose FROM is above this rank: the higher one of both, as
    /// those records belong on both.
    ///
    /// If one of them is marked as lacking records, the other gives or takes all that the taking one owns. A change did not wait for
    /// the marked one: it may hold a record that it owns no longer, and that nobody else has. It may also own a record since, and
    /// only the owner of before has it.
    pub fn rank_max(&self, partition: Partition, pull: Pull) -> u16 {
        let rank = |slot| self.rank_of(partition, slot).unwrap_or(u16::MAX);
        let gives_all = self.is_lacking(pull.from) && !canary::is(Canary::MarkedKeepRecords);
        let takes_all = self.is_lacking(pull.by) && !canary::is(Canary::MarkedTakeShared);
        if gives_all || takes_all { rank(pull.by) } else { rank(pull.by).max(rank(pull.from)) }
    }

    /// Plans a request.
    pub fn plan(&self, key: &Key, quorum: Quorum) -> Plan<'_> {
        let partition = self.partition_of(key);
        let mut route = self.route(partition).of(quorum.from());
        if canary::is(Canary::WritesOneList) {
            route = Route::single(route.reads());
        }
        Plan { partition, route, replicas: route.reads(), quorum, epoch: self.placed_since }
    }
}

fn lacking(configuration: &Configuration) -> impl Iterator<Item = Slot> + '_ {
    configuration.members.iter().filter(|member| member.lacks).map(|member| member.slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::configuration::{ClusterMember, MemberState};

    const BITS: u8 = 12;

    fn url(number: u16) -> String {
        format!("http://n-{number}:1")
    }

    fn three() -> View {
        let topology = Topology::of_urls((0..3).map(url)).unwrap();
        View::genesis(ClusterId::STAND_IN, &topology)
    }

    /// The configuration after that of `view`, changed by `change`.
    fn after(view: &View, change: impl FnOnce(&mut Configuration)) -> Arc<Configuration> {
        let mut next = Configuration::clone(view.configuration());
        next.epoch = Epoch(next.epoch.0 + 1);
        change(&mut next);
        Arc::new(next)
    }

    fn joint(reads: Side, window: Window, placement: u64) -> Phase {
        Phase::Joint { reads, is_filled: reads == Side::New, window, placement }
    }

    /// A fourth member joins `view`, with the placement that it leads to.
    fn joining(view: &View) -> (ClusterMember, u64) {
        let id = NodeId::of_url(&url(3));
        let member = ClusterMember {
            id,
            slot: Slot(3),
            url: url(3),
            zone: String::new(),
            weight: 1,
            store: Some(3),
            state: MemberState::Joining,
            lacks: false,
        };
        let topology = Topology::of_urls((0..4).map(url)).unwrap();
        (member, view.old.placement.change(&view.old.topology, &topology).unwrap().hash())
    }

    /// The view after `view` in which the fourth member joins, in `window` first.
    fn opened(view: &View, window: Window) -> View {
        let (member, placement) = joining(view);
        let next = after(view, |next| {
            next.members.push(member);
            next.members.sort_by_key(|member| member.id);
            next.slots_used = 4;
            next.phase = joint(Side::Old, window, placement);
        });
        view.next(next).unwrap()
    }

    /// Goal: views follow a change from three nodes to four and back: lists, counts, ranks, and since when keys are placed as
    /// they are. Method: the epochs of the change, in two windows; at the end the fourth leaves, which is not one that joined.
    #[test]
    fn views_follow_a_change() {
        let first = three();
        let named = first.next(after(&first, |next| next.feature_level = 1)).unwrap();
        assert_eq!((named.epoch(), named.placed_since()), (Epoch(1), Epoch(0)), "nothing was moved");
        let (_, placement) = joining(&named);
        let window = Window { begin: 0, end: 1 << (BITS - 1) };
        let j1 = opened(&named, window);
        assert_eq!((j1.placed_since(), j1.node_count(), j1.member_count()), (Epoch(2), 3, 4));
        let moving = |view: &View| {
            Partition::all(BITS).filter(|partition| view.route(*partition).writes().count() == 2).count()
        };
        assert_eq!(moving(&j1), 1 << (BITS - 1));
        for partition in Partition::all(BITS) {
            assert_eq!(
                j1.preference_list(partition),
                named.preference_list(partition),
                "the old side is read"
            );
        }
        let (one_of_three, two) = (Quorum::new(1, 3, 4).unwrap(), Quorum::new(2, 3, 4).unwrap());
        let must =
            |view: &View| [Quorum::majority_of(1), one_of_three, two].map(|quorum| view.must_confirm(quorum));
        assert_eq!((must(&named), must(&j1)), ([false; 3], [true, true, false]));
        let knows = |view: &View, adopted: Option<u64>| view.knows_of_change(adopted.map(Epoch));
        assert!(knows(&named, None) && knows(&j1, Some(2)) && !knows(&j1, Some(1)) && !knows(&j1, None));
        let j2 = j1.next(after(&j1, |next| next.phase = joint(Side::New, window, placement))).unwrap();
        let second = Window { begin: window.end, end: 1 << BITS };
        let j3 = j2.next(after(&j2, |next| next.phase = joint(Side::Old, second, placement))).unwrap();
        let j4 = j3.next(after(&j3, |next| next.phase = joint(Side::New, second, placement))).unwrap();
        assert!(knows(&j2, None) && knows(&j3, None), "a step has waited for all");
        assert_eq!((j4.placed_since(), j4.topology().node_count()), (Epoch(5), 4));
        let end = after(&j4, |next| {
            next.phase = Phase::Stable;
            next.placement = placement;
            next.members.iter_mut().for_each(|member| member.state = MemberState::In);
        });
        let four = j4.next(end).unwrap();
        assert_eq!((four.node_count(), moving(&four), four.slots().len()), (4, 0, 4));
        assert!(Partition::all(BITS).all(|partition| four.rank_of(partition, Slot(3)).is_some()));
        let other = after(&four, |next| next.placement ^= 1);
        assert!(matches!(four.next(other), Err(RoutingError::Placement { side: Side::Old, .. })));
    }

    /// From a marked member a node takes all records that it owns itself. So does a marked member from others, which held what it owns
    /// now (seed 724). Two others share the records that both own.
    #[test]
    fn marked_members_give_and_take_all() {
        let first = three();
        let marked = first.next(after(&first, |next| next.members[0].lacks = true)).unwrap();
        let lacking = marked.slots().iter().copied().find(|slot| marked.is_lacking(*slot)).unwrap();
        let others: Vec<Slot> = marked.slots().iter().copied().filter(|slot| *slot != lacking).collect();
        let &[whole, third] = others.as_slice() else { panic!("{others:?}") };
        for partition in Partition::all(BITS) {
            let rank = |slot| marked.rank_of(partition, slot).unwrap();
            let rank_max = |by, from| marked.rank_max(partition, Pull { by, from });
            assert_eq!(
                (rank_max(whole, lacking), rank_max(lacking, whole), rank_max(whole, third)),
                (rank(whole), rank(lacking), rank(whole).max(rank(third))),
                "{partition:?}"
            );
        }
    }

    /// A plan has the lists that are written, and reads one of them.
    #[test]
    fn plans_write_both_lists_and_read_one() {
        let first = three();
        let window = Window { begin: 0, end: 1 << BITS };
        let j1 = opened(&first, window);
        let quorum = Quorum::majority_of(3);
        let keys = (0..200_u32).map(|name| Key::new(name.to_be_bytes().to_vec()).unwrap());
        let moved: Vec<Key> = keys.filter(|key| j1.plan(key, quorum).route.writes().count() == 2).collect();
        assert!(!moved.is_empty());
        for key in moved {
            let plan = j1.plan(&key, quorum);
            assert_eq!(plan.replicas, first.plan(&key, quorum).replicas);
            assert!(plan.route.targets().any(|slot| slot == Slot(3)), "it takes a place of the first three");
            assert_eq!(j1.rank_of(plan.partition, plan.replicas[0]), Some(0));
        }
    }
}
