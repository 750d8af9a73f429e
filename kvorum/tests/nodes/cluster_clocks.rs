//! Wrong clocks: one node is half a minute ahead and one half a minute late. Every guarantee holds all the
//! same.

use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::history::{Class, History, Outcome};
use kvorum_testkit::load::cluster::{Load, settle};
use kvorum_testkit::session::Session;
use kvorum_testkit::{Random, rounds, seed, skip, unix_millis, wait_until};
use std::path::Path;
use std::thread;
use std::time::Duration;

const DEFAULT: Class = Class::default(2, 3);
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Three nodes whose clocks are off by these offsets; `None` if clocks cannot be faked.
fn cluster(offsets: [&str; 3], test: &str) -> Option<Cluster> {
    if !Path::new(FAKETIME).exists() {
        skip(test, "libfaketime is not there");
        return None;
    }
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    for (node, offset) in offsets.into_iter().enumerate().filter(|(_, offset)| !offset.is_empty()) {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let environment =
            vec![set("LD_PRELOAD", FAKETIME), set("FAKETIME", offset), set("DONT_FAKE_MONOTONIC", "1")];
        cluster.set_launch(node, Launch { environment, ..Launch::default() });
    }
    cluster.start_all();
    Some(cluster)
}

/// Writes through the nodes in turn supersede each other, and the offsets are reported.
#[test]
fn versions_rise_through_all_nodes() {
    let Some(cluster) = cluster(["", "+30s", "-30s"], "versions_rise_through_all_nodes") else { return };
    let mut session = Session::of_all(&cluster.addresses());
    for turn in 0..120_usize {
        let (node, key) = (turn * 7 % 3, [b'k', (turn % 5) as u8]);
        let status = if turn % 11 == 10 {
            session.delete_at(node, DEFAULT, &key)
        } else {
            session.put_at(node, DEFAULT, &key, 50)
        };
        assert!(status == 201 || status == 202, "{status}");
        for reader in 0..3 {
            session.get_at(reader, DEFAULT, &key);
        }
    }
    session.history.assert_holds("clocks, in turn");
    let ahead = unix_millis() + 20_000;
    let is_ahead =
        |outcome: Outcome| matches!(outcome, Outcome::Acked(version) if version.millis().0 > ahead);
    assert!(session.history.writes.iter().any(|write| is_ahead(write.outcome)), "the clock was not ahead");
    for (node, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        for other in others {
            wait_until("the offset is reported", || {
                let log = cluster.log(node);
                let mut lines =
                    log.lines().filter(|line| line.contains("the clock of a node differs from this node's"));
                lines.any(|line| line.contains(&cluster.url(other)))
            });
        }
    }
}

/// A key whose newest version comes from the clock that is ahead is deleted and written through the node that
/// is late. The same by a node that has just been started and has seen no version yet.
#[test]
fn late_clock_supersedes_early_one() {
    let Some(mut cluster) = cluster(["+30s", "-30s", ""], "late_clock_supersedes_early_one") else { return };
    let mut session = Session::of_all(&cluster.addresses());
    for round in 0..6_u8 {
        let key = [b'k', round];
        assert_eq!(session.put_at(0, DEFAULT, &key, 30), 201);
        // A new run of a store that has seen little: its clock only begins above its own lease.
        cluster.kill9(1);
        cluster.start_node(1);
        cluster.wait_until_connected();
        session.history.killed(1);
        let mut fresh = Session::of_all(&cluster.addresses());
        assert_eq!(fresh.delete_at(1, DEFAULT, &key), 202);
        for node in 0..3 {
            assert_eq!(fresh.get_at(node, DEFAULT, &key), 404);
        }
        assert_eq!(fresh.put_at(1, DEFAULT, &key, 30), 201);
        for node in 0..3 {
            assert_eq!(fresh.get_at(node, DEFAULT, &key), 200);
        }
        session.history.absorb(fresh.history);
        session = {
            let mut next = Session::of_all(&cluster.addresses());
            next.history = session.history;
            next
        };
    }
    session.history.assert_holds("clocks, restarted");
}

/// Load and kills with clocks that are a minute apart.
#[test]
fn wrong_clocks_under_faults() {
    let Some(mut cluster) = cluster(["", "+30s", "-30s"], "wrong_clocks_under_faults") else { return };
    let seed = seed("clocks");
    let mut random = Random::new(seed);
    let classes = [(DEFAULT, 9), (Class::new("all", (3, 3), (3, 3)), 1)];
    let load = Load {
        fixed: 6,
        roaming: 3,
        classes: &classes,
        keys: (2, 20),
        puts: 45,
        deletes: 15,
        bytes: (24, 300, 2000),
        pause: Duration::from_millis(1),
    };
    let mut broken = History::default();
    let addresses = cluster.addresses();
    let mut history = load.run(&addresses, &[0, 1, 2], seed, |stage| {
        for _ in 0..rounds(5) {
            thread::sleep(Duration::from_millis(random.within(300, 1200)));
            let node = usize::try_from(random.within(0, 3)).unwrap();
            if random.chance(50) {
                broken.fault("kill -9 and restart");
                broken.killed(node);
                cluster.kill9(node);
                broken.killed(node);
                cluster.start_node(node);
            } else {
                broken.fault("pause");
                cluster.pause(node);
                thread::sleep(Duration::from_millis(random.within(50, 1500)));
                cluster.resume(node);
            }
            stage.next_round();
        }
        thread::sleep(Duration::from_millis(500));
    });
    history.absorb(broken);
    settle(&cluster, &mut history, "clocks");
}
