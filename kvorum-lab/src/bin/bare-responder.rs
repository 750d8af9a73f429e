//! The bare responder: the least that can be called an HTTP server, and so the limit for one.
//!
//! One thread and one epoll for each address; for every read that brings bytes it sends one fixed response with a 100-byte
//! body, without looking at the request: one recv and one send a request, and epoll only when there is nothing to
//! read. What a node costs above this is what it does itself. With `--busy` each answer costs so much of the thread's
//! processor, its calls included, and the rest is spun away: then its latencies are what this machine leaves of those of a
//! server that needs as much, however many requests wait. Usage: `bare-responder [--busy MICROSECONDS] [HOST:PORT ...]`.
//!
//! A request must fit one read, as those of the bench do: a request in two pieces would get two answers.
#![expect(clippy::disallowed_types, reason = "the lab measures the real machine")]

use std::collections::HashMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
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

/// The event of the listening socket; connections count up from the next number.
const LISTENER: u64 = 0;

fn main() -> ExitCode {
    let Some((busy, addresses)) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: bare-responder [--busy MICROSECONDS] [HOST:PORT ...]");
        return ExitCode::FAILURE;
    };
    thread::scope(|scope| {
        for address in &addresses {
            scope.spawn(move || match serve(address, Busy::new(busy)) {
                Ok(never) => match never {},
                Err(error) => {
                    eprintln!("bare-responder {address}: {error}");
                    // The others would answer for it.
                    std::process::exit(1);
                }
            });
        }
    });
    ExitCode::FAILURE
}

/// What each answer is to cost, and where to listen.
fn parse(mut words: impl Iterator<Item = String>) -> Option<(Duration, Vec<String>)> {
    let (mut busy, mut addresses) = (Duration::ZERO, Vec::new());
    while let Some(word) = words.next() {
        if word == "--busy" {
            busy = Duration::from_micros(words.next()?.parse().ok()?);
        } else if word.starts_with('-') {
            return None;
        } else {
            addresses.push(word);
        }
    }
    if addresses.is_empty() {
        addresses.push("127.0.0.1:8080".to_owned());
    }
    Some((busy, addresses))
}

/// Keeps the thread that calls busy for so long an answer.
struct Busy {
    each: Duration,
    /// What all answers so far were to cost.
    owed: Duration,
}

impl Busy {
    fn new(each: Duration) -> Self {
        Self { each, owed: Duration::ZERO }
    }

    /// Spends what one more answer has left over. What a thread needs by itself it does not spend again.
    fn spend_one(&mut self) {
        self.owed += self.each;
        while !self.each.is_zero() && cpu_time_of_thread() < self.owed {
            std::hint::spin_loop();
        }
    }
}

fn cpu_time_of_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
}

fn serve(address: &str, mut busy: Busy) -> io::Result<std::convert::Infallible> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let response = response();
    let mut connections: HashMap<u64, TcpStream> = HashMap::new();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut request = vec![0_u8; READ_BYTES];
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
                    connections.insert(next, connection);
                    next += 1;
                }
            } else if let Some(connection) = connections.get(&id)
                && !answer(connection, &mut request, &response, &mut busy)
            {
                // Closing the socket takes it out of the epoll.
                connections.remove(&id);
            }
        }
    }
}

/// One recv, one send. `false` = the connection is at its end.
fn answer(connection: &TcpStream, request: &mut [u8], response: &[u8], busy: &mut Busy) -> bool {
    match recv(connection, request, RecvFlags::empty()) {
        Ok((_, 0)) => false,
        Ok(_) => {
            busy.spend_one();
            // A full send buffer would need a queue; a client that waits for each answer cannot fill it.
            send(connection, response, SendFlags::NOSIGNAL) == Ok(response.len())
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}

fn response() -> Vec<u8> {
    let body = "x".repeat(BODY_BYTES);
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\n\r\n{body}"
    )
    .into_bytes()
}
