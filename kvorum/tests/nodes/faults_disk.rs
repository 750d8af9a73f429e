//! The disk is full, or fails: writes are refused with an error text, reads continue, no acknowledged write
//! is lost.

use kvorum_testkit::disk::{Meddling, Mounted};
use kvorum_testkit::history::History;
use kvorum_testkit::http::{Connection, encode};
use kvorum_testkit::load::alone::Load;
use kvorum_testkit::node::Node;
use kvorum_testkit::session::{Session, read_all};
use kvorum_testkit::{seed, skip, wait_until};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SMALL: &[&str] = &["--memory-budget", "16MiB"];
const DISK_MEBIBYTES: u64 = 96;

/// Puts new keys until one is refused; the disk must be full within bounds.
fn put_until_refused(session: &mut Session, name: &str) -> u16 {
    for index in 0..10_000 {
        let status = session.put(&format!("{name}-{index}"), 16_000, None);
        if status != 201 {
            return status;
        }
    }
    panic!("the disk does not become full");
}

/// Waits until a write succeeds again, without a restart.
fn wait_for_writes(session: &mut Session) {
    let begun = Instant::now();
    while session.put("again", 100, None) != 201 {
        assert!(begun.elapsed() < Duration::from_secs(10), "writes are not taken again");
        thread::sleep(Duration::from_millis(50));
    }
    println!("writes are taken again after {} ms", begun.elapsed().as_millis());
}

/// The disk fills up with the node's own data, the node is killed and started on the full disk, space comes back.
#[test]
fn full_disk_refuses_writes_and_recovers() {
    let disk = match Mounted::tmpfs(DISK_MEBIBYTES) {
        Ok(disk) => disk,
        Err(why) => return skip("full_disk_refuses_writes_and_recovers", &why),
    };
    let ballast = disk.fill(40 << 20);
    let node = Node::start(&disk.data_dir(), SMALL);
    let mut session = Session::new(node.address());
    // 504 if the write met the full disk before the node had checked it: its outcome is unknown then.
    let refused = put_until_refused(&mut session, "fill");
    assert!(matches!(refused, 504 | 507), "{refused}");
    wait_until("the full disk is noticed", || session.put("full", 16_000, None) == 507);
    assert_eq!(node.store_state(), "disk-full");
    let refused = node.ask("PUT", "/v0/entity?id=x", Some(b"1"));
    assert_eq!(refused.status, 507);
    assert!(refused.text().contains("full"), "{refused:?}");
    let mut history = session.history;
    read_all(node.address(), &mut history);

    node.kill9();
    history.killed_alone();
    let node = Node::start(&disk.data_dir(), SMALL);
    read_all(node.address(), &mut history);
    let mut session = Session::new(node.address());
    wait_until("the full disk is noticed", || session.put("full-still", 16_000, None) == 507);
    assert_eq!(node.store_state(), "disk-full");

    std::fs::remove_file(ballast).unwrap();
    wait_for_writes(&mut session);
    assert_eq!(node.store_state(), "ok");
    assert_eq!(session.get("again"), 200);
    history.absorb(session.history);
    read_all(node.address(), &mut history);
    node.kill9();
    history.killed_alone();
    let node = Node::start(&disk.data_dir(), SMALL);
    read_all(node.address(), &mut history);
    history.assert_holds("the disk fills up");
    assert_eq!(history.count("GET", 500), 0);
}

/// Asks for a range of everything, and reads only the beginning of the answer.
fn begin_slow_range(node: &Node) -> Connection {
    let mut connection = node.connect();
    let request = encode("GET", "/v0/entities?start=%00", "Connection: close\r\n", None);
    connection.send(&request);
    connection.wait_for_byte().unwrap();
    connection
}

/// Another program fills the disk at once while clients write and read: the engine is hit in the middle of a
/// write. Meanwhile a client reads a range slowly, which holds a snapshot of the store.
#[test]
fn disk_that_fills_at_once_under_load_recovers() {
    let disk = match Mounted::tmpfs(2 * DISK_MEBIBYTES) {
        Ok(disk) => disk,
        Err(why) => return skip("disk_that_fills_at_once_under_load_recovers", &why),
    };
    let mut history = History::default();
    let node = Node::start(&disk.data_dir(), SMALL);
    let load = Load { bytes: (24, 6_000, 60_000), deletes: 5, ttls: 5, ..Load::MIXED };
    let mut session = Session::new(node.address());
    // More than the sockets' buffers take, so that the slow range is under way for as long as it is not read.
    for index in 0..300 {
        assert_eq!(session.put(&format!("preload-{index}"), 60_000, None), 201);
    }
    let mut directed = session.history;
    let observed = load.run(node.address(), seed("the disk fills at once"), |_| {
        thread::sleep(Duration::from_millis(800));
        let mut slow = begin_slow_range(&node);
        // The node checks the free space at intervals; usually the engine is hit before that.
        for _ in 0..5 {
            let ballast = disk.fill(0);
            let begun = Instant::now();
            wait_until("the full disk is noticed", || node.store_state() == "disk-full");
            println!("noticed after {} ms", begun.elapsed().as_millis());
            thread::sleep(Duration::from_millis(600));
            std::fs::remove_file(ballast).unwrap();
            let mut session = Session::new(node.address());
            wait_for_writes(&mut session);
            directed.absorb(session.history);
            thread::sleep(Duration::from_millis(300));
            if node.log().contains("a write found the disk full") {
                break;
            }
        }
        assert!(node.log().contains("a write found the disk full"), "the engine was never hit");
        let range = slow.answer().unwrap();
        println!("the slow range: {} bytes, whole {}", range.body.len(), range.is_whole);
        let preloaded = memchr::memmem::find_iter(&range.body, b"preload-").count();
        assert!(!range.is_whole || preloaded == 300, "a whole range with {preloaded} of 300 records");
    });
    history.absorb(directed);
    assert_eq!(node.store_state(), "ok");
    // The store is opened again when there is space, and reads wait for that.
    let slowest = observed.slowest_read();
    println!("the slowest read took {} ms", slowest.as_millis());
    assert!(slowest < Duration::from_secs(5), "reads do not go on: {slowest:?}");
    history.absorb(observed);
    read_all(node.address(), &mut history);
    node.kill9();
    history.killed_alone();
    let node = Node::start(&disk.data_dir(), SMALL);
    read_all(node.address(), &mut history);
    history.assert_holds("the disk fills at once");
    assert!(history.count("PUT", 507) > 0, "no write met the full disk");
    assert_eq!((history.count("GET", 500), history.count("GET", 507)), (0, 0), "reads go on");
    assert_eq!((history.count("PUT", 500), history.count("DELETE", 500)), (0, 0), "a full disk is no fault");
}

/// Slows one compaction down until writes wait for it.
///
/// # Errors
/// The reason, for example no strace.
fn slow_compaction(node: &Node, session: &mut Session) -> Result<Meddling, String> {
    // All of fjall's workers but the first compact, and flush too: they may be slowed down only while one
    // compacts.
    let compactors = &node.threads("fjall:worker")[1..];
    for _ in 0..100 {
        while node.metric("kvorum_compactions_running") == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let slow = Meddling::slow_writes(compactors, Duration::from_millis(200))?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            let is_waiting = session.put("again", 100, None) == 504;
            if node.metric("kvorum_compactions_running") == 0 {
                break;
            }
            if is_waiting {
                return Ok(slow);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    panic!("writes never wait for a compaction");
}

/// The disk fills up while writes already wait for a compaction, which then fails: they continue when there
/// is space.
#[test]
fn full_disk_during_a_write_stall_recovers() {
    let test = "full_disk_during_a_write_stall_recovers";
    let disk = match Mounted::tmpfs(800) {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    let node = Node::start(&disk.data_dir(), &["--memory-budget", "16MiB", "--durability", "os"]);
    let load = Load {
        clients: 4,
        own_keys: 500,
        puts: 98,
        deletes: 0,
        ttls: 0,
        bytes: (60_000, 62_000, 62_000),
        ..Load::MIXED
    };
    let (mut directed, mut skipped) = (History::default(), None);
    let observed = load.run(node.address(), seed(test), |_| {
        let mut session = Session::new(node.address());
        let has_crashed = || node.log().contains("crashed: ");
        for _ in 0..20 {
            let slow = match slow_compaction(&node, &mut session) {
                Ok(slow) => slow,
                Err(why) => return skipped = Some(why),
            };
            let ballast = disk.fill(0);
            // A compaction that had written all it had to write before the disk was full does not meet it.
            let has_met_it = (0..1_000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                has_crashed()
            });
            std::fs::remove_file(ballast).unwrap();
            drop(slow);
            wait_for_writes(&mut session);
            if has_met_it {
                break;
            }
        }
        assert!(has_crashed(), "no worker met the full disk");
        directed.absorb(session.history);
    });
    if let Some(why) = skipped {
        return skip(test, &why);
    }
    let mut history = observed;
    history.absorb(directed);
    node.kill9();
    history.killed_alone();
    let node = Node::start(&disk.data_dir(), SMALL);
    read_all(node.address(), &mut history);
    history.assert_holds(test);
}

/// `fdatasync` fails with EIO: the current write fails, no other is taken until a restart, reads continue.
fn failing_sync(durability: &str) {
    let test = format!("EIO on sync, --durability {durability}");
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    // Tracing makes every system call slow.
    let arguments = ["--durability", durability, "--request-timeout", "20s"];
    let node = Node::start(dir.path(), &arguments);
    let address = node.address();
    let mut history = History::default();
    let mut skipped = None;
    let observed = Load { clients: 3, ..Load::MIXED }.run(address, seed(&test), |_| {
        thread::sleep(Duration::from_millis(300));
        match Meddling::failing_sync(node.pid()) {
            Ok(failing) => {
                wait_until("the failed sync is noticed", || node.store_state() == "failed");
                thread::sleep(Duration::from_millis(300));
                drop(failing);
            }
            Err(why) => skipped = Some(why),
        }
    });
    if let Some(why) = skipped {
        return skip(&test, &why);
    }
    history.absorb(observed);
    assert!(history.count("PUT", 500) > 0, "no write failed");
    assert_eq!((history.count("GET", 500), history.count_unanswered("PUT")), (0, 0), "reads go on");
    // The disk works again by now, and still no write is taken: the content of the disk is not known.
    let mut session = Session::new(address);
    assert_eq!((session.put("later", 100, None), session.delete("later")), (500, 500));
    let status = node.ask("GET", "/v0/status", None);
    assert!(status.text().contains("\nstore-failure "), "{status:?}");
    assert!(status.status == 503 && status.text().contains("\nserving store-failed\n"), "{status:?}");
    assert!(node.log().contains("the store failed: it takes no writes"), "{}", node.log());
    let keys = history.keys();
    for key in keys.keys() {
        assert!(matches!(session.get(key), 200 | 404));
    }
    assert!(session.range(keys.keys()).is_some_and(|(is_whole, _)| is_whole));
    history.absorb(session.history);
    node.kill9();
    history.killed_alone();
    let node = Node::start(dir.path(), &arguments);
    read_all(node.address(), &mut history);
    let mut session = Session::new(node.address());
    assert_eq!((session.put("later", 100, None), session.get("later")), (201, 200));
    history.absorb(session.history);
    history.assert_holds(&test);
}

#[test]
fn failing_sync_always() {
    failing_sync("always");
}

#[test]
fn failing_sync_interval() {
    failing_sync("interval:50");
}
