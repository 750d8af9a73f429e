//! What placements and configurations cost with 3, 30 and 100 nodes: `cargo run --release -p kvorum-core --example scale [NODES…]`
//!
//! For each number of nodes, a row of a table: the time for a new placement, and for one more node; the bytes of the lists; the
//! time of a look-up, from a key to its replicas; the bytes of a configuration, as they are stored and sent; and the copies
//! that move for one more node, beside the least possible. `docs/placement.md` quotes them.

use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{
    Configuration, Joiner, MOVES_LEVEL, MemberChange, Routing, WINDOW_PARTITIONS_DEFAULT,
};
use kvorum_core::{ClusterId, NodeId, Placement, Token, Topology};
use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Look-ups that are timed together.
const LOOK_UPS: u32 = 1_000_000;
/// The number of replicas of a key.
const FROM: u16 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<u16> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let counts = if asked.is_empty() { vec![3, 30, 100] } else { asked };
    println!(
        "| nodes | new placement | one more node | lists | epoch's view | look-up, stable | look-up, joint | configuration, stable | \
         joint | copies moved, least possible |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for nodes in counts {
        row(nodes)?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "an example that measures")]
fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let result = run();
    (result, begun.elapsed())
}

fn url(number: u16) -> String {
    format!("http://node-{number}.example.com:8080")
}

fn row(nodes: u16) -> Result<(), Box<dyn Error>> {
    let topology = Topology::of_urls((0..nodes).map(url))?;
    let (placement, placing) = timed(|| Placement::initial(&topology));
    let larger = Topology::of_urls((0..=nodes).map(url))?;
    let (changed, changing) = timed(|| placement.change(&topology, &larger));
    changed?;
    let cluster = ClusterId::new(7).ok_or("an id is not zero")?;
    let stores: BTreeMap<NodeId, u128> = topology.members().iter().map(|member| member.id).zip(1..).collect();
    let stable = Configuration::genesis(cluster, &topology, &placement)
        .with_stores(&stores)?
        .with_level(MOVES_LEVEL)?;
    assert_eq!(stable.epoch, Epoch(2));
    let id = NodeId::of_url(&url(nodes));
    let joiner = Joiner { id, url: url(nodes), zone: String::new(), weight: 1, store: u128::MAX };
    let opening = stable.plan(&placement, &[MemberChange::Add(joiner)], WINDOW_PARTITIONS_DEFAULT)?;
    let moves = opening.preview(FROM, WINDOW_PARTITIONS_DEFAULT);
    let (routing, viewing) = timed(|| Routing::new(&stable, &placement, None));
    let [still, moving] = [&routing?, &opening.routing].map(looked_up);
    println!(
        "| {nodes} | {:.1} ms | {:.1} ms | {} KiB | {:.2} ms | {still:.1} ns | {moving:.1} ns | {} bytes | {} bytes | {}, {} |",
        placing.as_secs_f64() * 1e3,
        changing.as_secs_f64() * 1e3,
        // Two bytes for each partition and node.
        ((usize::from(nodes) * 2) << topology.partition_bits()) >> 10,
        viewing.as_secs_f64() * 1e3,
        stable.encode().len(),
        opening.configuration.encode().len(),
        moves.copies,
        moves.copies_least,
    );
    Ok(())
}

/// The time from a key's bytes to its replicas, in nanoseconds: of the fastest of ten rounds.
fn looked_up(routing: &Routing) -> f64 {
    let round = |_| {
        let ((), took) = timed(|| {
            for number in 0..LOOK_UPS {
                let partition = Token::of(&black_box(number).to_be_bytes())
                    .partition(kvorum_core::PARTITION_BITS_DEFAULT);
                let route = routing.route(partition).of(FROM);
                black_box((route.reads(), route.targets().count()));
            }
        });
        took.as_secs_f64() * 1e9 / f64::from(LOOK_UPS)
    };
    (0..10).map(round).fold(f64::INFINITY, f64::min)
}
