//! Real nodes that repair themselves, with figures: a disk lost under load, and an absence longer than hints
//! are kept. The third such test, bits that flip in tables under load, is in `cluster_rot.rs`.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::history::{Class, History, Moment};
use kvorum_testkit::load::cluster::{Load, report, settle};
use kvorum_testkit::session::Session;
use kvorum_testkit::{rounds, seed, wait_until};
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

const QUORUMS: Class = Class::default(2, 3);
/// Clients that write concurrently.
const CLIENTS: usize = 4;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:07}").into_bytes()
}

fn votes(cluster: &Cluster, node: usize) -> bool {
    cluster.try_ask(node, "GET", "/v0/status", None).is_ok_and(|it| it.text().contains("votes yes"))
}

/// Records that repair brought to these nodes, as they count them.
fn repaired(cluster: &Cluster, nodes: std::ops::Range<usize>) -> u64 {
    nodes.map(|node| cluster.metric(node, "kvorum_repair_pulled_records_total")).sum()
}

/// Tells a node of three to `pause` its repair with the others, or to `resume` it.
pub fn tell_repair(cluster: &Cluster, node: usize, what: &str) {
    let listed = cluster.ask(node, "GET", "/admin/workers", None).text().to_owned();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let repair: Vec<&str> = names.filter(|name| name.starts_with("repair-")).collect();
    assert_eq!(repair.len(), 2, "{listed}");
    for name in repair {
        let target = format!("/admin/workers/{name}/{what}");
        assert_eq!(cluster.ask(node, "POST", &target, None).status, 200);
    }
}

/// Calls `each` for all numbers below `count`, by several clients of `nodes`.
fn by_clients(
    cluster: &Cluster,
    nodes: &[usize],
    count: usize,
    each: &(dyn Fn(&mut Session, usize, usize) + Sync),
) -> History {
    let addresses = cluster.addresses();
    let mut history = History::default();
    thread::scope(|scope| {
        let client = |client: usize| {
            let addresses = &addresses;
            scope.spawn(move || {
                let mut session = Session::of_all(addresses);
                for number in (client..count).step_by(CLIENTS) {
                    each(&mut session, nodes[number % nodes.len()], number);
                }
                session.history
            })
        };
        for client in (0..CLIENTS).map(client).collect::<Vec<_>>() {
            history.absorb(client.join().unwrap());
        }
    });
    history
}

/// Goal: if a node loses its disk under load, no acknowledged write is lost; the node is refilled and votes
/// again. Method: the load continues at the other two, its latencies are printed; then every copy and every
/// answer is judged.
#[test]
fn disk_lost_under_load() {
    const KEYS: usize = 6_000;
    let mut cluster = Cluster::start(3);
    let put = |session: &mut Session, node: usize, number: usize| {
        assert_eq!(session.put_at(node, QUORUMS, &key(number), 1_000), 201);
    };
    let mut history = by_clients(&cluster, &[0, 1, 2], KEYS, &put);
    let load = Load {
        fixed: 4,
        roaming: 0,
        classes: &[(QUORUMS, 1)],
        keys: (10, 500),
        puts: 40,
        deletes: 5,
        bytes: (24, 200, 4_000),
        pause: Duration::from_millis(2),
    };
    let (mut lost, mut healed, mut ended) = (0, 0, 0);
    let addresses = cluster.addresses();
    // The third node's counter begins at 0 when it is started again.
    let before = repaired(&cluster, 0..2);
    let ran = load.run(&addresses, &[0, 1], seed("a lost disk"), |_| {
        thread::sleep(Duration::from_secs(2));
        lost = Moment::now().mono;
        cluster.kill9(2);
        cluster.wipe(2);
        cluster.start_node(2);
        wait_until("the empty store has been refilled", || votes(&cluster, 2));
        healed = Moment::now().mono;
        thread::sleep(Duration::from_secs(1));
        ended = Moment::now().mono;
    });
    report("a lost disk, before", &ran.asked, 0..lost);
    let share = report("a lost disk, until it votes again", &ran.asked, lost..healed);
    report("a lost disk, afterwards", &ran.asked, healed..ended);
    let records = repaired(&cluster, 0..3) - before;
    println!(
        "figures: a lost disk: votes again after {} ms, {records} records moved",
        (healed - lost) / 1_000_000
    );
    assert!(records >= KEYS as u64, "it was empty");
    assert!(share >= 0.99, "too many requests fail although two of three nodes are well: {share}");
    history.absorb(ran);
    settle(&cluster, &mut history, "a lost disk");
}

/// Goal: reads do not ask a node that is known to lack records while others can answer. The marks of dirty
/// partitions go once all nodes are in sync. Method: writes without hints while a node is down and all repair
/// is paused; reads through the others, few of which may reach the third (a hedge does); then repair resumes.
#[test]
fn reads_pass_over_a_node_until_it_lacks_nothing() {
    const KEYS: usize = 400;
    let mut cluster = Cluster::new(3, &["--hint-max-size", "0", "--tombstone-gc-interval", "1s"]);
    cluster.start_all();
    (0..2).for_each(|node| tell_repair(&cluster, node, "pause"));
    cluster.kill9(2);
    let mut session = Session::of_all(&cluster.addresses());
    for number in 0..KEYS {
        assert_eq!(session.put_at(number % 2, QUORUMS, &key(number), 100), 201);
    }
    cluster.start_node(2);
    tell_repair(&cluster, 2, "pause");
    let sum = |name: &str| (0..2).map(|node| cluster.metric(node, name)).sum::<u64>();
    wait_until("the node is met again", || sum("kvorum_peer_up") == 4);
    for number in 0..KEYS {
        assert_eq!(session.get_at(number % 2, QUORUMS, &key(number)), 200);
    }
    let (marks, written_back) = (sum("kvorum_partitions_to_repair"), sum("kvorum_read_repairs_total"));
    println!("{marks} marks of {KEYS} keys, {written_back} records written back");
    assert!(marks > 0 && written_back <= KEYS as u64 / 10, "{marks} marks, {written_back} written back");
    (0..3).for_each(|node| tell_repair(&cluster, node, "resume"));
    wait_until("no mark is left", || sum("kvorum_partitions_to_repair") == 0);
    assert_eq!(cluster.metric(2, "kvorum_store_keys"), KEYS as u64);
    session.history.assert_holds("a node that lacks something");
}

/// Goal: a node that lacks most of its records gets them by bulk sync, each record about once and none that does
/// not belong there. Method: writes with several `from` while a node is down, without hints; then every copy is
/// counted.
#[test]
fn lacking_most_is_brought_by_transfers() {
    const KEYS: usize = 3_000;
    let classes = [QUORUMS, Class::new("two", (1, 2), (1, 2)), Class::new("one", (1, 1), (1, 1))];
    let class = |number: usize| classes[usize::from(number % 8 == 1) + 2 * usize::from(number % 8 == 2)];
    let mut cluster = Cluster::new(3, &["--hint-max-size", "0", "--tombstone-gc-interval", "1s"]);
    cluster.start_all();
    cluster.kill9(2);
    let mut session = Session::of_all(&cluster.addresses());
    let mut written = vec![false; KEYS];
    for (number, is_written) in written.iter_mut().enumerate() {
        *is_written = session.put_at(number % 2, class(number), &key(number), 100) == 201;
    }
    let begun = Instant::now();
    cluster.start_node(2);
    let sum = |name: &str| (0..3).map(|node| cluster.metric(node, name)).sum::<u64>();
    wait_until("no mark is left", || sum("kvorum_partitions_to_repair") == 0);
    let in_sync = begun.elapsed();
    let copies = cluster.copies();
    let (transfers, moved) = (sum("kvorum_repair_transfers_total"), repaired(&cluster, 0..3));
    let lacked = copies.values().filter(|held| held.contains_key(&2)).count() as u64;
    println!(
        "{transfers} transfers, {moved} records moved of {lacked}, in sync after {} ms",
        in_sync.as_millis()
    );
    assert!(transfers > 0, "no transfer");
    assert!(moved >= lacked && moved <= lacked + lacked / 2, "{moved} moved of {lacked}");
    for (number, is_written) in written.iter().enumerate() {
        let held = copies.get(&key(number)).map_or(0, std::collections::BTreeMap::len);
        if *is_written {
            assert_eq!(held, usize::from(class(number).write.1), "copies of {number}");
            assert_eq!(session.get_at(2, class(number), &key(number)), 200, "{number}");
        }
    }
    session.history.assert_holds("transfers");
}

/// Goal: paused repair stops within a second or two, however much it has begun, and catches up once it
/// resumes. Before the fix, a comparison that had begun brought all missing records first. Method: a node
/// lacks everything, at a rate that takes seconds for it; its records are counted while all repair is paused.
#[test]
fn pause_stops_what_was_begun() {
    const KEYS: usize = 2_000;
    let mut cluster =
        Cluster::new(3, &["--hint-max-size", "0", "--durability", "os", "--repair-rate", "256KiB"]);
    cluster.start_all();
    cluster.kill9(2);
    let put = |session: &mut Session, node: usize, number: usize| {
        assert_eq!(session.put_at(node, QUORUMS, &key(number), 100), 201);
    };
    let history = by_clients(&cluster, &[0, 1], KEYS, &put);
    cluster.start_node(2);
    let held = || cluster.metric(2, "kvorum_store_keys");
    wait_until("repair is at it", || held() > KEYS as u64 / 10);
    (0..3).for_each(|node| tell_repair(&cluster, node, "pause"));
    // Messages on their way may wait a second for the rate limiter.
    thread::sleep(Duration::from_millis(1_500));
    let before = held();
    thread::sleep(Duration::from_secs(2));
    println!("{before} of {KEYS} when it stopped");
    assert_eq!(held(), before, "it goes on");
    assert!(before < KEYS as u64, "all was there before it was paused");
    (0..3).for_each(|node| tell_repair(&cluster, node, "resume"));
    // The wait for connections left one tombstone more; it goes once tombstone GC has run for all nodes.
    wait_until("all is there", || held() >= KEYS as u64 && held() == cluster.metric(0, "kvorum_store_keys"));
    history.assert_holds("a pause");
}

/// Goal: a node that was down longer than hints are kept takes the records that it missed, and brings no
/// deleted record back. Method: it holds half of the keys when it goes down. Meanwhile all keys are written
/// and a quarter deleted, with hints of 64 KiB; the purge must wait for the node. `KVORUM_TEST_ROUNDS=10`
/// makes it 200,000 writes and 50,000 deletions.
#[test]
fn absence_beyond_all_hints() {
    let writes = 20_000 * rounds(1) as usize;
    let deleted = |number: usize| number.is_multiple_of(4);
    let arguments = [
        "--memory-budget",
        "16MiB",
        "--durability",
        "os",
        "--hint-max-size",
        "64KiB",
        "--tombstone-gc-interval",
        "1s",
    ];
    let mut cluster = Cluster::new(3, &arguments);
    cluster.start_all();
    let put = |session: &mut Session, node: usize, number: usize| {
        assert_eq!(session.put_at(node, QUORUMS, &key(number), 100), 201);
    };
    let delete = |session: &mut Session, node: usize, number: usize| {
        assert_eq!(session.delete_at(node, QUORUMS, &key(4 * number)), 202);
    };
    let mut history = by_clients(&cluster, &[0, 1, 2], writes / 2, &put);
    history.killed(2);
    cluster.kill9(2);
    let away = Instant::now();
    history.absorb(by_clients(&cluster, &[0, 1], writes, &put));
    history.absorb(by_clients(&cluster, &[0, 1], writes / 4, &delete));
    let away = away.elapsed();
    let hinted: u64 = (0..2).map(|node| cluster.metric(node, "kvorum_hints_waiting")).sum();
    assert!(hinted < writes as u64 / 4, "{hinted} hints: not beyond their bounds");
    let (begun, before) = (Instant::now(), repaired(&cluster, 0..2));
    cluster.start_node(2);
    let ready = begun.elapsed();
    let live = (0..writes).filter(|number| !deleted(*number)).count() as u64;
    // Only live rows are left: deleted ones could be purged only once the node had all tombstones.
    let is_healed = || (0..3).all(|node| cluster.metric(node, "kvorum_store_keys") == live);
    for _ in 1..rounds(1) {
        let wait = Instant::now();
        while !is_healed() && wait.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(200));
        }
    }
    wait_until("all nodes are in sync and what was deleted is gone", is_healed);
    let in_sync = begun.elapsed();
    println!(
        "figures: an absence of {} ms: {writes} writes, {} deletions, {hinted} hints; ready after {} ms, in sync and purged after \
         {} ms, {} records moved by repair",
        away.as_millis(),
        writes / 4,
        ready.as_millis(),
        in_sync.as_millis(),
        repaired(&cluster, 0..3) - before
    );
    let copies = cluster.copies();
    let ids = |held: &std::collections::BTreeMap<usize, kvorum_testkit::cluster::Copy>| {
        held.values().map(|copy| (copy.version, copy.id())).collect::<BTreeSet<_>>()
    };
    assert_eq!(copies.len() as u64, live);
    assert!(copies.values().all(|held| held.len() == 3 && ids(held).len() == 1), "copies differ");
    let mut session = Session::of_all(&cluster.addresses());
    for number in (0..writes).step_by(97) {
        assert_eq!(
            session.get_at(2, QUORUMS, &key(number)),
            if deleted(number) { 404 } else { 200 },
            "{number}"
        );
    }
    history.absorb(session.history);
    history.assert_holds("an absence beyond all hints");
}
