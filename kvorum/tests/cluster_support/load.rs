//! Clients of a cluster: each sends requests to some node, and records their begin, end and result.

use super::history::{Asked, Class, History, Read, What, Write};
use super::node::{Cluster, Copy, connect, percent, version_of};
use crate::faults_support::Random;
use crate::faults_support::history::{Moment, Outcome, id_of, next_id, value_of};
use crate::faults_support::http::{Answer, encode, receive};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a client waits for an answer: longer than the nodes' own time-out, shorter than pauses.
const CLIENT_WAIT: Duration = Duration::from_secs(3);
/// How long a client avoids a node that did not answer.
const NODE_REST: Duration = Duration::from_millis(100);

/// Why there is no answer.
enum NoAnswer {
    /// There was no connection: nothing was sent.
    NotSent,
    Cut,
    Late,
}

/// One client with a connection to each node, and its operations.
pub struct Session {
    addresses: Vec<SocketAddr>,
    streams: Vec<Option<BufReader<TcpStream>>>,
    /// Its operations so far.
    pub history: History,
}

impl Session {
    /// A client of the nodes at `addresses`.
    pub fn new(addresses: &[SocketAddr]) -> Self {
        let streams = addresses.iter().map(|_| None).collect();
        Self { addresses: addresses.to_vec(), streams, history: History::default() }
    }

    /// Puts a new value of `bytes` bytes. Returns the status, or the code of [`Asked::status`].
    pub fn put(&mut self, node: usize, class: Class, key: &[u8], bytes: usize) -> u16 {
        let id = next_id();
        self.write(node, class, key, What::Put, id, Some(&value_of(id, bytes)))
    }

    /// Deletes a key. Returns the status.
    pub fn delete(&mut self, node: usize, class: Class, key: &[u8]) -> u16 {
        self.write(node, class, key, What::Delete, next_id(), None)
    }

    /// Reads a key. Returns the status.
    pub fn get(&mut self, node: usize, class: Class, key: &[u8]) -> u16 {
        let number = self.history.asked.len() as u64;
        let target = target(class, class.quorum_of(class.read, number), key);
        let (answer, begun, ended) = self.request(node, class, "GET", &target, None);
        let Ok(answer) = answer else { return self.last_status() };
        let saw = match (answer.status, version_of(&answer)) {
            (200, Some(version)) => Some((id_of(&answer.body), version)),
            (200, None) => {
                self.history.complaints.push(format!("GET {target}: no version: {:?}", answer.headers));
                return 200;
            }
            (404, _) => None,
            (status, _) => return status,
        };
        self.history.reads.push(Read { key: key.to_vec(), class, node, begun, ended, saw });
        answer.status
    }

    fn write(
        &mut self,
        node: usize,
        class: Class,
        key: &[u8],
        what: What,
        id: u64,
        body: Option<&[u8]>,
    ) -> u16 {
        let method = if what == What::Put { "PUT" } else { "DELETE" };
        let target = target(class, class.quorum_of(class.write, id), key);
        let (answer, begun, ended) = self.request(node, class, method, &target, body);
        let outcome = match &answer {
            Ok(answer) => match (answer.status, version_of(answer)) {
                (201 | 202, Some(version)) => Outcome::Acked(version),
                (201 | 202, None) => {
                    self.history.complaints.push(format!("{method} {target}: no version"));
                    Outcome::Unknown
                }
                (503 | 507, _) => Outcome::Refused,
                _ => Outcome::Unknown,
            },
            Err(NoAnswer::NotSent) => Outcome::Refused,
            Err(NoAnswer::Cut | NoAnswer::Late) => Outcome::Unknown,
        };
        let key = key.to_vec();
        self.history.writes.push(Write { id, key, class, node, what, begun, ended, outcome });
        self.last_status()
    }

    fn last_status(&self) -> u16 {
        self.history.asked.last().unwrap().status
    }

    fn request(
        &mut self,
        node: usize,
        class: Class,
        method: &'static str,
        target: &str,
        body: Option<&[u8]>,
    ) -> (Result<Answer, NoAnswer>, u64, u64) {
        let begun = Moment::now().mono;
        let answer = self.exchange(node, &encode(method, target, "", body));
        let ended = Moment::now().mono;
        let status = match &answer {
            Ok(answer) => answer.status,
            Err(NoAnswer::Cut) => 0,
            Err(NoAnswer::NotSent) => 1,
            Err(NoAnswer::Late) => 2,
        };
        if let Ok(answer) = &answer
            && answer.status >= 400
            && memchr::memchr(b'\n', &answer.body).map(|at| at + 1) != Some(answer.body.len())
        {
            let text = answer.text();
            self.history.complaints.push(format!("{method} {target}: {status} without a line: {text:?}"));
        }
        if status == 500 || status == 400 {
            self.history.complaints.push(format!("{method} {target}: {status}"));
        }
        self.history.asked.push(Asked { node, class, method, begun, ended, status });
        (answer, begun, ended)
    }

    fn exchange(&mut self, node: usize, request: &[u8]) -> Result<Answer, NoAnswer> {
        let failed = |error: &io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NoAnswer::Late,
            _ => NoAnswer::Cut,
        };
        let mut stream = match self.streams[node].take() {
            Some(stream) => stream,
            None => connect(self.addresses[node], CLIENT_WAIT).map_err(|_| NoAnswer::NotSent)?,
        };
        let sent = stream.get_mut().write_all(request);
        let answer = receive(&mut stream).map_err(|error| failed(sent.as_ref().err().unwrap_or(&error)))?;
        if answer.header("connection") != Some("close") {
            self.streams[node] = Some(stream);
        }
        Ok(answer)
    }
}

fn target(class: Class, (ack, from): (u16, u16), key: &[u8]) -> String {
    let key = percent(key);
    if class.is_default {
        format!("/v0/entity?id={key}")
    } else {
        format!("/v0/entity?id={key}&replicas={ack}/{from}")
    }
}

/// The load of a set of clients.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Clients on one node each, in turn.
    pub fixed: usize,
    /// Clients that ask any node.
    pub roaming: usize,
    /// The classes of keys, with weights.
    pub classes: &'a [(Class, u64)],
    /// The number of keys of each class that are used often, and of the others.
    pub keys: (u64, u64),
    /// Percentage of PUTs.
    pub puts: u64,
    /// Percentage of DELETEs; the rest are GETs.
    pub deletes: u64,
    /// Value sizes: mostly from the first to below the second, one in 128 up to the third.
    pub bytes: (u64, u64, u64),
    /// A pause between two requests of a client.
    pub pause: Duration,
}

/// The state that the fault injector shares with the clients.
pub struct Stage {
    stop: AtomicBool,
    round: AtomicU64,
}

impl Stage {
    /// Changes to new keys from now on.
    pub fn next_round(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }
}

impl Load<'_> {
    /// Runs the clients for as long as `during` runs, and returns their operations.
    pub fn run(
        &self,
        addresses: &[SocketAddr],
        only: &[usize],
        seed: u64,
        during: impl FnOnce(&Stage),
    ) -> History {
        let stage = Stage { stop: AtomicBool::new(false), round: AtomicU64::new(0) };
        let mut history = History::default();
        thread::scope(|scope| {
            let client = |index: usize| {
                let stage = &stage;
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ ((index as u64) << 32));
                    let mut session = Session::new(addresses);
                    let mut resting: Vec<Option<Instant>> = vec![None; addresses.len()];
                    while !stage.stop.load(Ordering::Relaxed) {
                        let node = if index < self.fixed {
                            only[index % only.len()]
                        } else {
                            only[usize::try_from(random.within(0, only.len() as u64)).unwrap()]
                        };
                        if resting[node].is_some_and(|until| Instant::now() < until) {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        let status = self.step(&mut session, &mut random, node, stage);
                        resting[node] = (status <= 2 || status == 503).then(|| Instant::now() + NODE_REST);
                        if !self.pause.is_zero() {
                            thread::sleep(self.pause);
                        }
                    }
                    session.history
                })
            };
            let clients: Vec<_> = (0..self.fixed + self.roaming).map(client).collect();
            let stopping = Stop(&stage.stop);
            during(&stage);
            drop(stopping);
            for client in clients {
                history.absorb(client.join().unwrap());
            }
        });
        history
    }

    fn step(&self, session: &mut Session, random: &mut Random, node: usize, stage: &Stage) -> u16 {
        let total = self.classes.iter().map(|(_, weight)| weight).sum();
        let mut drawn = random.within(0, total);
        let class = self.classes.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.wrapping_sub(*weight);
            is_it
        });
        let class = class.unwrap().0;
        let (hot, wide) = self.keys;
        let number = if random.chance(30) { random.within(0, hot) } else { hot + random.within(0, wide) };
        let key = key(class, stage.round.load(Ordering::Relaxed), number);
        let action = random.within(0, 100);
        if action < self.puts {
            let (low, high, highest) = self.bytes;
            let high = if random.within(0, 128) == 0 { highest } else { high };
            session.put(node, class, &key, usize::try_from(random.within(low, high)).unwrap())
        } else if action < self.puts + self.deletes {
            session.delete(node, class, &key)
        } else {
            session.get(node, class, &key)
        }
    }
}

/// A key; one in three has odd bytes.
fn key(class: Class, round: u64, number: u64) -> Vec<u8> {
    let mut key = format!("{}-{round}-{number}", class.name).into_bytes();
    if number.is_multiple_of(3) {
        key.extend_from_slice(b"\x00\xff\n/ +%&=?#\xc3");
    }
    key
}

/// Stops the clients when it is dropped, also by a failed assertion: a scope waits for its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How long healthy nodes may take to make the copies of every key equal.
const REPAIR_WAIT: Duration = Duration::from_secs(10);

/// With all nodes healthy and no load: waits until the copies are as they must be, then reads every key
/// through every node, adds the reads to `history`, and fails on any violation.
#[track_caller]
pub fn settle(cluster: &Cluster, history: &mut History, test: &str) {
    let begun = Instant::now();
    let repair = loop {
        let copies = cluster.copies();
        let strip = |(node, copy): (usize, Copy)| (node, (copy.version, copy.id()));
        let copies: BTreeMap<_, BTreeMap<_, _>> =
            copies.into_iter().map(|(key, held)| (key, held.into_iter().map(strip).collect())).collect();
        let repair = history.judge(&copies);
        if repair.wrong.is_empty() || begun.elapsed() > REPAIR_WAIT {
            break repair;
        }
        thread::sleep(Duration::from_millis(50));
    };
    println!(
        "counts: {test}: after {} ms {} keys equal, {} wrong, {} unsure of which {} unrepaired",
        begun.elapsed().as_millis(),
        repair.equal,
        repair.wrong.len(),
        repair.unsure,
        repair.unrepaired
    );
    let mut session = Session::new(&cluster.addresses());
    for (key, class) in history.keys() {
        for node in 0..cluster.len() {
            let status = session.get(node, class, &key);
            if status != 200 && status != 404 {
                let key = key.escape_ascii();
                session.history.complaints.push(format!("{key} at node {node} when all are well: {status}"));
            }
        }
    }
    history.absorb(session.history);
    let first: Vec<&String> = repair.wrong.iter().take(8).collect();
    if !first.is_empty() {
        println!("{test}: {} keys are not repaired, the first: {first:#?}", repair.wrong.len());
    }
    history.assert_holds(test);
    assert!(first.is_empty(), "{test}: {} keys are not repaired, the first: {first:#?}", repair.wrong.len());
}

/// Prints one line on the requests that began in a span; returns the share that succeeded.
pub fn report(name: &str, asked: &[Asked], span: std::ops::Range<u64>) -> f64 {
    let of_span: Vec<&Asked> = asked.iter().filter(|asked| span.contains(&asked.begun)).collect();
    let ok = of_span.iter().filter(|asked| asked.is_ok()).count();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let share = ok as f64 / of_span.len().max(1) as f64;
    let mut line = format!("figures: {name}: {} requests, {:.2} % succeeded;", of_span.len(), share * 100.0);
    for reads in [true, false] {
        let latencies = of_span.iter().filter(|asked| (asked.method == "GET") == reads);
        let mut latencies: Vec<u64> = latencies.map(|asked| asked.ended - asked.begun).collect();
        let figures = [0.5, 0.99, 0.999, 1.0].map(|share| format!("{:.1}", quantile(&mut latencies, share)));
        let name = if reads { "reads" } else { "writes" };
        let _ = write!(line, " {name} p50/p99/p99.9/max {} ms;", figures.join("/"));
    }
    println!("{line}");
    share
}

/// A quantile of latencies in milliseconds.
pub fn quantile(latencies: &mut [u64], share: f64) -> f64 {
    latencies.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "for people"
    )]
    let at = ((latencies.len().saturating_sub(1)) as f64 * share).round() as usize;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    latencies.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e6)
}
