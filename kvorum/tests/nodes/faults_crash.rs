//! The process is killed again and again under load: no acknowledged write is lost, no deleted record comes
//! back.
//!
//! kill -9 keeps the page cache, so no durability mode may lose anything here; `faults_power` cuts power.

use kvorum_testkit::history::History;
use kvorum_testkit::load::alone::Load;
use kvorum_testkit::node::Node;
use kvorum_testkit::process::run;
use kvorum_testkit::session::{Session, read_all};
use kvorum_testkit::{Random, rounds, seed, unix_millis, wait_until};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Loads a node, kills it, starts it again and reads everything, again and again.
fn kill_loop(durability: &str) {
    let test = format!("kill -9, --durability {durability}");
    let seed = seed(&test);
    let mut random = Random::new(seed);
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    // Little memory, so that tables are flushed and merged while the node is killed.
    let arguments = ["--durability", durability, "--memory-budget", "16MiB"];
    let mut history = History::default();
    let mut node = Node::start(dir.path(), &arguments);
    for _ in 0..rounds(8) {
        let address = node.address();
        let wait = Duration::from_millis(random.within(100, 900));
        let observed = Load::MIXED.run(address, random.next_word(), |dying| {
            thread::sleep(wait);
            dying.store(true, Ordering::SeqCst);
            node.kill9();
        });
        history.absorb(observed);
        history.killed_alone();
        node = Node::start(dir.path(), &arguments);
        read_all(node.address(), &mut history);
    }
    history.assert_holds(&test);
}

#[test]
fn kill_loop_always() {
    kill_loop("always");
}

#[test]
fn kill_loop_interval() {
    kill_loop("interval:50");
}

#[test]
fn kill_loop_os() {
    kill_loop("os");
}

/// A record with a TTL that is written before a crash is there after it until its expiry, and not later.
#[test]
fn ttl_goes_on_over_a_crash() {
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut session = Session::new(node.address());
    for index in 0..40 {
        assert_eq!(session.put(&format!("short-{index}"), 100, Some(300)), 201);
        assert_eq!(session.put(&format!("long-{index}"), 100, Some(4_000)), 201);
        // Written again without a TTL: stays.
        assert_eq!(session.put(&format!("kept-{index}"), 100, Some(300)), 201);
        assert_eq!(session.put(&format!("kept-{index}"), 100, None), 201);
    }
    let last = unix_millis();
    let mut history = session.history;
    node.kill9();
    history.killed_alone();
    let node = Node::start(dir.path(), &[]);
    read_all(node.address(), &mut history);
    while unix_millis() <= last + 4_000 {
        thread::sleep(Duration::from_millis(200));
        read_all(node.address(), &mut history);
    }
    read_all(node.address(), &mut history);
    let mut session = Session::new(node.address());
    for index in 0..40 {
        assert_eq!(session.get(format!("short-{index}")), 404);
        assert_eq!(session.get(format!("long-{index}")), 404);
        assert_eq!(session.get(format!("kept-{index}")), 200);
    }
    history.assert_holds("TTL over a crash");
}

/// A second process on the same directory is refused with an error text, and the first continues.
#[test]
fn second_process_is_refused() {
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut session = Session::new(node.address());
    assert_eq!(session.put("a", 10, None), 201);
    Node::try_start(dir.path(), &[]).unwrap_err().expect_refusal(&["in use by another kvorum process"]);
    assert_eq!((session.get("a"), session.put("a", 10, None), session.get("a")), (200, 201, 200));
    session.history.assert_holds("a second process");
    // Once the first has ended, in whatever way, the directory is free.
    node.kill9();
    assert_eq!(Session::new(Node::start(dir.path(), &[]).address()).get("a"), 200);
}

/// Every file in a directory, with its bytes.
fn contents(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// A directory of a later format, and one that is not kvorum's, are refused with an error text and left
/// unchanged.
#[test]
fn directories_of_others_are_refused_untouched() {
    let check = |files: &[(&str, &str)], words: &[&str]| {
        let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let before = contents(dir.path());
        Node::try_start(dir.path(), &[]).unwrap_err().expect_refusal(words);
        assert_eq!(contents(dir.path()), before, "{words:?}");
    };
    let later = [("KVORUM", "kvorum data format 3\n"), ("store/0.jnl", "of a later format")];
    check(&later, &["has format 3, written by a newer release"]);
    check(&[("KVORUM", "something else\n")], &["its KVORUM file says"]);
    check(&[("photos/cat.jpg", "meow")], &["it is not a data directory of kvorum"]);
    check(&[("store/0.jnl", "a store whose marker is gone")], &["it is not a data directory of kvorum"]);
}

/// A node that is told to stop under load loses no write that it acknowledged, and stores none that it
/// refused.
#[test]
fn stopping_under_load_loses_nothing() {
    let dir = TempDir::with_prefix("kvorum-fault-").unwrap();
    let mut node = Node::start(dir.path(), &["--durability", "os"]);
    let address = node.address();
    let mut history = Load::MIXED.run(address, seed("SIGTERM"), |dying| {
        thread::sleep(Duration::from_millis(500));
        dying.store(true, Ordering::SeqCst);
        run(std::process::Command::new("kill").arg(node.pid().to_string()), b"");
        wait_until("the node has ended", || !node.is_alive());
    });
    history.killed_alone();
    let node = Node::start(dir.path(), &[]);
    read_all(node.address(), &mut history);
    history.assert_holds("SIGTERM under load");
}
