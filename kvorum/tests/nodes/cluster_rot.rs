//! Damaged disks: bits flip in the files of a node that runs under load, and of one that then cannot open its
//! store. No acknowledged write is lost and no wrong value is served. Without an operator the node sets the
//! store aside, is refilled and votes again.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::disk::{damage_tables, flip_bit, newest_journal};
use kvorum_testkit::history::{Class, History, Moment};
use kvorum_testkit::load::cluster::{Load, report, settle};
use kvorum_testkit::session::Session;
use kvorum_testkit::{seed, wait_until};
use std::collections::BTreeSet;
use std::path::Path;

const QUORUMS: Class = Class::default(2, 3);
const ALL: Class = Class::new("all", (3, 3), (2, 3));
/// Small memtables, so that a test's data is in tables, and frequent scrubs, which find damage in records
/// that no request reads.
const SMALL: &[&str] =
    &["--memory-budget", "16MiB", "--durability", "os", "--scrub-interval", "1s", "--request-timeout", "10s"];

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn status(cluster: &Cluster, node: usize) -> String {
    cluster.ask(node, "GET", "/v0/status", None).text().to_owned()
}

/// Three nodes whose records are in tables on each of them.
fn filled() -> (Cluster, History) {
    let mut cluster = Cluster::new(3, SMALL);
    cluster.start_all();
    let mut session = Session::of_all(&cluster.addresses());
    for number in 0..6_000 {
        assert_eq!(session.put_at(0, ALL, &key(number), 1_000), 201);
    }
    for node in 0..3 {
        wait_until("tables have been flushed", || {
            cluster.metric(node, "kvorum_tables") >= 2
                && cluster.metric(node, "kvorum_compactions_running") == 0
        });
    }
    (cluster, session.history)
}

fn quarantined(data_dir: &Path) -> usize {
    let folder = std::fs::read_dir(data_dir.join("quarantine"));
    folder.map_or(0, |folder| folder.filter(|it| it.as_ref().unwrap().path().is_dir()).count())
}

/// Bits flip in all tables of a node while clients read and write through all three.
#[test]
fn damaged_tables_of_a_running_node_are_healed() {
    let (cluster, mut history) = filled();
    let load = Load {
        fixed: 3,
        roaming: 3,
        classes: &[(QUORUMS, 1)],
        keys: (3, 3_000),
        puts: 40,
        deletes: 5,
        bytes: (24, 1_000, 70_000),
        pause: std::time::Duration::from_millis(2),
    };
    let (mut damaged, mut healed) = (0, 0);
    let ran = load.run(&cluster.addresses(), &[0, 1, 2], seed("rot"), |_| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        damaged = Moment::now().mono;
        damage_tables(cluster.data_dir(2), &mut BTreeSet::new());
        wait_until("the store has been set aside", || {
            cluster.metric(2, "kvorum_stores_set_aside_total") >= 1
        });
        wait_until("the new store votes", || status(&cluster, 2).contains("votes yes"));
        healed = Moment::now().mono;
    });
    report("flipped bits, before", &ran.asked, 0..damaged);
    report("flipped bits, until the new store votes", &ran.asked, damaged..healed);
    println!("figures: flipped bits: the new store votes after {} ms", (healed - damaged) / 1_000_000);
    history.absorb(ran);
    // Records that the load did not read while the store was damaged are there as well.
    let mut session = Session::of_all(&cluster.addresses());
    for number in (0..6_000).step_by(7) {
        assert_eq!(session.get_at(2, ALL, &key(number)), 200);
    }
    history.absorb(session.history);
    settle(&cluster, &mut history, "damaged tables of a running node");
    assert_eq!(quarantined(cluster.data_dir(2)), 1, "{}", cluster.log(2));
    let said = status(&cluster, 2);
    assert!(!said.contains("damage") && said.contains("store ok"), "{said}");
    for node in [0, 1] {
        assert_eq!(cluster.metric(node, "kvorum_stores_set_aside_total"), 0, "{}", cluster.log(node));
    }
}

/// While another node is down a damaged store stays in use as far as it can be read; it is set aside when
/// that node is back. With two stores that lack records, records that are only in them would be lost.
#[test]
fn damaged_store_waits_for_the_others() {
    let (mut cluster, mut history) = filled();
    for node in [1, 2] {
        history.killed(node);
        cluster.kill9(node);
    }
    damage_tables(cluster.data_dir(2), &mut BTreeSet::new());
    // Started again, so that it reads its files and not its cache.
    cluster.start_node(2);
    wait_until("the damage is found", || status(&cluster, 2).contains("store-damage"));
    let walks = cluster.metric(2, "kvorum_scrubs_total");
    wait_until("it was walked again", || cluster.metric(2, "kvorum_scrubs_total") > walks + 2);
    assert_eq!(cluster.metric(2, "kvorum_stores_set_aside_total"), 0);
    assert!(status(&cluster, 2).contains("votes yes"), "{}", status(&cluster, 2));
    cluster.start_node(1);
    wait_until("the store has been set aside", || cluster.metric(2, "kvorum_stores_set_aside_total") >= 1);
    wait_until("the new store votes", || status(&cluster, 2).contains("votes yes"));
    settle(&cluster, &mut history, "a damaged store while another node is away");
}

/// The name of the damage, and the function that does it.
type Damage<'a> = (&'a str, &'a dyn Fn(&Cluster));

/// A store that cannot be opened: the node creates a new one by itself, and keeps the damaged files.
#[test]
fn store_that_cannot_be_opened_is_set_aside() {
    let (mut cluster, mut history) = filled();
    let journal = |cluster: &Cluster| newest_journal(cluster.data_dir(2));
    let damages: [Damage<'_>; 3] = [
        ("a journalled value", &|cluster| {
            let bytes = std::fs::read(journal(cluster)).unwrap();
            let begin = memchr::memmem::find(&bytes, b"key-").unwrap() as u64;
            flip_bit(&journal(cluster), begin, 2);
        }),
        ("the version of the engine's files", &|cluster| {
            flip_bit(&cluster.data_dir(2).join("store/version"), 0, 1);
        }),
        ("the list of tables", &|cluster| {
            for folder in std::fs::read_dir(cluster.data_dir(2).join("store/keyspaces")).unwrap() {
                for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
                    let path = file.unwrap().path();
                    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                    let bytes = path.metadata().unwrap().len();
                    if name.starts_with('v') && path.is_file() && bytes > 0 {
                        flip_bit(&path, bytes / 2, 1);
                    }
                }
            }
        }),
    ];
    for (nth, (name, damage)) in damages.iter().enumerate() {
        // Some records for the newest journal.
        let mut session = Session::of_all(&cluster.addresses());
        for number in 0..40 {
            assert_eq!(session.put_at(0, ALL, &key(number), 1_000), 201);
        }
        history.absorb(session.history);
        history.killed(2);
        cluster.kill9(2);
        damage(&cluster);
        cluster.start_node(2);
        wait_until("the new store votes", || status(&cluster, 2).contains("votes yes"));
        assert_eq!(quarantined(cluster.data_dir(2)), (nth + 1).min(2), "{name}:\n{}", cluster.log(2));
        settle(&cluster, &mut history, name);
        println!("counts: {name}: set aside and refilled");
    }
}
