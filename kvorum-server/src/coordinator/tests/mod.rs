//! The coordinator over a real replica and the in-memory engine.

mod clocks;
mod fence;
mod moves;

use super::{Coordinator, CoordinatorError, Fanout, Mutation, PeerHandler, Settings, Shared, Stamps};
use crate::clock::{Clock, ClockStanding, ManualClock, SystemRng, TimestampBound};
use crate::cluster::{Cluster, PeerRegistry};
use crate::metrics::StoreMetrics;
use crate::peer::PROTOCOL;
use crate::peer::{
    ApplyKind, BoxedStream, Caller, Connector, HeldBack, PeerLimits, Refusal, Reply, Request, Service,
    Timestamp,
};
use crate::replica::{
    Applied, Birth, DurabilityMode, Execution, Fetched, HintBounds, Hints, Purge, Replica, ReplicaError,
    ReplicaParts, ReplicaThreads, Row, Source, Vote, Workers,
};
use crate::storage::memory::{Fault, MemoryEngine};
use crate::storage::{Change, Durability, Engine, Keyspace, format};
use crate::worker::Pools;
use bytes::Bytes;
use kvorum_core::agreement::Epoch;
use kvorum_core::{
    Key, NodeId, Quorum, Record, ReplicationFactor, Run, Slot, StoreSeen, Token, Topology, UnixMillis, Value,
    Version,
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
    let registry = PeerRegistry::new(own, 1, std::collections::BTreeMap::new(), Vote::Yes);
    let bounds = HintBounds { bytes_max: 1 << 20, age_max_millis: 3_600_000 };
    let settings = Settings {
        factor: ReplicationFactor::Count(3),
        request_timeout: Duration::from_secs(30),
        fanout: Fanout::Parallel,
        hint_wait: Duration::from_secs(1),
        tombstone_gc_every: Duration::from_secs(10),
        clock_offset_max: Duration::from_secs(1),
        takes_any_peer: false,
        upkeep: super::Upkeep {
            scrub_every: Duration::from_mins(1),
            scrub_rate: 1 << 20,
            repair_rate: 1 << 30,
            transferring: super::Transferring::default(),
            away_after: Duration::from_secs(30),
        },
    };
    let cluster = Cluster::new("test".to_owned(), None, topology, Slot(0), replica.store_id(), registry);
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
    /// The same, whose requests do not wait long for nodes that are not there.
    fn impatient(mut self) -> Self {
        Arc::get_mut(&mut self.shared).unwrap().settings.request_timeout = Duration::from_secs(1);
        self
    }

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

/// The first of two nodes, and a key that has its first replica there.
fn one_of_two(engine: &Arc<MemoryEngine>, clock: &Arc<ManualClock>) -> (Node, Key) {
    let urls = ["http://n:1", "http://n:2"];
    let node = node_among(&urls, engine, clock, Execution::Inline, DurabilityMode::Always);
    let first = |name: &u32| {
        let key = Key::new(name.to_be_bytes().to_vec()).unwrap();
        node.shared.cluster.view().plan(&key, Quorum::majority_of(1)).replicas == [Slot(0)]
    };
    let name = (0..100u32).find(first).unwrap();
    // A lone test node has met nobody.
    node.shared.cluster.trust_store();
    (node, Key::new(name.to_be_bytes().to_vec()).unwrap())
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
        conditional: None,
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
        conditional: None,
    };
    let records = vec![(key("a"), record(2)), (key("c"), record(3)), (key("a"), record(1))];
    let applied = run(node.replica.apply_many(records, Source::Repair { agreed: 0 })).unwrap();
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
        conditional: None,
    };
    let records: Vec<(Key, Record)> = (0..100u8)
        .map(|number| {
            let value = Value::Present(Bytes::from(vec![number; 10]));
            (Key::new(vec![number; 1 + usize::from(number % 3)]).unwrap(), record(value))
        })
        .chain([(Key::new("a tombstone").unwrap(), record(Value::Tombstone))])
        .collect();
    run(node.replica.apply_many(records.clone(), Source::Repair { agreed: 0 })).unwrap();
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
        let led = all.iter().filter(|watermark| watermark.leader == Slot(1));
        led.map(|watermark| watermark.held_by).collect::<Vec<_>>()
    };
    let all_say = |why| led_by_the_other().iter().all(|held_by| *held_by == Some((Slot(1), why)));
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
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let caller =
        Caller { peer: NodeId::of_url("http://n:1"), connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
    let version = Version::from_words(1_000_000 << 16, 1);
    let record = Record { version, expires: None, from: 3, value: Value::Tombstone, conditional: None };
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
            let reply = handler.serve(caller, request, Duration::ZERO).await;
            assert!(!matches!(reply, Reply::Refused { .. }), "{reply:?}");
            begun.elapsed()
        };
        runtime.block_on(tokio::task::LocalSet::new().run_until(serve))
    };
    for request in requests.clone() {
        assert!(took(request) < Duration::from_secs(1));
    }
    // All that may be charged ahead is, at the test's rate; the clock of the node stands still.
    runtime.block_on(node.shared.background.pace.hold(3600 << 30));
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
        conditional: None,
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

/// Goal: whatever a peer says of nodes that are none of the cluster's, the registry has members only, so it can always be
/// told on. Method: the Ping that silenced a node for good, with as many foreign nodes as a message can name.
#[test]
fn a_registry_has_members_only() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let urls = ["http://n:1", "http://n:2"];
    let node = node_among(&urls, &engine, &clock, Execution::Inline, DurabilityMode::Always);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let peer = NodeId::of_url("http://n:2");
    let before = node.shared.cluster.registry().entries();
    let seen = |node, store| StoreSeen { node, store, run: Run { number: 1, nonce: 1 } };
    let ping = |registry| Request::Ping { wall: UnixMillis(1_000_000), cluster_id: None, registry };
    let foreign: Vec<StoreSeen> = (0..1024).map(|id| seen(NodeId(id), u128::from(id))).collect();
    for caller in [peer, NodeId(4)] {
        let request = ping(foreign.clone());
        let caller = Caller { peer: caller, connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
        run(handler.serve(caller, request, Duration::ZERO));
    }
    run(node.shared.background.membership.meet(NodeId(5), &[seen(NodeId(5), 5)], true));
    assert_eq!(node.shared.cluster.registry().entries(), before);
    // A member is heard of all the same.
    run(handler.serve(
        Caller { peer, connection: 1, protocol: PROTOCOL, epoch: Epoch(0) },
        ping(vec![seen(peer, 22)]),
        Duration::ZERO,
    ));
    run(node.shared.background.membership.meet(peer, &[seen(peer, 22)], true));
    assert!(node.shared.cluster.registry().entries().contains(&seen(peer, 22)));
}

/// A value that is longer than a client may send is not taken from a peer either, by any way.
#[test]
fn values_from_peers_obey_the_limit_of_clients() {
    let (engine, clock) = (Arc::new(MemoryEngine::new()), ManualClock::at(1_000_000));
    let (node, key) = one_of_two(&engine, &clock);
    let handler = PeerHandler::new(Arc::clone(&node.shared));
    let caller =
        Caller { peer: NodeId::of_url("http://n:2"), connection: 1, protocol: PROTOCOL, epoch: Epoch(0) };
    let record = |bytes: usize| {
        let value = Value::Present(Bytes::from(vec![7; bytes]));
        Record {
            version: Version::new(UnixMillis(1_000_000), 0, NodeId(1)),
            expires: None,
            from: 3,
            value,
            conditional: None,
        }
    };
    let serve = |bytes: usize| {
        let apply = |kind| Request::Apply { key: key.clone(), record: record(bytes), kind };
        let all = [apply(ApplyKind::Write), apply(ApplyKind::Hint), apply(ApplyKind::ReadRepair)];
        all.map(|request| run(handler.serve(caller, request, Duration::MAX)))
    };
    let pull = |bytes: usize| {
        run(node.replica.apply_many(vec![(key.clone(), record(bytes))], Source::Repair { agreed: 0 }))
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
