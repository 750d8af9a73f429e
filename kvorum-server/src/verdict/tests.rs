//! Goal: each state of a cluster has the right verdict and the right alarms. Method: a table of states.

use super::*;
use serde_json::json;

const URLS: [&str; 3] = ["http://a:1", "http://b:1", "http://c:1"];

/// The status of the node at `index`, with these fields changed.
fn status(index: usize, changes: &serde_json::Value) -> NodeView {
    let peers: Vec<_> = (0..3)
        .filter(|other| *other != index)
        .map(|other| json!({"url": URLS[other], "state": "up", "votes": true, "clock_offset_ms": 1}))
        .collect();
    let mut all = json!({
        "serving": "ok", "state": "ready", "version": "1", "quorum": {"ack": 2, "from": 3},
        "store": {"state": "ok", "votes": "yes"}, "converged": {"lag_ms": 25_400},
        "clock": {"offset_max_ms": 500}, "disk": {"free_bytes": 500, "size_bytes": 1000}, "peers": peers,
    });
    for (path, value) in changes.as_object().unwrap() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        all.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    NodeView::of(&all).unwrap()
}

fn healthy(index: usize) -> Seen {
    Seen::answered(URLS[index], status(index, &json!({})))
}

fn changed(index: usize, changes: &serde_json::Value) -> Seen {
    Seen::answered(URLS[index], status(index, changes))
}

fn silent(index: usize) -> Seen {
    Seen { url: URLS[index].to_owned(), known: Known::Silent { reason: "connection refused".to_owned() } }
}

#[track_caller]
fn check(nodes: &[Seen], reads_and_writes: (bool, bool), sentence: &str, alarms: &[(&str, &str)]) {
    let verdict = judge(nodes);
    let raised: Vec<_> = verdict.alarms.iter().map(|alarm| (alarm.name, alarm.sentence.as_str())).collect();
    assert_eq!((verdict.reads, verdict.writes), reads_and_writes, "{verdict:?}");
    assert_eq!(verdict.sentence, sentence);
    assert_eq!(raised, alarms);
}

#[test]
fn all_nodes_are_well() {
    let sentence = "3 of 3 nodes up, default reads and writes have a quorum, replicas agree up to 25 s ago";
    check(&[healthy(0), healthy(1), healthy(2)], (true, true), sentence, &[]);
    assert_eq!(judge(&[healthy(0), healthy(1), healthy(2)]).word(), "ok");
    // The same, from the status of one node.
    check(&seen_by(URLS[0], status(0, &json!({}))), (true, true), sentence, &[]);
}

#[test]
fn one_node_is_down() {
    let down = ("node-down", "http://c:1 does not answer: connection refused");
    let sentence = "2 of 3 nodes up, default reads and writes have a quorum, replicas agree up to 25 s ago";
    check(&[healthy(0), healthy(1), silent(2)], (true, true), sentence, &[down]);
    let own = status(0, &json!({"/peers/1/state": "down", "/peers/1/reason": "connection refused"}));
    check(&seen_by(URLS[0], own), (true, true), sentence, &[down]);
}

#[test]
fn two_nodes_are_down() {
    let alone = changed(0, &json!({"/serving": "no-quorum", "/converged": null}));
    let sentence = "1 of 3 nodes up, default reads and writes have no quorum, it is not known yet up to when replicas agree";
    let alarms = [
        ("no-quorum", "default requests through http://a:1 find too few replicas"),
        ("node-down", "http://b:1 does not answer: connection refused"),
        ("node-down", "http://c:1 does not answer: connection refused"),
    ];
    check(&[alone.clone(), silent(1), silent(2)], (false, false), sentence, &alarms);
    assert_eq!(judge(&[alone, silent(1), silent(2)]).word(), "failing");
}

#[test]
fn disks_are_full() {
    let full = |index| changed(index, &json!({"/serving": "disk-full", "/store/state": "disk-full"}));
    let said = |url: &str| format!("the disk of {url} is full: it takes no values, only deletions");
    let (b, c) = (said(URLS[1]), said(URLS[2]));
    let one = "3 of 3 nodes up, default reads and writes have a quorum, replicas agree up to 25 s ago";
    check(&[healthy(0), healthy(1), full(2)], (true, true), one, &[("disk-full", &c)]);
    let two =
        "3 of 3 nodes up, default reads have a quorum, default writes do not, replicas agree up to 25 s ago";
    check(&[healthy(0), full(1), full(2)], (true, false), two, &[("disk-full", &b), ("disk-full", &c)]);
}

#[test]
fn clocks_differ() {
    let ahead = |index: usize, place: usize| {
        changed(
            index,
            &json!({format!("/peers/{place}/clock_offset_ms"): 30_012, format!("/peers/{place}/clock_offset_error_ms"): 3}),
        )
    };
    let own = changed(2, &json!({"/peers/0/clock_offset_ms": -30_010, "/peers/1/clock_offset_ms": -30_011}));
    let sentence = "3 of 3 nodes up, default reads and writes have a quorum, replicas agree up to 25 s ago";
    let alarm = ("clock-drift", "the clock of http://c:1 is 30 s ahead of that of http://a:1");
    check(&[ahead(0, 1), ahead(1, 1), own], (true, true), sentence, &[alarm]);
}

#[test]
fn other_states_have_their_alarms() {
    for (changes, name, detail) in [
        (json!({"/serving": "starting", "/store/votes": "unknown"}), "not-ready", "starting"),
        (json!({"/serving": "draining"}), "not-ready", "draining"),
        (
            json!({"/serving": "store-failed", "/store/state": "failed", "/store/reason": "EIO"}),
            "store-failed",
            "EIO",
        ),
        (json!({"/serving": "store-waiting", "/store/state": "no-memory"}), "store-waiting", "no-memory"),
        (json!({"/serving": "clock-off"}), "clock-off", ""),
        (
            json!({"/serving": "thread-ended", "/ended": {"part": "commit", "reason": "panicked"}}),
            "node-ending",
            "commit panicked",
        ),
        (
            json!({"/store/votes": "lacks", "/waits_for": "refilling (3 %)"}),
            "not-eligible",
            "refilling (3 %)",
        ),
        (json!({"/store/damage": "a table"}), "store-damaged", "a table"),
        (json!({"/store/damaged_records": 7}), "damaged-records", "7"),
        (json!({"/disk/free_bytes": 99}), "disk-low", "99 B of 1000 B"),
        (json!({"/converged/lag_ms": 7_200_000, "/converged/held_by": "http://b:1"}), "replicas-lag", "2 h"),
        (json!({"/peers/0/hints": {"partitions_to_repair": 5}}), "partitions-to-repair", "5"),
        (json!({"/security": {"certificate_s": 300_000}}), "certificate-expires", "expires in 3 days"),
        (json!({"/security": {"certificate_s": -1}}), "certificate-expires", "has expired"),
        (json!({"/workers": {"paused": ["scrub"]}}), "worker-paused", "scrub"),
        (json!({"/version": "2"}), "mixed-versions", "1, 2"),
    ] {
        let verdict = judge(&[healthy(0), healthy(1), changed(2, &changes)]);
        let raised: Vec<_> = verdict.alarms.iter().map(|alarm| alarm.name).collect();
        assert_eq!(raised, [name], "{changes}");
        assert!(verdict.alarms[0].sentence.contains(detail), "{verdict:?}");
        assert!(verdict.reads && verdict.writes, "one node of three is spare: {changes}");
    }
}

/// A node that has just started knows of no other yet: that is no alarm about the others.
#[test]
fn starting_nodes_do_not_accuse_others() {
    let starting = status(
        0,
        &json!({"/serving": "starting", "/store/state": "opening", "/store/votes": "unknown",
        "/peers": [], "/cluster": URLS, "/converged": null}),
    );
    let sentence = "1 of 3 nodes up, default reads and writes have no quorum, it is not known yet up to when replicas agree";
    let alarm = ("not-ready", "http://a:1 does not serve yet or no longer: it is starting");
    check(&seen_by(URLS[0], starting), (false, false), sentence, &[alarm]);
}

/// A node's texts cannot change another part of a sentence, and are cut; what is no status is none.
#[test]
fn hostile_statuses_change_nothing_else() {
    let reason = "{node}{detail}\u{1b}[2J".to_owned() + &"x".repeat(5000);
    let hostile = json!({"/serving": "store-failed", "/store/state": "failed", "/store/reason": reason});
    let verdict = judge(&[healthy(0), healthy(1), changed(2, &hostile)]);
    assert!(verdict.alarms[0].sentence.starts_with("the store of http://c:1 failed"));
    assert!(
        verdict.alarms[0].sentence.contains(": {node}{detail}") && verdict.alarms[0].sentence.len() < 500
    );
    for other in [json!(null), json!([]), json!({}), json!({"serving": 7}), json!("ok")] {
        assert_eq!(NodeView::of(&other), None);
    }
    let odd = json!({"serving": "ok", "peers": [1, {"url": []}], "store": 3, "load": {"requests_per_second": "x"}, "disk": {"free_bytes": -1}});
    let view = NodeView::of(&odd).unwrap();
    assert_eq!((view.peers.len(), view.disk_free), (2, None));
    let _ = judge(&[Seen::answered("x", view)]);
    let _ = judge(&[]);
}

#[test]
fn figures_are_short() {
    for (millis, text) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (u64::MAX, "213503982334 days"),
    ] {
        assert_eq!(span(millis), text);
    }
    for (count, text) in
        [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (10 << 20, "10 MiB"), (u64::MAX, "16383 PiB")]
    {
        assert_eq!(bytes(count), text);
    }
}
