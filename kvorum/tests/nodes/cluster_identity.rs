//! The owner of a data directory: exchanged, copied and restored directories, and two clusters that meet.

use bytes::Bytes;
use kvorum_server::peer::{PROTOCOL, PROTOCOL_OLDEST, Protocols};
use kvorum_server::storage::lsm::{LsmConfig, LsmEngine};
use kvorum_server::storage::{Change, Durability, Engine, Keyspace, format};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::http::Connection;
use kvorum_testkit::process::kvorum;
use kvorum_testkit::{percent, skip, wait_until};
use std::ops::Bound;
use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const PUT: &str = "PUT";
const GET: &str = "GET";
const SMALL: &[&str] = &["--memory-budget", "16MiB"];

fn entity(key: &[u8], replicas: &str) -> String {
    format!("/v0/entity?id={}&replicas={replicas}", percent(key))
}

/// Makes the node log why it refuses a peer.
fn talkative() -> Launch {
    let environment = vec![("KVORUM_LOG".to_owned(), "info,kvorum=debug".to_owned())];
    Launch { environment, ..Launch::default() }
}

/// Removes the owner rows from the store of a stopped node: the result is a store of an earlier release.
fn forget_owner(data_dir: &Path) {
    let engine = LsmEngine::open(LsmConfig::new(data_dir.join("store"), 16 << 20)).unwrap();
    let rows = [format::META_NODE, format::META_CLUSTER_ID, format::META_RUN].map(Bytes::from_static);
    let ran = engine.scan(Keyspace::Meta, format::META_RAN, Bound::Unbounded).unwrap();
    let ran = ran.map(|row| row.unwrap().0).take_while(|row| row.starts_with(format::META_RAN));
    let remove = |key| Change::Remove { keyspace: Keyspace::Meta, key };
    let batch = rows.into_iter().chain(ran).map(remove).collect();
    engine.commit(batch, Durability::Synced).unwrap();
}

/// Waits until all nodes know one id of the cluster, other than `before`, and returns it.
#[track_caller]
fn cluster_id(cluster: &Cluster, before: &str) -> String {
    // The latest id that each has logged: its log is that of all its runs.
    let id = |node: usize| {
        let log = cluster.log(node);
        let at = log.rfind("cluster_id=")?;
        Some(log[at + "cluster_id=".len()..].split_whitespace().next()?.to_owned())
    };
    let known = |id: Option<String>| id.filter(|id| id != before);
    wait_until("every node knows the cluster's id", || {
        let ids: Vec<_> = (0..cluster.len()).map(|node| known(id(node))).collect();
        ids[0].is_some() && ids.iter().all(|other| *other == ids[0])
    });
    id(0).unwrap()
}

/// Goal: writes that two of five nodes confirmed are not lost because their volumes were exchanged. Method:
/// the directories of two nodes are exchanged while all are stopped. Both refuse to start, and name both
/// URLs. With one more node down, no read says that an acknowledged write is absent. With the directories
/// back in place, everything is as before.
#[test]
fn exchanged_directories_are_refused() {
    let mut cluster = Cluster::start(5);
    let keys: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![b'k', number]).collect();
    for key in &keys {
        assert_eq!(cluster.ask(0, PUT, &entity(key, "2/3"), Some(b"v")).status, 201);
    }
    cluster.kill9_all();
    let dirs = [cluster.data_dir(0).to_path_buf(), cluster.data_dir(1).to_path_buf()];
    let exchange = |cluster: &mut Cluster, dirs: [&Path; 2]| {
        cluster.set_data_dir(0, dirs[0].to_path_buf());
        cluster.set_data_dir(1, dirs[1].to_path_buf());
    };
    exchange(&mut cluster, [&dirs[1], &dirs[0]]);
    for node in 0..2 {
        cluster.spawn(node);
        assert_eq!(cluster.exit_code(node), Some(2), "{}", cluster.log(node));
        wait_until("both URLs are named", || {
            let log = cluster.log(node);
            let line = log.lines().rfind(|line| line.contains("belongs to"));
            line.is_some_and(|line| line.contains(&cluster.url(0)) && line.contains(&cluster.url(1)))
        });
    }
    for node in 2..4 {
        cluster.start_node(node);
    }
    for key in &keys {
        for node in 2..4 {
            let status = cluster.ask(node, GET, &entity(key, "2/3"), None).status;
            assert_ne!(status, 404, "{}", key.escape_ascii());
        }
    }
    exchange(&mut cluster, [&dirs[0], &dirs[1]]);
    cluster.start_all();
    for key in &keys {
        assert_eq!(cluster.ask(1, GET, &entity(key, "2/3"), None).body, b"v");
    }
}

/// Goal: hints are handed over only to the node that they are for. Method: b keeps 300 hints for c, which is
/// down. A copy of a's directory, without the owner rows, as an earlier release leaves it, is started as c.
/// No node talks to it, b keeps every hint, and c's own directory gets them.
#[test]
fn copied_directory_takes_no_hints() {
    let mut cluster = Cluster::new(3, SMALL);
    cluster.set_launch(1, talkative());
    cluster.start_all();
    cluster.kill9(2);
    let keys: Vec<Vec<u8>> = (0..300_u16).map(|number| format!("k{number}").into_bytes()).collect();
    for key in &keys {
        assert_eq!(cluster.ask(1, PUT, &entity(key, "2/3"), Some(b"v")).status, 201);
    }
    wait_until("every hint is kept", || cluster.metric(1, "kvorum_hints_waiting") == 300);
    cluster.kill9(0);
    let copy = cluster.copy_of_data_dir(0);
    forget_owner(copy.path());
    let own = cluster.data_dir(2).to_path_buf();
    cluster.set_data_dir(2, copy.path().to_path_buf());
    cluster.start_node(0);
    cluster.start_node(2);
    wait_until("the copy is refused", || {
        cluster.log(1).contains("its data directory was exchanged or copied")
    });
    let line = cluster.log(1);
    let line = line.lines().find(|line| line.contains("exchanged or copied")).unwrap().to_owned();
    assert!(line.contains(&cluster.url(2)) && line.contains(&cluster.url(0)), "{line}");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.metric(1, "kvorum_hints_waiting"), 300, "the copy took hints of another");
    assert_eq!(cluster.ask(2, GET, &entity(&keys[0], "1/3"), None).status, 504, "the copy serves");
    cluster.kill9(2);
    cluster.set_data_dir(2, own);
    cluster.start_node(2);
    wait_until("c takes its hints", || cluster.metric(1, "kvorum_hints_waiting") == 0);
    let held = cluster.dump(2);
    assert!(keys.iter().all(|key| held.contains_key(key)), "{} of 300", held.len());
}

/// Goal: a directory of an earlier release is bound to the node that opens it, and learns the cluster's id
/// without an outage. Method: the owner rows are removed from all three, one after the other, as an upgrade
/// would find them. Every write in between succeeds, and in the end all know one id.
#[test]
fn directories_of_an_earlier_release_are_bound() {
    let mut cluster = Cluster::start(3);
    let before = cluster_id(&cluster, "");
    for node in 0..3 {
        cluster.kill9(node);
        forget_owner(cluster.data_dir(node));
        cluster.start_node(node);
        let key = [b'k', node as u8];
        wait_until("writes succeed", || {
            cluster.ask(node, PUT, &entity(&key, "2/3"), Some(b"v")).status == 201
        });
    }
    assert_eq!(cluster_id(&cluster, ""), before);
    cluster.kill9_all();
    for node in 0..3 {
        forget_owner(cluster.data_dir(node));
    }
    cluster.start_all();
    // No node knew the id any more.
    cluster_id(&cluster, &before);
    let dirs: Vec<_> = (0..3).map(|node| cluster.data_dir(node).to_path_buf()).collect();
    cluster.kill9_all();
    cluster.set_data_dir(0, dirs[1].clone());
    cluster.spawn(0);
    assert_eq!(cluster.exit_code(0), Some(2), "bound at its first start: {}", cluster.log(0));
}

/// A cluster of three that was wiped and created again, the earlier directory of node 2, and both ids. The earlier cluster
/// had a value under the key `old`.
fn created_twice() -> (Cluster, PathBuf, [String; 2]) {
    let mut cluster = Cluster::new(3, SMALL);
    for node in 0..3 {
        cluster.set_launch(node, talkative());
    }
    cluster.start_all();
    let first = cluster_id(&cluster, "");
    assert_eq!(cluster.ask(0, PUT, &entity(b"old", "3/3"), Some(b"v")).status, 201);
    cluster.kill9_all();
    let old = cluster.data_dir(2).to_path_buf();
    for node in 0..3 {
        cluster.wipe(node);
    }
    cluster.start_all();
    let second = cluster_id(&cluster, &first);
    (cluster, old, [first, second])
}

/// Goal: two clusters with the same list of URLs never talk. Method: a cluster is wiped and created again,
/// and the earlier directory of one of its nodes comes back. Each side refuses the other, with both ids.
#[test]
fn another_cluster_of_the_same_list_is_refused() {
    let (mut cluster, old, [first, second]) = created_twice();
    cluster.kill9(2);
    cluster.set_data_dir(2, old);
    cluster.start_node(2);
    for node in 0..3 {
        wait_until("the other cluster is refused", || {
            let log = cluster.log(node);
            let line = log.lines().rfind(|line| line.contains("the cluster ids differ"));
            line.is_some_and(|line| line.contains(&first) && line.contains(&second))
        });
    }
    for node in 0..2 {
        assert_eq!(cluster.ask(node, GET, &entity(b"old", "2/3"), None).status, 404);
    }
}

/// Goal: a new store takes the id of its own cluster, whichever node it hears first. Method: one of three nodes runs with a
/// directory of another cluster, and one of the others is wiped. It hears one id from each side, takes neither, and says
/// so. Once the other cluster's directory is gone, it takes its own cluster's.
#[test]
fn new_store_takes_no_foreign_id() {
    let (mut cluster, old, [foreign, own]) = created_twice();
    cluster.kill9(2);
    cluster.set_data_dir(2, old);
    cluster.kill9(1);
    cluster.wipe(1);
    cluster.start_node(2);
    cluster.start_node(1);
    wait_until("the new store says that it was told two ids", || {
        let log = cluster.log(1);
        log.lines().any(|line| {
            line.contains("takes its cluster's id from a majority") && line.contains("says another")
        })
    });
    assert_eq!(cluster.ask(1, GET, &entity(b"old", "1/3"), None).status, 504);
    cluster.kill9(2);
    cluster.wipe(2);
    cluster.start_node(2);
    wait_until("all nodes are of one cluster", || {
        (0..3).all(|node| cluster.ask(node, GET, &entity(b"old", "2/3"), None).status == 404)
    });
    assert_eq!(cluster_id(&cluster, &foreign), own);
}

/// Goal: a node with a wrong `--cluster` list is told which URLs differ. Method: a new node of the same
/// address is started among other nodes. The refusal names the URL that only it lists, and the one that it
/// lacks.
#[test]
fn wrong_list_is_refused_with_its_urls() {
    let mut cluster = Cluster::start(3);
    cluster.kill9(2);
    let mut addresses = cluster.addresses();
    let missing = cluster.url(1);
    let port = addresses[1].port() + 20_000;
    addresses[1].set_port(port);
    let mut wrong = Cluster::at(&addresses, SMALL);
    wrong.set_launch(2, talkative());
    wrong.start_node(2);
    let added = wrong.url(1);
    wait_until("the list is refused", || {
        let log = wrong.log(2);
        let line = log.lines().rfind(|line| line.contains("the --cluster lists differ"));
        line.is_some_and(|line| line.contains(&missing) && line.contains(&added))
    });
}

/// Goal: a node of another protocol version is refused with an error text. Method: the handshake of the version before.
#[test]
fn version_before_is_refused_in_words() {
    let cluster = Cluster::start(2);
    let before = PROTOCOL_OLDEST - 1;
    let headers = format!(
        "Connection: Upgrade\r\nUpgrade: kvorum-peer\r\nKvorum-Protocol: {before}\r\nKvorum-Cluster: kvorum\r\n"
    );
    let mut connection = Connection::open(cluster.address(0), Duration::from_secs(5)).unwrap();
    let answer = connection.exchange(GET, "/v0/peer", &headers, None).unwrap();
    assert_eq!(answer.status, 400, "{answer:?}");
    let expect = format!("version {} at the node that says this, {before} at the other", Protocols::SPOKEN);
    assert!(answer.text().contains(&expect), "{answer:?}");
}

/// Goal: all nodes show the same configuration, which is that of epoch 0, by the command and by the path. Method: both forms
/// of the command on each node, once the cluster has an id.
#[test]
fn all_nodes_show_the_same_configuration() {
    let cluster = Cluster::start(3);
    let show = |node: usize, more: &[&str]| {
        let url = cluster.url(node);
        let output = kvorum(&[&["cluster", "show", "--url", &url], more].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    wait_until("every node knows the cluster's id", || {
        (0..3).all(|node| !show(node, &[]).contains("unknown"))
    });
    let page = show(0, &[]);
    assert!(page.starts_with("epoch 0 stable level 0 cluster ") && page.lines().count() == 4, "{page}");
    assert!((1..3).all(|node| show(node, &[]) == page), "{page}");
    let body: serde_json::Value = serde_json::from_str(&show(1, &["--json"])).unwrap();
    assert!(page.contains(body["hash"].as_str().unwrap()), "{page} {body}");
    assert_eq!(body["members"].as_array().unwrap().len(), 3);
}

/// Goal: a node of a later release that still speaks this version gets an answer in it, and a forged range is refused.
/// Method: the handshake of a node that speaks one version more, and of nodes that speak absurd ones.
#[test]
fn version_after_is_spoken_with() {
    let cluster = Cluster::start(2);
    let ask = |range: &str| {
        let headers = format!(
            "Connection: Upgrade\r\nUpgrade: kvorum-peer\r\nKvorum-Protocol: {PROTOCOL}\r\nKvorum-Protocols: {range}\r\n\
             Kvorum-Cluster: another\r\nKvorum-Cluster-Id: {:032x}\r\nKvorum-Node: {:016x}\r\nKvorum-Topology: {:016x}\r\n\
             Kvorum-Store: {:032x}\r\nKvorum-Run: 1-{:016x}\r\nKvorum-Members: -\r\nKvorum-Clock: 0\r\n",
            0, 1, 0, 1, 1
        );
        let mut connection = Connection::open(cluster.address(0), Duration::from_secs(5)).unwrap();
        let answer = connection.exchange(GET, "/v0/peer", &headers, None).unwrap();
        (answer.status, answer.text().to_string())
    };
    // Both speak a version, so the difference that is named is the next one.
    let (status, text) = ask(&format!("{PROTOCOL}-{}", PROTOCOL + 1));
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("the clusters differ"), "{text}");
    for range in ["1-65535", "0-7", "7-6", "7", "99-100"] {
        let (status, text) = ask(range);
        assert_eq!(status, 400, "{range}: {text}");
        assert!(text.contains("Kvorum-Protocols has the malformed value"), "{range}: {text}");
    }
}

/// Whether the file system of the test keeps birth times; without them no directory is recognised.
fn has_birth_times(name: &str, path: &Path) -> bool {
    let has_them = std::fs::metadata(path).unwrap().created().is_ok();
    if !has_them {
        skip(name, &format!("{} is on a file system without birth times", path.display()));
    }
    has_them
}

/// Goal: a node that is restarted alone serves the requests that it can serve alone. Method: all three nodes
/// are stopped, by SIGTERM or by `kill -9`, and one is started. Requests whose `ACK` it can meet itself
/// succeed, others find too few replicas. The same again after it was killed alone.
#[test]
fn restarted_alone_serves_what_it_can() {
    let mut cluster = Cluster::start(3);
    if !has_birth_times("restarted_alone_serves_what_it_can", cluster.data_dir(0)) {
        return;
    }
    assert_eq!(cluster.ask(0, PUT, &entity(b"key", "3/3"), Some(b"v")).status, 201);
    for round in 0..4 {
        match round {
            0 => (0..3).for_each(|node| cluster.terminate(node)),
            1 => cluster.kill9_all(),
            _ => cluster.kill9(1),
        }
        if round == 1 {
            cluster.start_all();
            cluster.kill9_all();
        }
        cluster.start_node(1);
        assert_eq!(cluster.ask(1, GET, &entity(b"key", "1/3"), None).body, b"v", "round {round}");
        assert_eq!(cluster.ask(1, GET, &entity(b"none", "1/3"), None).status, 404);
        assert_eq!(cluster.ask(1, PUT, &entity(b"alone", "1/3"), Some(b"w")).status, 201);
        assert_eq!(cluster.ask(1, GET, &entity(b"alone", "1/3"), None).body, b"w");
        assert_eq!(cluster.ask(1, GET, &entity(b"key", "2/3"), None).status, 504);
    }
    cluster.start_all();
    wait_until("the others have what it took alone", || {
        cluster.ask(0, GET, &entity(b"alone", "3/3"), None).body == b"w"
    });
}

/// Goal: a directory that was copied, moved or restored serves nothing alone, however often it is started;
/// once the node has met a majority it does. Method: each is done to a stopped node's directory, which is
/// then started alone, twice.
#[test]
fn copied_moved_or_restored_serves_nothing_alone() {
    let mut cluster = Cluster::start(3);
    if !has_birth_times("copied_moved_or_restored_serves_nothing_alone", cluster.data_dir(0)) {
        return;
    }
    assert_eq!(cluster.ask(0, PUT, &entity(b"key", "3/3"), Some(b"v")).status, 201);
    for done in ["copied", "moved", "written over in place"] {
        cluster.kill9_all();
        let copy = cluster.copy_of_data_dir(0);
        match done {
            "copied" => cluster.put_back(0, &copy),
            "moved" => {
                let moved = cluster.data_dir(0).with_extension("moved");
                std::fs::rename(cluster.data_dir(0), &moved).unwrap();
                cluster.set_data_dir(0, moved);
            }
            _ => {
                cluster.start_node(0);
                cluster.kill9(0);
                cluster.write_over(0, &copy);
            }
        }
        for _ in 0..2 {
            cluster.start_node(0);
            for (method, body) in [(GET, None), (PUT, Some(&b"v"[..]))] {
                let answer = cluster.ask(0, method, &entity(b"key", "1/3"), body);
                assert_eq!(answer.status, 504, "{done}: {}", answer.text());
            }
            cluster.kill9(0);
        }
        cluster.start_node(1);
        cluster.start_node(0);
        // The other replica alone could answer the GET: what counts is that this node has met a majority itself.
        wait_until("two have met", || {
            cluster
                .try_ask(0, GET, "/v0/status", None)
                .is_ok_and(|status| status.text().contains("votes yes"))
        });
        assert_eq!(cluster.ask(0, GET, &entity(b"key", "1/3"), None).body, b"v");
        cluster.kill9_all();
        cluster.start_node(0);
        assert_eq!(cluster.ask(0, GET, &entity(b"key", "1/3"), None).body, b"v", "{done}, and met since");
        cluster.start_all();
    }
}

/// Goal: the other nodes' memory exposes an older copy of a directory, although nothing was purged since.
/// Method: a node's directory is copied. The node is started again and takes writes that one other node has
/// as well. The copy comes back while that one is down. The node does not say that the writes are absent, and
/// votes again once it has been refilled.
#[test]
fn older_copy_is_refilled_before_it_votes() {
    older_copy_is_refilled(0);
}

/// The same, if the copy was started twice before the other node answers: its run has a higher number than the one that the other
/// node saw (seed 2023317931).
#[test]
fn older_copy_that_was_started_twice_is_refilled_before_it_votes() {
    older_copy_is_refilled(2);
}

fn older_copy_is_refilled(starts_alone: u8) {
    let mut cluster = Cluster::start(3);
    let keys: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![b'k', number]).collect();
    cluster.kill9(0);
    let copy = cluster.copy_of_data_dir(0);
    cluster.start_node(0);
    cluster.wait_until_connected();
    cluster.kill9(2);
    for key in &keys {
        assert_eq!(cluster.ask(1, PUT, &entity(key, "2/3"), Some(b"v")).status, 201);
    }
    cluster.kill9(0);
    cluster.kill9(1);
    cluster.put_back(0, &copy);
    for _ in 0..starts_alone {
        cluster.start_node(0);
        cluster.kill9(0);
    }
    // The third node missed all of these writes, and remembers only that the node was in a later run.
    cluster.start_node(2);
    cluster.start_node(0);
    wait_until("the older copy is told", || {
        cluster.log(0).contains("another node saw a later run of this node")
    });
    for key in &keys {
        for node in [0, 2] {
            let status = cluster.ask(node, GET, &entity(key, "2/3"), None).status;
            assert_ne!(status, 404, "{} at node {node}", key.escape_ascii());
        }
    }
    cluster.start_node(1);
    wait_until("it is refilled", || cluster.ask(0, GET, "/v0/status", None).text().contains("votes yes"));
    assert!(keys.iter().all(|key| cluster.ask(0, GET, &entity(key, "2/3"), None).body == b"v"));
}

/// Goal: trust in a store is a command for one start, not a setting. Method: a copied directory votes in the
/// start after `trust-store`, a second copy of it does not. As flags both words are refused, and the error
/// names the command. On a running node's directory and on a missing one the commands are refused.
#[test]
fn words_are_for_one_start() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.ask(0, PUT, &entity(b"key", "3/3"), Some(b"v")).status, 201);
    let said = kvorum(&["trust-store"]).arg(cluster.data_dir(0)).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(2) && text.contains("stop the node first"), "{text}");
    let nowhere = cluster.data_dir(0).with_extension("nowhere");
    let said = kvorum(&["trust-store"]).arg(&nowhere).output().unwrap();
    assert!(said.status.code() == Some(2) && !nowhere.exists());
    cluster.kill9_all();
    let put_back = |cluster: &Cluster| {
        let copy = cluster.copy_of_data_dir(0);
        cluster.put_back(0, &copy);
    };
    put_back(&cluster);
    cluster.vouch(0, "trust-store");
    cluster.start_node(0);
    assert_eq!(cluster.ask(0, GET, &entity(b"key", "1/3"), None).body, b"v");
    cluster.kill9(0);
    put_back(&cluster);
    cluster.start_node(0);
    assert_eq!(cluster.ask(0, GET, &entity(b"key", "1/3"), None).status, 504, "for one start only");
    for (flag, command) in
        [("--new-cluster", "kvorum bootstrap DIR"), ("--trust-store", "kvorum trust-store DIR")]
    {
        for value in ["yes", "no"] {
            let said = kvorum(&["serve", flag, value]).output().unwrap();
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.status.code() == Some(2) && text.contains(command), "{flag} {value}: {text}");
        }
    }
}

/// Goal: a replica that does not vote yet is asked again, so a new cluster never answers 504 after its nodes
/// have said that they are ready. Method: new clusters; as soon as the last node is ready, writes and reads
/// through every node.
#[test]
fn fresh_cluster_answers_when_it_says_ready() {
    for round in 0..5 {
        let mut cluster = Cluster::new(3, SMALL);
        for node in 0..3 {
            cluster.spawn(node);
        }
        for node in 0..3 {
            cluster.wait_until_ready(node);
        }
        for node in 0..3 {
            let key = [b'k', node as u8];
            let written = cluster.ask(node, PUT, &entity(&key, "2/3"), Some(b"v"));
            assert_eq!(written.status, 201, "round {round}: {}", written.text());
            let read = cluster.ask(node, GET, &entity(&key, "2/3"), None);
            assert_eq!(read.status, 200, "round {round}: {}", read.text());
        }
    }
}

/// Goal: a request that reaches a replica which has just started waits for it, up to its deadline. Method:
/// two of three nodes with copied directories, so that they meet each other before they vote; a request is
/// sent before the second one is up.
#[test]
fn request_waits_for_a_replica_that_does_not_vote_yet() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB", "--request-timeout", "20s"]);
    cluster.start_all();
    assert_eq!(cluster.ask(0, PUT, &entity(b"key", "3/3"), Some(b"v")).status, 201);
    cluster.kill9_all();
    for node in 0..2 {
        let copy = cluster.copy_of_data_dir(node);
        cluster.put_back(node, &copy);
    }
    cluster.start_node(0);
    let address = cluster.address(0);
    let asked: Vec<_> = [(GET, None), (PUT, Some(&b"w"[..]))]
        .into_iter()
        .map(|(method, body)| {
            let target = entity(b"key", "1/3");
            thread::spawn(move || {
                kvorum_testkit::http::ask(address, method, &target, body, Duration::from_secs(30)).unwrap()
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    cluster.start_node(1);
    let statuses: Vec<u16> = asked.into_iter().map(|asked| asked.join().unwrap().status).collect();
    assert_eq!(statuses, [200, 201]);
}
