//! The cost of a call, measured.

use super::support::*;
use crate::clock::Clock;
use crate::peer::*;
use crate::replica::Floor;
use bytes::{Bytes, BytesMut};
use kvorum_core::Key;
use kvorum_core::agreement::Epoch;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// Prints the cost of a call over a loopback socket, as CPU time of either side. It checks nothing: run it with
/// `cargo test --release -p kvorum --lib peer::tests::cost -- --ignored --nocapture`.
#[test]
#[expect(clippy::too_many_lines, reason = "one measurement, told once")]
#[ignore = "prints figures and judges nothing: for a release build on a quiet machine"]
fn cost_of_a_call() {
    let (address, addresses) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let real = |test: Pin<Box<dyn Future<Output = ()>>>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    };
    let get = Request::Get { key: Key::new("k".repeat(20)).unwrap(), value_bytes_max: u32::MAX };
    let server = move || {
        real(Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "the measurement brings its own socket")]
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            let record = record_of(100);
            let peer = Peer::new(move |request| {
                let held = Held::Whole(record.clone());
                Box::pin(async move {
                    if let Request::Versions { .. } = request {
                        tokio::task::yield_now().await;
                        return Reply::VersionList {
                            rows: Vec::new(),
                            is_last: true,
                            floor: Floor::default(),
                        };
                    }
                    Reply::Found(Some(held))
                })
            });
            let serving = async {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut head = BytesMut::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        stream.read_buf(&mut head).await.unwrap();
                    }
                    let headers =
                        hello(PEER).headers().into_iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                    let headers: String = headers.collect();
                    let answer = format!("HTTP/1.1 101 Fine\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n{headers}\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    let service = Rc::new(Bare { peer: Rc::clone(&peer) });
                    let (protocol, epoch) = (PROTOCOL, Epoch(0));
                    let caller = Caller { peer: US, connection: 1, protocol, epoch };
                    let clock = Arc::new(crate::clock::SystemClock::new());
                    let limits = limits(Arc::clone(&clock) as Arc<dyn Clock>);
                    spawn_local(serve(stream, Bytes::new(), service, caller, clock, limits));
                }
            };
            tokio::select! {
                () = serving => {}
                _ = stopped => {}
            }
        }));
    };
    #[expect(clippy::disallowed_methods, reason = "the measurement has a thread for each side")]
    let server = std::thread::Builder::new().name("cost-server".to_owned()).spawn(server).unwrap();
    let address = addresses.recv().unwrap();
    real(Box::pin(async move {
        let link = Link::start(LinkParts {
            authority: address.to_string(),
            peer: PEER,
            connector: Rc::new(Tcp),
            hello: Box::new(|| hello(US)),
            epoch: Box::new(|| Epoch(0)),
            clock: Arc::new(crate::clock::SystemClock::new()),
            limits: limits(Arc::new(crate::clock::SystemClock::new())),
            auth: Arc::default(),
            rng: Arc::new(LongestRng),
            observer: Rc::new(Witness::default()),
            supervisor: crate::supervise::Supervisor::default(),
        });
        while !link.is_usable() {
            sleep(Duration::from_millis(1)).await;
        }
        let waits = Request::Versions { partition: 0, after: None, bytes: 0, floor: Floor::default() };
        for (name, request) in [("answered at once", &get), ("answered by a task", &waits)] {
            for callers in [64, 8, 1] {
                let calls = 1_000_000 * callers / (callers + 8);
                let before = (cpu_nanos("self"), cpu_nanos("cost-server"));
                let tasks: Vec<_> = (0..callers)
                    .map(|_| {
                        let (link, request) = (Rc::clone(&link), request.clone());
                        spawn_local(async move {
                            for _ in 0..calls / callers {
                                link.call(&request, SECOND).await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                let each = |before: u64, after: u64| (after - before) / u64::try_from(calls).unwrap();
                let (client, server) =
                    (each(before.0, cpu_nanos("self")), each(before.1, cpu_nanos("cost-server")));
                println!("{name}, {callers} callers: {client} ns calling, {server} ns serving");
            }
        }
    }));
    stop.send(()).unwrap();
    server.join().unwrap();
}

/// A service that answers without recording the requests.
struct Bare {
    peer: Rc<Peer>,
}

impl Service for Bare {
    fn serve(&self, _: Caller, request: Request, _: Duration) -> Work {
        self.peer.answer.borrow()(request)
    }

    fn ended(&self, _: Caller) {}
}

struct Tcp;

impl Connector for Tcp {
    fn connect<'a>(
        &'a self,
        authority: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + 'a>> {
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "the measurement brings its own socket")]
            let stream = tokio::net::TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

/// CPU time of this thread or of the one with `name`, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "the measurement reads the system's accounts")]
fn cpu_nanos(name: &str) -> u64 {
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    if name == "self" {
        return of("/proc/thread-self".into());
    }
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let is_named =
        |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap().trim() == name;
    of(threads.into_iter().find(is_named).unwrap())
}
