//! Goal: conditions hold over real processes that are killed, paused and cut off: each version is used up by one
//! successful condition at most, and none is skipped. Method: clients at three nodes replace the values of a few
//! keys, each on the version that it knows, while one node at a time is killed and started, paused, or cut off from
//! the others, both ways or one way. Afterwards the successes of each key must be a chain. Without root and network
//! namespaces no node is cut off, and the test says so.
//!
//! `KVORUM_CHAIN_OPERATIONS` sets how many operations there are, for longer runs; without it also the time is bounded.

use kvorum_lab::chain::{Success, Writes};
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::http::Connection;
use kvorum_testkit::net::{Cut, Network};
use kvorum_testkit::skip;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 12;
const KEYS: usize = 16;
const OPERATIONS: u64 = 20_000;
/// Each of the three cuts comes once.
const FAULTS: u64 = 9;
const TIME_MAX: Duration = Duration::from_secs(40);
/// How long a client waits for an answer: longer than a node takes that runs.
const WAIT: Duration = Duration::from_secs(3);

/// The clients' results for one key.
#[derive(Debug, Default)]
struct Seen {
    writes: Writes,
    failed: u64,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.writes.add(other.writes);
        self.failed += other.failed;
    }
}

/// What all clients share.
struct Work {
    addresses: Vec<SocketAddr>,
    operations: u64,
    until: Option<Instant>,
    done: AtomicU64,
    faults: AtomicU64,
    next_id: AtomicU64,
}

impl Work {
    fn is_over(&self) -> bool {
        let is_done = self.done.load(Ordering::Relaxed) >= self.operations;
        is_done && self.faults.load(Ordering::Relaxed) >= FAULTS
            || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// A client at one node after the other; it moves on from a node that does not answer.
    fn client(&self, number: usize) -> BTreeMap<usize, Seen> {
        let mut seen: BTreeMap<usize, Seen> = BTreeMap::new();
        let mut known: BTreeMap<usize, Option<String>> = BTreeMap::new();
        let (mut node, mut connection) = (number, None);
        let mut turn = number;
        while !self.is_over() {
            let Some(open) = &mut connection else {
                node += 1;
                connection = Connection::open(self.addresses[node % self.addresses.len()], WAIT).ok();
                continue;
            };
            turn += 1 + number % 3;
            let key = turn % KEYS;
            let expected = known.get(&key).cloned().flatten();
            let header = match &expected {
                Some(version) => format!("If-Match: {version}\r\n"),
                None => "If-None-Match: *\r\n".to_owned(),
            };
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (target, value) = (format!("/v0/entity?id=chain-{key}"), id.to_string());
            let answer = open.exchange("PUT", &target, &header, Some(value.as_bytes()));
            let seen = seen.entry(key).or_default();
            let etag = |answer: &kvorum_testkit::http::Answer| answer.header("etag").map(str::to_owned);
            match answer.as_ref().map(|answer| (answer.status, etag(answer))) {
                Ok((201, Some(version))) => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    known.insert(key, Some(version.clone()));
                    seen.writes.successes.push(Success { version, expected, id });
                }
                Ok((412, current)) => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    assert_ne!(current, expected, "{header} failed, but held");
                    seen.failed += 1;
                    known.insert(key, current);
                }
                // Nothing was done.
                Ok((503, _)) => connection = None,
                // Another node may reach more replicas.
                Ok((504, _)) | Err(_) => {
                    seen.writes.unknown.push(id);
                    connection = None;
                }
                Ok((status, _)) => panic!("{status}: {answer:?}"),
            }
        }
        seen
    }
}

/// Three nodes; in namespaces of their own where there is a network.
fn start(network: Option<&Network>) -> Cluster {
    let Some(network) = network else { return Cluster::start(3) };
    let mut cluster = Cluster::at(&network.addresses(), &["--memory-budget", "16MiB"]);
    for node in 0..3 {
        let prefix = network.prefix(node);
        cluster.set_launch(usize::from(node), Launch { prefix, ..Launch::default() });
    }
    cluster.start_all();
    cluster
}

/// Does to one node after the other what may happen to nodes, until it is over.
fn disturb(cluster: &mut Cluster, network: Option<&Network>, work: &Work, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(700));
        let faults = work.faults.load(Ordering::Relaxed);
        // Each fault comes to each node.
        let (round, kind) = (faults / 3, faults % 3);
        let node = u8::try_from((round + kind) % 3).unwrap();
        let index = usize::from(node);
        match (kind, network) {
            (0, _) => {
                cluster.kill9(index);
                thread::sleep(Duration::from_millis(300));
                cluster.start_node(index);
            }
            (1, Some(network)) => {
                let cut = [Cut::Both, Cut::Sent, Cut::Received][usize::try_from(round % 3).unwrap()];
                network.cut(node, cut).unwrap();
                thread::sleep(Duration::from_millis(2500));
                network.heal(node).unwrap();
            }
            _ => {
                cluster.pause(index);
                thread::sleep(Duration::from_millis(1500));
                cluster.resume(index);
            }
        }
        work.faults.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn conditions_make_a_chain_while_nodes_die() {
    let wanted = std::env::var("KVORUM_CHAIN_OPERATIONS").ok().and_then(|count| count.parse().ok());
    let network = Network::new(3, 3);
    if let Err(why) = &network {
        skip("partitions of the chain", why);
    }
    let network = network.ok();
    let mut cluster = start(network.as_ref());
    let work = Work {
        addresses: cluster.addresses(),
        operations: wanted.unwrap_or(OPERATIONS),
        until: wanted.is_none().then(|| Instant::now() + TIME_MAX),
        done: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        next_id: AtomicU64::new(1),
    };
    let is_over = AtomicBool::new(false);
    let mut keys = thread::scope(|scope| {
        let work = &work;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || work.client(number))).collect();
        let disturbing = scope.spawn(|| disturb(&mut cluster, network.as_ref(), work, &is_over));
        let mut keys: BTreeMap<usize, Seen> = BTreeMap::new();
        let mut failure = None;
        for client in clients {
            match client.join() {
                Ok(seen) => seen.into_iter().for_each(|(key, seen)| keys.entry(key).or_default().add(seen)),
                Err(panic) => failure = Some(panic),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        disturbing.join().unwrap();
        if let Some(panic) = failure {
            std::panic::resume_unwind(panic);
        }
        keys
    });
    let faults = work.faults.into_inner();
    cluster.wait_until_connected();
    let (mut done, mut failed, mut unknown) = (0, 0, 0);
    for (key, seen) in &mut keys {
        let last = cluster.ask(key % 3, "GET", &format!("/v0/entity?id=chain-{key}"), None);
        let last =
            (last.status == 200).then(|| (last.header("etag").unwrap_or_default(), last.text().as_bytes()));
        seen.writes.check(last).unwrap_or_else(|broken| panic!("key {key}: {broken}"));
        done += seen.writes.successes.len();
        failed += seen.failed;
        unknown += seen.writes.unknown.len();
    }
    println!("figures: {done} conditions held, {failed} failed, {unknown} unknown, {faults} faults");
    assert!(done > 0 && faults > 0, "nothing was tested");
}
