//! One node's part in decisions, over a real replica and the in-memory engine; and stores that decide together, where a
//! test carries the messages. Nodes that do so over a network are in the simulation and in `kvorum/tests/nodes`.

use super::{Configurations, LEVEL_MAX, LearnError};
use crate::clock::{Clock, ManualClock, SystemRng, TimestampBound};
use crate::cluster::{Cluster, PeerRegistry};
use crate::metrics::StoreMetrics;
use crate::peer::{BallotVote, Hello, JOINING};
use crate::replica::{
    Birth, DurabilityMode, Execution, Purge, Replica, ReplicaParts, ReplicaThreads, Vote, Workers,
};
use crate::storage::Engine;
use crate::storage::memory::MemoryEngine;
use crate::supervise::Supervisor;
use crate::worker::Pools;
use kvorum_core::Slot;
use kvorum_core::agreement::{Ballot, ConfigurationHash, Epoch, Instance, Proposal, ProposalStep, Voter};
use kvorum_core::configuration::{ClusterMember, Configuration};
use kvorum_core::{ClusterId, NodeId, StoreSeen, Topology, UnixMillis};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const URLS: [&str; 3] = ["http://a:1", "http://b:1", "http://c:1"];

/// One run of a node.
struct Node {
    configurations: Configurations,
    cluster: Arc<Cluster>,
    _threads: ReplicaThreads,
}

/// Starts the node at `url` on its disk.
fn start(url: &str, engine: &Arc<MemoryEngine>) -> Node {
    let clock: Arc<dyn Clock> = ManualClock::at(1_000_000);
    let node = NodeId::of_url(url);
    let (replica, threads, _) = Replica::start(ReplicaParts {
        engine: Arc::clone(engine) as Arc<dyn Engine>,
        timestamps: Arc::new(TimestampBound::new(Arc::clone(&clock), Duration::from_mins(1))),
        clock,
        value_bytes_max: 8 << 20,
        rng: Arc::new(SystemRng),
        pools: Arc::new(Pools::start(1, &Supervisor::default()).unwrap()),
        metrics: Arc::new(StoreMetrics::default()),
        execution: Execution::Inline,
        durability: DurabilityMode::Always,
        purge: Purge::Keep,
        node,
        bound_to: None,
        birth: Birth { vote: Vote::Yes, topology: 1 },
        partition_bits: 12,
        index_bytes: 4 << 10,
        workers: Workers::Threads,
        supervisor: Supervisor::default(),
    })
    .unwrap();
    let topology = Topology::of_urls(URLS).unwrap();
    let me = Slot(topology.index_of(node).unwrap().0);
    let own = StoreSeen { node, store: replica.store_id(), run: replica.run() };
    let registry = PeerRegistry::new(own, 3, BTreeMap::new(), Vote::Yes);
    let id = ClusterId::new(7);
    let cluster = Arc::new(Cluster::new("test".to_owned(), id, topology, me, replica.store_id(), registry));
    cluster.trust_store();
    let configurations = Configurations::new(Arc::clone(&cluster), replica.clone());
    configurations.resume(replica.chain().unwrap()).unwrap();
    Node { configurations, cluster, _threads: threads }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

impl Node {
    fn instance(&self) -> Instance {
        self.cluster.configuration().instance()
    }

    fn promise(&self, ballot: Ballot) -> BallotVote {
        run(self.configurations.promise(self.instance(), ballot)).unwrap()
    }

    fn accept(&self, ballot: Ballot, value: &Configuration) -> BallotVote {
        run(self.configurations.accept(self.instance(), ballot, value.clone())).unwrap()
    }

    fn ballot(&self, round: u64) -> Ballot {
        Ballot { round, proposer: self.cluster.voter() }
    }
}

fn disks() -> Vec<Arc<MemoryEngine>> {
    URLS.iter().map(|_| Arc::new(MemoryEngine::new())).collect()
}

fn start_all(disks: &[Arc<MemoryEngine>]) -> Vec<Node> {
    URLS.iter().zip(disks).map(|(url, disk)| start(url, disk)).collect()
}

/// Epoch 1 of the cluster of `nodes`.
fn named(nodes: &[Node]) -> Configuration {
    let stores = nodes.iter().map(|node| node.cluster.voter()).map(|voter| (voter.node, voter.store));
    nodes[0].cluster.configuration().with_stores(&stores.collect()).unwrap()
}

/// Has `voters` decide; the first proposes `wanted`.
fn decide(voters: &[&Node], round: u64, wanted: Configuration) -> Option<Configuration> {
    let (ballot, current) = (voters[0].ballot(round), voters[0].cluster.configuration());
    let mut proposal = Proposal::new(ballot, current.electorate(), wanted);
    for node in voters {
        if let BallotVote::Promised { voter, accepted } = node.promise(ballot) {
            proposal.promised(voter, accepted);
        }
    }
    let value = proposal.value()?.clone();
    let mut step = ProposalStep::Wait;
    for node in voters {
        if let BallotVote::Accepted { voter } = node.accept(ballot, &value) {
            step = proposal.accepted(voter);
        }
    }
    (step == ProposalStep::Decided).then_some(value)
}

/// All stores must name themselves; then a majority decides, and a node that was away catches up, page by page.
#[test]
fn a_chain_is_decided_and_caught_up_with() {
    let disks = disks();
    let nodes = start_all(&disks);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let one = named(&nodes);
    assert_eq!(decide(&[a, b], 1, one.clone()), None, "epoch 0 needs all");
    assert_eq!(decide(&[a, b, c], 2, one.clone()), Some(one.clone()));
    for node in [a, b] {
        assert!(run(node.configurations.learn(vec![one.clone()], None)).unwrap());
    }
    let two = one.with_level(LEVEL_MAX).unwrap();
    assert_eq!(decide(&[a, b], 1, two.clone()), Some(two.clone()));
    assert!(run(a.configurations.learn(vec![two.clone()], None)).unwrap());
    assert_eq!((a.cluster.epoch(), b.cluster.epoch(), c.cluster.epoch()), (Epoch(2), Epoch(1), Epoch(0)));
    let page = run(a.configurations.after(Epoch(0), 1));
    assert_eq!(page.as_slice(), std::slice::from_ref(&one), "one at least");
    assert!(run(c.configurations.learn(page, None)).unwrap());
    assert!(run(c.configurations.learn(run(a.configurations.after(Epoch(1), 1 << 20)), None)).unwrap());
    assert_eq!(c.instance(), two.instance());
    assert!(!run(c.configurations.learn(vec![one, two], None)).unwrap(), "nothing new");
    assert_eq!(run(a.configurations.after(Epoch(u64::MAX), 9)), []);
}

/// A decided value is found again by the next proposer, also after all stores have been started again; and what was
/// adopted is worked with at once.
#[test]
fn votes_and_epochs_outlive_a_restart() {
    let disks = disks();
    let nodes = start_all(&disks);
    let one = named(&nodes);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    assert_eq!(decide(&[a, b, c], 1, one.clone()), Some(one.clone()));
    drop(nodes);
    let nodes = start_all(&disks);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    assert_eq!(a.promise(a.ballot(1)), BallotVote::Outbid { by: a.ballot(1) }, "a promise is not forgotten");
    let mut other = one.clone();
    other.members[0].store = Some(0x99);
    assert_eq!(decide(&[b, a, c], 2, other), Some(one.clone()), "what was decided stays");
    assert!(run(a.configurations.learn(vec![one.clone()], None)).unwrap());
    drop(nodes);
    let a = start(URLS[0], &disks[0]);
    assert_eq!(a.instance(), one.instance());
    assert_eq!(*run(a.configurations.adopted_at(Epoch(1))).unwrap(), one);
}

/// What does not follow is neither accepted nor adopted, and what needs a newer release is not.
#[test]
fn what_does_not_follow_is_refused() {
    let disks = disks();
    let nodes = start_all(&disks);
    let (a, one) = (&nodes[0], named(&nodes));
    let mut skipped = one.clone();
    skipped.epoch = Epoch(2);
    a.promise(a.ballot(1));
    assert_eq!(a.accept(a.ballot(1), &skipped), BallotVote::Refused);
    let learned = run(a.configurations.learn(vec![skipped], None));
    assert!(matches!(learned, Err(LearnError::Successor { epoch: Epoch(2), .. })), "{learned:?}");
    assert!(run(a.configurations.learn(vec![one.clone()], None)).unwrap());
    let ours = one.instance();
    let stale = Instance { epoch: Epoch(0), hash: ConfigurationHash(1) };
    let answer = run(a.configurations.promise(stale, a.ballot(9))).unwrap();
    assert_eq!(answer, BallotVote::OtherInstance { ours });
    let beyond = one.with_level(LEVEL_MAX + 1).unwrap();
    a.promise(a.ballot(2));
    assert_eq!(a.accept(a.ballot(2), &beyond), BallotVote::Refused);
    let learned = run(a.configurations.learn(vec![beyond], None));
    assert!(matches!(learned, Err(LearnError::Level { .. })), "{learned:?}");
    let mut branch = one;
    branch.members[0].store = Some(0x99);
    let learned = run(a.configurations.learn(vec![branch], None));
    assert!(matches!(learned, Err(LearnError::OtherBranch { epoch: Epoch(1) })), "{learned:?}");
}

/// Only the store that the configuration names votes: not one that took its place, and not one that may have forgotten
/// its promises because it is an older copy.
#[test]
fn other_stores_and_older_copies_do_not_vote() {
    let disks = disks();
    let nodes = start_all(&disks);
    let one = named(&nodes);
    let a = &nodes[0];
    assert!(run(a.configurations.learn(vec![one.clone()], None)).unwrap());
    run(a.configurations.forget());
    assert_eq!(a.promise(a.ballot(1)), BallotVote::NotNamed { voter: a.cluster.voter() });
    drop(nodes);
    let a = start(URLS[0], &disks[0]);
    assert_eq!(
        a.promise(a.ballot(1)),
        BallotVote::NotNamed { voter: a.cluster.voter() },
        "that is not forgotten"
    );
    let replaced = start(URLS[1], &Arc::new(MemoryEngine::new()));
    assert!(run(replaced.configurations.learn(vec![one], None)).unwrap());
    let voter: Voter = replaced.cluster.voter();
    assert_eq!(replaced.promise(replaced.ballot(1)), BallotVote::NotNamed { voter });
}

/// A damaged store that is replaced while its node runs keeps its identity, so it keeps the chain and the promises.
#[test]
fn a_store_that_is_set_aside_keeps_its_votes() {
    let disks = disks();
    let nodes = start_all(&disks);
    let one = named(&nodes);
    let a = &nodes[0];
    assert!(run(a.configurations.learn(vec![one.clone()], None)).unwrap());
    let two = one.with_level(1).unwrap();
    let ballot = a.ballot(3);
    a.promise(ballot);
    a.accept(ballot, &two);
    run(a.configurations.set_aside(UnixMillis(2_000_000))).unwrap();
    let higher = a.ballot(4);
    let promised = BallotVote::Promised { voter: a.cluster.voter(), accepted: Some((ballot, two)) };
    assert_eq!(a.promise(higher), promised);
    drop(nodes);
    let a = start(URLS[0], &disks[0]);
    assert_eq!(a.instance(), one.instance());
    assert_eq!(a.promise(higher), BallotVote::Outbid { by: higher });
}

/// Goal: a node learns of its own removal, and of that of its store, and of nothing else as such. Method: configurations that remove
/// another member, that have only then this one, and that name another store for it.
#[test]
fn a_removed_store_is_recognised() {
    let disks = disks();
    let nodes = start_all(&disks);
    let one = named(&nodes);
    let a = &nodes[0];
    let b = nodes[1].cluster.voter();
    assert!(run(a.configurations.learn(vec![one.clone()], None)).unwrap());
    let two = one.with_store(b.node, 99).unwrap();
    assert!(run(a.configurations.learn(vec![two.clone()], None)).unwrap());
    assert_eq!((a.cluster.removed_in(), a.cluster.was_member(b.node)), (None, true));
    let three = two.with_store(a.cluster.voter().node, 98).unwrap();
    assert!(run(a.configurations.learn(vec![three.clone()], None)).unwrap());
    let four = three.with_level(1).unwrap();
    assert!(run(a.configurations.learn(vec![four], None)).unwrap());
    assert_eq!(a.cluster.removed_in(), Some(three.epoch), "the first epoch without it");
    assert!(!a.cluster.votes());
}

/// The configuration that names only `left` of the cluster of `nodes`.
fn forced_to(nodes: &[Node], left: &[&Node]) -> Configuration {
    let view = nodes[0].cluster.view();
    let lost = nodes.iter().map(|node| node.cluster.voter().node);
    let lost = lost.filter(|id| left.iter().all(|node| node.cluster.voter().node != *id)).collect();
    view.configuration().forced(&lost, view.placement()).unwrap().configuration
}

/// Goal: a store that has accepted a forced configuration votes for no other, adopts none that a lost member tells it, and keeps
/// that over a restart; its own node adopts only while no other was promised. Method: one of three is forced, step by step, with
/// a rival turn in between.
#[test]
fn a_store_that_is_forced_is_bound() {
    let disks = disks();
    let nodes = start_all(&disks);
    let one = named(&nodes);
    let two = one.with_level(LEVEL_MAX).unwrap();
    for node in &nodes {
        assert!(run(node.configurations.learn(vec![one.clone(), two.clone()], None)).unwrap());
    }
    let [a, b, _] = &nodes[..] else { unreachable!() };
    let forced = forced_to(&nodes, &[a]);
    let other = forced_to(&nodes, &[b]);
    let force = |node: &Node, round, accepts, value: &Configuration| {
        run(node.configurations.force(node.instance(), a.ballot(round), accepts, value.clone())).unwrap()
    };
    let voter = a.cluster.voter();
    assert_eq!(force(a, 1, false, &other), BallotVote::NotNamed { voter }, "it is lost there");
    assert_eq!(force(a, 1, false, &two), BallotVote::Refused);
    assert_eq!(a.accept(a.ballot(1), &forced), BallotVote::Refused, "no majority decides a forced one");
    assert_eq!(force(a, 2, false, &forced), BallotVote::Promised { voter, accepted: None });
    assert_eq!(force(a, 2, true, &forced), BallotVote::Accepted { voter });
    let mut three = two.clone();
    (three.epoch, three.previous) = (Epoch(3), two.hash());
    three.members[0].url = "http://elsewhere:1".to_owned();
    assert_eq!(a.accept(a.ballot(3), &three), BallotVote::Refused, "it is bound");
    let lost = Some(b.cluster.voter().node);
    let told = run(a.configurations.learn(vec![three.clone()], lost));
    assert!(matches!(told, Err(LearnError::Bound { epoch: Epoch(3) })), "{told:?}");
    let instance = a.instance();
    drop(nodes);
    let a = start(URLS[0], &disks[0]);
    assert!(run(a.configurations.learn(vec![three.clone()], lost)).is_err(), "a restart forgets nothing");
    let ballot = a.ballot(4);
    assert!(matches!(a.promise(ballot), BallotVote::Promised { accepted: Some(_), .. }));
    let early = run(a.configurations.adopt_forced(instance, a.ballot(2), forced.clone()));
    assert!(matches!(early, Err(LearnError::Outbid)), "{early:?}");
    run(a.configurations.adopt_forced(instance, ballot, forced.clone())).unwrap();
    assert_eq!(*a.cluster.configuration(), forced);
    assert!(a.cluster.has_met(), "it is the only member");
    let told = run(a.configurations.learn(vec![three], lost));
    assert!(matches!(told, Err(LearnError::OtherBranch { .. })), "{told:?}");
    let again = start(URLS[0], &disks[0]);
    assert_eq!(*again.cluster.configuration(), forced, "the chain of the store is read with it");
}

/// A bound store adopts what another member that its forced configuration names has adopted instead.
#[test]
fn a_bound_store_follows_the_members_that_are_left() {
    let disks = disks();
    let nodes = start_all(&disks);
    let [a, b, _] = &nodes[..] else { unreachable!() };
    let one = named(&nodes);
    let two = one.with_level(LEVEL_MAX).unwrap();
    for node in &nodes {
        run(node.configurations.learn(vec![one.clone(), two.clone()], None)).unwrap();
    }
    // All are marked, as after a forced configuration that was not completed: so two of three may be forced.
    let marked = Configuration {
        epoch: Epoch(3),
        previous: two.hash(),
        members: two.members.iter().map(|member| ClusterMember { lacks: true, ..member.clone() }).collect(),
        ..two
    };
    for node in &nodes {
        run(node.configurations.learn(vec![marked.clone()], None)).unwrap();
    }
    let forced = forced_to(&nodes, &[a, b]);
    let accepted = run(a.configurations.force(a.instance(), a.ballot(1), true, forced)).unwrap();
    assert_eq!(accepted, BallotVote::Accepted { voter: a.cluster.voter() });
    let mut four = Configuration { epoch: Epoch(4), previous: marked.hash(), ..marked };
    four.members[0].lacks = false;
    assert!(run(a.configurations.learn(vec![four.clone()], Some(b.cluster.voter().node))).unwrap());
    assert_eq!(*a.cluster.configuration(), four);
}

/// Goal: a member is silent only since it is known as one. Before, one that had just been added to a node that had run for
/// half a minute counted as away at once: it was marked as lacking records (seed 2431231459).
#[test]
fn a_member_that_was_just_added_is_not_silent() {
    let node = start(URLS[0], &Arc::new(MemoryEngine::new()));
    let (configurations, seconds) = (&node.configurations, Duration::from_secs);
    let (early, late) = (Slot(1), Slot(2));
    configurations.note_members(&[early], seconds(1));
    configurations.note_members(&[early, late], seconds(60));
    assert_eq!(configurations.silence(early, seconds(61)), seconds(60));
    assert_eq!(configurations.silence(late, seconds(61)), seconds(1));
    configurations.ask(late);
    configurations.note_said(early, node.instance(), (0, Vec::new()), seconds(70));
    configurations.note_said(late, node.instance(), (0, Vec::new()), seconds(50));
    assert_eq!(configurations.silence(early, seconds(75)), seconds(5));
    assert_eq!(configurations.silence(late, seconds(75)), seconds(15));
}

/// Goal: a member is shown with the store that it said last: with a new one that waits to be named, then with its own again.
#[test]
fn a_member_may_run_with_its_own_store_again() {
    let nodes = URLS.map(|url| start(url, &Arc::new(MemoryEngine::new())));
    let [a, b, _] = &nodes;
    let (slot, own) = (b.cluster.me(), b.cluster.hello(UnixMillis(0)));
    let waiting = Hello { topology: JOINING, store: own.store ^ 1, ..own.clone() };
    run(a.configurations.learn(vec![named(&nodes)], None)).unwrap();
    for hello in [&waiting, &own, &waiting] {
        a.cluster.note_proven(hello, Duration::ZERO);
        assert_eq!(a.cluster.store_of(slot), Some(hello.store));
    }
}
