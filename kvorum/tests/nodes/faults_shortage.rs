//! Goal: a temporary shortage of the machine does not count as a broken disk. Writes are refused with an
//! error text while it lasts, reads continue, and without a restart writes are taken again. Method: the real
//! program with too few inodes, no space at all, no descriptors.

use kvorum_testkit::disk::Mounted;
use kvorum_testkit::history::History;
use kvorum_testkit::node::Node;
use kvorum_testkit::session::{Session, read_all};
use kvorum_testkit::{skip, wait_until};
use rustix::process::{Pid, Resource, Rlimit};
use std::fs::File;

/// Memtables of 2 MiB, so that a test's data needs files.
const SMALL: &[&str] = &["--memory-budget", "16MiB"];

/// Inodes are used up: values are refused before the store fails because of it, and taken again once there
/// are some.
#[test]
fn inodes_used_up_pass() {
    let disk = match Mounted::tmpfs_with(96, Some(200)) {
        Ok(disk) => disk,
        Err(why) => return skip("inodes_used_up_pass", &why),
    };
    let node = Node::start(&disk.data_dir(), SMALL);
    let mut session = Session::new(node.address());
    for index in 0..50 {
        assert_eq!(session.put(&format!("key-{index}"), 1_000, None), 201);
    }
    let ballast = disk.path().join("ballast");
    std::fs::create_dir(&ballast).unwrap();
    let taken = (0..1_000).take_while(|index| File::create(ballast.join(index.to_string())).is_ok()).count();
    assert!(taken < 1_000, "the inodes have an end");
    wait_until("the want of inodes is noticed", || session.put("refused", 20_000, None) == 507);
    assert_eq!(node.store_state(), "disk-full");
    for index in 0..50 {
        assert_eq!(session.get(format!("key-{index}")), 200);
    }
    assert_eq!(session.delete("key-7"), 202, "deletions are taken: {}", node.log());
    assert_eq!(session.get("key-7"), 404);
    std::fs::remove_dir_all(ballast).unwrap();
    wait_until("values are taken again", || session.put("taken", 20_000, None) == 201);
    assert_eq!(node.store_state(), "ok");
    let mut history = session.history;
    read_all(node.address(), &mut history);
    history.assert_holds("inodes are used up");
}

/// Another program fills the disk to the last byte: deletions use the reserve, also after a restart, and the
/// reserve is created again when there is space.
#[test]
fn deletions_are_taken_from_the_reserve_of_a_full_disk() {
    let test = "deletions_are_taken_from_the_reserve_of_a_full_disk";
    let disk = match Mounted::tmpfs(200) {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    let mut node = Node::start(&disk.data_dir(), SMALL);
    let mut session = Session::new(node.address());
    for index in 0..400 {
        assert_eq!(session.put(&format!("key-{index}"), 10_000, None), 201);
    }
    let reserve = disk.data_dir().join("reserve");
    wait_until("there is a reserve", || reserve.exists());
    for round in 0..2 {
        let ballast = disk.fill(0);
        wait_until("the full disk is noticed", || session.put("refused", 20_000, None) == 507);
        let mut gone = 0;
        for index in round * 100..round * 100 + 100 {
            let key = format!("key-{index}");
            wait_until("a deletion is taken", || session.delete(&key) == 202);
            gone += usize::from(session.get(&key) == 404);
        }
        assert_eq!(gone, 100);
        assert_eq!(session.put("refused", 20_000, None), 507);
        assert_eq!(node.store_state(), "disk-full");
        if round == 1 {
            node.kill9();
            session.history.killed_alone();
            node = Node::start(&disk.data_dir(), SMALL);
            let history = std::mem::take(&mut session.history);
            session = Session::new(node.address());
            session.history = history;
            assert_eq!(session.get("key-150"), 404);
        }
        std::fs::remove_file(ballast).unwrap();
        wait_until("values are taken again", || session.put("taken", 20_000, None) == 201);
        wait_until("there is a reserve again", || reserve.exists());
    }
    let mut history = session.history;
    read_all(node.address(), &mut history);
    history.assert_holds(test);
}

fn descriptors(node: &Node) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count() as u64
}

/// Bounds the descriptors of a running node. Returns the bound that it had.
fn bound_descriptors(node: &Node, most: u64) -> u64 {
    let pid = Pid::from_raw(node.pid().cast_signed());
    let before = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(most), maximum: before };
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap().current.unwrap_or(1 << 20)
}

/// Descriptors are used up while clients write: a flush finds none, and the engine stops. Before the fix, the
/// store then counted as failed until a restart.
#[test]
fn descriptors_used_up_pass() {
    let dir = tempfile::TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), SMALL);
    let mut session = Session::new(node.address());
    for index in 0..1_000 {
        assert_eq!(session.put(&format!("key-{index}"), 10_000, None), 201);
    }
    let before = bound_descriptors(&node, descriptors(&node));
    let mut written = 0;
    wait_until("the want of descriptors is noticed", || {
        written += 1;
        session.put(&format!("more-{written}"), 50_000, None) == 503
    });
    // New connections find none either; the existing one continues.
    for index in (0..1_000).step_by(50) {
        let status = session.get(format!("key-{index}"));
        assert!(matches!(status, 200 | 503), "{status}");
    }
    bound_descriptors(&node, before);
    wait_until("writes are taken again", || session.put("taken", 50_000, None) == 201);
    assert_eq!(node.store_state(), "ok");
    let lines = node.log().lines().filter(|line| line.contains("descriptors")).count();
    assert!(lines < 20, "{lines} log lines about descriptors");
    let mut history: History = session.history;
    read_all(node.address(), &mut history);
    assert_eq!(history.count("PUT", 500), 0);
    node.kill9();
    history.killed_alone();
    let node = Node::start(dir.path(), SMALL);
    read_all(node.address(), &mut history);
    history.assert_holds("descriptors are used up");
}

/// A node with a low limit of descriptors keeps some for its store, logs how many connections that leaves,
/// and serves with all of those idle. Before the fix, it failed because of its own connections.
#[test]
fn connections_leave_descriptors_for_the_store() {
    let dir = tempfile::TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start_limited(dir.path(), SMALL, 1_024);
    assert!(node.log().contains("limit of file descriptors"), "{}", node.log());
    let mut session = Session::new(node.address());
    assert_eq!(session.put("first", 100, None), 201);
    let idle: Vec<_> = (0..1_100).filter_map(|_| std::net::TcpStream::connect(node.address()).ok()).collect();
    assert!(idle.len() > 900);
    for index in 0..2_000 {
        assert_eq!(session.put(&format!("key-{index}"), 10_000, None), 201, "{}", node.log());
    }
    drop(idle);
    wait_until("connections are taken again", || Session::new(node.address()).get("first") == 200);
    assert_eq!(node.store_state(), "ok");
    let lines = node.log().lines().filter(|line| line.contains("cannot accept")).count();
    assert!(lines < 20, "{lines} log lines about connections");
}

/// The list of a keyspace's tables is damaged or missing: a node alone refuses to start, with an error text,
/// and removes nothing.
#[test]
fn damaged_lists_of_tables_are_refused() {
    let dir = tempfile::TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), SMALL);
    let mut session = Session::new(node.address());
    for index in 0..500 {
        assert_eq!(session.put(&format!("key-{index}"), 10_000, None), 201);
    }
    node.kill9();
    let mut history = session.history;
    history.killed_alone();
    for keyspace in ["0", "1", "3"] {
        let current = dir.path().join("store/keyspaces").join(keyspace).join("current");
        let whole = std::fs::read(&current).unwrap();
        let mut flipped = whole.clone();
        flipped[0] ^= 1;
        for content in [None, Some(&whole[..3]), Some(&flipped[..])] {
            match content {
                None => std::fs::remove_file(&current).unwrap(),
                Some(content) => std::fs::write(&current, content).unwrap(),
            }
            let refused = Node::try_start(dir.path(), SMALL).expect_err("a damaged list is taken");
            refused.expect_refusal(&["cannot be opened", "damaged bytes on disk"]);
        }
        std::fs::write(&current, whole).unwrap();
    }
    let node = Node::start(dir.path(), SMALL);
    read_all(node.address(), &mut history);
    history.assert_holds("lists of tables, put back");
}
