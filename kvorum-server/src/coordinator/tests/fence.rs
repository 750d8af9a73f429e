//! The fence: a replica carries out requests of its own epoch only.

use super::*;
use kvorum_core::Placement;
use kvorum_core::configuration::{ClusterMember, Configuration, MemberState, Phase, Side, Window};

fn epoch_of(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused { code: Refusal::Epoch, .. })
}

/// Has the node work with the next epoch, in which a third node joins.
fn adopt_next(node: &Node) {
    let view = node.shared.cluster.view();
    let current = Configuration::clone(view.configuration());
    let url = "http://n:3".to_owned();
    let (id, slot, state) = (NodeId::of_url(&url), Slot(current.slots_used), MemberState::Joining);
    let joiner =
        ClusterMember { id, slot, url, zone: String::new(), weight: 1, store: Some(3), state, lacks: false };
    let before = current.topology(Side::Old).unwrap();
    let mut next = Configuration { epoch: Epoch(current.epoch.0 + 1), slots_used: slot.0 + 1, ..current };
    next.members.push(joiner);
    next.members.sort_by_key(|member| member.id);
    let after = next.topology(Side::New).unwrap();
    let placement = Placement::initial(&before).change(&before, &after).unwrap().hash();
    let window = Window { begin: 0, end: 1 << next.partition_bits };
    next.phase = Phase::Joint { reads: Side::Old, is_filled: false, window, placement };
    node.shared.cluster.adopt(Arc::new(next)).unwrap();
}

/// Goal: requests about records are carried out in the node's own epoch, whichever of the two is behind; those by which nodes
/// meet and learn of epochs always are. Method: each, of an earlier, the same and a later epoch.
#[test]
fn requests_of_another_epoch_are_refused() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    adopt_next(&node);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let serve = |epoch, request: Request| {
        let peer = NodeId::of_url("http://n:2");
        let caller = Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(epoch) };
        run(handler.serve(caller, request, Duration::MAX))
    };
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record { version, expires: None, from: 2, value: Value::Tombstone, conditional: None };
    let get = || Request::Get { key: key.clone(), value_bytes_max: 10 };
    let apply = || Request::Apply { key: key.clone(), record: record.clone(), kind: ApplyKind::Write };
    for epoch in [0, 2] {
        assert!(epoch_of(&serve(epoch, get())) && epoch_of(&serve(epoch, apply())), "{epoch}");
        let ping = Request::Ping { wall: UnixMillis(1_000_000), cluster_id: None, registry: Vec::new() };
        assert!(matches!(serve(epoch, ping), Reply::Pong { .. }), "{epoch}");
    }
    assert_eq!(run(node.replica.get(&key)).unwrap(), None, "nothing was done");
    assert!(node.shared.configurations.is_ahead(Slot(1)), "a later epoch is a reason to ask");
    assert!(matches!(serve(1, apply()), Reply::Applied(Applied::Stored)));
    assert!(matches!(serve(1, get()), Reply::Found(Some(_))));
}

/// Goal: an answer of an epoch that ended meanwhile does not count. Method: the node adopts the next epoch between the start
/// of a write and its end.
#[test]
fn an_epoch_that_ends_meanwhile_does_not_count() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let peer = NodeId::of_url("http://n:2");
    let caller = Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record { version, expires: None, from: 2, value: Value::Tombstone, conditional: None };
    let apply = Request::Apply { key: key.clone(), record, kind: ApplyKind::Write };
    let begun = handler.serve(caller, apply, Duration::MAX);
    adopt_next(&node);
    assert!(epoch_of(&run(begun)));
    assert!(run(node.replica.get(&key)).unwrap().is_some(), "it is stored all the same");
}

/// Goal: epochs that place keys as before refuse nothing, so nodes of releases that cannot name an epoch belong to the cluster
/// until the first change. Method: two epochs that move nothing, and a request that names none.
#[test]
fn epochs_that_move_nothing_refuse_nothing() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let current = Configuration::clone(&node.shared.cluster.configuration());
    let adopt = |epoch, feature_level| {
        let next = Configuration { epoch: Epoch(epoch), feature_level, ..current.clone() };
        node.shared.cluster.adopt(Arc::new(next)).unwrap();
    };
    adopt(1, 0);
    adopt(2, 1);
    assert_eq!((node.shared.cluster.epoch(), node.shared.cluster.placed_since()), (Epoch(2), Epoch(0)));
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let peer = NodeId::of_url("http://n:2");
    let caller = Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
    let get = Request::Get { key, value_bytes_max: 10 };
    assert!(matches!(run(handler.serve(caller, get, Duration::MAX)), Reply::Found(None)));
    adopt_next(&node);
    assert_eq!(node.shared.cluster.placed_since(), Epoch(3));
}

/// Goal: a read of a key that moves fails when its record cannot be written to enough new owners, and counts those that hold it,
/// not those that answered. Method: the record is on the first of two nodes; its first new owner is a third, which is not there.
#[test]
fn a_read_that_reaches_too_few_new_owners_counts_them() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, _) = one_of_two(&engine, &clock);
    let node = node.impatient();
    adopt_next(&node);
    let view = node.shared.cluster.view();
    let one = Quorum::majority_of(1);
    let keys = (0..1000_u32).map(|name| Key::new(name.to_be_bytes().to_vec()).unwrap());
    let moves = |key: &Key| view.plan(key, one).route.writes().eq([&[Slot(0)][..], &[Slot(2)]]);
    let key = keys.into_iter().find(moves).unwrap();
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record { version, expires: None, from: 1, value: Value::Tombstone, conditional: None };
    let peer = NodeId::of_url("http://n:2");
    let caller = Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(1) };
    let apply = Request::Apply { key: key.clone(), record, kind: ApplyKind::Write };
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    assert!(matches!(run(handler.serve(caller, apply, Duration::MAX)), Reply::Applied(Applied::Stored)));
    let read = run(async {
        let coordinator =
            Coordinator::start(Arc::clone(&node.shared), &(Rc::new(Nowhere) as Rc<dyn Connector>), 0);
        coordinator.read(key, one).await
    });
    let error = read.err().unwrap().to_string();
    assert!(
        error.starts_with("Not Enough Replicas: 0 of the 1 replicas") && error.contains("http://n:3"),
        "{error}"
    );
}

/// Goal: what a member answered before it lost its store does not count: requests that are under way begin again when they hear
/// of the loss. Method: the first message of a refill, and a later one, which tells nothing new.
#[test]
fn requests_begin_again_where_a_store_was_lost() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, _) = one_of_two(&engine, &clock);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let fence = |upto| {
        let caller =
            Caller { peer: NodeId::of_url("http://n:2"), connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
        let reply = run(handler.serve(caller, Request::Fence { upto: Timestamp(upto) }, Duration::MAX));
        assert!(matches!(reply, Reply::Fenced { .. }), "{reply:?}");
        node.shared.cluster.era(Epoch(0))
    };
    let first = node.shared.cluster.era(Epoch(0));
    let told = fence(0);
    assert_ne!(first, told);
    assert_eq!(fence(1_000_000 << 16), told);
    assert_ne!(fence(0), told, "another loss");
}
