//! The bare responder: the simplest program that can be called an HTTP server, and so the limit for one.
//!
//! One thread and one epoll for each address. For every read that brings bytes it sends one fixed response
//! with a 100-byte body, without looking at the request. That is one recv and one send per request, and epoll
//! only when there is nothing to read. A node's cost above this is the cost of its own work.
//!
//! - With `--busy`, each answer costs a fixed time of the thread's processor, system calls included; the rest
//!   of that time is spun away. The latencies then show how a server that needs this much time does on this
//!   machine, however many requests wait.
//! - With `--sync`, each address has a file in that directory. A request is answered once it has been
//!   appended there and synced, together with all requests that arrived during the previous sync. The
//!   latencies then show this machine and its disk under a server that loses nothing. The cost of syncs
//!   counts as busy.
//! - With `--acks`, a request is appended to the files of all addresses, and answered once it is synced in
//!   that many. It is the cheapest possible replicated write, because no network is involved.
//!
//! Usage: `bare-responder [--busy MICROSECONDS] [--sync DIRECTORY [--acks COUNT]] [HOST:PORT ...]`.
//!
//! A request must fit one read, as those of the bench do: a request in two pieces would get two answers.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the lab measures the real machine")]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Body of every response, as large as the value of the bench.
const BODY_BYTES: usize = 100;

/// Bytes of one read: larger than any request of the bench.
const READ_BYTES: usize = 16 * 1024;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;

/// Bytes that a journal's file has from the beginning: a sync need not update its length, as in most engines.
const JOURNAL_BYTES: u64 = 64 << 20;

/// The event of the listening socket; connections count up from the next number.
const LISTENER: u64 = 0;

/// The settings of the responders.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The processor time of each answer.
    busy: Duration,
    /// The directory of the files that requests are synced to.
    sync: Option<PathBuf>,
    /// The number of files in which a request is synced before it is answered; `None`: its address's own
    /// file.
    acks: Option<i32>,
    /// Where to listen.
    addresses: Vec<String>,
}

fn main() -> ExitCode {
    let Some(plan) = parse(std::env::args().skip(1)) else {
        kvorum_output::tell_line!(
            "usage: bare-responder [--busy MICROSECONDS] [--sync DIRECTORY [--acks COUNT]] [HOST:PORT ...]"
        );
        return ExitCode::FAILURE;
    };
    let journals: Vec<Journal> = plan.addresses.iter().map(|_| Journal::default()).collect();
    thread::scope(|scope| {
        for ((address, journal), number) in plan.addresses.iter().zip(&journals).zip(0..) {
            let is_synced = plan.sync.as_ref().map(|directory| {
                let path = directory.join(format!("bare-journal-{number}"));
                scope.spawn(move || end(&path.display().to_string(), journal.write(&path)));
            });
            let busy = Busy { each: plan.busy, owed: Duration::ZERO, journal };
            let (own, all) = (std::slice::from_ref(journal), &*journals);
            let to = is_synced.map(|()| plan.acks.map_or((own, 1), |acks| (all, acks)));
            scope.spawn(move || {
                end(address, TcpListener::bind(address).and_then(|listener| serve(&listener, busy, to)))
            });
        }
    });
    ExitCode::FAILURE
}

/// Ends the process: otherwise the other responders would hide the failure.
fn end(place: &str, outcome: io::Result<std::convert::Infallible>) -> ! {
    match outcome {
        Ok(never) => match never {},
        Err(error) => kvorum_output::tell_line!("bare-responder {place}: {error}"),
    }
    std::process::exit(1)
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Plan> {
    let mut plan = Plan::default();
    while let Some(word) = words.next() {
        match &*word {
            "--busy" => plan.busy = Duration::from_micros(words.next()?.parse().ok()?),
            "--sync" => plan.sync = Some(PathBuf::from(words.next()?)),
            "--acks" => plan.acks = Some(words.next()?.parse().ok().filter(|acks| *acks > 0)?),
            flag if flag.starts_with('-') => return None,
            _ => plan.addresses.push(word),
        }
    }
    if plan.addresses.is_empty() {
        plan.addresses.push("127.0.0.1:8080".to_owned());
    }
    let files = plan.sync.as_ref().map_or(0, |_| plan.addresses.len());
    let acks = usize::try_from(plan.acks.unwrap_or_default()).ok()?;
    (acks <= files).then_some(plan)
}

/// Requests that wait to be synced.
#[derive(Default)]
struct Journal {
    // Guards the waiting requests; held for a push, or to take all of them.
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// Nanoseconds of processor time that syncing took so far.
    cost: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    requests: Vec<Arc<Pending>>,
}

/// A request that has been read and not answered.
struct Pending {
    connection: Arc<TcpStream>,
    /// Syncs until it is answered; the thread that makes the last one answers it.
    missing: AtomicI32,
}

impl Journal {
    fn push(&self, pending: &Arc<Pending>, request: &[u8]) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes.extend_from_slice(request);
        waiting.requests.push(Arc::clone(pending));
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Writes waiting requests to a new file at `path`, syncs and answers them, in an endless loop.
    fn write(&self, path: &Path) -> io::Result<std::convert::Infallible> {
        let mut file = File::create(path)?;
        file.set_len(JOURNAL_BYTES)?;
        let response = response();
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let mut waiting = self
                .arrived
                .wait_while(waiting, |waiting| waiting.requests.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let group = std::mem::take(&mut *waiting);
            drop(waiting);
            file.write_all(&group.bytes)?;
            file.sync_data()?;
            for pending in group.requests {
                if pending.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                    // A client that has gone needs no answer.
                    let _ = send(&pending.connection, &response, SendFlags::NOSIGNAL);
                }
            }
            let cost = u64::try_from(cpu_time_of_thread().as_nanos()).unwrap_or(u64::MAX);
            self.cost.store(cost, Ordering::Relaxed);
        }
    }
}

/// Keeps the calling thread busy for a fixed time per answer.
struct Busy<'a> {
    each: Duration,
    /// The processor time that all answers so far should have taken.
    owed: Duration,
    /// The journal whose thread's processor time counts too.
    journal: &'a Journal,
}

impl Busy<'_> {
    /// Spins away the rest of one more answer's time. Time that the thread used for its own work counts.
    fn spend_one(&mut self) {
        self.owed += self.each;
        let synced = || Duration::from_nanos(self.journal.cost.load(Ordering::Relaxed));
        while !self.each.is_zero() && cpu_time_of_thread() + synced() < self.owed {
            std::hint::spin_loop();
        }
    }
}

fn cpu_time_of_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
}

/// Answers each request, at once or after that many syncs in these journals.
fn serve(
    listener: &TcpListener,
    mut busy: Busy,
    sync: Option<(&[Journal], i32)>,
) -> io::Result<std::convert::Infallible> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let response = response();
    let mut connections: HashMap<u64, Arc<TcpStream>> = HashMap::new();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut request = vec![0_u8; READ_BYTES];
    let answer = |connection: &Arc<TcpStream>, request: &[u8]| match sync {
        Some((journals, acks)) => {
            let (connection, missing) = (Arc::clone(connection), AtomicI32::new(acks));
            let pending = Arc::new(Pending { connection, missing });
            for journal in journals {
                journal.push(&pending, request);
            }
            true
        }
        // A full send buffer would need a queue; a client that waits for each answer cannot fill it.
        None => send(connection, &response, SendFlags::NOSIGNAL) == Ok(response.len()),
    };
    loop {
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in events.drain(..) {
            let id = event.data.u64();
            if id == LISTENER {
                if let Ok((connection, _)) = listener.accept() {
                    connection.set_nonblocking(true)?;
                    connection.set_nodelay(true)?;
                    epoll::add(&epoll, &connection, EventData::new_u64(next), EventFlags::IN)?;
                    connections.insert(next, Arc::new(connection));
                    next += 1;
                }
            } else if let Some(connection) = connections.get(&id) {
                let is_open = match recv(connection, &mut request, RecvFlags::empty()) {
                    Ok((_, 0)) => false,
                    Ok((bytes, _)) => {
                        busy.spend_one();
                        answer(connection, request.get(..bytes).unwrap_or_default())
                    }
                    Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
                };
                if !is_open {
                    // Closing the socket takes it out of the epoll.
                    connections.remove(&id);
                }
            }
        }
    }
}

fn response() -> Vec<u8> {
    let body = "x".repeat(BODY_BYTES);
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn plan(words: &str) -> Option<Plan> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    /// Arguments are parsed; `--acks` is at most the number of files.
    #[test]
    fn words_are_understood() {
        let plain = plan("").unwrap();
        assert_eq!((plain.busy, plain.sync, plain.addresses.len()), (Duration::ZERO, None, 1));
        let full = plan("--busy 70 a:1 --sync dir --acks 2 b:1").unwrap();
        assert_eq!((full.busy, full.acks), (Duration::from_micros(70), Some(2)));
        assert_eq!((full.sync, full.addresses.len()), (Some(PathBuf::from("dir")), 2));
        for bad in
            ["--busy", "--busy x", "--sync", "--acks 1", "--sync d --acks 0", "--sync d --acks 2", "-x"]
        {
            assert_eq!(plan(bad), None, "{bad}");
        }
    }

    /// Goal: a request is answered after as many syncs as it asks for, and is in each file then. Method: two journals, of
    /// which the second one's thread is started late.
    #[test]
    fn answers_wait_for_syncs() {
        let directory = tempfile::TempDir::new().unwrap();
        let journals: &'static [Journal] = Box::leak(Box::new([Journal::default(), Journal::default()]));
        let paths = [0, 1].map(|number| directory.path().join(number.to_string()));
        let start = |number: usize| {
            let path = paths[number].clone();
            thread::spawn(move || journals[number].write(&path));
        };
        let connect = |acks| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let busy = Busy { each: Duration::from_micros(1), owed: Duration::ZERO, journal: &journals[0] };
            thread::spawn(move || serve(&listener, busy, Some((journals, acks))));
            let client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
            client
        };
        let answer = |client: &mut TcpStream| {
            let mut answer = vec![0; response().len()];
            client.read_exact(&mut answer).map(|()| assert_eq!(answer, response()))
        };
        start(0);
        let mut of_one = connect(1);
        of_one.write_all(b"one").unwrap();
        answer(&mut of_one).unwrap();
        assert!(std::fs::read(&paths[0]).unwrap().starts_with(b"one"));
        let mut of_two = connect(2);
        of_two.write_all(b"two").unwrap();
        of_two.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        answer(&mut of_two).unwrap_err();
        of_two.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        start(1);
        answer(&mut of_two).unwrap();
        assert!(paths.iter().all(|path| std::fs::read(path).unwrap().starts_with(b"onetwo")));
    }
}
