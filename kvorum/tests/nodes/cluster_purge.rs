//! Deleted keys leave no rows behind, on any node, without a request for it, and stay deleted whatever
//! happens meanwhile.
//!
//! Method: real processes with short rounds of tombstone GC. The stores' own counts of rows are read; every
//! node is asked for the clients' view.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::process::kvorum;
use kvorum_testkit::{noise, wait_until};
use std::path::Path;

const KEYS: usize = 400;

fn cluster(durability: &str) -> Cluster {
    cluster_of(3, durability)
}

fn cluster_of(nodes: usize, durability: &str) -> Cluster {
    let arguments = [
        "--memory-budget",
        "16MiB",
        "--tombstone-gc-interval",
        "300ms",
        // Expired records are destroyed after twice this time.
        "--clock-offset-limit",
        "500ms",
        "--threads",
        "1",
        "--durability",
        durability,
    ];
    let mut cluster = Cluster::new(nodes, &arguments);
    cluster.start_all();
    cluster
}

fn rows(cluster: &Cluster, node: usize) -> u64 {
    cluster.metric(node, "kvorum_store_keys")
}

fn entity(name: &str, index: usize) -> String {
    format!("/v0/entity?id={name}-{index}")
}

/// Puts all keys through `nodes` in turn.
fn put_all(cluster: &Cluster, name: &str, nodes: &[usize]) {
    for index in 0..KEYS {
        let answer = cluster.ask(nodes[index % nodes.len()], "PUT", &entity(name, index), Some(b"value"));
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
}

fn delete_all(cluster: &Cluster, name: &str, nodes: &[usize]) {
    for index in 0..KEYS {
        let answer = cluster.ask(nodes[(index + 1) % nodes.len()], "DELETE", &entity(name, index), None);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
}

fn assert_gone(cluster: &Cluster, name: &str) {
    for index in 0..KEYS {
        let answer = cluster.ask(index % 3, "GET", &entity(name, index), None);
        assert_eq!(answer.status, 404, "{name}-{index}: {}", answer.text());
    }
}

/// Waits until every node has led `rounds` more rounds.
fn pass_rounds(cluster: &Cluster, nodes: &[usize], rounds: u64) {
    let led = |node: &usize| cluster.metric(*node, "kvorum_tombstone_gc_rounds_total");
    let before: Vec<u64> = nodes.iter().map(led).collect();
    wait_until("rounds pass", || {
        nodes.iter().zip(&before).all(|(node, before)| led(node) >= before + rounds)
    });
}

fn wait_until_empty(cluster: &Cluster) {
    wait_until("no row is left on any node", || (0..3).all(|node| rows(cluster, node) == 0));
}

/// Deleted and expired keys go from all nodes, and the others stay. Then the keys can be used again like new
/// ones.
#[test]
fn deleted_and_expired_keys_leave_nothing() {
    let cluster = cluster("always");
    put_all(&cluster, "gone", &[0, 1, 2]);
    put_all(&cluster, "kept", &[0, 1, 2]);
    for index in 0..KEYS {
        let target = format!("{}&ttl=1s", entity("brief", index));
        assert_eq!(cluster.ask(index % 3, "PUT", &target, Some(b"value")).status, 201);
    }
    delete_all(&cluster, "gone", &[0, 1, 2]);
    wait_until("only what was kept is left", || (0..3).all(|node| rows(&cluster, node) == KEYS as u64));
    assert_gone(&cluster, "gone");
    assert_gone(&cluster, "brief");
    for index in 0..KEYS {
        assert_eq!(cluster.ask(index % 3, "GET", &entity("kept", index), None).body, b"value");
    }
    put_all(&cluster, "gone", &[2, 0, 1]);
    assert_eq!(cluster.ask(1, "GET", &entity("gone", 7), None).body, b"value");
    delete_all(&cluster, "gone", &[0, 1, 2]);
    delete_all(&cluster, "kept", &[0, 1, 2]);
    wait_until_empty(&cluster);
}

/// A node that is down holds back the purge, and brings nothing back.
#[test]
fn nothing_is_purged_while_a_node_is_away() {
    let mut cluster = cluster("always");
    put_all(&cluster, "k", &[0, 1, 2]);
    cluster.kill9(2);
    delete_all(&cluster, "k", &[0, 1]);
    pass_rounds(&cluster, &[0, 1], 4);
    assert!((0..2).all(|node| rows(&cluster, node) >= KEYS as u64));
    cluster.start_node(2);
    wait_until_empty(&cluster);
    assert_gone(&cluster, "k");
}

/// Nodes are killed again and again while keys are written, deleted and purged.
#[test]
fn killed_nodes_bring_nothing_back() {
    for durability in ["always", "interval:50"] {
        let mut cluster = cluster(durability);
        for turn in 0..4 {
            let name = format!("turn{turn}");
            put_all(&cluster, &name, &[0, 1, 2]);
            delete_all(&cluster, &name, &[0, 1, 2]);
            pass_rounds(&cluster, &[0, 1, 2], turn % 3);
            let node = usize::try_from(turn % 3).unwrap();
            cluster.kill9(node);
            cluster.start_node(node);
            cluster.wait_until_connected();
            assert_gone(&cluster, &name);
        }
        wait_until_empty(&cluster);
        for turn in 0..4 {
            assert_gone(&cluster, &format!("turn{turn}"));
        }
    }
}

/// Goal: a restored backup does not bring purged records back, is refilled, and votes again. Method: a node's
/// directory is copied with all keys in it. All are deleted and purged, others written; then the copy takes
/// its place.
#[test]
fn older_store_is_refilled_not_merged() {
    let mut cluster = cluster("always");
    put_all(&cluster, "k", &[0, 1, 2]);
    wait_until("all nodes hold all", || (0..3).all(|node| rows(&cluster, node) >= KEYS as u64));
    cluster.kill9(2);
    let backup = cluster.copy_of_data_dir(2);
    cluster.start_node(2);
    cluster.wait_until_connected();
    delete_all(&cluster, "k", &[0, 1, 2]);
    wait_until_empty(&cluster);
    put_all(&cluster, "new", &[0, 1, 2]);
    cluster.kill9(2);
    cluster.put_back(2, &backup);
    cluster.start_node(2);
    // Noticed by its run number, before it asks for the purged records.
    let is_noticed = || cluster.log(2).contains("another node saw a later run of this node");
    wait_until("the older store is noticed", is_noticed);
    let votes = || cluster.metric(2, "kvorum_store_votes") == 1;
    wait_until("the older store is refilled, and votes", || rows(&cluster, 2) == KEYS as u64 && votes());
    assert_gone(&cluster, "k");
    for index in 0..KEYS {
        assert_eq!(cluster.ask(2, "GET", &entity("new", index), None).body, b"value");
    }
    delete_all(&cluster, "new", &[0, 1, 2]);
    wait_until_empty(&cluster);
}

/// Goal: backups of all nodes, taken one after the other and put back together, lose nothing from before the
/// first backup, and bring back nothing that was gone. Method: more nodes than replicas. Between two backups
/// keys are written, deleted and purged, so that each node has sealed partitions further than the nodes
/// before, including partitions that it does not hold.
#[test]
fn staggered_backups_of_all_nodes_lose_nothing() {
    const NODES: [usize; 5] = [0, 1, 2, 3, 4];
    let mut cluster = cluster_of(NODES.len(), "os");
    let wait_until_purged = |cluster: &Cluster| {
        wait_until("only what is kept is left", || {
            NODES.iter().map(|node| rows(cluster, *node)).sum::<u64>() == 3 * KEYS as u64
        });
    };
    put_all(&cluster, "kept", &NODES);
    put_all(&cluster, "gone", &NODES);
    delete_all(&cluster, "gone", &NODES);
    wait_until_purged(&cluster);
    let mut backups = Vec::new();
    for node in NODES {
        cluster.terminate(node);
        backups.push(cluster.copy_of_data_dir(node));
        cluster.start_node(node);
        cluster.wait_until_connected();
        let name = format!("brief{node}");
        put_all(&cluster, &name, &NODES);
        delete_all(&cluster, &name, &NODES);
        wait_until_purged(&cluster);
    }
    cluster.kill9_all();
    for (node, backup) in NODES.iter().zip(&backups) {
        cluster.put_back(*node, backup);
    }
    cluster.start_all();
    wait_until("all nodes vote", || {
        NODES.iter().all(|node| cluster.metric(*node, "kvorum_store_votes") == 1)
    });
    let lost = (0..KEYS).filter(|index| {
        cluster.ask(index % NODES.len(), "GET", &entity("kept", *index), None).body != b"value"
    });
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<usize>::new());
    assert_gone(&cluster, "gone");
    let copies = cluster.copies();
    for index in 0..KEYS {
        assert_eq!(copies[format!("kept-{index}").as_bytes()].len(), 3, "kept-{index}");
    }
}

/// Bytes of the files in a directory, at any depth.
fn bytes_in(dir: &Path) -> u64 {
    let bytes = |entry: std::io::Result<std::fs::DirEntry>| {
        // Files may disappear meanwhile.
        let Ok(path) = entry.map(|entry| entry.path()) else { return 0 };
        if path.is_dir() { bytes_in(&path) } else { path.metadata().map_or(0, |file| file.len()) }
    };
    std::fs::read_dir(dir).map_or(0, |files| files.map(bytes).sum())
}

/// Bytes of a node's tables, in MiB; journals are not counted.
fn table_mib(cluster: &Cluster, node: usize) -> u64 {
    bytes_in(&cluster.data_dir(node).join("store/keyspaces")) >> 20
}

/// Goal: every node frees the space of deleted keys without a further write, but not while that is paused.
/// Method: values that do not compress, four memtables of them on each node; all are deleted; then the sizes
/// of the table files are checked.
#[test]
fn space_of_deleted_keys_comes_back() {
    const KEYS: usize = 1200;
    let cluster = cluster("os");
    let admin = |what: &str| {
        let answer = cluster.ask(2, "POST", &format!("/admin/workers/reclaim/{what}"), None);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    admin("pause");
    for index in 0..KEYS {
        let value = noise(8 << 10, index as u64);
        assert_eq!(cluster.ask(index % 3, "PUT", &entity("large", index), Some(&value)).status, 201);
    }
    wait_until("values are in tables", || (0..3).all(|node| table_mib(&cluster, node) >= 4));
    let full: Vec<u64> = (0..3).map(|node| table_mib(&cluster, node)).collect();
    for index in 0..KEYS {
        assert_eq!(cluster.ask(index % 3, "DELETE", &entity("large", index), None).status, 202);
    }
    wait_until_empty(&cluster);
    wait_until("the space is back", || (0..2).all(|node| table_mib(&cluster, node) == 0));
    let paused = table_mib(&cluster, 2);
    let (waiting, passes) = ("kvorum_reclaim_backlog_records", "kvorum_reclaims_total");
    assert!(paused >= 4 && cluster.metric(2, waiting) >= KEYS as u64 && cluster.metric(2, passes) == 0);
    let listed = cluster.ask(2, "GET", "/admin/workers", None).text().to_owned();
    assert!(listed.contains("\nreclaim paused "), "{listed}");
    admin("resume");
    wait_until("the space is back on the node that was paused", || table_mib(&cluster, 2) == 0);
    wait_until("nothing waits", || (0..3).all(|node| cluster.metric(node, waiting) == 0));
    println!(
        "{KEYS} deleted keys of 8 KiB: {full:?} MiB of tables before, {paused} MiB while paused, then 0"
    );
    assert_eq!(cluster.ask(0, "PUT", &entity("large", 7), Some(b"again")).status, 201);
    assert_eq!(cluster.ask(2, "GET", &entity("large", 7), None).body, b"again");
}

/// `kvorum repair` compares every node with all others, and reports a node that it cannot compare with;
/// `/v0/converged` names the nodes that are not in sync.
#[test]
fn repair_on_demand_and_who_holds_back() {
    let mut cluster = cluster("always");
    put_all(&cluster, "k", &[0, 1, 2]);
    let repair = |arguments: &[&str]| {
        let output = kvorum(&[&["repair"], arguments].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = repair(&["--url", &cluster.url(1)]);
    assert_eq!((code, said.matches("compared with 2").count()), (Some(0), 3), "{said}");
    let converged = |target: &str| -> serde_json::Value {
        serde_json::from_str(cluster.ask(0, "GET", target, None).text()).unwrap()
    };
    wait_until("all agree", || converged("/v0/converged")["agreed"].is_u64());
    let all = converged("/v0/converged?id=k-1&partitions=all");
    assert_eq!(all["partitions"].as_array().unwrap().len(), 4096);
    cluster.kill9(2);
    let (code, said) = repair(&["--node", &cluster.url(0), "--partition", "7"]);
    assert_eq!((code, said.matches("not compared with").count()), (Some(3), 1), "{said}");
    let converged = |target: &str| -> serde_json::Value {
        serde_json::from_str(cluster.ask(0, "GET", target, None).text()).unwrap()
    };
    wait_until("the node that is away is named", || {
        let held_by = &converged("/v0/converged")["held_by"];
        held_by["node"] == cluster.url(2).as_str() && held_by["why"] == "away"
    });
    assert_eq!(cluster.ask(0, "GET", "/admin/repair", None).status, 405);
    assert_eq!(cluster.ask(0, "POST", "/admin/repair?partition=4096", None).status, 400);
}
