//! Servers for tests: one that follows a script, where each connection answers canned bytes, one step per
//! request; and one that answers every request by a rule.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The server's step for the next request of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Reads it, and writes these bytes.
    Answer(&'static str),
    /// Reads it, and closes the connection.
    Close,
    /// Reads it and all that follows, and answers nothing.
    Hang,
}

/// A server that follows one script per connection, in the order in which they come. When a script ends, its
/// connection is closed. When no script is left, the server stops listening.
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<(usize, usize)>>,
    accepting: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "the test owns its sockets")]
pub(crate) async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// The URL of a node that does not run.
pub(crate) async fn nobody() -> String {
    listen().await.1
}

impl Server {
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let (listener, url) = listen().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new((0, 0)));
        let (saw, counts) = (Arc::clone(&seen), Arc::clone(&connections));
        let accepting = tokio::spawn(async move {
            for script in scripts {
                let (stream, _) = listener.accept().await.unwrap();
                counts.lock().unwrap().0 += 1;
                let (saw, counts) = (Arc::clone(&saw), Arc::clone(&counts));
                tokio::spawn(async move {
                    follow(stream, script, &saw).await;
                    counts.lock().unwrap().1 += 1;
                });
            }
        });
        Self { url, seen, connections, accepting }
    }

    /// The requests so far: the request line, and the body where there is one.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// How many connections were made, and how many of them are closed.
    pub(crate) fn connections(&self) -> (usize, usize) {
        *self.connections.lock().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The answer of a [`Fake`] to a request.
pub(crate) enum Reply {
    /// Writes this text.
    Text(String),
    /// Closes the connection.
    Close,
    /// Answers nothing.
    Hang,
    /// Gives the reply after a delay.
    Late(Duration, Box<Reply>),
}

/// A server that answers every request by the same rule, on any number of connections.
pub(crate) struct Fake {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
    closed_by_client: Arc<Mutex<usize>>,
    accepting: JoinHandle<()>,
}

impl Fake {
    pub(crate) async fn start(rule: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let (listener, url) = listen().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let closed_by_client = Arc::new(Mutex::new(0));
        let (saw, closed, rule) = (Arc::clone(&seen), Arc::clone(&closed_by_client), Arc::new(rule));
        let accepting = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (saw, closed, rule) = (Arc::clone(&saw), Arc::clone(&closed), Arc::clone(&rule));
                tokio::spawn(async move {
                    while let Some(request) = read_request(&mut stream).await {
                        let mut reply = rule(&request);
                        saw.lock().unwrap().push(request);
                        while let Reply::Late(wait, then) = reply {
                            tokio::time::sleep(wait).await;
                            reply = *then;
                        }
                        match reply {
                            Reply::Text(text) if stream.write_all(text.as_bytes()).await.is_ok() => {}
                            Reply::Hang => {}
                            _ => return,
                        }
                    }
                    *closed.lock().unwrap() += 1;
                });
            }
        });
        Self { url, seen, closed_by_client, accepting }
    }

    /// The requests so far, in the form of [`Server::seen`].
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests were equal to `request`.
    pub(crate) fn count(&self, request: &str) -> usize {
        self.seen().iter().filter(|seen| *seen == request).count()
    }

    /// How many connections the client has closed.
    pub(crate) fn closed_by_client(&self) -> usize {
        *self.closed_by_client.lock().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn follow(mut stream: TcpStream, script: Vec<Step>, seen: &Mutex<Vec<String>>) {
    for step in script {
        let Some(request) = read_request(&mut stream).await else { return };
        seen.lock().unwrap().push(request);
        match step {
            Step::Answer(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
            Step::Close => return,
            Step::Hang => while read_request(&mut stream).await.is_some() {},
        }
    }
}

/// Reads one request with its body; `None` when the connection ends.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
    Some(format!("{line} {}", String::from_utf8(body).unwrap()).trim_end().to_owned())
}
