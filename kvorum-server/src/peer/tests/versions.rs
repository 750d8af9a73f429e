//! Connections of two versions of the protocol.

use super::messages::notes;
use super::support::*;
use crate::clock::Clock;
use crate::peer::frame::Pieces;
use crate::peer::*;
use kvorum_core::Key;
use kvorum_core::agreement::Epoch;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, duplex};

/// Goal: a request that the peer's version does not have fails at once with a name, and a note that it does not have is left
/// out; all else gets through. Method: a link to a peer that speaks version 7 only, and to one that speaks 8.
#[test]
fn what_a_peer_does_not_speak_is_not_sent() {
    run(async {
        for protocol in [7, 8] {
            let peer = Peer::new(|request| {
                let reply = match request {
                    Request::Promise { .. } => Reply::PromiseIs(None),
                    _ => Reply::Found(None),
                };
                Box::pin(std::future::ready(reply))
            });
            peer.protocols.set(Protocols::SPOKEN.up_to(protocol).unwrap());
            let link = connected(&peer).await;
            assert_eq!(link.protocol(), protocol);
            let key = Key::new("k").unwrap();
            let asked = link.call(&Request::Promise { key: key.clone() }, SECOND).await;
            let unknown = CallError::NotSent { reason: Unsent::NotSpoken { since: 8, protocol: 7 } };
            assert_eq!(asked, if protocol == 7 { Err(unknown) } else { Ok(Reply::PromiseIs(None)) });
            let Note::Trace(trace) = notes()[0] else { panic!() };
            let get = Request::Get { key, value_bytes_max: 1 };
            for _ in 0..2 {
                assert_eq!(
                    link.call_within(&get, SECOND, Epoch(0), Some(trace)).await,
                    Ok(Reply::Found(None))
                );
            }
            assert_eq!(link.call(&get, SECOND).await, Ok(Reply::Found(None)));
            let seen = if protocol == 7 { vec![] } else { vec![trace; 2] };
            assert_eq!(*peer.traces.borrow(), seen, "version {protocol}");
            assert_eq!(link.counts().connects, 1);
        }
    });
}

/// Goal: a peer that sends what the connection's version does not have loses the connection. Method: the frames of a request
/// and of a note of version 8, on connections that speak 7 and 8.
#[test]
fn what_the_connection_does_not_speak_ends_it() {
    run(async {
        let clock: Arc<dyn Clock> = Arc::new(TestClock { begun: tokio::time::Instant::now() });
        let key = Key::new("k").unwrap();
        let (promise, get) =
            (Request::Promise { key: key.clone() }, Request::Get { key, value_bytes_max: 1 });
        let note = notes().remove(0);
        for (kind, protocol, answers) in
            [(promise.kind(), 7, 0), (promise.kind(), 8, 2), (note.kind(), 7, 0), (note.kind(), 8, 1)]
        {
            let mut pieces = Pieces::default();
            let first = |to: &mut Pieces| {
                if kind == note.kind() { note.encode(to) } else { promise.encode(SECOND, to) }
            };
            pieces.push(kind, 1, usize::MAX, first).unwrap();
            pieces.push(get.kind(), 1, usize::MAX, |to| get.encode(SECOND, to)).unwrap();
            let peer = Peer::new(|_| Box::pin(std::future::ready(Reply::Done)));
            let (mut ours, theirs) = duplex(1024);
            let service = Rc::new(Answers { peer: Rc::clone(&peer) });
            let caller =
                Caller { peer: US, connection: 1, protocol, epoch: kvorum_core::agreement::Epoch(0) };
            let asked = pieces.short.freeze();
            let serving =
                serve(theirs, asked, service, caller, Arc::clone(&clock), limits(Arc::clone(&clock)));
            let reading = async {
                run_ready_tasks().await;
                let mut first = [0; 64];
                let is_ended = answers == 0;
                assert_eq!(
                    ours.read(&mut first).await.unwrap() == 0,
                    is_ended,
                    "{kind:#x} in version {protocol}"
                );
                drop(ours);
            };
            tokio::join!(serving, reading);
            assert_eq!(peer.seen.borrow().len(), answers, "{kind:#x} in version {protocol}");
        }
    });
}

/// Goal: a note is about the request behind it and no other. Method: a note, then requests with another id and with its own.
#[test]
fn a_note_is_about_the_next_frame() {
    run(async {
        let clock: Arc<dyn Clock> = Arc::new(TestClock { begun: tokio::time::Instant::now() });
        let get = Request::Get { key: Key::new("k").unwrap(), value_bytes_max: 1 };
        let note = notes().remove(0);
        let mut pieces = Pieces::default();
        for (id, asked) in [(1, 2), (3, 3), (4, 3)] {
            pieces.push(note.kind(), id, usize::MAX, |to| note.encode(to)).unwrap();
            pieces.push(get.kind(), asked, usize::MAX, |to| get.encode(SECOND, to)).unwrap();
            pieces.push(get.kind(), id, usize::MAX, |to| get.encode(SECOND, to)).unwrap();
        }
        let peer = Peer::new(|_| Box::pin(std::future::ready(Reply::Found(None))));
        let (ours, theirs) = duplex(1 << 16);
        let service = Rc::new(Answers { peer: Rc::clone(&peer) });
        let caller =
            Caller { peer: US, connection: 1, protocol: PROTOCOL, epoch: kvorum_core::agreement::Epoch(0) };
        let asked = pieces.short.freeze();
        let serving = serve(theirs, asked, service, caller, Arc::clone(&clock), limits(Arc::clone(&clock)));
        let closing = async {
            run_ready_tasks().await;
            drop(ours);
        };
        tokio::join!(serving, closing);
        assert_eq!((peer.seen.borrow().len(), peer.traces.borrow().len()), (6, 1));
    });
}
