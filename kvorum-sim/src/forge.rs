//! Forged messages: what a forger that pretends to be a node can send to another one. Where nodes prove no
//! secret to each other, every process that reaches a node's port can send all of these. A node that accepts no
//! timestamp or floor without a bound takes no harm. Where they prove one, the forger does not know it, and sends
//! records that could be true: a node that listens to it shows values that no client wrote.
//!
//! The forger connects under the identity of a node, with a connection of its own beside that node's.

use crate::clock::EPOCH;
use crate::net::{SimConnector, authority_of};
use crate::plan::Plan;
use crate::trace::Trace;
use bytes::Bytes;
use kvorum_core::{Key, NodeId, Record, Run, Slot, StoreSeen, Token, UnixMillis, Value, Version};
use kvorum_server::coordinator::Shared;
use kvorum_server::peer::{
    ApplyKind, HandshakeError, Hello, Link, LinkObserver, LinkParts, PeerAuth, PeerAuthMode,
    REGISTRY_LEN_MAX, Request, Secrets, Setback, StepKind, Timestamp,
};
use kvorum_server::replica::Floor;
use kvorum_server::supervise::Supervisor;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a forger tries to send.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);
const YEAR: Duration = Duration::from_hours(24 * 365);

/// A forged message for a node.
#[derive(Debug, Clone, Copy)]
pub struct Forgery {
    /// The node that receives it.
    pub node: u16,
    /// Chooses the message.
    pub choice: u64,
}

/// Sends a forged message as the node of `shared`.
pub async fn send(
    forgery: Forgery,
    plan: &Plan,
    shared: Arc<Shared>,
    connector: SimConnector,
    trace: &Trace,
) {
    let (greeting, working) = (Arc::clone(&shared), Arc::clone(&shared));
    let link = Link::start(LinkParts {
        authority: authority_of(forgery.node),
        peer: shared.cluster.id_of(Slot(forgery.node)),
        connector: Rc::new(connector),
        hello: Box::new(move || greeting.cluster.hello(greeting.clock.wall())),
        epoch: Box::new(move || working.cluster.placed_since()),
        clock: Arc::clone(&shared.clock),
        limits: Arc::clone(&shared.peering.limits),
        auth: Arc::new(auth_of(forgery.choice)),
        rng: Arc::clone(&shared.rng),
        observer: Rc::new(Anybody),
        supervisor: Supervisor::default(),
    });
    let begun = now();
    while !link.is_usable() && now() < begun + PATIENCE {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let request = message(forgery.choice, plan, now());
    let answer = link.call(&request, PATIENCE).await;
    trace.line(now(), "forger", &format_args!("to node {}: {request:?}: {answer:?}", forgery.node));
}

/// A forger proves nothing, or a secret of its own.
fn auth_of(choice: u64) -> PeerAuth {
    let auth = PeerAuth::new(PeerAuthMode::Prefer);
    if choice.count_ones().is_multiple_of(2) {
        // Not the wrong one that a slip gives to nodes: they would rightly let it in.
        let own = Secrets::parse(b"a secret of the forger's own, which no node ever has");
        auth.replace(own.unwrap_or_default());
    }
    auth
}

fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// The message that `choice` stands for at `now`.
fn message(choice: u64, plan: &Plan, now: Duration) -> Request {
    let mut bits = choice;
    // Takes a number below `count` from `choice`.
    let mut below = |count: u64| {
        let number = bits % count;
        bits /= count;
        number
    };
    let wall = UnixMillis(EPOCH.0 + crate::millis(now));
    // Further ahead than the limit that any clock of the plan accepts.
    let ahead = if plan.are_clocks_right() { plan.clock_limit() + Duration::from_secs(2) } else { YEAR };
    let future = match below(3) {
        0 => u64::MAX,
        1 => clock_word(wall, ahead),
        _ => clock_word(wall, ahead + YEAR),
    };
    let key = usize::try_from(below(plan.keys.len().max(1) as u64)).unwrap_or(0);
    let key = plan.keys.get(key).map(|key| key.key.clone()).unwrap_or_default();
    let partition = Token::of(&key).partition(crate::plan::PARTITION_BITS).0;
    let Ok(key) = Key::new(key) else { return Request::TakeHints };
    let value = if below(2) == 0 { Value::Tombstone } else { Value::Present(Bytes::from_static(b"forged")) };
    let (version, from) = (Version::from_words(future, below(1 << 16)), plan.nodes);
    if plan.proves_peers {
        let version = Version::from_words(clock_word(wall, Duration::ZERO), below(1 << 16));
        let record = Record { version, from, expires: None, value, conditional: None };
        return Request::Apply { key, record, kind: ApplyKind::Write };
    }
    let record = Record { version, from, expires: None, value, conditional: None };
    let floor = Floor { agreed: future, sealed: future, purged: 0 };
    let future = Timestamp(future);
    // A floor that could be true. Nothing may follow from it, because a request's sender cannot be known.
    let sealed = clock_word(wall, Duration::ZERO);
    let believed = Floor { agreed: sealed, sealed, purged: 0 };
    let versions = |floor| Request::Versions { partition, after: None, bytes: 1 << 10, floor };
    let step = |kind| Request::Step { kind, round: 1, upto: future, partitions: vec![partition] };
    match below(12) {
        0 | 1 => Request::Apply { key, record, kind: ApplyKind::Write },
        2 => Request::Apply { key, record, kind: ApplyKind::Hint },
        3 => Request::Apply { key, record, kind: ApplyKind::ReadRepair },
        4 => Request::Survey { agreed: vec![future], held_by: None },
        5 => step(StepKind::Agree),
        6 => versions(floor),
        7 | 8 => versions(believed),
        9 => step(StepKind::Seal),
        10 => Request::Close { round: 1, upto: future, by_scan: false, partitions: vec![partition] },
        _ => Request::Ping { wall: UnixMillis(future.0), cluster_id: None, registry: strangers() },
    }
}

/// As many foreign nodes as a message can name.
fn strangers() -> Vec<StoreSeen> {
    let stranger = |number: u64| StoreSeen {
        node: NodeId(u64::MAX - number),
        store: u128::from(number),
        run: Run { number: 1, nonce: 1 },
    };
    (0..REGISTRY_LEN_MAX as u64).map(stranger).collect()
}

fn clock_word(wall: UnixMillis, ahead: Duration) -> u64 {
    let at = UnixMillis(wall.0 + crate::millis(ahead));
    Version::new(at, 0, NodeId(0)).clock()
}

/// The forger's observer, which ignores all events.
struct Anybody;

impl LinkObserver for Anybody {
    fn connected(&self, _theirs: &Hello) {}
    fn disconnected(&self, _reason: Option<&str>) {}
    fn failed(&self, _reason: &str, _setback: Setback) {}
    fn admit(&self, _ours: &Hello, _theirs: &Hello) -> Result<(), HandshakeError> {
        Ok(())
    }
}
