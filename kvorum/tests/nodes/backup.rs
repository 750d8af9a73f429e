//! Goal: a backup has every acknowledged write, is found damaged when it is, and is restored into a cluster of any size.
//! Method: real nodes, the real command line, and the keys and values that were written as the model.

use crate::membership::{self, begin_change, cluster_command, end_change};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::node::Node;
use kvorum_testkit::process::{kvorum, run};
use kvorum_testkit::{escape, noise};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn backup(words: &[&str], folder: &Path, more: &[&str]) -> Output {
    run(kvorum(&[&["backup"], words].concat()).arg(folder).args(more), b"")
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

fn put(cluster: &Cluster, key: &[u8], value: &[u8], more: &str) {
    let answer = cluster.ask(0, "PUT", &format!("/v0/entity?id={}{more}", escape(key)), Some(value));
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// Every live record that a node of the cluster shows.
fn shown(scan: &Output) -> Model {
    let text = String::from_utf8(scan.stdout.clone()).unwrap();
    let record = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        // Hostile keys are made so that they and their values are text.
        let text = |name: &str| line[name].as_str().unwrap().as_bytes().to_vec();
        (text("key"), text("value"))
    };
    text.lines().map(record).collect()
}

/// Every live record with its version.
fn versions(url: &str) -> BTreeMap<String, String> {
    let scan = run(kvorum(&["scan", "--json", "--url", url]).arg("\u{1}"), b"");
    let text = String::from_utf8(scan.stdout).unwrap();
    let record = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("key"), text("version"))
    };
    text.lines().map(record).collect()
}

fn scan(url: &str) -> Model {
    shown(&run(kvorum(&["scan", "--json", "--url", url]).arg("\u{1}"), b""))
}

/// Hostile keys, an empty value, and enough bytes for several packs.
fn fill(cluster: &Cluster) -> Model {
    let mut model = Model::new();
    for key in ["a", "a/\u{1}", "\u{1}", "plus+ %00 &=", "ключ\u{202e}"] {
        model.insert(key.as_bytes().to_vec(), format!("value of {key}").into_bytes());
    }
    model.insert(b"empty".to_vec(), Vec::new());
    for number in 0..12 {
        let text: String = noise(1 << 20, number).iter().map(|byte| char::from(b'a' + byte % 26)).collect();
        model.insert(format!("large/{number:03}").into_bytes(), text.into_bytes());
    }
    for number in 0..300 {
        model.insert(format!("small/{number:04}").into_bytes(), format!("{number}").into_bytes());
    }
    for (key, value) in &model {
        put(cluster, key, value, "");
    }
    model
}

fn packs(folder: &Path) -> Vec<PathBuf> {
    let mut packs: Vec<_> =
        std::fs::read_dir(folder.join("packs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    packs.sort();
    packs
}

/// The whole life of backups: made while a node is away, the second one sharing packs, restored into one node and into
/// five, under a prefix, pruned.
#[test]
fn backup_is_restored_into_other_sizes() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let mut cluster = Cluster::start(3);
    let mut model = fill(&cluster);
    put(&cluster, b"deleted", b"x", "");
    assert_eq!(cluster.ask(0, "DELETE", "/v0/entity?id=deleted", None).status, 202);
    put(&cluster, b"short", b"x", "&ttl=1ms");
    put(&cluster, b"kept", b"for a day", "&ttl=1d");
    model.insert(b"kept".to_vec(), b"for a day".to_vec());
    // A read quorum is enough.
    cluster.kill9(2);
    let url = cluster.url(0);
    let said = done(backup(&["create"], &folder, &["--url", &url]));
    assert!(said.contains(&format!("{} records", model.len())), "{said}");
    let verified = done(backup(&["verify"], &folder, &[]));
    assert!(verified.contains("all their records"), "{verified}");

    assert!(said.contains("4096 of 4096 partitions and"), "{said}");
    assert!(said.contains(&format!("without {}", cluster.url(2))), "{said}");

    // One key changes: the next backup reads its partition alone, and shares the packs of the others, and the first one stays what it was.
    let before = packs(&folder);
    assert!(before.len() >= 2, "{before:?}");
    put(&cluster, b"small/0299", b"changed", "");
    thread::sleep(Duration::from_secs(1));
    let said = done(backup(&["create"], &folder, &["--url", &url]));
    assert!(said.contains("(1 new), 1 of 4096 partitions and 1 values read"), "{said}");
    let listed = done(backup(&["list"], &folder, &[]));
    let ids: Vec<&str> = listed.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ids.len(), 2, "{listed}");

    // The first one, into a single node.
    let single = Node::start_new(&[]);
    let said = done(backup(&["restore"], &folder, &[ids[0], "--url", &single.url()]));
    assert!(said.contains("read back and compared"), "{said}");
    assert_eq!(scan(&single.url()), model);
    let kept = single.get("id=kept");
    assert!(kept.header("kvorum-expires").is_some(), "{kept:?}");
    // Nothing is mixed with what is there, unless it goes under a prefix.
    refused(&backup(&["restore"], &folder, &["--url", &single.url()]), 2, "nothing was written");
    assert_eq!(scan(&single.url()), model);
    single.put("id=b%2Fa", b"mine");
    refused(&backup(&["restore"], &folder, &["--url", &single.url(), "--prefix", "b/"]), 2, "such as b/a");
    done(backup(&["restore"], &folder, &[ids[0], "--url", &single.url(), "--prefix", "old/%01"]));
    let moved: Model =
        model.iter().map(|(key, value)| ([b"old/\x01", &key[..]].concat(), value.clone())).collect();
    let found: Model = scan(&single.url()).into_iter().filter(|(key, _)| key.starts_with(b"old/")).collect();
    assert_eq!(found, moved);

    // The latest, into five nodes.
    model.insert(b"small/0299".to_vec(), b"changed".to_vec());
    let five = Cluster::start(5);
    done(backup(&["restore"], &folder, &["--url", &five.url(3)]));
    assert_eq!(scan(&five.url(1)), model);

    let said = done(backup(&["prune"], &folder, &["--keep", "1"]));
    assert!(said.starts_with("1 backups kept, 1 removed, and 1 packs"), "{said}");
    done(backup(&["verify"], &folder, &[]));
    refused(&backup(&["verify"], &folder, &[ids[0]]), 2, "no backup");
}

/// A restore that ended in the middle goes on, and never writes over what somebody has written since.
#[test]
fn restore_goes_on_where_it_ended() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(3);
    let mut model = fill(&cluster);
    done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    let single = Node::start_new(&[]);
    let long = "long".repeat(256).into_bytes();
    put(&cluster, &long, b"the longest key", "");
    thread::sleep(Duration::from_secs(1));
    done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    model.insert(long, b"the longest key".to_vec());
    // As after an interruption: some records are there.
    for (key, value) in model.iter().filter(|(key, _)| key.ends_with(b"1")) {
        assert_eq!(single.put(&format!("id={}", escape(key)), value).status, 201);
    }
    let resumed = |more: &[&str]| {
        let words = ["--url", &single.url(), "--resume", "--new-versions"];
        backup(&["restore"], &folder, &[&words, more].concat())
    };
    let said = done(resumed(&[]));
    let there = model.keys().filter(|key| key.ends_with(b"1")).count();
    assert!(said.contains(&format!("{} records written, {there} were there", model.len() - there)), "{said}");
    assert_eq!(scan(&single.url()), model);
    single.put("id=a", b"newer");
    refused(&resumed(&[]), 3, "1 have another value, such as a");
    assert_eq!(single.get("id=a").text(), "newer");
    // A backup under a prefix: 1,024 bytes of a key are the limit, prefix and all.
    refused(&resumed(&["--prefix", "%01"]), 2, "more than 1024 bytes");
}

/// Goal: a restore keeps versions and expiry instants, in a cluster of another size, whatever is done there afterwards. Method:
/// plain writes, an edit, a conditional write and one that expires; the versions of both clusters side by side; and an old `ETag` as
/// a condition in the new cluster.
#[test]
fn restored_records_keep_their_versions() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(3);
    fill(&cluster);
    put(&cluster, b"kept", b"for a day", "&ttl=1d");
    assert_eq!(cluster.ask(0, "POST", "/v0/entity?id=count&add=5", None).status, 200);
    put(&cluster, b"deleted", b"x", "");
    assert_eq!(cluster.ask(0, "DELETE", "/v0/entity?id=deleted", None).status, 202);
    done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    let before = versions(&cluster.url(0));
    for size in [5, 1] {
        let target = Cluster::start(size);
        // A key that was there once is empty, and no obstacle.
        put(&target, b"a", b"earlier", "");
        assert_eq!(target.ask(0, "DELETE", "/v0/entity?id=a", None).status, 202);
        let said = done(backup(&["restore"], &folder, &["--url", &target.url(0)]));
        assert!(said.contains("with their versions, read back and compared"), "{said}");
        assert_eq!(versions(&target.url(size - 1)), before, "{size} nodes");
        let header = |cluster: &Cluster, name: &str| {
            let answer = cluster.ask(0, "GET", "/v0/entity?id=kept", None);
            answer.header(name).unwrap().to_owned()
        };
        for name in ["etag", "kvorum-expires", "last-modified"] {
            assert_eq!(header(&target, name), header(&cluster, name), "{name}");
        }
        // Once more: what is there stays, and counts as there.
        let said = done(backup(&["restore"], &folder, &["--url", &target.url(0), "--resume"]));
        assert!(said.contains(&format!(" 0 records written, {} were there", before.len())), "{said}");
        // The same for a single record whose first answer was lost, as the client of the restore sends it.
        let client = kvorum_client::Client::builder().node(target.url(0)).build().unwrap();
        let version = kvorum_client::Version::from(before["empty"].clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let again = runtime.block_on(client.restore("empty", "", &version, None)).unwrap();
        assert_eq!(again, version);
        // Edits and conditions go on from the version that a client knows.
        let mut connection =
            kvorum_testkit::http::Connection::open(target.address(0), kvorum_testkit::PATIENCE).unwrap();
        let condition = format!("Connection: close\r\nIf-Match: \"{}\"\r\n", before["a"]);
        let changed = connection.exchange("PUT", "/v0/entity?id=a", &condition, Some(b"changed")).unwrap();
        assert_eq!(changed.status, 201, "{changed:?}");
        assert!(
            *changed.header("etag").unwrap().trim_matches('"') > *before["a"],
            "later versions are higher"
        );
        assert_eq!(target.ask(0, "POST", "/v0/entity?id=count&add=2", None).text(), "7");
        // It is not written over: neither by a restore that goes on, nor by a single record.
        refused(
            &backup(&["restore"], &folder, &["--url", &target.url(0), "--resume"]),
            3,
            "2 have another value",
        );
        let single = format!("/admin/entity?id=a&version={}", before["a"]);
        assert_eq!(target.ask(0, "PUT", &single, Some(b"old")).status, 412);
        assert_eq!(target.ask(0, "GET", "/v0/entity?id=a", None).text(), "changed");
        // A version from the future is not believed.
        let future = format!("/admin/entity?id=new&version={:016x}-{:016x}", u64::MAX / 2, 1);
        let refused = target.ask(0, "PUT", &future, Some(b"x"));
        assert!(refused.status >= 400, "{refused:?}");
        assert_eq!(target.ask(0, "GET", "/v0/entity?id=new", None).status, 404);
    }
}

/// Goal: the next backup of a partition with a change reads only what has changed, also of a lone node, which keeps no digests.
/// Method: large values, one small change, and a rate that would not let the large ones through in time: the bytes that the
/// nodes send are counted by the backup's own words.
#[test]
fn only_changed_values_are_read() {
    for size in [3, 1] {
        let home = TempDir::with_prefix("kvorum-backup-").unwrap();
        let folder = home.path().join("backups");
        let cluster = Cluster::start(size);
        let mut model = fill(&cluster);
        let url = cluster.url(0);
        let said = done(backup(&["create"], &folder, &["--url", &url]));
        assert!(said.contains(&format!("{} values read", model.len())), "{size}: {said}");
        put(&cluster, b"large/003", b"small now", "");
        put(&cluster, b"more", b"new", "");
        assert_eq!(cluster.ask(0, "DELETE", "/v0/entity?id=small%2F0007", None).status, 202);
        model.insert(b"large/003".to_vec(), b"small now".to_vec());
        model.insert(b"more".to_vec(), b"new".to_vec());
        model.remove(&b"small/0007"[..]);
        // Two within a second would have one name.
        thread::sleep(Duration::from_secs(1));
        let said = done(backup(&["create"], &folder, &["--url", &url]));
        assert!(said.contains(" 2 values read"), "{size}: {said}");
        done(backup(&["verify"], &folder, &[]));
        let single = Node::start_new(&[]);
        done(backup(&["restore"], &folder, &["--url", &single.url()]));
        assert_eq!(scan(&single.url()), model, "{size}");
    }
}

/// Goal: a node that is killed between arming and closing costs a backup nothing but itself. Method: the steps by hand, the kill
/// between them, then a backup.
#[test]
fn a_node_is_killed_between_arming_and_closing() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let mut cluster = Cluster::start(3);
    let mut model = fill(&cluster);
    let reading = |node: usize| {
        let page = cluster.ask(node, "GET", "/admin/cut", None);
        let page: serde_json::Value = serde_json::from_str(page.text()).unwrap();
        u64::from_str_radix(page["reading"].as_str().unwrap(), 16).unwrap()
    };
    let upto = (0..3).map(reading).max().unwrap() + (1000 << 16);
    for node in 0..3 {
        let armed = cluster.ask(node, "POST", &format!("/admin/cut?arm={upto:016x}&age=60"), None);
        assert_eq!(armed.status, 200, "{armed:?}");
    }
    cluster.kill9(2);
    put(&cluster, b"while it was away", b"1", "");
    model.insert(b"while it was away".to_vec(), b"1".to_vec());
    cluster.start_node(2);
    cluster.wait_until_connected();
    let order = |node: usize, step: &str| {
        cluster.ask(node, "POST", &format!("/admin/cut?{step}={upto:016x}"), None).status
    };
    // The killed node has forgotten its part, and never counts in that cut.
    assert_eq!([0, 1, 2].map(|node| order(node, "close")), [200, 200, 409]);
    let target = format!("/admin/cut/records?cut={upto:016x}&start=%01");
    assert_eq!([0, 1, 2].map(|node| cluster.ask(node, "GET", &target, None).status), [200, 200, 409]);
    // Writes go on meanwhile, at every node.
    for node in 0..3 {
        let written = cluster.ask(node, "PUT", "/v0/entity?id=after&replicas=3/3", Some(b"2"));
        assert_eq!(written.status, 201, "{written:?}");
    }
    model.insert(b"after".to_vec(), b"2".to_vec());
    assert_eq!([0, 1].map(|node| order(node, "drop")), [200, 200]);
    done(backup(&["create"], &folder, &["--url", &cluster.url(2)]));
    let single = Node::start_new(&[]);
    done(backup(&["restore"], &folder, &["--url", &single.url()]));
    assert_eq!(scan(&single.url()), model);
}

/// A restore that is killed while it writes goes on with `--resume`, and is compared at its end like any other.
#[test]
fn killed_restore_goes_on() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(1);
    let model = fill(&cluster);
    done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    let single = Node::start_new(&[]);
    let url = single.url();
    let mut child = kvorum(&["backup", "restore"]).arg(&folder).args(["--url", &url]).spawn().unwrap();
    kvorum_testkit::wait_until("the first record", || single.get("id=a").status == 200);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = done(backup(&["restore"], &folder, &["--url", &url, "--resume"]));
    assert!(said.contains("read back and compared"), "{said}");
    assert_eq!(scan(&url), model);
}

/// A flipped bit, a missing pack, a cut manifest: `verify` finds each at the depth that it is for, and nothing of such a
/// backup is restored.
#[test]
fn damaged_backup_is_never_restored() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(1);
    fill(&cluster);
    done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    let single = Node::start_new(&[]);
    let check = |finds: &[&str], passes: &[&str], words: &str| {
        for depth in finds {
            refused(&backup(&["verify"], &folder, &["--depth", depth]), 3, words);
        }
        for depth in passes {
            done(backup(&["verify"], &folder, &["--depth", depth]));
        }
        refused(&backup(&["restore"], &folder, &["--url", &single.url()]), 3, words);
        assert!(scan(&single.url()).is_empty());
    };
    let pack = packs(&folder).pop().unwrap();
    let whole = std::fs::read(&pack).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&pack, &flipped).unwrap();
    check(&["hashes", "records"], &["files"], "its bytes are not those");
    std::fs::write(&pack, &whole[..whole.len() - 1]).unwrap();
    check(&["files", "hashes", "records"], &[], "bytes instead of");
    std::fs::remove_file(&pack).unwrap();
    check(&["files", "hashes", "records"], &[], "it is missing");
    std::fs::write(&pack, &whole).unwrap();
    done(backup(&["verify"], &folder, &[]));

    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let manifest =
        entries.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "json")).unwrap();
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, &text[..text.len() - 2]).unwrap();
    check(&["files", "hashes", "records"], &[], "checksum");
    refused(&backup(&["list"], &folder, &[]), 3, "damaged");
    // Which packs it needs is not known: nothing is removed.
    refused(&backup(&["prune"], &folder, &["--keep", "1"]), 3, "damaged");
    assert!(!packs(&folder).is_empty());
    std::fs::write(&manifest, &text).unwrap();
    done(backup(&["restore"], &folder, &["--url", &single.url()]));
}

/// A backup that is killed leaves none; the next one is whole. There is more than a pack can hold, so one is kept before
/// the end; the process is stopped there, and cannot end while the test looks.
#[test]
fn killed_backup_does_not_exist() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(1);
    let mut model = fill(&cluster);
    for number in 0..36 {
        let key = format!("more/{number:03}").into_bytes();
        let value = noise(1 << 20, 100 + number);
        put(&cluster, &key, &value, "");
        model.insert(key, value);
    }
    let slow = ["--url", &*cluster.url(0), "--rate", "8"];
    let mut child = kvorum(&["backup", "create"]).arg(&folder).args(slow).spawn().unwrap();
    kvorum_testkit::wait_until("a first pack", || {
        folder.join("packs").exists() && !packs(&folder).is_empty()
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP)
        .unwrap();
    // Another one is refused meanwhile.
    refused(&backup(&["prune"], &folder, &["--keep", "1"]), 3, "another backup");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(done(backup(&["list"], &folder, &[])), "");
    refused(&backup(&["verify"], &folder, &[]), 2, "there is no backup");
    let said = done(backup(&["create"], &folder, &["--url", &cluster.url(0)]));
    assert!(said.contains(&format!("{} records", model.len())), "{said}");
    done(backup(&["verify"], &folder, &[]));
}

/// Goal: under load, a backup has every write that was acknowledged before it began. Method: one client overwrites keys
/// with rising numbers, and says what was acknowledged when the backup begins; the restored values are no older.
#[test]
fn backup_under_load_has_what_was_acknowledged() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(3);
    let keys: Vec<String> = (0..50).map(|number| format!("key/{number:02}")).collect();
    let write = |round: u64| {
        for key in &keys {
            put(&cluster, key.as_bytes(), format!("{round}").as_bytes(), "");
        }
    };
    write(1);
    write(2);
    let acknowledged = 2;
    thread::scope(|scope| {
        let writing = scope.spawn(|| (3..6).for_each(write));
        done(backup(&["create"], &folder, &["--url", &cluster.url(1)]));
        writing.join().unwrap();
    });
    let single = Node::start_new(&[]);
    done(backup(&["restore"], &folder, &["--url", &single.url()]));
    let restored = scan(&single.url());
    assert_eq!(restored.len(), keys.len());
    for (key, value) in restored {
        let round: u64 = String::from_utf8(value).unwrap().parse().unwrap();
        assert!((acknowledged..6).contains(&round), "{key:?} {round}");
    }
}

/// Goal: a second backup of an unchanged store reads no value, and has all records all the same; a damaged pack is no base.
#[test]
fn unchanged_partitions_are_not_read() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(3);
    let model = fill(&cluster);
    let url = cluster.url(0);
    let create = || {
        // Two within a second would have one name.
        thread::sleep(Duration::from_secs(1));
        done(backup(&["create"], &folder, &["--url", &url]))
    };
    done(run(kvorum(&["repair", "--url", &url]).arg("--node").arg(&url), b""));
    create();
    let said = create();
    assert!(said.contains("(0 new), 0 of 4096 partitions and 0 values read"), "{said}");
    done(backup(&["verify"], &folder, &[]));
    let single = Node::start_new(&[]);
    done(backup(&["restore"], &folder, &["--url", &single.url()]));
    assert_eq!(scan(&single.url()), model);
    let pack = packs(&folder).pop().unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let said = create();
    assert!(said.contains("4096 of 4096 partitions and"), "{said}");
    done(backup(&["verify"], &folder, &[]));
}

/// Goal: a node that dies while it is read costs the backup nothing, as long as the others are a read quorum; otherwise the
/// backup fails, and does not exist.
#[test]
fn backup_goes_on_without_a_node_but_not_without_a_quorum() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let mut cluster = Cluster::start(3);
    let mut model = fill(&cluster);
    // So many that the sockets cannot hold all that the node has left to say when it is killed.
    for number in 0..96 {
        let key = format!("more/{number:03}").into_bytes();
        let text: Vec<u8> = noise(1 << 20, 100 + number).iter().map(|byte| b'a' + byte % 26).collect();
        put(&cluster, &key, &text, "");
        model.insert(key, text);
    }
    let url = cluster.url(0);
    let slow = ["--url", &*url, "--rate", "16"];
    let child = kvorum(&["backup", "create"])
        .arg(&folder)
        .args(slow)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    kvorum_testkit::wait_until("a first pack", || {
        folder.join("packs").exists() && !packs(&folder).is_empty()
    });
    cluster.kill9(2);
    let said = done(child.wait_with_output().unwrap());
    assert!(said.contains(&format!("{} records", model.len())), "{said}");
    assert!(said.contains(&format!("without {}", cluster.url(2))), "{said}");
    done(backup(&["verify"], &folder, &[]));
    let single = Node::start_new(&[]);
    done(backup(&["restore"], &folder, &["--url", &single.url()]));
    assert_eq!(scan(&single.url()), model);

    cluster.kill9(1);
    let other = home.path().join("other");
    refused(&backup(&["create"], &other, &["--url", &url]), 3, "lack a read quorum");
    assert_eq!(done(backup(&["list"], &other, &[])), "");
}

/// What each of six writers was answered: it overwrites its key with rising numbers, at a node of `nodes`, while `meanwhile` runs.
fn written_while(cluster: &Cluster, nodes: &[usize], meanwhile: impl FnOnce()) -> Vec<Vec<String>> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let write = |writer: usize| {
            let mut versions = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let target = format!("/v0/entity?id=key/{writer}");
                let value = versions.len().to_string();
                let answer = cluster.ask(nodes[writer % nodes.len()], "PUT", &target, Some(value.as_bytes()));
                assert_eq!(answer.status, 201, "{answer:?}");
                versions.push(answer.header("etag").unwrap().trim_matches('"').to_owned());
            }
            versions
        };
        let writers: Vec<_> = (0..6).map(|writer| scope.spawn(move || write(writer))).collect();
        let end = kvorum_testkit::RaiseOnDrop(&is_over);
        thread::sleep(Duration::from_millis(500));
        meanwhile();
        thread::sleep(Duration::from_millis(500));
        drop(end);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

/// The backup in `folder` has of each key the last number that was acknowledged at or below its instant, or the one that was under
/// way then.
#[track_caller]
fn assert_exact(folder: &Path, written: &[Vec<String>]) {
    let folder = kvorum_backup::Folder::open(folder).unwrap();
    let manifest = folder.manifest(None).unwrap();
    let upto = manifest.cut.unwrap().upto;
    let mut kept = BTreeMap::new();
    for entry in &manifest.packs {
        kept.extend(folder.records(entry).unwrap().into_iter().map(|record| (record.key.clone(), record)));
    }
    for (writer, versions) in written.iter().enumerate() {
        let acknowledged = versions.iter().filter(|version| version[..16] <= upto[..]).count();
        let has_gone_on = acknowledged > 0 && acknowledged < versions.len();
        assert!(has_gone_on, "the load went on around the instant: {acknowledged} of {}", versions.len());
        let record = &kept[format!("key/{writer}").as_bytes()];
        assert!(record.version[..16] <= upto[..], "{record:?} {upto}");
        let number: usize = String::from_utf8(record.value.to_vec()).unwrap().parse().unwrap();
        let is_last = number + 1 == acknowledged && record.version == versions[number];
        // A write may be under way when the nodes close. Then its first record may be in the backup, though its ballot leaves it behind. Or
        // nothing of it is, though its client is told of a version below the instant. That version was stamped after the clocks
        // were read, so at most a second below.
        let millis = |version: &str| u64::from_str_radix(&version[..12], 16).unwrap();
        let is_late = |version: &String| millis(version) + 1000 >= millis(&upto);
        let is_under_way = number == acknowledged && !versions.contains(&record.version)
            || number + 2 == acknowledged
                && record.version == versions[number]
                && is_late(&versions[number + 1]);
        assert!(is_last || is_under_way, "{record:?} of {acknowledged} up to {upto}: {versions:?}");
    }
}

/// Goal: an exact backup equals the model at its instant, under load. Method: one writer for each of some keys overwrites it
/// with rising numbers and notes the version of each.
#[test]
fn exact_backup_equals_the_model_at_its_instant() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let folder = home.path().join("backups");
    let cluster = Cluster::start(3);
    let written = written_while(&cluster, &[0, 1, 2], || {
        done(backup(&["create"], &folder, &["--url", &cluster.url(1)]));
    });
    assert_exact(&folder, &written);
}

/// Goal: exact backups that are made while members come and go are as exact as any. Method: the same writers; one backup after the other
/// is made while one node takes the place of another.
#[test]
fn backups_are_exact_while_members_change() {
    let home = TempDir::with_prefix("kvorum-backup-").unwrap();
    let mut cluster = Cluster::new(4, &["--memory-budget", "16MiB"]);
    cluster.set_launch(3, Launch { joins: vec![cluster.url(0)], ..Launch::default() });
    (0..4).for_each(|node| cluster.spawn(node));
    for node in 0..3 {
        cluster.wait_until_ready(node);
    }
    kvorum_testkit::wait_until("the level is raised", || {
        cluster_command(&cluster, 0, &["upgrade"]).status.success()
    });
    let (old, new) = (cluster.url(1), cluster.url(3));
    let folders: Vec<PathBuf> = (0..40).map(|number| home.path().join(number.to_string())).collect();
    let mut made = 0;
    let written = written_while(&cluster, &[0, 2], || {
        begin_change(&cluster, 0, &["replace", &old, &new]);
        for (folder, url) in folders.iter().zip([cluster.url(0), cluster.url(2)].iter().cycle()) {
            let is_over = shown_phase(&cluster) == "stable";
            done(backup(&["create"], folder, &["--url", url]));
            made += 1;
            if is_over {
                break;
            }
        }
    });
    end_change(&cluster, 0);
    assert!(made > 1, "the change took less than one backup");
    for folder in &folders[..made] {
        assert_exact(folder, &written);
    }
    // Of the slots one is unused now: the places of nodes are other numbers.
    let said = done(backup(&["create"], &home.path().join("last"), &["--url", &new]));
    assert!(said.contains("6 records"), "{said}");
}

fn shown_phase(cluster: &Cluster) -> String {
    membership::shown(cluster, 0)["phase"].as_str().unwrap_or_default().to_owned()
}
