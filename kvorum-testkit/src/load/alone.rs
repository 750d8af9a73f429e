//! Load on a node without peers.

use super::run_clients;
use crate::Random;
use crate::history::{Asked, History};
use crate::session::Session;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

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
        let dying = AtomicBool::new(false);
        let client = |index: usize, stop: &AtomicBool| {
            let index = index as u64;
            let mut random = Random::new(seed ^ (index << 32));
            let mut session = Session::new(address);
            while !stop.load(Ordering::Relaxed) {
                if self.step(&mut session, &mut random, index) <= Asked::LATE {
                    if !dying.load(Ordering::SeqCst) {
                        session.history.complaints.push("a living node cut the connection".to_owned());
                    }
                    break;
                }
            }
            session.history
        };
        run_clients(usize::try_from(self.clients).unwrap(), client, || during(&dying))
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
