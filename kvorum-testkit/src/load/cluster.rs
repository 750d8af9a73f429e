//! Load on a cluster, what must be true after it, and what it was like.

use super::run_clients;
use crate::Random;
use crate::cluster::{Cluster, Copy};
use crate::history::{Asked, Class, History};
use crate::session::Session;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a client avoids a node that did not answer.
const NODE_REST: Duration = Duration::from_millis(100);

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

/// What the fault injector can tell the clients.
#[derive(Debug, Default)]
pub struct Stage {
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
        let stage = Stage::default();
        let client = |index: usize, stop: &AtomicBool| {
            let mut random = Random::new(seed ^ ((index as u64) << 32));
            let mut session = Session::of_all(addresses);
            let mut resting: Vec<Option<Instant>> = vec![None; addresses.len()];
            while !stop.load(Ordering::Relaxed) {
                let node = if index < self.fixed {
                    only[index % only.len()]
                } else {
                    only[usize::try_from(random.within(0, only.len() as u64)).unwrap()]
                };
                if resting[node].is_some_and(|until| Instant::now() < until) {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let status = self.step(&mut session, &mut random, node, &stage);
                let is_bad = status <= Asked::LATE || status == 503;
                resting[node] = is_bad.then(|| Instant::now() + NODE_REST);
                if !self.pause.is_zero() {
                    thread::sleep(self.pause);
                }
            }
            session.history
        };
        run_clients(self.fixed + self.roaming, client, || during(&stage))
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
            session.put_at(node, class, &key, usize::try_from(random.within(low, high)).unwrap())
        } else if action < self.puts + self.deletes {
            session.delete_at(node, class, &key)
        } else {
            session.get_at(node, class, &key)
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
    let mut session = Session::of_all(&cluster.addresses());
    for (key, class) in history.keys() {
        for node in 0..cluster.len() {
            let status = session.get_at(node, class, &key);
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
