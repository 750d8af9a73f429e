//! The Rust client and three real nodes: where its requests go, and what its caller sees while nodes die and
//! freeze.

use kvorum_client::{Builder, Client, Hedging, PutOptions, ReadOptions, Replicas, RetryPolicy, ScanOptions};
use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::{PATIENCE, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const ONE_OF_ONE: Option<Replicas> = Some(Replicas { ack: 1, from: 1 });

fn builder(cluster: &Cluster) -> Builder {
    Client::builder().nodes((0..cluster.len()).map(|index| cluster.url(index)))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "never came: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// How many HEAD requests the node has answered.
fn heads(cluster: &Cluster, index: usize) -> u64 {
    let metrics = cluster.ask(index, "GET", "/metrics", None);
    let text = String::from_utf8(metrics.body).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("kvorum_requests_total{operation=\"head\""));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Goal: requests of one replica go to the node that holds the key, and to no other node. They ask for one replica
/// themselves, or name none and one is the nodes' default.
/// Method: the records that each node stores itself, against the HEAD requests that each has answered.
#[test]
fn requests_go_where_the_copies_are() {
    const KEYS: usize = 200;
    for (settings, replicas, default) in
        [(["--replication-factor", "3"], ONE_OF_ONE, (2, 3)), (["--replication-factor", "1"], None, (1, 1))]
    {
        let mut cluster = Cluster::new(3, &[&settings[..], &["--memory-budget", "16MiB"]].concat());
        cluster.start_all();
        let described = cluster.ask(0, "GET", "/v0/topology", None).body;
        let described: serde_json::Value = serde_json::from_slice(&described).unwrap();
        let described = (described["default_ack"].as_u64(), described["default_from"].as_u64());
        assert_eq!(described, (Some(default.0), Some(default.1)));
        block_on(async {
            let client = builder(&cluster).build().unwrap();
            client.get("first").await.unwrap();
            eventually("the topology", || client.topology_epoch().is_some()).await;
            for n in 0..KEYS {
                let options = PutOptions { replicas, ..PutOptions::default() };
                client.put_with(format!("one/{n}"), "v", options).await.unwrap();
                let options = ReadOptions { replicas, ..ReadOptions::default() };
                assert!(client.head_with(format!("one/{n}"), options).await.unwrap().is_some());
            }
        });
        let stored: Vec<u64> = (0..3).map(|index| cluster.dump(index).len() as u64).collect();
        let asked: Vec<u64> = (0..3).map(|index| heads(&cluster, index)).collect();
        assert_eq!(asked, stored);
        assert_eq!(stored.iter().sum::<u64>(), KEYS as u64);
        assert!(stored.iter().all(|count| *count > 0), "{stored:?}");
    }
}

/// Goal: a client of a cluster that loses a node loses nothing, and its caller sees only failures of the
/// contract. Method: one writer per key; acknowledged values are read back, at once and at the end; a node is
/// killed and another frozen meanwhile.
#[test]
fn a_node_dies_and_another_freezes_meanwhile() {
    const KEYS: usize = 16;
    let mut cluster = Cluster::start(3);
    let fresh = builder(&cluster);
    let hedging = Hedging { after: Duration::from_millis(50), budget: 0.2 };
    let policy = RetryPolicy { read_patience: Duration::from_millis(500), ..RetryPolicy::default() };
    let builder = builder(&cluster).hedging(hedging).retry(policy).timeout(Duration::from_secs(10));
    let client = builder.build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let unknown = Arc::new(AtomicU64::new(0));
    let writer = |n: usize| {
        let (client, is_over, unknown) = (client.clone(), Arc::clone(&is_over), Arc::clone(&unknown));
        async move {
            let key = format!("life/{n}");
            let (mut written, mut acknowledged) = (0u64, 0u64);
            while !is_over.load(SeqCst) {
                written += 1;
                match client.put(&key, written.to_string()).await {
                    Ok(_) => acknowledged = written,
                    // Unknown outcomes are caused by the faults; the client has no other failure here.
                    Err(error) => {
                        assert!(error.may_have_taken_effect() && error.is_retry_safe(), "{error}");
                        unknown.fetch_add(1, SeqCst);
                    }
                }
                let read = client.get(&key).await.unwrap_or_else(|error| panic!("a read failed: {error}"));
                // An unknown write is older than one that was acknowledged after it: its coordinator died,
                // and stamps no more writes.
                let read = read.map_or(0, |entry| String::from_utf8_lossy(&entry.value).parse().unwrap());
                assert!((acknowledged..=written).contains(&read), "{acknowledged} <= {read} <= {written}");
            }
            (written, acknowledged)
        }
    };
    let writers: Vec<_> = (0..KEYS).map(writer).collect();
    let clients = thread::spawn(|| {
        block_on(async {
            let writers: Vec<_> = writers.into_iter().map(tokio::spawn).collect();
            let mut seen = Vec::new();
            for writer in writers {
                seen.push(writer.await.unwrap());
            }
            seen
        })
    });
    let pause = |millis| thread::sleep(Duration::from_millis(millis));
    pause(500);
    cluster.kill9(2);
    pause(1500);
    wait_until("the dead node is set aside", || client.nodes_aside() == 1);
    cluster.start_node(2);
    wait_until("the node is back", || client.nodes_aside() == 0);
    cluster.wait_until_connected();
    cluster.pause(1);
    pause(1500);
    cluster.resume(1);
    wait_until("the frozen node is back", || client.nodes_aside() == 0);
    pause(300);
    is_over.store(true, SeqCst);
    let (mut put_count, mut oks) = (0, 0);
    for (n, (written, acknowledged)) in clients.join().unwrap().into_iter().enumerate() {
        let read = block_on(fresh.clone().build().unwrap().get(format!("life/{n}"))).unwrap().unwrap();
        let read: u64 = String::from_utf8_lossy(&read.value).parse().unwrap();
        assert!((acknowledged..=written).contains(&read), "{acknowledged} <= {read} <= {written}");
        put_count += written;
        oks += acknowledged;
    }
    assert!(oks > 0);
    println!("counts: {put_count} writes, {} of unknown outcome", unknown.load(SeqCst));
}

/// A range over all nodes, larger than any buffer on the way: whole, sorted, each key once.
#[test]
fn a_range_is_whole_and_sorted() {
    const KEYS: usize = 3_000;
    let cluster = Cluster::start(3);
    block_on(async {
        let client = builder(&cluster).build().unwrap();
        let value = vec![b'v'; 2_000];
        let writes: Vec<_> = (0..KEYS)
            .map(|n| {
                let (client, value) = (client.clone(), value.clone());
                tokio::spawn(async move { client.put(format!("range/{n:05}"), value).await })
            })
            .collect();
        for write in writes {
            write.await.unwrap().unwrap();
        }
        let mut scan = client.scan("range/", Some(b"range0"), ScanOptions::default()).await.unwrap();
        for n in 0..KEYS {
            let entry = scan.next().await.unwrap().unwrap();
            assert_eq!((&entry.key[..], entry.value.len()), (format!("range/{n:05}").as_bytes(), 2_000));
        }
        assert!(scan.next().await.is_none());
    });
}
