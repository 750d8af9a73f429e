//! The coordinator over a real replica and the in-memory engine.

use super::{Coordinator, CoordinatorError, Fanout, Mutation, PeerDesk, Settings, Shared, Stamps};
use crate::clock::{Clock, ClockStanding, ManualClock, SystemRng, TimestampBound};
use crate::cluster::{Cluster, Roster};
use crate::metrics::StoreMetrics;
use crate::peer::{
    ApplyKind, BoxedStream, Caller, Connector, HeldBack, PeerLimits, Refusal, Reply, Request, Service,
};
use crate::replica::{
    Applied, Birth, DurabilityMode, Execution, Fetched, HintBounds, Hints, Purge, Replica, ReplicaError,
    ReplicaParts, ReplicaThreads, Row, Source, Vote, Workers,
};
use crate::storage::memory::{Fault, MemoryEngine};
use crate::storage::{Change, Durability, Engine, Keyspace, format};
use crate::worker::Pools;
use bytes::Bytes;
use kvorum_core::{
    Key, NodeId, NodeIndex, Quorum, Record, ReplicationFactor, Run, StoreSeen, Token, Topology, UnixMillis,
    Value, Version,
};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

struct Node {
    shared: Arc<Shared>,
    replica: Replica,
    _threads: ReplicaThreads,
}

/// Nobody else is there.
struct Nowhere;

impl Connector for Nowhere {
    fn connect<'a>(
        &'a self,
        _authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionRefused.into())))
    }
}

fn node(engine: &Arc<MemoryEngine>, clock: &Arc<ManualClock>, execution: Execution) -> Node {
    node_with(engine, clock, execution, DurabilityMode::Always)
}

fn node_with(
    engine: &Arc<MemoryEngine>,
    clock: &Arc<ManualClock>,
    execution: Execution,
    durability: DurabilityMode,
) -> Node {
    node_among(&["http://n:1"], engine, clock, execution, durability)
}

/// The first of the nodes at `urls`.
fn node_among(
    urls: &[&str],
    engine: &Arc<MemoryEngine>,
    clock: &Arc<ManualClock>,
    execution: Execution,
    durability: DurabilityMode,
) -> Node {
    let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
    let timestamps = Arc::new(match urls {
        [_] => TimestampBound::alone(Arc::clone(&clock)),
        _ => TimestampBound::new(Arc::clone(&clock), Duration::from_mins(1)),
    });
    let (replica, threads, lease) = Replica::start(ReplicaParts {
        engine: Arc::clone(engine) as Arc<dyn Engine>,
        clock: Arc::clone(&clock),
        timestamps: Arc::clone(&timestamps),
        value_bytes_max: 8 << 20,
        rng: Arc::new(SystemRng),
        pools: Arc::new(Pools::start(1, &crate::supervise::Supervisor::default()).unwrap()),
        metrics: Arc::new(StoreMetrics::default()),
        execution,
        durability,
        purge: Purge::Keep,
        node: NodeId::of_url("http://n:1"),
        bound_to: None,
        birth: Birth { vote: Vote::Yes, topology: 1 },
        partition_bits: 12,
        index_bytes: 4 << 10,
        workers: Workers::Threads,
        supervisor: crate::supervise::Supervisor::default(),
    })
    .unwrap();
    let topology = Topology::of_urls(urls.iter().copied()).unwrap();
    let id = NodeId::of_url("http://n:1");
    let own = StoreSeen { node: id, store: replica.store_id(), run: replica.run() };
    let roster = Roster::new(own, 1, std::collections::BTreeMap::new(), Vote::Yes);
    let bounds = HintBounds { bytes_max: 1 << 20, age_max_millis: 3_600_000 };
    let settings = Settings {
        factor: ReplicationFactor::Count(3),
        request_timeout: Duration::from_secs(30),
        fanout: Fanout::Parallel,
        hint_wait: Duration::from_secs(1),
        settle_every: Duration::from_secs(10),
        clock_offset_max: Duration::from_secs(1),
        upkeep: super::Upkeep {
            scrub_every: Duration::from_mins(1),
            scrub_rate: 1 << 20,
            repair_rate: 1 << 30,
            transferring: super::Transferring::default(),
        },
    };
    let cluster = Cluster::new("test".to_owned(), None, topology, NodeIndex(0), replica.store_id(), roster);
    let hints = Hints::open(replica.clone(), bounds, lease).unwrap();
    let rng = Arc::new(SystemRng);
    let stamps =
        Stamps::resume(id, lease, Arc::clone(&clock), Arc::clone(&timestamps), rng.clone(), replica.clone());
    let shared = Shared::new(
        cluster,
        clock,
        Arc::new(PeerLimits::new(timestamps, 8 << 20, 64 << 20)),
        Arc::default(),
        rng,
        replica.clone(),
        hints,
        stamps,
        settings,
    );
    Node { shared, replica, _threads: threads }
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn put(text: &'static str) -> Mutation {
    Mutation::Put { value: Bytes::from_static(text.as_bytes()), ttl_millis: None }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

impl Node {
    fn write(&self, mutation: Mutation) -> Result<Version, CoordinatorError> {
        self.write_to(key(), mutation)
    }

    fn write_to(&self, key: Key, mutation: Mutation) -> Result<Version, CoordinatorError> {
        let written = run(async {
            let coordinator =
                Coordinator::start(Arc::clone(&self.shared), &(Rc::new(Nowhere) as Rc<dyn Connector>), 0);
            coordinator.write(key, mutation, Quorum::majority_of(1)).await
        })?;
        assert_eq!(written.confirmed, 1);
        Ok(written.version)
    }

    fn read(&self) -> Option<Bytes> {
        let found = run(async {
            let coordinator =
                Coordinator::start(Arc::clone(&self.shared), &(Rc::new(Nowhere) as Rc<dyn Connector>), 0);
            coordinator.read(key(), Quorum::majority_of(1)).await
        })
        .unwrap();
        assert_eq!(found.answered, 1);
        found.record.and_then(|record| record.live(found.now).cloned())
    }
}

/// What is written is read, deletions and expiry included, with storage calls on either side.
#[test]
fn writes_are_read() {
    for execution in [Execution::Inline, Execution::Pool] {
        let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
        let node = node(&engine, &clock, execution);
        assert_eq!(node.read(), None);
        let first = node.write(put("1")).unwrap();
        let second = node.write(put("2")).unwrap();
        assert!(second > first);
        assert_eq!(node.read().unwrap(), "2");
        node.write(Mutation::Delete).unwrap();
        assert_eq!(node.read(), None);
        node.write(Mutation::Put { value: Bytes::from_static(b"3"), ttl_millis: Some(10) }).unwrap();
        clock.pass(9);
        assert_eq!(node.read().unwrap(), "3");
        clock.pass(1);
        assert_eq!(node.read(), None);
    }
}

/// Goal: guarantee 3, no clock is trusted. Method: the replica holds a record stamped an hour ahead; a later write
/// must supersede it before it is acknowledged.
#[test]
fn write_supersedes_what_was_stamped_ahead() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    let ahead = Version::new(UnixMillis(1_000_000 + 3_600_000), 7, NodeId(9));
    let record = Record {
        version: ahead,
        from: 1,
        expires: None,
        value: Value::Present(Bytes::from_static(b"ahead")),
    };
    assert_eq!(run(node.replica.apply(key(), record, Source::Writer)).unwrap(), Applied::Stored);
    let version = node.write(put("later")).unwrap();
    assert!(version > ahead);
    assert_eq!(node.read().unwrap(), "later");
}

/// Versions rise over a restart although the clock goes back an hour and the life before stamped at its end.
#[test]
fn versions_rise_over_restarts() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(10_000_000));
    let before = node(&engine, &clock, Execution::Inline).write(put("1")).unwrap();
    engine.crash();
    clock.set_wall(10_000_000 - 3_600_000);
    let node = node(&engine, &clock, Execution::Inline);
    let other = node.write_to(Key::new("other").unwrap(), put("2")).unwrap();
    assert!(other > before, "{other} after {before}");
}

/// Goal: a node with an older copy of its store, and so with an older lease, stamps nothing again, also where nobody
/// could tell it what was stamped (seed 2294297245). Method: the same writes by the same clock, in two lives on one copy.
#[test]
fn older_store_stamps_nothing_again() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    drop(node(&engine, &clock, Execution::Inline));
    let mut stamped = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let copy = engine.copy_of_disk();
        let node = node(&engine, &clock, Execution::Inline);
        for _ in 0..20 {
            let version = node.write(put("1")).unwrap();
            assert!(stamped.insert(version), "{version} was stamped twice");
        }
        drop(node);
        engine.put_back(copy);
    }
}

/// Goal: whoever writes while others do does not wait for the clock's lease. Method: the next lease is stored when three
/// quarters of the first are over; from then on the disk takes nothing, and a version beyond the first is stamped all the same.
#[test]
fn lease_is_renewed_before_it_ends() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    let stamps = &node.shared.stamps;
    let stored = || {
        let row = engine.get(Keyspace::Meta, format::META_CLOCK_LEASE).unwrap();
        row.map(|row| format::decode_lease(&row).unwrap().0)
    };
    let stamp = || run(stamps.next(Version::ZERO));
    stamp().unwrap();
    assert_eq!(stored(), Some(1_001_000));
    clock.set_wall(1_000_700);
    stamp().unwrap();
    assert_eq!((stored(), stamps.lease().0), (Some(1_001_000), 1_001_000));
    clock.set_wall(1_000_800);
    stamp().unwrap();
    assert_eq!(stamps.lease().0, 1_001_800, "on its way");
    // Behind it in the commit thread's queue: by the end of the second it has been told of.
    for _ in 0..2 {
        node.write(put("1")).unwrap();
    }
    assert_eq!(stored(), Some(1_001_800));
    engine.set_fault(Some(Fault::WriteError));
    clock.set_wall(1_001_500);
    assert_eq!(stamp().unwrap().millis().0, 1_001_500);
    // The one after cannot be stored: stamps go on until the second has ended, and not beyond.
    clock.set_wall(1_001_790);
    stamp().unwrap();
    clock.set_wall(1_001_801);
    assert!(stamp().is_err());
}

/// Failures keep their meaning on the way up, and a failed store still reads.
#[test]
fn failures_keep_their_meaning() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    node.write(put("1")).unwrap();
    engine.set_fault(Some(Fault::DiskFull));
    // The first write meets the full disk while it is stored, and may be found stored; the next one is refused before.
    let filled_up = node.write(put("2"));
    assert!(matches!(filled_up, Err(CoordinatorError::NotEnoughReplicas { .. })), "{filled_up:?}");
    assert!(filled_up.unwrap_err().to_string().contains("filled up"));
    let full = node.write(put("3"));
    assert!(matches!(full, Err(CoordinatorError::Replica(ReplicaError::DiskFull))), "{full:?}");
    assert_eq!(node.read().unwrap(), "1");
}

/// What is asked of many keys ends at the bound of bytes, and is about one key at least; what was applied is found.
#[test]
fn many_keys_are_read_up_to_a_bound() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    let key = |name: &'static str| Key::new(name).unwrap();
    let record = |millis| Record {
        version: Version::new(UnixMillis(millis), 0, NodeId(1)),
        from: 3,
        expires: None,
        value: Value::Present(Bytes::from(vec![7; 100])),
    };
    let records = vec![(key("a"), record(2)), (key("c"), record(3)), (key("a"), record(1))];
    let applied = run(node.replica.apply_many(records, Source::Repair { settled: 0 })).unwrap();
    assert!(
        matches!(applied[..], [
            Some(Applied::Stored),
            Some(Applied::Stored),
            Some(Applied::Superseded { by, .. })
        ] if by == record(2).version),
        "{applied:?}"
    );
    let read = |bytes_max| run(node.replica.get_many(["a", "b", "c"].map(key).to_vec(), bytes_max)).unwrap();
    let all = [Fetched::Record(record(2)), Fetched::Nothing, Fetched::Record(record(3))];
    assert_eq!(read(1 << 20), all);
    assert_eq!(read(1), all[..1]);
    assert_eq!(read(0), all[..1]);
    assert_eq!(read(200), all);
}

/// A walk in parts, however small, meets every record once, in order, and returns those that are wanted.
#[test]
fn walks_go_on_where_they_were() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    let record = |value: Value| Record {
        version: Version::new(UnixMillis(7), 0, NodeId(1)),
        from: 3,
        expires: None,
        value,
    };
    let records: Vec<(Key, Record)> = (0..100u8)
        .map(|number| {
            let value = Value::Present(Bytes::from(vec![number; 10]));
            (Key::new(vec![number; 1 + usize::from(number % 3)]).unwrap(), record(value))
        })
        .chain([(Key::new("a tombstone").unwrap(), record(Value::Tombstone))])
        .collect();
    run(node.replica.apply_many(records.clone(), Source::Repair { settled: 0 })).unwrap();
    let mut sorted = records;
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    sorted.retain(|(key, _)| key.as_ref().len() != 2);
    for bytes_max in [1, 100, 1 << 20] {
        let (mut found, mut after, mut rows) = (Vec::new(), None, 0);
        loop {
            let pick = |key: &Key, row: Row<'_>| {
                if key.as_ref().len() == 2 { Ok(None) } else { Ok(Some((key.clone(), row.record()?))) }
            };
            let part = run(node.replica.stretch(after, bytes_max, pick)).unwrap();
            assert!(part.bytes >= bytes_max || part.last.is_none());
            rows += part.rows;
            found.extend(part.picked);
            after = part.last;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((found, rows), (sorted.clone(), 101), "{bytes_max} bytes at a time");
    }
}

/// A life that confirms writes before they are synced, and does not end as it should, leaves every partition of its node
/// marked, and the lives after it until the marks are removed; one that ends, or syncs first, leaves none.
#[test]
fn unclean_ends_leave_marks() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let start = |durability| node_with(&engine, &clock, Execution::Inline, durability);
    let gaps = |node: &Node| node.shared.hints.gaps_of(NodeId::of_url("http://n:1"));
    let stop = |node: Node| drop(node);
    for durability in
        [DurabilityMode::Os, DurabilityMode::Interval(Duration::from_mins(1)), DurabilityMode::Always]
    {
        let node = start(durability);
        assert_eq!(gaps(&node).len(), 0, "{durability:?}");
        node.write(put("1")).unwrap();
        stop(node);
    }
    let cut_short = start(DurabilityMode::Os);
    cut_short.write(put("2")).unwrap();
    // As a crash leaves it: the life before has not ended when the next begins.
    let next = start(DurabilityMode::Always);
    assert_eq!(gaps(&next).len(), 4096);
    assert_eq!(next.shared.hints.waiting_for(NodeId::of_url("http://n:1")).gaps, 4096);
    let again = start(DurabilityMode::Os);
    assert_eq!(gaps(&again).len(), 4096, "they stay until they are forgotten");
    run(again.shared.hints.forget_gaps(|_, _, _| true)).unwrap();
    for node in [again, next, cut_short] {
        stop(node);
    }
    assert_eq!(gaps(&start(DurabilityMode::Always)).len(), 0);
}

/// A mark stays where something newer was dropped while it was being forgotten, over a restart too; another one goes.
#[test]
fn marks_that_are_renewed_meanwhile_stay() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let first = node(&engine, &clock, Execution::Inline);
    let (hints, target) = (&first.shared.hints, NodeId::of_url("http://n:2"));
    let mark = |partition, clock| {
        hints.mark_gap(target, partition, Version::from_words(clock, 1), UnixMillis(1_000_000))
    };
    run(mark(7, 10)).unwrap();
    run(mark(8, 10)).unwrap();
    let (forgotten, marked) =
        run(async { tokio::join!(hints.forget_gaps(|_, _, clock| clock <= 10), mark(7, 11)) });
    assert!(forgotten.is_ok() && marked.is_ok());
    let gaps = |node: &Node| node.shared.hints.gaps_of(target).into_iter().collect::<Vec<_>>();
    assert_eq!(gaps(&first), [7]);
    assert!(hints.lacks(target, 7) && !hints.lacks(target, 8));
    drop(first);
    assert_eq!(gaps(&node(&engine, &clock, Execution::Inline)), [7]);
}

/// A node that is silent in the first moments after a start was merely not heard yet; later it is away.
#[test]
fn silence_means_away_only_after_a_while() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let urls = ["http://n:1", "http://n:2"];
    let node = node_among(&urls, &engine, &clock, Execution::Inline, DurabilityMode::Always);
    let led_by_the_other = || {
        let all = node.shared.background.tombstone_gc.watermarks();
        let led = all.iter().filter(|watermark| watermark.leader == NodeIndex(1));
        led.map(|watermark| watermark.held_by).collect::<Vec<_>>()
    };
    let all_say = |why| led_by_the_other().iter().all(|held_by| *held_by == Some((NodeIndex(1), why)));
    assert!(!led_by_the_other().is_empty() && all_say(HeldBack::NotHeard));
    clock.pass(120_000);
    assert!(all_say(HeldBack::Away));
}

/// Goal: what a peer sends or asks for is held to this node's pace, whatever the peer's allows, and not for longer than the
/// peer waits. Method: a hint, a fetch and a stretch, each before and after all that may be charged ahead is.
#[test]
fn what_peers_send_is_held_to_the_pace() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let node = node(&engine, &clock, Execution::Inline);
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let caller = Caller { peer: NodeId::of_url("http://n:1"), connection: 1 };
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record { version, expires: None, from: 3, value: Value::Tombstone };
    let requests = [
        Request::Apply { key: key(), record, kind: ApplyKind::Hint },
        Request::Fetch { keys: vec![key(), Key::new("other").unwrap()], bytes: 1 << 20 },
        Request::Stretch { partitions: vec![0], after: None, bytes: 1 << 20 },
    ];
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let took = |request: Request| {
        let serve = async {
            let begun = tokio::time::Instant::now();
            let reply = desk.serve(caller, request, Duration::ZERO).await;
            assert!(!matches!(reply, Reply::Refused { .. }), "{reply:?}");
            begun.elapsed()
        };
        runtime.block_on(tokio::task::LocalSet::new().run_until(serve))
    };
    for request in requests.clone() {
        assert!(took(request) < Duration::from_secs(1));
    }
    // All that may be charged ahead is, at the test's rate; the clock of the node stands still.
    runtime.block_on(node.shared.hold_to_pace(3600 << 30));
    for request in requests {
        assert!(took(request) >= Duration::from_secs(1));
    }
}

/// Always-synced lives leave nothing to look for, however they end.
#[test]
fn synced_lives_leave_no_marks() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let _cut_short = node(&engine, &clock, Execution::Inline);
    let next = node(&engine, &clock, Execution::Inline);
    assert_eq!(next.shared.hints.gaps_of(NodeId::of_url("http://n:1")).len(), 0);
}

/// A hint holds back the watermark of its key's partition for as long as it is kept, over a restart too, and no other's.
#[test]
fn hints_are_known_by_partition() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let start = || node(&engine, &clock, Execution::Inline);
    let target = NodeId(9);
    let record = |millis| Record {
        version: Version::new(UnixMillis(millis), 0, NodeId(1)),
        from: 3,
        expires: None,
        value: Value::Present(Bytes::from_static(b"v")),
    };
    let names = ["a", "b"].map(|name| Key::new(name).unwrap());
    let node = start();
    let [a, b] = names.each_ref().map(|key| Token::of(key.as_ref()).partition(12).0);
    assert!(a != b);
    let now = UnixMillis(1_000_000);
    for (name, partition, millis) in [(0, a, 7), (0, a, 5), (1, b, 6)] {
        run(node.shared.hints.keep(target, partition, &names[name], &record(millis), now)).unwrap();
    }
    let word = |millis| record(millis).version.clock();
    let mut expected = vec![(a, word(5)), (b, word(6))];
    expected.sort_unstable();
    assert_eq!(node.shared.hints.oldest(), expected);
    drop(node);
    let node = start();
    assert_eq!(node.shared.hints.oldest(), expected);
    let kept = run(node.shared.hints.next(target, None, 10, 1 << 20)).unwrap();
    let (of_a, of_b): (Vec<_>, Vec<_>) = kept.into_iter().partition(|hint| hint.key == names[0]);
    run(node.shared.hints.remove(target, of_a)).unwrap();
    assert_eq!(node.shared.hints.oldest(), [(b, word(6))]);
    run(node.shared.hints.remove(target, of_b)).unwrap();
    assert_eq!(node.shared.hints.oldest(), []);
}

/// Goal: whatever a peer says of nodes that are none of the cluster's, the roster has members only, so it can always be
/// told on. Method: the Ping that silenced a node for good, with as many foreign nodes as a message can name.
#[test]
fn a_roster_has_members_only() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let urls = ["http://n:1", "http://n:2"];
    let node = node_among(&urls, &engine, &clock, Execution::Inline, DurabilityMode::Always);
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let peer = NodeId::of_url("http://n:2");
    let before = node.shared.cluster.roster().entries();
    let seen = |node, store| StoreSeen { node, store, run: Run { number: 1, nonce: 1 } };
    let ping = |roster| Request::Ping { wall: UnixMillis(1_000_000), cluster_id: None, roster };
    let foreign: Vec<StoreSeen> = (0..1024).map(|id| seen(NodeId(id), u128::from(id))).collect();
    for caller in [peer, NodeId(4)] {
        let request = ping(foreign.clone());
        let caller = Caller { peer: caller, connection: 1 };
        run(desk.serve(caller, request, Duration::ZERO));
    }
    run(node.shared.background.membership.meet(seen(NodeId(5), 5), true));
    assert_eq!(node.shared.cluster.roster().entries(), before);
    // A member is heard of all the same.
    run(desk.serve(Caller { peer, connection: 1 }, ping(vec![seen(peer, 22)]), Duration::ZERO));
    run(node.shared.background.membership.meet(seen(peer, 22), true));
    assert!(node.shared.cluster.roster().entries().contains(&seen(peer, 22)));
}

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
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let partition = node.shared.cluster.partition_of(&key);
    node.shared.timestamps.note_standing(ClockStanding::Confirmed);
    let now = Version::new(UnixMillis(1_000_000), 0, NodeId(0)).clock();
    let before = node.replica.floor(partition);
    for (settled, sealed, purged) in [(now, now, now), (now, now, 0), (0, 0, now), (0, now, 0)] {
        let floor = crate::replica::Floor { settled, sealed, purged };
        let request = Request::Versions { partition: partition.0, after: None, bytes: 1 << 10, floor };
        let caller = Caller { peer: NodeId::of_url("http://n:2"), connection: 1 };
        let Reply::VersionList { .. } = run(desk.serve(caller, request, Duration::ZERO)) else {
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
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let partition = node.shared.cluster.partition_of(&key).0;
    let floor = crate::replica::Floor::default();
    let ask = |request: Request| {
        run(desk.serve(Caller { peer: NodeId::of_url("http://n:2"), connection: 1 }, request, Duration::ZERO))
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

/// One of two nodes, and a key of which it is the first replica.
fn one_of_two(engine: &Arc<MemoryEngine>, clock: &Arc<ManualClock>) -> (Node, Key) {
    let urls = ["http://n:1", "http://n:2"];
    let node = node_among(&urls, engine, clock, Execution::Inline, DurabilityMode::Always);
    let first = |name: &u32| {
        let key = Key::new(name.to_be_bytes().to_vec()).unwrap();
        node.shared.cluster.plan(&key, Quorum::majority_of(1)).replicas == [NodeIndex(0)]
    };
    let name = (0..100u32).find(first).unwrap();
    // A lone test node has met nobody.
    node.shared.cluster.trust_store();
    (node, Key::new(name.to_be_bytes().to_vec()).unwrap())
}

/// The highest version there is.
fn forever() -> Version {
    Version::from_words(u64::MAX, u64::MAX)
}

fn tombstone_of(version: Version) -> Record {
    Record { version, expires: None, from: 3, value: Value::Tombstone }
}

/// Goal: a forged version, whatever brings it, is refused with a code and counted, changes no record and does not move
/// the clock: one used to make every later write of the cluster share one version, for good. Method: the highest version
/// there is by every kind of message that applies, and by every place that observes versions; then a write.
#[test]
fn forged_versions_change_nothing() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let caller = Caller { peer: NodeId::of_url("http://n:2"), connection: 1 };
    let record = tombstone_of(forever());
    let apply = |kind| Request::Apply { key: key.clone(), record: record.clone(), kind };
    let forged = [apply(ApplyKind::Write), apply(ApplyKind::Hint), apply(ApplyKind::ReadRepair)];
    for request in forged {
        let reply = run(desk.serve(caller, request.clone(), Duration::MAX));
        let is_refused = matches!(reply, Reply::Refused { code: Refusal::TooFarAhead, .. });
        assert!(is_refused, "{request:?}: {reply:?}");
    }
    let pulled = run(node.replica.apply_many(vec![(key.clone(), record)], Source::Repair { settled: 0 }));
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
    let applied = run(node.replica.apply_many(records, Source::Repair { settled: 0 })).unwrap();
    assert_eq!(applied, [Some(Applied::Stored), None]);
    let floor = crate::replica::Floor::default();
    let listed =
        run(node.shared.background.anti_entropy.versions_with(NodeIndex(1), partition, None, 1 << 20, floor))
            .unwrap();
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
    assert_eq!(run(node.shared.drop_unbelievable(None)).unwrap(), 2);
    assert_eq!(run(node.replica.get(&key)).unwrap(), None);
    assert_eq!(run(node.replica.get(&good)).unwrap(), Some(kept));
    assert_eq!(node.shared.hints.waiting_for(peer).count, 1);
    let floor = node.replica.floors().unwrap().of(partition);
    assert_eq!(floor, crate::replica::Floor { settled: 0, sealed: 0, purged: 7 });
    let version = node.write_to(key.clone(), put("2")).unwrap();
    assert_eq!(version.millis(), UnixMillis(1_000_000));
    assert_eq!(run(node.shared.drop_unbelievable(None)).unwrap(), 0);
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
        *name != key && node.shared.cluster.plan(name, Quorum::majority_of(1)).replicas == [NodeIndex(0)]
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

/// A value that is longer than a client may send is not taken from a peer either, by any way.
#[test]
fn values_from_peers_obey_the_limit_of_clients() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let desk = PeerDesk::new(Arc::clone(&node.shared));
    let caller = Caller { peer: NodeId::of_url("http://n:2"), connection: 1 };
    let record = |bytes: usize| {
        let value = Value::Present(Bytes::from(vec![7; bytes]));
        Record { version: Version::new(UnixMillis(1_000_000), 0, NodeId(1)), expires: None, from: 3, value }
    };
    let serve = |bytes: usize| {
        let apply = |kind| Request::Apply { key: key.clone(), record: record(bytes), kind };
        let all = [apply(ApplyKind::Write), apply(ApplyKind::Hint), apply(ApplyKind::ReadRepair)];
        all.map(|request| run(desk.serve(caller, request, Duration::MAX)))
    };
    let pull = |bytes: usize| {
        run(node.replica.apply_many(vec![(key.clone(), record(bytes))], Source::Repair { settled: 0 }))
    };
    for reply in serve((8 << 20) + 1) {
        assert!(matches!(reply, Reply::Refused { code: Refusal::TooLong, .. }), "{reply:?}");
    }
    let pulled = pull((8 << 20) + 1);
    assert!(matches!(pulled, Err(ReplicaError::ValueTooLong { .. })), "{pulled:?}");
    assert_eq!(run(node.replica.get(&key)).unwrap(), None);
    for reply in serve(8 << 20) {
        assert!(matches!(reply, Reply::Applied(_)), "{reply:?}");
    }
    assert!(pull(8 << 20).is_ok());
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
