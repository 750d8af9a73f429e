//! Moves of partitions: what a node that joins confirms, what a node that no longer owns records holds back, and which stores
//! have forgotten promises.

use super::*;
use crate::peer::StepKind;
use kvorum_core::Placement;
use kvorum_core::agreement::Voter;
use kvorum_core::configuration::{Configuration, MemberState, Phase, Side, Window};

fn adopt(node: &Node, change: impl FnOnce(&mut Configuration)) {
    let mut next = Configuration::clone(&node.shared.cluster.configuration());
    next.epoch = Epoch(next.epoch.0 + 1);
    change(&mut next);
    node.shared.cluster.adopt(Arc::new(next)).unwrap();
}

/// Has the node work with an epoch in which the node `joins` joins the other one, and everything moves.
fn adopt_joining(node: &Node, joins: NodeId, store: u128) {
    let two = node.shared.cluster.configuration().topology(Side::Old).unwrap();
    adopt(node, |next| {
        for member in next.members.iter_mut().filter(|member| member.id == joins) {
            (member.state, member.store) = (MemberState::Joining, Some(store));
        }
        let (one, both) = (next.topology(Side::Old).unwrap(), next.topology(Side::New).unwrap());
        let alone = Placement::initial(&two).change(&two, &one).unwrap();
        let window = Window { begin: 0, end: 1 << next.partition_bits };
        let placement = alone.change(&one, &both).unwrap().hash();
        next.placement = alone.hash();
        next.phase = Phase::Joint { reads: Side::Old, is_filled: false, window, placement };
    });
}

fn read_new(next: &mut Configuration) {
    let Phase::Joint { window, placement, .. } = next.phase else { return };
    next.phase = Phase::Joint { reads: Side::New, is_filled: true, window, placement };
}

/// Goal: a node that joins confirms writes before it is quorum-eligible, as long as it is not read; else writes that every
/// replica must confirm would fail until it is filled. Method: a write and a read in the epoch that reads the old owners, and
/// in the next one.
#[test]
fn joiner_confirms_what_it_is_not_read_for() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    adopt_joining(&node, NodeId::of_url("http://n:1"), node.replica.store_id());
    node.shared.cluster.registry().lose();
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let serve = |epoch, request: Request| {
        let peer = NodeId::of_url("http://n:2");
        run(handler.serve(
            Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(epoch) },
            request,
            Duration::MAX,
        ))
    };
    let version = |at: u64| Version::from_words(at << 16, 1);
    let apply = |at| {
        let record = Record {
            version: version(at),
            expires: None,
            from: 2,
            value: Value::Tombstone,
            conditional: None,
        };
        Request::Apply { key: key.clone(), record, kind: ApplyKind::Write }
    };
    let is_refused = |reply: &Reply, code| matches!(reply, Reply::Refused { code: by, .. } if *by == code);
    assert!(matches!(serve(1, apply(1_000_000)), Reply::Applied(Applied::Stored)));
    assert!(matches!(serve(1, Request::Newest { key: key.clone() }), Reply::NewestIs(_)));
    let get = Request::Get { key: key.clone(), value_bytes_max: 10 };
    assert!(is_refused(&serve(1, get), Refusal::NotVoting));
    adopt(&node, read_new);
    assert!(
        is_refused(&serve(2, apply(1_000_001)), Refusal::NotVotingYet),
        "it may be read, and soon counts"
    );
}

/// Goal: tombstones of a partition stay while a node holds older records that it no longer owns: it may own them again.
/// Method: a record whose owner the node is no more, and a round of tombstone GC before and after it is dropped.
#[test]
fn unowned_records_hold_tombstones_back() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record {
        version,
        expires: None,
        from: 1,
        value: Value::Present(Bytes::from_static(b"v")),
        conditional: None,
    };
    assert_eq!(run(node.replica.apply(key.clone(), record, Source::Writer)).unwrap(), Applied::Stored);
    // The other node alone has the first rank everywhere from now on.
    adopt_joining(&node, NodeId::of_url("http://n:1"), node.replica.store_id());
    adopt(&node, |next| next.phase = Phase::Stable);
    let partition = node.shared.cluster.partition_of(&key);
    let gc = &node.shared.background.tombstone_gc;
    let upto = 1_000_000 << 16;
    let agree = |round| {
        assert!(run(gc.closed(round, upto, false, &[partition.0])).unwrap().is_some());
        run(gc.stepped(StepKind::Agree, round, upto, &[partition.0])).unwrap()
    };
    assert_eq!(agree(1), Reply::Stepped(false));
    assert_eq!(run(node.replica.drop_unowned(partition, u16::MAX)).unwrap(), 1);
    assert_eq!(agree(2), Reply::Stepped(true));
}

/// Goal: a store that came after another one of its node has forgotten no promise, and votes on configurations; one that was
/// put back in the place of another has. Method: another node remembers a later run of another store: in the first run of a
/// store, in a later one, and where a configuration retired the other store.
#[test]
fn new_store_has_forgotten_nothing() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let peer = NodeId::of_url("http://n:2");
    let own = NodeId::of_url("http://n:1");
    let hear = |node: &Node, number| {
        let seen = StoreSeen { node: own, store: 77, run: Run { number, nonce: 1 } };
        run(node.shared.background.membership.hear(peer, &[seen]));
        node.replica.chain().unwrap().has_forgotten
    };
    let (first, _) = one_of_two(&engine, &clock);
    assert!(!hear(&first, 9), "it was made in this run");
    drop(first);
    let (second, _) = one_of_two(&engine, &clock);
    adopt(&second, |next| next.retired = vec![Voter { node: own, store: 77 }]);
    assert!(!hear(&second, 20), "the other store was retired");
    drop(second);
    let (third, _) = one_of_two(&engine, &clock);
    assert!(hear(&third, 40));
}

/// Goal: a node that reaches nobody answers no request that it alone confirms while a change is under way: the change may go on
/// without it. Method: a read and a write of 1/1 before the change and in it.
#[test]
fn nobody_answers_alone_while_members_change() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let node = node.impatient();
    node.write_to(key.clone(), put("1")).unwrap();
    adopt_joining(&node, NodeId::of_url("http://n:2"), 9);
    let quorum = Quorum::majority_of(1);
    let (read, written) = run(async {
        let connector: Rc<dyn Connector> = Rc::new(Nowhere);
        let coordinator = Coordinator::start(Arc::clone(&node.shared), &connector, 0);
        (coordinator.read(key.clone(), quorum).await, coordinator.write(key.clone(), put("2"), quorum).await)
    });
    let is_refused = |error| matches!(error, CoordinatorError::NotEnoughReplicas { confirmed: 0, .. });
    assert!(is_refused(read.unwrap_err()) && is_refused(written.unwrap_err()));
    let stored = run(node.replica.get_many(vec![key], 1 << 20)).unwrap();
    assert!(
        matches!(&stored[..], [Fetched::Record(record)] if record.value == Value::Present(Bytes::from_static(b"1")))
    );
}
