//! Load: clients that send requests for as long as something else happens.

pub mod alone;
pub mod cluster;

use crate::RaiseOnDrop;
use crate::history::History;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Runs `count` clients for as long as `during` runs, and returns their operations. A client ends when its flag is
/// raised.
fn run_clients(
    count: usize,
    client: impl Fn(usize, &AtomicBool) -> History + Sync,
    during: impl FnOnce(),
) -> History {
    let stop = AtomicBool::new(false);
    let mut history = History::default();
    thread::scope(|scope| {
        let (stop, client) = (&stop, &client);
        let clients: Vec<_> = (0..count).map(|index| scope.spawn(move || client(index, stop))).collect();
        let stopping = RaiseOnDrop(stop);
        during();
        drop(stopping);
        for client in clients {
            history.absorb(client.join().unwrap());
        }
    });
    history
}
