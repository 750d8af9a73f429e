//! Configurations over real processes: nodes name their stores, raise the feature level, catch up, and go on after crashes.
//! The simulation has many nodes that propose at once, and every fault beside them.

use crate::cluster_heal::tell_repair;
use kvorum_server::crash::{Point, VARIABLE};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::wait_until;
use serde_json::Value;
use std::process::Output;

pub fn shown(cluster: &Cluster, node: usize) -> Value {
    let output = cluster_command(cluster, node, &["show", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs `kvorum cluster` at a node.
pub fn cluster_command(cluster: &Cluster, node: usize, words: &[&str]) -> Output {
    run(kvorum(&["cluster"]).args(words).args(["--url", &cluster.url(node)]), b"")
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub fn wait_until_all_at(cluster: &Cluster, nodes: &[usize], epoch: u64) {
    for node in nodes {
        wait_until(&format!("node {node} is at epoch {epoch}"), || shown(cluster, *node)["epoch"] == epoch);
    }
}

/// Plans a change at a node until it is taken, in one window, and applies it.
pub fn begin_change(cluster: &Cluster, at: usize, words: &[&str]) {
    let words = [&["plan"], words, &["--window", "4096"]].concat();
    wait_until("the change is planned", || cluster_command(cluster, at, &words).status.success());
    let epoch = shown(cluster, at)["plan"]["on_epoch"].to_string();
    let applied = cluster_command(cluster, at, &["apply", &epoch]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
}

/// Waits until the change has ended; returns what the node shows then.
pub fn end_change(cluster: &Cluster, at: usize) -> Value {
    let waited = cluster_command(cluster, at, &["wait", "--timeout", "120"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    let shown = shown(cluster, at);
    assert_eq!(shown["phase"], "stable");
    shown
}

/// Goal: an operator raises the feature level in one command, with a node that is away at first, and sees it on every node;
/// the nodes still know it after they have been killed. Method: the commands, as an operator types them.
#[test]
fn the_feature_level_is_raised() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=k", Some(b"before")).status, 201);
    let before = shown(&cluster, 0);
    assert_eq!((&before["epoch"], &before["feature_level"]), (&0.into(), &0.into()));
    cluster.kill9(2);
    let refused = cluster_command(&cluster, 0, &["upgrade"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains(&cluster.url(2)), "{}", text(&refused.stderr));
    cluster.start_node(2);
    cluster.wait_until_connected();
    let raised = cluster_command(&cluster, 1, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    assert_eq!(text(&raised.stdout), "the cluster is at epoch 2, feature level 1\n");
    wait_until_all_at(&cluster, &[0, 1, 2], 2);
    let hash = shown(&cluster, 0)["hash"].clone();
    for node in 0..3 {
        let shown = shown(&cluster, node);
        assert_eq!((&shown["hash"], &shown["feature_level"]), (&hash, &1.into()));
        assert!(shown["members"].as_array().unwrap().iter().all(|member| member["store"].is_string()));
    }
    let again = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(text(&again.stderr).contains("has the feature level 1 already"), "{}", text(&again.stderr));
    cluster.kill9_all();
    cluster.start_all();
    wait_until_all_at(&cluster, &[0, 1, 2], 2);
    assert_eq!(cluster.ask(1, "GET", "/v0/entity?id=k", None).body, b"before");
}

/// Goal: a plan is bound to its epoch, and is dropped, applied once or refused by name. Method: the commands, one by one.
#[test]
fn plans_are_bound_to_their_epoch() {
    let cluster = Cluster::start(3);
    wait_until("all have said their epoch", || {
        shown(&cluster, 0)["members"].as_array().unwrap().iter().all(|member| member["epoch"] == 0)
    });
    let none = cluster_command(&cluster, 0, &["apply", "0"]);
    assert!(text(&none.stderr).contains("no plan that was made on epoch 0"), "{}", text(&none.stderr));
    let planned = cluster_command(&cluster, 0, &["plan", "name"]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    assert_eq!(text(&planned.stdout).matches(" is named\n").count(), 3, "{}", text(&planned.stdout));
    assert_eq!(shown(&cluster, 0)["plan"]["change"], "name");
    assert!(cluster_command(&cluster, 0, &["cancel"]).status.success());
    assert!(shown(&cluster, 0)["plan"].is_null());
    for node in [0, 1] {
        assert!(cluster_command(&cluster, node, &["plan", "name"]).status.success());
    }
    for _ in 0..2 {
        let applied = cluster_command(&cluster, 0, &["apply", "0"]);
        assert_eq!(
            text(&applied.stdout),
            "the cluster is at epoch 1, feature level 0\n",
            "{}",
            text(&applied.stderr)
        );
    }
    // The same plan of another node: it is what was decided.
    assert!(cluster_command(&cluster, 1, &["apply", "0"]).status.success());
    let waited = cluster_command(&cluster, 2, &["wait"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    let late = cluster_command(&cluster, 2, &["plan", "name"]);
    assert!(text(&late.stderr).contains("the stores are named since epoch 1"), "{}", text(&late.stderr));
}

/// Goal: a change that moves data is planned and shown, and refused by name where it is not possible. A member that is gone
/// can still be removed. Method: the commands, one by one.
#[test]
fn changes_that_move_data_are_planned() {
    let mut cluster = Cluster::start(3);
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let (second, third) = (cluster.url(1), cluster.url(2));
    let planned = cluster_command(&cluster, 0, &["plan", "weight", &second, "2"]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let printed = text(&planned.stdout);
    for expected in [&format!("{second} gets the weight 2\n"), "is the least possible", "\ndata moves; "] {
        assert!(printed.contains(expected), "{printed}");
    }
    let plan = shown(&cluster, 0)["plan"].clone();
    assert_eq!(
        (&plan["change"], &plan["on_epoch"], &plan["moves"]["from"]),
        (&"weight".into(), &2.into(), &3.into())
    );
    assert_eq!(plan["moves"]["members"].as_array().unwrap().len(), 3, "{plan}");
    let check = |words: &[&str], expect: &str| {
        let refused = cluster_command(&cluster, 0, words);
        assert!(!refused.status.success(), "{words:?}");
        assert!(text(&refused.stderr).contains(expect), "{words:?}: {}", text(&refused.stderr));
    };
    check(&["plan", "remove", "http://nobody:1"], "no member has the URL or id");
    check(&["plan", "add", &second], "is a member already");
    check(&["plan", "add", "http://127.0.0.1:9"], "has not been met");
    check(&["plan", "weight", &second, "1"], "has this weight and zone already");
    check(&["plan", "zone", &second, "a b"], "visible ASCII");
    let id = shown(&cluster, 0)["members"][1]["id"].as_str().unwrap().to_owned();
    let zoned = cluster_command(&cluster, 0, &["plan", "zone", &id, "east"]);
    assert!(zoned.status.success(), "{}", text(&zoned.stderr));
    cluster.kill9(2);
    wait_until("the member that is gone is missed", || {
        let refused = cluster_command(&cluster, 0, &["plan", "weight", &second, "3"]);
        text(&refused.stderr).contains(&format!("{third} has not said which configuration"))
    });
    let removed = cluster_command(&cluster, 0, &["plan", "remove", &third]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    for expected in ["and its store never comes back", "counts as stopped for good"] {
        assert!(text(&removed.stdout).contains(expected), "{}", text(&removed.stdout));
    }
    assert_eq!(shown(&cluster, 0)["epoch"], 2);
}

/// Goal: partitions move to their new owners while clients write and read, and a change that is cancelled ends where it began.
/// Method: another weight for one of four nodes, and back again, with a cancel in between.
#[test]
fn another_weight_moves_data() {
    let cluster = Cluster::start(4);
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let first = cluster.url(0);
    let path = |key: u32| format!("/v0/entity?id=k{key}");
    let written = |keys: std::ops::Range<u32>| {
        for key in keys {
            let put = cluster.ask(key as usize % 4, "PUT", &path(key), Some(key.to_string().as_bytes()));
            assert_eq!(put.status, 201, "{key}: {}", text(&put.body));
        }
    };
    let read = |keys: std::ops::Range<u32>| {
        for key in keys {
            let got = cluster.ask((key as usize + 1) % 4, "GET", &path(key), None);
            assert_eq!((got.status, text(&got.body)), (200, key.to_string().as_str()), "{key}");
        }
    };
    written(0..100);
    let change = |weight: &str, then: &[&str]| {
        begin_change(&cluster, 0, &["weight", &first, weight]);
        for order in then {
            let ordered = cluster_command(&cluster, 0, &[order]);
            assert!(ordered.status.success(), "{}", text(&ordered.stderr));
        }
    };
    let ended = || {
        let shown = end_change(&cluster, 0);
        let members = shown["members"].as_array().unwrap();
        members.iter().find(|member| member["url"] == first).unwrap()["weight"].clone()
    };
    change("3", &[]);
    written(100..200);
    read(0..200);
    assert_eq!(ended(), 3);
    read(0..200);
    change("1", &["cancel"]);
    written(200..250);
    assert_eq!(ended(), 3);
    read(0..250);
}

/// Goal: a member whose store has no vote, because it lost its disk after the stores were named, holds up no change. Method: the
/// member with the lowest id, which would drive, is started again with an empty disk; then another one gets more weight.
#[test]
fn a_member_without_a_vote_stops_no_change() {
    let mut cluster = Cluster::start(4);
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let members = shown(&cluster, 0)["members"].clone();
    let lowest = members.as_array().unwrap().iter().min_by_key(|member| member["id"].as_str()).unwrap();
    let lost = (0..4).find(|node| lowest["url"] == cluster.url(*node)).unwrap();
    cluster.kill9(lost);
    cluster.wipe(lost);
    cluster.start_node(lost);
    cluster.wait_until_connected();
    let (at, heavier) = ((lost + 1) % 4, cluster.url((lost + 2) % 4));
    begin_change(&cluster, at, &["weight", &heavier, "2"]);
    end_change(&cluster, at);
}

/// Three nodes whose level is raised, and a fourth that waits to join them.
fn three_and_one_that_waits() -> Cluster {
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    cluster.set_launch(3, Launch { joins: vec![cluster.url(1), cluster.url(0)], ..Launch::default() });
    (0..4).for_each(|node| cluster.spawn(node));
    for node in 0..3 {
        cluster.wait_until_ready(node);
    }
    wait_until("the level is raised", || cluster_command(&cluster, 0, &["upgrade"]).status.success());
    cluster
}

/// Goal: a machine that is gone is replaced, without its data. Method: one of three nodes is killed, and a fourth takes its
/// place; what was written before is read from all three.
#[test]
fn a_dead_machine_is_replaced() {
    let mut cluster = three_and_one_that_waits();
    let path = |key: u32| format!("/v0/entity?id=k{key}");
    for key in 0..50 {
        assert_eq!(cluster.ask(0, "PUT", &path(key), Some(b"kept")).status, 201, "{key}");
    }
    cluster.kill9(2);
    let (dead, new) = (cluster.url(2), cluster.url(3));
    begin_change(&cluster, 0, &["replace", &dead, &new]);
    let members = end_change(&cluster, 0)["members"].clone();
    assert!(members.as_array().unwrap().iter().all(|member| member["url"] != dead), "{members}");
    for (key, node) in (0..50).zip([0, 1, 3].into_iter().cycle()) {
        assert_eq!(cluster.ask(node, "GET", &path(key), None).body, b"kept", "{key} at {node}");
    }
}

/// Goal: a cluster of three grows to four with its data, and shrinks again. Method: a fourth node waits, is planned, joins and
/// is killed; then the first leaves. Records are written and read at every node before, meanwhile and afterwards.
#[test]
fn a_node_joins_and_another_leaves() {
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    cluster.set_launch(3, Launch { joins: vec![cluster.url(1), cluster.url(0)], ..Launch::default() });
    (0..4).for_each(|node| cluster.spawn(node));
    for node in 0..3 {
        cluster.wait_until_ready(node);
    }
    let raised = || cluster_command(&cluster, 0, &["upgrade"]);
    wait_until("the level is raised", || raised().status.success());
    let path = |key: u32| format!("/v0/entity?id=k{key}");
    let written = |cluster: &Cluster, nodes: std::ops::Range<usize>, keys: std::ops::Range<u32>| {
        for (key, node) in keys.zip(nodes.cycle()) {
            let put = cluster.ask(node, "PUT", &path(key), Some(key.to_string().as_bytes()));
            assert_eq!(put.status, 201, "{key} at {node}: {}", text(&put.body));
        }
    };
    let read = |cluster: &Cluster, nodes: std::ops::Range<usize>, keys: std::ops::Range<u32>| {
        for (key, node) in keys.zip(nodes.cycle().skip(1)) {
            let got = cluster.ask(node, "GET", &path(key), None);
            assert_eq!((got.status, text(&got.body)), (200, key.to_string().as_str()), "{key} at {node}");
        }
    };
    let ended = |cluster: &Cluster, at: usize, members: usize| {
        assert_eq!(end_change(cluster, at)["members"].as_array().unwrap().len(), members);
    };
    written(&cluster, 0..3, 0..100);
    let waiting = cluster.ask(3, "GET", "/v0/status", None);
    assert_eq!(waiting.status, 503);
    assert!(text(&waiting.body).contains("waits-for a plan that names this node"), "{}", text(&waiting.body));
    let fourth = cluster.url(3);
    begin_change(&cluster, 0, &["add", &fourth]);
    written(&cluster, 0..3, 100..200);
    cluster.wait_until_ready(3);
    ended(&cluster, 0, 4);
    read(&cluster, 0..4, 0..200);
    cluster.kill9(3);
    cluster.start_node(3);
    written(&cluster, 0..4, 200..250);
    read(&cluster, 0..4, 0..250);
    let first = cluster.url(0);
    begin_change(&cluster, 3, &["remove", &first]);
    written(&cluster, 1..4, 250..300);
    ended(&cluster, 3, 3);
    cluster.kill9(0);
    read(&cluster, 1..4, 0..300);
}

/// Goal: a node that joins while a member is away counts as soon as it has met a majority, so keys that both own have their
/// quorum. Method: the member is killed between plan and apply, so that the two have never met.
#[test]
fn a_node_that_joins_counts_while_a_member_is_away() {
    let mut cluster = three_and_one_that_waits();
    let fourth = cluster.url(3);
    let words = ["plan", "add", &fourth, "--window", "4096"];
    wait_until("the change is planned", || cluster_command(&cluster, 0, &words).status.success());
    let planned = cluster_command(&cluster, 0, &words);
    assert!(text(&planned.stdout).contains(&format!("{fourth} has ")), "{}", text(&planned.stdout));
    cluster.kill9(2);
    let applied = cluster_command(&cluster, 0, &["apply", "2"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let path = |key: usize| format!("/v0/entity?id=k{key}");
    let is_written = |key: &usize| cluster.ask(key % 2, "PUT", &path(*key), Some(b"kept")).status == 201;
    wait_until("all writes find their quorums", || (0..50).all(|key| is_written(&key)));
    cluster.start_node(2);
    end_change(&cluster, 0);
    for key in 0..50 {
        assert_eq!(cluster.ask(key % 4, "GET", &path(key), None).body, b"kept", "{key}");
    }
}

/// Goal: a lone node gets a cluster id with its first change, and keeps both.
#[test]
fn a_lone_node_is_changed_as_well() {
    let mut cluster = Cluster::start(1);
    assert!(shown(&cluster, 0)["cluster_id"].is_null());
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let before = shown(&cluster, 0);
    assert_eq!((&before["epoch"], before["cluster_id"].is_string()), (&2.into(), true));
    cluster.kill9(0);
    cluster.start_node(0);
    assert_eq!(shown(&cluster, 0), before);
}

/// Goal: a majority decides while a node is away, which catches up when it is back. Method: the stores are named by all, then
/// a node is killed.
#[test]
fn a_majority_decides_and_the_rest_catches_up() {
    let mut cluster = Cluster::start(3);
    wait_until("the stores are named", || {
        cluster_command(&cluster, 0, &["plan", "name"]);
        cluster_command(&cluster, 0, &["apply", "0"]).status.success()
    });
    // Node 0 must know that the others have adopted it.
    let waited = cluster_command(&cluster, 0, &["wait"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    let planned = cluster_command(&cluster, 0, &["plan", "upgrade"]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    cluster.kill9(2);
    let applied = cluster_command(&cluster, 0, &["apply", "1"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    cluster.start_node(2);
    wait_until_all_at(&cluster, &[0, 1, 2], 2);
}

/// Goal: a node that is killed at any step of deciding or adopting leaves one configuration per epoch behind. Method: the
/// node of the operator, or another one, is killed at each step; then all are started again and the change is made once more.
#[test]
fn nodes_die_at_every_step_of_a_change() {
    for (place, point) in Point::DECIDING.iter().enumerate() {
        let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
        let dying = place % 2;
        let environment = vec![(VARIABLE.to_owned(), point.name().to_owned())];
        cluster.set_launch(dying, Launch { environment, ..Launch::default() });
        cluster.start_all();
        wait_until("the stores can be named", || {
            cluster_command(&cluster, 0, &["plan", "name"]).status.success()
        });
        // It comes to nothing, or it is decided without the node that died.
        cluster_command(&cluster, 0, &["apply", "0", "--timeout", "3"]);
        wait_until(&format!("{} is reached", point.name()), || !cluster.is_alive(dying));
        assert_eq!(cluster.exit_code(dying), None, "it aborted");
        cluster.set_launch(dying, Launch::default());
        cluster.start_node(dying);
        wait_until(&format!("the stores are named after {}", point.name()), || {
            cluster_command(&cluster, 2, &["plan", "name"]);
            cluster_command(&cluster, 2, &["apply", "0", "--timeout", "3"]);
            (0..3).all(|node| shown(&cluster, node)["epoch"] == 1)
        });
        let hashes: Vec<Value> = (0..3).map(|node| shown(&cluster, node)["hash"].clone()).collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{}: {hashes:?}", point.name());
    }
}

/// Goal: a node that is killed while partitions move, or while it drops the records that others own since, loses nothing, and the
/// change goes on. Method: a member gets more weight and less again; one that gives partitions up is killed at each step.
#[test]
fn nodes_die_at_every_step_of_a_move() {
    let mut cluster = Cluster::start(4);
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let path = |key: usize| format!("/v0/entity?id=k{key}");
    for key in 0..200 {
        assert_eq!(cluster.ask(key % 4, "PUT", &path(key), Some(b"kept")).status, 201, "{key}");
    }
    let first = cluster.url(0);
    // The last steps first: nothing is left to drop then from a change before, on which the node would die while it starts.
    for (place, point) in Point::MOVING.iter().rev().enumerate() {
        let (weight, dying) = if place % 2 == 0 { ("4", 1) } else { ("1", 0) };
        cluster.kill9(dying);
        let environment = vec![(VARIABLE.to_owned(), point.name().to_owned())];
        cluster.set_launch(dying, Launch { environment, ..Launch::default() });
        cluster.start_node(dying);
        begin_change(&cluster, 2, &["weight", &first, weight]);
        wait_until(&format!("{} is reached", point.name()), || !cluster.is_alive(dying));
        assert_eq!(cluster.exit_code(dying), None, "it aborted");
        cluster.set_launch(dying, Launch::default());
        cluster.start_node(dying);
        end_change(&cluster, 2);
        for key in 0..200 {
            let got = cluster.ask((key + 1) % 4, "GET", &path(key), None);
            assert_eq!((got.status, text(&got.body)), (200, "kept"), "{key} after {}", point.name());
        }
    }
}

/// Goal: a node that reaches no other answers requests that one replica confirms (1/3), but not while members change: the change may
/// go on without it. Method: a change whose comparisons are paused on one node, and two nodes that are stopped: before it, and
/// while it is under way.
#[test]
fn a_node_answers_alone_only_between_changes() {
    let cluster = Cluster::start(3);
    let raised = cluster_command(&cluster, 0, &["upgrade"]);
    assert!(raised.status.success(), "{}", text(&raised.stderr));
    let asked = |method, body| cluster.ask(0, method, "/v0/entity?id=k&replicas=1/3", body).status;
    let alone = |expected: (u16, u16)| {
        (1..3).for_each(|node| cluster.pause(node));
        let statuses = (asked("PUT", Some(b"1".as_slice())), asked("GET", None));
        (1..3).for_each(|node| cluster.resume(node));
        cluster.wait_until_connected();
        assert_eq!(statuses, expected);
    };
    alone((201, 200));
    tell_repair(&cluster, 1, "pause");
    begin_change(&cluster, 0, &["weight", &cluster.url(2), "2"]);
    wait_until_all_at(&cluster, &[0, 1, 2], 3);
    assert_ne!(shown(&cluster, 0)["phase"], "stable");
    alone((504, 504));
    assert_eq!((asked("PUT", Some(b"2")), asked("GET", None)), (201, 200));
    tell_repair(&cluster, 1, "resume");
    end_change(&cluster, 0);
    alone((201, 200));
}
