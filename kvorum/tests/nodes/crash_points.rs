//! Processes crash at every named step of a durable write (`kvorum-server/src/crash.rs`): no acknowledged write is
//! lost, and every step is reached.
//!
//! The operating system still has everything that the process wrote; the simulation takes that away as well.

use kvorum_server::crash::{Point, VARIABLE};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::disk::{Mounted, damage_tables, flip_bit};
use kvorum_testkit::history::{Class, History};
use kvorum_testkit::load::alone::Load;
use kvorum_testkit::load::cluster::{Load as ClusterLoad, settle};
use kvorum_testkit::node::Node;
use kvorum_testkit::process::run;
use kvorum_testkit::session::{Session, read_all};
use kvorum_testkit::{seed, skip, wait_until};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Points that a new data directory reaches.
const NEW: &[Point] = &[
    Point::MarkerCreated,
    Point::MarkerWritten,
    Point::MarkerSynced,
    Point::DataDirTaken,
    Point::StoreOpened,
    Point::StartBeforeSync,
    Point::StartAfterSync,
    Point::BirthBefore,
    Point::BirthAfter,
    Point::RunBefore,
    Point::RunAfter,
];
/// Points that a node reaches which is started with data.
const AGAIN: &[Point] = &[
    Point::DataDirTaken,
    Point::StoreOpened,
    Point::StartBeforeSync,
    Point::StartAfterSync,
    Point::RunBefore,
    Point::RunAfter,
];
/// Points that a node reaches under load.
const LOADED: &[Point] = &[
    Point::LeaseBefore,
    Point::LeaseAfter,
    Point::CommitBeforeWrite,
    Point::CommitBeforeSync,
    Point::CommitBeforeAnswers,
    Point::CommitAnswered,
    Point::SweepBefore,
    Point::SweepAfter,
];
const INTERVAL: &[Point] = &[Point::IntervalBeforeSync, Point::IntervalAfterSync];
const CLOSING: &[Point] =
    &[Point::CloseDrained, Point::CloseBeforeSync, Point::CloseAfterSync, Point::CloseDone];
/// Points that the nodes of a new cluster reach.
const NEW_CLUSTER: &[Point] = &[
    Point::IndexBefore,
    Point::IndexAfter,
    Point::IdentityBefore,
    Point::IdentityAfter,
    Point::SeenBefore,
    Point::SeenAfter,
    Point::VotesBefore,
    Point::VotesAfter,
];
/// Points that a node of a new cluster reaches if writes are confirmed before they are synced.
const UNCLEAN: &[Point] = &[Point::UncleanBefore, Point::UncleanAfter];
/// Points that a node reaches while another one is down.
const AWAY: &[Point] = &[Point::HintBefore, Point::HintAfter, Point::GapBefore, Point::GapAfter];
/// Points that it reaches once the other is back.
const BACK: &[Point] =
    &[Point::HintsRemoveBefore, Point::HintsRemoveAfter, Point::GapsRemoveBefore, Point::GapsRemoveAfter];
/// Points that a node reaches whose store cannot be opened.
const UNREADABLE: &[Point] =
    &[Point::AsideBefore, Point::AsideMarked, Point::AsideAfter, Point::AsideForgotten];
/// A point that a node reaches which finds its store damaged while it runs.
const DAMAGED: &[Point] = &[Point::AsideBegun];

/// Points that a node of a cluster reaches once it has written some thousand keys.
const FOLDING: &[Point] = &[Point::IndexFlushBefore, Point::IndexFlushAfter];

const ARGUMENTS: &[&str] = &["--memory-budget", "16MiB"];

/// Every point has its place in one of the tests below.
#[test]
fn every_point_is_reached_somewhere() {
    let alone = [NEW, AGAIN, LOADED, INTERVAL, CLOSING, Point::REOPENING];
    let clustered =
        [NEW_CLUSTER, UNCLEAN, AWAY, BACK, FOLDING, Point::PURGING, Point::ADOPTING, UNREADABLE, DAMAGED];
    // Those of `membership.rs`.
    let lists = alone.into_iter().chain(clustered).chain([Point::DECIDING, Point::MOVING]);
    let reached: BTreeSet<Point> = lists.flatten().copied().collect();
    let all: BTreeSet<Point> = Point::ALL.iter().copied().collect();
    assert_eq!(reached, all);
}

fn was_reached(log: &str, point: Point) -> bool {
    log.contains(&format!("crash point {} is reached", point.name()))
}

/// Starts a node that must crash at `point` before it serves.
#[track_caller]
fn die_at_start(dir: &TempDir, arguments: &[&str], point: Point) {
    let died = Node::try_start_with(dir.path(), arguments, &[(VARIABLE, point.name())]);
    let died = died.err().unwrap_or_else(|| panic!("{} was not reached", point.name()));
    assert!(died.code.is_none() && was_reached(&died.log, point), "{}: {died:?}", point.name());
}

/// Starts a node that must crash when it reaches `point` for the `count`th time. Time alone leads to some
/// points. A slow machine may reach one before it serves; then a later arrival is used.
#[track_caller]
fn start_armed(dir: &TempDir, arguments: &[&str], point: Point, mut count: u32) -> Node {
    loop {
        let armed = format!("{}:{count}", point.name());
        match Node::try_start_with(dir.path(), arguments, &[(VARIABLE, &armed)]) {
            Ok(node) => return node,
            Err(died) if count < 64 && was_reached(&died.log, point) => count *= 2,
            Err(died) => panic!("{armed}: {died:?}"),
        }
    }
}

/// Loads `node` with `load` until it crashes at `point`, which `during` causes.
#[track_caller]
fn die_under(load: Load, mut node: Node, point: Point, during: impl FnOnce(&Node)) -> History {
    let mut history = load.run(node.address(), seed(point.name()), |dying| {
        // It may crash at any moment from now on.
        dying.store(true, Ordering::SeqCst);
        during(&node);
        wait_until(&format!("{} is reached", point.name()), || !node.is_alive());
    });
    assert!(was_reached(&node.log(), point), "{}: {}", point.name(), node.log());
    history.killed_alone();
    history
}

/// A node that crashed while it created its data directory creates it at the next start.
#[test]
fn while_a_store_is_made() {
    for point in NEW {
        let dir = TempDir::with_prefix("kvorum-crash-").unwrap();
        die_at_start(&dir, ARGUMENTS, *point);
        let node = Node::start(dir.path(), ARGUMENTS);
        let mut session = Session::new(node.address());
        assert_eq!((session.put("key", 100, None), session.get("key")), (201, 200), "{}", point.name());
    }
}

/// Each point under load, one after the other over one store, and before that at its start.
#[test]
fn under_load() {
    let dir = TempDir::with_prefix("kvorum-crash-").unwrap();
    let mut history = History::default();
    let always = LOADED.iter().map(|point| (*point, "always"));
    let interval = INTERVAL.iter().map(|point| (*point, "interval:20"));
    let mut starts = AGAIN.iter().cycle();
    for (point, durability) in always.chain(interval) {
        let arguments = [ARGUMENTS, &["--durability", durability]].concat();
        // Not at once, so that there are records to lose; a lease is asked for once a second.
        let is_rare = [Point::LeaseBefore, Point::LeaseAfter, Point::SweepBefore, Point::SweepAfter];
        let count = if is_rare.contains(&point) { 2 } else { 40 };
        let node = start_armed(&dir, &arguments, point, count);
        history.absorb(die_under(Load::MIXED, node, point, |_| {}));
        die_at_start(&dir, &arguments, *starts.next().unwrap());
        let node = Node::start(dir.path(), &arguments);
        read_all(node.address(), &mut history);
        node.kill9();
        history.killed_alone();
    }
    history.assert_holds("crash points under load");
}

/// A node that is told to stop under load, and crashes while it closes.
#[test]
fn while_closing() {
    let dir = TempDir::with_prefix("kvorum-crash-").unwrap();
    let mut history = History::default();
    for point in CLOSING {
        let arguments = [ARGUMENTS, &["--durability", "interval:500"]].concat();
        let node = Node::try_start_with(dir.path(), &arguments, &[(VARIABLE, point.name())]).unwrap();
        history.absorb(die_under(Load::MIXED, node, *point, |node| {
            thread::sleep(Duration::from_millis(200));
            run(std::process::Command::new("kill").arg(node.pid().to_string()), b"");
        }));
        let node = Node::start(dir.path(), &arguments);
        read_all(node.address(), &mut history);
        node.kill9();
        history.killed_alone();
    }
    history.assert_holds("crash points while closing");
}

/// The disk is full under load, and the node crashes while it opens its store again.
#[test]
fn after_a_full_disk() {
    let disk = match Mounted::tmpfs(192) {
        Ok(disk) => disk,
        Err(why) => return skip("crash points after a full disk", &why),
    };
    let load = Load { bytes: (24, 6_000, 60_000), deletes: 5, ttls: 5, ..Load::MIXED };
    let mut history = History::default();
    for point in Point::REOPENING {
        let node = Node::try_start_with(&disk.data_dir(), ARGUMENTS, &[(VARIABLE, point.name())]).unwrap();
        history.absorb(die_under(load, node, *point, |node| {
            // Usually the engine hits the full disk before the node checks the free space.
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(200));
                let ballast = disk.fill(0);
                thread::sleep(Duration::from_millis(500));
                std::fs::remove_file(ballast).unwrap();
                thread::sleep(Duration::from_millis(800));
                if was_reached(&node.log(), *point) {
                    break;
                }
            }
        }));
        let node = Node::start(&disk.data_dir(), ARGUMENTS);
        read_all(node.address(), &mut history);
        node.kill9();
        history.killed_alone();
    }
    history.assert_holds("crash points after a full disk");
}

const CLUSTER_LOAD: ClusterLoad<'_> = ClusterLoad {
    fixed: 4,
    roaming: 2,
    classes: &[(Class::default(2, 3), 1)],
    keys: (3, 40),
    puts: 60,
    deletes: 10,
    bytes: (24, 300, 3000),
    pause: Duration::from_millis(2),
};

/// Makes node 0 crash at a point from its next start on, or not.
fn arm(cluster: &mut Cluster, point: Option<Point>) {
    let variable = |point: Point| (VARIABLE.to_owned(), point.name().to_owned());
    let environment = point.map(variable).into_iter().collect();
    cluster.set_launch(0, Launch { environment, ..Launch::default() });
}

#[track_caller]
fn wait_until_dead_at(cluster: &mut Cluster, point: Point) {
    cluster.exit_code(0);
    assert!(was_reached(&cluster.log(0), point), "{}: {}", point.name(), cluster.log(0));
    arm(cluster, None);
}

/// A node of a new cluster crashes while it finds out which nodes there are. It must vote in the end, and
/// hold its records.
#[test]
fn in_a_new_cluster() {
    for point in NEW_CLUSTER.iter().chain(UNCLEAN) {
        let durability = if UNCLEAN.contains(point) { "interval:20" } else { "always" };
        let mut cluster = Cluster::new(3, &[ARGUMENTS, &["--durability", durability]].concat());
        arm(&mut cluster, Some(*point));
        (0..3).for_each(|node| cluster.spawn(node));
        wait_until_dead_at(&mut cluster, *point);
        cluster.start_all();
        let addresses = cluster.addresses();
        let nap = || thread::sleep(Duration::from_millis(200));
        let mut history = CLUSTER_LOAD.run(&addresses, &[0, 1, 2], seed(point.name()), |_| nap());
        settle(&cluster, &mut history, point.name());
    }
}

/// A node crashes while it keeps hints and dirty partitions for one that is down, or while it removes them
/// once the other is back.
#[test]
fn while_another_is_away() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB", "--hint-max-size", "3KiB"]);
    cluster.start_all();
    let addresses = cluster.addresses();
    let mut history = History::default();
    for point in AWAY.iter().chain(BACK) {
        history.killed(0);
        cluster.kill9(0);
        history.killed(0);
        arm(&mut cluster, Some(*point));
        cluster.start_node(0);
        cluster.wait_until_connected();
        history.killed(2);
        cluster.kill9(2);
        history.killed(2);
        let is_back = BACK.contains(point);
        history.absorb(CLUSTER_LOAD.run(&addresses, &[0, 1], seed(point.name()), |_| {
            if is_back {
                thread::sleep(Duration::from_millis(300));
            } else {
                wait_until_dead_at(&mut cluster, *point);
            }
        }));
        if is_back {
            cluster.spawn(2);
            wait_until_dead_at(&mut cluster, *point);
        }
        history.killed(0);
        cluster.start_all();
    }
    settle(&cluster, &mut history, "crash points while another is away");
}

const KEYS: usize = 60;

/// A cluster that purges often.
fn purging_cluster() -> Cluster {
    let mut cluster =
        Cluster::new(3, &[ARGUMENTS, &["--tombstone-gc-interval", "300ms", "--threads", "1"]].concat());
    cluster.start_all();
    cluster
}

/// Sends the request to the nodes that do not crash.
fn ask_all(cluster: &Cluster, method: &str, body: Option<&[u8]>, expect: u16) {
    for index in 0..KEYS {
        let answer = cluster.ask(1 + index % 2, method, &format!("/v0/entity?id=k-{index}"), body);
        assert_eq!(answer.status, expect, "{method} k-{index}: {}", answer.text());
    }
}

fn rows(cluster: &Cluster) -> Vec<u64> {
    (0..3).map(|node| cluster.metric(node, "kvorum_store_keys")).collect()
}

/// A node crashes while rows of its index are flushed into their tree. It finds all of them again: all nodes
/// are in sync, and only records that it missed meanwhile have to be repaired.
#[test]
fn while_the_index_is_folded() {
    let mut cluster =
        Cluster::new(3, &[ARGUMENTS, &["--durability", "os", "--tombstone-gc-interval", "300ms"]].concat());
    cluster.start_all();
    // Rows of a kilobyte: the memory for them is full soon.
    let target = |index: usize| format!("/v0/entity?id={index:0>1000}");
    let mut count = 0;
    for point in FOLDING {
        cluster.kill9(0);
        arm(&mut cluster, Some(*point));
        cluster.start_node(0);
        while cluster.is_alive(0) {
            for index in 0..50 {
                let body = format!("{count}");
                // Some keys are written again and again.
                let index = if index % 2 == 0 { index } else { count };
                assert_eq!(cluster.ask(1, "PUT", &target(index), Some(body.as_bytes())).status, 201);
                count += 1;
            }
            assert!(count < 20_000, "{} is not reached", point.name());
        }
        wait_until_dead_at(&mut cluster, *point);
        cluster.start_node(0);
        let written = cluster.metric(1, "kvorum_store_keys");
        wait_until("all nodes hold all", || rows(&cluster) == [written; 3]);
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        wait_until("all nodes agree", || {
            let answer = cluster.ask(0, "GET", "/v0/converged", None);
            let converged: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
            converged["agreed"].as_u64().is_some_and(|agreed| u128::from(agreed) > began)
        });
        for index in (0..count).filter(|index| index % 2 == 1 || *index < 50) {
            assert_eq!(cluster.ask(0, "GET", &target(index), None).status, 200);
        }
    }
}

/// A node crashes while deleted records are purged. All of them go, and none comes back.
#[test]
fn while_rows_are_purged() {
    let mut cluster = purging_cluster();
    for point in Point::PURGING {
        cluster.kill9(0);
        arm(&mut cluster, Some(*point));
        // A peer may order a step at once: a round that began before has more of them.
        cluster.spawn(0);
        ask_all(&cluster, "PUT", Some(b"value"), 201);
        ask_all(&cluster, "DELETE", None, 202);
        wait_until_dead_at(&mut cluster, *point);
        ask_all(&cluster, "GET", None, 404);
        cluster.start_node(0);
        wait_until("no row is left on any node", || rows(&cluster) == [0, 0, 0]);
        ask_all(&cluster, "GET", None, 404);
    }
}

/// A node with an older store crashes while it drops the records that the others have purged. It does so when
/// it is started again, and is refilled.
#[test]
fn while_an_older_store_meets_the_others() {
    let mut cluster = purging_cluster();
    for point in Point::ADOPTING {
        ask_all(&cluster, "PUT", Some(b"value"), 201);
        wait_until("all nodes hold all", || rows(&cluster) == [KEYS as u64; 3]);
        cluster.kill9(0);
        let backup = cluster.copy_of_data_dir(0);
        cluster.start_node(0);
        cluster.wait_until_connected();
        ask_all(&cluster, "DELETE", None, 202);
        wait_until("no row is left on any node", || rows(&cluster) == [0, 0, 0]);
        cluster.kill9(0);
        cluster.put_back(0, &backup);
        arm(&mut cluster, Some(*point));
        cluster.spawn(0);
        wait_until_dead_at(&mut cluster, *point);
        cluster.start_node(0);
        wait_until("the older store is refilled, and votes", || {
            cluster.metric(0, "kvorum_store_votes") == 1 && rows(&cluster) == [0, 0, 0]
        });
        ask_all(&cluster, "GET", None, 404);
    }
}

/// A node crashes while it sets a store aside that cannot be opened. The next start continues where it
/// stopped, and the node ends with all its records.
#[test]
fn while_a_store_is_set_aside() {
    let mut cluster = Cluster::new(3, ARGUMENTS);
    cluster.start_all();
    ask_all(&cluster, "PUT", Some(b"value"), 201);
    wait_until("all nodes hold all", || rows(&cluster) == [KEYS as u64; 3]);
    for point in UNREADABLE {
        cluster.kill9(0);
        flip_bit(&cluster.data_dir(0).join("store/version"), 0, 1);
        arm(&mut cluster, Some(*point));
        cluster.spawn(0);
        wait_until_dead_at(&mut cluster, *point);
        cluster.start_node(0);
        wait_until("the new store is refilled, and votes", || {
            cluster.metric(0, "kvorum_store_votes") == 1 && rows(&cluster) == [KEYS as u64; 3]
        });
        ask_all(&cluster, "GET", None, 200);
    }
}

/// A node finds its store damaged while it runs, sets it aside, and crashes before any peer knows of the new
/// one. All rows are in its cache by then, so only a scrub that reads the disk finds the damage.
#[test]
fn while_a_running_node_sets_its_store_aside() {
    let arguments = ["--memory-budget", "16MiB", "--durability", "os", "--scrub-interval", "1s"];
    let mut cluster = Cluster::new(3, &arguments);
    arm(&mut cluster, Some(DAMAGED[0]));
    cluster.start_all();
    let value = vec![7; 1000];
    let has_tables = |cluster: &Cluster| {
        cluster.metric(0, "kvorum_tables") >= 2 && cluster.metric(0, "kvorum_compactions_running") == 0
    };
    let mut count = 0;
    while !has_tables(&cluster) {
        assert!(count < 40_000, "no table was written");
        for _ in 0..500 {
            let target = format!("/v0/entity?id=key-{count}");
            assert_eq!(cluster.ask(count % 3, "PUT", &target, Some(&value)).status, 201);
            count += 1;
        }
    }
    let scrubs = cluster.metric(0, "kvorum_scrubs_total");
    wait_until("a scrub has read all rows", || cluster.metric(0, "kvorum_scrubs_total") >= scrubs + 2);
    let mut damaged = BTreeSet::new();
    wait_until("the node has met the damage", || {
        damage_tables(cluster.data_dir(0), &mut damaged);
        !cluster.is_alive(0)
    });
    wait_until_dead_at(&mut cluster, DAMAGED[0]);
    cluster.start_node(0);
    wait_until("the new store is refilled, and votes", || {
        cluster.metric(0, "kvorum_store_votes") == 1 && rows(&cluster) == [count as u64; 3]
    });
    for index in (0..count).step_by(7) {
        assert_eq!(cluster.ask(0, "GET", &format!("/v0/entity?id=key-{index}"), None).status, 200);
    }
}
