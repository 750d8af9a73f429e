//! Goal: nodes that speak different versions of the protocol work together, so a cluster is upgraded node by node under load, and
//! back. Method: three real nodes that are held to version 7 (`--peer-protocol-max`), and set free one after the other.

use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::http::Connection;
use kvorum_testkit::{PATIENCE, wait_until};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const SMALL: &[&str] = &["--memory-budget", "16MiB"];

fn held() -> Launch {
    Launch { arguments: ["--peer-protocol-max", "7"].map(str::to_owned).to_vec(), ..Launch::default() }
}

/// One request: status and text; none if the node could not be asked, or said that it is unknown what became of it.
fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &str,
    body: Option<&[u8]>,
) -> Option<(u16, String)> {
    let mut connection = Connection::open(address, PATIENCE).ok()?;
    let headers = format!("Connection: close\r\n{headers}");
    let answer = connection.exchange(method, target, &headers, body).ok()?;
    (answer.status < 500).then(|| (answer.status, answer.text().to_owned()))
}

/// What each writer of the load has done.
#[derive(Default)]
struct Done {
    rounds: AtomicU64,
    counted: AtomicU64,
    unknown: AtomicU64,
    stop: AtomicBool,
}

/// Writes and reads keys of its own, and counts, at whichever node answers, until it is told to stop. Whatever was confirmed must
/// be read afterwards.
fn work(number: usize, addresses: &[SocketAddr], done: &Done) {
    let mut latest = 0;
    for round in 1.. {
        if done.stop.load(Ordering::Relaxed) {
            break;
        }
        let at = |step: usize| addresses[(number + usize::try_from(round).unwrap() + step) % addresses.len()];
        let key = format!("/v0/entity?id=load/{number}");
        if let Some((201, _)) = ask(at(0), "PUT", &key, "", Some(format!("{round}").as_bytes())) {
            latest = round;
        }
        if let Some((status, text)) = ask(at(1), "GET", &key, "", None) {
            let read: u64 = if status == 200 { text.parse().unwrap() } else { 0 };
            assert!(read >= latest && read <= round, "{read} was read after {latest}, in round {round}");
        }
        match ask(at(2), "POST", "/v0/entity?id=count&add=1", "", None) {
            Some((200, _)) => done.counted.fetch_add(1, Ordering::Relaxed),
            _ => done.unknown.fetch_add(1, Ordering::Relaxed),
        };
        done.rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Does every operation at every node, with all replicas where there is a choice, and checks what the others answer.
fn do_all(cluster: &Cluster, newest: [u16; 3], step: &str) {
    for (node, protocol) in newest.into_iter().enumerate() {
        let (here, there) = (cluster.address(node), cluster.address((node + 1) % 3));
        let expect =
            |address, method: &str, target: &str, headers: &str, body: Option<&[u8]>, status: u16| {
                let mut connection = Connection::open(address, PATIENCE).unwrap();
                let answer = connection
                    .exchange(method, target, &format!("Connection: close\r\n{headers}"), body)
                    .unwrap();
                assert_eq!(answer.status, status, "{step}, node {node}: {method} {target}: {answer:?}");
                answer
            };
        let key = format!("/v0/entity?id=all/{step}/{node}");
        let all = format!("{key}&replicas=3/3");
        let put = expect(here, "PUT", &all, "If-None-Match: *\r\n", Some(b"1"), 201);
        let etag = put.header("etag").unwrap().to_owned();
        assert_eq!(expect(there, "GET", &all, "", None, 200).text(), "1");
        expect(here, "PUT", &all, &format!("If-Match: {etag}\r\n"), Some(b"2"), 201);
        expect(there, "PUT", &all, &format!("If-Match: {etag}\r\n"), Some(b"3"), 412);
        assert_eq!(expect(here, "POST", &format!("{key}&add=5"), "", None, 200).text(), "7");
        expect(there, "POST", &format!("{key}&append"), "", Some(b"8"), 201);
        assert_eq!(expect(here, "GET", &all, "", None, 200).text(), "78");
        expect(there, "DELETE", &all, "", None, 202);
        expect(here, "GET", &all, "", None, 404);
        let plain = format!("{key}/plain&replicas=3/3");
        expect(here, "PUT", &plain, "", Some(b"9"), 201);
        let lines = format!("{{\"op\":\"get\",\"key\":\"all/{step}/{node}/plain\"}}\n");
        let batch = expect(there, "POST", "/v0/batch", "", Some(lines.as_bytes()), 200);
        assert!(batch.text().contains("200"), "{batch:?}");
        let range = format!("/v0/entities?start=all/{step}/{node}&end=all/{step}/{node}0");
        let range = expect(here, "GET", &range, "", None, 200);
        assert!(range.text().contains("plain"), "{step}: {range:?}");
        expect(here, "POST", "/admin/repair", "", None, 200);
        // Each of two nodes knows of the other's promises if both speak 8.
        let explained =
            expect(here, "GET", &key.replace("entity", "explain"), "Accept: application/json\r\n", None, 200);
        let explained: Value = serde_json::from_str(explained.text()).unwrap();
        for replica in explained["replicas"].as_array().unwrap() {
            let other = (0..3).find(|index| replica["url"] == *cluster.url(*index)).unwrap();
            let is_known = other == node || protocol == 8 && newest[other] == 8;
            let state = if is_known { "none" } else { "unknown" };
            assert_eq!(replica["promise"]["state"], state, "{step}, {newest:?}, node {node}: {replica}");
            assert_eq!(replica["answered"], true, "{step}: {replica}");
        }
    }
}

/// Names the stores, which leads to epoch 1. The feature level stays, so nodes of version 7 still belong to the cluster.
fn name_stores(cluster: &Cluster) {
    let order = |what: &str| cluster.ask(0, "POST", &format!("/admin/cluster/{what}"), None).status;
    wait_until("all nodes have said their configuration", || order("plan?change=name") == 200);
    assert_eq!(order("apply?epoch=0"), 200);
    let is_named =
        |node| cluster.ask(node, "GET", "/admin/cluster", None).text().starts_with("epoch 1 stable level 0 ");
    wait_until("all nodes work with epoch 1", || (0..3).all(is_named));
}

#[test]
fn a_cluster_is_upgraded_node_by_node_and_back() {
    let mut cluster = Cluster::new(3, SMALL);
    (0..3).for_each(|node| cluster.set_launch(node, held()));
    cluster.start_all();
    cluster.wait_until_connected();
    let (addresses, done) = (cluster.addresses(), Done::default());
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|number| {
                let (addresses, done) = (&addresses, &done);
                scope.spawn(move || work(number, addresses, done))
            })
            .collect();
        let stop = kvorum_testkit::RaiseOnDrop(&done.stop);
        let mut newest = [7; 3];
        do_all(&cluster, newest, "7");
        for (step, (node, protocol)) in
            [(0, 8), (1, 8), (2, 8), (1, 7), (2, 7), (0, 7)].into_iter().enumerate()
        {
            let before = done.rounds.load(Ordering::Relaxed);
            cluster.terminate(node);
            cluster.set_launch(node, if protocol == 7 { held() } else { Launch::default() });
            cluster.start_node(node);
            cluster.wait_until_connected();
            newest[node] = protocol;
            wait_until("the load goes on", || done.rounds.load(Ordering::Relaxed) > before + 6);
            do_all(&cluster, newest, &format!("step-{step}"));
            if newest == [8; 3] {
                name_stores(&cluster);
            }
        }
        drop(stop);
        for writer in writers {
            writer.join().unwrap();
        }
    });
    let count = cluster.ask(0, "GET", "/v0/entity?id=count&replicas=3/3", None);
    let count: u64 = count.text().parse().unwrap();
    let (counted, unknown) = (done.counted.load(Ordering::Relaxed), done.unknown.load(Ordering::Relaxed));
    assert!((counted..=counted + unknown).contains(&count), "{count} of {counted} and {unknown} unknown");
    assert!(counted > unknown, "{counted} and {unknown} unknown");
}
