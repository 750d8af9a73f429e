//! Goal: one seed, one run, to the byte. Method: machines that echo over the simulated network under a seed's faults,
//! twice; the traces must be equal, and those of other seeds different.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail by panicking, as its tests do")]

use kvorum::http::server::Listener;
use kvorum::storage::{Change, Durability, Engine, Keyspace};
use kvorum_sim::cluster::{Cluster, Life, Start, Trace};
use kvorum_sim::net::{Connector, SimConnector, SimListener, authority_of, host_of};
use kvorum_sim::plan::Plan;
use kvorum_sim::seed::Seed;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers each byte with the count of bytes that the machine's disk remembers.
async fn echo(life: Life, trace: Trace) -> turmoil::Result {
    let host = host_of(life.node);
    let listener = SimListener::bind().await?;
    loop {
        let mut stream = poll_fn(|cx| listener.poll_accept(cx)).await?;
        trace.line(turmoil::sim_elapsed().unwrap(), &host, &format_args!("accepts in life {}", life.number));
        let (engine, trace, host) = (life.engine.clone(), trace.clone(), host.clone());
        tokio::task::spawn_local(async move {
            while let Ok(byte) = stream.read_u8().await {
                let key = bytes::Bytes::from(vec![
                    byte,
                    u8::try_from(engine.row_count(Keyspace::Records) % 256).unwrap(),
                ]);
                let change = Change::Put { keyspace: Keyspace::Records, key, value: bytes::Bytes::new() };
                let stored = engine.commit(vec![change], Durability::Buffered);
                let count = engine.row_count(Keyspace::Records);
                trace.line(
                    turmoil::sim_elapsed().unwrap(),
                    &host,
                    &format_args!("{byte} {count} {stored:?}"),
                );
                if stream.write_u64(count as u64).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn ask(client: u16, nodes: u16, seed: Seed, trace: Trace) -> turmoil::Result {
    let who = format!("client-{client}");
    let mut stream = seed.numbered("asks", u64::from(client));
    loop {
        tokio::time::sleep(Duration::from_millis(stream.between(1, 100))).await;
        let node = stream.between_u16(0, nodes - 1);
        let asked = async {
            let mut connection = SimConnector.connect(&authority_of(node)).await?;
            connection.write_u8(7).await?;
            connection.read_u64().await
        };
        let answer = tokio::time::timeout(Duration::from_millis(500), asked).await;
        let answer = answer.map(|answer| answer.map_err(|error| error.kind()));
        trace.line(turmoil::sim_elapsed().unwrap(), &who, &format_args!("node {node}: {answer:?}"));
    }
}

fn run(seed: Seed) -> String {
    let mut plan = Plan::of(seed);
    plan.nodes = 3;
    plan.length = Duration::from_secs(15);
    let trace = Trace::kept();
    let echoing = trace.clone();
    let start: Start = Rc::new(move |life| Box::pin(echo(life, echoing.clone())));
    let (length, nodes) = (plan.length, plan.nodes);
    let mut cluster = Cluster::new(plan, &start, trace.clone());
    for client in 0..2 {
        cluster.client(&format!("client-{client}"), ask(client, nodes, seed, trace.clone()));
    }
    cluster.run_until(length).unwrap();
    cluster.heal();
    cluster.run_until(length + Duration::from_secs(2)).unwrap();
    trace.text()
}

#[test]
fn same_seed_same_trace() {
    // Seeds of three nodes, so that the plan's own faults fit.
    let seeds: Vec<Seed> = (0..100).map(Seed).filter(|seed| Plan::of(*seed).nodes == 3).take(5).collect();
    let traces: Vec<String> = seeds.iter().map(|seed| run(*seed)).collect();
    for (seed, trace) in seeds.iter().zip(&traces) {
        assert!(trace.lines().count() > 100, "{trace}");
        assert_eq!(&run(*seed), trace, "seed {}", seed.0);
    }
    assert!(traces.iter().zip(traces.iter().skip(1)).all(|(one, other)| one != other));
}
