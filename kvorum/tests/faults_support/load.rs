//! Clients: each sends requests, and records their begin, end and result.

use super::Random;
use super::history::{History, Moment, Outcome, Read, Saw, What, Write, id_of, next_id, value_of};
use super::http::{Answer, Client, NoAnswer, encode};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// One client and its operations.
pub struct Session {
    client: Client,
    /// Its operations so far.
    pub history: History,
}

impl Session {
    /// A client of the node at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { client: Client::new(address), history: History::default() }
    }

    /// Puts a new value of `bytes` bytes. Returns the status; 0 for a cut connection.
    pub fn put(&mut self, key: &str, bytes: usize, ttl: Option<u64>) -> u16 {
        let id = next_id();
        let ttl_text = ttl.map(|ttl| format!("&ttl={ttl}ms")).unwrap_or_default();
        let target = format!("/v0/entity?id={key}{ttl_text}");
        self.write(id, key, What::Put { ttl }, "PUT", &target, Some(&value_of(id, bytes)))
    }

    /// Deletes a key. Returns the status.
    pub fn delete(&mut self, key: &str) -> u16 {
        self.write(next_id(), key, What::Delete, "DELETE", &format!("/v0/entity?id={key}"), None)
    }

    /// Reads a key. Returns the status.
    pub fn get(&mut self, key: &str) -> u16 {
        let begun = Moment::now();
        let answer = self.request("GET", &format!("/v0/entity?id={key}"), "", None);
        let ended = Moment::now();
        let Ok(answer) = answer else { return 0 };
        let saw = match answer.status {
            200 => match (version_of(&answer), answer.header("kvorum-expires").map(str::parse)) {
                (Some(version), None) => Saw::Value { id: id_of(&answer.body), version, expires: None },
                (Some(version), Some(Ok(at))) => {
                    Saw::Value { id: id_of(&answer.body), version, expires: Some(at) }
                }
                _ => {
                    self.history
                        .faults
                        .push(format!("GET {key}: no version or expiry: {:?}", answer.headers));
                    return answer.status;
                }
            },
            404 => Saw::Absent,
            _ => return answer.status,
        };
        self.history.reads.push(Read { key: key.to_owned(), begun, ended, saw });
        answer.status
    }

    /// Reads all keys as a range. A whole one counts as a read of each of `keys`, a cut one as a read of
    /// those it shows. Returns whether it was whole, and the number of records; `None` if it was refused.
    pub fn range(&mut self, keys: &[String]) -> Option<(bool, usize)> {
        let begun = Moment::now();
        let target = "/v0/entities?start=%00";
        let answer = self.request("GET", target, "Accept: application/x-ndjson\r\n", None);
        let ended = Moment::now();
        let answer = answer.ok().filter(|answer| answer.status == 200)?;
        let mut seen = std::collections::BTreeMap::new();
        for line in answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let row: serde_json::Value = serde_json::from_slice(line).unwrap();
            let id = row["value"].as_str().and_then(|value| id_of(value.as_bytes()));
            let version = row["version"].as_str().unwrap().parse().unwrap();
            let saw = Saw::Value { id, version, expires: row["expires"].as_u64() };
            let key = row["key"].as_str().unwrap().to_owned();
            if seen.insert(key.clone(), saw).is_some() {
                self.history.faults.push(format!("the range shows {key} twice"));
            }
        }
        let count = seen.len();
        if answer.is_whole {
            for key in keys {
                seen.entry(key.clone()).or_insert(Saw::Absent);
            }
        }
        self.history.reads.extend(seen.into_iter().map(|(key, saw)| Read { key, begun, ended, saw }));
        Some((answer.is_whole, count))
    }

    /// Puts a new value of `bytes` bytes to each of `keys`, all requests sent before the first answer is read.
    pub fn put_pipelined(&mut self, keys: &[String], bytes: usize) {
        let ids: Vec<u64> = keys.iter().map(|_| next_id()).collect();
        let begun = Moment::now();
        let requests = keys.iter().zip(&ids).flat_map(|(key, id)| {
            encode("PUT", &format!("/v0/entity?id={key}"), "", Some(&value_of(*id, bytes)))
        });
        let answers = self.client.pipeline(&requests.collect::<Vec<u8>>(), keys.len());
        for ((key, id), (answer, ended)) in keys.iter().zip(ids).zip(answers) {
            let target = format!("/v0/entity?id={key}");
            self.note("PUT", &target, &answer);
            self.wrote(id, key, What::Put { ttl: None }, "PUT", (begun, ended), &answer);
        }
    }

    fn write(
        &mut self,
        id: u64,
        key: &str,
        what: What,
        method: &'static str,
        target: &str,
        body: Option<&[u8]>,
    ) -> u16 {
        let begun = Moment::now();
        let answer = self.request(method, target, "", body);
        self.wrote(id, key, what, method, (begun, Moment::now()), &answer)
    }

    /// Records the result of a write.
    fn wrote(
        &mut self,
        id: u64,
        key: &str,
        what: What,
        method: &'static str,
        (begun, ended): (Moment, Moment),
        answer: &Result<Answer, NoAnswer>,
    ) -> u16 {
        let (outcome, status) = match answer {
            Ok(answer) => match (answer.status, version_of(answer)) {
                (201 | 202, Some(version)) => (Outcome::Acked(version), answer.status),
                (201 | 202, None) => {
                    self.history.faults.push(format!("{method} {key}: no version: {:?}", answer.headers));
                    (Outcome::Unknown, answer.status)
                }
                (status @ (503 | 507), _) => (Outcome::Refused, status),
                (status, _) => (Outcome::Unknown, status),
            },
            Err(NoAnswer::NotTaken(_)) => (Outcome::Refused, 0),
            Err(NoAnswer::Cut(_)) => (Outcome::Unknown, 0),
        };
        let key = key.to_owned();
        self.history.writes.push(Write { id, key, what, begun, ended, outcome, dead_by: u64::MAX });
        status
    }

    fn request(
        &mut self,
        method: &'static str,
        target: &str,
        headers: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, NoAnswer> {
        let answer = self.client.request(method, target, headers, body);
        self.note(method, target, &answer);
        answer
    }

    /// Counts an answer, and checks that a failure has an explanation.
    fn note(&mut self, method: &'static str, target: &str, answer: &Result<Answer, NoAnswer>) {
        if matches!(answer, Err(NoAnswer::NotTaken(_))) {
            return;
        }
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        *self.history.statuses.entry((method, status)).or_default() += 1;
        if let Ok(answer) = answer
            && status >= 400
            // The first line feed is the last byte, or the body is empty or several lines.
            && memchr::memchr(b'\n', &answer.body).map(|at| at + 1) != Some(answer.body.len())
        {
            let text = answer.text();
            self.history.faults.push(format!("{method} {target}: {status} without a line of text: {text:?}"));
        }
    }
}

fn version_of(answer: &Answer) -> Option<kvorum_core::Version> {
    answer.header("etag")?.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// The load of a set of clients: each has keys of its own, and all share some.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Clients at once.
    pub clients: u64,
    /// Keys of each client's own.
    pub own_keys: u64,
    /// Keys that all share.
    pub hot_keys: u64,
    /// Percentage of PUTs.
    pub puts: u64,
    /// Percentage of DELETEs; the rest are GETs.
    pub deletes: u64,
    /// Percentage of PUTs with a TTL.
    pub ttls: u64,
    /// Value sizes: mostly from the first to below the second, one in 16 up to the third.
    pub bytes: (u64, u64, u64),
}

impl Load {
    /// A mix of all requests.
    pub const MIXED: Self = Self {
        clients: 5,
        own_keys: 12,
        hot_keys: 4,
        puts: 45,
        deletes: 15,
        ttls: 20,
        bytes: (24, 600, 100_000),
    };

    /// Runs the clients for as long as `during` runs, and returns their operations. `during` must raise the
    /// flag that it gets before it kills the node: a connection that is cut before that is a fault of the
    /// node.
    pub fn run(&self, address: SocketAddr, seed: u64, during: impl FnOnce(&AtomicBool)) -> History {
        let (stop, dying) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut history = History::default();
        thread::scope(|scope| {
            let client = |index: u64| {
                let (stop, dying) = (&stop, &dying);
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ (index << 32));
                    let mut session = Session::new(address);
                    while !stop.load(Ordering::Relaxed) {
                        if self.step(&mut session, &mut random, index) == 0 {
                            if !dying.load(Ordering::SeqCst) {
                                session.history.faults.push("a living node cut the connection".to_owned());
                            }
                            break;
                        }
                    }
                    session.history
                })
            };
            let clients: Vec<_> = (0..self.clients).map(client).collect();
            let stopping = Stop(&stop);
            during(&dying);
            drop(stopping);
            for client in clients {
                history.absorb(client.join().unwrap());
            }
        });
        history
    }

    fn step(&self, session: &mut Session, random: &mut Random, client: u64) -> u16 {
        let key = if random.chance(30) {
            format!("hot-{}", random.within(0, self.hot_keys))
        } else {
            format!("own-{client}-{}", random.within(0, self.own_keys))
        };
        let action = random.within(0, 100);
        if action < self.puts {
            let (low, high, highest) = self.bytes;
            let high = if random.chance(6) { highest } else { high };
            let ttl = random.chance(self.ttls).then(|| random.within(50, 3_000));
            session.put(&key, usize::try_from(random.within(low, high)).unwrap(), ttl)
        } else if action < self.puts + self.deletes {
            session.delete(&key)
        } else {
            session.get(&key)
        }
    }
}

/// Stops the clients when it is dropped, also by a failed assertion: a scope waits for its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads every key of `history`, by itself and in a range, and adds the reads to it.
pub fn read_all(address: SocketAddr, history: &mut History) {
    let keys = history.keys();
    let mut session = Session::new(address);
    for key in &keys {
        let status = session.get(key);
        if status != 200 && status != 404 {
            session.history.faults.push(format!("GET {key} after the restart: {status}"));
        }
    }
    if !session.range(&keys).is_some_and(|(is_whole, _)| is_whole) {
        session.history.faults.push("the range of all keys was refused or cut".to_owned());
    }
    history.absorb(session.history);
}
