//! Clients: each sends requests, and records their begin, end and result.

use crate::history::{
    Asked, Class, History, Moment, Outcome, Read, Saw, What, Write, id_of, next_id, value_of,
};
use crate::http::{Answer, Client, NoAnswer, encode};
use crate::{PATIENCE, percent, version_of};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// The longest that a client of several nodes waits for an answer: longer than the nodes' own time-out, shorter than
/// pauses.
const CLIENT_WAIT: Duration = Duration::from_secs(3);

/// One client with a connection to each node, and its operations.
///
/// The methods without a node and a class are for a node without peers. All return the status, or the code of
/// [`Asked::status`].
pub struct Session {
    clients: Vec<Client>,
    /// Its operations so far.
    pub history: History,
}

impl Session {
    /// A client of the node at `address`, which has no peers.
    pub fn new(address: SocketAddr) -> Self {
        Self { clients: vec![Client::new(address, PATIENCE)], history: History::default() }
    }

    /// A client of the nodes at `addresses`.
    pub fn of_all(addresses: &[SocketAddr]) -> Self {
        let clients = addresses.iter().map(|address| Client::new(*address, CLIENT_WAIT)).collect();
        Self { clients, history: History::default() }
    }

    /// Puts a new value of `bytes` bytes.
    pub fn put(&mut self, key: &str, bytes: usize, ttl: Option<u64>) -> u16 {
        let id = next_id();
        self.write(0, Class::ALONE, key.as_bytes(), What::Put { ttl }, id, Some(&value_of(id, bytes)))
    }

    /// Deletes a key.
    pub fn delete(&mut self, key: &str) -> u16 {
        self.delete_at(0, Class::ALONE, key.as_bytes())
    }

    /// Reads a key.
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> u16 {
        self.get_at(0, Class::ALONE, key.as_ref())
    }

    /// Puts a new value of `bytes` bytes.
    pub fn put_at(&mut self, node: usize, class: Class, key: &[u8], bytes: usize) -> u16 {
        let id = next_id();
        self.write(node, class, key, What::PUT, id, Some(&value_of(id, bytes)))
    }

    /// Deletes a key.
    pub fn delete_at(&mut self, node: usize, class: Class, key: &[u8]) -> u16 {
        self.write(node, class, key, What::Delete, next_id(), None)
    }

    /// Reads a key.
    pub fn get_at(&mut self, node: usize, class: Class, key: &[u8]) -> u16 {
        let number = self.history.asked.len() as u64;
        let target = target(class, class.quorum_of(class.read, number), key, None);
        let (answer, begun, ended) = self.request(node, class, "GET", &target, "", None);
        let Ok(answer) = answer else { return self.last_status() };
        let saw = match answer.status {
            200 => {
                let expires = answer.header("kvorum-expires").map(str::parse).transpose();
                let (Some(version), Ok(expires)) = (version_of(&answer), expires) else {
                    let text = format!("GET {target}: no version or expiry: {:?}", answer.headers);
                    self.history.complaints.push(text);
                    return answer.status;
                };
                Saw::Value { id: id_of(&answer.body), version, expires }
            }
            404 => Saw::Absent,
            _ => return answer.status,
        };
        self.history.reads.push(Read { key: key.to_vec(), class, node, begun, ended, saw });
        answer.status
    }

    /// Reads all keys of a node without peers as a range. A whole one counts as a read of each of `keys`, a cut one
    /// as a read of those it shows. Returns whether it was whole, and the number of records; `None` if it was refused.
    pub fn range<'a>(&mut self, keys: impl IntoIterator<Item = &'a Vec<u8>>) -> Option<(bool, usize)> {
        let headers = "Accept: application/x-ndjson\r\n";
        let (answer, begun, ended) =
            self.request(0, Class::ALONE, "GET", "/v0/entities?start=%00", headers, None);
        let answer = answer.ok().filter(|answer| answer.status == 200)?;
        let mut seen = BTreeMap::new();
        for line in answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let row: serde_json::Value = serde_json::from_slice(line).unwrap();
            let id = row["value"].as_str().and_then(|value| id_of(value.as_bytes()));
            let version = row["version"].as_str().unwrap().parse().unwrap();
            let saw = Saw::Value { id, version, expires: row["expires"].as_u64() };
            let key = row["key"].as_str().unwrap();
            if seen.insert(key.as_bytes().to_vec(), saw).is_some() {
                self.history.complaints.push(format!("the range shows {key} twice"));
            }
        }
        let count = seen.len();
        if answer.is_whole {
            for key in keys {
                seen.entry(key.clone()).or_insert(Saw::Absent);
            }
        }
        let read = |(key, saw)| Read { key, class: Class::ALONE, node: 0, begun, ended, saw };
        self.history.reads.extend(seen.into_iter().map(read));
        Some((answer.is_whole, count))
    }

    /// Puts a new value of `bytes` bytes to each of `keys` at a node without peers, all requests sent before the
    /// first answer is read.
    pub fn put_pipelined(&mut self, keys: &[String], bytes: usize) {
        let class = Class::ALONE;
        let ids: Vec<u64> = keys.iter().map(|_| next_id()).collect();
        let target = |key: &String| target(class, class.write, key.as_bytes(), None);
        let begun = Moment::now();
        let requests = keys
            .iter()
            .zip(&ids)
            .flat_map(|(key, id)| encode("PUT", &target(key), "", Some(&value_of(*id, bytes))));
        let answers = self.clients[0].pipeline(&requests.collect::<Vec<u8>>(), keys.len());
        for ((key, id), (answer, ended)) in keys.iter().zip(ids).zip(answers) {
            self.note(0, class, "PUT", &target(key), (begun, ended), &answer);
            self.wrote(0, class, key.as_bytes(), What::PUT, id, (begun, ended), &answer);
        }
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
        let (method, ttl) = match what {
            What::Put { ttl } => ("PUT", ttl),
            What::Delete => ("DELETE", None),
        };
        let target = target(class, class.quorum_of(class.write, id), key, ttl);
        let (answer, begun, ended) = self.request(node, class, method, &target, "", body);
        self.wrote(node, class, key, what, id, (begun, ended), &answer);
        self.last_status()
    }

    /// Records the result of a write.
    #[expect(clippy::too_many_arguments, reason = "the fields of a write, and its answer")]
    fn wrote(
        &mut self,
        node: usize,
        class: Class,
        key: &[u8],
        what: What,
        id: u64,
        (begun, ended): (Moment, Moment),
        answer: &Result<Answer, NoAnswer>,
    ) {
        let outcome = match answer {
            Ok(answer) => match (answer.status, version_of(answer)) {
                (201 | 202, Some(version)) => Outcome::Acked(version),
                (201 | 202, None) => {
                    let text = format!("{}: no version: {:?}", key.escape_ascii(), answer.headers);
                    self.history.complaints.push(text);
                    Outcome::Unknown
                }
                (503 | 507, _) => Outcome::Refused,
                _ => Outcome::Unknown,
            },
            Err(NoAnswer::NotTaken(_)) => Outcome::Refused,
            Err(NoAnswer::Cut(_) | NoAnswer::Late(_)) => Outcome::Unknown,
        };
        let key = key.to_vec();
        let write = Write { id, key, class, node, what, begun, ended, outcome, dead_by: u64::MAX };
        self.history.writes.push(write);
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
        headers: &str,
        body: Option<&[u8]>,
    ) -> (Result<Answer, NoAnswer>, Moment, Moment) {
        let begun = Moment::now();
        let answer = self.clients[node].request(method, target, headers, body);
        let ended = Moment::now();
        self.note(node, class, method, target, (begun, ended), &answer);
        (answer, begun, ended)
    }

    /// Counts an answer, and checks that a failure has an explanation.
    fn note(
        &mut self,
        node: usize,
        class: Class,
        method: &'static str,
        target: &str,
        (begun, ended): (Moment, Moment),
        answer: &Result<Answer, NoAnswer>,
    ) {
        let status = match answer {
            Ok(answer) => answer.status,
            Err(NoAnswer::Cut(_)) => Asked::CUT,
            Err(NoAnswer::NotTaken(_)) => Asked::NOT_SENT,
            Err(NoAnswer::Late(_)) => Asked::LATE,
        };
        if let Ok(answer) = answer
            && status >= 400
            // The first line feed is the last byte, or the body is empty or several lines.
            && memchr::memchr(b'\n', &answer.body).map(|at| at + 1) != Some(answer.body.len())
        {
            let text = answer.body.escape_ascii();
            self.history
                .complaints
                .push(format!("{method} {target}: {status} without a line of text: {text}"));
        }
        // The store of a node without peers may have failed; among others there is always one whose store has not.
        if class != Class::ALONE && (status == 500 || status == 400) {
            self.history.complaints.push(format!("{method} {target}: {status}"));
        }
        let (begun, ended) = (begun.mono, ended.mono);
        self.history.asked.push(Asked { node, class, method, begun, ended, status });
    }
}

fn target(class: Class, (ack, from): (u16, u16), key: &[u8], ttl: Option<u64>) -> String {
    let mut target = format!("/v0/entity?id={}", percent(key));
    if !class.is_default {
        let _ = write!(target, "&replicas={ack}/{from}");
    }
    if let Some(ttl) = ttl {
        let _ = write!(target, "&ttl={ttl}ms");
    }
    target
}

/// Reads every key of `history` from the node at `address`, which has no peers, by itself and in a range, and adds
/// the reads to it.
pub fn read_all(address: SocketAddr, history: &mut History) {
    let keys = history.keys();
    let mut session = Session::new(address);
    for key in keys.keys() {
        let status = session.get(key);
        if status != 200 && status != 404 {
            let key = key.escape_ascii();
            session.history.complaints.push(format!("GET {key} after the restart: {status}"));
        }
    }
    if !session.range(keys.keys()).is_some_and(|(is_whole, _)| is_whole) {
        session.history.complaints.push("the range of all keys was refused or cut".to_owned());
    }
    history.absorb(session.history);
}
