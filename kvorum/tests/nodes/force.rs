//! Going on without a majority that is lost for good, over real processes. `kvorum-core/tests/force_model.rs` has every order
//! of messages.

use super::membership::{begin_change, cluster_command, end_change, shown, text};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::wait_until;
use serde_json::Value;
use std::process::Output;

const SMALL: &[&str] = &["--memory-budget", "16MiB"];

fn path(key: u32) -> String {
    format!("/v0/entity?id=k{key}")
}

/// A cluster of the nodes 0 to `first`, whose stores are named. The nodes up to `all` join node 0 when a test starts them.
fn cluster_of(first: usize, all: usize) -> Cluster {
    let mut cluster = Cluster::new(all, SMALL);
    for node in first..all {
        cluster.set_launch(node, Launch { joins: vec![cluster.url(0)], ..Launch::default() });
    }
    (0..first).for_each(|node| cluster.spawn(node));
    (0..first).for_each(|node| {
        cluster.wait_until_ready(node);
    });
    wait_until("the level is raised", || cluster_command(&cluster, 0, &["upgrade"]).status.success());
    cluster
}

fn force(cluster: &Cluster, at: usize, lost: &[usize], epoch: Option<&str>) -> Output {
    let urls: Vec<String> = lost.iter().map(|node| cluster.url(*node)).collect();
    let mut words = vec!["force", "--lost"];
    words.extend(urls.iter().map(String::as_str));
    words.extend(epoch.into_iter().flat_map(|epoch| ["--epoch", epoch]));
    cluster_command(cluster, at, &words)
}

/// Forces until it is done: a node that was just started does not know the others yet.
fn force_on(cluster: &Cluster, at: usize, lost: &[usize]) {
    let before = shown(cluster, at)["epoch"].clone();
    let epoch = before.to_string();
    wait_until("the members that are left go on", || {
        let forced = force(cluster, at, lost, Some(&epoch));
        // It may have been done when its time ran out.
        forced.status.success() || shown(cluster, at)["epoch"] != before
    });
}

fn write(cluster: &Cluster, at: usize, keys: std::ops::Range<u32>) {
    for key in keys {
        let put = cluster.ask(at, "PUT", &path(key), Some(key.to_string().as_bytes()));
        assert_eq!(put.status, 201, "{key} at {at}: {}", text(&put.body));
    }
}

fn read(cluster: &Cluster, at: usize, keys: std::ops::Range<u32>) {
    for key in keys {
        let got = cluster.ask(at, "GET", &path(key), None);
        assert_eq!((got.status, text(&got.body)), (200, key.to_string().as_str()), "{key} at {at}");
    }
}

fn wait_until_served(cluster: &Cluster, at: usize, key: u32) {
    wait_until("requests succeed", || cluster.ask(at, "GET", &path(key), None).status == 200);
}

/// Goal: one of three nodes goes on after the two others have lost their disks, has all that it had, and grows to three again.
/// Method: it is restarted first, so that its run has met nobody. What would be done is printed before; another epoch is refused.
#[test]
fn one_of_three_goes_on_and_grows_again() {
    let mut cluster = cluster_of(3, 5);
    write(&cluster, 0, 0..60);
    for node in [1, 2] {
        cluster.kill9(node);
        cluster.wipe(node);
    }
    cluster.kill9(0);
    cluster.spawn(0);
    wait_until("the node answers", || cluster_command(&cluster, 0, &["show"]).status.success());
    let printed = force(&cluster, 0, &[1, 2], None);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    for expected in [
        "1 of 3 members go on",
        "is refused for good",
        "with FROM 3, 0 of 4096 partitions have none",
        "--epoch 2 does it",
    ] {
        assert!(text(&printed.stdout).contains(expected), "{expected}: {}", text(&printed.stdout));
    }
    assert_eq!(shown(&cluster, 0)["epoch"], 2);
    let other = force(&cluster, 0, &[1, 2], Some("1"));
    assert!(text(&other.stderr).contains("is at epoch 2, not at epoch 1"), "{}", text(&other.stderr));
    let forced = force(&cluster, 0, &[1, 2], Some("2"));
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    assert_eq!(text(&forced.stdout), "the cluster is at epoch 3, feature level 1\n");
    wait_until_served(&cluster, 0, 0);
    read(&cluster, 0, 0..60);
    write(&cluster, 0, 60..80);
    cluster.kill9(0);
    cluster.start_node(0);
    read(&cluster, 0, 0..80);
    for (node, members) in [(3, 2), (4, 3)] {
        cluster.spawn(node);
        let joiner = cluster.url(node);
        begin_change(&cluster, 0, &["add", &joiner]);
        assert_eq!(end_change(&cluster, 0)["members"].as_array().unwrap().len(), members);
    }
    write(&cluster, 3, 80..90);
    for node in [0, 3, 4] {
        cluster.wait_until_ready(node);
        read(&cluster, node, 0..90);
    }
}

/// Goal: lost members that come back with their disks are refused for good, and what they decide and write stays theirs. Method:
/// two of three come back after the third has gone on, while it is down. They are a majority of the old configuration, so they
/// decide and write.
#[test]
fn lost_members_that_come_back_are_refused() {
    let mut cluster = cluster_of(3, 3);
    write(&cluster, 0, 0..20);
    for node in [1, 2] {
        cluster.kill9(node);
    }
    force_on(&cluster, 0, &[1, 2]);
    wait_until_served(&cluster, 0, 0);
    let (hash, epoch) = (shown(&cluster, 0)["hash"].clone(), shown(&cluster, 0)["epoch"].clone());
    write(&cluster, 0, 20..30);
    cluster.kill9(0);
    for node in [1, 2] {
        cluster.start_node(node);
    }
    let first = cluster.url(0);
    let words = ["plan", "remove", &first, "--window", "4096"];
    wait_until("the lost members plan", || cluster_command(&cluster, 1, &words).status.success());
    let applied = cluster_command(&cluster, 1, &["apply", "2"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let theirs = shown(&cluster, 1);
    assert_eq!(theirs["epoch"], epoch);
    assert_ne!(theirs["hash"], hash);
    cluster.start_node(0);
    assert_ne!(cluster.ask(1, "GET", &path(25), None).status, 200, "a write of the other branch");
    let put = cluster.ask(1, "PUT", "/v0/entity?id=theirs", Some(b"1"));
    assert_ne!(cluster.ask(0, "GET", "/v0/entity?id=theirs", None).status, 200, "{}", put.status);
    cluster.kill9_all();
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_ready(0);
    wait_until_served(&cluster, 0, 25);
    assert_eq!(shown(&cluster, 0)["hash"], hash);
    read(&cluster, 0, 0..30);
    assert_ne!(cluster.ask(0, "GET", "/v0/entity?id=theirs", None).status, 200);
}

/// Goal: lost members that come back while the others run learn that they were given up, and serve nobody; the others go on.
/// Method: two of three come back.
#[test]
fn lost_members_learn_that_they_were_given_up() {
    let mut cluster = cluster_of(3, 3);
    write(&cluster, 0, 0..10);
    for node in [1, 2] {
        cluster.kill9(node);
    }
    force_on(&cluster, 0, &[1, 2]);
    wait_until_served(&cluster, 0, 0);
    for node in [1, 2] {
        cluster.spawn(node);
    }
    wait_until("both say so", || {
        [1, 2].iter().all(|node| cluster.log(*node).contains("this node was removed from the cluster"))
    });
    for node in [1, 2] {
        assert_eq!(cluster.ask(node, "GET", &path(0), None).status, 503);
    }
    read(&cluster, 0, 0..10);
    write(&cluster, 0, 10..20);
}

/// Goal: nothing is forced where a majority is left, or where a lost member answers. Method: the orders, one by one.
#[test]
fn forcing_is_refused_where_members_answer() {
    let mut cluster = cluster_of(3, 3);
    let check = |cluster: &Cluster, lost: &[usize], expect: &str| {
        let refused = force(cluster, 0, lost, Some("2"));
        assert!(!refused.status.success(), "{lost:?}");
        assert!(text(&refused.stderr).contains(expect), "{lost:?}: {}", text(&refused.stderr));
        assert_eq!(shown(cluster, 0)["epoch"], 2);
    };
    check(&cluster, &[2], "2 of 3 members are left, a majority");
    check(&cluster, &[1, 2], "named as lost, but answering");
    check(&cluster, &[0, 1], "must be one of the members that are left");
    cluster.kill9(2);
    check(&cluster, &[2], "2 of 3 members are left, a majority");
    let second = cluster.url(1);
    check(&cluster, &[1, 2], &format!("named as lost, but answering: {second};"));
    let nobody = cluster_command(&cluster, 0, &["force", "--lost", "http://nobody:1"]);
    assert!(text(&nobody.stderr).contains("no member has the URL or id"), "{}", text(&nobody.stderr));
}

/// Goal: two members that are left serve every record that one of them has, also where its owners are other nodes now; one that
/// does not answer holds up the order. Method: three of five are lost; what the two stores have is read from both.
#[test]
fn two_of_five_go_on_with_what_either_has() {
    let mut cluster = cluster_of(5, 5);
    write(&cluster, 0, 0..100);
    let lonely = |key: u32| format!("{}&replicas=1/1", path(key));
    for key in 100..200 {
        assert_eq!(cluster.ask(0, "PUT", &lonely(key), Some(key.to_string().as_bytes())).status, 201);
    }
    let held: Vec<Vec<u8>> = [0, 1].iter().flat_map(|node| cluster.dump(*node).into_keys()).collect();
    assert!(held.len() > 100, "{}", held.len());
    for node in 1..5 {
        cluster.kill9(node);
    }
    let silent = || force(&cluster, 0, &[2, 3, 4], None);
    wait_until("the other one is missed", || text(&silent().stderr).contains(&cluster.url(1)));
    cluster.spawn(1);
    force_on(&cluster, 0, &[2, 3, 4]);
    wait_until("both count", || {
        let members = shown(&cluster, 0)["members"].clone();
        let whole = |member: &Value| member["lacks"] == false;
        members.as_array().unwrap().len() == 2 && members.as_array().unwrap().iter().all(whole)
    });
    wait_until("both know", || cluster_command(&cluster, 1, &["wait"]).status.success());
    for key in held {
        let key = String::from_utf8(key).unwrap();
        for node in [0, 1] {
            let got = cluster.ask(node, "GET", &format!("/v0/entity?id={key}"), None);
            assert_eq!((got.status, text(&got.body)), (200, &key[1..]), "{key} at {node}");
        }
    }
    write(&cluster, 1, 200..210);
}
