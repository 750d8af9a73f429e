//! Goal: conditions hold over real processes that are killed and paused: each version is used up by one successful condition
//! at most, and none is skipped. Method: clients at three nodes replace the values of a few keys, each on the version that it knows,
//! while one node at a time is killed and started, or paused. Afterwards the successes of each key must be a chain.
//!
//! `KVORUM_CHAIN_OPERATIONS` sets how many operations there are, for longer runs; without it also the time is bounded.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::http::Connection;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 12;
const KEYS: usize = 16;
const OPERATIONS: u64 = 20_000;
const TIME_MAX: Duration = Duration::from_secs(40);
/// How long a client waits for an answer: longer than a node takes that runs.
const WAIT: Duration = Duration::from_secs(3);

/// A write whose condition held. Versions are compared as text: all have the same length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Success {
    version: String,
    /// The version that it was to replace; none for a key without a value.
    expected: Option<String>,
    /// The number in its value.
    id: u64,
}

/// The clients' results for one key.
#[derive(Debug, Default)]
struct Seen {
    successes: Vec<Success>,
    /// Writes of unknown outcome, by the number in their values.
    unknown: BTreeSet<u64>,
    failed: u64,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.successes.extend(other.successes);
        self.unknown.extend(other.unknown);
        self.failed += other.failed;
    }
}

/// What all clients share.
struct Work {
    addresses: Vec<SocketAddr>,
    operations: u64,
    until: Option<Instant>,
    done: AtomicU64,
    next_id: AtomicU64,
}

impl Work {
    fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.operations
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
                    seen.successes.push(Success { version, expected, id });
                }
                Ok((412, current)) => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    assert_ne!(current, expected, "{header} failed, but held");
                    seen.failed += 1;
                    known.insert(key, current);
                }
                // Nothing was done.
                Ok((503, _)) => connection = None,
                Ok((504, _)) => _ = seen.unknown.insert(id),
                Ok((status, _)) => panic!("{status}: {answer:?}"),
                Err(_) => {
                    seen.unknown.insert(id);
                    connection = None;
                }
            }
        }
        seen
    }
}

/// Checks that the successes of a key are a chain; between two there may be writes of unknown outcome, each once.
///
/// # Errors
/// What breaks it.
fn check(key: usize, seen: &mut Seen) -> Result<(), String> {
    seen.successes.sort();
    let (mut latest, mut between) = (None::<String>, 0);
    for success in &seen.successes {
        // A success that is skipped was lost, or the condition was judged on an older value.
        if success.expected < latest {
            return Err(format!("key {key}: {success:?} came just after {latest:?}"));
        }
        if success.expected != latest {
            between += 1;
        }
        latest = Some(success.version.clone());
    }
    let unknown = seen.unknown.len();
    if between > unknown {
        return Err(format!("key {key}: {between} versions of nobody, and {unknown} unknown writes"));
    }
    Ok(())
}

#[test]
fn conditions_make_a_chain_while_nodes_die() {
    let wanted = std::env::var("KVORUM_CHAIN_OPERATIONS").ok().and_then(|count| count.parse().ok());
    let mut cluster = Cluster::start(3);
    let work = Work {
        addresses: cluster.addresses(),
        operations: wanted.unwrap_or(OPERATIONS),
        until: wanted.is_none().then(|| Instant::now() + TIME_MAX),
        done: AtomicU64::new(0),
        next_id: AtomicU64::new(1),
    };
    let is_over = AtomicBool::new(false);
    let (mut keys, faults) = thread::scope(|scope| {
        let work = &work;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || work.client(number))).collect();
        let faults = scope.spawn(|| {
            let mut faults = 0;
            while !is_over.load(Ordering::Relaxed) {
                let node = faults % 3;
                thread::sleep(Duration::from_millis(700));
                if faults % 2 == 0 {
                    cluster.kill9(node);
                    thread::sleep(Duration::from_millis(300));
                    cluster.start_node(node);
                } else {
                    cluster.pause(node);
                    thread::sleep(Duration::from_millis(1500));
                    cluster.resume(node);
                }
                faults += 1;
            }
            faults
        });
        let mut keys: BTreeMap<usize, Seen> = BTreeMap::new();
        let mut failure = None;
        for client in clients {
            match client.join() {
                Ok(seen) => seen.into_iter().for_each(|(key, seen)| keys.entry(key).or_default().add(seen)),
                Err(panic) => failure = Some(panic),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let faults = faults.join().unwrap();
        if let Some(panic) = failure {
            std::panic::resume_unwind(panic);
        }
        (keys, faults)
    });
    let (mut done, mut failed, mut unknown) = (0, 0, 0);
    for (key, seen) in &mut keys {
        check(*key, seen).unwrap();
        let last = cluster.ask(key % 3, "GET", &format!("/v0/entity?id=chain-{key}"), None);
        if let Some(latest) = seen.successes.last() {
            assert_eq!(last.status, 200, "key {key}: {latest:?} was lost");
            assert!(last.header("etag") >= Some(latest.version.as_str()), "key {key}: {latest:?} was lost");
            let id: u64 = last.text().parse().unwrap();
            assert!(id == latest.id || seen.unknown.contains(&id), "key {key}: {id} came after {latest:?}");
        }
        done += seen.successes.len();
        failed += seen.failed;
        unknown += seen.unknown.len();
    }
    println!("figures: {done} conditions held, {failed} failed, {unknown} unknown, {faults} faults");
    assert!(done > 0 && faults > 0, "nothing was tested");
}

/// The check itself: a version that is used up twice, one that is skipped, and one of nobody.
#[test]
fn broken_chains_are_found() {
    let success = |version: &str, expected: Option<&str>| Success {
        version: version.to_owned(),
        expected: expected.map(str::to_owned),
        id: 0,
    };
    let holds = |successes: &[Success], unknown: &[u64]| {
        let mut seen =
            Seen { successes: successes.to_vec(), unknown: unknown.iter().copied().collect(), failed: 0 };
        check(0, &mut seen).is_ok()
    };
    let start = [success("a", None), success("b", Some("a"))];
    let and = |more: Success| [&start[..], &[more]].concat();
    assert!(holds(&and(success("c", Some("b"))), &[]));
    assert!(!holds(&and(success("c", Some("a"))), &[]));
    assert!(!holds(&and(success("c", None)), &[1]));
    assert!(!holds(&and(success("d", Some("c"))), &[]));
    assert!(holds(&and(success("d", Some("c"))), &[1]));
}
