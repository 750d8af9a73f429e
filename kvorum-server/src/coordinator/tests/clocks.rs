//! Coordinators whose clock is wrong, and timestamps from elsewhere that nobody can have made honestly.

use super::*;
use crate::background;

/// Goal: nothing is stamped by a clock that has just been set, also where the write began before: it used to be checked at the
/// beginning only (found by the simulation). Method: a stamp before and after, and after a majority has confirmed the clock.
#[test]
fn nothing_is_stamped_by_a_clock_that_has_moved() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let (timestamps, stamps) = (&node.shared.timestamps, &node.shared.stamps);
    timestamps.note_standing(ClockStanding::Confirmed);
    assert!(run(stamps.next(Version::ZERO)).is_ok());
    clock.set_wall(1_000_000 + 7_200_000);
    assert!(matches!(run(stamps.next(Version::ZERO)), Err(CoordinatorError::ClockOff { .. })));
    assert!(matches!(node.write_to(key, put("1")), Err(CoordinatorError::ClockOff { .. })));
    timestamps.note_standing(ClockStanding::Confirmed);
    assert!(run(stamps.next(Version::ZERO)).is_ok());
}

/// Goal: a write that has asked what the replicas hold is stamped above it, also where its node's clock has been set back
/// meanwhile and begins anew. It used to forget what it had been told, and to be acknowledged below it (found by the
/// simulation). Method: a clock that goes back by more than the limit after a version was met.
#[test]
fn a_clock_that_begins_anew_stamps_above_what_was_asked() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000_000));
    let (node, _) = one_of_two(&engine, &clock);
    let (timestamps, stamps) = (&node.shared.timestamps, &node.shared.stamps);
    timestamps.note_standing(ClockStanding::Confirmed);
    let held = run(stamps.next(Version::ZERO)).unwrap();
    let limit = timestamps.limit_millis();
    clock.set_wall(1_000_000_000 - limit / 2);
    stamps.observe(Version::new(UnixMillis(1_000_000_000 + limit / 2), 0, NodeId(2)));
    clock.set_wall(1_000_000_000 - limit);
    // Not known to be wrong: two steps, each within the limit.
    timestamps.note_standing(ClockStanding::Confirmed);
    let stamped = run(stamps.next(held)).unwrap();
    assert!(stamped > held && stamped.millis().0 < 1_000_000_000 + limit / 2, "{stamped} {held}");
    clock.set_wall(1_000_000);
    timestamps.note_standing(ClockStanding::Confirmed);
    let refused = run(stamps.next(held));
    assert!(
        matches!(refused, Err(CoordinatorError::ClockOff { .. })),
        "what it must be above is not believed"
    );
}

/// Goal: hints do not grow too old by a clock that may be wrong. Method: one two hours older than they may be, with the clock
/// in doubt and without.
#[test]
fn hints_do_not_grow_old_by_a_wrong_clock() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, _) = one_of_two(&engine, &clock);
    let version = Version::new(UnixMillis(1_000_000), 0, NodeId(1));
    let later = UnixMillis(1_000_000 + 100 * 24 * 3_600_000);
    assert!(node.shared.hints.is_too_old(version, later));
    node.shared.timestamps.note_standing(ClockStanding::Off);
    assert!(!node.shared.hints.is_too_old(version, later));
}

/// Goal: what somebody says in a request about how far a partition's past is finished puts nothing in doubt, and moves no
/// floor: anybody may say it. Of a forged word the store used to stand down, and what it adopted in the end other nodes
/// believed of it; a disk that was lost meanwhile took records with it (found by the simulation). Method: floors that could be
/// true.
#[test]
fn requests_bring_no_floors() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let partition = node.shared.cluster.partition_of(&key);
    node.shared.timestamps.note_standing(ClockStanding::Confirmed);
    let now = Version::new(UnixMillis(1_000_000), 0, NodeId(0)).clock();
    let before = node.replica.floor(partition);
    for (agreed, sealed, purged) in [(now, now, now), (now, now, 0), (0, 0, now), (0, now, 0)] {
        let floor = crate::replica::Floor { agreed, sealed, purged };
        let request = Request::Versions { partition: partition.0, after: None, bytes: 1 << 10, floor };
        let caller = Caller {
            peer: NodeId::of_url("http://n:2"),
            connection: 1,
            protocol: PROTOCOL,
            epoch: kvorum_core::agreement::Epoch(0),
        };
        let Reply::VersionList { .. } = run(handler.serve(caller, request, Duration::ZERO)) else {
            panic!("no list")
        };
    }
    assert_eq!(node.replica.floor(partition), before);
    assert!(node.replica.doubts().is_empty());
}

/// Goal: a node whose clock may be behind tells nobody what it holds: it would leave out everything, as from the future, and
/// who is refilled from it would take that for the whole (seed 3154538322). Method: a clock that goes back by more than the
/// limit, with a record in the store; and the clock confirmed again.
#[test]
fn a_node_whose_clock_may_be_behind_lists_nothing() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let timestamps = &node.shared.timestamps;
    timestamps.note_standing(ClockStanding::Confirmed);
    run(node.replica.apply(
        key.clone(),
        tombstone_of(Version::new(UnixMillis(1_000_000_000), 0, NodeId(1))),
        Source::Copy,
    ))
    .unwrap();
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let partition = node.shared.cluster.partition_of(&key).0;
    let floor = crate::replica::Floor::default();
    let ask = |request: Request| {
        run(handler.serve(
            Caller {
                peer: NodeId::of_url("http://n:2"),
                connection: 1,
                protocol: PROTOCOL,
                epoch: kvorum_core::agreement::Epoch(0),
            },
            request,
            Duration::ZERO,
        ))
    };
    let versions = || Request::Versions { partition, after: None, bytes: 1 << 10, floor };
    let rows = |reply: Reply| if let Reply::VersionList { rows, .. } = reply { rows.len() } else { 0 };
    assert_eq!(rows(ask(versions())), 1);
    clock.set_wall(1_000_000_000 - 2 * timestamps.limit_millis());
    for request in [versions(), Request::Floors] {
        let reply = ask(request);
        assert!(matches!(reply, Reply::Refused { code: Refusal::NotVoting, .. }), "{reply:?}");
    }
    clock.set_wall(1_000_000_000);
    assert_eq!(rows(ask(versions())), 1);
}

/// The highest version there is.
fn forever() -> Version {
    Version::from_words(u64::MAX, u64::MAX)
}

fn tombstone_of(version: Version) -> Record {
    Record { version, expires: None, from: 3, value: Value::Tombstone, conditional: None }
}

/// Goal: a forged version, whatever brings it, is refused with a code and counted, changes no record and does not move
/// the clock: one used to make every later write of the cluster share one version, for good. Method: the highest version
/// there is by every kind of message that applies, and by every place that observes versions; then a write.
#[test]
fn forged_versions_change_nothing() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let caller = Caller {
        peer: NodeId::of_url("http://n:2"),
        connection: 1,
        protocol: PROTOCOL,
        epoch: kvorum_core::agreement::Epoch(0),
    };
    let record = tombstone_of(forever());
    let apply = |kind| Request::Apply { key: key.clone(), record: record.clone(), kind };
    let forged = [apply(ApplyKind::Write), apply(ApplyKind::Hint), apply(ApplyKind::ReadRepair)];
    for request in forged {
        let reply = run(handler.serve(caller, request.clone(), Duration::MAX));
        let is_refused = matches!(reply, Reply::Refused { code: Refusal::TooFarAhead, .. });
        assert!(is_refused, "{request:?}: {reply:?}");
    }
    let pulled = run(node.replica.apply_many(vec![(key.clone(), record)], Source::Repair { agreed: 0 }));
    assert!(matches!(pulled, Err(ReplicaError::TooFarAhead(_))), "{pulled:?}");
    node.shared.stamps.observe(forever());
    assert!(node.shared.timestamps.refused() >= 5);
    assert_eq!(node.shared.stamps.met(), 0);
    assert_eq!(run(node.replica.get(&key)).unwrap(), None);
    let version = node.write_to(key.clone(), put("1")).unwrap();
    assert_eq!(version.millis(), UnixMillis(1_000_000));
    assert!(node.write_to(key.clone(), put("2")).unwrap() > version);
}

/// Goal: a record from the future that is on the disk already harms nobody but its key: it is in no list, no batch and no
/// answer, and nothing supersedes by it. Method: the row is put into the engine past the door.
#[test]
fn stored_versions_from_the_future_are_not_passed_on() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let other = Key::new("other").unwrap();
    let partition = node.shared.cluster.partition_of(&key);
    let mark = format::Mark { version: forever(), from: 3, is_tombstone: true };
    let put_row = |keyspace, row: Bytes, value: Bytes| {
        let change = Change::Put { keyspace, key: row, value };
        engine.commit(vec![change], Durability::Synced).unwrap();
    };
    drop(node);
    put_row(Keyspace::Records, key.clone().into_bytes(), format::encode_record(&tombstone_of(forever())));
    put_row(Keyspace::Tokens, format::encode_token_key(partition, key.as_ref()), format::encode_mark(mark));
    let (node, key) = one_of_two(&engine, &clock);
    let is_refused = |error: &ReplicaError| matches!(error, ReplicaError::TooFarAhead(_));
    assert!(is_refused(&run(node.replica.get(&key)).unwrap_err()));
    assert!(is_refused(&run(node.replica.get_many(vec![key.clone()], 1)).unwrap_err()));
    let found = run(node.replica.get_many(vec![other.clone(), key.clone()], 1 << 20)).unwrap();
    assert_eq!(found, [Fetched::Nothing, Fetched::Damaged]);
    let newer = tombstone_of(Version::new(UnixMillis(1_000_000), 0, NodeId(1)));
    assert!(is_refused(&run(node.replica.apply(key.clone(), newer.clone(), Source::Writer)).unwrap_err()));
    let records = vec![(other.clone(), newer.clone()), (key.clone(), newer)];
    let applied = run(node.replica.apply_many(records, Source::Repair { agreed: 0 })).unwrap();
    assert_eq!(applied, [Some(Applied::Stored), None]);
    let floor = crate::replica::Floor::default();
    let state = &node.shared.background.anti_entropy;
    let listed = run(state.versions_for(state.pull_by(Slot(1)), partition, None, 1 << 20, floor)).unwrap();
    assert_eq!(listed, (Vec::new(), true));
    let written = node.write_to(key.clone(), put("1"));
    let Err(CoordinatorError::Replica(error)) = written else { panic!("{written:?}") };
    assert!(is_refused(&error));
    // Its time comes.
    clock.set_wall(1 << 48);
    assert_eq!(run(node.replica.get(&key)).unwrap(), Some(tombstone_of(forever())));
}

/// Goal: a store that holds versions of the end of time is well again after one order. Method: a record, a hint and a floor
/// of the highest version, put into the engine past every door; before the order the key cannot be written.
#[test]
fn an_operator_drops_what_is_unbelievable() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let (partition, peer) = (node.shared.cluster.partition_of(&key), NodeId::of_url("http://n:2"));
    let good = Key::new("good").unwrap();
    let kept = tombstone_of(Version::new(UnixMillis(1_000_000), 0, NodeId(1)));
    run(node.replica.apply(good.clone(), kept.clone(), Source::Copy)).unwrap();
    run(node.shared.hints.keep(peer, partition.0, &key, &kept, UnixMillis(1_000_000))).unwrap();
    drop(node);
    let mark = format::Mark { version: forever(), from: 3, is_tombstone: true };
    let rows = [
        (Keyspace::Records, key.clone().into_bytes(), format::encode_record(&tombstone_of(forever()))),
        (Keyspace::Tokens, format::encode_token_key(partition, key.as_ref()), format::encode_mark(mark)),
        (Keyspace::Meta, format::encode_floor_key(partition), format::encode_floor([u64::MAX, u64::MAX, 7])),
        (
            Keyspace::Hints,
            format::encode_hint_key(peer, forever(), key.as_ref()),
            format::encode_record(&tombstone_of(forever())),
        ),
    ];
    let put_row = |(keyspace, key, value)| Change::Put { keyspace, key, value };
    engine.commit(rows.into_iter().map(put_row).collect(), Durability::Synced).unwrap();
    let (node, key) = one_of_two(&engine, &clock);
    assert!(node.write_to(key.clone(), put("1")).is_err());
    assert_eq!(run(background::drop_unbelievable(&node.shared, None)).unwrap(), 2);
    assert_eq!(run(node.replica.get(&key)).unwrap(), None);
    assert_eq!(run(node.replica.get(&good)).unwrap(), Some(kept));
    assert_eq!(node.shared.hints.waiting_for(peer).count, 1);
    let floor = node.replica.floors().unwrap().of(partition);
    assert_eq!(floor, crate::replica::Floor { agreed: 0, sealed: 0, purged: 7 });
    let version = node.write_to(key.clone(), put("2")).unwrap();
    assert_eq!(version.millis(), UnixMillis(1_000_000));
    assert_eq!(run(background::drop_unbelievable(&node.shared, None)).unwrap(), 0);
}

/// A lease from the future, as a node leaves it whose clock was years ahead, is no reason to stamp there.
#[test]
fn leases_from_the_future_are_not_believed() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let lease = format::encode_lease(UnixMillis((1 << 48) - 1));
    let change = Change::Put {
        keyspace: Keyspace::Meta,
        key: Bytes::from_static(format::META_CLOCK_LEASE),
        value: lease,
    };
    engine.commit(vec![change], Durability::Synced).unwrap();
    let (node, key) = one_of_two(&engine, &clock);
    assert_eq!(node.write_to(key.clone(), put("1")).unwrap().millis(), UnixMillis(1_000_000));
}

/// Goal: a node whose clock was ahead, and is right again, stamps by the right clock at once, without a restart, and
/// nothing twice. Method: a year ahead and back; the same instants once more.
#[test]
fn a_clock_that_comes_back_is_followed() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let other = (0..1000u32).map(|name| Key::new(name.to_be_bytes().to_vec()).unwrap()).find(|name| {
        *name != key && node.shared.cluster.view().plan(name, Quorum::majority_of(1)).replicas == [Slot(0)]
    });
    let other = other.unwrap();
    let first = node.write_to(other.clone(), put("0")).unwrap();
    let set = |millis| {
        clock.set_wall(millis);
        node.shared.timestamps.note_standing(ClockStanding::Confirmed);
    };
    set(31_536_000_000);
    node.write_to(key.clone(), put("ahead")).unwrap();
    set(1_000_000);
    let back = node.write_to(other.clone(), put("1")).unwrap();
    assert_eq!(back.millis(), UnixMillis(1_000_000));
    assert_ne!(back.node(), first.node(), "another writer: no version is given out twice");
    // Within the limit a clock that goes back changes nothing: versions rise.
    clock.set_wall(1_000_000 - 50_000);
    let last = node.write_to(other.clone(), put("2")).unwrap();
    assert!(last > back && last.node() == back.node());
}

/// Goal: a node that is alone goes on above its own past, however far ahead that is: there is nobody to disagree with.
#[test]
fn a_node_that_is_alone_goes_on_above_its_past() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    clock.set_wall(31_536_000_000);
    let ahead = node.write(put("ahead")).unwrap();
    clock.set_wall(1_000_000);
    assert!(node.write(put("back")).unwrap() > ahead);
    assert!(run(node.replica.get(&key())).unwrap().is_some());
}

/// Goal: a TTL counts from the wall clock of the coordinator, however far ahead versions are: `ttl=2s` used to live for an
/// hour after some node's clock had once been an hour ahead, for 100 years after 100 years. Method: clocks that were
/// ahead by less than the limit (versions stay ahead), by an hour, and by 100 years on a node that is alone.
#[test]
fn ttls_count_from_the_wall_clock() {
    let now = 1_000_000;
    let brief = || Mutation::Put { value: Bytes::from_static(b"v"), ttl_millis: Some(2_000) };
    let check = |node: &Node, key: &Key| {
        let version = node.write_to(key.clone(), brief()).unwrap();
        let record = run(node.replica.get(key)).unwrap().unwrap();
        assert_eq!((record.version, record.expires), (version, Some(UnixMillis(now + 2_000))));
        version.millis().0
    };
    for ahead in [50_000, 3_600_000] {
        let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(now));
        let (node, key) = one_of_two(&engine, &clock);
        node.shared.stamps.observe(Version::new(UnixMillis(now + ahead), 0, NodeId(9)));
        let stamped = check(&node, &key);
        assert_eq!(stamped, if ahead == 50_000 { now + ahead } else { now });
    }
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(now));
    let node = node(&engine, &clock, Execution::Inline);
    clock.set_wall(now + 100 * 365 * 86_400_000);
    node.write(put("ahead")).unwrap();
    clock.set_wall(now);
    assert!(check(&node, &key()) > now + 99 * 365 * 86_400_000);
    clock.pass(2_000);
    assert_eq!(node.read(), None);
}
