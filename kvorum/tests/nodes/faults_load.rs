//! Overload: more requests than the node can serve, more dead records than any client reads. Neither has
//! lasting effects.

use kvorum_testkit::history::History;
use kvorum_testkit::node::Node;
use kvorum_testkit::session::{Session, read_all};
use kvorum_testkit::wait_until;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SMALL: &[&str] = &["--memory-budget", "16MiB", "--durability", "os"];

/// Runs `client` `count` times concurrently, each with its number, and returns the operations of all.
fn clients(count: u64, client: impl Fn(u64) -> History + Sync) -> History {
    let mut history = History::default();
    thread::scope(|scope| {
        let running: Vec<_> = (0..count)
            .map(|index| {
                scope.spawn({
                    let client = &client;
                    move || client(index)
                })
            })
            .collect();
        for client in running {
            history.absorb(client.join().unwrap());
        }
    });
    history
}

/// Expired records and tombstones go by themselves; records that were written again meanwhile stay.
#[test]
fn sweeper_gives_back_space_unasked() {
    const EACH: u64 = 20_000;
    const CLIENTS: u64 = 4;
    const KEPT: u64 = 100;
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), SMALL);
    let mut history = clients(CLIENTS, |client| {
        let mut session = Session::new(node.address());
        for index in (client..KEPT).step_by(CLIENTS as usize) {
            let (overwritten, again) = (format!("kept-ttl-{index}"), format!("kept-again-{index}"));
            assert_eq!(session.put(&overwritten, 500, Some(1_000)), 201);
            assert_eq!(session.put(&overwritten, 500, None), 201);
            assert_eq!(session.put(&again, 500, None), 201);
            assert_eq!(session.delete(&again), 202);
            assert_eq!(session.put(&again, 500, None), 201);
        }
        for index in (client..EACH).step_by(CLIENTS as usize) {
            assert_eq!(session.put(&format!("short-{index}"), 1_000, Some(2_000)), 201);
            // A quarter of the deleted keys existed.
            if index % 4 == client {
                assert_eq!(session.put(&format!("deleted-{index}"), 100, None), 201);
            }
            assert_eq!(session.delete(&format!("deleted-{index}")), 202);
        }
        session.history
    });
    let begun = Instant::now();
    let expected = 2 * EACH;
    wait_until("all is purged", || node.metric("kvorum_purged_records_total") >= expected);
    println!(
        "the last of {expected} records was purged {:.1} s after the last write",
        begun.elapsed().as_secs_f64()
    );
    let keys = history.keys();
    let mut session = Session::new(node.address());
    assert_eq!(session.range(keys.keys()), Some((true, 2 * KEPT as usize)));
    assert_eq!(node.metric("kvorum_purged_records_total"), expected, "more was purged than was dead");
    history.absorb(session.history);
    node.kill9();
    history.killed_alone();
    let node = Node::start(dir.path(), SMALL);
    let mut session = Session::new(node.address());
    assert_eq!(session.range(keys.keys()), Some((true, 2 * KEPT as usize)));
    history.absorb(session.history);
    history.assert_holds("the sweeper");
}

/// Many times more requests than the node can take at once: it refuses the excess, keeps the writes that it
/// acknowledged, and serves as before afterwards.
#[test]
fn overload_passes() {
    const CONNECTIONS: u64 = 80;
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    // Room for 32 of the 320 bodies that are sent at once, and a short wait for the others.
    let arguments = [
        ["--memory-budget", "16MiB"],
        ["--max-body-memory", "2MiB"],
        ["--max-value-size", "1MiB"],
        ["--request-timeout", "50ms"],
    ]
    .concat();
    let node = Node::start(dir.path(), &arguments);
    let address = node.address();
    let mut onlooker = Session::new(address);
    assert_eq!(onlooker.put("calm", 100, None), 201);
    let before = node.memory_bytes("VmRSS");
    let stop = AtomicBool::new(false);
    let mut slowest = Duration::ZERO;
    let mut history = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            clients(CONNECTIONS, |client| {
                let mut session = Session::new(address);
                let keys: Vec<String> = (0..4).map(|key| format!("flood-{client}-{key}")).collect();
                while !stop.load(Ordering::Relaxed) {
                    session.put_pipelined(&keys, 64 << 10);
                }
                session.history
            })
        });
        let over = kvorum_testkit::RaiseOnDrop(&stop);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            let asked = Instant::now();
            assert!(matches!(onlooker.get("calm"), 200 | 503 | 504));
            assert_eq!(node.ask("GET", "/v0/status", None).status, 200);
            slowest = slowest.max(asked.elapsed());
            thread::sleep(Duration::from_millis(50));
        }
        drop(over);
        flood.join().unwrap()
    });
    let begun = Instant::now();
    let mut calm = 0;
    while calm < 20 {
        let asked = Instant::now();
        let status = onlooker.put("calm", 100, None);
        calm = if status == 201 && asked.elapsed() < Duration::from_millis(500) { calm + 1 } else { 0 };
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "no normal service: {status} after {:?}",
            asked.elapsed()
        );
    }
    let most = node.memory_bytes("VmHWM");
    println!(
        "overload: slowest GET and status {} ms, normal again after {} ms, memory {} MiB before, {} MiB at most, {} MiB now",
        slowest.as_millis(),
        begun.elapsed().as_millis(),
        before >> 20,
        most >> 20,
        node.memory_bytes("VmRSS") >> 20
    );
    history.absorb(onlooker.history);
    read_all(address, &mut history);
    node.kill9();
    history.killed_alone();
    let node = Node::start(dir.path(), &arguments);
    read_all(node.address(), &mut history);
    history.assert_holds("overload");
    assert!(history.count("PUT", 503) > 0, "it was no overload");
    assert_eq!((history.count("PUT", 500), history.count_unanswered("PUT")), (0, 0));
    assert!(most < 512 << 20, "memory: {most} bytes");
}
