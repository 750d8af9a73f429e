//! What nodes say and learn of their membership, over real processes: zones and weights in their settings, a node that was
//! started alone and grows, a member with a new disk, a member that was removed.

use crate::membership::{begin_change, cluster_command, end_change, shown, text};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::wait_until;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

fn path(key: u32) -> String {
    format!("/v0/entity?id=k{key}")
}

/// Writes each key at one of `nodes`.
fn write(cluster: &Cluster, nodes: &[usize], keys: std::ops::Range<u32>) {
    for (key, node) in keys.zip(nodes.iter().cycle()) {
        let put = cluster.ask(*node, "PUT", &path(key), Some(key.to_string().as_bytes()));
        assert_eq!(put.status, 201, "{key} at {node}: {}", text(&put.body));
    }
}

/// Reads each key at one of `nodes`.
fn read(cluster: &Cluster, nodes: &[usize], keys: std::ops::Range<u32>) {
    for (key, node) in keys.zip(nodes.iter().cycle().skip(1)) {
        let got = cluster.ask(*node, "GET", &path(key), None);
        assert_eq!((got.status, text(&got.body)), (200, key.to_string().as_str()), "{key} at {node}");
    }
}

fn member(shown: &Value, url: &str) -> Value {
    let members = shown["members"].as_array().unwrap();
    members.iter().find(|member| member["url"] == url).unwrap_or_else(|| panic!("{url}: {shown}")).clone()
}

fn raise_level(cluster: &Cluster, at: usize) {
    wait_until("the level is raised", || cluster_command(cluster, at, &["upgrade"]).status.success());
}

fn joining(members: &[String], arguments: &[&str]) -> Launch {
    let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
    Launch { joins: members.to_vec(), arguments, ..Launch::default() }
}

/// Goal: a node joins with the zone and weight of its settings, where the plan names none; afterwards settings that differ are
/// told and change nothing. Method: a joiner with both settings, planned without and with a flag; then it is started with others.
#[test]
fn zones_and_weights_are_settings_of_a_node() {
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    let members = [cluster.url(0), cluster.url(1)];
    cluster.set_launch(3, joining(&members, &["--zone", "east", "--weight", "2"]));
    (0..4).for_each(|node| cluster.spawn(node));
    for node in 0..3 {
        cluster.wait_until_ready(node);
    }
    raise_level(&cluster, 0);
    let fourth = cluster.url(3);
    let planned = |words: &[&str], expect: &str| {
        wait_until(&format!("{words:?} is planned"), || {
            let output = cluster_command(&cluster, 0, &[&["plan", "add", &fourth], words].concat());
            text(&output.stdout).contains(expect)
        });
    };
    planned(&["--zone", "west"], "joins in zone \"west\" with weight 2\n");
    planned(&[], "joins in zone \"east\" with weight 2\n");
    begin_change(&cluster, 0, &["add", &fourth]);
    cluster.wait_until_ready(3);
    let after = end_change(&cluster, 0);
    let joined = member(&after, &fourth);
    assert_eq!((&joined["zone"], &joined["weight"]), (&"east".into(), &2.into()));
    assert_eq!(after["differences"], serde_json::json!([]));
    assert!(!cluster.log(3).contains("not these settings"), "{}", cluster.log(3));
    cluster.terminate(3);
    cluster.set_launch(3, joining(&members, &["--zone", "west", "--weight", "2"]));
    cluster.start_node(3);
    let expect = format!(
        "{fourth} was started with --zone west, and its zone is \"east\": kvorum cluster plan zone {fourth} west"
    );
    for node in [3, 1] {
        wait_until("the difference is shown", || shown(&cluster, node)["differences"][0] == expect.as_str());
    }
    assert_eq!(cluster.log(3).matches("the configuration of the cluster counts").count(), 1);
    assert_eq!(member(&shown(&cluster, 1), &fourth)["zone"], "east");
}

/// Goal: a node that was started alone grows to three while clients write and read, shrinks to one, is started again with its
/// first settings, and grows again. Method: one writer all the time, which repeats what was not confirmed.
#[test]
fn a_node_that_began_alone_grows() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    let urls: Vec<String> = (0..3).map(|node| cluster.url(node)).collect();
    let alone = vec!["--advertise".to_owned(), urls[0].clone()];
    cluster.set_launch(0, Launch { is_alone: true, arguments: alone, ..Launch::default() });
    for node in [1, 2] {
        cluster.set_launch(node, joining(&urls[..1], &[]));
    }
    cluster.start_node(0);
    write(&cluster, &[0], 0..100);
    raise_level(&cluster, 0);
    let (is_done, written) = (AtomicBool::new(false), AtomicU32::new(1000));
    (1..3).for_each(|node| cluster.spawn(node));
    thread::scope(|scope| {
        let (growing, is_done, written) = (&cluster, &is_done, &written);
        let writer = scope.spawn(move || {
            while !is_done.load(Ordering::SeqCst) {
                let key = written.load(Ordering::SeqCst);
                let put = growing.ask(0, "PUT", &path(key), Some(key.to_string().as_bytes()));
                // Of one or two members each must confirm, also the one that is just joining: its outcome may be unknown.
                assert!([201, 504].contains(&put.status), "{key}: {} {}", put.status, text(&put.body));
                written.store(key + u32::from(put.status == 201), Ordering::SeqCst);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let over = kvorum_testkit::RaiseOnDrop(is_done);
        for (node, url) in urls.iter().enumerate().skip(1) {
            begin_change(growing, 0, &["add", url]);
            // While keys move, no node takes its own for all: a key has one `k`, and its value none.
            for asked in 0..=node {
                let all = growing.ask(asked, "GET", "/v0/entities?start=k", None);
                let keys = String::from_utf8_lossy(&all.body).matches('k').count();
                assert!(all.status == 503 || keys >= 100, "{keys} at {asked}: {}", all.status);
            }
            assert_eq!(end_change(growing, 0)["members"].as_array().unwrap().len(), node + 1);
        }
        drop(over);
        writer.join().unwrap();
    });
    let end = written.load(Ordering::SeqCst);
    assert!(end > 1000);
    for node in 1..3 {
        cluster.wait_until_ready(node);
    }
    read(&cluster, &[0, 1, 2], 0..100);
    read(&cluster, &[0, 1, 2], 1000..end);
    write(&cluster, &[0, 1, 2], 100..200);
    // It knows of the others after a restart, and waits for a majority.
    cluster.kill9(0);
    cluster.start_node(0);
    wait_until("the first node reads again", || cluster.ask(0, "GET", &path(0), None).status == 200);
    assert!(cluster.log(0).contains("start it with --join"), "{}", cluster.log(0));
    for (node, left) in [(2, 2), (1, 1)] {
        begin_change(&cluster, 0, &["remove", &urls[node]]);
        assert_eq!(end_change(&cluster, 0)["members"].as_array().unwrap().len(), left);
    }
    read(&cluster, &[0], 0..200);
    (1..3).for_each(|node| cluster.kill9(node));
    cluster.terminate(0);
    cluster.start_node(0);
    read(&cluster, &[0], 0..200);
    write(&cluster, &[0], 200..300);
    for (node, url) in urls.iter().enumerate().skip(1) {
        cluster.wipe(node);
        cluster.spawn(node);
        begin_change(&cluster, 0, &["add", url]);
        assert_eq!(end_change(&cluster, 0)["members"].as_array().unwrap().len(), node + 1);
        cluster.wait_until_ready(node);
    }
    read(&cluster, &[0, 1, 2], 0..300);
    write(&cluster, &[0, 1, 2], 300..330);
    cluster.kill9(0);
    wait_until("the others go on", || cluster.ask(1, "GET", &path(300), None).status == 200);
    read(&cluster, &[1, 2], 300..330);
    // It may be started as one that joins, from now on.
    cluster.set_launch(0, joining(&urls[1..], &[]));
    cluster.start_node(0);
    wait_until("the first node reads again", || cluster.ask(0, "GET", &path(300), None).status == 200);
}

/// Goal: a node that was started without a URL says what to do, and takes another URL as long as it has been alone. Method: it is
/// asked to grow, then started as it says.
#[test]
fn a_lone_node_without_a_url_says_what_to_do() {
    let mut cluster = Cluster::new(2, &["--memory-budget", "16MiB"]);
    let address = cluster.address(0);
    cluster.set_launch(0, Launch { is_alone: true, ..Launch::default() });
    cluster.start_node(0);
    raise_level(&cluster, 0);
    write(&cluster, &[0], 0..20);
    let second = cluster.url(1);
    let refused = cluster_command(&cluster, 0, &["plan", "add", &second]);
    assert!(text(&refused.stderr).contains("start it with --advertise"), "{}", text(&refused.stderr));
    cluster.terminate(0);
    // Another name of the same address: the identity of the node changes.
    let named = format!("http://first.localhost:{}", address.port());
    let arguments = vec!["--advertise".to_owned(), named.clone()];
    cluster.set_launch(0, Launch { is_alone: true, arguments, ..Launch::default() });
    cluster.start_node(0);
    assert_eq!(shown(&cluster, 0)["epoch"], 0, "{}", cluster.log(0));
    raise_level(&cluster, 0);
    member(&shown(&cluster, 0), &named);
    read(&cluster, &[0], 0..20);
    let refused = cluster_command(&cluster, 0, &["plan", "add", "http://10.0.0.9:8080"]);
    assert!(text(&refused.stderr).contains("means its own machine"), "{}", text(&refused.stderr));
    let unmet = cluster_command(&cluster, 0, &["plan", "add", &second]);
    assert!(text(&unmet.stderr).contains("has not been met"), "{}", text(&unmet.stderr));
}

/// Three nodes with records, and a fourth that has joined them.
fn four_of_which_one_joined() -> Cluster {
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    cluster.set_launch(3, joining(&[cluster.url(0), cluster.url(1)], &[]));
    (0..4).for_each(|node| cluster.spawn(node));
    for node in 0..3 {
        cluster.wait_until_ready(node);
    }
    raise_level(&cluster, 0);
    write(&cluster, &[0, 1, 2], 0..100);
    let fourth = cluster.url(3);
    begin_change(&cluster, 0, &["add", &fourth]);
    cluster.wait_until_ready(3);
    end_change(&cluster, 0);
    cluster
}

/// Starts a node with an empty disk, and waits until the first node shows its new store.
fn lose_disk(cluster: &mut Cluster, lost: usize) {
    cluster.kill9(lost);
    cluster.wipe(lost);
    cluster.spawn(lost);
    let order = format!("kvorum cluster plan store {}", cluster.url(lost));
    wait_until("the new store is shown", || {
        let shown = shown(cluster, 0);
        let lines = shown["differences"].as_array().unwrap();
        lines.iter().any(|line| line.as_str().unwrap().ends_with(&order))
    });
}

/// Plans, at the first node, that the new store of `lost` is named, and applies it.
fn name_store(cluster: &mut Cluster, lost: usize, words: &[&str]) {
    let words = [&["plan"], words].concat();
    wait_until("the store is planned", || cluster_command(cluster, 0, &words).status.success());
    let epoch = shown(cluster, 0)["plan"]["on_epoch"].to_string();
    let applied = cluster_command(cluster, 0, &["apply", &epoch]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    cluster.wait_until_ready(lost);
}

/// Goal: a member that lost its disk gets its vote on changes back: its new store is shown, planned and refilled, and the other
/// one never comes back. Method: one of three members with a list of nodes, and one that joined, are started with empty disks.
#[test]
fn a_new_disk_is_named() {
    let mut cluster = four_of_which_one_joined();
    for lost in [2, 3] {
        let url = cluster.url(lost);
        let before = member(&shown(&cluster, 0), &url)["store"].clone();
        let first_disk = cluster.data_dir(lost).to_path_buf();
        lose_disk(&mut cluster, lost);
        // Both orders mean the same.
        let words = if lost == 2 { vec!["store", &*url] } else { vec!["replace", &*url, &*url] };
        name_store(&mut cluster, lost, &words);
        let after = end_change(&cluster, 0);
        let now = member(&after, &url);
        assert!(now["store"] != before && now["lacks"] == false, "{now}");
        assert_eq!(after["differences"], serde_json::json!([]));
        read(&cluster, &[lost], 0..100);
        // Its old disk is refused, says so, and is refused at the next start.
        cluster.terminate(lost);
        let (address, dir) = (cluster.address(lost).to_string(), first_disk.display().to_string());
        let list: Vec<String> = (0..3).map(|node| cluster.url(node)).collect();
        if lost == 2 {
            let serve = ["serve", "--listen", &address, "--data-dir", &dir, "--memory-budget", "16MiB"];
            let mut old = kvorum(&serve);
            old.args(["--cluster", &list.join(",")]);
            let log = kvorum_testkit::process::Log::default();
            let mut process = kvorum_testkit::process::Process::spawn(&mut old, &log);
            wait_until("the old disk learns of it", || log.text().contains("was removed from the cluster"));
            process.terminate();
            let mut again = kvorum(&serve);
            again.args(["--cluster", &list.join(",")]);
            let again = run(&mut again, b"");
            assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
        }
        cluster.start_node(lost);
        cluster.wait_until_connected();
    }
    // Two of the four are new stores. Without their votes nothing could be decided now.
    cluster.kill9(1);
    let second = cluster.url(1);
    begin_change(&cluster, 0, &["remove", &second]);
    end_change(&cluster, 0);
}

/// Goal: a member that lost its disk can be removed while a new store waits in its place. It joins again.
/// Method: a node that joined is started with an empty disk, removed and added.
#[test]
fn a_member_whose_disk_was_lost_is_removed() {
    let mut cluster = four_of_which_one_joined();
    let fourth = cluster.url(3);
    lose_disk(&mut cluster, 3);
    let planned = cluster_command(&cluster, 0, &["plan", "remove", &fourth]);
    assert!(text(&planned.stdout).contains("does not answer, and counts as stopped for good"), "{planned:?}");
    begin_change(&cluster, 0, &["remove", &fourth]);
    assert_eq!(end_change(&cluster, 0)["members"].as_array().unwrap().len(), 3);
    read(&cluster, &[0, 1, 2], 0..100);
    begin_change(&cluster, 0, &["add", &fourth]);
    cluster.wait_until_ready(3);
    assert_eq!(end_change(&cluster, 0)["members"].as_array().unwrap().len(), 4);
    read(&cluster, &[0, 1, 2, 3], 0..100);
}

/// Goal: the new store of a member is named while a change waits for that member, and the change goes on. Method: a member is killed as
/// soon as the change has begun, and started with an empty disk.
#[test]
fn a_new_disk_is_named_while_a_change_is_under_way() {
    let mut cluster = four_of_which_one_joined();
    let (heavier, fourth) = (cluster.url(1), cluster.url(3));
    begin_change(&cluster, 0, &["weight", &heavier, "2"]);
    lose_disk(&mut cluster, 3);
    assert_ne!(shown(&cluster, 0)["phase"], "stable", "it waits for the member");
    name_store(&mut cluster, 3, &["store", &fourth]);
    let after = end_change(&cluster, 0);
    assert_eq!(member(&after, &heavier)["weight"], 2);
    assert_eq!(member(&after, &fourth)["lacks"], false);
    read(&cluster, &[0, 1, 2, 3], 0..100);
}

/// Goal: a member that was removed learns of it, whether it ran or not: its log and its status say so, and it does not start again.
/// Method: one member is removed while it runs, another one while it is stopped.
#[test]
fn a_removed_node_learns_of_it() {
    let mut cluster = Cluster::new(5, &["--memory-budget", "16MiB"]);
    cluster.start_all();
    raise_level(&cluster, 0);
    write(&cluster, &[0, 1, 2], 0..50);
    for removed in [4, 3] {
        if removed == 3 {
            cluster.terminate(removed);
        }
        let url = cluster.url(removed);
        begin_change(&cluster, 0, &["remove", &url]);
        let epoch = end_change(&cluster, 0)["epoch"].clone();
        if removed == 3 {
            cluster.spawn(removed);
        }
        let sentence = format!("removed from the cluster in epoch {epoch}");
        wait_until("its status says so", || {
            let status = cluster.try_ask(removed, "GET", "/v0/status", None);
            status.is_ok_and(|it| it.status == 503 && text(&it.body).contains("\nserving removed\n"))
        });
        let status = cluster.ask(removed, "GET", "/v0/status", None);
        assert!(text(&status.body).contains(&sentence), "{}", text(&status.body));
        let said = run(&mut kvorum(&["status", "--url", &url]), b"");
        assert!(text(&said.stdout).contains(&sentence), "{}", text(&said.stdout));
        let refused = cluster.ask(removed, "GET", &path(0), None);
        assert_eq!(refused.status, 503, "{}", text(&refused.body));
        let told = cluster.log(removed).matches("this node was removed from the cluster").count();
        assert_eq!(told, 1, "{}", cluster.log(removed));
        cluster.terminate(removed);
        cluster.spawn(removed);
        assert_eq!(cluster.exit_code(removed), Some(2));
        assert!(
            cluster.log(removed).contains("start it with an empty --data-dir"),
            "{}",
            cluster.log(removed)
        );
    }
    read(&cluster, &[0, 1, 2], 0..50);
}
